//! Clients with limits and without at one reactor, whose clock the test turns. A request of somebody
//! else, answered, says that the reactor has been round since.

use crate::clients::{Clients, Seat};
use crate::clock::Time;
use crate::net::{
    Batch, ConnectionId, Handshake, OP_PING, Role, Server, ServerConfig, Service, Who,
};
use crate::{HoldMutex, Secret, SeededRng};
use holdfast_base::codec::Reader;
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_base::rates::Allowance;
use holdfast_base::{Error, Kind, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const ECHO: u16 = 0x7001;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

struct Echo {
    clients: Arc<Clients>,
    ended: mpsc::Sender<ConnectionId>,
    /// Whose tokens stand no more.
    revoked: Arc<Mutex<Vec<String>>>,
}

impl Service for Echo {
    fn check_standing(&self, who: &Who) -> Result<()> {
        match who {
            Who::Named(named) if self.revoked.held().contains(&named.name) => {
                Err(Error::denied(format!("`{}` was revoked", named.name)))
            }
            _ => Ok(()),
        }
    }

    fn seat(&self, who: &Who, now_ns: u64) -> Result<Option<Seat>> {
        match who {
            Who::Named(named) if named.role == Role::Token => {
                self.clients.seat(&named.name, now_ns)
            }
            _ => Ok(None),
        }
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let (meta, body) = (batch.meta(i).to_vec(), batch.take_body(i).into_vec());
            batch.reply(i, |out| out.extend_from_slice(&meta), body);
        }
    }

    fn disconnected(&self, connection: ConnectionId) {
        let _ = self.ended.send(connection);
    }
}

struct World {
    server: Server,
    secret: Secret,
    time: Arc<Time>,
    clients: Arc<Clients>,
    ended: mpsc::Receiver<ConnectionId>,
    revoked: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new(allowed: Allowance) -> World {
        let clients = Clients::new(allowed, Allowance::default());
        let (secret, time) = (Secret::draw(&SeededRng::new(1)), Arc::new(Time::default()));
        let (sender, ended) = mpsc::channel();
        let revoked = Arc::<Mutex<Vec<String>>>::default();
        let echo = Echo { clients: clients.clone(), ended: sender, revoked: revoked.clone() };
        let config = ServerConfig {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            reactors: 1,
            // Of the clock that stands: nothing ends but what is done.
            shutdown_grace: Duration::from_secs(3600),
            secret: Some(secret.clone()),
            ..ServerConfig::default()
        };
        let server = Server::start(config, Arc::new(echo), time.clone()).unwrap();
        World { server, secret, time, clients, ended, revoked }
    }

    /// As the client of a token of this name; what it hears where it is not let in.
    fn enter(&self, name: &str) -> Result<Asker> {
        let rng = SeededRng::new(7);
        self.greet(Handshake::with_token(&self.secret.token(name, 1), &rng))
    }

    /// As somebody without limits.
    fn other(&self) -> Asker {
        let rng = SeededRng::new(8);
        self.greet(Handshake::new(self.secret.clone().into(), Role::Client, &rng)).unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "a client that says what the test wants")]
    fn greet(&self, mut handshake: Handshake) -> Result<Asker> {
        let mut stream = TcpStream::connect(self.server.tcp_addresses()[0]).unwrap();
        // For who breaks this: an answer that never comes is a failure, and not a test that hangs.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        loop {
            stream.write_all(&handshake.output()).unwrap();
            let mut said = [0; 4096];
            let bytes = stream.read(&mut said).unwrap();
            assert!(bytes > 0, "the server ends the greeting with a reason");
            if handshake.received(&said[..bytes])? {
                return Ok(Asker { stream, received: Vec::new() });
            }
        }
    }

    /// Time passes, and the reactor notices.
    fn pass(&self, ns: u64, other: &mut Asker) {
        // Who has heard an answer may be faster than the reactor, which has yet to note its bytes.
        other.round_trip();
        self.time.0.fetch_add(ns, Ordering::Relaxed);
        other.round_trip();
        // What was due at the end of that round is done by the next.
        other.round_trip();
    }
}

struct Asker {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Asker {
    fn send(&mut self, ids: std::ops::Range<u64>, deadline_ms: u32, body: usize) {
        let mut out = Vec::new();
        for id in ids {
            let body_bytes = body as u32;
            frame::encode(&mut out, FrameKind::Request, ECHO, id, deadline_ms, body_bytes, |_| {});
            out.resize(out.len() + body, 7);
        }
        self.stream.write_all(&out).unwrap();
    }

    fn round_trip(&mut self) {
        let mut ping = Vec::new();
        frame::encode(&mut ping, FrameKind::Request, OP_PING, 1, 0, 0, |_| {});
        self.stream.write_all(&ping).unwrap();
        assert_eq!(self.wait_for(1), [(1, None)]);
    }

