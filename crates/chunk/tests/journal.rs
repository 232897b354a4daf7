//! Small durable appends that share the store's journal, over a file system in memory.

mod common;

use common::*;
use holdfast_base::Result;
use holdfast_base::ids::{Durability, Generation};
use holdfast_chunk::*;
use holdfast_env::SeededRng;
use holdfast_env::disk::{Access, Disk};
use holdfast_env::trial::Trial;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn with_journal(disk: &Arc<MemDisk>) -> (Store, Recovered) {
    open_with(disk, 32 << 10)
}

/// Appends and waits for the acknowledgement, from whichever thread it comes.
fn append_and_wait(store: &Store, at: u64, len: usize) {
    let body = noise(at, len);
    let (tx, rx) = std::sync::mpsc::channel();
    let done = Box::new(move |length| tx.send(length).unwrap());
    let sums = crcs(at, &body);
    store.append_raw(CHUNK, at, Box::new(body), sums, Durability::Durable, done);
    assert_eq!(rx.recv().unwrap().unwrap(), at + len as u64);
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

/// Idle connections had taken the last descriptor when the first small append asked for a journal:
/// the store went on without one until the next start.
#[test]
fn a_journal_that_finds_no_descriptor_is_asked_for_again() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    let journals = || {
        let found = disk.list(Path::new("/store")).unwrap();
        found.iter().filter(|entry| entry.name.contains("journal")).count() as u64
    };
    disk.shared.no_descriptor.store(true, Ordering::SeqCst);
    let before = store.usage();
    for i in 0..5 {
        assert_eq!(append_small(&store, i * 3000, 3000).unwrap(), (i + 1) * 3000);
    }
    assert_eq!((journals(), store.usage()), (0, before), "nothing is left, taken or broken");
    disk.shared.no_descriptor.store(false, Ordering::SeqCst);
    for i in 5..10 {
        assert_eq!(append_small(&store, i * 3000, 3000).unwrap(), (i + 1) * 3000);
    }
    assert_eq!(journals(), 4);
}

#[test]
fn a_damaged_journal_is_told_and_serves_nothing_behind_the_gap() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    for i in 0..5 {
        append_small(&store, i * 3000, 3000).unwrap();
    }
    // As it is when the process is killed.
    let disk = disk.copy();
    // The first append went to the file, the second is in the journal's first batch.
    let file = disk.open(std::path::Path::new("/store/journal-0"), Access::Cached).unwrap();
    file.write_at(&[1; 8], 4096 + 200).unwrap();
    let (store, found) = with_journal(&disk);
    assert_eq!(found.journal_damage.len(), 1, "{found:?}");
    assert_eq!(found.damaged.len(), 1);
    assert_eq!(store.length(CHUNK).unwrap(), 3000);
}

/// Power cut in the midst of a turn leaves a torn header over a segment that is used no more.
/// Once, that was reported as damage; and a damaged header hid acknowledged appends.
#[test]
fn a_damaged_header_takes_nothing_with_it() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    for i in 0..40 {
        append_small(&store, i * 3000, 3000).unwrap();
    }
    for segment in 0..4 {
        let disk = disk.copy();
        let path = format!("/store/journal-{segment}");
        let file = disk.open(Path::new(&path), Access::Cached).unwrap();
        file.write_at(&[0x55; 100], 0).unwrap();
        let (store, found) = with_journal(&disk);
        assert!(found.damaged.is_empty() && found.journal_damage.is_empty(), "{found:?}");
        assert_eq!(store.length(CHUNK).unwrap(), 120_000);
    }
}

