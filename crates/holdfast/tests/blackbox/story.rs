//! What README promises, command by command.

use crate::common::{Node, Scratch, bytes, finish};
use std::fs;
use std::io::Read;

#[test]
fn the_first_commands_of_a_new_user_work() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let readme = scratch.path("README.md");
    fs::write(&readme, "hello\n").unwrap();
    let readme = readme.to_str().unwrap();

    let put = node.run(&["fs", "put", readme, "/readme"]).ok();
    assert!(put.starts_with("put 1 files"), "{put}");
    assert_eq!(node.run(&["fs", "ls"]).ok(), "readme\n");
    let long = node.run(&["fs", "ls", "-l", "/"]).ok();
    assert!(
        long.starts_with("-rw") && long.contains(" 6 ") && long.ends_with(" readme\n"),
        "{long}"
    );
    assert_eq!(node.run(&["fs", "cat", "/readme"]).ok(), "hello\n");
    assert_eq!(node.run(&["fs", "cat", "/readme", "/readme"]).ok(), "hello\nhello\n");
    let stat = node.run(&["fs", "stat", "/readme"]).ok();
    assert!(stat.starts_with("/readme\n") && stat.contains("6 bytes"), "{stat}");

    assert_eq!(node.run(&["fs", "mkdir", "-p", "/a/b"]).ok(), "");
    // Into a directory that is there, as mv does; and to a name that is not.
    assert_eq!(node.run(&["fs", "mv", "/readme", "/a/b"]).ok(), "");
    assert_eq!(node.run(&["fs", "mv", "/a/b/readme", "/a/b/r"]).ok(), "");
    assert_eq!(node.run(&["fs", "ln", "b/r", "/a/link"]).ok(), "");
    assert_eq!(node.run(&["fs", "cat", "/a/link"]).ok(), "hello\n");
    assert_eq!(node.run(&["fs", "ls", "-r", "/a"]).ok(), "b\nlink\nb/r\n");
    let du = node.run(&["fs", "du", "/a"]).ok();
    assert!(du.contains("6 B") || du.contains("6 bytes"), "{du}");

    node.run(&["fs", "rm", "/a"]).refused(&["/a", "-r"]);
    assert_eq!(node.run(&["fs", "rm", "/a/link"]).ok(), "");
    assert_eq!(node.run(&["fs", "cat", "/a/b/r"]).ok(), "hello\n", "a link's target stays");
    assert_eq!(node.run(&["fs", "rm", "-r", "/a"]).ok(), "");
    assert_eq!(node.run(&["fs", "rm", "-f", "/a"]).ok(), "");
    assert_eq!(node.run(&["fs", "ls"]).ok(), "");
    node.until("the deleted names are freed", |status| status.files == 0);
    let status = node.run(&["status"]).ok();
    assert!(status.contains("0 files") && status.contains("store disk"), "{status}");
    assert!(node.run(&["doctor"]).ok().ends_with("is well\n"));
    node.stop();
}

#[test]
fn every_answer_can_be_read_by_a_program() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let local = scratch.path("f");
    fs::write(&local, "12345").unwrap();
    let put = node.json(&["fs", "put", local.to_str().unwrap(), "/f"]);
    assert_eq!((&put[0]["files"], &put[0]["bytes"]), (&1.into(), &5.into()));
    node.run(&["fs", "mkdir", "/d"]).ok();
    node.run(&["fs", "ln", "nowhere", "/odd\n\"name"]).ok();

    let names: Vec<_> = node.json(&["fs", "ls", "/"]).iter().map(|o| o["path"].clone()).collect();
    assert_eq!(names, ["/d", "/f", "/odd\n\"name"]);
    let stat = &node.json(&["fs", "stat", "/f"])[0];
    assert_eq!((&stat["size"], &stat["kind"]), (&5.into(), &"file".into()));
    assert_eq!(node.json(&["fs", "stat", "/odd\n\"name"])[0]["target"], "nowhere");
    let du = &node.json(&["fs", "du"])[0];
    assert_eq!((&du["bytes"], &du["directories"]), (&5.into(), &2.into()));
    let status = &node.json(&["status"])[0];
    assert_eq!(status["stores"][0]["tier"], "disk");
    assert!(status["stores"][0]["free_bytes"].as_u64().unwrap() > 0);
    assert_eq!(node.json(&["doctor"])[0]["findings"], serde_json::json!([]));
    assert!(node.json(&["fs", "unclosed"]).is_empty());
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let mut child = super::common::binary()
        .args(["sort", "gen", "--records", "1000000", "--ascii", "-"])
        .spawn()
        .unwrap();
    let mut start = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()),
        (Some(0), "")
    );
}

#[test]
fn pipes_go_in_and_out() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    for (i, len) in [0, 1, 70_000, 3 << 20].into_iter().enumerate() {
        let (content, name) = (bytes(len as u64, len), format!("/piped-{i}"));
        let put = finish(&mut node.command(&["fs", "put", "-", &name]), &content);
        assert_eq!(put.code, Some(0), "{}", put.err);
        let got = node.run(&["fs", "get", &name, "-"]);
        assert_eq!((got.code, got.err.as_str()), (Some(0), ""));
        assert!(got.out == content, "{len} bytes came back as {}", got.out.len());
    }
}
