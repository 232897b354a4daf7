//! The second phase: partitions are read one after another, sorted side by side, and their
//! records gathered into the output, so that reading, sorting and writing overlap. A partition
//! whose records are all equal streams through; one that does not fit is split, sorted and merged.

use crate::distribute::Chain;
use crate::failure::Failure;
use crate::hash::Sum;
use crate::kernel::{self, ENTRY_BYTES, Entry, Rules, Segments};
use crate::local;
use crate::order::Order;
use crate::output::{Chunks, Cursor, Target};
use crate::plan::{self, Plan};
use crate::progress::Progress;
use crate::record::Format;
use crate::run;
use crate::spill::{Extent, Spills};
use crate::split::Splitters;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

/// Threads that read partitions, and that write the output.
const READERS: usize = 2;
const WRITERS: usize = 3;
/// Places of a lane's bytes in a partition that was read.
const READ_SHIFT: u32 = 40;
/// Places of a block's bytes in memory: a power of two above its length.
const MEMORY_SHIFT: u32 = 24;
/// How long a thread that waits for its turn goes without looking for a failure.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

pub(crate) struct Work<'a> {
    pub format: Format,
    pub order: &'a Order,
    pub unique: bool,
    pub splitters: &'a Splitters,
    pub plan: &'a Plan,
    pub threads: usize,
    pub spills: Option<&'a Spills>,
    pub target: &'a Target,
    pub progress: &'a Progress,
    pub failure: &'a Failure,
    /// By lane and partition.
    pub chains: &'a [Vec<Chain>],
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
    /// Of each lane: where its bytes are in the slot.
    ranges: Vec<(usize, usize)>,
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
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
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
    /// Nothing to read into a slot: no records, in memory already, or all of them equal.
    InPlace,
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
    let writers = if work.target.is_stream() { 1 } else { WRITERS };
    thread::scope(|scope| {
        let writing: Vec<_> = (0..writers)
            .map(|_| {
                local::scoped(scope, "sort-write", || {
                    deliver.chunks.write(work.target, work.failure, work.progress);
                })
            })
            .collect();
        let mut working = Vec::new();
        for _ in 0..if work.plan.in_memory { 0 } else { READERS } {
            working.push(local::scoped(scope, "sort-load", || work.failure.note(deliver.read())));
        }
        for _ in 0..work.threads {
            working.push(local::scoped(scope, "sort-sort", || work.failure.note(deliver.sort())));
        }
        working.into_iter().for_each(|thread| drop(thread.join()));
        writing.iter().for_each(|_| deliver.chunks.end());
    });
    work.failure.result()?;
    let bytes = deliver.shared.lock().offset;
    Ok(Delivered {
        bytes,
        records: deliver.records.into_inner(),
        split_bytes: deliver.split_total.into_inner(),
        split: deliver.split.into_inner(),
    })
}

impl<'a> Deliver<'a> {
    fn new(work: &'a Work<'a>) -> Deliver<'a> {
        let partitions = work.splitters.partitions();
        let mut sums = vec![Sum::default(); partitions];
        for lane in work.chains {
            lane.iter().zip(&mut sums).for_each(|(chain, sum)| sum.merge(&chain.sum));
        }
        let padded = |sum: &Sum| sum.bytes + (work.chains.len() * 2 * SECTOR_BYTES) as u64;
        let need = |sum: &Sum| padded(sum) + sum.records * ENTRY_BYTES;
        let budget = work.plan.partition_budget(work.threads as u64);
        let fits = |sum: &Sum| need(sum) <= budget / 2;
        let way = |(p, sum): (usize, &Sum)| match () {
            () if sum.records == 0 || work.plan.in_memory => Way::InPlace,
            () if work.splitters.is_alone(p) => Way::InPlace,
            () if fits(sum) => Way::Slot,
            () => Way::Split,
        };
        let ways: Vec<Way> = sums.iter().enumerate().map(way).collect();
        let slotted = || sums.iter().zip(&ways).filter(|(_, way)| **way == Way::Slot);
        let slot_bytes = slotted().map(|(sum, _)| padded(sum)).max().unwrap_or(0);
        let records = slotted().map(|(sum, _)| sum.records).max().unwrap_or(0);
        // Whoever splits a partition does it alone, in half of the memory; see `split`.
        let splits = ways.contains(&Way::Split);
        let budget = if splits { budget / 2 } else { budget };
        let sorting = work.threads as u64 * records * ENTRY_BYTES;
        let slots = budget.saturating_sub(sorting) / slot_bytes.max(1);
        let slots = slots.clamp(1, work.threads as u64 + READERS as u64);
        let slots = if slot_bytes == 0 { 0 } else { slots };
        let chunks = Chunks::new(plan::chunks(work.threads as u64), work.plan.chunk_bytes);
        let state = State {
            slots: (0..slots).map(|_| AlignedBuf::zeroed(slot_bytes as usize)).collect(),
            next_read: 0,
            loaded: BTreeMap::new(),
            next_taken: 0,
            turn: 0,
            offset: 0,
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
        loop {
            let mine = self.shared.wait(self.work.failure, |state| {
                let p = state.next_read;
                match self.ways.get(p) {
                    None => Some(None),
                    Some(Way::Slot) => {
                        let slot = state.slots.pop()?;
                        state.next_read += 1;
                        Some(Some((p, Some(slot))))
                    }
                    Some(_) => {
                        state.next_read += 1;
                        Some(Some((p, None)))
                    }
                }
            });
            let Some((p, slot)) = mine? else { return Ok(()) };
            let loaded = match slot {
                Some(slot) => self.load(p, slot)?,
                None => Loaded { slot: None, ranges: Vec::new() },
            };
            self.shared.change(|state| drop(state.loaded.insert(p, loaded)));
        }
    }

