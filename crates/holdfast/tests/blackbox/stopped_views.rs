//! A view that has stopped, and one whose rows are damaged: the node stays up, says so wherever one
//! looks, serves what its other views hold, and a build that can go on does.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use super::http::get;
use super::photos::{client, put, send};
use super::s3::blob;
use holdfast_client::NewFile;
use holdfast_s3::Request;
use holdfast_wire::admin::STOPPED_VIEW;
use std::path::{Path, PathBuf};

/// More than one block of a directory's children holds.
const CHILDREN: usize = 600;

/// A directory with settings; answers its HTTP port.
fn prepare(data: &Path) -> u16 {
    let (http, s3) = (free_port(), free_port());
    std::fs::create_dir_all(data).unwrap();
    let settings = format!(
        "native_port = 0\ncache_port = 0\ndram = \"0\"\nhttp_port = {http}\ns3_port = {s3}\n\
         workers = 2\ncapacity = \"16GiB\"\n"
    );
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    http
}

/// What `/health`, `status` and `doctor` say of a node whose view of `topic` has stopped.
#[track_caller]
fn says_that_it_stopped(node: &mut Node, http: u16, topic: &str, why: &str) {
    for event in ["view.stopped", "request.bug"] {
        node.told.announce(event);
    }
    let sentence = format!("{STOPPED_VIEW} `{topic}`");
    let health = get(http, "/health", "");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    let doctor = node.run(&["doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    let doctor = String::from_utf8(doctor.out).unwrap();
    for said in [health, node.run(&["status"]).ok(), doctor] {
        assert!(said.contains(&sentence) && said.contains(why), "{said}");
    }
}

/// 600 children in one directory, and `rm` of the 513th: the namespace looked for it in the wrong
/// block and panicked. The entry was durable by then, so the node ended at every start from there
/// on. The bug is mended; planted again, it stops the namespace, and nothing else.
#[test]
fn a_panic_in_the_namespace_stops_it_until_a_build_can_apply_the_entry() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let http = prepare(&data);
    let mut node = Node::start_planting(&data, "cluster.child-at-a-border");
    let mut client = node.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    for i in 0..CHILDREN {
        client.make_dir(&format!("/d/f{i:03}"), &NewFile::default()).unwrap();
    }
    let refused = client.delete("/d/f512", false).unwrap_err().message;
    for said in ["namespace/0", "Delete", "panicked"] {
        assert!(refused.contains(said), "{refused}");
    }
    drop(client);
    says_that_it_stopped(&mut node, http, "namespace/0", "Delete");
    // At each start, too; other topics are served meanwhile, and names by nobody.
    // It has told its standard error of the panic.
    let data = node.kill();
    let mut node = Node::start_planting(&data, "cluster.child-at-a-border");
    says_that_it_stopped(&mut node, http, "namespace/0", "Delete");
    node.run(&["log", "append", "mine", "hello"]).ok();
    assert!(node.run(&["log", "read", "mine"]).ok().contains("hello"));
    node.run(&["fs", "ls", "/d"]).refused(&["namespace/0", "Delete"]);
    let data = node.kill();
    let node = Node::start(&data);
    assert!(get(http, "/health", "").starts_with("HTTP/1.1 200 "));
    assert_eq!(node.run(&["fs", "ls", "/d"]).ok().lines().count(), CHILDREN - 1);
    node.run(&["fs", "mkdir", "/e"]).ok();
    node.stop();
}

/// A panic in the blobs' view left its lock poisoned, and no start came past the entry.
#[test]
fn a_panic_in_the_blobs_view_stops_s3_alone_until_a_build_can_apply_the_entry() {
    const BUG: &str = "blob.versioning-panics";
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let http = prepare(&data);
    let mut node = Node::start_planting(&data, BUG);
    blob(&data, &["mb", "box"], b"").ok();
    let mut s3 = client(&data);
    put(&mut s3, "/box/a", b"a");
    let body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let versioned = Request { body, ..Request::new("PUT", "/box") }.with("versioning", "");
    assert_eq!(s3.send(&versioned).unwrap().status / 100, 5);
    assert_eq!(s3.send(&Request::new("GET", "/box/a")).unwrap().status / 100, 5, "not as it was");
    says_that_it_stopped(&mut node, http, "blobs/0", "SetVersioning");
    node.run(&["fs", "mkdir", "/d"]).ok();
    // It has told its standard error of the panic.
    let data = node.kill();
    let mut node = Node::start_planting(&data, BUG);
    says_that_it_stopped(&mut node, http, "blobs/0", "SetVersioning");
    node.run(&["fs", "mkdir", "/e"]).ok();
    assert_eq!(node.run(&["fs", "ls", "/"]).ok().lines().count(), 2);
    let data = node.kill();
    let node = Node::start(&data);
    assert!(get(http, "/health", "").starts_with("HTTP/1.1 200 "));
    let mut s3 = client(&data);
    assert_eq!(send(&mut s3, Request::new("GET", "/box/a")).body, b"a");
    let versioning = send(&mut s3, Request::new("GET", "/box").with("versioning", ""));
    assert!(versioning.text().contains("Enabled"), "applied at last");
    drop(s3);
    node.stop();
}

/// `holdfast log append blobs/0 anything` was taken from any client: S3 answered 500 from there on,
/// and the node ended at its next start. A trim was taken, too, and anybody on the machine could
/// read access keys over TCP.
#[test]
fn topics_of_folds_are_changed_by_no_client_and_read_by_the_owner_alone() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    prepare(&data);
    let native = free_port();
    let settings = std::fs::read_to_string(data.join("holdfast.toml")).unwrap();
    let settings = settings.replace("native_port = 0", &format!("native_port = {native}"));
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    let node = Node::start(&data);
    let tcp = |words: &[&str]| {
        let (server, secret) = (format!("127.0.0.1:{native}"), data.join("secret"));
        finish(binary().args(["--server", &server]).arg("--secret").arg(secret).args(words), b"")
    };
    for topic in ["cluster", "namespace/0", "blobs/0", "blobs/1"] {
        node.run(&["log", "append", topic, "anything"]).refused(&[topic, "another name"]);
        node.run(&["log", "trim", topic, "2"]).refused(&[topic, "another name"]);
        tcp(&["log", "append", topic, "anything"]).refused(&[topic]);
        tcp(&["log", "read", topic, "--from", "1"]).refused(&[topic, "owner"]);
    }
    assert!(!node.run(&["log", "read", "blobs/0", "--from", "1"]).out.is_empty());
    tcp(&["log", "append", "mine", "hello"]).ok();
    assert!(tcp(&["log", "read", "mine"]).ok().contains("hello"));
    let node = Node::start(&node.stop());
    blob(&data, &["mb", "box"], b"").ok();
    node.stop();
}

pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files = Vec::new();
    for path in entries {
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

/// The index of blobs is derived from the log, yet one flipped bit in it kept the whole node from
/// starting. Each of its files is damaged in turn: the index is set aside and folded anew, doctor
/// says so, and every object is there.
#[test]
fn a_damaged_index_of_blobs_is_set_aside_and_folded_anew() {
    const OBJECTS: usize = 20;
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let http = prepare(&data);
    let node = Node::start(&data);
    blob(&data, &["mb", "box"], b"").ok();
    let mut s3 = client(&data);
    for i in 0..OBJECTS {
        put(&mut s3, &format!("/box/{i}"), format!("object {i}").as_bytes());
    }
    drop(s3);
    let mut data = node.stop();
    let names: Vec<PathBuf> = files_below(&data.join("blobs"))
        .iter()
        .map(|path| path.strip_prefix(&data).unwrap().to_owned())
        .collect();
    assert!(names.len() > 3, "{names:?}");
    let mut set_aside = 0;
    for name in names {
        // A start has its own files: of those that are there again, each is damaged once.
        let path = data.join(&name);
        let Ok(mut bytes) = std::fs::read(&path) else { continue };
        if bytes.is_empty() {
            continue;
        }
        let middle = bytes.iter().position(|byte| *byte != 0).unwrap_or(0);
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let node = Node::start(&data);
        assert!(get(http, "/health", "").starts_with("HTTP/1.1 200 "), "{name:?}");
        let mut s3 = client(&data);
        for i in 0..OBJECTS {
            let got = send(&mut s3, Request::new("GET", format!("/box/{i}")));
            assert_eq!(got.body, format!("object {i}").as_bytes(), "{name:?}");
        }
        drop(s3);
        let aside: Vec<PathBuf> = (1..=8)
            .map(|number| data.join(format!("blobs.damaged-{number}")))
            .filter(|aside| aside.exists())
            .collect();
        if !aside.is_empty() {
            let doctor = String::from_utf8(node.run(&["doctor"]).out).unwrap();
            assert!(doctor.contains("folded anew"), "{name:?}: {doctor}");
            set_aside += 1;
        }
        data = node.stop();
        aside.iter().for_each(|aside| std::fs::remove_dir_all(aside).unwrap());
    }
    assert!(set_aside >= 2, "{set_aside} of the damages were met");
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in files_below(from) {
        let copy = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(&file, &copy).unwrap();
    }
}

/// A log that was put back from an older copy, its snapshots removed, started with files missing
/// and said nothing: no snapshot was left to compare it with. The chunks know better.
#[test]
fn a_log_that_is_older_than_the_chunks_stops_the_names() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let http = prepare(&data);
    let node = Node::start(&data);
    node.run(&["fs", "mkdir", "/old"]).ok();
    let data = node.stop();
    copy_all(&data.join("log"), &scratch.path("log"));
    let node = Node::start(&data);
    let local = scratch.path("local");
    std::fs::write(&local, vec![7; 3 << 20]).unwrap();
    node.run(&["fs", "put", local.to_str().unwrap(), "/lost"]).ok();
    let data = node.stop();
    let newer = scratch.path("newer");
    std::fs::rename(data.join("log"), &newer).unwrap();
    std::fs::rename(scratch.path("log"), data.join("log")).unwrap();
    let _ = std::fs::remove_dir_all(data.join("snapshots"));
    // A build before noted nowhere else how far the log was.
    std::fs::remove_file(data.join("REACHED")).unwrap();
    for _ in 0..2 {
        let mut node = Node::start(&data);
        says_that_it_stopped(&mut node, http, "namespace/0", "older than the chunks");
        node.run(&["fs", "ls", "/"]).refused(&["older than the chunks"]);
        node.stop();
    }
    // The right one again, and all is well.
    std::fs::remove_dir_all(data.join("log")).unwrap();
    std::fs::rename(&newer, data.join("log")).unwrap();
    let _ = std::fs::remove_dir_all(data.join("snapshots"));
    let node = Node::start(&data);
    assert_eq!(node.run(&["fs", "cat", "/lost"]).out, vec![7; 3 << 20]);
    node.stop();
}

