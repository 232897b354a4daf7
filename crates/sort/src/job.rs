//! One sort, from its inputs to its output: chooses the plan, runs the phases, cleans up.

use crate::deliver::{self, Delivered};
use crate::distribute::{self, Chain, Outbox, Piece};
use crate::failure::Failure;
use crate::hash::Sum;
use crate::input::Input;
use crate::local::{Crew, Role};
use crate::manifest::{self, Head, Journal, Left};
use crate::order::Order;
use crate::output::{self, FileTarget, Output, Target};
use crate::plan::{self, Need, SortPlan};
use crate::progress::{Phase, Progress};
use crate::record::Format;
use crate::source::{self, Source};
use crate::spill::{self, Spills};
use crate::split::Splitters;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_env::disk::{Disk, Lock};
use holdfast_env::planted;
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

/// Room that blocks lose at the end of chains, as a part of the total.
const SPILL_SLACK_PART: u64 = 64;
/// Threads that write blocks to the temporary disks, beyond one a lane.
const MORE_WRITERS: usize = 1;

/// Sorts. Temporary files are gone afterwards; the output has its name only if all went well.
pub fn run(disk: &dyn Disk, mut job: Job, progress: &Progress) -> Result<Report> {
    job.threads = job.threads.clamp(1, plan::threads_max(job.memory_bytes));
    let id = id_of(&job);
    // Before anything is read: what another sort is about to replace may be an input.
    let held = lock(disk, &job, &id, progress)?;
    let done = sort(disk, job, id, progress);
    progress.remove_names(disk);
    drop(held);
    done
}

fn sort(disk: &dyn Disk, mut job: Job, id: String, progress: &Progress) -> Result<Report> {
    let threads = job.threads;
    progress.begin(Phase::Sample);
    let source = source::open(disk, &mut job)?;
    let (bytes, known) = source.bytes(&job);
    let lanes = match &source {
        Source::Files(_) => plan::lanes(bytes, threads),
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
        primed_bytes: source.primed_bytes(),
        total_known: known,
    };
    let plan = SortPlan::new(&need)?;
    let splitters = Splitters::new(job.format, &job.order, &sample, plan.partitions);
    let expected = expected(&job, &splitters, &sample, bytes);
    let kept = plan.kept(&expected, lanes);
    let stays: u64 = expected.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(n, _)| n).sum();
    let head = describe(&job, &source, lanes, &sample);
    sample.clear();
    sample.shrink_to_fit();
    progress.set_total(if known { 4 * bytes - 2 * stays.min(bytes) } else { 0 });
    let left = match &head {
        Some(head) if job.resume => left(disk, &job, &id, head)?,
        _ => None,
    };
    if left.is_none() {
        remove_left(disk, &job, &id)?;
    }
    let (target, spills) = (None, None);
    let mut run = Run { disk, job, id, plan, splitters, kept, progress, target, spills, left };
    run.all(source, bytes, known, threads, lanes as usize, head)
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
fn describe(job: &Job, source: &Source, lanes: u64, sample: &[Vec<u8>]) -> Option<Head> {
    let (Source::Files(files), Output::File(_), None) = (source, &job.output, job.first) else {
        return None;
    };
    let inputs = files.iter().map(|file| file.stamp).collect();
    let mut sum = Sum::default();
    sample.iter().for_each(|record| sum.add(record));
    let files: Vec<(&str, u64)> = files.iter().map(|file| (&*file.name, file.bytes)).collect();
    let Job { order, unique, memory_bytes, temp, threads, format, .. } = job;
    let order = crate::hash::hash(format!("{order:?}").as_bytes());
    let job = format!(
        "of {files:?} (sample {:x}) with {memory_bytes} bytes of memory, {threads} threads, {lanes} lanes, temporary files in {temp:?}, records {}, unique {unique}, order {order:x}",
        sum.hash,
        format.describe()
    );
    Some(Head { job, inputs })
}

