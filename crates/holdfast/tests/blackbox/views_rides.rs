//! Rides over images of two nodes, one of which is killed in the middle.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use holdfast_base::ids::Index;
use holdfast_client::view::{Itinerary, what};
use holdfast_wire::slab::Range;
use holdfast_wire::view::{Board, ViewKind, ViewName};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";

/// More than the streams of one ride hold while nobody reads: 20 MB.
const ITEMS: usize = 100;
const VALUE_BYTES: usize = 200_000;

/// A ride that prints as fast as somebody reads.
struct Riding {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    /// By whom what came was checked, once that was said.
    checked_by: Option<String>,
}

impl Riding {
    fn begin(servers: &str, words: &[&str]) -> Riding {
        let all = [&["--json", "--server", servers, "ride", "orders", "--print"], words].concat();
        let mut command = binary();
        command.args(all).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Riding { child, lines, checked_by: None }
    }

    /// So many keys; fewer where it ends.
    fn keys(&mut self, most: usize) -> Vec<String> {
        let mut keys = Vec::new();
        let mut line = String::new();
        while keys.len() < most && self.lines.read_line(&mut line).unwrap() > 0 {
            let said: Value = serde_json::from_str(&line).unwrap();
            if let Some(key) = said["key"].as_str() {
                assert_eq!(said["value"].as_str().unwrap().len(), VALUE_BYTES);
                keys.push(key.to_owned());
            }
            if said["checked"].is_u64() {
                self.checked_by = said["by"].as_str().map(str::to_owned);
            }
            line.clear();
        }
        keys
    }

    fn end(mut self) -> (bool, String) {
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (self.child.wait().unwrap().success(), told)
    }
}

fn is_every_one_once(mut keys: Vec<String>) {
    keys.sort();
    let wanted: Vec<String> = (0..ITEMS).map(|i| format!("k{i:03}")).collect();
    assert_eq!(keys, wanted);
}

fn with_image(node: &Node, view: &str, mark: u64) {
    let has = |one: &Value| {
        let images = one["images"].as_array().unwrap();
        one["view"] == view && images.iter().any(|image| image["index"] == mark)
    };
    let found = attempts().any(|()| node.json(&["view", "status"]).iter().any(has));
    assert!(found, "{view} has an image of {mark}");
}

/// Who is set apart for rides is ridden, however much smaller others' views are.
fn which_is_ridden(both: &str, whole: &str, nodes: [&Node; 2]) {
    let riders = |node: &Node| -> u64 {
        node.json(&["view", "status"]).iter().filter_map(|one| one["riders"].as_u64()).sum()
    };
    for (apart, wanted) in [(None, [0, 1]), (Some(whole), [1, 0])] {
        let words: Vec<&str> = apart.iter().flat_map(|node| ["--apart", node]).collect();
        // Who was killed may ride for a while.
        let before = nodes.map(riders);
        let mut riding = Riding::begin(both, &words);
        assert_eq!(riding.keys(1).len(), 1);
        let now = nodes.map(riders);
        // Those of one node are ridden one after another.
        let more = [0, 1].map(|at| now[at].saturating_sub(before[at]));
        assert_eq!(more, wanted, "{apart:?}");
        riding.child.kill().unwrap();
        riding.child.wait().unwrap();
    }
}

/// Who reads no further than he wants ends the ride, and that is no error of anybody's.
fn whoever_has_had_enough_ends_it(servers: &str, at: &str) {
    for words in [&[][..], &["--at", at], &["--at", at, "--check"], &["--follow"]] {
        let mut riding = Riding::begin(servers, words);
        assert_eq!(riding.keys(2).len(), 2);
        let Riding { mut child, lines, .. } = riding;
        drop(lines);
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!((child.wait().unwrap().code(), &told[..]), (Some(0), ""), "{words:?}");
    }
}

/// Sums of what came are those that the views tell of themselves; of less than everything there are none.
fn what_came_is_what_is_held(both: &str, at: &str) {
    let ride = |words: &[&str]| {
        let all = [&["--json", "--server", both, "ride", "orders", "--check"], words].concat();
        finish(binary().args(all), b"")
    };
    for words in [&[][..], &["--versions"], &["1/3"], &["--at", at], &["--at", at, "--versions"]] {
        let told = ride(words).ok();
        let checked = told.lines().filter(|line| line.contains("checked")).count();
        let versions = words.contains(&"--versions");
        // Images say what they have, also to who rode the view at their entry; but for sub-ranges of the hashes that
        // the part ends in.
        let by = if words.contains(&"1/3") { "views" } else { "image" };
        assert!(told.contains(&format!("\"by\":\"{by}\"")), "{words:?}: {told}");
        assert!(checked > 0 && told.contains(&format!("\"versions\":{versions}")), "{told}");
    }
    for less in [&["--keys-only"][..], &["--below", "9"], &["--collections", "nodes"]] {
        assert_eq!(ride(less).code, Some(2), "{less:?}");
    }
}

/// A ride of which nobody is left, in the middle: the node again, the token, and the keys that came.
fn broken_off(
    node: Node,
    settings: &str,
    server: &str,
    words: &[&str],
) -> (Node, String, Vec<String>) {
    let mut riding = Riding::begin(server, words);
    let mut keys = riding.keys(5);
    let data = node.kill();
    keys.extend(riding.keys(usize::MAX));
    let (good, told) = riding.end();
    assert!(!good && keys.len() < ITEMS, "{} keys: {told}", keys.len());
    // Whose node it was, and what to do; whether the way there was closed or reset, chance says.
    assert!(told.contains("ride at unix:") && told.contains("connect again"), "{told}");
    let token = told.split("--from ").nth(1).expect(&told).split('`').next().unwrap().to_owned();
    (Node::start_with(&data, settings), token, keys)
}

