//! A wait for an entry that a view has yet to apply. It was one request, and whoever waited for longer than
//! a minute was told that the server was silent for too long, though it did what it was asked to: it is
//! asked again in time now, for as long as it takes.

use holdfast_base::codec::Encode;
use holdfast_base::frame::Header;
use holdfast_base::ids::Index;
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::RealClock;
use holdfast_env::net::{
    Batch, BodyTarget, ConnectionId, Reply, Response, Server, ServerConfig, Service, Who,
};
use holdfast_env::trial::{Knob, Trial};
use holdfast_wire as wire;
use holdfast_wire::slab::Range;
use holdfast_wire::view::{Board, Boarded, Got, Key, ViewKind, ViewName};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// As the client has it.
static WAIT_MAX_MS: Knob = Knob::new("client.entry-wait-ms", 20_000, &[20]);
/// So often a node is asked before its view has come to the entry.
const ASKED: usize = 4;

/// A node whose view comes to its entry when it is asked for the fourth time.
#[derive(Default)]
struct Waits(Mutex<Vec<Reply>>);

impl Service for Waits {
    fn body_target(&self, _: &Who, _: &Header, _: &[u8]) -> BodyTarget {
        BodyTarget::Buffer
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let meta = match batch.header(i).opcode {
                wire::OP_VIEW_GET => Got { found: Vec::new(), applied: Index(7) }.to_bytes(),
                wire::OP_RIDE_BEGIN => {
                    let (ride, index) = (1, Index(7));
                    let (heads, entry_crc, digest, horizon) = (1, 0, 0, Index(0));
                    let front_crc = None;
                    Boarded { ride, heads, index, entry_crc, digest, horizon, front_crc }.to_bytes()
                }
                _ => {
                    batch.reply(i, |_| (), ());
                    continue;
                }
            };
            let reply = batch.defer(i);
            let mut waiting = self.0.lock().unwrap();
            match waiting.len() + 1 {
                // Those of before have passed their deadlines, and are answered late.
                ASKED => {
                    reply.send(Response::ok(meta, ()));
                    let late = |reply: Reply| reply.send(Response::ok(Vec::new(), ()));
                    waiting.drain(..).for_each(late);
                }
                _ => waiting.push(reply),
            }
        }
    }

    fn disconnected(&self, _: ConnectionId) {}
}

#[test]
fn a_wait_that_is_longer_than_the_longest_silence_comes_to_its_end() {
    let _trial = Trial::new().with(&WAIT_MAX_MS, 20).enter();
    let service = Arc::new(Waits::default());
    let config =
        ServerConfig { tcp: vec!["127.0.0.1:0".parse().unwrap()], ..ServerConfig::default() };
    let server = Server::start(config, service, Arc::new(RealClock::new())).unwrap();
    let endpoint = Endpoint::parse(&server.tcp_addresses()[0].to_string()).unwrap();
    // A silence of so long is a server that is gone.
    let read_timeout = Some(Duration::from_secs(2));
    let options = ClientOptions { read_timeout, reconnects_max: 0, ..ClientOptions::default() };
    let mut client = Client::connect(&endpoint, &options).unwrap();
    let key = Key { collection: 1, key: b"k".to_vec() };
    let got = client.view("t").get(vec![key], None, Index(7)).unwrap();
    assert_eq!(got.applied, Index(7));
    let view = ViewName { topic: "t".to_owned(), kind: ViewKind::Disk {}, part: 0, of: 1 };
    let board = Board { reached: Index(7), ..Board::of(view, Range::ALL) };
    let mut ride = client.ride(&board).unwrap();
    assert_eq!(ride.boarded().index, Index(7));
    assert!(ride.next_slab().unwrap().is_none());
}
