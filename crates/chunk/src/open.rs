//! An open chunk on disk: the core that stages appends and lays out commits, and the chunk's
//! locks. The core does no I/O; `commit.rs` drives it and writes what it says.

use crate::api::{Body, ChunkKind, Done, Needle, SlotDone};
use crate::format::{
    BLOCK, COMMIT_HEADER_BYTES, CommitHeader, Extent, FileHeader, IndexEntry, RECORD_ALIGN,
    RECORD_HEADER_BYTES, RecordHeader, SECTOR,
};
use crate::index::{Index, PackedIndex, RawIndex};
use crate::journal;
use holdfast_base::checksum::crc32c_combine;
use holdfast_base::ids::{Durability, Slot};
use holdfast_base::limits::CHUNK_SLOTS_MAX;
use holdfast_base::units::{KIB, MIB};
use holdfast_base::{Error, Result};
use holdfast_env::File;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Payload of one commit, unless a single append is larger. Large enough that a disk streams,
/// small enough that what waits behind it does not notice.
pub const COMMIT_BYTES_MAX: u64 = 4 * MIB;

/// A raw chunk's file may grow to this many times its capacity when its appends are small; then
/// the chunk counts as full.
pub const RAW_GROWTH_MAX: u64 = 2;

pub enum Append {
    Raw {
        at: u64,
        done: Done<u64>,
    },
    /// With `expected`, refused unless that is the slot it would get.
    Needle {
        needle: Needle,
        expected: Option<Slot>,
        done: SlotDone,
    },
}

pub struct Pending {
    pub append: Append,
    pub body: Body,
    pub crcs: Vec<u32>,
    pub durability: Durability,
}

impl Pending {
    fn payload_bytes(&self) -> u64 {
        (*self.body).as_ref().len() as u64
    }

    /// Upper bound of what it takes in a commit of its own.
    fn stored_bytes(&self) -> u64 {
        let hint = match &self.append {
            Append::Needle { needle, .. } => needle.hint.len() as u64,
            Append::Raw { .. } => 0,
        };
        let head = RECORD_HEADER_BYTES as u64 + 4 * self.crcs.len() as u64 + hint;
        (head + self.payload_bytes()).next_multiple_of(RECORD_ALIGN)
    }

    pub fn fail(self, error: Error) {
        match self.append {
            Append::Raw { done, .. } => done(Err(error)),
            Append::Needle { done, .. } => done(Err(error)),
        }
    }
}

/// Bytes of a commit on disk that holds records of `bytes`.
fn commit_bytes(bytes: u64) -> u64 {
    (COMMIT_HEADER_BYTES as u64 + bytes).next_multiple_of(SECTOR)
}

/// What a chunk's file misses of the journal is written to it once it is this much, or half of it:
/// streams of equal pace must not all be written at one time. Or when it is asked for. Small, so
/// that a commit of the journal does not wait long behind one of these writes.
pub const DEFERRED_BYTES_MAX: u64 = 256 * KIB;

/// An append that was acknowledged from the journal, and the use of a segment that holds it.
struct Deferred {
    item: Pending,
    number: u64,
}

