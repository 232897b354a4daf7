//! The fold on the embedded log: results come once, in order, the same after every restart.
#![allow(clippy::disallowed_methods, reason = "tests damage files behind the log's back")]

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::*;
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::disk::Access;
use holdfast_env::trial::Trial;
use holdfast_env::{Disk, RealDisk};
use holdfast_log::*;
use holdfast_sim::SimDisk;
use holdfast_view::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

const T: &str = "ns/0";

/// The key whose additions panic in a broken build.
const POISON: u8 = 66;

thread_local! {
    /// Whether this is one.
    static BROKEN: Cell<bool> = const { Cell::new(false) };
}

/// Sums by key; the result of an addition is the new sum, a sum past 200 is refused.
#[derive(Default, Debug, PartialEq, Eq, Clone)]
struct Sums(BTreeMap<u8, u64>);

impl View for Sums {
    const NAME: &'static str = "sums";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> Sums {
        Sums::default()
    }

    fn apply(&mut self, _index: Index, command: &[u8]) -> Applied {
        let &[version, key, amount] = command else {
            return Applied::Refused(Error::invalid("add: three bytes"));
        };
        if key == POISON && BROKEN.get() {
            // In the midst of a change.
            self.0.insert(key, 1);
            self.0.clear();
            panic!("an index is out of its bounds");
        }
        if version != 1 {
            return Applied::UnknownVersion(format!("addition version {version}"));
        }
        let sum = self.0.entry(key).or_default();
        if *sum + amount as u64 > 200 {
            return Applied::Refused(Error::full(format!("key {key} is at {sum}")));
        }
        *sum += amount as u64;
        Applied::Ok(sum.to_le_bytes().to_vec())
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        for (key, sum) in &self.0 {
            out.put(key);
            out.put(sum);
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<Sums> {
        let rest = source.rest()?;
        let pair = |p: &[u8]| (p[0], u64::from_le_bytes(p[1..].try_into().unwrap()));
        Ok(Sums(rest.chunks_exact(9).map(pair).collect()))
    }
}

fn store(root: &Path, name: &str) -> SnapshotStore {
    SnapshotStore { disk: Arc::new(RealDisk), directory: root.join(name) }
}

const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };

struct World {
    log: Arc<EmbeddedLog>,
    fold: Fold<Sums>,
}

fn world(root: &Path) -> World {
    let log = Arc::new(open(&root.join("log"), Drive::Pump));
    let fold = Fold::open(log.clone(), T, store(root, "snapshots"), MANUAL).unwrap();
    World { log, fold }
}

fn fresh(world: &World, root: &Path, name: &str) -> Result<Fold<Sums>> {
    Fold::open(world.log.clone(), T, store(root, name), MANUAL)
}

impl World {
    fn wait<X: Send + 'static>(&self, start: impl FnOnce(&Fold<Sums>, Done<X>)) -> Result<X> {
        let (send, receive) = mpsc::channel();
        start(&self.fold, Box::new(move |r| send.send(r).unwrap()));
        while self.log.pump() {}
        receive.try_recv().expect("an answer after the pump is dry")
    }

    fn session(&self) -> SessionId {
        self.wait(|fold, done| fold.open_session(Mode::Synced, done)).unwrap()
    }

    fn send(&self, session: SessionId, sequence: u64, below: u64, command: &[u8]) -> Result<u64> {
        let request = request(session, sequence, below, command);
        let (_, result) = self.wait(|fold, done| fold.propose(request, done))?;
        Ok(u64::from_le_bytes(result.try_into().unwrap()))
    }

    fn add(&self, key: u8, amount: u8) -> Result<u64> {
        self.send(SessionId(0), 0, 0, &[1, key, amount])
    }
}

fn request(session: SessionId, sequence: u64, below: u64, command: &[u8]) -> Request {
    Request {
        session,
        sequence: Sequence(sequence),
        acknowledged_below: Sequence(below),
        command: command.to_vec(),
        mode: Mode::Synced,
    }
}

fn view(fold: &Fold<Sums>) -> (Sums, Index) {
    fold.read(|view, index| (view.clone(), index)).unwrap()
}

/// Behind a writer that comes between, the inner read waits for the outer one and both for ever: a node answered
/// nobody, once in nine runs. Which no test would meet, every build for tests looks for.
#[test]
#[should_panic(expected = "within a read of it by the same thread")]
fn a_read_within_a_read_is_found_without_the_writer_between() {
    let dir = Scratch::new("nested");
    let w = world(&dir.0);
    let _ = w.fold.read(|_, _| w.fold.read_last(|view| view.clone()));
}

