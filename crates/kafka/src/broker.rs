//! What is asked of the brokers about a topic, and commanded: all of it waits for an answer, for
//! [`ANSWER`] at most each time.

use crate::client::{ANSWER, Clients, Consumer, Told};
use crate::record::{self, HEADER, Reading};
use crate::safety;
use futures_executor::block_on;
use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_log::Info;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
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

/// A topic of the log at the brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: String,
    /// What it is called there.
    pub name: String,
    /// The index in front of its first offset.
    pub base: u64,
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

/// What lies at an offset.
pub struct Found {
    pub offset: i64,
    pub reading: Reading,
    pub entry: Vec<u8>,
}

/// The brokers' answers.
pub struct Broker {
    pub clients: Clients,
    /// Which log: what each record of it says.
    pub log: u64,
    admin: AdminClient<Told>,
    /// For what is asked of topics, and for pages that are read once: placed anew for each.
    consumer: Mutex<Consumer>,
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
        let consumer = Mutex::new(clients.consumer(true)?);
        Ok(Broker { clients, log, admin, consumer })
    }

    /// How many brokers there are, and how many replicas the topic has; `NotFound` where there is none.
    pub fn replicas(&self, name: &str) -> Result<(usize, usize)> {
        let doing = format!("look for topic `{name}`");
        let consumer = self.consumer.held();
        let answer = consumer.fetch_metadata(Some(name), ANSWER);
        let metadata = answer.map_err(|e| self.clients.error(&doing, &e))?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let error = topic.and_then(|topic| topic.error()).map(RDKafkaErrorCode::from);
        if let Some(code) = error {
            return Err(self.clients.error(&doing, &KafkaError::MetadataFetch(code)));
        }
        let partitions = topic.map_or(&[][..], |topic| topic.partitions());
        match partitions {
            [] => Err(Error::not_found(format!("{doing}: it is not there"))),
            [one] => Ok((one.replicas().len(), metadata.brokers().len())),
            _ => Err(Error::invalid(format!(
                "{doing}: it has {} partitions, and order is kept within one: it is not of this log's \
                 making: choose another prefix",
                partitions.len()
            ))),
        }
    }

    /// Whether there is a topic of this name; checked for safety if there is.
    pub fn is_there(&self, name: &str) -> Result<bool> {
        match self.replicas(name) {
            Ok(size) => self.check(name, size).map(|()| true),
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn check(&self, name: &str, size: (usize, usize)) -> Result<()> {
        let settings = self.settings(name)?;
        match safety::unsafe_because(&settings, size, ENTRY_BYTES_MAX) {
            Some(why) => Err(Error::invalid(format!(
                "use topic `{name}` of the brokers at `{}`: {why}",
                self.clients.options.brokers
            ))),
            None => Ok(()),
        }
    }

    fn settings(&self, name: &str) -> Result<BTreeMap<String, String>> {
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
                 client has not the right to describe settings: ask again"
            )));
        }
        let entries = resource.entries.into_iter();
        Ok(entries.map(|entry| (entry.name, entry.value.unwrap_or_default())).collect())
    }

    /// Whether no broker has the topic: one that has just started does not know all of them, so it is asked
    /// for more than once.
    pub fn is_gone(&self, name: &str) -> Result<bool> {
        for _ in 0..GONE {
            if self.is_there(name)? {
                return Ok(false);
            }
            std::thread::sleep(AGAIN);
        }
        Ok(true)
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
        let known = {
            let all = self.consumer.held().fetch_metadata(Some(name), ANSWER);
            all.map_err(|e| self.clients.error(&doing, &e))?.brokers().len()
        };
        // Those that are named belong to it, also while they are starting.
        let brokers = known.max(self.clients.options.brokers.split(',').count());
        let settings = safety::settings(brokers, ENTRY_BYTES_MAX);
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
        let answer = self.consumer.held().fetch_watermarks(name, 0, ANSWER);
        answer.map_err(|e| self.of_known(format_args!("ask how far topic `{name}` goes"), &e))
    }

    /// An error about a topic that was there: while brokers fail over, some do not know it.
    fn of_known(&self, doing: impl std::fmt::Display, e: &KafkaError) -> Error {
        let e = self.clients.error(doing, e);
        if e.kind == Kind::NotFound { Error::retry(e.message) } else { e }
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

    fn scan_with<T>(
        &self,
        place: &Place,
        from: i64,
        mut take: impl FnMut(&BorrowedMessage<'_>) -> (T, bool),
    ) -> Result<Vec<T>> {
        let doing = || format!("read topic `{}`", place.topic);
        let consumer = self.consumer.held();
        let placed = consumer.assign(&one_partition(&place.name, from));
        placed.map_err(|e| self.clients.error(doing(), &e))?;
        let begun = Instant::now();
        let mut all = Vec::new();
        let read = loop {
            match consumer.poll(LOOK) {
                Some(Ok(message)) if message.offset() >= from && message.topic() == place.name => {
                    let (taken, last) = take(&message);
                    all.push(taken);
                    if last {
                        break Ok(());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => break Ok(()),
                // What concerns no topic is tried again by the client itself.
                Some(Err(e)) if !is_passing(&e) => break Err(self.of_known(doing(), &e)),
                _ if begun.elapsed() > ANSWER => {
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
        let name = record::name_of(&self.clients.options.prefix, topic)?;
        let mut place = Place { topic: topic.to_owned(), name, base: 0 };
        let (low, high) = self.ends_of(&place.name)?;
        if low < high {
            let is_ours = |found: &Found| !matches!(found.reading, Reading::Strange(_));
            let found = self.scan(&place, low, is_ours)?;
            match found.last().map(|last| &last.reading) {
                Some(Reading::Entry { base } | Reading::Mark { base }) => place.base = *base,
                Some(Reading::Refused(why)) => {
                    return Err(Error::corrupt(format!("begin with topic `{topic}`: {why}")));
                }
                _ => {}
            }
        }
        Ok(place)
    }

    /// How far the topic reaches by now. In front of its end there is an entry: offsets behind the last
    /// one are a stranger's, or a transaction's.
    pub fn info(&self, place: &Place) -> Result<Info> {
        let (low, high) = self.ends_of(&place.name)?;
        let mut first = place.index(low);
        let (mut from, mut end) = (high, low);
        let mut back = 1;
        while from > low {
            from = (high - back).max(low);
            let at_end = |found: &Found| found.offset >= high - 1;
            let found = self.scan(place, from, at_end)?;
            let is_entry = |found: &&Found| !matches!(found.reading, Reading::Strange(_));
            if let Some(last) = found.iter().rev().find(is_entry) {
                end = last.offset + 1;
                // There is nothing yet behind where the topic counts from.
                if matches!(last.reading, Reading::Mark { .. }) {
                    first = place.index(end);
                }
                break;
            }
            back *= 8;
        }
        let next = place.index(end).max(first);
        Ok(Info { first, next, durable: next, bytes: 0, segments: 1 })
    }

    /// Gives up what lies before this offset.
    pub fn trim(&self, name: &str, before: i64) -> Result<()> {
        let doing = format!("trim topic `{name}`");
        let answer = block_on(self.admin.delete_records(&one_partition(name, before), &options()));
        let answers = answer.map_err(|e| self.clients.error(&doing, &e))?;
        let failed = answers.elements().iter().find_map(|one| one.error().err());
        failed.map_or(Ok(()), |e| Err(self.clients.error(&doing, &e)))
    }

    /// The topics of this log.
    pub fn topics(&self) -> Result<Vec<String>> {
        let answer = self.consumer.held().fetch_metadata(None, ANSWER);
        let metadata = answer.map_err(|e| self.clients.error("list topics", &e))?;
        let prefix = &self.clients.options.prefix;
        let topics = metadata.topics().iter();
        let mut topics: Vec<String> =
            topics.filter_map(|topic| record::topic_of(prefix, topic.name())).collect();
        topics.sort();
        Ok(topics)
    }
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

    /// A client that read from the largest index ended the node: its offset was none.
    #[test]
    fn every_index_has_an_offset_that_a_reader_can_be_placed_at() {
        for base in [0, 40, 1 << 40] {
            let place = Place { topic: "t".to_owned(), name: "p.t".to_owned(), base };
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
