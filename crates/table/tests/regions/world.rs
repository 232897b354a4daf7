//! Three clusters of one node each, far from each other: production nodes with tables on simulated disks, one
//! simulated network, their clocks its time. A region is started, fed with requests and rounds, pumped a moment
//! later, and ended. Decides nothing: the faults say when.

use crate::people::Told;
use crate::{MS, Plan, SECOND};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_env::net::{
    ConnectionId, Finished, Inline, PeerConnection, PeerDone, PeerReply, PeerRequest, Peers, Who,
};
use holdfast_env::{Budget, Clock, Disk, HoldMutex, Rng, SeededRng, sometimes};
use holdfast_log::Log;
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_server::Native;
use holdfast_sim::task::{Left, slot};
use holdfast_sim::{Distance, Life, Listener, Over, SimDisk, SimNet};
use holdfast_table::entry::{Entry, StreamEntry};
use holdfast_table::face::TableFace;
use holdfast_table::ids::{Place, RegionId, StreamId};
use holdfast_table::name::TableName;
use holdfast_table::regions::{Link, Regions};
use holdfast_table::tablet::Tablet;
use holdfast_table::view::TabletView;
use holdfast_view::{Applied, Context, Fold, FoldOptions, SnapshotStore, View};
use holdfast_wire::table as msg;
use holdfast_wire::{OP_TABLE_DESCRIBE, OP_TABLE_MAKE};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub const REGIONS: u8 = 3;
pub const TABLE: &str = "everywhere";
const DISK_BYTES: u64 = 1 << 40;
/// A commit is carried out so long after it was asked for, at most.
const PUMP_NS_MAX: u64 = 3 * MS;
/// Between two attempts to start a node that could not.
const AGAIN_NS: u64 = SECOND;
const ROUND_NS: u64 = 100 * MS;
const SNAPSHOT_NS: u64 = 7 * SECOND;
/// Half a round trip between two of the three, as docs/tables.md has them, in microseconds.
const WAYS_US: [(u8, u8, u64); 3] = [(0, 1, 43_500), (0, 2, 40_250), (1, 2, 68_500)];

/// How what lives at a region ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Kill,
    PowerCut,
    /// And the disk is a new one.
    Erase,
}

pub fn address(region: u8) -> String {
    format!("r{region}")
}

struct NetClock(SimNet);

impl Clock for NetClock {
    fn monotonic_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.now_ns() / MS
    }
}

/// What everybody tells.
pub struct Shared {
    pub net: SimNet,
    pub plan: Plan,
    violations: Mutex<Vec<String>>,
    /// Every entry that any log had when it was looked at: tablets forget what shows everywhere.
    pub entries: Mutex<Entries>,
}

impl Shared {
    /// A promise was broken.
    pub fn violate(&self, what: String) {
        self.net.note(&format!("BROKEN: {what}"));
        self.violations.held().push(what);
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.held().clone()
    }

    pub fn is_broken(&self) -> bool {
        !self.violations.held().is_empty()
    }
}

/// One life of a region's node.
struct Process {
    life: Life,
    node: Arc<Node>,
    native: Arc<Native>,
    face: Arc<TableFace>,
    /// By who asks.
    doors: Mutex<BTreeMap<String, Arc<Door>>>,
}

/// Where one machine's requests arrive.
struct Door {
    inline: Inline,
    /// Its other end. Never held while anything is called.
    peer: Mutex<PeerConnection>,
}

#[derive(Default)]
struct State {
    /// Ends with the process, or with the attempt to start one.
    life: Life,
    process: Option<Arc<Process>>,
    starting: bool,
}

/// A region's place: its disk, and the process that lives there, if any.
pub struct Cell {
    pub region: u8,
    pub address: String,
    pub shared: Arc<Shared>,
    net: SimNet,
    rng: SeededRng,
    disk: Mutex<SimDisk>,
    state: Mutex<State>,
    /// A pump is on its way.
    pump_due: AtomicBool,
    connections: AtomicU64,
    /// Processes that have lived here.
    pub lives: AtomicU64,
    /// Disks that there were before this one.
    pub erased: AtomicU64,
}

