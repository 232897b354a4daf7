//! Categories with limits on a node: what its rounds give up of their topics, behind snapshots of their
//! views, across restarts and jumps of clocks.

mod common;

use common::{SECOND_NS, SEGMENT_BYTES, category};
use holdfast_base::ids::Index;
use holdfast_base::random;
use holdfast_log::Info;
use holdfast_node::{Keeper, Node};
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::intake::Keeps;
use holdfast_sim::{Clocks, SimDisk};
use holdfast_wire::log::Set;
use holdfast_wire::scribe as msg;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MINUTE_S: u64 = 60;

struct World {
    disk: SimDisk,
    clocks: Arc<Clocks>,
    node: Arc<Node>,
    face: Arc<ScribeFace>,
    keeper: Keeper,
    messages: u64,
}

impl World {
    fn new() -> World {
        let clocks = Arc::new(Clocks::default());
        clocks.unix_ms.store(1_772_368_496_007, Ordering::Relaxed);
        World::on(SimDisk::new(1), clocks, 0)
    }

    fn on(disk: SimDisk, clocks: Arc<Clocks>, messages: u64) -> World {
        let (node, face, keeper) = common::opened(&disk, &clocks);
        World { disk, clocks, node, face, keeper, messages }
    }

    /// A process that ends without a word, and the next one, whose clock begins anew.
    fn restart(self) -> World {
        let World { disk, clocks, node, face, keeper, messages } = self;
        drop((keeper, face, node));
        World::on(disk, clocks, messages)
    }

    fn limit(&self, bytes: u64, age_s: u64) {
        let (retain_bytes, retain_ms) = (Some(bytes), Some(1000 * age_s));
        let set = Set { topic: category().topic(), create: false, retain_bytes, retain_ms };
        self.node.set_topic(&set).unwrap();
    }

    fn read_up_to(&self, reader: &str, next: u64) {
        let (reader, next) = (reader.to_owned(), Some(Index(next)));
        let moved = msg::Reader { category: "web".into(), reader, next };
        self.node.wait_for(|done| self.face.reader(moved, done)).unwrap();
    }

    /// So many batches of a sector each.
    fn send(&mut self, batches: u64) {
        for _ in 0..batches {
            self.messages += 1;
            let mut round = Round::default();
            let message = random::bytes(self.messages, 2000);
            round.add(&Messages { messages: vec![(category(), message)] });
            let not_kept = self.face.keep(&round.pack());
            assert!(not_kept[0].is_empty(), "{:?}", not_kept[0]);
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

    fn info(&self) -> Info {
        self.node.log.info(&category().topic()).unwrap()
    }
}

#[test]
fn the_oldest_messages_go_by_size_and_the_view_is_there_after_a_restart() {
    let mut world = World::new();
    world.send(100);
    let limit = 4 * SEGMENT_BYTES;
    world.limit(limit, 0);
    assert!(world.info().first == Index(1));
    for _ in 0..10 {
        world.send(10);
        world.pass(6);
    }
    let info = world.info();
    // What is in front of the older of two snapshots: at most two segments more than was asked for.
    assert!(info.bytes <= limit + 2 * SEGMENT_BYTES, "{info:?}");
    assert!(info.bytes > limit - SEGMENT_BYTES, "{info:?}");
    for _ in 0..3 {
        // The view begins with a snapshot, and takes what comes.
        world = world.restart();
        assert_eq!(world.info().next.0, world.messages + 1);
        world.send(40);
        world.pass(12);
    }
    assert!(world.info().first > info.first);
    assert!(world.info().bytes <= limit + 2 * SEGMENT_BYTES);
}

/// A calendar that was set an hour back or ahead gives up nothing that is young; and a category to which
/// nothing is sent any more is given up in time, all but its last two segments.
#[test]
fn messages_go_by_the_time_that_their_host_runs_whatever_clocks_say() {
    let mut world = World::new();
    world.send(1);
    world.limit(0, 30 * MINUTE_S);
    for _ in 0..34 {
        world.send(3);
        world.pass(MINUTE_S / 3);
    }
    world.clocks.unix_ms.fetch_sub(3_600_000, Ordering::Relaxed);
    world.pass(10);
    world.clocks.unix_ms.fetch_add(7_200_000, Ordering::Relaxed);
    world.pass(10);
    world.clocks.monotonic_ns.fetch_add(3600 * SECOND_NS, Ordering::Relaxed);
    world.pass(10);
    assert_eq!(world.info().first, Index(1));
    world.pass(45 * MINUTE_S);
    let info = world.info();
    assert!(info.first > Index(70) && info.bytes <= 2 * SEGMENT_BYTES, "{info:?}");
    let mut world = world.restart();
    world.send(1);
    assert_eq!(world.info().next.0, world.messages + 1);
}

/// A loader that was slower than the limits found that what it had not read was gone; and one that held for ever
/// would have filled the disk when nobody ran it any more.
#[test]
fn what_a_reader_has_not_read_stays_for_as_long_as_its_category_says() {
    let mut world = World::new();
    world.send(5);
    world.limit(2 * SEGMENT_BYTES, 0);
    world.node.hold_for_readers(&category().topic(), None, Some(1000 * 30 * MINUTE_S)).unwrap();
    world.read_up_to("loader", 3);
    for _ in 0..10 {
        world.send(10);
        world.pass(6);
    }
    assert_eq!(world.info().first, Index(1), "the loader needs them");
    // Across a restart, too.
    world = world.restart();
    world.pass(60);
    assert_eq!(world.info().first, Index(1));
    world.read_up_to("loader", 60);
    world.pass(60);
    let held = world.info().first;
    assert!(held > Index(40) && held <= Index(60), "{held}");
    // It says nothing more: it is passed, and from then on the others hold alone.
    for _ in 0..34 {
        world.send(3);
        world.pass(MINUTE_S);
    }
    let passed = world.info();
    assert!(passed.first > Index(60), "{passed:?}");
    for _ in 0..6 {
        world.send(10);
        world.pass(6);
    }
    let info = world.info();
    assert!(info.bytes <= 4 * SEGMENT_BYTES && info.first > passed.first, "{info:?}");
}
