//! Slabs: the form in which a view's items travel, and are kept in images. A slab is a run of
//! consecutive items in the order of (hash, collection, key, index), encoded once as columns that
//! are shared by reference with everybody who wants them. docs/formats/slab.md has every byte.
//! Knows nothing of scans, riders and files; never reads a clock, never blocks.
//!
//! - Who scans rows makes a [`Builder`] and gives it items in order: a slab comes out where one ends.
//!   It encodes what [`Needs`] say, and cuts in the same places whatever they say.
//! - Who sends: [`select`] takes from a slab what a rider [`Wanted`]; [`Slab::header_bytes`] and
//!   [`Slab::columns`] are what goes on the wire, one behind the other. [`Fields`] are what is left of
//!   the values where single fields were asked for; [`Slab::read`] takes of a slab in an image what
//!   is needed, and [`verify`] looks whether it is as it was written.
//! - Who receives makes a [`Reader`] of the bytes, which verifies all of them before it gives items.
//!   [`Sums`] of what was received are compared with those of others. [`values`] says what an index
//!   knows a value by.
//! - Where a key belongs: [`hash`] by the rule ([`Hashed`]) of its collection, [`Range`] of hashes.

mod builder;
mod fields;
mod hash;
mod header;
mod kept;
mod reader;
mod record;
mod select;
mod sums;
mod tally;
#[cfg(test)]
mod tests;
mod values;
mod wanted;

pub use builder::{Builder, SLAB_BYTES};
pub use fields::{FIELD_BYTES_MAX, FIELDS_MAX, Fields};
pub use hash::{Hashed, PARTITIONS_MAX, Range, SUB_RANGES, hash, sub_range};
pub use header::header_bytes;
pub use kept::{checksum, verify};
pub use reader::Reader;
pub use select::{retain, select};
pub use sums::{Differing, Sums, shown};
pub use tally::{Tallied, Tally, runs};
pub use values::{INDEXED_BYTES_MAX, object_of, values};
pub use wanted::{Collections, Needs, Wanted};

use header::{About, Group, What, write_header};
use holdfast_base::limits::{ENTRY_BYTES_MAX, FRAME_BODY_BYTES_MAX, FRAME_META_BYTES_MAX};
use record::Pair;
use std::ops;
use std::sync::Arc;

/// A key has at least one byte, and at most this many.
pub const KEY_BYTES_MAX: usize = 8 << 10;

/// A value came in one entry of a log.
pub const VALUE_BYTES_MAX: usize = ENTRY_BYTES_MAX;

const _: () = {
    // What a slab weighs in front of its last key, and the most that one key adds to it; header
    // and columns are all counted. So each is sent in one frame.
    let last_key =
        KEY_BYTES_MAX + VALUE_BYTES_MAX + builder::ITEM_BYTES + builder::COLLECTION_BYTES;
    assert!(2 * SLAB_BYTES.usual() as usize + last_key <= FRAME_BODY_BYTES_MAX as usize);
    let collections =
        SLAB_BYTES.usual() as usize / (builder::COLLECTION_BYTES + builder::ITEM_BYTES);
    assert!((collections + 2) * builder::COLLECTION_BYTES <= FRAME_META_BYTES_MAX as usize);
};

/// One version of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Of the key, by the rule of its collection.
    pub hash: u32,
    pub collection: u16,
    pub key: &'a [u8],
    /// Of the log's entry that made it.
    pub index: u64,
    /// Nothing: the entry deleted the key.
    pub value: Option<&'a [u8]>,
}

/// One item that was read from a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    pub hash: u32,
    pub collection: u16,
    pub key: &'a [u8],
    pub index: u64,
    /// Whether it is the last item of its key at the view's index, and no deletion.
    pub newest: bool,
    pub content: Content<'a>,
}

impl<'a> Received<'a> {
    /// The item as it was; nothing if its value was not sent.
    pub fn item(&self) -> Option<Item<'a>> {
        let value = match self.content {
            Content::Value(value) => Some(value),
            Content::Deleted => None,
            Content::NotSent => return None,
        };
        let Received { hash, collection, key, index, .. } = *self;
        Some(Item { hash, collection, key, index, value })
    }
}

/// What came with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    Value(&'a [u8]),
    Deleted,
    /// There is a value, and keys alone were asked for.
    NotSent,
}

/// Which run of items a slab is of; a selection says it of the slab that it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The index of the view: of the last entry of the log that it holds.
    pub index: u64,
    pub first_hash: u32,
    /// In the same sub-range as the first.
    pub last_hash: u32,
    /// The slab before ends with an item of the same key: nobody joins a ride here.
    pub begins_inside_key: bool,
    /// The slab behind goes on with the same key.
    pub ends_inside_key: bool,
}

/// Keys or values of one group of one collection: bytes that are shared and never changed.
#[derive(Clone, Debug)]
pub struct Column {
    about: About,
    /// Of its items: known to whoever has made or verified them, and not sent.
    indices: Indices,
    bytes: Arc<Vec<u8>>,
    at: ops::Range<usize>,
}

/// Bounds of the indices of some items: none lies outside, and they may be wider than need be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Indices {
    lowest: u64,
    highest: u64,
}

impl Indices {
    /// Of no items.
    const NONE: Indices = Indices { lowest: u64::MAX, highest: 0 };

    #[inline]
    fn add(&mut self, index: u64) {
        self.lowest = self.lowest.min(index);
        self.highest = self.highest.max(index);
    }
}

impl Column {
    fn new(about: About, indices: Indices, bytes: Vec<u8>) -> Column {
        let at = 0..bytes.len();
        Column { about, indices, bytes: Arc::new(bytes), at }
    }

    /// Keys and values of one group follow each other.
    fn group(&self) -> (u16, Group) {
        (self.about.collection, self.about.group)
    }

    /// Whether it shares the other one's bytes.
    pub fn is_same(&self, other: &Column) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) && self.at == other.at
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.at.clone()]
    }

    /// The bytes by reference, for an answer's body.
    pub fn shared(&self) -> (Arc<Vec<u8>>, ops::Range<usize>) {
        (self.bytes.clone(), self.at.clone())
    }
}

/// A run of items, or a selection of one, encoded. A copy shares the columns.
#[derive(Clone, Debug)]
pub struct Slab {
    pub header: Header,
    /// What was encoded: columns that were not needed are missing here.
    needs: Arc<Needs>,
    columns: Vec<Column>,
}

impl Slab {
    /// Whether everything was encoded that this rider wants; otherwise the slab has to be made again,
    /// from rows.
    pub fn serves(&self, wanted: &Wanted) -> bool {
        self.needs.covers(&Needs::of(wanted))
    }

    /// Whether everything was encoded.
    pub fn needs_all(&self) -> bool {
        self.needs.is_all()
    }

    /// What goes in front of the columns.
    pub fn header_bytes(&self) -> Vec<u8> {
        let columns = self.columns.iter().map(|column| column.about);
        write_header(&self.header, self.needs.is_all(), columns)
    }

    /// What goes behind the header, in this order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Of all columns together.
    pub fn body_bytes(&self) -> usize {
        self.columns.iter().map(|column| column.at.len()).sum()
    }

    /// Header and columns: what an image holds.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.header_bytes());
        self.columns.iter().for_each(|column| out.extend_from_slice(column.bytes()));
    }

    fn pairs(&self) -> Vec<Pair<'_>> {
        let columns = self.columns.iter().map(|column| (column.about, column.bytes()));
        header::pairs(columns).expect("keys and values are made together")
    }
}
