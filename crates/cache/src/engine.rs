//! What one thread serves requests with: the shared store, its own writer, and the steps that
//! several commands share. It decides what a command does to the store; text and meta protocol
//! say it in words.

use crate::item::{Head, MARK_BINARY, MARK_LARGE, MARK_STALE, MARK_WON};
use crate::large::{self, Large};
use crate::settings::Shared;
use crate::stats::Counters;
use crate::store::{Lookup, NewItem, Put, Removed, Seen, Store, Writer};
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::planted;
use std::sync::Arc;

/// Relative times to live end here; larger ones are dates (memcached's REALTIME_MAXDELTA).
const RELATIVE_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;
/// Digits of the longest number that `incr` works on.
const NUMBER_BYTES_MAX: usize = 20;
/// What belongs to an item beside key and value, as memcached counts it against `-I`.
const ITEM_EXTRA_BYTES: usize = 50;

pub struct Engine {
    pub store: Arc<Store>,
    pub shared: Arc<Shared>,
    pub writer: Writer,
    /// Bytes of values on their way through.
    pub scratch: Vec<u8>,
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over this cas. `stale`: over a newer one, too, and then marked.
    Cas {
        cas: u64,
        stale: bool,
    },
}

/// A storage command without its value.
#[derive(Clone, Copy, Debug)]
pub struct Storing<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    pub expires: u32,
    pub mode: Mode,
    /// The cas that the item gets.
    pub new_cas: Option<u64>,
    /// The cas that an append or prepend requires.
    pub required_cas: Option<u64>,
    pub binary: bool,
    /// An append to a missing key stores it, to expire then.
    pub vivify: Option<u32>,
}

