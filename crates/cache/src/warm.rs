//! Warm restart: a cache that ends in order writes its items to a file, and the next one begins
//! with them. While a cache runs, the file only says so: after a crash, what it held before would
//! be outdated, and nothing is served from it. The format is in docs/formats/cache.md.

use crate::item::{FREQUENCY_MAX, Head, KEY_BYTES_MAX, MARK_CAS, MARK_FLAGS, MARK_LARGE};
use crate::reclaim::Live;
use crate::settings::Shared;
use crate::store::{NewItem, Restored, Store};
use holdfast_base::checksum::crc32c;
use holdfast_base::{Error, Result};
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::disk::{Access, Disk, File, Lock, ReplaceSites, replace_file};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAGIC: &[u8; 8] = b"HOLDCACH";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// `length, number, checksum` before each block.
const FRAME_BYTES: usize = 12;
/// Items of one block, at most.
const BLOCK_BYTES: usize = 1 << 20;
/// Of an item: head, expiry, counts.
const RECORD_BYTES: usize = 9;
const FETCHED: u8 = 1 << 4;
const CAS_SEEN: u8 = 1 << 5;
const SITES: ReplaceSites = ReplaceSites { data: "cache.warm.mark", name: "cache.warm.name" };

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A cache runs, or did not end in order.
    InUse = 0,
    Complete = 1,
}

/// What is known beside the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    version: u32,
    state: State,
    blocks: u64,
    items: u64,
    /// Segments opened so far: later cas values must be larger.
    opened: u64,
    next_large: u64,
    /// Seconds since 1970 of a `flush_all` that is still to come; 0 for none.
    flush_at: u64,
    piece_bytes: u32,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&(self.state as u32).to_le_bytes());
        for word in [self.blocks, self.items, self.opened, self.next_large, self.flush_at] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.piece_bytes.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Nothing if the bytes are no header of a version that we know.
    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let is_right = bytes.starts_with(MAGIC)
            && u32_at(8) == VERSION
            && u32_at(60) == crc32c(&bytes[..HEADER_BYTES - 4]);
        is_right.then(|| Header {
            version: u32_at(8),
            state: if u32_at(12) == 1 { State::Complete } else { State::InUse },
            blocks: u64_at(16),
            items: u64_at(24),
            opened: u64_at(32),
            next_large: u64_at(40),
            flush_at: u64_at(48),
            piece_bytes: u32_at(56),
        })
    }
}

/// The file of one cache, locked.
pub struct Warm {
    disk: Arc<dyn Disk>,
    file: PathBuf,
    _lock: Box<dyn Lock>,
}

