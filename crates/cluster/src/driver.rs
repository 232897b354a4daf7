//! The driver of one node: opens stores, log and views, proposes commands, writes packed chunks,
//! and keeps house. Decides nothing that a fold should: every choice becomes an entry, and the
//! stores follow what the view accepted. Called by the services.

mod chunks;
mod keeper;
mod open;
mod packed;
mod peer_service;
pub mod replicas;
mod stores;
mod work;

pub use chunks::Source;
pub use keeper::{Keeper, KeeperOptions};
pub use open::NodeConfig;
pub use peer_service::is_peer_operation;
pub use stores::{OwnStore, Stores};
pub use work::Workers;

use crate::{ClusterView, Command, Namespace, Outcome};
use holdfast_base::codec::Decode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, NodeId, Pointer, Sequence, SessionId, StoreId, Tier,
};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Body, ChunkSpec, Done, Needle, ScrubStep, Store};
use holdfast_env::{Clock, Disk, Rng};
use holdfast_log::{EmbeddedLog, Fold, Mode, Request};
use packed::PackedWriters;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The topic of shard 0's namespace.
pub const NAMESPACE_TOPIC: &str = "namespace/0";
/// The topic of the cluster view.
pub const CLUSTER_TOPIC: &str = "cluster";

/// Whose request a proposal is.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub session: SessionId,
    pub sequence: Sequence,
    pub acknowledged_below: Sequence,
}

/// The machine that a node runs on, or a simulation of it.
#[derive(Clone)]
pub struct Machine {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// One node: its stores, its log, its views.
pub struct Node {
    pub id: NodeId,
    pub machine: Machine,
    pub stores: Stores,
    pub log: Arc<EmbeddedLog>,
    pub namespace: Fold<Namespace>,
    pub cluster: Fold<ClusterView>,
    pub workers: Arc<Workers>,
    packed: PackedWriters,
    /// What recovery and housekeeping found, one sentence each, for `doctor`. Bounded.
    findings: Mutex<Vec<String>>,
    /// What scrubbing has read and found, a store.
    scrubbed: Mutex<BTreeMap<StoreId, Scrubbed>>,
    /// Keeps the data directory's lock.
    _lock: Box<dyn Send + Sync>,
}

/// How far scrubbing has come since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrubbed {
    pub bytes: u64,
    pub bad: u64,
}

/// Findings kept; later ones are dropped, for a node that finds so many needs a person first.
const FINDINGS_MAX: usize = 1000;

/// A raw chunk to append to.
#[derive(Clone, Copy, Debug)]
pub struct RawGrant {
    pub chunk: ChunkId,
    pub tier: Tier,
    pub durability: Durability,
    pub capacity: u64,
}

/// How durable a chunk's allocation must be: a file outlives the process, so its entry must never
/// be lost, or the chunk's id would be drawn again while the file is there.
fn allocation(tier: Tier, class: Durability) -> Durability {
    match tier {
        Tier::Dram => class,
        Tier::Disk => Durability::Durable,
    }
}

fn mode(durability: Durability) -> Mode {
    match durability {
        Durability::Durable => Mode::Synced,
        Durability::Memory => Mode::Ordered,
    }
}

impl Node {
    pub fn find(&self, finding: String) {
        let mut findings = self.findings.lock().expect("no holder of this lock panics");
        if findings.len() < FINDINGS_MAX && !findings.contains(&finding) {
            findings.push(finding);
        }
    }

    pub fn findings(&self) -> Vec<String> {
        self.findings.lock().expect("no holder of this lock panics").clone()
    }

    /// Appends a command to the namespace and answers what the view made of it.
    pub fn propose(
        &self,
        caller: Caller,
        command: &Command,
        durability: Durability,
        done: Done<Outcome>,
    ) {
        self.namespace.propose(
            Request {
                session: caller.session,
                sequence: caller.sequence,
                acknowledged_below: caller.acknowledged_below,
                command: command.to_entry(),
                mode: mode(durability),
            },
            Box::new(move |result| {
                done(result.and_then(|(_, bytes)| Ok(Outcome::from_bytes(&bytes)?)));
            }),
        );
    }

    /// As [`Node::propose`], for the node's own commands, which nobody repeats.
    pub fn propose_own(&self, command: Command, durability: Durability, done: Done<Outcome>) {
        let caller = Caller {
            session: SessionId(0),
            sequence: Sequence(0),
            acknowledged_below: Sequence(0),
        };
        self.propose(caller, &command, durability, done);
    }

    /// Proposes and waits; for housekeeping threads only.
    pub fn propose_and_wait(&self, command: Command, durability: Durability) -> Result<Outcome> {
        self.wait_for(|done| self.propose_own(command, durability, done))
    }

    /// Waits for a callback; without threads, does the work that it waits for.
    fn wait_for<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T> {
        let (sender, receiver) = std::sync::mpsc::channel();
        start(Box::new(move |result| {
            let _ = sender.send(result);
        }));
        self.pump();
        receiver.recv().map_err(|_| Error::retry("wait for the log: it has ended"))?
    }

    /// Performs pending commits of log and stores, for nodes without threads.
    pub fn pump(&self) {
        if self.workers.is_inline() {
            // An acknowledged append may lead to a proposal, and that to another append.
            loop {
                self.stores.iter().for_each(|own| own.store.pump());
                if !self.log.pump() {
                    break;
                }
            }
        }
    }

    /// Stores one object in a packed chunk and answers where.
    pub fn pack(
        self: &Arc<Node>,
        class: StorageClass,
        owner: FileId,
        hint: &str,
        body: Body,
        crcs: Vec<u32>,
        done: Done<Pointer>,
    ) {
        let cookie = Cookie(self.machine.rng.next_u64() as u32);
        // A hint that does not fit is cut at a character, never inside one.
        let mut len = hint.len().min(holdfast_chunk::NEEDLE_HINT_BYTES_MAX);
        while !hint.is_char_boundary(len) {
            len -= 1;
        }
        let needle = Needle { owner, cookie, flags: 0, hint: hint.as_bytes()[..len].to_vec() };
        self.packed.append(self, class, needle, body, crcs, done);
    }

    /// Seals what this node was writing, so that the next start has nothing to recover.
    pub fn retire(self: &Arc<Node>) {
        self.packed.retire_all(self);
    }

    /// The cluster says that a store never comes back.
    fn store_is_gone(&self, store: StoreId) -> bool {
        let state = self.cluster.read(|view, _| view.store(store).map(|info| info.state));
        matches!(state, Ok(Some(crate::StoreState::Gone)))
    }

    /// Adds up a scrubber's step; what is damaged becomes a finding.
    fn count_scrubbed(&self, store: StoreId, step: &ScrubStep) {
        {
            let mut scrubbed = self.scrubbed.lock().expect("no holder of this lock panics");
            let sum = scrubbed.entry(store).or_default();
            sum.bytes += step.bytes;
            sum.bad += step.damaged.len() as u64;
        }
        for damage in &step.damaged {
            self.find(format!("chunk `{}` is damaged: {}", damage.chunk, damage.what));
        }
    }

    pub fn scrubbed(&self, store: StoreId) -> Scrubbed {
        let scrubbed = self.scrubbed.lock().expect("no holder of this lock panics");
        scrubbed.get(&store).copied().unwrap_or_default()
    }
}
