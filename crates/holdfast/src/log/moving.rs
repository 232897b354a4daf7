//! `holdfast log move`: takes the log of a node that does not run to brokers, which keep it from then on.

use crate::config::Config;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use std::path::Path;

/// Moves the log in the data directory `data` to `to` (`kafka://HOST:PORT,...[/PREFIX]`), or goes on with
/// that. Nothing here is changed but that the directory's own log takes no entries any more.
#[cfg(feature = "kafka")]
pub fn run(data: &Path, to: &str, out: &mut Output) -> Result<()> {
    use holdfast_env::{Disk, RealDisk};
    use holdfast_kafka::{Moving, Options};
    use holdfast_log::{EmbeddedLog, Log, LogOptions};
    use holdfast_node::{Identity, Node};
    use serde_json::json;
    use std::sync::Arc;

    let config = Config::load(data)?;
    let options = Options::parse(to, config.log_client.clone())?;
    let disk = RealDisk;
    let _lock = Node::lock_directory(&disk, data)?;
    let doing = |e: Error| e.context(format_args!("move the log of `{}`", data.display()));
    let kept = data.join("log");
    let there = Identity::load(&disk, data)?.zip(disk.exists(&kept)?.then_some(()));
    let Some((identity, ())) = there else {
        return Err(doing(Error::invalid(
            "no log is kept in this directory: take that of the node that keeps it (`holdfast status` \
             says where the log is)",
        )));
    };
    let before = Node::log_moved_to(&disk, data)?;
    if let Some(before) = before.as_deref().filter(|before| *before != to) {
        return Err(doing(Error::invalid(format!(
            "it was moved to `{before}` before: start nodes with `--log {before}`"
        ))));
    }
    let log = EmbeddedLog::open(Arc::new(disk), &kept, LogOptions::default()).map_err(doing)?;
    if let Some((_, why)) = log.refused().into_iter().next() {
        return Err(doing(why));
    }
    let moving = Moving::begin(options, identity.cluster, before.is_some())?;
    for topic in log.topics() {
        let moved = moving.topic(&log, &topic)?;
        out.line(
            || {
                format!(
                    "{topic}  {} entries copied; it goes up to {}",
                    moved.copied,
                    moved.next.0 - 1
                )
            },
            || {
                json!({"topic": topic, "copied": moved.copied, "first": moved.first.0,
                    "next": moved.next.0})
            },
        )?;
    }
    // In this order: at no moment do both take entries.
    Node::mark_log_moved(&RealDisk, data, to)?;
    moving.end()?;
    out.line(
        || {
            format!(
                "moved: start each node with `--log {to}`, or with `log = \"{to}\"` in its settings and \
                 without `join`"
            )
        },
        || json!({"event": "moved", "to": to}),
    )
}

/// As the command says it, which asks for what this build has not.
#[cfg(not(feature = "kafka"))]
pub fn run(_: &Path, to: &str, _: &mut Output) -> Result<()> {
    let _ = Config::load;
    Err(Error::unsupported(format!(
        "move the log to `{to}`: this build knows no brokers: build it with the feature `kafka`"
    )))
}
