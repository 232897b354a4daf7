//! The log engine: synced entries are kept, ordered ones form a prefix, appends are whole or
//! absent, nothing comes back that a recovery has cut, and what it cut is kept aside.

use crate::common::{Answer, Outcome, below, ensure, noise, powered};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use holdfast_env::Disk;
use holdfast_env::disk::{Access, read_file};
use holdfast_env::trial::Trial;
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, REACH_BYTES, Scope};
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::{self, CutPlan, Layer, Life, Seen, mix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIRECTORY: &str = "/log";
const TOPICS: [&str; 2] = ["cluster", "namespace/0"];

pub fn options() -> LogOptions {
    LogOptions { drive: Drive::Pump, segment_bytes: 8 * 4096, ..LogOptions::default() }
}

pub fn open(disk: &SimDisk) -> Result<EmbeddedLog> {
    EmbeddedLog::open(Arc::new(disk.clone()), Path::new(DIRECTORY), options())
}

#[derive(Clone, Default)]
struct Topic {
    /// Entries from index 1 on, in doubt ones at the end.
    entries: Vec<Vec<u8>>,
    /// Where appends end, ascending: an append is kept whole or not at all.
    ends: Vec<u64>,
    /// That many entries were acknowledged as durable.
    durable: u64,
    /// That many were acknowledged.
    written: u64,
    first: u64,
    /// A trim that was not acknowledged.
    first_in_doubt: u64,
    created: bool,
}

#[derive(Clone, Default)]
pub struct Model {
    topics: BTreeMap<&'static str, Topic>,
    /// What recovery has cut and where it says that it is kept.
    kept: BTreeMap<PathBuf, Vec<u8>>,
}

pub struct LogLayer;

impl Layer for LogLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        let mut log = powered!(disk, "open the log", open(disk));
        powered!(disk, "check the log", check(disk, &log, model, seen)?);
        let rng = life.rng();
        // Clients that saw no answer send the same bytes again: half of the lives write what
        // every other life would write at an index.
        let salt = if below(&rng, 2) == 0 { 0 } else { life.seed };
        for _ in 0..life.steps {
            let name = TOPICS[below(&rng, 2) as usize];
            let topic = model.topics.entry(name).or_default();
            if !topic.created {
                topic.first = 1;
                powered!(disk, "create", log.create(name));
                topic.created = true;
            }
            match below(&rng, 16) {
                0 => {
                    powered!(disk, "sync", log.sync(name));
                    topic.durable = topic.entries.len() as u64;
                }
                1 if topic.durable > 0 => {
                    let before = topic.first.max(1 + below(&rng, topic.durable));
                    topic.first_in_doubt = before;
                    powered!(disk, "trim", log.trim(name, Index(before)));
                    seen.sometimes(before > topic.first, "trim");
                    topic.first = before;
                }
                2 => {
                    // The process ends and starts again; the power stays on.
                    drop(log);
                    log = powered!(disk, "open the log again", open(disk));
                    powered!(disk, "check the log", check(disk, &log, model, seen)?);
                }
                _ => powered!(disk, "append", append_some(disk, &log, name, topic, salt, &rng)?),
            }
        }
        Ok(())
    }

    fn power_was_cut(&self, model: &mut Model) {
        model.topics.values_mut().for_each(|topic| topic.written = topic.durable);
    }
}

/// One to three appends, performed together.
fn append_some(
    disk: &SimDisk,
    log: &EmbeddedLog,
    name: &str,
    topic: &mut Topic,
    salt: u64,
    rng: &holdfast_env::SeededRng,
) -> Outcome<Result<()>> {
    let mut waiting = Vec::new();
    for _ in 0..1 + below(rng, 3) {
        let mode = if below(rng, 2) == 0 { Mode::Synced } else { Mode::Ordered };
        let mut entries = Vec::new();
        for _ in 0..1 + below(rng, 3) {
            let seed = mix(salt, topic.entries.len() as u64);
            let len = [0, 9, 700, 3000, 5000][(seed % 5) as usize];
            entries.push(noise(seed, len));
            topic.entries.push(noise(seed, len));
        }
        let (first, end) = (topic.entries.len() - entries.len() + 1, topic.entries.len() as u64);
        topic.ends.push(end);
        let (answer, done) = Answer::new();
        log.append(name, entries, mode, done);
        waiting.push((mode, first, end, answer));
        if below(rng, 3) == 0 {
            while log.pump() {}
        }
    }
    while log.pump() {}
    for (mode, first, end, answer) in waiting {
        match answer.get() {
            Ok(indices) => {
                let run = Indices::run(Index(first as u64), end as usize + 1 - first);
                ensure(indices == run, || format!("{name}: {indices:?} for {run:?}"))?;
                topic.written = end;
                if mode == Mode::Synced {
                    topic.durable = end;
                }
            }
            Err(e) if disk.crashed() => return Ok(Err(e)),
            Err(e) => return Err(format!("append to {name}: {}", e.message)),
        }
    }
    Ok(Ok(()))
}

