//! The index: from a hash to slots, in lines of 64 bytes that grow one by one (linear hashing,
//! Litwin 1980). It knows tags and places, never keys: who compares keys is the store.
//!
//! A line: `version: u32 | next line of the chain: u32`, then seven slots. Writers hold a line's
//! lock (its version is odd meanwhile); readers take no lock: they read the version, slots and
//! items, and then the version again. Chained lines belong to their first line's lock.

use crate::item::{Slot, tag};
use holdfast_base::Result;
use holdfast_env::arena::{Arena, LINE_BYTES};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slots of one line.
const SLOTS: usize = 7;
/// Places that [`Arena::tag_places`] gives for slots; the first word is not one.
const SLOT_PLACES: u32 = 0x8888_8880;
/// Lines at the start: 64 KiB.
const LINES_MIN: usize = 1024;
/// Items for each ten lines of the first level, past which the index grows.
const ITEMS_PER_TEN_LINES: usize = 54;
/// How often a waiter looks before it lets others run: the holder may have lost its core.
const SPINS: u32 = 200;

pub struct Index {
    arena: Arena,
    /// Lines of the first level in use. Grows while the split line is locked.
    lines: AtomicUsize,
    lines_max: usize,
    /// Lines behind the first level's, for chains: those free, and the first never used. Taken
    /// with a line's lock held, never the other way round.
    chained: Mutex<Chained>,
    /// Held by whoever grows the index.
    growing: Mutex<()>,
}

struct Chained {
    free: Vec<u32>,
    next: usize,
    used: usize,
}

/// What a reader knows of a line: the same version later says that nothing changed since.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    line: usize,
    version: u32,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SlotAt(usize);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets time pass until `done`.