#[test]
fn a_repeated_request_gets_its_first_result_across_restarts_and_snapshots() {
    let dir = Scratch::new("sessions");
    let w = world(&dir.0);
    let s = w.session();
    assert_eq!(w.send(s, 1, 1, &[1, 7, 10]), Ok(10));
    assert_eq!(w.send(s, 2, 1, &[1, 7, 10]), Ok(20));
    let refusal = w.send(s, 3, 1, &[1, 7, 250]).unwrap_err();
    assert_eq!(w.send(s, 1, 1, &[1, 7, 99]), Ok(10), "whatever the command says now");
    drop(w);
    let w = world(&dir.0);
    assert_eq!(w.send(s, 2, 1, &[1, 7, 10]), Ok(20));
    w.fold.snapshot_now().unwrap();
    drop(w);
    let w = world(&dir.0);
    assert!(w.fold.status().snapshot.is_some());
    assert_eq!(w.send(s, 1, 1, &[1, 7, 10]), Ok(10));
    assert_eq!(w.send(s, 3, 1, &[1, 7, 250]), Err(refusal));
    assert_eq!(w.send(s, 4, 3, &[1, 7, 1]), Ok(21));
    let stale = w.send(s, 2, 1, &[1, 7, 10]).unwrap_err();
    assert!(stale.kind == Kind::Invalid && stale.message.contains("stale"), "{stale}");
    assert_eq!(w.send(s, 5, 6, &[1, 7, 1]).unwrap_err().kind, Kind::Invalid);
    w.wait(|fold, done| fold.end_session(s, Mode::Synced, done)).unwrap();
    assert_eq!(w.send(s, 6, 3, &[1, 7, 1]).unwrap_err().kind, Kind::Fenced);
    assert_eq!(w.add(7, 1), Ok(22));
}

#[test]
fn a_session_with_too_many_unacknowledged_results_is_refused_until_it_acknowledges() {
    let dir = Scratch::new("outstanding");
    let w = world(&dir.0);
    let s = w.session();
    for sequence in 1..=SESSION_OUTSTANDING_MAX as u64 {
        w.send(s, sequence, 1, &[1, 0, 0]).unwrap();
    }
    let next = SESSION_OUTSTANDING_MAX as u64 + 1;
    assert_eq!(w.send(s, next, 1, &[1, 0, 0]).unwrap_err().kind, Kind::Retry);
    assert_eq!(w.send(s, next, 2, &[1, 0, 5]), Ok(5));
}

/// A snapshot that found no room left what it had written: the file took the room of a full disk until
/// the next one was due, and that of a process that was killed stayed for as long.
#[test]
fn a_snapshot_that_fails_leaves_no_file_and_a_start_removes_one_that_was_left() {
    let dir = Scratch::new("no-room");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Pump));
    let disk = SimDisk::new(1);
    let snapshots = SnapshotStore { disk: Arc::new(disk.clone()), directory: "/snapshots".into() };
    let fold = || Fold::<Sums>::open(log.clone(), T, snapshots.clone(), MANUAL).unwrap();
    let names = || -> Vec<String> {
        let listed = disk.list(Path::new("/snapshots")).unwrap();
        listed.into_iter().map(|entry| entry.name).collect()
    };
    let w = World { log: log.clone(), fold: fold() };
    w.add(1, 2).unwrap();
    disk.set_capacity(0);
    let refused = w.fold.snapshot_now().unwrap_err();
    assert_eq!((refused.kind, names()), (Kind::Full, Vec::new()), "{refused}");
    disk.set_capacity(1 << 40);
    w.fold.snapshot_now().unwrap();
    let whole = names();
    assert_eq!(whole.len(), 1, "{whole:?}");
    drop(w);
    disk.create(Path::new("/snapshots/snapshot.tmp"), Access::Cached).unwrap();
    drop(fold());
    assert_eq!(names(), whole);
}

