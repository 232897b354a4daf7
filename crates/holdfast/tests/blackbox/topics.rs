//! Topics as a product: entries that are sent twice and read once, limits that outlive a kill, what is
//! said of entries that are gone, and the log over HTTP.

use crate::common::{Node, Scratch, free_port};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn texts(text: &str) -> Vec<String> {
    lines(text).iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect()
}

fn json(node: &Node, words: &[&str]) -> String {
    node.run(&[&["--json"], words].concat()).ok()
}

/// What the command line itself does not take.
fn misused(node: &Node, words: &[&str], what: &str) {
    let said = node.run(words);
    assert!(said.code == Some(2) && said.err.contains(what), "{said:?}");
}

/// A writer that did not hear of its append sent it again, and everybody read it twice.
#[test]
fn what_a_writer_sends_twice_is_read_once_wherever_a_reader_begins() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let append = |number: &str, entry: &str| {
        let words = ["log", "append", "--writer", "w", "--number", number, "orders", entry];
        json(&node, &words)
    };
    append("1", "a");
    append("2", "b");
    append("1", "a");
    append("2", "b");
    json(&node, &["log", "append", "orders", "of nobody"]);
    append("3", "c");
    append("3", "c");
    assert_eq!(texts(&json(&node, &["log", "read", "orders"])), ["a", "b", "of nobody", "c"]);
    // From the middle: what was read before is known to be.
    assert_eq!(texts(&json(&node, &["log", "read", "orders", "--from", "3"])), ["of nobody", "c"]);
    assert_eq!(
        texts(&json(&node, &["log", "read", "orders", "--from", "7"])),
        Vec::<String>::new()
    );
    let all = lines(&json(&node, &["log", "read", "orders", "--repeats"]));
    assert_eq!(all.len(), 7);
    assert_eq!(
        (&all[2]["text"], &all[2]["writer"], &all[2]["number"]),
        (&"a".into(), &"w".into(), &1.into())
    );
    assert_eq!(all[4]["writer"], Value::Null);
    // A writer that does not know where it was goes on behind its last number.
    let next = &lines(&json(&node, &["log", "append", "--writer", "w", "orders", "d", "e"]))[0];
    assert_eq!((&next["number"], &next["first"]), (&4.into(), &8.into()));
    let count = ["log", "read", "orders", "-n", "2", "--from", "6"];
    assert_eq!(texts(&json(&node, &count)), ["c", "d"]);
    node.run(&["log", "append", "--writer", "a b", "orders", "x"]).refused(&["a b", "writer"]);
    misused(&node, &["log", "append", "--number", "1", "orders", "x"], "--writer");
    let verified = &lines(&json(&node, &["log", "verify", "orders"]))[0];
    assert_eq!(verified["entries"], 9);
    node.run(&["log", "trim", "orders", "4"]).ok();
    node.run(&["log", "read", "orders", "--from", "2"])
        .refused(&["were trimmed", "first one there is is 4"]);
    node.run(&["log", "verify", "nothing"]).refused(&["nothing"]);
    node.stop();
}

#[test]
fn limits_of_a_topic_are_told_and_outlive_a_kill() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = Node::start(&data);
    let create = ["log", "create", "events", "--retain-bytes", "1GiB", "--retain-age", "7d"];
    assert!(node.run(&create).ok().contains("kept up to 1 GB, for 7d"));
    node.run(&create).refused(&["events", "there is one"]);
    node.run(&["log", "set", "nothing", "--retain-age", "1h"]).refused(&["nothing"]);
    misused(&node, &["log", "set", "events", "--retain-age", "week"], "7d");
    node.run(&["log", "set", "namespace/0", "--retain-age", "1h"]).refused(&["namespace/0"]);
    node.run(&["log", "set", "events", "--retain-age", "1h"]).ok();
    node.run(&["log", "append", "events", "one"]).ok();
    node.kill();
    let node = Node::start(&data);
    let info = &lines(&json(&node, &["log", "info", "events"]))[0];
    assert_eq!(
        (&info["retain_bytes"], &info["retain_ms"]),
        (&(1u64 << 30).into(), &3_600_000.into())
    );
    assert!(node.run(&["log", "info", "events"]).ok().contains("kept up to 1 GB, for 1h"));
    node.run(&["log", "set", "events", "--retain-age", "0", "--retain-bytes", "0"]).ok();
    assert!(node.run(&["log", "info", "events"]).ok().contains("kept until it is trimmed"));
    // No broker keeps it.
    node.run(&["log", "doctor"]).refused(&["a node keeps it", "`holdfast doctor`"]);
    node.stop();
}

