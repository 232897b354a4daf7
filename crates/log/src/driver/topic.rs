//! One open topic: its core behind a mutex, its files, and the code that performs the core's
//! steps, on the committer thread, on an appending thread (ordered, nothing before it) or in
//! `pump`. Acknowledgements run with no lock held; the core stays busy until they have.

use super::{Drive, LogOptions};
use crate::Done;
use crate::core::{Acks, Commit, Core, Failure, Step, Tail, Write};
use crate::format::{CommitHeader, SegmentHeader, commit_bytes, encode_commit};
use crate::reach::Reach;
use crate::reserve::Reserve;
use crate::segment::{Segment, name_spare};
use crate::topic::hash;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::sockets::is_out_of_descriptors;
use holdfast_env::sync::mpsc::{self, Receiver};
use holdfast_env::sync::thread::{self, ThreadId};
use holdfast_env::sync::{Condvar, Mutex, MutexGuard};
use holdfast_env::{Clock, Disk, HoldMutex, RealClock, event, planted, tasks};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub struct Topic {
    pub name: String,
    pub directory: PathBuf,
    pub disk: Arc<dyn Disk>,
    options: LogOptions,
    reserve: Arc<Reserve>,
    /// It may use what is kept for need.
    needed: bool,
    state: Mutex<State>,
    /// The committer waits here; told only when it does wait ([`State::committer`]).
    work: Condvar,
    /// The commit being built. Taken by whoever performs the step that made the core busy, so
    /// nobody ever waits for it.
    buffer: Mutex<AlignedBuf>,
    /// Locked by whoever writes a commit.
    reach: Mutex<Reach>,
    /// The next segment's file. Locked by a roll, and briefly when filling begins.
    spare: Mutex<Spare>,
    /// Held during a trim, so that marks are written in order.
    trimming: Mutex<()>,
}

pub struct State {
    pub core: Core<Done<Indices>>,
    pub files: BTreeMap<u64, Arc<Segment>>,
    /// Who waits for a durable entry at or after an index.
    pub tails: Vec<(u64, Done<()>)>,
    committer: Committer,
    /// Who runs acknowledgements at the moment.
    delivering: Option<ThreadId>,
    stopping: bool,
    /// That a write failed, which ends all others, was told.
    told: bool,
}

#[derive(PartialEq, Eq)]
enum Committer {
    /// Running, or not there.
    Away,
    /// Waits for work.
    Waiting,
    /// Waits for work, or for the time to sync.
    WaitingToSync,
}

enum Spare {
    None,
    /// The outcome, its length, comes from the thread that fills it.
    Filling(Receiver<io::Result<u64>>),
}

/// How often an ordered append gives way to a delivery that is about to end, before it queues
/// behind it. Without this, a caller that was woken by the committer would find it busy for one
/// more instant, queue, be woken by it again, and so never append on its own thread.
const DELIVERY_YIELDS: usize = 8;

