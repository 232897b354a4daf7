//! What the reactor knows of one connection, and of the requests that wait for an answer.
//! Plain data and arithmetic; the reactor does the calls.

use super::batch::{BodyPlace, Meta, Request};
use super::link::Link;
use super::mailbox::DeferredKey;
use super::out::{Address, Out};
use super::proof::{Guard, OP_HELLO, OP_PROVE, Who, must_be_sealed, refusal};
use super::server::{Counters, ServerConfig};
use super::socket::Wait;
use super::{BATCH_BYTES, BATCH_REQUESTS_MAX, ConnectionId, Credentials, Service};
use crate::budget::{Asker, Budget};
use crate::clients::Seat;
use crate::region::RegionMut;
use crate::ring::Ring;
use crate::trial::Knob;
use crate::{Clock, RealRng, planted};
use holdfast_base::frame::{FrameKind, Header};
use holdfast_base::{Error, Result};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Connection {
    pub link: Link,
    pub id: ConnectionId,
    /// Nobody until the secret is proved.
    pub who: Option<Who>,
    guard: Option<Box<Guard>>,
    /// Of a client with limits: counts the connection, and what it takes.
    pub seat: Option<Seat>,
    /// Whether it may have to wait for its turn.
    pub has_rates: bool,
    /// Without TLS nothing is answered.
    must_be_sealed: bool,
    /// Of the authorities that it began with.
    generation: u64,
    /// What epoll was told to watch.
    pub interest: u32,
    /// Received and not yet parsed; no memory while the peer is idle.
    pub stash: Vec<u8>,
    /// Bytes that the stash needs before it can be parsed.
    pub stash_need: usize,
    /// A body on its way to where it belongs.
    pub incoming: Option<Incoming>,
    pub out: Out,
    pub load: Load,
    pub stage: Stage,
    /// Over a limit: nothing is read or parsed until the load is down to half of it.
    pub paused: bool,
    /// So many bytes are wanted of the process's budget before anything goes on.
    pub starved: Option<u64>,
    /// Its client has taken more than it may: nothing is read or parsed before this time.
    pub slowed_until_ns: Option<u64>,
    /// Its client owes more than anybody may, and what comes is answered with this.
    pub owes: Option<Error>,
    /// The reactor has it in the line of those.
    pub in_line: bool,
    /// It had a turn since it came into that line before.
    pub was_served: bool,
    /// What is in the stash waits for its turn since then: deadlines count from there.
    pub waits_since_ns: Option<u64>,
    /// Requests that the service could not take on, because their answers found no memory. They
    /// come before what is in the stash.
    pub parked: Vec<Request>,
    /// Held bytes that the budget knows of.
    pub counted_bytes: u64,
    /// Other nodes' requests came last.
    pub asker: Asker,
    /// Bytes received so far; those sent and received when it was settled last.
    pub received: u64,
    pub moved: u64,
    pub pace: Pace,
    /// The reactor's turn that moved something for it last.
    pub last_turn: u64,
    /// Came with what was received last; dropped, and thereby closed, unless it is a ring.
    pub passed: Option<OwnedFd>,
    /// A large body came last: the next one is received where it belongs only if little of it is
    /// received together with its head.
    pub large: bool,
    /// Requests of the next batch, at most; follows the size of the answers.
    pub batch_requests: usize,
}

/// What a peer must move within [`SLOW_S`] seconds to keep what it holds while memory is short.
const PACE_BYTES_MIN: u64 = 64 << 10;
/// Seconds after which a peer that does not get on makes way while memory is short: a few round
/// trips of the slowest network, and others wait meanwhile.
pub static SLOW_S: Knob = Knob::new("net.slow-seconds", 5, &[1, 2]);
/// Seconds without a byte after which a peer that has begun to send something is gone.
pub static HALF_SENT_S: Knob = Knob::new("net.half-sent-seconds", 60, &[1, 2]);

