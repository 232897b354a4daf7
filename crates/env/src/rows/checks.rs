//! What the engine does not check of its own files when it opens them, though damage there would end the process,
//! hang it, or show rows that no batch had left. Only looks: whoever is told `Corrupt` makes the rows anew.

use crate::disk::NotAFile;
use crate::planted;
use holdfast_base::{Error, Result};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// Numbers are taken by batches and by tables that are written: by a few between two batches.
const NUMBERS_APART_MAX: u64 = 1 << 20;

/// `Corrupt` where something is wrong that the engine would not find.
#[expect(clippy::disallowed_methods, reason = "the engine's own files, which no env::Disk opens")]
pub(super) fn look_at(place: &Path) -> Result<()> {
    check_files(place)?;
    check_keyspaces(&place.join("keyspaces"))?;
    let mut journals: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(number), Some("jnl")) = (number, path.extension().and_then(|e| e.to_str())) {
            journals.push((number, path));
        }
    }
    journals.sort();
    let mut last = None;
    journals.iter().try_for_each(|(_, journal)| check_numbers(journal, &mut last))
}

/// The engine opens what lies in its directories by name, and would wait for ever at a pipe.
#[expect(clippy::disallowed_methods, reason = "the engine's own files, which no env::Disk opens")]
fn check_files(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
        match entry? {
            kind if kind.is_dir() => check_files(&path)?,
            kind if kind.is_file() || kind.is_symlink() => {}
            _ => return Err(NotAFile::at(&path).into()),
        }
    }
    Ok(())
}

/// Of each keyspace the engine writes down, in `current`, which file says what its tables are and what that file
/// sums up to, and then believes the file: where a bit has flipped in it, it took tables for none, or panicked with
/// its locks held, which ended the process at each start.
#[expect(clippy::disallowed_methods, reason = "the engine's own files, which no env::Disk opens")]
fn check_keyspaces(keyspaces: &Path) -> Result<()> {
    if !keyspaces.exists() {
        return Ok(());
    }
    for keyspace in std::fs::read_dir(keyspaces)? {
        let keyspace = keyspace?.path();
        // What is missing or cut short, the engine finds.
        let Ok(current) = std::fs::read(keyspace.join("current")) else { continue };
        let Some((id, rest)) = current.split_first_chunk::<8>() else { continue };
        let Some((sum, _)) = rest.split_first_chunk::<16>() else { continue };
        let says = keyspace.join(format!("v{}", u64::from_le_bytes(*id)));
        let Ok(bytes) = std::fs::read(&says) else { continue };
        if xxh3_128(&bytes).to_le_bytes() != *sum {
            return Err(Error::corrupt(format!("`{}` is not as it was written", says.display())));
        }
    }
    Ok(())
}

/// Numbers of a journal's batches rise: a batch's checksum is of its rows alone, and where its number is
/// another one the engine takes older rows for newer ones, or leaves the batch out. `last` is the number of the
/// batch before. Where a journal's form is broken the engine finds it, and what comes behind is not looked at.
#[expect(clippy::disallowed_methods, reason = "the engine's own files, which no env::Disk opens")]
fn check_numbers(journal: &Path, last: &mut Option<u64>) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 20, std::fs::File::open(journal)?);
    loop {
        let number = match next_number(&mut reader) {
            Ok(Some(number)) => number,
            Ok(None) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let follows = |last: u64| number > last && number - last <= NUMBERS_APART_MAX;
        let is_wrong = last.is_some_and(|last| !follows(last));
        if is_wrong && !planted!("env.numbers-of-batches-believed") {
            return Err(Error::corrupt(format!(
                "in `{}` batch {number} comes behind batch {}",
                journal.display(),
                last.unwrap_or_default()
            )));
        }
        *last = Some(number);
    }
}

/// The number of the batch at which a reader stands, which it passes. Nothing where there is none, or one of
/// another form: a batch is its number and that of its rows, the rows, and a checksum of these.
fn next_number(reader: &mut impl Read) -> std::io::Result<Option<u64>> {
    const START: u8 = 1;
    const ROW: u8 = 2;
    const END: u8 = 3;
    let mut start = [0; 13];
    reader.read_exact(&mut start)?;
    let (rows, number) = start[1..].split_at(4);
    let rows = u32::from_le_bytes(rows.try_into().expect("4 bytes"));
    for _ in 0..rows {
        let mut row = [0; 21];
        reader.read_exact(&mut row)?;
        if start[0] != START || row[0] != ROW {
            return Ok(None);
        }
        let key = u16::from_le_bytes([row[11], row[12]]) as u64;
        let value = u32::from_le_bytes(row[17..].try_into().expect("4 bytes")) as u64;
        std::io::copy(&mut reader.take(key + value), &mut std::io::sink())?;
    }
    let mut end = [0; 13];
    reader.read_exact(&mut end)?;
    let number = u64::from_le_bytes(number.try_into().expect("8 bytes"));
    Ok((start[0] == START && end[0] == END).then_some(number))
}
