//! How long a client asks again what its node refuses for now: its log or a directory moves, or too few stores
//! are there. The same for clients that block and those that do not; never waits itself.

use crate::connection::{ClientOptions, RECONNECT_PAUSE_MAX};
use holdfast_base::{Error, Kind, Reason};
use holdfast_env::{Clock, RealClock};
use std::time::Duration;

/// How long somebody has waited already, from the first refusal on: the time of the attempts, too,
/// which is most of it where a node waits for another one before it refuses.
#[derive(Default)]
pub(crate) struct Patience {
    since: Option<RealClock>,
    pause: Duration,
}

/// Whether the same request may succeed later, as it is.
pub(crate) fn is_for_now(e: &Error) -> bool {
    e.kind == Kind::Retry && !e.is(Reason::WriteAgain)
}

impl Patience {
    /// How long to rest before the next attempt; none once the options allow no more.
    pub(crate) fn next(&mut self, options: &ClientOptions) -> Option<Duration> {
        let since = self.since.get_or_insert_with(RealClock::new);
        let waited = Duration::from_nanos(since.monotonic_ns());
        self.pause_after(waited, options)
    }

    fn pause_after(&mut self, waited: Duration, options: &ClientOptions) -> Option<Duration> {
        self.pause = match self.pause {
            Duration::ZERO => options.reconnect_pause,
            before => (before * 2).min(RECONNECT_PAUSE_MAX),
        };
        (waited + self.pause <= options.patience).then_some(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the rests between attempts were counted, and a node whose log's host is away refuses after
    /// seconds: twenty seconds of patience were a minute.
    #[test]
    fn the_time_of_the_attempts_counts() {
        let options = ClientOptions {
            reconnect_pause: Duration::from_millis(50),
            ..ClientOptions::default()
        };
        // Attempts that take so long, each answered with a refusal: how long it takes in all.
        let whole = |attempt: Duration| {
            let (mut patience, mut now) = (Patience::default(), Duration::ZERO);
            while let Some(pause) = patience.pause_after(now, &options) {
                now += pause + attempt;
            }
            now
        };
        let bound = |attempt| options.patience + attempt;
        for attempt in [0, 1, 3, 10].map(Duration::from_secs) {
            let took = whole(attempt);
            assert!(took <= bound(attempt), "{took:?} with attempts of {attempt:?}");
            assert!(took >= options.patience - RECONNECT_PAUSE_MAX, "{took:?}");
        }
        let none = ClientOptions { patience: Duration::ZERO, ..options };
        assert_eq!(Patience::default().pause_after(Duration::ZERO, &none), None);
    }
}
