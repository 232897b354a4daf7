//! Sums, and fields of values.

use super::*;
use holdfast_base::Kind;

fn sums_of_items(rows: &[Row]) -> Sums {
    let mut sums = Sums::default();
    for (at, row) in rows.iter().enumerate() {
        let last = rows.get(at + 1).is_none_or(|next| !next.same_key(row));
        sums.add(&row.item(), last && row.value.is_some());
    }
    sums
}

/// As a rider sums up what it receives.
fn sums_of_ride(slabs: &[(usize, Slab)], wanted: &Wanted) -> Sums {
    let mut sums = Sums::default();
    for (_, slab) in slabs {
        let bytes = bytes_of(&select(slab, wanted));
        let (header, columns) = bytes.split_at(header_bytes(&bytes).unwrap());
        sums.add_slab(&Reader::new(header, columns).unwrap()).unwrap();
    }
    sums
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn sums_of_partitions_add_up(rows in rows(), limit in limits()) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let slabs = build(&rows, &Needs::all(), false);
        let whole = sums_of_items(&rows);
        for of in [1, 2, 3, 4, 6] {
            let mut together = Sums::default();
            for i in 0..of {
                let wanted = Wanted { range: Range::part(i, of), ..Wanted::all() };
                together.add_sums(&sums_of_ride(&slabs, &wanted));
            }
            prop_assert!(together == whole, "{} partitions have other sums than one", of);
        }
        let newest = sums_of_ride(&slabs, &Wanted { versions: false, ..Wanted::all() });
        prop_assert_eq!(newest.newest(), whole.newest());
    }

    /// One item, and one thing about it, in the sub-range where it is and nowhere else.
    #[test]
    fn sums_differ_by_whatever_differs(rows in rows(), at in any::<prop::sample::Index>(), what in 0..6) {
        prop_assume!(!rows.is_empty());
        let at = at.index(rows.len());
        let mut other = rows.clone();
        let row = &mut other[at];
        match what {
            0 => row.collection = row.collection.wrapping_add(1),
            1 => row.key[0] ^= 1,
            2 => row.index += 1000,
            3 => row.value = Some(row.value.take().map_or(Vec::new(), |v| [v, vec![0]].concat())),
            4 => row.value = row.value.take().is_none().then(Vec::new),
            _ => _ = other.remove(at),
        }
        let (one, other) = (sums_of_items(&rows), sums_of_items(&other));
        let differ = (0..SUB_RANGES).filter(|i| one.all()[*i] != other.all()[*i]);
        prop_assert_eq!(differ.collect::<Vec<_>>(), [usize::from(sub_range(rows[at].hash))]);
    }
}

#[test]
fn two_keys_that_change_their_values_have_another_sum() {
    let row = |key: u8, value: u8| {
        let value = Some(vec![value]);
        Row { hash: 1, collection: 1, key: vec![key], index: 7, value }
    };
    let one = sums_of_items(&[row(1, 1), row(2, 2)]);
    assert_ne!(one, sums_of_items(&[row(1, 2), row(2, 1)]));
}

#[test]
fn keys_alone_have_no_sum() {
    let row = Row { hash: 1, collection: 1, key: vec![1], index: 7, value: Some(vec![]) };
    let slabs = build(&[row], &Needs::all(), false);
    let bytes = bytes_of(&select(&slabs[0].1, &Wanted { keys_only: true, ..Wanted::all() }));
    let (header, columns) = bytes.split_at(header_bytes(&bytes).unwrap());
    let refused = Sums::default().add_slab(&Reader::new(header, columns).unwrap());
    assert_eq!(refused.unwrap_err().kind, Kind::Invalid);
}
