//! Scribe from outside: real clients, an agent and a node that are killed in turn, a spool that is full.

use super::common::{Finished, Node, Scratch, attempts, binary, bytes, finish, free_port, signal};
use super::memcached::python;
use super::told::Told;
use holdfast_base::ids::Index;
use holdfast_scribe::call::{Entry, encode_log};
use holdfast_scribe::thrift::{self, Form, Header, MessageType, Writer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// A running `holdfast scribe agent`.
pub struct Agent {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
    /// Where it carries for others.
    pub carries: Option<SocketAddr>,
    pub spool: String,
    told: Told,
}

impl Agent {
    pub fn start(directory: &Path, port: u16, node: &Path, more: &[&str]) -> Agent {
        let to = format!("unix:{}", node.join("holdfast.sock").display());
        Agent::start_to(directory, port, &to, more)
    }

    /// In front of nodes or carriers.
    pub fn start_to(directory: &Path, port: u16, to: &str, more: &[&str]) -> Agent {
        let mut command = binary();
        command.args(["--json", "scribe", "agent", "--port", &port.to_string(), "--to", to]);
        command.arg("--spool").arg(directory).args(more);
        Agent::launch(&mut command)
    }

    /// By a command of the test's own.
    pub fn launch(command: &mut Command) -> Agent {
        let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let mut told = Told::by(child.stderr.take().unwrap());
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            panic!("the agent did not start: {}", told.judge());
        });
        let address = ready["scribe"].as_str().unwrap().parse().unwrap();
        let spool = ready["spool"].as_str().unwrap().to_owned();
        let carries = ready["carries"].as_str().map(|address| address.parse().unwrap());
        Agent { child, stdout, address, carries, spool, told }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.told.judge();
    }

    /// Ends in order; how many batches stay.
    pub fn stop(mut self) -> u64 {
        signal(self.child.id(), "TERM");
        let mut out = String::new();
        self.stdout.read_to_string(&mut out).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.told.judge();
        let ending: Value = serde_json::from_str(&out).expect(&out);
        ending["batches_left"].as_u64().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One client, which connects anew when it has to.
pub struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client { address, stream: None }
    }

    /// Whether a call got OK; nothing where nobody knows.
    pub fn log(&mut self, entries: &[(&str, &[u8])]) -> Option<bool> {
        let entries: Vec<Entry<'_>> = entries
            .iter()
            .map(|(category, message)| Entry { category: category.as_bytes(), message })
            .collect();
        let answered = self.call(&encode_log(Form::Old, 1, &entries));
        if answered.is_none() {
            self.stream = None;
        }
        // In front of the field's end: the result, 0 for OK.
        answered.map(|answer| answer[answer.len() - 2] == 0)
    }

    pub fn counter(&mut self, name: &str) -> i64 {
        let (form, kind) = (Form::Strict, MessageType::Call);
        let header = Header { form, kind, name: b"getCounter", sequence: 1 };
        let mut out = Writer::message(&header);
        out.field(thrift::STRING, 1);
        out.bytes(name.as_bytes());
        out.stop();
        let answer = self.call(&out.finish()).unwrap();
        let end = answer.len() - 1;
        i64::from_be_bytes(answer[end - 8..end].try_into().unwrap())
    }

    /// What the door tells a person who asks how it does.
    pub fn details(&mut self) -> String {
        let (form, kind) = (Form::Strict, MessageType::Call);
        let header = Header { form, kind, name: b"getStatusDetails", sequence: 1 };
        let mut out = Writer::message(&header);
        out.stop();
        String::from_utf8_lossy(&self.call(&out.finish()).unwrap()).into_owned()
    }

    /// Asks until the door says this.
    pub fn until_told(&mut self, what: &str) {
        let mut last = String::new();
        for () in attempts() {
            last = self.details();
            if last.contains(what) {
                return;
            }
        }
        panic!("it does not say `{what}`: {last}");
    }

    fn call(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        if self.stream.is_none() {
            self.stream = Some(TcpStream::connect(self.address).ok()?);
        }
        let stream = self.stream.as_mut()?;
        stream.write_all(frame).ok()?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).ok()?;
        Some(answer)
    }
}

