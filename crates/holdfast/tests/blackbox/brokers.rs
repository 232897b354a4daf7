//! Clusters of real processes whose log real brokers keep.

use crate::cluster::{Dev, nodes_and_disks_are_lost};
use crate::common::{Node, Scratch, binary, bytes, finish, free_port, until};
use crate::scribe::{Agent, Client as ScribeClient};
use crate::scribe_hours::assert_has;
use crate::shards::{is_home, is_quiet, keeps, until_one};
use holdfast_brokers::Brokers;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

fn url(brokers: &Brokers, prefix: &str) -> String {
    format!("kafka://{}/{prefix}", brokers.addresses())
}

/// The story of a cluster that hosts its log, and each broker dies in its turn under the stream: so does
/// the one that leads the topics.
#[test]
fn a_cluster_on_three_brokers_loses_nodes_brokers_and_no_file() {
    let Some(mut brokers) = Brokers::start(3, &[]) else { return };
    let scratch = Scratch::new();
    let dev = Dev::start_on(&scratch.path("dev"), 4, &url(&brokers, "story"));
    nodes_and_disks_are_lost(&dev, &scratch, |piece| match piece {
        10 => brokers.kill(0),
        30 => {
            brokers.restart(0);
            brokers.kill(1);
        }
        60 => {
            brokers.restart(1);
            brokers.kill(2);
        }
        80 => brokers.restart(2),
        _ => {}
    });
    // No node hosts the log: the first one may be lost as any other.
    dev.order(&["kill", "1", "--hard"]).ok();
    // Each process is a client of its own, and a node may be behind another by a moment.
    let shows = |node| dev.run(node, &["fs", "ls", "/"]).ok().contains("without-the-first");
    dev.run(2, &["fs", "mkdir", "/without-the-first"]).ok();
    until("the third shows it", || shows(3));
    dev.order(&["start", "1"]).ok();
    until("the first shows it", || shows(1));
}

/// Reads go on without brokers, and say so; writes fail with what to check; and nothing is restarted when
/// the brokers are back.
#[test]
fn brokers_may_be_away_for_a_while() {
    let Some(mut brokers) = Brokers::start(1, &[]) else { return };
    if !brokers.are_ours() {
        return eprintln!("SKIPPED: another one's broker is not killed");
    }
    let scratch = Scratch::new();
    let dev = Dev::start_on(&scratch.path("dev"), 2, &url(&brokers, "away"));
    dev.run(1, &["fs", "mkdir", "/before"]).ok();
    dev.run(2, &["log", "append", "t", "one", "two"]).ok();
    assert_eq!(dev.run(1, &["log", "read", "t"]).ok(), "1  one\n2  two\n");
    dev.run(1, &["log", "set", "t", "--retain-bytes", "1G"])
        .refused(&["brokers keep the log", "log trim"]);
    let doctor = |words: &[&str]| finish(binary().args(["log", "doctor"]).args(words), b"");
    let place = url(&brokers, "away");
    let said = doctor(&["--log", &place]).ok();
    assert!(said.contains("away.t  entries 1 to 2; 1 of 1 copies"), "{said}");
    // By a node, and by its settings; one topic is read through.
    let said = dev.run(1, &["log", "doctor", "t", "--json"]).ok();
    assert!(said.contains("\"entries\":2,\"findings\":[]"), "{said}");
    let settings = dev.data.join("node-1");
    assert!(doctor(&["--data", settings.to_str().unwrap()]).ok().contains("away.cluster"));
    doctor(&["--log", &url(&brokers, "other")]).refused(&["no log has the prefix `other`"]);
    doctor(&["no", "--log", &place]).refused(&["topic `no` is not there"]);
    brokers.kill(0);
    // Waits for as long as an append is tried.
    dev.run(1, &["log", "append", "t", "three"])
        .refused(&["append to topic `t`", "check that the brokers"]);
    let told = |words: &[&str]| {
        let said = dev.run(2, words);
        String::from_utf8(said.out).unwrap() + &said.err
    };
    let listed = told(&["fs", "ls", "/"]);
    assert!(listed.contains("before") && listed.contains("may be old"), "{listed}");
    // Not a list of none.
    dev.run(1, &["log", "ls"]).refused(&["check that the brokers"]);
    doctor(&["--log", &place]).refused(&["check that the brokers"]);
    let said = told(&["doctor"]);
    assert!(said.contains("nothing was heard from the log's brokers"), "{said}");
    brokers.restart(0);
    while dev.run(1, &["fs", "mkdir", "-p", "/after"]).code != Some(0) {}
    while !told(&["fs", "ls", "/"]).contains("after") {}
}

