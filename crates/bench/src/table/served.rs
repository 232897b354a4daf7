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
use std::ops::Range;
use std::time::{Duration, Instant};

const TABLE: &str = "bench";
const TOPIC: &str = "bench";
pub(super) const VALUE_BYTES: usize = 1024;
/// Records that are put and got.
const KEYS: u64 = 10_000;
/// From one to the next: not in the order in which they were put.
const STRIDE: u64 = 7919;
/// Bytes of values that one request fills a table with.
const FILLED_AT_ONCE: u64 = 512 << 10;

/// A node with a table and a topic.
pub struct Served<'a> {
    options: &'a TableBench,
    server: Server,
    records: u64,
    value_bytes: usize,
}

/// Fills a table with so many records, a request at a time.
pub(super) fn fill(
    client: &mut Client,
    table: &str,
    numbers: Range<u64>,
    put: impl Fn(u64) -> TableWrite,
    value_bytes: usize,
) -> Result<()> {
    let at_once = FILLED_AT_ONCE / value_bytes as u64;
    let mut table = client.table(table);
    for first in numbers.clone().step_by(at_once as usize) {
        let some: Vec<_> = (first..numbers.end.min(first + at_once)).map(&put).collect();
        table.write(&some)?;
    }
    Ok(())
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
        fill(&mut client, TABLE, 0..records, |number| served.put(number), value_bytes)?;
        Ok(served)
    }

    fn key(&self, number: u64) -> Vec<u8> {
        format!("user{:08}", number % self.records).into_bytes()
    }

    fn put(&self, number: u64) -> TableWrite {
        let value = Some(vec![7; self.value_bytes]);
        TableWrite { key: self.key(number), value, expect: Expect::Any }
    }

    /// Puts of records all over the table, one at a time.
    fn put_some(&self, client: &mut Client, first: u64, count: u64) -> Result<()> {
        let mut table = client.table(TABLE);
        let put = |number: u64| self.put(number.wrapping_mul(STRIDE));
        (first..first + count).try_for_each(|number| table.write(&[put(number)]).map(drop))
    }

    fn get_some(&self, client: &mut Client, first: u64, count: u64) -> Result<()> {
        let mut table = client.table(TABLE);
        (first..first + count).try_for_each(|number| {
            let key = self.key(number.wrapping_mul(STRIDE));
            let found = table.get(&key, Level::Any)?;
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
            let get = |number| table.get(&self.key(number), Level::Any).map(drop);
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
        for number in 0..self.options.records {
            let began = Instant::now();
            work(number.wrapping_mul(STRIDE))?;
            let took = began.elapsed();
            time += took;
            latencies_ns.push(took.as_nanos() as u64);
        }
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let bytes = self.options.records * self.value_bytes as u64;
        Ok(Sample::of_run(self.options.records, bytes, time, cpu, latencies_ns))
    }
}
