//! `holdfast bench log`: a node whose log three brokers keep, on this machine, beside what Kafka's own
//! tools get out of the same brokers in the same run: its performance tools for producers and consumers.

use super::process::{cpu_seconds, own_cpu_seconds};
use super::report::{Figure, Report, Sample, asked};
use super::server::{Server, Settings};
use clap::Args;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_brokers::Brokers;
use holdfast_client::{Client, NewFile, Ticket};
use holdfast_command::output::Output;
use serde_json::json;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What `bench log` is asked for.
#[derive(Args, Debug)]
pub struct LogBench {
    /// `creates`, `latency`, `feed`, `restart`, `lookups`, or `all`, with commas
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE,...")]
    cases: String,
    /// Files that are made, and records that Kafka's tool sends
    #[arg(short = 'n', long = "number", default_value_t = 200_000, value_name = "N")]
    number: u64,
    /// Creates under way at a time
    #[arg(short = 'b', long = "batch", default_value_t = 1024, value_name = "N")]
    batch: usize,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 3, value_name = "N")]
    repetitions: usize,
    /// Brokers
    #[arg(long, default_value_t = 3, value_name = "N")]
    brokers: usize,
    /// Directory below which the node keeps its data [default: this one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const CASES: [&str; 5] = ["creates", "latency", "feed", "restart", "lookups"];
/// Bytes of a file.
const FILE_BYTES: usize = 4;
/// What a record has beside an entry: the header that says whose it is, and its key.
const RECORD_BYTES_BESIDE: usize = 40;
/// Files of one directory.
const FILES_EACH: u64 = 1000;
/// One at a time, for its latency: as many as Kafka's tool sends, at its rate.
const SINGLE: u64 = 1000;
const SINGLE_A_SECOND: u64 = 100;
const TOPIC: &str = "namespace/0";

/// Brokers and a node on them.
struct Bench<'a> {
    options: &'a LogBench,
    brokers: Brokers,
    server: Server,
    /// Directories made so far.
    made: u64,
}

/// What Kafka's tool for producers said.
struct Produced {
    records_a_second: f64,
    p50_ms: f64,
    /// Of the brokers, for each record.
    broker_cpu: f64,
}

/// Measures the cases that are asked for, and prints a line each.
pub fn run(options: &LogBench, out: &mut Output) -> Result<()> {
    let asked = asked(&options.cases, &CASES)?;
    let Some(brokers) = Brokers::start_to_measure(options.brokers) else {
        return Err(Error::unsupported(
            "measure the log on brokers: they cannot be started, see above",
        ));
    };
    let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
    let log = format!("kafka://{}/bench", brokers.addresses());
    let settings = Settings { log, ..Settings::default() };
    let server = Server::start(&parent, &settings)?;
    let mut bench = Bench { options, brokers, server, made: 0 };
    bench.peer_topic()?;
    // Both are warm: what a JVM has not compiled yet is nobody's limit.
    bench.produce(options.number, 100, &[])?;
    bench.create(options.number / 10)?;
    for case in asked {
        match case {
            "creates" => bench.creates(out)?,
            "latency" => bench.latency(out)?,
            "feed" => bench.feed(&parent, &settings, out)?,
            "restart" => bench.restart(out)?,
            _ => bench.lookups(out)?,
        }
    }
    Ok(())
}

