//! What failed and is tried again, after a rest that grows: a compaction, an entry of a move.

/// How long something rests after its first failure; twice as long after each one that follows.
const REST_MS: u64 = 2000;
/// What has failed for so long is worth a person's look.
const REPORT_MS: u64 = 900_000;

/// Between two attempts.
pub(super) struct Rest {
    since_ns: u64,
    until_ns: u64,
    failures: u32,
}

impl Rest {
    /// Before the first failure.
    pub fn new(now_ns: u64) -> Rest {
        Rest { since_ns: now_ns, until_ns: now_ns, failures: 0 }
    }

    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    pub fn is_long(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= REPORT_MS * 1_000_000
    }

    /// It failed once more. Whether it wanted to rest for longer than `max_ms`.
    pub fn failed(&mut self, now_ns: u64, max_ms: u64) -> bool {
        let wanted_ms = REST_MS << self.failures.min(20);
        self.until_ns = now_ns + wanted_ms.min(max_ms) * 1_000_000;
        self.failures += 1;
        wanted_ms > max_ms
    }
}