impl Cell {
    fn new(region: u8, seed: u64, shared: &Arc<Shared>) -> Arc<Cell> {
        let rng = SeededRng::new(seed);
        Arc::new(Cell {
            region,
            address: address(region),
            shared: shared.clone(),
            net: shared.net.clone(),
            disk: Mutex::new(SimDisk::new(rng.next_u64())),
            rng,
            state: Mutex::default(),
            pump_due: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            lives: AtomicU64::new(0),
            erased: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn disk(&self) -> SimDisk {
        self.disk.held().clone()
    }

    fn process(&self) -> Option<Arc<Process>> {
        self.state().process.clone()
    }

    pub fn is_up(&self) -> bool {
        self.state().process.is_some()
    }

    /// Nothing more fits on its disk.
    pub fn fill_disk(&self) {
        let disk = self.disk();
        let Ok(space) = disk.space("/data".as_ref()) else { return };
        let slack = [0, 4 << 10, 64 << 10][(self.rng.next_u64() % 3) as usize];
        disk.set_capacity(space.total_bytes - space.free_bytes + slack);
    }

    /// There is room again, on whatever disk it has by now.
    pub fn make_room(&self) {
        self.disk().set_capacity(DISK_BYTES);
    }

    /// Starts a process, unless there is one.
    pub fn start(self: &Arc<Cell>) {
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
        let opened = self.open(disk, &life);
        if self.crash_if_due(&life) || life.has_ended() {
            return;
        }
        match opened {
            Ok(node) => self.inhabit(node, &life),
            Err(e) => {
                self.net.note(&format!("{} could not start: {e}", self.address));
                life.end();
                self.state().starting = false;
                let cell = self.clone();
                self.net.after_ns(AGAIN_NS, move || cell.start());
            }
        }
    }

    fn open(self: &Arc<Cell>, disk: SimDisk, life: &Life) -> Result<Arc<Node>> {
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk),
            clock: Arc::new(NetClock(self.net.clone())),
            rng: Arc::new(SeededRng::new(self.rng.next_u64())),
            peers: self.peers(life),
            meter: Arc::default(),
        };
        let config = NodeConfig {
            address: self.address.clone(),
            reserve_bytes: 1 << 20,
            segment_bytes: self.shared.plan.segment_bytes,
            chunk_bytes: 192 << 10,
            journal_segment_bytes: 64 << 10,
            fold: FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 },
            ..NodeConfig::new("/data").without_threads()
        };
        Node::open(machine, &config, None)
    }

    /// How its process reaches others.
    fn peers(self: &Arc<Cell>, life: &Life) -> Arc<dyn Peers> {
        let inner = self.net.peers(&self.address, life);
        Arc::new(CellPeers { inner, cell: self.clone(), life: life.clone() })
    }

    fn regions(self: &Arc<Cell>, life: &Life) -> Regions {
        let others = (0..REGIONS).filter(|other| *other != self.region);
        let link = |other| Link { servers: vec![address(other)], peers: self.peers(life) };
        let links = others.map(|other| (RegionId(other), link(other))).collect();
        Regions::new(RegionId(self.region), links).expect("they are numbered from 0 on")
    }

    /// The node is open: it listens, and its rounds begin.
    fn inhabit(self: &Arc<Cell>, node: Arc<Node>, life: &Life) {
        let face = TableFace::new(node.clone(), self.shared.plan.memory_bytes, self.regions(life));
        let native = Native::new(node.clone(), Budget::new(1 << 30), true).with(face.clone());
        let process = Arc::new(Process {
            life: life.clone(),
            native: Arc::new(native),
            face,
            doors: Mutex::default(),
            node,
        });
        {
            let mut state = self.state();
            state.starting = false;
            state.process = Some(process.clone());
        }
        self.lives.fetch_add(1, Ordering::Relaxed);
        self.net.note(&format!("{} is up", self.address));
        let server = Server { cell: self.clone(), of: process.clone() };
        self.net.listen(&self.address, Arc::new(server));
        // Tables are opened while requests come in, as in production.
        let (cell, of) = (self.clone(), process.clone());
        self.net.after_ns(self.rng.next_u64() % (50 * MS), move || {
            let life = of.life.clone();
            cell.run(&life, move || of.face.open_all());
        });
        self.every(ROUND_NS, &process, |process| process.face.round());
        self.every(SNAPSHOT_NS, &process, |process| {
            // A disk without room takes none; the next one is as good.
            let _ = process.node.snapshot_views();
        });
    }

