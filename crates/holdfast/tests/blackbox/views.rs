//! Views of items and rides from outside: what was acknowledged is read by every view, also after a
//! kill, and a ride brings all of it, by the commands that the page has.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use super::stopped_views::files_below;
use holdfast_client::view::Changes;
use serde_json::Value;
use std::path::Path;

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";

/// The items that a ride prints, and what it says at its end.
fn ride(node: &Node, words: &[&str]) -> (Vec<(String, u64, Value)>, Value) {
    let all = [&["ride", "orders"], words, &["--print"]].concat();
    let mut lines = node.json(&all);
    let end = lines.pop().expect("what came of it");
    let item = |line: Value| {
        let key = line["key"].as_str().unwrap().to_owned();
        (key, line["index"].as_u64().unwrap(), line["value"].clone())
    };
    (lines.into_iter().map(item).collect(), end)
}

/// A range of entries, and fields of values: of JSON alone.
fn less_than_everything_is_asked_for(node: &Node, at: &str) {
    // What has changed since an entry: with its deletions, or what is there of it.
    let since = ["--since", at, "--versions"];
    let changed = |words: &[&str]| -> Vec<String> {
        let mut keys: Vec<String> = ride(node, words).0.into_iter().map(|(key, ..)| key).collect();
        keys.sort();
        keys
    };
    assert_eq!(changed(&since), ["a/b", "a/c"]);
    assert_eq!(changed(&since[..2]), ["a/c"]);
    assert_eq!(changed(&["--below", at]), ["a"]);
    node.run(&["view", "create", "orders", "people", "--values-json"]).ok();
    node.run(&["view", "put", "orders", "people", "p", r#"{"name": "x", "age": 7, "no": 1}"#]).ok();
    node.run(&["view", "put", "orders", "people", "q", "[]"]).ok();
    let (mut left, _) = ride(node, &["--collections", "people", "--fields", "age,name"]);
    left.sort_by_key(|(key, ..)| key.clone());
    let values: Vec<String> = left.iter().map(|(_, _, value)| value.to_string()).collect();
    assert_eq!(values, [r#"{"age":7,"name":"x"}"#, "{}"]);
    node.run(&["ride", "orders", "--fields", "name"]).refused(&["`nodes`", "bytes"]);
    node.run(&["ride", "orders", "--since", "9", "--below", "9"]).refused(&["since"]);
    for key in ["p", "q"] {
        node.run(&["view", "delete", "orders", "people", key]).ok();
    }
}

#[test]
fn the_pages_commands_do_what_it_says_and_a_kill_takes_nothing() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut node = Node::start_with(&data, SETTINGS);
    for collection in ["nodes", "edges"] {
        node.run(&["view", "create", "orders", collection, "--hash", "until=/"]).ok();
    }
    node.run(&["view", "run", "disk", "orders"]).ok();
    node.run(&["view", "put", "orders", "nodes", "a", r#"{"name": "first"}"#]).ok();
    node.run(&["view", "put", "orders", "edges", "a/b", "1"]).ok();
    let third = node.json(&["view", "put", "orders", "edges", "a/c", "2"])[0]["index"].clone();
    node.run(&["view", "delete", "orders", "edges", "a/b"]).ok();
    let at = third.to_string();
    let got = node.json(&["view", "get", "orders", "nodes", "a"]);
    assert_eq!(got[0]["value"], r#"{"name": "first"}"#, "bytes, whatever they look like");
    let keys = |lines: Vec<Value>| -> Vec<String> {
        lines.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(node.json(&["view", "scan", "orders", "edges", "a/"])), ["a/c"]);
    let before = ["view", "scan", "orders", "edges", "a/", "--at", &at];
    assert_eq!(keys(node.json(&before)), ["a/b", "a/c"]);
    let (items, end) = ride(&node, &[]);
    assert_eq!(items.len(), 2, "{items:?}");
    assert_eq!(end["items"], 2);
    assert_eq!(ride(&node, &["--versions"]).1["items"], 4);
    assert_eq!(ride(&node, &["--collections", "nodes"]).1["items"], 1);
    less_than_everything_is_asked_for(&node, &at);

    // Halves beside the whole, a view in memory, and a kill in between.
    for view in [&["disk", "orders", "0/2"][..], &["disk", "orders", "1/2"], &["memory", "orders"]]
    {
        node.run(&[&["view", "run"], view].concat()).ok();
    }
    let loaded = node.json(&["view", "load", "graph", "orders", "--nodes", "500"]);
    let last = loaded[0]["last"].to_string();
    let all = ride(&node, &["--reached", &last]).0;
    node.kill();
    node = Node::start_with(&data, SETTINGS);
    let reached = ["--reached", last.as_str()];
    let mut after = ride(&node, &reached).0;
    let mut wanted = all.clone();
    after.sort_by_key(|(key, ..)| key.clone());
    wanted.sort_by_key(|(key, ..)| key.clone());
    assert_eq!(after, wanted);
    assert_eq!(after.len(), 1002);
    // Thirds of what halves hold, each key in one of them.
    let thirds: Vec<_> = ["0/3", "1/3", "2/3"]
        .iter()
        .flat_map(|part| ride(&node, &[&[*part], &reached[..]].concat()).0)
        .collect();
    let mut thirds = thirds;
    thirds.sort_by_key(|(key, ..)| key.clone());
    assert_eq!(thirds, wanted);
    let status = node.json(&["view", "status"]);
    assert_eq!(status.len(), 4, "{status:?}");
    assert!(status.iter().all(|one| one["behind"] == 0 && one["stopped"].is_null()), "{status:?}");
    let got = node.json(&["view", "get", "orders", "nodes", "n0000000007"]);
    assert_eq!(got.len(), 1);

    // What is given up cannot be read any more, and nothing else is missing.
    // Whichever of the views answers has come that far: each folds the horizon in its own time.
    let given_up = node.json(&["view", "horizon", "orders", &last])[0]["index"].to_string();
    let reached = ["--reached", given_up.as_str()];
    let old = ["view", "get", "orders", "edges", "a/b", "--at", &at];
    node.run(&[&old[..], &reached].concat()).refused(&["gone"]);
    assert_eq!(ride(&node, &[&["--versions"], &reached[..]].concat()).1["items"], 1002);
    let since = ["ride", "orders", "--versions", "--since", &at];
    node.run(&[&since[..], &reached].concat()).refused(&["horizon", "anew"]);
    node.run(&["view", "stop", "memory", "orders"]).ok();
    assert_eq!(node.json(&["view", "status"]).len(), 3);
    node.stop();
}

#[test]
fn what_is_wrong_is_said_in_a_sentence_that_helps() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "get", "orders", "nodes", "a"]).refused(&["orders", "view create"]);
    node.run(&["view", "run", "disk", "orders"]).refused(&["orders", "view create"]);
    node.run(&["view", "create", "no/name", "nodes"]).refused(&["no/name", "`a-z`"]);
    node.run(&["view", "create", "orders", "nodes", "--values-json"]).ok();
    let json = ["nodes", "`--hash all`", "JSON", "--values-json", "say the same"];
    node.run(&["view", "create", "orders", "nodes"]).refused(&json);
    node.run(&["view", "create", "orders", "nodes", "--values-json", "--hash", "2"]).refused(&json);
    node.run(&["view", "create", "orders", "edges", "--hash", "until=/"]).ok();
    let until = ["edges", "`--hash until=/`", "bytes (without"];
    node.run(&["view", "create", "orders", "edges"]).refused(&until);
    // Names that the log does not take were refused as its topics are called, by another rule than was said.
    for topic in ["Orders", ".", "..", "a b", ""] {
        let named = format!("topic of items `{topic}`");
        node.run(&["view", "create", topic, "nodes"]).refused(&[&named, "`a-z`", "begin"]);
    }
    node.run(&["view", "put", "orders", "nodes", "a", "{"]).refused(&["no JSON"]);
    // It was taken for JSON: in no index, and no consumer of JSON reads it.
    let load = ["view", "load", "lines", "orders", "nodes", "-"];
    finish(&mut node.command(&load), b"a\t{\"f\":\"\xff\"}\n")
        .refused(&["line 1 has a value that is no JSON", "utf-8"]);
    let mut changes = Changes::default();
    changes.put(1, b"a", b"{\"f\":\"\xff\"}");
    let e = node.client().view("orders").change(&changes).unwrap_err().to_string();
    assert!(e.contains("`a` is no JSON") && e.contains("utf-8"), "{e}");
    let graph = ["view", "load", "graph", "orders", "--value-bytes", "1000000000000"];
    node.run(&graph).refused(&["1000000000000", "1048576"]);
    node.run(&["view", "put", "orders", "other", "a", "1"]).refused(&["other", "nodes"]);
    node.run(&["view", "put", "orders", "nodes", "", "1"]).refused(&["0 bytes"]);
    node.run(&["view", "put", "orders", "nodes", "a", "1"]).ok();
    node.run(&["view", "get", "orders", "nodes", "a"]).refused(&["view run"]);
    node.run(&["ride", "orders"]).refused(&["view run disk"]);
    node.run(&["view", "run", "disk", "orders"]).ok();
    node.run(&["view", "run", "disk", "orders"]).refused(&["runs here already"]);
    // Parts are written in one way everywhere; the earlier one of rides is told of it.
    for wrong in [&["7/4"][..], &["0", "2"], &["2"], &["0/70000"]] {
        let refused = node.run(&[&["ride", "orders"], wrong].concat());
        assert!(refused.code == Some(2) && refused.err.contains("`0/2`"), "{}", refused.err);
    }
    node.run(&["ride", "orders", "0/2", "1/2"]).refused(&["two parts", "`0/2`"]);
    node.run(&["view", "get", "orders", "nodes", "a", "--at", "99999"]).refused(&["99999"]);
    node.run(&["view", "scan", "orders", "nodes", "a"]).refused(&["whole key"]);
    node.run(&["view", "get", "orders", "nodes", "no\nkey"]).refused(&["`no\\nkey`"]);
    // Views of all topics were compared with each other, and differed.
    node.run(&["view", "verify", ""]).refused(&["topic of items ``"]);
    node.run(&["view", "stop", "memory", "orders"]).refused(&["does not run it"]);
    // Nobody else's bytes come into such a topic.
    node.run(&["log", "append", "view/orders", "x"]).refused(&["view/orders"]);
    node.run(&["log", "trim", "view/orders", "2"]).refused(&["view/orders"]);
    node.stop();
}

/// A node that ran half of a view in memory and all of it on disk read several keys from the half, and said that no
/// view had all of them.
#[test]
fn keys_of_both_halves_are_read_from_the_view_that_has_both() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    for view in
        [&["memory", "orders", "0/2"][..], &["memory", "orders", "1/2"], &["disk", "orders"]]
    {
        node.run(&[&["view", "run"], view].concat()).ok();
    }
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    for key in &keys {
        node.run(&["view", "put", "orders", "nodes", key, "1"]).ok();
    }
    let get: Vec<&str> = ["view", "get", "orders", "nodes"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    assert_eq!(node.json(&get).len(), keys.len());
    node.run(&["view", "stop", "disk", "orders"]).ok();
    node.run(&get).refused(&["no view", "all of these keys"]);
    node.stop();
}

/// Rows hold nothing that the log does not: whichever of their files is damaged or missing, the view
/// is as it was, and what is damaged is kept for people to look at.
#[test]
fn a_damaged_view_is_folded_again() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start_with(&data, SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let last = node.json(&["view", "put", "orders", "nodes", "a", "1"])[0]["index"].to_string();
    node.stop();
    let view = std::fs::read_dir(data.join("views")).unwrap().next().unwrap().unwrap().path();
    let (rows, aside) = (view.join("rows"), view.join("rows.damaged-1"));
    let mut set_aside = 0;
    for name in files_below(&rows) {
        for gone in [false, true] {
            // A start has its own files: of those that are there again, each is damaged once.
            let Ok(mut bytes) = std::fs::read(&name) else { continue };
            match bytes.iter().position(|byte| *byte != 0) {
                Some(at) if !gone => {
                    bytes[at] ^= 1;
                    std::fs::write(&name, bytes).unwrap();
                }
                _ => std::fs::remove_file(&name).unwrap(),
            }
            let node = Node::start_with(&data, SETTINGS);
            let came = ride(&node, &["--reached", &last]).1;
            assert_eq!(came["items"], 1, "{name:?}, gone: {gone}");
            if aside.exists() {
                let doctor = String::from_utf8(node.run(&["doctor"]).out).unwrap();
                assert!(doctor.contains("folded anew"), "{name:?}: {doctor}");
                set_aside += 1;
                std::fs::remove_dir_all(&aside).unwrap();
            }
            node.stop();
        }
    }
    assert!(set_aside >= 2, "{set_aside} of the damages were met");
}

/// What `view status` says of a view, once it is as it should be.
pub fn view_once(node: &Node, name: &str, good: impl Fn(&Value) -> bool) -> Value {
    for () in attempts() {
        let views = node.json(&["view", "status"]);
        if let Some(view) = views.into_iter().find(|view| view["view"] == name && good(view)) {
            return view;
        }
    }
    panic!("view `{name}` does not come to it: {:?}", node.json(&["view", "status"]));
}

/// Where the topic's log begins.
pub fn begins(node: &Node) -> u64 {
    let log = node.json(&["log", "ls"]).into_iter();
    let ours = log.filter(|topic| topic["topic"] == "view/orders");
    ours.filter_map(|topic| topic["first"].as_u64()).next().unwrap()
}

pub fn images(view: &Value) -> Vec<u64> {
    view["images"].as_array().unwrap().iter().map(|i| i["index"].as_u64().unwrap()).collect()
}

/// With two images the log goes, and what is new, or was killed, begins with one of them.
#[test]
fn a_view_begins_with_an_image_once_the_log_is_trimmed() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let settings = format!("{SETTINGS}snapshot_entries = 2\n");
    let mut node = Node::start_with(&data, &settings);
    // They were told that no view has hashes from 0 to 4294967296.
    node.run(&["ride", "nope"]).refused(&["topic `nope`", "there is none", "view create"]);
    node.run(&["ride", "nope", "--at", "7"]).refused(&["topic `nope`", "there is none"]);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["ride", "orders"]).refused(&["no disk view of it", "view run disk"]);
    node.run(&["view", "run", "disk", "orders"]).ok();
    let put = |node: &Node, key: &str, value: &str| {
        node.json(&["view", "put", "orders", "nodes", key, value])[0]["index"].as_u64().unwrap()
    };
    node.run(&["ride", "orders", "--at", "7"]).refused(&["entry 7", "view mark"]);
    for i in 0..20 {
        put(&node, &format!("k{i}"), "1");
    }
    let mut marks = Vec::new();
    for round in 2..4 {
        let mark = node.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
        view_once(&node, "orders disk 0/1", |view| images(view).contains(&mark));
        marks.push(mark);
        for i in 0..5 {
            put(&node, &format!("k{i}"), &round.to_string());
        }
    }
    node.run(&["ride", "orders", "--at", "7"]).refused(&["entry 7", &marks[1].to_string()]);
    let at = marks[1].to_string();
    let values =
        |items: &[(String, u64, Value)]| items.iter().filter(|(_, _, value)| *value == "2").count();
    let (items, end) = ride(&node, &["--at", &at]);
    assert_eq!((items.len(), values(&items)), (20, 5), "as it was then: {end}");
    assert!(items.iter().all(|(_, index, _)| *index < marks[1]));

    let trimmed = attempts().any(|()| begins(&node) >= marks[0]);
    assert!(trimmed, "two images were made");
    assert_eq!(begins(&node), marks[0], "the second image is left if the first one is lost");
    let memory = "orders memory 0/1";
    node.run(&["view", "run", "memory", "orders"]).ok();
    for turn in 0..2 {
        view_once(&node, memory, |view| {
            assert!(view["stopped"].is_null(), "one that begins has not stopped: {view}");
            assert!(view["applied"] != 0 || !view["begins"].is_null(), "it says so: {view}");
            view["behind"] == 0 && view["applied"] != 0
        });
        let got = node.json(&["view", "get", "orders", "nodes", "k3", "k19"]);
        assert_eq!((&got[0]["value"], &got[1]["value"]), (&"3".into(), &"1".into()), "{turn}");
        node.run(&["view", "verify", "orders"]).ok();
        node.kill();
        node = Node::start_with(&data, &settings);
    }
    put(&node, "k3", "4");
    let (items, _) = ride(&node, &["--at", &marks[0].to_string()]);
    assert_eq!(values(&items), 0, "the first image is there after kills, too");
    node.run(&["ride", "orders", "--slow", "0"]).refused(&["never ends"]);

    // Its rows are lost, and its own images are all that is left of what was trimmed.
    node.stop();
    for view in std::fs::read_dir(data.join("views")).unwrap() {
        let rows = view.unwrap().path().join("rows");
        if rows.exists() {
            std::fs::remove_dir_all(rows).unwrap();
        }
    }
    let node = Node::start_with(&data, &settings);
    for view in ["orders disk 0/1", memory] {
        view_once(&node, view, |view| view["behind"] == 0 && view["applied"] != 0);
    }
    let got = node.json(&["view", "get", "orders", "nodes", "k3", "k19"]);
    assert_eq!((&got[0]["value"], &got[1]["value"]), (&"4".into(), &"1".into()));
    node.run(&["view", "verify", "orders"]).ok();
    node.run(&["view", "verify", "other"]).refused(&["other", "view create"]);
    node.stop();
}

/// A node that is new knows the topic by a snapshot of the first one: of its catalog, which lies
/// among the views of parts there.
fn a_new_node_knows_the_topic(data: &Path, first: &Node, port: u16) {
    Node::set(data, &format!("{SETTINGS}native_port = {}\nhost = \"h3\"\n", free_port()));
    let third = Node::join(data, first, port);
    third.run(&["view", "run", "memory", "orders"]).ok();
    view_once(&third, "orders memory 0/1", |view| view["behind"] == 0 && view["applied"] != 0);
    third.run(&["view", "get", "orders", "nodes", "k7", "k59"]).ok();
    third.stop();
}

/// The other host is lost for good: whatever parts are asked for, what is left has them, and they agree.
fn what_is_left_has_all(first: &Node, second: Node) {
    second.kill();
    for (kind, part) in [("disk", "3/4"), ("disk", "1/6"), ("memory", "0/1")] {
        first.run(&["view", "run", kind, "orders", part]).ok();
        let name = format!("orders {kind} {part}");
        view_once(first, &name, |view| view["behind"] == 0 && view["applied"] != 0);
    }
    first.run(&["view", "verify", "orders"]).ok();
}

/// The keys that a ride printed, in order.
fn items(printed: String) -> Vec<String> {
    let line = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let keys = printed.lines().map(line).filter_map(|l| Some(l["key"].as_str()?.to_owned()));
    let mut keys: Vec<String> = keys.collect();
    keys.sort();
    keys
}

/// A name that no server has left nobody out, and nothing was said of it.
#[test]
fn a_node_that_is_not_named_cannot_be_left_out_of_a_ride() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    for word in ["--not", "--apart"] {
        node.run(&["ride", "orders", word, "127.0.0.1:1"])
            .refused(&["`127.0.0.1:1` is none of them"]);
    }
    node.stop();
}

