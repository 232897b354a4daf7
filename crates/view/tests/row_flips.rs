//! One bit flips somewhere in the files of the engine of real machines: whoever opens the rows of a view, or passes
//! them, is told that they are damaged, or gets rows that were there. What was not durable may be gone.
#![expect(clippy::disallowed_methods, reason = "the engine's own files, damaged by the test")]

use holdfast_base::{Error, Kind};
use holdfast_env::rows::{Batch, Engine, RealEngine, Rows};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROWS: u32 = 600;
const VALUE_BYTES: usize = 100;
/// Places in each file.
const FLIPS: usize = 40;

type Held = BTreeMap<Vec<u8>, Vec<u8>>;

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

fn open(place: &Path) -> Result<Arc<dyn Rows>, Error> {
    RealEngine.open_rows(place, "rows", 1 << 20)
}

fn held(rows: &dyn Rows) -> Result<Held, Error> {
    let mut held = Held::new();
    rows.scan(b"", b"z", &mut |row, value| {
        held.insert(row.to_vec(), value.to_vec());
        Ok(true)
    })?;
    Ok(held)
}

/// Files as they are on the disk, with some rows in tables, and some in the journal.
fn made(place: &Path) -> (Held, Vec<(PathBuf, Vec<u8>)>) {
    let _ = std::fs::remove_dir_all(place);
    for half in 0..2 {
        let rows = open(place).unwrap();
        let mut batch = Batch::default();
        for n in (0..ROWS).filter(|n| n % 2 == half) {
            batch.put(format!("i{n:05}").into_bytes(), vec![n as u8; VALUE_BYTES]);
        }
        rows.write(batch).unwrap();
        rows.persist("here").unwrap();
        if half == 0 {
            rows.give_back().unwrap();
        }
    }
    let held = held(&*open(place).unwrap()).unwrap();
    assert_eq!(held.len(), ROWS as usize);
    let files = files_below(place).into_iter();
    (held, files.map(|file| (file.clone(), std::fs::read(&file).unwrap())).collect())
}

fn put_back(place: &Path, files: &[(PathBuf, Vec<u8>)]) {
    std::fs::remove_dir_all(place).unwrap();
    for (file, bytes) in files {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

/// The engine believed what says which tables there are: a flipped bit in there ended the process at each start, in a
/// panic with a lock held, or took rows away and said nothing.
#[test]
fn rows_with_a_flipped_bit_are_refused_or_were_there() {
    let place = std::env::temp_dir().join(format!("holdfast-row-flips-{}", std::process::id()));
    let (good, files) = made(&place);
    let even = |row: &[u8]| row[row.len() - 1].is_multiple_of(2);
    let flushed: Held = good.clone().into_iter().filter(|(row, _)| even(row)).collect();
    let (mut refused, mut fewer, mut same) = (0, 0, 0);
    for (file, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        // Files that were made longer in advance end in zeros.
        let held_bytes = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        let step = (held_bytes / FLIPS).max(1);
        for at in (0..held_bytes).step_by(step) {
            put_back(&place, &files);
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(file, flipped).unwrap();
            let told = format!("byte {at} of {}", file.display());
            match open(&place).and_then(|rows| held(&*rows)) {
                Ok(found) if found == good => same += 1,
                Ok(found) => {
                    // All of a batch, or nothing: what is in a journal alone may be gone, as it is after a power cut.
                    assert!(found == flushed, "{told}: {} of {} rows", found.len(), good.len());
                    fewer += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind, Kind::Corrupt, "{told}: {e}");
                    refused += 1;
                }
            }
        }
    }
    std::fs::remove_dir_all(&place).unwrap();
    println!("{refused} refused, {fewer} with fewer rows, {same} as they were");
    assert!(
        refused > FLIPS as u32,
        "{refused} refused, {fewer} with fewer rows, {same} as they were"
    );
}