#[test]
fn two_folds_of_one_log_agree_and_a_snapshot_with_replay_equals_a_full_replay() {
    let dir = Scratch::new("agree");
    let w = world(&dir.0);
    let s = w.session();
    for i in 0..30u8 {
        let _ = w.send(s, i as u64 + 1, i as u64, &[1, i % 3, i]);
        if i == 9 || i == 19 {
            // Only one snapshot in a directory of its own: nothing is trimmed yet.
            fresh(&w, &dir.0, &format!("other{i}")).unwrap().snapshot_now().unwrap();
        }
    }
    let expected = (view(&w.fold), w.fold.status().digest);
    for name in ["empty", "other9", "other19"] {
        let fold = fresh(&w, &dir.0, name).unwrap();
        assert_eq!(fold.status().snapshot.is_some(), name != "empty");
        assert_eq!((view(&fold), fold.status().digest), expected, "{name}");
        assert_eq!(fold.status().sessions, 1);
    }
}

#[test]
fn the_digest_covers_index_entry_and_result() {
    let digest = |commands: &[[u8; 3]]| {
        let dir = Scratch::new("digest");
        let w = world(&dir.0);
        for c in commands {
            let _ = w.send(SessionId(0), 0, 0, c);
        }
        w.fold.status().digest
    };
    let a = digest(&[[1, 1, 1], [1, 2, 2]]);
    assert_eq!(a, digest(&[[1, 1, 1], [1, 2, 2]]));
    assert_ne!(a, digest(&[[1, 2, 2], [1, 1, 1]]));
    assert_ne!(a, digest(&[[1, 1, 1], [1, 2, 3]]));
    assert_ne!(a, digest(&[[1, 1, 1], [1, 2, 2], [1, 3, 0]]));
}

#[test]
fn digests_to_compare_are_of_indices_that_were_applied_each_once() {
    let dir = Scratch::new("digests");
    let w = world(&dir.0);
    assert_eq!(w.fold.digests(), []);
    for n in 1..40u8 {
        let _ = w.send(SessionId(0), 0, 0, &[1, n, 1]);
        let digests = w.fold.digests();
        assert!(digests.is_sorted_by(|a, b| a.0 < b.0), "{digests:?}");
        assert_eq!(digests.last(), Some(&(w.fold.status().applied, w.fold.status().digest)));
    }
}

#[test]
fn a_claim_fences_the_leader_before() {
    let dir = Scratch::new("claims");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Pump));
    let lead = |name: &str| {
        let fold: Fold<Sums> =
            Fold::open_as_leader(log.clone(), T, store(&dir.0, name), MANUAL).unwrap();
        World { log: log.clone(), fold }
    };
    let old = lead("old");
    assert_eq!(old.add(1, 5), Ok(5));
    let new = lead("new");
    assert!(new.fold.status().epoch > old.fold.status().epoch);
    // The old leader does not know yet: its command reaches the log, and `apply` refuses it.
    let e = old.add(1, 5).unwrap_err();
    assert_eq!(e.kind, Kind::Fenced, "{e}");
    let next = log.info(T).unwrap().next;
    assert_eq!(old.add(1, 5).unwrap_err().kind, Kind::Fenced);
    assert_eq!(log.info(T).unwrap().next, next, "now it knows, and appends no more");
    assert_eq!(new.add(1, 7), Ok(12), "the new one reads over what the old one appended");
    let reader = fresh(&new, &dir.0, "reader").unwrap();
    assert_eq!(reader.status().digest, new.fold.status().digest);
}

#[test]
fn a_follower_applies_what_is_durable_and_proposes_nothing() {
    let dir = Scratch::new("follower");
    let w = world(&dir.0);
    let follower: Fold<Sums> =
        Fold::open_follower(w.log.clone(), T, store(&dir.0, "follower"), MANUAL).unwrap();
    for i in 0..5 {
        w.add(i, 1).unwrap();
        assert_eq!(follower.status().digest, w.fold.status().digest);
    }
    let ordered = Request { mode: Mode::Ordered, ..request(SessionId(0), 0, 0, &[1, 9, 9]) };
    w.wait(|fold, done| fold.propose(ordered, done)).unwrap();
    assert!(follower.status().applied < w.fold.status().applied);
    w.log.sync(T).unwrap();
    assert_eq!(follower.status().applied, w.fold.status().applied);
    let follower = World { log: w.log.clone(), fold: follower };
    assert_eq!(follower.add(1, 1).unwrap_err().kind, Kind::ReadOnly);
}

