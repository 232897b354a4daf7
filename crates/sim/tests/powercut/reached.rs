//! The mark of how far the log is, beside a log of which the power takes what was not synced: a
//! power cut is never called a log that was put back from an older copy.

use crate::common::Answer;
use crate::node::{SimClock, config};
use holdfast_base::ids::{Durability, Index};
use holdfast_base::node::NodeKind;
use holdfast_cluster::Command;
use holdfast_env::net::NoPeers;
use holdfast_env::{Disk, SeededRng};
use holdfast_node::{Machine, Node};
use holdfast_sim::{SimDisk, SimDiskOptions};
use holdfast_wire::Call;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
