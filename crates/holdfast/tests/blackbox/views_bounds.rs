//! Commands on views that leave nothing behind when they fail, and say what was being done.

use super::common::{Node, Scratch, finish};

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";

/// A load whose first line is wrong left the collection that it had made for it, with rules that the right
/// file may not want.
#[test]
fn a_load_that_puts_nothing_makes_nothing() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), SETTINGS);
    node.run(&["view", "create", "t", "other"]).ok();
    let collections = || {
        let said = node.json(&["view", "info", "t"]).into_iter();
        said.filter_map(|one| Some(one["collection"].as_str()?.to_owned())).collect::<Vec<_>>()
    };
    let load = |form: &str, of: &str, bytes: &[u8]| {
        finish(&mut node.command(&["view", "load", form, "t", of, "-"]), bytes)
    };
    load("ntriples", "triples", b"no triple\n").refused(&["line 1"]);
    load("csv", "table", b"a,b\n\"1\n").refused(&["line"]);
    load("lines", "none", b"k\tv\n").refused(&["none"]);
    node.run(&["view", "load", "csv", "t", "table", "/nowhere/at/all"]).refused(&["/nowhere"]);
    assert_eq!(collections(), ["other"]);
    load("csv", "table", b"a,b\n1,2\n").ok();
    load("csv", "empty", b"a,b\n").ok();
    assert_eq!(collections(), ["other", "table", "empty"]);
    // Who seeks is told of seeking.
    let said = node.run(&["view", "scan", "t", "other", ""]).refused(&["seek", "0 bytes"]);
    assert!(!said.contains("change items"), "{said}");
    let said = node.run(&["view", "get", "t", "other", ""]).refused(&["read items", "0 bytes"]);
    assert!(!said.contains("change items"), "{said}");
    node.stop();
}
