//! What tests of threads in any order share: who runs them in many orders, what is drawn by the
//! order's seed, and a disk whose power fails at any moment. Only under the feature `interleaved`,
//! which `make interleaved` turns on.
//!
//! A crate of its own, and not tests of the crates that it runs: under that feature the crates
//! below are built once more, and here nothing else is above them.
#![cfg(feature = "interleaved")]
#![forbid(unsafe_code)]

use holdfast_env::disk::{Access, Disk, Entry, File, Lock, Space};
use holdfast_env::locks::HoldMutex;
use holdfast_env::sync::thread;
use shuttle::Runner;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Runs `run` under as many orders of its threads as `HOLDFAST_ORDERS` says, drawn from
/// `HOLDFAST_SEED`. The first order that panics, or in which nobody can go on, ends the test.
pub fn in_many_orders(run: fn()) {
    let number = |name: &str, usual: u64| {
        std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
    };
    let (orders, seed) = (number("HOLDFAST_ORDERS", 300), number("HOLDFAST_SEED", 1));
    let config = || {
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        config
    };
    // Threads whose turns are drawn alike seldom leave one behind for long: half of the orders let
    // one thread go on until one of a few drawn moments comes.
    let random = RandomScheduler::new_from_seed(seed, orders as usize / 2);
    Runner::new(random, config()).run(run);
    let few = PctScheduler::new_from_seed(seed, 3, orders as usize / 2);
    Runner::new(few, config()).run(run);
}

/// Drawn by the seed of the order.
pub fn below(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}

/// Others have had some turns by then.
pub fn after_a_while<T>(work: impl FnOnce() -> T) -> T {
    (0..below(300)).for_each(|_| thread::yield_now());
    work()
}

/// What survives a power cut is drawn sector by sector.
const SECTOR: usize = 4096;

/// A disk in memory that lets another thread go on at each of its operations, and keeps beside
/// what each file shows what was synced of it. Names are durable at once; bytes and lengths are
/// not.
#[derive(Default)]
pub struct CutDisk {
    /// As all locks here one of the standard library's: never held where threads change turns.
    tree: Mutex<Tree>,
    /// What writes and syncs fail with, for as long as it is there.
    fault: Arc<Mutex<Option<ErrorKind>>>,
    locked: Arc<AtomicBool>,
}

#[derive(Default)]
struct Tree {
    files: BTreeMap<PathBuf, Content>,
    directories: BTreeSet<PathBuf>,
}

type Content = Arc<Mutex<Bytes>>;

#[derive(Clone, Default)]
struct Bytes {
    now: Vec<u8>,
    synced: Vec<u8>,
}

struct CutFile {
    content: Content,
    fault: Arc<Mutex<Option<ErrorKind>>>,
}

/// Ends with the value.
struct Locked(Arc<AtomicBool>);

impl Lock for Locked {
    fn is_in_place(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    let end = at + new.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(new);
}

impl Bytes {
    /// What was synced, and of the rest any sectors, or none.
    fn cut(&self, rest: bool) -> Vec<u8> {
        let mut left = self.synced.clone();
        for (i, sector) in self.now.chunks(SECTOR).enumerate() {
            let at = i * SECTOR;
            if rest && self.synced.get(at..at + sector.len()) != Some(sector) && below(2) == 0 {
                put(&mut left, at, sector);
            }
        }
        left
    }
}

impl CutDisk {
    pub fn new() -> Arc<CutDisk> {
        Arc::default()
    }

    /// What is there after a power cut at this moment. Nobody else has a turn meanwhile.
    pub fn cut(&self) -> Arc<CutDisk> {
        let rest = below(2) == 0;
        let tree = self.tree.held();
        let after = |(path, content): (&PathBuf, &Content)| {
            let left = content.held().cut(rest);
            let left = Bytes { now: left.clone(), synced: left };
            (path.clone(), Arc::new(Mutex::new(left)))
        };
        let files = tree.files.iter().map(after).collect();
        let tree = Tree { files, directories: tree.directories.clone() };
        Arc::new(CutDisk { tree: Mutex::new(tree), ..CutDisk::default() })
    }

