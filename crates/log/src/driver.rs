//! The embedded engine: a directory of topics, a committer thread for each (or none, in a
//! simulation). Decides nothing about commits, that is the core's; opens, routes and closes.

mod read;
mod topic;

use crate::core::Tail;
use crate::format::{COMMIT_HEADER_BYTES, SECTOR};
use crate::reach::Reach;
use crate::recover::{CutTail, PassedOver, open_topic};
use crate::reserve::{Needed, Reserve};
use crate::segment::Segment;
use crate::topic::{check_topic, directory_name, hash, topic_of_directory};
use crate::{Done, Info, Log, Mode, Scope};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use holdfast_env::disk::{Lock, create_dir_durable};
use holdfast_env::sync::{RwLock, mpsc};
use holdfast_env::tasks::{self, Task};
use holdfast_env::{Disk, HoldRwLock, planted};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use topic::{Topic, write_trim_mark};

/// Below the log's directory: one directory a topic.
const TOPICS: &str = "topics";

/// Smallest segment: its header and one commit of a few sectors.
pub const SEGMENT_BYTES_MIN: u64 = 4 * SECTOR;

/// Topics of one log, but for those that are needed: each takes a segment of 64 MiB, two descriptors
/// and a thread, and a client that may make some could otherwise take all of them.
pub const TOPICS_MAX: usize = 1000;

const _: () = assert!(SEGMENT_BYTES_MIN > SECTOR + COMMIT_HEADER_BYTES as u64);

/// Who performs commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// A committer thread for each topic.
    Threads,
    /// Nobody: the caller calls [`EmbeddedLog::pump`]. For simulations.
    Pump,
}

/// How entries are committed and kept.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Who writes and syncs what was appended.
    pub drive: Drive,
    /// Size of a segment file, whole sectors; smaller where the disk is nearly full.
    pub segment_bytes: u64,
    /// The topics that go on where the disk is full, or the log has as many as it takes; `None`
    /// where none comes before others.
    pub needed: Option<Needed>,
    /// Topics that there may be; those that are there all open.
    pub topics_max: usize,
    /// Ordered entries are synced in the background after at most this time (not by `Pump`)...
    pub ordered_sync_ms: u64,
    /// ...or this many bytes; at four times as many, ordered appends wait for the sync.
    pub ordered_bytes_max: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            drive: Drive::Threads,
            segment_bytes: 64 << 20,
            needed: None,
            topics_max: TOPICS_MAX,
            ordered_sync_ms: 100,
            ordered_bytes_max: 16 << 20,
        }
    }
}

/// The log of one machine: a directory of topics.
pub struct EmbeddedLog {
    disk: Arc<dyn Disk>,
    topics_directory: PathBuf,
    options: LogOptions,
    /// Every topic by name, or why it could not be opened. Written when a topic is made.
    topics: RwLock<BTreeMap<String, Result<Arc<Running>>>>,
    cuts: Vec<CutTail>,
    passed_over: Vec<PassedOver>,
    reserve: Arc<Reserve>,
    /// Keeps other processes out of the directory for as long as this one, or one of its
    /// committers, lives.
    lock: Arc<dyn Lock>,
}

struct Running {
    topic: Arc<Topic>,
    committer: Option<Task>,
}

impl Running {
    fn start(topic: Topic, drive: Drive, lock: &Arc<dyn Lock>) -> Result<Running> {
        let topic = Arc::new(topic);
        let committer = match drive {
            Drive::Pump => None,
            Drive::Threads => {
                let (runs, lock) = (topic.clone(), lock.clone());
                let commits = move || {
                    let lock = Some(lock).filter(|_| !planted!("log.unlocked-while-it-commits"));
                    runs.run_committer();
                    runs.close();
                    drop(lock);
                };
                Some(tasks::spawn("log-commit", commits)?)
            }
        };
        Ok(Running { topic, committer })
    }
}

impl EmbeddedLog {
    /// Opens every topic below `directory` (made if missing, locked against other processes).
    /// A damaged topic does not keep the others from opening: every call on it tells the damage.
    pub fn open(disk: Arc<dyn Disk>, directory: &Path, options: LogOptions) -> Result<EmbeddedLog> {
        EmbeddedLog::open_covered(disk, directory, options, &|_| None)
    }

