//! Slabs against a plain list of rows: whatever is asked for, what arrives is what a filter of the
//! list leaves. Keys are few and have many versions; their hashes lie on borders and collide.

mod bytes;
mod cuts;
mod fields;
mod sums;

use super::*;
use holdfast_env::trial::Trial;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// An item of its own, in the order of a view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    hash: u32,
    collection: u16,
    key: Vec<u8>,
    index: u64,
    value: Option<Vec<u8>>,
}

impl Row {
    fn item(&self) -> Item<'_> {
        let Row { hash, collection, index, .. } = *self;
        Item { hash, collection, key: &self.key, index, value: self.value.as_deref() }
    }

    fn same_key(&self, other: &Row) -> bool {
        (self.hash, self.collection, &self.key) == (other.hash, other.collection, &other.key)
    }
}

/// The index of every view here.
const INDEX: u64 = 40;

const HASHES: [u32; 9] =
    [0, 1, 0xff_ffff, 0x100_0000, 0x100_0001, 0x7fff_ffff, 0x8000_0000, 0xff00_0000, u32::MAX];

fn keys() -> impl Strategy<Value = Vec<u8>> {
    let longest = |last| {
        let mut key = vec![0; KEY_BYTES_MAX];
        key[KEY_BYTES_MAX - 1] = last;
        key
    };
    prop_oneof![
        12 => prop::sample::select(vec![
            b"\0".to_vec(), b"\0\0".to_vec(), b"a".to_vec(), b"a\0".to_vec(), b"a\0b".to_vec(),
            b"ab".to_vec(), vec![0xff; 3],
        ]),
        1 => prop::sample::select(vec![longest(0), longest(1)]),
    ]
}

fn values() -> impl Strategy<Value = Option<Vec<u8>>> {
    let value = (prop::sample::select(vec![0, 1, 5, 40, 200, 1500]), any::<u8>());
    prop::option::weighted(0.8, value.prop_map(|(length, byte)| vec![byte; length]))
}

/// What fails is made smaller for a while only: rows are long.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, max_shrink_iters: 64, ..Default::default() }
}

/// The rows of a view, in order.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let collections = prop::sample::select(vec![0, 1, 7, u16::MAX]);
    let hashes = prop::sample::select(HASHES.to_vec());
    let row = (hashes, collections, keys(), 1..=INDEX, values()).prop_map(
        |(hash, collection, key, index, value)| Row { hash, collection, key, index, value },
    );
    prop::collection::vec(row, 0..120).prop_map(|mut rows| {
        rows.sort();
        rows.dedup_by(|row, before| row.same_key(before) && row.index == before.index);
        rows
    })
}

fn limits() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 17, 40, 100, 150, 300, 1000, 1024, SLAB_BYTES.usual()])
}

fn ranges() -> impl Strategy<Value = Range> {
    let bounds = || prop::sample::select(HASHES.to_vec()).prop_map(u64::from);
    let between = |(one, other): (u64, u64)| Range::new(one.min(other), one.max(other));
    let parts = (1..9u32).prop_flat_map(|of| (0..of, Just(of)));
    prop_oneof![
        2 => Just(Range::ALL),
        2 => (bounds(), bounds()).prop_map(between),
        1 => parts.prop_map(|(i, of)| Range::part(i, of)),
    ]
}

fn wanteds() -> impl Strategy<Value = Wanted> {
    let collections = prop_oneof![
        Just(Collections::All),
        prop::sample::subsequence(vec![0, 1, 2, 7, u16::MAX], 0..5).prop_map(Collections::Listed),
    ];
    let indices = prop_oneof![
        Just(0..u64::MAX),
        Just(0..INDEX + 1),
        (0..INDEX + 2).prop_map(|to| 0..to),
        (0..INDEX + 2, 0..INDEX + 2).prop_map(|(from, to)| from..to),
    ];
    (ranges(), collections, any::<bool>(), any::<bool>(), indices).prop_map(
        |(range, collections, keys_only, versions, indices)| Wanted {
            range,
            collections,
            keys_only,
            versions,
            indices,
        },
    )
}

