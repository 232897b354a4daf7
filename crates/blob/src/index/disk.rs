//! The rows on disk, in fjall: a log-structured merge tree with a block cache. Writes reach its
//! journal in order and are synced rarely: the view's log is what is durable, and the view reads
//! again from it what a crash took.

use super::{Batch, Ordered};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use holdfast_base::{Error, Result};
use std::path::{Path, PathBuf};

/// Written rows are kept in memory up to this size, then written to a table.
const MEMTABLE_BYTES: u64 = 16 << 20;
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
                .max_memtable_size(MEMTABLE_BYTES)
                .manual_journal_persist(true)
        };
        let rows = database.keyspace("rows", options).map_err(opening)?;
        Ok(DiskIndex { database, rows, place: place.to_owned() })
    }

    fn doing(&self, what: &str, e: fjall::Error) -> Error {
        failed(e).context(format_args!("{what} the index of blobs in `{}`", self.place.display()))
    }
}

fn failed(e: fjall::Error) -> Error {
    match e {
        fjall::Error::Io(e) => Error::from(e),
        other => Error::corrupt(format!(
            "{other:?}: remove the directory, and it is made anew from the log"
        )),
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
        writes.commit().map_err(|e| self.doing("write", e))
    }

    fn sync(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncData).map_err(|e| self.doing("sync", e))
    }
}
