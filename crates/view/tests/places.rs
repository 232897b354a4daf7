//! A view kept in rows beside the same view in memory: one log makes the same of both, whatever ends
//! a process, and whatever snapshot they begin with.
#![allow(clippy::disallowed_methods, reason = "tests keep logs in directories of their own")]

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::*;
use holdfast_base::ids::{Index, Sequence, SessionId, Term};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::rows::{Batch, Cursor, Each, Engine, MemoryRows, Moment, Rows};
use holdfast_env::trial::Trial;
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_log::*;
use holdfast_sim::SimDisk;
use holdfast_view::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

const T: &str = "sums";
const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
/// A command that panics, one that is not known, and one that finds its rows unreadable.
const POISON: u8 = 200;
const NEWER: u8 = 201;
const UNREADABLE: u8 = 202;
/// In front of commands of builds that had no envelopes.
const BARE: u8 = 2;

/// Keys and their new sums; none for one that goes.
type Changes = Vec<(u8, Option<u64>)>;

/// Sums by key, below 100; a command adds to a key, or takes all keys from one on away.
fn decide(
    command: &[u8],
    get: &mut dyn FnMut(u8) -> Result<Option<u64>>,
    from: &mut dyn FnMut(u8) -> Result<Vec<u8>>,
) -> Result<(Applied, Changes)> {
    let refused = |e| Ok((Applied::Refused(e), Vec::new()));
    match *command.strip_prefix(&[BARE]).unwrap_or(command) {
        [b'+', key @ 1..=254, add] => {
            let sum = get(key)?.unwrap_or_default() + add as u64;
            if sum > 100 {
                return refused(Error::full("it is enough"));
            }
            Ok((Applied::Ok(vec![sum as u8]), vec![(key, Some(sum))]))
        }
        [b'-', key] => {
            let keys = from(key)?;
            let gone = keys.iter().map(|key| (*key, None)).collect();
            Ok((Applied::Ok(keys), gone))
        }
        [POISON] => panic!("a planted panic"),
        [NEWER] => Ok((Applied::UnknownVersion("command 201".into()), Vec::new())),
        [UNREADABLE] => Err(Error::corrupt("a row cannot be read")),
        _ => refused(Error::invalid("no command")),
    }
}

#[derive(Default)]
struct InMemory(BTreeMap<u8, u64>);

impl View for InMemory {
    const NAME: &'static str = "sums";
    const VERSION: u32 = 1;
    const BARE: Option<u8> = Some(BARE);

    fn begin(_: &Context) -> InMemory {
        InMemory::default()
    }

    fn apply(&mut self, _: Index, command: &[u8]) -> Applied {
        let sums = &self.0;
        let mut get = |key| Ok(sums.get(&key).copied());
        let mut from = |key| Ok(sums.range(key..).map(|(key, _)| *key).collect());
        match decide(command, &mut get, &mut from) {
            Ok((applied, changes)) => {
                for (key, sum) in changes {
                    match sum {
                        Some(sum) => self.0.insert(key, sum),
                        None => self.0.remove(&key),
                    };
                }
                applied
            }
            Err(e) => Applied::Failed(e),
        }
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        self.0.iter().for_each(|(key, sum)| {
            out.put(key);
            out.put(sum);
        });
    }

    fn restore(_: &Context, _: &mut Source<'_>) -> Result<InMemory> {
        Err(Error::bug("it is always folded from the log"))
    }
}

struct Sums;

impl RowsView for Sums {
    const NAME: &'static str = "sums";
    const VERSION: u32 = 1;
    const BARE: Option<u8> = Some(BARE);

    fn apply(rows: &Page<'_>, _: Index, command: &[u8], changes: &mut Batch) -> Result<Applied> {
        let mut get = |key| Ok(rows.get(&[key])?.map(|sum| sum[0] as u64));
        let mut from = |key: u8| {
            let mut keys = Vec::new();
            rows.scan(&[key.max(1)], &[255], &mut |row, _| {
                keys.push(row[0]);
                Ok(true)
            })?;
            Ok(keys)
        };
        let (applied, changed) = decide(command, &mut get, &mut from)?;
        for (key, sum) in changed {
            match sum {
                Some(sum) => changes.put(vec![key], vec![sum as u8]),
                None => changes.remove(vec![key]),
            }
        }
        Ok(applied)
    }
}

