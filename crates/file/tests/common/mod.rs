//! A whole node in this process, served over a Unix socket in a directory of its own, and a proxy
//! that loses answers.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod held;
pub mod work;

use holdfast_base::ids::SessionId;
use holdfast_base::{Result, checksum::crc32c};
use holdfast_client::{Client, ClientOptions, Connection, Endpoint, NewFile};
use holdfast_env::net::{Server, ServerConfig};
use holdfast_env::{Budget, Disk, RealClock, RealDisk, RealRng, Secret, tasks};
use holdfast_file::FileFace;
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_server::Native;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running node; its directory is deleted at the end.
pub struct World {
    pub data: PathBuf,
    node: Option<Arc<Node>>,
    server: Option<Server>,
    /// Where it is served over TCP, and what has to be proved there.
    guarded: Option<(SocketAddr, Secret)>,
    chunk_bytes: u64,
}

/// The node's native protocol, with files.
pub fn service(node: &Arc<Node>) -> Arc<Native> {
    let native = Native::new(node.clone(), Budget::new(1 << 30), false);
    Arc::new(native.with(Arc::new(FileFace::new(node.clone(), None))))
}

impl World {
    pub fn new(name: &str) -> World {
        World::with_chunks(name, holdfast_base::limits::CHUNK_BYTES)
    }