/// Requests of a connection's first batch: so many answers of a full meta keep to
/// [`BATCH_BYTES`].
const FIRST_BATCH_REQUESTS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Nothing more is read; ends when every request is answered and every answer sent.
    Finishing,
    /// The last frame was queued; what still arrives is dropped, at most so many bytes, until the
    /// peer has closed or the time is up. Closing at once would reset the connection and could
    /// take the last frame with it.
    Refused {
        drop_bytes: usize,
        until_ns: u64,
        told: bool,
    },
}

/// Requests handed to the service and not yet answered.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub requests: usize,
    pub bytes: u64,
    /// Set when the connection ends: work that has not begun is not worth doing any more.
    pub gone: Arc<AtomicBool>,
}

/// A request whose body is being received.
pub(super) struct Incoming {
    pub header: Header,
    pub meta: Vec<u8>,
    pub body: Receiving,
}

pub(super) enum Receiving {
    Buffer(Vec<u8>),
    Region { window: RegionMut, filled: usize },
    Refused { error: Error, left: usize },
}

impl Connection {
    /// `config` says what has to be proved over TCP, if anything has, and how.
    pub fn new(mut link: Link, id: ConnectionId, config: &ServerConfig) -> Connection {
        let ServerConfig { secret, credentials, .. } = config;
        let who = match (secret, credentials) {
            _ if link.socket.is_unix() => Some(Who::Owner),
            (None, None) => Some(Who::Node),
            _ => None,
        };
        let guard = |secret| Box::new(Guard::new(secret, credentials.is_some()));
        let guard = secret.clone().filter(|_| who.is_none()).map(guard);
        let credentials = credentials.as_ref().filter(|_| who.is_none());
        let must_be_sealed = credentials.is_some()
            && !link.socket.is_local()
            && !planted!("net.plain-from-anywhere");
        let generation = credentials.map_or(0, |credentials| credentials.generation());
        if let Some(credentials) = credentials {
            link.offer_tls(credentials.server().rustls().clone());
        }
        Connection {
            link,
            id,
            who,
            guard,
            seat: None,
            has_rates: false,
            must_be_sealed,
            generation,
            interest: 0,
            stash: Vec::new(),
            stash_need: 0,
            incoming: None,
            out: Out::default(),
            load: Load::default(),
            stage: Stage::Open,
            paused: false,
            starved: None,
            slowed_until_ns: None,
            owes: None,
            in_line: false,
            was_served: false,
            waits_since_ns: None,
            parked: Vec::new(),
            counted_bytes: 0,
            asker: Asker::Client,
            received: 0,
            moved: 0,
            pace: Pace::default(),
            last_turn: 0,
            passed: None,
            large: false,
            batch_requests: FIRST_BATCH_REQUESTS,
        }
    }

    /// Takes whom the connection's certificate names for who is connected, if it has one. An error
    /// ends the connection.
    pub fn recognise(&mut self, credentials: Option<&dyn Credentials>) -> Result<()> {
        if let (Some(credentials), Some(shown)) = (credentials, self.link.certificate()) {
            self.who = Some(Who::Named(Arc::new(credentials.identify(shown)?)));
            self.guard = None;
        }
        Ok(())
    }

    /// Counts the connection of whom it is known by now whose it is. An error ends it.
    pub fn sit(&mut self, service: &dyn Service, clock: &dyn Clock) -> Result<()> {
        if let Some(who @ Who::Named(_)) = &self.who {
            self.seat = service.seat(who, clock.monotonic_ns())?;
            self.has_rates = self.seat.as_ref().is_some_and(|seat| seat.has_rates);
        }
        Ok(())
    }

    /// Takes note of what its client has used.
    pub fn charge(&self, clock: &dyn Clock, requests: u64, bytes: u64) {
        if let Some(seat) = self.seat.as_ref().filter(|_| self.has_rates) {
            seat.take(clock.monotonic_ns(), requests, bytes);
        }
    }

    /// Whether who was let in may still be answered.
    pub fn check_standing(
        &self,
        service: &dyn Service,
        credentials: Option<&dyn Credentials>,
    ) -> Result<()> {
        self.check_generation(credentials)?;
        self.who.as_ref().map_or(Ok(()), |who| service.check_standing(who))
    }

