//! The choices of one power cut, drawn from its seed.

use holdfast_env::{Rng, SeededRng};

/// Decides what of the unsynced survives.
pub(super) struct Cut {
    rng: SeededRng,
    /// Chance of survival in eighths. Drawn for each cut, so that the extremes (all kept, all
    /// lost) occur often, however many sectors are dirty.
    kept_eighths: u64,
    pub tears: bool,
}

impl Cut {
    pub fn seeded(seed: u64, tears: bool) -> Cut {
        let rng = SeededRng::new(seed);
        let kept_eighths = [0, 1, 4, 7, 8][(rng.next_u64() % 5) as usize];
        Cut { rng, kept_eighths, tears }
    }

    /// Nothing that was not synced survives.
    pub fn worst() -> Cut {
        Cut { rng: SeededRng::new(0), kept_eighths: 0, tears: false }
    }

    pub fn keeps(&self) -> bool {
        self.rng.next_u64() % 8 < self.kept_eighths
    }

    /// A number below `end`.
    pub fn below(&self, end: usize) -> usize {
        (self.rng.next_u64() % end as u64) as usize
    }

    /// One of `newer`, most often the newest, or nothing: the old value stays.
    pub fn pick<'a, T>(&self, newer: &'a [T]) -> Option<&'a T> {
        if !self.keeps() {
            return None;
        }
        if self.kept_eighths == 8 || self.below(2) == 0 {
            return newer.last();
        }
        newer.get(self.below(newer.len().max(1)))
    }
}