/// Halves of one topic on two nodes are ridden at once, and a view that is run on the second node after
/// the log was trimmed begins with images of both.
#[test]
fn halves_on_two_nodes_are_ridden_together() {
    let scratch = Scratch::new();
    let port = free_port();
    let first = format!("{SETTINGS}native_port = {port}\nhost = \"h1\"\nsnapshot_entries = 2\n");
    let first = Node::start_with(&scratch.path("1"), &first);
    let other = scratch.path("2");
    // The log's host asks it what it has.
    let own = format!("native_port = {}\nhost = \"h2\"\n", free_port());
    Node::set(&other, &format!("{SETTINGS}{own}snapshot_entries = 2\n"));
    let second = Node::join(&other, &first, port);
    let servers = [&first, &second].map(|node| format!("unix:{}", node.socket().display()));
    let both = servers.join(",");
    let ride = |words: &[&str]| {
        let all = [&["--json", "--server", &both, "ride", "orders", "--print"], words].concat();
        finish(binary().args(all), b"")
    };
    first.run(&["view", "create", "orders", "nodes"]).ok();
    first.run(&["view", "run", "disk", "orders", "0/2"]).ok();
    second.run(&["view", "run", "disk", "orders", "1/2"]).ok();
    for i in 0..40 {
        first.run(&["view", "put", "orders", "nodes", &format!("k{i}"), "1"]).ok();
    }
    second.run(&["view", "put", "orders", "nodes", "k40", "1"]).ok();
    ride(&["--not", &servers[1]]).refused(&["none has hashes"]);
    ride(&["--not", &servers[0], "--not", &servers[1]]).refused(&["--not"]);

    // Images of one mark on both, of which neither host has all: so the log stays.
    let halved = first.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    let mark = halved;
    for (node, half) in [(&first, "orders disk 0/2"), (&second, "orders disk 1/2")] {
        view_once(node, half, |view| images(view).contains(&mark));
    }
    first.run(&["view", "put", "orders", "nodes", "k41", "1"]).ok();
    // Now each host has all of it.
    first.run(&["view", "run", "disk", "orders", "1/2"]).ok();
    second.run(&["view", "run", "disk", "orders", "0/2"]).ok();
    let mark = second.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    for node in [&first, &second] {
        for half in ["orders disk 0/2", "orders disk 1/2"] {
            view_once(node, half, |view| images(view).contains(&mark));
        }
    }
    // What takes changes has snapshots behind it, too.
    for i in 50..60 {
        first.run(&["view", "put", "orders", "nodes", &format!("k{i}"), "1"]).ok();
    }
    assert!(attempts().any(|()| begins(&first) == mark), "two hosts have images of all keys");
    // Not before: a ride holds the log behind it for a while.
    let names = |numbers: std::ops::Range<u32>| numbers.map(|i| format!("k{i}"));
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let then = sorted(names(0..41).collect());
    let now = sorted(names(0..42).chain(names(50..60)).collect());
    // Images before those that the log begins with go with the next round, whichever comes first: of
    // one host, or of both. Where it has gone from one alone, a ride says that it goes on elsewhere.
    match ride(&["--at", &halved.to_string()]) {
        before if before.code == Some(0) => {
            assert!(
                before.err.is_empty() || before.err.contains("goes on elsewhere"),
                "{before:?}"
            );
            assert_eq!(items(String::from_utf8(before.out).unwrap()), then);
        }
        before => _ = before.refused(&["orders"]),
    }
    assert_eq!(items(ride(&["--at", &mark.to_string()]).ok()), sorted(names(0..42).collect()));
    let last = first.json(&["view", "put", "orders", "nodes", "k59", "2"])[0]["index"].to_string();
    assert_eq!(items(ride(&["--reached", &last]).ok()), now);
    second.run(&["view", "run", "disk", "orders", "2/3"]).ok();
    second.run(&["view", "run", "memory", "orders"]).ok();
    for view in ["orders disk 2/3", "orders memory 0/1"] {
        view_once(&second, view, |view| view["behind"] == 0 && view["applied"] != 0);
    }
    finish(binary().args(["--server", &both, "view", "verify", "orders"]), b"").ok();
    a_new_node_knows_the_topic(&scratch.path("3"), &first, port);
    what_is_left_has_all(&first, second);
    first.stop();
}

