//! Sums of items, by which two views are compared without sending either: equal sums are equal items,
//! whoever holds them, in whatever order, and divided into whatever partitions.

use super::record::Walk;
use super::{Item, Reader, SUB_RANGES, Slab, sub_range};
use holdfast_base::Error;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader as Bytes};
use holdfast_base::random::mix;
use holdfast_env::planted;
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// 128 bits of one item. Some 14 ns for a key of 20 bytes and a value of 150; no proof against
/// somebody who looks for items with equal ones.
fn item_hash(item: &Item<'_>) -> u128 {
    let index = if planted!("slab.sum-without-indices") { 0 } else { item.index };
    let key = xxh3_128_with_seed(item.key, mix(index) ^ u64::from(item.collection));
    match item.value {
        // The seed ties the value to its key: two keys that changed values have another sum.
        Some(value) => {
            let seed = if planted!("slab.sum-of-loose-values") { 0 } else { key as u64 };
            key.wrapping_add(xxh3_128_with_seed(value, seed))
        }
        None => key,
    }
}

/// By sub-range, the sums modulo 2^128 of the hashes of the newest items, and of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    newest: Vec<u128>,
    all: Vec<u128>,
}

impl Default for Sums {
    /// Of no items.
    fn default() -> Sums {
        Sums { newest: vec![0; SUB_RANGES], all: vec![0; SUB_RANGES] }
    }
}

/// Those that are not 0, in order: how many (u32), then of each its sub-range (u8), the sum of the newest
/// and that of all (u128 each).
impl Encode for Sums {
    fn encode(&self, out: &mut Vec<u8>) {
        let sums = (0u8..=255).zip(self.newest.iter().zip(&self.all));
        let sums = sums.filter(|(_, sums)| *sums != (&0, &0));
        (sums.clone().count() as u32).encode(out);
        for (at, (newest, all)) in sums {
            at.encode(out);
            out.extend_from_slice(&newest.to_le_bytes());
            out.extend_from_slice(&all.to_le_bytes());
        }
    }
}

impl Decode for Sums {
    fn decode(reader: &mut Bytes<'_>) -> Result<Sums, DecodeError> {
        let mut sums = Sums::default();
        let mut next = 0;
        for _ in 0..u32::decode(reader)? {
            let at = usize::from(u8::decode(reader)?);
            if at < next {
                return Err(DecodeError::BadValue("sub-range of a sum"));
            }
            next = at + 1;
            sums.newest[at] = u128::from_le_bytes(reader.array()?);
            sums.all[at] = u128::from_le_bytes(reader.array()?);
        }
        Ok(sums)
    }
}

/// Sub-ranges in which two holders of items differ, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differing {
    /// In the newest items.
    pub newest: Vec<u8>,
    /// In earlier versions or deletions alone.
    pub earlier: Vec<u8>,
}

impl Differing {
    /// In whatever.
    pub fn all(self) -> BTreeSet<u8> {
        self.newest.into_iter().chain(self.earlier).collect()
    }
}

/// Sub-ranges in their order, for people: by the first byte of the hashes in them, `07, 1a-1c`.
pub fn shown<'a>(sub_ranges: impl IntoIterator<Item = &'a u8>) -> String {
    let mut runs: Vec<(u8, u8)> = Vec::new();
    for s in sub_ranges {
        match runs.last_mut() {
            Some((_, last)) if u16::from(*last) + 1 >= u16::from(*s) => *last = *s,
            _ => runs.push((*s, *s)),
        }
    }
    let run = |(first, last): &(u8, u8)| match first == last {
        true => format!("{first:02x}"),
        false => format!("{first:02x}-{last:02x}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

impl Sums {
    pub fn add(&mut self, item: &Item<'_>, newest: bool) {
        let (at, hash) = (usize::from(sub_range(item.hash)), item_hash(item));
        self.all[at] = self.all[at].wrapping_add(hash);
        if newest {
            self.newest[at] = self.newest[at].wrapping_add(hash);
        }
    }

    /// Adds what a slab brings. Who has not asked for older versions has no sum of all items.
    /// `Invalid` where values were not sent: keys alone have no sums.
    pub fn add_slab(&mut self, reader: &Reader<'_>) -> holdfast_base::Result<()> {
        if reader.lacks_values() {
            return Err(Error::invalid(
                "sum up a slab: it has keys without values: ask for values, too",
            ));
        }
        for received in reader.items() {
            self.add(&received.item().expect("values were sent"), received.newest);
        }
        Ok(())
    }

    /// Adds the items of a slab that was made here, with all values.
    pub fn add_made(&mut self, slab: &Slab) {
        for pair in slab.pairs() {
            let mut walk = Walk::new(&slab.header, pair);
            while let Some(step) = walk.step().expect("a slab's own columns are right") {
                let received = step.received;
                self.add(&received.item().expect("all values were encoded"), received.newest);
            }
        }
    }

    /// Adds the sums of other items: of another partition, or of another slab.
    pub fn add_sums(&mut self, other: &Sums) {
        let sums = [(&mut self.newest, &other.newest), (&mut self.all, &other.all)];
        for (sums, others) in sums {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = sum.wrapping_add(*other));
        }
    }

    /// Where two holders of what should be the same items do not agree.
    pub fn differing(&self, other: &Sums) -> Differing {
        let mut found = Differing::default();
        for s in 0..=u8::MAX {
            let at = usize::from(s);
            if self.newest[at] != other.newest[at] {
                found.newest.push(s);
            } else if self.all[at] != other.all[at] {
                found.earlier.push(s);
            }
        }
        found
    }

    /// Of the newest items, one a sub-range.
    pub fn newest(&self) -> &[u128] {
        &self.newest
    }

    /// Of all items, one a sub-range.
    pub fn all(&self) -> &[u128] {
        &self.all
    }
}
