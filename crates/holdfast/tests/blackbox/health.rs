//! A reader of `/health` beside each fault: 200 exactly while the node does all of its work.

use crate::common::{Node, Scratch, bytes, free_port};
use crate::http;
use crate::mount::Mount;
use crate::s3::blob;
use holdfast_base::Kind;
use holdfast_base::codec::Encode;
use holdfast_base::limits::{CHUNK_BYTES, SECTOR_BYTES};
use holdfast_client::{Connection, NewFile};
use holdfast_wire::{OP_GET, file};
use std::process::Command;

/// A node with HTTP and S3, and the port to ask for its health.
fn start(scratch: &Scratch, more: &str) -> (Node, u16) {
    let (port, s3) = (free_port(), free_port());
    let settings = format!("http_port = {port}\ns3_port = {s3}\ngrace_ms = 0\n{more}");
    (Node::start_with(&scratch.path("data"), &settings), port)
}

#[track_caller]
pub fn well(port: u16) {
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\nok\n"), "{said}");
}

/// `/health`, `status` and `doctor` say the same sentence; answers it.
#[track_caller]
pub fn ill(node: &Node, port: u16, name: &str, words: &str) -> String {
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    let named = |line: &&str| line.starts_with(&format!("{name}: "));
    let line = said.lines().find(named).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(words), "{said}");
    let status = node.run(&["status"]).ok();
    // How much is held or free may have changed meanwhile.
    assert!(status.lines().any(|line| named(&line) && line.contains(words)), "{status}");
    let doctor = node.run(&["doctor"]);
    let found = String::from_utf8(doctor.out).unwrap();
    assert_eq!(doctor.code, Some(1), "{found}");
    let listed =
        |line: &str| line.strip_prefix("- ").is_some_and(|l| named(&l) && l.contains(words));
    assert!(found.lines().any(listed), "{found}");
    line.to_owned()
}

/// `/health` said 200 while every put was refused as full, and S3 answered such puts with a 500,
/// which clients repeat.
#[test]
fn a_full_store_is_said_by_health_and_by_s3_and_is_over_when_there_is_room() {
    let scratch = Scratch::new();
    fills_and_is_well_again(&scratch, "capacity = \"340M\"\n");
}

#[test]
fn a_full_disk_is_said_by_health_and_by_s3_and_is_over_when_there_is_room() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let Some(_mount) = Mount::new(&data, "700m") else { return };
    fills_and_is_well_again(&scratch, "");
}

fn fills_and_is_well_again(scratch: &Scratch, settings: &str) {
    let (node, port) = start(scratch, settings);
    blob(&node.data, &["mb", "photos"], b"").ok();
    well(port);
    let mut client = node.client();
    let content = bytes(1, 16 << 20);
    let mut files = 0;
    let refused = loop {
        assert!(files < 40, "it never became full");
        match client.put(&format!("/f{files}"), &content, &NewFile::default()) {
            Ok(_) => files += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    ill(&node, port, "space", "full");
    let local = scratch.path("object");
    // A small one: its answer is read, though the body was not.
    std::fs::write(&local, bytes(2, 60 << 10)).unwrap();
    let put = blob(&node.data, &["put", local.to_str().unwrap(), "photos/a"], b"");
    put.refused(&["photos/a", "InsufficientStorage"]);
    for i in 0..files {
        client.delete(&format!("/f{i}"), false).unwrap();
    }
    // A chunk and the reserve, with room to spare.
    node.until("the files' bytes are free", |status| status.stores[0].free_bytes > 96 << 20);
    well(port);
    blob(&node.data, &["put", local.to_str().unwrap(), "photos/a"], b"").ok();
    node.stop();
}

#[test]
fn a_store_that_is_to_take_no_writes_is_said_by_health() {
    let scratch = Scratch::new();
    let (node, port) = start(&scratch, "");
    well(port);
    let store = node.client().status().unwrap().stores[0].id.0.to_string();
    node.run(&["node", "store", &store, "read-only"]).ok();
    ill(&node, port, "space", &store);
    let put = node.client().put("/f", &bytes(1, 100), &NewFile::default());
    assert_eq!(put.unwrap_err().kind, Kind::ReadOnly);
    node.run(&["node", "store", &store, "writable"]).ok();
    well(port);
    node.stop();
}

/// A disk that fails: no file may be larger than a segment of the log, as a chunk's is by two
/// sectors. The kernel refuses that with an error that is not one of space.
#[test]
fn a_store_whose_disk_fails_is_said_by_health() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let (node, port) = start(&scratch, "");
    well(port);
    node.stop();
    let shell = format!(
        "trap '' XFSZ; ulimit -f {}; exec {} --json up --data {}",
        (CHUNK_BYTES + SECTOR_BYTES as u64) / 512,
        env!("CARGO_BIN_EXE_holdfast"),
        data.display()
    );
    let mut node = Node::start_by(Command::new("sh").args(["-c", &shell]), &data);
    node.told.announce("store.failed");
    let mut client = node.client();
    let refused = client.put("/f", &bytes(2, 1000), &NewFile::default()).unwrap_err();
    ill(&node, port, "store", "takes no writes since one failed");
    assert_eq!(refused.kind, Kind::ReadOnly, "{refused}");
    drop(client);
    // A start without the limit makes it well.
    node.kill();
    let node = Node::start(&data);
    well(port);
    node.client().put("/f", &bytes(3, 1000), &NewFile::default()).unwrap();
    node.stop();
}

/// Readers that read nothing hold all that clients may have. Planted so that they are not ended for
/// it while this test looks.
#[test]
fn memory_that_clients_have_used_up_is_said_by_health() {
    if !cfg!(debug_assertions) {
        return;
    }
    let scratch = Scratch::new();
    let (node, port) = start(&scratch, "clients_memory = \"64M\"\n");
    let mut client = node.client();
    client.put("/large", &bytes(1, 15 << 20), &NewFile::default()).unwrap();
    drop(client);
    node.stop();
    let node = Node::start_planting(&scratch.path("data"), "net.unread-stays");
    well(port);
    let get = file::Get {
        path: "/large".to_owned(),
        follow: true,
        offset: 0,
        bytes_max: 16 << 20,
        locate: false,
    };
    let readers: Vec<Connection> = (0..60)
        .map(|_| {
            let mut reader = Connection::connect(&node.endpoint()).unwrap();
            for _ in 0..4 {
                reader.submit(OP_GET, |meta| get.encode(meta), &[]).unwrap();
            }
            reader.flush().unwrap();
            reader
        })
        .collect();
    let mut client = node.client();
    for looks in 0.. {
        if client.held().unwrap().conditions.iter().any(|said| said.starts_with("memory: ")) {
            break;
        }
        assert!(looks < 1_000_000, "{:?}", client.held());
    }
    ill(&node, port, "memory", "large requests wait");
    drop(readers);
    while client.held().unwrap().held_bytes > 0 {}
    well(port);
    node.kill();
}