type Kept = Fold<InRows<Sums>>;

/// A session, its last number, and what was asked and answered under it.
type Client = (u64, u64, Option<(Vec<u8>, Result<Vec<u8>>)>);

fn store(root: &Path, name: &str) -> SnapshotStore {
    SnapshotStore { disk: Arc::new(RealDisk), directory: root.join(name) }
}

fn shown(rows: &dyn Rows) -> BTreeMap<u8, u64> {
    let mut sums = BTreeMap::new();
    rows.scan(&[1], &[255], &mut |row, value| {
        sums.insert(row[0], value[0] as u64);
        Ok(true)
    })
    .unwrap();
    sums
}

/// The last entry that the rows show.
fn position(rows: &Arc<dyn Rows>) -> u64 {
    let kept = InRows::<Sums>::begin(&Context::of(T).in_rows(rows.clone())).kept();
    kept.unwrap().map_or(0, |(position, _)| position.applied.0)
}

struct World {
    log: Arc<EmbeddedLog>,
    dir: Scratch,
}

impl World {
    fn new(name: &str) -> World {
        let dir = Scratch::new(name);
        World { log: Arc::new(open(&dir.0.join("log"), Drive::Pump)), dir }
    }

    fn open(&self, rows: &Arc<dyn Rows>) -> Result<Kept> {
        let context = Context::of(T).in_rows(rows.clone());
        Fold::open_member(self.log.clone(), context, store(&self.dir.0, "rows"), MANUAL)
    }

    fn wait<V: View, X: Send + 'static>(
        &self,
        fold: &Fold<V>,
        start: impl FnOnce(&Fold<V>, Done<X>),
    ) -> Result<X> {
        let (send, receive) = mpsc::channel();
        start(fold, Box::new(move |result| drop(send.send(result))));
        while self.log.pump() {}
        receive.try_recv().expect("an answer after the pump is dry")
    }

    fn send(&self, fold: &Kept, session: u64, sequence: u64, command: &[u8]) -> Result<Vec<u8>> {
        let request = request(session, sequence, command);
        self.wait(fold, |fold, done| fold.propose(request, done)).map(|(_, result)| result)
    }

    /// An entry of a build from before there were envelopes.
    fn append_bare(&self, entry: &[u8]) {
        self.log.append(
            T,
            vec![entry.to_vec()],
            Mode::Synced,
            Box::new(|index| assert!(index.is_ok())),
        );
        while self.log.pump() {}
    }

    /// The same log, folded anew in memory.
    fn plain(&self) -> (Fold<InMemory>, BTreeMap<u8, u64>) {
        let fresh = store(&self.dir.0, "plain");
        let fold = Fold::<InMemory>::open_follower(self.log.clone(), T, fresh, MANUAL).unwrap();
        let sums = fold.read(|view, _| view.0.clone()).unwrap();
        (fold, sums)
    }
}

fn request(session: u64, sequence: u64, command: &[u8]) -> Request {
    Request {
        session: SessionId(session),
        sequence: Sequence(sequence),
        acknowledged_below: Sequence(sequence.saturating_sub(3)),
        command: command.to_vec(),
        mode: Mode::Synced,
    }
}

fn memory() -> Arc<dyn Rows> {
    Arc::new(MemoryRows::default())
}