/// Everything that changes while a chunk is open.
pub struct Core {
    /// What is in the file and acknowledged.
    pub index: Index,
    pub next_sequence: u64,
    /// The last commit that is in the file, and the last of these that was only written because
    /// its appends asked for no more.
    pub written: u64,
    unpromised: u64,
    /// The last commit known to be durable, with all before it.
    pub synced: u64,
    /// End of the last commit; a multiple of the sector.
    pub data_end: u64,
    /// Length of the file.
    pub allocated: u64,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    /// Raw: where the next append must begin.
    staged_end: u64,
    /// In a queue of the driver or in flight: nobody else needs to be told of new appends.
    pub busy: bool,
    pub in_flight: bool,
    /// Some appends that wait or are in flight are not in the journal; until they are answered,
    /// those behind them may not be either.
    direct: bool,
    /// In the journal's next batch, or the one in flight.
    journaling: VecDeque<Pending>,
    /// Acknowledged from the journal, and not yet in a commit of the file.
    deferred: VecDeque<Deferred>,
    /// Payload of `deferred` and of such appends in flight: the end of what is acknowledged.
    unwritten_bytes: u64,
    /// What `journaling` and `unwritten_bytes` take in the file at most.
    unwritten_stored: u64,
    /// Of `deferred`, for this chunk; see [`DEFERRED_BYTES_MAX`].
    deferred_bytes_max: u64,
    /// Somebody waits for `deferred` to be in the file.
    flush_wanted: bool,
    /// Who waits on [`Open`]'s `idle`: a notification costs a system call, heard or not.
    waiters: u32,
    /// The use of a journal's segment whose list of chunks this one is on.
    dirty_in: u64,
    in_flight_slots: u64,
    /// What the commit in flight takes in the file; `data_end` passes it only when it is written.
    in_flight_bytes: u64,
    pub fenced: bool,
    /// The length a durable footer gave it, even if the rest of the seal failed.
    pub sealed: Option<u64>,
    pub damaged: bool,
    /// Unlinked: the file is gone or about to go.
    pub gone: bool,
}

/// A chunk that takes appends, or waits for its seal.
pub struct Open {
    pub header: FileHeader,
    /// For commits, past the page cache.
    pub writer: Arc<dyn File>,
    /// For reads, through it.
    pub reader: Arc<dyn File>,
    pub path: PathBuf,
    /// Staged and acknowledged state. Held for list work only, never during I/O or callbacks.
    core: Mutex<Core>,
    /// Waited on by seal, fence and unlink, notified when a commit has ended.
    idle: Condvar,
}

/// Appends taken out for one commit, and where they go.
pub struct Batch {
    items: Vec<Pending>,
    records: Vec<Planned>,
    pub header: CommitHeader,
    pub offset: u64,
    pub class: Class,
    first_slot: u32,
    /// Appends that did not fit any more.
    pub refused: Vec<Pending>,
}

/// What a commit is, once it has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Durable, with all before it.
    Durable,
    /// Written.
    Written,
    /// Written; its appends were acknowledged before, from the journal, which keeps them until a
    /// sync of the file.
    Deferred,
}

impl Core {
    pub fn new(kind: ChunkKind, data_end: u64, allocated: u64) -> Core {
        let index = match kind {
            ChunkKind::Raw => Index::Raw(RawIndex::default()),
            ChunkKind::Packed => Index::Packed(PackedIndex::default()),
        };
        Core {
            index,
            next_sequence: 1,
            written: 0,
            unpromised: 0,
            synced: 0,
            data_end,
            allocated,
            pending: VecDeque::new(),
            pending_bytes: 0,
            staged_end: 0,
            busy: false,
            in_flight: false,
            direct: false,
            journaling: VecDeque::new(),
            deferred: VecDeque::new(),
            unwritten_bytes: 0,
            unwritten_stored: 0,
            deferred_bytes_max: DEFERRED_BYTES_MAX,
            flush_wanted: false,
            waiters: 0,
            dirty_in: 0,
            in_flight_slots: 0,
            in_flight_bytes: 0,
            fenced: false,
            sealed: None,
            damaged: false,
            gone: false,
        }
    }

    /// What a scan found: where an append would go on.
    pub fn resume(&mut self, index: Index, next_sequence: u64) {
        self.staged_end = index.length();
        (self.index, self.next_sequence) = (index, next_sequence);
    }

    /// Takes an append in; says whether the driver must be told, or gives it back with the reason.
    pub fn stage(
        &mut self,
        header: &FileHeader,
        item: Pending,
    ) -> Result<bool, Box<(Pending, Error)>> {
        if let Err(e) = self.check(header, &item) {
            return Err(Box::new((item, e)));
        }
        if let Append::Raw { .. } = item.append {
            self.staged_end += item.payload_bytes();
        }
        self.pending_bytes += item.stored_bytes();
        self.pending.push_back(item);
        self.direct = true;
        if !self.journaling.is_empty() {
            // The end of the batch in flight tells the driver.
            return Ok(false);
        }
        Ok(!std::mem::replace(&mut self.busy, true))
    }

