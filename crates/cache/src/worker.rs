//! One thread's loop: waits for sockets, receives, lets sessions consume, sends. It owns its
//! connections and one set of buffers for all of them: a connection that waits for its client's
//! next command owns none.

mod sealed;

use crate::engine::Engine;
use crate::out::Out;
use crate::session::{Batch, Session, Wants};
use crate::settings::{Newcomer, Shared};
use crate::store::Store;
use crate::udp::Udp;
use holdfast_base::{Error, Result};
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::planted;
use holdfast_env::poll::{Event, Events, Interest, Poller};
use holdfast_env::sockets;
use holdfast_env::tls::TlsSession;
use holdfast_env::trial::Knob;
use sealed::Away;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One receive.
const INPUT_BYTES: usize = 256 << 10;
const EVENTS: usize = 512;
/// How long a thread sleeps at most: idle connections are looked at then.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// The same while clients wait to be accepted.
const ACCEPT_WAIT: Duration = Duration::from_millis(10);
/// Seconds that a client may take for a handshake, from its connection on: as at other ports.
const HANDSHAKE_S: u32 = 10;
/// Seconds without use after which a connection makes way for a newcomer, when all places are
/// taken: one that was used just now is likely to be used again.
pub static IDLE_S: Knob = Knob::new("cache.idle-seconds", 2, &[0, 1]);
/// What all connections of one thread may hold unsent, at least.
const UNSENT_BYTES_MIN: u64 = 8 << 20;
/// The same as a part of the memory limit.
const UNSENT_PART: u64 = 8;

const TOKEN_WAKER: u64 = u64::MAX;
const TOKEN_LISTENERS: u64 = 1 << 40;
const TOKEN_UDP: u64 = 1 << 41;

#[derive(Default)]
pub struct Listeners {
    pub tcp: Vec<TcpListener>,
    pub udp: Vec<UdpSocket>,
    pub unix: Vec<UnixListener>,
}

impl Listeners {
    fn get(&self, i: usize) -> Option<BorrowedFd<'_>> {
        match self.tcp.get(i) {
            Some(listener) => Some(listener.as_fd()),
            None => self.unix.get(i - self.tcp.len()).map(AsFd::as_fd),
        }
    }

    fn len(&self) -> usize {
        self.tcp.len() + self.unix.len()
    }
}

struct Connection {
    socket: OwnedFd,
    tls: Option<TlsSession>,
    /// Until the first byte says whether this is TLS, where both are served: whether it comes from
    /// another machine.
    undecided: Option<Away>,
    session: Session,
    /// Received and not used: half a command, or what waits for answers to be taken.
    stash: Vec<u8>,
    /// Answers that the client has not taken.
    unsent: Vec<u8>,
    sent: usize,
    last_used_s: u32,
    opened_s: u32,
    /// The thread's turn that served it last.
    last_turn: u64,
    closing: bool,
    interest: Interest,
    /// Of an ablation: what the thread has for all.
    own: Option<Box<(Vec<u8>, Out)>>,
}

pub struct Worker {
    engine: Engine,
    shared: Arc<Shared>,
    listeners: Listeners,
    udp: Udp,
    poller: Poller,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    input: Vec<u8>,
    out: Out,
    /// TLS: bytes as they are on the network, received and to be sent. Empty without it.
    received: Vec<u8>,
    sealed: Vec<u8>,
    batch: Batch,
    /// False when descriptors have run out: another thread may close one, so it is tried again soon.
    accepts: bool,
    unsent_bytes: u64,
    /// Counts rounds of the loop: the order in which connections were used.
    turn: u64,
    looked_for_idle_s: u32,
}

