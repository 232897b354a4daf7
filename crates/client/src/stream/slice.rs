//! The bytes of one slice, kept until they are acknowledged. In memory that is sent by its pages
//! where there is such memory, in a vector otherwise and where more than a slice is kept.
//! Checksums are made block by block as the bytes come, while a processor still has them at hand.

use crate::wire::chunk;
use holdfast_base::checksum::crc32c;
use holdfast_base::limits::{BLOCK_BYTES, SLICE_BYTES};
use holdfast_env::page_buf::PageBuf;
use std::ops::Deref;

#[derive(Default)]
pub(super) struct Slice {
    pub memory: Memory,
    /// Of the whole blocks, counted from the slice's start.
    crcs: Vec<u32>,
}

pub(super) enum Memory {
    Own(Vec<u8>),
    Pages(PageBuf),
}

impl Default for Memory {
    /// Takes none.
    fn default() -> Memory {
        Memory::Own(Vec::new())
    }
}

impl Slice {
    /// For a stream of many slices.
    pub fn pages() -> Slice {
        let pages = PageBuf::with_capacity(SLICE_BYTES as usize);
        Slice { memory: pages.map_or_else(|_| Memory::default(), Memory::Pages), crcs: Vec::new() }
    }

    pub fn extend_from_slice(&mut self, mut bytes: &[u8]) {
        if let Memory::Pages(pages) = &self.memory
            && pages.room() < bytes.len()
        {
            self.memory = Memory::Own(pages.to_vec());
        }
        while !bytes.is_empty() {
            let begun = self.len() % BLOCK_BYTES as usize;
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES as usize - begun));
            match &mut self.memory {
                Memory::Own(own) => own.extend_from_slice(now),
                Memory::Pages(pages) => pages.extend_from_slice(now),
            }
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
        match &mut self.memory {
            Memory::Own(own) => own.truncate(at),
            Memory::Pages(pages) => pages.truncate(at),
        }
        self.crcs.truncate(at / BLOCK_BYTES as usize);
        rest
    }

    pub fn clear(&mut self) {
        match &mut self.memory {
            Memory::Own(own) => own.clear(),
            Memory::Pages(pages) => pages.truncate(0),
        }
        self.crcs.clear();
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(own) => own,
            Memory::Pages(pages) => pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outgrows_its_pages_is_kept_all_the_same() {
        let bytes: Vec<u8> = (0..SLICE_BYTES as u32 + 10).map(|i| (i / 7) as u8).collect();
        for mut slice in [Slice::pages(), Slice::default()] {
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
        }
        let mut slice = Slice::pages();
        slice.extend_from_slice(&bytes[..1000]);
        let rest = slice.split_off(10);
        assert!(slice[..] == bytes[..10] && rest[..] == bytes[10..1000]);
        slice.clear();
        slice.extend_from_slice(b"again");
        assert_eq!(slice.piece_crcs(0), [crc32c(b"again")]);
        assert_eq!(&slice[..], b"again");
    }
}
