//! A file system in memory for the store's tests: counts and checks writes, fails on demand.
#![allow(dead_code)]

use holdfast_base::Result;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Cookie, Durability, FileId, Generation, Pointer, Slot};
use holdfast_chunk::*;
use holdfast_env::disk::{Access, Entry, Lock, Space};
use holdfast_env::{Disk, File, SeededRng};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

pub type Content = Arc<Mutex<Vec<u8>>>;

#[derive(Default)]
pub struct MemDisk {
    pub files: Mutex<BTreeMap<PathBuf, Content>>,
    pub shared: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    pub fail_writes: AtomicBool,
    pub fail_syncs: AtomicBool,
    /// The process has as many files and connections as it may have: EMFILE.
    pub no_descriptor: AtomicBool,
    /// 0: one GiB.
    pub total_bytes: AtomicU64,
    pub writes: Mutex<Vec<Range<u64>>>,
    /// Called once, in the midst of the next write.
    pub in_next_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub struct MemFile {
    content: Content,
    faults: Arc<Faults>,
}

fn not_found() -> io::Error {
    ErrorKind::NotFound.into()
}

impl MemDisk {
    pub fn new() -> Arc<MemDisk> {
        Arc::new(MemDisk::default())
    }

    pub fn content(&self, path: &Path) -> Content {
        self.files.lock().unwrap()[path].clone()
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.lock().unwrap().keys().cloned().collect()
    }

    /// The one file with this ending.
    pub fn find(&self, ending: &str) -> PathBuf {
        let found: Vec<_> =
            self.paths().into_iter().filter(|p| p.to_string_lossy().ends_with(ending)).collect();
        assert_eq!(found.len(), 1, "{ending}: {found:?}");
        found[0].clone()
    }

    /// A copy that shares nothing.
    pub fn copy(&self) -> Arc<MemDisk> {
        let copy = MemDisk::new();
        for (path, content) in &*self.files.lock().unwrap() {
            let content = Arc::new(Mutex::new(content.lock().unwrap().clone()));
            copy.files.lock().unwrap().insert(path.clone(), content);
        }
        copy
    }

    fn used(&self) -> u64 {
        self.files.lock().unwrap().values().map(|c| c.lock().unwrap().len() as u64).sum()
    }
}

impl Disk for MemDisk {
    fn create(&self, path: &Path, _: Access) -> io::Result<Arc<dyn File>> {
        if self.shared.no_descriptor.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(24));
        }
        let mut files = self.files.lock().unwrap();
        if files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let content = Content::default();
        files.insert(path.to_owned(), content.clone());
        Ok(Arc::new(MemFile { content, faults: self.shared.clone() }))
    }
    fn open(&self, path: &Path, _: Access) -> io::Result<Arc<dyn File>> {
        let content = self.files.lock().unwrap().get(path).cloned().ok_or_else(not_found)?;
        Ok(Arc::new(MemFile { content, faults: self.shared.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let content = files.remove(from).ok_or_else(not_found)?;
        files.insert(to.to_owned(), content);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.lock().unwrap().remove(path).map(drop).ok_or_else(not_found)
    }
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let files = self.files.lock().unwrap();
        let here = files.iter().filter(|(p, _)| p.parent() == Some(path));
        let entry = |(p, c): (&PathBuf, &Content)| Entry {
            name: p.file_name().unwrap().to_string_lossy().into_owned(),
            is_dir: false,
            bytes: c.lock().unwrap().len() as u64,
        };
        Ok(here.map(entry).collect())
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.files.lock().unwrap().contains_key(path))
    }
    fn sync_dir(&self, _: &Path, _: &'static str) -> io::Result<()> {
        Ok(())
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        let total_bytes = match self.shared.total_bytes.load(Ordering::SeqCst) {
            0 => 1 << 30,
            bytes => bytes,
        };
        let free_bytes = total_bytes.saturating_sub(self.used());
        Ok(Space { free_bytes, total_bytes, free_files: u64::MAX })
    }
    fn lock(&self, _: &Path) -> io::Result<Box<dyn Lock>> {
        Ok(Box::new(Unlocked))
    }
}

/// Nobody else is there.
struct Unlocked;

