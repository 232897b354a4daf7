//! Where a transaction is in PostgreSQL's log, and what a server shows to who reads: which transactions its
//! snapshot holds, and of a standby how much of the log it has replayed. Pure.

use crate::gate::Mark;
use crate::position::{Lsn, Position};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::BTreeSet;

/// A transaction, or a place behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The lower half of its number.
    pub xid: Option<u32>,
    /// Behind its commit.
    pub end: Lsn,
}

/// Which transactions a SELECT sees: PostgreSQL's `pg_snapshot`, with the rule of `pg_visible_in_snapshot`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All before it have ended.
    pub first_running: u64,
    /// None from here on has ended.
    pub next: u64,
    /// Those between them that have not ended.
    pub running: BTreeSet<u64>,
}

impl Snapshot {
    /// `10:20:10,14,15`.
    pub fn parse(text: &str) -> Result<Snapshot> {
        let wrong = || Error::corrupt(format!("read snapshot `{text}`: this is none"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let mut parts = text.split(':');
        let (Some(first), Some(next), Some(running), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let running = running.split(',').filter(|one| !one.is_empty());
        Ok(Snapshot {
            first_running: number(first)?,
            next: number(next)?,
            running: running.map(number).collect::<Result<_>>()?,
        })
    }

    /// Whether it sees what a transaction did that has committed.
    pub fn has(&self, xid: u64) -> bool {
        xid < self.first_running || xid < self.next && !self.running.contains(&xid)
    }

    /// A transaction's whole number from its lower half: the nearest to those of now. No server lets them be
    /// two billions apart.
    pub fn whole(&self, xid: u32) -> u64 {
        if planted!("invalidate.xid-of-epoch-0") {
            return xid.into();
        }
        let ahead = xid.wrapping_sub(self.next as u32) as i32;
        self.next.saturating_add_signed(ahead.into())
    }

    /// Whether of those that ran at another moment none still runs.
    pub fn is_behind_all(&self, running: &BTreeSet<u64>) -> bool {
        running.iter().all(|xid| self.has(*xid))
    }
}

/// What a database showed to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub snapshot: Snapshot,
    /// Of a standby. Its snapshots do not list what still runs, so its replay decides.
    pub replayed: Option<Lsn>,
}

impl Mark for At {
    type Seen = Seen;

    fn is_in(&self, seen: &Seen) -> bool {
        let is_replayed = seen.replayed.is_none_or(|replayed| replayed >= self.end);
        let is_visible = |xid| seen.snapshot.has(seen.snapshot.whole(xid));
        is_replayed && self.xid.is_none_or(is_visible)
    }

    fn pass(&self, position: &mut Position) {
        match position {
            // A walsender may say once more how far it was.
            Position::Postgres(at) => at.lsn = at.lsn.max(self.end),
            Position::MariaDb(_) | Position::Table(_) => {
                unreachable!("a topic follows one kind of database")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Change, Gate};

    #[test]
    fn a_snapshot_has_what_pg_visible_in_snapshot_says() {
        let snapshot = Snapshot::parse("10:20:10,14,15").unwrap();
        let seen: Vec<u64> = (8..22).filter(|xid| snapshot.has(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
        assert_eq!(Snapshot::parse("7:7:").unwrap().running.len(), 0);
        for wrong in ["", "1:2", "1:2:3:4", "a:2:", "1:2:x", "1,2,3"] {
            assert!(Snapshot::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The log has 32 bits of a transaction's number, a snapshot has 64: behind four billion transactions, every
    /// change looked visible at once, since its number was small.
    #[test]
    fn numbers_go_on_behind_four_billion_transactions() {
        let epoch = 1u64 << 32;
        for next in [5, epoch - 1, epoch, epoch + 5, 3 * epoch + 7] {
            let snapshot = Snapshot { first_running: next, next, running: BTreeSet::new() };
            for ahead in [-3i64, -1, 0, 1, 3] {
                let xid = next.saturating_add_signed(ahead);
                assert_eq!(snapshot.whole(xid as u32), xid, "{next} {ahead}");
            }
        }
    }

    /// Decoding may send a commit before other sessions see it, as when it waits for a synchronous standby.
    #[test]
    fn changes_wait_for_the_snapshot_and_for_every_standby() {
        let mut gate = Gate::default();
        let change = |xid, end| Change {
            mark: At { xid: Some(xid), end: Lsn(end) },
            changed_s: 0,
            keys: None,
        };
        [change(10, 100), change(12, 200), change(11, 300)]
            .into_iter()
            .for_each(|one| gate.push(one));
        let seen = |snapshot: &str, replayed: Option<u64>| Seen {
            snapshot: Snapshot::parse(snapshot).unwrap(),
            replayed: replayed.map(Lsn),
        };
        assert_eq!(gate.pass(&[seen("10:11:10", None)]).len(), 0);
        assert_eq!(gate.pass(&[seen("11:13:11", None)]).len(), 2, "12 is seen before 11");
        assert_eq!(gate.pass(&[seen("13:13:", Some(300)), seen("13:13:", Some(299))]).len(), 0);
        assert_eq!(gate.pass(&[seen("11:11:", Some(300))]).len(), 0, "replayed, and not visible");
        assert_eq!(gate.pass(&[seen("13:13:", Some(300)), seen("13:13:", Some(301))]).len(), 1);
    }

    #[test]
    fn who_waits_for_all_that_ran_waits_for_those_alone() {
        let then = Snapshot::parse("10:20:10,14").unwrap();
        let behind = |text: &str| Snapshot::parse(text).unwrap().is_behind_all(&then.running);
        assert!(!behind("10:30:10,14,25") && !behind("14:30:14,25"));
        assert!(behind("25:30:25"));
    }
}
