//! The chunk table: what the namespace knows of each chunk of its shard, which objects of a packed
//! chunk are alive, and which replicas may go. Pure bookkeeping; the rules are in `space.rs`.

use crate::ChunkKind;
use holdfast_base::codec::DecodeError;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, NodeId, StoreId, Tier};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

crate::command::byte_enum! {
    ChunkState: "chunk state" {
        /// Takes appends; its length is not decided.
        Open = 1 "open",
        Sealed = 2 "sealed",
        /// Packed and sealed; no pointer to it enters the log any more.
        Closed = 3 "closed",
        /// Nothing names it and no reader is left: its replicas may be unlinked.
        Doomed = 4 "doomed",
    }
}

/// A generation that compaction replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldGeneration {
    pub generation: Generation,
    pub replicas: Vec<StoreId>,
    /// Its readers are done: replicas may be unlinked.
    pub released: bool,
}

/// A replica that does not count any more; its store may still have the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dropped {
    pub generation: Generation,
    pub store: StoreId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub id: ChunkId,
    pub kind: ChunkKind,
    pub state: ChunkState,
    pub generation: Generation,
    pub tier: Tier,
    pub durability: Durability,
    /// Of a raw chunk; 0 for a packed one, or `BLOBS`.
    pub owner: FileId,
    /// Who writes it.
    pub node: NodeId,
    /// Decided by the seal; 0 before.
    pub length: u64,
    /// Those that count, of the current generation. Changed through `Chunks::set_replicas` alone.
    pub replicas: Vec<StoreId>,
    /// How many there should be; 1 to `REPLICAS_MAX`.
    pub copies: u8,
    pub old: Vec<OldGeneration>,
    /// In order; kept until the chunk has its copies and an `Unlink` names them.
    pub dropped: Vec<Dropped>,
    /// Of the current generation, if compaction made it; else 0.
    pub digest: u64,
    /// Raw: its file is deleted and the grace is not over.
    pub freed: bool,
    /// Objects that a name or a reader in its grace may still use.
    pub live_objects: u32,
    pub live_bytes: u64,
    pub(super) live: Bitmap,
    /// Slots that were named once and are dead: they are never named again.
    pub(super) dead: Bitmap,
}

/// A growing set of slots; no memory until the first one.
#[derive(Clone, Debug, Default)]
pub(super) struct Bitmap(Vec<u64>);

/// Words behind the last bit do not count.
impl PartialEq for Bitmap {
    fn eq(&self, other: &Bitmap) -> bool {
        self.words() == other.words()
    }
}

impl Eq for Bitmap {}

impl Bitmap {
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, slot: u32) {
        let word = slot as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (slot % 64);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(word) = self.0.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(i as u32 * 64 + bit)
            })
        })
    }

    /// The words up to the last one with a bit.
    pub(super) fn words(&self) -> &[u64] {
        let end = self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        &self.0[..end]
    }

    /// Refuses a last word without a bit: each set has one form.
    pub(super) fn from_words(words: Vec<u64>) -> Result<Bitmap, DecodeError> {
        if words.last() == Some(&0) {
            return Err(DecodeError::BadValue("set of slots"));
        }
        Ok(Bitmap(words))
    }
}

impl Chunk {
    /// Sealed and not deleted: it is to have its copies.
    pub fn is_kept(&self) -> bool {
        matches!(self.state, ChunkState::Sealed | ChunkState::Closed) && !self.freed
    }

    /// Nothing is left of it: no replica counts, though it is not deleted.
    pub fn is_lost(&self) -> bool {
        self.is_kept() && self.replicas.is_empty()
    }

    /// Whether `store` can lose an old or dropped replica without making the chunk's copies fewer
    /// than they should be.
    pub(super) fn can_spare(&self, store: StoreId) -> bool {
        self.state == ChunkState::Doomed
            || self.replicas.contains(&store)
            || self.replicas.len() >= self.copies as usize
            || planted!("cluster.spared-while-short")
    }

    /// Doomed, and every replica was unlinked.
    pub(super) fn is_over(&self) -> bool {
        self.state == ChunkState::Doomed
            && self.replicas.is_empty()
            && self.old.is_empty()
            && self.dropped.is_empty()
    }

    /// A slot turns from live to dead.
    pub(super) fn bury(&mut self, slot: u32, bytes: u32) {
        self.live.remove(slot);
        self.dead.insert(slot);
        self.live_objects -= 1;
        self.live_bytes -= bytes as u64;
    }

    pub(super) fn give_birth(&mut self, slot: u32, bytes: u32) {
        self.live.insert(slot);
        self.live_objects += 1;
        self.live_bytes += bytes as u64;
    }
}

/// Chunks by id, and by a 32-bit index that nodes keep in their pointers. An index is used again
/// once its chunk is gone, which no node then names; it is not part of the state.
#[derive(Default)]
pub(super) struct Chunks {
    slab: Vec<Option<Box<Chunk>>>,
    free: Vec<u32>,
    by_id: BTreeMap<ChunkId, u32>,
    /// Chunks by the stores of their replicas: what a lost or draining store concerns.
    by_store: BTreeMap<StoreId, BTreeSet<ChunkId>>,
    /// Chunks with fewer replicas than copies, whatever their stores' state.
    thin: BTreeSet<ChunkId>,
    open: BTreeSet<ChunkId>,
}

impl Chunks {
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

    /// It is sealed at `length`. The only way out of [`ChunkState::Open`].
    pub(super) fn seal(&mut self, id: ChunkId, length: u64) {
        self.open.remove(&id);
        if let Some(chunk) = self.get_mut(id) {
            (chunk.state, chunk.length) = (ChunkState::Sealed, length);
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
