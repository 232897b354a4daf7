//! A node that is killed, or whose power fails, while it becomes one: the name of its certificate is
//! its own at the next start, whatever its first one has come to.

use crate::node::{SimClock, config};
use holdfast_env::SeededRng;
use holdfast_env::net::NoPeers;
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_sim::SimDisk;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const NAME: &str = "n1";

fn open(disk: &SimDisk) -> holdfast_base::Result<Arc<Node>> {
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: Arc::new(SimClock(AtomicU64::new(0))),
        rng: Arc::new(SeededRng::new(1)),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    Node::open(machine, &NodeConfig { name: Some(NAME.to_owned()), ..config() }, None)
}

/// The number was written down behind the entry by which the node started. Whoever was killed
/// between the two had a name that belonged to a number which had started and which nobody knew any
/// more: it drew another number, and was refused its own name for ever, until somebody said
/// `holdfast node replace` of a node that never was.
#[test]
fn a_node_that_is_killed_within_its_first_start_has_its_name_at_the_next() {
    let whole = SimDisk::new(7);
    drop(open(&whole).unwrap());
    let mut numbers = std::collections::BTreeSet::new();
    for at in 0..whole.operations() {
        let disk = SimDisk::new(7);
        disk.crash_at(at);
        let _ = open(&disk);
        for after in [disk.process_kill(), disk.power_cut_losing_all(), disk.power_cut(at)] {
            let node = open(&after).unwrap_or_else(|e| panic!("killed at operation {at}: {e}"));
            let name =
                node.cluster.read(|view, _| view.name_of(node.id).map(str::to_owned)).unwrap();
            assert_eq!(name.as_deref(), Some(NAME), "killed at operation {at}");
            numbers.insert(node.id);
        }
    }
    // Some lost a number that was drawn: those are nobody's, and their name was given up.
    assert!(numbers.len() > 1, "{numbers:?}: no kill came between the number and its file");
}
