//! The gate: a row log runs ahead of what a SELECT sees, since a transaction is written to it before the
//! engine commits. Changes wait here until the database says that they are visible where rows are read: a key
//! that is dropped before that is filled with the old row, by a token that is good. Pure.

use crate::position::{Gtid, Place, Position};
use holdfast_env::planted;
use std::collections::VecDeque;

/// One transaction of the row log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub gtid: Gtid,
    /// Where it ends in the log of the server that it was read from.
    pub end: Place,
    /// When it was made, in seconds since 1970, by the database's clock.
    pub changed_s: u64,
    /// Nothing if there were too many: then servers are emptied.
    pub keys: Option<Vec<Vec<u8>>>,
}

/// What a database showed to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The server whose log is read: what its snapshot holds.
    Snapshot(Place),
    /// A replica: what it has applied.
    Applied(Position),
}

impl Seen {
    fn shows(&self, change: &Change) -> bool {
        match self {
            Seen::Snapshot(place) => place.covers(&change.end),
            Seen::Applied(position) => position.covers(change.gtid),
        }
    }
}

/// Changes in the order of the log.
#[derive(Debug, Default)]
pub struct Gate {
    waiting: VecDeque<Change>,
}

impl Gate {
    pub fn push(&mut self, change: Change) {
        self.waiting.push_back(change);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// When the first change that waits was made.
    pub fn since_s(&self) -> Option<u64> {
        self.waiting.front().map(|change| change.changed_s)
    }

    /// The changes that all of the databases that are read have shown, in order.
    pub fn pass(&mut self, seen: &[Seen]) -> Vec<Change> {
        assert!(!seen.is_empty(), "rows are read somewhere");
        let is_visible = |change: &Change| {
            seen.iter().all(|seen| seen.shows(change)) || planted!("invalidate.before-visible")
        };
        let count = self.waiting.iter().take_while(|change| is_visible(change)).count();
        self.waiting.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(sequence: u64, offset: u64) -> Change {
        Change {
            gtid: Gtid { domain: 0, server: 1, sequence },
            end: Place { file: "bin.000001".to_owned(), offset },
            changed_s: 0,
            keys: Some(vec![sequence.to_string().into_bytes()]),
        }
    }

    fn passed(gate: &mut Gate, seen: &[Seen]) -> Vec<u64> {
        gate.pass(seen).iter().map(|change| change.gtid.sequence).collect()
    }

    /// The binlog is written before the engine commits: a reader that missed the dropped key read the old
    /// row, and filled it for good.
    #[test]
    fn changes_wait_until_the_slowest_of_those_that_are_read_shows_them() {
        let mut gate = Gate::default();
        (1..=5).for_each(|n| gate.push(change(n, n * 100)));
        let snapshot = |offset| Seen::Snapshot(Place { file: "bin.000001".to_owned(), offset });
        let applied = |n| Seen::Applied(Position::parse(&format!("0-1-{n}")).unwrap());
        assert!(passed(&mut gate, &[snapshot(99)]).is_empty());
        assert_eq!(passed(&mut gate, &[snapshot(250)]), [1, 2]);
        assert_eq!(passed(&mut gate, &[snapshot(500), applied(3)]), [3]);
        assert_eq!(passed(&mut gate, &[applied(5), applied(4)]), [4]);
        assert!(passed(&mut gate, &[Seen::Applied(Position::default())]).is_empty());
        assert_eq!(passed(&mut gate, &[applied(9)]), [5]);
        assert!(gate.is_empty());
    }
}
