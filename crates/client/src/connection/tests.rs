//! Client and server against each other: the protocol's promises, and what hostile peers get.

mod ring;
mod silence;
mod strangers;

use super::*;
use holdfast_base::frame;
use holdfast_base::frame::{FrameKind, HEADER_BYTES, Header};
use holdfast_base::ids::StoreId;
use holdfast_env::net::{
    Batch, Body, BodyPart, BodyTarget, ConnectionId, Reply, Response as Answer, Server,
    ServerConfig, Service, Who,
};
use holdfast_env::region::{FRAME_BYTES, Frames, MappedRegion};
use holdfast_env::{RealClock, Region, Rng, SeededRng};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};

const ECHO: u16 = 0x0301;
const DEFER: u16 = 0x0302;
const TO_REGION: u16 = 0x0303;
const FORGET: u16 = 0x0304;
const DROP: u16 = 0x0305;
const STREAM: u16 = 0x0306;
const REFUSE: u16 = 0x0307;
const BIG: u16 = 0x0308;
const LONG: u16 = 0x0309;
/// Answered with as many bytes as its meta says, once there is memory for them.
const PAID: u16 = 0x030a;
const REGION: u16 = holdfast_wire::OP_REGION;

struct TestService {
    region: Arc<Region>,
    frames: Frames,
    deferred: Mutex<Vec<(Reply, Vec<u8>)>>,
    gone: Mutex<Vec<ConnectionId>>,
    /// Notified at each change of `deferred` and `gone`.
    changed: Condvar,
}

impl TestService {
    fn take_deferred(&self, count: usize) -> Vec<(Reply, Vec<u8>)> {
        let deferred = self.deferred.lock().unwrap();
        let mut deferred = self.changed.wait_while(deferred, |d| d.len() < count).unwrap();
        deferred.drain(..).collect()
    }

    fn wait_gone(&self, count: usize) {
        let gone = self.gone.lock().unwrap();
        drop(self.changed.wait_while(gone, |g| g.len() < count).unwrap());
    }
}

impl Service for TestService {
    fn body_target(&self, _: &Who, header: &Header, _: &[u8]) -> BodyTarget {
        match header.opcode {
            TO_REGION => match self.frames.reserve(header.body_bytes as usize) {
                Some(window) => BodyTarget::Region(window),
                None => BodyTarget::Refuse(Error::full("receive a body: the region is full")),
            },
            REFUSE => BodyTarget::Refuse(Error::read_only("receive a body: nothing is taken")),
            _ => BodyTarget::Buffer,
        }
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let meta = batch.meta(i).to_vec();
            match batch.header(i).opcode {
                ECHO => {
                    let body = batch.take_body(i).into_vec();
                    batch.reply(i, |m| m.extend_from_slice(&meta), body);
                }
                TO_REGION => {
                    let Body::Region(window) = batch.take_body(i) else { panic!("not in region") };
                    batch.reply(i, |m| m.extend_from_slice(&meta), window.freeze());
                }
                // Of so many bytes as its meta says when it comes again.
                PAID if meta.is_empty() => {
                    let reply = batch.defer(i);
                    self.deferred.lock().unwrap().push((reply, meta));
                    self.changed.notify_all();
                }
                DEFER => {
                    let reply = batch.defer(i);
                    self.deferred.lock().unwrap().push((reply, meta));
                    self.changed.notify_all();
                }
                PAID => {
                    let bytes = u64::from_le_bytes(meta.try_into().unwrap());
                    if let Some(reply) = batch.defer_expecting(i, bytes) {
                        reply.send(Answer::ok(Vec::new(), vec![1; bytes as usize]));
                    }
                }
                DROP => drop(batch.defer(i)),
                STREAM => {
                    let mut reply = batch.defer(i);
                    for part in 0..3u8 {
                        reply.send_part(vec![part], vec![part; 100_000]);
                    }
                    reply.send(Answer::ok(vec![3], ()));
                }
                LONG => batch.reply(i, |m| m.extend(vec![0; (1 << 20) + 1]), ()),
                BIG => batch.reply(i, |_| {}, BodyPart::Owned(vec![1; 1 << 20])),
                REGION => {
                    let fd = self.region.client_fd().unwrap();
                    if let Err(e) = batch.reply_with_fd(i, |m| m.push(1), fd) {
                        batch.reply_error(i, &e);
                    }
                }
                FORGET => {}
                other => batch.reply_error(i, &Error::unsupported(format!("opcode {other:#x}"))),
            }
        }
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.gone.lock().unwrap().push(connection);
        self.changed.notify_all();
    }
}

