//! A receiver's file: blocks of all its partitions, front to back as they arrive. It has no name,
//! so that it is gone with the process.

use crate::ledger::Extent;
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
    end: AtomicU64,
    read: AtomicU64,
}

impl Spool {
    pub fn create(disk: &dyn Disk, directory: &Path, name: &str) -> Result<Spool> {
        let path = directory.join(name);
        let file = disk.create_unnamed(&path, Access::Direct);
        let file = file.map_err(|e| {
            Error::from(e).context(format_args!("receive records in `{}`", directory.display()))
        })?;
        let (end, read) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Spool { directory: directory.to_owned(), file, end, read })
    }

    /// Writes the first `bytes` of a block at the end.
    pub fn write(&self, block: &mut AlignedBuf, bytes: usize, crc: u32) -> Result<Extent> {
        let whole = bytes.next_multiple_of(SECTOR_BYTES);
        assert!(bytes > 0 && whole <= block.len(), "{bytes} bytes of {}", block.len());
        block[bytes..whole].fill(0);
        let offset = self.end.fetch_add(whole as u64, Ordering::Relaxed);
        self.file.write_at(&block[..whole], offset).map_err(|e| {
            Error::from(e)
                .context(format_args!("write what arrives to `{}`", self.directory.display()))
        })?;
        Ok(Extent { offset, bytes: bytes as u32, crc })
    }

    /// Reads a block, and checks that it is what its sender sent. `block` has its whole sectors.
    pub fn read(&self, extent: Extent, block: &mut [u8]) -> Result<()> {
        let whole = (extent.bytes as usize).next_multiple_of(SECTOR_BYTES);
        assert_eq!(block.len(), whole, "a block is read with the sectors that it was written with");
        self.file.read_exact_at(block, extent.offset).map_err(|e| {
            Error::from(e).context(format_args!("read back from `{}`", self.directory.display()))
        })?;
        self.read.fetch_add(whole as u64, Ordering::Relaxed);
        let found = crc32c(&block[..extent.bytes as usize]);
        if found != extent.crc && !planted!("shuffle.block-unchecked") {
            return Err(Error::corrupt(format!(
                "read back from `{}`: a block at byte {} is not what was written: its disk or memory is bad",
                self.directory.display(),
                extent.offset
            )));
        }
        Ok(())
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
            let whole = (extent.bytes as usize).next_multiple_of(SECTOR_BYTES);
            let read = self.spool.read(extent, &mut self.block[..whole]);
            read.map_err(std::io::Error::other)?;
            (self.at, self.end) = (0, extent.bytes as usize);
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

    /// What a disk gives back is compared with what the mapper sent, not with what was written.
    #[test]
    fn a_block_that_is_not_what_was_sent_is_not_given_out() {
        let name = format!("holdfast-spool-{}", std::process::id());
        let spool = Spool::create(&RealDisk, &std::env::temp_dir(), &name).unwrap();
        let mut block = AlignedBuf::zeroed(SECTOR_BYTES);
        block[..5].copy_from_slice(b"bytes");
        let good = spool.write(&mut block, 5, crc32c(b"bytes")).unwrap();
        let bad = spool.write(&mut block, 5, crc32c(b"other")).unwrap();
        spool.read(good, &mut block).unwrap();
        assert_eq!(&block[..5], b"bytes");
        assert!(spool.read(bad, &mut block).is_err());
        let mut both = Vec::new();
        SpoolReader::new(Arc::new(spool), vec![good, good]).read_to_end(&mut both).unwrap();
        assert_eq!(both, b"bytesbytes");
    }
}
