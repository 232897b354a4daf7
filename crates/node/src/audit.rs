//! The audit trail: who did what that changes rights, nodes or data, from where, and what came of it.
//! A line of JSON an entry, in a topic of the log's host that no client can change. Faces say what is
//! done, and hold the answer back until its line is kept; nothing here decides what may be done.

use super::{Condition, Node, Watch};
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use holdfast_cluster::topics::AUDIT_TOPIC;
use holdfast_env::net::{PeerReply, PeerRequest};
use holdfast_env::{HoldMutex, event, planted};
use holdfast_log::{Log, Mode};
use holdfast_wire::log::{Append, Entry};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Of one text of a line, in bytes as they are written; what is longer is cut.
const TEXT_BYTES_MAX: usize = 2048;
/// How long the log's host may take to keep a line.
const HOST_MS: u32 = 3000;
/// What came to nothing is written down so often in a second, of each who asks: whoever asks in vain
/// again and again must neither push out what others did nor hide what they tried. The next line that
/// is written says how many were left out.
const FAILURES_PER_SECOND: u32 = 5;
/// Of all together.
const ALL_FAILURES_PER_SECOND: u32 = 40;

const _: () = assert!(FAILURES_PER_SECOND * 4 <= ALL_FAILURES_PER_SECOND);

/// What is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trail {
    /// Nothing.
    Off,
    /// What changes rights or nodes.
    Admin,
    /// What changes files, objects and topics, too: a synced entry more for each.
    Data,
}

/// What a deed changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// Rights, nodes, settings of buckets.
    Admin,
    /// What is stored.
    Data,
}

/// Something that somebody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// As whom they are known: `owner`, `secret`, `token NAME SERIAL`, `key KEY USER` ...
    pub who: String,
    /// Where from: an address, `unix`, or nothing.
    pub address: String,
    /// The request's id, where the protocol has one.
    pub request: String,
    /// What is done, in two or three words of the command's.
    pub operation: String,
    /// What it is done to. Never a secret.
    pub what: String,
}

/// Called once the answer may go.
pub type Answered = Box<dyn FnOnce() + Send>;

/// Writes the trail of one node.
pub struct Audit {
    node: Arc<Node>,
    trail: Trail,
    /// Never held while the log is called.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: Failures,
    /// Why the last line could not be kept, and how many since one could.
    lost: Option<(Error, u64)>,
}

/// What came to nothing in the second that is now.
#[derive(Default)]
struct Failures {
    second: i64,
    /// By who asked.
    written: BTreeMap<String, u32>,
    left_out: u64,
}

impl Failures {
    /// Whether one more is written down; those that were not are counted.
    fn admit(&mut self, second: i64, who: &str) -> bool {
        if second != self.second {
            (self.second, self.written) = (second, BTreeMap::new());
        }
        let own = self.written.get(who).copied().unwrap_or(0);
        let all: u32 = self.written.values().sum();
        let admitted = (own < FAILURES_PER_SECOND && all < ALL_FAILURES_PER_SECOND)
            || planted!("node.failures-flood-trail");
        match admitted {
            true => drop(self.written.insert(who.to_owned(), own + 1)),
            false => self.left_out += 1,
        }
        admitted
    }
}