impl<'a> Storing<'a> {
    /// One that asks for nothing special.
    pub fn new(key: &'a [u8], mode: Mode, flags: u32, expires: u32) -> Storing<'a> {
        Storing {
            key,
            flags,
            expires,
            mode,
            new_cas: None,
            required_cas: None,
            binary: false,
            vivify: None,
        }
    }

    fn item(&self, value: [&'a [u8]; 2], marks: u32, cas: Option<u64>) -> NewItem<'a> {
        NewItem { key: self.key, flags: self.flags, expires: self.expires, value, marks, cas }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Done(u64),
    /// What its mode asks for is not so.
    No,
    Exists,
    NotFound,
    TooLarge,
    NoMemory,
}

/// A value that was read.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub seen: Seen,
    pub flags: u32,
    pub cas: u64,
    pub large: Option<Large>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Done { value: u64, expires: u32, cas: u64 },
    NotFound,
    NotANumber,
    WrongCas,
    NoMemory,
}

impl Engine {
    pub fn counters(&self) -> &Counters {
        &self.store.counters[self.writer.id]
    }

    /// When something expires that a client gave so many seconds, or a date.
    pub fn expiry(&self, exptime: i64) -> u32 {
        let now = self.store.now();
        match exptime {
            0 => 0,
            // Already; never 0, which is for ever.
            ..0 => 1,
            seconds @ 1..=RELATIVE_SECONDS_MAX => now.saturating_add(seconds as u32),
            // Past 2038, too, where memcached's own are gone at once.
            date => date.saturating_sub(self.shared.epoch_s()).clamp(1, i64::from(u32::MAX)) as u32,
        }
    }

    /// Whether a value may be as long as this.
    pub fn fits(&self, key: &[u8], len: usize) -> bool {
        key.len() + len + ITEM_EXTRA_BYTES <= self.shared.settings.item_bytes_max
    }

    /// Reads an item; its value, unless it is large, to `scratch`.
    pub fn fetch(&mut self, key: &[u8], with_value: bool) -> Option<Found> {
        let hash = self.store.hash(key);
        let (store, scratch) = (&self.store, &mut self.scratch);
        let look = |found| match found {
            Lookup::Found(seen) => {
                let large = large_of(store, &seen);
                if with_value && large.is_none() {
                    let len = seen.head.value_len();
                    scratch.resize(len + SLACK_BYTES, 0);
                    store.copy_value(&seen, scratch);
                    scratch.truncate(len);
                }
                let (flags, cas) =
                    (store.flags(seen.place, seen.head), store.cas(seen.place, seen.head));
                Ok(Found { seen, flags, cas, large })
            }
            missing => Err(missing),
        };
        match store.read(key, hash, look) {
            Ok(found) => Some(found),
            Err(missing) => {
                self.count_miss(missing);
                None
            }
        }
    }

    /// Takes note of why something was not found.
    pub fn count_miss(&self, missing: Lookup) {
        match missing {
            Lookup::Expired => self.counters().get_expired.add(1),
            Lookup::Flushed => self.counters().get_flushed.add(1),
            Lookup::Missing | Lookup::Found(_) => {}
        }
    }

    /// The whole value of what [`Engine::fetch`] found, large or not; nothing if pieces are gone.
    pub fn whole_value(&mut self, found: &Found) -> Option<Vec<u8>> {
        let Some(large) = found.large else { return Some(self.scratch.clone()) };
        let mut value = Vec::with_capacity(large.bytes as usize + SLACK_BYTES);
        for n in 0..large.pieces(&self.store) {
            if !self.store.read_piece(&mut self.writer, &large.key(n), &mut value) {
                return None;
            }
        }
        Some(value)
    }

    /// Stores a value that is all here.
    pub fn store_value(&mut self, storing: &Storing<'_>, value: &[u8]) -> Stored {
        if self.shared.settings.ablation.shared_statistics {
            self.shared.count_slowly(1);
        }
        self.counters().cmd_set.add(1);
        if matches!(storing.mode, Mode::Append | Mode::Prepend) {
            return self.join(storing, value);
        }
        if value.len() <= self.store.large_bytes() {
            return self.link(storing, [value, &[]], 0);
        }
        let Some(large) = self.write_large(storing, value) else { return self.no_memory(storing) };
        self.link_large(storing, large)
    }

    /// Makes an item without a value where there is none, marked from its first moment: another thread
    /// would take it for a value. Its cas, if this made it.
    pub fn promise(&mut self, storing: &Storing<'_>) -> Option<u64> {
        assert_eq!(storing.mode, Mode::Add, "what is there stays");
        self.counters().cmd_set.add(1);
        let marks = if planted!("cache.promise-marked-late") { 0 } else { MARK_WON };
        match self.link(storing, [&[], &[]], marks) {
            Stored::Done(cas) => Some(cas),
            _ => None,
        }
    }

    /// Points a key to pieces that are all stored; takes them back if that is refused.
    pub fn link_large(&mut self, storing: &Storing<'_>, large: Large) -> Stored {
        let stored = self.link(storing, [&large.to_bytes(), &[]], MARK_LARGE);
        if !matches!(stored, Stored::Done(_)) {
            self.remove_pieces(large);
        }
        stored
    }

    fn write_large(&mut self, storing: &Storing<'_>, value: &[u8]) -> Option<Large> {
        let large = Large { id: self.shared.next_large(), bytes: value.len() as u64 };
        for (n, piece) in value.chunks(self.store.piece_bytes()).enumerate() {
            let key = large.key(n as u32);
            if !self.store.put_piece(&mut self.writer, &key, piece, storing.expires) {
                self.remove_pieces(large);
                return None;
            }
        }
        Some(large)
    }

    pub fn remove_pieces(&mut self, large: Large) {
        for n in 0..large.pieces(&self.store) {
            self.store.remove_piece(&self.writer, &large.key(n));
        }
    }

    /// Out of memory: what a set would have replaced must not be served any longer.
    pub fn no_memory(&mut self, storing: &Storing<'_>) -> Stored {
        self.counters().store_no_memory.add(1);
        if storing.mode == Mode::Set {
            self.delete(storing.key, None);
        }
        Stored::NoMemory
    }

    fn link(&mut self, storing: &Storing<'_>, value: [&[u8]; 2], marks: u32) -> Stored {
        let mut marks = marks | if storing.binary { MARK_BINARY } else { 0 };
        let mut new_cas = storing.new_cas;
        loop {
            let new = storing.item(value, marks, new_cas);
            let hash = self.store.hash(storing.key);
            let (mut refused, mut replaced, mut stale) = (Stored::No, None, None);
            let put = self.store.put(&mut self.writer, &new, hash, |old| {
                let (agrees, answer) = match (storing.mode, old) {
                    (Mode::Cas { .. } | Mode::Replace, None) => (false, Stored::NotFound),
                    (Mode::Cas { cas, stale: may_be_stale }, Some(old)) => {
                        let current = self.store.cas(old.place, old.head);
                        if current != cas && may_be_stale && cas < current {
                            stale = Some(current);
                        }
                        // A stale value must be marked so, which the item was not written with.
                        let agrees = current == cas || stale.is_some() && marks & MARK_STALE != 0;
                        (agrees, Stored::Exists)
                    }
                    (Mode::Add, Some(_)) => (false, Stored::No),
                    _ => (true, Stored::No),
                };
                refused = if storing.mode == Mode::Replace { Stored::No } else { answer };
                replaced = old.filter(|_| agrees).and_then(|old| large_of(&self.store, old));
                agrees
            });
            if let Some(large) = replaced {
                self.remove_pieces(large);
            }
            match put {
                Put::Refused if stale.is_some() && marks & MARK_STALE == 0 => {
                    marks |= MARK_STALE | MARK_WON;
                    new_cas = stale.map(|cas| cas + 1);
                }
                Put::Stored(cas) => {
                    if matches!(storing.mode, Mode::Cas { .. }) {
                        self.counters().cas_hits.add(1);
                    }
                    return Stored::Done(cas);
                }
                Put::Refused => {
                    if matches!(storing.mode, Mode::Cas { .. }) {
                        let missing = refused == Stored::NotFound;
                        self.counters().cas_misses.add(u64::from(missing));
                        self.counters().cas_badval.add(u64::from(!missing));
                    }
                    return refused;
                }
                Put::NoMemory => return self.no_memory(storing),
            }
        }
    }

    /// Append and prepend.
    fn join(&mut self, storing: &Storing<'_>, value: &[u8]) -> Stored {
        loop {
            let Some(found) = self.fetch(storing.key, true) else {
                let Some(expires) = storing.vivify else { return Stored::No };
                let add = Storing { mode: Mode::Add, expires, ..*storing };
                match self.link(&add, [value, &[]], 0) {
                    Stored::No => continue,
                    stored => return stored,
                }
            };
            if storing.required_cas.is_some_and(|cas| cas != found.cas) {
                return Stored::Exists;
            }
            let Some(mut old) = self.whole_value(&found) else { return Stored::No };
            if !self.fits(storing.key, old.len() + value.len()) {
                self.counters().store_too_large.add(1);
                return Stored::TooLarge;
            }
            if storing.mode == Mode::Append {
                old.extend_from_slice(value);
            } else {
                old.splice(0..0, value.iter().copied());
            }
            let over = Storing {
                mode: Mode::Cas { cas: found.cas, stale: false },
                flags: found.flags,
                expires: found.seen.head.expires,
                binary: found.seen.head.has(MARK_BINARY),
                ..*storing
            };
            let stored = if old.len() <= self.store.large_bytes() {
                self.link(&over, [&old, &[]], 0)
            } else {
                match self.write_large(&over, &old) {
                    Some(large) => self.link_large(&over, large),
                    None => return self.no_memory(storing),
                }
            };
            match stored {
                // Somebody was faster.
                Stored::Exists | Stored::NotFound => {}
                stored => return stored,
            }
        }
    }

    /// Deletes a key, if it has this cas.
    pub fn delete(&mut self, key: &[u8], cas: Option<u64>) -> Removed {
        let hash = self.store.hash(key);
        let mut large = None;
        let removed = self.store.remove(&self.writer, key, hash, |seen| {
            large = large_of(&self.store, seen);
            cas.is_none_or(|cas| cas == self.store.cas(seen.place, seen.head))
        });
        if let Some(large) = large.filter(|_| removed == Removed::Done) {
            self.remove_pieces(large);
        }
        removed
    }

    /// Gives an item another expiry.
    pub fn touch(&mut self, key: &[u8], expires: u32) -> bool {
        let hash = self.store.hash(key);
        let touched = self.store.change(key, hash, |seen| {
            (Some(Head { expires, ..seen.head }), large_of(&self.store, seen))
        });
        if let Some(Some(large)) = touched {
            for n in 0..large.pieces(&self.store) {
                self.store.touch_piece(&large.key(n), expires);
            }
        }
        touched.is_some()
    }

    /// Adds to or subtracts from the number that a key holds.
    pub fn count(
        &mut self,
        key: &[u8],
        delta: u64,
        up: bool,
        required: Option<u64>,
        new_expires: Option<u32>,
        new_cas: Option<u64>,
    ) -> Counted {
        loop {
            let Some(found) = self.fetch(key, true) else {
                let misses =
                    if up { &self.counters().incr_misses } else { &self.counters().decr_misses };
                misses.add(1);
                return Counted::NotFound;
            };
            if required.is_some_and(|cas| cas != found.cas) {
                return Counted::WrongCas;
            }
            let old_len = self.scratch.len();
            if found.large.is_some() || old_len == 0 || old_len > NUMBER_BYTES_MAX {
                return Counted::NotANumber;
            }
            let Some(number) = holdfast_cache_client::protocol::words::u64_of(&self.scratch) else {
                return Counted::NotANumber;
            };
            let value = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
            let mut digits = [0; 20];
            let at = crate::out::digits_of(value, &mut digits);
            let text = &digits[at..];
            // A shorter number is padded to the length that was there, as memcached does.
            let padding = &[b' '; NUMBER_BYTES_MAX][..old_len.saturating_sub(text.len())];
            let mode = Mode::Cas { cas: found.cas, stale: false };
            let expires = new_expires.unwrap_or(found.seen.head.expires);
            let storing = Storing {
                new_cas,
                binary: found.seen.head.has(MARK_BINARY),
                ..Storing::new(key, mode, found.flags, expires)
            };
            let marks = found.seen.head.word & (MARK_BINARY | MARK_STALE);
            match self.link_over(&storing, [text, padding], &found, marks) {
                Stored::Done(cas) => {
                    let hits =
                        if up { &self.counters().incr_hits } else { &self.counters().decr_hits };
                    hits.add(1);
                    return Counted::Done { value, expires: storing.expires, cas };
                }
                Stored::NoMemory => return Counted::NoMemory,
                // Somebody was faster.
                _ => {}
            }
        }
    }

    /// Replaces exactly the item that was found.
    pub fn link_over(
        &mut self,
        storing: &Storing<'_>,
        value: [&[u8]; 2],
        found: &Found,
        marks: u32,
    ) -> Stored {
        let new = storing.item(value, marks, storing.new_cas);
        let hash = self.store.hash(storing.key);
        let place = found.seen.place;
        let put = self.store.put(&mut self.writer, &new, hash, |old| {
            old.is_some_and(|old| old.place == place && old.head == found.seen.head)
        });
        match put {
            Put::Stored(cas) => Stored::Done(cas),
            Put::Refused => Stored::Exists,
            Put::NoMemory => Stored::NoMemory,
        }
    }
}

/// The list of pieces that an item is, if it is one.
#[inline(always)]
pub fn large_of(store: &Store, seen: &Seen) -> Option<Large> {
    let is_list = seen.head.has(MARK_LARGE) && seen.head.value_len() == large::LIST_BYTES;
    is_list.then(|| list_of(store, seen))
}

#[cold]
fn list_of(store: &Store, seen: &Seen) -> Large {
    let mut bytes = [0; large::LIST_BYTES + SLACK_BYTES];
    store.copy_value(seen, &mut bytes);
    Large::from_bytes(&bytes)
}
