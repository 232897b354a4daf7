//! The client's requests: submitted, waited for, and brought through broken connections and ended
//! sessions. A request that changes something keeps its number, so a repetition gets the first
//! answer; under a new number it goes only when the first one was certainly not carried out.

use super::{Client, PUT_ATTEMPTS_MAX, decode};
use crate::connection::{ClientOptions, RECONNECT_PAUSE_MAX, RECOVER_MAX, RequestId, Response};
use crate::patience::{Patience, is_for_now};
use crate::region::Mapping;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::SessionId;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::tasks::Stop;
use holdfast_env::{Clock, RealClock};
use holdfast_wire::chunk::Piece;
use holdfast_wire::{self as wire, Call};
use std::time::Duration;

/// An answer to wait for; see [`Client::wait`].
#[must_use = "a request that nobody waits for keeps its answer in memory"]
#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
pub struct Ticket {
    pub(crate) request: RequestId,
}

/// Nobody asks this one to stop: it only sleeps.
pub(crate) fn rest(pause: Duration) {
    Stop::new().sleep_until_stop(pause);
}

/// Sleeps before the next attempt; false once the options allow no more.
pub(crate) fn waits(patience: &mut Patience, options: &ClientOptions) -> bool {
    patience.next(options).map(rest).is_some()
}

