//! The store's journal: small durable appends to raw chunks of all files share its commits. They
//! are acknowledged from here, kept in memory, and written to their chunks' files later, many in
//! one commit (`writeback.rs`); a segment is used again once all of it is durable in the files.
//! Recovery (`load.rs`) writes to the files what the journal has and they have not.
//!
//! **Invariants.** One batch is in flight. A batch is written behind the last one of its segment,
//! never over what a file may miss. Whoever holds this lock takes no chunk's lock.

use crate::commit;
use crate::disk::DiskStore;
use crate::format::{SECTOR, VERSION};
use crate::journal_format::{
    BATCH_HEADER_BYTES, BatchHeader, RecordHeader, SegmentHeader, record_bytes,
};
use crate::names;
use crate::open::{Due, Open};
use crate::writeback;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::{KIB, MIB};
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Access;
use holdfast_env::planted;
use holdfast_env::sockets::is_out_of_descriptors;
use holdfast_env::sync::{Condvar, Mutex, MutexGuard};
use holdfast_env::trial::Knob;
use holdfast_env::{File, HoldMutex};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Segments: one takes batches while the appends of the others go to their files.
pub const SEGMENTS: u64 = 4;
/// What waits for one batch at most; beyond it appends go straight to their files.
static BATCH_BYTES_MAX: Knob = Knob::new("chunk.journal-batch-bytes", MIB, &[4096, 12_288, 20_480]);
/// Larger appends go straight to their files: they would only be written twice.
static BODY_BYTES_MAX: Knob = Knob::new("chunk.journal-body-bytes", 64 * KIB, &[1000, 4096, 9000]);

/// Whether an append of so many bytes is one for a journal.
pub fn is_small(bytes: u64) -> bool {
    let small = bytes <= BODY_BYTES_MAX.get();
    if !small {
        BODY_BYTES_MAX.cross();
    }
    small
}

/// A journal takes at most this part of its store.
const CAPACITY_SHARE: u64 = 16;

pub struct Journal {
    /// Of one segment; 0 when the store has no journal.
    segment_bytes: u64,
    state: Mutex<State>,
    /// The journal's thread waits here for appends; told only while it waits.
    work: Condvar,
    /// It waits here for a segment to become clean.
    cleaned: Condvar,
    /// The write-back's thread waits here for chunks that are due and segments to clean.
    later: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    staging: Staging,
    /// The other buffer, while no batch is in flight.
    spare: Option<Staging>,
    thread_waits: bool,
    segments: Vec<Segment>,
    current: usize,
    /// Of the current segment's use.
    header: Option<SegmentHeader>,
    sequence: u64,
    /// Where the next batch begins.
    at: u64,
    /// Chunks whose files miss much.
    due: VecDeque<Arc<Open>>,
    broken: bool,
    stop: bool,
    /// Its thread has ended: nothing new becomes due.
    ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// There is none, and none will be made.
    Off,
    /// Nobody has asked for one: files of a journal are made with the first append for it.
    #[default]
    Unmade,
    Wanted,
    Ready,
}

struct Segment {
    file: Arc<dyn File>,
    /// Of its use.
    number: u64,
    /// Chunks with appends in it, each once. Weak: those of a sealed or unlinked one are settled,
    /// and its file is to be closed.
    dirty: Vec<Weak<Open>>,
    /// All of it is durable in the files.
    clean: bool,
}

/// What the write-back does next.
pub enum Later {
    /// Write to this chunk's file what it misses, unless somebody has taken it up before.
    Write(Arc<Open>),
    /// Make durable in this chunk's file what a use of a segment holds of it.
    Checkpoint(Weak<Open>, u64),
}

/// A batch to be.
struct Staging {
    buf: AlignedBuf,
    len: usize,
    /// Whose the records are, in order.
    opens: Vec<Arc<Open>>,
}

impl Default for Staging {
    fn default() -> Staging {
        Staging { buf: AlignedBuf::zeroed(0), len: BATCH_HEADER_BYTES, opens: Vec::new() }
    }
}

impl Staging {
    fn clear(&mut self) {
        self.opens.clear();
        self.len = BATCH_HEADER_BYTES;
    }
}

