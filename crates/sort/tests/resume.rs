//! Sorts that are killed, or lose the power, at many places, and go on: nothing has the output's
//! name before all of it is there, the input stays as it was, the resumed sort gives what an
//! undisturbed one gives, and nothing else is left.

use holdfast_base::Result;
use holdfast_env::disk::{Access, Disk};
use holdfast_sim::disk::{SimDisk, SimDiskOptions};
use holdfast_sort::gray::generate::{self, Request, Shape};
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job, Report};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use std::path::{Path, PathBuf};

const RECORDS: u64 = 250_000;
const DIRECTORIES: [&str; 4] = ["/in", "/out", "/t0", "/t1"];

fn sort(disk: &SimDisk, resume: bool, reverse: bool) -> Result<Report> {
    let format = Format::Fixed(100);
    let job = Job {
        inputs: vec![Input::File(PathBuf::from("/in/data"))],
        output: Output::File(PathBuf::from("/out/sorted")),
        format,
        order: Order::range(format, 0, Some(10), reverse).unwrap(),
        unique: false,
        memory_bytes: 32 << 20,
        temp: vec![PathBuf::from("/t0"), PathBuf::from("/t1")],
        threads: 2,
        pinned: false,
        first: None,
        resume,
    };
    job::run(disk, job, &Progress::default())
}

fn names(disk: &SimDisk) -> Vec<String> {
    let entries = DIRECTORIES.iter().flat_map(|directory| disk.list(Path::new(directory)).unwrap());
    entries.map(|entry| entry.name).collect()
}

