//! Rows of a view of items: one a version of a key, in the order of the key's hash, its collection,
//! the key and the index that made it; and one for the catalog. docs/formats/items.md.

use holdfast_base::codec::DecodeError;
use holdfast_base::ids::Index;
use holdfast_base::ordered;
use holdfast_wire::slab::Range;
use std::borrow::Cow;

/// The catalog's row.
pub const CATALOG: &[u8] = b"c";
/// How far the rows are swept.
pub const SWEEP: &[u8] = b"w";
const ITEM: u8 = b'i';
/// In front of a value, and of nothing where the key was deleted.
const VALUE: u8 = 1;
const DELETED: u8 = 0;
/// Kind, hash and collection.
const HEAD_BYTES: usize = 7;
/// The index of a version, at its end.
const INDEX_BYTES: usize = 8;

/// Where rows of items with hashes from a range lie: from, until.
pub fn bounds(range: Range) -> (Vec<u8>, Vec<u8>) {
    let bound = |hash: u64| match u32::try_from(hash) {
        Ok(hash) => [&[ITEM][..], &hash.to_be_bytes()].concat(),
        Err(_) => vec![ITEM + 1],
    };
    (bound(range.low()), bound(range.high()))
}

fn head(hash: u32, collection: u16, more: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(HEAD_BYTES + more);
    row.push(ITEM);
    row.extend_from_slice(&hash.to_be_bytes());
    row.extend_from_slice(&collection.to_be_bytes());
    row
}

/// In front of all versions of a key.
pub fn versions(hash: u32, collection: u16, key: &[u8]) -> Vec<u8> {
    let mut row = head(hash, collection, key.len() + 10);
    ordered::put(&mut row, key);
    row
}

/// In front of all versions of keys that begin so.
pub fn beginning(hash: u32, collection: u16, prefix: &[u8]) -> Vec<u8> {
    let mut row = head(hash, collection, prefix.len());
    ordered::put_open(&mut row, prefix);
    row
}

/// The row of a key's version.
pub fn version(versions: &[u8], index: Index) -> Vec<u8> {
    [versions, &index.0.to_be_bytes()].concat()
}

/// Whether two rows are versions of one key: they differ in nothing but their index.
pub fn same_key(a: &[u8], b: &[u8]) -> bool {
    let key = |row: &[u8]| row.len().saturating_sub(INDEX_BYTES);
    a[..key(a)] == b[..key(b)]
}

/// Behind everything that begins with these bytes. They hold one that is not 255.
pub fn behind(mut start: Vec<u8>) -> Vec<u8> {
    while let Some(last) = start.pop() {
        if last < 255 {
            start.push(last + 1);
            return start;
        }
    }
    unreachable!("a row begins with its kind");
}

/// One version of one key, as it lies in rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub hash: u32,
    pub collection: u16,
    pub key: Cow<'a, [u8]>,
    pub index: Index,
    pub value: Option<&'a [u8]>,
}

/// What a row says.
pub fn parse<'a>(row: &'a [u8], value: &'a [u8]) -> Result<Item<'a>, DecodeError> {
    let parsed = || {
        let (head, rest) = row.split_first_chunk::<HEAD_BYTES>()?;
        let (key, index) = ordered::take(rest)?;
        let value = match value.split_first()? {
            (&VALUE, value) => Some(value),
            (&DELETED, []) => None,
            _ => return None,
        };
        Some(Item {
            hash: u32::from_be_bytes(head[1..5].try_into().ok()?),
            collection: u16::from_be_bytes(head[5..].try_into().ok()?),
            key,
            index: Index(u64::from_be_bytes(index.try_into().ok()?)),
            value,
        })
    };
    parsed().ok_or(DecodeError::BadValue("row of an item"))
}

/// What a row holds for a version.
pub fn value(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        Some(value) => {
            let mut held = Vec::with_capacity(1 + value.len());
            held.push(VALUE);
            held.extend_from_slice(value);
            held
        }
        None => vec![DELETED],
    }
}
