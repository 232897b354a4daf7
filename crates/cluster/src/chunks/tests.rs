//! Chunks alone against a plain model, without names: any commands about few chunks, few stores and
//! few slots, and behind each of them every answer that `Chunks` gives.
//!
//! What is held against what: the model (`tests/model.rs`) is maps and lists, says what
//! docs/formats/namespace.md and the docstrings of `Command` promise, and counts whatever can be
//! counted anew each time. Names are played by the world here: it remembers which objects it has
//! named, so that a snapshot's restore can be told of them as names would tell it.

mod draw;
mod model;

use super::*;
use crate::namespace::{STEPS_MAX, VERSION_BEFORE_ATTEMPTS};
use crate::{ChunkKind, Command, Outcome, RawExtent};
use draw::{SLOTS, STORES, Step};
use holdfast_base::Result;
use holdfast_base::error::Kind as ErrorKind;
use holdfast_base::ids::{Cookie, Durability, FileId, NodeId, Pointer, StoreId, Tier};
use holdfast_base::stream::{collect, read_all};
use holdfast_env::trial::Trial;
use model::{Life, Model};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SHARD: u16 = 3;

/// The least that the tests of names need: they know no store.
impl Chunks {
    pub(crate) fn draw_packed(&mut self) -> ChunkId {
        self.draw_one(ChunkKind::Packed, FileId(0))
    }

    pub(crate) fn draw_sealed(&mut self, owner: FileId, length: u64) -> ChunkId {
        let chunk = self.draw_one(ChunkKind::Raw, owner);
        self.seal_chunk(chunk, length, &[StoreId(1)]).unwrap();
        chunk
    }

    fn draw_one(&mut self, kind: ChunkKind, owner: FileId) -> ChunkId {
        let class = (Tier::Disk, Durability::Durable);
        self.allocate((kind, owner), NodeId(1), &[StoreId(1)], 1, class).unwrap()
    }
}

struct World {
    chunks: Chunks,
    model: Model,
    index: u64,
}

fn said(result: Result<Outcome>) -> Result<Outcome, ErrorKind> {
    result.map_err(|e| e.kind)
}

impl World {
    fn new() -> World {
        World { chunks: Chunks::new(SHARD), model: Model::new(SHARD), index: 0 }
    }

    /// What the namespace's fold calls for a command about chunks.
    fn apply(&mut self, command: &Command) -> Result<Outcome> {
        let (chunks, index) = (&mut self.chunks, Index(self.index));
        match command {
            Command::AllocateCopies { kind, owner, node, replicas, copies, tier, durability } => {
                Chunks::check_new(replicas, *copies)?;
                let class = (*tier, *durability);
                let chunk = chunks.allocate((*kind, *owner), *node, replicas, *copies, class)?;
                Ok(Outcome::Chunk { chunk })
            }
            Command::AdoptChunk { .. } => {
                chunks.check_adopted(command)?;
                Ok(Outcome::Chunk { chunk: chunks.adopt(command)? })
            }
            Command::SealChunk { chunk, length, replicas } => {
                chunks.seal_chunk(*chunk, *length, replicas)
            }
            Command::CloseChunk { chunk } => chunks.close_chunk(*chunk),
            Command::FreeChunk { chunk } => chunks.free_face_chunk(*chunk),
            Command::SwitchReplicas { chunk, generation, length, digest, replicas } => chunks
                .switch_generation(index, *chunk, *generation, *length, *digest, Some(replicas)),
            Command::SwitchGeneration { chunk, generation, length, digest } => {
                chunks.switch_generation(index, *chunk, *generation, *length, *digest, None)
            }
            Command::BeginRewrite { chunk } => chunks.begin_rewrite(*chunk),
            Command::Rewrite { .. } => chunks.rewrite(index, command),
            Command::AddReplica { chunk, generation, store } => {
                chunks.add_replica(*chunk, *generation, *store)
            }
            Command::DropReplica { chunk, generation, store, lost } => {
                chunks.drop_replica(*chunk, *generation, *store, *lost)
            }
            Command::Unlink { chunk, generation, store } => {
                chunks.unlink_replica(*chunk, *generation, *store)
            }
            Command::RaiseCopies { chunks: listed, copies } => chunks.raise_copies(listed, *copies),
            Command::Release { before, budget } => Ok(chunks.release(*before, *budget)),
            other => panic!("{other:?} is none of chunks"),
        }
    }

