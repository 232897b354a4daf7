//! Both clocks of a machine, which a test turns.

use holdfast_env::Clock;
use std::sync::atomic::{AtomicU64, Ordering};

/// They stand still until somebody stores another time.
#[derive(Default)]
pub struct Clocks {
    /// Since some start.
    pub monotonic_ns: AtomicU64,
    /// Since 1970.
    pub unix_ms: AtomicU64,
}

impl Clock for Clocks {
    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::Relaxed)
    }
}
