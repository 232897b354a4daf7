//! Received bytes until they are answers: finds the frames, lets large bodies go to memory of their
//! own or of the caller's, and hands each to the core. The blocking and the asynchronous connection
//! share it; who waits, and for how long, is theirs.

use super::core::{Core, Step};
use super::{RequestId, Response};
use holdfast_base::Result;
use holdfast_base::frame::{FrameKind, HEADER_BYTES, Header};
use holdfast_env::net::{Link, Wait};
use std::io;
use std::os::fd::OwnedFd;

/// One receive of small frames.
const RECEIVE_BYTES: usize = 256 << 10;
/// Read beyond a large body, in the same call, and of one together with its head.
const TAIL_BYTES: usize = 4 << 10;
/// A large body.
const LARGE_BYTES: usize = 16 << 10;

pub(super) struct Intake {
    /// Received bytes are `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// A frame whose body does not fit the buffer, on its way into memory of its own.
    partial: Option<Partial>,
    /// A large body came last: little of the next one is received together with its head, so that
    /// the rest goes where it belongs without a copy.
    large: bool,
}

/// The caller's memory for the body of one answer.
pub(super) struct Target<'a> {
    pub id: RequestId,
    pub memory: &'a mut [u8],
}

/// A large frame that is being received.
struct Partial {
    header: Header,
    meta: Vec<u8>,
    /// The body, unless the caller's memory takes it.
    body: Vec<u8>,
    /// Bytes of the body already in the caller's memory; none if it goes to `body`.
    in_target: Option<usize>,
}

impl Intake {
    pub fn new() -> Intake {
        Intake { buffer: vec![0; RECEIVE_BYTES], start: 0, end: 0, partial: None, large: false }
    }

    /// A new connection begins.
    pub fn clear(&mut self) {
        (self.start, self.end, self.partial) = (0, 0, None);
    }

    /// One call to the socket, and what it completed. An error is the socket's; one inside is of
    /// what was received, after which the connection is of no use.
    pub fn receive(
        &mut self,
        core: &mut Core,
        link: &mut Link,
        fds: &mut Vec<OwnedFd>,
        target: Option<&mut Target<'_>>,
        wait: Wait,
    ) -> io::Result<Result<()>> {
        let mut target = target;
        if let (Some(partial), Some(target)) = (&mut self.partial, target.as_deref_mut())
            && !core.has_answer(target.id)
        {
            partial.redirect(target);
        }
        let received = match &mut self.partial {
            Some(partial) => {
                let left = partial.left();
                // Of the next body as little as possible: it has a place of its own.
                let into_target = partial.in_target.is_some();
                let much = left < RECEIVE_BYTES / 8 && !into_target;
                let tail = &mut self.buffer[..if much { RECEIVE_BYTES } else { TAIL_BYTES }];
                let (body, more) = match (&mut partial.in_target, &mut target) {
                    (Some(filled), Some(target)) => {
                        let memory = &mut target.memory[*filled..*filled + left];
                        let received = link.receive_two(memory, tail, wait, fds)?;
                        let body = received.min(left);
                        *filled += body;
                        (body, received - body)
                    }
                    _ => {
                        let end = partial.body.len() + left;
                        link.receive_append(&mut partial.body, end, tail, wait, fds)?
                    }
                };
                (self.start, self.end) = (0, more);
                if partial.left() == 0
                    && let Some(partial) = self.partial.take()
                {
                    core.complete(partial.header, partial.into_response());
                }
                body + more
            }
            None => {
                if self.end == self.buffer.len() {
                    self.buffer.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                }
                let room = self.buffer.len() - self.end;
                let room = if self.large { room.min(TAIL_BYTES) } else { room };
                let into = &mut self.buffer[self.end..self.end + room];
                let received = link.receive(into, wait, fds)?;
                self.large = false;
                self.end += received;
                received
            }
        };
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.parse(core, target))
    }

    /// Hands every frame of the buffer to the core; a cut-off body is begun as a `Partial`.
    fn parse(&mut self, core: &mut Core, mut target: Option<&mut Target<'_>>) -> Result<()> {
        while self.start < self.end {
            let received = &self.buffer[self.start..self.end];
            let header = match core.next(received)? {
                Step::Frame(header) => header,
                Step::Need(bytes) => {
                    if bytes > self.buffer.len() - self.start {
                        self.buffer.copy_within(self.start..self.end, 0);
                        (self.start, self.end) = (0, self.end - self.start);
                        let grown = self.buffer.len().max(bytes);
                        self.buffer.resize(grown, 0);
                    }
                    return Ok(());
                }
            };
            let meta_end = HEADER_BYTES + header.meta_bytes as usize;
            let body_end = received.len().min(meta_end + header.body_bytes as usize);
            let wanted = target.as_deref_mut().filter(|target| {
                target.id.0 == header.request_id
                    && header.status() == 0
                    && header.body_bytes as usize <= target.memory.len()
                    // Of a streamed answer, only the part that the caller gets next: see the test
                    // `parts_that_arrive_together_do_not_share_the_memory`.
                    && !core.has_answer(target.id)
            });
            self.large = header.body_bytes as usize >= LARGE_BYTES;
            let meta = received[HEADER_BYTES..meta_end].to_vec();
            let begun = &received[meta_end..body_end];
            let partial = match wanted {
                Some(target) => {
                    target.memory[..begun.len()].copy_from_slice(begun);
                    Partial { header, meta, body: Vec::new(), in_target: Some(begun.len()) }
                }
                // The rest may go to memory of the caller, so room is made when it comes.
                None => Partial { header, meta, body: begun.to_vec(), in_target: None },
            };
            self.start += body_end;
            if partial.left() == 0 {
                core.complete(header, partial.into_response());
            } else {
                self.partial = Some(partial);
            }
        }
        (self.start, self.end) = (0, 0);
        Ok(())
    }
}

impl Partial {
    /// Lets the rest go straight to the caller's memory, if this is the answer it waits for.
    fn redirect(&mut self, target: &mut Target<'_>) {
        let Header { request_id, body_bytes, .. } = self.header;
        if self.in_target.is_none()
            && target.id.0 == request_id
            && self.header.status() == 0
            && body_bytes as usize <= target.memory.len()
        {
            let body = std::mem::take(&mut self.body);
            target.memory[..body.len()].copy_from_slice(&body);
            self.in_target = Some(body.len());
        }
    }

    /// Bytes that are missing.
    fn left(&self) -> usize {
        self.header.body_bytes as usize - self.body.len() - self.in_target.unwrap_or(0)
    }

    fn into_response(self) -> Response {
        Response {
            meta: self.meta,
            body: self.body,
            body_bytes: self.header.body_bytes as usize,
            last: self.header.kind == FrameKind::Response,
        }
    }
}
