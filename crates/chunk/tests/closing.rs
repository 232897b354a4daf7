//! The closing mark: what a store that ended in order, or started, knows to have been acknowledged.
//!
//! A bit flipped in the last commit of an open chunk, after an orderly stop, was taken for a torn
//! tail: the bytes were cut, copied to `lost+found` and called "never acknowledged", and the chunk
//! was sealed without them. Nothing behind the last commit could say otherwise.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::Durability;
use holdfast_chunk::*;
use holdfast_env::disk::Disk;
use std::path::Path;
use std::sync::Arc;

const OBJECT: usize = 3000;

/// A store with an open chunk of three commits, that has ended in order.
fn ended(kind: ChunkKind, journal_segment_bytes: u64) -> Arc<MemDisk> {
    let disk = MemDisk::new();
    let (store, _) = open_with(&disk, journal_segment_bytes);
    store.create(spec(kind, 256 << 10)).unwrap();
    for i in 0..3 {
        append(&store, kind, i);
    }
    drop(store);
    disk
}

fn append(store: &Store, kind: ChunkKind, i: u64) {
    let body = noise(i, OBJECT);
    match kind {
        ChunkKind::Raw => {
            append_raw(store, i * OBJECT as u64, &body, Durability::Durable).unwrap();
        }
        ChunkKind::Packed => {
            append_needle(store, i, &body).unwrap();
        }
    }
}

fn is_whole(store: &Store, kind: ChunkKind, i: u64) -> bool {
    let read = match kind {
        ChunkKind::Raw => read_raw(store, i * OBJECT as u64, OBJECT as u64),
        ChunkKind::Packed => store.read_needle(pointer(i as u32, i)).map(|r| r.bytes.to_vec()),
    };
    match read {
        Ok(bytes) => {
            assert!(bytes == noise(i, OBJECT), "object {i} has other bytes");
            true
        }
        Err(e) => {
            assert_eq!(e.kind, Kind::Corrupt, "{e}");
            false
        }
    }
}

fn flip(disk: &MemDisk, ending: &str, byte: usize) {
    disk.content(&disk.find(ending)).lock().unwrap()[byte] ^= 4;
}

/// Every sector of a chunk's file: the commits are in sectors 1, 2 and 3.
#[test]
fn a_flip_in_the_last_commit_after_an_orderly_end_is_damage() {
    for kind in [ChunkKind::Raw, ChunkKind::Packed] {
        let length = if kind == ChunkKind::Raw { 3 * OBJECT as u64 } else { 3 };
        for (sector, at) in (1..4).flat_map(|s| [5, 50, 200, 2900].map(|at| (s, at))) {
            let disk = ended(kind, 0).copy();
            flip(&disk, ".open", sector * 4096 + at);
            for start in 0..2 {
                let (store, found) = open(&disk);
                let told = format!("{kind:?}, byte {at} of sector {sector}, start {start}");
                assert!(found.cut_tails.is_empty(), "{told}: {:?}", found.cut_tails);
                assert_eq!(store.length(CHUNK).unwrap(), length, "{told}");
                let whole: Vec<bool> = (0..3).map(|i| is_whole(&store, kind, i)).collect();
                assert_eq!(found.damaged.is_empty(), whole == [true; 3], "{told}: {found:?}");
                // Reads of a raw chunk are verified by the block, which all three share.
                if kind == ChunkKind::Packed && !found.damaged.is_empty() {
                    assert!(whole.iter().filter(|ok| !**ok).count() == 1, "{told}: {whole:?}");
                }
                assert_eq!(found.chunks[0].damaged, !found.damaged.is_empty(), "{told}");
            }
        }
    }
}

/// The whole last commit is gone, as after a lost write. What the seal says then keeps its place.
#[test]
fn a_last_commit_that_is_gone_is_damage_and_stays_so_through_the_seal() {
    for kind in [ChunkKind::Raw, ChunkKind::Packed] {
        let disk = ended(kind, 0);
        disk.content(&disk.find(".open")).lock().unwrap()[3 * 4096..].fill(0);
        let (store, found) = open(&disk);
        assert_eq!((found.damaged.len(), found.cut_tails.len()), (1, 0), "{found:?}");
        let length = store.length(CHUNK).unwrap();
        store.seal(CHUNK, length).unwrap();
        for store in [store, open(&disk).0] {
            assert_eq!(store.length(CHUNK).unwrap(), length);
            assert!(store.list()[0].damaged);
            assert!(!is_whole(&store, kind, 2), "nothing is made up");
            assert!(kind == ChunkKind::Raw || is_whole(&store, kind, 1));
        }
    }
}

