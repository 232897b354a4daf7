//! Views that begin with two halves on disk, of a graph of real packages, while the graph changes on and one of the
//! halves is killed: what they answer in the end is what a fresh replay of all changes answers.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use super::views::{begins, images, view_once};
use super::views_packages::{UntilDropped, apt, name, sample};
use holdfast_base::ids::Index;
use holdfast_client::view::Changes;
use holdfast_wire::view::Key;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

const PACKAGES: usize = 5000;
/// What the helpers of other tests look for.
const TOPIC: &str = "orders";
const HALVES: [&str; 2] = ["0/2", "1/2"];
/// Keys of one request.
const KEYS_MAX: usize = 1000;

/// Packages and what is said of each.
type Graph = BTreeMap<String, Value>;

/// An entry: its index, the package, and what it says from then on, if there is such a package still.
type Change = (Index, String, Option<Value>);

/// All that a view of a node holds of these packages, behind an entry.
fn held<'a>(node: &Node, names: impl Iterator<Item = &'a str>, reached: Index) -> Graph {
    let mut client = node.client();
    let mut view = client.view(TOPIC);
    let collection = view.collection("packages").unwrap();
    let names: Vec<&str> = names.collect();
    let mut graph = Graph::new();
    for names in names.chunks(KEYS_MAX) {
        let key = |name: &&str| Key { collection, key: name.as_bytes().to_vec() };
        let got = view.get(names.iter().map(key).collect(), None, reached).unwrap();
        for (name, found) in names.iter().zip(got.found) {
            let value = found.map(|found| serde_json::from_slice(&found.value).unwrap());
            value.into_iter().for_each(|value| _ = graph.insert((*name).to_owned(), value));
        }
    }
    graph
}

/// Who depends on a package, by looking at all of them.
fn dependents(graph: &Graph, package: &str) -> BTreeSet<String> {
    let depends = |value: &Value| {
        value["depends"].as_array().is_some_and(|all| all.iter().any(|one| one == package))
    };
    graph.iter().filter(|(_, value)| depends(value)).map(|(name, _)| name.clone()).collect()
}

fn found(node: &Node, package: &str, reached: &str) -> BTreeSet<String> {
    let words = ["view", "find", TOPIC, "packages", "depends", package, "--reached", reached];
    let lines = node.json(&words).into_iter();
    lines.map(|line| line["key"].as_str().unwrap().to_owned()).collect()
}

