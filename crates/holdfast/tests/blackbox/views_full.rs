//! A disk view whose disk is full: it stops in front of what finds no room, says so, and goes on by itself.

use super::common::{Node, Scratch, signal, until};
use super::full_disk::fill_with_others;
use super::mount::Mount;
use super::views::view_once;
use serde_json::Value;
use std::fs;
use std::path::Path;

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";
const VIEW: &str = "shop disk 0/1";

/// A node of which views alone are on the small disk.
fn on_a_small_disk(data: &Path, small: &Path) -> Node {
    Node::start_with(data, SETTINGS).stop();
    let _ = fs::remove_dir(data.join("views"));
    fs::create_dir(small.join("views")).unwrap();
    std::os::unix::fs::symlink(small.join("views"), data.join("views")).unwrap();
    Node::start(data)
}

/// The log has room, so changes are taken all the while; what the view lacks it folds when there is room again.
#[test]
fn a_disk_view_without_room_stops_and_resumes_when_there_is_some() {
    let scratch = Scratch::new();
    let (small, data) = (scratch.path("small"), scratch.path("data"));
    let Some(_mount) = Mount::new(&small, "300m") else { return };
    let mut node = on_a_small_disk(&data, &small);
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

/// A view that found no room when it was opened waited for its node's next start, whatever room there was by then; and
/// what the engine had made of its rows until the disk was full was set aside as damaged, of which `doctor` told. It is
/// tried again by itself, told of once, and nothing is wrong with what it finds.
#[test]
fn a_view_that_found_no_room_to_be_opened_is_opened_once_there_is_some() {
    let scratch = Scratch::new();
    let (small, data) = (scratch.path("small"), scratch.path("data"));
    let Some(_mount) = Mount::new(&small, "2m") else { return };
    let mut node = on_a_small_disk(&data, &small);
    node.told.announce("view.stopped");
    node.run(&["view", "create", "shop", "nodes"]).ok();
    node.run(&["view", "put", "shop", "nodes", "a", "1"]).ok();
    fill_with_others(&small);
    let run = ["view", "run", "disk", "shop"];
    node.run(&run).refused(&["has it run", "space"]);
    assert_eq!(node.json(&["view", "status"]), [Value::Null; 0], "nothing says that it runs");
    // With room for its name, and for the beginning of its rows.
    let others = fs::File::options().write(true).open(small.join("others")).unwrap();
    let bytes = others.metadata().unwrap().len();
    others.set_len(bytes - (8 << 10)).unwrap();
    // Its room is free when the last handle is.
    drop(others);
    node.run(&run).refused(&[VIEW, "space", "tried again by itself", "view stop"]);
    let stopped = || node.json(&["view", "status"])[0]["stopped"].as_str().map(str::to_owned);
    let why = stopped().unwrap();
    assert!(why.contains("open the rows") && why.contains("space"), "{why}");
    // Who asks for what it would have is told that it is there, and why it does not answer.
    node.run(&["ride", "shop"]).refused(&["has stopped behind entry 0", "space"]);
    node.run(&["view", "verify", "shop"]).refused(&[VIEW, "left out", "space"]);
    // Each try makes the first files of its rows.
    let view = fs::read_dir(small.join("views")).unwrap().next().unwrap().unwrap().path();
    let tried = || fs::metadata(view.join("rows")).unwrap().modified().unwrap();
    let first = tried();
    until("it is tried again", || tried() != first);
    until("there is still no room", || stopped().is_some());
    fs::remove_file(small.join("others")).unwrap();
    until("it is opened by itself", || stopped().is_none());
    view_once(&node, VIEW, |view| view["behind"] == 0 && view["applied"] != 0);
    assert!(node.run(&["view", "get", "shop", "nodes", "a"]).ok().contains('1'));
    let doctor = node.run(&["doctor"]).ok();
    assert!(!doctor.contains("damaged"), "{doctor}");
    signal(node.pid(), "KILL");
    let told = node.told.whole();
    assert_eq!(told.matches("view.stopped").count(), 1, "{told}");
}
