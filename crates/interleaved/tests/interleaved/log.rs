//! A log with all its threads, and clients beside them, under orders of their steps that a seed
//! draws: at each lock, wait, start and disk operation it decides who goes on. `make interleaved`
//! runs it.
//!
//! Each append is answered once, in order, without gaps. Readers see what was acknowledged before
//! they asked, and nothing that a power cut takes. What was trimmed is told as such. After each
//! order, or in its midst, the power fails: what was known to be durable must be there. A log that
//! ends in order, whoever ends it, has answered everything before it can be opened again. A thread
//! that is never woken is a deadlock, which ends the run.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::sync::{mpsc, thread};
use holdfast_env::trial::Trial;
use holdfast_interleaved::{CutDisk, after_a_while, below, in_many_orders};
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, Scope};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The first is there from the start, the second is made by whoever comes first.
const TOPICS: [&str; 2] = ["ns/0", "blobs/0"];
const APPENDS: u64 = 4;
/// Its entry is the last of a topic: who follows the topic may stop there.
const LAST: u8 = 255;
/// Appends to a log that was opened again.
const AFTERWARDS: u8 = 254;
/// More than there ever is.
const ALL: usize = 1 << 20;

type Page = Vec<(Index, Vec<u8>)>;

/// What clients know of a topic.
#[derive(Clone)]
struct Topic {
    made: bool,
    /// What was acknowledged, or shown to a reader.
    entries: BTreeMap<u64, Vec<u8>>,
    asked: u64,
    answered: u64,
    /// Behind the last entry that was acknowledged.
    next: u64,
    /// Entries below have been called durable, one way or another.
    durable: u64,
    /// A trim was asked for, and done, up to here.
    trimming: u64,
    trimmed: u64,
    /// An append was told that no other will succeed.
    ended: bool,
}

#[derive(Clone)]
struct Known {
    topics: [Topic; 2],
    /// What the disk fails with, or failed with for a while.
    fault: Option<ErrorKind>,
}

/// Held for no longer than nobody else has a turn, so that a power cut and what was known at that
/// moment are one.
type Shared = Arc<Mutex<Known>>;

struct Run {
    log: EmbeddedLog,
    known: Shared,
}

/// The number of a client's entry counts those to its topic.
fn entry(client: u8, number: u32) -> Vec<u8> {
    let bytes = (u64::from(client) * 37 + u64::from(number) * 701) % 2600;
    let mut entry = vec![client; 5 + bytes as usize];
    entry[1..5].copy_from_slice(&number.to_le_bytes());
    entry
}

fn author(bytes: &[u8]) -> (u8, u32) {
    let (client, number) = (bytes[0], u32::from_le_bytes(bytes[1..5].try_into().unwrap()));
    assert!(bytes == entry(client, number), "an entry that nobody wrote");
    (client, number)
}

impl Topic {
    fn new() -> Topic {
        Topic {
            made: false,
            entries: BTreeMap::new(),
            asked: 0,
            answered: 0,
            next: 1,
            durable: 1,
            trimming: 1,
            trimmed: 1,
            ended: false,
        }
    }

    fn note(&mut self, index: u64, bytes: &[u8]) {
        author(bytes);
        let before = self.entries.insert(index, bytes.to_vec());
        assert!(before.is_none_or(|before| before == bytes), "entry {index} is two");
    }

    fn note_page(&mut self, from: u64, page: &Page) -> u64 {
        for (expected, (index, bytes)) in (from..).zip(page) {
            assert_eq!(index.0, expected, "a gap");
            self.note(index.0, bytes);
        }
        from + page.len() as u64
    }

    /// Each client's entries are in its order; all of them, where none was refused.
    fn assert_in_order(&self, from: u64, whole: bool) {
        let mut last: BTreeMap<u8, u32> = BTreeMap::new();
        for bytes in self.entries.range(from..).map(|(_, bytes)| bytes) {
            let (client, number) = author(bytes);
            if let Some(last) = last.insert(client, number) {
                assert!(last < number, "{client}: {last}, then {number}");
                assert!(!whole || last + 1 == number, "{client}: {last}, then {number}");
            }
        }
    }
}

