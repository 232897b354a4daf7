//! Time. Decisions never read it on their own: it is handed in, from here or from a simulation.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock and the calendar.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since some fixed moment; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Milliseconds since 1970-01-01 UTC; may jump. Only for people to read.
    fn unix_ms(&self) -> u64;
}

/// The machine's clock.
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn new() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn unix_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }
}

/// A clock that a test turns.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Time(pub std::sync::atomic::AtomicU64);

#[cfg(test)]
impl Clock for Time {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}
