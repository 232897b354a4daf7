//! The disk tier as its callers see it, over a file system in memory.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::{Cookie, Durability, Generation, Pointer, Slot};
use holdfast_chunk::*;
use holdfast_env::SeededRng;
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const D: Durability = Durability::Durable;

fn raw_store() -> (Arc<MemDisk>, Store) {
    raw_store_of(4 << 20)
}

fn raw_store_of(capacity: u64) -> (Arc<MemDisk>, Store) {
    let disk = MemDisk::new();
    let (store, found) = open(&disk);
    assert!(found.new);
    store.create(spec(ChunkKind::Raw, capacity)).unwrap();
    (disk, store)
}

fn packed_store(sizes: &[usize]) -> (Arc<MemDisk>, Store) {
    packed_store_of(2 << 20, sizes)
}

fn packed_store_of(capacity: u64, sizes: &[usize]) -> (Arc<MemDisk>, Store) {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Packed, capacity)).unwrap();
    for (i, &size) in sizes.iter().enumerate() {
        let slot = append_needle(&store, i as u64, &noise(i as u64, size)).unwrap();
        assert_eq!(slot, Slot(i as u32));
    }
    (disk, store)
}

fn reopen(disk: &Arc<MemDisk>, store: Store) -> (Store, Recovered) {
    drop(store);
    open(disk)
}

fn needles_are_there(store: &Store, sizes: &[usize], gone: &[usize]) {
    for (i, &size) in sizes.iter().enumerate() {
        let read = store.read_needle(pointer(i as u32, i as u64));
        if gone.contains(&i) {
            assert_eq!(read.err().unwrap().kind, Kind::NotFound, "slot {i}");
            continue;
        }
        let read = read.unwrap();
        assert_eq!(read.bytes.to_vec(), noise(i as u64, size), "slot {i}");
        assert_eq!(read.needle, needle(i as u64));
        assert_eq!(read.crcs, crcs(0, &noise(i as u64, size)));
    }
}

const SIZES: &[usize] = &[0, 1, 7, 100, 4096, 65_536, 65_537, 200_000];

#[test]
fn acknowledged_raw_bytes_are_readable_before_and_after_restart_and_seal() {
    let (disk, store) = raw_store();
    let data = noise(5, 300_000);
    let mut at = 0;
    for (i, len) in [1usize, 4095, 65_536, 100_000, 130_368].into_iter().enumerate() {
        let class = if i % 2 == 0 { D } else { Durability::Memory };
        let body = &data[at..at + len];
        assert_eq!(append_raw(&store, at as u64, body, class), Ok((at + len) as u64));
        at += len;
    }
    assert_eq!(read_raw(&store, 0, 1 << 30).unwrap(), data);
    let (store, found) = reopen(&disk, store);
    assert_eq!(found.chunks[0].length, 300_000);
    assert_eq!(found.chunks[0].owner, 99);
    assert!(found.cut_tails.is_empty() && found.damaged.is_empty());
    assert_eq!(read_raw(&store, 65_535, 3).unwrap(), data[65_535..65_538]);
    store.seal(CHUNK, 300_000).unwrap();
    assert_eq!(read_raw(&store, 0, 1 << 30).unwrap(), data);
    let (store, found) = reopen(&disk, store);
    assert_eq!(found.chunks[0].state, ReplicaState::Sealed);
    assert_eq!(read_raw(&store, 100, 299_000).unwrap(), data[100..299_100]);
    assert!(read_raw(&store, 300_000, 1).unwrap().is_empty());
}

#[test]
fn needles_of_all_sizes_are_readable_before_and_after_restart_and_seal() {
    let (disk, store) = packed_store(SIZES);
    needles_are_there(&store, SIZES, &[]);
    let (store, found) = reopen(&disk, store);
    assert_eq!((found.chunks[0].length, found.chunks[0].needles), (8, 8));
    needles_are_there(&store, SIZES, &[]);
    store.seal(CHUNK, 8).unwrap();
    needles_are_there(&store, SIZES, &[]);
    let (store, _) = reopen(&disk, store);
    needles_are_there(&store, SIZES, &[]);
}