/// The front of a text that takes no more than a line has for it: JSON writes a control character in
/// six bytes.
fn cut(text: &str) -> &str {
    let mut bytes = 0;
    let written = |c: char| match c {
        '\0'..='\x1f' => 6,
        '"' | '\\' => 2,
        c => c.len_utf8(),
    };
    let end = text.char_indices().find(|(_, c)| {
        bytes += written(*c);
        bytes > TEXT_BYTES_MAX
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// What is missing in front of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Missing {
    /// Failures beyond the limit.
    left_out: u64,
    /// Lines that could not be kept.
    lost: u64,
}

fn line(at_ms: u64, node: u32, deed: &Deed, outcome: Option<&Error>, missing: Missing) -> String {
    let at = format!("{}.{:03}Z", utc((at_ms / 1000) as i64, 'T'), at_ms % 1000);
    let mut line = json!({
        "at": at, "node": node, "who": cut(&deed.who), "address": deed.address,
        "request": deed.request, "operation": deed.operation, "what": cut(&deed.what),
        "outcome": outcome.map_or("done", |e| e.kind.name()),
    });
    if let Some(e) = outcome {
        line["why"] = json!(cut(&e.message));
    }
    for (name, count) in [("left_out", missing.left_out), ("lost", missing.lost)] {
        if count > 0 {
            line[name] = json!(count);
        }
    }
    line.to_string()
}

impl Audit {
    /// Writes what `trail` says of what is done through this node.
    pub fn new(node: Arc<Node>, trail: Trail) -> Arc<Audit> {
        Arc::new(Audit { node, trail, state: Mutex::default() })
    }

    /// Whether such deeds are written down.
    pub fn wants(&self, matter: Matter) -> bool {
        match self.trail {
            Trail::Off => false,
            Trail::Admin => matter == Matter::Admin,
            Trail::Data => true,
        }
    }

    /// Writes down what a deed came to, and calls `answered` once the line is kept, so that nobody
    /// is told of a change that the trail does not know. A line that cannot be kept keeps nobody
    /// waiting: the node says so as a condition, and in an event.
    pub fn record(self: &Arc<Audit>, deed: &Deed, outcome: Option<&Error>, answered: Answered) {
        let at_ms = self.node.machine.clock.unix_ms();
        let missing = {
            let State { failures, lost } = &mut *self.state.held();
            if outcome.is_some() && !failures.admit((at_ms / 1000) as i64, &deed.who) {
                None
            } else {
                let left_out = std::mem::take(&mut failures.left_out);
                Some(Missing { left_out, lost: lost.as_ref().map_or(0, |(_, lost)| *lost) })
            }
        };
        let Some(missing) = missing else { return answered() };
        let line = line(at_ms, self.node.id.0, deed, outcome, missing);
        let audit = self.clone();
        let done = Box::new(move |kept: Result<()>| {
            audit.note(kept);
            answered();
        });
        self.append(line, done);
    }

    fn note(&self, kept: Result<()>) {
        let mut state = self.state.held();
        let Err(e) = kept else {
            state.lost = None;
            return;
        };
        let lost = state.lost.take().map_or(0, |(_, lost)| lost) + 1;
        if lost == 1 {
            event!(AuditLost, e);
        }
        state.lost = Some((e, lost));
    }

    fn append(&self, line: String, done: Box<dyn FnOnce(Result<()>) + Send>) {
        if self.node.answers_for_log() {
            let (topic, entries) = (AUDIT_TOPIC.to_owned(), vec![line.into_bytes()]);
            let done = Box::new(move |kept: Result<_>| done(kept.map(drop)));
            return self.node.append_here(topic, entries, Mode::Synced, done);
        }
        let entries = vec![Entry { bytes: line.into_bytes() }];
        let append = Append { topic: AUDIT_TOPIC.to_owned(), synced: true, entries };
        let request = PeerRequest {
            opcode: holdfast_wire::OP_LOG_APPEND,
            meta: append.to_bytes(),
            body: None,
            deadline_ms: HOST_MS,
        };
        let answered = move |answered: Result<PeerReply>| done(answered.map(drop));
        match self.node.log_host() {
            Ok(host) => self.node.machine.peers.call(&host, request, Box::new(answered)),
            Err(e) => answered(Err(e)),
        }
    }

    /// Gives up the older half of the trail once it is larger than this; whole segments go. The
    /// log's host does it, now and then.
    pub fn keep_below(&self, bytes_max: u64) -> Result<()> {
        let Some(log) = self.node.hosted() else { return Ok(()) };
        // There is none before the first line.
        let Ok(info) = log.info(AUDIT_TOPIC) else { return Ok(()) };
        let middle = Index(info.first.0.midpoint(info.durable.0));
        match info.bytes > bytes_max && info.segments > 1 {
            true => log.trim(AUDIT_TOPIC, middle),
            false => Ok(()),
        }
    }

    /// Says when lines could not be kept.
    pub fn watch(self: &Arc<Audit>) -> Watch {
        let audit = self.clone();
        Box::new(move || {
            let state = audit.state.held();
            let lost = state.lost.iter().map(|(e, lost)| {
                let sentence = format!(
                    "the last {lost} lines of the audit trail could not be kept: {e}: what was done meanwhile is in the topics alone"
                );
                Condition::new("audit", sentence)
            });
            lost.collect()
        })
    }
}

#[cfg(test)]
mod tests;
