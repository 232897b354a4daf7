//! The chunk store: durable bytes are kept and right, others are right or absent, seals,
//! generations and unlinks hold, and a store that starts again takes no appends to old chunks.

use crate::common::{Answer, Outcome, below, ensure, noise, powered};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::ids::{ChunkId, Cookie, Durability, FileId, Generation, Pointer, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{
    ChunkInfo, ChunkKind, ChunkSpec, Needle, Recovered, ReplicaState, Store, StoreConfig,
};
use holdfast_env::disk::{Access, Disk, read_file};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::{self, CutPlan, Layer, Life, Seen, mix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = 65536;

pub fn open(disk: &SimDisk, seed: u64) -> Result<(Store, Recovered)> {
    let config = StoreConfig {
        reserve_bytes: 1 << 20,
        commit_threads: 0,
        spare_file: false,
        journal_segment_bytes: [16 << 10, 32 << 10][(seed % 2) as usize],
        ..StoreConfig::new("/store")
    };
    Store::open(Arc::new(disk.clone()), Arc::new(SeededRng::new(mix(seed, 77))), config)
}

/// Checksums as a client computes them.
pub fn crcs(at: u64, mut body: &[u8]) -> Vec<u32> {
    let mut crcs = Vec::new();
    let mut room = (BLOCK - at % BLOCK) as usize;
    while !body.is_empty() || crcs.is_empty() {
        let (piece, rest) = body.split_at(room.min(body.len()));
        crcs.push(crc32c(piece));
        (body, room) = (rest, BLOCK as usize);
    }
    crcs
}

/// Reads a raw chunk and verifies it, as a client does.
pub fn read_raw(store: &Store, chunk: ChunkId, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let read = store.read_raw(chunk, Generation(0), offset, bytes)?;
    let out = read.bytes.to_vec();
    let plain = (offset / BLOCK..).zip(&read.crcs);
    let plain: Vec<u32> = plain.map(|(i, crc)| crc ^ stamp(chunk, read.generation, i)).collect();
    if !out.is_empty() && plain != crcs(offset, &out) {
        return Err(Error::corrupt("the client's check failed"));
    }
    Ok(out)
}

/// What may be true of one thing: it was acknowledged, or a call about it did not return.
#[derive(Clone, Debug, Default)]
struct Chunk {
    packed: bool,
    created: bool,
    /// Of this life, and not fenced or sealed: takes appends.
    open: bool,
    /// Raw: what was appended. Packed: unused.
    data: Vec<u8>,
    /// Packed: (number, size) of each object, by slot. `None`: lost while it was in doubt.
    objects: Vec<Option<u64>>,
    /// Bytes or slots that are durable, and that were acknowledged.
    durable: u64,
    written: u64,
    sealed: Option<u64>,
    seal_in_doubt: Option<u64>,
    /// The current generation, one that was computed, one whose switch is in doubt, the old one.
    generation: u32,
    next: bool,
    next_in_doubt: bool,
    switch_in_doubt: bool,
    old: Option<u32>,
    unlink_in_doubt: bool,
    /// Slots that compaction kept: others may be gone.
    live: Option<Vec<u32>>,
}

impl Chunk {
    fn length(&self) -> u64 {
        if self.packed { self.objects.len() as u64 } else { self.data.len() as u64 }
    }
}

#[derive(Clone, Default)]
pub struct Model {
    store: Option<StoreId>,
    chunks: BTreeMap<u64, Chunk>,
    next_chunk: u64,
    next_object: u64,
    kept: BTreeMap<PathBuf, Vec<u8>>,
    /// Somebody's file is in the store's directory.
    stranger: bool,
}

pub struct ChunkLayer;

fn object(number: u64) -> Vec<u8> {
    let len = [0, 5, 900, 4000, 9000][(mix(number, 3) % 5) as usize];
    noise(mix(number, 4), len)
}

fn needle(number: u64) -> Needle {
    let hint = format!("/object/{number}").into_bytes();
    Needle { owner: FileId(number), cookie: Cookie(number as u32 ^ 0xabcd), flags: 1, hint }
}

impl Layer for ChunkLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        // Every other life has other internal limits than the one before it.
        let _trial = (life.seed % 2 == 1).then(|| Trial::drawn(life.seed).enter());
        let (store, found) = powered!(disk, "open the store", open(disk, life.seed));
        powered!(disk, "check the store", check(disk, &store, &found, model, seen)?);
        let rng = life.rng();
        if life.steps > 0 && below(&rng, 2) == 0 {
            // As a node does after its start.
            for id in model.chunks.keys().copied().collect::<Vec<_>>() {
                if model.chunks.get(&id).is_some_and(|c| c.created && c.sealed.is_none()) {
                    powered!(disk, "seal", seal(&store, model, id, &rng, seen));
                }
            }
        }
        if life.steps > 0 && !model.stranger && below(&rng, 4) == 0 {
            powered!(disk, "put a file there", put_stranger(disk).map_err(Error::from));
            model.stranger = true;
        }
        for _ in 0..life.steps {
            powered!(disk, "work", step(disk, &store, model, &rng, seen)?);
        }
        for (id, chunk) in model.chunks.iter().filter(|(_, c)| c.created) {
            powered!(disk, "check", check_content(&store, ChunkId(*id), chunk)?);
        }
        Ok(())
    }

    fn power_was_cut(&self, model: &mut Model) {
        model.chunks.values_mut().for_each(|chunk| chunk.written = chunk.durable);
    }
}

