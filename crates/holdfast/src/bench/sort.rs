//! `holdfast bench sort`: the device's bandwidth for reads and writes at the same time, then the
//! sort, then GNU sort with the same memory on the same file; outputs are compared. What the sort
//! cannot beat is its bytes, read and written as often as they must be, at that bandwidth.

use super::report::{median, rounded};
use super::server::own_cpu_seconds;
use crate::output::Output as Lines;
use clap::Args;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File, RealDisk};
use holdfast_env::{Rng, SeededRng};
use holdfast_sort::gray::generate::{self, Request, Shape};
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job, Report};
use holdfast_sort::key::{Key, LineOptions};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use serde_json::{Value, json};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Args, Debug, Clone)]
pub struct SortBench {
    /// uniform, skew, half (one key in half of the records) or lines (text, by its third column)
    #[arg(short = 't', long = "type", default_value = "uniform", value_name = "TYPE")]
    kind: String,
    /// Bytes to sort
    #[arg(short = 's', long, default_value = "2G", value_name = "BYTES")]
    size: String,
    /// Memory of each sort
    #[arg(short = 'S', long, default_value = "600M", value_name = "BYTES")]
    memory: String,
    /// Number of the first record, or seed of the text
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Repetitions; medians are printed
    #[arg(short = 'e', long, default_value_t = 3, value_name = "N")]
    repetitions: usize,
    /// Times that GNU sort runs
    #[arg(long, default_value_t = 1, value_name = "N")]
    peer_repetitions: usize,
    /// Directory for all files [default: the current directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Directories for temporary files [default: that for all files]
    #[arg(short = 'T', long, value_name = "DIR")]
    temp: Vec<PathBuf>,
}

/// Reads and writes at once, each so many at a time and so long.
const LIMIT_DEPTH: u64 = 4;
const LIMIT_BLOCK_BYTES: usize = 1 << 20;
const LIMIT_FILE_BYTES: u64 = 1 << 30;

/// One run of the sort.
struct Sample {
    seconds: f64,
    cpu_seconds: f64,
    bandwidth: f64,
    memory_bytes: u64,
    read: u64,
    written: u64,
    report: Report,
}

pub fn run(options: &SortBench, lines: &mut Lines) -> Result<()> {
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
    let bytes = parse_bytes(&options.size).map_err(Error::invalid)?;
    let memory = parse_bytes(&options.memory).map_err(Error::invalid)?;
    let input = directory.join("input");
    let columns = options.kind == "lines";
    match &options.kind[..] {
        "uniform" => make_records(&input, bytes, options.seed, false)?,
        "skew" => make_records(&input, bytes, options.seed, true)?,
        "half" => make_half(&input, bytes, options.seed)?,
        "lines" => make_lines(&input, bytes, options.seed)?,
        other => {
            return Err(Error::invalid(format!("`-t {other}`: use uniform, skew, half or lines")));
        }
    }
    let bytes = std::fs::metadata(&input)?.len();
    let output = directory.join("output");
    let mut samples = Vec::new();
    for _ in 0..options.repetitions.max(1) {
        let bandwidth = mixed_bandwidth(directory)?;
        let _ = std::fs::remove_file(&output);
        let temp = match &options.temp[..] {
            [] => vec![directory.to_owned()],
            given => given.to_vec(),
        };
        samples.push(sort_once(&input, &output, temp, memory, columns, bandwidth)?);
    }
    let mut peers = Vec::new();
    for _ in 0..options.peer_repetitions {
        let other = directory.join("gnu");
        let Some(seconds) = gnu_sort(&input, &other, directory, memory, columns)? else { break };
        peers.push(seconds);
        if !same(&output, &other)? {
            return Err(Error::bug("compare with GNU sort: the outputs differ"));
        }
        std::fs::remove_file(&other)?;
    }
    let line = line(options, bytes, memory, &samples, &peers);
    lines.line(|| text(&line), || line.clone())
}

