//! The store with its threads, on the machine's own file system.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::{ChunkId, Durability};
use holdfast_chunk::*;
use holdfast_env::{RealDisk, RealRng, SeededRng};
use std::sync::{Arc, mpsc};

#[test]
fn many_callers_share_commits_and_everything_is_there_after_a_restart() {
    let dir = std::env::temp_dir().join(format!("holdfast-chunk-{}", std::process::id()));
    let config = StoreConfig { spare_file: false, ..StoreConfig::new(&dir) };
    let disk = Arc::new(RealDisk);
    let (store, _) = Store::open(disk.clone(), Arc::new(RealRng), config.clone()).unwrap();
    store.create(spec(ChunkKind::Packed, 8 << 20)).unwrap();
    let (tx, rx) = mpsc::channel();
    for i in 0..500u64 {
        let body = noise(i, 1 + i as usize * 3);
        let sums = crcs(0, &body);
        let tx = tx.clone();
        let done = Box::new(move |slot| tx.send((i, slot)).unwrap());
        let class = Durability::Durable;
        store.append_needle(CHUNK, needle(i), Box::new(body), sums, class, done);
    }
    let slots: Vec<_> = (0..500).map(|_| rx.recv().unwrap()).collect();
    drop(store);
    let (store, found) = Store::open(disk, Arc::new(RealRng), config).unwrap();
    assert_eq!(found.chunks[0].needles, 500);
    for (i, slot) in slots {
        let read = store.read_needle(pointer(slot.unwrap().0, i)).unwrap();
        assert_eq!(read.bytes.as_slice(), noise(i, 1 + i as usize * 3));
    }
    drop(store);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A fence that is asked for while a commit is being written answers behind it: what that commit
/// acknowledges is within the length that the fence says, or a seal would cut it off.
#[test]
fn a_fence_waits_for_the_commit_in_flight() {
    let disk = MemDisk::new();
    let config = StoreConfig { commit_threads: 1, ..config() };
    let (store, _) = Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap();
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    let (fenced, answers) = mpsc::channel();
    let fencing = store.clone();
    *disk.shared.in_next_write.lock().unwrap() = Some(Box::new(move || {
        let asked = fencing.clone();
        let ask = move || fenced.send(asked.fence(CHUNK)).unwrap();
        holdfast_env::tasks::spawn("fence", ask).unwrap();
        while fencing.list()[0].state == ReplicaState::Open {
            std::thread::yield_now();
        }
        // One that does not wait has all the time it needs to say so.
        (0..10_000).for_each(|_| std::thread::yield_now());
    }));
    let (told, acknowledged) = mpsc::channel();
    let body = noise(1, 5000);
    let done = Box::new(move |end| told.send(end).unwrap());
    let sums = crcs(0, &body);
    store.append_raw(CHUNK, 0, Box::new(body), sums, Durability::Durable, done);
    let acknowledged = acknowledged.recv().unwrap().unwrap_or(0);
    let length = answers.recv().unwrap().unwrap();
    assert_eq!(acknowledged, 5000);
    assert!(length >= acknowledged, "{length} bytes fenced, {acknowledged} acknowledged");
}

/// Readers of an open chunk see what was acknowledged, and nothing of a commit on its way.
#[test]
fn nobody_reads_what_is_not_acknowledged_yet() {
    for kind in [ChunkKind::Raw, ChunkKind::Packed] {
        let disk = MemDisk::new();
        let (store, _) = open(&disk);
        store.create(spec(kind, 1 << 20)).unwrap();
        let append = |i: u64| match kind {
            ChunkKind::Raw => {
                append_raw(&store, i * 700, &noise(i, 700), Durability::Durable).unwrap()
            }
            ChunkKind::Packed => append_needle(&store, i, &noise(i, 700)).unwrap().0 as u64 + 1,
        };
        let first = append(0);
        let (tx, seen) = mpsc::channel();
        let reading = store.clone();
        *disk.shared.in_next_write.lock().unwrap() = Some(Box::new(move || {
            let later = match kind {
                ChunkKind::Raw => read_raw(&reading, 700, 700).is_ok_and(|bytes| !bytes.is_empty()),
                ChunkKind::Packed => reading.read_needle(pointer(1, 1)).is_ok(),
            };
            tx.send((reading.length(CHUNK).unwrap(), later)).unwrap();
        }));
        let second = append(1);
        assert_eq!(seen.recv().unwrap(), (first, false), "{kind:?}");
        assert_eq!(store.length(CHUNK).unwrap(), second);
    }
}

/// Chunks that a store makes once its directory was removed, or its file system unmounted, would
/// lie among another's, or below the place where a disk belongs.
#[test]
fn a_store_whose_directory_is_not_its_own_any_more_takes_no_writes() {
    let dir = std::env::temp_dir().join(format!("holdfast-chunk-place-{}", std::process::id()));
    let config = StoreConfig { spare_file: false, ..StoreConfig::new(&dir) };
    let open = || Store::open(Arc::new(RealDisk), Arc::new(RealRng), config.clone()).unwrap().0;
    let first = open();
    first.create(spec(ChunkKind::Packed, 8 << 20)).unwrap();
    append_needle(&first, 1, b"before").unwrap();
    first.check_place();
    append_needle(&first, 2, b"in its place").unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let second = open();
    first.check_place();
    let refused = append_needle(&first, 3, b"after").unwrap_err();
    assert!(refused.kind == Kind::ReadOnly && refused.message.contains("LOCK"), "{refused}");
    assert_eq!(
        first
            .create(ChunkSpec { chunk: ChunkId(77), ..spec(ChunkKind::Raw, 8 << 20) })
            .unwrap_err()
            .kind,
        Kind::ReadOnly
    );
    second.check_place();
    second.create(spec(ChunkKind::Packed, 8 << 20)).unwrap();
    append_needle(&second, 1, b"another's").unwrap();
    drop(first);
    drop(second);
    assert_eq!(open().list().len(), 1);
    std::fs::remove_dir_all(&dir).unwrap();
}