struct World {
    service: Arc<TestService>,
    server: Server,
    tcp: Endpoint,
    unix: Endpoint,
}

fn world_with(name: &str, change: impl FnOnce(&mut ServerConfig)) -> World {
    let region = Region::create("test", StoreId(5), 20 * FRAME_BYTES).unwrap();
    let service = Arc::new(TestService {
        frames: region.allocate(20).unwrap(),
        region,
        deferred: Mutex::default(),
        gone: Mutex::default(),
        changed: Condvar::new(),
    });
    let path = std::env::temp_dir().join(format!("hf-{}-{name}.sock", std::process::id()));
    let mut config = ServerConfig {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        unix: Some(path.clone()),
        reactors: 2,
        ..ServerConfig::default()
    };
    change(&mut config);
    let server = Server::start(config, service.clone(), Arc::new(RealClock::new())).unwrap();
    let tcp = Endpoint::parse(&server.tcp_addresses()[0].to_string()).unwrap();
    World { service, server, tcp, unix: Endpoint::Unix(path) }
}

fn world(name: &str) -> World {
    world_with(name, |_| {})
}

impl World {
    fn connect(&self) -> Connection {
        Connection::connect(&self.tcp).unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "a peer that is not our client")]
    fn raw(&self) -> TcpStream {
        TcpStream::connect(self.server.tcp_addresses()[0]).unwrap()
    }

    fn is_alive(&self) {
        let answer = self.connect().call(ECHO, |m| m.push(7), &[b"body"]).unwrap();
        assert_eq!((answer.meta(), answer.body()), (&[7][..], &b"body"[..]));
    }
}

fn request(opcode: u16, id: u64, meta: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&mut out, FrameKind::Request, opcode, id, 0, body.len() as u32, |m| {
        m.extend_from_slice(meta)
    });
    out.extend_from_slice(body);
    out
}

/// Everything the server sends until it closes, as frames.
fn frames_of(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let Ok(frame::Decoded::Frame(header)) = frame::decode(bytes) else { panic!("cut off") };
        let end = HEADER_BYTES + (header.meta_bytes + header.body_bytes) as usize;
        frames.push((header, bytes[HEADER_BYTES..end].to_vec()));
        bytes = &bytes[end..];
    }
    frames
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn bodies_of_every_size_come_back_over_tcp_and_unix() {
    let world = world("sizes");
    let bytes = pattern(FRAME_BODY_BYTES_MAX as usize);
    for endpoint in [&world.tcp, &world.unix] {
        let mut connection = Connection::connect(endpoint).unwrap();
        for len in [0, 1, 1024, 1025, 5000, 16 << 10, 300 << 10, bytes.len()] {
            let (a, b) = bytes[..len].split_at(len / 3);
            let answer = connection.call(ECHO, |m| m.push(1), &[a, b]).unwrap();
            assert!(answer.body() == &bytes[..len], "{len} bytes over {endpoint}");
            let id = connection.submit(ECHO, |m| m.push(2), &[&bytes[..len]]).unwrap();
            let mut memory = vec![0; len];
            let answer = connection.wait_into(id, &mut memory).unwrap();
            assert!(memory == bytes[..len] && answer.body().is_empty(), "{len} into memory");
            assert_eq!((answer.meta(), answer.body_bytes()), (&[2][..], len));
        }
        assert_eq!(connection.call(OP_PING, |m| m.push(9), &[]).unwrap().meta(), [9]);
    }
}

use holdfast_wire::OP_PING;

