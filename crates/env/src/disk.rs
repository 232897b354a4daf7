//! Files. One trait, used by production ([`RealDisk`]), by the simulated disk in `sim` and by
//! every crash test alike. Calls block; who must not wait calls them from a thread of its own.

mod overlay;
mod real;

pub use overlay::Overlay;
pub use real::RealDisk;

use holdfast_base::limits::SECTOR_BYTES;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache.
    Cached,
    /// Past the page cache where the file system can; offsets, lengths and addresses must be
    /// multiples of a sector ([`crate::buf::AlignedBuf`]).
    Direct,
}

/// One directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name without its directory.
    pub name: String,
    pub is_dir: bool,
    /// Length in bytes; 0 for directories.
    pub bytes: u64,
}

/// A file system, or what a simulation makes of one.
///
/// Durability follows POSIX at its strictest: written bytes survive a power cut after
/// [`File::sync`] or when written by [`File::write_at_durable`]; names created, renamed or removed
/// survive after [`Disk::sync_dir`] of their directory; everything else may be lost or kept, in
/// any combination, sector by sector.
///
/// Every call that makes something durable takes `site`, a name for this place in the code, e.g.
/// `"log.commit"`. The power-cut test removes sites one by one and must fail for each.
pub trait Disk: Send + Sync + 'static {
    /// Makes a new empty file; fails with `AlreadyExists`.
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>>;
    /// As [`Disk::create`], for the eyes of its owner alone from the first byte on.
    fn create_private(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        self.create(path, access)
    }
    /// A private file without a name, which is gone with its last handle, however the process ends.
    /// `path` is the name that it has for a moment where the file system knows no other way.
    fn create_unnamed(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let file = self.create_private(path, access)?;
        self.remove(path)?;
        Ok(file)
    }
    /// Prepares the file `from` to be renamed to `to`: it gets the permissions, and as far as this
    /// process may give them the owner and the group, of the file `to`; where there is none, those
    /// of any new file.
    fn take_permissions(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading alone, which needs no permission to write.
    fn open_to_read(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        self.open(path, access)
    }
    /// Replaces `to` if it exists, atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory and its parents; no error if it is there.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Entries sorted by name, so that nobody depends on the file system's order.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Makes the directory's names durable.
    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()>;
    /// What is free and what there is of the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Bytes that the device below `path` has read and written since some moment, for everybody;
    /// `None` where nobody counts them (network file systems, several devices, simulations).
    fn device_bytes(&self, _path: &Path) -> Option<u64> {
        None
    }
    /// Takes a lock on `path` (made if missing) that ends with the returned value or the process.
    /// Fails with `WouldBlock` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
    /// As [`Disk::lock`], of a file that is there, and without being allowed to write it; `None` where
    /// there is none.
    fn lock_there(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        if self.exists(path)? { self.lock(path).map(Some) } else { Ok(None) }
    }
}

/// A lock that is held.
pub trait Lock: Send + Sync {
    /// Whether its path still names the file that was locked. Once it does not, it keeps nobody
    /// out any more, and what is written beside it by name may be another's.
    fn is_in_place(&self) -> io::Result<bool>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Files that may still be made; `u64::MAX` where only bytes bound them.
    pub free_files: u64,
}

/// What has the name is no file: a pipe, a socket, a device or a directory. It is not read, for that may take
/// for ever. Inside the [`io::Error`] of whoever opens it.
#[derive(Debug)]
pub struct NotAFile(PathBuf);

impl NotAFile {
    pub(crate) fn at(path: &Path) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, NotAFile(path.to_owned()))
    }

    /// Whether this is why something could not be opened.
    pub fn is_why(e: &io::Error) -> bool {
        e.get_ref().is_some_and(|inner| inner.is::<NotAFile>())
    }
}

impl std::fmt::Display for NotAFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.0.display();
        write!(
            f,
            "`{path}` is no file, but a directory, a pipe, a socket or a device: move it away"
        )
    }
}

impl std::error::Error for NotAFile {}

/// Tells a file from another at the same path, and from itself before it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub inode: u64,
    /// Since 1970; how fine it is, the file system decides.
    pub written_ns: i64,
}

/// An open file. Positions are explicit, so one handle serves many threads.
pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf`; not durable before [`File::sync`].
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf`, durable on return: the same as a write and a sync, in one call.
    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()>;
    /// Makes data and length durable (fdatasync).
    fn sync(&self, site: &'static str) -> io::Result<()>;
    /// Says that these bytes will be read soon; a hint that may do nothing.
    fn will_need(&self, _offset: u64, _bytes: u64) {}
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Which file it is, and when it was written last; always the same where nobody notes it.
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp::default())
    }
    /// Cuts the file or extends it with zeros that may take no space.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Reserves space up to `bytes`, extending the file with zeros; `StorageFull` when there is
    /// none, in which case the file keeps its length.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Fills `buf` or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buf, offset)? {
            n if n == buf.len() => Ok(()),
            n => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("wanted {} bytes at {offset}, the file ends after {n}", buf.len()),
            )),
        }
    }
}

/// Makes a directory, and the last `levels` names of its path durable: also those that are there
/// already, whose maker may have been killed before it could.
pub fn create_dir_durable(
    disk: &dyn Disk,
    path: &Path,
    levels: usize,
    site: &'static str,
) -> io::Result<()> {
    disk.create_dir_all(path)?;
    for above in path.ancestors().skip(1).take(levels) {
        // A relative path of one component lies in the current directory.
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match disk.sync_dir(above, site) {
            // What may be entered but not read belongs to somebody else, who made our directory.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
    }
    Ok(())
}

/// Makes the next sync of a file write the length that it shows. Where an earlier sync has failed,
/// the kernel may take a length for written that the disk never got; only a change is written.
pub fn renew_len(file: &dyn File) -> io::Result<()> {
    let bytes = file.len()?;
    file.set_len(bytes + SECTOR_BYTES as u64)?;
    file.set_len(bytes)
}

/// Writes `bytes` as `path` so that a crash leaves the old file or the new one, never a mixture:
/// temporary file, sync, rename, sync of the directory. `site` names all three syncs' place.
pub fn replace_file(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
    sites: ReplaceSites,
) -> io::Result<()> {
    let temporary: PathBuf = path.with_extension("tmp");
    if disk.exists(&temporary)? {
        disk.remove(&temporary)?;
    }
    let file = disk.create(&temporary, Access::Cached)?;
    file.write_at(bytes, 0)?;
    file.sync(sites.data)?;
    disk.rename(&temporary, path)?;
    let parent = path.parent().expect("a file has a directory");
    disk.sync_dir(parent, sites.name)
}

/// The two sync sites of [`replace_file`], named by its caller.
#[derive(Clone, Copy, Debug)]
pub struct ReplaceSites {
    pub data: &'static str,
    pub name: &'static str,
}

/// The whole file, which must not be longer than `bytes_max`.
pub fn read_file(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path, Access::Cached)?;
    let len = file.len()?;
    if len > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("`{}` has {len} bytes, expected at most {bytes_max}", path.display()),
        ));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