    /// A round, now and then, for as long as the process lives.
    fn every(self: &Arc<Cell>, ns: u64, process: &Arc<Process>, round: fn(&Process)) {
        let (cell, of) = (self.clone(), process.clone());
        let ns_now = ns + self.rng.next_u64() % (ns / 8);
        self.net.after_ns(ns_now, move || {
            if of.life.has_ended() {
                return;
            }
            cell.every(ns, &of, round);
            let life = of.life.clone();
            cell.run(&life, move || round(&of));
        });
    }

    /// Runs something of a process, unless it has ended.
    fn run(self: &Arc<Cell>, life: &Life, what: impl FnOnce()) {
        if life.has_ended() {
            return;
        }
        what();
        if self.crash_if_due(life) || life.has_ended() {
            return;
        }
        if let Some(process) = self.process() {
            process.flush(self.net.now_ns());
        }
        self.pump_soon();
    }

    /// The power failed during an operation of the disk: that was the process's last.
    fn crash_if_due(self: &Arc<Cell>, life: &Life) -> bool {
        if life.has_ended() || !self.disk().crashed() {
            return false;
        }
        sometimes!("the power failed behind a sync");
        self.end(End::PowerCut);
        let cell = self.clone();
        self.net.after_ns(self.rng.next_u64() % (2 * SECOND), move || cell.start());
        true
    }

    fn pump_soon(self: &Arc<Cell>) {
        if self.pump_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let cell = self.clone();
        self.net.after_ns(1000 + self.rng.next_u64() % PUMP_NS_MAX, move || {
            cell.pump_due.store(false, Ordering::Relaxed);
            let Some(process) = cell.process() else { return };
            process.node.pump();
            if !cell.crash_if_due(&process.life) {
                process.flush(cell.net.now_ns());
            }
        });
    }

    /// Ends what lives here, at once; what is left is the disk.
    pub fn end(&self, how: End) {
        let life = {
            let mut state = self.state();
            state.starting = false;
            state.process = None;
            state.life.clone()
        };
        self.net.note(&format!("{} ends: {how:?}", self.address));
        self.net.end(&self.address, &life);
        let mut disk = self.disk.held();
        let before = disk.clone();
        *disk = match how {
            End::Kill => before.process_kill(),
            End::PowerCut => before.power_cut(self.rng.next_u64()),
            End::Erase => {
                self.erased.fetch_add(1, Ordering::Relaxed);
                SimDisk::new(self.rng.next_u64())
            }
        };
        drop(disk);
        before.forget();
    }

    /// What its log says of each of the table's tablets, from the first entry on; nothing of those that are not
    /// made, or where nothing runs.
    pub fn tablets(&self) -> Vec<Tablet> {
        let Some(log) = self.process().and_then(|process| process.node.hosted().cloned()) else {
            return Vec::new();
        };
        let name = TableName::new(TABLE).unwrap();
        let topics = (0..self.shared.plan.tablets).map(|tablet| name.topic(tablet));
        let there = log.topics();
        let folded = topics.filter(|topic| there.contains(topic)).filter_map(|topic| {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
            let store = SnapshotStore { disk, directory: "/nowhere".into() };
            let never = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
            let all =
                Fold::<All>::open_member(log.clone(), Context::of(&topic), store, never).unwrap();
            let said = all.read(|view, _| view.0.clone()).unwrap();
            let of = |((stream, place), entry)| ((topic.clone(), stream, place), entry);
            self.shared.entries.held().extend(said.into_iter().map(of));
            all.end();
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
            let store = SnapshotStore { disk, directory: "/nowhere".into() };
            let never = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
            let fold =
                Fold::<TabletView>::open_member(log.clone(), Context::of(&topic), store, never);
            let fold = fold.unwrap();
            let tablet = fold.read(|view, _| view.look(Tablet::clone)).unwrap();
            fold.end();
            tablet
        });
        folded.collect()
    }
}

