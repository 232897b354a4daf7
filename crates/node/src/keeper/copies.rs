//! Copies that chunks would not get, or not give up, by themselves: an open chunk is sealed by its
//! writer's node when one of its replicas goes, for only sealed chunks are repaired; chunks from
//! before there were several hosts are to have as many copies as others; what a draining node has
//! in excess is dropped, and what any chunk has. Copies nothing: that is repair's work.

use super::Keeper;
use crate::chunks::several_hosts;
use holdfast_base::ids::{ChunkId, Durability, Generation, StoreId, Tier};
use holdfast_base::{Kind, Result};
use holdfast_cluster::placement::{COPIES, candidates};
use holdfast_cluster::{Chunk, ChunkState};
use holdfast_cluster::{ClusterView, Command, StoreState, repair};
use holdfast_env::trial::Knob;
use std::collections::BTreeSet;

/// How often the leader looks for chunks that want more copies.
const RAISE_EVERY_MS: u64 = 5000;
/// Chunks of one entry.
const RAISE_MAX: usize = 1024;
/// How often it looks for chunks that have more than they should.
const SURPLUS_EVERY_MS: u64 = 2000;
/// Replicas that one round drops.
static DROPS_MAX: Knob = Knob::new("keeper.drops", 256, &[1, 2]);
/// A chunk that is being made or sealed is in nobody's hands for a moment, but not so long: the
/// writer's limit is a third of this.
const ORPHAN_MS: u64 = 10_000;

/// Whether another chunk would do better now: a replica is out of reach or to go, or there is
/// room for one more than the chunk has.
fn is_short(view: &ClusterView, chunk: &Chunk, takers: usize) -> bool {
    let stays = |store: &StoreId| view.store_serves(*store) && view.store_counts(*store);
    let few = chunk.replicas.len() < chunk.copies as usize && chunk.replicas.len() < takers;
    few || !chunk.replicas.iter().all(stays)
}

impl Keeper {
    /// Hosts that take new chunks of a tier, as far as this node trusts them.
    fn takers(&self, view: &ClusterView, tier: Tier) -> usize {
        let taking = candidates(view, tier);
        let trusted = taking.iter().filter(|c| !self.node.replicator.is_suspect(c.store));
        trusted.map(|candidate| &candidate.host).collect::<BTreeSet<_>>().len()
    }

    /// Chunks that this node writes: those that lost a replica end here, so that they are copied
    /// even if nothing is written to them any more. Those that nobody writes (their seal did not
    /// reach the log) are sealed as a silent writer's are.
    pub(super) fn end_short(&mut self, now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        let open: Vec<Chunk> = node.gather_chunks(|view| {
            let mine = view.open().filter(|chunk| chunk.node == node.id);
            let shared =
                |chunk: &&Chunk| chunk.copies > 1 || !node.replicator.is_alone(&chunk.replicas);
            mine.filter(shared).cloned().collect::<Vec<_>>()
        })?;
        let short: BTreeSet<ChunkId> = node.cluster.read(|view, _| {
            let takers = [Tier::Dram, Tier::Disk].map(|tier| self.takers(view, tier));
            let short = |chunk: &&Chunk| is_short(view, chunk, takers[chunk.tier as usize]);
            open.iter().filter(short).map(|chunk| chunk.id).collect()
        })?;
        let packed = node.packed.open_chunks();
        let mut orphans = Vec::new();
        for chunk in open.iter().map(|chunk| chunk.id) {
            let is_short = short.contains(&chunk);
            if packed.contains(&chunk) {
                if is_short {
                    node.packed.retire(&node, &[chunk]);
                }
            } else if node.replicator.open_set(chunk).is_some() {
                if is_short {
                    // At what its writer was told; whose next append moves on.
                    node.seal_for_writer(chunk, u64::MAX, Box::new(|_| ()));
                }
            } else {
                orphans.push(chunk);
            }
        }
        self.orphans.retain(|chunk, _| orphans.contains(chunk));
        for chunk in orphans {
            let since = *self.orphans.entry(chunk).or_insert(now_ns);
            if now_ns.saturating_sub(since) >= ORPHAN_MS * 1_000_000 {
                self.orphans.insert(chunk, now_ns);
                node.seal_silent(chunk, Box::new(|_| ()));
            }
        }
        Ok(())
    }

    /// Packed chunks that this node writes end where a store of theirs was made read-only.
    pub(super) fn leave_closed_stores(&mut self, _now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        let open = node.packed.open_chunks();
        let replicas: Vec<(ChunkId, Vec<StoreId>)> = node.read_all(|all| {
            let known = |chunk: &ChunkId| Some((*chunk, all.chunk(*chunk).ok()??.replicas.clone()));
            open.iter().filter_map(known).collect()
        })?;
        let closed: Vec<ChunkId> = node.cluster.read(|view, _| {
            let is_closed = |stores: &[StoreId]| {
                let takes = |store: &StoreId| {
                    view.store(*store).is_none_or(|info| info.state == StoreState::Live)
                };
                !stores.iter().all(takes)
            };
            let closed = replicas.iter().filter(|(_, stores)| is_closed(stores));
            closed.map(|(chunk, _)| *chunk).collect()
        })?;
        if !closed.is_empty() {
            node.packed.retire(&node, &closed);
        }
        Ok(())
    }