pub fn settings(port: u16) -> String {
    format!("scribe_port = {port}\n")
}

pub fn lines(node: &Node, category: &str) -> Vec<String> {
    let text = node.run(&["scribe", "tail", category, "--no-follow", "--from", "1"]).ok();
    text.lines().map(str::to_owned).collect()
}

/// Asks until a category has so many messages.
pub fn until(node: &Node, category: &str, messages: u64) {
    let mut client = node.client();
    let mut has = 0;
    for () in attempts() {
        let all = client.scribe_status().unwrap();
        has = all.iter().find(|one| one.category == category).map_or(0, |one| one.messages);
        if has >= messages {
            return;
        }
    }
    panic!("`{category}` has {has} messages, not {messages}");
}

#[test]
fn clients_that_people_have_are_served_by_agent_and_node() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("node"), &settings(free_port()));
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let agent = Agent::start(&scratch.path("spool"), 0, &node.data, &[]);
    for (address, category) in [(address, "Direct-1"), (agent.address, "by_agent")] {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        python("scribe_clients.py", &[host, port, category.to_owned()]);
    }
    let mut client = Client::new(agent.address);
    assert_eq!(client.log(&[("other", b"one\n"), ("other", b""), ("other", b"two")]), Some(true));
    until(&node, "other", 3);
    assert_eq!(lines(&node, "other"), ["one", "", "two"]);
    let json = node.json(&["scribe", "tail", "other", "--no-follow"]);
    // In front of it the agent's spool has said its name.
    assert_eq!(json[0], serde_json::json!({"index": 2, "text": "one\n"}));
    for category in ["Direct-1", "by_agent"] {
        let read = match node.json(&["scribe", "status"]).iter().find(|c| c["category"] == category)
        {
            Some(status) if status["messages"].as_u64() < Some(202) => {
                until(&node, category, 202);
                lines(&node, category)
            }
            Some(_) => lines(&node, category),
            // There are no such clients here.
            None => continue,
        };
        let wanted: Vec<String> = ["strict", "old"]
            .iter()
            .flat_map(|name| {
                let lines = (0..100).map(move |i| format!("{name} {i} äöü"));
                lines.chain([format!("{name} last")])
            })
            .collect();
        assert_eq!(read, wanted, "{category}");
    }
    assert_eq!(agent.stop(), 0);
    let refused = node.run(&["scribe", "tail", "none", "--no-follow"]);
    refused.refused(&["none", "holdfast scribe status"]);
    node.stop();
}

/// A node that does not keep the log takes calls, batches of agents, and readers, and passes them on.
#[test]
fn any_node_of_a_cluster_takes_messages_and_shows_them() {
    let scratch = Scratch::new();
    let ports = [free_port(), free_port(), free_port()];
    let settings = |native: u16| format!("native_port = {native}\nscribe_port = {}\n", ports[2]);
    let first = Node::start_with(&scratch.path("a"), &format!("native_port = {}\n", ports[0]));
    Node::set(&scratch.path("b"), &settings(ports[1]));
    let second = Node::join(&scratch.path("b"), &first, ports[0]);
    let address: SocketAddr = second.ready["scribe"].as_str().unwrap().parse().unwrap();
    let mut client = Client::new(address);
    assert_eq!(client.log(&[("c", b"by its door"), ("D", b"another")]), Some(true));
    let agent = Agent::start(&scratch.path("spool"), 0, &second.data, &[]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"by an agent")]), Some(true));
    until(&second, "c", 2);
    for node in [&first, &second] {
        assert_eq!(lines(node, "c"), ["by its door", "by an agent"]);
        assert_eq!(lines(node, "D"), ["another"]);
    }
    assert_eq!(agent.stop(), 0);
    // What was taken is there again when the node that keeps it has died.
    let data = first.kill();
    let first = Node::start(&data);
    assert_eq!(lines(&first, "c").len(), 2);
    drop((second, first));
}

