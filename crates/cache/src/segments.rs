//! Segments: equal pieces of one arena, in which items lie one behind the other. A segment is
//! free, open (one thread's, and written), or closed (in its class's queue, read and in the end
//! reclaimed by `reclaim.rs`). Items of one segment expire at about the same time: there is a
//! class for each range of times to live (Segcache, NSDI 2021).

use holdfast_base::{Error, Result};
use holdfast_env::arena::Arena;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Class 0 never expires; then two for each power of two of seconds.
pub const CLASSES: usize = 64;
/// What a limit is cut into, about, between the smallest and the largest size of segments.
const SEGMENTS_WANTED: usize = 512;
const SEGMENT_BYTES_MIN: usize = 64 << 10;
const SEGMENT_BYTES_MAX: usize = 1 << 20;
/// Behind the last segment: a racing reader may see any length an item can have.
const TAIL_BYTES: usize = 512 << 10;

/// What is known of one segment.
#[derive(Default)]
pub struct Segment {
    /// When it was opened, counted; never reused. Items' cas values follow from it.
    pub opened: AtomicU64,
    /// Bytes of items that the index no longer points to.
    pub dead: AtomicU32,
    /// Bytes of items in all; set when it is closed.
    pub used: AtomicU32,
    /// The second by which everything in it has expired; `u32::MAX` for never.
    pub expires: AtomicU32,
    /// The second in which it was opened.
    pub began: AtomicU32,
}

pub struct Segments {
    pub arena: Arena,
    pub segment_bytes: usize,
    /// Where an item's place is divided: log2 of `segment_bytes`.
    shift: u32,
    pub table: Vec<Segment>,
    /// All that is opened up to here is as good as deleted (`flush_all`); 0 at first.
    pub flushed: AtomicU64,
    pool: Mutex<Pool>,
}

/// Which segments are what. Locked when a segment is opened or closed, and while some are
/// reclaimed; never on a read.
pub struct Pool {
    pub free: Vec<u32>,
    /// Never used so far, and so without memory.
    pub fresh: u32,
    /// Without memory again, since the index has grown.
    pub retired: Vec<u32>,
    /// Oldest first.
    pub closed: Vec<VecDeque<u32>>,
    pub opened: u64,
}

/// A segment that a thread writes.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub segment: u32,
    pub opened: u64,
    /// Bytes used.
    pub used: usize,
    pub expires: u32,
}

/// Bytes of a segment for a memory limit.
pub fn segment_bytes(limit: usize) -> usize {
    (limit / SEGMENTS_WANTED).next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

/// The class of a time to live; 0 seconds is for ever.
pub fn class(ttl: u32) -> usize {
    match ttl {
        0 => 0,
        1 => 1,
        // The bit below the uppermost halves the range.
        _ => (2 * ttl.ilog2() + (ttl >> (ttl.ilog2() - 1) & 1)) as usize,
    }
}

impl Segments {
    pub fn new(limit: usize) -> Result<Segments> {
        let segment_bytes = segment_bytes(limit);
        let count = limit / segment_bytes;
        if count * segment_bytes > crate::item::ARENA_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a memory limit of {limit} bytes: it is too large"
            )));
        }
        Ok(Segments {
            arena: Arena::reserve(count * segment_bytes + TAIL_BYTES)?,
            segment_bytes,
            shift: segment_bytes.ilog2(),
            table: (0..count).map(|_| Segment::default()).collect(),
            flushed: AtomicU64::new(0),
            pool: Mutex::new(Pool {
                free: Vec::new(),
                fresh: 0,
                retired: Vec::new(),
                closed: vec![VecDeque::new(); CLASSES],
                opened: 0,
            }),
        })
    }

    pub fn pool(&self) -> MutexGuard<'_, Pool> {
        // It is consistent between any two statements.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    pub fn of(&self, place: usize) -> &Segment {
        &self.table[place >> self.shift]
    }

    pub fn start(&self, segment: u32) -> usize {
        (segment as usize) << self.shift
    }

    /// Whether what lies there was flushed.
    #[inline(always)]
    pub fn is_flushed(&self, place: usize) -> bool {
        let flushed = self.flushed.load(Ordering::Relaxed);
        flushed != 0 && self.of(place).opened.load(Ordering::Relaxed) <= flushed
    }

    /// The cas of an item that does not store one: no two items ever have the same.
    #[inline(always)]
    pub fn cas(&self, place: usize) -> u64 {
        let opened = self.of(place).opened.load(Ordering::Relaxed);
        let within = (place & (self.segment_bytes - 1)) / crate::item::ALIGN;
        (opened << (self.shift - 2)) + within as u64
    }

    /// A cas above all that there are, which no item gets from its place: that of a segment that is never
    /// opened.
    pub fn unused_cas(&self) -> u64 {
        let mut pool = self.pool();
        pool.opened += 1;
        pool.opened << (self.shift - 2)
    }

    /// Segments that have memory.
    pub fn with_memory(&self) -> usize {
        self.pool().with_memory()
    }
}

