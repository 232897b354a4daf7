//! One sort, from its inputs to its output: chooses the plan, runs the phases, cleans up.

use crate::deliver::{self, Delivered};
use crate::distribute::{self, Chain, Lane, Outbox, Piece};
use crate::failure::Failure;
use crate::hash::Sum;
use crate::input::{self, Filled, Input, Opened};
use crate::local::{Crew, Role};
use crate::manifest::{self, Journal, Left};
use crate::order::Order;
use crate::output::{self, FileTarget, Output, Target};
use crate::plan::{Need, Plan};
use crate::progress::{Phase, Progress};
use crate::record::Format;
use crate::spill::{self, Spills};
use crate::split::Splitters;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::{MIB, format_bytes};
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Disk;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;

/// What is to be sorted, and how.
pub struct Job {
    pub inputs: Vec<Input>,
    pub output: Output,
    pub format: Format,
    pub order: Order,
    /// Only the first of equal records.
    pub unique: bool,
    pub memory_bytes: u64,
    /// Directories for temporary files; blocks go to them in turn.
    pub temp: Vec<PathBuf>,
    pub threads: usize,
    /// Threads that read and write have cores apart from those that sort.
    pub pinned: bool,
    /// Only so many records: the first of the order.
    pub first: Option<u64>,
    /// Goes on where a sort of the same that was killed had come to.
    pub resume: bool,
}

/// What a sort did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub bytes: u64,
    pub records_out: u64,
    pub bytes_out: u64,
    /// Everything was read once and written once.
    pub in_memory: bool,
    pub partitions: u64,
    /// Bytes that stayed in memory between the phases.
    pub kept_bytes: u64,
    /// Another sort's first phase was not done again.
    pub resumed: bool,
    /// Partitions too large for the memory, and their bytes: these were read and written once more.
    pub split: u64,
    pub split_bytes: u64,
}

/// Files smaller than this are read by one lane.
const LANE_BYTES_MIN: u64 = 4 * MIB;
/// Room that blocks lose at the end of chains, as a part of the total.
const SPILL_SLACK_PART: u64 = 64;
/// Threads that write blocks to the temporary disks, beyond one a lane.
const MORE_WRITERS: usize = 1;
/// What of a stream is read before deciding, as a part of the memory: as much again is needed to
/// distribute it.
const PRIME_PART: u64 = 3;
/// A stream that does not end early is taken for so many times the memory.
const STREAM_MEMORIES: u64 = 16;

/// The input, opened.
enum Source {
    Files(Vec<Opened>),
    /// The blocks that were read so far, and what is left to read.
    Stream {
        primed: Vec<Filled>,
        pieces: Vec<input::Piece>,
    },
}

/// Sorts. Temporary files are gone afterwards; the output has its name only if all went well.
pub fn run(disk: &dyn Disk, mut job: Job, progress: &Progress) -> Result<Report> {
    let threads = job.threads.max(1);
    progress.begin(Phase::Sample);
    let source = open(disk, &mut job)?;
    let (bytes, known) = source.bytes(&job);
    let lanes = match &source {
        Source::Files(_) => (bytes / LANE_BYTES_MIN).clamp(1, threads as u64),
        Source::Stream { .. } => 1,
    };
    let mut sample = source.sample(job.format, bytes)?;
    let mean = sample.iter().map(|r| r.len() as u64).sum::<u64>() / sample.len().max(1) as u64;
    let need = Need {
        memory_bytes: job.memory_bytes,
        total_bytes: bytes,
        record_bytes: mean,
        lanes,
        threads: threads as u64,
        total_known: known,
    };
    let plan = Plan::new(&need)?;
    let splitters = Splitters::new(job.format, &job.order, &sample, plan.partitions);
    let expected = expected(&job, &splitters, &sample, bytes);
    let kept = plan.kept(&expected, lanes);
    let stays: u64 = expected.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(n, _)| n).sum();
    let name = describe(&job, &source, lanes, &sample);
    sample.clear();
    sample.shrink_to_fit();
    progress.set_total(if known { 4 * bytes - 2 * stays.min(bytes) } else { 0 });
    let id = id_of(&job);
    let lock = lock(disk, &job, &id)?;
    let left = match &name {
        Some(name) if job.resume => left(disk, &job, &id, name)?,
        _ => None,
    };
    if left.is_none() {
        remove_left(disk, &job, &id)?;
    }
    let (target, spills, manifest) = (None, None, None);
    let mut run =
        Run { disk, job, id, plan, splitters, kept, progress, target, spills, manifest, left };
    let done = run.all(source, bytes, known, threads, lanes as usize, name);
    run.clean(done.is_err());
    if let Some((_held, path)) = lock {
        let _ = disk.remove(&path);
    }
    done
}