/// Whoever reaches the port can send anything. What is no frame ends its connection, and nothing else.
#[test]
fn frames_that_are_none_end_their_connection_alone() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("node"), &settings(free_port()));
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let good = encode_log(Form::Strict, 1, &[Entry { category: b"c", message: b"m" }]);
    let mut deep = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x05".to_vec();
    (0..100_000).for_each(|_| deep.extend_from_slice(b"\x0f\0\0\0\x01"));
    deep.splice(0..0, (deep.len() as u32).to_be_bytes());
    for frame in [
        b"\x7f\xff\xff\xff".to_vec(),
        b"\xff\xff\xff\xff".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"\0\0\0\0".to_vec(),
        bytes(1, 4096),
        deep,
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&frame);
        let mut rest = Vec::new();
        // Reset, where there was more than was read.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{frame:?}");
    }
    // One that is cut, and one that never reads what it is answered.
    let mut cut = TcpStream::connect(address).unwrap();
    cut.write_all(&good[..good.len() - 1]).unwrap();
    let mut deaf = TcpStream::connect(address).unwrap();
    (0..100).for_each(|_| deaf.write_all(&good).unwrap());
    let mut client = Client::new(address);
    assert_eq!(client.log(&[("c", b"last")]), Some(true));
    until(&node, "c", 101);
    node.stop();
}

