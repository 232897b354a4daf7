//! The cache beside others that speak its protocol: the same streams of commands, drawn by seed, go
//! to both, and every byte of the answers is compared. Through the router, where one answer too
//! few or too many would shift all that follow, for every client; and to memcached.

// Clients of their own: blocking ones, on purpose.
#![allow(clippy::disallowed_methods)]

mod lookaside;
mod memcached;
mod router;
mod streams;

use holdfast_base::Kind;
use holdfast_cache::{Server, Settings};
use holdfast_env::{Disk, RealClock, RealDisk, SeededRng};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

/// Items of more are refused by both.
const ITEM_BYTES_MAX: usize = 100_000;

fn cache() -> Server {
    let settings = Settings {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 2,
        item_bytes_max: ITEM_BYTES_MAX,
        ..Settings::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let start = |_| {
        let clock = Arc::new(RealClock::new());
        match Server::start(settings.clone(), clock, &SeededRng::new(1), &disk) {
            // A connection that was just made may have the port that the first thread was given.
            Err(e) if e.kind == Kind::Exists => None,
            started => Some(started.unwrap()),
        }
    };
    (0..20).find_map(start).expect("a port that is free")
}

/// Everything that is answered to a stream, sent in these parts; and whether the connection was
/// reset, which takes answers with it that were on their way.
fn converse(address: SocketAddr, parts: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    // Who has closed already takes no more.
    let sent = parts.iter().try_for_each(|part| stream.write_all(part));
    let ended = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    let read = stream.read_to_end(&mut answers);
    (answers, sent.is_err() || ended.is_err() || read.is_err())
}