const STRANGER: [&str; 2] = ["/store/letter.txt", "/store/quarantine/letter.txt"];

fn put_stranger(disk: &SimDisk) -> std::io::Result<()> {
    let path = Path::new(STRANGER[0]);
    if !disk.exists(path)? && !disk.exists(Path::new(STRANGER[1]))? {
        disk.create(path, Access::Cached)?.write_at_durable(b"dear store", 0, "test.data")?;
    }
    disk.sync_dir(Path::new("/store"), "test.name")
}

fn pick(model: &Model, rng: &SeededRng, wanted: impl Fn(&Chunk) -> bool) -> Option<u64> {
    let ids: Vec<u64> = model.chunks.iter().filter(|(_, c)| wanted(c)).map(|(id, _)| *id).collect();
    (!ids.is_empty()).then(|| ids[below(rng, ids.len() as u64) as usize])
}

fn step(
    disk: &SimDisk,
    store: &Store,
    model: &mut Model,
    rng: &SeededRng,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let action = below(rng, 20);
    let open = pick(model, rng, |c| c.open);
    let sealed = pick(model, rng, |c| c.packed && c.sealed.is_some());
    let unsealed = pick(model, rng, |c| c.created && c.sealed.is_none());
    let any = pick(model, rng, |c| c.sealed.is_some() && c.old.is_none() && !c.next);
    match (action, open) {
        (0..=1, _) | (2..=12, None) => Ok(create(store, model, rng)),
        (2..=12, Some(id)) => append(disk, store, model, id, rng),
        (13..=15, _) => Ok(unsealed.map_or(Ok(()), |id| seal(store, model, id, rng, seen))),
        (16, Some(id)) => {
            let Some(chunk) = model.chunks.get_mut(&id) else { return Ok(Ok(())) };
            chunk.open = false;
            Ok(store.fence(ChunkId(id)).map(|_| ()))
        }
        (17..=18, _) => Ok(sealed.map_or(Ok(()), |id| rewrite(store, model, id, rng, seen))),
        _ => {
            let Some(id) = any else { return Ok(Ok(())) };
            let Some(chunk) = model.chunks.get_mut(&id) else { return Ok(Ok(())) };
            chunk.unlink_in_doubt = true;
            let generation = Generation(chunk.generation);
            Ok(store.unlink(ChunkId(id), generation).map(|()| {
                model.chunks.remove(&id);
                seen.sometimes(true, "unlink");
            }))
        }
    }
}

