//! `holdfast bench cluster`: a cluster of processes on this machine under load loses a node with
//! its disk: what its clients notice, and how fast the copies are made again beside the bandwidth
//! that repair is allowed. Then the processor time of three copies beside that of one, for the
//! same bytes.

use super::process::{cpu_seconds, own_cpu_seconds};
use super::report::{Figure, Report, Sample};
use clap::Args;
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::{MIB, parse_bytes};
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, NewFile};
use holdfast_command::LocalCluster;
use holdfast_command::output::{Output, aside};
use holdfast_env::{Rng, SeededRng};
use holdfast_wire::admin::Recovery;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What `bench cluster` is asked for.
#[derive(Args, Debug)]
pub struct ClusterBench {
    /// `kill`, `copies`, or both
    #[arg(default_value = "all", value_name = "CASE")]
    case: String,
    #[arg(long, default_value_t = 5, value_name = "N")]
    nodes: usize,
    /// Threads that store files
    #[arg(long, default_value_t = 64, value_name = "N")]
    writers: usize,
    /// Threads that read files and check them
    #[arg(long, default_value_t = 64, value_name = "N")]
    readers: usize,
    /// Bytes of a file
    #[arg(short = 's', long = "size", default_value = "16K", value_name = "BYTES")]
    size: String,
    /// Bytes stored before the load, and for each of the copies' cases
    #[arg(long, default_value = "256M", value_name = "BYTES")]
    fill: String,
    /// Capacity of chunks in the case of the kill: many, as a larger cluster would have
    #[arg(long, default_value = "8M", value_name = "BYTES")]
    chunk: String,
    /// What a node may send and receive for repair, a second
    #[arg(long, default_value = "8M", value_name = "BYTES")]
    rate: String,
    /// Milliseconds without a sign of life after which a node's chunks are copied elsewhere
    #[arg(long, default_value_t = 5000, value_name = "MS")]
    lost_ms: u64,
    /// Directory below which the nodes keep their data [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Repetitions of the copies' cases; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 3, value_name = "N")]
    repetitions: usize,
}

/// A member is dead, and routed around, after this.
const DEATH_LIMIT_US: f64 = 3e6;
/// What a client may notice of it, beyond.
const STALL_EXTRA_US: f64 = 1e6;
/// Before the kill, and after everything is whole again.
const WARM: Duration = Duration::from_secs(3);
/// How far one gateway may be behind another.
const LAG_MAX: Duration = Duration::from_secs(5);
/// For the repair, before the run is given up.
const REPAIR_MAX: Duration = Duration::from_secs(90);
const FILES_FILLED: u64 = 10;

/// Kills a node under load, compares copies, or does both, as `case` says; prints a line a case.
pub fn run(options: &ClusterBench, out: &mut Output) -> Result<()> {
    let (kill, copies) = match options.case.as_str() {
        "all" => (true, true),
        "kill" => (true, false),
        "copies" => (false, true),
        other => {
            return Err(Error::invalid(format!("measure `{other}`: use kill, copies or all")));
        }
    };
    if kill {
        kill_under_load(options, out)?;
    }
    if copies {
        processor_of_copies(options, out)?;
    }
    Ok(())
}

fn bytes_of(what: &str, text: &str) -> Result<u64> {
    parse_bytes(text).map_err(|e| Error::invalid(format!("measure with {what} of `{text}`: {e}")))
}

/// The content of a file, made again from its path.
fn content(path: &str, bytes: usize) -> Vec<u8> {
    let seed = path.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(131) + byte as u64);
    let rng = SeededRng::new(seed);
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        content.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// What all threads of the load share.
struct Load {
    stop: AtomicBool,
    size: usize,
    /// How far each writer has come: files below that number are there.
    written: Vec<AtomicU64>,
    errors: AtomicU64,
}

/// An answer; or none, of which somebody must be told. What was refused for now the client has
/// sent again, patiently.
fn answered<T>(load: &Load, answer: Result<T>) -> Option<T> {
    answer
        .inspect_err(|e| {
            load.errors.fetch_add(1, Ordering::Relaxed);
            aside(format_args!("a client failed: {e}"));
        })
        .ok()
}

fn path_of(writer: usize, number: u64) -> String {
    format!("/load/w{writer}/f{number}")
}

