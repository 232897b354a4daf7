//! Which keys changed most, of a stream of any length, in bounded memory: space-saving counters (Metwally, Agrawal and
//! El Abbadi, ICDT 2005). A key that is new takes the place of the one with the least count, and goes on from that: so
//! no count is too low, and each says by how much it may be too high. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Keys, or patterns, that are counted at once: one that was more than a thousandth of all is among them.
pub const COUNTED_MAX: usize = 1000;

/// How often something came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    pub name: Vec<u8>,
    /// Never less than it came.
    pub count: u64,
    /// It came at least `count - over` times.
    pub over: u64,
}

/// Counts what comes.
#[derive(Clone, Debug)]
pub struct Heat {
    counted_max: usize,
    /// By name: count, and by how much that may be too high.
    counts: BTreeMap<Vec<u8>, (u64, u64)>,
    /// The same, the least first.
    order: BTreeSet<(u64, Vec<u8>)>,
}

impl Default for Heat {
    fn default() -> Heat {
        Heat::new(COUNTED_MAX)
    }
}

impl Heat {
    /// Of so many names at once, at least one.
    pub fn new(counted_max: usize) -> Heat {
        assert!(counted_max > 0, "something is counted");
        Heat { counted_max, counts: BTreeMap::new(), order: BTreeSet::new() }
    }

    pub fn count(&mut self, name: &[u8]) {
        let (mut count, mut over) = (0, 0);
        if let Some(known) = self.counts.get(name) {
            (count, over) = *known;
            self.order.remove(&(count, name.to_vec()));
        } else if self.counts.len() == self.counted_max
            && let Some((least, other)) = self.order.pop_first()
        {
            self.counts.remove(&other);
            (count, over) = (least, least);
        }
        self.counts.insert(name.to_vec(), (count + 1, over));
        self.order.insert((count + 1, name.to_vec()));
    }

    /// The names that came most, the first of them first.
    pub fn hottest(&self, names_max: usize) -> Vec<Hot> {
        let hottest = self.order.iter().rev().take(names_max);
        let hot = |(count, name): &(u64, Vec<u8>)| Hot {
            name: name.clone(),
            count: *count,
            over: self.counts[name].1,
        };
        hottest.map(hot).collect()
    }
}

/// What keys of one kind have in common: each run of digits is one `#`.
pub fn pattern(key: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(key.len());
    let mut is_number = false;
    for byte in key {
        if !byte.is_ascii_digit() {
            pattern.push(*byte);
        } else if !is_number {
            pattern.push(b'#');
        }
        is_number = byte.is_ascii_digit();
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::{Rng, SeededRng};

    /// Against all that came, counted one by one: nothing hot is missing, and no count lies.
    #[test]
    fn what_came_often_is_counted_however_much_else_came() {
        for seed in 0..200 {
            let rng = SeededRng::new(seed);
            let counted_max = 1 + (rng.next_u64() % 20) as usize;
            let (mut heat, mut all) = (Heat::new(counted_max), BTreeMap::<Vec<u8>, u64>::new());
            let total = rng.next_u64() % 2000;
            for _ in 0..total {
                // Few of half of them, and many of the rest.
                let of = if rng.next_u64().is_multiple_of(2) { 5 } else { 500 };
                let name = (rng.next_u64() % of).to_string().into_bytes();
                heat.count(&name);
                *all.entry(name).or_default() += 1;
            }
            let hottest = heat.hottest(usize::MAX);
            assert!(
                hottest.len() <= counted_max && hottest.is_sorted_by(|a, b| a.count >= b.count)
            );
            for Hot { name, count, over } in &hottest {
                let came = all[name];
                assert!(
                    came <= *count && count - over <= came,
                    "seed {seed}: {came}, {count}, {over}"
                );
            }
            for (name, came) in all.iter().filter(|(_, came)| **came > total / counted_max as u64) {
                assert!(hottest.iter().any(|hot| hot.name == *name), "seed {seed}: {came} times");
            }
        }
    }

    #[test]
    fn numbers_of_keys_are_their_pattern_s_holes() {
        for (key, of) in [("item:17", "item:#"), ("7:a77b", "#:a#b"), ("", ""), ("é:1", "é:#")] {
            assert_eq!(String::from_utf8(pattern(key.as_bytes())).unwrap(), of);
        }
    }
}
