//! How every client of ours speaks to the brokers: its settings, and what their errors are in ours.

use crate::record::check_prefix;
use crate::safety;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one question to the brokers may take.
pub const ANSWER: Duration = Duration::from_secs(5);
/// A broker that says nothing for as long is left for another one: one that stands still keeps its
/// connections. Brokers have chosen another leader after nine seconds by themselves.
const SILENT_MS: u64 = 5_000;
/// Between two looks who leads: what is found when a broker is left may be who led before.
const LEADERS_MS: u64 = 5_000;
/// How long what the client library said is told with errors: later ones have another cause.
const SAID: Duration = Duration::from_secs(60);

/// Whose log it is, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// `HOST:PORT,...` of some of the brokers.
    pub brokers: String,
    /// What its topics' names begin with; nobody else's may.
    pub prefix: String,
    /// How to speak to the brokers, in librdkafka's words: `security.protocol` and the like.
    pub settings: BTreeMap<String, String>,
}

/// The prefix where none is said.
const PREFIX: &str = "holdfast";

impl Options {
    /// `kafka://HOST:PORT,...[/PREFIX]`, and how to speak to the brokers.
    pub fn parse(address: &str, settings: BTreeMap<String, String>) -> Result<Options> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "keep the log at `{address}`: {why}: write kafka://HOST:PORT,HOST:PORT[/PREFIX]"
            ))
        };
        let Some(rest) = address.strip_prefix("kafka://") else {
            return Err(wrong("it does not begin with `kafka://`"));
        };
        let (brokers, prefix) = rest.split_once('/').unwrap_or((rest, PREFIX));
        let is_place = |place: &str| {
            place.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        };
        if let Some(place) = brokers.split(',').find(|place| !is_place(place)) {
            return Err(wrong(&format!("`{place}` is no broker's HOST:PORT")));
        }
        check_prefix(prefix).map_err(|e| e.context(format_args!("keep the log at `{address}`")))?;
        if let Some(name) = settings.keys().find(|name| OURS.contains(&name.as_str())) {
            return Err(wrong(&format!("`{name}` in `log_client` is not yours to set")));
        }
        let (brokers, prefix) = (brokers.to_owned(), prefix.to_owned());
        Ok(Options { brokers, prefix, settings })
    }
}

/// Settings of the client library on which order and durability rest.
const OURS: &[&str] = &[
    "bootstrap.servers",
    "metadata.broker.list",
    "allow.auto.create.topics",
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "transactional.id",
    "group.id",
    "enable.auto.commit",
    "auto.offset.reset",
    "isolation.level",
    "enable.partition.eof",
];

/// What the user of the brokers has to have on the topics of the log, in Kafka's words.
pub const RIGHTS: &str = "Read, Write, Create, Delete, Describe and DescribeConfigs";

/// What the client library says by itself: kept, for the sentence that a person gets.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Option<(Instant, String)>>>);

impl Told {
    /// What was said last, if that was not long ago; empty if nothing was.
    pub fn last(&self) -> String {
        let said = self.0.held();
        let lately = said.as_ref().filter(|(at, _)| at.elapsed() < SAID);
        lately.map_or(String::new(), |(_, said)| said.clone())
    }

    fn keep(&self, said: &str) {
        *self.0.held() = Some((Instant::now(), said.to_owned()));
    }
}

impl ClientContext for Told {
    fn log(&self, level: RDKafkaLogLevel, _: &str, said: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 {
            self.keep(said);
        }
    }

    fn error(&self, _: KafkaError, reason: &str) {
        self.keep(reason);
    }
}

impl ConsumerContext for Told {}

/// A reader of topics, placed by hand.
pub type Consumer = BaseConsumer<Told>;

/// How clients are made.
#[derive(Clone)]
pub struct Clients {
    pub options: Options,
    pub told: Told,
}

impl Clients {
    pub fn new(options: Options) -> Clients {
        Clients { options, told: Told::default() }
    }

