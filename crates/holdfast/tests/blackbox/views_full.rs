//! A disk view whose disk is full: it stops in front of what finds no room, says so, and goes on by itself.

use super::common::{Node, Scratch};
use super::full_disk::fill_with_others;
use super::mount::Mount;
use super::views::view_once;
use std::fs;

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";
const VIEW: &str = "shop disk 0/1";

/// The log has room, so changes are taken all the while; what the view lacks it folds when there is room again.
#[test]
fn a_disk_view_without_room_stops_and_resumes_when_there_is_some() {
    let scratch = Scratch::new();
    let (small, data) = (scratch.path("small"), scratch.path("data"));
    let Some(_mount) = Mount::new(&small, "300m") else { return };
    // Views alone are on the small disk.
    Node::start_with(&data, SETTINGS).stop();
    let _ = fs::remove_dir(data.join("views"));
    fs::create_dir(small.join("views")).unwrap();
    std::os::unix::fs::symlink(small.join("views"), data.join("views")).unwrap();
    let mut node = Node::start(&data);
    node.told.announce("view.stopped");
    node.run(&["view", "create", "shop", "nodes", "--hash", "until=/"]).ok();
    node.run(&["view", "run", "disk", "shop"]).ok();
    let load = ["view", "load", "graph", "shop", "--nodes", "500", "--value-bytes", "2000"];
    node.run(&load).ok();
    view_once(&node, VIEW, |view| view["applied"] != 0 && view["behind"] == 0);
    fill_with_others(&small);
    let is_stopped = || node.json(&["view", "status"])[0]["stopped"].is_string();
    let found_none = (0..200).any(|_| {
        node.run(&load).ok();
        is_stopped()
    });
    assert!(found_none, "what it writes takes room");
    let why = view_once(&node, VIEW, |view| view["stopped"].is_string());
    assert!(why["stopped"].as_str().unwrap().contains("space"), "{why}");
    let last = node.json(&load)[0]["last"].to_string();
    fs::remove_file(small.join("others")).unwrap();
    view_once(&node, VIEW, |view| view["stopped"].is_null() && view["behind"] == 0);
    assert_eq!(node.json(&["ride", "shop", "--reached", &last])[0]["items"], 1000);
    node.run(&["view", "run", "memory", "shop"]).ok();
    node.run(&["view", "verify", "shop"]).ok();
    node.kill_and_be_told("view.resumed", "it is so no more");
}
