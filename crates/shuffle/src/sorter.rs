//! The second phase of one partition: what arrived is sorted and handed on front to back. One that
//! fits the memory is read once; one that does not goes through the sort of a single machine, which
//! writes and reads it once more.

use crate::limits::{BLOCK_BYTES_MAX, OUTPUT_BYTES};
use crate::receiver::{Partition, Receiver};
use crate::spool::SpoolReader;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::RealDisk;
use holdfast_sort::hash::Sum;
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job};
use holdfast_sort::kernel::{self, ENTRY_BYTES, Rules};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use std::io::Write;

/// Places within a block, which is longer than none of them.
const SHIFT: u32 = 21;
const _: () = assert!(BLOCK_BYTES_MAX < 1 << SHIFT);

/// Where sorted bytes go.
pub type Sink = Box<dyn FnMut(&[u8]) -> Result<()> + Send>;

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

/// Hands the records of a partition to `sink`, in order; equal ones in the order of the splits and
/// in theirs.
pub fn sort(receiver: &Receiver, partition: u32, sorting: &Sorting, sink: Sink) -> Result<Sorted> {
    let arrived = receiver.partition(partition)?;
    let blocks: u64 = arrived.chains.iter().flatten().map(|e| u64::from(e.bytes) + 4096).sum();
    let need = blocks + arrived.sum.records * ENTRY_BYTES + OUTPUT_BYTES as u64;
    let outgrew = need > sorting.memory_bytes;
    let expected = arrived.sum;
    let sorted = match outgrew {
        false => in_memory(&arrived, sorting, sink),
        true => outgrown(arrived, sorting, sink),
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

fn in_memory(arrived: &Partition, sorting: &Sorting, mut sink: Sink) -> Result<Sum> {
    let mut chains: Vec<Vec<(AlignedBuf, usize)>> = Vec::new();
    for chain in &arrived.chains {
        let read = |extent| Ok((arrived.spool.read(extent)?, extent.bytes as usize));
        chains.push(chain.iter().map(|extent| read(*extent)).collect::<Result<_>>()?);
    }
    let slices: Vec<Vec<&[u8]>> = chains
        .iter()
        .map(|chain| chain.iter().map(|(block, bytes)| &block[..*bytes]).collect())
        .collect();
    let rules = Rules { format: sorting.format, order: &sorting.order, depth: Default::default() };
    let mut entries = Vec::with_capacity(arrived.sum.records as usize);
    let mut scratch = Vec::new();
    let segments = kernel::index(&slices, SHIFT, rules, &mut entries)?;
    kernel::sort(&segments, rules, &mut entries, &mut scratch);
    let (mut sum, mut out) = (Sum::default(), Vec::with_capacity(OUTPUT_BYTES));
    kernel::gather(&segments, sorting.format, &entries, |record| {
        sum.add(record);
        if out.len() + record.len() > OUTPUT_BYTES && !out.is_empty() {
            sink(&out)?;
            out.clear();
        }
        out.extend_from_slice(record);
        Ok(())
    })?;
    if !out.is_empty() {
        sink(&out)?;
    }
    Ok(sum)
}

fn outgrown(arrived: Partition, sorting: &Sorting, sink: Sink) -> Result<Sum> {
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

struct Handing(Sink);

impl Write for Handing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.0)(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
