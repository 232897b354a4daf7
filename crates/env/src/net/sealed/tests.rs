//! Streams through TLS, with every limit drawn and kernels that take little; and the real server
//! and peers over it, beside those who speak something else.

use super::super::connection::Connection;
use super::super::tls::TlsClient;
use super::super::{
    Batch, ConnectionId, Credentials, Link, Named, OP_HELLO, PeerReply, PeerRequest, Peers, Reply,
    Response, Role, Server, ServerConfig, Service, TcpPeers, Who,
};
use super::*;
use crate::tls::{ClientCertificates, TlsConfig, TlsFiles};
use crate::trial::Trial;
use crate::{RealClock, Rng, Secret, SeededRng};
use holdfast_base::frame::{FrameKind, Header};
use holdfast_base::{Error, Kind, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn server_config() -> TlsConfig {
    let files = TlsFiles {
        chain: file("cert.pem"),
        key: file("key.pem"),
        client_authorities: Some(file("ca.pem")),
        client_certificates: ClientCertificates::Asked,
        only_1_3: true,
    };
    TlsConfig::load(&files).unwrap()
}

fn client(shows: bool) -> TlsClient {
    let (chain, key) = (file("cert.pem"), file("key.pem"));
    TlsClient::load(&file("ca.pem"), shows.then_some((&chain, &key))).unwrap()
}

/// The client's and the server's end of a way whose kernel buffers are as small as they can be.
fn ends(shows: bool) -> [(Socket, Sealed); 2] {
    let (a, b) = UnixStream::pair().unwrap();
    let socket = |stream: UnixStream| {
        stream.set_nonblocking(true).unwrap();
        let fd: OwnedFd = stream.into();
        let least: libc::c_int = 1;
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            use std::os::fd::AsRawFd;
            // SAFETY: the pointer and length describe `least`, which outlives the call.
            let set = unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const least).cast(),
                    size_of::<libc::c_int>() as u32,
                )
            };
            assert_eq!(set, 0);
        }
        Socket::from_nonblocking(fd, true)
    };
    let name = "localhost".try_into().unwrap();
    let own = Tls::client(&client(shows).0, name).unwrap();
    [
        (socket(a), Sealed::new(own)),
        (socket(b), Sealed::new(Tls::server(server_config().rustls()).unwrap())),
    ]
}

fn would_block<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
        Err(e) => panic!("{e}"),
    }
}

/// Until neither side has anything more to say.
fn shake(ends: &mut [(Socket, Sealed); 2]) {
    for _ in 0..2000 {
        for (socket, sealed) in ends.iter_mut() {
            would_block(sealed.shake(socket, Some(Wait::No)));
        }
        if ends.iter().all(|(_, sealed)| sealed.tls.is_ready()) {
            return;
        }
    }
    panic!("the handshake does not end");
}

/// One way of a stream: what is sent, what the sender has heard of as sent, what has arrived.
struct Flow {
    bytes: Vec<u8>,
    queued: usize,
    sent: usize,
    arrived: Vec<u8>,
}

impl Flow {
    /// Offers a piece of what is queued, in parts, as long as nothing of it has been promised; then
    /// at least as much again.
    fn send(&mut self, rng: &SeededRng, (socket, sealed): &mut (Socket, Sealed)) {
        if self.queued == self.sent {
            let more = rng.next_u64() as usize % 70_000;
            self.queued = (self.queued + more).min(self.bytes.len());
        }
        let offered = &self.bytes[self.sent..self.queued];
        if offered.is_empty() {
            return;
        }
        let cut = 1 + rng.next_u64() as usize % offered.len();
        let parts = [IoSlice::new(&offered[..cut]), IoSlice::new(&offered[cut..])];
        if let Some(sent) = would_block(sealed.send(socket, &parts)) {
            assert!(sent > 0);
            self.sent += sent;
        }
    }

