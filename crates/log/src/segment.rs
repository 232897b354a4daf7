//! Segment files: making one (zero-filled, then headed and named), reading one through a window.
//! Never decides where a commit goes. Called by the driver and by recovery.

use crate::format::{SECTOR, SegmentHeader};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Access;
use holdfast_env::{Disk, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Zeros written by one call, and the reach of one read when a segment is scanned.
pub const SCAN_BYTES: usize = 1 << 20;
const SPARE: &str = "spare";

/// An open segment.
pub struct Segment {
    pub path: PathBuf,
    pub first: u64,
    /// Synced commits go past the page cache: the fastest durable write there is.
    pub direct: Arc<dyn File>,
    /// Ordered commits and reads go through it. The kernel keeps both views of a file coherent: a
    /// write past the page cache drops the pages it covers.
    pub cached: Arc<dyn File>,
}

pub fn segment_name(first: u64) -> String {
    format!("{first:020}.seg")
}

/// The first index that a segment's name tells; `None` for other files.
pub fn first_of_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 20).then(|| digits.parse().ok())?
}

impl Segment {
    pub fn open(disk: &dyn Disk, path: PathBuf, first: u64) -> io::Result<Segment> {
        let direct = disk.open(&path, Access::Direct)?;
        let cached = disk.open(&path, Access::Cached)?;
        Ok(Segment { path, first, direct, cached })
    }
}

/// Makes the topic's spare: a file full of zeros, ahead of use. Writing into zeros that are on
/// disk needs no allocation, so a later durable write is one device write; and what is not yet
/// written reads as a clean end. A partial file is removed, so that a full disk leaves nothing.
pub fn make_spare(disk: &dyn Disk, directory: &Path, bytes: u64) -> io::Result<()> {
    let path = directory.join(SPARE);
    if disk.exists(&path)? {
        disk.remove(&path)?;
    }
    let fill = || -> io::Result<()> {
        let file = disk.create(&path, Access::Direct)?;
        file.allocate(bytes)?;
        let zeros = AlignedBuf::zeroed(SCAN_BYTES.min(bytes as usize));
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(zeros.len() as u64);
            file.write_at(&zeros[..len as usize], at)?;
            at += len;
        }
        Ok(())
    };
    let filled = fill();
    if filled.is_err() {
        // The error that matters is the first; a leftover is removed at the next attempt too.
        let _ = disk.remove(&path);
    }
    filled
}

pub fn remove_spare(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    let path = directory.join(SPARE);
    if disk.exists(&path)? { disk.remove(&path) } else { Ok(()) }
}

/// Turns the spare into the segment that `header` describes. The header is durable before the
/// name is, so a named segment always has a valid header, unless it was damaged. Returns the
/// header's CRC.
pub fn name_spare(
    disk: &dyn Disk,
    directory: &Path,
    header: &SegmentHeader,
) -> io::Result<(Segment, u32)> {
    let spare = directory.join(SPARE);
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    let crc = header.encode(&mut sector);
    disk.open(&spare, Access::Direct)?.write_at_durable(&sector, 0, "log.segment-header")?;
    let path = directory.join(segment_name(header.first));
    disk.rename(&spare, &path)?;
    disk.sync_dir(directory, "log.segment-name")?;
    Ok((Segment::open(disk, path, header.first)?, crc))
}

/// Reads a file by moving an aligned window over it. Behind the end of the file lie zeros.
pub struct Window<'a> {
    file: &'a dyn File,
    buf: AlignedBuf,
    start: u64,
    len: usize,
}

impl<'a> Window<'a> {
    /// `bytes` are read at a time, or more where one call asks for more.
    pub fn new(file: &'a dyn File, bytes: usize) -> Window<'a> {
        Window { file, buf: AlignedBuf::zeroed(bytes), start: 0, len: 0 }
    }

    /// `len` bytes from `offset` on.
    pub fn get(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let inside = offset >= self.start && offset + len as u64 <= self.start + self.len as u64;
        if !inside {
            let start = offset / SECTOR * SECTOR;
            let wanted = (offset - start) as usize + len;
            if self.buf.len() < wanted {
                self.buf = AlignedBuf::zeroed(wanted);
            }
            self.len = 0;
            let got = self.file.read_at(&mut self.buf, start)?;
            self.buf[got..].fill(0);
            (self.start, self.len) = (start, self.buf.len());
        }
        Ok(&self.buf[(offset - self.start) as usize..][..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_sort_by_index_and_come_back() {
        assert_eq!(first_of_name(&segment_name(123)), Some(123));
        assert!(segment_name(9) < segment_name(10));
        for name in ["spare", "trim", "12.seg", "x0000000000000000012.seg"] {
            assert_eq!(first_of_name(name), None, "{name}");
        }
    }
}
