//! `holdfast bench blob`: S3 puts and gets from many connections, each request freshly signed and
//! each body checked; gets by pointer beside them; and the raw device's random read as the limit.

use super::report::{Figure, Report, Sample, median};
use super::server::cpu_seconds;
use crate::blob::client;
use crate::config::FILE;
use crate::output::Output;
use clap::Args;
use holdfast_base::checksum::crc32c;
use holdfast_base::units::parse_bytes;
use holdfast_base::{Error, Result};
use holdfast_s3::{CREDENTIALS_FILE, Credentials, Request};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Args, Debug, Clone)]
pub struct Options {
    /// put, get, list, or `table` for all
    #[arg(short = 't', long = "type", default_value = "table", value_name = "TYPE")]
    pub kind: String,
    /// Sizes of objects, with commas
    #[arg(long, default_value = "4K,64K", value_name = "BYTES")]
    pub sizes: String,
    /// Connections, one request at a time on each
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub clients: usize,
    /// Objects of each size; each is put once and then got in a scattered order
    #[arg(short = 'n', long, default_value_t = 20_000, value_name = "N")]
    pub objects: u64,
    /// Measure this service instead, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    #[arg(long, env = "AWS_ACCESS_KEY_ID", default_value = "", value_name = "KEY")]
    pub access_key: String,
    #[arg(
        long,
        env = "AWS_SECRET_ACCESS_KEY",
        hide_env_values = true,
        default_value = "",
        value_name = "SECRET"
    )]
    pub secret_key: String,
    /// Directory below which the measured node keeps its data [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The service that is measured; ours ends when dropped.
