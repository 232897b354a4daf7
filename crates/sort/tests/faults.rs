//! Sorts on a simulated disk that is full, fails, or changes what it stores: a clear sentence, the
//! input untouched, no output under its name, no temporary file left.

use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::{Access, Disk, File, Lock};
use holdfast_sim::disk::{SimDisk, SimDiskOptions};
use holdfast_sort::gray::generate::{self, Request, Shape};
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job, Report};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const RECORDS: u64 = 300_000;
const MEMORY: u64 = 32 << 20;

fn disk_with_input() -> SimDisk {
    let disk = SimDisk::with_options(1, SimDiskOptions::default());
    for directory in ["/in", "/out", "/t0", "/t1"] {
        disk.create_dir_all(Path::new(directory)).unwrap();
    }
    let shape = Shape { ascii: false, skew: true };
    let request = Request { start: 0, records: RECORDS, shape, threads: 2 };
    generate::file(&disk, Path::new("/in/data"), &request).unwrap();
    disk
}

fn sort(disk: &dyn Disk, memory_bytes: u64) -> Result<Report> {
    let format = Format::Fixed(100);
    let job = Job {
        inputs: vec![Input::File(PathBuf::from("/in/data"))],
        output: Output::File(PathBuf::from("/out/sorted")),
        format,
        order: Order::range(format, 0, Some(10), false).unwrap(),
        unique: false,
        memory_bytes,
        temp: vec![PathBuf::from("/t0"), PathBuf::from("/t1")],
        threads: 2,
        pinned: false,
        first: None,
        resume: false,
    };
    job::run(disk, job, &Progress::default())
}

fn names(disk: &dyn Disk) -> Vec<String> {
    ["/out", "/t0", "/t1"]
        .iter()
        .flat_map(|directory| disk.list(Path::new(directory)).unwrap())
        .map(|entry| entry.name)
        .collect()
}

#[track_caller]
fn failed(disk: &dyn Disk, result: Result<Report>, kind: Kind, words: &[&str]) {
    let e: Error = result.unwrap_err();
    assert_eq!(e.kind, kind, "{e}");
    for word in words {
        assert!(e.message.contains(word), "`{word}` is missing in: {e}");
    }
    assert_eq!(names(disk), Vec::<String>::new(), "after: {e}");
}

/// Lets so many calls to temporary or output files pass, and fails or garbles the next.
struct Faulty {
    disk: SimDisk,
    what: &'static str,
    calls: Arc<AtomicU64>,
}

struct FaultyFile {
    file: Arc<dyn File>,
    what: &'static str,
    calls: Arc<AtomicU64>,
}

impl Faulty {
    fn new(disk: &SimDisk, what: &'static str, after: u64) -> Faulty {
        Faulty { disk: disk.clone(), what, calls: Arc::new(AtomicU64::new(after)) }
    }

    fn wrap(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let (directory, what) = self.what.split_once(' ').unwrap();
        if !path.starts_with(directory) {
            return file;
        }
        Arc::new(FaultyFile { file, what, calls: self.calls.clone() })
    }
}

impl FaultyFile {
    fn is_hit(&self, what: &str) -> bool {
        // A disk that is removed answers nothing from then on.
        if self.what == "gone" {
            let left = self.calls.load(Ordering::Relaxed);
            self.calls.store(left.saturating_sub(1), Ordering::Relaxed);
            return left == 0;
        }
        self.what == what && self.calls.fetch_sub(1, Ordering::Relaxed) == 0
    }
}

impl File for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_hit("read") {
            return Err(io::Error::from_raw_os_error(5));
        }
        let n = self.file.read_at(buf, offset)?;
        if self.is_hit("flip") {
            buf[n / 2] ^= 4;
        }
        Ok(n)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.is_hit("write") {
            return Err(io::Error::from_raw_os_error(5));
        }
        if self.is_hit("full") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_at(buf, offset)
    }
    fn write_at_durable(&self, buf: &[u8], offset: u64, site: &'static str) -> io::Result<()> {
        self.file.write_at_durable(buf, offset, site)
    }
    fn sync(&self, site: &'static str) -> io::Result<()> {
        if self.is_hit("sync") {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.sync(site)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }
}

impl Disk for Faulty {
    fn create(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(path, self.disk.create(path, access)?))
    }
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(path, self.disk.open(path, access)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<holdfast_env::disk::Entry>> {
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn sync_dir(&self, path: &Path, site: &'static str) -> io::Result<()> {
        self.disk.sync_dir(path, site)
    }
    fn space(&self, path: &Path) -> io::Result<holdfast_env::disk::Space> {
        self.disk.space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.disk.lock(path)
    }
}

#[test]
fn a_failing_disk_ends_the_sort_and_leaves_nothing() {
    let disk = disk_with_input();
    for (what, after, words) in [
        ("/t0 write", 0, &["write temporary file `/t0/"][..]),
        ("/t1 write", 7, &["write temporary file `/t1/"]),
        ("/t0 full", 5, &["write temporary file `/t0/", "no storage space"]),
        ("/t1 gone", 12, &["temporary file `/t1/"]),
        ("/t0 gone", 60, &["temporary file `/t0/"]),
        ("/t0 read", 9, &["read temporary file `/t0/"]),
        ("/in read", 20, &["read `/in/data`"]),
        ("/out write", 3, &["write `/out/sorted`"]),
        ("/out full", 11, &["write `/out/sorted`", "no storage space"]),
        ("/out sync", 0, &["write `/out/sorted`"]),
    ] {
        let kind = if what.ends_with("full") { Kind::Full } else { Kind::Retry };
        let faulty = Faulty::new(&disk, what, after);
        failed(&disk, sort(&faulty, MEMORY), kind, words);
    }
    // A bit that changes on a temporary disk does not reach the output.
    let faulty = Faulty::new(&disk, "/t1 flip", 10);
    failed(&disk, sort(&faulty, MEMORY), Kind::Corrupt, &["partition", "bytes differ"]);
    // The input is whole: without faults it is sorted.
    let report = sort(&disk, MEMORY).unwrap();
    assert!(!report.in_memory && report.records_out == RECORDS, "{report:?}");
    assert_eq!(names(&disk), ["sorted"]);
}

#[test]
fn space_is_checked_before_anything_is_read() {
    let disk = disk_with_input();
    let bytes = RECORDS * 100;
    for (capacity, words) in [
        // Not even the output, then not the temporary files beside it.
        (bytes + bytes / 2, &["reserve", "/out/sorted"][..]),
        (2 * bytes + bytes / 8, &["temporary files", "/t0"]),
    ] {
        disk.set_capacity(capacity);
        failed(&disk, sort(&disk, MEMORY), Kind::Full, words);
    }
    disk.set_capacity(1 << 40);
    assert!(sort(&disk, MEMORY).is_ok());
}

#[test]
fn what_fits_in_memory_needs_no_temporary_file() {
    let disk = disk_with_input();
    let faulty = Faulty::new(&disk, "/t0 write", 0);
    let report = sort(&faulty, 256 << 20).unwrap();
    assert!(report.in_memory && report.records_out == RECORDS, "{report:?}");
    assert_eq!(names(&disk), ["sorted"]);
}
