//! One topic's engine without its effects: what is staged, which commit comes next and where,
//! what is durable, who is acknowledged. Holds no file, thread or clock; the driver performs the
//! [`Step`]s it hands out, one at a time, and reports back. `A` is whatever an append waits with.

use crate::format::{COMMIT_PAYLOAD_BYTES_MAX, CommitHeader, SECTOR, commit_bytes, framed_bytes};
use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Indices, Kind, Result};
use std::collections::VecDeque;

/// Staged and not yet committed bytes of one topic; past it appends are told to come back.
pub const PENDING_BYTES_MAX: usize = 256 << 20;
/// Ordered appends wait for the disk when this many times the background sync's limit is unsynced.
const UNSYNCED_FACTOR: u64 = 4;
/// A segment's index remembers one commit for each run of this many bytes.
const MARK_BYTES: u64 = 64 << 10;

const _: () = assert!(PENDING_BYTES_MAX > 2 * COMMIT_PAYLOAD_BYTES_MAX);

/// One append.
pub struct Staged<A> {
    /// Empty for a bare sync.
    pub entries: Vec<Vec<u8>>,
    bytes: usize,
    synced: bool,
    ack: A,
}

/// How a commit reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// One durable write: everything before it is durable already.
    Durable,
    /// A plain write; a later sync makes it durable.
    Plain,
    /// A plain write and a sync, which covers the unsynced commits before it too. (A durable
    /// write behind unsynced commits could survive a power cut that takes them.)
    PlainThenSync,
    /// Nothing to write, only to sync.
    SyncOnly,
    /// Nothing at all: a sync was asked for and all is durable.
    Nothing,
}

pub struct Commit<A> {
    /// Count, payload length and checksums are filled in when the commit is encoded.
    pub header: CommitHeader,
    pub write: Write,
    pub staged: Vec<Staged<A>>,
    pub payload_bytes: usize,
}

impl<A> Commit<A> {
    pub fn entries(&self) -> impl Iterator<Item = &[u8]> {
        self.staged.iter().flat_map(|s| s.entries.iter().map(Vec::as_slice))
    }
}

/// What the driver is to do next.
pub enum Step<A> {
    Commit(Commit<A>),
    /// Start a segment whose first entry is `first`; sync the old one before, if asked.
    Roll {
        first: u64,
        chain: u32,
        sync_before: bool,
        /// What the entries that wait need of it, with its header.
        bytes_min: u64,
    },
    /// Make the entries below the index durable. Plain commits may go on meanwhile.
    Sync {
        below: u64,
        bytes: u64,
    },
}

/// Why a step did not happen.
#[derive(Debug)]
pub enum Failure {
    /// No space or no descriptor, and nothing acknowledged is in doubt: refuse, go on.
    Full(Error),
    /// What is on disk is not known any more: read-only until restart.
    Fatal(Error),
}

/// A segment as readers find their way in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    pub first: u64,
    /// Where the next commit starts; before a survey, where the file ends.
    pub end: u64,
    /// (first index, position) of some commits, ascending; none before a survey.
    marks: Option<Vec<(u64, u64)>>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of its segment.
    pub first: u64,
    pub end: u64,
    /// Of its commit, or one before it; `None` until the segment is surveyed.
    pub position: Option<u64>,
}

impl SegmentMeta {
    pub fn new(first: u64) -> SegmentMeta {
        SegmentMeta { first, end: SECTOR, marks: Some(Vec::new()) }
    }

    /// Of a segment in which nothing in front of `position` is needed.
    pub fn from(first: u64, position: u64) -> SegmentMeta {
        SegmentMeta { end: position, ..SegmentMeta::new(first) }
    }

    /// Of a segment that another one follows: nobody has looked at its commits since the start.
    pub fn unsurveyed(first: u64, file_bytes: u64) -> SegmentMeta {
        SegmentMeta { first, end: file_bytes, marks: None }
    }

    pub fn note(&mut self, header: &CommitHeader) {
        let marks = self.marks.get_or_insert_default();
        let far = |&(_, position): &(u64, u64)| header.position >= position + MARK_BYTES;
        // Nobody looks for a closing commit.
        if header.count > 0 && marks.last().is_none_or(far) {
            marks.push((header.first, header.position));
        }
        self.end = header.end();
    }
}