/// Keeps other sorts from the same output, until it is dropped.
pub(crate) fn lock(
    disk: &dyn Disk,
    job: &Job,
    id: &str,
    progress: &Progress,
) -> Result<Option<Box<dyn Lock>>> {
    let Output::File(path) = &job.output else { return Ok(None) };
    let lock = output::temporary_path(path, id).with_added_extension("lock");
    let held = progress.name(&lock, || disk.lock(&lock)).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => Error::exists(format!(
            "write `{}`: another sort is writing it: wait for it, or name another output",
            path.display()
        )),
        _ => Error::from(e).context(format_args!("write `{}`", path.display())),
    })?;
    Ok(Some(held))
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
pub(crate) fn remove_left(disk: &dyn Disk, job: &Job, id: &str) -> Result<()> {
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
fn left(disk: &dyn Disk, job: &Job, id: &str, head: &Head) -> Result<Option<Left>> {
    for file in files_of(job, id) {
        let there = disk.exists(&file);
        if !there
            .map_err(|e| Error::from(e).context(format_args!("resume `{}`", file.display())))?
        {
            return Ok(None);
        }
    }
    let Some(first) = job.temp.first() else { return Ok(None) };
    manifest::read(disk, &manifest::manifest_path(first, id), head)
}

struct Run<'a> {
    disk: &'a dyn Disk,
    job: Job,
    id: String,
    plan: SortPlan,
    splitters: Splitters,
    /// Partitions that stay in memory.
    kept: Vec<bool>,
    progress: &'a Progress,
    target: Option<Target>,
    spills: Option<Arc<Spills>>,
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
        head: Option<Head>,
    ) -> Result<Report> {
        let journal = self.prepare(bytes + source.files() as u64, known, head.is_some())?;
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
                if let (Some(journal), Some(head), None) = (&journal, &head, &self.left) {
                    let (disk, chains, sums) = (self.disk, &chains, &sums);
                    crew.scoped(scope, "sort-manifest", Role::Waits, move || {
                        let _settled = spills.map(|spills| outbox.settle(spills));
                        let durable = || spills.map_or(Ok(()), |spills| spills.sync(disk));
                        let begin = |()| journal.begin(disk, head, chains, sums, progress);
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
            let spills = Spills::open(self.disk, &self.job.temp, &self.id, extents, self.progress)?;
            self.spills = Some(Arc::new(spills));
            let done = left.done.iter().flatten();
            let target = FileTarget::resume(self.disk, output, &self.id, done, self.progress)?;
            self.target = Some(Target::File(target));
            let journal = Journal::resume(self.disk, path.clone(), left, every, self.progress)?;
            return Ok(Some(journal));
        }
        let resumable = resumable && !self.plan.in_memory;
        if known {
            let bytes = if self.job.first.is_some() { 0 } else { bytes };
            self.make_target(bytes, resumable)?;
        }
        if !self.plan.in_memory {
            self.make_spills(if known { bytes } else { 0 }, resumable)?;
        }
        Ok(manifest.filter(|_| resumable).map(|path| Journal::new(path, every)))
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
            if wanted[p] && sums[p] != left.sums[p] && !planted!("sort.resume-trusts-sums") {
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
                let target = FileTarget::create(self.disk, &path, &self.id, bytes, self.progress)?;
                Target::File(if resumable { target.early() } else { target })
            }
        });
        Ok(())
    }

    fn make_spills(&mut self, bytes: u64, resumable: bool) -> Result<()> {
        let slack = bytes / SPILL_SLACK_PART;
        let named = (resumable || planted!("sort.spills-all-named")).then_some(self.progress);
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
        let spills = Spills::create(self.disk, &self.job.temp, &self.id, bytes + slack, named)?;
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
            Some(Target::File(file)) => file.finish(self.disk, delivered.bytes, self.progress),
            Some(target) => target.flush(),
            None => Ok(()),
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

/// Where temporary files go unless said otherwise: beside an output that has a directory of ours,
/// else where the machine has them, by TMPDIR.
pub fn default_temp(output: &Output) -> PathBuf {
    match output {
        Output::File(path) => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            parent.unwrap_or(Path::new(".")).to_owned()
        }
        Output::Stream(..) => std::env::temp_dir(),
    }
}

#[cfg(test)]
mod model;
