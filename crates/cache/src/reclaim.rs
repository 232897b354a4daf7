//! Memory for new items: takes segments back. First what is dead, flushed or expired as a whole;
//! then segments with much that is dead are copied together, losing nothing; then the oldest of a
//! class are merged into one, which keeps what was read most (Segcache's merge-based eviction).
//!
//! An item's slot is changed, under its line's lock, before its memory is reused: a reader that
//! had found it there finds the line's version changed and asks again.

use crate::item::{FREQUENCY_MAX, Head, KEY_BYTES_MAX, MARK_CAS, MARK_FLAGS, Slot};
use crate::segments::{CLASSES, Open, Pool};
use crate::stats::Counters;
use crate::store::Store;
use holdfast_base::Result;
use holdfast_env::arena::SLACK_BYTES;
use std::sync::atomic::Ordering;

/// Segments that one eviction merges into one.
const MERGE: usize = 4;
/// Most segments that are copied together to free one.
const COMPACT_MAX: usize = 6;
/// Items whose index lines are loaded at once.
const BATCH: usize = 64;

/// A live item of a segment that is being reclaimed or saved.
pub(crate) struct Live {
    pub place: usize,
    pub hash: u64,
    pub head: Head,
    pub slot: Slot,
}

/// Where survivors go.
struct Target {
    class: usize,
    open: Option<Open>,
}

impl Store {
    /// A segment to write: a free one, a fresh one, or one taken back.
    pub(crate) fn take_segment(&self, pool: &mut Pool, counters: &Counters) -> Option<u32> {
        if let Some(segment) = pool.free.pop() {
            return Some(segment);
        }
        // One stays back for the survivors of an eviction.
        let allowed = self.segments_allowed();
        if let Some(segment) = pool.take_fresh(allowed.saturating_sub(1), self.segments.table.len())
        {
            return Some(segment);
        }
        self.sweep(pool, counters);
        if pool.free.is_empty() && !self.compact(pool, counters) && self.evicts {
            self.evict(pool, counters);
        }
        pool.retire(&self.segments, allowed);
        pool.free.pop()
    }

    /// Frees what holds nothing any more. Also called once a second, for what expired.
    pub(crate) fn sweep(&self, pool: &mut Pool, counters: &Counters) {
        let now = self.now();
        let flushed = self.segments.flushed.load(Ordering::Relaxed);
        for class in 0..CLASSES {
            let queue = std::mem::take(&mut pool.closed[class]);
            for segment in queue {
                let entry = &self.segments.table[segment as usize];
                let empty =
                    entry.dead.load(Ordering::Relaxed) >= entry.used.load(Ordering::Relaxed);
                let expired = entry.expires.load(Ordering::Relaxed) <= now;
                if empty || expired || entry.opened.load(Ordering::Relaxed) <= flushed {
                    if !empty {
                        self.drop_items(&self.live_items(segment), counters);
                    }
                    pool.free.push(segment);
                } else {
                    pool.closed[class].push_back(segment);
                }
            }
        }
    }

    /// Copies segments of one class together whose live bytes leave one of them free.
    fn compact(&self, pool: &mut Pool, counters: &Counters) -> bool {
        let dead_of = |segment: &u32| {
            let entry = &self.segments.table[*segment as usize];
            // What was never filled counts as dead: it is as lost.
            let used = entry.used.load(Ordering::Relaxed);
            entry.dead.load(Ordering::Relaxed) as usize + self.segments.segment_bytes
                - used as usize
        };
        let mut best: Option<(usize, Vec<u32>, usize)> = None;
        for class in 0..CLASSES {
            let mut dead: Vec<(usize, u32)> =
                pool.closed[class].iter().map(|segment| (dead_of(segment), *segment)).collect();
            let n = dead.len().min(COMPACT_MAX);
            if n < 2 {
                continue;
            }
            dead.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
            dead.truncate(n);
            dead.sort_unstable_by(|a, b| b.cmp(a));
            let mut sum = 0;
            // As few as free one, with an eighth to spare for items that do not fit in exactly.
            let need = self.segments.segment_bytes * 9 / 8;
            let few = dead.iter().position(|(bytes, _)| {
                sum += bytes;
                sum >= need
            });
            if let Some(last) = few.filter(|last| *last >= 1)
                && best.as_ref().is_none_or(|(_, sources, _)| last + 1 < sources.len())
            {
                best = Some((class, dead[..=last].iter().map(|(_, s)| *s).collect(), sum));
            }
        }
        let Some((class, sources, _)) = best else { return false };
        pool.closed[class].retain(|segment| !sources.contains(segment));
        self.merge(pool, class, &sources, u64::MAX, counters);
        !pool.free.is_empty()
    }