    /// Whether its last word is said already.
    pub fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused { .. })
    }

    /// Whether who is connected may be revoked.
    pub fn is_named(&self) -> bool {
        matches!(self.who, Some(Who::Named(_)))
    }

    /// Whether a certificate that was believed when the connection began has to be shown again.
    fn check_generation(&self, credentials: Option<&dyn Credentials>) -> Result<()> {
        let Some(Who::Named(named)) = &self.who else { return Ok(()) };
        let now = credentials.map_or(0, |credentials| credentials.generation());
        if now == self.generation || planted!("net.old-authority-believed") {
            return Ok(());
        }
        Err(Error::denied(format!(
            "answer `{}`: the authorities that are believed have changed: connect again",
            named.name
        )))
    }

    /// Answers a request of somebody who is not known: the greeting and the proof, and a refusal to
    /// everything else. After an error the connection is of no use.
    pub fn greet(
        &mut self,
        header: &Header,
        meta: &[u8],
        (service, clock): (&dyn Service, &dyn Clock),
    ) -> Result<()> {
        let to = Address::of(header);
        if self.must_be_sealed && !self.link.is_sealed() {
            return Err(must_be_sealed());
        }
        let Some(guard) = &mut self.guard else {
            self.out.push_error(to, &refusal());
            return Ok(());
        };
        match header.opcode {
            OP_HELLO => match guard.hello(&RealRng, meta) {
                Ok(answer) => self.out.push(to, |m| m.extend_from_slice(&answer), ().into()),
                Err(e) => self.out.push_error(to, &e),
            },
            OP_PROVE => {
                let who = guard.prove(meta).inspect_err(|e| self.out.push_error(to, e))?;
                (self.who, self.guard) = (Some(who), None);
                // In place of the answer, behind which a greeting expects nothing.
                self.sit(service, clock).inspect_err(|e| self.out.push_error(to, e))?;
                self.out.push(to, |_| {}, ().into());
            }
            _ => self.out.push_error(to, &refusal()),
        }
        Ok(())
    }

    /// Takes note of a batch whose answers made `bytes`. What a request will be answered with is
    /// not known before, so a batch after small answers may be long, one after large ones not.
    pub fn batch_answered(&mut self, requests: usize, bytes: u64) {
        self.batch_requests = match bytes.checked_div(requests as u64).unwrap_or(0) {
            each if bytes > BATCH_BYTES.get() => ((BATCH_BYTES.get() / each) as usize).max(1),
            _ => (self.batch_requests * 2).min(BATCH_REQUESTS_MAX.size()),
        };
    }

    /// The ring that came with a request for one. `first` says whether that request is the only
    /// one under way: otherwise its answer could not be the socket's last.
    pub fn open_ring(&mut self, spins: bool, first: bool) -> Result<Ring> {
        let doing = "use a shared ring";
        if !self.link.passes_fds() {
            return Err(Error::unsupported(format!(
                "{doing}: connect to `unix:DATA/holdfast.sock`, and ask once"
            )));
        }
        if !spins {
            return Err(Error::unsupported(format!(
                "{doing}: the server sleeps when idle and would not see it: start it with \
                 `holdfast up --spin`, or connect without a ring"
            )));
        }
        if !first || self.load.requests > 0 || !self.out.is_empty() {
            return Err(Error::invalid(format!(
                "{doing}: ask while no other request is under way"
            )));
        }
        let fd = self.passed.take().ok_or_else(|| {
            Error::invalid(format!("{doing}: the request came without a descriptor"))
        })?;
        Ring::open(&fd)
    }

    /// Tells the budget what is held now. Costs nothing where nothing is, before and after.
    pub fn count_held(&mut self, budget: &Budget, counters: &Counters) {
        let held = self.held_bytes();
        if held != self.counted_bytes {
            budget.change(self.counted_bytes, held);
            counters.held_bytes_peak.fetch_max(held, Ordering::Relaxed);
            self.counted_bytes = held;
        }
    }

    /// Everything that this process keeps for the peer: requests that wait and the answers that
    /// they will have, answers not yet taken, and what has half arrived.
    pub fn held_bytes(&self) -> u64 {
        let incoming = self.incoming.as_ref().map_or(0, Incoming::held_bytes);
        let parked: usize = self.parked.iter().map(Request::held_bytes).sum();
        let arrived = self.stash.capacity() + parked;
        let way = self.link.held_bytes();
        self.load.bytes + self.out.pending_bytes() + incoming + (arrived + way) as u64
    }

    /// What counts against the connection's share: what it asked for. Not what has arrived of a
    /// request that waits for memory, which would then be in its own way.
    pub fn claimed_bytes(&self) -> u64 {
        let incoming = self.incoming.as_ref().map_or(0, Incoming::held_bytes);
        self.load.bytes + self.out.pending_bytes() + incoming
    }

    /// Whether the peer owes the rest of something that it has begun to send.
    pub fn is_half_sent(&self) -> bool {
        !self.paused
            && (self.incoming.is_some() || !self.stash.is_empty() || self.link.is_half_sent())
    }

    /// Whether the peer, and nobody else, keeps this connection from getting on.
    pub fn waits_for_peer(&self) -> bool {
        self.stage == Stage::Open && (!self.out.is_empty() || self.is_half_sent())
    }

    /// What it is worth to others that this connection goes on: those with requests under way
    /// last, then those that moved something lately.
    pub fn worth(&self) -> (bool, u64) {
        (self.load.requests > 0, self.last_turn)
    }

    /// Whether anything is left to do for this peer.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Finishing
            && self.load.requests == 0
            && self.out.is_empty()
            && !self.paused
    }
}

