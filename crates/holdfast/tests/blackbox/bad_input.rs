//! What users get wrong: exit status 1, one sentence that names the path, and nothing changed.

use crate::common::{Finished, Node, Scratch, binary, finish};
use holdfast_base::Kind;
use holdfast_client::NewFile;
use std::fs;

/// Everything that a listing shows, to see that nothing changed.
fn picture(node: &Node) -> String {
    node.run(&["--json", "fs", "ls", "-r", "/"]).ok()
}

#[test]
fn refusals_name_the_path_say_why_and_change_nothing() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let local = scratch.path("local");
    fs::write(&local, "bytes").unwrap();
    let l = local.to_str().unwrap();
    node.run(&["fs", "mkdir", "-p", "/d/sub", "/e"]).ok();
    node.run(&["fs", "put", l, "/f"]).ok();
    node.run(&["fs", "put", l, "/d/g"]).ok();
    let before = picture(&node);
    let long_path = format!("/{}", "p/".repeat(2048));
    let long_name = format!("/{}", "n".repeat(256));
    let missing = scratch.path("missing");
    let missing = missing.to_str().unwrap();
    let no_dir = scratch.path("missing/out");
    let no_dir = no_dir.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["put", l, "/a/../b"], &["/a/../b", "`..`", "write the path out"]),
        (&["put", l, "/a//b"], &["/a//b", "doubled"]),
        (&["put", l, "relative"], &["`relative`", "start it with `/`"]),
        (&["ls", "relative"], &["`relative`", "start it with `/`"]),
        (&["put", l, &long_path], &["4097 bytes", "shorten it"]),
        (&["mkdir", &long_name], &["256 bytes", "shorten it"]),
        (&["put", l, "/f"], &["`/f`", "exists", "-f"]),
        (&["mkdir", "/d"], &["`/d`", "exists"]),
        (&["ln", "x", "/f"], &["`/f`", "exists"]),
        (&["mkdir", "/no/dir"], &["`/no/dir`", "`/no`", "make it first"]),
        (&["put", l, "/no/file"], &["`/no/file`", "`/no`", "make it first"]),
        (&["put", l, "/f/below"], &["`/f/below`", "`/f` is a file"]),
        (&["mkdir", "/f/below"], &["`/f/below`", "`/f` is a file"]),
        (&["ls", "/f/below"], &["`/f/below`", "`f`", "is a file"]),
        (&["cat", "/d"], &["`/d`", "is a directory"]),
        (&["get", "/d", missing], &["`/d`", "-r"]),
        (&["put", "-f", l, "/d/sub/../g"], &["/d/sub/../g"]),
        (&["mv", "/d", "/d/sub/deeper"], &["`/d`", "own subtree"]),
        (&["mv", "/f", "/d/g"], &["`/f`", "`/d/g`", "taken"]),
        (&["mv", "/none", "/x"], &["`/none`", "does not exist"]),
        (&["mv", "/f", "/no/f"], &["`/no/f`", "`/no`"]),
        (&["mv", "/", "/x"], &["`/`", "root"]),
        (&["mv", "-f", "/d", "/f"], &["`/d`", "`/f`"]),
        (&["rm", "/d"], &["`/d`", "2 entries", "-r"]),
        (&["rm", "/none"], &["`/none`", "does not exist"]),
        (&["rm", "-r", "/"], &["`/`", "root"]),
        (&["ls", "/none"], &["`/none`", "does not exist"]),
        (&["stat", "/none"], &["`/none`", "does not exist"]),
        (&["cat", "/none"], &["`/none`", "does not exist"]),
        (&["du", "/none"], &["`/none`", "does not exist"]),
        (&["get", "/none", missing], &["`/none`", "does not exist"]),
        (&["get", "/f", l], &["`/f`", "exists", "-f"]),
        (&["get", "/f", no_dir], &["missing/out`"]),
        (&["put", missing, "/x"], &["missing`"]),
        (&["put", ".", "/x"], &["`.`", "-r"]),
        (&["put", l, l, "/x"], &["`/x`", "not a directory"]),
        (&["put", "--class", "tape", l, "/x"], &["`tape`", "`disk`"]),
        (&["put", "--class", "dram", l, "/x"], &["`/x`", "dram", "no store"]),
        (&["mkdir", "--class", "tape", "/x"], &["`tape`"]),
        (&["mkdir", "--kind", "bag", "/x"], &["`bag`", "`multifile`"]),
        (&["set-class", "tape", "/d"], &["`tape`"]),
        (&["set-class", "disk", "/none"], &["`/none`"]),
        (&["salvage", "99", "/x"], &["99", "unclosed"]),
    ];
    for (words, names) in cases {
        let words: Vec<&str> = std::iter::once("fs").chain(words.iter().copied()).collect();
        let sentence = node.run(&words).refused(names);
        assert!(!sentence.contains("os error 2)\n") || sentence.contains("local"), "{sentence}");
        assert_eq!(picture(&node), before, "{words:?} changed something");
    }
    assert_eq!(node.run(&["fs", "cat", "/f"]).ok(), "bytes");
    assert_eq!(fs::read(&local).unwrap(), b"bytes");
    assert!(!scratch.path("missing").exists());
    node.stop();
}

