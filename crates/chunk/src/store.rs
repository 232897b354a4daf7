//! The store's face: one directory or one region, and the threads that serve it.

use crate::api::*;
use crate::commit;
use crate::disk::DiskStore;
use crate::dram::DramStore;
use crate::open::{Append, Pending};
use crate::transfer::{Exported, Import};
use crate::{journal, load, proven, spare, writeback};
use holdfast_base::ids::{ChunkId, Durability, Generation, Pointer, Slot, StoreId};
use holdfast_base::{Error, Result};
use holdfast_env::region::{Region, RegionMut};
use holdfast_env::sync::Mutex;
use holdfast_env::tasks::{self, Task};
use holdfast_env::{Disk, HoldMutex, Rng};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One directory or one memory region full of chunks. Cheap to clone; every call may come from
/// any thread. Calls that end in a callback do not block; all others may wait for the disk.
#[derive(Clone)]
pub struct Store {
    owner: Arc<Owner>,
}

#[allow(clippy::large_enum_variant, reason = "locks that take turns in an order drawn are larger")]
enum Tiered {
    Disk(Arc<DiskStore>),
    Dram(DramStore),
}

/// Calls the same method of either tier.
macro_rules! either {
    ($self:ident . $method:ident ( $($arg:expr),* )) => {
        match &$self.owner.tier {
            Tiered::Disk(store) => store.$method($($arg),*),
            Tiered::Dram(store) => store.$method($($arg),*),
        }
    };
}

/// Ends the threads when the last handle is dropped; commits that wait are written first.
struct Owner {
    tier: Tiered,
    /// Taken at the end, by whoever drops the last handle.
    threads: Mutex<Vec<Task>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let Tiered::Disk(disk) = &self.tier else { return };
        disk.journal.stop();
        if disk.inline {
            disk.queue.stop();
        }
        if commit::on_commit_thread() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.held());
        threads.into_iter().for_each(Task::join);
        proven::close(disk);
    }
}

impl Store {
    /// Opens the store in `config.dir`, or makes one there, and recovers what it held.
    pub fn open(
        disk: Arc<dyn Disk>,
        rng: Arc<dyn Rng>,
        config: StoreConfig,
    ) -> Result<(Store, Recovered)> {
        let count = config.commit_threads;
        let (store, recovered) = load::open(disk, rng, config)?;
        let store = Arc::new(store);
        let mut threads = Vec::new();
        for i in 0..count {
            let store = store.clone();
            threads.push(tasks::spawn(&format!("commit-{i}"), move || commit::run(&store))?);
        }
        if count > 0 {
            let (store, later) = (store.clone(), store.clone());
            threads.push(tasks::spawn("chunk-journal", move || journal::run(&store))?);
            threads.push(tasks::spawn("write-back", move || writeback::run(&later))?);
        }
        if store.spares.is_some() {
            let store = store.clone();
            store.queue.wake_spare();
            threads.push(tasks::spawn("chunk-spare", move || spare::run(&store))?);
        }
        let owner = Owner { tier: Tiered::Disk(store), threads: Mutex::new(threads) };
        Ok((Store { owner: Arc::new(owner) }, recovered))
    }

    /// Which store `dir` holds; nothing where [`Store::open`] would make one. Only looks.
    pub fn id_in(disk: &dyn Disk, dir: &Path) -> Result<Option<StoreId>> {
        let made = load::made(disk, dir);
        let made = made.map_err(|e| e.context(format_args!("open store `{}`", dir.display())))?;
        Ok(made.map(|(_, id)| id))
    }

    /// Whether `dir` holds chunks. Only looks.
    pub fn has_chunks(disk: &dyn Disk, dir: &Path) -> Result<bool> {
        let has = load::has_chunks(disk, dir);
        has.map_err(|e| e.context(format_args!("look for chunks in `{}`", dir.display())))
    }

    /// A store in memory; it begins empty and ends with the process.
    pub fn in_region(region: Arc<Region>) -> Store {
        let tier = Tiered::Dram(DramStore::new(region));
        Store { owner: Arc::new(Owner { tier, threads: Mutex::default() }) }
    }