/// Looked at once a second: how long a connection that waits for its peer has not got on.
#[derive(Debug, Default)]
pub(super) struct Pace {
    moved: u64,
    /// Seconds without a single byte.
    pub still_s: u64,
    mark: u64,
    /// Seconds with less than [`PACE_BYTES_MIN`] in all.
    pub slow_s: u64,
}

impl Pace {
    /// Of a connection that does not wait for its peer.
    pub fn at(moved: u64) -> Pace {
        Pace { moved, mark: moved, ..Pace::default() }
    }

    /// Another second has passed, and so many bytes were moved since the connection began.
    pub fn second(&mut self, moved: u64) {
        self.still_s = if moved == self.moved { self.still_s + 1 } else { 0 };
        self.moved = moved;
        if moved - self.mark >= PACE_BYTES_MIN {
            (self.mark, self.slow_s) = (moved, 0);
        } else {
            self.slow_s += 1;
        }
    }
}

impl Incoming {
    /// Memory that it takes, or will have taken: a body in the region has its own.
    pub fn held_bytes(&self) -> u64 {
        let body = match &self.body {
            Receiving::Buffer(_) => self.header.body_bytes as u64,
            Receiving::Region { .. } | Receiving::Refused { .. } => 0,
        };
        body + self.meta.len() as u64
    }

    pub fn is_complete(&self) -> bool {
        match &self.body {
            Receiving::Buffer(bytes) => bytes.len() == self.header.body_bytes as usize,
            Receiving::Region { window, filled } => *filled == window.len(),
            Receiving::Refused { left, .. } => *left == 0,
        }
    }

    /// Takes bytes of the body that were already received.
    pub fn take(&mut self, bytes: &[u8]) {
        match &mut self.body {
            Receiving::Buffer(body) => body.extend_from_slice(bytes),
            Receiving::Region { window, filled } => {
                window[*filled..*filled + bytes.len()].copy_from_slice(bytes);
                *filled += bytes.len();
            }
            Receiving::Refused { left, .. } => *left -= bytes.len(),
        }
    }

    /// Receives more of the body, and what follows it into `tail`; says how many bytes came in
    /// all, and how many of them into `tail`.
    pub fn receive(&mut self, link: &mut Link, tail: &mut [u8]) -> io::Result<(usize, usize)> {
        // Descriptors are not expected from clients here; dropping closes them.
        let fds = &mut Vec::new();
        match &mut self.body {
            Receiving::Buffer(body) => {
                let end = self.header.body_bytes as usize;
                let (body, more) = link.receive_append(body, end, tail, Wait::No, fds)?;
                Ok((body + more, more))
            }
            Receiving::Region { window, filled } => {
                let received = link.receive_two(&mut window[*filled..], tail, Wait::No, fds)?;
                let body = received.min(window.len() - *filled);
                *filled += body;
                Ok((received, received - body))
            }
            Receiving::Refused { left, .. } => {
                let end = tail.len().min(*left);
                let received = link.receive(&mut tail[..end], Wait::No, fds)?;
                *left -= received;
                Ok((received, 0))
            }
        }
    }
}

