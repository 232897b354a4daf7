//! Streams: a file written or read front to back, with at least one transfer always in flight.

pub(crate) mod cursor;
mod multi;
mod reader;
mod slice;
mod writer;

pub use multi::{MultiStream, Run};
pub use reader::FileReader;
pub use writer::FileWriter;

use crate::connection::RECONNECT_PAUSE_MAX;
use holdfast_base::ids::Tier;
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Kind};
use holdfast_wire::file as msg;
use std::time::Duration;

/// Transfers of one stream that are in flight at once: while one is worked on, the other moves.
pub(crate) const SLICES_IN_FLIGHT: usize = 2;

/// The same of a stream that is read from disk: while some are worked on, the disk has more to do.
const DISK_SLICES_IN_FLIGHT: usize = 6;

/// How much a stream of this class is read ahead.
pub(crate) fn slices_read_ahead(class: StorageClass) -> usize {
    match class.tiers().any(|tier| tier == Tier::Disk) {
        true => DISK_SLICES_IN_FLIGHT,
        false => SLICES_IN_FLIGHT,
    }
}

/// The same of a stream that is written durably: what waits for one sync shares the next, so more
/// on the way makes larger commits.
pub(crate) const DURABLE_SLICES_IN_FLIGHT: usize = 12;

/// How often a stream goes on in a new chunk although the one before took nothing, before it gives
/// up.
const VAIN_MOVES_MAX: u32 = 8;

/// Moves of one stream to new chunks because its old ones failed. A gateway that was stopped for a
/// while, or that nobody has missed yet, fails chunk after chunk until the cluster has noticed: a
/// stream that asks for the next one at once comes to its end within a second, and leaves as many
/// empty chunks.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    in_vain: u32,
}

impl Moves {
    /// How long to wait before the next chunk is asked for, after `current` failed for `e`; none
    /// where moving does not help, or does not any more. `first` doubles with each chunk that took
    /// nothing.
    pub fn pause(&mut self, e: &Error, current: &Current, first: Duration) -> Option<Duration> {
        if !matches!(e.kind, Kind::Retry | Kind::Fenced | Kind::Full | Kind::ReadOnly) {
            return None;
        }
        if current.acknowledged > 0 {
            self.in_vain = 0;
            return Some(Duration::ZERO);
        }
        self.in_vain += 1;
        let pause = first.saturating_mul(1 << (self.in_vain - 1).min(31));
        (self.in_vain <= VAIN_MOVES_MAX).then_some(pause.min(RECONNECT_PAUSE_MAX))
    }
}

/// The chunk that takes a writer's appends now.
pub(crate) struct Current {
    pub grant: msg::Grant,
    /// Bytes sent to it, and bytes it has acknowledged.
    pub sent: u64,
    pub acknowledged: u64,
}

impl Current {
    /// What the file has in it, if anything.
    pub fn extent(self) -> Option<msg::Extent> {
        let (chunk, bytes) = (self.grant.chunk, self.acknowledged);
        let generation = Default::default();
        (bytes > 0).then_some(msg::Extent::Raw { chunk, generation, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::{ChunkId, Durability};

    fn pause(moves: &mut Moves, e: Error, acknowledged: u64) -> Option<u128> {
        let (chunk, tier, durability) = (ChunkId(1), Tier::Disk, Durability::Durable);
        let grant = msg::Grant { chunk, tier, durability, capacity: 1 << 20 };
        let current = Current { grant, sent: acknowledged, acknowledged };
        moves.pause(&e, &current, Duration::from_millis(50)).map(|pause| pause.as_millis())
    }

    #[test]
    fn pauses_double_while_chunks_take_nothing_and_begin_anew_behind_one_that_did() {
        let mut moves = Moves::default();
        let mut failed = |acknowledged| pause(&mut moves, Error::fenced("sealed"), acknowledged);
        let pauses: Vec<_> = (0..9).map(|_| failed(0)).collect();
        let expected = [50, 100, 200, 400, 800, 1600, 2000, 2000].map(Some);
        assert_eq!((&pauses[..8], pauses[8]), (&expected[..], None));
        assert_eq!(failed(1), Some(0));
        assert_eq!(failed(0), Some(50));
    }

    #[test]
    fn what_another_chunk_would_not_mend_is_the_end() {
        for e in [Error::invalid("too long"), Error::not_found("closed"), Error::corrupt("bits")] {
            assert_eq!(pause(&mut Moves::default(), e, 1), None);
        }
    }
}