#[test]
fn bodies_are_received_into_the_region_and_sent_from_it() {
    let world = world("region");
    let mut connection = world.connect();
    for len in [10, 3000, 200_000, 5 << 20] {
        let bytes = pattern(len);
        let answer = connection.call(TO_REGION, |_| {}, &[&bytes]).unwrap();
        assert!(answer.body() == bytes, "{len}");
    }
    let refused = connection.call(TO_REGION, |_| {}, &[&pattern(16 << 20)]).unwrap_err();
    assert_eq!(refused.kind, Kind::Full);
    assert_eq!(connection.call(REFUSE, |_| {}, &[b"small"]).unwrap_err().kind, Kind::ReadOnly);
    world.is_alive();
}

/// From the server by their pages over TCP, out of the region. More of them than the sockets hold,
/// so that both sides go on where they stopped.
#[test]
fn bodies_that_travel_by_their_pages_arrive_whole() {
    let world = world("pages");
    let bytes = pattern(512 << 10);
    for endpoint in [&world.tcp, &world.unix] {
        let mut connection = Connection::connect(endpoint).unwrap();
        for turn in 0..3 {
            let mut asked = Vec::new();
            for i in 0..4usize {
                let len = [bytes.len(), 300_000 + turn, 32 << 10, 5][i];
                let body = &bytes[i..][..len.min(bytes.len() - i)];
                let to = if i == 1 { ECHO } else { TO_REGION };
                let id = connection.submit(to, |m| m.push(i as u8), &[body]).unwrap();
                asked.push((id, body));
            }
            for (i, (id, body)) in asked.into_iter().enumerate() {
                let answer = connection.wait(id).unwrap();
                assert_eq!(answer.meta(), [i as u8]);
                assert!(answer.body() == body, "{i} in turn {turn} over {endpoint}");
            }
        }
    }
}

#[test]
fn looking_before_sleeping_is_given_up_where_it_does_not_pay() {
    let mut linger = Linger::default();
    let looked = |linger: &mut Linger| (0..200).filter(|_| linger.looks() > 0).count();
    assert!(looked(&mut linger) <= 10, "seldom, of 200 waits in vain");
    while linger.looks() == 0 {}
    linger.paid();
    assert!(linger.looks() > 0, "at once, after it paid");
}

#[test]
fn requests_cut_at_every_byte_are_understood() {
    // One reactor: what it answers later proves what it has read before.
    let world = world_with("cuts", |config| config.reactors = 1);
    let whole =
        [request(ECHO, 1, b"meta", b"body"), request(TO_REGION, 2, b"m", &[5; 40])].concat();
    for cut in 1..whole.len() {
        let mut raw = world.raw();
        raw.set_nodelay(true).unwrap();
        raw.write_all(&whole[..cut]).unwrap();
        // An answer to something else in between proves that the first piece was read alone.
        world.is_alive();
        raw.write_all(&whole[cut..]).unwrap();
        raw.shutdown(Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        raw.read_to_end(&mut answers).unwrap();
        let frames = frames_of(&answers);
        assert_eq!(frames.len(), 2, "cut at {cut}");
        assert_eq!((&frames[0].1[..], frames[1].1.len()), (&b"metabody"[..], 41), "cut at {cut}");
    }
}

#[test]
fn random_streams_in_random_pieces_are_answered_in_full() {
    let world = world("random");
    let rng = SeededRng::new(20_261);
    for _ in 0..30 {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for id in 1..=1 + rng.next_u64() % 40 {
            let sizes = [0, 3, 700, 5000, 16_383, 16_384, 100_000];
            let meta = pattern(sizes[(rng.next_u64() % 7) as usize]);
            let body = pattern(sizes[(rng.next_u64() % 7) as usize]);
            stream.extend(request(ECHO, id, &meta, &body));
            expected.push([meta, body].concat());
        }
        let mut raw = world.raw();
        raw.set_nodelay(true).unwrap();
        let mut reader = raw.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &stream[..];
                while !rest.is_empty() {
                    let bound = [2, 60, 5000, 200_000][(rng.next_u64() % 4) as usize];
                    let len = (1 + rng.next_u64() as usize % bound).min(rest.len());
                    raw.write_all(&rest[..len]).unwrap();
                    rest = &rest[len..];
                }
                raw.shutdown(Shutdown::Write).unwrap();
            });
            let mut answers = Vec::new();
            reader.read_to_end(&mut answers).unwrap();
            let bodies: Vec<Vec<u8>> = frames_of(&answers).into_iter().map(|f| f.1).collect();
            assert!(bodies == expected);
        });
    }
}

