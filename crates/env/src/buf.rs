//! A byte buffer that starts on a sector boundary, as direct I/O wants it.

use holdfast_base::limits::SECTOR_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Buffers from this size on are mappings of their own: pages are taken as they are touched, and
/// given back when the buffer goes.
const MAPPED_FROM: usize = 128 << 10;
/// Buffers from this size on start on a huge page and ask for huge pages: who reads all over them
/// would otherwise miss the processor's table of pages at every step.
const HUGE_FROM: usize = 4 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed on creation; length is fixed and a multiple of the sector.
pub struct AlignedBuf {
    start: *mut u8,
    len: usize,
    /// The buffer that this one is a piece of, and that goes with the last of its pieces. Nobody
    /// looks at its bytes through it.
    whole: Option<Arc<AlignedBuf>>,
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
        if len < MAPPED_FROM {
            let layout = AlignedBuf::layout(len);
            // SAFETY: the layout has a non-zero size.
            let start = unsafe { alloc_zeroed(layout) };
            if start.is_null() {
                handle_alloc_error(layout);
            }
            return AlignedBuf { start, len, whole: None };
        }
        let align = if len >= HUGE_FROM { HUGE_PAGE_BYTES } else { SECTOR_BYTES };
        let base = map(len + align);
        let skipped = base.align_offset(align);
        // SAFETY: the mapping is `align` bytes longer than `len`, and `skipped` is less; what is
        // given back is whole pages of it in front of and behind the buffer, used by nobody. The
        // advice changes no byte; that it may be refused changes only time.
        let start = unsafe {
            let start = base.add(skipped);
            if skipped > 0 {
                libc::munmap(base.cast(), skipped);
            }
            if align > skipped {
                libc::munmap(start.add(len).cast(), align - skipped);
            }
            if align == HUGE_PAGE_BYTES {
                libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            }
            start
        };
        AlignedBuf { start, len, whole: None }
    }

    /// Buffers of `len` each, rounded up as in [`AlignedBuf::zeroed`], that share one mapping: huge
    /// pages serve them even if they are small. The memory is given back when all are gone.
    pub fn pieces(count: usize, len: usize) -> Vec<AlignedBuf> {
        let len = len.max(1).next_multiple_of(SECTOR_BYTES);
        let whole = Arc::new(AlignedBuf::zeroed(count * len));
        let piece = |i: usize| {
            // SAFETY: piece i lies in the mapping, which has `count * len` bytes at least.
            let start = unsafe { whole.start.add(i * len) };
            AlignedBuf { start, len, whole: Some(whole.clone()) }
        };
        (0..count).map(piece).collect()
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, SECTOR_BYTES).expect("a sector is a power of two")
    }
}

/// Fresh zeroed pages.
fn map(len: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nobody's memory.
    let base = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            std::ptr::null_mut(),
            len,
            access,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        handle_alloc_error(AlignedBuf::layout(len));
    }
    base.cast()
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        if self.len < MAPPED_FROM {
            // SAFETY: allocated in `zeroed` with this very layout, freed only here.
            unsafe { dealloc(self.start, AlignedBuf::layout(self.len)) }
        } else {
            // SAFETY: mapped in `zeroed` with this very length, unmapped only here.
            unsafe { libc::munmap(self.start.cast(), self.len) };
        }
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
    fn pieces_are_buffers_of_their_own_that_share_a_mapping() {
        for (count, len) in [(3, 100), (5, 1 << 20), (0, 1)] {
            let mut pieces = AlignedBuf::pieces(count, len);
            assert_eq!(pieces.len(), count);
            for (i, piece) in pieces.iter_mut().enumerate() {
                assert!(piece.len() >= len && piece.iter().all(|&b| b == 0));
                piece.fill(i as u8 + 1);
            }
            let last = pieces.pop();
            drop(pieces);
            assert!(last.is_none_or(|last| last.iter().all(|b| *b as usize == count)));
        }
    }

    #[test]
    fn aligned_rounded_and_zeroed() {
        for (asked, given) in [
            (0, 4096),
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (1 << 20, 1 << 20),
            (5 << 20, 5 << 20),
        ] {
            let buf = AlignedBuf::zeroed(asked);
            assert_eq!(buf.len(), given);
            assert_eq!(buf.as_ptr() as usize % SECTOR_BYTES, 0);
            assert!(buf.iter().all(|&b| b == 0));
        }
    }
}
