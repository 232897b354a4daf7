//! The node's memory region, mapped once: a read of it is a copy, checked afterwards.

use crate::connection::Connection;
use holdfast_base::codec::Decode;
use holdfast_base::{Error, Result};
use holdfast_env::region::MappedRegion;
use holdfast_wire as wire;
use holdfast_wire::chunk::{Piece, RegionOffer};

pub struct Mapping {
    region: MappedRegion,
}

impl Mapping {
    /// Asks for the region and maps it; refused where the node is not on this host.
    pub fn request(connection: &mut Connection) -> Result<Mapping> {
        let response = connection.call(wire::OP_REGION, |_| {}, &[])?;
        let offer = RegionOffer::from_bytes(response.meta())?;
        let fd = connection.take_fd().ok_or_else(|| {
            Error::bug("map the region: the node's answer came without a descriptor")
        })?;
        let region = MappedRegion::from_fd(&fd)?;
        if region.store() != offer.store {
            return Err(Error::fenced(
                "map the region: the node has another one by now; map again",
            ));
        }
        Ok(Mapping { region })
    }

    /// Copies all pieces, in order, into `out`; false if a frame was reused meanwhile.
    pub fn copy(&self, pieces: &[Piece], out: &mut [u8]) -> Result<bool> {
        self.copy_range(pieces, 0, out)
    }

    /// Copies `out.len()` bytes from `start` of the run that the pieces make.
    pub fn copy_range(&self, pieces: &[Piece], start: u64, out: &mut [u8]) -> Result<bool> {
        let mut before = 0;
        let mut done = 0;
        for piece in pieces {
            let bytes = piece.bytes as u64;
            let skip = (start + done as u64).saturating_sub(before).min(bytes);
            let n = ((bytes - skip) as usize).min(out.len() - done);
            if before + bytes > start && n > 0 {
                let offset = piece.offset + skip;
                self.region.copy_out(offset, &mut out[done..done + n])?;
                let Some(frame) = self.region.frame_of(offset) else { return Ok(false) };
                if !self.region.unchanged(frame, piece.frame_generation) {
                    return Ok(false);
                }
                done += n;
            }
            before += bytes;
            if done == out.len() {
                return Ok(true);
            }
        }
        Ok(done == out.len())
    }
}
