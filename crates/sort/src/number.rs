//! Numbers and months in text, compared without converting them: as many digits as there are.

use holdfast_env::planted;
use std::cmp::Ordering;

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// A decimal number: sign, digits before the point without leading zeros, digits behind it
/// without trailing ones. Zero is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> Number<'a> {
    /// Of the longest number that `text` starts with, blanks in front; zero if it starts with none.
    pub fn parse(text: &'a [u8]) -> Number<'a> {
        let blanks = text.iter().take_while(|b| is_blank(**b)).count();
        let mut text = &text[blanks..];
        let negative = text.first() == Some(&b'-');
        if negative {
            text = &text[1..];
        }
        let (whole, rest) = text.split_at(digits(text));
        let fraction = match rest.split_first() {
            Some((b'.', rest)) => &rest[..digits(rest)],
            _ => &[],
        };
        let zeros = whole.iter().take_while(|b| **b == b'0').count();
        let whole = &whole[zeros..];
        let kept = fraction.iter().rposition(|b| *b != b'0').map_or(0, |i| i + 1);
        let fraction = &fraction[..kept];
        let negative = negative && !(whole.is_empty() && fraction.is_empty());
        Number { negative, whole, fraction }
    }

    pub fn compare(&self, other: &Number<'_>) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => return Ordering::Greater,
            (true, false) => return Ordering::Less,
            _ => {}
        }
        let order = (self.whole.len().cmp(&other.whole.len()))
            .then_with(|| self.whole.cmp(other.whole))
            .then_with(|| self.fraction.cmp(other.fraction));
        if self.negative { order.reverse() } else { order }
    }

    /// Bits that order as [`Number::compare`] does, as far as they reach: two for the sign, sixteen
    /// for the magnitude, four for each of the first `digits` digits, and one that says whether
    /// there are more, see [`is_exact`].
    pub fn prefix(&self, digits: usize) -> u128 {
        // Below the sign.
        let below = number_bits(digits) - 2;
        if self.whole.is_empty() && self.fraction.is_empty() {
            return 1 << below;
        }
        // Positions before the point, or zeros behind it; both as far as sixteen bits reach.
        const MIDDLE: usize = 1 << (MAGNITUDE_BITS - 1);
        let leading = self.fraction.iter().take_while(|b| **b == b'0').count();
        let (magnitude, significant) = if self.whole.is_empty() {
            (MIDDLE - leading.min(MIDDLE), &self.fraction[leading..])
        } else {
            (MIDDLE + self.whole.len().min(MIDDLE - 1), self.whole)
        };
        let behind: &[u8] = if self.whole.is_empty() { &[] } else { self.fraction };
        let mut bits = magnitude as u128;
        let mut shown = significant.iter().chain(behind).map(|b| (b - b'0') as u128);
        // What does not fit into the magnitude is left to the comparison.
        let clipped = magnitude == 0 || magnitude == 2 * MIDDLE - 1;
        for _ in 0..digits {
            bits = bits << 4 | if clipped { 0 } else { shown.next().unwrap_or(0) };
        }
        let more = clipped || shown.any(|digit| digit != 0);
        bits = bits << 1 | u128::from(more);
        if self.negative { !bits & ((1 << below) - 1) } else { 2 << below | bits }
    }
}

const MAGNITUDE_BITS: u32 = 16;
/// Digits that 80 bits hold; beside a suffix they hold fewer.
pub const NUMERIC_DIGITS: usize = 15;
pub const HUMAN_DIGITS: usize = 14;
const UNIT_BITS: u32 = 5;
const _: () = assert!(number_bits(NUMERIC_DIGITS) <= 80);
const _: () = assert!(number_bits(HUMAN_DIGITS) + UNIT_BITS <= 80);

const fn number_bits(digits: usize) -> u32 {
    2 + MAGNITUDE_BITS + 4 * digits as u32 + 1
}

/// Whether numbers with this prefix of so many digits are equal: it has all that they have.
pub fn is_exact(prefix: u128, digits: usize) -> bool {
    let is_negative = prefix >> (number_bits(digits) - 2) & 3 == 0;
    // The bit that says that there is more, inverted as all of a negative number.
    (prefix & 1 == 1) == is_negative
}

