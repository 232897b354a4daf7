//! Bytes of any length in front of other bytes, so that the whole sorts as the parts do: rows of
//! ordered engines are made of them. A zero byte is followed by 255, and the end is a zero byte
//! followed by 1. Pure.

use std::borrow::Cow;

const ZERO: u8 = 0;
const GOES_ON: u8 = 255;
const ENDS: u8 = 1;

/// Appends `bytes`, ended.
pub fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_open(out, bytes);
    out.extend_from_slice(&[ZERO, ENDS]);
}

/// Appends `bytes` without their end: in front of everything that begins with them.
pub fn put_open(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == ZERO);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&[ZERO, GOES_ON]);
        out.extend_from_slice(part);
    }
}

/// The inverse of [`put`]: the bytes, and what follows them. Nothing where they do not end.
pub fn take(row: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let zero = |from: usize| Some(from + first_zero(row.get(from..)?)?);
    let mut at = zero(0)?;
    if row.get(at + 1) == Some(&ENDS) {
        return Some((Cow::Borrowed(&row[..at]), &row[at + 2..]));
    }
    let mut bytes = row[..at].to_vec();
    loop {
        match *row.get(at + 1)? {
            ENDS => return Some((Cow::Owned(bytes), &row[at + 2..])),
            GOES_ON => bytes.push(ZERO),
            _ => return None,
        }
        let next = zero(at + 2)?;
        bytes.extend_from_slice(&row[at + 2..next]);
        at = next;
    }
}

/// The least bytes behind these: no others lie between.
pub fn next(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[ZERO]].concat()
}

/// The least bytes behind all that begin with `prefix`; nothing if there are none.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// Where the first zero byte is. Eight bytes at a time: whoever passes over a view asks it of each row.
#[inline]
fn first_zero(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let (words, rest) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The highest bit of each byte that is zero, and perhaps of some behind the first of them.
        let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zeros != 0 {
            return Some(8 * place + zeros.trailing_zeros() as usize / 8);
        }
    }
    let behind = bytes.len() - rest.len();
    Some(behind + rest.iter().position(|byte| *byte == ZERO)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;

    /// Everything of up to three bytes out of those that mean something here, and long ones.
    fn samples() -> Vec<Vec<u8>> {
        let bytes = [0, 1, 2, 254, 255];
        let mut all = vec![Vec::new()];
        for length in 1..=3u32 {
            let one = |n: usize| (0..length).map(|i| bytes[n / 5usize.pow(i) % 5]).collect();
            all.extend((0..5usize.pow(length)).map(one));
        }
        all.extend((0..20).map(|n| (0..300).map(|i| mix(n << 32 | i) as u8 % 3).collect()));
        all
    }

    #[test]
    fn the_first_zero_is_found_wherever_it_is_and_whatever_follows() {
        let fills = [1, 2, 127, 128, 129, 255];
        for (length, fill) in (0..30).flat_map(|length| fills.map(|fill| (length, fill))) {
            let plain = vec![fill; length];
            assert_eq!(first_zero(&plain), None, "{length} of {fill}");
            for (first, behind) in (0..length).flat_map(|at| [0, 1, 128, 255].map(|b| (at, b))) {
                let mut bytes = plain.clone();
                bytes[first] = 0;
                bytes[first + 1..].fill(behind);
                assert_eq!(first_zero(&bytes), Some(first), "{bytes:?}");
            }
        }
    }

    #[test]
    fn what_was_put_comes_back_and_sorts_as_it_did() {
        let all = samples();
        let row = |bytes: &[u8], rest: &[u8]| {
            let mut out = Vec::new();
            put(&mut out, bytes);
            out.extend_from_slice(rest);
            out
        };
        for bytes in &all {
            let made = row(bytes, b"rest");
            assert_eq!(take(&made), Some((Cow::Borrowed(&bytes[..]), &b"rest"[..])));
            let plain = !bytes.contains(&0);
            assert_eq!(matches!(take(&made), Some((Cow::Borrowed(_), _))), plain);
            for cut in 0..made.len() - 4 {
                assert_eq!(take(&made[..cut]), None, "{bytes:?} cut at {cut}");
            }
            for other in &all {
                for (rest, other_rest) in [(&[0][..], &[255][..]), (&[255], &[0]), (&[], &[7])] {
                    let rows = (row(bytes, rest), row(other, other_rest));
                    let plain = (bytes, rest).cmp(&(other, other_rest));
                    assert_eq!(rows.0.cmp(&rows.1), plain, "{bytes:?} and {other:?}");
                }
                let mut start = Vec::new();
                put_open(&mut start, bytes);
                assert_eq!(row(other, b"").starts_with(&start), other.starts_with(bytes));
            }
        }
    }

    #[test]
    fn bounds_lie_where_the_order_says() {
        let samples = samples();
        for bytes in &samples {
            let (next, after) = (next(bytes), after_prefix(bytes));
            assert!(*bytes < next);
            for other in &samples {
                assert_eq!(other > bytes, *other >= next, "{other:?} behind {bytes:?}");
                let begins = other >= bytes && after.as_ref().is_none_or(|after| other < after);
                assert_eq!(other.starts_with(bytes), begins, "{other:?} begins with {bytes:?}");
            }
        }
    }
}