/// Bytes that each partition will have, by the sample.
fn expected(job: &Job, splitters: &Splitters, sample: &[Vec<u8>], bytes: u64) -> Vec<u64> {
    let mut expected = vec![0u64; splitters.partitions()];
    for record in sample {
        expected[splitters.find(&job.order, job.format.body(record))] += record.len() as u64;
    }
    let all = expected.iter().sum::<u64>().max(1) as u128;
    expected.iter().map(|part| (*part as u128 * bytes as u128 / all) as u64).collect()
}

/// What tells this sort from others in its manifest; none if it cannot be resumed: what came from
/// a stream, or went to one, is gone, and where few records are wanted others were dropped.
fn describe(job: &Job, source: &Source, lanes: u64, sample: &[Vec<u8>]) -> Option<String> {
    let (Source::Files(files), Output::File(_), None) = (source, &job.output, job.first) else {
        return None;
    };
    let mut sum = Sum::default();
    sample.iter().for_each(|record| sum.add(record));
    let files: Vec<(&str, u64)> = files.iter().map(|file| (&*file.name, file.bytes)).collect();
    let Job { order, unique, memory_bytes, temp, threads, format, .. } = job;
    let order = crate::hash::hash(format!("{order:?}").as_bytes());
    Some(format!(
        "of {files:?} (sample {:x}) with {memory_bytes} bytes of memory, {threads} threads, {lanes} lanes, temporary files in {temp:?}, records {}, unique {unique}, order {order:x}",
        sum.hash,
        format.describe()
    ))
}

/// A lock that is held, and its file.
type Held = (Box<dyn Send + Sync>, PathBuf);

/// Keeps other sorts from the same output.
fn lock(disk: &dyn Disk, job: &Job, id: &str) -> Result<Option<Held>> {
    let Output::File(path) = &job.output else { return Ok(None) };
    let lock = output::temporary_path(path, id).with_added_extension("lock");
    let held = disk.lock(&lock).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => Error::exists(format!(
            "write `{}`: another sort is writing it: wait for it, or name another output",
            path.display()
        )),
        _ => Error::from(e).context(format_args!("write `{}`", path.display())),
    })?;
    Ok(Some((held, lock)))
}

/// The files of a sort beside its lock: temporary files, manifest, output.
fn files_of(job: &Job, id: &str) -> Vec<PathBuf> {
    let Output::File(path) = &job.output else { return Vec::new() };
    let mut files: Vec<PathBuf> = job.temp.iter().map(|t| spill::spill_path(t, id)).collect();
    files.extend(job.temp.first().map(|first| manifest::manifest_path(first, id)));
    files.push(output::temporary_path(path, id));
    files
}

/// Removes what one that was killed has left.
fn remove_left(disk: &dyn Disk, job: &Job, id: &str) -> Result<()> {
    for left in files_of(job, id) {
        let gone =
            disk.exists(&left).and_then(|there| if there { disk.remove(&left) } else { Ok(()) });
        gone.map_err(|e| {
            Error::from(e).context(format_args!("remove what a sort left, `{}`", left.display()))
        })?;
    }
    Ok(())
}

/// What one that was killed has left, if it had come far enough and all of its files are there.
fn left(disk: &dyn Disk, job: &Job, id: &str, name: &str) -> Result<Option<Left>> {
    for file in files_of(job, id) {
        let there = disk.exists(&file);
        if !there
            .map_err(|e| Error::from(e).context(format_args!("resume `{}`", file.display())))?
        {
            return Ok(None);
        }
    }
    let Some(first) = job.temp.first() else { return Ok(None) };
    manifest::read(disk, &manifest::manifest_path(first, id), name)
}

struct Run<'a> {
    disk: &'a dyn Disk,
    job: Job,
    id: String,
    plan: Plan,
    splitters: Splitters,
    /// Partitions that stay in memory.
    kept: Vec<bool>,
    progress: &'a Progress,
    target: Option<Target>,
    spills: Option<Arc<Spills>>,
    manifest: Option<PathBuf>,
    /// What a sort that was killed has left.
    left: Option<Left>,
}