    /// Merges the oldest segments.
    fn evict(&self, pool: &mut Pool, counters: &Counters) {
        let opened =
            |segment: &u32| self.segments.table[*segment as usize].opened.load(Ordering::Relaxed);
        let oldest = (0..CLASSES)
            .filter_map(|class| pool.closed[class].front().map(|s| (opened(s), class)))
            .min();
        let Some((_, class)) = oldest else { return };
        let n = MERGE.min(pool.closed[class].len());
        let sources: Vec<u32> = pool.closed[class].drain(..n).collect();
        let keep = if n == 1 { 0 } else { self.segments.segment_bytes as u64 };
        self.merge(pool, class, &sources, keep, counters);
    }

    /// Copies what is live in `sources`, at most `keep` bytes of it, and frees them.
    fn merge(
        &self,
        pool: &mut Pool,
        class: usize,
        sources: &[u32],
        keep: u64,
        counters: &Counters,
    ) {
        let found: Vec<Vec<Live>> = sources.iter().map(|s| self.live_items(*s)).collect();
        let mut bytes_of = [0u64; FREQUENCY_MAX as usize + 1];
        for live in found.iter().flatten() {
            bytes_of[live.slot.frequency() as usize] += live.head.bytes() as u64;
        }
        // The lowest frequency of which something is kept, and how many bytes of it.
        let (mut least, mut rest) = (0, u64::MAX);
        let mut sum = 0;
        for frequency in (0..bytes_of.len()).rev() {
            if sum + bytes_of[frequency] > keep {
                (least, rest) = (frequency as u64, keep - sum);
                break;
            }
            sum += bytes_of[frequency];
        }
        let now = self.now();
        let mut target = Target { class, open: None };
        for (source, live) in sources.iter().zip(found) {
            let mut evicted = Vec::new();
            for item in live {
                let bytes = item.head.bytes() as u64;
                let keeps = match item.slot.frequency().cmp(&least) {
                    std::cmp::Ordering::Greater => true,
                    std::cmp::Ordering::Less => false,
                    std::cmp::Ordering::Equal => {
                        let fits = bytes <= rest;
                        rest = if fits { rest - bytes } else { 0 };
                        fits
                    }
                };
                if item.head.is_expired(now)
                    || !keeps
                    || !self.move_item(pool, &item, &mut target, counters)
                {
                    evicted.push(item);
                }
            }
            self.drop_items(&evicted, counters);
            pool.free.push(*source);
        }
        if let Some(open) = target.open {
            pool.close(&self.segments, target.class, open);
        }
    }

    /// The items of a closed segment that the index points to.
    fn live_items(&self, segment: u32) -> Vec<Live> {
        let start = self.segments.start(segment);
        let used = self.segments.table[segment as usize].used.load(Ordering::Relaxed) as usize;
        let (mut items, mut at) = (Vec::new(), start);
        let mut batch = Vec::with_capacity(BATCH);
        let mut key = [0; KEY_BYTES_MAX + SLACK_BYTES];
        while at < start + used {
            let head = self.head(at);
            let len = head.key_len();
            self.segments.arena.copy_out(at + head.key_at(), len, &mut key);
            let hash = self.hasher.hash(&key[..len]);
            self.index.prefetch(hash);
            batch.push(Live { place: at, hash, head, slot: Slot(0) });
            at += head.bytes();
            if batch.len() == BATCH || at >= start + used {
                items.extend(batch.drain(..).filter_map(|mut item| {
                    let reading = self.index.read(item.hash);
                    // No confirmation: the slot is looked at again under the line's lock.
                    let found = self.index.find(reading, item.hash, |_, slot| {
                        item.slot = slot;
                        slot.place() == item.place
                    });
                    found.then_some(item)
                }));
            }
        }
        items
    }

