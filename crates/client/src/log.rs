//! The log, from the client's side: topics of the user's own, and the node's to read.
//! Appends are numbered by who asks for a [`LogWriter`], and sent again after a broken connection;
//! others are not: there the log says what arrived.

use crate::client::{Client, decode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::{Clock, RealClock};
use holdfast_wire::log::writers::{Numbered, Reading, check_writer, numbers};
use holdfast_wire::{self as wire, log as msg};
use std::time::Duration;

/// The longest wait that one request of a tail asks for; half of the time that a node may be silent, if that
/// is less.
const TAIL_WAIT_MAX: Duration = Duration::from_secs(20);
/// Entries of one answer, at most.
const ENTRIES_MAX: u32 = 4096;

/// How often a writer sends one append, before it says that it does not know.
const APPENDS_MAX: u32 = 10;

/// The topics of one node's log.
pub struct LogClient<'a> {
    client: &'a mut Client,
}

impl Client {
    /// The log of the node, by this client's connection.
    pub fn log(&mut self) -> LogClient<'_> {
        LogClient { client: self }
    }
}

impl LogClient<'_> {
    /// Appends entries in their order and answers the index of each; others' may lie between them, so
    /// what must stand together is one entry. Makes the topic if there is none. `Retry` after a broken
    /// connection means unknown, of each entry: read the end of the topic.
    pub fn append<E: AsRef<[u8]>>(&mut self, topic: &str, entries: &[E]) -> Result<Indices> {
        self.append_with(topic, entries, true)
    }

    /// As [`LogClient::append`], acknowledged before the sync; a later synced append syncs it too.
    pub fn append_ordered<E: AsRef<[u8]>>(
        &mut self,
        topic: &str,
        entries: &[E],
    ) -> Result<Indices> {
        self.append_with(topic, entries, false)
    }

    fn append_with<E: AsRef<[u8]>>(
        &mut self,
        topic: &str,
        entries: &[E],
        synced: bool,
    ) -> Result<Indices> {
        let count = entries.len();
        let entries = entries.iter().map(|e| msg::Entry { bytes: e.as_ref().to_vec() }).collect();
        let append = msg::Append { topic: topic.to_owned(), synced, entries };
        append.check()?;
        let ticket = self.client.submit_once(wire::OP_LOG_APPEND, &append, &[])?;
        let appended: msg::Appended = decode(&self.client.wait(ticket)?)?;
        appended.indices(count)
    }

    /// Durable entries from `from` on: at most `entries_max`, and as many as fit into an answer;
    /// none at the end.
    pub fn read(
        &mut self,
        topic: &str,
        from: Index,
        entries_max: u32,
    ) -> Result<Vec<msg::Indexed>> {
        let topic = topic.to_owned();
        let read = msg::Read { topic, from, entries_max, wait: false };
        let entries: msg::Entries = self.client.ask(wire::OP_LOG_READ, &read)?;
        Ok(entries.entries)
    }

    /// As [`LogClient::read`], waiting up to `wait` for an entry; none if it did not come.
    pub fn tail(&mut self, topic: &str, from: Index, wait: Duration) -> Result<Vec<msg::Indexed>> {
        let clock = RealClock::new();
        let start_ns = clock.monotonic_ns();
        let most = self.client.wait_max(TAIL_WAIT_MAX);
        loop {
            let waited = Duration::from_nanos(clock.monotonic_ns() - start_ns);
            let left = wait.saturating_sub(waited);
            let part = left.min(most).as_millis() as u32;
            if part == 0 {
                return self.read(topic, from, ENTRIES_MAX);
            }
            let read =
                msg::Read { topic: topic.to_owned(), from, entries_max: ENTRIES_MAX, wait: true };
            let ticket = self.client.submit_by(wire::OP_LOG_READ, part, &read, &[])?;
            match self.client.wait(ticket).and_then(|response| decode(&response)) {
                // The deadline passed, or the connection was made anew: look again.
                Err(e) if e.kind == Kind::Retry && self.client.connection.failure().is_none() => {}
                entries => return entries.map(|entries: msg::Entries| entries.entries),
            }
        }
    }

    /// Gives up the entries before `before`; whole segments are freed.
    pub fn trim(&mut self, topic: &str, before: Index) -> Result<()> {
        let trim = msg::Trim { topic: topic.to_owned(), before };
        let ticket = self.client.submit(wire::OP_LOG_TRIM, &trim, &[])?;
        self.client.wait(ticket)?;
        Ok(())
    }

    /// Appends under a name, numbered, so that what is sent twice is read once. A writer is one process
    /// at a time: two of one name drop each other's entries. It goes on behind the largest number of its
    /// name in the last [`WINDOW_ENTRIES`](msg::writers::WINDOW_ENTRIES) indices of the topic.
    pub fn writer(&mut self, topic: &str, name: &str) -> Result<LogWriter<'_>> {
        check_writer(name)?;
        let last = match self.info(topic) {
            Ok(info) => self.reader_seen(topic, info.next, info.first)?.reading.last_of(name),
            Err(e) if e.kind == Kind::NotFound => None,
            Err(e) => return Err(e),
        };
        let (topic, name) = (topic.to_owned(), name.to_owned());
        Ok(LogWriter {
            client: self.client,
            topic,
            name,
            next: last.map_or(1, |last| last.saturating_add(1)),
        })
    }

    /// Reads entries from an index on without those that repeat others. Reads back what the rule
    /// needs in front of it, once.
    pub fn reader(&mut self, topic: &str, from: Index) -> Result<LogReader> {
        match self.info(topic) {
            Ok(info) => self.reader_seen(topic, from, info.first),
            // A read also says whose the topic would be.
            Err(e) if e.kind == Kind::NotFound => Err(self.read(topic, from, 1).err().unwrap_or(e)),
            Err(e) => Err(e),
        }
    }

    fn reader_seen(&mut self, topic: &str, from: Index, first: Index) -> Result<LogReader> {
        let mut reading = Reading::new(from, first);
        while let Some((at, entries_max)) = reading.back() {
            reading.seen_back(&self.read(topic, at, entries_max)?);
        }
        Ok(LogReader { topic: topic.to_owned(), reading })
    }

    /// Makes a topic, which must not be there, or changes how long its entries are kept (`create` is
    /// false); answers how long that is from now on.
    pub fn set(&mut self, set: &msg::Set) -> Result<msg::Retention> {
        let ticket = self.client.submit_once(wire::OP_LOG_SET, set, &[])?;
        decode(&self.client.wait(ticket)?)
    }

    /// How long a topic's entries are kept.
    pub fn retention(&mut self, topic: &str) -> Result<msg::Retention> {
        self.client.ask(wire::OP_LOG_RETENTION, &topic.to_owned())
    }

    /// Has a part of a topic read and verified where it is kept, from an index on; ask again from
    /// `next` until nothing was.
    pub fn verify(&mut self, topic: &str, from: Index) -> Result<msg::Verified> {
        self.client.ask(wire::OP_LOG_VERIFY, &msg::Verify { topic: topic.to_owned(), from })
    }

    /// How far a topic reaches. `NotFound` if there is none.
    pub fn info(&mut self, topic: &str) -> Result<msg::Info> {
        if topic.is_empty() {
            return Err(Error::invalid("describe a topic: its name is empty; name one"));
        }
        let infos: Vec<msg::Info> = self.client.ask(wire::OP_LOG_INFO, &topic.to_owned())?;
        infos.into_iter().next().ok_or_else(|| {
            Error::not_found(format!("describe topic `{topic}`: the node answered with none"))
        })
    }

    /// The same of every topic.
    pub fn topics(&mut self) -> Result<Vec<msg::Info>> {
        self.client.ask(wire::OP_LOG_INFO, &String::new())
    }
}

