//! The rows on disk, in fjall: a log-structured merge tree with a block cache. Writes reach its
//! journal in order, and are synced when somebody asks for it. Never decides when that is.

use super::{Batch, Cursor, Each, Engine, Moment, ROW_BYTES_MAX, Rows, checks};
use crate::disk::{RealDisk, create_dir_durable};
use crate::{HoldRwLock, planted};
use fjall::{
    AbstractTree, Database, Iter, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode, Readable,
    Snapshot,
};
use holdfast_base::error::panic_text;
use holdfast_base::{Error, Kind, Reason, Result};
use std::ops::Bound;
use std::panic::{UnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// Written rows are kept in memory up to this size, then written to a table.
const MEMTABLE_BYTES: u64 = 15 << 20;
/// Past this size fjall asks for a new memtable by itself, with each write again, through a queue
/// that its only worker also writes to: when the queue is full that thread waits for itself, and
/// no row leaves memory any more (fjall's pull request 272). So that it never asks, writers say
/// when a memtable is full, below this size.
const MEMTABLE_BYTES_MAX: u64 = 16 << 20;
/// Journals that wait for their tables, at most.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;

/// Rows are compacted as a whole up to this size, in a few seconds: the engine writes no table meanwhile, so
/// that what is written waits in memory, and then writers wait. Of larger rows its levels bound what removed
/// ones take: to a tenth of them, and a few tables.
const COMPACTED_BYTES_MAX: u64 = 256 << 20;

/// The engine of real machines.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealEngine;

impl Engine for RealEngine {
    fn open_rows(&self, place: &Path, what: &str, cache_bytes: u64) -> Result<Arc<dyn Rows>> {
        match open_caught(|| RealRows::open(place, what, cache_bytes)) {
            Ok(rows) => Ok(Arc::new(rows)),
            Err(e) => Err(of_rows(e.context(format_args!("open {what} in `{}`", place.display())))),
        }
    }
}

/// Damage makes the engine panic in places.
fn open_caught<R>(open: impl FnOnce() -> Result<R> + UnwindSafe) -> Result<R> {
    catch_unwind(open).unwrap_or_else(|panic| {
        Err(Error::corrupt(format!("it panicked ({})", panic_text(&*panic))))
    })
}

struct RealRows {
    /// Nothing where they could not be opened again. Moments share it.
    opened: RwLock<Option<Arc<Opened>>>,
    name: Arc<Name>,
    cache_bytes: u64,
}

/// What messages call the rows.
struct Name {
    what: String,
    place: PathBuf,
}

impl Name {
    fn doing(&self, doing: &str, e: Error) -> Error {
        let e = e.context(format_args!("{doing} {} in `{}`", self.what, self.place.display()));
        of_rows(e)
    }
}

struct Opened {
    database: Database,
    rows: Keyspace,
}

impl RealRows {
    fn open(place: &Path, what: &str, cache_bytes: u64) -> Result<RealRows> {
        let opened = RwLock::new(Some(Arc::new(Opened::open(place, cache_bytes)?)));
        let name = Arc::new(Name { what: what.to_owned(), place: place.to_owned() });
        Ok(RealRows { opened, name, cache_bytes })
    }

    fn with<R>(&self, doing: &str, work: impl FnOnce(&Arc<Opened>) -> Result<R>) -> Result<R> {
        let opened = self.opened.held_shared();
        let done = opened.as_ref().ok_or_else(|| Error::retry("they are closed")).and_then(work);
        done.map_err(|e| self.name.doing(doing, e))
    }
}

impl Opened {
    fn open(place: &Path, cache_bytes: u64) -> Result<Opened> {
        // What is inside, the engine makes durable; its own name it does not.
        create_dir_durable(&RealDisk, place, 1, "rows.directory")?;
        checks::look_at(place)?;
        let database = Database::builder(place)
            .cache_size(cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .manual_journal_persist(true)
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES_MAX)
                .manual_journal_persist(true)
        };
        let rows = database.keyspace("rows", options).map_err(failed)?;
        Ok(Opened { database, rows })
    }

    fn write(&self, batch: Batch) -> fjall::Result<()> {
        let mut writes = self.database.batch();
        for (row, value) in batch.changes {
            match value {
                Some(value) => writes.insert(&self.rows, row, value),
                None => writes.remove(&self.rows, row),
            }
        }
        writes.commit()?;
        let full = self.rows.tree.active_memtable().size() >= MEMTABLE_BYTES;
        if full { self.rows.rotate_memtable().map(drop) } else { Ok(()) }
    }
}

/// Damage is theirs: not a log's, nor an image's.
fn of_rows(e: Error) -> Error {
    if e.kind == Kind::Corrupt { e.because(Reason::Rows) } else { e }
}

