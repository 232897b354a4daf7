//! What the horizon has passed, removed from a disk view's rows: versions that are older than a key's
//! newest one at the horizon, and deletions that are the newest there. Nobody sees them any more
//! ([`super::Pass`]), so removing them changes nothing but the room that they take. Says of a moment
//! what goes next; when that is done is the driver's to decide. Where it has come to lies in the rows,
//! written with what it removes: so a sweep goes on after a crash, and one of removed rows again does
//! nothing.

use super::disk::{Reader, parse};
use super::rows::{self, SWEEP};
use crate::damaged;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Result, codec_struct};
use holdfast_env::planted;
use holdfast_env::rows::{Batch, Moment, Rows};
use holdfast_wire::slab::Range;
use std::sync::Arc;

/// Rows that one batch looks at, at the least: a version goes once the row behind it was seen.
pub const SWEEP_ROWS_MIN: usize = 2;

/// How far a view's rows are swept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Swept {
    /// Nothing lies in the rows that this horizon has passed.
    below: Index,
    /// The horizon of the sweep that is under way, or of the last one.
    horizon: Index,
    /// The row that it goes on from; nothing where none is under way.
    from: Vec<u8>,
    /// Versions that it has removed.
    removed: u64,
}
codec_struct!(Swept { below, horizon, from, removed });

/// What one batch has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepStep {
    /// Where the horizon stood when the sweep began.
    pub horizon: Index,
    /// Versions that the sweep has removed so far.
    pub removed: u64,
    /// It has come to the end of the rows: nothing is left that this horizon has passed.
    pub is_over: bool,
}

/// Removes from a view's rows what the horizon has passed, of the next `rows_max` rows that there are,
/// in one batch. None where there is nothing to sweep.
///
/// The rows may be written to meanwhile: who applies adds versions above the horizon alone.
pub fn sweep(rows: &dyn Rows, rows_max: usize) -> Result<Option<SweepStep>> {
    assert!(rows_max >= SWEEP_ROWS_MIN, "a sweep goes on");
    // It is kept until the batch is written: rows that lose their last batches are opened again, which
    // nobody does while somebody has a moment. What follows from a lost batch must not be removed.
    let moment = rows.moment()?;
    let Some((batch, step)) = next(&moment, rows_max)? else { return Ok(None) };
    rows.write(batch)?;
    Ok(Some(step))
}

fn next(moment: &Arc<dyn Moment>, rows_max: usize) -> Result<Option<(Batch, SweepStep)>> {
    let horizon = Reader::new(moment.clone())?.catalog().horizon();
    let mut swept = match moment.get(SWEEP)? {
        Some(bytes) => Swept::from_bytes(&bytes).map_err(|_| damaged("the sweep"))?,
        None => Swept::default(),
    };
    if swept.from.is_empty() {
        if horizon <= swept.below {
            return Ok(None);
        }
        let (first, _) = rows::bounds(Range::ALL);
        swept = Swept { horizon, from: first, removed: 0, ..swept };
    }
    let mut batch = Batch::default();
    let until = rows::bounds(Range::ALL).1;
    let is_over = !pass(&**moment, &mut swept, &until, rows_max, &mut batch)?;
    if is_over {
        swept.below = swept.horizon;
        swept.from = Vec::new();
    }
    batch.put(SWEEP.to_vec(), swept.to_bytes());
    let Swept { horizon, removed, .. } = swept;
    Ok(Some((batch, SweepStep { horizon, removed, is_over })))
}

/// The newest version so far at the horizon, of the key that is being passed.
struct Newest {
    row: Vec<u8>,
    is_deletion: bool,
}

/// Goes on with a sweep, from the version that was undecided last. False at the end of the rows.
fn pass(
    moment: &dyn Moment,
    swept: &mut Swept,
    until: &[u8],
    rows_max: usize,
    batch: &mut Batch,
) -> Result<bool> {
    let mut newest: Option<Newest> = None;
    let mut seen = 0;
    let goes_on = moment.cursor(&swept.from, until)?.advance(&mut |row, value| {
        seen += 1;
        let item = parse(row, value)?;
        let is_behind = item.index > swept.horizon;
        if let Some(before) = newest.take() {
            let is_of_key = rows::same_key(&before.row, row);
            let goes = match is_of_key && !is_behind {
                true => true,
                false => before.is_deletion || planted!("items.sweep-takes-the-newest"),
            };
            if goes {
                batch.remove(before.row);
                swept.removed += 1;
            }
        }
        if !is_behind {
            newest = Some(Newest { row: row.to_vec(), is_deletion: item.value.is_none() });
        }
        if seen < rows_max {
            return Ok(true);
        }
        // What is undecided is looked at again.
        swept.from = row.to_vec();
        Ok(false)
    })?;
    if !goes_on && let Some(last) = newest.filter(|last| last.is_deletion) {
        batch.remove(last.row);
        swept.removed += 1;
    }
    Ok(goes_on)
}
