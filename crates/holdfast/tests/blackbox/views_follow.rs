//! Rides that go on with the log: by the command, and by programs through the Rust client.

use super::common::{Node, Scratch, binary, finish, free_port, until};
use super::views_alone::{followed, followed_with, start};
use holdfast_base::Kind;
use holdfast_base::ids::Index;
use holdfast_client::view::{Changes, Follow, Rode};
use holdfast_client::{Client, ClientOptions};
use holdfast_wire::slab::{Content, Range, Received};
use holdfast_wire::view::{Board, ViewKind, ViewName};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

/// `ride orders --follow` with these words, at nodes one after the other.
struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// What is there by what was printed, by its key.
    there: BTreeMap<String, (u64, Value)>,
}

impl Follower {
    fn new(nodes: &[&Node], words: &[&str]) -> Follower {
        let servers: Vec<String> =
            nodes.iter().map(|node| format!("unix:{}", node.socket().display())).collect();
        let mut command = super::common::binary();
        command.args(["--json", "--server", &servers.join(","), "ride", "orders", "--follow"]);
        let mut child = command.args(words).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Follower { child, lines, there: BTreeMap::new() }
    }

    /// The next line: whether it is of a change, and of which entry.
    fn next(&mut self) -> Option<u64> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            let mut told = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            panic!("it goes on: {told}");
        }
        let line: Value = serde_json::from_str(&line).unwrap();
        let key = line["key"].as_str()?.to_owned();
        let index = line["index"].as_u64().unwrap();
        let before = self.there.get(&key).map_or(0, |(before, _)| *before);
        assert!(index > before, "each change once, in the log's order: {line}");
        match &line["value"] {
            Value::Null => drop(self.there.remove(&key)),
            value => drop(self.there.insert(key, (index, value.clone()))),
        }
        Some(index)
    }

    /// Reads what was ridden, until its end was said.
    fn ridden(mut self) -> Follower {
        while self.next().is_some() {}
        self
    }

    fn until(&mut self, index: u64) {
        while self.next() != Some(index) {}
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Across a trim of the log behind them, and a kill of the process that they were ridden from.
#[test]
fn rides_that_follow_are_the_log_folded_anew() {
    let scratch = Scratch::new();
    // Folds that need little of the log: it goes behind images.
    let soon = "snapshot_entries = 2\n";
    let (node, port) = followed_with(&scratch.path("data"), soon);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "create", "orders", "people", "--values-json"]).ok();
    let put = |collection: &str, key: &str, value: &str| {
        let put = node.json(&["view", "put", "orders", collection, key, value]);
        put[0]["index"].as_u64().unwrap()
    };
    for i in 0..10 {
        put("nodes", &format!("n{i}"), &format!("v{i}"));
        put("people", &format!("p{i}"), &format!(r#"{{"n": {i}, "m": "long"}}"#));
    }
    let place = scratch.path("view");
    Node::set(&place, soon);
    let view = start(&node, port, &["disk", "orders"], &place);
    let less: [&[&str]; 3] = [&[], &["--collections", "people", "--fields", "n"], &["--keys-only"]];
    let mut followers = less.map(|words| Follower::new(&[&view, &node], words).ridden());
    assert_eq!(followers.each_ref().map(|follower| follower.there.len()), [20, 10, 20]);

    // Marks, until the log begins behind what they were ridden at.
    let mut marks = Vec::new();
    for round in 0..2 {
        for i in 0..5 {
            put("nodes", &format!("n{i}"), &format!("changed-{round}"));
        }
        node.run(&["view", "delete", "orders", "people", &format!("p{round}")]).ok();
        let mark = node.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
        until("there is an image", || {
            let status = view.json(&["view", "status"]);
            status[0]["images"].as_array().unwrap().iter().any(|image| image["index"] == mark)
        });
        marks.push(mark);
    }
    let changed = put("people", "p9", r#"{"n": "changed"}"#);
    followers.iter_mut().for_each(|follower| follower.until(changed));
    let begins = || {
        let log = node.json(&["log", "ls"]).into_iter();
        let ours = log.filter(|topic| topic["topic"] == "view/orders");
        ours.filter_map(|topic| topic["first"].as_u64()).next().unwrap()
    };
    // The rides' holds last for a minute behind their ends, and go with their process.
    view.kill();
    put("nodes", "while-away", "1");
    let view = start(&node, port, &["disk", "orders"], &place);
    until("the log is trimmed", || begins() >= marks[0]);
    view.kill();
    put("nodes", "n7", "while-away-again");
    let view = start(&node, port, &["disk", "orders"], &place);
    let last = put("people", "new", r#"{"m": 1, "n": [1, 2]}"#);
    for (follower, words) in followers.iter_mut().zip(less) {
        follower.until(last);
        let reached = last.to_string();
        let ride = [&["ride", "orders", "--print", "--reached", &reached], words].concat();
        let mut lines = view.json(&ride);
        lines.pop();
        let there: BTreeMap<String, (u64, Value)> = lines
            .into_iter()
            .map(|line| {
                let key = line["key"].as_str().unwrap().to_owned();
                (key, (line["index"].as_u64().unwrap(), line["value"].clone()))
            })
            .collect();
        assert_eq!(follower.there, there, "{words:?}");
    }
    drop(followers);
    view.stop();
    node.stop();
}

/// Keys and what they have, by what was ridden and what followed.
type There = BTreeMap<(u16, Vec<u8>), (u64, Vec<u8>)>;

fn put_into(there: &mut There, item: Received<'_>) {
    let key = (item.collection, item.key.to_vec());
    let before = there.get(&key).map_or(0, |(before, _)| *before);
    assert!(item.index > before, "each change once, in the log's order: {item:?}");
    match item.content {
        Content::Deleted => drop(there.remove(&key)),
        Content::Value(value) => drop(there.insert(key, (item.index, value.to_vec()))),
        Content::NotSent => drop(there.insert(key, (item.index, Vec::new()))),
    }
}

fn board(range: Range) -> Board {
    let (topic, kind) = ("orders".to_owned(), ViewKind::Disk {});
    Board::of(ViewName { topic, kind, part: 0, of: 1 }, range)
}

fn ridden(client: &mut Client, board: &Board, there: &mut There) -> Rode {
    let mut ride = client.ride(board).unwrap();
    let rode = ride.rode();
    while let Some(slab) = ride.next_slab().unwrap() {
        let mut put = |item: Received<'_>| {
            put_into(there, item);
            Ok(())
        };
        slab.each(&mut put).unwrap();
    }
    rode
}

/// Reads until an entry has come; a node that is away is asked again.
fn follow_to(follow: &mut Follow, client: &mut Client, there: &mut There, last: u64) -> u32 {
    let mut away = 0;
    while follow.next() <= Index(last) && !follow.is_over() {
        let came = follow.read(client, Duration::from_secs(10), |_, item| {
            put_into(there, item);
            Ok(())
        });
        match came {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind, Kind::Retry, "{e}");
                away += 1;
            }
        }
    }
    away
}

