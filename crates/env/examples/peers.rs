//! How fast one node asks another, over loopback, both in this process:
//! `cargo run --release -p holdfast-env --example peers`

use holdfast_base::Result;
use holdfast_env::net::{
    Batch, OP_PING, PeerReply, PeerRequest, Peers, Server, ServerConfig, Service, SharedBody,
    TcpPeers,
};
use holdfast_env::{Clock, RealClock};
use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

/// Takes bodies and says nothing.
struct Sink;

impl Service for Sink {
    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let body = batch.take_body(i).as_slice().len() as u32;
            batch.reply(i, |meta| meta.extend_from_slice(&body.to_le_bytes()), ());
        }
    }
}

const PINGS: u32 = 20_000;
const BODIES: u32 = 40_000;
const BODY_BYTES: usize = 64 << 10;
const SINK: u16 = 0x7001;

fn main() -> Result<()> {
    let clock = Arc::new(RealClock::new());
    let config = ServerConfig {
        tcp: vec![([127, 0, 0, 1], 0).into()],
        reactors: 1,
        ..ServerConfig::default()
    };
    let server = Server::start(config, Arc::new(Sink), clock.clone())?;
    let address = server.tcp_addresses()[0].to_string();
    let peers = TcpPeers::start(clock.clone())?;
    let ask = |opcode, body: Option<SharedBody>| {
        let (sender, receiver) = mpsc::channel();
        let request = PeerRequest { opcode, meta: vec![0; 40], body, deadline_ms: 30_000 };
        peers.call(&address, request, Box::new(move |reply| drop(sender.send(reply))));
        receiver
    };
    let wait = |call: mpsc::Receiver<Result<PeerReply>>| {
        let ended = |_| holdfast_base::Error::bug("ask a peer: no answer at all");
        call.recv().map_err(ended)?.map(|_| ())
    };
    let start_ns = clock.monotonic_ns();
    for _ in 0..PINGS {
        wait(ask(OP_PING, None))?;
    }
    let each_ns = (clock.monotonic_ns() - start_ns) as f64 / PINGS as f64;
    println!("one ping at a time: {:.1} us", each_ns / 1e3);
    let body: SharedBody = Arc::new(vec![7u8; BODY_BYTES]);
    for outstanding in [1, 4, 32] {
        let start_ns = clock.monotonic_ns();
        let mut calls = VecDeque::new();
        for _ in 0..BODIES {
            if calls.len() == outstanding {
                calls.pop_front().map_or(Ok(()), wait)?;
            }
            calls.push_back(ask(SINK, Some(body.clone())));
        }
        calls.into_iter().try_for_each(wait)?;
        let ns = (clock.monotonic_ns() - start_ns) as f64;
        let rate = BODIES as f64 * BODY_BYTES as f64 / ns;
        println!("bodies of 64 KiB, {outstanding} outstanding: {rate:.2} GB/s");
    }
    Ok(())
}
