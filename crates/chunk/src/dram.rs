//! A store in a memory region: chunks are runs of frames, their metadata lives beside them in the
//! server's memory, and both end with the process. Appends are acknowledged before they return;
//! a body can be received straight into its place. Raw byte `n` is at byte `n` of the run.

use crate::api::*;
use crate::compact::Digest;
use crate::disk::{check_append, not_held};
use crate::format::{BLOCK, PhysicalExtent};
use crate::index::RawIndex;
use crate::open::{Append, Pending};
use crate::read::{check_part, part_crc};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::ids::{ChunkId, Cookie, FileId, Generation, Pointer, Slot, Tier};
use holdfast_base::limits::CHUNK_SLOTS_MAX;
use holdfast_base::{Error, Result};
use holdfast_env::region::{FRAME_BYTES, Frames, Region, RegionMut};
use holdfast_env::sync::{Mutex, MutexGuard, RwLock};
use holdfast_env::{HoldMutex, HoldRwLock, planted};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// One generation of a chunk.
struct DramChunk {
    chunk: ChunkId,
    generation: Generation,
    kind: ChunkKind,
    owner: u64,
    frames: Frames,
    /// Acknowledged state. Held for list work and for the copy of one object's metadata.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    raw: RawIndex,
    slots: Vec<Option<Object>>,
    /// All checksums of objects that have more than one, by slot.
    crcs: BTreeMap<u32, Box<[u32]>>,
    fenced: bool,
    sealed: bool,
}

/// What is kept of an object, of which there are millions. Without its hint: names need not be
/// rebuilt from what ends with the process.
#[derive(Clone, Copy)]
struct Object {
    owner: FileId,
    /// In the run.
    start: u64,
    bytes: u32,
    cookie: Cookie,
    /// The only one, unless it is `long`.
    crc: u32,
    flags: u8,
    long: bool,
}

const _: () = assert!(size_of::<Option<Object>>() == 32);

struct Held {
    current: Arc<DramChunk>,
    others: Vec<Arc<DramChunk>>,
}

pub struct DramStore {
    pub region: Arc<Region>,
    /// What is there. Held to look up and to swap.
    chunks: RwLock<BTreeMap<ChunkId, Held>>,
}

impl DramChunk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    fn info(&self) -> ChunkInfo {
        let state = self.state();
        ChunkInfo {
            chunk: self.chunk,
            generation: self.generation,
            kind: self.kind,
            owner: self.owner,
            state: match (state.sealed, state.fenced) {
                (true, _) => ReplicaState::Sealed,
                (_, true) => ReplicaState::Fenced,
                _ => ReplicaState::Open,
            },
            length: self.length(&state),
            needles: state.slots.iter().flatten().count() as u64,
            stored_bytes: self.frames.capacity_bytes(),
            damaged: false,
        }
    }

    fn length(&self, state: &State) -> u64 {
        match self.kind {
            ChunkKind::Raw => state.raw.length,
            ChunkKind::Packed => state.slots.len() as u64,
        }
    }

    fn expect_kind(&self, kind: ChunkKind) -> Result<()> {
        if self.kind == kind {
            return Ok(());
        }
        Err(Error::invalid(format!("use chunk `{}`: it is of the other kind", self.chunk)))
    }

    fn takes_appends(&self, state: &State) -> Result<()> {
        if !state.fenced {
            return Ok(());
        }
        let chunk = self.chunk;
        Err(Error::fenced(format!("append to chunk `{chunk}`: it takes no more; use a new chunk")))
    }

    fn full(&self) -> Error {
        let chunk = self.chunk;
        Error::full(format!("append to chunk `{chunk}`: it does not fit; go on in a new chunk"))
    }

    fn add_needle(
        &self,
        needle: Needle,
        expected: Option<Slot>,
        body: &[u8],
        crcs: Vec<u32>,
    ) -> Result<Slot> {
        self.expect_kind(ChunkKind::Packed)?;
        let mut window = {
            self.takes_appends(&self.state())?;
            self.frames.reserve(body.len()).ok_or_else(|| self.full())?
        };
        window.copy_from_slice(body);
        let mut state = self.state();
        // Fenced while the bytes were copied: nobody was told of them.
        self.takes_appends(&state)?;
        if state.slots.len() as u32 >= CHUNK_SLOTS_MAX {
            return Err(self.full());
        }
        let slot = Slot(state.slots.len() as u32);
        if let Some(expected) = expected.filter(|expected| *expected != slot) {
            let chunk = self.chunk;
            return Err(Error::invalid(format!(
                "append to chunk `{chunk}`: asked for slot {expected}, its next one is {slot}"
            )));
        }
        // Objects that were begun earlier may settle later; a frozen window reads all the same.
        state.add(&needle, window, crcs);
        Ok(slot)
    }

    /// An object as its reader gets it, not verified.
    fn found(&self, state: &State, slot: Slot, object: Object) -> Option<NeedleRead> {
        let Object { owner, start, bytes, cookie, crc, flags, long } = object;
        let bytes = Bytes::Region(self.frames.slice(start, bytes as usize)?);
        let crcs = if long { state.crcs.get(&slot.0)?.to_vec() } else { vec![crc] };
        let needle = Needle { owner, cookie, flags, hint: Vec::new() };
        Some(NeedleRead { needle, bytes, crcs })
    }
}

