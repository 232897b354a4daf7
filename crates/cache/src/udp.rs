//! The protocol over UDP: a frame of eight bytes before each request and each datagram of an
//! answer (request id, number, count, 0). One socket a thread. An answer that does not fit in one
//! datagram goes out as a train of numbered ones, in one call.

use crate::engine::Engine;
use crate::out::Out;
use crate::session::{Batch, Session, Wants};
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::sockets::{self, DATAGRAM_BYTES_MAX, TRAIN_MAX};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

pub const FRAME_BYTES: usize = 8;
/// A datagram of an answer, with its frame: what passes networks whole, and memcached sends.
pub const DATAGRAM_BYTES: usize = 1400;
const BODY_BYTES: usize = DATAGRAM_BYTES - FRAME_BYTES;
/// Receives of one socket before others get their turn.
const RECEIVES_MAX: usize = 64;
/// Room for what arrives while a thread is busy, and for trains.
const SOCKET_BYTES: usize = 4 << 20;
/// Addresses whose rate is watched at once.
const RATES_MAX: usize = 4096;

/// Sets a socket up.
pub fn prepare(socket: &UdpSocket) -> io::Result<()> {
    // Larger than the machine allows means as large as it allows.
    let _ = sockets::set_buffer_bytes(socket, SOCKET_BYTES);
    // Kernels before 5.0 receive one by one.
    let _ = sockets::enable_trains(socket);
    Ok(())
}

/// One thread's buffers.
#[derive(Default)]
pub struct Udp {
    input: Vec<u8>,
    /// A request without its frame, with slack behind it.
    request: Vec<u8>,
    out: Out,
    /// Framed datagrams to one peer, all of `each` bytes but the last.
    train: Vec<u8>,
    each: usize,
    to: Option<SocketAddr>,
    rates: HashMap<IpAddr, Rate>,
}

/// What an address was sent in the second that `second` is.
#[derive(Clone, Copy)]
struct Rate {
    second: u32,
    bytes: u64,
}

impl Udp {
    /// Serves what has arrived.
    pub fn serve(&mut self, socket: &UdpSocket, engine: &mut Engine, batch: &mut Batch) {
        if self.input.is_empty() {
            self.input.resize(DATAGRAM_BYTES_MAX + 1, 0);
        }
        for _ in 0..RECEIVES_MAX {
            let mut input = std::mem::take(&mut self.input);
            let received = sockets::receive_train(socket, &mut input);
            if let Ok(train) = &received {
                engine.counters().bytes_read.add(train.bytes as u64);
                let datagrams = input[..train.bytes].chunks(train.each);
                let whole = datagrams.len() - usize::from(train.cut);
                for datagram in datagrams.take(whole) {
                    self.request(socket, engine, batch, datagram, train.from);
                }
                self.send(socket, engine);
            }
            self.input = input;
            if received.is_err() {
                return;
            }
        }
    }

    fn request(
        &mut self,
        socket: &UdpSocket,
        engine: &mut Engine,
        batch: &mut Batch,
        datagram: &[u8],
        from: SocketAddr,
    ) {
        // Requests fit in one datagram; what does not is not answered, as by memcached.
        let Some((frame, request)) = datagram.split_first_chunk::<FRAME_BYTES>() else { return };
        engine.counters().udp_requests.add(1);
        if frame[2..4] != [0, 0] || frame[4..6] != [0, 1] {
            return self.answer_error(socket, engine, frame, from);
        }
        if let Some((_, reply)) = engine.shared.settings.null {
            self.out.room(reply);
            self.out.advance_by(reply);
            self.frame(socket, engine, [frame[0], frame[1]], from);
            return self.out.clear();
        }
        self.request.clear();
        self.request.extend_from_slice(request);
        self.request.resize(request.len() + SLACK_BYTES, 0);
        let mut session = Session::trusted();
        let mut at = 0;
        let most = engine.shared.settings.udp_reply_bytes_max;
        // A session goes on only when what it wrote is taken away: seldom, so seldom copied.
        let mut taken = Out::new();
        loop {
            let input = (&self.request[at..], request.len() - at);
            let (used, wants) = session.consume(engine, batch, input, &mut self.out);
            at += used;
            if wants != Wants::Drain || taken.len() + self.out.len() > most {
                break;
            }
            taken.push(self.out.as_slice());
            self.out.clear();
        }
        if !taken.is_empty() {
            taken.push(self.out.as_slice());
            std::mem::swap(&mut self.out, &mut taken);
        }
        session.abandon(engine);
        if self.out.len() > most || !self.allows(engine, from, self.out.len()) {
            engine.counters().udp_refused.add(1);
            self.out.clear();
            if self.allows(engine, from, 0) {
                self.out.push(b"SERVER_ERROR multi-packet request not supported\r\n");
            }
        }
        self.frame(socket, engine, [frame[0], frame[1]], from);
        self.out.clear();
    }

