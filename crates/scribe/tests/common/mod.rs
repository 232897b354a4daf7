//! A node on a simulated disk, whose log has one category, for tests that move its clocks.

use holdfast_env::SeededRng;
use holdfast_env::net::NoPeers;
use holdfast_node::{Keeper, KeeperOptions, Machine, Node, NodeConfig};
use holdfast_scribe::category::Category;
use holdfast_scribe::face::ScribeFace;
use holdfast_sim::{Clocks, SimDisk};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub const SECOND_NS: u64 = 1_000_000_000;
/// Of the log's files: a few batches fill one.
pub const SEGMENT_BYTES: u64 = 32 << 10;

pub fn category() -> Category {
    Category::new("web").unwrap()
}

/// The node that these disk and clocks have, a second after it was started.
pub fn opened(disk: &SimDisk, clocks: &Arc<Clocks>) -> (Arc<Node>, Arc<ScribeFace>, Keeper) {
    clocks.monotonic_ns.store(SECOND_NS, Ordering::Relaxed);
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: clocks.clone(),
        rng: Arc::new(SeededRng::new(1)),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    let config =
        NodeConfig { segment_bytes: SEGMENT_BYTES, ..NodeConfig::new("/data").without_threads() };
    let node = Node::open(machine, &config, None).unwrap();
    let keeper = Keeper::new(node.clone(), KeeperOptions::default());
    let face = ScribeFace::new(node.clone());
    face.open_all().unwrap();
    (node, face, keeper)
}
