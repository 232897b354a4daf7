//! The server: starts a thread a core, each with its own listeners on shared ports, and the
//! housekeeper that moves the clock on. Decides nothing about requests.

use crate::settings::{Settings, Shared};
use crate::stats::Totals;
use crate::store::Store;
use crate::warm::Warm;
use crate::worker::{Listeners, Worker};
use holdfast_base::{Error, Result};
use holdfast_env::poll::{Events, Interest, Poller, Waker};
use holdfast_env::tasks::{self, Task};
use holdfast_env::{Clock, Disk, Rng, sockets};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the housekeeper looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Access to Unix sockets is a number of so many bits.
const MODE_MASK: u32 = 0o777;

/// A running cache; ends when told to, or dropped.
pub struct Server {
    pub store: Arc<Store>,
    pub shared: Arc<Shared>,
    wakers: Vec<Arc<Waker>>,
    tasks: Vec<Task>,
    /// What people should know of the start.
    pub notes: Vec<String>,
    warm: Option<Warm>,
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
}

/// A failure to listen, as a sentence.
fn listening(what: &str, place: &dyn std::fmt::Display, error: io::Error) -> Error {
    let doing = format!("listen on `{place}` for {what}");
    match error.kind() {
        io::ErrorKind::AddrInUse => Error::exists(format!(
            "{doing}: the port is taken: stop the other server, or choose another port with -p or -U"
        )),
        io::ErrorKind::PermissionDenied => {
            Error::from(error).context(format!("{doing}: choose a port above 1023, or run as root"))
        }
        _ => Error::from(error).context(doing),
    }
}

impl Server {
    pub fn start(
        mut settings: Settings,
        clock: Arc<dyn Clock>,
        rng: &dyn Rng,
        disk: &Arc<dyn Disk>,
    ) -> Result<Server> {
        let threads = settings.threads.max(1);
        settings.threads = threads;
        let store = Store::new(settings.memory_bytes, threads, settings.evicts, rng.next_u64())?;
        let store = Arc::new(store);
        let mut listeners = Vec::new();
        for thread in 0..threads {
            let listening = Server::listen(&mut settings, thread, listeners.first())?;
            listeners.push(listening);
        }
        let tcp = [&settings.tcp[..], &settings.tcp_plain].concat();
        let udp = settings.udp.clone();
        let waker = || Waker::new().map_err(|e| Error::from(e).context("make an event descriptor"));
        let shared = Arc::new(Shared::new(settings, clock, waker()?)?);
        shared.tick(&store);
        let (mut notes, mut warm) = (Vec::new(), None);
        if let Some(file) = &shared.settings.file {
            let (begun, note) = Warm::begin(disk, file, &store, &shared)?;
            warm = Some(begun);
            notes.push(note);
        }
        let (wakers, tasks) = (Vec::new(), Vec::new());
        let mut server = Server { store, shared, wakers, tasks, notes, warm, tcp, udp };
        for (thread, listeners) in listeners.into_iter().enumerate() {
            server.wakers.push(server.shared.inboxes[thread].waker.clone());
            let worker =
                Worker::new(server.store.clone(), server.shared.clone(), thread, listeners)?;
            server.tasks.push(tasks::spawn(&format!("cache-{thread}"), move || worker.run())?);
        }
        server.start_housekeeper()?;
        Ok(server)
    }

    /// The listeners of one thread. The first binds ports of 0, and the others the same ports.
    fn listen(
        settings: &mut Settings,
        thread: usize,
        first: Option<&Listeners>,
    ) -> Result<Listeners> {
        let mut listeners = Listeners::default();
        for address in settings.tcp.iter_mut().chain(&mut settings.tcp_plain) {
            if thread == 0 {
                // Shared ports would let two servers of one user divide the clients in silence.
                let alone = sockets::listen_tcp(*address, settings.backlog, false)
                    .map_err(|e| listening("TCP", address, e))?;
                *address = alone.local_addr().map_err(|e| listening("TCP", address, e))?;
            }
            let listener = sockets::listen_tcp(*address, settings.backlog, true)
                .map_err(|e| listening("TCP", address, e))?;
            *address = listener.local_addr().map_err(|e| listening("TCP", address, e))?;
            listeners.tcp.push(listener);
        }
        let shared = first.filter(|_| settings.ablation.one_udp_socket);
        for socket in shared.iter().flat_map(|first| &first.udp) {
            let socket =
                socket.try_clone().map_err(|e| Error::from(e).context("share a socket"))?;
            listeners.udp.push(socket);
        }
        for address in settings.udp.iter_mut().filter(|_| shared.is_none()) {
            if thread == 0 {
                let alone =
                    sockets::bind_udp(*address, false).map_err(|e| listening("UDP", address, e))?;
                *address = alone.local_addr().map_err(|e| listening("UDP", address, e))?;
            }
            let socket =
                sockets::bind_udp(*address, true).map_err(|e| listening("UDP", address, e))?;
            *address = socket.local_addr().map_err(|e| listening("UDP", address, e))?;
            listeners.udp.push(socket);
        }
        if let Some(path) = &settings.unix {
            // One socket, that all threads accept from.
            let failed = |e| listening("Unix sockets", &path.display(), e);
            let listener = match thread {
                0 => sockets::listen_unix(path, settings.unix_mode & MODE_MASK).map_err(failed)?,
                _ => return Ok(listeners),
            };
            listeners.unix.push(listener);
        }
        Ok(listeners)
    }

    fn start_housekeeper(&mut self) -> Result<()> {
        let (store, shared) = (self.store.clone(), self.shared.clone());
        let failed = |e: io::Error| Error::from(e).context("watch for the end");
        let poller = Poller::new().map_err(failed)?;
        let waker = Arc::new(Waker::new().map_err(failed)?);
        poller.add(&*waker, 0, Interest::Read).map_err(failed)?;
        self.wakers.push(waker);
        let writer = store.writer(store.counters.len() - 1);
        self.tasks.push(tasks::spawn("cache-keeper", move || {
            let (mut events, mut last) = (Events::new(1), 0);
            while !shared.stops() {
                // A failure to wait is a wait that was short.
                let _ = poller.wait(&mut events, Some(TICK));
                shared.tick(&store);
                if store.now() != last {
                    last = store.now();
                    store.keep(&writer);
                }
            }
        })?);
        Ok(())
    }

    /// Where it listens; ports are real even if 0 was asked for.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.udp
    }

    pub fn totals(&self) -> Totals {
        self.store.totals()
    }

    /// Ends all threads, and keeps the items if there is a file for them. Says how many.
    pub fn end(mut self) -> Result<Option<u64>> {
        self.shutdown();
        self.warm.as_ref().map(|warm| warm.save(&self.store, &self.shared)).transpose()
    }

    /// Ends all threads, and with them all connections.
    pub fn shutdown(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for waker in &self.wakers {
            waker.wake();
        }
        for task in self.tasks.drain(..) {
            task.join();
        }
    }
}

impl Drop for Server {
    #[expect(clippy::disallowed_methods, reason = "the socket that was made at the start")]
    fn drop(&mut self) {
        self.shutdown();
        if let Some(path) = &self.shared.settings.unix {
            // A leftover is replaced at the next start.
            let _ = std::fs::remove_file(path);
        }
    }
}
