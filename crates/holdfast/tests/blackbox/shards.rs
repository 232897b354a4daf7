//! Shards on three processes: added, given directories, killed between the two entries of a move, and read
//! through every node.

use crate::cluster::Dev;
use crate::common::{Node, Scratch, attempts, bytes, free_port, read_there};
use crate::s3::{blob, start_with};
use holdfast_client::NewFile;
use holdfast_wire::admin::Shard;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks every node until `good` says so of the shards that it has.
#[track_caller]
fn until(dev: &Dev, what: &str, good: impl Fn(&[Shard]) -> bool) {
    for node in 1..=3 {
        let mut client = dev.client(node, &[]);
        let mut last = Vec::new();
        let came = attempts().any(|()| {
            last = client.shards().unwrap();
            good(&last)
        });
        assert!(came, "node {node} waited in vain until {what}: {last:?}");
    }
}

pub fn keeps(shards: &[Shard], shard: usize, dir: &str) -> bool {
    shards.get(shard).is_some_and(|shard| shard.directories.iter().any(|name| name == dir))
}

pub fn is_home(shards: &[Shard], dir: &str) -> bool {
    let has = |shard: &Shard| shard.directories.iter().chain(&shard.coming).any(|name| name == dir);
    !shards.iter().any(has)
}

#[test]
fn shards_of_three_nodes_keep_their_directories_whoever_is_killed() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    for dir in ["/a", "/b", "/c"] {
        dev.run(2, &["fs", "mkdir", dir]).ok();
    }
    dev.run(1, &["shard", "add"]).ok();
    dev.run(3, &["shard", "add"]).ok();
    // Claimed, too: a leader's entry is in each.
    until(&dev, "there are three", |shards| {
        shards.len() == 3 && shards.iter().all(|s| s.index.0 > 0)
    });
    dev.run(2, &["shard", "move", "/b", "--to", "2"]).ok();
    // It keeps the log and leads: between the entries of this move, or behind them.
    dev.run(3, &["shard", "move", "/a", "--to", "1"]).ok();
    dev.order(&["kill", "1", "--hard"]).ok();
    dev.order(&["start", "1"]).ok();
    until(&dev, "both have come", |shards| keeps(shards, 1, "a") && keeps(shards, 2, "b"));

    let content = |node: u16, dir: &str| bytes(u64::from(node), 3000 + dir.len());
    for node in 1..=3 {
        let mut client = dev.client(node, &[]);
        for dir in ["/a", "/b", "/c"] {
            let path = format!("{dir}/of{node}");
            client.put(&path, &content(node, dir), &NewFile::default()).unwrap();
        }
    }
    let large = bytes(9, 20 << 20);
    dev.client(2, &[]).put_sized("/a/large", &large, &NewFile::default()).unwrap();
    let all_is_there = || {
        for node in 1..=3 {
            let mut client = dev.client(node, &[1, 2, 3]);
            client.learn_nodes().unwrap();
            for (of, dir) in (1..=3).flat_map(|of| ["/a", "/b", "/c"].map(|dir| (of, dir))) {
                let path = format!("{dir}/of{of}");
                assert_eq!(client.get(&path).unwrap(), content(of, dir), "{path} at {node}");
            }
            assert!(client.get("/a/large").unwrap() == large, "at {node}");
        }
    };
    until(&dev, "all have all", |shards| shards[1].files == 4 && shards[2].files == 3);
    all_is_there();
    let listed = dev.run(2, &["shard", "ls"]).ok();
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("shard 0: ") && lines[1].ends_with(", keeps /a"), "{listed}");
    assert!(dev.run(2, &["status"]).ok().contains(", keeps /b"));
    dev.run(2, &["fs", "mv", "/a/of1", "/c/other"]).refused(&["copy it there"]);
    dev.run(2, &["shard", "move", "/c", "--to", "7"]).refused(&["no shard 7", "shard add"]);

    dev.order(&["kill", "2", "--hard"]).ok();
    dev.order(&["start", "2"]).ok();
    until(&dev, "all have all", |shards| {
        shards.len() == 3 && shards[1].files == 4 && shards[2].files == 3
    });
    all_is_there();
    for name in ["of1", "of2", "of3", "large"] {
        dev.run(3, &["fs", "rm", &format!("/a/{name}")]).ok();
    }
    dev.run(1, &["shard", "move", "/a", "--to", "0"]).ok();
    dev.order(&["kill", "1", "--hard"]).ok();
    dev.order(&["start", "1"]).ok();
    until(&dev, "it is back", |shards| shards.len() == 3 && is_home(shards, "a"));
    dev.client(3, &[]).put("/a/again", b"x", &NewFile::default()).unwrap();
    until(&dev, "it is in the first", |shards| shards[0].files == 4 && shards[1].files == 0);
    assert_eq!(dev.client(2, &[]).get("/a/again").unwrap(), b"x");
}

