//! The exchange of many servers, simulated packet by packet: every mapper sends blocks to every receiver by the
//! windows of [`crate::credit`], over TCP as a model, through a switch that has room for so much before each
//! server. Disks take what arrives at their pace, and windows are granted again as it is written. Events in order of
//! their time, chance from a seed: the same room gives the same figures every time.

mod flow;
mod room;
#[cfg(test)]
mod tests;

use holdfast_base::{Error, Result};

/// A full segment's payload, and what it takes on the wire (TCP with timestamps, IP, Ethernet, gap).
pub const PAYLOAD_BYTES: u64 = 1448;
const WIRE_BYTES: u64 = PAYLOAD_BYTES + 90;
const NS: u64 = 1_000_000_000;

/// Who exchanges how much over which network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Each has one mapper, one receiver and one link.
    pub servers: u32,
    /// Of every link, each way.
    pub bits_per_second: u64,
    /// What the switch holds before each server.
    pub buffer_bytes: u64,
    /// There and back, without queues.
    pub round_trip_ns: u64,
    /// What a mapper makes in a second, unless its windows are full.
    pub map_bytes_per_second: u64,
    /// What a receiver writes in a second.
    pub disk_bytes_per_second: u64,
    /// Of a block, all of them the same.
    pub block_bytes: u64,
    /// What a sender may have under way that its receiver has not written.
    pub window_bytes: u64,
    /// Blocks that each mapper sends to each receiver.
    pub blocks: u32,
    /// Of all chance.
    pub seed: u64,
}

impl Default for Room {
    /// Servers of the kind that TritonSort had, with the limits of this crate.
    fn default() -> Room {
        Room {
            servers: 52,
            bits_per_second: 10_000_000_000,
            buffer_bytes: 256 << 10,
            round_trip_ns: 100_000,
            map_bytes_per_second: 400_000_000,
            disk_bytes_per_second: 800_000_000,
            block_bytes: crate::limits::BLOCK_BYTES_MAX as u64,
            window_bytes: crate::limits::WINDOW_BYTES,
            blocks: 8,
            seed: 1,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Until the last block was written.
    pub time_ns: u64,
    /// Of all blocks, also those that a server sent to itself.
    pub bytes: u64,
    /// What mappers waited for their windows, all together.
    pub waited_ns: u64,
    /// Segments that were sent again.
    pub repeated: u64,
    /// Segments that did not fit in the switch.
    pub dropped: u64,
    /// Waits for an acknowledgement that ran out.
    pub timeouts: u64,
    /// The most that one receiver held that was not written.
    pub held_bytes: u64,
}

impl Room {
    /// Bytes a second of one server that mapper, disk and link could do together, whatever is exchanged.
    pub fn limit(&self) -> f64 {
        let servers = f64::from(self.servers);
        let crossing = (servers - 1.0) / servers;
        let link = self.bits_per_second as f64 / 8.0 * PAYLOAD_BYTES as f64 / WIRE_BYTES as f64;
        let link = if crossing > 0.0 { link / crossing } else { f64::INFINITY };
        link.min(self.map_bytes_per_second as f64).min(self.disk_bytes_per_second as f64)
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(format!("simulate an exchange: {what}")));
        match self {
            r if !(1..=1000).contains(&r.servers) => wrong("give 1 to 1000 servers"),
            r if r.blocks == 0 => wrong("give at least one block"),
            r if !(PAYLOAD_BYTES..=r.window_bytes).contains(&r.block_bytes) => {
                wrong("give blocks of at least a segment and at most a window")
            }
            r if r.bits_per_second < 1_000_000 => wrong("give a link of at least 1 Mbit/s"),
            r if r.buffer_bytes < WIRE_BYTES => wrong("give a buffer of at least one segment"),
            r if r.map_bytes_per_second < 1_000_000 || r.disk_bytes_per_second < 1_000_000 => {
                wrong("give mappers and disks at least 1 MB/s")
            }
            _ => Ok(()),
        }
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<Outcome> {
        self.check()?;
        room::run(self)
    }
}