/// A ride that is checked goes on by its token, and what came before counts, too. The node again.
fn goes_on_checked(node: Node, settings: &str, server: &str, at: &str) -> Node {
    let (node, token, mut keys) = broken_off(node, settings, server, &["--at", at, "--check"]);
    let mut riding = Riding::begin(server, &["--from", &token, "--check"]);
    keys.extend(riding.keys(usize::MAX));
    assert_eq!(riding.checked_by.as_deref(), Some("image"));
    let (good, told) = riding.end();
    assert!(good, "{told}");
    is_every_one_once(keys);
    node
}

/// The halves are ridden, for smaller views are preferred; when their node dies, the rest comes from the
/// other's whole. And what nobody is left to give, a token takes up again.
#[test]
fn a_ride_goes_on_elsewhere_and_by_its_token() {
    let scratch = Scratch::new();
    let port = free_port();
    let settings = format!("{SETTINGS}native_port = {port}\n");
    let first = Node::start_with(&scratch.path("1"), &settings);
    let other = scratch.path("2");
    Node::set(&other, &format!("{SETTINGS}native_port = {}\n", free_port()));
    let second = Node::join(&other, &first, port);
    let server = |node: &Node| format!("unix:{}", node.socket().display());
    let (whole, both) = (server(&first), format!("{},{}", server(&second), server(&first)));
    first.run(&["view", "create", "orders", "nodes"]).ok();
    first.run(&["view", "run", "disk", "orders"]).ok();
    for half in ["0/2", "1/2"] {
        second.run(&["view", "run", "disk", "orders", half]).ok();
    }
    let value = "v".repeat(VALUE_BYTES);
    let lines: String = (0..ITEMS).map(|i| format!("k{i:03}\t{value}\n")).collect();
    let load = ["--server", &whole, "view", "load", "lines", "orders", "nodes", "-"];
    finish(binary().args(load), lines.as_bytes()).ok();
    let mark = first.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    with_image(&first, "orders disk 0/1", mark);
    with_image(&second, "orders disk 0/2", mark);
    with_image(&second, "orders disk 1/2", mark);
    let at = mark.to_string();
    which_is_ridden(&both, &whole, [&first, &second]);
    what_came_is_what_is_held(&both, &at);
    whoever_has_had_enough_ends_it(&whole, &at);

    let mut riding = Riding::begin(&both, &["--at", &at]);
    let mut keys = riding.keys(5);
    second.kill();
    keys.extend(riding.keys(usize::MAX));
    let (good, told) = riding.end();
    assert!(good && told.contains("goes on elsewhere"), "{told}");
    is_every_one_once(keys);

    let first = goes_on_checked(first, &settings, &whole, &at);
    let (first, token, mut keys) = broken_off(first, &settings, &whole, &["--at", &at]);
    let (received, token) = (keys.len(), &token[..]);
    let told = first.run(&["ride", "orders", "--from", token, "--check"]);
    told.refused(&["without `--check`", "anew"]);
    let mut riding = Riding::begin(&whole, &["--from", token]);
    keys.extend(riding.keys(usize::MAX));
    let (good, told) = riding.end();
    assert!(good, "{told}");
    is_every_one_once(keys);
    // What was received before the token changes, too: the whole part is followed, to an entry.
    let changed = ["k000", "k050", "k099"].map(|key| {
        let put = first.json(&["view", "put", "orders", "nodes", key, "changed"]);
        put[0]["index"].as_u64().unwrap()
    });
    let mut riding = Riding::begin(&whole, &["--from", token, "--follow"]);
    let (mut ridden, mut follows) = (0, Vec::new());
    while follows.len() < changed.len() {
        let mut line = String::new();
        assert!(riding.lines.read_line(&mut line).unwrap() > 0, "it goes on");
        let said: Value = serde_json::from_str(&line).unwrap();
        match said["index"].as_u64() {
            Some(index) if index > mark => follows.push(index),
            Some(_) => ridden += 1,
            None => assert!(follows.is_empty(), "what came of the ride is said at its end"),
        }
    }
    assert_eq!((ridden, &follows[..]), (ITEMS - received, &changed[..]));
    riding.child.kill().unwrap();
    riding.child.wait().unwrap();
    first.run(&["ride", "orders", "--from", "ride.00"]).refused(&["no token"]);
    first.run(&["ride", "orders", "--from", token, "--versions"]).refused(&["other options"]);
    // Of an entry of which nobody has an image any more.
    let view = ViewName { topic: "orders".into(), kind: ViewKind::Disk {}, part: 0, of: 1 };
    let asked = what("orders", None, &Board::of(view, Range::ALL));
    let gone = Itinerary::new(Index(1), Range::ALL, asked).token();
    first.run(&["ride", "orders", "--from", &gone]).refused(&["entry 1", "from its beginning"]);
    first.run(&["ride", ""]).refused(&["name a topic"]);
    first.run(&["ride", "nothere"]).refused(&["nothere"]);
    first.stop();
}