#[test]
fn an_ordered_request_is_applied_before_propose_returns() {
    let dir = Scratch::new("inline");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Pump));
    let fold: Fold<Sums> =
        Fold::open_as_leader(log.clone(), T, store(&dir.0, "s"), MANUAL).unwrap();
    for i in 1..=10u64 {
        let (send, receive) = mpsc::channel();
        let request = Request { mode: Mode::Ordered, ..request(SessionId(0), 0, 0, &[1, 1, 1]) };
        fold.propose(request, Box::new(move |r| send.send(r).unwrap()));
        let result = receive.try_recv().expect("nobody pumped, and yet it is done");
        assert_eq!(result.unwrap().1, i.to_le_bytes());
    }
    assert_eq!(view(&fold).0.0[&1], 10);
}

#[test]
fn an_unknown_version_stops_the_view_in_front_of_the_entry() {
    let dir = Scratch::new("unknown");
    let w = world(&dir.0);
    w.add(1, 1).unwrap();
    let e = w.send(SessionId(0), 0, 0, &[9, 1, 1]).unwrap_err();
    assert_eq!(e.kind, Kind::Unsupported);
    assert!(e.message.contains("entry 2") && e.message.contains("addition version 9"), "{e}");
    assert_eq!(w.add(1, 1).unwrap_err().kind, Kind::Unsupported);
    assert!(w.fold.read(|_, _| ()).is_err() && w.fold.snapshot_now().is_err());
    let again = fresh(&w, &dir.0, "again").unwrap();
    let status = again.status();
    assert_eq!(
        (status.applied, status.stopped.map(|e| e.kind)),
        (Index(1), Some(Kind::Unsupported))
    );
    let other = Scratch::new("envelope");
    let w = world(&other.0);
    append(&w.log, T, &[&[7; 60]], Mode::Synced).unwrap();
    let e = fresh(&w, &other.0, "x").unwrap().status().stopped.unwrap();
    assert!(e.message.contains("entry 1") && e.message.contains("envelope version 7"), "{e}");
}

#[test]
fn the_log_is_trimmed_only_when_two_snapshots_cover_it() {
    let dir = Scratch::new("two");
    let w = world(&dir.0);
    let mut taken = Vec::new();
    for round in 0..4u8 {
        for _ in 0..20 {
            w.add(round, 1).unwrap();
        }
        taken.push(w.fold.snapshot_now().unwrap());
        assert_eq!(w.fold.snapshot_now().unwrap(), taken[round as usize], "nothing new, no file");
        let first = w.log.info(T).unwrap().first;
        let covered = taken.len().checked_sub(2).map_or(Index(1), |i| taken[i]);
        assert_eq!(first, covered);
    }
    let expected = (view(&w.fold), w.fold.status().digest);
    drop(w);
    // The newest is damaged: the older one serves, and the damage is reported.
    let path = dir.0.join(format!("snapshots/snapshot-{:020}.hfs", taken[3].0));
    let good = read_bytes(&path);
    for at in [3, 20, 4000, 4096 + 3, 4096 + 6, 4096 + 20] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        write_bytes(&path, &bad);
        let w = world(&dir.0);
        let status = w.fold.status();
        assert_eq!((status.snapshot, status.reports.len()), (Some(taken[2]), 1), "byte {at}");
        assert_eq!((view(&w.fold), status.digest), expected);
    }
    // Both damaged: the log alone does not reach back, and that is said.
    let older = dir.0.join(format!("snapshots/snapshot-{:020}.hfs", taken[2].0));
    write_bytes(&older, b"gone");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Pump));
    let refused = Fold::<Sums>::open(log, T, store(&dir.0, "snapshots"), MANUAL).err().unwrap();
    assert!(refused.message.contains("begins at entry"), "{refused}");
}

#[test]
fn a_log_that_is_shorter_or_different_from_the_snapshots_is_refused() {
    let dir = Scratch::new("mismatch");
    let w = world(&dir.0);
    for _ in 0..3 {
        w.add(1, 1).unwrap();
    }
    copy_dir(&dir.0.join("log/topics"), &dir.0.join("short/log/topics"));
    w.add(1, 1).unwrap();
    w.fold.snapshot_now().unwrap();
    drop(w);
    for (name, extra, why) in
        [("short", None, "ends before entry 4"), ("different", Some(9), "is not the one")]
    {
        let root = dir.0.join(name);
        if let Some(amount) = extra {
            copy_dir(&dir.0.join("short/log/topics"), &root.join("log/topics"));
            let w = world(&root);
            w.add(1, amount).unwrap();
            w.add(1, amount).unwrap();
        }
        let log = Arc::new(open(&root.join("log"), Drive::Pump));
        let e = Fold::<Sums>::open(log, T, store(&dir.0, "snapshots"), MANUAL).err().unwrap();
        assert!(e.kind == Kind::Corrupt && e.message.contains(why), "{e}");
    }
}

