//! The ordered rows that the view is kept in, as its readers have them. What they hold can be
//! thrown away and folded again.

pub mod before;
pub mod damaged;

use holdfast_base::{Error, Reason, Result};
use holdfast_env::HoldRwLock;
use holdfast_env::rows::{Batch, Each, Moment, Rows};
use holdfast_view::Page;
use std::sync::{Arc, RwLock};

/// What messages call the rows; an error that names them is theirs, not the log's.
pub const INDEX: &str = "the index of blobs";

/// What looks at rows: at those that readers have, or as the entries of a page have left them.
pub trait Look {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>>;
    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()>;
}

impl Look for dyn Rows {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        Rows::get(self, row)
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        Rows::scan(self, from, until, each)
    }
}

impl Look for Page<'_> {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        Page::get(self, row)
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        Page::scan(self, from, until, each)
    }
}

/// Rows as the view's readers have them: refused from the moment on at which the view stops, for
/// what was acknowledged since, elsewhere or before, would be missing. Damage that a reader meets is
/// told.
pub struct Served {
    rows: Arc<dyn Rows>,
    stopped: RwLock<Option<Error>>,
    damaged: Box<dyn Fn(&Error) + Send + Sync>,
}

impl Served {
    pub fn new(rows: Arc<dyn Rows>, damaged: Box<dyn Fn(&Error) + Send + Sync>) -> Served {
        Served { rows, stopped: RwLock::default(), damaged }
    }

    /// The view has stopped, or goes on: `why` tells which, and is asked under the lock, so that the
    /// last word is the view's.
    pub fn look(&self, why: impl FnOnce() -> Option<Error>) {
        let mut stopped = self.stopped.held_alone();
        *stopped = why();
        stopped.iter().for_each(|why| self.tell(why));
    }

    pub fn has_stopped(&self) -> bool {
        self.stopped.held_shared().is_some()
    }

    fn tell(&self, e: &Error) {
        if e.is(Reason::Rows) {
            (self.damaged)(e);
        }
    }

    fn check(&self) -> Result<()> {
        self.stopped.held_shared().as_ref().map_or(Ok(()), |e| Err(e.clone()))
    }
}

impl Rows for Served {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check()?;
        self.rows.get(row).inspect_err(|e| self.tell(e))
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        self.check()?;
        self.rows.moment().inspect_err(|e| self.tell(e))
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        self.check()?;
        self.rows.scan(from, until, each).inspect_err(|e| self.tell(e))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.check()?;
        self.rows.write(batch)
    }

    fn persist(&self, site: &'static str) -> Result<()> {
        self.rows.persist(site)
    }

    fn open_again(&self) -> Result<()> {
        self.rows.open_again()
    }
}