impl Client {
    /// Sends what was submitted and waits for one answer. When the connection breaks, it is made
    /// anew and the request sent again.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Response> {
        self.bring(ticket, None);
        let response = self.connection.wait(ticket.request);
        self.answered(ticket);
        response
    }

    /// As [`Client::wait`], with the body received into `target`; the answer says its length.
    pub(crate) fn wait_into(&mut self, ticket: Ticket, target: &mut [u8]) -> Result<Response> {
        self.bring(ticket, Some(target));
        let response = self.connection.wait_into(ticket.request, target);
        self.answered(ticket);
        response
    }

    /// Waits until there is an answer to any of the outstanding requests, and says to which: the
    /// one that came first. Waiting for that one then takes no time. None when nothing is
    /// outstanding.
    pub fn wait_any(&mut self) -> Option<Ticket> {
        self.wait_any_of(|_| true)
    }

    /// As [`Client::wait_any`], of those that `wanted` picks.
    pub(crate) fn wait_any_of(&mut self, wanted: impl Fn(Ticket) -> bool) -> Option<Ticket> {
        loop {
            let request = self.connection.ready_any(|request| wanted(Ticket { request }))?;
            if !self.connection.is_resendable(request) || self.gave_up || self.recover().is_err() {
                return Some(Ticket { request });
            }
        }
    }

    /// Gives up waiting: the answer is dropped when it comes.
    pub fn forget(&mut self, ticket: Ticket) {
        self.connection.forget(ticket.request);
        self.answered(ticket);
    }

    /// Sends what was submitted, without waiting. That it cannot be sent is found by whoever waits
    /// for an answer, and put right there.
    pub fn push(&mut self) {
        let _ = self.connection.flush();
    }

    /// Requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.connection.outstanding()
    }

    /// Waits for an answer, through broken connections and an ended session.
    fn bring(&mut self, ticket: Ticket, mut target: Option<&mut [u8]>) {
        let (mut patience, mut written) = (Patience::default(), 1);
        loop {
            self.connection.ready(ticket.request, target.as_deref_mut());
            let lost = self.connection.is_resendable(ticket.request);
            let again = if lost {
                !self.gave_up && self.recover().is_ok()
            } else {
                self.is_of_ended_session(ticket) && self.renumber(ticket)
                    || self.wants_bytes_again(ticket)
                        && written < PUT_ATTEMPTS_MAX
                        && self.write_again(ticket, &mut written)
                    || self.is_refused_for_now(ticket)
                        && waits(&mut patience, &self.options)
                        && self.connection.submit_again(ticket.request, |_| {})
            };
            if !again {
                return;
            }
        }
    }

    /// Connects anew, a bounded number of times and for a bounded time; what was kept is sent again.
    fn recover(&mut self) -> Result<()> {
        let began = RealClock::new();
        let mut pause = self.options.reconnect_pause;
        let why = self.connection.failure().map_or_else(String::new, |e| format!(" ({e})"));
        let mut last = Error::retry(format!(
            "ask `{}`: the connection was lost{why}, and this client makes no other one by itself: ask again",
            self.connection.endpoint()
        ));
        for attempt in 0..self.options.reconnects_max {
            if attempt > 0 {
                if began.monotonic_ns() > RECOVER_MAX.as_nanos() as u64 {
                    break;
                }
                rest(pause);
                pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
            }
            match self.connection.reconnect() {
                Ok(()) => {
                    self.gave_up = false;
                    if self.mapping.take().is_some() {
                        // A node that came back without a region is read over the socket.
                        self.mapping = Mapping::request(&mut self.connection).ok();
                        self.mappings += 1;
                    }
                    return Ok(());
                }
                Err(e) if e.kind == Kind::Retry => last = e,
                Err(e) => {
                    last = e;
                    break;
                }
            }
        }
        self.gave_up = true;
        Err(last)
    }

    /// The node ended the session, and this request came after that: it was sent once only, so it
    /// was certainly not carried out.
    fn is_of_ended_session(&self, ticket: Ticket) -> bool {
        self.session.may_renew(ticket.request)
            && self
                .connection
                .error(ticket.request)
                .is_some_and(|(e, in_doubt)| e.kind == Kind::Fenced && !in_doubt)
    }

    /// A numbered request that its node could not carry out now, over a connection that works.
    fn is_refused_for_now(&self, ticket: Ticket) -> bool {
        self.session.is_numbered(ticket.request)
            && self.connection.failure().is_none()
            && self.connection.error(ticket.request).is_some_and(|(e, _)| is_for_now(e))
    }

    /// A seal cut off what the node had stored of it: that is its number's answer for good.
    fn wants_bytes_again(&self, ticket: Ticket) -> bool {
        self.session.is_numbered(ticket.request)
            && self.connection.failure().is_none()
            && self.connection.error(ticket.request).is_some_and(|(e, _)| e.is(Reason::WriteAgain))
    }

    /// Sends the bytes again, as a new request.
    fn write_again(&mut self, ticket: Ticket, written: &mut u32) -> bool {
        *written += 1;
        self.session.refused(ticket.request);
        self.resubmit(ticket)
    }

    /// Sends a refused request again with the next number of the current session; opens a new one
    /// if it was refused under the current one.
    fn renumber(&mut self, ticket: Ticket) -> bool {
        self.session.ended(ticket.request);
        self.resubmit(ticket)
    }

    fn resubmit(&mut self, ticket: Ticket) -> bool {
        let Ok(call) = self.next_call() else { return false };
        self.session.renewed(ticket.request, &call);
        self.connection.submit_again(ticket.request, |meta| {
            let call = call.to_bytes();
            meta[..call.len()].copy_from_slice(&call);
        })
    }

    fn answered(&mut self, ticket: Ticket) {
        self.session.answered(ticket.request);
    }

    /// Submits a request that changes nothing, or that may be repeated as it is.
    pub(crate) fn submit(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        self.submit_by(opcode, self.options.deadline_ms, message, body)
    }

    /// As [`Client::submit`], with a deadline of its own.
    pub(crate) fn submit_by(
        &mut self,
        opcode: u16,
        deadline_ms: u32,
        message: &impl Encode,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        self.submit_written(opcode, deadline_ms, |out| message.encode(out), body)
    }

    /// As [`Client::submit_by`], of a message that `meta` writes.
    pub(crate) fn submit_written(
        &mut self,
        opcode: u16,
        deadline_ms: u32,
        meta: impl FnOnce(&mut Vec<u8>),
        body: &[&[u8]],
    ) -> Result<Ticket> {
        self.connected()?;
        let request = self.connection.submit_kept(opcode, deadline_ms, meta, body)?;
        Ok(Ticket { request })
    }

    /// For how long one request may ask its node to wait: a node that waits has to answer before its silence
    /// counts as that of one that is gone.
    pub(crate) fn wait_max(&self, most: Duration) -> Duration {
        self.options.read_timeout.map_or(most, |silence| most.min(silence / 2))
    }

    /// Submits a request that must not be sent twice: its sender keeps what it needs.
    pub(crate) fn submit_once(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        self.connected()?;
        let request = self.connection.submit(opcode, |out| message.encode(out), body)?;
        Ok(Ticket { request })
    }

    /// A connection that broke while nobody looked is made anew before it is used.
    pub(crate) fn connected(&mut self) -> Result<()> {
        match self.connection.failure() {
            Some(_) => self.recover(),
            None => Ok(()),
        }
    }

    /// Asks something that changes nothing, again while its node refuses it for now, as of a directory on its
    /// way from shard to shard, for as long as the options are patient.
    pub(crate) fn patiently<T>(&mut self, ask: impl Fn(&mut Client) -> Result<T>) -> Result<T> {
        let mut patience = Patience::default();
        loop {
            match ask(self) {
                Err(e)
                    if e.kind == Kind::Retry
                        && self.connection.failure().is_none()
                        && waits(&mut patience, &self.options) => {}
                answer => return answer,
            }
        }
    }

    pub(crate) fn ask<T: Decode>(&mut self, opcode: u16, message: &impl Encode) -> Result<T> {
        let ticket = self.submit(opcode, message, &[])?;
        decode(&self.wait(ticket)?)
    }

    /// Submits a numbered request. The [`Call`] is the first field of every such message.
    pub(crate) fn change<M: Encode>(
        &mut self,
        opcode: u16,
        message: impl FnOnce(Call) -> M,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        let call = self.next_call()?;
        let ticket = self.submit(opcode, &message(call), body);
        self.session.submitted(ticket.as_ref().ok().map(|ticket| ticket.request), &call);
        ticket
    }

    /// The next number of the session, which is opened if there is none.
    fn next_call(&mut self) -> Result<Call> {
        if let Some(call) = self.session.next() {
            return Ok(call);
        }
        let mut patience = Patience::default();
        let session: SessionId = loop {
            match self.ask(wire::OP_OPEN_SESSION, &()) {
                Err(e) if e.kind == Kind::Retry && waits(&mut patience, &self.options) => {}
                other => break other?,
            }
        };
        self.session.opened(session);
        self.session.next().ok_or_else(|| Error::bug("number a request: there is no session"))
    }

    /// Copies bytes out of the mapped region.
    pub(crate) fn copy_mapped(&self, pieces: &[Piece], out: &mut [u8], path: &str) -> Result<()> {
        let Some(mapping) = &self.mapping else {
            return Err(Error::retry(format!(
                "get `{path}`: the node answered with a place in memory that is no longer mapped; try again"
            )));
        };
        if mapping.copy(pieces, out)? {
            return Ok(());
        }
        // The frame was reused under the copy: the name now stands for something else.
        Err(Error::retry(format!("get `{path}`: it was replaced while it was read, try again")))
    }
}
