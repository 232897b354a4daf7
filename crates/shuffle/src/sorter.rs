//! The second phase of one partition: what arrived is sorted and handed on front to back. One that
//! fits the memory is read once; one that does not goes through the sort of a single machine, which
//! writes and reads it once more.

use crate::limits::{BLOCK_BYTES_MAX, OUTPUT_BYTES};
use crate::output::Sink;
use crate::receiver::{Partition, Receiver};
use crate::spool::SpoolReader;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::RealDisk;
use holdfast_sort::hash::Sum;
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job};
use holdfast_sort::kernel::{self, ENTRY_BYTES, Entry, Rules};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use std::io::Write;

/// Places within a block, which is longer than none of them.
const SHIFT: u32 = 21;
const _: () = assert!(BLOCK_BYTES_MAX < 1 << SHIFT);

/// How a partition is sorted.
pub struct Sorting {
    /// As the mappers have it.
    pub format: Format,
    /// As the mappers have it.
    pub order: Order,
    /// For all buffers.
    pub memory_bytes: u64,
    /// Of a partition that does not fit.
    pub threads: usize,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Sorted {
    /// Of the records that were handed on, which are those that were sent.
    pub sum: Sum,
    /// It was too large for the memory.
    pub outgrew: bool,
}

/// Memory that the sort of a partition leaves to that of the next one: pages that are there need not
/// be asked for and zeroed again, which costs as much as the sort.
#[derive(Default)]
pub(crate) struct Workspace {
    blocks: Option<AlignedBuf>,
    entries: Vec<Entry>,
    scratch: Vec<Entry>,
}

impl Workspace {
    /// Has room for a partition, which fits `most` bytes.
    fn prepare(&mut self, blocks: usize, records: usize, most: u64) {
        let there = self.blocks.as_ref().map_or(0, |there| there.len());
        self.entries.clear();
        if blocks <= there && records <= self.entries.capacity().min(self.scratch.capacity()) {
            return;
        }
        // What is there goes first. The next partition may be a little larger, and has room, too.
        *self = Workspace::default();
        let (larger, more) = (blocks + blocks / 4, records + records / 4);
        let fits = larger as u64 + more as u64 * ENTRY_BYTES <= most;
        let (blocks, records) = if fits { (larger, more) } else { (blocks, records) };
        self.blocks = Some(AlignedBuf::zeroed(blocks));
        self.entries.reserve_exact(records);
        self.scratch.reserve_exact(records);
    }
}

/// Hands the records of a partition to `sink`, in order; equal ones in the order of the splits and
/// in theirs.
pub fn sort(
    receiver: &Receiver,
    partition: u32,
    sorting: &Sorting,
    sink: impl Sink,
) -> Result<Sorted> {
    let arrived = receiver.partition(partition)?;
    // What is in memory is counted by whoever keeps it there.
    let blocks: u64 = arrived.chains.iter().flatten().map(|extent| extent.room() as u64).sum();
    let need = blocks + arrived.sum.records * ENTRY_BYTES + OUTPUT_BYTES as u64;
    let outgrew = need > sorting.memory_bytes;
    let expected = arrived.sum;
    // Whoever sorts another partition at the same time has a workspace of its own.
    let mut workspace = std::mem::take(&mut *receiver.workspace().held());
    let sorted = match outgrew {
        false => {
            let most = sorting.memory_bytes - OUTPUT_BYTES as u64;
            workspace.prepare(blocks as usize, arrived.sum.records as usize, most);
            let sorted = in_memory(&arrived, sorting, &mut workspace, sink);
            *receiver.workspace().held() = workspace;
            sorted
        }
        true => {
            drop(workspace);
            outgrown(arrived, sorting, sink)
        }
    };
    let sum = sorted.map_err(|e| e.context(format_args!("sort partition {partition}")))?;
    if sum != expected {
        return Err(Error::corrupt(format!(
            "sort partition {partition}: {} records of {} bytes came out, {} of {} were sent",
            sum.records, sum.bytes, expected.records, expected.bytes
        )));
    }
    Ok(Sorted { sum, outgrew })
}

fn in_memory(
    arrived: &Partition,
    sorting: &Sorting,
    workspace: &mut Workspace,
    mut sink: impl Sink,
) -> Result<Sum> {
    let Workspace { blocks, entries, scratch } = workspace;
    let mut free: &mut [u8] = blocks.as_mut().map_or(&mut [], |blocks| &mut blocks[..]);
    let mut slices: Vec<Vec<&[u8]>> = Vec::with_capacity(arrived.chains.len());
    for chain in &arrived.chains {
        let mut parts = Vec::with_capacity(chain.len());
        for extent in chain {
            let (block, rest) = free.split_at_mut(extent.room());
            free = rest;
            parts.push(arrived.spool.read(extent, block)?);
        }
        slices.push(parts);
    }
    let rules = Rules { format: sorting.format, order: &sorting.order, depth: Default::default() };
    let segments = kernel::index(&slices, SHIFT, rules, entries)?;
    kernel::sort(&segments, rules, entries, scratch);
    let mut sum = Sum::default();
    kernel::gather(&segments, sorting.format, entries, |record| {
        sum.add(record);
        sink.push(record)
    })?;
    sink.finish()?;
    Ok(sum)
}

fn outgrown(arrived: Partition, sorting: &Sorting, sink: impl Sink) -> Result<Sum> {
    let Partition { chains, sum, spool } = arrived;
    let temp = vec![spool.directory.clone()];
    let extents = chains.into_iter().flatten().collect();
    let name = "what arrived".to_owned();
    let job = Job {
        inputs: vec![Input::Stream(name, Box::new(SpoolReader::new(spool, extents)))],
        output: Output::Stream("the partition".to_owned(), Box::new(Handing(sink))),
        format: sorting.format,
        order: sorting.order.clone(),
        unique: false,
        memory_bytes: sorting.memory_bytes.max(holdfast_sort::memory_bytes_min()),
        temp,
        threads: sorting.threads,
        pinned: false,
        first: None,
        resume: false,
    };
    // It compares the records' hashes on its way itself.
    let report = job::run(&RealDisk, job, &Progress::default())?;
    Ok(Sum { records: report.records_out, bytes: report.bytes_out, hash: sum.hash })
}

struct Handing<S>(S);

impl<S: Sink> Write for Handing<S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.push(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        // The sort says so at its end.
        self.0.finish().map_err(std::io::Error::other)
    }
}
