//! What a fold remembers of its running digest, for nodes to compare: the digest in front of every
//! aligned index, of the last few of these. Every fold of a topic passes the same borders whatever
//! it booted from and however far it is. Compares nothing; no log, thread or clock.

use super::{Fold, View};
use holdfast_base::ids::Index;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::VecDeque;

/// Entries from one border to the next.
static EVERY: Knob = Knob::new("log.digest-every", 1024, &[1, 2, 7]);
/// Borders that are remembered: a node that is busy is asked seconds after another one.
static KEPT: Knob = Knob::new("log.digests-kept", 64, &[2, 5]);

#[derive(Default)]
pub struct Digests(VecDeque<(Index, u64)>);

impl Digests {
    /// The entry at `next` is about to be applied to a view with this digest behind `applied`. The
    /// digest at a border is that of all entries up to it, whether or not there is one at it.
    pub fn pass(&mut self, applied: Index, digest: u64, next: Index) {
        let border = Index((next.0 - 1) / EVERY.get() * EVERY.get());
        if border.0 == 0 || border < applied {
            return;
        }
        let border = if planted!("log.digest-of-another-place") { applied } else { border };
        EVERY.cross();
        self.0.push_back((border, digest));
        if self.0.len() > KEPT.size() {
            KEPT.cross();
            self.0.pop_front();
        }
    }
}

impl<V: View> Fold<V> {
    /// The running digest at the last aligned indices, and where the fold is now: of two folds of
    /// one topic, those at equal indices are equal, or one of them has applied an entry otherwise.
    pub fn digests(&self) -> Vec<(Index, u64)> {
        let machine = self.shared.read();
        let mut all: Vec<(Index, u64)> = machine.digests.0.iter().copied().collect();
        if machine.applied.0 > 0 && all.last().is_none_or(|(last, _)| *last < machine.applied) {
            all.push((machine.applied, machine.digest));
        }
        all
    }

    /// From here on one command, the next, is refused by this view, whatever others make of it: what
    /// a fault of memory or another build comes to, for tests of what notices it.
    #[doc(hidden)]
    pub fn refuse_next(&self) {
        self.shared.write().refuse_next = cfg!(debug_assertions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::trial::Trial;

    /// Folds entries at these indices, from `start` on, whose digest is the index before.
    fn passed(start: u64, indices: &[u64]) -> Vec<(u64, u64)> {
        let mut digests = Digests::default();
        let mut applied = start;
        for next in indices {
            digests.pass(Index(applied), applied, Index(*next));
            applied = *next;
        }
        digests.0.into_iter().map(|(index, digest)| (index.0, digest)).collect()
    }

    #[test]
    fn borders_are_the_same_whatever_there_is_at_them_and_wherever_a_fold_began() {
        let _trial = Trial::new().with(&EVERY, 10).with(&KEPT, 3).enter();
        assert_eq!(passed(0, &[1, 10]), []);
        // The entry at the border itself belongs to it.
        assert_eq!(passed(0, &[9, 10, 11]), [(10, 10)]);
        assert_eq!(passed(0, &[9, 11, 12]), [(10, 9)]);
        // Nothing at several borders: the last of them says as much.
        assert_eq!(passed(0, &[5, 37, 38, 41]), [(30, 5), (40, 38)]);
        assert_eq!(passed(38, &[41]), [(40, 38)]);
        // A snapshot that ends at a border, and one behind it.
        assert_eq!(passed(40, &[41, 42]), [(40, 40)]);
        assert_eq!(passed(42, &[43]), []);
        assert_eq!(passed(0, &[10, 20, 30, 40, 50, 51]), [(30, 30), (40, 40), (50, 50)]);
    }
}
