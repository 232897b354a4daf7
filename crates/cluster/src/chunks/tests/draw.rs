//! What is drawn for the model of chunks: steps that say what they mean in relation to the chunk
//! that they meet (its next generation, all that hold it, one more than its length), so that long
//! lives of a chunk are drawn often, and wrong words as often as right ones.

use super::super::ChunkState;
use super::model::Model;
use crate::ChunkKind;
use crate::command::{BLOBS, Command};
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Index, NodeId, StoreId, Tier};
use holdfast_base::limits::{CHUNK_BYTES, CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use proptest::prelude::*;
use std::ops::RangeInclusive;

/// Counters of the chunks that steps speak of.
pub(super) const CHUNKS: u64 = 6;
/// One more than a chunk may have replicas.
pub(super) const STORES: RangeInclusive<u64> = 1..=17;
/// Around the borders of a word, of a seal, and of a chunk.
pub(super) const SLOTS: [u32; 9] = [0, 1, 2, 3, 63, 64, 65, CHUNK_SLOTS_MAX - 1, CHUNK_SLOTS_MAX];

#[derive(Clone, Debug)]
pub(super) enum Step {
    Name {
        chunk: ChunkId,
        slot: u32,
        bytes: u64,
    },
    /// Of the objects that are named, this one (modulo) is not any more.
    Unname {
        nth: usize,
    },
    /// Of the raw chunks whose files are not deleted, this one's (modulo) is.
    Delete {
        nth: usize,
    },
    Do(Drawn),
}

#[derive(Clone, Debug)]
pub(super) struct Drawn {
    what: What,
    chunk: ChunkId,
    /// In relation to the chunk's own, or to the next one for a switch: 0 for just that.
    generation: i64,
    replicas: Stores,
    length: u64,
    flag: bool,
    copies: u8,
    owner: FileId,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Allocate,
    Adopt,
    Seal,
    Close,
    FreeFace,
    SwitchSome,
    SwitchAll,
    Begin,
    Rewrite { back: u32 },
    Add,
    Drop,
    Unlink,
    UnlinkFirst,
    Raise,
    Release { back: u64, budget: u32 },
}

#[derive(Clone, Debug)]
enum Stores {
    These(Vec<StoreId>),
    /// All that count, but for so many of the last.
    But(usize),
}

impl Stores {
    fn of(&self, held: &[StoreId]) -> Vec<StoreId> {
        match self {
            Stores::These(stores) => stores.clone(),
            Stores::But(last) => held[..held.len().saturating_sub(*last)].to_vec(),
        }
    }
}

pub(super) fn nth<T: Copy>(list: &[T], nth: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[nth % list.len()])
}

fn chunk() -> impl Strategy<Value = ChunkId> {
    let shard = prop_oneof![40 => Just(super::SHARD), 1 => Just(super::SHARD - 1)];
    let counter = prop_oneof![12 => 1..4u64, 3 => 4..=CHUNKS];
    (shard, counter).prop_map(|(shard, counter)| ChunkId::new(shard, counter))
}

fn stores() -> impl Strategy<Value = Stores> {
    let listed = |max: u64, len| prop::collection::vec((1..=max).prop_map(StoreId), len);
    prop_oneof![
        8 => (0..2usize).prop_map(Stores::But),
        6 => prop::sample::subsequence((1..=4).map(StoreId).collect::<Vec<_>>(), 0..=4)
            .prop_map(Stores::These),
        2 => (15..=17u64).prop_map(|last| Stores::These((1..=last).map(StoreId).collect())),
        1 => listed(4, 2..4).prop_map(Stores::These),
    ]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let what = prop_oneof![
        6 => Just(What::Allocate),
        1 => Just(What::Adopt),
        5 => Just(What::Seal),
        5 => Just(What::Close),
        2 => Just(What::FreeFace),
        3 => Just(What::SwitchSome),
        1 => Just(What::SwitchAll),
        4 => Just(What::Begin),
        5 => (0..3u32).prop_map(|back| What::Rewrite { back }),
        5 => Just(What::Add),
        5 => Just(What::Drop),
        3 => Just(What::Unlink),
        6 => Just(What::UnlinkFirst),
        2 => Just(What::Raise),
        5 => (0..4u64, 0..6u32).prop_map(|(back, budget)| What::Release { back, budget }),
    ];
    let generation = prop_oneof![9 => Just(0i64), 2 => Just(-1), 1 => Just(1), 1 => Just(-2)];
    let length = prop_oneof![
        8 => prop::sample::select(vec![0, 1, 2, 3, 64, 65]),
        1 => prop::sample::select(vec![CHUNK_BYTES, CHUNK_BYTES + 1]),
    ];
    let copies = prop_oneof![6 => 0..5u8, 1 => 15..18u8];
    let owner =
        prop_oneof![2 => Just(FileId(0)), 1 => Just(BLOBS), 2 => (2..4u64).prop_map(FileId)];
    (what, chunk(), generation, stores(), length, any::<bool>(), copies, owner).prop_map(
        |(what, chunk, generation, replicas, length, flag, copies, owner)| Drawn {
            what,
            chunk,
            generation,
            replicas,
            length,
            flag,
            copies,
            owner,
        },
    )
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let slot = prop_oneof![
        30 => prop::sample::select(SLOTS[..7].to_vec()),
        1 => prop::sample::select(SLOTS[7..].to_vec()),
    ];
    let bytes = prop_oneof![
        8 => 1..4u64,
        1 => prop::sample::select(vec![0, PACKED_BYTES_MAX, PACKED_BYTES_MAX + 1]),
    ];
    prop_oneof![
        10 => drawn().prop_map(Step::Do),
        4 => (chunk(), slot, bytes).prop_map(|(chunk, slot, bytes)| Step::Name { chunk, slot, bytes }),
        2 => any::<usize>().prop_map(|nth| Step::Unname { nth }),
        1 => any::<usize>().prop_map(|nth| Step::Delete { nth }),
    ]
}

