//! Values in memory, in the order in which items travel: by hash, collection and key. A tree of two
//! levels, whose leaves hold their items in one piece of memory each: so what arrives in order is
//! copied and no more, an item costs 24 bytes beside its key and value, and no change takes longer
//! than packing one leaf anew. Knows nothing of entries and catalogs.

use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_wire::slab::{Item, KEY_BYTES_MAX};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Of a leaf's items; a larger one is alone in its leaf. Small enough to be packed anew in some ten
/// microseconds, large enough that leaves are few.
static LEAF_BYTES: Knob = Knob::new("items.leaf-bytes", 32 << 10, &[1, 90, 300]);

/// In front of an item's place: the entry's index, and how long key and value are.
const HEAD_BYTES: usize = 8 + 2 + 4;
/// Of a place, in front of the key: hash and collection, so that places as bytes are in order.
const PLACE_BYTES: usize = 4 + 2;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);

/// Where an item lies among others.
pub(super) fn place(hash: u32, collection: u16, key: &[u8]) -> Vec<u8> {
    let mut place = Vec::with_capacity(PLACE_BYTES + key.len());
    place.extend_from_slice(&hash.to_be_bytes());
    place.extend_from_slice(&collection.to_be_bytes());
    place.extend_from_slice(key);
    place
}

fn place_of(item: &Item<'_>) -> Vec<u8> {
    place(item.hash, item.collection, item.key)
}

/// In the order of places.
pub(super) fn in_order(a: &Item<'_>, b: &Item<'_>) -> Ordering {
    (a.hash, a.collection, a.key).cmp(&(b.hash, b.collection, b.key))
}

fn value_of<'a>(item: &Item<'a>) -> &'a [u8] {
    item.value.expect("what is kept has a value")
}

fn bytes_of(item: &Item<'_>) -> usize {
    HEAD_BYTES + PLACE_BYTES + item.key.len() + value_of(item).len()
}

/// Leaves that may have a place, or something in front of it.
fn up_to(place: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(place))
}

/// The newest item of each key that has a value.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// By a place that none of its items is in front of, and all of the leaf before are. None is empty.
    leaves: BTreeMap<Box<[u8]>, Leaf>,
    len: usize,
}

#[derive(Debug, Default)]
struct Leaf {
    /// Items one behind the other, in the order in which they came, some of them gone.
    bytes: Vec<u8>,
    /// Where those begin that are there, in the order of their places.
    items: Vec<u32>,
    /// Bytes of those that are gone.
    dead: usize,
}

impl Values {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, place: &[u8]) -> Option<Item<'_>> {
        let (_, leaf) = self.leaves.range::<[u8], _>(up_to(place)).next_back()?;
        leaf.find(place).ok().map(|number| leaf.item(leaf.items[number]))
    }

    /// Items at a place and behind it, in order.
    pub fn from(&self, from: Vec<u8>) -> impl Iterator<Item = Item<'_>> {
        let first = self.leaves.range::<[u8], _>(up_to(&from)).next_back();
        let low = first.map_or(Bound::Unbounded, |(low, _)| Bound::Included(&**low));
        let leaves = self.leaves.range::<[u8], _>((low, Bound::Unbounded));
        leaves.flat_map(move |(_, leaf)| {
            let (Ok(begin) | Err(begin)) = leaf.find(&from);
            leaf.items[begin..].iter().map(|at| leaf.item(*at))
        })
    }

    /// Adds an item, or puts it in the place of the one of its key that is there.
    pub fn put(&mut self, item: &Item<'_>) {
        let place = place_of(item);
        let Some((_, leaf)) = self.leaves.range_mut::<[u8], _>(up_to(&place)).next_back() else {
            self.leaves.insert(Box::default(), Leaf::of(&[*item]));
            self.len += 1;
            return;
        };
        self.len += usize::from(leaf.put(&place, item));
        if !leaf.is_overdue() {
            return;
        }
        let mut packed = leaf.packed().into_iter();
        *leaf = packed.next().expect("it has an item");
        for leaf in packed {
            LEAF_BYTES.cross();
            self.leaves.insert(leaf.first().into(), leaf);
        }
    }

    /// Removes the item of a key, if there is one.
    pub fn remove(&mut self, place: &[u8]) {
        let Some((low, leaf)) = self.leaves.range_mut::<[u8], _>(up_to(place)).next_back() else {
            return;
        };
        let Ok(number) = leaf.find(place) else { return };
        let at = leaf.items.remove(number);
        leaf.dead += bytes_of(&leaf.item(at));
        self.len -= 1;
        if leaf.items.is_empty() {
            // What it had room for belongs to the leaf in front of it from now on.
            let low = low.clone();
            self.leaves.remove(&low);
        } else if leaf.is_overdue() {
            *leaf = leaf.packed().pop().expect("it has an item");
        }
    }

    /// Adds items in their order, one of each key. Quick where nothing that is there lies between them.
    pub fn append(&mut self, items: &[Item<'_>]) {
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return };
        let (begin, end) = (place_of(first), place_of(last));
        let before = self.leaves.range::<[u8], _>(up_to(&begin)).next_back();
        let after: (Bound<&[u8]>, _) = (Bound::Excluded(&begin), Bound::Unbounded);
        let after = self.leaves.range::<[u8], _>(after).next();
        let is_behind = before.is_none_or(|(_, leaf)| *leaf.last() < *begin);
        let is_in_front = after.is_none_or(|(low, _)| **low > *end);
        let is_ordered = items.is_sorted_by(|a, b| in_order(a, b).is_lt());
        let fits = is_behind && is_in_front && is_ordered;
        if !(fits || planted!("items.append-without-a-look")) {
            return items.iter().for_each(|item| self.put(item));
        }
        self.len += items.len();
        for leaf in divided(items, LEAF_BYTES.size()) {
            LEAF_BYTES.cross();
            let low = leaf.first().into();
            self.leaves.insert(low, leaf);
        }
    }
}

