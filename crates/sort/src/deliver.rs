//! The second phase: partitions are read one after another, sorted side by side, and their
//! records gathered into the output, so that reading, sorting and writing overlap. A partition
//! whose records are all equal streams through; one that does not fit is split, sorted and merged.

mod third;

use crate::distribute::{Chain, Outbox, Piece};
use crate::failure::Failure;
use crate::hash::Sum;
use crate::kernel::{self, ENTRY_BYTES, Entry, Rules, Segments};
use crate::local::{Crew, Role};
use crate::manifest::{Done, Journal};
use crate::order::Order;
use crate::output::{Chunks, Cursor, Target, Ticket};
use crate::plan::{self, SortPlan};
use crate::progress::Progress;
use crate::record::Format;
use crate::spill::{Settled, Spills};
use crate::split::Splitters;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::trial::Knob;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

/// Threads that read partitions, and that write the output.
static READERS: Knob = Knob::new("sort.readers", 2, &[1, 3]);
static WRITERS: Knob = Knob::new("sort.writers", 3, &[1, 2]);
/// Places of a piece's bytes: a power of two above its length.
const PIECE_SHIFT: u32 = 24;
/// How long a thread that waits for its turn goes without looking for a failure.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

pub(crate) struct Work<'a> {
    pub format: Format,
    pub order: &'a Order,
    pub unique: bool,
    pub splitters: &'a Splitters,
    pub plan: &'a SortPlan,
    pub threads: usize,
    pub crew: Crew,
    pub spills: Option<&'a Spills>,
    pub target: &'a Target,
    pub progress: &'a Progress,
    pub failure: &'a Failure,
    /// By lane and partition.
    pub chains: &'a [Vec<Chain>],
    /// Blocks of the first phase that may still be on their way to the temporary disks.
    pub outbox: &'a Outbox,
    /// Partitions that are in the output already.
    pub done: &'a [Option<Done>],
    /// Only so many records.
    pub first: Option<u64>,
    pub journal: Option<&'a Journal>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    pub bytes: u64,
    pub records: u64,
    /// Bytes of partitions that went through the third phase, and how many partitions.
    pub split_bytes: u64,
    pub split: u64,
}

/// A partition in memory.
struct Loaded {
    slot: Option<AlignedBuf>,
    /// Where the bytes of each piece that was read are in the slot.
    ranges: Vec<(usize, usize)>,
}

impl Loaded {
    fn nothing() -> Loaded {
        Loaded { slot: None, ranges: Vec::new() }
    }
}

/// Hands partitions from readers to sorters in order.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    slots: Vec<AlignedBuf>,
    next_read: usize,
    loaded: BTreeMap<usize, Loaded>,
    next_taken: usize,
    /// The partition whose turn it is to say where it is written, and where that is.
    turn: usize,
    offset: u64,
    /// Records that are still wanted.
    left: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    /// Waits until `ready` answers something.
    fn wait<T>(
        &self,
        failure: &Failure,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let mut state = self.lock();
        loop {
            failure.result()?;
            if let Some(answer) = ready(&mut state) {
                drop(state);
                self.changed.notify_all();
                return Ok(answer);
            }
            state =
                self.changed.wait_timeout(state, LOOK).expect("no holder of this lock panics").0;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// How a partition is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// No records, or none that are wanted.
    Nothing,
    /// It is in the output.
    Done(Done),
    /// All of its bytes are in memory.
    InPlace,
    /// All of its records are equal.
    Stream,
    /// Read into a slot.
    Slot,
    /// Too large for a slot.
    Split,
}

struct Deliver<'a> {
    work: &'a Work<'a>,
    sums: Vec<Sum>,
    ways: Vec<Way>,
    /// Bytes that a partition of the third phase may take.
    split_bytes: u64,
    shared: Shared,
    chunks: Chunks,
    records: AtomicU64,
    split: AtomicU64,
    split_total: AtomicU64,
}

