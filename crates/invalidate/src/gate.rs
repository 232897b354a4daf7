//! The gate: a row log runs ahead of what a SELECT sees, since a transaction is written to it before the
//! engine commits. Changes wait here until the database says that they are visible where rows are read: a key
//! that is dropped before that is filled with the old row, by a token that is good. Pure.

use crate::ahead::{AHEAD, AHEAD_KEYS};
use crate::position::Position;
use holdfast_env::planted;
use std::collections::VecDeque;

/// A transaction's place in the log of one kind of database.
pub trait Mark: Clone + Send + 'static {
    /// What a database showed to a reader.
    type Seen;
    /// Whether a reader who was shown that sees the transaction.
    fn is_in(&self, seen: &Self::Seen) -> bool;
    /// Moves a position behind it.
    fn pass(&self, position: &mut Position);
}

/// One transaction of the row log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<M> {
    pub mark: M,
    /// When it was made, in seconds since 1970, by the database's clock.
    pub changed_s: u64,
    /// Nothing if there were too many: then servers are emptied.
    pub keys: Option<Vec<Vec<u8>>>,
}

/// Changes in the order of the log.
#[derive(Debug)]
pub struct Gate<M> {
    waiting: VecDeque<Change<M>>,
    /// Of what waits.
    keys: usize,
    /// Behind all that waits, nothing changed up to here.
    quiet: Option<M>,
}

impl<M> Default for Gate<M> {
    fn default() -> Gate<M> {
        Gate { waiting: VecDeque::new(), keys: 0, quiet: None }
    }
}

impl<M: Mark> Gate<M> {
    pub fn push(&mut self, change: Change<M>) {
        self.keys += change.keys.as_ref().map_or(0, Vec::len);
        self.waiting.push_back(change);
        // It lies behind that, and says more.
        self.quiet = None;
    }

    /// Nothing changed between what was pushed last and this.
    pub fn push_quiet(&mut self, mark: M) {
        self.quiet = Some(mark);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether as much waits as may.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= AHEAD || self.keys >= AHEAD_KEYS
    }

    /// When the first change that waits was made.
    pub fn since_s(&self) -> Option<u64> {
        self.waiting.front().map(|change| change.changed_s)
    }

    /// The changes that all of the databases that are read have shown, in order.
    pub fn pass(&mut self, seen: &[M::Seen]) -> Vec<Change<M>> {
        assert!(!seen.is_empty(), "rows are read somewhere");
        let is_visible = |change: &Change<M>| {
            seen.iter().all(|seen| change.mark.is_in(seen)) || planted!("invalidate.before-visible")
        };
        let count = self.waiting.iter().take_while(|change| is_visible(change)).count();
        let visible: Vec<Change<M>> = self.waiting.drain(..count).collect();
        self.keys -= visible.iter().flat_map(|change| &change.keys).map(Vec::len).sum::<usize>();
        visible
    }

    /// Up to where nothing changed, once nothing waits before it.
    pub fn pass_quiet(&mut self) -> Option<M> {
        if self.waiting.is_empty() || planted!("invalidate.quiet-before-waiting") {
            return self.quiet.take();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mariadb::{At, Seen};
    use crate::position::{Gtid, Gtids, Place};

    fn at(sequence: u64, offset: u64) -> At {
        At {
            gtid: Gtid { domain: 0, server: 1, sequence },
            end: Place { file: "bin.000001".to_owned(), offset },
        }
    }

    fn change(sequence: u64, offset: u64) -> Change<At> {
        let keys = Some(vec![sequence.to_string().into_bytes()]);
        Change { mark: at(sequence, offset), changed_s: 0, keys }
    }

    fn passed(gate: &mut Gate<At>, seen: &[Seen]) -> Vec<u64> {
        gate.pass(seen).iter().map(|change| change.mark.gtid.sequence).collect()
    }

    fn snapshot(offset: u64) -> Seen {
        Seen::Snapshot(Place { file: "bin.000001".to_owned(), offset })
    }

    /// The binlog is written before the engine commits: a reader that missed the dropped key read the old
    /// row, and filled it for good.
    #[test]
    fn changes_wait_until_the_slowest_of_those_that_are_read_shows_them() {
        let mut gate = Gate::default();
        (1..=5).for_each(|n| gate.push(change(n, n * 100)));
        let applied = |n| Seen::Applied(Gtids::parse(&format!("0-1-{n}")).unwrap());
        assert!(passed(&mut gate, &[snapshot(99)]).is_empty());
        assert_eq!(passed(&mut gate, &[snapshot(250)]), [1, 2]);
        assert_eq!(passed(&mut gate, &[snapshot(500), applied(3)]), [3]);
        assert_eq!(passed(&mut gate, &[applied(5), applied(4)]), [4]);
        assert!(passed(&mut gate, &[Seen::Applied(Gtids::default())]).is_empty());
        assert_eq!(passed(&mut gate, &[applied(9)]), [5]);
        assert!(gate.is_empty());
    }

    /// Transactions of many keys that a replica does not show took all memory there was.
    #[test]
    fn what_waits_is_bounded_in_transactions_and_in_keys() {
        let mut gate = Gate::default();
        let mut many = change(1, 100);
        many.keys = Some(vec![b"k".to_vec(); AHEAD_KEYS]);
        gate.push(many);
        assert!(gate.is_full());
        assert_eq!(passed(&mut gate, &[snapshot(100)]), [1]);
        assert!(!gate.is_full());
        (0..AHEAD as u64).for_each(|n| gate.push(change(2 + n, 200 + n)));
        assert!(gate.is_full());
    }

    /// A position that says "nothing changed up to here" must not overtake a change that waits: it would be
    /// skipped by who starts anew.
    #[test]
    fn where_nothing_changed_is_told_behind_what_waits_before_it() {
        let mut gate = Gate::default();
        gate.push_quiet(at(1, 100));
        assert_eq!(gate.pass_quiet(), Some(at(1, 100)));
        assert_eq!(gate.pass_quiet(), None);
        gate.push(change(2, 200));
        gate.push_quiet(at(3, 300));
        assert_eq!((gate.pass_quiet(), passed(&mut gate, &[snapshot(199)])), (None, vec![]));
        assert_eq!(passed(&mut gate, &[snapshot(200)]), [2]);
        assert_eq!(gate.pass_quiet(), Some(at(3, 300)));
        gate.push_quiet(at(4, 400));
        gate.push(change(5, 500));
        assert_eq!(passed(&mut gate, &[snapshot(500)]), [5]);
        assert_eq!(gate.pass_quiet(), None, "what came behind it says more");
    }
}
