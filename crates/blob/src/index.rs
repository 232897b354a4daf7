//! The ordered rows that the view is kept in, behind a narrow trait: an embedded store on disk, or
//! a map in memory for tests and simulations. What it holds can be thrown away and folded again.

pub mod damaged;
mod disk;

pub use disk::DiskIndex;

use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock};

/// What messages call the rows; an error that names them is theirs, not the log's.
pub const INDEX: &str = "the index of blobs";

/// Rows to write and to remove, all or none; a later change of a row wins.
#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    pub fn put(&mut self, row: Vec<u8>, value: Vec<u8>) {
        self.changes.push((row, Some(value)));
    }

    pub fn remove(&mut self, row: Vec<u8>) {
        self.changes.push((row, None));
    }
}

/// Takes a row and its value; false ends a scan.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;

/// Rows in byte order. Readers see a batch whole or not at all.
pub trait Ordered: Send + Sync + 'static {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Calls `each` for rows from `from` on and below `until`, in order, until it says false.
    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()>;

    /// Written, and durable some time later, in order.
    fn write(&self, batch: Batch) -> Result<()>;

    /// Makes everything written before durable.
    fn sync(&self) -> Result<()>;
}

/// Rows as the view's readers have them: refused from the moment on at which the view stops, for
/// what was acknowledged since, elsewhere or before, would be missing. Damage that a reader meets is
/// told.
pub struct Served {
    rows: Arc<dyn Ordered>,
    stopped: OnceLock<Error>,
    damaged: Box<dyn Fn(&Error) + Send + Sync>,
}

impl Served {
    pub fn new(rows: Arc<dyn Ordered>, damaged: Box<dyn Fn(&Error) + Send + Sync>) -> Served {
        Served { rows, stopped: OnceLock::new(), damaged }
    }

    /// The first reason stays.
    pub fn stop(&self, why: &Error) {
        self.tell(why);
        let _ = self.stopped.set(why.clone());
    }

    fn tell(&self, e: &Error) {
        if e.kind == Kind::Corrupt && e.message.contains(INDEX) {
            (self.damaged)(e);
        }
    }

    fn check(&self) -> Result<()> {
        self.stopped.get().map_or(Ok(()), |e| Err(e.clone()))
    }
}

impl Ordered for Served {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check()?;
        self.rows.get(row).inspect_err(|e| self.tell(e))
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        self.check()?;
        self.rows.scan(from, until, each).inspect_err(|e| self.tell(e))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.check()?;
        self.rows.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.rows.sync()
    }
}

/// Rows in memory; they end with the process.
#[derive(Default)]
pub struct MemoryIndex {
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl MemoryIndex {
    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.rows.held()
    }
}

impl Ordered for MemoryIndex {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.rows().get(row).cloned())
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        // One row after another, so that `each` may read others.
        let mut next = from.to_vec();
        loop {
            let range = (Bound::Included(next.as_slice()), Bound::Excluded(until));
            let found = match next.as_slice() < until {
                true => {
                    self.rows().range::<[u8], _>(range).next().map(|(k, v)| (k.clone(), v.clone()))
                }
                false => None,
            };
            let Some((row, value)) = found else { return Ok(()) };
            if !each(&row, &value)? {
                return Ok(());
            }
            next = row;
            next.push(0);
        }
    }

    fn write(&self, batch: Batch) -> Result<()> {
        let mut rows = self.rows();
        for (row, value) in batch.changes {
            match value {
                Some(value) => rows.insert(row, value),
                None => rows.remove(&row),
            };
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