impl Warm {
    /// Takes the file, and its items into an empty store. Says what it found, for people.
    pub fn begin(
        disk: &Arc<dyn Disk>,
        file: &Path,
        store: &Store,
        shared: &Shared,
    ) -> Result<(Warm, String)> {
        let doing = |e: Error| e.context(format_args!("keep the cache in `{}`", file.display()));
        let lock = disk.lock(&file.with_extension("lock")).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => {
                doing(Error::exists("another cache uses it: give each its own"))
            }
            _ => doing(e.into()),
        })?;
        let warm = Warm { disk: disk.clone(), file: file.to_owned(), _lock: lock };
        let note = match warm.load(store, shared).map_err(doing)? {
            Ok(note) => note,
            Err(why) => {
                // Whatever was taken so far.
                store.flush();
                format!("the cache starts empty: {why}")
            }
        };
        warm.mark(store).map_err(doing)?;
        Ok((warm, note))
    }

    /// Says that a cache runs. Durable: after a power cut, too, older items must not come back.
    fn mark(&self, store: &Store) -> Result<()> {
        let header = Header {
            version: VERSION,
            state: State::InUse,
            blocks: 0,
            items: 0,
            opened: 0,
            next_large: 0,
            flush_at: 0,
            piece_bytes: store.piece_bytes() as u32,
        };
        Ok(replace_file(&*self.disk, &self.file, &header.to_bytes(), SITES)?)
    }

    /// The note; or why nothing can be had from the file.
    fn load(&self, store: &Store, shared: &Shared) -> Result<std::result::Result<String, String>> {
        let path = self.file.display();
        if !self.disk.exists(&self.file)? {
            return Ok(Err(format!("`{path}` is new")));
        }
        let file = self.disk.open(&self.file, Access::Cached)?;
        let len = file.len()?;
        if len == 0 {
            return Ok(Err(format!("`{path}` is new")));
        }
        let mut bytes = [0; HEADER_BYTES];
        let n = file.read_at(&mut bytes, 0)?;
        if n < HEADER_BYTES || !bytes.starts_with(MAGIC) {
            return Err(Error::exists(
                "the file is no cache's of Holdfast: it would be overwritten: give another name, or remove it",
            ));
        }
        let Some(header) = Header::from_bytes(&bytes) else {
            return Ok(Err(format!("`{path}` is damaged, or of another version of Holdfast")));
        };
        if header.state == State::InUse {
            return Ok(Err(format!("the last one with `{path}` did not end in order")));
        }
        match Loader::new(store, shared, &header).run(&*file, len) {
            Ok((items, left)) => {
                let left = match left {
                    0 => String::new(),
                    n => format!("; {n} had expired, or do not fit"),
                };
                Ok(Ok(format!("{items} items are back from `{path}`{left}")))
            }
            Err(e) if e.kind == holdfast_base::Kind::Corrupt => {
                Ok(Err(format!("`{path}` is damaged: {e}")))
            }
            Err(e) => Err(e),
        }
    }

    /// Writes all items. Called when no thread serves any more. Says how many there are.
    pub fn save(&self, store: &Store, shared: &Shared) -> Result<u64> {
        let doing = |e: Error| {
            e.context(format_args!(
                "keep the items in `{}` (the next cache starts empty)",
                self.file.display()
            ))
        };
        let temporary = self.file.with_extension("tmp");
        let saved = self.save_as(&temporary, store, shared);
        let saved = saved.and_then(|items| {
            self.disk.rename(&temporary, &self.file)?;
            Ok(items)
        });
        if saved.is_err() {
            // It is of no use; left over, it is replaced by the next start.
            let _ = self.disk.remove(&temporary);
        }
        saved.map_err(doing)
    }

    fn save_as(&self, temporary: &Path, store: &Store, shared: &Shared) -> Result<u64> {
        if self.disk.exists(temporary)? {
            self.disk.remove(temporary)?;
        }
        let file = self.disk.create(temporary, Access::Cached)?;
        let mut saver = Saver {
            store,
            file: &*file,
            at: HEADER_BYTES as u64,
            block: Vec::with_capacity(BLOCK_BYTES + FRAME_BYTES),
            blocks: 0,
            items: 0,
        };
        let epoch_s = shared.epoch_s();
        store.each_kept(|live| saver.item(live, epoch_s))?;
        saver.write_block()?;
        let flush_at = shared.flush_at.load(Ordering::Relaxed);
        let header = Header {
            version: VERSION,
            state: State::Complete,
            blocks: saver.blocks,
            items: saver.items,
            opened: store.segments.pool().opened,
            next_large: shared.next_large(),
            flush_at: if flush_at == 0 { 0 } else { flush_at + epoch_s as u64 },
            piece_bytes: store.piece_bytes() as u32,
        };
        file.write_at(&header.to_bytes(), 0)?;
        Ok(saver.items)
    }
}

struct Saver<'a> {
    store: &'a Store,
    file: &'a dyn File,
    at: u64,
    /// Room for the frame, then items.
    block: Vec<u8>,
    blocks: u64,
    items: u64,
}

impl Saver<'_> {
    fn item(&mut self, live: &Live, epoch_s: i64) -> Result<()> {
        let (store, head) = (self.store, live.head);
        if self.block.len() + RECORD_BYTES + head.bytes() + 8 > BLOCK_BYTES + FRAME_BYTES {
            self.write_block()?;
        }
        if self.block.is_empty() {
            self.block.resize(FRAME_BYTES, 0);
        }
        let stores_cas = head.has(MARK_CAS) || live.slot.is_cas_seen();
        let word = head.word | if stores_cas { MARK_CAS } else { 0 };
        let expires = match head.expires {
            0 => 0,
            expires => u32::try_from(i64::from(expires) + epoch_s).unwrap_or(u32::MAX).max(1),
        };
        let counts = live.slot.frequency() as u8
            | if live.slot.is_fetched() { FETCHED } else { 0 }
            | if live.slot.is_cas_seen() { CAS_SEEN } else { 0 };
        self.block.extend_from_slice(&word.to_le_bytes());
        self.block.extend_from_slice(&expires.to_le_bytes());
        self.block.push(counts);
        if head.has(MARK_FLAGS) {
            self.block.extend_from_slice(&store.flags(live.place, head).to_le_bytes());
        }
        if stores_cas {
            self.block.extend_from_slice(&store.cas(live.place, head).to_le_bytes());
        }
        let (at, len) = (self.block.len(), head.key_len() + head.value_len());
        self.block.resize(at + len + SLACK_BYTES, 0);
        store.segments.arena.copy_out(live.place + head.key_at(), len, &mut self.block[at..]);
        self.block.truncate(at + len);
        self.items += 1;
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let len = (self.block.len() - FRAME_BYTES) as u32;
        self.block[..4].copy_from_slice(&len.to_le_bytes());
        self.block[4..8].copy_from_slice(&(self.blocks as u32).to_le_bytes());
        let crc = checksum(&self.block);
        self.block[8..12].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(&self.block, self.at)?;
        self.at += self.block.len() as u64;
        self.blocks += 1;
        self.block.clear();
        Ok(())
    }
}

