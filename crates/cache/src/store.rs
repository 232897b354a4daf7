//! The store: items by key, shared by all threads. Readers take no lock and write nothing but an
//! item's count now and then; writers lock the one line of the index that they change.
//!
//! **Invariant:** what an entry of the index points to stays as it is while it is in the index,
//! but for changes under its line's lock; memory is reused only after the entry has gone, under
//! that lock. So a reader that finds the line's version unchanged has read a whole item.

mod pieces;

use crate::hash::Hasher;
use crate::index::{Index, Locked, Reading, SlotAt};
use crate::item::{Head, MARK_CAS, MARK_FLAGS, MARK_LARGE, Slot, VALUE_BYTES_MAX};
use crate::segments::{CLASSES, Open, Segments, class};
use crate::stats::{Counters, Totals};
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};

/// Least memory: a few segments for each thread and class in use, and the index.
pub const LIMIT_BYTES_MIN: usize = 2 * MIB as usize;
/// Items longer than this part of a segment are cut into pieces of half that.
const LARGE_PART: usize = 8;
/// New keys of one thread between two looks at whether the index should grow.
const GROW_EVERY: u32 = 32;
/// Keys of pieces: the number of the value, and of the piece.
pub const PIECE_KEY_BYTES: usize = 12;

pub struct Store {
    pub(crate) hasher: Hasher,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    /// The last is the housekeeper's.
    pub counters: Vec<Counters>,
    pub(crate) evicts: bool,
    pub limit: usize,
    /// Seconds since `epoch`.
    now: AtomicU32,
}

/// What one thread writes with: its open segments.
pub struct Writer {
    pub id: usize,
    open: Box<[Option<Open>; CLASSES]>,
    new_keys: u32,
    random: u32,
}

/// A key that is being looked up.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub hash: u64,
    reading: Reading,
    at: SlotAt,
    slot: Slot,
}

/// An item that was found; true once confirmed, or while its line is locked.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub at: SlotAt,
    pub slot: Slot,
    pub head: Head,
    pub place: usize,
}

/// What a look-up came to.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    Found(Seen),
    Missing,
    Expired,
    Flushed,
}

/// An item to store.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewItem<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    /// The second it expires in, as [`Store::now`] counts; 0 for never.
    pub expires: u32,
    /// One behind the other.
    pub value: [&'a [u8]; 2],
    /// Of the kinds that are not about what is stored in addition.
    pub marks: u32,
    /// Stored with it instead of a cas of its own.
    pub cas: Option<u64>,
}

/// An item that an earlier store held, with what is known of its use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored<'a> {
    pub item: NewItem<'a>,
    /// Also flags of 0: a piece of a large value does.
    pub stores_flags: bool,
    pub frequency: u64,
    pub is_fetched: bool,
    pub is_cas_seen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// With its cas.
    Stored(u64),
    Refused,
    NoMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Done,
    Refused,
    Missing,
}

