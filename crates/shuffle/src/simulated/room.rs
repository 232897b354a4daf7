//! The machine room: a queue of events, a link of each server and a switch port before it, mappers that make blocks,
//! and disks. Acknowledgements and grants meet no queue: they are small.

use super::flow::Flow;
use super::{NS, Outcome, PAYLOAD_BYTES, Room, WIRE_BYTES};
use crate::credit::{Allowance, Credit};
use holdfast_base::{Error, Result};
use holdfast_env::{Rng, SeededRng};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Simulated time after which a run is given up: nothing gets through.
const TIME_MAX_NS: u64 = 3600 * NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A mapper has filled a block.
    Made {
        mapper: u32,
    },
    /// A segment is at the switch; when it was sent.
    AtSwitch {
        way: u32,
        segment: u64,
        sent_ns: u64,
    },
    /// Its acknowledgement is at the sender.
    Heard {
        way: u32,
        segment: u64,
        sent_ns: u64,
    },
    Timer {
        way: u32,
    },
    /// A block is written, and its sender knows.
    Granted {
        way: u32,
    },
}

/// Events of one moment keep their order.
#[derive(PartialEq, Eq)]
struct Due {
    at_ns: u64,
    count: u64,
    event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        // The heap's greatest is the earliest.
        (other.at_ns, other.count).cmp(&(self.at_ns, self.count))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// From one mapper to one receiver.
struct Way {
    flow: Flow,
    credit: Credit,
    allowance: Allowance,
    /// Blocks that have arrived whole.
    blocks: u64,
}

struct Mapper {
    /// Receivers of the blocks of this turn that are not made yet.
    left: Vec<u32>,
    turns: u32,
    /// Since when it waits for a window, and for which receiver.
    waits: Option<(u64, u32)>,
}

#[derive(Clone, Default)]
struct Server {
    /// When its link, the port before it and its disk have done what they have.
    link_free_ns: u64,
    port_free_ns: u64,
    disk_free_ns: u64,
    held_bytes: u64,
}

struct World<'a> {
    room: &'a Room,
    now_ns: u64,
    queue: BinaryHeap<Due>,
    count: u64,
    rng: SeededRng,
    ways: Vec<Way>,
    mappers: Vec<Mapper>,
    servers: Vec<Server>,
    /// Of a block.
    segments: u64,
    wire_ns: u64,
    left: u64,
    outcome: Outcome,
}

pub fn run(room: &Room) -> Result<Outcome> {
    let servers = room.servers as usize;
    let way = || Way {
        flow: Flow::new(room.round_trip_ns),
        credit: Credit::new(room.window_bytes),
        allowance: Allowance::new(room.window_bytes),
        blocks: 0,
    };
    let mapper = || Mapper { left: Vec::new(), turns: room.blocks, waits: None };
    let mut world = World {
        room,
        // Not 0, which stands for never in places.
        now_ns: 1_000_000,
        queue: BinaryHeap::new(),
        count: 0,
        rng: SeededRng::new(room.seed),
        ways: (0..servers * servers).map(|_| way()).collect(),
        mappers: (0..servers).map(|_| mapper()).collect(),
        servers: vec![Server::default(); servers],
        segments: room.block_bytes.div_ceil(PAYLOAD_BYTES),
        wire_ns: WIRE_BYTES * 8 * NS / room.bits_per_second,
        left: u64::from(room.blocks) * (servers * servers) as u64,
        outcome: Outcome::default(),
    };
    world.run()?;
    Ok(world.outcome)
}