pub(crate) fn run(work: &Work<'_>) -> Result<Delivered> {
    let deliver = Deliver::new(work);
    let writers = if work.target.is_stream() { 1 } else { WRITERS.size() };
    thread::scope(|scope| {
        let writing: Vec<_> = (0..writers)
            .map(|_| {
                work.crew.scoped(scope, "sort-write", Role::Waits, || {
                    let Work { target, journal, failure, progress, .. } = *work;
                    deliver.chunks.write(target, journal, failure, progress);
                })
            })
            .collect();
        let mut working = Vec::new();
        for _ in 0..if work.spills.is_none() { 0 } else { READERS.size() } {
            let load = || work.failure.note(deliver.read());
            working.push(work.crew.scoped(scope, "sort-load", Role::Waits, load));
        }
        for _ in 0..work.threads {
            let sort = || work.failure.note(deliver.sort());
            working.push(work.crew.scoped(scope, "sort-sort", Role::Computes, sort));
        }
        working.into_iter().for_each(|thread| drop(thread.join()));
        writing.iter().for_each(|_| deliver.chunks.end());
    });
    work.failure.result()?;
    let bytes = deliver.shared.lock().offset;
    if !work.target.is_stream() && bytes > writers as u64 * work.plan.chunk_bytes as u64 {
        WRITERS.cross();
    }
    Ok(Delivered {
        bytes,
        records: deliver.records.into_inner(),
        split_bytes: deliver.split_total.into_inner(),
        split: deliver.split.into_inner(),
    })
}