#[test]
fn the_client_refuses_what_no_command_line_can_say() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    let new = NewFile::default();
    client.put("/f", b"12345", &new).unwrap();
    for path in ["/a\0b", "/a\0", "\0"] {
        let e = client.put(path, b"x", &new).unwrap_err();
        assert_eq!(e.kind, Kind::Invalid);
        assert!(!e.message.contains('\0') && e.message.contains("\\0"), "{e}");
        assert_eq!(client.stat(path).unwrap_err().kind, Kind::Invalid, "{path:?}");
        assert_eq!(client.make_dir(path, &new).unwrap_err().kind, Kind::Invalid);
        assert_eq!(client.rename("/f", path, true).unwrap_err().kind, Kind::Invalid);
    }
    let too_long = vec![0; (16 << 20) + 1];
    let e = client.put("/long", &too_long, &new).unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("`/long`"), "{e}");

    let mut reader = client.open("/f").unwrap();
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 2).unwrap();
    assert_eq!(&bytes, b"345");
    let e = reader.read_exact_at(&mut bytes, 3).unwrap_err();
    assert!(e.message.contains("`/f`") && e.message.contains('5'), "past the end: {e}");
    assert!(reader.read_exact_at(&mut bytes, u64::MAX - 1).is_err());
    drop(reader);
    // The connection is as good as before.
    assert_eq!(client.get("/f").unwrap(), b"12345");
    assert_eq!(client.list("/", "").unwrap().entries.len(), 1);
}

fn plain(words: &[&str]) -> Finished {
    finish(binary().args(words), b"")
}

#[test]
fn wrong_usage_exits_with_status_2_and_shows_how() {
    let cases: [&[&str]; 9] = [
        &[],
        &["frobnicate"],
        &["fs"],
        &["fs", "put"],
        &["fs", "put", "only-one"],
        &["fs", "ls", "--frob"],
        &["fs", "salvage", "not-a-number", "/x"],
        &["up", "extra"],
        &["bench", "iobench"],
    ];
    for words in cases {
        let done = plain(words);
        assert_eq!(done.code, Some(2), "{words:?}: {done:?}");
        assert!(done.err.contains("--help"), "{words:?}: {}", done.err);
    }
    assert_eq!(plain(&["--help"]).code, Some(0));
    assert!(plain(&["--version"]).ok().starts_with("holdfast "));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let socket = format!("unix:{}", scratch.path("no.sock").display());
    plain(&["--server", &socket, "fs", "ls"]).refused(&["no.sock", "holdfast up"]);
    plain(&["--server", "127.0.0.1:1", "status"]).refused(&["127.0.0.1:1", "holdfast up"]);
    plain(&["--server", "nonsense", "fs", "ls"]).refused(&["`nonsense`", "host:port"]);
}

#[test]
fn settings_that_are_wrong_are_refused_before_anything_starts() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    fs::create_dir_all(&data).unwrap();
    let file = data.join("holdfast.toml");
    for (text, why) in [
        ("prot = 7400", "`prot`"),
        ("listen = \"0.0.0.0\"", "holdfast cert init"),
        ("dram = \"much\"", "dram"),
        ("native_port = -1", "native_port"),
        ("not toml", "holdfast.toml"),
    ] {
        fs::write(&file, text).unwrap();
        let done = plain(&["up", "--data", data.to_str().unwrap()]);
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.err.contains(why) && done.err.contains("holdfast.toml"), "{}", done.err);
        assert!(!data.join("HOLDFAST").exists());
        let check = plain(&["config", "check", file.to_str().unwrap()]);
        assert_eq!(check.code, Some(1), "{check:?}");
    }
    fs::write(&file, plain(&["config", "print-default"]).ok()).unwrap();
    plain(&["config", "check", file.to_str().unwrap()]).ok();
    plain(&["up", "--data", data.to_str().unwrap(), "--listen", "0.0.0.0"])
        .refused(&["holdfast cert init"]);
    plain(&["up", "--data", data.to_str().unwrap(), "--listen", "pluto"]).refused(&["`pluto`"]);
}
