//! Whom one read asks, and when another one too. A core over candidates in their order: the first
//! is asked; when it takes too long the next one is asked beside it (once a read), when one fails
//! the next takes its place; the first good answer ends it. [`super::reader`] asks.

/// What to do about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this candidate.
    Ask(usize),
    /// Wait for those that were asked.
    Wait,
    /// Nobody is left.
    GiveUp,
}

/// One read.
#[derive(Debug)]
pub struct Hedge {
    candidates: usize,
    /// Candidates asked so far: those before this number.
    asked: usize,
    waiting: usize,
    hedged: bool,
    finished: bool,
}

impl Hedge {
    /// Begins by asking candidate 0, unless there is none.
    pub fn new(candidates: usize) -> (Hedge, Next) {
        let mut hedge = Hedge { candidates, asked: 0, waiting: 0, hedged: false, finished: false };
        let next = hedge.ask();
        (hedge, next)
    }

    fn ask(&mut self) -> Next {
        if self.asked < self.candidates {
            self.asked += 1;
            self.waiting += 1;
            return Next::Ask(self.asked - 1);
        }
        if self.waiting > 0 {
            return Next::Wait;
        }
        self.finished = true;
        Next::GiveUp
    }

    /// A good answer: whether it is the first, which counts.
    pub fn answered(&mut self) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        !std::mem::replace(&mut self.finished, true)
    }

    /// A failure, or an answer that does not verify.
    pub fn failed(&mut self) -> Next {
        self.waiting = self.waiting.saturating_sub(1);
        if self.finished { Next::Wait } else { self.ask() }
    }

    /// The candidate asked last took too long.
    pub fn overdue(&mut self) -> Next {
        if self.finished || self.hedged || self.asked == self.candidates {
            return Next::Wait;
        }
        self.hedged = true;
        self.ask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_hedged_once_and_the_first_good_one_counts() {
        let (mut hedge, next) = Hedge::new(3);
        assert_eq!(next, Next::Ask(0));
        assert_eq!(hedge.overdue(), Next::Ask(1));
        assert_eq!(hedge.overdue(), Next::Wait, "at most one hedge a read");
        assert!(hedge.answered());
        assert!(!hedge.answered(), "the slow one came after all");
        assert_eq!(hedge.failed(), Next::Wait);
    }

    #[test]
    fn failures_go_on_to_the_next_until_nobody_is_left() {
        let (mut hedge, _) = Hedge::new(3);
        assert_eq!(hedge.failed(), Next::Ask(1));
        assert_eq!(hedge.overdue(), Next::Ask(2));
        assert_eq!(hedge.failed(), Next::Wait, "the other one may still answer");
        assert_eq!(hedge.failed(), Next::GiveUp);
        assert_eq!(Hedge::new(0).1, Next::GiveUp);
    }
}
