//! The fence between a database and the leases of servers: what is asked for at a moment is answered once the
//! topic has all that the database's log had then. Who delivers asks, who watches the database answers; both say
//! which by its moment, on the clock that they share. docs/decisions/0028 says what it is for. Pure.

use crate::position::Position;
use holdfast_env::planted;
use std::sync::atomic::{AtomicU64, Ordering};

/// Between the two threads: the moments of the latest request and of the latest answer; 0 for none.
#[derive(Debug, Default)]
pub struct Fence {
    asked_ns: AtomicU64,
    answered_ns: AtomicU64,
}

impl Fence {
    /// Asks for what the database has now.
    pub fn ask(&self, now_ns: u64) {
        self.asked_ns.fetch_max(now_ns.max(1), Ordering::AcqRel);
    }

    /// The latest moment whose changes are all in the topic.
    pub fn answered_ns(&self) -> Option<u64> {
        Some(self.answered_ns.load(Ordering::Acquire)).filter(|at_ns| *at_ns > 0)
    }
}

/// What one reader of the log has to pass; another one asks anew.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The moment of a request, and where the log ended then or later.
    open: Option<(u64, Position)>,
}

impl Ahead {
    /// The moment to ask the log's end for, if there is one. One is passed before another is begun: under a log
    /// that is always behind, an end that moves on would never be.
    pub fn to_ask(&self, fence: &Fence) -> Option<u64> {
        let asked_ns = fence.asked_ns.load(Ordering::Acquire);
        let is_new = asked_ns > fence.answered_ns.load(Ordering::Acquire);
        (is_new && self.open.is_none()).then_some(asked_ns)
    }

    /// The log's end, asked for behind [`Ahead::to_ask`].
    pub fn ends(&mut self, asked_ns: u64, end: Position) {
        self.open = Some((asked_ns, end));
    }

    /// All changes before a position are in the topic: answers, if that is past the end.
    pub fn passed(&mut self, position: &Position, fence: &Fence) {
        let is_past = |(_, end): &mut (u64, Position)| {
            position.covers(end) || planted!("invalidate.fence-before-passed")
        };
        if let Some((asked_ns, _)) = self.open.take_if(is_past) {
            fence.answered_ns.fetch_max(asked_ns, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Position {
        Position::parse(text).unwrap()
    }

    #[test]
    fn a_request_is_answered_behind_the_end_that_the_log_had_for_it() {
        let (fence, mut ahead) = (Fence::default(), Ahead::default());
        ahead.passed(&at("0-1-9"), &fence);
        assert_eq!((ahead.to_ask(&fence), fence.answered_ns()), (None, None), "nobody asks");
        fence.ask(7);
        assert_eq!(ahead.to_ask(&fence), Some(7));
        ahead.ends(7, at("0-1-10,1-1-3"));
        fence.ask(8);
        for before in ["", "0-1-10", "0-1-10,1-1-2", "0-1-9,1-1-4"] {
            ahead.passed(&at(before), &fence);
            assert_eq!((ahead.to_ask(&fence), fence.answered_ns()), (None, None), "{before}");
        }
        ahead.passed(&at("0-2-11,1-1-3,2-1-1"), &fence);
        assert_eq!((ahead.to_ask(&fence), fence.answered_ns()), (Some(8), Some(7)));
        // Another life of the connections asks anew for what was not answered.
        ahead.ends(8, at("0-1-12"));
        let mut ahead = Ahead::default();
        assert_eq!(ahead.to_ask(&fence), Some(8));
        ahead.ends(8, at(""));
        ahead.passed(&at("0-1-11"), &fence);
        assert_eq!((ahead.to_ask(&fence), fence.answered_ns()), (None, Some(8)), "a quiet log");
    }
}
