//! A running look at who holds what, once a second: no chunk has fewer than two good copies unless
//! stores were lost, what was added as a copy is on its disk for good, and nobody's whole copy is
//! dropped. Sees what is wrong when it goes wrong: at the end repair may have made up for it.

use super::cell::{Cell, SECOND};
use super::check::open_store;
use super::{World, locked};
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId};
use holdfast_chunk::{ReplicaState, ScrubCursor, Scrubber};
use holdfast_cluster::Chunk;
use holdfast_cluster::ChunkKind;
use holdfast_node::{KeeperOptions, Node};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What the last look saw.
#[derive(Default)]
pub(super) struct Copies {
    chunks: BTreeMap<ChunkId, Known>,
    /// Nodes that were drained at any time.
    drained: BTreeSet<NodeId>,
    /// Cells where a sync failed at any time: a store that takes no writes may be given up whole.
    failed: BTreeSet<usize>,
    /// The entry that freed what waits longest, and when which entry had been applied somewhere.
    freed: Option<Index>,
    reached: VecDeque<(Index, u64)>,
    /// How far the node had read whose copies were looked at last.
    looked_at: Vec<Index>,
    slept_ns: u64,
}

/// Between two looks.
const LOOK_NS: u64 = SECOND;

struct Known {
    generation: Generation,
    replicas: BTreeSet<StoreId>,
    /// Those of them that had all of it.
    whole: BTreeSet<StoreId>,
    dropped: BTreeSet<(Generation, StoreId)>,
    copies: usize,
    /// Those that count and are not there though their nodes run, since when.
    absent: BTreeMap<StoreId, u64>,
}

/// A node says within this that a file is not there which the log says it has.
const ABSENT_NS: u64 = 12 * SECOND;

impl World {
    /// Compares what the log's host knows with what it knew a second ago.
    pub(super) fn look_at_copies(&self) {
        self.note_reached();
        let Some(host) = self.host() else { return };
        if self.schedule.nodes < 3 {
            return;
        }
        // Whoever has read most of the log may be gone, and nobody else as far yet.
        let reached: Vec<Index> = host.shards.all().map(|(_, fold)| fold.applied()).collect();
        let before = std::mem::replace(&mut locked(&self.copies).looked_at, reached.clone());
        let less = |(before, now): (&Index, &Index)| before > now;
        if before.len() > reached.len() || before.iter().zip(&reached).any(less) {
            return;
        }
        let chunks: Vec<Chunk> = host
            .gather_chunks(|view| {
                let kept = |chunk: &&Chunk| chunk.is_kept() && chunk.length > 0 && chunk.copies > 1;
                view.iter().filter(kept).cloned().collect::<Vec<_>>()
            })
            .unwrap_or_default();
        let draining = host.cluster.read(|view, _| {
            let draining = view.nodes().filter(|(_, info)| info.draining);
            draining.map(|(id, _)| id).collect::<Vec<_>>()
        });
        let mut seen = locked(&self.copies);
        seen.drained.extend(draining.unwrap_or_default());
        let mut added: BTreeMap<StoreId, Vec<(ChunkId, Generation)>> = BTreeMap::new();
        for chunk in &chunks {
            self.look_at_count(chunk);
            if let Some(before) = seen.chunks.get(&chunk.id) {
                self.look_at_dropped(chunk, before, &seen);
                let new = |store: &&StoreId| {
                    before.generation != chunk.generation || !before.replicas.contains(*store)
                };
                for store in chunk.replicas.iter().filter(new) {
                    added.entry(*store).or_default().push((chunk.id, chunk.generation));
                }
            }
        }
        let known = |chunk: &Chunk| Known {
            generation: chunk.generation,
            replicas: chunk.replicas.iter().copied().collect(),
            whole: chunk.replicas.iter().copied().filter(|s| self.has_all(*s, chunk)).collect(),
            dropped: chunk.dropped.iter().map(|d| (d.generation, d.store)).collect(),
            copies: chunk.copies as usize,
            absent: self.look_at_absent(chunk, seen.chunks.get(&chunk.id)),
        };
        let chunks: BTreeMap<_, _> = chunks.iter().map(|chunk| (chunk.id, known(chunk))).collect();
        seen.chunks = chunks;
        drop(seen);
        for (store, added) in added {
            if let Some(cell) = self.cell_of(store) {
                self.look_at_added(cell, store, &added);
            }
        }
        self.look_at_open(&host);
        self.look_at_grace(&host);
    }

