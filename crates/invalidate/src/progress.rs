//! How a running invalidator stands, for who watches it: what it has read and written, and what each server
//! lacks. Filled by [`crate::run`]; seconds are those of the database's clock, at which changes were made.

use crate::send::Lack;
use holdfast_env::HoldMutex;
use std::sync::Mutex;

/// Shared by an invalidator and who watches it.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Counts>);

/// Of one life of an invalidator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Transactions that were read, and are not visible or not in the topic yet.
    pub waiting: u64,
    /// When the first of them was made.
    pub waiting_since_s: Option<u64>,
    /// Bytes of the database's log that the topic does not have yet, where that can be told.
    pub lag_bytes: Option<u64>,
    /// Transactions that are in the topic, and their keys.
    pub transactions: u64,
    pub keys: u64,
    /// How often all servers were emptied.
    pub emptied: u64,
    /// What each server has not confirmed yet.
    pub servers: Vec<Lack>,
    /// Bytes of its log that the database keeps for this reader, where a slot makes it keep them.
    pub retained_bytes: Option<u64>,
    /// Things that it has to wait for: a database, the cluster, a server.
    pub troubles: u64,
}

impl Progress {
    pub fn counts(&self) -> Counts {
        self.0.held().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.held());
    }
}
