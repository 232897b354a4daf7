//! One attempt at one split of the input: its records are cut into partitions by the sort's own
//! distributor, and leave in blocks for the receivers that have these. A receiver that is lost
//! costs its own partitions: the others get theirs.

use crate::ledger::Attempt;
use crate::limits::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, PARTITIONS_MAX, READ_BYTES, RECORD_BYTES_MAX,
};
use crate::sender::Sender;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::{Rng, Secret, planted};
use holdfast_sort::hash::Sum;
use holdfast_sort::kernel::combine::{Blocks, Combiner};
use holdfast_sort::kernel::{extend, scan};
use holdfast_sort::order::Order;
use holdfast_sort::record::Format;
use holdfast_sort::split::Splitters;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A receiver, and the partitions that it has.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// Of all partitions of the job.
    pub partitions: Vec<u32>,
}

/// What is mapped, and where it goes.
pub struct Task {
    /// How the input is cut into records; partitions are of such records, too.
    pub format: Format,
    /// What partitions are cut by.
    pub order: Order,
    /// The same in all mappers of a job.
    pub splitters: Splitters,
    /// Partitions that none of these has are left out.
    pub targets: Vec<Target>,
    /// What receivers of this job know.
    pub token: Secret,
    /// The split and this attempt at it.
    pub attempt: Attempt,
    /// For open blocks.
    pub memory_bytes: u64,
}

/// What an attempt did.
#[derive(Debug)]
pub struct Mapped {
    /// Of all records of the split.
    pub sum: Sum,
    /// A target's error, where it did not get its part.
    pub lost: Vec<Option<Error>>,
    /// Bytes of blocks that went to each target.
    pub sent_bytes: Vec<u64>,
}

enum Line {
    Open(Box<Sender>),
    /// The receiver has the split already.
    Done,
    Lost(Error),
}

struct Lines {
    lines: Vec<Line>,
    /// Which line a partition has.
    line_of: Vec<Option<usize>>,
}

impl Lines {
    fn send(&mut self, p: usize, block: &[u8]) {
        let Some(n) = self.line_of[p] else { return };
        if let Line::Open(sender) = &mut self.lines[n]
            && let Err(e) = sender.send(p as u32, block)
        {
            self.lines[n] = Line::Lost(e);
        }
    }
}

impl Blocks for Lines {
    fn replace(&mut self, p: usize, block: AlignedBuf, filled: usize) -> Result<AlignedBuf> {
        self.send(p, &block[..filled]);
        Ok(block)
    }
}

/// Takes a split's bytes in their order.
pub struct Mapper {
    format: Format,
    order: Order,
    splitters: Splitters,
    combiner: Combiner,
    lines: Lines,
    sums: Vec<Sum>,
    all: Sum,
    /// The front of a record that is not yet whole.
    rest: Vec<u8>,
    split: u64,
}

fn block_bytes(memory: u64, partitions: usize) -> Result<usize> {
    let each = memory as usize / partitions / SECTOR_BYTES * SECTOR_BYTES;
    if partitions > PARTITIONS_MAX || each < BLOCK_BYTES_MIN {
        return Err(Error::invalid(format!(
            "map to {partitions} partitions with {memory} bytes of memory: give at least {}, and at most {PARTITIONS_MAX} partitions",
            partitions * BLOCK_BYTES_MIN
        )));
    }
    Ok(each.min(BLOCK_BYTES_MAX))
}

impl Mapper {
    /// Connects to all targets; one that is not there is lost, and told at the end.
    pub fn begin(task: Task, rng: &dyn Rng) -> Result<Mapper> {
        let count = task.splitters.partitions();
        let block_bytes = block_bytes(task.memory_bytes, count)?;
        let mut line_of = vec![None; count];
        let mut lines = Vec::new();
        for (n, target) in task.targets.iter().enumerate() {
            for p in &target.partitions {
                let line = line_of.get_mut(*p as usize).ok_or_else(|| {
                    Error::invalid(format!("map to partition {p}: there are {count}"))
                })?;
                *line = Some(n);
            }
            lines.push(match Sender::begin(target.address, &task.token, rng, task.attempt) {
                Ok(Some(sender)) => Line::Open(Box::new(sender)),
                Ok(None) => Line::Done,
                Err(e) => Line::Lost(e),
            });
        }
        Ok(Mapper {
            format: task.format,
            order: task.order,
            splitters: task.splitters,
            combiner: Combiner::new(AlignedBuf::pieces(count, block_bytes)),
            lines: Lines { lines, line_of },
            sums: vec![Sum::default(); count],
            all: Sum::default(),
            rest: Vec::new(),
            split: task.attempt.split,
        })
    }

    #[inline]
    fn add(&mut self, record: &[u8]) -> Result<()> {
        let p = self.splitters.find(&self.order, self.format.body(record));
        self.sums[p].add(record);
        self.combiner.add(p, record, &mut self.lines)
    }

