//! The shipped core on the simulated network: what `links` does with sockets, done with events.

use super::network::{Network, PAYLOAD_BYTES};
use super::{Outcome, Scenario};
use crate::fleet::{self, Fleet, Request, Transport};
use crate::wire::{FRAME_BYTES, Shape};
use holdfast_base::Result;

enum Event {
    /// A server has looked at the request with this id.
    Served {
        server: u32,
        id: [u8; 2],
    },
    /// A part of an answer is at the switch, or at the client.
    AtSwitch {
        server: u32,
        id: [u8; 2],
        part: u16,
    },
    AtClient {
        server: u32,
        id: [u8; 2],
        part: u16,
    },
    /// An answer over TCP, to the question whether a server lives.
    Lives {
        server: u32,
    },
    Timer {
        at_ns: u64,
    },
}

struct World<'a> {
    scenario: &'a Scenario,
    network: Network<Event>,
    fleet: Fleet,
    /// One answer, cut into datagrams behind their frames.
    parts: Vec<Vec<u8>>,
    /// The earliest timer that is set.
    timer_ns: u64,
    /// Answers of this round that are still to come.
    left: u32,
}

pub fn run(scenario: &Scenario, settings: fleet::Settings) -> Result<Outcome> {
    let value = vec![b'v'; scenario.answer_bytes as usize];
    let head = format!("VALUE k 0 {}\r\n", value.len());
    let answer = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
    let bodies = answer.chunks(PAYLOAD_BYTES as usize);
    let count = bodies.len() as u16;
    let framed = bodies.enumerate().map(|(number, body)| {
        let words = [0, number as u16, count, 0].into_iter().flat_map(u16::to_be_bytes);
        words.chain(body.iter().copied()).collect()
    });
    let mut world = World {
        scenario,
        network: Network::new(scenario),
        fleet: Fleet::new(scenario.servers as usize, settings),
        parts: framed.collect(),
        timer_ns: u64::MAX,
        left: 0,
    };
    for _ in 0..scenario.rounds {
        world.round()?;
    }
    Ok(world.network.outcome)
}

impl World<'_> {
    fn round(&mut self) -> Result<()> {
        self.network.round_begins();
        self.left = self.scenario.servers;
        for server in 0..self.scenario.servers {
            let (transport, shape, bytes) = (Transport::Udp, Shape::Values, b"get k\r\n");
            self.fleet.submit(Request { server, transport, shape, keys: 1, ticket: 0, bytes });
        }
        self.drive(None);
        while self.left > 0 {
            let Some(event) = self.network.next()? else { break };
            self.event(event);
        }
        self.network.round_ends();
        Ok(())
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Served { server, id } => {
                for part in 0..self.parts.len() as u16 {
                    let at_ns = self.network.leaves(server, self.payload_bytes(part));
                    self.network.at(at_ns, Event::AtSwitch { server, id, part });
                }
            }
            Event::AtSwitch { server, id, part } => {
                if let Some(at_ns) = self.network.passes(self.payload_bytes(part)) {
                    self.network.at(at_ns, Event::AtClient { server, id, part });
                }
            }
            Event::AtClient { server, id, part } => {
                self.parts[usize::from(part)][..2].copy_from_slice(&id);
                self.drive(Some((server, part)));
            }
            Event::Lives { server } => {
                let now_ns = self.network.now_ns;
                self.fleet.received(server, now_ns, b"VERSION 1\r\n", &mut |_, _| ());
            }
            Event::Timer { at_ns } => {
                if at_ns == self.timer_ns {
                    self.timer_ns = u64::MAX;
                    self.drive(None);
                }
            }
        }
    }

    fn payload_bytes(&self, part: u16) -> u64 {
        (self.parts[usize::from(part)].len() - FRAME_BYTES) as u64
    }

    /// Hands the core a datagram, if one came, and the time; sends what it wants sent.
    fn drive(&mut self, came: Option<(u32, u16)>) {
        let (now_ns, left, outcome) =
            (self.network.now_ns, &mut self.left, &mut self.network.outcome);
        let bytes = u64::from(self.scenario.answer_bytes);
        let mut done = |_, of: fleet::Outcome<'_>| {
            *left -= 1;
            match of {
                fleet::Outcome::Answer(_) => {
                    outcome.answers += 1;
                    outcome.bytes += bytes;
                }
                _ => outcome.lost += 1,
            }
        };
        if let Some((server, part)) = came {
            self.fleet.datagram(server, now_ns, &self.parts[usize::from(part)], &mut done);
        }
        self.fleet.expire(now_ns, &mut done);
        self.fleet.pump(now_ns, &mut done);
        while let Some(server) = self.fleet.take_work() {
            if self.fleet.closes(server) == Some(fleet::Closing::Drain) {
                self.fleet.drained(server);
            }
            if self.fleet.connects(server) {
                self.fleet.connected(server);
            }
            let asked = self.fleet.output(server).len();
            if asked > 0 {
                self.fleet.output_sent(server, asked);
                let at_ns = now_ns + self.scenario.round_trip_ns;
                self.network.at(at_ns, Event::Lives { server });
            }
            let outbox = self.fleet.outbox(server);
            let ids: Vec<[u8; 2]> = outbox
                .runs()
                .flat_map(|(run, each)| run.chunks(each).map(|datagram| [datagram[0], datagram[1]]))
                .collect();
            outbox.clear();
            for id in ids {
                let at_ns = self.network.served_ns();
                self.network.at(at_ns, Event::Served { server, id });
            }
        }
        if let Some(at_ns) = self.fleet.deadline_ns().filter(|at_ns| *at_ns < self.timer_ns) {
            self.timer_ns = at_ns;
            self.network.at(at_ns, Event::Timer { at_ns });
        }
    }
}
