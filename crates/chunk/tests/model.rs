//! A store against a plain model of it: random appends of sizes at every border, reads, fences,
//! seals, compactions, unlinks, orderly ends and kills, with internal limits drawn small. After each
//! step what the store says and gives is what the model has; nothing is in doubt, for every step
//! ends before the next one begins (the power-cut tests are about those that do not).

mod common;

use common::{MemDisk, config, crcs, noise};
use holdfast_base::Kind;
use holdfast_base::checksum::stamp;
use holdfast_base::ids::{ChunkId, Cookie, Durability, FileId, Generation, Pointer, Slot};
use holdfast_chunk::*;
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};

const BLOCK: u64 = 65536;
const CHUNKS: u64 = 3;

#[derive(Default)]
struct Chunk {
    packed: bool,
    /// Of this life, and neither fenced nor sealed.
    open: bool,
    sealed: bool,
    raw: Vec<u8>,
    /// By slot; `None` once a compaction left it out.
    objects: Vec<Option<(u64, usize)>>,
    generation: u32,
    /// A computed generation, with the slots that live in it.
    next: Option<BTreeSet<u32>>,
    old: bool,
}

struct World {
    disk: Arc<MemDisk>,
    store: Store,
    seed: u64,
    rng: SeededRng,
    chunks: BTreeMap<u64, Chunk>,
    objects: u64,
    unlinked: u64,
    lives: u64,
    ended: bool,
}

fn open(disk: &Arc<MemDisk>, seed: u64, life: u64) -> (Store, Recovered) {
    // Four sectors are the smallest segment; indexes of sealed chunks stay, or never do.
    let journal_segment_bytes = [0, 16 << 10, 24 << 10, 64 << 10][(seed % 4) as usize];
    let index_bytes_max = [0, 300, 1 << 20][(seed / 4 % 3) as usize];
    let config = StoreConfig { journal_segment_bytes, index_bytes_max, ..config() };
    Store::open(disk.clone(), Arc::new(SeededRng::new(seed << 20 | life)), config).unwrap()
}

fn needle(number: u64) -> Needle {
    let hint = format!("/n/{number}").into_bytes();
    Needle { owner: FileId(number), cookie: Cookie(number as u32 ^ 77), flags: 1, hint }
}

impl World {
    fn new(seed: u64) -> World {
        let disk = MemDisk::new();
        let store = open(&disk, seed, 0).0;
        let (rng, chunks) = (SeededRng::new(seed), BTreeMap::new());
        World { disk, store, seed, rng, chunks, objects: 0, unlinked: 0, lives: 0, ended: false }
    }

    fn below(&self, end: u64) -> u64 {
        self.rng.next_u64() % end
    }

    /// A length near something: a sector with its heads, a block, a limit that may be drawn.
    fn length(&self, at: u64) -> usize {
        let near = match self.below(9) {
            0 => 1,
            1 => 4096 - 40 - 44 - 4,
            2 => 4096,
            3 => BLOCK - at % BLOCK,
            4 => BLOCK,
            5 => 2 * BLOCK + 5,
            6 => 1000,
            7 => 8192 - 40 - 44 - 8,
            _ => 1 + self.below(9000),
        };
        (near + self.below(9)).saturating_sub(4).max(1) as usize
    }

    fn pick(&self, wanted: impl Fn(&Chunk) -> bool) -> Option<u64> {
        let ids: Vec<u64> =
            self.chunks.iter().filter(|(_, c)| wanted(c)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[self.below(ids.len() as u64) as usize])
    }

    fn step(&mut self) {
        match self.below(24) {
            0..=12 => self.append(),
            13..=14 => self.seal(),
            15 => self.fence(),
            16..=18 => self.rewrite(),
            19 => self.unlink(),
            20 => self.restart(true),
            21 => self.restart(false),
            _ => self.read_somewhere(),
        }
    }

    fn create(&mut self) -> u64 {
        let id = (1..).find(|id| !self.chunks.contains_key(id)).unwrap();
        let packed = self.below(2) == 0;
        let kind = if packed { ChunkKind::Packed } else { ChunkKind::Raw };
        let capacity_bytes = [30_000, 200_000, 400_000][self.below(3) as usize];
        let spec = ChunkSpec { capacity_bytes, ..ChunkSpec::new(ChunkId(id), kind, 99) };
        self.store.create(spec).unwrap();
        self.chunks.insert(id, Chunk { packed, open: true, ..Chunk::default() });
        id
    }