    /// What a gateway shows of an open chunk is on every replica.
    fn look_at_open(&self, host: &Node) {
        let open = host.gather_chunks(|view| view.open().cloned().collect::<Vec<_>>());
        for chunk in open.unwrap_or_default().iter().filter(|chunk| chunk.kind == ChunkKind::Raw) {
            let Some(writer) =
                self.cells.iter().filter_map(|c| c.node()).find(|n| n.id == chunk.node)
            else {
                continue;
            };
            let shown = writer.chunk_length(chunk);
            for store in &chunk.replicas {
                let cell = self.cell_of(*store).filter(|cell| !self.is_unlucky(cell));
                let Some(node) = cell.and_then(|cell| cell.node()) else { continue };
                let Some(own) = node.stores.get(*store) else { continue };
                let length = own.store.length(chunk.id).unwrap_or(0);
                if shown > length && writer.replicator.open_set(chunk.id).is_some() {
                    self.shared.violate(format!(
                        "node {} shows {shown} bytes of open chunk `{}`, of which store `{store}` \
                         has {length}",
                        writer.id, chunk.id
                    ));
                }
            }
        }
    }

    /// What was freed stays for its readers' grace, behind the moment in which it was seen first.
    fn look_at_grace(&self, host: &Node) {
        let Ok(oldest) = host.read_chunks(0, |view, _| view.freed().1) else { return };
        let now_ns = self.net.now_ns();
        let mut seen = locked(&self.copies);
        let gone = seen.freed.filter(|before| oldest.is_none_or(|oldest| oldest > *before));
        let since_ns = gone.and_then(|gone| {
            let reached = seen.reached.iter().find(|(index, _)| *index >= gone);
            reached.map(|(_, ns)| *ns)
        });
        let grace_ns = KeeperOptions::default().grace_ms * 1_000_000;
        if let Some(since_ns) = since_ns
            // A night ends every grace, also of what was freed just behind it: nodes hear of it one
            // after the other.
            && (seen.slept_ns == 0 || seen.slept_ns + grace_ns < since_ns)
            && now_ns + LOOK_NS < since_ns + grace_ns
        {
            self.shared.violate(format!(
                "what entry {gone:?} freed went {} ms behind it: its readers have {} ms",
                (now_ns - since_ns) / 1_000_000,
                grace_ns / 1_000_000
            ));
        }
        seen.freed = oldest;
    }

    /// Which entry any node has applied by now: the log's host may be down, and whoever leads counts
    /// the grace from when it has applied the entry itself.
    fn note_reached(&self) {
        let nodes = self.cells.iter().filter_map(|cell| cell.node());
        let Some(applied) = nodes.map(|node| node.shards.root().applied()).max() else { return };
        let now_ns = self.net.now_ns();
        let mut seen = locked(&self.copies);
        if seen.reached.back().is_none_or(|(last, _)| *last < applied) {
            seen.reached.push_back((applied, now_ns));
        }
        let long_ago_ns = 2 * KeeperOptions::default().grace_ms * 1_000_000;
        while seen.reached.get(1).is_some_and(|(_, ns)| ns + long_ago_ns < now_ns) {
            seen.reached.pop_front();
        }
    }

    pub(super) fn note_failed_sync(&self, cell: &Cell) {
        locked(&self.copies).failed.insert(cell.number);
    }

    /// All clocks went on at once: what they measured before is over.
    pub(super) fn note_sleep(&self) {
        locked(&self.copies).slept_ns = self.net.now_ns();
    }

    /// Media fail there: what it has may be gone at any time.
    fn is_unlucky(&self, cell: &Cell) -> bool {
        cell.number == self.unlucky + 1
    }

    /// Copies that count, or lie where a seal left them out as the last resort, and those that were
    /// really lost.
    fn look_at_count(&self, chunk: &Chunk) {
        let last_resort = chunk.dropped.iter().filter(|d| d.generation == chunk.generation);
        let held = chunk.replicas.iter().copied().chain(last_resort.map(|dropped| dropped.store));
        let old = chunk.old.iter().flat_map(|old| old.replicas.iter().copied());
        let all: BTreeSet<StoreId> = held.clone().chain(old).collect();
        let held: BTreeSet<StoreId> = held.collect();
        let lost = |store: &StoreId| self.cell_of(*store).is_none_or(|cell| self.is_unlucky(cell));
        let (good, lost) = (held.len(), all.iter().filter(|store| lost(store)).count());
        if good + lost < 2 {
            self.shared.violate(format!(
                "chunk `{}` has {good} copies at generation `{}`, and {lost} of its stores were \
                 lost: {:?}, old {:?}",
                chunk.id, chunk.generation, chunk.replicas, chunk.old
            ));
        }
    }

