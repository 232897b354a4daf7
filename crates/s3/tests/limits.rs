//! Limits of readers and of keys at a whole port, by a clock that the test turns: what is charged to
//! whom, who is refused, and who goes on meanwhile.
#![expect(clippy::disallowed_methods, reason = "clients are played by hand")]

use holdfast_base::rates::{Allowance, Turn};
use holdfast_blob::{Blobs, BlobsOptions};
use holdfast_env::clients::Client as Asker;
use holdfast_env::{
    Clients, Clock, RealClock, RealDisk, RealEngine, RealRng, Rng, Secret, SeededRng,
};
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_s3::{Client, Credentials, Entrance, Limits, Request, Server, find_or_make};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const S: u64 = 1_000_000_000;
const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[
    {"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::open/*"},
    {"Effect":"Allow","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::open/in/*"}]}"#;

/// Stands still until it is turned; the calendar is the machine's, for signatures have a time.
struct Turned(AtomicU64, RealClock);

impl Clock for Turned {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        self.1.unix_ms()
    }
}

struct World {
    data: PathBuf,
    clock: Arc<Turned>,
    clients: Arc<Clients>,
    server: Server,
    admin: Credentials,
}

impl World {
    fn new(name: &str, known: Allowance, strangers: Allowance) -> World {
        let data = std::env::temp_dir().join(format!("hf-s3-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let clock = Arc::new(Turned(AtomicU64::new(S), RealClock::new()));
        let machine = Machine {
            disk: Arc::new(RealDisk),
            engine: Arc::new(RealEngine),
            clock: clock.clone(),
            rng: Arc::new(RealRng),
            peers: Arc::new(holdfast_env::net::NoPeers),
            meter: Arc::default(),
        };
        let config = NodeConfig { worker_threads: 2, ..NodeConfig::new(&data) };
        let node = Node::open(machine, &config, None).unwrap();
        let secret = Secret::draw(&SeededRng::new(RealRng.next_u64()));
        let blobs = Blobs::open(&node, &BlobsOptions::new(&data, secret)).unwrap();
        let clients = Clients::new(known, strangers);
        let limits = Limits { clients: clients.clone(), threads: 2, ..Limits::default() };
        let any = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(any, blobs.clone(), limits, Entrance::default()).unwrap();
        let endpoint = format!("http://{}", server.address().unwrap());
        let admin = find_or_make(&RealDisk, &data, &blobs, &endpoint).unwrap();
        let world = World { data, clock, clients, server, admin };
        let mut admin = Client::of(&world.admin).unwrap();
        for (path, query, body) in [
            ("/open", "", &b""[..]),
            ("/open", "policy", POLICY.as_bytes()),
            ("/open/small", "", b"small"),
            ("/open/large", "", &[7; 1_000_000]),
        ] {
            let request = Request { body, ..Request::new("PUT", path) };
            let request = if query.is_empty() { request } else { request.with(query, "") };
            admin.send(&request).unwrap().ok(path).unwrap();
        }
        world
    }

    /// Somebody with a key who owns nothing.
    fn user(&self, name: &str) -> (Client, Asker) {
        let order = format!(r#"{{"user": "{name}"}}"#);
        let mut admin = Client::of(&self.admin).unwrap();
        let request = Request { body: order.as_bytes(), ..Request::new("POST", "/") };
        let made = admin.send(&request.with("holdfast", "add-key")).unwrap().ok(name).unwrap();
        let made: serde_json::Value = serde_json::from_slice(&made.body).unwrap();
        let field = |name: &str| made[name].as_str().unwrap().to_owned();
        let (access_key, secret_key) = (field("access_key"), field("secret_key"));
        let asker = Asker::Key(access_key.clone());
        let credentials = Credentials { access_key, secret_key, ..self.admin.clone() };
        (Client::of(&credentials).unwrap(), asker)
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.address().unwrap()).unwrap()
    }

    /// As a reader without a signature, but with such headers.
    fn read(&self, method: &str, path: &str, headers: &str) -> String {
        let mut stream = self.connect();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Requests that are left to somebody in this second.
    fn left(&self, asker: &Asker) -> u64 {
        match self.clients.turn(asker, self.now_ns()) {
            Turn::Go { requests } => requests,
            Turn::Wait(_) | Turn::Refuse(_) => 0,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn here() -> Asker {
    Asker::at(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default()
}

#[test]
fn every_request_costs_a_turn_of_who_proved_to_send_it_whatever_comes_of_it() {
    let ten = Allowance { requests: 10, ..Allowance::default() };
    let world = World::new("turns", ten, ten);
    let (mut ann, key) = world.user("ann");
    assert_eq!((world.left(&here()), world.left(&key)), (10, 10), "an administrator has no limits");
    let forged = |access_key: &str| {
        format!(
            "x-amz-date: 20260101T000000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\nauthorization: AWS4-HMAC-SHA256 Credential={access_key}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={}\r\n",
            "0".repeat(64)
        )
    };
    let Asker::Key(access_key) = &key else { unreachable!() };
    let origin = "origin: http://a\r\naccess-control-request-method: GET\r\n";
    let asked = [
        ("GET", "/open/small", String::new(), 200),
        ("GET", "/open/none", String::new(), 404),
        ("GET", "/closed", String::new(), 404),
        ("PUT", "/open/mine", "content-length: 0\r\n".to_owned(), 403),
        ("GET", "/open/small", forged(access_key), 403),
        ("GET", "/open/small", forged("NOBODY"), 403),
        ("GET", "/%zz", String::new(), 400),
        ("OPTIONS", "/open/small", origin.to_owned(), 403),
    ];
    for (i, (method, path, headers, expected)) in asked.iter().enumerate() {
        let answer = world.read(method, path, headers);
        assert_eq!(status(&answer), *expected, "{method} {path} {headers}: {answer}");
        assert_eq!(world.left(&here()), 9 - i as u64, "{method} {path} {headers}");
    }
    assert_eq!(world.left(&key), 10, "whoever knows a key's name cannot use up its turns");
    let refused = ann.send(&Request::new("DELETE", "/open/small")).unwrap();
    assert_eq!((refused.status, world.left(&key)), (403, 9));
    assert_eq!(ann.send(&Request::new("GET", "/open/small")).unwrap().status, 200);
    assert_eq!((world.left(&key), world.left(&here())), (8, 2));
}

#[test]
fn who_has_no_turn_is_asked_to_slow_down_and_others_go_on() {
    let two = Allowance { requests: 2, ..Allowance::default() };
    let world = World::new("slow", two, two);
    let ((mut ann, noisy), (mut bob, _)) = (world.user("ann"), world.user("bob"));
    for asker in [&noisy, &here()] {
        world.clients.take(asker, world.now_ns(), 12, 0);
    }
    for headers in ["", "authorization: AWS4-HMAC-SHA256 nonsense\r\n"] {
        let refused = world.read("GET", "/open/small", headers);
        assert_eq!(status(&refused), 503, "{refused}");
        assert!(refused.contains("<Code>SlowDown</Code>"), "{refused}");
        assert!(refused.contains("`anonymous_requests`, 2/s"), "{refused}");
        assert!(refused.contains("retry-after: 6\r\n"), "{refused}");
    }
    let refused = ann.send(&Request::new("GET", "/open/small")).unwrap();
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("`client_requests`, 2/s"), "{}", refused.text());
    assert_eq!(bob.send(&Request::new("GET", "/open/small")).unwrap().status, 200);
    let named: Vec<String> =
        world.clients.slowed(world.now_ns()).into_iter().map(|s| s.client).collect();
    assert_eq!(named, [noisy.to_string(), "readers at 127.0.0.1".to_owned()]);
    world.clock.0.fetch_add(6 * S, Ordering::Relaxed);
    assert_eq!(status(&world.read("GET", "/open/small", "")), 200);
    assert_eq!(ann.send(&Request::new("GET", "/open/small")).unwrap().status, 200);
}

#[test]
fn bytes_are_charged_before_they_come_and_given_back_where_they_do_not() {
    let thousand = Allowance { bytes: 1000, ..Allowance::default() };
    let world = World::new("bytes", thousand, thousand);
    let (mut ann, key) = world.user("ann");
    // Announced and not sent: what comes meanwhile is refused.
    let mut writer = world.connect();
    let head = "PUT /open/in/a HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n";
    writer.write_all(head.as_bytes()).unwrap();
    let mut begun = [0; 25];
    writer.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(status(&world.read("GET", "/open/small", "")), 503);
    writer.shutdown(Shutdown::Write).unwrap();
    let _ = writer.read_to_end(&mut Vec::new());
    assert!(matches!(world.clients.turn(&here(), world.now_ns()), Turn::Go { .. }));
    // Of an answer, too, and before it is taken.
    assert_eq!(status(&world.read("GET", "/open/large", "")), 200);
    let refused = world.read("GET", "/open/small", "");
    assert_eq!(status(&refused), 503, "{refused}");
    assert!(refused.contains("`anonymous_bytes`, 1000 B/s"), "{refused}");
    let large = ann.send(&Request::new("GET", "/open/large")).unwrap();
    assert_eq!((large.status, large.body.len()), (200, 1_000_000));
    assert_eq!(ann.send(&Request::new("GET", "/open/small")).unwrap().status, 503);
    let owes = |asker: &Asker| match world.clients.turn(asker, world.now_ns()) {
        Turn::Refuse(wait) => wait.ns / S,
        _ => 0,
    };
    // A thousandth of it was there, and there is not much beside the object.
    assert!((999..=1001).contains(&owes(&key)), "{}", owes(&key));
    world.clock.0.fetch_add(1002 * S, Ordering::Relaxed);
    assert_eq!(ann.send(&Request::new("GET", "/open/small")).unwrap().status, 200);
    assert_eq!(status(&world.read("GET", "/open/small", "")), 200);
}

/// boto3 takes the answer to a body of no bytes that it had announced for the answer to its next request, too: a whole
/// minute later it gave up, or was told that an object was stored that had been refused.
#[test]
fn a_connection_ends_behind_a_body_of_no_bytes_that_was_announced() {
    let world = World::new("nothing", Allowance::default(), Allowance::default());
    let put_to = |key: &str, expect: &str, body: &str| {
        let mut stream = world.connect();
        let head = format!("PUT /open/{key} HTTP/1.1\r\nhost: x\r\n{expect}content-length: ");
        let request = format!("{head}{}\r\n\r\n", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        if !body.is_empty() {
            stream.write_all(body.as_bytes()).unwrap();
        }
        // The next one, to which there is an answer if the connection goes on.
        let _ =
            stream.write_all(b"GET /open/small HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        String::from_utf8_lossy(&answers).into_owned()
    };
    let put = |expect: &str, body: &str| put_to("new", expect, body);
    let answers = |said: &str| said.matches("HTTP/1.1 ").count();
    for announced in ["expect: 100-continue\r\n", "Expect: 100-Continue\r\n"] {
        let said = put(announced, "");
        assert!(said.contains("connection: close\r\n") && answers(&said) == 1, "{said}");
        // Nobody asked for the body of one that was refused, and boto3, which does not send it then, went on with the
        // status of this answer for that of the next one, where it was faster than the end of the connection.
        let said = put(announced, "x");
        assert!(said.starts_with("HTTP/1.1 403") && answers(&said) == 1, "{said}");
        assert!(said.contains("connection: close\r\n"), "{said}");
        let said = put_to("in/new", announced, "x");
        assert!(said.contains("HTTP/1.1 100") && said.contains("HTTP/1.1 200"), "{said}");
        assert_eq!(answers(&said), 3, "{said}");
    }
    for body in ["", "x"] {
        let said = put("", body);
        assert_eq!(answers(&said), 2, "{said}");
    }
}
