//! Small questions to the machine that the standard library has no call for.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The system's name; `localhost` where it has none.
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the pointer and length describe `name`; one byte is kept back for the NUL.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    match std::str::from_utf8(&name[..end]) {
        Ok(name) if !failed && !name.is_empty() => name.to_owned(),
        _ => "localhost".to_owned(),
    }
}

/// Sets the modification time of a symbolic link itself.
pub fn set_link_mtime(path: &Path, mtime_ns: i64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mtime = libc::timespec {
        tv_sec: mtime_ns.div_euclid(1_000_000_000),
        tv_nsec: mtime_ns.rem_euclid(1_000_000_000),
    };
    let atime = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let times = [atime, mtime];
    // SAFETY: `path` is NUL-terminated, `times` holds the two values that the call reads.
    let result = unsafe {
        libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Drops what the page cache holds of a file and the disk has, too: for measuring cold reads.
pub fn drop_cached(path: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    let file = std::fs::File::open(path)?;
    // SAFETY: a plain system call on an open descriptor; 0 bytes from 0 is the whole file.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
