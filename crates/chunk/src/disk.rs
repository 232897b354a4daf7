//! A store in a directory: which chunks there are, their space, and the calls that need no commit
//! thread. Commits are written by `commit.rs`, seals by `seal.rs`, generations by `compact.rs`.

use crate::api::*;
use crate::commit::{self, Queue};
use crate::format::{FileHeader, HINTED_VERSION, SECTOR, VERSION, piece_count};
use crate::index::Index;
use crate::journal::{self, Journal};
use crate::load::read_footer;
use crate::open::{Append, Core, Open, Pending};
use crate::read::{NeedlePlan, RawPlan};
use crate::seal::fail_all;
use crate::sealed::{Handles, Indexes, Sealed, SealedIndex, wrong_kind};
use crate::{NEEDLE_HINT_BYTES_MAX, names};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Cookie, Durability, Generation, Pointer, Slot, StoreId, Tier};
use holdfast_base::limits::{CHUNK_BYTES, PACKED_BYTES_MAX};
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Lock, Space};
use holdfast_env::sockets::is_out_of_descriptors;
use holdfast_env::sync::{Mutex, RwLock};
use holdfast_env::{Disk, File, HoldMutex, HoldRwLock, Rng, event, planted};
use std::collections::{BTreeMap, HashSet};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The generation of a chunk that is read when none is named.
#[derive(Clone)]
pub enum Version {
    Open(Arc<Open>),
    Sealed(Arc<Sealed>),
}

/// A chunk and all its files.
pub struct Held {
    pub current: Version,
    /// Computed and not switched to, or switched from and not unlinked.
    pub others: Vec<Arc<Sealed>>,
}

/// State of one directory, shared by callers and threads.
pub struct DiskStore {
    pub disk: Arc<dyn Disk>,
    pub rng: Arc<dyn Rng>,
    pub dir: PathBuf,
    pub id: StoreId,
    pub capacity_bytes: u64,
    pub reserve_bytes: u64,
    /// What is there. Held to look up and to swap, never during I/O or callbacks.
    pub chunks: RwLock<BTreeMap<ChunkId, Held>>,
    pub handles: Handles,
    pub indexes: Indexes,
    /// Bytes that files take. Held while free space is asked for, so that two creations cannot
    /// both take the last of it.
    used_bytes: Mutex<u64>,
    /// Chunks with a seal, compaction, switch or unlink under way; held to look and mark.
    busy: Mutex<HashSet<ChunkId>>,
    /// Set once, with the cause beside it; read on every append.
    broken: AtomicBool,
    broken_by: Mutex<String>,
    pub queue: Queue,
    pub journal: Journal,
    /// No threads: whoever calls does the work.
    pub inline: bool,
    /// Zero-filled files for packed chunks; `None` when none are kept.
    pub spares: Option<crate::spare::Spares>,
    /// Keeps other processes out for as long as the store lives.
    pub lock: Box<dyn Lock>,
}

/// Marks a chunk as busy while it lives.
pub struct BusyGuard<S: Deref<Target = DiskStore>> {
    store: S,
    chunk: ChunkId,
}

impl<S: Deref<Target = DiskStore>> BusyGuard<S> {
    pub fn new(store: S, chunk: ChunkId) -> Result<BusyGuard<S>> {
        if !store.busy.held().insert(chunk) {
            return Err(Error::retry(format!(
                "change chunk `{chunk}`: another change of it is under way"
            )));
        }
        Ok(BusyGuard { store, chunk })
    }
}

impl<S: Deref<Target = DiskStore>> Drop for BusyGuard<S> {
    fn drop(&mut self) {
        self.store.busy.held().remove(&self.chunk);
    }
}

/// What [`DiskStore`] is made of at its opening.
pub struct Parts {
    pub disk: Arc<dyn Disk>,
    pub rng: Arc<dyn Rng>,
    pub config: StoreConfig,
    pub id: StoreId,
    pub chunks: BTreeMap<ChunkId, Held>,
    pub indexes: Indexes,
    pub used_bytes: u64,
    pub lock: Box<dyn Lock>,
}

