//! A log of which one topic can be held: what is appended to it waits until it is let go. And peers whose time
//! is over at once.

use holdfast_base::ids::Index;
use holdfast_base::{Indices, Result};
use holdfast_chunk::Done;
use holdfast_env::HoldMutex;
use holdfast_env::net::{NoPeers, PeerDone, PeerRequest, Peers};
use holdfast_log::{EmbeddedLog, Info, Log, Mode, Scope};
use holdfast_node::LogEngine;
use std::sync::{Arc, Mutex};

struct Append {
    entries: Vec<Vec<u8>>,
    mode: Mode,
    done: Done<Indices>,
}

#[derive(Default)]
struct State {
    topic: Option<String>,
    waiting: Vec<Append>,
    log: Option<Arc<EmbeddedLog>>,
}

#[derive(Clone, Default)]
pub struct Hold(Arc<Mutex<State>>);

impl Hold {
    pub fn hold(&self, topic: &str) {
        self.0.held().topic = Some(topic.to_owned());
    }

    pub fn let_go(&self) {
        let (log, topic, waiting) = {
            let mut state = self.0.held();
            (state.log.clone(), state.topic.take(), std::mem::take(&mut state.waiting))
        };
        let (log, topic) = (log.unwrap(), topic.unwrap());
        for Append { entries, mode, done } in waiting {
            log.append(&topic, entries, mode, done);
        }
    }

    /// How many appends wait.
    pub fn waiting(&self) -> usize {
        self.0.held().waiting.len()
    }

    pub fn engine(&self) -> LogEngine {
        let hold = self.clone();
        LogEngine::showing(move |log| {
            hold.0.held().log = Some(log.clone());
            Arc::new(HeldLog { log, hold: hold.clone() })
        })
    }
}

struct HeldLog {
    log: Arc<EmbeddedLog>,
    hold: Hold,
}

impl Log for HeldLog {
    fn create(&self, topic: &str) -> Result<()> {
        self.log.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        {
            let mut state = self.hold.0.held();
            if state.topic.as_deref() == Some(topic) {
                return state.waiting.push(Append { entries, mode, done });
            }
        }
        self.log.append(topic, entries, mode, done);
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.log.read(topic, from, entries_max, bytes_max, scope)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        self.log.tail(topic, from, wake);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.log.sync(topic)
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.log.trim(topic, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        self.log.info(topic)
    }

    fn topics(&self) -> Vec<String> {
        self.log.topics()
    }
}

/// Nobody is there, and whoever waits for a time has waited.
pub struct NoTime;

impl Peers for NoTime {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        NoPeers.call(address, request, done);
    }

    fn after(&self, _: u64, then: Box<dyn FnOnce() + Send>) {
        then();
    }
}
