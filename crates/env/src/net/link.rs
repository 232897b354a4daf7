//! How one connection's bytes travel: over its socket, or through a ring in shared memory beside
//! a socket that is then silent and only says whether the peer lives. Same calls for both, so
//! that the reactor and the client's connection need not care.

use super::meter::{Flow, Meter};
use super::socket::{Socket, Wait};
use crate::ring::Ring;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wait for the ring keeps the core to itself before it yields and looks at the socket.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 64;

/// Memory that the kernel can send from without a copy. It reads the pages when it sends them, which
/// may be long after the call: their bytes must not change until the peer has answered, or the peer
/// must be able to see that they did, by a checksum.
pub trait Pages {
    /// The file that is the memory, the offset of the bytes in it, and how many they are.
    fn pages(&self) -> (&OwnedFd, u64, usize);
}

pub struct Link {
    pub socket: Socket,
    /// Where there is one, all bytes go through it, and none through the socket.
    pub ring: Option<Ring>,
    /// Longest wait for the ring; the kernel keeps the same for the socket.
    timeout: Option<Duration>,
    /// Counts what goes over TCP: a Unix socket or a ring takes nothing of a network link.
    meter: Option<Arc<Meter>>,
}

impl Link {
    pub fn new(socket: Socket) -> Link {
        Link { socket, ring: None, timeout: None, meter: None }
    }

    pub fn metered(socket: Socket, meter: &Option<Arc<Meter>>) -> Link {
        let meter = meter.clone().filter(|_| !socket.is_unix());
        Link { meter, ..Link::new(socket) }
    }

    fn count_sent(&self, sent: u64) {
        if let Some(meter) = &self.meter {
            meter.count(Flow { received: 0, sent });
        }
    }

    fn count_received(&self, received: u64) {
        if let Some(meter) = &self.meter {
            meter.count(Flow { received, sent: 0 });
        }
    }

    /// Longest wait of a receive with [`Wait::Yes`]; nothing means for ever.
    pub fn set_receive_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeout = timeout;
        self.socket.set_receive_timeout(timeout)
    }

    /// Whether file descriptors can be passed along: a Unix socket can, TCP and a ring cannot.
    pub(super) fn passes_fds(&self) -> bool {
        self.socket.is_unix() && self.ring.is_none()
    }

    /// Whether [`Link::send_pages`] is worth while: over TCP, where it saves one of two copies.
    pub fn sends_pages(&self) -> bool {
        self.ring.is_none() && !self.socket.is_unix()
    }

    /// As [`Socket::send`].
    pub fn send(
        &mut self,
        parts: &[IoSlice<'_>],
        fd: Option<BorrowedFd<'_>>,
        more: bool,
    ) -> io::Result<usize> {
        let sent = match &mut self.ring {
            None => self.socket.send(parts, fd, more)?,
            Some(ring) => return some(ring.write(parts)?),
        };
        self.count_sent(sent as u64);
        Ok(sent)
    }

    /// Sends bytes of shared memory without a copy, see [`Pages`]. Only where
    /// [`Link::sends_pages`] says so.
    pub fn send_pages(&mut self, pages: &impl Pages, skip: usize) -> io::Result<usize> {
        let (memory, offset, bytes) = pages.pages();
        let sent = self.socket.send_pages(memory, offset + skip as u64, bytes - skip)?;
        self.count_sent(sent as u64);
        Ok(sent)
    }

    /// As [`Socket::receive`].
    pub fn receive(
        &mut self,
        target: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        self.receive_two(target, &mut [], wait, fds)
    }

    /// As [`Socket::receive_two`].
    pub fn receive_two(
        &mut self,
        target: &mut [u8],
        tail: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        self.wait_for_ring(wait)?;
        let received = match &mut self.ring {
            None => self.socket.receive_two(target, tail, wait, fds)?,
            Some(ring) => return some(ring.read(target, tail)?),
        };
        self.count_received(received as u64);
        Ok(received)
    }

    /// As [`Socket::receive_append`].
    pub fn receive_append(
        &mut self,
        target: &mut Vec<u8>,
        end: usize,
        tail: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<(usize, usize)> {
        self.wait_for_ring(wait)?;
        match &mut self.ring {
            None => {
                let (appended, more) = self.socket.receive_append(target, end, tail, wait, fds)?;
                self.count_received((appended + more) as u64);
                Ok((appended, more))
            }
            Some(ring) => {
                let (appended, more) = ring.read_append(target, end, tail)?;
                some(appended + more).map(|_| (appended, more))
            }
        }
    }

    fn wait_for_ring(&mut self, wait: Wait) -> io::Result<()> {
        if wait == Wait::Yes && self.ring.is_some() {
            self.wait_ready(false, self.timeout)?;
        }
        Ok(())
    }

    /// As [`Socket::wait_ready`]. Of a ring, the stream ends when the peer closes the silent socket
    /// beside it and everything written before has been read.
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn wait_ready(&mut self, write: bool, timeout: Option<Duration>) -> io::Result<bool> {
        let Some(ring) = &mut self.ring else { return self.socket.wait_ready(write, timeout) };
        let mut start = None;
        let mut yields = false;
        for look in 1u32.. {
            if ring.readable()? > 0 {
                return Ok(true);
            }
            if write && ring.writable()? > 0 {
                return Ok(false);
            }
            if look.is_multiple_of(LOOKS) {
                let waited = start.get_or_insert_with(Instant::now).elapsed();
                yields = waited >= SPIN;
                if yields && self.socket.is_readable()? {
                    // What the peer wrote before it closed still counts.
                    return match ring.readable()? {
                        0 => Err(io::ErrorKind::UnexpectedEof.into()),
                        _ => Ok(true),
                    };
                }
                if timeout.is_some_and(|timeout| waited >= timeout) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            if yields {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }
}

/// `WouldBlock` where not a byte moved, which is what a socket says that does not wait.
fn some(bytes: usize) -> io::Result<usize> {
    if bytes == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(bytes) }
}
