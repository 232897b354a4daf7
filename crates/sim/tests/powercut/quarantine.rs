//! A chunk's file whose removal the log has accepted, and that was not removed because the power
//! failed: it does not stay for ever, and does not go before its day in `quarantine` is over.

use crate::node::{SimClock, config};
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_chunk::{ChunkKind, ChunkSpec};
use holdfast_cluster::{ChunkKind as Kind, Command, Outcome};
use holdfast_env::net::NoPeers;
use holdfast_env::{Clock, Disk, SeededRng};
use holdfast_node::{Keeper, KeeperOptions, Machine, Node};
use holdfast_sim::SimDisk;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

fn open(disk: &SimDisk, clock: &Arc<SimClock>) -> (Arc<Node>, Keeper) {
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: clock.clone(),
        rng: Arc::new(SeededRng::new(1)),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    let node = Node::open(machine, &config(), None).unwrap();
    let keeper = Keeper::new(node.clone(), KeeperOptions::default());
    (node, keeper)
}

/// Lets that much time pass, with a few rounds of housekeeping in it.
fn pass(clock: &SimClock, keeper: &mut Keeper, ns: u64) {
    for _ in 0..8 {
        clock.0.fetch_add(ns / 8, Ordering::Relaxed);
        keeper.step(clock.monotonic_ns());
    }
}

/// Files below the node's directory that have to do with chunk 1.
fn files(disk: &SimDisk, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            found.extend(files(disk, &path));
        } else if entry.name.starts_with(&format!("{}.g0", ChunkId(1))) {
            found.push(path);
        }
    }
    found
}

/// A file of one raw chunk, closed, and deleted.
fn write_and_delete(node: &Arc<Node>) {
    let propose = |command| node.propose_and_wait(command, Durability::Durable).unwrap();
    let (path, mode, mtime) = ("/a".to_owned(), 0o644, 1);
    let begun = propose(Command::Begin { path: path.clone(), class: None, mode, mtime });
    let Outcome::File { file } = begun else { panic!("{begun:?}") };
    let own = node.stores.iter().next().unwrap();
    let allocate = Command::AllocateChunk {
        kind: Kind::Raw,
        owner: file,
        node: node.id,
        replicas: vec![own.id],
        tier: own.tier,
        durability: StorageClass::DEFAULT.durability(),
    };
    let made = propose(allocate);
    let Outcome::Chunk { chunk } = made else { panic!("{made:?}") };
    assert_eq!(chunk, ChunkId(1));
    own.store.create(ChunkSpec::new(chunk, ChunkKind::Raw, file.0)).unwrap();
    propose(Command::SealChunk { chunk, length: 0, replicas: vec![own.id] });
    own.store.seal(chunk, 0).unwrap();
    propose(Command::Put {
        path: "/b".into(),
        kind: NodeKind::File,
        mode,
        mtime,
        size: 0,
        crc: 0,
        class: None,
        location: holdfast_cluster::Location::Inline {},
        replace: true,
        parents: false,
        metadata: Vec::new(),
    });
    propose(Command::Abandon { file });
    assert_ne!(file, FileId(0));
}

#[test]
fn a_file_whose_unlink_was_accepted_waits_a_day_in_quarantine_and_then_goes() {
    let dir = Path::new("/data");
    // The operation that removes the file, once the log has said so.
    let remove_at = {
        let (disk, clock) = (SimDisk::new(1), Arc::new(SimClock(AtomicU64::new(0))));
        let (node, mut keeper) = open(&disk, &clock);
        write_and_delete(&node);
        pass(&clock, &mut keeper, 60 * SECOND);
        assert!(files(&disk, dir).is_empty(), "without a fault it goes at once");
        let trace = disk.trace();
        let is_it = |line: &String| line.starts_with("remove ") && line.contains("c0.1.g0");
        trace.iter().position(is_it).unwrap() as u64
    };
    let (disk, clock) = (SimDisk::new(1), Arc::new(SimClock(AtomicU64::new(0))));
    {
        let (node, mut keeper) = open(&disk, &clock);
        write_and_delete(&node);
        disk.crash_at(remove_at);
        pass(&clock, &mut keeper, 60 * SECOND);
        assert!(disk.crashed());
    }
    let mut disk = disk.power_cut_losing_all();
    assert_eq!(files(&disk, dir).len(), 1, "it is back");
    for _ in 0..2 {
        let (node, mut keeper) = open(&disk, &clock);
        let left = files(&disk, dir);
        assert!(left.len() == 1 && left[0].to_string_lossy().contains("/quarantine/"), "{left:?}");
        let own = node.stores.iter().next().unwrap();
        assert!(own.store.read_raw(ChunkId(1), Generation(0), 0, 1).is_err(), "it is not served");
        pass(&clock, &mut keeper, 11 * HOUR);
        assert_eq!(files(&disk, dir), left);
        drop((node, keeper));
        disk = disk.process_kill();
    }
    let (_node, mut keeper) = open(&disk, &clock);
    pass(&clock, &mut keeper, 3 * HOUR);
    assert!(files(&disk, dir).is_empty(), "{:?}", files(&disk, dir));
}
