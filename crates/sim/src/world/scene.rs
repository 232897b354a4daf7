//! A simulated cluster that a test directs: nodes start, end and lose bits when it says, nothing
//! goes wrong by itself. Requests are the production ones, through any node; each waits while the
//! world goes on.

use super::cell::{Cell, End, MS, SECOND, address};
use super::client::{Client, new_file};
pub use super::model::Version;
use super::{Schedule, World, locked};
use crate::guests;
use crate::task::spawn;
use crate::{Life, SimDisk};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Durability, Sequence, SessionId};
use holdfast_base::{Error, Result};
use holdfast_cluster::Command;
use holdfast_env::net::{PeerReply, PeerRequest, Peers};
use holdfast_node::Node;
use holdfast_wire::admin::Cluster;
use holdfast_wire::{self as wire, Call, chunk as bytes, file as msg};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const DEADLINE_MS: u32 = 10_000;
/// Bytes of one append to a large file.
const PIECE_BYTES: usize = 64 << 10;

pub struct Scene {
    world: Arc<World>,
    peers: Arc<dyn Peers>,
    session: SessionId,
    sequence: u64,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.world.end();
    }
}

impl Scene {
    /// A cluster of `nodes` that all run.
    pub fn new(seed: u64, nodes: usize) -> Scene {
        Scene::with_guests(seed, nodes, Vec::new())
    }

    /// The same with faces beside files, whose clients do nothing.
    pub fn with_guests(seed: u64, nodes: usize, guests: Vec<guests::Make>) -> Scene {
        let calm = Schedule::calm(seed);
        let world = World::new(&Schedule { nodes, stores: 1, clients: 1, guests, ..calm });
        for cell in &world.cells {
            let starting = cell.clone();
            world.net.after_ns(cell.number as u64 * SECOND / 10, move || starting.start());
        }
        world.operator();
        let peers = world.net.peers("director", &Life::default());
        let mut scene = Scene { world, peers, session: SessionId(0), sequence: 0 };
        scene.run_for(10 * SECOND);
        let opened = scene.ask(1, wire::OP_OPEN_SESSION, Vec::new(), None);
        scene.session = opened
            .and_then(|reply| Ok(SessionId::from_bytes(&reply.meta)?))
            .unwrap_or(SessionId(0));
        scene
    }

    pub fn nodes(&self) -> usize {
        self.world.cells.len()
    }

    fn cell(&self, number: usize) -> &Arc<Cell> {
        &self.world.cells[number - 1]
    }

    pub fn disk(&self, number: usize) -> SimDisk {
        self.cell(number).disk()
    }

    /// See [`Cell::put_back`].
    pub fn put_back(&self, number: usize, copy: SimDisk) {
        self.cell(number).put_back(copy);
    }

    pub fn node(&self, number: usize) -> Option<Arc<Node>> {
        self.cell(number).node()
    }

    /// Why the node could not start last.
    pub fn refused(&self, number: usize) -> Option<String> {
        self.cell(number).refused()
    }

    pub fn end(&self, number: usize, how: End) {
        self.cell(number).end(how);
    }

    pub fn start(&self, number: usize) {
        let cell = self.cell(number).clone();
        self.world.net.after_ns(MS, move || cell.start());
    }

    /// See [`holdfast_node::NodeConfig::near`], from the node's next start on.
    pub fn set_near(&self, number: usize, near: bool) {
        self.cell(number).near.store(near, Ordering::Relaxed);
    }

    /// Nothing reaches this node from the others, nor they it, until `heal`.
    pub fn cut_off(&self, number: usize) {
        for other in self.world.cells.iter().filter(|other| other.number != number) {
            self.world.net.cut(&address(number), &other.address);
            self.world.net.cut(&other.address, &address(number));
        }
    }

    /// Nothing goes between these two, in either direction, until `heal`.
    pub fn cut_between(&self, one: usize, other: usize) {
        self.world.net.cut(&address(one), &address(other));
        self.world.net.cut(&address(other), &address(one));
    }

    /// What recovery may take of each link.
    pub fn set_recovery(&self, bytes_per_second: u64) {
        self.world.slow_recovery(bytes_per_second);
    }

    /// Copies pass this node at so many bytes a second from now on; 0 for at once.
    pub fn narrow(&self, number: usize, bytes_per_second: u64) {
        self.world.net.narrow(&address(number), bytes_per_second);
    }

    /// Promises that were found broken while the scene ran.
    pub fn broken(&self) -> Vec<String> {
        locked(&self.world.shared.violations).clone()
    }

    pub fn heal(&self) {
        self.world.net.heal_all();
    }

    /// Whether this has happened, see [`super::SOMETIMES`].
    pub fn saw(&self, what: &str) -> bool {
        locked(&self.world.shared.seen).contains_key(what)
    }

    pub fn run_for(&self, ns: u64) {
        self.world.run_for(ns);
    }

    /// Lets the world go on until `good`, for so long at most; whether it came to that.
    pub fn until(&self, ns_max: u64, good: impl Fn(&Scene) -> bool) -> bool {
        let end_ns = self.world.net.now_ns() + ns_max;
        while !good(self) {
            if self.world.net.now_ns() >= end_ns || self.world.shared.is_over() {
                return false;
            }
            self.run_for(SECOND / 4);
        }
        true
    }

