//! A spool that has filled while its node was away, and goes out when that is back, while an application goes on
//! sending: how fast, beside the slower of disk and link; and what the application's calls take, beside before.

use super::{CALLS, Hops, Lines, ScribeBench, again, call, lines, log, send};
use crate::limits;
use crate::process::own_cpu_seconds;
use crate::report::{Figure, Report, Sample};
use holdfast_base::units::{MIB, format_bytes};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Calls of the application before: as many as its p99 needs.
const BEFORE: u64 = 2000;
/// Between two calls of it.
const REST: Duration = Duration::from_millis(1);
/// What disk and link are measured with: a batch.
const BLOCK_BYTES: usize = 512 << 10;
/// More than that is not sent to fill a spool.
const CALLS_MAX: u64 = 10_000_000;

/// One application that has a message now and then: what each call took, until it is told to stop.
fn live(port: u16, mut goes_on: impl FnMut(u64) -> bool) -> Result<Vec<u64>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let (mut lines, mut took) = (Lines::new(77), Vec::new());
    while goes_on(took.len() as u64) {
        let frame = log(&[lines.line()]);
        let began = Instant::now();
        call(&mut stream, &frame)?;
        took.push(began.elapsed().as_nanos() as u64);
        thread::sleep(REST);
    }
    Ok(took)
}

/// Bytes of the files below a directory.
fn bytes_below(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

/// One repetition each: it is long.
pub fn run(
    options: &ScribeBench,
    parent: &Path,
    calls: &[Vec<Vec<u8>>],
    out: &mut Output,
) -> Result<()> {
    let room = ["--spool-size".to_owned(), (2 * options.spooled + 512 * MIB).to_string()];
    let mut hops = Hops::start_with(parent, &room)?;
    let agent = hops.ports[1];
    let before = live(agent, |calls| calls < BEFORE)?;
    hops.wait_for(BEFORE)?;
    let (_, topic_before) = hops.has(&mut hops.client()?)?;
    hops.kill_node();
    // Once around all the calls that there are, until enough is spooled.
    let (mut sent, mut around) = (BEFORE, 0);
    let spool = hops.directory.join("spool");
    let enough = bytes_below(&spool)? + options.spooled;
    while bytes_below(&spool)? < enough {
        if around > CALLS_MAX {
            return Err(Error::retry("fill a spool: it does not grow"));
        }
        around += 1;
        send(agent, again(calls, CALLS as u64))?;
        sent += (CALLS * options.clients * options.batch) as u64;
    }
    let disk = limits::direct_write(&hops.directory.join("limit"), BLOCK_BYTES, 1)?;
    let link = limits::raw_tcp(BLOCK_BYTES)?;
    let (cpu, is_over) = (own_cpu_seconds(), AtomicBool::new(false));
    hops.start_node()?;
    let (spent, began) = (hops.agent.cpu_seconds(), Instant::now());
    let (time, during) = thread::scope(|scope| -> Result<(Duration, Vec<u64>)> {
        let during = scope.spawn(|| live(agent, |_| !is_over.load(Ordering::Relaxed)));
        let drained = hops.wait_for(sent);
        let time = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let during = during.join().expect("the application panicked")?;
        drained.map(|()| (time, during))
    })?;
    let cpu = (hops.agent.cpu_seconds() - spent, own_cpu_seconds() - cpu);
    let messages = sent - BEFORE;
    // As batches lie in the topic: so they lay in the spool, and went over the link.
    let bytes = hops.has(&mut hops.client()?)?.1 - topic_before;
    let sample = |operations, latencies| Sample::of_run(operations, bytes, time, cpu, latencies);
    let raw = format_bytes(messages * lines::BYTES as u64);
    let mut rate = Report {
        case: format!(
            "a spool of {} ({messages} messages, {raw}) goes out under live traffic",
            format_bytes(bytes)
        ),
        figure: Figure::BytesPerSecond,
        limit_name: "the slower of disk and link".to_owned(),
        limits: vec![disk.min(link)],
        peer: None,
        samples: vec![sample(messages, Vec::new())],
    };
    rate.tell(out)?;
    let calls = during.len() as u64;
    let mut beside = sample(BEFORE, before);
    let mut p99 = Report {
        case: format!("calls of one message meanwhile, {calls} of them, p99"),
        figure: Figure::MicrosecondsP99,
        limit_name: "the same before".to_owned(),
        limits: vec![Figure::MicrosecondsP99.of(&mut beside)],
        peer: None,
        samples: vec![sample(calls, during)],
    };
    p99.tell(out)
}
