//! `holdfast bench shards`: what names cost in two shards, beside one; and how long writes to a directory
//! wait that moves from one to the other.

use super::process::own_cpu_seconds;
use super::report::{Figure, Report, Sample, asked};
use super::server::{Server, Settings};
use clap::Args;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, NewFile, Ticket};
use holdfast_command::output::Output;
use holdfast_wire::admin::Order;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What `bench shards` is asked for.
#[derive(Args, Debug)]
pub struct ShardsBench {
    /// `creates`, `lookups`, `moves`, or `all`, with commas
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE,...")]
    cases: String,
    /// Files that are made, looked up, or moved
    #[arg(short = 'n', long = "number", default_value_t = 100_000, value_name = "N")]
    number: u64,
    /// Requests under way at a time
    #[arg(short = 'b', long = "batch", default_value_t = 1024, value_name = "N")]
    batch: usize,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    repetitions: usize,
    /// Directory below which the nodes keep their data [default: this one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const CASES: [&str; 3] = ["creates", "lookups", "moves"];
/// Bytes of a file.
const FILE_BYTES: usize = 4;
/// Files of one directory.
const FILES_EACH: u64 = 1000;
/// Directories of the root that the files are spread over: half of them in the second shard.
const TOPS: u64 = 8;
/// A node opens a shard, and carries out a move, within seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node, and how many directories were made there.
struct Names<'a> {
    options: &'a ShardsBench,
    server: Server,
    made: u64,
}

/// Measures the cases that are asked for, and prints a line each.
pub fn run(options: &ShardsBench, out: &mut Output) -> Result<()> {
    let asked = asked(&options.cases, &CASES)?;
    let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
    for case in asked {
        match case {
            "creates" => creates(options, &parent, out)?,
            "lookups" => lookups(options, &parent, out)?,
            _ => moves(options, &parent, out)?,
        }
    }
    Ok(())
}

/// Something that a node is asked for.
type Do<T> = fn(&mut Names<'_>) -> Result<T>;

/// What a node does whose names are in two shards, beside one that has them in one.
fn compare(
    options: &ShardsBench,
    parent: &Path,
    what: &str,
    (fill, work): (Do<()>, Do<Sample>),
    out: &mut Output,
) -> Result<()> {
    let mut one = Names::start(options, parent, false)?;
    let mut two = Names::start(options, parent, true)?;
    for names in [&mut one, &mut two] {
        fill(names)?;
    }
    let (mut limits, mut samples) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        limits.push(a_server_second(&work(&mut one)?));
        samples.push(work(&mut two)?);
    }
    let mut report = Report {
        case: format!("{what} in two shards, {} under way", options.batch),
        figure: Figure::OperationsPerServerSecond,
        limit_name: format!("{what} in one shard"),
        limits,
        peer: None,
        samples,
    };
    report.tell(out)
}

fn creates(options: &ShardsBench, parent: &Path, out: &mut Output) -> Result<()> {
    let warm = |names: &mut Names<'_>| names.create(names.options.number / 10).map(drop);
    let create = |names: &mut Names<'_>| names.create(names.options.number);
    compare(options, parent, "creates of 4 B", (warm, create), out)
}

fn lookups(options: &ShardsBench, parent: &Path, out: &mut Output) -> Result<()> {
    let fill = |names: &mut Names<'_>| {
        names.create(names.options.number)?;
        names.look_up().map(drop)
    };
    let look_up = |names: &mut Names<'_>| names.look_up();
    compare(options, parent, "look-ups", (fill, look_up), out)
}

/// A directory goes to the second shard and back, and a client goes on writing to it.
fn moves(options: &ShardsBench, parent: &Path, out: &mut Output) -> Result<()> {
    let names = Names::start(options, parent, false)?;
    names.add_shard()?;
    names.make("/moved")?;
    let mut client = names.client()?;
    names.put_all(&mut client, (0..options.number).map(|i| format!("/moved/{i:07}")))?;
    let mut samples = Vec::new();
    for turn in 0..options.repetitions {
        let to = if turn % 2 == 0 { 1 } else { 0 };
        let cpu = (names.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        names.order(&Order::MoveDirectory { dir: "/moved".to_owned(), to })?;
        let (mut longest, mut ended) = (Duration::ZERO, false);
        while !ended {
            let asked = Instant::now();
            let new = NewFile { replace: true, ..NewFile::default() };
            patiently(|| client.put("/moved/written", &[7; FILE_BYTES], &new).map(drop))?;
            longest = longest.max(asked.elapsed());
            ended = names.keeps_moved()? == to;
            if began.elapsed() > PATIENCE * 10 {
                return Err(Error::retry("move `/moved`: it is not there after ten minutes"));
            }
        }
        let cpu = (names.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let waited = vec![longest.as_nanos() as u64];
        samples.push(Sample::of_run(options.number, 0, began.elapsed(), cpu, waited));
    }
    let mut report = Report {
        case: format!(
            "longest wait of a write to a directory of {} files that moves",
            options.number
        ),
        figure: Figure::MicrosecondsMax,
        limit_name: String::new(),
        limits: Vec::new(),
        peer: None,
        samples,
    };
    report.tell(out)
}

fn a_server_second(sample: &Sample) -> f64 {
    sample.operations as f64 / sample.server_cpu
}

/// Asks again while a shard or a directory is not there yet.
fn patiently(mut ask: impl FnMut() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(e) if e.kind == Kind::Retry && began.elapsed() < PATIENCE => {}
            answered => return answered,
        }
    }
}

