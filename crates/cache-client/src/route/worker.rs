//! One thread of the router: its clients' connections, its connections to the servers, and one
//! poller for all of them. A connection that waits for its client owns no buffer.

use super::command::{self, Command, Parsed};
use super::router::Router;
use super::server::{Report, Shared};
use crate::links::Links;
use holdfast_base::{Error, Result};
use holdfast_env::event;
use holdfast_env::poll::{Event, Events, Interest, Poller, Waker};
use holdfast_env::sockets;
use holdfast_env::trial::Knob;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const EVENTS: usize = 512;
const RECEIVE_BYTES: usize = 64 << 10;
/// Commands of one connection that wait for servers: then it is not read from.
static COMMANDS_MAX: Knob = Knob::new("cache-client.route-commands", 1024, &[1, 2, 5]);
/// The same in bytes, of the commands and, as far as can be foreseen, of their answers.
static WAITING_BYTES_MAX: Knob = Knob::new("cache-client.route-waiting", 4 << 20, &[1, 1000]);
/// Answers that a client does not take: then it is not read from, either.
static UNSENT_BYTES_MAX: Knob = Knob::new("cache-client.route-unsent", 1 << 20, &[1, 1000]);
/// What a connection's answers are taken to be long until some were seen.
const ANSWER_BYTES_GUESS: usize = 1 << 20;
/// A thread without anything to do looks at its clock so often, for its statistics.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Between two copies of a thread's statistics.
const REPORT_NS: u64 = 50_000_000;

const TOKEN_WAKER: u64 = u64::MAX;
const TOKEN_LISTENERS: u64 = 1 << 40;
const TOKEN_LINKS: u64 = 1 << 41;

