//! What is asked of the brokers about a topic, and commanded: all of it waits for an answer, for
//! [`ANSWER`] at most each time.

use crate::client::{ANSWER, Clients, Consumer, RIGHTS, Told};
use crate::identity;
use crate::record::{self, HEADER, Reading};
use crate::safety;
use futures_executor::block_on;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Info;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a topic may take to be known to all brokers once it was made.
const KNOWN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
/// Between two attempts, and how many say that a topic is gone.
const AGAIN: Duration = Duration::from_millis(300);
const GONE: u32 = 10;
/// Who asks about a topic so soon after nobody answered is told the same: else those that wait for a thread
/// to ask would wait for each other's questions.
const REST: Duration = Duration::from_secs(1);

/// A topic of the log at the brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: String,
    /// What it is called there.
    pub name: String,
    /// The index in front of its first offset.
    pub base: u64,
    /// Which topic of that name it is: one that is made anew has another. Brokers that are too old for it
    /// say none.
    pub id: Option<u128>,
}

impl Place {
    /// The index of what lies at this offset.
    pub fn index(&self, offset: i64) -> Index {
        Index(self.base + offset as u64 + 1)
    }

    /// Where the entry of this index lies: at the first offset for all that lie before, at the last that
    /// there can be for those that no topic reaches, whatever a client asks for.
    pub fn offset(&self, index: Index) -> i64 {
        i64::try_from(index.0.saturating_sub(self.base + 1)).unwrap_or(i64::MAX)
    }
}

/// Where a topic is kept.
#[derive(Debug, Default)]
pub struct Copies {
    /// -1 for none.
    pub leader: i32,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
    pub partitions: usize,
    /// Brokers that run, whether they have it or not.
    pub brokers: usize,
}

impl Copies {
    /// How many copies, of how many brokers.
    pub fn size(&self) -> (usize, usize) {
        (self.replicas.len(), self.brokers)
    }
}

/// What lies at an offset.
pub struct Found {
    pub offset: i64,
    pub reading: Reading,
    pub entry: Vec<u8>,
}

/// Where a record of ours lies, and what it is.
type Last = (i64, Reading);

/// The brokers' answers.
pub struct Broker {
    pub clients: Clients,
    /// Which log: what each record of it says.
    pub log: u64,
    admin: AdminClient<Told>,
    /// For what is asked of topics, by any number of threads at once: where brokers do not answer, each
    /// waits for its own answer alone.
    consumer: Consumer,
    /// Held while that consumer is placed, for a page that is read once.
    placed: Mutex<()>,
    /// The last record of ours of topics, by where they ended when it was looked for.
    ends: Mutex<BTreeMap<String, (i64, Option<Last>)>>,
    /// Topics of which nobody said anything, and when that was. Never held while anybody is asked.
    unheard: Mutex<BTreeMap<String, (Instant, Error)>>,
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER)).operation_timeout(Some(ANSWER))
}

/// A list of the one partition that a topic has.
pub fn one_partition(name: &str, offset: i64) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    let placed = list.add_partition_offset(name, 0, Offset::Offset(offset));
    placed.expect("an offset that is none of the special ones");
    list
}

/// What a record is.
pub fn found(log: u64, topic: &str, message: &BorrowedMessage<'_>) -> Found {
    let header = message.headers().and_then(|headers| {
        headers.iter().find(|header| header.key == HEADER).map(|header| header.value)
    });
    let entry = message.payload().unwrap_or_default();
    let reading = record::read(log, topic, header.map(Option::unwrap_or_default), entry);
    let entry = if matches!(reading, Reading::Entry { .. }) { entry.to_vec() } else { Vec::new() };
    Found { offset: message.offset(), reading, entry }
}

impl Broker {
    pub fn new(clients: Clients, log: u64) -> Result<Broker> {
        let admin = clients.make(&clients.config(), "command")?;
        let consumer = clients.consumer(true)?;
        let (placed, ends, unheard) = Default::default();
        Ok(Broker { clients, log, admin, consumer, placed, ends, unheard })
    }

    /// What the names of the log's topics begin with.
    pub fn prefix(&self) -> &str {
        &self.clients.options.prefix
    }

