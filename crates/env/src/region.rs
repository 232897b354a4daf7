//! The `dram` tier's memory: one memfd, mapped for writing by the server alone and for reading by
//! clients of the same host. This module hands out memory and takes it back; it never looks at it.
//!
//! Layout: a header page, from byte 4096 one 64-bit generation for each 1 MiB frame, then, from
//! the next MiB on, the frames. Offsets are counted from the start of the memfd.
//!
//! Who may touch a byte is a matter of types. A [`Frames`] owns a run of frames; each byte of it
//! is given out for writing once, as part of a [`RegionMut`], and becomes readable when that is
//! frozen. A [`RegionSlice`] reads settled bytes only and keeps its frames; they return to the
//! region when owner, slices and windows are all gone. So nothing writes where a slice lives.

mod header;
mod mapped;
pub(crate) mod memfd;
#[cfg(test)]
mod tests;

pub use header::{FRAME_BYTES, GENERATIONS_OFFSET, MAGIC, VERSION};
pub use mapped::MappedRegion;

use crate::locks::HoldMutex;
use header::Header;
use holdfast_base::ids::StoreId;
use holdfast_base::{Error, Result};
use memfd::Mapping;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The server's side: memory, and which frames of it are free.
pub struct Region {
    mapping: Mapping,
    /// What clients get is a read-only descriptor of the same file.
    file: OwnedFd,
    header: Header,
    /// One flag a frame, true when taken. Held for a scan of the flags only, never while memory
    /// is touched.
    taken: Mutex<Vec<bool>>,
}

impl Region {
    /// Makes a region whose frames hold `bytes` (rounded up to whole frames). Memory is taken
    /// from the machine when it is first written, and kept until the region ends.
    pub fn create(name: &str, store: StoreId, bytes: u64) -> Result<Arc<Region>> {
        let doing = || format!("make memory region `{name}` of {bytes} bytes");
        let header = Header::for_frames(store, bytes.div_ceil(FRAME_BYTES).max(1))
            .map_err(|e| e.context(doing()))?;
        let file = memfd::create(name, header.region_bytes)
            .map_err(|e| Error::from(e).context(doing()))?;
        let mapping = Mapping::read_write(&file, header.region_bytes as usize)
            .map_err(|e| Error::from(e).context(doing()))?;
        header.write(&mapping);
        memfd::seal_against_writing(&file).map_err(|e| Error::from(e).context(doing()))?;
        let taken = Mutex::new(vec![false; header.frames as usize]);
        Ok(Arc::new(Region { mapping, file, header, taken }))
    }

    pub fn store(&self) -> StoreId {
        self.header.store
    }

    /// Frames in all.
    pub fn frames(&self) -> u64 {
        self.header.frames
    }

    pub fn frames_free(&self) -> u64 {
        self.taken().iter().filter(|taken| !**taken).count() as u64
    }

    /// Takes the memory of all frames from the machine now, so that no write has to wait for it.
    pub fn populate(&self) -> Result<()> {
        let bytes = self.header.frames * FRAME_BYTES;
        self.mapping.populate(self.frame_offset(0), bytes as usize).map_err(|e| {
            Error::from(e).context(format_args!("take {bytes} bytes of memory for the `dram` tier"))
        })
    }

    /// Where frame `frame` starts in the memfd.
    pub fn frame_offset(&self, frame: u64) -> u64 {
        self.header.frames_offset + frame * FRAME_BYTES
    }

    pub fn frame_generation(&self, frame: u64) -> u64 {
        self.header.generation(&self.mapping, frame).load(Ordering::Acquire)
    }

    /// Tells clients that copies of `frame` made from now on are not to be trusted. Freeing does
    /// this on its own; a store may do it earlier, when it removes a chunk that is still read.
    pub fn bump(&self, frame: u64) {
        self.header.generation(&self.mapping, frame).fetch_add(1, Ordering::SeqCst);
    }