    /// The leader has chunks that were made on a single host copied, once there are others.
    pub(super) fn raise_copies(&mut self, now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        if now_ns < self.copies_next_ns
            || !node.leads()
            || !node.cluster.read(|view, _| several_hosts(view, Tier::Disk))?
        {
            return Ok(());
        }
        self.copies_next_ns = now_ns + RAISE_EVERY_MS * 1_000_000;
        self.each_shard(|keeper, shard| keeper.raise_copies_of(shard, now_ns))
    }

    fn raise_copies_of(&mut self, shard: u16, now_ns: u64) -> Result<()> {
        let chunks: Vec<ChunkId> = self.node.read_chunks(shard, |view, _| {
            let wants = |chunk: &&Chunk| {
                chunk.tier == Tier::Disk
                    && chunk.durability == Durability::Durable
                    && (chunk.copies as usize) < COPIES
                    && (chunk.state == ChunkState::Open || chunk.is_kept())
            };
            view.iter().filter(wants).map(|chunk| chunk.id).take(RAISE_MAX).collect()
        })?;
        if chunks.is_empty() {
            return Ok(());
        }
        if chunks.len() == RAISE_MAX {
            self.copies_next_ns = now_ns;
        }
        let raise = Command::RaiseCopies { chunks, copies: COPIES as u8 };
        self.node.command_and_wait(shard, &raise, Durability::Durable).map(|_| ())
    }

    /// The leader drops replicas on draining nodes that nobody needs any more; their nodes then
    /// unlink them. One that is drained itself has another node lead.
    pub(super) fn finish_drains(&mut self, _now_ns: u64) -> Result<()> {
        let node = &self.node;
        if !node.leads() {
            return Ok(());
        }
        let (draining, staying) = node.cluster.read(|view, _| {
            let draining = |store: StoreId| {
                view.store_holds(store)
                    && view
                        .store(store)
                        .and_then(|info| view.node(info.node))
                        .is_some_and(|node| node.draining)
            };
            let stays = |store: StoreId| view.store_serves(store) && view.store_counts(store);
            let all = || view.stores().map(|(store, _)| store);
            (
                all().filter(|store| draining(*store)).collect::<Vec<_>>(),
                all().filter(|store| stays(*store)).collect::<BTreeSet<_>>(),
            )
        })?;
        if draining.is_empty() {
            return Ok(());
        }
        if draining.iter().any(|store| node.stores.get(*store).is_some()) {
            // Whoever is to be taken away should not lead.
            return node.resign();
        }
        let mut spare: Vec<(ChunkId, Generation, StoreId)> = node.gather_chunks(|view| {
            let spared = |chunk: &&Chunk| {
                let others = chunk.replicas.iter().filter(|store| staying.contains(store));
                // What was sealed empty needs no copies.
                let wanted = if chunk.length == 0 { 1 } else { chunk.copies as usize };
                chunk.is_kept() && others.count() >= wanted
            };
            let on = |store: StoreId| {
                let spared = view.on(store).filter(spared);
                spared.map(move |chunk| (chunk.id, chunk.generation, store))
            };
            let spare = draining.iter().flat_map(|store| on(*store));
            spare.take(DROPS_MAX.size()).collect::<Vec<_>>()
        })?;
        spare.truncate(DROPS_MAX.size());
        self.drop_replicas(&spare)
    }

    /// The leader drops copies that chunks have too many: one was moved to an emptier store, or a
    /// node came back after its copies had been made up for.
    pub(super) fn drop_surplus(&mut self, now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        if now_ns < self.surplus_next_ns || !node.leads() || node.is_behind() {
            return Ok(());
        }
        self.surplus_next_ns = now_ns + SURPLUS_EVERY_MS * 1_000_000;
        let mut surplus = node.read_all_chunks(|shards| {
            node.cluster.read(|view, _| repair::surplus(shards, view))
        })??;
        surplus.truncate(DROPS_MAX.size());
        self.drop_replicas(&surplus)
    }

    fn drop_replicas(&self, replicas: &[(ChunkId, Generation, StoreId)]) -> Result<()> {
        if replicas.len() == DROPS_MAX.size() {
            DROPS_MAX.cross();
        }
        for (chunk, generation, store) in replicas.iter().copied() {
            let drop = Command::DropReplica { chunk, generation, store, lost: false };
            match self.node.command_and_wait(chunk.shard(), &drop, Durability::Durable) {
                // It was deleted or switched meanwhile.
                Err(e) if matches!(e.kind, Kind::Invalid | Kind::NotFound) => {}
                other => {
                    other?;
                }
            }
        }
        Ok(())
    }
}