#[test]
fn what_is_wrong_with_the_brokers_or_the_cluster_there_is_said_at_the_start() {
    let run = |scratch: &Scratch, name: &str, words: &[&str]| {
        let mut command = binary();
        command.args(["node", "run", "--data"]).arg(scratch.path(name)).args(words);
        finish(&mut command, b"")
    };
    let scratch = Scratch::new();
    for bad in ["localhost:9092", "kafka://", "kafka://x", "kafka://x:1/a_b"] {
        run(&scratch, "bad", &["--log", bad]).refused(&["kafka"]);
    }
    // It was told that brokers have no log of that prefix, whose address and prefix were right.
    let own = Node::start(&scratch.path("own")).stop();
    let words = ["--log", "kafka://localhost:9"];
    run(&scratch, "own", &words).refused(&["log move", own.join("log").to_str().unwrap()]);
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let dev = Dev::start_on(&scratch.path("dev"), 1, &url(&brokers, "one"));
    // Its nodes would not talk to one that has another secret.
    run(&scratch, "stranger", &["--log", &url(&brokers, "one")]).refused(&["secret", "--secret"]);
    // Another prefix is another log.
    dev.order(&["kill", "1"]).ok();
    let data = scratch.path("dev").join("node-1");
    let data = data.to_str().unwrap();
    let again =
        |words: &[&str]| finish(binary().args(["node", "run", "--data", data]).args(words), b"");
    again(&["--log", &url(&brokers, "two")]).refused(&["no log has the prefix `two`"]);
    dev.order(&["start", "1"]).ok();
    // Whoever joins by a node hears where its log is.
    let join = dev.address(1);
    let secret = dev.data.join("secret");
    let words = ["--join", &join, "--secret", secret.to_str().unwrap()];
    run(&scratch, "joins", &words).refused(&["brokers keep its log", "--log kafka://"]);
}

/// Hours of a category are written by the node that leads, whichever one its messages came by; one that leads and was
/// never asked about a category wrote none of it. The leader dies while there is something to write, and comes back.
#[test]
fn nodes_on_brokers_write_each_hour_once_whoever_leads() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let scratch = Scratch::new();
    let dev = Dev::start_on(&scratch.path("dev"), 3, &url(&brokers, "hours"));
    let secret = dev.data.join("secret");
    let more = |name: &str| {
        let mut more = vec!["--secret".to_owned(), secret.display().to_string(), "--name".into()];
        more.push(name.to_owned());
        let ca = dev.data.join("ca.pem");
        if ca.exists() {
            more.extend(["--cacert".to_owned(), ca.display().to_string()]);
        }
        more
    };
    let mut wanted = BTreeMap::new();
    // The first node leads, and no message comes by it.
    for by in [2, 3] {
        let more = more(&format!("agent-{by}"));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let agent =
            Agent::start_to(&scratch.path(&format!("spool-{by}")), 0, &dev.address(by), &more);
        let mut client = ScribeClient::new(agent.address);
        for number in 0..4 {
            let category = format!("by{by}-{number}");
            keep(&dev, by, &category, "true");
            let lines: Vec<String> = (0..500).map(|n| format!("line {n} of {category}")).collect();
            for line in &lines {
                assert_eq!(client.log(&[(category.as_str(), line.as_bytes())]), Some(true));
            }
            wanted.insert(category, lines.join("\n") + "\n");
        }
        assert_eq!(agent.stop(), 0, "all of it is in the log");
    }
    // What came of the hour under way becomes its file.
    let ends = |category: &String| {
        let node = if category.starts_with("by2") { 2 } else { 3 };
        keep(&dev, node, category, "false");
    };
    let (before, after): (Vec<_>, Vec<_>) = wanted.keys().partition(|name| name.ends_with('0'));
    before.into_iter().for_each(ends);
    until("what the first leader has to write is there", || found(&dev, 2, &wanted).len() == 2);
    after.into_iter().for_each(ends);
    dev.order(&["kill", "1", "--hard"]).ok();
    until("the next one writes the rest", || found(&dev, 2, &wanted).len() == wanted.len());
    dev.order(&["start", "1"]).ok();
    until("all say so", || {
        (1..=3).all(|node| {
            let said = dev.run(node, &["--json", "scribe", "status"]);
            let said = String::from_utf8(said.out).unwrap();
            let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let written = |line: &Value| line["hours"] == 1 && line["hours_waiting"] == 0;
            lines.filter(written).count() == wanted.len()
        })
    });
    for node in 1..=3 {
        for (category, (path, bytes)) in found(&dev, node, &wanted) {
            assert_has(&scratch, &bytes, wanted[&category].as_bytes());
            assert!(path.ends_with(".zst"), "{path}");
        }
    }
}

