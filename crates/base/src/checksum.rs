//! CRC32C, and the stamp that ties a checksum to where its bytes belong.
//!
//! A stored checksum is `crc32c(bytes) ^ stamp(chunk, generation, position)`. The data part is
//! computed once, by the writer; the stamp part costs a few instructions, so that compaction and
//! sealing never have to touch the bytes again, and a block read from the wrong place, chunk or
//! generation fails like a damaged one.

use crate::ids::{ChunkId, Generation};

/// CRC32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.len() < 16 {
        // Dispatching to a vector kernel costs more than this for short input.
        return !bytes
            .iter()
            .fold(!0, |crc: u32, &b| TABLE[((crc ^ b as u32) & 0xff) as usize] ^ (crc >> 8));
    }
    crc_fast::crc32_iscsi(bytes)
}

/// FNV-1a, 64 bits: spreads names over places. No checksum: it finds no damage, and who wants two texts of one hash
/// makes them.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

const TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC32C of `a` followed by `b`, from their own checksums and the length of `b`. A length that
/// is a power of two, as blocks have, costs one product: some 30 ns.
pub fn crc32c_combine(crc_a: u32, crc_b: u32, bytes_b: u64) -> u32 {
    // Nothing in front: the shift of zero is zero.
    if crc_a == 0 {
        return if bytes_b == 0 { 0 } else { crc_b };
    }
    // Appending 8n zero bits multiplies by x^(8n) modulo the polynomial (zlib's method).
    let mut shifted = crc_a;
    let mut left = bytes_b;
    while left != 0 {
        shifted = product(SHIFTS[3 + left.trailing_zeros() as usize], shifted);
        left &= left - 1;
    }
    if bytes_b == 0 { shifted } else { shifted ^ crc_b }
}

/// x^(2^i) modulo the polynomial, bits reversed.
const SHIFTS: [u32; 67] = {
    let mut shifts = [0; 67];
    shifts[0] = 1 << 30;
    let mut i = 1;
    while i < shifts.len() {
        shifts[i] = product(shifts[i - 1], shifts[i - 1]);
        i += 1;
    }
    shifts
};

/// `a` times `b` modulo the polynomial, bits reversed.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 1u32 << 31);
    while bit != 0 {
        // Without branches: the bits of a checksum cannot be predicted.
        sum ^= b & 0u32.wrapping_sub((a & bit != 0) as u32);
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        bit >>= 1;
    }
    sum
}

/// The position part of a stored checksum. `position` is a block number in a raw chunk, a slot in
/// a packed one (for block `b` of a large needle: `slot << 32 | b + 1`).
#[inline]
pub fn stamp(chunk: ChunkId, generation: Generation, position: u64) -> u32 {
    // Two rounds of a 64-bit finaliser (MurmurHash3's constants): every input bit reaches every
    // output bit, which a plain XOR of the three would not give.
    let mut x = chunk.0 ^ 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(generation.0 as u64 + 1);
    x = mix(x) ^ position;
    mix(x) as u32
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, B.4, and the check value of the CRC catalogue.
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn short_and_long_kernels_agree_and_combine() {
        let bytes: Vec<u8> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // Far beyond any length that fits into memory: zeros behind zeros, squared.
        assert_eq!(crc32c_combine(7, 0, 1 << 40), {
            let half = crc32c_combine(7, 0, 1 << 39);
            crc32c_combine(half, 0, 1 << 39)
        });
        for len in [0, 1, 7, 15, 16, 17, 64, 1000, 5000] {
            let whole = crc32c(&bytes[..len]);
            for cut in [0, len / 3, len] {
                let (a, b) = bytes[..len].split_at(cut);
                assert_eq!(
                    crc32c_combine(crc32c(a), crc32c(b), b.len() as u64),
                    whole,
                    "{len} {cut}"
                );
            }
        }
    }

    #[test]
    fn stamp_depends_on_each_part() {
        let base = stamp(ChunkId(1), Generation(0), 0);
        assert_ne!(base, stamp(ChunkId(2), Generation(0), 0));
        assert_ne!(base, stamp(ChunkId(1), Generation(1), 0));
        assert_ne!(base, stamp(ChunkId(1), Generation(0), 1));
    }
}