    fn check(&self, header: &FileHeader, item: &Pending) -> Result<()> {
        let chunk = header.chunk;
        let doing = format_args!("append to chunk `{chunk}`");
        if self.fenced || self.sealed.is_some() || self.gone {
            let e = Error::fenced("it takes no more appends; seal it and go on in a new chunk");
            return Err(e.context(doing));
        }
        let bytes = item.payload_bytes();
        let full = |room: u64| {
            let what = format!("{bytes} bytes do not fit, room for {room}; go on in a new chunk");
            Err(Error::full(what).context(doing))
        };
        match (&item.append, header.kind) {
            (Append::Raw { at, .. }, ChunkKind::Raw) => {
                if *at != self.staged_end {
                    let end = self.staged_end;
                    let what = format!("asked to write at byte {at}, its end is at {end}");
                    return Err(Error::invalid(what).context(doing));
                }
                if at + bytes > header.capacity_bytes {
                    return full(self.room(header));
                }
            }
            (Append::Needle { expected, .. }, ChunkKind::Packed) => {
                // Slots are given when a commit is laid out; these are the ones to come.
                let slots = self.index.length() + self.pending.len() as u64 + self.in_flight_slots;
                if let Some(expected) = expected.filter(|slot| slot.0 as u64 != slots) {
                    let what = format!("asked for slot {expected}, its next one is {slots}");
                    return Err(Error::invalid(what).context(doing));
                }
                if slots >= CHUNK_SLOTS_MAX as u64 {
                    return full(0);
                }
                // Of an object as it is; `room` allows for the largest head.
                let taken = self.taken_bytes() + item.stored_bytes();
                if taken > header.capacity_bytes {
                    return full(self.room(header));
                }
            }
            _ => return Err(Error::invalid("it is of the other kind").context(doing)),
        }
        Ok(())
    }

    /// Takes an append that the journal has taken.
    pub fn stage_journaled(&mut self, item: Pending) {
        self.staged_end += item.payload_bytes();
        self.unwritten_stored += commit_bytes(item.stored_bytes());
        self.journaling.push_back(item);
    }

    /// Whether the journal may take `item`: small, durable, behind nothing that is not durable
    /// or in the journal itself, with room reserved for it even if it gets a commit of its own.
    pub fn may_journal(&self, header: &FileHeader, item: &Pending) -> bool {
        let own = commit_bytes(item.stored_bytes());
        header.kind == ChunkKind::Raw
            && item.durability == Durability::Durable
            && item.payload_bytes() <= journal::BODY_BYTES_MAX
            && !self.direct
            && self.unpromised <= self.synced
            && self.data_end + self.in_flight_bytes + self.unwritten_stored + own
                <= self.allocated.min(Core::physical_max(header))
            && self.check(header, item).is_ok()
    }

    /// Bytes (raw) or slots (packed) that were acknowledged.
    pub fn length(&self) -> u64 {
        self.index.length() + self.unwritten_bytes
    }

    /// Asks for what the file misses of the journal; says whether the driver must be told.
    pub fn wants_flush(&mut self) -> bool {
        self.flush_wanted = !self.deferred.is_empty();
        self.flush_wanted && !std::mem::replace(&mut self.busy, true)
    }

    /// Whether there is a commit to write.
    pub fn has_work(&self) -> bool {
        self.flush_is_due() || (!self.pending.is_empty() && self.journaling.is_empty())
    }

    fn flush_is_due(&self) -> bool {
        let waiting = self.flush_wanted || self.unwritten_bytes >= self.deferred_bytes_max;
        !self.deferred.is_empty() && (waiting || !self.pending.is_empty())
    }

    /// A driver lets go of the chunk; true if it must take it up again.
    pub fn rest(&mut self) -> bool {
        self.direct &= !self.pending.is_empty();
        self.busy = self.has_work();
        self.busy
    }

    /// Whether the file misses something of this use of a segment, or of an earlier one.
    pub fn misses(&self, number: u64) -> bool {
        let waits = self.deferred.front().is_some_and(|first| first.number <= number);
        waits || (self.in_flight && self.unwritten_bytes > 0)
    }

