//! What a cache is told at the start, and what its threads share beside the store.

use crate::stats::Totals;
use crate::store::Store;
use holdfast_base::{Error, Result};
use holdfast_env::Clock;
use holdfast_env::poll::Waker;
use holdfast_env::tls::{Certificates, ClientCertificates, TlsConfig, TlsFiles, TlsSession};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The version that the protocol is complete to: what clients compare.
pub const VERSION: &str = concat!("1.6.18-holdfast-", env!("CARGO_PKG_VERSION"));

/// Answers to one UDP request, unless told otherwise: a few hundred keys.
pub const UDP_REPLY_BYTES: usize = 256 << 10;

/// Design decisions taken back one by one, so that a benchmark can say what each is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// One set of statistics under one lock, taken for each key.
    pub shared_statistics: bool,
    /// All threads receive from and send on one UDP socket.
    pub one_udp_socket: bool,
    /// Each answer is sent alone, and each datagram.
    pub unbatched_sends: bool,
    /// Each connection owns buffers for receiving and sending.
    pub connection_buffers: bool,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub tcp: Vec<SocketAddr>,
    pub udp: Vec<SocketAddr>,
    pub unix: Option<PathBuf>,
    /// Access to the Unix socket.
    pub unix_mode: u32,
    pub memory_bytes: usize,
    pub connections_max: usize,
    pub threads: usize,
    /// Longest item, as memcached's `-I` counts it.
    pub item_bytes_max: usize,
    pub evicts: bool,
    /// Events served for one connection before others get their turn.
    pub requests_per_event: usize,
    pub cas: bool,
    pub backlog: u32,
    /// Where items are kept from one run to the next.
    pub file: Option<PathBuf>,
    /// TLS on all TCP listeners but those of `tcp_plain`.
    pub tls: Option<TlsFiles>,
    /// Without `tls`: where there are some, TCP connections may speak TLS, which their first byte
    /// says. Those from other machines must, and show a certificate of the same authorities.
    pub certificates: Option<Arc<Certificates>>,
    /// Addresses that are served without TLS where others are served with it.
    pub tcp_plain: Vec<SocketAddr>,
    pub flush: bool,
    pub shutdown_command: bool,
    pub verbose: u8,
    /// Seconds; 0 for none.
    pub idle_timeout_s: u32,
    /// Lines `user:password`; nothing for no authentication.
    pub users: Option<Vec<String>>,
    /// Microseconds that sockets poll the device; 0 for none.
    pub busy_poll_us: u32,
    /// Longest reply to one UDP request; longer ones are refused.
    pub udp_reply_bytes_max: usize,
    /// UDP payload bytes a second to one address beyond loopback.
    pub udp_bytes_per_second: u64,
    /// Core of the first thread; the others follow. Nothing leaves it to the kernel.
    pub first_core: Option<usize>,
    /// Answers read-ahead measurements only: reads whole requests and answers the same bytes
    /// without looking anything up. (request bytes, reply bytes)
    pub null: Option<(usize, usize)>,
    pub ablation: Ablation,
}

impl Settings {
    /// Whether some of its connections may speak TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some() || self.certificates.is_some()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tcp: Vec::new(),
            udp: Vec::new(),
            unix: None,
            unix_mode: 0o700,
            memory_bytes: 64 << 20,
            connections_max: 1024,
            threads: 4,
            item_bytes_max: 1 << 20,
            evicts: true,
            requests_per_event: 20,
            cas: true,
            backlog: 1024,
            file: None,
            tls: None,
            certificates: None,
            tcp_plain: Vec::new(),
            flush: true,
            shutdown_command: false,
            verbose: 0,
            idle_timeout_s: 0,
            users: None,
            busy_poll_us: 0,
            udp_reply_bytes_max: UDP_REPLY_BYTES,
            udp_bytes_per_second: 16 << 20,
            first_core: None,
            null: None,
            ablation: Ablation::default(),
        }
    }
}

/// A client that was just accepted.
#[derive(Debug)]
pub struct Newcomer {
    pub socket: OwnedFd,
    /// Which of the listeners brought it.
    pub listener: usize,
    /// The other end of a TCP connection; none over a Unix socket.
    pub peer: Option<IpAddr>,
    /// Threads that were asked to take it in; when all were, it is turned away.
    pub asked: usize,
}

/// Newcomers that another thread had no place for, on their way to this one.
pub struct Inbox {
    /// In the thread's poller.
    pub waker: Arc<Waker>,
    /// Held for a push or a swap only.
    newcomers: Mutex<Vec<Newcomer>>,
}

impl Inbox {
    pub fn new() -> io::Result<Inbox> {
        Ok(Inbox { waker: Arc::new(Waker::new()?), newcomers: Mutex::default() })
    }

