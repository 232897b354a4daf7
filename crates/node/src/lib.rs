//! The drivers of one node: opens stores, log and views, proposes commands, writes packed chunks,
//! and keeps house. Decides nothing that a fold should: every choice becomes an entry, and the
//! stores follow what the view accepted. Called by the services.
#![forbid(unsafe_code)]

mod ahead;
mod audit;
mod beats;
mod chunks;
mod compare;
mod cuts;
mod ended;
mod growth;
mod health;
mod holds;
mod identity;
mod idle;
mod keeper;
mod keeps;
mod leader;
mod lost_log;
mod member;
mod moved_log;
mod open;
mod open_log;
mod own_stores;
mod packed;
mod peer_service;
mod reached;
mod rebuild;
mod registry;
pub mod replicas;
mod retention;
mod rewrite;
mod shards;
mod snapshots;
mod standing;
mod stores;
mod views;
mod work;

pub use audit::{Answered, Audit, Deed, Matter, Trail};
pub use beats::{Beaten, Beats};
pub use chunks::Source;
pub use cuts::Cuts;
pub use health::{Condition, Watch};
pub use holds::{Held, Holds};
pub use identity::Identity;
pub use idle::IdleSessions;
pub use keeper::{Keeper, KeeperOptions};
pub use keeps::LogKeeper;
pub use leader::Leader;
pub use member::{Member, MemberOptions};
pub use open::NodeConfig;
use open::snapshot_store;
pub use open_log::LogEngine;
pub use peer_service::PEER_OPERATIONS;
pub use rebuild::RebuiltNames;
pub use retention::Hold;
pub use rewrite::FaceChunk;
pub use shards::ShardFolds;
pub use snapshots::{Ends, EntryAt, SNAPSHOT_OPERATIONS};
pub use stores::{OwnStore, Stores};
pub use work::Workers;

use crate::growth::Growth;
use holdfast_base::codec::Decode;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Index, NodeId, Pointer, StoreId, Tier,
};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_chunk::{Body, Done, Needle, ScrubStep};
use holdfast_cluster::cluster::FreeSpace;
use holdfast_cluster::liveness::HeardBeat;
use holdfast_cluster::{ClusterCommand, ClusterView, Command, Outcome, SHARDS_MAX};
use holdfast_env::disk::Lock;
use holdfast_env::net::{Meter, Peers};
use holdfast_env::{Clock, Disk, Engine, HoldMutex, Rng, event, planted};
use holdfast_log::{Log, Mode};
use holdfast_view::{Fold, FoldOptions, Request};
use holdfast_wire::Call;
use holdfast_wire::admin::{MOVE_WAITS, STOPPED_VIEW};
use holdfast_wire::peer::{self, Sender};
use packed::{Gathered, PackedWriters, Packing};
use replicas::Replicator;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The machine that a node runs on, or a simulation of it.
#[derive(Clone)]
pub struct Machine {
    pub disk: Arc<dyn Disk>,
    /// Keeps the rows of views that are larger than memory.
    pub engine: Arc<dyn Engine>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub peers: Arc<dyn Peers>,
    /// What the connections of this process carry.
    pub meter: Arc<Meter>,
}