struct Http {
    port: u16,
    token: String,
}

impl Http {
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}"
        );
        write!(stream, "{head}\r\n").unwrap();
        // Whoever is refused may be so before its body is there.
        let _ = stream.write_all(body);
        stream
    }

    /// Status and what is behind the head.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let headers = format!("Connection: close\r\nAuthorization: Bearer {}\r\n", self.token);
        answer(self.send(method, path, &headers, body))
    }
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    // Sizes of chunks are lines of their own, which begin with no brace.
    let body = match chunked {
        true => body
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| format!("{line}\n"))
            .collect(),
        false => body.to_owned(),
    };
    (status, body)
}

#[test]
fn the_log_is_written_read_and_followed_over_http() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    std::fs::create_dir_all(&data).unwrap();
    let (native, port) = (free_port(), free_port());
    let settings = format!(
        "native_port = {native}\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nhttp_port = {port}\naudit = \"data\"\n"
    );
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    let node = Node::start(&data);
    let token = |name: &str, rule: &str| {
        node.run(&["token", "create", name, "--allow", rule]).ok().trim().to_owned()
    };
    let http = Http { port, token: token("app", "log:app/*:rw") };
    let (status, said) = http.ask("POST", "/log/app/orders", b"first\nline");
    assert_eq!((status, &lines(&said)[0]["first"]), (200, &1.into()), "{said}");
    let (status, said) = http.ask("POST", "/log/app/orders?lines=1&writer=w&number=1", b"a\nb\n");
    assert_eq!((status, &lines(&said)[0]["last"]), (200, &3.into()), "{said}");
    http.ask("POST", "/log/app/orders?lines=1&writer=w&number=1", b"a\nb\n");
    let (status, said) = http.ask("GET", "/log/app/orders", b"");
    assert_eq!(
        (status, texts(&said)),
        (200, vec!["first\nline".to_owned(), "a".into(), "b".into()])
    );
    let (_, said) = http.ask("GET", "/log/app/orders?from=2&count=1", b"");
    assert_eq!(lines(&said)[0]["index"], 2);
    assert_eq!(http.ask("GET", "/log/app/orders?from=4", b""), (200, String::new()));
    refusals(&http, &token("reader", "log:app/*:r"));
    bodies(&http);
    spellings(&http);
    let revoked = Http { port, token: token("gone", "log:app/*:r") };
    node.run(&["token", "revoke", "gone"]).ok();
    let (status, said) = revoked.ask("GET", "/log/app/orders", b"");
    assert!(status == 401 && said.contains("token create"), "{status} {said}");

    // What was done is in the trail, by whom.
    let trail = node.run(&["audit"]).ok();
    assert!(trail.contains("log append") && trail.contains("token app"), "{trail}");

    // Who follows hears what comes, and goes on where it was cut off.
    let bearer = format!("Authorization: Bearer {}\r\n", http.token);
    let mut followed = http.send("GET", "/log/app/orders?follow=1&from=3", &bearer, b"");
    let mut events = BufReader::new(followed.try_clone().unwrap()).lines().map(Result::unwrap);
    assert!(
        events
            .by_ref()
            .take_while(|line| !line.is_empty())
            .any(|line| line.contains("text/event-stream"))
    );
    assert_eq!(events.find(|line| line.starts_with("id:")).unwrap(), "id: 3");
    http.ask("POST", "/log/app/orders", b"later");
    assert_eq!(events.find(|line| line.starts_with("id:")).unwrap(), "id: 6");
    assert!(events.find(|line| line.starts_with("data:")).unwrap().contains("later"));
    followed.flush().unwrap();
    drop(followed);
    let resumed = format!("{bearer}Last-Event-ID: 5\r\n");
    let resumed = http.send("GET", "/log/app/orders?follow=1", &resumed, b"");
    let mut events = BufReader::new(resumed).lines().map(Result::unwrap);
    assert_eq!(events.find(|line| line.starts_with("id:")).unwrap(), "id: 6");
    drop(events);

    // As people do it.
    let url = format!("http://127.0.0.1:{port}/log/app/orders?from=6");
    let curl = Command::new("curl")
        .args(["-sS", "-H", &format!("Authorization: Bearer {}", http.token), &url])
        .stdin(Stdio::null())
        .output();
    match curl {
        Ok(said) => assert_eq!(texts(&String::from_utf8(said.stdout).unwrap()), ["later"]),
        Err(_) => eprintln!("curl is not here: its step was skipped"),
    }
    node.stop();
}

