//! Who may ask what: each of five identities asks every operation there is, of a real node with its
//! faces, and the page of the protocol says who is refused. So an operation without a right, one
//! that the page does not name, and one whose right is another than the page's all fail here.

mod rules;
mod trail;
mod waits;

use holdfast_base::codec::Encode;
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_base::ids::{ChunkId, Index, NodeId};
use holdfast_base::rates::Allowance;
use holdfast_base::{Kind, codec};
use holdfast_cluster::ClusterCommand;
use holdfast_env::net::{ConnectionId, Inline, Named, NoPeers, Role, Service, Who};
use holdfast_env::{Budget, Clients, Clock, SeededRng};
use holdfast_file::FileFace;
use holdfast_node::{Audit, Machine, Node, NodeConfig, Trail};
use holdfast_ride::{Settings, ViewFace, Views};
use holdfast_scribe::face::ScribeFace;
use holdfast_server::Native;
use holdfast_sim::SimDisk;
use holdfast_table::face::TableFace;
use holdfast_table::regions::Regions;
use holdfast_wire::peer::{self, Sender};
use holdfast_wire::peer_log;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: &str = include_str!("../../../../docs/formats/wire.md");
/// The server's own operations, and those of nobody.
const OF_SERVER: [&str; 1] = ["none"];

/// A calendar that a test turns.
#[derive(Default)]
struct Calendar(AtomicU64);

impl Clock for Calendar {
    fn monotonic_ns(&self) -> u64 {
        1
    }

    fn unix_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct World {
    node: Arc<Node>,
    views: Arc<Views>,
    tables: Arc<TableFace>,
    native: Arc<dyn Service>,
    calendar: Arc<Calendar>,
    connections: AtomicU64,
}

impl World {
    fn new() -> World {
        World::with_trail(Trail::Off)
    }

    fn with_trail(trail: Trail) -> World {
        let disk = SimDisk::new(1);
        let calendar = Arc::new(Calendar::default());
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk),
            clock: calendar.clone(),
            rng: Arc::new(SeededRng::new(1)),
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let name = Some("n1".to_owned());
        let config = NodeConfig { name, ..NodeConfig::new("/data").without_threads() };
        let node = Node::open(machine, &config, None).unwrap();
        let audit = Audit::new(node.clone(), trail);
        let native = Native::new(node.clone(), Budget::new(1 << 30), true).with_audit(audit);
        let native = native.with(Arc::new(FileFace::new(node.clone(), None)));
        let views = Views::new(&node, "/data/views".as_ref(), Settings::of(1), &Budget::new(0));
        let native = native.with(ViewFace::new(views.clone(), None));
        let native = native.with(ScribeFace::new(node.clone()));
        let tables = TableFace::new(node.clone(), 1 << 20, Regions::default());
        let native = native.with(tables.clone());
        let two = Allowance { connections: 2, ..Allowance::default() };
        let native = native.with_limits_of(&Clients::new(two, Allowance::default()));
        let (native, connections) = (Arc::new(native), AtomicU64::new(1));
        World { node, views, tables, native, calendar, connections }
    }

    fn connect(&self, who: Who) -> Inline {
        let id = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed));
        let clock: Arc<dyn Clock> = self.calendar.clone();
        Inline::connect(self.native.clone(), clock, id, who).unwrap()
    }

    fn change(&self, command: ClusterCommand) {
        self.node.wait_for(|done| self.node.propose_cluster(&command, done)).unwrap();
    }
}

/// The error that a request comes to, if it comes to one at once.
fn ask(connection: &Inline, opcode: u16, meta: &[u8]) -> Option<(Kind, String)> {
    let mut request = Vec::new();
    // Whatever waits for an entry or another node is not waited for.
    frame::encode(&mut request, FrameKind::Request, opcode, 7, 1, 0, |m| m.extend_from_slice(meta));
    if let Err(e) = connection.receive(&request) {
        return Some((e.kind, e.message));
    }
    refusal(connection)
}

/// The error of the answer that is there, if it is one.
fn refusal(connection: &Inline) -> Option<(Kind, String)> {
    let answer = connection.take();
    let Ok(Decoded::Frame(header)) = frame::decode(&answer) else { return None };
    let kind = u16::try_from(header.status()).ok().and_then(Kind::from_code)?;
    let meta = &answer[HEADER_BYTES..HEADER_BYTES + header.meta_bytes as usize];
    Some((kind, codec::Reader::new(meta).str().unwrap().to_owned()))
}