/// Where a topic's log ends, as recovery found it.
pub struct Tail {
    pub topic: String,
    pub topic_hash: u64,
    pub first: u64,
    pub next: u64,
    pub chain: u32,
    /// Length of the last segment; 0 when there is none yet.
    pub capacity: u64,
    pub segments: Vec<SegmentMeta>,
    /// What it ends with is durable, and says so itself: a closing commit, or a segment that has
    /// none yet.
    pub closed: bool,
}

pub struct Core<A> {
    tail: Tail,
    durable: u64,
    /// Written and not yet synced.
    unsynced_bytes: u64,
    unsynced_bytes_max: u64,
    segment_bytes: u64,
    queue: VecDeque<Staged<A>>,
    queue_bytes: usize,
    /// A commit or roll is being performed, or its acknowledgements delivered.
    busy: bool,
    failed: Option<String>,
}

/// Acknowledgements to deliver, in order.
pub type Acks<A> = Vec<(A, Result<Indices>)>;

impl<A> Core<A> {
    pub fn new(tail: Tail, segment_bytes: u64, unsynced_bytes_max: u64) -> Core<A> {
        Core {
            durable: tail.next,
            tail,
            unsynced_bytes: 0,
            unsynced_bytes_max,
            segment_bytes,
            queue: VecDeque::new(),
            queue_bytes: 0,
            busy: false,
            failed: None,
        }
    }

    /// Takes an append into the queue, or hands its `ack` back with the refusal.
    pub fn stage(
        &mut self,
        entries: Vec<Vec<u8>>,
        synced: bool,
        ack: A,
    ) -> std::result::Result<(), (A, Error)> {
        let bytes = entries.iter().map(|e| framed_bytes(e)).sum();
        match self.check(&entries, bytes) {
            Ok(()) => {
                self.queue_bytes += bytes;
                self.queue.push_back(Staged { entries, bytes, synced, ack });
                Ok(())
            }
            Err(e) => Err((ack, e)),
        }
    }

    fn check(&self, entries: &[Vec<u8>], bytes: usize) -> Result<()> {
        let topic = &self.tail.topic;
        if let Some(reason) = &self.failed {
            return Err(read_only(topic, reason));
        }
        if let Some(long) = entries.iter().find(|e| e.len() > ENTRY_BYTES_MAX) {
            return Err(Error::invalid(format!(
                "append to topic `{topic}`: an entry of {} bytes is longer than {ENTRY_BYTES_MAX}: split it",
                long.len()
            )));
        }
        let bytes_max = COMMIT_PAYLOAD_BYTES_MAX
            .min((self.segment_bytes - SECTOR) as usize - crate::format::COMMIT_HEADER_BYTES);
        if bytes > bytes_max {
            return Err(Error::invalid(format!(
                "append to topic `{topic}`: {bytes} bytes at once are more than {bytes_max}: append fewer entries a call"
            )));
        }
        if self.queue_bytes + bytes > PENDING_BYTES_MAX {
            return Err(Error::retry(format!(
                "append to topic `{topic}`: {} bytes wait to be written already: slow down and try again",
                self.queue_bytes
            )));
        }
        Ok(())
    }

    /// The next thing to do; `lazy` says that unsynced commits have waited long enough. Until a
    /// commit's or roll's completion and [`Core::idle`] there is no further one.
    pub fn step(&mut self, lazy: bool) -> Option<Step<A>> {
        if self.busy || self.failed.is_some() {
            return None;
        }
        let Some(head) = self.queue.front() else {
            let due = lazy || self.unsynced_bytes >= self.unsynced_bytes_max;
            return (due && self.unsynced_bytes > 0)
                .then_some(Step::Sync { below: self.tail.next, bytes: self.unsynced_bytes });
        };
        let position = self.position();
        let room = self.tail.capacity.saturating_sub(position);
        self.busy = true;
        if commit_bytes(head.bytes) > room && !head.entries.is_empty() {
            return Some(Step::Roll {
                first: self.tail.next,
                chain: self.tail.chain,
                sync_before: self.unsynced_bytes > 0,
                bytes_min: SECTOR + commit_bytes(head.bytes),
            });
        }
        // Late unsynced commits ride on this one's sync, so that a busy queue cannot starve them.
        let mut synced = lazy && self.unsynced_bytes > 0;
        let (mut staged, mut payload_bytes) = (Vec::new(), 0);
        while let Some(next) = self.queue.front() {
            let with = payload_bytes + next.bytes;
            let fits = with <= COMMIT_PAYLOAD_BYTES_MAX && commit_bytes(with) <= room;
            if !fits && with > 0 {
                break;
            }
            payload_bytes = with;
            synced |= next.synced;
            staged.extend(self.queue.pop_front());
        }
        self.queue_bytes -= payload_bytes;
        let write = self.write_of(payload_bytes > 0, synced);
        let header = self.next_header();
        Some(Step::Commit(Commit { header, write, staged, payload_bytes }))
    }

