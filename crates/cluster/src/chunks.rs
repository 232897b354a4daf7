//! What a shard knows of its chunks: where they are, what of them is alive, what waits for its
//! readers' grace. Knows faces and the owners of chunks, no path; names ask it through `naming.rs`
//! alone. A part of the namespace's fold, which routes entries here: changed by nothing else.

mod bytes;
mod chunk;
mod elsewhere;
mod naming;
mod replicas;
mod space;
mod table;
#[cfg(test)]
mod tests;

pub use chunk::{Chunk, ChunkState, Dropped, OldGeneration};
pub use elsewhere::Debt;
pub use replicas::ShortChunk;

use elsewhere::Elsewhere;
use holdfast_base::ids::{ChunkId, Generation, Index, Slot};
use holdfast_env::planted;
use std::collections::VecDeque;
use table::ChunkTable;

/// The chunks of one shard.
pub struct Chunks {
    shard: u16,
    table: ChunkTable,
    /// Counter of the next chunk id.
    next: u64,
    /// What was freed and may still be read, oldest first.
    freed: VecDeque<Freed>,
    elsewhere: Elsewhere,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Freed {
    /// Of the entry that freed it.
    index: Index,
    what: FreedThing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreedThing {
    Slot { chunk: ChunkId, slot: u32, bytes: u32 },
    Chunk { chunk: ChunkId },
    Generation { chunk: ChunkId, generation: Generation },
}

impl Chunks {
    pub(crate) fn new(shard: u16) -> Chunks {
        let (table, freed, elsewhere) = Default::default();
        Chunks { shard, table, next: 1, freed, elsewhere }
    }

    pub fn shard(&self) -> u16 {
        self.shard
    }

    pub fn get(&self, chunk: ChunkId) -> Option<&Chunk> {
        self.table.get(chunk)
    }

    /// Whether an entry has ever made this chunk.
    pub fn was_allocated(&self, chunk: ChunkId) -> bool {
        chunk.shard() == self.shard && chunk.counter() < self.next
    }

    /// All chunks, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.table.iter()
    }

    /// Chunks that are open, by id.
    pub fn open(&self) -> impl Iterator<Item = &Chunk> {
        self.table.open()
    }

    /// How many chunks there are.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// The slots of a packed chunk that compaction must keep, in order.
    pub fn live_slots(&self, chunk: ChunkId) -> Option<Vec<Slot>> {
        let names_alone = planted!("cluster.compaction-asks-names-alone");
        let is_held = |slot: u32| names_alone && self.held_slots(chunk).any(|held| held == slot);
        let live =
            |known: &Chunk| known.live.iter().filter(|slot| !is_held(*slot)).map(Slot).collect();
        self.table.get(chunk).map(live)
    }

    /// How much waits for a `Release`, and the entry that freed the oldest of it.
    pub fn freed(&self) -> (usize, Option<Index>) {
        (self.freed.len(), self.freed.front().map(|freed| freed.index))
    }
}