fn read_all(log: &EmbeddedLog, name: &str, from: u64) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    loop {
        let next = from + all.len() as u64;
        let page = log.read(name, Index(next), 5, 10_000, Scope::Durable)?;
        if page.is_empty() {
            return Ok(all);
        }
        for (at, (index, bytes)) in (next..).zip(page) {
            if index.0 != at {
                return Err(Error::bug(format!("entry {index} where {at} should be")));
            }
            all.push(bytes);
        }
    }
}

/// The outer error is a broken promise, the inner one a call that failed.
fn check(
    disk: &SimDisk,
    log: &EmbeddedLog,
    model: &mut Model,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let there = log.topics();
    model.topics.retain(|name, topic| topic.created || there.iter().any(|t| t == name));
    for (name, topic) in &mut model.topics {
        match check_topic(log, name, topic, seen)? {
            Ok(()) => {}
            Err(e) if disk.crashed() => return Ok(Err(e)),
            Err(e) => return Err(format!("topic {name}: {}", e.message)),
        }
    }
    let read = |path: &Path| read_file(disk, path, 1 << 20);
    for cut in log.recovered() {
        match read(&cut.kept) {
            Ok(bytes) => {
                seen.sometimes(true, "torn tail cut");
                ensure(bytes.len() as u64 == cut.bytes, || {
                    format!("{} of {} bytes of a tail were kept", bytes.len(), cut.bytes)
                })?;
                model.kept.insert(cut.kept.clone(), bytes);
            }
            Err(_) if disk.crashed() => return Ok(Err(Error::retry("power"))),
            Err(e) => return Err(format!("the cut tail `{}`: {e}", cut.kept.display())),
        }
    }
    for (path, bytes) in &model.kept {
        let found = read(path);
        if disk.crashed() {
            return Ok(Err(Error::retry("power")));
        }
        ensure(found.as_ref().ok() == Some(bytes), || {
            format!("the tail kept as `{}` has changed or is gone", path.display())
        })?;
    }
    Ok(Ok(()))
}

fn check_topic(
    log: &EmbeddedLog,
    name: &str,
    topic: &mut Topic,
    seen: &mut Seen,
) -> Outcome<Result<()>> {
    let info = match log.info(name) {
        Ok(info) => info,
        Err(e) => return Ok(Err(e)),
    };
    topic.created = true;
    topic.first = topic.first.max(1);
    let trimmed = info.first.0 == topic.first || info.first.0 == topic.first_in_doubt;
    ensure(trimmed, || {
        format!("{name} begins at {}, it was trimmed below {}", info.first, topic.first)
    })?;
    topic.first = info.first.0;
    let there = info.next.0 - 1;
    let (durable, written, all) = (topic.durable, topic.written, topic.entries.len());
    ensure(there >= topic.durable.max(topic.written), || {
        format!("{name} ends at {there}, durable {durable}, acknowledged {written}")
    })?;
    ensure(there <= all as u64, || format!("{name} has {there} entries of {all}"))?;
    ensure(there == 0 || topic.ends.contains(&there), || {
        format!("{name} ends at {there}, inside an append")
    })?;
    ensure(info.durable == info.next, || format!("{name}: recovered, yet not durable"))?;
    let entries = match read_all(log, name, topic.first) {
        Ok(entries) => entries,
        Err(e) => return Ok(Err(e)),
    };
    let wanted = &topic.entries[topic.first as usize - 1..there as usize];
    ensure(entries == wanted, || format!("{name} holds other entries than were appended"))?;
    seen.sometimes(there < all as u64, "entries lost that were in doubt");
    seen.sometimes(there > durable, "entries kept that were in doubt");
    seen.sometimes(info.segments > 2, "several segments");
    topic.entries.truncate(there as usize);
    topic.ends.retain(|end| *end <= there);
    (topic.durable, topic.written) = (there, there);
    Ok(Ok(()))
}