/// Log and snapshots that were both put back from an older copy agree with each other. Where no
/// chunk had got a byte since, nothing told that entries were missing.
#[test]
fn a_log_that_was_put_back_with_its_snapshots_stops_what_it_holds() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let http = prepare(&data);
    let node = Node::start(&data);
    node.run(&["fs", "mkdir", "/old"]).ok();
    // What is noted of so many topics was more than was read.
    let table = "a-table-whose-name-is-as-long-as-it-takes-to-fill-a-page";
    node.run(&["table", "create", table, "--tablets", "64"]).ok();
    let data = node.stop();
    let put = |from: &Path, to: &Path| {
        for part in ["log", "snapshots"] {
            let _ = std::fs::remove_dir_all(to.join(part));
            if from.join(part).exists() {
                copy_all(&from.join(part), &to.join(part));
            }
        }
    };
    let (older, newer) = (scratch.path("older"), scratch.path("newer"));
    put(&data, &older);
    let node = Node::start(&data);
    node.run(&["fs", "mkdir", "/lost"]).ok();
    let data = node.stop();
    put(&data, &newer);
    put(&older, &data);
    for _ in 0..2 {
        let mut node = Node::start(&data);
        for topic in ["namespace/0", "cluster", "blobs/0"] {
            says_that_it_stopped(&mut node, http, topic, "older than this node knows it");
        }
        node.run(&["fs", "ls", "/"]).refused(&["older than this node knows it", "REACHED"]);
        node.run(&["log", "append", "mine", "hello"]).ok();
        node.stop();
    }
    let offline = finish(binary().args(["doctor", "--data"]).arg(&data), b"");
    assert_eq!(offline.code, Some(1), "{offline:?}");
    assert!(String::from_utf8_lossy(&offline.out).contains("older than this node knows it"));
    // The right one again, and all is well.
    put(&newer, &data);
    let node = Node::start(&data);
    assert!(get(http, "/health", "").starts_with("HTTP/1.1 200 "));
    assert_eq!(node.run(&["fs", "ls", "/"]).ok().lines().count(), 2);
    // Of a process that was killed, too, once it has looked at its log.
    let noted = std::fs::read(data.join("REACHED")).unwrap();
    let mut made = 0;
    while std::fs::read(data.join("REACHED")).unwrap() == noted {
        node.run(&["fs", "mkdir", &format!("/more{made}")]).ok();
        made += 1;
        assert!(made < 100_000, "nothing was noted");
    }
    let data = node.kill();
    put(&newer, &data);
    let mut node = Node::start(&data);
    says_that_it_stopped(&mut node, http, "namespace/0", "older than this node knows it");
    let data = node.stop();
    // Who wants to go on without what is missing says so.
    std::fs::remove_file(data.join("REACHED")).unwrap();
    let node = Node::start(&data);
    assert_eq!(node.run(&["fs", "ls", "/"]).ok().lines().count(), 2);
    // And is not asked again, after an orderly end or a kill.
    let mut data = node.stop();
    for made in 1..3 {
        let node = Node::start(&data);
        assert!(get(http, "/health", "").starts_with("HTTP/1.1 200 "));
        node.run(&["fs", "mkdir", &format!("/later{made}")]).ok();
        assert_eq!(node.run(&["fs", "ls", "/"]).ok().lines().count(), 2 + made);
        data = node.kill();
    }
    Node::start(&data).stop();
}

