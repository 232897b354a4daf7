//! Stores by category, from outside: what an agent does with messages as a file says, and an old scribe.conf.

use super::common::{Node, Scratch, binary, finish, free_port};
use super::scribe::{Agent, Client, lines, until};
use std::process::{Command, Stdio};

const STORES: &str = "
[[store]]
category = 'debug*'
type = 'null'
[[store]]
category = 'both'
type = 'multi'
stores = [{}, { type = 'file', file_path = 'FILES', add_newlines = true }]
[[store]]
category = 'clicks'
type = 'bucket'
num_buckets = 4
";

/// Lines in files below a directory.
fn lines_of(directory: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let text = names.iter().map(|name| std::fs::read_to_string(name).unwrap());
    text.collect::<String>().lines().map(str::to_owned).collect()
}

#[test]
fn messages_go_where_their_categorys_store_says() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let (file, kept, spool) =
        (scratch.path("stores.toml"), scratch.path("files"), scratch.path("spool"));
    std::fs::write(&file, STORES.replace("FILES", kept.to_str().unwrap())).unwrap();
    let (port, stores) = (free_port(), ["--stores", file.to_str().unwrap()]);
    let agent = Agent::start(&spool, port, &node.data, &stores);
    let mut client = Client::new(agent.address);
    let call: &[(&str, &[u8])] =
        &[("debugger", b"gone"), ("both", b"one"), ("other", b"two"), ("both", b"three")];
    assert_eq!(client.log(call), Some(true));
    assert_eq!(client.log(&[("debug", b"gone, too")]), Some(true));
    let clicks: Vec<String> = (0..40).map(|n| format!("click {n}")).collect();
    for click in &clicks {
        assert_eq!(client.log(&[("clicks", click.as_bytes())]), Some(true));
    }
    until(&node, "both", 2);
    until(&node, "other", 1);
    assert_eq!(lines(&node, "both"), ["one", "three"]);
    // What got OK is in the file at once, whatever becomes of the agent.
    agent.kill();
    assert_eq!(lines_of(&kept.join("both")), ["one", "three"]);
    let agent = Agent::start(&spool, port, &node.data, &stores);
    assert_eq!(Client::new(agent.address).log(&[("both", b"four")]), Some(true));
    assert_eq!(lines_of(&kept.join("both")), ["one", "three", "four"]);
    assert_eq!(agent.stop(), 0);
    let mut all: Vec<String> =
        (0..4).flat_map(|bucket| lines(&node, &format!("clicks_{bucket:03}"))).collect();
    all.sort();
    let mut wanted = clicks.clone();
    wanted.sort();
    assert_eq!(all, wanted);
    let status = node.json(&["scribe", "status"]);
    let names: Vec<&str> = status.iter().map(|one| one["category"].as_str().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("debug")).count(), 0, "{names:?}");
    assert!(!names.contains(&"clicks"), "{names:?}");
    node.stop();
}

/// A node's own door put everything into topics, whatever an agent beside it would have done.
#[test]
fn a_nodes_own_door_does_with_messages_what_its_stores_say() {
    let scratch = Scratch::new();
    let (file, kept, data) =
        (scratch.path("stores.toml"), scratch.path("files"), scratch.path("node"));
    std::fs::write(&file, STORES.replace("FILES", kept.to_str().unwrap())).unwrap();
    let settings = |stores: &str| format!("scribe_port = {}\n{stores}", free_port());
    let node = Node::start_with(&data, &settings(&format!("scribe_stores = {file:?}\n")));
    let address = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let mut client = Client::new(address);
    let call: &[(&str, &[u8])] =
        &[("debugger", b"gone"), ("both", b"one"), ("other", b"two"), ("both", b"three")];
    assert_eq!(client.log(call), Some(true));
    // Each is where OK says it is, and nobody has to be asked until it is.
    assert_eq!(lines(&node, "both"), ["one", "three"]);
    assert_eq!(lines(&node, "other"), ["two"]);
    assert_eq!(lines_of(&kept.join("both")), ["one", "three"]);
    assert_eq!(client.counter("debugger:ignored"), 1);
    for number in 0..40 {
        let click = format!("click {number}");
        assert_eq!(client.log(&[("clicks", click.as_bytes())]), Some(true));
    }
    let clicks: usize = (0..4).map(|at| lines(&node, &format!("clicks_{at:03}")).len()).sum();
    assert_eq!(clicks, 40);
    let data = node.kill();
    assert_eq!(lines_of(&kept.join("both")), ["one", "three"]);
    let node = Node::start(&data);
    let mut client = Client::new(address);
    assert_eq!(client.log(&[("both", b"four")]), Some(true));
    assert_eq!(lines(&node, "both"), ["one", "three", "four"]);
    assert_eq!(lines_of(&kept.join("both")), ["one", "three", "four"]);
    node.stop();

    std::fs::write(&file, "[[store]]\ncategory = 'a'\ntype = 'hdfs'\n").unwrap();
    let mut up = binary();
    let said = finish(up.args(["up", "--data"]).arg(&data), b"");
    let last = said.err.lines().last().unwrap();
    assert_eq!(said.code, Some(1), "{}", said.err);
    for what in ["stores.toml", "`a`", "there is no type `hdfs`"] {
        assert!(last.contains(what), "{what}: {}", said.err);
    }
    let mut up = binary();
    up.args(["up", "--scribe-port", "0", "--scribe-stores"]).arg(&file).arg("--data").arg(&data);
    finish(&mut up, b"").refused(&["`--scribe-stores`", "`--scribe-port`"]);
}

