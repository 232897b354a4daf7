//! From received bytes to batches: one receive, then every complete request in it.

use super::{REFUSED_NS, Reactor, lend_buffer};
use crate::budget::Asker;
use crate::net::batch::{Batch, BodyPlace, Meta, Request};
use crate::net::connection::{Incoming, Receiving, Stage};
use crate::net::out::{Address, Out};
use crate::net::parse::{self, Next};
use crate::net::proof::{Who, refusal};
use crate::net::socket::Wait;
use crate::net::tls::{CLIENT_HELLO, NO_TLS_HERE};
use crate::net::{
    BATCH_BYTES, BATCH_REQUESTS_MAX, BodyTarget, OP_PING, OP_RING, OP_YIELD, RECEIVE_BYTES,
    STRANGER_BYTES_MAX, Service, TAIL_BYTES,
};
use crate::planted;
use crate::trial::Knob;
use holdfast_base::Error;
use holdfast_base::frame::Header;
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A cut-off frame up to this size is copied in front of the next receive; a longer one is
/// completed in its own memory, so that a peer that sends byte by byte costs no copies.
pub(super) static STASH_COPY_MAX: Knob = Knob::new("net.stash-copy", 4096, &[1, 33, 40, 100]);
/// What the answer to a request that needs no disk may take: a page of a listing. While memory is
/// short so much is taken before it is asked for, and one request at a time.
const ANSWER_BYTES: u64 = FRAME_META_BYTES_MAX as u64;
/// What a refused peer may still send before it is cut off.
const REFUSED_BYTES: usize = 4 << 20;

/// Why parsing stopped.
enum Stop {
    /// The batch is full: hand it over and go on.
    Full,
    /// Over a limit: what is left waits.
    Paused,
    /// The frame at the front needs so many bytes.
    Need(usize),
    /// The process's budget has not so many bytes for what comes next.
    Starved(u64),
    Bad(Error),
}

/// Why a connection is over behind a batch.
enum Over {
    /// The service ended it, behind the answers.
    Ended(Error),
    /// Its peer is nobody any more: it is answered nothing.
    Revoked(Error),
}

/// What kind of request comes next, and what memory it takes before anything is done for it; or
/// why parsing stops here.
#[inline]
fn memory_of(
    next: &Next,
    (is_strange, is_dropped): (bool, bool),
    short: bool,
) -> std::result::Result<(u16, u64), Stop> {
    Ok(match next {
        // What a stranger brings is refused, and takes no memory.
        Next::Need(need) if is_strange && *need > STRANGER_BYTES_MAX => {
            return Err(Stop::Bad(refusal()));
        }
        Next::Large { header, .. } if is_dropped => (header.opcode, 0),
        Next::Request { header, .. } => (header.opcode, if short { ANSWER_BYTES } else { 0 }),
        Next::Large { header, .. } => (header.opcode, header.body_bytes as u64),
        Next::Need(need) if *need > STASH_COPY_MAX.size() => (0, *need as u64),
        Next::Need(need) => return Err(Stop::Need(*need)),
    })
}

/// A request of which the body goes on beyond what was received: where the rest belongs. What is
/// `refused` is dropped.
fn begin_large(
    service: &dyn Service,
    (who, refused): (Option<&Who>, Option<Error>),
    header: Header,
    meta: &[u8],
    body: &[u8],
) -> Incoming {
    let left = header.body_bytes as usize;
    let place = match (refused, who) {
        (None, Some(who)) => begin(service, who, header, meta).body,
        (error, _) => Receiving::Refused { error: error.unwrap_or_else(refusal), left },
    };
    let mut incoming = Incoming { header, meta: meta.to_vec(), body: place };
    if let Receiving::Buffer(buffer) = &mut incoming.body {
        buffer.reserve_exact(left);
    }
    incoming.take(body);
    incoming
}