/// An index of blobs that was left when everything else was put back from an older copy was noticed
/// by the result of an entry that came out at an index which it had already: S3 was refused for a
/// result that was not kept, and each start appended one more entry to the older log.
#[test]
fn an_index_that_is_newer_than_its_log_is_known_before_anything_is_appended() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    prepare(&data);
    let data = Node::start(&data).stop();
    let older = scratch.path("older");
    for part in ["log", "snapshots"] {
        let _ = std::fs::create_dir_all(data.join(part));
        copy_all(&data.join(part), &older.join(part));
    }
    std::fs::copy(data.join("REACHED"), older.join("REACHED")).unwrap();
    // Each start leaves an entry of its own in the topic.
    let mut node = data;
    for _ in 0..3 {
        node = Node::start(&node).stop();
    }
    let data = node;
    for part in ["log", "snapshots"] {
        std::fs::remove_dir_all(data.join(part)).unwrap();
        copy_all(&older.join(part), &data.join(part));
    }
    std::fs::copy(older.join("REACHED"), data.join("REACHED")).unwrap();
    let next = |node: &Node| -> String {
        let topics = node.run(&["log", "ls"]).ok();
        topics.lines().find(|line| line.contains("blobs/0")).unwrap().to_owned()
    };
    let mut before = None;
    for _ in 0..2 {
        let mut node = Node::start(&data);
        for event in ["view.stopped", "request.bug"] {
            node.told.announce(event);
        }
        let doctor = String::from_utf8(node.run(&["doctor"]).out).unwrap();
        assert!(doctor.contains("the log is older than the view"), "{doctor}");
        let now = next(&node);
        assert_eq!(before.get_or_insert(now.clone()), &now, "it was appended to");
        node.stop();
    }
}

/// One flipped bit in the namespace's log refused the start, though a verified snapshot lay behind
/// that entry.
#[test]
fn a_damaged_entry_in_front_of_a_snapshot_costs_nothing() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    prepare(&data);
    let mut settings = std::fs::read_to_string(data.join("holdfast.toml")).unwrap();
    settings.push_str("snapshot_entries = 20\n");
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    let node = Node::start(&data);
    for i in 0..15 {
        node.run(&["fs", "mkdir", &format!("/early{i}")]).ok();
    }
    // Taken beside, by a thread of its own.
    let snapshots = data.join("snapshots/namespace-0");
    let taken = || {
        std::fs::read_dir(&snapshots).is_ok_and(|all| {
            all.filter_map(|e| e.ok()?.file_name().into_string().ok()).any(|n| n.ends_with(".hfs"))
        })
    };
    let mut made = 0;
    while !taken() {
        node.run(&["fs", "mkdir", &format!("/more{made}")]).ok();
        made += 1;
        assert!(made < 2000, "no snapshot was taken");
    }
    node.run(&["fs", "mkdir", "/last"]).ok();
    let data = node.stop();
    let segment = data.join("log/topics/namespace+0/00000000000000000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    // In an entry of the start, wherever it came to lie: what fills up a sector is read by nobody.
    let at = bytes.windows(6).position(|bytes| bytes == b"early7").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let node = Node::start(&data);
    let listed = node.run(&["fs", "ls", "/"]).ok();
    assert_eq!(listed.lines().count(), 15 + made + 1, "{listed}");
    let doctor = || String::from_utf8(node.run(&["doctor"]).out).unwrap();
    // The log is looked through once the node serves.
    let named = |said: String| said.contains("namespace/0") && said.contains("kept in");
    assert!(attempts().any(|()| named(doctor())), "{}", doctor());
    node.stop();
}

/// It said that a topic did not exist, and to create it: which nobody can.
#[test]
fn s3_beside_a_log_whose_node_has_none_says_what_to_set() {
    let (scratch, port) = (Scratch::new(), free_port());
    let first = Node::start_with(&scratch.path("1"), &format!("native_port = {port}\n"));
    let data = scratch.path("2");
    Node::set(&data, &format!("native_port = {}\ns3_port = {}\n", free_port(), free_port()));
    let mut second = Node::join(&data, &first, port);
    second.told.announce("view.stopped");
    let status = second.run(&["status"]).ok();
    assert!(status.contains("has S3 off") && status.contains("set `s3_port` there"), "{status}");
    second.client().put("/a", b"files are served", &NewFile::default()).unwrap();
    second.stop();
    first.stop();
}
