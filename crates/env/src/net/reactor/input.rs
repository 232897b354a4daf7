//! From received bytes to batches: one receive, then every complete request in it.

use super::{REFUSED_NS, Reactor, lend_buffer};
use crate::net::batch::{Batch, BodyPlace, Meta, Request};
use crate::net::connection::{Incoming, Receiving, Stage};
use crate::net::out::{Address, Out};
use crate::net::parse::{self, Next};
use crate::net::proof::{Who, refusal};
use crate::net::socket::Wait;
use crate::net::{
    BATCH_BYTES, BodyTarget, ConnectionId, OP_PING, OP_RING, OP_YIELD, RECEIVE_BYTES,
    STRANGER_BYTES_MAX, Service, TAIL_BYTES,
};
use crate::planted;
use holdfast_base::Error;
use holdfast_base::frame::{FrameKind, Header};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A cut-off frame up to this size is copied in front of the next receive; a longer one is
/// completed in its own memory, so that a peer that sends byte by byte costs no copies.
const STASH_COPY_MAX: usize = 4096;
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
    Bad(Error),
}

impl Reactor {
    /// One receive, and what it completed.
    pub(super) fn readable(&mut self, slot: u32) {
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
            let tail = if refused { RECEIVE_BYTES } else { TAIL_BYTES };
            let (received, tail) = incoming.receive(link, &mut buffer[..tail])?;
            if received == 0 {
                return self.ended(slot);
            }
            if incoming.is_complete() {
                let first = connection.incoming.take();
                self.process(slot, &buffer[..tail], first);
            }
            return Ok(());
        }
        let stashed = connection.stash.len();
        if stashed > STASH_COPY_MAX {
            let (need, stash) = (connection.stash_need, &mut connection.stash);
            let (received, _) = link.receive_append(stash, need, &mut [], Wait::No, fds)?;
            if received == 0 {
                return self.ended(slot);
            }
            if stash.len() >= need {
                self.resume(slot);
            }
            return Ok(());
        }
        buffer[..stashed].copy_from_slice(&connection.stash);
        let end = if connection.large { stashed + TAIL_BYTES } else { buffer.len() };
        let received = link.receive(&mut buffer[stashed..end], Wait::No, fds)?;
        if received == 0 {
            return self.ended(slot);
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
            if let Some(incoming) = first.take() {
                push_received(&mut self.requests, &mut connection.out, incoming);
            }
            let stop = self.collect(slot, data, &mut at);
            self.hand_over(slot, data);
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
            match stop {
                Stop::Full => {}
                Stop::Need(need) => {
                    connection.stash = data[at..].to_vec();
                    connection.stash_need = need;
                    return;
                }
                Stop::Paused => {
                    // Sending may be all that it takes.
                    let failed = connection.out.flush(&mut connection.link).is_err();
                    if !failed && !self.is_over(slot, 0) {
                        continue;
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

    /// Whether the connection, with `more` requests, is over one of its limits.
    fn is_over(&self, slot: u32, more: usize) -> bool {
        let config = &self.shared.config;
        self.connections[slot as usize].as_deref().is_some_and(|connection| {
            connection.load.requests + more >= config.connection_requests_max
                || connection.held_bytes() >= config.connection_bytes_max
        })
    }

    /// Collects requests into the batch until one of the reasons of [`Stop`].
    fn collect(&mut self, slot: u32, data: &[u8], at: &mut usize) -> Stop {
        let mut body_bytes: u64 =
            self.requests.iter().map(|request| request.header.body_bytes as u64).sum();
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
            if self.requests.len() >= connection.batch_requests || body_bytes > BATCH_BYTES {
                return Stop::Full;
            }
            let service = &*self.shared.service;
            let id = connection.id;
            let is_strange = connection.who.is_none() && !planted!("env.strangers-are-served");
            match parse::next(data, *at) {
                Err(error) => return Stop::Bad(error),
                Ok(Next::Need(need)) if is_strange && need > STRANGER_BYTES_MAX => {
                    return Stop::Bad(refusal());
                }
                Ok(Next::Need(need)) => return Stop::Need(need),
                Ok(Next::Request { header, meta, body }) => {
                    *at = body.end;
                    body_bytes += body.len() as u64;
                    if is_strange && header.opcode != OP_PING {
                        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
                        if let Err(error) = connection.greet(&header, &data[meta]) {
                            return Stop::Bad(error);
                        }
                    } else if let OP_PING | OP_YIELD = header.opcode {
                        if header.opcode == OP_YIELD {
                            connection.link.socket.yield_to_others();
                        }
                        let to = Address {
                            kind: FrameKind::Response,
                            opcode: header.opcode,
                            request_id: header.request_id,
                        };
                        connection.out.push(to, |m| m.extend_from_slice(&data[meta]), ().into());
                        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
                    } else if header.opcode == OP_RING {
                        self.enter_ring(slot, &header, *at == data.len());
                    } else if body.is_empty() {
                        let body = BodyPlace::Empty;
                        let meta = Meta::InData(meta);
                        self.requests.push(Request { header, meta, body, answered: false });
                    } else {
                        let incoming = begin(service, id, header, &data[meta.clone()]);
                        let requests = &mut self.requests;
                        push_whole(requests, &mut connection.out, incoming, data, meta, body);
                    }
                }
                Ok(Next::Large { header, meta, body }) => {
                    let meta_bytes = &data[meta];
                    let place = match is_strange {
                        true => Receiving::Refused {
                            error: refusal(),
                            left: header.body_bytes as usize,
                        },
                        false => begin(service, id, header, meta_bytes).body,
                    };
                    let meta = meta_bytes.to_vec();
                    let mut incoming = Incoming { header, meta, body: place };
                    if let Receiving::Buffer(buffer) = &mut incoming.body {
                        buffer.reserve_exact(header.body_bytes as usize);
                    }
                    incoming.take(&data[body]);
                    connection.incoming = Some(incoming);
                    connection.large = true;
                    *at = data.len();
                }
            }
        }
    }

    /// Lets the service handle the collected requests.
    fn hand_over(&mut self, slot: u32, data: &[u8]) {
        if self.requests.is_empty() {
            return;
        }
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        let (count, pending) = (self.requests.len(), connection.out.pending_bytes());
        self.shared.counters.requests.fetch_add(count as u64, Ordering::Relaxed);
        connection.out.label = self.shared.service.label();
        let mut batch = Batch {
            connection: connection.id,
            who: connection.who.unwrap_or(Who::Client),
            is_unix: connection.link.passes_fds(),
            data,
            requests: &mut self.requests,
            out: &mut connection.out,
            waiting: &mut self.waiting,
            slot,
            load: &mut connection.load,
            mailbox: &self.mailbox,
            clock: &*self.shared.clock,
            now_ns: None,
        };
        self.shared.service.handle(&mut batch);
        batch.finish();
        self.requests.clear();
        connection.batch_answered(count, connection.out.pending_bytes() - pending);
    }

    /// Moves a connection from its socket to the ring that came along. `last` says that nothing
    /// was received behind the request.
    fn enter_ring(&mut self, slot: u32, header: &Header, last: bool) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        let first = last && self.requests.is_empty();
        let Header { opcode, request_id, .. } = *header;
        let to = Address { kind: FrameKind::Response, opcode, request_id };
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
    fn refuse(&mut self, slot: u32, error: &Error) {
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
        let until_ns = self.shared.clock.monotonic_ns() + REFUSED_NS;
        connection.stage = Stage::Refused { drop_bytes: REFUSED_BYTES, until_ns, told: false };
        self.refused.push((slot, connection.id));
    }
}

/// Asks the service where a body belongs. Holds no meta: the caller knows where that is.
pub(in crate::net) fn begin(
    service: &dyn Service,
    id: ConnectionId,
    header: Header,
    meta: &[u8],
) -> Incoming {
    let bytes = header.body_bytes as usize;
    let body = match service.body_target(id, &header, meta) {
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
    requests.push(Request { header: incoming.header, meta, body: place, answered: false });
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
            let Header { opcode, request_id, .. } = header;
            out.push_error(Address { kind: FrameKind::Response, opcode, request_id }, &error);
            return;
        }
    };
    requests.push(Request { header, meta, body, answered: false });
}