fn create(store: &Store, model: &mut Model, rng: &SeededRng) -> Result<()> {
    model.next_chunk += 1;
    let id = model.next_chunk;
    let packed = below(rng, 2) == 0;
    model.chunks.insert(id, Chunk { packed, ..Chunk::default() });
    let kind = if packed { ChunkKind::Packed } else { ChunkKind::Raw };
    let capacity_bytes = if packed { 128 << 10 } else { 256 << 10 };
    store.create(ChunkSpec { capacity_bytes, ..ChunkSpec::new(ChunkId(id), kind, 99) })?;
    if let Some(chunk) = model.chunks.get_mut(&id) {
        (chunk.created, chunk.open) = (true, true);
    }
    Ok(())
}

/// One to three appends in one commit.
fn append(
    disk: &SimDisk,
    store: &Store,
    model: &mut Model,
    id: u64,
    rng: &SeededRng,
) -> Outcome<Result<()>> {
    let Some(chunk) = model.chunks.get_mut(&id) else { return Ok(Ok(())) };
    let mut raw = Vec::new();
    let mut packed = Vec::new();
    for _ in 0..1 + below(rng, 3) {
        if store.room(ChunkId(id)).is_ok_and(|room| room < 80_000) {
            chunk.open = false;
            break;
        }
        let memory = below(rng, 3) == 0;
        let class = if memory { Durability::Memory } else { Durability::Durable };
        if chunk.packed {
            model.next_object += 1;
            let number = model.next_object;
            let body = object(number);
            let sums = crcs(0, &body);
            let slot = chunk.objects.len() as u64;
            chunk.objects.push(Some(number));
            let (answer, done) = Answer::<Slot>::new();
            store.append_needle(ChunkId(id), needle(number), Box::new(body), sums, class, done);
            packed.push((class, slot, answer));
        } else {
            let at = chunk.data.len() as u64;
            let len = [1, 3000, 20_000, 70_000][below(rng, 4) as usize];
            let body = noise(rng.next_u64(), len);
            let sums = crcs(at, &body);
            chunk.data.extend_from_slice(&body);
            let (answer, done) = Answer::<u64>::new();
            store.append_raw(ChunkId(id), at, Box::new(body), sums, class, done);
            raw.push((class, chunk.data.len() as u64, answer));
        }
    }
    store.pump();
    let raw = raw.into_iter().map(|(c, end, a)| (c, end, a.get()));
    let packed = packed.into_iter().map(|(c, at, a)| (c, at + 1, a.get().map(|s| s.0 as u64 + 1)));
    for (class, end, answer) in raw.chain(packed) {
        match answer {
            Ok(said) => {
                ensure(said == end, || format!("chunk {id}: {said} was answered for {end}"))?;
                chunk.written = end;
                if class == Durability::Durable {
                    chunk.durable = end;
                }
            }
            Err(e) if disk.crashed() => return Ok(Err(e)),
            Err(e) => return Err(format!("append to chunk {id}: {}", e.message)),
        }
    }
    Ok(Ok(()))
}

fn seal(store: &Store, model: &mut Model, id: u64, rng: &SeededRng, seen: &mut Seen) -> Result<()> {
    let Some(chunk) = model.chunks.get_mut(&id) else { return Ok(()) };
    // Mostly all of it; the first seal may also decide for less.
    let whole = store.length(ChunkId(id))?;
    let length = if below(rng, 4) == 0 { whole - below(rng, whole.min(9) + 1) } else { whole };
    chunk.seal_in_doubt = Some(length);
    chunk.open = false;
    seen.sometimes(true, "seal");
    store.seal(ChunkId(id), length)?;
    decide(chunk, length);
    Ok(())
}

fn decide(chunk: &mut Chunk, length: u64) {
    (chunk.sealed, chunk.seal_in_doubt, chunk.open) = (Some(length), None, false);
    chunk.data.truncate(length as usize);
    chunk.objects.truncate(length as usize);
    (chunk.durable, chunk.written) = (length, length);
}

