//! The cluster as the planner sees it: nodes and chunks by dense numbers, and back. Built anew for
//! each plan from the views' words and the nodes' reports.

use super::{Bound, MB, horizon_s};
use crate::chunks::{Chunk, Chunks, ShortChunk};
use crate::cluster::{ClusterView, NodeState};
use crate::placement::candidates;
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId, Tier};
use holdfast_env::planted;
use holdfast_recovery::model::{self, Flight, class};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A chunk that needs copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub chunk: ChunkId,
    pub generation: Generation,
    /// About what a copy of it takes.
    pub bytes: u64,
    /// Replicas that count, of those wanted.
    pub live: usize,
    pub wanted: usize,
    /// There are enough copies; some are on nodes that are to go.
    pub drains: bool,
    /// There are enough copies; one is to be on this store, for it is emptier.
    pub to: Option<StoreId>,
    /// Every store that has a replica, whatever its state.
    pub holders: Vec<StoreId>,
    /// Stores whose replica was dropped, short or damaged, and may still be there: a copy goes
    /// elsewhere if it can, or takes its place.
    pub dropped: Vec<StoreId>,
}

/// Where a store is, and what it can do for repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    /// Can be read from.
    pub serves: bool,
    /// A copy there is to stay: its host needs no other.
    pub counts: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub node: NodeId,
    pub host: String,
    pub rack: String,
    pub address: String,
    pub incarnation: Index,
    pub live: bool,
    pub stores: Vec<StoreId>,
    /// `disk` stores that take a replica, with their free space.
    pub targets: Vec<(StoreId, u32)>,
}

/// The cluster as repair sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// By id.
    pub sites: Vec<Site>,
    pub places: BTreeMap<StoreId, Place>,
}

/// What one of these shards knows of a chunk.
pub(super) fn known<'a>(shards: &[&'a Chunks], chunk: ChunkId) -> Option<&'a Chunk> {
    shards.iter().find(|chunks| chunks.shard() == chunk.shard())?.get(chunk)
}

/// What is short of copies, of any shard, fewest live ones first; those of which nothing is left are no
/// tasks.
pub fn tasks(shards: &[&Chunks], view: &ClusterView) -> Vec<Task> {
    let short_of = |chunks: &&Chunks| chunks.short(|store| view.store_counts(store));
    let mut short: Vec<ShortChunk> = shards.iter().flat_map(short_of).collect();
    if shards.len() > 1 {
        // Each shard's are in this order.
        short.sort_unstable();
    }
    let task = |short: ShortChunk| {
        let chunk = known(shards, short.chunk)?;
        // One that was sealed empty may never have been made anywhere: there is nothing to copy. And
        // what is in memory stays with its process, also where its node never comes back.
        let in_memory = chunk.tier == Tier::Dram && !planted!("repair.memory-is-copied");
        (!chunk.replicas.is_empty() && chunk.length > 0 && !in_memory).then(|| {
            let held = chunk.replicas.iter().filter(|store| view.store_holds(**store)).count();
            Task {
                chunk: short.chunk,
                generation: short.generation,
                bytes: bytes_of(chunk),
                live: short.live,
                wanted: short.wanted,
                drains: held >= short.wanted,
                to: None,
                holders: chunk.replicas.clone(),
                dropped: chunk.dropped.iter().map(|dropped| dropped.store).collect(),
            }
        })
    };
    short.into_iter().filter_map(task).collect()
}

/// About what a copy takes. A packed chunk's length is its slots; what is dead in it is not known
/// here.
pub(super) fn bytes_of(chunk: &Chunk) -> u64 {
    chunk.length.max(chunk.live_bytes)
}

impl Task {
    /// Of a chunk that has its copies: one more, on `to`.
    pub(super) fn to_move(chunk: &Chunk, to: StoreId) -> Task {
        Task {
            chunk: chunk.id,
            generation: chunk.generation,
            bytes: bytes_of(chunk),
            live: chunk.replicas.len(),
            wanted: chunk.replicas.len() + 1,
            drains: false,
            to: Some(to),
            holders: chunk.replicas.clone(),
            dropped: Vec::new(),
        }
    }

