//! One sort, from its inputs to its output: chooses the plan, runs the phases, cleans up.

use crate::deliver::{self, Delivered};
use crate::distribute::{self, Chain, Lane};
use crate::failure::Failure;
use crate::hash::Sum;
use crate::input::{self, Filled, Input, Opened, Piece};
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
use std::sync::Mutex;

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
    /// Partitions too large for the memory, and their bytes: these were read and written once more.
    pub split: u64,
    pub split_bytes: u64,
}

/// Files smaller than this are read by one lane.
const LANE_BYTES_MIN: u64 = 4 * MIB;
/// Room that blocks lose at the end of chains, as a part of the total.
const SPILL_SLACK_PART: u64 = 64;
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
        pieces: Vec<Piece>,
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
    sample.clear();
    sample.shrink_to_fit();
    let passes = if plan.in_memory { 2 } else { 4 };
    progress.set_total(if known { bytes * passes } else { 0 });
    let id = id_of(&job);
    let lock = take_over(disk, &job, &id)?;
    let mut run = Run { disk, job, id, plan, splitters, progress, target: None, spills: None };
    let done = run.all(source, bytes, known, threads, lanes as usize);
    run.clean(done.is_err());
    if let Some((_held, path)) = lock {
        let _ = disk.remove(&path);
    }
    done
}

/// A lock that is held, and its file.
type Held = (Box<dyn Send + Sync>, PathBuf);

/// Keeps other sorts from the same output, and removes what one that was killed has left.
fn take_over(disk: &dyn Disk, job: &Job, id: &str) -> Result<Option<Held>> {
    let Output::File(path) = &job.output else { return Ok(None) };
    let temporary = output::temporary_path(path, id);
    let lock = temporary.with_added_extension("lock");
    let held = disk.lock(&lock).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => Error::exists(format!(
            "write `{}`: another sort is writing it: wait for it, or name another output",
            path.display()
        )),
        _ => Error::from(e).context(format_args!("write `{}`", path.display())),
    })?;
    let spills = job.temp.iter().map(|directory| spill::spill_path(directory, id));
    for left in spills.chain([temporary]) {
        let gone =
            disk.exists(&left).and_then(|there| if there { disk.remove(&left) } else { Ok(()) });
        gone.map_err(|e| {
            Error::from(e).context(format_args!("remove what a sort left, `{}`", left.display()))
        })?;
    }
    Ok(Some((held, lock)))
}

struct Run<'a> {
    disk: &'a dyn Disk,
    job: Job,
    id: String,
    plan: Plan,
    splitters: Splitters,
    progress: &'a Progress,
    target: Option<Target>,
    spills: Option<Spills>,
}

impl Run<'_> {
    fn all(
        &mut self,
        source: Source,
        bytes: u64,
        known: bool,
        threads: usize,
        lanes: usize,
    ) -> Result<Report> {
        // Room for the output and the temporary files is taken before anything is read.
        if known {
            self.make_target(bytes + source.files() as u64)?;
        }
        if !self.plan.in_memory {
            self.make_spills(if known { bytes } else { 0 })?;
        }
        self.progress.begin(Phase::Distribute);
        let failure = Failure::default();
        let work = distribute::Work {
            format: self.job.format,
            order: &self.job.order,
            splitters: &self.splitters,
            plan: &self.plan,
            spills: self.spills.as_ref(),
            progress: self.progress,
            failure: &failure,
        };
        let chains = distribute::run(&work, source.lanes(lanes, self.job.format)?)?;
        let mut sum = Sum::default();
        chains.iter().flatten().for_each(|chain| sum.merge(&chain.sum));
        if self.target.is_none() {
            self.make_target(sum.bytes)?;
        }
        self.progress.begin(Phase::Sort);
        let delivered = self.deliver(&chains, threads)?;
        self.progress.begin(Phase::Finish);
        self.finish(&delivered)?;
        Ok(Report {
            records: sum.records,
            bytes: sum.bytes,
            records_out: delivered.records,
            bytes_out: delivered.bytes,
            in_memory: self.plan.in_memory,
            partitions: self.splitters.partitions() as u64,
            split: delivered.split,
            split_bytes: delivered.split_bytes,
        })
    }

    fn make_target(&mut self, bytes: u64) -> Result<()> {
        let nowhere = || Output::File(PathBuf::new());
        self.target = Some(match std::mem::replace(&mut self.job.output, nowhere()) {
            Output::Stream(name, stream) => Target::Stream(name, Mutex::new(stream)),
            Output::File(path) => {
                Target::File(FileTarget::create(self.disk, &path, &self.id, bytes)?)
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
        self.spills = Some(Spills::create(self.disk, &self.job.temp, &self.id, bytes + slack)?);
        Ok(())
    }

    fn deliver(&self, chains: &[Vec<Chain>], threads: usize) -> Result<Delivered> {
        let Some(target) = &self.target else {
            return Err(Error::bug("write the output: there is none"));
        };
        let failure = Failure::default();
        deliver::run(&deliver::Work {
            format: self.job.format,
            order: &self.job.order,
            unique: self.job.unique,
            splitters: &self.splitters,
            plan: &self.plan,
            threads,
            spills: self.spills.as_ref(),
            target,
            progress: self.progress,
            failure: &failure,
            chains,
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
                pieces.push(Piece::Stream { name: name.into(), stream });
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
fn prime(mut pieces: Vec<Piece>, memory_bytes: u64) -> Result<Source> {
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
                let each = wanted * 600 / primed.len().max(1) + 1;
                for block in primed {
                    let bytes = &block.block[block.start..block.end];
                    let start = match format {
                        Format::Delimited(d) => memchr::memchr(d, bytes).map_or(0, |i| i + 1),
                        _ => 0,
                    };
                    // Blocks of other formats start anywhere in a record: one has to do.
                    input::take_sample(&bytes[start..], format, each, &mut sample);
                    if !matches!(format, Format::Delimited(_)) {
                        break;
                    }
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