#[test]
fn deferred_answers_come_from_other_threads_in_any_order() {
    let world = world("defer");
    let mut connection = world.connect();
    let ids: Vec<RequestId> = (0..500u16)
        .map(|i| connection.submit(DEFER, |m| m.extend(i.to_le_bytes()), &[]).unwrap())
        .collect();
    let inline = connection.submit(ECHO, |m| m.push(1), &[]).unwrap();
    connection.flush().unwrap();
    let service = world.service.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (reply, meta) in service.take_deferred(500).into_iter().rev() {
                reply.finish(Ok(meta));
            }
        });
        assert_eq!(connection.wait(inline).unwrap().meta(), [1]);
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(connection.wait(*id).unwrap().meta(), (i as u16).to_le_bytes());
        }
    });
    assert_eq!(connection.outstanding(), 0);
}

#[test]
fn forgotten_and_dropped_requests_are_answered_as_bugs() {
    let world = world("bugs");
    let mut connection = world.connect();
    for opcode in [FORGET, DROP] {
        assert_eq!(connection.call(opcode, |_| {}, &[]).unwrap_err().kind, Kind::Bug);
    }
    assert_eq!(connection.call(0x3ff, |_| {}, &[]).unwrap_err().kind, Kind::Unsupported);
}

/// Encoding such an answer took the reactor's thread down, and all its connections.
#[test]
fn metadata_that_exceeds_a_frame_is_an_error_on_either_side() {
    let world = world("long");
    let mut connection = world.connect();
    let error = connection.call(LONG, |_| {}, &[]).map(|_| ()).unwrap_err();
    assert!(error.kind == Kind::Bug && error.message.contains("1048577 bytes of meta"), "{error}");
    let long = vec![1; (1 << 20) + 1];
    let error = connection.call(ECHO, |m| m.extend(&long), &[]).map(|_| ()).unwrap_err();
    assert!(error.kind == Kind::Invalid && error.message.contains("the limit is"), "{error}");
    let whole = connection.call(ECHO, |m| m.extend(&long[1..]), &[]).unwrap();
    assert_eq!(whole.meta().len(), 1 << 20);
}

/// The rest of one part was on its way to a buffer of its own when the caller's next wait offered
/// memory; the part behind it took that memory, and its bytes were lost.
#[test]
fn parts_that_arrive_together_do_not_share_the_memory() {
    let world = world("parts");
    let mut connection = world.connect();
    let id = connection.submit(STREAM, |_| {}, &[]).unwrap();
    let mut memory = vec![9; 100_000];
    for part in 0..3u8 {
        let answer = connection.wait_into(id, &mut memory).unwrap();
        assert!(!answer.is_last() && answer.meta() == [part]);
        assert!(memory.iter().all(|&b| b == part));
    }
    assert!(connection.wait(id).unwrap().is_last());
}

/// The head of an answer that was asked for ahead arrives behind the one before it; the rest goes
/// straight to the memory that its own wait offers, and `wait` gets it whole all the same.
#[test]
fn an_answer_begun_in_a_buffer_goes_on_in_the_callers_memory() {
    let world = world("ahead");
    let mut connection = world.connect();
    let bodies: Vec<Vec<u8>> = (0..6u8).map(|i| vec![i; 700_000]).collect();
    let mut memory = vec![9; 700_000];
    let mut ids = Vec::new();
    for (i, body) in bodies.iter().enumerate() {
        ids.push(connection.submit(ECHO, |m| m.push(i as u8), &[body]).unwrap());
    }
    for (i, (id, body)) in ids.into_iter().zip(&bodies).enumerate() {
        if i == 3 {
            let whole = connection.wait(id).unwrap();
            assert!(whole.meta() == [3] && whole.body() == body);
            continue;
        }
        let answer = connection.wait_into(id, &mut memory).unwrap();
        assert!(answer.meta() == [i as u8] && answer.body_bytes() == body.len());
        assert!(memory == *body, "body {i}");
    }
}