fn wait_until(mut done: impl FnMut() -> bool) {
    let mut spins = 0;
    while !done() {
        spins += 1;
        if spins % SPINS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Index {
    /// An index that may take `bytes_max`.
    pub fn new(bytes_max: usize) -> Result<Index> {
        // Chains are short: a quarter as many lines again.
        let lines_max = (bytes_max / LINE_BYTES * 4 / 5).max(LINES_MIN);
        let arena = Arena::reserve((lines_max + lines_max / 4) * LINE_BYTES)?;
        let chained = Chained { free: Vec::new(), next: lines_max, used: 0 };
        Ok(Index {
            arena,
            lines: AtomicUsize::new(LINES_MIN),
            lines_max,
            chained: Mutex::new(chained),
            growing: Mutex::new(()),
        })
    }

    /// Memory in use.
    pub fn bytes(&self) -> usize {
        (self.lines.load(Ordering::Relaxed) + lock(&self.chained).used) * LINE_BYTES
    }

    pub fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed)
    }

    /// Offset of the line of a hash.
    #[inline(always)]
    fn line(&self, hash: u64) -> usize {
        Index::line_of(self.lines.load(Ordering::Acquire), hash)
    }

    /// The same among so many lines.
    #[inline(always)]
    fn line_of(lines: usize, hash: u64) -> usize {
        let mask = usize::MAX >> (lines - 1).leading_zeros();
        let line = hash as usize & mask;
        (if line < lines { line } else { line & mask >> 1 }) * LINE_BYTES
    }

    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.arena.prefetch(self.line(hash));
    }

    /// Starts to read: waits for a writer if there is one.
    #[inline(always)]
    pub fn read(&self, hash: u64) -> Reading {
        loop {
            let lines = self.lines.load(Ordering::Acquire);
            let line = Index::line_of(lines, hash);
            let mut version = self.arena.u32(line).load(Ordering::Acquire);
            if version & 1 != 0 {
                version = self.unlocked(line);
            }
            // A line that was split in between no longer holds every hash that led to it.
            if self.lines.load(Ordering::Acquire) == lines {
                return Reading { line, version };
            }
        }
    }

    /// The version of a line once its writer is done.
    #[cold]
    fn unlocked(&self, line: usize) -> u32 {
        let mut version = 0;
        wait_until(|| {
            version = self.arena.u32(line).load(Ordering::Acquire);
            version & 1 == 0
        });
        version
    }

    /// Whether what was read since is what was there all the time.
    #[inline(always)]
    pub fn confirm(&self, reading: Reading) -> bool {
        fence(Ordering::Acquire);
        self.arena.u32(reading.line).load(Ordering::Relaxed) == reading.version
    }

    /// Slots with the hash's tag; `visit` says whether it has found what it looked for.
    #[inline(always)]
    pub fn find(
        &self,
        reading: Reading,
        hash: u64,
        mut visit: impl FnMut(SlotAt, Slot) -> bool,
    ) -> bool {
        let mut line = reading.line;
        let tag = tag(hash);
        loop {
            let mut places = self.arena.tag_places(line, tag) & SLOT_PLACES;
            while places != 0 {
                let at = line + places.trailing_zeros() as usize / 4 * 8;
                let slot = self.arena.u64(at).load(Ordering::Relaxed);
                // It may have changed since its tag was read; 0 points nowhere.
                if slot != 0 && visit(SlotAt(at), Slot(slot)) {
                    return true;
                }
                places &= places - 1;
            }
            let next = self.arena.u32(line + 4).load(Ordering::Relaxed) as usize * LINE_BYTES;
            // A chain only leads to higher lines: a race cannot make it a circle.
            if next <= line {
                return false;
            }
            line = next;
        }
    }

    /// Changes a slot's counts from what they were; a slot that changed meanwhile is left alone.
    #[inline(always)]
    pub fn update_counts(&self, at: SlotAt, from: Slot, to: Slot) -> bool {
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.arena.u64(at.0).compare_exchange(from.0, to.0, order, failed).is_ok()
    }

    /// A slot that still points to the same item, with its counts of now.
    pub fn same_item(&self, at: SlotAt, slot: Slot) -> Option<Slot> {
        let now = Slot(self.arena.u64(at.0).load(Ordering::Relaxed));
        (now.0 != 0 && now.place() == slot.place()).then_some(now)
    }

    /// Locks the line of a hash.
    pub fn lock(&self, hash: u64) -> Locked<'_> {
        loop {
            let line = self.line(hash);
            self.lock_line(line);
            let locked = Locked { index: self, line, hash };
            if self.line(hash) == line {
                return locked;
            }
        }
    }

    fn lock_line(&self, line: usize) {
        let word = self.arena.u32(line);
        wait_until(|| {
            let version = word.load(Ordering::Relaxed);
            let (taken, order) = (version.wrapping_add(1), Ordering::Acquire);
            version & 1 == 0
                && word.compare_exchange_weak(version, taken, order, Ordering::Relaxed).is_ok()
        });
        // Whoever sees what is written from here on sees the odd version, too.
        fence(Ordering::Release);
    }

    fn unlock_line(&self, line: usize) {
        let word = self.arena.u32(line);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Whether so many items want more lines than there are.
    pub fn wants_to_grow(&self, items: usize) -> bool {
        let lines = self.lines.load(Ordering::Relaxed);
        items > lines / 10 * ITEMS_PER_TEN_LINES && lines < self.lines_max
    }

    /// Splits one line in two. `hash_of` says a slot's hash; its item stays while the line is
    /// locked. Does nothing if somebody else is at it.
    pub fn grow(&self, mut hash_of: impl FnMut(Slot) -> u64) {
        let Ok(_growing) = self.growing.try_lock() else { return };
        let lines = self.lines.load(Ordering::Relaxed);
        if lines >= self.lines_max {
            return;
        }
        // `lines` is reached by the hashes whose next bit is set.
        let bit = 1usize << lines.ilog2();
        let (from, to) = ((lines - bit) * LINE_BYTES, lines * LINE_BYTES);
        self.lock_line(from);
        let mut slots = Vec::with_capacity(4 * SLOTS);
        self.each_slot(from, |at, slot| {
            slots.push(slot);
            self.arena.u64(at.0).store(0, Ordering::Relaxed);
        });
        self.free_chain(from);
        for slot in slots {
            let target = if hash_of(slot) as usize & bit != 0 { to } else { from };
            // The chains were just freed, so there is room.
            let stored = self.insert(target, slot);
            debug_assert!(stored, "no room to split a line");
        }
        self.lines.store(lines + 1, Ordering::Release);
        self.unlock_line(from);
    }

    /// Visits the slots of a locked line and its chain.
    fn each_slot(&self, mut line: usize, mut visit: impl FnMut(SlotAt, Slot)) {
        loop {
            for i in 1..=SLOTS {
                let at = line + i * 8;
                let slot = self.arena.u64(at).load(Ordering::Relaxed);
                if slot != 0 {
                    visit(SlotAt(at), Slot(slot));
                }
            }
            line = self.arena.u32(line + 4).load(Ordering::Relaxed) as usize * LINE_BYTES;
            if line == 0 {
                return;
            }
        }
    }

    /// Unchains all lines behind a locked one; they hold nothing any more.
    fn free_chain(&self, line: usize) {
        let mut next = self.arena.u32(line + 4).swap(0, Ordering::Relaxed);
        if next == 0 {
            return;
        }
        let mut chained = lock(&self.chained);
        while next != 0 {
            chained.free.push(next);
            chained.used -= 1;
            next = self.arena.u32(next as usize * LINE_BYTES + 4).swap(0, Ordering::Relaxed);
        }
        // Ascending from the end on: a chain only leads upwards, so low ones go first.
        chained.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Stores a slot in a locked line or its chain; false if no line is left to chain.
    fn insert(&self, line: usize, slot: Slot) -> bool {
        let mut last = line;
        loop {
            for i in 1..=SLOTS {
                let word = self.arena.u64(last + i * 8);
                if word.load(Ordering::Relaxed) == 0 {
                    word.store(slot.0, Ordering::Relaxed);
                    return true;
                }
            }
            match self.arena.u32(last + 4).load(Ordering::Relaxed) as usize * LINE_BYTES {
                0 => break,
                next => last = next,
            }
        }
        let Some(next) = self.take_chained(last) else { return false };
        self.arena.u64(next * LINE_BYTES + 8).store(slot.0, Ordering::Relaxed);
        self.arena.u32(last + 4).store(next as u32, Ordering::Relaxed);
        true
    }

    /// A free line above `last`, all zeros.
    fn take_chained(&self, last: usize) -> Option<usize> {
        let mut chained = lock(&self.chained);
        let above = chained.free.iter().rposition(|line| *line as usize * LINE_BYTES > last);
        let line = match above {
            Some(i) => chained.free.remove(i) as usize,
            None if chained.next < self.lines_max + self.lines_max / 4 => {
                chained.next += 1;
                chained.next - 1
            }
            None => return None,
        };
        chained.used += 1;
        Some(line)
    }
}

/// A locked line; unlocked, with a new version, when dropped.
pub struct Locked<'a> {
    index: &'a Index,
    line: usize,
    hash: u64,
}

