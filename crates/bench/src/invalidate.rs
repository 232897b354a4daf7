//! `holdfast bench invalidate`: an invalidator between a database, or a table of Holdfast, and two caches. How long a key
//! outlives the moment when its row's change is readable, beside one durable append and two round trips; and changes a
//! second, beside our own reader of the same stretch of the row log, whose changes are thrown away. Databases, node,
//! caches and invalidator are processes of their own.

mod kind;
mod mariadb;
mod postgres;
mod stand;
mod table;

use super::process::{Process, free_port, own_cpu_seconds};
use super::report::{Figure, Report, Sample, asked};
use clap::Args;
use holdfast_base::{Error, Kind as Wrong, Result};
use holdfast_command::output::{Output, aside};
use holdfast_env::RealClock;
use holdfast_env::tasks::Stop;
use holdfast_invalidate::position::Position;
use holdfast_invalidate::source::{About, Database, Read, Servers, Source};
use kind::{Items, Kind, PATIENCE};
use mariadb::MariaDb;
use postgres::Postgres;
use stand::{Stand, are_gone, until_gone};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use table::Table;

/// What `bench invalidate` is asked for.
#[derive(Args, Debug)]
pub struct InvalidateBench {
    /// `delay`, `changes`, or `all`, with commas
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE,...")]
    cases: String,
    /// What is followed: `mariadb`, `postgres`, `table`, or `all`, with commas; a database that is not on this machine is
    /// passed over, which is said
    #[arg(long, default_value = "all", value_name = "KIND,...")]
    from: String,
    /// Changes of a repetition of `changes`, each a transaction; of a table each record is one
    #[arg(short = 'n', long = "number", default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    number: u64,
    /// Rows of each of those changes; of a table, as many more of them
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rows: u64,
    /// Changes of a repetition of `delay`, one at a time
    #[arg(long, default_value_t = 500, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    single: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 3, value_name = "N")]
    repetitions: usize,
    /// Directory that Debian's packages of the databases were unpacked in, where they are not installed
    #[arg(long, alias = "mariadb-dir", default_value = "target/debian", value_name = "DIR")]
    debian_dir: PathBuf,
    /// Directory below which data is kept [default: this one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const CASES: [&str; 2] = ["delay", "changes"];
const KINDS: [&str; 3] = ["mariadb", "postgres", "table"];
/// Items that are changed last of all: when their keys are gone, whichever server has them was told everything.
const LAST: u64 = 16;
/// Between two looks whether the last keys are gone.
const LOOK: Duration = Duration::from_millis(1);
/// What the limit of `delay` appends: as long as the topic's entry of one key.
const ENTRY: [u8; 48] = [7; 48];
/// Among those that a database may have as replicas.
const READER_ID: u32 = 7;
/// The reader beside the invalidator, where a log is told apart by names of its readers.
const READER: &str = "alone";

/// A directory of one case, which goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn below(parent: &Path) -> Result<Scratch> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (number, process) = (MADE.fetch_add(1, Ordering::Relaxed), std::process::id());
        let directory = parent.join(format!("holdfast-invalidate-{process}-{number}"));
        std::fs::create_dir_all(&directory)?;
        Ok(Scratch(directory.canonicalize()?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures the cases that are asked for, and prints a line or two each.
pub fn run(options: &InvalidateBench, out: &mut Output) -> Result<()> {
    let cases = asked(&options.cases, &CASES)?;
    for kind in asked(&options.from, &KINDS)? {
        let measured = match kind {
            "mariadb" => measure::<MariaDb>(options, &cases, out),
            "postgres" => measure::<Postgres>(options, &cases, out),
            _ => measure::<Table>(options, &cases, out),
        };
        match measured {
            Err(e) if e.kind == Wrong::NotFound => aside(format_args!("SKIPPED: {e}")),
            measured => measured?,
        }
    }
    Ok(())
}

fn measure<K: Kind>(options: &InvalidateBench, cases: &[&str], out: &mut Output) -> Result<()> {
    let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
    for case in cases {
        let scratch = Scratch::below(&parent)?;
        match *case {
            "delay" => delay::<K>(options, &scratch.0, out)?,
            _ => changes::<K>(options, &scratch.0, out)?,
        }
    }
    Ok(())
}

fn spent(of: &[&Process]) -> (f64, f64) {
    (of.iter().map(|process| process.cpu_seconds()).sum(), own_cpu_seconds())
}

/// From the moment when a change is readable at a replica until its key is gone, one change at a time; and behind
/// each of them an append to the node's log, a question to the replica and one to the cache.
fn delay<K: Kind>(options: &InvalidateBench, directory: &Path, out: &mut Output) -> Result<()> {
    let stand = Stand::start(directory.join("stand"), K::MAP)?;
    let primary = K::start(&options.debian_dir, directory, &stand, options.single)?;
    let replica = primary.replica(&options.debian_dir, directory)?;
    let (mut writes, mut reads) = (primary.items()?, replica.as_ref().unwrap_or(&primary).items()?);
    let read = replica.as_ref().map(K::url);
    let invalidator = stand.invalidator(&primary.url(), read.as_deref())?;
    stand.until_told()?;
    let (mut node, mut cache) = (stand.client()?, stand.cache()?);
    let (mut cases, mut floors) = (Vec::new(), Vec::new());
    for repetition in 1..=options.repetitions as u64 {
        // No price that an item began with.
        let price = 1000 + repetition;
        let (mut delays, mut floor_ns) = (Vec::new(), Vec::new());
        let (cpu, began) = (spent(&[&stand.node, &invalidator]), Instant::now());
        for id in 1..=options.single {
            let key = format!("item:{id}");
            cache.set(key.as_bytes(), b"old", 0)?;
            writes.set_price(id, price)?;
            let readable = reads.until_price(id, price)?;
            until_gone(&mut cache, std::slice::from_ref(&key), Duration::ZERO)?;
            delays.push(readable.elapsed().as_nanos() as u64);
            let floor = Instant::now();
            reads.until_price(id, price)?;
            node.log().append("bench", &[ENTRY])?;
            are_gone(&mut cache, std::slice::from_ref(&key))?;
            floor_ns.push(floor.elapsed().as_nanos() as u64);
        }
        let (time, now) = (began.elapsed(), spent(&[&stand.node, &invalidator]));
        let cpu = (now.0 - cpu.0, now.1 - cpu.1);
        let sample = |of: Vec<u64>| Sample::of_run(options.single, 0, time, cpu, of);
        cases.push([sample(delays.clone()), sample(delays)]);
        floors.push(sample(floor_ns));
    }
    let (p50, p99) = cases.into_iter().map(|[one, other]| (one, other)).unzip();
    let figures = [("p50", Figure::MicrosecondsP50, p50), ("p99", Figure::MicrosecondsP99, p99)];
    for (name, figure, samples) in figures {
        let mut report = Report {
            case: format!("{}: row readable at the replica to key invalid, {name}", K::NAME),
            figure,
            limit_name: "a durable append and two round trips".to_owned(),
            limits: floors.iter_mut().map(|floor| figure.of(floor)).collect(),
            peer: None,
            samples,
        };
        report.tell(out)?;
    }
    Ok(())
}

/// Changes a second of an invalidator that has all of them before it, from the moment when it reads the log until
/// both caches have been told the last one; beside the same changes read alone.
fn changes<K: Kind>(options: &InvalidateBench, directory: &Path, out: &mut Output) -> Result<()> {
    let (rows, each) = (options.number * options.rows, options.rows);
    let stand = Stand::start(directory.join("stand"), K::MAP)?;
    let database = K::start(&options.debian_dir, directory, &stand, rows + LAST)?;
    // The pool is emptied before anything is measured.
    let first = stand.invalidator(&database.url(), None)?;
    stand.until_told()?;
    first.end()?;
    let (mut items, mut cache) = (database.items()?, stand.cache()?);
    let last: Vec<String> = (rows + 1..=rows + LAST).map(|id| format!("item:{id}")).collect();
    let (mut samples, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        let mut alone = Alone::<K::Source>::new(&database, &stand)?;
        items.raise(1, rows, each)?;
        items.raise(rows + 1, rows + LAST, LAST)?;
        cache.set_many(&last.iter().map(|key| (key, "old")).collect::<Vec<_>>(), 0)?;
        limits.push(options.number as f64 / alone.read(rows + LAST)?.as_secs_f64());
        drop(alone);
        let invalidator = stand.invalidator(&database.url(), None)?;
        // It has just begun to read.
        let (cpu, began) = (spent(&[&stand.node, &invalidator]), Instant::now());
        until_gone(&mut cache, &last, LOOK)?;
        let (time, now) = (began.elapsed(), spent(&[&stand.node, &invalidator]));
        stand.until_told()?;
        invalidator.end()?;
        let cpu = (now.0 - cpu.0, now.1 - cpu.1);
        samples.push(Sample::of_run(options.number, 0, time, cpu, Vec::new()));
    }
    let mut report = Report {
        case: format!("{}: changes by one invalidator, rows of each: {each}", K::NAME),
        figure: Figure::OperationsPerSecond,
        limit_name: "reading the row log alone".to_owned(),
        limits,
        peer: None,
        samples,
    };
    report.tell(out)
}

/// Our reader of a row log, from where that ended when this was made.
struct Alone<S> {
    source: S,
    position: Position,
}

impl<S: Source> Alone<S> {
    fn new<K: Kind<Source = S>>(database: &K, stand: &Stand) -> Result<Alone<S>> {
        let about = About {
            map: Database::parse_with(&database.url(), &[], &stand.connect())?.read_map(K::MAP)?,
            server_id: READER_ID,
            slot: READER.to_owned(),
            stop: Stop::new(),
            progress: Arc::default(),
            clock: Arc::new(RealClock::new()),
        };
        let servers = Servers { from: database.server()?, reads: Vec::new() };
        let mut source = S::connect(&servers, &Arc::new(about))?;
        let (position, _) = source.anew(Box::new(|| ()))?;
        Ok(Alone { source, position })
    }

    /// Reads changes until so many keys came, and throws them away as they come; how long that takes.
    fn read(&mut self, keys: u64) -> Result<Duration> {
        let reads = self.source.follow(&self.position)?;
        let (began, mut read) = (Instant::now(), 0);
        while read < keys {
            let next = reads.wait(PATIENCE).map_err(|_| {
                Error::retry("read the row log alone: it has less than what was written")
            })?;
            if let Read::Change(change, why) = next? {
                let Some(keys) = change.keys else {
                    let why = why.unwrap_or_default();
                    return Err(Error::bug(format!("read the row log alone: {why}")));
                };
                read += keys.len() as u64;
            }
        }
        Ok(began.elapsed())
    }
}
