//! Everything that the log ever held, kept beside the world as it comes: nodes trim their log, and
//! the checkers fold it anew from its first entry.

use crate::SimDisk;
use crate::unruly::Gapped;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_cluster::topics::{CLUSTER_TOPIC, NAMESPACE_TOPIC};
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, Mode, Scope};
use std::path::Path;
use std::sync::Arc;

/// Whether a topic is folded anew.
fn is_kept(topic: &str) -> bool {
    topic == CLUSTER_TOPIC || topic.starts_with("namespace/")
}

pub struct Archive {
    pub log: Arc<Gapped>,
}

impl Archive {
    pub fn new() -> Result<Archive> {
        // A small segment: each topic fills a spare one with zeros before it is needed.
        let options =
            LogOptions { drive: Drive::Pump, segment_bytes: 1 << 20, ..LogOptions::default() };
        let log = EmbeddedLog::open(Arc::new(SimDisk::new(1)), Path::new("/archive"), options)?;
        [CLUSTER_TOPIC, NAMESPACE_TOPIC].iter().try_for_each(|topic| log.create(topic))?;
        Ok(Archive { log: Arc::new(Gapped(Arc::new(log))) })
    }

    /// Takes over what is kept and this has not. Whether anything was trimmed.
    pub fn follow(&self, kept: &EmbeddedLog) -> Result<bool> {
        let mut trimmed = false;
        // Gaps, too: indices are as they were.
        for topic in &kept.topics() {
            if !is_kept(topic) {
                continue;
            }
            self.log.create(topic)?;
            trimmed |= kept.info(topic)?.first > Index(1);
            loop {
                let next = self.log.0.info(topic)?.next;
                let page = kept.read(topic, next, 4096, 1 << 20, Scope::Durable)?;
                let Some((first, _)) = page.first() else { break };
                if *first != next {
                    return Err(Error::bug(format!("entry {first} follows entry {next}")));
                }
                let entries = page.into_iter().map(|(_, entry)| entry).collect();
                self.log.append(topic, entries, Mode::Synced, Box::new(|_| ()));
                while self.log.0.pump() {}
            }
        }
        Ok(trimmed)
    }
}