impl World<'_> {
    fn run(&mut self) -> Result<()> {
        let began_ns = self.now_ns;
        for mapper in 0..self.room.servers {
            // They do not begin at one moment.
            let at_ns = self.now_ns + self.rng.next_u64() % self.make_ns();
            self.at(at_ns, Event::Made { mapper });
        }
        while self.left > 0 {
            let due = self.queue.pop().ok_or_else(|| Error::bug("an exchange stands still"))?;
            if due.at_ns > TIME_MAX_NS {
                return Err(Error::retry(
                    "simulate an exchange: an hour passed in vain: give it a larger buffer",
                ));
            }
            self.now_ns = due.at_ns;
            self.event(due.event)?;
        }
        self.outcome.time_ns = self.now_ns - began_ns;
        for way in &self.ways {
            self.outcome.repeated += way.flow.repeated;
            self.outcome.timeouts += way.flow.timeouts;
        }
        Ok(())
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.count += 1;
        self.queue.push(Due { at_ns: at_ns.max(self.now_ns), count: self.count, event });
    }

    /// What a mapper takes for a block.
    fn make_ns(&self) -> u64 {
        self.room.block_bytes * NS / self.room.map_bytes_per_second
    }

    fn sender(&self, way: u32) -> u32 {
        way / self.room.servers
    }

    fn receiver(&self, way: u32) -> u32 {
        way % self.room.servers
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Made { mapper } => self.made(mapper),
            Event::AtSwitch { way, segment, sent_ns } => {
                self.at_switch(way, segment, sent_ns);
                Ok(())
            }
            Event::Heard { way, segment, sent_ns } => self.heard(way, segment, sent_ns),
            Event::Timer { way } => {
                self.timer(way);
                Ok(())
            }
            Event::Granted { way } => self.granted(way),
        }
    }

    /// Sends a mapper's block, if its receiver's window has room; else the mapper waits.
    fn made(&mut self, mapper: u32) -> Result<()> {
        let Some(receiver) = self.receiver_of(mapper) else { return Ok(()) };
        let (bytes, now_ns, servers) = (self.room.block_bytes, self.now_ns, self.room.servers);
        let number = mapper * servers + receiver;
        let way = &mut self.ways[number as usize];
        let of = &mut self.mappers[mapper as usize];
        if !way.credit.allows(bytes) {
            of.waits = Some((now_ns, receiver));
            return Ok(());
        }
        way.credit.sent(bytes);
        of.left.pop();
        let is_last = of.left.is_empty() && of.turns == 0;
        if mapper == receiver {
            self.arrived(number, now_ns)?;
        } else {
            way.flow.give(self.segments);
            self.send(number);
        }
        if !is_last {
            self.at(now_ns + self.make_ns(), Event::Made { mapper });
        }
        Ok(())
    }

    /// Who gets a mapper's next block. Records are spread evenly, so each receiver gets one in each turn, in an order
    /// that chance gives.
    fn receiver_of(&mut self, mapper: u32) -> Option<u32> {
        let of = &mut self.mappers[mapper as usize];
        if of.left.is_empty() {
            of.turns = of.turns.checked_sub(1)?;
            of.left = (0..self.room.servers).collect();
            for i in (1..of.left.len()).rev() {
                of.left.swap(i, (self.rng.next_u64() % (i as u64 + 1)) as usize);
            }
        }
        of.left.last().copied()
    }

    /// Puts on the sender's link what the window lets go.
    fn send(&mut self, number: u32) {
        let (now_ns, sender) = (self.now_ns, self.sender(number) as usize);
        while let Some(segment) = self.ways[number as usize].flow.send(now_ns) {
            self.leaves(sender, number, segment);
        }
        self.set_timer(number);
    }

    fn leaves(&mut self, sender: usize, way: u32, segment: u64) {
        let free_ns = &mut self.servers[sender].link_free_ns;
        *free_ns = (*free_ns).max(self.now_ns) + self.wire_ns;
        let at_ns = *free_ns + self.room.round_trip_ns / 4;
        self.at(at_ns, Event::AtSwitch { way, segment, sent_ns: self.now_ns });
    }

    fn at_switch(&mut self, way: u32, segment: u64, sent_ns: u64) {
        let port = &mut self.servers[(way % self.room.servers) as usize];
        let waits_ns = port.port_free_ns.saturating_sub(self.now_ns);
        let queued_bytes = waits_ns / self.wire_ns.max(1) * WIRE_BYTES;
        if queued_bytes + WIRE_BYTES > self.room.buffer_bytes {
            self.outcome.dropped += 1;
            return;
        }
        port.port_free_ns = self.now_ns + waits_ns + self.wire_ns;
        // At the receiver a quarter of a round trip later, and its acknowledgement back after a half.
        let heard_ns = port.port_free_ns + self.room.round_trip_ns * 3 / 4;
        self.at(heard_ns, Event::Heard { way, segment, sent_ns });
    }

    fn heard(&mut self, number: u32, segment: u64, sent_ns: u64) -> Result<()> {
        let (now_ns, segments) = (self.now_ns, self.segments);
        let way = &mut self.ways[number as usize];
        way.flow.acknowledged(segment, sent_ns, now_ns);
        let whole = way.flow.arrived_below() / segments;
        for _ in way.blocks..whole {
            self.arrived(number, now_ns - self.room.round_trip_ns / 2)?;
        }
        self.send(number);
        Ok(())
    }

    /// A block is at its receiver, whole: it waits for the disk, and its bytes are granted again once it is written.
    fn arrived(&mut self, number: u32, at_ns: u64) -> Result<()> {
        let bytes = self.room.block_bytes;
        let way = &mut self.ways[number as usize];
        way.blocks += 1;
        way.allowance.take(bytes)?;
        let receiver = self.receiver(number) as usize;
        let server = &mut self.servers[receiver];
        server.held_bytes += bytes;
        self.outcome.held_bytes = self.outcome.held_bytes.max(server.held_bytes);
        let write_ns = bytes * NS / self.room.disk_bytes_per_second;
        server.disk_free_ns = server.disk_free_ns.max(at_ns) + write_ns;
        let granted_ns = server.disk_free_ns + self.room.round_trip_ns / 2;
        self.at(granted_ns, Event::Granted { way: number });
        Ok(())
    }

    fn granted(&mut self, number: u32) -> Result<()> {
        let bytes = self.room.block_bytes;
        let (sender, receiver) = (self.sender(number), self.receiver(number));
        let way = &mut self.ways[number as usize];
        way.allowance.release(bytes);
        way.credit.granted(bytes)?;
        self.servers[receiver as usize].held_bytes -= bytes;
        self.outcome.bytes += bytes;
        self.left -= 1;
        if let Some((since_ns, _)) =
            self.mappers[sender as usize].waits.take_if(|(_, waited)| *waited == receiver)
        {
            self.outcome.waited_ns += self.now_ns - since_ns;
            return self.made(sender);
        }
        Ok(())
    }

    /// One timer a way is in the queue; one that is early looks again at the deadline.
    fn set_timer(&mut self, number: u32) {
        let flow = &mut self.ways[number as usize].flow;
        if let (Some(at_ns), false) = (flow.deadline_ns, flow.has_timer) {
            flow.has_timer = true;
            self.at(at_ns, Event::Timer { way: number });
        }
    }

    fn timer(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let flow = &mut self.ways[number as usize].flow;
        flow.has_timer = false;
        if flow.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns)
            && let Some(segment) = flow.ran_out(now_ns)
        {
            self.leaves(self.sender(number) as usize, number, segment);
        }
        self.send(number);
    }
}
