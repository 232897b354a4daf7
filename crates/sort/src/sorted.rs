//! Work on inputs that are sorted already, one pass each: merging them, and checking one.

use crate::failure::Failure;
use crate::job::{self, Job, Report};
use crate::local;
use crate::output::{Chunks, Cursor, FileTarget, Output, Target};
use crate::progress::{Phase, Progress};
use crate::run::{self, Run};
use holdfast_base::units::{MIB, format_bytes};
use holdfast_base::{Error, Result};
use holdfast_env::disk::Disk;
use std::sync::Mutex;
use std::thread;

/// Of the window through which an input is read.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
const WINDOW_BYTES_MAX: u64 = 4 * MIB;
/// Blocks of the output.
const CHUNKS: usize = 4;
const CHUNK_BYTES: u64 = 4 * MIB;

/// Merges inputs of which each is sorted; equal records come in the order of their inputs.
pub fn merge(disk: &dyn Disk, job: Job, progress: &Progress) -> Result<Report> {
    progress.begin(Phase::Sort);
    let id = job::id_of(&job);
    let held = job::lock(disk, &job, &id, progress)?;
    let merged =
        job::remove_left(disk, &job, &id).and_then(|()| merge_all(disk, job, &id, progress));
    progress.remove_names(disk);
    drop(held);
    merged
}

fn merge_all(disk: &dyn Disk, mut job: Job, id: &str, progress: &Progress) -> Result<Report> {
    let inputs = std::mem::take(&mut job.inputs);
    // Half of the memory reads, in a window and the bytes that it was copied to.
    let window = job.memory_bytes / 4 / inputs.len().max(1) as u64;
    if window < WINDOW_BYTES_MIN {
        return Err(Error::invalid(format!(
            "merge {} inputs with {} of memory: give `--memory` at least {}",
            inputs.len(),
            format_bytes(job.memory_bytes),
            format_bytes(WINDOW_BYTES_MIN * 4 * inputs.len() as u64)
        )));
    }
    let window = window.min(WINDOW_BYTES_MAX) as usize;
    let mut runs = Vec::new();
    for input in inputs {
        runs.push(Run::of_input(disk, input, job.format, window, progress)?);
    }
    let target = match std::mem::replace(&mut job.output, Output::File(Default::default())) {
        Output::Stream(name, stream) => Target::Stream(name, Mutex::new(stream)),
        Output::File(path) => Target::File(FileTarget::create(disk, &path, id, 0, progress)?),
    };
    let report = merge_into(&mut runs, &job, &target, progress)?;
    progress.begin(Phase::Finish);
    match &target {
        Target::File(file) => file.finish(disk, report.bytes_out, progress)?,
        Target::Stream(..) => target.flush()?,
    }
    Ok(report)
}

fn merge_into(
    runs: &mut [Run<'_>],
    job: &Job,
    target: &Target,
    progress: &Progress,
) -> Result<Report> {
    let chunk_bytes = (job.memory_bytes / 4 / CHUNKS as u64).clamp(WINDOW_BYTES_MIN, CHUNK_BYTES);
    let chunks = Chunks::new(CHUNKS, chunk_bytes as usize / 4096 * 4096);
    let failure = Failure::default();
    let mut report = Report::default();
    thread::scope(|scope| {
        let writer =
            local::scoped(scope, "sort-write", || chunks.write(target, None, &failure, progress));
        let mut cursor = Cursor::new(&chunks, &failure, 0);
        let mut last: Option<Vec<u8>> = None;
        let merged = run::merge(runs, &job.order, job.format, |record| {
            if progress.is_stopped() {
                return Err(Error::retry("merge: interrupted"));
            }
            report.records += 1;
            report.bytes += record.len() as u64;
            if job.unique {
                let body = job.format.body(record);
                if last.as_ref().is_some_and(|last| job.order.compare(last, body).is_eq()) {
                    return Ok(());
                }
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(body);
            }
            report.records_out += 1;
            report.bytes_out += record.len() as u64;
            cursor.push(record)
        });
        failure.note(merged);
        cursor.finish();
        chunks.end();
        let _ = writer.join();
    });
    failure.result().map(|()| report)
}

/// The first record that is less than the one before it, or equal to it where they are to be
/// unique: its number, from 1, and its bytes.
pub fn first_unordered(
    disk: &dyn Disk,
    mut job: Job,
    progress: &Progress,
) -> Result<Option<(u64, Vec<u8>)>> {
    let input = match (job.inputs.pop(), job.inputs.is_empty()) {
        (Some(input), true) => input,
        _ => return Err(Error::invalid("check the order of one input, not of several or none")),
    };
    let window = (job.memory_bytes / 4).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX) as usize;
    let mut run = Run::of_input(disk, input, job.format, window, progress)?;
    let mut last: Vec<u8> = Vec::new();
    let mut number = 0;
    while let Some(record) = run.next()? {
        if progress.is_stopped() {
            return Err(Error::retry("check: interrupted"));
        }
        number += 1;
        let body = job.format.body(record);
        let order = job.order.compare(&last, body);
        if number > 1 && (order.is_gt() || job.unique && order.is_eq()) {
            return Ok(Some((number, record.to_vec())));
        }
        last.clear();
        last.extend_from_slice(body);
    }
    Ok(None)
}
