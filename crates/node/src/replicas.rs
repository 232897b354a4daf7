//! Chunks with replicas on other nodes: written to all of them in parallel, read from the nearest
//! healthy one, sealed by the log's word. What decides is in the cores below (`window`, `hedge`,
//! `fence`, `latency`); this drives them over the node's own stores and [`Peers`]. Knows no view:
//! a [`Directory`] says who is where. Called by the node's driver and by its peer service.

mod bucket;
mod compact;
mod copy;
mod disks;
mod fence;
mod hedge;
mod latency;
mod reader;
mod seal;
mod set;
mod share;
mod window;

pub(super) use compact::{Answers, compact_anew};
pub use fence::{Decision, FenceRound};
pub use reader::{Answer, Wanted};
pub use seal::SealReport;
pub use set::ReplicaSet;

use super::{Stores, Workers};
use copy::Copies;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Done, Store};
use holdfast_env::net::{PeerReply, PeerRequest, Peers, SharedBody};
use holdfast_env::{Clock, HoldMutex};
use holdfast_wire::peer::Sender;
use latency::Latencies;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The writer's limit: a replica that has not answered an append by then ends the chunk.
pub const WRITER_LIMIT_MS: u64 = 3000;
/// Seals, fences and other requests that wait for a disk.
pub(crate) const CONTROL_MS: u32 = 10_000;
/// A read's answer from one node; others are asked long before.
pub(crate) const READ_MS: u32 = 10_000;
/// How long a store that failed a writer gets no new chunks from it. By then the leader knows.
const SUSPECT_MS: u64 = 10_000;
/// Reports of bad blocks that are kept until somebody takes them.
const BAD_BLOCKS_MAX: usize = 1000;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    /// Of its native protocol: `host:port`.
    pub address: String,
    /// It answers, as far as the cluster knows.
    pub live: bool,
    /// It never comes back, or has been away for so long that it counts as gone.
    pub lost: bool,
}

/// What a node must know of its cluster to send and take messages between nodes: its views, or a
/// test's word.
pub trait Directory: Send + Sync + 'static {
    /// In front of this node's own messages.
    fn sender(&self) -> Sender;
    /// Refuses a sender of another cluster, that is not known, or has started anew since.
    fn admit(&self, sender: &Sender) -> Result<()>;
    /// `None`: no such store is known.
    fn place(&self, store: StoreId) -> Option<Place>;
    /// Whether the log, as far as it was applied here, counts a replica of the chunk on `store`.
    /// An error while nobody here knows the chunk, or its length is not decided.
    fn counts(&self, store: StoreId, chunk: ChunkId) -> Result<bool>;
    /// Refuses unless the entry at `index` was applied here and no entry says any more that
    /// `store` has this generation.
    fn may_unlink(
        &self,
        store: StoreId,
        chunk: ChunkId,
        generation: Generation,
        index: Index,
    ) -> Result<()>;
}

/// A block or object that failed its checksum where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    pub store: StoreId,
    pub chunk: ChunkId,
    pub what: String,
}

/// How often what is rare has happened since the start.
#[derive(Debug, Default)]
pub struct Events {
    /// Reads that a second replica was asked for because the first one took too long.
    pub hedged_reads: AtomicU64,
    /// Chunks that a writer gave up because a replica was slower than its limit.
    pub slow_replicas: AtomicU64,
    /// Copies that went on where an earlier attempt had ended.
    pub resumed_copies: AtomicU64,
    /// Short or damaged replicas that made way for a copy.
    pub set_aside: AtomicU64,
    /// Views that began with another node's snapshot, because the log begins behind the own one.
    pub snapshots_taken_over: AtomicU64,
}

impl Events {
    fn count(event: &AtomicU64) {
        event.fetch_add(1, Ordering::Relaxed);
    }
}

/// One node's dealings with replicas, its own and its peers'.
pub struct Replicator {
    pub stores: Arc<Stores>,
    pub workers: Arc<Workers>,
    pub clock: Arc<dyn Clock>,
    pub peers: Arc<dyn Peers>,
    pub directory: Arc<dyn Directory>,
    /// How fast each node answers reads. Held to look and note.
    latencies: Mutex<BTreeMap<NodeId, Latencies>>,
    /// Answers of all nodes to readers here, and how many came since somebody asked.
    answers: Mutex<(Latencies, u32)>,
    /// Stores that failed a writer, and until when that counts.
    suspects: Mutex<BTreeMap<StoreId, u64>>,
    /// Raw chunks that are written through this node. Held to look up and to swap.
    open: Mutex<HashMap<ChunkId, Arc<ReplicaSet>>>,
    bad_blocks: Mutex<Vec<BadBlock>>,
    pub(crate) copies: Copies,
    pub events: Events,
}

