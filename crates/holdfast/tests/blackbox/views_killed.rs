//! kill -9 of a view's process that certainly is in the middle of something: what lies in its directory, or what
//! its commands say, shows that; then it is stopped, looked at once more, and killed. Nothing is awaited by time.

use super::common::{Node, Scratch, binary, finish, signal, until};
use super::views_alone::{followed_with, start};
use serde_json::Value;
use std::path::{Path, PathBuf};

const VIEW: [&str; 2] = ["disk", "orders"];
/// So much that each of it takes a while: some 8 MB an image.
const NODES: &str = "20000";
/// How often a process is let go again that came to its end before it was stopped.
const TRIES: usize = 30;

/// Files of a view's directory below a data directory.
fn files(data: &Path) -> Vec<PathBuf> {
    let below = |place: &Path| {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    below(&data.join("views")).iter().flat_map(|view| below(view)).collect()
}

fn named<'a>(files: &'a [PathBuf], begins: &'a str) -> impl Iterator<Item = &'a str> {
    files
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .filter(move |n| n.starts_with(begins))
}

/// An image of which there is a part, and not yet its name.
fn is_spooled(data: &Path) -> bool {
    let files = files(data);
    let all: Vec<&str> = named(&files, "image-").collect();
    let part = |name: &&str| name.split_once('.').is_some_and(|(_, part)| part != "tmp");
    let mut parts = all.iter().filter(|name| part(name));
    parts.any(|name| !all.contains(&name.split('.').next().unwrap()))
}

/// What was received of others' images, and is not taken yet.
fn is_booting(data: &Path) -> bool {
    named(&files(data), "boot.tmp").next().is_some()
}

/// Stops a process as soon as it is so, and says whether it still was when it had stopped. False, too, where
/// that was over before it was seen.
fn stopped_while(node: &Node, is_so: impl Fn() -> bool, is_over: impl Fn() -> bool) -> bool {
    let polls = (0..10_000_000).any(|_| is_so() || is_over());
    assert!(polls, "it never came to it");
    signal(node.pid(), "STOP");
    let status = format!("/proc/{}/stat", node.pid());
    let is_stopped = || {
        let stat = std::fs::read_to_string(&status).unwrap();
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    until("it is stopped", is_stopped);
    is_so()
}

/// Its rows are open, or about to be.
fn has_rows(data: &Path) -> bool {
    named(&files(data), "rows").next().is_some()
}

fn has_named(data: &Path, mark: u64) -> bool {
    named(&files(data), &format!("image-{mark:020}")).any(|name| !name.contains('.'))
}

fn status(node: &Node) -> Value {
    node.json(&["view", "status"]).remove(0)
}

fn is_level(node: &Node) -> bool {
    let said = status(node);
    assert!(said["stopped"].is_null(), "{said}");
    said["behind"] == 0 && said["applied"] != 0
}

fn agree(first: &Node, view: &Node, when: &str) {
    until("the view is level", || is_level(view));
    let servers = [first, view].map(|node| format!("unix:{}", node.socket().display()));
    let mut verify = binary();
    verify.args(["--json", "--server", &servers.join(","), "view", "verify", "orders"]);
    let said = finish(&mut verify, b"");
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{when}");
    let lines = String::from_utf8(said.out).unwrap();
    assert!(lines.lines().any(|line| line.contains("\"agrees\":true")), "{when}: {lines}");
    // And nothing of what was under way is left.
    assert!(!is_booting(&view.data), "{when}");
}

fn load(node: &Node) -> std::process::Child {
    let load = ["--json", "view", "load", "graph", "orders", "--nodes", NODES];
    node.command(&load).spawn().unwrap()
}

fn mark(node: &Node) -> u64 {
    node.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap()
}

fn has_image(node: &Node, mark: u64) -> bool {
    let said = status(node);
    said["images"].as_array().unwrap().iter().any(|image| image["index"] == mark)
}

/// Changes come from before it is stopped until behind it.
fn killed_in_the_tail(first: &Node, mut view: Node, begin: impl Fn() -> Node) -> Node {
    for _ in 0..TRIES {
        until("the view is level", || is_level(&view));
        let applied = || status(&view)["applied"].as_u64().unwrap();
        let before = applied();
        let mut loads = load(first);
        until("changes come", || applied() > before);
        assert!(stopped_while(&view, || true, || false));
        let is_under_way = loads.try_wait().unwrap().is_none();
        view.kill();
        assert!(loads.wait().unwrap().success());
        view = begin();
        if is_under_way {
            return view;
        }
        // The load was over before the view was stopped: once more.
    }
    panic!("the view was never met while changes came");
}

#[test]
fn a_view_that_is_killed_in_boot_tail_or_spool_is_whole_again() {
    let scratch = Scratch::new();
    let (first, port) = followed_with(&scratch.path("data"), "snapshot_entries = 2\n");
    for collection in ["nodes", "edges"] {
        first.run(&["view", "create", "orders", collection, "--hash", "until=/"]).ok();
    }
    first.run(&["view", "run", "disk", "orders"]).ok();
    assert!(load(&first).wait().unwrap().success());
    // With two images of a single host the log goes, and who is new begins with one.
    let marks = [0; 2].map(|_| {
        let mark = mark(&first);
        until("the image is whole", || has_image(&first, mark));
        mark
    });
    assert!(load(&first).wait().unwrap().success());
    let begins = || {
        let log = first.json(&["log", "ls"]).into_iter();
        let ours = log.filter(|topic| topic["topic"] == "view/orders");
        ours.filter_map(|topic| topic["first"].as_u64()).next().unwrap()
    };
    until("the log is trimmed", || begins() >= marks[0]);

    let data = scratch.path("view");
    let begin = || start(&first, port, &VIEW, &data);
    let killed = (0..TRIES).any(|_| {
        let view = begin();
        let caught =
            stopped_while(&view, || is_booting(&data), || has_rows(&data) && !is_booting(&data));
        view.kill();
        if !caught {
            // It was there before anybody looked: begin with nothing.
            std::fs::remove_dir_all(&data).unwrap();
        }
        caught
    });
    assert!(killed, "the view was never met while it began");
    let view = begin();
    agree(&first, &view, "killed in boot");

    let mut view = killed_in_the_tail(&first, view, begin);
    agree(&first, &view, "killed in the tail");

    let mut killed = false;
    for _ in 0..TRIES {
        let mark = mark(&first);
        killed = stopped_while(&view, || is_spooled(&data), || has_named(&data, mark));
        view.kill();
        view = begin();
        if killed {
            break;
        }
    }
    assert!(killed, "the view was never met while it made an image");
    agree(&first, &view, "killed in the spool");
    let last = mark(&first);
    for node in [&first, &view] {
        until("the next image is whole", || has_image(node, last));
    }
    assert!(!is_spooled(&data), "nothing is left of the one that was not made");
    agree(&first, &view, "after the next mark");
    view.stop();
    first.stop();
}
