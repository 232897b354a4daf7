//! Every limit that holds across crates, by name, with how they relate checked at compile time.

use crate::units::{KIB, MIB};

/// What a disk writes at once or not at all, and what no two commits share.
pub const SECTOR_BYTES: usize = 4096;

/// Capacity of a chunk. Large enough that its metadata is small beside it, small enough that a
/// lost disk's chunks spread over the whole cluster for recovery.
pub const CHUNK_BYTES: u64 = 64 * MIB;

/// Objects up to a quarter of a chunk are packed, larger ones are cut into raw chunks.
pub const PACKED_BYTES_MAX: u64 = CHUNK_BYTES / 4;

/// Raw chunks carry one checksum for each block of this size; so do needles larger than it.
pub const BLOCK_BYTES: u64 = 64 * KIB;

/// One transfer of a buffered stream; its 1 MiB buffer holds two, so one is always in flight.
pub const SLICE_BYTES: u64 = 512 * KIB;

/// Slots of one packed chunk: 64 MiB of the smallest needles.
pub const CHUNK_SLOTS_MAX: u32 = 1 << 20;

/// A frame's structured part: one page of a listing is the largest.
pub const FRAME_META_BYTES_MAX: u32 = MIB as u32;

/// A frame's bulk part: one packed object, or one append.
pub const FRAME_BODY_BYTES_MAX: u32 = PACKED_BYTES_MAX as u32;

/// Received and not yet answered bytes of one connection; past it the server stops reading.
pub const CONNECTION_BYTES_MAX: u64 = 64 * MIB;

/// Requests of one connection that wait for an answer; past it the server stops reading.
pub const CONNECTION_REQUESTS_MAX: usize = 4096;

/// A small get answers with bytes up to this size in the same frame; above, with a location.
pub const INLINE_GET_BYTES_MAX: u64 = MIB;

/// One entry of a log.
pub const ENTRY_BYTES_MAX: usize = MIB as usize;

/// A path, with its separators.
pub const PATH_BYTES_MAX: usize = 4095;
/// One component of a path.
pub const NAME_BYTES_MAX: usize = 255;
/// Components of a path.
pub const PATH_DEPTH_MAX: usize = 256;

/// Entries of one page of a directory listing.
pub const LIST_PAGE_MAX: usize = 4096;

const _: () = {
    assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES as u64));
    assert!(SLICE_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(SLICE_BYTES <= FRAME_BODY_BYTES_MAX as u64);
    // Two of the largest requests fit, so one large body never stalls its connection for good.
    assert!(
        CONNECTION_BYTES_MAX >= 2 * (FRAME_BODY_BYTES_MAX as u64 + FRAME_META_BYTES_MAX as u64)
    );
    assert!(INLINE_GET_BYTES_MAX <= FRAME_BODY_BYTES_MAX as u64);
    // A listing page of the longest names still fits into one frame.
    assert!(LIST_PAGE_MAX * (NAME_BYTES_MAX + 1) <= FRAME_META_BYTES_MAX as usize);
    assert!(ENTRY_BYTES_MAX <= FRAME_BODY_BYTES_MAX as usize);
};
