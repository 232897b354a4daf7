//! A disk without room, on the simulated disk: what frees space goes on, what takes some is
//! refused, and says so; and all goes on when there is room again.

mod common;

use common::{SEGMENT_BYTES, append, options, read_all};
use holdfast_base::Kind;
use holdfast_base::ids::Index;
use holdfast_env::Disk;
use holdfast_env::disk::Access;
use holdfast_env::trial::Trial;
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, REACH_BYTES};
use holdfast_sim::SimDisk;
use std::path::Path;
use std::sync::Arc;

const NAMES: &str = "names";
const USER: &str = "user";
const OTHERS: &str = "/others";

fn open(disk: &SimDisk) -> EmbeddedLog {
    let needed: fn(&str) -> bool = |topic| topic == NAMES;
    let options = LogOptions { needed: Some(needed), ..options(Drive::Pump) };
    EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/log"), options).unwrap()
}

fn free_bytes(disk: &SimDisk) -> u64 {
    disk.space(Path::new("/")).unwrap().free_bytes
}

/// Others take all that is free, but for `left_bytes`.
fn fill(disk: &SimDisk, left_bytes: u64) {
    let file = disk.create(Path::new(OTHERS), Access::Cached).unwrap();
    file.allocate(free_bytes(disk) - left_bytes).unwrap();
}

fn disk_with_topics() -> (SimDisk, EmbeddedLog) {
    let disk = SimDisk::new(1);
    disk.set_capacity(64 * SEGMENT_BYTES);
    let log = open(&disk);
    for topic in [NAMES, USER] {
        log.create(topic).unwrap();
        append(&log, topic, &[b"first"], Mode::Synced).unwrap();
    }
    (disk, log)
}

/// The segment of the names ended on a full disk, and the next one wanted all of its length at
/// once: no deletion found a place, nor did the mark of a trim, so nobody could free anything.
#[test]
fn what_frees_space_goes_on_where_no_room_is_left() {
    let (disk, log) = disk_with_topics();
    append(&log, USER, &[b"second"], Mode::Synced).unwrap();
    assert_eq!(log.shortage(), None);
    fill(&disk, 0);
    let mut deletions = 0;
    while log.check_room().is_ok() {
        append(&log, NAMES, &[b"a deletion"], Mode::Synced).unwrap();
        deletions += 1;
        assert!(deletions < 1000, "what is kept has an end");
    }
    assert!(deletions > SEGMENT_BYTES / 4096, "more than the segment took: {deletions}");
    assert_eq!(log.check_room().unwrap_err().kind, Kind::Full);
    let said = log.shortage().unwrap();
    assert!(said.contains("delete something") && said.contains("/log"), "{said}");
    // What frees space has half of what was kept.
    for _ in 0..16 {
        append(&log, NAMES, &[b"a deletion"], Mode::Synced).unwrap();
        deletions += 1;
    }
    log.trim(USER, Index(2)).unwrap();
    assert_eq!(log.info(USER).unwrap().first, Index(2));
    assert_eq!(read_all(&log, NAMES).unwrap().len() as u64, 1 + deletions);
}

/// A node that was killed on a full disk did not start again, so that nobody could read either.
#[test]
fn a_log_is_opened_and_appended_to_where_no_room_is_left() {
    let (disk, log) = disk_with_topics();
    fill(&disk, 0);
    let mut count = 1;
    for _ in 0..8 {
        append(&log, NAMES, &[&[7; 5000]], Mode::Synced).unwrap();
        count += 1;
    }
    drop(log);
    let disk = disk.process_kill();
    assert_eq!(free_bytes(&disk), 0);
    let log = open(&disk);
    assert_eq!(read_all(&log, NAMES).unwrap().len(), count);
    for _ in 0..8 {
        append(&log, NAMES, &[b"a start"], Mode::Synced).unwrap();
    }
    // One that is larger than what is given up at once.
    append(&log, NAMES, &[&[7; 20_000]], Mode::Synced).unwrap();
}