    /// From now on writes and syncs fail with this, or succeed again.
    pub fn fail(&self, fault: Option<ErrorKind>) {
        *self.fault.held() = fault;
    }

    fn file(&self, content: Content) -> Arc<dyn File> {
        Arc::new(CutFile { content, fault: self.fault.clone() })
    }
}

impl Disk for CutDisk {
    fn create(&self, path: &Path, _: Access) -> io::Result<Arc<dyn File>> {
        thread::yield_now();
        let content = Content::default();
        let mut tree = self.tree.held();
        if tree.files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        tree.files.insert(path.to_owned(), content.clone());
        Ok(self.file(content))
    }
    fn open(&self, path: &Path, _: Access) -> io::Result<Arc<dyn File>> {
        thread::yield_now();
        let content = self.tree.held().files.get(path).cloned();
        content.map(|content| self.file(content)).ok_or(ErrorKind::NotFound.into())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        thread::yield_now();
        let mut tree = self.tree.held();
        let content = tree.files.remove(from).ok_or(ErrorKind::NotFound)?;
        tree.files.insert(to.to_owned(), content);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        thread::yield_now();
        let removed = self.tree.held().files.remove(path);
        removed.map(drop).ok_or(ErrorKind::NotFound.into())
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.tree.held().directories.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        thread::yield_now();
        let tree = self.tree.held();
        let entry = |at: &PathBuf, is_dir, bytes| {
            let name = at.file_name()?.to_string_lossy().into_owned();
            (at.parent() == Some(path)).then_some(Entry { name, is_dir, bytes })
        };
        let files =
            tree.files.iter().filter_map(|(at, c)| entry(at, false, c.held().now.len() as u64));
        let directories = tree.directories.iter().filter_map(|at| entry(at, true, 0));
        let mut all: Vec<_> = files.chain(directories).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        thread::yield_now();
        let tree = self.tree.held();
        Ok(tree.files.contains_key(path) || tree.directories.contains(path))
    }
    fn sync_dir(&self, _: &Path, _: &'static str) -> io::Result<()> {
        thread::yield_now();
        Ok(())
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        let total_bytes = 1 << 30;
        let used: usize = self.tree.held().files.values().map(|c| c.held().now.len()).sum();
        let free_bytes = total_bytes - used as u64;
        Ok(Space { free_bytes, total_bytes, free_files: u64::MAX })
    }
    fn lock(&self, _: &Path) -> io::Result<Box<dyn Lock>> {
        thread::yield_now();
        match self.locked.swap(true, Ordering::SeqCst) {
            true => Err(ErrorKind::WouldBlock.into()),
            false => Ok(Box::new(Locked(self.locked.clone()))),
        }
    }
}

impl CutFile {
    /// Others have a turn; then it is decided whether the operation fails.
    fn turn(&self) -> io::Result<()> {
        thread::yield_now();
        self.fault.held().map_or(Ok(()), |fault| Err(fault.into()))
    }
}

impl File for CutFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        thread::yield_now();
        let content = self.content.held();
        let rest = content.now.get(offset as usize..).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.turn()?;
        put(&mut self.content.held().now, offset as usize, buf);
        Ok(())
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, _: &'static str) -> io::Result<()> {
        self.write_at(buf, offset)?;
        self.turn()?;
        put(&mut self.content.held().synced, offset as usize, buf);
        Ok(())
    }
    fn sync(&self, _: &'static str) -> io::Result<()> {
        self.turn()?;
        {
            let mut content = self.content.held();
            content.synced = content.now.clone();
        }
        thread::yield_now();
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.content.held().now.len() as u64)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.turn()?;
        self.content.held().now.resize(bytes as usize, 0);
        Ok(())
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.turn()?;
        let mut content = self.content.held();
        let len = content.now.len().max(bytes as usize);
        content.now.resize(len, 0);
        Ok(())
    }
}
