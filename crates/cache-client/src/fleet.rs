//! The client's core: requests to numbered servers, of which as many are outstanding as one
//! window admits. Takes requests, datagrams, bytes, failures and the time; gives bytes to send
//! and answers. It holds no socket and no clock: `links` drives it on a machine, `incast` in a
//! simulated network.

pub mod absence;
mod health;
mod ids;
mod outbox;
mod stream;
#[cfg(test)]
mod tests;

use crate::assembly::{Added, Assembly, Frame};
use crate::window::{self, Window};
use crate::wire::{self, BODY_BYTES, FRAME_BYTES, Fit, Scan, Shape};
use absence::Absences;
use health::Health;
use holdfast_env::planted;
use ids::Ids;
pub use outbox::Outbox;
use std::collections::VecDeque;
use std::sync::Arc;
pub use stream::Closing;
use stream::Stream;

/// Requests whose answers nobody waits for.
const NOBODY: u64 = u64::MAX;
/// Assemblies kept for later answers.
const SPARE_MAX: usize = 64;
/// Answers' bytes a key are taken to be so many until some are known.
const KEY_BYTES_GUESS: f64 = 100.0;
/// Answers of more datagrams than this say nothing about the queue by their time over TCP.
const TIMED_DATAGRAMS_MAX: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub window: window::Settings,
    /// A longer answer ends its connection, or is lost: what a server may make us keep.
    pub answer_bytes_max: usize,
    /// How often a get that was lost over UDP is sent again. A miss is answered without.
    pub retries: u8,
    /// How long an answer over TCP is waited for before its server is taken for dead.
    pub patience_ns: u64,
    /// Losses in a row after which a server is asked over TCP whether it lives.
    pub losses_suspicious: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window: window::Settings::default(),
            answer_bytes_max: 16 << 20,
            retries: 0,
            patience_ns: 500_000_000,
            losses_suspicious: 3,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    Tcp,
    /// For gets: what is lost is a miss.
    Udp,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub server: u32,
    pub transport: Transport,
    pub shape: Shape,
    /// Keys that are asked for: how long the answer will be.
    pub keys: u32,
    /// Comes back with the answer.
    pub ticket: u64,
    /// As on the wire, without a frame; over UDP at most [`BODY_BYTES`].
    pub bytes: &'a [u8],
}

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The whole answer, as it was sent.
    Answer(&'a [u8]),
    /// Nothing came in time over UDP.
    Lost,
    /// The server is dead, or broke the protocol. If `maybe`, it may have carried the request out.
    Dead { maybe: bool },
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sent: u64,
    pub answered: u64,
    pub lost: u64,
    pub retried: u64,
    /// Requests to servers that were dead.
    pub dead: u64,
    /// Of those lost: answered after they had been given up.
    pub late: u64,
    /// Datagrams that nobody waited for: twice, or made up.
    pub stray: u64,
    /// Datagrams and answers that no server sends.
    pub broken: u64,
    pub servers_died: u64,
}

struct Slot {
    /// Tells a slot's requests apart.
    generation: u32,
    is_used: bool,
    server: u32,
    transport: Transport,
    shape: Shape,
    keys: u32,
    ticket: u64,
    /// Sent only if no connection to its server has ended since this number.
    unless_ended: Option<u64>,
    /// Datagrams of the answer that the window still counts.
    cost: u32,
    tries: u8,
    /// Over UDP, while it is outstanding.
    id: Option<u16>,
    sent_ns: u64,
    /// When the last part of the answer came; 0 before the first.
    heard_ns: u64,
    bytes: Vec<u8>,
    parts: Option<Assembly>,
}

struct Server {
    health: Health,
    /// Connections to it that were given up here, and have not ended.
    drains: u32,
    /// Of its absences, as of when it was up last.
    epoch: u64,
    /// What it is sent before it is used again, unanswered.
    returning: VecDeque<Vec<u8>>,
    /// Over UDP, since its last answer.
    losses: u32,
    ids: Ids,
    outbox: Outbox,
    stream: Stream,
    /// In `work`.
    is_listed: bool,
}