/// The slabs of rows that follow one another, with the places of their first rows.
fn build(rows: &[Row], needs: &Needs, inside_key: bool) -> Vec<(usize, Slab)> {
    let mut builder = Builder::new(Range::ALL, INDEX, Arc::new(needs.clone()), inside_key);
    let (mut slabs, mut first) = (Vec::new(), 0);
    for (at, row) in rows.iter().enumerate() {
        if let Some(slab) = builder.push(&row.item()) {
            slabs.push((std::mem::replace(&mut first, at), slab));
        }
    }
    slabs.extend(builder.finish().map(|slab| (first, slab)));
    slabs
}

fn bytes_of(slab: &Slab) -> Vec<u8> {
    let mut bytes = Vec::new();
    slab.write(&mut bytes);
    bytes
}

/// What a rider has of an item: its place in the order, whether it is the newest, what came with it.
type Got = (u32, u16, Vec<u8>, u64, bool, Option<Option<Vec<u8>>>);

/// The items of a slab as whoever receives its bytes reads them.
fn received(slab: &Slab) -> Vec<Got> {
    let bytes = bytes_of(slab);
    let (header, columns) = bytes.split_at(header_bytes(&bytes).unwrap());
    let reader = Reader::new(header, columns).unwrap();
    assert_eq!(reader.header, slab.header);
    let got = reader.items().map(|received| {
        let content = match received.content {
            Content::Value(value) => Some(Some(value.to_vec())),
            Content::Deleted => Some(None),
            Content::NotSent => None,
        };
        let Received { hash, collection, key, index, newest, .. } = received;
        (hash, collection, key.to_vec(), index, newest, content)
    });
    got.collect()
}

/// What a rider is to have of a view with these rows.
fn model(rows: &[Row], wanted: &Wanted) -> Vec<Got> {
    let with_newest = rows.iter().enumerate().map(|(at, row)| {
        let last = rows.get(at + 1).is_none_or(|next| !next.same_key(row));
        (row, last && row.value.is_some())
    });
    let fits = with_newest.filter(|(row, newest)| {
        (wanted.range.low()..wanted.range.high()).contains(&u64::from(row.hash))
            && match &wanted.collections {
                Collections::All => true,
                Collections::Listed(listed) => listed.contains(&row.collection),
            }
            && (*newest || wanted.versions)
            && wanted.indices.contains(&row.index)
    });
    let got = fits.map(|(row, newest)| {
        let content = match &row.value {
            Some(_) if wanted.keys_only => None,
            value => Some(value.clone()),
        };
        (row.hash, row.collection, row.key.clone(), row.index, newest, content)
    });
    got.collect()
}

/// In order within keys is all that is promised; this is the order of rows.
fn in_order(mut got: Vec<Got>) -> Vec<Got> {
    let mut indices = BTreeMap::new();
    for (hash, collection, key, index, ..) in &got {
        let before = indices.insert((*hash, *collection, key), *index);
        assert!(before.is_none_or(|before| before < *index), "out of order within a key");
    }
    got.sort();
    got
}

/// What a rider receives of these slabs.
fn ride<'a>(slabs: impl IntoIterator<Item = &'a Slab>, wanted: &Wanted) -> Vec<Got> {
    let got = slabs.into_iter().flat_map(|slab| received(&select(slab, wanted)));
    in_order(got.collect())
}