/// One node: its stores, its log, its views.
pub struct Node {
    pub id: NodeId,
    /// In front of every message to another node.
    pub sender: Sender,
    pub machine: Machine,
    pub stores: Arc<Stores>,
    pub log: Arc<dyn Log>,
    /// Who keeps it.
    pub kept: LogKeeper,
    /// Where this node is reached: `host:port`.
    pub address: String,
    /// Names and chunks.
    pub shards: Arc<ShardFolds>,
    pub cluster: Arc<Fold<ClusterView>>,
    pub workers: Arc<Workers>,
    pub replicator: Arc<Replicator>,
    /// New chunks have one replica in a store of this node, where that is possible.
    near: bool,
    pub leader: Leader,
    /// The claims that this node commands under, while it leads.
    pub(crate) leading: Leading,
    /// Beats that other nodes sent here since the leader looked last.
    heard: Mutex<Vec<(HeardBeat, Vec<FreeSpace>)>>,
    /// What a person said, and is asked.
    operator: Mutex<Operator>,
    /// Whom this node may not reach, in development clusters.
    cuts: Arc<Cuts>,
    packed: PackedWriters,
    /// What recovery and housekeeping found, one sentence each, for `doctor`. Bounded.
    findings: Mutex<Vec<String>>,
    /// The views above, and those that faces keep.
    views: registry::Registry,
    /// When their snapshots are taken.
    fold: FoldOptions,
    /// What other nodes' views were found to be beside this one's, by topic.
    compared: Mutex<BTreeMap<String, compare::Compared>>,
    /// By topic, what this node has of images of its views.
    images: Mutex<BTreeMap<String, compare::Imaged>>,
    /// What rides of this node hold of topics.
    pub holds: Holds,
    /// From the append of this node's beats, while it is a controller, until its view has them.
    pub beats: Beats,
    /// Where the log is kept: by topic and node, the latest hold that has run out. All before it have.
    ran_out: Mutex<BTreeMap<String, BTreeMap<NodeId, Index>>>,
    /// Where the log is kept: by topic, the newest mark of which a view lost its image.
    lost_images: Mutex<BTreeMap<String, Index>>,
    /// Marks of which images of this node's differ from others', by topic, as of the last round.
    differing_images: Mutex<BTreeMap<String, BTreeSet<Index>>>,
    /// By topic, the newest mark of which nodes have images of all keys, as of the last round.
    marks: Mutex<BTreeMap<String, Index>>,
    /// Which topics are kept for how long, where the log is kept.
    retained: Mutex<retention::Retained>,
    data: PathBuf,
    /// How far the log was, where it is kept here.
    reached: Mutex<reached::Reached>,
    /// Topics of it that were put back from an older copy. Never held while anything is called.
    older: Mutex<reached::Older>,
    /// What else is asked for its health.
    watches: Mutex<Vec<Watch>>,
    /// What scrubbing has read and found, a store.
    scrubbed: Mutex<BTreeMap<StoreId, Scrubbed>>,
    growth: Mutex<BTreeMap<StoreId, Growth>>,
    /// When an entry of the cluster topic arrived last, as the member's thread saw it; 0 where
    /// nobody looks.
    heard_log_ns: AtomicU64,
    /// The data directory's.
    lock: Box<dyn Lock>,
}

/// Epochs of a leader; 0 while this node does not lead.
#[derive(Debug)]
pub(crate) struct Leading {
    cluster: AtomicU64,
    /// One a shard.
    shards: Box<[AtomicU64]>,
}

/// The claims of a term: of the cluster topic, and of every shard's that was open, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub cluster: Index,
    pub shards: BTreeMap<u16, Index>,
}

impl Default for Leading {
    fn default() -> Leading {
        let shards = (0..SHARDS_MAX).map(|_| AtomicU64::new(0)).collect();
        Leading { cluster: AtomicU64::new(0), shards }
    }
}

impl Leading {
    pub fn set(&self, claims: &Claims) {
        self.cluster.store(claims.cluster.0, Ordering::Release);
        for (shard, epoch) in (0u16..).zip(&self.shards) {
            let claim = claims.shards.get(&shard).map_or(0, |claim| claim.0);
            epoch.store(claim, Ordering::Release);
        }
    }

    pub fn give_up(&self) {
        self.set(&Claims { cluster: Index(0), shards: BTreeMap::new() });
    }

    pub fn cluster(&self) -> Option<Index> {
        Some(Index(self.cluster.load(Ordering::Acquire))).filter(|epoch| epoch.0 != 0)
    }

    pub fn shard(&self, shard: u16) -> Option<Index> {
        let epoch = self.shards.get(shard as usize)?.load(Ordering::Acquire);
        Some(Index(epoch)).filter(|epoch| epoch.0 != 0)
    }
}

/// Between the leader and a person.
#[derive(Debug, Default)]
struct Operator {
    /// Nodes that do not come back, as was said since the leader looked last.
    confirmed: Vec<NodeId>,
    /// Nodes about which the leader asks.
    unconfirmed: Vec<NodeId>,
}

/// Beats kept for a leader that has not looked; each node sends two a second.
const HEARD_MAX: usize = 1 << 16;

/// How far scrubbing has come since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrubbed {
    pub bytes: u64,
    /// Damaged places, each counted once however often it was read.
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

fn own_request(command: Vec<u8>, mode: Mode) -> Request {
    Request::of(Call::default(), command, mode)
}

fn not_leading() -> Error {
    Error::fenced("command the cluster: this node does not lead it (any more)")
}

/// What a path leaves with its bytes, for names to be made again from: cut where it does not fit,
/// at a character, never inside one.
fn hint_of(path: &str) -> &[u8] {
    let mut len = path.len().min(holdfast_chunk::NEEDLE_HINT_BYTES_MAX);
    while !path.is_char_boundary(len) {
        len -= 1;
    }
    &path.as_bytes()[..len]
}