/// A reader writes to the file what it is about to read of it. Once, what came meanwhile was put
/// into the queue as if the reader were a thread that looks there next: no thread was woken, the
/// chunk counted as taken up, and whoever asked for it later waited for ever.
#[test]
fn what_comes_while_a_reader_writes_back_is_written_back_by_somebody() {
    let disk = MemDisk::new();
    let config =
        StoreConfig { journal_segment_bytes: 4 << 20, commit_threads: 1, ..common::config() };
    let (store, _) = Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap();
    store.create(spec(ChunkKind::Raw, 8 << 20)).unwrap();
    let mut length = 0;
    // The first append asks for the journal; those that come before it is made go to the file.
    append_and_wait(&store, length, 1000);
    length += 1000;
    let journal = |segment: u64| {
        let path = format!("/store/journal-{segment}");
        disk.files.lock().unwrap().get(Path::new(&path)).cloned()
    };
    // Appending meanwhile would fill the chunk's reserved space, which the journal counts on.
    while journal(3).is_none_or(|bytes| bytes.lock().unwrap().len() < 4 << 20) {
        std::thread::yield_now();
    }
    let is_used = || {
        let first = journal(0).and_then(|bytes| bytes.lock().unwrap().get(4096).copied());
        first.is_some_and(|byte| byte != 0)
    };
    while !is_used() {
        append_and_wait(&store, length, 1000);
        length += 1000;
    }
    let (tx, rx) = std::sync::mpsc::channel();
    let writer = store.clone();
    *disk.shared.in_next_write.lock().unwrap() = Some(Box::new(move || {
        let mut at = length;
        while at < length + (2 << 20) {
            append_and_wait(&writer, at, 60_000);
            at += 60_000;
        }
        tx.send(at).unwrap();
    }));
    assert_eq!(read_raw(&store, length - 1000, 1000).unwrap(), noise(length - 1000, 1000));
    let end = rx.recv().unwrap();
    assert_eq!(read_raw(&store, end - 60_000, 60_000).unwrap(), noise(end - 60_000, 60_000));
    store.seal(CHUNK, end).unwrap();
}

/// A seal covers what was acknowledged from the journal and is not in the chunk's file yet.
#[test]
fn a_seal_has_what_was_acknowledged_from_the_journal_alone() {
    let disk = MemDisk::new();
    let (store, _) = with_journal(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    let mut wanted = Vec::new();
    for i in 0..5 {
        append_small(&store, i * 3000, 3000).unwrap();
        wanted.extend_from_slice(&noise(i * 3000, 3000));
    }
    store.seal(CHUNK, 15_000).unwrap();
    for store in [store, with_journal(&disk.copy()).0] {
        let read = store.read_raw(CHUNK, Generation(0), 0, 1 << 20).unwrap();
        assert!(read.bytes.to_vec() == wanted);
    }
}

/// Where one thread does everything, a reader that found its chunk with a driver wrote back in that
/// one's place; the chunk was then left to the write-back while the driver's turn was still to
/// come, and belonged to nobody after it.
#[test]
fn readers_that_write_back_out_of_turn_leave_the_chunk_to_one_driver() {
    for seed in 0..60 {
        let _trial = Trial::drawn(seed).enter();
        let disk = MemDisk::new();
        let (store, _) = open_with(&disk, 1 << 20);
        store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
        let mut length = append_small(&store, 0, 1500).unwrap();
        for _ in 0..4 {
            let from = length;
            for _ in 0..4 {
                length = append_small(&store, length, 1500).unwrap();
            }
            // Some of what the file misses, then the rest.
            for end in [from + 1000, length] {
                let read = store.read_raw(CHUNK, Generation(0), from, end - from).unwrap();
                assert_eq!(read.bytes.len() as u64, end - from);
            }
            // In one batch of the journal, more than is left to it.
            for _ in 0..16 {
                let (body, sums) = (noise(length, 1500), crcs(length, &noise(length, 1500)));
                let done = Box::new(|answer: Result<u64>| assert!(answer.is_ok()));
                store.append_raw(CHUNK, length, Box::new(body), sums, Durability::Durable, done);
                length += 1500;
            }
            store.pump();
        }
        store.seal(CHUNK, length).unwrap();
        assert_eq!(read_raw(&store, 0, 1500).unwrap(), noise(0, 1500));
    }
}
