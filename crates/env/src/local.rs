//! Small questions to the machine that the standard library has no call for.

use crate::planted;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
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

/// Processor time of this process so far, in seconds: its own, and the kernel's for it.
pub fn cpu_seconds() -> (f64, f64) {
    seconds_of(libc::RUSAGE_SELF)
}

/// As [`cpu_seconds`], of the calling thread alone.
pub fn thread_cpu_seconds() -> (f64, f64) {
    seconds_of(libc::RUSAGE_THREAD)
}

fn seconds_of(whose: libc::c_int) -> (f64, f64) {
    // SAFETY: a plain C struct for which all zeros is a value, written by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

/// Lets this process have `wanted` descriptors, or as many as it may have; says how many.
pub fn raise_descriptors(wanted: u64) -> io::Result<u64> {
    // SAFETY: a plain C struct for which all zeros is a value; the calls read and write it alone.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        if limit.rlim_cur >= wanted {
            return Ok(limit.rlim_cur);
        }
        // Root may raise the upper limit, too.
        let upper = libc::rlimit { rlim_cur: wanted, rlim_max: limit.rlim_max.max(wanted) };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &upper) == 0 {
            return Ok(wanted);
        }
        limit.rlim_cur = limit.rlim_max.min(wanted);
        match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
            0 => Ok(limit.rlim_cur),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Descriptors that a server asks the system for: enough for every port's connections at once.
pub const DESCRIPTORS_WANTED: u64 = 1 << 16;
/// Of those that it gets, so many are left to files, to other nodes and to what starts: a quarter,
/// within these.
const FILE_DESCRIPTORS: (u64, u64) = (64, 4096);

/// How many connections each port may have, with `limit` descriptors in all and `wanted` for each
/// port: what files need is left alone, and the ports share the rest as they wanted it.
pub fn share_descriptors(limit: u64, wanted: &[usize]) -> Vec<usize> {
    let (least, most) = FILE_DESCRIPTORS;
    let for_files = (limit / 4).clamp(least, most);
    let (left, all) = (limit.saturating_sub(for_files), wanted.iter().sum::<usize>() as u64);
    let share = |wanted: &usize| match left.cmp(&all) {
        std::cmp::Ordering::Less => (left * *wanted as u64 / all.max(1)).max(1) as usize,
        _ => *wanted,
    };
    wanted.iter().map(share).collect()
}

/// Makes large buffers go back to the system when they are freed, each by itself. Left to itself,
/// the allocator learns from the first large buffer to keep them all in its heaps, where one small
/// neighbour in use keeps a hundred mebibytes from being given back.
pub fn return_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain calls, which set two numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_SPARE_BYTES);
    }
}

/// Buffers from this size on are mapped each by itself: those of whole objects, not the slices of
/// streams, for which the mapping would cost as much as the copying.
const LARGE_BUFFER_BYTES: libc::c_int = 1 << 20;
/// What a heap may keep at its end for the next request.
const HEAP_SPARE_BYTES: libc::c_int = 16 << 20;

/// Gives what the allocator has free in the middle of its heaps back to the system. Takes
/// milliseconds: for when much became free.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call; it only unmaps what nobody has.
    unsafe {
        libc::malloc_trim(HEAP_SPARE_BYTES as usize);
    }
}

/// Memory of this machine.
pub fn memory_bytes() -> u64 {
    // SAFETY: plain calls without pointers.
    let (pages, bytes) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    pages.max(0) as u64 * bytes.max(0) as u64
}

/// Gives up root's rights for those of user `name`; nothing for who is not root.
pub fn become_user(name: &str) -> io::Result<()> {
    let text = CString::new(name)?;
    // SAFETY: plain calls; `text` is NUL-terminated, and the entry that getpwnam points to is read
    // before any other call could change it, while no other thread runs.
    unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        let entry = libc::getpwnam(text.as_ptr());
        if entry.is_null() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such user"));
        }
        let (user, group) = ((*entry).pw_uid, (*entry).pw_gid);
        if libc::setgroups(0, std::ptr::null()) != 0
            || libc::setgid(group) != 0
            || libc::setuid(user) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
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

/// What a group and others may do with a file.
const OTHERS: u32 = 0o077;

/// From here on everything that this process makes is its owner's alone, from the first byte:
/// files 0600, directories 0700, sockets too, whichever library makes them. For processes that
/// keep data; before any thread starts, for it holds for all of them.
pub fn keep_private() {
    // SAFETY: takes a number, and cannot fail.
    unsafe { libc::umask(if planted!("env.files-open-to-others") { 0 } else { OTHERS }) };
}

/// Makes a directory that only its owner may enter; takes others' rights from one that is there,
/// which closes all that is below, whatever that was made with. One that belongs to somebody else
/// is refused.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if planted!("env.an-open-directory-stays-open") { Ok(()) } else { take_rights(path) }
}

/// Takes the rights of others from a file that may be there.
pub fn make_private_file(path: &Path) -> io::Result<()> {
    match take_rights(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether a group or others may do anything with what is at a path.
pub fn is_open_to_others(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.mode() & OTHERS != 0)
}

fn take_rights(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if found.mode() & OTHERS == 0 {
        return Ok(());
    }
    let mode = found.mode() & 0o7777 & !OTHERS;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Removes a small file that [`write_private`] wrote.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn remove_file(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)
}

/// Removes a directory with all that is in it.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    std::fs::remove_dir_all(path)
}

/// A file of at most so many bytes.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn read_small(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long")),
        false => Ok(bytes),
    }
}

/// As [`read_small`], of a secret: one that others can read or write is refused with what to do, and
/// so is what is no file, from which the secret may never come.
pub fn read_private(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        let why = "it is no regular file: write the secret into one, and name that";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mode = found.mode() & 0o777;
    match mode & 0o077 {
        0 => read_small(path, bytes_max),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "others can read or write it (mode {mode:03o}): run `chmod 600` on it, and have \
                 another one made if somebody may have read it"
            ),
        )),
    }
}

/// Whether [`write_private`] will find a place there, as far as can be known before.
pub fn can_write_private(path: &Path) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let _ = remove_file(&temporary);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(&temporary)?;
    remove_file(&temporary)
}

/// Writes a small file that its owner alone may read, durably, in one step. One that is right stays:
/// a full disk has no room to write it again.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|found| found == bytes) {
        return take_rights(path);
    }
    let temporary = path.with_extension("tmp");
    let _ = std::fs::remove_file(&temporary);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    // A name alone is in the current directory.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_what_they_want_or_share_what_files_leave() {
        let wanted = [16384, 4096, 1024, 256];
        assert_eq!(share_descriptors(DESCRIPTORS_WANTED, &wanted), wanted);
        for limit in [100, 256, 1024, 4096, 20_000, 1 << 20] {
            let shares = share_descriptors(limit, &wanted);
            let all: usize = shares.iter().sum();
            assert!(all as u64 + 50 < limit, "{limit}: {shares:?}");
            assert!(shares.iter().all(|share| *share > 0), "{limit}: {shares:?}");
            assert!(shares.is_sorted_by(|a, b| a >= b), "{limit}: {shares:?}");
        }
        assert!(share_descriptors(0, &wanted).iter().all(|share| *share == 1));
    }
}