fn sort_once(
    input: &Path,
    output: &Path,
    temp: Vec<PathBuf>,
    memory_bytes: u64,
    columns: bool,
    bandwidth: f64,
) -> Result<Sample> {
    holdfast_env::local::drop_cached(input)?;
    let (format, order) = if columns {
        let options = LineOptions { keys: vec![Key::parse("3,3")?], ..LineOptions::default() };
        (Format::Delimited(b'\n'), Order::lines(&options)?)
    } else {
        let format = Format::Fixed(100);
        (format, Order::range(format, 0, Some(10), false)?)
    };
    let job = Job {
        inputs: vec![Input::File(input.to_owned())],
        output: Output::File(output.to_owned()),
        format,
        order,
        unique: false,
        memory_bytes,
        temp,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
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
        bandwidth,
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

/// Bytes a second, read and written together, of direct I/O front to back on two files.
fn mixed_bandwidth(directory: &Path) -> Result<f64> {
    let (from, to) = (directory.join("limit-from"), directory.join("limit-to"));
    let fresh = |path: &Path| -> Result<Arc<dyn File>> {
        let file = RealDisk.create(path, Access::Direct)?;
        file.allocate(LIMIT_FILE_BYTES)?;
        Ok(file)
    };
    let source = fresh(&from)?;
    each_block(&[(&*source, true)])?;
    let target = fresh(&to)?;
    let start = Instant::now();
    each_block(&[(&*source, false), (&*target, true)])?;
    target.sync("bench.limit")?;
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(from)?;
    std::fs::remove_file(to)?;
    Ok(2.0 * LIMIT_FILE_BYTES as f64 / seconds)
}

/// Reads or writes (`true`) each file front to back, all at the same time.
fn each_block(files: &[(&dyn File, bool)]) -> Result<()> {
    let next: Vec<AtomicU64> = files.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((file, write), next) in files.iter().zip(&next) {
            for _ in 0..LIMIT_DEPTH {
                threads.push(scope.spawn(move || -> Result<()> {
                    let mut block = AlignedBuf::zeroed(LIMIT_BLOCK_BYTES);
                    block.fill(0x5a);
                    loop {
                        let at = next.fetch_add(block.len() as u64, Ordering::Relaxed);
                        match (at >= LIMIT_FILE_BYTES, *write) {
                            (true, _) => return Ok(()),
                            (false, true) => file.write_at(&block, at)?,
                            (false, false) => file.read_exact_at(&mut block, at)?,
                        }
                    }
                }));
            }
        }
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Error::bug("measure the disk: a thread panicked"))?
        })
    })
}

