//! What a connection still has to send: heads and small bodies in one buffer, large bodies kept
//! where they are, descriptors to pass, all gathered into as few calls as possible.

use super::link::Link;
use super::message::{BodyPart, Parts};
use super::peers::SharedBody;
use crate::event;
use crate::trial::Knob;
use holdfast_base::frame::{self, FrameKind, Header};
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;
use holdfast_base::{Error, Kind, Result};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};

/// A body up to this size is copied behind its head: cheaper than an entry of its own.
static COPY_BYTES_MAX: Knob = Knob::new("net.copied-body", 1024, &[0, 1, 40]);
/// Entries of one gathered write; the kernel's limit is 1024, and more than this gains nothing.
const GATHER_MAX: usize = 256;
static GATHERED_MAX: Knob = Knob::new("net.gathered", GATHER_MAX as u64, &[2, 3, 5]);
/// Bodies in the region of this size on are sent by their pages: two calls instead of one, and no
/// copy.
const PAGES_BYTES_MIN: usize = 32 << 10;
/// From here on they are copied again. They are slices of a stream, of which another is on its way
/// meanwhile: the sender's copy then costs no time, and spares the reader, who has more to do, that
/// the bytes are far from its processor.
const PAGES_BYTES_END: usize = 512 << 10;
/// Sent bytes at the front of a buffer that does not drain are dropped from here on.
static COMPACT_BYTES: Knob = Knob::new("net.compacted", 256 << 10, &[1, 40, 1000]);

#[derive(Default)]
pub(super) struct Out {
    /// Heads, metas and small bodies. Taken from the reactor's spare buffers while in use.
    pub buf: Vec<u8>,
    /// Position in the stream of heads of `buf`'s first byte.
    base: u64,
    /// First position not yet sent.
    sent: u64,
    /// Bodies, each behind the position where it belongs.
    parts: VecDeque<(u64, BodyPart)>,
    /// Bytes of the first part that were sent.
    part_sent: usize,
    /// Descriptors, each with the position of the byte that carries it.
    fds: VecDeque<(u64, OwnedFd)>,
    /// Unsent bytes of `parts`.
    parts_bytes: u64,
    /// Bytes that the kernel has taken so far.
    pub taken: u64,
    /// The status of answers from here on: the service's label of the last batch.
    pub label: u32,
}

/// What one call sends.
#[derive(Debug, PartialEq, Eq)]
struct Gathered {
    count: usize,
    /// The first byte carries a descriptor.
    with_fd: bool,
    /// Behind it comes a body that is sent by its pages.
    pages_follow: bool,
}

impl BodyPart {
    fn is_pages(&self) -> bool {
        let bytes = match self {
            BodyPart::Region(slice) => slice.len(),
            _ => 0,
        };
        (PAGES_BYTES_MIN..PAGES_BYTES_END).contains(&bytes)
    }
}

/// Where an answer belongs.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub kind: FrameKind,
    pub opcode: u16,
    pub request_id: u64,
}

impl Address {
    /// The last word on a connection that cannot go on.
    pub const FINAL: Address = Address { kind: FrameKind::Response, opcode: 0, request_id: 0 };

    /// The answer to this request.
    pub fn of(request: &Header) -> Address {
        let Header { opcode, request_id, .. } = *request;
        Address { kind: FrameKind::Response, opcode, request_id }
    }
}

impl Out {
    /// Bytes that the kernel has not taken.
    pub fn pending_bytes(&self) -> u64 {
        self.base + self.buf.len() as u64 - self.sent + self.parts_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pending_bytes() == 0
    }

    /// An answer that exceeds a frame is a bug of the service, and becomes an error.
    pub fn push(&mut self, to: Address, meta: impl FnOnce(&mut Vec<u8>), body: Parts) {
        let bytes = body.bytes();
        let encoded = match u32::try_from(bytes).ok().filter(|n| *n <= FRAME_BODY_BYTES_MAX) {
            Some(bytes) => {
                let Address { kind, opcode, request_id } = to;
                frame::try_encode(&mut self.buf, kind, opcode, request_id, self.label, bytes, meta)
            }
            None => Err(Error::bug(format!("send a body of {bytes} bytes: it exceeds a frame"))),
        };
        if let Err(error) = encoded {
            let message = format!("answer opcode {:#06x}: {}", to.opcode, error.message);
            return self.push_error(to, &Error::new(Kind::Bug, message));
        }
        match body {
            Parts::None => {}
            Parts::One(part) => self.push_part(part),
            Parts::Many(parts) => parts.into_iter().for_each(|part| self.push_part(part)),
        }
    }

