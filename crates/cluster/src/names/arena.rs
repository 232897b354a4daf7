//! Byte strings behind 32-bit handles: long names, link targets, user metadata. Freed space is
//! kept by size class and used again for strings of the same class.

/// Space is handed out in units of this size; a handle counts units, so 16 GiB can be reached.
const UNIT_BYTES: usize = 4;
/// The length in front of each string.
const HEADER_BYTES: usize = 4;
const PAGE_BYTES: usize = 256 << 10;
const PAGE_UNITS: u32 = (PAGE_BYTES / UNIT_BYTES) as u32;
/// Up to this size classes are exact to the unit, above they are powers of two: little waste for
/// the many small strings, few classes for the rare large ones.
const EXACT_BYTES_MAX: usize = 1024;
const PAGES_MAX: usize = (u32::MAX / PAGE_UNITS) as usize;

#[derive(Default)]
pub(super) struct Arena {
    pages: Vec<Box<[u8]>>,
    /// First unit of the last page that was never handed out.
    top: u32,
    /// Freed handles by the bytes of their class; handle 0 is nothing.
    free: std::collections::BTreeMap<usize, Vec<u32>>,
}

/// The longest string.
pub(super) const STRING_BYTES_MAX: usize = PAGE_BYTES / 2 - HEADER_BYTES;

fn class_bytes(len: usize) -> usize {
    let bytes = (len + HEADER_BYTES).next_multiple_of(UNIT_BYTES);
    if bytes <= EXACT_BYTES_MAX { bytes } else { bytes.next_power_of_two() }
}

impl Arena {
    /// Whether a few of the longest strings can still be put.
    pub(super) fn has_room(&self) -> bool {
        self.pages.len() + 8 < PAGES_MAX
    }

    /// Keeps a string; the empty one is handle 0 and takes no space.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u32 {
        assert!(bytes.len() <= STRING_BYTES_MAX, "string of {} bytes", bytes.len());
        if bytes.is_empty() {
            return 0;
        }
        let class = class_bytes(bytes.len());
        let handle = match self.free.get_mut(&class).and_then(Vec::pop) {
            Some(handle) => handle,
            None => self.fresh(class),
        };
        let (page, at) = place(handle);
        let room = &mut self.pages[page][at..at + class];
        room[..HEADER_BYTES].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        room[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
        handle
    }

    fn fresh(&mut self, class: usize) -> u32 {
        let units = (class / UNIT_BYTES) as u32;
        let left = (self.pages.len() as u32 * PAGE_UNITS).saturating_sub(self.top);
        if left < units || self.pages.is_empty() {
            assert!(self.pages.len() < PAGES_MAX, "has_room is asked before");
            // What is left of the old page is lost: at most half of it, for the longest strings.
            self.top = self.pages.len() as u32 * PAGE_UNITS;
            self.pages.push(vec![0; PAGE_BYTES].into_boxed_slice());
            if self.top == 0 {
                self.top = 1;
            }
        }
        let handle = self.top;
        self.top += units;
        handle
    }

    pub(super) fn get(&self, handle: u32) -> &[u8] {
        if handle == 0 {
            return &[];
        }
        let (page, at) = place(handle);
        let page = &self.pages[page];
        let len = self.len(handle);
        &page[at + HEADER_BYTES..at + HEADER_BYTES + len]
    }

    pub(super) fn len(&self, handle: u32) -> usize {
        if handle == 0 {
            return 0;
        }
        let (page, at) = place(handle);
        let head = &self.pages[page][at..at + HEADER_BYTES];
        u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize
    }

    pub(super) fn free(&mut self, handle: u32) {
        if handle != 0 {
            let class = class_bytes(self.len(handle));
            self.free.entry(class).or_default().push(handle);
        }
    }
}

fn place(handle: u32) -> (usize, usize) {
    ((handle / PAGE_UNITS) as usize, (handle % PAGE_UNITS) as usize * UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_and_freed_space_is_used_again() {
        let mut arena = Arena::default();
        let text = |len: usize, seed: u8| vec![seed; len];
        let mut handles = Vec::new();
        for len in [0, 1, 3, 4, 5, 64, 255, 1020, 1021, 4095, 65536, STRING_BYTES_MAX] {
            for seed in 1..4 {
                handles.push((arena.put(&text(len, seed)), len, seed));
            }
        }
        for (handle, len, seed) in &handles {
            assert_eq!(arena.get(*handle), text(*len, *seed), "{len}");
        }
        let pages = arena.pages.len();
        for _ in 0..100 {
            handles.iter().for_each(|(handle, ..)| arena.free(*handle));
            for (handle, len, seed) in &mut handles {
                *handle = arena.put(&text(*len, *seed));
            }
        }
        for (handle, len, seed) in &handles {
            assert_eq!(arena.get(*handle), text(*len, *seed), "{len}");
        }
        assert_eq!(arena.pages.len(), pages);
    }
}
