//! Blobs and the disk: how often an object is read from it, and what happens when it is full.

use super::common::{Node, Scratch, attempts, bytes};
use super::photos::{client, put, send};
use super::s3::{blob, start, start_with};
use holdfast_s3::{Client, Request};
use serde_json::Value;

/// Calls of the kernel's read family that a process has made: files, not sockets (`recv`).
fn read_calls(node: &Node) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", node.pid())).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("syscr:")).unwrap();
    line.trim().parse().unwrap()
}

/// Haystack's point: one read an object, none for its metadata. Counted in the kernel, over a node
/// that was just started, whose index's cache holds next to nothing of the names.
#[test]
fn a_cold_object_is_one_read_of_the_disk() {
    const OBJECTS: usize = 3000;
    const GETS: usize = 1000;
    let scratch = Scratch::new();
    let settings = "scrub = \"0\"\ns3_cache = \"64K\"\ns3_hot = \"0\"\n";
    let node = start_with(&scratch.path("data"), settings);
    blob(&node.data, &["mb", "box"], b"").ok();
    let mut s3 = client(&node.data);
    let key = |i: usize| format!("/box/{:02}/{}", i % 100, i);
    let content = |i: usize| bytes(i as u64, 2000 + i % 4000);
    let pointers: Vec<String> = (0..OBJECTS)
        .map(|i| {
            put(&mut s3, &key(i), &content(i)).header("x-holdfast-pointer").unwrap().to_owned()
        })
        .collect();
    drop(s3);
    let data = node.stop();
    let node = Node::start(&data);
    let mut s3 = client(&data);
    // A connection, and what a first request makes.
    send(&mut s3, Request::new("GET", "/"));
    let scattered = |i: usize| i * 1009 % OBJECTS;
    let before = read_calls(&node);
    for i in (0..GETS).map(scattered) {
        let got = send(&mut s3, Request::new("GET", format!("/n/{}", pointers[i])));
        assert!(got.body == content(i), "{i}");
    }
    let native = read_calls(&node) - before;
    let before = read_calls(&node);
    for i in (0..GETS).map(scattered) {
        assert!(send(&mut s3, Request::new("GET", key(i))).body == content(i), "{i}");
    }
    let by_key = read_calls(&node) - before;
    println!("{GETS} cold gets: {native} reads by pointer, {by_key} by key");
    // Housekeeping and the clock's files may be read meanwhile, now and then.
    let few = 20;
    assert!((GETS..GETS + few).contains(&(native as usize)), "{native} reads for {GETS} gets");
    // By key the index is read, too: a block of it for each look-up that its cache does not hold.
    let index = by_key as usize - GETS;
    assert!(index <= 2 * GETS + few, "{index} reads of the index for {GETS} gets");
    drop(s3);
    node.stop();
}

fn try_put(s3: &mut Client, i: usize, content: &[u8]) -> u16 {
    let request = Request { body: content, ..Request::new("PUT", format!("/box/{i}")) };
    s3.send(&request).unwrap().status
}

/// A full disk refuses puts with 507 and nothing of them is seen; gets, lists and deletes go on, a
/// restart works, and what is deleted makes room again by compaction.
#[test]
fn a_full_disk_refuses_puts_and_loses_nothing() {
    const OBJECT: usize = 1 << 20;
    let scratch = Scratch::new();
    let pool = bytes(3, OBJECT + 4096 * 600);
    let content = |i: usize| &pool[4096 * i..][..OBJECT];
    let node = start_with(&scratch.path("data"), "capacity = \"340M\"\n");
    blob(&node.data, &["mb", "box"], b"").ok();
    let mut s3 = client(&node.data);
    let mut count = 0;
    let refused = loop {
        assert!(count < 600, "it never became full");
        match try_put(&mut s3, count, content(count)) {
            200 => count += 1,
            status => break status,
        }
    };
    assert_eq!(refused, 507);
    assert!(count > 20, "{count} objects fit");
    // An upload in parts is refused as well, in its middle.
    let begun = send(&mut s3, Request::new("POST", "/box/parts").with("uploads", ""));
    let id = holdfast_s3::element(&begun.text(), "UploadId").unwrap();
    let part = Request::new("PUT", "/box/parts").with("partNumber", "1").with("uploadId", id);
    let large = vec![1; 6 << 20];
    assert_eq!(s3.send(&Request { body: &large, ..part }).unwrap().status, 507);
    let listed = |data: &std::path::Path| blob(data, &["ls", "-r", "box"], b"").ok();
    assert_eq!(listed(&node.data).lines().count(), count, "only what was acknowledged is seen");
    drop(s3);
    let node = Node::start(&node.kill());
    let mut s3 = client(&node.data);
    let whole = |s3: &mut Client, i: usize| {
        let got = send(s3, Request::new("GET", format!("/box/{i}")));
        assert!(got.body == content(i), "/box/{i}");
    };
    (0..count).for_each(|i| whole(&mut s3, i));
    for i in (0..count).filter(|i| i % 4 > 0) {
        send(&mut s3, Request::new("DELETE", format!("/box/{i}")));
    }
    let again = attempts().any(|()| try_put(&mut s3, 1, content(1)) == 200);
    assert!(again, "room never came");
    whole(&mut s3, 1);
    (0..count).step_by(4).for_each(|i| whole(&mut s3, i));
    let verified: Value = serde_json::from_str(&blob(&node.data, &["verify"], b"").ok()).unwrap();
    assert_eq!(verified["damaged"].as_array().map(Vec::len), Some(0), "{verified}");
    drop(s3);
    node.stop();
}

/// A person takes a store out of writing, and gives it back; what it holds is served all the while.
#[test]
fn a_store_is_made_read_only_and_writable_by_hand() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    blob(&node.data, &["mb", "box"], b"").ok();
    let mut s3 = client(&node.data);
    put(&mut s3, "/box/before", b"before");
    let store = |node: &Node| -> (String, String) {
        let shown = node.json(&["node", "show", "1"]);
        let store = &shown[0]["stores"][0];
        (store["id"].to_string(), store["state"].as_str().unwrap().to_owned())
    };
    let (id, _) = store(&node);
    node.run(&["node", "store", &id, "read-only"]).ok();
    assert_eq!(store(&node).1, "read-only");
    // The open chunk ends in housekeeping's own time.
    let refused = attempts().find_map(|()| {
        let refused =
            s3.send(&Request { body: b"after", ..Request::new("PUT", "/box/after") }).unwrap();
        (refused.status != 200).then_some(refused)
    });
    let refused = refused.expect("writes are refused");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains(&format!("node store {id} writable")), "{}", refused.text());
    assert_eq!(send(&mut s3, Request::new("GET", "/box/before")).body, b"before");
    node.run(&["node", "store", &id, "writable"]).ok();
    assert!(attempts().any(|()| try_put(&mut s3, 1, b"again") == 200), "writes go on");
    node.run(&["node", "store", "17", "read-only"]).refused(&["17"]);
    drop(s3);
    node.stop();
}
