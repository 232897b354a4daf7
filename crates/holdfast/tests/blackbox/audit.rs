//! The audit trail as whoever reviews a cluster meets it: everything that changes rights is in it, by
//! whom and from where; nobody changes it, few read it, and it holds no secret.

use crate::cluster_input::Joined;
use crate::common::{Finished, Node, Scratch, binary, finish, free_port};
use crate::photos::client;
use crate::s3::{blob, credentials, raw};
use holdfast_s3::Request;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// `who: operation what: outcome` of each line; of who the kind alone.
fn told(lines: &[Value]) -> Vec<String> {
    let field = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let tell = |line: &Value| {
        let who = field(line, "who");
        let kind = who.split(' ').next().unwrap().to_owned();
        let rest = ["operation", "what", "outcome"].map(|name| field(line, name));
        format!("{kind}: {}", rest.join(" | "))
    };
    lines.iter().map(tell).collect()
}

fn of_s3(data: &Path, words: &[&str]) -> Finished {
    finish(binary().args(["--json", "s3", "--data"]).arg(data).args(words), b"")
}

/// Files and topics are left out unless they are asked for; rights and nodes never are.
/// Of whoever tries to change the trail itself.
const TRIED: [&str; 5] = [
    "token: log append | audit-trail: 1 entries, 1 bytes | denied",
    "token: log trim | audit-trail before 9 | denied",
    "token: log append | audit-trail: 1 entries, 1 bytes | denied",
    "owner: log append | audit-trail: 1 entries, 1 bytes | denied",
    "owner: log trim | audit-trail before 9 | denied",
];

#[test]
fn what_changes_rights_is_written_down_with_who_and_where_and_no_secret() {
    let scratch = Scratch::new();
    let (data, port, s3) = (scratch.path("data"), free_port(), free_port());
    let node = Node::start_with(&data, &format!("native_port = {port}\ns3_port = {s3}\n"));
    let server = format!("127.0.0.1:{port}");
    assert_eq!(node.run(&["audit"]).ok().lines().count(), 1, "there is no line yet");
    let file = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let (app, auditor, all) = (file("app"), file("auditor"), file("all"));
    let create = |name: &str, rule: &str, out: &str| {
        node.run(&["token", "create", name, "--allow", rule, "--out", out]).ok();
    };
    create("app", "fs:/app:rw", &app);
    create("auditor", "audit:r", &auditor);
    create("all", "log:*:rw", &all);
    node.run(&["fs", "mkdir", "/app"]).ok();
    let by = |token: &str, words: &[&str]| {
        finish(binary().args(["--server", &server, "--token", token]).args(words), b"")
    };
    by(&app, &["token", "create", "friend", "--allow", "fs:/:rw"]).refused(&["admin:rw"]);
    node.run(&["token", "create", "b", "--allow", "audit:rw"]).refused(&["nobody changes"]);
    blob(&data, &["mb", "photos"], b"").ok();
    blob(&data, &["put", data.join("holdfast.toml").to_str().unwrap(), "photos/cat"], b"").ok();
    let key = file("key");
    of_s3(&data, &["user", "add", "eve", "--to", &key]).ok();
    node.run(&["token", "revoke", "app"]).ok();

    let lines = node.json(&["audit"]);
    let made: Value = serde_json::from_str(&fs::read_to_string(&key).unwrap()).unwrap();
    let made = made["access_key"].as_str().unwrap();
    let made = format!(
        "key: s3 add-key | {{\"admin\":false,\"buckets\":[],\"read_only\":false,\"user\":\"eve\"}}: {made} | done"
    );
    let expected = [
        "owner: token create | `app` for 2592000 s: fs:/app:rw | done",
        "owner: token create | `auditor` for 2592000 s: audit:r | done",
        "owner: token create | `all` for 2592000 s: log:*:rw | done",
        "token: token create | `friend` for 2592000 s: fs:/:rw | denied",
        "owner: token create | `b` for 2592000 s: audit:rw | invalid",
        "key: s3 CreateBucket | photos | done",
        &made,
        "owner: token revoke | `app` | done",
    ];
    assert_eq!(told(&lines), expected);
    assert_eq!(lines[0]["address"], "unix");
    assert!(lines[3]["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", lines[3]);
    assert!(lines[3]["who"].as_str().unwrap().starts_with("token app "), "{}", lines[3]);
    assert_eq!(lines[0]["node"], 1);

    // Only its own right reads it; a client that may use every topic may not; and nobody writes it.
    assert_eq!(by(&auditor, &["audit"]).ok().lines().count(), expected.len());
    by(&all, &["audit"]).refused(&["audit:r"]);
    by(&all, &["log", "append", "audit-trail", "x"]).refused(&["audit"]);
    by(&all, &["log", "trim", "audit-trail", "9"]).refused(&["audit"]);
    by(&auditor, &["log", "append", "audit-trail", "x"]).refused(&["nobody changes"]);
    by(&auditor, &["fs", "ls", "/"]).refused(&["fs:/:r"]);
    for words in [["log", "append", "audit-trail", "x"], ["log", "trim", "audit-trail", "9"]] {
        node.run(&words).refused(&["nobody changes"]);
    }
    let mut secret = binary();
    secret.args(["--server", &server, "--secret"]).arg(data.join("secret")).arg("audit");
    finish(&mut secret, b"").refused(&["audit:r"]);

    // What came before a restart stays, and no secret is in it.
    let text = node.run(&["audit", "-n", "0"]).ok();
    let secrets = [&app, &auditor, &all].map(|file| fs::read_to_string(file).unwrap());
    let keys = fs::read_to_string(&key).unwrap();
    let keys: Value = serde_json::from_str(&keys).unwrap();
    let secret_keys = [credentials(&data).2, keys["secret_key"].as_str().unwrap().to_owned()];
    for secret in secrets.iter().chain(&secret_keys) {
        let key = secret.trim_end().rsplit('.').next().unwrap();
        assert!(key.len() > 20 && !text.contains(key), "{text}");
    }
    let node = Node::start(&node.kill());
    assert_eq!(told(&node.json(&["audit"])), [&expected[..], &TRIED].concat());
    assert_eq!(node.json(&["audit", "-n", "1"]).len(), 1);
    node.stop();
}

/// Who reviews data asks for it, and gets every change by its name.
#[test]
fn changes_of_data_are_written_down_where_that_is_asked_for_and_none_where_nothing_is() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::write(&source, "text").unwrap();
    let source = source.to_str().unwrap();
    for (audit, expected) in [
        (
            "data",
            &[
                "owner: fs mkdir | /d | done",
                "owner: fs put | /d/a | done",
                "owner: fs put | /d/a | exists",
                "owner: fs mv | /d/a to /d/b | done",
                "owner: fs rm | /d/b | done",
                "owner: fs rm | /d/b | not-found",
                "owner: log append | orders: 1 entries, 3 bytes | done",
                "key: s3 CreateBucket | box | done",
                "key: s3 PutObject | box/cat | done",
                "key: s3 DeleteObject | box/cat | done",
                "key: s3 PutBucketPolicy | box | done",
                "key: s3 PutObject | box/cow | done",
                "key: s3 DeleteObjects | box: 1 of 2 keys, not `cow` (PreconditionFailed), `dog` | done",
                "key: s3 DeleteObjects | box: 0 of 1 keys, not `cow` (PreconditionFailed) | invalid",
                "anonymous: s3 PostObject | box/form | done",
            ][..],
        ),
        ("off", &[]),
    ] {
        let data = scratch.path(audit);
        let settings = format!("audit = \"{audit}\"\ns3_port = {}\n", free_port());
        let node = Node::start_with(&data, &settings);
        node.run(&["fs", "mkdir", "/d"]).ok();
        node.run(&["fs", "put", source, "/d/a"]).ok();
        node.run(&["fs", "put", source, "/d/a"]).refused(&["/d/a"]);
        node.run(&["fs", "mv", "/d/a", "/d/b"]).ok();
        node.run(&["fs", "rm", "/d/b"]).ok();
        node.run(&["fs", "rm", "/d/b"]).refused(&["/d/b"]);
        node.run(&["log", "append", "orders", "one"]).ok();
        blob(&data, &["mb", "box"], b"").ok();
        blob(&data, &["put", source, "box/cat"], b"").ok();
        blob(&data, &["rm", "box/cat"], b"").ok();
        change_by_bodies(&data);
        let lines = node.json(&["audit"]);
        match audit {
            "off" => assert_eq!(lines[0]["lines"], 0),
            _ => assert_eq!(told(&lines), expected),
        }
        node.stop();
    }
}

