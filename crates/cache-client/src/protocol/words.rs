//! Words and numbers of the text protocol, as memcached reads them. Pure.

/// Words of one line, the last of which holds whatever follows (memcached's MAX_TOKENS).
pub const WORDS_MAX: usize = 23;

/// A line cut at spaces.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    words: [&'a [u8]; WORDS_MAX],
    len: usize,
}

impl<'a> Words<'a> {
    pub fn of(line: &'a [u8]) -> Words<'a> {
        let mut words = Words { words: [&[]; WORDS_MAX], len: 0 };
        // C strings end there.
        let line = line.split(|b| *b == 0).next().unwrap_or_default();
        for word in line.split(|b| *b == b' ').filter(|word| !word.is_empty()) {
            if words.len == WORDS_MAX {
                break;
            }
            words.words[words.len] = word;
            words.len += 1;
        }
        words
    }

    pub fn count(&self) -> usize {
        self.len
    }

    /// The word, or nothing.
    pub fn get(&self, i: usize) -> &'a [u8] {
        self.words.get(i).copied().unwrap_or_default()
    }

    pub fn from(&self, i: usize) -> &[&'a [u8]] {
        &self.words[i.min(self.len)..self.len]
    }

    pub fn last(&self) -> &'a [u8] {
        self.get(self.len.wrapping_sub(1))
    }
}

/// Position of the first `byte`.
#[inline(always)]
pub fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let found = zero_bytes(u64::from_le_bytes(*word) ^ (u64::from(byte) * LOW));
        if found != 0 {
            return Some(i * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|b| *b == byte).map(|i| words.len() * 8 + i)
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The high bit of each byte that is zero; exact up to the first.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// The high bit of each byte up to a space; exact up to the first.
#[inline(always)]
fn low_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW * (b' ' as u64 + 1)) & !word & HIGH
}

/// Position of the first space or line feed at or after `from`.
#[inline(always)]
pub fn word_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let found = low_bytes(u64::from_le_bytes(*word));
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if matches!(bytes[at], b' ' | b'\n') {
            return Some(at);
        }
        // Another control character.
        at += 1;
    }
    let rest = bytes.get(at..)?;
    rest.iter().position(|b| *b == b' ' || *b == b'\n').map(|i| at + i)
}

/// Digits, and nothing behind them but white space.
pub fn u64_of(word: &[u8]) -> Option<u64> {
    let word = word.trim_ascii();
    let word = word.strip_prefix(b"+").unwrap_or(word);
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0u64, |n, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

pub fn u32_of(word: &[u8]) -> Option<u32> {
    u64_of(word).and_then(|n| u32::try_from(n).ok())
}

pub fn i64_of(word: &[u8]) -> Option<i64> {
    let word = word.trim_ascii();
    let number = |digits| u64_of(digits).and_then(|n| i64::try_from(n).ok());
    match word.strip_prefix(b"-") {
        Some(digits) if digits.first().is_some_and(u8::is_ascii_digit) => {
            number(digits).map(|n| -n)
        }
        Some(_) => None,
        None => number(word),
    }
}

pub fn i32_of(word: &[u8]) -> Option<i32> {
    i64_of(word).and_then(|n| i32::try_from(n).ok())
}

/// What base64 stands for; nothing if it is not, or empty. Whole groups of four, as memcached asks;
/// bits that the padding leaves over are passed over, as there.
pub fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) || text.iter().any(u8::is_ascii_whitespace)
    {
        return None;
    }
    base64_simd::forgiving_decode_to_vec(text).ok()
}

pub fn base64_encode(bytes: &[u8]) -> Vec<u8> {
    base64_simd::STANDARD.encode_type(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_spaces_and_nothing_else() {
        let words = Words::of(b"  get a  b\tc ");
        assert_eq!(words.from(0), [&b"get"[..], b"a", b"b\tc"]);
        assert_eq!((words.count(), words.get(9), words.last()), (3, &b""[..], &b"b\tc"[..]));
        assert_eq!(Words::of(b"").count(), 0);
    }

    #[test]
    fn ends_are_found_wherever_they_are() {
        for len in 0..40 {
            let mut bytes = vec![b'!'; len];
            assert_eq!((word_end(&bytes, 0), find(&bytes, b'\n')), (None, None));
            for at in 0..len {
                bytes[at] = b'\n';
                assert_eq!((word_end(&bytes, 0), find(&bytes, b'\n')), (Some(at), Some(at)));
                bytes[at] = b' ';
                assert_eq!(word_end(&bytes, 0), Some(at));
                for other in [0, b'\t', b'\r', 31, b'"', 127, 128, 0x8a, 0xa0, 255] {
                    bytes[..at].fill(other);
                    assert_eq!(word_end(&bytes, 0), Some(at), "behind {other}");
                }
                bytes[..at].fill(b'!');
                assert_eq!(word_end(&bytes, at + 1), None);
                bytes[at] = b'!';
            }
        }
    }

    #[test]
    fn numbers_end_at_white_space_and_do_not_overflow() {
        assert_eq!(u64_of(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [&b""[..], b"18446744073709551616", b"-1", b"1a", b"a", b"1 2", b"+"] {
            assert_eq!(u64_of(wrong), None, "{wrong:?}");
        }
        assert_eq!((u64_of(b"7  "), u32_of(b"4294967296")), (Some(7), None));
        assert_eq!((i32_of(b"-2147483648"), i32_of(b"-2147483649")), (Some(i32::MIN), None));
        assert_eq!((i32_of(b"--1"), i32_of(b"-"), i32_of(b"-+1")), (None, None, None));
    }

    #[test]
    fn base64_is_its_own_inverse() {
        for len in 1..50u8 {
            let bytes: Vec<u8> = (0..len).map(|i| i.wrapping_mul(37) ^ len).collect();
            assert_eq!(base64_decode(&base64_encode(&bytes)), Some(bytes));
        }
        assert_eq!(base64_encode(b"foo"), b"Zm9v");
        assert_eq!(base64_decode(b"Zh==").as_deref(), Some(&b"f"[..]), "bits that are left over");
        for wrong in [&b""[..], b"Zm9", b"Zm9*", b"Z=9v", b"====", b"Z===", b"Zm\tv", b"Zm\tvZg=="]
        {
            assert_eq!(base64_decode(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
