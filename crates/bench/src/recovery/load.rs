//! The foreground of the experiment: every surviving node is read from and written to as a trace
//! says, second by second, whatever is being repaired. Requests are due at fixed times; one that
//! is late counts from when it was due, so that a queue shows in what is measured.

use super::nodes::{Nodes, OBJECT_BYTES, OBJECTS, now, object_path, pause};
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Connection};
use holdfast_command::secrets;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_env::{HoldMutex, Rng, SeededRng};
use holdfast_recovery::trace::Trace;
use holdfast_wire as wire;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Connections of each node and direction, which share its traffic.
const CONNECTIONS: usize = 2;

/// What is sent into a node at a time: below what a server hands over to its service.
const SEND_BYTES: usize = 12 << 10;

/// What all streams share.
struct Shared {
    trace: Trace,
    /// The moment at which the trace begins, in microseconds after `began`.
    origin_us: AtomicU64,
    began: Instant,
    /// Due times, in microseconds after the trace's beginning, with latencies.
    samples: Mutex<Vec<(u64, u64)>>,
    /// Of requests: there should be none.
    failures: Mutex<Vec<Error>>,
    stop: Stop,
}

impl Shared {
    fn elapsed_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

/// The threads of the foreground; they run until [`Load::finish`].
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<Task>,
}

/// What a node's clients do.
#[expect(clippy::large_enum_variant, reason = "a few a run")]
enum Stream {
    /// Out of the node: objects that it has itself.
    Read(Client, usize),
    /// Into it: bodies that it receives and drops, so that no disk takes part.
    Send(Connection, Vec<u8>),
}

impl Stream {
    fn request(&mut self, number: u64) -> Result<()> {
        match self {
            Stream::Read(client, node) => {
                let path = object_path(*node, number as usize % OBJECTS);
                client.get(&path).map(|_| ())
            }
            Stream::Send(connection, body) => {
                connection.call(wire::OP_PING, |_| {}, &[body]).map(|_| ())
            }
        }
    }
}

impl Load {
    /// Begins at the trace's beginning; `trace` is in bytes a second of MB.
    pub fn start(trace: Trace, failed: usize, seed: u64) -> Result<Load> {
        let nodes = trace.nodes();
        let shared = Arc::new(Shared {
            trace,
            origin_us: AtomicU64::new(0),
            began: now(),
            samples: Mutex::default(),
            failures: Mutex::default(),
            stop: Stop::new(),
        });
        let mut threads = Vec::new();
        for node in (0..nodes).filter(|node| *node != failed) {
            for number in 0..2 * CONNECTIONS {
                let reads = number < CONNECTIONS;
                // A refusal counts: nobody waits behind it.
                let patience = Duration::ZERO;
                let options = ClientOptions { reconnects_max: 0, patience, ..secrets::options() };
                let endpoint = Nodes::endpoint(node)?;
                let stream = if reads {
                    Stream::Read(Client::connect(&endpoint, &options)?, node)
                } else {
                    let connection = Connection::connect_with(&endpoint, options)?;
                    Stream::Send(connection, vec![7; SEND_BYTES])
                };
                let (with, seed) = (shared.clone(), seed ^ (node * 64 + number) as u64);
                threads.push(tasks::spawn("foreground", move || {
                    with.run(stream, node, reads, SeededRng::new(seed));
                })?);
            }
        }
        Ok(Load { shared, threads })
    }

    /// Takes what was measured so far, in microseconds, and begins the trace anew.
    pub fn rewind(&self) -> Vec<u64> {
        let now_us = self.shared.elapsed_us();
        self.shared.origin_us.store(now_us, Ordering::Relaxed);
        let mut samples = self.shared.samples.held();
        std::mem::take(&mut *samples).into_iter().map(|(_, latency)| latency).collect()
    }

    /// Ends all threads; the first failure of a request is the error.
    pub fn finish(self) -> Result<()> {
        self.shared.stop.request();
        self.threads.into_iter().for_each(Task::join);
        let failures = self.shared.failures.held();
        match failures.first() {
            None => Ok(()),
            Some(first) => {
                let count = failures.len();
                Err(first.clone().context(format!("replay the foreground: {count} streams failed")))
            }
        }
    }
}

impl Shared {
    fn run(&self, mut stream: Stream, node: usize, reads: bool, rng: SeededRng) {
        let mut due_us = self.elapsed_us() as f64;
        let mut number = 0;
        while !self.stop.is_requested() {
            let seconds = (due_us as u64).saturating_sub(self.origin_us.load(Ordering::Relaxed));
            let step = self.trace.at(seconds as f64 / 1e6);
            let mb_s = if reads { step.out_mb_s[node] } else { step.in_mb_s[node] };
            let rate = f64::from(mb_s) * 1e6 / CONNECTIONS as f64;
            let bytes = if reads { OBJECT_BYTES } else { SEND_BYTES };
            // Half to one and a half of the mean, so that streams do not march in step.
            let jitter = 0.5 + rng.next_u64() as f64 / u64::MAX as f64;
            due_us += (bytes as f64 / rate.max(1000.0) * 1e6 * jitter).min(1e6);
            let now_us = self.elapsed_us();
            if due_us as u64 > now_us {
                pause(Duration::from_micros(due_us as u64 - now_us));
            }
            if self.stop.is_requested() {
                return;
            }
            number += 1;
            if let Err(e) = stream.request(number) {
                self.failures.held().push(e);
                return;
            }
            let latency_us = self.elapsed_us().saturating_sub(due_us as u64);
            let mut samples = self.samples.held();
            samples.push((due_us as u64, latency_us));
        }
    }
}
