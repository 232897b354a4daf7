//! The temporary files: one a directory, reserved at its expected length before anything is
//! written, filled front to back in large aligned blocks; and which block belongs to which
//! partition.

use crate::progress::Progress;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::disk::{Access, Disk, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a block is: sectors from `offset` on, of which `bytes` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpillExtent {
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

/// All temporary files of one sort. They are read through [`Settled`] alone.
pub(crate) struct Spills {
    spills: Vec<Spill>,
    /// Blocks go to the directories in turn.
    turn: AtomicU64,
}

pub(crate) fn spill_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("holdfast-sort-{id}.tmp"))
}

impl Spills {
    /// Makes one file in each of `directories`, with room for `bytes` together. Only those of a
    /// sort that may be resumed are `named`: others are gone with their process, however it ends.
    pub fn create(
        disk: &dyn Disk,
        directories: &[PathBuf],
        id: &str,
        bytes: u64,
        named: Option<&Progress>,
    ) -> Result<Spills> {
        let mut spills = Spills { spills: Vec::new(), turn: AtomicU64::new(0) };
        let share = bytes.div_ceil(directories.len().max(1) as u64);
        for directory in directories {
            let path = spill_path(directory, id);
            let made = match named {
                Some(progress) => {
                    progress.name(&path, || disk.create_private(&path, Access::Direct))
                }
                None => disk.create_unnamed(&path, Access::Direct),
            };
            let made = made.and_then(|file| {
                let allocated = file.allocate(share);
                let file = Spill { path: path.clone(), file, next: AtomicU64::new(0) };
                spills.spills.push(file);
                allocated
            });
            made.map_err(|e| {
                Error::from(e).context(format_args!(
                    "reserve {} for temporary files in `{}`",
                    holdfast_base::units::format_bytes(share),
                    directory.display()
                ))
            })?;
        }
        Ok(spills)
    }

    /// Opens the files that a sort has left, whose blocks are `extents`.
    pub fn open<'a>(
        disk: &dyn Disk,
        directories: &[PathBuf],
        id: &str,
        extents: impl Iterator<Item = &'a SpillExtent>,
        progress: &Progress,
    ) -> Result<Spills> {
        let mut spills = Spills { spills: Vec::new(), turn: AtomicU64::new(0) };
        for directory in directories {
            let path = spill_path(directory, id);
            let opened = progress.name(&path, || disk.open(&path, Access::Direct));
            let file = opened.map_err(|e| {
                Error::from(e)
                    .context(format_args!("resume from temporary file `{}`", path.display()))
            })?;
            spills.spills.push(Spill { path, file, next: AtomicU64::new(0) });
        }
        for SpillExtent { file, offset, bytes } in extents {
            let end = offset + bytes.next_multiple_of(SECTOR_BYTES as u64);
            let Some(spill) = spills.spills.get(*file) else {
                return Err(Error::corrupt("resume: the manifest names a temporary file too many"));
            };
            spill.next.fetch_max(end, Ordering::Relaxed);
        }
        Ok(spills)
    }

    /// Makes all blocks durable, and the files' names.
    pub fn sync(&self, disk: &dyn Disk) -> Result<()> {
        for (i, spill) in self.spills.iter().enumerate() {
            let parent = spill.path.parent().filter(|p| !p.as_os_str().is_empty());
            let synced = spill
                .file
                .sync("sort.spill")
                .and_then(|()| disk.sync_dir(parent.unwrap_or(Path::new(".")), "sort.spill_name"));
            synced.map_err(|e| self.failed("write", i, e))?;
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
        assert!(block.len().is_multiple_of(SECTOR_BYTES), "blocks are whole sectors");
        let written = self.spills[file].file.write_at(block, offset);
        written.map_err(|e| self.failed("write", file, e))
    }
}

/// Temporary files in which every block is that was on its way to them: only now may they be read.
/// Made by [`crate::distribute::Outbox::settle`].
#[derive(Clone, Copy)]
pub(crate) struct Settled<'a>(&'a Spills);

impl<'a> Settled<'a> {
    /// Of `spills` that nobody else writes to.
    pub fn new(spills: &'a Spills) -> Settled<'a> {
        Settled(spills)
    }

    /// Fills whole sectors.
    pub fn read(self, block: &mut [u8], file: usize, offset: u64) -> Result<()> {
        assert!(block.len().is_multiple_of(SECTOR_BYTES), "temporary files are read by sectors");
        let end = offset + block.len() as u64;
        assert!(end <= self.0.spills[file].next.load(Ordering::Relaxed), "nobody wrote there");
        let read = self.0.spills[file].file.read_exact_at(block, offset);
        read.map_err(|e| self.0.failed("read", file, e))
    }

    /// A block more, written at once.
    pub fn add(self, block: &[u8]) -> Result<(usize, u64)> {
        let (file, offset) = self.0.place(block.len() as u64);
        self.0.write(block, file, offset)?;
        Ok((file, offset))
    }
}