/// Leaves of not more than so many bytes, but for those of one item.
fn divided(items: &[Item<'_>], bytes_max: usize) -> Vec<Leaf> {
    let (mut leaves, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        let more = bytes_of(item);
        if at > begin && bytes + more > bytes_max {
            leaves.push(Leaf::of(&items[begin..at]));
            (begin, bytes) = (at, 0);
        }
        bytes += more;
    }
    leaves.push(Leaf::of(&items[begin..]));
    leaves
}

impl Leaf {
    /// In memory that it fills.
    fn of(items: &[Item<'_>]) -> Leaf {
        let bytes = items.iter().map(bytes_of).sum();
        let mut leaf = Leaf {
            bytes: Vec::with_capacity(bytes),
            items: Vec::with_capacity(items.len()),
            dead: 0,
        };
        for item in items {
            let at = leaf.write(item);
            leaf.items.push(at);
        }
        leaf
    }

    fn write(&mut self, item: &Item<'_>) -> u32 {
        let (at, value) = (self.bytes.len() as u32, value_of(item));
        self.bytes.extend_from_slice(&item.index.to_le_bytes());
        self.bytes.extend_from_slice(&(item.key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&item.hash.to_be_bytes());
        self.bytes.extend_from_slice(&item.collection.to_be_bytes());
        self.bytes.extend_from_slice(item.key);
        self.bytes.extend_from_slice(value);
        at
    }

    /// Where an item's place and its value lie.
    fn parts(&self, at: u32) -> (usize, usize, usize) {
        let head = &self.bytes[at as usize..][..HEAD_BYTES];
        let key = u16::from_le_bytes(head[8..10].try_into().expect("two bytes"));
        let value = u32::from_le_bytes(head[10..].try_into().expect("four bytes"));
        let place = at as usize + HEAD_BYTES;
        let behind = place + PLACE_BYTES + usize::from(key);
        (place, behind, behind + value as usize)
    }

    fn place(&self, at: u32) -> &[u8] {
        let (begin, end, _) = self.parts(at);
        &self.bytes[begin..end]
    }

    fn item(&self, at: u32) -> Item<'_> {
        let (place, value, end) = self.parts(at);
        let index = self.bytes[at as usize..][..8].try_into().expect("eight bytes");
        let (hash, rest) = self.bytes[place..value].split_first_chunk().expect("a hash");
        let (collection, key) = rest.split_first_chunk().expect("a collection");
        Item {
            hash: u32::from_be_bytes(*hash),
            collection: u16::from_be_bytes(*collection),
            key,
            index: u64::from_le_bytes(index),
            value: Some(&self.bytes[value..end]),
        }
    }

    fn first(&self) -> &[u8] {
        self.place(self.items[0])
    }

    fn last(&self) -> &[u8] {
        self.place(self.items[self.items.len() - 1])
    }

    /// Which one has the place, or before which one it would be.
    fn find(&self, place: &[u8]) -> Result<usize, usize> {
        self.items.binary_search_by(|at| self.place(*at).cmp(place))
    }

    /// Whether there was no item in the place.
    fn put(&mut self, place: &[u8], item: &Item<'_>) -> bool {
        let found = self.find(place);
        if let Ok(number) = found {
            let (at, value) = (self.items[number] as usize, value_of(item));
            let (_, begin, end) = self.parts(at as u32);
            if end - begin == value.len() {
                self.bytes[at..at + 8].copy_from_slice(&item.index.to_le_bytes());
                self.bytes[begin..end].copy_from_slice(value);
                return false;
            }
            self.dead += end - at;
        }
        // By an eighth, and not by twice as much: there are many leaves.
        let more = bytes_of(item).max(self.bytes.len() / 8);
        if self.bytes.capacity() - self.bytes.len() < bytes_of(item) {
            self.bytes.reserve_exact(more);
        }
        let at = self.write(item);
        match found {
            Ok(number) => self.items[number] = at,
            Err(number) => self.items.insert(number, at),
        }
        found.is_err()
    }

    /// Whether it holds too much, or mostly what is gone.
    fn is_overdue(&self) -> bool {
        let too_much = self.bytes.len() > LEAF_BYTES.size();
        too_much && (self.items.len() > 1 || self.dead > 0) || 2 * self.dead > self.bytes.len()
    }

    /// The same items without what is gone: in one leaf if they leave room in it, otherwise in several
    /// with room in each.
    fn packed(&self) -> Vec<Leaf> {
        let items: Vec<Item<'_>> = self.items.iter().map(|at| self.item(*at)).collect();
        let (live, leaf) = (self.bytes.len() - self.dead, LEAF_BYTES.size());
        divided(&items, if live <= leaf / 4 * 3 { leaf } else { leaf / 8 * 5 })
    }
}

#[cfg(test)]
mod tests;
