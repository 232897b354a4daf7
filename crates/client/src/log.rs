//! The log, from the client's side: topics of the user's own, and the node's to read.
//! Appends are not numbered: after a broken connection the log says what arrived.

use crate::client::{Client, decode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{Clock, RealClock};
use holdfast_wire::{self as wire, log as msg};
use std::time::Duration;

/// The longest wait that one request of a tail asks for: the connection's silence stays below the
/// default read timeout.
const TAIL_WAIT_MAX: Duration = Duration::from_secs(20);
/// Entries of one answer, at most.
const ENTRIES_MAX: u32 = 4096;

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
    /// Appends entries, all or none, and answers the index of the first; the others follow it.
    /// Makes the topic if there is none. `Retry` after a broken connection means unknown: read the
    /// end of the topic.
    pub fn append<E: AsRef<[u8]>>(&mut self, topic: &str, entries: &[E]) -> Result<Index> {
        self.append_with(topic, entries, true)
    }

    /// As [`LogClient::append`], acknowledged before the sync; a later synced append syncs it too.
    pub fn append_ordered<E: AsRef<[u8]>>(&mut self, topic: &str, entries: &[E]) -> Result<Index> {
        self.append_with(topic, entries, false)
    }

    fn append_with<E: AsRef<[u8]>>(
        &mut self,
        topic: &str,
        entries: &[E],
        synced: bool,
    ) -> Result<Index> {
        let entries = entries.iter().map(|e| msg::Entry { bytes: e.as_ref().to_vec() }).collect();
        let append = msg::Append { topic: topic.to_owned(), synced, entries };
        let ticket = self.client.submit_once(wire::OP_LOG_APPEND, &append, &[])?;
        let appended: msg::Appended = decode(&self.client.wait(ticket)?)?;
        Ok(appended.first)
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
        loop {
            let waited = Duration::from_nanos(clock.monotonic_ns() - start_ns);
            let left = wait.saturating_sub(waited);
            let part = left.min(TAIL_WAIT_MAX).as_millis() as u32;
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
