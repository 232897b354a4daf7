//! Makes slabs of items, one at a time and in order, as a scan comes by them.

use super::header::{ABOUT_BYTES, About, Group, What};
use super::record::{KEY_HEADER_BYTES, VALUE_HEADER_BYTES, put_key, put_value};
use super::wanted::Need;
use super::{
    Column, Header, Indices, Item, KEY_BYTES_MAX, Needs, Range, Slab, VALUE_BYTES_MAX, sub_range,
};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::cmp::Ordering;
use std::sync::Arc;

/// A slab ends with the first key that brings it to this weight. Long enough that the threads which wake
/// each other for it cost little beside it: with half of this, riders of everything took 4 to 9% more of
/// the processor (docs/benchmarks.md). With twice as much they took no less, those of keys alone 3%, and
/// were owed twice the memory.
pub static SLAB_BYTES: Knob = Knob::new("slab.bytes", 512 << 10, &[1, 40, 150, 1000]);

/// What an item weighs beside its key and its value.
pub(super) const ITEM_BYTES: usize = KEY_HEADER_BYTES + VALUE_HEADER_BYTES;
/// What the first item of a collection adds: two groups of two columns.
pub(super) const COLLECTION_BYTES: usize = 4 * ABOUT_BYTES;

/// Memory for long columns is asked for in multiples of this, and given back only where less than
/// half was needed: so the columns of a scan have one size or two, and the allocator hands the memory
/// of one to the next. With a size of its own each was mapped anew, which took longer than encoding.
const COLUMN_STEP_BYTES: usize = 32 << 10;

/// Cuts a run of items into slabs. A slab ends
/// - at the border of a sub-range;
/// - in front of a key, once it weighs [`SLAB_BYTES`];
/// - in front of and behind an item whose value alone is larger than that;
/// - inside a key whose items in this slab would together weigh more.
///
/// The weight is what items would take if all columns were encoded, so the cuts do not depend on
/// needs; nor do they on anything in front of the slab, so whoever begins with its first item makes
/// the same slabs from there on.
#[derive(Debug)]
pub struct Builder {
    range: Range,
    index: u64,
    needs: Arc<Needs>,
    bytes_max: usize,
    last: Last,
    open: Open,
    /// By collection, ascending: those of this slab and of the one before.
    parts: Vec<Part>,
}

/// The item before, in this slab or the one before it; at first what is in front of any item.
#[derive(Debug, Default)]
struct Last {
    hash: u32,
    collection: u16,
    key: Vec<u8>,
    index: u64,
    /// Its collection's place among the parts.
    part: usize,
    /// How long the columns of newest items were without it, if it is there for now.
    newest: Option<[usize; 2]>,
}

/// What the cutter knows of the slab that is being made; everything is forgotten at its end.
#[derive(Debug, Default)]
struct Open {
    items: usize,
    weight: usize,
    /// What the items of the last key weigh.
    key_weight: usize,
    first_hash: u32,
    begins_inside_key: bool,
}

#[derive(Debug)]
struct Part {
    collection: u16,
    need: Need,
    /// By [`Group`].
    groups: [Making; 2],
}

impl Part {
    fn is_empty(&self) -> bool {
        self.groups.iter().all(|group| group.items == 0)
    }
}

#[derive(Debug)]
struct Making {
    items: u32,
    /// Also of items that were here for a while.
    indices: Indices,
    /// By [`What`].
    columns: [Vec<u8>; 2],
    /// How long they became in the slab before: what they may need here.
    usual: [usize; 2],
}

impl Default for Making {
    fn default() -> Making {
        let (columns, usual) = Default::default();
        Making { items: 0, indices: Indices::NONE, columns, usual }
    }
}

impl Making {
    fn lengths(&self) -> [usize; 2] {
        [self.columns[0].len(), self.columns[1].len()]
    }