/// One step of a compaction: compute, switch, unlink the old one.
fn rewrite(
    store: &Store,
    model: &mut Model,
    id: u64,
    rng: &SeededRng,
    seen: &mut Seen,
) -> Result<()> {
    let Some(chunk) = model.chunks.get_mut(&id) else { return Ok(()) };
    let next = Generation(chunk.generation + 1);
    if let Some(old) = chunk.old {
        chunk.unlink_in_doubt = true;
        store.unlink(ChunkId(id), Generation(old))?;
        (chunk.old, chunk.unlink_in_doubt) = (None, false);
    } else if chunk.next {
        chunk.switch_in_doubt = true;
        store.switch(ChunkId(id), next)?;
        switched(chunk);
        seen.sometimes(true, "compaction switch");
    } else {
        let live: Vec<u32> = (0..chunk.objects.len() as u32)
            .filter(|&slot| chunk.objects[slot as usize].is_some() && below(rng, 2) == 0)
            .collect();
        chunk.next_in_doubt = true;
        chunk.live = Some(live.clone());
        store.compact(ChunkId(id), &|slot| live.contains(&slot.0), next)?;
        (chunk.next, chunk.next_in_doubt) = (true, false);
    }
    Ok(())
}

fn switched(chunk: &mut Chunk) {
    chunk.old = Some(chunk.generation);
    chunk.generation += 1;
    (chunk.next, chunk.switch_in_doubt) = (false, false);
    let live = chunk.live.take().unwrap_or_default();
    for (slot, object) in chunk.objects.iter_mut().enumerate() {
        if !live.contains(&(slot as u32)) {
            *object = None;
        }
    }
}

fn check(
    disk: &SimDisk,
    store: &Store,
    found: &Recovered,
    model: &mut Model,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let known = *model.store.get_or_insert(found.store);
    ensure(known == found.store, || "the store has another id".into())?;
    ensure(found.damaged.is_empty(), || format!("damage: {:?}", found.damaged))?;
    for (name, why) in &found.quarantined {
        // A file whose making was interrupted may have a torn header. It is moved aside, again
        // if a power cut undoes that.
        let made = model.chunks.iter().filter(|(_, chunk)| chunk.created);
        let made = made.map(|(id, _)| format!("{}.", ChunkId(*id)));
        let unmade = name.ends_with(".g0.open") && !made.into_iter().any(|c| name.starts_with(&c));
        let stranger = name == "letter.txt";
        seen.sometimes(stranger, "quarantine");
        ensure(unmade || stranger, || format!("stranger `{name}`: {why}"))?;
    }
    let letter = STRANGER.iter().any(|path| disk.exists(Path::new(path)).unwrap_or(false));
    ensure(letter || !model.stranger || disk.crashed(), || "somebody's file is gone".into())?;
    for cut in &found.cut_tails {
        let Ok(bytes) = read_file(disk, &cut.kept_as, 1 << 30) else {
            if disk.crashed() {
                return Ok(Err(Error::retry("power")));
            }
            return Err(format!("the cut tail `{}` is not there", cut.kept_as.display()));
        };
        seen.sometimes(true, "torn tail cut");
        ensure(bytes.len() as u64 == cut.bytes, || "a cut tail was not kept whole".into())?;
        model.kept.insert(cut.kept_as.clone(), bytes);
    }
    for (path, bytes) in &model.kept {
        let found = read_file(disk, path, 1 << 30);
        if disk.crashed() {
            return Ok(Err(Error::retry("power")));
        }
        ensure(found.ok().as_ref() == Some(bytes), || {
            format!("the tail kept as `{}` has changed or is gone", path.display())
        })?;
    }
    let list = store.list();
    for info in &list {
        let known = model.chunks.contains_key(&info.chunk.0);
        ensure(known, || format!("chunk {} came back", info.chunk))?;
    }
    let mut gone = Vec::new();
    for (id, chunk) in &mut model.chunks {
        let Some(info) = list.iter().find(|info| info.chunk.0 == *id) else {
            let may = !chunk.created || (chunk.unlink_in_doubt && chunk.old.is_none());
            ensure(may, || format!("chunk {id} is gone"))?;
            gone.push(*id);
            continue;
        };
        settle(store, chunk, info, found, seen)?;
        match check_content(store, ChunkId(*id), chunk)? {
            Ok(()) => {}
            Err(e) => return Ok(Err(e)),
        }
    }
    gone.iter().for_each(|id| {
        model.chunks.remove(id);
    });
    Ok(Ok(()))
}

