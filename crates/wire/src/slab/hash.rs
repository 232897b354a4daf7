//! Where a key belongs: 32 bits of hash, and ranges of them. Views order their items by this hash
//! and partitions divide it, on disk too, so its numbers never change.

use holdfast_env::planted;
use xxhash_rust::xxh3::xxh3_64;

/// One more than the greatest hash.
const END: u64 = 1 << 32;

/// Partitions that a view may be divided into.
pub const PARTITIONS_MAX: u32 = 1 << 16;

/// Sub-ranges of all hashes; no slab lies in two of them.
pub const SUB_RANGES: usize = 256;

/// Which prefix of a key its collection hashes, so that keys that are read together are kept
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashed {
    All,
    /// So many bytes, or all of a shorter key.
    Bytes(u16),
    /// What is in front of the first such byte; all of a key without it.
    Until(u8),
}

/// As commands say it.
impl std::fmt::Display for Hashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Hashed::All => f.write_str("all"),
            Hashed::Bytes(bytes) => write!(f, "{bytes}"),
            Hashed::Until(separator) => write!(f, "until={}", char::from(*separator)),
        }
    }
}

impl Hashed {
    fn prefix(self, key: &[u8]) -> &[u8] {
        match self {
            Hashed::All => key,
            Hashed::Bytes(bytes) => &key[..key.len().min(usize::from(bytes))],
            Hashed::Until(separator) => {
                let end = key.iter().position(|byte| *byte == separator);
                let end = end.map(|at| at + usize::from(planted!("slab.separator-hashed")));
                &key[..end.unwrap_or(key.len())]
            }
        }
    }
}

/// The hash of `key` in a collection with this rule: the upper half of XXH3's 64 bits.
#[inline]
pub fn hash(rule: Hashed, key: &[u8]) -> u32 {
    (xxh3_64(rule.prefix(key)) >> 32) as u32
}

/// The first byte of a hash.
#[inline]
pub fn sub_range(hash: u32) -> u8 {
    (hash >> 24) as u8
}

/// Hashes from `low` on and below `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    low: u64,
    high: u64,
}

impl Range {
    pub const ALL: Range = Range { low: 0, high: END };

    /// Panics if the bounds are not in order, or beyond 2^32.
    pub fn new(low: u64, high: u64) -> Range {
        assert!(low <= high && high <= END, "a range of hashes from {low} to {high}");
        Range { low, high }
    }

    /// Partition `i` of `of`: all of them are disjoint and leave nothing out. Panics if there is no
    /// such partition.
    pub fn part(i: u32, of: u32) -> Range {
        assert!(i < of && of <= PARTITIONS_MAX, "partition {i} of {of}");
        let bound = |i: u32| match planted!("slab.partitions-leave-out-the-end") {
            true => u64::from(i) * (END / u64::from(of)),
            false => u64::from(i) * END / u64::from(of),
        };
        Range { low: bound(i), high: bound(i + 1) }
    }

    /// All hashes whose first byte is this.
    pub fn of_sub_range(s: u8) -> Range {
        let hashes = END / SUB_RANGES as u64;
        Range { low: u64::from(s) * hashes, high: (u64::from(s) + 1) * hashes }
    }

    pub fn low(self) -> u64 {
        self.low
    }

    pub fn high(self) -> u64 {
        self.high
    }

    pub fn is_empty(self) -> bool {
        self.low == self.high
    }

    #[inline]
    pub fn contains(self, hash: u32) -> bool {
        let hash = u64::from(hash);
        self.low <= hash
            && (hash < self.high || planted!("slab.end-belongs-to-its-range") && hash == self.high)
    }

    /// Into so many ranges, one behind the other: the heads of a view.
    pub fn divided(self, into: u32) -> Vec<Range> {
        let bound = |i: u32| self.low + (self.high - self.low) * u64::from(i) / u64::from(into);
        (0..into).map(|i| Range::new(bound(i), bound(i + 1))).collect()
    }

    /// Whether all hashes from `first` to `last` are in it.
    pub fn covers(self, first: u32, last: u32) -> bool {
        self.contains(first) && self.contains(last)
    }

    pub fn overlaps(self, other: Range) -> bool {
        !self.intersection(other).is_empty()
    }