struct Target {
    credentials: Credentials,
    child: Option<(Child, PathBuf)>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((child, directory)) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

impl Target {
    fn start(options: &Options) -> Result<Target> {
        if let Some(endpoint) = &options.endpoint {
            let credentials = Credentials {
                access_key: options.access_key.clone(),
                secret_key: options.secret_key.clone(),
                endpoint: endpoint.clone(),
            };
            return Ok(Target { credentials, child: None });
        }
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("holdfast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = format!(
            "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = {port}\ndram = \"0\"\nscrub = \"0\"\n"
        );
        std::fs::write(directory.join(FILE), settings)?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--json", "up", "--data"])
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or_else(|| Error::bug("its output is not ours"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let text = std::fs::read_to_string(directory.join(CREDENTIALS_FILE)).unwrap_or_default();
        let child = Some((child, directory));
        let mut target = Target {
            credentials: Credentials {
                access_key: String::new(),
                secret_key: String::new(),
                endpoint: String::new(),
            },
            child,
        };
        target.credentials = Credentials::parse(&text).ok_or_else(|| {
            Error::retry("start a node to measure: it ended at once, see its message above")
        })?;
        Ok(target)
    }

    fn cpu_seconds(&self) -> f64 {
        let pid = self.child.as_ref().map(|(child, _)| child.id());
        pid.map_or(0.0, |pid| cpu_seconds(&format!("/proc/{pid}/stat")))
    }
}

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Get,
    List,
}

const BUCKET: &str = "bench";
/// Keys of one listing.
const LISTED: u64 = 1000;

/// An object's bytes: of its number and nothing else, so that a get can be checked.
fn body(number: u64, bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes + 8);
    let mut x = number;
    while body.len() < bytes {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        body.extend_from_slice(&(z ^ (z >> 27)).to_le_bytes());
    }
    body.truncate(bytes);
    body
}

fn key(bytes: usize, number: u64) -> String {
    format!("/{BUCKET}/{bytes}/{:03}/{number:08}", number % 1000)
}

pub fn run(options: &Options, out: &mut Output) -> Result<()> {
    let target = Target::start(options)?;
    let mut first = client(&target.credentials)?;
    let made = first.send(&Request::new("PUT", format!("/{BUCKET}")))?;
    if made.status != 409 {
        made.ok("make the bucket to measure in")?;
    }
    let limit = target.child.as_ref().map(|(_, directory)| directory.join("limit"));
    for size in options.sizes.split(',') {
        let bytes = parse_bytes(size).map_err(Error::invalid)? as usize;
        for (kind, name) in [(Kind::Put, "put"), (Kind::Get, "get"), (Kind::List, "list")] {
            // Gets and lists need what puts leave.
            let shown = options.kind == "table" || options.kind == name;
            if !shown && kind != Kind::Put {
                continue;
            }
            let sample = measure(&target, options, kind, bytes)?;
            if !shown {
                continue;
            }
            let limits = match (&limit, kind) {
                (Some(path), Kind::Get) => vec![device(path, bytes, options.clients)?],
                (Some(path), Kind::Put) => vec![super::limits::fdatasync_loop(path, bytes)?],
                _ => vec![0.0],
            };
            let name_of_limit = match kind {
                Kind::Get => format!("device, scattered reads, {} at once", options.clients),
                Kind::Put => "fdatasync of one file".to_owned(),
                Kind::List => "none".to_owned(),
            };
            let per = sample.server_cpu * 1e3 / sample.operations as f64;
            let mut report = Report {
                case: format!("s3 {name} {size}, {} clients", options.clients),
                figure: Figure::OperationsPerSecond,
                limit_name: name_of_limit,
                limits,
                peer: None,
                samples: vec![sample],
            };
            let mut line = report.line();
            line["server_cpu_ms_per_operation"] = super::report::rounded(per);
            out.line(|| format!("{}  server CPU {per:.3} ms each", report.text()), || line)?;
        }
    }
    Ok(())
}

/// Operations a second of scattered direct reads of the device.
fn device(path: &std::path::Path, bytes: usize, depth: usize) -> Result<f64> {
    let rates = (0..3).map(|_| super::limits::scattered_read(path, bytes, depth));
    Ok(median(rates.collect::<std::io::Result<Vec<f64>>>()?))
}

fn measure(target: &Target, options: &Options, kind: Kind, bytes: usize) -> Result<Sample> {
    let next = AtomicU64::new(0);
    let operations = match kind {
        Kind::List => (options.objects / 20).max(1),
        _ => options.objects,
    };
    let (cpu, own) = (target.cpu_seconds(), super::server::own_cpu_seconds());
    let start = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.clients)
            .map(|_| {
                let next = &next;
                scope.spawn(move || connection(target, options, kind, bytes, (next, operations)))
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| Error::bug("a measuring thread panicked"))??);
        }
        Ok::<_, Error>(all)
    })?;
    let time = start.elapsed();
    let cpu = (target.cpu_seconds() - cpu, super::server::own_cpu_seconds() - own);
    let moved = if kind == Kind::List { 0 } else { operations * bytes as u64 };
    Ok(Sample::of_run(operations, moved, time, cpu, latencies))
}

fn connection(
    target: &Target,
    options: &Options,
    kind: Kind,
    bytes: usize,
    (next, operations): (&AtomicU64, u64),
) -> Result<Vec<u64>> {
    let mut client = client(&target.credentials)?;
    let mut latencies = Vec::new();
    loop {
        let turn = next.fetch_add(1, Ordering::Relaxed);
        if turn >= operations {
            return Ok(latencies);
        }
        // An odd step visits every object, far from the one before.
        let number = match kind {
            Kind::Get => turn.wrapping_mul(0x9e37_79b1) % options.objects,
            _ => turn,
        };
        let data = if kind == Kind::List { Vec::new() } else { body(number, bytes) };
        let start = Instant::now();
        match kind {
            Kind::Put => {
                let mut request = Request::new("PUT", key(bytes, number));
                request.body = &data;
                client.send(&request)?.ok("put")?;
            }
            Kind::Get => {
                let got = client.send(&Request::new("GET", key(bytes, number)))?.ok("get")?;
                if crc32c(&got.body) != crc32c(&data) {
                    return Err(Error::corrupt(format!(
                        "get object {number}: other bytes came back"
                    )));
                }
            }
            Kind::List => {
                let request = Request::new("GET", format!("/{BUCKET}"))
                    .with("list-type", "2")
                    .with("prefix", format!("{bytes}/{:03}/", turn % 1000))
                    .with("max-keys", LISTED.to_string());
                client.send(&request)?.ok("list")?;
            }
        }
        latencies.push(start.elapsed().as_nanos() as u64);
    }
}
