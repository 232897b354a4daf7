//! What chunks promise, as maps and lists, and nothing kept that can be counted: the rules are
//! those of docs/formats/namespace.md ("what they decide about replicas") and of `Command`.

use super::super::{Chunk, ChunkState, ShortChunk};
use super::ErrorKind;
use super::draw::is_closed;
use crate::command::{BLOBS, REPLICAS_MAX};
use crate::namespace::STEPS_MAX;
use crate::{ChunkKind, Command, Outcome};
use holdfast_base::ids::{ChunkId, FileId, Generation, Index, StoreId};
use holdfast_base::limits::{CHUNK_BYTES, CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

type Answer<T = Outcome> = Result<T, ErrorKind>;
const REFUSED: ErrorKind = ErrorKind::Invalid;

fn need(holds: bool) -> Answer<()> {
    if holds { Ok(()) } else { Err(REFUSED) }
}

/// 1 to 16 stores, each once.
fn are_replicas(stores: &[StoreId]) -> bool {
    let each: BTreeSet<_> = stores.iter().collect();
    (1..=REPLICAS_MAX).contains(&stores.len()) && each.len() == stores.len()
}

fn all_in(some: &[StoreId], all: &[StoreId]) -> bool {
    some.iter().all(|store| all.contains(store))
}

/// Of an object: named, freed while readers may be left, dead for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Named,
    Grace,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Object(ChunkId, u32),
    Chunk(ChunkId),
    Generation(ChunkId, Generation),
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    kind: ChunkKind,
    owner: FileId,
    pub state: ChunkState,
    pub generation: Generation,
    pub begun: Generation,
    pub length: u64,
    digest: u64,
    pub replicas: Vec<StoreId>,
    copies: u8,
    /// Stores and whether its readers are done.
    pub old: BTreeMap<Generation, (Vec<StoreId>, bool)>,
    dropped: BTreeSet<(Generation, StoreId)>,
    freed: bool,
    objects: BTreeMap<u32, (u32, Life)>,
}

impl Known {
    fn new(kind: ChunkKind, owner: FileId, replicas: &[StoreId], copies: u8) -> Known {
        Known {
            kind,
            owner,
            state: ChunkState::Open,
            generation: Generation(0),
            begun: Generation(0),
            length: 0,
            digest: 0,
            replicas: replicas.to_vec(),
            copies,
            old: BTreeMap::new(),
            dropped: BTreeSet::new(),
            freed: false,
            objects: BTreeMap::new(),
        }
    }