/// Values were read as JSON wherever they could be, and written anew: digits were lost, and names that
/// come twice; and a value `null` was printed as a deletion is.
#[test]
fn values_are_printed_as_they_are_kept() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "create", "orders", "json", "--values-json"]).ok();
    node.run(&["view", "create", "orders", "bytes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let kept =
        ["123456789012345678901234567890", "1e3", "{\"n\":1,\"n\":2}", "{\"b\":1,\"a\":2}", "null"];
    let mut last = String::new();
    for (at, value) in kept.iter().enumerate() {
        for collection in ["json", "bytes"] {
            let put = ["view", "put", "orders", collection, &format!("k{at}"), value];
            last = node.json(&put)[0]["index"].to_string();
        }
    }
    node.run(&["view", "put", "orders", "bytes", "k5", "one\n2  3  two"]).ok();
    last = (last.parse::<u64>().unwrap() + 1).to_string();
    let get = |collection: &str, key: &str| {
        let words = ["--json", "view", "get", "orders", collection, key, "--reached", &last];
        node.run(&words).ok()
    };
    for (at, value) in kept.iter().enumerate() {
        let key = format!("k{at}");
        let json = get("json", &key);
        assert!(json.contains(&format!("\"value\":{value}}}")), "{json}");
        let bytes: Value = serde_json::from_str(&get("bytes", &key)).unwrap();
        assert_eq!((&bytes["value"], &bytes["collection"]), (&(*value).into(), &"bytes".into()));
    }
    let ridden = node.run(&["ride", "orders", "--print", "--reached", &last]).ok();
    assert_eq!(ridden.lines().count(), 12, "a line an item, and one of all: {ridden}");
    let gone = node.json(&["view", "delete", "orders", "json", "k4"])[0]["index"].to_string();
    let said = node.json(&["ride", "orders", "--print", "--versions", "--reached", &gone]);
    let deleted = |line: &&Value| line["key"] == "k4" && line["collection"] == "json";
    let deleted: Vec<&Value> = said.iter().filter(deleted).map(|line| &line["deleted"]).collect();
    assert_eq!(deleted.iter().filter(|one| ***one == true).count(), 1, "{said:?}");
    node.stop();
}

/// What says which view a directory keeps is damaged, or no file at all: the advice was to remove the directory,
/// also when the view ran again from it; and a pipe in its place kept the node from opening any view.
#[test]
fn a_view_whose_name_is_damaged_loses_nothing_and_keeps_no_other_from_running() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    for view in [&["disk", "orders"][..], &["memory", "orders"], &["disk", "orders", "0/2"]] {
        node.run(&[&["view", "run"], view].concat()).ok();
    }
    let index = |said: Vec<Value>| said[0]["index"].as_u64().unwrap().to_string();
    let first = index(node.json(&["view", "put", "orders", "nodes", "a", "1"]));
    let mut last = index(node.json(&["view", "put", "orders", "nodes", "a", "2"]));
    let data = node.stop();
    let views = data.join("views");
    let place_of = |begins: &str| {
        let all = std::fs::read_dir(&views).unwrap().map(|entry| entry.unwrap().path());
        let named = |path: &std::path::PathBuf| {
            path.file_name().unwrap().to_str().unwrap().starts_with(begins)
        };
        all.into_iter().find(named).unwrap()
    };
    let whole = place_of("orders-disk-0-1").join("view");
    let mut bytes = std::fs::read(&whole).unwrap();
    bytes[3] ^= 1;
    std::fs::write(&whole, bytes).unwrap();
    let half = place_of("orders-disk-0-2").join("view");
    std::fs::remove_file(&half).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&half).status().unwrap().success());

    let node = Node::start(&data);
    let running = |node: &Node| {
        let mut views: Vec<String> = node
            .json(&["view", "status"])
            .iter()
            .map(|one| one["view"].as_str().unwrap().to_owned())
            .collect();
        views.sort();
        views
    };
    assert_eq!(running(&node), ["orders memory 0/1"]);
    let findings = |node: &Node| {
        let said = String::from_utf8(node.run(&["doctor"]).out).unwrap();
        let of_views = said.lines().filter(|line| line.contains("/view` "));
        of_views.map(str::to_owned).collect::<Vec<String>>()
    };
    let said = findings(&node);
    assert_eq!(said.len(), 2, "{said:?}");
    for line in &said {
        assert!(line.contains("remove nothing") && line.contains("view run"), "{line}");
    }
    assert!(said.iter().any(|line| line.contains("is damaged")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("is no file")), "{said:?}");
    // Run again, it goes on with what it has, versions among it; and nothing is found any more.
    for part in ["0/1", "0/2"] {
        node.run(&["view", "run", "disk", "orders", part]).ok();
    }
    assert_eq!(findings(&node), [""; 0]);
    assert_eq!(running(&node).len(), 3);
    let got = ["view", "get", "orders", "nodes", "a", "--at", &first, "--reached", &last];
    assert_eq!(node.json(&got)[0]["value"], "1");
    last = index(node.json(&["view", "put", "orders", "nodes", "b", "3"]));
    let (items, _) = ride(&node, &["--reached", &last]);
    assert_eq!(items.len(), 2, "{items:?}");
    let node = Node::start(&node.stop());
    assert_eq!(running(&node).len(), 3);
    node.stop();
}

/// A view that was stopped and run again at once found its rows still open, for what had been read of them was
/// not at its end; it was refused with one word, and did not run until somebody ran it once more.
#[test]
fn a_view_whose_rows_are_still_open_opens_by_itself_when_they_are_not() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    node.run(&["view", "put", "orders", "nodes", "a", "1"]).ok();
    let left = node.json(&["view", "stop", "disk", "orders"])[0]["left"].clone();
    let lock = std::path::Path::new(left.as_str().unwrap()).join("rows/lock");
    // As the engine does.
    let lock = std::fs::File::options().write(true).open(lock).unwrap();
    lock.lock().unwrap();
    node.run(&["view", "run", "disk", "orders"]).refused(&["rows of view", "still reads them"]);
    let stopped = |view: &Value| view["stopped"].as_str().is_some_and(|why| why.contains("still"));
    view_once(&node, "orders disk 0/1", stopped);
    drop(lock);
    view_once(&node, "orders disk 0/1", |view| view["behind"] == 0 && view["applied"] != 0);
    assert_eq!(node.json(&["view", "get", "orders", "nodes", "a"])[0]["value"], "1");
    node.stop();
}