impl State {
    /// Gives the next slot to the object in `window`.
    fn add(&mut self, needle: &Needle, window: RegionMut, crcs: Vec<u32>) {
        let (start, bytes) = (window.start(), window.len() as u32);
        let Needle { owner, cookie, flags, .. } = *needle;
        let (crc, long) = (crcs.first().copied().unwrap_or(0), crcs.len() > 1);
        drop(window.freeze());
        if long {
            self.crcs.insert(self.slots.len() as u32, crcs.into());
        }
        self.slots.push(Some(Object { owner, start, bytes, cookie, crc, flags, long }));
    }
}

impl DramStore {
    pub fn new(region: Arc<Region>) -> DramStore {
        DramStore { region, chunks: RwLock::default() }
    }

    fn current(&self, chunk: ChunkId) -> Result<Arc<DramChunk>> {
        let chunks = self.chunks.held_shared();
        chunks.get(&chunk).map(|held| held.current.clone()).ok_or_else(|| not_held(chunk))
    }

    fn version(&self, chunk: ChunkId, generation: Generation) -> Result<Arc<DramChunk>> {
        let chunks = self.chunks.held_shared();
        let held = chunks.get(&chunk).ok_or_else(|| not_held(chunk))?;
        let mut all = held.others.iter().chain([&held.current]);
        all.find(|c| c.generation == generation).cloned().ok_or_else(|| {
            Error::not_found(format!("read chunk `{chunk}`: no generation `{generation}` here"))
        })
    }

    pub fn create(&self, spec: ChunkSpec) -> Result<()> {
        let mut chunks = self.chunks.held_alone();
        let chunk = spec.chunk;
        if chunks.contains_key(&chunk) {
            return Err(Error::exists(format!("create chunk `{chunk}`: this store holds it")));
        }
        let frames = self.region.allocate(spec.capacity_bytes.div_ceil(FRAME_BYTES).max(1));
        let frames = frames.ok_or_else(|| {
            Error::full(format!(
                "create chunk `{chunk}`: no run of {} bytes is free in the memory region; use a \
                 larger one, or tier `disk`",
                spec.capacity_bytes
            ))
        })?;
        let made = DramChunk {
            chunk,
            generation: Generation(0),
            kind: spec.kind,
            owner: spec.owner,
            frames,
            state: Mutex::default(),
        };
        chunks.insert(chunk, Held { current: Arc::new(made), others: Vec::new() });
        Ok(())
    }

    pub fn append(&self, chunk: ChunkId, item: Pending) {
        let checked = check_append(&item).and_then(|()| self.current(chunk));
        let held = match checked {
            Ok(held) => held,
            Err(e) => return item.fail(e.context(format_args!("append to chunk `{chunk}`"))),
        };
        let Pending { append, body, crcs, .. } = item;
        let body = (*body).as_ref();
        match append {
            Append::Raw { at, done } => {
                let reserved = self.reserve_raw(chunk, at, body.len());
                done(reserved.and_then(|mut window| {
                    window.copy_from_slice(body);
                    self.commit_raw(chunk, window, &crcs)
                }));
            }
            Append::Needle { needle, expected, done } => {
                done(held.add_needle(needle, expected, body, crcs));
            }
        }
    }

