//! Stories of one cluster that a test directs: a node that slept through a trim of the log, one that
//! was cut off for as long while it ran, one whose view differs from all others.

use holdfast_base::Error;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Generation, Index, StoreId};
use holdfast_blob::{BLOBS_TOPIC, Blobs, BlobsOptions};
use holdfast_chunk::{Store, StoreConfig};
use holdfast_cluster::{
    Chunk, ChunkKind, ChunkState, Command, Location, NAMESPACE_TOPIC, REPLICAS_MAX,
};
use holdfast_env::trial::Trial;
use holdfast_env::{Disk, Secret, SeededRng};
use holdfast_node::Node;
use holdfast_sim::SimDisk;
use holdfast_sim::on_a_deep_stack;
use holdfast_sim::world::cell::{End, SECOND, address};
use holdfast_sim::world::scene::{Scene, Version};
use holdfast_wire::admin::Away;
use holdfast_wire::peer::{self, CopyPlan};
use holdfast_wire::peer_log;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

fn version(seed: u64) -> Version {
    Version { seed, bytes: 2000 + seed as u32 }
}

fn put(scene: &mut Scene, gateway: usize, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        scene.put(gateway, &format!("/f{seed}"), version(seed)).unwrap();
    }
}

fn first_entry(scene: &Scene) -> u64 {
    scene.node(1).unwrap().log.info(NAMESPACE_TOPIC).unwrap().first.0
}

fn whole_again(scene: &Scene) {
    let whole = scene.until(120 * SECOND, |scene| scene.why_not_whole().is_none());
    assert!(whole, "{:?}", scene.why_not_whole());
    assert_eq!(scene.violations(), Vec::<String>::new());
}

/// Everything, through one node.
fn read_all(scene: &Scene, gateway: usize, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let found = scene.read(gateway, &format!("/f{seed}")).unwrap();
        assert!(found == Some(version(seed).content()), "/f{seed} at n{gateway}");
    }
}

/// Writes until the log begins behind what node 3 has; gives where node 3 is.
fn trim_without_node_3(scene: &mut Scene) {
    let reached = scene.node(2).unwrap().shards.root().applied().0;
    for seed in 10..30 {
        put(scene, 2, seed..seed + 1);
        scene.run_for(4 * SECOND);
    }
    assert!(first_entry(scene) > reached, "{} is not behind {reached}", first_entry(scene));
}

#[test]
fn a_node_that_slept_through_a_trim_goes_on_with_a_snapshot_of_the_logs_host() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(21, 5);
        put(&mut scene, 3, 0..10);
        scene.end(3, End::Kill);
        trim_without_node_3(&mut scene);
        scene.start(3);
        whole_again(&scene);
        let node = scene.node(3).unwrap();
        assert_eq!(node.replicator.events.snapshots_taken_over.load(Ordering::Relaxed), 2);
        read_all(&scene, 3, 0..30);
    });
}

/// Its answers are labelled as possibly old as long as it hears nothing; then it cannot follow any
/// more, ends, and begins anew with a snapshot.
#[test]
fn a_node_that_was_cut_off_through_a_trim_labels_its_answers_and_begins_anew() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(22, 5);
        put(&mut scene, 3, 0..10);
        assert!(!scene.node(3).unwrap().is_behind());
        scene.cut_off(3);
        scene.run_for(3 * SECOND);
        assert!(scene.node(3).unwrap().is_behind() && !scene.node(2).unwrap().is_behind());
        // Its health said ok all the while.
        let said = |node: usize| {
            let conditions = scene.node(node).unwrap().conditions();
            conditions.into_iter().find(|condition| condition.name == "log")
        };
        let why = said(3).unwrap().sentence;
        assert!(why.contains("may be old") && why.contains("log's host"), "{why}");
        assert_eq!(said(2), None);
        trim_without_node_3(&mut scene);
        scene.heal();
        whole_again(&scene);
        assert!(scene.saw("a node that runs was left behind by a trim"));
        let node = scene.node(3).unwrap();
        assert!(!node.is_behind());
        assert_eq!(node.replicator.events.snapshots_taken_over.load(Ordering::Relaxed), 2);
        read_all(&scene, 3, 0..30);
    });
}

/// The log's host gets the disk that it had before the last files were put, and is not started. Gives
/// the newer one.
fn rolled_back(scene: &mut Scene) -> SimDisk {
    put(scene, 2, 0..5);
    scene.end(1, End::Kill);
    let older = scene.disk(1).durable_copy();
    scene.start(1);
    whole_again(scene);
    put(scene, 2, 5..10);
    scene.run_for(SECOND);
    scene.end(1, End::Kill);
    let newer = scene.disk(1).durable_copy();
    scene.put_back(1, older);
    newer
}

fn stopped(scene: &Scene, number: usize) -> String {
    let stopped = scene.node(number).and_then(|node| node.shards.root().status().stopped);
    stopped.map_or(String::new(), |e| e.message)
}

