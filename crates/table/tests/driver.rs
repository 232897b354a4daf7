//! A tablet on a real log, with threads: whoever asks at once is answered once, and the region decides in
//! one order; a log that takes nothing for a while costs answers, and nothing else.

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::Scratch;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::{Disk, HoldMutex, RealDisk};
use holdfast_log::{Done, EmbeddedLog, Info, Log, LogOptions, Mode as Append, Scope};
use holdfast_sim::SimDisk;
use holdfast_table::entry::{Asked, VERSION};
use holdfast_table::ids::{Place, StreamId};
use holdfast_table::message::{Answer, Expect, Level, Op, Request};
use holdfast_table::name::TableName;
use holdfast_table::region::{Policy, Settings};
use holdfast_table::sessions::Outcome;
use holdfast_table::tablet::{Form, Mode};
use holdfast_table::tablets::OpenTablet;
use holdfast_table::token::Token;
use holdfast_table::view::{Made, dropped};
use holdfast_view::{Context, Fold, FoldOptions, Request as Proposal, SnapshotStore};
use holdfast_wire::Call;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TOPIC: &str = "table/t/0";

/// What was to be appended, and who is told of it.
type Held = (Vec<Vec<u8>>, Append, Done<Indices>);

/// A log whose disk is full now and then, and which takes its time while that is asked for.
struct Filling {
    log: EmbeddedLog,
    is_full: AtomicBool,
    holds: AtomicBool,
    held: Mutex<Vec<Held>>,
}

impl Filling {
    fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    fn let_go(&self) {
        self.holds.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held.held());
        for (entries, mode, done) in held {
            self.log.append(TOPIC, entries, mode, done);
        }
    }
}

impl Log for Filling {
    fn create(&self, topic: &str) -> Result<()> {
        self.log.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Append, done: Done<Indices>) {
        match self.is_full.load(Ordering::SeqCst) {
            true => done(Err(Error::full("append: the disk is full: free some"))),
            false if self.holds.load(Ordering::SeqCst) => {
                self.held.held().push((entries, mode, done));
            }
            false => self.log.append(topic, entries, mode, done),
        }
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.log.read(topic, from, entries_max, bytes_max, scope)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        self.log.tail(topic, from, wake);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.log.sync(topic)
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.log.trim(topic, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        self.log.info(topic)
    }

    fn topics(&self) -> Vec<String> {
        self.log.topics()
    }
}

/// Who is not answered at all fails, and does not hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn open_log(disk: Arc<dyn Disk>, directory: &Path) -> Arc<Filling> {
    let log = EmbeddedLog::open(disk, &directory.join("log"), LogOptions::default());
    Arc::new(Filling {
        log: log.unwrap(),
        is_full: AtomicBool::new(false),
        holds: AtomicBool::new(false),
        held: Mutex::default(),
    })
}

fn made(mode: Mode) -> Made {
    Made { form: Form::new(mode, 1), region: Form::first_region(), tablet: 0, tablets: 1 }
}

fn append(tablet: &OpenTablet, entry: Vec<u8>) -> Result<(Index, Vec<u8>)> {
    let (told, hears) = mpsc::channel();
    let proposal = Proposal::of(Call::default(), entry, Append::Synced);
    tablet.fold().propose(proposal, Box::new(move |result| told.send(result).unwrap()));
    hears.recv_timeout(PATIENCE).expect("nobody says what came of it")
}

/// Opened, made where it is new, and decided for here.
fn open(log: &Arc<Filling>, disk: Arc<dyn Disk>, directory: &Path, mode: Mode) -> Arc<OpenTablet> {
    let store = SnapshotStore { disk, directory: directory.join("snapshots") };
    let fold = Fold::open_member(log.clone(), Context::of(TOPIC), store, FoldOptions::default());
    let name = TableName::of_topic(TOPIC).unwrap();
    let tablet = OpenTablet::new(name, Arc::new(fold.unwrap()), Arc::default(), Arc::default(), 1);
    // Of one that is there the second such entry is refused.
    let _ = append(&tablet, made(mode).command());
    tablet.decide(Settings { policy: Policy::Wait, ..Settings::default() }).unwrap();
    tablet
}

fn begin_to_ask(tablet: &Arc<OpenTablet>, key: &[u8], op: Op) -> Receiver<Result<Answer>> {
    let (told, hears) = mpsc::channel();
    let request = Request { key: key.to_vec(), op };
    tablet.ask(request, Box::new(move |answer| told.send(answer).unwrap()));
    hears
}

fn ask(tablet: &Arc<OpenTablet>, key: &[u8], op: Op) -> Result<Answer> {
    begin_to_ask(tablet, key, op).recv_timeout(PATIENCE).expect("nobody answers")
}

