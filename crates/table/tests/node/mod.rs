//! A node with tables, for tests that ask its face.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use holdfast_base::Result;
use holdfast_env::net::NoPeers;
use holdfast_env::{Clock, RealDisk, RealEngine, RealRng, Rng};
use holdfast_node::{Machine, Node, NodeConfig};
use holdfast_table::face::{Done, TableFace};
use holdfast_table::regions::Regions;
use holdfast_wire::table as msg;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// The table that every world begins with.
pub const TABLE: &str = "t";

/// A clock that a test moves.
#[derive(Default)]
pub struct Hand(AtomicU64);

impl Clock for Hand {
    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        self.monotonic_ns() / 1_000_000
    }
}

/// A node with a table of so many tablets, below a directory that goes with it.
pub struct World {
    directory: PathBuf,
    pub face: Arc<TableFace>,
    clock: Arc<Hand>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "the directory is the test's own")]
    pub fn new(tablets: u16) -> World {
        let name = format!("holdfast-tables-{}-{:x}", std::process::id(), RealRng.next_u64());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let clock = Arc::<Hand>::default();
        let machine = Machine {
            disk: Arc::new(RealDisk),
            engine: Arc::new(RealEngine),
            clock: clock.clone(),
            rng: Arc::new(RealRng),
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let config = NodeConfig {
            worker_threads: 2,
            // There are as many topics as tablets.
            segment_bytes: 8 << 20,
            ..NodeConfig::new(&directory)
        };
        let face = TableFace::new(
            Node::open(machine, &config, None).unwrap(),
            1 << 30,
            Regions::default(),
        );
        face.open_all();
        let world = World { directory, face, clock };
        world.make(TABLE, tablets);
        world
    }

    pub fn make(&self, table: &str, tablets: u16) {
        let mode = msg::TableMode::Timeline;
        let make = msg::Make { table: table.into(), mode, tablets, everywhere: false };
        self.wait(|done| self.face.ask_make(make, done)).unwrap();
    }

    /// One write of session 1.
    pub fn write(&self, table: &str, sequence: u64, key: &[u8]) -> Result<Vec<msg::Written>> {
        let write = msg::Write { table: table.into(), session: 1, below: sequence };
        let (expect, value) = (msg::Expect::Any, Some(b"v".to_vec()));
        let row = msg::Row { sequence, expect, key: key.to_vec(), value };
        self.wait(|done| self.face.ask_write(write, vec![row], done))
    }

    /// So much time passes, and a round behind it.
    pub fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms * 1_000_000, Ordering::SeqCst);
        self.face.round();
    }

    pub fn drop_table(&self, table: &str) {
        let drops = msg::DropTable { table: table.into() };
        self.wait(|done| self.face.ask_drop(drops, done)).unwrap();
    }

    pub fn wait<T: Send + 'static>(&self, ask: impl FnOnce(Done<T>)) -> Result<T> {
        let (told, hears) = mpsc::channel();
        ask(Box::new(move |answer| told.send(answer).unwrap()));
        hears.recv().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