#[test]
fn a_wrong_cookie_slot_or_chunk_finds_nothing() {
    let (_disk, store) = packed_store(&[10]);
    let right = pointer(0, 0);
    for wrong in [
        Pointer { cookie: Cookie(1), ..right },
        Pointer { slot: Slot(1), ..right },
        Pointer { chunk: holdfast_base::ids::ChunkId(8), ..right },
    ] {
        assert_eq!(store.read_needle(wrong).err().unwrap().kind, Kind::NotFound);
    }
    store.read_needle(right).unwrap();
}

#[test]
fn wrong_appends_are_refused_and_change_nothing() {
    let (_disk, store) = raw_store();
    append_raw(&store, 0, b"abc", D).unwrap();
    assert_eq!(append_raw(&store, 2, b"x", D).unwrap_err().kind, Kind::Invalid);
    assert_eq!(append_raw(&store, 4, b"x", D).unwrap_err().kind, Kind::Invalid);
    assert_eq!(append_raw(&store, 3, b"", D).unwrap_err().kind, Kind::Invalid);
    let told = Arc::new(Mutex::new(None));
    let heard = told.clone();
    let done = Box::new(move |result| *heard.lock().unwrap() = Some(result));
    store.append_raw(CHUNK, 3, Box::new(b"xyz".to_vec()), vec![1], D, done);
    assert!(matches!(told.lock().unwrap().take(), Some(Err(e)) if e.kind == Kind::Corrupt));
    assert_eq!(append_raw(&store, 3, &noise(1, 5 << 20), D).unwrap_err().kind, Kind::Full);
    assert_eq!(append_raw(&store, 3, b"def", D), Ok(6));
    assert_eq!(read_raw(&store, 0, 10).unwrap(), b"abcdef");
}

/// A commit that the file has no room for leaves no gap: behind one, the next commit would prove
/// that what is missing there was once acknowledged.
#[test]
fn an_append_that_the_file_cannot_take_leaves_no_gap() {
    // A file takes twice its capacity (and two sectors more of that), and 16 sectors; a commit of
    // one byte takes one, as the header does, and three are left.
    let (disk, store) = raw_store_of(4 * 4096);
    let bytes = 2 * (4 + 2) + 16 - 1 - 3;
    for at in 0..bytes {
        append_raw(&store, at, b"x", Durability::Memory).unwrap();
    }
    let refused = append_raw(&store, bytes, &noise(1, 12_300), Durability::Memory);
    assert_eq!(refused.unwrap_err().kind, Kind::Full);
    assert_eq!(append_raw(&store, bytes, b"y", D), Ok(bytes + 1));
    let (store, found) = reopen(&disk, store);
    assert!(found.cut_tails.is_empty() && found.damaged.is_empty());
    assert_eq!(found.chunks[0].length, bytes + 1);
    assert_eq!(read_raw(&store, bytes - 1, 2).unwrap(), b"xy");
}

#[test]
fn one_commit_takes_all_waiting_appends_and_answers_in_order() {
    let (disk, store) = packed_store(&[]);
    disk.shared.writes.lock().unwrap().clear();
    let order = Arc::new(Mutex::new(Vec::new()));
    for i in 0..64u64 {
        let body = noise(i, 4096);
        let sums = crcs(0, &body);
        let order = order.clone();
        let done = Box::new(move |slot| order.lock().unwrap().push(slot));
        store.append_needle(CHUNK, needle(i), Box::new(body), sums, D, done);
    }
    assert!(store.read_needle(pointer(0, 0)).is_err(), "not acknowledged, not readable");
    store.pump();
    assert_eq!(disk.shared.writes.lock().unwrap().len(), 1);
    let expected: Vec<_> = (0..64).map(|i| Ok(Slot(i))).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    needles_are_there(&store, &[4096; 64], &[]);
}

#[test]
fn no_write_touches_a_sector_of_an_earlier_commit() {
    let (disk, store) = raw_store();
    let mut at = 0;
    for i in 1..60u64 {
        let body = noise(i, (i * i * 13 % 9000 + 1) as usize);
        at =
            append_raw(&store, at, &body, if i % 3 == 0 { Durability::Memory } else { D }).unwrap();
    }
    store.fence(CHUNK).unwrap();
    store.seal(CHUNK, at - 5).unwrap();
    let path = disk.find(".chunk");
    assert!(disk.content(&path).lock().unwrap().len() % 4096 == 0);
    // The first two writes are the store's own file and the header.
    let writes = disk.shared.writes.lock().unwrap();
    let chunk_writes = &writes[1..];
    for pair in chunk_writes.windows(2) {
        assert!(pair[1].start >= pair[0].end, "{pair:?}");
        assert!(pair[1].start.is_multiple_of(4096) && pair[1].end.is_multiple_of(4096));
    }
}

