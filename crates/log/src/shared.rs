//! A log that no node of the cluster keeps: what it promises beside [`Log`], and how clients have it.

use crate::{Done, Info, Log, Mode, Scope};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use std::sync::Arc;

/// A log that is no node's: each has it from whoever keeps it.
pub trait SharedLog: Log {
    /// Which log it is: every entry says so.
    fn id(&self) -> u64;

    /// Where it is, as a node is told: `kafka://HOST:PORT,.../PREFIX`.
    fn place(&self) -> String;

    /// The same log for another reader, wherever it is: what one has not read yet keeps no room from the
    /// others, and one that looks far back takes nothing from them.
    fn another_reader(&self) -> Arc<dyn SharedLog>;

    /// As [`Log::read`], of anything at any place, and of nobody's mirror; waits for whoever keeps the log.
    fn fetch(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(Index, Vec<u8>)>>;

    /// As [`Log::info`], of this moment; waits for whoever keeps the log.
    fn describe(&self, topic: &str) -> Result<Info>;

    /// Why topics that were used here take no entries until a person does something.
    fn refusals(&self) -> Vec<Error>;

    /// Why a topic gets no entries at the moment, or takes none, if it does not.
    fn trouble(&self, topic: &str) -> Option<Error>;
}

/// A shared log as clients have it, who read anywhere: pages come from whoever keeps it, and one mirror a
/// topic stays near its end, for those that wait there. Calls that answer wait.
pub struct Direct(Arc<dyn SharedLog>);

impl Direct {
    /// `log` is this one's alone.
    pub fn new(log: Arc<dyn SharedLog>) -> Direct {
        Direct(log)
    }
}

impl Log for Direct {
    fn create(&self, topic: &str) -> Result<()> {
        self.0.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        self.0.append(topic, entries, mode, done);
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        _: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.0.fetch(topic, from, entries_max, bytes_max)
    }

    /// Who is behind the end waits for nothing: were the mirror moved there, those at the end would wait for
    /// it to come back.
    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        let (log, at) = (self.0.clone(), topic.to_owned());
        let asked = move |info: Result<Info>| match info {
            Ok(info) if from < info.next => wake(Ok(())),
            Ok(_) => log.tail(&at, from, wake),
            Err(e) => wake(Err(e)),
        };
        self.0.ask(topic, Box::new(asked));
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.0.sync(topic)
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.0.trim(topic, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        self.0.describe(topic)
    }

    fn ask(&self, topic: &str, done: Done<Info>) {
        self.0.ask(topic, done);
    }

    fn topics(&self) -> Vec<String> {
        self.0.topics()
    }
}