/// Takes what was in doubt about a chunk as the store found it, if it may be so.
fn settle(
    store: &Store,
    chunk: &mut Chunk,
    info: &ChunkInfo,
    found: &Recovered,
    seen: &mut Seen,
) -> Outcome<()> {
    let id = info.chunk;
    chunk.created = true;
    chunk.open = false;
    let other = |generation: u32| found.other_generations.contains(&(id, Generation(generation)));
    if let Some(length) = chunk.sealed.or(chunk.seal_in_doubt)
        && info.state == ReplicaState::Sealed
    {
        ensure(info.length == length, || {
            format!("chunk {id} is sealed at {}, not {length}", info.length)
        })?;
        decide(chunk, length);
    }
    ensure((info.state == ReplicaState::Sealed) == chunk.sealed.is_some(), || {
        format!("chunk {id} is {:?}, its seal was at {:?}", info.state, chunk.sealed)
    })?;
    if chunk.sealed.is_none() {
        seen.sometimes(!chunk.packed && info.length > 0, "recovery of open raw chunk");
        ensure(info.state == ReplicaState::Fenced, || format!("chunk {id} takes appends again"))?;
        let least = chunk.durable.max(chunk.written);
        ensure(info.length >= least && info.length <= chunk.length(), || {
            format!("chunk {id} has {}, {least} acknowledged", info.length)
        })?;
        seen.sometimes(info.length < chunk.length(), "bytes lost that were in doubt");
        chunk.data.truncate(info.length as usize);
        chunk.objects.truncate(info.length as usize);
        for slot in least..chunk.objects.len() as u64 {
            if !read_object(store, id, slot as u32, chunk.objects[slot as usize])? {
                chunk.objects[slot as usize] = None;
            }
        }
        (chunk.durable, chunk.written, chunk.seal_in_doubt) = (info.length, info.length, None);
        return Ok(());
    }
    if chunk.switch_in_doubt && info.generation.0 == chunk.generation + 1 {
        switched(chunk);
    }
    chunk.switch_in_doubt = false;
    ensure(info.generation.0 == chunk.generation, || {
        format!("chunk {id} is {}, generation {} is current", info.generation, chunk.generation)
    })?;
    let next = other(chunk.generation + 1);
    ensure(next || !chunk.next, || format!("chunk {id}: a computed generation is gone"))?;
    ensure(!next || chunk.next || chunk.next_in_doubt, || format!("chunk {id}: half a rewrite"))?;
    (chunk.next, chunk.next_in_doubt) = (next, false);
    let old = chunk.generation.checked_sub(1).filter(|old| other(*old));
    let may = old == chunk.old || (old.is_none() && chunk.unlink_in_doubt);
    ensure(may, || format!("chunk {id}: old generation {old:?}, not {:?}", chunk.old))?;
    (chunk.old, chunk.unlink_in_doubt) = (old, false);
    Ok(())
}

