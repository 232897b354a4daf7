//! The ring between a client and a spinning server.

use super::*;
use holdfast_env::net::Socket;
use holdfast_env::ring::RING_BYTES;
use holdfast_wire::OP_RING;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Where the shared page keeps the positions, see docs/formats/ring.md.
const REQUESTS_WRITTEN: u64 = 128;
const ANSWERS_TAKEN: u64 = 512;

fn spinning(name: &str) -> World {
    world_with(name, |config| (config.spin, config.reactors) = (true, 1))
}

fn options() -> ClientOptions {
    ClientOptions { ring: true, ..ClientOptions::default() }
}

fn connect(world: &World) -> Connection {
    let connection = Connection::connect_with(&world.unix, options()).unwrap();
    assert!(connection.link.ring.is_some());
    connection
}

/// A client that does as the test says.
struct Raw {
    socket: Socket,
    ring: Ring,
    file: File,
}

impl Raw {
    fn socket(endpoint: &Endpoint) -> Socket {
        let socket = Socket::connect(endpoint, Duration::from_secs(5)).unwrap();
        socket.set_receive_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    fn connect(world: &World) -> Raw {
        let (ring, fd) = Ring::create().unwrap();
        let socket = Raw::socket(&world.unix);
        let answer = Raw::ask(&socket, &request(OP_RING, 1, b"", b""), Some(&fd));
        assert_eq!(answer[0].0.deadline_or_status, 0);
        Raw { socket, ring, file: fd.into() }
    }

    /// Sends `bytes`, and gives the frames that are received at once.
    fn ask(socket: &Socket, bytes: &[u8], fd: Option<&OwnedFd>) -> Vec<(Header, Vec<u8>)> {
        let sent = socket.send(&[IoSlice::new(bytes)], fd.map(|fd| fd.as_fd()), false).unwrap();
        assert_eq!(sent, bytes.len());
        let mut memory = [0; 4096];
        let received = socket.receive(&mut memory, Wait::Yes, &mut Vec::new()).unwrap();
        frames_of(&memory[..received])
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let written = self.ring.write(&[IoSlice::new(bytes)]).unwrap();
            bytes = &bytes[written..];
        }
    }

    /// The reason that the server gives over the socket before it closes it.
    fn reason(&mut self) -> String {
        let mut bytes = Vec::new();
        loop {
            let (more, _) = (self.socket)
                .receive_append(&mut bytes, usize::from(u16::MAX), &mut [], Wait::Yes, &mut vec![])
                .unwrap();
            if more == 0 {
                break;
            }
        }
        let frames = frames_of(&bytes);
        assert_eq!((frames.len(), frames[0].0.request_id), (1, 0));
        String::from_utf8_lossy(&frames[0].1).into_owned()
    }
}

#[test]
fn bodies_of_every_size_come_back() {
    let world = spinning("ring-sizes");
    let mut connection = connect(&world);
    let bytes = pattern(FRAME_BODY_BYTES_MAX as usize);
    for len in [0, 1, 4, 1025, 5000, 16 << 10, RING_BYTES - 1, RING_BYTES + 1, bytes.len()] {
        let (a, b) = bytes[..len].split_at(len / 3);
        let answer = connection.call(ECHO, |m| m.push(1), &[a, b]).unwrap();
        assert!(answer.body() == &bytes[..len], "{len} bytes");
        let id = connection.submit(ECHO, |m| m.push(2), &[&bytes[..len]]).unwrap();
        let mut memory = vec![0; len];
        let answer = connection.wait_into(id, &mut memory).unwrap();
        assert!(memory == bytes[..len] && answer.body().is_empty(), "{len} into memory");
    }
    let answer = connection.call(TO_REGION, |_| {}, &[&bytes[..3 << 20]]).unwrap();
    assert!(answer.body() == &bytes[..3 << 20]);
    assert_eq!(connection.call(REFUSE, |_| {}, &[&bytes]).unwrap_err().kind, Kind::ReadOnly);
    assert_eq!(connection.call(OP_PING, |m| m.push(9), &[]).unwrap().meta(), [9]);
    let id = connection.submit(STREAM, |_| {}, &[]).unwrap();
    for part in 0..3u8 {
        assert_eq!(connection.wait(id).unwrap().body(), [part; 100_000]);
    }
    assert!(connection.wait(id).unwrap().is_last());
}