    pub fn id(&self) -> StoreId {
        match &self.owner.tier {
            Tiered::Disk(store) => store.id,
            Tiered::Dram(store) => store.region.store(),
        }
    }

    /// Makes an empty chunk, durably.
    pub fn create(&self, spec: ChunkSpec) -> Result<()> {
        self.create_with_hint(spec, &[])
    }

    /// As [`Store::create`]; the hint, at most [`crate::NEEDLE_HINT_BYTES_MAX`] bytes, helps to
    /// find a name for the chunk's bytes from its file alone. Memory keeps none.
    pub fn create_with_hint(&self, spec: ChunkSpec, hint: &[u8]) -> Result<()> {
        match &self.owner.tier {
            Tiered::Disk(store) => store.create(spec, hint),
            Tiered::Dram(store) => store.create(spec),
        }
    }

    /// The hint that a chunk was made with; empty for none.
    pub fn hint(&self, chunk: ChunkId) -> Result<Vec<u8>> {
        self.on_disk("read a chunk's hint")?.hint(chunk)
    }

    /// Appends `body` at byte `at`, which must be the end of what was appended before.
    /// `crcs`: crc32c of each part of the body between 64 KiB boundaries of the chunk; they are
    /// checked. Answers the acknowledged length.
    pub fn append_raw(
        &self,
        chunk: ChunkId,
        at: u64,
        body: Body,
        crcs: Vec<u32>,
        durability: Durability,
        done: Done<u64>,
    ) {
        let append = Append::Raw { at, done };
        either!(self.append(chunk, Pending { append, body, crcs, durability }));
    }

    /// Appends an object; `crcs`: crc32c of each 64 KiB of it (one for an empty object); they
    /// are checked. Answers its slot.
    pub fn append_needle(
        &self,
        chunk: ChunkId,
        needle: Needle,
        body: Body,
        crcs: Vec<u32>,
        durability: Durability,
        done: SlotDone,
    ) {
        let append = Append::Needle { needle, expected: None, done };
        either!(self.append(chunk, Pending { append, body, crcs, durability }));
    }

    /// Appends objects in order, in one commit as far as it takes them: one sync for all. Each is
    /// answered for itself.
    pub fn append_needles(&self, chunk: ChunkId, objects: Vec<NewNeedle>, durability: Durability) {
        let pending = |new: NewNeedle| {
            let NewNeedle { needle, body, crcs, done } = new;
            let append = Append::Needle { needle, expected: None, done };
            Pending { append, body, crcs, durability }
        };
        let items = objects.into_iter().map(pending);
        match &self.owner.tier {
            Tiered::Disk(store) => store.append_together(chunk, items.collect()),
            Tiered::Dram(store) => items.for_each(|item| store.append(chunk, item)),
        }
    }

    /// As [`Store::append_needle`], refused before it is written when `slot` is not the next one:
    /// replicas of a chunk agree on their slots by construction.
    #[expect(clippy::too_many_arguments, reason = "an append and where it belongs")]
    pub fn append_needle_at(
        &self,
        chunk: ChunkId,
        slot: Slot,
        needle: Needle,
        body: Body,
        crcs: Vec<u32>,
        durability: Durability,
        done: SlotDone,
    ) {
        let append = Append::Needle { needle, expected: Some(slot), done };
        either!(self.append(chunk, Pending { append, body, crcs, durability }));
    }

    /// Reads acknowledged bytes; a range that reaches past them is cut there.
    pub fn read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Result<RawRead> {
        either!(self.read_raw(chunk, generation, offset, bytes, false))
    }

