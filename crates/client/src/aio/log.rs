//! The log, asynchronously: what a reader that serves others needs of it.

use super::AsyncClient;
use crate::client::decode;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::{Indices, Kind, Result};
use holdfast_env::{Clock, RealClock, runtime};
use holdfast_wire::log::writers::Reading;
use holdfast_wire::{self as wire, log as msg};
use std::time::Duration;

/// Between two questions for entries, where the node refuses them for now.
const REST: Duration = Duration::from_secs(1);

impl AsyncClient {
    /// As [`LogClient::append`](crate::LogClient::append): once, so `Retry` means that nobody knows.
    pub async fn log_append(&self, topic: &str, entries: Vec<Vec<u8>>) -> Result<Indices> {
        let count = entries.len();
        let entries = entries.into_iter().map(|bytes| msg::Entry { bytes }).collect();
        let append = msg::Append { topic: topic.to_owned(), synced: true, entries };
        append.check()?;
        let meta = append.to_bytes();
        let sent = self.connection.submit(wire::OP_LOG_APPEND, &meta, &[], false).await?;
        let appended: msg::Appended = decode(&sent.answer().await?)?;
        appended.indices(count)
    }

    /// How far a topic reaches.
    pub async fn log_info(&self, topic: &str) -> Result<Option<msg::Info>> {
        let infos: Vec<msg::Info> = self.ask(wire::OP_LOG_INFO, &topic.to_owned()).await?;
        Ok(infos.into_iter().next())
    }

    async fn log_read(
        &self,
        topic: &str,
        from: Index,
        entries_max: u32,
        wait: bool,
    ) -> Result<Vec<msg::Indexed>> {
        let read = msg::Read { topic: topic.to_owned(), from, entries_max, wait };
        let clock = RealClock::new();
        let begun_ns = clock.monotonic_ns();
        let read: Result<msg::Entries> = self.ask(wire::OP_LOG_READ, &read).await;
        match read {
            Err(e) if wait && e.kind == Kind::Retry => {
                // The deadline of the client's requests has passed; or the log is away, which is not
                // asked again and again.
                let waited = Duration::from_nanos(clock.monotonic_ns() - begun_ns);
                runtime::sleep(REST.saturating_sub(waited)).await;
                Ok(Vec::new())
            }
            read => Ok(read?.entries),
        }
    }

    /// Reads on from an index without repeats, as [`LogReader`](crate::LogReader) does.
    pub async fn log_reader(
        self,
        topic: &str,
        from: Index,
        first: Index,
    ) -> Result<AsyncLogReader> {
        let mut reading = Reading::new(from, first);
        while let Some((at, entries_max)) = reading.back() {
            reading.seen_back(&self.log_read(topic, at, entries_max, false).await?);
        }
        Ok(AsyncLogReader { client: self, topic: topic.to_owned(), reading })
    }
}

/// Reads a topic without repeats.
pub struct AsyncLogReader {
    client: AsyncClient,
    topic: String,
    reading: Reading,
}

impl AsyncLogReader {
    /// The next entries, without repeats and numbers: at most `entries_max` are read. Nothing at the
    /// end, or where it `wait`s and none came before the deadline of the client's requests.
    pub async fn read(
        &mut self,
        entries_max: u32,
        wait: bool,
    ) -> Result<Option<Vec<msg::Indexed>>> {
        let next = self.reading.next();
        let entries = self.client.log_read(&self.topic, next, entries_max, wait).await?;
        Ok(self.reading.show(entries))
    }
}