    /// The last commit in the file, if it is not known to be durable.
    pub fn unsynced(&self) -> Option<u64> {
        let ends = self.gone || self.sealed.is_some();
        (self.written > self.synced && !ends).then_some(self.written)
    }

    /// Takes over what a journal has and the file has not, for recovery.
    pub fn adopt(&mut self, at: u64, body: Vec<u8>, crcs: Vec<u32>) {
        self.unwritten_bytes += body.len() as u64;
        let append = Append::Raw { at, done: Box::new(|_| ()) };
        let item = Pending { append, body: Box::new(body), crcs, durability: Durability::Durable };
        self.deferred.push_back(Deferred { item, number: 0 });
        self.flush_wanted = true;
    }

    /// What one append can still bring.
    pub fn room(&self, header: &FileHeader) -> u64 {
        if self.fenced || self.sealed.is_some() || self.gone {
            return 0;
        }
        match header.kind {
            ChunkKind::Raw => header.capacity_bytes.saturating_sub(self.staged_end),
            ChunkKind::Packed => {
                // A checksum for each block of the object, a header and a hint.
                let left = header.capacity_bytes.saturating_sub(self.taken_bytes());
                left.saturating_sub(left.div_ceil(BLOCK) * 4 + SECTOR)
            }
        }
    }

    /// Bytes of a packed chunk's file that are spoken for once one more append is staged: what is
    /// written, on its way, and waiting. Each commit to come may waste a header and most of a
    /// sector; what waits goes into the next ones, at least [`COMMIT_BYTES_MAX`] less one object
    /// each, of which two follow each other never both half empty.
    fn taken_bytes(&self) -> u64 {
        let commits = 2 + 2 * self.pending_bytes.div_ceil(COMMIT_BYTES_MAX);
        self.data_end
            + self.in_flight_bytes
            + self.pending_bytes
            + commits * (SECTOR + COMMIT_HEADER_BYTES as u64)
    }

    fn physical_max(header: &FileHeader) -> u64 {
        match header.kind {
            ChunkKind::Raw => RAW_GROWTH_MAX * header.capacity_bytes + 16 * SECTOR,
            ChunkKind::Packed => header.capacity_bytes,
        }
    }

    /// Lays out the next commit; `None` when nothing waits.
    pub fn take_batch(&mut self, header: &FileHeader) -> Option<Batch> {
        if self.flush_is_due() {
            return Some(self.take_deferred(header));
        }
        if !self.journaling.is_empty() {
            return None;
        }
        let mut refused = Vec::new();
        let mut items = Vec::new();
        let mut stored = 0;
        let limit = Core::physical_max(header).saturating_sub(self.data_end);
        while let Some(next) = self.pending.front() {
            let bytes = next.stored_bytes();
            if !items.is_empty() && stored + bytes > COMMIT_BYTES_MAX {
                break;
            }
            let fits = commit_bytes(stored + bytes) <= limit;
            if !fits && !items.is_empty() {
                break;
            }
            let item = self.pending.pop_front().expect("its front was seen");
            self.pending_bytes -= bytes;
            if fits {
                stored += bytes;
                items.push(item);
            } else {
                refused.push(item);
            }
        }
        if !refused.is_empty() && header.kind == ChunkKind::Raw {
            // What follows a refused append has no place either.
            refused.extend(self.pending.drain(..));
            self.pending_bytes = 0;
            self.staged_end = self.index.length();
        }
        if items.is_empty() && refused.is_empty() {
            return None;
        }
        self.in_flight_slots = items.len() as u64;
        let class = match items.iter().any(|item| item.durability == Durability::Durable) {
            true => Class::Durable,
            false => Class::Written,
        };
        Some(self.batch(header, items, refused, class))
    }

    /// What was acknowledged from the journal, as one commit.
    fn take_deferred(&mut self, header: &FileHeader) -> Batch {
        let (mut items, mut stored) = (Vec::new(), 0);
        while let Some(next) = self.deferred.front() {
            stored += next.item.stored_bytes();
            if !items.is_empty() && stored > COMMIT_BYTES_MAX {
                break;
            }
            let Some(next) = self.deferred.pop_front() else { break };
            items.push(next.item);
        }
        self.flush_wanted &= !self.deferred.is_empty();
        self.batch(header, items, Vec::new(), Class::Deferred)
    }