/// Brokers may not have answered yet about a topic that is new.
fn keep(dev: &Dev, node: u16, category: &str, files: &str) {
    until("a category is kept so", || {
        dev.run(node, &["scribe", "keep", category, "--hourly-files", files]).code == Some(0)
    });
}

/// The files of categories, of which none has two.
fn found(
    dev: &Dev,
    node: u16,
    categories: &BTreeMap<String, String>,
) -> BTreeMap<String, (String, Vec<u8>)> {
    let mut client = dev.client(node, &[]);
    let mut all = BTreeMap::new();
    for category in categories.keys() {
        let root = format!("/scribe/{category}");
        for day in client.list(&root, "").map_or(Vec::new(), |page| page.entries) {
            let day = format!("{root}/{}", day.name);
            for hour in client.list(&day, "").map_or(Vec::new(), |page| page.entries) {
                let path = format!("{day}/{}", hour.name);
                let Ok(bytes) = client.get(&path) else { continue };
                let twice = all.insert(category.clone(), (path, bytes));
                assert_eq!(twice.map(|(path, _)| path), None, "another file of `{category}`");
            }
        }
    }
    all
}

/// Two nodes, of which one keeps the log, outgrow that: the log is taken to brokers, over a kill in the
/// middle, and both go on where they were, with every index as it was; and nobody goes on with the old one.
#[test]
fn a_log_moves_to_brokers_and_every_entry_keeps_its_index() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let scratch = Scratch::new();
    let (first, second) = (scratch.path("first"), scratch.path("second"));
    let port = free_port();
    let node = Node::start_with(&first, &format!("native_port = {port}\n"));
    Node::set(&second, &format!("native_port = {}\n", free_port()));
    let other = Node::join(&second, &node, port);
    let mut client = node.client();
    client.put("/small", b"small", &Default::default()).unwrap();
    client.put("/large", &bytes(3, 3 << 20), &Default::default()).unwrap();
    let lines: Vec<String> = (1..=300).map(|n| format!("line {n}")).collect();
    let words: Vec<&str> =
        ["log", "append", "t"].into_iter().chain(lines.iter().map(String::as_str)).collect();
    node.run(&words).ok();
    node.run(&["log", "append", "queue", "a", "b"]).ok();
    let read = |node: &Node| node.run(&["log", "read", "t"]).ok();
    let (before, names) = (read(&node), node.run(&["fs", "ls", "/"]).ok());
    drop(client);
    let to = url(&brokers, "moved");
    let moves = |data: &Path, to: &str| {
        let mut command = binary();
        command.args(["log", "move", "--to", to, "--data"]).arg(data);
        command
    };
    finish(&mut moves(&first, &to), b"").refused(&["another process uses it", "stop that one"]);
    other.stop();
    node.stop();
    finish(&mut moves(&second, &to), b"").refused(&["no log is kept in this directory"]);
    finish(&mut moves(&scratch.path("none"), &to), b"").refused(&["not there", "--data"]);

    // It dies once the first topic is there.
    let mut child = moves(&first, &to).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("copied"), "{line}");
    let said = finish(&mut moves(&first, &to), b"").ok();
    assert!(said.contains(&format!("--log {to}")), "{said}");
    // Once more does no harm, and elsewhere is not possible any more.
    let again = finish(&mut moves(&first, &to), b"").ok();
    assert!(
        again.lines().rev().skip(1).all(|topic| topic.contains("  0 entries copied")),
        "{again}"
    );
    finish(&mut moves(&first, &url(&brokers, "elsewhere")), b"").refused(&["was moved to", &to]);

    let run = |data: &Path, more: &[&str]| {
        let mut command = binary();
        command.args(["--json", "node", "run", "--data"]).arg(data).args(more);
        command.arg("--secret").arg(first.join("secret"));
        command
    };
    finish(&mut run(&first, &[]), b"").refused(&["was moved to", &format!("--log {to}")]);
    let node = Node::start_by(&mut run(&first, &["--log", &to]), &first);
    let other = Node::start_by(&mut run(&second, &["--log", &to]), &second);
    for node in [&node, &other] {
        assert_eq!(read(node), before);
        assert_eq!(node.run(&["fs", "ls", "/"]).ok(), names);
        assert_eq!(node.client().get("/large").unwrap(), bytes(3, 3 << 20));
    }
    other.run(&["log", "append", "t", "next"]).ok();
    let after = node.run(&["log", "read", "t", "--from", "301"]).ok();
    assert_eq!(after, "301  next\n");
    other.run(&["fs", "mkdir", "/after"]).ok();
    assert!(node.run(&["fs", "ls", "/"]).ok().contains("after"));
    node.stop();
    other.stop();
}

