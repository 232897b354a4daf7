//! Small durable appends that share the store's journal, over a file system in memory.

mod common;

use common::*;
use holdfast_base::Result;
use holdfast_base::ids::{Durability, Generation};
use holdfast_chunk::*;
use holdfast_env::SeededRng;
use holdfast_env::disk::{Access, Disk};
use std::sync::Arc;

/// A store with a small journal, which the first append asks for.
fn with_journal(disk: &Arc<MemDisk>) -> (Store, Recovered) {
    let config = StoreConfig { journal_segment_bytes: 32 << 10, ..config() };
    Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap()
}

/// Appends of `len` bytes each; answers the acknowledged length after each.
fn append_small(store: &Store, at: u64, len: usize) -> Result<u64> {
    let body = noise(at, len);
    let (tx, rx) = std::sync::mpsc::channel();
    let done = Box::new(move |length| tx.send(length).unwrap());
    let sums = crcs(at, &body);
    store.append_raw(CHUNK, at, Box::new(body), sums, Durability::Durable, done);
    store.pump();
    rx.recv().unwrap()
}

#[test]
fn appends_of_the_journal_are_read_replayed_and_sealed() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    let mut wanted = Vec::new();
    // More than all segments take: they are used again.
    for i in 0..100 {
        assert_eq!(append_small(&store, i * 3000, 3000).unwrap(), (i + 1) * 3000);
        wanted.extend_from_slice(&noise(i * 3000, 3000));
        if i == 50 {
            let read = store.read_raw(CHUNK, Generation(0), 0, 1 << 20).unwrap();
            assert_eq!(read.bytes.to_vec(), wanted);
        }
    }
    assert_eq!(store.length(CHUNK).unwrap(), 300_000);
    drop(store);
    let (store, found) = with_journal(&disk);
    assert_eq!(found.chunks[0].length, 300_000, "the files got what they missed");
    assert!(found.damaged.is_empty() && found.journal_damage.is_empty(), "{found:?}");
    store.seal(CHUNK, 300_000).unwrap();
    let read = store.read_raw(CHUNK, Generation(0), 0, 1 << 20).unwrap();
    assert_eq!(read.bytes.to_vec(), wanted);
}

#[test]
fn a_damaged_journal_is_told_and_serves_nothing_behind_the_gap() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    for i in 0..5 {
        append_small(&store, i * 3000, 3000).unwrap();
    }
    drop(store);
    // The first append went to the file, the second is in the journal's first batch.
    let file = disk.open(std::path::Path::new("/store/journal-0"), Access::Cached).unwrap();
    file.write_at(&[1; 8], 4096 + 200).unwrap();
    let (store, found) = with_journal(&disk);
    assert_eq!(found.journal_damage.len(), 1, "{found:?}");
    assert_eq!(found.damaged.len(), 1);
    assert_eq!(store.length(CHUNK).unwrap(), 3000);
}