fn right_again(scene: &mut Scene, newer: SimDisk) {
    scene.end(1, End::Kill);
    scene.put_back(1, newer);
    scene.start(1);
    let goes_on = |node: Arc<Node>| node.stopped_views().is_empty();
    let well = |scene: &Scene| (1..=3).all(|number| scene.node(number).is_some_and(goes_on));
    let whole = scene.until(60 * SECOND, |s| s.why_not_whole().is_none() && well(s));
    let why = || scene.node(3).map(|node| node.stopped_views());
    assert!(whole, "{:?} {:?}", scene.why_not_whole(), why());
    put(scene, 3, 10..11);
    read_all(scene, 2, 0..11);
}

/// The log's host came back with an older copy of all that it had, and took changes beside the
/// history that the others had read; and these stayed stopped when the right one was put back.
#[test]
fn a_log_that_is_older_than_what_others_have_read_takes_nothing() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(24, 3);
        let newer = rolled_back(&mut scene);
        let members = [scene.node(2).unwrap(), scene.node(3).unwrap()];
        scene.start(1);
        assert!(scene.until(20 * SECOND, |scene| scene.node(1).is_some()));
        assert!(
            stopped(&scene, 1).contains("the log is older than node"),
            "{}",
            stopped(&scene, 1)
        );
        let start = scene.node(1).unwrap().sender.incarnation;
        assert_eq!(start, Index(0), "it was appended before anybody was asked");
        let next = scene.node(1).unwrap().log.info(NAMESPACE_TOPIC).unwrap().next;
        // The others hear of it when the reads that they had under way end.
        let all = |scene: &Scene| (1..=3).all(|number| !stopped(scene, number).is_empty());
        assert!(scene.until(60 * SECOND, all));
        for number in 1..=3 {
            assert!(scene.put(number, "/more", version(99)).is_err(), "{number}");
        }
        assert!(stopped(&scene, 2).contains("put the log of the host back"));
        assert_eq!(scene.node(1).unwrap().log.info(NAMESPACE_TOPIC).unwrap().next, next);
        right_again(&mut scene, newer);
        for (number, before) in (2..).zip(&members) {
            assert!(Arc::ptr_eq(before, &scene.node(number).unwrap()), "n{number} was started");
        }
    });
}

/// As before, of a host that could ask nobody when it started: it learns of it with the first
/// question of who comes back.
#[test]
fn a_log_that_grew_while_nobody_could_be_asked_stops_when_the_others_come_back() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(25, 3);
        let newer = rolled_back(&mut scene);
        scene.cut_off(1);
        scene.start(1);
        assert!(scene.until(20 * SECOND, |scene| scene.node(1).is_some()));
        let change = Command::Reclaim { budget: 1 };
        for _ in 0..100 {
            scene.propose(1, change.clone()).unwrap();
        }
        scene.heal();
        let stops = scene.until(5 * SECOND, |scene| !stopped(scene, 1).is_empty());
        assert!(stops && stopped(&scene, 1).contains("the log is older than node"));
        assert!(scene.propose(1, change).is_err());
        right_again(&mut scene, newer);
    });
}

/// A node that joins, or comes back empty, was left so: only what was stored from then on could
/// come to it.
#[test]
fn a_node_that_comes_back_empty_gets_its_share_of_what_is_there() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(23, 4);
        for number in 1..=4 {
            scene.disk(number).set_capacity(128 << 20);
        }
        scene.end(4, End::Kill);
        scene.run_for(20 * SECOND);
        for seed in 0..12 {
            let large = Version { seed, bytes: 1 << 20 };
            scene.put_large(2, &format!("/f{seed}"), large).unwrap();
        }
        scene.start(4);
        let stores = |scene: &Scene, number: usize| -> usize {
            let node = scene.node(number).unwrap();
            let held = |own: &holdfast_node::OwnStore| own.store.usage().chunks as usize;
            node.stores.iter().map(held).sum()
        };
        // Somebody's power fails while copies are under way.
        assert!(scene.until(60 * SECOND, |scene| scene.node(4).is_some() && stores(scene, 4) >= 2));
        scene.end(3, End::PowerCut);
        scene.run_for(2 * SECOND);
        scene.start(3);
        let balanced = |scene: &Scene| scene.node(4).is_some() && stores(scene, 4) >= 6;
        assert!(scene.until(120 * SECOND, balanced), "{}", stores(&scene, 4));
        // What it held when it went is set aside, once nothing has named it for long enough.
        scene.until(900 * SECOND, |scene| scene.violations().is_empty());
        whole_again(&scene);
        let copies = scene.until(60 * SECOND, |scene| {
            let chunks = scene.node(1).unwrap().shards.root().read(|view, _| {
                view.chunks().iter().all(|chunk| chunk.replicas.len() == chunk.copies as usize)
            });
            chunks.unwrap()
        });
        assert!(copies, "a copy that was one too many stayed");
        for seed in 0..12 {
            let found = scene.read(4, &format!("/f{seed}")).unwrap();
            assert!(found == Some(Version { seed, bytes: 1 << 20 }.content()), "/f{seed}");
        }
    });
}

