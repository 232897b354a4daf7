//! The embedded log on real files: what is acknowledged comes back, damage is refused, torn tails
//! are cut and kept, and a full or failing disk is survived.

mod common;

use common::*;
use holdfast_base::ids::Index;
use holdfast_base::{Indices, Kind};
use holdfast_env::RealDisk;
use holdfast_log::{Drive, EmbeddedLog, Log, Mode, Scope};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};

const T: &str = "ns/0";

fn filled(directory: &std::path::Path, entries: u64) -> Vec<(u64, Vec<u8>)> {
    let log = open(directory, Drive::Pump);
    log.create(T).unwrap();
    for i in 1..=entries {
        let bytes = format!("entry {i}");
        assert_eq!(append(&log, T, &[bytes.as_bytes()], Mode::Synced), Ok(Index(i)));
    }
    read_all(&log, T).unwrap()
}

#[test]
fn what_was_appended_is_read_back_after_reopening() {
    let dir = Scratch::new("reopen");
    for drive in [Drive::Threads, Drive::Pump] {
        let root = dir.0.join(format!("{drive:?}"));
        let log = open(&root, drive);
        log.create(T).unwrap();
        // Enough for several segments, in batches of three, of very different sizes.
        let batches: Vec<Vec<Vec<u8>>> = (0..40u64)
            .map(|b| (0..3).map(|e| vec![b as u8; (b * 97 + e * 1500) as usize]).collect())
            .collect();
        for (b, batch) in batches.iter().enumerate() {
            let entries: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            let mode = if b % 3 == 0 { Mode::Ordered } else { Mode::Synced };
            assert_eq!(append(&log, T, &entries, mode), Ok(Index(b as u64 * 3 + 1)));
        }
        let expected: Vec<(u64, Vec<u8>)> = (1..).zip(batches.into_iter().flatten()).collect();
        assert_eq!(read_all(&log, T).unwrap(), expected);
        let before = log.info(T).unwrap();
        assert!(before.segments > 3, "{before:?}");
        drop(log);
        let log = open(&root, drive);
        assert_eq!(read_all(&log, T).unwrap(), expected);
        let after = log.info(T).unwrap();
        assert_eq!((after.first, after.next), (before.first, before.next));
        assert_eq!(log.recovered(), []);
        assert_eq!(log.topics(), [T]);
        assert_eq!(append(&log, T, &[b"more"], Mode::Synced), Ok(before.next));
    }
}

