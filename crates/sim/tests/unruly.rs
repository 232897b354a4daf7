//! Whole clusters over a log that promises no more than every engine does.

use holdfast_base::ids::{ChunkId, Durability, FileId, Index, NodeId, StoreId, Tier};
use holdfast_base::{Kind, Result};
use holdfast_cluster::{ChunkKind, ClusterCommand, Command, StoreState};
use holdfast_sim::on_a_deep_stack;
use holdfast_sim::world::cell::{End, SECOND};
use holdfast_sim::world::scene::Scene;
use holdfast_sim::world::{Report, Schedule, run};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

fn unruly(seed: u64) -> Report {
    let schedule = Schedule { unruly: true, ..Schedule::new(seed) };
    on_a_deep_stack(|| run(&schedule))
}

/// What a node commanded itself was done again where the log delivered it again: a token that had been
/// revoked was there once more (seeds 5 and 11). And who waits for the end of the log waits for an entry,
/// not for a gap: a node that joined waited for ever (seed 12).
#[test]
fn nothing_is_done_twice_and_nobody_waits_for_a_gap() {
    let mut seen = BTreeSet::new();
    for seed in [1, 5, 8, 11, 12] {
        let report = unruly(seed);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    for what in [
        "an entry appeared that had been answered before",
        "the answer of an append that was kept was lost",
        "the log failed over",
        "the log left a gap",
        "the log was slow for one topic",
    ] {
        assert!(seen.contains(what), "never: {what}");
    }
}

/// No node keeps the log: any may be lost with its disk, also the first, and a new one in its place begins
/// with the snapshot of whoever runs, for by then the log was trimmed.
#[test]
fn a_cluster_whose_log_is_nobodys_loses_any_node_and_nothing_else() {
    let mut seen = BTreeSet::new();
    for (seed, unruly) in [(42, false), (48, false), (50, false), (53, true)] {
        let schedule = Schedule { brokers: true, unruly, ..Schedule::new(seed) };
        let report = on_a_deep_stack(|| run(&schedule));
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        seen.extend(report.seen.into_keys());
    }
    for what in [
        "a disk was erased",
        "a node began with another node's snapshot",
        "another node led",
        "brokers kept the log",
        "no broker answered",
        "the log was trimmed",
    ] {
        assert!(seen.contains(what), "never: {what}");
    }
}

/// Appended by node 1, as it comes late or twice.
fn appears(scene: &Scene, command: ClusterCommand) -> Result<()> {
    let told = Arc::new(Mutex::new(None));
    let slot = told.clone();
    let done = Box::new(move |result: Result<()>| *slot.lock().unwrap() = Some(result));
    scene.node(1).unwrap().propose_cluster(&command, done);
    assert!(scene.until(10 * SECOND, |_| told.lock().unwrap().is_some()));
    told.lock().unwrap().take().unwrap()
}

/// What a process of node 2 that was given up had appended came late, and fenced the one that was started
/// after it: it ended, and said that two processes ran on copies of its directory.
#[test]
fn a_start_that_comes_late_ends_no_process() {
    on_a_deep_stack(|| {
        let scene = Scene::new(1, 3);
        let last = |scene: &Scene| {
            let node = scene.node(1).unwrap();
            node.cluster.read(|view, _| view.node(NodeId(2)).unwrap().clone()).unwrap()
        };
        let given_up = |nonce, after| ClusterCommand::Start {
            node: NodeId(2),
            nonce,
            after,
            host: "host-2".to_owned(),
            rack: String::new(),
            address: "n2".to_owned(),
            stores: Some(Vec::new()),
        };
        let before = last(&scene);
        let cell = (1..=3).find(|n| scene.node(*n).unwrap().id == NodeId(2)).unwrap();
        let starts_again = |scene: &Scene| {
            scene.end(cell, End::Kill);
            scene.start(cell);
            assert!(scene.until(20 * SECOND, |scene| scene.node(cell).is_some()));
        };
        starts_again(&scene);
        let running = last(&scene);
        assert!(running.incarnation > before.incarnation);
        let late = given_up(7, before.incarnation);
        assert_eq!(appears(&scene, late).unwrap_err().kind, Kind::Fenced);
        // And a copy of its own, whatever it says.
        appears(&scene, given_up(running.start_nonce, Index(1))).unwrap();
        scene.run_for(10 * SECOND);
        assert_eq!((last(&scene), scene.broken()), (running.clone(), Vec::new()));
        assert!(scene.node(cell).is_some());
        // Nobody runs: it counts, and the next process begins behind it.
        scene.end(cell, End::Kill);
        appears(&scene, given_up(8, running.incarnation)).unwrap();
        let given_up_at = last(&scene).incarnation;
        starts_again(&scene);
        assert!(last(&scene).incarnation > given_up_at);
        scene.run_for(10 * SECOND);
        assert_eq!(scene.broken(), Vec::<String>::new());
    });
}

/// Memory had ended with its process, and the next start sealed what was open there: the append failed,
/// and was in the log later all the same. Until another start the chunk was kept as if it were whole.
#[test]
fn what_ended_in_memory_is_dropped_though_its_seal_comes_late() {
    on_a_deep_stack(|| {
        let scene = Scene::new(2, 1);
        let store = StoreId(4711);
        let (node, tier, state) = (NodeId(1), Tier::Dram, StoreState::Gone);
        appears(&scene, ClusterCommand::RegisterStore { store, node, tier, capacity: 1 << 30 })
            .unwrap();
        appears(&scene, ClusterCommand::SetStoreState { store, state }).unwrap();
        let allocate = Command::AllocateCopies {
            kind: ChunkKind::Packed,
            owner: FileId(0),
            node: NodeId(9),
            replicas: vec![store],
            copies: 1,
            tier,
            durability: Durability::Memory,
        };
        scene.propose(1, allocate).unwrap();
        let on = |scene: &Scene| -> Vec<ChunkId> {
            let node = scene.node(1).unwrap();
            node.read_chunks(0, |view, _| view.on(store).map(|chunk| chunk.id).collect()).unwrap()
        };
        let chunk = on(&scene)[0];
        scene.propose(1, Command::SealChunk { chunk, length: 5, replicas: vec![store] }).unwrap();
        assert!(scene.until(30 * SECOND, |scene| on(scene).is_empty()), "{:?}", on(&scene));
    });
}
