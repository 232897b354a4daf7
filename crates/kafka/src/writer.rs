//! Appends: records handed to the client library in their order, and what it reports of each. It sends
//! again by itself, in order and once, as long as it lives; one that has failed is replaced, and all that
//! it had under way is answered as unknown, for it is reported not to recover by itself.

use crate::broker::Place;
use crate::client::Clients;
use crate::record::{HEADER, Stamp};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{HoldMutex, event};
use holdfast_log::Done;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long an append is tried before it is answered as unknown.
pub const APPEND_MS: u64 = 10_000;
/// Bytes under way to the brokers at most, and entries.
const UNDER_WAY_KIB: usize = 64 << 10;
const UNDER_WAY_ENTRIES: usize = 100_000;

/// One append: the offsets of its entries, as they are reported.
struct Append {
    topic: String,
    state: Mutex<State>,
}

struct State {
    offsets: Vec<i64>,
    /// Entries that nothing was reported of yet, and one while more are being handed over.
    open: usize,
    failed: Option<Error>,
    done: Option<Done<Vec<i64>>>,
}

impl Append {
    /// An entry was kept, at an offset if it is not below 0: of one that was sent again after an answer was
    /// lost, and is known to have been kept, nobody says where.
    fn kept(&self, at: usize, offset: i64) {
        let unknown = || {
            let why = "it was kept, and the brokers do not say where: ask again";
            Error::retry(format!("append to topic `{}`: {why}", self.topic))
        };
        self.state.held().offsets[at] = offset;
        self.close(1, (offset < 0).then(unknown));
    }

    /// Nothing more is to be heard of this many of its entries.
    fn close(&self, entries: usize, failed: Option<Error>) {
        let mut state = self.state.held();
        state.open -= entries;
        if let Some(e) = failed {
            state.failed.get_or_insert(e);
        }
        if state.open > 0 {
            return;
        }
        let result = match state.failed.take() {
            Some(e) => Err(e),
            None => Ok(std::mem::take(&mut state.offsets)),
        };
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            done(result);
        }
    }
}

/// One entry under way: which of its append.
pub struct Sent {
    append: Arc<Append>,
    at: usize,
}

/// What the client library calls.
struct Reports {
    clients: Clients,
    failed: Arc<AtomicBool>,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, said: &str) {
        self.clients.told.log(level, fac, said);
    }

    fn error(&self, e: KafkaError, reason: &str) {
        if matches!(e.rdkafka_error_code(), Some(RDKafkaErrorCode::Fatal)) {
            self.failed.store(true, Ordering::Release);
        }
        self.clients.told.error(e, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Sent>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<Sent>) {
        let Sent { append, at } = *sent;
        match result {
            Ok(message) => append.kept(at, message.offset()),
            Err((e, _)) => {
                let doing = format!("append to topic `{}`", append.topic);
                let told = self.clients.error(&doing, e);
                let told = match told.kind {
                    // The topic is known here, so somebody has removed it.
                    Kind::NotFound => Error::retry(told.message),
                    _ => told,
                };
                // One that is too large says nothing of the client.
                let is_large =
                    e.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge);
                if told.kind == Kind::Retry && !is_large {
                    self.failed.store(true, Ordering::Release);
                }
                append.close(1, Some(told));
            }
        }
    }
}

/// A client of the library.
struct Live {
    /// Shared with who waits for all that is under way, which takes as long as appends do.
    producer: Arc<ThreadedProducer<Reports>>,
    /// It does not recover.
    failed: Arc<AtomicBool>,
}

/// Appends of one process to all topics.
pub struct Writer {
    clients: Clients,
    log: u64,
    live: Mutex<Live>,
}

fn live(clients: &Clients) -> Result<Live> {
    let failed = Arc::new(AtomicBool::new(false));
    let mut config = clients.config();
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // As many entries as come meanwhile go with the next request: group commit. Nothing waits for more:
        // the library sleeps for whole milliseconds, whatever part of one is asked for.
        .set("linger.ms", "0")
        .set("batch.num.messages", "10000")
        .set("message.timeout.ms", APPEND_MS.to_string())
        .set("message.max.bytes", (4 << 20).to_string())
        .set("queue.buffering.max.messages", UNDER_WAY_ENTRIES.to_string())
        .set("queue.buffering.max.kbytes", UNDER_WAY_KIB.to_string());
    // What is set for the brokers counts, where order and durability do not rest on it.
    for (name, value) in &clients.options.settings {
        config.set(name, value);
    }
    let reports = Reports { clients: clients.clone(), failed: failed.clone() };
    let made = ThreadedProducer::from_config_and_context(&config, reports);
    made.map(|producer| Live { producer: Arc::new(producer), failed }).map_err(|e| {
        Error::invalid(format!(
            "write to the brokers at `{}`: {e}: check what was set for them",
            clients.options.brokers
        ))
    })
}

impl Writer {
    pub fn new(clients: Clients, log: u64) -> Result<Writer> {
        let live = Mutex::new(live(&clients)?);
        Ok(Writer { clients, log, live })
    }

