//! Views that are damaged, stopped or opened in the very moment in which somebody uses them.

use super::common::{Node, Scratch, attempts, free_port};
use super::stopped_views::files_below;
use super::views::{begins, images, view_once};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";
const VIEW: &str = "orders disk 0/1";

/// The directory of the only view.
fn place_of(data: &Path) -> PathBuf {
    let mut all = std::fs::read_dir(data.join("views")).unwrap();
    let place = all.next().unwrap().unwrap().path();
    assert!(all.next().is_none());
    place
}

/// A bit in each of a table's blocks, in the file that a process has open.
fn damage(table: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(table).unwrap();
    let bytes = file.metadata().unwrap().len();
    // What is at its end says where its blocks are, and is read once, when it is opened.
    for at in (1000..bytes - bytes / 4).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
}

/// Damage was looked for where rows are opened, and there nobody reads what is in a table. Who came to a
/// damaged block while the view ran was told that it is damaged, each time, also after the next start; no
/// finding said so, and nothing mended it, though the log had everything.
#[test]
fn rows_that_are_damaged_below_a_running_view_are_told_of_and_made_anew() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start_with(&data, &format!("{SETTINGS}view_cache = \"1MiB\"\n"));
    node.run(&["view", "create", "orders", "nodes", "--hash", "until=/"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    // More than the engine keeps in memory.
    let load = ["view", "load", "graph", "orders", "--nodes", "6000", "--value-bytes", "2000"];
    let last = node.json(&load)[0]["last"].to_string();
    let ride = ["ride", "orders", "--reached", &last];
    assert_eq!(node.json(&ride)[0]["items"], 12_000);
    let place = place_of(&data);
    let is_table = |file: &PathBuf| {
        let in_tables = file.components().any(|part| part.as_os_str() == "tables");
        in_tables && file.metadata().is_ok_and(|about| about.len() > 1 << 20)
    };
    let tables: Vec<PathBuf> =
        files_below(&place.join("rows")).into_iter().filter(is_table).collect();
    assert!(!tables.is_empty(), "rows have left memory");
    tables.iter().for_each(|table| damage(table));
    // Whoever reads that is told to come again, and what he asks for then is there.
    let told = node.run(&ride);
    if told.code != Some(0) {
        assert!(told.err.contains("begins anew"), "{}", told.err);
    }
    view_once(&node, VIEW, |view| {
        view["behind"] == 0 && view["applied"] != 0 && place.join("rows.damaged-1").exists()
    });
    assert_eq!(node.json(&ride)[0]["items"], 12_000);
    let doctor = String::from_utf8(node.run(&["doctor"]).out).unwrap();
    assert!(doctor.contains("were damaged") && doctor.contains("folded anew"), "{doctor}");
    node.run(&["view", "run", "memory", "orders"]).ok();
    node.run(&["view", "verify", "orders"]).ok();
    node.stop();
}

/// Stopping a view that was just being run failed, as its file was not there yet; that file was written a
/// moment later, and stayed: a view that was stopped ran again after the next start.
#[test]
fn a_view_that_is_stopped_while_it_is_run_is_one_or_the_other() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start_with(&data, SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "put", "orders", "nodes", "a", "1"]).ok();
    for _ in 0..20 {
        let words = ["view", "run", "disk", "orders"];
        let run = node.command(&words).spawn().unwrap();
        // As soon as it is known.
        let mut stopped;
        loop {
            stopped = node.run(&["view", "stop", "disk", "orders"]);
            if stopped.code == Some(0) || !stopped.err.contains("does not run it") {
                break;
            }
        }
        stopped.ok();
        let run = run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success() || said.contains("stopped while"), "{said}");
        let views = data.join("views");
        let left = if views.exists() { files_below(&views) } else { Vec::new() };
        assert!(!left.iter().any(|file| file.ends_with("view")), "it would run again: {left:?}");
        assert!(node.json(&["view", "status"]).is_empty());
    }
    node.stop();
}