proptest! {
    #![proptest_config(cases())]

    /// Several riders at a time: columns are made once, for what they need together.
    #[test]
    fn what_is_received_is_what_a_filter_of_the_rows_leaves(
        rows in rows(),
        riders in prop::collection::vec(wanteds(), 1..4),
        limit in limits(),
    ) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let nothing = Needs::nothing();
        let needs = riders.iter().fold(nothing, |needs, wanted| needs.and(&Needs::of(wanted)));
        let needed = build(&rows, &needs, false);
        let whole = build(&rows, &Needs::all(), false);
        for wanted in &riders {
            let expected = model(&rows, wanted);
            prop_assert_eq!(&ride(needed.iter().map(|(_, slab)| slab), wanted), &expected);
            prop_assert_eq!(&ride(whole.iter().map(|(_, slab)| slab), wanted), &expected);
            // From an image, too: all of it, and what this one needs.
            for needs in [Needs::all(), Needs::of(wanted)] {
                let read = |(_, slab): &(usize, Slab)| in_an_image(slab, needs.clone()).0;
                let image: Vec<Slab> = whole.iter().map(read).collect();
                prop_assert!(image.iter().all(|slab| slab.serves(wanted)));
                prop_assert_eq!(&ride(&image, wanted), &expected);
            }
        }
        let asked_for = |column: &Column| {
            let About { collection, group, what, .. } = column.about;
            riders.iter().any(|wanted| wanted.column(collection, group, what))
        };
        let columns = needed.iter().flat_map(|(_, slab)| slab.columns());
        prop_assert!(columns.into_iter().all(asked_for), "what nobody wants is encoded");
    }

    #[test]
    fn the_parts_of_a_view_are_the_view(rows in rows(), of in 1..=64u32, limit in limits()) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let slabs = build(&rows, &Needs::all(), false);
        let mut got = Vec::new();
        for i in 0..of {
            let wanted = Wanted { range: Range::part(i, of), ..Wanted::all() };
            let overlap = |slab: &Slab| {
                let Header { first_hash, last_hash, .. } = slab.header;
                wanted.range.overlaps(Range::new(first_hash.into(), u64::from(last_hash) + 1))
            };
            got.extend(ride(slabs.iter().map(|(_, slab)| slab).filter(|slab| overlap(slab)), &wanted));
        }
        prop_assert_eq!(in_order(got), model(&rows, &Wanted::all()));
    }

    #[test]
    fn needs_of_several_are_those_of_each(riders in prop::collection::vec(wanteds(), 1..5)) {
        let each: Vec<Needs> = riders.iter().map(Needs::of).collect();
        let together = each.iter().fold(Needs::nothing(), |needs, of| needs.and(of));
        for of in &each {
            prop_assert!(together.covers(of));
        }
        for (collection, group, what) in every_column() {
            let needed = together.need(collection).column(group, what);
            let wanted = riders.iter().any(|wanted| wanted.column(collection, group, what));
            prop_assert_eq!(needed, wanted, "{} {:?} {:?}", collection, group, what);
            let covered = every_column().all(|(collection, group, what)| {
                !together.need(collection).column(group, what)
                    || each[0].need(collection).column(group, what)
            });
            prop_assert_eq!(each[0].covers(&together), covered);
        }
        prop_assert_eq!(together.is_all(), together.covers(&Needs::all()));
    }
}

fn every_column() -> impl Iterator<Item = (u16, Group, What)> {
    let kinds =
        [Group::Older, Group::Newest].map(|group| [(group, What::Keys), (group, What::Values)]);
    // One that no rider names is among them.
    [0, 1, 2, 7, 8, u16::MAX].into_iter().flat_map(move |collection| {
        kinds.into_iter().flatten().map(move |(group, what)| (collection, group, what))
    })
}

/// The slab as it is read from an image, as far as it is needed; and how many bytes were read for that.
fn in_an_image(slab: &Slab, needs: Needs) -> (Slab, usize) {
    let (mut image, mut read) = (Vec::new(), 0);
    slab.write(&mut image);
    let kept = Slab::read(image.len(), &Arc::new(needs), &mut |at| {
        read += at.len();
        Ok(image[at].to_vec())
    });
    (kept.unwrap(), read)
}