/// A chunk remembered every store that it ever was on. With sixteen of them there was no room for
/// another copy: it stayed short for ever.
#[test]
fn disks_may_be_replaced_more_often_than_a_chunk_has_room_for_replicas() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(24, 4);
        put(&mut scene, 2, 0..4);
        for round in 0..REPLICAS_MAX {
            let number = 2 + round % 3;
            scene.end(number, End::Erase);
            scene.start(number);
            assert!(scene.until(120 * SECOND, |scene| scene.node(number).is_some()), "{number}");
            whole_again(&scene);
        }
        read_all(&scene, 3, 0..4);
        let most = scene
            .node(1)
            .unwrap()
            .shards
            .root()
            .read(|view, _| view.chunks().iter().map(|chunk| chunk.replicas.len()).max());
        assert!(most.unwrap().unwrap() < REPLICAS_MAX);
    });
}

/// A chunk that is written through node 2 and full of garbage; the cells that have it, node 2 first.
fn garbage(scene: &mut Scene) -> (ChunkId, Vec<usize>) {
    put(scene, 2, 0..120);
    let is_sealed = |scene: &Scene| first_chunk(scene).state != ChunkState::Open;
    assert!(scene.until(60 * SECOND, is_sealed), "it is full, and sealed");
    let chunk = first_chunk(scene);
    let cells = cells_of(scene, &chunk.replicas);
    assert_eq!((cells[0], cells.len()), (2, 3));
    for seed in (0..50).filter(|seed| !is_kept(*seed)) {
        scene.delete(2, &format!("/f{seed}")).unwrap();
    }
    (chunk.id, cells)
}

/// The chunk with the first object's bytes, as node 1 knows it.
fn first_chunk(scene: &Scene) -> Chunk {
    let node = scene.node(1).unwrap();
    let found = node.shards.root().read(|view, _| {
        let Location::Packed { pointer } = view.lookup("/f0")?.location else { return None };
        view.chunks().get(pointer.chunk).cloned()
    });
    found.unwrap().expect("its bytes are in a chunk")
}

/// Whose stores these are.
fn cells_of(scene: &Scene, replicas: &[StoreId]) -> Vec<usize> {
    let cell = |store: &StoreId| {
        let has = |n: &usize| scene.node(*n).is_some_and(|node| node.stores.get(*store).is_some());
        (1..=scene.nodes()).find(has).unwrap()
    };
    replicas.iter().map(cell).collect()
}

/// A node starts again without the file of one generation of a chunk: its replica must not count.
fn lose_file(scene: &mut Scene, number: usize, chunk: ChunkId, generation: Generation) {
    let (id, _) = own(scene, number);
    scene.end(number, End::Kill);
    let disk = scene.disk(number);
    let found = find(&disk, Path::new("/"), &format!("{chunk}.{generation}.chunk"));
    let found = found.expect("the file that the log names");
    disk.remove(&found).unwrap();
    disk.sync_dir(found.parent().unwrap(), "scenes.lose").unwrap();
    scene.start(number);
    let counts = |scene: &Scene| {
        let node = scene.node(1).unwrap();
        let known = node.shards.root().read(|view, _| view.chunks().get(chunk).cloned());
        known.unwrap().unwrap().replicas.contains(&id)
    };
    assert!(scene.until(60 * SECOND, |scene| !counts(scene)), "what is lost goes on counting");
}

/// Some of the first objects, which share the chunk, are no garbage.
fn is_kept(seed: u64) -> bool {
    seed >= 50 || seed.is_multiple_of(5)
}

/// The one store of a node.
fn own(scene: &Scene, number: usize) -> (StoreId, Store) {
    let node = scene.node(number).unwrap();
    let own = node.stores.iter().next().unwrap();
    (own.id, own.store.clone())
}

fn held(scene: &Scene, chunk: ChunkId) -> (u32, usize) {
    let node = scene.node(1).unwrap();
    let of = node.shards.root().read(|view, _| {
        view.chunks().get(chunk).map(|known| (known.generation.0, known.replicas.len()))
    });
    of.unwrap().unwrap()
}

/// It has switched, on three stores.
fn is_rewritten(scene: &Scene, chunk: ChunkId) -> bool {
    let (generation, replicas) = held(scene, chunk);
    generation > 0 && replicas == 3
}

/// The ways from node 2 to the other copies of its chunk were cut, and nothing else: within eight
/// seconds the chunk was at its next generation on node 2 alone. When node 2's disk went, what was
/// acknowledged was gone, while the other two had the generation before whole.
#[test]
fn compaction_waits_for_copies_that_are_cut_off_and_not_lost() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(26, 7);
        let (chunk, cells) = garbage(&mut scene);
        scene.cut_between(2, cells[1]);
        scene.cut_between(2, cells[2]);
        scene.run_for(40 * SECOND);
        assert_eq!(held(&scene, chunk), (0, 3), "nobody has gone on without the others");
        assert_eq!(scene.broken(), Vec::<String>::new());
        scene.heal();
        assert!(scene.until(700 * SECOND, |scene| is_rewritten(scene, chunk)), "tried for ever");
        scene.end(2, End::Erase);
        scene.start(2);
        whole_again(&scene);
        read_all(&scene, 3, (0..120).filter(|seed| is_kept(*seed)));
    });
}

