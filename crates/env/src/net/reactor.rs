//! One thread's loop: epoll, accept, mailbox, deadlines, and the life of connections. Reading and
//! batches are in `reactor/input.rs`. Everything here belongs to the one thread.

pub(super) mod input;
mod standing;
mod strangers;
mod turns;

use super::batch::Request;
use super::connection::{Connection, Stage, Waiting, answer, deadline_passed};
use super::link::Link;
use super::listen::Listener;
use super::mailbox::{DeferredKey, Mailbox, Message};
use super::message::Response;
use super::out::Out;
use super::server::Counters;
use super::socket::Socket;
use super::{ConnectionId, RECEIVE_BYTES, ServerConfig, Service, TAIL_BYTES};
use crate::{Clock, planted};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the reactors of one server share.
pub(super) struct Shared {
    pub config: ServerConfig,
    pub service: Arc<dyn Service>,
    pub clock: Arc<dyn Clock>,
    /// One a reactor.
    pub mailboxes: Vec<Arc<Mailbox>>,
    pub counters: Counters,
    pub next_connection: AtomicU64,
}

use standing::STANDING_NS;
use strangers::SWEEP_NS;

const WAKE: u64 = u64::MAX;
/// Listeners count down from here; slots with generations never get so far.
const LISTENER: u64 = u64::MAX - 1;
const EVENTS_MAX: usize = 256;
/// Emptied send buffers kept for the next connection that answers.
const SPARE_MAX: usize = 16;
/// A send buffer that grew beyond this is returned to the allocator.
const SPARE_BYTES_MAX: usize = 1 << 20;
/// How long a refused peer may take to close.
const REFUSED_NS: u64 = 1_000_000_000;
/// When descriptors run out, accepting rests for this long: the listener stays readable, and
/// trying at once would spin.
const ACCEPT_REST_NS: u64 = 100_000_000;
/// Turns without work on rings until epoll is asked, too: a look at a ring is a hundred times
/// cheaper than that call.
const QUIET_TURNS: u32 = 16;
/// How often a connection goes on within one round after waiting for the budget; then others have
/// their turn.
const RESUMES_MAX: u32 = 16;

/// Turns without work until the reactor sleeps in epoll. A client that waits for one answer before
/// it asks again is back within a few microseconds; being awake then saves the wake-up, which is
/// half of what such a request costs.
const LINGER_TURNS: u32 = 64;

pub(super) struct Reactor {
    shared: Arc<Shared>,
    /// Which of them it is.
    index: usize,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    /// Round robin over the mailboxes.
    next_reactor: usize,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    waiting: Waiting,
    /// All receives of small frames go through here.
    buffer: Vec<u8>,
    /// Requests of the current batch; kept for its memory.
    requests: Vec<Request>,
    spare: Vec<Vec<u8>>,
    messages: Vec<Message>,
    /// Slots of connections that got an answer from the mailbox and need a flush.
    touched: Vec<u32>,
    /// Slots of refused connections, which are closed by time if not by the peer.
    refused: Vec<(u32, ConnectionId)>,
    /// Slots of connections whose bytes travel through a ring, looked at in each turn.
    rings: Vec<(u32, ConnectionId)>,
    /// Slots of connections that wait for the process's budget, and when to look at them again.
    starved: Vec<(u32, ConnectionId)>,
    feed_ns: Option<u64>,
    /// Slots of connections that wait for their client's turn, and when the first of them is to be
    /// looked at.
    slowed: Vec<(u32, ConnectionId)>,
    turn_ns: Option<u64>,
    /// When to look who does not get on; nothing while nobody holds anything.
    sweep_ns: Option<u64>,
    /// When to look who is nobody any more; nothing while nobody with a name is connected.
    standing_ns: Option<u64>,
    /// Somebody was served in this round, and may be back at once. Not who begins or ends a connection:
    /// the next step of a handshake takes its peer longer than anybody should stay awake for it.
    expects: bool,
    /// Counts rounds of the loop: the order in which connections were active.
    turn: u64,
    accept_again_ns: Option<u64>,
    /// Set by a shutdown: everything ends at this time at the latest.
    stop_ns: Option<u64>,
}

