//! The log on brokers that speak Kafka's protocol: each topic of the log is one of theirs, of one
//! partition, and an entry is a record; its index is its offset and the topic's base. Records that are not
//! this log's are gaps. Keeps nothing here but a mirror of what a reader has not read yet.
#![deny(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "the client library has threads, sockets and a clock of its own: no simulation holds it"
)]
#![warn(missing_docs)]

mod about;
mod broker;
mod client;
mod examine;
mod identity;
mod moving;
mod reader;
mod record;
mod safety;
mod topics;
mod writer;

pub use about::Expected;
pub use client::Options;
pub use examine::{Examined, ExaminedTopic, Gap, Held, examine};
pub use moving::{Moved, Moving};
pub use record::check_prefix;

use broker::{Broker, Found};
use client::Clients;
use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Indices, Reason, Result};
use holdfast_env::HoldMutex;
use holdfast_env::tasks::{self, Task};
use holdfast_log::{Done, Info, Log, Mode, Scope, SharedLog, check_topic};
use reader::Following;
use record::Reading;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use topics::Topics;

/// A log that brokers keep, for one reader a topic.
pub struct KafkaLog {
    topics: Arc<Topics>,
    followed: Mutex<BTreeMap<String, Followed>>,
    /// The thread that waits for brokers, of the first reader: the others end before it.
    chores: Option<Task>,
}

struct Followed {
    following: Arc<Following>,
    threads: [Task; 2],
}

fn closed(topic: &str) -> Error {
    Error::retry(format!("tail topic `{topic}`: the log was closed"))
}

impl KafkaLog {
    /// Finds the log of this prefix at the brokers, or begins one, as `expected` says. Waits for brokers.
    pub fn open(options: Options, expected: Expected) -> Result<KafkaLog> {
        check_prefix(&options.prefix)?;
        let clients = Clients::new(options);
        let id = about::find(&clients, expected)?;
        let broker = Arc::new(Broker::new(clients, id)?);
        let (topics, jobs) = Topics::new(broker)?;
        let topics = Arc::new(topics);
        let chores = tasks::spawn("log-chores", topics.chores(jobs))?;
        Ok(KafkaLog { topics, followed: Mutex::default(), chores: Some(chores) })
    }

    /// The topic as this reader follows it, from now on.
    fn following(&self, topic: &str) -> Result<Arc<Following>> {
        if let Some(followed) = self.followed.held().get(topic) {
            return Ok(followed.following.clone());
        }
        let place = self.topics.place(topic)?;
        let mut all = self.followed.held();
        if let Some(followed) = all.get(topic) {
            return Ok(followed.following.clone());
        }
        let following = Arc::new(Following::new(self.topics.broker.clone(), place));
        let (follows, hears) = (following.clone(), following.clone());
        let threads = [
            tasks::spawn("log-follow", move || follows.run())?,
            tasks::spawn("log-arrive", move || hears.call_arrived())?,
        ];
        all.insert(topic.to_owned(), Followed { following: following.clone(), threads });
        Ok(following)
    }

    fn followed(&self, topic: &str) -> Option<Arc<Following>> {
        self.followed.held().get(topic).map(|followed| followed.following.clone())
    }
}

impl SharedLog for KafkaLog {
    fn id(&self) -> u64 {
        self.topics.broker.log
    }

    fn place(&self) -> String {
        let options = &self.topics.broker.clients.options;
        format!("kafka://{}/{}", options.brokers, options.prefix)
    }

    fn another_reader(&self) -> Arc<dyn SharedLog> {
        let (topics, followed) = (self.topics.clone(), Mutex::default());
        Arc::new(KafkaLog { topics, followed, chores: None })
    }

    fn fetch(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        let broker = &self.topics.broker;
        let place = self.topics.place(topic)?;
        self.topics.check_same(topic)?;
        let (low, high) = broker.ends_of(&place.name)?;
        let from = Index(from.0.max(1));
        if from < place.index(low) {
            return Err(Error::invalid(format!(
                "read topic `{topic}` from {from}: entries below {} were trimmed",
                place.index(low)
            ))
            .because(Reason::Trimmed));
        }
        let at = place.offset(from);
        if at >= high {
            return Ok(Vec::new());
        }
        // One entry at least, however long, and then as many as there is room for.
        let (mut entries, mut bytes) = (0, 0);
        let enough = |found: &Found| {
            entries += usize::from(matches!(found.reading, Reading::Entry { .. }));
            bytes += found.entry.len();
            entries >= entries_max.max(1) || (entries > 0 && bytes >= bytes_max)
        };
        let found = broker.scan(&place, at, enough)?;
        let (mut page, mut bytes): (Vec<(Index, Vec<u8>)>, usize) = (Vec::new(), 0);
        for Found { offset, reading, entry } in found {
            match reading {
                Reading::Strange(_) | Reading::Mark { .. } => continue,
                Reading::Refused(why) => {
                    return Err(Error::corrupt(format!(
                        "read topic `{topic}`: the record at offset {offset} is refused: {why}"
                    )));
                }
                Reading::Entry { .. } => {}
            }
            bytes += entry.len();
            if !page.is_empty() && bytes > bytes_max {
                break;
            }
            page.push((place.index(offset), entry));
        }
        Ok(page)
    }

