//! The sort benchmark's records: their generator, compatible with gensort 1.5, and the checker of
//! a sorted file, compatible with valsort 1.5.

pub mod check;
pub mod generate;

/// Of one record, its key in front.
pub const RECORD_BYTES: usize = 100;
pub const KEY_BYTES: usize = 10;
/// Records that a thread makes or checks at a time: a multiple of a sector, too.
const BATCH_RECORDS: u64 = 40_960;
const BATCH_BYTES: usize = BATCH_RECORDS as usize * RECORD_BYTES;

const _: () = assert!(BATCH_BYTES.is_multiple_of(holdfast_base::limits::SECTOR_BYTES));