/// As a build before left it: the last generation on one store, whose disk goes; the one before on
/// two others, which keep it until there is more. No path went back to it.
#[test]
fn a_chunk_whose_last_generation_is_lost_is_made_from_the_one_before() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(27, 7);
        let (chunk, _) = garbage(&mut scene);
        let first = scene.node(2).unwrap().stores.iter().next().unwrap().id;
        scene.end(2, End::Erase);
        scene.start(2);
        assert!(scene.until(60 * SECOND, |scene| scene.node(2).is_some()));
        let (generation, replicas) = (Generation(1), vec![first]);
        scene.propose(1, Command::CloseChunk { chunk }).unwrap();
        let length = scene
            .node(1)
            .unwrap()
            .shards
            .root()
            .read(|view, _| view.chunks().get(chunk).unwrap().length);
        let length = length.unwrap();
        let switch = Command::SwitchReplicas { chunk, generation, length, digest: 1, replicas };
        scene.propose(1, switch).unwrap();
        let is_back = |scene: &Scene| {
            let (now, replicas) = held(scene, chunk);
            now > generation.0 && replicas == 3
        };
        let whole = scene.until(300 * SECOND, is_back);
        let seen =
            scene.node(1).unwrap().shards.root().read(|view, _| view.chunks().get(chunk).cloned());
        assert!(whole, "{:?}", (seen, scene.broken()));
        // Every store follows the switch for itself.
        scene.run_for(20 * SECOND);
        whole_again(&scene);
        read_all(&scene, 3, (0..120).filter(|seed| is_kept(*seed)));
    });
}

/// A store lost the file of the generation that it had switched to while the one before still lay
/// beside it: its start fell back to that one, which nobody switches any more, and the copy counted
/// for ever.
#[test]
fn a_lost_generation_is_copied_anew_though_the_one_before_lies_beside_it() {
    // Seeds with which the one before is still there when its node starts again.
    for seed in [24, 31] {
        on_a_deep_stack(move || lose_the_last_generation(seed));
    }
}

fn lose_the_last_generation(seed: u64) {
    let mut scene = Scene::new(seed, 7);
    let (chunk, cells) = garbage(&mut scene);
    let last = cells[2];
    let (_, store) = own(&scene, last);
    let has_both = |_: &Scene| {
        let current = store.info(chunk).map(|info| info.generation);
        let before = store.other_generations(chunk);
        current > Some(Generation(0)) && before == [Generation(0)]
    };
    assert!(scene.until(700 * SECOND, has_both), "it never has both generations");
    let (generation, _) = held(&scene, chunk);
    lose_file(&mut scene, last, chunk, Generation(generation));
    let is_whole = |scene: &Scene| held(scene, chunk) == (generation, 3);
    assert!(scene.until(300 * SECOND, is_whole), "no third copy");
    whole_again(&scene);
    read_all(&scene, last, (0..120).filter(|seed| is_kept(*seed)));
}

/// A store had computed the next generation of a chunk, which waited for another one, and lost the file that
/// it had computed it from: what it had computed lay there in its place, and the replica counted for ever.
#[test]
fn a_lost_file_is_copied_anew_though_what_was_computed_from_it_lies_beside_it() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(26, 7);
        let (chunk, cells) = garbage(&mut scene);
        scene.cut_between(2, cells[1]);
        let last = cells[2];
        let (_, store) = own(&scene, last);
        let has_computed = |_: &Scene| !store.other_generations(chunk).is_empty();
        assert!(scene.until(200 * SECOND, has_computed), "it computes nothing");
        lose_file(&mut scene, last, chunk, Generation(0));
        scene.heal();
        assert!(scene.until(900 * SECOND, |scene| is_rewritten(scene, chunk)), "no three copies");
        // Each store follows the switch in its own time.
        scene.until(20 * SECOND, |scene| scene.violations().is_empty());
        whole_again(&scene);
        read_all(&scene, last, (0..120).filter(|seed| is_kept(*seed)));
    });
}

/// The log had sealed a chunk, and the store that had all of it had not heard of that when the other two
/// were dropped, whose disks were gone: it was never sealed there, so nobody could copy it.
#[test]
fn the_last_replica_is_sealed_where_it_lies_and_copied() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(38, 7);
        put(&mut scene, 2, 0..5);
        let Chunk { id: chunk, replicas, .. } = first_chunk(&scene);
        let cells = cells_of(&scene, &replicas);
        assert!(cells.len() == 3 && cells[0] == 2 && !cells.contains(&1), "{cells:?}");
        let (last, length) = (cells[2], own(&scene, 2).1.info(chunk).unwrap().length);
        scene.cut_off(last);
        let seal = Command::SealChunk { chunk, length, replicas: replicas.clone() };
        scene.propose(1, seal).unwrap();
        for (lost, store) in cells.iter().zip(&replicas).take(2) {
            scene.end(*lost, End::Erase);
            scene.start(*lost);
            let (store, generation) = (*store, Generation(0));
            let lost = Command::DropReplica { chunk, generation, store, lost: false };
            scene.propose(1, lost).unwrap();
        }
        scene.heal();
        whole_again(&scene);
        read_all(&scene, cells[1], 0..5);
    });
}