    fn receive(&mut self, rng: &SeededRng, (socket, sealed): &mut (Socket, Sealed)) {
        let size = |most: u64| 1 + (rng.next_u64() % most) as usize;
        let (mut front, mut tail) = (vec![0; size(40_000)], vec![0; size(5000)]);
        if rng.next_u64().is_multiple_of(2) {
            let mut sink = TwoPieces { pieces: [&mut front, &mut tail], filled: 0 };
            let got = would_block(sealed.receive(socket, &mut sink, Wait::No)).unwrap_or(0);
            assert_eq!(got, sink.filled);
            let whole = [front, tail].concat();
            self.arrived.extend_from_slice(&whole[..got]);
        } else {
            let (end, before) = (self.arrived.len() + front.len(), self.arrived.len());
            let mut sink = Appended { target: &mut self.arrived, end, tail: &mut tail, in_tail: 0 };
            let got = would_block(sealed.receive(socket, &mut sink, Wait::No)).unwrap_or(0);
            let behind = sink.in_tail;
            assert_eq!(got, self.arrived.len() - before + behind);
            assert!(behind == 0 || self.arrived.len() == end, "the tail before its turn");
            self.arrived.extend_from_slice(&tail[..behind]);
        }
    }
}

#[test]
fn streams_come_through_both_ways_whatever_the_kernel_takes_and_memory_holds() {
    for seed in 0..24 {
        let _trial = Trial::drawn(seed).enter();
        let rng = SeededRng::new(seed);
        let mut ends = ends(seed % 2 == 0);
        shake(&mut ends);
        assert_eq!(ends[1].1.tls.certificate().is_some(), seed % 2 == 0);
        // A byte a record is slow: less of it.
        let bytes = if SEAL_BYTES.get() < 1000 { 3000 } else { 300_000 };
        let mut flows = [0, 1].map(|way| {
            let bytes = (0..bytes).map(|i: usize| (i / 7 + way) as u8).collect();
            Flow { bytes, queued: 0, sent: 0, arrived: Vec::new() }
        });
        let mut steps = 0;
        while flows.iter().any(|flow| flow.arrived.len() < flow.bytes.len()) {
            steps += 1;
            assert!(steps < 400_000, "seed {seed}: it stands still");
            let way = (rng.next_u64() % 2) as usize;
            match rng.next_u64() % 2 {
                0 => flows[way].send(&rng, &mut ends[way]),
                _ => flows[way].receive(&rng, &mut ends[1 - way]),
            }
        }
        for flow in &flows {
            assert!(flow.arrived == flow.bytes, "seed {seed}: other bytes arrived");
        }
        // Nothing is held for who is at rest, once the last acknowledgement has been asked for.
        for (way, (socket, sealed)) in ends.iter_mut().enumerate() {
            let rest = &flows[way].bytes[flows[way].sent..];
            if !rest.is_empty() {
                assert_eq!(sealed.send(socket, &[IoSlice::new(rest)]).unwrap(), rest.len());
            }
            assert_eq!((sealed.held_bytes(), sealed.has_more()), (0, false), "seed {seed}");
        }
        // The end is told, and comes behind everything.
        let [(socket, sealed), (other, its)] = &mut ends;
        sealed.end(socket);
        let mut nothing = [0; 10];
        let mut sink = TwoPieces { pieces: [&mut nothing, &mut []], filled: 0 };
        assert_eq!(its.receive(other, &mut sink, Wait::No).unwrap(), 0);
    }
}

