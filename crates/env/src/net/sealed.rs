//! A socket whose bytes travel as TLS: what [`super::Link`] asks where a connection is encrypted.
//! Moves bytes between the kernel and [`Tls`], and keeps what does not fit: nothing, of a
//! connection at rest.
//!
//! **Invariant:** bytes of the caller's count as sent once the kernel has the last record of them.
//! Until then the caller offers them again, in front of all others, and they are not sealed again:
//! so what is unsent is counted, kept and watched for where it is without TLS.

use super::socket::{Socket, Wait};
use super::tls::{RECORD_BYTES, RECORD_EXTRA_BYTES, SEALED_RECORD_BYTES, Tls};
use crate::planted;
use crate::trial::Knob;
use std::cell::RefCell;
use std::io::{self, IoSlice, Write};

/// Plain bytes that one receive asks for at most.
static RECEIVE_BYTES: Knob = Knob::new("net.tls-receive", 256 << 10, &[1, 100, 17_000]);
/// Plain bytes that are sealed before the kernel is asked to take them.
static SEAL_BYTES: Knob = Knob::new("net.tls-seal", 128 << 10, &[1, 100, 17_000]);

/// What a handshake under way takes: keys, messages, a chain of certificates.
const HANDSHAKE_BYTES: usize = 16 << 10;

/// What a session's tickets take while they wait for the first answer.
const WORDS_BYTES: usize = 4 << 10;

thread_local! {
    /// Where records are received: one a thread, for all of its connections.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Records go from where they were sealed to the kernel: nobody gathers them before.
struct Way<'a> {
    socket: &'a Socket,
    offered: usize,
}

impl Write for Way<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        self.offered = records.iter().map(|record| record.len()).sum();
        self.socket.send(records, None, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where plain bytes go.
pub(super) trait Sink {
    /// Takes what it has room for, and says how many bytes that is.
    fn take(&mut self, plain: &[u8]) -> usize;
    fn room(&self) -> usize;
}

/// Two pieces of memory, one behind the other.
pub(super) struct TwoPieces<'a> {
    pub pieces: [&'a mut [u8]; 2],
    pub filled: usize,
}

impl Sink for TwoPieces<'_> {
    fn take(&mut self, mut plain: &[u8]) -> usize {
        let before = self.filled;
        let mut skip = self.filled;
        for piece in &mut self.pieces {
            let at = skip.min(piece.len());
            let part = plain.len().min(piece.len() - at);
            piece[at..at + part].copy_from_slice(&plain[..part]);
            (plain, skip) = (&plain[part..], skip - at);
            self.filled += part;
        }
        self.filled - before
    }

    fn room(&self) -> usize {
        self.pieces[0].len() + self.pieces[1].len() - self.filled
    }
}

/// A vector up to a length, and memory behind it.
pub(super) struct Appended<'a> {
    pub target: &'a mut Vec<u8>,
    pub end: usize,
    pub tail: &'a mut [u8],
    pub in_tail: usize,
}

impl Sink for Appended<'_> {
    fn take(&mut self, plain: &[u8]) -> usize {
        let front = plain.len().min(self.end.saturating_sub(self.target.len()));
        self.target.extend_from_slice(&plain[..front]);
        let behind = (plain.len() - front).min(self.tail.len() - self.in_tail);
        let to = &mut self.tail[self.in_tail..self.in_tail + behind];
        to.copy_from_slice(&plain[front..front + behind]);
        self.in_tail += behind;
        front + behind
    }

    fn room(&self) -> usize {
        self.end.saturating_sub(self.target.len()) + self.tail.len() - self.in_tail
    }
}

/// The TLS of one socket, and what waits on its way through it.
pub(super) struct Sealed {
    pub tls: Tls,
    /// Opened, and more than the caller had room for; from `plain_at` on.
    plain: Vec<u8>,
    plain_at: usize,
    /// Bytes of records that the kernel has not taken when it was asked last.
    unsent: usize,
    /// Bytes of the caller's in the records sealed last, of which it has not heard yet.
    promised: usize,
    /// Bytes of records that came and went, since they were last taken.
    received: u64,
    sent: u64,
    /// The peer's end of the stream came without its saying so: it reads nothing any more.
    is_cut: bool,
}

impl Sealed {
    pub fn new(tls: Tls) -> Sealed {
        Sealed {
            tls,
            plain: Vec::new(),
            plain_at: 0,
            unsent: 0,
            promised: 0,
            received: 0,
            sent: 0,
            is_cut: false,
        }
    }

    /// Whether plain bytes wait here, of which the socket says nothing.
    pub fn has_more(&self) -> bool {
        self.plain_at < self.plain.len()
    }

    /// Memory that is held for the peer.
    pub fn held_bytes(&self) -> usize {
        let shaking = if self.tls.is_ready() { 0 } else { HANDSHAKE_BYTES };
        let waiting = match self.unsent {
            0 if self.tls.is_ready() && self.tls.wants_write() => WORDS_BYTES,
            unsent => unsent,
        };
        self.tls.unopened_bytes() + self.plain.capacity() + waiting + shaking
    }

    /// Whether the peer owes the rest of a record, or of the handshake.
    pub fn is_half_sent(&self) -> bool {
        !self.tls.is_ready() || self.tls.unopened_bytes() > 0
    }