    /// Takes the next bytes of the split; what is no whole record waits for more.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let mut at = 0;
        if !self.rest.is_empty() {
            let mut rest = std::mem::take(&mut self.rest);
            at = extend(self.format, &mut rest, bytes);
            if self.format.record_bytes(&rest).is_none() {
                self.rest = rest;
                return self.check_length();
            }
            self.add(&rest)?;
        }
        let bytes = &bytes[at..];
        let mut at = 0;
        if let Format::Delimited(delimiter) = self.format {
            at = scan::records(bytes, delimiter, |start, end| self.add(&bytes[start..end]))?;
        } else {
            while let Some(n) = self.format.record_bytes(&bytes[at..]) {
                self.add(&bytes[at..at + n])?;
                at += n;
            }
        }
        self.rest.extend_from_slice(&bytes[at..]);
        self.check_length()
    }

    fn check_length(&self) -> Result<()> {
        match self.rest.len() > RECORD_BYTES_MAX {
            false => Ok(()),
            true => Err(Error::invalid(format!(
                "map split {}: a record of more than {RECORD_BYTES_MAX} bytes: give the right format, or cut it",
                self.split
            ))),
        }
    }

    /// Says that the input ends here: a last line without its end gets one.
    pub fn end_input(&mut self, name: &str) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let mut rest = std::mem::take(&mut self.rest);
        let whole = self.format.complete(&mut rest);
        whole.map_err(|e| e.context(format_args!("map `{name}`")))?;
        self.add(&rest)
    }

    /// Takes the records that begin in bytes `start..end` of a file.
    pub fn file(&mut self, disk: &dyn Disk, path: &Path, start: u64, end: u64) -> Result<()> {
        let name = path.display().to_string();
        let doing = |e: std::io::Error| Error::from(e).context(format_args!("read `{name}`"));
        let file = disk.open_to_read(path, Access::Direct).map_err(doing)?;
        let length = file.len().map_err(doing)?;
        if end > length {
            return Err(Error::retry(format!(
                "read `{name}`: it became shorter meanwhile: nobody may write to the input"
            )));
        }
        let mut part = Part { file, at: start, length, block: AlignedBuf::zeroed(READ_BYTES) };
        // A record that begins before this part belongs to the one before.
        let mut skipping = false;
        if let Format::Delimited(_) = self.format
            && start > 0
        {
            part.at = start - 1;
            skipping = true;
        }
        while part.at < end || !self.rest.is_empty() {
            let Some(range) = part.fill().map_err(doing)? else { break };
            let mut bytes = &part.block[range];
            if skipping && let Format::Delimited(delimiter) = self.format {
                let Some(i) = memchr::memchr(delimiter, bytes) else { continue };
                let past = usize::from(!planted!("shuffle.split-begins-before-a-newline"));
                (bytes, skipping) = (&bytes[i + past..], false);
            }
            let first = part.at - bytes.len() as u64;
            let until = end.saturating_sub(first).min(bytes.len() as u64) as usize;
            let (inside, beyond) = bytes.split_at(until);
            self.push(inside).map_err(|e| e.context(format_args!("read `{name}`")))?;
            if !self.rest.is_empty() && !beyond.is_empty() {
                // The record that begins in this part and ends in the next one.
                let mut rest = std::mem::take(&mut self.rest);
                extend(self.format, &mut rest, beyond);
                if self.format.record_bytes(&rest).is_some() {
                    return self.add(&rest);
                }
                self.rest = rest;
                self.check_length().map_err(|e| e.context(format_args!("read `{name}`")))?;
            }
        }
        if part.at >= length { self.end_input(&name) } else { Ok(()) }
    }

    /// Sends what is left, and waits until every receiver has its part whole.
    pub fn finish(mut self) -> Result<Mapped> {
        if !self.rest.is_empty() {
            return Err(Error::invalid(format!(
                "map split {}: {} bytes at its end are no whole record",
                self.split,
                self.rest.len()
            )));
        }
        let last = self.combiner.finish(&mut self.lines)?;
        for (p, (block, filled)) in last.into_iter().enumerate() {
            if filled > 0 {
                self.lines.send(p, &block[..filled]);
            }
        }
        self.sums.iter().for_each(|sum| self.all.merge(sum));
        let mut mapped = Mapped { sum: self.all, lost: Vec::new(), sent_bytes: Vec::new() };
        for (n, line) in self.lines.lines.into_iter().enumerate() {
            let sums: Vec<(u32, Sum)> = (0..self.sums.len())
                .filter(|p| self.lines.line_of[*p] == Some(n) && self.sums[*p].records > 0)
                .map(|p| (p as u32, self.sums[p]))
                .collect();
            let (sent, lost) = match line {
                Line::Open(sender) => (sender.sent_bytes, sender.finish(&sums).err()),
                Line::Done => (0, None),
                Line::Lost(e) => (0, Some(e)),
            };
            mapped.sent_bytes.push(sent);
            mapped.lost.push(lost);
        }
        Ok(mapped)
    }
}

/// A file that is read from a byte on.
struct Part {
    file: Arc<dyn File>,
    at: u64,
    length: u64,
    block: AlignedBuf,
}

impl Part {
    /// Reads on; answers where the next bytes of the file are in the block.
    fn fill(&mut self) -> std::io::Result<Option<Range<usize>>> {
        if self.at >= self.length {
            return Ok(None);
        }
        let aligned = self.at / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        let skip = (self.at - aligned) as usize;
        let got = self.file.read_at(&mut self.block, aligned)?;
        if got <= skip {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let end = got.min((self.length - aligned) as usize);
        self.at = aligned + end as u64;
        Ok(Some(skip..end))
    }
}