/// By topic, stream and place.
pub type Entries = BTreeMap<(String, StreamId, Place), StreamEntry>;

/// All that a topic says of streams.
struct All(BTreeMap<(StreamId, Place), StreamEntry>);

impl View for All {
    const NAME: &'static str = "all";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> All {
        All(BTreeMap::new())
    }

    fn apply(&mut self, _: Index, command: &[u8]) -> Applied {
        let said = match Entry::from_bytes(command) {
            Ok(Entry::Decided { stream, entry }) => vec![(stream, entry)],
            Ok(Entry::Followed { stream, entries, .. }) => {
                entries.into_iter().map(|entry| (stream, entry)).collect()
            }
            _ => Vec::new(),
        };
        self.0.extend(said.into_iter().map(|(stream, entry)| ((stream, entry.place), entry)));
        Applied::Ok(Vec::new())
    }

    fn snapshot(&self, _: &mut Writer<'_>) {}

    fn describe(_: &[u8]) -> String {
        String::new()
    }

    fn restore(context: &Context, _: &mut Source<'_>) -> Result<All> {
        Ok(All::begin(context))
    }
}

impl Process {
    fn door(&self, cell: &Cell, machine: &str) -> Arc<Door> {
        let make = || {
            let id = ConnectionId(cell.connections.fetch_add(1, Ordering::Relaxed) + 1);
            let clock: Arc<dyn Clock> = Arc::new(NetClock(cell.net.clone()));
            let inline = Inline::connect(self.native.clone(), clock, id, Who::Owner).unwrap();
            Arc::new(Door { inline, peer: Mutex::new(PeerConnection::new(&cell.address)) })
        };
        self.doors.held().entry(machine.to_owned()).or_insert_with(make).clone()
    }

    fn request(&self, cell: &Cell, machine: &str, request: PeerRequest, done: PeerDone) {
        let door = self.door(cell, machine);
        let mut finished = Finished::new();
        let bytes = {
            let mut peer = door.peer.held();
            peer.submit(cell.net.now_ns(), request, done, &mut finished);
            peer.take_output()
        };
        finished.into_iter().for_each(|(done, result)| done(result));
        if let Err(e) = door.inline.receive(&bytes) {
            cell.shared.violate(format!("{} refused a connection: {e}", cell.address));
        }
    }

    /// Sends the answers that are there.
    fn flush(&self, now_ns: u64) {
        let doors: Vec<Arc<Door>> = self.doors.held().values().cloned().collect();
        for door in doors {
            loop {
                let bytes = door.inline.take();
                if bytes.is_empty() {
                    break;
                }
                let mut finished = Finished::new();
                let received = door.peer.held().received(now_ns, &bytes, &mut finished);
                finished.into_iter().for_each(|(done, result)| done(result));
                received.expect("answers can be read");
            }
        }
    }
}

/// What other regions and clients reach.
struct Server {
    cell: Arc<Cell>,
    of: Arc<Process>,
}

impl Listener for Server {
    fn request(&self, over: Over<'_>, request: PeerRequest, reply: PeerDone) {
        let life = self.of.life.clone();
        self.cell.run(&life, || self.of.request(&self.cell, over.machine, request, reply));
    }
}

/// The network as a process sees it: what comes back is followed by commits and answers, and nothing leaves a
/// machine without power.
struct CellPeers {
    inner: Arc<dyn Peers>,
    cell: Arc<Cell>,
    life: Life,
}

