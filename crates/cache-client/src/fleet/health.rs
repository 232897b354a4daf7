//! Which servers live. One that refuses, hangs up on a request or breaks the protocol is dead:
//! its requests fail at once, and after a pause it is asked over TCP whether it is back. One that
//! is only silent over UDP is asked the same before it is given up.

use super::absence::Owed;
use super::{Fleet, NOBODY, Outcome, Request, Transport};
use crate::wire::{Shape, is_error};
use holdfast_env::planted;

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
    /// It answers, and is told what it slept through.
    Returning {
        pause_ns: u64,
    },
}

impl Fleet {
    pub fn is_up(&self, server: u32) -> bool {
        self.servers[server as usize].health == Health::Up
    }

    pub fn are_all_up(&self) -> bool {
        self.dead.is_empty()
    }

    /// Asks over TCP whether a server lives, unless that is known from other requests soon.
    pub(super) fn probe(&mut self, server: u32, now_ns: u64) {
        if self.servers[server as usize].stream.is_awaited() {
            return;
        }
        self.ask_aside(server, Shape::Line, b"version\r\n", now_ns);
    }

    /// A request of our own, whatever the window says.
    fn ask_aside(&mut self, server: u32, shape: Shape, bytes: &[u8], now_ns: u64) {
        let transport = Transport::Tcp;
        let request = Request { server, transport, shape, keys: 0, ticket: NOBODY, bytes };
        let number = self.take_slot(&request);
        self.slots[number as usize].sent_ns = now_ns;
        self.send_stream(number);
    }

    /// A key of a server, which this request deletes, is to be changed elsewhere: it must not come
    /// back with what it has of it.
    pub fn owe(&mut self, server: u32, request: Vec<u8>) {
        if !planted!("cache.nothing-owed") {
            self.absences.owe(server, request);
        }
    }

    /// Whether other threads have changed keys of this server elsewhere since it was used last:
    /// then it is away for this one, too, with all that it has not answered.
    pub(super) fn notice(
        &mut self,
        server: u32,
        now_ns: u64,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let of = &self.servers[server as usize];
        if of.health == Health::Up
            && of.epoch != self.absences.epoch(server)
            && !planted!("cache.absence-unshared")
        {
            self.die(server, now_ns, done);
        }
    }

    /// A server that another thread has brought up to date is used again at once. Who went on taking
    /// it for dead would change its keys elsewhere, and so take it from the others again, and they
    /// from him, without end.
    pub(super) fn rejoin(&mut self, server: u32) {
        let of = &self.servers[server as usize];
        let is_waiting = matches!(of.health, Health::Dead { .. } | Health::Asked { .. });
        let was_brought_back =
            of.epoch != self.absences.epoch(server) && !self.absences.is_away(server);
        // What lies in an own connection could still come behind what is asked now.
        if is_waiting && was_brought_back && of.drains == 0 && !planted!("cache.return-unshared") {
            self.is_back(server);
        }
    }

    /// A server has answered. False if that answer says that it cannot be used.
    pub(super) fn lives(&mut self, server: u32, now_ns: u64, answer: &[u8]) -> bool {
        let of = &mut self.servers[server as usize];
        of.losses = 0;
        match of.health {
            Health::Up | Health::Dead { .. } => {}
            Health::Asked { pause_ns } if self.absences.is_away(server) => {
                if self.absences.begin_return(server) {
                    of.health = Health::Returning { pause_ns };
                    self.bring_up_to_date(server, now_ns, pause_ns);
                } else {
                    // Another thread does it.
                    of.health = Health::Dead { until_ns: now_ns + PAUSE_LEAST_NS, pause_ns };
                }
            }
            Health::Asked { .. } => self.is_back(server),
            Health::Returning { pause_ns } => {
                if is_error(answer) {
                    return false;
                }
                of.returning.pop_front();
                if of.returning.is_empty() {
                    self.bring_up_to_date(server, now_ns, pause_ns);
                }
            }
        }
        true
    }

    /// Sends a server the next of what it slept through; it is up if there is nothing left.
    fn bring_up_to_date(&mut self, server: u32, now_ns: u64, pause_ns: u64) {
        let requests = match self.absences.next_owed(server, now_ns) {
            Owed::Requests(requests) => requests,
            Owed::Nothing => return self.is_back(server),
            Owed::Later => {
                let until_ns = now_ns + PAUSE_LEAST_NS;
                self.servers[server as usize].health = Health::Dead { until_ns, pause_ns };
                return;
            }
        };
        for bytes in &requests {
            let shape = if bytes.starts_with(b"md ") { Shape::Meta } else { Shape::Line };
            self.ask_aside(server, shape, bytes, now_ns);
        }
        self.servers[server as usize].returning = requests.into();
    }

    fn is_back(&mut self, server: u32) {
        let of = &mut self.servers[server as usize];
        of.health = Health::Up;
        of.epoch = self.absences.epoch(server);
        self.dead.retain(|dead| *dead != server);
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
            Health::Asked { pause_ns } | Health::Returning { pause_ns } => {
                (pause_ns * 2).min(PAUSE_MOST_NS)
            }
            // Nothing is outstanding there.
            Health::Dead { .. } => return,
        };
        let before = of.health;
        of.health = Health::Dead { until_ns: now_ns + pause_ns, pause_ns };
        of.outbox.clear();
        let over_udp = of.ids.slots();
        let (over_tcp, maybe) = of.stream.give_up();
        match before {
            // A stalled server carries out later what lies in the connection.
            Health::Up if maybe && !over_tcp.is_empty() => {
                of.stream.drain();
                of.drains += 1;
                self.absences.gave_up(server);
            }
            Health::Returning { .. } => {
                let unanswered = std::mem::take(&mut of.returning);
                self.absences.return_failed(server, unanswered.into());
            }
            _ => {}
        }
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