#[test]
fn a_snapshot_of_another_topic_is_refused() {
    let dir = Scratch::new("foreign");
    let w = world(&dir.0);
    w.add(1, 1).unwrap();
    w.fold.snapshot_now().unwrap();
    let store = store(&dir.0, "snapshots");
    let e = Fold::<Sums>::open(w.log.clone(), "other", store, MANUAL).err().unwrap();
    assert!(e.kind == Kind::Invalid && e.message.contains("directory of its own"), "{e}");
}

#[test]
fn a_snapshot_syncs_the_ordered_entries_that_it_holds() {
    let dir = Scratch::new("durable");
    let w = world(&dir.0);
    let ordered =
        |key| Request { mode: Mode::Ordered, ..request(SessionId(0), 0, 0, &[1, key, 1]) };
    w.add(0, 1).unwrap();
    w.wait(|fold, done| fold.propose(ordered(1), done)).unwrap();
    assert!(w.log.info(T).unwrap().durable < w.log.info(T).unwrap().next);
    let index = w.fold.snapshot_now().unwrap();
    assert!(w.log.info(T).unwrap().durable > index);
}

#[test]
fn the_background_takes_snapshots_when_enough_was_applied() {
    let dir = Scratch::new("background");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Threads));
    let options = FoldOptions { snapshot_entries: 10, snapshot_bytes: 0 };
    let fold: Fold<Sums> = Fold::open(log.clone(), T, store(&dir.0, "s"), options).unwrap();
    let (send, receive) = mpsc::channel();
    for _ in 0..10 {
        let send = send.clone();
        let request = request(SessionId(0), 0, 0, &[1, 1, 1]);
        fold.propose(request, Box::new(move |r| send.send(r).unwrap()));
    }
    for _ in 0..10 {
        receive.recv().unwrap().unwrap();
    }
    while fold.status().snapshot.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(fold.status().reports, Vec::<String>::new());
}