    fn describe(&self, topic: &str) -> Result<Info> {
        self.topics.broker.info(&self.topics.place(topic)?)
    }

    fn refusals(&self) -> Vec<Error> {
        self.topics.refusals()
    }

    fn trouble(&self, topic: &str) -> Option<Error> {
        let following = self.followed(topic);
        let of_reader = following.and_then(|following| {
            let state = following.state();
            state.feed.refused().or(state.trouble.as_ref()).cloned()
        });
        of_reader.or_else(|| self.topics.refused(topic))
    }
}

impl Log for KafkaLog {
    fn create(&self, topic: &str) -> Result<()> {
        check_topic(topic)?;
        self.topics.make(topic)
    }

    /// Always synced: as the brokers understand it.
    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, _: Mode, done: Done<Indices>) {
        if let Err(e) = check_entries(topic, &entries) {
            return done(Err(e));
        }
        let following = self.followed(topic);
        let entries = Arc::new(entries);
        let own = entries.clone();
        let acknowledged = move |indices: Result<Indices>| match (indices, following) {
            (Ok(indices), Some(following)) => following.acknowledged(indices, own, done),
            (indices, _) => done(indices),
        };
        self.topics.append(topic, entries, Box::new(acknowledged));
    }

    /// What the mirror has; nothing while it has not: ask [`Log::tail`] to be told. Made for one reader a
    /// topic, as that of another node's log.
    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        _: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.following(topic)?.page(from, entries_max, bytes_max)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        let following = match self.following(topic) {
            Ok(following) => following,
            Err(e) => return wake(Err(e)),
        };
        let calls = {
            let mut state = following.state();
            following.want(&mut state, from);
            // Who waits there has read what lies before, and needs it no more.
            let _ = state.feed.page(from, 1, 1);
            state.feed.tail(from, wake)
        };
        reader::call(calls);
    }

    fn recovers(&self, topic: &str, wake: Done<()>) {
        let Some(following) = self.followed(topic) else { return wake(Ok(())) };
        let calls = following.state().feed.recovers(wake);
        reader::call(calls);
    }

    /// Waits for what is under way: what was acknowledged is as durable as it will be.
    fn sync(&self, _: &str) -> Result<()> {
        self.topics.writer.flush()
    }

    /// Waits for the brokers. The last entry stays, whatever is asked: it says where the topic counts from.
    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        let broker = &self.topics.broker;
        let place = self.topics.place(topic)?;
        let info = broker.info(&place)?;
        if before > info.durable {
            return Err(Error::invalid(format!(
                "trim topic `{topic}` below {before}: it ends at {}: what is not there stays",
                info.durable
            )));
        }
        let before = place.offset(before.min(Index(info.next.0.saturating_sub(1))));
        if before <= place.offset(info.first) {
            return Ok(());
        }
        broker.trim(&place.name, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        let known = match self.followed(topic) {
            Some(following) => following.info(),
            None => return self.describe(topic),
        };
        known.ok_or_else(|| {
            Error::retry(format!(
                "describe topic `{topic}`: the brokers have not answered yet: ask again"
            ))
        })
    }

    fn ask(&self, topic: &str, done: Done<Info>) {
        self.topics.ask(topic, done);
    }

    /// As the brokers have them; those that were used here, where no broker answers.
    fn topics(&self) -> Vec<String> {
        self.topics.broker.topics().unwrap_or_else(|_| self.topics.known())
    }
}

fn check_entries(topic: &str, entries: &[Vec<u8>]) -> Result<()> {
    if entries.is_empty() {
        return Err(Error::invalid(format!(
            "append to topic `{topic}`: no entries: pass at least one"
        )));
    }
    match entries.iter().map(Vec::len).max() {
        Some(bytes) if bytes > ENTRY_BYTES_MAX => Err(Error::invalid(format!(
            "append to topic `{topic}`: an entry has {bytes} bytes, the limit is {ENTRY_BYTES_MAX}"
        ))),
        _ => Ok(()),
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.followed.held());
        for (topic, followed) in &all {
            followed.following.close(closed(topic));
        }
        let threads = all.into_values().flat_map(|followed| followed.threads);
        // Who is called by a thread may be the last owner: none waits for itself.
        threads.filter(|thread| !thread.is_current()).for_each(Task::join);
        if let Some(chores) = self.chores.take() {
            self.topics.end();
            if !chores.is_current() {
                chores.join();
            }
        }
    }
}
