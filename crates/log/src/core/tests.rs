//! The core alone: order, grouping, when a sync is owed, what a failure refuses.

use super::*;
use crate::format::encode_commit;

fn core() -> Core<u32> {
    let tail = Tail {
        topic: "t".into(),
        topic_hash: 1,
        first: 1,
        next: 1,
        chain: 0,
        capacity: 0,
        segments: Vec::new(),
        closed: true,
    };
    Core::new(tail, 64 << 10, 8192)
}

fn stage(core: &mut Core<u32>, ack: u32, bytes: usize, synced: bool) {
    core.stage(vec![vec![0; bytes]], synced, ack).map_err(|(_, e)| e).unwrap();
}

fn roll(core: &mut Core<u32>) {
    assert!(matches!(core.step(false), Some(Step::Roll { .. })));
    assert!(core.rolled(Ok((64 << 10, 9))).is_empty());
    core.idle();
}

fn commit(core: &mut Core<u32>) -> Commit<u32> {
    match core.step(false) {
        Some(Step::Commit(commit)) => commit,
        _ => panic!("no commit"),
    }
}

fn finish(core: &mut Core<u32>, commit: Commit<u32>) -> Vec<(u32, u64)> {
    let mut buf = vec![0; commit_bytes(commit.payload_bytes) as usize];
    let written = (commit.payload_bytes > 0)
        .then(|| encode_commit(&mut buf, commit.header, commit.entries()));
    let acks = core.completed(commit, Ok(written));
    core.idle();
    acks.into_iter().map(|(ack, index)| (ack, index.unwrap().first().0)).collect()
}

#[test]
fn what_queues_behind_a_commit_becomes_the_next_one() {
    let mut core = core();
    stage(&mut core, 1, 10, true);
    roll(&mut core);
    let first = commit(&mut core);
    stage(&mut core, 2, 10, true);
    stage(&mut core, 3, 10, true);
    assert!(core.step(false).is_none(), "one commit in flight");
    assert_eq!(finish(&mut core, first), [(1, 1)]);
    let second = commit(&mut core);
    assert_eq!((second.header.first, second.header.position), (2, 8192));
    assert_eq!(finish(&mut core, second), [(2, 2), (3, 3)]);
    assert_eq!((core.next(), core.durable()), (4, 4));
}

#[test]
fn a_synced_commit_behind_unsynced_ones_syncs_them_too() {
    let mut core = core();
    stage(&mut core, 1, 10, false);
    roll(&mut core);
    let ordered = core.step_inline().expect("an ordered append alone is done at once");
    assert_eq!(ordered.write, Write::Plain);
    finish(&mut core, ordered);
    assert_eq!((core.next(), core.durable()), (2, 1));
    stage(&mut core, 2, 10, true);
    assert!(core.step_inline().is_none(), "a synced append is not done inline");
    let synced = commit(&mut core);
    assert_eq!((synced.write, synced.header.durable), (Write::PlainThenSync, 1));
    finish(&mut core, synced);
    assert_eq!(core.durable(), 3);
    stage(&mut core, 3, 10, true);
    assert_eq!(commit(&mut core).write, Write::Durable);
}

#[test]
fn unsynced_commits_are_synced_when_late_or_many() {
    let mut core = core();
    stage(&mut core, 1, 10, false);
    roll(&mut core);
    let ordered = commit(&mut core);
    finish(&mut core, ordered);
    assert!(core.step(false).is_none());
    assert!(matches!(core.step(true), Some(Step::Sync { below: 2, .. })));
    stage(&mut core, 2, 10, false);
    let ordered = core.step_inline().expect("a sync in progress does not hold up ordered appends");
    finish(&mut core, ordered);
    assert!(core.synced(2, 4096, Ok(())).is_empty());
    assert_eq!((core.next(), core.durable()), (3, 2));
    stage(&mut core, 3, 10, false);
    let ordered = commit(&mut core);
    finish(&mut core, ordered);
    assert!(matches!(core.step(false), Some(Step::Sync { below: 4, bytes: 8192 })));
}