struct Connection {
    socket: OwnedFd,
    generation: u32,
    /// Received and not parsed: half a command, or what waits its turn.
    inbox: Vec<u8>,
    /// Bytes to drop before the next command.
    skip: usize,
    /// In the order of the commands, each with its command's length.
    replies: VecDeque<(u32, usize)>,
    /// Lengths of the commands that wait.
    waiting_bytes: usize,
    /// How long its answers are, at most, by the latest.
    answer_bytes: usize,
    out: Vec<u8>,
    sent: usize,
    /// No more commands: ends once everything is answered.
    is_closing: bool,
    interest: Interest,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    thread: usize,
    router: Router,
    links: Links,
    poller: Poller,
    waker: Arc<Waker>,
    listeners: Vec<TcpListener>,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    next_generation: u32,
    /// Descriptors ran out: nothing is accepted until a connection ends.
    is_full: bool,
    buffer: Vec<u8>,
    reported_ns: u64,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        thread: usize,
        listeners: Vec<TcpListener>,
        waker: Arc<Waker>,
    ) -> Result<Worker> {
        let failed = |e: io::Error| Error::from(e).context("prepare a thread of the router");
        let poller = Poller::new().map_err(failed)?;
        poller.add(&*waker, TOKEN_WAKER, Interest::Read).map_err(failed)?;
        let router = Router::new(shared.plan.clone(), shared.recent.clone());
        let links = Links::new(
            shared.addresses.clone(),
            shared.settings.fleet,
            shared.clock.clone(),
            TOKEN_LINKS,
            shared.absences.clone(),
        )
        .with_tls(shared.plan.targets.clone());
        let worker = Worker {
            shared,
            thread,
            router,
            links,
            poller,
            waker,
            listeners,
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            is_full: false,
            buffer: vec![0; RECEIVE_BYTES],
            reported_ns: 0,
        };
        worker.listen().map_err(failed)?;
        Ok(worker)
    }

    fn listen(&self) -> io::Result<()> {
        self.listeners.iter().enumerate().try_for_each(|(i, listener)| {
            self.poller.add(listener, TOKEN_LISTENERS + i as u64, Interest::Read)
        })
    }

    pub fn run(mut self) {
        let mut events = Events::new(EVENTS);
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.links.now_ns();
            let until = self.links.fleet.deadline_ns().unwrap_or(u64::MAX);
            let until = until.min(self.router.next_look_ns());
            let wait = Duration::from_nanos(until.saturating_sub(now));
            if self.poller.wait(&mut events, Some(wait.min(IDLE_WAIT))).is_err() {
                return;
            }
            for i in 0..events.len() {
                self.event(events.get(i));
            }
            self.advance();
            self.report();
        }
    }

    fn event(&mut self, event: Event) {
        match event.token {
            TOKEN_WAKER => self.waker.clear(),
            token if self.links.owns(token) => {
                let (router, clock) = (&mut self.router, &self.shared.clock);
                self.links.event(event, &mut |ticket, outcome| {
                    router.settle(ticket, outcome, clock.monotonic_ns());
                });
            }
            token if token >= TOKEN_LISTENERS => self.accept((token - TOKEN_LISTENERS) as usize),
            token => self.serve(token as u32, event),
        }
    }

    /// Goes round core, router and clients until none has anything left to do.
    fn advance(&mut self) {
        loop {
            let (router, clock) = (&mut self.router, &self.shared.clock);
            router.look(&mut self.links.fleet, clock.monotonic_ns());
            self.links.advance(&self.poller, &mut |ticket, outcome| {
                router.settle(ticket, outcome, clock.monotonic_ns());
            });
            let now = clock.monotonic_ns();
            // Each thread looks for itself, at the same servers: one of them tells.
            if let Some(why) = self.router.take_warning()
                && self.thread == 0
            {
                event!(CacheUnleased, why);
            }
            let mut goes_on = self.router.follow(&mut self.links.fleet, now);
            while let Some((reply, (number, generation))) = self.router.take_whole() {
                goes_on = true;
                match self.connections.get(number as usize) {
                    Some(Some(of)) if of.generation == generation => self.answer(number),
                    // Its client has gone.
                    _ => drop(self.router.close(reply)),
                }
            }
            if !goes_on {
                return;
            }
        }
    }

    fn report(&mut self) {
        let now = self.links.now_ns();
        if now - self.reported_ns < REPORT_NS && self.links.fleet.pending() > 0 {
            return;
        }
        self.reported_ns = now;
        let fleet = &self.links.fleet;
        let report = Report {
            tally: self.router.tally,
            counts: fleet.counts,
            window: fleet.window().size(),
            outstanding: fleet.window().outstanding(),
            dead: (0..self.shared.addresses.len() as u32).filter(|s| !fleet.is_up(*s)).count()
                as u64,
        };
        *self.shared.reports[self.thread].lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn accept(&mut self, listener: usize) {
        loop {
            let socket = match sockets::accept(&self.listeners[listener]) {
                Ok((socket, _)) => socket,
                Err(e) if sockets::is_out_of_descriptors(&e) => {
                    self.is_full = true;
                    self.listeners.iter().for_each(|l| drop(self.poller.remove(l)));
                    return;
                }
                Err(_) => return,
            };
            let others = self.shared.connections.fetch_add(1, Ordering::Relaxed);
            if others >= self.shared.settings.connections_max as u64 {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                let _ = sockets::send(&socket, b"ERROR Too many open connections\r\n");
                continue;
            }
            // What fails here only costs time.
            let _ = sockets::set_nodelay(&socket);
            let number = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() as u32 - 1
            });
            self.next_generation = self.next_generation.wrapping_add(1);
            let added = self.poller.add(&socket, u64::from(number), Interest::Read);
            self.connections[number as usize] = Some(Connection {
                socket,
                generation: self.next_generation,
                inbox: Vec::new(),
                skip: 0,
                replies: VecDeque::new(),
                waiting_bytes: 0,
                answer_bytes: ANSWER_BYTES_GUESS,
                out: Vec::new(),
                sent: 0,
                is_closing: false,
                interest: Interest::Read,
            });
            if added.is_err() {
                self.close(number);
            }
        }
    }

    fn close(&mut self, number: u32) {
        let Some(connection) = self.connections[number as usize].take() else { return };
        // Those that were taken as whole go with it; the others when they are.
        for (reply, _) in connection.replies {
            if self.router.is_ready(reply) {
                drop(self.router.close(reply));
            }
        }
        self.free.push(number);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        if std::mem::take(&mut self.is_full) {
            let _ = self.listen();
        }
    }

    fn serve(&mut self, number: u32, event: Event) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        if event.ended {
            return self.close(number);
        }
        if event.writable && connection.interest != Interest::Read {
            return self.answer(number);
        }
        match sockets::receive(&connection.socket, &mut self.buffer) {
            // No more commands; those before are answered.
            Ok(0) => connection.is_closing = true,
            Ok(n) => {
                connection.inbox.extend_from_slice(&self.buffer[..n]);
                self.commands(number);
            }
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return self.close(number),
        }
        self.answer(number);
    }

    /// Starts the commands that a connection has received.
    fn commands(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        let inbox = std::mem::take(&mut connection.inbox);
        let id = (number, connection.generation);
        let mut at = 0;
        while at < inbox.len() && !connection.is_closing && !is_busy(connection) {
            let drop_now = connection.skip.min(inbox.len() - at);
            if drop_now > 0 {
                (connection.skip, at) = (connection.skip - drop_now, at + drop_now);
                continue;
            }
            let reply = match command::parse(&inbox[at..], self.shared.settings.value_bytes_max) {
                Parsed::Short => break,
                Parsed::Say(bytes, used) => {
                    connection.skip = used;
                    (self.router.say(id, bytes), 0)
                }
                Parsed::TooLarge(of, used) => {
                    connection.skip = used;
                    let (router, fleet) = (&mut self.router, &mut self.links.fleet);
                    let now = self.shared.clock.monotonic_ns();
                    (router.too_large(fleet, id, of, now), 0)
                }
                Parsed::Close(bytes) => {
                    connection.is_closing = true;
                    (self.router.say(id, bytes), 0)
                }
                Parsed::Command(command, used) => {
                    at += used;
                    let (router, fleet) = (&mut self.router, &mut self.links.fleet);
                    let reply = match command {
                        Command::Get { verb, keys } => {
                            let now = self.shared.clock.monotonic_ns();
                            router.get(fleet, id, &verb, keys, now)
                        }
                        Command::Keyed(of) => {
                            router.keyed(fleet, id, of, self.shared.clock.monotonic_ns())
                        }
                        Command::Flush { line, is_mute } => router.flush(fleet, id, &line, is_mute),
                        Command::Stats => router.say(id, &self.shared.stats()),
                        Command::Verbosity { is_mute: true } => router.say(id, b""),
                        Command::Verbosity { is_mute: false } => router.say(id, b"OK\r\n"),
                    };
                    (reply, used)
                }
            };
            connection.waiting_bytes += reply.1;
            connection.replies.push_back(reply);
        }
        connection.inbox = if at == 0 { inbox } else { inbox[at..].to_vec() };
    }

    /// Sends what is answered, in the order of the commands; then goes on with those that wait.
    fn answer(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        loop {
            take_answers(connection, &mut self.router);
            if connection.out.is_empty() {
                break;
            }
            match sockets::send(&connection.socket, &connection.out[connection.sent..]) {
                Ok(n) => connection.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return self.close(number),
            }
            if connection.sent == connection.out.len() {
                (connection.out, connection.sent) = (Vec::new(), 0);
            }
        }
        if connection.out.is_empty() && connection.is_closing && connection.replies.is_empty() {
            return self.close(number);
        }
        if !is_busy(connection) && !connection.inbox.is_empty() {
            self.commands(number);
        }
        self.watch(number);
    }

    /// Waits for what the connection needs next.
    fn watch(&mut self, number: u32) {
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        let interest =
            match (connection.out.is_empty(), is_busy(connection) || connection.is_closing) {
                (false, true) => Interest::Write,
                (false, false) => Interest::ReadWrite,
                (true, true) => Interest::End,
                (true, false) => Interest::Read,
            };
        if interest != connection.interest {
            connection.interest = interest;
            if self.poller.change(&connection.socket, u64::from(number), interest).is_err() {
                self.close(number);
            }
        }
    }
}