/// 0 for no suffix, or for a number that is zero; negative for negative numbers. Where case is
/// ignored (`fold`) all suffixes may be lower case, and not K alone.
fn unit(text: &[u8], fold: bool) -> i32 {
    let negative = text.first() == Some(&b'-');
    let text = if negative { &text[1..] } else { text };
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.split_first() {
        Some((b'.', rest)) => rest.split_at(digits(rest)),
        _ => (&[][..], rest),
    };
    if whole.iter().chain(fraction).all(|b| *b == b'0') {
        return 0;
    }
    let fold = fold && !planted!("sort.suffix-ignores-fold");
    let shown = |letter: &u8| if fold { letter.to_ascii_uppercase() } else { *letter };
    let order = match rest.first().map(shown) {
        Some(b'K' | b'k') => 1,
        Some(b'M') => 2,
        Some(b'G') => 3,
        Some(b'T') => 4,
        Some(b'P') => 5,
        Some(b'E') => 6,
        Some(b'Z') => 7,
        Some(b'Y') => 8,
        _ => 0,
    };
    if negative { -order } else { order }
}

fn without_blanks(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|b| is_blank(**b)).count()..]
}

pub fn compare_human(a: &[u8], b: &[u8], fold: bool) -> Ordering {
    let (a, b) = (without_blanks(a), without_blanks(b));
    unit(a, fold).cmp(&unit(b, fold)).then_with(|| Number::parse(a).compare(&Number::parse(b)))
}

/// Suffix and first digits.
pub fn human_prefix(text: &[u8], fold: bool) -> u128 {
    const MIDDLE: i32 = 1 << (UNIT_BITS - 1);
    let suffix = (unit(without_blanks(text), fold) + MIDDLE) as u128;
    suffix << number_bits(HUMAN_DIGITS) | Number::parse(text).prefix(HUMAN_DIGITS)
}

/// 1 to 12, or 0.
pub fn month(text: &[u8]) -> u8 {
    const NAMES: [&[u8; 3]; 12] = [
        b"JAN", b"FEB", b"MAR", b"APR", b"MAY", b"JUN", b"JUL", b"AUG", b"SEP", b"OCT", b"NOV",
        b"DEC",
    ];
    let text = without_blanks(text);
    let Some(start) = text.first_chunk::<3>() else { return 0 };
    NAMES.iter().position(|name| start.eq_ignore_ascii_case(*name)).map_or(0, |i| i as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RISING: &[&str] = &[
        "-100000000000000000000000000.5",
        "-12.5",
        "-12.25",
        "-1",
        "-.5",
        "-0.05",
        "-0.0049",
        "-0.004",
        "0",
        "0.0001",
        "0.00012",
        "0.5",
        "0.51",
        "1",
        "1.0000000000000001",
        "1.00000000000000019",
        "1.0000000000000002",
        "9",
        "9.5",
        "10",
        "99",
        "100",
        "123456789012345678",
        "123456789012345678.1",
        "123456789012345679",
    ];

    #[test]
    fn numbers_and_their_prefixes_order_alike() {
        for (i, a) in RISING.iter().enumerate() {
            for (j, b) in RISING.iter().enumerate() {
                let (x, y) = (Number::parse(a.as_bytes()), Number::parse(b.as_bytes()));
                assert_eq!(x.compare(&y), i.cmp(&j), "{a} {b}");
                for digits in [3, HUMAN_DIGITS, NUMERIC_DIGITS] {
                    let (p, q) = (x.prefix(digits), y.prefix(digits));
                    assert!(p < 1 << 80);
                    if p != q || is_exact(p, digits) {
                        assert_eq!(p.cmp(&q), i.cmp(&j), "{a} {b}");
                    }
                }
            }
        }
        for zero in ["", "-", "-0", "0.000", " \t-00.0x", "abc", "+5", "."] {
            assert_eq!(Number::parse(zero.as_bytes()), Number::parse(b"0"), "{zero}");
        }
        assert_eq!(Number::parse(b" 007.50,1"), Number::parse(b"7.5"));
        let long = [b'7'; 70_000];
        let longer = [b'1'; 70_001];
        assert!(Number::parse(&long).compare(&Number::parse(&longer)).is_lt());
        assert!(Number::parse(&long).prefix(3) <= Number::parse(&longer).prefix(3));
    }

    #[test]
    fn suffixes_come_before_digits() {
        for (a, b) in [("900", "1K"), ("1023K", "1M"), ("-1G", "-2K"), ("-1K", "5"), ("0Y", "1")] {
            assert!(compare_human(a.as_bytes(), b.as_bytes(), false).is_lt(), "{a} {b}");
            assert!(
                human_prefix(a.as_bytes(), false) <= human_prefix(b.as_bytes(), false),
                "{a} {b}"
            );
        }
    }

    #[test]
    fn months_are_found_in_any_case() {
        assert_eq!([month(b" jan"), month(b"December"), month(b"Ja"), month(b"x")], [1, 12, 0, 0]);
    }
}
