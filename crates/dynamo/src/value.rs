//! Values of attributes, items, and how large they count. Pure; their JSON is `json`'s, their bytes
//! `form`'s.

use crate::decimal::Decimal;
use std::collections::{BTreeMap, BTreeSet};

/// An item, or a key: attributes by name.
pub type Item = BTreeMap<String, Value>;

/// How many bytes an item may count.
pub const ITEM_BYTES_MAX: usize = 400 << 10;
/// How many bytes the name of an attribute may have.
pub const NAME_BYTES_MAX: usize = (64 << 10) - 1;
/// How deep lists and maps may lie in each other.
pub const NESTING_MAX: usize = 32;

/// The value of an attribute. Sets are kept in order, so that equal ones are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    S(String),
    /// A number.
    N(Decimal),
    /// Bytes.
    B(Vec<u8>),
    /// A truth value.
    Bool(bool),
    /// Null.
    Null,
    /// A map.
    M(Item),
    /// A list.
    L(Vec<Value>),
    /// A set of strings.
    Ss(BTreeSet<String>),
    /// A set of numbers.
    Ns(BTreeSet<Decimal>),
    /// A set of bytes.
    Bs(BTreeSet<Vec<u8>>),
}

impl Value {
    /// The type's name in JSON and in `attribute_type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::S(_) => "S",
            Value::N(_) => "N",
            Value::B(_) => "B",
            Value::Bool(_) => "BOOL",
            Value::Null => "NULL",
            Value::M(_) => "M",
            Value::L(_) => "L",
            Value::Ss(_) => "SS",
            Value::Ns(_) => "NS",
            Value::Bs(_) => "BS",
        }
    }

    /// Bytes that it counts, as DynamoDB documents them.
    pub fn bytes(&self) -> usize {
        match self {
            Value::S(text) => text.len(),
            Value::N(number) => number_bytes(*number),
            Value::B(bytes) => bytes.len(),
            Value::Bool(_) | Value::Null => 1,
            Value::M(map) => 3 + map.len() + item_bytes(map),
            Value::L(list) => 3 + list.iter().map(|value| 1 + value.bytes()).sum::<usize>(),
            Value::Ss(set) => set.iter().map(String::len).sum(),
            Value::Ns(set) => set.iter().map(|number| number_bytes(*number)).sum(),
            Value::Bs(set) => set.iter().map(Vec::len).sum(),
        }
    }

    /// What `size()` says: nothing of numbers, truth values and null.
    pub fn size(&self) -> Option<usize> {
        match self {
            Value::S(text) => Some(text.encode_utf16().count()),
            Value::B(bytes) => Some(bytes.len()),
            Value::M(map) => Some(map.len()),
            Value::L(list) => Some(list.len()),
            Value::Ss(set) => Some(set.len()),
            Value::Ns(set) => Some(set.len()),
            Value::Bs(set) => Some(set.len()),
            Value::N(_) | Value::Bool(_) | Value::Null => None,
        }
    }

    /// How many levels of lists and maps it is.
    pub fn depth(&self) -> usize {
        match self {
            Value::M(map) => 1 + map.values().map(Value::depth).max().unwrap_or(0),
            Value::L(list) => 1 + list.iter().map(Value::depth).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// Two digits a byte, counted from the point, one for the exponent, one for a sign.
fn number_bytes(number: Decimal) -> usize {
    if number.is_zero() {
        return 1;
    }
    let digits = number.digits() as usize;
    let shifted = digits.is_multiple_of(2) && number.magnitude() % 2 == 0;
    1 + digits.div_ceil(2) + usize::from(shifted) + usize::from(number.is_negative())
}

/// Bytes that an item counts: its names and its values.
pub fn item_bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value.bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_what_dynamodb_documents() {
        let number = |text: &str| Value::N(Decimal::parse(text).unwrap()).bytes();
        assert_eq!(
            [number("0"), number("1"), number("-1"), number("12"), number("123")],
            [1, 2, 3, 2, 3]
        );
        let list = Value::L(vec![Value::S("abc".into()), Value::Null]);
        assert_eq!((list.bytes(), list.depth(), list.size()), (3 + 4 + 2, 1, Some(2)));
        let map = Value::M(Item::from([("k".into(), list)]));
        assert_eq!((map.bytes(), map.depth()), (3 + 1 + 1 + 9, 2));
        assert_eq!(item_bytes(&Item::from([("name".into(), map)])), 4 + 14);
    }
}
