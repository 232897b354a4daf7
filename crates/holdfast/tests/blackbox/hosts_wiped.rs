//! After a trim, each host in turn loses all that its views keep, images among it: every view of whatever partition
//! count begins with what the others have, and holds what a plain fold of all changes holds.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use super::views::{begins, images, view_once};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const HOSTS: u32 = 3;
/// Into how many parts the keys are divided that a wiped host runs views of.
const COUNTS: [u32; 5] = [1, 2, 3, 4, 6];

fn settings(host: u32, port: u16) -> String {
    format!(
        "dram = \"0\"\nscrub = \"0\"\nsnapshot_entries = 2\nnative_port = {port}\nhost = \"h{host}\"\n"
    )
}

/// The keys that there are, with their values: changes folded one after the other.
type Model = BTreeMap<String, String>;

fn change(node: &Node, model: &mut Model, round: u32) {
    let mut lines = String::new();
    // Each round writes anew what most of the others have written, and what is its own.
    for i in (0..200).filter(|i| i % 7 != round % 7).chain(1000 * round..1000 * round + 5) {
        let (key, value) = (format!("k{i}"), format!("{round} {}", "x".repeat(i as usize % 40)));
        lines += &format!("{key}\t{value}\n");
        model.insert(key, value);
    }
    finish(&mut node.command(&["view", "load", "lines", "orders", "nodes", "-"]), lines.as_bytes())
        .ok();
    for i in [round, round + 50] {
        let key = format!("k{i}");
        node.run(&["view", "delete", "orders", "nodes", &key]).ok();
        model.remove(&key);
    }
}

/// Runs all parts, and waits until each has what there is.
fn run(node: &Node, of: u32) {
    for part in 0..of {
        let _ = node.run(&["view", "run", "disk", "orders", &format!("{part}/{of}")]);
    }
    for part in 0..of {
        view_once(node, &format!("orders disk {part}/{of}"), |view| {
            view["behind"] == 0 && view["applied"] != 0
        });
    }
}

/// Has all of them make images of one mark, in front of which the log is trimmed then.
fn trim(nodes: &[Node], model: &mut Model, round: u32) {
    let mark = nodes[0].json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
    for (node, of) in nodes.iter().zip(1..) {
        for part in 0..of {
            view_once(node, &format!("orders disk {part}/{of}"), |v| images(v).contains(&mark));
        }
    }
    // What takes changes has snapshots behind it, too.
    change(&nodes[0], model, round);
    // Views of a host that was wiped began with rides of the others' images: what these hold, the log keeps for a
    // minute behind their end.
    assert!(attempts().any(|()| begins(&nodes[0]) >= mark), "three hosts have images of all keys");
}

/// What the views of a node hold of the keys that there are, and of those that there were. No ride: what rides hold
/// the next trim would wait for.
fn holds(node: &Node, model: &Model, told: &str) {
    let get = ["--json", "view", "get", "orders", "nodes"].map(str::to_owned).into_iter();
    let all: Vec<String> = get.clone().chain(model.keys().cloned()).collect();
    let held = node.run(&all).ok();
    let held = held.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("key"), text("value"))
    });
    assert_eq!(held.collect::<Model>(), *model, "{told}");
    let gone: Vec<String> =
        (0..200).map(|i| format!("k{i}")).filter(|k| !model.contains_key(k)).collect();
    assert!(!gone.is_empty());
    let refused = node.run(&get.skip(1).chain(gone.iter().cloned()).collect::<Vec<_>>());
    let names: Vec<&str> = gone.iter().map(String::as_str).collect();
    refused.refused(&names);
}

fn start(data: &Path, nodes: &[Node], host: u32, port: u16) -> Node {
    match host {
        1 => Node::start(data),
        _ => Node::join(data, &nodes[0], port),
    }
}

#[test]
fn whichever_host_is_wiped_views_of_all_parts_begin_and_hold_what_the_log_came_to() {
    let scratch = Scratch::new();
    let port = free_port();
    let place = |host: u32| scratch.path(&host.to_string());
    let mut nodes: Vec<Node> = Vec::new();
    for host in 1..=HOSTS {
        let own = if host == 1 { port } else { free_port() };
        Node::set(&place(host), &settings(host, own));
        nodes.push(start(&place(host), &nodes, host, port));
    }
    nodes[0].run(&["view", "create", "orders", "nodes"]).ok();
    let mut model = Model::new();
    change(&nodes[0], &mut model, 1);
    // One has all in one view, the second halves, the third thirds.
    nodes.iter().zip(1..).for_each(|(node, of)| run(node, of));
    trim(&nodes, &mut model, 2);
    for host in 1..=HOSTS {
        let at = host as usize - 1;
        let data = nodes.remove(at).stop();
        std::fs::remove_dir_all(data.join("views")).unwrap();
        nodes.insert(at, start(&data, &nodes, host, port));
        let wiped = &nodes[at];
        let told = format!("host {host} was wiped");
        COUNTS.iter().for_each(|of| run(wiped, *of));
        let servers: Vec<String> =
            nodes.iter().map(|node| format!("unix:{}", node.socket().display())).collect();
        let mut verify = binary();
        verify.args(["--server", &servers.join(","), "view", "verify", "orders"]);
        let said = finish(&mut verify, b"").ok();
        assert_eq!(
            said.lines().count() as u32,
            COUNTS.iter().sum::<u32>() + 6 - host,
            "{told}: {said}"
        );
        holds(wiped, &model, &told);
        for of in COUNTS.into_iter().filter(|of| *of != host) {
            (0..of).for_each(|part| {
                wiped.run(&["view", "stop", "disk", "orders", &format!("{part}/{of}")]).ok();
            });
        }
        trim(&nodes, &mut model, 3 + host);
    }
    nodes.into_iter().rev().for_each(|node| drop(node.stop()));
}