impl Reactor {
    /// One receive, and what it completed.
    pub(super) fn readable(&mut self, slot: u32) {
        if self.has_to_wait(slot, None) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = self.receive(slot, &mut buffer);
        self.buffer = buffer;
        match outcome {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock) => {}
            Err(e) => self.broken(slot, &e),
        }
    }

    /// Ends a connection that failed. A ring's peer that broke the rules is told so; after a
    /// reset, a broken pipe and the like the connection just ends.
    pub(super) fn broken(&mut self, slot: u32, e: &io::Error) {
        let Some(connection) = self.connections[slot as usize].as_deref() else { return };
        if connection.link.ring.is_some() && e.kind() == io::ErrorKind::InvalidData {
            self.refuse(slot, &Error::invalid(e.to_string()));
        } else {
            self.close(slot);
        }
    }

    /// The socket beside a ring has something: the end, as a rule.
    pub(super) fn socket_spoke(&mut self, slot: u32) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        match connection.link.socket.receive(&mut [0], Wait::No, &mut Vec::new()) {
            Ok(n) if n > 0 => self
                .refuse(slot, &Error::invalid("the peer left its ring for the socket: reconnect")),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.close(slot),
        }
    }

    fn receive(&mut self, slot: u32, buffer: &mut [u8]) -> io::Result<()> {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
            return Ok(());
        };
        let link = &mut connection.link;
        let fds = &mut Vec::new();
        if let Stage::Refused { drop_bytes, .. } = &mut connection.stage {
            let received = link.receive(buffer, Wait::No, fds)?;
            if received == 0 || received > *drop_bytes {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            *drop_bytes -= received;
            return Ok(());
        }
        if let Some(incoming) = &mut connection.incoming {
            let refused = matches!(incoming.body, Receiving::Refused { .. });
            let tail = if refused { buffer.len() } else { TAIL_BYTES.size() };
            let (received, tail) = incoming.receive(link, &mut buffer[..tail])?;
            if received == 0 {
                return self.ended(slot);
            }
            connection.received += received as u64;
            if incoming.is_complete() {
                let first = connection.incoming.take();
                self.process(slot, &buffer[..tail], first);
            }
            return Ok(());
        }
        let stashed = connection.stash.len();
        if stashed > STASH_COPY_MAX.size() {
            STASH_COPY_MAX.cross();
            let (need, stash) = (connection.stash_need, &mut connection.stash);
            let (received, _) = link.receive_append(stash, need, &mut [], Wait::No, fds)?;
            if received == 0 {
                return self.ended(slot);
            }
            connection.received += received as u64;
            if stash.len() >= need {
                self.resume(slot);
            }
            return Ok(());
        }
        buffer[..stashed].copy_from_slice(&connection.stash);
        // What is received for a connection that then has to wait is kept for it: little of it
        // while many have to.
        let little = connection.large || self.shared.config.budget.is_short();
        let room = if little { TAIL_BYTES.size() } else { RECEIVE_BYTES.size() };
        let end = (stashed + room).min(buffer.len());
        let received = link.receive(&mut buffer[stashed..end], Wait::No, fds)?;
        if received == 0 {
            return self.ended(slot);
        }
        let is_first = connection.received == 0 && !link.is_sealed() && !link.socket.is_unix();
        if is_first && buffer[0] == CLIENT_HELLO {
            // Whoever speaks TLS understands no frame.
            let _ = link.send(&[IoSlice::new(&NO_TLS_HERE)], None, false);
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        connection.received += received as u64;
        if stashed + received == end {
            let full = if little { &TAIL_BYTES } else { &RECEIVE_BYTES };
            full.cross();
        }
        connection.large = false;
        connection.stash = Vec::new();
        connection.passed = fds.pop();
        self.process(slot, &buffer[..stashed + received], None);
        if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
            connection.passed = None;
        }
        Ok(())
    }

    /// The peer sends nothing more, but may still wait for answers.
    fn ended(&mut self, slot: u32) -> io::Result<()> {
        if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
            connection.stage = Stage::Finishing;
            connection.incoming = None;
            connection.stash = Vec::new();
        }
        Ok(())
    }

    /// Parses what the stash holds, after a pause or when it is complete.
    pub(super) fn resume(&mut self, slot: u32) {
        if self.has_to_wait(slot, None) {
            return;
        }
        if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
            let stash = std::mem::take(&mut connection.stash);
            self.process(slot, &stash, None);
        }
    }

    /// Hands every request in `data` to the service, in batches, and keeps the rest.
    fn process(&mut self, slot: u32, data: &[u8], mut first: Option<Incoming>) {
        let mut at = 0;
        loop {
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
            lend_buffer(&mut self.spare, &mut connection.out);
            if !connection.parked.is_empty() {
                self.requests.append(&mut connection.parked);
                match self.hand_over(slot, &[]) {
                    Ok(None) => continue,
                    Ok(Some(wanted)) => return self.keep_rest(slot, &data[at..], wanted),
                    Err(e) => return self.over(slot, e),
                }
            }
            if let Some(incoming) = first.take() {
                push_received(&mut self.requests, &mut connection.out, incoming);
            }
            let stop = self.collect(slot, data, &mut at);
            match self.hand_over(slot, data) {
                Ok(None) => {}
                Ok(Some(wanted)) => return self.keep_rest(slot, &data[at..], wanted),
                Err(e) => return self.over(slot, e),
            }
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
            match stop {
                Stop::Full => {
                    if self.has_to_wait(slot, Some(&data[at..])) {
                        return;
                    }
                }
                Stop::Starved(wanted) => return self.keep_rest(slot, &data[at..], wanted),
                Stop::Need(need) => {
                    let rest = &data[at..];
                    connection.waits_since_ns = None;
                    // Counted as what it will be.
                    let bytes = if need > STASH_COPY_MAX.size() { need } else { rest.len() };
                    connection.stash = Vec::with_capacity(bytes.max(rest.len()));
                    connection.stash.extend_from_slice(rest);
                    connection.stash_need = need;
                    return;
                }
                Stop::Paused => {
                    // Sending may be all that it takes.
                    let failed = connection.out.flush(&mut connection.link).is_err();
                    if !failed && !self.is_over(slot, 0) {
                        match self.has_to_wait(slot, Some(&data[at..])) {
                            true => return,
                            false => continue,
                        }
                    }
                    let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
                        return;
                    };
                    connection.stash = data[at..].to_vec();
                    connection.paused = true;
                    self.shared.counters.pauses.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Stop::Bad(error) => return self.refuse(slot, &error),
            }
        }
    }

    /// Keeps what was received until the budget has `wanted` bytes.
    fn keep_rest(&mut self, slot: u32, rest: &[u8], wanted: u64) {
        if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
            connection.stash = rest.to_vec();
            // Nothing more is known of it; it is parsed again.
            connection.stash_need = 0;
        }
        self.starve(slot, wanted);
    }

    /// Takes memory for what comes next; says so where there is none.
    fn take_memory(&mut self, slot: u32, opcode: u16, bytes: u64) -> bool {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return true };
        let is_node = connection.who.as_ref().is_some_and(Who::is_node);
        let nodes = is_node && self.shared.service.is_for_nodes(opcode);
        connection.asker = if nodes { Asker::Node } else { Asker::Client };
        if planted!("net.body-before-admission") {
            return true;
        }
        let budget = &self.shared.config.budget;
        let admitted = budget.take_more(connection.claimed_bytes(), bytes, connection.asker);
        connection.counted_bytes += if admitted { bytes } else { 0 };
        admitted
    }

    /// Whether the connection, with `more` requests, is over one of its limits.
    fn is_over(&self, slot: u32, more: usize) -> bool {
        let config = &self.shared.config;
        self.connections[slot as usize].as_deref().is_some_and(|connection| {
            connection.load.requests + more >= config.connection_requests_max
                || connection.held_bytes() >= config.connection_bytes_max
        })
    }

    /// Sees who asks, and takes the memory that the request needs, before anything is done for it.
    /// Whether a stranger asks, and why the body of a large request is not kept.
    #[inline]
    fn weigh(
        &mut self,
        slot: u32,
        next: &Next,
        short: bool,
    ) -> std::result::Result<(bool, Option<Error>), Stop> {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
            return Err(Stop::Need(1));
        };
        if connection.who.is_none() {
            let credentials = self.shared.config.credentials.as_deref();
            connection.recognise(credentials).map_err(Stop::Bad)?;
            connection.sit(&*self.shared.service, &*self.shared.clock).map_err(Stop::Bad)?;
        }
        let is_strange = connection.who.is_none() && !planted!("env.strangers-are-served");
        let dropped = match next {
            Next::Large { .. } if is_strange => Some(refusal()),
            Next::Large { .. } if connection.owes.is_some() => {
                connection.was_refused(self.shared.clock.monotonic_ns());
                connection.owes.clone()
            }
            Next::Large { header, .. } => {
                let who = connection.who.as_ref();
                who.and_then(|who| self.shared.service.refuses(who, header.opcode))
            }
            _ => None,
        };
        let (opcode, wanted) = memory_of(next, (is_strange, dropped.is_some()), short)?;
        if wanted > 0 && !self.take_memory(slot, opcode, wanted) {
            return Err(Stop::Starved(wanted));
        }
        Ok((is_strange, dropped))
    }

    /// Collects requests into the batch until one of the reasons of [`Stop`].
    fn collect(&mut self, slot: u32, data: &[u8], at: &mut usize) -> Stop {
        let mut body_bytes: u64 =
            self.requests.iter().map(|request| request.header.body_bytes as u64).sum();
        let short = self.shared.config.budget.is_short();
        loop {
            if *at == data.len() {
                return Stop::Need(1);
            }
            if self.is_over(slot, self.requests.len()) {
                return Stop::Paused;
            }
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
                return Stop::Need(1);
            };
            let batch_requests = if short { 1 } else { connection.batch_requests };
            if is_full(self.requests.len(), batch_requests, body_bytes) {
                return Stop::Full;
            }
            let next = match parse::next(data, *at) {
                Err(error) => return Stop::Bad(error),
                Ok(next) => next,
            };
            let (is_strange, dropped) = match self.weigh(slot, &next, short) {
                Ok(weighed) => weighed,
                Err(stop) => return stop,
            };
            if self.refuse_debtor(slot, &next, at) {
                continue;
            }
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
                return Stop::Need(1);
            };
            let service = &*self.shared.service;
            match next {
                Next::Need(need) => return Stop::Need(need),
                Next::Request { header, meta, body } => {
                    *at = body.end;
                    body_bytes += body.len() as u64;
                    if is_strange && header.opcode != OP_PING {
                        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
                        let by = (service, &*self.shared.clock);
                        if let Err(error) = connection.greet(&header, &data[meta], by) {
                            return Stop::Bad(error);
                        }
                    } else if let OP_PING | OP_YIELD = header.opcode {
                        if header.opcode == OP_YIELD {
                            connection.link.socket.yield_to_others();
                        }
                        let to = Address::of(&header);
                        connection.out.push(to, |m| m.extend_from_slice(&data[meta]), ().into());
                        connection.charge(&*self.shared.clock, 1, 0);
                        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
                    } else if header.opcode == OP_RING {
                        self.enter_ring(slot, &header, *at == data.len());
                    } else if body.is_empty() {
                        let body = BodyPlace::Empty;
                        let meta = Meta::InData(meta);
                        self.requests.push(Request::new(header, meta, body));
                    } else if let Some(who) = &connection.who {
                        let incoming = begin(service, who, header, &data[meta.clone()]);
                        let requests = &mut self.requests;
                        push_whole(requests, &mut connection.out, incoming, data, meta, body);
                    }
                }
                Next::Large { header, meta, body } => {
                    let asker = (connection.who.as_ref(), dropped);
                    let large = begin_large(service, asker, header, &data[meta], &data[body]);
                    connection.incoming = Some(large);
                    connection.large = true;
                    *at = data.len();
                }
            }
        }
    }

    /// Lets the service handle the collected requests. Those whose answers found no memory are
    /// kept; the answer is then what the first of them wants.
    fn hand_over(&mut self, slot: u32, data: &[u8]) -> std::result::Result<Option<u64>, Over> {
        if self.requests.is_empty() {
            return Ok(None);
        }
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else {
            return Ok(None);
        };
        let credentials = self.shared.config.credentials.as_deref();
        if let Err(e) = connection.check_standing(&*self.shared.service, credentials) {
            self.requests.clear();
            return Err(Over::Revoked(e));
        }
        let (count, pending) = (self.requests.len(), connection.out.pending_bytes());
        let nodes = self.shared.service.is_for_nodes(self.requests[0].header.opcode);
        connection.asker = if nodes { Asker::Node } else { Asker::Client };
        connection.out.label = self.shared.service.label();
        let mut batch = Batch {
            connection: connection.id,
            who: connection.who.as_ref().unwrap_or(&Who::Client),
            is_unix: connection.link.passes_fds(),
            remote: connection.link.socket.remote(),
            data,
            requests: &mut self.requests,
            out: &mut connection.out,
            waiting: &mut self.waiting,
            slot,
            load: &mut connection.load,
            mailbox: &self.mailbox,
            clock: &*self.shared.clock,
            now_ns: connection.waits_since_ns,
            budget: Some(&self.shared.config.budget),
            asker: connection.asker,
            counted_bytes: &mut connection.counted_bytes,
            wanted: None,
            ended: None,
        };
        self.shared.service.handle(&mut batch);
        batch.finish();
        let (wanted, ended) = (batch.wanted, batch.ended.take());
        if wanted.is_some() {
            let postponed = self.requests.drain(..).filter(|request| request.postponed);
            connection.parked.extend(postponed.map(|request| request.into_own(data)));
        }
        self.requests.clear();
        let handled = count - connection.parked.len();
        self.shared.counters.requests.fetch_add(handled as u64, Ordering::Relaxed);
        connection.charge(&*self.shared.clock, handled as u64, 0);
        connection.batch_answered(count, connection.out.pending_bytes() - pending);
        ended.map_or(Ok(wanted), |e| Err(Over::Ended(e)))
    }

    fn over(&mut self, slot: u32, over: Over) {
        match over {
            Over::Ended(e) => self.refuse(slot, &e),
            Over::Revoked(e) => self.shut_out(slot, &e),
        }
    }

    /// Moves a connection from its socket to the ring that came along. `last` says that nothing
    /// was received behind the request.
    fn enter_ring(&mut self, slot: u32, header: &Header, last: bool) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        let first = last && self.requests.is_empty();
        let to = Address::of(header);
        let ring = match connection.open_ring(self.shared.config.spin, first) {
            Ok(ring) => ring,
            Err(error) => return connection.out.push_error(to, &error),
        };
        connection.out.push(to, |_| {}, ().into());
        let sent = connection.out.flush(&mut connection.link);
        if sent.is_ok() && connection.out.is_empty() {
            connection.link.ring = Some(ring);
            self.rings.push((slot, connection.id));
        } else {
            // An idle socket takes so small an answer, or its peer is gone.
            connection.stage = Stage::Finishing;
        }
    }

    /// Tells the peer why the connection ends.
    pub(super) fn refuse(&mut self, slot: u32, error: &Error) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        self.shared.counters.bad_frames.fetch_add(1, Ordering::Relaxed);
        if connection.link.ring.is_some() {
            // Answers that fit still go through the ring; the reason takes the socket, because a
            // broken ring cannot carry it.
            let _ = connection.out.flush(&mut connection.link);
            connection.link.ring = None;
            connection.out = Out::default();
        }
        connection.out.push_error(Address::FINAL, error);
        // Nothing of it is handled any more; what still comes is read, and dropped.
        (connection.paused, connection.starved, connection.slowed_until_ns) = (false, None, None);
        connection.parked.clear();
        connection.stash = Vec::new();
        let until_ns = self.shared.clock.monotonic_ns() + REFUSED_NS;
        connection.stage = Stage::Refused { drop_bytes: REFUSED_BYTES, until_ns, told: false };
        self.refused.push((slot, connection.id));
    }
}