impl Journal {
    pub fn new(segment_bytes: u64, capacity_bytes: u64) -> Journal {
        let fits = segment_bytes * SEGMENTS <= capacity_bytes / CAPACITY_SHARE;
        let on = segment_bytes >= 4 * SECTOR && fits;
        let phase = if on { Phase::Unmade } else { Phase::Off };
        Journal {
            segment_bytes,
            state: Mutex::new(State { phase, ..State::default() }),
            work: Condvar::new(),
            cleaned: Condvar::new(),
            later: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    fn batch_bytes_max(&self) -> usize {
        BATCH_BYTES_MAX.get().min(self.segment_bytes - SECTOR) as usize
    }

    /// Takes an append to `open` into the next batch; false: it must go to its file. Called under
    /// the chunk's lock, so that the chunk's appends come here in their order.
    pub fn stage(&self, open: &Arc<Open>, at: u64, body: &[u8]) -> bool {
        let mut state = self.lock();
        match state.phase {
            Phase::Ready => {}
            Phase::Unmade => {
                state.phase = Phase::Wanted;
                self.wake(&mut state);
                return false;
            }
            Phase::Off | Phase::Wanted => return false,
        }
        let staging = &mut state.staging;
        let end = staging.len + record_bytes(body.len());
        if end > self.batch_bytes_max() {
            BATCH_BYTES_MAX.cross();
            return false;
        }
        let record = RecordHeader {
            chunk: open.header.chunk,
            nonce: open.header.nonce,
            at,
            bytes: body.len() as u32,
            zero: 0,
        };
        record.encode_into(body, &mut staging.buf[staging.len..end]);
        staging.len = end;
        staging.opens.push(open.clone());
        self.wake(&mut state);
        true
    }

    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.thread_waits) {
            self.work.notify_one();
        }
    }

    /// What the write-back is to do, if anything. It calls again when that is done: then the last
    /// chunk of a segment's list is, too.
    pub fn next_later(&self) -> Option<Later> {
        self.lock().next_later(&self.cleaned)
    }

    /// As [`Journal::next_later`], waiting for it; `None` when the store ends.
    pub fn wait_later(&self) -> Option<Later> {
        let mut state = self.lock();
        loop {
            let later = state.next_later(&self.cleaned);
            if later.is_some() || state.ended {
                return later;
            }
            state = self.later.wait(state).expect("no holder of this lock panics");
        }
    }

    /// The store takes no writes any more: nobody cleans segments.
    pub fn store_broke(&self) {
        let mut state = self.lock();
        // Those that are not clean never will be.
        state.segments.iter_mut().for_each(|segment| segment.dirty.clear());
        state.broken = true;
        self.cleaned.notify_all();
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
    }
}

impl State {
    fn next(&self) -> usize {
        (self.current + 1) % self.segments.len()
    }

    fn next_later(&mut self, cleaned: &Condvar) -> Option<Later> {
        if let Some(open) = self.due.pop_front() {
            return Some(Later::Write(open));
        }
        // One segment ahead of need; the others give their chunks time to gather more.
        if self.header.is_none() || self.broken {
            return None;
        }
        let next = self.next();
        let segment = &mut self.segments[next];
        if segment.clean {
            return None;
        }
        if let Some(open) = segment.dirty.pop() {
            return Some(Later::Checkpoint(open, segment.number));
        }
        segment.clean = true;
        cleaned.notify_all();
        None
    }
}

/// The journal's thread: until the store ends.
pub fn run(store: &DiskStore) {
    commit::mark_commit_thread();
    let journal = &store.journal;
    loop {
        while commit(store) {}
        let mut state = journal.lock();
        if !state.staging.opens.is_empty() {
            continue;
        }
        if state.stop {
            state.ended = true;
            return journal.later.notify_all();
        }
        if state.phase != Phase::Wanted {
            state.thread_waits = true;
            drop(journal.work.wait(state).expect("no holder of this lock panics"));
        }
    }
}

/// Makes the journal if one is wanted, or writes what is staged as one batch and acknowledges it;
/// false if there was nothing to do.
pub fn commit(store: &DiskStore) -> bool {
    let journal = &store.journal;
    let mut state = journal.lock();
    if state.phase == Phase::Wanted {
        drop(state);
        make(store);
        return true;
    }
    if state.staging.opens.is_empty() {
        return false;
    }
    let spare = state.spare.take().unwrap_or_default();
    let mut batch = std::mem::replace(&mut state.staging, spare);
    drop(state);
    let written = write(store, &mut batch);
    let (mut dirty, mut due) = (Vec::new(), Vec::new());
    for open in batch.opens.drain(..) {
        let ended = open.journal_ended(&written);
        if ended.first_in_use {
            dirty.push(Arc::downgrade(&open));
        }
        match ended.due {
            Some(Due::Now) => store.queue.push(open),
            Some(Due::Later) => due.push(open),
            None => {}
        }
    }
    batch.clear();
    let tell = !due.is_empty();
    let mut state = journal.lock();
    if written.is_ok() {
        let current = state.current;
        state.segments[current].dirty.extend(dirty);
    }
    state.due.extend(due);
    state.spare = Some(batch);
    drop(state);
    if tell {
        journal.later.notify_one();
    }
    true
}

