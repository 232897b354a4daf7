//! The log on brokers when something is wrong there: strangers in its topics, settings that lose entries,
//! topics that are another one's or were made anew, and brokers that die under load.
#![expect(clippy::disallowed_methods, reason = "real brokers answer in their own time, on threads")]

use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_brokers::Brokers;
use holdfast_kafka::{Expected, Held, KafkaLog, Options, examine};
use holdfast_log::{Done, Info, Log, Mode, Scope, SharedLog};
use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Message, Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

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

/// To be kept until it has answered: one that is dropped before never does.
fn admin(brokers: &Brokers) -> AdminClient<DefaultClientContext> {
    stranger(brokers).create().unwrap()
}

fn make(brokers: &Brokers, name: &str, settings: &[(&str, &str)]) {
    let topic = NewTopic::new(name, 1, TopicReplication::Fixed(1));
    let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
    let admin = admin(brokers);
    let made = admin.create_topics([&topic], &AdminOptions::new());
    futures_executor::block_on(made).unwrap()[0].clone().unwrap();
}

fn remove(brokers: &Brokers, name: &str) {
    let admin = admin(brokers);
    let removed = admin.delete_topics(&[name], &AdminOptions::new());
    futures_executor::block_on(removed).unwrap()[0].clone().unwrap();
}

/// Copies the first record of a topic into another one, header and all.
fn copy(brokers: &Brokers, from: &str, to: &str) {
    let consumer: BaseConsumer = stranger(brokers).set("group.id", "copies").create().unwrap();
    let mut first = TopicPartitionList::new();
    first.add_partition_offset(from, 0, Offset::Beginning).unwrap();
    consumer.assign(&first).unwrap();
    let record = loop {
        if let Some(record) = consumer.poll(LONG) {
            break record.unwrap().detach();
        }
    };
    let copies: BaseProducer = stranger(brokers).create().unwrap();
    let headers = record.headers().unwrap().clone();
    let copied = BaseRecord::<(), [u8]>::to(to).payload(record.payload().unwrap());
    copies.send(copied.partition(0).headers(headers)).map_err(|(e, _)| e).unwrap();
    copies.flush(LONG).unwrap();
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
    // The coordinator writes it in its own time.
    let looks: BaseConsumer = stranger(&brokers).create().unwrap();
    while looks.fetch_watermarks(name, 0, LONG).unwrap().1 < 5 {}
    assert_eq!(info(&log, "t").next, Index(5));
    let three = append(&log, "t", &["three"]).unwrap();
    assert_eq!(three.first(), Index(6));
    // An entry of another topic, copied with its header, stopped whoever read it.
    log.create("u").unwrap();
    append(&log, "u", &["another topic's"]).unwrap();
    copy(&brokers, "strange.u", name);
    assert_eq!(info(&log, "t").next, Index(7));
    assert_eq!(followed(&open(&brokers, "strange"), "t", 6).len(), 3);
    // A person sees each of them, and why it is none.
    let seen = examine(options(&brokers, "strange"), Some("t")).unwrap();
    let topic = &seen.topics[0];
    let held = topic.held.as_ref().unwrap();
    let gaps = |held: &Held| -> Vec<(i64, i64)> {
        held.gaps.iter().map(|gap| (gap.first, gap.last)).collect()
    };
    assert_eq!((held.entries, gaps(held)), (3, vec![(1, 2), (4, 4), (6, 6)]), "{held:?}");
    assert!(held.gaps[0].why.contains("no header"), "{held:?}");
    assert!(held.gaps[1].why.contains("transaction"), "{held:?}");
    assert!(held.gaps[2].why.contains("copied"), "{held:?}");
    assert!(topic.findings.is_empty() && topic.ends == Some(info(&log, "t")), "{topic:?}");
    // Further partitions can be added by mistake, and not be taken away: a start was refused.
    let (admin, two) = (admin(&brokers), [&NewPartitions::new(name, 2)]);
    let grown = admin.create_partitions(two, &AdminOptions::new());
    futures_executor::block_on(grown).unwrap()[0].clone().unwrap();
    append(&open(&brokers, "strange"), "t", &["in the first"]).unwrap();
    // What a trim leaves says where the topic counts from.
    log.trim("t", info(&log, "t").next).unwrap();
    let left = info(&log, "t");
    assert_eq!((left.first, left.next), (Index(8), Index(9)));
    assert_eq!(append(&open(&brokers, "strange"), "t", &["four"]).unwrap().first(), Index(9));
}

