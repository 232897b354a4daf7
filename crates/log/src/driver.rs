//! The embedded engine's driver: a committer thread a topic, or none in a simulation.

use crate::recover::CutTail;
use crate::{Done, Info, Log, Mode, Scope};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::Disk;
use std::path::Path;
use std::sync::Arc;

/// Who performs commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// A committer thread for each topic.
    Threads,
    /// Nobody: the caller calls [`EmbeddedLog::pump`]. For simulations.
    Pump,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub drive: Drive,
    /// Size of a segment file, whole sectors.
    pub segment_bytes: u64,
    /// Ordered entries are synced in the background after at most this time...
    pub ordered_sync_ms: u64,
    /// ...or this many bytes.
    pub ordered_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            drive: Drive::Threads,
            segment_bytes: 64 << 20,
            ordered_sync_ms: 100,
            ordered_bytes_max: 16 << 20,
        }
    }
}

/// The log of one machine: a directory of topics.
pub struct EmbeddedLog {}

impl EmbeddedLog {
    /// Opens every topic below `directory` (made if missing, locked against other processes).
    /// A damaged topic does not keep the others from opening: every call on it tells the damage.
    pub fn open(_disk: Arc<dyn Disk>, _directory: &Path, _options: Options) -> Result<EmbeddedLog> {
        unimplemented!()
    }

    /// With [`Drive::Pump`]: performs what is pending, one step a topic; false if nothing was.
    pub fn pump(&self) -> bool {
        unimplemented!()
    }

    /// Torn tails that opening has cut, and where their bytes are kept.
    pub fn recovered(&self) -> &[CutTail] {
        unimplemented!()
    }
}

impl Log for EmbeddedLog {
    fn create(&self, _topic: &str) -> Result<()> {
        unimplemented!()
    }
    fn append(&self, _topic: &str, _entries: Vec<Vec<u8>>, _mode: Mode, _done: Done<Index>) {
        unimplemented!()
    }
    fn read(
        &self,
        _topic: &str,
        _from: Index,
        _entries_max: usize,
        _bytes_max: usize,
        _scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        unimplemented!()
    }
    fn tail(&self, _topic: &str, _from: Index, _wake: Done<()>) {
        unimplemented!()
    }
    fn sync(&self, _topic: &str) -> Result<()> {
        unimplemented!()
    }
    fn trim(&self, _topic: &str, _before: Index) -> Result<()> {
        unimplemented!()
    }
    fn info(&self, _topic: &str) -> Result<Info> {
        unimplemented!()
    }
    fn topics(&self) -> Vec<String> {
        unimplemented!()
    }
}
