//! `holdfast bench invalidate`: an invalidator between MariaDB and two caches. How long a key outlives the moment
//! when its row's change is readable, beside one durable append and two round trips; and changes a second, beside
//! our own reader of the same stretch of the row log, whose changes are thrown away. Databases, node, caches and
//! invalidator are processes of their own.

mod mariadb;
mod stand;

use super::process::{Process, free_port, own_cpu_seconds};
use super::report::{Figure, Report, Sample, asked};
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_env::RealClock;
use holdfast_env::tasks::Stop;
use holdfast_invalidate::map::Map;
use holdfast_invalidate::mariadb::MariaDb as Source;
use holdfast_invalidate::mariadb::Server;
use holdfast_invalidate::position::Position;
use holdfast_invalidate::source::{About, Read, Servers, Source as _};
use mariadb::{MariaDb, Programs};
use stand::{Stand, are_gone, until_gone};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What `bench invalidate` is asked for.
#[derive(Args, Debug)]
pub struct InvalidateBench {
    /// `delay`, `changes`, or `all`, with commas
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE,...")]
    cases: String,
    /// Changes of a repetition of `changes`, each a transaction
    #[arg(short = 'n', long = "number", default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    number: u64,
    /// Rows of each of those changes
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
    /// Directory that Debian's packages of MariaDB were unpacked in, where it is not installed
    #[arg(long, default_value = "target/debian", value_name = "DIR")]
    mariadb_dir: PathBuf,
    /// Directory below which data is kept [default: this one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const CASES: [&str; 2] = ["delay", "changes"];
const MAP: &str = "[[keys]]\ntable = \"bench.items\"\nkey = \"item:{id}\"\n";
/// Rows that are changed last of all: when their keys are gone, whichever server has them was told everything.
const LAST: u64 = 16;
/// Between two looks whether the last keys are gone.
const LOOK: Duration = Duration::from_millis(1);
/// Before it is said that a log has less than was written.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the limit of `delay` appends: as long as the topic's entry of one key.
const ENTRY: [u8; 48] = [7; 48];
/// Among those that a database may have as replicas.
const READER_ID: u32 = 7;

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
    let asked = asked(&options.cases, &CASES)?;
    let programs = Programs::find(&options.mariadb_dir)?;
    let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
    for case in asked {
        let scratch = Scratch::below(&parent)?;
        match case {
            "delay" => delay(options, &programs, &scratch.0, out)?,
            _ => changes(options, &programs, &scratch.0, out)?,
        }
    }
    Ok(())
}

/// A database with rows from 1 on.
fn database(programs: &Programs, directory: &Path, rows: u64) -> Result<MariaDb> {
    let database = MariaDb::start(programs, &directory.join("db"), free_port()?, 1)?;
    let mut sql = database.sql()?;
    sql.run("CREATE DATABASE bench")?;
    sql.run(
        "CREATE TABLE bench.items (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40) NOT NULL, price BIGINT NOT NULL)",
    )?;
    sql.run(&format!(
        "INSERT INTO bench.items SELECT seq, CONCAT('the name of item ', seq), 0 FROM bench.seq_1_to_{rows}"
    ))?;
    Ok(database)
}

fn spent(of: &[&Process]) -> (f64, f64) {
    (of.iter().map(|process| process.cpu_seconds()).sum(), own_cpu_seconds())
}