impl WaitingRequest {
    /// The request, with this meta, to be handed over once more at `now_ns`.
    pub fn again(&self, meta: Vec<u8>, now_ns: u64) -> Request {
        let left_ms = |deadline_ns: u64| deadline_ns.saturating_sub(now_ns) / 1_000_000;
        let header = Header {
            kind: FrameKind::Request,
            opcode: self.to.opcode,
            request_id: self.to.request_id,
            // 0 would be none at all.
            deadline_or_status: self.deadline_ns.map_or(0, |at| (left_ms(at) as u32).max(1)),
            meta_bytes: meta.len() as u32,
            body_bytes: 0,
        };
        Request::new(header, Meta::Own(meta), BodyPlace::Empty)
    }
}

/// The deferred requests of one reactor.
#[derive(Default)]
pub(super) struct Waiting {
    places: Vec<Place>,
    free: Vec<u32>,
    /// No deadline is earlier; may itself be too early.
    pub next_deadline_ns: Option<u64>,
}

struct Place {
    generation: u32,
    request: Option<WaitingRequest>,
}

#[derive(Clone, Copy)]
pub(super) struct WaitingRequest {
    pub slot: u32,
    pub connection: ConnectionId,
    pub to: Address,
    pub bytes: u64,
    deadline_ns: Option<u64>,
    /// Its deadline passed and the client was told; the place stays taken until the service lets
    /// go of the [`super::Reply`].
    pub expired: bool,
}

impl Waiting {
    pub fn insert(
        &mut self,
        slot: u32,
        connection: ConnectionId,
        to: Address,
        bytes: u64,
        deadline_ns: Option<u64>,
    ) -> DeferredKey {
        if let Some(deadline) = deadline_ns {
            self.next_deadline_ns =
                Some(self.next_deadline_ns.map_or(deadline, |next| next.min(deadline)));
        }
        let request = WaitingRequest { slot, connection, to, bytes, deadline_ns, expired: false };
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, request: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.request = Some(request);
        DeferredKey { index, generation: place.generation }
    }

    pub fn get(&self, key: DeferredKey) -> Option<WaitingRequest> {
        let place = self.places.get(key.index as usize)?;
        place.request.filter(|_| place.generation == key.generation)
    }

    pub fn remove(&mut self, key: DeferredKey) -> Option<WaitingRequest> {
        let request = self.get(key)?;
        let place = &mut self.places[key.index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.request = None;
        self.free.push(key.index);
        Some(request)
    }

    /// Marks what is due, and hands each to `due`.
    pub fn expire(&mut self, now_ns: u64, mut due: impl FnMut(WaitingRequest)) {
        if self.next_deadline_ns.is_none_or(|next| next > now_ns) {
            return;
        }
        self.next_deadline_ns = None;
        for request in self.places.iter_mut().filter_map(|place| place.request.as_mut()) {
            match request.deadline_ns {
                Some(deadline) if !request.expired && deadline <= now_ns => {
                    request.expired = true;
                    due(*request);
                }
                Some(deadline) if !request.expired => {
                    let next = self.next_deadline_ns.unwrap_or(u64::MAX);
                    self.next_deadline_ns = Some(next.min(deadline));
                }
                _ => {}
            }
        }
    }
}

/// The answer to a request whose service took too long.
pub(super) fn deadline_passed() -> Error {
    Error::retry(
        "the deadline passed before the answer was there: what was asked may or may not have been \
         done, ask again",
    )
}

/// Puts a response of the service into the connection's send queue.
pub(super) fn answer(out: &mut Out, to: Address, response: super::Response) {
    match response.result {
        Ok(()) => out.push(to, |m| m.extend_from_slice(&response.meta), response.body),
        Err(error) => out.push_error(to, &error),
    }
}