impl Reactor {
    pub fn new(shared: Arc<Shared>, index: usize, listeners: Vec<Listener>) -> io::Result<Reactor> {
        // SAFETY: no pointers; the result is checked.
        let epoll = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: just made, and owned by nobody else.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let mailbox = shared.mailboxes[index].clone();
        // A stash that is copied in front, and as much as one receive may bring.
        let receive_bytes =
            input::STASH_COPY_MAX.size() + RECEIVE_BYTES.size().max(TAIL_BYTES.size());
        let reactor = Reactor {
            shared,
            index,
            mailbox,
            epoll,
            listeners,
            next_reactor: 0,
            connections: Vec::new(),
            free: Vec::new(),
            waiting: Waiting::default(),
            buffer: vec![0; receive_bytes],
            requests: Vec::new(),
            spare: Vec::new(),
            messages: Vec::new(),
            touched: Vec::new(),
            refused: Vec::new(),
            rings: Vec::new(),
            starved: Vec::new(),
            feed_ns: None,
            slowed: Vec::new(),
            turn_ns: None,
            sweep_ns: None,
            standing_ns: None,
            expects: false,
            turn: 0,
            accept_again_ns: None,
            stop_ns: None,
        };
        let readable = libc::EPOLLIN as u32;
        reactor.watch(libc::EPOLL_CTL_ADD, reactor.mailbox.raw(), readable, WAKE)?;
        reactor.watch_listeners(libc::EPOLL_CTL_ADD)?;
        Ok(reactor)
    }

    pub fn run(mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let mut quiet_turns = 0u32;
        loop {
            self.turn += 1;
            let mut worked = self.poll_rings();
            self.expects = worked;
            if self.rings.is_empty() || quiet_turns.is_multiple_of(QUIET_TURNS) {
                let timeout_ms = if quiet_turns < LINGER_TURNS { 0 } else { self.timeout_ms() };
                worked |= self.poll_sockets(&mut events, timeout_ms);
            }
            quiet_turns = match (worked, self.expects) {
                (true, true) => 0,
                (true, false) => quiet_turns,
                (false, _) => quiet_turns.wrapping_add(1),
            };
            self.read_mailbox();
            if self.has_timers() {
                self.timers();
            }
            if self.stop_ns.is_some() && self.connections.iter().all(Option::is_none) {
                return;
            }
            if self.shared.config.spin && !worked {
                std::hint::spin_loop();
            }
        }
    }

    /// Asks epoll, sleeping in it for so long at most; says whether there was an event.
    fn poll_sockets(
        &mut self,
        events: &mut [libc::epoll_event; EVENTS_MAX],
        timeout_ms: i32,
    ) -> bool {
        // SAFETY: the pointer and count describe `events`, which outlives the call.
        let count = unsafe {
            let fd = self.epoll.as_raw_fd();
            libc::epoll_wait(fd, events.as_mut_ptr(), EVENTS_MAX as i32, timeout_ms)
        };
        // Negative is EINTR: anything else would be a bug in the arguments.
        for event in &events[..count.max(0) as usize] {
            self.event(event.u64, event.events);
        }
        count > 0
    }

    /// Serves every ring that has something to read or room for what waits; says whether any had.
    fn poll_rings(&mut self) -> bool {
        let mut worked = false;
        let mut rings = std::mem::take(&mut self.rings);
        rings.retain(|&(slot, id)| {
            let connection = self.connections[slot as usize].as_deref_mut();
            let Some(connection) = connection.filter(|c| c.id == id) else { return false };
            let reads = connection.stage == Stage::Open && !connection.paused;
            let writes = !connection.out.is_empty();
            let Some(ring) = &mut connection.link.ring else { return false };
            // A broken ring counts as work, which finds out what is wrong.
            let reads = reads && !matches!(ring.readable(), Ok(0));
            let writes = writes && !matches!(ring.writable(), Ok(0));
            if reads {
                self.readable(slot);
            }
            if reads || writes {
                self.settle(slot);
                worked = true;
            }
            true
        });
        self.rings = rings;
        worked
    }

    fn event(&mut self, token: u64, events: u32) {
        if token == WAKE {
            self.expects = true;
            self.mailbox.woken();
            return;
        }
        if token > LISTENER - self.listeners.len() as u64 {
            self.accept((LISTENER - token) as usize);
            return;
        }
        let (slot, id_low) = (token as u32, (token >> 32) as u32);
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        // An event of a connection that was closed in this very round, and its slot reused.
        if connection.id.0 as u32 & (u32::MAX >> 1) != id_low {
            return;
        }
        let broke = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0
            && events & libc::EPOLLIN as u32 == 0;
        // Asked for of those that wait for their turn, which are not read.
        let left = events & libc::EPOLLRDHUP as u32 != 0 && connection.slowed_until_ns.is_some();
        if broke || left {
            return self.close(slot);
        }
        if events & libc::EPOLLIN as u32 != 0 {
            if connection.link.ring.is_some() {
                self.socket_spoke(slot);
            } else {
                self.readable(slot);
            }
        }
        if self.connections[slot as usize].is_some() {
            self.settle(slot);
        }
        let connection = self.connections[slot as usize].as_deref();
        self.expects |= connection.is_some_and(|connection| !connection.link.is_shaking());
    }

