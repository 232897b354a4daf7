//! The hash table from (parent, name) to node: open addressing over 8-byte slots, each a 32-bit
//! tag and a 32-bit node. Cut into shards that grow on their own, so that no insertion ever moves
//! more than a 256th of the entries. It never touches a node itself: the caller compares.

use super::prefetch::prefetch;
use holdfast_env::planted;

const SHARD_BITS: u32 = 8;
/// Slots of a shard's first allocation.
const SLOTS_MIN: usize = 16;

/// A place in a shard is `tag * slots >> 32`, so entries lie in order of their tags, any number of
/// slots will do, and growing needs no node. Slot 0 is empty: node 0 does not exist.
#[derive(Default, Clone)]
struct Shard {
    slots: Vec<u64>,
    used: usize,
}

pub(super) struct Table {
    shards: Vec<Shard>,
}

/// The hash of a name in a directory. Constant for all time only by accident: nothing that is
/// stored or decided depends on it.
#[inline]
pub(super) fn hash(parent: u32, name: &[u8]) -> u64 {
    const K0: u64 = 0xa076_1d64_78bd_642f;
    const K1: u64 = 0xe703_7ed1_a0b4_28db;
    let mut state = (parent as u64 ^ K0) ^ ((name.len() as u64) << 40);
    let mut rest = name;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        state = fold(state ^ u64::from_le_bytes(*word), K1);
        rest = tail;
    }
    let mut word = 0u64;
    for &byte in rest {
        word = word << 8 | byte as u64;
    }
    fold(fold(state ^ word, K1), K0)
}

/// Both halves of a 128-bit product (wyhash's mixer).
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn home(tag: u32, slots: usize) -> usize {
    ((tag as u64 * slots as u64) >> 32) as usize
}

impl Table {
    pub(super) fn new() -> Table {
        Table { shards: vec![Shard::default(); 1 << SHARD_BITS] }
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> (64 - SHARD_BITS)) as usize]
    }

    /// Asks the processor for the slots where `hash` would be.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        let slots = &self.shard(hash).slots;
        let home = home(hash as u32, slots.len());
        // A run that starts at a line's end goes on in the next one.
        slots.get(home).into_iter().chain(slots.get(home + 2)).for_each(prefetch);
    }

    /// The first node for which `is_it` holds among those whose tag is that of `hash`.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let slots = &self.shard(hash).slots;
        let tag = hash as u32;
        let mut at = home(tag, slots.len());
        loop {
            let slot = *slots.get(at)?;
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == tag && is_it(slot as u32) {
                return Some(slot as u32);
            }
            at = if at + 1 == slots.len() { 0 } else { at + 1 };
        }
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.used).sum()
    }

    /// Adds a node that is not in the table.
    pub(super) fn insert(&mut self, hash: u64, node: u32) {
        debug_assert_ne!(node, 0);
        let shard = &mut self.shards[(hash >> (64 - SHARD_BITS)) as usize];
        // At most 3/4 full, and growing by a quarter: 10.7 to 13.3 bytes an entry, and runs so
        // short that most searches end in the cache line where they start.
        if (shard.used + 1) * 4 > shard.slots.len() * 3 {
            let len = (shard.slots.len() + shard.slots.len() / 4).max(SLOTS_MIN);
            let old = std::mem::replace(&mut shard.slots, vec![0; len]);
            old.into_iter()
                .filter(|slot| *slot != 0)
                .for_each(|slot| place(&mut shard.slots, slot));
        }
        place(&mut shard.slots, (hash as u32 as u64) << 32 | node as u64);
        shard.used += 1;
    }

    /// Takes a node out; false when it is not there.
    pub(super) fn remove(&mut self, hash: u64, node: u32) -> bool {
        let shard = &mut self.shards[(hash >> (64 - SHARD_BITS)) as usize];
        let slots = &mut shard.slots;
        if slots.is_empty() {
            return false;
        }
        let wanted = (hash as u32 as u64) << 32 | node as u64;
        let mut hole = home(hash as u32, slots.len());
        while slots[hole] != wanted {
            if slots[hole] == 0 {
                return false;
            }
            hole = if hole + 1 == slots.len() { 0 } else { hole + 1 };
        }
        shard.used -= 1;
        // Later entries of the run move up where that does not put them before their home, so
        // that no tombstones gather.
        let mut at = hole;
        loop {
            at = if at + 1 == slots.len() { 0 } else { at + 1 };
            let slot = slots[at];
            if slot == 0 {
                break;
            }
            let home = home((slot >> 32) as u32, slots.len());
            if planted!("cluster.hole-not-filled") {
                continue;
            }
            let reaches =
                if hole <= at { home <= hole || home > at } else { home <= hole && home > at };
            if reaches {
                slots[hole] = slot;
                hole = at;
            }
        }
        slots[hole] = 0;
        true
    }
}

fn place(slots: &mut [u64], slot: u64) {
    let mut at = home((slot >> 32) as u32, slots.len());
    while slots[at] != 0 {
        at = if at + 1 == slots.len() { 0 } else { at + 1 };
    }
    slots[at] = slot;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn entries_stay_findable_through_growth_and_removal() {
        let mut table = Table::new();
        let mut model = BTreeMap::new();
        let mut x = 7u64;
        for step in 1..60_000u32 {
            x = fold(x ^ step as u64, 0x9e37_79b9_7f4a_7c15);
            // Few distinct homes, so that runs are long and wrap around.
            let key = x % 600;
            let h = fold(key.wrapping_mul(0x1234_5678_9abc_def1), 77) | 0xffff_8000_f000_0000;
            match model.remove(&key) {
                Some(node) => assert!(table.remove(h, node)),
                None => {
                    table.insert(h, step);
                    model.insert(key, step);
                }
            }
            let probe = (x >> 32) % 600;
            let h = fold(probe.wrapping_mul(0x1234_5678_9abc_def1), 77) | 0xffff_8000_f000_0000;
            let wanted = model.get(&probe).copied();
            assert_eq!(table.find(h, |node| Some(node) == wanted), wanted);
        }
        assert!(!table.remove(hash(9, b"never there"), 1));
    }
}