    /// `None`: every node runs and every chunk has its copies.
    pub fn why_not_whole(&self) -> Option<String> {
        self.world.why_not_whole()
    }

    /// Whose files differ from each other, or what is wrong with the views.
    pub fn violations(&self) -> Vec<String> {
        if let Err(e) = self.world.check_replicas() {
            return vec![e];
        }
        self.world.check_views();
        locked(&self.world.shared.violations).clone()
    }

    /// The answer to a request, through any node.
    pub fn ask(
        &self,
        gateway: usize,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<&[u8]>,
    ) -> Result<PeerReply> {
        let body = body.map(|body| Arc::new(body.to_vec()) as _);
        let request = PeerRequest { opcode, meta, body, deadline_ms: DEADLINE_MS };
        self.wait_for(|done| self.peers.call(&address(gateway), request, Box::new(done)))
    }

    fn wait_for<T: Send + 'static>(
        &self,
        start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>),
    ) -> Result<T> {
        let answer = Arc::new(Mutex::new(None));
        let kept = answer.clone();
        start(Box::new(move |result| *locked(&kept) = Some(result)));
        let end_ns = self.world.net.now_ns() + 10 * DEADLINE_MS as u64 * MS;
        loop {
            if let Some(answer) = locked(&answer).take() {
                return answer;
            }
            if self.world.net.now_ns() > end_ns {
                return Err(Error::retry("wait for an answer: none comes"));
            }
            // To the next event, however far off: time goes by in events alone.
            self.world.net.step();
        }
    }

    /// Has a node propose what no build of today would.
    pub fn propose(&self, number: usize, command: Command) -> Result<()> {
        let node = self.node(number).ok_or_else(|| Error::retry("that node does not run"))?;
        let none = Sequence(0);
        let call = Call { session: SessionId(0), sequence: none, acknowledged_below: none };
        self.wait_for(|done| {
            let done = Box::new(move |outcome: Result<_>| done(outcome.map(|_| ())));
            // What names no shard is the first one's.
            let shard = node.shard_of(&command).unwrap_or(0);
            node.propose_in(shard, call, &command, Durability::Durable, done);
        })
    }

    /// The cluster as a node tells it to people.
    pub fn cluster(&self, number: usize) -> Result<Cluster> {
        let reply = self.ask(number, wire::OP_CLUSTER, Vec::new(), None)?;
        Ok(Cluster::from_bytes(&reply.meta)?)
    }

    fn call(&mut self) -> Call {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        Call { session: self.session, sequence, acknowledged_below: sequence }
    }

    /// Stores a small file through a node.
    pub fn put(&mut self, gateway: usize, path: &str, version: Version) -> Result<()> {
        let content = version.content();
        let (node, crc) = (new_file(path), crc32c(&content));
        let meta = msg::Put { call: self.call(), node, crc }.to_bytes();
        self.ask(gateway, wire::OP_PUT, meta, Some(&content)).map(|_| ())
    }

    pub fn delete(&mut self, gateway: usize, path: &str) -> Result<()> {
        let action = msg::Action::Delete { path: path.to_owned(), recursive: false };
        let meta = msg::Change { call: self.call(), action }.to_bytes();
        self.ask(gateway, wire::OP_CHANGE, meta, None).map(|_| ())
    }

    /// Stores a file in raw chunks of its own through a node.
    pub fn put_large(&mut self, gateway: usize, path: &str, version: Version) -> Result<()> {
        let (content, node) = (version.content(), new_file(path));
        let begin = msg::Begin { call: self.call(), node: node.clone() }.to_bytes();
        let reply = self.ask(gateway, wire::OP_BEGIN, begin, None)?;
        let file = msg::Begun::from_bytes(&reply.meta)?.file;
        let (mut at, mut extents) = (0, Vec::new());
        while at < content.len() {
            let allocate = msg::Allocate { call: self.call(), file }.to_bytes();
            let reply = self.ask(gateway, wire::OP_ALLOCATE, allocate, None)?;
            let grant = msg::Grant::from_bytes(&reply.meta)?;
            let (chunk, durability) = (grant.chunk, grant.durability);
            let end = content.len().min(at + grant.capacity as usize);
            let mut written = 0u64;
            while at < end {
                let piece = &content[at..end.min(at + PIECE_BYTES)];
                let crcs = bytes::piece_crcs(written, piece);
                let append = bytes::Append { chunk, at: written, durability, crcs }.to_bytes();
                self.ask(gateway, wire::OP_CHUNK_APPEND, append, Some(piece))?;
                (at, written) = (at + piece.len(), written + piece.len() as u64);
            }
            let generation = Default::default();
            extents.push(msg::Extent::Raw { chunk, generation, bytes: written });
        }
        let close = msg::Close { call: self.call(), file, node, extents }.to_bytes();
        self.ask(gateway, wire::OP_CLOSE, close, None).map(|_| ())
    }

    /// A file's bytes through a node; `None`: there is no such file.
    pub fn read(&self, gateway: usize, path: &str) -> Result<Option<Vec<u8>>> {
        let world = &self.world;
        let nodes = world.schedule.nodes;
        let client = Client::new(0, 1, nodes, &world.net, &world.shared, &world.models);
        let path = path.to_owned();
        self.wait_for(|done| {
            spawn(&world.net, async move { done(client.read(gateway, &path).await) });
        })
    }
}