/// What was acknowledged from the journal and is only there.
#[test]
fn a_flip_in_the_last_batch_of_the_journal_is_damage_of_the_chunk() {
    let disk = ended(ChunkKind::Raw, 32 << 10);
    let (store, found) = open_with(&disk.copy(), 32 << 10);
    assert!(found.damaged.is_empty() && found.journal_damage.is_empty(), "{found:?}");
    assert_eq!(store.length(CHUNK).unwrap(), 9000);
    // The second of its two batches.
    flip(&disk, "journal-0", 2 * 4096 + 100);
    let (store, found) = open_with(&disk, 32 << 10);
    assert_eq!(found.damaged.len(), 1, "{found:?}");
    assert_eq!(store.length(CHUNK).unwrap(), 9000, "nobody may seal it shorter in silence");
    assert_eq!(read_raw(&store, 6000, 3000).unwrap_err().kind, Kind::Corrupt);
}

/// A store that was killed has no mark of its end, so there the difference cannot be told; what the
/// next start made durable, it knows.
#[test]
fn what_a_start_has_made_durable_is_no_tail_at_the_next_one() {
    let disk = ended(ChunkKind::Packed, 0);
    disk.remove(Path::new("/store/PROVEN")).unwrap();
    let killed = disk.copy();
    flip(&killed, ".open", 3 * 4096 + 200);
    let (store, found) = open(&killed);
    assert_eq!((found.damaged.len(), found.cut_tails.len()), (0, 1), "a torn tail: {found:?}");
    assert_eq!(store.length(CHUNK).unwrap(), 2);
    // A start that finds all of it, and is killed.
    let (store, found) = open(&disk);
    assert!(found.damaged.is_empty() && found.cut_tails.is_empty());
    let killed = disk.copy();
    drop(store);
    flip(&killed, ".open", 3 * 4096 + 200);
    let (_, found) = open(&killed);
    assert_eq!((found.damaged.len(), found.cut_tails.len()), (1, 0), "{found:?}");
}

#[test]
fn a_damaged_mark_is_told_and_the_store_opens_without_it() {
    let disk = ended(ChunkKind::Packed, 0);
    flip(&disk, "PROVEN", 30);
    let (store, found) = open(&disk);
    let why = found.mark_damage.expect("it is told");
    assert!(why.contains("PROVEN") && why.contains("checksum"), "{why}");
    assert!((0..3).all(|i| is_whole(&store, ChunkKind::Packed, i)));
    drop(store);
    assert_eq!(open(&disk).1.mark_damage, None, "a start writes it anew");
}

/// Once nothing is open, there is nothing to say.
#[test]
fn a_store_without_open_chunks_has_no_mark() {
    let disk = ended(ChunkKind::Packed, 0);
    assert!(disk.exists(Path::new("/store/PROVEN")).unwrap());
    let (store, _) = open(&disk);
    store.seal(CHUNK, 3).unwrap();
    drop(store);
    assert!(!disk.exists(Path::new("/store/PROVEN")).unwrap());
}

/// A chunk that was deleted and made anew has another file: what was known of the first says
/// nothing of the second.
#[test]
fn a_mark_is_for_one_file_of_a_chunk_alone() {
    let disk = ended(ChunkKind::Packed, 0);
    let (store, _) = open(&disk);
    store.seal(CHUNK, 3).unwrap();
    store.unlink(CHUNK, holdfast_base::ids::Generation(0)).unwrap();
    store.create(spec(ChunkKind::Packed, 256 << 10)).unwrap();
    append(&store, ChunkKind::Packed, 0);
    let killed = disk.copy();
    let (store, found) = open(&killed);
    assert!(found.damaged.is_empty() && found.cut_tails.is_empty(), "{found:?}");
    assert_eq!(store.length(CHUNK).unwrap(), 1);
}
