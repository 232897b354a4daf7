//! Re-balancing: while nothing is short, disk stores that are fuller than the rest give chunks to
//! emptier ones. What is to go is copied first, as repair's lowest class of tasks; once the new
//! copy counts, the chunk has one too many, and the one on the fullest store is dropped. Pure:
//! from the views to tasks and to copies that may go. Called by the leader and its keeper.

use super::MS;
use super::field::{Task, bytes_of, known};
use crate::chunks::{Chunk, Chunks};
use crate::cluster::ClusterView;
use crate::command::REPLICAS_MAX;
use crate::placement::{Candidate, candidates};
use holdfast_base::ids::{ChunkId, Generation, StoreId, Tier};
use holdfast_base::units::MIB;
use std::collections::{BTreeMap, BTreeSet};

/// A store whose filling is so near to the cluster's is left alone.
const SLACK: f64 = 0.05;
/// Moves that are decided at a time.
const MOVES_MAX: usize = 256;
/// How often it is looked whether stores have drifted apart.
const LOOK_MS: u64 = 5000;

/// Bytes of chunks on a store, and what is free.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    used: u64,
    free: u64,
}

impl Fill {
    fn share(self) -> f64 {
        self.used as f64 / (self.used + self.free).max(1) as f64
    }

    fn with(self, bytes: u64) -> Fill {
        Fill { used: self.used + bytes, free: self.free.saturating_sub(bytes) }
    }

    fn without(self, bytes: u64) -> Fill {
        Fill { used: self.used.saturating_sub(bytes), free: self.free + bytes }
    }
}

type Fills = BTreeMap<StoreId, Fill>;

fn of(fills: &Fills, store: &StoreId) -> Fill {
    fills.get(store).copied().unwrap_or_default()
}

/// Of all disk stores that are there to stay.
fn fills(shards: &[&Chunks], view: &ClusterView) -> Fills {
    let stays =
        view.stores().filter(|(store, info)| info.tier == Tier::Disk && stays(view, *store));
    let fill = |(store, info): (StoreId, &crate::cluster::StoreInfo)| {
        let used = shards.iter().flat_map(|chunks| chunks.on(store)).map(bytes_of).sum();
        (store, Fill { used, free: u64::from(info.free_mib) * MIB })
    };
    stays.map(fill).collect()
}

fn stays(view: &ClusterView, store: StoreId) -> bool {
    view.store_serves(store) && view.store_counts(store)
}

/// The host and the rack of a store's node.
fn place(view: &ClusterView, store: StoreId) -> Option<(&str, &str)> {
    let node = view.node(view.store(store)?.node)?;
    Some((&node.host, &node.rack))
}

/// On how many hosts and racks stores are.
fn spread(view: &ClusterView, stores: impl Iterator<Item = StoreId>) -> (usize, usize) {
    let places = stores.filter_map(|store| place(view, store));
    let (hosts, racks): (BTreeSet<&str>, BTreeSet<&str>) = places.unzip();
    (hosts.len(), racks.len())
}

/// Replicas on stores that are there, if only for now, and those on lost ones.
fn held_and_lost(view: &ClusterView, chunk: &Chunk) -> (Vec<StoreId>, Vec<StoreId>) {
    chunk.replicas.iter().partition(|store| view.store_holds(**store))
}

/// Has just the copies that it should have, and nothing goes on with it.
fn is_settled(view: &ClusterView, chunk: &Chunk) -> bool {
    let (held, _) = held_and_lost(view, chunk);
    chunk.is_kept()
        && chunk.tier == Tier::Disk
        && chunk.length > 0
        && held.len() == chunk.copies as usize
        && chunk.old.is_empty()
        && chunk.dropped.is_empty()
        && held.iter().all(|store| stays(view, *store))
}

