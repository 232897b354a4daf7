//! An embedded log is copied to a broker: each entry keeps its index, whatever was trimmed before, and
//! however often the copying was interrupted.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_brokers::Brokers;
use holdfast_env::{Rng, SeededRng};
use holdfast_kafka::{Expected, KafkaLog, Moving, Options};
use holdfast_log::{Done, Drive, EmbeddedLog, Info, Log, LogOptions, Mode, Scope, SharedLog};
use holdfast_sim::SimDisk;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const ID: u64 = 0x1d;

fn options(brokers: &Brokers, prefix: &str) -> Options {
    let address = format!("kafka://{}/{prefix}", brokers.addresses());
    Options::parse(&address, Default::default()).unwrap()
}

/// With segments of a few entries, so that trims give up most of what they may.
fn embedded(seed: u64) -> EmbeddedLog {
    let options =
        LogOptions { drive: Drive::Pump, segment_bytes: 16 << 10, ..LogOptions::default() };
    EmbeddedLog::open(Arc::new(SimDisk::new(seed)), Path::new("/log"), options).unwrap()
}

fn append(log: &EmbeddedLog, topic: &str, entries: Vec<Vec<u8>>) {
    for entry in entries {
        log.append(topic, vec![entry], Mode::Synced, Box::new(|kept| drop(kept.unwrap())));
        while log.pump() {}
    }
}

fn wait<T: Send + 'static>(start: impl FnOnce(Done<T>)) -> Result<T> {
    let (told, answer) = channel();
    start(Box::new(move |result| told.send(result).unwrap()));
    answer.recv().unwrap()
}

fn info(log: &dyn Log, topic: &str) -> Info {
    wait(|done| log.ask(topic, done)).unwrap()
}

type Page = Vec<(Index, Vec<u8>)>;

/// All of a topic, from its first entry on.
fn all(first: Index, read: impl Fn(Index) -> Page) -> Page {
    let (mut all, mut next) = (Page::new(), first);
    loop {
        let page = read(next);
        let Some((last, _)) = page.last() else { return all };
        next = Index(last.0 + 1);
        all.extend(page);
    }
}

fn kept(log: &EmbeddedLog, topic: &str) -> Page {
    let first = log.info(topic).unwrap().first;
    all(first, |from| log.read(topic, from, 100, 1 << 20, Scope::Durable).unwrap())
}

fn moved(log: &KafkaLog, topic: &str) -> Page {
    all(info(log, topic).first, |from| log.fetch(topic, from, 100, 1 << 20).unwrap())
}

#[test]
fn each_entry_keeps_its_index_over_trims_and_interruptions() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    for seed in 0..2 {
        let (rng, log) = (SeededRng::new(seed), embedded(seed));
        let topics = ["cluster", "namespace/0", "queue"];
        topics.iter().for_each(|topic| log.create(topic).unwrap());
        let prefix = format!("moved.{seed}");
        let mut copied: BTreeMap<&str, Index> = BTreeMap::new();
        // It is copied again and again, as if each attempt before had died at its end.
        for round in 0..3 {
            for topic in topics {
                for _ in 0..rng.next_u64() % 6 {
                    let entry = |_| vec![rng.next_u64() as u8; (rng.next_u64() % 3000) as usize];
                    append(&log, topic, (0..1 + rng.next_u64() % 9).map(entry).collect());
                }
                // Nothing, behind the first attempt, that was not copied yet.
                if rng.next_u64().is_multiple_of(2) {
                    let next = log.info(topic).unwrap().next;
                    log.trim(topic, *copied.get(topic).unwrap_or(&next)).unwrap();
                }
            }
            let moving = Moving::begin(options(&brokers, &prefix), ID, round > 0).unwrap();
            for topic in topics {
                let Info { next, .. } = log.info(topic).unwrap();
                assert_eq!(moving.topic(&log, topic).unwrap().next, next, "{topic} of {seed}");
                copied.insert(topic, next);
            }
        }
        let refused = KafkaLog::open(options(&brokers, &prefix), Expected::This(ID));
        let refused = refused.err().expect("half a log was opened");
        assert!(refused.message.contains("no log has the prefix"), "{refused}");
        let moving = Moving::begin(options(&brokers, &prefix), ID, true).unwrap();
        topics.iter().for_each(|topic| assert_eq!(moving.topic(&log, topic).unwrap().copied, 0));
        moving.end().unwrap();
        let there = KafkaLog::open(options(&brokers, &prefix), Expected::This(ID)).unwrap();
        for topic in topics {
            let (before, after) = (kept(&log, topic), moved(&there, topic));
            // What was copied before it was trimmed here.
            let more = after.len() - before.len();
            assert_eq!(after[more..], before, "{topic} of {seed}");
            let next = log.info(topic).unwrap().next;
            assert_eq!(info(&there, topic).next, next, "{topic} of {seed}");
            let appended =
                wait(|done| there.append(topic, vec![b"on".to_vec()], Mode::Synced, done));
            assert_eq!(appended.unwrap().first(), next, "{topic} of {seed}");
        }
    }
}