/// Any commands, sessions and claims, pages of any size, and ends of the process at which the rows
/// lose what was not persisted: the rows come to what memory does, and so do digest, epoch and
/// sessions; a session's first results are there behind each end.
#[test]
fn a_view_in_rows_is_what_the_same_view_in_memory_is() {
    let mut lost = 0;
    for seed in 0..30 {
        let trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed);
        let below = |n: u64| rng.next_u64() % n;
        let w = World::new("places-model");
        let mut disk = SimDisk::new(seed);
        let mut rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
        let mut fold = w.open(&rows).unwrap();
        let mut sessions: Vec<Client> = Vec::new();
        for step in 0..80 {
            match below(12) {
                0 => {
                    let opened = w.wait(&fold, |fold, done| fold.open_session(Mode::Synced, done));
                    sessions.push((opened.unwrap().0, 0, None));
                }
                1 if below(3) == 0 && !sessions.is_empty() => {
                    let id =
                        SessionId(sessions.swap_remove(below(sessions.len() as u64) as usize).0);
                    w.wait(&fold, |fold, done| fold.end_session(id, Mode::Synced, done)).unwrap();
                }
                2 => drop(w.wait(&fold, |fold, done| fold.claim(Term::default(), done)).unwrap()),
                3 => {
                    if below(2) == 0 {
                        rows.persist("test.rows").unwrap();
                    }
                    let applied = fold.status().applied;
                    drop(fold);
                    drop(rows);
                    disk = disk.power_cut(rng.next_u64());
                    rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
                    let kept = InRows::<Sums>::begin(&Context::of(T).in_rows(rows.clone())).kept();
                    lost += kept.unwrap().is_none_or(|(kept, _)| kept.applied < applied) as u64;
                    fold = w.open(&rows).unwrap();
                }
                4 => {
                    // The answer that a client did not hear.
                    let Some((id, at, Some((command, first)))) = sessions.last() else { continue };
                    assert_eq!(w.send(&fold, *id, *at, command), *first, "{seed} {step}");
                }
                5 => drop(w.send(&fold, 0, 0, &[b'-', below(250) as u8])),
                6 => w.append_bare(&[BARE, b'+', 1 + below(5) as u8, below(30) as u8]),
                _ => {
                    let command = vec![b'+', 1 + below(5) as u8, below(30) as u8];
                    let Some((id, at, last)) = sessions.last_mut() else { continue };
                    *at += 1;
                    let result = w.send(&fold, *id, *at, &command);
                    *last = Some((command, result));
                }
            }
        }
        let (plain, sums) = w.plain();
        assert_eq!(shown(&*rows), sums, "seed {seed}");
        let (status, wanted) = (fold.status(), plain.status());
        assert_eq!(
            (status.applied, status.digest, status.epoch, status.sessions, status.stopped),
            (wanted.applied, wanted.digest, wanted.epoch, wanted.sessions, None),
            "seed {seed}"
        );
        assert_eq!(fold.sessions(), plain.sessions(), "seed {seed}");
        drop(trial);
    }
    assert!(lost > 10, "rows lost batches {lost} times");
}

/// A disk without room stopped a view until the next start, though others wrote on when there was
/// some again. Any commands while there is room and while there is none: what was answered is
/// shown, what was not answered is in doubt and says so; with room again the view resumes, shows no
/// less than before, and comes to what memory does.
#[test]
fn a_view_whose_rows_had_no_room_resumes_when_there_is_some() {
    let (mut held_up, mut lost) = (0, 0);
    for seed in 0..60 {
        let trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed);
        let below = |n: u64| rng.next_u64() % n;
        let w = World::new("places-full");
        let disk = SimDisk::new(seed);
        let rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
        let fold = w.open(&rows).unwrap();
        let session = w.wait(&fold, |fold, done| fold.open_session(Mode::Synced, done)).unwrap();
        let mut doubted: Option<(u64, Vec<u8>)> = None;
        for step in 1..120 {
            // Whoever waits for an index reads what it shows.
            assert_eq!(fold.applied().0, position(&rows), "{seed} {step}");
            match below(10) {
                0 => disk.set_capacity(if below(2) == 0 { 0 } else { 1 << 40 }),
                1 => drop(rows.persist("test.rows")),
                2 => {
                    let stopped = fold.status().stopped.is_some();
                    let (kept, before) = (position(&rows), fold.applied());
                    disk.set_capacity(1 << 40);
                    assert_eq!(fold.resume(), Ok(stopped), "{seed} {step}");
                    held_up += stopped as u64;
                    lost += (stopped && position(&rows) > kept) as u64;
                    assert!(fold.applied() >= before && position(&rows) >= kept, "{seed} {step}");
                    if let Some((at, command)) = doubted.take() {
                        let again = w.send(&fold, session.0, at, &command);
                        let (plain, _) = w.plain();
                        assert_eq!(
                            Some(again),
                            plain.known(session, Sequence(at)),
                            "{seed} {step}"
                        );
                    }
                }
                _ => {
                    let command = vec![b'+', 1 + below(5) as u8, below(30) as u8];
                    let stopped = fold.status().stopped.is_some();
                    let result = w.send(&fold, session.0, step, &command);
                    match result.map_err(|e| e.kind) {
                        Err(Kind::Retry) => doubted = Some((step, command)),
                        // Not in the log.
                        Err(Kind::Full) if stopped => {}
                        result => assert!(
                            !stopped && position(&rows) == fold.applied().0,
                            "{seed} {step}: {result:?}"
                        ),
                    }
                }
            }
        }
        disk.set_capacity(1 << 40);
        fold.resume().unwrap();
        let (plain, sums) = w.plain();
        assert_eq!(shown(&*rows), sums, "seed {seed}");
        let (status, wanted) = (fold.status(), plain.status());
        assert_eq!(
            (status.applied, status.digest, status.sessions, status.stopped),
            (wanted.applied, wanted.digest, wanted.sessions, None),
            "seed {seed}"
        );
        drop(trial);
    }
    assert!(held_up > 30 && lost > 30, "held up {held_up} times, {lost} of them behind the log");
}

