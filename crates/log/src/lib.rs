//! The log: ordered entries per topic, kept in segment files by group commit ([`EmbeddedLog`]) or
//! by another node ([`RemoteLog`]). Interprets no entry: it keeps bytes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod core;
mod driver;
pub mod feed;
mod format;
mod history;
mod reach;
mod recover;
mod remote;
mod reserve;
mod rewrite;
mod segment;
mod shared;
mod topic;

pub use driver::{Drive, EmbeddedLog, LogOptions};
pub use feed::MIRROR_BYTES_MAX;
pub use history::missing;
pub use reach::REACH_BYTES;
pub use recover::{CutTail, PassedOver};
pub use remote::{LogHost, RemoteLog, describe};
pub use reserve::Needed;
pub use rewrite::{Rewritten, rewrite};
pub use segment::Window;
pub use shared::{Direct, SharedLog};
pub use topic::{TOPIC_BYTES_MAX, check_topic, hash as topic_hash};

use holdfast_base::ids::Index;
use holdfast_base::{Indices, Result};

/// Called exactly once, on whatever thread finished the work, with no lock held. It must not wait
/// for the log (`sync`, `snapshot_now`) nor panic: it may be running on the thread that does the
/// work.
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// What an append's acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The entries, and all before them, survive a power cut.
    Synced,
    /// The entries are written and have their place in the order; they survive the process, and a
    /// power cut only once a later synced append, [`Log::sync`] or the background sync is through.
    Ordered,
}

/// Which entries a reader may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only those that survive a power cut.
    Durable,
    /// Those written but not yet synced, too.
    Written,
}

/// The state of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The first index that can be read; equal to `next` when there is none.
    pub first: Index,
    /// The index after the last entry written. There is an entry in front of it, unless it is the first
    /// index: a gap is known once an entry follows it, for who waits for an index waits for its entry.
    pub next: Index,
    /// Every entry below this index survives a power cut; in front of it is one, too.
    pub durable: Index,
    /// Bytes of entries and their framing in the segments that are kept.
    pub bytes: u64,
    /// Files that these bytes lie in; the last one takes new entries.
    pub segments: usize,
}

/// Ordered entries per topic. Indices start at 1 and increase; callers must allow for gaps.
pub trait Log: Send + Sync + 'static {
    /// Makes the topic if it is not there, durably.
    fn create(&self, topic: &str) -> Result<()>;

    /// Appends `entries` in their order, and hands the index of each to `done`. Others' entries and
    /// gaps may lie between them: what must stand together is one entry. Of one caller's appends that
    /// are kept, each is behind those before it. After an error other than `Full`, `Invalid` or
    /// `NotFound` nobody knows: some of the entries or all of them may be kept, may appear later, and
    /// may do so twice. Also what was acknowledged may be there a second time.
    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>);

    /// Entries from `from` on, in order; at least one if there is one, then up to `entries_max`
    /// and `bytes_max`. Each was verified by this read. `from` below the first kept index is an
    /// `Invalid` error: the entries were trimmed.
    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>>;

    /// Calls `wake` as soon as there is a durable entry at or after `from`, at once if there is
    /// one already. An error means that the topic or the log ended.
    fn tail(&self, topic: &str, from: Index, wake: Done<()>);

    /// Calls `wake` once a topic whose reads and tails are refused for [`OtherLog`](holdfast_base::Reason::OtherLog) can be followed
    /// again, at once if it can, with an error if it never will be. A log that never says so drops
    /// it.
    fn recovers(&self, _topic: &str, _wake: Done<()>) {}

    /// Returns when everything appended before the call is durable or refused.
    fn sync(&self, topic: &str) -> Result<()>;

    /// Gives up the entries below `before`, which must be durable; whole segments are deleted.
    fn trim(&self, topic: &str, before: Index) -> Result<()>;

    /// How far the topic reaches, as it is known here; does not wait for somebody else. `NotFound` if
    /// there is none, `Retry` where it is not known yet.
    fn info(&self, topic: &str) -> Result<Info>;

    /// How far the topic reaches by now, as whoever keeps it says.
    fn ask(&self, topic: &str, done: Done<Info>) {
        done(self.info(topic));
    }

    /// The names of all topics, sorted; damaged ones too.
    fn topics(&self) -> Vec<String>;
}
