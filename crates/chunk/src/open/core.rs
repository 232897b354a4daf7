//! The core of an open chunk: stages appends, says what the next commit holds, and takes its end.
//! Does no I/O and knows no lock. Called under the lock of [`super::Open`], and by recovery.

use super::{Append, Batch, Class, Pending};
use crate::api::ChunkKind;
use crate::format::{
    BLOCK, COMMIT_HEADER_BYTES, CommitHeader, FileHeader, IndexEntry, PhysicalExtent, RECORD_ALIGN,
    SECTOR,
};
use crate::index::{Index, PackedIndex, RawIndex};
use crate::journal;
use holdfast_base::ids::Durability;
use holdfast_base::limits::CHUNK_SLOTS_MAX;
use holdfast_base::units::{KIB, MIB};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::VecDeque;

/// Payload of one commit, unless a single append is larger. Large enough that a disk streams,
/// small enough that what waits behind it does not notice.
pub static COMMIT_BYTES_MAX: Knob =
    Knob::new("chunk.commit-bytes", 4 * MIB, &[4096, 10_000, 65_536]);

/// A raw chunk's file may grow to this many times its capacity when its appends are small; then
/// the chunk counts as full.
pub const RAW_GROWTH_MAX: u64 = 2;

/// Bytes of a commit on disk that holds records of `bytes`.
fn commit_bytes(bytes: u64) -> u64 {
    (COMMIT_HEADER_BYTES as u64 + bytes).next_multiple_of(SECTOR)
}

/// What a chunk's file misses of the journal is written to it once it is this much, or half of it:
/// streams of equal pace must not all be written at one time. Or when it is asked for. Small, so
/// that a commit of the journal does not wait long behind one of these writes.
pub static DEFERRED_BYTES_MAX: Knob =
    Knob::new("chunk.deferred-bytes", 256 * KIB, &[2, 4096, 20_000]);

/// An append that was acknowledged from the journal, and the use of a segment that holds it.
pub(super) struct Deferred {
    pub(super) item: Pending,
    pub(super) number: u64,
}

