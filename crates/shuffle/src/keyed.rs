//! Numbers by key, for many short keys that come again and again and are given up together. A key of up to fifteen
//! bytes lies in its slot, beside its number: so one that is there costs a look at one place of memory and two
//! multiplications. Longer ones lie one behind the other elsewhere.

use foldhash::fast::RandomState;
use std::hash::BuildHasher;

/// Bytes of keys that lie in their slots; the sixteenth says how many there are.
const SHORT_BYTES_MAX: usize = 15;
/// In the uppermost byte of a slot's key: of a short one its length and one, of a longer one this.
const LONG: u128 = 0xff << 120;
const EMPTY: u128 = 0;
/// Bytes of longer keys that there is room for: a slot has half a word for where they begin.
const LONG_BYTES_MAX: usize = u32::MAX as usize;
const SLOTS_MIN: usize = 16;
/// Slots a key, in the middle: from three eighths to three quarters of them are taken.
const SLOTS_A_KEY: usize = 2;

#[derive(Clone, Copy)]
struct Slot<V> {
    /// [`EMPTY`], a short key's bytes, or where a longer one lies.
    key: u128,
    value: V,
}

/// Values by key.
pub struct Keyed<V> {
    /// A power of two of them.
    slots: Vec<Slot<V>>,
    taken: usize,
    long: Vec<u8>,
    /// Drawn for each table, so that nobody writes keys that all meet in one place.
    hasher: RandomState,
}

/// The bytes of a short key and its length; a longer one has none.
#[inline]
fn short(key: &[u8]) -> Option<u128> {
    let n = key.len();
    let bytes = if let (Some(first), Some(last)) = (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        if n > SHORT_BYTES_MAX {
            return None;
        }
        u64::from_le_bytes(*first) as u128 | (u64::from_le_bytes(*last) as u128) << ((n - 8) * 8)
    } else if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        u32::from_le_bytes(*first) as u128 | (u32::from_le_bytes(*last) as u128) << ((n - 4) * 8)
    } else if n > 0 {
        // The middle one of three is the second of two, too.
        (key[0] as u128)
            | (key[n / 2] as u128) << (n / 2 * 8)
            | (key[n - 1] as u128) << ((n - 1) * 8)
    } else {
        0
    };
    Some(bytes | (n as u128 + 1) << 120)
}

/// Where a longer key lies, as a slot has it.
fn lies(start: usize, length: usize) -> u128 {
    LONG | (length as u128) << 32 | start as u128
}

impl<V: Copy> Keyed<V> {
    /// Without keys.
    pub fn new(nothing: V) -> Keyed<V> {
        let slots = vec![Slot { key: EMPTY, value: nothing }; SLOTS_MIN];
        Keyed { slots, taken: 0, long: Vec::new(), hasher: RandomState::default() }
    }

    /// The bytes of a longer key that a slot has.
    fn long(&self, key: u128) -> &[u8] {
        let (start, length) = (key as u32 as usize, (key >> 32) as u32 as usize);
        &self.long[start..start + length]
    }

    #[inline]
    fn place(&self, hash: u64) -> usize {
        // The uppermost bits are those that the last multiplication mixed most.
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    /// Gives a key its first value; of one that has a value already that one.
    ///
    /// Panics where the bytes of all keys longer than fifteen would be 4 GiB or more.
    #[inline]
    pub fn insert(&mut self, key: &[u8], value: V) -> Option<&mut V> {
        let Some(packed) = short(key) else { return self.insert_long(key, value) };
        let mut at = self.place(self.hasher.hash_one(packed));
        loop {
            let here = self.slots[at].key;
            if here == packed {
                return Some(&mut self.slots[at].value);
            }
            if here == EMPTY {
                self.take(at, packed, value);
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn insert_long(&mut self, key: &[u8], value: V) -> Option<&mut V> {
        let mut at = self.place(self.hasher.hash_one(key));
        loop {
            let here = self.slots[at].key;
            if here >= LONG && self.long(here) == key {
                return Some(&mut self.slots[at].value);
            }
            if here == EMPTY {
                break;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        let start = self.long.len();
        self.long.extend_from_slice(key);
        assert!(self.long.len() <= LONG_BYTES_MAX, "keys are given up before there is no room");
        self.take(at, lies(start, key.len()), value);
        None
    }

    fn take(&mut self, at: usize, key: u128, value: V) {
        self.slots[at] = Slot { key, value };
        self.taken += 1;
        if self.taken * 4 > self.slots.len() * 3 {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let empty = Slot { key: EMPTY, value: self.slots[0].value };
        let more = vec![empty; self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, more) {
            if slot.key == EMPTY {
                continue;
            }
            let hash = match slot.key >= LONG {
                true => self.hasher.hash_one(self.long(slot.key)),
                false => self.hasher.hash_one(slot.key),
            };
            let mut at = self.place(hash);
            while self.slots[at].key != EMPTY {
                at = (at + 1) & (self.slots.len() - 1);
            }
            self.slots[at] = slot;
        }
    }

    /// About what it takes.
    pub fn held_bytes(&self) -> usize {
        self.taken * SLOTS_A_KEY * size_of::<Slot<V>>() + self.long.len()
    }

    /// Hands on keys and values, in no order.
    pub fn each<E>(&self, mut take: impl FnMut(&[u8], V) -> Result<(), E>) -> Result<(), E> {
        for slot in self.slots.iter().filter(|slot| slot.key != EMPTY) {
            if slot.key >= LONG {
                take(self.long(slot.key), slot.value)?;
            } else {
                let length = (slot.key >> 120) as usize - 1;
                take(&slot.key.to_le_bytes()[..length], slot.value)?;
            }
        }
        Ok(())
    }

    /// Gives up all keys, and not their memory.
    pub fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.key = EMPTY);
        self.long.clear();
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;
    use std::collections::HashMap;

    /// Any keys, also the empty one and those that begin or end with others, of lengths on both sides of what lies in
    /// a slot, as often as they come and across the sizes at which the table grows, have what a plain map has; and so
    /// behind each time that all were given up.
    #[test]
    fn it_has_what_a_map_has() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let (mut keyed, mut model) = (Keyed::new(0), HashMap::<Vec<u8>, u64>::new());
            let (letters, length) =
                ([1, 2, 256][random.below(3) as usize], [3, 20, 40][random.below(3) as usize]);
            for number in 1..=3000 {
                let key: Vec<u8> =
                    (0..random.below(length)).map(|_| random.below(letters) as u8).collect();
                match keyed.insert(&key, number) {
                    None => assert_eq!(model.insert(key, number), None, "seed {seed}"),
                    Some(here) => {
                        assert_eq!(Some(*here), model.get(&key).copied(), "seed {seed}");
                        *here += number;
                        model.insert(key, *here);
                    }
                }
                assert_eq!(keyed.taken, model.len());
                if random.below(1000) == 0 || number == 3000 {
                    let mut found = HashMap::new();
                    let mut note = |key: &[u8], number| match found.insert(key.to_vec(), number) {
                        None => Ok(()),
                        Some(_) => Err(format!("{key:?} is there twice, seed {seed}")),
                    };
                    keyed.each(&mut note).unwrap();
                    assert_eq!(found, model, "seed {seed}");
                    let long: usize = model.keys().map(Vec::len).filter(|n| *n > 15).sum();
                    assert_eq!(keyed.held_bytes(), long + model.len() * 2 * 32);
                    keyed.clear();
                    model.clear();
                    assert_eq!((keyed.held_bytes(), keyed.taken), (0, 0));
                }
            }
        }
    }
}