/// Brokers may be set to compress what they keep, and a stranger may: what could not be read stopped every
/// reader for good, acknowledged entries behind it and all.
#[test]
fn whatever_a_topic_is_compressed_with_is_read() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = open(&brokers, "packed");
    log.create("t").unwrap();
    let long = "x".repeat(5000);
    let mut all = Page::new();
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let setting = AlterConfig::new(ResourceSpecifier::Topic("packed.t"));
        let setting = SAFE.iter().fold(setting, |all, (name, value)| all.set(name, value));
        let admin = admin(&brokers);
        let set = [&setting.set("compression.type", codec)];
        let set = admin.alter_configs(set, &AdminOptions::new());
        assert!(futures_executor::block_on(set).unwrap()[0].is_ok());
        all.push((append(&log, "t", &[&long]).unwrap().last().0, long.clone()));
    }
    let last = all.last().unwrap().0;
    assert_eq!(followed(&log, "t", last), all);
    assert_eq!(text(log.fetch("t", Index(1), 10, 1 << 20).unwrap()), all);
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
    // Its records were deleted there: every start was refused, and nothing said what to do.
    let admin = admin(&brokers);
    let mut all = TopicPartitionList::new();
    all.add_partition_offset("taken._log", 0, Offset::End).unwrap();
    let deleted = admin.delete_records(&all, &AdminOptions::new());
    futures_executor::block_on(deleted).unwrap();
    let said = refused("taken", 7);
    let line = "Holdfast log 0000000000000007";
    assert!(said.contains("taken._log") && said.contains(line), "{said}");
    let plain: BaseProducer = stranger(&brokers).create().unwrap();
    plain.send(BaseRecord::<(), str>::to("taken._log").payload(line)).map_err(|(e, _)| e).unwrap();
    plain.flush(LONG).unwrap();
    KafkaLog::open(options(&brokers, "taken"), Expected::This(7)).unwrap();
    // Without what says which log they are, topics would be taken for gaps of a new one.
    log.create("t").unwrap();
    remove(&brokers, "taken._log");
    let begun = KafkaLog::open(options(&brokers, "taken"), Expected::Any(9));
    let said = begun.map(|_| ()).unwrap_err().message;
    assert!(said.contains("`t` is one") && said.contains("taken._log"), "{said}");
    // Brokers take no two names that differ in `.` and `_` alone.
    open(&brokers, "dot").create("b/c").unwrap();
    let said = open(&brokers, "dot.b").create("2fc").unwrap_err().message;
    assert!(said.contains("choose another prefix"), "{said}");
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

/// A user who may do what the documentation says could not start a node: the client library asks for a
/// group that we do not use, and tells that it may not.
#[test]
fn a_user_with_rights_on_the_topics_alone_is_enough() {
    let login = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let users = format!(
        "listener.name.b.plain.sasl.jaas.config={login} username=\"admin\" password=\"a\" \
         user_admin=\"a\" user_node=\"n\";"
    );
    let settings = [
        "listener.security.protocol.map=B:SASL_PLAINTEXT,C:PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin;User:ANONYMOUS",
        &users,
    ];
    let Some(brokers) = Brokers::start(1, &settings) else { return };
    let admin = format!(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n\
         sasl.jaas.config={login} username=\"admin\" password=\"a\";\n"
    );
    let rights = ["Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs"];
    brokers.allow("node", &rights, "mine.", &admin);
    let client = [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "node"),
        ("sasl.password", "n"),
    ];
    let client = client.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let options = |prefix: &str| {
        let address = format!("kafka://{}/{prefix}", brokers.addresses());
        Options::parse(&address, client.clone().into()).unwrap()
    };
    let log = KafkaLog::open(options("mine"), Expected::Any(7)).unwrap();
    log.create("t").unwrap();
    let last = append(&log, "t", &["1", "2", "3"]).unwrap().last();
    assert_eq!(followed(&log, "t", last.0).len(), 3);
    assert!(log.trouble("t").is_none());
    log.trim("t", Index(2)).unwrap();
    assert_eq!(info(&log, "t").first, Index(2));
    // Whoever may not is told what to give.
    let refused = KafkaLog::open(options("others"), Expected::Any(7)).map(|_| ()).unwrap_err();
    assert!(refused.message.contains("DescribeConfigs"), "{refused}");
}

