//! What servers slept through. While a server is away, others take its keys; what it still has of
//! them is old when it comes back, perhaps after seconds in which it was only stalled. So keys that
//! were changed elsewhere are remembered, and deleted at the server before it is used again: by one
//! of all threads that share this, and not before the connections that were given up have ended,
//! since a stalled server carries out what lies in them. Nothing here waits.

use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys remembered a server: some 20 MB. Of more, the server is emptied instead.
pub static OWED_MAX: Knob = Knob::new("cache-client.owed-keys", 1 << 16, &[1, 2, 5]);
/// Deletes that are under way at once, as a request of a hundred keys is; twice as many each time, so
/// that a return comes to its end while clients go on changing keys elsewhere.
pub static OWED_BATCH: Knob = Knob::new("cache-client.owed-batch", 100, &[1, 2, 3]);
/// How long a connection that was given up may take to end once its server answers others. It ends
/// when the server has read what was sent; after so long that way lost it, and nobody would tell.
const DRAIN_MOST_NS: u64 = 10_000_000_000;
/// Empties a server whose keys were too many to remember.
pub const FLUSH: &[u8] = b"flush_all\r\n";

/// One server's.
#[derive(Default)]
struct Away {
    /// The requests that delete what was changed elsewhere.
    owed: BTreeSet<Vec<u8>>,
    /// More than can be remembered.
    is_cold: bool,
    /// Somebody sends it what is owed. Cleared when more is owed after he was done, or he failed.
    is_returning: bool,
    /// How often he came for more.
    batches: u32,
    /// Connections that were given up with requests in them, and have not ended.
    undrained: u32,
    /// Since when only those keep it away.
    waits_since_ns: Option<u64>,
}

/// What a server that answers again is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Owed {
    Requests(Vec<Vec<u8>>),
    /// It is back.
    Nothing,
    /// Connections that were given up have not ended: begin again in a while.
    Later,
}

pub struct Absences {
    servers: Vec<Mutex<Away>>,
    /// Odd while a server is away. Written under its lock, read without.
    epochs: Vec<AtomicU64>,
}

impl Absences {
    pub fn new(servers: usize) -> Absences {
        Absences {
            servers: (0..servers).map(|_| Mutex::default()).collect(),
            epochs: (0..servers).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn away(&self, server: u32) -> MutexGuard<'_, Away> {
        // Each change under this lock is whole in itself.
        self.servers[server as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever a server goes away or is back: what was asked under another one may be old.
    pub fn epoch(&self, server: u32) -> u64 {
        self.epochs[server as usize].load(Ordering::Acquire)
    }

    pub fn is_away(&self, server: u32) -> bool {
        !self.epoch(server).is_multiple_of(2)
    }

    /// A key of this server is changed elsewhere from now on. Called before that is asked for.
    pub fn owe(&self, server: u32, request: Vec<u8>) {
        let mut away = self.away(server);
        if !away.is_cold {
            away.owed.insert(request);
        }
        if away.owed.len() > OWED_MAX.size() {
            OWED_MAX.cross();
            away.owed.clear();
            away.is_cold = !planted!("cache.overflow-forgotten");
        }
        if !self.is_away(server) {
            self.epochs[server as usize].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A connection was given up whose requests a server may still carry out.
    pub fn gave_up(&self, server: u32) {
        self.away(server).undrained += 1;
    }

    /// One of those has ended.
    pub fn drained(&self, server: u32) {
        let mut away = self.away(server);
        away.undrained = away.undrained.saturating_sub(1);
    }

    /// A server that is away answers: whether the caller is to bring it up to date.
    pub fn begin_return(&self, server: u32) -> bool {
        let mut away = self.away(server);
        let begins = !std::mem::replace(&mut away.is_returning, true);
        away.batches = if begins { 0 } else { away.batches };
        begins
    }

    /// What comes next for whom [`Absences::begin_return`] chose, all of whose earlier requests were
    /// answered.
    pub fn next_owed(&self, server: u32, now_ns: u64) -> Owed {
        let mut away = self.away(server);
        debug_assert!(away.is_returning && self.is_away(server), "only who returns a server asks");
        if away.undrained > 0 && !planted!("cache.return-before-drained") {
            let since_ns = *away.waits_since_ns.get_or_insert(now_ns);
            if now_ns < since_ns.saturating_add(DRAIN_MOST_NS) {
                away.is_returning = false;
                return Owed::Later;
            }
        }
        (away.undrained, away.waits_since_ns) = (0, None);
        if std::mem::take(&mut away.is_cold) {
            return Owed::Requests(vec![FLUSH.to_vec()]);
        }
        let most = match planted!("cache.return-chases-its-end") {
            false => OWED_BATCH.size() << away.batches.min(10),
            true => OWED_BATCH.size(),
        };
        away.batches += 1;
        let mut batch = Vec::new();
        while batch.len() < most
            && let Some(request) = away.owed.pop_first()
        {
            batch.push(request);
        }
        if !away.owed.is_empty() {
            OWED_BATCH.cross();
        }
        if !batch.is_empty() {
            return Owed::Requests(batch);
        }
        away.is_returning = false;
        self.epochs[server as usize].fetch_add(1, Ordering::AcqRel);
        Owed::Nothing
    }

    /// The server has gone again, with these requests unanswered or refused.
    pub fn return_failed(&self, server: u32, requests: Vec<Vec<u8>>) {
        let mut away = self.away(server);
        away.is_returning = false;
        for request in requests.into_iter().filter(|_| !planted!("cache.failed-return-forgets")) {
            if request == FLUSH {
                away.is_cold = true;
            } else {
                away.owed.insert(request);
            }
        }
        if away.is_cold || away.owed.len() > OWED_MAX.size() {
            away.owed.clear();
            away.is_cold = true;
        }
    }
}
