//! The latency of UDP gets at fixed rates, from a tenth of the peak to the peak: requests leave at
//! moments chosen before (Poisson), whatever has become of earlier ones, and latency counts from
//! the moment a request was due, not from when it got out.

use super::keys::{Kind, Requests, fill};
use super::load;
use super::server::{Target, version};
use super::{CacheBench, load_on, named};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_env::poll::{Events, Interest, Poller};
use holdfast_env::{Rng, SeededRng, sockets};
use serde_json::json;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const SOCKETS: usize = 8;
/// Requests that leave before answers are looked at again: what is due together leaves in one
/// call, so that the load keeps its rate where the server does.
const AT_ONCE: usize = 32;
const TENTHS: u64 = 10;
/// Answers that come later than this after the last request are lost.
const LATE: Duration = Duration::from_millis(200);
const FRAME_BYTES: usize = 8;
/// Request ids of one socket: what is outstanding must be fewer.
const IDS: usize = 1 << 16;

/// Prints quantiles of the latency at each tenth of the peak, for our cache and then the peer.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    let _ = sockets::pin_to_core(options.threads);
    let ours = Target::ours(options, options.threads, &[])?;
    curve("holdfast", &ours, options, out)?;
    if !options.no_peer
        && let Some(peer) = Target::peer(options)?
    {
        curve(&format!("memcached {}", version(&options.peer)), &peer, options, out)?;
    }
    Ok(())
}

fn curve(name: &str, target: &Target, options: &CacheBench, out: &mut Output) -> Result<()> {
    fill(target.tcp, options.keys, options.value)?;
    let case = named("udp1")?;
    let requests = Requests::new(Kind::Get, 1, options.keys, options.value);
    let mut peaks = Vec::new();
    for _ in 0..3 {
        let ran = load_on(target, case, &requests, options)?;
        peaks.push(ran.requests as f64 / ran.seconds);
    }
    let peak = crate::report::median(peaks);
    for tenth in 1..=TENTHS {
        let rate = peak * tenth as f64 / TENTHS as f64;
        let mut ran = at_rate(target.udp, rate, &requests, options.seconds)?;
        let mean = ran.latencies_ns.iter().sum::<u64>() as f64
            / ran.latencies_ns.len().max(1) as f64
            / 1e3;
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| percentile(&mut ran, part));
        let achieved = ran.requests as f64 / ran.seconds;
        let lost = ran.lost as f64 / (ran.requests + ran.lost).max(1) as f64;
        out.line(
            || {
                format!(
                    "{name:<20} {:>3}% of the peak: {rate:.0}/s asked, {achieved:.0}/s answered, lost {:.2}%: mean {mean:.0} us, p50 {p50:.0}, p99 {p99:.0}, p99.9 {p999:.0}",
                    tenth * 10,
                    lost * 100.0
                )
            },
            || {
                json!({
                    "case": format!("UDP, single gets, open loop, {}% of the peak, {name}", tenth * 10),
                    "operations": ran.requests, "seconds": ran.seconds,
                    "asked_per_second": rate, "ops_per_second": achieved, "lost": lost,
                    "latency_us": {"mean": mean, "p50": p50, "p99": p99, "p99.9": p999},
                    "better": "lower",
                })
            },
        )?;
    }
    Ok(())
}

fn percentile(ran: &mut load::Ran, part: f64) -> f64 {
    let n = ran.latencies_ns.len();
    if n == 0 {
        return 0.0;
    }
    let i = ((n as f64 * part) as usize).min(n - 1);
    *ran.latencies_ns.select_nth_unstable(i).1 as f64 / 1e3
}

struct Asker {
    socket: UdpSocket,
    target: SocketAddr,
    /// By request id: when it was due; nothing if it is not outstanding.
    due: Vec<Option<Instant>>,
    next_id: u16,
    at: usize,
}

/// Asks `rate` times a second.
fn at_rate(target: SocketAddr, rate: f64, requests: &Requests, seconds: f64) -> Result<load::Ran> {
    let (poller, mut events) = (Poller::new()?, Events::new(SOCKETS));
    let mut askers = Vec::new();
    for i in 0..SOCKETS {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        sockets::enable_trains(&socket)?;
        let _ = sockets::set_buffer_bytes(&socket, 4 << 20);
        poller.add(&socket, i as u64, Interest::Read)?;
        let at = requests.start(i, SOCKETS, 1);
        askers.push(Asker { socket, target, due: vec![None; IDS], next_id: 0, at });
    }
    let rng = SeededRng::new(7);
    // Exponential: requests of many clients come independently of each other.
    let gap = || {
        let part = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(-(1.0 - part).ln() / rate)
    };
    let mut ran = load::Ran::default();
    let (start, time) = (Instant::now(), Duration::from_secs_f64(seconds));
    let (mut due, mut turn, mut asked) = (start + gap(), 0, 0u64);
    let (mut dues, mut train) = (Vec::with_capacity(AT_ONCE), Vec::new());
    let mut buffer = vec![0; sockets::DATAGRAM_BYTES_MAX];
    loop {
        let now = Instant::now();
        let ended = now - start >= time;
        if ended && (ran.requests == asked || now - start >= time + LATE) {
            break;
        }
        dues.clear();
        while !ended && due <= now && dues.len() < AT_ONCE {
            dues.push(due);
            due += gap();
        }
        if !dues.is_empty() {
            asked += askers[turn].ask(&dues, requests, &mut train)?;
            turn = (turn + 1) % SOCKETS;
        }
        poller.wait(&mut events, Some(Duration::ZERO))?;
        for i in 0..events.len() {
            askers[events.get(i).token as usize].receive(requests, &mut buffer, &mut ran)?;
        }
    }
    ran.lost = asked - ran.requests;
    ran.seconds = seconds;
    Ok(ran)
}

impl Asker {
    /// Asks once for each moment; says how many were asked: a full socket takes none.
    fn ask(&mut self, dues: &[Instant], requests: &Requests, train: &mut Vec<u8>) -> Result<u64> {
        train.clear();
        for n in 0..dues.len() {
            let id = self.next_id.wrapping_add(n as u16).to_be_bytes();
            train.extend_from_slice(&[id[0], id[1], 0, 0, 0, 1, 0, 0]);
            train.extend_from_slice(requests.batch(self.at, 1));
            self.at = requests.next(self.at, 1);
        }
        let sent = match dues.len() {
            1 => sockets::send(&self.socket, train).map(|_| ()),
            n => sockets::send_train(&self.socket, train, train.len() / n, self.target),
        };
        match sent {
            Ok(()) => {
                for due in dues {
                    self.due[usize::from(self.next_id)] = Some(*due);
                    self.next_id = self.next_id.wrapping_add(1);
                }
                Ok(dues.len() as u64)
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    fn receive(
        &mut self,
        requests: &Requests,
        buffer: &mut [u8],
        ran: &mut load::Ran,
    ) -> Result<()> {
        while let Ok(received) = sockets::receive_train(&self.socket, buffer) {
            let now = Instant::now();
            for datagram in buffer[..received.bytes].chunks(received.each) {
                if datagram.len() != FRAME_BYTES + requests.reply_bytes {
                    let len = datagram.len();
                    return Err(Error::corrupt(format!("load a cache: an answer of {len} bytes")));
                }
                let id = usize::from(u16::from_be_bytes([datagram[0], datagram[1]]));
                // Nothing for what was answered twice, or came too late.
                if let Some(due) = self.due[id].take() {
                    ran.latencies_ns.push((now - due).as_nanos() as u64);
                    ran.requests += 1;
                }
            }
        }
        Ok(())
    }
}
