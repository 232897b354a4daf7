//! What is no ordinary partition: one whose records are all equal is copied; one that does not fit
//! is sorted piece by piece, and merged. Called by the sorters of the second phase.

use super::{Deliver, Work};
use crate::distribute::Piece;
use crate::hash::Sum;
use crate::kernel::{self, ENTRY_BYTES, Entry, Rules};
use crate::run::{self, Run};
use holdfast_base::Result;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_env::{HoldMutex, planted, sometimes};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Places of the bytes of a run, which is in one piece.
const RUN_SHIFT: u32 = 40;

impl Deliver<'_> {
    fn pieces(&self, p: usize) -> impl Iterator<Item = &[Piece]> {
        self.work.chains.iter().map(move |lane| &lane[p].pieces[..])
    }

    /// Copies a partition whose records are all equal; only the first of them if they are to be
    /// unique, and no more than are wanted.
    pub(super) fn stream(&self, p: usize) -> Result<()> {
        sometimes!("a partition of equal records was copied");
        let mut left = self.left(p)?;
        if self.work.unique {
            left = left.min(1);
        }
        let bytes = match left < self.sums[p].records {
            // They are equal, but need not be of one length.
            true => self.copy(p, left, |_| Ok(()))?.1.bytes,
            false => self.sums[p].bytes,
        };
        let records = left.min(self.sums[p].records);
        let mut cursor = self.cursor(p, bytes, records)?;
        let (sum, _) = self.copy(p, left, |record| cursor.push(record))?;
        self.records.fetch_add(records, Ordering::Relaxed);
        self.close(p, cursor, &sum)
    }

    /// Hands the first `left` records to `each`; answers the sums of all and of those.
    fn copy(
        &self,
        p: usize,
        left: u64,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(Sum, Sum)> {
        let (mut sum, mut kept) = (Sum::default(), Sum::default());
        for pieces in self.pieces(p) {
            let mut run = self.run(pieces, self.work.plan.chunk_bytes)?;
            while let Some(record) = run.next()? {
                sum.add(record);
                if kept.records < left {
                    kept.add(record);
                    each(record)?;
                }
            }
        }
        Ok((sum, kept))
    }

    fn run<'b>(&'b self, pieces: &'b [Piece], window: usize) -> Result<Run<'b>> {
        let Work { format, progress, .. } = *self.work;
        Ok(Run::of_pieces(self.spills()?, pieces, format, window, progress))
    }

    /// The third phase: sorts what fits at a time, writes it, and merges. One at a time: it takes
    /// the half of the memory that no slot has.
    pub(super) fn split(&self, p: usize) -> Result<()> {
        let runs = {
            let _alone = SPLITTING.held();
            self.sorted_runs(p)?
        };
        sometimes!("a partition went through the third phase");
        self.split.fetch_add(1, Ordering::Relaxed);
        self.split_total.fetch_add(self.sums[p].bytes, Ordering::Relaxed);
        let left = self.left(p)?;
        let all = self.sums[p];
        let (bytes, records) = match self.work.unique || left < all.records {
            false => (all.bytes, all.records),
            // Where the next partition is written depends on what is left of this one.
            true => {
                let kept = self.merge(p, &runs, left, |_| Ok(()))?.1;
                (kept.bytes, kept.records)
            }
        };
        let mut cursor = self.cursor(p, bytes, records)?;
        let (sum, kept) = self.merge(p, &runs, left, |record| cursor.push(record))?;
        self.records.fetch_add(kept.records, Ordering::Relaxed);
        self.close(p, cursor, &sum)
    }

    /// Merges runs; answers the sums of all records and of those that were kept, `left` at most.
    fn merge(
        &self,
        p: usize,
        runs: &[Vec<Piece>],
        left: u64,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(Sum, Sum)> {
        let work = self.work;
        let window = (self.split_bytes / 4 / runs.len().max(1) as u64)
            .clamp(SECTOR_BYTES as u64, work.plan.chunk_bytes as u64) as usize;
        let mut sources = Vec::new();
        for pieces in runs {
            sources.push(self.run(pieces, window)?);
        }
        let (mut sum, mut kept) = (Sum::default(), Sum::default());
        let mut last = Vec::new();
        run::merge(&mut sources, work.order, work.format, |record| {
            sum.add(record);
            if kept.records == left {
                return Ok(());
            }
            if work.unique {
                let body = work.format.body(record);
                if kept.records > 0
                    && !planted!("sort.unique-forgets-runs")
                    && work.order.compare(&last, body).is_eq()
                {
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
    fn sorted_runs(&self, p: usize) -> Result<Vec<Vec<Piece>>> {
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
            depth: work.splitters.shared(p, work.order),
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(most);
        for pieces in self.pieces(p) {
            let mut run = self.run(pieces, work.plan.chunk_bytes)?;
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
    ) -> Result<Vec<Piece>> {
        let spills = self.spills()?;
        let segments = kernel::index(&[vec![bytes]], RUN_SHIFT, rules, entries)?;
        kernel::sort(&segments, rules, entries, scratch);
        let mut writer = run::Writer::new(spills, self.work.plan.chunk_bytes, self.work.progress);
        kernel::gather(&segments, rules.format, entries, |record| writer.push(record))?;
        writer.finish()
    }
}

/// Held while partitions are split: there is memory for one.
static SPLITTING: Mutex<()> = Mutex::new(());