/// Whether a batch takes no more.
pub(in crate::net) fn is_full(requests: usize, requests_max: usize, body_bytes: u64) -> bool {
    let (many, much) = (requests >= requests_max, body_bytes > BATCH_BYTES.get());
    if many {
        BATCH_REQUESTS_MAX.cross();
    }
    if much {
        BATCH_BYTES.cross();
    }
    many || much
}

/// Asks the service where a body belongs. Holds no meta: the caller knows where that is.
pub(in crate::net) fn begin(
    service: &dyn Service,
    who: &Who,
    header: Header,
    meta: &[u8],
) -> Incoming {
    let bytes = header.body_bytes as usize;
    let body = match service.body_target(who, &header, meta) {
        BodyTarget::Buffer => Receiving::Buffer(Vec::new()),
        BodyTarget::Region(window) if window.len() == bytes => {
            Receiving::Region { window, filled: 0 }
        }
        BodyTarget::Region(window) => {
            let error = Error::bug(format!(
                "the service gave {} bytes of memory for a body of {bytes}: please report this",
                window.len()
            ));
            Receiving::Refused { error, left: bytes }
        }
        BodyTarget::Refuse(error) => Receiving::Refused { error, left: bytes },
    };
    Incoming { header, meta: Vec::new(), body }
}

