//! The temporary files: one a directory, reserved at its expected length before anything is
//! written, filled front to back in large aligned blocks; and which block belongs to which
//! partition.

use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::disk::{Access, Disk, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a block is: sectors from `offset` on, of which `bytes` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub file: usize,
    pub offset: u64,
    pub bytes: u64,
}

struct Spill {
    path: PathBuf,
    file: Arc<dyn File>,
    /// Where the next block goes.
    next: AtomicU64,
}

/// All temporary files of one sort.
pub(crate) struct Spills {
    spills: Vec<Spill>,
    /// Blocks go to the directories in turn.
    turn: AtomicU64,
}

pub(crate) fn spill_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("holdfast-sort-{id}.tmp"))
}

impl Spills {
    /// Makes one file in each of `directories`, with room for `bytes` together. Nothing is left
    /// behind if one cannot be made.
    pub fn create(
        disk: &dyn Disk,
        directories: &[PathBuf],
        id: &str,
        bytes: u64,
    ) -> Result<Spills> {
        let mut spills = Spills { spills: Vec::new(), turn: AtomicU64::new(0) };
        let share = bytes.div_ceil(directories.len().max(1) as u64);
        for directory in directories {
            let path = spill_path(directory, id);
            let made = disk.create(&path, Access::Direct).and_then(|file| {
                let allocated = file.allocate(share);
                let file = Spill { path: path.clone(), file, next: AtomicU64::new(0) };
                spills.spills.push(file);
                allocated
            });
            if let Err(e) = made {
                spills.remove(disk);
                return Err(Error::from(e).context(format_args!(
                    "reserve {} for temporary files in `{}`",
                    holdfast_base::units::format_bytes(share),
                    directory.display()
                )));
            }
        }
        Ok(spills)
    }

    /// Opens the files that a sort has left, whose blocks are `extents`.
    pub fn open<'a>(
        disk: &dyn Disk,
        directories: &[PathBuf],
        id: &str,
        extents: impl Iterator<Item = &'a Extent>,
    ) -> Result<Spills> {
        let mut spills = Spills { spills: Vec::new(), turn: AtomicU64::new(0) };
        for directory in directories {
            let path = spill_path(directory, id);
            let file = disk.open(&path, Access::Direct).map_err(|e| {
                Error::from(e)
                    .context(format_args!("resume from temporary file `{}`", path.display()))
            })?;
            spills.spills.push(Spill { path, file, next: AtomicU64::new(0) });
        }
        for Extent { file, offset, bytes } in extents {
            let end = offset + bytes.next_multiple_of(SECTOR_BYTES as u64);
            let Some(spill) = spills.spills.get(*file) else {
                return Err(Error::corrupt("resume: the manifest names a temporary file too many"));
            };
            spill.next.fetch_max(end, Ordering::Relaxed);
        }
        Ok(spills)
    }

    /// Makes all blocks durable.
    pub fn sync(&self) -> Result<()> {
        for (i, spill) in self.spills.iter().enumerate() {
            spill.file.sync("sort.spill").map_err(|e| self.failed("write", i, e))?;
        }
        Ok(())
    }

    /// Where a block of so many whole sectors goes.
    pub fn place(&self, bytes: u64) -> (usize, u64) {
        let file = (self.turn.fetch_add(1, Ordering::Relaxed) % self.spills.len() as u64) as usize;
        (file, self.spills[file].next.fetch_add(bytes, Ordering::Relaxed))
    }

    fn failed(&self, doing: &str, file: usize, e: std::io::Error) -> Error {
        let path = self.spills[file].path.display();
        Error::from(e).context(format_args!("{doing} temporary file `{path}`"))
    }

    pub fn write(&self, block: &[u8], file: usize, offset: u64) -> Result<()> {
        let written = self.spills[file].file.write_at(block, offset);
        written.map_err(|e| self.failed("write", file, e))
    }

    /// Fills whole sectors.
    pub fn read(&self, block: &mut [u8], file: usize, offset: u64) -> Result<()> {
        let read = self.spills[file].file.read_exact_at(block, offset);
        read.map_err(|e| self.failed("read", file, e))
    }

    /// Removes them all. That one cannot be removed stops nobody: its name says whose it was.
    pub fn remove(&self, disk: &dyn Disk) {
        for spill in &self.spills {
            let _ = disk.remove(&spill.path);
        }
    }
}
