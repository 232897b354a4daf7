//! The log on brokers when something is wrong there: strangers in its topics, settings that lose entries,
//! topics that are another one's or were made anew, and brokers that die under load.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_brokers::Brokers;
use holdfast_kafka::{Expected, KafkaLog, Options};
use holdfast_log::{Done, Info, Log, Mode, Scope, SharedLog};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::sync::mpsc::channel;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

fn options(brokers: &Brokers, prefix: &str) -> Options {
    let address = format!("kafka://{}/{prefix}", brokers.addresses());
    Options::parse(&address, Default::default()).unwrap()
}

fn open(brokers: &Brokers, prefix: &str) -> KafkaLog {
    KafkaLog::open(options(brokers, prefix), Expected::Any(7)).unwrap()
}

fn wait<T: Send + 'static>(start: impl FnOnce(Done<T>)) -> Result<T> {
    let (told, answer) = channel();
    start(Box::new(move |result| told.send(result).unwrap()));
    answer.recv().unwrap()
}

fn append(log: &dyn Log, topic: &str, entries: &[&str]) -> Result<Indices> {
    let entries = entries.iter().map(|entry| entry.as_bytes().to_vec()).collect();
    wait(|done| log.append(topic, entries, Mode::Synced, done))
}

fn info(log: &dyn Log, topic: &str) -> Info {
    wait(|done| log.ask(topic, done)).unwrap()
}

type Page = Vec<(u64, String)>;

fn text(page: Vec<(Index, Vec<u8>)>) -> Page {
    page.into_iter().map(|(index, entry)| (index.0, String::from_utf8(entry).unwrap())).collect()
}

/// All of a topic up to the entry at `last`, as a reader follows it.
fn followed(log: &dyn Log, topic: &str, last: u64) -> Page {
    let (mut all, mut next) = (Page::new(), Index(1));
    while next.0 <= last {
        wait(|done| log.tail(topic, next, done)).unwrap();
        let page = log.read(topic, next, 100, 1 << 20, Scope::Durable).unwrap();
        next = page.last().map_or(next, |(index, _)| Index(index.0 + 1));
        all.extend(text(page));
    }
    all
}

fn stranger(brokers: &Brokers) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers.addresses());
    config
}

fn admin(brokers: &Brokers) -> AdminClient<DefaultClientContext> {
    stranger(brokers).create().unwrap()
}

fn make(brokers: &Brokers, name: &str, settings: &[(&str, &str)]) {
    let topic = NewTopic::new(name, 1, TopicReplication::Fixed(1));
    let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
    let made = admin(brokers).create_topics([&topic], &AdminOptions::new());
    futures_executor::block_on(made).unwrap()[0].clone().unwrap();
}

fn remove(brokers: &Brokers, name: &str) {
    let removed = admin(brokers).delete_topics(&[name], &AdminOptions::new());
    futures_executor::block_on(removed).unwrap()[0].clone().unwrap();
}

/// Settings with which a topic keeps what it acknowledged.
const SAFE: [(&str, &str); 5] = [
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
    ("cleanup.policy", "delete"),
    ("unclean.leader.election.enable", "false"),
    ("max.message.bytes", "2000000"),
];

/// Records without our header are gaps, an open transaction stops nobody, and in front of the end there is
/// an entry whatever lies behind it.
#[test]
fn what_strangers_write_is_no_entry() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = open(&brokers, "strange");
    log.create("t").unwrap();
    let name = "strange.t";
    append(&log, "t", &["one"]).unwrap();
    let plain: BaseProducer = stranger(&brokers).create().unwrap();
    plain.send(BaseRecord::<(), str>::to(name).payload("nobody's")).unwrap();
    plain.flush(LONG).unwrap();
    let open_for_ever: BaseProducer =
        stranger(&brokers).set("transactional.id", "a stranger's").create().unwrap();
    open_for_ever.init_transactions(LONG).unwrap();
    open_for_ever.begin_transaction().unwrap();
    open_for_ever.send(BaseRecord::<(), str>::to(name).payload("undecided")).unwrap();
    open_for_ever.flush(LONG).unwrap();
    assert_eq!(info(&log, "t").next, Index(2), "what lies behind the last entry is none");
    let two = append(&log, "t", &["two"]).unwrap();
    assert_eq!(two.first(), Index(4), "behind two records that are no entries");
    let all = vec![(1, "one".to_owned()), (4, "two".to_owned())];
    assert_eq!(followed(&log, "t", 4), all);
    assert_eq!(text(log.fetch("t", Index(1), 10, 1 << 20).unwrap()), all);
    assert_eq!(text(log.fetch("t", Index(2), 10, 1 << 20).unwrap()), all[1..]);
    // The end of the transaction is a record that no reader is given.
    open_for_ever.abort_transaction(LONG).unwrap();
    assert_eq!(info(&log, "t").next, Index(5));
    let three = append(&log, "t", &["three"]).unwrap();
    assert_eq!(three.first(), Index(6));
    assert_eq!(followed(&open(&brokers, "strange"), "t", 6).len(), 3);
    // What a trim leaves says where the topic counts from.
    log.trim("t", info(&log, "t").next).unwrap();
    let left = info(&log, "t");
    assert_eq!((left.first, left.next), (Index(6), Index(7)));
    assert_eq!(append(&open(&brokers, "strange"), "t", &["four"]).unwrap().first(), Index(7));
}