/// A handshake came to three sends of the server's, each of which woke its client: its flight, the
/// session's tickets, and the answer; and a fourth to a client that had closed, which its kernel
/// refused. That was a third of what the handshake cost.
#[test]
fn tickets_go_with_the_first_answer_and_nothing_to_who_has_left() {
    let [(near, mut client), (far, mut server)] = ends(false);
    let arrived = |socket: &Socket, sealed: &mut Sealed| {
        let mut bytes = [0; 100];
        let mut sink = TwoPieces { pieces: [&mut bytes, &mut []], filled: 0 };
        let got = would_block(sealed.receive(socket, &mut sink, Wait::No));
        got.map(|got| bytes[..got].to_vec())
    };
    while !client.tls.is_ready() {
        would_block(client.shake(&near, Some(Wait::No)));
        if !client.tls.is_ready() {
            would_block(server.shake(&far, Some(Wait::No)));
        }
    }
    assert_eq!(client.send(&near, &[IoSlice::new(b"ask")]).unwrap(), 3);
    assert_eq!(arrived(&far, &mut server).unwrap(), b"ask");
    assert!(server.tls.is_ready() && !near.is_readable().unwrap(), "it was woken for tickets");
    assert!(server.held_bytes() > 0, "what waits is counted");
    assert_eq!(server.send(&far, &[IoSlice::new(b"told")]).unwrap(), 4);
    assert_eq!((arrived(&near, &mut client).unwrap(), server.held_bytes()), (b"told".into(), 0));
    // The client says that it ends: it may still read, and is told the same.
    client.end(&near);
    assert_eq!(arrived(&far, &mut server).unwrap(), b"");
    server.end(&far);
    assert!(near.is_readable().unwrap());
    // One that ends without a word has been cut off.
    let [(near, client), (far, mut server)] = {
        let mut ends = ends(false);
        shake(&mut ends);
        ends
    };
    drop(client);
    near.shutdown_write();
    assert_eq!(arrived(&far, &mut server).unwrap(), b"");
    while near.receive(&mut [0; 4096], Wait::No, &mut Vec::new()).is_ok() {}
    server.end(&far);
    assert!(!near.is_readable().unwrap(), "a word to nobody");
}

#[test]
fn a_handshake_that_never_ends_is_bounded() {
    let [_, (socket, mut sealed)] = ends(false);
    // A handshake message of 16 MiB, announced in records as large as they may be.
    let record = |first: bool| {
        let mut record = vec![0x16, 3, 3, 0x40, 0];
        record.resize(5 + RECORD_BYTES, 0);
        if first {
            record[5..9].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
        }
        record
    };
    let mut nothing = TwoPieces { pieces: [&mut [], &mut []], filled: 0 };
    let refused = (0..100).find_map(|i| sealed.begin(&socket, &record(i == 0), &mut nothing).err());
    assert!(refused.is_some(), "it waits for all of it: {} bytes", sealed.held_bytes());
    assert!(sealed.held_bytes() < 256 << 10, "{}", sealed.held_bytes());
}

#[derive(Debug)]
struct Shown {
    client: TlsClient,
    refuses: bool,
    role: Role,
    revoked: Arc<AtomicBool>,
    generation: Arc<AtomicU64>,
}

impl Credentials for Shown {
    fn server(&self) -> TlsConfig {
        server_config()
    }

    fn client(&self) -> TlsClient {
        self.client.clone()
    }

    fn identify(&self, certificate: &[u8]) -> Result<Named> {
        assert!(!certificate.is_empty());
        if self.refuses {
            return Err(Error::denied("see who that is: it names nobody here"));
        }
        let (name, serial) = ("node-1".to_owned(), "01".to_owned());
        Ok(Named { role: self.role, name, serial, until_s: i64::MAX })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn check_standing(&self, _: &Named) -> Result<()> {
        match self.revoked.load(Ordering::Relaxed) {
            true => Err(Error::denied("ask it: it was revoked")),
            false => Ok(()),
        }
    }
}

/// Answers with what it was sent, and keeps who asked; what it was asked to hold; and whether
/// certificates are worth nothing any more.
#[derive(Default)]
struct Echo(Mutex<Vec<Who>>, Mutex<Option<Reply>>, AtomicBool);

impl Service for Echo {
    fn check_standing(&self, who: &Who) -> Result<()> {
        match (who, self.2.load(Ordering::Relaxed)) {
            (Who::Named(_), true) => Err(Error::denied("answer it: it was revoked")),
            _ => Ok(()),
        }
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            if batch.header(i).opcode == HOLD {
                *self.1.lock().unwrap() = Some(batch.defer(i));
                continue;
            }
            self.0.lock().unwrap().push(batch.who().clone());
            let (meta, body) = (batch.meta(i).to_vec(), batch.take_body(i).into_vec());
            batch.reply(i, |out| out.extend_from_slice(&meta), body);
        }
    }
}

