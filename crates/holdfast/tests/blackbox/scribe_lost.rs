//! Spools that are erased, from outside: what is named, who hears of it, and who is not woken.

use super::common::{Node, Scratch, free_port};
use super::http::get;
use super::scribe::{Agent, Client, lines, until};
use serde_json::Value;
use std::path::Path;

/// What a category's status says of one spool after the other that is lost: its name, and from which message on.
fn lost(node: &Node, category: &str) -> Vec<(String, u64)> {
    let all = node.json(&["scribe", "status"]);
    let one = all.iter().find(|one| one["category"] == category).unwrap();
    let spools = one["lost_spools"].as_array().unwrap();
    assert_eq!(one["lost"], spools.len());
    let lost =
        |lost: &Value| (lost["name"].as_str().unwrap().to_owned(), lost["next"].as_u64().unwrap());
    spools.iter().map(lost).collect()
}

fn log(agent: &Agent, text: &str) {
    assert_eq!(Client::new(agent.address).log(&[("web", text.as_bytes())]), Some(true));
}

/// A directory was erased with messages in it of which clients had heard OK, and nobody heard of that: the next
/// agent there brought its own, and all looked well.
#[test]
fn what_an_erased_spool_lost_is_named() {
    let scratch = Scratch::new();
    let (data, spool) = (scratch.path("node"), scratch.path("spool"));
    let settings = format!("http_port = {}\n", free_port());
    let node = Node::start_with(&data, &settings);
    let start = |more: &[&str]| Agent::start(&spool, 0, &data, more);
    let agent = start(&[]);
    log(&agent, "one");
    until(&node, "web", 1);
    node.kill();
    // It has them, and the topic does not.
    log(&agent, "two");
    log(&agent, "three");
    let name = format!(":{}", spool.canonicalize().unwrap().display());
    let erased = agent.spool.clone();
    agent.kill();
    std::fs::remove_dir_all(&spool).unwrap();
    let mut node = Node::start(&data);
    assert_eq!(lost(&node, "web"), [], "nobody is in its place yet");
    let agent = start(&[]);
    log(&agent, "four");
    until(&node, "web", 2);
    let named = lost(&node, "web");
    assert!(named.len() == 1 && named[0].0.ends_with(&name) && named[0].1 == 2, "{named:?}");
    let said = node.run(&["scribe", "status"]).ok();
    let line = format!("lost: spool {erased} of `{}`, what it had from message 2 on", named[0].0);
    assert!(said.contains(&line), "{said}");
    assert!(metrics(&node).contains("holdfast_scribe_lost_spools{category=\"web\"} 1\n"));
    // An agent that has nothing left says so, and its directory may go.
    assert_eq!(agent.stop(), 0);
    std::fs::remove_dir_all(&spool).unwrap();
    let agent = start(&[]);
    log(&agent, "five");
    until(&node, "web", 3);
    // It goes on in its directory, and elsewhere with all that it has.
    agent.kill();
    let agent = start(&[]);
    log(&agent, "six");
    until(&node, "web", 4);
    assert_eq!(agent.stop(), 0);
    let moved = scratch.path("moved");
    std::fs::rename(&spool, &moved).unwrap();
    let agent = Agent::start(&moved, 0, &data, &[]);
    log(&agent, "seven");
    let beside = start(&[]);
    log(&beside, "eight");
    until(&node, "web", 6);
    assert_eq!(lost(&node, "web"), named, "nothing more is lost");
    assert_eq!((agent.stop(), beside.stop()), (0, 0));
    assert_eq!(lines(&node, "web").len(), 6);
    let sentence = {
        super::common::signal(node.pid(), "TERM");
        node.told.sentence_of("scribe.lost")
    };
    assert!(sentence.contains(&erased) && sentence.contains("from message 2 on"), "{sentence}");
    // The view has it from its snapshot and its topic.
    drop(node);
    let node = Node::start(&data);
    assert_eq!(lost(&node, "web"), named);
    node.stop();
}

/// Names and last words go through carriers; two machines that have one name by mistake are told apart once both
/// send.
#[test]
fn names_go_through_carriers_and_two_that_share_one_are_told() {
    let scratch = Scratch::new();
    let data = scratch.path("node");
    let mut node = Node::start(&data);
    let secret = data.join("secret").to_str().unwrap().to_owned();
    let carry = ["--carry-port", "0", "--carry-secret", &secret];
    let carrier = Agent::start(&scratch.path("carrier"), 0, &data, &carry);
    let to = carrier.carries.unwrap().to_string();
    let start = |directory: &Path| {
        Agent::start_to(directory, 0, &to, &["--secret", &secret, "--name", "web server 1"])
    };
    let spools = [scratch.path("a"), scratch.path("b")];
    let first = start(&spools[0]);
    log(&first, "one");
    until(&node, "web", 1);
    let second = start(&spools[1]);
    log(&second, "two");
    until(&node, "web", 2);
    let name = || "web server 1".to_owned();
    assert_eq!(lost(&node, "web"), [(name(), 2)]);
    // The first one is there. An agent says so now and then, and when it starts.
    first.kill();
    let first = start(&spools[0]);
    log(&first, "three");
    until(&node, "web", 3);
    assert_eq!(lost(&node, "web"), []);
    // Both end in order: a third one is in nobody's place.
    assert_eq!((first.stop(), second.stop()), (0, 0));
    let third = start(&scratch.path("c"));
    log(&third, "four");
    until(&node, "web", 4);
    assert_eq!(lost(&node, "web"), []);
    assert_eq!((third.stop(), carrier.stop()), (0, 0));
    super::common::signal(node.pid(), "TERM");
    let shared = node.told.sentence_of("scribe.name-shared");
    assert!(shared.contains("`web server 1`"), "{shared}");
    let long = "x".repeat(300);
    let mut refused = super::common::binary();
    refused.args(["scribe", "agent", "--port", "0", "--to", &to, "--name", &long, "--spool"]);
    let refused = super::common::finish(refused.arg(scratch.path("d")), b"");
    refused.refused(&["--name", "255"]);
}

fn metrics(node: &Node) -> String {
    let token = std::fs::read_to_string(node.data.join("http-token")).unwrap();
    let address = node.ready["http"].as_str().unwrap();
    let port = address.rsplit(':').next().unwrap().parse().unwrap();
    get(port, "/metrics", &format!("Authorization: Bearer {}\r\n", token.trim()))
}
