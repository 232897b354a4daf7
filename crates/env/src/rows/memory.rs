//! Rows in memory, which end with the process: for tests of what is kept in rows, and what the
//! simulated rows show. Never forgets, never fails.

use super::{Batch, Cursor, Each, Moment, Rows};
use crate::HoldRwLock;
use holdfast_base::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
pub struct MemoryRows {
    /// A moment holds the map that it began with; the next write then goes to a copy.
    rows: RwLock<Arc<Map>>,
}

impl MemoryRows {
    /// Shows other rows from now on.
    pub fn replace(&self, other: MemoryRows) {
        *self.rows.held_alone() = other.now();
    }

    fn now(&self) -> Arc<Map> {
        self.rows.held_shared().clone()
    }
}

impl Rows for MemoryRows {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.now().get(row).cloned())
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        Ok(Arc::new(MemoryMoment(self.now())))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        let mut rows = self.rows.held_alone();
        let rows = Arc::make_mut(&mut rows);
        for (row, value) in batch.changes {
            match value {
                Some(value) => rows.insert(row, value),
                None => rows.remove(&row),
            };
        }
        Ok(())
    }

    fn persist(&self, _site: &'static str) -> Result<()> {
        Ok(())
    }

    fn open_again(&self) -> Result<()> {
        Ok(())
    }
}

struct MemoryMoment(Arc<Map>);

impl Moment for MemoryMoment {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(row).cloned())
    }

    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if from >= until {
            return Ok(None);
        }
        let range = (Bound::Included(from), Bound::Excluded(until));
        let last = self.0.range::<[u8], _>(range).next_back();
        Ok(last.map(|(row, value)| (row.clone(), value.clone())))
    }

    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>> {
        let (from, until) = (Bound::Included(from.to_vec()), until.to_vec());
        Ok(Box::new(MemoryCursor { rows: self.0.clone(), from, until }))
    }
}

struct MemoryCursor {
    rows: Arc<Map>,
    /// Where it stands.
    from: Bound<Vec<u8>>,
    until: Vec<u8>,
}

impl Cursor for MemoryCursor {
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool> {
        let (Bound::Included(from) | Bound::Excluded(from)) = &self.from else { return Ok(false) };
        if *from >= self.until {
            return Ok(false);
        }
        let range = (self.from.clone(), Bound::Excluded(self.until.clone()));
        for (row, value) in self.rows.range::<Vec<u8>, _>(range) {
            if !each(row, value)? {
                self.from = Bound::Excluded(row.clone());
                return Ok(true);
            }
        }
        self.from = Bound::Unbounded;
        Ok(false)
    }
}
