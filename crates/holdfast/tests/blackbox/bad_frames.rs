//! Bytes that no client of ours sends, on both sockets: the connection is told why and ended, and
//! everybody else is served.

use crate::common::{Node, Random, Scratch, bytes, free_port};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_wire as wire;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    frame::encode(&mut out, FrameKind::Request, wire::OP_PING, 1, 0, 0, |_| {});
    out
}

/// The header's checksum made right again, so that what is wrong is the field and not the sum.
fn with(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut out = ping();
    change(&mut out);
    let mut head = out[..HEADER_BYTES].to_vec();
    head[28..].copy_from_slice(&holdfast_base::checksum::crc32c(&[]).to_le_bytes());
    let crc = holdfast_base::checksum::crc32c(&head);
    out[28..32].copy_from_slice(&crc.to_le_bytes());
    out
}

/// What is sent, and what the answer has to say (empty: the end is enough).
fn cases() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let mut flipped = ping();
    flipped[30] ^= 1;
    let mut garbage = bytes(3, 10_000);
    garbage[0] = 0;
    vec![
        ("another version", with(|head| head[4] = 2), "version 2"),
        ("an unknown kind", with(|head| head[5] = 9), "kind 9"),
        ("an answer", with(|head| head[5] = 2), "answer"),
        ("request id 0", with(|head| head[8] = 0), "request id 0"),
        ("4 GiB of body", with(|head| head[24..28].fill(0xff)), "4294967295"),
        ("4 GiB of meta", with(|head| head[20..24].fill(0xff)), "4294967295"),
        ("a wrong checksum", flipped, "checksum"),
        ("garbage", garbage, "native protocol"),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "native protocol"),
        ("TLS", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], "native protocol"),
        ("a cut header", ping()[..20].to_vec(), ""),
        ("a cut body", with(|head| head[24] = 100), ""),
        ("nothing", Vec::new(), ""),
    ]
}

trait Peer: Read + Write {
    fn end_of_requests(&self);
}

impl Peer for TcpStream {
    fn end_of_requests(&self) {
        // The server may have ended it already.
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Peer for UnixStream {
    fn end_of_requests(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// Sends, and reads to the end of the connection: the server has to end it.
fn answer_to(peer: &mut dyn Peer, sent: &[u8]) -> Vec<u8> {
    let _ = peer.write_all(sent);
    peer.end_of_requests();
    let mut answer = Vec::new();
    // A reset ends it too.
    let _ = peer.read_to_end(&mut answer);
    answer
}

fn reason(answer: &[u8]) -> String {
    match frame::decode(answer) {
        Ok(Decoded::Frame(header)) => {
            assert_eq!((header.kind, header.request_id), (FrameKind::Response, 0));
            assert_ne!(header.deadline_or_status, 0);
            String::from_utf8_lossy(&answer[HEADER_BYTES + 4..]).into_owned()
        }
        other => panic!("no frame but {other:?} in {answer:?}"),
    }
}

fn connections(port: u16, socket: &Path) -> [Box<dyn Peer>; 2] {
    [
        Box::new(TcpStream::connect(("127.0.0.1", port)).unwrap()),
        Box::new(UnixStream::connect(socket).unwrap()),
    ]
}

#[test]
fn bad_frames_end_their_connection_with_the_reason_and_no_other() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    std::fs::create_dir_all(&data).unwrap();
    let settings =
        format!("native_port = {port}\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nhttp_port = 0\n");
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    let node = Node::start(&data);
    // Open all the time, and served after each of them.
    let mut bystander = node.client();
    bystander.ping().unwrap();
    for (name, sent, why) in cases() {
        for (is_tcp, mut peer) in [true, false].into_iter().zip(connections(port, &node.socket())) {
            let answer = answer_to(&mut *peer, &sent);
            if is_tcp && sent.first() == Some(&0x16) {
                // So TLS begins, which this node does not speak: it says so in those words.
                assert_eq!(answer, [0x15, 3, 3, 0, 2, 2, 70], "{name}");
            } else if !why.is_empty() {
                let reason = reason(&answer);
                assert!(reason.contains(why), "{name}: {reason}");
            }
            bystander.ping().unwrap_or_else(|e| panic!("after {name}: {e}"));
        }
    }
    // An operation that nobody knows, and a request of garbage meta, are refused, not fatal.
    for mut peer in connections(port, &node.socket()) {
        let mut sent = Vec::new();
        frame::encode(&mut sent, FrameKind::Request, 0x7777, 1, 0, 0, |_| {});
        frame::encode(&mut sent, FrameKind::Request, wire::OP_PUT, 2, 0, 3, |m| m.push(9));
        sent.extend_from_slice(b"abc");
        frame::encode(&mut sent, FrameKind::Request, wire::OP_PING, 3, 0, 0, |_| {});
        let answer = answer_to(&mut *peer, &sent);
        let mut statuses = std::collections::BTreeMap::new();
        let mut at = 0;
        while let Ok(Decoded::Frame(header)) = frame::decode(&answer[at..]) {
            statuses.insert(header.request_id, header.deadline_or_status);
            at += HEADER_BYTES + (header.meta_bytes + header.body_bytes) as usize;
        }
        assert_eq!(statuses.len(), 3);
        assert!(statuses[&1] != 0 && statuses[&2] != 0 && statuses[&3] == 0, "{statuses:?}");
    }
    bystander.put("/after", b"all is well", &Default::default()).unwrap();
    node.stop();
}

/// Bits of a real put flipped one after another: never a crash, never wrong bytes stored.
#[test]
fn damaged_requests_are_never_carried_out() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut random = Random::new(4);
    for round in 0..300 {
        let path = format!("/damaged-{round}");
        let body = bytes(round, 500);
        let put = wire::file::Put {
            call: wire::Call {
                session: holdfast_base::ids::SessionId(0),
                sequence: holdfast_base::ids::Sequence(0),
                acknowledged_below: holdfast_base::ids::Sequence(0),
            },
            node: wire::file::NewNode {
                path: path.clone(),
                kind: holdfast_base::node::NodeKind::File,
                mode: 0o644,
                mtime_ns: 1,
                class: None,
                replace: false,
                parents: false,
                metadata: Vec::new(),
            },
            crc: holdfast_base::checksum::crc32c(&body),
        };
        let mut sent = Vec::new();
        frame::encode(&mut sent, FrameKind::Request, wire::OP_PUT, 1, 0, 500, |out| {
            holdfast_base::codec::Encode::encode(&put, out);
        });
        sent.extend_from_slice(&body);
        let bit = random.below(sent.len() as u64 * 8) as usize;
        sent[bit / 8] ^= 1 << (bit % 8);
        answer_to(&mut UnixStream::connect(node.socket()).unwrap(), &sent);
        let there = node.client().stat(&path);
        assert!(there.is_err(), "bit {bit} went unnoticed: {there:?}");
    }
    node.stop();
}
