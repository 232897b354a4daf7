//! What repair has gained lately: bytes of copies that are there and of those under way. What is
//! sent and given up again is none, however busy the links are with it. A core; tells people when
//! it will be over, and that it will not.

use super::MS;
use std::collections::VecDeque;

/// The mean is of so long: many blocks, few changes of the foreground.
const MEAN_NS: u64 = 15_000 * MS;
/// Before this nothing is known yet.
const MEAN_NS_MIN: u64 = 5000 * MS;

/// The most bytes that there were until then, oldest first, of a little more than [`MEAN_NS`].
#[derive(Debug, Default)]
pub struct Gain {
    samples: VecDeque<(u64, u64)>,
}

impl Gain {
    /// What was there once and is not any more is not gained again by sending it again.
    pub fn sample(&mut self, now_ns: u64, bytes: u64) {
        let most = self.samples.back().map_or(bytes, |(_, most)| bytes.max(*most));
        self.samples.push_back((now_ns, most));
        while self.samples.get(1).is_some_and(|next| next.0 + MEAN_NS <= now_ns) {
            self.samples.pop_front();
        }
    }

    /// Bytes a second that are there to stay; `None` while too little is known.
    pub fn per_second(&self) -> Option<u64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let took_ns = last.0 - first.0;
        let per_second = u128::from(last.1 - first.1) * 1_000_000_000 / u128::from(took_ns.max(1));
        (took_ns >= MEAN_NS_MIN).then_some(per_second as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies that began anew every three seconds looked like progress: "about 20 s" for ever.
    #[test]
    fn what_is_sent_and_given_up_is_no_gain() {
        let mut gain = Gain::default();
        let per_second = |gain: &mut Gain, rounds: std::ops::Range<u64>, of: fn(u64) -> u64| {
            rounds.for_each(|round| gain.sample(round * 500 * MS, of(round)));
            gain.per_second()
        };
        assert_eq!(per_second(&mut gain, 0..10, |round| round * 1000), None);
        assert_eq!(per_second(&mut gain, 10..40, |round| round * 1000), Some(2000));
        // Up to six thousand, and back to nothing.
        let began = per_second(&mut gain, 40..91, |round| 40_000 + round % 6 * 1000);
        assert_eq!(began, Some(0));
        assert_eq!(per_second(&mut gain, 91..130, |_| 40_000), Some(0));
    }
}
