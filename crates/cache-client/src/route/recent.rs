//! Which keys were changed a moment ago: what a warm pool says of them may be old, and must not
//! be added to a cold one. Shared by all threads, without locks; a place stands for many keys, so
//! that it errs only towards more misses.

use holdfast_base::checksum::fnv1a;
use std::sync::atomic::{AtomicU64, Ordering};

const PLACES: usize = 1 << 16;
/// How long a change is remembered: longer than an answer may be on its way.
const HOLD_OFF_NS: u64 = 2_000_000_000;

pub struct Recent {
    places: Box<[AtomicU64]>,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Recent {
    fn place(&self, key: &[u8]) -> &AtomicU64 {
        let hash = fnv1a(key.iter().copied());
        &self.places[(hash ^ hash >> 32) as usize % PLACES]
    }

    pub fn changed(&self, key: &[u8], now_ns: u64) {
        self.place(key).fetch_max(now_ns.max(1), Ordering::AcqRel);
    }

    pub fn is_recent(&self, key: &[u8], now_ns: u64) -> bool {
        let at_ns = self.place(key).load(Ordering::Acquire);
        at_ns != 0 && now_ns < at_ns + HOLD_OFF_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_remembered_for_a_while() {
        let recent = Recent::default();
        assert!(!recent.is_recent(b"a", 0));
        recent.changed(b"a", 5);
        assert!(recent.is_recent(b"a", 5) && recent.is_recent(b"a", HOLD_OFF_NS + 4));
        assert!(!recent.is_recent(b"a", HOLD_OFF_NS + 5) && !recent.is_recent(b"b", 5));
    }
}