/// Nothing is left of a topic but how far it went: it goes on from there.
#[test]
fn a_topic_that_was_trimmed_to_its_end_goes_on_there() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = embedded(1);
    log.create("queue").unwrap();
    append(&log, "queue", vec![vec![7; 7000]; 20]);
    log.trim("queue", log.info("queue").unwrap().next).unwrap();
    // The last segment takes new entries, and is never empty by a trim: as a new directory would be.
    let Info { first, next, .. } = log.info("queue").unwrap();
    let empty = Trimmed { next };
    assert!(first > Index(1) && next == Index(21));
    let begin = |again| Moving::begin(options(&brokers, "empty"), ID, again).unwrap();
    for again in [false, true] {
        let moved = begin(again).topic(&empty, "queue").unwrap();
        assert_eq!((moved.copied, moved.first, moved.next), (0, next, next));
    }
    begin(true).end().unwrap();
    let open = || KafkaLog::open(options(&brokers, "empty"), Expected::This(ID)).unwrap();
    let there = open();
    assert_eq!((info(&there, "queue").first, info(&there, "queue").next), (next, next));
    let one = |log: &KafkaLog| wait(|done| log.append("queue", vec![vec![1]], Mode::Synced, done));
    assert_eq!(one(&there).unwrap().first(), next);
    wait(|done| there.tail("queue", next, done)).unwrap();
    assert_eq!(there.read("queue", next, 10, 100, Scope::Durable).unwrap(), [(next, vec![1])]);
    assert_eq!(one(&open()).unwrap().first(), Index(next.0 + 1));
}

/// A topic that has no entry left.
struct Trimmed {
    next: Index,
}

impl Log for Trimmed {
    fn create(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn append(&self, _: &str, _: Vec<Vec<u8>>, _: Mode, _: Done<holdfast_base::Indices>) {
        unreachable!("it is copied, and not written")
    }

    fn read(&self, _: &str, _: Index, _: usize, _: usize, _: Scope) -> Result<Page> {
        Ok(Page::new())
    }

    fn tail(&self, _: &str, _: Index, _: Done<()>) {
        unreachable!("nobody waits for an entry")
    }

    fn sync(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn trim(&self, _: &str, _: Index) -> Result<()> {
        Ok(())
    }

    fn info(&self, _: &str) -> Result<Info> {
        let next = self.next;
        Ok(Info { first: next, next, durable: next, bytes: 0, segments: 1 })
    }

    fn topics(&self) -> Vec<String> {
        vec!["queue".to_owned()]
    }
}

fn refusal(result: Result<impl Sized>) -> Error {
    let e = result.err().expect("it was taken");
    assert_eq!(e.kind, Kind::Invalid, "{e}");
    e
}

/// What is at the brokers and is not this log's beginning is left alone.
#[test]
fn what_is_there_and_is_another_log_is_refused_by_name() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = embedded(2);
    log.create("t").unwrap();
    append(&log, "t", vec![vec![1; 10]; 5]);
    let begin = |prefix: &str, again| Moving::begin(options(&brokers, prefix), ID, again);
    // Another log's prefix, and this one's own from a copy of the directory.
    drop(KafkaLog::open(options(&brokers, "others"), Expected::Any(99)).unwrap());
    assert!(refusal(begin("others", true)).message.contains("there is log"));
    drop(KafkaLog::open(options(&brokers, "own"), Expected::Any(ID)).unwrap());
    assert!(refusal(begin("own", false)).message.contains("another copy"));
    // It went further than this one, or elsewhere.
    let moving = begin("fork", false).unwrap();
    moving.topic(&log, "t").unwrap();
    let shorter = embedded(3);
    shorter.create("t").unwrap();
    append(&shorter, "t", vec![vec![1; 10]; 4]);
    assert!(refusal(moving.topic(&shorter, "t")).message.contains("goes further"));
    append(&shorter, "t", vec![vec![2; 10]; 3]);
    assert!(refusal(moving.topic(&shorter, "t")).message.contains("another entry"));
    // Somebody writes there.
    let plain: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", brokers.addresses()).create().unwrap();
    plain.send(BaseRecord::<(), str>::to("fork.t").payload("nobody's")).unwrap();
    plain.flush(Duration::from_secs(30)).unwrap();
    append(&log, "t", vec![vec![3; 10]]);
    assert!(refusal(moving.topic(&log, "t")).message.contains("somebody else"));
}