    /// What a topic is called at the brokers.
    pub fn name_of(&self, topic: &str) -> Result<String> {
        record::name_of(self.prefix(), topic)
    }

    /// How many brokers run.
    pub fn count(&self) -> Result<usize> {
        Ok(self.metadata(None, "ask for brokers")?.brokers().len())
    }

    /// What brokers know of a topic, or of all. Where none answers, why not is what the client library has
    /// logged meanwhile, and tells who polls.
    fn metadata(&self, name: Option<&str>, doing: &str) -> Result<Metadata> {
        self.consumer.fetch_metadata(name, ANSWER).map_err(|e| {
            self.hear_what_was_said();
            self.clients.error(doing, &e)
        })
    }

    /// Asks about a topic, unless nobody has just answered.
    fn heard<T>(&self, name: &str, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some((at, e)) = self.unheard.held().get(name)
            && at.elapsed() < REST
        {
            return Err(e.clone());
        }
        let begun = Instant::now();
        let answer = ask();
        if let Err(e) = &answer
            && e.kind == Kind::Retry
            && begun.elapsed() >= ANSWER
        {
            let mut unheard = self.unheard.held();
            unheard.retain(|_, (at, _)| at.elapsed() < REST);
            unheard.insert(name.to_owned(), (Instant::now(), e.clone()));
        }
        answer
    }

    /// Where the topic is kept; `NotFound` where there is none.
    pub fn copies(&self, name: &str) -> Result<Copies> {
        self.heard(name, || self.copies_now(name))
    }

    fn copies_now(&self, name: &str) -> Result<Copies> {
        let doing = format!("look for topic `{name}`");
        let metadata = self.metadata(Some(name), &doing)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let error = topic.and_then(|topic| topic.error()).map(RDKafkaErrorCode::from);
        if let Some(code) = error {
            return Err(self.clients.error(&doing, &KafkaError::MetadataFetch(code)));
        }
        let partitions = topic.map_or(&[][..], |topic| topic.partitions());
        // Further ones can be added by mistake, and not be taken away: nothing of ours is there.
        match partitions.iter().find(|one| one.id() == 0) {
            None => Err(Error::not_found(format!("{doing}: it is not there"))),
            Some(one) => Ok(Copies {
                leader: one.leader(),
                replicas: one.replicas().to_vec(),
                in_sync: one.isr().to_vec(),
                partitions: partitions.len(),
                brokers: metadata.brokers().len(),
            }),
        }
    }