/// Changes one package after the other until it is enough, and tells of each.
fn change(
    node: &Node,
    (names, sample): (&[&str], &[String]),
    told: &mpsc::Sender<Change>,
    is_enough: &AtomicBool,
) {
    let mut client = node.client();
    let mut view = client.view(TOPIC);
    let of = view.collection("packages").unwrap();
    for (n, name) in names.iter().cycle().enumerate() {
        let mut changes = Changes::default();
        let depends = [&sample[n % sample.len()], &sample[n / 7 % sample.len()]];
        let value = (n % 3 > 0).then(|| json!({ "depends": depends, "n": n }));
        match &value {
            Some(value) => changes.put(of, name.as_bytes(), value.to_string().as_bytes()),
            None => changes.delete(of, name.as_bytes()),
        }
        let index = view.change(&changes).unwrap();
        let change = (index, (*name).to_owned(), value);
        if told.send(change).is_err() || is_enough.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// Marks the topic, and waits for the images of both halves.
fn mark(nodes: [&Node; 2]) -> u64 {
    let mark = nodes[0].json(&["view", "mark", TOPIC])[0]["index"].as_u64().unwrap();
    for (node, half) in nodes.into_iter().zip(HALVES) {
        view_once(node, &format!("{TOPIC} disk {half}"), |view| images(view).contains(&mark));
    }
    mark
}

/// What is there, by a view that folds the log from its beginning, and of which nothing is left.
fn loaded(node: &Node, names: &[&str], last: Index) -> Graph {
    node.run(&["view", "run", "memory", TOPIC]).ok();
    let graph = held(node, names.iter().copied(), last);
    let stopped = node.json(&["view", "stop", "memory", TOPIC]);
    std::fs::remove_dir_all(node.data.join(stopped[0]["left"].as_str().unwrap())).unwrap();
    graph
}

/// One host, so that two images of each half are enough for the log to go.
fn start(scratch: &Scratch) -> (Node, Node, u16) {
    let (port, other) = (free_port(), scratch.path("2"));
    let with = |port: u16| {
        format!("dram = \"0\"\nscrub = \"0\"\nsnapshot_entries = 2\nnative_port = {port}\n")
    };
    let first = Node::start_with(&scratch.path("1"), &with(port));
    Node::set(&other, &with(free_port()));
    let second = Node::join(&other, &first, port);
    (first, second, port)
}

#[test]
fn views_that_begin_with_two_halves_of_which_one_is_killed_answer_as_a_fresh_replay_does() {
    let Some(dump) = apt(&["dumpavail"]).filter(|dump| dump.contains("Package: ")) else {
        eprintln!("SKIPPED: apt-cache knows no packages here (apt-get update would tell it)");
        return;
    };
    let stanzas: Vec<&str> =
        dump.split("\n\n").filter(|stanza| !stanza.is_empty()).take(PACKAGES).collect();
    let names: Vec<&str> =
        stanzas.iter().map(|stanza| name(stanza)).collect::<BTreeSet<_>>().into_iter().collect();
    let sample = sample(&stanzas);
    let scratch = Scratch::new();
    let (first, second, port) = start(&scratch);
    let load = ["--json", "view", "load", "packages", TOPIC, "packages", "-"];
    let said = finish(&mut first.command(&load), stanzas.join("\n\n").as_bytes()).ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    let last = Index(said["last"].as_u64().unwrap());
    let mut replay = loaded(&first, &names, last);
    assert_eq!(replay.len(), names.len());
    first.run(&["view", "run", "disk", TOPIC, HALVES[0]]).ok();
    second.run(&["view", "run", "disk", TOPIC, HALVES[1]]).ok();
    let marked = mark([&first, &second]);

    let (told, changes) = mpsc::channel();
    let is_enough = AtomicBool::new(false);
    let (second, changes) = std::thread::scope(|scope| {
        let (first, names, sample, is_enough) = (&first, &names[..], &sample[..], &is_enough);
        let _changing = UntilDropped(is_enough);
        scope.spawn(move || change(first, (names, sample), &told, is_enough));
        let mut all = Vec::new();
        all.extend(changes.iter().take(50));
        mark([first, &second]);
        // Nobody can fold from the beginning any more.
        assert!(attempts().any(|()| begins(first) >= marked), "each half has two images");
        first.run(&["view", "run", "memory", TOPIC]).ok();
        let index = ["view", "run", "index", TOPIC, "--collection", "packages", "--field"];
        first.run(&[&index[..], &["depends"]].concat()).ok();
        let data = second.kill();
        all.extend(changes.iter().take(50));
        let second = Node::join(&data, first, port);
        for view in ["orders memory 0/1", "orders index of packages.depends 0/1"] {
            view_once(first, view, |view| view["applied"] != 0 && view["begins"].is_null());
        }
        all.extend(changes.iter().take(50));
        is_enough.store(true, Ordering::Relaxed);
        all.extend(changes.iter());
        (second, all)
    });
    let last = changes.last().expect("it changed").0;
    for (_, name, value) in changes {
        match value {
            Some(value) => _ = replay.insert(name, value),
            None => _ = replay.remove(&name),
        }
    }
    assert_eq!(held(&first, names.iter().copied(), last), replay);
    let mut compared = 0;
    for package in &sample {
        let wanted = dependents(&replay, package);
        compared += wanted.len();
        assert_eq!(found(&first, package, &last.to_string()), wanted, "{package}");
    }
    assert!(compared > 100, "{compared} dependents");
    let both = [&first, &second].map(|node| format!("unix:{}", node.socket().display())).join(",");
    let verify = ["--server", &both, "view", "verify", TOPIC];
    finish(binary().args(verify), b"").ok();
    second.stop();
    first.stop();
}
