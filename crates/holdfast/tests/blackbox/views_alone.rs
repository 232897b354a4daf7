//! Views as processes of their own: they follow a cluster through a node, answer and are ridden at their
//! own addresses, survive kill -9, and are given no chunk.

use super::common::{Node, Scratch, binary, finish, free_port, until};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A node that can be followed.
pub fn followed(data: &Path) -> (Node, u16) {
    followed_with(data, "")
}

pub fn followed_with(data: &Path, more: &str) -> (Node, u16) {
    let port = free_port();
    let settings = format!("native_port = {port}\ndram = \"0\"\nscrub = \"0\"\n{more}");
    (Node::start_with(data, &settings), port)
}

/// `view run VIEW --data DIR`, against the node's port, with its secret.
fn command(node: &Node, port: u16, view: &[&str], data: &Path) -> Command {
    let mut command = binary();
    command.args(["--json", "--server", &format!("127.0.0.1:{port}"), "--secret"]);
    command.arg(node.data.join("secret")).args(["view", "run"]).args(view);
    command.arg("--data").arg(data);
    command
}

pub fn start(node: &Node, port: u16, view: &[&str], data: &Path) -> Node {
    Node::start_by(&mut command(node, port, view, data), data)
}

/// What the words print, asked of several at once.
fn of_all(nodes: &[&Node], words: &[&str]) -> Vec<Value> {
    let servers: Vec<String> =
        nodes.iter().map(|node| format!("unix:{}", node.socket().display())).collect();
    let mut command = binary();
    command.args(["--json", "--server", &servers.join(",")]).args(words);
    let text = finish(&mut command, b"").ok();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn keys_ridden(nodes: &[&Node], reached: &str) -> Vec<String> {
    let mut lines = of_all(nodes, &["ride", "orders", "--print", "--reached", reached]);
    lines.pop();
    let mut keys: Vec<String> =
        lines.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    keys
}

#[test]
fn halves_and_a_memory_view_follow_survive_a_kill_and_agree() {
    let scratch = Scratch::new();
    let (node, port) = followed(&scratch.path("data"));
    for collection in ["nodes", "edges"] {
        node.run(&["view", "create", "orders", collection, "--hash", "until=/"]).ok();
    }
    node.run(&["view", "put", "orders", "nodes", "first", "1"]).ok();
    let places = ["low", "high", "memory"].map(|name| scratch.path(name));
    let views: [&[&str]; 3] =
        [&["disk", "orders", "0/2"], &["disk", "orders", "1/2"], &["memory", "orders"]];
    let mut low = start(&node, port, views[0], &places[0]);
    let high = start(&node, port, views[1], &places[1]);
    let memory = start(&node, port, views[2], &places[2]);

    // kill -9 of one while entries come.
    let load = ["--json", "view", "load", "graph", "orders", "--nodes", "4000"];
    let load = node.command(&load).spawn().unwrap();
    let behind = |node: &Node, index: u64| {
        let status = node.json(&["view", "status"]);
        status[0]["applied"].as_u64().unwrap() < index || !status[0]["begins"].is_null()
    };
    until("entries come", || !behind(&low, 5));
    low.kill();
    let loaded = load.wait_with_output().unwrap();
    assert!(loaded.status.success(), "{loaded:?}");
    let loaded: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    let last = loaded["last"].to_string();
    low = start(&node, port, views[0], &places[0]);

    // Together they have everything, each key once, and agree on it.
    let all = keys_ridden(&[&low, &high], &last);
    assert_eq!(all.len(), 8001, "nodes, an edge of each, and the first one");
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    until("the memory view is level", || !behind(&memory, loaded["last"].as_u64().unwrap()));
    let compared = of_all(&[&low, &high, &memory], &["view", "verify", "orders"]);
    assert_eq!(compared.len(), 3, "{compared:?}");
    let got = memory.json(&["view", "get", "orders", "nodes", "first", "--reached", &last]);
    assert_eq!(got[0]["value"], "1");
    // Changes enter by any of them.
    let put = high.json(&["view", "put", "orders", "nodes", "second", "2"]);
    let index = put[0]["index"].to_string();
    let got = memory.json(&["view", "get", "orders", "nodes", "second", "--reached", &index]);
    assert_eq!(got[0]["value"], "2");
    // They were told of what they kept before a kill by nobody: the place says the view.
    let said = std::fs::read_to_string(places[0].join("VIEW")).unwrap();
    assert!(said.starts_with("view orders disk 0/2\n"), "{said}");

    for view in [low, high, memory] {
        view.stop();
    }
    node.stop();
}

#[test]
fn a_view_of_its_own_is_given_no_chunk_and_decides_nothing() {
    let scratch = Scratch::new();
    let (node, port) = followed(&scratch.path("data"));
    node.run(&["view", "create", "orders", "nodes"]).ok();
    let place = scratch.path("view");
    let view = start(&node, port, &["disk", "orders"], &place);
    let file = scratch.path("file");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    // Through the node, and through the view's process, which is a node to clients.
    for (server, path) in [(&node, "/a"), (&view, "/b")] {
        let words = ["fs", "put", file.to_str().unwrap(), path];
        server.run(&words).ok();
    }
    for (server, path) in [(&view, "/a"), (&node, "/b")] {
        let read = server.run(&["fs", "cat", path]);
        assert_eq!((read.code, read.out.len()), (Some(0), 300_000), "{}", read.err);
    }
    let nodes = node.json(&["node", "ls"]);
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    assert_eq!(
        (nodes[1]["stores"].as_array().unwrap().len(), &nodes[1]["controller"]),
        (0, &Value::Bool(false))
    );
    assert_eq!(nodes[0]["leader"], true);
    let text = node.run(&["node", "ls"]).ok();
    assert!(text.lines().nth(1).unwrap().contains("no stores"), "{text}");
    assert!(!place.join("chunks").exists() && !place.join("log").join("topics").exists());
    for server in [&node, &view] {
        assert!(server.run(&["doctor"]).ok().contains("is well"));
        server.run(&["recovery", "status"]).ok();
    }
    // It said of the log that it kept it itself.
    assert!(node.run(&["status"]).ok().contains("log: embedded, one copy;"));
    let status = view.run(&["status"]).ok();
    let follows = format!("log: followed, of the node at 127.0.0.1:{port};");
    assert!(status.contains(&follows), "{status}");
    assert_eq!(view.json(&["status"])[0]["log"], follows[5..follows.len() - 1]);
    // A process for one view ended it and was there for nothing, or ran others, whose directories the next
    // start did not know.
    let said = view.run(&["view", "stop", "disk", "orders"]).refused(&["stop", "interrupted"]);
    for names in ["`orders disk 0/1` alone", &format!("--server 127.0.0.1:{port}")] {
        assert!(said.contains(names), "{said}");
    }
    view.run(&["view", "run", "memory", "orders", "0/2"])
        .refused(&["run view `orders memory 0/2`", "`orders disk 0/1` alone"]);
    assert_eq!(view.json(&["view", "status"]).len(), 1);
    view.stop();
    node.stop();
}

#[test]
fn a_directory_is_one_views_and_one_processs() {
    let scratch = Scratch::new();
    let (node, port) = followed(&scratch.path("data"));
    node.run(&["view", "create", "orders", "nodes"]).ok();
    let place = scratch.path("view");
    // Nothing is made for a topic that there is not.
    let refused = |view: &[&str], data: &Path, names: &[&str]| {
        finish(&mut command(&node, port, view, data), b"").refused(names);
    };
    refused(&["disk", "others"], &place, &["others", "view create"]);
    assert!(!place.exists());
    assert_eq!(node.json(&["node", "ls"]).len(), 1);
    let view = start(&node, port, &["disk", "orders", "0/2"], &place);
    let ready = view.ready["native"].clone();
    refused(&["disk", "orders", "0/2"], &place, &["another process uses it"]);
    refused(&["disk", "orders", "1/2"], &place, &["orders disk 0/2", "another directory"]);
    view.stop();
    refused(&["memory", "orders"], &place, &["orders disk 0/2", "another directory"]);
    let up = |words: &[&str]| finish(binary().args(words).arg(&place), b"");
    up(&["up", "--data"]).refused(&["orders disk 0/2", "view run"]);
    up(&["doctor", "--data"]).refused(&["orders disk 0/2", "no chunks"]);
    // The same command again, at the same address; whoever it followed is remembered.
    let again = start(&node, port, &["disk", "orders", "0/2"], &place);
    assert_eq!(again.ready["native"], ready);
    again.stop();
    // A node's directory is no view's.
    let data = node.stop();
    let mut wrong = binary();
    wrong.args(["view", "run", "disk", "orders", "--data"]).arg(&data);
    wrong.args(["--server", &format!("127.0.0.1:{port}")]);
    finish(&mut wrong, b"").refused(&["connect"]);
}

/// A process of its own checked what its index is of by a catalog that it had not read yet: there was no
/// collection, whatever there was.
#[test]
fn an_index_is_a_process_of_its_own_from_its_first_start() {
    let scratch = Scratch::new();
    let (node, port) = followed(&scratch.path("data"));
    node.run(&["view", "create", "orders", "goods", "--values-json"]).ok();
    node.run(&["view", "create", "orders", "raw"]).ok();
    for key in 0..50 {
        let value = format!("{{\"tag\":\"t{}\"}}", key % 2);
        node.run(&["view", "put", "orders", "goods", &format!("k{key:02}"), &value]).ok();
    }
    let of = |collection: &'static str| {
        ["index", "orders", "--collection", collection, "--field", "tag"]
    };
    let index = start(&node, port, &of("goods"), &scratch.path("goods"));
    let last = node.json(&["view", "put", "orders", "goods", "last", "{\"tag\":\"t1\"}"]);
    let last = last[0]["index"].to_string();
    let found = ["view", "find", "orders", "goods", "tag", "t1", "--reached", &last];
    let found: Vec<Value> = index.json(&found);
    assert_eq!(found.len(), 26, "{found:?}");
    // What is wrong is said as it is.
    let refused = command(&node, port, &of("raw"), &scratch.path("raw")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("raw") && said.contains("--values-json"), "{said}");
    index.stop();
    node.stop();
}