/// A request that lies in `data` as a whole. A buffered body stays there.
pub(in crate::net) fn push_whole(
    requests: &mut Vec<Request>,
    out: &mut Out,
    mut incoming: Incoming,
    data: &[u8],
    meta: Range<usize>,
    body: Range<usize>,
) {
    let place = match incoming.body {
        Receiving::Buffer(_) => BodyPlace::InData(body),
        _ => {
            incoming.take(&data[body]);
            return push_placed(requests, out, incoming, Meta::InData(meta));
        }
    };
    let meta = Meta::InData(meta);
    requests.push(Request::new(incoming.header, meta, place));
}

/// A request whose body was received where it belongs.
fn push_received(requests: &mut Vec<Request>, out: &mut Out, mut incoming: Incoming) {
    let meta = Meta::Own(std::mem::take(&mut incoming.meta));
    push_placed(requests, out, incoming, meta);
}

fn push_placed(requests: &mut Vec<Request>, out: &mut Out, incoming: Incoming, meta: Meta) {
    let Incoming { header, body, .. } = incoming;
    let body = match body {
        Receiving::Buffer(bytes) => BodyPlace::Own(bytes),
        Receiving::Region { window, .. } => BodyPlace::Region(window),
        Receiving::Refused { error, .. } => {
            out.push_error(Address::of(&header), &error);
            return;
        }
    };
    requests.push(Request::new(header, meta, body));
}