/// Of each call of one client its category, its lines, and whether it got OK; nothing where nobody knows.
pub type Calls = BTreeMap<(&'static str, Vec<String>), Option<bool>>;

/// Sends calls of lines that nobody else sends until it is `done`. Each attempt has a number of its own: what
/// nobody knows about may be there or not.
pub fn send_lines(address: SocketAddr, writer: usize, done: &AtomicBool) -> Calls {
    let (mut client, mut told) = (Client::new(address), BTreeMap::new());
    let mut attempt = 0;
    while !done.load(Ordering::Relaxed) {
        attempt += 1;
        let category = ["a", "b"][attempt % 2];
        let lines: Vec<String> =
            (0..20).map(|line| format!("{writer}:{attempt}:{line} some words of a log")).collect();
        let entries: Vec<(&str, &[u8])> =
            lines.iter().map(|line| (category, line.as_bytes())).collect();
        let answer = client.log(&entries);
        told.insert((category, lines), answer);
    }
    told
}

/// What got OK is read once, and nothing is read twice.
pub fn judge_lines(node: &Node, told: &[Calls]) {
    for category in ["a", "b"] {
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        lines(node, category).into_iter().for_each(|line| *times.entry(line).or_default() += 1);
        assert!(times.values().all(|times| *times == 1), "{category}: something is read twice");
        let (mut good, mut unknown) = (0, 0);
        for ((of, lines), answer) in told.iter().flatten() {
            if *of != category {
                continue;
            }
            let there = lines.iter().filter(|line| times.contains_key(*line)).count();
            assert!(there == 0 || there == lines.len(), "a call is taken whole or not at all");
            match answer {
                Some(true) => {
                    good += 1;
                    assert_eq!(there, lines.len(), "{category}: {} got OK", lines[0]);
                }
                _ => unknown += 1,
            }
        }
        assert!(good > 10, "{good} calls got OK, of {unknown} nobody knows");
    }
    let marks: Vec<String> = lines(node, "marks");
    assert!(marks.is_sorted(), "{marks:?}");
}

/// What got OK is read once, whoever is killed between.
#[test]
fn agent_and_node_are_killed_in_turn_and_what_got_ok_is_read_once() {
    let scratch = Scratch::new();
    let (data, spool, port) = (scratch.path("node"), scratch.path("spool"), free_port());
    let mut node = Some(Node::start(&data));
    let mut agent = Some(Agent::start(&spool, port, &data, &[]));
    let address = agent.as_ref().unwrap().address;
    let identity = agent.as_ref().unwrap().spool.clone();
    let done = AtomicBool::new(false);
    let told: Vec<_> = std::thread::scope(|scope| {
        let done = &done;
        let send = |writer| scope.spawn(move || send_lines(address, writer, done));
        let writers: Vec<_> = (0..3).map(send).collect();
        for round in 0..6 {
            // Under way, before the next one is killed.
            let mut client = Client::new(address);
            let mark = format!("mark {round}");
            while client.log(&[("marks", mark.as_bytes())]) != Some(true) {}
            match round % 2 {
                0 => {
                    agent.take().unwrap().kill();
                    agent = Some(Agent::start(&spool, port, &data, &[]));
                    assert_eq!(agent.as_ref().unwrap().spool, identity);
                }
                _ => {
                    node.take().unwrap().kill();
                    node = Some(Node::start(&data));
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    // Everything is brought out before it ends.
    assert_eq!(agent.take().unwrap().stop(), 0);
    let node = node.unwrap();
    judge_lines(&node, &told);
    node.stop();
}

/// The bound of a spool holds while nobody takes what it has, and what it has is brought out later.
#[test]
fn a_full_spool_says_so_before_its_bound_and_goes_on_when_it_can() {
    let scratch = Scratch::new();
    let (data, spool) = (scratch.path("node"), scratch.path("spool"));
    let bound = 128 << 20;
    let agent = Agent::start(&spool, 0, &data, &["--spool-size", "128M"]);
    let mut client = Client::new(agent.address);
    let mut kept = 0;
    loop {
        let message = bytes(kept + 1, 500 << 10);
        match client.log(&[("large", &message)]) {
            Some(true) => kept += 1,
            answer => {
                assert_eq!(answer, Some(false));
                break;
            }
        }
    }
    // The smallest spool: room is kept for what is aside, and for a full disk.
    assert!(kept > 80, "{kept} messages of half a megabyte");
    let on_disk = size(&spool);
    assert!(on_disk <= bound, "{on_disk} bytes");
    assert!(on_disk > bound / 3);
    for path in files(&spool) {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    let node = Node::start(&data);
    until(&node, "large", kept);
    while client.log(&[("large", b"behind")]) != Some(true) {}
    until(&node, "large", kept + 1);
    let all = node.json(&["scribe", "status"]);
    assert_eq!(all[0]["messages"], kept + 1);
    assert_eq!(agent.stop(), 0);
    assert!(size(&spool) < bound / 3, "it gives up what was delivered");
    node.stop();
}

/// A machine was cloned with its spool. Nothing of either is lost without a word.
#[test]
fn a_copied_spool_is_named_and_gives_nothing_up() {
    let scratch = Scratch::new();
    let (data, first, second) = (scratch.path("node"), scratch.path("one"), scratch.path("two"));
    let agent = Agent::start(&first, 0, &data, &[]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"both")]), Some(true));
    agent.kill();
    copy(&first, &second);
    let node = Node::start(&data);
    let agent = Agent::start(&first, 0, &data, &[]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"first")]), Some(true));
    assert_eq!(agent.stop(), 0);
    let mut copy = Agent::start(&second, 0, &data, &["--drain", "1"]);
    assert_eq!(Client::new(copy.address).log(&[("c", b"second")]), Some(true));
    while Client::new(copy.address).counter("scribe_overall:copied") == 0 {}
    copy.told.announce("scribe.copied");
    assert!(copy.stop() > 0);
    assert_eq!(lines(&node, "c"), ["both", "first"]);
    node.stop();
}

/// What only one of two copies of a spool had was in its files, and no command sent it.
#[test]
fn what_only_a_copied_spool_has_is_sent_again_once() {
    let scratch = Scratch::new();
    let (data, first, second) = (scratch.path("node"), scratch.path("one"), scratch.path("two"));
    let agent = Agent::start(&first, 0, &data, &[]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"both"), ("d", b"both")]), Some(true));
    agent.kill();
    copy(&first, &second);
    let node = Node::start(&data);
    let agent = Agent::start(&first, 0, &data, &[]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"first")]), Some(true));
    assert_eq!(agent.stop(), 0);
    let mut copy = Agent::start(&second, 0, &data, &["--drain", "1"]);
    let mut client = Client::new(copy.address);
    assert_eq!(client.log(&[("c", b"second"), ("c", b"third"), ("d", b"second")]), Some(true));
    while client.counter("scribe_overall:copied") == 0 {}
    copy.told.announce("scribe.copied");
    let command = |spool: &Path| {
        let mut command = binary();
        command.args(["--json", "--server", &format!("unix:{}", node.socket().display())]);
        command.args(["scribe", "resend", "--spool"]).arg(spool);
        finish(&mut command, b"")
    };
    command(&second).refused(&["another process uses it"]);
    copy.kill();
    command(&scratch.path("none")).refused(&["there is none", "directory of an agent"]);
    for before in [0, 2] {
        let said = command(&second).ok();
        let said: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&said[0]["category"], &said[0]["messages"]), (&"c".into(), &2.into()));
        assert_eq!(said[0]["before"], before);
        // Of this category nobody had sent anything behind what both have.
        assert_eq!((&said[1]["category"], &said[1]["spool"]), (&"d".into(), &Value::Null));
        assert_eq!(lines(&node, "c"), ["both", "first", "second", "third"]);
        assert_eq!(lines(&node, "d"), ["both", "second"]);
    }
    // The other one goes on where it was the first; where it is not any more, it has nothing that is missing.
    let mut agent = Agent::start(&first, 0, &data, &["--drain", "1"]);
    agent.told.announce("scribe.copied");
    assert_eq!(Client::new(agent.address).log(&[("c", b"fourth")]), Some(true));
    until(&node, "c", 5);
    agent.stop();
    let said = command(&first).ok();
    let said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&said[0]["messages"], &said[0]["spool"]), (&0.into(), &Value::Null));
    assert_eq!((&said[1]["category"], &said[1]["messages"]), (&"d".into(), &0.into()));
    assert!(said[1]["spool"].is_string(), "it is a copy there: {said:?}");
    assert_eq!(lines(&node, "c"), ["both", "first", "second", "third", "fourth"]);
    assert_eq!(lines(&node, "d"), ["both", "second"]);
    node.stop();
}