    fn class(&self) -> u8 {
        match self {
            Task { to: Some(_), .. } => class::REBALANCE,
            Task { drains: true, .. } => class::DRAIN,
            _ => class::repair(self.live),
        }
    }
}

impl Nodes {
    pub fn of(view: &ClusterView) -> Nodes {
        let place = |store, info: &crate::cluster::StoreInfo| Place {
            node: info.node,
            serves: view.store_serves(store),
            counts: view.store_counts(store),
        };
        let places = view.stores().map(|(store, info)| (store, place(store, info))).collect();
        let mut targets: BTreeMap<NodeId, Vec<(StoreId, u32)>> = BTreeMap::new();
        for candidate in candidates(view, Tier::Disk) {
            let of = targets.entry(candidate.node).or_default();
            of.push((candidate.store, candidate.free_mib));
        }
        let mut stores: BTreeMap<NodeId, Vec<StoreId>> = BTreeMap::new();
        view.stores().for_each(|(store, info)| stores.entry(info.node).or_default().push(store));
        let site = |(node, info): (NodeId, &crate::cluster::NodeInfo)| Site {
            node,
            host: info.host.clone(),
            rack: info.rack.clone(),
            address: info.address.clone(),
            incarnation: info.incarnation,
            live: info.state == NodeState::Live && info.incarnation != Index(0),
            stores: stores.remove(&node).unwrap_or_default(),
            targets: targets.remove(&node).unwrap_or_default(),
        };
        Nodes { sites: view.nodes().map(site).collect(), places }
    }

    pub fn site(&self, node: NodeId) -> Option<&Site> {
        let at = self.sites.binary_search_by_key(&node, |site| site.node).ok()?;
        Some(&self.sites[at])
    }

    pub fn live(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(|site| site.live)
    }
}

/// Copies and MB under way of every port, out and in.
pub type Load = [Vec<(usize, f32)>; 2];

/// What recovery may take of a node, in MB/s: of its link, and of those disks that limit it.
#[derive(Clone, Debug, Default)]
pub struct Bandwidth {
    pub link_mb_s: [f32; 2],
    pub disks: BTreeMap<StoreId, DiskBandwidth>,
}

/// What recovery may take of a disk, in MB/s; infinite where nothing limits it.
#[derive(Clone, Copy, Debug)]
pub struct DiskBandwidth {
    /// Out and in.
    pub sides_mb_s: [f32; 2],
    /// Both together.
    pub sum_mb_s: f32,
}

/// What the planner takes for a node: a disk that limits, or all other stores of a node.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The node's number among the sites.
    site: usize,
    /// Of the node's link, which its ports share.
    pub link_mb_s: [f32; 2],
    /// Of a disk that limits, out and in together.
    pub sum_mb_s: Option<f32>,
}

/// The planner's numbers of ports and tasks.
pub struct Field<'a> {
    sites: &'a Nodes,
    /// Ports, those of one node side by side.
    pub nodes: Vec<model::Node>,
    pub ports: Vec<Port>,
    by_store: BTreeMap<StoreId, u32>,
    pub tasks: model::Tasks,
    /// By number, and their numbers by chunk.
    named: Vec<&'a Task>,
    numbers: BTreeMap<ChunkId, u32>,
    /// Ports of each host that has several.
    shared: BTreeMap<&'a str, Vec<u32>>,
}

