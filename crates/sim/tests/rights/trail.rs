//! The audit trail against every operation there is: what changes something is one line of it, what
//! only looks is none. An operation that changes something and says nothing fails here, unless it is
//! named with the reason.

use super::rules::of_admin;
use super::*;
use holdfast_cluster::topics::AUDIT_TOPIC;
use holdfast_log::Scope;
use holdfast_wire as wire;

/// Parts of writing a large file, whose beginning and name are told.
const PARTS: [u16; 3] = [wire::OP_CHUNK_APPEND, wire::OP_ALLOCATE, wire::OP_REMAINDER];
/// Of all changes of names, sealing a chunk is such a part too.
const PARTS_OF_CHANGE: usize = 1;

impl World {
    fn lines(&self) -> Vec<String> {
        self.node.pump();
        let log = &self.node.log;
        let Ok(info) = log.info(AUDIT_TOPIC) else { return Vec::new() };
        let read = log.read(AUDIT_TOPIC, info.first, 10_000, 1 << 20, Scope::Durable).unwrap();
        read.into_iter().map(|(_, line)| String::from_utf8(line).unwrap()).collect()
    }
}

#[test]
fn every_operation_that_changes_something_is_one_line_and_no_other_is_any() {
    let world = World::with_trail(Trail::Data);
    let part = world.fill("/in");
    let owner = world.connect(Who::Owner);
    let mut silent = 0;
    for (opcode, meta, changes) in part.all_requests().into_iter().chain(of_admin()) {
        let before = world.lines().len();
        // What comes to nothing has a limit a second.
        world.calendar.0.fetch_add(1000, Ordering::Relaxed);
        ask(&owner, opcode, &meta);
        let new = world.lines().split_off(before);
        let is_part = PARTS.contains(&opcode);
        if changes && !is_part && opcode == wire::OP_CHANGE && new.is_empty() {
            silent += 1;
            continue;
        }
        assert_eq!(new.len(), usize::from(changes && !is_part), "{opcode:#06x}: {new:?}");
        for line in new {
            assert!(line.contains(r#""who":"owner""#) && line.contains(r#""outcome":"#), "{line}");
        }
    }
    assert_eq!(silent, PARTS_OF_CHANGE);
    // What a node passes on for a client is told of by the client's own node.
    let before = world.lines().len();
    let (opcode, meta, _) = of_admin().pop().unwrap();
    ask(&world.connect(named(Role::Node, "n1")), opcode, &meta);
    assert_eq!(world.lines().len(), before);
}

/// Who tried to change the trail itself, and was refused, was in no line of it.
#[test]
fn attempts_to_change_what_the_cluster_keeps_are_told_of_whatever_else_is() {
    let world = World::with_trail(Trail::Admin);
    let owner = world.connect(Who::Owner);
    let append = |topic: &str| {
        let (topic, entries) = (topic.to_owned(), vec![wire::log::Entry { bytes: vec![7] }]);
        (wire::OP_LOG_APPEND, wire::log::Append { topic, synced: true, entries }.to_bytes())
    };
    let trim = |topic: &str| {
        let (topic, before) = (topic.to_owned(), Index(9));
        (wire::OP_LOG_TRIM, wire::log::Trim { topic, before }.to_bytes())
    };
    for topic in [AUDIT_TOPIC, "cluster", "namespace/0"] {
        for (opcode, meta) in [append(topic), trim(topic)] {
            world.calendar.0.fetch_add(1000, Ordering::Relaxed);
            let before = world.lines().len();
            let told = format!("{opcode:#06x} of {topic}");
            // A refusal at the door went in front of its line, and a kill behind it left none.
            assert_eq!(
                ask(&owner, opcode, &meta),
                None,
                "{told}: answered before its line is kept"
            );
            world.node.pump();
            assert!(refusal(&owner).is_some(), "{told} was done");
            let new = world.lines().split_off(before);
            assert!(new.len() == 1 && new[0].contains(topic), "{told}: {new:?}");
        }
    }
    let before = world.lines().len();
    for (opcode, meta) in [append("mine"), trim("mine")] {
        ask(&owner, opcode, &meta);
    }
    assert_eq!(world.lines().len(), before, "what clients keep is data");
}

/// A client that is refused is told of, too, and cannot push out what others did.
#[test]
fn refusals_are_told_of_up_to_a_limit() {
    let world = World::with_trail(Trail::Data);
    let client = world.connect(named(Role::Client, "app"));
    let (opcode, meta, _) = of_admin().pop().unwrap();
    for i in 0..100 {
        let at_once = ask(&client, opcode, &meta);
        // What is left out waits for nothing.
        assert_eq!(at_once.is_some(), i >= 5, "refusal {i}");
        world.node.pump();
        assert_eq!(at_once.or_else(|| refusal(&client)).unwrap().0, Kind::Denied);
    }
    let lines = world.lines();
    assert!(lines[0].contains("certificate app 0a") && lines[0].contains("denied"), "{lines:?}");
    assert_eq!(lines.len(), 5);
    world.calendar.0.store(1000, Ordering::Relaxed);
    ask(&world.connect(Who::Owner), opcode, &meta);
    assert!(world.lines().last().unwrap().contains(r#""left_out":95"#));
}