/// Opening looks at the headers of most files only, so a file that was gone from the middle, or a
/// flip in one, was known to nobody until somebody read there.
#[expect(clippy::disallowed_methods, reason = "damages files behind the log's back")]
#[test]
fn verifying_finds_what_opening_does_not_look_at() {
    let dir = Scratch::new("verify");
    let log = open(&dir.0, Drive::Pump);
    log.create(T).unwrap();
    for i in 0..120u64 {
        append(&log, T, &[&[i as u8; 3000]], Mode::Synced).unwrap();
    }
    assert_eq!(log.verify(), []);
    drop(log);
    let mut segments: Vec<_> = std::fs::read_dir(dir.0.join("topics/ns+0"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    segments.sort();
    assert!(segments.len() > 4, "{segments:?}");
    let first =
        |i: usize| -> u64 { segments[i].file_stem().unwrap().to_str().unwrap().parse().unwrap() };
    let gone = std::fs::read(&segments[2]).unwrap();
    std::fs::remove_file(&segments[2]).unwrap();
    let log = open(&dir.0, Drive::Pump);
    let bad = log.verify();
    let [(topic, e)] = &bad[..] else { panic!("{bad:?}") };
    assert_eq!((topic.as_str(), e.kind), (T, Kind::Corrupt));
    let missing = format!("entries {} to {} are in no file", first(2), first(3) - 1);
    assert!(e.message.contains(&missing), "{e}");
    // What lies in front of it, in the file before, and behind can be read, a page up to the hole too.
    let page = log.read(T, Index(first(1)), 1000, 1 << 20, Scope::Durable).unwrap();
    assert_eq!(page.len() as u64, first(2) - first(1));
    assert_eq!(log.read(T, Index(first(2) - 1), 9, 1 << 20, Scope::Durable).unwrap().len(), 1);
    for hole in [first(2), first(3) - 1] {
        let e = log.read(T, Index(hole), 9, 1 << 20, Scope::Durable).unwrap_err();
        assert!(e.kind == Kind::Corrupt && e.message.contains(&missing), "{e}");
    }
    assert!(log.read(T, Index(first(3)), 1, 1, Scope::Durable).is_ok());
    drop(log);
    std::fs::write(&segments[2], &gone).unwrap();
    let mut flipped = std::fs::read(&segments[1]).unwrap();
    // Within the first entry's bytes.
    flipped[4096 + 1000] ^= 1;
    std::fs::write(&segments[1], flipped).unwrap();
    let bad = open(&dir.0, Drive::Pump).verify();
    let [(_, e)] = &bad[..] else { panic!("{bad:?}") };
    assert!(e.message.contains(&format!("entry {} fails its checksum", first(1))), "{e}");
}

#[test]
fn many_threads_get_every_index_once_and_acknowledgements_in_order() {
    let dir = Scratch::new("threads");
    let log = Arc::new(open(&dir.0, Drive::Threads));
    log.create(T).unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let (log, acknowledged) = (log.clone(), acknowledged.clone());
            scope.spawn(move || {
                for i in 0..50u8 {
                    let (send, receive) = mpsc::channel();
                    let acknowledged = acknowledged.clone();
                    let done = Box::new(move |r: holdfast_base::Result<Indices>| {
                        acknowledged.lock().unwrap().push(r.clone().unwrap().first().0);
                        send.send(r).unwrap();
                    });
                    let mode = if i % 5 == 0 { Mode::Ordered } else { Mode::Synced };
                    log.append(T, vec![vec![thread, i]], mode, done);
                    let index = receive.recv().unwrap().unwrap().first();
                    let read = log.read(T, index, 1, 100, Scope::Written).unwrap();
                    assert_eq!(read, [(index, vec![thread, i])]);
                }
            });
        }
    });
    let acknowledged = acknowledged.lock().unwrap();
    assert_eq!(*acknowledged, (1..=400).collect::<Vec<u64>>());
    log.sync(T).unwrap();
    assert_eq!(log.info(T).unwrap().durable, Index(401));
}

