//! Clients with tokens, as people use them: made, used by commands over TCP, listed, revoked, refused
//! with a sentence; and the token stands nowhere but where its holder put it.

use crate::common::{Finished, Node, Scratch, binary, finish, free_port};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every file at and below a place.
fn files(place: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.symlink_metadata().unwrap() {
            kind if kind.is_dir() => files(&entry, found),
            kind if kind.is_file() => found.push(entry),
            _ => {}
        }
    }
}

/// Whether a file holds these bytes.
fn holds(file: &Path, bytes: &[u8]) -> bool {
    fs::read(file).unwrap().windows(bytes.len()).any(|window| window == bytes)
}

/// Open to others, cut, or with another byte.
fn what_is_no_token_is_refused(
    scratch: &Scratch,
    text: &str,
    by: &dyn Fn(&Path, &[&str]) -> Finished,
) {
    let bad = scratch.path("bad.token");
    fs::write(&bad, text).unwrap();
    for mode in [0o644, 0o620, 0o602] {
        fs::set_permissions(&bad, fs::Permissions::from_mode(mode)).unwrap();
        by(&bad, &["fs", "ls", "/app"]).refused(&["bad.token", "chmod 600"]);
    }
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&bad, &text[..text.len() - 9]).unwrap();
    by(&bad, &["fs", "ls", "/app"]).refused(&["bad.token", "not all of it"]);
    let last = text.trim_end().chars().last().unwrap();
    let other = if last == '0' { '1' } else { '0' };
    fs::write(&bad, format!("{}{other}", &text.trim_end()[..text.trim_end().len() - 1])).unwrap();
    by(&bad, &["fs", "ls", "/app"]).refused(&["was changed", "--token"]);
}

/// The token was made first, and had to be revoked by who was told that it could not be written.
#[test]
fn no_token_is_made_that_cannot_be_written_and_none_is_waited_for() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let nowhere = scratch.path("none/app.token");
    let create = ["token", "create", "app", "--allow", "fs:/:r", "--out"];
    let nowhere = nowhere.to_str().unwrap();
    node.run(&[&create[..], &[nowhere]].concat()).refused(&[nowhere, "write a token"]);
    assert_eq!(node.run(&["token", "ls"]).ok(), "");
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg("-m").arg("600").arg(&pipe).status().unwrap().success());
    let mut ask = binary();
    ask.args(["--server", "127.0.0.1:1", "--token"]).arg(&pipe).args(["fs", "ls", "/"]);
    finish(&mut ask, b"").refused(&[pipe.to_str().unwrap(), "no regular file"]);
    node.stop();
}

#[test]
fn a_client_with_a_token_does_what_its_rules_say_until_it_is_revoked() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let port = free_port();
    let settings = format!("native_port = {port}\nsnapshot_entries = 8\n");
    let node = Node::start_with(&data, &settings);
    let server = format!("127.0.0.1:{port}");
    let token = scratch.path("app.token");
    let source = scratch.path("source");
    fs::write(&source, "for the client").unwrap();
    let source = source.to_str().unwrap();
    for directory in ["/app", "/other"] {
        node.run(&["fs", "mkdir", directory]).ok();
        node.run(&["fs", "put", source, &format!("{directory}/file")]).ok();
    }
    let create = ["token", "create", "app", "--allow", "fs:/app:rw", "--allow", "log:app/*:rw"];
    let token_path = token.to_str().unwrap();
    let made = node.run(&[&create[..], &["--ttl", "2h", "--out", token_path]].concat()).ok();
    assert!(made.contains(token_path) && !made.contains("hft1"), "{made}");
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&token).unwrap();

    let by = |file: &Path, words: &[&str]| {
        let mut command = binary();
        command.args(["--server", &server, "--token"]).arg(file).args(words);
        finish(&mut command, b"an entry\n")
    };
    let app = |words: &[&str]| by(&token, words);
    assert_eq!(app(&["fs", "cat", "/app/file"]).ok(), "for the client");
    app(&["fs", "put", source, "/app/new"]).ok();
    app(&["log", "append", "app/1", "said"]).ok();
    assert!(app(&["log", "read", "app/1"]).ok().contains("said"));
    app(&["fs", "cat", "/other/file"]).refused(&["/other/file", "fs:/other/file:r"]);
    app(&["fs", "mkdir", "/other/new"]).refused(&["fs:/other/new:rw"]);
    app(&["fs", "ls", "/"]).refused(&["fs:/:r"]);
    app(&["log", "read", "orders"]).refused(&["log:orders:r"]);
    app(&["status"]).refused(&["admin:r"]);
    app(&["token", "ls"]).refused(&["admin:r"]);
    app(&["token", "create", "friend", "--allow", "fs:/:rw"]).refused(&["admin:rw"]);
    // Beside a secret that opens everything: who has a token is its client.
    let mut both = binary();
    both.args(["--server", &server, "--token", token_path, "--secret"]).arg(data.join("secret"));
    finish(both.args(["fs", "ls", "/"]), b"").refused(&["fs:/:r"]);

    let listed = &node.json(&["token", "ls"])[0];
    assert_eq!(
        (listed["name"].as_str(), listed["allow"][0].as_str()),
        (Some("app"), Some("fs:/app:rw"))
    );
    assert!(listed["used_s"].as_i64().unwrap() > 0 && listed.get("token").is_none(), "{listed}");
    node.run(&["token", "create", "app", "--allow", "fs:/:r"])
        .refused(&["`app` has one", "revoke"]);
    node.run(&["token", "create", "b", "--allow", "files:/:r"]).refused(&["files:/:r", "fs:/PATH"]);
    node.run(&["token", "create", "a/b", "--allow", "fs:/:r"]).refused(&["a/b"]);
    node.run(&["token", "create", "b", "--allow", "fs:/:r", "--out", token_path])
        .refused(&["exists"]);
    node.run(&["token", "revoke", "b"]).refused(&["`b`", "token ls"]);

    what_is_no_token_is_refused(&scratch, &text, &by);

    // What it was made for outlives a restart.
    let data = node.stop();
    let key = text.trim_end().rsplit_once('.').unwrap().1.to_owned();
    let mut kept = Vec::new();
    files(&data, &mut kept);
    let telling: Vec<&PathBuf> = kept.iter().filter(|file| holds(file, key.as_bytes())).collect();
    assert!(kept.len() > 5 && telling.is_empty(), "the token's key is in {telling:?}");
    let node = Node::start(&data);
    assert_eq!(app(&["fs", "cat", "/app/file"]).ok(), "for the client");
    node.run(&["token", "revoke", "app"]).ok();
    app(&["fs", "cat", "/app/file"]).refused(&["`app`", "revoked"]);
    assert!(node.json(&["token", "ls"]).is_empty());
    // A new token of the name does not make the old one good.
    let new = node.run(&create).ok();
    app(&["fs", "cat", "/app/file"]).refused(&["revoked"]);
    fs::write(&token, &new).unwrap();
    assert_eq!(app(&["fs", "cat", "/app/file"]).ok(), "for the client");
    node.stop();
}
