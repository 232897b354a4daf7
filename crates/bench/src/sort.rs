//! `holdfast bench sort`: the device's bandwidth for reads and writes at the same time before and
//! after each sort, the sort, then GNU sort and DuckDB with the same memory on the same file;
//! outputs are compared. What the sort cannot beat is its bytes, read and written as often as they
//! must be, at that bandwidth.

mod cgroup;
mod inputs;
mod kernels;
mod minute;
mod peers;

use super::process::own_cpu_seconds;
use super::report::{median, rounded};
use cgroup::Cgroup;
use clap::Args;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output as Lines;
use holdfast_command::output::aside;
use holdfast_env::RealDisk;
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job, Report};
use holdfast_sort::key::{Key, LineOptions};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::probe;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use peers::Peer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What `bench sort` is asked for.
#[derive(Args, Debug, Clone)]
pub struct SortBench {
    /// uniform, skew, half (one key in half of the records) or lines (text, by its third column)
    #[arg(short = 't', long = "type", default_value = "uniform", value_name = "TYPE")]
    kind: String,
    /// Bytes to sort; several, with commas, show how the time grows
    #[arg(short = 's', long, default_value = "2G", value_name = "BYTES", value_delimiter = ',')]
    size: Vec<String>,
    /// Memory of each sort
    #[arg(short = 'S', long, default_value = "600M", value_name = "BYTES")]
    memory: String,
    /// Number of the first record, or seed of the text
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Repetitions; medians are printed
    #[arg(short = 'e', long, default_value_t = 3, value_name = "N")]
    repetitions: usize,
    /// Times that other sorts run
    #[arg(long, default_value_t = 1, value_name = "N")]
    peer_repetitions: usize,
    /// Directory for all files [default: the current directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Directories for temporary files [default: that for all files]
    #[arg(short = 'T', long, value_name = "DIR")]
    temp: Vec<PathBuf>,
    /// Instead so many temporary directories beside the data, one case for each number
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "temp")]
    temps: Vec<usize>,
    /// Each case a second time with pinned threads
    #[arg(long)]
    pin: bool,
    /// What is sorted in a minute: goes on from the first size with larger or smaller ones
    #[arg(long)]
    minute: bool,
    /// Runs DuckDB, too: of this Python, or installed with pip into an environment of its own
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    duckdb: Option<String>,
    /// All sorts in a memory cgroup of that memory and so much more, page cache included
    #[arg(long, value_name = "BYTES")]
    cgroup: Option<String>,
    /// The steps of a sort in memory instead, on one thread
    #[arg(long)]
    kernels: bool,
}

/// Bytes of the files that the disk is measured with, each way.
const LIMIT_FILE_BYTES: u64 = 1 << 30;
/// Small sorts need no more than a part of that.
const LIMIT_FILE_BYTES_MIN: u64 = 128 << 20;

/// How one case is sorted.
struct Case<'a> {
    directory: &'a Path,
    kind: &'a str,
    bytes: u64,
    memory: u64,
    temp: Vec<PathBuf>,
    pinned: bool,
    /// In the case's name.
    note: String,
}

/// One run of the sort.
struct Sample {
    seconds: f64,
    cpu_seconds: f64,
    /// Of the disk, before and after.
    bandwidths: [f64; 2],
    memory_bytes: u64,
    read: u64,
    written: u64,
    report: Report,
}

impl Sample {
    fn passes(&self) -> f64 {
        if self.report.in_memory { 2.0 } else { 4.0 }
    }

    /// Bytes a second that the disk allows.
    fn bound(&self) -> f64 {
        self.bandwidths.iter().sum::<f64>() / 2.0 / self.passes()
    }
}

