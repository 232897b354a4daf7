//! A reader of `/health` beside each fault: 200 exactly while the node does all of its work.

use crate::common::{Node, Scratch, bytes, free_port};
use crate::http;
use crate::s3::blob;
use holdfast_base::Kind;
use holdfast_client::NewFile;

/// A node with HTTP and S3, and the port to ask for its health.
fn start(scratch: &Scratch, more: &str) -> (Node, u16) {
    let (port, s3) = (free_port(), free_port());
    let settings = format!("http_port = {port}\ns3_port = {s3}\ngrace_ms = 0\n{more}");
    (Node::start_with(&scratch.path("data"), &settings), port)
}

#[track_caller]
fn well(port: u16) {
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\nok\n"), "{said}");
}

#[track_caller]
fn ill(port: u16, name: &str, words: &str) {
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    let line = said.lines().find(|line| line.starts_with(&format!("{name}: ")));
    assert!(line.is_some_and(|line| line.contains(words)), "{said}");
}

/// `/health` said 200 while every put was refused as full, and S3 answered such puts with a 500,
/// which clients repeat.
#[test]
fn a_full_store_is_said_by_health_and_by_s3_and_is_over_when_there_is_room() {
    let scratch = Scratch::new();
    let (node, port) = start(&scratch, "capacity = \"340M\"\n");
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
    ill(port, "space", "full");
    assert!(node.run(&["status"]).ok().contains("\nspace: "), "status says it, too");
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
    ill(port, "space", &store);
    let put = node.client().put("/f", &bytes(1, 100), &NewFile::default());
    assert_eq!(put.unwrap_err().kind, Kind::ReadOnly);
    node.run(&["node", "store", &store, "writable"]).ok();
    well(port);
    node.stop();
}