impl Peers for CellPeers {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        if self.life.has_ended() || self.cell.disk().crashed() {
            return;
        }
        let (cell, life) = (self.cell.clone(), self.life.clone());
        let followed = move |answer: Result<PeerReply>| {
            let within = life.clone();
            cell.run(&within, move || done(answer));
        };
        self.inner.call(address, request, Box::new(followed));
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        let (cell, life) = (self.cell.clone(), self.life.clone());
        self.inner.after(ms, Box::new(move || cell.run(&life, then)));
    }

    fn step(&self) -> Result<bool> {
        if self.cell.crash_if_due(&self.life) {
            return Err(Error::retry("wait: this machine has no power"));
        }
        self.inner.step()
    }
}

/// All of it.
pub struct World {
    pub shared: Arc<Shared>,
    pub net: SimNet,
    pub cells: Vec<Arc<Cell>>,
    /// What clients were told, in the end.
    pub told: Mutex<Vec<Told>>,
}

impl World {
    pub fn new(plan: Plan) -> Arc<World> {
        let net = SimNet::new(plan.seed);
        let shared = Arc::new(Shared {
            net: net.clone(),
            plan,
            violations: Mutex::default(),
            entries: Mutex::default(),
        });
        let rng = SeededRng::new(plan.seed ^ 0x5eed);
        let cells = (0..REGIONS).map(|region| Cell::new(region, rng.next_u64(), &shared)).collect();
        for (a, b, us) in WAYS_US {
            let breaks_per_mille = [0, 0, 3][(rng.next_u64() % 3) as usize];
            let distance = Distance { delay_ns: (us * 1000, us * 1100), breaks_per_mille };
            net.set_distance(&address(a), &address(b), distance);
            net.set_distance(&address(b), &address(a), distance);
        }
        Arc::new(World { shared, net, cells, told: Mutex::default() })
    }

    /// Lets go of everything.
    pub fn forget(&self) {
        for cell in &self.cells {
            cell.end(End::Kill);
            cell.disk().forget();
        }
        self.net.clear();
    }
}

/// Somebody at a machine of their own who asks regions.
pub struct Visitor {
    pub name: String,
    pub world: Arc<World>,
    pub rng: SeededRng,
    peers: Arc<dyn Peers>,
}

impl Visitor {
    pub fn new(name: String, seed: u64, world: &Arc<World>) -> Visitor {
        let peers = world.net.peers(&name, &Life::default());
        Visitor { name, world: world.clone(), rng: SeededRng::new(seed), peers }
    }

    pub fn below(&self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    pub fn now_ns(&self) -> u64 {
        self.world.net.now_ns()
    }

    pub async fn pause(&self, least_ns: u64, most_ns: u64) {
        let ns = least_ns + self.below(most_ns - least_ns + 1);
        let (leave, left) = slot();
        self.world.net.after_ns(ns, move || leave(()));
        left.await;
    }

    pub fn ask(
        &self,
        region: u8,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<Vec<u8>>,
        deadline_ms: u32,
    ) -> Left<Result<PeerReply>> {
        let (leave, left) = slot();
        let body = body.map(|body| Arc::new(body) as _);
        let request = PeerRequest { opcode, meta, body, deadline_ms };
        self.peers.call(&address(region), request, Box::new(leave));
        left
    }

    /// Says in a region that the table is to be made in all of them.
    pub async fn make(&self, region: u8) -> Result<msg::TableInfo> {
        let Plan { mode, tablets, .. } = self.world.shared.plan;
        self.make_as(region, mode, tablets).await
    }

    /// With these words.
    pub async fn make_as(
        &self,
        region: u8,
        mode: msg::TableMode,
        tablets: u16,
    ) -> Result<msg::TableInfo> {
        let make = msg::Make { table: TABLE.into(), mode, tablets, everywhere: true };
        let reply = self.ask(region, OP_TABLE_MAKE, make.to_bytes(), None, 20_000).await?;
        Ok(msg::TableInfo::from_bytes(&reply.meta)?)
    }

    pub async fn describe(&self, region: u8) -> Result<msg::TableInfo> {
        let name = TABLE.to_owned().to_bytes();
        let reply = self.ask(region, OP_TABLE_DESCRIBE, name, None, 4000).await?;
        Ok(msg::TableInfo::from_bytes(&reply.meta)?)
    }
}