    fn step(&mut self, step: &Step) {
        self.index += 1;
        match step {
            Step::Name { chunk, slot, bytes } => self.name(*chunk, *slot, *bytes),
            Step::Unname { nth } => {
                let named = self.model.objects(|life| life == Life::Named);
                let Some((chunk, slot, bytes)) = draw::nth(&named, *nth) else { return };
                self.chunks.free_object(Index(self.index), chunk, slot, bytes);
                self.model.free_object(self.index, chunk, slot);
            }
            Step::Delete { nth } => {
                let raw = self.model.files();
                let Some(chunk) = draw::nth(&raw, *nth) else { return };
                self.chunks.free_chunk(Index(self.index), chunk);
                self.model.free_chunk(self.index, chunk);
            }
            Step::Do(drawn) => {
                let command = drawn.command(&self.model, self.index);
                let expected = self.model.apply(self.index, &command);
                assert_eq!(said(self.apply(&command)), expected, "{command:?}");
            }
        }
        self.answers_as_the_model();
    }

    fn name(&mut self, chunk: ChunkId, slot: u32, bytes: u64) {
        let pointer = Pointer { chunk, slot: Slot(slot), cookie: Cookie(7) };
        let expected = self.model.may_name(chunk, slot, bytes);
        let checked = self.chunks.check_pointer(pointer, bytes).map_err(|e| e.kind);
        assert_eq!(checked, expected, "name slot {slot} of {chunk} with {bytes} bytes");
        if expected.is_ok() {
            self.chunks.name_object(pointer, bytes as u32);
            self.model.name_object(chunk, slot, bytes as u32);
        }
    }

    fn answers_as_the_model(&self) {
        let (chunks, model) = (&self.chunks, &self.model);
        let ids = |listed: Vec<&Chunk>| listed.iter().map(|chunk| chunk.id).collect::<Vec<_>>();
        assert_eq!(ids(chunks.iter().collect()), model.ids(|_| true));
        assert_eq!(ids(chunks.open().collect()), model.ids(|m| m.state == ChunkState::Open));
        assert_eq!(chunks.count(), model.chunks.len());
        assert_eq!(chunks.freed(), model.freed());
        assert_eq!(chunks.shard(), SHARD);
        for store in STORES.map(StoreId) {
            let on = model.ids(|m| m.replicas.contains(&store));
            assert_eq!(ids(chunks.on(store).collect()), on, "on {store}");
        }
        for bad in [&[][..], &[1], &[2, 3], &[1, 2, 3, 4]] {
            let counts = |store: StoreId| !bad.contains(&store.0);
            assert_eq!(chunks.short(counts), model.short(counts), "{bad:?}");
            assert_eq!(chunks.lost(counts), model.lost(counts), "{bad:?}");
        }
        self.unlinks_as_the_model();
        let mut places = BTreeSet::new();
        for id in (0..draw::CHUNKS + 2).map(|counter| ChunkId::new(SHARD, counter)) {
            assert_eq!(chunks.was_allocated(id), model.was_drawn(id), "{id}");
            self.is_one_as_the_model(id);
            match chunks.place(id) {
                Some(place) => assert!(chunks.id_at(place) == id && places.insert(place)),
                None => assert!(!model.chunks.contains_key(&id)),
            }
        }
        assert!(!chunks.was_allocated(ChunkId::new(SHARD + 1, 1)));
    }

    fn unlinks_as_the_model(&self) {
        let all: Vec<_> = self.chunks.unlinkable().collect();
        assert_eq!(all, self.model.unlinkable());
        for (chunk, generation, store) in &all {
            let unlink = Command::Unlink { chunk: *chunk, generation: *generation, store: *store };
            assert!(self.model.clone().apply(self.index, &unlink).is_ok(), "{unlink:?}");
        }
        for max in 1..3 {
            let (mut pages, mut first) = (Vec::new(), Some(ChunkId(0)));
            while let Some(from) = first {
                let (page, next) = self.chunks.unlinkable_from(from, max);
                let chunks: BTreeSet<_> = page.iter().map(|(chunk, ..)| *chunk).collect();
                assert!(chunks.len() <= max && next > first || next.is_none());
                pages.extend(page);
                first = next;
            }
            assert_eq!(pages, all, "{max} chunks a page");
        }
    }