pub fn plan(seed: u64, steps: u64, stride: u64) -> CutPlan {
    CutPlan { seed, steps, stride, outcomes: 4 }
}

#[test]
fn the_log_keeps_its_promises_wherever_the_power_is_cut() {
    let mut seen = Seen::default();
    let mut outcomes = 0;
    for seed in 0..4 {
        outcomes += powercut::explore(&LogLayer, plan(seed, 12, 1), &mut seen).unwrap();
    }
    for seed in 100..106 {
        outcomes += powercut::explore(&LogLayer, plan(seed, 60, 23), &mut seen).unwrap();
    }
    println!("log: {outcomes} outcomes");
    seen.assert_all(&[
        "torn tail cut",
        "trim",
        "second cut",
        "several segments",
        "entries lost that were in doubt",
        "entries kept that were in doubt",
    ]);
}

/// The same, with marks of how far a segment is written a sector ahead, and a few.
#[test]
fn the_log_keeps_its_promises_with_marks_close_to_what_is_written() {
    let mut seen = Seen::default();
    for (seed, bytes) in [(200, 1), (201, 1), (202, 5000), (203, 5000)] {
        let trial = Trial::new().with(&REACH_BYTES, bytes).enter();
        powercut::explore(&LogLayer, plan(seed, 14, 1), &mut seen).unwrap();
        assert!(trial.knobs()[REACH_BYTES.name()].crossed, "no mark was written");
    }
    seen.assert_all(&["torn tail cut", "second cut", "several segments"]);
}

/// A mark is durable before what lies behind it: else, where zeros took the place of what was
/// acknowledged, a start would look up to an older mark, and take the zeros for the end.
#[test]
fn the_sync_of_a_mark_cannot_be_left_out() {
    let found = |off: bool| {
        let _trial = Trial::new().with(&REACH_BYTES, 1).enter();
        let disk = SimDisk::new(1);
        let append = |log: &EmbeddedLog| {
            let (answer, done) = Answer::new();
            log.append("t", vec![vec![7; 100]], Mode::Synced, done);
            while log.pump() {}
            answer.get().unwrap();
        };
        let log = open(&disk).unwrap();
        log.create("t").unwrap();
        append(&log);
        drop(log);
        // Now the mark has a durable name.
        let log = open(&disk).unwrap();
        if off {
            disk.disable_site("log.reach");
        }
        (0..5).for_each(|_| append(&log));
        let disk = disk.power_cut_losing_all();
        let path = Path::new(DIRECTORY).join("topics/t/00000000000000000001.seg");
        disk.open(&path, Access::Cached).unwrap().write_at(&[0; 4096], 2 * 4096).unwrap();
        open(&disk).unwrap().info("t").is_err()
    };
    assert!(found(false) && !found(true));
}

#[test]
fn no_sync_of_the_log_can_be_left_out() {
    let plans: Vec<CutPlan> = (0..80).map(|seed| plan(seed, 16, 5)).collect();
    crate::common::prove_sites(&LogLayer, "log.", &plans);
}

/// A segment is filled with zeros, headed and named, and its first commit extends its durable
/// length. A power cut in between left a named segment of one sector. The next append did not fit,
/// so a second segment was begun with the same first index, in the same file, and the next trim
/// deleted it as the older of the two.
#[test]
fn an_empty_segment_that_a_power_cut_has_shortened_is_begun_anew() {
    let disk = SimDisk::new(1);
    let append = |log: &EmbeddedLog, mode| {
        let (answer, done) = Answer::new();
        log.append("t", vec![vec![7; 5000]], mode, done);
        while log.pump() {}
        answer.get().unwrap()
    };
    let log = open(&disk).unwrap();
    log.create("t").unwrap();
    append(&log, Mode::Ordered);
    let disk = disk.power_cut_losing_all();
    let log = open(&disk).unwrap();
    assert_eq!(log.info("t").unwrap().next, Index(1));
    append(&log, Mode::Synced);
    append(&log, Mode::Synced);
    log.trim("t", Index(2)).unwrap();
    let log = open(&disk.power_cut_losing_all()).unwrap();
    assert_eq!(read_all(&log, "t", 2).unwrap(), [vec![7; 5000]]);
}

