//! From a sample to partitions: boundaries so that each gets about the same number of records,
//! and a partition of its own for a record that fills one alone, which then needs no sorting.
//! Pure.

use crate::order::{Depth, Order, Tie};
use crate::record::Format;
use holdfast_env::planted;

/// Bits that the first look at a record goes by: the table of their values stays in the cache.
const TABLE_BITS: u32 = 12;
/// Boundaries that are looked at one after another before the search is by halves.
const STEPS_MAX: usize = 8;

/// The boundaries, and which partition a record belongs to.
#[derive(Clone, Debug)]
pub struct Splitters {
    /// Bodies of the boundaries, rising; a boundary is the first record of what is above it.
    bodies: Vec<Vec<u8>>,
    prefixes: Vec<u128>,
    /// The upper halves of the prefixes.
    heads: Vec<u64>,
    /// By a few bits of a head: how many boundaries are certainly below it.
    table: Vec<u16>,
    /// Which bits these are: those of the distance to the first boundary, this far up.
    shift: u32,
    /// The partition of records between boundary i-1 and i.
    between: Vec<usize>,
    /// The partition of records equal to boundary i, where that has one of its own.
    equal: Vec<Option<usize>>,
    partitions: usize,
}

impl Splitters {
    /// Splits into about `wanted` partitions by a sample of whole records.
    pub fn new(format: Format, order: &Order, sample: &[Vec<u8>], wanted: usize) -> Splitters {
        let mut bodies: Vec<&[u8]> = sample.iter().map(|record| format.body(record)).collect();
        bodies.sort_by(|a, b| order.compare(a, b));
        let mut chosen: Vec<(&[u8], bool)> = Vec::new();
        for i in 1..wanted {
            let Some(&body) = bodies.get(i * bodies.len() / wanted) else { break };
            match chosen.last_mut() {
                // It spans a whole partition's share.
                Some((last, alone)) if order.compare(last, body).is_eq() => *alone = true,
                _ => chosen.push((body, false)),
            }
        }
        Splitters::of(chosen.into_iter().map(|(body, alone)| (body.to_vec(), alone)), order)
    }

    /// Of rising boundaries; `true` for those with a partition of their own.
    pub fn of(boundaries: impl Iterator<Item = (Vec<u8>, bool)>, order: &Order) -> Splitters {
        let (mut bodies, mut between, mut equal) = (Vec::new(), vec![0], Vec::new());
        let mut partitions = 1;
        for (body, alone) in boundaries {
            bodies.push(body);
            equal.push(alone.then_some(partitions));
            partitions += usize::from(alone);
            between.push(partitions);
            partitions += 1;
        }
        let prefixes: Vec<u128> =
            bodies.iter().map(|body| order.prefix(body, Depth::default())).collect();
        let heads: Vec<u64> = prefixes.iter().map(|prefix| (prefix >> 16) as u64).collect();
        let span = heads.last().map_or(0, |last| last - heads[0]);
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(TABLE_BITS);
        let base = heads.first().copied().unwrap_or(0);
        let certainly_below = |slot: u64| {
            let from = base.saturating_add(slot << shift);
            heads.partition_point(|head| *head < from) as u16
        };
        let table = (0..=1 << TABLE_BITS).map(certainly_below).collect();
        Splitters { bodies, prefixes, heads, table, shift, between, equal, partitions }
    }

    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Boundaries, for [`Splitters::of`].
    pub fn boundaries(&self) -> impl Iterator<Item = (&[u8], bool)> {
        self.bodies.iter().zip(&self.equal).map(|(body, equal)| (&body[..], equal.is_some()))
    }

    /// Whether all records of this partition are equal.
    pub fn is_alone(&self, partition: usize) -> bool {
        self.equal.contains(&Some(partition))
    }

    /// How far all records of this partition are equal.
    pub fn shared(&self, partition: usize, order: &Order) -> Depth {
        let above = self.between.partition_point(|first| *first <= partition);
        match (above.checked_sub(2), self.bodies.get(above - 1)) {
            (Some(low), Some(high)) => order.shared(&self.bodies[low], high),
            _ => Depth::default(),
        }
    }

    /// The partition of a record.
    #[inline]
    pub fn find(&self, order: &Order, body: &[u8]) -> usize {
        let prefix = order.prefix(body, Depth::default());
        let head = (prefix >> 16) as u64;
        let Some(first) = self.heads.first() else { return 0 };
        // How many boundaries have a smaller head: nearly always the table's answer or the next.
        let slot = (head.saturating_sub(*first) >> self.shift).min(1 << TABLE_BITS) as usize;
        let mut below = self.table[slot] as usize;
        let mut steps = 0;
        while below < self.heads.len() && self.heads[below] < head {
            below += 1;
            steps += 1;
            if steps == STEPS_MAX {
                below += self.heads[below..].partition_point(|other| *other < head);
                break;
            }
        }
        if below == self.heads.len() || self.heads[below] != head {
            return self.between[below];
        }
        self.find_near(order, body, prefix, below)
    }

    /// Goes on where heads are equal.
    fn find_near(&self, order: &Order, body: &[u8], prefix: u128, from: usize) -> usize {
        let mut at = from;
        while at < self.bodies.len() && self.prefixes[at] < prefix {
            at += 1;
        }
        if self.prefixes.get(at) != Some(&prefix) {
            return self.between[at];
        }
        let same = self.prefixes[at..].partition_point(|other| *other == prefix);
        let near = &self.bodies[at..at + same];
        let (index, equal) = if order.tie(prefix, Depth::default()) == Tie::Equal {
            (at, true)
        } else {
            match near.binary_search_by(|boundary| order.compare(boundary, body)) {
                Ok(i) => (at + i, true),
                Err(i) => (at + i, false),
            }
        };
        match equal {
            true if planted!("sort.boundary-falls-below") => self.between[index],
            true => self.equal[index].unwrap_or(self.between[index + 1]),
            false => self.between[index],
        }
    }
}

#[cfg(test)]
mod tests;