#[test]
fn a_file_of_stores_that_is_none_is_refused_and_a_scribe_conf_translated() {
    let scratch = Scratch::new();
    let (file, conf) = (scratch.path("stores.toml"), scratch.path("scribe.conf"));
    std::fs::write(&file, "[[store]]\ncategory = 'a'\ntype = 'hdfs'\n").unwrap();
    let mut agent = binary();
    agent.args(["scribe", "agent", "--port", "0", "--to", "127.0.0.1:1", "--stores"]).arg(&file);
    let refused = finish(agent.arg("--spool").arg(scratch.path("spool")), b"");
    refused.refused(&["stores.toml", "`a`", "there is no type `hdfs`"]);
    let mut endless = binary();
    endless.args([
        "scribe",
        "agent",
        "--port",
        "0",
        "--to",
        "127.0.0.1:1",
        "--stores",
        "/dev/zero",
    ]);
    let refused = finish(endless.arg("--spool").arg(scratch.path("spool")), b"");
    refused.refused(&["/dev/zero", "longer than 64 MiB"]);
    let text = "port=1463\n<store>\ncategory=default\ntype=buffer\n<primary>\ntype=network\n\
                remote_host=central\n</primary>\n</store>\n";
    std::fs::write(&conf, text).unwrap();
    let toml = finish(binary().args(["scribe", "translate"]).arg(&conf), b"").ok();
    assert!(toml.contains("# remote_host=central: name nodes of the cluster"), "{toml}");
    assert!(toml.ends_with("[[store]]\ncategory = \"default\"\ntype = \"topic\"\n"), "{toml}");
    std::fs::write(&conf, "<store>\n").unwrap();
    let refused = finish(binary().args(["scribe", "translate"]).arg(&conf), b"");
    refused.refused(&["scribe.conf", "line 1"]);
}

/// Where a process may not make longer files (`ulimit -f`) a signal ended it, without a word.
#[test]
fn a_limit_of_files_is_as_a_full_disk_and_ends_nobody() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let (file, kept) = (scratch.path("stores.toml"), scratch.path("files"));
    let both = STORES.replace("FILES", kept.to_str().unwrap());
    std::fs::write(&file, both).unwrap();
    let agent = |spool: &str, limit: &str| {
        let mut command = Command::new("sh");
        let inner = binary();
        // In blocks of 512 bytes.
        let script = format!("ulimit -f {limit}; exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(inner.get_program());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        inner.get_envs().for_each(|(name, value)| {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        });
        command.args(["--json", "scribe", "agent", "--port", "0", "--drain", "0", "--stores"]);
        command.arg(&file).arg("--spool").arg(scratch.path(spool));
        command.arg("--to").arg(format!("unix:{}", node.socket().display()));
        command
    };
    finish(&mut agent("small", "2000"), b"").refused(&["small", "too large"]);
    // A spool's files are shorter than this; those of a store are not.
    let agent = Agent::launch(&mut agent("spool", "40000"));
    let (mut client, line) = (Client::new(agent.address), "x".repeat(500 << 10));
    let (mut good, mut later) = (0, 0);
    while later == 0 || good < 45 {
        match client.log(&[("both", line.as_bytes())]) {
            Some(true) => good += 1,
            Some(false) => later += 1,
            None => panic!("it has ended"),
        }
        assert!(later < 10);
    }
    // Behind a line that was not written whole there is another file.
    let names = std::fs::read_dir(kept.join("both")).unwrap().map(|entry| entry.unwrap().path());
    let text = names.map(|name| std::fs::read_to_string(name).unwrap());
    let whole: usize = text.map(|text| text.lines().filter(|kept| *kept == line).count()).sum();
    assert!(whole >= good, "{whole} of {good} lines");
    agent.stop();
    node.stop();
}