impl Known {
    fn answered(&mut self, topic: usize, entries: &[Vec<u8>], mode: Mode, answer: Result<Indices>) {
        let fault = self.fault;
        let topic = &mut self.topics[topic];
        topic.answered += 1;
        match answer {
            Ok(indices) => {
                assert!(!topic.ended, "acknowledged behind a failure");
                let run = Indices::run(Index(topic.next), entries.len());
                assert_eq!(indices, run, "acknowledged out of order");
                indices.iter().zip(entries).for_each(|(index, bytes)| topic.note(index.0, bytes));
                topic.next = indices.last().0 + 1;
                if mode == Mode::Synced {
                    topic.durable = topic.durable.max(topic.next);
                }
            }
            Err(e) => {
                assert_refusal(&e, fault);
                topic.ended |= e.kind == Kind::ReadOnly;
            }
        }
    }
}

/// A disk without space refuses what waits; one that fails, or whose sync does, ends the topic.
fn assert_refusal(e: &Error, fault: Option<ErrorKind>) {
    let full = fault == Some(ErrorKind::StorageFull) && e.kind == Kind::Full;
    assert!(full || (fault.is_some() && e.kind == Kind::ReadOnly), "{e}");
}

impl Run {
    fn topic(&self, topic: usize) -> Topic {
        self.known.lock().unwrap().topics[topic].clone()
    }

    fn know<T>(&self, topic: usize, change: impl FnOnce(&mut Topic) -> T) -> T {
        change(&mut self.known.lock().unwrap().topics[topic])
    }

    /// Several clients come to make the topic.
    fn make(&self, topic: usize) -> bool {
        match self.log.create(TOPICS[topic]) {
            Ok(()) => self.know(topic, |topic| topic.made = true),
            Err(e) => {
                assert!(self.known.lock().unwrap().fault.is_some(), "{e}");
                return false;
            }
        }
        true
    }

    /// Its answer is noted in any case, and sent to whoever waits.
    fn append(
        &self,
        topic: usize,
        entries: Vec<Vec<u8>>,
        mode: Mode,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.know(topic, |topic| topic.asked += 1);
        let (known, appended) = (self.known.clone(), entries.clone());
        let done = move |answer: Result<Indices>| {
            let fine = answer.is_ok();
            known.lock().unwrap().answered(topic, &appended, mode, answer);
            then(fine);
        };
        self.log.append(TOPICS[topic], entries, mode, Box::new(done));
    }

    /// Waits for each answer, for some, or leaves while all are under way.
    fn put(&self, topic: usize, client: u8) {
        if !self.make(topic) {
            return;
        }
        let (mut number, patience) = (0, below(3));
        for _ in 0..APPENDS {
            let count = 1 + below(3) as u32;
            let entries = (number..number + count).map(|n| entry(client, n)).collect();
            number += count;
            let mode = if below(3) == 0 { Mode::Ordered } else { Mode::Synced };
            let (tx, rx) = mpsc::channel();
            let then = move |fine| {
                // Nobody listens where nobody waits.
                let _ = tx.send(fine);
            };
            self.append(topic, entries, mode, then);
            if patience > 0 && below(patience) == 0 {
                rx.recv().expect("each append is answered");
            }
            if below(4) == 0 {
                self.sync(topic);
            }
        }
    }

    fn sync(&self, topic: usize) {
        let before = self.topic(topic).next;
        match self.log.sync(TOPICS[topic]) {
            Ok(()) => self.know(topic, |topic| topic.durable = topic.durable.max(before)),
            Err(e) => assert_refusal(&e, self.known.lock().unwrap().fault),
        }
    }

    /// Appends again each time that it was answered, from the callback, which may be the last to
    /// hold the log.
    fn chain(self: Arc<Run>, topic: usize, client: u8, number: u32) {
        let mode = if below(2) == 0 { Mode::Ordered } else { Mode::Synced };
        let run = self.clone();
        let then = move |fine| {
            if fine && u64::from(number) < APPENDS {
                run.chain(topic, client, number + 1);
            }
        };
        self.append(topic, vec![entry(client, number)], mode, then);
    }

