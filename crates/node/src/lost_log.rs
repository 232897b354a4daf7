//! A node that has been part of a cluster and finds no log of it: the directory was removed, or its
//! disk is not there. Said before anything is made in its place: an empty log would be served as a
//! store without files, and would be in the way of the right one. Only looks.

use super::Node;
use super::identity::Identity;
use holdfast_base::{Error, Result};
use holdfast_cluster::{CLUSTER_TOPIC, NAMESPACE_TOPIC};
use holdfast_env::Disk;
use holdfast_log::EmbeddedLog;
use std::path::Path;

/// Refuses a data directory whose node had a log, and has none, or not all of it.
pub(super) fn check(disk: &dyn Disk, data: &Path, known: Option<Identity>) -> Result<()> {
    // Both topics are durable before a node has its number. Who has none has no log yet, or one
    // from before there were clusters.
    let Some(identity) = known else { return Ok(()) };
    for topic in [CLUSTER_TOPIC, NAMESPACE_TOPIC] {
        if !EmbeddedLog::has_topic(disk, &data.join("log"), topic)? {
            return Err(lost(data, identity, &format!("has no topic `{topic}`")));
        }
    }
    Ok(())
}

/// Refuses to take another log's entries for those of a directory that has a log of its own.
pub(super) fn check_none_here(disk: &dyn Disk, data: &Path, known: Option<Identity>) -> Result<()> {
    let log = data.join("log");
    // What is left of one that was taken there is nobody's.
    let known = if Node::log_moved_to(disk, data)?.is_some() { None } else { known };
    match known {
        Some(known) if EmbeddedLog::has_topic(disk, &log, CLUSTER_TOPIC)? => {
            Err(Error::invalid(format!(
                "keep the log at brokers: `{}` has the log of cluster `{:016x}`, which was not taken \
                 there: do so with `holdfast log move`, start this node without `--log` and `log`, or \
                 choose an empty directory",
                log.display(),
                known.cluster
            )))
        }
        _ => Ok(()),
    }
}

impl Node {
    /// Reads the whole log that is kept here, and says what of it cannot be read, a sentence each.
    pub fn verify_log(&self) -> Vec<String> {
        let Some(log) = self.hosted() else { return Vec::new() };
        let said = |(topic, e): (String, Error)| match self.views.view(&topic) {
            Ok(view) if view.status().stopped.is_none() => format!(
                "{e}; what these entries said is in a snapshot of the view, which is whole: nothing of \
                 it is lost"
            ),
            _ => e.message,
        };
        log.verify().into_iter().map(said).collect()
    }
}

/// The log is there, and nobody ever joined by it: it was begun anew when the right one was away.
pub(super) fn has_no_node(data: &Path, identity: Identity) -> Error {
    lost(data, identity, "does not know it: it is another one")
}

fn lost(data: &Path, identity: Identity, what: &str) -> Error {
    Error::corrupt(format!(
        "the log is lost, or another node keeps it: this is node `{}` of cluster `{:016x}`, and \
         `{}` {what}: put that directory back as it was, with `snapshots` beside it; where another \
         node of the cluster keeps the log, start this one with `--join HOST:PORT`, and where brokers \
         do, with `--log kafka://HOST:PORT`",
        identity.node,
        identity.cluster,
        data.join("log").display()
    ))
}