    fn next_header(&self) -> CommitHeader {
        CommitHeader {
            topic_hash: self.tail.topic_hash,
            first: self.tail.next,
            durable: self.durable,
            position: self.position(),
            count: 0,
            payload_bytes: 0,
            chain: self.tail.chain,
            payload_crc: 0,
        }
    }

    fn write_of(&self, entries: bool, synced: bool) -> Write {
        let unsynced = self.unsynced_bytes > 0;
        let flooded = self.unsynced_bytes >= UNSYNCED_FACTOR * self.unsynced_bytes_max;
        match (entries, synced || flooded, unsynced) {
            (true, true, false) => Write::Durable,
            (true, true, true) => Write::PlainThenSync,
            (true, false, _) => Write::Plain,
            (false, _, true) => Write::SyncOnly,
            (false, _, false) => Write::Nothing,
        }
    }

    /// The closing commit, once everything is durable and nothing more will come: without entries,
    /// it says that what is before it was durable. Else a flipped bit in the last commit would
    /// look like a torn one. `None` if none is needed, or there is no room.
    pub fn step_close(&mut self) -> Option<Commit<A>> {
        let room = self.tail.capacity.saturating_sub(self.position());
        let ready = !self.busy && self.failed.is_none() && self.queue.is_empty();
        if !ready || self.unsynced_bytes > 0 || self.tail.closed || room < commit_bytes(0) {
            return None;
        }
        self.busy = true;
        let (header, staged) = (self.next_header(), Vec::new());
        Some(Commit { header, write: Write::Durable, staged, payload_bytes: 0 })
    }

    /// A commit that the appending thread may perform itself, because it needs no wait: one
    /// ordered append, nothing before it, room in the segment.
    pub fn step_inline(&mut self) -> Option<Commit<A>> {
        if self.queue.len() != 1 {
            return None;
        }
        let only = self.queue.front()?;
        let room = self.tail.capacity.saturating_sub(self.position());
        let alone = !only.synced && !self.busy && commit_bytes(only.bytes) <= room;
        if !alone || self.write_of(true, false) != Write::Plain {
            return None;
        }
        match self.step(false) {
            Some(Step::Commit(commit)) => Some(commit),
            _ => None,
        }
    }

    /// The commit's outcome: its header and CRC as encoded, when there was something to write.
    pub fn completed(
        &mut self,
        commit: Commit<A>,
        outcome: std::result::Result<Option<(CommitHeader, u32)>, Failure>,
    ) -> Acks<A> {
        match outcome {
            Ok(written) => {
                let mut index = self.tail.next;
                if let Some((header, crc)) = written {
                    assert_eq!(header.first, self.tail.next, "commits complete in order");
                    let segment = self.tail.segments.last_mut().expect("a commit has a segment");
                    segment.note(&header);
                    self.tail.next = header.next();
                    self.tail.chain = crc;
                    self.tail.closed = header.count == 0;
                    self.unsynced_bytes += commit_bytes(commit.payload_bytes);
                }
                if commit.write != Write::Plain {
                    self.durable = self.tail.next;
                    self.unsynced_bytes = 0;
                }
                let ack = |s: Staged<A>| {
                    let first = index;
                    index += s.entries.len() as u64;
                    (s.ack, Ok(Indices::run(Index(first), s.entries.len())))
                };
                commit.staged.into_iter().map(ack).collect()
            }
            Err(Failure::Full(e)) => {
                commit.staged.into_iter().map(|s| (s.ack, Err(e.clone()))).collect()
            }
            Err(Failure::Fatal(e)) => {
                let e = self.fail(e);
                let mut acks: Acks<A> =
                    commit.staged.into_iter().map(|s| (s.ack, Err(e.clone()))).collect();
                acks.extend(self.drain(&e));
                acks
            }
        }
    }