impl Bench<'_> {
    fn brokers_cpu(&self) -> f64 {
        let all = self.brokers.processes().into_iter();
        all.map(|id| cpu_seconds(&format!("/proc/{id}/stat"))).sum()
    }

    fn client(&self) -> Result<Client> {
        self.server.connect(false, false, false)
    }

    fn tool(&self, class: &str, words: &[&str]) -> Result<String> {
        self.brokers.tool(class, words).map_err(Error::unsupported)
    }

    /// Has Kafka's tool send so many records, on a topic as safe as those of the log.
    fn produce(&self, records: u64, bytes: usize, more: &[&str]) -> Result<Produced> {
        let servers = format!("bootstrap.servers={}", self.brokers.addresses());
        let (records_text, bytes) = (records.to_string(), bytes.to_string());
        let rate = more.first().copied().unwrap_or("-1");
        let mut words = vec!["--topic", "bench.peer", "--num-records", &records_text];
        words.extend(["--record-size", &bytes, "--throughput", rate]);
        words.extend(["--producer-props", &servers, "acks=all", "enable.idempotence=true"]);
        words.extend(more.iter().skip(1));
        let cpu = self.brokers_cpu();
        let said = self.tool("ProducerPerformance", &words)?;
        let cpu = self.brokers_cpu() - cpu;
        // "200000 records sent, 98765.4 records/sec (9.42 MB/sec), 1.2 ms avg latency, ..., 1 ms 50th, ..."
        let last = said.lines().rfind(|line| line.contains("50th")).unwrap_or_default();
        let before = |unit: &str| {
            let part = last.split(',').find(|part| part.contains(unit))?;
            part.split_whitespace().next()?.parse::<f64>().ok()
        };
        let parsed = before("records/sec").zip(before("50th"));
        let (records_a_second, p50_ms) = parsed
            .ok_or_else(|| Error::unsupported(format!("read what Kafka's tool says: {said}")))?;
        Ok(Produced { records_a_second, p50_ms, broker_cpu: cpu / records as f64 })
    }

    /// Makes the topic of Kafka's tool.
    fn peer_topic(&self) -> Result<()> {
        let copies = self.options.brokers.min(3).to_string();
        let mut words = vec!["--create", "--topic", "bench.peer"];
        words.extend(["--partitions", "1", "--replication-factor", &copies]);
        words.extend(["--config", "min.insync.replicas=2"].iter().filter(|_| copies != "1"));
        words.extend(["--bootstrap-server", self.brokers.addresses()]);
        self.tool("TopicCommand", &words).map(drop)
    }

    /// Creates so many files, [`LogBench::batch`] under way at a time.
    fn create(&mut self, files: u64) -> Result<Sample> {
        let mut client = self.client()?;
        let new = NewFile { parents: true, ..NewFile::default() };
        let first = self.made;
        self.made += files.div_ceil(FILES_EACH);
        for directory in first..self.made {
            client.make_dir(&format!("/bench/{directory:05}"), &new)?;
        }
        let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
        let began = Instant::now();
        let mut sent: VecDeque<Ticket> = VecDeque::new();
        for i in 0..files {
            let path = format!("/bench/{:05}/{:03}", first + i / FILES_EACH, i % FILES_EACH);
            sent.push_back(client.submit_put(&path, &[7; FILE_BYTES], &NewFile::default())?);
            if sent.len() >= self.options.batch {
                let half = sent.len() / 2;
                sent.drain(..half).try_for_each(|ticket| client.wait(ticket).map(drop))?;
            }
        }
        sent.into_iter().try_for_each(|ticket| client.wait(ticket).map(drop))?;
        let time = began.elapsed();
        let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        Ok(Sample::of_run(files, files * FILE_BYTES as u64, time, cpu, Vec::new()))
    }

    /// As the node's owner, who reads topics that views fold.
    fn owner(&self) -> Result<Client> {
        self.server.connect(true, false, false)
    }

    /// Bytes of the entry that a create is.
    fn entry_bytes(&self) -> Result<usize> {
        let mut client = self.owner()?;
        let mut log = client.log();
        let last = Index(log.info(TOPIC)?.next.0 - 1);
        let page = log.read(TOPIC, last, 1)?;
        let entry = page.first().map_or(0, |indexed| indexed.bytes.len());
        Ok(entry + RECORD_BYTES_BESIDE)
    }

    /// Creates beside records of the size of their entries; and what the brokers spend on each.
    fn creates(&mut self, out: &mut Output) -> Result<()> {
        let bytes = self.entry_bytes()?;
        let (mut samples, mut limits, mut spent) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            let bare = self.produce(self.options.number, bytes, &[])?;
            limits.push(bare.records_a_second);
            let cpu = self.brokers_cpu();
            let sample = self.create(self.options.number)?;
            let each = (self.brokers_cpu() - cpu) / sample.operations as f64;
            spent.push((each, bare.broker_cpu));
            samples.push(sample);
        }
        let mut report = Report {
            case: format!("creates of {FILE_BYTES} B, {} under way", self.options.batch),
            figure: Figure::OperationsPerSecond,
            limit_name: format!("records of {bytes} B a second by Kafka's tool"),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)?;
        let median = |of: fn(&(f64, f64)) -> f64| super::report::median(spent.iter().map(of));
        let (create, record) = (median(|spent| spent.0), median(|spent| spent.1));
        let ratio = median(|spent| spent.0 / spent.1);
        out.line(
            || {
                format!(
                    "brokers' processor time: {:.1} us a create, {:.1} us a bare record of {bytes} B, \
                     ratio {ratio:.2}",
                    create * 1e6,
                    record * 1e6
                )
            },
            || {
                json!({"case": "brokers' processor time a create", "create_us": create * 1e6,
                    "record_us": record * 1e6, "ratio": ratio})
            },
        )
    }

    /// One create at a time, beside one record at a time.
    fn latency(&mut self, out: &mut Output) -> Result<()> {
        let bytes = self.entry_bytes()?;
        let (mut samples, mut limits) = (Vec::new(), Vec::new());
        let rate = SINGLE_A_SECOND.to_string();
        let alone = [&rate[..], "linger.ms=0", "max.in.flight.requests.per.connection=1"];
        for _ in 0..self.options.repetitions {
            limits.push(self.produce(SINGLE, bytes, &alone)?.p50_ms * 1e3);
            let mut client = self.client()?;
            let directory = self.made;
            self.made += 1;
            let new = NewFile { parents: true, ..NewFile::default() };
            client.make_dir(&format!("/bench/{directory:05}"), &new)?;
            let cpu = (self.server.cpu_seconds(), own_cpu_seconds());
            let (began, mut latencies) = (Instant::now(), Vec::new());
            for i in 0..SINGLE {
                let (path, one) = (format!("/bench/{directory:05}/{i:04}"), Instant::now());
                client.put(&path, &[7; FILE_BYTES], &NewFile::default())?;
                latencies.push(one.elapsed().as_nanos() as u64);
                let due = Duration::from_secs_f64((i + 1) as f64 / SINGLE_A_SECOND as f64);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            let cpu = (self.server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
            samples.push(Sample::of_run(SINGLE, 0, began.elapsed(), cpu, latencies));
        }
        let mut report = Report {
            case: format!("one create of {FILE_BYTES} B, {SINGLE_A_SECOND} a second"),
            figure: Figure::MicrosecondsP50,
            limit_name: format!("one record of {bytes} B by Kafka's tool"),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)
    }

    /// A node with an empty directory folds all of the topic, beside Kafka's tool that only reads it.
    fn feed(
        &mut self,
        parent: &std::path::Path,
        settings: &Settings,
        out: &mut Output,
    ) -> Result<()> {
        let entries = self.owner()?.log().info(TOPIC)?.next.0 - 1;
        let (mut samples, mut limits) = (Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            let topic = "bench.namespace_2f0";
            let count = entries.to_string();
            let mut words = vec!["--topic", topic, "--messages", &count, "--hide-header"];
            words.extend(["--bootstrap-server", self.brokers.addresses()]);
            let said = self.tool("ConsumerPerformance", &words)?;
            let fields: Vec<&str> = said.trim().split(',').map(str::trim).collect();
            let rate = fields.last().and_then(|last| last.parse::<f64>().ok());
            limits.push(
                rate.ok_or_else(|| Error::unsupported(format!("read Kafka's tool: {said}")))?,
            );
            let began = Instant::now();
            let other = Server::joining(parent, settings, &self.server)?;
            let (time, cpu) = (began.elapsed(), (other.cpu_seconds(), 0.0));
            samples.push(Sample::of_run(entries, 0, time, cpu, Vec::new()));
        }
        let mut report = Report {
            case: "a new node folds the log, from its start until it serves".to_owned(),
            figure: Figure::OperationsPerSecond,
            limit_name: "entries a second by Kafka's tool, which reads them".to_owned(),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)
    }

    /// The node ended in order, and started again until it serves, beside a start that has its log alone.
    fn restart(&mut self, out: &mut Output) -> Result<()> {
        self.create(self.options.number)?;
        let entries = self.owner()?.log().info(TOPIC)?.next.0 - 1;
        let mut times = Vec::new();
        for _ in 0..self.options.repetitions {
            let again = self.server.restart(|_| Ok(()))?;
            let anew =
                self.server.restart(|data| Ok(std::fs::remove_dir_all(data.join("snapshots"))?))?;
            times.push((again.as_secs_f64(), anew.as_secs_f64()));
        }
        let median = |of: fn(&(f64, f64)) -> f64| super::report::median(times.iter().map(of));
        let (again, anew) = (median(|time| time.0), median(|time| time.1));
        let faster = median(|time| time.1 / time.0);
        out.line(
            || {
                format!(
                    "restart behind {entries} entries, of a file each: serves after {again:.2} s, after {anew:.2} s where it \
                     replays its log: {faster:.1} times faster"
                )
            },
            || {
                json!({"case": "restart", "entries": entries, "seconds": again,
                    "replay_seconds": anew, "times_faster": faster})
            },
        )
    }

    /// Look-ups before all brokers are killed, and after.
    fn lookups(&mut self, out: &mut Output) -> Result<()> {
        let mut client = self.client()?;
        let look = |client: &mut Client, server: &Server| -> Result<Sample> {
            let (began, mut count) = (Instant::now(), 0);
            let cpu = (server.cpu_seconds(), own_cpu_seconds());
            while began.elapsed() < Duration::from_secs(3) {
                client.stat(&format!("/bench/00000/{:03}", count % FILES_EACH))?;
                count += 1;
            }
            let cpu = (server.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
            Ok(Sample::of_run(count, 0, began.elapsed(), cpu, Vec::new()))
        };
        let (mut samples, mut limits) = (Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            let before = look(&mut client, &self.server)?;
            limits.push(before.operations as f64 / before.time.as_secs_f64());
        }
        (0..self.options.brokers).for_each(|id| self.brokers.kill(id));
        // Until what is read here may be old, and says so.
        while !client.is_stale() {
            client.stat("/bench")?;
        }
        for _ in 0..self.options.repetitions {
            samples.push(look(&mut client, &self.server)?);
        }
        let mut report = Report {
            case: "look-ups with all brokers killed, labelled as possibly old".to_owned(),
            figure: Figure::OperationsPerSecond,
            limit_name: "look-ups before".to_owned(),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)
    }
}