/// A client that goes on with files of its own, now and then of the directory that moves, until it is told to
/// end: what it wrote, by path.
fn writes(dev: &Dev, ends: &AtomicBool) -> Vec<(String, Vec<u8>)> {
    // Between two shards a directory is at neither for a moment, or for as long as who leads is away.
    let mut client = dev.patient_client(2, &[1, 2, 3]);
    client.learn_nodes().unwrap();
    let mut written: Vec<(String, Vec<u8>)> = Vec::new();
    for number in 0u64.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let dir = if number % 4 == 0 { "/d" } else { "/other" };
        let (path, content) = (format!("{dir}/new{number}"), bytes(number, 2000));
        // While a node is down and its directory waits it may be refused: then it is not there, or is.
        if client.put(&path, &content, &NewFile::default()).is_ok() {
            written.push((path, content));
        }
        if let Some((path, content)) = written.get(number as usize / 2) {
            let read = client.get(path).unwrap_or_else(|e| panic!("{path}: {:?}: {e}", e.kind));
            assert!(read == *content, "{path}");
        }
    }
    written
}

/// A directory with content goes there and back while clients read and write and who leads is killed, again
/// and again, wherever the move is: all is there, at every node, and nothing is found wrong.
#[test]
fn a_directory_with_content_moves_whoever_is_killed() {
    let scratch = Scratch::new();
    let dev = Dev::start(&scratch.path("dev"), 3);
    for dir in ["/d", "/d/in", "/other"] {
        dev.run(2, &["fs", "mkdir", dir]).ok();
    }
    dev.run(1, &["shard", "add"]).ok();
    until(&dev, "there are two", |shards| {
        shards.len() == 2 && shards.iter().all(|s| s.index.0 > 0)
    });
    let mut client = dev.client(2, &[]);
    let small = |number: u64| bytes(number, 3000 + number as usize);
    for number in 0..300 {
        client.put(&format!("/d/in/{number}"), &small(number), &NewFile::default()).unwrap();
    }
    let large = bytes(9, 20 << 20);
    client.put_sized("/d/large", &large, &NewFile::default()).unwrap();
    client.put("/d/empty", b"", &NewFile::default()).unwrap();
    let all_is_there = |written: &[(String, Vec<u8>)]| {
        for node in 1..=3 {
            let mut client = dev.client(node, &[1, 2, 3]);
            client.learn_nodes().unwrap();
            for number in 0..300 {
                let read = client.get(&format!("/d/in/{number}")).unwrap();
                assert!(read == small(number), "{number} at {node}");
            }
            assert!(client.get("/d/large").unwrap() == large, "at {node}");
            assert_eq!(client.get("/d/empty").unwrap(), b"", "at {node}");
            for (path, content) in written {
                assert!(read_there(&mut client, path) == *content, "{path} at {node}");
            }
        }
    };
    for to in [1, 0] {
        let ends = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| writes(&dev, &ends));
            dev.run(3, &["shard", "move", "/d", "--to", &to.to_string()]).ok();
            // It keeps the log and leads: each time it is killed the move is somewhere else.
            for _ in 0..3 {
                dev.order(&["kill", "1", "--hard"]).ok();
                dev.order(&["start", "1"]).ok();
            }
            until(&dev, "it has moved, and is forgotten", |shards| {
                let here = if to == 1 { keeps(shards, 1, "d") } else { is_home(shards, "d") };
                let quiet = |s: &Shard| s.moving.frozen.is_empty() && !s.moving.is_leaving;
                shards.len() == 2 && here && shards.iter().all(quiet)
            });
            ends.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert!(!written.is_empty());
        all_is_there(&written);
        let listed = dev.run(2, &["shard", "ls"]).ok();
        // What was written while it was there stays there: the other one may hold some.
        let first = listed.lines().next().unwrap();
        assert!(first.starts_with("shard 0: "), "{listed}");
        assert_eq!(first.contains("holds bytes of 3"), to == 1, "{listed}");
    }
    // What was written while a node was away has its copies by and by.
    dev.until(2, "every chunk has its copies", |cluster| {
        (cluster.recovery.short, cluster.recovery.lost) == (0, 0)
    });
    let told = String::from_utf8(dev.run(2, &["doctor"]).out).unwrap();
    let mut found = told.lines().filter(|line| line.starts_with("- "));
    // While the log's host is away lines of the audit trail may find no place, which a node says for good.
    assert!(found.all(|line| line.starts_with("- audit: ")), "{told}");
}