/// As [`ask`], where time passes for the tablet here alone: as appends take no part of a tick.
fn ask_in_time(log: &Filling, tablet: &Arc<OpenTablet>, key: &[u8], op: Op) -> Result<Answer> {
    let hears = begin_to_ask(tablet, key, op);
    loop {
        if let Ok(answer) = hears.try_recv() {
            return answer;
        }
        log.sync(TOPIC).unwrap();
        tablet.tick();
    }
}

fn second() -> Op {
    let asked = Asked { session: 1, sequence: 2, below: 2 };
    Op::Write { asked, value: Some(b"second".to_vec()), expect: Expect::Any }
}

fn put(
    tablet: &Arc<OpenTablet>,
    session: u64,
    sequence: u64,
    key: &[u8],
    value: &[u8],
) -> Result<u64> {
    let asked = Asked { session, sequence, below: sequence };
    let op = Op::Write { asked, value: Some(value.to_vec()), expect: Expect::Any };
    match ask(tablet, key, op)? {
        Answer::Done { outcome: Outcome::Written(version), .. } => Ok(version),
        other => panic!("{other:?}"),
    }
}

fn get(tablet: &Arc<OpenTablet>, key: &[u8], level: Level) -> Option<(u64, Vec<u8>)> {
    match ask(tablet, key, Op::Read(level)).unwrap() {
        Answer::Value { found, .. } => found.map(|(version, value)| (version, value.to_vec())),
        other => panic!("{other:?}"),
    }
}

/// Under how many epochs the home was led.
fn rounds(tablet: &OpenTablet) -> u64 {
    let looked = tablet.fold().read(|view, _| {
        view.look(|tablet| tablet.streams().map(|stream| stream.promised().round()).max())
    });
    looked.unwrap().flatten().unwrap()
}