/// Opcode to right, as the page's table has them.
fn page() -> BTreeMap<u16, &'static str> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `0x"));
    let rows = rows.map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let opcode = cells.next().unwrap().trim_matches('`').trim_start_matches("0x");
        (u16::from_str_radix(opcode, 16).unwrap(), cells.nth(1).unwrap())
    });
    let page: BTreeMap<u16, &str> = rows.collect();
    assert!(page.len() > 50, "the page's table was not found");
    page
}

fn named(role: Role, name: &str) -> Who {
    let (name, serial) = (name.to_owned(), "0a".to_owned());
    Who::Named(Arc::new(Named { role, name, serial, until_s: 1000 }))
}

#[test]
fn clients_with_names_have_limits_by_name_and_nobody_else_has() {
    let world = World::new();
    let seat = |who: &Who| world.native.seat(who, 0);
    for who in [Who::Owner, Who::Client, Who::Node, named(Role::Node, "a")] {
        (0..3).for_each(|_| assert!(seat(&who).unwrap().is_none(), "{who:?}"));
    }
    let (by_certificate, by_token) = (named(Role::Client, "a"), named(Role::Token, "a"));
    let first = seat(&by_certificate).unwrap().unwrap();
    let _second = seat(&by_token).unwrap().unwrap();
    assert_eq!(seat(&by_token).unwrap_err().kind, Kind::Retry);
    assert!(seat(&named(Role::Token, "b")).unwrap().is_some());
    drop(first);
    assert!(seat(&by_token).unwrap().is_some());
}

#[test]
fn every_operation_is_refused_to_those_who_lack_its_right_and_to_nobody_else() {
    let world = World::new();
    let page = page();
    let identities: [(Who, &[&str]); 5] = [
        (Who::Owner, &["known", "data", "admin"]),
        (Who::Client, &["known", "data", "admin"]),
        (Who::Node, &["known", "data", "admin", "node"]),
        (named(Role::Node, "n1"), &["known", "data", "node"]),
        (named(Role::Client, "someone"), &["known"]),
    ];
    for (who, rights) in &identities {
        let connection = world.connect(who.clone());
        for opcode in 0..=u16::MAX {
            let right = page.get(&opcode).copied();
            if right.is_some_and(|right| OF_SERVER.contains(&right)) || opcode == 5 {
                continue;
            }
            let error = ask(&connection, opcode, &[]);
            let kind = error.as_ref().map(|(kind, _)| *kind);
            match right {
                None => assert_eq!(kind, Some(Kind::Unsupported), "{opcode:#06x} is on no page"),
                Some(right) if rights.contains(&right) => {
                    assert_ne!(kind, Some(Kind::Denied), "{opcode:#06x} {who:?}: {error:?}");
                    assert_ne!(kind, Some(Kind::Unsupported), "{opcode:#06x}: {error:?}");
                }
                Some(_) => assert_eq!(kind, Some(Kind::Denied), "{opcode:#06x} {who:?}"),
            }
        }
    }
}

/// Certificates were looked at when a connection began, and never again.
#[test]
fn a_certificate_that_is_revoked_or_ends_is_worth_nothing_over_an_open_connection() {
    let world = World::new();
    let connect = || world.connect(named(Role::Node, "n1"));
    let connection = connect();
    let opcode = holdfast_wire::OP_NODES;
    assert_eq!(ask(&connection, opcode, &[]), None);
    world.calendar.0.store(1_000_999, Ordering::Relaxed);
    assert_eq!(ask(&connection, opcode, &[]), None, "the last second counts");
    world.calendar.0.store(1_001_000, Ordering::Relaxed);
    assert!(ended(&connection, opcode).contains("has ended"));
    world.calendar.0.store(0, Ordering::Relaxed);
    let connection = connect();
    let revoke = |serial: &str| {
        let serial = serial.to_owned();
        world.change(ClusterCommand::Revoke { serial, until_s: 1000, now_s: 0 });
    };
    revoke("0b");
    assert_eq!(ask(&connection, opcode, &[]), None, "another one's");
    revoke("0a");
    // What memory answers, too: it is the first that is asked for.
    assert!(ended(&connection, holdfast_wire::OP_LOOKUP).contains("was revoked"));
    assert!(ended(&connect(), opcode).contains("was revoked"));
}

/// The connection's last word.
fn ended(connection: &Inline, opcode: u16) -> String {
    let mut request = Vec::new();
    frame::encode(&mut request, FrameKind::Request, opcode, 7, 1, 0, |_| ());
    let e = connection.receive(&request).unwrap_err();
    assert_eq!(e.kind, Kind::Denied);
    let answer = connection.take();
    let Ok(Decoded::Frame(header)) = frame::decode(&answer) else { panic!("no last word") };
    assert_eq!((header.request_id, header.status()), (0, Kind::Denied as u32));
    e.message
}