    fn read(&self, topic: usize) {
        for _ in 0..APPENDS {
            let before = self.topic(topic);
            if !before.made {
                continue;
            }
            let from = 1 + below(before.next);
            let (scope, least) = match below(2) {
                0 => (Scope::Durable, before.durable),
                _ => (Scope::Written, before.next),
            };
            match self.log.read(TOPICS[topic], Index(from), ALL, ALL, scope) {
                Ok(page) => {
                    assert!(from >= before.trimmed, "{from} was trimmed");
                    let end = self.know(topic, |topic| topic.note_page(from, &page));
                    assert!(end >= least, "up to {end}, {least} were acknowledged");
                    if page.is_empty() {
                        // Perhaps from behind the last entry that its scope shows.
                        continue;
                    }
                    let info = self.log.info(TOPICS[topic]).unwrap();
                    let seen = if scope == Scope::Durable { info.durable } else { info.next };
                    assert!(seen.0 >= end, "up to {end} of {seen}");
                    if scope == Scope::Durable {
                        self.know(topic, |topic| topic.durable = topic.durable.max(end));
                    }
                }
                Err(e) => {
                    assert_eq!(e.kind, Kind::Invalid, "{e}");
                    let now = self.topic(topic);
                    assert!(from < now.trimming, "{from} of {} trimmed: {e}", now.trimming);
                }
            }
            self.ask(topic);
        }
    }

    fn ask(&self, topic: usize) -> u64 {
        let before = self.topic(topic);
        let info = self.log.info(TOPICS[topic]).unwrap();
        assert!(info.durable.0 >= before.durable && info.next.0 >= before.next, "{info:?}");
        assert!(info.first.0 >= before.trimmed && info.durable <= info.next, "{info:?}");
        self.know(topic, |topic| {
            assert!(info.first.0 <= topic.trimming, "{info:?}");
            topic.durable = topic.durable.max(info.durable.0);
        });
        info.durable.0
    }

    fn trim(&self, topic: usize) {
        let name = TOPICS[topic];
        for _ in 0..2 {
            let (durable, first) = (self.ask(topic), self.topic(topic).trimmed);
            let before = first + below(durable + 1 - first);
            self.know(topic, |topic| topic.trimming = topic.trimming.max(before));
            match self.log.trim(name, Index(before)) {
                Ok(()) => self.know(topic, |topic| topic.trimmed = topic.trimmed.max(before)),
                Err(_) => assert!(self.known.lock().unwrap().fault.is_some()),
            }
            let trimmed = self.topic(topic).trimmed;
            if trimmed > 1 {
                let gone = self.log.read(name, Index(trimmed - 1), ALL, ALL, Scope::Durable);
                assert_eq!(gone.unwrap_err().kind, Kind::Invalid);
            }
            let ahead = self.log.trim(name, Index(1 << 40)).unwrap_err();
            assert_eq!(ahead.kind, Kind::Invalid);
            thread::yield_now();
        }
    }

    /// The last entry of a topic, unless it cannot be appended.
    fn end(&self, topic: usize) {
        let mut number = 0;
        while self.make(topic) {
            let (tx, rx) = mpsc::channel();
            let then = move |fine| tx.send(fine).unwrap();
            self.append(topic, vec![entry(LAST, number)], Mode::Synced, then);
            if rx.recv().unwrap() || self.topic(topic).ended {
                return;
            }
            number += 1;
        }
    }
}