/// The first node's log was elsewhere, and who kept it was dead: the agent asked that node for ever, though
/// another one would have taken everything.
#[test]
fn a_node_that_answers_errors_is_not_the_only_one_that_is_asked() {
    let scratch = Scratch::new();
    let ports = [free_port(), free_port()];
    let host = Node::start_with(&scratch.path("a"), &format!("native_port = {}\n", ports[0]));
    Node::set(&scratch.path("b"), &format!("native_port = {}\n", ports[1]));
    let second = Node::join(&scratch.path("b"), &host, ports[0]);
    host.kill();
    let other = Node::start(&scratch.path("other"));
    let to = format!("unix:{}", other.socket().display());
    let agent = Agent::start(&scratch.path("spool"), 0, &second.data, &["--to", &to]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"by another")]), Some(true));
    until(&other, "c", 1);
    assert_eq!(agent.stop(), 0);
    drop(second);
    other.stop();
}

/// A reader that may read one category heard that it needs the rights to all of them.
#[test]
fn a_reader_needs_the_right_to_its_category_alone() {
    let scratch = Scratch::new();
    let port = free_port();
    let settings = format!("native_port = {port}\nscribe_port = {}\n", free_port());
    let node = Node::start_with(&scratch.path("node"), &settings);
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    assert_eq!(Client::new(address).log(&[("web", b"one"), ("other", b"two")]), Some(true));
    let token = scratch.path("reader.token");
    let token = token.to_str().unwrap();
    node.run(&["token", "create", "reader", "--allow", "log:scribe/web:r", "--out", token]).ok();
    let tail = |category: &str| {
        let mut command = binary();
        command.args(["--server", &format!("127.0.0.1:{port}"), "--token", token]);
        finish(command.args(["scribe", "tail", category, "--no-follow"]), b"")
    };
    assert_eq!(tail("web").ok(), "one\n");
    tail("other").refused(&["other"]);
    node.stop();
}

