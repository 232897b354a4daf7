//! `holdfast bench incast`: answers of many servers at once through a shallow switch buffer,
//! simulated packet by packet. The shipped client's core asks, with its window and without, and
//! TCP as a model; buffer, round trip and timeout are swept, and where the window loses is shown.

use super::report::{Figure, Report, Sample, rounded};
use clap::Args;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_cache_client::incast::{Outcome, Scenario, Sender, Tcp};
use holdfast_cache_client::{fleet, window};
use holdfast_command::chart::Chart;
use holdfast_command::output::Output;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// As often as it takes: what is compared delivers everything.
const RETRIES: u8 = 100;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

/// What `bench incast` is asked for.
#[derive(Args, Debug, Clone)]
pub struct IncastBench {
    /// servers, buffer, round-trip, timeout, loses, or `all`
    #[arg(short = 't', long = "type", default_value = "all", value_name = "SWEEP")]
    pub kind: String,
    /// Servers that answer, where they are not swept
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub servers: u32,
    /// Bytes of each answer
    #[arg(long, default_value = "4K", value_name = "BYTES")]
    pub answer: String,
    /// Bytes of the switch port's buffer, where they are not swept
    #[arg(long, default_value = "128K", value_name = "BYTES")]
    pub buffer: String,
    /// Microseconds there and back, where they are not swept
    #[arg(long, default_value_t = 100, value_name = "US")]
    pub round_trip: u64,
    /// Rounds: all servers are asked at once, and all must answer before the next
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub rounds: u32,
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,
    /// Draw the pictures as SVG into this directory
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

/// A sender by its name.
type Named = (String, Sender);

struct Point {
    place: String,
    scenario: Scenario,
}

struct Sweep {
    name: &'static str,
    title: &'static str,
    points: Vec<Point>,
    senders: Vec<Named>,
}

/// What a sweep came to: an outcome a point and sender.
struct Ran {
    sweep: Sweep,
    outcomes: Vec<Vec<Outcome>>,
}

fn fleet_with(change: impl FnOnce(&mut fleet::Settings)) -> Sender {
    let mut settings = fleet::Settings { retries: RETRIES, ..fleet::Settings::default() };
    change(&mut settings);
    Sender::Fleet(settings)
}

fn usual_senders() -> Vec<Named> {
    let named = |name: &str, sender| (name.to_owned(), sender);
    vec![
        named("window", fleet_with(|_| ())),
        named("window, losses are misses", fleet_with(|s| s.retries = 0)),
        named("no window", fleet_with(|s| s.window = window::Settings::unbounded())),
        named("TCP, 200 ms", Sender::Tcp(Tcp::CLASSIC)),
        named("TCP, RACK and TLP", Sender::Tcp(Tcp::RECENT)),
        named("TCP, 1 ms", Sender::Tcp(Tcp::FINE)),
    ]
}

fn sweeps(options: &IncastBench) -> Result<Vec<Sweep>> {
    let size = |text: &str| parse_bytes(text).map_err(Error::invalid);
    let answer_bytes = u32::try_from(size(&options.answer)?)
        .map_err(|_| Error::invalid(format!("`--answer {}`: too long", options.answer)))?;
    let base = Scenario {
        servers: options.servers,
        answer_bytes,
        rounds: options.rounds,
        buffer_bytes: size(&options.buffer)?,
        round_trip_ns: options.round_trip.saturating_mul(US),
        seed: options.seed,
        ..Scenario::default()
    };
    let points = |of: &[u64], name: fn(u64) -> String, set: fn(&mut Scenario, u64)| -> Vec<Point> {
        let point = |value: &u64| {
            let mut scenario = base;
            set(&mut scenario, *value);
            Point { place: name(*value), scenario }
        };
        of.iter().map(point).collect()
    };
    Ok(vec![
        Sweep {
            name: "servers",
            title: "servers that answer at once",
            points: points(
                &[10, 20, 50, 100, 200, 300, 500],
                |n| n.to_string(),
                |s, n| s.servers = n as u32,
            ),
            senders: usual_senders(),
        },
        Sweep {
            name: "buffer",
            title: "the switch port's buffer",
            points: points(
                &[16, 32, 64, 128, 256, 512, 1024, 4096].map(|kib| kib << 10),
                format_bytes,
                |s, bytes| s.buffer_bytes = bytes,
            ),
            senders: usual_senders(),
        },
        Sweep {
            name: "round-trip",
            title: "round trip without queues",
            points: points(
                &[20, 50, 100, 200, 500, 1000, 5000].map(|us| us * US),
                |ns| format!("{} us", ns / US),
                |s, ns| s.round_trip_ns = ns,
            ),
            senders: usual_senders(),
        },
        Sweep {
            name: "timeout",
            title: "least timeout",
            points: vec![Point { place: String::new(), scenario: base }],
            senders: timeouts(),
        },
        Sweep {
            name: "loses",
            title: "where a window costs",
            points: losing(base),
            senders: usual_senders(),
        },
    ])
}

/// The same network, and how long each waits before it takes an answer for lost.
fn timeouts() -> Vec<Named> {
    let mut senders = Vec::new();
    for ns in [200 * US, MS, 5 * MS, 20 * MS, 200 * MS] {
        let least = |s: &mut fleet::Settings| {
            (s.window.timeout_least_ns, s.window.timeout_most_ns) = (ns, 200 * MS);
        };
        let time = if ns < MS { format!("{} us", ns / US) } else { format!("{} ms", ns / MS) };
        senders.push((format!("window, {time}"), fleet_with(least)));
        let open = fleet_with(|s| {
            s.window = window::Settings::unbounded();
            least(s);
        });
        senders.push((format!("no window, {time}"), open));
        let tcp = |tcp: Tcp| Sender::Tcp(Tcp { timeout_least_ns: ns, ..tcp });
        senders.push((format!("TCP, {time}"), tcp(Tcp::CLASSIC)));
        senders.push((format!("TCP, RACK and TLP, {time}"), tcp(Tcp::RECENT)));
    }
    senders
}

/// Networks where all could be sent at once, or where an answer's time says nothing about them.
fn losing(base: Scenario) -> Vec<Point> {
    let point = |place: &str, change: fn(&mut Scenario)| {
        let mut scenario = base;
        change(&mut scenario);
        Point { place: place.to_owned(), scenario }
    };
    vec![
        point("all fits: 20 servers of 1 KiB", |s| (s.servers, s.answer_bytes) = (20, 1024)),
        point("one round, window unlearned", |s| s.rounds = 1),
        point("buffer of 8 MiB", |s| s.buffer_bytes = 8 << 20),
        point("servers take 1 ms, by chance", |s| s.jitter_ns = MS),
        point("1 of 50 takes 5 ms more", |s| (s.slow_every, s.slow_ns) = (50, 5 * MS)),
        point("far: 20 ms, 8 MiB", |s| (s.round_trip_ns, s.buffer_bytes) = (20 * MS, 8 << 20)),
    ]
}

/// Simulates each sweep that `kind` names, prints a line for each point and sender, and draws where
/// that was asked for.
pub fn run(options: &IncastBench, out: &mut Output) -> Result<()> {
    let all = sweeps(options)?;
    let names: Vec<&str> = all.iter().map(|sweep| sweep.name).collect();
    if options.kind != "all" && !names.contains(&options.kind.as_str()) {
        return Err(Error::invalid(format!(
            "measure `{}`: give `all` or one of {}",
            options.kind,
            names.join(", ")
        )));
    }
    for sweep in all.into_iter().filter(|s| options.kind == "all" || s.name == options.kind) {
        let ran = ran(sweep, out)?;
        if let Some(directory) = &options.plot {
            draw(&ran, directory)?;
        }
    }
    Ok(())
}

fn ran(sweep: Sweep, out: &mut Output) -> Result<Ran> {
    let mut outcomes = Vec::new();
    for point in &sweep.points {
        let mut row = Vec::new();
        for (name, sender) in &sweep.senders {
            let outcome = point.scenario.run(*sender)?;
            print(&sweep, point, name, &outcome, out)?;
            row.push(outcome);
        }
        outcomes.push(row);
    }
    Ok(Ran { sweep, outcomes })
}

fn print(
    sweep: &Sweep,
    point: &Point,
    sender: &str,
    outcome: &Outcome,
    out: &mut Output,
) -> Result<()> {
    let time = Duration::from_nanos(outcome.time_ns);
    let sample =
        Sample::of_run(outcome.answers, outcome.bytes, time, (0.0, 0.0), outcome.rounds_ns.clone());
    let mut report = Report {
        case: format!("{}: {} | {sender}", sweep.title, point.place),
        figure: Figure::BytesPerSecond,
        limit_name: "the client's link".to_owned(),
        limits: vec![point.scenario.limit()],
        peer: None,
        samples: vec![sample],
    };
    let mut line = report.line();
    let lost = outcome.lost as f64 / (outcome.answers + outcome.lost).max(1) as f64;
    for (name, value) in [
        ("sweep", json!(sweep.name)),
        ("sender", json!(sender)),
        ("servers", json!(point.scenario.servers)),
        ("answer_bytes", json!(point.scenario.answer_bytes)),
        ("buffer_bytes", json!(point.scenario.buffer_bytes)),
        ("round_trip_us", json!(point.scenario.round_trip_ns / US)),
        ("lost", rounded(lost)),
        ("dropped", json!(outcome.dropped)),
    ] {
        line[name] = value;
    }
    let text = || {
        let gbits = outcome.bytes as f64 * 8.0 / outcome.time_ns.max(1) as f64;
        format!(
            "{:<30} {sender:<26} {gbits:>7.3} Gbit/s  {:>5} of the link  a round: p50 {:>8} p99 {:>8} us  misses {:>5.2}%  dropped {}",
            format!("{} {}", sweep.name, point.place),
            line["ratio_to_limit"],
            line["latency_us"]["p50"],
            line["latency_us"]["p99"],
            100.0 * lost,
            outcome.dropped
        )
    };
    out.line(text, || line.clone())
}

/// Microseconds that one round in a hundred takes at least.
fn p99_us(outcome: &Outcome) -> f64 {
    let mut rounds = outcome.rounds_ns.clone();
    rounds.sort_unstable();
    let at = (rounds.len() * 99 / 100).min(rounds.len().saturating_sub(1));
    rounds.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
}

fn charts(ran: &Ran) -> Vec<(String, Chart)> {
    let of = |figure: &dyn Fn(&Outcome) -> f64| {
        let senders = ran.sweep.senders.iter().enumerate();
        let values = |i: usize| ran.outcomes.iter().map(|row| Some(figure(&row[i]))).collect();
        senders.map(|(i, (name, _))| (name.clone(), values(i))).collect::<Vec<_>>()
    };
    let places: Vec<String> = ran.sweep.points.iter().map(|p| p.place.clone()).collect();
    let chart = |what: &str, series, log| Chart {
        title: format!("Incast: {what} over {}", ran.sweep.title),
        y_label: what.to_owned(),
        places: places.clone(),
        series,
        lines: true,
        marks: Vec::new(),
        y_max: None,
        log,
    };
    let goodput = of(&|o| o.bytes as f64 * 8.0 / o.time_ns.max(1) as f64);
    let name = ran.sweep.name;
    vec![
        (format!("incast-{name}-goodput"), chart("goodput, Gbit/s", goodput, false)),
        (format!("incast-{name}-p99"), chart("99th percentile of a round, us", of(&p99_us), true)),
    ]
}

fn draw(ran: &Ran, directory: &Path) -> Result<()> {
    // One point has no line.
    if ran.sweep.points.len() < 2 {
        return Ok(());
    }
    let doing = |path: &Path, e: std::io::Error| {
        Error::from(e).context(format_args!("write figure `{}`", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(|e| doing(directory, e))?;
    for (name, chart) in charts(ran) {
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, chart.svg()).map_err(|e| doing(&path, e))?;
    }
    Ok(())
}
