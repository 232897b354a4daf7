//! The simulated machine room: a queue of events, servers that take their time, and the switch
//! port that everything comes through. Requests and acknowledgements meet no queue: they are
//! small, and the other way is empty.

use super::{Outcome, Scenario, TIME_MAX_NS};
use holdfast_base::{Error, Result};
use holdfast_env::{Rng, SeededRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A full packet's payload, and what it takes on the wire (UDP, IP, Ethernet, gap). TCP's differ
/// by a hundredth; the same is counted for both.
pub const PAYLOAD_BYTES: u64 = crate::wire::BODY_BYTES as u64;
pub const OVERHEAD_BYTES: u64 = 8 + 28 + 38;
pub const WIRE_BYTES: u64 = PAYLOAD_BYTES + OVERHEAD_BYTES;

/// An event's moment; those of one moment keep their order.
type Key = Reverse<(u64, u64, usize)>;

pub struct Network<E> {
    pub now_ns: u64,
    scenario: Scenario,
    rng: SeededRng,
    queue: BinaryHeap<Key>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    count: u64,
    /// When the port has sent what it holds.
    port_free_ns: u64,
    /// When each server's link has.
    link_free_ns: Vec<u64>,
    pub outcome: Outcome,
    round_began_ns: u64,
}

impl<E> Network<E> {
    pub fn new(scenario: &Scenario) -> Network<E> {
        Network {
            // Not 0, which stands for never in places.
            now_ns: 1_000_000,
            scenario: *scenario,
            rng: SeededRng::new(scenario.seed),
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            count: 0,
            port_free_ns: 0,
            link_free_ns: vec![0; scenario.servers as usize],
            outcome: Outcome::default(),
            round_began_ns: 0,
        }
    }

    pub fn at(&mut self, at_ns: u64, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.count += 1;
        self.queue.push(Reverse((at_ns.max(self.now_ns), self.count, place)));
    }

    /// The next event; the clock is at its moment.
    pub fn next(&mut self) -> Result<Option<E>> {
        let Some(Reverse((at_ns, _, place))) = self.queue.pop() else { return Ok(None) };
        if at_ns > TIME_MAX_NS {
            return Err(Error::retry(
                "simulate incast: an hour passed in vain: give it a larger buffer",
            ));
        }
        self.now_ns = at_ns;
        self.free.push(place);
        Ok(self.events[place].take())
    }

    /// When a request sent now has been looked at by its server.
    pub fn served_ns(&mut self) -> u64 {
        let scenario = self.scenario;
        let mut time = scenario.round_trip_ns / 2 + scenario.service_ns;
        // (0, 1]
        let chance = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        time += (-chance.ln() * scenario.jitter_ns as f64) as u64;
        if scenario.slow_every > 0
            && self.rng.next_u64().is_multiple_of(u64::from(scenario.slow_every))
        {
            time += scenario.slow_ns;
        }
        self.now_ns + time
    }

    fn wire_ns(&self, payload_bytes: u64) -> u64 {
        (payload_bytes + OVERHEAD_BYTES) * 8 * 1_000_000_000 / self.scenario.bits_per_second
    }

    /// A server puts a packet on its link: when it gets to the switch.
    pub fn leaves(&mut self, server: u32, payload_bytes: u64) -> u64 {
        let time = self.wire_ns(payload_bytes);
        let free = &mut self.link_free_ns[server as usize];
        *free = (*free).max(self.now_ns) + time;
        *free + self.scenario.round_trip_ns / 4
    }

    /// A packet is at the switch: when it gets to the client, if it fits in the buffer.
    pub fn passes(&mut self, payload_bytes: u64) -> Option<u64> {
        let waits_ns = self.port_free_ns.saturating_sub(self.now_ns);
        let held_bytes = waits_ns * self.scenario.bits_per_second / 8 / 1_000_000_000;
        if held_bytes + payload_bytes + OVERHEAD_BYTES > self.scenario.buffer_bytes {
            self.outcome.dropped += 1;
            return None;
        }
        self.port_free_ns = self.now_ns + waits_ns + self.wire_ns(payload_bytes);
        Some(self.port_free_ns + self.scenario.round_trip_ns / 4)
    }

    /// How long a packet that meets no queue takes one way.
    pub fn way_ns(&self) -> u64 {
        self.scenario.round_trip_ns / 2
    }

    pub fn round_begins(&mut self) {
        self.round_began_ns = self.now_ns;
    }

    pub fn round_ends(&mut self) {
        self.outcome.rounds_ns.push(self.now_ns - self.round_began_ns);
        self.outcome.time_ns += self.now_ns - self.round_began_ns;
    }
}