    /// Slots and bytes of what a name or a reader in its grace may still use.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, u32)> {
        let alive = self.objects.iter().filter(|(_, (_, life))| *life != Life::Dead);
        alive.map(|(slot, (bytes, _))| (*slot, *bytes))
    }

    pub(super) fn is_told_by(&self, chunk: &Chunk) {
        let told = (chunk.kind, chunk.owner, chunk.state, chunk.generation, chunk.length);
        assert_eq!(told, (self.kind, self.owner, self.state, self.generation, self.length));
        let told = (&chunk.replicas, chunk.copies, chunk.digest, chunk.freed);
        assert_eq!(told, (&self.replicas, self.copies, self.digest, self.freed), "{}", chunk.id);
        let old =
            chunk.old.iter().map(|old| (old.generation, (old.replicas.clone(), old.released)));
        assert!(old.eq(self.old.clone()), "{chunk:?}");
        let dropped = chunk.dropped.iter().map(|dropped| (dropped.generation, dropped.store));
        assert!(dropped.eq(self.dropped.iter().copied()), "{chunk:?}");
        let bytes: u64 = self.live().map(|(_, bytes)| bytes as u64).sum();
        let count = self.live().count() as u32;
        assert_eq!((chunk.live_objects, chunk.live_bytes), (count, bytes), "{}", chunk.id);
        assert_eq!(chunk.begun, self.begun, "{}", chunk.id);
        assert_eq!(chunk.is_kept(), self.is_kept());
        assert_eq!(chunk.is_lost(), self.is_kept() && self.replicas.is_empty());
    }

    /// Sealed, and nobody has deleted it.
    fn is_kept(&self) -> bool {
        self.state != ChunkState::Open && self.state != ChunkState::Doomed && !self.freed
    }

    pub(super) fn names_replica(&self, generation: Generation, store: StoreId) -> bool {
        generation == self.generation && self.replicas.contains(&store)
            || self.dropped.contains(&(generation, store))
            || self.old.get(&generation).is_some_and(|old| old.0.contains(&store))
    }

    /// An extent of sealed bytes of the file's own.
    pub(super) fn may_hold(&self, file: FileId, length: u64) -> bool {
        let sealed = self.state == ChunkState::Sealed && !self.freed;
        let own = self.kind == ChunkKind::Raw && self.owner == file;
        own && sealed && length > 0 && length <= self.length
    }

    /// Whether an old or dropped file on `store` may go.
    fn can_spare(&self, store: StoreId) -> bool {
        let enough = self.replicas.len() >= self.copies as usize;
        self.state == ChunkState::Doomed || self.replicas.contains(&store) || enough
    }

    /// A closed chunk without a live slot stays so; a face says itself when one of its own is free,
    /// but for one that was sealed empty.
    fn doom_if_empty(&mut self) {
        let told_here = self.owner != BLOBS || self.length == 0;
        if self.state == ChunkState::Closed && self.live().count() == 0 && told_here {
            self.state = ChunkState::Doomed;
        }
    }

    /// Those that may go, oldest generations first, dropped ones, and what is current only when
    /// nothing else is left.
    fn unlinkable(&self) -> Vec<(Generation, StoreId)> {
        let doomed = self.state == ChunkState::Doomed;
        let mut all = Vec::new();
        for (generation, (stores, released)) in &self.old {
            let enough = self.replicas.len() >= 2.min(self.copies as usize).min(stores.len());
            if *released && (enough || doomed) {
                all.extend(stores.iter().map(|store| (*generation, *store)));
            }
        }
        for (generation, store) in &self.dropped {
            let beside = |(old, (stores, _)): (&Generation, &(Vec<StoreId>, bool))| {
                old < generation && stores.contains(store)
            };
            if !self.old.iter().any(beside) {
                all.push((*generation, *store));
            }
        }
        all.retain(|(_, store)| self.can_spare(*store));
        if doomed && self.old.is_empty() && self.dropped.is_empty() {
            all.extend(self.replicas.iter().map(|store| (self.generation, *store)));
        }
        all
    }
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    shard: u16,
    pub next: u64,
    pub chunks: BTreeMap<ChunkId, Known>,
    freed: VecDeque<(u64, Waits)>,
}

impl Model {
    pub(super) fn new(shard: u16) -> Model {
        Model { shard, next: 1, chunks: BTreeMap::new(), freed: VecDeque::new() }
    }

    pub(super) fn ids(&self, which: impl Fn(&Known) -> bool) -> Vec<ChunkId> {
        self.chunks.iter().filter(|(_, known)| which(known)).map(|(id, _)| *id).collect()
    }

    pub(super) fn was_drawn(&self, id: ChunkId) -> bool {
        id.shard() == self.shard && id.counter() < self.next
    }

    pub(super) fn freed(&self) -> (usize, Option<Index>) {
        (self.freed.len(), self.freed.front().map(|(index, _)| Index(*index)))
    }

    pub(super) fn objects(&self, which: impl Fn(Life) -> bool) -> Vec<(ChunkId, u32, u32)> {
        let mut found = Vec::new();
        for (id, known) in &self.chunks {
            let some = known.objects.iter().filter(|(_, (_, life))| which(*life));
            found.extend(some.map(|(slot, (bytes, _))| (*id, *slot, *bytes)));
        }
        found
    }

    /// Raw chunks whose files are there.
    pub(super) fn files(&self) -> Vec<ChunkId> {
        let there = |known: &Known| !known.freed && known.state != ChunkState::Doomed;
        self.ids(|known| known.kind == ChunkKind::Raw && there(known))
    }