#[test]
fn pipelined_requests_are_answered_from_any_thread() {
    let world = spinning("ring-pipeline");
    let mut connection = connect(&world);
    let ids: Vec<RequestId> = (0..2000u16)
        .map(|i| {
            let opcode = if i % 20 == 0 { DEFER } else { ECHO };
            let body = pattern(i as usize % 700);
            connection.submit(opcode, |m| m.extend(i.to_le_bytes()), &[&body]).unwrap()
        })
        .collect();
    connection.flush().unwrap();
    for (reply, meta) in world.service.take_deferred(100).into_iter().rev() {
        reply.finish(Ok(meta));
    }
    for (i, id) in ids.into_iter().enumerate() {
        let answer = connection.wait(id).unwrap();
        assert_eq!(answer.meta(), (i as u16).to_le_bytes());
        assert!(i % 20 == 0 || answer.body() == pattern(i % 700));
    }
}

/// Both streams fill up: neither side may wait for the other to drain first.
#[test]
fn large_bodies_flow_both_ways_at_once() {
    let world = spinning("ring-flood");
    let mut connection = connect(&world);
    let bytes = pattern(3 << 20);
    let ids: Vec<RequestId> =
        (0..10).map(|_| connection.submit(ECHO, |_| {}, &[&bytes]).unwrap()).collect();
    for id in ids {
        assert!(connection.wait(id).unwrap().body() == bytes);
    }
}

#[test]
fn random_streams_in_random_pieces_are_answered_in_full() {
    let world = spinning("ring-random");
    let rng = SeededRng::new(20_262);
    for _ in 0..10 {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for id in 2..=2 + rng.next_u64() % 40 {
            let sizes = [0, 3, 700, 5000, 16_383, 16_384, 100_000];
            let meta = pattern(sizes[(rng.next_u64() % 7) as usize]);
            let body = pattern(sizes[(rng.next_u64() % 7) as usize]);
            stream.extend(request(ECHO, id, &meta, &body));
            expected.push([meta, body].concat());
        }
        let expected_bytes = expected.iter().map(|e| e.len() + HEADER_BYTES).sum();
        let mut raw = Raw::connect(&world);
        let mut rest = &stream[..];
        let mut answers = Vec::new();
        while answers.len() < expected_bytes {
            let bound = [2, 60, 5000, 200_000][(rng.next_u64() % 4) as usize];
            let len = (1 + rng.next_u64() as usize % bound).min(rest.len());
            let written = raw.ring.write(&[IoSlice::new(&rest[..len])]).unwrap();
            rest = &rest[written..];
            let end = answers.len() + 1 + rng.next_u64() as usize % bound;
            raw.ring.read_append(&mut answers, end, &mut []).unwrap();
        }
        let bodies: Vec<Vec<u8>> = frames_of(&answers).into_iter().map(|f| f.1).collect();
        assert!(bodies == expected);
    }
}

#[test]
fn sockets_and_rings_share_a_reactor() {
    let world = spinning("ring-mixed");
    let mut connections = vec![world.connect(), Connection::connect(&world.unix).unwrap()];
    connections.extend((0..3).map(|_| connect(&world)));
    let long = pattern(600_000);
    for round in 0..20u8 {
        let ids: Vec<RequestId> = (connections.iter_mut())
            .map(|c| {
                c.submit(ECHO, |m| m.push(round), &[&long[..round as usize * 30_000]]).unwrap()
            })
            .collect();
        for (connection, id) in connections.iter_mut().zip(ids) {
            let answer = connection.wait(id).unwrap();
            assert_eq!((answer.meta()[0], answer.body().len()), (round, round as usize * 30_000));
        }
    }
    drop(connections);
    world.service.wait_gone(5);
}

