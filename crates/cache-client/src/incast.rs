//! Incast, simulated: many servers answer one client at once, through a switch whose port before
//! the client has a shallow buffer. The client is the shipped core, or TCP as a model. Events in
//! order of their time, chance from a seed: the same scenario gives the same figures anywhere.

mod network;
mod ours;
mod tcp;
#[cfg(test)]
mod tests;

use crate::fleet;
use holdfast_base::{Error, Result};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sender {
    /// The client's core, over UDP.
    Fleet(fleet::Settings),
    Tcp(Tcp),
}

/// A connection a server, each with a window of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tcp {
    /// Least time before what is unanswered is sent again.
    pub timeout_least_ns: u64,
    /// Later segments that must arrive before an earlier one counts as lost: 3, or 1 with RACK.
    pub later_segments: u32,
    /// Sends the last segment again after two round trips (tail loss probe, RFC 8985).
    pub probes: bool,
}

impl Tcp {
    /// What the seed's servers had: RFC 5681 with selective acknowledgements, and 200 ms.
    pub const CLASSIC: Tcp =
        Tcp { timeout_least_ns: 200_000_000, later_segments: 3, probes: false };
    /// Linux since 4.18: RACK and tail loss probes.
    pub const RECENT: Tcp = Tcp { later_segments: 1, probes: true, ..Tcp::CLASSIC };
    /// Timeouts of a millisecond (Vasudevan et al., SIGCOMM 2009).
    pub const FINE: Tcp = Tcp { timeout_least_ns: 1_000_000, ..Tcp::CLASSIC };
}

/// What is asked, over which network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    pub servers: u32,
    /// Of each server in each round.
    pub answer_bytes: u32,
    /// Every server is asked at once; the next round begins when all have answered.
    pub rounds: u32,
    /// Of every link.
    pub bits_per_second: u64,
    /// Of the switch port before the client.
    pub buffer_bytes: u64,
    /// There and back, without queues or servers.
    pub round_trip_ns: u64,
    /// A server's time for an answer, and the mean of the chance on top (exponential).
    pub service_ns: u64,
    pub jitter_ns: u64,
    /// One answer in so many takes `slow_ns` more; 0 for none.
    pub slow_every: u32,
    pub slow_ns: u64,
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            servers: 100,
            answer_bytes: 4096,
            rounds: 200,
            bits_per_second: 10_000_000_000,
            buffer_bytes: 128 << 10,
            round_trip_ns: 100_000,
            service_ns: 10_000,
            jitter_ns: 10_000,
            slow_every: 0,
            slow_ns: 0,
            seed: 1,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of answers that arrived.
    pub bytes: u64,
    pub answers: u64,
    /// Answers that did not arrive in time: misses.
    pub lost: u64,
    /// Packets that did not fit in the buffer.
    pub dropped: u64,
    pub time_ns: u64,
    /// Of each round.
    pub rounds_ns: Vec<u64>,
}

/// Simulated time after which a run is given up: nothing gets through.
const TIME_MAX_NS: u64 = 3600 * 1_000_000_000;

impl Scenario {
    /// Bytes a second of answers that the client's link could pass.
    pub fn limit(&self) -> f64 {
        self.bits_per_second as f64 / 8.0 * network::PAYLOAD_BYTES as f64
            / network::WIRE_BYTES as f64
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("simulate incast: {what}")));
        match self {
            s if !(1..=10_000).contains(&s.servers) => wrong("give 1 to 10,000 servers"),
            s if !(1..=1 << 20).contains(&s.answer_bytes) => {
                wrong("give answers of 1 byte to 1 MiB")
            }
            s if s.rounds == 0 => wrong("give at least one round"),
            s if s.bits_per_second < 1_000_000 => wrong("give a link of at least 1 Mbit/s"),
            s if s.buffer_bytes < network::WIRE_BYTES => {
                wrong("give a buffer of at least one packet")
            }
            _ => Ok(()),
        }
    }

    pub fn run(&self, sender: Sender) -> Result<Outcome> {
        self.check()?;
        match sender {
            Sender::Fleet(settings) => ours::run(self, settings),
            Sender::Tcp(settings) => tcp::run(self, settings),
        }
    }
}