    /// A descriptor to hand to a client of the same user. It cannot be mapped for writing.
    pub fn client_fd(&self) -> Result<OwnedFd> {
        memfd::reopen_read_only(&self.file)
            .map_err(|e| Error::from(e).context("open the memory region for a client"))
    }

    /// Takes the first run of `count` adjacent free frames, or nothing.
    pub fn allocate(self: &Arc<Region>, count: u64) -> Option<Frames> {
        assert!(count > 0, "a run has at least one frame");
        let mut taken = self.taken();
        let mut run = 0;
        let end = 1 + taken.iter().position(|&frame_taken| {
            run = if frame_taken { 0 } else { run + 1 };
            run == count
        })?;
        let first = end - count as usize;
        taken[first..end].fill(true);
        drop(taken);
        let state = RunState { frames: count, ..RunState::default() };
        let run = Run { region: self.clone(), first: first as u64, state: Mutex::new(state) };
        Some(Frames { run: Arc::new(run) })
    }

    fn release(&self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        // First clients learn that the bytes go, then somebody else may have them. The memory
        // stays: faulting it in anew would cost a third of what writing to it costs.
        (first..first + count).for_each(|frame| self.bump(frame));
        self.taken()[first as usize..(first + count) as usize].fill(false);
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Vec<bool>> {
        self.taken.held()
    }
}

/// A run of adjacent frames, written from front to back.
pub struct Frames {
    run: Arc<Run>,
}

/// What owner, windows and slices share. Its end returns the frames.
struct Run {
    region: Arc<Region>,
    first: u64,
    /// Which bytes were given out and which are settled. Held for arithmetic only.
    state: Mutex<RunState>,
}

#[derive(Default)]
struct RunState {
    frames: u64,
    /// Bytes given out for writing, from the front.
    reserved: u64,
    /// Bytes that nobody writes any more, from the front.
    settled: u64,
    /// Settled ranges behind a window that is still open; a handful at most.
    settled_later: Vec<Range<u64>>,
}

impl RunState {
    fn settle(&mut self, range: Range<u64>) {
        self.settled_later.push(range);
        while let Some(i) = self.settled_later.iter().position(|r| r.start == self.settled) {
            self.settled = self.settled_later.swap_remove(i).end;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let frames = self.state.get_mut().expect("no holder of this lock panics").frames;
        self.region.release(self.first, frames);
    }
}

impl Run {
    fn state(&self) -> std::sync::MutexGuard<'_, RunState> {
        self.state.held()
    }

    fn start(&self) -> u64 {
        self.region.frame_offset(self.first)
    }
}

impl Frames {
    /// Offset of the run in the memfd, as clients of the mapping count.
    pub fn region_offset(&self) -> u64 {
        self.run.start()
    }

    /// The frames of this run, by number.
    pub fn frames(&self) -> Range<u64> {
        self.run.first..self.run.first + self.run.state().frames
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.run.state().frames * FRAME_BYTES
    }

    /// Bytes given out so far.
    pub fn reserved_bytes(&self) -> u64 {
        self.run.state().reserved
    }

    /// Bytes from the front that can be read.
    pub fn settled_bytes(&self) -> u64 {
        self.run.state().settled
    }

    /// The next `len` bytes, to be written by the one who gets them; nothing if they do not fit.
    pub fn reserve(&self, len: usize) -> Option<RegionMut> {
        let mut state = self.run.state();
        let start = state.reserved;
        if len as u64 > state.frames * FRAME_BYTES - start {
            return None;
        }
        state.reserved += len as u64;
        drop(state);
        Some(RegionMut { run: self.run.clone(), start, len, frozen: false })
    }

    /// Settled bytes of the run; nothing if some of them are not settled. Behind a window that is
    /// still open, only parts of what was one window.
    pub fn slice(&self, start: u64, len: usize) -> Option<RegionSlice> {
        let end = start.checked_add(len as u64)?;
        let settled = {
            let state = self.run.state();
            let one = |later: &Range<u64>| later.start <= start && end <= later.end;
            end <= state.settled || state.settled_later.iter().any(one)
        };
        settled.then(|| RegionSlice { run: self.run.clone(), start, len })
    }