/// Forty entries with changes, deletions among them; their indices.
fn put(node: &Node, from: u32) -> Vec<u64> {
    let mut client = node.client();
    let mut view = client.view("orders");
    let mut made = Vec::new();
    for i in from..from + 40 {
        let mut changes = Changes::default();
        changes.put(1, format!("n{}", i % 60).as_bytes(), format!("v{i}").as_bytes());
        let person = format!(r#"{{"n": {i}, "m": "long"}}"#);
        changes.put(2, format!("p{}", i % 7).as_bytes(), person.as_bytes());
        match i % 5 {
            0 => changes.delete(1, format!("n{}", (i + 3) % 60).as_bytes()),
            1 => changes.delete(2, format!("p{}", (i + 1) % 7).as_bytes()),
            _ => {}
        }
        made.push(view.change(&changes).unwrap().0);
    }
    made
}

/// Of entries, with its beginning and its end.
fn a_range_that_is_yet_to_come(node: &Node, client: &mut Client, last: u64) {
    let (since, below) = (last + 4, last + 30);
    let bounded = Board { below: Some(Index(below)), since: Index(since), ..board(Range::ALL) };
    let mut there = There::new();
    let rode = ridden(client, &bounded, &mut there);
    assert!(there.is_empty(), "{there:?}");
    let mut follow = Follow::new(&bounded, &[rode]).unwrap();
    let made = put(node, 500);
    let mut came = BTreeSet::new();
    while !follow.is_over() {
        let taken = follow.read(client, Duration::from_secs(10), |_, item| {
            came.insert(item.index);
            Ok(())
        });
        assert_eq!(taken, Ok(true));
    }
    let within = made.into_iter().filter(|index| (since..below).contains(index));
    assert_eq!(came, within.collect::<BTreeSet<u64>>());
    assert!(came.len() > 20 && follow.next() == Index(below), "{came:?}");
}

/// Halves that were ridden at different entries, a node that is killed twice in between, entries that are
/// refused, fields and keys alone, and a collection that is made meanwhile: together with what was ridden they
/// are what a ride brings at the end.
#[test]
fn a_program_follows_across_a_restart_of_its_node() {
    let scratch = Scratch::new();
    let settings = "dram = \"0\"\nscrub = \"0\"\n";
    let mut node = Node::start_with(&scratch.path("data"), settings);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "create", "orders", "people", "--values-json"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    put(&node, 0);
    let mut client = Client::connect(&node.endpoint(), &ClientOptions::default()).unwrap();
    let asked = board(Range::ALL);
    let people =
        Board { collections: Some(vec![2]), fields: Some(vec!["n".to_owned()]), ..asked.clone() };
    let keys = Board { keys_only: true, ..asked.clone() };
    let mut wanted = [asked, people, keys].map(|asked| (asked, There::new(), Vec::new()));
    // Halves, with changes between them.
    for part in 0..2 {
        for (asked, there, rode) in &mut wanted {
            let half = Range::part(part, 2);
            let half = Board { low: half.low(), high: half.high(), ..asked.clone() };
            rode.push(ridden(&mut client, &half, there));
        }
        put(&node, 100 + 40 * part);
    }
    let mut follows = wanted.each_ref().map(|(asked, _, rode)| Follow::new(asked, rode).unwrap());
    let mut last = put(&node, 200)[39];
    for turn in 0..3 {
        for (follow, (_, there, _)) in follows.iter_mut().zip(&mut wanted) {
            follow_to(follow, &mut client, there, last);
        }
        if turn < 2 {
            node = Node::start(&node.kill());
            node.run(&["view", "create", "orders", &format!("new{turn}"), "--values-json"]).ok();
            let new = ["view", "put", "orders", &format!("new{turn}"), "k", r#"{"n": 1}"#];
            node.run(&new).ok();
            last = put(&node, 300 + 40 * turn)[39];
        }
    }
    assert_eq!(follows[0].collection(4).unwrap().name, "new1");
    let mut client = node.client();
    for (asked, there, _) in &wanted {
        let mut all = There::new();
        ridden(&mut client, &Board { reached: Index(last), ..asked.clone() }, &mut all);
        assert!(all.len() > 4);
        assert_eq!(*there, all, "{asked:?}");
    }
    assert!(wanted[0].1.contains_key(&(4, b"k".to_vec())));

    a_range_that_is_yet_to_come(&node, &mut client, last);
    // Nothing was ridden: there is nothing to go on from.
    let refused = Follow::new(&board(Range::ALL), &[]).err().unwrap();
    assert!(refused.message.contains("ride a part of it first"), "{refused}");
    drop(client);
    node.stop();
}

/// The command was interrupted, or it went on for ever; and `--below` was refused with it.
#[test]
fn a_ride_that_follows_ends_below_an_entry() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "dram = \"0\"\nscrub = \"0\"\n");
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let put = |key: &str| {
        let put = node.json(&["view", "put", "orders", "nodes", key, "1"]);
        put[0]["index"].as_u64().unwrap()
    };
    let first = put("a");
    let end = first + 9;
    let mut follower = Follower::new(&[&node], &["--below", &end.to_string()]).ridden();
    let mut made = Vec::new();
    while made.last().is_none_or(|last| *last < end + 2) {
        made.push(put(&format!("b{}", made.len())));
    }
    made.retain(|index| *index < end);
    // It may have been ridden already, where the ride began late.
    while follower.there.values().all(|(index, _)| Some(index) != made.last()) {
        follower.next();
    }
    let mut rest = String::new();
    follower.lines.read_to_string(&mut rest).unwrap();
    assert!(follower.child.wait().unwrap().success() && rest.is_empty(), "{rest}");
    let came: BTreeSet<u64> = follower.there.values().map(|(index, _)| *index).collect();
    assert_eq!(came, made.into_iter().chain([first]).collect());
    // What is behind its end already ends it at once.
    let ended = node.json(&["ride", "orders", "--follow", "--below", &first.to_string()]);
    assert_eq!(ended.len(), 1, "what came of it: {ended:?}");
    node.stop();
}