#[test]
fn a_passed_deadline_is_answered_and_the_late_answer_dropped() {
    let world = world("deadline");
    let options = ClientOptions { deadline_ms: 1, ..ClientOptions::default() };
    let mut connection = Connection::connect_with(&world.tcp, options).unwrap();
    let error = connection.call(DEFER, |_| {}, &[]).unwrap_err();
    assert!(error.kind == Kind::Retry && error.message.contains("deadline"), "{error}");
    for (reply, _) in world.service.take_deferred(1) {
        reply.finish(Ok(vec![1]));
    }
    assert_eq!(connection.call(ECHO, |m| m.push(2), &[]).unwrap().meta(), [2]);
}

/// Whoever knew several nodes and began at one that had just ended was refused, though the others
/// were there.
#[test]
fn who_knows_other_nodes_begins_at_the_first_that_is_there() {
    let (gone, here) = (world("gone"), world("here"));
    let at = gone.tcp.clone();
    drop(gone);
    let alone = Connection::connect(&at).err().unwrap();
    assert!(alone.kind == Kind::Retry && alone.message.contains(&at.to_string()), "{alone}");
    let others = vec![here.tcp.clone()];
    let known = ClientOptions { others, ..ClientOptions::default() };
    let mut connection = Connection::connect_with(&at, known).unwrap();
    assert_eq!(*connection.endpoint(), here.tcp);
    assert_eq!(connection.options.others, [at]);
    assert_eq!(connection.call(ECHO, |m| m.push(7), &[]).unwrap().meta(), [7]);
}

#[test]
fn bad_frames_get_a_reason_and_others_are_still_served() {
    let world = world("garbage");
    let good = request(ECHO, 1, b"m", b"");
    let change = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    for (bytes, why) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "does not speak"),
        (change(4, &[9]), "version 9"),
        (change(5, &[8]), "kind 8"),
        (change(24, &[255; 4]), "body of 4294967295"),
        (change(20, &[255; 4]), "4294967295 bytes of metadata"),
        (change(8, &[3]), "damaged"),
        (request(ECHO, 0, b"", b""), "reserved"),
    ] {
        let mut raw = world.raw();
        raw.write_all(&bytes).unwrap();
        let mut answers = Vec::new();
        raw.read_to_end(&mut answers).unwrap();
        let frames = frames_of(&answers);
        let text = String::from_utf8_lossy(&frames[0].1).into_owned();
        assert!(frames.len() == 1 && frames[0].0.request_id == 0 && text.contains(why), "{text}");
        world.is_alive();
    }
    assert_eq!(world.server.counters().bad_frames.load(Ordering::Relaxed), 7);
}

#[test]
fn cut_off_frames_and_vanishing_peers_end_their_connection_only() {
    let world = world("vanish");
    let long = request(TO_REGION, 1, b"m", &[1; 100_000]);
    for cut in [1, 20, 33, 50_000] {
        let mut raw = world.raw();
        raw.write_all(&long[..cut]).unwrap();
        drop(raw);
        world.is_alive();
    }
    // Answers that nobody reads: the server's write meets a reset.
    let mut raw = world.raw();
    for id in 1..20 {
        raw.write_all(&request(BIG, id, b"", b"")).unwrap();
    }
    drop(raw);
    let mut connection = world.connect();
    connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    let deferred = world.service.take_deferred(1);
    drop(connection);
    drop(deferred);
    world.service.wait_gone(10);
    world.is_alive();
}

#[test]
fn a_client_that_never_reads_is_not_read_either() {
    let limit = 4 << 20;
    let world = world_with("slow", |config| config.connection_bytes_max = limit);
    let mut raw = world.raw();
    let requests: Vec<u8> = (1..=2000).flat_map(|id| request(BIG, id, b"", b"")).collect();
    raw.write_all(&requests).unwrap();
    let counters = world.server.counters();
    while counters.pauses.load(Ordering::Relaxed) == 0 {
        world.is_alive();
    }
    // One batch may go over the limit, the next one waits; the first batches are short.
    let answered = counters.held_bytes_peak.load(Ordering::Relaxed);
    assert!(answered <= limit + (8 << 20) + (1 << 20), "{answered}");
    // Whoever starts to read gets everything.
    let mut bytes = 0u64;
    let mut memory = vec![0; 1 << 20];
    while bytes < 2000 * ((1 << 20) + HEADER_BYTES as u64) {
        bytes += raw.read(&mut memory).unwrap() as u64;
    }
}