/// What was removed below a view that runs was answered from and counted until the next start, and then was
/// not there.
#[test]
fn files_that_are_removed_below_a_running_view_are_made_anew() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start_with(&data, SETTINGS);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let last = node.json(&["view", "put", "orders", "nodes", "a", "1"])[0]["index"].to_string();
    let mark = node.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    view_once(&node, VIEW, |view| images(view).contains(&mark));
    let place = place_of(&data);
    let is_image = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().contains("image");
    let of_image: Vec<PathBuf> = files_below(&place).into_iter().filter(is_image).collect();
    std::fs::remove_file(of_image.last().expect("an image has files")).unwrap();
    view_once(&node, VIEW, |view| images(view).is_empty());
    // The one file without which nobody knows of the view; then all.
    std::fs::remove_file(place.join("view")).unwrap();
    view_once(&node, VIEW, |view| place.join("view").exists() && view["applied"] != 0);
    // What the node writes there meanwhile makes that fail.
    assert!(attempts().any(|()| std::fs::remove_dir_all(&place).is_ok()));
    view_once(&node, VIEW, |view| {
        view["applied"].as_u64() >= Some(mark) && place.join("view").exists()
    });
    assert_eq!(node.json(&["ride", "orders", "--reached", &last])[0]["items"], 1);
    let doctor = String::from_utf8(node.run(&["doctor"]).out).unwrap();
    assert!(doctor.contains("was removed while view"), "{doctor}");
    node.stop();
    let node = Node::start_with(&data, SETTINGS);
    assert_eq!(node.json(&["ride", "orders", "--reached", &last])[0]["items"], 1);
    node.stop();
}

/// A first change opens a session, which was asked for once: while the node that keeps the log was away for a
/// moment, `view put` at another one gave up at once, and named an address.
#[test]
fn a_change_waits_for_the_node_that_keeps_the_log() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("first"), free_port());
    Node::set(&data, &format!("{SETTINGS}native_port = {port}\nhost = \"h1\"\n"));
    let first = Node::start(&data);
    let second = scratch.path("second");
    Node::set(&second, &format!("{SETTINGS}native_port = {}\nhost = \"h2\"\n", free_port()));
    let second = Node::join(&second, &first, port);
    second.run(&["view", "create", "orders", "nodes"]).ok();
    second.run(&["view", "put", "orders", "nodes", "a", "1"]).ok();
    // Where a start takes longer than clients wait, it is tried again.
    let mut first = Some(first);
    let waited = (0..3).any(|_| {
        let data = first.take().expect("it runs").kill();
        let put = second.command(&["view", "put", "orders", "nodes", "b", "2"]).spawn().unwrap();
        first = Some(Node::start(&data));
        put.wait_with_output().unwrap().status.success()
    });
    assert!(waited, "it gives up at once");
    second.stop();
    first.expect("it runs").stop();
}

/// Files were named after views with other bytes for those that file systems do not take, and the same ones
/// for two views; a long field made a name that none takes, and a zero byte one that nobody can open.
#[test]
fn indexes_of_whatever_fields_have_files_of_their_own() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let settings = format!("{SETTINGS}snapshot_entries = 2\n");
    let node = Node::start_with(&data, &settings);
    node.run(&["view", "create", "orders", "a", "--values-json"]).ok();
    node.run(&["view", "create", "orders", "a.b", "--values-json"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let long = "f".repeat(1000);
    let pairs =
        [("a", "b.c"), ("a.b", "c"), ("a", "x/y"), ("a", "x y"), ("a", "x-y"), ("a", &long)];
    let put = |at: usize, (collection, field): (&str, &str)| {
        let value = serde_json::json!({ field: format!("v{at}") }).to_string();
        node.run(&["view", "put", "orders", collection, &format!("k{at}"), &value]).ok();
    };
    pairs.iter().enumerate().for_each(|(at, pair)| put(at, *pair));
    // A view that begins with images keeps them in files of its name.
    let mark = || node.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    let marks = [0; 2].map(|_| {
        let mark = mark();
        view_once(&node, VIEW, |view| images(view).contains(&mark));
        mark
    });
    let put = |key: &str| node.run(&["view", "put", "orders", "a", key, "{}"]).ok();
    ["m", "n", "o"].iter().for_each(|key| drop(put(key)));
    assert!(attempts().any(|()| begins(&node) >= marks[0]), "there are two images");
    for (collection, field) in pairs {
        let run = ["view", "run", "index", "orders", "--collection", collection, "--field", field];
        node.run(&run).ok();
    }
    let last = node.json(&["view", "mark", "orders"])[0]["index"].to_string();
    let find = |node: &Node| {
        for (at, (collection, field)) in pairs.iter().enumerate() {
            let value = format!("v{at}");
            let words = ["view", "find", "orders", collection, field, &value, "--reached", &last];
            let keys: Vec<_> = node.json(&words).iter().map(|line| line["key"].clone()).collect();
            assert_eq!(keys, [format!("k{at}")], "{collection} {field}");
        }
    };
    find(&node);
    node.stop();
    let node = Node::start_with(&data, &settings);
    find(&node);
    node.stop();
}
