//! A disk in memory that lets another thread go on at each of its operations, and keeps beside
//! each file what a power cut would leave of it: what was synced.

use crate::common::MemDisk;
use holdfast_env::disk::{Access, Entry, Space};
use holdfast_env::{Disk, File};
use shuttle::thread;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

type Synced = Arc<Mutex<Vec<u8>>>;

/// Names are durable at once; bytes and lengths are not.
#[derive(Default)]
pub struct CutDisk {
    now: Arc<MemDisk>,
    synced: Mutex<BTreeMap<PathBuf, Synced>>,
}

struct CutFile {
    now: Arc<dyn File>,
    synced: Synced,
}

impl CutDisk {
    pub fn new() -> Arc<CutDisk> {
        Arc::default()
    }

    /// What is there after a power cut at this moment.
    pub fn cut(&self) -> Arc<CutDisk> {
        let after = CutDisk::new();
        for (path, synced) in &*self.synced.lock().unwrap() {
            let content = synced.lock().unwrap().clone();
            let now = Arc::new(Mutex::new(content.clone()));
            after.now.files.lock().unwrap().insert(path.clone(), now);
            let synced = Arc::new(Mutex::new(content));
            after.synced.lock().unwrap().insert(path.clone(), synced);
        }
        after
    }
}

impl Disk for CutDisk {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        thread::yield_now();
        let now = self.now.create(path, access)?;
        let synced = Synced::default();
        self.synced.lock().unwrap().insert(path.to_owned(), synced.clone());
        Ok(Arc::new(CutFile { now, synced }))
    }
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        thread::yield_now();
        let now = self.now.open(path, access)?;
        let synced = self.synced.lock().unwrap()[path].clone();
        Ok(Arc::new(CutFile { now, synced }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        thread::yield_now();
        self.now.rename(from, to)?;
        let mut synced = self.synced.lock().unwrap();
        let moved = synced.remove(from).unwrap();
        synced.insert(to.to_owned(), moved);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        thread::yield_now();
        self.synced.lock().unwrap().remove(path);
        self.now.remove(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.now.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        thread::yield_now();
        self.now.list(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        thread::yield_now();
        self.now.exists(path)
    }
    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()> {
        thread::yield_now();
        self.now.sync_dir(path, site)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.now.space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.now.lock(path)
    }
}

impl File for CutFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        thread::yield_now();
        self.now.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        thread::yield_now();
        self.now.write_at(buf, offset)
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, _: &'static str) -> io::Result<()> {
        thread::yield_now();
        self.now.write_at(buf, offset)?;
        thread::yield_now();
        let mut synced = self.synced.lock().unwrap();
        let end = offset as usize + buf.len();
        if synced.len() < end {
            synced.resize(end, 0);
        }
        synced[offset as usize..end].copy_from_slice(buf);
        Ok(())
    }
    fn sync(&self, _: &'static str) -> io::Result<()> {
        thread::yield_now();
        let mut content = vec![0; self.now.len()? as usize];
        self.now.read_at(&mut content, 0)?;
        *self.synced.lock().unwrap() = content;
        thread::yield_now();
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.now.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        thread::yield_now();
        self.now.set_len(bytes)
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        thread::yield_now();
        self.now.allocate(bytes)
    }
}