    /// Reads one object of the current generation, verified.
    pub fn read_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        either!(self.read_needle(pointer))
    }

    /// The object in a slot, whatever its cookie, verified; `None` if there is none. To find names
    /// again: who has a pointer uses [`Store::read_needle`].
    pub fn read_slot(&self, chunk: ChunkId, slot: Slot) -> Result<Option<NeedleRead>> {
        self.on_disk("read a slot")?.read_slot(chunk, slot)
    }

    /// Bytes `wanted` of an object: only the 64 KiB blocks that they touch are read and verified.
    /// With the plain checksums of the pieces that block borders cut them into.
    pub fn read_needle_part(
        &self,
        pointer: Pointer,
        wanted: Range<u64>,
    ) -> Result<(Bytes, Vec<u32>)> {
        either!(self.read_needle_part(pointer, wanted))
    }

    /// As [`Store::read_needle`] when that needs no disk, but not verified: whoever uses the bytes
    /// checks them against the checksums that come along. `None`: ask a thread that may wait.
    pub fn try_read_needle(&self, pointer: Pointer) -> Option<Result<NeedleRead>> {
        match &self.owner.tier {
            Tiered::Disk(_) => None,
            Tiered::Dram(store) => Some(store.find_needle(pointer)),
        }
    }

    /// As [`Store::read_raw`] when that needs no disk; `None`: ask a thread that may wait.
    pub fn try_read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Option<Result<RawRead>> {
        match &self.owner.tier {
            Tiered::Disk(_) => None,
            Tiered::Dram(store) => Some(store.read_raw(chunk, generation, offset, bytes, false)),
        }
    }

    /// A place in memory for the append of `bytes` at byte `at`, to receive its body into.
    /// `None`: this store has no such places; use [`Store::append_raw`].
    pub fn reserve_raw(&self, chunk: ChunkId, at: u64, bytes: usize) -> Option<Result<RegionMut>> {
        match &self.owner.tier {
            Tiered::Disk(_) => None,
            Tiered::Dram(store) => Some(store.reserve_raw(chunk, at, bytes)),
        }
    }

    /// Acknowledges a window whose bytes are in place; windows of a chunk are committed
    /// in the order they were made. `crcs` as in [`Store::append_raw`], not checked here.
    pub fn commit_raw(&self, chunk: ChunkId, window: RegionMut, crcs: &[u32]) -> Result<u64> {
        match &self.owner.tier {
            Tiered::Disk(_) => Err(Error::bug("commit a reservation to a store on disk")),
            Tiered::Dram(store) => store.commit_raw(chunk, window, crcs),
        }
    }

    /// Where acknowledged bytes of a raw chunk are, for clients that map the region; empty for
    /// stores on disk.
    pub fn locate(&self, chunk: ChunkId, offset: u64, bytes: u64) -> Result<Vec<Location>> {
        match &self.owner.tier {
            Tiered::Disk(_) => Ok(Vec::new()),
            Tiered::Dram(store) => store.locate(chunk, offset, bytes),
        }
    }

    /// Acknowledged length (raw: bytes, packed: next slot).
    pub fn length(&self, chunk: ChunkId) -> Result<u64> {
        either!(self.length(chunk))
    }

    /// Bytes that the open chunk can still take in one append; 0 when it takes none.
    pub fn room(&self, chunk: ChunkId) -> Result<u64> {
        either!(self.room(chunk))
    }

    /// Ends appends for good, across restarts, and answers the verified length.
    pub fn fence(&self, chunk: ChunkId) -> Result<u64> {
        either!(self.fence(chunk))
    }

    /// Fixes the length (raw: bytes, packed: slots), which must not exceed the verified one. The
    /// first seal decides. What is beyond stays in the file, unread.
    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<()> {
        either!(self.seal(chunk, length))
    }

    /// Computes generation `next` of a sealed packed chunk from the slots for which `live` says
    /// yes. The current generation goes on serving.
    pub fn compact(
        &self,
        chunk: ChunkId,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
    ) -> Result<CompactionDigest> {
        either!(self.compact(chunk, live, next))
    }

    /// What [`Store::compact`] answers of a generation that is here, current or not: of a copy, or
    /// of one that was computed by an earlier process, all is read for it. `Corrupt` if that fails
    /// to verify.
    pub fn digest(&self, chunk: ChunkId, generation: Generation) -> Result<u64> {
        self.on_disk("compare a chunk")?.digest(chunk, generation)
    }

    /// Makes `generation`, computed before, the one that is read.
    pub fn switch(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        either!(self.switch(chunk, generation))
    }

    /// Removes a generation that is not current, or, when it is the last, the chunk. Readers that
    /// have begun go on.
    pub fn unlink(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        either!(self.unlink(chunk, generation))
    }

    /// Takes what is here of a chunk and does not count (any more) out of the store: let go while
    /// nobody could carry it out, short, or damaged. The file stays in `quarantine` until that time;
    /// a copy can take its place at once. Answers where it is kept.
    pub fn set_aside(
        &self,
        chunk: ChunkId,
        generation: Generation,
        until_unix_s: u64,
    ) -> Result<PathBuf> {
        self.on_disk("set a chunk aside")?.set_aside(chunk, generation, until_unix_s)
    }

    /// Removes what was set aside until this time or an earlier one.
    pub fn empty_quarantine(&self, now_unix_s: u64) -> Result<()> {
        match &self.owner.tier {
            Tiered::Disk(store) => store.empty_quarantine(now_unix_s),
            Tiered::Dram(_) => Ok(()),
        }
    }

    /// A chunk, if this store holds it.
    pub fn info(&self, chunk: ChunkId) -> Option<ChunkInfo> {
        self.list_from(chunk, 1).pop().filter(|info| info.chunk == chunk)
    }

    /// Generations of a chunk beside the current one.
    pub fn other_generations(&self, chunk: ChunkId) -> Vec<Generation> {
        match &self.owner.tier {
            Tiered::Disk(store) => store.other_generations(chunk),
            Tiered::Dram(store) => store.other_generations(chunk),
        }
    }

    /// Bytes of the file that holds a sealed generation, from `offset` on and at most `bytes`, for
    /// a copy on another store.
    pub fn export(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Result<Exported> {
        self.on_disk("export a chunk")?.export(chunk, generation, offset, bytes)
    }

    /// Takes up a sealed generation of `bytes_total` file bytes from store `source`, or goes on
    /// where an earlier import of it from there was when it ended. `Exists` if all of it is here and verifies,
    /// `Corrupt` if what is here is in the way ([`Store::set_aside`]).
    pub fn import(
        &self,
        chunk: ChunkId,
        generation: Generation,
        bytes_total: u64,
        source: StoreId,
    ) -> Result<Import> {
        Import::begin(self.on_disk("import a chunk")?, chunk, generation, bytes_total, source)
    }

    /// Removes what an unfinished import has left; nothing if there is none.
    pub fn discard_import(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        self.on_disk("discard an import")?.discard_import(chunk, generation)
    }

    fn on_disk(&self, doing: &str) -> Result<&Arc<DiskStore>> {
        match &self.owner.tier {
            Tiered::Disk(store) => Ok(store),
            Tiered::Dram(store) => Err(Error::unsupported(format!(
                "{doing}: store `{}` is memory, whose chunks live and end with its process; \
                 use a store on disk",
                store.region.store()
            ))),
        }
    }

    /// Current generations, by chunk.
    pub fn list(&self) -> Vec<ChunkInfo> {
        self.list_from(ChunkId(0), usize::MAX)
    }

    /// Some of [`Store::list`]: up to `max` of them, from the first one that is not below `first`.
    pub fn list_from(&self, first: ChunkId, max: usize) -> Vec<ChunkInfo> {
        either!(self.list_from(first, max))
    }

    pub fn usage(&self) -> Usage {
        either!(self.usage())
    }

    /// Stops writing, until it is opened again, where its directory is not its own any more.
    pub fn check_place(&self) {
        if let Some(store) = self.disk() {
            store.check_place();
        }
    }

    /// What the disk below it has read and written, for everybody; `None` where nobody counts.
    pub fn device_bytes(&self) -> Option<u64> {
        let store = self.disk()?;
        store.disk.device_bytes(&store.dir)
    }

    /// Writes pending commits here and now, first come first served; for stores without threads.
    pub fn pump(&self) {
        let Tiered::Disk(store) = &self.owner.tier else { return };
        // Callbacks may bring more.
        while journal::commit(store) | commit::commit_queued(store) | writeback::step(store) {}
    }

    /// What the scrubber reads; memory is checked by its readers alone.
    pub(crate) fn disk(&self) -> Option<&DiskStore> {
        match &self.owner.tier {
            Tiered::Disk(store) => Some(store),
            Tiered::Dram(_) => None,
        }
    }
}