    /// The answers that are complete: whose, and the error.
    fn parse(&mut self) -> Vec<(u64, Option<(Kind, String)>)> {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Ok(Decoded::Frame(header)) = frame::decode(&self.received[at..]) {
            let meta = at + HEADER_BYTES..at + HEADER_BYTES + header.meta_bytes as usize;
            let end = meta.end + header.body_bytes as usize;
            if self.received.len() < end {
                break;
            }
            let kind = u16::try_from(header.status()).ok().and_then(Kind::from_code);
            let text = |kind| (kind, Reader::new(&self.received[meta]).str().unwrap().to_owned());
            found.push((header.request_id, kind.map(text)));
            at = end;
        }
        self.received.drain(..at);
        found
    }

    /// Waits for so many answers.
    fn wait_for(&mut self, count: usize) -> Vec<(u64, Option<(Kind, String)>)> {
        let mut found = self.parse();
        let mut piece = vec![0; 64 << 10];
        while found.len() < count {
            let bytes = self.stream.read(&mut piece).unwrap();
            assert!(bytes > 0, "the connection ended");
            self.received.extend_from_slice(&piece[..bytes]);
            found.extend(self.parse());
        }
        found
    }

    fn answered(&mut self, ids: std::ops::Range<u64>) {
        let expected: Vec<_> = ids.map(|id| (id, None)).collect();
        assert_eq!(self.wait_for(expected.len()), expected);
    }

    /// What it hears until the connection ends: how many bytes, and the error that came last.
    fn rest(&mut self) -> (usize, Option<String>) {
        let (mut bytes, mut last) = (0, None);
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = self.stream.read(&mut piece) {
            bytes += n;
            self.received.extend_from_slice(&piece[..n]);
            last = self.parse().pop().and_then(|(_, e)| e).map(|(_, why)| why).or(last);
        }
        (bytes, last)
    }