/// The operating system's number for a device that cannot read.
const EIO: i32 = 5;

/// `Corrupt` where what is kept is damaged, missing or unreadable: it can be folded anew.
fn failed(e: fjall::Error) -> Error {
    use std::io::ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
    match e {
        fjall::Error::Io(e) | fjall::Error::Storage(LsmError::Io(e)) => {
            // A file that is gone is made anew beside those that are there; one that was cut is read
            // from a place before its beginning.
            let damage = matches!(
                e.kind(),
                AlreadyExists | InvalidData | InvalidInput | NotFound | UnexpectedEof
            ) || e.raw_os_error() == Some(EIO);
            if damage { Error::corrupt(e.to_string()) } else { Error::from(e) }
        }
        fjall::Error::Locked => Error::retry("somebody has them open, or still reads them"),
        // In the background, so nobody heard why.
        fjall::Error::Poisoned => Error::retry(
            "something could not be written before, as where no space is left: make room, and look at the disk",
        ),
        other => Error::corrupt(format!("{other:?}")),
    }
}

impl Rows for RealRows {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        if row.len() > ROW_BYTES_MAX {
            return Ok(None);
        }
        let found = self.with("read", |opened| opened.rows.get(row).map_err(failed))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        self.with("read", |opened| {
            // The keyspace itself would show what is written on the way.
            let shown = (!planted!("env.scan-of-no-moment")).then(|| opened.database.snapshot());
            let (opened, name) = (opened.clone(), self.name.clone());
            Ok(Arc::new(RealMoment { shown, opened, name }) as Arc<dyn Moment>)
        })
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.with("write", |opened| opened.write(batch).map_err(failed))
    }

    fn persist(&self, _site: &'static str) -> Result<()> {
        let persist = |opened: &Opened| opened.database.persist(PersistMode::SyncData);
        self.with("sync", |opened| persist(opened).map_err(failed))
    }

    fn give_back(&self) -> Result<bool> {
        self.with("compact", |opened| {
            let rows = &opened.rows;
            if rows.disk_space() > COMPACTED_BYTES_MAX {
                return Ok(false);
            }
            rows.rotate_memtable_and_wait().and_then(|()| rows.major_compact()).map_err(failed)?;
            Ok(true)
        })
    }

    fn open_again(&self) -> Result<()> {
        let being_read = || Err(self.name.doing("open", Error::retry("they are being read")));
        let Ok(mut opened) = self.opened.try_write() else { return being_read() };
        match opened.take().map(Arc::try_unwrap) {
            Some(Err(shared)) => {
                *opened = Some(shared);
                return being_read();
            }
            // Ends its threads, and lets go of its files.
            before => drop(before),
        }
        let anew = open_caught(|| Opened::open(&self.name.place, self.cache_bytes));
        *opened = Some(Arc::new(anew.map_err(|e| self.name.doing("open", e))?));
        Ok(())
    }
}

struct RealMoment {
    shown: Option<Snapshot>,
    opened: Arc<Opened>,
    name: Arc<Name>,
}

impl RealMoment {
    fn range(&self, from: &[u8], until: &[u8]) -> Iter {
        let rows = &self.opened.rows;
        // The engine takes no range that ends before it begins.
        let until = until.max(from);
        // Nor one with a bound that is longer than any row: behind the longest one that it begins with.
        let from = match from.get(..ROW_BYTES_MAX).filter(|longest| longest.len() < from.len()) {
            Some(longest) => Bound::Excluded(longest),
            None => Bound::Included(from),
        };
        let until = match until.get(..ROW_BYTES_MAX).filter(|longest| longest.len() < until.len()) {
            Some(longest) => Bound::Included(longest),
            None => Bound::Excluded(until),
        };
        match &self.shown {
            Some(shown) => shown.range::<&[u8], _>(rows, (from, until)),
            None => rows.range::<&[u8], _>((from, until)),
        }
    }

    fn failed(&self, e: fjall::Error) -> Error {
        self.name.doing("read", failed(e))
    }
}

impl Moment for RealMoment {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        if row.len() > ROW_BYTES_MAX {
            return Ok(None);
        }
        let rows = &self.opened.rows;
        let found = match &self.shown {
            Some(shown) => shown.get(rows, row),
            None => rows.get(row),
        };
        Ok(found.map_err(|e| self.failed(e))?.map(|value| value.to_vec()))
    }

    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(last) = self.range(from, until).next_back() else { return Ok(None) };
        let (row, value) = last.into_inner().map_err(|e| self.failed(e))?;
        Ok(Some((row.to_vec(), value.to_vec())))
    }

    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>> {
        let (left, opened, name) =
            (self.range(from, until), self.opened.clone(), self.name.clone());
        Ok(Box::new(RealCursor { left, _opened: opened, name }))
    }
}