/// The mark of how far a segment is written saves a start some reading, and nobody waits for its room.
#[test]
fn a_mark_that_finds_no_room_keeps_nobody_from_going_on() {
    let _close = Trial::new().with(&REACH_BYTES, 1).enter();
    let disk = SimDisk::new(1);
    disk.set_capacity(64 * SEGMENT_BYTES);
    let log = open(&disk);
    log.create(NAMES).unwrap();
    fill(&disk, 0);
    for _ in 0..8 {
        append(&log, NAMES, &[b"a deletion"], Mode::Synced).unwrap();
    }
    drop(log);
    let disk = disk.process_kill();
    assert_eq!(free_bytes(&disk), 0);
    let log = open(&disk);
    assert_eq!(read_all(&log, NAMES).unwrap().len(), 8);
    append(&log, NAMES, &[b"a start"], Mode::Synced).unwrap();
}

/// Topics of clients took the last segments of a disk from the topics that everything needs.
#[test]
fn other_topics_are_refused_in_time_and_go_on_when_there_is_room() {
    let (disk, log) = disk_with_topics();
    fill(&disk, 2 * SEGMENT_BYTES);
    let mut entries = 1;
    let refused = loop {
        match append(&log, USER, &[&[1; 3000]], Mode::Synced) {
            Ok(_) => entries += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    assert!(refused.message.contains("topic `user`"), "{refused}");
    assert!(refused.message.contains("delete something"), "{refused}");
    assert_eq!(log.create("another").unwrap_err().kind, Kind::Full);
    assert!(free_bytes(&disk) >= 2 * SEGMENT_BYTES, "nothing of the rest was taken");
    assert_eq!(log.shortage().map(|said| said.contains("another")), Some(true));
    log.check_room().unwrap();
    disk.remove(Path::new(OTHERS)).unwrap();
    log.refill_reserve();
    assert_eq!(log.shortage(), None);
    append(&log, USER, &[&[1; 3000]], Mode::Synced).unwrap();
    assert_eq!(read_all(&log, USER).unwrap().len(), entries + 1);
}

/// What was given up is kept again once somebody has freed space.
#[test]
fn what_was_given_up_is_made_again() {
    let (disk, log) = disk_with_topics();
    let append_until_short = |log: &EmbeddedLog| {
        let mut appended = 0;
        while log.check_room().is_ok() {
            append(log, NAMES, &[b"x"], Mode::Synced).unwrap();
            appended += 1;
        }
        appended
    };
    fill(&disk, 0);
    append_until_short(&log);
    log.refill_reserve();
    assert!(log.check_room().is_err(), "there is no room yet");
    disk.remove(Path::new(OTHERS)).unwrap();
    log.refill_reserve();
    log.check_room().unwrap();
    fill(&disk, 0);
    assert!(append_until_short(&log) > 16);
}

/// Each topic takes a segment, descriptors and a thread: a client that might make some made them
/// until the node had none left for anybody.
#[test]
fn a_log_takes_so_many_topics_and_those_that_are_needed_beyond_them() {
    let disk = SimDisk::new(1);
    let open = || {
        let needed: fn(&str) -> bool = |topic| topic == NAMES;
        let options = LogOptions { needed: Some(needed), topics_max: 3, ..options(Drive::Pump) };
        EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/log"), options).unwrap()
    };
    let log = open();
    for topic in ["a", "b", "c"] {
        log.create(topic).unwrap();
    }
    for again in 0..2 {
        let refused = log.create("d").unwrap_err();
        assert!(refused.kind == Kind::Full && refused.message.contains("takes 3"), "{refused}");
        assert_eq!(log.topics().len(), 3 + again);
        // One that is there, and what the node cannot do without.
        log.create("b").unwrap();
        log.create(NAMES).unwrap();
    }
    append(&log, "c", &[b"goes on"], Mode::Synced).unwrap();
    drop(log);
    assert_eq!(open().topics().len(), 4, "those that are there all open");
}
