//! Clients that take and give nothing back, on every port at once: what they cost the process in
//! memory and descriptors, and that a good client is served beside them.

use crate::common::{Node, Scratch, bytes, free_port, options, resident_bytes};
use crate::http;
use crate::memcached::Memcached;
use crate::s3::{blob, credentials};
use holdfast_base::codec::Encode;
use holdfast_base::frame::{self, FrameKind};
use holdfast_client::{Client, Connection, Endpoint, NewFile};
use holdfast_env::{Clock, RealClock};
use holdfast_s3::{REGION, Request, Signer};
use holdfast_wire::{OP_GET, OP_PUT, file};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

const MIB: u64 = 1 << 20;
/// The smallest there is.
const BUDGET: u64 = 64 * MIB;
/// What a process may grow by beside its budget: the sockets' own, threads' stacks, heaps that
/// have pieces in use, and what a debug build takes for its tasks.
const BESIDE: u64 = 96 * MIB;
/// A router has no budget for all, but a limit for each client: what waits for servers, and what
/// waits to be taken.
const ROUTER_EACH: u64 = 5 * MIB;
/// Of what the cache's readers ask for, and how often each of them does.
const VALUE_BYTES: usize = 500_000;
const VALUES: usize = 100;
/// More than the HTTP port has places.
const STRANGERS: usize = 300;

struct World {
    node: Node,
    /// In front of a cache that may keep much unsent, so that it does not end the router's own
    /// connection for what the router's clients have asked for.
    router: Memcached,
    _behind: Memcached,
    /// Native, HTTP, S3, cache, router.
    ports: [u16; 5],
    /// Of the processes before anybody came: the node's, the router's.
    resident: [u64; 2],
}

impl World {
    fn start(scratch: &Scratch) -> World {
        let [native, http, s3, cache] = [(); 4].map(|()| free_port());
        let settings = format!(
            "native_port = {native}\nhttp_port = {http}\ns3_port = {s3}\ncache_port = {cache}\n\
             clients_memory = \"64M\"\ngrace_ms = 0\n"
        );
        let node = Node::start_with(&scratch.path("data"), &settings);
        let port = free_port().to_string();
        let behind = Memcached::start(&["cache", "-t", "1", "-m", "8192", "-p", &port]);
        let servers = behind.name();
        let patient = ["route", "-p", "-1", "--patience", "20000", "--servers", &servers];
        let router = Memcached::start(&patient);
        let ports = [native, http, s3, cache, router.tcp.port()];
        let mut world = World { node, router, _behind: behind, ports, resident: [0; 2] };
        world.node.client().put("/large", &bytes(1, 15 << 20), &NewFile::default()).unwrap();
        blob(&world.node.data, &["mb", "photos"], b"").ok();
        let local = scratch.path("object");
        fs::write(&local, bytes(2, 8 << 20)).unwrap();
        blob(&world.node.data, &["put", local.to_str().unwrap(), "photos/large"], b"").ok();
        world.store(cache, &[b'v'; VALUE_BYTES]);
        world.store(world.ports[4], &[b'v'; VALUE_BYTES]);
        world.resident = [world.resident(), world.router.memory_bytes()];
        world
    }

    fn tcp(&self, port: u16) -> TcpStream {
        TcpStream::connect(("127.0.0.1", port)).unwrap()
    }

