//! Photos in memory, admitted as Haystack's cache did: what a person asked for (a content delivery
//! network keeps what it fetches itself) from a chunk that was written lately (a photo is looked at
//! most in its first days). By pointer: what a pointer leads to never changes.

use bytes::Bytes;
use holdfast_base::ids::{ChunkId, Pointer};
use holdfast_blob::Object;
use hyper::HeaderMap;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};

/// Chunks back from the newest that count as written lately: open, or just full.
const RECENT_CHUNKS: u64 = 16;
/// Larger objects are read from the disk, in few reads.
pub const HOT_BYTES_MAX: u64 = 1 << 20;
/// What is likely: tables of that many objects are made at the start.
const ITEM_BYTES: u64 = 64 << 10;
/// Of an entry, beside its bytes.
const ENTRY_BYTES: u64 = 64;

#[derive(Clone)]
struct BytesWeighter;

impl Weighter<Pointer, Bytes> for BytesWeighter {
    fn weight(&self, _: &Pointer, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY_BYTES
    }
}

/// Objects asked for lately, by pointer, up to a number of bytes; shared by all connections.
pub struct Hot {
    /// None for a cache of no bytes.
    cache: Option<Cache<Pointer, Bytes, BytesWeighter>>,
    /// Counter of the newest chunk that was seen.
    newest: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    admitted: AtomicU64,
}

/// What the cache has done, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotCounts {
    /// Gets of small objects answered from memory.
    pub hits: u64,
    /// Gets of small objects that were not in it.
    pub misses: u64,
    /// Objects taken in.
    pub admitted: u64,
    /// Of the objects in it now.
    pub bytes: u64,
    /// In it now.
    pub objects: u64,
}

impl Hot {
    /// A cache of so many bytes; of 0, one that keeps nothing.
    pub fn new(bytes: u64) -> Hot {
        let items = (bytes / ITEM_BYTES) as usize + 1;
        Hot {
            cache: (bytes > 0).then(|| Cache::with_weighter(items, bytes, BytesWeighter)),
            newest: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
        }
    }

    /// Notes that a chunk is there; new objects go into the newest one.
    pub fn saw(&self, chunk: ChunkId) {
        self.newest.fetch_max(chunk.counter(), Ordering::Relaxed);
    }

    /// The whole of an object, if it is here. Counts what could be.
    pub fn get(&self, object: &Object) -> Option<Bytes> {
        let (cache, pointer) = (self.cache.as_ref()?, keepable(object)?);
        let found = cache.get(&pointer);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Whether the whole of an object, once it is read, is to be kept.
    pub fn admits(&self, object: &Object, headers: &HeaderMap) -> Option<Pointer> {
        let pointer = keepable(object).filter(|_| self.cache.is_some())?;
        self.saw(pointer.chunk);
        let newest = self.newest.load(Ordering::Relaxed);
        let recent = pointer.chunk.counter() + RECENT_CHUNKS > newest;
        (recent && !is_network(headers)).then_some(pointer)
    }

    /// Keeps what [`Hot::admits`] has said is to be kept.
    pub fn keep(&self, pointer: Pointer, bytes: &Bytes) {
        if let Some(cache) = &self.cache {
            // A copy of its own: what was read may be part of a larger buffer.
            cache.insert(pointer, Bytes::copy_from_slice(bytes));
            self.admitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For metrics and `holdfast blob cache`.
    pub fn counts(&self) -> HotCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HotCounts {
            hits: load(&self.hits),
            misses: load(&self.misses),
            admitted: load(&self.admitted),
            bytes: self.cache.as_ref().map_or(0, Cache::weight),
            objects: self.cache.as_ref().map_or(0, |cache| cache.len() as u64),
        }
    }
}

/// The pointer of an object of one small needle.
fn keepable(object: &Object) -> Option<Pointer> {
    match object.extents.as_slice() {
        [only] if object.size <= HOT_BYTES_MAX => Some(only.pointer),
        _ => None,
    }
}

/// Whether a content delivery network asks: such say so in `CDN-Loop` (RFC 8586), older ones in
/// `Via`.
fn is_network(headers: &HeaderMap) -> bool {
    headers.contains_key("cdn-loop") || headers.contains_key("via")
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::{Cookie, Slot};
    use holdfast_blob::ObjectExtent;

    fn object(counter: u64, slot: u32, bytes: u32) -> Object {
        let pointer =
            Pointer { chunk: ChunkId::new(0, counter), slot: Slot(slot), cookie: Cookie(1) };
        let extents = vec![ObjectExtent { pointer, bytes }];
        Object { size: bytes as u64, extents, ..Object::default() }
    }

    /// As a get: answers whether it was here.
    fn ask(hot: &Hot, object: &Object, headers: &HeaderMap) -> bool {
        let found = hot.get(object).is_some();
        if !found && let Some(pointer) = hot.admits(object, headers) {
            hot.keep(pointer, &Bytes::from(vec![7; object.size as usize]));
        }
        found
    }

    #[test]
    fn what_people_ask_for_of_new_chunks_is_kept() {
        let (hot, person) = (Hot::new(1 << 20), HeaderMap::new());
        let photo = object(40, 0, 1000);
        assert!(!ask(&hot, &photo, &person));
        assert!(ask(&hot, &photo, &person));
        let counts = hot.counts();
        assert_eq!((counts.hits, counts.misses, counts.admitted, counts.objects), (1, 1, 1, 1));
        // Old by now: not kept, but what is here serves.
        hot.saw(ChunkId::new(0, 40 + RECENT_CHUNKS));
        assert!(!ask(&hot, &object(40, 1, 1000), &person));
        assert!(!ask(&hot, &object(40, 1, 1000), &person));
        assert!(ask(&hot, &photo, &person));
    }

    #[test]
    fn what_a_delivery_network_asks_for_is_not_kept_but_served() {
        let hot = Hot::new(1 << 20);
        let photo = object(3, 0, 1000);
        for name in ["cdn-loop", "via"] {
            let mut network = HeaderMap::new();
            network.insert(name, "cdn.example".parse().unwrap());
            assert!(!ask(&hot, &photo, &network));
            assert!(!ask(&hot, &photo, &network), "{name}");
        }
        assert!(!ask(&hot, &photo, &HeaderMap::new()));
        let mut network = HeaderMap::new();
        network.insert("cdn-loop", "cdn.example".parse().unwrap());
        assert!(ask(&hot, &photo, &network));
    }

    #[test]
    fn its_memory_is_bounded() {
        let (hot, person) = (Hot::new(1 << 20), HeaderMap::new());
        for slot in 0..200 {
            ask(&hot, &object(1, slot, 60_000), &person);
        }
        assert!(hot.counts().bytes <= 1 << 20, "{:?}", hot.counts());
        assert!(hot.counts().objects > 8, "{:?}", hot.counts());
        assert!(!ask(&hot, &object(1, 999, HOT_BYTES_MAX as u32 + 1), &person));
        assert_eq!(Hot::new(0).counts(), HotCounts::default());
        assert!(!ask(&Hot::new(0), &object(1, 0, 10), &person));
    }
}
