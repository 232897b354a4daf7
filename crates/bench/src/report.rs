//! What is measured and how it is said: a meter for one repetition, and the line that a case
//! comes to.

use super::process::own_cpu_seconds;
use super::server::Server;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A repetition without a number of operations takes this long.
const REPETITION: Duration = Duration::from_secs(1);
/// Of operations that take less than a clock's two readings are worth, one in so many is timed.
const TIMED_EVERY: u64 = 16;

/// Counts and times the operations of one repetition.
pub struct Meter<'a> {
    server: &'a Server,
    /// Operations wanted; by time if there is no number.
    wanted: Option<u64>,
    every: u64,
    running: Option<Running>,
    /// What the repetition has come to so far.
    pub sample: Sample,
}

struct Running {
    start: Instant,
    server_cpu: f64,
    client_cpu: f64,
}

/// What one repetition came to.
#[derive(Default)]
pub struct Sample {
    /// Counted as the case counts: requests, objects, keys or entries.
    pub operations: u64,
    /// Of bodies, one way.
    pub bytes: u64,
    /// While the meter ran.
    pub time: Duration,
    /// Seconds of the servers' processors, user and system.
    pub server_cpu: f64,
    /// Seconds of this process, user and system.
    pub client_cpu: f64,
    latencies_ns: Vec<u64>,
    /// Bytes of the server's memory that the operations took, where that is the question.
    pub memory_bytes: u64,
}

impl Sample {
    /// Of operations that were counted elsewhere; `cpu` is the server's and the client's.
    pub fn of_run(
        operations: u64,
        bytes: u64,
        time: Duration,
        cpu: (f64, f64),
        latencies_ns: Vec<u64>,
    ) -> Sample {
        let (server_cpu, client_cpu) = cpu;
        Sample { operations, bytes, time, server_cpu, client_cpu, latencies_ns, memory_bytes: 0 }
    }

    /// Its median latency in microseconds.
    pub fn p50_us(&mut self) -> f64 {
        percentile(&mut self.latencies_ns, 0.5)
    }

    /// A latency that is of several operations at once.
    pub fn time_page(&mut self, start: Option<Instant>) {
        if let Some(start) = start {
            self.latencies_ns.push(start.elapsed().as_nanos() as u64);
        }
    }
}

impl<'a> Meter<'a> {
    /// Counts up to `wanted` operations, or as many as take a second. Of `quick` ones, which take
    /// no longer than a look at the clock, only some are timed.
    pub fn new(server: &'a Server, wanted: Option<u64>, quick: bool) -> Meter<'a> {
        let every = if quick { TIMED_EVERY } else { 1 };
        Meter { server, wanted, every, running: None, sample: Sample::default() }
    }

    /// Whether the repetition goes on; asked before each operation.
    pub fn more(&self) -> bool {
        let done = self.sample.operations;
        match (self.wanted, &self.running) {
            (Some(wanted), _) => done < wanted,
            (None, Some(_)) if !done.is_multiple_of(self.every) => true,
            (None, Some(running)) => self.sample.time + running.start.elapsed() < REPETITION,
            (None, None) => self.sample.time < REPETITION,
        }
    }

    /// From here to [`Meter::pause`] time counts.
    pub fn run(&mut self) {
        self.running = Some(Running {
            server_cpu: self.server.cpu_seconds(),
            client_cpu: own_cpu_seconds(),
            start: Instant::now(),
        });
    }

    /// From here to [`Meter::run`] time does not count.
    pub fn pause(&mut self) {
        if let Some(running) = self.running.take() {
            self.sample.time += running.start.elapsed();
            self.sample.server_cpu += self.server.cpu_seconds() - running.server_cpu;
            self.sample.client_cpu += own_cpu_seconds() - running.client_cpu;
        }
    }

    /// One operation.
    pub fn operation<T>(&mut self, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = self.begin();
        let done = work()?;
        self.end(start, bytes);
        Ok(done)
    }

    /// The moment an operation starts, if it is one that is timed.
    pub fn begin(&self) -> Option<Instant> {
        self.sample.operations.is_multiple_of(self.every).then(Instant::now)
    }

    /// Counts an operation that [`Meter::begin`] began.
    pub fn end(&mut self, start: Option<Instant>, bytes: u64) {
        if let Some(start) = start {
            self.sample.latencies_ns.push(start.elapsed().as_nanos() as u64);
        }
        self.sample.operations += 1;
        self.sample.bytes += bytes;
    }
}

/// What of a repetition is held against the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Of bodies.
    BytesPerSecond,
    /// As [`Sample::operations`] counts them.
    OperationsPerSecond,
    /// The same, of a second of the servers' processors.
    OperationsPerServerSecond,
    /// Median latency.
    MicrosecondsP50,
    /// The latency that one in a hundred passes.
    MicrosecondsP99,
    /// The longest an operation took.
    MicrosecondsMax,
    /// Of the servers' processors.
    ServerCpuSeconds,
    /// Of the server's memory.
    BytesPerOperation,
}

