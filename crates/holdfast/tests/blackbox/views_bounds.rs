//! What commands on views and rides leave behind: nothing where they fail, and say what was being done; and of what
//! is kept for riders, no more than was allowed.

use super::common::{Node, Scratch, finish, free_port, until};
use super::http::get;

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

/// What rides keep for riders that are behind is bounded by a setting, and a metric says how much that is. No test
/// read it: it could have been 0 for ever.
#[test]
fn a_metric_says_what_is_kept_for_a_rider_that_is_behind() {
    const WINDOWS_BYTES: u64 = 4 << 20;
    let scratch = Scratch::new();
    let port = free_port();
    let settings = format!("{SETTINGS}http_port = {port}\nview_windows = \"4M\"\n");
    let node = Node::start_with(&scratch.path("data"), &settings);
    let token = std::fs::read_to_string(node.data.join("http-token")).unwrap();
    let header = format!("Authorization: Bearer {}\r\n", token.trim());
    let kept = || {
        let metrics = get(port, "/metrics", &header);
        let value =
            metrics.lines().find_map(|line| line.strip_prefix("holdfast_view_windows_bytes "));
        value.unwrap_or_else(|| panic!("{metrics}")).parse::<u64>().unwrap()
    };
    for collection in ["nodes", "edges"] {
        node.run(&["view", "create", "t", collection, "--hash", "until=/"]).ok();
    }
    node.run(&["view", "run", "disk", "t"]).ok();
    node.run(&["view", "load", "graph", "t", "--nodes", "40000"]).ok();
    assert_eq!(kept(), 0, "nobody rides");
    let mut slow = node.command(&["ride", "t", "--slow", "1000"]).spawn().unwrap();
    let mut most = 0;
    until("something is kept for a rider that takes next to nothing", || {
        most = most.max(kept());
        most > 0
    });
    // Others ride past it.
    for _ in 0..3 {
        node.run(&["ride", "t"]).ok();
        most = most.max(kept());
    }
    // And one slab a head and snapshot more, of which there are two.
    let heads = std::thread::available_parallelism().unwrap().get() as u64;
    let slabs = 2 * heads * (1 << 20);
    assert!(most <= WINDOWS_BYTES + slabs, "{most} bytes");
    slow.kill().unwrap();
    slow.wait().unwrap();
    until("nothing is kept for who has gone", || kept() == 0);
    node.stop();
}