#[test]
fn a_chunk_held_open_takes_no_appends_after_a_restart() {
    let (disk, store) = raw_store();
    append_raw(&store, 0, b"abc", D).unwrap();
    let (store, found) = reopen(&disk, store);
    assert_eq!(found.chunks[0].state, ReplicaState::Fenced);
    assert_eq!(append_raw(&store, 3, b"d", D).unwrap_err().kind, Kind::Fenced);
    assert_eq!(store.room(CHUNK), Ok(0));
    assert_eq!(store.fence(CHUNK), Ok(3));
    store.seal(CHUNK, 3).unwrap();
    assert_eq!(read_raw(&store, 0, 9).unwrap(), b"abc");
}

#[test]
fn a_fence_ends_appends_and_survives_restarts() {
    let (disk, store) = raw_store();
    append_raw(&store, 0, b"abc", D).unwrap();
    assert_eq!(store.fence(CHUNK), Ok(3));
    assert_eq!(append_raw(&store, 3, b"d", D).unwrap_err().kind, Kind::Fenced);
    let (store, found) = reopen(&disk, store);
    assert!(found.cut_tails.is_empty(), "a fence is no torn tail");
    assert_eq!(store.fence(CHUNK), Ok(3));
}

#[test]
fn the_first_seal_decides_and_may_be_shorter() {
    let (disk, store) = raw_store();
    let data = noise(2, 150_000);
    append_raw(&store, 0, &data, D).unwrap();
    assert_eq!(store.seal(CHUNK, 150_001).unwrap_err().kind, Kind::Invalid);
    store.seal(CHUNK, 100_001).unwrap();
    store.seal(CHUNK, 100_001).unwrap();
    assert_eq!(store.seal(CHUNK, 150_000).unwrap_err().kind, Kind::Fenced);
    let (store, _) = reopen(&disk, store);
    assert_eq!(store.length(CHUNK), Ok(100_001));
    assert_eq!(read_raw(&store, 0, 1 << 20).unwrap(), data[..100_001]);
    assert_eq!(read_raw(&store, 70_000, 40_000).unwrap(), data[70_000..100_001]);

    let (disk, store) = packed_store(SIZES);
    store.seal(CHUNK, 4).unwrap();
    let (store, _) = reopen(&disk, store);
    needles_are_there(&store, SIZES, &[4, 5, 6, 7]);
}

#[test]
fn a_crash_between_footer_and_name_finishes_the_seal() {
    let (disk, store) = packed_store(SIZES);
    store.seal(CHUNK, 8).unwrap();
    drop(store);
    let sealed = disk.find(".chunk");
    let content = disk.files.lock().unwrap().remove(&sealed).unwrap();
    disk.files.lock().unwrap().insert(sealed.with_extension("open"), content);
    let (store, found) = open(&disk);
    assert_eq!(found.chunks[0].state, ReplicaState::Sealed);
    assert!(found.cut_tails.is_empty() && found.damaged.is_empty());
    needles_are_there(&store, SIZES, &[]);
    disk.find(".chunk");
}