impl<'a> Deliver<'a> {
    fn new(work: &'a Work<'a>) -> Deliver<'a> {
        let sums = sums(work.splitters.partitions(), work.chains);
        let held: usize = blocks(work.chains).map(|block| block.len()).sum();
        let budget = work.plan.partition_budget(work.threads as u64, held as u64);
        let ways = ways(work, &sums, budget);
        let slotted = || (0..sums.len()).filter(|p| ways[*p] == Way::Slot);
        if slotted().count() > READERS.size() {
            READERS.cross();
        }
        let slot_bytes = slotted().map(|p| slot_bytes(work, p)).max().unwrap_or(0);
        let records = slotted().map(|p| sums[p].records).max().unwrap_or(0);
        // Whoever splits a partition does it alone, in half of the memory; see `split`.
        let splits = ways.contains(&Way::Split);
        let budget = if splits { budget / 2 } else { budget };
        let sorting = work.threads as u64 * records * ENTRY_BYTES;
        let slots = budget.saturating_sub(sorting) / slot_bytes.max(1);
        let slots = slots.clamp(1, work.threads as u64 + READERS.get());
        let slots = if slot_bytes == 0 { 0 } else { slots };
        let chunks = Chunks::new(plan::chunks(work.threads as u64), work.plan.chunk_bytes);
        let state = State {
            slots: (0..slots).map(|_| AlignedBuf::zeroed(slot_bytes as usize)).collect(),
            next_read: 0,
            loaded: BTreeMap::new(),
            next_taken: 0,
            turn: 0,
            offset: 0,
            left: work.first.unwrap_or(u64::MAX),
        };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        Deliver {
            work,
            sums,
            ways,
            split_bytes: budget,
            shared,
            chunks,
            records: AtomicU64::new(0),
            split: AtomicU64::new(0),
            split_total: AtomicU64::new(0),
        }
    }

    fn read(&self) -> Result<()> {
        // The blocks of the first phase are part of the memory until they are written.
        let spills = self.spills()?;
        loop {
            let mine = self.shared.wait(self.work.failure, |state| {
                while let Some(way) = self.ways.get(state.next_read) {
                    if *way == Way::Slot {
                        let slot = state.slots.pop()?;
                        state.next_read += 1;
                        return Some(Some((state.next_read - 1, slot)));
                    }
                    state.next_read += 1;
                }
                Some(None)
            });
            let Some((p, slot)) = mine? else { return Ok(()) };
            let loaded = self.load(p, slot, spills)?;
            self.shared.change(|state| drop(state.loaded.insert(p, loaded)));
        }
    }

    fn load(&self, p: usize, mut slot: AlignedBuf, spills: Settled<'_>) -> Result<Loaded> {
        let mut ranges = Vec::new();
        let mut at = 0;
        for piece in self.work.chains.iter().flat_map(|lane| &lane[p].pieces) {
            let Piece::Spilled(extent) = piece else { continue };
            let whole = (extent.bytes as usize).next_multiple_of(SECTOR_BYTES);
            spills.read(&mut slot[at..at + whole], extent.file, extent.offset)?;
            self.work.progress.read(extent.bytes as usize);
            ranges.push((at, at + extent.bytes as usize));
            at += whole;
        }
        Ok(Loaded { slot: Some(slot), ranges })
    }

    /// The temporary files, once all that the first phase sent to them is there.
    fn spills(&self) -> Result<Settled<'_>> {
        let spills = self.work.spills.map(|spills| self.work.outbox.settle(spills));
        spills.ok_or_else(|| Error::bug("read a partition: there is no temporary file"))
    }

    fn sort(&self) -> Result<()> {
        let (mut entries, mut scratch) = (Vec::new(), Vec::new());
        loop {
            if self.work.progress.is_stopped() {
                return Err(Error::retry("sort: interrupted"));
            }
            let taken = self.shared.wait(self.work.failure, |state| {
                let p = state.next_taken;
                if p >= self.ways.len() {
                    return Some(None);
                }
                let loaded = match self.ways[p] {
                    Way::Slot => state.loaded.remove(&p)?,
                    _ => Loaded::nothing(),
                };
                state.next_taken += 1;
                Some(Some((p, loaded)))
            });
            let Some((p, loaded)) = taken? else { return Ok(()) };
            match self.ways[p] {
                Way::Nothing => drop(self.cursor(p, 0, 0)?),
                Way::Done(done) => self.skip(p, done)?,
                Way::Stream => self.stream(p)?,
                Way::Split => self.split(p)?,
                Way::InPlace | Way::Slot => {
                    self.sort_one(p, &loaded, &mut entries, &mut scratch)?
                }
            }
            if let Some(slot) = loaded.slot {
                self.shared.change(|state| state.slots.push(slot));
            }
        }
    }

    /// Goes past what is in the output already.
    fn skip(&self, p: usize, done: Done) -> Result<()> {
        let cursor = self.cursor(p, done.bytes, done.records)?;
        self.records.fetch_add(done.records, Ordering::Relaxed);
        self.work.progress.wrote(done.bytes as usize);
        match cursor.finish() {
            at if at == done.offset => Ok(()),
            at => Err(Error::corrupt(format!(
                "resume: partition {p} was written at {}, and belongs at {at}: remove what is left and sort again",
                done.offset
            ))),
        }
    }

    fn sort_one(
        &self,
        p: usize,
        loaded: &Loaded,
        entries: &mut Vec<Entry>,
        scratch: &mut Vec<Entry>,
    ) -> Result<()> {
        let work = self.work;
        let mut ranges = loaded.ranges.iter();
        let mut chains: Vec<Vec<&[u8]>> = Vec::new();
        for lane in work.chains {
            let mut parts: Vec<&[u8]> = Vec::new();
            for piece in &lane[p].pieces {
                match (piece, &loaded.slot) {
                    (Piece::Kept(block, bytes), _) => parts.push(&block[..*bytes]),
                    (Piece::Spilled(_), Some(slot)) => {
                        parts.extend(ranges.next().map(|(start, end)| &slot[*start..*end]));
                    }
                    _ => {}
                }
            }
            chains.push(parts);
        }
        let depth = work.splitters.shared(p, work.order);
        let rules = Rules { format: work.format, order: work.order, depth };
        let segments = kernel::index(&chains, PIECE_SHIFT, rules, entries)?;
        kernel::sort(&segments, rules, entries, scratch);
        let mut sum = Sum::default();
        if work.unique {
            kernel::unique(&segments, rules, entries, |record| sum.add(record));
        }
        let left = self.left(p)?.min(entries.len() as u64) as usize;
        for dropped in entries.drain(left..) {
            sum.add(segments.record(work.format, dropped));
        }
        self.gather(p, &segments, entries, sum)
    }

    fn gather(
        &self,
        p: usize,
        segments: &Segments<'_>,
        entries: &[Entry],
        mut sum: Sum,
    ) -> Result<()> {
        let bytes = self.sums[p].bytes - sum.bytes;
        let records = entries.len() as u64;
        self.records.fetch_add(records, Ordering::Relaxed);
        let mut cursor = self.cursor(p, bytes, records)?;
        kernel::gather(segments, self.work.format, entries, |record| {
            sum.add(record);
            cursor.push(record)
        })?;
        self.close(p, cursor, &sum)
    }

    /// How many records of partition `p` are wanted at most; known when its turn has come.
    fn left(&self, p: usize) -> Result<u64> {
        if self.work.first.is_none() {
            return Ok(u64::MAX);
        }
        let turn = |state: &mut State| (state.turn == p).then_some(state.left);
        self.shared.wait(self.work.failure, turn)
    }

    /// Where partition `p` is written. Files say so before it is written, so that the next one
    /// goes on at once; streams wait until all before it is handed over.
    fn cursor(&self, p: usize, bytes: u64, records: u64) -> Result<Cursor<'_>> {
        let stream = self.work.target.is_stream();
        let offset = self.shared.wait(self.work.failure, |state| {
            if state.turn != p {
                return None;
            }
            let offset = state.offset;
            debug_assert!(records <= state.left, "partition {p} has more than is wanted");
            state.left -= records.min(state.left);
            if !stream || bytes == 0 {
                state.offset += bytes;
                state.turn += 1;
            }
            Some(offset)
        })?;
        let ticket = Ticket::new(p, Done { offset, bytes, records });
        Ok(Cursor::new(&self.chunks, self.work.failure, offset).with(ticket))
    }

    fn close(&self, p: usize, cursor: Cursor<'_>, sum: &Sum) -> Result<()> {
        let bytes = cursor.bytes();
        let end = cursor.finish();
        if self.work.target.is_stream() && bytes > 0 {
            self.shared.change(|state| {
                state.offset = end;
                state.turn += 1;
            });
        }
        if *sum != self.sums[p] {
            return Err(Error::corrupt(format!(
                "sort partition {p}: {} records came out of the temporary files, {} went in, or their bytes differ: a disk or memory changes what is stored",
                sum.records, self.sums[p].records
            )));
        }
        Ok(())
    }
}

