//! A node with views of one topic, and a plain model of what was put into it.

use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_env::net::{ConnectionId, Inline, NoPeers, Service, Who};
use holdfast_env::{Budget, Clock, SeededRng};
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_ride::{Settings, ViewFace, Views};
use holdfast_server::Native;
use holdfast_sim::SimDisk;
use holdfast_wire::slab::{Hashed, Range, hash};
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const TOPIC: &str = "t";
pub const COLLECTIONS: u16 = 2;

/// A clock that a test turns.
#[derive(Default)]
pub struct Time(pub AtomicU64);

impl Clock for Time {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}

pub struct World {
    pub disk: SimDisk,
    seed: u64,
    pub node: Arc<Node>,
    pub native: Arc<dyn Service>,
    pub time: Arc<Time>,
    pub views: Arc<Views>,
    pub connections: u64,
}

/// Requests that are sent one after another, and their answers as they come.
pub struct Asks {
    pub node: Arc<Node>,
    connection: Inline,
    asked: u64,
    received: Vec<u8>,
}

/// An answer's meta and its body, or what was wrong.
pub type Outcome = Result<(Vec<u8>, Vec<u8>), String>;

/// An answer's request, its meta and its body.
pub type Answer = (u64, Vec<u8>, Vec<u8>);

impl World {
    pub fn new(seed: u64, heads: u32) -> World {
        let mut world = World::open(SimDisk::new(seed), Arc::default(), seed, heads);
        let mut asks = world.connect();
        for (number, hashed) in (1..=COLLECTIONS).zip([Hashed::All, Hashed::Until(b'/')]) {
            // The second one is of JSON.
            let json = number == 2;
            let collection = msg::Collection { name: format!("c{number}"), hashed, json };
            asks.now(wire::OP_VIEW_MAKE, &msg::Make { topic: TOPIC.into(), collection }, &[]);
        }
        asks.now(wire::OP_VIEW_RUN, &disk_view(), &[]);
        world
    }

    fn open(disk: SimDisk, time: Arc<Time>, seed: u64, heads: u32) -> World {
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk.clone()),
            clock: time.clone(),
            rng: Arc::new(SeededRng::new(seed)),
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let config = NodeConfig::new("/data").without_threads();
        let node = Node::open(machine, &config, None).unwrap();
        let views = Views::new(&node, "/data/views".as_ref(), Settings::of(heads), &Budget::new(0));
        views.open_all().unwrap();
        let native = Native::new(node.clone(), Budget::new(1 << 30), false);
        let native = Arc::new(native.with(ViewFace::new(views.clone(), None)));
        World { disk, seed, node, native, time, views, connections: 0 }
    }

    /// The power fails, and the node starts again, with so many heads.
    pub fn restarted(self, heads: u32) -> World {
        let World { disk, time, seed, .. } = self;
        let disk = disk.power_cut(seed);
        World::open(disk, time, seed + 1, heads)
    }

    pub fn connect(&mut self) -> Asks {
        self.connections += 1;
        let clock: Arc<dyn Clock> = self.time.clone();
        let id = ConnectionId(self.connections);
        let connection = Inline::connect(self.native.clone(), clock, id, Who::Owner).unwrap();
        Asks { node: self.node.clone(), connection, asked: 0, received: Vec::new() }
    }
}

pub fn disk_view() -> msg::ViewName {
    msg::ViewName { topic: TOPIC.into(), kind: msg::ViewKind::Disk {}, part: 0, of: 1 }
}

/// Everything that can be ridden of a view.
pub fn all_of(view: msg::ViewName) -> msg::Board {
    let range = Range::part(view.part, view.of);
    msg::Board { versions: true, ..msg::Board::of(view, range) }
}

impl Asks {
    pub fn send(&mut self, opcode: u16, message: &impl Encode, body: &[u8]) -> u64 {
        self.asked += 1;
        let mut request = Vec::new();
        let meta = |out: &mut Vec<u8>| message.encode(out);
        let bytes = body.len() as u32;
        frame::encode(&mut request, FrameKind::Request, opcode, self.asked, 0, bytes, meta);
        request.extend_from_slice(body);
        self.connection.receive(&request).unwrap();
        self.node.pump();
        self.asked
    }

    /// What requests came to, each with its number.
    pub fn outcomes(&mut self) -> Vec<(u64, Outcome)> {
        self.received.extend(self.connection.take());
        let mut outcomes = Vec::new();
        while let Ok(Decoded::Frame(header)) = frame::decode(&self.received) {
            let (meta, body) = (header.meta_bytes as usize, header.body_bytes as usize);
            let frame: Vec<u8> = self.received.drain(..HEADER_BYTES + meta + body).collect();
            let (meta, body) = frame[HEADER_BYTES..].split_at(meta);
            let outcome = match header.status() {
                0 => Ok((meta.to_vec(), body.to_vec())),
                _ => Err(String::from_utf8_lossy(meta).into_owned()),
            };
            outcomes.push((header.request_id, outcome));
        }
        outcomes
    }

