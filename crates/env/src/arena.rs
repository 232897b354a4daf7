//! A large private mapping that many threads read and write at once, by word and by racy copy.
//! What a copy brings while somebody writes is any mixture: the caller finds out (by a version
//! word, say) and asks again. Every access is checked to lie inside; nothing here decides.

use holdfast_base::{Error, Result};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Room behind the target of [`Arena::copy_out`] that it may overwrite, and behind the last byte
/// of the arena that it may read.
pub const SLACK_BYTES: usize = 64;
/// The mapping starts on a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// What [`Arena::tag_places`] compares: a line of eight words.
pub const LINE_BYTES: usize = 64;

/// Zeros at first. Memory is taken from the machine when it is first written.
pub struct Arena {
    mapping: NonNull<u8>,
    mapping_len: usize,
    /// Within the mapping, aligned to a huge page.
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is only touched through atomics and copies that tolerate races.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves addresses for `len` bytes, with huge pages where the machine has them.
    pub fn reserve(len: usize) -> Result<Arena> {
        let failed = |e: io::Error| {
            Error::full(format!("reserve {len} bytes of addresses: {e}: ask for less memory"))
        };
        let mapping_len = len
            .checked_add(HUGE_BYTES + SLACK_BYTES)
            .ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapping = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), mapping_len, protection, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        let mapping = NonNull::new(mapping.cast::<u8>())
            .ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let skip = mapping.as_ptr().align_offset(HUGE_BYTES);
        // SAFETY: the mapping is a huge page longer than what is used of it.
        let start = unsafe { mapping.add(skip) };
        // Huge pages are an optimisation: a kernel without them says no, and all goes on.
        // SAFETY: the range was just mapped.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(Arena { mapping, mapping_len, start, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Start of a range, which must lie inside: checked always, since all safety rests on it.
    #[inline(always)]
    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{len} bytes at {offset} of an arena of {}",
            self.len
        );
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The word at `offset`, a multiple of 4.
    #[inline(always)]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a word at {offset} is not aligned");
        // SAFETY: in range, aligned, initialised (mappings read as zeros), shared as atomics.
        unsafe { AtomicU32::from_ptr(self.range(offset, 4).cast()) }
    }

    /// The word at `offset`, a multiple of 8.
    #[inline(always)]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        // SAFETY: in range, aligned, initialised, shared as atomics.
        unsafe { AtomicU64::from_ptr(self.range(offset, 8).cast()) }
    }

    /// Copies `len` bytes to the start of `target`, which must be longer by [`SLACK_BYTES`]: what
    /// follows the first `len` bytes may be overwritten.
    #[inline(always)]
    pub fn copy_out(&self, offset: usize, len: usize, target: &mut [u8]) {
        assert!(target.len() >= len + SLACK_BYTES, "a target of {} for {len} bytes", target.len());
        let source = self.range(offset, len);
        // SAFETY: the source is mapped with slack behind it, the target was just checked.
        unsafe { copy_over(source, target.as_mut_ptr(), len) }
    }

    /// Copies bytes to `offset`. What was read there before, by others, they will find out was
    /// outdated: a fence orders their invalidation before these writes.
    pub fn copy_in(&self, offset: usize, source: &[u8]) {
        let target = self.range(offset, source.len());
        fence(Ordering::Release);
        // SAFETY: the target is mapped and long enough; `source` is a reference, so it is not in
        // the arena, to which there are none.
        unsafe { copy_exact(source.as_ptr(), target, source.len()) }
    }

    /// Copies within the arena; the ranges must not overlap.
    pub fn copy_within(&self, from: usize, to: usize, len: usize) {
        assert!(from.abs_diff(to) >= len, "{len} bytes from {from} to {to} overlap");
        let (source, target) = (self.range(from, len), self.range(to, len));
        fence(Ordering::Release);
        // SAFETY: both are mapped and long enough, and do not overlap.
        unsafe { copy_exact(source, target, len) }
    }

    /// Whether the bytes at `offset` are `bytes`.
    #[inline(always)]
    pub fn equals(&self, offset: usize, bytes: &[u8]) -> bool {
        /// Read at once, wherever it lies.
        #[repr(C, packed)]
        struct Word(u64);
        let start = self.range(offset, bytes.len());
        // SAFETY: the range is mapped, and so is the slack behind it that the last word may reach
        // into. Volatile since others may be writing: then any answer will do.
        let word = |i: usize| unsafe { start.add(i).cast::<Word>().read_volatile() }.0;
        let (words, rest) = bytes.as_chunks::<8>();
        for (i, bytes) in words.iter().enumerate() {
            if word(i * 8) != u64::from_ne_bytes(*bytes) {
                return false;
            }
        }
        if rest.is_empty() {
            return true;
        }
        let last = word(words.len() * 8).to_ne_bytes();
        last[..rest.len()] == *rest
    }

    /// Starts loading the lines of a range into the cache, one at least.
    #[inline(always)]
    pub fn prefetch_range(&self, offset: usize, len: usize) {
        let mut line = offset & !(LINE_BYTES - 1);
        loop {
            self.prefetch(line);
            line += LINE_BYTES;
            if line >= offset + len {
                return;
            }
        }
    }

    /// Starts loading the line at `offset` into the cache; one that is not inside loads nothing
    /// that anybody sees.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        let place = self.start.as_ptr().wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching reads nothing that the program can see and cannot fault.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(place.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) place,
                options(nostack, readonly, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = place;
    }

    /// Which words of the line at `offset` have `tag` as their uppermost 16 bits: bit `4i + 3` for
    /// word `i`.
    #[inline(always)]
    pub fn tag_places(&self, offset: usize, tag: u16) -> u32 {
        assert!(offset.is_multiple_of(LINE_BYTES), "a line at {offset} is not aligned");
        let line = self.range(offset, LINE_BYTES);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the line is mapped and aligned; SSE2 belongs to every x86-64. The loads are
        // volatile since others may be writing.
        unsafe {
            use std::arch::x86_64::*;
            let line = line.cast::<__m128i>();
            let wanted = _mm_set1_epi16(tag as i16);
            let equal = |i: usize| _mm_cmpeq_epi16(line.add(i).read_volatile(), wanted);
            let low = _mm_movemask_epi8(_mm_packs_epi16(equal(0), equal(1))) as u32;
            let high = _mm_movemask_epi8(_mm_packs_epi16(equal(2), equal(3))) as u32;
            (low | high << 16) & 0x8888_8888
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let mut places = 0;
            for i in 0..8 {
                // SAFETY: a word of the line, which is mapped and aligned.
                let word = unsafe { AtomicU64::from_ptr(line.cast::<u64>().add(i)) };
                let equal = word.load(Ordering::Relaxed) >> 48 == u64::from(tag);
                places |= u32::from(equal) << (4 * i + 3);
            }
            places
        }
    }

    /// Gives a range's memory back; it then reads as zeros.
    pub fn release(&self, offset: usize, len: usize) {
        let start = self.range(offset, len);
        // SAFETY: a range of ours; its bytes are no longer wanted, and reading zeros is sound.
        // A failure leaves the memory with us, which is where it was.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve` with this address and length; no borrow outlives `self`.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapping_len) };
    }
}

