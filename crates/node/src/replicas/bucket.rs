//! Bytes a second, as a bucket of tokens. A core.

/// Earns bytes with time, and gives them to blocks one after the other.
#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Negative after a block that was larger than what was there.
    tokens: i64,
    filled_ns: Option<u64>,
}

impl TokenBucket {
    /// Takes `bytes` at `rate` a second (0 for no limit); answers how long to wait before them.
    pub fn take(&mut self, bytes: u64, rate: u64, now_ns: u64) -> u64 {
        let wait_ms = self.due_ms(rate, now_ns);
        if rate > 0 {
            self.tokens -= bytes as i64;
        }
        wait_ms
    }

    /// How long the next block would wait, in milliseconds.
    pub fn due_ms(&mut self, rate: u64, now_ns: u64) -> u64 {
        if rate == 0 {
            return 0;
        }
        let since = now_ns.saturating_sub(self.filled_ns.unwrap_or(now_ns));
        let earned = since as u128 * rate as u128 / 1_000_000_000;
        if earned > 0 || self.filled_ns.is_none() {
            // Only when something was earned: fractions of a byte must not be lost.
            self.filled_ns = Some(now_ns);
        }
        // A pause earns little: what is sent at once waits in a queue, and others behind it.
        let burst = (rate / 32) as i64;
        let earned = earned.min(i64::MAX as u128 / 2) as i64;
        self.tokens = self.tokens.saturating_add(earned).min(burst);
        ((-self.tokens).max(0) as u128 * 1000 / rate as u128) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::units::MIB;

    #[test]
    fn the_bucket_gives_what_its_rate_allows() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.take(1 << 40, 0, 0), 0, "no limit");
        let (mut now_ms, rate) = (0, 10 * MIB);
        for _ in 0..50 {
            now_ms += bucket.take(MIB, rate, now_ms * 1_000_000);
        }
        // 50 MiB at 10 a second: the first block comes at once, the last is paid for later.
        assert!((4800..=4900).contains(&now_ms), "{now_ms} ms");
        // A pause of an hour earns a thirty-second of a second, 320 KiB.
        now_ms += 3_600_000;
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 0);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 68);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 168);
    }
}
