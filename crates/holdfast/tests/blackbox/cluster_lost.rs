//! What a cluster of real processes survives: the leader and the writers' nodes killed and erased
//! while somebody reads, a node emptied and taken away, every process killed at once. And the
//! demonstration, which shows a person the same.

use crate::cluster::{Dev, assert_same, make_tree};
use crate::cluster_input::Joined;
use crate::common::{Scratch, attempts, binary, bytes, finish, read_there, signal};
use holdfast_base::ids::NodeId;
use holdfast_client::NewFile;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Every file of a tree, relative to it.
fn files_of(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                false => files.push(path.strip_prefix(root).unwrap().to_owned()),
            }
        }
    }
    files
}

/// Reads one file after another and compares it, until it is told to stop.
fn read_on(dev: &Dev, tree: &Path, gateway: u16, stop: &AtomicBool, reads: &AtomicU64) {
    let files = files_of(tree);
    let others: Vec<u16> = (1..=5).filter(|node| *node != gateway).collect();
    let mut client = dev.client(gateway, &others);
    for file in files.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let read = client.get(&format!("/tree/{}", file.display())).unwrap();
        assert!(read == fs::read(tree.join(file)).unwrap(), "{} differs", file.display());
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// The leader, the gateway that writers and a reader use, and the node that took the lead after
/// it: all of these go, one after the other, with their disks.
#[test]
fn a_cluster_loses_its_leader_and_its_gateways_while_somebody_reads() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    make_tree(&tree);
    let dev = Dev::start(&scratch.path("dev"), 5);
    // Who ends in order lets go of the lead: the host of the log has it no more, and who has can
    // be killed.
    dev.order(&["kill", "1"]).ok();
    dev.order(&["start", "1"]).ok();
    dev.until(1, "another node leads", |cluster| {
        cluster.leader.is_some_and(|leader| leader != NodeId(1))
    });
    let leader = |dev: &Dev| dev.client(1, &[]).cluster().unwrap().leader.unwrap().0;
    let first = leader(&dev);
    dev.run(first as u16, &["fs", "put", "-r", tree.to_str().unwrap(), "/tree"]).ok();

    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_on(&dev, &tree, first as u16, &stop, &reads));
        dev.order(&["kill", &first.to_string(), "--hard"]).ok();
        dev.order(&["erase", &first.to_string()]).ok();
        dev.until(1, "the first one is lost, and another one leads", |cluster| {
            let lost = |n: &holdfast_wire::admin::ClusterNode| {
                n.node == NodeId(first) && n.state == "lost"
            };
            cluster.nodes.iter().any(lost) && cluster.leader != Some(NodeId(first))
        });
        // Its chunks may be half repaired: any two nodes may go.
        let second = leader(&dev);
        assert_ne!(second, 1, "the host of the log queued last");
        dev.order(&["kill", &second.to_string(), "--hard"]).ok();
        dev.order(&["erase", &second.to_string()]).ok();
        dev.until_repaired(second);
        dev.until_repaired(first);
        let before = reads.load(Ordering::Relaxed);
        while reads.load(Ordering::Relaxed) < before + 10 && !reader.is_finished() {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let left = (1..=5).find(|i| ![1, first as u16].contains(i) && dev.runs(*i)).unwrap();
    assert_same(&dev, 1, &scratch, "at the host");
    assert_same(&dev, left, &scratch, "at another");
}

#[test]
fn a_drained_node_is_empty_and_can_be_taken_away() {
    let scratch = Scratch::new();
    make_tree(&scratch.path("tree"));
    let dev = Dev::start(&scratch.path("dev"), 4);
    let tree = scratch.path("tree");
    dev.run(2, &["fs", "put", "-r", tree.to_str().unwrap(), "/tree"]).ok();
    dev.run(1, &["node", "drain", "2"]).ok();
    dev.until(1, "the drained node has nothing", |cluster| {
        let node = cluster.nodes.iter().find(|node| node.node == NodeId(2)).unwrap();
        cluster.recovery.short == 0 && node.stores.iter().all(|store| store.replicas == 0)
    });
    dev.order(&["kill", "2"]).ok();
    dev.order(&["erase", "2"]).ok();
    assert_same(&dev, 3, &scratch, "without it");
    dev.run(1, &["node", "drain", "2", "--off"]).ok();
}