    /// Whose file is not there, and since when; each node notices, and says so.
    fn look_at_absent(&self, chunk: &Chunk, before: Option<&Known>) -> BTreeMap<StoreId, u64> {
        let now_ns = self.net.now_ns();
        let mut absent = BTreeMap::new();
        for store in &chunk.replicas {
            let Some(cell) = self.cell_of(*store).filter(|cell| !cell.is_paused()) else {
                continue;
            };
            let Some(node) = cell.node() else { continue };
            let Some(own) = node.stores.get(*store) else { continue };
            if own.store.info(chunk.id).is_some() {
                continue;
            }
            let since_ns = before.and_then(|known| known.absent.get(store)).copied();
            let since_ns = since_ns.unwrap_or(now_ns);
            if now_ns - since_ns > ABSENT_NS && chunk.replicas.len() > 1 {
                self.shared.violate(format!(
                    "chunk `{}` counts on {} and is not there, which nobody says",
                    chunk.id, cell.address
                ));
            }
            absent.insert(*store, since_ns);
        }
        absent
    }

    /// Whether the store has all of a chunk's current generation, sealed or not.
    fn has_all(&self, store: StoreId, chunk: &Chunk) -> bool {
        let node = self.cell_of(store).and_then(|cell| cell.node());
        let own = node.as_ref().and_then(|node| node.stores.get(store));
        let held = own.and_then(|own| own.store.info(chunk.id));
        held.is_some_and(|info| (info.generation, info.length) == (chunk.generation, chunk.length))
    }

    /// Whether every byte that a store holds of a chunk is what was written.
    fn verifies(&self, store: StoreId, chunk: ChunkId) -> bool {
        let node = self.cell_of(store).and_then(|cell| cell.node());
        let Some(own) = node.as_ref().and_then(|node| node.stores.get(store)) else { return false };
        let first = ScrubCursor { chunk, position: 0 };
        let mut scrubber = Scrubber::new(own.store.clone(), 1 << 40, first);
        // The first step earns nothing yet.
        for second in 0.. {
            let step = scrubber.step(second * SECOND);
            if step.damaged.iter().any(|damage| damage.chunk == chunk) {
                return false;
            }
            if scrubber.cursor().chunk > chunk || step.finished_pass {
                break;
            }
        }
        true
    }

    /// A copy is dropped because it is short, damaged or not needed: not because it was slow to say
    /// that it is there. One that was short when it was asked may have the rest by now, so that it
    /// is asked for what was whole at the last look, too.
    fn look_at_dropped(&self, chunk: &Chunk, before: &Known, seen: &Copies) {
        // One that had a copy too many, if only between two looks, may drop any.
        let added = chunk.replicas.iter().any(|store| !before.replicas.contains(store));
        if before.replicas.len() > before.copies || added {
            return;
        }
        let at = (chunk.generation, before.generation);
        let new = chunk.dropped.iter().filter(|dropped| {
            let known = before.dropped.contains(&(dropped.generation, dropped.store));
            !known && at == (dropped.generation, dropped.generation)
        });
        for dropped in new {
            let fine =
                |cell: &&Arc<Cell>| !self.is_unlucky(cell) && !seen.failed.contains(&cell.number);
            let Some(cell) = self.cell_of(dropped.store).filter(fine) else { continue };
            if cell.node().is_none_or(|node| seen.drained.contains(&node.id)) {
                continue;
            }
            let whole = before.whole.contains(&dropped.store) && self.has_all(dropped.store, chunk);
            if whole && self.verifies(dropped.store, chunk.id) {
                self.shared.violate(format!(
                    "chunk `{}` is whole in store `{}` of {}, and was dropped there: {:?} count, \
                     {:?} did",
                    chunk.id, dropped.store, cell.address, chunk.replicas, before.replicas
                ));
            }
        }
    }

    /// What began to count is there if the power fails now.
    fn look_at_added(&self, cell: &Cell, id: StoreId, added: &[(ChunkId, Generation)]) {
        if self.is_unlucky(cell) {
            return;
        }
        let Ok(store) = open_store(&cell.disk().durable_copy(), id) else { return };
        let list = store.list();
        for (chunk, generation) in added {
            let current = list.iter().find(|info| info.chunk == *chunk);
            let there = current.is_some_and(|info| {
                info.state == ReplicaState::Sealed && info.generation == *generation
                    || store.other_generations(*chunk).contains(generation)
            });
            self.shared.sometimes(there, "a copy that counts was found on its disk");
            if !there {
                self.shared.violate(format!(
                    "chunk `{chunk}` generation `{generation}` counts on {}, whose disk has {:?}",
                    cell.address,
                    current.map(|info| (info.state, info.generation))
                ));
            }
        }
    }
}