    fn answer_error(
        &mut self,
        socket: &UdpSocket,
        engine: &mut Engine,
        frame: &[u8; FRAME_BYTES],
        from: SocketAddr,
    ) {
        self.out.push(b"SERVER_ERROR multi-packet request not supported\r\n");
        self.frame(socket, engine, [frame[0], frame[1]], from);
        self.out.clear();
    }

    /// Whether an address may be sent so many bytes: a forged one must not be flooded.
    fn allows(&mut self, engine: &Engine, to: SocketAddr, bytes: usize) -> bool {
        if to.ip().is_loopback() {
            return true;
        }
        let (second, most) = (engine.store.now(), engine.shared.settings.udp_bytes_per_second);
        if self.rates.len() >= RATES_MAX {
            self.rates.retain(|_, rate| rate.second == second);
            if self.rates.len() >= RATES_MAX {
                return false;
            }
        }
        let rate = self.rates.entry(to.ip()).or_insert(Rate { second, bytes: 0 });
        if rate.second != second {
            *rate = Rate { second, bytes: 0 };
        }
        rate.bytes += bytes as u64;
        rate.bytes <= most
    }

    /// Puts frames before the parts of an answer, and the datagrams into the train.
    fn frame(&mut self, socket: &UdpSocket, engine: &Engine, id: [u8; 2], to: SocketAddr) {
        if self.out.is_empty() {
            return;
        }
        let count = self.out.len().div_ceil(BODY_BYTES);
        let first_bytes = FRAME_BYTES + self.out.len().min(BODY_BYTES);
        // A train's datagrams have one length, and go to one peer.
        let joins = !engine.shared.settings.ablation.unbatched_sends
            && self.to == Some(to)
            && self.train.len() / self.each.max(1) + count <= TRAIN_MAX
            && self.train.len() + self.out.len() + count * FRAME_BYTES <= DATAGRAM_BYTES_MAX
            && self.train.len().is_multiple_of(self.each.max(1))
            && first_bytes == self.each;
        if !joins {
            self.send(socket, engine);
            (self.to, self.each) = (Some(to), first_bytes);
        }
        for (n, part) in self.out.as_slice().chunks(BODY_BYTES).enumerate() {
            if self.train.len() / self.each >= TRAIN_MAX
                || self.train.len() + FRAME_BYTES + part.len() > DATAGRAM_BYTES_MAX
            {
                flush(&mut self.train, self.each, to, socket, engine);
            }
            let (n, count) = ((n as u16).to_be_bytes(), (count as u16).to_be_bytes());
            self.train.extend_from_slice(&[id[0], id[1], n[0], n[1], count[0], count[1], 0, 0]);
            self.train.extend_from_slice(part);
        }
    }

    fn send(&mut self, socket: &UdpSocket, engine: &Engine) {
        if let Some(to) = self.to.take() {
            flush(&mut self.train, self.each, to, socket, engine);
        }
    }
}

/// A datagram that cannot be sent is lost, as any may be: the client counts a miss.
fn flush(train: &mut Vec<u8>, each: usize, to: SocketAddr, socket: &UdpSocket, engine: &Engine) {
    if train.is_empty() {
        return;
    }
    let datagrams = train.len().div_ceil(each) as u64;
    let alone = engine.shared.settings.ablation.unbatched_sends;
    if !alone && sockets::send_train(socket, train, each, to).is_ok() {
        engine.counters().udp_datagrams_sent.add(datagrams);
        engine.counters().bytes_written.add(train.len() as u64);
    } else {
        // A kernel or device that takes no trains takes datagrams.
        for datagram in train.chunks(each) {
            if sockets::send_train(socket, datagram, each, to).is_ok() {
                engine.counters().udp_datagrams_sent.add(1);
                engine.counters().bytes_written.add(datagram.len() as u64);
            }
        }
    }
    train.clear();
}
