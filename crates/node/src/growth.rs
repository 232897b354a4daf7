//! When a store is full if it goes on as lately: a photo service's disks, sized for half a year, once
//! filled in ten days, and a forecast would have said so on the first. Holds no clock or store.

use std::collections::VecDeque;

/// Between two samples, and the age of the oldest one.
const SAMPLE_MS: u64 = 60_000;
const WINDOW_MS: u64 = 24 * 3_600_000;
/// Nothing is said from less than this.
const LEAST_MS: u64 = 10 * SAMPLE_MS;

/// What a store used in the last day.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// When, and used bytes; oldest first.
    samples: VecDeque<(u64, u64)>,
}

impl Growth {
    pub fn record(&mut self, now_ms: u64, used_bytes: u64) {
        if self.samples.back().is_some_and(|(last, _)| now_ms < last + SAMPLE_MS) {
            return;
        }
        self.samples.push_back((now_ms, used_bytes));
        while self.samples.front().is_some_and(|(first, _)| first + WINDOW_MS < now_ms) {
            self.samples.pop_front();
        }
    }

    /// Milliseconds until `free_bytes` are used at the mean rate of the samples; `None` for a store
    /// that does not grow, or that was not watched for long enough.
    pub fn fills_in_ms(&self, free_bytes: u64) -> Option<u64> {
        let ((first_ms, first), (last_ms, last)) = (self.samples.front()?, self.samples.back()?);
        let (elapsed_ms, grown) = (last_ms - first_ms, last.checked_sub(*first)?);
        if elapsed_ms < LEAST_MS || grown == 0 {
            return None;
        }
        let ms = free_bytes as u128 * elapsed_ms as u128 / grown as u128;
        Some(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn a_store_that_takes_a_gigabyte_a_minute_fills_in_free_gigabytes_of_minutes() {
        let mut growth = Growth::default();
        for minute in 0..=30 {
            growth.record(minute * SAMPLE_MS, minute * GB);
            // Asked more often than sampled.
            growth.record(minute * SAMPLE_MS + 500, minute * GB);
        }
        assert_eq!(growth.fills_in_ms(90 * GB), Some(90 * SAMPLE_MS));
        assert_eq!(growth.fills_in_ms(0), Some(0));
    }

    #[test]
    fn only_the_last_day_counts() {
        let mut growth = Growth::default();
        let day = WINDOW_MS / SAMPLE_MS;
        for minute in 0..=2 * day {
            // It grew on the first day only.
            growth.record(minute * SAMPLE_MS, minute.min(day) * GB);
        }
        assert!(growth.samples.len() as u64 <= day + 1);
        assert_eq!(growth.fills_in_ms(GB), None);
    }

    #[test]
    fn little_is_known_at_first_and_of_what_shrinks() {
        let mut growth = Growth::default();
        assert_eq!(growth.fills_in_ms(GB), None);
        for minute in 0..10 {
            growth.record(minute * SAMPLE_MS, minute * GB);
            assert_eq!(growth.fills_in_ms(GB), None, "{minute}");
        }
        growth.record(60 * SAMPLE_MS, 0);
        growth.record(61 * SAMPLE_MS, 0);
        assert_eq!(growth.fills_in_ms(GB), None);
    }
}
