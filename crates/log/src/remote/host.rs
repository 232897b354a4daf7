//! The host's side of a [`RemoteLog`](super::RemoteLog): carries out what other nodes ask of the
//! log, each answer through a callback. Whether the sender may ask is checked before, by the
//! service. Appends never block; the others may read a file.

use crate::{Log, Mode, Scope, missing};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Indices, Result};
use holdfast_env::HoldMutex;
use holdfast_env::net::{PeerDone, PeerReply};
use holdfast_wire::{log as msg, peer_log as wire};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Entries of one answer, and their bytes.
const READ_ENTRIES_MAX: usize = 4096;
const READ_BYTES_MAX: usize = 1 << 20;

/// Serves the log to other nodes.
pub struct LogHost {
    log: Arc<dyn Log>,
    /// Never held while the log or a callback is called.
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    /// One read a node, topic and reader: who asks again has given up on the one before.
    reads: BTreeMap<(String, NodeId, u32), (wire::Read, PeerDone)>,
    /// Places at which the log was asked to say when there is an entry.
    asked: BTreeSet<(String, Index)>,
}

impl LogHost {
    /// Serves `log` to the cluster's other nodes.
    pub fn new(log: Arc<dyn Log>) -> LogHost {
        LogHost { log, waiting: Arc::default() }
    }

    /// Whether [`LogHost::serve`] knows the opcode.
    pub fn knows(opcode: u16) -> bool {
        (wire::OP_PEER_LOG_APPEND..=wire::OP_PEER_LOG_INFO).contains(&opcode)
            || opcode == wire::OP_PEER_LOG_COMPARE
    }

    /// Carries out one request and hands its answer to `done`, now or later.
    pub fn serve(&self, opcode: u16, meta: &[u8], body: &[u8], done: PeerDone) {
        let served = match opcode {
            wire::OP_PEER_LOG_APPEND => return self.append(meta, body, done),
            wire::OP_PEER_LOG_READ => return self.read(meta, done),
            wire::OP_PEER_LOG_TRIM => self.trim(meta),
            wire::OP_PEER_LOG_COMPARE => self.compare(meta),
            _ => self.describe(meta),
        };
        done(served.map(|meta| PeerReply { meta, body: Vec::new() }));
    }

    /// Answers every read that waits for an entry: the server's end would wait for them.
    pub fn release(&self) {
        let reads = {
            let mut waiting = self.waiting.held();
            std::mem::take(&mut waiting.reads)
        };
        for (_, (_, done)) in reads {
            done(Err(Error::retry("read the log: its host is ending")));
        }
    }

    fn append(&self, meta: &[u8], body: &[u8], done: PeerDone) {
        let decoded = decode::<wire::Append>(meta)
            .and_then(|append| Ok((wire::decode_entries(body, append.crc)?, append.topic)));
        let (entries, topic) = match decoded {
            Ok(decoded) => decoded,
            Err(e) => return done(Err(e)),
        };
        let answer = |indices: Result<Indices>| {
            let meta = indices.map(|indices| msg::Appended::of(&indices).to_bytes());
            done(meta.map(|meta| PeerReply { meta, body: Vec::new() }));
        };
        self.log.append(&topic, entries, Mode::Synced, Box::new(answer));
    }

    fn read(&self, meta: &[u8], done: PeerDone) {
        let read: wire::Read = match decode(meta) {
            Ok(read) => read,
            Err(e) => return done(Err(e)),
        };
        match entries(&*self.log, &read) {
            Ok(None) if read.wait => self.wait(read, done),
            Ok(None) => done(Ok(reply(&[]))),
            Ok(Some(page)) => done(Ok(page)),
            Err(e) => done(Err(e)),
        }
    }

    fn wait(&self, read: wire::Read, done: PeerDone) {
        let place = (read.topic.clone(), read.from);
        let (before, asked) = {
            let mut waiting = self.waiting.held();
            let key = (read.topic.clone(), read.sender.node, read.reader);
            let before = waiting.reads.insert(key, (read, done));
            (before, !waiting.asked.insert(place.clone()))
        };
        if let Some((_, done)) = before {
            done(Err(Error::retry("read the log: the same reader asked again")));
        }
        if asked {
            return;
        }
        // Weak: the log keeps this, and must not keep itself.
        let (log, waiting) = (Arc::downgrade(&self.log), self.waiting.clone());
        let at = place.clone();
        let wake = move |woken: Result<()>| {
            let reads: Vec<_> = {
                let mut waiting = waiting.held();
                waiting.asked.remove(&at);
                let here = |key: &(String, NodeId, u32), read: &mut (wire::Read, PeerDone)| {
                    key.0 == at.0 && read.0.from == at.1
                };
                waiting.reads.extract_if(.., here).collect()
            };
            for (_, (read, done)) in reads {
                let page = woken.clone().and_then(|()| match log.upgrade() {
                    Some(log) => Ok(entries(&*log, &read)?.unwrap_or_else(|| reply(&[]))),
                    None => Err(Error::retry("read the log: its host is ending")),
                });
                done(page);
            }
        };
        self.log.tail(&place.0, place.1, Box::new(wake));
    }

    fn trim(&self, meta: &[u8]) -> Result<Vec<u8>> {
        let trim: wire::Trim = decode(meta)?;
        self.log.trim(&trim.topic, trim.before)?;
        Ok(Vec::new())
    }

    fn compare(&self, meta: &[u8]) -> Result<Vec<u8>> {
        let wire::Compare { reached, .. } = decode(meta)?;
        match missing(&*self.log, &reached.topic, reached.index, reached.crc) {
            Some(what) => Err(Error::corrupt(what)),
            None => Ok(Vec::new()),
        }
    }

    fn describe(&self, meta: &[u8]) -> Result<Vec<u8>> {
        let wire::Describe { topic, .. } = decode(meta)?;
        Ok(describe(&*self.log, topic)?.to_bytes())
    }
}

/// How far a topic reaches, as it is said to clients and to other nodes.
pub fn describe(log: &dyn Log, topic: String) -> Result<msg::Info> {
    let info = log.info(&topic)?;
    Ok(msg::Info {
        topic,
        first: info.first,
        next: info.next,
        durable: info.durable,
        bytes: info.bytes,
        segments: info.segments as u32,
    })
}

fn decode<T: Decode>(meta: &[u8]) -> Result<T> {
    T::from_bytes(meta)
        .map_err(|e| Error::invalid(format!("use the log: {e}: use matching builds")))
}

fn entries(log: &dyn Log, read: &wire::Read) -> Result<Option<PeerReply>> {
    let count = (read.entries_max as usize).clamp(1, READ_ENTRIES_MAX);
    let page = log.read(&read.topic, read.from, count, READ_BYTES_MAX, Scope::Durable)?;
    Ok((!page.is_empty()).then(|| reply(&page)))
}

fn reply(page: &[(Index, Vec<u8>)]) -> PeerReply {
    let body = wire::encode_indexed(page);
    PeerReply { meta: wire::Entries { crc: crc32c(&body) }.to_bytes(), body }
}