/// Builds before computed a generation anew under the same number, with fewer live slots, and some
/// stores held the one when the log switched to the other. Such a file is not served for it.
#[test]
fn a_file_that_is_not_what_the_log_switched_to_is_made_anew_from_the_others() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(28, 7);
        let (chunk, cells) = garbage(&mut scene);
        let last = cells[2];
        let (_, store) = own(&scene, last);
        assert!(scene.until(700 * SECOND, |scene| is_rewritten(scene, chunk)), "not rewritten");
        let next = Generation(held(&scene, chunk).0);
        let current = store.info(chunk).map(|info| info.generation);
        let beside = store.other_generations(chunk);
        assert_eq!((current, beside), (Some(Generation(0)), vec![next]), "it has followed already");
        drop(store);
        scene.end(last, End::Kill);
        let config = StoreConfig {
            commit_threads: 0,
            spare_file: false,
            ..StoreConfig::new("/data/chunks")
        };
        let disk = Arc::new(scene.disk(last));
        let (store, _) = Store::open(disk, Arc::new(SeededRng::new(1)), config).unwrap();
        let decided = store.digest(chunk, next).unwrap();
        store.unlink(chunk, next).unwrap();
        let other = store.compact(chunk, &|slot| slot.0 % 2 == 0, next).unwrap();
        assert_ne!(other.digest, decided);
        drop(store);
        scene.start(last);
        let found = |scene: &Scene| {
            let node = scene.node(last);
            node.is_some_and(|node| node.findings().iter().any(|f| f.contains("other objects")))
        };
        assert!(scene.until(20 * SECOND, found), "nobody saw it");
        let is_whole = |scene: &Scene| held(scene, chunk) == (next.0, 3);
        assert!(scene.until(300 * SECOND, is_whole), "no third copy");
        whole_again(&scene);
        read_all(&scene, last, (0..120).filter(|seed| is_kept(*seed)));
    });
}

/// Five nodes in three racks, one of them lost, and those that were to take its copies so slow that
/// no block came in time: half of the chunks stayed short for good.
#[test]
fn repair_goes_on_when_those_that_were_slow_are_well_again() {
    on_a_deep_stack(|| {
        for seed in 30..34 {
            let _limits = Trial::drawn(seed).enter();
            let mut scene = Scene::new(seed, 5);
            for seed in 0..16 {
                scene.put_large(2, &format!("/l{seed}"), Version { seed, bytes: 150_000 }).unwrap();
            }
            whole_again(&scene);
            scene.set_recovery(5_000_000);
            scene.end(3, End::Erase);
            let narrow = |rate| [4, 5].iter().for_each(|slow| scene.narrow(*slow, rate));
            let short = |scene: &Scene| {
                let leader = scene.cluster(1).unwrap().leader.map_or(1, |leader| leader.0 as usize);
                scene.cluster(leader).unwrap().recovery.short
            };
            narrow(2000);
            scene.run_for(45 * SECOND);
            assert!(short(&scene) > 4, "seed {seed}: nothing was slow");
            narrow(0);
            let whole = scene.until(90 * SECOND, |scene| short(scene) == 0);
            assert!(whole, "seed {seed}: {} chunks stay short", short(&scene));
        }
    });
}

/// A copy landed while nobody led, and lay there for longer than what no entry names may: it was set
/// aside between the next leader's hearing of it and the entry that counts it. Its time begins with
/// that hearing.
#[test]
fn a_copy_that_landed_while_nobody_led_stays_for_the_leader_that_hears_of_it() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(29, 5);
        put(&mut scene, 2, 0..120);
        whole_again(&scene);
        let sealed = scene.node(1).unwrap().shards.root().read(|view, _| {
            let mut chunks = view.chunks().iter();
            chunks.find(|chunk| chunk.state != ChunkState::Open && chunk.length > 0).cloned()
        });
        let known = sealed.unwrap().expect("a sealed chunk");
        let has = |number: &usize| known.replicas.contains(&own(&scene, *number).0);
        let source = (1..=5).find(has).unwrap();
        let to = (1..=5).find(|number| !has(number)).unwrap();
        let replicator = scene.node(to).unwrap().replicator.clone();
        let (id, store) = own(&scene, to);
        // Of an epoch that is to come: plans of the leader there is are none to this node.
        let plan = |number: u64, heard: u64, copies: Vec<peer::Copy>| {
            let plan =
                CopyPlan { epoch: Index(1 << 40), number, heard, copies, ..Default::default() };
            replicator.follow(plan).unwrap()
        };
        let copy = peer::Copy {
            store: id,
            chunk: known.id,
            generation: known.generation,
            source: own(&scene, source).0,
            source_address: address(source),
            bytes_per_second: 0,
        };
        // A file that is to be removed is no copy, as long as it is still there.
        let key = (id, known.id, known.generation);
        assert!(replicator.let_go(key));
        assert_eq!(plan(1, 0, vec![copy.clone()]).flights, Vec::new());
        replicator.is_gone(key);
        assert_eq!(plan(2, 0, vec![copy]).flights.len(), 1);
        assert!(!replicator.let_go(key), "it may be that file");
        let is_here = |_: &Scene| store.info(known.id).is_some_and(|info| !info.damaged);
        assert!(scene.until(20 * SECOND, is_here), "it was copied");
        assert!(!replicator.let_go(key), "a leader is to hear of it");
        scene.run_for(60 * SECOND);
        assert!(is_here(&scene), "nobody has heard of it");
        let ended = plan(3, 0, Vec::new()).ended;
        assert_eq!(ended.len(), 1);
        plan(4, 3, Vec::new());
        scene.run_for(10 * SECOND);
        assert!(is_here(&scene), "its entry may be on its way");
        assert!(scene.until(60 * SECOND, |scene| !is_here(scene)), "no entry came: it stays");
    });
}