#[test]
fn too_many_waiting_requests_stop_the_reading() {
    let world = world_with("waiting", |config| config.connection_requests_max = 10);
    let mut connection = world.connect();
    for _ in 0..25 {
        connection.submit(DEFER, |_| {}, &[]).unwrap();
    }
    connection.flush().unwrap();
    let mut answered = 0;
    while answered < 25 {
        let batch = world.service.take_deferred((25 - answered).min(10));
        assert!(batch.len() <= 10, "{} were handed over", batch.len());
        answered += batch.len();
        batch.into_iter().for_each(|(reply, _)| reply.finish(Ok(vec![])));
    }
    for _ in 0..25 {
        let id = connection.ready_any(|_| true).unwrap();
        connection.wait(id).unwrap();
    }
}

#[test]
fn the_region_is_passed_and_maps_for_reading() {
    let world = world("fd");
    let mut connection = Connection::connect(&world.unix).unwrap();
    connection.call(TO_REGION, |_| {}, &[b"shared bytes"]).unwrap();
    assert_eq!(connection.call(REGION, |_| {}, &[]).unwrap().meta(), [1]);
    let mapped = MappedRegion::from_fd(&connection.take_fd().unwrap()).unwrap();
    let mut copy = [0; 12];
    mapped.copy_out(world.service.frames.region_offset(), &mut copy).unwrap();
    assert_eq!((&copy, mapped.store()), (b"shared bytes", StoreId(5)));
    let refused = world.connect().call(REGION, |_| {}, &[]).unwrap_err();
    assert_eq!(refused.kind, Kind::Unsupported);
}

#[test]
fn one_connection_too_many_is_told_so_while_all_others_are_at_work() {
    let world = world_with("many", |config| config.connections_max = 1);
    let mut first = world.connect();
    first.call(ECHO, |_| {}, &[]).unwrap();
    first.submit(DEFER, |_| {}, &[]).unwrap();
    first.flush().unwrap();
    let _held = world.service.take_deferred(1);
    let error = Connection::connect(&world.tcp).err().unwrap();
    assert!(error.kind == Kind::Retry && error.message.contains("limit of 1"), "{error}");
    first.call(ECHO, |_| {}, &[]).unwrap();
}

#[test]
fn a_shutdown_answers_what_was_received() {
    let world = world("shutdown");
    let mut connection = world.connect();
    let id = connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    let deferred = world.service.take_deferred(1);
    std::thread::scope(|scope| {
        let server = world.server;
        scope.spawn(|| server.shutdown());
        for (reply, _) in deferred {
            reply.finish(Ok(vec![4]));
        }
        assert_eq!(connection.wait(id).unwrap().meta(), [4]);
    });
    let error = connection.call(ECHO, |_| {}, &[]).unwrap_err();
    assert_eq!(error.kind, Kind::Retry);
    let again = Connection::connect(&world.tcp).err().unwrap();
    assert!(again.message.contains("is `holdfast up` running?"), "{again}");
    let Endpoint::Unix(path) = &world.unix else { unreachable!() };
    assert!(UnixStream::connect(path).is_err());
}

#[test]
fn a_spinning_server_and_client_answer_the_same() {
    let world = world_with("spin", |config| (config.spin, config.reactors) = (true, 1));
    let options = ClientOptions { spin: true, ..ClientOptions::default() };
    let mut connection = Connection::connect_with(&world.unix, options).unwrap();
    for i in 0..100 {
        assert_eq!(connection.call(ECHO, |m| m.push(i), &[]).unwrap().meta(), [i]);
    }
    let id = connection.submit(DEFER, |_| {}, &[]).unwrap();
    connection.flush().unwrap();
    world.service.take_deferred(1).into_iter().for_each(|(reply, _)| reply.finish(Ok(vec![5])));
    assert_eq!(connection.wait(id).unwrap().meta(), [5]);
}
