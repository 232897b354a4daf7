//! Pieces of large values: items under keys that no client can name. What tells them from a
//! client's is in `item.rs`.

use super::{NewItem, Seen, Store, Writer};
use crate::index::SlotAt;
use crate::item::{MARK_LARGE, Slot};
use holdfast_env::arena::SLACK_BYTES;

impl Store {
    /// Stores a piece of a large value; false if there is no memory.
    pub fn put_piece(&self, writer: &mut Writer, key: &[u8], value: &[u8], expires: u32) -> bool {
        let new =
            NewItem { key, value: [value, &[]], marks: MARK_LARGE, expires, ..NewItem::default() };
        let hash = self.hash(key);
        let Some((place, head)) = self.write(writer, &new, true) else { return false };
        let mut line = self.index.lock(hash);
        self.link(writer, &mut line, hash, (place, head), None);
        drop(line);
        self.grow_if_due(writer, true);
        true
    }

    fn piece_seen(&self, at: SlotAt, slot: Slot, key: &[u8]) -> Option<Seen> {
        let place = slot.place();
        let head = self.head(place);
        let is = head.has(MARK_LARGE)
            && self.is_piece(place, head)
            && head.key_len() == key.len()
            && self.segments.arena.equals(place + head.key_at(), key);
        is.then_some(Seen { at, slot, head, place })
    }

    /// Appends a piece to `target`; false if it is gone.
    pub fn read_piece(&self, writer: &mut Writer, key: &[u8], target: &mut Vec<u8>) -> bool {
        let hash = self.hash(key);
        let start = target.len();
        loop {
            let reading = self.index.read(hash);
            let mut found = None;
            self.index.find(reading, hash, |at, slot| {
                found = self.piece_seen(at, slot, key);
                found.is_some()
            });
            if let Some(seen) = &found {
                let len = seen.head.value_len();
                target.resize(start + len + SLACK_BYTES, 0);
                self.copy_value(seen, &mut target[start..]);
                target.truncate(start + len);
            }
            if self.index.confirm(reading) {
                if let Some(seen) = &found {
                    self.count_read(writer, seen, false);
                }
                return found.is_some();
            }
            target.truncate(start);
        }
    }

    /// Gives a piece another expiry.
    pub fn touch_piece(&self, key: &[u8], expires: u32) {
        let line = self.index.lock(self.hash(key));
        line.find(|slot| {
            let seen = self.piece_seen(SlotAt::default(), slot, key);
            if let Some(seen) = &seen {
                self.set_expires(seen, expires);
            }
            seen.is_some()
        });
    }

    pub fn remove_piece(&self, writer: &Writer, key: &[u8]) {
        let hash = self.hash(key);
        let mut line = self.index.lock(hash);
        let mut seen = None;
        line.find(|slot| {
            seen = self.piece_seen(SlotAt::default(), slot, key);
            seen.is_some()
        });
        let Some(seen) = seen else { return };
        let Some((at, _)) = line.find(|slot| slot == seen.slot) else { return };
        line.remove(at);
        drop(line);
        self.forget(&self.counters[writer.id], &seen);
    }
}
