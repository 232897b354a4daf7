//! Version order as in `sort -V`: digits count as numbers, suffixes like `.tar.gz` come last. After
//! gnulib's filevercmp. Pure.

use std::cmp::Ordering;

pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let empty = b.is_empty().cmp(&a.is_empty());
    if a.is_empty() || b.is_empty() {
        return empty;
    }
    // `.`, `..`, then names that start with a point, then others.
    let rank = |name: &[u8]| match name {
        b"." => 0,
        b".." => 1,
        [b'.', ..] => 2,
        _ => 3,
    };
    let ranks = rank(a).cmp(&rank(b));
    if ranks.is_ne() || rank(a) < 2 {
        return ranks;
    }
    let (x, y) = (stem(a), stem(b));
    parts(&a[..x], &b[..y]).then_with(|| parts(a, b))
}

/// Bytes in front of the suffix, which matches `(\\.[A-Za-z~][A-Za-z0-9~]*)*$` and may be all.
fn stem(name: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let stem = at;
        let starts =
            |at: usize| name.get(at).is_some_and(|b| b.is_ascii_alphabetic() || *b == b'~');
        while name.get(at) == Some(&b'.') && starts(at + 1) {
            at += 2;
            while name.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'~') {
                at += 1;
            }
        }
        if at == name.len() {
            return stem;
        }
        at += 1;
    }
}

/// `~` before the end, the end and digits before letters, these before all else.
fn weight(byte: Option<&u8>) -> i32 {
    match byte {
        None => -1,
        Some(b'0'..=b'9') => 0,
        Some(b'~') => -2,
        Some(b) if b.is_ascii_alphabetic() => i32::from(*b),
        Some(b) => i32::from(*b) + 256,
    }
}

fn parts(mut a: &[u8], mut b: &[u8]) -> Ordering {
    let is_other = |bytes: &[u8]| bytes.first().is_some_and(|b| !b.is_ascii_digit());
    while !a.is_empty() || !b.is_empty() {
        while is_other(a) || is_other(b) {
            let order = weight(a.first()).cmp(&weight(b.first()));
            if order.is_ne() {
                return order;
            }
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        }
        let (x, y) = (number(&mut a), number(&mut b));
        let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// Takes the digits in front; answers them without leading zeros.
fn number<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let count = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = bytes.split_at(count);
    *bytes = rest;
    &digits[digits.iter().take_while(|b| **b == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_as_people_count() {
        let rising = [
            "",
            ".",
            "..",
            ".a",
            ".b1",
            "1~",
            "1",
            "9",
            "10",
            "a~",
            "a",
            "a1",
            "a1.0",
            "a2",
            "a2.tar.gz",
            "a02.1",
            "a10",
            "a10.gz",
            "a10b",
            "b",
            "file-1.2.tgz",
            "file-1.10.tgz",
        ];
        for (i, a) in rising.iter().enumerate() {
            for (j, b) in rising.iter().enumerate() {
                assert_eq!(compare(a.as_bytes(), b.as_bytes()), i.cmp(&j), "{a} {b}");
            }
        }
        assert!(compare(b"a01", b"a1").is_eq());
    }
}