impl DiskStore {
    pub fn new(parts: Parts) -> Result<DiskStore> {
        let Parts { disk, rng, config, id, chunks, indexes, used_bytes, lock } = parts;
        let space = disk.space(&config.dir).map_err(Error::from)?;
        let capacity_bytes = match config.capacity_bytes {
            0 => space.total_bytes,
            bytes => bytes,
        };
        let reserve_bytes = match config.reserve_bytes {
            0 => (2 * CHUNK_BYTES).max(capacity_bytes / 100),
            bytes => bytes,
        };
        let journal = Journal::new(config.journal_segment_bytes, capacity_bytes);
        let spares = config.spare_file.then(crate::spare::Spares::default);
        Ok(DiskStore {
            disk,
            rng,
            dir: config.dir,
            id,
            capacity_bytes,
            reserve_bytes,
            chunks: RwLock::new(chunks),
            handles: Handles::default(),
            indexes,
            used_bytes: Mutex::new(used_bytes),
            busy: Mutex::default(),
            broken: AtomicBool::new(false),
            broken_by: Mutex::default(),
            queue: Queue::default(),
            journal,
            inline: config.commit_threads == 0,
            spares,
            lock,
        })
    }

    // Space.

    fn space(&self, used_bytes: u64) -> Result<Space> {
        let mut space = self.disk.space(&self.dir).map_err(Error::from)?;
        let left = self.capacity_bytes.saturating_sub(used_bytes);
        space.free_bytes = space.free_bytes.min(left);
        Ok(space)
    }

    /// Takes `bytes`, leaving the reserve alone unless the caller is a compaction or a seal.
    pub fn take_space(&self, bytes: u64, may_use_reserve: bool) -> Result<()> {
        let mut used = self.used_bytes.held();
        let free = self.space(*used)?.free_bytes;
        let reserve = if may_use_reserve { 0 } else { self.reserve_bytes };
        if free < bytes.saturating_add(reserve) {
            return Err(Error::full(format!(
                "take {} in store `{}`: {} are free, of which {} are kept for compaction; \
                 remove files or add a disk",
                format_bytes(bytes),
                self.dir.display(),
                format_bytes(free),
                format_bytes(reserve),
            )));
        }
        *used += bytes;
        Ok(())
    }

    pub fn give_space(&self, bytes: u64) {
        let mut used = self.used_bytes.held();
        *used = used.saturating_sub(bytes);
    }

    pub fn usage(&self) -> Usage {
        let used_bytes = *self.used_bytes.held();
        let (free, free_files) =
            self.space(used_bytes).map_or((0, 0), |space| (space.free_bytes, space.free_files));
        Usage {
            store: self.id,
            tier: Tier::Disk,
            used_bytes,
            free_bytes: free.saturating_sub(self.reserve_bytes),
            free_files,
            capacity_bytes: self.capacity_bytes,
            reserve_bytes: self.reserve_bytes,
            chunks: self.chunks.held_shared().len() as u64,
            read_only: self.broken.load(Ordering::Acquire),
        }
    }

    // Failure.

    /// Turns a failed write or sync into an error, and the store read-only: what the kernel
    /// dropped cannot be asked for again. Running out of space is not such a failure.
    pub fn write_failed(&self, what: std::fmt::Arguments<'_>, e: std::io::Error) -> Error {
        let no_descriptor = is_out_of_descriptors(&e);
        // Chunks have a length of their own, so where no file may have that (`ulimit -f`) nothing that is deleted
        // makes room: whoever looks after the node has to hear of it.
        let is_limited = e.kind() == std::io::ErrorKind::FileTooLarge;
        let error = Error::from(e).context(format_args!("{what} in `{}`", self.dir.display()));
        match error.kind {
            holdfast_base::Kind::Full if !is_limited => error,
            // Nothing was written, so nothing was lost: the process has too many files and
            // connections, and the disk is well.
            _ if no_descriptor && !planted!("chunk.descriptors-break-store") => {
                Error::retry(format!("{}: ask again when connections have ended", error.message))
            }
            _ => self.broke(error),
        }
    }

    /// As [`DiskStore::write_failed`] where space was reserved, so that there must be enough.
    pub fn write_broke(&self, what: std::fmt::Arguments<'_>, e: std::io::Error) -> Error {
        self.broke(Error::from(e).context(format_args!("{what} in `{}`", self.dir.display())))
    }