/// The log is taken to brokers while a directory is on its way from shard to shard, wherever that is: a node that
/// runs keeps its log, and behind the move of the log the directory's goes on, from the same entries of each topic.
#[test]
fn a_log_moves_to_brokers_in_the_middle_of_a_move_between_shards() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start(&data);
    for dir in ["/d", "/stays"] {
        node.run(&["fs", "mkdir", dir]).ok();
    }
    node.run(&["shard", "add"]).ok();
    until_one(&node, "there are two", |s| s.len() == 2 && s.iter().all(|s| s.index.0 > 0));
    let mut client = node.client();
    let content = |number: u64| bytes(number, 100 + number as usize);
    for number in 0..1500 {
        client.put(&format!("/d/{number}"), &content(number), &Default::default()).unwrap();
    }
    client.put("/stays/x", b"x", &Default::default()).unwrap();
    drop(client);
    let to = url(&brokers, "shards");
    let moves = || {
        let mut command = binary();
        command.args(["log", "move", "--to", &to, "--data"]).arg(&data);
        command
    };
    node.run(&["shard", "move", "/d", "--to", "1"]).ok();
    finish(&mut moves(), b"").refused(&["another process uses it", "stop that one"]);
    node.kill();
    let said = finish(&mut moves(), b"").ok();
    assert!(said.contains("namespace/1  "), "each shard's topic goes: {said}");

    let start = || {
        let mut command = binary();
        command.args(["--json", "node", "run", "--data"]).arg(&data).args(["--log", &to]);
        Node::start_by(command.arg("--secret").arg(data.join("secret")), &data)
    };
    let node = start();
    until_one(&node, "it has moved", |s| is_quiet(s) && s.len() == 2 && keeps(s, 1, "d"));
    node.run(&["shard", "move", "/d", "--to", "0"]).ok();
    node.kill();
    let node = start();
    until_one(&node, "it is back", |s| is_quiet(s) && s.len() == 2 && is_home(s, "d"));
    let mut client = node.client();
    for number in 0..1500 {
        assert!(client.get(&format!("/d/{number}")).unwrap() == content(number), "{number}");
    }
    assert_eq!(client.usage("/").unwrap().files, 1501);
    client.put("/d/new", b"new", &Default::default()).unwrap();
    drop(client);
    node.stop();
}