#[test]
fn a_certificate_speaks_for_the_node_of_its_name_alone() {
    let world = World::new();
    world.change(ClusterCommand::JoinNode {
        nonce: 9,
        host: "h".into(),
        rack: String::new(),
        address: "h:1".into(),
    });
    let cluster = world.node.sender.cluster;
    // A connection that is taken for another node's ends.
    let beat = |name: &str, node: u32, incarnation: u64| {
        let who = &world.connect(named(Role::Node, name));
        let (node, incarnation) = (NodeId(node), Index(incarnation));
        let meta = Sender { cluster, node, incarnation }.to_bytes();
        ask(who, holdfast_wire::peer::OP_PEER_INVENTORY, &meta)
    };
    let denied = |answer: Option<(Kind, String)>| answer.unwrap().0 == Kind::Denied;
    let (own, other) = ("n1", "n2");
    assert!(!denied(beat(own, 1, world.node.sender.incarnation.0)), "its own number");
    assert!(denied(beat(other, 1, world.node.sender.incarnation.0)), "another one's");
    // A start that nobody has heard of is none, whoever speaks.
    assert!(denied(beat(other, 1, 0)) && denied(beat(other, 1, u64::MAX)));
    // A number without a name is its own until it is bound; then never again.
    assert!(!denied(beat(other, 2, 5)));
    assert!(denied(beat(own, 2, 5)), "who has a number has no other");
    world.change(ClusterCommand::BindName { node: NodeId(2), name: "n2".into() });
    assert!(!denied(beat(other, 2, 5)));
    world.change(ClusterCommand::ReleaseName { name: "n2".into() });
    assert!(denied(beat(other, 2, 5)), "a node that was replaced");
    // Nobody has heard of that one: it may be under way.
    assert_eq!(beat(other, 9, 5).unwrap().0, Kind::Retry);
}

/// The number of a node that has none yet was let through for all operations, and with an invented
/// start it was one that had started: a chunk that it made stopped the view of names at the next
/// start.
#[test]
fn nobodys_number_reads_and_writes_the_log_and_nothing_else() {
    let world = World::new();
    let store = world.node.stores.iter().next().unwrap().id;
    let cluster = world.node.sender.cluster;
    for incarnation in [0, 1, u64::MAX] {
        let sender = Sender { cluster, node: NodeId(0), incarnation: Index(incarnation) };
        let fence = peer::Fence { sender, store, chunk: ChunkId(1) };
        let asked =
            [(peer::OP_PEER_FENCE, fence.to_bytes()), (peer::OP_PEER_BEAT, sender.to_bytes())];
        for (opcode, meta) in asked {
            let connection = world.connect(named(Role::Node, "n9"));
            let mut request = Vec::new();
            frame::encode(&mut request, FrameKind::Request, opcode, 7, 1, 0, |m| {
                m.extend_from_slice(&meta)
            });
            let refused = connection.receive(&request).unwrap_err();
            assert_eq!(refused.kind, Kind::Denied, "{opcode:#06x} {incarnation}: {refused}");
        }
    }
    let sender = Sender { cluster, node: NodeId(0), incarnation: Index(0) };
    let describe = peer_log::Describe { sender, topic: "cluster".to_owned() }.to_bytes();
    let connection = world.connect(named(Role::Node, "n9"));
    let answer = ask(&connection, peer_log::OP_PEER_LOG_INFO, &describe);
    assert!(answer.is_none_or(|(kind, _)| kind != Kind::Denied), "so it gets a number");
}

/// A message without a start was admitted whatever the node's last start was: what a process sent
/// before it died could never be told from it.
#[test]
fn who_has_not_started_changes_nothing() {
    let world = World::new();
    let connection = world.connect(named(Role::Node, "n1"));
    let store = world.node.stores.iter().next().unwrap().id;
    let Sender { cluster, node, incarnation } = world.node.sender;
    let fence = |incarnation| {
        let sender = Sender { cluster, node, incarnation };
        let fence = peer::Fence { sender, store, chunk: ChunkId(1) };
        ask(&connection, peer::OP_PEER_FENCE, &fence.to_bytes()).unwrap().0
    };
    assert_eq!(fence(Index(0)), Kind::Fenced);
    assert_eq!(fence(incarnation), Kind::NotFound, "there is no such chunk");
}