impl Node {
    pub fn report_finding(&self, finding: String) {
        let mut findings = self.findings.held();
        if findings.len() < FINDINGS_MAX && !findings.contains(&finding) {
            event!(Finding, finding, node = self.id.0);
            findings.push(finding);
        }
    }

    /// What was found is so no more.
    pub fn withdraw_finding(&self, finding: &str) {
        self.findings.held().retain(|found| found != finding);
    }

    /// Appends to a topic of the log that is kept here, away from the caller, which must not wait for
    /// a disk: the first append to a topic makes it.
    pub fn append_here(
        &self,
        topic: String,
        entries: Vec<Vec<u8>>,
        mode: Mode,
        done: Done<Indices>,
    ) {
        let log = self.log.clone();
        self.workers.run(move || match log.create(&topic) {
            Ok(()) => log.append(&topic, entries, mode, done),
            Err(e) => done(Err(e)),
        });
    }

    /// Something failed that is tried again. For want of room is nothing to keep, for it would stay
    /// when there is room again: the condition `space` says so as long as there is none.
    pub fn report_failure(&self, doing: impl std::fmt::Display, e: &Error) {
        if e.kind != Kind::Full || planted!("log.full-disk-stays-a-finding") {
            self.report_finding(format!("{doing}: {e}"));
        }
    }

    /// Why views of this node have stopped, a sentence each: what they held is not served here
    /// until a start with another build, or other files. Everything else is.
    pub fn stopped_views(&self) -> Vec<String> {
        let stopped = self.views.stopped().into_iter();
        stopped.map(|(topic, why)| format!("{STOPPED_VIEW} `{topic}`: {why}")).collect()
    }

    /// Fails once the data directory at its path is another one, or none. Files that this process
    /// wrote from then on could be another node's.
    fn check_place(&self) -> Result<()> {
        match self.lock.is_in_place() {
            Ok(false) if !planted!("node.writes-into-anothers-directory") => {
                Err(Error::fenced(format!(
                    "keep data in `{}`: its LOCK was removed or replaced, so another process may use it: stop what removes files of a running node, and start this one again",
                    self.data.display()
                )))
            }
            // A disk that fails says so where it is read and written.
            _ => Ok(()),
        }
    }

    /// Whether the names of all shards go on.
    pub fn has_names(&self) -> bool {
        self.shards.unopened().is_empty()
            && self.shards.all().all(|(_, fold)| fold.status().stopped.is_none())
    }

    /// Whether the map goes on, without which nothing is known of any shard. What is in a shard whose own
    /// view has stopped is left alone; everything else does not depend on it.
    pub(crate) fn has_root(&self) -> bool {
        self.shards.root().status().stopped.is_none() && !planted!("node.one-shard-stops-all")
            || self.has_names()
    }

    pub fn findings(&self) -> Vec<String> {
        let mut all = self.stopped_views();
        all.extend(self.unopened());
        all.extend(self.doubts().into_iter().map(|doubt| doubt.sentence));
        all.extend(self.differing());
        let waiting = self.read_all(holdfast_cluster::moves::waiting).unwrap_or_default();
        all.extend(waiting.into_iter().map(|why| format!("{MOVE_WAITS}{why}")));
        all.extend(self.findings.held().iter().cloned());
        // Snapshots that are damaged, or could not be taken.
        all.extend(self.views.all().into_iter().flat_map(|(_, view)| view.status().reports));
        all.extend(self.lost_memory());
        all
    }

    /// Appends a command to the topic of the shard that it is for, and answers what the view made of
    /// it.
    pub fn propose(
        &self,
        call: Call,
        command: &Command,
        durability: Durability,
        done: Done<Outcome>,
    ) {
        match self.shard_of(command) {
            Ok(shard) => self.propose_in(shard, call, command, durability, done),
            Err(e) => done(Err(e)),
        }
    }