    fn batch(
        &mut self,
        header: &FileHeader,
        items: Vec<Pending>,
        refused: Vec<Pending>,
        class: Class,
    ) -> Batch {
        self.in_flight = true;
        let commit = CommitHeader {
            flags: 0,
            sequence: self.next_sequence,
            synced_before: self.synced,
            bytes: 0,
        };
        self.next_sequence += 1;
        let first_slot = match &self.index {
            Index::Packed(packed) => packed.next_slot,
            Index::Raw(_) => 0,
        };
        let offset = self.data_end;
        let records = Vec::new();
        let mut batch =
            Batch { items, records, header: commit, offset, class, first_slot, refused };
        batch.layout(header);
        self.in_flight_bytes = batch.padded_bytes();
        batch
    }

    /// Takes a written commit's appends into the index: from here on they are acknowledged.
    pub fn finish(&mut self, batch: &Batch) {
        for record in &batch.records {
            let at = batch.offset + record.at;
            match &mut self.index {
                Index::Raw(raw) => raw.append(
                    Extent {
                        logical: record.header.position,
                        physical: at + record.header.head_bytes(),
                        bytes: record.header.payload_bytes as u64,
                    },
                    &record.crcs,
                ),
                Index::Packed(packed) => packed.push(IndexEntry {
                    slot: record.header.position as u32,
                    offset_units: (at / RECORD_ALIGN) as u32,
                    owner: record.header.owner,
                }),
            }
        }
        self.data_end += batch.padded_bytes();
        self.in_flight_bytes = 0;
        self.in_flight_slots = 0;
        self.written = batch.header.sequence;
        match batch.class {
            Class::Durable => self.synced = self.written,
            Class::Written => self.unpromised = self.written,
            Class::Deferred => {
                for item in &batch.items {
                    self.unwritten_bytes -= item.payload_bytes();
                    self.journal_forgets(item);
                }
            }
        }
    }

    fn journal_forgets(&mut self, item: &Pending) {
        let stored = commit_bytes(item.stored_bytes());
        self.unwritten_stored = self.unwritten_stored.saturating_sub(stored);
    }

    /// All that waits, not to be written any more.
    pub fn drain(&mut self) -> Vec<Pending> {
        self.pending_bytes = 0;
        let journaling = self.journaling.iter().map(Pending::payload_bytes).sum::<u64>();
        self.staged_end = self.length() + journaling;
        self.pending.drain(..).collect()
    }
}

/// One record of a commit to be.
struct Planned {
    /// From the commit's start.
    at: u64,
    header: RecordHeader,
    crcs: Vec<u32>,
}