/// Many threads propose to a threaded log; every result is what its place in the order gives.
#[test]
fn concurrent_proposals_are_applied_in_the_order_of_their_indices() {
    let dir = Scratch::new("concurrent");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Threads));
    let fold: Fold<Sums> =
        Fold::open_as_leader(log.clone(), T, store(&dir.0, "s"), MANUAL).unwrap();
    let mut results: Vec<(Index, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|t| {
                let fold = &fold;
                scope.spawn(move || {
                    let mut results = Vec::new();
                    for i in 0..30 {
                        let (send, receive) = mpsc::channel();
                        let mode = if (t + i) % 2 == 0 { Mode::Ordered } else { Mode::Synced };
                        let request = Request { mode, ..request(SessionId(0), 0, 0, &[1, 3, 1]) };
                        fold.propose(request, Box::new(move |r| send.send(r).unwrap()));
                        let (index, sum) = receive.recv().unwrap().unwrap();
                        results.push((index, u64::from_le_bytes(sum.try_into().unwrap())));
                    }
                    results
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    results.sort();
    let expected: Vec<(Index, u64)> = (1..=180).map(|n| (Index(n + 1), n)).collect();
    assert_eq!(results, expected);
}

/// In blocks of 16 bytes, so that there are several. The first golden snapshot is that of the first
/// version of the format, whose header said how long it is; the second one's payload has no term.
#[test]
fn the_golden_snapshot_is_read_and_reproduced() {
    let golden = |version| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/snapshot.v{version}"))
    };
    let dir = Scratch::new("golden");
    let _small = Trial::new().with(&SNAPSHOT_BLOCK_BYTES, 16).enter();
    let w = world(&dir.0);
    let s = w.session();
    w.send(s, 1, 1, &[1, 7, 10]).unwrap();
    let _ = w.send(s, 2, 1, &[1, 7, 250]);
    let index = w.fold.snapshot_now().unwrap();
    let digest = w.fold.status().digest;
    drop(w);
    let path = dir.0.join(format!("snapshots/snapshot-{:020}.hfs", index.0));
    if std::env::var_os("HOLDFAST_GOLDEN_WRITE").is_some() {
        write_bytes(&golden(3), &read_bytes(&path));
    }
    assert!(read_bytes(&path) == read_bytes(&golden(3)), "the snapshot format changed");
    for version in [1, 2, 3] {
        write_bytes(&path, &read_bytes(&golden(version)));
        let w = world(&dir.0);
        assert_eq!((w.fold.status().snapshot, w.fold.status().digest), (Some(index), digest));
        let first = w.fold.known(s, Sequence(1));
        assert_eq!(first, Some(Ok(10u64.to_le_bytes().to_vec())));
        assert_eq!(view(&w.fold).0, Sums(BTreeMap::from([(7, 10)])));
    }
    assert_eq!(digest, 0xcb39_859b_56df_1a4e, "the digest's definition changed");
}

/// Whatever the blocks' size, every byte of a snapshot that is read is covered by a checksum: one
/// flipped bit, or an end that comes too early, makes it no snapshot, and the one before is used.
#[test]
fn a_snapshot_that_is_damaged_or_cut_short_anywhere_is_passed_over() {
    for block_bytes in [1, 7, 1 << 16] {
        let _sized = Trial::new().with(&SNAPSHOT_BLOCK_BYTES, block_bytes).enter();
        let dir = Scratch::new("damaged-blocks");
        let w = world(&dir.0);
        w.add(1, 1).unwrap();
        w.fold.snapshot_now().unwrap();
        w.add(2, 2).unwrap();
        let index = w.fold.snapshot_now().unwrap();
        let path = dir.0.join(format!("snapshots/snapshot-{:020}.hfs", index.0));
        let good = read_bytes(&path);
        // What follows the footer is nobody's.
        let end = good.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert_eq!(&good[end - 4..end], b"HFSE");
        let newest = || store(&dir.0, "snapshots").newest().unwrap();
        for at in (0..4096).step_by(64).chain(4092..end) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            write_bytes(&path, &bad);
            assert_eq!(newest(), Index(1), "byte {at} of blocks of {block_bytes}");
        }
        for cut in [0, 4095, 4096, 4100, end - 5, end - 1] {
            write_bytes(&path, &good[..cut]);
            assert_eq!(newest(), Index(1), "{cut} bytes of blocks of {block_bytes}");
            let reports = fresh(&w, &dir.0, "snapshots").unwrap().status().reports;
            assert_eq!(reports.len(), 1, "{reports:?}");
        }
        write_bytes(&path, &good);
        assert_eq!(newest(), index);
    }
}

#[derive(Debug, Clone)]
enum Action {
    Send { session: usize, ahead: u64, acknowledge: bool, key: u8, amount: u8, synced: bool },
    Repeat { session: usize, back: u64 },
    Restart,
    Snapshot,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (0..3usize, 1..3u64, any::<bool>(), 0..3u8, 0..60u8, any::<bool>()).prop_map(
            |(session, ahead, acknowledge, key, amount, synced)| Action::Send {
                session, ahead, acknowledge, key, amount, synced
            }
        ),
        3 => (0..3usize, 0..4u64).prop_map(|(session, back)| Action::Repeat { session, back }),
        1 => Just(Action::Restart),
        1 => Just(Action::Snapshot),
    ]
}

