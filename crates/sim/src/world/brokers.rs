//! Brokers of the simulated world: one log that is no node's, at an address of its own, which nodes reach
//! over the network as they reach each other. What it acknowledged stays: how brokers keep that among
//! themselves is theirs.

use super::cell::MS;
use crate::unruly::{Gapped, UnrulyLog};
use crate::{Life, Listener, Over, SimDisk, SimNet};
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Indices, Result};
use holdfast_env::net::{PeerDone, PeerRequest, Peers};
use holdfast_env::{HoldMutex, Rng, SeededRng};
use holdfast_log::{
    Done, Drive, EmbeddedLog, Info, Log, LogHost, LogOptions, Mode, RemoteLog, Scope, SharedLog,
};
use holdfast_wire::peer::Sender;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Where they are.
pub const ADDRESS: &str = "brokers";
/// A commit is carried out so long after it was asked for, at most.
const PUMP_NS_MAX: u64 = 3 * MS;

pub struct Brokers {
    net: SimNet,
    rng: SeededRng,
    disk: SimDisk,
    /// With its gaps.
    pub kept: Arc<EmbeddedLog>,
    host: LogHost,
    /// Whose log it is, once somebody has begun it.
    id: Mutex<Option<u64>>,
    pump_due: AtomicBool,
}

impl Brokers {
    pub fn new(net: &SimNet, seed: u64, unruly: bool) -> Result<Arc<Brokers>> {
        let options =
            LogOptions { drive: Drive::Pump, segment_bytes: 256 << 10, ..LogOptions::default() };
        let disk = SimDisk::new(seed);
        let kept = EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/brokers"), options)?;
        let kept = Arc::new(kept);
        let peers = net.peers(ADDRESS, &Life::default());
        let shown: Arc<dyn Log> = match unruly {
            true => Arc::new(UnrulyLog::new(kept.clone(), peers, SeededRng::new(seed))),
            false => kept.clone(),
        };
        let brokers = Arc::new(Brokers {
            net: net.clone(),
            rng: SeededRng::new(seed),
            disk,
            kept,
            host: LogHost::new(shown),
            id: Mutex::new(None),
            pump_due: AtomicBool::new(false),
        });
        net.listen(ADDRESS, Arc::new(Door(brokers.clone())));
        brokers.pump_now_and_then();
        Ok(brokers)
    }

    /// The log as a node has it that belongs to the cluster `known`, or begins `new`.
    pub fn open(
        self: &Arc<Brokers>,
        at: &str,
        peers: &Arc<dyn Peers>,
        (known, new): (Option<u64>, u64),
    ) -> Result<Arc<dyn SharedLog>> {
        self.reach(at, "open the log")?;
        let id = *self.id.held().get_or_insert(known.unwrap_or(new));
        if known.is_some_and(|known| known != id) {
            return Err(Error::bug(format!("the log is cluster `{id:016x}`'s")));
        }
        let sender = Sender { cluster: id, node: NodeId(0), incarnation: Index(0) };
        let remote = RemoteLog::new(peers.clone(), ADDRESS, sender);
        Ok(Arc::new(Reached { brokers: self.clone(), at: at.to_owned(), remote, id }))
    }

    fn reach(&self, at: &str, doing: &str) -> Result<()> {
        let cut = self.net.are_apart(at, ADDRESS);
        match cut || self.rng.next_u64().is_multiple_of(100) {
            true => Err(Error::retry(format!("{doing}: no broker answers: ask again"))),
            false => Ok(()),
        }
    }

    fn pump_soon(self: &Arc<Brokers>) {
        if !self.pump_due.swap(true, Ordering::Relaxed) {
            let brokers = self.clone();
            self.net.after_ns(1000 + self.rng.next_u64() % PUMP_NS_MAX, move || {
                brokers.pump_due.store(false, Ordering::Relaxed);
                while brokers.kept.pump() {}
            });
        }
    }

    /// What an unruly log appends later, nobody has asked for just before.
    fn pump_now_and_then(self: &Arc<Brokers>) {
        let brokers = self.clone();
        self.net.after_ns(10 * MS, move || {
            while brokers.kept.pump() {}
            brokers.pump_now_and_then();
        });
    }

    /// Nothing holds the other any more.
    pub fn end(&self) {
        self.host.release();
        self.disk.forget();
    }
}

struct Door(Arc<Brokers>);

impl Listener for Door {
    fn request(&self, _: Over<'_>, request: PeerRequest, reply: PeerDone) {
        let body = request.body.as_ref().map_or(&[][..], |body| (**body).as_ref());
        self.0.host.serve(request.opcode, &request.meta, body, reply);
        self.0.pump_soon();
    }
}

/// The log, for one reader a topic of one node. What production waits for is asked for and answered at
/// once: events of other nodes would have to happen within the wait.
struct Reached {
    brokers: Arc<Brokers>,
    at: String,
    remote: RemoteLog,
    id: u64,
}

impl Reached {
    fn reached(&self, doing: &str, topic: &str) -> Result<Gapped> {
        self.brokers.reach(&self.at, &format!("{doing} topic `{topic}`"))?;
        Ok(Gapped(self.brokers.kept.clone()))
    }
}

impl SharedLog for Reached {
    fn id(&self) -> u64 {
        self.id
    }

    fn place(&self) -> String {
        format!("simulated://{ADDRESS}")
    }

    fn another_reader(&self) -> Arc<dyn SharedLog> {
        let (brokers, at) = (self.brokers.clone(), self.at.clone());
        Arc::new(Reached { brokers, at, remote: self.remote.another_reader(), id: self.id })
    }

    fn fetch(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        let kept = self.reached("read", topic)?;
        kept.read(topic, from, entries_max, bytes_max, Scope::Durable)
    }

    fn describe(&self, topic: &str) -> Result<Info> {
        self.reached("describe", topic)?.info(topic)
    }

    fn refusals(&self) -> Vec<Error> {
        Vec::new()
    }

    fn trouble(&self, topic: &str) -> Option<Error> {
        self.remote.trouble(topic)
    }
}

impl Log for Reached {
    fn create(&self, topic: &str) -> Result<()> {
        self.reached("create", topic)?.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        self.remote.append(topic, entries, mode, done);
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.remote.read(topic, from, entries_max, bytes_max, scope)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        self.remote.tail(topic, from, wake);
    }

    fn recovers(&self, topic: &str, wake: Done<()>) {
        self.remote.recovers(topic, wake);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.remote.sync(topic)
    }

    /// As brokers do, which keep the last entry.
    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        let kept = self.reached("trim", topic)?;
        let last = Index(kept.info(topic)?.next.0.saturating_sub(1));
        kept.trim(topic, before.min(last))
    }

    fn info(&self, topic: &str) -> Result<Info> {
        self.remote.info(topic).or_else(|_| self.describe(topic))
    }

    fn ask(&self, topic: &str, done: Done<Info>) {
        self.remote.ask(topic, done);
    }

    fn topics(&self) -> Vec<String> {
        self.brokers.kept.topics()
    }
}
