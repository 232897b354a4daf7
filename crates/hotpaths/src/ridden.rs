//! What a ride meets for every item: encoding, and reading what was received.

use holdfast_wire::slab::{
    Builder, Hashed, Item, Needs, Range, Reader, SUB_RANGES, Slab, hash, header_bytes,
};
use std::hint::black_box;
use std::sync::Arc;

/// Of one round: they make one slab.
const ITEMS: u64 = 1_380;
const VALUE_BYTES: usize = 150;

/// The lower bytes of their hashes and keys of 20 bytes, in order.
fn keys() -> Vec<(u32, String)> {
    let key = |i: u64| format!("node/{i:015}");
    let low = |key: &String| hash(Hashed::All, key.as_bytes()) & 0xff_ffff;
    let mut keys: Vec<_> = (0..ITEMS).map(key).map(|key| (low(&key), key)).collect();
    keys.sort();
    keys
}

fn builder() -> Builder {
    Builder::new(Range::ALL, ITEMS, Arc::new(Needs::all()), false)
}

/// Gives a builder the items of this sub-range; answers the slab of the one before.
fn push(builder: &mut Builder, sub_range: u32, keys: &[(u32, String)]) -> Option<Slab> {
    let mut made = None;
    for (index, (low, key)) in (0..).zip(keys) {
        let (hash, value) = (sub_range << 24 | low, Some([7; VALUE_BYTES].as_slice()));
        let item = Item { hash, collection: 1, key: key.as_bytes(), index, value };
        let slab = builder.push(black_box(&item));
        assert!(slab.is_none() || index == 0, "the items of a sub-range are one slab");
        made = made.or(slab);
    }
    made
}

pub fn slab_encode() -> Box<dyn FnMut()> {
    let keys = keys();
    let (mut making, mut sub_range) = (builder(), 0);
    Box::new(move || {
        black_box(push(&mut making, sub_range, &keys));
        sub_range += 1;
        if sub_range == SUB_RANGES as u32 {
            (making, sub_range) = (builder(), 0);
        }
    })
}

pub fn slab_read() -> Box<dyn FnMut()> {
    let (mut making, mut bytes) = (builder(), Vec::new());
    push(&mut making, 0, &keys());
    making.finish().expect("there are items").write(&mut bytes);
    let split = header_bytes(&bytes).expect("it begins with its header");
    Box::new(move || {
        let (header, columns) = black_box(&bytes).split_at(split);
        let reader = Reader::new(header, columns).expect("nothing is wrong with it");
        for item in reader.items() {
            black_box(item);
        }
    })
}