/// What one client knows.
#[derive(Default)]
struct Client {
    id: SessionId,
    last: u64,
    below: u64,
    results: BTreeMap<u64, ([u8; 3], std::result::Result<u64, Kind>)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Random clients, repetitions, restarts and snapshots against a model that is a plain map:
    /// every result is the model's, and a fold from nothing ends in the same digest.
    #[test]
    fn the_fold_does_what_a_plain_map_does(actions in prop::collection::vec(action(), 1..60)) {
        let dir = Scratch::new("model");
        let mut w = world(&dir.0);
        let mut model = Sums::default();
        let mut clients: Vec<Client> =
            (0..3).map(|_| Client { id: w.session(), below: 1, ..Client::default() }).collect();
        for action in actions {
            match action {
                Action::Send { session, ahead, acknowledge, key, amount, synced } => {
                    let client = &mut clients[session];
                    client.last += ahead;
                    if acknowledge {
                        client.below = client.last;
                    }
                    let command = [1, key, amount];
                    let mut r = request(client.id, client.last, client.below, &command);
                    r.mode = if synced { Mode::Synced } else { Mode::Ordered };
                    let got = w.wait(|fold, done| fold.propose(r, done));
                    let got = got
                        .map(|(_, bytes)| u64::from_le_bytes(bytes.try_into().unwrap()))
                        .map_err(|e| e.kind);
                    let expected = match model.apply(Index(0), &command) {
                        Applied::Ok(bytes) => Ok(u64::from_le_bytes(bytes.try_into().unwrap())),
                        Applied::Refused(e) => Err(e.kind),
                        other => unreachable!("{other:?}"),
                    };
                    prop_assert_eq!(got, expected);
                    client.results.insert(client.last, (command, expected));
                }
                Action::Repeat { session, back } => {
                    let client = &clients[session];
                    let Some((&sequence, (command, first))) =
                        client.results.iter().rev().nth(back as usize) else { continue };
                    let got = w.send(client.id, sequence, 1, command).map_err(|e| e.kind);
                    let expected = if sequence < client.below { Err(Kind::Invalid) } else { *first };
                    prop_assert_eq!(got, expected);
                }
                Action::Restart => {
                    drop(w);
                    w = world(&dir.0);
                }
                Action::Snapshot => {
                    w.fold.snapshot_now().unwrap();
                }
            }
            prop_assert_eq!(&view(&w.fold).0, &model);
        }
        if w.log.info(T).unwrap().first == Index(1) {
            let replayed = fresh(&w, &dir.0, "replayed").unwrap();
            prop_assert_eq!(replayed.status().digest, w.fold.status().digest);
        }
    }
}

#[test]
fn a_fold_begins_with_a_snapshot_that_was_taken_over_in_parts_and_with_nothing_less() {
    let dir = Scratch::new("taken-over");
    let w = world(&dir.0);
    for _ in 0..3 {
        w.add(1, 1).unwrap();
        w.fold.snapshot_now().unwrap();
    }
    assert!(w.log.info(T).unwrap().first > Index(1), "the log alone does not reach back");
    assert!(fresh(&w, &dir.0, "other").is_err());
    let other = store(&dir.0, "other");
    let part = |index, offset| w.fold.snapshot_part(index, offset, 1000);
    // A bit that flips on the way, wherever it is, and parts that end early leave nothing.
    for at in [3, 20, 3500, 4097, 4110, 4140] {
        let damaged = other.install(|index, offset| {
            let mut part = part(index, offset)?;
            if let Some(byte) =
                part.bytes.get_mut(at % 1000).filter(|_| offset == at as u64 / 1000 * 1000)
            {
                *byte ^= 1;
            }
            Ok(part)
        });
        // Padding is nobody's: what follows the header's names is covered all the same.
        assert_eq!(damaged.unwrap_err().kind, Kind::Corrupt, "byte {at}");
        assert_eq!(other.newest().unwrap(), Index(0));
    }
    let ended = other.install(|index, offset| match offset {
        0 => part(index, offset),
        _ => Ok(SnapshotPart { bytes: Vec::new(), ..part(index, 0)? }),
    });
    assert_eq!(ended.unwrap_err().kind, Kind::Retry);
    let newest = other.install(part).unwrap();
    assert_eq!((newest, other.newest().unwrap()), (Index(3), Index(3)));
    let fold = fresh(&w, &dir.0, "other").unwrap();
    assert_eq!((view(&fold), fold.status().digest), (view(&w.fold), w.fold.status().digest));
}

/// A panic in `apply` used to poison the view's lock: every reader and every later entry panicked
/// too, and since the entry was durable by then, so did each start, for ever. Now the view stops in
/// front of that entry, by its name; nothing half applied is read or kept; and a build that can
/// apply the entry goes on by itself.
#[test]
fn an_entry_whose_application_panics_stops_the_view_until_a_build_can_apply_it() {
    let dir = Scratch::new("panics");
    let w = world(&dir.0);
    assert_eq!(w.add(1, 10), Ok(10));
    w.fold.snapshot_now().unwrap();
    let s = w.session();
    {
        BROKEN.set(true);
        let e = w.send(s, 1, 1, &[1, POISON, 1]).unwrap_err();
        assert_eq!(e.kind, Kind::Bug);
        for said in [T, "entry 3", "a command of 3 bytes", "sums", "out of its bounds"] {
            assert!(e.message.contains(said), "{e}");
        }
        // Its readers, its proposers and its snapshots are told so, and nobody panics.
        assert_eq!(w.fold.read(|_, _| ()), Err(e.clone()));
        assert_eq!(w.add(1, 1), Err(e.clone()));
        assert_eq!(w.fold.known(s, Sequence(1)), None);
        assert!(w.fold.snapshot_now().unwrap_err().message.contains("entry 3"));
        assert_eq!(w.fold.status().stopped, Some(e.clone()));
        assert_eq!(w.fold.status().applied, Index(2), "in front of the entry");
        drop(w);
        // At every start, from a snapshot and from the log alone; the log itself stays open.
        let w = world(&dir.0);
        assert_eq!(w.fold.status().stopped, Some(e.clone()));
        assert_eq!(fresh(&w, &dir.0, "elsewhere").unwrap().status().stopped, Some(e));
        assert_eq!(w.log.info(T).unwrap().next, Index(4));
        BROKEN.set(false);
    }
    let w = world(&dir.0);
    assert_eq!(w.fold.status().stopped, None);
    assert_eq!(w.send(s, 1, 1, &[1, POISON, 1]), Ok(1), "the first answer, applied at last");
    assert_eq!(w.add(1, 1), Ok(11));
}

