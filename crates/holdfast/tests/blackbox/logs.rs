//! The log from outside: through the node that keeps it and through another one, by those who may
//! read it and those who may not, now and when there is something to read.

use crate::cluster::Dev;
use crate::common::{Node, Scratch, binary, finish};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_client::{Client, ClientOptions, Connection, Endpoint};
use holdfast_wire::{OP_HELD, OP_LOG_READ, admin, log};
use std::time::Duration;

fn read(topic: &str, from: u64, wait: bool) -> log::Read {
    log::Read { topic: topic.to_owned(), from: Index(from), entries_max: 4096, wait }
}

/// A node that does not keep the log asks the one that does, as itself where the topic is a fold's.
#[test]
fn a_follower_reads_the_log_for_its_owner_and_for_nobody_else() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    let socket = |node: u16| {
        let path = dev.data.join(format!("node-{node}/holdfast.sock"));
        format!("unix:{}", path.display())
    };
    let owner = |node: u16, words: &[&str]| {
        finish(binary().args(["--json", "--server", &socket(node)]).args(words), b"")
    };
    owner(2, &["fs", "mkdir", "/d"]).ok();
    owner(2, &["log", "append", "mine", "one", "two"]).ok();
    for topic in ["cluster", "namespace/0", "mine"] {
        let range = ["log", "read", topic, "--from", "1", "--count", "2"];
        let kept = owner(1, &range).ok();
        assert_eq!(kept.lines().count(), 2, "{kept}");
        assert_eq!(owner(3, &range).ok(), kept, "{topic}");
    }
    // Others than the owner, and what is not there.
    dev.run(3, &["log", "read", "namespace/0", "--from", "1"]).refused(&["namespace/0", "owner"]);
    assert!(dev.run(3, &["log", "read", "mine"]).ok().contains("two"));
    for node in [1, 3] {
        let what = ["log", "read", "nothing", "--from", "1"];
        owner(node, &what).refused(&["nothing", "does not exist"]);
        assert_eq!(owner(node, &["log", "read", "mine", "--from", "9"]).ok(), "");
    }
    owner(1, &["log", "trim", "mine", "2"]).ok();
    for node in [1, 3] {
        owner(node, &["log", "read", "mine", "--from", "1"]).refused(&["mine"]);
        assert!(owner(node, &["log", "read", "mine", "--from", "2"]).ok().contains("two"));
    }
    // Whoever waits at a follower is answered when the entry is there.
    let endpoint = Endpoint::parse(&socket(3)).unwrap();
    let mut waits = Connection::connect(&endpoint).unwrap();
    let id = waits.submit(OP_LOG_READ, |meta| read("mine", 3, true).encode(meta), &[]).unwrap();
    waits.flush().unwrap();
    owner(2, &["log", "append", "mine", "three"]).ok();
    let entries = log::Entries::from_bytes(waits.wait(id).unwrap().meta()).unwrap().entries;
    assert_eq!((entries[0].index, &entries[0].bytes[..]), (Index(3), &b"three"[..]));
    let mut client = Client::connect(&endpoint, &ClientOptions::default()).unwrap();
    let last = client.log().tail("namespace/0", Index(2), Duration::from_secs(600)).unwrap();
    assert_eq!(last[0].index, Index(2));
}

/// Each reader that waited for an entry held a mebibyte of what clients may have, for as long as
/// none came: sixty of them kept everybody else waiting.
#[test]
fn whoever_waits_for_an_entry_holds_no_memory_until_there_is_one() {
    const READERS: usize = 100;
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "clients_memory = \"64M\"\n");
    node.run(&["log", "append", "mine", "first"]).ok();
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let mut reader = Connection::connect(&node.endpoint()).unwrap();
            let id = reader.submit(OP_LOG_READ, |meta| read("mine", 2, true).encode(meta), &[]);
            let held = reader.call(OP_HELD, |_| {}, &[]).unwrap();
            let held = admin::Held::from_bytes(held.meta()).unwrap();
            assert!(held.held_bytes < 1 << 20, "{held:?}");
            (reader, id.unwrap())
        })
        .collect();
    let entry = "e".repeat(100_000);
    node.run(&["log", "append", "mine", &entry]).ok();
    for (mut reader, id) in readers {
        let answer = reader.wait(id).unwrap();
        let entries = log::Entries::from_bytes(answer.meta()).unwrap().entries;
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].index, entries[0].bytes.len()), (Index(2), entry.len()));
    }
    node.stop();
}