    /// Whether there is a topic of this name; checked for safety if there is.
    pub fn is_there(&self, name: &str) -> Result<bool> {
        match self.copies(name) {
            Ok(copies) => self.check(name, copies.size()).map(|()| true),
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn check(&self, name: &str, size: (usize, usize)) -> Result<()> {
        let settings = self.settings(name)?;
        match safety::unsafe_for(&settings, size).first() {
            Some(why) => Err(Error::invalid(format!(
                "use topic `{name}` of the brokers at `{}`: {why}",
                self.clients.options.brokers
            ))),
            None => Ok(()),
        }
    }

    /// A topic's settings, as they are in force.
    pub fn settings(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let doing = format!("ask for the settings of topic `{name}`");
        let asked = [ResourceSpecifier::Topic(name)];
        let answer = block_on(self.admin.describe_configs(&asked, &options()));
        let answers = answer.map_err(|e| self.clients.error(&doing, &e))?;
        let Some(Ok(resource)) = answers.into_iter().next() else {
            return Err(Error::retry(format!("{doing}: the brokers do not say: ask again")));
        };
        // An error of this one resource comes as no setting at all: a broker has not heard yet of a topic
        // that another one has just made.
        if resource.entries.is_empty() {
            return Err(Error::retry(format!(
                "{doing}: the broker that was asked says none: it does not know the topic yet, or this \
                 client's user may not ask: give it {RIGHTS} on topics whose names begin with `{}.`",
                self.prefix()
            )));
        }
        let entries = resource.entries.into_iter();
        Ok(entries.map(|entry| (entry.name, entry.value.unwrap_or_default())).collect())
    }

    /// Whether no broker has the topic: one that has just started does not know all of them, so it is asked
    /// for more than once.
    pub fn is_gone(&self, name: &str) -> Result<bool> {
        match self.patiently(|| self.copies(name)) {
            Ok(copies) => self.check(name, copies.size()).map(|()| false),
            Err(e) if e.kind == Kind::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Asks until the topic is known, or so often that it is not there.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 1..GONE {
            match ask() {
                Err(e) if e.kind == Kind::NotFound => std::thread::sleep(AGAIN),
                answered => return answered,
            }
        }
        ask()
    }

    /// Makes the topic if it is not there, with settings that keep it; refuses one whose settings do not.
    /// Waits for brokers that are starting.
    pub fn make(&self, name: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.make_now(name) {
                Err(e) if e.kind == Kind::Retry && begun.elapsed() < KNOWN => {
                    std::thread::sleep(AGAIN);
                }
                made => return made,
            }
        }
    }

    fn make_now(&self, name: &str) -> Result<()> {
        if self.is_there(name)? {
            return Ok(());
        }
        let doing = format!("make topic `{name}`");
        let known = self.metadata(Some(name), &doing)?.brokers().len();
        // Those that are named belong to it, also while they are starting.
        let brokers = known.max(self.clients.options.brokers.split(',').count());
        let settings = safety::settings(brokers);
        let copies = TopicReplication::Fixed(safety::replicas(brokers) as i32);
        let made = settings
            .iter()
            .fold(NewTopic::new(name, 1, copies), |made, (name, value)| made.set(name, value));
        let answer = block_on(self.admin.create_topics([&made], &options()));
        let answers = answer.map_err(|e| self.clients.error(&doing, &e))?;
        match answers.into_iter().next() {
            Some(Ok(_)) | Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {}
            Some(Err((_, code))) => {
                return Err(self.clients.error(&doing, &KafkaError::AdminOp(code)));
            }
            None => {
                return Err(Error::retry(format!("{doing}: the brokers do not answer: ask again")));
            }
        }
        match self.is_there(name)? && self.ends_of(name).is_ok() {
            true => Ok(()),
            false => Err(Error::retry(format!(
                "{doing}: it was made, and the brokers do not serve it yet: ask again"
            ))),
        }
    }

    /// The first offset that there is, and the one behind the last.
    pub fn ends_of(&self, name: &str) -> Result<(i64, i64)> {
        let doing = format_args!("ask how far topic `{name}` goes");
        self.heard(name, || {
            let answer = self.consumer.fetch_watermarks(name, 0, ANSWER);
            answer.map_err(|e| self.of_known(doing, &e))
        })
    }

    /// Which topic of this name there is; nothing where brokers do not say.
    pub fn id_of(&self, name: &str) -> Result<Option<u128>> {
        let doing = format!("ask which topic `{name}` is");
        let answer = identity::of(self.admin.inner(), name, ANSWER);
        answer.map_err(|code| self.clients.error(doing, &KafkaError::AdminOp(code)))
    }

    /// Whether the topic of a place is another one than it was.
    pub fn is_anew(&self, place: &Place) -> Result<bool> {
        let is = match self.id_of(&place.name) {
            Err(e) if e.kind == Kind::NotFound => None,
            answered => answered?,
        };
        let anew = place.id.zip(is).is_some_and(|(was, is)| was != is);
        Ok(anew && !planted!("kafka.topic-id-ignored"))
    }

    /// An error about a topic that was there: while brokers fail over, some do not know it.
    fn of_known(&self, doing: impl std::fmt::Display, e: &KafkaError) -> Error {
        retried(self.clients.error(doing, e))
    }

    /// What lies from `from` on, entries or not, until `enough` of what was found so far, or the end as
    /// the broker has it now.
    pub fn scan(
        &self,
        place: &Place,
        from: i64,
        mut enough: impl FnMut(&Found) -> bool,
    ) -> Result<Vec<Found>> {
        self.scan_with(place, from, |message| {
            let found = found(self.log, &place.topic, message);
            let last = enough(&found);
            (found, last)
        })
    }

    /// Every record from `from` on, until one is `enough`, or the end as the broker has it now.
    pub fn each(
        &self,
        place: &Place,
        from: i64,
        mut enough: impl FnMut(&Found) -> bool,
    ) -> Result<()> {
        let read = self.scan_with(place, from, |message| {
            ((), enough(&found(self.log, &place.topic, message)))
        });
        read.map(drop)
    }

    fn scan_with<T>(
        &self,
        place: &Place,
        from: i64,
        mut take: impl FnMut(&BorrowedMessage<'_>) -> (T, bool),
    ) -> Result<Vec<T>> {
        let doing = || format!("read topic `{}`", place.topic);
        let consumer = &self.consumer;
        let _placed = self.placed.held();
        let placed = consumer.assign(&one_partition(&place.name, from));
        placed.map_err(|e| self.clients.error(doing(), &e))?;
        let mut heard = Instant::now();
        let mut all = Vec::new();
        let read = loop {
            match consumer.poll(LOOK) {
                Some(Ok(message)) if message.offset() >= from && message.topic() == place.name => {
                    // However much it is: while something comes, the broker answers.
                    heard = Instant::now();
                    let (taken, last) = take(&message);
                    all.push(taken);
                    if last {
                        break Ok(());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => break Ok(()),
                // What concerns no topic is tried again by the client itself.
                Some(Err(e)) if !is_passing(&e) => break Err(self.of_known(doing(), &e)),
                _ if heard.elapsed() > ANSWER => {
                    let e = KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut);
                    break Err(self.clients.error(doing(), &e));
                }
                _ => {}
            }
        };
        let left = consumer.unassign();
        read.and(left.map_err(|e| self.clients.error(doing(), &e))).map(|()| all)
    }

    /// The bytes of all records from `from` on, whosever they are, until one is `wanted`.
    pub fn records(
        &self,
        place: &Place,
        from: i64,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<Vec<u8>>> {
        let found = self.scan_with(place, from, |message| {
            let bytes = message.payload().unwrap_or_default().to_vec();
            let enough = wanted(&bytes);
            (bytes, enough)
        })?;
        Ok(found)
    }

    /// Where a topic that is there begins to count. One without any entry of ours counts from 0.
    pub fn place(&self, topic: &str) -> Result<Place> {
        let name = self.name_of(topic)?;
        // Asked first: whatever is read then is of this one, or the next comparison tells.
        let id = self.patiently(|| self.id_of(&name)).map_err(retried)?;
        let mut place = Place { topic: topic.to_owned(), name, base: 0, id };
        let (low, high) = self.ends_of(&place.name)?;
        match self.last(&place, low, high)? {
            Some((_, Reading::Entry { base } | Reading::Mark { base })) => place.base = base,
            Some((_, Reading::Refused(why))) => {
                return Err(Error::corrupt(format!("begin with topic `{topic}`: {why}")));
            }
            _ => {}
        }
        Ok(place)
    }

    /// How far the topic reaches by now. In front of its end there is an entry: offsets behind the last
    /// one are a stranger's, or a transaction's.
    pub fn info(&self, place: &Place) -> Result<Info> {
        let (low, high) = self.ends_of(&place.name)?;
        let mut first = place.index(low);
        let last = self.last(place, low, high)?;
        let next = last.map_or(first, |(offset, _)| place.index(offset + 1)).max(first);
        if matches!(last, Some((_, Reading::Mark { .. }))) {
            // There is nothing yet behind where the topic counts from.
            first = next;
        }
        Ok(Info { first, next, durable: next, bytes: 0, segments: 1 })
    }

    /// The last record of ours from `low` on, below `high`, where the topic ends. Read once for each end:
    /// a list of many topics would take minutes else.
    fn last(&self, place: &Place, low: i64, high: i64) -> Result<Option<Last>> {
        if let Some((end, last)) = self.ends.held().get(&place.name)
            && *end == high
        {
            return Ok(last.filter(|(offset, _)| *offset >= low));
        }
        let (mut from, mut last) = (high, None);
        let mut back = 1;
        while from > low && last.is_none() {
            from = (high - back).max(low);
            let at_end = |found: &Found| found.offset >= high - 1;
            let found = self.scan(place, from, at_end)?.into_iter().rev();
            let mut ours = found.filter(|found| !matches!(found.reading, Reading::Strange(_)));
            last = ours.next().map(|found| (found.offset, found.reading));
            back *= 8;
        }
        self.ends.held().insert(place.name.clone(), (high, last));
        Ok(last)
    }

    /// Gives up what lies before this offset.
    pub fn trim(&self, name: &str, before: i64) -> Result<()> {
        let doing = format!("trim topic `{name}`");
        let answer = block_on(self.admin.delete_records(&one_partition(name, before), &options()));
        let answers = answer.map_err(|e| self.clients.error(&doing, &e))?;
        let failed = answers.elements().iter().find_map(|one| one.error().err());
        failed.map_or(Ok(()), |e| Err(self.clients.error(&doing, &e)))
    }

    #[cfg(test)]
    pub fn remove(&self, name: &str) -> Result<()> {
        let answer = block_on(self.admin.delete_topics(&[name], &options()));
        answer.map(drop).map_err(|e| self.clients.error("remove a topic", &e))
    }

    /// Takes what the client library has said meanwhile: nobody else looks while nothing is read. Of errors
    /// the last one's reason is kept for a while ([`Told`](crate::client::Told)).
    pub fn hear_what_was_said(&self) {
        // Else somebody reads with it, and hears it.
        if let Ok(_placed) = self.placed.try_lock() {
            while self.consumer.poll(Duration::ZERO).is_some() {}
        }
    }

    /// The topics of this log.
    pub fn topics(&self) -> Result<Vec<String>> {
        let metadata = self.metadata(None, "list topics")?;
        let prefix = self.prefix();
        let topics = metadata.topics().iter();
        let mut topics: Vec<String> =
            topics.filter_map(|topic| record::topic_of(prefix, topic.name())).collect();
        topics.sort();
        Ok(topics)
    }
}

/// An error about a topic that was there: somebody who does not know it now will.
fn retried(e: Error) -> Error {
    if e.kind == Kind::NotFound { Error::retry(e.message) } else { e }
}

/// Whether the client library goes on by itself after it.
pub fn is_passing(e: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        e.rdkafka_error_code(),
        Some(
            Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::LeaderNotAvailable
                | Code::NotLeaderForPartition
                | Code::Resolve
                | Code::NetworkException
                // Of no group, and its rights are not asked for; the client library says it all the same.
                | Code::GroupAuthorizationFailed
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Options;
    use holdfast_brokers::Brokers;

    /// A node that started refused a topic that another broker had just made: its settings were no settings,
    /// and so unsafe.
    #[test]
    fn a_broker_that_does_not_know_a_topic_is_asked_again_and_the_topic_not_refused() {
        let Some(brokers) = Brokers::start(1, &[]) else { return };
        let address = format!("kafka://{}/settings", brokers.addresses());
        let clients = Clients::new(Options::parse(&address, BTreeMap::new()).unwrap());
        let broker = Broker::new(clients, 1).unwrap();
        let unknown = broker.check("settings.t", (1, 1)).unwrap_err();
        assert_eq!(unknown.kind, Kind::Retry, "{unknown}");
        broker.make("settings.t").unwrap();
        broker.check("settings.t", (1, 1)).unwrap();
    }

    /// It was said that they cannot be reached, and not why: a certificate that nobody believes, a password
    /// that is wrong, a port where nobody listens.
    #[test]
    fn why_no_broker_answers_is_told() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = format!("kafka://{nobody}/x");
        let clients = Clients::new(Options::parse(&address, BTreeMap::new()).unwrap());
        let e = Broker::new(clients, 1).unwrap().count().unwrap_err();
        assert!(e.message.contains("Connection refused"), "{e}");
    }

    /// A client that read from the largest index ended the node: its offset was none.
    #[test]
    fn every_index_has_an_offset_that_a_reader_can_be_placed_at() {
        for base in [0, 40, 1 << 40] {
            let place = Place { topic: "t".to_owned(), name: "p.t".to_owned(), base, id: None };
            for offset in [0, 1, 1000, 1 << 50] {
                assert_eq!(place.offset(place.index(offset)), offset);
            }
            for index in [0, base, base + 1, 1 << 63, (1 << 63) + 7, u64::MAX] {
                let offset = place.offset(Index(index));
                assert!(offset >= 0, "{index}: {offset}");
                assert_eq!(one_partition("p.t", offset).count(), 1);
            }
        }
    }
}