/// From the moment when a change is readable at a replica until its key is gone, one change at a time; and behind
/// each of them an append to the node's log, a question to the replica and one to the cache.
fn delay(
    options: &InvalidateBench,
    programs: &Programs,
    directory: &Path,
    out: &mut Output,
) -> Result<()> {
    let primary = database(programs, directory, options.single)?;
    let replica = MariaDb::start(programs, &directory.join("replica"), free_port()?, 2)?;
    replica.follow(&primary)?;
    let (mut writes, mut reads) = (primary.sql()?, replica.sql()?);
    reads.until_is(
        "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'bench'",
        1,
    )?;
    reads.until_is("SELECT COUNT(*) FROM bench.items", options.single)?;
    let stand = Stand::start(directory.join("stand"), MAP)?;
    let invalidator = stand.invalidator(&primary, Some(&replica))?;
    stand.until_told()?;
    let (mut node, mut cache) = (stand.client()?, stand.cache()?);
    let (mut cases, mut floors) = (Vec::new(), Vec::new());
    for repetition in 1..=options.repetitions as u64 {
        let (mut delays, mut floor_ns) = (Vec::new(), Vec::new());
        let (cpu, began) = (spent(&[&stand.node, &invalidator]), Instant::now());
        for id in 1..=options.single {
            let key = format!("item:{id}");
            cache.set(key.as_bytes(), b"old", 0)?;
            writes.run(&format!("UPDATE bench.items SET price = {repetition} WHERE id = {id}"))?;
            let question = format!("SELECT price FROM bench.items WHERE id = {id}");
            let readable = reads.until_is(&question, repetition)?;
            until_gone(&mut cache, std::slice::from_ref(&key), Duration::ZERO)?;
            delays.push(readable.elapsed().as_nanos() as u64);
            let floor = Instant::now();
            reads.until_is(&question, repetition)?;
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
            case: format!("row readable at the replica to key invalid, {name}"),
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
fn changes(
    options: &InvalidateBench,
    programs: &Programs,
    directory: &Path,
    out: &mut Output,
) -> Result<()> {
    let (rows, each) = (options.number * options.rows, options.rows);
    let database = database(programs, directory, rows + LAST)?;
    let stand = Stand::start(directory.join("stand"), MAP)?;
    // The pool is emptied before anything is measured.
    let first = stand.invalidator(&database, None)?;
    stand.until_told()?;
    first.end()?;
    let (mut sql, mut cache) = (database.sql()?, stand.cache()?);
    let last: Vec<String> = (rows + 1..=rows + LAST).map(|id| format!("item:{id}")).collect();
    let (mut samples, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        let mut alone = Alone::new(&database)?;
        sql.run(&format!(
            "BEGIN NOT ATOMIC DECLARE n BIGINT DEFAULT 1; WHILE n <= {rows} DO \
             UPDATE bench.items SET price = price + 1 WHERE id BETWEEN n AND n + {each} - 1; \
             SET n = n + {each}; END WHILE; END"
        ))?;
        sql.run(&format!("UPDATE bench.items SET price = price + 1 WHERE id > {rows}"))?;
        cache.set_many(&last.iter().map(|key| (key, "old")).collect::<Vec<_>>(), 0)?;
        limits.push(alone.changes_a_second(options.number)?);
        let invalidator = stand.invalidator(&database, None)?;
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
        case: format!("changes by one invalidator, rows of each: {each}"),
        figure: Figure::OperationsPerSecond,
        limit_name: "reading the row log alone".to_owned(),
        limits,
        peer: None,
        samples,
    };
    report.tell(out)
}

/// Our reader of a row log, from where that ended when this was made.
struct Alone {
    source: Source,
    position: Position,
}

impl Alone {
    fn new(database: &MariaDb) -> Result<Alone> {
        let about = About {
            map: Map::parse(MAP)?,
            server_id: READER_ID,
            slot: String::new(),
            stop: Stop::new(),
            progress: Arc::default(),
            clock: Arc::new(RealClock::new()),
        };
        let servers = Servers { from: Server::parse(&database.url)?, reads: Vec::new() };
        let mut source = Source::connect(&servers, &Arc::new(about))?;
        let (position, _) = source.anew(Box::new(|| ()))?;
        Ok(Alone { source, position })
    }

    /// Of so many, which it throws away as they come.
    fn changes_a_second(&mut self, changes: u64) -> Result<f64> {
        let reads = self.source.follow(&self.position)?;
        let (began, mut read) = (Instant::now(), 0);
        // And the one of the last rows.
        while read <= changes {
            let next = reads.wait(PATIENCE).map_err(|_| {
                Error::retry("read the row log alone: it has less than what was written")
            })?;
            if let Read::Change(change, why) = next? {
                if change.keys.is_none() {
                    let why = why.unwrap_or_default();
                    return Err(Error::bug(format!("read the row log alone: {why}")));
                }
                read += 1;
            }
        }
        Ok(changes as f64 / began.elapsed().as_secs_f64())
    }
}