    fn resident(&self) -> u64 {
        resident_bytes(self.node.pid())
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.node.pid())).unwrap().count()
    }

    /// What a good client does; it comes again when it is asked to.
    #[track_caller]
    fn serves_the_good(&self, turn: usize) {
        let path = format!("/good-{turn}");
        let content = bytes(turn as u64, 200_000);
        let ask = |what: &mut dyn FnMut(&mut Client) -> holdfast_base::Result<()>| {
            let mut attempts = 0;
            while let Err(e) = what(&mut self.node.client()) {
                attempts += 1;
                assert!(e.kind == holdfast_base::Kind::Retry && attempts < 20, "{e}");
            }
        };
        let new = NewFile { replace: true, ..NewFile::default() };
        ask(&mut |client| client.put(&path, &content, &new).map(drop));
        ask(&mut |client| client.get(&path).map(|read| assert!(read == content)));
        let [_, http, _, cache, router] = self.ports;
        let said = http::get(http, "/health", "");
        assert!(said.starts_with("HTTP/1.1 200 ") || said.contains("\r\nmemory: "), "{said}");
        self.store(cache, b"v");
        self.store(router, b"v");
        let listed = blob(&self.node.data, &["ls", "photos"], b"");
        assert!(listed.code == Some(0), "{listed:?}");
    }

    /// As a client of the cache, or of a router.
    #[track_caller]
    fn store(&self, port: u16, value: &[u8]) {
        let key = if value.len() > 1 { "large" } else { "k" };
        let mut cache = self.tcp(port);
        cache.write_all(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes()).unwrap();
        cache.write_all(&[value, b"\r\n"].concat()).unwrap();
        let mut answer = String::new();
        BufReader::new(cache).read_line(&mut answer).unwrap();
        assert_eq!(answer, "STORED\r\n");
    }

    #[track_caller]
    fn keeps_its_budget(&self) {
        let grown = self.resident().saturating_sub(self.resident[0]);
        assert!(grown < BUDGET + BESIDE, "{} MiB more than before", grown / MIB);
        let grown = self.router.memory_bytes().saturating_sub(self.resident[1]);
        let most = (STRANGERS / 5) as u64 * ROUTER_EACH + BESIDE;
        assert!(grown < most, "the router: {} MiB more than before", grown / MIB);
    }

    /// Nothing is begun before there is memory for it: what is counted never passes the budget by
    /// more than heads of requests, whose sizes nobody knows before.
    #[track_caller]
    fn admits_first(&self) {
        let held = self.node.client().held().unwrap();
        let most = held.limit_bytes + held.limit_bytes / 16;
        assert!(held.peak_bytes <= most, "{} MiB were held", held.peak_bytes / MIB);
    }

    /// Everybody has left: what they held is free, and the system has it again.
    #[track_caller]
    fn is_as_before(&self) {
        let mut client = self.node.client();
        while client.held().unwrap().held_bytes > 0 {}
        let mut looks = 0;
        while self.resident() > self.resident[0] + BESIDE {
            looks += 1;
            assert!(looks < 100_000, "{} MiB stay", (self.resident() - self.resident[0]) / MIB);
            client.held().unwrap();
        }
    }
}

/// A signed request for the whole of an object, for a client of its own that will not read it.
fn signed_get(data: &std::path::Path, path: &str) -> Vec<u8> {
    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    signed(data, &Request::new("GET", path), NOTHING, "")
}

fn signed(data: &std::path::Path, asked: &Request<'_>, sha256: &str, more: &str) -> Vec<u8> {
    let (endpoint, access_key, secret_key) = credentials(data);
    let host = endpoint.strip_prefix("http://").unwrap();
    let signer = Signer { access_key, secret_key, region: REGION.to_owned() };
    let now_ms = RealClock::new().unix_ms();
    let signed = signer.sign(asked, host, sha256, now_ms);
    let lines: String = signed.headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    let method = asked.method;
    format!("{method} {} HTTP/1.1\r\n{lines}{more}\r\n", signed.target).into_bytes()
}

fn request(opcode: u16, id: u64, meta: &impl Encode, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&mut out, FrameKind::Request, opcode, id, 0, body.len() as u32, |m| {
        meta.encode(m)
    });
    out.extend_from_slice(body);
    out
}

