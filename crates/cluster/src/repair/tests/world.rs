//! A cluster for the leader's core alone: nodes that do what they are told, at the speed of their
//! links and disks, and what they tell of it.

use crate::repair::*;
use holdfast_wire::peer::{Directions, Ended, Report};

pub const SECOND: u64 = 1_000_000_000;
pub const LINK: u64 = 100_000_000;
pub const CHUNK_BYTES: u64 = 20_000_000;

/// The nodes, and the leader.
pub struct World {
    pub nodes: Nodes,
    pub tasks: Vec<Task>,
    /// Of all chunks that ever were short.
    pub sizes: BTreeMap<ChunkId, u64>,
    pub repair: Repair,
    pub settings: RecoverySettings,
    pub now_ns: u64,
    pub machines: BTreeMap<NodeId, Machine>,
    pub landed: Vec<Landed>,
    /// Copies ever begun, in order.
    pub begun: Vec<(ChunkId, StoreId, StoreId)>,
    /// By which plan each was.
    pub plans: Vec<u64>,
}

#[derive(Default)]
pub struct Machine {
    /// With the bytes that are there.
    pub copies: Vec<(peer::Copy, u64)>,
    pub ended: Vec<Ended>,
    pub ends: u64,
    pub number: u64,
    pub foreground: Directions,
    pub moved: Directions,
    /// Bytes a second that its link is said to carry; 0 for [`LINK`].
    pub link: u64,
    /// Bytes a second that its disk can do; 0 for its link's.
    pub slow: u64,
    /// Of its rack's link: what that carries, and the part of it that this node was told.
    pub rack_link: u64,
    pub rack: Directions,
    pub silent: bool,
    /// Copies to it fail when all their bytes are there.
    pub fails: bool,
    pub disks: BTreeMap<StoreId, DiskOf>,
}

impl Machine {
    pub fn link(&self) -> u64 {
        if self.link == 0 { LINK } else { self.link }
    }
}

#[derive(Clone, Copy, Default)]
pub struct DiskOf {
    /// Reads and writes together, bytes a second; 0 for more than the link.
    pub carries: u64,
    /// Its node has been told so.
    pub told: bool,
    pub foreground: u64,
    pub moved: Directions,
}

/// Node and store N on host N of rack N % 3, all well.
pub fn site(n: u64) -> Site {
    Site {
        node: NodeId(n as u32),
        host: format!("h{n}"),
        rack: format!("r{}", n % 3),
        address: format!("a{n}"),
        incarnation: Index(n),
        live: true,
        stores: vec![StoreId(n)],
        targets: vec![(StoreId(n), 100_000)],
    }
}

pub fn task(chunk: u64, live: usize, holders: &[u64]) -> Task {
    Task {
        chunk: ChunkId(chunk),
        generation: Generation(0),
        bytes: CHUNK_BYTES,
        live,
        wanted: 3,
        drains: false,
        to: None,
        holders: holders.iter().map(|store| StoreId(*store)).collect(),
        dropped: Vec::new(),
    }
}

impl World {
    pub fn new(count: u64, tasks: Vec<Task>) -> World {
        let place = |n: u64| Place { node: NodeId(n as u32), serves: true, counts: true };
        World {
            nodes: Nodes {
                sites: (1..=count).map(site).collect(),
                places: (1..=count).map(|n| (StoreId(n), place(n))).collect(),
            },
            sizes: tasks.iter().map(|task| (task.chunk, task.bytes)).collect(),
            tasks,
            repair: Repair::new(Index(9), 0, false),
            settings: RecoverySettings::default(),
            now_ns: 0,
            machines: (1..=count).map(|n| (NodeId(n as u32), Machine::default())).collect(),
            landed: Vec::new(),
            begun: Vec::new(),
            plans: Vec::new(),
        }
    }

    pub fn machine(&mut self, node: u64) -> &mut Machine {
        self.machines.get_mut(&NodeId(node as u32)).unwrap()
    }

    /// Store 10 + N, with so many free MiB.
    pub fn add_disk(&mut self, node: u64, free_mib: u32) {
        let second = StoreId(10 + node);
        let place = Place { node: NodeId(node as u32), serves: true, counts: true };
        self.nodes.places.insert(second, place);
        let site = &mut self.nodes.sites[node as usize - 1];
        site.stores.push(second);
        site.targets.push((second, free_mib));
    }