/// Entries in front of one that cannot be applied are kept, it and those behind it are not; the same
/// at each start, until a build can apply it.
#[test]
fn what_cannot_be_applied_stops_the_view_behind_what_was_kept() {
    for (stops, kind) in
        [(POISON, Kind::Bug), (NEWER, Kind::Unsupported), (UNREADABLE, Kind::Corrupt)]
    {
        let w = World::new("places-stops");
        let rows = memory();
        let fold = w.open(&rows).unwrap();
        w.send(&fold, 0, 0, b"+\x01\x05").unwrap();
        drop(fold);
        // A page of three; the second one stops it.
        let other = w.open(&memory()).unwrap();
        for command in [b"+\x02\x06".as_slice(), &[stops], b"+\x03\x07"] {
            let _ = w.send(&other, 0, 0, command);
        }
        drop(other);
        for _ in 0..2 {
            let fold = w.open(&rows).unwrap();
            let status = fold.status();
            let e = status.stopped.unwrap();
            assert_eq!((e.kind, status.applied), (kind, Index(2)), "{e}");
            assert!(e.message.contains("entry 3"), "{e}");
            assert_eq!(shown(&*rows), BTreeMap::from([(1, 5), (2, 6)]));
            assert_eq!(w.send(&fold, 0, 0, b"+\x01\x01").unwrap_err().kind, kind);
        }
    }
}

/// Rows that are behind the log begin with a peer's snapshot, whatever they held; one that is
/// damaged leaves them as they are, and an end of the process in the midst of it leaves nothing that
/// is taken for a view.
#[test]
fn rows_begin_with_a_peers_snapshot_where_the_log_was_trimmed() {
    let w = World::new("places-boot");
    let (ahead, behind) = (memory(), memory());
    let fold = w.open(&ahead).unwrap();
    let session = w.wait(&fold, |fold, done| fold.open_session(Mode::Synced, done)).unwrap();
    w.send(&fold, session.0, 1, b"+\x09\x01").unwrap();
    let late_store = store(&w.dir.0, "late");
    let late = |rows: &Arc<dyn Rows>| -> Result<Kept> {
        let context = Context::of(T).in_rows(rows.clone());
        Fold::open_member(w.log.clone(), context, late_store.clone(), MANUAL)
    };
    drop(late(&behind).unwrap());
    for key in 1..=9 {
        w.send(&fold, session.0, 1 + key as u64, &[b'+', key, key]).unwrap();
        fold.snapshot_now().unwrap();
    }
    w.log.trim(T, fold.covered().unwrap()).unwrap();
    let stopped = late(&behind).unwrap().status().stopped;
    assert_eq!(stopped.unwrap().kind, Kind::Corrupt, "the log has gone on without it");
    assert_eq!(shown(&*behind), BTreeMap::from([(9, 1)]));
    late_store.install(|index, offset| fold.snapshot_part(index, offset, 100)).unwrap();
    let newest = late_store.newest().unwrap();
    let path = late_store.directory.join(format!("snapshot-{:020}.hfs", newest.0));
    let good = read_bytes(&path);
    let mut bad = good.clone();
    bad[4120] ^= 1;
    write_bytes(&path, &bad);
    assert!(late(&behind).unwrap().status().stopped.is_some());
    assert_eq!(shown(&*behind), BTreeMap::from([(9, 1)]), "what there was is there");
    write_bytes(&path, &good);
    let compare = |late: &Kept, rows: &dyn Rows| {
        assert_eq!(shown(rows), shown(&*ahead));
        let (status, wanted) = (late.status(), fold.status());
        assert_eq!((status.applied, status.digest), (wanted.applied, wanted.digest));
        assert_eq!((status.stopped, status.sessions), (None, 1));
    };
    compare(&late(&behind).unwrap(), &*behind);
    // The snapshot is not needed twice.
    remove(&path);
    let again = late(&behind).unwrap();
    compare(&again, &*behind);
    assert_eq!(w.send(&again, session.0, 9, b"+\x08\x08"), Ok(vec![8]), "the first result");
    let torn = memory();
    let mut batch = Batch::default();
    batch.put(vec![77], vec![1]);
    torn.write(batch).unwrap();
    let view = InRows::<Sums>::begin(&Context::of(T).in_rows(torn.clone()));
    assert!(view.kept().unwrap().is_none() && shown(&*torn).is_empty());
}

