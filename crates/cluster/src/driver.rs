//! The driver of one node: opens stores, log and views, proposes commands, writes packed chunks,
//! and keeps house. Decides nothing that a fold should: every choice becomes an entry, and the
//! stores follow what the view accepted. Called by the services.

mod keeper;
mod open;
mod packed;
mod peer_service;
pub mod replicas;
mod stores;
mod work;

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

    /// Allocates and makes the next raw chunk of an unclosed file.
    pub fn allocate_raw(
        self: &Arc<Node>,
        caller: Caller,
        file: FileId,
        class: StorageClass,
        done: Done<RawGrant>,
    ) {
        let own = match self.stores.place(class, 0) {
            Ok(own) => own,
            Err(e) => return done(Err(e)),
        };
        let (store_id, tier, durability) = (own.id, own.tier, class.durability());
        let command = Command::AllocateChunk {
            kind: crate::ChunkKind::Raw,
            owner: file,
            node: self.id,
            replicas: vec![store_id],
            tier,
            durability,
        };
        let node = self.clone();
        self.propose(
            caller,
            &command,
            allocation(tier, durability),
            Box::new(move |outcome| {
                let workers = node.clone();
                workers.workers.run(move || {
                    done(outcome.and_then(|outcome| {
                        node.make_raw(outcome, store_id, tier, durability, file)
                    }));
                });
            }),
        );
    }

    fn make_raw(
        &self,
        outcome: Outcome,
        store_id: StoreId,
        tier: Tier,
        durability: Durability,
        file: FileId,
    ) -> Result<RawGrant> {
        let Outcome::Chunk { chunk } = outcome else {
            return Err(Error::bug("allocate a raw chunk: the view answered something else"));
        };
        let own = self.stores.get(store_id).ok_or_else(|| {
            Error::bug(format!("allocate a raw chunk: store `{store_id}` vanished"))
        })?;
        let spec = ChunkSpec {
            durability,
            capacity_bytes: own.chunk_bytes(),
            ..ChunkSpec::new(chunk, holdfast_chunk::ChunkKind::Raw, file.0)
        };
        match own.store.create(spec) {
            // The repetition of an allocation that went through: the chunk is there.
            Err(e) if e.kind == Kind::Exists => {}
            other => other?,
        }
        Ok(RawGrant { chunk, tier, durability, capacity: spec.capacity_bytes })
    }

    /// Proposes a chunk's seal, behind which an entry that needs it may be proposed at once; the
    /// store follows later.
    pub fn seal_soon(self: &Arc<Node>, chunk: ChunkId, length: u64, durability: Durability) {
        let replicas = self.namespace.read(|view, _| view.chunk(chunk).map(|c| c.replicas.clone()));
        let Ok(Some(replicas)) = replicas else { return };
        let (node, held) = (self.clone(), replicas.clone());
        self.propose_own(
            Command::SealChunk { chunk, length, replicas },
            durability,
            Box::new(move |outcome| {
                let Ok(Outcome::Sealed { length, .. }) = outcome else { return };
                let workers = node.workers.clone();
                workers.run(move || {
                    let Some(store) = node.stores.holding(&held) else { return };
                    if let Err(e) = store.seal(chunk, length) {
                        node.find(format!("seal chunk `{chunk}` at {length} bytes: {e}"));
                    }
                });
            }),
        );
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

    /// Fixes a retired packed chunk's length: entry first, then the store.
    fn seal_packed(self: &Arc<Node>, chunk: ChunkId, store: &Store) {
        let (node, store) = (self.clone(), store.clone());
        self.workers.run(move || {
            let sealed = store.length(chunk).and_then(|length| node.seal(chunk, length));
            if let Err(e) = sealed {
                node.find(format!("seal packed chunk `{chunk}`: {e}"));
            }
        });
    }

    /// Has the log decide a chunk's length, then makes the store follow. Answers the length that
    /// the first seal decided. Waits.
    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<u64> {
        let Some((replicas, durability)) = self.namespace.read(|view, _| {
            view.chunk(chunk).map(|info| (info.replicas.clone(), info.durability))
        })?
        else {
            return Err(Error::not_found(format!(
                "seal chunk `{chunk}`: the namespace knows no such chunk"
            )));
        };
        let command = Command::SealChunk { chunk, length, replicas: replicas.clone() };
        let Outcome::Sealed { length, .. } = self.propose_and_wait(command, durability)? else {
            return Err(Error::bug("seal a chunk: the view answered something else"));
        };
        if let Some(store) = self.stores.holding(&replicas) {
            store.seal(chunk, length)?;
        }
        Ok(length)
    }
}