    /// As [`EmbeddedLog::open`]. `covered` is asked of a topic that is damaged: the last entry that
    /// a verified snapshot contains. Damage in front of it is passed over ([`PassedOver`]).
    pub fn open_covered(
        disk: Arc<dyn Disk>,
        directory: &Path,
        options: LogOptions,
        covered: &dyn Fn(&str) -> Option<Index>,
    ) -> Result<EmbeddedLog> {
        let sizes = options.segment_bytes.is_multiple_of(SECTOR)
            && options.segment_bytes >= SEGMENT_BYTES_MIN;
        if !sizes {
            return Err(Error::invalid(format!(
                "open log: segments of {} bytes: use a multiple of {SECTOR}, at least {SEGMENT_BYTES_MIN}",
                options.segment_bytes
            )));
        }
        let topics_directory = directory.join(TOPICS);
        let opening = |e: std::io::Error| {
            Error::from(e).context(format_args!("open log `{}`", directory.display()))
        };
        create_dir_durable(&*disk, &topics_directory, 2, "log.directory").map_err(opening)?;
        let lock = disk.lock(&directory.join("LOCK")).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::retry(format!(
                "open log `{}`: another process uses it: stop that one first",
                directory.display()
            )),
            _ => opening(e),
        })?;
        let (bytes, needed) = (options.segment_bytes, options.needed);
        let reserve = Reserve::open(disk.clone(), directory, bytes, needed).map_err(opening)?;
        let mut log = EmbeddedLog {
            disk,
            topics_directory,
            options,
            topics: RwLock::new(BTreeMap::new()),
            cuts: Vec::new(),
            passed_over: Vec::new(),
            reserve: Arc::new(reserve),
            lock: lock.into(),
        };
        // A process that was killed may have left names that are not durable yet. What is served
        // from here on counts as durable, so they must be.
        log.disk.sync_dir(&log.topics_directory, "log.recovered-topics").map_err(opening)?;
        for entry in log.disk.list(&log.topics_directory).map_err(opening)? {
            if let Some(name) = topic_of_directory(&entry.name).filter(|_| entry.is_dir) {
                let opened = log.open_topic(&name, &directory.join("lost+found"), covered);
                let running = opened.map(|(running, cut, passed_over)| {
                    log.cuts.extend(cut);
                    log.passed_over.extend(passed_over);
                    Arc::new(running)
                });
                log.topics.get_mut().expect("not shared yet").insert(name, running);
            }
        }
        log.reserve.refill();
        Ok(log)
    }

    /// Whether a log in `directory` has the topic: looks, opens nothing and makes nothing.
    pub fn has_topic(disk: &dyn Disk, directory: &Path, topic: &str) -> Result<bool> {
        let topics = directory.join(TOPICS);
        Ok(disk.exists(&topics.join(directory_name(topic)))?)
    }

    fn open_topic(
        &self,
        name: &str,
        lost: &Path,
        covered: &dyn Fn(&str) -> Option<Index>,
    ) -> Result<(Running, Option<CutTail>, Vec<PassedOver>)> {
        let directory = self.topics_directory.join(directory_name(name));
        // A torn tail is kept aside, which takes room. Opening may begin anew wherever it ended.
        let opens = || open_topic(&*self.disk, name, &directory, lost, covered);
        let recovered = self.reserve.in_need(opens)?;
        let topic = self.with_room(directory, recovered.tail, recovered.files, recovered.reach);
        let running = Running::start(topic, self.options.drive, &self.lock)?;
        Ok((running, recovered.cut, recovered.passed_over))
    }

    fn with_room(
        &self,
        directory: PathBuf,
        tail: Tail,
        files: Vec<Arc<Segment>>,
        reach: Reach,
    ) -> Topic {
        let room = self.reserve.clone();
        Topic::new(self.disk.clone(), directory, self.options, room, tail, files, reach)
    }

    /// Makes the topic so that its next entry gets the index `first`.
    fn new_topic(&self, name: &str, first: u64) -> Result<Running> {
        let directory = self.topics_directory.join(directory_name(name));
        let making =
            |e: std::io::Error| Error::from(e).context(format_args!("make topic `{name}`"));
        let makes = || create_dir_durable(&*self.disk, &directory, 1, "log.topic-name");
        if self.reserve.is_needed(name) {
            self.reserve.in_need(makes).map_err(making)?;
        } else {
            let room = self.reserve.others_may_grow();
            let refused = room.map_err(|e| e.context(format_args!("make topic `{name}`")));
            refused.inspect_err(|e| self.reserve.refused(e))?;
            makes().map_err(making)?;
        }
        let tail = Tail {
            topic: name.to_owned(),
            topic_hash: hash(name),
            first,
            next: first,
            chain: 0,
            capacity: 0,
            segments: Vec::new(),
            closed: true,
        };
        if first > 1 {
            write_trim_mark(&*self.disk, &self.reserve, &directory, name, first)?;
        }
        let topic = self.with_room(directory, tail, Vec::new(), Reach::of(None));
        topic.fill_spare();
        Running::start(topic, self.options.drive, &self.lock)
    }

    fn topic(&self, name: &str) -> Result<Arc<Running>> {
        let topics = self.topics.held_shared();
        match topics.get(name) {
            Some(running) => running.clone(),
            None => {
                Err(Error::not_found(format!("topic `{name}` does not exist: create it first")))
            }
        }
    }

    /// Makes a topic whose first entry has another index than 1.
    pub(crate) fn create_from(&self, topic: &str, first: Index) -> Result<()> {
        let mut topics = self.topics.held_alone();
        assert!(!topics.contains_key(topic), "topic `{topic}` is there already");
        topics.insert(topic.to_owned(), Ok(Arc::new(self.new_topic(topic, first.0)?)));
        Ok(())
    }

    /// With [`Drive::Pump`]: performs what is pending, one step a topic; false if nothing was.
    pub fn pump(&self) -> bool {
        let running: Vec<_> = {
            let topics = self.topics.held_shared();
            topics.values().flatten().cloned().collect()
        };
        running.iter().fold(false, |any, r| r.topic.pump() | any)
    }

    /// Makes again what was given up of the room for need, where there is some; for whoever keeps
    /// house, now and then.
    pub fn refill_reserve(&self) {
        self.reserve.refill();
    }

    /// Fails where the disk is so full that only what frees space should be appended.
    pub fn check_room(&self) -> Result<()> {
        self.reserve.check()
    }

    /// What is refused for want of room on the log's disk, and what to do, in one sentence.
    pub fn shortage(&self) -> Option<String> {
        self.reserve.shortage()
    }

    /// Reads every durable entry of every topic, and gives what cannot be read, by topic. Takes as long
    /// as the log is large: opening looks at the headers of most files only.
    pub fn verify(&self) -> Vec<(String, Error)> {
        let running: Vec<(String, Arc<Running>)> = {
            let topics = self.topics.held_shared();
            let opened = |(name, opened): (&String, &Result<Arc<Running>>)| {
                Some((name.clone(), opened.as_ref().ok()?.clone()))
            };
            topics.iter().filter_map(opened).collect()
        };
        let bad = running.into_iter().flat_map(|(name, running)| {
            let bad = read::verify(&running.topic);
            bad.into_iter().map(move |e| (name.clone(), e))
        });
        bad.collect()
    }

    /// The first index of each segment of a topic that is kept, and its bytes, in order.
    pub fn segments(&self, topic: &str) -> Result<Vec<(Index, u64)>> {
        let running = self.topic(topic)?;
        let state = running.topic.lock();
        let segments = state.core.segments().iter();
        Ok(segments.map(|s| (Index(s.first), s.end - SECTOR)).collect())
    }

    /// Torn tails that opening has cut, and where their bytes are kept.
    pub fn recovered(&self) -> &[CutTail] {
        &self.cuts
    }

    /// Topics that could not be opened, and why: nobody reads or appends to them.
    pub fn refused(&self) -> Vec<(String, Error)> {
        let topics = self.topics.held_shared();
        let why = |(name, opened): (&String, &Result<Arc<Running>>)| {
            Some((name.clone(), opened.as_ref().err()?.clone()))
        };
        topics.iter().filter_map(why).collect()
    }

    /// Damage that opening has passed over, because a snapshot covers it.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.passed_over
    }
}

