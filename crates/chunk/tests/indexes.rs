//! Indexes of sealed chunks when there is no room for them in memory: read again from their footers,
//! verified, and said to be damaged when they are.

mod common;

use common::*;
use holdfast_base::ids::{Durability, Generation, Slot};
use holdfast_base::{Kind, Result};
use holdfast_chunk::*;
use holdfast_env::SeededRng;
use std::sync::Arc;

fn open_tight(disk: &Arc<MemDisk>) -> (Store, Recovered) {
    let config = StoreConfig { index_bytes_max: 0, ..config() };
    Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap()
}

fn object(store: &Store, slot: u32) -> Result<Vec<u8>> {
    let read = store.read_needle(pointer(slot, slot as u64))?;
    Ok(read.bytes.to_vec())
}

#[test]
fn an_index_without_room_is_read_again_for_each_use() {
    let disk = MemDisk::new();
    let (store, _) = open_tight(&disk);
    store.create(spec(ChunkKind::Packed, 1 << 20)).unwrap();
    for i in 0..40 {
        append_needle(&store, i, &noise(i, 700)).unwrap();
    }
    store.seal(CHUNK, 40).unwrap();
    let info = store.list()[0];
    for store in [store, open_tight(&disk).0] {
        assert_eq!(store.list(), [info], "what is known of a chunk needs no index");
        for slot in [0, 39, 7] {
            assert_eq!(object(&store, slot).unwrap(), noise(slot as u64, 700));
        }
        drop(store);
    }
    let (store, _) = open_tight(&disk);
    store.compact(CHUNK, &|slot: Slot| slot.0 % 2 == 1, Generation(1)).unwrap();
    store.switch(CHUNK, Generation(1)).unwrap();
    assert_eq!(object(&store, 7).unwrap(), noise(7, 700));
    assert_eq!(object(&store, 8).unwrap_err().kind, Kind::NotFound);
}

/// The footer was whole when the store was opened, and is damaged when the index is read again.
#[test]
fn an_index_that_is_damaged_since_is_refused_and_made_again_at_the_next_start() {
    let disk = MemDisk::new();
    let (store, _) = open_tight(&disk);
    store.create(spec(ChunkKind::Raw, 1 << 20)).unwrap();
    let data = noise(1, 300_000);
    append_raw(&store, 0, &data, Durability::Durable).unwrap();
    store.seal(CHUNK, 300_000).unwrap();
    assert_eq!(read_raw(&store, 0, 300_000).unwrap(), data);
    let content = disk.content(&disk.find(".chunk"));
    // The trailer takes the last sector; the footer's sector is before it.
    let at = content.lock().unwrap().len() - 2 * 4096 + 100;
    content.lock().unwrap()[at] ^= 1;
    let e = read_raw(&store, 0, 10).unwrap_err();
    assert!(e.kind == Kind::Corrupt && e.message.contains("index"), "{e}");
    drop(store);
    let (store, found) = open_tight(&disk);
    assert_eq!(found.damaged.len(), 1, "{:?}", found.damaged);
    for _ in 0..2 {
        assert_eq!(read_raw(&store, 0, 300_000).unwrap(), data, "it stays, being nowhere else");
    }
}