/// With Kafka's default retention a topic would lose after a week what views still need.
#[test]
fn settings_that_lose_entries_are_refused_by_name() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = open(&brokers, "unsafe");
    make(&brokers, "unsafe.t", &[]);
    let refused = log.create("t").unwrap_err();
    assert!(refused.message.contains("retention.ms"), "{refused}");
    assert_eq!(append(&log, "t", &["x"]).map_err(|e| e.kind), Err(Kind::Invalid));
    make(&brokers, "unsafe.c", &[("retention.ms", "-1"), ("cleanup.policy", "compact")]);
    let refused = log.create("c").unwrap_err();
    assert!(refused.message.contains("cleanup.policy"), "{refused}");
    // Another one is not touched by that.
    log.create("good").unwrap();
    append(&log, "good", &["x"]).unwrap();
}

/// Each log has a number; a node of one does not take another one for its own.
#[test]
fn another_log_under_the_prefix_is_refused() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let refused = |prefix: &str, id| {
        let opened = KafkaLog::open(options(&brokers, prefix), Expected::This(id));
        opened.map(|_| ()).unwrap_err().message
    };
    let said = refused("empty", 9);
    assert!(said.contains("no log has the prefix `empty`"), "{said}");
    let log = open(&brokers, "taken");
    assert_eq!(log.id(), 7);
    let said = refused("taken", 9);
    assert!(said.contains("0000000000000009") && said.contains("0000000000000007"), "{said}");
    // Whoever comes later gets the number that is there.
    let later = KafkaLog::open(options(&brokers, "taken"), Expected::Any(8)).unwrap();
    assert_eq!(later.id(), 7);
    KafkaLog::open(options(&brokers, "taken"), Expected::This(7)).unwrap();
}

/// Nobody is told of it by the brokers: appends go on, from the front.
#[test]
fn a_topic_that_was_deleted_and_made_anew_is_refused() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = open(&brokers, "anew");
    log.create("t").unwrap();
    let last = append(&log, "t", &["1", "2", "3", "4", "5"]).unwrap().last();
    assert_eq!(followed(&log, "t", last.0).len(), 5);
    remove(&brokers, "anew.t");
    make(&brokers, "anew.t", &SAFE);
    // The client library notices in its own time; until then answers are errors, not acknowledgements.
    let refused: Error = loop {
        match append(&log, "t", &["6"]) {
            Ok(indices) => assert!(indices.first() > last, "took the place of another entry"),
            Err(e) if e.kind == Kind::Corrupt => break e,
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
    };
    assert!(refused.message.contains("made anew"), "{refused}");
    // Who follows finds that the entry that it read last is not there.
    let told = wait(|done| log.tail("t", Index(last.0 + 1), done)).unwrap_err();
    assert!(told.message.contains("another log"), "{told}");
}

/// Two hundred appends are under way whenever a broker dies. Whatever was acknowledged is there, at its
/// index, in the order of the appends.
fn killed_under_load(brokers: &mut Brokers, prefix: &str, kill: impl Fn(&mut Brokers)) {
    let log = open(brokers, prefix);
    log.create("t").unwrap();
    let (told, answers) = channel();
    let mut sent = 0;
    let send = |sent: &mut u64| {
        let (told, number) = (told.clone(), *sent);
        *sent += 1;
        let done = Box::new(move |result| told.send((number, result)).unwrap());
        let entry = format!("entry {number}").into_bytes();
        log.append("t", vec![entry], Mode::Synced, done);
    };
    (0..200).for_each(|_| send(&mut sent));
    let mut kept: Vec<(u64, u64)> = Vec::new();
    let mut killed = 0;
    let mut open = 200;
    while open > 0 {
        let (number, result): (u64, Result<Indices>) = answers.recv().unwrap();
        open -= 1;
        match result {
            Ok(indices) => kept.push((indices.first().0, number)),
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
        if kept.len() >= 1000 * (killed + 1) && killed < 2 {
            kill(brokers);
            killed += 1;
        }
        if kept.len() < 4000 {
            send(&mut sent);
            open += 1;
        }
    }
    // Answers of one append may overtake another one's; their indices do not.
    kept.sort_unstable();
    assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
    let last = kept.last().unwrap().0;
    let read = followed(&self::open(brokers, prefix), "t", last);
    let all: std::collections::BTreeMap<u64, String> = read.into_iter().collect();
    for (index, number) in kept {
        assert_eq!(all.get(&index), Some(&format!("entry {number}")), "at {index}");
    }
}

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing_that_was_acknowledged() {
    let Some(mut brokers) = Brokers::start(1, &[]) else { return };
    if !brokers.are_ours() {
        return eprintln!("SKIPPED: another one's broker is not killed");
    }
    killed_under_load(&mut brokers, "killed", |brokers| {
        brokers.kill(0);
        brokers.restart(0);
    });
}