    fn broke(&self, error: Error) -> Error {
        let mut cause = self.broken_by.held();
        if !self.broken.swap(true, Ordering::AcqRel) {
            *cause = error.message.clone();
            event!(StoreFailed, error, store = %self.id);
        }
        drop(cause);
        self.journal.store_broke();
        self.writable().err().unwrap_or(error)
    }

    /// Accepts no writes any more once the directory at its path is another one, or none: it was
    /// removed, or its file system unmounted, and files that are made now would not be its own.
    pub fn check_place(&self) {
        if let Ok(false) = self.lock.is_in_place() {
            self.broke(Error::fenced(format!(
                "keep chunks in `{}`: its LOCK was removed or replaced",
                self.dir.display()
            )));
        }
    }

    pub fn writable(&self) -> Result<()> {
        if !self.broken.load(Ordering::Acquire) {
            return Ok(());
        }
        let cause = self.broken_by.held().clone();
        Err(Error::read_only(format!(
            "write to store `{}`: it accepts reads only since this failed: {cause}; check the \
             disk, then restart",
            self.dir.display()
        )))
    }

    // Finding chunks.

    pub fn mark_busy(&self, chunk: ChunkId) -> Result<BusyGuard<&DiskStore>> {
        BusyGuard::new(self, chunk)
    }

    pub fn current(&self, chunk: ChunkId) -> Result<Version> {
        let chunks = self.chunks.held_shared();
        chunks.get(&chunk).map(|held| held.current.clone()).ok_or_else(|| not_held(chunk))
    }

    pub fn open_chunk(&self, chunk: ChunkId) -> Result<Arc<Open>> {
        match self.current(chunk)? {
            Version::Open(open) => Ok(open),
            Version::Sealed(_) => {
                Err(Error::fenced(format!("append to chunk `{chunk}`: it is sealed")))
            }
        }
    }

    pub fn room(&self, chunk: ChunkId) -> Result<u64> {
        Ok(match self.current(chunk)? {
            Version::Open(open) => open.core().room(&open.header),
            Version::Sealed(_) => 0,
        })
    }

    pub fn version(&self, chunk: ChunkId, generation: Generation) -> Result<Version> {
        let chunks = self.chunks.held_shared();
        let held = chunks.get(&chunk).ok_or_else(|| not_held(chunk))?;
        if held.current.generation() == generation {
            return Ok(held.current.clone());
        }
        let other = held.others.iter().find(|s| s.header.generation == generation);
        other.cloned().map(Version::Sealed).ok_or_else(|| {
            Error::not_found(format!("read chunk `{chunk}`: no generation `{generation}` here"))
        })
    }

    pub fn other_generations(&self, chunk: ChunkId) -> Vec<Generation> {
        let chunks = self.chunks.held_shared();
        let others = chunks.get(&chunk).map_or(&[][..], |held| &held.others);
        others.iter().map(|other| other.header.generation).collect()
    }

    pub fn list_from(&self, first: ChunkId, max: usize) -> Vec<ChunkInfo> {
        let chunks = self.chunks.held_shared();
        chunks.range(first..).take(max).map(|(_, held)| held.current.info()).collect()
    }

    // Creation and appends.