#[test]
fn a_torn_tail_is_cut_and_kept_aside() {
    for lost_sectors in 1..=2usize {
        let (disk, store) = raw_store();
        let data = noise(3, 20_000);
        append_raw(&store, 0, &data[..10_000], D).unwrap();
        append_raw(&store, 10_000, &data[10_000..], D).unwrap();
        let disk = disk.copy();
        // 3 sectors each; the second commit loses its last ones.
        let open_file = disk.content(&disk.find(".open"));
        open_file.lock().unwrap()[(7 - lost_sectors) * 4096..7 * 4096].fill(0);
        for _ in 0..2 {
            let (store, found) = open(&disk);
            assert_eq!(found.cut_tails.len(), 1);
            assert!(found.damaged.is_empty());
            assert_eq!(store.length(CHUNK), Ok(10_000));
            let kept = disk.content(&found.cut_tails[0].kept_as);
            assert_eq!(kept.lock().unwrap()[84 + 40 - 40..][..100].len(), 100);
            assert_eq!(read_raw(&store, 0, 1 << 20).unwrap(), data[..10_000]);
        }
        let (store, _) = open(&disk);
        store.seal(CHUNK, 10_000).unwrap();
        let (store, found) = reopen(&disk, store);
        assert!(found.cut_tails.is_empty() && found.damaged.is_empty());
        assert_eq!(read_raw(&store, 0, 1 << 20).unwrap(), data[..10_000]);
    }
}

#[test]
fn a_bad_place_before_a_valid_commit_is_damage_and_nothing_is_cut() {
    let (disk, store) = packed_store(&[3000, 3000, 3000]);
    drop(store);
    let file = disk.content(&disk.find(".open"));
    // A payload byte of the second commit; then the whole second commit.
    for range in [8192 + 500..8192 + 501, 8192..12288] {
        file.lock().unwrap()[range].iter_mut().for_each(|b| *b ^= 0x10);
        let (store, found) = open(&disk);
        assert!(found.cut_tails.is_empty());
        assert_eq!(found.damaged.len(), 1);
        assert!(found.chunks[0].damaged);
        assert_eq!(store.length(CHUNK), Ok(3));
        assert_eq!(store.read_needle(pointer(1, 1)).err().unwrap().kind, Kind::Corrupt);
        store.read_needle(pointer(0, 0)).unwrap();
        store.read_needle(pointer(2, 2)).unwrap();
    }
    let (store, _) = open(&disk);
    store.seal(CHUNK, 3).unwrap();
    let (store, _) = reopen(&disk, store);
    assert_eq!(store.read_needle(pointer(1, 1)).err().unwrap().kind, Kind::Corrupt);
    store.read_needle(pointer(2, 2)).unwrap();
}

/// The search for the next commit behind a bad place takes none that the file ends in.
#[test]
fn behind_a_bad_place_a_commit_that_is_not_all_there_is_no_commit() {
    for left in [4096, 8192] {
        // The process is killed: no mark says up to where it acknowledged.
        let disk = packed_store(&[3000, 3000, 10_000]).0.copy();
        let file = disk.content(&disk.find(".open"));
        file.lock().unwrap()[8192..12288].iter_mut().for_each(|b| *b ^= 0x10);
        file.lock().unwrap().truncate(12288 + left);
        let (store, found) = open(&disk);
        assert_eq!((found.cut_tails.len(), store.length(CHUNK)), (1, Ok(1)), "{found:?}");
        store.read_needle(pointer(0, 0)).unwrap();
        let later = store.read_needle(pointer(2, 2)).err().map(|e| e.kind);
        assert_eq!(later, Some(Kind::NotFound));
    }
}