impl<'a> Field<'a> {
    /// `bandwidth` says what recovery may take of a live node; nothing for one that has not
    /// reported.
    pub fn new(sites: &'a Nodes, bandwidth: impl Fn(&Site) -> Option<Bandwidth>) -> Field<'a> {
        let mut field = Field {
            sites,
            nodes: Vec::new(),
            ports: Vec::new(),
            by_store: BTreeMap::new(),
            tasks: model::Tasks::default(),
            named: Vec::new(),
            numbers: BTreeMap::new(),
            shared: BTreeMap::new(),
        };
        let mut racks: BTreeMap<&str, u32> = BTreeMap::new();
        for (number, site) in sites.sites.iter().enumerate() {
            let next = racks.len() as u32;
            let rack = *racks.entry(&site.rack).or_insert(next);
            let found = if site.live { bandwidth(site) } else { None };
            field.add_ports(number, site, rack, &found.unwrap_or_default());
        }
        field.shared.retain(|_, ports| ports.len() > 1);
        field
    }

    /// A port for each disk that limits, and one for the other stores.
    fn add_ports(&mut self, number: usize, site: &'a Site, rack: u32, bandwidth: &Bandwidth) {
        let link_mb_s = bandwidth.link_mb_s;
        let mut add = |stores: &[StoreId], disk: Option<&DiskBandwidth>| {
            let port = self.ports.len() as u32;
            let most = |side: usize| match disk {
                Some(disk) => link_mb_s[side].min(disk.sides_mb_s[side]).min(disk.sum_mb_s),
                None => link_mb_s[side],
            };
            let takes = site.targets.iter().any(|(store, _)| stores.contains(store));
            let (out_mb_s, in_mb_s) = (most(0), if takes { most(1) } else { 0.0 });
            self.nodes.push(model::Node { rack, out_mb_s, in_mb_s });
            let sum_mb_s = disk.map(|disk| disk.sum_mb_s);
            self.ports.push(Port { site: number, link_mb_s, sum_mb_s });
            self.by_store.extend(stores.iter().map(|store| (*store, port)));
            self.shared.entry(&site.host).or_default().push(port);
        };
        let limits = |store: &&StoreId| bandwidth.disks.contains_key(store);
        let (single, others): (Vec<StoreId>, Vec<StoreId>) = site.stores.iter().partition(limits);
        single.iter().for_each(|store| add(&[*store], bandwidth.disks.get(store)));
        if !others.is_empty() || single.is_empty() {
            add(&others, None);
        }
    }

    pub fn number_of_store(&self, store: StoreId) -> Option<u32> {
        self.by_store.get(&store).copied()
    }

    /// Enters a task; one that cannot be planned (no copy of it can be read now) is only known.
    pub fn push(&mut self, task: &'a Task) {
        let mut sources = BTreeSet::new();
        let mut others = BTreeSet::new();
        let takes = |node: &u32| self.nodes[*node as usize].in_mb_s > 0.0;
        for store in &task.holders {
            let Some(place) = self.sites.places.get(store) else { continue };
            let Some(node) = self.number_of_store(*store) else { continue };
            match (place.serves, place.counts) {
                (true, _) => drop(sources.insert(node)),
                (false, true) => drop(others.insert(node)),
                // A lost store's copy keeps nobody away, its host's next node least of all.
                (false, false) => continue,
            }
            // Whoever shares a host with a copy takes none; of a host's nodes that are gone for good
            // there may be any number.
            if let Some(ports) = self.shared.get(self.site_of(node as usize).host.as_str())
                && !planted!("repair.host-takes-two")
            {
                others.extend(ports.iter().filter(|port| takes(port)));
            }
        }
        let of_dropped = task.dropped.iter().filter_map(|store| self.number_of_store(*store));
        let shunned: BTreeSet<u32> = of_dropped.collect();
        let mut free = (0..self.nodes.len() as u32).filter(takes);
        if free.any(|n| ![&sources, &others, &shunned].iter().any(|held| held.contains(&n))) {
            others.extend(shunned.iter().filter(|port| takes(port)));
        }
        let others: Vec<u32> = others.difference(&sources).copied().collect();
        let sources: Vec<u32> = sources.into_iter().collect();
        if sources.len() + others.len() > model::HOLDERS_MAX {
            return;
        }
        let mb = task.bytes.max(1) as f32 / MB;
        match task.to.map(|to| self.number_of_store(to)) {
            None => self.tasks.push(mb, task.class(), &sources, &others),
            Some(Some(to)) if !others.contains(&to) => {
                self.tasks.push_to(mb, task.class(), &sources, to);
            }
            Some(_) => return,
        }
        self.numbers.insert(task.chunk, self.named.len() as u32);
        self.named.push(task);
    }

    pub fn of(&self, number: u32) -> &'a Task {
        self.named[number as usize]
    }