    pub(super) fn short(&self, counts: impl Fn(StoreId) -> bool) -> Vec<ShortChunk> {
        let mut short = Vec::new();
        for (chunk, known) in &self.chunks {
            let live = known.replicas.iter().filter(|store| counts(**store)).count();
            let wanted = known.copies as usize;
            if known.is_kept() && known.length > 0 && live < wanted {
                let generation = known.generation;
                short.push(ShortChunk { live, wanted, chunk: *chunk, generation });
            }
        }
        short.sort_by_key(|short| (short.live, short.wanted, short.chunk));
        short
    }

    pub(super) fn lost(&self, holds: impl Fn(StoreId) -> bool) -> Vec<ChunkId> {
        let gone = |stores: &[StoreId]| !stores.iter().any(|store| holds(*store));
        let none = |known: &Known| {
            gone(&known.replicas) && known.old.values().all(|(stores, _)| gone(stores))
        };
        let mut lost = self.short(&holds);
        lost.retain(|short| none(&self.chunks[&short.chunk]));
        lost.into_iter().map(|short| short.chunk).collect()
    }

    pub(super) fn unlinkable(&self) -> Vec<(ChunkId, Generation, StoreId)> {
        let each = self.chunks.iter().flat_map(|(id, known)| {
            known.unlinkable().into_iter().map(|(generation, store)| (*id, generation, store))
        });
        each.collect()
    }

    pub(super) fn may_name(&self, id: ChunkId, slot: u32, bytes: u64) -> Answer<()> {
        need((1..=PACKED_BYTES_MAX).contains(&bytes))?;
        let known = self.chunks.get(&id).ok_or(REFUSED)?;
        need(known.kind == ChunkKind::Packed && known.owner == FileId(0))?;
        if is_closed(known.state) {
            return Err(ErrorKind::Retry);
        }
        need(slot < CHUNK_SLOTS_MAX)?;
        if known.state == ChunkState::Sealed && slot as u64 >= known.length {
            return Err(ErrorKind::Retry);
        }
        need(!known.objects.contains_key(&slot))
    }

    pub(super) fn name_object(&mut self, id: ChunkId, slot: u32, bytes: u32) {
        self.chunks.get_mut(&id).unwrap().objects.insert(slot, (bytes, Life::Named));
    }

    pub(super) fn free_object(&mut self, index: u64, id: ChunkId, slot: u32) {
        self.chunks.get_mut(&id).unwrap().objects.get_mut(&slot).unwrap().1 = Life::Grace;
        self.freed.push_back((index, Waits::Object(id, slot)));
    }

    pub(super) fn free_chunk(&mut self, index: u64, id: ChunkId) {
        self.chunks.get_mut(&id).unwrap().freed = true;
        self.freed.push_back((index, Waits::Chunk(id)));
    }

    pub(super) fn apply(&mut self, index: u64, command: &Command) -> Answer {
        let answer = match command {
            Command::AllocateCopies { kind, owner, replicas, copies, .. } => {
                let enough = (replicas.len()..=REPLICAS_MAX).contains(&(*copies as usize));
                need(are_replicas(replicas) && enough)?;
                let chunk = ChunkId::new(self.shard, self.next);
                self.next += 1;
                self.chunks.insert(chunk, Known::new(*kind, *owner, replicas, *copies));
                Ok(Outcome::Chunk { chunk })
            }
            Command::AdoptChunk { chunk, kind, owner, generation, length, replicas, .. } => {
                let rewritten = *kind == ChunkKind::Raw && *generation != Generation(0);
                need(are_replicas(replicas) && *length <= CHUNK_BYTES && !rewritten)?;
                need(chunk.shard() == self.shard && chunk.counter() >= self.next)?;
                self.next = chunk.counter() + 1;
                let known = Known::new(*kind, *owner, replicas, replicas.len() as u8);
                let (state, generation, length) = (ChunkState::Sealed, *generation, *length);
                let begun = generation;
                self.chunks.insert(*chunk, Known { state, generation, begun, length, ..known });
                Ok(Outcome::Chunk { chunk: *chunk })
            }
            Command::RaiseCopies { chunks, copies } => {
                need((1..=REPLICAS_MAX as u8).contains(copies))?;
                for id in chunks {
                    let known = self.chunks.get_mut(id);
                    if let Some(known) = known.filter(|known| known.state != ChunkState::Doomed) {
                        known.copies = known.copies.max(*copies);
                    }
                }
                Ok(Outcome::Done {})
            }
            Command::Release { before, budget } => Ok(self.release(before.0, *budget)),
            Command::SealChunk { chunk, .. }
            | Command::CloseChunk { chunk }
            | Command::FreeChunk { chunk }
            | Command::SwitchReplicas { chunk, .. }
            | Command::SwitchGeneration { chunk, .. }
            | Command::BeginRewrite { chunk }
            | Command::Rewrite { chunk, .. }
            | Command::AddReplica { chunk, .. }
            | Command::DropReplica { chunk, .. }
            | Command::Unlink { chunk, .. } => {
                let known = self.chunks.get_mut(chunk).ok_or(ErrorKind::NotFound)?;
                let before = known.generation;
                let answer = known.apply(command)?;
                // Who reads what was replaced has its grace.
                if known.generation != before && known.old.contains_key(&before) {
                    self.freed.push_back((index, Waits::Generation(*chunk, before)));
                }
                Ok(answer)
            }
            other => panic!("{other:?} is none of chunks"),
        };
        // What is doomed, and has no file left anywhere, is forgotten.
        self.chunks.retain(|_, known| {
            let files = known.replicas.len() + known.old.len() + known.dropped.len();
            known.state != ChunkState::Doomed || files > 0
        });
        answer
    }

