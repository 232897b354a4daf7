//! Drives a [`Fleet`] on this machine: a UDP socket and a connection a server, opened when they
//! are first needed, watched by a poller that others may share.

use crate::fleet::absence::Absences;
use crate::fleet::{Closing, Fleet, Outcome, Settings};
use crate::ring::Member;
use holdfast_base::{Error, Result};
use holdfast_env::Clock;
use holdfast_env::poll::{Event, Interest, Poller};
use holdfast_env::sockets::{self, DATAGRAM_BYTES_MAX};
use holdfast_env::tls::{RECORD_BYTES, TlsSession, TlsTarget};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

/// Receives of one socket before others get their turn.
const RECEIVES_MAX: usize = 16;
/// Room for answers that arrive while the client is busy.
const SOCKET_BYTES: usize = 4 << 20;

/// What is sealed at a time.
const SEALED_BYTES: usize = 256 << 10;

/// Tokens a server: of its connection, its UDP socket, and the connection that is drained.
const TOKENS: u64 = 3;

#[derive(Default)]
struct Link {
    udp: Option<UdpSocket>,
    tcp: Option<TcpStream>,
    /// Given up: read until its server has closed it.
    draining: Option<TcpStream>,
    is_connected: bool,
    interest: Option<Interest>,
    /// Of the connection, where its server speaks TLS.
    tls: Option<Sealed>,
}

/// A connection over TLS, and what of it waits to be sent.
struct Sealed {
    session: TlsSession,
    out: Vec<u8>,
    sent: usize,
}

impl Sealed {
    fn begin(target: &TlsTarget) -> io::Result<Sealed> {
        let mut out = Vec::new();
        Ok(Sealed { session: TlsSession::connect(target, &mut out)?, out, sent: 0 })
    }