impl Names<'_> {
    /// A node whose directories are in one shard, or every other one in the second.
    fn start<'a>(options: &'a ShardsBench, parent: &Path, two: bool) -> Result<Names<'a>> {
        let server = Server::start(parent, &Settings::default())?;
        let names = Names { options, server, made: 0 };
        (0..TOPS).try_for_each(|top| names.make(&format!("/{top}")))?;
        if two {
            names.add_shard()?;
            for top in (1..TOPS).step_by(2) {
                names.order(&Order::MoveDirectory { dir: format!("/{top}"), to: 1 })?;
            }
            // Until it is there, a request is asked again.
            for top in 0..TOPS {
                names.make(&format!("/{top}/first"))?;
            }
        }
        Ok(names)
    }

    fn client(&self) -> Result<Client> {
        self.server.connect(false, false, false)
    }

    fn make(&self, directory: &str) -> Result<()> {
        patiently(|| self.client()?.make_dir(directory, &NewFile::default()))
    }

    /// As the node's owner.
    fn order(&self, order: &Order) -> Result<()> {
        patiently(|| self.server.connect(true, false, false)?.order(order).map(drop))
    }

    fn add_shard(&self) -> Result<()> {
        self.order(&Order::AddShard { shard: 1 })
    }

    /// The shard that has the directory which moves.
    fn keeps_moved(&self) -> Result<u16> {
        let shards = self.server.connect(true, false, false)?.shards()?;
        let has = |directories: &[String]| directories.iter().any(|dir| dir == "moved");
        Ok(shards.iter().find(|part| has(&part.directories)).map_or(0, |part| part.shard))
    }

    fn paths(first: u64, files: u64) -> impl Iterator<Item = String> {
        let path = move |i: u64| {
            let directory = first + i / FILES_EACH;
            format!("/{}/{directory:05}/{:03}", directory % TOPS, i % FILES_EACH)
        };
        (0..files).map(path)
    }

    /// Creates so many files, in directories of all shards.
    fn create(&mut self, files: u64) -> Result<Sample> {
        let mut client = self.client()?;
        let first = self.made;
        self.made += files.div_ceil(FILES_EACH);
        for directory in first..self.made {
            let path = format!("/{}/{directory:05}", directory % TOPS);
            client.make_dir(&path, &NewFile::default())?;
        }
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        self.put_all(&mut client, Self::paths(first, files))?;
        let time = began.elapsed();
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        Ok(Sample::of_run(files, files * FILE_BYTES as u64, time, cpu, Vec::new()))
    }

    fn put_all(&self, client: &mut Client, paths: impl Iterator<Item = String>) -> Result<()> {
        self.pipeline(client, paths, |client, path| {
            client.submit_put(path, &[7; FILE_BYTES], &NewFile::default())
        })
    }

    /// Looks up what was created, scattered over the shards.
    fn look_up(&self) -> Result<Sample> {
        let mut client = self.client()?;
        let files = self.made * FILES_EACH;
        let mut paths: Vec<String> = Self::paths(0, files).collect();
        let mixed = |path: &String| holdfast_base::checksum::crc32c(path.as_bytes());
        paths.sort_by_cached_key(mixed);
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        self.pipeline(&mut client, paths.into_iter(), |client, path| {
            client.submit_stat(path, false)
        })?;
        let time = began.elapsed();
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        Ok(Sample::of_run(files, 0, time, cpu, Vec::new()))
    }

    /// With [`ShardsBench::batch`] under way.
    fn pipeline(
        &self,
        client: &mut Client,
        paths: impl Iterator<Item = String>,
        submit: impl Fn(&mut Client, &str) -> Result<Ticket>,
    ) -> Result<()> {
        let mut sent: VecDeque<Ticket> = VecDeque::new();
        for path in paths {
            sent.push_back(submit(client, &path)?);
            if sent.len() >= self.options.batch {
                let half = sent.len() / 2;
                sent.drain(..half).try_for_each(|ticket| client.wait(ticket).map(drop))?;
            }
        }
        sent.into_iter().try_for_each(|ticket| client.wait(ticket).map(drop))
    }
}