impl Run<'_> {
    fn all(
        &mut self,
        source: Source,
        bytes: u64,
        known: bool,
        threads: usize,
        lanes: usize,
        name: Option<String>,
    ) -> Result<Report> {
        let journal = self.prepare(bytes + source.files() as u64, known, name.is_some())?;
        self.progress.begin(Phase::Distribute);
        let (failure, progress, spills) = (Failure::default(), self.progress, self.spills.clone());
        let crew = self.crew();
        let writers = if spills.is_some() { lanes + MORE_WRITERS } else { 0 };
        let (out, outbox) = Outbox::new(writers);
        let (failure, outbox, spills) = (&failure, &outbox, spills.as_deref());
        let (chains, sums, delivered) = thread::scope(|scope| {
            for _ in 0..writers {
                crew.scoped(scope, "sort-spill", Role::Waits, move || {
                    spills.iter().for_each(|spills| outbox.write(spills, progress, failure));
                });
            }
            let chains = self.distribute(source, lanes, out, failure)?;
            let sums = deliver::sums(self.splitters.partitions(), &chains);
            if self.target.is_none() {
                self.make_target(sums.iter().map(|sum| sum.bytes).sum(), false)?;
            }
            self.progress.begin(Phase::Sort);
            let delivered = thread::scope(|scope| {
                if let (Some(journal), Some(name), None) = (&journal, &name, &self.left) {
                    let (disk, chains, sums) = (self.disk, &chains, &sums);
                    crew.scoped(scope, "sort-manifest", Role::Waits, move || {
                        outbox.wait();
                        let durable = || spills.map_or(Ok(()), |spills| spills.sync(disk));
                        let begin = |()| journal.begin(disk, name, chains, sums);
                        if !failure.is_set() {
                            failure.note(durable().and_then(begin));
                        }
                    });
                }
                self.deliver(&chains, threads, outbox, journal.as_ref(), failure)
            });
            Ok::<_, Error>((chains, sums, delivered?))
        })?;
        failure.result()?;
        self.progress.begin(Phase::Finish);
        self.finish(&delivered)?;
        let pieces = chains.iter().flatten().flat_map(|chain| &chain.pieces);
        Ok(Report {
            records: sums.iter().map(|sum| sum.records).sum(),
            bytes: sums.iter().map(|sum| sum.bytes).sum(),
            records_out: delivered.records,
            bytes_out: delivered.bytes,
            in_memory: self.plan.in_memory,
            partitions: self.splitters.partitions() as u64,
            kept_bytes: pieces.map(|piece| piece.kept_bytes()).sum(),
            resumed: self.left.is_some(),
            split: delivered.split,
            split_bytes: delivered.split_bytes,
        })
    }

    fn crew(&self) -> Crew {
        Crew { pinned: self.job.pinned }
    }

    /// Takes room for the output and the temporary files before anything is read, or opens those
    /// that are left.
    fn prepare(&mut self, bytes: u64, known: bool, resumable: bool) -> Result<Option<Journal>> {
        let every = self.plan.checkpoint_bytes;
        let manifest = self.job.temp.first().map(|t| manifest::manifest_path(t, &self.id));
        if let (Some(left), Some(path)) = (&self.left, &manifest) {
            let Output::File(output) = &self.job.output else {
                return Err(Error::bug("resume: the output is no file"));
            };
            let extents = left.extents.iter().flatten().flatten();
            let spills = Spills::open(self.disk, &self.job.temp, &self.id, extents)?;
            self.spills = Some(Arc::new(spills));
            let done = left.done.iter().flatten();
            let target = FileTarget::resume(self.disk, output, &self.id, done)?;
            self.target = Some(Target::File(target));
            let journal = Journal::resume(self.disk, path.clone(), left, every)?;
            self.manifest = manifest;
            return Ok(Some(journal));
        }
        let resumable = resumable && !self.plan.in_memory;
        if known {
            let bytes = if self.job.first.is_some() { 0 } else { bytes };
            self.make_target(bytes, resumable)?;
        }
        if !self.plan.in_memory {
            self.make_spills(if known { bytes } else { 0 })?;
        }
        self.manifest = manifest.filter(|_| resumable);
        Ok(self.manifest.clone().map(|path| Journal::new(path, every)))
    }

    fn distribute(
        &self,
        source: Source,
        lanes: usize,
        out: Sender<distribute::Outgoing>,
        failure: &Failure,
    ) -> Result<Vec<Vec<Chain>>> {
        let partitions = self.splitters.partitions();
        let wanted: Option<Vec<bool>> = self.left.as_ref().map(|left| {
            left.kept.iter().zip(&left.done).map(|(kept, done)| *kept && done.is_none()).collect()
        });
        let work = distribute::Work {
            format: self.job.format,
            order: &self.job.order,
            splitters: &self.splitters,
            plan: &self.plan,
            kept: &self.kept,
            wanted,
            first: self.job.first.filter(|_| !self.job.unique),
            spills: self.spills.as_deref(),
            progress: self.progress,
            failure,
            crew: self.crew(),
        };
        let mut chains: Vec<Vec<Chain>> = match &work.wanted {
            Some(wanted) if !wanted.contains(&true) => Vec::new(),
            _ => distribute::run(&work, source.lanes(lanes, self.job.format)?, out)?,
        };
        chains.resize_with(chains.len().max(1), || {
            (0..partitions).map(|_| Chain::default()).collect()
        });
        let (Some(left), Some(wanted)) = (&self.left, &work.wanted) else { return Ok(chains) };
        chains.resize_with(chains.len().max(left.extents.len()), || {
            (0..partitions).map(|_| Chain::default()).collect()
        });
        let sums = deliver::sums(partitions, &chains);
        for p in 0..partitions {
            if wanted[p] && sums[p] != left.sums[p] {
                return Err(Error::invalid(
                    "resume: the input is not what it was when the sort began: sort without `--resume`",
                ));
            }
            if !wanted[p] {
                chains[0][p].sum = left.sums[p];
                for (chain, extents) in chains.iter_mut().zip(&left.extents) {
                    chain[p].pieces.extend(extents[p].iter().copied().map(Piece::Spilled));
                }
            }
        }
        Ok(chains)
    }

    fn make_target(&mut self, bytes: u64, resumable: bool) -> Result<()> {
        let nowhere = || Output::File(PathBuf::new());
        self.target = Some(match std::mem::replace(&mut self.job.output, nowhere()) {
            Output::Stream(name, stream) => Target::Stream(name, Mutex::new(stream)),
            Output::File(path) => {
                let target = FileTarget::create(self.disk, &path, &self.id, bytes)?;
                Target::File(if resumable { target.early() } else { target })
            }
        });
        Ok(())
    }

    fn make_spills(&mut self, bytes: u64) -> Result<()> {
        let slack = bytes / SPILL_SLACK_PART;
        for directory in &self.job.temp {
            let free = self.disk.space(directory).map_err(|e| {
                let doing = format!("find room for temporary files in `{}`", directory.display());
                Error::from(e).context(doing)
            })?;
            let share = bytes / self.job.temp.len() as u64;
            if free.free_bytes < share {
                return Err(Error::full(format!(
                    "sort {}: `{}` has {} free, temporary files need {} there: free some, or name other directories with `--temp`",
                    format_bytes(bytes),
                    directory.display(),
                    format_bytes(free.free_bytes),
                    format_bytes(share)
                )));
            }
        }
        let spills = Spills::create(self.disk, &self.job.temp, &self.id, bytes + slack)?;
        self.spills = Some(Arc::new(spills));
        Ok(())
    }

    fn deliver(
        &self,
        chains: &[Vec<Chain>],
        threads: usize,
        outbox: &Outbox,
        journal: Option<&Journal>,
        failure: &Failure,
    ) -> Result<Delivered> {
        let Some(target) = &self.target else {
            return Err(Error::bug("write the output: there is none"));
        };
        deliver::run(&deliver::Work {
            format: self.job.format,
            order: &self.job.order,
            unique: self.job.unique,
            splitters: &self.splitters,
            plan: &self.plan,
            threads,
            crew: self.crew(),
            spills: self.spills.as_deref(),
            target,
            progress: self.progress,
            failure,
            chains,
            outbox,
            done: self.left.as_ref().map_or(&[], |left| &left.done),
            first: self.job.first,
            journal,
        })
    }

    fn finish(&self, delivered: &Delivered) -> Result<()> {
        match &self.target {
            Some(Target::File(file)) => file.finish(self.disk, delivered.bytes),
            Some(target) => target.flush(),
            None => Ok(()),
        }
    }

    /// Removes temporary files, and after a failure the half output.
    fn clean(&self, failed: bool) {
        if let Some(spills) = &self.spills {
            spills.remove(self.disk);
        }
        if let Some(manifest) = &self.manifest {
            let _ = self.disk.remove(manifest);
        }
        if let Some(Target::File(file)) = &self.target
            && failed
        {
            let _ = self.disk.remove(&file.temporary);
        }
    }
}