/// What should move where, so that all stores come near to the same filling. Each move makes the
/// two stores more alike, so that moves come to an end.
fn moves(shards: &[&Chunks], view: &ClusterView) -> Vec<Task> {
    let mut fills = fills(shards, view);
    let all = fills.values().fold(Fill::default(), |all, fill| Fill {
        used: all.used + fill.used,
        free: all.free + fill.free,
    });
    let mean = all.share();
    let takers: Vec<Candidate> = candidates(view, Tier::Disk);
    let starved = takers.iter().any(|taker| of(&fills, &taker.store).share() < mean - SLACK);
    let above = if starved { mean } else { mean + SLACK };
    let full = fills.iter().filter(|(_, fill)| fill.share() > above);
    let mut donors: Vec<(StoreId, f64)> =
        full.map(|(store, fill)| (*store, fill.share())).collect();
    donors.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut moves = BTreeMap::new();
    for (donor, _) in donors {
        for chunk in shards.iter().flat_map(|chunks| chunks.on(donor)) {
            let (bytes, from) = (bytes_of(chunk), of(&fills, &donor));
            if moves.len() == MOVES_MAX || from.share() <= mean {
                break;
            }
            if moves.contains_key(&chunk.id) || !is_settled(view, chunk) {
                continue;
            }
            let fits = |taker: &&Candidate| {
                let into = of(&fills, &taker.store);
                into.share() < mean
                    && into.with(bytes).share() <= from.without(bytes).share()
                    && suits(view, chunk, donor, taker)
            };
            let emptiest = |a: &&Candidate, b: &&Candidate| {
                of(&fills, &a.store).share().total_cmp(&of(&fills, &b.store).share())
            };
            let Some(taker) = takers.iter().filter(fits).min_by(emptiest) else { continue };
            let to = taker.store;
            fills.insert(donor, from.without(bytes));
            fills.insert(to, of(&fills, &to).with(bytes));
            moves.insert(chunk.id, Task::to_move(chunk, to));
        }
    }
    moves.into_values().collect()
}

/// Whether a chunk that goes from `donor` to `taker` is on as many hosts and racks as before.
fn suits(view: &ClusterView, chunk: &Chunk, donor: StoreId, taker: &Candidate) -> bool {
    let (held, _) = held_and_lost(view, chunk);
    let hosts = held.iter().filter_map(|store| Some(place(view, *store)?.0));
    let after = held.iter().filter(|store| **store != donor);
    let after = after.copied().chain([taker.store]);
    !hosts.into_iter().any(|host| host == taker.host)
        && spread(view, after) >= spread(view, held.iter().copied())
}

/// Copies that chunks have too many. Of those that can be read the one on the fullest store, of
/// those without which the chunk is on as many hosts and racks as it can be. Of those on lost
/// stores, which are remembered in case they come back, the one whose node joined first: there is
/// room for [`REPLICAS_MAX`] of both kinds only.
pub fn surplus(shards: &[&Chunks], view: &ClusterView) -> Vec<(ChunkId, Generation, StoreId)> {
    let mut filled = None;
    let mut goes = |chunk: &Chunk| {
        let (held, lost) = held_and_lost(view, chunk);
        let copies = chunk.copies as usize;
        let lost_max = copies.min(REPLICAS_MAX - copies);
        if lost.len() > lost_max && held.iter().any(|store| view.store_serves(*store)) {
            return lost.into_iter().min_by_key(|store| view.store(*store).map(|info| info.node));
        }
        if held.len() <= copies || !held.iter().all(|store| stays(view, *store)) {
            return None;
        }
        let fills = filled.get_or_insert_with(|| fills(shards, view));
        let left = |store: StoreId| held.iter().copied().filter(move |s| *s != store);
        let rank = |store: StoreId| (spread(view, left(store)), of(fills, &store).share());
        let better = |a: &StoreId, b: &StoreId| {
            let (a, b) = (rank(*a), rank(*b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        held.iter().copied().max_by(better)
    };
    let many = |chunk: &&Chunk| {
        chunk.replicas.len() > chunk.copies as usize && chunk.is_kept() && chunk.tier == Tier::Disk
    };
    let many = shards.iter().flat_map(|chunks| chunks.iter()).filter(many);
    many.filter_map(|chunk| Some((chunk.id, chunk.generation, goes(chunk)?))).collect()
}

/// The leader's moves that are not done.
#[derive(Default)]
pub struct Balance {
    moves: Vec<Task>,
    look_ns: u64,
}

impl Balance {
    /// The tasks for now, where nothing is short.
    pub fn tasks(&mut self, now_ns: u64, shards: &[&Chunks], view: &ClusterView) -> Vec<Task> {
        let takers = if self.moves.is_empty() { Vec::new() } else { candidates(view, Tier::Disk) };
        self.moves.retain(|task| {
            let chunk = known(shards, task.chunk);
            let holds = |store: StoreId| task.holders.contains(&store);
            chunk.is_some_and(|chunk| {
                chunk.generation == task.generation
                    && is_settled(view, chunk)
                    && chunk.replicas.iter().all(|store| holds(*store))
            }) && takers.iter().any(|taker| task.to == Some(taker.store))
        });
        if self.moves.is_empty() && now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_MS * MS;
            self.moves = moves(shards, view);
        }
        self.moves.clone()
    }

    /// Something is short: that comes first, and what was to move is decided anew.
    pub fn forget(&mut self) {
        self.moves.clear();
    }
}

#[cfg(test)]
mod tests;
