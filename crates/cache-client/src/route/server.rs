//! Starts a router: a thread a core, each with its own listeners on shared ports, its own
//! connections to all servers and its own window.

use super::plan::RoutePlan;
use super::recent::Recent;
use super::router::Tally;
use super::worker::Worker;
use crate::fleet::absence::Absences;
use crate::fleet::{self, Counts};
use crate::links;
use holdfast_base::{Error, Result};
use holdfast_env::poll::Waker;
use holdfast_env::tasks::{self, Task};
use holdfast_env::{Clock, sockets};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub threads: usize,
    pub connections_max: usize,
    pub value_bytes_max: usize,
    pub fleet: fleet::Settings,
}

/// What a thread has done, as of its last look.
#[derive(Clone, Copy, Default)]
pub(super) struct Report {
    pub tally: Tally,
    pub counts: Counts,
    pub window: f64,
    pub outstanding: u64,
    pub dead: u64,
}

/// What all threads share.
pub(super) struct Shared {
    pub settings: Settings,
    pub plan: Arc<RoutePlan>,
    pub recent: Arc<Recent>,
    pub absences: Arc<Absences>,
    pub addresses: Vec<SocketAddr>,
    pub clock: Arc<dyn Clock>,
    pub stop: AtomicBool,
    pub connections: AtomicU64,
    pub started_ns: u64,
    /// One a thread; held for a copy.
    pub reports: Vec<Mutex<Report>>,
}

impl Shared {
    pub fn stats(&self) -> Vec<u8> {
        let mut all = Report::default();
        let mut window = 0.0;
        for report in &self.reports {
            let one = *report.lock().unwrap_or_else(PoisonError::into_inner);
            let (sum, add) = (&mut all.tally, one.tally);
            sum.gets += add.gets;
            sum.hits += add.hits;
            sum.others += add.others;
            sum.gutter += add.gutter;
            sum.warm_gets += add.warm_gets;
            sum.warm_hits += add.warm_hits;
            sum.lost += add.lost;
            sum.left_out += add.left_out;
            all.counts.sent += one.counts.sent;
            all.counts.late += one.counts.late;
            all.counts.stray += one.counts.stray;
            all.counts.broken += one.counts.broken;
            all.counts.servers_died += one.counts.servers_died;
            all.outstanding += one.outstanding;
            all.dead = all.dead.max(one.dead);
            window += one.window;
        }
        let uptime_s = (self.clock.monotonic_ns() - self.started_ns) / 1_000_000_000;
        let tally = all.tally;
        let mut text = format!(
            "STAT pid {}\r\nSTAT uptime {uptime_s}\r\nSTAT version {}\r\n",
            std::process::id(),
            super::VERSION
        );
        for (name, value) in [
            ("threads", self.reports.len() as u64),
            ("curr_connections", self.connections.load(Ordering::Relaxed)),
            ("cmd_get", tally.gets),
            ("get_hits", tally.hits),
            ("cmd_other", tally.others),
            ("route_servers", self.addresses.len() as u64),
            ("route_servers_dead", all.dead),
            ("route_requests", all.counts.sent),
            ("route_outstanding", all.outstanding),
            ("route_window", window as u64),
            ("route_lost", tally.lost),
            ("route_gutter", tally.gutter),
            ("route_left_out", tally.left_out),
            ("route_warm_gets", tally.warm_gets),
            ("route_warm_hits", tally.warm_hits),
            ("route_late_answers", all.counts.late),
            ("route_stray_datagrams", all.counts.stray),
            ("route_broken_answers", all.counts.broken),
            ("route_deaths", all.counts.servers_died),
        ] {
            text.push_str(&format!("STAT {name} {value}\r\n"));
        }
        text.push_str("END\r\n");
        text.into_bytes()
    }
}

/// A running router; ends when told to, or dropped.
pub struct Server {
    shared: Arc<Shared>,
    wakers: Vec<Arc<Waker>>,
    tasks: Vec<Task>,
    addresses: Vec<SocketAddr>,
}

fn listening(address: &SocketAddr, error: io::Error) -> Error {
    let doing = format!("listen on `{address}`");
    match error.kind() {
        io::ErrorKind::AddrInUse => Error::exists(format!(
            "{doing}: the port is taken: stop the other server, or choose another port with -p"
        )),
        _ => Error::from(error).context(doing),
    }
}

impl Server {
    pub fn start(plan: RoutePlan, mut settings: Settings, clock: Arc<dyn Clock>) -> Result<Server> {
        settings.threads = settings.threads.max(1);
        let addresses = plan.members.iter().map(links::resolve).collect::<Result<Vec<_>>>()?;
        let mut listeners = Vec::new();
        for thread in 0..settings.threads {
            let mut mine = Vec::new();
            for address in &mut settings.listen {
                if thread == 0 {
                    // Shared ports would let two routers of one user divide the clients in silence.
                    let alone = sockets::listen_tcp(*address, BACKLOG, false)
                        .map_err(|e| listening(address, e))?;
                    *address = alone.local_addr().map_err(|e| listening(address, e))?;
                }
                let listener = sockets::listen_tcp(*address, BACKLOG, true)
                    .map_err(|e| listening(address, e))?;
                mine.push(listener);
            }
            listeners.push(mine);
        }
        let listen = settings.listen.clone();
        let shared = Arc::new(Shared {
            started_ns: clock.monotonic_ns(),
            reports: (0..settings.threads).map(|_| Mutex::new(Report::default())).collect(),
            settings,
            plan: Arc::new(plan),
            recent: Arc::new(Recent::default()),
            absences: Arc::new(Absences::new(addresses.len())),
            addresses,
            clock,
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        });
        let mut server =
            Server { shared, wakers: Vec::new(), tasks: Vec::new(), addresses: listen };
        for (thread, mine) in listeners.into_iter().enumerate() {
            let waker = Waker::new().map_err(|e| Error::from(e).context("start a router"))?;
            let waker = Arc::new(waker);
            server.wakers.push(waker.clone());
            let worker = Worker::new(server.shared.clone(), thread, mine, waker)?;
            server.tasks.push(tasks::spawn(&format!("route-{thread}"), move || worker.run())?);
        }
        Ok(server)
    }

    /// Where it listens; ports are real even if 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(|waker| waker.wake());
        self.tasks.drain(..).for_each(Task::join);
    }
}