#[test]
fn a_client_that_never_reads_its_ring_is_not_read_either() {
    let limit = 4 << 20;
    let world = world_with("ring-slow", |config| {
        (config.spin, config.reactors, config.connection_bytes_max) = (true, 1, limit)
    });
    let mut raw = Raw::connect(&world);
    let requests: Vec<u8> = (2..102).flat_map(|id| request(BIG, id, b"", b"")).collect();
    raw.write(&requests);
    let counters = world.server.counters();
    while counters.pauses.load(Ordering::Relaxed) == 0 {
        world.is_alive();
    }
    let held = counters.held_bytes_peak.load(Ordering::Relaxed);
    assert!(held <= limit + (8 << 20) + (1 << 20), "{held}");
    let mut left = 100 * ((1 << 20) + HEADER_BYTES);
    let mut memory = vec![0; 1 << 20];
    while left > 0 {
        left -= raw.ring.read(&mut memory, &mut []).unwrap();
    }
}

#[test]
fn hostile_positions_and_garbage_end_the_connection_with_a_reason() {
    let world = spinning("ring-hostile");
    let past = |bytes: usize| bytes as u64;
    for (at, position) in [
        (REQUESTS_WRITTEN, past(RING_BYTES + 1)),
        (REQUESTS_WRITTEN, u64::MAX),
        (REQUESTS_WRITTEN, 1 << 63),
        (ANSWERS_TAKEN, u64::MAX),
        (ANSWERS_TAKEN, past(RING_BYTES * 2)),
    ] {
        let mut raw = Raw::connect(&world);
        raw.file.write_all_at(&position.to_le_bytes(), at).unwrap();
        if at == ANSWERS_TAKEN {
            // Looked at when there is something to write.
            raw.write(&request(ECHO, 2, b"", b""));
        }
        let reason = raw.reason();
        assert!(reason.contains("the shared ring is broken"), "{reason}");
    }
    let mut raw = Raw::connect(&world);
    raw.write(&request(ECHO, 2, b"", b""));
    while raw.ring.readable().unwrap() == 0 {}
    raw.file.write_all_at(&0u64.to_le_bytes(), REQUESTS_WRITTEN).unwrap();
    assert!(raw.reason().contains("wrote up to 0"), "the position went back");
    let mut raw = Raw::connect(&world);
    raw.write(b"GET / HTTP/1.1\r\n\r\n");
    assert!(raw.reason().contains("does not speak"));
    let mut raw = Raw::connect(&world);
    raw.write(&request(BIG, 2, b"", b""));
    raw.write(&request(ECHO, 0, b"", b""));
    assert!(raw.reason().contains("reserved"), "while an answer fills the ring");
    let mut raw = Raw::connect(&world);
    raw.socket.send(&[IoSlice::new(b"x")], None, false).unwrap();
    assert!(raw.reason().contains("left its ring"));
    assert_eq!(world.server.counters().bad_frames.load(Ordering::Relaxed), 9);
    world.is_alive();
    connect(&world).call(ECHO, |_| {}, &[]).unwrap();
}

#[test]
fn random_scribbling_over_the_page_hurts_only_the_scribbler() {
    let world = spinning("ring-scribble");
    let rng = SeededRng::new(20_263);
    for _ in 0..50 {
        let mut raw = Raw::connect(&world);
        for id in 2..6 {
            // The ring may be broken by now, for us as for the server.
            let bytes = request(ECHO, id, b"meta", &pattern(5000));
            let _ = raw.ring.write(&[IoSlice::new(&bytes)]);
            let word = rng.next_u64() >> (rng.next_u64() % 64);
            let at = [128, 256, 384, 512, 4096, 4100][(rng.next_u64() % 6) as usize];
            raw.file.write_all_at(&word.to_le_bytes(), at).unwrap();
        }
    }
    world.service.wait_gone(50);
    world.is_alive();
    connect(&world).call(ECHO, |_| {}, &[]).unwrap();
}

