//! A whole cluster in one thread from one seed: production nodes on simulated disks and a
//! simulated network, clients that write and read, faults, and checkers that say which promise
//! was broken. `run` is one schedule; the same seed is the same schedule, event by event.

mod archive;
mod brokers;
pub mod cell;
mod check;
pub mod client;
mod copies;
mod door;
pub mod faults;
pub mod guest;
mod model;
mod progress;
mod renewal;
pub mod scene;
mod shards;
mod sometimes;

use crate::guests;
use crate::powercut::{Seen, mix};
use crate::task::spawn;
use crate::{Distance, SimDisk, SimDiskOptions, SimNet};
use archive::Archive;
use brokers::Brokers;
use cell::{Cell, SECOND};
use client::Client;
use copies::Copies;
use faults::Fault;
use guest::{Guest, Visitor};
use holdfast_base::ids::NodeId;
use holdfast_base::{Kind, Result};
use holdfast_cluster::ClusterCommand;
use holdfast_cluster::cluster::CONTROLLERS_MAX;
use holdfast_env::events::{self, Event};
use holdfast_env::trial::{Drawn, Trial};
use holdfast_env::{HoldMutex, SeededRng};
use holdfast_node::Node;
use holdfast_wire::admin::RecoverySettings;
use model::Model;
use progress::{Progress, Terms};
pub use sometimes::{SCHEDULES_FOR_ALL, SCHEDULES_FOR_BORDERS, SOMETIMES, SOMETIMES_SMALL};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Of each simulated disk.
pub const DISK_BYTES: u64 = 1 << 40;

/// No schedule takes longer after its faults: something waits for ever.
const LASTS_NS_MAX: u64 = 900 * SECOND;

/// Nodes of a new cluster have started within this, before any fault.
const STARTED_WITHIN_NS: u64 = 60 * SECOND;

/// What repair may take of a node's link, unless that is drawn.
const RECOVERY_BYTES_PER_SECOND: u64 = 250_000;

/// What a schedule is made of.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub seed: u64,
    pub nodes: usize,
    /// Stores of each node.
    pub stores: usize,
    /// The last node keeps views alone, and has none.
    pub views_alone: bool,
    pub clients: usize,
    /// Faces beside files.
    pub guests: Vec<guests::Make>,
    /// Nodes know each other by certificates; now and then a message names another node than its
    /// connection does.
    pub certificates: bool,
    /// Racks are up to 25 ms from each other, each way another time, and connections between them
    /// break now and then.
    pub far: bool,
    /// Faults are drawn from these; none for a calm one.
    pub faults: Vec<Fault>,
    /// How long clients work, and faults may begin within.
    pub work_ns: u64,
    pub faults_ns: u64,
    /// Between two faults.
    pub between_ns: (u64, u64),
    /// How fast repair may be, and the racks, are drawn from the seed; else they are as usual.
    pub draws_repair: bool,
    /// Sync sites that do nothing: deliberate bugs.
    pub sites_off: Vec<String>,
    /// Bugs that are planted at named points of the code (`holdfast_env::planted!`).
    pub planted: Vec<String>,
    /// Internal limits have their usual sizes, where the seed would draw small ones.
    pub usual_limits: bool,
    /// The log promises no more than every engine does.
    pub unruly: bool,
    /// Brokers keep the log, and no node does.
    pub brokers: bool,
    /// Shards that are added to the first; clients move their directories between them.
    pub shards: u16,
    /// Keep a line of everything that happens.
    pub trace: bool,
    /// Print it at once.
    pub aloud: bool,
}

/// Whether this seed is one of every `n`.
fn one_in(seed: u64, what: u64, n: u64) -> bool {
    mix(seed, what).is_multiple_of(n)
}