/// Bodies at the border of what one append takes; what is refused makes no topic.
fn bodies(http: &Http) {
    let largest = (1 << 20) - 1024 - 4;
    for length in [largest + 1, largest + 4, 1 << 20, 3 << 20] {
        let (status, said) = http.ask("POST", "/log/app/large", &vec![b'x'; length]);
        assert!(status == 413 && said.contains("send less"), "{length}: {status} {said}");
    }
    // Each line counts, also an empty one.
    let (status, said) = http.ask("POST", "/log/app/large?lines=1", &vec![b'\n'; 1 << 19]);
    assert!(status == 413 && said.contains("send less"), "{status} {said}");
    let (status, said) = http.ask("POST", "/log/app/large?lines=1", b"");
    assert!(status == 400 && said.contains("no entries"), "{status} {said}");
    // Whatever was no 0 was taken for yes.
    let (status, said) = http.ask("POST", "/log/app/large?lines=2", b"a\n");
    assert!(status == 400 && said.contains("`lines` is `2`: give 1 or 0"), "{status} {said}");
    let (status, said) = http.ask("GET", "/log/app/large?follow=yes", b"");
    assert!(status == 400 && said.contains("`follow` is `yes`"), "{status} {said}");
    let mut half = TcpStream::connect(("127.0.0.1", http.port)).unwrap();
    let head = "POST /log/app/large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let bearer = format!("Authorization: Bearer {}\r\n", http.token);
    write!(half, "{head}{bearer}Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\nwhat\r\n").unwrap();
    let (status, said) = answer(half);
    assert!(status == 400 && said.contains("did not come whole"), "{status} {said}");
    assert_eq!(http.ask("GET", "/log/app/large", b"").0, 404, "what was refused made a topic");

    let (status, said) = http.ask("POST", "/log/app/large", &vec![b'x'; largest]);
    assert_eq!(status, 200, "{said}");
    let (status, said) = http.ask("GET", "/log/app/large", b"");
    assert_eq!((status, texts(&said)[0].len()), (200, largest));
}

/// Names, values and schemes as browsers and libraries write them.
fn spellings(http: &Http) {
    let (_, said) = http.ask("GET", "/log/app%2Forders?from=%32&count=1", b"");
    assert_eq!(lines(&said)[0]["index"], 2);
    assert_eq!(http.ask("GET", "/log/app/orders?count=0", b""), (200, String::new()));
    let headers = format!("Connection: close\r\nauthorization: bearer {}\r\n", http.token);
    assert_eq!(answer(http.send("GET", "/log/app/orders?count=1", &headers, b"")).0, 200);
}

/// Each with its status and a sentence.
fn refusals(http: &Http, reads: &str) {
    let refused = |method: &str, path: &str, status: u16, what: &str| {
        let (got, said) = http.ask(method, path, b"x");
        assert!(got == status && said.contains(what), "{method} {path}: {got} {said}");
    };
    refused("GET", "/log/app/nothing", 404, "nothing");
    refused("GET", "/log/other", 403, "log `other`");
    refused("POST", "/log/other", 403, "log `other`");
    refused("GET", "/log/cluster", 403, "cluster");
    refused("GET", "/log/app/orders?from=x", 400, "`from`");
    refused("GET", "/log/app/orders?form=1", 400, "`form`");
    refused("POST", "/log/app/orders?writer=w", 400, "together");
    refused("POST", "/log/app/orders?writer=+&number=1", 400, "writer");
    let largest = "/log/app/orders?writer=w&number=18446744073709551615";
    refused("POST", largest, 400, "smaller ones");
    refused("POST", "/log/app/UPPER", 400, "UPPER");
    let as_reader = Http { port: http.port, token: reads.to_owned() };
    assert_eq!(as_reader.ask("GET", "/log/app/orders?count=1", b"").0, 200);
    assert_eq!(as_reader.ask("POST", "/log/app/orders", b"x").0, 403);
    for wrong in ["", "Authorization: Bearer x\r\n"] {
        let headers = format!("Connection: close\r\n{wrong}");
        let (status, said) = answer(http.send("GET", "/log/app/orders", &headers, b""));
        assert!(status == 401 && said.contains("token create"), "{status} {said}");
    }
    let changed = format!("{}0", &http.token[..http.token.len() - 1]);
    let changed = Http { port: http.port, token: changed };
    let (status, said) = changed.ask("GET", "/log/app/orders", b"");
    assert!(status == 401 || http.token.ends_with('0'), "{status} {said}");
}
