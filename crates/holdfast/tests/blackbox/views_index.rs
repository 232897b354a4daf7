//! Indexes of views, what fills topics from files, and the comparison of views, from outside.

use super::common::{Finished, Node, Scratch, binary, finish};
use holdfast_wire::slab::{Hashed, hash};
use serde_json::Value;

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";

fn found(node: &Node, words: &[&str]) -> Vec<String> {
    let words = [&["view", "find", "shop"], words].concat();
    let key = |line: &Value| line["key"].as_str().unwrap().to_owned();
    node.json(&words).iter().map(key).collect()
}

fn load(node: &Node, words: &[&str], text: &str) -> Finished {
    finish(&mut node.command(&[&["view", "load"], words].concat()), text.as_bytes())
}

#[test]
fn an_index_finds_what_has_a_value_now_also_after_a_kill() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let mut node = Node::start_with(&data, SETTINGS);
    node.run(&["view", "create", "shop", "goods", "--values-json"]).ok();
    node.run(&["view", "create", "shop", "raw"]).ok();
    let of_tags = ["--collection", "goods", "--field", "tags"];
    for part in ["0/3", "1/3", "2/3"] {
        node.run(&[&["view", "run", "index", "shop", part], &of_tags[..]].concat()).ok();
    }
    let put = |node: &Node, key: &str, value: &str| -> String {
        let put = node.json(&["view", "put", "shop", "goods", key, value]);
        put[0]["index"].to_string()
    };
    put(&node, "pear", r#"{"tags": ["fruit", "green", "fruit"]}"#);
    put(&node, "apple", r#"{"tags": ["fruit", "red"]}"#);
    put(&node, "brick", r#"{"tags": "red", "fruit": "no"}"#);
    let last = put(&node, "note", r#"{"text": "fruit"}"#);
    let reached = ["--reached", last.as_str()];
    let find =
        |node: &Node, value: &str| found(node, &[&["goods", "tags", value], &reached[..]].concat());
    assert_eq!(find(&node, "fruit"), ["apple", "pear"]);
    assert_eq!(find(&node, "red"), ["apple", "brick"]);
    assert_eq!(find(&node, "blue"), Vec::<String>::new());
    assert_eq!(found(&node, &["goods", "tags", "fruit", "-n", "1"]), ["apple"]);
    // One is not what it was, and one is gone.
    put(&node, "apple", r#"{"tags": ["sold"]}"#);
    let last = node.json(&["view", "delete", "shop", "goods", "brick"])[0]["index"].to_string();
    let reached = ["--reached", last.as_str()];
    let find =
        |node: &Node, value: &str| found(node, &[&["goods", "tags", value], &reached[..]].concat());
    let all = ["fruit", "red", "sold", "green"];
    let before = all.map(|value| find(&node, value));
    assert_eq!(before, [&["pear"][..], &[], &["apple"], &["pear"]]);
    node.kill();
    node = Node::start_with(&data, SETTINGS);
    assert_eq!(all.map(|value| find(&node, value)), before);
    let status = node.run(&["view", "status"]).ok();
    assert!(status.contains("shop index of goods.tags 2/3"), "{status}");

    node.run(&["view", "find", "shop", "goods", "text", "x"])
        .refused(&["text", "view run index shop --collection goods --field text"]);
    node.run(&["view", "find", "shop", "bads", "tags", "x"]).refused(&["bads", "view info"]);
    node.run(&["view", "run", "index", "shop", "--collection", "raw", "--field", "tags"])
        .refused(&["raw", "--values-json"]);
    node.run(&["view", "run", "index", "shop", "--collection", "no", "--field", "tags"])
        .refused(&["no", "view create"]);
    node.run(&["view", "run", "index", "shop", "--collection", "goods", "--field", ""])
        .refused(&["0 bytes"]);
    node.run(&["view", "run", "disk", "shop", "--field", "tags"]).refused(&["of another kind"]);
    assert_eq!(node.run(&["view", "run", "index", "shop"]).code, Some(2));
    // Whoever reads items is not sent to an index.
    node.run(&["view", "get", "shop", "goods", "pear"]).refused(&["view run"]);
    node.run(&[&["view", "stop", "index", "shop", "1/3"], &of_tags[..]].concat()).ok();
    node.stop();
}

#[test]
fn files_are_loaded_into_what_an_index_finds() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    let table = "id,city\n1,Ulm\n2,\"Bonn, \"\"new\"\"\"\n3,Ulm\n";
    load(&node, &["csv", "shop", "people", "-"], table).ok();
    let triples = "<http://a> <http://knows> <http://b> .\n# text\n_:x <http://knows> <http://b> .\n\
        <http://a> <http://name> \"\\u0041da\"@en .\n";
    load(&node, &["ntriples", "shop", "triples", "-"], triples).ok();
    let stanzas = "Package: a\nDepends: libc6 (>= 2), b | c\n\nPackage: b\nDepends: libc6\n";
    let loaded = load(&node, &["packages", "shop", "packages", "-"], stanzas).ok();
    assert!(loaded.starts_with("2 items"), "{loaded}");
    for (collection, field) in [("people", "city"), ("triples", "object"), ("packages", "depends")]
    {
        let of = ["--collection", collection, "--field", field];
        node.run(&[&["view", "run", "index", "shop"], &of[..]].concat()).ok();
    }
    assert_eq!(found(&node, &["people", "city", "Ulm"]), ["1", "3"]);
    assert_eq!(found(&node, &["people", "city", "Bonn, \"new\""]), ["2"]);
    let known = ["<http://a> <http://knows> <http://b>", "_:x <http://knows> <http://b>"];
    assert_eq!(found(&node, &["triples", "object", "http://b"]), known);
    assert_eq!(
        found(&node, &["triples", "object", "Ada"]),
        ["<http://a> <http://name> \"Ada\"@en"]
    );
    assert_eq!(found(&node, &["packages", "depends", "libc6"]), ["a", "b"]);
    assert_eq!(found(&node, &["packages", "depends", "c"]), ["a"]);
    // What a subject has lies side by side.
    node.run(&["view", "run", "memory", "shop"]).ok();
    let scan = node.json(&["view", "scan", "shop", "triples", "<http://a> "]);
    assert_eq!(scan.len(), 2, "{scan:?}");
    assert_eq!(scan[0]["value"]["object"], "http://b");

    load(&node, &["csv", "shop", "people", "-", "--key", "no"], table)
        .refused(&["`-`", "no", "city"]);
    load(&node, &["ntriples", "shop", "triples", "-"], "<http://a>\n")
        .refused(&["line 1 ", "full stop"]);
    load(&node, &["packages", "shop", "packages", "-"], "x\n").refused(&["line 1 has no colon"]);
    node.run(&["view", "create", "shop", "raw"]).ok();
    load(&node, &["csv", "shop", "raw", "-"], table).refused(&["raw", "bytes"]);
    node.run(&["view", "load", "csv", "shop", "people", "/no/such"]).refused(&["/no/such"]);
    node.stop();
}

/// Whatever the topic is divided into, on disk and in memory, one and the same items are in it.
#[test]
fn layouts_agree() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "load", "graph", "shop", "--nodes", "300"]).ok();
    node.run(&["view", "verify", "shop"]).refused(&["view run disk shop"]);
    node.run(&["view", "run", "disk", "shop"]).ok();
    node.run(&["view", "verify", "shop"]).refused(&["nothing but", "shop disk 0/1"]);
    node.run(&["view", "create", "shop", "goods", "--values-json"]).ok();
    for (kind, of) in [("memory", 1), ("disk", 2), ("disk", 4), ("memory", 6)] {
        for part in 0..of {
            node.run(&["view", "run", kind, "shop", &format!("{part}/{of}")]).ok();
        }
    }
    node.run(&["view", "run", "index", "shop", "--collection", "goods", "--field", "x"]).ok();
    node.run(&["view", "delete", "shop", "edges", "n0000000001/none"]).ok();
    let last = node.json(&["view", "delete", "shop", "nodes", "n0000000001"])[0]["index"].clone();
    let lines = node.json(&["view", "verify", "shop"]);
    assert_eq!(lines.len(), 15, "{lines:?}");
    let keys = |text: &str| -> u64 {
        let of = lines.iter().filter(|line| line["view"].as_str().unwrap().contains(text));
        of.map(|line| line["keys"].as_u64().unwrap_or(0)).sum()
    };
    assert_eq!((keys("disk 0/1"), keys("memory 0/1"), keys("/2")), (599, 599, 599), "{lines:?}");
    // The smallest disk views are what the others are compared with.
    assert!(keys("/6") == 599 && keys("/4") == 0, "{lines:?}");
    for line in &lines {
        let is_index = line["view"].as_str().unwrap().contains("index");
        assert_eq!(line["left_out"].is_string(), is_index, "{line}");
        assert!(is_index || line["is_measure"] == true || line["agrees"] == true, "{line}");
        assert!(line["at"].is_null() || line["at"] == last, "{line}");
    }
    // What people are told of the same.
    let told = node.run(&["view", "verify", "shop"]).ok();
    let lines = |words: &str| told.lines().filter(|line| line.ends_with(words)).count();
    assert_eq!(lines("left out: an index has no items to compare"), 1, "{told}");
    assert_eq!(lines("others are compared with it"), 4, "{told}");
    assert!(told.contains(&format!("  599 keys at entry {last}: agrees\n")), "{told}");
    node.stop();
}

