//! The ordered rows that the view is kept in, behind a narrow trait: an embedded store on disk, or
//! a map in memory for tests and simulations. What it holds can be thrown away and folded again.

mod disk;

pub use disk::DiskIndex;

use holdfast_base::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

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

/// Rows in memory; they end with the process.
#[derive(Default)]
pub struct MemoryIndex {
    rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl MemoryIndex {
    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.rows.lock().expect("no holder of this lock panics")
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