impl Figure {
    /// What the value is counted in.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::BytesPerSecond => "bytes/s",
            Figure::OperationsPerSecond => "operations/s",
            Figure::OperationsPerServerSecond => "operations/CPU second",
            Figure::MicrosecondsP50 | Figure::MicrosecondsP99 | Figure::MicrosecondsMax => "us",
            Figure::ServerCpuSeconds => "CPU seconds",
            Figure::BytesPerOperation => "bytes/operation",
        }
    }

    fn better(self) -> &'static str {
        match self {
            Figure::BytesPerSecond
            | Figure::OperationsPerSecond
            | Figure::OperationsPerServerSecond => "higher",
            Figure::MicrosecondsP50
            | Figure::MicrosecondsP99
            | Figure::MicrosecondsMax
            | Figure::ServerCpuSeconds
            | Figure::BytesPerOperation => "lower",
        }
    }

    /// What a repetition comes to, in [`Figure::unit`].
    pub fn of(self, sample: &mut Sample) -> f64 {
        let seconds = sample.time.as_secs_f64();
        match self {
            Figure::BytesPerSecond => sample.bytes as f64 / seconds,
            Figure::OperationsPerSecond => sample.operations as f64 / seconds,
            Figure::OperationsPerServerSecond => sample.operations as f64 / sample.server_cpu,
            Figure::MicrosecondsP50 => percentile(&mut sample.latencies_ns, 0.5),
            Figure::MicrosecondsP99 => percentile(&mut sample.latencies_ns, 0.99),
            Figure::MicrosecondsMax => percentile(&mut sample.latencies_ns, 1.0),
            Figure::ServerCpuSeconds => sample.server_cpu,
            Figure::BytesPerOperation => sample.memory_bytes as f64 / sample.operations as f64,
        }
    }
}

/// Another system's figure on a machine of this kind.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// As its makers write it.
    pub name: &'static str,
    /// That was measured, or that its figure was published for.
    pub version: &'static str,
    /// In the case's unit.
    pub value: f64,
}

/// A case with all its repetitions.
pub struct Report {
    /// What people read, with sizes and numbers of clients.
    pub case: String,
    /// What is compared with limit and peer.
    pub figure: Figure,
    /// What the limit is the speed of.
    pub limit_name: String,
    /// In the figure's unit; none, or zeros, where nothing limits.
    pub limits: Vec<f64>,
    /// Measured in the same run, or published.
    pub peer: Option<Peer>,
    /// One a repetition.
    pub samples: Vec<Sample>,
}

/// Microseconds.
fn percentile(ns: &mut [u64], part: f64) -> f64 {
    if ns.is_empty() {
        return 0.0;
    }
    let i = ((ns.len() as f64 * part) as usize).min(ns.len() - 1);
    *ns.select_nth_unstable(i).1 as f64 / 1e3
}

/// The middle one, or the mean of the two in the middle; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Four significant digits, as an integer where it is one: more would pretend to be known.
pub fn rounded(value: f64) -> Value {
    if value == 0.0 || !value.is_finite() {
        return json!(0);
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    if digits > 0 {
        let scale = 10f64.powi(digits);
        json!((value * scale).round() / scale)
    } else {
        let scale = 10f64.powi(-digits);
        json!(((value / scale).round() * scale) as u64)
    }
}

/// The cases that `text` names, of these: `all`, or some with commas.
pub fn asked<'a>(text: &'a str, cases: &'a [&'a str]) -> Result<Vec<&'a str>> {
    let asked: Vec<&str> = match text {
        "all" => cases.to_vec(),
        some => some.split(',').collect(),
    };
    match asked.iter().find(|case| !cases.contains(case)) {
        Some(unknown) => {
            let known = cases.join(", ");
            Err(Error::invalid(format!("measure `{unknown}`: use {known} or all")))
        }
        None => Ok(asked),
    }
}

impl Report {
    /// Prints the case, as people or programs want it.
    pub fn tell(&mut self, out: &mut Output) -> Result<()> {
        let text = self.text();
        out.line(|| text, || self.line())
    }