/// Rows that take down which threads write to them.
#[derive(Default)]
struct Watched {
    rows: MemoryRows,
    writers: Mutex<BTreeSet<String>>,
    batches: Mutex<u64>,
}

impl Rows for Watched {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.rows.get(row)
    }
    fn moment(&self) -> Result<Arc<dyn Moment>> {
        self.rows.moment()
    }
    fn write(&self, batch: Batch) -> Result<()> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.writers.lock().unwrap().insert(thread);
        *self.batches.lock().unwrap() += 1;
        self.rows.write(batch)
    }
    fn persist(&self, site: &'static str) -> Result<()> {
        self.rows.persist(site)
    }
    fn open_again(&self) -> Result<()> {
        self.rows.open_again()
    }
}

/// On a thread of its own: no other one writes to the rows, every answer is seen in them when it
/// comes, and a backlog is a few batches.
#[test]
fn a_fold_on_its_thread_answers_behind_its_batches_which_nobody_else_writes() {
    let dir = Scratch::new("places-thread");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Threads));
    let rows = Arc::new(Watched::default());
    let open = |rows: &Arc<Watched>, name: &str| -> Kept {
        let context = Context::of(T).in_rows(rows.clone());
        Fold::open_on_thread(log.clone(), context, store(&dir.0, name), MANUAL).unwrap()
    };
    let fold = open(&rows, "first");
    let wait = |fold: &Kept, request: Request| {
        let (send, receive) = mpsc::channel();
        fold.propose(request, Box::new(move |result| drop(send.send(result))));
        receive.recv().unwrap()
    };
    std::thread::scope(|scope| {
        for key in 1..=4u8 {
            let (fold, rows, wait) = (&fold, &rows, &wait);
            scope.spawn(move || {
                for sum in 1..=50u8 {
                    let (_, result) = wait(fold, request(0, 0, &[b'+', key, 1])).unwrap();
                    assert_eq!(result, [sum]);
                    assert_eq!(rows.get(&[key]).unwrap(), Some(vec![sum]), "it is there");
                }
            });
        }
    });
    assert_eq!(*rows.writers.lock().unwrap(), BTreeSet::from(["fold".to_owned()]));
    let late = Arc::new(Watched::default());
    let other = open(&late, "late");
    wait(&other, request(0, 0, b"+\x05\x01")).unwrap();
    assert_eq!(shown(&late.rows), shown(&rows.rows).into_iter().chain([(5, 1)]).collect());
    assert!(*late.batches.lock().unwrap() < 20, "{} batches", late.batches.lock().unwrap());
    // Whoever waits when it ends is told.
    drop(fold);
    drop(other);
}