/// A slot at a moment: by then its request is looked at.
#[derive(Clone, Copy)]
struct Timer {
    at_ns: u64,
    slot: u32,
    generation: u32,
}

pub struct Fleet {
    settings: Settings,
    /// Shared with the other threads that use the same servers.
    absences: Arc<Absences>,
    window: Window,
    servers: Vec<Server>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    /// Sent and unanswered, in the order in which they were sent or last heard of.
    datagrams: VecDeque<Timer>,
    streams: VecDeque<Timer>,
    /// Answers with holes, and until when they may fill.
    holes: VecDeque<Timer>,
    /// Dead servers.
    dead: Vec<u32>,
    /// Servers that have something for the driver.
    work: VecDeque<u32>,
    spare: Vec<Assembly>,
    key_bytes: f64,
    heard_ns: u64,
    backed_off_ns: u64,
    pub counts: Counts,
}

impl Fleet {
    pub fn new(servers: usize, settings: Settings) -> Fleet {
        Fleet::sharing(servers, settings, Arc::new(Absences::new(servers)))
    }

    /// One of several that use the same servers.
    pub fn sharing(servers: usize, settings: Settings, absences: Arc<Absences>) -> Fleet {
        Fleet {
            settings,
            absences,
            window: Window::new(settings.window),
            servers: (0..servers).map(|_| Server::new()).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            datagrams: VecDeque::new(),
            streams: VecDeque::new(),
            holes: VecDeque::new(),
            dead: Vec::new(),
            work: VecDeque::new(),
            spare: Vec::new(),
            key_bytes: KEY_BYTES_GUESS,
            heard_ns: 0,
            backed_off_ns: 0,
            counts: Counts::default(),
        }
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Requests that were submitted and have no outcome yet.
    pub fn pending(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Queues a request; [`Fleet::pump`] sends it when its turn comes.
    pub fn submit(&mut self, request: Request<'_>) {
        let slot = self.take_slot(&request);
        self.waiting.push_back(slot);
    }

    /// Queues a request that makes sense only over the connection of an earlier one: its server may
    /// have started anew since. `ended` is what [`Fleet::ended`] said before that one was submitted;
    /// once a connection has ended, the request is not sent, and its outcome is [`Outcome::Dead`].
    pub fn submit_unless_ended(&mut self, request: Request<'_>, ended: u64) {
        assert_eq!(request.transport, Transport::Tcp, "datagrams have no connection");
        let slot = self.take_slot(&request);
        if !planted!("lookaside.any-connection") {
            self.slots[slot as usize].unless_ended = Some(ended);
        }
        self.waiting.push_back(slot);
    }

    /// Connections to a server that have ended so far. While it stays the same, all that is sent
    /// over TCP goes over one connection.
    pub fn ended(&self, server: u32) -> u64 {
        self.servers[server as usize].stream.ended()
    }

    fn take_slot(&mut self, request: &Request<'_>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::empty());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[number as usize];
        slot.is_used = true;
        (slot.server, slot.transport, slot.shape) =
            (request.server, request.transport, request.shape);
        (slot.keys, slot.ticket, slot.tries) = (request.keys, request.ticket, 0);
        (slot.cost, slot.heard_ns, slot.unless_ended) = (0, 0, None);
        slot.bytes.clear();
        slot.bytes.extend_from_slice(request.bytes);
        number
    }

    /// Sends what the window admits, in the order of submission.
    pub fn pump(&mut self, now_ns: u64, done: &mut impl FnMut(u64, Outcome<'_>)) {
        while let Some(number) = self.waiting.front().copied() {
            let server = self.slots[number as usize].server;
            self.notice(server, now_ns, done);
            self.rejoin(server);
            let slot = &self.slots[number as usize];
            let of = &self.servers[server as usize];
            let has_ended = slot.unless_ended.is_some_and(|ended| ended != of.stream.ended());
            if of.health != Health::Up || has_ended {
                self.waiting.pop_front();
                self.finish(number, Outcome::Dead { maybe: false }, done);
                continue;
            }
            let cost = self.cost(slot.shape, slot.keys);
            let is_udp = slot.transport == Transport::Udp;
            if !self.window.admits(cost)
                || is_udp && self.servers[slot.server as usize].ids.is_full()
            {
                return;
            }
            self.waiting.pop_front();
            self.window.sent(cost);
            let slot = &mut self.slots[number as usize];
            (slot.cost, slot.sent_ns) = (cost, now_ns);
            self.counts.sent += 1;
            if is_udp { self.send_datagram(number) } else { self.send_stream(number) }
        }
    }

    /// Datagrams that an answer will take.
    fn cost(&self, shape: Shape, keys: u32) -> u32 {
        match shape {
            Shape::Values => {
                (f64::from(keys) * self.key_bytes / BODY_BYTES as f64).ceil().max(1.0) as u32
            }
            _ => 1,
        }
    }

    fn send_datagram(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let server = &mut self.servers[slot.server as usize];
        let id = server.ids.take(number);
        slot.id = Some(id);
        let [high, low] = id.to_be_bytes();
        server.outbox.push(&[high, low, 0, 0, 0, 1, 0, 0], &slot.bytes);
        let (at_ns, generation, server) = (slot.sent_ns, slot.generation, slot.server);
        self.datagrams.push_back(Timer { at_ns, slot: number, generation });
        self.list(server);
    }

    /// A server has something for the driver.
    fn list(&mut self, server: u32) {
        let of = &mut self.servers[server as usize];
        if !of.is_listed {
            of.is_listed = true;
            self.work.push_back(server);
        }
    }

    /// The next server that has something to send, to connect or to close.
    pub fn take_work(&mut self) -> Option<u32> {
        let server = self.work.pop_front()?;
        self.servers[server as usize].is_listed = false;
        Some(server)
    }

    /// Datagrams to send, for the driver to empty.
    pub fn outbox(&mut self, server: u32) -> &mut Outbox {
        &mut self.servers[server as usize].outbox
    }

    /// A datagram came from a server.
    pub fn datagram(
        &mut self,
        server: u32,
        now_ns: u64,
        datagram: &[u8],
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let Some((frame, body)) = Frame::split(datagram) else {
            self.counts.broken += 1;
            return;
        };
        self.notice(server, now_ns, done);
        let Some(number) = self.servers[server as usize].ids.find(frame.id) else {
            return self.unexpected(server, now_ns, frame.id);
        };
        let slot = &mut self.slots[number as usize];
        let is_first = slot.heard_ns == 0;
        slot.heard_ns = now_ns.max(1);
        if is_first {
            self.heard_ns = now_ns;
            self.servers[server as usize].losses = 0;
            self.window.timed(now_ns, slot.sent_ns);
            let count = u32::from(frame.count);
            self.window.revise(slot.cost, count);
            slot.cost = count;
            if count == 1 && is_answer(slot, body) {
                self.window.grow(1);
                if body.starts_with(b"SERVER_ERROR") {
                    return self.ask_over_tcp(number);
                }
                return self.answered(number, body, done);
            }
        }
        self.part(number, frame, body, done);
    }

    /// What a server refuses over UDP, a long answer for one, it may give over TCP.
    fn ask_over_tcp(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.transport = Transport::Tcp;
        slot.generation = slot.generation.wrapping_add(1);
        let (cost, id, server) = (slot.cost, slot.id.take(), slot.server);
        (slot.cost, slot.heard_ns) = (0, 0);
        if let Some(id) = id {
            self.servers[server as usize].ids.give_back(id, number);
        }
        self.window.settle(cost);
        self.counts.retried += 1;
        self.waiting.push_front(number);
    }

    /// A datagram that nobody waits for. If it answers what was given up, its server lives, and
    /// nothing was lost: timeouts were too short.
    fn unexpected(&mut self, server: u32, now_ns: u64, id: u16) {
        let of = &mut self.servers[server as usize];
        let Some(sent_ns) = of.ids.take_late(id) else {
            self.counts.stray += 1;
            return;
        };
        of.losses = 0;
        self.counts.late += 1;
        self.heard_ns = now_ns;
        self.window.late(now_ns, sent_ns);
    }

    /// One of several datagrams of an answer.
    fn part(
        &mut self,
        number: u32,
        frame: Frame,
        body: &[u8],
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let slot = &mut self.slots[number as usize];
        let spare = &mut self.spare;
        let parts = slot.parts.get_or_insert_with(|| spare.pop().unwrap_or_default());
        let added = parts.add(frame, body, self.settings.answer_bytes_max);
        match added {
            Added::Twice => self.counts.stray += 1,
            Added::Wrong => self.counts.broken += 1,
            Added::More | Added::Whole => {
                if slot.cost > 0 {
                    slot.cost -= 1;
                    self.window.settle(1);
                    self.window.grow(1);
                }
                if parts.has_hole() {
                    // They come in order from one server: what was overtaken is as good as lost.
                    let at_ns = slot.heard_ns + self.window.disorder_ns();
                    self.holes.push_back(Timer {
                        at_ns,
                        slot: number,
                        generation: slot.generation,
                    });
                }
            }
        }
        if added != Added::Whole {
            return;
        }
        let Some(mut parts) = slot.parts.take() else { return };
        let answer = parts.answer();
        if is_answer(slot, answer) {
            self.answered(number, answer, done);
        } else {
            self.counts.broken += 1;
            self.lose(number, self.slots[number as usize].heard_ns, done);
        }
        self.keep_spare(parts);
    }

    fn keep_spare(&mut self, mut parts: Assembly) {
        if self.spare.len() < SPARE_MAX {
            parts.clear();
            self.spare.push(parts);
        }
    }

    fn answered(&mut self, number: u32, answer: &[u8], done: &mut impl FnMut(u64, Outcome<'_>)) {
        let slot = &self.slots[number as usize];
        if slot.shape == Shape::Values && slot.keys > 0 {
            let each = answer.len() as f64 / f64::from(slot.keys);
            self.key_bytes += (each - self.key_bytes) / 16.0;
        }
        self.counts.answered += 1;
        self.finish(number, Outcome::Answer(answer), done);
    }

    /// Gives a slot back and says what its request came to.
    fn finish(
        &mut self,
        number: u32,
        outcome: Outcome<'_>,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let slot = &mut self.slots[number as usize];
        let (ticket, cost, server) = (slot.ticket, slot.cost, slot.server);
        slot.is_used = false;
        slot.generation = slot.generation.wrapping_add(1);
        let parts = slot.parts.take();
        if let Some(id) = slot.id.take() {
            self.servers[server as usize].ids.give_back(id, number);
        }
        if slot.bytes.capacity() > 2 * BODY_BYTES {
            slot.bytes = Vec::new();
        }
        self.window.settle(cost);
        self.free.push(number);
        if let Some(parts) = parts {
            self.keep_spare(parts);
        }
        if let Outcome::Dead { .. } = outcome {
            self.counts.dead += 1;
        }
        if ticket != NOBODY {
            done(ticket, outcome);
        }
    }

    /// Looks at what should have been answered by now, and at dead servers.
    pub fn expire(&mut self, now_ns: u64, done: &mut impl FnMut(u64, Outcome<'_>)) {
        while let Some(timer) = self.holes.front().copied().filter(|t| t.at_ns <= now_ns) {
            self.holes.pop_front();
            if self.is_current(timer) {
                self.lose(timer.slot, now_ns, done);
            }
        }
        let timeout_ns = self.window.timeout_ns();
        while let Some(timer) = self.datagrams.front().copied() {
            let is_current = self.is_current(timer);
            if is_current && timer.at_ns + timeout_ns > now_ns {
                break;
            }
            self.datagrams.pop_front();
            if !is_current {
                continue;
            }
            let heard_ns = self.slots[timer.slot as usize].heard_ns;
            if heard_ns + timeout_ns > now_ns {
                // The rest is on its way.
                self.datagrams.push_back(Timer { at_ns: heard_ns, ..timer });
            } else {
                self.lose(timer.slot, now_ns, done);
            }
        }
        self.expire_streams(now_ns, done);
        self.try_dead(now_ns);
    }

    fn is_current(&self, timer: Timer) -> bool {
        let slot = &self.slots[timer.slot as usize];
        slot.is_used && slot.generation == timer.generation
    }

    /// A request's answer did not come over UDP.
    fn lose(&mut self, number: u32, now_ns: u64, done: &mut impl FnMut(u64, Outcome<'_>)) {
        let slot = &mut self.slots[number as usize];
        let (of, sent_ns) = (slot.server, slot.sent_ns);
        let server = &mut self.servers[of as usize];
        // A server that answers nothing may be dead: only its first loss is the network's.
        if server.losses == 0 {
            self.window.lost(now_ns, sent_ns);
        }
        self.window.counts_as_lost(sent_ns);
        server.losses += 1;
        self.counts.lost += 1;
        if self.heard_ns < sent_ns && self.backed_off_ns <= sent_ns {
            self.window.back_off();
            self.backed_off_ns = now_ns;
        }
        let is_suspicious = server.losses >= self.settings.losses_suspicious;
        // With a hole in it, what is still to come proves nothing.
        if let Some(id) = slot.id.take_if(|_| slot.heard_ns == 0) {
            server.ids.give_up(id, number, sent_ns);
        }
        let slot = &mut self.slots[number as usize];
        if slot.tries < self.settings.retries && server.health == Health::Up {
            slot.tries += 1;
            slot.generation = slot.generation.wrapping_add(1);
            if let Some(id) = slot.id.take() {
                server.ids.give_back(id, number);
            }
            let (cost, parts) = (slot.cost, slot.parts.take());
            (slot.cost, slot.heard_ns) = (0, 0);
            self.window.settle(cost);
            if let Some(parts) = parts {
                self.keep_spare(parts);
            }
            self.counts.retried += 1;
            self.waiting.push_front(number);
        } else {
            self.finish(number, Outcome::Lost, done);
        }
        if is_suspicious {
            self.probe(of, now_ns);
        }
    }

    /// When [`Fleet::expire`] should be called next; nothing if nothing is outstanding.
    pub fn deadline_ns(&self) -> Option<u64> {
        let datagram = self.datagrams.front().map(|t| t.at_ns + self.window.timeout_ns());
        let stream = self.streams.front().map(|t| t.at_ns + self.settings.patience_ns);
        let hole = self.holes.front().map(|t| t.at_ns);
        let dead = self.next_try_ns();
        [datagram, stream, hole, dead].into_iter().flatten().min()
    }
}

/// Whether datagrams brought one whole answer, and that to this request.
fn is_answer(slot: &Slot, bytes: &[u8]) -> bool {
    Scan::default().end(slot.shape, bytes) == Ok(Some(bytes.len()))
        && wire::fit(slot.shape, &slot.bytes, bytes) != Fit::No
}

impl Slot {
    fn empty() -> Slot {
        Slot {
            generation: 0,
            is_used: false,
            server: 0,
            transport: Transport::Tcp,
            shape: Shape::Line,
            keys: 0,
            ticket: NOBODY,
            unless_ended: None,
            cost: 0,
            tries: 0,
            id: None,
            sent_ns: 0,
            heard_ns: 0,
            bytes: Vec::new(),
            parts: None,
        }
    }
}

impl Server {
    fn new() -> Server {
        Server {
            health: Health::Up,
            epoch: 0,
            drains: 0,
            returning: VecDeque::new(),
            losses: 0,
            ids: Ids::default(),
            outbox: Outbox::default(),
            stream: Stream::default(),
            is_listed: false,
        }
    }
}

const _: () = assert!(FRAME_BYTES + BODY_BYTES <= holdfast_env::sockets::DATAGRAM_BYTES_MAX);
