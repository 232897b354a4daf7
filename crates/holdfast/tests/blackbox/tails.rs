//! Commands that follow something until they are interrupted outlive the node that they ask: they ended seconds
//! after it, and whoever had begun them missed what came when it was back.

use crate::common::{Node, Scratch, binary, finish, free_port, signal};
use crate::scribe::{Client, settings};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

struct Follower {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Follower {
    fn start(node: &Node, words: &[&str]) -> Follower {
        let mut command = node.command(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Follower { child, stdout, stderr }
    }

    /// The next line of what it prints; an empty one if it has ended.
    fn prints(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn who_follows_outlives_the_node() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("node"), &settings(free_port()));
    let write = |node: &Node, text: &str| {
        node.run(&["log", "append", "t", text]).ok();
        let address = node.ready["scribe"].as_str().unwrap().parse().unwrap();
        assert_eq!(Client::new(address).log(&[("c", text.as_bytes())]), Some(true));
    };
    write(&node, "one");
    let follow: [&[&str]; 4] = [
        &["log", "tail", "t", "--from", "1"],
        &["log", "tail", "t", "--from", "1", "--repeats"],
        &["scribe", "tail", "c", "--from", "1"],
        &["scribe", "tail", "c", "--reader", "r"],
    ];
    let mut followers: Vec<_> = follow.iter().map(|words| Follower::start(&node, words)).collect();
    for follower in &mut followers {
        let first = follower.prints();
        assert!(first.ends_with("one\n"), "{first}");
    }
    let data = node.kill();
    for follower in &mut followers {
        let said = follower.says();
        assert!(said.contains("nobody answers for now, and is asked again"), "{said}");
    }
    let node = Node::start(&data);
    write(&node, "two");
    for (follower, words) in followers.iter_mut().zip(follow) {
        let next = follower.prints();
        assert!(next.ends_with("two\n"), "{words:?}: `{next}`, {}", follower.says());
    }
    drop(followers);
    node.stop();
}

/// A node that was stopped keeps its connections: whoever waits for it, for nine minutes or for ever, was told nothing.
#[test]
fn who_waits_for_a_node_that_was_stopped_is_told_and_goes_on_with_it() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    node.run(&["log", "append", "t", "one"]).ok();
    let mut follower = Follower::start(&node, &["log", "tail", "t", "--from", "1"]);
    assert!(follower.prints().ends_with("one\n"));
    signal(node.pid(), "STOP");
    let said = follower.says();
    assert!(said.contains("holdfast.sock` has said nothing for 10 s"), "{said}");
    signal(node.pid(), "CONT");
    node.run(&["log", "append", "t", "two"]).ok();
    assert!(follower.prints().ends_with("two\n"));
    drop(follower);
    node.stop();
}

/// What takes connections need not be a node: commands said nothing for nine minutes, and asked no other one.
#[test]
fn a_port_that_takes_connections_and_says_nothing_is_no_node() {
    let scratch = Scratch::new();
    let path = scratch.path("silent.sock");
    // The kernel takes connections for it.
    let _listener = UnixListener::bind(&path).unwrap();
    let silent = format!("unix:{}", path.display());
    let asked = [&["fs", "ls", "/"][..], &["table", "ls"], &["log", "ls"], &["view", "status"]];
    std::thread::scope(|scope| {
        for words in asked {
            let silent = &silent;
            scope.spawn(move || {
                finish(binary().args(["--server", silent]).args(words), b"").refused(&[
                    "silent.sock",
                    "no answer in time, though the connection was taken",
                ]);
            });
        }
    });
    let node = Node::start(&scratch.path("node"));
    node.run(&["table", "create", "t"]).ok();
    let both = format!("{silent},unix:{}", node.socket().display());
    let listed = finish(binary().args(["--server", &both, "table", "ls"]), b"").ok();
    assert!(listed.contains('t'), "{listed}");
    node.stop();
}