    fn waits(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends what waits. `WouldBlock` if the server takes no more for now.
    fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.waits() {
            match sockets::send(stream, &self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        (self.out, self.sent) = (Vec::new(), 0);
        Ok(())
    }
}

pub struct Links {
    pub fleet: Fleet,
    clock: Arc<dyn Clock>,
    addresses: Vec<SocketAddr>,
    links: Vec<Link>,
    /// Of servers that speak TLS; empty if none does.
    targets: Vec<Option<TlsTarget>>,
    /// Servers whose TLS has something to send, requests or not.
    unsent: Vec<u32>,
    buffer: Vec<u8>,
    /// What came over TLS, opened.
    plain: Vec<u8>,
    /// Tokens from here on are ours.
    token: u64,
}

/// The address that a server's name means now.
pub fn resolve(member: &Member) -> Result<SocketAddr> {
    let doing = |why: String| Error::invalid(format!("find server `{member}`: {why}"));
    let mut found = (member.host.as_str(), member.port)
        .to_socket_addrs()
        .map_err(|e| doing(format!("{e}: give a host that can be looked up")))?;
    found.next().ok_or_else(|| doing("its name has no address: give another".to_owned()))
}

impl Links {
    pub fn new(
        addresses: Vec<SocketAddr>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        token: u64,
        absences: Arc<Absences>,
    ) -> Links {
        Links {
            fleet: Fleet::sharing(addresses.len(), settings, absences),
            clock,
            links: addresses.iter().map(|_| Link::default()).collect(),
            addresses,
            targets: Vec::new(),
            unsent: Vec::new(),
            buffer: Vec::new(),
            plain: Vec::new(),
            token,
        }
    }

    /// Speaks TLS over the connections of these servers, numbered as the addresses are.
    pub fn with_tls(mut self, targets: Vec<Option<TlsTarget>>) -> Links {
        self.targets = targets;
        self
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    pub fn owns(&self, token: u64) -> bool {
        token >= self.token && token - self.token < (self.links.len() as u64) * TOKENS
    }

    /// Gives up what is late, and sends what the window admits.
    pub fn advance(&mut self, poller: &Poller, done: &mut impl FnMut(u64, Outcome<'_>)) {
        let now = self.now_ns();
        self.fleet.expire(now, done);
        self.fleet.pump(now, done);
        while let Some(server) = self.unsent.pop() {
            self.send_stream(poller, server, done);
        }
        while let Some(server) = self.fleet.take_work() {
            self.work(poller, server, done);
        }
    }

    /// What the core wants of one server's sockets.
    fn work(&mut self, poller: &Poller, server: u32, done: &mut impl FnMut(u64, Outcome<'_>)) {
        if let Some(closing) = self.fleet.closes(server) {
            self.close(poller, server, closing);
        }
        if !self.fleet.outbox(server).is_empty() {
            self.send_datagrams(poller, server, done);
        }
        if self.fleet.connects(server) {
            self.connect(poller, server, done);
        }
        self.send_stream(poller, server, done);
    }

    fn close(&mut self, poller: &Poller, server: u32, closing: Closing) {
        let link = &mut self.links[server as usize];
        (link.is_connected, link.interest, link.tls) = (false, None, None);
        let had = link.tcp.take();
        if closing == Closing::Now {
            return;
        }
        let token = self.token + u64::from(server) * TOKENS + 2;
        let drains = had.filter(|stream| {
            stream.shutdown(Shutdown::Write).is_ok()
                && poller.change(stream, token, Interest::Read).is_ok()
        });
        if drains.is_none() {
            self.fleet.drained(server);
        }
        // One that is still there was waited for long enough.
        link.draining = drains.or(link.draining.take());
    }

    /// Drops what a server still answers to a connection that was given up; looks for its end.
    fn drain(&mut self, server: u32) {
        if self.buffer.is_empty() {
            self.buffer.resize(DATAGRAM_BYTES_MAX, 0);
        }
        let link = &mut self.links[server as usize];
        for _ in 0..RECEIVES_MAX {
            let Some(stream) = &link.draining else { return };
            match sockets::receive(stream, &mut self.buffer) {
                Ok(1..) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => {
                    link.draining = None;
                    self.fleet.drained(server);
                }
            }
        }
    }

    fn send_datagrams(
        &mut self,
        poller: &Poller,
        server: u32,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let link = &mut self.links[server as usize];
        let to = self.addresses[server as usize];
        if link.udp.is_none() {
            // Without a socket its requests are lost: misses, as if the network had lost them.
            link.udp = open_udp(to).ok();
            if let Some(socket) = &link.udp {
                let _ =
                    poller.add(socket, self.token + u64::from(server) * TOKENS + 1, Interest::Read);
            }
        }
        let mut is_refused = false;
        if let Some(socket) = &link.udp {
            for (run, each) in self.fleet.outbox(server).runs() {
                is_refused |= send_run(socket, run, each, to);
            }
        }
        self.fleet.outbox(server).clear();
        if is_refused {
            self.fleet.unreachable(server, self.clock.monotonic_ns(), done);
        }
    }

    fn connect(&mut self, poller: &Poller, server: u32, done: &mut impl FnMut(u64, Outcome<'_>)) {
        let token = self.token + u64::from(server) * TOKENS;
        let made = sockets::connect_tcp(self.addresses[server as usize]).and_then(|stream| {
            sockets::set_nodelay(&stream)?;
            poller.add(&stream, token, Interest::Write)?;
            Ok(stream)
        });
        let link = &mut self.links[server as usize];
        match made {
            Ok(stream) => {
                link.tls = None;
                (link.tcp, link.interest, link.is_connected) =
                    (Some(stream), Some(Interest::Write), false);
            }
            Err(_) => self.fleet.disconnected(server, self.clock.monotonic_ns(), done),
        }
    }

    fn send_stream(
        &mut self,
        poller: &Poller,
        server: u32,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) {
        let link = &mut self.links[server as usize];
        let Some(stream) = link.tcp.as_ref().filter(|_| link.is_connected) else { return };
        let sent = match &mut link.tls {
            None => send_plain(&mut self.fleet, server, stream),
            Some(tls) => send_sealed(&mut self.fleet, server, stream, tls),
        };
        let interest = match sent {
            Ok(()) => Interest::Read,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Interest::ReadWrite,
            Err(_) => return self.hang_up(server, done),
        };
        if link.interest != Some(interest) {
            link.interest = Some(interest);
            if poller.change(stream, self.token + u64::from(server) * TOKENS, interest).is_err() {
                self.hang_up(server, done);
            }
        }
    }

    fn hang_up(&mut self, server: u32, done: &mut impl FnMut(u64, Outcome<'_>)) {
        let link = &mut self.links[server as usize];
        (link.tcp, link.is_connected, link.interest, link.tls) = (None, false, None, None);
        self.fleet.disconnected(server, self.clock.monotonic_ns(), done);
    }

    /// Something happened at one of our sockets. Answers are taken here; [`Links::advance`] sends.
    pub fn event(&mut self, event: Event, done: &mut impl FnMut(u64, Outcome<'_>)) {
        let number = event.token - self.token;
        let server = (number / TOKENS) as u32;
        match number % TOKENS {
            1 => return self.receive_datagrams(server, done),
            2 => return self.drain(server),
            _ => {}
        }
        let link = &mut self.links[server as usize];
        let Some(stream) = &link.tcp else { return };
        if !link.is_connected {
            if event.ended || stream.take_error().is_ok_and(|error| error.is_some()) {
                return self.hang_up(server, done);
            }
            link.is_connected = true;
            let Some(Some(target)) = self.targets.get(server as usize) else {
                return self.fleet.connected(server);
            };
            // Its requests wait for the handshake.
            match Sealed::begin(target) {
                Ok(tls) => link.tls = Some(tls),
                Err(_) => return self.hang_up(server, done),
            }
            return self.unsent.push(server);
        }
        if event.readable {
            self.receive_stream(server, done);
        }
        if event.writable {
            if self.links[server as usize].tls.as_ref().is_some_and(Sealed::waits) {
                self.unsent.push(server);
            }
            self.fleet.writable(server);
        }
    }

    fn receive_datagrams(&mut self, server: u32, done: &mut impl FnMut(u64, Outcome<'_>)) {
        if self.buffer.is_empty() {
            self.buffer.resize(DATAGRAM_BYTES_MAX, 0);
        }
        for _ in 0..RECEIVES_MAX {
            let Some(socket) = &self.links[server as usize].udp else { return };
            match sockets::receive_train(socket, &mut self.buffer) {
                Ok(train) => {
                    let now = self.clock.monotonic_ns();
                    for datagram in self.buffer[..train.bytes].chunks(train.each) {
                        self.fleet.datagram(server, now, datagram, done);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    self.fleet.unreachable(server, self.clock.monotonic_ns(), done);
                }
                Err(_) => return,
            }
        }
    }

    /// Takes the first `n` bytes of the buffer, which came over TLS.
    fn open(
        &mut self,
        server: u32,
        n: usize,
        done: &mut impl FnMut(u64, Outcome<'_>),
    ) -> io::Result<()> {
        let link = &mut self.links[server as usize];
        let (Some(tls), Some(stream)) = (&mut link.tls, &link.tcp) else { return Ok(()) };
        self.plain.resize(self.buffer.len() + RECORD_BYTES, 0);
        let was_handshaking = tls.session.is_handshaking();
        let opened = tls.session.open(&self.buffer[..n], &mut self.plain, &mut tls.out);
        if tls.waits() {
            self.unsent.push(server);
        }
        let opened = opened.inspect_err(|_| {
            // Why it ends is the server's to know, too, as far as it takes it at once.
            let _ = tls.send(stream);
        })?;
        if was_handshaking && !tls.session.is_handshaking() {
            self.fleet.connected(server);
        }
        if opened.bytes > 0 {
            let now = self.clock.monotonic_ns();
            self.fleet.received(server, now, &self.plain[..opened.bytes], done);
        }
        match opened.ended {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(()),
        }
    }

    fn receive_stream(&mut self, server: u32, done: &mut impl FnMut(u64, Outcome<'_>)) {
        if self.buffer.is_empty() {
            self.buffer.resize(DATAGRAM_BYTES_MAX, 0);
        }
        for _ in 0..RECEIVES_MAX {
            let Some(stream) = &self.links[server as usize].tcp else { return };
            match sockets::receive(stream, &mut self.buffer) {
                Ok(0) => return self.hang_up(server, done),
                Ok(n) => {
                    if self.links[server as usize].tls.is_some() {
                        if self.open(server, n, done).is_err() {
                            return self.hang_up(server, done);
                        }
                    } else {
                        let now = self.clock.monotonic_ns();
                        self.fleet.received(server, now, &self.buffer[..n], done);
                    }
                    if n < self.buffer.len() {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.hang_up(server, done),
            }
        }
    }
}

/// What the core has for a server, as it is.
fn send_plain(fleet: &mut Fleet, server: u32, stream: &TcpStream) -> io::Result<()> {
    while !fleet.output(server).is_empty() {
        match sockets::send(stream, fleet.output(server)) {
            Ok(n) => fleet.output_sent(server, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What the core has for a server, sealed once what was sealed before is sent: so that requests
/// that are given up meanwhile are not.
fn send_sealed(
    fleet: &mut Fleet,
    server: u32,
    stream: &TcpStream,
    tls: &mut Sealed,
) -> io::Result<()> {
    loop {
        tls.send(stream)?;
        let output = fleet.output(server);
        if output.is_empty() {
            return Ok(());
        }
        let part = output.len().min(SEALED_BYTES);
        tls.session.seal(&output[..part], &mut tls.out)?;
        fleet.output_sent(server, part);
    }
}

fn open_udp(to: SocketAddr) -> io::Result<UdpSocket> {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = sockets::bind_udp(any, false)?;
    // Connected: only the server's datagrams arrive, and word that nobody listens there.
    socket.connect(to)?;
    // What fails here only costs speed.
    let _ = sockets::set_buffer_bytes(&socket, SOCKET_BYTES);
    let _ = sockets::enable_trains(&socket);
    Ok(socket)
}

/// Sends a run of datagrams; whether the host says that nobody listens. What cannot be sent is
/// lost, as any datagram may be.
fn send_run(socket: &UdpSocket, run: &[u8], each: usize, to: SocketAddr) -> bool {
    let refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    let sent = match run.len() > each {
        true => sockets::send_train(socket, run, each, to),
        false => sockets::send(socket, run).map(|_| ()),
    };
    match sent {
        Ok(()) => false,
        Err(e) if refused(&e) => true,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => false,
        // A kernel or device that takes no trains takes datagrams.
        Err(_) => {
            run.chunks(each).any(|one| sockets::send(socket, one).is_err_and(|e| refused(&e)))
        }
    }
}