/// Reads a topic as it grows, from one wake to the next: up to its last entry, holding the log, or
/// until it ends, holding it only to ask.
fn follow(run: Arc<Run>, topic: usize, holds: bool) {
    let known = run.known.clone();
    let (weak, mut run) = (Arc::downgrade(&run), Some(run));
    let mut from = 1;
    loop {
        let (tx, rx) = mpsc::channel();
        let Some(asks) = run.take().or_else(|| weak.upgrade()) else { return };
        asks.log.tail(TOPICS[topic], Index(from), Box::new(move |woken| tx.send(woken).unwrap()));
        run = holds.then_some(asks);
        if let Err(e) = rx.recv().expect("each tail is told once") {
            let known = known.lock().unwrap();
            if known.topics[topic].ended || known.fault.is_some() {
                return;
            }
            assert!(weak.strong_count() == 0 && e.kind == Kind::Retry, "{e}");
            let durable = known.topics[topic].durable;
            assert!(durable <= from, "nobody told that {from} is there: {durable}");
            return;
        }
        let Some(reads) = run.take().or_else(|| weak.upgrade()) else { return };
        match reads.log.read(TOPICS[topic], Index(from), 2, ALL, Scope::Durable) {
            Ok(page) => {
                assert!(!page.is_empty(), "woken for nothing at {from}");
                from = reads.know(topic, |topic| {
                    let end = topic.note_page(from, &page);
                    topic.durable = topic.durable.max(end);
                    end
                });
                if page.iter().any(|(_, bytes)| bytes[0] == LAST) {
                    return;
                }
            }
            Err(e) => {
                assert_eq!(e.kind, Kind::Invalid, "{e}");
                assert!(from < reads.topic(topic).trimming, "{e}");
                from = reads.log.info(TOPICS[topic]).unwrap().first.0;
            }
        }
        run = holds.then_some(reads);
    }
}

fn options(drive: Drive) -> LogOptions {
    LogOptions {
        needed: None,
        topics_max: 100,
        drive,
        segment_bytes: 16 << 10,
        // Time does not pass: at once, or never.
        ordered_sync_ms: [0, 3_600_000][below(2) as usize],
        ordered_bytes_max: [4096, 8192, 1 << 20][below(3) as usize],
    }
}

fn open(disk: &Arc<CutDisk>, drive: Drive) -> Result<EmbeddedLog> {
    EmbeddedLog::open(disk.clone(), Path::new("/log"), options(drive))
}

/// Whatever was known to be durable; or all, in answer to an orderly end.
fn check(log: &EmbeddedLog, known: &mut Known, all: bool) {
    assert_eq!(log.refused(), []);
    for (name, topic) in TOPICS.into_iter().zip(&mut known.topics) {
        if !topic.made {
            continue;
        }
        let info = log.info(name).unwrap();
        let first = info.first.0;
        assert!(first >= topic.trimmed && first <= topic.trimming, "{name}: {info:?}");
        let least = if all { topic.next } else { topic.durable };
        assert!(
            info.next.0 >= least && (!all || info.next.0 == least),
            "{name}: {info:?}, {least}"
        );
        assert_eq!(info.durable, info.next);
        // An ordered entry that was acknowledged may have gone, with all behind it.
        let page = log.read(name, info.first, ALL, ALL, Scope::Durable).unwrap();
        let end = topic.note_page(first, &page);
        assert_eq!(end, info.next.0);
        topic.entries.retain(|index, _| *index < end);
        topic.assert_in_order(first, known.fault.is_none());
        if first > 1 {
            let gone = log.read(name, Index(first - 1), ALL, ALL, Scope::Durable);
            assert_eq!(gone.unwrap_err().kind, Kind::Invalid);
        }
        // It goes on where it ended.
        let (tx, rx) = mpsc::channel();
        let done = Box::new(move |answer| tx.send(answer).unwrap());
        let more = entry(AFTERWARDS, end as u32);
        log.append(name, vec![more.clone()], Mode::Synced, done);
        while log.pump() {}
        assert_eq!(rx.recv().unwrap(), Ok(Indices::run(info.next, 1)));
        topic.note(end, &more);
        (topic.next, topic.durable) = (end + 1, end + 1);
    }
}

/// After a power cut, and after a second one behind that.
fn check_cut(disk: Arc<CutDisk>, mut known: Known) {
    for _ in 0..1 + below(2) {
        let drive = [Drive::Threads, Drive::Pump][below(2) as usize];
        let log = open(&disk, drive).unwrap_or_else(|e| panic!("the log does not open: {e}"));
        check(&log, &mut known, false);
        drop(log);
        let closed = open(&disk, drive).unwrap();
        assert_eq!(closed.recovered(), [], "it was closed in order");
    }
}