    /// As [`Node::propose`], to this shard's.
    pub fn propose_in(
        &self,
        shard: u16,
        call: Call,
        command: &Command,
        durability: Durability,
        done: Done<Outcome>,
    ) {
        let fold = match self.shards.get(shard) {
            Ok(fold) => fold,
            Err(e) => return done(Err(e)),
        };
        if shard != 0
            && call.session.0 != 0
            && let Err(e) = self.check_session(call.session)
        {
            return done(Err(e));
        }
        match self.known_elsewhere(shard, &call, command) {
            Ok(None) => {}
            Ok(Some(first)) => return done(Outcome::from_bytes(&first).map_err(Error::from)),
            Err(e) => return done(Err(e)),
        }
        // What was decided before is answered so again.
        if command.adds_names()
            && let Err(e) = self.takes_names()
            && fold.known(call.session, call.sequence).is_none()
        {
            return done(Err(e));
        }
        if let Err(e) = self.check_still(shard, command)
            && fold.known(call.session, call.sequence).is_none()
        {
            return done(Err(e));
        }
        let entry = match self.shards.entry_of(command) {
            Ok(entry) => entry,
            Err(e) => return done(Err(e)),
        };
        fold.propose(
            Request::of(call, entry, mode(durability)),
            Box::new(move |result| {
                done(result.and_then(|(_, bytes)| Ok(Outcome::from_bytes(&bytes)?)));
            }),
        );
    }

    /// As [`Node::propose`], for the node's own commands, which nobody repeats.
    pub fn propose_own(&self, command: Command, durability: Durability, done: Done<Outcome>) {
        self.propose(Call::default(), &command, durability, done);
    }

    /// Proposes and waits; for housekeeping threads only.
    pub fn propose_and_wait(&self, command: Command, durability: Durability) -> Result<Outcome> {
        self.wait_for(|done| self.propose_own(command, durability, done))
    }

    /// Whether this node has not heard from the log for so long that what its views say may be old,
    /// and it may be deposed: controllers write to it twice a second.
    pub fn is_behind(&self) -> bool {
        let heard_ns = self.heard_log_ns.load(Ordering::Relaxed);
        heard_ns != 0
            && self.machine.clock.monotonic_ns().saturating_sub(heard_ns)
                > member::STALE_MS * 1_000_000
    }

    /// Whether this node commands the cluster, as far as it knows.
    pub fn leads(&self) -> bool {
        self.leading.shard(0).is_some()
    }

    /// Appends a leader's command to a shard's topic: refused once another node has claimed that.
    pub fn command(
        &self,
        shard: u16,
        command: &Command,
        durability: Durability,
        done: Done<Outcome>,
    ) {
        let Some(epoch) = self.leading.shard(shard) else { return done(Err(not_leading())) };
        let fold = match self.shards.get(shard) {
            Ok(fold) => fold,
            Err(e) => return done(Err(e)),
        };
        let request = own_request(command.to_entry(), mode(durability));
        let done = move |result: Result<(Index, Vec<u8>)>| {
            done(result.and_then(|(_, bytes)| Ok(Outcome::from_bytes(&bytes)?)));
        };
        fold.propose_as(epoch, request, Box::new(done));
    }

    pub fn command_and_wait(
        &self,
        shard: u16,
        command: &Command,
        durability: Durability,
    ) -> Result<Outcome> {
        self.wait_for(|done| self.command(shard, command, durability, done))
    }

    /// Appends a leader's command to the cluster view.
    pub fn command_cluster(&self, command: &ClusterCommand, done: Done<()>) {
        let Some(epoch) = self.leading.cluster() else { return done(Err(not_leading())) };
        let request = own_request(command.to_entry(), Mode::Synced);
        self.cluster.propose_as(epoch, request, Box::new(|result| done(result.map(|_| ()))));
    }

    /// Appends a command that any node may give to the cluster view.
    pub fn propose_cluster(&self, command: &ClusterCommand, done: Done<()>) {
        let request = own_request(command.to_entry(), Mode::Synced);
        self.cluster.propose(request, Box::new(|result| done(result.map(|_| ()))));
    }

    /// Takes note of another node's beat, for the leader that this node is or will be.
    pub fn hear(&self, beat: &peer::Beat) {
        let peer::Beat { sender, free } = beat;
        let mut heard = self.heard.held();
        if heard.len() < HEARD_MAX {
            let (node, incarnation) = (sender.node, sender.incarnation);
            let free = free.iter().map(|f| FreeSpace { store: f.store, free_mib: f.free_mib });
            heard.push((HeardBeat { node, incarnation }, free.collect()));
        }
    }

