//! The store's face: one directory or one region, and the threads that serve it.

use crate::api::*;
use crate::commit;
use crate::disk::DiskStore;
use crate::open::{Append, Pending};
use crate::{load, spare};
use holdfast_base::ids::{ChunkId, Durability, Generation, Pointer, Slot, StoreId};
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::region::{Region, RegionMut};
use holdfast_env::tasks::{self, Task};
use holdfast_env::{Disk, Rng};
use std::sync::{Arc, Mutex};

/// One directory or one memory region full of chunks. Cheap to clone; every call may come from
/// any thread. Calls that end in a callback do not block; all others may wait for the disk.
#[derive(Clone)]
pub struct Store {
    owner: Arc<Owner>,
}

/// Ends the threads when the last handle is dropped; commits that wait are written first.
struct Owner {
    disk: Arc<DiskStore>,
    /// Taken at the end, by whoever drops the last handle.
    threads: Mutex<Vec<Task>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.disk.queue.stop();
        if commit::on_commit_thread() {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock().expect("no holder panics"));
        threads.into_iter().for_each(Task::join);
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
        if store.spares.is_some() {
            let store = store.clone();
            store.queue.wake_spare();
            threads.push(tasks::spawn("chunk-spare", move || spare::run(&store))?);
        }
        Ok((
            Store { owner: Arc::new(Owner { disk: store, threads: Mutex::new(threads) }) },
            recovered,
        ))
    }

    /// The `dram` store in a fresh memory region.
    pub fn open_region(_region: Arc<Region>) -> Result<Store> {
        Err(Error::unsupported("open the memory store: set `dram = \"0\"`"))
    }

    /// A window of the region for the body of an append; `None` where appends are copied.
    pub fn reserve_raw(&self, _: ChunkId, _: u64, _: usize) -> Result<Option<RegionMut>> {
        Ok(None)
    }

    /// Appends what was received into a reserved window.
    pub fn commit_raw(&self, _: ChunkId, _: RegionMut, _: Vec<u32>, done: Done<u64>) {
        done(Err(Error::bug("commit a window: this store has none")));
    }

    pub fn id(&self) -> StoreId {
        self.owner.disk.id
    }

    /// Makes an empty chunk, durably.
    pub fn create(&self, spec: ChunkSpec) -> Result<()> {
        self.owner.disk.create(spec)
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
        self.owner.disk.append(chunk, Pending { append, body, crcs, durability });
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
        let append = Append::Needle { needle, done };
        self.owner.disk.append(chunk, Pending { append, body, crcs, durability });
    }

    /// Reads acknowledged bytes; a range that reaches past them is cut there.
    pub fn read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Result<RawRead> {
        self.owner.disk.read_raw(chunk, generation, offset, bytes, false)
    }

    /// Reads one object of the current generation, verified.
    pub fn read_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        self.owner.disk.read_needle(pointer)
    }

    /// As [`Store::read_needle`] when that needs no disk; `None`: ask a thread that may wait.
    pub fn try_read_needle(&self, _pointer: Pointer) -> Option<Result<NeedleRead>> {
        None
    }

    /// Acknowledged length (raw: bytes, packed: next slot).
    pub fn length(&self, chunk: ChunkId) -> Result<u64> {
        self.owner.disk.length(chunk)
    }

    /// Bytes that the open chunk can still take in one append; 0 when it takes none.
    pub fn room(&self, chunk: ChunkId) -> Result<u64> {
        self.owner.disk.room(chunk)
    }

    /// Ends appends for good, across restarts, and answers the verified length.
    pub fn fence(&self, chunk: ChunkId) -> Result<u64> {
        self.owner.disk.fence(chunk)
    }

    /// Fixes the length (raw: bytes, packed: slots), which must not exceed the verified one. The
    /// first seal decides. What is beyond stays in the file, unread.
    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<()> {
        self.owner.disk.seal(chunk, length)
    }

    /// Computes generation `next` of a sealed packed chunk from the slots for which `live` says
    /// yes. The current generation goes on serving.
    pub fn compact(
        &self,
        chunk: ChunkId,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
    ) -> Result<CompactionDigest> {
        self.owner.disk.compact(chunk, live, next)
    }

    /// Makes `generation`, computed before, the one that is read.
    pub fn switch(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        self.owner.disk.switch(chunk, generation)
    }

    /// Removes a generation that is not current, or, when it is the last, the chunk. Readers that
    /// have begun go on.
    pub fn unlink(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        self.owner.disk.unlink(chunk, generation)
    }

    /// Current generations, by chunk.
    pub fn list(&self) -> Vec<ChunkInfo> {
        self.owner.disk.list()
    }

    pub fn usage(&self) -> Usage {
        self.owner.disk.usage()
    }

    /// Writes pending commits here and now, first come first served; for stores without threads.
    pub fn pump(&self) {
        let mut buf = AlignedBuf::zeroed(MIB as usize);
        while let Some(open) = self.owner.disk.queue.try_pop() {
            commit::commit_once(&self.owner.disk, &open, &mut buf);
        }
    }

    /// What the scrubber reads next.
    pub(crate) fn disk(&self) -> &DiskStore {
        &self.owner.disk
    }
}
