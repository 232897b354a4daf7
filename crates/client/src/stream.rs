//! Streams: a file written or read front to back, with at least one transfer always in flight.

pub(crate) mod cursor;
mod multi;
mod reader;
mod slice;
mod writer;

pub use multi::{MultiStream, Run};
pub use reader::FileReader;
pub use writer::FileWriter;

use holdfast_base::ids::Tier;
use holdfast_base::node::StorageClass;
use holdfast_wire::file as msg;

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

/// How often one stream moves to a new chunk because its old one failed, before it gives up.
pub(crate) const MOVES_MAX: usize = 8;

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