impl Log for EmbeddedLog {
    fn create(&self, topic: &str) -> Result<()> {
        check_topic(topic)?;
        let mut topics = self.topics.held_alone();
        match topics.get(topic) {
            Some(Ok(_)) => Ok(()),
            Some(Err(e)) => Err(e.clone()),
            None => {
                let (count, limit) = (topics.len(), self.options.topics_max);
                let is_needed = self.options.needed.is_some_and(|needed| needed(topic));
                if count >= limit && !is_needed && !planted!("log.topics-without-end") {
                    return Err(Error::full(format!(
                        "make topic `{topic}`: the log has {count}, and takes {limit}: append to \
                         one that is there"
                    )));
                }
                let running = self.new_topic(topic, 1)?;
                topics.insert(topic.to_owned(), Ok(Arc::new(running)));
                Ok(())
            }
        }
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        if entries.is_empty() {
            return done(Err(Error::invalid(format!(
                "append to topic `{topic}`: no entries: pass at least one"
            ))));
        }
        match self.topic(topic) {
            Ok(running) => running.topic.append(entries, mode == Mode::Synced, done),
            Err(e) => done(Err(e)),
        }
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        read::read(&self.topic(topic)?.topic, from, entries_max, bytes_max, scope)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        let running = match self.topic(topic) {
            Ok(running) => running,
            Err(e) => return wake(Err(e)),
        };
        let mut state = running.topic.lock();
        let now = match state.core.failed() {
            _ if from.0 < state.core.durable() => Ok(()),
            Some(e) => Err(e),
            None => return state.tails.push((from.0, wake)),
        };
        drop(state);
        wake(now);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        let running = self.topic(topic)?;
        let (send, receive) = mpsc::channel();
        let done = Box::new(move |result: Result<Indices>| {
            // The receiver is waiting below, or its thread is gone; either is fine.
            let _ = send.send(result);
        });
        running.topic.append(Vec::new(), true, done);
        if self.options.drive == Drive::Pump {
            while running.topic.pump() {}
        }
        let closed = |_| Error::retry(format!("sync topic `{topic}`: the log was closed"));
        receive.recv().map_err(closed)?.map(|_| ())
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.topic(topic)?.topic.trim(before.0)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        let running = self.topic(topic)?;
        let state = running.topic.lock();
        Ok(Info {
            first: Index(state.core.first()),
            next: Index(state.core.next()),
            durable: Index(state.core.durable()),
            bytes: state.core.segments().iter().map(|s| s.end - SECTOR).sum(),
            segments: state.core.segments().len(),
        })
    }

    fn topics(&self) -> Vec<String> {
        let topics = self.topics.held_shared();
        topics.keys().cloned().collect()
    }
}

impl EmbeddedLog {
    /// Bytes of a topic's entries from an index on, with their framing: of what is kept, to the commit
    /// that the entry lies in where that is known, else to its segment. Reads nothing.
    pub fn bytes_behind(&self, topic: &str, index: Index) -> Result<u64> {
        let running = self.topic(topic)?;
        let state = running.topic.lock();
        Ok(state.core.bytes_behind(index.0))
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        let topics = std::mem::take(self.topics.get_mut().expect("no holder panics"));
        let running: Vec<_> = topics.into_values().flatten().collect();
        running.iter().for_each(|r| r.topic.stop());
        for r in running {
            match Arc::into_inner(r).map(|r| (r.committer, r.topic)) {
                // A callback may hold the last reference; then this is the committer itself,
                // which closes its topic when all is committed, and ends on its own.
                Some((Some(committer), _)) if !committer.is_current() => committer.join(),
                Some((None, topic)) => topic.close(),
                _ => {}
            }
        }
    }
}
