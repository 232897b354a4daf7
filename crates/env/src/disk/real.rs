//! The machine's file system, through libc where the standard library has no call.

use super::{Access, Disk, Entry, File, Lock, NotAFile, Space, Stamp};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The machine's file system.
pub struct RealDisk;

struct RealFile {
    file: fs::File,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Create,
    CreatePrivate,
    /// In the directory that is the path.
    CreateUnnamed,
    Open,
    OpenToRead,
}

/// Read and written by the owner alone.
const PRIVATE: u32 = 0o600;
/// Of a new file, less what the user masks.
const NEW: u32 = 0o666;
/// What masks where nobody says.
const MASK: u32 = 0o022;

/// The permissions that this process takes from new files. The system call that tells it sets it
/// as well, for all threads: the kernel's own page does not.
fn mask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(MASK)
}

fn open(path: &Path, access: Access, how: How) -> io::Result<Arc<dyn File>> {
    let mut options = OpenOptions::new();
    let create = matches!(how, How::Create | How::CreatePrivate);
    options.read(true).write(how != How::OpenToRead).create_new(create);
    if matches!(how, How::CreatePrivate | How::CreateUnnamed) {
        options.mode(PRIVATE);
    }
    let unnamed = if how == How::CreateUnnamed { libc::O_TMPFILE | libc::O_EXCL } else { 0 };
    let direct = if access == Access::Direct { libc::O_DIRECT } else { 0 };
    // Whoever opens a pipe to read waits until somebody writes to it. Files know no such waiting.
    let at_once = if matches!(how, How::Open | How::OpenToRead) { libc::O_NONBLOCK } else { 0 };
    options.custom_flags(unnamed | direct | at_once);
    let file = match options.open(path) {
        // A socket, or a pipe that nobody reads or a device that is not there, opened to write.
        Err(e) if at_once != 0 && e.raw_os_error() == Some(libc::ENXIO) => {
            return Err(NotAFile::at(path));
        }
        // tmpfs and some overlays refuse O_DIRECT: the page cache serves as well there.
        Err(e) if access == Access::Direct && e.raw_os_error() == Some(libc::EINVAL) => {
            if create && path.exists() {
                // The refused open left the empty file behind.
                RealDisk.remove(path)?;
            }
            return open(path, Access::Cached, how);
        }
        other => other?,
    };
    if at_once != 0 && !file.metadata()?.is_file() {
        return Err(NotAFile::at(path));
    }
    Ok(Arc::new(RealFile { file }))
}

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
impl Disk for RealDisk {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        open(path, access, How::Create)
    }

    fn create_private(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        open(path, access, How::CreatePrivate)
    }

    fn create_unnamed(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let made = open(directory.unwrap_or(Path::new(".")), access, How::CreateUnnamed);
        // File systems that cannot say so in these ways.
        let unknown = [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL];
        match made {
            Err(e) if e.raw_os_error().is_some_and(|code| unknown.contains(&code)) => {
                let file = self.create_private(path, access)?;
                self.remove(path)?;
                Ok(file)
            }
            other => other,
        }
    }

    fn take_permissions(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mode = match fs::metadata(to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => NEW & !mask(),
            Err(e) => return Err(e),
            Ok(there) => {
                let mode = there.mode() & 0o777;
                // Who is not the superuser may give a group of its own, and no owner.
                let owned = chown(from, Some(there.uid()), Some(there.gid()))
                    .or_else(|_| chown(from, None, Some(there.gid())));
                // Another group gets no more than everybody.
                if owned.is_ok() { mode } else { mode & (0o707 | (mode & 0o7) << 3) }
            }
        };
        fs::set_permissions(from, fs::Permissions::from_mode(mode))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        open(path, access, How::Open)
    }

    fn open_to_read(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        open(path, access, How::OpenToRead)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            entries.push(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                is_dir: metadata.is_dir(),
                bytes: if metadata.is_dir() { 0 } else { metadata.len() },
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn sync_dir(&self, path: &Path, _site: &'static str) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: an all-zero statvfs is a valid value of the plain C struct.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: `path` is NUL-terminated and `stat` outlives the call.
        if unsafe { libc::statvfs(path.as_ptr(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // File systems that make inodes as they need them say that there are none at all.
        let free_files = if stat.f_files == 0 { u64::MAX } else { stat.f_favail };
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        Ok(Space {
            free_bytes: stat.f_bavail * stat.f_frsize,
            // As `df` counts: blocks kept for the superuser are nobody's to fill.
            total_bytes: (used + stat.f_bavail) * stat.f_frsize,
            free_files,
        })
    }

    fn device_bytes(&self, path: &Path) -> Option<u64> {
        let device = fs::metadata(path).ok()?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let counts = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
        let field = |at: usize| counts.split_whitespace().nth(at)?.parse::<u64>().ok();
        // The kernel's Documentation/block/stat.rst: sectors of 512 bytes read, and written.
        Some((field(2)? + field(6)?) * 512)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(PRIVATE);
        RealLock::of(options.open(path)?, path)
    }

    fn lock_there(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => RealLock::of(file, path).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

struct RealLock {
    file: fs::File,
    path: PathBuf,
}

impl RealLock {
    fn of(file: fs::File, path: &Path) -> io::Result<Box<dyn Lock>> {
        // SAFETY: the descriptor is open for the duration of the call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Box::new(RealLock { file, path: path.to_owned() }))
    }
}

impl Lock for RealLock {
    fn is_in_place(&self) -> io::Result<bool> {
        let held = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn write_at_durable(&self, buf: &[u8], offset: u64, _site: &'static str) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &buf[done..];
            let iov = libc::iovec { iov_base: rest.as_ptr() as *mut _, iov_len: rest.len() };
            // SAFETY: one iovec that describes `rest`, which outlives the call; pwritev2 only
            // reads from it. RWF_DSYNC makes this one write durable, like O_DSYNC.
            let n = unsafe {
                libc::pwritev2(
                    self.file.as_raw_fd(),
                    &iov,
                    1,
                    (offset + done as u64) as libc::off_t,
                    libc::RWF_DSYNC,
                )
            };
            match n {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n if n > 0 => done += n as usize,
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(e),
                },
            }
        }
        Ok(())
    }

    fn sync(&self, _site: &'static str) -> io::Result<()> {
        self.file.sync_data()
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        let (fd, advice) = (self.file.as_raw_fd(), libc::POSIX_FADV_WILLNEED);
        // SAFETY: a plain system call on an open descriptor. It starts reads and waits for none;
        // a refusal means no more than that nothing was read ahead.
        unsafe { libc::posix_fadvise(fd, offset as libc::off_t, bytes as libc::off_t, advice) };
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let there = self.file.metadata()?;
        let written_ns = there.mtime().saturating_mul(1_000_000_000) + there.mtime_nsec();
        Ok(Stamp { inode: there.ino(), written_ns })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: a plain system call on an open descriptor.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, bytes as libc::off_t) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::AlignedBuf;
    use crate::disk::{ReplaceSites, read_file, replace_file};
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("holdfast-disk-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        RealDisk.create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn direct_files_read_back() {
        let dir = scratch("direct");
        let path = dir.join("f");
        let file = RealDisk.create(&path, Access::Direct).unwrap();
        file.allocate(16384).unwrap();
        let mut out = AlignedBuf::zeroed(8192);
        out.fill(7);
        file.write_at_durable(&out, 4096, "test").unwrap();
        let mut back = AlignedBuf::zeroed(16384);
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 16384);
        assert!(back[..4096].iter().all(|&b| b == 0) && back[4096..12288].iter().all(|&b| b == 7));
        assert!(RealDisk.create(&path, Access::Direct).is_err(), "create never overwrites");
        fs::remove_dir_all(dir).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_private_is_so_from_the_start_and_takes_the_permissions_of_what_it_replaces() {
        let dir = scratch("private");
        let (new, old, none) = (dir.join("new"), dir.join("old"), dir.join("none"));
        RealDisk.create_private(&new, Access::Direct).unwrap();
        assert_eq!(mode(&new), 0o600);
        let _lock = RealDisk.lock(&dir.join("lock")).unwrap();
        assert_eq!(mode(&dir.join("lock")), 0o600);
        RealDisk.create(&old, Access::Cached).unwrap();
        for wanted in [0o600, 0o640, 0o604, 0o755] {
            fs::set_permissions(&old, fs::Permissions::from_mode(wanted)).unwrap();
            RealDisk.take_permissions(&new, &old).unwrap();
            assert_eq!(mode(&new), wanted);
        }
        RealDisk.take_permissions(&new, &none).unwrap();
        OpenOptions::new().write(true).create_new(true).open(&none).unwrap();
        assert_eq!(mode(&new), mode(&none));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_without_a_name_is_read_and_written_and_nobody_sees_it() {
        let dir = scratch("unnamed");
        for directory in [dir.as_path(), Path::new("/dev/shm")] {
            let path = directory.join(format!("unnamed-{}", std::process::id()));
            let file = RealDisk.create_unnamed(&path, Access::Direct).unwrap();
            let mut block = AlignedBuf::zeroed(4096);
            block.fill(3);
            file.write_at(&block, 4096).unwrap();
            block.fill(0);
            file.read_exact_at(&mut block, 4096).unwrap();
            assert!(block.iter().all(|byte| *byte == 3) && !path.exists());
        }
        assert!(RealDisk.list(&dir).unwrap().is_empty());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn replacing_and_listing() {
        let dir = scratch("replace");
        let sites = ReplaceSites { data: "test.data", name: "test.name" };
        replace_file(&RealDisk, &dir.join("a"), b"one", sites).unwrap();
        replace_file(&RealDisk, &dir.join("a"), b"two!", sites).unwrap();
        assert_eq!(read_file(&RealDisk, &dir.join("a"), 10).unwrap(), b"two!");
        assert!(read_file(&RealDisk, &dir.join("a"), 3).is_err());
        let names: Vec<_> = RealDisk.list(&dir).unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["a"]);
        assert!(RealDisk.space(&dir).unwrap().total_bytes > 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_device_carries_is_counted_where_the_kernel_does() {
        let dir = scratch("device");
        let before = RealDisk.device_bytes(&dir);
        let file = RealDisk.create(&dir.join("f"), Access::Cached).unwrap();
        file.write_at(&vec![7; 1 << 20], 0).unwrap();
        file.sync("test").unwrap();
        let after = RealDisk.device_bytes(&dir);
        // Memory and some containers have no device.
        assert_eq!(before.is_some(), after.is_some());
        let (before, after) = (before.unwrap_or(0), after.unwrap_or(1 << 20));
        assert!(after - before >= 1 << 20, "{} bytes", after - before);
        assert_eq!(RealDisk.device_bytes(&dir.join("nothing")), None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_lock_keeps_others_out_until_it_is_dropped() {
        let dir = scratch("lock");
        let held = RealDisk.lock(&dir.join("LOCK")).unwrap();
        let refused = RealDisk.lock(&dir.join("LOCK")).err().expect("second lock is refused");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        RealDisk.lock(&dir.join("LOCK")).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
