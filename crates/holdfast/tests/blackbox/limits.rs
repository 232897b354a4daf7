//! Limits of clients from outside: who takes too much is told so, and named to whoever asks; others
//! go on, and a restart has forgotten it.

use crate::common::{Node, Scratch, attempts, binary, bytes, finish, free_port};
use crate::photos::{client, put, send};
use crate::s3::credentials;
use crate::{http, s3};
use holdfast_s3::Request;
use std::fs;
use std::process::Command;

const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
    "Action":"s3:GetObject","Resource":"arn:aws:s3:::open/*"}]}"#;

fn read(node: &Node, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    s3::raw(&credentials(&node.data).0, request.as_bytes())
}

#[test]
fn a_reader_who_took_too_much_is_asked_to_slow_down_and_others_go_on() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    // An hour's worth in one answer: no machine is so slow that it is paid before it is asked for.
    let settings =
        format!("anonymous_bytes = \"100\"\nclient_connections = 7\nhttp_port = {port}\n");
    let node = s3::start_with(&data, &settings);
    let mut admin = client(&data);
    put(&mut admin, "/open", b"");
    let policy = Request { body: POLICY.as_bytes(), ..Request::new("PUT", "/open") };
    send(&mut admin, policy.with("policy", ""));
    let object = bytes(1, 400_000);
    put(&mut admin, "/open/large", &object);

    assert!(read(&node, "/open/large").starts_with("HTTP/1.1 200 "));
    let refused = read(&node, "/open/large");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("<Code>SlowDown</Code>"), "{refused}");
    assert!(refused.contains("`anonymous_bytes`, 100 B/s"), "{refused}");
    let after = refused.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((1000..=4100).contains(&after.trim().parse::<u64>().unwrap()), "{after}");
    assert!(admin.send(&Request::new("GET", "/open/large")).unwrap().body == object);

    let slowed = &node.json(&["status"])[0]["slowed"][0];
    assert_eq!(
        (slowed["client"].as_str(), slowed["limit"].as_str(), slowed["allowed"].as_u64()),
        (Some("readers at 127.0.0.1"), Some("anonymous_bytes"), Some(100))
    );
    assert!((1..=4_100_000).contains(&slowed["left_ms"].as_u64().unwrap()), "{slowed}");
    let said = node.run(&["status"]).ok();
    let line = said.lines().find(|line| line.starts_with("readers at 127.0.0.1: slowed in "));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("by `anonymous_bytes`, 100 B/s; for "), "{line}");
    let health = http::get(port, "/health", "");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    assert!(health.contains("ok\nslowed: clients 1, for "), "{health}");
    assert!(!health.contains("127.0.0.1"), "it is for everybody: {health}");
    let token = std::fs::read_to_string(data.join("http-token")).unwrap();
    let known = format!("Authorization: Bearer {}\r\n", token.trim());
    let metrics = http::get(port, "/metrics", &known);
    let count = "holdfast_clients_slowed_total{limit=\"anonymous_bytes\"} 1\n";
    assert!(metrics.contains(count), "{metrics}");
    let left = "holdfast_client_slowed_left_seconds{client=\"readers at 127.0.0.1\",limit=\"anonymous_bytes\"} ";
    let left = metrics.lines().find_map(|line| line.strip_prefix(left)).expect("it waits still");
    assert!((1.0..=4100.0).contains(&left.parse::<f64>().unwrap()), "{left}");

    let data = node.stop();
    let node = Node::start(&data);
    assert!(read(&node, "/open/large").starts_with("HTTP/1.1 200 "));
    node.stop();
}

#[test]
fn a_client_with_a_token_that_took_too_much_waits_and_another_does_not() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    let node = Node::start_with(&data, &format!("native_port = {port}\nclient_bytes = \"20k\"\n"));
    let large = scratch.path("large");
    fs::write(&large, bytes(1, 900_000)).unwrap();
    let by = |name: &str, words: &[&str]| -> Command {
        let token = scratch.path(name);
        if !token.exists() {
            let create = ["token", "create", name, "--allow", "fs:/:rw", "--out"];
            node.run(&[&create[..], &[token.to_str().unwrap()]].concat()).ok();
        }
        let mut command = binary();
        command.args(["--server", &format!("127.0.0.1:{port}"), "--token"]).arg(token).args(words);
        command
    };
    // Three quarters of a minute of what it may take; neither is waited for.
    let put = ["fs", "put", large.to_str().unwrap(), "/large"];
    let mut noisy = vec![by("noisy", &put).spawn().unwrap()];
    let is_there = || node.run(&["fs", "cat", "/large"]).code == Some(0);
    assert!(attempts().any(|()| is_there()), "it was never put");
    noisy.push(by("noisy", &["fs", "ls", "/"]).spawn().unwrap());
    let slowed = || node.json(&["status"])[0]["slowed"][0]["client"].as_str().map(str::to_owned);
    let named = attempts().find_map(|()| slowed()).unwrap();
    assert_eq!(named, "client `noisy`");
    assert!(finish(&mut by("quiet", &["fs", "ls", "/"]), b"").ok().contains("large"));
    for mut child in noisy {
        let _ = child.kill();
        child.wait().unwrap();
    }
    node.stop();
}
