//! Which appends of an open chunk every replica has. A core: appends are answered in their order,
//! each once all replicas have it; the first failure ends the window for good, and what is
//! outstanding then was never acknowledged. [`super::ReplicaSet`] sends and answers.

use holdfast_env::planted;
use std::collections::VecDeque;

/// One append that not every replica has.
#[derive(Debug)]
struct Outstanding {
    /// Where the chunk ends behind it.
    end: u64,
    /// Bit `i`: replica `i` has not answered.
    missing: u32,
    sent_ns: u64,
}

/// Appends on their way to `replicas` stores.
#[derive(Debug)]
pub struct Window {
    all: u32,
    /// Oldest first.
    outstanding: VecDeque<Outstanding>,
    /// Number of the oldest one.
    first: u64,
    acknowledged: u64,
    /// Where the next append goes.
    next: u64,
    ended: bool,
}

impl Window {
    pub fn new(replicas: usize) -> Window {
        assert!((1..=32).contains(&replicas), "a chunk has between 1 and 32 replicas");
        let all = u32::MAX >> (32 - replicas);
        Window {
            all,
            outstanding: VecDeque::new(),
            first: 0,
            acknowledged: 0,
            next: 0,
            ended: false,
        }
    }

    /// Where the next append goes: bytes, or slots.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What every replica has.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Takes an append of `length` (bytes, or one slot) and numbers it. Not after the end.
    pub fn push(&mut self, length: u64, now_ns: u64) -> u64 {
        assert!(!self.ended, "nothing is appended after the end");
        self.next += length;
        let sent = Outstanding { end: self.next, missing: self.all, sent_ns: now_ns };
        self.outstanding.push_back(sent);
        self.first + self.outstanding.len() as u64 - 1
    }

    /// Replica `replica` has append `number`. Answers the ends of the appends that are
    /// acknowledged by this, oldest first.
    pub fn answered(&mut self, replica: usize, number: u64) -> Vec<u64> {
        let mut acknowledged = Vec::new();
        let at = number.checked_sub(self.first).filter(|_| !self.ended);
        let Some(found) = at.and_then(|at| self.outstanding.get_mut(at as usize)) else {
            return acknowledged;
        };
        found.missing &= !(1 << replica);
        if planted!("cluster.one-replica-is-enough") {
            found.missing = 0;
        }
        while let Some(oldest) = self.outstanding.front().filter(|oldest| oldest.missing == 0) {
            self.acknowledged = oldest.end;
            acknowledged.push(oldest.end);
            self.outstanding.pop_front();
            self.first += 1;
        }
        acknowledged
    }

    /// Ends it: nothing more is acknowledged. Says whether it had not ended before.
    pub fn end(&mut self) -> bool {
        self.outstanding.clear();
        !std::mem::replace(&mut self.ended, true)
    }

    /// When the oldest append was sent that some replica lacks.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.outstanding.front().map(|oldest| oldest.sent_ns)
    }

    /// Whether `replica` lacks the oldest append.
    pub fn is_behind(&self, replica: usize) -> bool {
        self.outstanding.front().is_some_and(|oldest| oldest.missing & (1 << replica) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    #[test]
    fn an_append_is_acknowledged_when_all_have_it_and_never_before_an_older_one() {
        let mut window = Window::new(3);
        let first = window.push(10, 5);
        let second = window.push(20, 6);
        assert_eq!(window.next(), 30);
        for replica in 0..3 {
            assert_eq!(window.answered(replica, second), NONE);
        }
        assert_eq!(window.answered(0, first), NONE);
        assert_eq!(window.answered(2, first), NONE);
        assert_eq!(window.answered(2, first), NONE, "said twice is said once");
        assert_eq!((window.acknowledged(), window.oldest_ns()), (0, Some(5)));
        assert!(window.is_behind(1) && !window.is_behind(0));
        assert_eq!(window.answered(1, first), [10, 30]);
        assert_eq!((window.acknowledged(), window.oldest_ns()), (30, None));
        assert_eq!(window.answered(1, first), NONE, "long answered");
    }

    #[test]
    fn after_the_end_nothing_is_acknowledged_whatever_still_arrives() {
        let mut window = Window::new(2);
        let first = window.push(1, 0);
        let second = window.push(1, 0);
        window.answered(0, first);
        assert_eq!(window.answered(1, first), [1]);
        assert!(window.end());
        assert!(!window.end());
        for replica in 0..2 {
            assert_eq!(window.answered(replica, second), NONE);
        }
        assert_eq!(window.acknowledged(), 1);
    }
}