    /// Chunks have this capacity, unless an object needs more.
    pub fn with_chunks(name: &str, chunk_bytes: u64) -> World {
        let data = std::env::temp_dir().join(format!("hf-file-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let node = Some(open(&data, chunk_bytes));
        let mut world = World { data, node, server: None, guarded: None, chunk_bytes };
        world.serve();
        world
    }

    /// A topic of its log can be held.
    pub fn with_held_log(name: &str) -> (World, held::Hold) {
        let mut world = World::new(name);
        let hold = held::Hold::default();
        world.end();
        let machine = Machine { peers: Arc::new(held::NoTime), ..machine() };
        let config =
            NodeConfig { worker_threads: 2, engine: hold.engine(), ..NodeConfig::new(&world.data) };
        world.node = Some(Node::open(machine, &config, None).unwrap());
        world.serve();
        (world, hold)
    }

    pub fn node(&self) -> &Arc<Node> {
        self.node.as_ref().unwrap()
    }

    fn serve(&mut self) {
        let service = service(self.node());
        let config = ServerConfig {
            unix: Some(self.socket()),
            tcp: self.guarded.iter().map(|(address, _)| *address).collect(),
            secret: self.guarded.as_ref().map(|(_, secret)| secret.clone()),
            reactors: 1,
            shutdown_grace: Duration::ZERO,
            ..ServerConfig::default()
        };
        let clock = self.node().machine.clock.clone();
        self.server = Some(Server::start(config, service, clock).unwrap());
    }

    /// Serves over TCP, too, who proves this secret.
    pub fn serve_over_tcp(&mut self, secret: &Secret) -> Endpoint {
        self.guarded = Some(("127.0.0.1:0".parse().unwrap(), secret.clone()));
        self.cut_connections();
        let address = self.server.as_ref().unwrap().tcp_addresses()[0];
        // The same one after a cut.
        self.guarded = Some((address, secret.clone()));
        Endpoint::Tcp(address.to_string())
    }

    fn socket(&self) -> PathBuf {
        self.data.join("holdfast.sock")
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    /// One that asks nothing again: the housekeeping that it would wait for is the test's own.
    pub fn client(&self) -> Client {
        let options = ClientOptions { patience: Duration::ZERO, ..ClientOptions::default() };
        Client::connect(&self.endpoint(), &options).unwrap()
    }

    pub fn connection(&self) -> Connection {
        Connection::connect(&self.endpoint()).unwrap()
    }

    /// Every connection breaks; the node goes on and is served again.
    pub fn cut_connections(&mut self) {
        self.server = None;
        self.serve();
    }

    /// The process ends. Whichever of its threads has the node last takes it apart, and lets go of the directory
    /// at the end of that: later than nobody has the node any more.
    fn end(&mut self) {
        (self.server, self.node) = (None, None);
        while RealDisk.lock(&self.data.join("LOCK")).is_err() {
            std::thread::yield_now();
        }
    }

    /// The process ends and another one starts in the same directory.
    pub fn restart(&mut self) {
        self.end();
        self.node = Some(open(&self.data, self.chunk_bytes));
        self.serve();
    }

    /// The log and the snapshots are lost: another node begins on what the stores have.
    #[expect(clippy::disallowed_methods, reason = "what a person does with the directory")]
    pub fn lose_log(&mut self) {
        self.end();
        let aside = self.data.with_extension("lost");
        std::fs::rename(&self.data, &aside).unwrap();
        Node::make_directory(&RealDisk, &self.data).unwrap();
        std::fs::create_dir_all(self.data.join("chunks")).unwrap();
        for entry in std::fs::read_dir(aside.join("chunks")).unwrap().map(|entry| entry.unwrap()) {
            if entry.file_type().unwrap().is_file() && entry.file_name() != "LOCK" {
                let to = self.data.join("chunks").join(entry.file_name());
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
        std::fs::remove_dir_all(aside).unwrap();
        self.node = Some(open(&self.data, self.chunk_bytes));
        self.serve();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn machine() -> Machine {
    Machine {
        disk: Arc::new(RealDisk),
        engine: Arc::new(holdfast_env::RealEngine),
        clock: Arc::new(RealClock::new()),
        rng: Arc::new(RealRng),
        peers: Arc::new(holdfast_env::net::NoPeers),
        meter: Arc::default(),
    }
}

fn open(data: &Path, chunk_bytes: u64) -> Arc<Node> {
    let config = NodeConfig { worker_threads: 2, chunk_bytes, ..NodeConfig::new(data) };
    Node::open(machine(), &config, None).unwrap()
}

/// Bytes that differ from place to place, and from seed to seed.
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    holdfast_base::random::bytes(seed, bytes)
}

/// Compares by checksum first: a failure does not print megabytes.
pub fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    assert_eq!(crc32c(got), crc32c(expected), "{what}: checksum");
    assert!(got == expected, "{what}: bytes");
}

pub fn replacing() -> NewFile {
    NewFile { replace: true, ..NewFile::default() }
}

/// A session opened by hand, for requests that are repeated by hand.
pub fn open_session(connection: &mut Connection) -> Result<SessionId> {
    let response = connection.call(holdfast_wire::OP_OPEN_SESSION, |_| {}, &[])?;
    Ok(<SessionId as holdfast_base::codec::Decode>::from_bytes(response.meta())?)
}

/// Stands between client and node, and loses answers when told to: the connection breaks after
/// the node has carried out the request and before the client hears of it.
pub struct Proxy {
    path: PathBuf,
    lose: Arc<AtomicU32>,
}

impl Proxy {
    pub fn new(world: &World) -> Proxy {
        let path = world.data.join("proxy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let lose = Arc::new(AtomicU32::new(0));
        let (upstream, losing) = (world.socket(), lose.clone());
        tasks::spawn("proxy", move || {
            for client in listener.incoming().map_while(std::io::Result::ok) {
                let Ok(server) = UnixStream::connect(&upstream) else { continue };
                let (from_client, to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                tasks::spawn("proxy-up", move || copy(from_client, to_server, None)).unwrap();
                let losing = losing.clone();
                tasks::spawn("proxy-down", move || copy(server, client, Some(&losing))).unwrap();
            }
        })
        .unwrap();
        Proxy { path, lose }
    }

    pub fn client(&self) -> Client {
        let options =
            ClientOptions { reconnect_pause: Duration::from_millis(1), ..ClientOptions::default() };
        Client::connect(&self.endpoint(), &options).unwrap()
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }

    /// The next `count` answers are lost, each with its connection; but for the first of each connection, by
    /// which a client knows that somebody is there.
    pub fn lose_answers(&self, count: u32) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// Answers that are still to be lost.
    pub fn left(&self) -> u32 {
        self.lose.load(Ordering::SeqCst)
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, lose: Option<&AtomicU32>) {
    let mut buffer = vec![0; 64 << 10];
    let mut is_first = true;
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let may_be_lost = lose.filter(|_| !std::mem::replace(&mut is_first, false));
        let lost = may_be_lost.is_some_and(|lose| {
            lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        });
        if lost || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
