//! The formats do not change in silence: files of this version, kept beside this test, are read and
//! written again byte for byte. To make them anew after a change of version, run with
//! `HOLDFAST_GOLDEN=write`.

mod common;

use common::*;
use holdfast_base::ids::Durability;
use holdfast_chunk::*;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[expect(clippy::disallowed_methods, reason = "golden files are the test's own")]
fn kept(name: &str) -> Vec<u8> {
    std::fs::read(golden(name)).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "golden files are the test's own")]
fn compare(name: &str, made: &[u8]) -> Vec<u8> {
    // Reserved space and padding are zeros; what is kept ends with the last sector in use.
    let used = made.iter().rposition(|&b| b != 0).map_or(0, |at| (at + 1).next_multiple_of(4096));
    let made = &made[..used.min(made.len())];
    if std::env::var_os("HOLDFAST_GOLDEN").is_some() {
        std::fs::write(golden(name), made).unwrap();
    }
    let kept = kept(name);
    assert!(kept == made, "`{name}` is written differently now: a new format needs a new version");
    kept
}

/// A store whose chunk's file has one append, and whose journal has two more.
#[test]
fn a_journal_of_this_version_is_read_and_written_again() {
    let disk = MemDisk::new();
    let (store, _) = open_with(&disk, 32 << 10);
    store.create(spec(ChunkKind::Raw, 256 << 10)).unwrap();
    let body = noise(1, 20_000);
    let mut at = 0;
    for end in [5000, 9000, 20_000] {
        append_raw(&store, at, &body[at as usize..end], Durability::Durable).unwrap();
        at = end as u64;
    }
    let content = |ending: &str| disk.content(&disk.find(ending)).lock().unwrap().clone();
    let files = [
        ("/store/STORE", compare("STORE", &content("STORE"))),
        ("/store/c0.7.g0.open", compare("journaled.open", &content(".open"))),
        ("/store/journal-0", compare("journal", &content("journal-0"))),
    ];
    let disk = disk_of(&files);
    let (store, found) = open(&disk);
    assert!(found.damaged.is_empty() && found.journal_damage.is_empty(), "{found:?}");
    assert_eq!(read_raw(&store, 0, 1 << 20).unwrap(), body);
}

/// Version 1 had no journal, version 2 no hints of raw chunks; they are else the same.
#[test]
fn a_store_of_an_earlier_version_is_read_and_becomes_one_of_this_version() {
    for version in [1, 2] {
        let kept = kept(&format!("STORE.v{version}"));
        let disk = disk_of(&[("/store/STORE", kept.clone())]);
        let (_, found) = open(&disk);
        assert!(!found.new);
        let now = disk.content(&disk.find("STORE")).lock().unwrap().clone();
        assert_eq!((kept[8], now[8]), (version, 3));
        assert_eq!(kept[12..20], now[12..20], "it stays the same store");
    }
}

/// A raw chunk with a hint: version 2 of a chunk's file.
#[test]
fn a_chunk_with_a_hint_is_read_and_written_again() {
    let disk = MemDisk::new();
    let (store, _) = open(&disk);
    let hint = "/films/ü.mov".as_bytes();
    store.create_with_hint(spec(ChunkKind::Raw, 256 << 10), hint).unwrap();
    append_raw(&store, 0, &noise(1, 70_000), Durability::Durable).unwrap();
    assert_eq!(store.hint(CHUNK).unwrap(), hint);
    store.seal(CHUNK, 70_000).unwrap();
    let content = |ending: &str| disk.content(&disk.find(ending)).lock().unwrap().clone();
    let sealed = compare("hinted.chunk", &content(".chunk"));
    let files = [("/store/STORE", kept("STORE")), ("/store/c0.7.g0.chunk", sealed)];
    check(&files, true);
    assert_eq!(open(&disk_of(&files)).0.hint(CHUNK).unwrap(), hint);
}

/// The closing mark of a store with an open chunk, whose journal has part of it.
#[test]
fn a_closing_mark_of_this_version_is_read_and_written_again() {
    let disk = MemDisk::new();
    let (store, _) = open_with(&disk, 32 << 10);
    store.create(spec(ChunkKind::Raw, 256 << 10)).unwrap();
    let body = noise(1, 9000);
    append_raw(&store, 0, &body[..5000], Durability::Durable).unwrap();
    append_raw(&store, 5000, &body[5000..], Durability::Durable).unwrap();
    drop(store);
    let content = |ending: &str| disk.content(&disk.find(ending)).lock().unwrap().clone();
    let mark = compare("PROVEN", &content("PROVEN"));
    let journal_less = disk_of(&[
        ("/store/STORE", content("STORE")),
        ("/store/c0.7.g0.open", content(".open")),
        ("/store/PROVEN", mark),
    ]);
    let (_, found) = open(&journal_less);
    let [damage] = found.damaged.as_slice() else { panic!("{found:?}") };
    assert!(damage.what.contains("5000 to 9000"), "{damage:?}");
}

const SIZES: [usize; 4] = [0, 11, 700, 70_000];

fn disk_of(files: &[(&str, Vec<u8>)]) -> Arc<MemDisk> {
    let disk = MemDisk::new();
    for (path, bytes) in files {
        let content = Arc::new(Mutex::new(bytes.clone()));
        disk.files.lock().unwrap().insert(path.into(), content);
    }
    disk
}

fn check(files: &[(&str, Vec<u8>)], sealed: bool) {
    let disk = disk_of(files);
    let (store, found) = open(&disk);
    assert!(found.damaged.is_empty() && found.cut_tails.is_empty() && !found.new);
    assert_eq!(found.chunks[0].state == ReplicaState::Sealed, sealed);
    if found.chunks[0].kind == ChunkKind::Raw {
        assert_eq!(read_raw(&store, 0, 1 << 20).unwrap(), noise(1, 70_000));
        return;
    }
    for (i, size) in SIZES.into_iter().enumerate() {
        let read = store.read_needle(pointer(i as u32, i as u64)).unwrap();
        assert_eq!(read.bytes.as_slice(), noise(i as u64, size));
    }
}

#[test]
fn files_of_this_version_are_read_and_written_again() {
    for kind in [ChunkKind::Raw, ChunkKind::Packed] {
        let name = if kind == ChunkKind::Raw { "raw" } else { "packed" };
        let disk = MemDisk::new();
        let (store, _) = open(&disk);
        store.create(spec(kind, 256 << 10)).unwrap();
        let length = match kind {
            ChunkKind::Raw => {
                let body = noise(1, 70_000);
                append_raw(&store, 0, &body[..5000], Durability::Durable).unwrap();
                append_raw(&store, 5000, &body[5000..], Durability::Durable).unwrap()
            }
            ChunkKind::Packed => {
                for (i, size) in SIZES.into_iter().enumerate() {
                    append_needle(&store, i as u64, &noise(i as u64, size)).unwrap();
                }
                SIZES.len() as u64
            }
        };
        let content = |ending: &str| disk.content(&disk.find(ending)).lock().unwrap().clone();
        let identity = content("STORE");
        // 24 bytes, shorter than a sector: compared as they are.
        let identity = compare("STORE", &identity);
        let open_file = compare(&format!("{name}.open"), &content(".open"));
        let at = |ending: &str| format!("/store/c0.7.g0.{ending}");
        check(&[("/store/STORE", identity.clone()), (&at("open"), open_file)], false);
        store.seal(CHUNK, length).unwrap();
        let sealed = compare(&format!("{name}.chunk"), &content(".chunk"));
        check(&[("/store/STORE", identity), (&at("chunk"), sealed)], true);
    }
}
