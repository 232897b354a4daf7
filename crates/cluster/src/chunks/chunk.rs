//! What is known of one chunk: its state, its replicas, and which objects of a packed one are alive.
//! Pure bookkeeping; the rules are in `space.rs` and `replicas.rs`.

use crate::ChunkKind;
use holdfast_base::codec::DecodeError;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, NodeId, StoreId, Tier};
use holdfast_env::planted;

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
    /// What the last attempt at a rewrite may make, while it is under way; else `generation`.
    /// Never smaller than it was.
    pub begun: Generation,
    pub tier: Tier,
    pub durability: Durability,
    /// Of a raw chunk; 0 for a packed one, or `BLOBS`.
    pub owner: FileId,
    /// Who writes it.
    pub node: NodeId,
    /// Decided by the seal; 0 before.
    pub length: u64,
    /// Those that count, of the current generation. Changed through `ChunkTable::set_replicas` alone.
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
    /// An open chunk without a byte: as the next one is drawn.
    pub(super) fn new(
        id: ChunkId,
        (kind, owner): (ChunkKind, FileId),
        node: NodeId,
        (replicas, copies): (Vec<StoreId>, u8),
        (tier, durability): (Tier, Durability),
    ) -> Chunk {
        Chunk {
            id,
            kind,
            state: ChunkState::Open,
            generation: Generation(0),
            begun: Generation(0),
            tier,
            durability,
            owner,
            node,
            length: 0,
            replicas,
            copies,
            old: Vec::new(),
            dropped: Vec::new(),
            digest: 0,
            freed: false,
            live_objects: 0,
            live_bytes: 0,
            live: Bitmap::default(),
            dead: Bitmap::default(),
        }
    }

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