    fn operator(&self) -> std::sync::MutexGuard<'_, Operator> {
        self.operator.held()
    }

    /// A person says that these nodes do not come back; for the leader.
    pub fn confirm_lost(&self, nodes: &[NodeId]) -> Result<()> {
        if !self.leads() {
            return Err(not_leading());
        }
        self.operator().confirmed.extend_from_slice(nodes);
        Ok(())
    }

    /// Nodes that the leader would give up if a person said so.
    pub fn unconfirmed(&self) -> Vec<NodeId> {
        self.operator().unconfirmed.clone()
    }

    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Waits for a callback; without threads, does the work that it waits for, or lets the
    /// simulation go on.
    pub fn wait_for<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T> {
        views::wait_for(&*self.machine.peers, &|| self.pump(), start)
    }

    /// Performs pending commits of log and stores, for nodes without threads.
    pub fn pump(&self) {
        if self.workers.is_inline() {
            // An acknowledged append may lead to a proposal, and that to another append.
            loop {
                self.stores.iter().for_each(|own| own.store.pump());
                if !self.hosted().is_some_and(|log| log.pump()) {
                    break;
                }
            }
        }
    }

    /// Stores one object in a packed chunk of the shard whose names will point to it, and answers
    /// where.
    pub fn pack(
        self: &Arc<Node>,
        class: StorageClass,
        (shard, owner): (u16, FileId),
        hint: &str,
        body: Body,
        crcs: Vec<u32>,
        done: Done<Pointer>,
    ) {
        let cookie = Cookie(self.machine.rng.next_u64() as u32);
        let needle = Needle { owner, cookie, flags: 0, hint: hint_of(hint).to_vec() };
        self.packed.append(
            self,
            (shard, FileId(0)),
            class,
            vec![Packing { needle, body, crcs, done }],
        );
    }

    /// As [`Node::pack`], for a face that keeps the names of its objects itself: in chunks of its
    /// own, whose live slots it tells ([`Node::rewrite`], `Command::FreeChunk`). The objects go
    /// into one chunk, in one durable append; answers their pointers when all are there.
    pub fn pack_for(
        self: &Arc<Node>,
        face: FileId,
        class: StorageClass,
        bodies: Vec<(Body, Vec<u32>)>,
        done: Done<Vec<Pointer>>,
    ) {
        let gathered = Gathered::new(bodies.len(), done);
        let packing = |(at, (body, crcs)): (usize, (Body, Vec<u32>))| {
            let cookie = Cookie(self.machine.rng.next_u64() as u32);
            let needle = Needle { owner: face, cookie, flags: 0, hint: Vec::new() };
            let gathered = gathered.clone();
            let done = Box::new(move |pointer| Gathered::add(&gathered, at, pointer));
            Packing { needle, body, crcs, done }
        };
        let objects = bodies.into_iter().enumerate().map(packing).collect();
        // Faces are in the first shard.
        self.packed.append(self, (0, face), class, objects);
    }

    /// Seals what this node was writing, so that the next start has nothing to recover.
    pub fn retire(self: &Arc<Node>) {
        self.packed.retire_all(self);
        if let Err(e) = self.note_reached() {
            self.report_failure("note how far the log is", &e);
        }
    }

    /// The cluster says that a store never comes back.
    fn store_is_gone(&self, store: StoreId) -> bool {
        let state = self.cluster.read(|view, _| view.store(store).map(|info| info.state));
        matches!(state, Ok(Some(holdfast_cluster::StoreState::Gone)))
    }

    /// Adds up a scrubber's step; what is damaged becomes a finding.
    fn count_scrubbed(&self, store: StoreId, step: &ScrubStep) {
        {
            let mut scrubbed = self.scrubbed.held();
            let sum = scrubbed.entry(store).or_default();
            sum.bytes += step.bytes;
            sum.bad += step.newly_damaged;
        }
        for damage in &step.damaged {
            self.report_finding(format!("chunk `{}` is damaged: {}", damage.chunk, damage.what));
            // Where others have it, it is dropped and copied anew.
            self.replicator.report_bad(store, damage.chunk, &damage.what);
        }
    }

    /// Seconds until a store of this node is full, if it goes on as in the last day; `None` while
    /// nothing can be said.
    pub fn fills_in_s(&self, store: StoreId) -> Option<u64> {
        let free_bytes = self.stores.get(store)?.store.usage().free_bytes;
        let growth = self.growth.held();
        Some(growth.get(&store)?.fills_in_ms(free_bytes)? / 1000)
    }

    pub fn scrubbed(&self, store: StoreId) -> Scrubbed {
        let scrubbed = self.scrubbed.held();
        scrubbed.get(&store).copied().unwrap_or_default()
    }
}