/// A dead node counts as lost only after a while, and until then every chunk was said to have its
/// copies; and chunks that were sealed empty, which need none, were said to be short for ever.
#[test]
fn copies_on_a_silent_node_are_at_risk_from_its_first_silence() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(28, 4);
        put(&mut scene, 2, 0..40);
        whole_again(&scene);
        let told = |scene: &Scene| scene.cluster(1).unwrap().recovery;
        assert_eq!((told(&scene).short, told(&scene).away), (0, Away::default()));
        scene.end(3, End::Kill);
        let away = |scene: &Scene| told(scene).away.copies > 0;
        // Silence is noticed after four seconds; fifteen make it a loss.
        assert!(scene.until(12 * SECOND, away), "{:?}", told(&scene));
        let recovery = told(&scene);
        let on_it = scene.node(1).unwrap().shards.root().read(|view, _| {
            let kept = view.chunks().iter().filter(|chunk| chunk.is_kept() && chunk.length > 0);
            kept.filter(|chunk| chunk.replicas.len() == 3).count() as u64
        });
        assert!(recovery.away.chunks <= on_it.unwrap() && recovery.away.bytes > 0, "{recovery:?}");
        assert_eq!((recovery.away.chunks_of_one, recovery.lost), (0, 0));
        scene.start(3);
        assert!(scene.until(60 * SECOND, |scene| told(scene).away == Away::default()));
    });
}

/// How many of the chunks are on a store of node 2, through which all were written.
fn written_near(near: bool) -> (usize, usize) {
    let mut scene = Scene::new(25, 5);
    scene.end(2, End::Kill);
    scene.set_near(2, near);
    scene.start(2);
    whole_again(&scene);
    for seed in 0..12 {
        let large = Version { seed, bytes: 200_000 };
        scene.put_large(2, &format!("/f{seed}"), large).unwrap();
    }
    let node = scene.node(2).unwrap();
    let counted = node.shards.root().read(|view, _| {
        let here = |id: &StoreId| node.stores.get(*id).is_some();
        let raw = view.chunks().iter().filter(|chunk| chunk.kind == ChunkKind::Raw);
        raw.fold((0, 0), |(near, all), chunk| {
            (near + chunk.replicas.iter().any(here) as usize, all + 1)
        })
    });
    counted.unwrap()
}

#[test]
fn a_gateway_keeps_a_copy_of_what_it_writes_unless_told_to_spread_it() {
    on_a_deep_stack(|| {
        let (near, all) = written_near(true);
        assert!(all >= 12 && near == all, "{near} of {all}");
        // Three of five stores are chosen for each.
        let (near, all) = written_near(false);
        assert!(all >= 12 && near > 0 && near < all * 9 / 10, "{near} of {all}");
    });
}

/// Somebody's `refuse_next` is armed, and one entry later its view is another one.
fn apply_otherwise_on_the_last_node(scene: &mut Scene, gateway: usize, seed: u64) {
    let _trial = Trial::new().planting("cluster.one-node-applies-otherwise").enter();
    scene.run_for(12 * SECOND);
    put(scene, gateway, seed..seed + 1);
}

fn differs(node: &Node) -> bool {
    node.conditions().iter().any(|condition| condition.sentence.contains("differ"))
}