    fn accept(&mut self, listener: usize) {
        // A bound, so that a flood of connections does not starve those that are open.
        for _ in 0..EVENTS_MAX {
            match self.listeners[listener].accept() {
                Ok(Some(socket)) => self.admit(socket),
                Ok(None) => {
                    self.shared.counters.turned_away.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => {
                    let code = e.raw_os_error().unwrap_or(0);
                    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
                    if exhausted.contains(&code)
                        && self.watch_listeners(libc::EPOLL_CTL_DEL).is_ok()
                    {
                        self.accept_again_ns =
                            Some(self.shared.clock.monotonic_ns() + ACCEPT_REST_NS);
                    }
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: Socket) {
        let Shared { counters, mailboxes, .. } = &*self.shared;
        counters.connections.fetch_add(1, Ordering::Relaxed);
        counters.accepted.fetch_add(1, Ordering::Relaxed);
        let target = self.next_reactor;
        self.next_reactor = (target + 1) % mailboxes.len();
        if target == 0 {
            self.open(socket, 0);
        } else {
            mailboxes[target].push(Message::Accepted(socket, 0));
        }
    }

    /// Takes a connection in that is counted already. When all places are taken, somebody who is
    /// idle makes way: here, or else at the next reactor, until all were asked.
    fn open(&mut self, socket: Socket, asked: usize) {
        let Shared { config, counters, .. } = &*self.shared;
        if counters.connections.load(Ordering::Relaxed) > config.connections_max && !self.make_way()
        {
            let others = &self.shared.mailboxes;
            if asked + 1 == others.len() || planted!("net.one-reactor-makes-way") {
                return self.turn_away(socket);
            }
            let next = (self.index + 1) % others.len();
            return others[next].push(Message::Accepted(socket, asked + 1));
        }
        let id = ConnectionId(self.shared.next_connection.fetch_add(1, Ordering::Relaxed));
        let raw = socket.raw();
        let config = &self.shared.config;
        let link = Link::metered(socket, &config.meter);
        let mut connection = Box::new(Connection::new(link, id, config));
        connection.interest = libc::EPOLLIN as u32;
        connection.last_turn = self.turn;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() as u32 - 1
        });
        if self.stop_ns.is_some()
            || self.watch(libc::EPOLL_CTL_ADD, raw, connection.interest, token(slot, id)).is_err()
        {
            self.free.push(slot);
            self.shared.counters.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.connections[slot as usize] = Some(connection);
        self.shared.service.connected(id);
    }

    fn close(&mut self, slot: u32) {
        let Some(connection) = self.connections[slot as usize].take() else { return };
        self.free.push(slot);
        let counters = &self.shared.counters;
        counters.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.config.budget.change(connection.counted_bytes, 0);
        connection.load.gone.store(true, Ordering::Relaxed);
        let id = connection.id;
        // The socket first: the service may let go of what the peer was reading.
        drop(connection);
        self.shared.service.disconnected(id);
    }

    fn read_mailbox(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        self.mailbox.take(&mut messages);
        for message in messages.drain(..) {
            match message {
                Message::Accepted(socket, asked) => self.open(socket, asked),
                Message::Answer { key, response, last } => self.answered(key, response, last),
                Message::Again { key, meta } => self.again(key, meta),
                Message::Shutdown => self.begin_shutdown(),
            }
        }
        self.messages = messages;
        self.settle_touched();
    }

    fn settle_touched(&mut self) {
        while let Some(slot) = self.touched.pop() {
            if self.connections[slot as usize].is_some() {
                self.settle(slot);
            }
        }
    }

    fn answered(&mut self, key: DeferredKey, response: Response, last: bool) {
        let found = if last { self.waiting.remove(key) } else { self.waiting.get(key) };
        let Some(request) = found.filter(|request| !request.expired) else { return };
        let Some(connection) = self.connections[request.slot as usize].as_deref_mut() else {
            return;
        };
        if connection.id != request.connection {
            return;
        }
        let mut to = request.to;
        if last {
            connection.load.requests -= 1;
            connection.load.bytes -= request.bytes;
        } else {
            to.kind = holdfast_base::frame::FrameKind::Part;
        }
        if connection.is_refused() {
            return;
        }
        // Who was let in when it was asked may be nobody by now: a read that waited for its entry.
        let credentials = self.shared.config.credentials.as_deref();
        if let Err(e) = connection.check_standing(&*self.shared.service, credentials)
            && !planted!("net.waiting-answers-go")
        {
            self.shut_out(request.slot, &e);
            return self.touched.push(request.slot);
        }
        let Some(connection) = self.connections[request.slot as usize].as_deref_mut() else {
            return;
        };
        if connection.out.is_empty() {
            // Only the first answer since the last flush: so each slot is listed once.
            self.touched.push(request.slot);
        }
        lend_buffer(&mut self.spare, &mut connection.out);
        answer(&mut connection.out, to, response);
    }

    /// A request that has waited comes before what is in the stash, as those do that wait for memory.
    fn again(&mut self, key: DeferredKey, meta: Vec<u8>) {
        let Some(request) = self.waiting.remove(key).filter(|request| !request.expired) else {
            return;
        };
        let Some(connection) = self.connections[request.slot as usize].as_deref_mut() else {
            return;
        };
        if connection.id != request.connection {
            return;
        }
        connection.load.requests -= 1;
        connection.load.bytes -= request.bytes;
        if connection.is_refused() {
            return;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        connection.parked.push(request.again(meta, now_ns));
        connection.paused = true;
        self.touched.push(request.slot);
    }

    fn begin_shutdown(&mut self) {
        self.listeners.clear();
        let grace_ns = self.shared.config.shutdown_grace.as_nanos() as u64;
        self.stop_ns = Some(self.shared.clock.monotonic_ns().saturating_add(grace_ns));
        for slot in 0..self.connections.len() as u32 {
            if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
                if connection.stage == Stage::Open {
                    connection.stage = Stage::Finishing;
                }
                self.settle(slot);
            }
        }
    }

    fn has_timers(&self) -> bool {
        self.waiting.next_deadline_ns.is_some()
            || self.feed_ns.is_some()
            || self.turn_ns.is_some()
            || self.sweep_ns.is_some()
            || self.standing_ns.is_some()
            || !self.refused.is_empty()
            || self.accept_again_ns.is_some()
            || self.stop_ns.is_some()
    }

    fn timers(&mut self) {
        let now_ns = self.shared.clock.monotonic_ns();
        let mut due = Vec::new();
        self.waiting.expire(now_ns, |request| due.push(request));
        for request in due {
            let Some(connection) = self.connections[request.slot as usize].as_deref_mut() else {
                continue;
            };
            if connection.id == request.connection {
                connection.load.requests -= 1;
                connection.load.bytes -= request.bytes;
                connection.out.push_error(request.to, &deadline_passed());
                self.shared.counters.deadlines_passed.fetch_add(1, Ordering::Relaxed);
                self.touched.push(request.slot);
            }
        }
        self.settle_touched();
        self.feed(now_ns);
        self.give_turns(now_ns);
        self.sweep(now_ns);
        self.end_who_is_nobody(now_ns);
        if self.accept_again_ns.is_some_and(|at| at <= now_ns)
            && self.watch_listeners(libc::EPOLL_CTL_ADD).is_ok()
        {
            self.accept_again_ns = None;
        }
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|&(slot, id)| match self.connections[slot as usize].as_deref() {
            Some(connection) if connection.id == id => {
                let Stage::Refused { until_ns, .. } = connection.stage else { return false };
                if until_ns <= now_ns {
                    self.close(slot);
                }
                until_ns > now_ns
            }
            _ => false,
        });
        self.refused = refused;
        if self.stop_ns.is_some_and(|at| at <= now_ns) {
            (0..self.connections.len() as u32).for_each(|slot| self.close(slot));
        }
    }

    fn timeout_ms(&self) -> i32 {
        if self.shared.config.spin {
            return 0;
        }
        if !self.has_timers() {
            return -1;
        }
        let refused = (!self.refused.is_empty()).then(|| {
            let until = |&(slot, _): &(u32, ConnectionId)| match self.connections[slot as usize]
                .as_deref()
                .map(|c| c.stage)
            {
                Some(Stage::Refused { until_ns, .. }) => until_ns,
                _ => 0,
            };
            self.refused.iter().map(until).min().unwrap_or(0)
        });
        let timers = [
            self.waiting.next_deadline_ns,
            refused,
            self.feed_ns,
            self.turn_ns,
            self.sweep_ns,
            self.standing_ns,
            self.accept_again_ns,
            self.stop_ns,
        ];
        let next_ns = timers.into_iter().flatten().min().unwrap_or(0);
        let wait_ns = next_ns.saturating_sub(self.shared.clock.monotonic_ns());
        wait_ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32
    }

    /// Sends what can be sent, and brings what epoll watches in line with the connection's state.
    fn settle(&mut self, slot: u32) {
        for resumes in 0.. {
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
            if let Err(e) = connection.out.flush(&mut connection.link) {
                self.broken(slot, &e);
                if self.connections[slot as usize].is_none() {
                    return;
                }
                // Goes on with the reason, over the socket.
                continue;
            }
            let config = &self.shared.config;
            connection.count_held(&config.budget, &self.shared.counters);
            if !connection.paused {
                // Opened already, so that the socket says nothing of it.
                if connection.link.has_more() && connection.stage == Stage::Open {
                    self.readable(slot);
                    continue;
                }
                break;
            }
            let (claimed, asker) = (connection.claimed_bytes(), connection.asker);
            let fed = connection.starved.is_none_or(|wanted| {
                resumes < RESUMES_MAX && config.budget.would_admit(claimed, wanted, asker)
            });
            let clock = &self.shared.clock;
            let waits = connection.slowed_until_ns.is_some_and(|at| clock.monotonic_ns() < at)
                && self.stop_ns.is_none();
            let resume = fed
                && !waits
                && connection.load.requests <= config.connection_requests_max / 2
                && connection.held_bytes() <= config.connection_bytes_max / 2;
            if !resume {
                break;
            }
            connection.starved = None;
            connection.slowed_until_ns = None;
            connection.paused = false;
            self.resume(slot);
        }
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        if connection.out.buf.is_empty() && connection.out.buf.capacity() > 0 {
            let buffer = std::mem::take(&mut connection.out.buf);
            if self.spare.len() < SPARE_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
                self.spare.push(buffer);
            }
        }
        if let Stage::Refused { told, .. } = &mut connection.stage
            && !*told
            && connection.out.is_empty()
        {
            *told = true;
            connection.link.shutdown_write();
        }
        let moved = connection.received + connection.out.taken;
        if moved != connection.moved {
            // A broken ring's answers are given up, and their count begins anew.
            let bytes = moved.saturating_sub(connection.moved);
            connection.charge(&*self.shared.clock, 0, bytes);
            (connection.moved, connection.last_turn) = (moved, self.turn);
        }
        connection.count_held(&self.shared.config.budget, &self.shared.counters);
        if connection.is_done() {
            return self.close(slot);
        }
        // Only what is at rest needs no clock: the usual answer is on its way by now.
        if self.sweep_ns.is_none() && connection.counted_bytes > 0 {
            self.sweep_ns = Some(self.shared.clock.monotonic_ns() + SWEEP_NS);
        }
        if self.standing_ns.is_none() && connection.is_named() {
            self.standing_ns = Some(self.shared.clock.monotonic_ns() + STANDING_NS);
        }
        self.update_interest(slot);
    }

    fn update_interest(&mut self, slot: u32) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        // A ring's socket is silent until the peer is gone; the ring itself is polled.
        let ring = connection.link.ring.is_some();
        let read = ring || (connection.stage != Stage::Finishing && !connection.paused);
        let write = !ring && !connection.out.is_empty();
        let left = connection.slowed_until_ns.is_some() && !planted!("net.waits-for-the-dead");
        let wanted = if read { libc::EPOLLIN as u32 } else { 0 }
            | if write { libc::EPOLLOUT as u32 } else { 0 }
            | if left { libc::EPOLLRDHUP as u32 } else { 0 };
        if wanted != connection.interest {
            connection.interest = wanted;
            let (raw, token) = (connection.link.socket.raw(), token(slot, connection.id));
            if self.watch(libc::EPOLL_CTL_MOD, raw, wanted, token).is_err() {
                self.close(slot);
            }
        }
    }

    fn watch(&self, operation: i32, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` outlives the call; a wrong descriptor is an error, not a danger.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn watch_listeners(&self, operation: i32) -> io::Result<()> {
        for (i, listener) in self.listeners.iter().enumerate() {
            self.watch(operation, listener.raw(), libc::EPOLLIN as u32, LISTENER - i as u64)?;
        }
        Ok(())
    }
}

/// Slot and the low bits of the connection's id; the top bit is left to the special tokens.
fn token(slot: u32, id: ConnectionId) -> u64 {
    (id.0 as u32 & (u32::MAX >> 1)) as u64 * (1 << 32) + slot as u64
}

/// An idle connection owns no send buffer; it borrows one when it has something to say.
fn lend_buffer(spare: &mut Vec<Vec<u8>>, out: &mut Out) {
    if out.buf.capacity() == 0 {
        out.buf = spare.pop().unwrap_or_default();
    }
}
