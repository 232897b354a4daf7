//! The memory tier as its callers see it.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::{Durability, Generation, Slot, StoreId};
use holdfast_chunk::*;
use holdfast_env::region::{FRAME_BYTES, Region};
use std::sync::Arc;

const M: Durability = Durability::Memory;

fn store(frames: u64) -> (Arc<Region>, Store) {
    let region = Region::create("test", StoreId(5), frames * FRAME_BYTES).unwrap();
    (region.clone(), Store::in_region(region))
}

#[test]
fn raw_bytes_are_read_whole_in_part_and_through_their_location() {
    let (region, store) = store(8);
    store.create(spec(ChunkKind::Raw, 4 << 20)).unwrap();
    let data = noise(1, 2_500_000);
    let mut at = 0;
    for len in [1usize, 65_535, 1_000_000, 1_434_464] {
        append_raw(&store, at as u64, &data[at..at + len], M).unwrap();
        at += len;
    }
    assert_eq!(read_raw(&store, 0, 1 << 30).unwrap(), data);
    assert_eq!(read_raw(&store, 65_000, 3000).unwrap(), data[65_000..68_000]);
    let located = store.locate(CHUNK, 1_000_000, 100_000).unwrap();
    assert_eq!(located.iter().map(|l| l.bytes).collect::<Vec<_>>(), [48_576, 51_424]);
    assert_eq!(located[1].region_offset, located[0].region_offset + 48_576);
    let frame = (located[0].region_offset - region.frame_offset(0)) / FRAME_BYTES;
    assert_eq!(located[0].frame_generation, region.frame_generation(frame));
    store.seal(CHUNK, 70_000).unwrap();
    assert_eq!(read_raw(&store, 0, 1 << 30).unwrap(), data[..70_000]);
    assert_eq!(append_raw(&store, 70_000, b"x", M).unwrap_err().kind, Kind::Fenced);
    store.unlink(CHUNK, Generation(0)).unwrap();
    assert_ne!(located[0].frame_generation, region.frame_generation(frame));
    assert_eq!(region.frames_free(), 8);
}

#[test]
fn a_reservation_that_is_dropped_leaves_no_trace_and_one_overtaken_ends_the_chunk() {
    let (_region, store) = store(4);
    store.create(spec(ChunkKind::Raw, 2 << 20)).unwrap();
    append_raw(&store, 0, b"abc", M).unwrap();
    let mut reservation = store.reserve_raw(CHUNK, 3, 100).unwrap().unwrap();
    reservation.fill(7);
    assert_eq!(store.length(CHUNK), Ok(3));
    drop(reservation);
    assert_eq!(append_raw(&store, 3, b"def", M), Ok(6));
    assert_eq!(read_raw(&store, 0, 10).unwrap(), b"abcdef");

    let mut first = store.reserve_raw(CHUNK, 6, 4).unwrap().unwrap();
    let mut second = store.reserve_raw(CHUNK, 10, 4).unwrap().unwrap();
    first.copy_from_slice(b"1234");
    second.copy_from_slice(b"5678");
    drop(first);
    let sums = crcs(10, b"5678");
    assert_eq!(store.commit_raw(CHUNK, second, &sums).unwrap_err().kind, Kind::Fenced);
    assert_eq!(read_raw(&store, 0, 100).unwrap(), b"abcdef");
    store.seal(CHUNK, 6).unwrap();
}

#[test]
fn needles_keep_their_pointers_through_compaction() {
    let (region, store) = store(8);
    store.create(spec(ChunkKind::Packed, 3 << 20)).unwrap();
    let sizes = [0usize, 10, 70_000, 1_000_000];
    for (i, &size) in sizes.iter().enumerate() {
        append_needle(&store, i as u64, &noise(i as u64, size)).unwrap();
    }
    assert_eq!(append_needle(&store, 9, &noise(9, 3 << 20)).unwrap_err().kind, Kind::Full);
    let check = |gone: Option<u32>| {
        for (i, &size) in sizes.iter().enumerate() {
            let read = store.try_read_needle(pointer(i as u32, i as u64)).unwrap();
            match gone == Some(i as u32) {
                true => assert_eq!(read.err().unwrap().kind, Kind::NotFound),
                false => assert_eq!(read.unwrap().bytes.as_slice(), noise(i as u64, size)),
            }
        }
    };
    check(None);
    assert_eq!(store.read_needle(pointer(1, 2)).err().unwrap().kind, Kind::NotFound);
    store.seal(CHUNK, 4).unwrap();
    let held = store.read_needle(pointer(3, 3)).unwrap();
    let made = store.compact(CHUNK, &|slot| slot != Slot(1), Generation(1)).unwrap();
    assert_eq!(made.needles, 3);
    store.switch(CHUNK, Generation(1)).unwrap();
    check(Some(1));
    // Whoever removes the chunk removes what lies beside it first, and has to see it.
    assert_eq!(store.other_generations(CHUNK), [Generation(0)]);
    assert_eq!(store.unlink(CHUNK, Generation(1)).unwrap_err().kind, Kind::Invalid);
    store.unlink(CHUNK, Generation(0)).unwrap();
    assert_eq!(store.unlink(CHUNK, Generation(0)).unwrap_err().kind, Kind::NotFound);
    assert_eq!(store.other_generations(CHUNK), []);
    assert_eq!(held.bytes.as_slice(), noise(3, 1_000_000), "a reader in flight keeps its frames");
    drop(held);
    check(Some(1));
    assert_eq!(region.frames_free(), 6);
    store.unlink(CHUNK, Generation(1)).unwrap();
    assert_eq!(region.frames_free(), 8);
}

/// A fence answers the length for good: a body that was on its way then is refused, and a seal at
/// that length cuts nothing that was acknowledged.
#[test]
fn a_reservation_from_before_a_fence_is_refused_behind_it() {
    let (_region, store) = store(4);
    store.create(spec(ChunkKind::Raw, 2 << 20)).unwrap();
    append_raw(&store, 0, b"abc", M).unwrap();
    let mut window = store.reserve_raw(CHUNK, 3, 4).unwrap().unwrap();
    window.copy_from_slice(b"late");
    let length = store.fence(CHUNK).unwrap();
    let late = store.commit_raw(CHUNK, window, &crcs(3, b"late"));
    assert_eq!(late.unwrap_err().kind, Kind::Fenced);
    store.seal(CHUNK, length).unwrap();
    assert_eq!(read_raw(&store, 0, 100).unwrap(), b"abc");
}