/// Files that were stored while there was one node had one copy, for ever.
#[test]
fn what_was_stored_on_one_node_is_copied_when_others_join() {
    let scratch = Scratch::new();
    let alone = Dev::start_plain(&scratch.path("alone"), 1);
    let early = bytes(5, 300_000);
    alone.client(1, &[]).put("/early", &early, &NewFile::default()).unwrap();
    let mut joined = Vec::new();
    for name in ["b", "c"] {
        let data = scratch.path(name);
        fs::create_dir_all(&data).unwrap();
        let port = crate::common::free_port();
        let settings = format!(
            "native_port = {port}\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nhost = \"{name}\"\n"
        );
        fs::write(data.join("holdfast.toml"), settings).unwrap();
        joined.push(Joined::start(&data, &alone.address(1), &alone.data.join("secret")).unwrap());
    }
    alone.until(1, "the early file has three copies", |cluster| {
        let with = cluster.nodes.iter().filter(|n| n.stores.iter().any(|s| s.replicas > 0));
        cluster.recovery.short == 0 && with.count() == 3
    });
    for node in &joined {
        assert_eq!(read_there(&mut node.client(), "/early"), early);
    }
}

/// All at once, by SIGKILL, in the middle of writes; then everything is started again.
#[test]
fn a_cluster_that_was_killed_whole_comes_back_whole() {
    let scratch = Scratch::new();
    make_tree(&scratch.path("tree"));
    let tree = scratch.path("tree");
    let dev = Dev::start(&scratch.path("dev"), 3);
    dev.run(2, &["fs", "put", "-r", tree.to_str().unwrap(), "/tree"]).ok();
    let mut client = dev.client(3, &[]);
    let kept = bytes(8, 70_000);
    client.put("/kept", &kept, &NewFile::default()).unwrap();
    drop(client);
    for node in ["3", "1", "2"] {
        dev.order(&["kill", node, "--hard"]).ok();
    }
    dev.order(&["start", "2"]).refused(&["node-1", "start that first"]);
    for node in ["1", "2", "3"] {
        dev.order(&["start", node]).ok();
    }
    dev.until(1, "all nodes live and every chunk has its copies", |cluster| {
        cluster.nodes.iter().all(|node| node.state == "live") && cluster.recovery.short == 0
    });
    assert_same(&dev, 2, &scratch, "again");
    assert_eq!(read_there(&mut dev.client(1, &[]), "/kept"), kept);
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap().to_owned()
}

/// Whoever runs the cluster is killed: its nodes do not stay behind and keep its ports.
#[test]
fn the_nodes_of_a_cluster_end_with_the_process_that_runs_them() {
    let scratch = Scratch::new();
    let mut dev = Dev::start(&scratch.path("dev"), 2);
    let mut client = dev.client(2, &[]);
    client.put("/kept", b"kept", &NewFile::default()).unwrap();
    drop(client);
    let listed = dev.order(&["status"]).ok();
    let mut pids: Vec<String> = listed.split("pid ").skip(1).map(first_word).collect();
    assert_eq!(pids.len(), 2, "{listed}");
    signal(dev.child.id(), "KILL");
    dev.child.wait().unwrap();
    // A process that nobody waits for stays listed as a zombie.
    for () in attempts() {
        pids.retain(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        });
        if pids.is_empty() {
            break;
        }
    }
    assert!(pids.is_empty(), "{pids:?} still run");
    let again = Dev::start(&scratch.path("dev"), 2);
    assert_eq!(read_there(&mut again.client(1, &[]), "/kept"), b"kept");
}

/// Ctrl-C left the temporary directory behind, with everything that the nodes had stored.
#[test]
fn a_demonstration_that_is_interrupted_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let (tree, own) = (scratch.path("tree"), scratch.path("own"));
    make_tree(&tree);
    fs::create_dir_all(&own).unwrap();
    let mut demo = binary();
    demo.arg("demo").arg("--files").arg(&tree).env("TMPDIR", &own).stdout(Stdio::piped());
    let mut child = demo.spawn().unwrap();
    let mut told = String::new();
    // Kept open: who writes to nobody ends.
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut told).unwrap();
    assert!(told.contains("5 nodes run"), "{told}");
    assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    signal(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

#[test]
fn the_demonstration_loses_a_node_and_no_file() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    make_tree(&tree);
    let data = scratch.path("demo");
    let mut demo = binary();
    demo.args(["demo", "--lost-ms", "4000", "--rate", "64M", "--data"]).arg(&data);
    let told = finish(demo.arg("--files").arg(&tree), b"").ok();
    for part in ["5 nodes run", "61 files", "disk erased", "repaired", "all 61 files compare equal"]
    {
        assert!(told.contains(part), "`{part}` is missing in:\n{told}");
    }
    // A directory that is in use is nobody's to write into.
    let mut again = binary();
    finish(again.args(["demo", "--data"]).arg(&data), b"").refused(&["not empty"]);
    let mut none = binary();
    finish(none.args(["demo", "--files"]).arg(data.join("nothing")), b"")
        .refused(&["list the files"]);
}