/// Digests were kept and never compared: a node whose memory or build was at fault served its own
/// version of the names for ever, and lent it to others.
#[test]
fn of_five_views_the_one_that_differs_stops_and_the_cluster_goes_on() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(28, 5);
        put(&mut scene, 2, 0..6);
        apply_otherwise_on_the_last_node(&mut scene, 2, 6);
        let stopped = |scene: &Scene| !scene.node(5).unwrap().has_names();
        assert!(scene.until(30 * SECOND, stopped), "it goes on");
        let node = scene.node(5).unwrap();
        let said = node.stopped_views().join("\n");
        for word in ["namespace/0", "nodes 1, 2, 3, 4 and node 5 differ", "snapshots/namespace-0"] {
            assert!(said.contains(word), "`{word}` in {said}");
        }
        // Not even of what it had from the beginning is anything served there, or lent.
        for seed in 0..7 {
            assert!(scene.read(5, &format!("/f{seed}")).is_err());
        }
        assert!(lent(&node).unwrap_err().contains("differ"));
        // The others say who is not well, each by its own next comparison, and go on without it.
        let named = |scene: &Scene, number| {
            let found = scene.node(number).unwrap().findings();
            found.iter().any(|what| what.contains("node 5 differs"))
        };
        assert!(scene.until(15 * SECOND, |scene| (1..=4).all(|number| named(scene, number))));
        for number in 1..=4 {
            let other = scene.node(number).unwrap();
            assert_eq!(other.conditions(), [], "n{number}");
            assert_eq!(lent(&other), Ok(()));
        }
        read_all(&scene, 3, 0..7);
        let reached = node.shards.root().applied().0;
        for seed in 7..20 {
            put(&mut scene, 2, seed..seed + 1);
            scene.run_for(4 * SECOND);
        }
        assert!(first_entry(&scene) > reached, "{} is not behind {reached}", first_entry(&scene));
        // With its snapshots away it takes over one of the log's host, and is well.
        drop(node);
        scene.end(5, End::Kill);
        let snapshots = Path::new("/data/snapshots/namespace-0");
        for entry in scene.disk(5).list(snapshots).unwrap() {
            scene.disk(5).remove(&snapshots.join(entry.name)).unwrap();
        }
        scene.start(5);
        whole_again(&scene);
        assert_eq!(scene.node(5).unwrap().conditions(), []);
        read_all(&scene, 5, 0..20);
    });
}

/// Whether a node lends a snapshot of its names.
fn lent(node: &Node) -> Result<(), String> {
    let (topic, index) = (NAMESPACE_TOPIC.to_owned(), Index(0));
    let ask = peer_log::Snapshot { sender: node.sender, topic, index, offset: 0, bytes: 4096 };
    let lent = node.answer_about_snapshots(peer_log::OP_PEER_SNAPSHOT, &ask.to_bytes());
    lent.map(|_| ()).map_err(|e| e.message)
}

/// Nobody can tell which of two is right: a person has to.
#[test]
fn of_two_views_that_differ_both_are_named_and_neither_lends_or_counts_for_trim() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(29, 2);
        let trimmed = |scene: &mut Scene, seeds: std::ops::Range<u64>| {
            let before = first_entry(scene);
            for seed in seeds {
                put(scene, 1, seed..seed + 1);
                scene.run_for(4 * SECOND);
            }
            first_entry(scene) - before
        };
        assert!(trimmed(&mut scene, 0..14) > 0, "in order, it is trimmed");
        apply_otherwise_on_the_last_node(&mut scene, 1, 14);
        let both = |scene: &Scene| (1..=2).all(|number| differs(&scene.node(number).unwrap()));
        assert!(scene.until(30 * SECOND, both), "not both are named");
        for number in 1..=2 {
            let node = scene.node(number).unwrap();
            assert!(node.has_names(), "n{number} goes on");
            let said = node.findings().join("\n");
            assert!(said.contains("node 1 and node 2 differ"), "n{number}: {said}");
            assert!(lent(&node).unwrap_err().contains("differ"), "n{number} lends");
        }
        assert_eq!(trimmed(&mut scene, 15..35), 0, "in doubt, it is not");
        // The other one's silence settles nothing.
        scene.end(2, End::Kill);
        scene.run_for(12 * SECOND);
        assert!(lent(&scene.node(1).unwrap()).is_err());
    });
}

/// Whoever keeps the log makes a shard's topic when it opens its own view of it, and others who heard of the
/// entry before that were refused: a node said so for as long as it ran, though it had the shard a second later.
#[test]
fn a_shard_that_was_added_is_opened_by_whoever_hears_of_it_first() {
    on_a_deep_stack(|| {
        // Whose housekeeping comes first is drawn.
        for seed in 1..=6 {
            let scene = Scene::new(seed, 3);
            scene.propose(1, Command::AddShard { shard: 1 }).unwrap();
            let nodes = || (1..=3).map(|number| scene.node(number).unwrap());
            // While one is not open yet, that is no finding.
            let opened = |_: &Scene| {
                let findings: Vec<String> = nodes().flat_map(|node| node.findings()).collect();
                assert_eq!(findings, Vec::<String>::new(), "seed {seed}");
                nodes().all(|node| node.shards.get(1).is_ok())
            };
            assert!(scene.until(30 * SECOND, opened), "seed {seed}");
        }
    });
}

/// Runs a future whose answers come when the cluster goes on.
fn finish<T>(scene: &Scene, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    for _ in 0..1000 {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => scene.run_for(SECOND / 10),
        }
    }
    panic!("an answer never came");
}