    pub fn create(&self, spec: ChunkSpec, hint: &[u8]) -> Result<()> {
        self.writable()?;
        let chunk = spec.chunk;
        if hint.len() > NEEDLE_HINT_BYTES_MAX {
            let what = format!(
                "its hint has {} bytes, at most {NEEDLE_HINT_BYTES_MAX} are kept",
                hint.len()
            );
            return Err(Error::invalid(what).context(format_args!("create chunk `{chunk}`")));
        }
        if spec.capacity_bytes == 0 || spec.capacity_bytes > 64 * CHUNK_BYTES {
            let what = format!("{} is no capacity for it", format_bytes(spec.capacity_bytes));
            return Err(Error::invalid(what).context(format_args!("create chunk `{chunk}`")));
        }
        let _busy = self.mark_busy(chunk)?;
        if self.current(chunk).is_ok() {
            return Err(Error::exists(format!("create chunk `{chunk}`: this store holds it")));
        }
        let header = FileHeader {
            version: if hint.is_empty() { VERSION } else { HINTED_VERSION },
            kind: spec.kind,
            generation: Generation(0),
            store: self.id,
            chunk,
            owner: spec.owner,
            capacity_bytes: file_bytes(spec.capacity_bytes),
            nonce: self.rng.next_u64(),
        };
        let allocated = header.capacity_bytes;
        let path = self.dir.join(names::open(chunk, Generation(0)));
        let spare = self
            .spares
            .as_ref()
            .filter(|_| spec.kind == ChunkKind::Packed && spec.durability == Durability::Durable);
        let spare = spare.and_then(|spares| spares.take(allocated));
        let from_spare = spare.is_some();
        if !from_spare {
            self.take_space(allocated, false)?;
        }
        let made = self.make_file((&header, hint), &path, spare, allocated);
        let (writer, reader) = match made {
            Ok(files) => files,
            Err(e) => {
                // Best effort: what remains has no name in any log and is found at the next start.
                let _ = self.disk.remove(&path);
                self.give_space(allocated);
                return Err(self.write_failed(format_args!("create chunk `{chunk}`"), e));
            }
        };
        let core = Core::new(spec.kind, SECTOR, allocated);
        let open = Arc::new(Open::new(header, writer, reader, path, core));
        let held = Held { current: Version::Open(open), others: Vec::new() };
        self.chunks.held_alone().insert(chunk, held);
        if from_spare {
            self.queue.wake_spare();
        }
        Ok(())
    }

    fn make_file(
        &self,
        (header, hint): (&FileHeader, &[u8]),
        path: &Path,
        spare: Option<PathBuf>,
        bytes: u64,
    ) -> std::io::Result<(Arc<dyn File>, Arc<dyn File>)> {
        let writer = match spare {
            Some(spare) => {
                self.disk.rename(&spare, path)?;
                self.disk.open(path, Access::Direct)?
            }
            None => {
                let file = self.disk.create(path, Access::Direct)?;
                file.allocate(bytes)?;
                file
            }
        };
        let mut sector = AlignedBuf::zeroed(SECTOR as usize);
        header.encode_sector_with(hint, &mut sector);
        writer.write_at_durable(&sector, 0, "chunk.create")?;
        self.disk.sync_dir(&self.dir, "chunk.create-name")?;
        let reader = self.disk.open(path, Access::Cached)?;
        Ok((writer, reader))
    }

    pub fn append(&self, chunk: ChunkId, item: Pending) {
        let staged = self.writable().and_then(|()| {
            check_append(&item)
                .map_err(|e| e.context(format_args!("append to chunk `{chunk}`")))?;
            self.open_chunk(chunk)
        });
        let open = match staged {
            Ok(open) => open,
            Err(e) => return item.fail(e),
        };
        let mut core = open.core();
        if core.may_journal(&open.header, &item)
            && let Append::Raw { at, .. } = item.append
            && self.journal.stage(&open, at, (*item.body).as_ref())
        {
            return core.stage_journaled(item);
        }
        let staged = core.stage(&open.header, item);
        drop(core);
        match staged {
            Ok(true) => self.queue.push(open),
            Ok(false) => {}
            Err(refused) => refused.0.fail(refused.1),
        }
    }

    /// Appends objects that the next commit takes together, as far as they fit into one.
    pub fn append_together(&self, chunk: ChunkId, items: Vec<Pending>) {
        let open = match self.writable().and_then(|()| self.open_chunk(chunk)) {
            Ok(open) => open,
            Err(e) => return items.into_iter().for_each(|item| item.fail(e.clone())),
        };
        let doing = |e: Error| e.context(format_args!("append to chunk `{chunk}`"));
        let checked: Vec<Result<()>> =
            items.iter().map(|item| check_append(item).map_err(doing)).collect();
        let (mut refused, mut tell) = (Vec::new(), false);
        let mut core = open.core();
        for (item, checked) in items.into_iter().zip(checked) {
            match checked {
                Err(e) => refused.push(Box::new((item, e))),
                Ok(()) => match core.stage(&open.header, item) {
                    Ok(more) => tell |= more,
                    Err(why) => refused.push(why),
                },
            }
        }
        drop(core);
        if tell {
            self.queue.push(open);
        }
        refused.into_iter().for_each(|refused| refused.0.fail(refused.1));
    }

