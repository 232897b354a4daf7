//! A log that was moved from a node's directory to brokers: what is left of it is kept, and no start takes
//! it for the cluster's.

use super::Node;
use super::open::claim;
use holdfast_base::{Error, Result};
use holdfast_env::Disk;
use holdfast_env::disk::{Lock, ReplaceSites, read_file, replace_file};
use std::path::Path;

/// Holds where the log is now.
const MOVED: &str = "MOVED";
const BYTES_MAX: u64 = 4096;
const SITES: ReplaceSites = ReplaceSites { data: "node.moved-data", name: "node.moved-name" };

impl Node {
    /// Keeps every other process out of a data directory, for as long as the lock is held.
    pub fn lock_directory(disk: &dyn Disk, data: &Path) -> Result<Box<dyn Lock>> {
        let doing = |e: Error| e.context(format_args!("use data directory `{}`", data.display()));
        if !disk.exists(data)? {
            return Err(doing(Error::not_found("it is not there: check --data")));
        }
        claim(disk, data).map_err(doing)
    }

    /// Where the log of this directory was moved to, if it was.
    pub fn log_moved_to(disk: &dyn Disk, data: &Path) -> Result<Option<String>> {
        let mark = data.join(MOVED);
        if !disk.exists(&mark)? {
            return Ok(None);
        }
        let text = read_file(disk, &mark, BYTES_MAX)?;
        Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()))
    }

    /// The log of this directory is elsewhere from now on.
    pub fn mark_log_moved(disk: &dyn Disk, data: &Path, to: &str) -> Result<()> {
        let mark = data.join(MOVED);
        Ok(replace_file(disk, &mark, format!("{to}\n").as_bytes(), SITES)?)
    }
}

/// Refuses the log of a directory from which it was moved.
pub(super) fn check(disk: &dyn Disk, data: &Path) -> Result<()> {
    match Node::log_moved_to(disk, data)? {
        None => Ok(()),
        Some(to) => Err(Error::invalid(format!(
            "its log was moved to `{to}`, and other nodes may have gone on with it there: start with \
             `--log {to}`"
        ))),
    }
}