/// Sorts each case in turns with the disk's bandwidth and other sorts, and prints a line a case;
/// files go when it ends.
pub fn run(options: &SortBench, lines: &mut Lines) -> Result<()> {
    if options.kernels {
        return kernels::run(options.repetitions, lines);
    }
    let parent = match &options.data {
        Some(directory) => directory.clone(),
        None => std::env::current_dir()?,
    };
    let directory = parent.join(format!("bench-sort-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let done = measure(options, &directory, lines);
    std::fs::remove_dir_all(&directory)?;
    done
}

fn measure(options: &SortBench, directory: &Path, lines: &mut Lines) -> Result<()> {
    let bytes = |text: &String| parse_bytes(text).map_err(Error::invalid);
    let memory = bytes(&options.memory)?;
    let sizes: Vec<u64> = options.size.iter().map(bytes).collect::<Result<_>>()?;
    let python = options.duckdb.as_deref().map(peers::python).transpose()?;
    let more = options.cgroup.as_ref().map(bytes).transpose()?;
    let cgroup = more.map(|more| Cgroup::enter(memory + more));
    let _cgroup = cgroup.and_then(|entered| {
        let refused = |e: Error| aside(format_args!("{e}: all sorts run without one"));
        entered.map_err(refused).ok()
    });
    if options.minute {
        return minute::run(options, directory, sizes[0], memory, lines);
    }
    let mut grown = Vec::new();
    for size in sizes {
        let input = directory.join("input");
        inputs::make(&options.kind, &input, size, options.seed)?;
        let bytes = std::fs::metadata(&input)?.len();
        for (i, case) in cases(options, directory, bytes, memory)?.iter().enumerate() {
            let samples = run_case(case, options.repetitions)?;
            let peers = match i {
                0 => run_peers(options, case, python.as_deref())?,
                _ => Vec::new(),
            };
            let line = line(case, &samples, &peers);
            lines.line(|| text(&line), || line.clone())?;
            if i == 0 {
                grown.push((bytes, median(samples.iter().map(|s| s.seconds))));
            }
        }
        std::fs::remove_file(&input)?;
        std::fs::remove_file(directory.join("output"))?;
    }
    if grown.len() > 1 { growth(&grown, memory, lines) } else { Ok(()) }
}

/// What is to be measured with one input.
fn cases<'a>(
    options: &'a SortBench,
    directory: &'a Path,
    bytes: u64,
    memory: u64,
) -> Result<Vec<Case<'a>>> {
    let mut temps = vec![match &options.temp[..] {
        [] => (vec![directory.to_owned()], String::new()),
        given => (given.to_vec(), format!("/{} directories", given.len())),
    }];
    if !options.temps.is_empty() {
        temps.clear();
    }
    for count in &options.temps {
        let names: Vec<PathBuf> = (0..*count).map(|i| directory.join(format!("temp{i}"))).collect();
        names.iter().try_for_each(std::fs::create_dir_all)?;
        let word = if *count == 1 { "directory" } else { "directories" };
        temps.push((names, format!("/{count} {word}")));
    }
    let mut cases = Vec::new();
    for (temp, note) in temps {
        for pinned in [false, true].into_iter().take(1 + usize::from(options.pin)) {
            let note = if pinned { format!("{note}/pinned") } else { note.clone() };
            let (kind, temp) = (&options.kind[..], temp.clone());
            cases.push(Case { directory, kind, bytes, memory, temp, pinned, note });
        }
    }
    Ok(cases)
}

fn run_case(case: &Case<'_>, repetitions: usize) -> Result<Vec<Sample>> {
    let each = (case.bytes / 2).clamp(LIMIT_FILE_BYTES_MIN, LIMIT_FILE_BYTES);
    let bandwidth = || probe::mixed_bandwidth(&RealDisk, case.directory, each);
    let mut samples = Vec::new();
    // What is measured after one sort is measured before the next.
    let mut before = bandwidth()?;
    for _ in 0..repetitions.max(1) {
        let mut sample = sort_once(case)?;
        let after = bandwidth()?;
        sample.bandwidths = [before, after];
        before = after;
        samples.push(sample);
    }
    Ok(samples)
}

fn run_peers(options: &SortBench, case: &Case<'_>, python: Option<&Path>) -> Result<Vec<Peer>> {
    let Case { directory, memory, kind, .. } = *case;
    let (input, output, other) =
        (directory.join("input"), directory.join("output"), directory.join("other"));
    let request = peers::Request { input: &input, output: &other, temp: directory, memory, kind };
    let mut peers = vec![peers::gnu_sort()];
    peers.extend(python.map(peers::duckdb));
    for _ in 0..options.peer_repetitions {
        for peer in &mut peers {
            if !peer.run(&request)? {
                continue;
            }
            if peer.keeps_order(kind) && !peers::same(&output, &other)? {
                return Err(Error::bug(format!("compare with {}: the outputs differ", peer.name)));
            }
            std::fs::remove_file(&other)?;
        }
    }
    peers.retain(|peer| !peer.seconds.is_empty());
    Ok(peers)
}

fn sort_once(case: &Case<'_>) -> Result<Sample> {
    let (input, output) = (case.directory.join("input"), case.directory.join("output"));
    let _ = std::fs::remove_file(&output);
    holdfast_env::local::drop_cached(&input)?;
    let (format, order) = if case.kind == "lines" {
        let options = LineOptions { keys: vec![Key::parse("3,3")?], ..LineOptions::default() };
        (Format::Delimited(b'\n'), Order::lines(&options)?)
    } else {
        let format = Format::Fixed(100);
        (format, Order::range(format, 0, Some(10), false)?)
    };
    let job = Job {
        inputs: vec![Input::File(input)],
        output: Output::File(output),
        format,
        order,
        unique: false,
        memory_bytes: case.memory,
        temp: case.temp.clone(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        pinned: case.pinned,
        first: None,
        resume: false,
    };
    // Resets the peak that `VmHWM` says.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let (read, written) = (own_figure("io", "read_bytes")?, own_figure("io", "write_bytes")?);
    let (start, cpu) = (Instant::now(), own_cpu_seconds());
    let report = job::run(&RealDisk, job, &Progress::default())?;
    Ok(Sample {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: own_cpu_seconds() - cpu,
        bandwidths: [0.0; 2],
        memory_bytes: own_figure("status", "VmHWM")? << 10,
        read: own_figure("io", "read_bytes")? - read,
        written: own_figure("io", "write_bytes")? - written,
        report,
    })
}

/// A number that the kernel keeps of this process.
fn own_figure(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::unsupported(format!("read `{name}` in /proc/self/{file}")))
}