/// Names the files of this sort: the same for the same output.
pub(crate) fn id_of(job: &Job) -> String {
    let name = match &job.output {
        Output::File(path) => path.display().to_string(),
        Output::Stream(name, _) => format!("{name} {}", std::process::id()),
    };
    format!("{:016x}", crate::hash::hash(name.as_bytes()))
}

fn open(disk: &dyn Disk, job: &mut Job) -> Result<Source> {
    let inputs = std::mem::take(&mut job.inputs);
    let mut files = Vec::new();
    let mut pieces = Vec::new();
    let streams = inputs.iter().any(|input| matches!(input, Input::Stream(..)));
    for input in inputs {
        match input {
            Input::File(path) => files.push(input::open(disk, &path)?),
            Input::Stream(name, stream) => {
                pieces.extend(input::lanes(&files, 1, job.format)?.into_iter().flatten());
                files.clear();
                pieces.push(input::Piece::Stream { name: name.into(), stream });
            }
        }
    }
    if !streams {
        return Ok(Source::Files(files));
    }
    pieces.extend(input::lanes(&files, 1, job.format)?.into_iter().flatten());
    prime(pieces, job.memory_bytes)
}

/// Reads from the front until a part of the memory is full.
fn prime(mut pieces: Vec<input::Piece>, memory_bytes: u64) -> Result<Source> {
    let block_bytes = (memory_bytes / PRIME_PART / 16).clamp(SECTOR_BYTES as u64, MIB) as usize;
    let most = memory_bytes / PRIME_PART / block_bytes as u64;
    let mut primed = Vec::new();
    while let Some(piece) = pieces.first_mut()
        && (primed.len() as u64) < most
    {
        let (filled, done) = piece.fill(AlignedBuf::zeroed(block_bytes))?;
        primed.push(filled);
        if done {
            pieces.remove(0);
        }
    }
    Ok(Source::Stream { primed, pieces })
}