fn writer(load: &Load, me: usize, client: &mut Client) -> Vec<u64> {
    let mut latencies = Vec::new();
    while !load.stop.load(Ordering::Relaxed) {
        let number = load.written[me].load(Ordering::Relaxed);
        let path = path_of(me, number);
        let bytes = content(&path, load.size);
        let began = Instant::now();
        let new = NewFile { parents: true, replace: true, ..NewFile::default() };
        if answered(load, client.put(&path, &bytes, &new)).is_some() {
            load.written[me].store(number + 1, Ordering::Release);
        }
        latencies.push(began.elapsed().as_nanos() as u64);
    }
    latencies
}

fn reader(load: &Load, me: usize, client: &mut Client) -> Vec<u64> {
    let rng = SeededRng::new(1000 + me as u64);
    let mut latencies = Vec::new();
    while !load.stop.load(Ordering::Relaxed) {
        let of = (rng.next_u64() % load.written.len() as u64) as usize;
        let there = load.written[of].load(Ordering::Acquire);
        let path = path_of(of, rng.next_u64() % there.max(1));
        if there == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let began = Instant::now();
        let read = loop {
            match client.get(&path) {
                // Another gateway may not have seen yet what one acknowledged a moment ago.
                Err(e) if e.kind == Kind::NotFound && began.elapsed() < LAG_MAX => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => break answered(load, other),
            }
        };
        latencies.push(began.elapsed().as_nanos() as u64);
        if read.is_some_and(|read| read != content(&path, load.size)) {
            load.errors.fetch_add(1, Ordering::Relaxed);
            aside(format_args!("`{path}` has other bytes than were stored"));
        }
    }
    latencies
}

/// What the repair came to.
struct Repaired {
    /// From the node's loss to the last copy.
    seconds: f64,
    /// After the kill.
    whole_after: f64,
    recovery: Recovery,
}

fn kill_under_load(options: &ClusterBench, out: &mut Output) -> Result<()> {
    let (size, fill) = (bytes_of("files", &options.size)?, bytes_of("data", &options.fill)?);
    let rate = bytes_of("a rate", &options.rate)?;
    let chunk = bytes_of("chunks", &options.chunk)?;
    let data = options.data.as_ref().map(|data| data.join("kill"));
    let cluster = LocalCluster::start(options.nodes, data.as_deref(), chunk, options.lost_ms)?;
    // Through every gateway in turn: each keeps a copy of what it takes in, and a node that holds
    // all there is could receive nothing afterwards.
    let mut gateways =
        (1..=options.nodes).map(|node| cluster.client(node)).collect::<Result<Vec<_>>>()?;
    fill_large(&mut gateways, fill)?;
    drop(gateways);
    cluster.set_repair_rate(rate)?;
    let load = Load {
        stop: AtomicBool::new(false),
        size: size as usize,
        written: (0..options.writers).map(|_| AtomicU64::new(0)).collect(),
        errors: AtomicU64::new(0),
    };
    let mut clients = Vec::new();
    for i in 0..options.writers + options.readers {
        clients.push(cluster.client(1 + i % options.nodes)?);
    }
    let cpu = own_cpu_seconds();
    let (latencies, repaired, time) = std::thread::scope(|scope| {
        let began = Instant::now();
        let threads: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(i, client)| {
                let load = &load;
                scope.spawn(move || match i < options.writers {
                    true => writer(load, i, client),
                    false => reader(load, i, client),
                })
            })
            .collect();
        std::thread::sleep(WARM);
        // Any but the one with the log.
        let repaired = cluster.lose(options.nodes).and_then(|()| repair(&cluster, options.nodes));
        load.stop.store(true, Ordering::Relaxed);
        let latencies: Vec<Vec<u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
        (latencies, repaired, began.elapsed())
    });
    let client_cpu = own_cpu_seconds() - cpu;
    let repaired = repaired?;
    let errors = load.errors.load(Ordering::Relaxed);
    let operations: Vec<u64> = latencies.into_iter().flatten().collect();
    let count = operations.len() as u64;
    let sample = Sample::of_run(count, count * size, time, (0.0, client_cpu), operations);
    tell_clients(options, sample, errors, out)?;
    tell_repair(options, rate, &repaired, out)
}

/// Large files, through each gateway in turn: what is to be repaired.
fn fill_large(gateways: &mut [Client], bytes: u64) -> Result<()> {
    let each = bytes / FILES_FILLED;
    let piece = content("filled", MIB as usize);
    let new = NewFile { parents: true, ..NewFile::default() };
    for i in 0..FILES_FILLED {
        let gateway = i as usize % gateways.len();
        let mut writer = gateways[gateway].create(&format!("/filled/{i}"), &new)?;
        let mut left = each;
        while left > 0 {
            let part = left.min(piece.len() as u64);
            writer.write(&piece[..part as usize])?;
            left -= part;
        }
        writer.close()?;
    }
    Ok(())
}