    /// Whether `window` was reserved here.
    pub fn owns(&self, window: &RegionMut) -> bool {
        Arc::ptr_eq(&self.run, &window.run)
    }

    /// Returns the frames behind the first `keep`, none of which was ever given out.
    pub fn truncate(&self, keep: u64) {
        let mut state = self.run.state();
        assert!(keep * FRAME_BYTES >= state.reserved, "frames in use cannot be returned");
        if keep < state.frames {
            let returned = state.frames - keep;
            state.frames = keep;
            drop(state);
            self.run.region.release(self.run.first + keep, returned);
        }
    }
}

/// The only place through which its bytes can be written. Dropped unfrozen, its bytes are given
/// back if they are the run's last, and stay as they are (readable, meaningless) otherwise.
pub struct RegionMut {
    run: Arc<Run>,
    /// Counted from the start of the run.
    start: u64,
    len: usize,
    frozen: bool,
}

impl RegionMut {
    /// Position in its run.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Ends writing: from now on the bytes can be read, and never change.
    pub fn freeze(mut self) -> RegionSlice {
        self.frozen = true;
        self.run.state().settle(self.start..self.start + self.len as u64);
        RegionSlice { run: self.run.clone(), start: self.start, len: self.len }
    }
}

impl Drop for RegionMut {
    fn drop(&mut self) {
        if self.frozen {
            return;
        }
        let mut state = self.run.state();
        let end = self.start + self.len as u64;
        if state.reserved == end {
            state.reserved = self.start;
        } else {
            state.settle(self.start..end);
        }
    }
}

impl Deref for RegionMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `deref_mut`, and nobody writes while `self` is borrowed.
        unsafe { self.run.region.mapping.slice(self.run.start() + self.start, self.len) }
    }
}

impl DerefMut for RegionMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `Frames::reserve` gave this range to this window alone: `reserved` only goes
        // back over a window that is being dropped, slices cover settled bytes only, and a range
        // settles after its window's end. The frames belong to this run until its last holder,
        // of whom `self` is one, is gone.
        unsafe { self.run.region.mapping.slice_mut(self.run.start() + self.start, self.len) }
    }
}

/// Settled bytes of the region, and a share in their frames.
#[derive(Clone)]
pub struct RegionSlice {
    run: Arc<Run>,
    /// Counted from the start of the run.
    start: u64,
    len: usize,
}

impl RegionSlice {
    /// A part of it; panics when `range` is outside.
    pub fn slice(&self, range: Range<usize>) -> RegionSlice {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the slice");
        let start = self.start + range.start as u64;
        RegionSlice { run: self.run.clone(), start, len: range.len() }
    }

    /// Offset in the memfd, as clients of the mapping count.
    pub fn region_offset(&self) -> u64 {
        self.run.start() + self.start
    }
}

impl Deref for RegionSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range was settled when the slice was made, settled bytes are never given
        // out for writing again, and `self.run` keeps the frames. Other processes map read-only.
        unsafe { self.run.region.mapping.slice(self.run.start() + self.start, self.len) }
    }
}

/// The slice's bytes do not change while it lives. Whoever lets go of it earlier relies on the
/// reader's checksums: frames are used again seconds after their file is gone.
impl crate::net::Pages for RegionSlice {
    fn pages(&self) -> (&OwnedFd, u64, usize) {
        (&self.run.region.file, self.region_offset(), self.len)
    }
}

impl AsRef<[u8]> for RegionSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegionSlice({} bytes at {})", self.len, self.region_offset())
    }
}

/// Some descriptor, for tests that pass one.
#[cfg(test)]
pub(crate) fn memfd_for_tests() -> OwnedFd {
    memfd::create("test", FRAME_BYTES).expect("memfds can be made")
}
