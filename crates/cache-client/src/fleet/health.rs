//! Which servers live. One that refuses, hangs up on a request or breaks the protocol is dead:
//! its requests fail at once, and after a pause it is asked over TCP whether it is back. One that
//! is only silent over UDP is asked the same before it is given up.

use super::{Fleet, NOBODY, Outcome, Request, Transport};
use crate::wire::Shape;

/// Between two questions whether a dead server is back, at first and at most.
const PAUSE_LEAST_NS: u64 = 50_000_000;
const PAUSE_MOST_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Up,
    /// Until when it is left alone, and how long that is.
    Dead {
        until_ns: u64,
        pause_ns: u64,
    },
    /// Dead, and asked whether it still is.
    Asked {
        pause_ns: u64,
    },
}

impl Fleet {
    pub fn is_up(&self, server: u32) -> bool {
        self.servers[server as usize].health == Health::Up
    }

    /// Asks over TCP whether a server lives, unless that is known from other requests soon.
    pub(super) fn probe(&mut self, server: u32, now_ns: u64) {
        if self.servers[server as usize].stream.is_awaited() {
            return;
        }
        let request = Request {
            server,
            transport: Transport::Tcp,
            shape: Shape::Line,
            keys: 0,
            ticket: NOBODY,
            bytes: b"version\r\n",
        };
        let number = self.take_slot(&request);
        self.slots[number as usize].sent_ns = now_ns;
        self.send_stream(number);
    }

    /// A server has answered.
    pub(super) fn lives(&mut self, server: u32) {
        let of = &mut self.servers[server as usize];
        of.losses = 0;
        if of.health != Health::Up {
            of.health = Health::Up;
            self.dead.retain(|dead| *dead != server);
        }
    }

    /// Gives a server up, with all that was asked of it.
    pub(super) fn die(
        &mut self,
        server: u32,
        now_ns: u64,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let of = &mut self.servers[server as usize];
        let pause_ns = match of.health {
            Health::Up => {
                self.counts.servers_died += 1;
                self.dead.push(server);
                PAUSE_LEAST_NS
            }
            Health::Asked { pause_ns } => (pause_ns * 2).min(PAUSE_MOST_NS),
            // Nothing is outstanding there.
            Health::Dead { .. } => return,
        };
        of.health = Health::Dead { until_ns: now_ns + pause_ns, pause_ns };
        of.outbox.clear();
        let over_udp = of.ids.slots();
        let (over_tcp, maybe) = of.stream.give_up();
        self.list(server);
        for number in over_tcp {
            self.finish(number, Outcome::Dead { maybe }, done);
        }
        for number in over_udp {
            self.finish(number, Outcome::Dead { maybe: true }, done);
        }
    }

    /// Asks the dead whose pause is over.
    pub(super) fn try_dead(&mut self, now_ns: u64) {
        for i in 0..self.dead.len() {
            let server = self.dead[i];
            let of = &mut self.servers[server as usize];
            if let Health::Dead { until_ns, pause_ns } = of.health
                && until_ns <= now_ns
            {
                of.health = Health::Asked { pause_ns };
                self.probe(server, now_ns);
            }
        }
    }

    pub(super) fn next_try_ns(&self) -> Option<u64> {
        let until = |server: &u32| match self.servers[*server as usize].health {
            Health::Dead { until_ns, .. } => Some(until_ns),
            _ => None,
        };
        self.dead.iter().filter_map(until).min()
    }

    /// Nobody listens on a server's UDP port, says its host.
    pub fn unreachable(
        &mut self,
        server: u32,
        now_ns: u64,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        // Word of an earlier life may come late: only what is outstanding now can have caused it.
        if !self.servers[server as usize].ids.slots().is_empty() {
            self.die(server, now_ns, done);
        }
    }
}