impl Pool {
    pub fn with_memory(&self) -> usize {
        self.fresh as usize - self.retired.len()
    }

    /// A segment without memory so far, if fewer than `allowed` have some.
    pub fn take_fresh(&mut self, allowed: usize, count: usize) -> Option<u32> {
        if self.with_memory() >= allowed {
            return None;
        }
        if let Some(segment) = self.retired.pop() {
            return Some(segment);
        }
        if self.fresh as usize >= count {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh - 1)
    }

    /// Gives the memory of free segments back until no more than `allowed` have some, but for one
    /// that stays free.
    pub fn retire(&mut self, segments: &Segments, allowed: usize) {
        while self.with_memory() > allowed && self.free.len() > 1 {
            let Some(segment) = self.free.pop() else { return };
            segments.arena.release(segments.start(segment), segments.segment_bytes);
            self.retired.push(segment);
        }
    }

    pub fn open(&mut self, segments: &Segments, segment: u32, now: u32) -> Open {
        self.opened += 1;
        let entry = &segments.table[segment as usize];
        entry.dead.store(0, Ordering::Relaxed);
        entry.used.store(0, Ordering::Relaxed);
        entry.expires.store(0, Ordering::Relaxed);
        entry.began.store(now, Ordering::Relaxed);
        entry.opened.store(self.opened, Ordering::Relaxed);
        Open { segment, opened: self.opened, used: 0, expires: 0 }
    }

    pub fn close(&mut self, segments: &Segments, class: usize, open: Open) {
        let entry = &segments.table[open.segment as usize];
        entry.used.store(open.used as u32, Ordering::Relaxed);
        // An item may have been touched meanwhile.
        entry.expires.fetch_max(open.expires, Ordering::Relaxed);
        self.closed[class].push_back(open.segment);
    }
}

impl Open {
    /// Takes note of an item's expiry.
    pub fn holds(&mut self, expires: u32) {
        self.expires = self.expires.max(if expires == 0 { u32::MAX } else { expires });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_with_the_time_to_live() {
        let mut last = class(0);
        for ttl in (1..5000).chain([1 << 20, 1 << 30, u32::MAX]) {
            let class = class(ttl);
            assert!(class >= last && class < CLASSES, "{ttl}: {class}");
            last = class;
        }
        // One class is never wider than half of where it begins.
        assert_eq!(class(64), class(95));
        assert_ne!(class(95), class(96));
    }

    #[test]
    fn cas_values_differ_by_place_and_by_opening() {
        let segments = Segments::new(64 << 20).unwrap();
        let mut pool = segments.pool();
        let open = pool.open(&segments, 3, 1);
        let place = segments.start(open.segment);
        let first = segments.cas(place);
        assert_ne!(first, segments.cas(place + 4));
        assert!(segments.cas(place + segments.segment_bytes - 4) < first + (1 << 18));
        pool.open(&segments, 3, 1);
        assert!(segments.cas(place) > first);
    }
}
