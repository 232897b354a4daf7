//! The requests that one read of a connection completed, as the service sees them.

use super::ConnectionId;
use super::connection::Waiting;
use super::mailbox::{Mailbox, Reply};
use super::message::{Body, Parts};
use super::out::{Address, Out};
use super::proof::Who;
use crate::Clock;
use crate::budget::{Asker, Budget};
use crate::planted;
use crate::region::RegionMut;
use holdfast_base::frame::{FrameKind, Header};
use holdfast_base::{Error, Result};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// One request; ranges are places in the batch's data.
pub(super) struct Request {
    pub header: Header,
    pub meta: Meta,
    pub body: BodyPlace,
    pub answered: bool,
    /// Its answer found no memory: it is handed over again later.
    pub postponed: bool,
}

pub(super) enum Meta {
    InData(Range<usize>),
    Own(Vec<u8>),
}

pub(super) enum BodyPlace {
    Empty,
    InData(Range<usize>),
    Own(Vec<u8>),
    Region(RegionMut),
}

impl Request {
    pub fn new(header: Header, meta: Meta, body: BodyPlace) -> Request {
        Request { header, meta, body, answered: false, postponed: false }
    }

    /// Memory of its own.
    pub fn held_bytes(&self) -> usize {
        let meta = if let Meta::Own(meta) = &self.meta { meta.len() } else { 0 };
        let body = if let BodyPlace::Own(body) = &self.body { body.len() } else { 0 };
        size_of::<Request>() + meta + body
    }

    /// The same request, without the batch's data.
    pub fn into_own(self, data: &[u8]) -> Request {
        let meta = match self.meta {
            Meta::InData(range) => Meta::Own(data[range].to_vec()),
            own => own,
        };
        let body = match self.body {
            BodyPlace::InData(range) => BodyPlace::Own(data[range].to_vec()),
            own => own,
        };
        Request::new(self.header, meta, body)
    }

    pub fn address(&self) -> Address {
        let Header { opcode, request_id, .. } = self.header;
        Address { kind: FrameKind::Response, opcode, request_id }
    }
}

/// Requests `0..len()`; each wants exactly one of the `reply` calls or [`Batch::defer`].
/// Answering one twice panics: it is a bug of the service.
pub struct Batch<'a> {
    pub(super) connection: ConnectionId,
    pub(super) who: &'a Who,
    pub(super) is_unix: bool,
    /// Of who connected over TCP.
    pub(super) remote: Option<SocketAddr>,
    pub(super) data: &'a [u8],
    pub(super) requests: &'a mut [Request],
    pub(super) out: &'a mut Out,
    pub(super) waiting: &'a mut Waiting,
    pub(super) slot: u32,
    pub(super) load: &'a mut super::connection::Load,
    pub(super) mailbox: &'a Arc<Mailbox>,
    pub(super) clock: &'a dyn Clock,
    /// Read at most once a batch, and only if a request has a deadline.
    pub(super) now_ns: Option<u64>,
    /// What admits the answers of deferred requests; nothing in simulations.
    pub(super) budget: Option<&'a Budget>,
    pub(super) asker: Asker,
    /// What the budget knows of this connection.
    pub(super) counted_bytes: &'a mut u64,
    /// What a postponed request wants of the budget; the first one's.
    pub(super) wanted: Option<u64>,
    /// Why the connection ends behind this batch.
    pub(super) ended: Option<Error>,
}