    /// The roll's outcome: the new segment's length and header CRC. A failure refuses what waits.
    pub fn rolled(&mut self, outcome: std::result::Result<(u64, u32), Failure>) -> Acks<A> {
        match outcome {
            Ok((capacity, chain)) => {
                self.tail.segments.push(SegmentMeta::new(self.tail.next));
                (self.tail.capacity, self.tail.chain) = (capacity, chain);
                self.tail.closed = true;
                (self.durable, self.unsynced_bytes) = (self.tail.next, 0);
                Vec::new()
            }
            Err(Failure::Full(e)) => self.drain(&e),
            Err(Failure::Fatal(e)) => {
                let e = self.fail(e);
                self.drain(&e)
            }
        }
    }

    pub fn synced(&mut self, below: u64, bytes: u64, outcome: Result<()>) -> Acks<A> {
        match outcome {
            Ok(()) => {
                self.durable = self.durable.max(below);
                self.unsynced_bytes = self.unsynced_bytes.saturating_sub(bytes);
                Vec::new()
            }
            Err(e) => {
                let e = self.fail(e);
                self.drain(&e)
            }
        }
    }

    /// The last step's acknowledgements are delivered: the next may begin.
    pub fn idle(&mut self) {
        self.busy = false;
    }

    fn fail(&mut self, e: Error) -> Error {
        let reason = self.failed.get_or_insert(e.message);
        read_only(&self.tail.topic, reason)
    }

    fn drain(&mut self, e: &Error) -> Acks<A> {
        self.queue_bytes = 0;
        self.queue.drain(..).map(|s| (s.ack, Err(e.clone()))).collect()
    }

    fn position(&self) -> u64 {
        self.tail.segments.last().map_or(0, |s| s.end)
    }

    /// The segment and commit position at or before `index`, to read from there on.
    pub fn locate(&self, index: u64) -> Option<Place> {
        let at = self.tail.segments.partition_point(|s| s.first <= index).checked_sub(1)?;
        let segment = &self.tail.segments[at];
        let position = match &segment.marks {
            Some(marks) => Some(marks[marks.partition_point(|m| m.0 <= index).checked_sub(1)?].1),
            None => None,
        };
        Some(Place { first: segment.first, end: segment.end, position })
    }

    /// Bytes from the commit on that has `index`, or the segment where commits are not known; all that are
    /// kept, if it was trimmed.
    pub fn bytes_behind(&self, index: u64) -> u64 {
        let of = |segment: &SegmentMeta| segment.end - SECTOR;
        let Some(place) = self.locate(index) else {
            return self.tail.segments.iter().map(of).sum();
        };
        let later = self.tail.segments.iter().filter(|s| s.first > place.first).map(of);
        place.end - place.position.unwrap_or(SECTOR) + later.sum::<u64>()
    }

    /// The first entry behind the segment that begins with `first`.
    pub fn following(&self, first: u64) -> Option<u64> {
        let at = self.tail.segments.partition_point(|s| s.first <= first);
        self.tail.segments.get(at).map(|s| s.first)
    }

    /// What a survey of a segment has found; it may have been trimmed meanwhile.
    pub fn surveyed(&mut self, found: SegmentMeta) {
        let known = self.tail.segments.iter_mut().find(|s| s.first == found.first);
        if let Some(known) = known.filter(|s| s.marks.is_none()) {
            *known = found;
        }
    }

    /// Raises the first index to `before` and returns the segments that it leaves behind.
    pub fn trim(&mut self, before: u64) -> Vec<u64> {
        self.tail.first = self.tail.first.max(before);
        let kept = self.tail.segments.partition_point(|s| s.first <= before).saturating_sub(1);
        self.tail.segments.drain(..kept).map(|s| s.first).collect()
    }

    pub fn first(&self) -> u64 {
        self.tail.first
    }

    pub fn next(&self) -> u64 {
        self.tail.next
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }

    pub fn failed(&self) -> Option<Error> {
        self.failed.as_ref().map(|reason| read_only(&self.tail.topic, reason))
    }

    pub fn has_unsynced(&self) -> bool {
        self.unsynced_bytes > 0
    }

    pub fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.unsynced_bytes >= self.unsynced_bytes_max
    }

    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The active segment is more than half full: time to prepare the next.
    pub fn wants_spare(&self) -> bool {
        self.position() > self.tail.capacity / 2 && self.failed.is_none()
    }

    pub fn segments(&self) -> &[SegmentMeta] {
        &self.tail.segments
    }
}

fn read_only(topic: &str, reason: &str) -> Error {
    Error::new(
        Kind::ReadOnly,
        format!(
            "append to topic `{topic}`: it is read-only since a write failed ({reason}): check the disk and restart"
        ),
    )
}

#[cfg(test)]
mod tests;