/// What `scribe aside` shows of an agent's spool (`--spool`) or a node's data (`--data`).
fn aside(of: &str, directory: &Path) -> Vec<Value> {
    let mut command = binary();
    let command = command.args(["--json", "scribe", "aside", of]).arg(directory);
    let lines = finish(command, b"").ok();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What can never be taken got OK, as with Scribe, and was gone: first everywhere, then at nodes' own doors, and
/// whoever wanted to look at it had to end the process that kept it.
#[test]
fn what_can_never_be_taken_is_kept_aside_and_shown_while_more_comes() {
    let scratch = Scratch::new();
    let (data, spool) = (scratch.path("node"), scratch.path("spool"));
    let node = Node::start_with(&data, &settings(free_port()));
    let own_door: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let agent = Agent::start(&spool, 0, &data, &[]);
    let long = vec![b'l'; 600 << 10];
    let entries: [(&str, &[u8]); 4] =
        [("../up", b"a name"), ("c", b"good"), ("c", &long), ("nul\0", b"\xff")];
    let judge = |lines: &[Value]| {
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!((&lines[0]["category"], &lines[0]["text"]), (&"../up".into(), &"a name".into()));
        assert_eq!((&lines[1]["category"], &lines[1]["bytes"]), (&"c".into(), &(600 << 10).into()));
        assert!(lines[1]["why"].as_str().unwrap().contains("too long"));
        assert_eq!((&lines[2]["category"], &lines[2]["hex"]), (&"nul\0".into(), &"ff".into()));
    };
    let places = [("--spool", &spool, agent.address), ("--data", &data, own_door)];
    for (of, directory, address) in places {
        let mut client = Client::new(address);
        assert_eq!(client.log(&entries), Some(true));
        assert_eq!(client.counter("scribe_overall:received bad"), 3);
        // A call behind it waits for what is aside.
        assert_eq!(client.log(&[("c", b"behind")]), Some(true));
        assert_eq!(client.counter("scribe_overall:messages aside"), 3, "{of}");
        judge(&aside(of, directory));
    }
    until(&node, "c", 4);
    let mut text = binary();
    let text = finish(text.args(["scribe", "aside", "--spool"]).arg(&spool), b"").ok();
    assert!(text.contains("../up  a name"), "{text}");
    assert_eq!(agent.stop(), 0);
    let data = node.kill();
    places.iter().for_each(|(of, directory, _)| judge(&aside(of, directory)));
    let node = Node::start(&data);
    let agent = Agent::start(&spool, 0, &data, &[]);
    for address in [agent.address, own_door] {
        assert_eq!(Client::new(address).counter("scribe_overall:messages aside"), 3);
    }
    assert_eq!(agent.stop(), 0);
    node.stop();
    let mut nothing = binary();
    let nothing = nothing.args(["scribe", "aside", "--spool"]).arg(scratch.path("none"));
    finish(nothing, b"").refused(&["nothing was ever kept there", "`scribe_port`"]);
}

/// Who announced a large call had the room for it at once, and sent nothing: others found none.
#[test]
fn calls_that_are_announced_and_never_come_take_no_room() {
    let scratch = Scratch::new();
    let settings = settings(free_port()) + "clients_memory = \"64M\"\n";
    let node = Node::start_with(&scratch.path("node"), &settings);
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let mut silent = Vec::new();
    for i in 0..40 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&((8_u32 << 20) >> (i % 4)).to_be_bytes()).unwrap();
        silent.push(stream);
        // It was read when somebody behind it is answered.
        assert_eq!(Client::new(address).log(&[("c", b"x")]), Some(true));
    }
    let part = vec![b'x'; 500 << 10];
    let large: Vec<(&str, &[u8])> = (0..8).map(|_| ("c", &part[..])).collect();
    assert_eq!(Client::new(address).log(&large), Some(true));
    until(&node, "c", 48);
    node.stop();
}