const ECHO: u16 = 0x7001;
/// Keeps the request until somebody takes it.
const HOLD: u16 = 0x7002;

struct World {
    echo: Arc<Echo>,
    server: Server,
    secret: Secret,
}

impl World {
    fn new(credentials: Option<Shown>) -> World {
        let (echo, secret) = (Arc::new(Echo::default()), Secret::draw(&SeededRng::new(1)));
        let config = ServerConfig {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            reactors: 1,
            shutdown_grace: Duration::ZERO,
            secret: Some(secret.clone()),
            credentials: credentials.map(|shown| Arc::new(shown) as Arc<dyn Credentials>),
            ..ServerConfig::default()
        };
        let server = Server::start(config, echo.clone(), Arc::new(RealClock::new())).unwrap();
        World { echo, server, secret }
    }

    fn address(&self) -> SocketAddr {
        self.server.tcp_addresses()[0]
    }

    fn peers(&self, credentials: Option<Shown>) -> TcpPeers {
        let credentials = credentials.map(|shown| Arc::new(shown) as Arc<dyn Credentials>);
        let clock = Arc::new(RealClock::new());
        TcpPeers::guarded(clock, None, self.secret.clone().into(), credentials).unwrap()
    }

    fn ask(
        &self,
        peers: &TcpPeers,
        meta: &[u8],
        body: Vec<u8>,
    ) -> mpsc::Receiver<Result<PeerReply>> {
        self.ask_for(ECHO, peers, meta, body)
    }

    fn ask_for(
        &self,
        opcode: u16,
        peers: &TcpPeers,
        meta: &[u8],
        body: Vec<u8>,
    ) -> mpsc::Receiver<Result<PeerReply>> {
        let (sender, receiver) = mpsc::channel();
        let request = PeerRequest {
            opcode,
            meta: meta.to_vec(),
            body: Some(Arc::new(body)),
            deadline_ms: 30_000,
        };
        let done = Box::new(move |result| sender.send(result).unwrap());
        peers.call(&self.address().to_string(), request, done);
        receiver
    }
}

fn shown() -> Option<Shown> {
    let (client, revoked, generation) = (client(true), Arc::default(), Arc::default());
    Some(Shown { client, refuses: false, role: Role::Node, revoked, generation })
}