#[test]
fn what_is_whole_is_shared_and_what_a_border_cuts_is_made_anew() {
    let row = |hash, collection, index, value: &[u8]| {
        let value = Some(value.to_vec());
        Row { hash, collection, key: b"key".to_vec(), index, value }
    };
    let rows = [row(5, 1, 1, b"a"), row(5, 1, 2, b"b"), row(5, 2, 3, b"c"), row(9, 1, 4, b"d")];
    let slabs = build(&rows, &Needs::all(), false);
    let [(0, slab)] = &slabs[..] else { panic!("four items are one slab: {slabs:?}") };
    let shared = |wanted: &Wanted| {
        let selected = select(slab, wanted);
        let of =
            |column: &Column| slab.columns.iter().any(|c| Arc::ptr_eq(&c.bytes, &column.bytes));
        selected.columns().iter().map(of).collect::<Vec<_>>()
    };
    // Of collection 1 older and newest ones, of collection 2 the newest.
    assert_eq!(shared(&Wanted::all()), [true; 6]);
    assert_eq!(shared(&Wanted { versions: false, ..Wanted::all() }), [true; 4]);
    assert_eq!(shared(&Wanted { keys_only: true, ..Wanted::all() }), [true; 3]);
    let two = Collections::Listed(vec![2]);
    assert_eq!(shared(&Wanted { collections: two, ..Wanted::all() }), [true; 2]);
    let range = Range::new(5, 10);
    assert_eq!(shared(&Wanted { range, indices: 0..INDEX + 1, ..Wanted::all() }), [true; 6]);
    assert_eq!(shared(&Wanted { range: Range::new(0, 9), ..Wanted::all() }), [false; 6]);
    // Where indices cut, the groups that they cut alone: of older and newest items of collection 1 these.
    assert_eq!(
        shared(&Wanted { indices: 0..3, ..Wanted::all() }),
        [true, true, false, false],
        "and of collection 2 nothing"
    );
    assert_eq!(shared(&Wanted { indices: 3..4, ..Wanted::all() }), [true; 2]);
    let (image, _) = in_an_image(slab, Needs::all());
    let of_image = select(&image, &Wanted { indices: 3..4, ..Wanted::all() });
    assert!(of_image.columns().iter().all(|c| image.columns.iter().any(|own| own.is_same(c))));
    assert_eq!(shared(&Wanted { range: Range::new(10, 90), ..Wanted::all() }), [false; 0]);
    // A selection serves others only if nothing was left out.
    assert!(select(slab, &Wanted::all()).serves(&Wanted::all()));
    let newest = Wanted { versions: false, ..Wanted::all() };
    assert!(!select(slab, &newest).serves(&newest));
}

/// Who wanted keys alone of an image had all values read and their checksums compared.
#[test]
fn of_a_slab_in_an_image_no_column_is_read_that_nobody_needs() {
    let row = |collection, key: u8, index| {
        let value = Some(vec![key; 5000]);
        Row { hash: 5, collection, key: vec![key; 100], index, value }
    };
    let rows = [row(1, 1, 1), row(1, 1, 2), row(1, 2, 3), row(2, 1, 4), row(2, 1, 5)];
    let slabs = build(&rows, &Needs::all(), false);
    let [(0, slab)] = &slabs[..] else { panic!("five items are one slab: {slabs:?}") };
    let wanted = |listed: &[u16], keys_only, versions| Wanted {
        collections: Collections::Listed(listed.to_vec()),
        keys_only,
        versions,
        ..Wanted::all()
    };
    let (key, value) = (record::KEY_HEADER_BYTES + 100, record::VALUE_HEADER_BYTES + 5000);
    for (wanted, needed) in [
        (wanted(&[], false, true), 0),
        (wanted(&[1], true, false), 2 * key),
        (wanted(&[1, 2], true, true), 5 * key),
        (wanted(&[2], false, false), key + value),
        (wanted(&[1, 2], false, true), 5 * (key + value)),
    ] {
        let (kept, read) = in_an_image(slab, Needs::of(&wanted));
        // And what is read at first.
        assert_eq!((kept.body_bytes(), read), (needed, needed + 4096), "{wanted:?}");
    }
}

#[test]
#[should_panic(expected = "encoded for others")]
fn a_slab_is_not_selected_from_for_whom_it_does_not_serve() {
    let row = Row { hash: 1, collection: 1, key: vec![1], index: 1, value: Some(vec![]) };
    let keys_only = Wanted { keys_only: true, ..Wanted::all() };
    let slabs = build(&[row], &Needs::of(&keys_only), false);
    assert!(slabs[0].1.serves(&keys_only));
    select(&slabs[0].1, &Wanted::all());
}
