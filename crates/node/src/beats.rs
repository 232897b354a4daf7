//! Beats: how long it takes from when something is in the log until it was read here, and as of when
//! everything was. A beat begins, and comes when it was read; there is one at a time. Reads no clock.

use holdfast_env::{HoldMutex, planted};
use std::sync::Mutex;

/// The beats of one reader.
#[derive(Debug, Default)]
pub struct Beats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_under_way: bool,
    told: Beaten,
}

/// What came of beats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beaten {
    /// How many have come.
    pub count: u64,
    /// How long all of them took together, and the last one.
    pub taken_ns: u64,
    pub last_ns: u64,
    /// When the last one began: all that was in the log by then was read. None before the first.
    pub level_ns: Option<u64>,
}

impl Beats {
    /// Whether a beat begins: not while one is under way.
    pub fn begin(&self) -> bool {
        !std::mem::replace(&mut self.0.held().is_under_way, true)
    }

    /// The one that began at `begun_ns` has come.
    pub fn came(&self, begun_ns: u64, now_ns: u64) {
        let mut state = self.0.held();
        state.is_under_way = false;
        let taken_ns = now_ns.saturating_sub(begun_ns);
        let told = &mut state.told;
        told.count += 1;
        told.taken_ns += taken_ns;
        told.last_ns = taken_ns;
        let level_ns = if planted!("node.beat-level-when-it-comes") { now_ns } else { begun_ns };
        told.level_ns = Some(level_ns);
    }

    /// Nobody knows what became of the one that is under way.
    pub fn gave_up(&self) {
        self.0.held().is_under_way = false;
    }

    /// What came of them until now.
    pub fn told(&self) -> Beaten {
        self.0.held().told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_level_as_of_when_its_last_beat_began() {
        let beats = Beats::default();
        assert!(beats.begin() && !beats.begin(), "one at a time");
        assert_eq!(beats.told(), Beaten::default());
        // What was appended while the beat was on its way may not have been read.
        beats.came(100, 130);
        let told = Beaten { count: 1, taken_ns: 30, last_ns: 30, level_ns: Some(100) };
        assert_eq!(beats.told(), told);
        // One that does not come changes nothing, and the next one begins.
        assert!(beats.begin());
        beats.gave_up();
        assert_eq!(beats.told(), told);
        assert!(beats.begin());
        beats.came(1100, 1110);
        let told = Beaten { count: 2, taken_ns: 40, last_ns: 10, level_ns: Some(1100) };
        assert_eq!(beats.told(), told);
    }
}
