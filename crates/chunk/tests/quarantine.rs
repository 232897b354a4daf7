//! What was let go while nobody could carry it out waits a while in `quarantine`.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::{Durability, Generation};
use holdfast_chunk::*;

#[test]
fn what_is_set_aside_is_served_no_more_and_goes_when_its_time_is_over() {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    store.create(spec(ChunkKind::Raw, 256 << 10)).unwrap();
    append_raw(&store, 0, &noise(1, 5000), Durability::Durable).unwrap();
    store.seal(CHUNK, 5000).unwrap();
    let before = store.usage().used_bytes;
    store.set_aside(CHUNK, Generation(0), 1000).unwrap();
    assert!(store.list().is_empty());
    assert_eq!(read_raw(&store, 0, 10).unwrap_err().kind, Kind::NotFound);
    assert_eq!(store.usage().used_bytes, before, "it takes its space for that time");
    drop(store);
    let (store, found) = open(&disk);
    assert!(found.chunks.is_empty() && found.quarantined.is_empty(), "{found:?}");
    assert_eq!(store.usage().used_bytes, before);
    store.empty_quarantine(999).unwrap();
    disk.find("c0.7.g0.chunk.until-1000");
    store.empty_quarantine(1000).unwrap();
    assert!(disk.paths().iter().all(|path| !path.to_string_lossy().contains("c0.7")));
    assert_eq!(store.usage().used_bytes, 0);
}

#[test]
fn a_strangers_file_stays_for_ever() {
    let disk = MemDisk::new();
    drop(open(&disk));
    disk.files.lock().unwrap().insert("/store/letter.until-5".into(), Default::default());
    let (store, found) = open(&disk);
    assert_eq!(found.quarantined.len(), 1);
    store.empty_quarantine(u64::MAX).unwrap();
    disk.find("letter.until-5");
}
