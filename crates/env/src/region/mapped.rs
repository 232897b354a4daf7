//! A client's view of a server's region: read-only, and never a reference into it, because the
//! server may reuse a frame at any time. Copy, then compare the frame's generation.

use super::header::{FRAME_BYTES, Header};
use super::memfd::{self, Mapping};
use holdfast_base::ids::StoreId;
use holdfast_base::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

pub struct MappedRegion {
    mapping: Mapping,
    header: Header,
}

impl MappedRegion {
    /// Maps a descriptor that came from [`super::Region::client_fd`].
    pub fn from_fd(fd: &OwnedFd) -> Result<MappedRegion> {
        let doing = "map the server's memory region";
        let io = |e: std::io::Error| Error::from(e).context(doing);
        // Without this seal the server could shrink the file, and a read would be a SIGBUS.
        if !memfd::size_is_sealed(fd).map_err(io)? {
            return Err(Error::invalid(format!("{doing}: its size is not sealed")));
        }
        let bytes = memfd::size(fd).map_err(io)?;
        if bytes < FRAME_BYTES {
            return Err(Error::invalid(format!("{doing}: it has only {bytes} bytes")));
        }
        let mapping = Mapping::read_only(fd, bytes as usize).map_err(io)?;
        let header = Header::read(&mapping, bytes).map_err(|e| e.context(doing))?;
        Ok(MappedRegion { mapping, header })
    }

    pub fn store(&self) -> StoreId {
        self.header.store
    }

    pub fn frames(&self) -> u64 {
        self.header.frames
    }

    /// The frame that holds byte `offset` of the memfd; nothing if none does.
    pub fn frame_of(&self, offset: u64) -> Option<u64> {
        let frame = offset.checked_sub(self.header.frames_offset)? / FRAME_BYTES;
        (frame < self.header.frames).then_some(frame)
    }

    /// Read before a copy; the copy counts if [`MappedRegion::unchanged`] says so afterwards.
    pub fn generation(&self, frame: u64) -> u64 {
        self.header.generation(&self.mapping, frame).load(Ordering::Acquire)
    }

    /// Whether `frame` still has the generation that was read before a copy out of it.
    pub fn unchanged(&self, frame: u64, generation: u64) -> bool {
        // Keeps the copy's loads before this load.
        fence(Ordering::Acquire);
        self.header.generation(&self.mapping, frame).load(Ordering::Relaxed) == generation
    }

    /// Copies bytes that may be changing meanwhile; refuses a range outside the frames.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(target.len() as u64);
        if offset < self.header.frames_offset || end.is_none_or(|e| e > self.header.region_bytes) {
            return Err(Error::invalid(format!(
                "copy {} bytes at {offset} out of a region of {} bytes: outside its frames",
                target.len(),
                self.header.region_bytes
            )));
        }
        self.mapping.copy_out(offset, target);
        Ok(())
    }
}
