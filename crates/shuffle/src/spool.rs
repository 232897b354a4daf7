//! Where a receiver has the blocks of its partitions: in memory as long as there is room, then in one
//! file, front to back as they arrive. It has no name, so that it is gone with the process.

use crate::kept::Room;
use crate::ledger::{Extent, Place};
use crate::limits::BLOCK_BYTES_MAX;
use holdfast_base::checksum::crc32c;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::planted;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Spool {
    pub directory: PathBuf,
    file: Arc<dyn File>,
    room: Room,
    end: AtomicU64,
    read: AtomicU64,
}

impl Spool {
    /// In a directory, beside `kept_bytes` of memory.
    pub fn create(disk: &dyn Disk, directory: &Path, name: &str, kept_bytes: u64) -> Result<Spool> {
        let path = directory.join(name);
        let file = disk.create_unnamed(&path, Access::Direct);
        let file = file.map_err(|e| {
            Error::from(e).context(format_args!("receive records in `{}`", directory.display()))
        })?;
        let (end, read) = (AtomicU64::new(0), AtomicU64::new(0));
        let room = Room::new(kept_bytes);
        Ok(Spool { directory: directory.to_owned(), file, room, end, read })
    }

    /// Takes the first `bytes` of a block: into memory, or at the end of the file.
    pub fn take(&self, block: &mut AlignedBuf, bytes: usize, crc: u32) -> Result<Extent> {
        if let Some(kept) = self.room.keep(&block[..bytes]) {
            return Ok(Extent { place: Place::Memory(kept), bytes: bytes as u32, crc });
        }
        let whole = bytes.next_multiple_of(SECTOR_BYTES);
        assert!(bytes > 0 && whole <= block.len(), "{bytes} bytes of {}", block.len());
        block[bytes..whole].fill(0);
        let offset = self.end.fetch_add(whole as u64, Ordering::Relaxed);
        self.file.write_at(&block[..whole], offset).map_err(|e| {
            Error::from(e)
                .context(format_args!("write what arrives to `{}`", self.directory.display()))
        })?;
        Ok(Extent { place: Place::File(offset), bytes: bytes as u32, crc })
    }

    /// A block's bytes, which are what its sender sent: in memory, or read into `block`, which has its
    /// whole sectors.
    pub fn read<'a>(&self, extent: &'a Extent, block: &'a mut [u8]) -> Result<&'a [u8]> {
        let bytes = match &extent.place {
            Place::Memory(kept) => kept.bytes(),
            Place::File(offset) => {
                assert_eq!(block.len(), extent.room(), "a block is read with its whole sectors");
                self.file.read_exact_at(block, *offset).map_err(|e| {
                    let from =
                        format_args!("read back from `{}`", self.directory.display()).to_string();
                    Error::from(e).context(from)
                })?;
                self.read.fetch_add(block.len() as u64, Ordering::Relaxed);
                &block[..extent.bytes as usize]
            }
        };
        if crc32c(bytes) != extent.crc && !planted!("shuffle.block-unchecked") {
            return Err(Error::corrupt(format!(
                "read back from `{}`: a block is not what arrived: its disk or memory is bad",
                self.directory.display()
            )));
        }
        Ok(bytes)
    }

    /// Bytes written and read.
    pub fn moved(&self) -> (u64, u64) {
        (self.end.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }
}

/// The bytes of extents, one after the other.
pub struct SpoolReader {
    spool: Arc<Spool>,
    left: std::vec::IntoIter<Extent>,
    block: AlignedBuf,
    at: usize,
    end: usize,
}

impl SpoolReader {
    pub fn new(spool: Arc<Spool>, extents: Vec<Extent>) -> SpoolReader {
        let block = AlignedBuf::zeroed(BLOCK_BYTES_MAX);
        SpoolReader { spool, left: extents.into_iter(), block, at: 0, end: 0 }
    }
}

impl Read for SpoolReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.end {
            let Some(extent) = self.left.next() else { return Ok(0) };
            let read = self.spool.read(&extent, &mut self.block[..extent.room()]);
            let bytes = read.map_err(std::io::Error::other)?.len();
            if let Place::Memory(kept) = &extent.place {
                self.block[..bytes].copy_from_slice(kept.bytes());
            }
            (self.at, self.end) = (0, bytes);
        }
        let bytes = out.len().min(self.end - self.at);
        out[..bytes].copy_from_slice(&self.block[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::RealDisk;

    fn spool(name: &str, kept_bytes: u64) -> Spool {
        let name = format!("holdfast-{name}-{}", std::process::id());
        Spool::create(&RealDisk, &std::env::temp_dir(), &name, kept_bytes).unwrap()
    }

    /// What a disk or memory gives back is compared with what the mapper sent, not with what was written.
    #[test]
    fn a_block_that_is_not_what_was_sent_is_not_given_out() {
        for kept_bytes in [0, 10] {
            let spool = spool("spool", kept_bytes);
            let mut block = AlignedBuf::zeroed(SECTOR_BYTES);
            block[..5].copy_from_slice(b"bytes");
            let good = spool.take(&mut block, 5, crc32c(b"bytes")).unwrap();
            let bad = spool.take(&mut block, 5, crc32c(b"other")).unwrap();
            assert_eq!(spool.moved(), (2 * (SECTOR_BYTES as u64) * u64::from(kept_bytes == 0), 0));
            block[..5].fill(0);
            assert_eq!(spool.read(&good, &mut block[..good.room()]).unwrap(), b"bytes");
            assert!(spool.read(&bad, &mut block[..bad.room()]).is_err());
            let mut both = Vec::new();
            let extents = vec![good.clone(), good];
            SpoolReader::new(Arc::new(spool), extents).read_to_end(&mut both).unwrap();
            assert_eq!(both, b"bytesbytes");
        }
    }

    /// Blocks of several lengths come, and are forgotten in any order: what is kept never exceeds its room, and
    /// when all are forgotten the room is what it was.
    #[test]
    fn blocks_are_kept_while_there_is_room_which_comes_back_with_them() {
        let mut random = holdfast_base::random::Random::new(3);
        let spool = spool("kept", 10_000);
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES_MAX);
        let (mut held, mut written): (Vec<Extent>, _) = (Vec::new(), 0);
        for step in 0..2000usize {
            let bytes = [1, 4095, 4096, 4097, 9999, 10_000, 10_001][random.next() as usize % 7];
            block[..bytes].fill(step as u8);
            let crc = crc32c(&block[..bytes]);
            let extent = spool.take(&mut block, bytes, crc).unwrap();
            let kept =
                |e: &Extent| matches!(e.place, Place::Memory(_)).then_some(u64::from(e.bytes));
            let before: u64 = held.iter().filter_map(kept).sum();
            assert_eq!(kept(&extent).is_some(), before + bytes as u64 <= 10_000);
            written += usize::from(kept(&extent).is_none());
            held.push(extent);
            if held.len() > 3 {
                let gone = held.swap_remove(random.next() as usize % held.len());
                let mut into = AlignedBuf::zeroed(gone.room().max(SECTOR_BYTES));
                let room = gone.room();
                assert_eq!(
                    spool.read(&gone, &mut into[..room]).unwrap().len(),
                    gone.bytes as usize
                );
            }
        }
        drop(held);
        assert_eq!(spool.room.left_bytes(), 10_000);
        assert!((100..1900).contains(&written), "{written}");
    }
}