impl Lock for Unlocked {
    fn is_in_place(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.lock().unwrap();
        let rest = content.get(offset as usize..).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.faults.fail_writes.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is on fire"));
        }
        let then = self.faults.in_next_write.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
        let mut content = self.content.lock().unwrap();
        let end = offset as usize + buf.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].copy_from_slice(buf);
        self.faults.writes.lock().unwrap().push(offset..end as u64);
        Ok(())
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()> {
        self.write_at(buf, offset)?;
        self.sync(site)
    }
    fn sync(&self, _: &'static str) -> io::Result<()> {
        if self.faults.fail_syncs.load(Ordering::SeqCst) {
            return Err(io::Error::other("sync failed"));
        }
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().unwrap().len() as u64)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.content.lock().unwrap().resize(bytes as usize, 0);
        Ok(())
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        let len = content.len().max(bytes as usize);
        content.resize(len, 0);
        Ok(())
    }
}

pub const CHUNK: ChunkId = ChunkId(7);

pub fn config() -> StoreConfig {
    StoreConfig {
        reserve_bytes: 1 << 20,
        commit_threads: 0,
        spare_file: false,
        journal_segment_bytes: 0,
        ..StoreConfig::new("/store")
    }
}

pub fn open(disk: &Arc<MemDisk>) -> (Store, Recovered) {
    open_with(disk, 0)
}

/// With a journal of such segments, for which the first small append asks.
pub fn open_with(disk: &Arc<MemDisk>, journal_segment_bytes: u64) -> (Store, Recovered) {
    let config = StoreConfig { journal_segment_bytes, ..config() };
    Store::open(disk.clone(), Arc::new(SeededRng::new(1)), config).unwrap()
}

pub fn spec(kind: ChunkKind, capacity_bytes: u64) -> ChunkSpec {
    ChunkSpec { capacity_bytes, ..ChunkSpec::new(CHUNK, kind, 99) }
}

/// Checksums as a client computes them.
pub fn crcs(at: u64, mut body: &[u8]) -> Vec<u32> {
    let mut crcs = Vec::new();
    let mut room = 65536 - (at % 65536) as usize;
    while !body.is_empty() || crcs.is_empty() {
        let (piece, rest) = body.split_at(room.min(body.len()));
        crcs.push(crc32c(piece));
        (body, room) = (rest, 65536);
    }
    crcs
}

/// Marsaglia's xorshift: golden files hold these very bytes.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(step).collect()
}

pub fn append_raw(store: &Store, at: u64, body: &[u8], durability: Durability) -> Result<u64> {
    let (tx, rx) = mpsc::channel();
    let done = Box::new(move |result| tx.send(result).unwrap());
    store.append_raw(CHUNK, at, Box::new(body.to_vec()), crcs(at, body), durability, done);
    store.pump();
    rx.recv().unwrap()
}

pub fn needle(i: u64) -> Needle {
    Needle { owner: FileId(i), cookie: Cookie(i as u32 + 1000), flags: 3, hint: b"name".to_vec() }
}

pub fn append_needle(store: &Store, i: u64, body: &[u8]) -> Result<Slot> {
    let (tx, rx) = mpsc::channel();
    let done = Box::new(move |result| tx.send(result).unwrap());
    let class = Durability::Durable;
    store.append_needle(CHUNK, needle(i), Box::new(body.to_vec()), crcs(0, body), class, done);
    store.pump();
    rx.recv().unwrap()
}

pub fn pointer(slot: u32, i: u64) -> Pointer {
    Pointer { chunk: CHUNK, slot: Slot(slot), cookie: Cookie(i as u32 + 1000) }
}

/// Reads and checks as a client does.
pub fn read_raw(store: &Store, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let read = store.read_raw(CHUNK, Generation(0), offset, bytes)?;
    let out = read.bytes.to_vec();
    let plain: Vec<u32> = read
        .crcs
        .iter()
        .enumerate()
        .map(|(i, crc)| {
            let block = offset / 65536 + i as u64;
            crc ^ holdfast_base::checksum::stamp(CHUNK, read.generation, block)
        })
        .collect();
    if !out.is_empty() && plain != crcs(offset, &out) {
        return Err(holdfast_base::Error::corrupt("the client's check failed"));
    }
    Ok(out)
}