impl Store {
    /// A store within `limit` bytes for `threads` writers, which [`Store::writer`] numbers.
    pub fn new(limit: usize, threads: usize, evicts: bool, secret: u64) -> Result<Store> {
        if limit < LIMIT_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a memory limit of {limit} bytes is too small: give at least {} MiB",
                LIMIT_BYTES_MIN / MIB as usize
            )));
        }
        Ok(Store {
            hasher: Hasher::new(secret),
            index: Index::new(limit / 4)?,
            segments: Segments::new(limit)?,
            counters: (0..=threads).map(|_| Counters::default()).collect(),
            evicts,
            limit,
            now: AtomicU32::new(1),
        })
    }

    pub fn writer(&self, id: usize) -> Writer {
        let random = self.hasher.hash(&id.to_le_bytes()) as u32 | 1;
        Writer { id, open: Box::new([None; CLASSES]), new_keys: 0, random }
    }

    pub fn totals(&self) -> Totals {
        Totals::of(&self.counters)
    }

    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    pub fn set_now(&self, now: u32) {
        self.now.store(now.max(1), Ordering::Relaxed);
    }

    /// Bytes of segments and index.
    pub fn memory_bytes(&self) -> usize {
        self.index.bytes() + self.segments.with_memory() * self.segments.segment_bytes
    }

    /// Segments with memory, and the bytes of one.
    pub fn segments_in_use(&self) -> (usize, usize) {
        (self.segments.with_memory(), self.segments.segment_bytes)
    }

    /// Lines of the index, and its bytes.
    pub fn index_size(&self) -> (usize, usize) {
        (self.index.lines(), self.index.bytes())
    }

    /// Values longer than this are stored in pieces.
    pub fn large_bytes(&self) -> usize {
        (self.segments.segment_bytes / LARGE_PART).min(VALUE_BYTES_MAX)
    }

    pub fn piece_bytes(&self) -> usize {
        self.large_bytes() / 2
    }

    /// One fewer than would fit: the index grows while a segment is filled.
    pub(crate) fn segments_allowed(&self) -> usize {
        let segments = self.limit.saturating_sub(self.index.bytes()) / self.segments.segment_bytes;
        segments.saturating_sub(1)
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Starts loading what [`Store::probe`] will read.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Starts loading what a write to a key compares: the head and key of the item that is there.
    #[inline(always)]
    pub fn prefetch_item(&self, hash: u64, key_len: usize) {
        self.probe(hash, size_of::<Head>() + key_len);
    }

    /// Looks into the index, and starts loading the item, `bytes` of it.
    #[inline(always)]
    pub fn probe(&self, hash: u64, bytes: usize) -> Probe {
        let reading = self.index.read(hash);
        let (mut at, mut slot) = (SlotAt::default(), Slot(0));
        self.index.find(reading, hash, |found_at, found| {
            (at, slot) = (found_at, found);
            true
        });
        if slot.0 != 0 {
            self.segments.arena.prefetch_range(slot.place(), bytes);
        }
        Probe { hash, reading, at, slot }
    }

    /// Looks a probe's key up. Whatever is done with the answer counts only if
    /// [`Store::confirm`] then says so; otherwise probe again.
    #[inline(always)]
    pub fn look_up(&self, probe: &Probe, key: &[u8]) -> Lookup {
        let mut found = None;
        if probe.slot.0 != 0 {
            found = self.is_item(probe.at, probe.slot, key);
            if found.is_none() {
                self.index.find(probe.reading, probe.hash, |at, slot| {
                    found = self.is_item(at, slot, key);
                    found.is_some()
                });
            }
        }
        self.judge(found)
    }

    #[inline(always)]
    fn judge(&self, found: Option<Seen>) -> Lookup {
        match found {
            None => Lookup::Missing,
            Some(seen) if seen.head.is_expired(self.now()) => Lookup::Expired,
            Some(seen) if self.segments.is_flushed(seen.place) => Lookup::Flushed,
            Some(seen) => Lookup::Found(seen),
        }
    }

    #[inline(always)]
    pub fn confirm(&self, probe: &Probe) -> bool {
        self.index.confirm(probe.reading)
    }

    /// Looks a key up and makes something of it with `read`, as often as a writer interferes.
    pub fn read<T>(&self, key: &[u8], hash: u64, mut read: impl FnMut(Lookup) -> T) -> T {
        loop {
            let probe = self.probe(hash, 0);
            let made = read(self.look_up(&probe, key));
            if self.confirm(&probe) {
                return made;
            }
        }
    }

    /// The item of a slot, if it has this key.
    #[inline(always)]
    fn is_item(&self, at: SlotAt, slot: Slot, key: &[u8]) -> Option<Seen> {
        let place = slot.place();
        let head = self.head(place);
        let same = head.key_len() == key.len()
            && self.segments.arena.equals(place + head.key_at(), key)
            && !(key.len() == PIECE_KEY_BYTES
                && head.has(MARK_LARGE)
                && self.is_piece(place, head));
        same.then_some(Seen { at, slot, head, place })
    }

    /// Pieces are large, and store flags of 0, which are never stored otherwise.
    fn is_piece(&self, place: usize, head: Head) -> bool {
        head.has(MARK_FLAGS) && self.flags(place, head) == 0
    }

    /// Counts a read of an item that was found.
    #[inline(always)]
    pub fn count_read(&self, writer: &mut Writer, seen: &Seen, with_cas: bool) {
        // Marsaglia's xorshift.
        let mut x = writer.random;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        writer.random = x;
        if let Some(slot) = seen.slot.read(x) {
            // Who lost against another reader has nothing to count.
            self.index.update_counts(seen.at, seen.slot, slot);
        }
        if with_cas && !seen.slot.is_cas_seen() {
            self.count_cas(seen);
        }
    }

    /// Takes note that an item's cas was told to somebody, so that it has to stay.
    pub fn count_cas(&self, seen: &Seen) {
        let mut from = seen.slot;
        while !self.index.update_counts(seen.at, from, from.cas_seen()) {
            let Some(current) = self.index.same_item(seen.at, from) else { return };
            from = current;
        }
    }

    /// Seconds since an item was stored, or a little more: its segment was begun then.
    pub fn age(&self, seen: &Seen) -> u64 {
        let began = self.segments.of(seen.place).began.load(Ordering::Relaxed);
        u64::from(self.now().saturating_sub(began))
    }

    #[inline(always)]
    pub(crate) fn head(&self, place: usize) -> Head {
        let arena = &self.segments.arena;
        Head {
            word: arena.u32(place).load(Ordering::Relaxed),
            expires: arena.u32(place + 4).load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_head(&self, place: usize, head: Head) {
        let arena = &self.segments.arena;
        arena.u32(place).store(head.word, Ordering::Relaxed);
        arena.u32(place + 4).store(head.expires, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn flags(&self, place: usize, head: Head) -> u32 {
        match head.has(MARK_FLAGS) {
            true => self.segments.arena.u32(place + 8).load(Ordering::Relaxed),
            false => 0,
        }
    }

    pub fn cas(&self, place: usize, head: Head) -> u64 {
        if !head.has(MARK_CAS) {
            return self.segments.cas(place);
        }
        let at = place + head.key_at() - 8;
        let half = |at: usize| u64::from(self.segments.arena.u32(at).load(Ordering::Relaxed));
        half(at) | half(at + 4) << 32
    }

    /// See [`Segments::unused_cas`].
    pub fn unused_cas(&self) -> u64 {
        self.segments.unused_cas()
    }

    pub(crate) fn set_cas(&self, place: usize, head: Head, cas: u64) {
        let at = place + head.key_at() - 8;
        self.segments.arena.u32(at).store(cas as u32, Ordering::Relaxed);
        self.segments.arena.u32(at + 4).store((cas >> 32) as u32, Ordering::Relaxed);
    }

    /// Copies a value to the start of `target`, which is longer by the arena's slack.
    #[inline(always)]
    pub fn copy_value(&self, seen: &Seen, target: &mut [u8]) {
        let place = seen.place + seen.head.value_at();
        self.segments.arena.copy_out(place, seen.head.value_len(), target);
    }

    /// Stores an item if `decide` agrees, given the item that it would replace.
    pub fn put(
        &self,
        writer: &mut Writer,
        new: &NewItem<'_>,
        hash: u64,
        mut decide: impl FnMut(Option<&Seen>) -> bool,
    ) -> Put {
        let Some((place, head)) = self.write(writer, new, false) else { return Put::NoMemory };
        let mut line = self.index.lock(hash);
        let old = line_item(self, &line, new.key);
        let live = match self.judge(old) {
            Lookup::Found(seen) => Some(seen),
            _ => None,
        };
        if !decide(live.as_ref()) {
            drop(line);
            self.unwrite(writer, place, head);
            return Put::Refused;
        }
        self.link(writer, &mut line, hash, (place, head), old);
        drop(line);
        self.counters[writer.id].total_items.add(1);
        self.grow_if_due(writer, old.is_none());
        Put::Stored(self.cas(place, head))
    }

    /// Stores what an earlier store held, under a key that is not there. False without memory.
    pub(crate) fn restore(&self, writer: &mut Writer, restored: &Restored<'_>) -> bool {
        let hash = self.hash(restored.item.key);
        let Some((place, head)) = self.write(writer, &restored.item, restored.stores_flags) else {
            return false;
        };
        let mut line = self.index.lock(hash);
        self.link(writer, &mut line, hash, (place, head), None);
        if let Some((at, slot)) = line.find(|slot| slot.place() == place) {
            let Restored { frequency, is_fetched, is_cas_seen, .. } = *restored;
            line.set(at, slot.with_counts(frequency, is_fetched, is_cas_seen));
        }
        drop(line);
        self.grow_if_due(writer, true);
        true
    }

    /// Closes a writer's segments: it writes no more.
    pub fn retire(&self, writer: &mut Writer) {
        let mut pool = self.segments.pool();
        for (class, open) in writer.open.iter_mut().enumerate() {
            if let Some(open) = open.take() {
                pool.close(&self.segments, class, open);
            }
        }
    }

    /// Points the index to a new item instead of the old one, if any.
    fn link(
        &self,
        writer: &Writer,
        line: &mut Locked<'_>,
        hash: u64,
        (place, head): (usize, Head),
        old: Option<Seen>,
    ) {
        let counters = &self.counters[writer.id];
        let mut slot = Slot::new(hash, place);
        if let Some(old) = old {
            // Who was read often will be.
            slot = slot.with_counts_of(old.slot);
            line.set(old.at, slot);
            self.forget(counters, &old);
        } else if !line.insert(slot)
            && let Some((at, least)) = line.least()
        {
            // No line is left to chain: the least read of this one goes.
            let place = least.place();
            let seen = Seen { at, slot: least, head: self.head(place), place };
            line.set(at, slot);
            self.forget(counters, &seen);
            counters.evictions.add(1);
        }
        counters.items.add(1);
        counters.bytes.add(head.bytes() as u64);
    }

    /// Counts an item that the index no longer points to.
    fn forget(&self, counters: &Counters, seen: &Seen) {
        let bytes = seen.head.bytes();
        self.segments.of(seen.place).dead.fetch_add(bytes as u32, Ordering::Relaxed);
        counters.items.subtract(1);
        counters.bytes.subtract(bytes as u64);
    }

    fn grow_if_due(&self, writer: &mut Writer, new_key: bool) {
        writer.new_keys += u32::from(new_key);
        if writer.new_keys < GROW_EVERY {
            return;
        }
        writer.new_keys = 0;
        let items = self.counters.iter().fold(0u64, |sum, c| sum.wrapping_add(c.items.get()));
        let mut steps = 0;
        // Twice the pace at which one thread fills it, so that it keeps up with all.
        while self.index.wants_to_grow(items as usize) && steps < GROW_EVERY {
            self.index.grow(|slot| self.hash_of(slot));
            steps += 1;
        }
    }

    fn hash_of(&self, slot: Slot) -> u64 {
        use crate::item::KEY_BYTES_MAX;
        let mut key = [0; KEY_BYTES_MAX + holdfast_env::arena::SLACK_BYTES];
        let place = slot.place();
        let head = self.head(place);
        self.segments.arena.copy_out(place + head.key_at(), head.key_len(), &mut key);
        self.hasher.hash(&key[..head.key_len()])
    }

    /// Removes a key if `decide` agrees.
    pub fn remove(
        &self,
        writer: &Writer,
        key: &[u8],
        hash: u64,
        decide: impl FnOnce(&Seen) -> bool,
    ) -> Removed {
        let mut line = self.index.lock(hash);
        let found = line_item(self, &line, key);
        let removed = match self.judge(found) {
            Lookup::Found(seen) if !decide(&seen) => return Removed::Refused,
            Lookup::Found(_) => Removed::Done,
            _ => Removed::Missing,
        };
        if let Some(seen) = found {
            line.remove(seen.at);
            drop(line);
            self.forget(&self.counters[writer.id], &seen);
        }
        removed
    }

    /// Changes the head of a key's item in place, under its lock: expiry and marks that take no
    /// room. `change` gets the item and says what it should be; nothing for no change.
    pub fn change<T>(
        &self,
        key: &[u8],
        hash: u64,
        change: impl FnOnce(&Seen) -> (Option<Head>, T),
    ) -> Option<T> {
        let line = self.index.lock(hash);
        let Lookup::Found(seen) = self.judge(line_item(self, &line, key)) else { return None };
        let (head, answer) = change(&seen);
        if let Some(head) = head {
            assert_eq!(head.bytes(), seen.head.bytes(), "a change in place keeps the length");
            self.set_expires(&Seen { head, ..seen }, head.expires);
        }
        Some(answer)
    }

    /// Makes everything stored so far invalid.
    pub fn flush(&self) {
        let mut pool = self.segments.pool();
        self.segments.flushed.store(pool.opened, Ordering::Relaxed);
        // What is opened from now on is newer.
        pool.opened += 1;
    }

    /// Takes back what expired or was flushed. Called about once a second by one thread.
    pub fn keep(&self, writer: &Writer) {
        let mut pool = self.segments.pool();
        self.sweep(&mut pool, &self.counters[writer.id]);
    }

    /// Writes an item that the index does not point to yet; nothing if there is no memory.
    fn write(&self, writer: &mut Writer, new: &NewItem<'_>, piece: bool) -> Option<(usize, Head)> {
        let mut marks = new.marks;
        if new.flags != 0 || piece {
            marks |= MARK_FLAGS;
        }
        if new.cas.is_some() {
            marks |= MARK_CAS;
        }
        let value_len = new.value[0].len() + new.value[1].len();
        let head = Head::new(new.key.len(), value_len, marks, new.expires);
        let place = self.allocate(writer, head)?;
        let arena = &self.segments.arena;
        std::sync::atomic::fence(Ordering::Release);
        self.set_head(place, head);
        if head.has(MARK_FLAGS) {
            arena.u32(place + 8).store(new.flags, Ordering::Relaxed);
        }
        if let Some(cas) = new.cas {
            self.set_cas(place, head, cas);
        }
        arena.copy_in(place + head.key_at(), new.key);
        arena.copy_in(place + head.value_at(), new.value[0]);
        if !new.value[1].is_empty() {
            arena.copy_in(place + head.value_at() + new.value[0].len(), new.value[1]);
        }
        Some((place, head))
    }

    fn allocate(&self, writer: &mut Writer, head: Head) -> Option<usize> {
        let bytes = head.bytes();
        let ttl = head.expires.saturating_sub(if head.expires == 0 { 0 } else { self.now() });
        let class = class(if head.expires == 0 { 0 } else { ttl.max(1) });
        let flushed = self.segments.flushed.load(Ordering::Relaxed);
        let fits =
            |open: &Open| open.used + bytes <= self.segments.segment_bytes && open.opened > flushed;
        if !writer.open[class].as_ref().is_some_and(fits) {
            assert!(bytes <= self.segments.segment_bytes, "an item longer than a segment");
            self.open_segment(writer, class)?;
        }
        let open = writer.open[class].as_mut()?;
        let place = self.segments.start(open.segment) + open.used;
        open.used += bytes;
        open.holds(head.expires);
        Some(place)
    }

    fn open_segment(&self, writer: &mut Writer, class: usize) -> Option<()> {
        let mut pool = self.segments.pool();
        if let Some(full) = writer.open[class].take() {
            pool.close(&self.segments, class, full);
        }
        let counters = &self.counters[writer.id];
        let mut segment = self.take_segment(&mut pool, counters);
        if segment.is_none() && self.evicts {
            // All memory is in open segments: closed, ours can be reclaimed.
            drop(pool);
            self.retire(writer);
            pool = self.segments.pool();
            segment = self.take_segment(&mut pool, counters);
        }
        writer.open[class] = Some(pool.open(&self.segments, segment?, self.now()));
        Some(())
    }

    /// Takes back what was written last.
    fn unwrite(&self, writer: &mut Writer, place: usize, head: Head) {
        let bytes = head.bytes();
        for open in writer.open.iter_mut().flatten() {
            if self.segments.start(open.segment) + open.used == place + bytes {
                open.used -= bytes;
                return;
            }
        }
    }

    /// Under the item's lock.
    fn set_expires(&self, seen: &Seen, expires: u32) {
        self.set_head(seen.place, Head { expires, ..seen.head });
        let bound = if expires == 0 { u32::MAX } else { expires };
        self.segments.of(seen.place).expires.fetch_max(bound, Ordering::Relaxed);
    }
}

/// The item of a key, live or not, in a locked line.
fn line_item(store: &Store, line: &Locked<'_>, key: &[u8]) -> Option<Seen> {
    let mut seen = None;
    let found = line.find(|slot| {
        seen = store.is_item(SlotAt::default(), slot, key);
        seen.is_some()
    });
    let (at, _) = found?;
    seen.map(|seen| Seen { at, ..seen })
}

#[cfg(test)]
mod tests;