    /// One to four appends of one chunk, answered together.
    fn append(&mut self) {
        let open = self.pick(|c| c.open);
        let id = match open {
            Some(id) if self.below(12) > 0 || self.chunks.len() as u64 > CHUNKS => id,
            _ => self.create(),
        };
        let chunk = ChunkId(id);
        let (tx, rx) = mpsc::channel();
        let mut sent = Vec::new();
        for _ in 0..1 + self.below(4) {
            let memory = self.below(3) == 0;
            let class = if memory { Durability::Memory } else { Durability::Durable };
            let at = self.chunks[&id].raw.len() as u64
                + sent.iter().map(|(_, body): &(u64, Vec<u8>)| body.len() as u64).sum::<u64>();
            let len = self.length(at);
            self.objects += 1;
            let (number, body) = (self.objects, noise(self.objects, len));
            if self.store.room(chunk).unwrap() < 2 * len as u64 + 9000 {
                self.objects -= 1;
                break;
            }
            let (tx, sums) =
                (tx.clone(), crcs(if self.chunks[&id].packed { 0 } else { at }, &body));
            let boxed = Box::new(body.clone());
            if self.chunks[&id].packed {
                let done = Box::new(move |slot: holdfast_base::Result<Slot>| {
                    tx.send(slot.map(|slot| slot.0 as u64)).unwrap();
                });
                self.store.append_needle(chunk, needle(number), boxed, sums, class, done);
            } else {
                let done = Box::new(move |end| tx.send(end).unwrap());
                self.store.append_raw(chunk, at, boxed, sums, class, done);
            }
            sent.push((number, body));
        }
        self.store.pump();
        let known = self.chunks.get_mut(&id).unwrap();
        if sent.is_empty() {
            // It is full: only a fence is left for it.
            known.open = false;
            self.store.fence(chunk).unwrap();
        }
        for (number, body) in sent {
            let said = rx.try_recv().expect("answered").unwrap();
            if known.packed {
                assert_eq!(said, known.objects.len() as u64, "chunk {id}: slots follow each other");
                known.objects.push(Some((number, body.len())));
            } else {
                known.raw.extend_from_slice(&body);
                assert_eq!(said, known.raw.len() as u64);
            }
        }
    }

    fn length_of(chunk: &Chunk) -> u64 {
        if chunk.packed { chunk.objects.len() as u64 } else { chunk.raw.len() as u64 }
    }

    fn fence(&mut self) {
        let Some(id) = self.pick(|c| !c.sealed) else { return };
        let known = self.chunks.get_mut(&id).unwrap();
        known.open = false;
        assert_eq!(self.store.fence(ChunkId(id)).unwrap(), World::length_of(known));
    }

    fn seal(&mut self) {
        let Some(id) = self.pick(|c| !c.sealed) else { return };
        let cut = if self.below(3) == 0 { self.below(70_000) } else { 0 };
        let known = self.chunks.get_mut(&id).unwrap();
        let length = World::length_of(known).saturating_sub(match known.packed {
            true => cut % 3,
            false => cut,
        });
        self.store.seal(ChunkId(id), length).unwrap();
        assert_eq!(self.store.seal(ChunkId(id), length + 1).unwrap_err().kind, Kind::Fenced);
        (known.open, known.sealed) = (false, true);
        known.raw.truncate(if known.packed { 0 } else { length as usize });
        known.objects.truncate(if known.packed { length as usize } else { 0 });
    }

    /// Computes a generation, switches to it, unlinks the one before.
    fn rewrite(&mut self) {
        let Some(id) = self.pick(|c| c.packed && c.sealed) else { return };
        let chunk = ChunkId(id);
        let odds = 1 + self.below(4);
        let live: BTreeSet<u32> =
            (0..self.chunks[&id].objects.len() as u32).filter(|_| self.below(4) < odds).collect();
        let known = self.chunks.get_mut(&id).unwrap();
        let next = Generation(known.generation + 1);
        if known.old {
            let before = Generation(known.generation - 1);
            self.store.unlink(chunk, before).unwrap();
            known.old = false;
        } else if let Some(live) = known.next.take() {
            self.store.switch(chunk, next).unwrap();
            known.generation += 1;
            known.old = true;
            for (slot, object) in (0u32..).zip(&mut known.objects) {
                object.take_if(|_| !live.contains(&slot));
            }
        } else {
            let made = self.store.compact(chunk, &|slot| live.contains(&slot.0), next).unwrap();
            let there = |slot: &&u32| known.objects[**slot as usize].is_some();
            assert_eq!(made.needles, live.iter().filter(there).count() as u64);
            known.next = Some(live);
        }
    }

    fn unlink(&mut self) {
        let Some(id) = self.pick(|c| c.sealed && c.next.is_none() && !c.old) else { return };
        let known = self.chunks.remove(&id).unwrap();
        self.store.unlink(ChunkId(id), Generation(known.generation)).unwrap();
        self.unlinked += 1;
    }

    fn restart(&mut self, in_order: bool) {
        if in_order {
            // The store's last handle ends it.
            let other = open(&MemDisk::new(), 0, 0).0;
            drop(std::mem::replace(&mut self.store, other));
        } else {
            self.disk = self.disk.copy();
        }
        self.ended |= in_order;
        let found;
        self.lives += 1;
        (self.store, found) = open(&self.disk, self.seed, self.lives);
        assert!(found.damaged.is_empty() && found.cut_tails.is_empty(), "{found:?}");
        assert!(found.journal_damage.is_empty() && found.mark_damage.is_none(), "{found:?}");
        self.chunks.values_mut().for_each(|known| known.open = false);
        self.check();
    }