/// Once all who used it are gone: the log has ended in order, and can be opened again.
fn check_end(disk: &Arc<CutDisk>, known: &Shared) {
    disk.fail(None);
    let log = loop {
        // Another process uses it, it says, for as long as any of its threads does.
        match open(disk, Drive::Pump) {
            Ok(log) => break log,
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
        thread::yield_now();
    };
    let mut known = known.lock().unwrap().clone();
    for topic in &known.topics {
        assert_eq!(topic.answered, topic.asked, "appends were answered");
    }
    if known.fault.is_none() {
        assert_eq!(log.recovered(), [], "it was closed in order");
    }
    let all = known.fault.is_none();
    check(&log, &mut known, all);
    // Nobody wrote beside it.
    drop(log);
    check(&open(disk, Drive::Pump).unwrap(), &mut known, true);
}

/// The disk fails at some moment; it is full for a while only.
fn fail(disk: &CutDisk, known: &Shared, fault: Option<ErrorKind>) {
    after_a_while(|| {
        known.lock().unwrap().fault = fault;
        disk.fail(fault);
    });
    if fault == Some(ErrorKind::StorageFull) {
        after_a_while(|| disk.fail(None));
    }
}

fn one_order() {
    let _trial = Trial::drawn(below(u64::MAX)).enter();
    let disk = CutDisk::new();
    let topics = [Topic::new(), Topic::new()];
    let known: Shared = Arc::new(Mutex::new(Known { topics, fault: None }));
    let log = open(&disk, Drive::Threads).unwrap();
    let run = Arc::new(Run { log, known: known.clone() });
    assert!(run.make(0));
    let spawn = |work: Box<dyn FnOnce(Arc<Run>) + Send>| {
        let run = run.clone();
        thread::spawn(move || work(run))
    };
    let mut clients = vec![
        spawn(Box::new(|run| run.put(0, 1))),
        spawn(Box::new(|run| run.put(0, 2))),
        spawn(Box::new(|run| run.put(1, 3))),
        spawn(Box::new(|run| run.read(0))),
        spawn(Box::new(|run| run.read(1))),
    ];
    if below(2) == 0 {
        let topic = below(2) as usize;
        clients.push(spawn(Box::new(move |run| {
            if run.make(topic) {
                run.chain(topic, 4, 0);
            }
        })));
    }
    if below(2) == 0 {
        clients.push(spawn(Box::new(|run| after_a_while(|| run.trim(0)))));
    }
    let holds = below(2) == 0;
    let followers: Vec<_> =
        (0..1 + below(2)).map(|_| spawn(Box::new(move |run| follow(run, 0, holds)))).collect();
    let fault = match below(6) {
        0 => Some(ErrorKind::StorageFull),
        1 => Some(ErrorKind::Other),
        _ => None,
    };
    if fault.is_some() {
        let (disk, known) = (disk.clone(), known.clone());
        clients.push(thread::spawn(move || fail(&disk, &known, fault)));
    }
    if below(2) == 0 {
        let (disk, known) = (disk.clone(), known.clone());
        let cutting = move || {
            let (disk, known) = after_a_while(|| {
                // In one step: nothing is acknowledged between the two.
                let known = known.lock().unwrap();
                (disk.cut(), known.clone())
            });
            check_cut(disk, known);
        };
        clients.push(thread::spawn(cutting));
    }
    // Else the last client, or its last callback, closes the log.
    let run = (holds || below(2) == 0).then_some(run);
    clients.into_iter().for_each(|client| client.join().unwrap());
    if let Some(run) = run.filter(|_| holds) {
        run.end(0);
    }
    followers.into_iter().for_each(|follower| follower.join().unwrap());
    match below(2) {
        0 => check_end(&disk, &known),
        _ => {
            let (disk, known) = {
                let known = known.lock().unwrap();
                (disk.cut(), known.clone())
            };
            check_cut(disk, known);
        }
    }
}

#[test]
fn whatever_the_order_of_a_logs_threads_what_was_acknowledged_is_there() {
    in_many_orders(one_order);
}