/// Moves answers that are ready behind those that are being sent, as many as may wait there.
fn take_answers(connection: &mut Connection, router: &mut Router) {
    while let Some((reply, used)) = connection.replies.front().copied()
        && router.is_ready(reply)
    {
        if connection.out.len() - connection.sent > UNSENT_BYTES_MAX.size() {
            UNSENT_BYTES_MAX.cross();
            return;
        }
        connection.replies.pop_front();
        connection.waiting_bytes -= used;
        let bytes = router.close(reply);
        connection.answer_bytes = bytes.len().max(connection.answer_bytes / 2);
        if connection.out.is_empty() {
            connection.out = bytes;
        } else {
            connection.out.extend_from_slice(&bytes);
        }
    }
}

/// Whether a connection has enough to do.
fn is_busy(connection: &Connection) -> bool {
    let waiting = connection.replies.len();
    let waiting_bytes = connection.waiting_bytes.max(waiting * connection.answer_bytes);
    let limits = [
        (&COMMANDS_MAX, waiting >= COMMANDS_MAX.size()),
        (&WAITING_BYTES_MAX, waiting_bytes > WAITING_BYTES_MAX.size()),
        (&UNSENT_BYTES_MAX, connection.out.len() - connection.sent > UNSENT_BYTES_MAX.size()),
    ];
    let mut busy = false;
    for (limit, _) in limits.into_iter().filter(|(_, reached)| *reached) {
        limit.cross();
        busy = true;
    }
    busy
}