/// A thief who had connected before an authority was exchanged was answered for as long as he liked.
#[test]
fn who_was_believed_by_an_old_authority_has_to_show_it_again() {
    let generation = Arc::new(AtomicU64::new(0));
    let world = World::new(Some(Shown { generation: generation.clone(), ..shown().unwrap() }));
    let peers = world.peers(shown());
    assert!(world.ask(&peers, b"x", Vec::new()).recv().unwrap().is_ok());
    generation.store(1, Ordering::Relaxed);
    let refused = world.ask(&peers, b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert!(refused.message.contains("authorities"), "{refused}");
    // Of the new one: everything is as before.
    assert!(world.ask(&world.peers(shown()), b"x", Vec::new()).recv().unwrap().is_ok());
}

/// Whoever had a certificate of the authority for a node's host was told everything: an authority of
/// a company signs for more than its nodes.
#[test]
fn a_server_that_is_no_node_or_is_revoked_is_told_nothing() {
    let world = World::new(shown());
    for (refuses, role, why) in
        [(true, Role::Node, "names nobody"), (false, Role::Client, "it is no node")]
    {
        let peers = world.peers(Some(Shown { refuses, role, ..shown().unwrap() }));
        let refused = world.ask(&peers, b"x", Vec::new()).recv().unwrap().unwrap_err();
        assert!(refused.kind == Kind::Denied && refused.message.contains(why), "{refused}");
    }
    assert!(world.echo.0.lock().unwrap().is_empty());
    // One that is revoked while it is asked is asked no more.
    let revoked = Arc::new(AtomicBool::new(false));
    let peers = world.peers(Some(Shown { revoked: revoked.clone(), ..shown().unwrap() }));
    assert!(world.ask(&peers, b"x", Vec::new()).recv().unwrap().is_ok());
    revoked.store(true, Ordering::Relaxed);
    let refused = world.ask(&peers, b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert!(refused.message.contains("was revoked"), "{refused}");
    assert_eq!(world.echo.0.lock().unwrap().len(), 1);
}

#[test]
fn peers_and_server_know_each_other_by_certificates_whatever_the_limits() {
    for seed in 0..12 {
        let _trial = Trial::drawn(seed).enter();
        let world = World::new(shown());
        let peers = world.peers(shown());
        // A byte a record is slow: less of it.
        let less = if SEAL_BYTES.get() < 1000 { 100 } else { 1 };
        let sizes = [0usize, 1, 4095, 16_384, 16_385, 100_000].map(|bytes| bytes / less);
        let asked: Vec<_> = (0..30)
            .map(|i| {
                let body: Vec<u8> = (0..sizes[i % sizes.len()]).map(|at| (at + i) as u8).collect();
                (world.ask(&peers, &[i as u8], body.clone()), body, i as u8)
            })
            .collect();
        for (answer, body, i) in asked {
            let answer = answer.recv().unwrap().unwrap();
            assert!(answer.meta == [i] && answer.body == body, "seed {seed}, request {i}");
        }
        let who = world.echo.0.lock().unwrap();
        assert!(who.iter().all(|who| who.is_node() && matches!(who, Who::Named(_))), "{who:?}");
    }
}

/// A revocation was seen by new connections alone, and a read that waited was answered behind it.
#[test]
fn who_is_revoked_is_answered_no_more_not_even_what_it_waits_for() {
    let world = World::new(shown());
    let peers = world.peers(shown());
    assert!(world.ask(&peers, b"x", Vec::new()).recv().unwrap().is_ok());
    let waits = world.ask_for(HOLD, &peers, b"secret", Vec::new());
    // In order behind it, so the server has both.
    assert!(world.ask(&peers, b"x", Vec::new()).recv().unwrap().is_ok());
    world.echo.2.store(true, Ordering::Relaxed);
    let reply = world.echo.1.lock().unwrap().take().unwrap();
    reply.send(Response::ok(b"secret".to_vec(), ()));
    let refused = waits.recv().unwrap().unwrap_err();
    assert!(refused.message.contains("was revoked"), "{refused}");
    // The connection has ended: with what somebody shows by now they are let in.
    let again = world.peers(shown());
    let refused = world.ask(&again, b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert!(refused.message.contains("was revoked"), "{refused}");
    world.echo.2.store(false, Ordering::Relaxed);
    assert!(world.ask(&world.peers(shown()), b"x", Vec::new()).recv().unwrap().is_ok());
}

#[test]
fn who_shows_a_certificate_that_names_nobody_is_told_so() {
    let world = World::new(Some(Shown { refuses: true, ..shown().unwrap() }));
    let refused = world.ask(&world.peers(shown()), b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert!(refused.kind == Kind::Denied && refused.message.contains("names nobody"), "{refused}");
    assert!(world.echo.0.lock().unwrap().is_empty());
}

/// Over TLS without a certificate one is as much of a stranger as without TLS.
#[test]
fn who_shows_no_certificate_still_has_to_prove_the_secret() {
    let world = World::new(shown());
    let silent = Some(Shown { client: client(false), ..shown().unwrap() });
    let refused = world.ask(&world.peers(silent), b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert_eq!(refused.kind, Kind::Denied, "{refused}");
    assert!(world.echo.0.lock().unwrap().is_empty());
}

#[test]
fn tls_meets_a_server_without_and_plain_words_one_with_certificates() {
    let without = World::new(None);
    let refused = without.ask(&without.peers(shown()), b"x", Vec::new()).recv().unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.kind == Kind::Denied && refused.message.contains("no TLS"), "{refused}");
    // On this machine the secret is enough for a client, and makes nobody a node: all nodes have it.
    let with = World::new(shown());
    let refused = with.ask(&with.peers(None), b"x", Vec::new()).recv().unwrap().unwrap_err();
    assert!(refused.kind == Kind::Denied && refused.message.contains("cert node"), "{refused}");
    assert!(with.echo.0.lock().unwrap().is_empty());
}

/// On this machine the secret is proof enough; on another one whoever relays it would hear all.
#[test]
fn other_machines_are_asked_for_tls() {
    let credentials: Arc<dyn Credentials> = Arc::new(shown().unwrap());
    let config = ServerConfig {
        secret: Some(Secret::draw(&SeededRng::new(1))),
        credentials: Some(credentials),
        ..ServerConfig::default()
    };
    for (remote, is_welcome) in
        [("127.0.0.1:9", true), ("[::1]:9", true), ("[::ffff:127.0.0.1]:9", true)]
            .into_iter()
            .chain([("10.0.0.1:9", false), ("[2001:db8::1]:9", false)])
    {
        let (a, _b) = UnixStream::pair().unwrap();
        let socket = Socket::from_elsewhere(a.into(), remote.parse().unwrap());
        let mut connection = Connection::new(Link::new(socket), ConnectionId(1), &config);
        let hello = [&[1u8, 1][..], &[7; 32]].concat();
        let header = Header {
            kind: FrameKind::Request,
            opcode: OP_HELLO,
            request_id: 1,
            deadline_or_status: 0,
            meta_bytes: hello.len() as u32,
            body_bytes: 0,
        };
        let greeted = connection.greet(&header, &hello, (&Echo::default(), &RealClock::new()));
        assert_eq!(greeted.is_ok(), is_welcome, "{remote}: {greeted:?}");
        if let Err(e) = greeted {
            assert!(e.kind == Kind::Denied && e.message.contains("--cacert"), "{e}");
        }
    }
}

/// What somebody hears who sends `said` and nothing more.
#[expect(clippy::disallowed_methods, reason = "a client of another kind")]
fn told(address: SocketAddr, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(said).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // A reset behind the answer is no answer.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn noise_and_other_versions_end_with_an_alert_and_reach_nobody() {
    let world = World::new(shown());
    // A ClientHello of TLS 1.1: version, 32 bytes, no session, one suite, no compression.
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    hello.extend_from_slice(&[7; 32]);
    hello.extend_from_slice(&[0, 0, 2, 0, 0x2f, 1, 0]);
    let answer = told(world.address(), &hello);
    assert_eq!((answer[0], answer[5]), (0x15, 2), "a fatal alert: {answer:?}");
    let mut noise = hello.clone();
    noise[3] = 0xff;
    for said in [&noise[..], &[0x16; 500], &hello[..20], &[0x16], &[0x16, 3, 3, 0, 0]] {
        let answer = told(world.address(), said);
        assert!(answer.is_empty() || answer[0] == 0x15, "{said:?}: {answer:?}");
    }
    assert!(world.echo.0.lock().unwrap().is_empty());
    // It goes on with others.
    let answer = world.ask(&world.peers(shown()), b"x", Vec::new()).recv().unwrap();
    assert_eq!(answer.unwrap().meta, b"x");
}