/// Whoever reads too late hears from where on there is something.
#[test]
fn a_category_is_kept_for_as_long_as_was_asked_for() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("node"), &settings(free_port()));
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let kept = node.json(&["scribe", "keep", "large", "--retain-bytes", "64MiB"]);
    assert_eq!((&kept[0]["retain_bytes"], &kept[0]["retain_ms"]), (&(64 << 20).into(), &0.into()));
    let said = node.run(&["scribe", "keep", "large", "--retain-age", "7d"]).ok();
    assert!(said.contains("kept up to 64 MB, for 7d"), "{said}");
    let mut client = Client::new(address);
    let part = bytes(1, 500 << 10);
    // Segments are of 64 MiB: this is four and a half.
    let mut sent = 600;
    for _ in 0..sent {
        assert_eq!(client.log(&[("large", &part)]), Some(true));
    }
    // They go when two snapshots are behind them, each of which takes an entry.
    let mut asks = node.client();
    let first = loop {
        assert!(sent < 1_000_000, "nothing is given up");
        assert_eq!(client.log(&[("large", b"one more")]), Some(true));
        sent += 1;
        let status = asks.scribe_status().unwrap().remove(0);
        if status.log_bytes <= 3 * (64 << 20) {
            break status.first.0;
        }
    };
    assert!(first > 1);
    let refused = node.run(&["scribe", "tail", "large", "--no-follow", "--from", "1"]);
    refused.refused(&["from entry 1:", "read from "]);
    // The oldest that there is: a round may have given up more meanwhile, as it may in front of any reader.
    let page = asks.scribe_read("large", Index(0), std::time::Duration::ZERO).unwrap();
    assert!(page.batches[0].0.0 >= first);
    drop(asks);
    let data = node.kill();
    let node = Node::start(&data);
    assert_eq!(node.json(&["scribe", "status"])[0]["messages"], sent);
    node.stop();
}

/// A reader that is killed goes on where its output was taken: it may print again what nobody took, and
/// leaves nothing out.
#[test]
fn a_reader_with_a_name_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let node = Node::start_with(&scratch.path("node"), &settings(free_port()));
    let address: SocketAddr = node.ready["scribe"].as_str().unwrap().parse().unwrap();
    let mut client = Client::new(address);
    let read = |more: &[&str]| {
        let words = [&["scribe", "tail", "c", "--no-follow", "--reader", "loader"][..], more];
        let text = node.run(&words.concat()).ok();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(client.log(&[("c", b"one"), ("c", b"two")]), Some(true));
    assert_eq!(read(&[]), ["one", "two"], "one that is new begins with the oldest");
    assert_eq!(read(&[]), [""; 0]);
    assert_eq!(client.log(&[("c", b"three")]), Some(true));
    // One that lives is killed when it has printed something.
    let mut lives = node.command(&["scribe", "tail", "c", "--reader", "loader"]);
    let mut lives = lives.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(lives.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "three\n");
    lives.kill().unwrap();
    lives.wait().unwrap();
    assert_eq!(client.log(&[("c", b"four")]), Some(true));
    let rest = read(&[]);
    assert!(rest == ["four"] || rest == ["three", "four"], "{rest:?}");
    // Others are not in its way, and a kill of the node neither.
    assert_eq!(lines(&node, "c"), ["one", "two", "three", "four"]);
    let node = Node::start(&node.kill());
    let next = node.json(&["scribe", "status"])[0]["readers"].clone();
    let next = (next[0]["reader"].clone(), next[0]["next"].as_u64().unwrap());
    assert_eq!(next.0, "loader");
    let read = |more: &[&str]| {
        let words = [&["scribe", "tail", "c", "--no-follow", "--reader", "loader"][..], more];
        node.run(&words.concat()).ok()
    };
    assert_eq!(read(&[]), "");
    assert_eq!(read(&["--from", "1"]), "one\ntwo\nthree\nfour\n");
    node.run(&["scribe", "tail", "c", "--no-follow", "--reader", "../x"]).refused(&["../x"]);
    node.run(&["scribe", "forget", "c", "loader"]).ok();
    assert_eq!(node.json(&["scribe", "status"])[0]["readers"].as_array().unwrap().len(), 0);
    node.stop();
}

