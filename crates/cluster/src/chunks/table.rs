//! The chunks of a shard by id, by store and by what they wait for.

use super::{Chunk, ChunkState};
use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Chunks by id, and by a 32-bit index that nodes keep in their pointers. An index is used again
/// once its chunk is gone, which no node then names; it is not part of the state.
#[derive(Default)]
pub(super) struct ChunkTable {
    slab: Vec<Option<Box<Chunk>>>,
    free: Vec<u32>,
    by_id: BTreeMap<ChunkId, u32>,
    /// Chunks by the stores of their replicas: what a lost or draining store concerns.
    by_store: BTreeMap<StoreId, BTreeSet<ChunkId>>,
    /// Chunks with fewer replicas than copies, whatever their stores' state.
    thin: BTreeSet<ChunkId>,
    open: BTreeSet<ChunkId>,
}

impl ChunkTable {
    pub(super) fn index(&self, id: ChunkId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.slab[self.index(id)? as usize].as_deref()
    }

    pub(super) fn get_mut(&mut self, id: ChunkId) -> Option<&mut Chunk> {
        let index = self.index(id)?;
        self.slab[index as usize].as_deref_mut()
    }

    pub(super) fn id_at(&self, index: u32) -> ChunkId {
        self.slab.get(index as usize).and_then(Option::as_ref).map_or(ChunkId(0), |chunk| chunk.id)
    }

    pub(super) fn insert(&mut self, chunk: Chunk) {
        let id = chunk.id;
        for store in &chunk.replicas {
            self.by_store.entry(*store).or_default().insert(id);
        }
        if chunk.replicas.len() < chunk.copies as usize {
            self.thin.insert(id);
        }
        if chunk.state == ChunkState::Open {
            self.open.insert(id);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slab.push(None);
                self.slab.len() as u32 - 1
            }
        };
        self.slab[index as usize] = Some(Box::new(chunk));
        self.by_id.insert(id, index);
    }

    /// The only way to change who holds a chunk.
    pub(super) fn set_replicas(&mut self, id: ChunkId, replicas: Vec<StoreId>) {
        let Some(chunk) = self.index(id).and_then(|at| self.slab[at as usize].as_mut()) else {
            return;
        };
        for store in chunk.replicas.iter().filter(|store| !replicas.contains(store)) {
            if let Some(chunks) = self.by_store.get_mut(store) {
                chunks.remove(&id);
                if chunks.is_empty() {
                    self.by_store.remove(store);
                }
            }
        }
        for store in &replicas {
            self.by_store.entry(*store).or_default().insert(id);
        }
        match replicas.len() < chunk.copies as usize && !planted!("cluster.short-not-noted") {
            true => self.thin.insert(id),
            false => self.thin.remove(&id),
        };
        chunk.replicas = replicas;
    }

    /// Chunks with a replica on `store`, by id.
    pub(super) fn on(&self, store: StoreId) -> impl Iterator<Item = &Chunk> {
        self.by_store.get(&store).into_iter().flatten().filter_map(|id| self.get(*id))
    }

    /// Stores that hold a replica of any chunk, by id.
    pub(super) fn stores(&self) -> impl Iterator<Item = StoreId> {
        self.by_store.keys().copied()
    }

    /// Chunks with fewer replicas than copies, by id.
    pub(super) fn thin(&self) -> impl Iterator<Item = &Chunk> {
        self.thin.iter().filter_map(|id| self.get(*id))
    }

    /// It is sealed at `length`. With [`ChunkTable::doom`] the only way out of [`ChunkState::Open`].
    pub(super) fn seal(&mut self, id: ChunkId, length: u64) {
        self.open.remove(&id);
        if let Some(chunk) = self.get_mut(id) {
            (chunk.state, chunk.length) = (ChunkState::Sealed, length);
        }
    }

    /// Its file is deleted and nobody reads it any more. It may never have been sealed.
    pub(super) fn doom(&mut self, id: ChunkId) {
        self.open.remove(&id);
        if let Some(chunk) = self.get_mut(id) {
            (chunk.freed, chunk.state) = (false, ChunkState::Doomed);
        }
    }

    /// Open chunks, by id.
    pub(super) fn open(&self) -> impl Iterator<Item = &Chunk> {
        self.open.iter().filter_map(|id| self.get(*id))
    }

    pub(super) fn remove(&mut self, id: ChunkId) {
        self.set_replicas(id, Vec::new());
        self.thin.remove(&id);
        self.open.remove(&id);
        if let Some(index) = self.by_id.remove(&id) {
            self.slab[index as usize] = None;
            self.free.push(index);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.iter_from(ChunkId(0))
    }

    pub(super) fn iter_from(&self, first: ChunkId) -> impl Iterator<Item = &Chunk> {
        let indices = self.by_id.range(first..).map(|(_, index)| *index as usize);
        indices.filter_map(|index| self.slab[index].as_deref())
    }
}