fn content(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open_to_read(Path::new(path), Access::Cached).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// How many operations a sort takes, and after how many of them it could be resumed.
struct Operations {
    all: u64,
    begun: u64,
}

impl Operations {
    /// So far through what comes after the first phase.
    fn later(&self, part: u64, of: u64) -> u64 {
        self.begun + (self.all - self.begun) * part / of
    }
}

/// A disk with the input alone, the sorted bytes, and the operations that sorting takes.
fn start() -> (SimDisk, Vec<u8>, Operations) {
    let disk = SimDisk::with_options(1, SimDiskOptions::default());
    for directory in DIRECTORIES {
        disk.create_dir_all(Path::new(directory)).unwrap();
    }
    disk.sync_dir(Path::new("/"), "test").unwrap();
    let shape = Shape { ascii: false, skew: true };
    let request = Request { start: 0, records: RECORDS, shape, threads: 2 };
    generate::file(&disk, Path::new("/in/data"), &request).unwrap();
    disk.sync_dir(Path::new("/in"), "test").unwrap();
    let whole = disk.durable_copy();
    let report = sort(&whole, false, false).unwrap();
    assert!(!report.in_memory && report.kept_bytes > 0, "{report:?}");
    let manifest = whole.trace().iter().position(|line| line.contains("manifest"));
    let operations = Operations { all: whole.operations(), begun: manifest.unwrap() as u64 };
    (disk, content(&whole, "/out/sorted"), operations)
}

#[test]
fn what_was_killed_or_lost_its_power_anywhere_goes_on_and_gives_the_same() {
    let (disk, sorted, operations) = start();
    let input = content(&disk, "/in/data");
    let mut resumed = 0;
    for i in 0..12 {
        let copy = disk.durable_copy();
        copy.crash_at(match i {
            0..4 => operations.begun * (i + 1) / 5,
            _ => operations.later(i - 3, 12),
        });
        assert!(sort(&copy, false, false).is_err(), "{i}");
        let mut left = if i % 3 == 2 { copy.power_cut(i) } else { copy.process_kill() };
        assert!(!left.exists(Path::new("/out/sorted")).unwrap(), "{i}");
        if i % 2 == 0 {
            // Again, while it goes on.
            left.crash_at(operations.all / 8);
            let _ = sort(&left, true, false);
            left = left.process_kill();
        }
        let report = sort(&left, true, false).unwrap_or_else(|e| panic!("{i}: {e}"));
        resumed += usize::from(report.resumed);
        assert_eq!(report.records_out, RECORDS, "{i}");
        assert!(content(&left, "/out/sorted") == sorted, "{i}: other bytes");
        assert!(content(&left, "/in/data") == input, "{i}: the input changed");
        assert_eq!(names(&left), ["data", "sorted"], "{i}");
    }
    assert!(resumed > 2, "{resumed} were resumed");
}

/// What a sort left that had come past its first phase. How many operations that phase takes
/// depends on how the threads shared it: the next try is killed later.
fn killed_when_it_could_be_resumed(disk: &SimDisk, operations: &Operations) -> SimDisk {
    let tries = (10..20).map(|part| {
        let copy = disk.durable_copy();
        copy.crash_at(operations.later(part, 20));
        // None: it was over before.
        sort(&copy, false, false).err().map(|_| copy.process_kill())
    });
    let manifest = |left: &SimDisk| names(left).iter().any(|name| name.ends_with(".manifest"));
    tries.flatten().find(manifest).expect("a sort that wrote its manifest before it was killed")
}

#[test]
fn a_plain_sort_after_a_kill_starts_anew_and_another_sort_is_not_resumed() {
    let (disk, sorted, operations) = start();
    let left = killed_when_it_could_be_resumed(&disk, &operations);
    let e = sort(&left, true, true).unwrap_err();
    assert!(e.message.contains("resume") && e.message.contains("another"), "{e}");
    let report = sort(&left, false, false).unwrap();
    assert!(!report.resumed, "{report:?}");
    assert!(content(&left, "/out/sorted") == sorted);
    assert_eq!(names(&left), ["data", "sorted"]);
    // Nothing is left to resume: it is a sort like any other.
    assert!(!sort(&left, true, false).unwrap().resumed);
}

/// A record that was changed passed unseen where its partition was in the temporary files, and the
/// output was that of the first version without a word.
#[test]
fn an_input_that_was_written_to_meanwhile_is_noticed_wherever_the_record_was() {
    let (disk, _, operations) = start();
    let left = killed_when_it_could_be_resumed(&disk, &operations);
    let file = left.open(Path::new("/in/data"), Access::Cached).unwrap();
    // The payload of one record: the sample need not see it, and no partition gets another.
    file.write_at(b"changed", 100 * (RECORDS / 16 * 9) + 50).unwrap();
    let e = sort(&left, true, false).unwrap_err();
    assert!(e.message.contains("an input was written to"), "{e}");
    assert!(!sort(&left, false, false).unwrap().resumed);
    assert_eq!(names(&left), ["data", "sorted"]);
}

/// Takes the lines back that say what is in the output for good. They are written without a sync: a
/// power cut may leave the first phase alone, however far the output had come.
fn forget_what_is_done(left: &SimDisk) {
    let manifest = names(left).into_iter().find(|name| name.ends_with(".manifest")).unwrap();
    let path = format!("/t0/{manifest}");
    let text = String::from_utf8(content(left, &path)).unwrap();
    let begun = text.find("\ndone ").map_or(text.len(), |at| at + 1);
    assert!(text[..begun].lines().any(|line| line.starts_with("distributed ")), "{text}");
    left.open(Path::new(&path), Access::Cached).unwrap().set_len(begun as u64).unwrap();
}

/// As where somebody has set the file's time back: what is read again is compared with what was
/// read before.
#[test]
fn an_input_that_changed_unseen_is_not_mixed_into_the_output() {
    let (disk, sorted, operations) = start();
    // How much of what was in memory is in the output by any operation is the threads' chance: all
    // of it has to be read again.
    let killed = || {
        let left = killed_when_it_could_be_resumed(&disk, &operations);
        forget_what_is_done(&left);
        left
    };
    let (same, left) = (killed(), killed());
    assert!(sort(&same, true, false).unwrap().resumed);
    assert!(content(&same, "/out/sorted") == sorted);
    // The first bit of keys between the blocks that are sampled: some leave partitions that were in
    // memory.
    for block in 0..8 {
        for record in (0..40).map(|i| RECORDS / 16 + RECORDS / 8 * block + i) {
            left.flip_bit(Path::new("/in/data"), 100 * record, 7).unwrap();
        }
    }
    let e = sort(&left, true, false).unwrap_err();
    assert!(e.message.contains("the input is not what it was"), "{e}");
}
