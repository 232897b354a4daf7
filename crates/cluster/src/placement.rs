//! Which stores take a new replica: a pure function of the cluster view and a seed, made before
//! the entry that records it. Frozen: the same view and seed give the same stores in every build
//! (docs/cluster.md), for which its logarithm is computed in integers.

use crate::cluster::{ClusterView, StoreState};
use holdfast_base::ids::{NodeId, StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::random::mix;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use std::collections::BTreeSet;

/// Copies of a `durable` chunk.
pub const COPIES: usize = 3;
/// With fewer, durable writes are refused.
pub const REPLICAS_MIN: usize = 2;
/// Free space of a store below which it takes no further chunk.
const ROOM_MIB: u32 = (CHUNK_BYTES / MIB) as u32;

/// What to place.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub copies: usize,
    pub tier: Tier,
    /// Comes first, if it is a candidate.
    pub preferred: Option<NodeId>,
    /// Drawn by the caller.
    pub seed: u64,
}

/// A store that could take a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub store: StoreId,
    pub node: NodeId,
    pub host: String,
    pub rack: String,
    pub free_mib: u32,
}

/// Hosts and racks that hold a replica already.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    pub hosts: BTreeSet<String>,
    pub racks: BTreeSet<String>,
}

/// Every store of a tier that takes a chunk now, by id.
pub fn candidates(view: &ClusterView, tier: Tier) -> Vec<Candidate> {
    let mut all = open_stores(view, tier);
    all.retain(|candidate| candidate.free_mib >= ROOM_MIB);
    all
}

/// As [`candidates`], those that lack nothing but room among them.
fn open_stores(view: &ClusterView, tier: Tier) -> Vec<Candidate> {
    let takes = view.stores().filter(|(store, info)| info.tier == tier && view.store_takes(*store));
    let candidate = |(store, info): (StoreId, &crate::cluster::StoreInfo)| {
        let node = view.node(info.node)?;
        Some(Candidate {
            store,
            node: info.node,
            host: node.host.clone(),
            rack: node.rack.clone(),
            free_mib: info.free_mib,
        })
    };
    takes.filter_map(candidate).collect()
}

/// Stores on different hosts for a new chunk: `ask.copies` of them, or as few as may be.
pub fn place(view: &ClusterView, ask: Ask) -> Result<Vec<StoreId>> {
    let candidates = candidates(view, ask.tier);
    let mut taken = Taken::default();
    let mut chosen = Vec::new();
    while chosen.len() < ask.copies {
        let preferred = ask.preferred.filter(|_| chosen.is_empty());
        let Some(next) = choose(&candidates, &taken, preferred, ask.seed) else { break };
        taken.hosts.insert(next.host.clone());
        taken.racks.insert(next.rack.clone());
        chosen.push(next.store);
    }
    let hosts = hosts(view, ask.tier);
    let least = REPLICAS_MIN.min(ask.copies).min(hosts).max(1);
    if chosen.len() >= least {
        return Ok(chosen);
    }
    let (copies, tier, found) = (ask.copies, ask.tier.name(), chosen.len());
    let open: BTreeSet<String> =
        open_stores(view, ask.tier).into_iter().map(|candidate| candidate.host).collect();
    if open.len() > found && found + hosts.saturating_sub(open.len()) < least {
        // Not even with all that may come back by itself: what is missing is room, and to ask again
        // does not help.
        return Err(Error::full(format!(
            "place {copies} copies on tier `{tier}`: {found} of {hosts} hosts have room for a chunk, at \
             least {least} must: delete something or add a store"
        )));
    }
    Err(Error::retry(format!(
        "place {copies} copies on tier `{tier}`: {found} of {hosts} hosts take a chunk now, at least \
         {least} must: bring nodes back, add one, or free space"
    )))
}

/// The candidate with the lowest score on a host that is not taken: of the preferred node, else
/// on a rack that is not taken, else on any.
pub fn choose<'a>(
    candidates: &'a [Candidate],
    taken: &Taken,
    preferred: Option<NodeId>,
    seed: u64,
) -> Option<&'a Candidate> {
    let free = || candidates.iter().filter(|candidate| !taken.hosts.contains(&candidate.host));
    let near = free().filter(|candidate| Some(candidate.node) == preferred);
    let apart = free().filter(|candidate| !taken.racks.contains(&candidate.rack));
    let lowest = |candidate: &&Candidate| (score(seed, candidate), candidate.store);
    near.min_by_key(lowest)
        .or_else(|| apart.min_by_key(lowest))
        .or_else(|| free().min_by_key(lowest))
}

/// Hosts with a store of the tier that is not gone for good.
fn hosts(view: &ClusterView, tier: Tier) -> usize {
    let here =
        view.stores().filter(|(_, info)| info.tier == tier && info.state != StoreState::Gone);
    let hosts: BTreeSet<&str> =
        here.filter_map(|(_, info)| Some(view.node(info.node)?.host.as_str())).collect();
    hosts.len()
}

/// `-log2(u) / free_mib`, `u` in (0,1] from seed and store: the store with the lowest is chosen
/// with a probability that its share of the free space is (exponential races).
fn score(seed: u64, candidate: &Candidate) -> u128 {
    let hash = mix(seed ^ mix(candidate.store.0));
    (minus_log2(hash) << 64) / candidate.free_mib.max(1) as u128
}

/// `-log2((hash + 1) / 2^64)` in units of 2^-32: the integer part from the leading zeros, each bit
/// behind the point from a squaring.
fn minus_log2(hash: u64) -> u128 {
    const POINT: u32 = 32;
    let value = hash as u128 + 1;
    let whole = 127 - value.leading_zeros();
    let mut log = (whole as u128) << POINT;
    // In [1, 2), as 2^63.
    let mut x = if whole > 63 { value >> (whole - 63) } else { value << (63 - whole) };
    for bit in (0..POINT).rev() {
        x = (x * x) >> 63;
        if x >= 1 << 64 {
            x >>= 1;
            log |= 1 << bit;
        }
    }
    (64 << POINT) - log
}

#[cfg(test)]
pub(crate) mod tests;