/// Seconds a GB of every size, and by how much they differ.
fn growth(grown: &[(u64, f64)], memory: u64, lines: &mut Lines) -> Result<()> {
    let a_gb = |(bytes, seconds): &(u64, f64)| seconds / (*bytes as f64 / 1e9);
    let (least, most) =
        grown.iter().map(a_gb).fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let sizes: Vec<Value> = (grown.iter())
        .map(|one| json!({"bytes": one.0, "seconds_per_gb": rounded(a_gb(one))}))
        .collect();
    lines.line(
        || format!("growth: {least:.2} to {most:.2} s a GB, {:.2} times", most / least),
        || {
            json!({
                "case": format!("sort/growth/{} of memory", format_bytes(memory)),
                "sizes": sizes,
                "seconds_per_gb": {"min": rounded(least), "max": rounded(most)},
                "most_to_least": rounded(most / least),
                "better": "lower",
            })
        },
    )
}

fn line(case: &Case<'_>, samples: &[Sample], peers: &[Peer]) -> Value {
    let of = |value: &dyn Fn(&Sample) -> f64| median(samples.iter().map(value));
    let size = case.bytes as f64;
    let in_memory = samples.iter().any(|sample| sample.report.in_memory);
    let rate = of(&|s| size / s.seconds);
    let rates = samples.iter().map(|s| size / s.seconds);
    let spread = rates.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let rate_of = |peer: &Peer| size / median(peer.seconds.iter().copied());
    let object = |peer: &Peer| {
        let cpu = median(peer.cpu_seconds.iter().copied()) / (size / 1e9);
        json!({
            "name": peer.name,
            "version": peer.version,
            "value": rounded(rate_of(peer)),
            "cpu_seconds_per_gb": rounded(cpu),
        })
    };
    let Case { kind, note, .. } = case;
    let (bytes, memory) = (format_bytes(case.bytes), format_bytes(case.memory));
    json!({
        "case": format!("sort/{kind}/{bytes}/{memory} of memory{note}"),
        "operations": samples.first().map_or(0, |s| s.report.records),
        "bytes": case.bytes,
        "seconds": rounded(of(&|s| s.seconds)),
        "bytes_per_second": rounded(rate),
        "limit": {
            "name": if in_memory { "one read and one write" } else { "two reads and two writes" },
            "value": rounded(of(&Sample::bound)),
            "unit": "bytes/s",
        },
        "limit_before": rounded(of(&|s| s.bandwidths[0] / s.passes())),
        "limit_after": rounded(of(&|s| s.bandwidths[1] / s.passes())),
        "ratio_to_limit": rounded(of(&|s| size / s.seconds / s.bound())),
        "peer": peers.first().map(object),
        "ratio_to_peer": peers.first().map(|peer| rounded(rate / rate_of(peer))),
        "other_peers": peers.iter().skip(1).map(object).collect::<Vec<_>>(),
        "better": "higher",
        "client_cpu_seconds": rounded(of(&|s| s.cpu_seconds)),
        "cpu_seconds_per_gb": rounded(of(&|s| s.cpu_seconds / (size / 1e9))),
        "memory_bytes": rounded(of(&|s| s.memory_bytes as f64)),
        "reads_a_byte": rounded(of(&|s| s.read as f64 / size)),
        "writes_a_byte": rounded(of(&|s| s.written as f64 / size)),
        "kept_bytes": rounded(of(&|s| s.report.kept_bytes as f64)),
        "split_bytes": rounded(of(&|s| s.report.split_bytes as f64)),
        "repetitions": samples.len(),
        "spread": {"min": rounded(spread.0), "max": rounded(spread.1)},
    })
}

fn text(line: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let mb = |value: &Value| number(value) / 1e6;
    let peers = line["other_peers"].as_array().into_iter().flatten();
    let peers = std::iter::once(&line["peer"]).chain(peers).filter(|peer| !peer.is_null());
    let peers = peers.map(|peer| {
        let ratio = number(&line["bytes_per_second"]) / number(&peer["value"]);
        let (name, cpu) = (peer["name"].as_str().unwrap_or_default(), &peer["cpu_seconds_per_gb"]);
        format!("; {ratio:.2} times {name} (which takes {cpu})")
    });
    let peers: String = peers.collect();
    format!(
        "{}: {:.1} s, {:.0} MB/s, {} of {} ({:.0} MB/s before, {:.0} after), {} CPU-s a GB{peers}; {} of memory, {} reads and {} writes a byte",
        line["case"].as_str().unwrap_or_default(),
        number(&line["seconds"]),
        mb(&line["bytes_per_second"]),
        line["ratio_to_limit"],
        line["limit"]["name"].as_str().unwrap_or_default(),
        mb(&line["limit_before"]),
        mb(&line["limit_after"]),
        line["cpu_seconds_per_gb"],
        format_bytes(number(&line["memory_bytes"]) as u64),
        line["reads_a_byte"],
        line["writes_a_byte"],
    )
}