impl Batch {
    /// Whether anything is to be written.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn padded_bytes(&self) -> u64 {
        self.header.bytes.next_multiple_of(SECTOR)
    }

    /// Places the records. All appends to a raw chunk are one record: they follow each other, and
    /// their checksums combine.
    fn layout(&mut self, file: &FileHeader) {
        let mut at = COMMIT_HEADER_BYTES as u64;
        let sequence = self.header.sequence;
        match (file.kind, self.items.first().map(|i| &i.append)) {
            (ChunkKind::Raw, Some(&Append::Raw { at: first, .. })) => {
                let bytes = self.items.iter().map(Pending::payload_bytes).sum::<u64>();
                let header = RecordHeader::raw(first, file.owner, bytes as u32, sequence);
                let crcs = merge_crcs(first, &self.items);
                self.records.push(Planned { at, header, crcs });
                at += header.record_bytes();
            }
            _ => {
                for (i, item) in self.items.iter_mut().enumerate() {
                    let Append::Needle { needle, .. } = &item.append else { continue };
                    let slot = Slot(self.first_slot + i as u32);
                    let bytes = item.payload_bytes() as u32;
                    let header = RecordHeader::needle(slot, needle, bytes, sequence);
                    let crcs = std::mem::take(&mut item.crcs);
                    self.records.push(Planned { at, header, crcs });
                    at += header.record_bytes();
                }
            }
        }
        self.header.bytes = at;
    }

    /// Writes the commit into `out`, which is as long as [`Batch::padded_bytes`] and may hold
    /// old bytes. The bodies' only copy.
    pub fn encode(&self, file: &FileHeader, out: &mut [u8]) {
        self.header.encode_into(file, self.offset, out);
        let mut at = COMMIT_HEADER_BYTES;
        let mut items = self.items.iter();
        for record in &self.records {
            let offset = self.offset + record.at;
            let share = match file.kind {
                ChunkKind::Raw => usize::MAX,
                ChunkKind::Packed => 1,
            };
            let mut hint: &[u8] = &[];
            let start = at;
            at += record.header.head_bytes() as usize;
            for item in items.by_ref().take(share) {
                if let Append::Needle { needle, .. } = &item.append {
                    hint = &needle.hint;
                }
                let body = (*item.body).as_ref();
                out[at..at + body.len()].copy_from_slice(body);
                at += body.len();
            }
            record.header.encode_into(file, offset, &record.crcs, hint, &mut out[start..]);
            let end = at.next_multiple_of(RECORD_ALIGN as usize);
            out[at..end].fill(0);
            at = end;
        }
        out[at..].fill(0);
    }

    /// Calls everybody back. Without locks.
    pub fn answer(self, result: Result<()>) {
        for (slot, item) in (self.first_slot..).zip(self.items) {
            let end = match &item.append {
                Append::Raw { at, .. } => at + item.payload_bytes(),
                Append::Needle { .. } => 0,
            };
            match (item.append, &result) {
                (Append::Raw { done, .. }, result) => done(result.clone().map(|()| end)),
                (Append::Needle { done, .. }, result) => done(result.clone().map(|()| Slot(slot))),
            }
        }
        for item in self.refused {
            item.fail(Error::full(
                "append to a chunk: its file cannot take the commit; seal it and go on in a new one",
            ));
        }
    }
}

/// Checksums of the pieces of all items together, which begin at byte `first` of the chunk.
fn merge_crcs(first: u64, items: &[Pending]) -> Vec<u32> {
    let mut merged: Vec<u32> = Vec::new();
    let mut at = first;
    for item in items {
        let end = at + item.payload_bytes();
        for &crc in &item.crcs {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            match merged.last_mut() {
                Some(last) if at != first && !at.is_multiple_of(BLOCK) => {
                    *last = crc32c_combine(*last, crc, next - at);
                }
                _ => merged.push(crc),
            }
            at = next;
        }
    }
    merged
}

impl Open {
    pub fn new(
        header: FileHeader,
        writer: Arc<dyn File>,
        reader: Arc<dyn File>,
        path: PathBuf,
        core: Core,
    ) -> Open {
        let mut core = core;
        core.deferred_bytes_max = DEFERRED_BYTES_MAX / 2 + header.nonce % (DEFERRED_BYTES_MAX / 2);
        Open { header, writer, reader, path, core: Mutex::new(core), idle: Condvar::new() }
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no holder of this lock panics")
    }

    /// Tells whoever waits that no commit is in flight any more.
    pub fn commit_ended(&self) {
        let mut core = self.core();
        core.in_flight = false;
        core.in_flight_slots = 0;
        core.in_flight_bytes = 0;
        self.notify(core);
    }

    /// Tells whoever waits that the driver rests or a commit has ended.
    pub fn notify(&self, core: MutexGuard<'_, Core>) {
        let heard = core.waiters > 0;
        drop(core);
        if heard {
            self.idle.notify_all();
        }
    }

    /// Waits once, or while `waits` says so.
    fn wait(&self, mut core: MutexGuard<'_, Core>, waits: impl Fn(&Core) -> bool, again: bool) {
        core.waiters += 1;
        while waits(&core) {
            core = self.idle.wait(core).expect("no holder of this lock panics");
            if !again {
                break;
            }
        }
        core.waiters -= 1;
    }