/// Answers the number of the segment's use.
fn write(store: &DiskStore, batch: &mut Staging) -> Result<u64> {
    store.writable()?;
    let journal = &store.journal;
    let padded = batch.len.next_multiple_of(SECTOR_BYTES);
    if journal.lock().at + padded as u64 > journal.segment_bytes {
        turn(store)?;
    }
    let mut state = journal.lock();
    let (current, offset) = (state.current, state.at);
    let Some(header) = state.header else {
        return Err(Error::bug("write to the journal: it has no segment"));
    };
    state.sequence += 1;
    BatchHeader::seal(&header, state.sequence, offset, &mut batch.buf[..batch.len]);
    batch.buf[batch.len..padded].fill(0);
    assert!(!state.segments[current].clean, "a batch goes into the segment that is in use");
    state.at += padded as u64;
    assert!(state.at <= journal.segment_bytes, "a batch stays in its segment");
    let file = state.segments[current].file.clone();
    drop(state);
    file.write_at_durable(&batch.buf[..padded], offset, "chunk.journal-batch")
        .map_err(|e| store.write_broke(format_args!("write to the journal"), e))?;
    Ok(header.number)
}

/// Goes on in the next segment, once it is clean.
fn turn(store: &DiskStore) -> Result<()> {
    let journal = &store.journal;
    let mut state = journal.lock();
    let next = state.next();
    while !state.segments[next].clean {
        store.writable()?;
        if store.inline {
            drop(state);
            while writeback::step(store) {}
            state = journal.lock();
        } else {
            state = journal.cleaned.wait(state).expect("no holder of this lock panics");
        }
    }
    let header = SegmentHeader {
        version: VERSION,
        store: store.id,
        number: state.header.map_or(0, |h| h.number) + 1,
        previous_end: state.header.map_or(0, |_| state.at),
    };
    let file = state.segments[next].file.clone();
    assert!(state.segments[next].dirty.is_empty(), "a clean segment is nobody's");
    drop(state);
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    header.encode_sector(&mut sector);
    file.write_at_durable(&sector, 0, "chunk.journal-turn")
        .map_err(|e| store.write_broke(format_args!("start a segment of the journal"), e))?;
    let mut state = journal.lock();
    state.header = Some(header);
    (state.current, state.at, state.sequence) = (next, SECTOR, 0);
    (state.segments[next].clean, state.segments[next].number) = (false, header.number);
    drop(state);
    journal.later.notify_one();
    Ok(())
}

/// Makes the journal's files. A store without room for them goes on without a journal.
fn make(store: &DiskStore) {
    let made = make_files(store);
    let journal = &store.journal;
    let mut state = journal.lock();
    let files = match made {
        Ok(files) => files,
        Err(phase) => {
            state.phase = phase;
            return;
        }
    };
    let segment = |file| Segment { file, number: 0, dirty: Vec::new(), clean: true };
    state.segments = files.into_iter().map(segment).collect();
    // As if the last one were full: the first batch turns to the first segment.
    (state.current, state.at) = (SEGMENTS as usize - 1, journal.segment_bytes);
    let buf = || AlignedBuf::zeroed(journal.batch_bytes_max());
    state.staging.buf = buf();
    state.spare = Some(Staging { buf: buf(), ..Staging::default() });
    state.phase = Phase::Ready;
}

/// The files, or what the journal is without them: where connections have taken the last
/// descriptor, the next append asks for it again.
fn make_files(store: &DiskStore) -> std::result::Result<Vec<Arc<dyn File>>, Phase> {
    let bytes = store.journal.segment_bytes;
    store.take_space(SEGMENTS * bytes, false).map_err(|_| Phase::Off)?;
    let paths: Vec<PathBuf> =
        (0..SEGMENTS).map(|i| store.dir.join(names::journal(i as u8))).collect();
    let make = || -> std::io::Result<Vec<Arc<dyn File>>> {
        // All are there before one is filled: what fails for want of a descriptor costs little.
        let create = |path: &PathBuf| store.disk.create(path, Access::Direct);
        let files = paths.iter().map(create).collect::<std::io::Result<Vec<_>>>()?;
        files.iter().try_for_each(|file| fill(&**file, bytes))?;
        store.disk.sync_dir(&store.dir, "chunk.journal-name")?;
        Ok(files)
    };
    make().map_err(|e| {
        for path in &paths {
            // Best effort: the next start removes them.
            let _ = store.disk.remove(path);
        }
        store.give_space(SEGMENTS * bytes);
        let passes = is_out_of_descriptors(&e) && !planted!("chunk.descriptors-end-journal");
        if passes { Phase::Unmade } else { Phase::Off }
    })
}

/// A file full of zeros: a durable write into them is one write of the device, while one into
/// space that is only reserved commits the file system's journal, too.
fn fill(file: &dyn File, bytes: u64) -> std::io::Result<()> {
    file.allocate(bytes)?;
    let zeros = AlignedBuf::zeroed(MIB.min(bytes) as usize);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(zeros.len() as u64);
        file.write_at(&zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}