impl Drawn {
    /// The command that it is for the chunk as it is now.
    pub(super) fn command(&self, model: &Model, index: u64) -> Command {
        let Drawn { chunk, length, .. } = *self;
        let known = model.chunks.get(&chunk);
        let held = known.map(|known| known.replicas.clone()).unwrap_or_default();
        let now = known.map_or(0, |known| known.generation.0) as i64;
        let generation = Generation((now + self.generation).max(0) as u32);
        let begun = known.map_or(0, |known| known.begun.0) as i64;
        let next = if begun > now { begun } else { now + 1 };
        let next = Generation((next + self.generation).max(0) as u32);
        let packed = self.owner == FileId(0) || self.owner == BLOBS;
        let kind = if packed { ChunkKind::Packed } else { ChunkKind::Raw };
        let (node, owner, tier) = (NodeId(1), self.owner, Tier::Disk);
        let digest = length + 5;
        let replicas = self.replicas.of(&held);
        let first = replicas.first().copied().unwrap_or(StoreId(1));
        match self.what {
            What::Allocate => {
                let durability = Durability::Memory;
                let replicas = self.replicas.of(&[1, 2, 3].map(StoreId));
                let copies =
                    self.copies.max(if self.flag { replicas.len().max(3) as u8 } else { 0 });
                Command::AllocateCopies { kind, owner, node, replicas, copies, tier, durability }
            }
            What::Adopt => {
                let replicas = self.replicas.of(&[1, 2, 3].map(StoreId));
                let chunk = if self.flag { ChunkId::new(super::SHARD, model.next) } else { chunk };
                Command::AdoptChunk { chunk, kind, owner, node, generation, length, replicas, tier }
            }
            What::Seal => Command::SealChunk { chunk, length, replicas },
            What::Close => Command::CloseChunk { chunk },
            What::Begin => Command::BeginRewrite { chunk },
            What::FreeFace => Command::FreeChunk { chunk },
            What::SwitchSome => {
                Command::SwitchReplicas { chunk, generation: next, length, digest, replicas }
            }
            What::SwitchAll => {
                Command::SwitchGeneration { chunk, generation: next, length, digest }
            }
            What::Rewrite { back } => {
                let from = Generation((now as u32).saturating_sub(back));
                let mut replicas = replicas;
                if let Some(known) = known.filter(|_| from.0 < now as u32 && self.flag) {
                    replicas = known.old.get(&from).map(|old| old.0.clone()).unwrap_or_default();
                }
                let mut without = held.clone();
                without.retain(|store| !replicas.contains(store));
                if self.copies == 1 {
                    without.pop();
                }
                if self.copies == 2 {
                    without.push(first);
                }
                Command::Rewrite { chunk, from, generation: next, digest, replicas, without }
            }
            What::Add => Command::AddReplica { chunk, generation, store: self.added(&held) },
            What::Drop => Command::DropReplica { chunk, generation, store: first, lost: self.flag },
            What::Unlink => Command::Unlink { chunk, generation, store: first },
            What::UnlinkFirst => match nth(&model.unlinkable(), self.length as usize) {
                Some((chunk, generation, store)) => Command::Unlink { chunk, generation, store },
                None => Command::Unlink { chunk, generation, store: first },
            },
            What::Raise => Command::RaiseCopies { chunks: vec![chunk], copies: self.copies },
            What::Release { back, budget } => {
                Command::Release { before: Index(index.saturating_sub(back)), budget }
            }
        }
    }

    fn added(&self, held: &[StoreId]) -> StoreId {
        let fresh = STORES.map(StoreId).find(|store| !held.contains(store));
        if self.flag { fresh.unwrap_or(StoreId(17)) } else { StoreId(1 + self.length % 4) }
    }
}

/// States in which a chunk's objects cannot be named any more.
pub(super) fn is_closed(state: ChunkState) -> bool {
    matches!(state, ChunkState::Closed | ChunkState::Doomed)
}
