use super::*;
use crate::disk::RealDisk;
use crate::{Rng, SeededRng};
use holdfast_base::checksum::crc32c;
use std::fs;

const ROOM: u64 = 64 * PAGE;

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("holdfast-overlay-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Some files and directories, the same each time.
fn furnish(place: &Path) {
    for directory in ["a", "a/b", "c"] {
        fs::create_dir_all(place.join(directory)).unwrap();
    }
    for (i, (name, bytes)) in
        [("one", 0), ("a/two", 5), ("a/b/three", 4096), ("c/four", 10_000)].iter().enumerate()
    {
        fs::write(place.join(name), vec![i as u8 + 1; *bytes]).unwrap();
    }
}

/// A path, and of a file its length and checksum.
type Shown = (PathBuf, Option<(u64, u32)>);

fn all(disk: &dyn Disk, place: &Path, below: &Path, out: &mut Vec<Shown>) {
    for entry in disk.list(&place.join(below)).unwrap() {
        let path = below.join(&entry.name);
        if entry.is_dir {
            out.push((path.clone(), None));
            all(disk, place, &path, out);
            continue;
        }
        let file = disk.open(&place.join(&path), Access::Cached).unwrap();
        assert_eq!(file.len().unwrap(), entry.bytes);
        let mut bytes = vec![0xee; entry.bytes as usize + 7];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap() as u64, entry.bytes);
        out.push((path, Some((entry.bytes, crc32c(&bytes[..entry.bytes as usize])))));
    }
}

fn shown(disk: &dyn Disk, place: &Path) -> Vec<Shown> {
    let mut out = Vec::new();
    all(disk, place, Path::new(""), &mut out);
    out
}

/// Files, and directories.
const PATHS: [&str; 9] =
    ["one", "a/two", "a/b/three", "c/four", "a/five", "c/six", "a/b", "c", "d"];
const FILES: u64 = 6;
/// Of bytes, on both sides of pages' borders.
const PLACES: [u64; 8] = [0, 1, 5, 4095, 4096, 4097, 8192, 12_000];

/// One thing done: what it says, by the kind of error alone.
fn step(disk: &dyn Disk, place: &Path, what: [u64; 5]) -> Result<Vec<u8>, io::ErrorKind> {
    let count = PATHS.len() as u64;
    let pick = |n: u64| place.join(PATHS[(n % count) as usize]);
    let (path, other) = (pick(what[1]), pick(what[2]));
    let [is_file, is_other_file] = [what[1], what[2]].map(|n| n % count < FILES);
    let at = PLACES[what[3] as usize % PLACES.len()];
    let length = PLACES[what[4] as usize % PLACES.len()];
    // Without its directory nothing can be made; the overlay does not ask for that.
    let has_parent = |path: &Path| disk.list(path.parent().unwrap()).is_ok();
    let done = match what[0] % 9 {
        0 if is_file && has_parent(&path) => disk.create(&path, Access::Cached).map(|_| vec![]),
        1 if is_file == is_other_file && has_parent(&other) && !other.starts_with(&path) => {
            disk.rename(&path, &other).map(|()| vec![])
        }
        2 => disk.remove(&path).map(|()| vec![]),
        3 if !is_file => disk.create_dir_all(&path).map(|()| vec![]),
        4 => disk.exists(&path).map(|there| vec![u8::from(there)]),
        0 | 1 | 3 => Ok(vec![]),
        // What is opened is a file, lest a directory is opened to be read.
        _ if disk.list(&path).is_ok() => Ok(vec![]),
        what_else => disk.open(&path, Access::Cached).and_then(|file| match what_else {
            5 => file.write_at(&vec![what[2] as u8; length as usize], at).map(|()| vec![]),
            6 => file.set_len(at).map(|()| vec![]),
            7 => match length {
                0 => Ok(vec![]),
                _ => file.allocate(length).map(|()| vec![]),
            },
            _ => {
                let mut bytes = vec![0xee; length as usize];
                let read = file.read_at(&mut bytes, at)?;
                bytes.truncate(read);
                Ok(bytes)
            }
        }),
    };
    done.map_err(|e| e.kind())
}

/// The real file system is the model: whatever is done in an overlay shows what it would show there, and
/// leaves what is below as it was.
#[test]
fn an_overlay_shows_what_a_file_system_would_and_writes_nothing() {
    for seed in 0..60 {
        let (below, plain) = (scratch("below"), scratch("plain"));
        furnish(&below);
        furnish(&plain);
        let before = shown(&RealDisk, &below);
        let overlay = Overlay::new(Arc::new(RealDisk), 1 << 20);
        let rng = SeededRng::new(seed);
        for n in 0..60 {
            let what = [(); 5].map(|()| rng.next_u64() >> 8);
            let (here, there) = (step(&overlay, &below, what), step(&RealDisk, &plain, what));
            assert_eq!(here, there, "seed {seed}, step {n}: {what:?}");
        }
        assert_eq!(shown(&overlay, &below), shown(&RealDisk, &plain), "seed {seed}");
        assert_eq!(shown(&RealDisk, &below), before, "seed {seed}");
        fs::remove_dir_all(below).unwrap();
        fs::remove_dir_all(plain).unwrap();
    }
}

#[test]
fn direct_files_are_read_past_the_cache_and_overlaid() {
    let dir = scratch("direct");
    fs::write(dir.join("f"), vec![1; 3 * PAGE as usize + 100]).unwrap();
    let overlay = Overlay::new(Arc::new(RealDisk), ROOM);
    let file = overlay.open(&dir.join("f"), Access::Direct).unwrap();
    let mut page = AlignedBuf::zeroed(PAGE as usize);
    page.fill(2);
    file.write_at_durable(&page, PAGE, "test").unwrap();
    let mut back = AlignedBuf::zeroed(4 * PAGE as usize);
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 3 * PAGE as usize + 100);
    assert!(back[..PAGE as usize].iter().all(|byte| *byte == 1));
    assert!(back[PAGE as usize..2 * PAGE as usize].iter().all(|byte| *byte == 2));
    assert!(back[2 * PAGE as usize..3 * PAGE as usize + 100].iter().all(|byte| *byte == 1));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn memory_has_an_end_and_what_is_cut_gives_it_back() {
    let dir = scratch("full");
    let overlay = Overlay::new(Arc::new(RealDisk), ROOM);
    let file = overlay.create(&dir.join("f"), Access::Cached).unwrap();
    // What is reserved is not written.
    file.allocate(1 << 40).unwrap();
    file.write_at(&vec![1; ROOM as usize], 0).unwrap();
    let full = file.write_at(b"x", ROOM).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_at(b"again", 5).unwrap();
    file.set_len(PAGE).unwrap();
    file.write_at(&vec![2; ROOM as usize - PAGE as usize], PAGE).unwrap();
    assert!(!dir.join("f").exists());
    fs::remove_dir_all(dir).unwrap();
}
