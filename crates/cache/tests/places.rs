//! Who keeps a place at the cache's port: when all are taken, newcomers get one as long as anybody is
//! idle, at whichever thread; and nobody has one for half a handshake.

// Clients of their own: blocking ones, on purpose.
#![allow(clippy::disallowed_methods)]

use holdfast_cache::{IDLE_S, Server, Settings};
use holdfast_env::tls::TlsFiles;
use holdfast_env::trial::Trial;
use holdfast_env::{Clock, Disk, RealDisk, SeededRng};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PLACES: usize = 6;

/// It is the same moment until the test turns it, so that how idle anybody is does not hang on the
/// machine.
#[derive(Default)]
struct Moment(AtomicU64);

impl Clock for Moment {
    fn monotonic_ns(&self) -> u64 {
        1 + self.0.load(Ordering::Relaxed) * 1_000_000_000
    }
    fn unix_ms(&self) -> u64 {
        1_000_000
    }
}

fn cache(threads: usize) -> Server {
    let settings = Settings {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        threads,
        connections_max: PLACES,
        ..Settings::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    Server::start(settings, Arc::new(Moment::default()), &SeededRng::new(1), &disk).unwrap()
}

/// What is answered first; nothing if the connection ends.
fn asks(client: &mut TcpStream) -> String {
    // Who has made way already takes no more.
    let _ = client.write_all(b"version\r\n");
    hears(client)
}

fn hears(client: &mut TcpStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while matches!(client.read(&mut byte), Ok(1)) && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Connections that did nothing kept every newcomer out of the cache, as they do of memcached, and
/// a thread whose own clients were few knew nobody to end for one.
#[test]
fn idle_connections_make_way_at_every_thread() {
    // The one that was used last is idle, too: each newcomer finds somebody.
    let entered = Trial::new().with(&IDLE_S, 0).enter();
    let server = cache(4);
    let mut strangers = Vec::new();
    for i in 0..10 * PLACES {
        let mut stranger = TcpStream::connect(server.tcp_addresses()[0]).unwrap();
        let said = asks(&mut stranger);
        assert!(said.starts_with("VERSION "), "newcomer {i}: {said:?}");
        strangers.push(stranger);
        assert!(server.totals().curr_connections <= PLACES as u64);
    }
    let totals = server.totals();
    assert_eq!((totals.rejected_connections, totals.idle_kicks), (0, 9 * PLACES as u64));
    let alive =
        strangers.iter_mut().filter_map(|stranger| Some(asks(stranger)).filter(|s| !s.is_empty()));
    assert_eq!(alive.count(), PLACES);
    assert!(entered.knobs()[IDLE_S.name()].crossed);
}

#[test]
fn whoever_was_used_just_now_keeps_its_place() {
    let server = cache(2);
    let connect = |_| TcpStream::connect(server.tcp_addresses()[0]).unwrap();
    let mut used: Vec<TcpStream> = (0..PLACES).map(connect).collect();
    used.iter_mut().for_each(|client| assert!(asks(client).starts_with("VERSION ")));
    for i in 0..PLACES {
        assert_eq!(hears(&mut connect(i)), "ERROR Too many open connections\r", "newcomer {i}");
    }
    used.iter_mut().for_each(|client| assert!(asks(client).starts_with("VERSION ")));
    assert_eq!(server.totals().rejected_connections, PLACES as u64);
}

/// A client that began a handshake and did not go on was connected for ever.
#[test]
fn half_a_handshake_ends_with_its_time() {
    let file = |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../env/tests/tls").join(name);
    let files = TlsFiles { chain: file("cert.pem"), key: file("key.pem"), ..TlsFiles::default() };
    let settings = Settings {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 1,
        tls: Some(files),
        ..Settings::default()
    };
    let (clock, disk) = (Arc::new(Moment::default()), Arc::new(RealDisk) as Arc<dyn Disk>);
    let server = Server::start(settings, clock.clone(), &SeededRng::new(1), &disk).unwrap();
    let half = |connected: u64| {
        let mut client = TcpStream::connect(server.tcp_addresses()[0]).unwrap();
        // For who breaks this: a failure, and not a test that hangs.
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The head of a record and of a ClientHello, of which 512 bytes never come.
        client.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]).unwrap();
        while server.totals().curr_connections < connected {
            std::thread::yield_now();
        }
        client
    };
    // The thread has been round when the second one is in, and holds on to the first.
    let mut clients = [half(1), half(2)];
    clock.0.store(11, Ordering::Relaxed);
    for client in &mut clients {
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is over");
    }
    assert_eq!(server.totals().ssl_handshake_errors, 2);
}