    /// What is in both; an empty range if nothing is.
    pub fn intersection(self, other: Range) -> Range {
        let low = self.low.max(other.low);
        Range { low, high: self.high.min(other.high).max(low) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// These are on disks.
    #[test]
    fn hashes_are_what_they_were() {
        let keys: [&[u8]; 4] = [b"a", b"user/17", b"\0\0\0\0\0\0\0\x01", &[0xff; 300]];
        // The first one is 0xe6c632b6, the upper half of XXH3's known 0xe6c632b61e964e1f for `a`.
        let known = [3_871_748_790, 400_465_849, 4_083_894_810, 2_800_454_290];
        assert_eq!(keys.map(|key| hash(Hashed::All, key)), known);
    }

    #[test]
    fn a_rule_says_which_bytes_count() {
        let all = |key: &[u8]| hash(Hashed::All, key);
        for (rule, key, counts) in [
            (Hashed::Bytes(4), &b"user/17"[..], &b"user"[..]),
            (Hashed::Bytes(4), b"use", b"use"),
            (Hashed::Bytes(0), b"use", b""),
            (Hashed::Until(b'/'), b"user/17", b"user"),
            (Hashed::Until(b'/'), b"user/17/a", b"user"),
            (Hashed::Until(b'/'), b"user", b"user"),
            (Hashed::Until(b'/'), b"/17", b""),
            (Hashed::Until(0), b"ab\0c", b"ab"),
        ] {
            assert_eq!(hash(rule, key), all(counts), "{rule:?} of `{}`", key.escape_ascii());
        }
    }

    type Family = fn(u64) -> Vec<u8>;

    /// Pearson's statistic over 256 sub-ranges is 255 with a deviation of 22.6 for chance itself.
    #[test]
    fn keys_that_differ_little_are_spread_as_by_chance() {
        const KEYS: u64 = 1 << 16;
        let families: [(&str, Family); 4] = [
            ("decimal", |i| i.to_string().into_bytes()),
            ("behind a prefix", |i| format!("/a/long/prefix/of/all/keys/{i:012}").into_bytes()),
            ("counter", |i| i.to_be_bytes().to_vec()),
            ("counter, small end first", |i| i.to_le_bytes().to_vec()),
        ];
        for (family, key) in families {
            for shift in [24, 12, 0] {
                let mut counts = [0u64; SUB_RANGES];
                for i in 0..KEYS {
                    counts[(hash(Hashed::All, &key(i)) >> shift) as usize % SUB_RANGES] += 1;
                }
                let expected = KEYS as f64 / SUB_RANGES as f64;
                let squares = counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected);
                let pearson: f64 = squares.sum();
                assert!((165.0..345.0).contains(&pearson), "{family}, bit {shift}: {pearson}");
            }
            let distinct: BTreeSet<u32> = (0..KEYS).map(|i| hash(Hashed::All, &key(i))).collect();
            // Chance alone lets half a pair of 2^16 collide among 2^32.
            assert!(distinct.len() as u64 >= KEYS - 6, "{family}: {} differ", distinct.len());
        }
    }

    #[test]
    fn partitions_are_disjoint_and_complete() {
        for of in (1..=300).chain([1000, 4095, 4096, 4097, 65535, 65536]) {
            let mut next = 0;
            for i in 0..of {
                let part = Range::part(i, of);
                assert_eq!((part.low(), part.is_empty()), (next, false), "{i} of {of}");
                next = part.high();
            }
            assert_eq!(next, END, "{of}");
        }
        assert_eq!(Range::part(2, 6), Range::new(2 * END / 6, END / 2));
        assert_eq!(Range::part(0, 1), Range::ALL);
    }

    #[test]
    fn ranges_are_half_open() {
        let range = Range::new(10, 20);
        let inside = |hashes: [u32; 4]| hashes.map(|hash| range.contains(hash));
        assert_eq!(inside([9, 10, 19, 20]), [false, true, true, false]);
        assert!(range.covers(10, 19) && !range.covers(10, 20) && !range.covers(9, 10));
        assert!(Range::ALL.contains(u32::MAX) && Range::ALL.covers(0, u32::MAX));
        for (other, both) in [
            (Range::new(0, 10), None),
            (Range::new(20, END), None),
            (Range::new(0, 11), Some((10, 11))),
            (Range::new(19, 30), Some((19, 20))),
            (Range::new(12, 13), Some((12, 13))),
            (Range::new(15, 15), None),
            (Range::ALL, Some((10, 20))),
        ] {
            assert_eq!(range.overlaps(other), both.is_some(), "{other:?}");
            assert_eq!(other.overlaps(range), both.is_some(), "{other:?}");
            let got = range.intersection(other);
            assert!(both.map_or(got.is_empty(), |(low, high)| got == Range::new(low, high)));
        }
        assert_eq!([0, 0xff_ffff, 0x100_0000, u32::MAX].map(sub_range), [0, 0, 1, 255]);
    }
}
