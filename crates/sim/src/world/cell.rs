//! One node's place in the simulated world: its disk, its clock, its address, and the production
//! process that lives there now, if any. Starts it, feeds it messages and rounds, pumps its
//! commits a moment later, and ends it. Decides nothing; the faults say when.

use super::Shared;
use super::door::{Doors, Server, of_node};
use super::guest::Lodging;
use crate::net::Shows;
use crate::unruly::UnrulyLog;
use crate::{Life, SimDisk, SimNet};
use holdfast_base::ids::{ChunkId, Index, NodeId, StoreId};
use holdfast_base::rates::Allowance;
use holdfast_base::{Reason, Result};
use holdfast_chunk::ReplicaState;
use holdfast_cluster::liveness::LivenessOptions;
use holdfast_env::net::{Named, PeerDone, PeerRequest, Peers};
use holdfast_env::region::Region;
use holdfast_env::{Budget, Clients, Clock, HoldMutex, Rng, Secret, SeededRng};
use holdfast_file::FileFace;
use holdfast_node::{
    Audit, Keeper, KeeperOptions, LogEngine, Machine, Member, MemberOptions, Node, NodeConfig,
    Trail,
};
use holdfast_server::Native;
use holdfast_view::FoldOptions;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
/// Rounds, as production drives them.
const MEMBER_NS: u64 = 100 * MS;
const KEEPER_NS: u64 = SECOND;
/// Between two snapshots of a node's views.
const SNAPSHOT_NS: u64 = 12 * SECOND;
/// Between two attempts to start a node that could not.
const AGAIN_NS: u64 = SECOND;
/// Until it is looked again whether the log's host has started.
const STARTS_NS: u64 = 100 * MS;
/// A commit is carried out so long after it was asked for, at most; on a slow disk, after more.
const PUMP_NS_MAX: u64 = 3 * MS;
const SLOW_PUMP_NS_MAX: u64 = 700 * MS;
/// What a node may hold for its clients.
const CLIENTS_BYTES: u64 = 1 << 30;
/// The cluster's secret comes from it, of which tokens are made.
const SECRET_SEED: u64 = 19;
/// As in development clusters.
const LOST_MS: u64 = 15_000;

/// A process: one life of one node.
pub struct Process {
    pub life: Life,
    pub node: Arc<Node>,
    pub(super) native: Arc<Native>,
    pub(super) doors: Doors,
    /// Connections that one client with a name may have here; 0 for any number.
    pub(super) places: u64,
    /// Away while it steps: production has one thread for each.
    member: Mutex<Option<Member>>,
    /// The entry of the cluster topic at which its view had it lead first, since it does.
    leads_since: Mutex<Option<Index>>,
    keeper: Mutex<Option<Keeper>>,
    lodgings: Vec<Lodging>,
    /// The guests' rounds are under way: one that waits is not begun once more, as one thread has them all.
    in_rounds: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Ends with the process, or with the attempt to start one.
    life: Life,
    process: Option<Arc<Process>>,
    starting: bool,
    /// Nothing runs there before this.
    paused_until_ns: u64,
    /// The thread that gives signs of life hangs until then.
    stalled_until_ns: u64,
    /// Its disk takes its time until then.
    slow_until_ns: u64,
    /// Why it could not start last.
    refused: Option<String>,
    /// Chunks that the process found open, and how long they were.
    held_open: BTreeMap<(StoreId, ChunkId), u64>,
}

pub struct Cell {
    pub number: usize,
    pub address: String,
    pub net: SimNet,
    pub shared: Arc<Shared>,
    pub rng: SeededRng,
    pub(super) clock: Arc<CellClock>,
    disk: Mutex<SimDisk>,
    state: Mutex<State>,
    /// A pump is on its way.
    pump_due: AtomicBool,
    pub(super) connections: AtomicU64,
    /// Disks that it had before this one.
    disks_lost: AtomicU64,
    /// How often its certificate was renewed.
    renewals: AtomicU64,
    /// What its process shows where it begins a connection.
    shows: Mutex<Shows>,
    /// See [`NodeConfig::near`], from the next start on.
    pub near: AtomicBool,
    /// Stores on its disk; none where it keeps views alone.
    stores: usize,
    /// The power fails here, at the disk's word; not by a process kill.
    pub lives: AtomicU64,
}