/// Every byte of every chunk file, one bit each: reads give the right bytes or an error.
fn flip_everywhere(disk: &Arc<MemDisk>, ending: &str, check: impl Fn(&Store, &Recovered, usize)) {
    let len = disk.content(&disk.find(ending)).lock().unwrap().iter().rposition(|&b| b != 0);
    for at in 0..=len.unwrap() {
        let copy = disk.copy();
        let path = copy.find(ending);
        copy.content(&path).lock().unwrap()[at] ^= 1 << (at % 8);
        let (store, found) = open(&copy);
        check(&store, &found, at);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_never_served() {
    let sizes = [0, 5, 300, 1000];
    for sealed in [false, true] {
        let (disk, store) = packed_store_of(24 << 10, &sizes);
        if sealed {
            store.seal(CHUNK, 4).unwrap();
        }
        drop(store);
        let served = Mutex::new(0);
        flip_everywhere(&disk, if sealed { ".chunk" } else { ".open" }, |store, found, at| {
            let mut wrong = 0;
            for (i, &size) in sizes.iter().enumerate() {
                match store.read_needle(pointer(i as u32, i as u64)) {
                    Ok(read) => {
                        assert_eq!(read.bytes.to_vec(), noise(i as u64, size), "byte {at}");
                        assert_eq!(read.needle, needle(i as u64), "byte {at}");
                        *served.lock().unwrap() += 1;
                    }
                    Err(_) => wrong += 1,
                }
            }
            let reported = found.damaged.len() + found.cut_tails.len() + found.quarantined.len();
            if !sealed && wrong > 0 {
                assert!(reported > 0, "byte {at}: lost {wrong} in silence");
            }
            if reported == 0 && !sealed {
                assert_eq!(wrong, 0, "byte {at}");
            }
            assert!(at < 4096 || wrong <= 1, "byte {at}: one bit took {wrong} objects");
        });
        assert!(*served.lock().unwrap() > 0);
    }
}

#[test]
fn a_flipped_bit_in_a_raw_chunk_is_never_served() {
    for sealed in [false, true] {
        let (disk, store) = raw_store_of(24 << 10);
        let data = noise(9, 6000);
        append_raw(&store, 0, &data[..2000], D).unwrap();
        append_raw(&store, 2000, &data[2000..], D).unwrap();
        if sealed {
            store.seal(CHUNK, 6000).unwrap();
        }
        drop(store);
        flip_everywhere(&disk, if sealed { ".chunk" } else { ".open" }, |store, _, at| {
            for range in [0..6000, 100..200, 1999..2001, 5999..6000] {
                if let Ok(read) = read_raw(store, range.start as u64, range.len() as u64) {
                    let end = range.end.min(range.start + read.len());
                    assert_eq!(read, data[range.start..end], "byte {at}");
                }
            }
        });
    }
}

#[test]
fn compaction_keeps_pointers_valid_and_old_readers_reading() {
    let (disk, store) = packed_store(SIZES);
    store.seal(CHUNK, 8).unwrap();
    let live = |slot: Slot| slot.0 % 3 != 1;
    let gone = [1, 4, 7];
    let first = store.compact(CHUNK, &live, Generation(1)).unwrap();
    assert_eq!(first.needles, 5);
    needles_are_there(&store, SIZES, &[]);
    assert_eq!(store.compact(CHUNK, &live, Generation(1)).unwrap_err().kind, Kind::Exists);
    let (store, found) = reopen(&disk, store);
    assert_eq!(found.other_generations, [(CHUNK, Generation(1))]);
    needles_are_there(&store, SIZES, &[]);
    // The computing process ended: what it answered is read from the file.
    assert_eq!(store.digest(CHUNK, Generation(1)), Ok(first.digest));
    assert_ne!(store.digest(CHUNK, Generation(0)), Ok(first.digest));
    assert_eq!(store.digest(CHUNK, Generation(2)).unwrap_err().kind, Kind::NotFound);
    store.switch(CHUNK, Generation(1)).unwrap();
    needles_are_there(&store, SIZES, &gone);
    let used = store.usage().used_bytes;
    assert_eq!(store.unlink(CHUNK, Generation(1)).unwrap_err().kind, Kind::Invalid);
    store.unlink(CHUNK, Generation(0)).unwrap();
    assert!(store.usage().used_bytes < used);
    let (store, found) = reopen(&disk, store);
    assert_eq!(found.chunks[0].generation, Generation(1));
    needles_are_there(&store, SIZES, &gone);
    // Compacting the compacted, and the same slots on another replica: the same digest.
    store.compact(CHUNK, &|_| true, Generation(2)).unwrap();
    let (_other, replica) = packed_store(SIZES);
    replica.seal(CHUNK, 8).unwrap();
    assert_eq!(replica.compact(CHUNK, &live, Generation(1)).unwrap(), first);
    let differs = replica.compact(CHUNK, &|_| true, Generation(2)).unwrap();
    assert_ne!(differs.digest, first.digest);
}

#[test]
fn a_full_disk_refuses_appends_and_can_be_compacted() {
    let disk = MemDisk::new();
    disk.shared.total_bytes.store(4 << 20, Ordering::SeqCst);
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Packed, 1 << 20)).unwrap();
    let mut count = 0;
    while append_needle(&store, count, &noise(count, 50_000)).is_ok() {
        count += 1;
    }
    assert!(count >= 15, "{count}");
    store.seal(CHUNK, count).unwrap();
    let mut next = 100;
    let refused = loop {
        let spec = ChunkSpec::new(holdfast_base::ids::ChunkId(next), ChunkKind::Raw, 1);
        match store.create(ChunkSpec { capacity_bytes: 300_000, ..spec }) {
            Ok(()) => next += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind, Kind::Full);
    store.compact(CHUNK, &|slot| slot.0 % 2 == 0, Generation(1)).unwrap();
    store.switch(CHUNK, Generation(1)).unwrap();
    store.unlink(CHUNK, Generation(0)).unwrap();
    let spec = ChunkSpec::new(holdfast_base::ids::ChunkId(next), ChunkKind::Raw, 1);
    store.create(ChunkSpec { capacity_bytes: 300_000, ..spec }).unwrap();
    let sizes = vec![50_000; count as usize];
    let gone: Vec<usize> = (0..count as usize).filter(|i| i % 2 == 1).collect();
    needles_are_there(&store, &sizes, &gone);
}

#[test]
fn a_failed_sync_makes_the_store_read_only_until_restart() {
    let (disk, store) = packed_store(&[100]);
    disk.shared.fail_syncs.store(true, Ordering::SeqCst);
    let refused = append_needle(&store, 1, b"x").unwrap_err();
    assert_eq!(refused.kind, Kind::ReadOnly);
    assert!(refused.message.contains("sync failed"), "{refused}");
    disk.shared.fail_syncs.store(false, Ordering::SeqCst);
    assert_eq!(append_needle(&store, 1, b"x").unwrap_err().kind, Kind::ReadOnly);
    assert_eq!(store.seal(CHUNK, 1).unwrap_err().kind, Kind::ReadOnly);
    assert!(store.usage().read_only);
    needles_are_there(&store, &[100], &[]);
    let (store, _) = reopen(&disk, store);
    store.seal(CHUNK, 1).unwrap();
}

/// Idle connections had taken the last descriptor: the create that found none counted as a failed
/// disk, and the store took no more writes until the next start.
#[test]
fn a_file_that_finds_no_descriptor_is_asked_for_again_and_breaks_nothing() {
    let (disk, store) = packed_store(&[100]);
    let other =
        ChunkSpec { chunk: holdfast_base::ids::ChunkId(8), ..spec(ChunkKind::Packed, 1 << 20) };
    disk.shared.no_descriptor.store(true, Ordering::SeqCst);
    let refused = store.create(other).unwrap_err();
    assert_eq!(refused.kind, Kind::Retry, "{refused}");
    assert!(!store.usage().read_only);
    append_needle(&store, 1, b"x").unwrap();
    disk.shared.no_descriptor.store(false, Ordering::SeqCst);
    store.create(other).unwrap();
}

#[test]
fn strangers_are_quarantined_and_other_versions_refused() {
    let (disk, store) = packed_store(&[10]);
    drop(store);
    let put = |name: &str, bytes: &[u8]| {
        let content = Arc::new(Mutex::new(bytes.to_vec()));
        disk.files.lock().unwrap().insert(format!("/store/{name}").into(), content);
    };
    put("holiday.jpg", b"sun");
    put("c0.9.g0.chunk", b"not one");
    put("spare-3.tmp", &[0; 10]);
    let (_store, found) = open(&disk);
    let names: Vec<_> = found.quarantined.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["c0.9.g0.chunk", "holiday.jpg"]);
    assert_eq!(*disk.content(&disk.find("quarantine/holiday.jpg")).lock().unwrap(), b"sun");
    assert_eq!(found.chunks.len(), 1);
    disk.content("/store/STORE".as_ref()).lock().unwrap()[8] = 9;
    let rng = Arc::new(holdfast_env::SeededRng::new(1));
    let refused = Store::open(disk.clone(), rng, config()).err().unwrap();
    assert_eq!(refused.kind, Kind::Unsupported);
    assert!(refused.message.contains("version 9"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn raw_reads_agree_with_a_vector(
        appends in prop::collection::vec((1usize..6, any::<u32>(), any::<bool>()), 1..14),
        reads in prop::collection::vec((any::<u32>(), any::<u32>()), 1..20),
        steps in 0u8..3,
    ) {
        let (disk, mut store) = raw_store();
        let mut model = Vec::new();
        for (i, (scale, size, durable)) in appends.into_iter().enumerate() {
            // 1 byte to 1 MiB, all magnitudes alike.
            let len = 1 + size as usize % (1 << (scale * 4)).min(1 << 20);
            let body = noise(i as u64, len);
            if model.len() + len > 4 << 20 { break; }
            let class = if durable { D } else { Durability::Memory };
            let end = append_raw(&store, model.len() as u64, &body, class).unwrap();
            model.extend(body);
            prop_assert_eq!(end as usize, model.len());
        }
        if steps >= 1 { store = reopen(&disk, store).0; }
        if steps >= 2 {
            store.seal(CHUNK, model.len() as u64).unwrap();
            store = reopen(&disk, store).0;
        }
        for (from, len) in reads {
            let from = from as usize % model.len();
            let len = len as usize % (model.len() + 10);
            let expected = &model[from..(from + len).min(model.len())];
            prop_assert_eq!(read_raw(&store, from as u64, len as u64).unwrap(), expected);
        }
    }
}

#[test]
fn the_scrubber_finds_a_flipped_bit_and_honours_its_rate() {
    let (disk, store) = raw_store();
    let data = noise(4, 1 << 20);
    append_raw(&store, 0, &data, D).unwrap();
    store.seal(CHUNK, 1 << 20).unwrap();
    const RATE: u64 = 256 << 10;
    let pass = |found: &mut Vec<Damage>| {
        let mut scrubber = Scrubber::new(store.clone(), RATE, ScrubCursor::default());
        let (mut now, mut bytes) = (0u64, 0u64);
        loop {
            let step = scrubber.step(now);
            bytes += step.bytes;
            // One block may be read ahead of what was earned.
            assert!(bytes <= now * RATE / 1_000_000_000 + 65_536, "{bytes} bytes at {now} ns");
            found.extend(step.damaged);
            if step.finished_pass {
                return (bytes, now);
            }
            now += step.wait_ns.max(1);
            // Stopped and resumed anywhere, it goes on where it was.
            let cursor = scrubber.cursor();
            assert!(cursor.position <= 17);
        }
    };
    let mut found = Vec::new();
    let (bytes, took_ns) = pass(&mut found);
    assert!(found.is_empty());
    assert_eq!(bytes, 1 << 20);
    assert!((3_700_000_000..4_300_000_000).contains(&took_ns), "{took_ns}");
    disk.content(&disk.find(".chunk")).lock().unwrap()[500_000] ^= 4;
    pass(&mut found);
    assert_eq!(found.len(), 1);
    assert!(found[0].what.contains("block 7"), "{}", found[0].what);
}

/// A store of one chunk of 20 MB was read once a second, for ever, and its damaged block counted
/// each time.
#[test]
fn the_scrubber_pauses_between_passes_and_counts_a_bad_block_once() {
    const SECOND: u64 = 1_000_000_000;
    let (disk, store) = raw_store();
    append_raw(&store, 0, &noise(4, 1 << 20), D).unwrap();
    store.seal(CHUNK, 1 << 20).unwrap();
    let flip = || disk.content(&disk.find(".chunk")).lock().unwrap()[500_000] ^= 4;
    flip();
    let mut scrubber = Scrubber::new(store.clone(), 20_000_000, ScrubCursor::default());
    // A round each second, as housekeeping does.
    let day = |scrubber: &mut Scrubber, day: u64| {
        let (mut bytes, mut found, mut new) = (0, 0, 0);
        for second in day * 86_400..(day + 1) * 86_400 {
            let step = scrubber.step(second * SECOND);
            bytes += step.bytes;
            found += step.damaged.len();
            new += step.newly_damaged;
        }
        (bytes >> 20, found, new)
    };
    let (passes, found, new) = day(&mut scrubber, 0);
    assert!((20..=24).contains(&passes), "{passes} passes a day");
    assert_eq!((found as u64, new), (passes, 1), "it is said each time, for those who repair");
    // It is made good, and damaged again.
    flip();
    assert_eq!(day(&mut scrubber, 1).1, 0);
    flip();
    assert_eq!(day(&mut scrubber, 2).2, 1);
}

/// One pass over everything, as fast as it goes.
fn scrub(store: &Store) -> Vec<Damage> {
    let mut scrubber = Scrubber::new(store.clone(), 1 << 30, ScrubCursor::default());
    let steps = (0..).map(|second| scrubber.step(second * 1_000_000_000));
    let mut found = Vec::new();
    for step in steps.take(1000) {
        found.extend(step.damaged);
        if step.finished_pass {
            return found;
        }
    }
    panic!("the pass does not end");
}

/// A store whose disk had failed a sync refused to put the last bytes of an open chunk from the
/// journal into its file, and the scrubber said that the chunk was damaged; in a cluster its copy
/// was dropped for that. After a restart the bytes are where they were.
#[test]
fn a_store_that_takes_no_writes_is_not_said_to_be_damaged() {
    let disk = MemDisk::new();
    let (store, _) = open_with(&disk, 64 << 10);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    append_raw(&store, 0, b"in the journal alone", D).unwrap();
    disk.shared.fail_syncs.store(true, Ordering::SeqCst);
    append_raw(&store, 20, b"x", D).unwrap_err();
    assert!(store.usage().read_only);
    assert_eq!(scrub(&store), []);
    disk.shared.fail_syncs.store(false, Ordering::SeqCst);
    let (store, _) = reopen(&disk, store);
    assert_eq!(scrub(&store), []);
    let read = store.read_raw(CHUNK, Generation(0), 0, 20).unwrap();
    assert_eq!(read.bytes.as_slice(), b"in the journal alone");
}

/// The same where connections had taken the last descriptor: what cannot be opened now says
/// nothing of its bytes.
#[test]
fn a_chunk_for_which_there_is_no_descriptor_is_not_said_to_be_damaged() {
    let (disk, store) = packed_store(&[100, 200]);
    store.seal(CHUNK, 2).unwrap();
    let (store, _) = reopen(&disk, store);
    disk.shared.no_descriptor.store(true, Ordering::SeqCst);
    assert_eq!(scrub(&store), []);
    disk.shared.no_descriptor.store(false, Ordering::SeqCst);
    let body = noise(0, 100);
    let content = disk.content(&disk.find(".chunk"));
    let at = content.lock().unwrap().windows(100).position(|bytes| bytes == body).unwrap();
    content.lock().unwrap()[at] ^= 4;
    assert_eq!(scrub(&store).len(), 1);
}

/// An object may hold what stands in another chunk's file, header and all, at the very place where
/// a scan would look for the next commit. It is not one: the file's nonce is in every checksum.
#[test]
fn a_commit_of_another_file_inside_an_object_is_none() {
    let commits = |seed: u64, bodies: [Vec<u8>; 3]| {
        let disk = MemDisk::new();
        let rng = Arc::new(SeededRng::new(seed));
        let (store, _) = Store::open(disk.clone(), rng, config()).unwrap();
        store.create(spec(ChunkKind::Packed, 256 << 10)).unwrap();
        for (i, body) in bodies.iter().enumerate().filter(|(_, body)| !body.is_empty()) {
            append_needle(&store, i as u64, body).unwrap();
        }
        // As it is when the process is killed.
        disk.copy()
    };
    let other = commits(1, [noise(0, 1000), noise(1, 1000), noise(2, 1000)]);
    let third = other.content(&other.find(".open")).lock().unwrap()[3 * 4096..4 * 4096].to_vec();
    // Behind the heads of commit and record, its checksum and the hint `name`.
    let mut carrier = vec![0; 4096 - (40 + 44 + 4 + 4)];
    carrier.extend_from_slice(&third);
    let disk = commits(2, [noise(7, 1000), carrier, Vec::new()]);
    let file = disk.content(&disk.find(".open"));
    assert!(file.lock().unwrap()[3 * 4096..4 * 4096] == third, "it stands where it stood there");
    file.lock().unwrap()[2 * 4096] ^= 1;
    let (store, found) = open_seeded(&disk, 2);
    assert!(found.damaged.is_empty() && found.cut_tails.len() == 1, "{found:?}");
    assert_eq!(store.length(CHUNK), Ok(1));
}

fn open_seeded(disk: &Arc<MemDisk>, seed: u64) -> (Store, Recovered) {
    Store::open(disk.clone(), Arc::new(SeededRng::new(seed)), config()).unwrap()
}