    fn is_one_as_the_model(&self, id: ChunkId) {
        let chunk = self.chunks.get(id);
        let Some(known) = self.model.chunks.get(&id) else {
            assert_eq!((chunk, self.chunks.live_slots(id)), (None, None));
            return;
        };
        known.is_told_by(chunk.unwrap());
        let live: Vec<Slot> = known.live().map(|(slot, _)| Slot(slot)).collect();
        assert_eq!(self.chunks.live_slots(id), Some(live), "{id}");
        for store in STORES.map(StoreId) {
            for generation in (0..9).map(Generation) {
                let named = self.chunks.names_replica(id, generation, store);
                assert_eq!(named, known.names_replica(generation, store), "{id} {generation}");
            }
        }
        for slot in SLOTS {
            let pointer = Pointer { chunk: id, slot: Slot(slot), cookie: Cookie(7) };
            let checked = self.chunks.check_pointer(pointer, 1).map_err(|e| e.kind);
            assert_eq!(checked, self.model.may_name(id, slot, 1), "{id} slot {slot}");
        }
        for file in [2, 3].map(FileId) {
            for length in [0, 1, known.length, known.length + 1] {
                let extent = RawExtent { chunk: id, length };
                let fits = self.chunks.check_extent(file, extent).is_ok();
                assert_eq!(fits, known.may_hold(file, length), "{id} of {file}: {length}");
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        collect(&mut bytes, |out| {
            self.chunks.write(out);
            self.chunks.write_freed(out);
        });
        bytes
    }

    /// The same chunks from their bytes, told by names what they name.
    fn restored(self) -> World {
        let bytes = self.bytes();
        let chunks = read_all(&bytes, |source| {
            let mut chunks = Chunks::read(VERSION_BEFORE_ATTEMPTS + 1, source)?;
            for (chunk, slot, bytes) in self.model.objects(|life| life == Life::Named) {
                chunks.restore_object(chunk, slot, bytes as u64)?;
            }
            chunks.read_freed(source)?;
            chunks.check_freed()?;
            Ok(chunks)
        });
        let chunks = chunks.unwrap_or_else(|e| panic!("{e}: {:#?}", self.model));
        let world = World { chunks, ..self };
        assert_eq!(world.bytes(), bytes);
        world.answers_as_the_model();
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Half of the runs go on with what was read from bytes behind each step, so that nothing that
    /// is found again at a restore may differ from what was kept all along.
    #[test]
    fn chunks_answer_as_a_plain_model(
        (steps_max, restores) in (1..5u64, any::<bool>()),
        steps in prop::collection::vec(draw::step(), 0..120),
    ) {
        let _trial = Trial::new().with(&STEPS_MAX, steps_max).enter();
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            if restores {
                world = world.restored();
            }
        }
        world.restored();
    }
}

/// So many that random steps rarely get there.
#[test]
fn a_chunk_has_sixteen_replicas_and_no_more() {
    let mut world = World::new();
    let replicas: Vec<StoreId> = (1..=16).map(StoreId).collect();
    let (tier, durability) = (Tier::Disk, Durability::Durable);
    let (kind, owner, node) = (ChunkKind::Packed, FileId(0), NodeId(1));
    let chunk = ChunkId::new(SHARD, 1);
    let add =
        |store| Command::AddReplica { chunk, generation: Generation(0), store: StoreId(store) };
    for command in [
        Command::AllocateCopies {
            kind,
            owner,
            node,
            replicas: replicas[..15].to_vec(),
            copies: 16,
            tier,
            durability,
        },
        Command::SealChunk { chunk, length: 1, replicas: replicas[..15].to_vec() },
        add(16),
        add(17),
    ] {
        let expected = world.model.apply(0, &command);
        assert_eq!(said(world.apply(&command)), expected, "{command:?}");
        world.answers_as_the_model();
    }
    assert_eq!(world.chunks.get(chunk).unwrap().replicas, replicas);
}