/// Entries that reach the log in another order than they were decided in follow on nothing, and end the
/// epoch: with one thread nobody would notice.
#[test]
fn threads_that_write_at_once_are_decided_in_one_order() {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 150;
    for mode in [Mode::Timeline, Mode::Strong] {
        let scratch = Scratch::new("tablet");
        let log = open_log(Arc::new(RealDisk), &scratch.0);
        let tablet = open(&log, Arc::new(RealDisk), &scratch.0, mode);
        let written: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
            let write = |writer: u64| {
                let tablet = tablet.clone();
                move || -> Vec<(u64, Vec<u8>)> {
                    let one = |number| {
                        let value = format!("{writer} {number}").into_bytes();
                        let version = put(&tablet, writer, number, b"shared", &value).unwrap();
                        let level = if number % 2 == 0 { Level::Strong } else { Level::Any };
                        let (seen, _) = get(&tablet, b"shared", level).unwrap();
                        assert!(seen >= version, "{seen} is shown behind {version}");
                        (version, value)
                    };
                    (1..=WRITES).map(one).collect()
                }
            };
            let threads: Vec<_> = (1..=WRITERS).map(|writer| scope.spawn(write(writer))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(rounds(&tablet), 1, "an epoch has ended, and nothing had failed");
        let versions: BTreeMap<u64, Vec<u8>> = written.into_iter().collect();
        assert_eq!(versions.len() as u64, WRITERS * WRITES, "a version was told twice");
        let (last, value) = versions.last_key_value().unwrap();
        assert_eq!(*last, WRITERS * WRITES, "versions have gaps");
        assert_eq!(get(&tablet, b"shared", Level::Any), Some((*last, value.clone())));
        // What is held does not grow with every write.
        let kept = tablet.fold().read(|view, _| {
            view.look(|tablet| {
                tablet.streams().map(|s| s.behind(0, usize::MAX).len()).sum::<usize>()
            })
        });
        assert!(kept.unwrap().unwrap() < 100, "entries that show stay in memory");
        // Of one the log alone tells the next start.
        if mode == Mode::Timeline {
            tablet.fold().snapshot_now().unwrap();
        }
        tablet.fold().end();
        drop((tablet, log));
        let log = open_log(Arc::new(RealDisk), &scratch.0);
        let tablet = open(&log, Arc::new(RealDisk), &scratch.0, mode);
        assert_eq!(get(&tablet, b"shared", Level::Any), Some((*last, value.clone())));
        // A repetition of the last write gets its first answer, whoever has died meanwhile.
        let text = String::from_utf8(value.clone()).unwrap();
        let (session, sequence) = text.split_once(' ').unwrap();
        let (session, sequence) = (session.parse().unwrap(), sequence.parse().unwrap());
        assert_eq!(put(&tablet, session, sequence, b"shared", b"again").unwrap(), *last);
        assert_eq!(get(&tablet, b"shared", Level::Strong), Some((*last, value.clone())));
    }
}

/// What was answered is on the disk.
#[test]
fn what_was_answered_survives_a_power_cut() {
    let directory = Path::new("/data");
    let disk = SimDisk::new(7);
    let log = open_log(Arc::new(disk.clone()), directory);
    let tablet = open(&log, Arc::new(disk.clone()), directory, Mode::Timeline);
    for sequence in 1..=3 {
        put(&tablet, 1, sequence, b"a", &[sequence as u8]).unwrap();
    }
    let disk = disk.power_cut_losing_all();
    let log = open_log(Arc::new(disk.clone()), directory);
    let tablet = open(&log, Arc::new(disk), directory, Mode::Timeline);
    assert_eq!(get(&tablet, b"a", Level::Any), Some((3, vec![3])));
}

/// A full disk: writers hear of it, readers do not, and when there is room again everything goes on. What
/// was refused is not there.
#[test]
fn a_log_without_room_refuses_writes_and_goes_on_when_there_is_some() {
    for mode in [Mode::Timeline, Mode::Strong] {
        let scratch = Scratch::new("tablet");
        let log = open_log(Arc::new(RealDisk), &scratch.0);
        let tablet = open(&log, Arc::new(RealDisk), &scratch.0, mode);
        assert_eq!(put(&tablet, 1, 1, b"a", b"first").unwrap(), 1);
        log.is_full.store(true, Ordering::SeqCst);
        let refused = ask_in_time(&log, &tablet, b"a", second()).unwrap_err();
        assert_eq!((refused.kind, refused.message.contains("disk is full")), (Kind::Full, true));
        assert_eq!(get(&tablet, b"a", Level::Any), Some((1, b"first".to_vec())));
        // A claim fails, too.
        (0..40).for_each(|_| tablet.tick());
        log.is_full.store(false, Ordering::SeqCst);
        let mut written = None;
        for _ in 0..10 {
            match ask_in_time(&log, &tablet, b"a", second()) {
                Ok(Answer::Done { outcome, .. }) => {
                    written = Some(outcome);
                    break;
                }
                Ok(other) => panic!("{other:?}"),
                Err(e) => assert!(matches!(e.kind, Kind::Full | Kind::Retry), "{e}"),
            }
        }
        assert_eq!(written, Some(Outcome::Written(2)), "{mode:?}");
        assert_eq!(get(&tablet, b"a", Level::Strong), Some((2, b"second".to_vec())));
        assert!(rounds(&tablet) > 1, "it goes on under an epoch that may have a gap");
    }
}

/// Of what is to come: it waits until that shows.
fn read_of_later() -> Op {
    let stream = StreamId(0);
    Op::Read(Level::Session(Token::of(stream, Place::new(stream.first_epoch(), 1000))))
}

/// A write whose entry is on its way into the log, and a read that nothing is on its way for, would wait for ever at
/// a tablet that decides nothing any more.
#[test]
fn who_waits_is_answered_when_what_would_answer_stops() {
    for mode in [Mode::Timeline, Mode::Strong] {
        let scratch = Scratch::new("tablet");
        let log = open_log(Arc::new(RealDisk), &scratch.0);
        let tablet = open(&log, Arc::new(RealDisk), &scratch.0, mode);
        put(&tablet, 1, 1, b"a", b"first").unwrap();
        log.hold();
        let waiting = [(b"a", second()), (b"b", read_of_later())]
            .map(|(key, op)| begin_to_ask(&tablet, key, op));
        tablet.fold().stop(Error::corrupt("its records are not those of other nodes"));
        log.let_go();
        for hears in waiting {
            let why = hears.recv_timeout(PATIENCE).expect("nobody answers").unwrap_err();
            assert_eq!(why.kind, Kind::Corrupt, "{why}");
        }
        let why = ask(&tablet, b"a", Op::Read(Level::Any)).unwrap_err();
        assert_eq!(why.kind, Kind::Corrupt, "{why}");
    }
}

/// Nothing is on its way that would be told: time alone finds it.
#[test]
fn who_waits_is_answered_when_an_entry_stops_the_tablet_or_drops_it() {
    const OF_A_LATER_BUILD: u8 = 99;
    for (entry, kind, why) in [
        (vec![VERSION, OF_A_LATER_BUILD], Kind::Unsupported, "tag 99"),
        (dropped(&made(Mode::Timeline)), Kind::NotFound, "it was dropped"),
    ] {
        let scratch = Scratch::new("tablet");
        let log = open_log(Arc::new(RealDisk), &scratch.0);
        let tablet = open(&log, Arc::new(RealDisk), &scratch.0, Mode::Timeline);
        let hears = begin_to_ask(&tablet, b"b", read_of_later());
        tablet.tick();
        assert!(hears.try_recv().is_err(), "it waits");
        let _ = append(&tablet, entry);
        tablet.tick();
        let e = hears.recv_timeout(PATIENCE).expect("nobody answers").unwrap_err();
        assert!(e.kind == kind && e.message.contains(why), "{e:?}");
    }
}