/// The thread waits for room, too.
#[test]
fn a_fold_on_its_thread_resumes_when_there_is_room() {
    let dir = Scratch::new("places-thread-full");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Threads));
    let disk = SimDisk::new(1);
    let rows = disk.open_rows(Path::new("/rows"), "rows", 0).unwrap();
    let context = Context::of(T).in_rows(rows.clone());
    let fold: Kept =
        Fold::open_on_thread(log.clone(), context, store(&dir.0, "first"), MANUAL).unwrap();
    let send = || {
        let (send, receive) = mpsc::channel();
        let add = request(0, 0, b"+\x01\x01");
        fold.propose(add, Box::new(move |result| drop(send.send(result))));
        receive.recv().unwrap().map(|(_, sum)| sum)
    };
    for turn in 0..5 {
        assert_eq!(send(), Ok(vec![1 + turn * 3]));
        disk.set_capacity(0);
        rows.persist("test.rows").unwrap_err();
        assert_eq!(send().unwrap_err().kind, Kind::Retry, "its entry is in the log");
        disk.set_capacity(1 << 40);
        assert_eq!(fold.resume(), Ok(true));
        assert_eq!(fold.resume(), Ok(false), "nothing is in the way any more");
        assert_eq!(send(), Ok(vec![3 + turn * 3]));
    }
}

/// docs/formats/log.md, a view's rows.
#[test]
fn the_folds_own_rows_are_as_they_are_written_down() {
    let w = World::new("places-golden");
    let rows = memory();
    let fold = w.open(&rows).unwrap();
    w.wait(&fold, |fold, done| fold.claim(Term::default(), done)).unwrap();
    let session = w.wait(&fold, |fold, done| fold.open_session(Mode::Synced, done)).unwrap();
    w.send(&fold, session.0, 1, b"+\x09\x05").unwrap();
    let _ = w.send(&fold, session.0, 2, b"+\x09\xff");
    let mut found = Vec::new();
    let mut each = |row: &[u8], value: &[u8]| {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        found.push(format!("{} {}", hex(row), hex(value)));
        Ok(true)
    };
    rows.scan(&[0], &[255], &mut each).unwrap();
    let golden = [
        "0070 0400000073756d73010000000400000000000000188c072b0ce26bb9f017b68b0100000000000000",
        "00730000000000000002 010000000000000002000000010000000000000000000100000005\
         020000000000000007000c000000697420697320656e6f756768",
        "09 05",
    ];
    assert_eq!(found, golden);
}

/// Each of several requests that are one append hears its own answer, also where entries of others
/// lie in front of them, and where the append fails.
#[test]
fn requests_that_are_proposed_together_are_answered_each_for_itself() {
    let w = World::new("places-together");
    let rows = memory();
    let fold = w.open(&rows).unwrap();
    let together = |fold: &Kept, commands: &[&[u8]]| {
        let (send, receive) = mpsc::channel();
        let one = |(at, command): (usize, &&[u8])| {
            let send = send.clone();
            let done: Done<(Index, Vec<u8>)> =
                Box::new(move |result| send.send((at, result)).unwrap());
            (request(0, 0, command), done)
        };
        fold.propose_all(commands.iter().enumerate().map(one).collect(), Mode::Synced);
        while w.log.pump() {}
        let mut heard: Vec<_> = receive.try_iter().collect();
        heard.sort_by_key(|(at, _)| *at);
        heard.into_iter().map(|(_, result)| result.map(|(index, sum)| (index.0, sum))).collect()
    };
    let heard: Vec<Result<(u64, Vec<u8>)>> =
        together(&fold, &[b"+\x01\x05", b"+\x01\xff", b"+\x01\x06"]);
    assert_eq!(heard[0], Ok((1, vec![5])));
    assert_eq!(heard[1].as_ref().unwrap_err().kind, Kind::Full);
    assert_eq!(heard[2], Ok((3, vec![11])));
    w.append_bare(&[BARE, b'+', 1, 1]);
    let heard = together(&fold, &[b"+\x01\x01", b"+\x02\x01"]);
    assert_eq!(heard, [Ok((5, vec![13])), Ok((6, vec![1]))]);
    assert!(together(&fold, &[]).is_empty());
    assert_eq!(w.plain().1, shown(&*rows));
    let large = vec![b'+'; holdfast_base::limits::ENTRY_BYTES_MAX + 1];
    let heard = together(&fold, &[b"+\x01\x01", &large]);
    assert!(
        heard.len() == 2 && heard.iter().all(Result::is_err),
        "all of it or nothing: {heard:?}"
    );
    fold.end();
    let heard = together(&fold, &[b"+\x01\x01"]);
    assert_eq!(
        heard[0].as_ref().unwrap_err().kind,
        Kind::Retry,
        "nothing is applied behind the end"
    );
    assert_eq!(shown(&*rows)[&1], 13);
}