    /// Hands all entries over, in order, and their offsets to `done`, which may be called at once. Appends
    /// of one caller keep their order. Does not wait.
    pub fn append(&self, place: &Place, entries: &[Vec<u8>], done: Done<Vec<i64>>) {
        let stamp = Stamp { log: self.log, base: place.base };
        self.hand_over(place, entries, |entry| stamp.header(&place.topic, entry), done);
    }

    /// As [`Writer::append`], of the one record that says where the topic counts from.
    pub fn mark(&self, place: &Place, done: Done<Vec<i64>>) {
        let stamp = Stamp { log: self.log, base: place.base };
        self.hand_over(place, &[Vec::new()], |_| stamp.mark(&place.topic), done);
    }

    fn hand_over<const N: usize>(
        &self,
        place: &Place,
        entries: &[Vec<u8>],
        header: impl Fn(&[u8]) -> [u8; N],
        done: Done<Vec<i64>>,
    ) {
        let (offsets, count) = (vec![-1; entries.len()], entries.len());
        let state = State { offsets, open: count + 1, failed: None, done: Some(done) };
        let append = Arc::new(Append { topic: place.topic.clone(), state: Mutex::new(state) });
        let mut refused = None;
        let mut handed = 0;
        {
            // Held throughout: no other append may come between, and none overtake.
            let live = self.live.held();
            for (at, entry) in entries.iter().enumerate() {
                let header = header(entry);
                let header = Header { key: HEADER, value: Some(&header[..]) };
                let sent = Box::new(Sent { append: append.clone(), at });
                let record =
                    BaseRecord::<'_, (), [u8], Box<Sent>>::with_opaque_to(&place.name, sent)
                        .partition(0)
                        .payload(entry)
                        .headers(OwnedHeaders::new_with_capacity(1).insert(header));
                match live.producer.send(record) {
                    Ok(()) => handed += 1,
                    Err((e, _)) => {
                        refused = Some(self.refused(place, &live, &e));
                        break;
                    }
                }
            }
        }
        append.close(count - handed + 1, refused);
    }

    fn refused(&self, place: &Place, live: &Live, e: &KafkaError) -> Error {
        let doing = format!("append to topic `{}`", place.topic);
        match e.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => Error::retry(format!(
                "{doing}: {UNDER_WAY_KIB} KiB or {UNDER_WAY_ENTRIES} entries are under way to the \
                 brokers at `{}`: ask again, and check that they keep up",
                self.clients.options.brokers
            )),
            Some(RDKafkaErrorCode::Fatal) => {
                live.failed.store(true, Ordering::Release);
                self.clients.error(&doing, e)
            }
            _ => self.clients.error(&doing, e),
        }
    }

    /// Replaces a client that has failed. Called by a thread that may wait.
    pub fn mend(&self) -> Result<()> {
        if !self.live.held().failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let fresh = live(&self.clients)?;
        let before = std::mem::replace(&mut *self.live.held(), fresh);
        event!(LogClientReplaced, self.clients.told.last());
        end(&before.producer);
        Ok(())
    }

    /// Waits for what is under way.
    pub fn flush(&self) -> Result<()> {
        // Not held meanwhile: what is called when an append is through may append.
        let producer = self.live.held().producer.clone();
        let flushed = producer.flush(Duration::from_millis(APPEND_MS));
        flushed.map_err(|e| self.clients.error("wait for appends", &e))
    }
}

/// Starts an append and waits for its answer.
pub fn wait(start: impl FnOnce(Done<Vec<i64>>)) -> Result<Vec<i64>> {
    let (told, answer) = channel();
    start(Box::new(move |offsets| {
        let _ = told.send(offsets);
    }));
    let lost = |_| Error::retry("append: the brokers did not answer: try again");
    answer.recv().map_err(lost)?
}

/// Answers all that is under way as unknown.
fn end(producer: &ThreadedProducer<Reports>) {
    producer.purge(PurgeConfig::default().queue().inflight());
    // Delivers the reports; there is nothing left to send.
    let _ = producer.flush(Duration::from_secs(1));
}

impl Drop for Writer {
    fn drop(&mut self) {
        end(&self.live.held().producer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After brokers failed over under load the client library knows of some entries that they were kept,
    /// and not where. Such an offset was counted with: the topic was taken for one made anew, for good.
    #[test]
    fn an_entry_that_was_kept_nobody_says_where_is_unknown() {
        let (told, answer) = channel();
        let done: Done<Vec<i64>> = Box::new(move |offsets| told.send(offsets).unwrap());
        let state = State { offsets: vec![-1; 2], open: 2, failed: None, done: Some(done) };
        let append = Append { topic: "t".to_owned(), state: Mutex::new(state) };
        append.kept(1, 7);
        append.kept(0, -1001);
        let e = answer.recv().unwrap().unwrap_err();
        assert_eq!(e.kind, Kind::Retry, "{e}");
    }
}