    pub fn lose(&mut self, node: u64) {
        let site = &mut self.nodes.sites[node as usize - 1];
        (site.live, site.targets) = (false, Vec::new());
        let place = self.nodes.places.get_mut(&StoreId(node)).unwrap();
        (place.serves, place.counts) = (false, false);
        self.machine(node).silent = true;
    }

    /// One round: orders reach the nodes, time passes, and their reports come back at once, as
    /// they were when the orders came.
    pub fn round(&mut self) -> Vec<Orders> {
        self.sizes.extend(self.tasks.iter().map(|task| (task.chunk, task.bytes)));
        let round = Round {
            now_ns: self.now_ns,
            tasks: &self.tasks,
            nodes: &self.nodes,
            settings: self.settings,
        };
        let (orders, found) = self.repair.round(&round).unwrap();
        self.count(found);
        for orders in &orders {
            let site = self.nodes.site(orders.node).unwrap().clone();
            let Some(report) = self.follow(orders) else { continue };
            let landed = self.repair.heard(self.now_ns, &site, report);
            self.count(landed);
        }
        self.work(PLAN_MS * MS);
        self.now_ns += PLAN_MS * MS;
        orders
    }

    fn count(&mut self, landed: Vec<Landed>) {
        for landed in landed {
            let task = self.tasks.iter_mut().find(|task| task.chunk == landed.chunk).unwrap();
            assert!(!task.holders.contains(&landed.store));
            task.holders.push(landed.store);
            task.live += 1;
            self.tasks.retain(|task| task.live < task.wanted);
            self.repair.counted(self.now_ns, landed, Ok(()));
            self.landed.push(landed);
        }
    }

    fn follow(&mut self, orders: &Orders) -> Option<Report> {
        let machine = self.machines.get_mut(&orders.node).unwrap();
        if machine.silent {
            return None;
        }
        machine.number = orders.plan.number;
        machine.ended.retain(|ended| ended.number > orders.plan.heard);
        if !orders.plan.look {
            machine.rack = orders.plan.rack;
            let had = std::mem::take(&mut machine.copies);
            for copy in orders.plan.copies.clone() {
                if machine.ended.iter().any(|e| (e.chunk, e.store) == (copy.chunk, copy.store)) {
                    continue;
                }
                let same = |old: &&(peer::Copy, u64)| {
                    (old.0.chunk, old.0.source) == (copy.chunk, copy.source)
                };
                let done = had.iter().find(same).map(|old| old.1);
                if done.is_none() {
                    self.begun.push((copy.chunk, copy.source, copy.store));
                    self.plans.push(orders.plan.number);
                }
                machine.copies.push((copy, done.unwrap_or(0)));
            }
        }
        let sizes = &self.sizes;
        let flight = |(copy, done): &(peer::Copy, u64)| peer::Flight {
            store: copy.store,
            chunk: copy.chunk,
            generation: copy.generation,
            source: copy.source,
            bytes_done: *done,
            bytes_total: sizes[&copy.chunk],
            bytes_received: *done,
            age_ms: 1000,
        };
        let disk = |(store, disk): (&StoreId, &DiskOf)| peer::DiskLoad {
            store: *store,
            bytes_per_second: if disk.told { disk.carries } else { 0 },
            foreground: disk.foreground,
            recovery: disk.moved,
            busy_per_mille: {
                // Half of the time at the link's speed both ways.
                let carries = if disk.carries > 0 { disk.carries } else { 4 * LINK };
                ((disk.moved.out + disk.moved.into) * 1000 / carries) as u32
            },
        };
        Some(Report {
            number: machine.number,
            disks: machine.disks.iter().map(disk).collect(),
            link_bytes_per_second: machine.link(),
            rack_bytes_per_second: machine.rack_link,
            foreground: machine.foreground,
            recovery: machine.moved,
            flights: machine.copies.iter().map(flight).collect(),
            ended: machine.ended.clone(),
            ..Report::default()
        })
    }