#[test]
fn a_full_disk_refuses_what_waits_and_nothing_else() {
    let mut core = core();
    stage(&mut core, 1, 10, true);
    assert!(matches!(core.step(false), Some(Step::Roll { .. })));
    let acks = core.rolled(Err(Failure::Full(Error::full("full"))));
    assert!(matches!(&acks[..], [(1, Err(e))] if e.kind == Kind::Full));
    core.idle();
    stage(&mut core, 2, 10, true);
    roll(&mut core);
    let first = commit(&mut core);
    assert_eq!(finish(&mut core, first), [(2, 1)], "no index was lost");
}

#[test]
fn a_failed_sync_refuses_everything_from_then_on() {
    let mut core = core();
    stage(&mut core, 1, 10, true);
    roll(&mut core);
    let first = commit(&mut core);
    stage(&mut core, 2, 10, true);
    let acks = core.completed(first, Err(Failure::Fatal(Error::retry("EIO"))));
    assert_eq!(acks.len(), 2);
    assert!(acks.iter().all(|(_, r)| r.as_ref().is_err_and(|e| e.kind == Kind::ReadOnly)));
    core.idle();
    let (ack, e) = core.stage(vec![vec![1]], true, 3).unwrap_err();
    assert_eq!((ack, e.kind), (3, Kind::ReadOnly));
    assert!(e.message.contains("EIO"), "{e}");
    assert!(core.step(true).is_none());
}

#[test]
fn a_commit_that_does_not_fit_rolls_and_a_sync_alone_writes_nothing() {
    let mut core = core();
    stage(&mut core, 1, 40 << 10, true);
    stage(&mut core, 2, 40 << 10, false);
    roll(&mut core);
    let first = commit(&mut core);
    assert_eq!(finish(&mut core, first), [(1, 1)]);
    roll(&mut core);
    let second = commit(&mut core);
    finish(&mut core, second);
    core.stage(Vec::new(), true, 3).map_err(|(_, e)| e).unwrap();
    let sync = commit(&mut core);
    assert_eq!(sync.write, Write::SyncOnly);
    assert_eq!(finish(&mut core, sync), [(3, 0)], "of no entry");
    assert_eq!(core.durable(), 3);
    assert_eq!(core.locate(2).map(|place| (place.first, place.position)), Some((2, Some(4096))));
    assert_eq!(core.trim(2), [1], "the segment of entry 1 is left behind");
}

/// The next segment is prepared while the second half of this one is written, and no sooner; a topic
/// that takes no more needs none.
#[test]
fn a_spare_is_wanted_from_the_middle_of_a_segment_on() {
    let mut core = core();
    assert!(!core.wants_spare(), "a topic without a segment gets its first one by a roll");
    stage(&mut core, 0, 10, true);
    roll(&mut core);
    // Sectors of 4 KiB in a segment of 64: its header, and one for each commit.
    for commits in 1..16 {
        let one = commit(&mut core);
        finish(&mut core, one);
        assert_eq!(core.wants_spare(), 1 + commits > 8, "{commits} commits");
        if commits < 15 {
            stage(&mut core, commits, 10, true);
        }
    }
    stage(&mut core, 16, 10, true);
    assert!(matches!(core.step(false), Some(Step::Roll { .. })));
    assert!(core.wants_spare());
    core.rolled(Err(Failure::Fatal(Error::retry("EIO"))));
    assert!(!core.wants_spare(), "{:?}", core.failed());
}

/// A reader goes through 64 KiB of commits at the most to find its first entry, and never begins at
/// a closing commit, which has none.
#[test]
fn every_16th_sector_with_entries_is_marked() {
    let mut meta = SegmentMeta::new(1);
    for sector in 1..=49 {
        let count = u32::from(sector < 49);
        let header = CommitHeader {
            topic_hash: 1,
            first: sector,
            durable: sector,
            position: sector * SECTOR,
            count,
            payload_bytes: count * 9,
            chain: 0,
            payload_crc: 0,
        };
        meta.note(&header);
        assert_eq!(meta.end, (sector + 1) * SECTOR);
    }
    let marks = [1, 17, 33].map(|sector| (sector, sector * SECTOR));
    assert_eq!(meta.marks.as_deref(), Some(&marks[..]));
}