    /// A window for the append of `bytes` at byte `at`. Dropped, it leaves no trace.
    pub fn reserve_raw(&self, chunk: ChunkId, at: u64, bytes: usize) -> Result<RegionMut> {
        let held = self.current(chunk)?;
        held.expect_kind(ChunkKind::Raw)?;
        let state = held.state();
        held.takes_appends(&state)?;
        let end = held.frames.reserved_bytes();
        if at != end || bytes == 0 {
            return Err(Error::invalid(format!(
                "append {bytes} bytes to chunk `{chunk}` at byte {at}: its end is at {end}"
            )));
        }
        held.frames.reserve(bytes).ok_or_else(|| held.full())
    }

    /// Acknowledges a reservation whose bytes are in place. The checksums are the client's and
    /// not checked again here: whoever reads whole blocks checks them.
    pub fn commit_raw(&self, chunk: ChunkId, window: RegionMut, crcs: &[u32]) -> Result<u64> {
        let chunk = self.current(chunk)?;
        if !chunk.frames.owns(&window) {
            // Deleted and made anew while the body was on its way.
            let chunk = chunk.chunk;
            return Err(Error::fenced(format!("append to chunk `{chunk}`: it is another by now")));
        }
        let at = window.start();
        let bytes = window.len() as u64;
        if crcs.len() as u64 != crate::format::piece_count(at % BLOCK, bytes) {
            let what = format!("{} checksums do not fit {bytes} bytes at {at}", crcs.len());
            return Err(Error::invalid(what).context(format_args!("append to `{}`", chunk.chunk)));
        }
        let mut state = chunk.state();
        if !planted!("chunk.memory-takes-appends-behind-a-fence") {
            chunk.takes_appends(&state)?;
        }
        if state.raw.length != at {
            // An earlier reservation was given up: its hole can never be filled.
            state.fenced = true;
            return chunk.takes_appends(&state).map(|()| 0);
        }
        // Before the length grows: readers slice settled bytes only.
        drop(window.freeze());
        state.raw.append(PhysicalExtent { logical: at, physical: at, bytes }, crcs);
        Ok(state.raw.length)
    }

