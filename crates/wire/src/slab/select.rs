//! Takes from a slab what one rider wants: whole columns, by reference, wherever it can.

use super::header::About;
use super::record::{Pair, Walk};
use super::{Column, Needs, Range, Received, Slab, Wanted, What};
use holdfast_env::planted;
use std::sync::Arc;

/// The columns of `slab` that `wanted` asks for, under a new header. Items are looked at only where
/// the border of the range, or the indices, may cut through them. Panics if the slab
/// does not [serve](Slab::serves) it: what is missing would look like what is not there.
pub fn select(slab: &Slab, wanted: &Wanted) -> Slab {
    assert!(slab.serves(wanted), "a rider is given a slab that was encoded for others");
    let header = slab.header;
    let (first, last) = (header.first_hash, header.last_hash);
    let every_index = wanted.indices.start == 0
        && (wanted.indices.end > header.index || planted!("slab.indices-cut-nothing"));
    if wanted.range.covers(first, last) && every_index {
        let asked_for = slab.columns.iter().filter(|column| {
            let About { collection, group, what, .. } = column.about;
            wanted.column(collection, group, what)
        });
        let columns: Vec<Column> = asked_for.cloned().collect();
        // A selection that left nothing out serves whomever the slab serves.
        let kept = columns.len() == slab.columns.len();
        let needs = if kept { slab.needs.clone() } else { Arc::new(Needs::nothing()) };
        return Slab { header, needs, columns };
    }
    let run = Range::new(u64::from(first), u64::from(last) + 1);
    let columns = match wanted.range.overlaps(run) {
        true => slab.pairs().iter().flat_map(|pair| cut_by(slab, pair, wanted)).collect(),
        false => Vec::new(),
    };
    Slab { header, needs: Arc::new(Needs::nothing()), columns }
}

/// A slab without the items that `keep` refuses.
pub fn retain(slab: &Slab, keep: impl Fn(&Received<'_>) -> bool) -> Slab {
    let pairs = slab.pairs();
    let of_pair = |pair: &Pair<'_>| cut(slab, pair, [true, pair.values.is_some()], &keep);
    let columns = pairs.iter().flat_map(of_pair).collect();
    Slab { header: slab.header, needs: slab.needs.clone(), columns }
}

fn cut_by(slab: &Slab, pair: &Pair<'_>, wanted: &Wanted) -> Vec<Column> {
    let Pair { collection, group, .. } = *pair;
    let asked_for = [What::Keys, What::Values].map(|what| wanted.column(collection, group, what));
    cut(slab, pair, asked_for, |received| {
        wanted.range.contains(received.hash) && wanted.indices.contains(&received.index)
    })
}

/// The items of one group, one by one, in columns of their own.
fn cut(
    slab: &Slab,
    pair: &Pair<'_>,
    asked_for: [bool; 2],
    keep: impl Fn(&Received<'_>) -> bool,
) -> Vec<Column> {
    let Pair { collection, group, .. } = *pair;
    if !asked_for[0] {
        return Vec::new();
    }
    let values = if asked_for[1] { pair.values } else { None };
    // Nothing grows while it is copied: where indices cut a slab, most of it may be left.
    let mut made = [pair.keys.len(), values.map_or(0, <[u8]>::len)].map(Vec::with_capacity);
    let mut items = 0;
    let mut walk = Walk::new(&slab.header, *pair);
    while let Some(step) = walk.step().expect("a slab's own columns are right") {
        if keep(&step.received) {
            items += 1;
            made[0].extend_from_slice(step.key_record);
            if asked_for[1] {
                made[1].extend_from_slice(step.value_record);
            }
        }
    }
    let column = |(what, mut bytes): (What, Vec<u8>)| {
        bytes.shrink_to_fit();
        Column::new(About::new(collection, group, what, items, &bytes), bytes)
    };
    let columns = [What::Keys, What::Values].into_iter().zip(made);
    columns.filter(|(_, bytes)| !bytes.is_empty()).map(column).collect()
}