/// Of one node, asked until it says so.
#[track_caller]
pub fn until_one(node: &Node, what: &str, good: impl Fn(&[Shard]) -> bool) {
    let mut client = node.client();
    let mut last = Vec::new();
    let came = attempts().any(|()| {
        last = client.shards().unwrap();
        good(&last)
    });
    assert!(came, "it waited in vain until {what}: {last:?}");
}

pub fn is_quiet(shards: &[Shard]) -> bool {
    let quiet =
        |s: &Shard| s.coming.is_empty() && s.moving.taken.is_empty() && !s.moving.is_leaving;
    shards.iter().all(|s| quiet(s) && s.moving.frozen.is_empty() && s.moving.owing == 0)
}

/// S3's objects have their names in a view of their own, and their bytes in the first shard's chunks: they are in no
/// directory, whatever their bucket is called. While directories of the same names go to another shard and back,
/// and what is deleted there is freed, every object stays as it was put, and new ones are taken.
#[test]
fn objects_of_s3_stay_where_they_are_while_directories_of_their_names_move() {
    let scratch = Scratch::new();
    let port = free_port();
    let node = start_with(&scratch.path("data"), &format!("http_port = {port}\n"));
    let data = node.data.clone();
    let ok = |words: &[&str], stdin: &[u8]| blob(&data, words, stdin).ok();
    let content = |number: u64| bytes(number, 2000 + 700 * number as usize);
    ok(&["mb", "photos"], b"");
    node.run(&["fs", "mkdir", "/photos"]).ok();
    node.run(&["shard", "add"]).ok();
    until_one(&node, "there are two", |s| s.len() == 2 && s.iter().all(|s| s.index.0 > 0));
    let mut client = node.client();
    let large = bytes(77, 9 << 20);
    ok(&["put", "-", "photos/large"], &large);
    let mut number = 0;
    for to in [1, 0] {
        for _ in 0..20 {
            ok(&["put", "-", &format!("photos/{number}")], &content(number));
            client
                .put(&format!("/photos/{number}"), &content(number), &NewFile::default())
                .unwrap();
            number += 1;
        }
        node.run(&["shard", "move", "/photos", "--to", &to.to_string()]).ok();
        // While it goes, and behind that.
        for _ in 0..4 {
            ok(&["put", "-", &format!("photos/{number}")], &content(number));
            number += 1;
        }
        until_one(&node, "it is there", |s| {
            is_quiet(s) && if to == 1 { keeps(s, 1, "photos") } else { is_home(s, "photos") }
        });
    }
    client.delete("/photos", true).unwrap();
    drop(client);
    let check = |node: &Node| {
        let ok = |words: &[&str]| blob(&node.data, words, b"").out;
        for number in 0..number {
            assert!(ok(&["get", &format!("photos/{number}"), "-"]) == content(number), "{number}");
        }
        assert!(ok(&["get", "photos/large", "-"]) == large);
        let verified: serde_json::Value = serde_json::from_slice(&ok(&["verify"])).unwrap();
        assert_eq!(verified["objects"].as_u64(), Some(number + 1), "{verified}");
        assert_eq!(verified["damaged"][0].as_str(), None, "{verified}");
        assert_eq!(node.client().shards().unwrap()[1].files, 0);
    };
    check(&node);
    let data = node.kill();
    let node = Node::start(&data);
    check(&node);
    node.stop();
}