/// Whether the object is there; it is the right one, or none.
fn read_object(store: &Store, chunk: ChunkId, slot: u32, number: Option<u64>) -> Outcome<bool> {
    let wanted = number.map(|number| (needle(number), object(number)));
    let cookie = wanted.as_ref().map_or(Cookie(0), |(needle, _)| needle.cookie);
    match (store.read_needle(Pointer { chunk, slot: Slot(slot), cookie }), wanted) {
        (Ok(read), Some((needle, body))) => {
            ensure(read.needle == needle && read.bytes.to_vec() == body, || {
                format!("chunk {chunk}: slot {slot} has another object")
            })?;
            Ok(true)
        }
        (Ok(_), None) => Err(format!("chunk {chunk}: slot {slot} came back")),
        (Err(_), _) => Ok(false),
    }
}

fn check_content(store: &Store, id: ChunkId, chunk: &Chunk) -> Outcome<Result<()>> {
    let length = match store.length(id) {
        Ok(length) => length,
        Err(e) => return Ok(Err(e)),
    };
    if chunk.packed {
        for (slot, number) in (0u32..).zip(&chunk.objects) {
            let there = read_object(store, id, slot, *number)?;
            let acknowledged = number.is_some() && (slot as u64) < chunk.written;
            if acknowledged && !there {
                return Ok(Err(Error::corrupt(format!("{id}: slot {slot} cannot be read"))));
            }
        }
        return Ok(Ok(()));
    }
    match read_raw(store, id, 0, length) {
        Ok(bytes) => {
            ensure(chunk.data.starts_with(&bytes), || format!("chunk {id} has other bytes"))?;
            ensure(bytes.len() as u64 >= chunk.written, || format!("chunk {id} is short"))?;
            Ok(Ok(()))
        }
        Err(e) if e.kind == Kind::Invalid && length == 0 => Ok(Ok(())),
        Err(e) => Ok(Err(e)),
    }
}

pub fn plan(seed: u64, steps: u64, stride: u64) -> CutPlan {
    CutPlan { seed, steps, stride, outcomes: 4 }
}

#[test]
fn the_chunk_store_keeps_its_promises_wherever_the_power_is_cut() {
    let mut seen = Seen::default();
    let mut outcomes = 0;
    for seed in 0..4 {
        outcomes += powercut::explore(&ChunkLayer, plan(seed, 14, 1), &mut seen).unwrap();
    }
    for seed in 100..108 {
        outcomes += powercut::explore(&ChunkLayer, plan(seed, 80, 17), &mut seen).unwrap();
    }
    println!("chunk: {outcomes} outcomes");
    seen.assert_all(&[
        "torn tail cut",
        "quarantine",
        "seal",
        "compaction switch",
        "unlink",
        "recovery of open raw chunk",
        "bytes lost that were in doubt",
        "second cut",
    ]);
}

#[test]
fn no_sync_of_the_chunk_store_can_be_left_out() {
    let plans: Vec<CutPlan> = (0..60).map(|seed| plan(seed, 40, 5)).collect();
    // Has a test of its own: see `the_sync_of_a_turn_of_the_journal_cannot_be_left_out`.
    let unproved = ["chunk.journal-turn"];
    crate::common::prove_sites_but(&ChunkLayer, "chunk.", &plans, &unproved);
}

/// A raw chunk whose seal was interrupted while its footer was written.
fn half_sealed() -> SimDisk {
    let disk = SimDisk::new(1);
    let (store, _) = open(&disk, 1).unwrap();
    let spec = ChunkSpec::new(ChunkId(1), ChunkKind::Raw, 9);
    store.create(ChunkSpec { capacity_bytes: 64 << 10, ..spec }).unwrap();
    let body = noise(1, 5000);
    let sums = crcs(0, &body);
    store.append_raw(ChunkId(1), 0, Box::new(body), sums, Durability::Durable, Box::new(|_| ()));
    store.pump();
    // The file is cut to its data, then the footer is written.
    disk.crash_at(disk.operations() + 1);
    assert!(store.seal(ChunkId(1), 5000).is_err());
    disk
}