#[test]
fn the_reason_reaches_the_client() {
    let world = spinning("ring-reason");
    let mut connection = connect(&world);
    let waits = connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    let _deferred = world.service.take_deferred(1);
    let ring = connection.link.ring.as_mut().unwrap();
    ring.write(&[IoSlice::new(b"garbage garbage garbage garbage!")]).unwrap();
    let error = connection.wait(waits).unwrap_err();
    assert!(error.message.contains("ended the connection"), "{error}");
    assert!(error.message.contains("(it sent `garb`)"), "{error}");
    assert!(connection.call(ECHO, |_| {}, &[]).is_err());
}

#[test]
fn a_client_that_dies_leaves_nothing_behind() {
    let world = spinning("ring-death");
    let long = request(TO_REGION, 2, b"m", &[1; 100_000]);
    for cut in [1, 20, 33, 50_000] {
        let mut raw = Raw::connect(&world);
        raw.write(&long[..cut]);
    }
    // Answers that nobody reads, and one that is still owed.
    let mut raw = Raw::connect(&world);
    raw.write(&(2..20).flat_map(|id| request(BIG, id, b"", b"")).collect::<Vec<u8>>());
    raw.write(&request(DEFER, 20, b"", b""));
    let deferred = world.service.take_deferred(1);
    drop(raw);
    world.service.wait_gone(5);
    drop(deferred);
    world.is_alive();
    world.service.wait_gone(6);
    let counters = world.server.counters();
    assert_eq!(world.server.budget().used(), 0);
    assert_eq!(counters.connections.load(Ordering::Relaxed), 0);
}

#[test]
fn a_ring_is_refused_where_it_cannot_work() {
    let asleep = world("ring-asleep");
    let error = Connection::connect_with(&asleep.unix, options()).err().unwrap();
    assert!(error.kind == Kind::Unsupported, "{error}");
    assert!(error.message.contains("holdfast up --spin"), "{error}");
    asleep.is_alive();
    // Over TCP the option means nothing.
    let mut connection = Connection::connect_with(&asleep.tcp, options()).unwrap();
    connection.call(ECHO, |_| {}, &[]).unwrap();
    let error = connection.call(OP_RING, |_| {}, &[]).unwrap_err();
    assert!(error.message.contains("unix:"), "{error}");

    let world = spinning("ring-refused");
    let text = |frame: &(Header, Vec<u8>)| String::from_utf8_lossy(&frame.1).into_owned();
    let socket = Raw::socket(&world.unix);
    let ring = request(OP_RING, 1, b"", b"");
    let why = text(&Raw::ask(&socket, &ring, None)[0]);
    assert!(why.contains("without a descriptor"), "{why}");
    let (_, fd) = Ring::create().unwrap();
    let two = [ring.clone(), request(OP_PING, 2, b"", b"")].concat();
    let why = text(&Raw::ask(&socket, &two, Some(&fd))[0]);
    assert!(why.contains("no other request"), "{why}");
    let (other, _) = UnixStream::pair().unwrap();
    let why = text(&Raw::ask(&socket, &ring, Some(&other.into()))[0]);
    assert!(why.contains("map the client's ring"), "{why}");
    let mut connection = connect(&world);
    let error = connection.call(OP_RING, |_| {}, &[]).unwrap_err();
    assert!(error.message.contains("ask once"), "{error}");
    let error = connection.call(REGION, |_| {}, &[]).unwrap_err();
    assert_eq!(error.kind, Kind::Unsupported, "a ring carries no descriptors");
    connection.call(ECHO, |_| {}, &[]).unwrap();
}

#[test]
fn a_shutdown_answers_what_came_through_the_ring() {
    let world = spinning("ring-shutdown");
    let mut connection = connect(&world);
    let id = connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    let deferred = world.service.take_deferred(1);
    std::thread::scope(|scope| {
        let server = world.server;
        scope.spawn(|| server.shutdown());
        for (reply, _) in deferred {
            reply.send(Answer::ok(vec![4], vec![7; 2 * RING_BYTES]));
        }
        assert_eq!(connection.wait(id).unwrap().body(), vec![7; 2 * RING_BYTES]);
    });
    let error = connection.call(ECHO, |_| {}, &[]).unwrap_err();
    assert!(error.kind == Kind::Retry && error.message.contains("closed"), "{error}");
}
