//! Every limit of the exchange, with its reason.

use std::time::Duration;

/// Of a block, at most: what is sent in one frame and written at once. Beyond a megabyte neither
/// disks nor networks gain.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// With less, a partition's writes are no longer large.
pub const BLOCK_BYTES_MIN: usize = 16 << 10;
/// Blocks that one connection may have under way: one is written while the next arrives.
pub const WINDOW_BLOCKS: usize = 2;
/// What a sender may have under way that the receiver has not written.
pub const WINDOW_BYTES: u64 = (WINDOW_BLOCKS * BLOCK_BYTES_MAX) as u64;
/// Of one record, at most: a sender keeps the one that a block of its input cuts.
pub const RECORD_BYTES_MAX: usize = 64 << 20;
/// Of all partitions of a job: each has an open block in each mapper.
pub const PARTITIONS_MAX: usize = 4096;
/// What a mapper reads of a file at once.
pub const READ_BYTES: usize = 1 << 20;
/// Sorted records on their way out are handed over so many bytes at a time.
pub const OUTPUT_BYTES: usize = 4 << 20;
/// Whoever does not prove the job's token in this time is no sender.
pub const GREET: Duration = Duration::from_secs(10);
/// A receiver that grants nothing for so long is lost to its sender.
pub const SILENT: Duration = Duration::from_secs(120);

const _: () = assert!(WINDOW_BYTES >= BLOCK_BYTES_MAX as u64, "or no block could ever be sent");
const _: () = assert!(BLOCK_BYTES_MIN <= BLOCK_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES_MAX.is_multiple_of(holdfast_base::limits::SECTOR_BYTES));