    /// Takes the count of bytes that came and went on the network.
    pub fn take_moved(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.received), std::mem::take(&mut self.sent))
    }

    /// Opens bytes that were received before the socket was known to speak TLS.
    pub fn begin(
        &mut self,
        socket: &Socket,
        first: &[u8],
        sink: &mut dyn Sink,
    ) -> io::Result<usize> {
        self.received += first.len() as u64;
        self.opened(socket, first, sink)
    }

    /// Sends what the handshake has to say, and takes what there is of the peer's part of it: one
    /// receive, if `receives`. True once bytes can be sent.
    pub fn shake(&mut self, socket: &Socket, receives: Option<Wait>) -> io::Result<bool> {
        self.flush(socket)?;
        if let Some(wait) = receives {
            let mut nothing = TwoPieces { pieces: [&mut [], &mut []], filled: 0 };
            if self.receive_once(socket, &mut nothing, wait)?.is_none() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.tls.is_ready())
    }

    /// Receives into `sink`; 0 is the end of the stream. `WouldBlock` only if the socket said so.
    pub fn receive(
        &mut self,
        socket: &Socket,
        sink: &mut dyn Sink,
        wait: Wait,
    ) -> io::Result<usize> {
        assert!(sink.room() > 0, "who receives has room for something");
        let taken = sink.take(&self.plain[self.plain_at..]);
        if taken > 0 {
            self.plain_at += taken;
            if self.plain_at == self.plain.len() {
                (self.plain, self.plain_at) = (Vec::new(), 0);
            }
            return Ok(taken);
        }
        while !self.tls.is_ended {
            match self.receive_once(socket, sink, wait)? {
                Some(0) => {}
                taken => return Ok(taken.unwrap_or(0)),
            }
        }
        Ok(0)
    }

    /// One receive of the socket's, and the plain bytes that `sink` got of it; `None` at its end.
    fn receive_once(
        &mut self,
        socket: &Socket,
        sink: &mut dyn Sink,
        wait: Wait,
    ) -> io::Result<Option<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let wanted = sink.room().min(RECEIVE_BYTES.size());
            // Whole records, so that little is kept; more than a handshake takes at once.
            let room = wanted + wanted.div_ceil(RECORD_BYTES) * RECORD_EXTRA_BYTES;
            let end = room.max(SEALED_RECORD_BYTES);
            if scratch.len() < end {
                scratch.resize(end, 0);
            }
            let received = socket.receive(&mut scratch[..end], wait, &mut Vec::new())?;
            if received == 0 {
                self.is_cut = !self.tls.is_ended;
                return Ok(None);
            }
            self.received += received as u64;
            self.opened(socket, &scratch[..received], sink).map(Some)
        })
    }

    fn opened(
        &mut self,
        socket: &Socket,
        received: &[u8],
        sink: &mut dyn Sink,
    ) -> io::Result<usize> {
        let was_ready = self.tls.is_ready();
        let (mut taken, plain) = (0, &mut self.plain);
        let opened = self.tls.open(received, &mut |bytes| {
            // In order: behind what is kept already.
            let fits = if plain.is_empty() { sink.take(bytes) } else { 0 };
            taken += fits;
            plain.extend_from_slice(&bytes[fits..]);
        });
        // With its last word of the handshake the peer has sent a request: tickets, which nobody waits
        // for, go with the answer, and the peer is woken once.
        let words_wait = !was_ready && self.tls.is_server() && self.tls.is_ready() && taken > 0;
        if opened.is_err() || !words_wait {
            // Also why the peer is refused. Whether that arrives is known by the next who sends.
            let _ = self.flush(socket);
        }
        opened.map(|()| taken)
    }

    /// Sends without waiting, and says how many bytes of `parts` are done with: all that were sealed
    /// together, or none.
    pub fn send(&mut self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // What has not been offered to the kernel yet goes in front of these.
        let is_free = self.unsent == 0 || self.flush(socket)?;
        if !is_free || !self.tls.is_ready() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.promised > 0 {
            let offered: usize = parts.iter().map(|part| part.len()).sum();
            assert!(offered >= self.promised, "what was sealed is not offered again");
            return Ok(std::mem::take(&mut self.promised));
        }
        let sealed = seal(&mut self.tls, parts)?;
        if self.flush(socket)? || planted!("net.sealed-rest-forgotten") {
            return Ok(sealed);
        }
        self.promised = sealed;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends the records that wait; true when none does any more.
    fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.tls.wants_write() {
            let mut way = Way { socket, offered: 0 };
            let written = self.tls.write_to(&mut way);
            self.unsent = way.offered - *written.as_ref().unwrap_or(&0);
            match written {
                Ok(sent) => self.sent += sent as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Tells a peer that still reads that nothing more comes, if the kernel takes it at once.
    pub fn end(&mut self, socket: &Socket) {
        if self.tls.is_ready() && !self.is_cut {
            self.tls.end();
            let _ = self.flush(socket);
        }
    }
}

/// Seals the front of `parts`, in records as full as can be, and says how many bytes that is.
fn seal(tls: &mut Tls, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let limit = SEAL_BYTES.size();
    // Small pieces are gathered: a record of its own costs each more than a copy.
    let mut gathered: Vec<u8> = Vec::new();
    let mut sealed = 0;
    for part in parts {
        let mut part = &part[..part.len().min(limit - sealed)];
        sealed += part.len();
        while !part.is_empty() {
            if gathered.is_empty() && part.len() >= RECORD_BYTES {
                let whole = part.len() / RECORD_BYTES * RECORD_BYTES;
                tls.seal(&part[..whole])?;
                part = &part[whole..];
                continue;
            }
            let fits = part.len().min(RECORD_BYTES - gathered.len());
            gathered.extend_from_slice(&part[..fits]);
            part = &part[fits..];
            if gathered.len() == RECORD_BYTES {
                tls.seal(&gathered)?;
                gathered.clear();
            }
        }
        if sealed == limit {
            SEAL_BYTES.cross();
            break;
        }
    }
    if !gathered.is_empty() {
        tls.seal(&gathered)?;
    }
    Ok(sealed)
}

#[cfg(test)]
mod tests;
