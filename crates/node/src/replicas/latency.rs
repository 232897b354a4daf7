//! How fast a node has answered lately, and so when to ask another one too. A core.

/// Answers remembered; a node's mood of some seconds under load, of minutes without.
const SAMPLES: usize = 64;
/// Fewer say nothing about a 95th percentile.
const SAMPLES_MIN: usize = 8;
/// The hedge's delay before enough is known, and its bounds: below, requests would double for
/// nothing; above, a person notices.
const HEDGE_MS_UNKNOWN: u64 = 50;
const HEDGE_MS_MIN: u64 = 2;
const HEDGE_MS_MAX: u64 = 1000;

/// Recent answers of one node.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// A ring of the last ones, in microseconds.
    samples: Vec<u32>,
    next: usize,
}

impl Latencies {
    pub fn add(&mut self, ns: u64) {
        let us = (ns / 1000).min(u32::MAX as u64) as u32;
        if self.samples.len() < SAMPLES {
            self.samples.push(us);
        } else {
            self.samples[self.next] = us;
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    fn percentile(&self, percent: usize) -> Option<u32> {
        if self.samples.len() < SAMPLES_MIN {
            return None;
        }
        let mut sorted = self.samples.clone();
        let at = (sorted.len() * percent).div_ceil(100) - 1;
        Some(*sorted.select_nth_unstable(at).1)
    }

    /// What an answer usually takes; 0 where too little is known, so that it is found out.
    pub fn usual_us(&self) -> u32 {
        self.percentile(50).unwrap_or(0)
    }

    /// The 90th percentile; 0 where too little is known.
    pub fn p90_us(&self) -> u32 {
        self.percentile(90).unwrap_or(0)
    }

    /// After so long without an answer, another node is asked too: the 95th percentile.
    pub fn hedge_ms(&self) -> u64 {
        let p95 = self.percentile(95).map(|us| (us as u64).div_ceil(1000));
        p95.map_or(HEDGE_MS_UNKNOWN, |ms| ms.clamp(HEDGE_MS_MIN, HEDGE_MS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_percentile_is_the_least_answer_that_as_many_were_no_slower_than() {
        let mut latencies = Latencies::default();
        (1..=64).rev().for_each(|ms| latencies.add(ms * MS));
        assert_eq!(
            [1, 50, 95, 100].map(|p| latencies.percentile(p)),
            [1, 32, 61, 64].map(|ms| Some(ms * 1000))
        );
    }

    #[test]
    fn the_hedge_waits_for_the_95th_percentile_of_recent_answers() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.hedge_ms(), HEDGE_MS_UNKNOWN);
        assert_eq!(latencies.usual_us(), 0);
        // 60 fast answers and 4 slow ones: one in twenty is slower than 5 ms.
        for i in 0..64 {
            latencies.add(if i % 16 == 0 { 80 * MS } else { 5 * MS });
        }
        assert_eq!((latencies.usual_us(), latencies.hedge_ms()), (5000, 80));
        // What was long ago does not count.
        for _ in 0..64 {
            latencies.add(MS / 10);
        }
        assert_eq!((latencies.usual_us(), latencies.hedge_ms()), (100, HEDGE_MS_MIN));
        for _ in 0..64 {
            latencies.add(60_000 * MS);
        }
        assert_eq!(latencies.hedge_ms(), HEDGE_MS_MAX);
    }
}