    fn read_somewhere(&mut self) {
        let Some(id) = self.pick(|c| !c.raw.is_empty()) else { return };
        let known = &self.chunks[&id];
        let from = self.below(known.raw.len() as u64 + 10);
        let from = if self.below(2) == 0 { from / BLOCK * BLOCK } else { from };
        check_raw(&self.store, ChunkId(id), known, from, self.length(from) as u64);
    }

    /// Everything is as the model has it.
    fn check(&self) {
        let list = self.store.list();
        assert_eq!(list.len(), self.chunks.len());
        for (info, (id, known)) in list.iter().zip(&self.chunks) {
            let chunk = ChunkId(*id);
            assert_eq!(info.chunk, chunk);
            assert_eq!(info.length, World::length_of(known), "{chunk}");
            assert_eq!(info.generation, Generation(known.generation), "{chunk}");
            assert_eq!(info.state == ReplicaState::Sealed, known.sealed, "{chunk}");
            assert_eq!(info.state == ReplicaState::Open, known.open, "{chunk}");
            assert!(!info.damaged, "{chunk}");
            check_raw(&self.store, chunk, known, 0, u64::MAX >> 1);
            for (slot, object) in (0u32..).zip(&known.objects) {
                check_object(&self.store, chunk, slot, *object);
            }
            let behind =
                Pointer { chunk, slot: Slot(known.objects.len() as u32), cookie: Cookie(1) };
            assert_eq!(self.store.read_needle(behind).err().unwrap().kind, Kind::NotFound);
        }
    }
}

fn check_raw(store: &Store, chunk: ChunkId, known: &Chunk, from: u64, bytes: u64) {
    if known.packed {
        return;
    }
    let read = store.read_raw(chunk, Generation(0), from, bytes).unwrap();
    let end = from.saturating_add(bytes).min(known.raw.len() as u64);
    let wanted = &known.raw[from.min(end) as usize..end as usize];
    assert!(read.bytes.as_slice() == wanted, "{chunk}: {from} and {bytes} more");
    if !wanted.is_empty() {
        let plain = crcs(from, wanted);
        let stamped = plain.iter().zip(from / BLOCK..);
        let stamped: Vec<u32> =
            stamped.map(|(crc, block)| crc ^ stamp(chunk, Generation(0), block)).collect();
        assert_eq!(read.crcs, stamped, "{chunk}: {from} and {bytes} more");
    }
}

fn check_object(store: &Store, chunk: ChunkId, slot: u32, object: Option<(u64, usize)>) {
    let cookie = object.map_or(Cookie(0), |(number, _)| needle(number).cookie);
    let pointer = Pointer { chunk, slot: Slot(slot), cookie };
    let Some((number, len)) = object else {
        assert_eq!(store.read_needle(pointer).err().unwrap().kind, Kind::NotFound, "{pointer}");
        return;
    };
    let body = noise(number, len);
    let read = store.read_needle(pointer).unwrap();
    assert_eq!(read.needle, needle(number), "{pointer}");
    assert!(read.bytes.as_slice() == body, "{pointer}");
    assert_eq!(read.crcs, crcs(0, &body), "{pointer}");
    let part = len as u64 / 3..(len as u64 / 3 + 70_000).min(len as u64);
    let (bytes, _) = store.read_needle_part(pointer, part.clone()).unwrap();
    assert!(bytes.as_slice() == &body[part.start as usize..part.end as usize], "{pointer}");
    let other = Pointer { cookie: Cookie(cookie.0 ^ 1), ..pointer };
    assert_eq!(store.read_needle(other).err().unwrap().kind, Kind::NotFound);
}

#[test]
fn a_store_is_as_its_model_whatever_its_limits() {
    let mut crossed: BTreeMap<&str, bool> = BTreeMap::new();
    let (mut unlinked, mut ended) = (0, 0);
    for seed in 0..36 {
        let trial = Trial::drawn(seed).enter();
        let mut world = World::new(seed);
        for _ in 0..70 {
            world.step();
        }
        world.check();
        world.restart(false);
        (unlinked, ended) = (unlinked + world.unlinked, ended + world.ended as u64);
        for (name, knob) in trial.knobs() {
            *crossed.entry(name).or_default() |= knob.crossed;
        }
    }
    assert!(unlinked > 10 && ended > 20, "{unlinked} unlinked, {ended} ended in order");
    let never: Vec<&str> = crossed.iter().filter(|(_, c)| !**c).map(|(name, _)| *name).collect();
    assert!(never.is_empty() && crossed.len() >= 7, "never crossed: {never:?} of {crossed:?}");
}
