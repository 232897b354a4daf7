//! Hourly files from outside: what came is in a file of the cluster, whole and once, whoever is killed.

use super::common::{Node, Scratch, free_port};
use super::scribe::{Client, until};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// Paths of files below a directory of the cluster's, once there are so many. Every attempt is a round trip.
fn files(node: &Node, count: usize) -> Vec<String> {
    let mut client = node.client();
    for _ in 0..1_000_000 {
        let mut found = Vec::new();
        for day in client.list("/scribe/web", "").map_or(Vec::new(), |page| page.entries) {
            let day = format!("/scribe/web/{}", day.name);
            let hours = client.list(&day, "").unwrap().entries;
            found.extend(hours.into_iter().map(|hour| format!("{day}/{}", hour.name)));
        }
        if found.len() >= count {
            return found;
        }
    }
    panic!("there are not {count} files");
}

fn status(node: &Node, field: &str) -> serde_json::Value {
    node.json(&["scribe", "status"])[0][field].clone()
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
    assert!((0..100_000).any(|_| is_told(&node)), "{}", status(&node, "hours"));
    assert_eq!(files(&node, 1), found);
    // Whoever has `zstd` reads it.
    let local = scratch.path("13.zst");
    std::fs::write(&local, &bytes).unwrap();
    match Command::new("zstdcat").arg(&local).stderr(Stdio::inherit()).output() {
        Ok(read) => assert!(read.status.success() && read.stdout == lines.as_bytes()),
        Err(_) => println!("skipped: there is no `zstdcat` here"),
    }
    assert!(bytes.len() < lines.len() / 4, "{}", bytes.len());
    node.stop();
}
