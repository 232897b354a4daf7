//! `holdfast bench cache`: our cache, a null server that reads and answers the same bytes without
//! looking anything up, and memcached where it is installed, taking turns under the same load.
//! Servers are processes of their own, each pinned to the first core; the load has the next one.

mod client;
mod crowd;
mod curve;
mod keys;
mod ladder;
mod load;
mod lookaside;
mod second;
mod server;
mod trace;

use super::report::{Figure, Peer, Report, Sample};
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_env::sockets;
use keys::{Kind, Requests, fill};
use load::{Ran, Shape, Transport};
use server::{Target, version};
use std::net::ToSocketAddrs;
use std::time::Duration;

/// What `bench cache` is asked for.
#[derive(Args, Debug, Clone)]
pub struct CacheBench {
    /// get100, pipeline, get1, set, udp1, udp10, udp100, trains1, client1, or `table` for all
    /// these; hits, curve, ladder, cores, crowd, items, lookaside, second: see docs/cache.md
    #[arg(short = 't', long = "type", default_value = "table", value_name = "TYPE")]
    pub kind: String,
    /// Keys that are stored
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    pub value: usize,
    /// Seconds of one repetition
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Memory of the servers, in MiB
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    pub memory: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 3, value_name = "N")]
    pub repetitions: usize,
    /// Clients of a crowd; keys of `items` are `--keys`
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub clients: usize,
    /// Threads of the servers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub threads: usize,
    /// Measure this server instead, which is filled first
    #[arg(long, value_name = "HOST:PORT")]
    pub target: Option<String>,
    /// The peer's program
    #[arg(long, default_value = "memcached", value_name = "PROGRAM")]
    pub peer: String,
    /// Leave the peer out
    #[arg(long)]
    pub no_peer: bool,
}

struct Case {
    name: &'static str,
    text: &'static str,
    kind: Kind,
    keys_each: usize,
    shape: Shape,
}

const fn shape(transport: Transport, clients: usize, depth: usize) -> Shape {
    Shape { transport, clients, depth }
}

const CASES: &[Case] = &[
    case(
        "get100",
        "TCP, 100-key gets, 50 connections",
        Kind::Get,
        100,
        shape(Transport::Tcp, 50, 1),
    ),
    case(
        "pipeline",
        "TCP, 16 connections x 100 gets",
        Kind::Get,
        1,
        shape(Transport::Tcp, 16, 100),
    ),
    case("get1", "TCP, single gets, 50 connections", Kind::Get, 1, shape(Transport::Tcp, 50, 1)),
    case("set", "TCP, sets, 50 connections x 16", Kind::Set, 1, shape(Transport::Tcp, 50, 16)),
    case("udp1", "UDP, single gets, 8 sockets x 8", Kind::Get, 1, shape(Transport::Udp, 8, 8)),
    case("udp10", "UDP, 10-key gets, 8 sockets x 8", Kind::Get, 10, shape(Transport::Udp, 8, 8)),
    case("udp100", "UDP, 100-key gets, 8 sockets x 2", Kind::Get, 100, shape(Transport::Udp, 8, 2)),
    case(
        "trains1",
        "UDP, single gets, trains, 8 x 8",
        Kind::Get,
        1,
        shape(Transport::Trains, 8, 8),
    ),
    case("client1", "UDP, single gets, our client", Kind::Get, 1, shape(Transport::Client, 1, 64)),
];

impl Case {
    /// What the null server is put under, which answers nothing that a client understands: the
    /// bare load in the client's place.
    fn bare(&self) -> Case {
        let mut case = Case { ..*self };
        if case.shape.transport == Transport::Client {
            case.shape = shape(Transport::Trains, 8, 8);
        }
        case
    }
}

const fn case(
    name: &'static str,
    text: &'static str,
    kind: Kind,
    keys_each: usize,
    shape: Shape,
) -> Case {
    Case { name, text, kind, keys_each, shape }
}

