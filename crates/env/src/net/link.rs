//! How one connection's bytes travel: over its socket, as they are or as TLS, or through a ring in
//! shared memory beside a socket that is then silent and only says whether the peer lives. Same
//! calls for all, so that the reactor and the client's connection need not care.

use super::meter::{Flow, Meter};
use super::sealed::{Appended, Sealed, TwoPieces};
use super::socket::{Socket, Wait};
use super::tls::{CLIENT_HELLO, Tls, TlsClient, server_name, tls_error};
use crate::ring::Ring;
use holdfast_base::Result;
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
    /// Where there is TLS, all bytes go through it.
    sealed: Option<Box<Sealed>>,
    /// Of a connection that has said nothing yet, and may begin with TLS.
    offers: Option<Arc<rustls::ServerConfig>>,
    /// Longest wait for the ring; the kernel keeps the same for the socket.
    timeout: Option<Duration>,
    /// Counts what goes over TCP: a Unix socket or a ring takes nothing of a network link.
    meter: Option<Arc<Meter>>,
}

impl Link {
    pub fn new(socket: Socket) -> Link {
        Link { socket, ring: None, sealed: None, offers: None, timeout: None, meter: None }
    }

    pub fn metered(socket: Socket, meter: &Option<Arc<Meter>>) -> Link {
        let mut link = Link::new(socket);
        link.meter = meter.clone().filter(|_| !link.socket.is_unix());
        link
    }

    /// The peer may begin with TLS: its first byte says whether it does.
    pub(super) fn offer_tls(&mut self, config: Arc<rustls::ServerConfig>) {
        self.offers = Some(config);
    }

    /// Begins with TLS, to a server that has a certificate for the host of `address`; nothing else
    /// is sent before [`Link::shake`] has said that the way is there.
    pub fn begin_tls(&mut self, client: &TlsClient, address: &str) -> Result<()> {
        let tls = Tls::client(&client.0, server_name(address)?).map_err(tls_error)?;
        let mut sealed = Sealed::new(tls);
        sealed.shake(&self.socket, None).map_err(tls_error)?;
        self.sealed = Some(Box::new(sealed));
        Ok(())
    }

    /// One receive of a handshake; true once it is over.
    pub fn shake(&mut self, wait: Wait) -> io::Result<bool> {
        match &mut self.sealed {
            Some(sealed) => sealed.shake(&self.socket, Some(wait)),
            None => Ok(true),
        }
    }

    /// Whether the bytes travel as TLS.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether both sides have yet to agree on how the bytes travel.
    pub(super) fn is_shaking(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| !sealed.tls.is_ready())
    }

    /// The certificate that the peer has proved to hold, if it showed one.
    pub(super) fn certificate(&self) -> Option<&[u8]> {
        self.sealed.as_ref()?.tls.certificate()
    }

    /// Whether there is something to receive of which the socket says nothing.
    pub fn has_more(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.has_more())
    }

    /// Whether the peer has begun a handshake or a record, and owes the rest.
    pub(super) fn is_half_sent(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.is_half_sent())
    }

    /// Memory that the way itself holds for the peer.
    pub(super) fn held_bytes(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.held_bytes())
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn shutdown_write(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.end(&self.socket);
        }
        self.socket.shutdown_write();
    }

    fn count_sealed(&mut self) {
        let moved = self.sealed.as_mut().map(|sealed| sealed.take_moved());
        if let (Some((received, sent)), Some(meter)) = (moved, &self.meter) {
            meter.count(Flow { received, sent });
        }
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
        self.ring.is_none() && self.sealed.is_none() && !self.socket.is_unix()
    }

    /// As [`Socket::send`].
    pub fn send(
        &mut self,
        parts: &[IoSlice<'_>],
        fd: Option<BorrowedFd<'_>>,
        more: bool,
    ) -> io::Result<usize> {
        if let Some(ring) = &mut self.ring {
            return some(ring.write(parts)?);
        }
        if let Some(sealed) = &mut self.sealed {
            let sent = sealed.send(&self.socket, parts);
            self.count_sealed();
            return sent;
        }
        let sent = self.socket.send(parts, fd, more)?;
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
        if let Some(ring) = &mut self.ring {
            return some(ring.read(target, tail)?);
        }
        if let Some(sealed) = &mut self.sealed {
            let mut sink = TwoPieces { pieces: [target, tail], filled: 0 };
            let received = sealed.receive(&self.socket, &mut sink, wait);
            self.count_sealed();
            return received;
        }
        let received = self.socket.receive_two(target, tail, wait, fds)?;
        if received > 0
            && let Some(config) = self.offers.take()
            && target.first() == Some(&CLIENT_HELLO)
        {
            return self.accept_tls(&config, target, received);
        }
        self.count_received(received as u64);
        Ok(received)
    }

    /// The first bytes of a connection are TLS: opens them where they are.
    fn accept_tls(
        &mut self,
        config: &Arc<rustls::ServerConfig>,
        target: &mut [u8],
        received: usize,
    ) -> io::Result<usize> {
        assert!(received <= target.len(), "the first receive has no tail");
        let first = target[..received].to_vec();
        let sealed = self.sealed.insert(Box::new(Sealed::new(Tls::server(config)?)));
        let mut sink = TwoPieces { pieces: [target, &mut []], filled: 0 };
        let opened = sealed.begin(&self.socket, &first, &mut sink);
        self.count_sealed();
        some(opened?)
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
        if let Some(ring) = &mut self.ring {
            let (appended, more) = ring.read_append(target, end, tail)?;
            return some(appended + more).map(|_| (appended, more));
        }
        if let Some(sealed) = &mut self.sealed {
            let before = target.len();
            let mut sink = Appended { target, end, tail, in_tail: 0 };
            let received = sealed.receive(&self.socket, &mut sink, wait);
            let moved = (sink.target.len() - before, sink.in_tail);
            self.count_sealed();
            return received.map(|_| moved);
        }
        let (appended, more) = self.socket.receive_append(target, end, tail, wait, fds)?;
        self.count_received((appended + more) as u64);
        Ok((appended, more))
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
        if self.has_more() {
            return Ok(true);
        }
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

impl Drop for Link {
    /// A peer that speaks TLS can tell an end from a cut.
    fn drop(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.end(&self.socket);
        }
    }
}

/// `WouldBlock` where not a byte moved, which is what a socket says that does not wait.
fn some(bytes: usize) -> io::Result<usize> {
    if bytes == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(bytes) }
}