    fn hears_nothing(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let e = self.stream.read(&mut [0]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_client_over_its_rate_is_slowed_and_another_at_the_same_reactor_is_not() {
    let world = World::new(Allowance { requests: 5, ..Allowance::default() });
    let (mut noisy, mut second) = (world.enter("noisy").unwrap(), world.enter("noisy").unwrap());
    let (mut quiet, mut other) = (world.enter("quiet").unwrap(), world.other());
    noisy.send(1..21, 0, 0);
    noisy.answered(1..6);
    // All of its connections together, and nobody else's.
    second.send(1..2, 0, 0);
    quiet.send(1..5, 0, 0);
    quiet.answered(1..5);
    noisy.hears_nothing();
    second.hears_nothing();
    world.pass(S, &mut other);
    // Who has waited longest, then its other connections.
    noisy.answered(6..11);
    second.hears_nothing();
    world.pass(S / 5, &mut other);
    second.answered(1..2);
    noisy.hears_nothing();
    world.pass(100 * S, &mut other);
    noisy.answered(11..16);
    world.pass(S, &mut other);
    noisy.answered(16..21);
    let slowed = world.clients.slowed(102 * S);
    assert_eq!(slowed.len(), 1, "{slowed:?}");
    assert_eq!((&*slowed[0].client, slowed[0].limit), ("client `noisy`", "client_requests"));
}

#[test]
fn bytes_both_ways_are_debt_that_what_comes_next_pays() {
    let world = World::new(Allowance { bytes: 100_000, ..Allowance::default() });
    let (mut large, mut other) = (world.enter("large").unwrap(), world.other());
    // Half of a megabyte there and back: ten seconds of it.
    large.send(1..2, 0, 500_000);
    large.answered(1..2);
    large.send(2..3, 0, 0);
    world.pass(8 * S, &mut other);
    large.hears_nothing();
    world.pass(2 * S, &mut other);
    large.answered(2..3);
}

#[test]
fn a_deadline_that_passes_while_a_request_waits_is_answered() {
    let world = World::new(Allowance { requests: 1, ..Allowance::default() });
    let (mut slow, mut other) = (world.enter("slow").unwrap(), world.other());

    // In one write, so that they are received together.
    let mut out = Vec::new();
    for (id, deadline_ms) in [(1, 0), (2, 0), (3, 500), (4, 0)] {
        frame::encode(&mut out, FrameKind::Request, ECHO, id, deadline_ms, 0, |_| {});
    }
    slow.stream.write_all(&out).unwrap();
    slow.answered(1..2);
    world.pass(499 * MS, &mut other);
    slow.hears_nothing();
    world.pass(MS, &mut other);
    let late = slow.wait_for(1);
    assert_eq!(late[0].0, 3);
    assert_eq!(late[0].1.as_ref().unwrap().0, Kind::Retry);
    world.pass(500 * MS, &mut other);
    slow.answered(2..3);
    world.pass(S, &mut other);
    slow.answered(4..5);
    assert_eq!(world.server.counters().deadlines_passed.load(Ordering::Relaxed), 1);
}

#[test]
fn one_connection_too_many_of_a_name_is_refused_and_those_that_ended_do_not_count() {
    let world = World::new(Allowance { connections: 2, ..Allowance::default() });
    let first = world.enter("many").unwrap();
    let _second = world.enter("many").unwrap();
    let e = world.enter("many").err().unwrap();
    assert_eq!(e.kind, Kind::Retry);
    assert!(e.message.contains("limit of 2") && e.message.contains("`client_connections`"), "{e}");
    world.enter("few").unwrap().round_trip();
    drop(first);
    // The refused one, `few`, and this one end in any order.
    (0..3).for_each(|_| assert!(world.ended.recv().is_ok()));
    world.enter("many").unwrap().round_trip();
}

#[test]
fn an_end_answers_what_was_received_and_waits_for_nobodys_turn() {
    let world = World::new(Allowance { requests: 5, ..Allowance::default() });
    let mut noisy = world.enter("noisy").unwrap();
    noisy.send(1..21, 0, 0);
    noisy.answered(1..6);
    world.server.shutdown();
    noisy.answered(6..21);
}

#[test]
fn who_owes_more_than_anybody_may_hears_how_long_it_takes() {
    let world = World::new(Allowance { bytes: 1000, ..Allowance::default() });
    let (mut large, mut other) = (world.enter("large").unwrap(), world.other());
    // There and back: three minutes and a third.
    large.send(1..2, 0, 100_000);
    large.answered(1..2);
    other.round_trip();
    let refused = |large: &mut Asker, ids: std::ops::Range<u64>| {
        for (id, (found, e)) in ids.clone().zip(large.wait_for(ids.count())) {
            let (kind, why) = e.unwrap();
            assert_eq!((found, kind), (id, Kind::Retry));
            assert!(why.contains("`client_bytes`, 1000 B/s: ask again in "), "{why}");
        }
    };
    large.send(2..4, 0, 0);
    refused(&mut large, 2..4);
    // Not at once again, whatever it is.
    large.send(4..5, 0, 0);
    world.pass(S / 2, &mut other);
    large.hears_nothing();
    world.pass(S / 2, &mut other);
    refused(&mut large, 4..5);
    // A body that comes is read to its end, and no further.
    world.pass(S, &mut other);
    large.send(5..7, 0, 40_000);
    refused(&mut large, 5..6);
    world.pass(S, &mut other);
    refused(&mut large, 6..7);
    // 278 seconds are left, and heads and sentences, of which some wait for their turn.
    large.send(7..8, 0, 0);
    world.pass(1, &mut other);
    large.hears_nothing();
    world.pass(250 * S, &mut other);
    large.hears_nothing();
    world.pass(40 * S, &mut other);
    large.answered(7..8);
}

#[test]
fn who_leaves_while_it_waits_is_gone_before_its_debt_is_paid() {
    let world = World::new(Allowance { requests: 1, connections: 1, ..Allowance::default() });
    let (mut noisy, mut other) = (world.enter("noisy").unwrap(), world.other());
    noisy.send(1..11, 0, 0);
    noisy.answered(1..2);
    other.round_trip();
    drop(noisy);
    assert!(world.ended.recv_timeout(Duration::from_secs(20)).is_ok(), "its place is taken still");
    assert!(world.enter("noisy").is_ok());
    assert_eq!(
        world.server.counters().requests.load(Ordering::Relaxed),
        8,
        "greetings, one of ten"
    );
}

#[test]
fn who_was_revoked_is_ended_within_a_second_whatever_it_does() {
    let world = World::new(Allowance { requests: 1000, ..Allowance::default() });
    let (mut noisy, mut idle) = (world.enter("noisy").unwrap(), world.enter("idle").unwrap());
    let (mut quiet, mut other) = (world.enter("quiet").unwrap(), world.other());
    noisy.send(1..2001, 0, 0);
    noisy.answered(1..1001);
    world.revoked.held().extend(["noisy".to_owned(), "idle".to_owned()]);
    world.pass(S / 4, &mut other);
    idle.hears_nothing();
    world.pass(3 * S / 4, &mut other);
    assert_eq!(idle.rest().1.unwrap(), "`idle` was revoked");
    let last = noisy.rest().1.unwrap();
    assert!(last.contains("`noisy` was revoked"), "{last}");
    quiet.send(1..2, 0, 0);
    quiet.answered(1..2);
}

#[test]
fn answers_that_a_revoked_client_has_not_taken_are_dropped() {
    const BODY: usize = 8 << 20;
    let world = World::new(Allowance::default());
    let (mut slow, mut other) = (world.enter("slow").unwrap(), world.other());
    // More than the kernel takes for somebody who reads nothing.
    for id in 1..6 {
        slow.send(id..id + 1, 0, BODY);
        other.round_trip();
    }
    world.revoked.held().push("slow".to_owned());
    world.pass(S, &mut other);
    assert!(world.ended.recv_timeout(Duration::from_secs(20)).is_ok(), "it is connected still");
    let (bytes, _) = slow.rest();
    assert!(bytes < 5 * BODY, "{bytes} bytes were sent to a client that was revoked");
}