    /// Ends appends, and waits for the commit and the journal's batch in flight; answers what was
    /// waiting.
    pub fn stop_appends(&self) -> Vec<Pending> {
        let mut core = self.core();
        core.fenced = true;
        let dropped = core.drain();
        self.wait(core, |core| core.in_flight || !core.journaling.is_empty(), true);
        dropped
    }

    /// Waits until a commit has ended, or the driver has nothing more to do.
    pub fn wait_for_commit(&self, core: MutexGuard<'_, Core>) {
        self.wait(core, |_| true, false);
    }

    /// The journal's batch with this chunk's oldest append has ended, in this use of a segment:
    /// answers it.
    pub fn journal_ended(self: &Arc<Open>, written: &Result<u64>) -> Journaled {
        let mut ended = Journaled::default();
        let mut core = self.core();
        let Some(mut item) = core.journaling.pop_front() else { return ended };
        let Append::Raw { at, .. } = item.append else { return ended };
        let end = at + item.payload_bytes();
        let append = Append::Raw { at, done: Box::new(|_| ()) };
        let answered = std::mem::replace(&mut item.append, append);
        match written {
            Ok(number) => {
                core.unwritten_bytes += item.payload_bytes();
                core.deferred.push_back(Deferred { item, number: *number });
                ended.first_in_use = std::mem::replace(&mut core.dirty_in, *number) != *number;
            }
            Err(_) => {
                core.journal_forgets(&item);
                core.staged_end = core.length();
            }
        }
        if core.has_work() && !std::mem::replace(&mut core.busy, true) {
            ended.due = Some(if core.pending.is_empty() { Due::Later } else { Due::Now });
        }
        self.notify(core);
        if let Append::Raw { done, .. } = answered {
            done(written.clone().map(|_| end));
        }
        ended
    }
}

/// What the journal does about a chunk, one of whose appends it has answered.
#[derive(Default)]
pub struct Journaled {
    /// It belongs on the list of those whose files miss something of the segment.
    pub first_in_use: bool,
    /// A driver must take it up.
    pub due: Option<Due>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Somebody waits for an acknowledgement.
    Now,
    Later,
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::{ChunkId, Generation, StoreId};

    fn header() -> FileHeader {
        FileHeader {
            version: crate::format::VERSION,
            store: StoreId(1),
            chunk: ChunkId::new(0, 1),
            generation: Generation(0),
            kind: ChunkKind::Packed,
            owner: 1,
            capacity_bytes: 1 << 20,
            nonce: 7,
        }
    }

    fn object(bytes: usize) -> Pending {
        Pending {
            append: Append::Needle {
                needle: Needle::default(),
                expected: None,
                done: Box::new(|_| ()),
            },
            body: Box::new(vec![0u8; bytes]),
            crcs: vec![0; bytes.div_ceil(BLOCK as usize)],
            durability: Durability::Durable,
        }
    }

    /// Room once forgot the commit in flight, which was no longer waiting and not yet written:
    /// under load more was staged than the file takes, and the last appends were refused as full
    /// although the writer had asked for room before each.
    #[test]
    fn what_had_room_when_it_was_staged_fits_whatever_is_in_flight() {
        let header = header();
        let mut core = Core::new(ChunkKind::Packed, SECTOR, SECTOR);
        let mut flying = None;
        let mut staged = 0;
        for round in 0.. {
            let size = 1 + (round * 7919) % 40_000;
            if core.room(&header) < size as u64 {
                break;
            }
            assert!(core.stage(&header, object(size)).is_ok(), "round {round}");
            staged += 1;
            // Every few appends the commit in flight ends and the next one takes what waits.
            if round % 3 == 2 {
                if let Some(batch) = flying.take() {
                    core.finish(&batch);
                }
                flying = core.take_batch(&header);
                assert!(flying.as_ref().is_none_or(|batch| batch.refused.is_empty()));
            }
        }
        assert!(staged > 20, "{staged} objects of 20 KB on average");
        while let Some(batch) = flying.take() {
            core.finish(&batch);
            flying = core.take_batch(&header);
            assert!(flying.as_ref().is_none_or(|batch| batch.refused.is_empty()));
        }
        assert!(core.data_end <= header.capacity_bytes);
    }
}