/// A copy that may run up to 31 bytes past the end on both sides. The compiler cannot see into
/// it, so that a race with a writer gives a mixture and is not undefined.
///
/// # Safety
/// `source` is readable and `target` writable for `len + SLACK_BYTES`; they do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_over(source: *const u8, target: *mut u8, len: usize) {
    /// From here on the processor's own copy is faster than a loop.
    const LONG: usize = 2048;
    if len >= LONG {
        // SAFETY: the caller's.
        return unsafe { copy_string(source, target, len) };
    }
    // SAFETY: moves whole 32 bytes from 0 to `len` rounded up, as the caller allows.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{source} + {at}]",
            "movdqu {b}, [{source} + {at} + 16]",
            "movdqu [{target} + {at}], {a}",
            "movdqu [{target} + {at} + 16], {b}",
            "add {at}, 32",
            "cmp {at}, {len}",
            "jb 2b",
            source = in(reg) source,
            target = in(reg) target,
            len = in(reg) len,
            at = inout(reg) 0usize => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_over(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { copy_exact(source, target, len) }
}

/// # Safety
/// `source` is readable and `target` writable for `len` bytes; they do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_string(source: *const u8, target: *mut u8, len: usize) {
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

/// A racy copy of exactly `len` bytes.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_exact(source: *const u8, target: *mut u8, len: usize) {
    /// What `copy_over` moves at once: of a multiple it does not run over.
    const STEP: usize = 32;
    /// Copies the first and the last bytes of a length between one register's and two's.
    macro_rules! ends {
        ($load:literal, $class:ident, $bytes:literal, $shape:literal) => {
            // SAFETY: both parts lie within the caller's ranges, since `len` is at least one's.
            unsafe {
                std::arch::asm!(
                    concat!($load, " {a", $shape, "}, [{source}]"),
                    concat!($load, " {b", $shape, "}, [{source} + {len} - ", $bytes, "]"),
                    concat!($load, " [{target}], {a", $shape, "}"),
                    concat!($load, " [{target} + {len} - ", $bytes, "], {b", $shape, "}"),
                    source = in(reg) source,
                    target = in(reg) target,
                    len = in(reg) len,
                    a = out($class) _,
                    b = out($class) _,
                    options(nostack, preserves_flags)
                )
            }
        };
    }
    match len {
        0 => {}
        // SAFETY: the caller's.
        1..4 => unsafe { copy_string(source, target, len) },
        4..8 => ends!("mov", reg, "4", ":e"),
        8..16 => ends!("mov", reg, "8", ":r"),
        16..STEP => ends!("movdqu", xmm_reg, "16", ""),
        _ => {
            let whole = len / STEP * STEP;
            // SAFETY: two parts of the caller's ranges, both whole steps; they overlap by bytes
            // that are the same.
            unsafe {
                copy_over(source, target, whole);
                if whole < len {
                    copy_over(source.add(len - STEP), target.add(len - STEP), STEP);
                }
            }
        }
    }
}