/// The log of a topic of items was read by the owner's socket alone: who rode over TCP, with the secret or a token
/// that reads all of it, was told when the ride was over that it belongs to views.
#[test]
fn whoever_may_ride_may_follow_over_tcp_too() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let port = free_port();
    Node::set(&data, &format!("dram = \"0\"\nscrub = \"0\"\nnative_port = {port}\n"));
    let node = Node::start(&data);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let put = || {
        let put = node.json(&["view", "put", "orders", "nodes", "a", "1"]);
        put[0]["index"].as_u64().unwrap()
    };
    let token = |name: &str, rule: &str| {
        let file = scratch.path(name);
        let out = file.to_str().unwrap();
        node.run(&["token", "create", name, "--allow", rule, "--out", out]).ok();
        file
    };
    let (reads, others) =
        (token("reads", "log:view/orders:r"), token("others", "log:view/other:r"));
    let follow = |by: &str, file: &Path| {
        let end = put() + 9;
        let mut command = binary();
        command.args(["--json", "--server", &format!("127.0.0.1:{port}"), by]).arg(file);
        command.args(["ride", "orders", "--follow", "--below", &end.to_string()]);
        let mut child = command.spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            put();
        }
        let done = child.wait_with_output().unwrap();
        (done.status.code(), done.stdout, String::from_utf8(done.stderr).unwrap())
    };
    for (by, file) in [("--secret", &data.join("secret")), ("--token", &reads)] {
        let (code, came, said) = follow(by, file);
        // What was ridden prints its end, too.
        let lines = String::from_utf8(came).unwrap().lines().count();
        assert!(code == Some(0) && lines > 2, "{by}: {lines} lines: {said}");
    }
    let (code, _, said) = follow("--token", &others);
    assert!(code == Some(1) && said.contains("log:view/orders"), "{said}");
    // A page of the log itself, as a program asks for it behind its ride.
    let server = format!("127.0.0.1:{port}");
    let read = |file: &Path, topic: &str| {
        let mut command = binary();
        command.args(["--server", &server, "--token"]).arg(file);
        finish(command.args(["log", "read", topic, "--from", "1"]), b"")
    };
    assert_eq!(read(&reads, "view/orders").code, Some(0));
    assert_eq!(read(&reads, "namespace/0").code, Some(1));
    // No name stands for all topics: the sentence named none, between two ticks.
    let mut command = binary();
    let all = command.args(["--server", &server, "--token"]).arg(&reads).args(["view", "status"]);
    finish(all, b"").refused(&["use all topics: it takes the right `log:*:r`"]);
    node.stop();
}

/// A node that is frozen keeps its connections: a follower heard nothing for a minute before it asked the next
/// one.
#[test]
fn a_follower_goes_on_from_a_frozen_node_within_seconds() {
    let scratch = Scratch::new();
    let (node, port) = followed(&scratch.path("data"));
    node.run(&["view", "create", "orders", "nodes"]).ok();
    let view = start(&node, port, &["disk", "orders"], &scratch.path("view"));
    let put = |key: &str| {
        let put = node.json(&["view", "put", "orders", "nodes", key, "1"]);
        put[0]["index"].as_u64().unwrap()
    };
    put("a");
    let mut follower = Follower::new(&[&view, &node], &[]).ridden();
    follower.until(put("b"));
    super::common::signal(view.pid(), "STOP");
    let frozen = Instant::now();
    follower.until(put("c"));
    let took = frozen.elapsed();
    super::common::signal(view.pid(), "CONT");
    assert!(took < Duration::from_secs(30), "{took:?}");
    follower.until(put("d"));
    drop(follower);
    view.stop();
    node.stop();
}
