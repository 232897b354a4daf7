//! The mark of how far a topic's last segment was written: a start does not read zeros that nobody wrote
//! over, and finds all the same whatever is there to be found.

mod common;

use common::*;
use holdfast_base::Kind;
use holdfast_base::ids::Index;
use holdfast_env::trial::{Entered, Trial};
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, REACH_BYTES};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const T: &str = "scribe/web";
const SECTOR: usize = 4096;

/// Marks as close to what is written as they can be: a sector.
fn close_marks() -> Entered {
    Trial::new().with(&REACH_BYTES, 1).enter()
}

/// A log of so many entries, a sector each, as a kill leaves it.
fn killed(scratch: &Scratch, entries: u64) -> PathBuf {
    let (alive, killed) = (scratch.0.join("alive"), scratch.0.join("killed"));
    let log = open(&alive, Drive::Pump);
    log.create(T).unwrap();
    for i in 1..=entries {
        let entry = format!("entry {i}");
        assert_eq!(append(&log, T, &[entry.as_bytes()], Mode::Synced), Ok(Index(i)));
    }
    copy_dir(&alive, &killed);
    killed
}

fn mark_path(directory: &Path) -> PathBuf {
    segment_path(directory, T, 1).with_file_name("reach")
}

fn entries(directory: &Path) -> Result<usize, Kind> {
    read_all(&open(directory, Drive::Pump), T).map(|all| all.len()).map_err(|e| e.kind)
}

/// Of the third of three commits, a sector ahead. It must be readable for ever.
#[test]
fn the_golden_mark_is_read_and_reproduced() {
    let _close = close_marks();
    let scratch = Scratch::new("golden");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/reach.v1");
    let mark = read_bytes(&mark_path(&killed(&scratch, 3)));
    assert!(mark == read_bytes(&golden), "the mark's format changed");
}

/// 256 topics of a few entries were 16 GiB of zeros, all of which a start read: 45 seconds.
#[test]
fn a_start_reads_no_zeros_that_nobody_wrote_over() {
    let scratch = Scratch::new("zeros");
    let disk = FaultDisk::new();
    let options = LogOptions { segment_bytes: 16 << 20, ..options(Drive::Pump) };
    let start = || {
        let before = disk.faults.read_bytes.load(Ordering::Relaxed);
        let log = EmbeddedLog::open(disk.clone(), &scratch.0, options).unwrap();
        (log, disk.faults.read_bytes.load(Ordering::Relaxed) - before)
    };
    let (log, _) = start();
    log.create(T).unwrap();
    append(&log, T, &[b"one"], Mode::Synced).unwrap();
    drop(log);
    let (log, read) = start();
    assert!(read < 1 << 20, "{read} bytes were read for one entry");
    // A log of a build before marks: looked through once.
    drop(log);
    remove(&mark_path(&scratch.0));
    let (log, read) = start();
    assert!(read > 16 << 20, "{read} bytes were read, and nobody knew how far it was written");
    drop(log);
    let (log, read) = start();
    assert!(read < 1 << 20, "{read} bytes were read again");
    // However long it is, what is ahead of it is not.
    let large = vec![7; 1 << 20];
    for _ in 0..8 {
        append(&log, T, &[&large], Mode::Synced).unwrap();
    }
    drop(log);
    let (log, read) = start();
    assert!(read < 14 << 20, "{read} bytes were read for 8 MiB");
    assert_eq!(read_all(&log, T).unwrap().len(), 9);
}

/// What was acknowledged and is zeros now: a commit behind it says so, wherever the mark was when either
/// was written.
#[test]
fn zeros_in_front_of_a_commit_are_damage_wherever_the_mark_is() {
    let _close = close_marks();
    let scratch = Scratch::new("hole");
    let killed = killed(&scratch, 12);
    let path = segment_path(&killed, T, 1);
    let good = read_bytes(&path);
    for first in 1..12 {
        for last in first..12 {
            let mut bad = good.clone();
            bad[first * SECTOR..(last + 1) * SECTOR].fill(0);
            write_bytes(&path, &bad);
            let found = entries(&killed);
            assert_eq!(found, Err(Kind::Corrupt), "commits {first} to {last} of 12 are zeros");
        }
    }
    write_bytes(&path, &good);
    assert_eq!(entries(&killed), Ok(12));
}

/// Of a mark that is missing, torn, damaged or of older times nothing follows but that all is looked at.
#[test]
fn a_mark_that_is_wrong_hides_nothing() {
    let _close = close_marks();
    let scratch = Scratch::new("wrong");
    let killed = killed(&scratch, 9);
    let (path, mark) = (segment_path(&killed, T, 1), mark_path(&killed));
    let (good, good_mark) = (read_bytes(&path), read_bytes(&mark));
    let mut old = good.clone();
    old[4 * SECTOR..].fill(0);
    let mut torn = good.clone();
    torn[9 * SECTOR + 70] ^= 1;
    torn[9 * SECTOR - 20..9 * SECTOR].fill(1);
    let mut marks = vec![Vec::new(), good_mark[..20].to_vec(), vec![0; SECTOR]];
    for bit in 0..40 * 8 {
        let mut flipped = good_mark.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        marks.push(flipped);
    }
    // One that was written when the third entry came, as a build that writes none leaves it.
    let other = Scratch::new("short");
    marks.push(read_bytes(&mark_path(&self::killed(&other, 3))));
    for (at, bad) in marks.iter().enumerate() {
        write_bytes(&path, &good);
        write_bytes(&mark, bad);
        assert_eq!(entries(&killed), Ok(9), "mark {at}");
        let mut hole = good.clone();
        hole[8 * SECTOR..9 * SECTOR].fill(0);
        write_bytes(&path, &hole);
        write_bytes(&mark, bad);
        assert_eq!(entries(&killed), Err(Kind::Corrupt), "mark {at}");
        write_bytes(&path, &torn);
        write_bytes(&mark, bad);
        let log = open(&killed, Drive::Pump);
        assert_eq!((read_all(&log, T).unwrap().len(), log.recovered().len()), (8, 1), "mark {at}");
    }
    // A file that was put back from an older copy.
    write_bytes(&path, &old);
    write_bytes(&mark, &good_mark);
    assert_eq!(entries(&killed), Ok(3));
}

/// Segments that follow have marks of their own, and what others have on the disk is no hindrance.
#[test]
fn a_log_of_many_segments_and_threads_comes_back_with_close_marks() {
    let _close = close_marks();
    let scratch = Scratch::new("many");
    for drive in [Drive::Pump, Drive::Threads] {
        let dir = scratch.0.join(format!("{drive:?}"));
        let mut all = Vec::new();
        for life in 0..3u8 {
            let log = open(&dir, drive);
            log.create(T).unwrap();
            for i in 0..40u8 {
                let entry = vec![life; 40 * usize::from(i)];
                let mode = if i % 3 == 0 { Mode::Ordered } else { Mode::Synced };
                append(&log, T, &[&entry], mode).unwrap();
                all.push((all.len() as u64 + 1, entry));
            }
            assert_eq!(read_all(&log, T).unwrap(), all);
        }
        let log = open(&dir, drive);
        assert_eq!((read_all(&log, T).unwrap(), log.recovered().len()), (all, 0));
        assert!(log.info(T).unwrap().segments > 3);
    }
}