impl Locked<'_> {
    /// The slot with the hash's tag of which `is_it` says so.
    pub fn find(&self, mut is_it: impl FnMut(Slot) -> bool) -> Option<(SlotAt, Slot)> {
        let mut found = None;
        let reading = Reading { line: self.line, version: 0 };
        self.index.find(reading, self.hash, |at, slot| {
            let is = is_it(slot);
            if is {
                found = Some((at, slot));
            }
            is
        });
        found
    }

    pub fn insert(&mut self, slot: Slot) -> bool {
        self.index.insert(self.line, slot)
    }

    pub fn set(&mut self, at: SlotAt, slot: Slot) {
        self.index.arena.u64(at.0).store(slot.0, Ordering::Relaxed);
    }

    pub fn remove(&mut self, at: SlotAt) {
        self.set(at, Slot(0));
    }

    /// A slot that can be given up for another: the one read least.
    pub fn least(&self) -> Option<(SlotAt, Slot)> {
        let mut least: Option<(SlotAt, Slot)> = None;
        self.index.each_slot(self.line, |at, slot| {
            if least.is_none_or(|(_, l)| slot.frequency() < l.frequency()) {
                least = Some((at, slot));
            }
        });
        least
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.index.unlock_line(self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    fn place(hash: u64) -> usize {
        (hash as u32 as usize & 0xff_ffff) * 4
    }

    /// Slots whose hash can be told from their place.
    fn filled(index: &Index, n: u64) -> HashMap<usize, u64> {
        let mut hashes = HashMap::new();
        let mut state = 1u64;
        while hashes.len() < n as usize {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hash = state ^ state >> 31;
            if let Entry::Vacant(free) = hashes.entry(place(hash)) {
                free.insert(hash);
                assert!(index.lock(hash).insert(Slot::new(hash, place(hash))));
                while index.wants_to_grow(hashes.len()) {
                    index.grow(|slot| hashes[&slot.place()]);
                }
            }
        }
        hashes
    }

    #[test]
    fn everything_is_found_while_lines_split_and_chains_grow() {
        let index = Index::new(16 << 20).unwrap();
        let hashes = filled(&index, 100_000);
        assert!(index.lines() > 18_000, "{}", index.lines());
        assert!(index.bytes() < 100_000 * 16, "{} bytes", index.bytes());
        for (place, hash) in &hashes {
            let reading = index.read(*hash);
            assert!(index.find(reading, *hash, |_, slot| slot.place() == *place));
            assert!(index.confirm(reading));
        }
        for (place, hash) in &hashes {
            let mut locked = index.lock(*hash);
            let (at, _) = locked.find(|slot| slot.place() == *place).unwrap();
            locked.remove(at);
            assert!(locked.find(|slot| slot.place() == *place).is_none());
        }
    }

    #[test]
    fn a_reader_learns_of_every_change() {
        let index = Index::new(1 << 20).unwrap();
        let reading = index.read(5);
        assert!(index.confirm(reading));
        drop(index.lock(5));
        assert!(!index.confirm(reading));
    }

    #[test]
    fn an_index_without_room_says_so_and_offers_its_least_read_slot() {
        let index = Index::new(1 << 16).unwrap();
        // All in one line.
        let hash = |i: u64| 7 | (i + 1) << 48;
        let mut n = 0;
        while index.lock(hash(n)).insert(Slot::new(hash(n), 4).read(0).unwrap()) {
            n += 1;
        }
        assert_eq!(n, 7 * (1 + 256));
        let mut locked = index.lock(hash(0));
        let (at, _) = locked.find(|_| true).unwrap();
        locked.set(at, Slot::new(hash(0), 8));
        assert_eq!(locked.least().map(|(_, slot)| slot.place()), Some(8));
    }
}