impl Topic {
    pub fn new(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        options: LogOptions,
        reserve: Arc<Reserve>,
        tail: Tail,
        files: Vec<Arc<Segment>>,
        reach: Reach,
    ) -> Topic {
        Topic {
            name: tail.topic.clone(),
            directory,
            disk,
            options,
            needed: reserve.is_needed(&tail.topic),
            reserve,
            state: Mutex::new(State {
                core: Core::new(tail, options.segment_bytes, options.ordered_bytes_max),
                files: files.into_iter().map(|f| (f.first, f)).collect(),
                tails: Vec::new(),
                committer: Committer::Away,
                delivering: None,
                stopping: false,
                told: false,
            }),
            work: Condvar::new(),
            buffer: Mutex::new(AlignedBuf::zeroed(SECTOR_BYTES)),
            reach: Mutex::new(reach),
            spare: Mutex::new(Spare::None),
            trimming: Mutex::new(()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn append(&self, entries: Vec<Vec<u8>>, synced: bool, done: Done<Indices>) {
        let mut state = self.lock();
        for _ in 0..if synced { 0 } else { DELIVERY_YIELDS } {
            // A callback that appends must not wait for itself.
            if state.delivering.is_none_or(|t| t == thread::current().id()) {
                break;
            }
            drop(state);
            thread::yield_now();
            state = self.lock();
        }
        if let Err((done, e)) = state.core.stage(entries, synced, done) {
            drop(state);
            return done(Err(e));
        }
        if synced {
            return self.wake_committer(&mut state);
        }
        match state.core.step_inline() {
            Some(commit) => self.perform_commit(state, commit),
            None => self.wake_committer(&mut state),
        }
    }

    /// A wake-up costs a system call, so it is given only to a committer that waits and can act.
    fn wake_committer(&self, state: &mut State) {
        let useful = match state.committer {
            Committer::Away => false,
            Committer::Waiting => state.core.has_work() || state.core.has_unsynced(),
            Committer::WaitingToSync => state.core.has_work(),
        };
        if useful && !state.core.is_busy() {
            state.committer = Committer::Away;
            self.work.notify_one();
        }
    }

    /// The committer's thread: performs steps until told to stop and nothing is left.
    pub fn run_committer(&self) {
        let clock = RealClock::new();
        let interval_ns = self.options.ordered_sync_ms * 1_000_000;
        let mut unsynced_since = None;
        let mut state = self.lock();
        loop {
            let mut wait_ns = None;
            if state.core.has_unsynced() {
                let now = clock.monotonic_ns();
                let since = *unsynced_since.get_or_insert(now);
                wait_ns = Some((since + interval_ns).saturating_sub(now));
            } else {
                unsynced_since = None;
            }
            let lazy = wait_ns == Some(0) || state.stopping;
            if let Some(step) = state.core.step(lazy) {
                if lazy {
                    unsynced_since = None;
                }
                self.perform(state, step);
                state = self.lock();
                continue;
            }
            if state.stopping && !state.core.is_busy() {
                return;
            }
            state = match wait_ns {
                // Busy elsewhere: its end wakes this thread.
                Some(ns) if !lazy => {
                    state.committer = Committer::WaitingToSync;
                    let wait = Duration::from_nanos(ns);
                    self.work.wait_timeout(state, wait).expect("no holder panics").0
                }
                _ => {
                    state.committer = Committer::Waiting;
                    self.work.wait(state).expect("no holder panics")
                }
            };
            state.committer = Committer::Away;
        }
    }

    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        self.work.notify_all();
    }

    /// Writes the closing commit and ends what waits for entries, once nothing is left to commit.
    pub fn close(&self) {
        let mut state = self.lock();
        let closing = state.core.step_close();
        let tails = std::mem::take(&mut state.tails);
        match closing {
            // Fails as others do: then the end stays as it was.
            Some(commit) => self.perform_commit(state, commit),
            None => drop(state),
        }
        for (_, wake) in tails {
            wake(Err(Error::retry(format!("tail topic `{}`: the log was closed", self.name))));
        }
        let spare = std::mem::replace(&mut *self.spare_lock(), Spare::None);
        if let Spare::Filling(filled) = spare {
            // Its outcome does not matter: opening removes a spare that nobody used.
            let _ = filled.recv();
        }
    }

    /// Performs one step in the calling thread; false if there was nothing to do.
    pub fn pump(&self) -> bool {
        let mut state = self.lock();
        match state.core.step(false) {
            Some(step) => {
                self.perform(state, step);
                true
            }
            None => false,
        }
    }

    fn perform(&self, state: MutexGuard<'_, State>, step: Step<Done<Indices>>) {
        match step {
            Step::Commit(commit) => self.perform_commit(state, commit),
            Step::Roll { first, chain, sync_before, bytes_min } => {
                let old = state.files.last_key_value().map(|(_, f)| f.clone());
                drop(state);
                let outcome = self.roll(old.filter(|_| sync_before), first, chain, bytes_min);
                let mut state = self.lock();
                let outcome = outcome.map(|(segment, capacity, crc)| {
                    state.files.insert(first, Arc::new(segment));
                    (capacity, crc)
                });
                let acks = state.core.rolled(outcome);
                self.deliver(state, acks, true);
            }
            Step::Sync { below, bytes } => {
                let active = state.files.last_key_value().map(|(_, f)| f.clone());
                drop(state);
                let outcome = active.map_or(Ok(()), |f| f.cached.sync("log.sync-ordered"));
                let outcome = outcome.map_err(|e| self.failed("sync ordered entries", e));
                let mut state = self.lock();
                let acks = state.core.synced(below, bytes, outcome);
                self.deliver(state, acks, false);
            }
        }
    }

    fn perform_commit(&self, state: MutexGuard<'_, State>, commit: Commit<Done<Indices>>) {
        let active = state.files.last_key_value().map(|(_, f)| f.clone());
        drop(state);
        let outcome = match active {
            Some(segment) => self.write_commit(&segment, &commit),
            None => Ok(None),
        };
        let mut state = self.lock();
        let acks = state.core.completed(commit, outcome);
        self.deliver(state, acks, true);
    }

    fn write_commit(
        &self,
        segment: &Segment,
        commit: &Commit<Done<Indices>>,
    ) -> std::result::Result<Option<(CommitHeader, u32)>, Failure> {
        let mut written = None;
        if commit.payload_bytes > 0 || commit.write == Write::Durable {
            let mut buffer = self.buffer.held();
            let len = commit_bytes(commit.payload_bytes) as usize;
            if buffer.len() < len {
                *buffer = AlignedBuf::zeroed(len.next_power_of_two());
            }
            written = Some(encode_commit(&mut buffer, commit.header, commit.entries()));
            let position = commit.header.position;
            let mut reach = self.reach.held();
            reach
                .cover(&*self.disk, commit.header.topic_hash, segment, position + len as u64)
                .map_err(|e| self.failure("mark the reach", e))?;
            match commit.write {
                Write::Durable => {
                    segment.direct.write_at_durable(&buffer[..len], position, "log.commit")
                }
                _ => segment.cached.write_at(&buffer[..len], position),
            }
            // Out of space here (a file system that copies on write) loses nothing: all that was
            // acknowledged lies in other sectors, and the next commit goes to the same place.
            .map_err(|e| self.failure("write a commit", e))?;
        }
        if matches!(commit.write, Write::PlainThenSync | Write::SyncOnly) {
            segment
                .cached
                .sync("log.sync-ordered")
                .map_err(|e| Failure::Fatal(self.failed("sync a commit", e)))?;
        }
        Ok(written)
    }

    /// Makes the next segment out of the spare.
    fn roll(
        &self,
        sync_before: Option<Arc<Segment>>,
        first: u64,
        chain: u32,
        bytes_min: u64,
    ) -> std::result::Result<(Segment, u64, u32), Failure> {
        if let Some(old) = sync_before {
            let synced = old.cached.sync("log.sync-ordered");
            synced.map_err(|e| Failure::Fatal(self.failed("sync a full segment", e)))?;
        }
        let mut spare = self.spare_lock();
        let ready = match std::mem::replace(&mut *spare, Spare::None) {
            Spare::Filling(filled) => filled.recv().ok().and_then(io::Result::ok),
            Spare::None => None,
        };
        let bytes = match ready.filter(|bytes| *bytes >= bytes_min) {
            Some(bytes) => bytes,
            // Failed before or never begun: now is when it matters, and when the error counts.
            None => self.make_segment(bytes_min)?,
        };
        let topic = self.name.clone();
        let header = SegmentHeader { topic_hash: hash(&topic), topic, first, chain };
        let (segment, crc) = name_spare(&*self.disk, &self.directory, &header)
            .map_err(|e| self.failure("start a segment", e))?;
        Ok((segment, bytes, crc))
    }

    fn make_segment(&self, bytes_min: u64) -> std::result::Result<u64, Failure> {
        if !self.needed
            && let Err(e) = self.reserve.others_may_grow()
        {
            let e = e.context(format_args!("make a segment of topic `{}`", self.name));
            self.reserve.refused(&e);
            return Err(Failure::Full(e));
        }
        let made = self.reserve.make(&self.directory, self.needed, bytes_min);
        made.map_err(|e| self.failure("make a segment", e))
    }

    /// Starts to prepare the next segment, unless that is under way.
    pub fn fill_spare(&self) {
        if self.options.drive == Drive::Pump {
            return;
        }
        let mut spare = self.spare_lock();
        if let Spare::None = *spare {
            let (reserve, directory) = (self.reserve.clone(), self.directory.clone());
            let needed = self.needed;
            let (send, filled) = mpsc::channel();
            let fill = move || {
                // Nobody listens any more when the log was closed meanwhile.
                let _ = send.send(reserve.prepare(&directory, needed));
            };
            // Without a thread the roll fills the segment itself.
            if tasks::spawn("log-fill", fill).is_ok() {
                *spare = Spare::Filling(filled);
            }
        }
    }

    fn spare_lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.held()
    }

    /// Runs acknowledgements and wakes readers without the lock, then lets the next step begin.
    fn deliver(&self, mut state: MutexGuard<'_, State>, acks: Acks<Done<Indices>>, busy: bool) {
        if let Some(e) = state.core.failed().filter(|_| !state.told) {
            state.told = true;
            event!(LogFailed, e, topic = self.name.as_str());
        }
        let mut wakes = Vec::new();
        if !state.tails.is_empty() {
            let (durable, failed) = (state.core.durable(), state.core.failed());
            let reached = |t: &mut (u64, Done<()>)| t.0 < durable || failed.is_some();
            wakes = state
                .tails
                .extract_if(.., reached)
                .map(|(from, wake)| match &failed {
                    Some(e) if from >= durable => (wake, Err(e.clone())),
                    _ => (wake, Ok(())),
                })
                .collect();
        }
        let wants_spare = state.core.wants_spare();
        if busy {
            state.delivering = Some(thread::current().id());
        }
        drop(state);
        if wants_spare {
            self.fill_spare();
        }
        for (ack, result) in acks {
            ack(result);
        }
        for (wake, result) in wakes {
            wake(result);
        }
        if busy {
            let mut state = self.lock();
            state.core.idle();
            state.delivering = None;
            self.wake_committer(&mut state);
            if state.stopping {
                self.work.notify_all();
            }
        }
    }

    pub fn trim(&self, before: u64) -> Result<()> {
        let _one = self.trimming.held();
        let state = self.lock();
        let (first, durable) = (state.core.first(), state.core.durable());
        drop(state);
        if before > durable {
            return Err(Error::invalid(format!(
                "trim topic `{}` below entry {before}: only entries below {durable} are durable: trim less",
                self.name
            )));
        }
        if before <= first {
            return Ok(());
        }
        write_trim_mark(&*self.disk, &self.reserve, &self.directory, &self.name, before)?;
        let mut state = self.lock();
        let left = state.core.trim(before);
        let files: Vec<_> = left.iter().filter_map(|first| state.files.remove(first)).collect();
        drop(state);
        for file in files {
            // The mark counts; what cannot be deleted now is deleted when the topic is opened.
            let _ = self.disk.remove(&file.path);
        }
        self.reserve.refill();
        Ok(())
    }

    fn failed(&self, doing: &str, e: io::Error) -> Error {
        Error::from(e).context(format_args!("{doing} of topic `{}`", self.name))
    }

    fn failure(&self, doing: &str, e: io::Error) -> Failure {
        let no_descriptor = is_out_of_descriptors(&e);
        match self.failed(doing, e) {
            // The file could not be opened, so nothing in it is in doubt.
            e if no_descriptor && !planted!("log.descriptors-end-log") => Failure::Full(
                Error::retry(format!("{}: ask again when connections have ended", e.message)),
            ),
            e if e.kind == Kind::Full => {
                let e = Error::full(format!("{}: free space, then append again", e.message));
                self.reserve.refused(&e);
                Failure::Full(e)
            }
            e => Failure::Fatal(e),
        }
    }
}

/// Says durably that a topic begins at this index. It frees space, so it may use what is kept.
pub(super) fn write_trim_mark(
    disk: &dyn Disk,
    reserve: &Reserve,
    directory: &Path,
    topic: &str,
    before: u64,
) -> Result<()> {
    let mark = crate::format::encode_trim_mark(hash(topic), before);
    let sites = crate::recover::TRIM_SITES;
    let path = directory.join(crate::recover::TRIM_MARK);
    reserve
        .in_need(|| holdfast_env::disk::replace_file(disk, &path, &mark, sites))
        .map_err(|e| Error::from(e).context(format_args!("write trim mark `{}`", path.display())))
}