/// Measures the cases that `kind` names, each in turns with its limit and the peer, and prints a
/// line a case. `Invalid` for an unknown one.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    match options.kind.as_str() {
        "hits" => return trace::run(options, out),
        "curve" => return curve::run(options, out),
        "lookaside" => return lookaside::run(options, out),
        "ladder" => return ladder::run(options, out),
        "cores" => return ladder::cores(options, out),
        "crowd" => return crowd::run(options, out),
        "items" => return crowd::items(options, out),
        "second" => return second::run(options, out),
        _ => {}
    }
    // The load has a core of its own where there is one.
    let _ = sockets::pin_to_core(options.threads);
    let cases: Vec<&Case> =
        CASES.iter().filter(|c| options.kind == "table" || options.kind == c.name).collect();
    if cases.is_empty() {
        let names: Vec<&str> = CASES.iter().map(|c| c.name).collect();
        return Err(Error::invalid(format!(
            "measure `{}`: give `table` or one of {}",
            options.kind,
            names.join(", ")
        )));
    }
    if let Some(target) = &options.target {
        return foreign(target, &cases, options, out);
    }
    let ours = Target::ours(options, options.threads, &[])?;
    fill(ours.tcp, options.keys, options.value)?;
    let peer = if options.no_peer { None } else { Target::peer(options)? };
    if let Some(peer) = &peer {
        fill(peer.tcp, options.keys, options.value)?;
    }
    let peer_version = version(&options.peer);
    for case in cases {
        measure(case, &ours, peer.as_ref().map(|p| (p, peer_version)), options, out)?;
    }
    Ok(())
}

fn load_on(target: &Target, case: &Case, requests: &Requests, options: &CacheBench) -> Result<Ran> {
    let address = if case.shape.transport == Transport::Tcp { target.tcp } else { target.udp };
    load::run(address, case.shape, requests, Duration::from_secs_f64(options.seconds))
}

fn named(name: &str) -> Result<&'static Case> {
    CASES.iter().find(|case| case.name == name).ok_or_else(|| Error::bug("a case without a name"))
}

fn measure(
    case: &Case,
    ours: &Target,
    peer: Option<(&Target, &'static str)>,
    options: &CacheBench,
    out: &mut Output,
) -> Result<()> {
    let mut requests = Requests::new(case.kind, case.keys_each, options.keys, options.value);
    let null = Target::null(options, requests.request_bytes, requests.reply_bytes)?;
    let keys = case.keys_each as f64;
    let rate = |ran: &Ran| ran.requests as f64 * keys / ran.seconds;
    let (mut limits, mut peers, mut samples) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.repetitions.max(1) {
        requests.comparable = false;
        limits.push(rate(&load_on(&null, &case.bare(), &requests, options)?));
        requests.comparable = true;
        let (server, client) = (ours.cpu_seconds(), super::process::own_cpu_seconds());
        let ran = load_on(ours, case, &requests, options)?;
        let cpu = (ours.cpu_seconds() - server, super::process::own_cpu_seconds() - client);
        samples.push(sample(ran, case, requests.reply_bytes, cpu));
        if let Some((peer, _)) = peer {
            peers.push(rate(&load_on(peer, case, &requests, options)?));
        }
    }
    let peer = peer.map(|(_, version)| Peer {
        name: "memcached",
        version,
        value: super::report::median(peers).round(),
    });
    report(case, samples, limits, peer, out)
}

/// Measures somebody else's server, without a limit.
fn foreign(target: &str, cases: &[&Case], options: &CacheBench, out: &mut Output) -> Result<()> {
    let doing = || format!("measure `{target}`");
    let address = target
        .to_socket_addrs()
        .ok()
        .and_then(|mut all| all.next())
        .ok_or_else(|| Error::invalid(format!("{}: give HOST:PORT", doing())))?;
    let target = Target::foreign(address);
    fill(address, options.keys, options.value).map_err(|e| e.context(doing()))?;
    for case in cases {
        let requests = Requests::new(case.kind, case.keys_each, options.keys, options.value);
        let mut samples = Vec::new();
        for _ in 0..options.repetitions.max(1) {
            let client = super::process::own_cpu_seconds();
            let ran = load_on(&target, case, &requests, options)?;
            let cpu = (0.0, super::process::own_cpu_seconds() - client);
            samples.push(sample(ran, case, requests.reply_bytes, cpu));
        }
        report(case, samples, Vec::new(), None, out)?;
    }
    Ok(())
}

fn sample(ran: Ran, case: &Case, reply_bytes: usize, cpu: (f64, f64)) -> Sample {
    Sample::of_run(
        ran.requests * case.keys_each as u64,
        ran.requests * reply_bytes as u64,
        Duration::from_secs_f64(ran.seconds),
        cpu,
        ran.latencies_ns,
    )
}

fn report(
    case: &Case,
    samples: Vec<Sample>,
    limits: Vec<f64>,
    peer: Option<Peer>,
    out: &mut Output,
) -> Result<()> {
    let mut report = Report {
        case: case.text.to_owned(),
        figure: Figure::OperationsPerSecond,
        limit_name: "a null server".to_owned(),
        limits,
        peer,
        samples,
    };
    report.tell(out)
}
