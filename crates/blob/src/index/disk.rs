//! The rows on disk, in fjall: a log-structured merge tree with a block cache. Writes reach its
//! journal in order and are synced rarely: the view's log is what is durable, and the view reads
//! again from it what a crash took.

use super::{Batch, Ordered};
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode};
use holdfast_base::error::panic_text;
use holdfast_base::{Error, Result};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Written rows are kept in memory up to this size, then written to a table.
const MEMTABLE_BYTES: u64 = 15 << 20;
/// Past this size fjall asks for a new memtable by itself, with each write again, through a queue
/// that its only worker also writes to: when the queue is full that thread waits for itself, and
/// no row leaves memory any more (fjall's pull request 272). So that it never asks, writers say
/// when a memtable is full, below this size.
const MEMTABLE_BYTES_MAX: u64 = 16 << 20;
/// Journals that wait for their tables, at most.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;

pub struct DiskIndex {
    database: Database,
    rows: Keyspace,
    place: PathBuf,
}

impl DiskIndex {
    /// Opens the rows in a directory, or makes them there. `cache_bytes`: blocks kept in memory.
    pub fn open(place: &Path, cache_bytes: u64) -> Result<DiskIndex> {
        // Damage makes the engine panic in places.
        let opened = catch_unwind(|| DiskIndex::open_now(place, cache_bytes));
        opened.unwrap_or_else(|panic| {
            let what = panic_text(&*panic);
            Err(Error::corrupt(format!("open `{}`: it panicked ({what})", place.display())))
        })
    }

    fn open_now(place: &Path, cache_bytes: u64) -> Result<DiskIndex> {
        let opening =
            |e: fjall::Error| failed(e).context(format_args!("open `{}`", place.display()));
        let database = Database::builder(place)
            .cache_size(cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .manual_journal_persist(true)
            .worker_threads(1)
            .open()
            .map_err(opening)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES_MAX)
                .manual_journal_persist(true)
        };
        let rows = database.keyspace("rows", options).map_err(opening)?;
        Ok(DiskIndex { database, rows, place: place.to_owned() })
    }

    fn doing(&self, what: &str, e: fjall::Error) -> Error {
        failed(e).context(format_args!("{what} the index of blobs in `{}`", self.place.display()))
    }
}

/// The operating system's number for a device that cannot read.
const EIO: i32 = 5;

/// `Corrupt` where what is kept is damaged, missing or unreadable: it can be folded anew.
fn failed(e: fjall::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match e {
        fjall::Error::Io(e) | fjall::Error::Storage(LsmError::Io(e)) => {
            let damage = matches!(e.kind(), InvalidData | NotFound | UnexpectedEof)
                || e.raw_os_error() == Some(EIO);
            if damage { Error::corrupt(e.to_string()) } else { Error::from(e) }
        }
        e @ (fjall::Error::Poisoned | fjall::Error::Locked) => Error::retry(format!("{e:?}")),
        other => Error::corrupt(format!("{other:?}")),
    }
}

impl Ordered for DiskIndex {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.rows.get(row).map_err(|e| self.doing("read", e))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut super::Each<'_>) -> Result<()> {
        if from >= until {
            return Ok(());
        }
        for row in self.rows.range(from..until) {
            let (key, value) = row.into_inner().map_err(|e| self.doing("read", e))?;
            if !each(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: Batch) -> Result<()> {
        let mut writes = self.database.batch();
        for (row, value) in batch.changes {
            match value {
                Some(value) => writes.insert(&self.rows, row, value),
                None => writes.remove(&self.rows, row),
            }
        }
        let written = writes.commit().and_then(|()| {
            let full = self.rows.tree.active_memtable().size() >= MEMTABLE_BYTES;
            if full { self.rows.rotate_memtable().map(drop) } else { Ok(()) }
        });
        written.map_err(|e| self.doing("write", e))
    }

    fn sync(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncData).map_err(|e| self.doing("sync", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that came in faster than one thread writes tables stayed in memory, all of them: past
    /// its limit each write asked the store for a new memtable, the requests filled the queue of
    /// the only thread that could follow them, and that thread waited for room in it. A start then
    /// read gigabytes of journal back into memory.
    #[test]
    fn rows_that_come_in_fast_are_written_to_tables() {
        const ROWS: u32 = 40_000;
        let place = std::env::temp_dir().join(format!("holdfast-index-{}", std::process::id()));
        let index = DiskIndex::open(&place, 1 << 20).unwrap();
        let mut most = 0;
        for row in 0..ROWS {
            let mut batch = Batch::default();
            batch.put(row.wrapping_mul(2_654_435_761).to_be_bytes().to_vec(), vec![7; 4000]);
            index.write(batch).unwrap();
            most = most.max(index.database.write_buffer_size());
        }
        assert!(most < 6 * MEMTABLE_BYTES_MAX, "{most} bytes of rows wait in memory");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