impl Schedule {
    /// One in eight has a node past the seventh, who is no controller; one in four has two stores
    /// a node; each has a guest, one in four items, one in twelve Scribe's agents and one in twelve a table; in one
    /// of twelve nodes have certificates; in one of four the racks are far from each other; in one of six a node
    /// keeps views alone; in one of three the log promises no more than every engine does; in one of four brokers
    /// keep it; in two of three there are one or two shards beside the first.
    pub fn new(seed: u64) -> Schedule {
        Schedule {
            seed,
            nodes: if one_in(seed, 50, 8) { 8 } else { 5 },
            stores: if one_in(seed, 51, 4) { 2 } else { 1 },
            // Of the tier in memory each node has a store.
            views_alone: one_in(seed, 54, 6) && !matches!(seed % 12, 3 | 9),
            clients: 6,
            guests: match seed % 12 {
                1 | 7 => vec![guests::blobs],
                3 | 9 => vec![guests::memory],
                4 | 8 | 10 => vec![guests::items],
                5 | 11 => vec![guests::tokens],
                6 => vec![guests::writers],
                0 => vec![guests::scribe],
                _ if (seed / 12).is_multiple_of(2) => vec![guests::tables],
                _ => vec![guests::strong_tables],
            },
            certificates: seed % 12 == 11,
            far: one_in(seed, 52, 4),
            faults: faults::ALL.to_vec(),
            work_ns: 120 * SECOND,
            faults_ns: 95 * SECOND,
            between_ns: (2 * SECOND, 10 * SECOND),
            draws_repair: false,
            sites_off: Vec::new(),
            planted: Vec::new(),
            usual_limits: false,
            unruly: one_in(seed, 55, 3),
            brokers: one_in(seed, 56, 4),
            shards: (mix(seed, 57) % 3) as u16,
            trace: false,
            aloud: false,
        }
    }

    /// One that gives repair work, most at rates at which a copy takes seconds, and time to be done.
    pub fn repair(seed: u64) -> Schedule {
        Schedule {
            clients: 3,
            faults: faults::OF_REPAIR.to_vec(),
            between_ns: (8 * SECOND, 25 * SECOND),
            work_ns: 240 * SECOND,
            faults_ns: 90 * SECOND,
            draws_repair: true,
            // How long repair may take is judged by what copies take, not by what a log does.
            unruly: false,
            brokers: false,
            ..Schedule::new(seed)
        }
    }

    pub fn calm(seed: u64) -> Schedule {
        let calm = Schedule { faults: Vec::new(), guests: Vec::new(), ..Schedule::new(seed) };
        Schedule {
            far: false,
            views_alone: false,
            unruly: false,
            brokers: false,
            shards: 0,
            ..calm
        }
    }
}

/// What a schedule came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    pub operations: u64,
    pub faults: u64,
    pub fault_kinds: BTreeMap<Fault, u64>,
    pub digest: u64,
    pub simulated_ns: u64,
    pub seen: BTreeMap<&'static str, u64>,
    /// The internal limits that were asked for, what the seed drew, whether one was reached.
    pub knobs: BTreeMap<&'static str, Drawn>,
    /// Broken promises, each a sentence; empty for a good run.
    pub violations: Vec<String>,
    /// What nodes found, with the number of the cell.
    pub findings: Vec<(usize, String)>,
    pub trace: Vec<String>,
}

/// What everybody in the world tells.
pub struct Shared {
    net: SimNet,
    /// Node N is in rack N modulo this.
    racks: usize,
    guests: Vec<Arc<dyn Guest>>,
    certificates: bool,
    unruly: bool,
    /// Beside the first.
    shards: u16,
    /// Who keep the log, if no node does.
    brokers: Option<Arc<Brokers>>,
    sites_off: Vec<String>,
    seen: Mutex<BTreeMap<&'static str, u64>>,
    violations: Mutex<Vec<String>>,
    findings: Mutex<Vec<(usize, String)>>,
    /// Who lives in each cell, as who, last.
    ids: Mutex<BTreeMap<usize, NodeId>>,
    /// Processes that have started.
    starts: AtomicU64,
    operations: AtomicU64,
    fault_kinds: Mutex<BTreeMap<Fault, u64>>,
    clients_left: AtomicUsize,
    acknowledgements: AtomicU64,
    over: AtomicBool,
    world: OnceLock<Weak<World>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.held()
}

