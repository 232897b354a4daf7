//! Instructions that safe code has not: stores past the caches, prefetches, and comparing bytes side
//! by side. They change time, never what is stored. The only unsafe code of this crate.
#![allow(unsafe_code)]

use super::scan::WINDOW;

/// Of a cache line, which a store past the caches should fill whole.
pub const LINE_BYTES: usize = 64;

/// Copies `from` to `to`, of equal length, past the caches where the machine can: what is copied
/// to is not read soon, and the lines that it takes are not read first.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "copies are of equal length");
    #[cfg(target_arch = "x86_64")]
    if to.as_ptr().addr().is_multiple_of(LINE_BYTES) && to.len().is_multiple_of(LINE_BYTES) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        for (to, from) in to.chunks_exact_mut(LINE_BYTES).zip(from.chunks_exact(LINE_BYTES)) {
            let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
            for i in 0..LINE_BYTES / 16 {
                // SAFETY: both chunks have four times 16 bytes; the loads need no alignment, and
                // the stores have it: `to` starts on a line. SSE2 is part of x86-64.
                unsafe { _mm_stream_si128(to.add(i), _mm_loadu_si128(from.add(i))) };
            }
        }
        // SAFETY: no operands. Streaming stores are ordered by nothing else: after the fence they
        // are stores like any other, for this thread and those that it synchronises with.
        unsafe { _mm_sfence() };
        return;
    }
    to.copy_from_slice(from);
}

/// Starts loading the first `lines` lines of `bytes`, three at most.
#[inline(always)]
pub fn prefetch(bytes: &[u8], lines: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = bytes.as_ptr().cast::<i8>();
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault, wherever
        // it points; further addresses are computed without claiming that they lie in `bytes`.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(start);
            if lines > 1 {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(LINE_BYTES));
            }
            if lines > 2 {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(2 * LINE_BYTES));
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, lines);
}

/// A bit for each byte of the window that is one of `wanted`.
#[inline(always)]
pub fn mask(window: &[u8; WINDOW], wanted: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128,
            _mm_set1_epi8, _mm_setzero_si128,
        };
        let mut bits = 0;
        for (i, half) in window.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: SSE2 is part of x86-64; the load is of the 16 bytes of `half` and needs no
            // alignment.
            unsafe {
                let bytes = _mm_loadu_si128(half.as_ptr().cast::<__m128i>());
                let mut hits = _mm_setzero_si128();
                for byte in wanted {
                    let equal = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(*byte as i8));
                    hits = _mm_or_si128(hits, equal);
                }
                bits |= (_mm_movemask_epi8(hits) as u32) << (16 * i);
            }
        }
        bits
    }
    #[cfg(not(target_arch = "x86_64"))]
    window.iter().enumerate().fold(0, |bits, (i, b)| bits | u32::from(wanted.contains(b)) << i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::buf::AlignedBuf;

    #[test]
    fn copies_are_copies_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..1000).map(|i| (i * 7) as u8).collect();
        let mut to = AlignedBuf::zeroed(4096);
        for start in [0, 1, 64, 100] {
            for len in [0, 1, 64, 640, 900] {
                to.fill(0);
                copy(&mut to[start..start + len], &from[3..3 + len]);
                assert_eq!(to[start..start + len], from[3..3 + len]);
                assert!(to[..start].iter().chain(&to[start + len..]).all(|b| *b == 0));
                prefetch(&to[start..start + len], len % 4);
            }
        }
    }
}