/// A log was once unlocked as soon as a callback let go of it, while the thread that called still
/// delivered answers and wrote.
#[test]
fn a_log_that_a_callback_lets_go_is_locked_until_its_thread_has_ended() {
    let dir = Scratch::new("last-callback");
    let log = Arc::new(open(&dir.0, Drive::Threads));
    log.create(T).unwrap();
    let (last, mine) = (log.clone(), log);
    let (gone, is_gone) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (held, is_held) = mpsc::channel::<()>();
    let answered = move |result| {
        // The one that hands the entry over has let go before.
        is_held.recv().unwrap_err();
        drop(last);
        gone.send(result).unwrap();
        goes_on.recv().unwrap_err();
    };
    mine.append(T, vec![b"one".to_vec()], Mode::Synced, Box::new(answered));
    drop(mine);
    drop(held);
    assert_eq!(is_gone.recv().unwrap(), Ok(Indices::run(Index(1), 1)));
    let again = || EmbeddedLog::open(Arc::new(RealDisk), &dir.0, options(Drive::Pump));
    assert_eq!(again().err().map(|e| e.kind), Some(Kind::Retry));
    drop(go_on);
    let log = loop {
        match again() {
            Ok(log) => break log,
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(read_all(&log, T).unwrap(), [(1, b"one".to_vec())]);
}

#[test]
fn ordered_entries_are_durable_only_after_a_sync() {
    let dir = Scratch::new("ordered");
    let disk = FaultDisk::new();
    let log = EmbeddedLog::open(disk.clone(), &dir.0, options(Drive::Pump)).unwrap();
    log.create(T).unwrap();
    append(&log, T, &[b"a"], Mode::Synced).unwrap();
    disk.faults.sites.lock().unwrap().clear();
    append(&log, T, &[b"b"], Mode::Ordered).unwrap();
    assert!(disk.faults.sites.lock().unwrap().is_empty());
    let info = log.info(T).unwrap();
    assert_eq!((info.next, info.durable), (Index(3), Index(2)));
    assert_eq!(log.read(T, Index(2), 9, 999, Scope::Durable).unwrap(), []);
    assert_eq!(log.read(T, Index(2), 9, 999, Scope::Written).unwrap().len(), 1);
    append(&log, T, &[b"c"], Mode::Synced).unwrap();
    assert_eq!(*disk.faults.sites.lock().unwrap(), ["log.sync-ordered"]);
    assert_eq!(log.info(T).unwrap().durable, Index(4));
    append(&log, T, &[b"d"], Mode::Synced).unwrap();
    assert_eq!(disk.faults.sites.lock().unwrap().last(), Some(&"log.commit"));
    append(&log, T, &[b"e"], Mode::Ordered).unwrap();
    log.sync(T).unwrap();
    assert_eq!(log.info(T).unwrap().durable, Index(6));
}

#[test]
fn the_background_sync_makes_ordered_entries_durable() {
    let dir = Scratch::new("background");
    let mut o = options(Drive::Threads);
    o.ordered_sync_ms = 1;
    let log = EmbeddedLog::open(FaultDisk::new(), &dir.0, o).unwrap();
    log.create(T).unwrap();
    append(&log, T, &[b"a"], Mode::Ordered).unwrap();
    let (send, receive) = mpsc::channel();
    log.tail(T, Index(1), Box::new(move |r| send.send(r).unwrap()));
    receive.recv().unwrap().unwrap();
    assert_eq!(log.info(T).unwrap().durable, Index(2));
}

#[test]
fn a_tail_is_woken_once_when_its_entry_is_durable() {
    let dir = Scratch::new("tail");
    let log = open(&dir.0, Drive::Pump);
    log.create(T).unwrap();
    let woken = Arc::new(Mutex::new(Vec::new()));
    for from in [1, 2, 3] {
        let woken = woken.clone();
        log.tail(T, Index(from), Box::new(move |r| woken.lock().unwrap().push((from, r.is_ok()))));
    }
    append(&log, T, &[b"a", b"b"], Mode::Synced).unwrap();
    assert_eq!(*woken.lock().unwrap(), [(1, true), (2, true)]);
    drop(log);
    assert_eq!(woken.lock().unwrap().last(), Some(&(3, false)), "closing ends a tail");
}

/// Every single bit of a small log that was closed in order, flipped: the log is refused, or
/// everything is delivered. (The last commit once looked torn, and was cut.)
#[test]
fn a_flipped_bit_is_refused_or_reported_and_never_delivered() {
    let dir = Scratch::new("flip");
    let expected = filled(&dir.0, 3);
    let path = segment_path(&dir.0, T, 1);
    let good = read_bytes(&path);
    let used = 5 * 4096;
    let disk = FaultDisk::new();
    disk.faults.careless.store(true, Ordering::Relaxed);
    let (mut refused, mut reported, mut harmless) = (0, 0, 0);
    // Each bit of what holds something, one bit of each byte elsewhere near it.
    for at in (0..used).filter(|at| at % 4096 < 160 || at % 512 == 7 || at % 4096 > 4090) {
        for bit in if at % 4096 < 80 { 0..8 } else { 3..4 } {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            write_bytes(&path, &bad);
            let log = EmbeddedLog::open(disk.clone(), &dir.0, options(Drive::Pump)).unwrap();
            match read_all(&log, T) {
                Err(e) => {
                    assert_eq!(e.kind, Kind::Corrupt, "{e}");
                    assert!(e.message.contains("seg") && e.message.contains("offset"), "{e}");
                    refused += 1;
                }
                Ok(entries) => {
                    assert_eq!(entries, expected, "byte {at} bit {bit}");
                    if !log.recovered().is_empty() {
                        assert!(at >= 4 * 4096, "only the closing commit is taken for torn");
                        reported += 1;
                    } else {
                        harmless += 1;
                        // Padding only: no byte there is ever read.
                        assert!(good[at] == 0 && at % 4096 >= 64, "byte {at}");
                    }
                }
            }
        }
    }
    assert!(refused > 1000 && reported > 500 && harmless > 10, "{refused} {reported} {harmless}");
}

#[test]
fn a_torn_tail_is_cut_kept_and_reported() {
    let dir = Scratch::new("torn");
    let expected = filled(&dir.0, 3);
    let path = segment_path(&dir.0, T, 1);
    let mut bytes = read_bytes(&path);
    bytes[4 * 4096 - 4096 + 70] ^= 1;
    // The power was cut before the log could be closed.
    bytes[4 * 4096..5 * 4096].fill(0);
    write_bytes(&path, &bytes);
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(read_all(&log, T).unwrap(), expected[..2]);
    let [cut] = log.recovered() else { panic!("{:?}", log.recovered()) };
    assert_eq!((cut.topic.as_str(), cut.offset, cut.bytes), (T, 3 * 4096, 4096));
    assert_eq!(read_bytes(&cut.kept), bytes[3 * 4096..4 * 4096]);
    assert!(read_bytes(&path)[3 * 4096..].iter().all(|&b| b == 0), "the place is zeros again");
    assert_eq!(append(&log, T, &[b"new"], Mode::Synced), Ok(Index(3)));
    drop(log);
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(log.recovered(), []);
    assert_eq!(read_all(&log, T).unwrap()[2], (3, b"new".to_vec()));
}

/// The last sector of a file that was cut was looked at by nobody: what had been acknowledged in it was
/// gone, and the log said that all was well.
#[test]
fn a_file_that_was_cut_within_a_sector_is_read_or_told() {
    // Header and entry have 79 bytes of a sector, the rest is padding.
    for (gone, left) in [(1, 3), (4000, 3), (4096 - 79, 3), (4096 - 78, 2), (4096, 2)] {
        let dir = Scratch::new("cut");
        let expected = filled(&dir.0, 3);
        let path = segment_path(&dir.0, T, 1);
        let bytes = read_bytes(&path);
        // A header, and a commit an entry: the one that closes is not needed.
        write_bytes(&path, &bytes[..4 * 4096 - gone]);
        let log = open(&dir.0, Drive::Pump);
        assert_eq!(read_all(&log, T).unwrap(), expected[..left], "{gone} bytes are gone");
        let is_told = !log.recovered().is_empty();
        assert_eq!(is_told, left < 3 && gone < 4096, "{gone} bytes are gone");
        let next = Index(left as u64 + 1);
        assert_eq!(append(&log, T, &[b"new"], Mode::Synced), Ok(next));
        drop(log);
        let log = open(&dir.0, Drive::Pump);
        assert_eq!(log.recovered(), []);
        assert_eq!(read_all(&log, T).unwrap()[left], (next.0, b"new".to_vec()));
    }
}

/// What follows a closing commit is a commit as any other, and a log to which nothing was appended
/// since it was closed is not closed again.
#[test]
fn a_closed_log_goes_on_and_is_closed_once() {
    for drive in [Drive::Threads, Drive::Pump] {
        let dir = Scratch::new("closed");
        filled(&dir.0, 3);
        let path = segment_path(&dir.0, T, 1);
        let closed = read_bytes(&path);
        for _ in 0..3 {
            drop(open(&dir.0, drive));
        }
        assert_eq!(read_bytes(&path), closed);
        let log = open(&dir.0, drive);
        assert_eq!(append(&log, T, &[b"entry 4"], Mode::Synced), Ok(Index(4)));
        let read = log.read(T, Index(4), 7, 1 << 20, Scope::Durable).unwrap();
        assert_eq!(read, [(Index(4), b"entry 4".to_vec())]);
        drop(log);
        let log = open(&dir.0, drive);
        assert_eq!(log.recovered(), []);
        let wanted: Vec<_> = (1..5).map(|i| (i, format!("entry {i}").into_bytes())).collect();
        assert_eq!(read_all(&log, T).unwrap(), wanted);
        assert_eq!(log.info(T).unwrap().bytes, 6 * 4096, "four entries, closed twice");
    }
}

/// A power cut may keep a later unsynced commit and lose an earlier one. That is no damage:
/// neither was promised. A synced commit in the same place would be proof of it.
#[test]
fn unsynced_commits_may_be_lost_in_any_combination_and_synced_ones_may_not() {
    for (mode, lost) in [(Mode::Ordered, true), (Mode::Synced, false)] {
        let dir = Scratch::new("holes");
        let log = open(&dir.0, Drive::Pump);
        log.create(T).unwrap();
        append(&log, T, &[b"base"], Mode::Synced).unwrap();
        for entry in [b"one", b"two"] {
            append(&log, T, &[entry], mode).unwrap();
        }
        drop(log);
        let path = segment_path(&dir.0, T, 1);
        let mut bytes = read_bytes(&path);
        bytes[2 * 4096..3 * 4096].fill(0);
        write_bytes(&path, &bytes);
        let log = open(&dir.0, Drive::Pump);
        match read_all(&log, T) {
            Ok(entries) => {
                assert!(lost);
                assert_eq!(entries, [(1, b"base".to_vec())]);
                assert_eq!(log.recovered()[0].bytes, 2 * 4096);
            }
            Err(e) => {
                assert!(!lost && e.message.contains("entry 2 was acknowledged"), "{e}");
                assert_eq!(read_bytes(&path), bytes, "nothing was changed");
                assert!(append(&log, T, &[b"x"], Mode::Synced).is_err());
            }
        }
    }
}

/// Opening a topic reads the commits of its last segment only: what is wrong with earlier ones is
/// found by who reads them, and hurts nobody else.
#[test]
fn damage_in_an_earlier_segment_is_refused_when_it_is_read() {
    let dir = Scratch::new("earlier");
    filled(&dir.0, 40);
    let log = open(&dir.0, Drive::Pump);
    log.create("other").unwrap();
    append(&log, "other", &[b"x"], Mode::Synced).unwrap();
    assert!(log.info(T).unwrap().segments > 2);
    drop(log);
    let path = segment_path(&dir.0, T, 1);
    let good = read_bytes(&path);
    let last = good.len() - 4096;
    for at in [4096 + 20, 4096 + 70, last + 20] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        write_bytes(&path, &bad);
        let log = open(&dir.0, Drive::Pump);
        let e = read_all(&log, T).unwrap_err();
        assert!(e.kind == Kind::Corrupt && e.message.contains(".seg"), "byte {at}: {e}");
        assert_eq!(log.read(T, Index(16), 99, 1 << 20, Scope::Durable).unwrap().len(), 25);
        assert_eq!(read_all(&log, "other").unwrap().len(), 1);
    }
    let mut bad = good.clone();
    bad[10] ^= 4;
    write_bytes(&path, &bad);
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(log.info(T).unwrap_err().kind, Kind::Corrupt, "its header");
    assert_eq!(read_all(&log, "other").unwrap().len(), 1);
    drop(log);
    write_bytes(&path, &good);
    remove(&segment_path(&dir.0, T, 16));
    let log = open(&dir.0, Drive::Pump);
    let read = |from| log.read(T, Index(from), 99, 1 << 20, Scope::Durable);
    assert_eq!(read(1).unwrap().len(), 15, "what is in front of a missing segment");
    let e = read(16).unwrap_err();
    assert_eq!(e.kind, Kind::Corrupt, "a missing segment: {e}");
}

/// A snapshot makes up for what is damaged. What could not be read just now is not: it is there the
/// next time.
#[test]
fn a_disk_that_fails_while_a_topic_is_opened_is_not_taken_for_damage() {
    let dir = Scratch::new("not-damage");
    filled(&dir.0, 3);
    let disk = FaultDisk::new();
    *disk.faults.failing.lock().unwrap() = Some("log.recovered-names");
    let passes = |_: &str| {
        *disk.faults.failing.lock().unwrap() = None;
        Some(Index(2))
    };
    let log = EmbeddedLog::open_covered(disk.clone(), &dir.0, options(Drive::Pump), &passes);
    let log = log.unwrap();
    assert!(log.info(T).unwrap_err().message.contains("the device failed"));
    assert_eq!(log.passed_over(), []);
    drop(log);
    assert_eq!(read_all(&open(&dir.0, Drive::Pump), T).unwrap().len(), 3);
}

#[test]
fn damage_after_opening_is_an_error_and_never_bytes() {
    let dir = Scratch::new("later");
    filled(&dir.0, 3);
    let log = open(&dir.0, Drive::Pump);
    let path = segment_path(&dir.0, T, 1);
    let mut bytes = read_bytes(&path);
    bytes[2 * 4096 + 73] ^= 1;
    write_bytes(&path, &bytes);
    assert_eq!(log.read(T, Index(1), 1, 99, Scope::Durable).unwrap().len(), 1);
    let e = log.read(T, Index(2), 1, 99, Scope::Durable).unwrap_err();
    assert!(e.kind == Kind::Corrupt && e.message.contains("entry 2"), "{e}");
}

#[test]
fn trimming_deletes_whole_segments_and_holds_after_reopening() {
    let dir = Scratch::new("trim");
    let expected = filled(&dir.0, 40);
    let log = open(&dir.0, Drive::Pump);
    let segments = log.info(T).unwrap().segments;
    log.trim(T, Index(20)).unwrap();
    log.trim(T, Index(5)).unwrap();
    let info = log.info(T).unwrap();
    assert_eq!((info.first, info.segments), (Index(20), segments - 1));
    assert_eq!(log.read(T, Index(19), 1, 99, Scope::Durable).unwrap_err().kind, Kind::Invalid);
    assert_eq!(log.trim(T, Index(99)).unwrap_err().kind, Kind::Invalid);
    drop(log);
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(log.info(T).unwrap(), info);
    assert_eq!(read_all(&log, T).unwrap(), expected[19..]);
    log.trim(T, Index(41)).unwrap();
    assert_eq!(append(&log, T, &[b"x"], Mode::Synced), Ok(Index(41)));
    assert_eq!(log.info(T).unwrap().segments, 1);
    drop(log);
    remove(&segment_path(&dir.0, T, 31));
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(log.info(T).unwrap_err().kind, Kind::Corrupt, "trimmed entries were durable");
}

#[test]
fn a_full_disk_refuses_appends_until_space_is_free() {
    let dir = Scratch::new("full");
    for drive in [Drive::Threads, Drive::Pump] {
        let root = dir.0.join(format!("{drive:?}"));
        let disk = FaultDisk::new();
        let log = EmbeddedLog::open(disk.clone(), &root, options(drive)).unwrap();
        log.create(T).unwrap();
        append(&log, T, &[b"first"], Mode::Synced).unwrap();
        disk.faults.budget.store(100_000, Ordering::Relaxed);
        let mut next = 2;
        let refused = loop {
            match append(&log, T, &[&[1; 3000]], Mode::Synced) {
                Ok(index) => assert_eq!(index, Index(next)),
                Err(e) => break e,
            }
            next += 1;
        };
        assert_eq!(refused.kind, Kind::Full, "{refused}");
        for mode in [Mode::Synced, Mode::Ordered] {
            assert_eq!(append(&log, T, &[b"x"], mode).unwrap_err().kind, Kind::Full);
        }
        assert_eq!(read_all(&log, T).unwrap().len() as u64, next - 1);
        disk.faults.budget.store(i64::MAX / 2, Ordering::Relaxed);
        for _ in 0..40 {
            assert_eq!(append(&log, T, &[&[2; 3000]], Mode::Synced), Ok(Index(next)));
            next += 1;
        }
        drop(log);
        let log = open(&root, drive);
        assert_eq!(read_all(&log, T).unwrap().len() as u64, next - 1);
    }
}

/// Idle connections had taken the last descriptor, and the next segment that found none ended the
/// log until the next start; wherever in its making that was.
#[test]
fn a_segment_that_finds_no_descriptor_refuses_appends_until_there_is_one() {
    let dir = Scratch::new("descriptors");
    // A segment's making opens its file, names it, and opens it twice more.
    for (drive, left) in
        [Drive::Threads, Drive::Pump].into_iter().flat_map(|d| (0..7).map(move |l| (d, l)))
    {
        let disk = FaultDisk::new();
        let root = dir.0.join(format!("{drive:?}-{left}"));
        let log = EmbeddedLog::open(disk.clone(), &root, options(drive)).unwrap();
        log.create(T).unwrap();
        append(&log, T, &[b"first"], Mode::Synced).unwrap();
        disk.faults.descriptors.store(left, Ordering::Relaxed);
        let mut next = 2;
        let refused = loop {
            assert!(next < 100, "no segment was full");
            match append(&log, T, &[&[1; 3000]], Mode::Synced) {
                Ok(index) => assert_eq!(index, Index(next)),
                Err(e) => break e,
            }
            next += 1;
        };
        assert_eq!(refused.kind, Kind::Retry, "{refused}");
        disk.faults.descriptors.store(i64::MAX / 2, Ordering::Relaxed);
        for _ in 0..40 {
            assert_eq!(append(&log, T, &[&[2; 3000]], Mode::Synced), Ok(Index(next)));
            next += 1;
        }
        drop(log);
        assert_eq!(read_all(&open(&root, drive), T).unwrap().len() as u64, next - 1);
    }
}

#[test]
fn a_failed_sync_makes_the_topic_read_only_until_restart() {
    for (site, mode) in [
        ("log.commit", Mode::Synced),
        ("log.sync-ordered", Mode::Ordered),
        ("log.segment-name", Mode::Synced),
    ] {
        let dir = Scratch::new("failing");
        let disk = FaultDisk::new();
        let log = EmbeddedLog::open(disk.clone(), &dir.0, options(Drive::Pump)).unwrap();
        log.create(T).unwrap();
        log.create("other").unwrap();
        for _ in 0..15 {
            append(&log, T, &[b"a"], Mode::Synced).unwrap();
        }
        *disk.faults.failing.lock().unwrap() = Some(site);
        let first = append(&log, T, &[b"b"], mode);
        assert!(mode == Mode::Ordered || first.is_err_and(|e| e.kind == Kind::ReadOnly));
        assert!(log.sync(T).is_err(), "{site}");
        *disk.faults.failing.lock().unwrap() = None;
        let e = append(&log, T, &[b"c"], Mode::Synced).unwrap_err();
        assert!(e.kind == Kind::ReadOnly && e.message.contains("device failed"), "{e}");
        assert!(read_all(&log, T).unwrap().len() >= 15, "reading goes on");
        append(&log, "other", &[b"x"], Mode::Synced).unwrap();
        drop(log);
        let log = open(&dir.0, Drive::Pump);
        append(&log, T, &[b"d"], Mode::Synced).unwrap();
    }
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    let dir = Scratch::new("wrong");
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(log.create("Bad Name").unwrap_err().kind, Kind::Invalid);
    assert_eq!(append(&log, T, &[b"x"], Mode::Synced).unwrap_err().kind, Kind::NotFound);
    assert_eq!(log.info(T).unwrap_err().kind, Kind::NotFound);
    log.create(T).unwrap();
    log.create(T).unwrap();
    assert_eq!(append(&log, T, &[], Mode::Synced).unwrap_err().kind, Kind::Invalid);
    let large = vec![0; SEGMENT_BYTES as usize];
    assert_eq!(append(&log, T, &[&large], Mode::Synced).unwrap_err().kind, Kind::Invalid);
    assert!(EmbeddedLog::open(FaultDisk::new(), &dir.0, options(Drive::Pump)).is_err(), "locked");
    assert_eq!(log.read(T, Index(1), 1, 1, Scope::Durable).unwrap(), []);
}

/// The golden segment was written by the first version of the format. It must be readable for
/// good, and the same appends must give the same bytes for as long as the version is 1.
#[test]
fn the_golden_segment_is_read_and_reproduced() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/segment.v1");
    let dir = Scratch::new("golden");
    let mut o = options(Drive::Pump);
    o.segment_bytes = 20480;
    let log = EmbeddedLog::open(FaultDisk::new(), &dir.0, o).unwrap();
    log.create(T).unwrap();
    append(&log, T, &[b"one", b"", b"three"], Mode::Synced).unwrap();
    append(&log, T, &[b"ordered"], Mode::Ordered).unwrap();
    append(&log, T, &[&[0xab; 5000]], Mode::Synced).unwrap();
    let entries = read_all(&log, T).unwrap();
    drop(log);
    let path = segment_path(&dir.0, T, 1);
    if std::env::var_os("HOLDFAST_GOLDEN_WRITE").is_some() {
        write_bytes(&golden, &read_bytes(&path));
    }
    assert!(read_bytes(&path) == read_bytes(&golden), "the segment format changed");
    write_bytes(&path, &read_bytes(&golden));
    let log = open(&dir.0, Drive::Pump);
    assert_eq!(read_all(&log, T).unwrap(), entries);
    assert_eq!(entries.len(), 5);
}
