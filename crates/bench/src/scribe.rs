//! `holdfast bench scribe`: messages through an agent to a node, and through a node's own door, beside
//! rsyslog as Debian has it, which takes the same lines in the same run. Agent, node and peer are
//! processes of their own, whose processor time is what is counted.

mod drain;
mod lines;
mod rsyslog;

use super::limits;
use super::process::{Process, free_port, own_cpu_seconds};
use super::report::{Figure, Report, Sample, asked, rounded};
use clap::Args;
use holdfast_base::ids::Index;
use holdfast_base::units::parse_bytes;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Endpoint};
use holdfast_command::files::{SETTINGS, SOCKET};
use holdfast_command::output::{Output, aside};
use holdfast_command::secrets;
use holdfast_scribe::batch;
use holdfast_scribe::call::{Entry, encode_log};
use holdfast_scribe::thrift::Form;
use lines::Lines;
use rsyslog::Rsyslog;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What `bench scribe` is asked for.
#[derive(Args, Debug)]
pub struct ScribeBench {
    /// `agent`, `door`, `latency`, `size`, `drain`, or `all`, with commas
    #[arg(short = 't', long = "type", default_value = "all", value_name = "CASE,...")]
    cases: String,
    /// Messages of a repetition; of 300 bytes
    #[arg(short = 'n', long = "number", default_value_t = 2_000_000, value_name = "N")]
    number: u64,
    /// What waits in the spool of `drain` when the node is back, as the spool keeps it, compressed
    #[arg(long, default_value = "1GiB", value_name = "BYTES", value_parser = parse_bytes)]
    spooled: u64,
    /// Messages of a call
    #[arg(short = 'b', long = "batch", default_value_t = 100, value_name = "N")]
    batch: usize,
    /// Clients, each with a connection and a call under way
    #[arg(short = 'c', long = "clients", default_value_t = 64, value_name = "N")]
    clients: usize,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 3, value_name = "N")]
    repetitions: usize,
    /// Directory that Debian's packages of rsyslog were unpacked in; measured without it where there is none
    #[arg(long, default_value = "target/clients/rsyslog", value_name = "DIR")]
    rsyslog: PathBuf,
    /// Directory below which data is kept [default: this one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const CASES: [&str; 5] = ["agent", "door", "latency", "size", "drain"];
const CATEGORY: &str = "web";
/// Different calls of one client.
const CALLS: usize = 16;
/// Messages of one latency each.
const SINGLE: u64 = 300;
/// The peer is given this part of the messages: with a sync for each it is slow.
const PEER_PART_SYNCED: u64 = 100;
const PEER_PART: u64 = 10;

/// A node with a door, and an agent in front of it.
struct Hops {
    node: Process,
    agent: Process,
    directory: PathBuf,
    /// Of the node's door, and of the agent's.
    ports: [u16; 2],
}

impl Hops {
    fn start(parent: &Path) -> Result<Hops> {
        Hops::start_with(parent, &[])
    }

