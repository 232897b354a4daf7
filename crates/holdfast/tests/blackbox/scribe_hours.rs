//! Hourly files from outside: what came is in a file of the cluster, whole and once, whoever is killed.

use super::common::{Node, Scratch, attempts, bytes, free_port, signal};
use super::scribe::{Client, until};
use holdfast_base::Kind;
use holdfast_client::NewFile;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// Paths of files below a directory of the cluster's.
fn found(node: &Node) -> Vec<String> {
    let (mut client, mut found) = (node.client(), Vec::new());
    for day in client.list("/scribe/web", "").map_or(Vec::new(), |page| page.entries) {
        let day = format!("/scribe/web/{}", day.name);
        let hours = client.list(&day, "").unwrap().entries;
        found.extend(hours.into_iter().map(|hour| format!("{day}/{}", hour.name)));
    }
    found
}

/// The same, once there are so many.
fn files(node: &Node, count: usize) -> Vec<String> {
    let found = attempts().map(|()| found(node)).find(|found| found.len() >= count);
    found.unwrap_or_else(|| panic!("there are not {count} files"))
}

fn status(node: &Node, field: &str) -> serde_json::Value {
    node.json(&["scribe", "status"])[0][field].clone()
}

/// Whoever has `zstd` reads a file.
pub fn assert_has(scratch: &Scratch, file: &[u8], lines: &[u8]) {
    let local = scratch.path("13.zst");
    std::fs::write(&local, file).unwrap();
    match Command::new("zstdcat").arg(&local).stderr(Stdio::inherit()).output() {
        Ok(read) => assert!(read.status.success() && read.stdout == lines, "other lines"),
        Err(_) => println!("skipped: there is no `zstdcat` here"),
    }
}

/// Who asks for files of a category, and ends that, has what came in between at once: no test can wait for the
/// end of an hour. The node is killed on the way.
#[test]
fn what_came_is_in_a_file_whole_and_once_whoever_is_killed() {
    let scratch = Scratch::new();
    let settings = format!("scribe_port = {}\n", free_port());
    let mut node = Node::start_with(&scratch.path("node"), &settings);
    let address =
        |node: &Node| -> SocketAddr { node.ready["scribe"].as_str().unwrap().parse().unwrap() };
    let said = node.run(&["scribe", "keep", "web", "--hourly-files"]).ok();
    assert!(said.contains("hourly files on (0 there, 0 to be written)"), "{said}");
    let mut lines = String::new();
    let mut client = Client::new(address(&node));
    for n in 0..2000 {
        let line = format!("line {n} of some that are much alike");
        assert_eq!(client.log(&[("web", line.as_bytes())]), Some(true));
        lines += &format!("{line}\n");
    }
    until(&node, "web", 2000);
    node.json(&["scribe", "keep", "web", "--hourly-files", "false"]);
    node = Node::start(&node.kill());
    let found = files(&node, 1);
    assert!(found.len() == 1 && found[0].ends_with(".zst"), "{found:?}");
    let bytes = node.client().get(&found[0]).unwrap();
    for _ in 0..3 {
        node = Node::start(&node.kill());
    }
    assert_eq!(node.client().get(&found[0]).unwrap(), bytes, "it stays as it is");
    let is_told = |node: &Node| status(node, "hours") == 1 && status(node, "hours_waiting") == 0;
    assert!(attempts().any(|()| is_told(&node)), "{}", status(&node, "hours"));
    assert_eq!(files(&node, 1), found);
    assert_has(&scratch, &bytes, lines.as_bytes());
    assert!(bytes.len() < lines.len() / 4, "{}", bytes.len());
    node.stop();
}

/// Files of these sizes, each until there is no more room; answers their names.
fn fill(node: &Node, sizes: &[usize]) -> Vec<String> {
    let (mut client, mut names) = (node.client(), Vec::new());
    let content = bytes(3, sizes[0]);
    for size in sizes {
        loop {
            let name = format!("/full-{}", names.len());
            match client.put(&name, &content[..*size], &NewFile::default()) {
                Ok(_) => names.push(name),
                Err(e) if e.kind == Kind::Full => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    names
}

/// Whether the hour was tried, and waits for room: told by a node that is killed behind that. Each look is a round
/// trip; each life has time for more of them, for a node tries some time after its start, and machines differ.
fn waits_for_room(mut node: Node) -> Node {
    for life in 1..=20 {
        (0..50 * life).for_each(|_| assert_eq!(status(&node, "hours_waiting"), 1));
        signal(node.pid(), "KILL");
        let said = node.told.whole();
        node = Node::start(&node.data.clone());
        if said.contains("\"scribe.files-wait\"") {
            assert!(said.contains("delete something") || said.contains("remove files"), "{said}");
            return node;
        }
    }
    panic!("it never told that hours wait");
}

/// There is no room when an hour is over: its file waits, and says for what. Once there is, it is there, whole; what a
/// try had written before it failed is no file, and takes no room.
#[test]
fn an_hour_waits_for_room_on_a_full_disk_and_is_a_file_once_there_is() {
    let scratch = Scratch::new();
    let port = free_port();
    let settings = format!("scribe_port = {port}\ncapacity = \"340M\"\ngrace_ms = 0\n");
    let mut node = Node::start_with(&scratch.path("node"), &settings);
    node.run(&["scribe", "keep", "web", "--hourly-files"]).ok();
    let mut client = Client::new(SocketAddr::from(([127, 0, 0, 1], port)));
    let mut lines = Vec::new();
    for block in bytes(4, 2 << 20).chunks(4096) {
        // What compresses to half, and no further.
        let line: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(client.log(&[("web", line.as_bytes())]), Some(true));
        lines.extend_from_slice(line.as_bytes());
        lines.push(b'\n');
    }
    until(&node, "web", 512);
    drop(client);
    let full = fill(&node, &[1 << 20, 64 << 10, 4 << 10]);
    node.json(&["scribe", "keep", "web", "--hourly-files", "false"]);
    node = waits_for_room(node);
    assert_eq!(found(&node), Vec::<String>::new(), "no part of a file");
    assert_eq!(node.client().unclosed().unwrap(), [], "nothing is left of what was tried");

    let mut client = node.client();
    full.iter().for_each(|name| client.delete(name, false).unwrap());
    let found = files(&node, 1);
    assert_has(&scratch, &client.get(&found[0]).unwrap(), &lines);
    drop(client);
    node.stop();
}
