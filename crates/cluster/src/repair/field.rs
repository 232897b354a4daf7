//! The cluster as the planner sees it: nodes and chunks by dense numbers, and back. Built anew for
//! each plan from the views' words and the nodes' reports.

use super::{Bound, MB, horizon_s};
use crate::cluster::{ClusterView, NodeState};
use crate::namespace::{Chunk, Namespace, ShortChunk};
use crate::placement::candidates;
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId, Tier};
use holdfast_recovery::model::{self, Flight, class};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A chunk that needs copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub tier: Tier,
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

/// What is short of copies, fewest live ones first; those of which nothing is left are no tasks.
pub fn tasks(namespace: &Namespace, view: &ClusterView) -> Vec<Task> {
    let short = namespace.short_chunks(|store| view.store_counts(store));
    let task = |short: ShortChunk| {
        let chunk = namespace.chunk(short.chunk)?;
        // One that was sealed empty may never have been made anywhere: there is nothing to copy.
        (!chunk.replicas.is_empty() && chunk.length > 0).then(|| {
            let held = chunk.replicas.iter().filter(|store| view.store_holds(**store)).count();
            Task {
                chunk: short.chunk,
                generation: short.generation,
                tier: chunk.tier,
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
            tier: chunk.tier,
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

/// Copies and MB under way of every node, out and in.
pub type Load = [Vec<(usize, f32)>; 2];

/// The planner's numbers of nodes and tasks.
pub struct Field<'a> {
    sites: &'a Nodes,
    pub nodes: Vec<model::Node>,
    pub tasks: model::Tasks,
    /// By number, and their numbers by chunk.
    named: Vec<&'a Task>,
    numbers: BTreeMap<ChunkId, u32>,
    /// Nodes of each host that has several.
    shared: BTreeMap<&'a str, Vec<u32>>,
}

impl<'a> Field<'a> {
    /// `bandwidth` says what recovery may take of a live node, out and in, in MB/s; nothing for
    /// one that has not reported.
    pub fn new(sites: &'a Nodes, bandwidth: impl Fn(&Site) -> Option<(f32, f32)>) -> Field<'a> {
        let mut racks: BTreeMap<&str, u32> = BTreeMap::new();
        let mut hosts: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let mut nodes = Vec::new();
        for (number, site) in sites.sites.iter().enumerate() {
            let next = racks.len() as u32;
            let rack = *racks.entry(&site.rack).or_insert(next);
            hosts.entry(&site.host).or_default().push(number as u32);
            let found = if site.live { bandwidth(site) } else { None };
            let (out_mb_s, in_mb_s) = found.unwrap_or((0.0, 0.0));
            let in_mb_s = if site.targets.is_empty() { 0.0 } else { in_mb_s };
            nodes.push(model::Node { rack, out_mb_s, in_mb_s });
        }
        hosts.retain(|_, nodes| nodes.len() > 1);
        let tasks = model::Tasks::default();
        Field { sites, nodes, tasks, named: Vec::new(), numbers: BTreeMap::new(), shared: hosts }
    }

    fn number(&self, node: NodeId) -> Option<u32> {
        self.sites.sites.binary_search_by_key(&node, |site| site.node).ok().map(|at| at as u32)
    }

    fn number_of_store(&self, store: StoreId) -> Option<u32> {
        self.number(self.sites.places.get(&store)?.node)
    }

    /// Enters a task; one that cannot be planned (no copy of it can be read now) is only known.
    pub fn push(&mut self, task: &'a Task) {
        let mut sources = BTreeSet::new();
        let mut others = BTreeSet::new();
        for store in &task.holders {
            let Some(place) = self.sites.places.get(store) else { continue };
            let Some(node) = self.number(place.node) else { continue };
            match (place.serves, place.counts) {
                (true, _) => drop(sources.insert(node)),
                (false, true) => drop(others.insert(node)),
                // A lost store's copy keeps nobody away, its host's next node least of all.
                (false, false) => continue,
            }
            // Whoever shares a host with a copy takes none.
            if let Some(nodes) = self.shared.get(self.sites.sites[node as usize].host.as_str()) {
                others.extend(nodes);
            }
        }
        let of_dropped = task.dropped.iter().filter_map(|store| self.number_of_store(*store));
        let shunned: BTreeSet<u32> = of_dropped.collect();
        let takes = |node: &u32| self.nodes[*node as usize].in_mb_s > 0.0;
        let mut free = (0..self.nodes.len() as u32).filter(takes);
        if free.any(|n| ![&sources, &others, &shunned].iter().any(|held| held.contains(&n))) {
            others.extend(shunned);
        }
        if let Some(to) = task.to {
            let to = self.number_of_store(to);
            others.extend((0..self.nodes.len() as u32).filter(|node| Some(*node) != to));
        }
        let others: Vec<u32> = others.difference(&sources).copied().collect();
        let sources: Vec<u32> = sources.into_iter().collect();
        if task.tier != Tier::Disk || sources.len() + others.len() > model::HOLDERS_MAX {
            return;
        }
        self.numbers.insert(task.chunk, self.named.len() as u32);
        self.named.push(task);
        self.tasks.push(task.bytes.max(1) as f32 / MB, task.class(), &sources, &others);
    }

    pub fn of(&self, number: u32) -> &'a Task {
        self.named[number as usize]
    }

    pub fn task(&self, chunk: ChunkId) -> Option<&'a Task> {
        self.numbers.get(&chunk).map(|number| self.of(*number))
    }

    /// Whether a copy to this store can go on.
    pub fn receives(&self, store: StoreId) -> bool {
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

    /// How far the plan has to reach, so that each task fits somewhere.
    pub fn horizon_s(&self, queue: &[u32]) -> f32 {
        let fastest_in = self.nodes.iter().fold(0.0f32, |most, node| most.max(node.in_mb_s));
        let slowest_s = queue.iter().fold(0.0f32, |slowest, task| {
            let out = self.tasks.sources(*task).iter();
            let out = out.fold(0.0f32, |most, n| most.max(self.nodes[*n as usize].out_mb_s));
            let speed = out.min(fastest_in);
            if speed > 0.0 { slowest.max(self.tasks.mb(*task) / speed) } else { slowest }
        });
        horizon_s(slowest_s)
    }

    /// A copy that is mostly there stays with its source while that is there.
    pub fn may_move(&self, bound: &Bound) -> bool {
        let serves = self.sites.places.get(&bound.source).is_some_and(|place| place.serves);
        !serves || bound.done * 2 < bound.bytes
    }

    pub fn source_store(&self, task: u32, node: u32) -> Option<StoreId> {
        let id = self.sites.sites.get(node as usize)?.node;
        let here = |store: &&StoreId| {
            self.sites.places.get(store).is_some_and(|place| place.node == id && place.serves)
        };
        self.of(task).holders.iter().find(here).copied()
    }

    /// The store of a node that is asked for, or the one with the least on its way for its free
    /// space: so all disks of a node work, and fill alike.
    pub fn target_store(
        &self,
        task: &Task,
        node: u32,
        on_way: &BTreeMap<StoreId, u64>,
    ) -> Option<StoreId> {
        let targets = self.sites.sites.get(node as usize)?.targets.iter();
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
            let left = bound.bytes.saturating_sub(bound.done) as f32 / MB;
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

    pub fn site_of(&self, number: usize) -> &'a Site {
        &self.sites.sites[number]
    }

    /// What each node could send of all that is to be copied, by number.
    pub fn pending_mb(&self) -> Vec<f32> {
        let mut pending_mb = vec![0.0; self.nodes.len()];
        for task in 0..self.tasks.len() as u32 {
            let sources = self.tasks.sources(task).iter();
            sources.for_each(|node| pending_mb[*node as usize] += self.tasks.mb(task));
        }
        pending_mb
    }

    pub fn sites(&self) -> impl Iterator<Item = (&'a Site, &model::Node)> {
        self.sites.sites.iter().zip(&self.nodes)
    }

    /// Whether some node could take a copy of the task.
    pub fn has_target(&self, task: &Task) -> bool {
        let Some(number) = self.numbers.get(&task.chunk) else { return false };
        let held = self.tasks.holders(*number);
        (0..self.nodes.len() as u32)
            .any(|node| self.nodes[node as usize].in_mb_s > 0.0 && !held.contains(&node))
    }

    pub fn readable(&self, task: &Task) -> bool {
        self.numbers.get(&task.chunk).is_some_and(|number| self.is_readable(*number))
    }
}
