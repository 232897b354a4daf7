//! Runs an invalidator: one thread brings visible changes from the database to the topic, another brings the
//! topic's keys to the servers. Either goes on while the other has to wait, and begins again where the topic
//! says: nothing else is kept.

mod deliver;
mod watch;

use crate::entry::Entry;
use crate::fence::Fence;
use crate::position::Position;
use crate::source::{About, Database};
use holdfast_base::ids::Index;
use holdfast_base::{Kind, Result};
use holdfast_cache_client::route::RoutePlan;
use holdfast_client::Client;
use holdfast_env::tasks::{self, Stop};
use holdfast_env::{Clock, HoldMutex, event};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Before something is tried again.
const REST: Duration = Duration::from_millis(500);
/// Entries of one read of the topic.
const ENTRIES: u32 = 1000;

/// What an invalidator does.
pub struct Settings {
    pub database: Database,
    pub about: Arc<About>,
    pub plan: RoutePlan,
    /// Of the plan.
    pub pool: usize,
    /// For how long servers keep what was invalidated, for those who take it; 0 deletes.
    pub stale_s: u32,
    /// Of the leases that servers are given, in seconds; 0 for none.
    pub lease_s: u32,
    /// For how many seconds leases are given though the topic is not known to have what the database changed.
    pub lease_grace_s: u32,
}

/// The topic of a pool.
pub fn topic(pool: &str) -> String {
    format!("invalidate.{pool}")
}

/// What keys take in a request, as lag is counted.
pub(crate) fn key_bytes(keys: &[Vec<u8>]) -> u64 {
    keys.iter().map(|key| key.len() as u64).sum()
}

/// How an invalidator reaches its cluster.
pub type Connect = Arc<dyn Fn() -> Result<Client> + Send + Sync>;

struct Shared {
    settings: Settings,
    topic: String,
    connect: Connect,
    clock: Arc<dyn Clock>,
    stop: Stop,
    /// Between the database's log and leases.
    fence: Fence,
    /// Why it waits, while it does, by what waits.
    troubles: Mutex<Vec<(String, String)>>,
}

impl Shared {
    fn waits(&self, what: &str, why: &str) {
        let mut troubles = self.troubles.held();
        if !troubles.iter().any(|(of, _)| of == what) {
            event!(InvalidateWaits, why);
            troubles.push((what.to_owned(), why.to_owned()));
        }
        let count = troubles.len() as u64;
        self.settings.about.progress.change(|counts| counts.troubles = count);
    }

    fn goes_on(&self, what: &str) {
        let mut troubles = self.troubles.held();
        let before = troubles.len();
        troubles.retain(|(of, _)| of != what);
        if troubles.len() < before {
            let count = troubles.len() as u64;
            self.settings.about.progress.change(|counts| counts.troubles = count);
            let said = format!("{what} again");
            event!(InvalidateGoesOn, said);
        }
    }
}

/// Runs until `stop` is requested, or what was asked for cannot be done. `ready` is called once changes are
/// read.
pub fn run(
    settings: Settings,
    connect: Connect,
    clock: Arc<dyn Clock>,
    stop: &Stop,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let topic = topic(&settings.plan.pools[settings.pool].name);
    let shared = Arc::new(Shared {
        settings,
        topic,
        connect,
        clock,
        stop: stop.clone(),
        fence: Fence::default(),
        troubles: Mutex::default(),
    });
    let delivers = shared.clone();
    let task = tasks::spawn("invalidate-send", move || deliver::run(&delivers))?;
    let ended = watch::run(&shared, ready);
    stop.request();
    task.join();
    ended
}

/// What the topic says: the position behind which changes are to be read, how far servers have confirmed, and
/// which entries say so.
#[derive(Default)]
pub(crate) struct Known {
    pub position: Option<(Index, Position, u64)>,
    pub confirmed: Option<(Index, Vec<(String, Index)>)>,
    /// By which pools keys were sent then.
    pub rings: Vec<String>,
    /// Entries with changes.
    pub changes: Vec<Noted>,
    pub first: Index,
    pub next: Index,
}

/// An entry with changes.
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    pub index: Index,
    /// When the last of them was made.
    pub changed_s: u64,
    pub keys: u64,
    /// Of its keys.
    pub key_bytes: u64,
    /// Of the whole entry.
    pub bytes: usize,
}

/// Entries may be trimmed while they are read, by the other thread of this invalidator or by another one: then
/// reading begins again behind them.
pub(crate) fn known(client: &mut Client, topic: &str) -> Result<Known> {
    known_and::<()>(client, topic, |(), _| {}).map(|(known, ())| known)
}

/// The same, with what comes of seeing each key: begun anew where reading begins again.
pub(crate) fn known_and<S: Default>(
    client: &mut Client,
    topic: &str,
    see: fn(&mut S, &[u8]),
) -> Result<(Known, S)> {
    loop {
        let mut seen = S::default();
        let first = match client.log().info(topic) {
            Err(e) if e.kind == Kind::NotFound => return Ok((Known::default(), seen)),
            info => info?.first,
        };
        match known_from(client, topic, first, &mut |key| see(&mut seen, key)) {
            Err(e) if client.log().info(topic)?.first == first => return Err(e),
            Err(_) => {}
            Ok(known) => return Ok((known, seen)),
        }
    }
}

fn known_from(
    client: &mut Client,
    topic: &str,
    first: Index,
    see: &mut impl FnMut(&[u8]),
) -> Result<Known> {
    let mut known = Known { first, next: first, ..Known::default() };
    loop {
        let entries = client.log().read(topic, known.next, ENTRIES)?;
        if entries.is_empty() {
            return Ok(known);
        }
        for entry in entries {
            known.next = Index(entry.index.0 + 1);
            let (index, bytes) = (entry.index, entry.bytes.len());
            let mut note = |position, changed_s, keys: &[Vec<u8>]| {
                known.position = Some((index, position, changed_s));
                let (count, key_bytes) = (keys.len() as u64, key_bytes(keys));
                known.changes.push(Noted { index, changed_s, keys: count, key_bytes, bytes });
            };
            match Entry::read(index, &entry.bytes)? {
                Entry::Empty { position, changed_s } => note(position, changed_s, &[]),
                Entry::Keys { position, changed_s, keys } => {
                    keys.iter().for_each(|key| see(key));
                    note(position, changed_s, &keys);
                }
                Entry::Confirmed { servers, rings } => {
                    known.confirmed = Some((entry.index, servers));
                    known.rings = rings;
                }
            }
        }
    }
}