/// Numbers appends and sends each again until it is known to be kept.
pub struct LogWriter<'a> {
    client: &'a mut Client,
    topic: String,
    name: String,
    next: u64,
}

impl LogWriter<'_> {
    /// The number that the next entry gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Numbers the next entry so. What has a number that its topic has already is read by nobody.
    pub fn set_next(&mut self, number: u64) {
        self.next = number;
    }

    /// Appends entries with the next numbers, and answers the index of each. After a broken connection
    /// they are sent again, with the same numbers. An error may still mean that nobody knows: the
    /// numbers are not used for others, so entries that come late are as good as new.
    pub fn append<E: AsRef<[u8]>>(&mut self, entries: &[E]) -> Result<Indices> {
        let numbers = numbers(self.next, entries.len())?;
        self.next = numbers.end;
        let encode = |(number, entry): (u64, &E)| {
            Numbered { writer: &self.name, number, bytes: entry.as_ref() }.encode()
        };
        let numbered: Vec<Vec<u8>> = numbers.zip(entries).map(encode).collect();
        let mut left = APPENDS_MAX;
        loop {
            left -= 1;
            match self.client.log().append(&self.topic, &numbered) {
                Err(e) if e.kind == Kind::Retry && left > 0 => {}
                answered => return answered,
            }
        }
    }
}

/// Reads a topic without repeats. Holds no connection: it is given one with each call.
#[derive(Clone, Debug)]
pub struct LogReader {
    topic: String,
    reading: Reading,
}

impl LogReader {
    /// Where it goes on: to be kept by who wants to go on there later, with a new reader.
    pub fn next(&self) -> Index {
        self.reading.next()
    }

    /// The next entries, without repeats and without their numbers: at most `entries_max` are read,
    /// waiting up to `wait` for the first. Nothing at the end; an empty list where all were repeats.
    pub fn read(
        &mut self,
        log: &mut LogClient<'_>,
        entries_max: u32,
        wait: Duration,
    ) -> Result<Option<Vec<msg::Indexed>>> {
        let mut entries = log.read(&self.topic, self.next(), entries_max)?;
        if entries.is_empty() && !wait.is_zero() {
            entries = log.tail(&self.topic, self.next(), wait)?;
        }
        Ok(self.reading.show(entries))
    }
}