impl Worker {
    pub fn new(
        store: Arc<Store>,
        shared: Arc<Shared>,
        thread: usize,
        listeners: Listeners,
    ) -> Result<Worker> {
        let failed = |e: io::Error| Error::from(e).context("prepare a thread of the cache");
        let poller = Poller::new().map_err(failed)?;
        poller.add(&*shared.inboxes[thread].waker, TOKEN_WAKER, Interest::Read).map_err(failed)?;
        for i in 0..listeners.len() {
            if let Some(listener) = listeners.get(i) {
                poller
                    .add(&listener, TOKEN_LISTENERS + i as u64, Interest::Read)
                    .map_err(failed)?;
            }
        }
        for (i, socket) in listeners.udp.iter().enumerate() {
            poller.add(socket, TOKEN_UDP + i as u64, Interest::Read).map_err(failed)?;
            crate::udp::prepare(socket).map_err(failed)?;
        }
        let writer = store.writer(thread);
        let engine = Engine { store, shared: shared.clone(), writer, scratch: Vec::new() };
        Ok(Worker {
            engine,
            shared,
            listeners,
            udp: Udp::default(),
            poller,
            connections: Vec::new(),
            free: Vec::new(),
            input: vec![0; INPUT_BYTES + SLACK_BYTES],
            out: Out::new(),
            received: Vec::new(),
            sealed: Vec::new(),
            batch: Batch::default(),
            accepts: true,
            unsent_bytes: 0,
            turn: 0,
            looked_for_idle_s: 0,
        })
    }

    pub fn run(mut self) {
        if let Some(first) = self.shared.settings.first_core {
            // A core that is not there leaves the thread to the kernel.
            let _ = sockets::pin_to_core(first + self.engine.writer.id);
        }
        let mut events = Events::new(EVENTS);
        while !self.shared.stops() {
            let wait = if self.accepts { IDLE_WAIT } else { ACCEPT_WAIT };
            if self.poller.wait(&mut events, Some(wait)).is_err() {
                break;
            }
            self.turn += 1;
            for i in 0..events.len() {
                self.event(events.get(i));
            }
            self.drop_idle();
            if !self.accepts {
                self.accept_again();
            }
        }
        self.engine.store.retire(&mut self.engine.writer);
    }

    fn event(&mut self, event: Event) {
        match event.token {
            TOKEN_WAKER => self.take_newcomers(),
            token if token >= TOKEN_UDP => {
                let i = (token - TOKEN_UDP) as usize;
                if let Some(socket) = self.listeners.udp.get(i) {
                    self.udp.serve(socket, &mut self.engine, &mut self.batch);
                }
            }
            token if token >= TOKEN_LISTENERS => self.accept((token - TOKEN_LISTENERS) as usize),
            token => self.serve(token as usize, event),
        }
    }

    fn accept(&mut self, i: usize) {
        while let Some(listener) = self.listeners.get(i) {
            let (socket, from) = match sockets::accept(&listener) {
                Ok(accepted) => accepted,
                Err(e) if is_out_of_descriptors(&e) => {
                    self.stop_accepting();
                    return;
                }
                // Gone already, or none left.
                Err(_) => return,
            };
            self.engine.counters().total_connections.add(1);
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
            let peer = from.map(|from| from.ip());
            self.admit(Newcomer { socket, listener: i, peer, asked: 0 });
        }
    }

    /// Newcomers for whom nobody had to go at another thread.
    fn take_newcomers(&mut self) {
        let inbox = &self.shared.inboxes[self.engine.writer.id];
        inbox.waker.clear();
        for newcomer in inbox.take() {
            self.admit(newcomer);
        }
    }

    /// Takes in a client that is counted already. When all places are taken, whoever was idle
    /// longest makes way; where nobody of this thread is idle, another thread is asked.
    fn admit(&mut self, newcomer: Newcomer) {
        let shared = self.shared.clone();
        let full =
            shared.connections.load(Ordering::Relaxed) > shared.settings.connections_max as u64;
        if !full || self.make_way() {
            return self.open(newcomer);
        }
        let asked = newcomer.asked + 1;
        if asked < shared.inboxes.len() {
            let next = (self.engine.writer.id + 1) % shared.inboxes.len();
            return shared.inboxes[next].push(Newcomer { asked, ..newcomer });
        }
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.engine.counters().rejected_connections.add(1);
        let _ = sockets::send(&newcomer.socket, b"ERROR Too many open connections\r\n");
    }