    pub fn answers(&mut self) -> Vec<Answer> {
        let outcomes = self.outcomes().into_iter();
        outcomes
            .map(|(request, outcome)| {
                let (meta, body) = outcome.unwrap_or_else(|e| panic!("{e}"));
                (request, meta, body)
            })
            .collect()
    }

    /// What requests came to that failed; answers of others are dropped.
    pub fn failures(&mut self) -> Vec<String> {
        self.outcomes().into_iter().filter_map(|(_, outcome)| outcome.err()).collect()
    }

    pub fn now(&mut self, opcode: u16, message: &impl Encode, body: &[u8]) -> Answer {
        self.send(opcode, message, body);
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1, "operation {opcode:#06x} is answered at once");
        answers.remove(0)
    }
}

/// Collection, key, index and value; no value of a deletion, or where keys alone were asked for.
pub type Item = (u16, Vec<u8>, u64, Option<Vec<u8>>);

/// The entry that made it, and its value, or that the key was deleted.
pub type Version = (u64, Option<Vec<u8>>);

#[derive(Default)]
pub struct Model {
    pub versions: BTreeMap<(u16, Vec<u8>), Vec<Version>>,
}

pub fn hash_of(collection: u16, key: &[u8]) -> u32 {
    hash(if collection == 1 { Hashed::All } else { Hashed::Until(b'/') }, key)
}

impl Model {
    /// The last entry that has made an item.
    pub fn last(&self) -> u64 {
        self.versions.values().flatten().map(|(made, _)| *made).max().unwrap_or_default()
    }

    /// What somebody wants of the items at an index; a deletion is told apart from a value that was
    /// not sent by the flag.
    pub fn wanted(&self, board: &msg::Board, index: u64) -> BTreeSet<(Item, bool)> {
        let range = Range::new(board.low, board.high);
        let mut wanted = BTreeSet::new();
        for ((collection, key), versions) in &self.versions {
            let listed = board.collections.as_ref().is_none_or(|all| all.contains(collection));
            if !listed || !range.contains(hash_of(*collection, key)) {
                continue;
            }
            let there: Vec<_> = versions.iter().filter(|(made, _)| *made <= index).collect();
            let newest = there.last().map(|(made, _)| *made);
            for (made, value) in there {
                let in_range =
                    board.since.0 <= *made && board.below.is_none_or(|below| *made < below.0);
                if in_range && (board.versions || Some(*made) == newest && value.is_some()) {
                    let sent = value.clone().filter(|_| !board.keys_only);
                    let sent = sent.map(|value| left_of(&value, board.fields.as_deref()));
                    let item = (*collection, key.clone(), *made, sent);
                    wanted.insert((item, value.is_none()));
                }
            }
        }
        wanted
    }
}

/// A value, or an object of those of these fields that it has.
fn left_of(value: &[u8], fields: Option<&[String]>) -> Vec<u8> {
    let Some(fields) = fields else { return value.to_vec() };
    let whole: serde_json::Value = serde_json::from_slice(value).unwrap();
    let has = |name: &&String| whole.get(name.as_str()).is_some();
    let written = |name: &String| format!("{:?}:{}", name, whole[name.as_str()]);
    let left: Vec<String> = fields.iter().filter(has).map(written).collect();
    format!("{{{}}}", left.join(",")).into_bytes()
}

/// So many that several lie in one sub-range of hashes, and few enough to come again.
pub fn key(below: &dyn Fn(u64) -> u64) -> Vec<u8> {
    let end = if below(3) == 0 { "/e" } else { "" };
    format!("k{}{end}", below(400)).into_bytes()
}

pub fn draw_changes(below: &dyn Fn(u64) -> u64) -> Vec<(u16, Vec<u8>, Option<Vec<u8>>)> {
    let change = |_| {
        let collection = 1 + below(u64::from(COLLECTIONS)) as u16;
        let value = || match collection {
            2 if below(8) == 0 => b"[7]".to_vec(),
            2 => format!(r#"{{"a":{},"b":"{}"}}"#, below(9), "x".repeat(below(70) as usize)).into(),
            _ => vec![below(256) as u8; below(90) as usize],
        };
        (collection, key(below), (below(5) > 0).then(value))
    };
    (0..1 + below(20)).map(change).collect()
}

pub fn change(asks: &mut Asks, model: &mut Model, below: &dyn Fn(u64) -> u64) {
    let changes = draw_changes(below);
    let mut body = (changes.len() as u32).to_bytes();
    for (collection, key, value) in &changes {
        collection.encode(&mut body);
        put_bytes(&mut body, key);
        value.is_some().encode(&mut body);
        value.iter().for_each(|value| put_bytes(&mut body, value));
    }
    let message = msg::Change { topic: TOPIC.into(), call: Call::default() };
    let (_, meta, _) = asks.now(wire::OP_VIEW_CHANGE, &message, &body);
    let index = msg::Changed::from_bytes(&meta).unwrap().index.0;
    for (collection, key, value) in changes {
        let versions = model.versions.entry((collection, key)).or_default();
        versions.retain(|(made, _)| *made != index);
        versions.push((index, value));
    }
}