    /// Visits all items that are neither expired nor flushed, oldest segments first. Only while no
    /// thread writes, and all segments are closed ([`Store::retire`]).
    pub(crate) fn each_kept(&self, mut visit: impl FnMut(&Live) -> Result<()>) -> Result<()> {
        let (now, flushed) = (self.now(), self.segments.flushed.load(Ordering::Relaxed));
        let opened =
            |segment: u32| self.segments.table[segment as usize].opened.load(Ordering::Relaxed);
        let mut segments: Vec<(u64, u32)> = {
            let pool = self.segments.pool();
            pool.closed.iter().flatten().map(|segment| (opened(*segment), *segment)).collect()
        };
        segments.sort_unstable();
        for (_, segment) in segments.into_iter().filter(|(opened, _)| *opened > flushed) {
            let items = self.live_items(segment);
            items.iter().filter(|live| !live.head.is_expired(now)).try_for_each(&mut visit)?;
        }
        Ok(())
    }

    /// Takes items out of the index, if they are still in it.
    fn drop_items(&self, items: &[Live], counters: &Counters) {
        let now = self.now();
        for item in items {
            let mut line = self.index.lock(item.hash);
            let Some((at, slot)) = line.find(|slot| slot.place() == item.place) else { continue };
            line.remove(at);
            drop(line);
            counters.items.subtract(1);
            counters.bytes.subtract(item.head.bytes() as u64);
            if item.head.is_expired(now) {
                counters.reclaimed.add(1);
            } else if !self.segments.is_flushed(item.place) {
                counters.evictions.add(1);
                counters.evicted_unfetched.add(u64::from(!slot.is_fetched()));
            }
        }
    }

    /// False if there is no room for it.
    fn move_item(
        &self,
        pool: &mut Pool,
        item: &Live,
        target: &mut Target,
        counters: &Counters,
    ) -> bool {
        // A cas that somebody has seen must not change; room for it in any case.
        let bytes = item.head.bytes() + 8;
        if target.open.is_some_and(|open| open.used + bytes > self.segments.segment_bytes)
            && let Some(open) = target.open.take()
        {
            pool.close(&self.segments, target.class, open);
        }
        if target.open.is_none() {
            let count = self.segments.table.len();
            let segment = pool.free.pop().or_else(|| pool.take_fresh(count, count));
            target.open = segment.map(|segment| pool.open(&self.segments, segment, self.now()));
        }
        let Some(open) = &mut target.open else { return false };
        let to = self.segments.start(open.segment) + open.used;
        let mut line = self.index.lock(item.hash);
        let Some((at, slot)) = line.find(|slot| slot.place() == item.place) else {
            // Deleted or replaced meanwhile, and counted by who did it.
            return true;
        };
        let head = self.copy_item(item, slot, to);
        line.set(at, slot.aged().moved_to(to));
        drop(line);
        open.used += head.bytes();
        open.holds(head.expires);
        counters.moved.add(1);
        counters.bytes.add((head.bytes() - item.head.bytes()) as u64);
        true
    }

    fn copy_item(&self, item: &Live, slot: Slot, to: usize) -> Head {
        let (arena, from) = (&self.segments.arena, item.place);
        // It may have been marked since it was looked at.
        let head = self.head(from);
        if !slot.is_cas_seen() || head.has(MARK_CAS) {
            arena.copy_within(from, to, head.bytes());
            return head;
        }
        let moved = Head { word: head.word | MARK_CAS, ..head };
        self.set_head(to, moved);
        if head.has(MARK_FLAGS) {
            arena.copy_within(from + 8, to + 8, 4);
        }
        self.set_cas(to, moved, self.segments.cas(from));
        let len = head.key_len() + head.value_len();
        arena.copy_within(from + head.key_at(), to + moved.key_at(), len);
        moved
    }
}