fn blobs_of(scene: &Scene, number: usize) -> Arc<Blobs> {
    let secret = Secret::draw(&SeededRng::new(7));
    Blobs::open(&scene.node(number).unwrap(), &BlobsOptions::new(Path::new("/data"), secret))
        .unwrap()
}

fn buckets(blobs: &Blobs) -> usize {
    blobs.buckets().unwrap().len()
}

/// The names of blobs were folded from the first entry by every node, for ever: their topic could
/// not be trimmed. A node that opens its view of them behind a trim begins with the host's snapshot,
/// and what nodes say of their views covers this one, too.
#[test]
fn a_node_that_opens_the_view_of_blobs_behind_a_trim_begins_with_the_hosts_snapshot() {
    on_a_deep_stack(|| {
        let scene = Scene::new(24, 3);
        let host = blobs_of(&scene, 1);
        let second = blobs_of(&scene, 2);
        let make = |number: usize| {
            let name = format!("b{number}");
            let made = finish(&scene, host.create_bucket(&name, "me", false));
            made.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        };
        let first = || scene.node(1).unwrap().log.info(BLOBS_TOPIC).unwrap().first.0;
        for number in 0..10 {
            make(number);
            scene.run_for(4 * SECOND);
        }
        assert_eq!(first(), 1, "node 3 has told nothing of its view yet");
        let third = blobs_of(&scene, 3);
        assert_eq!(buckets(&third), 10, "from the first entry");
        for number in 10..30 {
            make(number);
            scene.run_for(4 * SECOND);
        }
        assert!(first() > 1, "what all cover is given up");
        assert_eq!(scene.violations(), Vec::<String>::new());
        // It loses its disk, but for who it is, and comes back.
        let taken = |number: usize| {
            let events = &scene.node(number).unwrap().replicator.events;
            events.snapshots_taken_over.load(Ordering::Relaxed)
        };
        drop(third);
        scene.end(3, End::Kill);
        remove_all(&scene.disk(3), Path::new("/data/blobs"));
        remove_all(&scene.disk(3), Path::new("/data/snapshots/blobs-0"));
        scene.start(3);
        assert!(scene.until(60 * SECOND, |scene| scene.node(3).is_some()));
        let before = taken(3);
        let third = blobs_of(&scene, 3);
        assert_eq!(taken(3), before + 1);
        make(30);
        scene.run_for(10 * SECOND);
        for blobs in [&host, &second, &third] {
            assert_eq!(buckets(blobs), 31);
        }
        for number in 1..=3 {
            assert_eq!(scene.node(number).unwrap().stopped_views(), Vec::<String>::new());
        }
    });
}

/// Where a file of that name is, in a directory or below.
fn find(disk: &impl Disk, directory: &Path, name: &str) -> Option<PathBuf> {
    disk.list(directory).unwrap().into_iter().find_map(|entry| {
        let path = directory.join(&entry.name);
        match entry.is_dir {
            true => find(disk, &path, name),
            false => (entry.name == name).then_some(path),
        }
    })
}

fn remove_all(disk: &impl Disk, directory: &Path) {
    for entry in disk.list(directory).unwrap() {
        disk.remove(&directory.join(entry.name)).unwrap();
    }
}

/// Who lacked the names of one shard handed the lead on with every beat, and commanded nothing. Where that
/// shard had stopped on all nodes, nobody led: nothing was looked after in any other either.
#[test]
fn where_one_shard_has_stopped_everywhere_the_others_are_looked_after() {
    on_a_deep_stack(|| {
        let mut scene = Scene::new(30, 3);
        scene.propose(2, Command::AddShard { shard: 1 }).unwrap();
        let is_open = |scene: &Scene, number| scene.node(number).unwrap().shards.get(1).is_ok();
        assert!(scene.until(30 * SECOND, |scene| (1..=3).all(|number| is_open(scene, number))));
        scene.run_for(5 * SECOND);
        let leaders = |scene: &Scene| {
            (1..=3).filter(|number| scene.node(*number).unwrap().leads()).collect::<Vec<_>>()
        };
        let stop = |scene: &Scene, number| {
            let node = scene.node(number).unwrap();
            node.shards.get(1).unwrap().stop(Error::corrupt("one of its bits flipped"));
        };
        let first = leaders(&scene)[0];
        stop(&scene, first);
        let another = |scene: &Scene| leaders(scene).first().is_some_and(|leader| *leader != first);
        assert!(scene.until(20 * SECOND, another), "another one has all shards");
        (1..=3).for_each(|number| stop(&scene, number));
        put(&mut scene, 2, 0..20);
        for seed in 0..20 {
            scene.delete(2, &format!("/f{seed}")).unwrap();
        }
        let mut led = 0;
        for _ in 0..120 {
            scene.run_for(SECOND);
            led += usize::from(leaders(&scene).len() == 1);
        }
        assert!(led > 90, "for {led} seconds of 120 somebody led");
        let is_freed = scene
            .node(2)
            .unwrap()
            .shards
            .root()
            .read(|view, _| !view.names().needs_reclaim() && view.chunks().freed().1.is_none());
        assert!(is_freed.unwrap(), "what was deleted is freed");
    });
}
