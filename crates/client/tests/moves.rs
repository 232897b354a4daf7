//! A stream whose chunk failed goes on in a new one. Behind a gateway that had been stopped for a
//! while chunk after chunk fails until the cluster has noticed: a stream that asked for the next
//! one at once was at its end within a second, and one that lived for long counted every restart of
//! a node against itself, though all of them had been got over.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::frame::Header;
use holdfast_base::ids::{ChunkId, Durability, FileId, SessionId, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};
use holdfast_env::RealClock;
use holdfast_env::net::{Batch, BodyTarget, ConnectionId, Server, ServerConfig, Service, Who};
use holdfast_wire as wire;
use holdfast_wire::chunk::Append;
use holdfast_wire::file::{Begun, Close, Extent, Grant};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: usize = 1 << 20;

#[derive(Default)]
struct State {
    /// What each chunk has taken, in the order in which they were granted.
    chunks: BTreeMap<ChunkId, Vec<u8>>,
    extents: Vec<Extent>,
}

/// A node whose chunks fail as the test says: how many appends the one with this number takes.
struct Gateway {
    takes: fn(u64) -> usize,
    state: Mutex<State>,
}

impl Service for Gateway {
    fn body_target(&self, _: &Who, _: &Header, _: &[u8]) -> BodyTarget {
        BodyTarget::Buffer
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        let mut state = self.state.lock().unwrap();
        for i in 0..batch.len() {
            match batch.header(i).opcode {
                wire::OP_OPEN_SESSION => batch.reply(i, |m| SessionId(7).encode(m), ()),
                wire::OP_BEGIN => {
                    let begun = Begun { file: FileId(1), class: StorageClass::DEFAULT };
                    batch.reply(i, |m| begun.encode(m), ());
                }
                wire::OP_ALLOCATE => {
                    let chunk = ChunkId(state.chunks.len() as u64 + 1);
                    state.chunks.insert(chunk, Vec::new());
                    let (tier, durability) = (Tier::Disk, Durability::Durable);
                    let grant = Grant { chunk, tier, durability, capacity: 64 * MIB as u64 };
                    batch.reply(i, |m| grant.encode(m), ());
                }
                wire::OP_CHUNK_APPEND => {
                    let append = Append::from_bytes(batch.meta(i)).unwrap();
                    let body = batch.take_body(i).into_vec();
                    let taken = state.chunks.get_mut(&append.chunk).unwrap();
                    let full = taken.len() >= (self.takes)(append.chunk.0) * MIB;
                    if full || append.at != taken.len() as u64 {
                        batch.reply_error(i, &Error::fenced("it takes no more appends"));
                    } else {
                        taken.extend(body);
                        let length = taken.len() as u64;
                        batch.reply(i, |m| length.encode(m), ());
                    }
                }
                wire::OP_CHANGE => batch.reply(i, |_| (), ()),
                wire::OP_CLOSE => {
                    state.extents = Close::from_bytes(batch.meta(i)).unwrap().extents;
                    batch.reply(i, |m| FileId(1).encode(m), ());
                }
                other => batch.reply_error(i, &Error::unsupported(format!("opcode {other:#x}"))),
            }
        }
    }

    fn disconnected(&self, _: ConnectionId) {}
}

/// Streams 24 MiB through a gateway, and answers what its extents lead to and how many chunks were
/// granted.
fn stream(takes: fn(u64) -> usize) -> (Result<bool>, usize) {
    let service = Arc::new(Gateway { takes, state: Mutex::default() });
    let config =
        ServerConfig { tcp: vec!["127.0.0.1:0".parse().unwrap()], ..ServerConfig::default() };
    let server = Server::start(config, service.clone(), Arc::new(RealClock::new())).unwrap();
    let endpoint = Endpoint::parse(&server.tcp_addresses()[0].to_string()).unwrap();
    let reconnect_pause = Duration::from_micros(1);
    let options = ClientOptions { reconnect_pause, ..ClientOptions::default() };
    let mut client = Client::connect(&endpoint, &options).unwrap();
    let bytes: Vec<u8> = (0..24 * MIB as u32).map(|i| (i * 7 + i / 999) as u8).collect();
    let mut writer = client.create("/f", &NewFile::default()).unwrap();
    let closed = writer.write(&bytes).and_then(|()| writer.close());
    drop(client);
    let state = service.state.lock().unwrap();
    let mut read = Vec::new();
    for extent in &state.extents {
        let Extent::Raw { chunk, bytes, .. } = extent else { panic!("{extent:?} is not raw") };
        read.extend_from_slice(&state.chunks[chunk][..*bytes as usize]);
    }
    (closed.map(|_| read == bytes), state.chunks.len())
}

#[test]
fn a_stream_gets_over_any_number_of_chunks_that_take_something() {
    assert_eq!(stream(|_| 1), (Ok(true), 24));
}

#[test]
fn eight_chunks_one_after_the_other_may_take_nothing() {
    assert_eq!(stream(|chunk| if chunk % 9 == 0 { 2 } else { 0 }), (Ok(true), 108));
}

#[test]
fn a_stream_that_comes_no_further_ends_with_the_reason() {
    let (closed, granted) = stream(|_| 0);
    assert_eq!((closed.unwrap_err().kind, granted), (Kind::Fenced, 9));
}
