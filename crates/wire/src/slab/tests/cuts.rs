//! Where a builder cuts.

use super::*;

/// What rows take in one slab if everything is encoded, by the page of the format.
fn weight(rows: &[Row]) -> usize {
    let collections: BTreeSet<u16> = rows.iter().map(|row| row.collection).collect();
    let item = |row: &Row| 17 + row.key.len() + row.value.as_ref().map_or(0, Vec::len);
    rows.iter().map(item).sum::<usize>() + 64 * collections.len()
}

/// Where the last key of these rows begins.
fn last_key(rows: &[Row]) -> usize {
    let last = rows.last().unwrap();
    rows.iter().position(|row| row.same_key(last)).unwrap()
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_slab_ends_where_the_page_of_the_format_says(rows in rows(), limit in limits()) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let limit = limit as usize;
        let alone = |row: &Row| row.value.as_ref().is_some_and(|value| value.len() > limit);
        let slabs = build(&rows, &Needs::all(), false);
        prop_assert_eq!(slabs.is_empty(), rows.is_empty());
        let ends = slabs.iter().skip(1).map(|(first, _)| *first).chain([rows.len()]);
        for ((first, slab), end) in slabs.iter().zip(ends) {
            let run = &rows[*first..end];
            let Header { index, first_hash, last_hash, .. } = slab.header;
            prop_assert_eq!(index, INDEX);
            prop_assert_eq!((first_hash, last_hash), (run[0].hash, run[run.len() - 1].hash));
            prop_assert_eq!(sub_range(first_hash), sub_range(last_hash));
            let begins_inside = *first > 0 && rows[first - 1].same_key(&run[0]);
            prop_assert_eq!(slab.header.begins_inside_key, begins_inside);
            let next = rows.get(end);
            let ends_inside = next.is_some_and(|next| next.same_key(&run[run.len() - 1]));
            prop_assert_eq!(slab.header.ends_inside_key, ends_inside);
            // It did not go on when it was to end.
            let key = last_key(run);
            prop_assert!(key == 0 || weight(&run[..key]) < limit);
            prop_assert!(run.len() == 1 || !run.iter().any(alone));
            let collection_comes = run[..key].iter().all(|r| r.collection != run[key].collection);
            let other_key = if collection_comes { 0 } else { 64 };
            let key_weight = weight(&run[key..]) - other_key;
            prop_assert!(run.len() - key == 1 || key_weight <= limit);
            // It did not end when it was to go on.
            if let Some(next) = next
                && sub_range(next.hash) == sub_range(last_hash)
                && !alone(next)
                && !alone(&run[0])
            {
                let full = match ends_inside {
                    true => key_weight + weight(std::slice::from_ref(next)) - 64 > limit,
                    false => weight(run) >= limit,
                };
                prop_assert!(full, "a slab of {} bytes ends before its time", weight(run));
            }
            // All of it is what it weighs.
            let descriptions = 16 * slab.columns().len();
            let collections: BTreeSet<u16> = run.iter().map(|row| row.collection).collect();
            prop_assert_eq!(slab.body_bytes(), weight(run) - 64 * collections.len());
            prop_assert_eq!(slab.header_bytes().len(), 32 + descriptions);
        }
    }

    /// Somebody who comes later, and needs something else, has the same slabs from any of them on.
    #[test]
    fn whoever_begins_at_a_slab_makes_the_same_slabs_from_there_on(
        rows in rows(),
        limit in limits(),
        rider in wanteds(),
    ) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let slabs = build(&rows, &Needs::all(), false);
        for (at, (first, slab)) in slabs.iter().enumerate() {
            let inside_key = slab.header.begins_inside_key;
            let again = build(&rows[*first..], &Needs::all(), inside_key);
            prop_assert_eq!(again.len(), slabs.len() - at);
            for ((place, slab), (place_again, slab_again)) in slabs[at..].iter().zip(&again) {
                prop_assert_eq!(*place, first + place_again);
                prop_assert!(bytes_of(slab) == bytes_of(slab_again), "slab {} differs", at);
            }
            let other = build(&rows[*first..], &Needs::of(&rider), inside_key);
            let places = |slabs: &[(usize, Slab)]| -> Vec<(usize, Header)> {
                slabs.iter().map(|(first, slab)| (*first, slab.header)).collect()
            };
            prop_assert_eq!(places(&other), places(&again));
        }
    }
}

#[test]
#[should_panic(expected = "out of order")]
fn rows_out_of_order_are_not_encoded() {
    let row = |index| Row { hash: 1, collection: 1, key: vec![1], index, value: None };
    build(&[row(2), row(2)], &Needs::all(), false);
}

#[test]
#[should_panic(expected = "of another range")]
fn a_row_of_another_partition_is_not_encoded() {
    let mut builder = Builder::new(Range::part(0, 2), 9, Arc::new(Needs::all()), false);
    builder.push(&Item { hash: 1 << 31, collection: 1, key: b"k", index: 1, value: None });
}
