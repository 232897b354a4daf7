//! Starts and stops the reactors. The only part of the server that other crates hold.

use super::listen::Listener;
use super::mailbox::{Mailbox, Message};
use super::meter::Meter;
use super::reactor::{Reactor, Shared};
use super::{CONNECTIONS_MAX, Credentials, Service};
use crate::local::memory_bytes;
use crate::{Budget, Clock, Secret, tasks};
use holdfast_base::limits::{CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX};
use holdfast_base::{Error, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub tcp: Vec<SocketAddr>,
    pub unix: Option<PathBuf>,
    /// Threads that serve connections.
    pub reactors: usize,
    /// Reactors look for work without ever sleeping: microseconds less latency, a core each.
    pub spin: bool,
    pub connections_max: usize,
    pub connection_bytes_max: u64,
    pub connection_requests_max: usize,
    /// How long [`Server::shutdown`] lets connections finish.
    pub shutdown_grace: Duration,
    /// Counts the bytes of TCP connections.
    pub meter: Option<Arc<Meter>>,
    /// What who connects over TCP has to prove. Without one, as in tests, everybody is a node.
    pub secret: Option<Secret>,
    /// With credentials TLS is spoken with everybody who begins with it, and asked of everybody
    /// who is on another machine.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// What this process may hold for all of its clients, on whatever port.
    pub budget: Arc<Budget>,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        ServerConfig {
            tcp: Vec::new(),
            unix: None,
            reactors: cores.min(4),
            spin: false,
            connections_max: CONNECTIONS_MAX,
            connection_bytes_max: CONNECTION_BYTES_MAX,
            connection_requests_max: CONNECTION_REQUESTS_MAX,
            shutdown_grace: Duration::from_secs(5),
            meter: None,
            secret: None,
            credentials: None,
            budget: Budget::new(Budget::default_bytes(memory_bytes())),
        }
    }
}

/// What the server counts; all since its start but the one that says now.
#[derive(Default, Debug)]
pub struct Counters {
    /// Open now.
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    /// Of another user, or one too many while all others were at work.
    pub turned_away: AtomicU64,
    /// Ended for another one, because all places were taken and they did least.
    pub made_way: AtomicU64,
    /// Ended because they did not get on with what they had begun.
    pub stalled: AtomicU64,
    pub requests: AtomicU64,
    pub bad_frames: AtomicU64,
    pub deadlines_passed: AtomicU64,
    /// How often a connection went over a limit and was not read for a while.
    pub pauses: AtomicU64,
    /// The most that a single connection ever held.
    pub held_bytes_peak: AtomicU64,
}

/// A running server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<tasks::Task>,
    tcp: Vec<SocketAddr>,
}

impl Server {
    /// Binds every address and starts to serve.
    pub fn start(
        config: ServerConfig,
        service: Arc<dyn Service>,
        clock: Arc<dyn Clock>,
    ) -> Result<Server> {
        let mut listeners = Vec::new();
        for address in &config.tcp {
            listeners.push(Listener::tcp(*address)?);
        }
        if let Some(path) = &config.unix {
            listeners.push(Listener::unix(path)?);
        }
        let tcp = listeners.iter().filter_map(Listener::tcp_address).collect();
        let doing = |e: std::io::Error| Error::from(e).context("start the server's reactors");
        let mut mailboxes = Vec::new();
        for _ in 0..config.reactors.max(1) {
            mailboxes.push(Arc::new(Mailbox::new(config.spin).map_err(doing)?));
        }
        let shared = Arc::new(Shared {
            config,
            service,
            clock,
            mailboxes,
            counters: Counters::default(),
            next_connection: AtomicU64::new(1),
        });
        // Made before any thread starts, so that a failure leaves none behind.
        let mut reactors = Vec::new();
        for index in 0..shared.mailboxes.len() {
            // The first one accepts, for all.
            let listeners = std::mem::take(&mut listeners);
            reactors.push(Reactor::new(shared.clone(), index, listeners).map_err(doing)?);
        }
        let mut server = Server { shared, threads: Vec::new(), tcp };
        for (index, reactor) in reactors.into_iter().enumerate() {
            server.threads.push(tasks::spawn(&format!("reactor-{index}"), || reactor.run())?);
        }
        Ok(server)
    }

    /// The TCP addresses bound, with the ports that the kernel chose.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// What it holds for its clients, with all else that has the same budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.shared.config.budget
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub fn connections(&self) -> usize {
        self.shared.counters.connections.load(Ordering::Relaxed)
    }

    /// Stops accepting and reading, answers what was received, closes. Returns when done, at the
    /// latest after the grace.
    pub fn shutdown(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        for mailbox in &self.shared.mailboxes {
            mailbox.push(Message::Shutdown);
        }
        self.threads.drain(..).for_each(tasks::Task::join);
    }
}