impl Source {
    /// Bytes of the input and whether that is known, or else a guess.
    fn bytes(&self, job: &Job) -> (u64, bool) {
        match self {
            Source::Files(files) => (files.iter().map(|file| file.bytes).sum(), true),
            Source::Stream { primed, pieces } if pieces.is_empty() => {
                (primed.iter().map(|block| (block.end - block.start) as u64).sum(), true)
            }
            Source::Stream { .. } => (job.memory_bytes * STREAM_MEMORIES, false),
        }
    }

    /// How many records may need a delimiter.
    fn files(&self) -> usize {
        match self {
            Source::Files(files) => files.len(),
            Source::Stream { primed, .. } => primed.iter().filter(|b| b.ends.is_some()).count(),
        }
    }

    fn sample(&self, format: Format, bytes: u64) -> Result<Vec<Vec<u8>>> {
        // Enough for as many partitions as that many bytes could come to.
        let wanted = (bytes / (4 * MIB)).clamp(16, 256) as usize;
        match self {
            Source::Files(files) => input::sample_files(files, format, wanted),
            Source::Stream { primed, .. } => {
                let mut sample = Vec::new();
                // Blocks of other formats start anywhere in a record: the first has to do.
                let looked = match format {
                    Format::Delimited(_) => primed.len(),
                    _ => primed.len().min(1),
                };
                let (each, room) = input::share(wanted, looked.max(1));
                for block in &primed[..looked] {
                    let bytes = &block.block[block.start..block.end];
                    let start = match format {
                        Format::Delimited(d) => memchr::memchr(d, bytes).map_or(0, |i| i + 1),
                        _ => 0,
                    };
                    input::take_sample(&bytes[start..], format, each, room, &mut sample);
                }
                Ok(sample)
            }
        }
    }

    fn lanes(self, lanes: usize, format: Format) -> Result<Vec<Lane>> {
        match self {
            Source::Files(files) => {
                let lanes = input::lanes(&files, lanes, format)?.into_iter();
                Ok(lanes.map(|pieces| Lane { primed: Vec::new(), pieces }).collect())
            }
            Source::Stream { primed, pieces } => Ok(vec![Lane { primed, pieces }]),
        }
    }
}

/// Where temporary files go unless said otherwise: beside the output.
pub fn default_temp(output: &Output) -> PathBuf {
    match output {
        Output::File(path) => path.parent().filter(|p| !p.as_os_str().is_empty()),
        Output::Stream(..) => None,
    }
    .unwrap_or(Path::new("."))
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of fixed records is sampled from its first block alone, which had only its share
    /// of the sample's memory: a few hundred records for all boundaries.
    #[test]
    fn a_stream_of_fixed_records_has_a_whole_sample() {
        let filled = || {
            let block = AlignedBuf::zeroed(4 << 20);
            Filled { start: 0, end: block.len(), block, ends: None }
        };
        let primed = (0..8).map(|_| filled()).collect();
        let source = Source::Stream { primed, pieces: Vec::new() };
        let sample = source.sample(Format::Fixed(100), 1 << 30).unwrap();
        assert!(sample.len() > 10_000, "{}", sample.len());
    }
}