/// 300 connections that asked for 60 MiB each and read nothing took 14.5 GB, of which 10 stayed
/// when they had left, and a good client waited for more than a minute.
#[test]
fn readers_that_do_not_read_take_their_share_and_no_more() {
    let scratch = Scratch::new();
    let world = World::start(&scratch);
    let get = file::Get {
        path: "/large".to_owned(),
        follow: true,
        offset: 0,
        bytes_max: 16 << 20,
        locate: false,
    };
    let asks: Vec<u8> = (1..=4).flat_map(|id| request(OP_GET, id, &get, b"")).collect();
    let [native, _, s3, cache, router] = world.ports;
    let object = signed_get(&world.node.data, "/photos/large");
    let values = b"get large\r\n".repeat(VALUES);
    let asked: [(u16, &[u8]); 5] = [
        // Whoever has not proved the secret is refused, and does not read that either.
        (native, &asks),
        (s3, b"GET /photos/large HTTP/1.1\r\nHost: h\r\n\r\n"),
        (s3, &object),
        (cache, &values),
        (router, &values),
    ];
    let over_tcp = Endpoint::parse(&format!("127.0.0.1:{native}")).unwrap();
    let (mut unix, mut tcp, mut known) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..3 {
        for _ in 0..STRANGERS / 15 {
            let mut stranger = UnixStream::connect(world.node.socket()).unwrap();
            stranger.write_all(&asks).unwrap();
            unix.push(stranger);
            let mut proved =
                Connection::connect_with(&over_tcp, options(&world.node.data)).unwrap();
            for _ in 0..4 {
                proved.submit(OP_GET, |meta| get.encode(meta), &[]).unwrap();
            }
            proved.flush().unwrap();
            known.push(proved);
            for (port, asks) in asked {
                let mut stranger = world.tcp(port);
                stranger.write_all(asks).unwrap();
                tcp.push(stranger);
            }
            world.admits_first();
        }
        world.serves_the_good(turn);
        world.keeps_its_budget();
    }
    drop((unix, tcp, known));
    world.serves_the_good(9);
    world.is_as_before();
    world.node.stop();
}

/// 2,000 half-sent bodies took a gigabyte; 950 idle connections to the HTTP port took the last
/// descriptors, and with them the writes; 4,100 to S3 kept everybody else out.
#[test]
fn half_sent_requests_and_idle_connections_lock_nobody_out() {
    let scratch = Scratch::new();
    let world = World::start(&scratch);
    let before = world.descriptors();
    let [native, http, s3, cache, router] = world.ports;
    let put = request(OP_PUT, 1, &"not a put".to_owned(), &vec![0; 16 << 20]);
    // Of somebody who may delete.
    let asked = Request::new("POST", "/photos").with("delete", "");
    let length = "content-length: 7000000\r\n";
    let mut document = signed(&world.node.data, &asked, "UNSIGNED-PAYLOAD", length);
    document.resize(document.len() + 1_000_000, b'<');
    let halves: [(u16, &[u8]); 8] = [
        (native, &put[..10]),
        (native, &put[..100_000]),
        (http, b"GET /hea"),
        (http, b"GET /health HTTP/1.1\r\nHost"),
        (s3, b"PUT /photos/half HTTP/1.1\r\nHost: h\r\nContent-Length: 999999\r\n\r\nhalf"),
        (s3, &document),
        (cache, b"set half 0 0 100000\r\nhalf"),
        (router, b"set half 0 0 100000\r\nhalf"),
    ];
    let mut strangers = Vec::new();
    for turn in 0..3 {
        for (port, sent) in halves.iter().cycle().take(STRANGERS) {
            let mut stranger = world.tcp(*port);
            // One that has made way already may refuse it.
            let _ = stranger.write_all(sent);
            strangers.push(stranger);
            strangers.push(world.tcp(http));
        }
        world.serves_the_good(turn);
        world.keeps_its_budget();
    }
    let grown = world.descriptors() - before;
    // The HTTP port keeps to its places, however many come.
    assert!(grown < strangers.len() * 2 / 3, "{grown} for {} strangers", strangers.len());
    drop(strangers);
    world.serves_the_good(9);
    world.is_as_before();
    world.node.stop();
}
