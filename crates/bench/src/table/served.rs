//! What a table that a node serves costs: puts of many clients beside appends to a plain topic, gets beside
//! an empty round trip, all by real processes.

use super::super::process::own_cpu_seconds;
use super::super::report::{Figure, Report, Sample};
use super::super::server::{Server, Settings};
use super::TableBench;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_command::output::Output;
use holdfast_wire::table::{Expect, Level, Make, TableMode};
use std::time::{Duration, Instant};

const TABLE: &str = "bench";
const TOPIC: &str = "bench";
pub(super) const VALUE_BYTES: usize = 1024;
/// Records that are put and got.
const KEYS: u64 = 10_000;

/// A node with a table and a topic.
pub struct Served<'a> {
    options: &'a TableBench,
    server: Server,
}

fn key(number: u64) -> Vec<u8> {
    format!("user{:08}", number % KEYS).into_bytes()
}

fn put(number: u64) -> TableWrite {
    TableWrite { key: key(number), value: Some(vec![7; VALUE_BYTES]), expect: Expect::Any }
}

/// One client's work: so many operations, from a number on.
type Work = fn(&mut Client, u64, u64) -> Result<()>;

fn puts(client: &mut Client, first: u64, count: u64) -> Result<()> {
    let mut table = client.table(TABLE);
    (first..first + count).try_for_each(|number| table.write(&[put(number)]).map(drop))
}

fn appends(client: &mut Client, _: u64, count: u64) -> Result<()> {
    let mut log = client.log();
    (0..count).try_for_each(|_| log.append(TOPIC, &[[7; VALUE_BYTES]]).map(drop))
}

impl<'a> Served<'a> {
    /// Starts a node, and fills the table.
    pub fn start(options: &'a TableBench) -> Result<Served<'a>> {
        let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
        let settings =
            Settings { dram_bytes: 0, reactors: 1, spin: false, tls: false, log: String::new() };
        let served = Served { options, server: Server::start(&parent, &settings)? };
        let mut client = served.client()?;
        let mode = TableMode::Timeline;
        client.table_make(&Make {
            table: TABLE.into(),
            mode,
            tablets: options.tablets,
            everywhere: false,
        })?;
        client.log().append(TOPIC, &[b"first"])?;
        let mut table = client.table(TABLE);
        let all: Vec<TableWrite> = (0..KEYS).map(put).collect();
        all.chunks(64).try_for_each(|some| table.write(some).map(drop))?;
        Ok(served)
    }

    pub(super) fn client(&self) -> Result<Client> {
        self.server.connect(false, false, false)
    }

    /// All clients at once.
    fn together(&self, work: Work) -> Result<Sample> {
        let each = (self.options.records / self.options.clients).max(1);
        let clients =
            (0..self.options.clients).map(|_| self.client()).collect::<Result<Vec<_>>>()?;
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        let ended = std::thread::scope(|scope| -> Result<()> {
            let start = |(number, mut client): (u64, Client)| {
                scope.spawn(move || work(&mut client, number * each, each))
            };
            let threads: Vec<_> = (0..).zip(clients).map(start).collect();
            let panicked = |_| Error::bug("a client of the benchmark panicked");
            threads.into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
        });
        ended?;
        let time = began.elapsed();
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let operations = each * self.options.clients;
        Ok(Sample::of_run(operations, operations * VALUE_BYTES as u64, time, cpu, Vec::new()))
    }

    /// Puts beside appends: how many a second.
    pub fn puts(&self, out: &mut Output) -> Result<()> {
        let (mut limits, mut samples) = (Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            limits.push(self.together(appends)?);
            samples.push(self.together(puts)?);
        }
        let clients = self.options.clients;
        let of = |sample: &Sample| sample.operations as f64 / sample.time.as_secs_f64();
        let mut report = Report {
            case: format!("puts of 1 KiB, synced, {clients} clients"),
            figure: Figure::OperationsPerSecond,
            limit_name: "appends to a topic".to_owned(),
            limits: limits.iter().map(of).collect(),
            peer: None,
            samples,
        };
        report.tell(out)
    }

    /// Gets beside pings, one client, one at a time.
    pub fn gets(&self, out: &mut Output) -> Result<()> {
        let mut client = self.client()?;
        let (mut limits, mut samples) = (Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            limits.push(self.one_by_one(|_| client.ping())?.p50_us());
            let mut table = client.table(TABLE);
            samples.push(self.one_by_one(|number| table.get(&key(number), Level::Any).map(drop))?);
        }
        let mut report = Report {
            case: "gets of 1 KiB, whatever shows, one at a time".to_owned(),
            figure: Figure::MicrosecondsP50,
            limit_name: "an empty round trip".to_owned(),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)
    }

    fn one_by_one(&self, mut work: impl FnMut(u64) -> Result<()>) -> Result<Sample> {
        let (mut latencies_ns, mut time) = (Vec::new(), Duration::ZERO);
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        for number in 0..self.options.records {
            let began = Instant::now();
            // Not in the order in which they were put.
            work(number.wrapping_mul(7919))?;
            let took = began.elapsed();
            time += took;
            latencies_ns.push(took.as_nanos() as u64);
        }
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let bytes = self.options.records * VALUE_BYTES as u64;
        Ok(Sample::of_run(self.options.records, bytes, time, cpu, latencies_ns))
    }
}