/// Number, bytes and hash of every partition's records.
pub(crate) fn sums(partitions: usize, chains: &[Vec<Chain>]) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); partitions];
    for lane in chains {
        lane.iter().zip(&mut sums).for_each(|(chain, sum)| sum.merge(&chain.sum));
    }
    sums
}

/// The blocks that stayed in memory.
fn blocks(chains: &[Vec<Chain>]) -> impl Iterator<Item = &AlignedBuf> {
    let pieces = chains.iter().flatten().flat_map(|chain| &chain.pieces);
    pieces.filter_map(|piece| match piece {
        Piece::Kept(block, _) => Some(block),
        Piece::Spilled(_) => None,
    })
}

/// What a partition takes in a slot.
fn slot_bytes(work: &Work<'_>, p: usize) -> u64 {
    let pieces = work.chains.iter().flat_map(|lane| &lane[p].pieces);
    let bytes = pieces.map(|piece| match piece {
        Piece::Spilled(extent) => extent.bytes.next_multiple_of(SECTOR_BYTES as u64),
        Piece::Kept(..) => 0,
    });
    bytes.sum()
}

fn ways(work: &Work<'_>, sums: &[Sum], budget: u64) -> Vec<Way> {
    let mut before = 0;
    let way = |(p, sum): (usize, &Sum)| {
        let in_front = before;
        before += sum.records;
        let bytes = slot_bytes(work, p);
        match work.done.get(p).copied().flatten() {
            Some(done) => Way::Done(done),
            None if sum.records == 0 => Way::Nothing,
            // Without `unique` it is known where the last record that is wanted is.
            None if !work.unique && work.first.is_some_and(|first| in_front >= first) => {
                Way::Nothing
            }
            None if bytes == 0 => Way::InPlace,
            None if work.splitters.is_alone(p) => Way::Stream,
            None if bytes + sum.records * ENTRY_BYTES <= budget / 2 => Way::Slot,
            None => Way::Split,
        }
    };
    sums.iter().enumerate().map(way).collect()
}