    /// What all clients have in common.
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.options.brokers)
            .set("client.id", "holdfast")
            .set("socket.keepalive.enable", "true")
            // A broker that is back is used at once, whatever it was away for.
            .set("reconnect.backoff.max.ms", "1000")
            .set("socket.timeout.ms", SILENT_MS.to_string())
            .set("topic.metadata.refresh.interval.ms", LEADERS_MS.to_string())
            // What asks for a topic that was deleted would make it anew, with the brokers' settings.
            .set("allow.auto.create.topics", "false")
            .set("log_level", "3");
        for (name, value) in &self.options.settings {
            config.set(name, value);
        }
        config
    }

    /// Whether a page ends where the topic does by now, or is waited for.
    pub fn consumer(&self, tells_the_end: bool) -> Result<Consumer> {
        let mut config = self.config();
        config
            // Of no group: this must be set, and nothing of it is used.
            .set("group.id", format!("{}.unused", self.options.prefix))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // The default steps over what was lost.
            .set("auto.offset.reset", "error")
            // Else a stranger's open transaction stops every reader.
            .set("isolation.level", "read_uncommitted")
            .set("check.crcs", "true")
            .set("fetch.error.backoff.ms", "100")
            .set("queued.max.messages.kbytes", "4096")
            // A reader that has fetched as much ahead looks again after this, and not after a second.
            .set("fetch.queue.backoff.ms", "2")
            .set("enable.partition.eof", if tells_the_end { "true" } else { "false" });
        if tells_the_end {
            // Placed for one page after another: each would wait until the broker gives up to wait for what
            // lies behind the page before, half a second as a rule.
            config.set("fetch.wait.max.ms", "10");
        }
        self.make(&config, "read from")
    }

    /// A client of these settings.
    pub fn make<T: FromClientConfigAndContext<Told>>(
        &self,
        config: &ClientConfig,
        doing: &str,
    ) -> Result<T> {
        T::from_config_and_context(config, self.told.clone()).map_err(|e| {
            Error::invalid(format!(
                "{doing} the brokers at `{}`: {e}: check what was set for them",
                self.options.brokers
            ))
        })
    }

    /// An error of the brokers, or of the way to them, as a sentence. What may pass is `Retry`.
    pub fn error(&self, doing: impl std::fmt::Display, e: &KafkaError) -> Error {
        use RDKafkaErrorCode as Code;
        let brokers = &self.options.brokers;
        let last = self.told.last();
        let also = if last.is_empty() { last } else { format!(" ({last})") };
        match code_of(e) {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
                Error::not_found(format!("{doing}: the brokers at `{brokers}` have no such topic"))
            }
            // No entry is larger than what a topic is made to take: somebody has changed that.
            Some(Code::MessageSizeTooLarge) => Error::retry(format!(
                "{doing}: the brokers do not take an entry that came with it: set the topic's \
                 `max.message.bytes` to {} or more",
                safety::RECORD_BYTES_MAX
            )),
            Some(Code::InvalidTopic) => Error::invalid(format!(
                "{doing}: the brokers at `{brokers}` do not take this name, maybe since another topic's \
                 differs in nothing but `.` and `_`: choose another prefix"
            )),
            Some(Code::InvalidReplicationFactor) => Error::retry(format!(
                "{doing}: fewer of the brokers `{brokers}` run than it is to have copies: start them, and \
                 name each of them once"
            )),
            Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
                Error::retry(format!(
                    "{doing}: the brokers at `{brokers}` do not let this client: {e}: give its user \
                     {RIGHTS} on topics whose names begin with `{}.`",
                    self.options.prefix
                ))
            }
            _ => Error::retry(format!(
                "{doing}: {e}{also}: check that the brokers at `{brokers}` run and can be reached"
            )),
        }
    }
}

/// What an error says that a program understands; the library's own function knows of no command's.
fn code_of(e: &KafkaError) -> Option<RDKafkaErrorCode> {
    match e {
        KafkaError::AdminOp(code) => Some(*code),
        e => e.rdkafka_error_code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Result<Options> {
        Options::parse(address, BTreeMap::new())
    }

    #[test]
    fn an_address_names_brokers_and_a_prefix_or_is_refused_with_its_form() {
        let two = parse("kafka://a:1,[::1]:9092/eu.files").unwrap();
        assert_eq!((&*two.brokers, &*two.prefix), ("a:1,[::1]:9092", "eu.files"));
        assert_eq!(parse("kafka://a:1").unwrap().prefix, "holdfast");
        for bad in [
            "",
            "a:1",
            "kafka://",
            "kafka://a",
            "kafka://a:0",
            "kafka://a:1,",
            "kafka://:1",
            "kafka://a:1/",
            "kafka://a:1/b/c",
            "kafka://a:1/b_c",
            "Kafka://a:1",
            "kafka://a:99999",
        ] {
            let said = parse(bad).unwrap_err().message;
            assert!(said.contains("kafka://HOST:PORT") || said.contains("prefix"), "{bad}: {said}");
        }
    }

    /// A sentence had the reason of an error of the day before.
    #[test]
    fn what_was_said_is_told_for_a_while() {
        let told = Told::default();
        assert_eq!(told.last(), "");
        told.keep("nobody listens");
        assert_eq!(told.last(), "nobody listens");
        told.0.held().as_mut().unwrap().0 -= SAID;
        assert_eq!(told.last(), "");
    }

    /// Each of these would let an acknowledged entry be lost, repeated or passed over.
    #[test]
    fn what_durability_rests_on_cannot_be_set() {
        for name in OURS {
            let settings = BTreeMap::from([((*name).to_owned(), "1".to_owned())]);
            let said = Options::parse("kafka://a:1", settings).unwrap_err().message;
            assert!(said.contains(name), "{said}");
        }
    }
}
