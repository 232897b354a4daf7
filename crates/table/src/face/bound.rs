//! What all tables may take in memory together.

use super::TableFace;
use super::cut::Cut;
use crate::region::usual_stream_bytes;
use crate::tablets::OpenTablet;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use std::sync::Arc;

/// What an entry takes beside a record's key and value, more or less.
const ENTRY_BYTES: u64 = 256;

/// What all tablets together had when they were counted last, and what was written since. There are hundreds of them,
/// so not each write counts.
#[derive(Default)]
pub(super) struct Counted {
    held: u64,
    /// What regions that are away have yet to get.
    held_back: u64,
    written: u64,
}

impl Counted {
    fn of(tablets: &[Arc<OpenTablet>]) -> Counted {
        let mut counted = Counted::default();
        let usual = usual_stream_bytes();
        for tablet in tablets {
            tablet.fold().read_last(|view| {
                view.look(|tablet| {
                    counted.held += tablet.bytes();
                    counted.held_back += tablet.held_back_bytes(usual);
                })
            });
        }
        counted
    }

    /// Whether so much more is far below the bound, whatever it replaces. Then it counts as written.
    fn is_far_below(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let room = bytes_max.saturating_sub(self.held.max(self.held_back));
        self.written += bytes;
        self.written < room / 8 || planted!("table.counted-once")
    }
}

impl TableFace {
    /// Time has passed, in which other regions' records may have come: counted anew by the next write.
    pub(super) fn count_anew(&self) {
        *self.counted.held() = None;
    }

    /// A table is in memory: what it may take there is bounded, so that it takes nothing from others.
    /// Of what is written, keys and how long the values are; none for a deletion.
    pub(super) fn check_bytes(&self, rows: &[(&[u8], Option<usize>)], tablets: &Cut) -> Result<()> {
        let bytes_of = |(key, value): &(&[u8], Option<usize>)| {
            ENTRY_BYTES + (key.len() + value.unwrap_or(0)) as u64
        };
        let bytes = rows.iter().map(bytes_of).sum();
        let mut counted = self.counted.held();
        if counted.as_mut().is_some_and(|counted| counted.is_far_below(bytes, self.bytes_max)) {
            return Ok(());
        }
        let now = Counted::of(&self.all());
        let (held, held_back) = (now.held, now.held_back);
        *counted = Some(Counted { written: bytes, ..now });
        drop(counted);
        if planted!("table.no-bound-of-bytes") {
            return Ok(());
        }
        // Who writes less than there was makes room.
        let grows = |(key, value): &(&[u8], Option<usize>)| {
            let Some(value) = *value else { return false };
            let before = tablets.of_key(key).fold().read_last(|view| {
                view.look(|tablet| tablet.record(key)?.value.as_ref().map(|value| value.len()))
            });
            before.flatten().is_none_or(|before| before < value)
        };
        if held >= self.bytes_max && rows.iter().any(grows) {
            return Err(Error::full(format!(
                "the tables of this node have {held} bytes of keys and values, and may have {}: delete \
                 records, or give them more (`tables_memory`)",
                self.bytes_max
            )));
        }
        // While a region is away, what it has yet to get stays in memory, however often a record is written: that is
        // bounded, too, or the node would end for want of memory, and again at each start.
        let deletes = rows.iter().all(|(_, value)| value.is_none());
        if held_back < self.bytes_max || deletes || planted!("table.no-bound-of-what-waits") {
            return Ok(());
        }
        Err(Error::full(format!(
            "another region has yet to get {held_back} bytes of what was written, which wait in memory, up to {}: see \
             which one is away (`holdfast table describe`) and bring it back, or give tables more (`tables_memory`)",
            self.bytes_max
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;

    #[test]
    fn what_is_far_below_the_bound_is_below_it_once_all_of_it_is_written() {
        let mut rng = Random::new(7);
        let (mut passed, mut refused) = (0, 0);
        for bound in [0, 1, 9, 100, 10_000] {
            for _ in 0..200 {
                let (held, held_back) = (rng.below(bound + 2), rng.below(bound + 2));
                let mut counted = Counted { held, held_back, written: 0 };
                let mut most = held.max(held_back);
                for _ in 0..50 {
                    let bytes = 1 + rng.below(bound / 400 + 2);
                    if counted.is_far_below(bytes, bound) {
                        (most, passed) = (most + bytes, passed + 1);
                        assert!(most < bound, "{held} {held_back} {bound}");
                    } else {
                        refused += 1;
                    }
                }
            }
        }
        assert!(passed > 1000 && refused > 1000, "{passed} {refused}");
    }
}
