//! Topics with limits on a node: what its rounds give up of segments on a disk, across restarts and
//! jumps of clocks, and never past what somebody holds.

use holdfast_base::ids::Index;
use holdfast_env::SeededRng;
use holdfast_env::net::NoPeers;
use holdfast_log::{Mode, Scope};
use holdfast_node::{Keeper, KeeperOptions, Machine, Node, NodeConfig};
use holdfast_sim::{Clocks, SimDisk};
use holdfast_wire::log::Set;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_MS: u64 = 60_000;

struct World {
    disk: SimDisk,
    clocks: Arc<Clocks>,
    node: Arc<Node>,
    keeper: Keeper,
}

fn start(disk: &SimDisk, clocks: &Arc<Clocks>) -> (Arc<Node>, Keeper) {
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: clocks.clone(),
        rng: Arc::new(SeededRng::new(1)),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    let config =
        NodeConfig { segment_bytes: 32 << 10, ..NodeConfig::new("/data").without_threads() };
    let node = Node::open(machine, &config, None).unwrap();
    let keeper = Keeper::new(node.clone(), KeeperOptions::default());
    (node, keeper)
}

impl World {
    fn new() -> World {
        let (disk, clocks) = (SimDisk::new(1), Arc::new(Clocks::default()));
        clocks.monotonic_ns.store(SECOND_NS, Ordering::Relaxed);
        clocks.unix_ms.store(1_772_368_496_007, Ordering::Relaxed);
        let (node, keeper) = start(&disk, &clocks);
        World { disk, clocks, node, keeper }
    }

    /// A process that ends without a word, and the next one, whose clock begins anew.
    fn restart(self) -> World {
        let World { disk, clocks, node, keeper } = self;
        drop((keeper, node));
        clocks.monotonic_ns.store(SECOND_NS, Ordering::Relaxed);
        let (node, keeper) = start(&disk, &clocks);
        World { disk, clocks, node, keeper }
    }

    fn set(&self, retain_bytes: u64, retain_ms: u64) {
        let (retain_bytes, retain_ms) = (Some(retain_bytes), Some(retain_ms));
        let create = self.node.log.info("t").is_err();
        let set = Set { topic: "t".to_owned(), create, retain_bytes, retain_ms };
        self.node.set_topic(&set).unwrap();
    }

    /// So many entries of a sector each, one a commit.
    fn append(&self, entries: usize) {
        for _ in 0..entries {
            self.node.log.append(
                "t",
                vec![vec![7; 2000]],
                Mode::Synced,
                Box::new(|done| assert!(done.is_ok())),
            );
            self.node.log.sync("t").unwrap();
        }
    }

    /// Rounds of a second each.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let now_ns =
                self.clocks.monotonic_ns.fetch_add(SECOND_NS, Ordering::Relaxed) + SECOND_NS;
            self.clocks.unix_ms.fetch_add(1000, Ordering::Relaxed);
            self.keeper.step(now_ns);
        }
    }

    fn first(&self) -> u64 {
        self.node.log.info("t").unwrap().first.0
    }
}

#[test]
fn the_oldest_segments_go_by_size_and_the_rest_is_there_after_a_restart() {
    let mut world = World::new();
    world.set(100 << 10, 0);
    world.append(200);
    world.pass(6);
    let info = world.node.log.info("t").unwrap();
    assert!(info.bytes <= 100 << 10 && info.bytes > 50 << 10, "{info:?}");
    let kept: Vec<_> = world.node.hosted().unwrap().segments("t").unwrap();
    assert_eq!(kept[0].0, info.first, "whole segments go");
    let mut world = world.restart();
    assert_eq!(world.first(), info.first.0);
    assert_eq!(world.node.retention("t").unwrap().bytes, 100 << 10);
    world.append(100);
    world.pass(6);
    assert!(world.first() > info.first.0);
    let page = world.node.log.read("t", Index(world.first()), 1, 1, Scope::Durable).unwrap();
    assert_eq!(page[0].0, Index(world.first()));
}

/// Whoever rides what a topic held goes on with its tail, which a limit of bytes had taken.
#[test]
fn nothing_is_given_up_that_somebody_holds() {
    let mut world = World::new();
    let held = Arc::new(AtomicU64::new(60));
    let holds = held.clone();
    world.node.hold_topics(Box::new(move |topic| {
        (topic == "t").then(|| Index(holds.load(Ordering::Relaxed)))
    }));
    world.set(1, 0);
    world.append(200);
    world.pass(12);
    assert!((2..=60).contains(&world.first()), "{}", world.first());
    held.store(u64::MAX, Ordering::Relaxed);
    world.pass(6);
    assert!(world.first() > 150, "{}", world.first());
}

/// A calendar that was set an hour ahead emptied topics of half an hour, one that was set back kept
/// them for ever; and a machine that slept for an hour found its topics empty.
#[test]
fn entries_go_by_the_time_that_their_host_runs_whatever_clocks_say() {
    let mut world = World::new();
    world.set(0, 30 * MINUTE_MS);
    world.append(50);
    world.pass(20);
    world.clocks.unix_ms.fetch_add(3_600_000, Ordering::Relaxed);
    world.pass(20);
    world.clocks.unix_ms.fetch_sub(7_200_000, Ordering::Relaxed);
    world.pass(20);
    world.clocks.monotonic_ns.fetch_add(3600 * SECOND_NS, Ordering::Relaxed);
    world.pass(20);
    assert_eq!(world.first(), 1);
    // A kill forgets a minute at most, and counts none that nobody saw.
    world.pass(10 * 60);
    let mut world = world.restart();
    world.clocks.unix_ms.fetch_add(3_600_000, Ordering::Relaxed);
    world.append(1);
    world.pass(10 * 60);
    assert_eq!(world.first(), 1);
    world.pass(12 * 60);
    assert!((30..=51).contains(&world.first()), "{}", world.first());
    let left = world.node.log.read("t", Index(51), 1, 1, Scope::Durable).unwrap();
    assert_eq!(left.len(), 1);
}

/// The limits of a damaged file are not guessed.
#[test]
fn a_damaged_file_of_limits_keeps_everything_and_is_told() {
    let world = World::new();
    world.set(1, 0);
    world.append(100);
    let disk: &dyn holdfast_env::Disk = &world.disk;
    disk.open("/data/RETAIN".as_ref(), holdfast_env::disk::Access::Cached)
        .unwrap()
        .write_at(b"x", 3)
        .unwrap();
    let mut world = world.restart();
    let is_found =
        |world: &World| world.node.findings().iter().any(|found| found.contains("RETAIN"));
    assert!(is_found(&world));
    world.pass(12);
    assert_eq!(world.first(), 1);
    // It stayed found after it was written anew.
    world.set(0, 0);
    assert!(!is_found(&world) && !is_found(&world.restart()));
}

/// What cannot be read keeps everything, too; what is in its place is named, with what to do.
#[test]
fn a_directory_in_the_place_of_the_limits_is_told_and_named() {
    let world = World::new();
    let disk: &dyn holdfast_env::Disk = &world.disk;
    disk.create_dir_all("/data/RETAIN".as_ref()).unwrap();
    let world = world.restart();
    assert!(world.node.findings().iter().any(|found| found.contains("RETAIN")));
    let set = Set { topic: "t".into(), create: true, retain_bytes: Some(1), retain_ms: None };
    let e = world.node.set_topic(&set).unwrap_err();
    assert!(e.message.contains("/data/RETAIN") && e.message.contains("move it away"), "{e}");
}
