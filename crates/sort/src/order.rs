//! The order of records: comparison, and a prefix of 80 bits of which most comparisons are made.
//! Pure.

use crate::key::{Keys, LineOptions};
use crate::record::Format;
use holdfast_base::{Error, Result};
use std::cmp::Ordering;

/// Bits of a prefix. With 48 bits that say where the record is they make one `u128`, sorted as
/// such.
pub const PREFIX_BITS: u32 = 80;
pub const PREFIX_MASK: u128 = (1 << PREFIX_BITS) - 1;

/// Bytes of a variable key that a prefix holds; a ninth of its bits counts how many there are.
pub const COUNTED_BYTES: usize = 9;
/// Bytes of a fixed key that a prefix holds.
const FIXED_BYTES: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// A range that every record has.
    Fixed {
        start: usize,
        end: usize,
    },
    /// A range that records may end in or before.
    Range {
        start: usize,
        end: usize,
    },
    Keys(Keys),
}

/// How records are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    rule: Rule,
    reverse: bool,
}

/// How far into the keys records are known to be equal: all keys before number `key`, and `skip`
/// bytes in front of that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    pub key: usize,
    pub skip: usize,
}

/// What equal prefixes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// The records are equal.
    Equal,
    /// The prefix at this depth decides, or what is deeper still.
    Deeper(Depth),
    /// The comparison decides.
    Compare,
}

/// Nine bytes at most of a variable key, which is `body[start..end]`, and how many more: ten means
/// at least one more. Zeros fill up, and the count tells them from zeros of the key.
#[inline]
pub fn bytes_prefix(body: &[u8], start: usize, end: usize) -> u128 {
    let length = end.saturating_sub(start);
    if let Some(chunk) = body.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
        let missing = COUNTED_BYTES.saturating_sub(length) as u32 * 8;
        let nine = u128::from_be_bytes(*chunk) >> 56;
        return (nine >> missing << missing) << 8 | length.min(10) as u128;
    }
    let mut nine = [0; COUNTED_BYTES];
    let kept = length.min(COUNTED_BYTES);
    if kept > 0 {
        nine[..kept].copy_from_slice(&body[start..start + kept]);
    }
    counted_prefix(&nine, length.min(10))
}

#[inline]
pub fn counted_prefix(nine: &[u8; COUNTED_BYTES], count: usize) -> u128 {
    let mut bytes = [0; 16];
    bytes[6..15].copy_from_slice(nine);
    bytes[15] = count as u8;
    u128::from_be_bytes(bytes)
}

/// Ten bytes, or fewer with zeros behind.
#[inline]
fn fixed_prefix(key: &[u8], body: &[u8], at: usize) -> u128 {
    if let Some(start) = body.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
        let missing = FIXED_BYTES.saturating_sub(key.len()) as u32 * 8;
        return u128::from_be_bytes(*start) >> 48 >> missing << missing;
    }
    let mut bytes = [0; 16];
    let kept = key.len().min(FIXED_BYTES);
    bytes[..kept].copy_from_slice(&key[..kept]);
    u128::from_be_bytes(bytes) >> 48
}

impl Order {
    /// By the bytes `start..end` of each record; all of it without an end. Equal keys keep their
    /// order.
    pub fn range(format: Format, start: usize, end: Option<usize>, reverse: bool) -> Result<Order> {
        let rule = match format {
            Format::Fixed(bytes) => {
                let end = end.unwrap_or(bytes);
                if start >= end || end > bytes {
                    return Err(Error::invalid(format!(
                        "compare bytes {start} to {end} of records of {bytes}: a key has at least a byte and lies in the record"
                    )));
                }
                Rule::Fixed { start, end }
            }
            _ => Rule::Range { start, end: end.unwrap_or(usize::MAX) },
        };
        if matches!(rule, Rule::Range { start, end } if start >= end) {
            return Err(Error::invalid(format!("compare from byte {start}: the key ends before")));
        }
        Ok(Order { rule, reverse })
    }

