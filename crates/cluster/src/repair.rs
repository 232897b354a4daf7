//! Which chunk is copied from where to where: a pure function of what is short and of who is busy,
//! called by the leader each round. The first planner; a scheduler that knows rates can take the
//! place of [`plan`], with the same arguments.

use crate::cluster::ClusterView;
use crate::namespace::{Namespace, ShortChunk};
use crate::placement::{Candidate, Taken, candidates, choose};
use holdfast_base::ids::{ChunkId, Generation, NodeId, StoreId, Tier};
use std::collections::{BTreeMap, BTreeSet};

/// A chunk that needs copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub tier: Tier,
    /// Replicas that count, of those wanted.
    pub live: usize,
    pub wanted: usize,
    /// Every store that has a replica, whatever its state.
    pub holders: Vec<StoreId>,
    /// Stores whose replica was dropped, short or damaged, and may still be there: a copy goes
    /// elsewhere if it can, or takes its place.
    pub dropped: Vec<StoreId>,
}

/// Where a store is, and what it can do for repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    pub host: String,
    pub rack: String,
    /// Can be read from.
    pub serves: bool,
    /// A copy there is to stay: its host needs no other.
    pub counts: bool,
}

/// The cluster as a planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    pub places: BTreeMap<StoreId, Place>,
    /// Stores that take a replica, a tier.
    pub targets: BTreeMap<Tier, Vec<Candidate>>,
}

/// One copy to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub source: StoreId,
    pub target: StoreId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Copies that one node sends at a time, and that it receives.
    pub per_node: usize,
    /// Copies in all that one call may add.
    pub assignments: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { per_node: 4, assignments: 1024 }
    }
}

/// What is short of copies, fewest live ones first; those of which nothing is left are no tasks.
pub fn tasks(namespace: &Namespace, view: &ClusterView) -> Vec<Task> {
    let short = namespace.short_chunks(|store| view.store_counts(store));
    let task = |short: ShortChunk| {
        let chunk = namespace.chunk(short.chunk)?;
        // One that was sealed empty may never have been made anywhere: there is nothing to copy.
        (!chunk.replicas.is_empty() && chunk.length > 0).then(|| Task {
            chunk: short.chunk,
            generation: short.generation,
            tier: chunk.tier,
            live: short.live,
            wanted: short.wanted,
            holders: chunk.replicas.clone(),
            dropped: chunk.dropped.iter().map(|dropped| dropped.store).collect(),
        })
    };
    short.into_iter().filter_map(task).collect()
}

impl Nodes {
    pub fn of(view: &ClusterView) -> Nodes {
        let place = |store, info: &crate::cluster::StoreInfo| {
            let node = view.node(info.node)?;
            Some(Place {
                node: info.node,
                host: node.host.clone(),
                rack: node.rack.clone(),
                serves: view.store_serves(store),
                counts: view.store_counts(store),
            })
        };
        let places = view.stores().filter_map(|(store, info)| Some((store, place(store, info)?)));
        let tiers = [Tier::Dram, Tier::Disk];
        Nodes {
            places: places.collect(),
            targets: tiers.into_iter().map(|tier| (tier, candidates(view, tier))).collect(),
        }
    }
}

/// Copies under way, a node and direction.
#[derive(Default)]
struct Load {
    sending: BTreeMap<NodeId, usize>,
    receiving: BTreeMap<NodeId, usize>,
}

impl Load {
    fn add(&mut self, nodes: &Nodes, assignment: &Assignment) {
        for (store, loads) in
            [(assignment.source, &mut self.sending), (assignment.target, &mut self.receiving)]
        {
            if let Some(place) = nodes.places.get(&store) {
                *loads.entry(place.node).or_default() += 1;
            }
        }
    }
}

/// Copies to start beside those that are `running`: fewest live copies first, from the least busy
/// node that serves a replica, to a host that has none.
pub fn plan(
    tasks: &[Task],
    nodes: &Nodes,
    running: &[Assignment],
    limits: Limits,
) -> Vec<Assignment> {
    let mut load = Load::default();
    running.iter().for_each(|assignment| load.add(nodes, assignment));
    let mut tasks: Vec<&Task> = tasks.iter().collect();
    tasks.sort_by_key(|task| (task.live, task.chunk));
    let mut planned = Vec::new();
    for task in tasks {
        let begun: Vec<StoreId> =
            running.iter().filter(|a| a.chunk == task.chunk).map(|a| a.target).collect();
        let mut coming = begun.clone();
        while task.live + coming.len() < task.wanted && planned.len() < limits.assignments {
            let Some(next) = assign(task, &coming, nodes, &load, limits.per_node) else { break };
            load.add(nodes, &next);
            coming.push(next.target);
            planned.push(next);
        }
    }
    planned
}

fn assign(
    task: &Task,
    coming: &[StoreId],
    nodes: &Nodes,
    load: &Load,
    per_node: usize,
) -> Option<Assignment> {
    let busy = |loads: &BTreeMap<NodeId, usize>, node| loads.get(&node).copied().unwrap_or(0);
    let sources = task.holders.iter().filter_map(|store| {
        let place = nodes.places.get(store).filter(|place| place.serves)?;
        let sending = busy(&load.sending, place.node);
        (sending < per_node).then_some((sending, *store))
    });
    let (_, source) = sources.min()?;
    // A copy that does not count (lost, draining) still keeps its own store from another one.
    let mut taken = Taken::default();
    let held =
        task.holders.iter().filter(|store| nodes.places.get(store).is_some_and(|p| p.counts));
    for place in held.chain(coming).filter_map(|store| nodes.places.get(store)) {
        taken.hosts.insert(place.host.clone());
        taken.racks.insert(place.rack.clone());
    }
    let targets: BTreeSet<StoreId> = task.holders.iter().chain(coming).copied().collect();
    let free = nodes.targets.get(&task.tier)?.iter().filter(|candidate| {
        !targets.contains(&candidate.store) && busy(&load.receiving, candidate.node) < per_node
    });
    let (second, first): (Vec<_>, Vec<_>) =
        free.cloned().partition(|candidate| task.dropped.contains(&candidate.store));
    let target = choose(&first, &taken, None, task.chunk.0)
        .or_else(|| choose(&second, &taken, None, task.chunk.0))?
        .store;
    Some(Assignment { chunk: task.chunk, generation: task.generation, source, target })
}

#[cfg(test)]
mod tests;
