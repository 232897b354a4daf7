//! Takes from a slab what one rider wants: whole columns, by reference, wherever it can.

use super::header::About;
use super::record::{Pair, Walk};
use super::{Column, Indices, Needs, Range, Received, Slab, Wanted, What};
use holdfast_env::planted;
use std::sync::Arc;

/// The columns of `slab` that `wanted` asks for, under a new header. Items are looked at only where
/// the border of the range, or the indices, cut through a group of them. Panics if the slab
/// does not [serve](Slab::serves) it: what is missing would look like what is not there.
pub fn select(slab: &Slab, wanted: &Wanted) -> Slab {
    assert!(slab.serves(wanted), "a rider is given a slab that was encoded for others");
    let header = slab.header;
    let run = Range::new(u64::from(header.first_hash), u64::from(header.last_hash) + 1);
    let mut columns = Vec::with_capacity(slab.columns.len());
    let mut left_out = false;
    for group in slab.columns.chunk_by(|one, next| one.group() == next.group()) {
        match fit(run, group[0].indices, wanted) {
            Fit::None => left_out = true,
            Fit::Whole => {
                let asked_for = |column: &&Column| {
                    let About { collection, group, what, .. } = column.about;
                    wanted.column(collection, group, what)
                };
                columns.extend(group.iter().filter(asked_for).cloned());
            }
            Fit::Cut => {
                left_out = true;
                columns.extend(cut_by(slab, &pair_of(group), wanted));
            }
        }
    }
    // A selection that left nothing out serves whomever the slab serves.
    let kept = !left_out && columns.len() == slab.columns.len();
    let needs = if kept { slab.needs.clone() } else { Arc::new(Needs::nothing()) };
    Slab { header, needs, columns }
}

/// How much of a group's items somebody wants, by range and indices.
enum Fit {
    None,
    Whole,
    /// Some of them, it may be.
    Cut,
}

fn fit(run: Range, indices: Indices, wanted: &Wanted) -> Fit {
    let from = wanted.indices.start;
    let below = match planted!("slab.indices-cut-nothing") {
        true => u64::MAX,
        false => wanted.indices.end,
    };
    if !wanted.range.overlaps(run) || indices.highest < from || below <= indices.lowest {
        return Fit::None;
    }
    let is_whole = wanted.range.low() <= run.low() && run.high() <= wanted.range.high();
    match is_whole && from <= indices.lowest && indices.highest < below {
        true => Fit::Whole,
        false => Fit::Cut,
    }
}

fn pair_of(group: &[Column]) -> Pair<'_> {
    let About { collection, group: of, items, .. } = group[0].about;
    let (keys, values) = (group[0].bytes(), group.get(1).map(Column::bytes));
    Pair { collection, group: of, items, keys, values }
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
    let (mut items, mut indices) = (0, Indices::NONE);
    let mut walk = Walk::new(&slab.header, *pair);
    while let Some(step) = walk.step().expect("a slab's own columns are right") {
        if keep(&step.received) {
            items += 1;
            indices.add(step.received.index);
            made[0].extend_from_slice(step.key_record);
            if asked_for[1] {
                made[1].extend_from_slice(step.value_record);
            }
        }
    }
    let column = |(what, mut bytes): (What, Vec<u8>)| {
        bytes.shrink_to_fit();
        Column::new(About::new(collection, group, what, items, &bytes), indices, bytes)
    };
    let columns = [What::Keys, What::Values].into_iter().zip(made);
    columns.filter(|(_, bytes)| !bytes.is_empty()).map(column).collect()
}