/// The footer's write was in flight when the process was killed: a restart found it in the page
/// cache and named the chunk sealed, without a sync. The power cut that followed took the footer
/// and left the name, and nothing said any more how long the chunk was.
#[test]
fn a_footer_that_a_killed_process_has_left_is_durable_before_the_chunk_is_named_sealed() {
    for seed in 0..40 {
        let disk = half_sealed().process_kill();
        open(&disk, 1).unwrap();
        let (store, found) = open(&disk.power_cut(seed), 1).unwrap();
        assert!(found.damaged.is_empty(), "cut {seed}: {:?}", found.damaged);
        assert_eq!(read_raw(&store, ChunkId(1), 0, 9000).unwrap(), noise(1, 5000));
    }
}

/// Of the footer's write, the front survived a power cut and the trailer did not. The footer was
/// taken as the seal's word, the trailer was missed at once, and the chunk reported as damaged.
#[test]
fn a_footer_without_its_trailer_finishes_the_seal() {
    let disk = half_sealed();
    let mut sealed = 0;
    for seed in 0..80 {
        let disk = disk.power_cut(seed);
        for _ in 0..2 {
            let (store, found) = open(&disk, 1).unwrap();
            assert!(found.damaged.is_empty(), "cut {seed}: {:?}", found.damaged);
            assert_eq!(read_raw(&store, ChunkId(1), 0, 9000).unwrap(), noise(1, 5000));
            sealed += (store.list()[0].state == ReplicaState::Sealed) as u32;
        }
    }
    assert!(sealed > 20 && sealed < 160, "{sealed}");
}

/// After a failed sync the kernel shows pages that the disk never got, and no later sync writes
/// them. A restart took such a commit (or footer) for the end of the chunk, a seal at that length
/// followed, and a power cut took the bytes that the log now counted on.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_durable_before_the_chunk_is_sealed() {
    let mut doubted = 0;
    for (seed, nth) in (0..10).flat_map(|seed| (1..9).map(move |nth| (seed, nth))) {
        let disk = crate::common::failing_disk(seed);
        let (store, _) = open(&disk, 1).unwrap();
        let spec = ChunkSpec::new(ChunkId(1), ChunkKind::Raw, 9);
        store.create(ChunkSpec { capacity_bytes: 64 << 10, ..spec }).unwrap();
        let body = noise(seed, 15_000);
        disk.fail_sync(nth);
        let mut acknowledged = 0;
        for at in [0, 5000, 10_000] {
            let piece = body[at as usize..at as usize + 5000].to_vec();
            let sums = crcs(at, &piece);
            let (answer, done) = Answer::new();
            let class = Durability::Durable;
            store.append_raw(ChunkId(1), at, Box::new(piece), sums, class, done);
            store.pump();
            if answer.get().is_err() {
                break;
            }
            acknowledged += 5000;
        }
        let _ = store.seal(ChunkId(1), store.length(ChunkId(1)).unwrap());
        let disk = disk.process_kill();
        let (store, _) = open(&disk, 1).unwrap();
        let length = store.length(ChunkId(1)).unwrap();
        doubted += (length > acknowledged) as u64;
        store.seal(ChunkId(1), length).unwrap();
        let (store, found) = open(&disk.power_cut_losing_all(), 1).unwrap();
        assert!(found.damaged.is_empty(), "seed {seed}, sync {nth}: {:?}", found.damaged);
        let kept = read_raw(&store, ChunkId(1), 0, length).unwrap();
        assert_eq!(kept, body[..length as usize], "seed {seed}, sync {nth}");
    }
    assert!(doubted > 5, "what the failed sync was for was found {doubted} times");
}

/// A store that ended in order, and whose power was cut right after; `without`: a sync left out.
fn ended_and_cut(without: Option<&str>, class: Durability) -> SimDisk {
    let disk = SimDisk::new(1);
    if let Some(site) = without {
        disk.disable_site(site);
    }
    let (store, _) = open(&disk, 1).unwrap();
    let spec = ChunkSpec::new(ChunkId(1), ChunkKind::Packed, 9);
    store.create(ChunkSpec { capacity_bytes: 64 << 10, ..spec }).unwrap();
    for number in [2, 7] {
        let body = noise(number, 900);
        let sums = crcs(0, &body);
        let body = Box::new(body);
        store.append_needle(ChunkId(1), needle(number), body, sums, class, Box::new(|_| ()));
        store.pump();
    }
    drop(store);
    disk.power_cut_losing_all()
}

