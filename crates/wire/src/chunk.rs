//! Messages that move a chunk's bytes.

use holdfast_base::checksum::crc32c;
use holdfast_base::codec_struct;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Pointer, StoreId};
use holdfast_base::limits::BLOCK_BYTES;

/// Appends the frame's body to an open raw chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub chunk: ChunkId,
    /// Where the body belongs: the chunk's length before it. Another value is refused.
    pub at: u64,
    pub durability: Durability,
    /// CRC32C of each piece of the body, cut at the chunk's 64 KiB block borders.
    pub crcs: Vec<u32>,
}
codec_struct!(Append { chunk, at, durability, crcs });

/// Names a run of bytes of one generation of a raw chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub offset: u64,
    pub bytes: u32,
}
codec_struct!(Read { chunk, generation, offset, bytes });

/// Names part of a packed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadObject {
    pub pointer: Pointer,
    pub offset: u64,
    pub bytes: u32,
    /// Whose bytes they are: a client that may not read all files is answered if it may read this
    /// one. Nothing else is asked of it.
    pub file: FileId,
}
codec_struct!(ReadObject { pointer, offset, bytes, file });

/// Checksums of what a read returned, one a piece cut at 64 KiB block borders. Of a raw chunk
/// `crc32c(bytes) ^ stamp(chunk, generation, block)`, for whole blocks the stored ones, which the
/// reader verifies; of an object, which the server verified, `crc32c(bytes)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadReply {
    pub crcs: Vec<u32>,
}
codec_struct!(ReadReply { crcs });

/// CRC32C of each piece of `bytes`, which belong at `at`, cut at 64 KiB block borders.
pub fn piece_crcs(at: u64, bytes: &[u8]) -> Vec<u32> {
    pieces(at, bytes).map(crc32c).collect()
}

/// `bytes`, which belong at `at`, cut at 64 KiB block borders.
pub fn pieces(at: u64, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let first = ((BLOCK_BYTES - at % BLOCK_BYTES) as usize).min(bytes.len());
    let (head, tail) = bytes.split_at(first);
    std::iter::once(head).chain(tail.chunks(BLOCK_BYTES as usize))
}

/// The region that comes with this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOffer {
    pub store: StoreId,
    pub region_bytes: u64,
}
codec_struct!(RegionOffer { store, region_bytes });

/// Where bytes lie in the mapped region, with the checksums to verify them by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub pieces: Vec<Piece>,
    pub crcs: Vec<u32>,
}
codec_struct!(Located { pieces, crcs });

/// A contiguous run in one frame of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes from the start of the mapping.
    pub offset: u64,
    pub bytes: u32,
    /// The frame's generation; what was copied counts only if it is still the same afterwards.
    pub frame_generation: u64,
}
codec_struct!(Piece { offset, bytes, frame_generation });