/// Waits until every chunk has its copies again.
fn repair(cluster: &LocalCluster, victim: usize) -> Result<Repaired> {
    let killed = Instant::now();
    let mut client = cluster.client(1)?;
    let mut lost_at = None;
    while killed.elapsed() < REPAIR_MAX {
        let seen = cluster.seen_by_leader(&mut client)?;
        let lost = seen.nodes.iter().any(|n| n.node.0 as usize == victim && n.state == "lost");
        if lost {
            let since: Instant = *lost_at.get_or_insert_with(Instant::now);
            let r = seen.recovery;
            if (r.short, r.copies) == (0, 0) {
                let (seconds, whole_after) =
                    (since.elapsed().as_secs_f64(), killed.elapsed().as_secs_f64());
                return Ok(Repaired { seconds, whole_after, recovery: r });
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Error::retry(format!(
        "wait for the repair: chunks are still short after {} s",
        REPAIR_MAX.as_secs()
    )))
}

/// What the clients noticed: the longest stall against the death limit and a second.
fn tell_clients(
    options: &ClusterBench,
    sample: Sample,
    errors: u64,
    out: &mut Output,
) -> Result<()> {
    let case = format!(
        "{} writers, {} readers, {} nodes, one killed",
        options.writers, options.readers, options.nodes
    );
    let mut report = Report {
        case,
        figure: Figure::MicrosecondsMax,
        limit_name: "death limit and a second".to_owned(),
        limits: vec![DEATH_LIMIT_US + STALL_EXTRA_US],
        peer: None,
        samples: vec![sample],
    };
    let text = format!("{}  {errors} errors", report.text());
    out.line(|| text, || with(report.line(), json!({"errors": errors})))
}

/// How fast copies were made against what all survivors together may receive.
fn tell_repair(
    options: &ClusterBench,
    rate: u64,
    repaired: &Repaired,
    out: &mut Output,
) -> Result<()> {
    let Repaired { seconds, whole_after, recovery } = repaired;
    let time = Duration::from_secs_f64(*seconds);
    let (copies, bytes) = (recovery.copies_made, recovery.bytes_made);
    let sample = Sample::of_run(copies, bytes, time, (0.0, 0.0), Vec::new());
    let mut report = Report {
        case: format!("repair of a lost node of {}, under load", options.nodes),
        figure: Figure::BytesPerSecond,
        limit_name: "what survivors may receive".to_owned(),
        limits: vec![(rate * (options.nodes as u64 - 1)) as f64],
        peer: None,
        samples: vec![sample],
    };
    let text = format!("{}  whole {whole_after:.1} s after the kill", report.text());
    out.line(|| text, || with(report.line(), json!({"whole_after_seconds": whole_after})))
}

/// A line with more in it.
fn with(mut line: Value, more: Value) -> Value {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}

/// The same bytes, on one node and on three: what the nodes' processors did.
fn processor_of_copies(options: &ClusterBench, out: &mut Output) -> Result<()> {
    let fill = bytes_of("data", &options.fill)?;
    let (mut limits, mut samples) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions.max(1) {
        limits.push(stored_on(1, fill, options)?.server_cpu);
        samples.push(stored_on(3, fill, options)?);
    }
    let mut report = Report {
        case: format!("three copies over loopback, {} of large files", options.fill),
        figure: Figure::ServerCpuSeconds,
        limit_name: "one copy".to_owned(),
        limits,
        peer: None,
        samples,
    };
    report.tell(out)
}

fn stored_on(nodes: usize, bytes: u64, options: &ClusterBench) -> Result<Sample> {
    let data = options.data.as_ref().map(|data| data.join("copies"));
    let cluster = LocalCluster::start(nodes, data.as_deref(), CHUNK_BYTES, options.lost_ms)?;
    let mut client = cluster.client(1)?;
    let servers = || -> f64 {
        cluster.pids().iter().map(|pid| cpu_seconds(&format!("/proc/{pid}/stat"))).sum()
    };
    let before = (servers(), own_cpu_seconds(), Instant::now());
    fill_large(std::slice::from_mut(&mut client), bytes)?;
    let time = before.2.elapsed();
    let cpu = (servers() - before.0, own_cpu_seconds() - before.1);
    drop((client, cluster));
    if let Some(data) = data {
        // The next one begins anew.
        std::fs::remove_dir_all(data)?;
    }
    Ok(Sample::of_run(FILES_FILLED, bytes, time, cpu, Vec::new()))
}
