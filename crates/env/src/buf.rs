//! A byte buffer that starts on a sector boundary, as direct I/O wants it.

use holdfast_base::limits::SECTOR_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};

/// Zeroed on creation; length is fixed and a multiple of the sector.
pub struct AlignedBuf {
    start: *mut u8,
    len: usize,
}

// SAFETY: the buffer owns its memory exclusively, as a Box<[u8]> does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only, as with a Box<[u8]>.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` is rounded up to whole sectors; at least one.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let len = len.max(1).next_multiple_of(SECTOR_BYTES);
        let layout = AlignedBuf::layout(len);
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuf { start, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, SECTOR_BYTES).expect("a sector is a power of two")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, freed only here.
        unsafe { dealloc(self.start, AlignedBuf::layout(self.len)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points at `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_rounded_and_zeroed() {
        for (asked, given) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)] {
            let buf = AlignedBuf::zeroed(asked);
            assert_eq!(buf.len(), given);
            assert_eq!(buf.as_ptr() as usize % SECTOR_BYTES, 0);
            assert!(buf.iter().all(|&b| b == 0));
        }
    }
}