/// The closing mark is worth what its syncs are: with each of them, an orderly end says what was
/// acknowledged, and a bit flipped later is damage. Without one of them it does not.
#[test]
fn no_sync_of_the_closing_mark_can_be_left_out() {
    let path = Path::new("/store/c0.1.g0.open");
    // The two commits are in the second and third sector.
    let flipped = |without: Option<&str>, class| {
        let disk = ended_and_cut(without, class);
        disk.flip_bit(path, 2 * 4096 + 300, 3).unwrap();
        let (_, found) = open(&disk, 1).unwrap();
        (found.damaged.len(), found.cut_tails.len(), found.chunks[0].length)
    };
    for class in [Durability::Durable, Durability::Memory] {
        assert_eq!(flipped(None, class), (1, 0, 2), "{class:?}");
        assert_ne!(flipped(Some("closing.mark-data"), class), (1, 0, 2), "{class:?}");
        assert_ne!(flipped(Some("closing.mark-name"), class), (1, 0, 2), "{class:?}");
    }
    // What was only written is durable once the store has ended in order.
    let kept = |without| open(&ended_and_cut(without, Durability::Memory), 1).unwrap().1;
    let found = kept(None);
    assert!(found.damaged.is_empty() && found.chunks[0].length == 2, "{found:?}");
    assert!(!found.chunks[0].damaged, "{found:?}");
    // The mark names commits that the disk never got.
    let found = kept(Some("closing.commits"));
    assert!(found.chunks[0].damaged, "{found:?}");
}

/// A store whose journal has used its first segment again when the power went; `without`: the sync
/// that is left out of that turn. All of chunk 2 lies in what the segment took since.
fn turned_and_cut(without: Option<&str>) -> SimDisk {
    let disk = SimDisk::new(1);
    let (store, _) = open(&disk, 1).unwrap();
    for chunk in [1, 2] {
        let spec = ChunkSpec::new(ChunkId(chunk), ChunkKind::Raw, 9);
        store.create(ChunkSpec { capacity_bytes: 1 << 20, ..spec }).unwrap();
    }
    let append = |chunk: u64, at: u64| {
        let body = noise(at, 3000);
        let sums = crcs(at, &body);
        let (answer, done) = Answer::<u64>::new();
        let class = Durability::Durable;
        store.append_raw(ChunkId(chunk), at, Box::new(body), sums, class, done);
        store.pump();
        answer.get().unwrap()
    };
    let mut end = 0;
    let turns = || disk.trace().iter().filter(|line| line.ends_with("chunk.journal-turn")).count();
    // Four segments, and the first one once more.
    while turns() < 5 {
        if turns() == 4
            && let Some(site) = without
        {
            disk.disable_site(site);
        }
        end = append(1, end);
    }
    // What is written back for the next turn is chunk 1's.
    assert_eq!(append(2, 0), 3000);
    disk.power_cut_losing_all()
}

/// The header of a segment that was used before tells what is new in it from what is old: the old
/// one, which a disk has of its own accord by then, hides what was acknowledged since. No drawn plan
/// shows that: where the sync is left out of every turn there is no old header, and a start goes by
/// the batches.
#[test]
fn the_sync_of_a_turn_of_the_journal_cannot_be_left_out() {
    let kept = |without| {
        let (store, _) = open(&turned_and_cut(without), 1).unwrap();
        store.length(ChunkId(2)).unwrap()
    };
    assert_eq!(kept(None), 3000);
    assert_eq!(kept(Some("chunk.journal-turn")), 0, "nothing is lost without it");
}
