//! Clients that take and give nothing back, on every port at once: what they cost the process in
//! memory and descriptors, and that a good client is served beside them.

use crate::common::{Node, Scratch, bytes, free_port};
use crate::http;
use crate::s3::blob;
use holdfast_base::codec::Encode;
use holdfast_base::frame::{self, FrameKind};
use holdfast_client::{Client, NewFile};
use holdfast_wire::{OP_GET, OP_PUT, file};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

const MIB: u64 = 1 << 20;
/// The smallest there is.
const BUDGET: u64 = 64 * MIB;
/// What a process may grow by beside its budget: the sockets' own, threads' stacks, heaps that
/// have pieces in use, and what a debug build takes for its tasks.
const BESIDE: u64 = 96 * MIB;
/// More than the HTTP port has places.
const STRANGERS: usize = 300;

struct World {
    node: Node,
    ports: [u16; 4],
    /// Of the process before anybody came.
    resident: u64,
}

impl World {
    fn start(scratch: &Scratch) -> World {
        let ports = [(); 4].map(|()| free_port());
        let [native, http, s3, cache] = ports;
        let settings = format!(
            "native_port = {native}\nhttp_port = {http}\ns3_port = {s3}\ncache_port = {cache}\n\
             clients_memory = \"64M\"\ngrace_ms = 0\n"
        );
        let node = Node::start_with(&scratch.path("data"), &settings);
        let mut world = World { node, ports, resident: 0 };
        world.node.client().put("/large", &bytes(1, 15 << 20), &NewFile::default()).unwrap();
        blob(&world.node.data, &["mb", "photos"], b"").ok();
        let local = scratch.path("object");
        fs::write(&local, bytes(2, 8 << 20)).unwrap();
        blob(&world.node.data, &["put", local.to_str().unwrap(), "photos/large"], b"").ok();
        world.resident = world.resident();
        world
    }

    fn tcp(&self, port: u16) -> TcpStream {
        TcpStream::connect(("127.0.0.1", port)).unwrap()
    }

    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.node.pid());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
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
        let [_, http, _, cache] = self.ports;
        let said = http::get(http, "/health", "");
        assert!(said.starts_with("HTTP/1.1 200 ") || said.contains("\r\nmemory: "), "{said}");
        let mut cache = self.tcp(cache);
        cache.write_all(b"set k 0 0 1\r\nv\r\n").unwrap();
        let mut answer = [0; 8];
        cache.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
        let listed = blob(&self.node.data, &["ls", "photos"], b"");
        assert!(listed.code == Some(0), "{listed:?}");
    }

    #[track_caller]
    fn keeps_its_budget(&self) {
        let grown = self.resident().saturating_sub(self.resident);
        assert!(grown < BUDGET + BESIDE, "{} MiB more than before", grown / MIB);
    }

    /// Everybody has left: what they held is free, and the system has it again.
    #[track_caller]
    fn is_as_before(&self) {
        let mut client = self.node.client();
        while client.held().unwrap().held_bytes > 0 {}
        let mut looks = 0;
        while self.resident() > self.resident + BESIDE {
            looks += 1;
            assert!(looks < 100_000, "{} MiB stay", (self.resident() - self.resident) / MIB);
            client.held().unwrap();
        }
    }
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
    let (mut unix, mut tcp) = (Vec::new(), Vec::new());
    for turn in 0..3 {
        for _ in 0..STRANGERS / 6 {
            let mut stranger = UnixStream::connect(world.node.socket()).unwrap();
            stranger.write_all(&asks).unwrap();
            unix.push(stranger);
            let mut stranger = world.tcp(world.ports[0]);
            stranger.write_all(&asks).unwrap();
            tcp.push(stranger);
            // Of S3, what anybody may ask; refused, and never read.
            let mut stranger = world.tcp(world.ports[2]);
            stranger.write_all(b"GET /photos/large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            tcp.push(stranger);
        }
        world.serves_the_good(turn);
        world.keeps_its_budget();
    }
    drop((unix, tcp));
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
    let [native, http, s3, cache] = world.ports;
    let put = request(OP_PUT, 1, &"not a put".to_owned(), &vec![0; 16 << 20]);
    let halves: [(u16, &[u8]); 6] = [
        (native, &put[..10]),
        (native, &put[..100_000]),
        (http, b"GET /hea"),
        (http, b"GET /health HTTP/1.1\r\nHost"),
        (s3, b"PUT /photos/half HTTP/1.1\r\nHost: h\r\nContent-Length: 999999\r\n\r\nhalf"),
        (cache, b"set half 0 0 100000\r\nhalf"),
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