    fn release(&mut self, before: u64, budget: u32) -> Outcome {
        let due = |freed: &VecDeque<(u64, Waits)>| freed.front().is_some_and(|f| f.0 < before);
        let mut steps = 0;
        while steps < budget.min(STEPS_MAX.get() as u32) && due(&self.freed) {
            steps += 1;
            let (_, waits) = self.freed.pop_front().unwrap();
            let (Waits::Object(id, _) | Waits::Chunk(id) | Waits::Generation(id, _)) = waits;
            // It may be gone whole.
            let Some(known) = self.chunks.get_mut(&id) else { continue };
            match waits {
                Waits::Object(_, slot) => {
                    known.objects.get_mut(&slot).unwrap().1 = Life::Dead;
                    known.doom_if_empty();
                }
                Waits::Chunk(_) => (known.freed, known.state) = (false, ChunkState::Doomed),
                Waits::Generation(_, generation) => {
                    known.old.entry(generation).and_modify(|old| old.1 = true);
                }
            }
        }
        Outcome::Progress { steps, more: due(&self.freed) }
    }
}

impl Known {
    fn apply(&mut self, command: &Command) -> Answer {
        match command {
            Command::SealChunk { length, replicas, .. } => return self.seal(*length, replicas),
            Command::CloseChunk { .. } => {
                need(self.kind == ChunkKind::Packed && self.state != ChunkState::Open)?;
                if self.state == ChunkState::Sealed {
                    self.state = ChunkState::Closed;
                }
                self.doom_if_empty();
            }
            Command::BeginRewrite { .. } => return self.begin(),
            Command::FreeChunk { .. } => {
                need(self.owner == BLOBS && is_closed(self.state))?;
                self.state = ChunkState::Doomed;
            }
            Command::SwitchReplicas { generation, length, digest, replicas, .. } => {
                need(*length <= CHUNK_BYTES)?;
                self.switch(*generation, replicas)?;
                (self.length, self.digest) = (*length, *digest);
            }
            Command::SwitchGeneration { generation, length, digest, .. } => {
                need(*length <= CHUNK_BYTES)?;
                self.switch(*generation, &self.replicas.clone())?;
                (self.length, self.digest) = (*length, *digest);
            }
            Command::Rewrite { from, generation, digest, replicas, without, .. } => {
                let apart = !replicas.iter().any(|store| without.contains(store));
                let all = [&replicas[..], without].concat();
                need(apart && all_in(&self.replicas, &all))?;
                if *from == self.generation {
                    self.switch(*generation, replicas)?;
                } else {
                    need(all_in(&self.replicas, without))?;
                    self.go_back(*from, *generation, replicas)?;
                }
                self.digest = *digest;
            }
            Command::AddReplica { generation, store, .. } => {
                need(self.is_kept() && *generation == self.generation)?;
                if !self.replicas.contains(store) {
                    need(self.replicas.len() < REPLICAS_MAX)?;
                    self.dropped.remove(&(*generation, *store));
                    self.replicas.push(*store);
                }
            }
            Command::DropReplica { generation, store, lost, .. } => {
                need(self.is_kept() && *generation == self.generation)?;
                if self.replicas.contains(store) {
                    need(*lost || self.replicas.len() > 1)?;
                    self.replicas.retain(|held| held != store);
                    self.dropped.insert((*generation, *store));
                }
            }
            Command::Unlink { generation, store, .. } => self.unlink(*generation, *store)?,
            other => panic!("{other:?} is about no chunk"),
        }
        Ok(Outcome::Done {})
    }

