//! The log over the wire: append, read, tail, trim and info of topics.

mod common;

use common::World;
use holdfast_base::Kind;
use holdfast_base::ids::Index;
use std::time::Duration;

#[test]
fn entries_are_appended_read_and_trimmed() {
    let world = World::new("log");
    let mut client = world.client();
    let mut log = client.log();
    let first = log.append("t", &["a", "b"]).unwrap().first();
    let third = log.append_ordered("t", &["c"]).unwrap().first();
    assert!(third > first);
    log.append("t", &["d"]).unwrap();
    let read = log.read("t", first, 100).unwrap();
    let texts: Vec<_> = read.iter().map(|e| String::from_utf8(e.bytes.clone()).unwrap()).collect();
    assert_eq!(texts, ["a", "b", "c", "d"]);
    assert_eq!(log.read("t", first, 2).unwrap().len(), 2);
    let info = log.info("t").unwrap();
    assert_eq!((info.first, info.next), (first, Index(first.0 + 4)));
    assert!(log.read("t", info.next, 10).unwrap().is_empty());
    log.trim("t", third).unwrap();
    let topics: Vec<_> = log.topics().unwrap().into_iter().map(|info| info.topic).collect();
    assert_eq!(topics, ["cluster", "namespace/0", "t"]);
    assert_eq!(log.read("nobody", Index(1), 1).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn the_nodes_own_topics_can_be_read_and_not_changed() {
    let world = World::new("log-own");
    let mut client = world.client();
    let mut log = client.log();
    for topic in ["cluster", "namespace/0"] {
        assert!(!log.read(topic, Index(1), 1).unwrap().is_empty());
    }
    // Those of other folds cannot be made by a client, either.
    for topic in ["cluster", "namespace/0", "blobs/0", "namespace/1"] {
        assert_eq!(log.append(topic, &["x"]).unwrap_err().kind, Kind::Invalid);
        assert_eq!(log.trim(topic, Index(1)).unwrap_err().kind, Kind::Invalid);
    }
}

#[test]
fn a_tail_waits_for_the_next_entry_or_its_end() {
    let world = World::new("log-tail");
    let mut client = world.client();
    let mut log = client.log();
    let first = log.append("t", &["a"]).unwrap().first();
    let next = Index(first.0 + 1);
    assert_eq!(log.tail("t", first, Duration::from_secs(60)).unwrap().len(), 1, "there already");
    for _ in 0..3 {
        assert!(log.tail("t", next, Duration::from_millis(20)).unwrap().is_empty());
    }
    let mut other = world.client();
    let (sender, receiver) = std::sync::mpsc::channel();
    let task = holdfast_env::tasks::spawn("tail", move || {
        let entries = other.log().tail("t", next, Duration::from_secs(60));
        sender.send(entries).unwrap();
    });
    log.append("t", &["b"]).unwrap();
    let entries = receiver.recv().unwrap().unwrap();
    task.unwrap().join();
    assert_eq!((entries[0].index, entries[0].bytes.as_slice()), (next, b"b".as_slice()));
}
