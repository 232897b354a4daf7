//! Two byte streams in memory that a client and a server share, one each way, each with one
//! writer and one reader; docs/formats/ring.md draws it. Never waits and never calls the kernel:
//! who holds an end polls it (`net::link`).
//!
//! The other side is not trusted. Each side keeps its own positions and bounds those of the
//! other; bytes are copied out before anything looks at them; the file's size is sealed.

#[cfg(test)]
mod tests;

use crate::region::memfd::{self, Mapping};
use holdfast_base::{Error, Result};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

pub const MAGIC: [u8; 8] = *b"HFRING01";
/// Bytes of one stream's memory. Large enough that two sides of different speed seldom wait,
/// small enough to stay in a core's cache.
pub const RING_BYTES: usize = 256 << 10;
/// Magic and length, then the four positions on cache lines of their own.
pub const HEADER_BYTES: usize = 4096;
const FILE_BYTES: usize = HEADER_BYTES + 2 * RING_BYTES;
/// A long copy is announced in steps, so that the other side works meanwhile.
const STEP_BYTES: usize = 32 << 10;

const MAGIC_AT: u64 = 0;
const LENGTH_AT: u64 = 8;
/// Two cache lines apart: processors fetch them in pairs.
const REQUESTS: Place = Place { written_at: 128, taken_at: 256, data_at: HEADER_BYTES as u64 };
const ANSWERS: Place =
    Place { written_at: 384, taken_at: 512, data_at: (HEADER_BYTES + RING_BYTES) as u64 };

const _: () = {
    assert!(RING_BYTES.is_power_of_two() && RING_BYTES.is_multiple_of(STEP_BYTES));
    // Files of huge pages, whose memory can be missing on first touch, cannot have this size.
    assert!(!FILE_BYTES.is_multiple_of(2 << 20));
};

/// Where one stream lies in the file.
#[derive(Clone, Copy)]
struct Place {
    written_at: u64,
    taken_at: u64,
    data_at: u64,
}

/// One stream as one side knows it. Positions count bytes since the beginning and never wrap in
/// practice; the byte of position `p` lies at `p % RING_BYTES`. A side's own position lives here
/// and is only published in the file; the other's is the last one that was seen and sound.
struct Stream {
    place: Place,
    written: u64,
    taken: u64,
}

/// One side of the two streams.
pub struct Ring {
    mapping: Mapping,
    incoming: Stream,
    outgoing: Stream,
}

impl Ring {
    /// The client's side, and the descriptor to hand to the server.
    pub fn create() -> Result<(Ring, OwnedFd)> {
        let io = |e: io::Error| Error::from(e).context("make a ring of shared memory");
        let fd = memfd::create("holdfast-ring", FILE_BYTES as u64).map_err(io)?;
        memfd::seal_size(&fd).map_err(io)?;
        let mapping = Mapping::read_write(&fd, FILE_BYTES).map_err(io)?;
        mapping.atomic(MAGIC_AT).store(u64::from_le_bytes(MAGIC), Ordering::Relaxed);
        mapping.atomic(LENGTH_AT).store((RING_BYTES as u64).to_le(), Ordering::Release);
        Ok((Ring::new(mapping, ANSWERS, REQUESTS), fd))
    }

    /// The server's side, of what a client made.
    pub fn open(fd: &OwnedFd) -> Result<Ring> {
        let doing = "map the client's ring";
        let io = |e: io::Error| Error::from(e).context(doing);
        // Without the seals the client could shrink the file, and an access would be a SIGBUS.
        if !memfd::size_is_sealed(fd).map_err(io)? {
            return Err(Error::invalid(format!("{doing}: its size is not sealed")));
        }
        let bytes = memfd::size(fd).map_err(io)?;
        if bytes != FILE_BYTES as u64 {
            return Err(Error::invalid(format!(
                "{doing}: it has {bytes} bytes instead of {FILE_BYTES}: use matching builds"
            )));
        }
        let mapping = Mapping::read_write(fd, FILE_BYTES).map_err(io)?;
        let word = |at| mapping.atomic(at).load(Ordering::Acquire).to_le_bytes();
        if word(MAGIC_AT) != MAGIC || word(LENGTH_AT) != (RING_BYTES as u64).to_le_bytes() {
            return Err(Error::unsupported(format!(
                "{doing}: its header is not that of this version: use matching builds"
            )));
        }
        Ok(Ring::new(mapping, REQUESTS, ANSWERS))
    }

    fn new(mapping: Mapping, incoming: Place, outgoing: Place) -> Ring {
        let stream = |place| Stream { place, written: 0, taken: 0 };
        Ring { mapping, incoming: stream(incoming), outgoing: stream(outgoing) }
    }

