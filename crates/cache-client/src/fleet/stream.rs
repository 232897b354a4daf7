//! The connection to one server: requests in order, answers in the same order.

use super::{Fleet, Outcome, TIMED_DATAGRAMS_MAX, Timer};
use crate::wire::{self, Broken, Fit, Scan};
use holdfast_env::planted;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    /// The driver has been, or will be, asked to connect.
    Connecting,
    Open,
}

/// How a driver ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    Now,
    /// Sends nothing more and drops what comes, until the server has closed it: then it has carried
    /// out what had been sent. The driver then says [`Fleet::drained`].
    Drain,
}

#[derive(Default)]
pub struct Stream {
    state: State,
    wants_connection: bool,
    wants_close: bool,
    /// Rather than closed: it was given up with requests in it.
    wants_drain: bool,
    out: Vec<u8>,
    sent: usize,
    awaiting: VecDeque<u32>,
    /// The beginning of an answer.
    inbox: Vec<u8>,
    scan: Scan,
    heard_ns: u64,
    /// Connections, or attempts at one, that are no more.
    ended: u64,
}

impl Stream {
    /// Whether an answer will show if the server lives.
    pub fn is_awaited(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// Forgets everything; what was asked, and whether the server may have heard it.
    pub fn give_up(&mut self) -> (VecDeque<u32>, bool) {
        let had = std::mem::take(self);
        self.wants_close = had.wants_close || had.state != State::Closed;
        self.wants_drain = had.wants_drain;
        self.ended = had.ended + u64::from(had.state != State::Closed);
        (had.awaiting, had.state == State::Open)
    }

    pub fn drain(&mut self) {
        self.wants_drain = true;
    }

    pub fn ended(&self) -> u64 {
        self.ended
    }
}

impl Fleet {
    pub(super) fn send_stream(&mut self, number: u32) {
        let slot = &self.slots[number as usize];
        let stream = &mut self.servers[slot.server as usize].stream;
        if stream.state == State::Closed {
            (stream.state, stream.wants_connection) = (State::Connecting, true);
        }
        stream.out.extend_from_slice(&slot.bytes);
        stream.awaiting.push_back(number);
        let (at_ns, generation, server) = (slot.sent_ns, slot.generation, slot.server);
        self.streams.push_back(Timer { at_ns, slot: number, generation });
        self.list(server);
    }

    /// Whether, and how, the driver is to end the server's connection; asked before
    /// [`Fleet::connects`].
    pub fn closes(&mut self, server: u32) -> Option<Closing> {
        let stream = &mut self.servers[server as usize].stream;
        let drains = std::mem::take(&mut stream.wants_drain);
        let closes = std::mem::take(&mut stream.wants_close);
        closes.then_some(if drains { Closing::Drain } else { Closing::Now })
    }

    /// A connection that was to be drained has ended, or could not be.
    pub fn drained(&mut self, server: u32) {
        let of = &mut self.servers[server as usize];
        of.drains = of.drains.saturating_sub(1);
        self.absences.drained(server);
    }

    /// Whether the driver is to connect to the server.
    pub fn connects(&mut self, server: u32) -> bool {
        std::mem::take(&mut self.servers[server as usize].stream.wants_connection)
    }

    /// What to send to a server that is connected.
    pub fn output(&self, server: u32) -> &[u8] {
        let stream = &self.servers[server as usize].stream;
        if stream.state == State::Open { &stream.out[stream.sent..] } else { &[] }
    }

    pub fn output_sent(&mut self, server: u32, bytes: usize) {
        let stream = &mut self.servers[server as usize].stream;
        stream.sent += bytes;
        if stream.sent == stream.out.len() {
            stream.out.clear();
            stream.sent = 0;
        }
    }

    /// The server's connection takes bytes again.
    pub fn writable(&mut self, server: u32) {
        if !self.output(server).is_empty() {
            self.list(server);
        }
    }

    pub fn connected(&mut self, server: u32) {
        let stream = &mut self.servers[server as usize].stream;
        if stream.state == State::Connecting {
            stream.state = State::Open;
            self.list(server);
        }
    }

