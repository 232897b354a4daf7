//! The store with its threads, on the machine's own file system.

mod common;

use common::*;
use holdfast_base::ids::Durability;
use holdfast_chunk::*;
use holdfast_env::{RealDisk, RealRng};
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