    fn put(&mut self, need: Need, group: Group, item: &Item<'_>) {
        if self.items == 0 {
            for (column, usual) in self.columns.iter_mut().zip(self.usual) {
                let step = if usual < COLUMN_STEP_BYTES { 1 } else { COLUMN_STEP_BYTES };
                column.reserve((usual + usual / 16).next_multiple_of(step));
            }
        }
        self.items += 1;
        self.indices.add(item.index);
        if need.column(group, What::Keys) {
            put_key(&mut self.columns[0], item.hash, item.key, item.index, item.value.is_none());
        }
        if need.column(group, What::Values) {
            put_value(&mut self.columns[1], item.value.unwrap_or_default());
        }
    }
}

impl Last {
    /// Whether the item is of the same key.
    #[inline]
    fn is_followed_by(&self, item: &Item<'_>) -> bool {
        if self.hash < item.hash {
            return false;
        }
        let key = (self.hash.cmp(&item.hash))
            .then(self.collection.cmp(&item.collection))
            .then_with(|| self.key.as_slice().cmp(item.key));
        let same = key == Ordering::Equal;
        assert!(key == Ordering::Less || same && self.index < item.index, "items out of order");
        same
    }
}

impl Builder {
    /// For items of a view's `range` at its `index`. `inside_key`: the first item's key has items in
    /// front of it, for a slab before ended inside that key.
    pub fn new(range: Range, index: u64, needs: Arc<Needs>, inside_key: bool) -> Builder {
        let open = Open { begins_inside_key: inside_key, ..Open::default() };
        let bytes_max = SLAB_BYTES.size();
        Builder { range, index, needs, bytes_max, last: Last::default(), open, parts: Vec::new() }
    }

    /// Takes the next item. Answers the slab that ended in front of it, if one did. Panics if the
    /// item is not one of the view's, or does not follow the one before: rows keep the order.
    pub fn push(&mut self, item: &Item<'_>) -> Option<Slab> {
        let value_bytes = item.value.map_or(0, <[u8]>::len);
        assert!(!item.key.is_empty() && item.key.len() <= KEY_BYTES_MAX, "a key of no such length");
        assert!(value_bytes <= VALUE_BYTES_MAX, "a value of no such length");
        assert!(self.range.contains(item.hash), "an item of another range");
        assert!(item.index <= self.index, "an item that is newer than its view");
        let same_key = self.last.is_followed_by(item);
        let weight = self.weight(item, value_bytes);
        // Nothing fits behind it either: it weighs more than the limit.
        let alone = value_bytes > self.bytes_max && !planted!("slab.large-value-shares");
        let mut slab = None;
        if self.open.items > 0 && (alone || self.ends_before(item.hash, same_key, weight)) {
            slab = Some(self.end(same_key));
        } else if same_key {
            self.demote();
        }
        self.add(item, same_key, weight);
        slab
    }

    /// The last slab; nothing if no item has come since the last one.
    pub fn finish(mut self) -> Option<Slab> {
        (self.open.items > 0).then(|| self.end(false))
    }

    /// What the item takes if all of it is encoded.
    #[inline]
    fn weight(&self, item: &Item<'_>, value_bytes: usize) -> usize {
        let values = || self.needs.need(item.collection).column(Group::Newest, What::Values);
        if planted!("slab.needs-move-the-cuts") && !values() {
            return ITEM_BYTES + item.key.len();
        }
        ITEM_BYTES + item.key.len() + value_bytes
    }

    #[inline]
    fn ends_before(&self, hash: u32, same_key: bool, weight: usize) -> bool {
        let open = &self.open;
        let full = if same_key && !planted!("slab.cut-inside-any-key") {
            open.key_weight + weight > self.bytes_max
        } else {
            open.weight >= self.bytes_max
        };
        if full {
            SLAB_BYTES.cross();
        }
        full || sub_range(self.last.hash) != sub_range(hash)
    }

