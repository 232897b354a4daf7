//! What the log's tests share: scratch directories, and a disk that runs full or fails on demand.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "tests damage files behind the log's back")]

use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::disk::{Access, Entry, Lock, Space};
use holdfast_env::{Disk, File, RealDisk};
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, Scope};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

/// A directory that goes away with the value.
pub struct Scratch(pub PathBuf);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir()
            .join(format!("holdfast-log-{}-{number}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        RealDisk.create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The real disk with faults: out of space after a number of written bytes, failing sync sites.
pub struct FaultDisk {
    pub faults: Arc<Faults>,
}

pub struct Faults {
    /// Bytes that may still be written.
    pub budget: AtomicI64,
    /// Files and directories that may still be opened; then the process has as many files and
    /// connections as it may have: EMFILE.
    pub descriptors: AtomicI64,
    /// The sync site that fails with an input/output error.
    pub failing: Mutex<Option<&'static str>>,
    /// Syncs do nothing: for tests that open a log thousands of times and cut no power.
    pub careless: AtomicBool,
    /// Every sync site passed, in order.
    pub sites: Mutex<Vec<&'static str>>,
    /// Bytes that were asked for by reads.
    pub read_bytes: AtomicU64,
}

impl FaultDisk {
    pub fn new() -> Arc<FaultDisk> {
        let faults = Faults {
            budget: AtomicI64::new(i64::MAX / 2),
            descriptors: AtomicI64::new(i64::MAX / 2),
            failing: Mutex::new(None),
            careless: AtomicBool::new(false),
            sites: Mutex::new(Vec::new()),
            read_bytes: AtomicU64::new(0),
        };
        Arc::new(FaultDisk { faults: Arc::new(faults) })
    }
}

impl Faults {
    fn spend(&self, bytes: usize) -> io::Result<()> {
        if self.budget.fetch_sub(bytes as i64, Ordering::Relaxed) < bytes as i64 {
            self.budget.fetch_add(bytes as i64, Ordering::Relaxed);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn descriptor(&self) -> io::Result<()> {
        match self.descriptors.fetch_sub(1, Ordering::Relaxed) {
            left if left > 0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(24)),
        }
    }

    fn site(&self, site: &'static str) -> io::Result<()> {
        self.sites.lock().unwrap().push(site);
        match *self.failing.lock().unwrap() {
            Some(failing) if failing == site => Err(io::Error::other("the device failed")),
            _ => Ok(()),
        }
    }
}

struct FaultFile(Arc<dyn File>, Arc<Faults>);

impl File for FaultFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.1.spend(buf.len())?;
        self.0.write_at(buf, offset)
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()> {
        self.1.spend(buf.len())?;
        self.1.site(site)?;
        if self.1.careless.load(Ordering::Relaxed) {
            return self.0.write_at(buf, offset);
        }
        self.0.write_at_durable(buf, offset, site)
    }
    fn sync(&self, site: &'static str) -> io::Result<()> {
        self.1.site(site)?;
        if self.1.careless.load(Ordering::Relaxed) { Ok(()) } else { self.0.sync(site) }
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.0.allocate(bytes)
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        self.faults.descriptor()?;
        Ok(Arc::new(FaultFile(RealDisk.create(path, access)?, self.faults.clone())))
    }
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        self.faults.descriptor()?;
        Ok(Arc::new(FaultFile(RealDisk.open(path, access)?, self.faults.clone())))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        RealDisk.list(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        RealDisk.exists(path)
    }
    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()> {
        self.faults.descriptor()?;
        self.faults.site(site)?;
        if self.faults.careless.load(Ordering::Relaxed) {
            return Ok(());
        }
        RealDisk.sync_dir(path, site)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        RealDisk.space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        RealDisk.lock(path)
    }
}

pub const SEGMENT_BYTES: u64 = 64 << 10;

/// Small segments, and no background sync that could come between.
pub fn options(drive: Drive) -> LogOptions {
    LogOptions {
        drive,
        segment_bytes: SEGMENT_BYTES,
        ordered_sync_ms: 3_600_000,
        ..LogOptions::default()
    }
}

pub fn open(directory: &Path, drive: Drive) -> EmbeddedLog {
    EmbeddedLog::open(Arc::new(RealDisk), directory, options(drive)).unwrap()
}

/// Appends one batch and performs it at once (with `Pump`, by pumping).
pub fn append(log: &EmbeddedLog, topic: &str, entries: &[&[u8]], mode: Mode) -> Result<Index> {
    let (send, receive) = mpsc::channel();
    let entries = entries.iter().map(|e| e.to_vec()).collect();
    log.append(topic, entries, mode, Box::new(move |r| send.send(r).unwrap()));
    loop {
        match receive.try_recv() {
            Ok(result) => return result.map(|indices| indices.first()),
            Err(_) if log.pump() => {}
            Err(_) => return receive.recv().unwrap().map(|indices| indices.first()),
        }
    }
}

pub fn read_all(log: &dyn Log, topic: &str) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut from = log.info(topic)?.first;
    loop {
        let page = log.read(topic, from, 7, 1 << 20, Scope::Written)?;
        let Some(last) = page.last() else { return Ok(all) };
        from = Index(last.0.0 + 1);
        all.extend(page.into_iter().map(|(i, b)| (i.0, b)));
    }
}

pub fn segment_path(directory: &Path, topic: &str, first: u64) -> PathBuf {
    directory.join("topics").join(topic.replace('/', "+")).join(format!("{first:020}.seg"))
}

pub fn read_bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

pub fn write_bytes(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

pub fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

/// Copies the files of a flat directory.
pub fn copy_dir(from: &Path, to: &Path) {
    RealDisk.create_dir_all(to).unwrap();
    for entry in RealDisk.list(from).unwrap() {
        if entry.is_dir {
            copy_dir(&from.join(&entry.name), &to.join(&entry.name));
        } else {
            std::fs::copy(from.join(&entry.name), to.join(&entry.name)).unwrap();
        }
    }
}
