//! A node with tables.

use holdfast_env::net::NoPeers;
use holdfast_env::{RealClock, RealDisk, RealEngine, RealRng};
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_table::face::TableFace;
use holdfast_table::regions::Regions;
use std::path::PathBuf;
use std::sync::Arc;

/// A node with tables, below a directory that goes with it.
pub struct World {
    directory: PathBuf,
    pub face: Arc<TableFace>,
}

impl World {
    pub fn new() -> World {
        World::within(1 << 30)
    }

    /// With room for so many bytes of records.
    #[expect(clippy::disallowed_methods, reason = "the directory is the test's own")]
    pub fn within(bytes: u64) -> World {
        let name = format!(
            "holdfast-dynamo-{}-{:x}",
            std::process::id(),
            holdfast_env::Rng::next_u64(&RealRng)
        );
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let machine = Machine {
            disk: Arc::new(RealDisk),
            engine: Arc::new(RealEngine),
            clock: Arc::new(RealClock::new()),
            rng: Arc::new(RealRng),
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let config = NodeConfig { worker_threads: 2, ..NodeConfig::new(&directory) };
        let node = Node::open(machine, &config, None).unwrap();
        let face = TableFace::new(node, bytes, Regions::default());
        face.open_all();
        World { directory, face }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