    /// The place of a collection among the parts.
    #[inline]
    fn part(&mut self, collection: u16) -> usize {
        let part = self.parts.get(self.last.part);
        if part.is_some_and(|part| part.collection == collection) {
            return self.last.part;
        }
        let at = self.parts.binary_search_by_key(&collection, |part| part.collection);
        at.unwrap_or_else(|at| {
            let need = self.needs.need(collection);
            self.parts.insert(at, Part { collection, need, groups: Default::default() });
            at
        })
    }

    /// The last item is followed by another of its key: it is none of the newest ones.
    fn demote(&mut self) {
        let Some(lengths) = self.last.newest.take() else { return };
        let part = &mut self.parts[self.last.part];
        let [older, newest] = &mut part.groups;
        older.items += 1;
        older.indices.add(self.last.index);
        newest.items -= 1;
        for (what, length) in [What::Keys, What::Values].into_iter().zip(lengths) {
            // Who needs older items needs the newest: so what is to be copied is there.
            let from = &mut newest.columns[what as usize];
            if part.need.column(Group::Older, what) {
                older.columns[what as usize].extend_from_slice(&from[length..]);
            }
            from.truncate(length);
        }
    }

    #[inline]
    fn add(&mut self, item: &Item<'_>, same_key: bool, weight: usize) {
        let at = self.part(item.collection);
        let part = &mut self.parts[at];
        let weight = weight + if part.is_empty() { COLLECTION_BYTES } else { 0 };
        let open = &mut self.open;
        if open.items == 0 {
            open.first_hash = item.hash;
        }
        open.items += 1;
        open.weight += weight;
        open.key_weight = if same_key { open.key_weight + weight } else { weight };
        let newest = item.value.is_some() || planted!("slab.deletion-is-newest");
        let group = if newest { Group::Newest } else { Group::Older };
        let making = &mut part.groups[group as usize];
        let last = &mut self.last;
        last.newest = newest.then(|| making.lengths());
        making.put(part.need, group, item);
        if !same_key {
            last.key.clear();
            last.key.extend_from_slice(item.key);
        }
        (last.hash, last.collection, last.index) = (item.hash, item.collection, item.index);
        last.part = at;
    }

    /// Makes a slab of what has come. `inside_key`: the next item is of the last one's key.
    #[cold]
    fn end(&mut self, inside_key: bool) -> Slab {
        if inside_key && !planted!("slab.newest-of-its-slab") {
            self.demote();
        }
        self.last.newest = None;
        let header = Header {
            index: self.index,
            first_hash: self.open.first_hash,
            last_hash: self.last.hash,
            begins_inside_key: self.open.begins_inside_key,
            ends_inside_key: inside_key,
        };
        let before = if planted!("slab.cutter-remembers") { self.open.weight } else { 0 };
        let begins_inside_key = inside_key && !planted!("slab.anybody-joins-inside-a-key");
        self.open = Open { begins_inside_key, ..Open::default() };
        self.open.weight = before.saturating_sub(self.bytes_max);
        // What was in no item of this slab is not kept ready any longer.
        self.parts.retain(|part| !part.is_empty());
        let mut columns = Vec::with_capacity(4 * self.parts.len());
        for part in &mut self.parts {
            for (group, making) in [Group::Older, Group::Newest].into_iter().zip(&mut part.groups) {
                let lengths = making.lengths();
                for (usual, length) in making.usual.iter_mut().zip(lengths) {
                    // Behind a short slab, at the end of a sub-range, comes a long one.
                    *usual = length.max(*usual - *usual / 8);
                }
                let items = std::mem::take(&mut making.items);
                let indices = std::mem::replace(&mut making.indices, Indices::NONE);
                for what in [What::Keys, What::Values] {
                    let mut bytes = std::mem::take(&mut making.columns[what as usize]);
                    if items > 0 && part.need.column(group, what) {
                        if bytes.len() < bytes.capacity() / 2 {
                            bytes.shrink_to_fit();
                        }
                        let about = About::new(part.collection, group, what, items, &bytes);
                        columns.push(Column::new(about, indices, bytes));
                    }
                }
            }
        }
        Slab { header, needs: self.needs.clone(), columns }
    }
}