    /// The case's line: medians over the repetitions.
    pub fn line(&mut self) -> Value {
        let figure = self.figure;
        let values: Vec<f64> = self.samples.iter_mut().map(|s| figure.of(s)).collect();
        let latency = |part: f64, samples: &mut [Sample]| {
            rounded(median(samples.iter_mut().map(|s| percentile(&mut s.latencies_ns, part))))
        };
        let samples = &mut self.samples;
        let quantiles: [Value; 4] = [0.5, 0.9, 0.99, 1.0].map(|part| latency(part, samples));
        let mean = |s: &Sample| {
            s.latencies_ns.iter().sum::<u64>() as f64 / s.latencies_ns.len().max(1) as f64 / 1e3
        };
        let of = |value: fn(&Sample) -> f64| rounded(median(self.samples.iter().map(value)));
        let (value, limit) = (median(values.iter().copied()), median(self.limits.iter().copied()));
        let spread = values.iter().fold((f64::MAX, 0f64), |(a, b), v| (a.min(*v), b.max(*v)));
        let peer =
            self.peer.map(|p| json!({"name": p.name, "version": p.version, "value": p.value}));
        json!({
            "case": self.case,
            "operations": of(|s| s.operations as f64),
            "bytes": of(|s| s.bytes as f64),
            "seconds": of(|s| s.time.as_secs_f64()),
            "ops_per_second": of(|s| s.operations as f64 / s.time.as_secs_f64()),
            "bytes_per_second": of(|s| s.bytes as f64 / s.time.as_secs_f64()),
            "latency_us": {
                "p50": quantiles[0], "p90": quantiles[1], "p99": quantiles[2],
                "max": quantiles[3], "mean": rounded(median(self.samples.iter().map(mean))),
            },
            "limit": {"name": self.limit_name, "value": rounded(limit), "unit": figure.unit()},
            "ratio_to_limit": rounded(value / limit),
            "peer": peer,
            "ratio_to_peer": self.peer.map(|p| rounded(value / p.value)),
            "better": figure.better(),
            "server_cpu_seconds": of(|s| s.server_cpu),
            "client_cpu_seconds": of(|s| s.client_cpu),
            "repetitions": self.samples.len(),
            "spread": {"min": rounded(spread.0), "max": rounded(spread.1)},
        })
    }

    /// The same for people.
    pub fn text(&mut self) -> String {
        let figure = self.figure;
        let value = rounded(median(self.samples.iter_mut().map(|s| figure.of(s))));
        let line = self.line();
        let (min, max) = (&line["spread"]["min"], &line["spread"]["max"]);
        let unit = figure.unit();
        let mut text = format!("{:<44} {value} {unit} ({min} to {max})", self.case);
        // What nothing limits, and what was not timed one by one, has no zeros for it.
        if median(self.limits.iter().copied()) != 0.0 {
            let (ratio, limit) = (&line["ratio_to_limit"], &line["limit"]["value"]);
            text += &format!("  {ratio} of {} {limit}", self.limit_name);
        }
        if self.samples.iter().any(|sample| !sample.latencies_ns.is_empty()) {
            let (p50, p99) = (&line["latency_us"]["p50"], &line["latency_us"]["p99"]);
            text += &format!("  p50 {p50} us p99 {p99} us");
        }
        if let Some(Peer { name, .. }) = self.peer {
            text += &format!("  {} of {name}", line["ratio_to_peer"]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_of_sorted_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        let mut ns: Vec<u64> = (1..=100).rev().map(|i| i * 1000).collect();
        assert_eq!(percentile(&mut ns, 0.5), 51.0);
        assert_eq!(percentile(&mut ns, 0.99), 100.0);
        assert_eq!(percentile(&mut ns, 1.0), 100.0);
    }

    #[test]
    fn four_digits_are_kept() {
        assert_eq!(rounded(123_456.0), json!(123_500));
        assert_eq!(rounded(0.123_456), json!(0.1235));
        assert_eq!(rounded(f64::NAN), json!(0));
    }

    #[test]
    fn people_read_nothing_of_what_was_not_measured() {
        let of = |latencies_ns| {
            let (operations, time) = (10, Duration::from_secs(2));
            vec![Sample { operations, time, latencies_ns, ..Sample::default() }]
        };
        let mut report = Report {
            case: "a case".to_owned(),
            figure: Figure::OperationsPerSecond,
            limit_name: "a limit".to_owned(),
            limits: Vec::new(),
            peer: None,
            samples: of(Vec::new()),
        };
        let case = format!("{:<44}", "a case");
        assert_eq!(report.text(), format!("{case} 5.0 operations/s (5.0 to 5.0)"));
        report.limits = vec![10.0];
        report.samples = of(vec![1000, 2000, 3000]);
        report.peer = Some(Peer { name: "a peer", version: "1", value: 2.5 });
        let told = "5.0 operations/s (5.0 to 5.0)  0.5 of a limit 10.0  p50 2.0 us p99 3.0 us  2.0 of a peer";
        assert_eq!(report.text(), format!("{case} {told}"));
    }
}