/// Of a block's length, number and items.
fn checksum(block: &[u8]) -> u32 {
    crc32c(&block[..8]) ^ crc32c(&block[FRAME_BYTES..])
}

struct Loader<'a> {
    store: &'a Store,
    shared: &'a Shared,
    header: &'a Header,
    /// Not taken: expired meanwhile, or too long for this memory.
    left: u64,
    taken: u64,
}

fn damaged(what: &str) -> Error {
    Error::corrupt(what)
}

impl<'a> Loader<'a> {
    fn new(store: &'a Store, shared: &'a Shared, header: &'a Header) -> Loader<'a> {
        Loader { store, shared, header, left: 0, taken: 0 }
    }

    /// Items taken, and not taken.
    fn run(mut self, file: &dyn File, len: u64) -> Result<(u64, u64)> {
        let (store, header) = (self.store, self.header);
        store.segments.pool().opened = header.opened;
        self.shared.skip_large(header.next_large);
        let mut writer = store.writer(0);
        let (mut at, mut block) = (HEADER_BYTES as u64, Vec::new());
        for number in 0..header.blocks {
            block.resize(FRAME_BYTES, 0);
            file.read_exact_at(&mut block, at)?;
            let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| block[i + j]));
            let (bytes, crc) = (word(0) as usize, word(8));
            if u64::from(word(4)) != number || bytes > BLOCK_BYTES || at + bytes as u64 > len {
                return Err(damaged("a block is not where it must be"));
            }
            block.resize(FRAME_BYTES + bytes, 0);
            file.read_exact_at(&mut block[FRAME_BYTES..], at + FRAME_BYTES as u64)?;
            if checksum(&block) != crc {
                return Err(damaged("a block's checksum is wrong"));
            }
            let mut items = &block[FRAME_BYTES..];
            while !items.is_empty() {
                items = self.item(&mut writer, items).ok_or_else(|| damaged("an item is cut"))?;
            }
            at += block.len() as u64;
        }
        if at != len || self.taken + self.left != header.items {
            return Err(damaged("items are missing"));
        }
        store.retire(&mut writer);
        if header.flush_at > 0 {
            let at = i64::try_from(header.flush_at).unwrap_or(i64::MAX) - self.shared.epoch_s();
            if at <= i64::from(store.now()) {
                // It was due while no cache ran.
                store.flush();
            } else {
                self.shared.flush_at.store(at as u64, Ordering::Relaxed);
            }
        }
        Ok((self.taken, self.left))
    }

    /// Takes the first item; the rest. Nothing if it is no item.
    fn item<'b>(&mut self, writer: &mut crate::store::Writer, bytes: &'b [u8]) -> Option<&'b [u8]> {
        fn u32_of(bytes: &mut &[u8]) -> Option<u32> {
            let (first, rest) = bytes.split_first_chunk::<4>()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*first))
        }
        let (store, mut bytes) = (self.store, bytes);
        let (word, expires) = (u32_of(&mut bytes)?, u32_of(&mut bytes)?);
        let (counts, rest) = bytes.split_first()?;
        bytes = rest;
        let head = Head { word, expires };
        let flags = if head.has(MARK_FLAGS) { u32_of(&mut bytes)? } else { 0 };
        let cas = if head.has(MARK_CAS) {
            Some(u64::from(u32_of(&mut bytes)?) | u64::from(u32_of(&mut bytes)?) << 32)
        } else {
            None
        };
        if head.key_len() > KEY_BYTES_MAX {
            return None;
        }
        let (key, rest) = bytes.split_at_checked(head.key_len())?;
        let (value, rest) = rest.split_at_checked(head.value_len())?;
        let live_s = i64::from(expires) - self.shared.epoch_s();
        let is_expired = expires != 0 && live_s <= i64::from(store.now());
        let fits = value.len() <= store.large_bytes()
            && (!head.has(MARK_LARGE) || self.header.piece_bytes as usize == store.piece_bytes());
        let restored = Restored {
            item: NewItem {
                key,
                flags,
                expires: if expires == 0 { 0 } else { live_s.clamp(1, u32::MAX.into()) as u32 },
                value: [value, &[]],
                marks: word & !(MARK_FLAGS | MARK_CAS) & crate::item::MARKS,
                cas,
            },
            stores_flags: head.has(MARK_FLAGS),
            frequency: u64::from(counts & FREQUENCY_MAX as u8),
            is_fetched: counts & FETCHED != 0,
            is_cas_seen: counts & CAS_SEEN != 0,
        };
        if !is_expired && fits && store.restore(writer, &restored) {
            self.taken += 1;
        } else {
            self.left += 1;
        }
        Some(rest)
    }
}

#[cfg(test)]
mod tests;