    /// Ends the connection that has been idle for longest, if one has been for long enough.
    fn make_way(&mut self) -> bool {
        let idle_since = self.engine.store.now().saturating_sub(IDLE_S.get() as u32);
        let used = |connection: &Connection| (connection.last_turn, connection.last_used_s);
        let places = self.connections.iter().enumerate();
        let taken = places.filter_map(|(slot, taken)| taken.as_ref().map(|c| (used(c), slot)));
        match taken.min() {
            Some(((_, used_s), slot))
                if used_s <= idle_since && !planted!("cache.idle-locks-out") =>
            {
                IDLE_S.cross();
                self.engine.counters().idle_kicks.add(1);
                self.close(slot);
                true
            }
            _ => false,
        }
    }

    fn open(&mut self, newcomer: Newcomer) {
        let Newcomer { socket, listener, peer, .. } = newcomer;
        let shared = self.shared.clone();
        let settings = &shared.settings;
        let Ok(tls) = self.begin_tls(listener) else {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            self.engine.counters().ssl_handshake_errors.add(1);
            return;
        };
        self.engine.counters().curr_connections.add(1);
        if peer.is_some() {
            // What fails here only costs time.
            let _ = sockets::set_nodelay(&socket);
        }
        if settings.busy_poll_us > 0 {
            let _ = sockets::set_busy_poll(&socket, settings.busy_poll_us);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() as u32 - 1
        }) as usize;
        let connection = Connection {
            socket,
            tls,
            undecided: settings.certificates.as_ref().and(peer).map(Away::of),
            session: Session::default(),
            stash: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            last_used_s: self.engine.store.now(),
            opened_s: self.engine.store.now(),
            last_turn: self.turn,
            closing: false,
            interest: Interest::Read,
            own: settings.ablation.connection_buffers.then(Box::default),
        };
        let added = self.poller.add(&connection.socket, slot as u64, Interest::Read);
        self.connections[slot] = Some(connection);
        if added.is_err() {
            self.close(slot);
        }
    }

    /// Waits with new connections until others have ended.
    fn stop_accepting(&mut self) {
        self.accepts = false;
        for i in 0..self.listeners.len() {
            if let Some(listener) = self.listeners.get(i) {
                let _ = self.poller.remove(&listener);
            }
        }
    }

    fn accept_again(&mut self) {
        self.accepts = true;
        for i in 0..self.listeners.len() {
            if let Some(listener) = self.listeners.get(i) {
                let token = TOKEN_LISTENERS + i as u64;
                let _ = self.poller.add(&listener, token, Interest::Read);
            }
        }
    }

    fn serve(&mut self, slot: usize, event: Event) {
        // Taken out while it is served, so that it can be served with all else of the thread.
        let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
            return;
        };
        (connection.last_used_s, connection.last_turn) = (self.engine.store.now(), self.turn);
        self.swap_buffers(&mut connection);
        let lives = if connection.unsent.is_empty() {
            self.receive(&mut connection)
        } else if event.ended {
            false
        } else {
            self.send_unsent(&mut connection)
        };
        self.swap_buffers(&mut connection);
        let lives = lives && self.watch(&mut connection, slot);
        self.connections[slot] = Some(connection);
        if !lives {
            self.close(slot);
        }
    }

    /// Of an ablation: the connection's buffers instead of the thread's, and back.
    fn swap_buffers(&mut self, connection: &mut Connection) {
        if let Some(own) = &mut connection.own {
            std::mem::swap(&mut self.input, &mut own.0);
            std::mem::swap(&mut self.out, &mut own.1);
        }
    }

    /// Waits for what the connection needs next.
    fn watch(&mut self, connection: &mut Connection, slot: usize) -> bool {
        let interest = if connection.unsent.is_empty() { Interest::Read } else { Interest::Write };
        if interest == connection.interest {
            return true;
        }
        connection.interest = interest;
        self.poller.change(&connection.socket, slot as u64, interest).is_ok()
    }

    /// Receives once and serves what came. False when the connection has ended.
    fn receive(&mut self, connection: &mut Connection) -> bool {
        let stash = std::mem::take(&mut connection.stash);
        let kept = stash.len();
        if self.input.len() < kept + INPUT_BYTES / 2 + SLACK_BYTES {
            self.input.resize(kept + INPUT_BYTES + SLACK_BYTES, 0);
        }
        self.input[..kept].copy_from_slice(&stash);
        let counters = &self.engine.store.counters[self.engine.writer.id];
        counters.connection_bytes.subtract(stash.capacity() as u64);
        drop(stash);
        let end = self.input.len() - SLACK_BYTES;
        let received = match connection.tls {
            None if connection.undecided.is_some() => self.receive_first(connection, kept, end),
            None => sockets::receive(&connection.socket, &mut self.input[kept..end]),
            Some(_) => self.receive_sealed(connection, kept, end),
        };
        match received {
            Ok(0) => false,
            Ok(n) => {
                self.engine.counters().bytes_read.add(n as u64);
                if !connection.unsent.is_empty() {
                    return self.keep(connection, 0, kept + n);
                }
                self.consume(connection, kept + n)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.keep(connection, 0, kept),
            Err(e) => e.kind() == io::ErrorKind::Interrupted,
        }
    }

    /// What a benchmark holds us against: as many bytes as the answers would have, at once.
    fn consume_null(
        &mut self,
        connection: &mut Connection,
        len: usize,
        (request, reply): (usize, usize),
    ) -> bool {
        let answered = len / request.max(1);
        self.out.room(answered * reply);
        self.out.advance_by(answered * reply);
        self.send_out(connection) && self.keep(connection, answered * request, len)
    }

    /// Serves the first `len` bytes of the input, and sends the answers.
    fn consume(&mut self, connection: &mut Connection, len: usize) -> bool {
        if let Some(null) = self.shared.settings.null {
            return self.consume_null(connection, len, null);
        }
        let mut at = 0;
        loop {
            let (session, input) = (&mut connection.session, (&self.input[at..], len - at));
            let (used, wants) =
                session.consume(&mut self.engine, &mut self.batch, input, &mut self.out);
            at += used;
            connection.closing = wants == Wants::Close;
            if !self.send_out(connection) {
                return false;
            }
            if !connection.unsent.is_empty() {
                break;
            }
            match wants {
                Wants::More => break,
                Wants::Drain => {}
                Wants::Close => return false,
            }
        }
        self.keep(connection, at, len)
    }

    /// Keeps the input from `at` to `len` for the next time.
    fn keep(&mut self, connection: &mut Connection, at: usize, len: usize) -> bool {
        connection.stash = self.input[at..len].to_vec();
        let bytes = connection.stash.capacity() as u64;
        self.engine.counters().connection_bytes.add(bytes);
        if self.input.len() > 2 * INPUT_BYTES {
            self.input.truncate(INPUT_BYTES + SLACK_BYTES);
            self.input.shrink_to_fit();
        }
        true
    }

    /// Sends what was answered; what is not taken goes to the connection.
    fn send_out(&mut self, connection: &mut Connection) -> bool {
        if self.out.is_empty() {
            return true;
        }
        let lives = if let Some(tls) = &mut connection.tls {
            self.sealed.clear();
            tls.seal(self.out.as_slice(), &mut self.sealed).is_ok() && self.send_sealed(connection)
        } else {
            let out = std::mem::take(&mut self.out);
            let lives = self.send(connection, out.as_slice());
            self.out = out;
            lives
        };
        self.out.clear();
        lives
    }

    /// Sends bytes behind what is unsent. False when the connection has to end.
    fn send(&mut self, connection: &mut Connection, bytes: &[u8]) -> bool {
        let mut sent = 0;
        while connection.unsent.is_empty() && sent < bytes.len() {
            match sockets::send(&connection.socket, &bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let rest = &bytes[sent..];
        self.engine.counters().bytes_written.add(sent as u64);
        if rest.is_empty() {
            return true;
        }
        let most = (self.shared.settings.memory_bytes as u64 / UNSENT_PART)
            / self.shared.settings.threads as u64;
        // Clients that do not read cannot be given memory without end.
        if self.unsent_bytes + rest.len() as u64 > most.max(UNSENT_BYTES_MIN) {
            return false;
        }
        let before = connection.unsent.capacity() as u64;
        connection.unsent.reserve_exact(rest.len());
        connection.unsent.extend_from_slice(rest);
        let more = connection.unsent.capacity() as u64 - before;
        self.unsent_bytes += more;
        self.engine.counters().connection_bytes.add(more);
        true
    }

    /// Sends more of what was not taken; once all is, goes on with what was received.
    fn send_unsent(&mut self, connection: &mut Connection) -> bool {
        let counters = &self.engine.store.counters[self.engine.writer.id];
        while connection.sent < connection.unsent.len() {
            match sockets::send(&connection.socket, &connection.unsent[connection.sent..]) {
                Ok(n) => {
                    connection.sent += n;
                    counters.bytes_written.add(n as u64);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.drop_unsent(connection);
        if connection.closing {
            return false;
        }
        let stash = std::mem::take(&mut connection.stash);
        let counters = &self.engine.store.counters[self.engine.writer.id];
        counters.connection_bytes.subtract(stash.capacity() as u64);
        if self.input.len() < stash.len() + SLACK_BYTES {
            self.input.resize(stash.len() + SLACK_BYTES, 0);
        }
        self.input[..stash.len()].copy_from_slice(&stash);
        self.consume(connection, stash.len())
    }

    fn drop_unsent(&mut self, connection: &mut Connection) {
        let bytes = connection.unsent.capacity() as u64;
        self.unsent_bytes -= bytes;
        self.engine.counters().connection_bytes.subtract(bytes);
        connection.unsent = Vec::new();
        connection.sent = 0;
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections[slot].take() else { return };
        connection.session.abandon(&mut self.engine);
        self.drop_unsent(&mut connection);
        let counters = self.engine.counters();
        counters.connection_bytes.subtract(connection.stash.capacity() as u64);
        counters.curr_connections.subtract(1);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.free.push(slot as u32);
        drop(connection);
    }

    /// Ends connections that were not used for as long as was allowed, and those whose handshake is
    /// not over by its time.
    fn drop_idle(&mut self) {
        let (now, settings) = (self.engine.store.now(), &self.shared.settings);
        let timeout = settings.idle_timeout_s;
        if now == self.looked_for_idle_s || timeout == 0 && !settings.has_tls() {
            return;
        }
        self.looked_for_idle_s = now;
        for slot in 0..self.connections.len() {
            let Some(connection) = &self.connections[slot] else { continue };
            let idle = timeout > 0 && connection.last_used_s.saturating_add(timeout) <= now;
            let shakes = connection.tls.as_ref().is_some_and(TlsSession::is_handshaking);
            let too_long = shakes
                && connection.opened_s.saturating_add(HANDSHAKE_S) <= now
                && !planted!("cache.half-a-handshake-stays");
            if too_long {
                self.engine.counters().ssl_handshake_errors.add(1);
            }
            if idle || too_long {
                self.engine.counters().idle_kicks.add(1);
                self.close(slot);
            }
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    // EMFILE and ENFILE.
    matches!(error.raw_os_error(), Some(24 | 23))
}