impl Shared {
    pub fn new_disk(&self, seed: u64) -> SimDisk {
        let options = SimDiskOptions { capacity_bytes: DISK_BYTES, ..SimDiskOptions::default() };
        let disk = SimDisk::with_options(seed, options);
        self.sites_off.iter().for_each(|site| disk.disable_site(site));
        disk
    }

    /// Whether the log may lose an answer, or be out of reach of a node that runs.
    fn loses_answers(&self) -> bool {
        self.unruly || self.brokers.is_some()
    }

    pub fn sometimes(&self, happened: bool, what: &'static str) {
        if happened {
            *locked(&self.seen).entry(what).or_default() += 1;
        }
    }

    /// A promise was broken: the schedule is over.
    pub fn violate(&self, what: String) {
        self.net.note(&format!("VIOLATION {what}"));
        locked(&self.violations).push(what);
        self.over.store(true, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn note_start(&self, cell: usize, id: NodeId) {
        locked(&self.ids).insert(cell, id);
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    fn keep_findings(&self, cell: usize, node: &Node) {
        let mut kept = locked(&self.findings);
        for finding in node.findings() {
            let finding = (cell, finding);
            if !kept.contains(&finding) {
                kept.push(finding);
            }
        }
    }

    /// What a process has counted, at its end.
    fn keep_events(&self, node: &Node) {
        let events = &node.replicator.events;
        let seen = |count: &AtomicU64, what| {
            self.sometimes(count.load(Ordering::Relaxed) > 0, what);
        };
        seen(&events.hedged_reads, "a read was hedged");
        seen(&events.slow_replicas, "a replica slower than the writer's limit ended its chunk");
        seen(&events.resumed_copies, "a copy went on where an earlier one ended");
        seen(&events.set_aside, "a replica that does not count made way for a copy");
        seen(&events.snapshots_taken_over, "a node began with another node's snapshot");
        let unknown = |finding: &String| finding.contains("that the namespace does not know");
        self.sometimes(node.findings().iter().any(unknown), "an unknown replica was kept");
    }

    fn count_operation(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn count_fault(&self, fault: Fault) {
        *locked(&self.fault_kinds).entry(fault).or_default() += 1;
    }

    fn client_ended(&self) {
        self.clients_left.fetch_sub(1, Ordering::Relaxed);
    }

    /// A write was acknowledged: now and then its copies are counted on the disks.
    fn acknowledged(&self, gateway: usize, path: &str) {
        let count = self.acknowledgements.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(16)
            && let Some(world) = self.world.get().and_then(Weak::upgrade)
        {
            world.check_synced(gateway, path);
        }
    }
}

/// The simulated world.
pub struct World {
    schedule: Schedule,
    net: SimNet,
    shared: Arc<Shared>,
    rng: SeededRng,
    cells: Vec<Arc<Cell>>,
    faults: Vec<Fault>,
    /// The cell whose media fail; never the one with the log, nor the only controller's.
    unlucky: usize,
    models: Arc<Vec<Mutex<Model>>>,
    archive: Archive,
    copies: Mutex<Copies>,
    progress: Mutex<Progress>,
}

impl World {
    pub fn new(schedule: &Schedule) -> Arc<World> {
        let seed = schedule.seed;
        let net = SimNet::new(mix(seed, 1));
        if schedule.trace {
            net.start_trace();
        }
        if schedule.aloud {
            net.trace_aloud();
        }
        let terms = Terms::of(schedule);
        let shared = Arc::new(Shared {
            net: net.clone(),
            racks: terms.racks,
            guests: schedule.guests.iter().map(|make| make()).collect(),
            certificates: schedule.certificates,
            unruly: schedule.unruly,
            shards: schedule.shards,
            brokers: schedule.brokers.then(|| {
                Brokers::new(&net, mix(seed, 4), schedule.unruly)
                    .expect("an empty simulated disk takes a log")
            }),
            sites_off: schedule.sites_off.clone(),
            seen: Mutex::default(),
            violations: Mutex::default(),
            findings: Mutex::default(),
            ids: Mutex::default(),
            starts: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            fault_kinds: Mutex::default(),
            clients_left: AtomicUsize::new(schedule.clients),
            acknowledgements: AtomicU64::new(0),
            over: AtomicBool::new(false),
            world: OnceLock::new(),
        });
        let cell = |number| {
            let keeps_views_alone = schedule.views_alone && number == schedule.nodes;
            let places = (number, if keeps_views_alone { 0 } else { schedule.stores });
            Cell::new(places, mix(seed, 100 + number as u64), &net, &shared)
        };
        let models = (0..schedule.clients).map(|_| Mutex::default()).collect();
        let world = Arc::new(World {
            cells: (1..=schedule.nodes).map(cell).collect(),
            rng: SeededRng::new(mix(seed, 2)),
            faults: schedule.faults.clone(),
            unlucky: match schedule.nodes {
                // Nobody takes over from the one controller that there may ever be.
                n if schedule.brokers && CONTROLLERS_MAX.size() > 1 => {
                    (mix(seed, 3) % n as u64) as usize
                }
                1 => 0,
                n => 1 + (mix(seed, 3) % (n as u64 - 1)) as usize,
            },
            models: Arc::new(models),
            archive: Archive::new().expect("an empty simulated disk takes a log"),
            copies: Mutex::default(),
            schedule: schedule.clone(),
            progress: Mutex::new(Progress::new(terms)),
            net,
            shared: shared.clone(),
        });
        let _ = shared.world.set(Arc::downgrade(&world));
        shared.sometimes(schedule.views_alone, "a node that keeps views alone was there");
        shared.sometimes(schedule.brokers, "brokers kept the log");
        if schedule.far {
            world.move_apart();
        }
        world
    }

    /// Lets the world go on until then, or until a promise is broken.
    fn run_until(&self, until_ns: u64) {
        while !self.shared.is_over() && self.net.next_ns().is_some_and(|next| next <= until_ns) {
            self.net.step();
        }
    }

    fn run_for(&self, ns: u64) {
        self.run_until(self.net.now_ns() + ns);
    }

    fn run(self: &Arc<World>) {
        for cell in &self.cells {
            let starting = cell.clone();
            self.net.after_ns(cell.number as u64 * SECOND / 10, move || starting.start());
        }
        self.operator();
        let slow = self.clone();
        self.net.after_ns(2 * SECOND, move || slow.slow_recovery(slow.rate()));
        self.run_for(3 * SECOND);
        self.run_until_all_have_started();
        let end_ns = self.net.now_ns() + self.schedule.work_ns;
        if self.schedule.shards > 0 {
            let name = "shards".to_owned();
            let seed = mix(self.schedule.seed, 58);
            let person = Visitor::new(name, seed, self.schedule.nodes, &self.net, &self.shared);
            spawn(&self.net, shards::add(person, self.schedule.shards));
        }
        for number in 0..self.schedule.clients {
            let seed = mix(self.schedule.seed, 1000 + number as u64);
            let (nodes, models) = (self.schedule.nodes, &self.models);
            let client = Client::new(number, seed, nodes, &self.net, &self.shared, models);
            spawn(&self.net, client.run(end_ns));
        }
        for (number, visitor) in self.visitors() {
            let (guest, shared) = (self.shared.guests[number].clone(), self.shared.clone());
            shared.clients_left.fetch_add(1, Ordering::Relaxed);
            spawn(&self.net, async move {
                guest.work(visitor, end_ns).await;
                shared.client_ended();
            });
        }
        if !self.faults.is_empty() {
            self.fault_soon(self.net.now_ns() + self.schedule.faults_ns);
            self.renew_certificates(self.net.now_ns() + self.schedule.faults_ns);
        }
        // As events: a node that waits to be started may be waiting on top of this.
        let (healer, watchdog) = (self.clone(), self.shared.clone());
        self.net.after_ns(self.schedule.work_ns, move || healer.heal());
        self.net.after_ns(self.schedule.work_ns + LASTS_NS_MAX, move || {
            watchdog.violate("it does not come to an end".to_owned());
        });
        // What faults began has ended by itself by then, but for clients that still wait.
        self.run_until(end_ns);
        let patience_ns = self.net.now_ns() + client::GIVES_UP_NS;
        while self.shared.clients_left.load(Ordering::Relaxed) > 0
            && !self.shared.is_over()
            && self.net.now_ns() < patience_ns
        {
            self.run_for(SECOND);
        }
        self.check_quiet();
    }

    /// On a log that loses answers, starts take several attempts. What is written before there are
    /// several hosts is promised to be on one disk alone.
    fn run_until_all_have_started(&self) {
        let patience_ns = self.net.now_ns() + STARTED_WITHIN_NS;
        while self.shared.loses_answers() && !self.cells.iter().all(|cell| cell.is_up()) {
            if self.shared.is_over() {
                return;
            }
            if self.net.now_ns() > patience_ns {
                return self.shared.violate("nodes do not start".to_owned());
            }
            self.run_for(SECOND);
        }
    }

    /// Draws how far each rack is from each other one.
    fn move_apart(&self) {
        const NS_MAX: u64 = 25 * cell::MS;
        let (seed, racks) = (self.schedule.seed, self.shared.racks);
        let between = |from: usize, to: usize| {
            let drawn = mix(mix(seed, 53), (from * racks + to) as u64);
            let least = drawn % NS_MAX;
            Distance { delay_ns: (least, least + least / 2), breaks_per_mille: drawn % 3 }
        };
        for (from, to) in self.cells.iter().flat_map(|a| self.cells.iter().map(move |b| (a, b))) {
            let racks = (from.number % racks, to.number % racks);
            if racks.0 != racks.1 {
                self.net.set_distance(&from.address, &to.address, between(racks.0, racks.1));
            }
        }
        self.shared.sometimes(true, "racks were far from each other");
    }

    /// The clients of all guests, each with its guest's number.
    fn visitors(&self) -> impl Iterator<Item = (usize, Visitor)> {
        let guests = self.shared.guests.iter().enumerate();
        let clients = guests.flat_map(|(guest, it)| (0..it.clients()).map(move |n| (guest, n)));
        clients.map(|(guest, n)| (guest, self.visitor(guest, &format!("{n}"))))
    }

    fn visitor(&self, guest: usize, who: &str) -> Visitor {
        let name = format!("guest{guest}-{who}");
        let seed = name.bytes().fold(self.schedule.seed, |seed, byte| mix(seed, byte.into()));
        Visitor::new(name, seed, self.schedule.nodes, &self.net, &self.shared)
    }

    /// Copies take so long that they are interrupted.
    pub(crate) fn slow_recovery(self: &Arc<World>, rate: u64) {
        let settings = RecoverySettings {
            rate_max: rate,
            floor_bytes_per_second: rate,
            ..RecoverySettings::default()
        };
        let command = ClusterCommand::SetRecovery { settings };
        if let Some(node) = self.host() {
            let world = self.clone();
            let done = move |set: Result<()>| match set {
                Ok(()) => {}
                // A person asks again, where the log has lost it or its answer.
                Err(e) if e.kind == Kind::Retry && world.shared.loses_answers() => {
                    let again = world.clone();
                    world.net.after_ns(SECOND, move || again.slow_recovery(rate));
                }
                Err(e) => world.shared.violate(format!("set how fast repair may be: {e}")),
            };
            node.propose_cluster(&command, Box::new(done));
        }
    }

    /// A person, who says what the leader asks: that an erased disk does not come back.
    fn operator(self: &Arc<World>) {
        let world = self.clone();
        self.net.after_ns(SECOND, move || {
            let current: Vec<NodeId> = locked(&world.shared.ids).values().copied().collect();
            world.cells.iter().for_each(|cell| cell.look_at_held());
            world.keep_log();
            world.look_at_copies();
            world.check_progress();
            for node in world.cells.iter().filter_map(|cell| cell.node()) {
                world.look_at(&node);
                let gone = |id: &NodeId| !current.contains(id);
                let gone: Vec<NodeId> = node.unconfirmed().into_iter().filter(gone).collect();
                if !gone.is_empty() && node.leads() && node.confirm_lost(&gone).is_ok() {
                    world.shared.sometimes(true, "a person confirmed a loss");
                }
            }
            world.operator();
        });
    }

    /// The node that knows most: the log's host, or where brokers keep the log, the one that has read most of
    /// it.
    fn host(&self) -> Option<Arc<Node>> {
        if self.shared.brokers.is_none() {
            return self.cells[0].node();
        }
        let running = self.cells.iter().filter_map(|cell| cell.node());
        running.max_by_key(|node| node.shards.all().map(|(_, fold)| fold.applied().0).sum::<u64>())
    }

    /// Where the log is.
    fn address_of_log(&self) -> String {
        match self.shared.brokers {
            Some(_) => brokers::ADDRESS.to_owned(),
            None => self.cells[0].address.clone(),
        }
    }

    /// Before anybody gives anything of it up.
    fn keep_log(&self) {
        let host = self.cells[0].node();
        let kept = match &self.shared.brokers {
            Some(brokers) => Some(&brokers.kept),
            None => host.as_ref().and_then(|host| host.hosted()),
        };
        let Some(kept) = kept else { return };
        match self.archive.follow(kept) {
            Ok(trimmed) => self.shared.sometimes(trimmed, "the log was trimmed"),
            // The host is ending, or was trimmed before anybody's snapshots covered it.
            Err(e) if e.kind == Kind::Invalid => self.shared.violate(format!("keep the log: {e}")),
            Err(e) => self.net.note(&format!("keep the log: {e}")),
        }
    }

    /// Events hold the world, and the world the events; processes hold their cells, and cells their
    /// processes: nothing of a schedule may stay for the next ones.
    fn end(&self) {
        self.shared.brokers.iter().for_each(|brokers| brokers.end());
        self.net.clear();
        self.cells.iter().for_each(|cell| cell.forget());
    }

    fn report(&self) -> Report {
        for cell in &self.cells {
            if let Some(node) = cell.node() {
                self.shared.keep_findings(cell.number, &node);
                self.shared.keep_events(&node);
            }
        }
        let fault_kinds = locked(&self.shared.fault_kinds).clone();
        Report {
            seed: self.schedule.seed,
            operations: self.shared.operations.load(Ordering::Relaxed),
            faults: fault_kinds.values().sum(),
            fault_kinds,
            digest: self.net.digest(),
            simulated_ns: self.net.now_ns(),
            seen: locked(&self.shared.seen).clone(),
            knobs: BTreeMap::new(),
            violations: locked(&self.shared.violations).clone(),
            findings: locked(&self.shared.findings).clone(),
            trace: self.net.take_trace(),
        }
    }
}

/// Errors that nodes tell because of what is done to them: disks fail, and lose power. (Of views that stop housekeeping
/// tells, which is not simulated: they are looked for.)
const EXPECTED: &[&str] = &[Event::StoreFailed.name(), Event::LogFailed.name()];

/// Runs one schedule to its end.
pub fn run(schedule: &Schedule) -> Report {
    let trial = match schedule.usual_limits {
        true => Trial::new(),
        false => Trial::drawn(schedule.seed),
    };
    let trial = schedule.planted.iter().fold(trial, |trial, bug| trial.planting(bug)).enter();
    let (mut report, told) = events::told_by(|| {
        let world = World::new(schedule);
        world.run();
        let report = world.report();
        world.end();
        report
    });
    let unexpected = told.iter().filter(|told| told.is_error() && !EXPECTED.contains(&told.event));
    report.violations.extend(unexpected.map(|told| format!("told an error: {told}")));
    for (what, times) in trial.happened() {
        *report.seen.entry(what).or_default() += times;
    }
    report.knobs = trial.knobs();
    report
}

/// Adds up what was seen over many schedules.
pub fn merge(seen: &mut Seen, report: &Report) {
    report.seen.keys().for_each(|what| seen.sometimes(true, what));
}
