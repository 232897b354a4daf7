//! What a table that a node serves costs: puts of many clients beside appends to a plain topic, gets beside
//! an empty round trip, all by real processes.

use super::super::process::own_cpu_seconds;
use super::super::report::{Figure, Report, Sample};
use super::super::server::{Server, Settings};
use super::TableBench;
use super::records::{STRIDE, VALUE_BYTES, at_once, fill, key, put};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::table::{Level, Make, TableMode};
use std::time::{Duration, Instant};

const TABLE: &str = "bench";
const TOPIC: &str = "bench";
/// Records that are put and got.
const KEYS: u64 = 10_000;

/// A node with a table and a topic.
pub struct Served<'a> {
    options: &'a TableBench,
    server: Server,
    records: u64,
    value_bytes: usize,
}

/// One client's work: so many operations, from a number on.
type Work<'a> = &'a (dyn Fn(&mut Client, u64, u64) -> Result<()> + Sync);

fn appends(client: &mut Client, _: u64, count: u64) -> Result<()> {
    let mut log = client.log();
    (0..count).try_for_each(|_| log.append(TOPIC, &[[7; VALUE_BYTES]]).map(drop))
}

impl<'a> Served<'a> {
    /// Starts a node, and fills its table with some records of 1 KiB.
    pub fn start(options: &'a TableBench) -> Result<Served<'a>> {
        Served::start_with(options, &Settings::default(), KEYS, VALUE_BYTES)
    }

    /// The same, with records of another number and size.
    pub(super) fn start_with(
        options: &'a TableBench,
        settings: &Settings,
        records: u64,
        value_bytes: usize,
    ) -> Result<Served<'a>> {
        let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
        let server = Server::start(&parent, settings)?;
        let served = Served { options, server, records, value_bytes };
        let mut client = served.client()?;
        let mode = TableMode::Timeline;
        client.table_make(&Make {
            table: TABLE.into(),
            mode,
            tablets: options.tablets,
            everywhere: false,
        })?;
        client.log().append(TOPIC, &[b"first"])?;
        fill(&mut client, TABLE, 0..records, value_bytes)?;
        Ok(served)
    }

    /// The number of a record all over the table, another one for each operation.
    fn drawn(&self, operation: u64) -> u64 {
        operation.wrapping_mul(STRIDE) % self.records
    }

    /// Puts of records all over the table, one at a time.
    fn put_some(&self, client: &mut Client, first: u64, count: u64) -> Result<()> {
        let mut table = client.table(TABLE);
        (first..first + count).try_for_each(|operation| {
            table.write(&[put(self.drawn(operation), self.value_bytes)]).map(drop)
        })
    }

    fn get_some(&self, client: &mut Client, first: u64, count: u64) -> Result<()> {
        let mut table = client.table(TABLE);
        (first..first + count).try_for_each(|operation| {
            let found = table.get(&key(self.drawn(operation)), Level::Any)?;
            found.map(drop).ok_or_else(|| Error::bug("a record of the benchmark is not there"))
        })
    }

    /// Processor microseconds of the node for each of `--records` operations of all clients: gets, and puts.
    pub(super) fn costs_us(&self) -> Result<(f64, f64)> {
        let us = |sample: Sample| sample.server_cpu * 1e6 / sample.operations as f64;
        let gets = self.together(&|client, first, count| self.get_some(client, first, count))?;
        let puts = self.together(&|client, first, count| self.put_some(client, first, count))?;
        Ok((us(gets), us(puts)))
    }

    pub(super) fn client(&self) -> Result<Client> {
        self.server.connect(false, false, false)
    }

    /// All clients at once.
    fn together(&self, work: Work<'_>) -> Result<Sample> {
        let each = (self.options.records / self.options.clients).max(1);
        let clients =
            (0..self.options.clients).map(|_| self.client()).collect::<Result<Vec<_>>>()?;
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        at_once(clients, |number, mut client| work(&mut client, number * each, each))?;
        let time = began.elapsed();
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let operations = each * self.options.clients;
        Ok(Sample::of_run(operations, operations * self.value_bytes as u64, time, cpu, Vec::new()))
    }

    /// Puts beside appends: how many a second.
    pub fn puts(&self, out: &mut Output) -> Result<()> {
        let (mut limits, mut samples) = (Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            limits.push(self.together(&appends)?);
            samples
                .push(self.together(&|client, first, count| self.put_some(client, first, count))?);
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
            let get = |operation| table.get(&key(self.drawn(operation)), Level::Any).map(drop);
            samples.push(self.one_by_one(get)?);
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
        for operation in 0..self.options.records {
            let began = Instant::now();
            work(operation)?;
            let took = began.elapsed();
            time += took;
            latencies_ns.push(took.as_nanos() as u64);
        }
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let bytes = self.options.records * self.value_bytes as u64;
        Ok(Sample::of_run(self.options.records, bytes, time, cpu, latencies_ns))
    }
}