#[test]
fn what_is_asked_wrongly_is_said() {
    let scratch = Scratch::new();
    let spool = scratch.path("spool");
    let run = |more: &[&str]| -> Finished {
        let mut command = binary();
        command.args(["scribe", "agent", "--port", "0", "--spool"]).arg(&spool).args(more);
        finish(&mut command, b"")
    };
    assert_eq!(run(&[]).code, Some(2));
    assert_eq!(run(&["--to", "a:1", "--spool-size", "1M"]).code, Some(2));
    run(&["--to", "nowhere"]).refused(&["nowhere"]);
    let agent = Agent::start(&spool, 0, &scratch.path("node"), &[]);
    run(&["--to", "127.0.0.1:1"]).refused(&["another process uses it"]);
    let taken = agent.address.port().to_string();
    let mut command = binary();
    command.args(["scribe", "agent", "--port", &taken, "--to", "127.0.0.1:1", "--spool"]);
    finish(command.arg(scratch.path("other")), b"").refused(&["listen on", &taken]);
}

fn files(below: &Path) -> Vec<PathBuf> {
    let mut all = vec![below.to_owned()];
    let mut at = 0;
    while at < all.len() {
        if all[at].is_dir() {
            all.extend(std::fs::read_dir(&all[at]).unwrap().map(|entry| entry.unwrap().path()));
        }
        at += 1;
    }
    all
}

fn size(below: &Path) -> u64 {
    let metadata = |path: &PathBuf| std::fs::metadata(path).ok();
    files(below).iter().filter_map(metadata).filter(|file| file.is_file()).map(|f| f.len()).sum()
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.unwrap().success());
}

/// A token that lacked one category held up all others of its agent, for good: a request is denied as a whole.
#[test]
fn a_category_without_a_right_stands_still_alone_and_is_named() {
    let scratch = Scratch::new();
    let port = free_port();
    let node = Node::start_with(&scratch.path("node"), &format!("native_port = {port}\n"));
    let token = |name: &str, rules: &[&str]| {
        let file = scratch.path(name);
        let mut words = vec!["token", "create", name, "--out", file.to_str().unwrap()];
        words.extend(rules.iter().flat_map(|rule| ["--allow", *rule]));
        node.run(&words).ok();
        file.to_str().unwrap().to_owned()
    };
    let some = token("some", &["log:scribe/a:rw", "log:scribe/c:rw"]);
    let (spool, at, to) = (scratch.path("spool"), free_port(), format!("127.0.0.1:{port}"));
    let agent = Agent::start_to(&spool, at, &to, &["--token", &some, "--drain", "1"]);
    let mut client = Client::new(agent.address);
    for line in ["one", "two", "three"] {
        let text = line.as_bytes();
        assert_eq!(client.log(&[("b", text), ("a", text), ("c", text)]), Some(true));
    }
    until(&node, "a", 3);
    until(&node, "c", 3);
    client.until_told("`b` takes nothing");
    assert!(client.details().contains("log:scribe/b:"), "{}", client.details());
    assert_eq!((client.counter("b:refused"), client.counter("a:refused")), (1, 0));
    assert_eq!(client.counter("b:messages in spool"), 3);
    assert!(agent.stop() > 0);
    let agent = Agent::start_to(&spool, at, &to, &["--token", &token("all", &["log:scribe/*:rw"])]);
    until(&node, "b", 3);
    assert_eq!(lines(&node, "b"), ["one", "two", "three"]);
    assert_eq!(agent.stop(), 0);
    node.stop();
}