/// A replica's whereabouts.
#[derive(Clone)]
pub(crate) enum Target {
    Own(Store),
    Peer(Place),
}

impl Replicator {
    pub fn new(
        stores: Arc<Stores>,
        workers: Arc<Workers>,
        clock: Arc<dyn Clock>,
        peers: Arc<dyn Peers>,
        directory: Arc<dyn Directory>,
    ) -> Arc<Replicator> {
        Arc::new(Replicator {
            stores,
            workers,
            clock,
            peers,
            directory,
            latencies: Mutex::default(),
            answers: Mutex::default(),
            suspects: Mutex::default(),
            open: Mutex::default(),
            bad_blocks: Mutex::default(),
            copies: Copies::default(),
            events: Events::default(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Whether all of `replicas` are this node's own, so that nothing here is needed.
    pub fn is_alone(&self, replicas: &[StoreId]) -> bool {
        replicas.iter().all(|id| self.stores.get(*id).is_some())
    }

    pub(crate) fn target(&self, store: StoreId) -> Result<Target> {
        if let Some(own) = self.stores.get(store) {
            return Ok(Target::Own(own.store.clone()));
        }
        self.directory.place(store).map(Target::Peer).ok_or_else(|| {
            Error::not_found(format!("use store `{store}`: the cluster knows no such store"))
        })
    }

    /// Sends a message whose answer is `T`.
    pub(crate) fn ask<T: Decode + 'static>(
        &self,
        address: &str,
        opcode: u16,
        meta: &impl Encode,
        body: Option<SharedBody>,
        deadline_ms: u32,
        done: Done<T>,
    ) {
        let request = PeerRequest { opcode, meta: meta.to_bytes(), body, deadline_ms };
        let reply = move |reply: Result<PeerReply>| done(reply.and_then(|r| decode(&r)));
        self.peers.call(address, request, Box::new(reply));
    }

    /// The 90th percentile of answers to readers here lately, in microseconds (0 where too little
    /// is known), and how many came since this was last asked.
    fn answers_seen(&self) -> (u32, u32) {
        let mut answers = self.answers.held();
        let count = std::mem::take(&mut answers.1);
        (answers.0.p90_us(), count)
    }

    /// A store failed a writer: it gets no new chunks from here for a while.
    pub fn suspect(&self, store: StoreId) {
        let until = self.now_ns() + SUSPECT_MS * 1_000_000;
        self.suspects.held().insert(store, until);
    }

    /// Placement leaves such stores out while there are others.
    pub fn is_suspect(&self, store: StoreId) -> bool {
        let now = self.now_ns();
        let mut suspects = self.suspects.held();
        suspects.retain(|_, until| *until > now);
        suspects.contains_key(&store)
    }

    /// The set through which this node writes a raw chunk.
    pub fn open_set(&self, chunk: ChunkId) -> Option<Arc<ReplicaSet>> {
        self.open.held().get(&chunk).cloned()
    }

    /// Keeps a raw chunk's set for its appends, until [`Replicator::forget_set`].
    pub fn keep_set(&self, set: Arc<ReplicaSet>) {
        self.open.held().insert(set.chunk(), set);
    }

    /// Ends a chunk's set, if it is written through this node.
    pub fn forget_set(&self, chunk: ChunkId) -> Option<Arc<ReplicaSet>> {
        let set = self.open.held().remove(&chunk);
        if let Some(set) = &set {
            set.end();
        }
        set
    }

    /// Chunks that this node writes through sets it keeps.
    pub fn open_chunks(&self) -> Vec<ChunkId> {
        self.open.held().keys().copied().collect()
    }

    pub(crate) fn report_bad(&self, store: StoreId, chunk: ChunkId, what: &str) {
        let mut bad = self.bad_blocks.held();
        let report = BadBlock { store, chunk, what: what.to_owned() };
        if bad.len() < BAD_BLOCKS_MAX && !bad.contains(&report) {
            bad.push(report);
        }
    }

    /// Bad blocks found since this was last asked: the leader has them repaired.
    pub fn take_bad_blocks(&self) -> Vec<BadBlock> {
        std::mem::take(&mut self.bad_blocks.held())
    }
}

/// An answer's meta. A peer of another build may send anything.
pub(super) fn decode<T: Decode>(reply: &PeerReply) -> Result<T> {
    T::from_bytes(&reply.meta).map_err(|e| {
        Error::new(Kind::Unsupported, format!("read a peer's answer: {e}: use matching builds"))
    })
}

/// A shared body as a store takes it.
pub(super) struct Shared(pub SharedBody);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}