    /// As GNU sort orders lines.
    pub fn lines(options: &LineOptions) -> Result<Order> {
        let (keys, reverse) = options.resolve()?;
        Ok(match keys {
            Some(keys) => Order { rule: Rule::Keys(keys), reverse: false },
            None => Order { rule: Rule::Range { start: 0, end: usize::MAX }, reverse },
        })
    }

    fn key(start: usize, end: usize, body: &[u8]) -> &[u8] {
        let end = end.min(body.len());
        &body[start.min(end)..end]
    }

    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_from(0, a, b)
    }

    /// As [`Order::compare`], where the keys before number `key` are known to be equal.
    pub fn compare_from(&self, key: usize, a: &[u8], b: &[u8]) -> Ordering {
        let order = match &self.rule {
            Rule::Fixed { start, end } | Rule::Range { start, end } => {
                Order::key(*start, *end, a).cmp(Order::key(*start, *end, b))
            }
            Rule::Keys(keys) => return keys.compare(key, a, b),
        };
        if self.reverse { order.reverse() } else { order }
    }

    /// 80 bits that order as the records do, as far as they reach, where the records are known to
    /// be equal to this depth.
    #[inline(always)]
    pub fn prefix(&self, body: &[u8], depth: Depth) -> u128 {
        if let Rule::Fixed { start, end } = &self.rule {
            let at = (start + depth.skip).min(*end);
            let prefix = fixed_prefix(&body[at..*end], body, at);
            return if self.reverse { !prefix & PREFIX_MASK } else { prefix };
        }
        self.variable_prefix(body, depth)
    }

    fn variable_prefix(&self, body: &[u8], depth: Depth) -> u128 {
        let prefix = match &self.rule {
            Rule::Fixed { start, end } | Rule::Range { start, end } => {
                let end = (*end).min(body.len());
                bytes_prefix(body, start.saturating_add(depth.skip).min(end), end)
            }
            Rule::Keys(keys) => return keys.prefix(body, depth),
        };
        if self.reverse { !prefix & PREFIX_MASK } else { prefix }
    }

    /// What records are to each other whose prefixes at `depth` are this one.
    pub fn tie(&self, prefix: u128, depth: Depth) -> Tie {
        let deeper = |bytes| Tie::Deeper(Depth { skip: depth.skip + bytes, ..depth });
        match &self.rule {
            Rule::Fixed { start, end } if start + depth.skip + FIXED_BYTES >= *end => Tie::Equal,
            Rule::Fixed { .. } => deeper(FIXED_BYTES),
            Rule::Range { .. } => {
                let prefix = if self.reverse { !prefix } else { prefix };
                match prefix & 0xff <= COUNTED_BYTES as u128 {
                    true => Tie::Equal,
                    false => deeper(COUNTED_BYTES),
                }
            }
            Rule::Keys(keys) => keys.tie(prefix, depth),
        }
    }

    /// Whether no prefix ever ties without being equal.
    pub fn prefix_is_all(&self) -> bool {
        matches!(&self.rule, Rule::Fixed { start, end } if end - start <= FIXED_BYTES)
    }

    /// How far `a` and `b`, and all records between them, are equal.
    pub fn shared(&self, a: &[u8], b: &[u8]) -> Depth {
        match &self.rule {
            Rule::Keys(keys) => keys.shared(a, b),
            _ => Depth { key: 0, skip: self.shared_bytes(0, a, b) },
        }
    }

    /// Bytes in front that keys number `key` of `a` and `b` share.
    pub fn shared_bytes(&self, key: usize, a: &[u8], b: &[u8]) -> usize {
        match &self.rule {
            Rule::Fixed { start, end } | Rule::Range { start, end } => {
                let (a, b) = (Order::key(*start, *end, a), Order::key(*start, *end, b));
                a.iter().zip(b).take_while(|(a, b)| a == b).count()
            }
            Rule::Keys(keys) => keys.shared_bytes(key, a, b),
        }
    }
}
