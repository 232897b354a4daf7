//! The log, served: append, read, tail, trim and info of topics. The node's own topics can be
//! read by anybody and changed by nobody but the node.

use crate::service::{FileService, answer, request};
use crate::writes::decode_or_refuse;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{Error, Result};
use holdfast_client::wire::log as msg;
use holdfast_cluster::{CLUSTER_TOPIC, NAMESPACE_TOPIC};
use holdfast_env::net::{Parts, Reply, Response};
use holdfast_log::{Log, Mode, Scope};
use std::sync::Arc;

/// Entries of one answer, and their bytes: what fits into a frame's meta.
const READ_ENTRIES_MAX: usize = 4096;
const READ_BYTES_MAX: usize = FRAME_META_BYTES_MAX as usize / 2;

fn own(topic: &str) -> Result<()> {
    if topic != CLUSTER_TOPIC && topic != NAMESPACE_TOPIC {
        return Ok(());
    }
    Err(Error::invalid(format!("change topic `{topic}`: it is the node's own; use another name")))
}

fn entries(log: &dyn Log, read: &msg::Read) -> Result<msg::Entries> {
    let count = (read.entries_max as usize).clamp(1, READ_ENTRIES_MAX);
    let entries = log.read(&read.topic, read.from, count, READ_BYTES_MAX, Scope::Durable)?;
    let entries = entries.into_iter().map(|(index, bytes)| msg::Indexed { index, bytes }).collect();
    Ok(msg::Entries { entries })
}

fn send<T: Encode>(reply: Reply, result: Result<T>) {
    answer(reply, result.map(|message| (message.to_bytes(), Parts::None)));
}

impl FileService {
    pub(crate) fn log_append(&self, meta: &[u8], reply: Reply) {
        let append: msg::Append = decode_or_refuse!(meta, "append to the log", reply);
        let log = self.node.log.clone();
        let mode = if append.synced { Mode::Synced } else { Mode::Ordered };
        if let Err(e) = own(&append.topic) {
            return reply.send(Response::error(e));
        }
        self.node.workers.run(move || {
            // The first append to a topic makes it.
            if let Err(e) = log.create(&append.topic) {
                return reply.send(Response::error(e));
            }
            let entries = append.entries.into_iter().map(|entry| entry.bytes).collect();
            let done = Box::new(move |first: Result<Index>| {
                send(reply, first.map(|first| msg::Appended { first }));
            });
            log.append(&append.topic, entries, mode, done);
        });
    }

    pub(crate) fn log_read(&self, meta: &[u8], reply: Reply) {
        let read: msg::Read = decode_or_refuse!(meta, "read the log", reply);
        let log = self.node.log.clone();
        self.node.workers.clone().run(move || {
            let ready = entries(&*log, &read);
            match ready {
                // A tail: answered when there is an entry, or by the request's deadline.
                Ok(none) if none.entries.is_empty() && read.wait => tail(log, read, reply),
                ready => send(reply, ready),
            }
        });
    }

    pub(crate) fn log_trim(&self, meta: &[u8], reply: Reply) {
        let trim: msg::Trim = decode_or_refuse!(meta, "trim the log", reply);
        if let Err(e) = own(&trim.topic) {
            return reply.send(Response::error(e));
        }
        let log = self.node.log.clone();
        self.node.workers.run(move || {
            let trimmed = log.trim(&trim.topic, trim.before);
            answer(reply, trimmed.map(|()| (Vec::new(), Parts::None)));
        });
    }

    pub(crate) fn log_info(&self, meta: &[u8], reply: Reply) {
        let topic: String = decode_or_refuse!(meta, "describe the log", reply);
        let log = &self.node.log;
        let topics = if topic.is_empty() { log.topics() } else { vec![topic] };
        let infos: Result<Vec<msg::Info>> = topics
            .into_iter()
            .map(|topic| {
                let info = log.info(&topic)?;
                Ok(msg::Info {
                    topic,
                    first: info.first,
                    next: info.next,
                    durable: info.durable,
                    bytes: info.bytes,
                    segments: info.segments as u32,
                })
            })
            .collect();
        send(reply, infos);
    }
}

fn tail(log: Arc<dyn Log>, read: msg::Read, reply: Reply) {
    let (again, topic, from) = (log.clone(), read.topic.clone(), read.from);
    let wake = Box::new(move |woken: Result<()>| {
        send(reply, woken.and_then(|()| entries(&*again, &read)));
    });
    log.tail(&topic, from, wake);
}
