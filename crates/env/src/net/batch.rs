//! The requests that one read of a connection completed, as the service sees them.

use super::ConnectionId;
use super::connection::Waiting;
use super::mailbox::{Mailbox, Reply};
use super::message::{Body, Parts};
use super::out::{Address, Out};
use super::proof::Who;
use crate::Clock;
use crate::region::RegionMut;
use holdfast_base::frame::{FrameKind, Header};
use holdfast_base::{Error, Result};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// One request; ranges are places in the batch's data.
pub(super) struct Request {
    pub header: Header,
    pub meta: Meta,
    pub body: BodyPlace,
    pub answered: bool,
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
    pub fn address(&self) -> Address {
        let Header { opcode, request_id, .. } = self.header;
        Address { kind: FrameKind::Response, opcode, request_id }
    }
}

/// Requests `0..len()`; each wants exactly one of the `reply` calls or [`Batch::defer`].
/// Answering one twice panics: it is a bug of the service.
pub struct Batch<'a> {
    pub(super) connection: ConnectionId,
    pub(super) who: Who,
    pub(super) is_unix: bool,
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
}

impl<'a> Batch<'a> {
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Who asks.
    pub fn who(&self) -> Who {
        self.who
    }

    /// Whether descriptors can be passed: the peer is on this host and of this user.
    pub fn is_unix(&self) -> bool {
        self.is_unix
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

    /// Leaves the request to be answered from any thread.
    pub fn defer(&mut self, i: usize) -> Reply {
        self.defer_expecting(i, 0)
    }

    /// As [`Batch::defer`], for an answer of about so many bytes: they count against the
    /// connection's limit from now on, so that answers cannot pile up unseen.
    pub fn defer_expecting(&mut self, i: usize, answer_bytes: u64) -> Reply {
        let deadline_ns = self.deadline_ns(i);
        let to = self.answer(i);
        let header = &self.requests[i].header;
        let bytes = header.meta_bytes as u64 + header.body_bytes as u64 + answer_bytes;
        self.load.requests += 1;
        self.load.bytes += bytes;
        let key = self.waiting.insert(self.slot, self.connection, to, bytes, deadline_ns);
        Reply { mailbox: self.mailbox.clone(), key, deadline_ns, answered: false }
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
            if !self.requests[i].answered {
                let opcode = self.requests[i].header.opcode;
                self.reply_error(
                    i,
                    &Error::bug(format!("the service did not answer opcode {opcode:#06x}")),
                );
            }
        }
    }
}