    pub fn task(&self, chunk: ChunkId) -> Option<&'a Task> {
        self.numbers.get(&chunk).map(|number| self.of(*number))
    }

    /// Whether copies of and to this store can go on.
    pub fn serves(&self, store: StoreId) -> bool {
        self.sites.places.get(&store).is_some_and(|place| place.serves)
    }

    pub fn flight(&self, bound: &Bound) -> Option<Flight> {
        let task = *self.numbers.get(&bound.chunk)?;
        let seconds = bound.age_ms.max(1) as f32 / 1000.0;
        Some(Flight {
            task,
            source: self.number_of_store(bound.source)?,
            destination: self.number_of_store(bound.target)?,
            done_mb: (bound.done as f32 / MB).min(self.tasks.mb(task) * 0.999),
            speed_mb_s: bound.received as f32 / MB / seconds,
            rate_mb_s: bound.rate_mb_s,
        })
    }

    /// Tasks that can be read from somewhere and are not under way.
    pub fn queue(&self, flights: &[Flight]) -> Vec<u32> {
        let mut under_way = vec![false; self.tasks.len()];
        flights.iter().for_each(|flight| under_way[flight.task as usize] = true);
        let numbers = 0..self.tasks.len() as u32;
        numbers.filter(|task| !under_way[*task as usize] && self.is_readable(*task)).collect()
    }

    fn is_readable(&self, task: u32) -> bool {
        self.tasks.sources(task).iter().any(|node| self.nodes[*node as usize].out_mb_s > 0.0)
    }

    /// How far the plan has to reach, so that each task fits somewhere where it may go.
    pub fn horizon_s(&self, queue: &[u32]) -> f32 {
        let takers = Takers::new(&self.nodes);
        let slowest_s = queue.iter().fold(0.0f32, |slowest, task| {
            let out = self.tasks.sources(*task).iter();
            let out = out.fold(0.0f32, |most, n| most.max(self.nodes[*n as usize].out_mb_s));
            let speed = out.min(takers.fastest_mb_s(&self.nodes, &self.tasks, *task));
            if speed > 0.0 { slowest.max(self.tasks.mb(*task) / speed) } else { slowest }
        });
        horizon_s(slowest_s)
    }

    /// Whether it can be read somewhere and copied somewhere now.
    pub fn is_plannable(&self, task: &Task) -> bool {
        self.readable(task) && self.has_target(task)
    }

    /// A copy that is mostly there stays with its source while that is there.
    pub fn may_move(&self, bound: &Bound) -> bool {
        let serves = self.sites.places.get(&bound.source).is_some_and(|place| place.serves);
        !serves || bound.done * 2 < bound.bytes
    }

    pub fn source_store(&self, task: u32, node: u32) -> Option<StoreId> {
        let here =
            |store: &&StoreId| self.number_of_store(**store) == Some(node) && self.serves(**store);
        self.of(task).holders.iter().find(here).copied()
    }

    /// The store of a port that is asked for, or the one with the least on its way for its free
    /// space: so all disks of a node work, and fill alike.
    pub fn target_store(
        &self,
        task: &Task,
        node: u32,
        on_way: &BTreeMap<StoreId, u64>,
    ) -> Option<StoreId> {
        let targets = self.site_of(node as usize).targets.iter();
        let targets = targets.filter(|(store, _)| self.number_of_store(*store) == Some(node));
        let asked = |store: &StoreId| task.to.is_none_or(|to| to == *store);
        let free = targets.filter(|(store, _)| !task.holders.contains(store) && asked(store));
        let rank = |(store, free): &&(StoreId, u32)| {
            let bytes = on_way.get(store).copied().unwrap_or(0) + task.bytes;
            (task.dropped.contains(store), bytes / u64::from(*free).max(1), Reverse(*store))
        };
        free.min_by_key(rank).map(|(store, _)| *store)
    }

    pub fn load<'b>(&self, bound: impl Iterator<Item = &'b Bound>) -> Load {
        let mut load = [vec![(0, 0.0); self.nodes.len()], vec![(0, 0.0); self.nodes.len()]];
        for bound in bound {
            let left = bound.mb_left();
            let ends = [self.number_of_store(bound.source), self.number_of_store(bound.target)];
            for (side, node) in load.iter_mut().zip(ends) {
                if let Some(node) = node {
                    side[node as usize].0 += 1;
                    side[node as usize].1 += left;
                }
            }
        }
        load
    }

    pub fn site_of(&self, port: usize) -> &'a Site {
        &self.sites.sites[self.ports[port].site]
    }

    /// What each port could send of all that is to be copied, by number.
    pub fn pending_mb(&self) -> Vec<f32> {
        let mut pending_mb = vec![0.0; self.nodes.len()];
        for task in 0..self.tasks.len() as u32 {
            let sources = self.tasks.sources(task).iter();
            sources.for_each(|node| pending_mb[*node as usize] += self.tasks.mb(task));
        }
        pending_mb
    }

    /// The ports of each node, by number.
    pub fn ports_by_site(&self) -> impl Iterator<Item = (&'a Site, Range<usize>)> {
        let mut from = 0;
        self.ports.chunk_by(|one, next| one.site == next.site).map(move |ports| {
            let of_one = from..from + ports.len();
            from = of_one.end;
            (self.site_of(of_one.start), of_one)
        })
    }

    /// Whether some node could take a copy of the task.
    pub fn has_target(&self, task: &Task) -> bool {
        let Some(number) = self.numbers.get(&task.chunk) else { return false };
        let held = self.tasks.holders(*number);
        let takes = |node: u32| self.nodes[node as usize].in_mb_s > 0.0 && !held.contains(&node);
        match self.tasks.target(*number) {
            Some(to) => takes(to),
            None => (0..self.nodes.len() as u32).any(takes),
        }
    }

    pub fn readable(&self, task: &Task) -> bool {
        self.numbers.get(&task.chunk).is_some_and(|number| self.is_readable(*number))
    }
}

