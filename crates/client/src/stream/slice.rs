//! The bytes of one slice, kept until they are acknowledged. Checksums are made block by block as
//! the bytes come, while a processor still has them at hand.

use holdfast_base::checksum::crc32c;
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_wire::chunk;
use std::ops::Deref;

#[derive(Default)]
pub(super) struct Slice {
    bytes: Vec<u8>,
    /// Of the whole blocks, counted from the slice's start.
    crcs: Vec<u32>,
}

impl Slice {
    pub fn extend_from_slice(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let begun = self.len() % BLOCK_BYTES as usize;
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES as usize - begun));
            self.bytes.extend_from_slice(now);
            if self.len().is_multiple_of(BLOCK_BYTES as usize) {
                let block = &self[self.len() - BLOCK_BYTES as usize..];
                self.crcs.push(crc32c(block));
            }
            bytes = later;
        }
    }

    /// CRC32C of its pieces where it belongs at `at`, cut at 64 KiB block borders.
    pub fn piece_crcs(&self, at: u64) -> Vec<u32> {
        if !at.is_multiple_of(BLOCK_BYTES) {
            return chunk::piece_crcs(at, self);
        }
        let mut crcs = self.crcs.clone();
        let rest = &self[crcs.len() * BLOCK_BYTES as usize..];
        if !rest.is_empty() {
            crcs.push(crc32c(rest));
        }
        crcs
    }

    /// Keeps the first `at` bytes and returns the others.
    pub fn split_off(&mut self, at: usize) -> Slice {
        let mut rest = Slice::default();
        rest.extend_from_slice(&self[at..]);
        self.bytes.truncate(at);
        self.crcs.truncate(at / BLOCK_BYTES as usize);
        rest
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.crcs.clear();
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_knows_its_checksums_whatever_was_done_to_it() {
        let bytes: Vec<u8> = (0..520_000u32).map(|i| (i / 7) as u8).collect();
        let mut slice = Slice::default();
        slice.extend_from_slice(&bytes[..1000]);
        slice.extend_from_slice(&bytes[1000..]);
        assert!(slice[..] == bytes[..]);
        for cut in [200_000, BLOCK_BYTES as usize, 999] {
            let rest = slice.split_off(cut);
            assert!(slice[..] == bytes[..cut], "{cut}");
            for at in [0, BLOCK_BYTES, 77] {
                assert_eq!(slice.piece_crcs(at), chunk::piece_crcs(at, &slice), "{cut}");
                assert_eq!(rest.piece_crcs(at), chunk::piece_crcs(at, &rest), "{cut}");
            }
        }
        slice.clear();
        slice.extend_from_slice(b"again");
        assert_eq!(slice.piece_crcs(0), [crc32c(b"again")]);
        assert_eq!(&slice[..], b"again");
    }
}
