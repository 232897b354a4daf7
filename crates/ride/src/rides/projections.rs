//! What was made of a slab's values for riders who want single fields of them: kept beside the slab, and
//! as long as it is kept.

use holdfast_env::{HoldMutex, planted};
use holdfast_wire::slab::{Column, Fields};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Sets of fields of which a slab keeps what was made: with values that are fields for the most part,
/// each takes as much memory as the slab. Riders who want others have it made for them alone.
const SETS_MAX: usize = 4;

/// A column, once somebody has made it; others wait for it meanwhile.
type Cell = Arc<OnceLock<Column>>;

/// Of one set of fields, by the column's place in the slab.
type Made = (Arc<Fields>, BTreeMap<usize, Cell>);

#[derive(Default)]
pub(crate) struct Projections(Mutex<Vec<Made>>);

impl Projections {
    /// Where that is kept which is left of the slab's column at a place, if there is room.
    pub fn cell(&self, fields: &Arc<Fields>, place: usize) -> Option<Cell> {
        let mut sets = self.0.held();
        let same = |own: &Arc<Fields>| own == fields || planted!("ride.fields-of-another-set");
        let at = sets.iter().position(|(own, _)| same(own)).unwrap_or(sets.len());
        if at == SETS_MAX {
            return None;
        }
        if at == sets.len() {
            sets.push((fields.clone(), BTreeMap::new()));
        }
        Some(sets[at].1.entry(place).or_default().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_place_for_each_set_and_column_and_no_more_than_so_many_sets() {
        let fields = |name: &str| Arc::new(Fields::new(&[name.to_owned()]).unwrap());
        let kept = Projections::default();
        let names: Vec<Arc<Fields>> = (0..SETS_MAX).map(|n| fields(&n.to_string())).collect();
        let cells: Vec<Cell> =
            names.iter().flat_map(|set| [1, 3].map(|at| kept.cell(set, at).unwrap())).collect();
        for (at, cell) in cells.iter().enumerate() {
            let others = cells.iter().filter(|other| Arc::ptr_eq(cell, other));
            assert_eq!(others.count(), 1, "cell {at}");
        }
        assert!(kept.cell(&fields("other"), 1).is_none());
        let again = kept.cell(&fields("2"), 3).unwrap();
        assert!(Arc::ptr_eq(&again, &cells[5]), "a set is known by its names");
    }
}