/// Requests whose bodies say what they are about: keys to remove, and a form.
fn change_by_bodies(data: &Path) {
    let mut client = client(data);
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::box/*"}]}"#;
    let mut order = |request: Request<'_>, body: &str| {
        let request = Request { body: body.as_bytes(), ..request };
        let done = client.send(&request).unwrap();
        assert!(done.status < 300, "{}", done.text());
    };
    order(Request::new("PUT", "/box").with("policy", ""), policy);
    order(Request::new("PUT", "/box/cow"), "moo");
    let wrong = "<Object><Key>cow</Key><ETag>another</ETag></Object>";
    for good in ["<Object><Key>dog</Key></Object>", ""] {
        let body = format!("<Delete>{wrong}{good}</Delete>");
        order(Request::new("POST", "/box").with("delete", ""), &body);
    }
    let form = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nform\r\n--b\r\n\
                Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\ntext\r\n--b--\r\n";
    let head = format!(
        "POST /box HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n",
        form.len()
    );
    let (endpoint, ..) = credentials(data);
    let said = raw(&endpoint, (head + form).as_bytes());
    assert!(said.starts_with("HTTP/1.1 204"), "{said}");
}

/// A client asks the node that it is connected to: that one writes the line, into the one trail of
/// the cluster.
#[test]
fn what_is_done_through_a_member_is_in_the_trail_of_the_logs_host_and_read_through_any() {
    let scratch = Scratch::new();
    let port = free_port();
    let host = Node::start_with(&scratch.path("host"), &format!("native_port = {port}\n"));
    let data = scratch.path("member");
    fs::create_dir_all(&data).unwrap();
    let settings = format!(
        "native_port = {}\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\n",
        free_port()
    );
    fs::write(data.join("holdfast.toml"), settings).unwrap();
    let secret = host.data.join("secret");
    let _member = Joined::start(&data, &format!("127.0.0.1:{port}"), &secret).unwrap();
    let socket = format!("unix:{}", data.join("holdfast.sock").display());
    let by_member = |words: &[&str]| finish(binary().args(["--server", &socket]).args(words), b"");
    by_member(&["token", "create", "app", "--allow", "fs:/:r"]).ok();
    host.run(&["token", "revoke", "app"]).ok();
    let expected = [
        "owner: token create | `app` for 2592000 s: fs:/:r | done",
        "owner: token revoke | `app` | done",
    ];
    let lines = host.json(&["audit"]);
    assert_eq!(told(&lines), expected);
    assert_eq!((lines[0]["node"].as_u64(), lines[1]["node"].as_u64()), (Some(2), Some(1)));
    let read = by_member(&["--json", "audit"]).ok();
    assert_eq!(read.lines().count(), 2, "{read}");
    by_member(&["log", "append", "audit-trail", "x"]).refused(&["nobody changes"]);
}
