//! A disk view's rows, watched: whoever reads or writes them, a fold, a rider, a sum, the sweeper, the first
//! error that says that they are damaged is kept, so that the view is begun anew at the next round. Changes
//! nothing of what its readers are told.
//!
//! What is damaged was found out where rows are opened, and the engine opens them without a look at what is in
//! their tables: a flipped bit there stayed until somebody read that very block, who was told so, and nobody
//! else; no start mended it.

use holdfast_base::{Error, Reason, Result};
use holdfast_env::planted;
use holdfast_env::rows::{Batch, Cursor, Each, Moment, Rows};
use std::sync::{Arc, OnceLock};

/// What is told to who read damaged rows: the view begins anew, and has what was asked for then.
pub(crate) fn begins_anew(e: Error) -> Error {
    match e.is(Reason::Rows) && !planted!("ride.damage-of-running-views-overlooked") {
        true => Error::retry(format!(
            "{e}: the view begins anew with the log, or with images: ask again"
        )),
        false => e,
    }
}

/// The first damage that was met, if any was.
#[derive(Clone, Debug, Default)]
pub struct Damage(Arc<OnceLock<Error>>);

impl Damage {
    /// What was met.
    pub fn found(&self) -> Option<&Error> {
        self.0.get().filter(|_| !planted!("ride.damage-of-running-views-overlooked"))
    }

    /// Somebody has seen it elsewhere.
    pub fn note(&self, e: Error) {
        self.0.get_or_init(|| e);
    }

    fn look_at<R>(&self, done: Result<R>) -> Result<R> {
        if let Err(e) = &done
            && e.is(Reason::Rows)
        {
            self.0.get_or_init(|| e.clone());
        }
        done
    }
}

/// See the module.
pub(super) struct Watched {
    pub rows: Arc<dyn Rows>,
    pub damage: Damage,
}

impl Rows for Watched {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.damage.look_at(self.rows.get(row))
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        let (moment, damage) = (self.damage.look_at(self.rows.moment())?, self.damage.clone());
        Ok(Arc::new(WatchedMoment { moment, damage }))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.damage.look_at(self.rows.write(batch))
    }

    fn persist(&self, site: &'static str) -> Result<()> {
        self.damage.look_at(self.rows.persist(site))
    }

    fn give_back(&self) -> Result<bool> {
        self.damage.look_at(self.rows.give_back())
    }

    fn open_again(&self) -> Result<()> {
        self.damage.look_at(self.rows.open_again())
    }
}

struct WatchedMoment {
    moment: Arc<dyn Moment>,
    damage: Damage,
}

impl Moment for WatchedMoment {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.damage.look_at(self.moment.get(row))
    }

    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.damage.look_at(self.moment.last(from, until))
    }

    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>> {
        let cursor = self.damage.look_at(self.moment.cursor(from, until))?;
        Ok(Box::new(WatchedCursor { cursor, damage: self.damage.clone() }))
    }
}

struct WatchedCursor {
    cursor: Box<dyn Cursor>,
    damage: Damage,
}

impl Cursor for WatchedCursor {
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool> {
        self.damage.look_at(self.cursor.advance(each))
    }
}