    /// A request to another server; one that exceeds a frame is refused, and leaves nothing.
    pub fn push_request(
        &mut self,
        opcode: u16,
        request_id: u64,
        deadline_ms: u32,
        meta: &[u8],
        body: Option<SharedBody>,
    ) -> Result<()> {
        let part = body.map(BodyPart::Peers);
        let bytes = part.as_ref().map_or(0, |part| part.as_slice().len());
        if bytes > FRAME_BODY_BYTES_MAX as usize {
            return Err(Error::invalid(format!(
                "send a body of {bytes} bytes: the limit is {FRAME_BODY_BYTES_MAX}: cut it"
            )));
        }
        let kind = FrameKind::Request;
        frame::try_encode(
            &mut self.buf,
            kind,
            opcode,
            request_id,
            deadline_ms,
            bytes as u32,
            |m| m.extend_from_slice(meta),
        )?;
        part.into_iter().for_each(|part| self.push_part(part));
        Ok(())
    }

    /// Takes everything that is queued, in one piece: for those who have no socket.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.pending_bytes() as usize);
        let mut at = self.sent;
        let mut skip = self.part_sent;
        for (position, part) in &self.parts {
            bytes.extend_from_slice(self.head(at, *position));
            bytes.extend_from_slice(&part.as_slice()[skip..]);
            (at, skip) = (*position, 0);
        }
        bytes.extend_from_slice(self.head(at, self.base + self.buf.len() as u64));
        *self = Out { label: self.label, ..Out::default() };
        bytes
    }

    fn push_part(&mut self, part: BodyPart) {
        let bytes = part.as_slice();
        if bytes.len() <= COPY_BYTES_MAX.size() {
            self.buf.extend_from_slice(bytes);
        } else {
            COPY_BYTES_MAX.cross();
            self.parts_bytes += bytes.len() as u64;
            self.parts.push_back((self.base + self.buf.len() as u64, part));
        }
    }

    pub fn push_error(&mut self, to: Address, error: &Error) {
        if error.kind == Kind::Bug {
            event!(RequestBug, error, request = to.request_id, opcode = to.opcode);
        }
        let status = error.kind as u32;
        frame::encode(&mut self.buf, to.kind, to.opcode, to.request_id, status, 0, |out| {
            error.encode(out)
        });
    }

    /// The next pushed answer carries `fd` on its first byte.
    pub fn attach(&mut self, fd: OwnedFd) {
        self.fds.push_back((self.base + self.buf.len() as u64, fd));
    }

    /// Sends what the kernel takes. An error ends the connection.
    pub fn flush(&mut self, link: &mut Link) -> io::Result<()> {
        let by_pages = link.sends_pages();
        while !self.is_empty() {
            let mut with_fd = false;
            let sent = match self.parts.front() {
                Some((position, part)) if *position == self.sent && by_pages && part.is_pages() => {
                    let BodyPart::Region(slice) = part else { break };
                    link.send_pages(slice, self.part_sent)
                }
                _ => {
                    let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
                    let gather = self.gather(&mut gathered, by_pages);
                    with_fd = gather.with_fd;
                    let fd = self.fds.front().filter(|_| with_fd).map(|(_, fd)| fd.as_fd());
                    link.send(&gathered[..gather.count], fd, gather.pages_follow)
                }
            };
            match sent {
                Ok(sent) => {
                    if with_fd {
                        self.fds.pop_front();
                    }
                    self.advance(sent);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.compact();
        Ok(())
    }

    /// Lists what comes next, up to the next descriptor's byte, and up to what is sent by its
    /// pages if anything is.
    fn gather<'a>(&'a self, into: &mut [IoSlice<'a>; GATHER_MAX], by_pages: bool) -> Gathered {
        // A body at the descriptor's position belongs to the answer in front of it.
        let head_is_next = self.parts.front().is_none_or(|(position, _)| *position != self.sent);
        let with_fd = head_is_next && self.fds.front().is_some_and(|(p, _)| *p == self.sent);
        let stop = self.fds.get(with_fd as usize).map_or(u64::MAX, |(position, _)| *position);
        let end = stop.min(self.base + self.buf.len() as u64);
        let gathered_max = GATHERED_MAX.size();
        let mut at = self.sent;
        let mut count = 0;
        let mut skip = self.part_sent;
        for (position, part) in &self.parts {
            if count + 2 > gathered_max {
                GATHERED_MAX.cross();
                break;
            }
            if *position > end {
                break;
            }
            if *position > at {
                into[count] = IoSlice::new(self.head(at, *position));
                count += 1;
                at = *position;
            }
            if by_pages && part.is_pages() {
                return Gathered { count, with_fd, pages_follow: true };
            }
            into[count] = IoSlice::new(&part.as_slice()[skip..]);
            count += 1;
            skip = 0;
        }
        // If the list is full, bodies at `at` may be left, and go first the next time.
        if count + 2 <= gathered_max && at < end {
            into[count] = IoSlice::new(self.head(at, end));
            count += 1;
        }
        Gathered { count, with_fd, pages_follow: false }
    }

    fn head(&self, from: u64, to: u64) -> &[u8] {
        &self.buf[(from - self.base) as usize..(to - self.base) as usize]
    }

    fn advance(&mut self, mut sent: usize) {
        self.taken += sent as u64;
        while sent > 0 {
            match self.parts.front() {
                Some((position, part)) if *position == self.sent => {
                    let rest = part.as_slice().len() - self.part_sent;
                    let taken = rest.min(sent);
                    sent -= taken;
                    self.parts_bytes -= taken as u64;
                    self.part_sent += taken;
                    if taken == rest {
                        self.part_sent = 0;
                        self.parts.pop_front();
                    }
                }
                next => {
                    let end = next.map_or(self.base + self.buf.len() as u64, |(p, _)| *p);
                    let taken = (end - self.sent).min(sent as u64);
                    self.sent += taken;
                    sent -= taken as usize;
                }
            }
        }
    }

    fn compact(&mut self) {
        let done = (self.sent - self.base) as usize;
        if done == self.buf.len() {
            self.buf.clear();
            self.base = self.sent;
        } else if done >= COMPACT_BYTES.size() && done * 2 >= self.buf.len() {
            COMPACT_BYTES.cross();
            self.buf.drain(..done);
            self.base = self.sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use std::sync::Arc;

    /// Takes what is queued in steps of `step` bytes, as a slow kernel would.
    fn drain(out: &mut Out, step: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        while !out.is_empty() {
            let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
            let Gathered { count, .. } = out.gather(&mut gathered, false);
            let mut taken = 0;
            for slice in &gathered[..count] {
                let part = slice.len().min(step - taken);
                stream.extend_from_slice(&slice[..part]);
                taken += part;
            }
            assert!(taken > 0, "nothing is listed, and {} pending", out.pending_bytes());
            out.advance(taken);
            out.compact();
        }
        stream
    }

    #[test]
    fn any_partial_write_resumes_at_the_right_byte() {
        let to = |request_id| Address { kind: FrameKind::Response, opcode: 7, request_id };
        let fill = |out: &mut Out| {
            let shared = Arc::new((0..5000u32).map(|i| i as u8).collect::<Vec<u8>>());
            out.push(to(1), |m| m.extend_from_slice(b"one"), Parts::None);
            out.push(to(2), |_| {}, vec![9; 2000].into());
            let parts = (0..400)
                .map(|i| BodyPart::Shared(shared.clone(), i..i + 1025 + i))
                .chain([BodyPart::Owned(vec![4; 3])])
                .collect::<Vec<_>>();
            out.push(to(3), |m| m.extend_from_slice(b"three"), parts.into());
            out.push_error(to(4), &Error::full("no space"));
        };
        let mut whole = Out::default();
        fill(&mut whole);
        let expected_bytes = whole.pending_bytes();
        let expected = drain(&mut whole, usize::MAX);
        assert_eq!(expected.len() as u64, expected_bytes);
        let second = &expected[35..];
        assert_eq!(&second[32..2032], [9; 2000]);
        whole = Out::default();
        fill(&mut whole);
        assert!(whole.take_bytes() == expected && whole.is_empty());
        for step in [97, 1000, 4096, 70_000] {
            let mut out = Out::default();
            fill(&mut out);
            assert!(drain(&mut out, step) == expected, "step {step}");
        }
    }

    /// As above with every limit drawn, and every step.
    #[test]
    fn limits_of_any_size_and_partial_writes_at_every_byte_send_the_same_stream() {
        let to = |request_id| Address { kind: FrameKind::Response, opcode: 7, request_id };
        let shared = Arc::new((0..200u32).map(|i| i as u8).collect::<Vec<u8>>());
        let fill = |out: &mut Out| {
            for (id, bytes) in [0, 1, 39, 40, 41, 100].into_iter().enumerate() {
                let part = |from: usize| BodyPart::Shared(shared.clone(), from..from + bytes);
                let parts = vec![part(0), BodyPart::Owned(vec![id as u8; bytes]), part(3)];
                out.push(
                    to(id as u64 + 1),
                    |m| m.extend_from_slice(&shared[..bytes]),
                    parts.into(),
                );
            }
        };
        let mut whole = Out::default();
        fill(&mut whole);
        let expected = drain(&mut whole, usize::MAX);
        for seed in 0..40 {
            let _trial = Trial::drawn(seed).enter();
            for step in (1..80).chain([expected.len() - 1]) {
                let mut out = Out::default();
                fill(&mut out);
                assert!(drain(&mut out, step) == expected, "seed {seed}, step {step}");
                assert_eq!(out.taken, expected.len() as u64);
            }
        }
    }

    #[test]
    fn a_descriptor_travels_with_its_own_answer() {
        let fd = || crate::region::memfd_for_tests();
        let mut out = Out::default();
        let to = Address { kind: FrameKind::Response, opcode: 7, request_id: 1 };
        out.push(to, |_| {}, vec![1; 5000].into());
        out.attach(fd());
        out.push(to, |_| {}, Parts::None);
        let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
        let first = Gathered { count: 2, with_fd: false, pages_follow: false };
        assert_eq!(out.gather(&mut gathered, true), first, "what is in front goes without it");
        out.advance(32 + 5000);
        let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
        let second = Gathered { count: 1, with_fd: true, pages_follow: false };
        assert_eq!(out.gather(&mut gathered, true), second);
    }

    #[test]
    fn large_bodies_in_the_region_are_left_to_their_pages() {
        let region = crate::Region::create("test", holdfast_base::ids::StoreId(1), 1 << 20);
        let frames = region.unwrap().allocate(1).unwrap();
        let body = |bytes| {
            let mut window = frames.reserve(bytes).unwrap();
            window.fill(7);
            Parts::from(window.freeze())
        };
        let mut out = Out::default();
        let to = Address { kind: FrameKind::Response, opcode: 7, request_id: 1 };
        out.push(to, |_| {}, body(PAGES_BYTES_MIN - 1));
        out.push(to, |_| {}, body(PAGES_BYTES_MIN));
        out.push(to, |_| {}, Parts::None);
        let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
        let front = Gathered { count: 3, with_fd: false, pages_follow: true };
        assert_eq!(out.gather(&mut gathered, true), front, "two heads and the smaller body");
        let sent = gathered[..3].iter().map(|slice| slice.len()).sum();
        out.advance(sent);
        out.advance(PAGES_BYTES_MIN);
        let mut gathered = [IoSlice::new(&[]); GATHER_MAX];
        let rest = Gathered { count: 1, with_fd: false, pages_follow: false };
        assert_eq!(out.gather(&mut gathered, true), rest);
    }
}