    /// The first one decides, later ones are told.
    fn seal(&mut self, length: u64, replicas: &[StoreId]) -> Answer {
        if self.state == ChunkState::Open {
            need(are_replicas(replicas) && all_in(replicas, &self.replicas))?;
            need(length <= CHUNK_BYTES)?;
            let left_out = self.replicas.iter().filter(|store| !replicas.contains(store));
            self.dropped = left_out.map(|store| (self.generation, *store)).collect();
            (self.state, self.length) = (ChunkState::Sealed, length);
            self.replicas = replicas.to_vec();
        }
        Ok(Outcome::Sealed { length: self.length, replicas: self.replicas.clone() })
    }

    /// An attempt draws a number that nobody had, those of builds before included.
    fn begin(&mut self) -> Answer {
        need(self.kind == ChunkKind::Packed && self.state != ChunkState::Open)?;
        if self.state == ChunkState::Sealed {
            self.state = ChunkState::Closed;
        }
        self.doom_if_empty();
        if self.state == ChunkState::Doomed {
            return Ok(Outcome::Done {});
        }
        self.begun = Generation(self.begun.0.max(self.generation.0 + 1) + 1);
        Ok(Outcome::Begun { generation: self.begun })
    }

    /// The one that was begun last; of builds that began nothing, the next one.
    fn follows(&self, generation: Generation) -> Answer<()> {
        let under_way = self.begun > self.generation;
        let next = if under_way { self.begun.0 } else { self.generation.0 + 1 };
        need(self.state == ChunkState::Closed && generation.0 == next)
    }

    /// To the next generation; all that count keep a file of this one.
    fn switch(&mut self, generation: Generation, replicas: &[StoreId]) -> Answer<()> {
        self.follows(generation)?;
        need(are_replicas(replicas) && all_in(replicas, &self.replicas))?;
        self.old.insert(self.generation, (self.replicas.clone(), false));
        (self.generation, self.begun, self.replicas) = (generation, generation, replicas.to_vec());
        Ok(())
    }

    /// To the next generation, computed from one before; what counted is dropped.
    fn go_back(&mut self, from: Generation, to: Generation, replicas: &[StoreId]) -> Answer<()> {
        self.follows(to)?;
        let kept = self.old.get(&from).ok_or(REFUSED)?;
        need(are_replicas(replicas) && all_in(replicas, &kept.0))?;
        let lost = self.replicas.iter().map(|store| (self.generation, *store));
        self.dropped.extend(lost);
        (self.generation, self.begun, self.replicas) = (to, to, replicas.to_vec());
        Ok(())
    }

    fn unlink(&mut self, generation: Generation, store: StoreId) -> Answer<()> {
        if self.dropped.contains(&(generation, store)) {
            need(self.can_spare(store))?;
            self.dropped.remove(&(generation, store));
            return Ok(());
        }
        if generation == self.generation {
            need(self.state == ChunkState::Doomed)?;
            let held = self.replicas.iter().position(|held| *held == store);
            self.replicas.remove(held.ok_or(ErrorKind::NotFound)?);
            return Ok(());
        }
        let spare = self.can_spare(store);
        let (stores, released) = self.old.get_mut(&generation).ok_or(ErrorKind::NotFound)?;
        need(*released)?;
        let held = stores.iter().position(|held| *held == store).ok_or(ErrorKind::NotFound)?;
        need(spare)?;
        stores.remove(held);
        self.old.retain(|_, (stores, _)| !stores.is_empty());
        Ok(())
    }
}