    /// `more`: of the agent.
    fn start_with(parent: &Path, more: &[String]) -> Result<Hops> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("holdfast-scribe-{}-{number}", std::process::id()));
        let data = directory.join("node");
        std::fs::create_dir_all(&data)?;
        let ports = [free_port()?, free_port()?];
        let settings = format!(
            "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nscrub = \"0\"\n\
             scribe_port = {}\n",
            ports[0]
        );
        std::fs::write(data.join(SETTINGS), settings)?;
        let node = Process::up(&data)?;
        let mut agent = Command::new(std::env::current_exe()?);
        agent.args(["--json", "scribe", "agent", "--port", &ports[1].to_string(), "--to"]);
        agent.arg(format!("unix:{}", data.join(SOCKET).display()));
        agent.arg("--spool").arg(directory.join("spool")).args(more);
        let agent = Process::start(&mut agent)?;
        Ok(Hops { node, agent, directory, ports })
    }

    /// Kills the node; what it has stays.
    fn kill_node(&mut self) {
        self.node.kill();
    }

    fn start_node(&mut self) -> Result<()> {
        self.node = Process::up(&self.directory.join("node"))?;
        Ok(())
    }

    fn client(&self) -> Result<Client> {
        let socket = self.directory.join("node").join(SOCKET);
        Client::connect(&Endpoint::Unix(socket), &secrets::options())
    }

    /// Messages that the category has, and bytes that its topic takes.
    fn has(&self, client: &mut Client) -> Result<(u64, u64)> {
        let all = client.scribe_status()?;
        let one = all.into_iter().find(|one| one.category == CATEGORY);
        Ok(one.map_or((0, 0), |one| (one.messages, one.log_bytes)))
    }

    fn wait_for(&self, messages: u64) -> Result<()> {
        let mut client = self.client()?;
        let began = Instant::now();
        while self.has(&mut client)?.0 < messages {
            if began.elapsed() > Duration::from_secs(300) {
                return Err(Error::retry("wait for messages in their topic: they do not come"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Hops {
    fn drop(&mut self) {
        self.agent.kill();
        self.node.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Measures the cases that are asked for, and prints a line each.
pub fn run(options: &ScribeBench, out: &mut Output) -> Result<()> {
    let asked = asked(&options.cases, &CASES)?;
    let parent = options.data.clone().map_or_else(std::env::current_dir, Ok)?;
    let peer = Rsyslog::find(&options.rsyslog);
    if peer.is_none() {
        let place = options.rsyslog.display();
        aside(format_args!(
            "rsyslog is not in `{place}` (`make tools` gets it): measured without it"
        ));
    }
    let calls: Vec<Vec<Vec<u8>>> = (0..options.clients)
        .map(|client| calls(&mut Lines::new(client as u64), options.batch))
        .collect();
    for case in asked {
        match case {
            "agent" => throughput(options, &parent, &calls, peer.as_ref(), 1, out)?,
            "door" => throughput(options, &parent, &calls, peer.as_ref(), 0, out)?,
            "latency" => latency(options, &parent, out)?,
            "drain" => drain::run(options, &parent, &calls, out)?,
            _ => size(options, &parent, out)?,
        }
    }
    Ok(())
}

fn calls(lines: &mut Lines, batch: usize) -> Vec<Vec<u8>> {
    let call = |_| {
        let lines: Vec<Vec<u8>> = (0..batch).map(|_| lines.line()).collect();
        log(&lines)
    };
    (0..CALLS).map(call).collect()
}

fn log(lines: &[Vec<u8>]) -> Vec<u8> {
    let category = CATEGORY.as_bytes();
    let entries: Vec<Entry<'_>> = lines.iter().map(|message| Entry { category, message }).collect();
    encode_log(Form::Old, 1, &entries)
}

/// Sends a call and reads its answer.
fn call(stream: &mut TcpStream, frame: &[u8]) -> Result<()> {
    stream.write_all(frame)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer)?;
    // In front of the end of its struct: 0 for OK.
    match answer[..] {
        [.., 0, 0] => Ok(()),
        _ => Err(Error::retry("send messages: a call was told to try later")),
    }
}

/// All clients at once, each with its calls, one under way; when the last was answered.
fn send<'a, C: Iterator<Item = &'a Vec<u8>> + Send>(
    port: u16,
    clients: impl Iterator<Item = C>,
) -> Result<()> {
    thread::scope(|scope| {
        let client = |mut frames: C| -> Result<()> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            frames.try_for_each(|frame| call(&mut stream, frame))
        };
        let threads: Vec<_> = clients.map(|frames| scope.spawn(move || client(frames))).collect();
        threads.into_iter().try_for_each(|one| one.join().expect("a client panicked"))
    })
}

/// So many calls of each client, from its first one on and over again.
fn again(
    calls: &[Vec<Vec<u8>>],
    each: u64,
) -> impl Iterator<Item = impl Iterator<Item = &Vec<u8>>> {
    calls.iter().map(move |frames| frames.iter().cycle().take(each as usize))
}

/// Messages a second of processor time of the hop that takes them: 0 the node by its door, 1 the agent,
/// until the node has them all.
fn throughput(
    options: &ScribeBench,
    parent: &Path,
    calls: &[Vec<Vec<u8>>],
    peer: Option<&Rsyslog>,
    hop: usize,
    out: &mut Output,
) -> Result<()> {
    let each = options.number.div_ceil((options.clients * options.batch) as u64);
    let messages = each * (options.clients * options.batch) as u64;
    let hops = Hops::start(parent)?;
    let measured = [&hops.node, &hops.agent][hop];
    send(hops.ports[hop], again(calls, each.div_ceil(20)))?;
    let mut sent = each.div_ceil(20) * (options.clients * options.batch) as u64;
    hops.wait_for(sent)?;
    let (mut samples, mut limits, mut unsynced) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        if let Some(peer) = peer {
            let a_second = |part: u64, synced| {
                peer.messages_a_cpu_second(parent, options.clients, messages / part, synced)
            };
            limits.push(a_second(PEER_PART_SYNCED, true)?);
            unsynced.push(a_second(PEER_PART, false)?);
        }
        let (cpu, began) = ((measured.cpu_seconds(), own_cpu_seconds()), Instant::now());
        send(hops.ports[hop], again(calls, each))?;
        let time = began.elapsed();
        sent += messages;
        hops.wait_for(sent)?;
        let cpu = (measured.cpu_seconds() - cpu.0, own_cpu_seconds() - cpu.1);
        let bytes = messages * lines::BYTES as u64;
        samples.push(Sample::of_run(messages, bytes, time, cpu, Vec::new()));
    }
    let who = ["a node's door", "an agent"][hop];
    let mut report = Report {
        case: format!(
            "{who}: {} B, {} a call, {} clients, synced",
            lines::BYTES,
            options.batch,
            options.clients
        ),
        figure: Figure::OperationsPerServerSecond,
        limit_name: "rsyslog's, disk queue, synced".to_owned(),
        limits,
        peer: peer.map(|peer| super::report::Peer {
            name: "rsyslog's, disk queue without sync",
            version: peer.version(),
            value: super::report::median(unsynced),
        }),
        samples,
    };
    report.tell(out)
}

/// From a call's beginning at an agent until a reader of the node has its message, one at a time.
fn latency(options: &ScribeBench, parent: &Path, out: &mut Output) -> Result<()> {
    let hops = Hops::start(parent)?;
    let mut lines = Lines::new(7);
    let mut stream = TcpStream::connect(("127.0.0.1", hops.ports[1]))?;
    stream.set_nodelay(true)?;
    call(&mut stream, &log(&[lines.line()]))?;
    hops.wait_for(1)?;
    let (told, read) = mpsc::channel();
    let mut reader = hops.client()?;
    let total = SINGLE * options.repetitions as u64;
    let (mut samples, mut floors) = (Vec::new(), Vec::new());
    thread::scope(|scope| -> Result<()> {
        let reads = scope.spawn(move || -> Result<()> {
            let (mut next, mut seen) = (Index(2), 0);
            while seen < total {
                let page = reader.scribe_read(CATEGORY, next, Duration::MAX)?;
                next = page.next;
                for (_, bytes) in &page.batches {
                    let count = batch::verify(bytes)?.1.iter().count() as u64;
                    let now = Instant::now();
                    seen += count;
                    (0..count).for_each(|_| {
                        let _ = told.send(now);
                    });
                }
            }
            Ok(())
        });
        for _ in 0..options.repetitions {
            let sync_us = 1e6 / limits::fdatasync_loop(&hops.directory.join("limit"), 4096)?;
            floors.push(2.0 * sync_us + 2.0 * limits::tcp_ping_pong(false)?);
            let cpu = (hops.agent.cpu_seconds() + hops.node.cpu_seconds(), own_cpu_seconds());
            let (began, mut latencies) = (Instant::now(), Vec::new());
            for _ in 0..SINGLE {
                let frame = log(&[lines.line()]);
                let one = Instant::now();
                call(&mut stream, &frame)?;
                let wait = read.recv_timeout(Duration::from_secs(60));
                let there =
                    wait.map_err(|_| Error::retry("wait for a message: it does not come"))?;
                latencies.push(there.duration_since(one).as_nanos() as u64);
            }
            let spent = hops.agent.cpu_seconds() + hops.node.cpu_seconds() - cpu.0;
            let cpu = (spent, own_cpu_seconds() - cpu.1);
            samples.push(Sample::of_run(SINGLE, 0, began.elapsed(), cpu, latencies));
        }
        reads.join().expect("the reader panicked")
    })?;
    let mut report = Report {
        case: format!("a message of {} B to its reader, by an agent and a node", lines::BYTES),
        figure: Figure::MicrosecondsP50,
        limit_name: "two syncs and two round trips".to_owned(),
        limits: floors,
        peer: None,
        samples,
    };
    report.tell(out)
}

/// What a topic takes of lines that came in calls, beside one file of them that zstd has compressed.
fn size(options: &ScribeBench, parent: &Path, out: &mut Output) -> Result<()> {
    let hops = Hops::start(parent)?;
    let mut all = Lines::new(9);
    let lines: Vec<Vec<u8>> = (0..options.number.min(500_000)).map(|_| all.line()).collect();
    let calls: Vec<Vec<u8>> = lines.chunks(options.batch).map(log).collect();
    let clients = (0..options.clients).map(|at| calls.iter().skip(at).step_by(options.clients));
    send(hops.ports[1], clients)?;
    hops.wait_for(lines.len() as u64)?;
    let (_, topic_bytes) = hops.has(&mut hops.client()?)?;
    let mut file = Vec::new();
    lines.iter().for_each(|line| file.extend_from_slice(&[line, &b"\n"[..]].concat()));
    let zstd = zstd::bulk::compress(&file, 3)
        .map_err(|e| Error::bug(format!("compress the same lines: {e}")))?
        .len() as u64;
    let ratio = topic_bytes as f64 / zstd as f64;
    let raw = file.len();
    out.line(
        || {
            format!(
                "size of {} lines, {} a call, {} clients: {raw} B, in their topic {topic_bytes} B, as one file \
                 by zstd -3 {zstd} B, ratio {ratio:.2}",
                lines.len(),
                options.batch,
                options.clients
            )
        },
        || {
            json!({"case": "size", "lines": lines.len(), "raw_bytes": raw, "topic_bytes": topic_bytes,
                "zstd_bytes": zstd, "ratio": rounded(ratio)})
        },
    )
}