/// Everything that changes while a chunk is open.
pub struct Core {
    /// What is in the file and acknowledged.
    pub index: Index,
    pub next_sequence: u64,
    /// The last commit that is in the file, and the last of these that was only written because
    /// its appends asked for no more.
    pub written: u64,
    pub(super) unpromised: u64,
    /// The last commit known to be durable, with all before it.
    pub synced: u64,
    /// End of the last commit; a multiple of the sector.
    pub data_end: u64,
    /// Length of the file.
    pub allocated: u64,
    pub(super) pending: VecDeque<Pending>,
    pub(super) pending_bytes: u64,
    /// Raw: where the next append must begin.
    pub(super) staged_end: u64,
    /// In a queue of the driver or in flight: nobody else needs to be told of new appends.
    pub busy: bool,
    /// Busy, and nobody's yet: the write-back takes it up in its own time, unless somebody with
    /// more haste does so before.
    pub(super) for_later: bool,
    pub in_flight: bool,
    /// Some appends that wait or are in flight are not in the journal; until they are answered,
    /// those behind them may not be either.
    pub(super) direct: bool,
    /// In the journal's next batch, or the one in flight.
    pub(super) journaling: VecDeque<Pending>,
    /// Acknowledged from the journal, and not yet in a commit of the file.
    pub(super) deferred: VecDeque<Deferred>,
    /// Payload of `deferred` and of such appends in flight: the end of what is acknowledged.
    pub(super) unwritten_bytes: u64,
    /// What `journaling` and `unwritten_bytes` take in the file at most.
    pub(super) unwritten_stored: u64,
    /// Of `deferred`, for this chunk; see [`DEFERRED_BYTES_MAX`].
    pub(super) deferred_bytes_max: u64,
    /// Somebody waits for `deferred` to be in the file.
    pub(super) flush_wanted: bool,
    /// Who waits on [`Open`]'s `idle`: a notification costs a system call, heard or not.
    pub(super) waiters: u32,
    /// The use of a journal's segment whose list of chunks this one is on.
    pub(super) dirty_in: u64,
    pub(super) in_flight_slots: u64,
    /// What the commit in flight takes in the file; `data_end` passes it only when it is written.
    pub(super) in_flight_bytes: u64,
    pub fenced: bool,
    /// The length a durable footer gave it, even if the rest of the seal failed.
    pub sealed: Option<u64>,
    pub damaged: bool,
    /// What is left of a commit that was never whole is in the file: no mark can say how far it
    /// was acknowledged.
    pub torn: bool,
    /// Unlinked: the file is gone or about to go.
    pub gone: bool,
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
            for_later: false,
            in_flight: false,
            direct: false,
            journaling: VecDeque::new(),
            deferred: VecDeque::new(),
            unwritten_bytes: 0,
            unwritten_stored: 0,
            deferred_bytes_max: DEFERRED_BYTES_MAX.get(),
            flush_wanted: false,
            waiters: 0,
            dirty_in: 0,
            in_flight_slots: 0,
            in_flight_bytes: 0,
            fenced: false,
            sealed: None,
            damaged: false,
            torn: false,
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
        Ok(self.take_up())
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
            && journal::is_small(item.payload_bytes())
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
        self.flush_wanted && self.take_up()
    }

    /// Whether the caller has become the one that drives the chunk, or brings it to who does.
    pub fn take_up(&mut self) -> bool {
        if !std::mem::replace(&mut self.busy, true) {
            return true;
        }
        let waits = planted!("chunk.left-to-the-write-back");
        !waits && std::mem::take(&mut self.for_later)
    }

    /// The write-back's turn has come; false if somebody had more haste.
    pub fn take_up_late(&mut self) -> bool {
        debug_assert!(self.busy || !self.for_later, "what waits for the write-back is busy");
        std::mem::take(&mut self.for_later)
    }

    /// Whether there is a commit to write.
    pub fn has_work(&self) -> bool {
        self.flush_is_due() || (!self.pending.is_empty() && self.journaling.is_empty())
    }

    fn flush_is_due(&self) -> bool {
        let much = self.unwritten_bytes >= self.deferred_bytes_max;
        if much && !self.deferred.is_empty() {
            DEFERRED_BYTES_MAX.cross();
        }
        !self.deferred.is_empty() && (self.flush_wanted || much || !self.pending.is_empty())
    }

    /// A driver lets go of the chunk; true if it must take it up again. What it leaves to nobody is
    /// not left to the write-back either: where one thread does everything, the chunk may have
    /// been left to that while this driver was under way.
    pub fn rest(&mut self) -> bool {
        self.direct &= !self.pending.is_empty();
        self.for_later = false;
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
        let commits = 2 + 2 * self.pending_bytes.div_ceil(COMMIT_BYTES_MAX.get());
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
            if !items.is_empty() && stored + bytes > COMMIT_BYTES_MAX.get() {
                COMMIT_BYTES_MAX.cross();
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
            if !items.is_empty() && stored > COMMIT_BYTES_MAX.get() {
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
        assert_eq!(batch.offset, self.data_end, "a commit stands where the last one ended");
        assert!(batch.header.sequence > self.written, "commits are written in their order");
        assert!(self.synced <= self.written, "what is durable was written");
        for record in &batch.records {
            // A gap would be damage, and two bytes at one place one too many.
            assert_eq!(record.header.position, self.index.length(), "appends follow each other");
            let at = batch.offset + record.at;
            match &mut self.index {
                Index::Raw(raw) => raw.append(
                    PhysicalExtent {
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
                    let bytes = item.payload_bytes();
                    let left = self.unwritten_bytes.checked_sub(bytes);
                    self.unwritten_bytes = left.expect("it was acknowledged from the journal");
                    self.journal_forgets(item);
                }
            }
        }
        self.check_counts();
    }

    /// What lists hold and what is counted of them.
    fn check_counts(&self) {
        debug_assert!(
            {
                let bytes = |items: &VecDeque<Pending>| -> u64 {
                    items.iter().map(Pending::payload_bytes).sum()
                };
                let raw = matches!(self.index, Index::Raw(_));
                let end = self.length() + bytes(&self.journaling) + bytes(&self.pending);
                !raw || self.in_flight || self.staged_end >= end
            },
            "an append waits that no later one knows of"
        );
        debug_assert!(
            self.deferred.iter().map(|d| d.item.payload_bytes()).sum::<u64>()
                <= self.unwritten_bytes,
            "what is deferred is acknowledged"
        );
        debug_assert!(self.data_end.is_multiple_of(SECTOR), "commits fill sectors");
    }

    pub(super) fn journal_forgets(&mut self, item: &Pending) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Needle;
    use holdfast_base::ids::{ChunkId, Generation, StoreId};
    use holdfast_base::limits::CHUNK_BYTES;

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

    /// Its checksums, one for each block, are part of what it takes, and so is the longest hint.
    #[test]
    fn an_object_of_just_the_room_that_is_told_fits() {
        for capacity_bytes in [1 << 20, 2 * CHUNK_BYTES] {
            let header = FileHeader { capacity_bytes, ..header() };
            let mut core = Core::new(ChunkKind::Packed, SECTOR, SECTOR);
            let mut item = object(core.room(&header) as usize);
            let Append::Needle { needle, .. } = &mut item.append else { unreachable!() };
            needle.hint = vec![b'h'; crate::NEEDLE_HINT_BYTES_MAX];
            assert!(core.stage(&header, item).is_ok(), "{capacity_bytes}");
            assert!(core.take_batch(&header).is_some_and(|batch| batch.refused.is_empty()));
        }
    }
}