    /// The connection has ended, or was not made. The driver has closed it.
    pub fn disconnected(
        &mut self,
        server: u32,
        now_ns: u64,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let stream = &mut self.servers[server as usize].stream;
        if stream.is_awaited() {
            self.die(server, now_ns, done);
        } else {
            // An idle one, which a server may close as it likes.
            let _ = stream.give_up();
        }
        let stream = &mut self.servers[server as usize].stream;
        stream.wants_close = false;
        if std::mem::take(&mut stream.wants_drain) {
            self.drained(server);
        }
    }

    /// Bytes came over a server's connection.
    pub fn received(
        &mut self,
        server: u32,
        now_ns: u64,
        bytes: &[u8],
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        self.notice(server, now_ns, done);
        let stream = &mut self.servers[server as usize].stream;
        if stream.state == State::Closed && stream.wants_close {
            // It was given up just now.
            return;
        }
        stream.heard_ns = now_ns;
        // As a rule whole answers come at once, and are not copied.
        let mut inbox = std::mem::take(&mut stream.inbox);
        let had_some = !inbox.is_empty();
        if had_some {
            inbox.extend_from_slice(bytes);
        }
        let all = if had_some { &inbox[..] } else { bytes };
        let used = self.answers(server, now_ns, all, done);
        match used {
            Ok(used) if all.len() - used <= self.settings.answer_bytes_max => {
                let rest = if had_some {
                    inbox.drain(..used);
                    inbox
                } else {
                    bytes[used..].to_vec()
                };
                self.servers[server as usize].stream.inbox = rest;
            }
            _ => {
                self.counts.broken += 1;
                self.die(server, now_ns, done);
                // Even if nothing was asked: what comes from there is no answer.
                let _ = self.servers[server as usize].stream.give_up();
                self.servers[server as usize].stream.wants_close = true;
                self.list(server);
            }
        }
    }

    /// Takes the answers that `bytes` hold; how many bytes those were.
    fn answers(
        &mut self,
        server: u32,
        now_ns: u64,
        bytes: &[u8],
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) -> Result<usize, Broken> {
        let mut used = 0;
        while used < bytes.len() {
            let stream = &mut self.servers[server as usize].stream;
            let number = *stream.awaiting.front().ok_or(Broken)?;
            let slot = &self.slots[number as usize];
            let Some(len) = stream.scan.end(slot.shape, &bytes[used..])? else { break };
            let answer = &bytes[used..used + len];
            let fit = wire::fit(slot.shape, &slot.bytes, answer);
            if fit == Fit::No {
                return Err(Broken);
            }
            let (cost, sent_ns) = (slot.cost, slot.sent_ns);
            if !self.lives(server, now_ns, answer) {
                return Err(Broken);
            }
            let stream = &mut self.servers[server as usize].stream;
            stream.scan = Scan::default();
            stream.awaiting.pop_front();
            self.heard_ns = now_ns;
            if (1..=TIMED_DATAGRAMS_MAX).contains(&cost) {
                self.window.observed(now_ns, sent_ns);
            }
            self.window.grow(cost);
            self.answered(number, answer, done);
            if fit == Fit::Last && !planted!("cache.errors-are-trusted") {
                return Err(Broken);
            }
            used += len;
        }
        Ok(used)
    }

    /// A server that does not answer over TCP is dead.
    pub(super) fn expire_streams(&mut self, now_ns: u64, done: &mut impl FnMut(u64, Outcome<'_>)) {
        while let Some(timer) = self.streams.front().copied() {
            let is_current = self.is_current(timer);
            if is_current && timer.at_ns + self.settings.patience_ns > now_ns {
                return;
            }
            self.streams.pop_front();
            if is_current {
                let server = self.slots[timer.slot as usize].server;
                let heard_ns = self.servers[server as usize].stream.heard_ns;
                if heard_ns + self.settings.patience_ns > now_ns {
                    // A long answer is on its way, or those before this one are.
                    self.streams.push_back(Timer { at_ns: heard_ns, ..timer });
                } else {
                    self.die(server, now_ns, done);
                }
            }
        }
    }
}