/// One flipped bit in the log refused the start, although a verified snapshot lay behind that
/// entry. Every sector of a log is damaged in turn: what a snapshot contains is made up for by it,
/// named and kept aside; nothing behind it is lost; and damage that nothing covers is refused.
#[test]
fn damage_in_front_of_a_snapshot_is_passed_over_and_no_other() {
    const SECTOR: usize = 4096;
    let dir = Scratch::new("covered");
    let w = world(&dir.0);
    let session = w.session();
    for i in 0..6 {
        w.send(session, i + 1, 1, &[1, i as u8, 10]).unwrap();
    }
    let snapshot = w.fold.snapshot_now().unwrap();
    for i in 6..9 {
        w.send(session, i + 1, 1, &[1, i as u8, 10]).unwrap();
    }
    let whole = (view(&w.fold), w.fold.status().digest, w.fold.status().sessions);
    drop(w);
    let segment = std::fs::read_dir(dir.0.join("log/topics/ns+0")).unwrap();
    let mut segment = segment.map(|entry| entry.unwrap().path());
    let segment = segment.find(|path| path.extension().is_some_and(|e| e == "seg"));
    let segment = segment.unwrap();
    let bytes = std::fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() / SECTOR + 1;
    let covered = |_: &str| store(&dir.0, "snapshots").newest().ok();
    let (mut passed, mut refused) = (0, 0);
    // The header, the session's entry, and one commit an entry.
    for sector in 0..used {
        for (at, wide) in [(0, 1), (20, 1), (70, 1), (20, 2)] {
            let mark = segment.with_file_name("trim");
            let _ = std::fs::remove_file(&mark);
            let mut damaged = bytes.clone();
            let last = sector + wide - 1;
            if wide == 2 && last + 1 >= used {
                // With nothing whole behind it, it is a torn tail.
                continue;
            }
            (sector..=last).for_each(|sector| damaged[sector * SECTOR + at] ^= 1);
            std::fs::write(&segment, &damaged).unwrap();
            for _ in 0..2 {
                let log = EmbeddedLog::open_covered(
                    Arc::new(RealDisk),
                    &dir.0.join("log"),
                    options(Drive::Pump),
                    &covered,
                );
                let log = Arc::new(log.unwrap());
                let opened = Fold::<Sums>::open(log.clone(), T, store(&dir.0, "snapshots"), MANUAL);
                let needed = last as u64 > snapshot.0;
                match opened {
                    Ok(fold) => {
                        assert_eq!((view(&fold), fold.status().digest, 1), whole);
                        assert_eq!(log.info(T).unwrap().next, Index(11));
                        if let [damage] = log.passed_over() {
                            assert!(damage.next.0 <= snapshot.0 + 1 && damage.first < damage.next);
                            let kept = std::fs::read(&damage.kept).unwrap();
                            let from = damage.offset as usize;
                            assert_eq!(kept, damaged[from..from + kept.len()]);
                            passed += 1;
                        }
                    }
                    Err(e) => {
                        assert!(needed, "sector {sector} of {used}, at {at}: {e}");
                        assert_eq!(e.kind, Kind::Corrupt);
                        assert!(log.passed_over().is_empty());
                        assert_eq!(std::fs::read(&segment).unwrap(), damaged, "as it was");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(passed >= 7 && refused >= 4, "{passed} passed over, {refused} refused");
}
