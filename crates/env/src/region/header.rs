//! The region's first bytes, which a client reads to find the frames. Little-endian:
//! magic 8, version 4, zero 4, store id 8, region bytes 8, frames 8, offset of frame 0 8.

use super::memfd::Mapping;
use holdfast_base::ids::StoreId;
use holdfast_base::units::{GIB, MIB};
use holdfast_base::{Error, Result};
use std::sync::atomic::AtomicU64;

pub const MAGIC: [u8; 8] = *b"HFREGION";
pub const VERSION: u32 = 1;
/// What is allocated, and what one generation covers.
pub const FRAME_BYTES: u64 = MIB;
/// The table of generations follows the header page.
pub const GENERATIONS_OFFSET: u64 = 4096;

const HEADER_BYTES: usize = 48;
/// Bounds what a client maps on a server's word, and keeps every sum far from overflow.
const REGION_BYTES_MAX: u64 = 16 * 1024 * GIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub store: StoreId,
    pub region_bytes: u64,
    pub frames: u64,
    pub frames_offset: u64,
}

impl Header {
    pub fn for_frames(store: StoreId, frames: u64) -> Result<Header> {
        if frames > REGION_BYTES_MAX / FRAME_BYTES {
            return Err(Error::invalid(format!(
                "a region has at most {REGION_BYTES_MAX} bytes: ask for less"
            )));
        }
        let frames_offset = (GENERATIONS_OFFSET + frames * 8).next_multiple_of(FRAME_BYTES);
        let region_bytes = frames_offset + frames * FRAME_BYTES;
        Ok(Header { store, region_bytes, frames, frames_offset })
    }

    pub fn write(&self, mapping: &Mapping) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(VERSION as u64).to_le_bytes());
        for field in [self.store.0, self.region_bytes, self.frames, self.frames_offset] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        // SAFETY: the mapping is new, writable, longer than the header and not yet shared.
        unsafe { mapping.slice_mut(0, HEADER_BYTES) }.copy_from_slice(&bytes);
    }

    /// Reads and checks what another process wrote into a file of `file_bytes`.
    pub fn read(mapping: &Mapping, file_bytes: u64) -> Result<Header> {
        let mut bytes = [0; HEADER_BYTES];
        mapping.copy_out(0, &mut bytes);
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were sliced"))
        };
        if bytes[..8] != MAGIC {
            return Err(Error::invalid("the descriptor is not a memory region of Holdfast"));
        }
        if u64_at(8) != VERSION as u64 {
            return Err(Error::unsupported(format!(
                "the region has version {}, this build knows {VERSION}: use matching builds",
                u64_at(8)
            )));
        }
        let header = Header::for_frames(StoreId(u64_at(16)), u64_at(32))?;
        if header.region_bytes != u64_at(24)
            || header.frames_offset != u64_at(40)
            || header.region_bytes != file_bytes
        {
            return Err(Error::corrupt("the region's header contradicts its size: map it anew"));
        }
        Ok(header)
    }

    pub fn generation<'a>(&self, mapping: &'a Mapping, frame: u64) -> &'a AtomicU64 {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        mapping.atomic(GENERATIONS_OFFSET + frame * 8)
    }
}