fn make_records(path: &Path, bytes: u64, seed: u64, skew: bool) -> Result<()> {
    let request = Request {
        start: seed as u128,
        records: bytes / 100,
        shape: Shape { ascii: true, skew },
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    generate::file(&RealDisk, path, &request).map(drop)
}

/// Records of which every second has the same key.
fn make_half(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut records = generate::Records::from(seed as u128, Shape { ascii: true, skew: false });
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let mut record = [0; 100];
    for i in 0..bytes / 100 {
        records.write(&mut record);
        if i % 2 == 0 {
            record[..10].copy_from_slice(b"Oooooooooo");
        }
        out.write_all(&record)?;
    }
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    Ok(())
}

/// Lines of five columns: a number, a time, a word of a few thousand, hexadecimal, more words.
fn make_lines(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let rng = SeededRng::new(seed);
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let (mut written, mut line) = (0, Vec::new());
    let word = |line: &mut Vec<u8>| {
        // The smaller of two: short words and small numbers are more frequent.
        let n = (rng.next_u64() % 40_000).min(rng.next_u64() % 40_000);
        let mut n = n.wrapping_mul(0x9e37_79b9) | 1;
        for _ in 0..3 + n % 9 {
            line.push(b'a' + (n % 26) as u8);
            n = n.rotate_right(7);
        }
    };
    while written < bytes {
        line.clear();
        let n = rng.next_u64();
        write!(line, "{} 2026-11-{:02}T{:02}:{:02} ", n % 1_000_000, n % 28 + 1, n % 24, n % 60)?;
        word(&mut line);
        write!(line, " {:x} ", rng.next_u64() >> (n % 32))?;
        for _ in 0..n % 8 {
            word(&mut line);
            line.push(b' ');
        }
        line.push(b'\n');
        out.write_all(&line)?;
        written += line.len() as u64;
    }
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    Ok(())
}

/// Seconds that GNU sort takes, its output synced; none if there is no GNU sort.
fn gnu_sort(
    input: &Path,
    output: &Path,
    temp: &Path,
    memory: u64,
    columns: bool,
) -> Result<Option<f64>> {
    holdfast_env::local::drop_cached(input)?;
    let mut command = Command::new("sort");
    command.env("LC_ALL", "C").arg("-S").arg(memory.to_string() + "b").arg("--parallel=2");
    command.arg("-T").arg(temp).arg("-o").arg(output).arg(input);
    if columns {
        command.arg("-k3,3");
    }
    let start = Instant::now();
    let Ok(status) = command.status() else { return Ok(None) };
    if !status.success() {
        return Err(Error::retry(format!("run GNU sort: it ended with {status}")));
    }
    std::fs::File::open(output)?.sync_all()?;
    Ok(Some(start.elapsed().as_secs_f64()))
}

fn same(a: &Path, b: &Path) -> Result<bool> {
    let (mut a, mut b) = (std::fs::File::open(a)?, std::fs::File::open(b)?);
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    loop {
        let n = a.read(&mut x)?;
        b.read_exact(&mut y[..n])?;
        if n == 0 || x[..n] != y[..n] {
            return Ok(n == 0);
        }
    }
}

fn line(options: &SortBench, bytes: u64, memory: u64, samples: &[Sample], peers: &[f64]) -> Value {
    let of = |value: &dyn Fn(&Sample) -> f64| median(samples.iter().map(value));
    let size = bytes as f64;
    let in_memory = samples.iter().any(|sample| sample.report.in_memory);
    let passes = if in_memory { 2.0 } else { 4.0 };
    let (rate, limit) = (of(&|s| size / s.seconds), of(&|s| s.bandwidth / passes));
    let rates = samples.iter().map(|s| size / s.seconds);
    let spread = rates.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let peer = (!peers.is_empty()).then(|| size / median(peers.iter().copied()));
    json!({
        "case": format!("sort/{}/{}/{} of memory", options.kind, format_bytes(bytes), format_bytes(memory)),
        "operations": samples.first().map_or(0, |s| s.report.records),
        "bytes": bytes,
        "seconds": rounded(of(&|s| s.seconds)),
        "bytes_per_second": rounded(rate),
        "limit": {
            "name": if in_memory { "one read and one write" } else { "two reads and two writes" },
            "value": rounded(limit),
            "unit": "bytes/s",
        },
        "ratio_to_limit": rounded(of(&|s| size / s.seconds / (s.bandwidth / passes))),
        "peer": peer.map(|value| json!({"name": "GNU sort", "version": "installed", "value": rounded(value)})),
        "ratio_to_peer": peer.map(|value| rounded(rate / value)),
        "better": "higher",
        "client_cpu_seconds": rounded(of(&|s| s.cpu_seconds)),
        "cpu_seconds_per_gb": rounded(of(&|s| s.cpu_seconds / (size / 1e9))),
        "memory_bytes": rounded(of(&|s| s.memory_bytes as f64)),
        "reads_a_byte": rounded(of(&|s| s.read as f64 / size)),
        "writes_a_byte": rounded(of(&|s| s.written as f64 / size)),
        "split_bytes": rounded(of(&|s| s.report.split_bytes as f64)),
        "repetitions": samples.len(),
        "spread": {"min": rounded(spread.0), "max": rounded(spread.1)},
    })
}

fn text(line: &Value) -> String {
    let number = |name: &str| line[name].as_f64().unwrap_or_default();
    let peer = match &line["ratio_to_peer"] {
        Value::Null => String::new(),
        ratio => format!("; {ratio} times GNU sort"),
    };
    format!(
        "{}: {:.1} s, {:.0} MB/s, {} of {}{peer}; {} CPU-s a GB, {} of memory, {} reads and {} writes a byte",
        line["case"].as_str().unwrap_or_default(),
        Duration::from_secs_f64(number("seconds")).as_secs_f64(),
        number("bytes_per_second") / 1e6,
        line["ratio_to_limit"],
        line["limit"]["name"].as_str().unwrap_or_default(),
        line["cpu_seconds_per_gb"],
        format_bytes(number("memory_bytes") as u64),
        line["reads_a_byte"],
        line["writes_a_byte"],
    )
}
