//! The real peers against the real server, and against sockets that behave badly.

use super::*;
use crate::net::{Batch, Reply, Response, Server, ServerConfig, Service};
use crate::{RealClock, Secret, Secrets, SeededRng, tasks};
use holdfast_base::{Error, Kind};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

/// Answers with what it was sent.
const ECHO: u16 = 0x7001;
/// Keeps the request until it is let go.
const HOLD: u16 = 0x7002;
const REFUSE: u16 = 0x7003;

#[derive(Default)]
struct Mirror {
    held: Mutex<Vec<Reply>>,
    seen: Mutex<Vec<u64>>,
}

impl Mirror {
    /// Waits until so many requests are held, and takes them.
    fn take(&self, count: usize) -> Vec<Reply> {
        loop {
            let mut held = self.held.lock().unwrap();
            if held.len() >= count {
                return std::mem::take(&mut held);
            }
            drop(held);
            std::thread::yield_now();
        }
    }
}

impl Service for Mirror {
    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            match batch.header(i).opcode {
                ECHO => {
                    let meta = batch.meta(i).to_vec();
                    if let Ok(number) = <[u8; 8]>::try_from(&meta[..]) {
                        self.seen.lock().unwrap().push(u64::from_le_bytes(number));
                    }
                    let body = batch.take_body(i).into_vec();
                    batch.reply(i, |out| out.extend_from_slice(&meta), body);
                }
                HOLD => {
                    let reply = batch.defer(i);
                    self.held.lock().unwrap().push(reply);
                }
                _ => batch.reply_error(i, &Error::fenced("not by you")),
            }
        }
    }
}

struct World {
    mirror: Arc<Mirror>,
    server: Option<Server>,
    peers: Arc<TcpPeers>,
    address: String,
}

fn serve(mirror: &Arc<Mirror>, address: &str) -> Server {
    let config = ServerConfig {
        tcp: vec![address.parse().unwrap()],
        reactors: 1,
        shutdown_grace: Duration::ZERO,
        ..ServerConfig::default()
    };
    Server::start(config, mirror.clone(), Arc::new(RealClock::new())).unwrap()
}

fn peers() -> Arc<TcpPeers> {
    Arc::new(TcpPeers::start(Arc::new(RealClock::new())).unwrap())
}

impl World {
    fn new() -> World {
        let mirror = Arc::new(Mirror::default());
        let server = serve(&mirror, "127.0.0.1:0");
        let address = server.tcp_addresses()[0].to_string();
        World { mirror, server: Some(server), peers: peers(), address }
    }

    fn ask(&self, opcode: u16, meta: &[u8], body: &[u8]) -> mpsc::Receiver<Result<PeerReply>> {
        ask(&self.peers, &self.address, opcode, meta, Some(Arc::new(body.to_vec())), 30_000)
    }

    fn echo(&self, text: &str) -> Result<Vec<u8>> {
        self.ask(ECHO, text.as_bytes(), b"").recv().unwrap().map(|reply| reply.meta)
    }
}

fn ask(
    peers: &TcpPeers,
    address: &str,
    opcode: u16,
    meta: &[u8],
    body: Option<SharedBody>,
    deadline_ms: u32,
) -> mpsc::Receiver<Result<PeerReply>> {
    let (sender, receiver) = mpsc::channel();
    let request = PeerRequest { opcode, meta: meta.to_vec(), body, deadline_ms };
    // Whoever does not wait for the answer has dropped the receiver.
    peers.call(address, request, Box::new(move |result| drop(sender.send(result))));
    receiver
}

fn kind(answer: mpsc::Receiver<Result<PeerReply>>) -> Kind {
    answer.recv().unwrap().unwrap_err().kind
}

/// Sockets of this process that touch `port` and are marked as yielding, as the kernel says.
fn yielding_sockets(port: u16) -> usize {
    let option = |fd: i32| {
        let (mut value, mut bytes): (libc::c_int, libc::socklen_t) = (0, 4);
        let to = (&raw mut value).cast();
        // SAFETY: both pointers are to values that outlive the call, `bytes` is the first's size.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, to, &mut bytes) };
        value
    };
    type Name =
        unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;
    let touches = |fd: i32, name: Name| {
        // SAFETY: all zeros is a value of this plain C struct.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut bytes = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: the pointers are to values that outlive the call, `bytes` is the first's size.
        unsafe { name(fd, (&raw mut address).cast(), &mut bytes) };
        u16::from_be(address.sin_port) == port
    };
    let ends = |fd: &i32| touches(*fd, libc::getsockname) || touches(*fd, libc::getpeername);
    (0..1024).filter(ends).filter(|fd| option(*fd) == 2).count()
}