/// Recovery copies a torn tail aside, then puts zeros in its place. After a crash in the midst of
/// the zeros the next recovery found the rest of the tail at the same place, and replaced the copy
/// of the whole by a copy of the rest, because both had the same name.
#[test]
fn a_tail_that_was_kept_is_not_replaced_by_what_is_left_of_it() {
    let disk = SimDisk::new(1);
    let log = open(&disk).unwrap();
    log.create("t").unwrap();
    for seed in 0..3 {
        log.append("t", vec![noise(seed, 5000)], Mode::Ordered, Box::new(|_| ()));
        while log.pump() {}
    }
    let mut tails = 0;
    for seed in 0..40 {
        let torn = disk.power_cut(seed);
        let log = open(&torn).unwrap();
        let Some(cut) = log.recovered().first() else { continue };
        let whole = read_file(&torn, &cut.kept, 1 << 20).unwrap();
        let zeros = torn.trace().iter().position(|line| line.starts_with("write /log/topics"));
        for again in 0..10 {
            let torn = disk.power_cut(seed);
            torn.crash_at(zeros.unwrap() as u64);
            let _ = open(&torn);
            assert!(torn.crashed());
            let torn = torn.power_cut(again);
            open(&torn).unwrap();
            let kept = read_file(&torn, &cut.kept, 1 << 20).unwrap();
            assert_eq!(kept, whole, "cuts {seed} and {again}");
        }
        tails += 1;
    }
    assert!(tails > 3, "{tails} torn tails");
}

/// After a failed sync the kernel shows pages that the disk never got, takes them for written, and
/// no later sync writes them. A restart of the process found them whole, went on behind them, began
/// another segment, and a power cut took them away: "the log breaks off at entry 349, a later
/// segment exists".
#[test]
fn what_a_failed_sync_left_in_the_cache_is_kept_once_it_was_recovered() {
    let mut doubted = 0;
    for seed in 0..60 {
        let disk = crate::common::failing_disk(seed);
        let log = open(&disk).unwrap();
        log.create("t").unwrap();
        let mut entries: Vec<Vec<u8>> = Vec::new();
        let append = |log: &EmbeddedLog, entries: &mut Vec<Vec<u8>>, number: u64| {
            let (answer, done) = Answer::new();
            let mode =
                if mix(seed, number).is_multiple_of(2) { Mode::Synced } else { Mode::Ordered };
            entries.push(noise(mix(seed, number), 5000));
            log.append("t", vec![noise(mix(seed, number), 5000)], mode, done);
            while log.pump() {}
            answer.get().is_ok()
        };
        disk.fail_sync(1 + mix(seed, 99) % 8);
        let failed = (0..20).find(|number| !append(&log, &mut entries, *number));
        assert!(failed.is_some());
        // The process ends, the power stays on.
        let disk = disk.process_kill();
        let log = open(&disk).unwrap();
        let recovered = read_all(&log, "t", 1).unwrap();
        assert_eq!(recovered, entries[..recovered.len()]);
        doubted += (recovered.len() == entries.len()) as u64;
        entries.truncate(recovered.len());
        let more = if seed % 2 == 0 { 0 } else { 9 };
        (100..100 + more).for_each(|number| assert!(append(&log, &mut entries, number)));
        log.sync("t").unwrap();
        let log = open(&disk.power_cut_losing_all()).unwrap();
        let kept = read_all(&log, "t", 1).unwrap();
        assert!(kept == entries, "seed {seed}: {} of {} entries", kept.len(), entries.len());
    }
    assert!(doubted > 5, "what the failed sync was for was found {doubted} times");
}