    /// Ends appends to a chunk; those that no batch or commit has taken fail.
    pub fn stop_appends(&self, open: &Open) {
        if self.inline {
            while journal::commit(self) {}
        }
        fail_all(open.header.chunk, open.stop_appends());
    }

    /// Writes to the file what it misses of the journal below `end`: before that is read, and
    /// before a fence or seal.
    pub fn write_deferred(&self, open: &Arc<Open>, end: u64) -> Result<()> {
        let end = end.min(open.core().length());
        loop {
            let mut core = open.core();
            if core.index.length() >= end {
                return Ok(());
            }
            self.writable()?;
            if core.wants_flush() || (self.inline && !core.in_flight) {
                drop(core);
                if commit::commit_once(self, open, &mut AlignedBuf::zeroed(SECTOR as usize)) {
                    self.queue.push(open.clone());
                }
            } else {
                open.wait_for_commit(core);
            }
        }
    }

    // Reads.

    /// The hint that the chunk's file was made with.
    pub fn hint(&self, chunk: ChunkId) -> Result<Vec<u8>> {
        let (file, header) = match self.current(chunk)? {
            Version::Open(open) => (open.reader.clone(), open.header),
            Version::Sealed(sealed) => (self.handles.get(&*self.disk, &sealed)?, sealed.header),
        };
        let mut sector = vec![0; SECTOR as usize];
        file.read_exact_at(&mut sector, 0)?;
        FileHeader::decode_sector(&sector)
            .map_err(|_| crate::read::damaged(&header, format_args!("its first sector is")))?;
        Ok(header.hint_in(&sector).to_vec())
    }

    pub fn read_raw(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
        all: bool,
    ) -> Result<RawRead> {
        match self.version(chunk, generation)? {
            Version::Open(open) => {
                self.write_deferred(&open, offset.saturating_add(bytes))?;
                let plan = match &open.core().index {
                    Index::Raw(raw) => RawPlan::new(&open.header, raw, offset, bytes),
                    Index::Packed(_) => Err(wrong_kind(&open.header)),
                }?;
                plan.read(&open.header, &*open.reader, all)
            }
            Version::Sealed(sealed) => {
                let index = self.index(&sealed)?;
                let raw = index.raw(&sealed.header)?;
                let plan = RawPlan::new(&sealed.header, raw, offset, bytes)?;
                let file = self.handles.get(&*self.disk, &sealed)?;
                // Not for the scrubber, which nobody waits for.
                if let Some(ahead) = plan.place().filter(|_| !all).and_then(|r| sealed.ahead(r)) {
                    file.will_need(ahead.start, ahead.end - ahead.start);
                }
                plan.read(&sealed.header, &*file, all)
            }
        }
    }

    /// The index of a sealed generation: from memory, or read and verified again.
    pub fn index(&self, sealed: &Arc<Sealed>) -> Result<Arc<SealedIndex>> {
        if let Some(index) = sealed.resident() {
            return Ok(index);
        }
        let file = self.handles.get(&*self.disk, sealed)?;
        let (_, footer) = read_footer(&*file, &sealed.header, sealed.file_bytes)?;
        let footer = footer.ok_or_else(|| {
            let what = "its index fails its checksum; a restart makes it again from the records";
            crate::read::damaged(&sealed.header, format_args!("{what}"))
        })?;
        let index = Arc::new(SealedIndex::new(&sealed.header, footer));
        self.indexes.put(sealed, index.clone());
        Ok(index)
    }

    pub fn read_needle(&self, pointer: Pointer) -> Result<NeedleRead> {
        self.with_needle(pointer, |plan, header, file| plan.read(header, file, pointer, false))
    }

