//! The fold: turns one topic into a view. Appends commands in envelopes, applies every entry in
//! index order, remembers sessions' results, fences old leaders, takes snapshots and boots from
//! them. Never interprets a command. Called by the services that own a view.

use crate::{Done, Log, Mode};
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::{Error, Result};
use holdfast_env::Disk;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of the envelope in front of each command.
pub const ENVELOPE_BYTES: usize = 40;
/// Results that one session may have outstanding (not yet acknowledged by its client).
pub const SESSION_OUTSTANDING_MAX: usize = 1024;
/// Sessions of one view that are open at a time.
pub const SESSIONS_MAX: usize = 1 << 16;

/// What a view made of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Accepted; the bytes are the command's result.
    Ok(Vec<u8>),
    /// The command changed nothing; the refusal is its result.
    Refused(Error),
    /// This build does not know the command's version: the view stops before this entry.
    UnknownVersion(String),
}

/// A deterministic fold of one topic. `apply` is total and reads no clock, setting or randomness:
/// the same entries give the same state and the same results, on every host and build.
pub trait View: Sized + Default + Send + Sync + 'static {
    /// Name in snapshots; a snapshot of another view is refused.
    const NAME: &'static str;
    /// Version of the snapshot's content; another version is refused.
    const VERSION: u32;

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied;
    /// Appends the whole state to `out`; equal states give equal bytes.
    fn snapshot(&self, out: &mut Vec<u8>);
    /// The inverse of `snapshot`.
    fn restore(bytes: &[u8]) -> Result<Self>;
}

/// One command of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// 0 for the leader's own commands, which are not remembered.
    pub session: SessionId,
    /// A repeated (session, sequence) gets the first result.
    pub sequence: Sequence,
    /// The client has the results of all sequences below: they may be forgotten.
    pub acknowledged_below: Sequence,
    pub command: Vec<u8>,
    pub mode: Mode,
}

/// Where a fold's snapshots are kept: a directory of their own.
#[derive(Clone)]
pub struct SnapshotStore {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldOptions {
    /// A background thread takes a snapshot after this many entries; 0 for never.
    pub snapshot_entries: u64,
    /// The same, after this many bytes of entries; 0 for never.
    pub snapshot_bytes: u64,
}

impl Default for FoldOptions {
    fn default() -> FoldOptions {
        FoldOptions { snapshot_entries: 1_000_000, snapshot_bytes: 256 << 20 }
    }
}

/// What a fold has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldStatus {
    /// The last entry applied; 0 before the first.
    pub applied: Index,
    /// Running digest over (index, entry, result) of every entry applied.
    pub digest: u64,
    /// Index of the last claim; 0 before the first.
    pub epoch: Index,
    pub sessions: usize,
    /// The snapshot that the fold booted from, or the last one it took.
    pub snapshot: Option<Index>,
    /// Why the fold applies no more, if it has stopped.
    pub stopped: Option<Error>,
    /// Damaged snapshots that were passed over at boot, and background snapshots that failed.
    pub reports: Vec<String>,
}

/// A topic, folded.
pub struct Fold<V: View> {
    _view: std::marker::PhantomData<V>,
}

impl<V: View> Fold<V> {
    /// Boots from the newest valid snapshot and the log; proposes under the claim found there.
    pub fn open(
        _log: Arc<dyn Log>,
        _topic: &str,
        _snapshots: SnapshotStore,
        _options: FoldOptions,
    ) -> Result<Fold<V>> {
        unimplemented!()
    }

    /// As [`Fold::open`], then appends a claim: commands of earlier leaders that follow it in the
    /// log are refused as `Fenced`, by this fold and every other.
    pub fn open_as_leader(
        _log: Arc<dyn Log>,
        _topic: &str,
        _snapshots: SnapshotStore,
        _options: FoldOptions,
    ) -> Result<Fold<V>> {
        unimplemented!()
    }

    /// As [`Fold::open`], but applies what others append, when durable, and proposes nothing.
    pub fn open_follower(
        _log: Arc<dyn Log>,
        _topic: &str,
        _snapshots: SnapshotStore,
        _options: FoldOptions,
    ) -> Result<Fold<V>> {
        unimplemented!()
    }

    /// Appends a command; `done` gets its index and result after it was applied. An `Ordered`
    /// request with nothing before it is applied, and `done` called, before this returns.
    pub fn propose(&self, _request: Request, _done: Done<(Index, Vec<u8>)>) {
        unimplemented!()
    }

    pub fn open_session(&self, _mode: Mode, _done: Done<SessionId>) {
        unimplemented!()
    }

    pub fn end_session(&self, _session: SessionId, _mode: Mode, _done: Done<()>) {
        unimplemented!()
    }

    /// Reads the view at the index applied last, under a shared lock. Fails once it has stopped.
    pub fn read<R>(&self, _f: impl FnOnce(&V, Index) -> R) -> Result<R> {
        unimplemented!()
    }

    /// Writes and verifies a snapshot, keeps the last two, and trims the log up to the older one.
    pub fn snapshot_now(&self) -> Result<Index> {
        unimplemented!()
    }

    pub fn status(&self) -> FoldStatus {
        unimplemented!()
    }
}