    /// Copies move: each link and disk is shared evenly, by eq. 1, and both ends have their say.
    fn work(&mut self, ns: u64) {
        let terms = Terms {
            alpha_per_mille: self.settings.alpha_per_mille,
            floor: self.settings.floor_bytes_per_second,
            rate_max: self.settings.rate_max,
            ..Terms::default()
        };
        let node_of = |store: StoreId| self.nodes.places[&store].node;
        let limit = |machine: &Machine, foreground, rack| {
            let limits = [machine.slow, rack].into_iter().filter(|limit| *limit > 0);
            limits.fold(terms.allow(machine.link(), foreground), u64::min)
        };
        let flights: Vec<&peer::Copy> =
            self.machines.values().flat_map(|m| &m.copies).map(|(copy, _)| copy).collect();
        let mut at_disk: BTreeMap<StoreId, u64> = BTreeMap::new();
        for store in flights.iter().flat_map(|copy| [copy.source, copy.store]) {
            *at_disk.entry(store).or_default() += 1;
        }
        let of_disk = |store: StoreId| {
            let disk = self.machines[&node_of(store)].disks.get(&store).copied();
            match disk.unwrap_or_default() {
                DiskOf { carries: 0, .. } => u64::MAX,
                disk if disk.told => terms.allow(disk.carries, disk.foreground) / at_disk[&store],
                disk => disk.carries / at_disk[&store],
            }
        };
        let mut speeds = vec![u64::MAX; flights.len()];
        for (node, machine) in &self.machines {
            for side in 0..2 {
                let (foreground, rack) = match side {
                    0 => (machine.foreground.out, machine.rack.out),
                    _ => (machine.foreground.into, machine.rack.into),
                };
                let link = if machine.silent { 0 } else { limit(machine, foreground, rack) };
                let end = |at: &usize| [flights[*at].source, flights[*at].store][side];
                let here = (0..flights.len()).filter(|at| node_of(end(at)) == *node);
                let here: Vec<(usize, u64)> = here.map(|at| (at, of_disk(end(&at)))).collect();
                for (at, speed) in evenly(link, here) {
                    speeds[at] = speeds[at].min(speed);
                }
            }
        }
        let mut speeds = speeds.into_iter();
        let mut moved: BTreeMap<StoreId, Directions> = BTreeMap::new();
        for machine in self.machines.values_mut() {
            for ((copy, done), speed) in machine.copies.iter_mut().zip(&mut speeds) {
                *done += speed * (ns / MS) / 1000;
                moved.entry(copy.source).or_default().out += speed;
                moved.entry(copy.store).or_default().into += speed;
            }
            let sizes = &self.sizes;
            let whole = |(copy, done): &mut (peer::Copy, u64)| *done >= sizes[&copy.chunk];
            for (copy, bytes) in machine.copies.extract_if(.., whole) {
                machine.ends += 1;
                let failure = if machine.fails { "its checksum is wrong" } else { "" };
                machine.ended.push(Ended {
                    number: machine.ends,
                    store: copy.store,
                    chunk: copy.chunk,
                    generation: copy.generation,
                    bytes,
                    failure: failure.to_owned(),
                });
            }
        }
        for site in &self.nodes.sites {
            let machine = self.machines.get_mut(&site.node).unwrap();
            machine.moved = Directions::default();
            for store in &site.stores {
                let of_disk = moved.get(store).copied().unwrap_or_default();
                machine.moved.out += of_disk.out;
                machine.moved.into += of_disk.into;
                machine.disks.entry(*store).or_default().moved = of_disk;
            }
        }
    }

    /// Until nothing is short; answers the seconds.
    pub fn finish(&mut self) -> f64 {
        let began_ns = self.now_ns;
        while !self.tasks.is_empty() {
            self.round();
            assert!(self.now_ns < began_ns + 600 * SECOND, "{:?}", self.repair.told());
        }
        (self.now_ns - began_ns) as f64 / 1e9
    }
}

/// Parts of a link for copies that can use so much each.
fn evenly(link: u64, mut copies: Vec<(usize, u64)>) -> Vec<(usize, u64)> {
    copies.sort_by_key(|(_, most)| *most);
    let mut left = (link, copies.len() as u64);
    for (_, most) in &mut copies {
        *most = (*most).min(left.0 / left.1);
        left = (left.0 - *most, left.1 - 1);
    }
    copies
}

/// Tasks of chunks that lost their copy on store 1, with the others on two stores each.
pub fn lost_one(chunks: u64, nodes: u64) -> Vec<Task> {
    let pair = |chunk: u64| {
        let first = 2 + chunk % (nodes - 1);
        let second = 2 + (chunk / 3 + 1 + chunk % (nodes - 1)) % (nodes - 1);
        let second = if second == first { 2 + (first - 1) % (nodes - 1) } else { second };
        task(chunk, 2, &[1, first, second])
    };
    (1..=chunks).map(pair).collect()
}
