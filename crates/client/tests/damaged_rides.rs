//! What a ride brings may be damaged on its way, or wrong where it comes from. A rider of images was told of a slab
//! that failed its checksum, and that was the end of its ride, though others had the same items; nobody told the
//! node whose image it was. And what a ride begins with, the catalog, had no checksum at all.

use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::frame::Header;
use holdfast_base::ids::Index;
use holdfast_client::view::{Heard, Itinerary, Server as Rides, Together};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::RealClock;
use holdfast_env::net::{
    Batch, BodyPart, BodyTarget, ConnectionId, Parts, Response, Server, ServerConfig, Service, Who,
};
use holdfast_wire as wire;
use holdfast_wire::slab::{Builder, Column, Item, Needs, Range};
use holdfast_wire::view::{Board, Boarded, Doubt, Image, Next, ViewKind, ViewName, ViewStatus};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MARK: Index = Index(9);
const FRONT: &[u8] = b"sessions, and a catalog";

fn view() -> ViewName {
    ViewName { topic: "t".to_owned(), kind: ViewKind::Disk {}, part: 0, of: 1 }
}

/// A node with an image of three items.
struct Node {
    /// What becomes of a slab's columns on their way.
    damage: fn(&mut Vec<u8>),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What it says of what a ride begins with, and what comes.
    front_crc: Option<u32>,
    front: Vec<u8>,
    sent: u32,
    doubts: Vec<Doubt>,
}

impl Node {
    fn new(damage: fn(&mut Vec<u8>)) -> Node {
        let (front_crc, front) = (Some(crc32c(FRONT)), FRONT.to_vec());
        let state = State { front_crc, front, ..State::default() };
        Node { damage, state: Mutex::new(state) }
    }

    fn status() -> ViewStatus {
        let images = vec![Image { index: MARK, bytes: 1 }];
        let (stopped, begins, level_ms) = (String::new(), String::new(), None);
        let (applied, last, riders) = (MARK, MARK, 0);
        ViewStatus { view: view(), applied, last, riders, stopped, begins, images, level_ms }
    }

    fn answer(&self, opcode: u16, meta: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        match opcode {
            wire::OP_VIEW_STATUS => (vec![Node::status()].to_bytes(), Vec::new()),
            wire::OP_RIDE_BEGIN => {
                let behind = Board::from_bytes(meta).unwrap().behind;
                state.sent = behind.map_or(0, |last| last.hash >> 24);
                let (ride, heads, horizon, index) = (1, 1, Index(0), MARK);
                let (entry_crc, digest, front_crc) = (2, 3, state.front_crc);
                let boarded = Boarded { ride, heads, index, entry_crc, digest, horizon, front_crc };
                (boarded.to_bytes(), state.front.clone())
            }
            wire::OP_RIDE_NEXT => {
                assert_eq!(Next::from_bytes(meta).unwrap().head, 0);
                state.sent += 1;
                match state.sent {
                    at @ 1..=3 => self.slab(at),
                    _ => Default::default(),
                }
            }
            wire::OP_RIDE_DOUBT => {
                state.doubts.push(Doubt::from_bytes(meta).unwrap());
                Default::default()
            }
            _ => Default::default(),
        }
    }

    /// One with one item.
    fn slab(&self, at: u32) -> (Vec<u8>, Vec<u8>) {
        let mut builder = Builder::new(Range::ALL, MARK.0, Arc::new(Needs::all()), false);
        let (hash, value) = (at << 24, Some(&b"value"[..]));
        let item = Item { hash, collection: 1, key: b"key", index: u64::from(at), value };
        assert!(builder.push(&item).is_none());
        let slab = builder.finish().unwrap();
        let mut columns = slab.columns().iter().map(Column::bytes).collect::<Vec<_>>().concat();
        if at == 2 {
            (self.damage)(&mut columns);
        }
        (slab.header_bytes(), columns)
    }
}

struct Serves(Arc<Node>);

impl Service for Serves {
    fn body_target(&self, _: &Who, _: &Header, _: &[u8]) -> BodyTarget {
        BodyTarget::Buffer
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let (meta, body) = self.0.answer(batch.header(i).opcode, batch.meta(i));
            let reply = batch.defer(i);
            reply.send(Response::ok(meta, Parts::One(BodyPart::Owned(body))));
        }
    }

    fn disconnected(&self, _: ConnectionId) {}
}

fn served(node: Node) -> (Arc<Node>, Server, Client) {
    let node = Arc::new(node);
    let config =
        ServerConfig { tcp: vec!["127.0.0.1:0".parse().unwrap()], ..ServerConfig::default() };
    let service = Arc::new(Serves(node.clone()));
    let server = Server::start(config, service, Arc::new(RealClock::new())).unwrap();
    let endpoint = Endpoint::parse(&server.tcp_addresses()[0].to_string()).unwrap();
    let options = ClientOptions { reconnects_max: 0, ..ClientOptions::default() };
    (node, server, Client::connect(&endpoint, &options).unwrap())
}

#[test]
fn a_slab_that_fails_its_checksum_comes_from_another_node_and_its_own_is_told() {
    let (bad, _one, to_bad) = served(Node::new(|columns| *columns.last_mut().unwrap() ^= 4));
    let (good, _two, to_good) = served(Node::new(|_| ()));
    let server = |name: &str, client: Client, is_apart: bool| Rides {
        name: name.to_owned(),
        client,
        is_apart,
    };
    // Who is set apart is ridden first.
    let servers = vec![server("bad", to_bad, true), server("good", to_good, false)];
    let itinerary = Itinerary::new(MARK, Range::ALL, 0);
    let mut ride = Together::of_mark(servers, Board::of(view(), Range::ALL), itinerary).unwrap();
    let (mut left_out, mut came) = (Vec::new(), Vec::new());
    while let Some(heard) = ride.next(Duration::from_secs(20)).unwrap() {
        match heard {
            Heard::LeftOut(e) => left_out.push(e),
            Heard::Slab(slab) => slab
                .each(|item| {
                    came.push(item.index);
                    Ok(())
                })
                .unwrap(),
            _ => {}
        }
    }
    assert_eq!(came, [1, 2, 3]);
    let [e] = &left_out[..] else { panic!("{left_out:?}") };
    assert_eq!((e.kind, e.message.contains("ride at bad")), (Kind::Corrupt, true), "{e}");
    assert_eq!(bad.state.lock().unwrap().doubts, [Doubt { view: view(), index: MARK }]);
    assert_eq!(good.state.lock().unwrap().doubts, []);
}

#[test]
fn a_ride_does_not_begin_with_a_catalog_in_which_a_bit_has_flipped() {
    let (node, _server, mut client) = served(Node::new(|_| ()));
    let board = Board::of(view(), Range::ALL);
    for bit in 0..FRONT.len() * 8 {
        let mut front = FRONT.to_vec();
        front[bit / 8] ^= 1 << (bit % 8);
        node.state.lock().unwrap().front = front;
        let e = client.ride(&board).err().expect("it is told");
        assert_eq!((e.kind, e.message.contains("catalog")), (Kind::Corrupt, true), "{e}");
    }
    // A node of a build before says nothing of it.
    node.state.lock().unwrap().front_crc = None;
    assert_ne!(client.ride(&board).unwrap().front(), FRONT);
}