/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_exact(source: *const u8, target: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;
    let mut done = 0;
    // SAFETY: each access lies within the first `len` bytes and is aligned: words are used only
    // when both pointers agree modulo 8, after the bytes up to the first boundary. One side may be
    // a plain reference of the caller's, which nobody else writes.
    unsafe {
        let byte = |at: usize| {
            let value = AtomicU8::from_ptr(source.cast_mut().add(at)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(at)).store(value, Ordering::Relaxed);
        };
        if source as usize % 8 == target as usize % 8 {
            while done < len && (source as usize + done) % 8 != 0 {
                byte(done);
                done += 1;
            }
            while len - done >= 8 {
                let word = AtomicU64::from_ptr(source.cast_mut().add(done).cast());
                let value = word.load(Ordering::Relaxed);
                AtomicU64::from_ptr(target.add(done).cast()).store(value, Ordering::Relaxed);
                done += 8;
            }
        }
        while done < len {
            byte(done);
            done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_come_back_and_touch_nothing_else() {
        let arena = Arena::reserve(1 << 20).unwrap();
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..200).chain([2047, 2048, 4999]) {
            arena.copy_in(4096, &bytes[..len]);
            assert_eq!(arena.u32((4096 + len).next_multiple_of(4)).load(Ordering::Relaxed), 0);
            let mut target = vec![0u8; len + SLACK_BYTES];
            arena.copy_out(4096, len, &mut target);
            assert_eq!(target[..len], bytes[..len], "{len}");
            assert!(arena.equals(4096, &bytes[..len]));
            if len > 0 {
                let mut other = bytes[..len].to_vec();
                other[len - 1] ^= 1;
                assert!(!arena.equals(4096, &other), "{len}");
            }
            arena.copy_within(4096, 65536, len);
            assert!(arena.equals(65536, &bytes[..len]));
            arena.release(4096, 61440 + 65536);
        }
    }

    #[test]
    fn tags_are_found_in_the_uppermost_bits_alone() {
        let arena = Arena::reserve(4096).unwrap();
        for i in 0..8 {
            arena.u64(64 + i * 8).store((i as u64) << 48 | 0x5_0005_0005, Ordering::Relaxed);
        }
        for i in 0..8 {
            assert_eq!(arena.tag_places(64, i), 1 << (4 * i + 3));
        }
        assert_eq!(arena.tag_places(64, 9), 0);
        assert_eq!(arena.tag_places(0, 0), 0x8888_8888);
    }

    #[test]
    #[should_panic(expected = "of an arena of")]
    fn nothing_outside_is_touched() {
        Arena::reserve(4096).unwrap().u64(4096);
    }
}
