//! Rows in memory, which end with the process: for tests of what is kept in rows, and what the
//! simulated rows show. Never forgets, never fails.

use super::{Batch, Each, Rows};
use crate::HoldRwLock;
use holdfast_base::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
pub struct MemoryRows {
    /// A scan holds the map that it began with; the next write then goes to a copy.
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

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        if from >= until {
            return Ok(());
        }
        let range = (Bound::Included(from), Bound::Excluded(until));
        for (row, value) in self.now().range::<[u8], _>(range) {
            if !each(row, value)? {
                break;
            }
        }
        Ok(())
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
