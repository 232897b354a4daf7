//! What the tests of the view share: a topic in a log of its own, and its fold into rows.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::{Error, Result};
use holdfast_blob::{Answer, Command, Failure, Names, Outcome, Refusal, read_answer};
use holdfast_env::rows::Rows;
use holdfast_log::{Done, Drive, EmbeddedLog, Log, LogOptions, Mode};
use holdfast_sim::SimDisk;
use holdfast_view::{Context, Fold, FoldOptions, InRows, Request, SnapshotStore};
use std::path::Path;
use std::sync::{Arc, mpsc};

pub type View = Fold<InRows<Names>>;

const TOPIC: &str = "blobs/0";

pub struct Topic {
    pub disk: SimDisk,
    pub log: Arc<EmbeddedLog>,
    pub fold: View,
}

impl Topic {
    pub fn new(rows: Arc<dyn Rows>) -> Topic {
        let disk = SimDisk::new(1);
        let options =
            LogOptions { drive: Drive::Pump, segment_bytes: 1 << 20, ..LogOptions::default() };
        let log = EmbeddedLog::open(Arc::new(disk.clone()), Path::new("/log"), options).unwrap();
        let log = Arc::new(log);
        log.create(TOPIC).unwrap();
        let fold = open(&disk, &log, rows, "first").unwrap();
        Topic { disk, log, fold }
    }

    /// Another view of the topic; its snapshots are below this name.
    pub fn open(&self, rows: Arc<dyn Rows>, name: &str) -> Result<View> {
        open(&self.disk, &self.log, rows, name)
    }

    /// Where a view of this name keeps its snapshots.
    pub fn snapshots(&self, name: &str) -> SnapshotStore {
        snapshots(&self.disk, name)
    }

    /// An entry as it is, past the fold.
    pub fn append(&self, entry: &[u8]) {
        let entries = vec![entry.to_vec()];
        self.log.append(TOPIC, entries, Mode::Synced, Box::new(|index| assert!(index.is_ok())));
        while self.log.pump() {}
    }

    pub fn trim(&self) {
        self.log.trim(TOPIC, self.fold.covered().unwrap()).unwrap();
    }

    pub fn wait<T: Send + 'static>(&self, start: impl FnOnce(&View, Done<T>)) -> Result<T> {
        let (send, receive) = mpsc::channel();
        start(&self.fold, Box::new(move |result| drop(send.send(result))));
        while self.log.pump() {}
        receive.try_recv().unwrap_or_else(|_| Err(Error::bug("nobody answered")))
    }

    pub fn propose(&self, session: u64, sequence: u64, command: &[u8]) -> Answer<Outcome> {
        let request = Request {
            session: SessionId(session),
            sequence: Sequence(sequence),
            acknowledged_below: Sequence(sequence.saturating_sub(3)),
            command: command.to_vec(),
            mode: Mode::Synced,
        };
        let result: Result<(Index, Vec<u8>)> = self.wait(|fold, done| fold.propose(request, done));
        read_answer(result.map(|(_, bytes)| bytes))
    }

    pub fn apply(&self, command: &Command) -> std::result::Result<Outcome, Refusal> {
        self.apply_in(0, 0, command)
    }

    pub fn apply_in(
        &self,
        session: u64,
        sequence: u64,
        command: &Command,
    ) -> std::result::Result<Outcome, Refusal> {
        match self.propose(session, sequence, &command.to_command()) {
            Ok(outcome) => Ok(outcome),
            Err(Failure::Refused(refusal)) => Err(refusal),
            Err(Failure::Failed(e)) => panic!("{command:?}: {e}"),
        }
    }
}

fn snapshots(disk: &SimDisk, name: &str) -> SnapshotStore {
    SnapshotStore { disk: Arc::new(disk.clone()), directory: Path::new("/snapshots").join(name) }
}

fn open(disk: &SimDisk, log: &Arc<EmbeddedLog>, rows: Arc<dyn Rows>, name: &str) -> Result<View> {
    let context = Context::of(TOPIC).in_rows(rows);
    let manual = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
    Fold::open_member(log.clone(), context, snapshots(disk, name), manual)
}
