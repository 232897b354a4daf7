//! The mark of how far the log is, beside a log of which the power takes what was not synced: a
//! power cut is never called a log that was put back from an older copy. And what becomes of it when it is removed.

use crate::common::Answer;
use crate::node::{SimClock, config};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{Durability, Index};
use holdfast_base::node::NodeKind;
use holdfast_cluster::Command;
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
use holdfast_env::net::NoPeers;
use holdfast_env::{Disk, SeededRng};
use holdfast_node::{Machine, Node};
use holdfast_sim::{SimDisk, SimDiskOptions};
use holdfast_wire::Call;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const REACHED: &str = "/data/REACHED";

fn open(disk: &SimDisk) -> Arc<Node> {
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: Arc::new(SimClock(AtomicU64::new(0))),
        rng: Arc::new(SeededRng::new(disk.operations())),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    Node::open(machine, &config(), None).unwrap()
}

fn make(node: &Arc<Node>, path: &str, durability: Durability) -> Index {
    let (kind, mode, mtime, class, parents) = (NodeKind::Directory, 0o755, 1, None, false);
    let path = path.to_owned();
    let command = Command::MakeDir { path, kind, mode, mtime, class, parents };
    let (answer, done) = Answer::new();
    node.propose(Call::default(), &command, durability, done);
    node.pump();
    answer.get().unwrap();
    node.shards.root().applied()
}

/// What the node has noted, with another line in the place of that of a topic.
fn noted(disk: &SimDisk, topic: &str, line: &str) -> Vec<u8> {
    let noted = read_file(disk, Path::new(REACHED), 1 << 20).unwrap();
    let noted = String::from_utf8(noted).unwrap();
    let lines = noted.lines().filter(|known| !known.starts_with("check "));
    let own = format!("{topic} ");
    let lines = lines.map(|known| if known.starts_with(&own) { line } else { known });
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    format!("{lines}check {:08x}\n", crc32c(lines.as_bytes())).into_bytes()
}

/// Who goes on without what an older log lacks removes the mark, as it is told. Removed from below the running node, it
/// came back with that node's end as it had been, or, where nothing else had changed, not at all: the start behind that
/// was refused again, or would have taken whatever older log was put there.
#[test]
fn a_mark_that_is_removed_below_a_running_node_comes_back_without_what_is_missing() {
    for changes in [true, false] {
        let disk = SimDisk::with_options(1, SimDiskOptions::default());
        let node = open(&disk);
        make(&node, "/a", Durability::Durable);
        node.retire();
        drop(node);
        let bytes = noted(&disk, "cluster", "cluster 9999 00000007");
        let sites = ReplaceSites { data: "put.data", name: "put.name" };
        replace_file(&disk, Path::new(REACHED), &bytes, sites).unwrap();
        let node = open(&disk);
        let stopped = node.stopped_views();
        assert!(stopped.len() == 1 && stopped[0].contains("remove `/data/REACHED`"), "{stopped:?}");
        disk.remove(Path::new(REACHED)).unwrap();
        if changes {
            make(&node, "/b", Durability::Durable);
        }
        node.retire();
        drop(node);
        let kept = String::from_utf8(read_file(&disk, Path::new(REACHED), 1 << 20).unwrap());
        let kept = kept.unwrap();
        assert!(kept.contains("namespace/0 ") && !kept.contains("cluster 9999"), "{kept}");
        // The second start, and one more.
        for _ in 0..2 {
            let node = open(&disk);
            assert_eq!(node.stopped_views(), Vec::<String>::new());
            make(&node, "/a/b", Durability::Durable);
            let delete = Command::Delete { path: "/a/b".to_owned(), recursive: false };
            let (answer, done) = Answer::new();
            node.propose(Call::default(), &delete, Durability::Durable, done);
            node.pump();
            answer.get().unwrap();
            node.retire();
        }
        let kept = read_file(&disk, Path::new(REACHED), 1 << 20).unwrap();
        let kept = String::from_utf8(kept).unwrap();
        assert!(kept.contains("cluster ") && !kept.contains("cluster 9999"), "{kept}");
    }
}

#[test]
fn a_power_cut_is_never_taken_for_a_log_that_was_put_back() {
    let options = SimDiskOptions { volatile_dirs: true, ..SimDiskOptions::default() };
    let disk = SimDisk::with_options(1, options);
    let node = open(&disk);
    make(&node, "/kept", Durability::Durable);
    // Written, acknowledged as such, and not synced when the mark is made.
    let loose = make(&node, "/loose", Durability::Memory);
    node.retire();
    let (mut telling, mut not_there) = (0, 0);
    for seed in 0..64 {
        let cut = disk.power_cut(seed);
        let marked = cut.exists(Path::new("/data/REACHED")).unwrap();
        let node = open(&cut);
        assert_eq!(node.stopped_views(), Vec::<String>::new(), "cut {seed}");
        let found =
            node.shards.root().read(|view, _| (view.lookup("/kept"), view.lookup("/loose")));
        let (kept, found) = found.unwrap();
        assert!(kept.is_some(), "cut {seed} took what was durable");
        not_there += !marked as u32;
        telling += (marked && found.is_none()) as u32;
    }
    assert!(telling > 0 && not_there > 0, "entry {loose}: {telling} and {not_there}");
}
