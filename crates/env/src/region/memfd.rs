//! memfd and mmap behind safe names.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A shared mapping of a whole memfd.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is memory like any other; what may be done to its bytes from which thread
// is said by the unsafe methods' contracts.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn read_write(fd: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::new(fd, len, true)
    }

    pub fn read_only(fd: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::new(fd, len, false)
    }

    fn new(fd: &OwnedFd, len: usize, writable: bool) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            let fd = fd.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len, writable })
    }

    /// Start of a range, which must lie inside: checked always, since all safety rests on it.
    fn range(&self, offset: u64, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len as u64);
        assert!(inside, "{len} bytes at {offset} of a mapping of {}", self.len);
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    /// Makes the kernel back a range with memory; its bytes stay.
    pub fn populate(&self, offset: u64, len: usize) -> io::Result<()> {
        let start = self.range(offset, len);
        // SAFETY: the range is mapped and writable, and populating changes no byte of it.
        match unsafe { libc::madvise(start.cast(), len, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// # Safety
    /// Nobody, in any process, writes to the range while the slice lives.
    pub unsafe fn slice(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: the range is mapped as long as `self`; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.range(offset, len), len) }
    }

    /// # Safety
    /// Nobody else has access to the range through references while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, offset: u64, len: usize) -> &mut [u8] {
        assert!(self.writable, "the mapping is read-only");
        // SAFETY: the range is mapped for writing as long as `self`; the caller excludes others.
        unsafe { std::slice::from_raw_parts_mut(self.range(offset, len), len) }
    }

    /// The 64-bit word at `offset`, a multiple of 8. Only for words that all sides treat so.
    pub fn atomic(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        // SAFETY: in range, aligned, initialised (a memfd reads as zeros), and atomics may be
        // shared. In a read-only mapping a store would fault; the callers there only load.
        unsafe { AtomicU64::from_ptr(self.range(offset, 8).cast()) }
    }

    /// Copies bytes that another process may be writing: the result is then any mixture.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) {
        // SAFETY: the source is mapped, the target is exclusively ours, both are long enough.
        unsafe { copy_racy(self.range(offset, target.len()), target.as_mut_ptr(), target.len()) }
    }

    /// As [`Mapping::copy_out`]; afterwards the whole target is initialised.
    pub fn copy_out_uninit(&self, offset: u64, target: &mut [MaybeUninit<u8>]) {
        let source = self.range(offset, target.len());
        // SAFETY: as in `copy_out`.
        unsafe { copy_racy(source, target.as_mut_ptr().cast(), target.len()) }
    }

    /// Copies bytes into memory that another process may be reading or writing.
    ///
    /// # Safety
    /// Nobody has a reference to the range.
    pub unsafe fn copy_in(&self, offset: u64, source: &[u8]) {
        assert!(self.writable, "the mapping is read-only");
        // SAFETY: the target is mapped for writing and long enough; the caller excludes
        // references to it, so `source` cannot overlap it.
        unsafe { copy_racy(source.as_ptr(), self.range(offset, source.len()), source.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this address and length; no borrow outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A copy whose memory another process may change meanwhile. Such a race is undefined for plain
/// loads and stores; an instruction the compiler cannot see into, and volatile ones, are not.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; they do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn copy_racy(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: copies `len` bytes forwards (the ABI keeps the direction flag clear).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_racy(source: *const u8, target: *mut u8, len: usize) {
    let mut done = 0;
    // SAFETY: each access lies within the first `len` bytes and is aligned: words are used only
    // when both pointers agree modulo 8, after the bytes up to the first boundary.
    unsafe {
        if source as usize % 8 == target as usize % 8 {
            while done < len && (source as usize + done) % 8 != 0 {
                target.add(done).write_volatile(source.add(done).read_volatile());
                done += 1;
            }
            while len - done >= 8 {
                let word = source.add(done).cast::<u64>().read_volatile();
                target.add(done).cast::<u64>().write_volatile(word);
                done += 8;
            }
        }
        while done < len {
            target.add(done).write_volatile(source.add(done).read_volatile());
            done += 1;
        }
    }
}

/// A memfd of `bytes` zeros that its owner alone may open, and nobody may execute.
pub(crate) fn create(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is NUL-terminated and outlives the call.
    let mut fd = unsafe { libc::memfd_create(name.as_ptr(), flags | libc::MFD_NOEXEC_SEAL) };
    if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
        // SAFETY: as above.
        fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    }
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else owns.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes)?;
    Ok(file.into())
}

/// Fixes the size for good.
pub(crate) fn seal_size(fd: &OwnedFd) -> io::Result<()> {
    add_seals(fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)
}

/// As [`seal_size`], and forbids every writable mapping and write that is not there yet: the
/// caller's own mapping goes on, nobody else's can ever write.
pub(crate) fn seal_against_writing(fd: &OwnedFd) -> io::Result<()> {
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    add_seals(fd, size | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn size_is_sealed(fd: &OwnedFd) -> io::Result<bool> {
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } {
        -1 => Err(io::Error::last_os_error()),
        seals => {
            let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            Ok(seals & size == size)
        }
    }
}

pub(crate) fn size(fd: &OwnedFd) -> io::Result<u64> {
    Ok(File::from(fd.try_clone()?).metadata()?.len())
}

pub(crate) fn reopen_read_only(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(OpenOptions::new().read(true).open(path)?.into())
}