/// Ports that take copies, the fastest first, and the fastest of each rack.
struct Takers {
    nodes: Vec<u32>,
    racks: Vec<u32>,
}

impl Takers {
    fn new(nodes: &[model::Node]) -> Takers {
        let speed = |node: &u32| nodes[*node as usize].in_mb_s;
        let mut takers: Vec<u32> = (0..nodes.len() as u32).filter(|n| speed(n) > 0.0).collect();
        takers.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
        let mut known = BTreeSet::new();
        let first = |node: &&u32| known.insert(nodes[**node as usize].rack);
        let racks = takers.iter().filter(first).copied().collect();
        Takers { nodes: takers, racks }
    }

    /// Of the best that the planner may choose for a task: where it is to go; else in a rack that
    /// holds no copy, if one is left; else anywhere but where one is.
    fn fastest_mb_s(&self, nodes: &[model::Node], tasks: &model::Tasks, task: u32) -> f32 {
        let held = tasks.holders(task);
        let rack = |node: &u32| nodes[*node as usize].rack;
        let elsewhere = |node: &&u32| held.iter().all(|holder| rack(holder) != rack(node));
        let best = match tasks.target(task) {
            _ if planted!("repair.horizon-of-any-target") || planted!("repair.slow-for-ever") => {
                self.nodes.first().copied()
            }
            Some(to) => Some(to),
            None => {
                let other = self.racks.iter().find(elsewhere);
                other.or_else(|| self.nodes.iter().find(|node| !held.contains(node))).copied()
            }
        };
        best.map_or(0.0, |node| nodes[node as usize].in_mb_s)
    }
}