    pub fn read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
        all: bool,
    ) -> Result<RawRead> {
        let held = self.version(chunk, generation)?;
        held.expect_kind(ChunkKind::Raw)?;
        let (length, first, blocks) = {
            let state = held.state();
            let length = state.raw.length;
            let end = offset.saturating_add(bytes).min(length);
            let first = offset.min(end) / BLOCK;
            let last = if offset < end { end.div_ceil(BLOCK) } else { first };
            (length, first, state.raw.blocks[first as usize..last as usize].to_vec())
        };
        let end = offset.saturating_add(bytes).min(length);
        let start = offset.min(end);
        let slice = |from: u64, to: u64| {
            held.frames
                .slice(from, (to - from) as usize)
                .ok_or_else(|| Error::bug(format!("read chunk `{chunk}`: unsettled bytes")))
        };
        let mut crcs = Vec::with_capacity(blocks.len());
        for (i, stored) in blocks.into_iter().enumerate() {
            let number = first + i as u64;
            let (from, to) = (number * BLOCK, ((number + 1) * BLOCK).min(length));
            let (wanted_from, wanted_to) = (from.max(start), to.min(end));
            let whole = (from, to) == (wanted_from, wanted_to);
            if (all || !whole) && crc32c(&slice(from, to)?) != stored {
                return Err(Error::corrupt(format!(
                    "read chunk `{chunk}`: block {number} fails its checksum; it is not served"
                )));
            }
            let plain = if whole { stored } else { crc32c(&slice(wanted_from, wanted_to)?) };
            crcs.push(plain ^ stamp(chunk, generation, number));
        }
        Ok(RawRead { generation, bytes: Bytes::Region(slice(start, end)?), crcs })
    }

    pub fn read_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        verified(self.find_needle(pointer)?, pointer)
    }

    /// Not verified: the checksums are in the answer.
    pub fn find_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        let held = self.current(pointer.chunk).map_err(|_| no_such_object(pointer))?;
        let state = held.state();
        let object = state.slots.get(pointer.slot.0 as usize).copied().flatten();
        let object = object.filter(|object| object.cookie == pointer.cookie);
        let found = object.and_then(|object| held.found(&state, pointer.slot, object));
        found.ok_or_else(|| no_such_object(pointer))
    }

    pub fn read_needle_part(
        &self,
        pointer: Pointer,
        wanted: Range<u64>,
    ) -> Result<(Bytes, Vec<u32>)> {
        let NeedleRead { bytes: Bytes::Region(bytes), crcs, .. } = self.find_needle(pointer)?
        else {
            return Err(Error::bug("read an object in memory: it is elsewhere"));
        };
        check_part(pointer, &wanted, bytes.len() as u64)?;
        let first = (wanted.start / BLOCK) as usize;
        let mut part_crcs = Vec::new();
        let blocks = bytes.chunks(BLOCK as usize).zip(&crcs).enumerate().skip(first);
        for (block, (piece, &crc)) in blocks.take_while(|(b, _)| (*b as u64 * BLOCK) < wanted.end) {
            if crc32c(piece) != crc {
                return Err(Error::corrupt(format!(
                    "read object `{pointer}`: it fails its checksum in memory; it is not served"
                )));
            }
            part_crcs.push(part_crc(piece, block as u64, &wanted));
        }
        let part = bytes.slice(wanted.start as usize..wanted.end as usize);
        Ok((Bytes::Region(part), part_crcs))
    }

    pub fn locate(&self, chunk: ChunkId, offset: u64, bytes: u64) -> Result<Vec<Location>> {
        let held = self.current(chunk)?;
        held.expect_kind(ChunkKind::Raw)?;
        let end = offset.saturating_add(bytes).min(held.state().raw.length);
        let first_frame = held.frames.frames().start;
        let mut located = Vec::new();
        let mut at = offset;
        while at < end {
            let next = ((at / FRAME_BYTES + 1) * FRAME_BYTES).min(end);
            let frame_generation = self.region.frame_generation(first_frame + at / FRAME_BYTES);
            let region_offset = held.frames.region_offset() + at;
            located.push(Location { region_offset, bytes: next - at, frame_generation });
            at = next;
        }
        Ok(located)
    }

    pub fn length(&self, chunk: ChunkId) -> Result<u64> {
        let held = self.current(chunk)?;
        let state = held.state();
        Ok(held.length(&state))
    }

    pub fn room(&self, chunk: ChunkId) -> Result<u64> {
        let held = self.current(chunk)?;
        let fenced = held.state().fenced;
        let left = held.frames.capacity_bytes() - held.frames.reserved_bytes();
        Ok(if fenced { 0 } else { left })
    }

    pub fn fence(&self, chunk: ChunkId) -> Result<u64> {
        let held = self.current(chunk)?;
        let mut state = held.state();
        state.fenced = true;
        Ok(held.length(&state))
    }

    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<()> {
        let held = self.current(chunk)?;
        let mut state = held.state();
        let has = held.length(&state);
        if state.sealed {
            return crate::seal::same_length(chunk, has, length);
        }
        if length > has {
            return Err(Error::invalid(format!(
                "seal chunk `{chunk}` at {length}: this store has {has} of it"
            )));
        }
        state.fenced = true;
        match held.kind {
            ChunkKind::Packed => {
                state.slots.truncate(length as usize);
                state.crcs.split_off(&(length as u32));
            }
            ChunkKind::Raw => {
                let start = length / BLOCK * BLOCK;
                let rest = held.frames.slice(start, (length - start) as usize);
                let last = rest.filter(|rest| !rest.is_empty()).map(|rest| crc32c(&rest));
                state.raw.clip(length, last);
            }
        }
        state.sealed = true;
        held.frames.truncate(held.frames.reserved_bytes().div_ceil(FRAME_BYTES));
        Ok(())
    }

    pub fn compact(
        &self,
        chunk: ChunkId,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
    ) -> Result<CompactionDigest> {
        let doing = || format!("compact chunk `{chunk}` into generation `{next}`");
        let source = self.current(chunk)?;
        source.expect_kind(ChunkKind::Packed)?;
        let (objects, sealed) = {
            let state = source.state();
            let keep = |(slot, object): (usize, &Option<Object>)| {
                let slot = Slot(slot as u32);
                let object = object.filter(|_| live(slot))?;
                source.found(&state, slot, object)
            };
            (state.slots.iter().enumerate().map(keep).collect::<Vec<_>>(), state.sealed)
        };
        if !sealed || next <= source.generation || self.version(chunk, next).is_ok() {
            let what = "it must be sealed, and the generation new";
            return Err(Error::invalid(what).context(doing()));
        }
        let bytes: u64 = objects.iter().flatten().map(|read| read.bytes.len() as u64).sum();
        let frames = self.region.allocate(bytes.div_ceil(FRAME_BYTES).max(1));
        let frames = frames.ok_or_else(|| Error::full("no frames are free").context(doing()))?;
        let mut digest = Digest::default();
        let mut state = State { fenced: true, sealed: true, ..State::default() };
        let mut needles = 0;
        for (slot, read) in objects.into_iter().enumerate() {
            let Some(read) = read else {
                state.slots.push(None);
                continue;
            };
            let slot = Slot(slot as u32);
            let pointer = Pointer { chunk, slot, cookie: read.needle.cookie };
            let read = verified(read, pointer)?;
            digest.add_needle(slot, &read);
            let window = frames.reserve(read.bytes.len());
            let mut window = window.ok_or_else(|| Error::bug("the sum was wrong"))?;
            window.copy_from_slice(read.bytes.as_slice());
            state.add(&read.needle, window, read.crcs);
            needles += 1;
        }
        let (kind, owner) = (source.kind, source.owner);
        let state = Mutex::new(state);
        let made = DramChunk { chunk, generation: next, kind, owner, frames, state };
        let mut chunks = self.chunks.held_alone();
        let held = chunks.get_mut(&chunk).ok_or_else(|| not_held(chunk))?;
        held.others.push(Arc::new(made));
        let (stored_bytes, digest) = (bytes, digest.0);
        Ok(CompactionDigest { chunk, generation: next, needles, stored_bytes, digest })
    }

    pub fn switch(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        let mut chunks = self.chunks.held_alone();
        let held = chunks.get_mut(&chunk).ok_or_else(|| not_held(chunk))?;
        if held.current.generation == generation {
            return Ok(());
        }
        let newer = generation > held.current.generation;
        let next = held.others.iter_mut().find(|c| newer && c.generation == generation);
        let next = next.ok_or_else(|| {
            Error::not_found(format!(
                "switch chunk `{chunk}` to generation `{generation}`: compact it first"
            ))
        })?;
        std::mem::swap(next, &mut held.current);
        Ok(())
    }

    pub fn other_generations(&self, chunk: ChunkId) -> Vec<Generation> {
        let chunks = self.chunks.held_shared();
        let others = chunks.get(&chunk).map_or(&[][..], |held| &held.others);
        match planted!("chunk.memory-has-one-generation") {
            false => others.iter().map(|other| other.generation).collect(),
            true => Vec::new(),
        }
    }

    pub fn unlink(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        let doing = || format!("unlink chunk `{chunk}` generation `{generation}`");
        let mut chunks = self.chunks.held_alone();
        let held = chunks.get_mut(&chunk).ok_or_else(|| not_held(chunk))?;
        let gone = if held.current.generation != generation {
            let at = held.others.iter().position(|c| c.generation == generation);
            at.map(|at| held.others.remove(at))
        } else if held.others.is_empty() {
            chunks.remove(&chunk).map(|held| held.current)
        } else {
            let what = "it is current and others are there; unlink those first";
            return Err(Error::invalid(what).context(doing()));
        };
        let gone = gone.ok_or_else(|| Error::not_found("it is not here").context(doing()))?;
        gone.state().fenced = true;
        // Readers may keep the frames for a while; mapped clients learn of the end now.
        gone.frames.frames().for_each(|frame| self.region.bump(frame));
        Ok(())
    }

    pub fn list_from(&self, first: ChunkId, max: usize) -> Vec<ChunkInfo> {
        let chunks = self.chunks.held_shared();
        chunks.range(first..).take(max).map(|(_, held)| held.current.info()).collect()
    }

    pub fn usage(&self) -> Usage {
        let capacity_bytes = self.region.frames() * FRAME_BYTES;
        let free_bytes = self.region.frames_free() * FRAME_BYTES;
        Usage {
            store: self.region.store(),
            tier: Tier::Dram,
            used_bytes: capacity_bytes - free_bytes,
            free_bytes,
            free_files: u64::MAX,
            capacity_bytes,
            reserve_bytes: 0,
            chunks: self.chunks.held_shared().len() as u64,
            read_only: false,
        }
    }
}

fn verified(read: NeedleRead, pointer: Pointer) -> Result<NeedleRead> {
    let mut pieces = read.bytes.as_slice().chunks(BLOCK as usize).zip(&read.crcs);
    if !pieces.all(|(piece, &crc)| crc32c(piece) == crc) {
        return Err(Error::corrupt(format!(
            "read object `{pointer}`: it fails its checksum in memory; it is not served"
        )));
    }
    Ok(read)
}
