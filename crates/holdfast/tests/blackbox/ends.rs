//! What ends with its process or its writer: chunks in memory, and files that nobody closes.

use super::common::{Node, Scratch, attempts, bytes};
use holdfast_base::Kind;
use holdfast_client::NewFile;
use holdfast_wire::admin::Status;
use std::fs;

/// After each kill -9 of a node with data of class `dram`, one more finding stayed for ever: "seal
/// chunk `c0.9`, which this node was writing: ... nobody to ask". Memory does not come back: an
/// entry says so, and what is told is how many files have lost bytes, for as long as there are any.
#[test]
fn memory_that_ended_with_its_process_is_told_while_a_file_has_lost_bytes() {
    let scratch = Scratch::new();
    let mut node = Node::start_with(&scratch.path("data"), "dram = \"64M\"\n");
    let class = || Some("dram:memory".parse().unwrap());
    for round in 0..3 {
        let mut client = node.client();
        let new = NewFile { class: class(), replace: true, ..NewFile::default() };
        client.put(&format!("/small-{round}"), &bytes(round, 5000), &new).unwrap();
        let mut writer = client.create("/stream", &new).unwrap();
        writer.append(&bytes(round, 100_000)).unwrap();
        drop(writer);
        drop(client);
        node = Node::start(&node.kill());
        let parts = format!("{} parts", round + 1);
        let told = |s: &Status| s.findings.iter().any(|finding| finding.contains(&parts));
        let findings = node.until("the loss is told", told).findings;
        let (lost, other): (Vec<_>, Vec<_>) =
            findings.iter().partition(|finding| finding.contains("ended with the process"));
        assert_eq!(other, Vec::<&String>::new(), "round {round}");
        assert_eq!(lost.len(), 1, "round {round}: {findings:?}");
        // There is nothing to copy, though it was said to take for ever.
        let recovery = node.run(&["recovery", "status"]).ok();
        assert!(recovery.contains("every chunk has its copies"), "{recovery}");
    }
    let mut client = node.client();
    for round in 0..3 {
        assert!(client.get(&format!("/small-{round}")).is_err());
        client.delete(&format!("/small-{round}"), false).unwrap();
    }
    // Files whose only bytes were in that memory cannot be salvaged: they end by themselves, too.
    node.until("nothing is told any more", |s| s.findings.is_empty() && s.unclosed == 0);
    node.stop();
}

#[test]
fn a_person_gives_an_unclosed_file_up() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    for i in 0..3 {
        let mut writer = client.create(&format!("/f{i}"), &NewFile::default()).unwrap();
        writer.append(&bytes(i, 10_000)).unwrap();
    }
    let ids: Vec<String> =
        node.json(&["fs", "unclosed"]).iter().map(|line| line["file"].to_string()).collect();
    assert_eq!(ids.len(), 3);
    node.run(&["fs", "unclosed", "--discard", &ids[0], "--discard", &ids[2]]).ok();
    let left = node.json(&["fs", "unclosed"]);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["file"].to_string(), ids[1]);
    node.run(&["fs", "unclosed", "--discard", &ids[0]]).refused(&[&ids[0], "fs unclosed"]);
    node.run(&["fs", "salvage", &ids[1], "/kept"]).ok();
    assert_eq!(client.get("/kept").unwrap(), bytes(1, 10_000));
    assert_eq!(client.get("/f0").unwrap_err().kind, Kind::NotFound);
    node.stop();
}

/// A node whose directory was removed went on, and noted how far its log was, and put its snapshots,
/// into the directory that another node had made in that place: the other took its own log for an
/// older one at its next start.
#[test]
fn a_node_whose_directory_is_anothers_ends_and_leaves_that_alone() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut first = Node::start(&data);
    let new = NewFile::default();
    first.client().put("/first", b"of the first", &new).unwrap();
    // It may make a file meanwhile.
    while fs::remove_dir_all(&data).is_err() {}
    let second = Node::start(&data);
    second.client().put("/second", b"of the second", &new).unwrap();
    // It looks many times a second.
    let mut client = second.client();
    let ended = attempts().find_map(|()| {
        client.status().unwrap();
        first.ended()
    });
    assert_eq!(ended, Some(1));
    let told = first.told.sentence_of("node.ends");
    assert!(told.contains("LOCK was removed or replaced"), "{told}");
    let second = Node::start(&second.stop());
    assert_eq!(second.client().get("/second").unwrap(), b"of the second");
    assert_eq!(second.client().get("/first").unwrap_err().kind, Kind::NotFound);
    assert_eq!(second.client().status().unwrap().findings, Vec::<String>::new());
    // The file alone: from then on a second process would write beside it.
    let mut unlocked = second;
    fs::remove_file(data.join("LOCK")).unwrap();
    while unlocked.ended().is_none() {
        std::thread::yield_now();
    }
    unlocked.told.sentence_of("node.ends");
    let third = Node::start(&data);
    assert_eq!(third.client().get("/second").unwrap(), b"of the second");
    third.stop();
}
