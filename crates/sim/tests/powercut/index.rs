//! The index of blobs on a whole node, over its lives: one that a build before has left, one that is
//! lost behind a log that was trimmed. What was named is there, whatever becomes of it.

use crate::blobs::{finish, plain, secret};
use crate::node::{SimClock, config};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_blob::{BLOBS_TOPIC, Blobs, BlobsOptions, ListQuery, NewObject, Writer};
use holdfast_env::net::NoPeers;
use holdfast_env::rows::{Batch, Engine, Rows};
use holdfast_env::{Disk, SeededRng};
use holdfast_log::Scope;
use holdfast_node::{Keeper, KeeperOptions, Machine, Node};
use holdfast_sim::SimDisk;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const PLACE: &str = "/data/blobs";

struct World {
    disk: SimDisk,
    node: Arc<Node>,
    blobs: Arc<Blobs>,
}

impl World {
    fn open(disk: SimDisk) -> World {
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk.clone()),
            clock: Arc::new(SimClock(AtomicU64::new(0))),
            rng: Arc::new(SeededRng::new(disk.operations())),
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let node = Node::open(machine, &config(), None).unwrap();
        let blobs = Blobs::open(&node, &BlobsOptions::new(&config().data, secret())).unwrap();
        World { disk, node, blobs }
    }

    /// Ends in order; then `change` has the directory.
    fn again(self, change: impl FnOnce(&SimDisk)) -> World {
        let World { disk, node, blobs } = self;
        blobs.end().unwrap();
        node.retire();
        drop((blobs, node));
        change(&disk);
        World::open(disk)
    }

    fn put(&self, key: &str) {
        let mut writer = Writer::new(&self.blobs, "b", key, 10);
        plain(finish(&self.node, writer.write(key.as_bytes()))).unwrap();
        plain(finish(&self.node, writer.finish(NewObject::default()))).unwrap();
    }

    fn keys(&self) -> Vec<String> {
        let query = ListQuery { max: 100, ..ListQuery::default() };
        let listed = plain(self.blobs.list("b", &query)).unwrap().objects;
        listed.into_iter().map(|(key, _)| key).collect()
    }

    /// Two snapshots, and rounds in which the log's host gives up what they cover.
    fn trim(&self) -> Index {
        for key in ["t1", "t2"] {
            self.put(key);
            self.node.snapshot_views().unwrap();
        }
        let mut keeper = Keeper::new(self.node.clone(), KeeperOptions::default());
        for round in 1..4 {
            keeper.step(round * 10_000_000_000);
            self.node.pump();
        }
        self.node.log.info(BLOBS_TOPIC).unwrap().first
    }
}

fn with_keys(keys: &[&str]) -> World {
    let world = World::open(SimDisk::new(1));
    plain(finish(&world.node, world.blobs.create_bucket("b", "me", false))).unwrap();
    keys.iter().for_each(|key| world.put(key));
    world
}

fn rows_of(disk: &SimDisk) -> Arc<dyn Rows> {
    disk.open_rows(Path::new(PLACE), "rows", 0).unwrap()
}

/// Makes of an index what a build from before the one fold has left: a position under another name,
/// and none of the fold's own rows. One row is there that no entry has made.
fn make_old(disk: &SimDisk, position: Index, entry: &[u8]) {
    let rows = rows_of(disk);
    let mut batch = Batch::default();
    rows.scan(&[0], &[1], &mut |row, _| {
        batch.remove(row.to_vec());
        Ok(true)
    })
    .unwrap();
    assert!(!batch.changes.is_empty(), "it was a new one");
    let mut value = position.to_bytes();
    crc32c(entry).encode(&mut value);
    batch.put(b"m".to_vec(), value);
    batch.put(b"bghost".to_vec(), holdfast_blob::Bucket::default().to_bytes());
    rows.write(batch).unwrap();
    rows.persist("test.rows").unwrap();
}

fn last_entry(node: &Node) -> (Index, Vec<u8>) {
    let last = Index(node.log.info(BLOBS_TOPIC).unwrap().next.0 - 1);
    node.log.read(BLOBS_TOPIC, last, 1, 1 << 20, Scope::Durable).unwrap().remove(0)
}

/// Its rows have no digest: they are made anew, where the log holds all that they do.
#[test]
fn an_index_of_a_build_before_is_folded_anew() {
    let world = with_keys(&["x", "y"]);
    let (last, entry) = last_entry(&world.node);
    let mut world = world.again(|disk| make_old(disk, last, &entry));
    for _ in 0..2 {
        assert_eq!(world.keys(), ["x", "y"]);
        let buckets: Vec<String> =
            world.blobs.buckets().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(buckets, ["b"], "nothing of the old rows is left");
        assert_eq!(world.node.findings(), Vec::<String>::new());
        world = world.again(|disk| assert_eq!(rows_of(disk).get(b"m").unwrap(), None));
    }
}

/// A topic could be trimmed by hand once: then the rows are all that there is, and are gone on from.
#[test]
fn an_index_of_a_build_before_is_kept_where_the_log_was_trimmed() {
    let world = with_keys(&["x", "y"]);
    let (last, entry) = last_entry(&world.node);
    world.node.log.trim(BLOBS_TOPIC, last).unwrap();
    let mut world = world.again(|disk| make_old(disk, last, &entry));
    assert_eq!(world.keys(), ["x", "y"]);
    world.put("z");
    for _ in 0..2 {
        world = world.again(|disk| assert_eq!(rows_of(disk).get(b"m").unwrap(), None));
        assert_eq!(world.keys(), ["x", "y", "z"]);
        assert_eq!(world.node.stopped_views(), Vec::<String>::new());
    }
    // A snapshot of it is as good as any.
    assert!(world.trim() > last);
    let world = world.again(lose_index);
    assert_eq!(world.keys(), ["t1", "t2", "x", "y", "z"]);
}

/// What is left of it where it was set aside, or removed by hand.
fn lose_index(disk: &SimDisk) {
    for entry in disk.list(Path::new(PLACE)).unwrap() {
        disk.remove(&Path::new(PLACE).join(entry.name)).unwrap();
    }
}

/// The log alone does not hold everything any more: snapshots and log do.
#[test]
fn a_trimmed_topic_and_its_snapshots_make_a_lost_index_anew() {
    let world = with_keys(&["x", "y"]);
    let first = world.trim();
    assert!(first > Index(1), "nothing was trimmed");
    world.put("z");
    let mut world = world.again(|_| ());
    let wanted = ["t1", "t2", "x", "y", "z"];
    assert_eq!(world.keys(), wanted);
    for round in 1..3 {
        world = world.again(lose_index);
        assert_eq!(world.keys(), wanted, "round {round}");
        assert_eq!(world.node.findings(), Vec::<String>::new());
    }
    assert_eq!(plain(world.blobs.verify().map_err(Into::into)).unwrap().objects, 5);
}