    pub fn push(&self, newcomer: Newcomer) {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner).push(newcomer);
        self.waker.wake();
    }

    pub fn take(&self) -> Vec<Newcomer> {
        std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Shared by all threads of a cache.
pub struct Shared {
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    /// Seconds since 1970 of second 0 of the store's time.
    epoch_s: AtomicI64,
    started_ns: u64,
    pub process_id: u32,
    /// Set once: every thread ends.
    pub stop: AtomicBool,
    pub stop_signal: Waker,
    /// Asked for by the command `shutdown`.
    pub shutdown_wanted: AtomicBool,
    pub connections: AtomicU64,
    /// Of each thread, in their order.
    pub inboxes: Vec<Inbox>,
    /// The clock's second at which to flush, plus one; 0 for none.
    pub flush_at: AtomicU64,
    large: AtomicU64,
    pub verbose: AtomicU64,
    /// Replaced by `refresh_certs`; looked at when a client connects.
    tls: Mutex<Option<TlsConfig>>,
    /// Of the ablation alone: statistics as they must not be kept.
    pub slow_statistics: Mutex<u64>,
    /// What the counters were at `stats reset`.
    pub before: Mutex<Totals>,
}

impl Shared {
    /// Reads the certificates, if there are to be some.
    pub fn new(settings: Settings, clock: Arc<dyn Clock>, wake: Waker) -> Result<Shared> {
        let tls = settings.tls.as_ref().map(TlsConfig::load).transpose()?;
        let verbose = AtomicU64::new(u64::from(settings.verbose));
        let (unix_s, started_ns) = ((clock.unix_ms() / 1000) as i64, clock.monotonic_ns());
        let inboxes: io::Result<Vec<Inbox>> = (0..settings.threads).map(|_| Inbox::new()).collect();
        let inboxes = inboxes.map_err(|e| Error::from(e).context("make an event descriptor"))?;
        Ok(Shared {
            settings,
            clock,
            // Second 1 is now: 0 means never, and what expired in second 1 expired before.
            epoch_s: AtomicI64::new(unix_s - 2),
            started_ns,
            process_id: std::process::id(),
            stop: AtomicBool::new(false),
            stop_signal: wake,
            shutdown_wanted: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            inboxes,
            flush_at: AtomicU64::new(0),
            large: AtomicU64::new(1),
            verbose,
            tls: Mutex::new(tls),
            slow_statistics: Mutex::new(0),
            before: Mutex::new(Totals::default()),
        })
    }

    pub fn epoch_s(&self) -> i64 {
        self.epoch_s.load(Ordering::Relaxed)
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> u64 {
        (self.clock.monotonic_ns() - self.started_ns) / 1_000_000_000
    }

    /// Moves the store's time on, and does what is due.
    pub fn tick(&self, store: &Store) {
        let now = self.uptime_s() as u32 + 2;
        if now == store.now() {
            return;
        }
        store.set_now(now);
        let due = self.flush_at.load(Ordering::Relaxed);
        if due != 0 && u64::from(now) >= due {
            self.flush_at.store(0, Ordering::Relaxed);
            store.flush();
        }
    }

    /// Numbers below were used by an earlier cache.
    pub fn skip_large(&self, next: u64) {
        self.large.fetch_max(next, Ordering::Relaxed);
    }

    /// The number of the next large value. On no path of small ones.
    pub fn next_large(&self) -> u64 {
        self.large.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts as with one lock for all threads.
    #[cold]
    pub fn count_slowly(&self, requests: u64) {
        for _ in 0..requests {
            *self.slow_statistics.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        }
    }

    pub fn tls(&self) -> Option<TlsConfig> {
        // A plain value.
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A session of the certificates that ports share, if there are some. Whoever is on another
    /// machine shows a certificate; every user of this one may use the cache.
    pub fn tls_of_certificates(&self, is_away: bool) -> io::Result<Option<TlsSession>> {
        let Some(certificates) = &self.settings.certificates else { return Ok(None) };
        let clients = match is_away {
            true => ClientCertificates::Required,
            false => ClientCertificates::Ignored,
        };
        let config = certificates.server(&[], clients, false);
        TlsSession::new(&TlsConfig::from(config)).map(Some)
    }

    /// Reads renewed certificates; those that are in use stay if they are wrong.
    pub fn refresh_tls(&self) -> Result<()> {
        if self.settings.certificates.is_some() {
            // Whoever shares them looks at their files all the time.
            return Ok(());
        }
        let Some(files) = &self.settings.tls else {
            return Err(Error::invalid("read certificates: TLS is off"));
        };
        let renewed = TlsConfig::load(files)?;
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewed);
        Ok(())
    }

    pub fn before(&self) -> MutexGuard<'_, Totals> {
        // A plain value.
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