struct RealCursor {
    left: Iter,
    /// As long as it stands there.
    _opened: Arc<Opened>,
    name: Arc<Name>,
}

impl Cursor for RealCursor {
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool> {
        for row in self.left.by_ref() {
            let (row, value) = row.into_inner().map_err(|e| self.name.doing("read", failed(e)))?;
            if !each(&row, &value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;

    /// Rows that came in faster than one thread writes tables stayed in memory, all of them: past
    /// its limit each write asked the store for a new memtable, the requests filled the queue of
    /// the only thread that could follow them, and that thread waited for room in it. A start then
    /// read gigabytes of journal back into memory.
    #[test]
    fn rows_that_come_in_fast_are_written_to_tables() {
        const ROWS: u32 = 40_000;
        let place = std::env::temp_dir().join(format!("holdfast-rows-{}", std::process::id()));
        let index = RealRows::open(&place, "rows", 1 << 20).unwrap();
        let mut most = 0;
        for row in 0..ROWS {
            let mut batch = Batch::default();
            batch.put(row.wrapping_mul(2_654_435_761).to_be_bytes().to_vec(), vec![7; 4000]);
            index.write(batch).unwrap();
            let waits = |opened: &Arc<Opened>| Ok(opened.database.write_buffer_size());
            most = most.max(index.with("measure", waits).unwrap());
        }
        assert!(most < 6 * MEMTABLE_BYTES_MAX, "{most} bytes of rows wait in memory");
        drop(index);
        // The engine's thread ends what it was at: so there was a new file where all others were removed.
        while let Err(e) = std::fs::remove_dir_all(&place) {
            assert_eq!(e.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{e}");
            std::thread::yield_now();
        }
    }

    /// Rows under a scan stay open; behind it they are opened again, with what was persisted.
    #[test]
    fn rows_are_not_closed_under_a_reader() {
        let place =
            std::env::temp_dir().join(format!("holdfast-rows-again-{}", std::process::id()));
        let rows = RealRows::open(&place, "rows", 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put(b"row".to_vec(), b"value".to_vec());
        rows.write(batch).unwrap();
        rows.persist("here").unwrap();
        let mut refused = None;
        rows.scan(b"a", b"z", &mut |_, _| {
            refused = rows.open_again().err();
            Ok(true)
        })
        .unwrap();
        let refused = refused.expect("a refusal");
        assert!(refused.kind == Kind::Retry && refused.message.contains("being read"), "{refused}");
        rows.open_again().unwrap();
        assert_eq!(rows.get(b"row").unwrap().unwrap(), b"value");
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "the engine's own files, damaged by the test")]
    fn files_below(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = entries
            .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
            .collect();
        files.sort();
        files
    }

    /// Rows without one of their files said that it exists, those with one cut short that an
    /// argument is invalid: nobody took that for damage, and what could have been folded anew was
    /// refused at every start.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the engine's own files, damaged by the test")]
    fn rows_that_lack_a_file_or_a_part_of_it_are_damaged() {
        let directory = std::env::temp_dir();
        let place = directory.join(format!("holdfast-rows-cut-{}", std::process::id()));
        let make = || {
            let _ = std::fs::remove_dir_all(&place);
            let rows = RealRows::open(&place, "rows", 1 << 20).unwrap();
            let mut batch = Batch::default();
            batch.put(b"row".to_vec(), vec![7; 4000]);
            rows.write(batch).unwrap();
            rows.with("flush", |opened| opened.rows.rotate_memtable_and_wait().map_err(failed))
                .unwrap();
            rows.persist("here").unwrap();
        };
        make();
        let files = files_below(&place);
        // A pipe in the place of one of them, which the engine opens to read, and waits.
        for file in &files {
            make();
            std::fs::remove_file(file).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
            let refused = RealEngine.open_rows(&place, "rows", 1 << 20).err().unwrap();
            assert_eq!(refused.kind, Kind::Corrupt, "{refused}");
            assert!(refused.message.contains("is no file"), "{refused}");
        }
        let mut damaged = 0;
        for file in &files {
            for left in [None, Some(0), Some(12)] {
                make();
                match left {
                    None => drop(std::fs::remove_file(file)),
                    Some(left) => {
                        let Ok(file) = std::fs::File::options().write(true).open(file) else {
                            continue;
                        };
                        file.set_len(left).unwrap();
                    }
                }
                match RealEngine.open_rows(&place, "rows", 1 << 20) {
                    Ok(_) => {}
                    Err(e) => {
                        assert_eq!(e.kind, Kind::Corrupt, "{} {left:?}: {e}", file.display());
                        damaged += 1;
                    }
                }
            }
        }
        std::fs::remove_dir_all(&place).unwrap();
        assert!(damaged >= 4, "{damaged} of {} files", files.len());
    }
}