    pub fn read_slot(&self, chunk: ChunkId, slot: Slot) -> Result<Option<NeedleRead>> {
        let pointer = Pointer { chunk, slot, cookie: Cookie(0) };
        match self.with_needle(pointer, |plan, header, file| plan.read(header, file, pointer, true))
        {
            Ok(read) => Ok(Some(read)),
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub fn read_needle_part(
        &self,
        pointer: Pointer,
        wanted: Range<u64>,
    ) -> Result<(Bytes, Vec<u32>)> {
        self.with_needle(pointer, |plan, header, file| {
            plan.read_part(header, file, pointer, wanted)
        })
    }

    fn with_needle<T>(
        &self,
        pointer: Pointer,
        read: impl FnOnce(NeedlePlan, &FileHeader, &dyn File) -> Result<T>,
    ) -> Result<T> {
        match self.current(pointer.chunk).map_err(|_| no_such_object(pointer))? {
            Version::Open(open) => {
                let plan = open_needle(&open, pointer)?.ok_or_else(|| no_such_object(pointer))?;
                read(plan, &open.header, &*open.reader)
            }
            Version::Sealed(sealed) => {
                let plan = self.index(&sealed)?.needle(&sealed, pointer.slot)?;
                let plan = plan.ok_or_else(|| no_such_object(pointer))?;
                let file = self.handles.get(&*self.disk, &sealed)?;
                read(plan, &sealed.header, &*file)
            }
        }
    }
}

/// Where an acknowledged object of an open chunk is.
pub fn open_needle(open: &Open, pointer: Pointer) -> Result<Option<NeedlePlan>> {
    let core = open.core();
    let Index::Packed(packed) = &core.index else { return Ok(None) };
    match packed.get(pointer.slot.0) {
        Some((entry, next)) => Ok(Some(NeedlePlan::new(entry.offset_units, next, core.data_end))),
        None if pointer.slot.0 < packed.next_slot => {
            let slot = pointer.slot;
            let what = format_args!("object {slot} was lost to damage");
            Err(crate::read::damaged(&open.header, what))
        }
        None => Ok(None),
    }
}

/// Refuses what could not be read again: bytes that do not match their checksums, first of all.
pub fn check_append(item: &Pending) -> Result<()> {
    let body = (*item.body).as_ref();
    let bytes = body.len() as u64;
    let skew = match &item.append {
        Append::Raw { .. } if bytes == 0 => return Err(Error::invalid("it brings no bytes")),
        Append::Raw { at, .. } => at % crate::format::BLOCK,
        Append::Needle { needle, .. } if needle.hint.len() > NEEDLE_HINT_BYTES_MAX => {
            return Err(Error::invalid(format!(
                "its hint has {} bytes, at most {NEEDLE_HINT_BYTES_MAX} are kept",
                needle.hint.len()
            )));
        }
        Append::Needle { .. } => 0,
    };
    if bytes > PACKED_BYTES_MAX {
        return Err(Error::invalid(format!(
            "its body has {bytes} bytes, at most {PACKED_BYTES_MAX} go into one append"
        )));
    }
    let pieces = piece_count(skew, bytes);
    if item.crcs.len() as u64 != pieces {
        let given = item.crcs.len();
        return Err(Error::invalid(format!("{given} checksums were given for {pieces} pieces")));
    }
    let mut at = 0;
    for (i, &crc) in item.crcs.iter().enumerate() {
        let end = ((i as u64 + 1) * crate::format::BLOCK - skew).min(bytes) as usize;
        if crc32c(&body[at..end]) != crc {
            return Err(Error::corrupt("its bytes arrived damaged: checksum mismatch; send again"));
        }
        at = end;
    }
    Ok(())
}

pub fn not_held(chunk: ChunkId) -> Error {
    Error::not_found(format!("use chunk `{chunk}`: this store does not hold it"))
}

impl Version {
    pub fn generation(&self) -> Generation {
        match self {
            Version::Open(open) => open.header.generation,
            Version::Sealed(sealed) => sealed.header.generation,
        }
    }

    pub fn info(&self) -> ChunkInfo {
        let open = match self {
            Version::Sealed(sealed) => return sealed.info(),
            Version::Open(open) => open,
        };
        let core = open.core();
        ChunkInfo {
            chunk: open.header.chunk,
            generation: open.header.generation,
            kind: open.header.kind,
            owner: open.header.owner,
            state: if core.fenced { ReplicaState::Fenced } else { ReplicaState::Open },
            length: core.length(),
            needles: core.index.needles(),
            stored_bytes: core.allocated,
            damaged: core.damaged,
        }
    }
}