pub(super) struct CellClock {
    net: SimNet,
    /// This machine was switched on so much earlier than the world.
    skew_ns: AtomicU64,
    calendar_ms: AtomicI64,
}

impl Clock for CellClock {
    fn monotonic_ns(&self) -> u64 {
        self.net.now_ns() + self.skew_ns.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        let jumped = self.calendar_ms.load(Ordering::Relaxed);
        1_700_000_000_000u64.saturating_add_signed(jumped) + self.net.now_ns() / MS
    }
}

impl Cell {
    pub fn new(
        (number, stores): (usize, usize),
        seed: u64,
        net: &SimNet,
        shared: &Arc<Shared>,
    ) -> Arc<Cell> {
        let rng = SeededRng::new(seed);
        let clock = CellClock {
            net: net.clone(),
            skew_ns: AtomicU64::new(rng.next_u64() % (1000 * SECOND)),
            calendar_ms: AtomicI64::new(0),
        };
        let disk = shared.new_disk(rng.next_u64());
        Arc::new(Cell {
            number,
            address: address(number),
            net: net.clone(),
            shared: shared.clone(),
            rng,
            clock: Arc::new(clock),
            disk: Mutex::new(disk),
            state: Mutex::default(),
            pump_due: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            disks_lost: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            shows: Mutex::default(),
            near: AtomicBool::new(true),
            stores,
            lives: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn disk(&self) -> SimDisk {
        self.disk.held().clone()
    }

    /// Somebody puts another disk into the machine, or an older copy onto it, while nothing runs there.
    pub fn put_back(&self, copy: SimDisk) {
        *self.disk.held() = copy;
    }

    pub fn process(&self) -> Option<Arc<Process>> {
        self.state().process.clone()
    }

    pub fn node(&self) -> Option<Arc<Node>> {
        self.process().map(|process| process.node.clone())
    }

    pub fn is_up(&self) -> bool {
        self.state().process.is_some()
    }

    pub fn refused(&self) -> Option<String> {
        self.state().refused.clone()
    }

    pub fn jump_calendar(&self, ms: i64) {
        self.clock.calendar_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// The machine slept: all its clocks went on.
    pub fn sleep(&self, ns: u64) {
        self.clock.skew_ns.fetch_add(ns, Ordering::Relaxed);
        self.jump_calendar((ns / MS) as i64);
    }

    /// The thread that gives signs of life hangs for so long; all others go on.
    pub fn stall(&self, ns: u64) {
        self.state().stalled_until_ns = self.net.now_ns() + ns;
    }

    /// Its disk takes long for every commit, for so long.
    pub fn slow_disk(&self, ns: u64) {
        self.state().slow_until_ns = self.net.now_ns() + ns;
    }

    /// Nothing runs here for so long, as on a machine that swaps.
    pub fn pause(&self, ns: u64) {
        self.state().paused_until_ns = self.net.now_ns() + ns;
    }

    pub fn is_paused(&self) -> bool {
        let (now_ns, state) = (self.net.now_ns(), self.state());
        now_ns < state.paused_until_ns.max(state.stalled_until_ns)
    }

    /// In its certificate, which lies on its disk.
    fn name(&self) -> Option<String> {
        let name = || format!("{}.{}", self.address, self.disks_lost.load(Ordering::Relaxed));
        self.shared.certificates.then(name)
    }

    fn certificate(&self) -> Option<Named> {
        Some(of_node(self.name()?, self.renewals.load(Ordering::Relaxed)))
    }

    /// Its certificate is renewed; a process that runs shows the new one where it connects from now
    /// on. Answers the one before.
    pub fn renew_certificate(&self) -> Option<Named> {
        let before = self.certificate()?;
        self.renewals.fetch_add(1, Ordering::Relaxed);
        *self.shows.held().held() = self.certificate().map(Arc::new);
        Some(before)
    }

    fn config(&self) -> NodeConfig {
        NodeConfig {
            name: self.name(),
            keeps_chunks: self.stores > 0,
            join: self.join(),
            host: format!("host-{}", self.number),
            rack: format!("rack-{}", self.number % self.shared.racks),
            address: self.address.clone(),
            reserve_bytes: 1 << 20,
            segment_bytes: 256 << 10,
            chunk_bytes: 192 << 10,
            near: self.near.load(Ordering::Relaxed),
            disks: (1..self.stores).map(|n| PathBuf::from(format!("/disk-{}", n + 1))).collect(),
            journal_segment_bytes: 64 << 10,
            fold: FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 },
            ..NodeConfig::new("/data").without_threads()
        }
    }

    /// By whom a process joins: the log's host, or where brokers keep the log, whoever runs, as a person
    /// finds out.
    fn join(&self) -> Option<String> {
        if self.shared.brokers.is_none() {
            return (self.number != 1).then(|| address(1));
        }
        let world = self.shared.world.get().and_then(Weak::upgrade)?;
        let others = world.cells.iter().filter(|other| other.number != self.number);
        others.into_iter().find(|other| other.is_up()).map(|other| other.address.clone())
    }

    /// Whether the log's host is about to start. Waits nest, so that it could not go on while others
    /// wait for it within its own.
    fn host_is_starting(&self) -> bool {
        if self.shared.brokers.is_some() {
            return false;
        }
        let world = self.shared.world.get().and_then(Weak::upgrade);
        world.is_some_and(|world| {
            world.cells[0].number != self.number && world.cells[0].state().starting
        })
    }

    /// Starts a process, unless there is one.
    pub fn start(self: &Arc<Cell>) {
        if self.host_is_starting() {
            let cell = self.clone();
            return self.net.after_ns(STARTS_NS, move || cell.start());
        }
        let life = {
            let mut state = self.state();
            if state.process.is_some() || state.starting {
                return;
            }
            state.starting = true;
            state.life = Life::default();
            state.life.clone()
        };
        // What an attempt before held is let go.
        let before = self.disk();
        let disk = before.process_kill();
        before.forget();
        *self.disk.held() = disk.clone();
        self.net.note(&format!("{} starts", self.address));
        let shows: Shows = Arc::new(Mutex::new(self.certificate().map(Arc::new)));
        *self.shows.held() = shows.clone();
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(self.rng.next_u64())),
            peers: Arc::new(CellPeers {
                inner: self.net.peers_showing(&self.address, shows, &life),
                cell: self.clone(),
                life: life.clone(),
            }),
            meter: Arc::default(),
        };
        let config = NodeConfig { engine: self.engine(&machine), ..self.config() };
        let opened = self.memory().and_then(|region| Node::open(machine, &config, region));
        if self.crash_if_due(&life) || life.has_ended() {
            return;
        }
        match opened.and_then(|node| self.inhabit(node, &life)) {
            Ok(()) => {}
            Err(e) => {
                self.net.note(&format!("{} could not start: {e}", self.address));
                life.end();
                let mut state = self.state();
                state.starting = false;
                state.refused = Some(e.to_string());
                drop(state);
                let cell = self.clone();
                self.net.after_ns(AGAIN_NS, move || cell.start());
            }
        }
    }

    /// The log of a new process.
    fn engine(&self, machine: &Machine) -> LogEngine {
        if let Some(brokers) = self.shared.brokers.clone() {
            let (at, peers) = (self.address.clone(), machine.peers.clone());
            return LogEngine::shared(move |known, new| brokers.open(&at, &peers, (known, new)));
        }
        if !self.shared.unruly {
            return LogEngine::default();
        }
        let (peers, seed) = (machine.peers.clone(), self.rng.next_u64());
        LogEngine::showing(move |log| {
            Arc::new(UnrulyLog::new(log, peers.clone(), SeededRng::new(seed)))
        })
    }

    /// The tier in memory of a new process, where a guest wants one.
    fn memory(&self) -> Result<Option<Arc<Region>>> {
        match self.shared.guests.iter().map(|guest| guest.memory_bytes()).max() {
            None | Some(0) => Ok(None),
            Some(_) if self.stores == 0 => Ok(None),
            Some(bytes) => {
                let store = StoreId(self.rng.next_u64());
                Region::create("simulated", store, bytes).map(Some)
            }
        }
    }

    /// What each client with a name may take of a new process.
    fn allowance(&self) -> Allowance {
        let guests = self.shared.guests.iter().map(|guest| guest.allowance(&self.rng));
        guests.max_by_key(|allowed| *allowed != Allowance::default()).unwrap_or_default()
    }

    /// The node is open: it listens, and its rounds begin.
    fn inhabit(self: &Arc<Cell>, node: Arc<Node>, life: &Life) -> Result<()> {
        let allowance = self.allowance();
        let native = Native::new(node.clone(), Budget::new(CLIENTS_BYTES), true)
            .with_tokens_of(&Secret::draw(&SeededRng::new(SECRET_SEED)))
            .with_audit(Audit::new(node.clone(), Trail::Admin))
            .with_limits_of(&Clients::new(allowance, Allowance::default()));
        let mut native = native.with(Arc::new(FileFace::new(node.clone(), None)));
        let guests = self.shared.guests.iter();
        let lodgings =
            guests.map(|guest| guest.open(&node, &self.net)).collect::<Result<Vec<_>>>()?;
        if self.crash_if_due(life) || life.has_ended() {
            return Ok(());
        }
        for lodging in &lodgings {
            native = native.with(lodging.face.clone());
        }
        let native = Arc::new(native);
        let liveness = LivenessOptions { lost_ms: LOST_MS };
        let keeping = KeeperOptions {
            scrub_bytes_per_second: 200_000,
            unnamed_ms: 15_000,
            ..Default::default()
        };
        let process = Arc::new(Process {
            life: life.clone(),
            native,
            doors: Doors::default(),
            places: allowance.connections,
            leads_since: Mutex::default(),
            member: Mutex::new(Some(Member::new(node.clone(), MemberOptions { liveness }))),
            keeper: Mutex::new(Some(Keeper::new(node.clone(), keeping))),
            lodgings,
            in_rounds: AtomicBool::new(false),
            node,
        });
        let held_open = held_open(&process.node).collect::<BTreeMap<_, _>>();
        self.shared.sometimes(!held_open.is_empty(), "a chunk was open when its store started");
        {
            let mut state = self.state();
            state.starting = false;
            state.refused = None;
            state.process = Some(process.clone());
            state.held_open = held_open;
        }
        self.lives.fetch_add(1, Ordering::Relaxed);
        self.shared.note_start(self.number, process.node.id);
        self.net.note(&format!("{} is node {}", self.address, process.node.id));
        self.net
            .listen(&self.address, Arc::new(Server { cell: self.clone(), of: process.clone() }));
        self.every(MEMBER_NS, &process, Process::member_round);
        self.every(KEEPER_NS, &process, Process::keeper_round);
        self.every(SNAPSHOT_NS, &process, Process::snapshot);
        if !process.lodgings.is_empty() {
            self.every(SECOND, &process, |process, _| process.guests_round());
        }
        Ok(())
    }

    /// A round, now and then, for as long as the process lives.
    fn every(self: &Arc<Cell>, ns: u64, process: &Arc<Process>, round: fn(&Process, &Arc<Cell>)) {
        let (cell, of) = (self.clone(), process.clone());
        // Rounds of nodes that were started together drift apart.
        let ns_now = ns + self.rng.next_u64() % (ns / 8);
        self.net.after_ns(ns_now, move || {
            if of.life.has_ended() {
                return;
            }
            cell.every(ns, &of, round);
            let (within, life) = (cell.clone(), of.life.clone());
            cell.run(&life, move || round(&of, &within));
        });
    }

    /// Runs something of a process, unless it has ended; later, if it is paused.
    pub(super) fn run(self: &Arc<Cell>, life: &Life, what: impl FnOnce() + Send + 'static) {
        if life.has_ended() {
            return;
        }
        let (now_ns, until_ns) = (self.net.now_ns(), self.state().paused_until_ns);
        if now_ns < until_ns {
            let (cell, life) = (self.clone(), life.clone());
            return self.net.after_ns(until_ns - now_ns, move || cell.run(&life, what));
        }
        what();
        if self.crash_if_due(life) || life.has_ended() {
            return;
        }
        if let Some(process) = self.process() {
            process.flush(self.net.now_ns());
        }
        self.pump_soon(life);
    }

    /// The power failed during an operation of the disk: that was the process's last.
    fn crash_if_due(self: &Arc<Cell>, life: &Life) -> bool {
        if life.has_ended() || !self.disk().crashed() {
            return false;
        }
        let what = "the power failed between a sync and its acknowledgement";
        self.shared.sometimes(self.disk().crashed_behind_sync(), what);
        self.end(End::PowerCut);
        true
    }

    fn pump_soon(self: &Arc<Cell>, life: &Life) {
        if self.pump_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let (cell, life) = (self.clone(), life.clone());
        let slow = self.net.now_ns() < self.state().slow_until_ns;
        let ns = 1000 + self.rng.next_u64() % if slow { SLOW_PUMP_NS_MAX } else { PUMP_NS_MAX };
        self.net.after_ns(ns, move || {
            cell.pump_due.store(false, Ordering::Relaxed);
            let Some(process) = cell.process().filter(|p| !p.life.has_ended()) else { return };
            let _ = life;
            let of = process.clone();
            let now_ns = cell.net.now_ns();
            let until_ns = cell.state().paused_until_ns;
            if now_ns < until_ns {
                return cell.pump_soon(&of.life);
            }
            of.node.pump();
            if !cell.crash_if_due(&of.life) {
                of.flush(now_ns);
            }
        });
    }

    /// A store takes no appends to chunks that an earlier process held open.
    pub fn look_at_held(&self) {
        let Some(node) = self.node() else { return };
        let state = self.state();
        let grown = held_open(&node)
            .find(|(key, now)| state.held_open.get(key).is_some_and(|before| now > before));
        drop(state);
        if let Some(((store, chunk), length)) = grown {
            let at = &self.address;
            self.shared.violate(format!(
                "chunk `{chunk}` in store `{store}` of {at} was open when the store started, and \
                 has grown since, to {length}"
            ));
        }
    }

    /// Lets go of what lives here, when the world ends.
    pub fn forget(&self) {
        let gone = self.state().process.take();
        drop(gone);
        self.disk().forget();
    }

    /// Ends what lives here, at once; what is left is the disk.
    pub fn end(self: &Arc<Cell>, how: End) {
        let (life, process) = {
            let mut state = self.state();
            state.starting = false;
            (state.life.clone(), state.process.clone())
        };
        self.net.note(&format!("{} ends: {how:?}", self.address));
        self.net.end(&self.address, &life);
        if let Some(process) = &process {
            self.look_at_held();
            self.shared.keep_findings(self.number, &process.node);
            self.shared.keep_events(&process.node);
        }
        self.state().process = None;
        let mut disk = self.disk.held();
        let before = disk.clone();
        *disk = match how {
            End::Kill => disk.process_kill(),
            End::PowerCut => disk.power_cut(self.rng.next_u64()),
            End::Erase => {
                self.disks_lost.fetch_add(1, Ordering::Relaxed);
                self.shared.new_disk(self.rng.next_u64())
            }
        };
        drop(disk);
        before.forget();
    }
}

/// Chunks of a node that are not sealed, and how long they are.
fn held_open(node: &Node) -> impl Iterator<Item = ((StoreId, ChunkId), u64)> {
    node.stores.iter().flat_map(|own| {
        let open = own.store.list().into_iter().filter(|info| info.state != ReplicaState::Sealed);
        open.map(|info| ((own.id, info.chunk), info.length))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Kill,
    PowerCut,
    /// And the disk is a new one.
    Erase,
}

/// Where node `number` listens.
pub fn address(number: usize) -> String {
    format!("n{number}")
}

impl Process {
    fn member_round(&self, cell: &Arc<Cell>) {
        if cell.net.now_ns() < cell.state().stalled_until_ns {
            return;
        }
        let taken = self.member.held().take();
        let Some(mut member) = taken else { return };
        let now_ns = cell.clock.monotonic_ns();
        match member.step(now_ns) {
            Ok(()) => {
                self.check_heard(cell);
                if let Err(e) = self.node.leader.step(&self.node, now_ns) {
                    self.node.report_finding(format!("lead the cluster: {e}"));
                }
            }
            Err(e) if e.is(Reason::Overtaken) => {
                // It was away for so long that the log went on without it: it is started again.
                cell.shared.sometimes(true, "a node that runs was left behind by a trim");
                let again = cell.clone();
                cell.end(End::Kill);
                cell.net.after_ns(AGAIN_NS, move || again.start());
            }
            Err(e) => cell.shared.violate(format!("{} must end: {e}", cell.address)),
        }
        *self.member.held() = Some(member);
    }

    /// Who is said to lead commands nothing before a beat of its own came back: until then it may
    /// have been followed by another one, which it has not heard of.
    fn check_heard(&self, cell: &Arc<Cell>) {
        let seen = self.node.cluster.read(|view, applied| {
            let beat = view.controllers().find(|(id, _)| *id == self.node.id);
            (view.leader() == Some(self.node.id), applied, beat.map(|(_, seat)| seat.beat))
        });
        let Ok((leads, applied, beat)) = seen else { return };
        let mut since = self.leads_since.held();
        *since = since.filter(|_| leads);
        if leads && since.is_none() {
            // Who founds a cluster leads from its start.
            *since = Some(if self.node.leads() { Index(0) } else { applied });
        }
        if self.node.leads() && since.is_none_or(|since| beat.is_none_or(|beat| beat <= since)) {
            cell.shared.violate(format!(
                "{} leads since entry {since:?} and has read back its beat {beat:?} alone",
                cell.address
            ));
        }
    }

    fn keeper_round(&self, cell: &Arc<Cell>) {
        let taken = self.keeper.held().take();
        let Some(mut keeper) = taken else { return };
        keeper.step(cell.clock.monotonic_ns());
        *self.keeper.held() = Some(keeper);
    }

    fn guests_round(&self) {
        if self.in_rounds.swap(true, Ordering::Relaxed) {
            return;
        }
        self.lodgings.iter().for_each(|lodging| (lodging.round)());
        self.in_rounds.store(false, Ordering::Relaxed);
    }

    /// Reads everything that its stores hold, at once.
    pub fn scrub(&self) {
        let taken = self.keeper.held().take();
        let Some(mut keeper) = taken else { return };
        keeper.scrub_everything();
        *self.keeper.held() = Some(keeper);
    }

    fn snapshot(&self, cell: &Arc<Cell>) {
        if let Err(e) = self.node.snapshot_views() {
            cell.net.note(&format!("{} takes no snapshot: {e}", cell.address));
        }
    }

    /// As who it is in the cluster.
    pub fn id(&self) -> NodeId {
        self.node.id
    }
}

/// The network as a process sees it: what comes back is followed by commits and answers, and
/// nothing leaves a machine without power.
struct CellPeers {
    inner: Arc<dyn Peers>,
    cell: Arc<Cell>,
    life: Life,
}

impl CellPeers {
    /// What takes an answer, if there is anybody to ask.
    fn followed(&self, done: PeerDone) -> Option<PeerDone> {
        if self.life.has_ended() || self.cell.disk().crashed() {
            return None;
        }
        let (cell, life) = (self.cell.clone(), self.life.clone());
        Some(Box::new(move |answer| {
            let within = life.clone();
            cell.run(&within, move || done(answer));
        }))
    }
}

impl Peers for CellPeers {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        if let Some(done) = self.followed(done) {
            self.inner.call(address, request, done);
        }
    }

    fn call_yielding(&self, address: &str, request: PeerRequest, done: PeerDone) {
        if let Some(done) = self.followed(done) {
            self.inner.call_yielding(address, request, done);
        }
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        let (cell, life) = (self.cell.clone(), self.life.clone());
        self.inner.after(ms, Box::new(move || cell.run(&life, then)));
    }

    fn step(&self) -> Result<bool> {
        if self.cell.crash_if_due(&self.life) {
            return Err(holdfast_base::Error::retry("wait: this machine has no power"));
        }
        // Waits nest: those that would last for ever must not keep the world from its end.
        if self.cell.shared.is_over() {
            return Err(holdfast_base::Error::retry("wait: the world is over"));
        }
        self.inner.step()
    }
}
