//! An item's bytes, as rows keep them: docs/formats/dynamo.md. One item has one form. Pure.

use crate::decimal::Decimal;
use crate::value::{Item, NESTING_MAX, Value};
use holdfast_base::{Error, Kind, Result};
use std::collections::BTreeSet;

/// Of the form.
pub const VERSION: u8 = 1;

const S: u8 = 1;
const N: u8 = 2;
const B: u8 = 3;
const FALSE: u8 = 4;
const TRUE: u8 = 5;
const NULL: u8 = 6;
const M: u8 = 7;
const L: u8 = 8;
const SS: u8 = 9;
const NS: u8 = 10;
const BS: u8 = 11;

/// Writes an item.
pub fn to_bytes(item: &Item) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_map(&mut out, item);
    out
}

/// Reads an item.
///
/// # Errors
///
/// `Unsupported` for a later version, `Corrupt` for anything that [`to_bytes`] does not write.
pub fn from_bytes(bytes: &[u8]) -> Result<Item> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => {
            let mut reader = Reader { rest };
            let item = reader.map(0).filter(|_| reader.rest.is_empty());
            item.ok_or_else(|| Error::new(Kind::Corrupt, "read an item: its bytes are not one"))
        }
        Some((version, _)) => Err(Error::new(
            Kind::Unsupported,
            format!("read an item: its form has version {version}, this build knows {VERSION}"),
        )),
        None => Err(Error::new(Kind::Corrupt, "read an item: there are no bytes")),
    }
}

fn put_count(out: &mut Vec<u8>, mut count: usize) {
    while count >= 0x80 {
        out.push(count as u8 | 0x80);
        count >>= 7;
    }
    out.push(count as u8);
}

fn put_blob(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_map(out: &mut Vec<u8>, map: &Item) {
    put_count(out, map.len());
    for (name, value) in map {
        put_blob(out, name.as_bytes());
        put_value(out, value);
    }
}

/// Sign and length of the coefficient in a byte, the exponent in two, the coefficient.
fn put_number(out: &mut Vec<u8>, number: Decimal) {
    let (is_negative, coefficient, exponent) = number.parts();
    let bytes = coefficient.to_le_bytes();
    let len = bytes.len() - coefficient.leading_zeros() as usize / 8;
    out.push(len as u8 | u8::from(is_negative) << 7);
    out.extend_from_slice(&exponent.to_le_bytes());
    out.extend_from_slice(&bytes[..len]);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::S(text) => {
            out.push(S);
            put_blob(out, text.as_bytes());
        }
        Value::N(number) => {
            out.push(N);
            put_number(out, *number);
        }
        Value::B(bytes) => {
            out.push(B);
            put_blob(out, bytes);
        }
        Value::Bool(truth) => out.push(if *truth { TRUE } else { FALSE }),
        Value::Null => out.push(NULL),
        Value::M(map) => {
            out.push(M);
            put_map(out, map);
        }
        Value::L(list) => {
            out.push(L);
            put_count(out, list.len());
            list.iter().for_each(|value| put_value(out, value));
        }
        Value::Ss(set) => {
            out.push(SS);
            put_count(out, set.len());
            set.iter().for_each(|text| put_blob(out, text.as_bytes()));
        }
        Value::Ns(set) => {
            out.push(NS);
            put_count(out, set.len());
            set.iter().for_each(|number| put_number(out, *number));
        }
        Value::Bs(set) => {
            out.push(BS);
            put_count(out, set.len());
            set.iter().for_each(|bytes| put_blob(out, bytes));
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// In its shortest form, and no larger than what is left: each thing counted takes a byte.
    fn count(&mut self) -> Option<usize> {
        let mut count = 0usize;
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            count |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let is_shortest = byte != 0 || shift == 0;
                return (is_shortest && count <= self.rest.len()).then_some(count);
            }
        }
        None
    }

    fn blob(&mut self) -> Option<&'a [u8]> {
        let count = self.count()?;
        self.take(count)
    }

    fn text(&mut self) -> Option<String> {
        self.blob().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    }

    fn number(&mut self) -> Option<Decimal> {
        let head = self.byte()?;
        let exponent = i16::from_le_bytes(self.take(2)?.try_into().ok()?);
        let taken = self.take(usize::from(head & 0x7f))?;
        let mut bytes = [0; 16];
        bytes.get_mut(..taken.len())?.copy_from_slice(taken);
        if taken.last() == Some(&0) {
            return None;
        }
        Decimal::from_parts(head & 0x80 != 0, u128::from_le_bytes(bytes), exponent)
    }

    fn map(&mut self, depth: usize) -> Option<Item> {
        let mut map = Item::new();
        for _ in 0..self.count()? {
            let name = self.text()?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return None;
            }
            let value = self.value(depth)?;
            map.insert(name, value);
        }
        Some(map)
    }

    fn set<T: Ord>(&mut self, read: impl Fn(&mut Reader<'a>) -> Option<T>) -> Option<BTreeSet<T>> {
        let mut set = BTreeSet::new();
        for _ in 0..self.count()? {
            let member = read(self)?;
            if set.last().is_some_and(|last| *last >= member) {
                return None;
            }
            set.insert(member);
        }
        Some(set)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > NESTING_MAX {
            return None;
        }
        Some(match self.byte()? {
            S => Value::S(self.text()?),
            N => Value::N(self.number()?),
            B => Value::B(self.blob()?.to_vec()),
            FALSE => Value::Bool(false),
            TRUE => Value::Bool(true),
            NULL => Value::Null,
            M => Value::M(self.map(depth + 1)?),
            L => {
                let count = self.count()?;
                Value::L((0..count).map(|_| self.value(depth + 1)).collect::<Option<_>>()?)
            }
            SS => Value::Ss(self.set(Reader::text)?),
            NS => Value::Ns(self.set(Reader::number)?),
            BS => Value::Bs(self.set(|reader| reader.blob().map(<[u8]>::to_vec))?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::to_item;
    use serde_json::json;

    fn sample() -> Item {
        let given = json!({
            "s": {"S": "hé"}, "n": {"N": "-12.5"}, "z": {"N": "0"}, "b": {"B": "AP8="},
            "t": {"BOOL": true}, "f": {"BOOL": false}, "0": {"NULL": true},
            "m": {"M": {"a": {"L": [{"N": "1e125"}, {"M": {}}]}}},
            "ss": {"SS": ["b", "a"]}, "ns": {"NS": ["2", "-1"]}, "bs": {"BS": ["Ag==", "AQ=="]}
        });
        to_item(&given).unwrap().checked().unwrap()
    }

    #[test]
    fn an_items_bytes_are_what_the_page_says() {
        let hex: String = to_bytes(&sample()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(from_bytes(&to_bytes(&sample())).unwrap(), sample());
    }

    /// Of version 1, for ever.
    const GOLDEN: &str = "010b0130060162030200ff0262730b0201010102016604016d0701016108\
                          0202017d00010700016e0281ffff7d026e730a0281000001010000020173\
                          010368c3a9027373090201610162017405017a02000000";

    #[test]
    fn what_nobody_wrote_is_refused() {
        let bytes = to_bytes(&sample());
        for end in 0..bytes.len() {
            assert!(from_bytes(&bytes[..end]).is_err(), "{end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(from_bytes(&longer).unwrap_err().kind, Kind::Corrupt);
        longer[0] = 2;
        assert_eq!(from_bytes(&longer).unwrap_err().kind, Kind::Unsupported);
    }
}