    fn load(&self, p: usize, mut slot: AlignedBuf) -> Result<Loaded> {
        let mut ranges = Vec::new();
        let mut at = 0;
        for lane in self.work.chains {
            let start = at;
            let mut end = at;
            for extent in &lane[p].extents {
                let whole = (extent.bytes as usize).next_multiple_of(SECTOR_BYTES);
                self.spills()?.read(&mut slot[at..at + whole], extent.file, extent.offset)?;
                self.work.progress.read(extent.bytes as usize);
                end = at + extent.bytes as usize;
                at += whole;
            }
            ranges.push((start, end));
        }
        Ok(Loaded { slot: Some(slot), ranges })
    }

    fn spills(&self) -> Result<&Spills> {
        self.work.spills.ok_or_else(|| Error::bug("read a partition: there is no temporary file"))
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
                let loaded = if self.work.plan.in_memory {
                    Loaded { slot: None, ranges: Vec::new() }
                } else {
                    state.loaded.remove(&p)?
                };
                state.next_taken += 1;
                Some(Some((p, loaded)))
            });
            let Some((p, loaded)) = taken? else { return Ok(()) };
            match self.ways[p] {
                Way::InPlace if !self.work.plan.in_memory => self.stream(p)?,
                Way::Split => self.split(p)?,
                _ => self.sort_one(p, &loaded, &mut entries, &mut scratch)?,
            }
            if let Some(slot) = loaded.slot {
                self.shared.change(|state| state.slots.push(slot));
            }
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
        let (chains, shift): (Vec<Vec<&[u8]>>, u32) = match &loaded.slot {
            Some(slot) => {
                let ranges = loaded.ranges.iter();
                (ranges.map(|(start, end)| vec![&slot[*start..*end]]).collect(), READ_SHIFT)
            }
            None => {
                let blocks = |lane: &'a Vec<Chain>| {
                    lane[p].blocks.iter().map(|(block, bytes)| &block[..*bytes]).collect()
                };
                (work.chains.iter().map(blocks).collect(), MEMORY_SHIFT)
            }
        };
        let skip = work.splitters.shared(p, work.order);
        let rules = Rules { format: work.format, order: work.order, skip };
        let segments = kernel::index(&chains, shift, rules, entries)?;
        kernel::sort(&segments, rules, entries, scratch);
        let mut sum = Sum::default();
        if work.unique {
            kernel::unique(&segments, rules, entries, |record| sum.add(record));
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
        self.records.fetch_add(entries.len() as u64, Ordering::Relaxed);
        let mut cursor = self.cursor(p, bytes)?;
        kernel::gather(segments, self.work.format, entries, |record| {
            sum.add(record);
            cursor.push(record)
        })?;
        self.close(p, cursor, &sum)
    }

    /// Where partition `p` is written. Files say so before it is written, so that the next one
    /// goes on at once; streams wait until all before it is handed over.
    fn cursor(&self, p: usize, bytes: u64) -> Result<Cursor<'_>> {
        let stream = self.work.target.is_stream();
        let offset = self.shared.wait(self.work.failure, |state| {
            if state.turn != p {
                return None;
            }
            let offset = state.offset;
            if !stream {
                state.offset += bytes;
                state.turn += 1;
            }
            Some(offset)
        })?;
        Ok(Cursor::new(&self.chunks, self.work.failure, offset))
    }

    fn close(&self, p: usize, cursor: Cursor<'_>, sum: &Sum) -> Result<()> {
        let end = cursor.finish();
        if self.work.target.is_stream() {
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

    fn extents(&self, p: usize) -> impl Iterator<Item = &[Extent]> {
        self.work.chains.iter().map(move |lane| &lane[p].extents[..])
    }

    /// Copies a partition whose records are all equal; only the first of them if they are to be
    /// unique.
    fn stream(&self, p: usize) -> Result<()> {
        let (mut sum, mut kept) = (Sum::default(), Sum::default());
        let mut cursor = None;
        for extents in self.extents(p) {
            let mut run = self.run(extents, self.work.plan.chunk_bytes)?;
            while let Some(record) = run.next()? {
                sum.add(record);
                if self.work.unique && kept.records > 0 {
                    continue;
                }
                kept.add(record);
                if cursor.is_none() {
                    let all = self.sums[p].bytes;
                    let bytes = if self.work.unique { kept.bytes } else { all };
                    cursor = Some(self.cursor(p, bytes)?);
                }
                cursor.iter_mut().try_for_each(|cursor| cursor.push(record))?;
            }
        }
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => self.cursor(p, 0)?,
        };
        self.records.fetch_add(kept.records, Ordering::Relaxed);
        self.close(p, cursor, &sum)
    }

    fn run<'b>(&'b self, extents: &[Extent], window: usize) -> Result<run::Run<'b>> {
        let spills = self.spills()?;
        let progress = self.work.progress;
        Ok(run::Run::of_extents(spills, extents.to_vec(), self.work.format, window, progress))
    }

    /// The third phase: sorts what fits at a time, writes it, and merges. One at a time: it takes
    /// the half of the memory that no slot has.
    fn split(&self, p: usize) -> Result<()> {
        let runs = {
            let _alone = SPLITTING.lock().expect("no holder of this lock panics");
            self.sorted_runs(p)?
        };
        self.split.fetch_add(1, Ordering::Relaxed);
        self.split_total.fetch_add(self.sums[p].bytes, Ordering::Relaxed);
        let bytes = match self.work.unique {
            false => self.sums[p].bytes,
            // Where the next partition is written depends on what is left of this one.
            true => self.merge(p, &runs, |_| Ok(()))?.1.bytes,
        };
        let mut cursor = self.cursor(p, bytes)?;
        let (sum, kept) = self.merge(p, &runs, |record| cursor.push(record))?;
        self.records.fetch_add(kept.records, Ordering::Relaxed);
        self.close(p, cursor, &sum)
    }

    /// Merges runs; answers the sums of all records and of those that were kept.
    fn merge(
        &self,
        p: usize,
        runs: &[Vec<Extent>],
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(Sum, Sum)> {
        let work = self.work;
        let window = (self.split_bytes / 4 / runs.len().max(1) as u64)
            .clamp(SECTOR_BYTES as u64, work.plan.chunk_bytes as u64) as usize;
        let mut sources = Vec::new();
        for extents in runs {
            sources.push(self.run(extents, window)?);
        }
        let (mut sum, mut kept) = (Sum::default(), Sum::default());
        let mut last = Vec::new();
        run::merge(&mut sources, work.order, work.format, |record| {
            sum.add(record);
            if work.unique {
                let body = work.format.body(record);
                if kept.records > 0 && work.order.compare(&last, body).is_eq() {
                    return Ok(());
                }
                last.clear();
                last.extend_from_slice(body);
            }
            kept.add(record);
            each(record)
        })
        .map_err(|e| e.context(format_args!("merge partition {p}")))?;
        Ok((sum, kept))
    }

    /// Sorts a partition piece by piece; answers the pieces, in the order of the input.
    fn sorted_runs(&self, p: usize) -> Result<Vec<Vec<Extent>>> {
        let work = self.work;
        let sum = &self.sums[p];
        let mean = (sum.bytes / sum.records.max(1)).max(1);
        // Bytes, their entries twice, and the block that they are written in.
        let most =
            (self.split_bytes as u128 * mean as u128 / (mean + 2 * ENTRY_BYTES) as u128) as usize;
        let most = most / 4;
        let mut runs = Vec::new();
        let (mut entries, mut scratch) = (Vec::new(), Vec::new());
        let rules = Rules {
            format: work.format,
            order: work.order,
            skip: work.splitters.shared(p, work.order),
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(most);
        for extents in self.extents(p) {
            let mut run = self.run(extents, work.plan.chunk_bytes)?;
            while let Some(record) = run.next()? {
                if bytes.len() + record.len() > most && !bytes.is_empty() {
                    runs.push(self.write_run(rules, &bytes, &mut entries, &mut scratch)?);
                    bytes.clear();
                }
                bytes.extend_from_slice(record);
            }
        }
        runs.push(self.write_run(rules, &bytes, &mut entries, &mut scratch)?);
        Ok(runs)
    }

    fn write_run(
        &self,
        rules: Rules<'_>,
        bytes: &[u8],
        entries: &mut Vec<Entry>,
        scratch: &mut Vec<Entry>,
    ) -> Result<Vec<Extent>> {
        let spills = self.spills()?;
        let segments = kernel::index(&[vec![bytes]], READ_SHIFT, rules, entries)?;
        kernel::sort(&segments, rules, entries, scratch);
        let mut writer = run::Writer::new(spills, self.work.plan.chunk_bytes, self.work.progress);
        kernel::gather(&segments, rules.format, entries, |record| writer.push(record))?;
        writer.finish()
    }
}

/// Held while partitions are split: there is memory for one.
static SPLITTING: Mutex<()> = Mutex::new(());
