//! A byte buffer that starts on a sector boundary, as direct I/O wants it.

use holdfast_base::limits::SECTOR_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};

/// What the allocator aligns to without work of its own.
const LAYOUT_ALIGN: usize = 16;
/// Buffers from this size on start on a huge page and ask for huge pages: who reads all over them
/// would otherwise miss the processor's table of pages at every step.
const HUGE_FROM: usize = 4 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed on creation; length is fixed and a multiple of the sector.
pub struct AlignedBuf {
    /// What the allocator gave; `start` is the first sector in it.
    base: *mut u8,
    start: *mut u8,
    len: usize,
    layout: Layout,
}

// SAFETY: the buffer owns its memory exclusively, as a Box<[u8]> does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only, as with a Box<[u8]>.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` is rounded up to whole sectors; at least one. Memory of a large buffer is taken page
    /// by page as it is touched.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let len = len.max(1).next_multiple_of(SECTOR_BYTES);
        // The allocator zeroes what it is asked to align by hand, touching every page of it; what
        // is aligned by us comes from the kernel, zeroed when touched.
        let align = if len >= HUGE_FROM { HUGE_PAGE_BYTES } else { SECTOR_BYTES };
        let layout = AlignedBuf::layout(len + align);
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        let shift = base.align_offset(align);
        // SAFETY: the allocation is `align` bytes longer than `len`, and `shift` is less.
        let start = unsafe { base.add(shift) };
        if align == HUGE_PAGE_BYTES {
            // SAFETY: the range lies in the allocation; the advice changes no byte of it. That it
            // may be refused changes only time.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
        }
        AlignedBuf { base, start, len, layout }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, LAYOUT_ALIGN).expect("sixteen is a power of two")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, freed only here.
        unsafe { dealloc(self.base, self.layout) }
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
        for (asked, given) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (5 << 20, 5 << 20)] {
            let buf = AlignedBuf::zeroed(asked);
            assert_eq!(buf.len(), given);
            assert_eq!(buf.as_ptr() as usize % SECTOR_BYTES, 0);
            assert!(buf.iter().all(|&b| b == 0));
        }
    }
}