#[test]
fn what_can_wait_has_a_connection_of_its_own_that_yields_at_both_ends() {
    let w = World::new();
    let port = w.address.rsplit_once(':').unwrap().1.parse().unwrap();
    w.echo("first").unwrap();
    assert_eq!(yielding_sockets(port), 0);
    let (sender, receiver) = mpsc::channel();
    let request =
        PeerRequest { opcode: ECHO, meta: b"second".to_vec(), body: None, deadline_ms: 30_000 };
    w.peers.call_yielding(&w.address, request, Box::new(move |reply| drop(sender.send(reply))));
    assert_eq!(receiver.recv().unwrap().unwrap().meta, b"second");
    assert_eq!(yielding_sockets(port), 2);
    let counters = w.server.as_ref().unwrap().counters();
    assert_eq!(counters.accepted.load(Ordering::Relaxed), 2);
    w.echo("third").unwrap();
    assert_eq!(yielding_sockets(port), 2, "the first connection is as it was");
}

#[test]
fn answers_come_back_and_requests_arrive_in_order() {
    let w = World::new();
    let answers: Vec<_> = (0..500u64).map(|i| w.ask(ECHO, &i.to_le_bytes(), b"")).collect();
    for (i, answer) in (0..500u64).zip(answers) {
        assert_eq!(answer.recv().unwrap().unwrap().meta, i.to_le_bytes());
    }
    assert_eq!(*w.mirror.seen.lock().unwrap(), (0..500).collect::<Vec<u64>>());
    assert_eq!(kind(w.ask(REFUSE, b"", b"")), Kind::Fenced, "as the server said it");
    assert_eq!(w.server.as_ref().unwrap().counters().accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_deadline_fails_its_call_alone_and_the_late_answer_is_forgotten() {
    let w = World::new();
    let slow = ask(&w.peers, &w.address, HOLD, b"", None, 20);
    let held = w.mirror.take(1);
    assert_eq!(kind(slow), Kind::Retry);
    held.into_iter().for_each(|reply| reply.send(Response::ok(b"late".to_vec(), ())));
    assert_eq!(w.echo("still here").unwrap(), b"still here");
    assert_eq!(w.server.as_ref().unwrap().counters().accepted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_broken_connection_fails_what_is_outstanding_and_the_next_call_connects_anew() {
    let mut w = World::new();
    let held: Vec<_> = (0..3).map(|_| w.ask(HOLD, b"", b"")).collect();
    let _owed = w.mirror.take(3);
    w.server = None;
    for answer in held {
        assert_eq!(kind(answer), Kind::Retry);
    }
    // Nobody listens: refused, and then refused without asking for a while.
    assert_eq!(w.echo("x").unwrap_err().kind, Kind::Retry);
    w.server = Some(serve(&w.mirror, &w.address));
    let said = loop {
        match w.echo("again") {
            Ok(said) => break said,
            Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
        }
    };
    assert_eq!(said, b"again");
}

#[test]
fn an_address_that_refuses_or_does_not_exist_fails_with_retry() {
    let peers = peers();
    // Bound, so that nobody else listens there, and given up.
    #[expect(clippy::disallowed_methods, reason = "a port that nobody listens on")]
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for _ in 0..3 {
        assert_eq!(kind(ask(&peers, &address, ECHO, b"", None, 1000)), Kind::Retry);
    }
    assert_eq!(kind(ask(&peers, "no port", ECHO, b"", None, 5000)), Kind::Retry);
}

#[test]
fn a_name_is_looked_up_and_each_of_its_addresses_tried() {
    let w = World::new();
    let port = w.address.parse::<SocketAddr>().unwrap().port();
    let answer = ask(&w.peers, &format!("localhost:{port}"), ECHO, b"hi", None, 30_000);
    assert_eq!(answer.recv().unwrap().unwrap().meta, b"hi");
}

#[test]
fn large_bodies_travel_both_ways_among_small_ones() {
    let w = World::new();
    let sizes = [0, 1, 4096, 4097, 70_000, 1 << 20, 16 << 20, 3, 300_000, 16 << 20];
    let body = |bytes: usize| (0..bytes).map(|i| (i * 7 + bytes) as u8).collect::<Vec<u8>>();
    let answers: Vec<_> = sizes.map(|bytes| w.ask(ECHO, b"m", &body(bytes))).into_iter().collect();
    for (bytes, answer) in sizes.into_iter().zip(answers) {
        let reply = answer.recv().unwrap().unwrap();
        assert!(reply.body == body(bytes) && reply.meta == b"m", "{bytes} bytes");
    }
}

#[test]
fn a_peer_that_does_not_read_costs_a_bounded_amount_and_others_go_on() {
    let w = World::new();
    #[expect(clippy::disallowed_methods, reason = "a server that does not read")]
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let body: SharedBody = Arc::new(vec![0u8; 8 << 20]);
    let calls: Vec<_> =
        (0..20).map(|_| ask(&w.peers, &address, ECHO, b"", Some(body.clone()), 60_000)).collect();
    let refused = calls.iter().filter(|answer| answer.recv_timeout(Duration::ZERO).is_ok());
    assert_eq!(w.echo("others").unwrap(), b"others");
    // The thread has seen every call by now, and refused those over the limit.
    assert_eq!(refused.count(), 20 - (PEER_BYTES_MAX / (8 << 20)) as usize);
    drop(deaf);
}

#[test]
fn too_many_requests_are_refused_until_some_are_answered() {
    let w = World::new();
    let mut calls: Vec<_> = (0..PEER_REQUESTS_MAX).map(|_| w.ask(HOLD, b"", b"")).collect();
    assert_eq!(kind(w.ask(HOLD, b"", b"")), Kind::Retry);
    let held = w.mirror.take(PEER_REQUESTS_MAX);
    held.into_iter().for_each(|reply| reply.send(Response::ok(Vec::new(), ())));
    calls.drain(..).for_each(|call| drop(call.recv().unwrap().unwrap()));
    assert_eq!(w.echo("room again").unwrap(), b"room again");
}

#[test]
fn many_threads_ask_at_once() {
    let w = World::new();
    std::thread::scope(|scope| {
        for t in 0..8u8 {
            let w = &w;
            scope.spawn(move || {
                for i in 0..200u8 {
                    let body = vec![t ^ i; 1 + i as usize * 40];
                    let reply = w.ask(ECHO, &[t, i], &body).recv().unwrap().unwrap();
                    assert!(reply.meta == [t, i] && reply.body == body);
                }
            });
        }
    });
}

#[test]
fn dropping_it_fails_what_is_outstanding_even_from_a_callback() {
    let w = World::new();
    let answers: Vec<_> = (0..2).map(|_| w.ask(HOLD, b"", b"")).collect();
    let _owed = w.mirror.take(2);
    let World { peers, address, server, .. } = w;
    drop(peers);
    for answer in answers {
        assert_eq!(kind(answer), Kind::Retry);
    }
    // The last reference is the callback's own.
    let again = self::peers();
    let (sender, dropped) = mpsc::channel();
    let last = again.clone();
    let request = PeerRequest { opcode: ECHO, meta: Vec::new(), body: None, deadline_ms: 30_000 };
    let ready = Arc::new(AtomicBool::new(false));
    let wait = ready.clone();
    let done = Box::new(move |_| {
        while !wait.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        drop(last);
        sender.send(()).unwrap();
    });
    again.call(&address, request, done);
    drop(again);
    ready.store(true, Ordering::Release);
    dropped.recv().unwrap();
    drop(server);
}

#[test]
fn what_is_to_be_called_later_is_called_in_order_and_never_inside_the_call() {
    let peers = peers();
    let (sender, receiver) = mpsc::channel();
    for ms in [600, 1, 300, 1] {
        let sender = sender.clone();
        peers.after(ms, Box::new(move || sender.send(ms).unwrap()));
    }
    let called: Vec<u64> = receiver.iter().take(4).collect();
    assert_eq!(called, [1, 1, 300, 600]);
}

#[test]
fn a_peer_that_speaks_nonsense_is_left() {
    #[expect(clippy::disallowed_methods, reason = "a server of another kind")]
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tasks::spawn("nonsense", move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 32];
        socket.read_exact(&mut request).unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Until the other side has closed.
        let _ = socket.read(&mut request);
    });
    let peers = peers();
    let e = ask(&peers, &address, ECHO, b"", None, 30_000).recv().unwrap().unwrap_err();
    assert!(e.kind == Kind::Retry && e.message.contains("does not speak"), "{e}");
    task.unwrap().join();
}

/// Nodes took anybody's word over TCP for who they are.
#[test]
fn peers_prove_the_secret_first_and_say_why_they_are_refused() {
    let secret = |seed| Secret::draw(&SeededRng::new(seed));
    let mirror = Arc::new(Mirror::default());
    let config = ServerConfig {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        reactors: 1,
        shutdown_grace: Duration::ZERO,
        secret: Some(secret(1)),
        ..ServerConfig::default()
    };
    let server = Server::start(config, mirror, Arc::new(RealClock::new())).unwrap();
    let address = server.tcp_addresses()[0].to_string();
    let with =
        |secrets| TcpPeers::guarded(Arc::new(RealClock::new()), None, secrets, None).unwrap();
    let asked = |peers: &TcpPeers| ask(peers, &address, ECHO, b"x", None, 30_000).recv().unwrap();
    let known = with(secret(1).into());
    assert_eq!(asked(&known).unwrap().meta, b"x");
    // Those that yield have a connection of their own, which greets, too.
    let (sender, receiver) = mpsc::channel();
    let request = PeerRequest { opcode: ECHO, meta: vec![7], body: None, deadline_ms: 30_000 };
    known.call_yielding(&address, request, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(receiver.recv().unwrap().unwrap().meta, [7]);
    let stranger = asked(&with(Secrets::default())).unwrap_err();
    assert!(stranger.kind == Kind::Denied && stranger.message.contains("--secret"), "{stranger}");
    let other = asked(&with(secret(2).into())).unwrap_err();
    assert!(other.kind == Kind::Denied && other.message.contains("not this server's"), "{other}");
}
