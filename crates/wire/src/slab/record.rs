//! The records that columns are made of: one for the key of an item, one for its value.

use super::{Content, Group, Header, Indices, KEY_BYTES_MAX, Received, VALUE_BYTES_MAX};
use std::cmp::Ordering;

/// In front of a key: 3 bytes of hash (the sub-range has the first), 2 of the key's length and
/// flag, 8 of the index.
pub(super) const KEY_HEADER_BYTES: usize = 13;
/// In front of a value: its length.
pub(super) const VALUE_HEADER_BYTES: usize = 4;

/// In the two bytes of the key's length.
const DELETED: u16 = 1 << 15;

const _: () = assert!(KEY_BYTES_MAX < DELETED as usize);

#[inline]
pub(super) fn put_key(out: &mut Vec<u8>, hash: u32, key: &[u8], index: u64, deleted: bool) {
    let length = key.len() as u16 | if deleted { DELETED } else { 0 };
    let mut header = [0; KEY_HEADER_BYTES];
    header[..3].copy_from_slice(&hash.to_le_bytes()[..3]);
    header[3..5].copy_from_slice(&length.to_le_bytes());
    header[5..].copy_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(key);
}

#[inline]
pub(super) fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// The columns of one group of a collection; the values may not be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub collection: u16,
    pub group: Group,
    pub items: u32,
    pub keys: &'a [u8],
    pub values: Option<&'a [u8]>,
}

/// One item on a [`Walk`], with the records that it was read from.
pub(super) struct Step<'a> {
    pub received: Received<'a>,
    pub key_record: &'a [u8],
    pub value_record: &'a [u8],
}

/// Goes through a pair of columns, item by item.
#[derive(Clone, Debug)]
pub(super) struct Walk<'a> {
    pair: Pair<'a>,
    /// The first byte of every hash, in its place.
    sub_range: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(header: &Header, pair: Pair<'a>) -> Walk<'a> {
        Walk { pair, sub_range: header.first_hash & 0xff00_0000 }
    }

    /// The next item; nothing behind the last one, which must be the end of both columns.
    #[inline]
    pub(super) fn step(&mut self) -> Result<Option<Step<'a>>, &'static str> {
        let pair = &mut self.pair;
        if pair.items == 0 {
            let rest = pair.keys.len() + pair.values.map_or(0, <[u8]>::len);
            return if rest == 0 { Ok(None) } else { Err("a column goes on behind its last item") };
        }
        pair.items -= 1;
        let ends = "a column ends in front of its last item";
        let key_bytes = pair.keys;
        let (head, rest) = key_bytes.split_first_chunk::<KEY_HEADER_BYTES>().ok_or(ends)?;
        let [h0, h1, h2, l0, l1, index @ ..] = *head;
        let hash = self.sub_range | u32::from_le_bytes([h0, h1, h2, 0]);
        let length = u16::from_le_bytes([l0, l1]);
        let (key, rest) = rest.split_at_checked(usize::from(length & !DELETED)).ok_or(ends)?;
        pair.keys = rest;
        let (mut content, mut value_record) = (Content::NotSent, &[][..]);
        if let Some(value_bytes) = pair.values {
            let (length, rest) = value_bytes.split_first_chunk().ok_or(ends)?;
            let length = u32::from_le_bytes(*length) as usize;
            let (value, rest) = rest.split_at_checked(length).ok_or(ends)?;
            pair.values = Some(rest);
            (content, value_record) =
                (Content::Value(value), &value_bytes[..VALUE_HEADER_BYTES + length]);
        }
        if length & DELETED != 0 {
            if value_record.len() > VALUE_HEADER_BYTES {
                return Err("a deletion has a value");
            }
            content = Content::Deleted;
        }
        let (collection, newest) = (pair.collection, pair.group == Group::Newest);
        let index = u64::from_le_bytes(index);
        let received = Received { hash, collection, key, index, newest, content };
        let key_record = &key_bytes[..KEY_HEADER_BYTES + key.len()];
        Ok(Some(Step { received, key_record, value_record }))
    }
}

/// Whether a pair of columns that somebody sent holds what a builder could have put there; and of which
/// indices its items are.
pub(super) fn check(header: &Header, pair: Pair<'_>) -> Result<Indices, &'static str> {
    let mut indices = Indices::NONE;
    let mut walk = Walk::new(header, pair);
    let mut before: Option<Received<'_>> = None;
    while let Some(Step { received, .. }) = walk.step()? {
        if !(1..=KEY_BYTES_MAX).contains(&received.key.len()) {
            return Err("a key has no length that a key may have");
        }
        if !(header.first_hash..=header.last_hash).contains(&received.hash) {
            return Err("an item's hash is outside the slab");
        }
        if received.index > header.index {
            return Err("an item is newer than the view");
        }
        match received.content {
            Content::Deleted if received.newest => return Err("the newest item is a deletion"),
            Content::Value(value) if value.len() > VALUE_BYTES_MAX => {
                return Err("a value is longer than a value may be");
            }
            _ => {}
        }
        let follows = before.is_none_or(|before| {
            let keys = (before.hash.cmp(&received.hash)).then_with(|| before.key.cmp(received.key));
            keys == Ordering::Less
                || keys == Ordering::Equal && !received.newest && before.index < received.index
        });
        if !follows {
            return Err("items are not in order");
        }
        indices.add(received.index);
        before = Some(received);
    }
    Ok(indices)
}