/// What was called when an append was through appended, on the thread that waited for all of them and held
/// what appends take: both waited for ever.
#[test]
fn appends_that_follow_appends_do_not_stop_who_waits_for_all() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let log = Arc::new(open(&brokers, "chain"));
    log.create("t").unwrap();
    fn next(log: Arc<KafkaLog>, left: u32, told: std::sync::mpsc::Sender<()>) {
        let again = log.clone();
        let done: Done<Indices> = Box::new(move |indices| {
            indices.unwrap();
            match left {
                0 => told.send(()).unwrap(),
                _ => next(again, left - 1, told),
            }
        });
        log.append("t", vec![b"x".to_vec()], Mode::Synced, done);
    }
    let (told, ended) = channel();
    (0..8).for_each(|_| next(log.clone(), 100, told.clone()));
    let mut open = 8;
    while open > 0 {
        log.sync("t").unwrap();
        open -= ended.try_iter().count();
    }
    assert_eq!(info(&*log, "t").next, Index(809));
}

/// Each question took five seconds, and whoever came later waited for those before: a hundredth reader for
/// minutes, and with him all that a node does by the same threads.
#[test]
fn nobody_waits_for_others_questions_while_brokers_are_silent() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    if !brokers.are_ours() {
        return eprintln!("SKIPPED: another one's broker is not paused");
    }
    let log = Arc::new(open(&brokers, "silent"));
    for topic in ["t", "u"] {
        log.create(topic).unwrap();
        append(&*log, topic, &["one"]).unwrap();
    }
    brokers.pause(0);
    let begun = Instant::now();
    let (told, answers) = channel();
    for number in 0..12 {
        let topic = if number % 2 == 0 { "t" } else { "u" };
        let told = told.clone();
        log.ask(topic, Box::new(move |info: Result<Info>| told.send(info.map(drop)).unwrap()));
    }
    // As many as threads that answer readers.
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (log, told) = (log.clone(), told.clone());
            std::thread::spawn(move || {
                for _ in 0..6 {
                    told.send(log.fetch("t", Index(1), 1, 1).map(drop)).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..36 {
        assert_eq!(answers.recv().unwrap().unwrap_err().kind, Kind::Retry);
    }
    let took = begun.elapsed();
    brokers.resume(0);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(took < Duration::from_secs(12), "{took:?}");
    while log.fetch("t", Index(1), 1, 1).is_err() {}
}

/// A broker that stands still keeps its connections: readers waited for it a minute, while the others had
/// chosen another leader long ago.
#[test]
fn a_leader_that_stands_still_is_left() {
    let Some(brokers) = Brokers::start(3, &[]) else { return };
    let log = open(&brokers, "still");
    log.create("t").unwrap();
    append(&log, "t", &["one"]).unwrap();
    assert_eq!(followed(&log, "t", 1).len(), 1);
    let leader = examine(options(&brokers, "still"), Some("t")).unwrap().topics[0].leader;
    brokers.pause(leader as usize);
    let begun = Instant::now();
    // What was refused may have been kept.
    let last = loop {
        match append(&log, "t", &["two"]) {
            Ok(indices) => break indices.last(),
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
    };
    assert_eq!(followed(&log, "t", last.0).last(), Some(&(last.0, "two".to_owned())));
    let took = begun.elapsed();
    // Which copies are whole is known before the next broker may go.
    let seen = examine(options(&brokers, "still"), None).unwrap();
    let said = seen.topics.iter().find(|one| one.topic == "t").unwrap();
    let lacks = format!("broker {leader} lacks some of it");
    assert!(said.findings.iter().any(|finding| finding.contains(&lacks)), "{said:?}");
    brokers.resume(leader as usize);
    assert!(took < Duration::from_secs(35), "{took:?}");
}