    /// Bytes that can be read now. An error is a peer that broke the rules.
    pub fn readable(&mut self) -> io::Result<usize> {
        let Stream { place, written, taken } = &mut self.incoming;
        let now = self.mapping.atomic(place.written_at).load(Ordering::Acquire);
        if now < *written || now - *taken > RING_BYTES as u64 {
            return Err(broken(format!("wrote up to {now} with {taken} taken")));
        }
        *written = now;
        Ok((now - *taken) as usize)
    }

    /// Bytes that can be written now. An error is a peer that broke the rules.
    pub fn writable(&mut self) -> io::Result<usize> {
        let Stream { place, written, taken } = &mut self.outgoing;
        let now = self.mapping.atomic(place.taken_at).load(Ordering::Acquire);
        if now < *taken || now > *written {
            return Err(broken(format!("took up to {now} with {written} written")));
        }
        *taken = now;
        Ok(RING_BYTES - (*written - now) as usize)
    }

    /// Reads what there is into `target`, and what is more into `tail`; 0 when there is nothing.
    pub fn read(&mut self, target: &mut [u8], tail: &mut [u8]) -> io::Result<usize> {
        let available = self.readable()?;
        // SAFETY: only initialised bytes are ever written through the two slices.
        let (target, tail) = unsafe { (uninit(target), uninit(tail)) };
        Ok(self.take(available, target) + self.take(available - target.len().min(available), tail))
    }

    /// Appends what there is to `target` until that has `end` bytes, and puts what is more into
    /// `tail`; says how many bytes went to each.
    pub fn read_append(
        &mut self,
        target: &mut Vec<u8>,
        end: usize,
        tail: &mut [u8],
    ) -> io::Result<(usize, usize)> {
        let available = self.readable()?;
        let room = end.saturating_sub(target.len());
        target.reserve(room);
        let appended = self.take(available, &mut target.spare_capacity_mut()[..room]);
        // SAFETY: `take` initialised so many bytes of the spare capacity.
        unsafe { target.set_len(target.len() + appended) };
        // SAFETY: only initialised bytes are ever written through the slice.
        let more = self.take(available - appended, unsafe { uninit(tail) });
        Ok((appended, more))
    }

    /// Writes what there is room for; 0 when there is none.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut room = self.writable()?;
        let before = self.outgoing.written;
        let mut published = before;
        for part in parts {
            let mut rest = &part[..part.len().min(room)];
            room -= rest.len();
            while !rest.is_empty() {
                let Stream { place, written, .. } = &mut self.outgoing;
                let (at, len) = step(*written, rest.len());
                // SAFETY: no reference to the streams' memory is ever made, by either side.
                unsafe { self.mapping.copy_in(place.data_at + at, &rest[..len]) };
                *written += len as u64;
                rest = &rest[len..];
                if *written - published >= STEP_BYTES as u64 {
                    published = *written;
                    self.mapping.atomic(place.written_at).store(published, Ordering::Release);
                }
            }
        }
        let Stream { place, written, .. } = self.outgoing;
        if written != published {
            self.mapping.atomic(place.written_at).store(written, Ordering::Release);
        }
        Ok((written - before) as usize)
    }

    /// Copies at most `available` bytes out; says how many, which are then initialised.
    fn take(&mut self, available: usize, target: &mut [MaybeUninit<u8>]) -> usize {
        let bytes = target.len().min(available);
        let mut rest = &mut target[..bytes];
        let Stream { place, taken, .. } = &mut self.incoming;
        while !rest.is_empty() {
            let (at, len) = step(*taken, rest.len());
            let (piece, behind) = rest.split_at_mut(len);
            self.mapping.copy_out_uninit(place.data_at + at, piece);
            *taken += len as u64;
            self.mapping.atomic(place.taken_at).store(*taken, Ordering::Release);
            rest = behind;
        }
        bytes
    }
}

/// Where position `position` lies in its stream's memory, and how much of `len` bytes is copied
/// from there at once: never over the end.
fn step(position: u64, len: usize) -> (u64, usize) {
    let at = position as usize % RING_BYTES;
    (at as u64, len.min(RING_BYTES - at).min(STEP_BYTES))
}

/// # Safety
/// Nothing uninitialised may be written through the result.
unsafe fn uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout; the caller keeps the bytes initialised.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

fn broken(what: String) -> io::Error {
    let message = format!("the shared ring is broken: the peer {what}: reconnect");
    io::Error::new(io::ErrorKind::InvalidData, message)
}