impl<'a> Batch<'a> {
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Ends the connection once the batch is answered: whoever is there was taken for somebody else.
    pub fn end(&mut self, why: Error) {
        self.ended = Some(why);
    }

    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Who asks.
    pub fn who(&self) -> &'a Who {
        self.who
    }

    /// Whether descriptors can be passed: the peer is on this host and of this user.
    pub fn is_unix(&self) -> bool {
        self.is_unix
    }

    /// Where the connection comes from: an address, or `unix`.
    pub fn origin(&self) -> String {
        self.remote.map_or_else(|| "unix".to_owned(), |remote| remote.to_string())
    }

    pub fn header(&self, i: usize) -> &Header {
        &self.requests[i].header
    }

    pub fn meta(&self, i: usize) -> &[u8] {
        match &self.requests[i].meta {
            Meta::InData(range) => &self.data[range.clone()],
            Meta::Own(meta) => meta,
        }
    }

    /// The body; empty when it was taken before.
    pub fn take_body(&mut self, i: usize) -> Body<'a> {
        match std::mem::replace(&mut self.requests[i].body, BodyPlace::Empty) {
            BodyPlace::Empty => Body::Empty,
            BodyPlace::InData(range) => Body::Borrowed(&self.data[range]),
            BodyPlace::Own(bytes) => Body::Owned(bytes),
            BodyPlace::Region(window) => Body::Region(window),
        }
    }

    /// When the client stops waiting, on the server's clock.
    pub fn deadline_ns(&mut self, i: usize) -> Option<u64> {
        let deadline_ms = self.requests[i].header.deadline_or_status as u64;
        if deadline_ms == 0 {
            return None;
        }
        let now_ns = *self.now_ns.get_or_insert_with(|| self.clock.monotonic_ns());
        Some(now_ns + deadline_ms * 1_000_000)
    }

    /// Answers; `meta` appends to the connection's send buffer.
    pub fn reply(&mut self, i: usize, meta: impl FnOnce(&mut Vec<u8>), body: impl Into<Parts>) {
        let to = self.answer(i);
        self.out.push(to, meta, body.into());
    }

    pub fn reply_error(&mut self, i: usize, error: &Error) {
        let to = self.answer(i);
        self.out.push_error(to, error);
    }

    /// Answers and passes `fd`; refused, and not answered, on a connection that cannot pass it.
    pub fn reply_with_fd(
        &mut self,
        i: usize,
        meta: impl FnOnce(&mut Vec<u8>),
        fd: OwnedFd,
    ) -> Result<()> {
        if !self.is_unix {
            return Err(Error::unsupported(
                "memory is shared over the Unix socket only: connect to `unix:DATA/holdfast.sock`",
            ));
        }
        let to = self.answer(i);
        self.out.attach(fd);
        self.out.push(to, meta, Parts::None);
        Ok(())
    }

    /// Leaves the request to be answered from any thread, with a few bytes.
    pub fn defer(&mut self, i: usize) -> Reply {
        self.defer_admitted(i, 0)
    }

    /// As [`Batch::defer`], for an answer of up to so many bytes. They are taken from the
    /// connection's share and from the process's budget before any work is done; `None` while
    /// they are not to be had: the request then comes again in a later batch, and the caller does
    /// nothing about it now.
    pub fn defer_expecting(&mut self, i: usize, answer_bytes: u64) -> Option<Reply> {
        // Behind one that waits, everything waits: whoever asks for much gets on, too.
        let admitted = self.wanted.is_none() && self.admit(answer_bytes);
        if !admitted && !planted!("net.work-before-admission") {
            self.wanted.get_or_insert(answer_bytes);
            self.requests[i].postponed = true;
            return None;
        }
        Some(self.defer_admitted(i, answer_bytes))
    }

    fn admit(&mut self, bytes: u64) -> bool {
        let Some(budget) = self.budget.filter(|_| bytes > 0) else { return true };
        let claimed = self.load.bytes + self.out.pending_bytes();
        let admitted = budget.take_more(claimed, bytes, self.asker);
        *self.counted_bytes += if admitted { bytes } else { 0 };
        admitted
    }

    fn defer_admitted(&mut self, i: usize, answer_bytes: u64) -> Reply {
        let deadline_ns = self.deadline_ns(i);
        let to = self.answer(i);
        let header = &self.requests[i].header;
        let bytes = header.meta_bytes as u64 + header.body_bytes as u64 + answer_bytes;
        self.load.requests += 1;
        self.load.bytes += bytes;
        let key = self.waiting.insert(self.slot, self.connection, to, bytes, deadline_ns);
        let gone = self.load.gone.clone();
        let mailbox = self.mailbox.clone();
        Reply { mailbox, key, deadline_ns, answered: false, gone, witness: None }
    }

    fn answer(&mut self, i: usize) -> Address {
        let request = &mut self.requests[i];
        assert!(!request.answered, "request {} was answered twice", request.header.request_id);
        request.answered = true;
        request.address()
    }

    /// Nothing hangs because a service forgot it.
    pub(super) fn finish(&mut self) {
        for i in 0..self.requests.len() {
            if !self.requests[i].answered && !self.requests[i].postponed {
                let opcode = self.requests[i].header.opcode;
                self.reply_error(
                    i,
                    &Error::bug(format!("the service did not answer opcode {opcode:#06x}")),
                );
            }
        }
    }
}
