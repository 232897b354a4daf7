//! The formats do not change in silence: files of version 1, kept beside this test, are read and
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
fn compare(name: &str, made: &[u8]) -> Vec<u8> {
    // Reserved space and padding are zeros; what is kept ends with the last sector in use.
    let used = made.iter().rposition(|&b| b != 0).map_or(0, |at| (at + 1).next_multiple_of(4096));
    let made = &made[..used.min(made.len())];
    if std::env::var_os("HOLDFAST_GOLDEN").is_some() {
        std::fs::write(golden(name), made).unwrap();
    }
    let kept = std::fs::read(golden(name)).unwrap();
    assert!(kept == made, "`{name}` is written differently now: a new format needs a new version");
    kept
}

const SIZES: [usize; 4] = [0, 11, 700, 70_000];

fn check(files: &[(&str, Vec<u8>)], sealed: bool) {
    let disk = MemDisk::new();
    for (path, bytes) in files {
        let content = Arc::new(Mutex::new(bytes.clone()));
        disk.files.lock().unwrap().insert(path.into(), content);
    }
    let (store, found) = open(&disk);
    assert!(found.damaged.is_empty() && found.cut_tails.is_empty() && !found.new);
    assert_eq!(found.chunks[0].state == ChunkState::Sealed, sealed);
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
