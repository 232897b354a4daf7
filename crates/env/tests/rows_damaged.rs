//! A bit flips, a sector becomes zeros, or the end is gone, in every file that the engine keeps rows in, at places
//! drawn by a seed. Whoever opens and reads them is told that they are damaged, or finds the rows as some batch had
//! left them: whole, and none of what came later. A view's position is in its batches, so it goes on from there.
#![expect(clippy::disallowed_methods, reason = "the engine's own files, damaged by the test")]

use holdfast_base::{Error, Kind};
use holdfast_env::rows::{Batch, Engine, RealEngine};
use holdfast_env::{Rng, SeededRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const BATCHES: u64 = 60;
/// Behind this one tables are written: what comes later is in the journal alone.
const IN_TABLES: u64 = 30;
/// Places where a longer file is damaged.
const PLACES: u64 = 60;
const SHORT: usize = 512;

type Shown = BTreeMap<Vec<u8>, Vec<u8>>;

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for file in files_below(from) {
        let copy = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(file, copy).unwrap();
    }
}

/// What `n` leaves, where the one before left `shown`.
fn batch(n: u64, shown: &mut Shown) -> Batch {
    let (rng, mut batch) = (SeededRng::new(n), Batch::default());
    batch.put(b"position".to_vec(), n.to_le_bytes().to_vec());
    for _ in 0..rng.next_u64() % 6 {
        let row = format!("row-{:02}", rng.next_u64() % 40).into_bytes();
        match rng.next_u64() % 4 {
            0 => batch.remove(row),
            _ => batch.put(row, vec![n as u8; (rng.next_u64() % 500) as usize]),
        }
    }
    for (row, value) in batch.changes.clone() {
        match value {
            Some(value) => drop(shown.insert(row, value)),
            None => drop(shown.remove(&row)),
        }
    }
    batch
}

fn read(place: &Path) -> Result<Shown, Error> {
    let rows = RealEngine.open_rows(place, "the rows", 1 << 20)?;
    let mut shown = Shown::new();
    rows.scan(&[0], &[0xff], &mut |row, value| {
        shown.insert(row.to_vec(), value.to_vec());
        Ok(true)
    })?;
    // By another way: filters and indices are asked.
    for (row, value) in &shown {
        assert_eq!(rows.get(row)?.as_ref(), Some(value), "{row:?} is one value alone");
    }
    Ok(shown)
}

/// Rows on the disk, part of them in tables, and what each batch had left.
fn make(place: &Path) -> Vec<Shown> {
    let mut left = vec![Shown::new()];
    let rows = RealEngine.open_rows(place, "the rows", 1 << 20).unwrap();
    for n in 1..=BATCHES {
        let mut shown = left.last().unwrap().clone();
        rows.write(batch(n, &mut shown)).unwrap();
        left.push(shown);
        if n == IN_TABLES {
            assert!(rows.give_back().unwrap(), "tables are written");
        }
    }
    rows.persist("here").unwrap();
    left
}

/// Bytes of a file before the zeros that a journal reserves at its end.
fn used(file: &Path) -> usize {
    let bytes = std::fs::read(file).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Says what it did.
fn damage(file: &Path, at: usize, kind: u64) -> String {
    let mut bytes = std::fs::read(file).unwrap();
    let what = match kind % 16 {
        bit @ 0..8 => {
            bytes[at] ^= 1 << bit;
            "a bit has flipped at"
        }
        8..12 => {
            bytes.truncate(at);
            "the end is gone from"
        }
        _ => {
            bytes[at / 512 * 512..].iter_mut().take(512).for_each(|byte| *byte = 0);
            "a sector is zeros at"
        }
    };
    std::fs::write(file, bytes).unwrap();
    format!("{what} byte {at} of `{}`", file.display())
}

#[test]
fn damaged_rows_are_refused_or_as_a_batch_left_them() {
    let own = std::env::temp_dir().join(format!("holdfast-rows-damaged-{}", std::process::id()));
    let (whole, place) = (own.join("whole"), own.join("damaged"));
    let left = make(&whole);
    assert_eq!(read(&whole).unwrap(), left[BATCHES as usize]);
    let rng = SeededRng::new(1);
    let (mut refused, mut shorter) = (0, 0);
    for file in files_below(&whole) {
        let used = used(&file);
        // What says where everything is, is short: each byte of it.
        let places: Vec<usize> = match used <= SHORT {
            true => (0..used).collect(),
            false => (0..PLACES).map(|_| (rng.next_u64() % used as u64) as usize).collect(),
        };
        for at in places {
            copy(&whole, &place);
            let file = place.join(file.strip_prefix(&whole).unwrap());
            let told = damage(&file, at, rng.next_u64());
            match read(&place) {
                Err(e) => {
                    assert_eq!(e.kind, Kind::Corrupt, "{told}: {e}");
                    refused += 1;
                }
                Ok(shown) => {
                    assert!(left.contains(&shown), "{told}: {shown:?}");
                    shorter += u32::from(shown != left[BATCHES as usize]);
                }
            }
        }
    }
    std::fs::remove_dir_all(&own).unwrap();
    assert!(refused > 100 && shorter > 0, "{refused} refused, {shorter} shorter");
}
