//! A key with very many versions, in the views of a real node: put one by one, read, ridden, kept in an image, passed
//! by the horizon, and begun with. Nothing of that takes memory by how many there are. `make versions` runs it with a
//! million.

use super::common::{Node, Scratch, attempts};
use super::views::{images, view_once};
use holdfast_base::ids::Index;
use holdfast_client::view::Changes;
use holdfast_wire::view::Key;
use serde_json::Value;
use std::collections::VecDeque;

const KEY: &[u8] = b"counter";
/// Changes under way at a time.
const AHEAD: usize = 256;
/// Of all versions together at the least: more than a view folds that begins, so that it begins with an image.
const BYTES_MIN: u64 = 72 << 20;
/// What a node may take in memory more than at its start: what its engine keeps of what is written until its tables
/// are there, slabs, and pieces of heaps. Less than the versions have together, but where they are few.
const MEMORY_MAX: u64 = 320 << 20;

fn value(version: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![version as u8; bytes];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value
}

/// The most that a process has had in memory.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Puts all versions, one an entry, and answers their indices.
fn put(node: &Node, versions: u64, value_bytes: usize) -> Vec<u64> {
    let mut client = node.client();
    let mut view = client.view("t");
    let (mut under_way, mut made) = (VecDeque::new(), Vec::new());
    for version in 0..versions {
        let mut changes = Changes::default();
        changes.put(1, KEY, &value(version, value_bytes));
        under_way.push_back(view.submit(&changes).unwrap());
        if under_way.len() == AHEAD {
            made.push(view.wait(under_way.pop_front().unwrap()).unwrap().0);
        }
    }
    made.extend(under_way.into_iter().map(|changing| view.wait(changing).unwrap().0));
    assert!(made.windows(2).all(|pair| pair[0] < pair[1]));
    made
}

/// What a ride of these words brings, which is what is held: its items, and who said so.
fn ridden(node: &Node, words: &[&str]) -> (u64, Value) {
    let lines = node.json(&[&["ride", "t", "--check"], words].concat());
    (lines[0]["items"].as_u64().unwrap(), lines[1]["by"].clone())
}

#[test]
fn a_key_with_very_many_versions_is_read_ridden_passed_and_begun_with_in_little_memory() {
    let versions: u64 =
        std::env::var("HOLDFAST_VERSIONS").map_or(20_000, |versions| versions.parse().unwrap());
    let value_bytes = (BYTES_MIN / versions).max(100) as usize;
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("data"), "dram = \"0\"\nscrub = \"0\"\n");
    node.run(&["view", "create", "t", "c"]).ok();
    node.run(&["view", "run", "disk", "t"]).ok();
    let before = peak_bytes(node.pid());
    let grown = |what: &str| {
        let grown = peak_bytes(node.pid()) - before;
        println!("{what}: {} MiB more", grown >> 20);
        assert!(grown < MEMORY_MAX, "{what}: {} MiB more", grown >> 20);
    };
    let made = put(&node, versions, value_bytes);
    let last = Index(made[made.len() - 1]);
    grown("put");
    let get = |at: Option<u64>| {
        let keys = vec![Key { collection: 1, key: KEY.to_vec() }];
        node.client().view("t").get(keys, at.map(Index), last)
    };
    for version in [0, 1, made.len() / 2, made.len() - 1] {
        let found = get(Some(made[version])).unwrap().found.remove(0).unwrap();
        assert!(
            found.index.0 == made[version] && found.value == value(version as u64, value_bytes)
        );
    }
    grown("read");

    let reached = last.0.to_string();
    let all = ridden(&node, &["--versions", "--reached", &reached]);
    assert_eq!(all, (versions, Value::from("views")));
    grown("ridden");
    let mark = node.json(&["view", "mark", "t"])[0]["index"].as_u64().unwrap();
    view_once(&node, "t disk 0/1", |view| images(view).contains(&mark));
    // Sums of an image cost no pass over the rows.
    let at = mark.to_string();
    assert_eq!(ridden(&node, &["--versions", "--at", &at]), (versions, Value::from("image")));
    grown("kept in an image, and ridden from there");

    // All but ten go.
    let horizon = made[made.len() - 11];
    node.run(&["view", "horizon", "t", &horizon.to_string()]).ok();
    let moved = |told: &(u64, Value)| told.0 == 11;
    assert!(attempts().any(|()| moved(&ridden(&node, &["--versions"]))));
    assert!(get(Some(made[0])).unwrap_err().message.contains("are gone"));
    let found = get(Some(horizon)).unwrap().found.remove(0).unwrap();
    assert_eq!(found.index.0, horizon);
    // The image is as it was, also by what `--check` says of it.
    assert_eq!(ridden(&node, &["--versions", "--at", &at]), (versions, Value::from("image")));
    grown("passed by the horizon");

    // A log of so many bytes nobody folds who may begin with an image.
    let log = node.json(&["log", "ls"]);
    let bytes = log.iter().find(|topic| topic["topic"] == "view/t").unwrap()["bytes"].as_u64();
    assert!(bytes > Some(64 << 20), "{log:?}");
    for view in [&["memory", "t"][..], &["disk", "t", "0/2"], &["disk", "t", "1/2"]] {
        node.run(&[&["view", "run"], view].concat()).ok();
    }
    for view in ["t memory 0/1", "t disk 0/2", "t disk 1/2"] {
        view_once(&node, view, |view| {
            view["applied"].as_u64() >= Some(mark) && view["begins"].is_null()
        });
    }
    let agree = node.json(&["view", "verify", "t"]);
    assert_eq!(agree.len(), 4, "{agree:?}");
    grown("begun with");
    node.stop();
}
