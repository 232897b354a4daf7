//! Where the sorted bytes of a partition go: to their place in a file, which the partitions beside it
//! write at the same time, or in pieces to whoever asks for them.

use crate::limits::OUTPUT_BYTES;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::planted;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Takes bytes front to back.
pub trait Sink: Send + 'static {
    /// Takes the next bytes, of any length.
    fn push(&mut self, bytes: &[u8]) -> Result<()>;
    /// Hands on what is left; a file is durable then.
    fn finish(&mut self) -> Result<()>;
}

/// Hands bytes to a function, many at a time; no record is cut that fits such a piece.
pub struct Pieces<F> {
    each: F,
    piece: Vec<u8>,
}

impl<F: FnMut(&[u8]) -> Result<()>> Pieces<F> {
    /// To `each`, in pieces of up to [`OUTPUT_BYTES`] or one longer record.
    pub fn new(each: F) -> Pieces<F> {
        Pieces { each, piece: Vec::new() }
    }
}

impl<F: FnMut(&[u8]) -> Result<()> + Send + 'static> Sink for Pieces<F> {
    #[inline]
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.piece.len() + bytes.len() > OUTPUT_BYTES && !self.piece.is_empty() {
            self.finish()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if !self.piece.is_empty() {
            (self.each)(&self.piece)?;
            self.piece.clear();
        }
        Ok(())
    }
}

/// Consecutive bytes of a file, from any byte on. Whole sectors go past the page cache, where a copy
/// and a page a sector would cost more than the sort. A sector at either end is the neighbour's too,
/// who may be another process: its bytes go through the page cache, which both share.
pub struct FilePart {
    path: PathBuf,
    sectors: Arc<dyn File>,
    edges: Arc<dyn File>,
    block: AlignedBuf,
    /// What is filled of the block; it lies in it as it does in its sectors.
    start: usize,
    end: usize,
    /// Where the byte at `start` belongs.
    offset: u64,
}

impl FilePart {
    /// Of a file that exists.
    pub fn open(disk: &dyn Disk, path: &Path, offset: u64) -> Result<FilePart> {
        let open = |access| disk.open(path, access).map_err(|e| failed(path, e));
        let (sectors, edges) = (open(Access::Direct)?, open(Access::Cached)?);
        let start = (offset % SECTOR_BYTES as u64) as usize;
        let (block, path) = (AlignedBuf::zeroed(OUTPUT_BYTES), path.to_owned());
        Ok(FilePart { path, sectors, edges, block, start, end: start, offset })
    }

    fn flush(&mut self) -> Result<()> {
        let (start, end) = (self.start, self.end);
        let first = start.next_multiple_of(SECTOR_BYTES).min(end);
        let last = (end / SECTOR_BYTES * SECTOR_BYTES).max(first);
        let write = |file: &dyn File, from: usize, to: usize| -> Result<()> {
            if from == to {
                return Ok(());
            }
            let at = self.offset + (from - start) as u64;
            file.write_at(&self.block[from..to], at).map_err(|e| failed(&self.path, e))
        };
        write(&*self.edges, start, first)?;
        write(&*self.sectors, first, last)?;
        if !planted!("shuffle.last-edge-lost") {
            write(&*self.edges, last, end)?;
        }
        self.offset += (end - start) as u64;
        self.start = (self.offset % SECTOR_BYTES as u64) as usize;
        self.end = self.start;
        Ok(())
    }
}

impl Sink for FilePart {
    #[inline]
    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            let n = bytes.len().min(self.block.len() - self.end);
            self.block[self.end..self.end + n].copy_from_slice(&bytes[..n]);
            self.end += n;
            if n == bytes.len() {
                return Ok(());
            }
            bytes = &bytes[n..];
            self.flush()?;
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()?;
        // Both handles are of one file, and this is of all that it holds.
        self.edges.sync("shuffle.output").map_err(|e| failed(&self.path, e))
    }
}

fn failed(path: &Path, e: std::io::Error) -> Error {
    Error::from(e).context(format_args!("write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;
    use holdfast_env::RealDisk;

    /// A file that is cut into parts at and beside the borders of sectors and blocks, of which some
    /// are less than a sector and some are nothing: all of them, written at once in turns, are the file.
    #[test]
    fn parts_that_share_sectors_are_one_file() {
        let sector = SECTOR_BYTES as u64;
        let block = OUTPUT_BYTES as u64;
        let length = 2 * block + 3 * sector + 77;
        for seed in 0..3 {
            let mut random = Random::new(seed);
            let whole: Vec<u8> = (0..length).map(|i| ((i * 31) >> 5) as u8).collect();
            let mut cuts = vec![0, 1, 1, 100, sector - 1, sector, sector + 1, 2 * sector, length];
            cuts.extend([block + 5, 2 * block + 1, random.next() % length, random.next() % length]);
            cuts.sort_unstable();
            let name = format!("holdfast-parts-{}-{seed}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let file = RealDisk.create(&path, Access::Cached).unwrap();
            let open = |cut: &[u64]| {
                let part = FilePart::open(&RealDisk, &path, cut[0]).unwrap();
                (part, &whole[cut[0] as usize..cut[1] as usize])
            };
            let mut parts: Vec<_> = cuts.windows(2).map(open).collect();
            while !parts.is_empty() {
                let pick = random.next() as usize % parts.len();
                let (part, left) = &mut parts[pick];
                let most = [3, 5000, block + 9][random.next() as usize % 3];
                let n = left.len().min(1 + (random.next() % most) as usize);
                part.push(&left[..n]).unwrap();
                *left = &left[n..];
                if left.is_empty() {
                    parts.swap_remove(pick).0.finish().unwrap();
                }
            }
            let mut found = vec![0; length as usize + 1];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), length as usize);
            assert!(found[..length as usize] == whole, "seed {seed}");
            RealDisk.remove(&path).unwrap();
        }
    }

    #[test]
    fn pieces_are_long_and_cut_no_record() {
        let got = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = got.clone();
        let mut pieces = Pieces::new(move |piece: &[u8]| {
            to.lock().unwrap().push(piece.len());
            Ok(())
        });
        for length in [3, OUTPUT_BYTES - 3, 1, OUTPUT_BYTES + 5, 2] {
            pieces.push(&vec![0; length]).unwrap();
        }
        pieces.finish().unwrap();
        pieces.finish().unwrap();
        assert_eq!(*got.lock().unwrap(), [OUTPUT_BYTES, 1, OUTPUT_BYTES + 5, 2]);
    }
}