/// A build whose views in memory keep what was deleted: the view that has it is named, and where.
#[test]
fn a_view_that_holds_something_else_is_named() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    Node::set(&data, SETTINGS);
    let node = Node::start_planting(&data, "items.deleted-key-stays");
    node.run(&["view", "load", "graph", "shop", "--nodes", "50"]).ok();
    for view in [&["disk", "shop"][..], &["memory", "shop", "0/2"], &["memory", "shop", "1/2"]] {
        node.run(&[&["view", "run"], view].concat()).ok();
    }
    assert_eq!(node.json(&["view", "verify", "shop"]).len(), 3);
    node.run(&["view", "delete", "shop", "nodes", "n0000000007"]).ok();
    let hash = hash(Hashed::Until(b'/'), b"n0000000007");
    let (half, other) = if hash < 1 << 31 { ("0/2", "1/2") } else { ("1/2", "0/2") };
    let done = node.run(&["view", "verify", "shop"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let out = String::from_utf8(done.out).unwrap();
    let line = |text: &str| out.lines().find(|line| line.contains(text)).unwrap().to_owned();
    let named = line(&format!("shop memory {half}"));
    let place = format!("DIFFERS in values of keys with hashes {:02x}", hash >> 24);
    assert!(named.ends_with(&place), "{named}, not {place}");
    assert!(line(&format!("shop memory {other}")).ends_with("agrees"), "{out}");
    assert!(done.err.contains(&format!("`shop memory {half}`")), "{}", done.err);
    let words = ["--json", "--server", "unix:/no/such", "view", "verify", "shop"];
    finish(binary().args(words), b"").refused(&["verify topic `shop`", "/no/such"]);
    // It has told of its bug.
    node.kill();
}