/// Something that is done once.
type Work = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Rows in whose first scan something is done.
struct Busy {
    rows: MemoryRows,
    busy: Work,
}

impl Rows for Busy {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.rows.get(row)
    }
    fn moment(&self) -> Result<Arc<dyn Moment>> {
        Ok(Arc::new(BusyMoment { moment: self.rows.moment()?, busy: self.busy.clone() }))
    }
    fn write(&self, batch: Batch) -> Result<()> {
        self.rows.write(batch)
    }
    fn persist(&self, site: &'static str) -> Result<()> {
        self.rows.persist(site)
    }
    fn open_again(&self) -> Result<()> {
        self.rows.open_again()
    }
}

struct BusyMoment {
    moment: Arc<dyn Moment>,
    busy: Work,
}

impl Moment for BusyMoment {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.moment.get(row)
    }
    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.moment.last(from, until)
    }
    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>> {
        let cursor = self.moment.cursor(from, until)?;
        Ok(Box::new(BusyCursor { cursor, busy: self.busy.clone() }))
    }
}

struct BusyCursor {
    cursor: Box<dyn Cursor>,
    busy: Work,
}

impl Cursor for BusyCursor {
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool> {
        self.cursor.advance(&mut |row, value| {
            let goes_on = each(row, value)?;
            let busy = self.busy.lock().unwrap().take();
            busy.into_iter().for_each(|work| work());
            Ok(goes_on)
        })
    }
}

/// Rows are more than memory: who proposes does not wait for a snapshot of them (this test would
/// not end), and the snapshot shows the moment at which it was begun.
#[test]
fn entries_are_applied_while_a_snapshot_of_rows_is_written() {
    let dir = Scratch::new("places-busy");
    let log = Arc::new(open(&dir.0.join("log"), Drive::Threads));
    let rows = Arc::new(Busy { rows: MemoryRows::default(), busy: Work::default() });
    let context = Context::of(T).in_rows(rows.clone());
    let first = store(&dir.0, "first");
    let fold = Fold::<InRows<Sums>>::open_on_thread(log.clone(), context, first, MANUAL).unwrap();
    let fold = Arc::new(fold);
    let send = |fold: &Kept, command: &[u8]| {
        let (send, receive) = mpsc::channel();
        fold.propose(request(0, 0, command), Box::new(move |result| drop(send.send(result))));
        receive.recv().unwrap().unwrap()
    };
    send(&fold, b"+\x01\x01");
    send(&fold, b"+\x02\x02");
    let busy = fold.clone();
    let work = move || {
        send(&busy, b"+\x02\x05");
        send(&busy, b"+\x03\x03");
    };
    *rows.busy.lock().unwrap() = Some(Box::new(work));
    assert_eq!(fold.snapshot_now().unwrap(), Index(2));
    assert_eq!(shown(&rows.rows), BTreeMap::from([(1, 1), (2, 7), (3, 3)]));
    let late_store = store(&dir.0, "late");
    late_store.install(|index, offset| fold.snapshot_part(index, offset, 100)).unwrap();
    let late = memory();
    let context = Context::of(T).in_rows(late.clone());
    let restored = Fold::<InRows<Sums>>::open_member(log, context, late_store, MANUAL).unwrap();
    assert_eq!(shown(&*late), shown(&rows.rows));
    assert_eq!(restored.status().digest, fold.status().digest);
    // A fold that ends does not wait for all of its rows to be written.
    let ending = fold.clone();
    *rows.busy.lock().unwrap() = Some(Box::new(move || ending.end()));
    assert_eq!(fold.snapshot_now().unwrap_err().kind, Kind::Retry);
}
