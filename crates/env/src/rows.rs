//! Ordered rows: what views keep that are larger than memory. One trait, used by production
//! ([`RealEngine`]), by the simulated rows in `sim` and by every test alike. Calls block; who must
//! not wait calls them from a thread of its own. Never interprets a row.

mod checks;
mod memory;
mod real;

pub use memory::MemoryRows;
pub use real::RealEngine;

use holdfast_base::Result;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a row's name at most: the engine writes their number in two bytes. What is longer can be asked for, and
/// bound a range; it is not there.
pub const ROW_BYTES_MAX: usize = u16::MAX as usize;

/// Rows to write and to remove, all or none; a later change of a row wins. A row that is written has a name of one
/// byte to [`ROW_BYTES_MAX`]: whoever makes it of what clients say has looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Batch {
    pub fn put(&mut self, row: Vec<u8>, value: Vec<u8>) {
        assert!(
            (1..=ROW_BYTES_MAX).contains(&row.len()),
            "a row has a name of {} bytes",
            row.len()
        );
        self.changes.insert(row, Some(value));
    }

    pub fn remove(&mut self, row: Vec<u8>) {
        if row.len() <= ROW_BYTES_MAX {
            self.changes.insert(row, None);
        }
    }

    /// Adds the changes of a batch that comes behind this one.
    pub fn append(&mut self, mut later: Batch) {
        self.changes.append(&mut later.changes);
    }
}

/// Takes a row and its value; false ends a scan.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;

/// Rows in byte order.
///
/// Batches are durable in their order: a power cut, or the end of the process, takes the last ones,
/// each whole, and none that was written before the last [`Rows::persist`].
pub trait Rows: Send + Sync + 'static {
    /// As the last batch left it.
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The rows as they are now, for as long as it is kept: whatever is written later, it does not
    /// show. The engine keeps what it shows, so it is not kept for longer than it is needed.
    fn moment(&self) -> Result<Arc<dyn Moment>>;

    /// Calls `each` for rows from `from` on and below `until`, in order, until it says false: as
    /// they were when the scan began, whatever is written meanwhile, by `each` too.
    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        self.moment()?.cursor(from, until)?.advance(each).map(drop)
    }

    /// Written, and durable some time later.
    fn write(&self, batch: Batch) -> Result<()>;

    /// Makes every batch written before durable. `site` names this place in the code, as those of
    /// [`crate::Disk`] do.
    fn persist(&self, site: &'static str) -> Result<()>;

    /// Much was removed: gives back the room that it has, and the time that passing it takes, as far as that
    /// is soon done. False where it is left to the engine, which does it as more is written. Nobody's write
    /// gets to a table meanwhile.
    fn give_back(&self) -> Result<bool> {
        Ok(false)
    }

    /// Nothing is written any more once a write or a sync has failed, until the rows were opened
    /// again: as by a process that follows, so that batches which were not persisted may be gone.
    /// Rows of which somebody keeps a moment say `Retry`; those that could not be opened are closed.
    fn open_again(&self) -> Result<()>;
}

/// Rows as they were at one moment.
pub trait Moment: Send + Sync {
    /// As it was.
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The last row from `from` on and below `until`, with its value.
    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>>;

    /// Stands in front of the first row from `from` on, and goes as far as `until`.
    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>>;
}

/// A place among the rows of a moment.
pub trait Cursor: Send {
    /// Calls `each` for rows, in order, until it says false: the next call goes on behind that row.
    /// False when there are no more.
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool>;
}

/// What opens rows in directories, as a disk opens files.
pub trait Engine: Send + Sync + 'static {
    /// Opens the rows in the directory `place`, or makes them there. Errors name them `what`.
    /// `cache_bytes` of them are kept in memory. `Corrupt` says that they are damaged.
    fn open_rows(&self, place: &Path, what: &str, cache_bytes: u64) -> Result<Arc<dyn Rows>>;
}
