use super::*;
use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;
use holdfast_env::{Rng, SeededRng};

fn register(store: u64, node: u32, tier: Tier) -> ClusterCommand {
    let (store, node) = (StoreId(store), NodeId(node));
    ClusterCommand::RegisterStore { store, node, tier, capacity: 9 << 20 }
}

fn start(node: u32, stores: &[(u64, Tier)]) -> ClusterCommand {
    let started = |(store, tier): &(u64, Tier)| StartedStore {
        store: StoreId(*store),
        tier: *tier,
        capacity: 1 << 30,
        free_mib: 500,
    };
    ClusterCommand::StartNode {
        node: NodeId(node),
        host: format!("h{node}"),
        rack: String::new(),
        address: format!("h{node}:7400"),
        stores: stores.iter().map(started).collect(),
    }
}

/// A view with its log's next index.
struct World {
    view: ClusterView,
    index: u64,
    /// The last one that there was.
    term: Option<Term>,
}

impl World {
    /// A founded cluster of nodes 1 to `nodes`, all started; node N has disk store N.
    fn new(nodes: u32) -> World {
        let mut world = World { view: ClusterView::new(), index: 0, term: None };
        world.accept(ClusterCommand::FoundCluster { id: 77 });
        for node in 1..=nodes {
            world.join(node as u64);
            world.accept(start(node, &[(node as u64, Tier::Disk)]));
        }
        world
    }

    fn apply(&mut self, command: ClusterCommand) -> Result<ClusterOutcome> {
        self.index += 1;
        let before = self.view.clone();
        let result = self.view.apply(Index(self.index), &command);
        if let (Some(before), Some(now)) = (self.term, self.view.term()) {
            assert!(before <= now, "{command:?} leads back from the term {before} to {now}");
        }
        self.term = self.view.term().or(self.term);
        match result.is_err() {
            true => assert_eq!(before, self.view, "refused, and changed: {command:?}"),
            false => {
                let mut bytes = Vec::new();
                self.view.snapshot(&mut bytes);
                assert_eq!(ClusterView::restore(&bytes).as_ref(), Ok(&self.view), "{command:?}");
            }
        }
        result
    }

    fn accept(&mut self, command: ClusterCommand) -> ClusterOutcome {
        self.apply(command).unwrap()
    }

    fn join(&mut self, nonce: u64) -> ClusterOutcome {
        let (host, rack, address) = ("h".to_owned(), String::new(), "h:1".to_owned());
        self.accept(ClusterCommand::JoinNode { nonce, host, rack, address })
    }

    fn beats(&mut self, nodes: &[u32], times: usize) {
        for _ in 0..times {
            for node in nodes {
                let node = NodeId(*node);
                let incarnation = self.view.node(node).unwrap().incarnation;
                self.accept(ClusterCommand::Beat { node, incarnation, free: Vec::new() });
            }
        }
    }

    fn set(&mut self, node: u32, state: NodeState) {
        let node = NodeId(node);
        let incarnation = self.view.node(node).unwrap().incarnation;
        self.accept(ClusterCommand::SetNode { node, incarnation, state });
    }

    fn leader(&self) -> Option<u32> {
        self.view.leader().map(|node| node.0)
    }

    fn dead(&self) -> Vec<u32> {
        self.view.controllers().filter(|(_, seat)| seat.dead).map(|(node, _)| node.0).collect()
    }

    fn seats(&self) -> Vec<u32> {
        self.view.controllers().map(|(node, _)| node.0).collect()
    }
}

#[test]
fn a_store_needs_a_node_keeps_its_tier_and_stays_gone() {
    let mut world = World::new(1);
    let mut apply = |command| world.apply(command);
    assert_eq!(apply(register(8, 2, Tier::Disk)).unwrap_err().kind, Kind::NotFound);
    assert_eq!(apply(register(1, 1, Tier::Dram)).unwrap_err().kind, Kind::Invalid);
    let state = |state| ClusterCommand::SetStoreState { store: StoreId(1), state };
    apply(state(StoreState::ReadOnly)).unwrap();
    apply(register(1, 1, Tier::Disk)).unwrap();
    apply(state(StoreState::Gone)).unwrap();
    apply(state(StoreState::Gone)).unwrap();
    assert!(apply(state(StoreState::Live)).is_err());
    assert!(apply(register(1, 1, Tier::Disk)).unwrap_err().message.contains("gone for good"));
    assert!(apply(start(1, &[(1, Tier::Disk)])).unwrap_err().message.contains("gone for good"));
    assert!(apply(ClusterCommand::SetDataFormat { version: 0 }).is_err());
    assert_eq!(world.view.store(StoreId(1)).unwrap().state, StoreState::Gone);
    assert_eq!(world.view.shards().shard_of("/any/path"), 0);
}

#[test]
fn registering_again_keeps_a_read_only_store_read_only() {
    let mut world = World::new(1);
    let (store, state) = (StoreId(1), StoreState::ReadOnly);
    world.accept(ClusterCommand::SetStoreState { store, state });
    world.accept(register(1, 1, Tier::Disk));
    world.accept(start(1, &[(1, Tier::Disk)]));
    assert_eq!(world.view.store(store).unwrap().state, state);
    assert!(world.view.store_serves(store) && !world.view.store_takes(store));
}

#[test]
fn snapshots_come_back_and_damage_is_refused() {
    let mut world = World::new(3);
    world.beats(&[1, 2], 2);
    world.set(3, NodeState::Unavailable);
    let mut bytes = Vec::new();
    world.view.snapshot(&mut bytes);
    assert_eq!(ClusterView::restore(&bytes).as_ref(), Ok(&world.view));
    for cut in 0..bytes.len() {
        assert!(ClusterView::restore(&bytes[..cut]).is_err());
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[cut] ^= 1 << bit;
            assert!(ClusterView::restore(&bad).is_err(), "byte {cut} bit {bit}");
            // With its checksum made right it is refused, or a state of its own.
            let end = bad.len() - 4;
            let crc = crc32c(&bad[..end]);
            bad[end..].copy_from_slice(&crc.to_le_bytes());
            // Byte 4 is the version: the old one has a form of its own.
            if cut != 4
                && let Ok(lie) = ClusterView::restore(&bad)
            {
                let mut again = Vec::new();
                lie.snapshot(&mut again);
                assert_eq!(again, bad);
            }
        }
    }
}

#[test]
fn the_first_id_is_the_clusters() {
    let mut world = World::new(1);
    assert!(world.apply(ClusterCommand::FoundCluster { id: 0 }).is_err());
    let again = world.accept(ClusterCommand::FoundCluster { id: 5 });
    assert_eq!(again, ClusterOutcome::Founded { id: 77 });
    assert_eq!(world.view.id(), Some(77));
}

#[test]
fn a_repeated_join_gets_the_same_number_and_another_one_the_next() {
    let mut world = World::new(2);
    assert_eq!(world.join(2), ClusterOutcome::Joined { node: NodeId(2) });
    assert_eq!(world.join(99), ClusterOutcome::Joined { node: NodeId(3) });
    assert_eq!(world.join(99), ClusterOutcome::Joined { node: NodeId(3) });
    // It never started, so it has no seat and no incarnation.
    assert_eq!(world.seats(), [1, 2]);
    let (host, rack, address) = ("h".to_owned(), String::new(), "h:1".to_owned());
    let join = ClusterCommand::JoinNode { nonce: 1, host, rack, address };
    let refused = ClusterView::new().apply(Index(1), &join).unwrap_err();
    assert!(refused.message.contains("not founded"), "{refused}");
}

/// The log's host lost power while a node joined; the node asked again and got another number. The
/// first one was called live for ever. (Found by seed 8064.)
#[test]
fn a_number_that_nobody_started_under_is_not_called_live() {
    let mut world = World::new(1);
    let ClusterOutcome::Joined { node } = world.join(7) else { panic!("it joins") };
    let name = |world: &World| world.view.node(node).unwrap().state_name();
    assert_eq!(name(&world), "joining");
    world.accept(start(node.0, &[]));
    assert_eq!(name(&world), "live");
}

#[test]
fn a_start_fences_the_process_before_it() {
    let mut world = World::new(2);
    let (node, old) = (NodeId(2), world.view.node(NodeId(2)).unwrap().incarnation);
    let new = world.accept(start(2, &[(2, Tier::Disk)]));
    assert_eq!(new, ClusterOutcome::Started { incarnation: Index(world.index) });
    for command in [
        ClusterCommand::Beat { node, incarnation: old, free: vec![] },
        ClusterCommand::Usage { node, incarnation: old, free: vec![] },
        ClusterCommand::SetNode { node, incarnation: old, state: NodeState::Lost },
    ] {
        assert_eq!(world.apply(command).unwrap_err().kind, Kind::Fenced);
    }
}

#[test]
fn a_start_says_which_stores_there_are() {
    let mut world = World::new(2);
    let state = |world: &World, store| world.view.store(StoreId(store)).unwrap().state;
    world.accept(start(1, &[(1, Tier::Disk), (5, Tier::Dram), (6, Tier::Disk)]));
    // The region is a new one, and one disk was not found.
    world.accept(start(1, &[(6, Tier::Disk), (7, Tier::Dram)]));
    assert_eq!(state(&world, 1), StoreState::Absent);
    assert!(!world.view.store_holds(StoreId(1)));
    assert_eq!(state(&world, 5), StoreState::Gone);
    assert_eq!(state(&world, 6), StoreState::Live);
    // It was put into the other node.
    world.accept(start(2, &[(2, Tier::Disk), (1, Tier::Disk)]));
    assert_eq!(state(&world, 1), StoreState::Live);
    assert_eq!(world.view.store(StoreId(1)).unwrap().node, NodeId(2));
    let twice = world.apply(start(2, &[(2, Tier::Disk), (2, Tier::Disk)])).unwrap_err();
    assert!(twice.message.contains("twice"), "{twice}");
}

#[test]
fn only_a_nodes_own_stores_take_its_word_for_their_space() {
    let mut world = World::new(2);
    let incarnation = world.view.node(NodeId(1)).unwrap().incarnation;
    let free = [1, 2, 3].map(|store| FreeSpace { store: StoreId(store), free_mib: 42 }).to_vec();
    world.accept(ClusterCommand::Usage { node: NodeId(1), incarnation, free });
    let free = |store| world.view.store(StoreId(store)).map(|info| info.free_mib);
    assert_eq!((free(1), free(2), free(3)), (Some(42), Some(500), None));
}

#[test]
fn what_a_store_is_good_for_follows_from_its_state_and_its_nodes() {
    let mut world = World::new(2);
    let store = StoreId(2);
    let good = |world: &World| {
        let view = &world.view;
        [view.store_holds(store), view.store_counts(store), view.store_serves(store)]
            .into_iter()
            .chain([view.store_takes(store)])
            .map(|good| if good { 'y' } else { 'n' })
            .collect::<String>()
    };
    assert_eq!(good(&world), "yyyy");
    world.accept(ClusterCommand::Drain { node: NodeId(2), on: true });
    assert_eq!(good(&world), "ynyn");
    world.accept(ClusterCommand::Drain { node: NodeId(2), on: false });
    world.set(2, NodeState::Unavailable);
    assert_eq!(good(&world), "yynn");
    world.set(2, NodeState::Lost);
    assert_eq!(good(&world), "nnnn");
    world.set(2, NodeState::Live);
    assert_eq!(good(&world), "yyyy");
    assert!(!world.view.store_holds(StoreId(9)));
}

#[test]
fn a_single_controller_leads_whatever_happens() {
    let mut world = World::new(1);
    assert_eq!(world.leader(), Some(1));
    world.beats(&[1], 20);
    assert_eq!(world.leader(), Some(1));
}

#[test]
fn a_leader_is_dead_once_most_of_the_others_have_outlived_it() {
    let mut world = World::new(3);
    world.beats(&[2, 3, 1], 10);
    assert_eq!((world.leader(), world.dead()), (Some(1), vec![]));
    // One of two others is not most of them.
    world.beats(&[2], 20);
    assert_eq!(world.leader(), Some(1));
    world.beats(&[3], BEATS_DEAD as usize - 1);
    assert_eq!(world.leader(), Some(1));
    world.beats(&[3], 1);
    assert_eq!((world.leader(), world.dead()), (Some(2), vec![1]));
    // Of two that live, the other one is most.
    world.beats(&[3], BEATS_DEAD as usize);
    assert_eq!((world.leader(), world.dead()), (Some(3), vec![1, 2]));
    // Who returns queues last.
    world.beats(&[1], 1);
    world.beats(&[2], 1);
    assert_eq!((world.leader(), world.dead()), (Some(3), vec![]));
    world.beats(&[1, 2], BEATS_DEAD as usize);
    assert_eq!((world.leader(), world.dead()), (Some(1), vec![3]));
}

#[test]
fn one_beat_between_keeps_a_slow_leader() {
    let mut world = World::new(3);
    for _ in 0..5 {
        world.beats(&[2, 3], BEATS_DEAD as usize - 1);
        world.beats(&[1], 1);
    }
    assert_eq!((world.leader(), world.dead()), (Some(1), vec![]));
}

#[test]
fn a_restart_is_no_beat() {
    let mut world = World::new(2);
    world.beats(&[2], BEATS_DEAD as usize - 1);
    world.accept(start(1, &[(1, Tier::Disk)]));
    assert_eq!(world.leader(), Some(1));
    world.beats(&[2], 1);
    // A process that starts over and over, and never comes to a beat, does not lead for ever.
    assert_eq!((world.leader(), world.dead()), (Some(2), vec![1]));
    world.accept(start(1, &[(1, Tier::Disk)]));
    assert_eq!(world.dead(), [1]);
}

#[test]
fn seats_are_taken_from_the_lost_and_given_to_the_first_that_wait() {
    let mut world = World::new(9);
    assert_eq!(world.seats(), [1, 2, 3, 4, 5, 6, 7]);
    world.set(2, NodeState::Unavailable);
    assert_eq!(world.seats(), [1, 2, 3, 4, 5, 6, 7]);
    world.set(2, NodeState::Lost);
    assert_eq!(world.seats(), [1, 3, 4, 5, 6, 7, 8]);
    // Who sits keeps the seat: a return must not unseat a leader.
    world.set(2, NodeState::Live);
    assert_eq!(world.seats(), [1, 3, 4, 5, 6, 7, 8]);
    world.set(1, NodeState::Lost);
    assert_eq!(world.seats(), [2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(world.leader(), Some(3), "the returned one queues last");
}

#[test]
fn beats_of_one_that_has_no_seat_count_against_nobody() {
    let mut world = World::new(8);
    world.beats(&[8], 3 * BEATS_DEAD as usize);
    assert_eq!((world.leader(), world.dead()), (Some(1), vec![]));
}

/// It answers, and may be switched off by whoever started it: others do not wait for its beats.
#[test]
fn a_node_that_keeps_views_alone_takes_no_seat() {
    let mut world = World::new(2);
    world.join(3);
    let start_alone = |node: u32| {
        let [host, rack, address] = ["h9", "", "h9:7400"].map(str::to_owned);
        ClusterCommand::StartViewNode { node: NodeId(node), host, rack, address }
    };
    let started = world.accept(start_alone(3));
    assert_eq!(started, ClusterOutcome::Started { incarnation: Index(world.index) });
    assert_eq!((world.seats(), world.view.keeps_chunks(NodeId(3))), (vec![1, 2], false));
    // Nor while the others are lost, as the only one that beats.
    world.set(1, NodeState::Lost);
    world.set(2, NodeState::Lost);
    world.beats(&[3], BEATS_DEAD as usize);
    assert_eq!((world.seats(), world.leader()), (vec![], None));
    assert!(world.apply(start_alone(7)).is_err(), "it did not join");
    // A directory that held views alone, and is a node's now.
    world.accept(start(3, &[(3, Tier::Disk)]));
    assert_eq!((world.seats(), world.view.keeps_chunks(NodeId(3))), (vec![3], true));
}

/// A process of node 1, with a store in memory of its own.
fn process(nonce: u64, after: Index) -> ClusterCommand {
    let store = |store, tier| StartedStore { store, tier, capacity: 1 << 30, free_mib: 500 };
    ClusterCommand::Start {
        node: NodeId(1),
        nonce,
        after,
        host: "h1".to_owned(),
        rack: String::new(),
        address: format!("h1:{nonce}"),
        stores: Some(vec![store(StoreId(1), Tier::Disk), store(StoreId(1000 + nonce), Tier::Dram)]),
    }
}

/// A log may show an entry again, or late one whose append had failed. A start that came so fenced the
/// process that had appended it, or the one that was started when it had failed; and as it named the
/// stores of its own time, what the newer one had in memory was said to be gone.
#[test]
fn a_start_that_comes_again_or_late_fences_nobody() {
    let mut world = World::new(1);
    let of_build_before = world.view.node(NodeId(1)).unwrap().incarnation;
    let lost = process(7, of_build_before);
    let kept = process(8, of_build_before);
    let started = world.accept(kept.clone());
    let incarnation = Index(world.index);
    assert_eq!(started, ClusterOutcome::Started { incarnation });
    let before = world.view.clone();
    assert_eq!(world.accept(kept), started, "a copy");
    assert_eq!(world.apply(lost.clone()).unwrap_err().kind, Kind::Fenced, "late");
    assert_eq!(before, world.view);
    // Of a directory whose copy runs: the second one starts, once it has seen the first.
    assert_eq!(world.apply(process(9, of_build_before)).unwrap_err().kind, Kind::Fenced);
    world.accept(process(9, incarnation));
    assert_eq!(world.view.store(StoreId(1008)).unwrap().state, StoreState::Gone);
    assert!(world.apply(lost).is_err());
    let no_nonce = world.apply(process(0, Index(world.index))).unwrap_err();
    assert_eq!(no_nonce.kind, Kind::Invalid, "{no_nonce}");
}

/// Processes follow each other, and what each appends comes at once, late, or twice: the last one that
/// was told that it had started is the node, whatever comes behind.
#[test]
fn whoever_started_last_is_the_node_whatever_comes_late() {
    let (mut refused, mut repeated, mut late_counted) = (0, 0, 0);
    for seed in 0..300 {
        let rng = SeededRng::new(seed);
        let below = |n: u64| rng.next_u64() % n;
        let mut world = World::new(1);
        let mut on_their_way: Vec<ClusterCommand> = Vec::new();
        let mut told = None;
        for nonce in 1..12 {
            // Who was told nothing is started again, as another process.
            let after = world.view.node(NodeId(1)).unwrap().incarnation;
            let own = process(nonce, after);
            let copies = below(3);
            on_their_way.extend((0..copies).map(|_| own.clone()));
            if below(3) > 0 {
                let incarnation = Index(world.index + 1);
                assert_eq!(world.accept(own), ClusterOutcome::Started { incarnation });
                told = Some((nonce, incarnation));
            }
            for _ in 0..below(4) {
                if on_their_way.is_empty() {
                    break;
                }
                let at = below(on_their_way.len() as u64) as usize;
                let late = on_their_way.swap_remove(at);
                let last = world.view.node(NodeId(1)).unwrap().clone();
                let ClusterCommand::Start { nonce: of, after, .. } = &late else { unreachable!() };
                let (of, after) = (*of, *after);
                let came = world.apply(late);
                let now = world.view.node(NodeId(1)).unwrap();
                match came {
                    Ok(ClusterOutcome::Started { incarnation }) if of == last.start_nonce => {
                        repeated += 1;
                        assert_eq!((incarnation, now), (last.incarnation, &last));
                    }
                    Ok(_) => {
                        late_counted += 1;
                        assert_eq!(last.incarnation, after, "nobody has started meanwhile");
                        told = None;
                    }
                    Err(_) => refused += 1,
                }
                if let Some((nonce, incarnation)) = told {
                    assert_eq!((now.start_nonce, now.incarnation), (nonce, incarnation));
                }
            }
        }
    }
    assert!(refused > 100 && repeated > 100 && late_counted > 100);
}

/// The host of an embedded log beats whenever anybody can: before this entry nobody else could
/// ever lead, whatever was drained or restarted.
#[test]
fn who_resigns_queues_last_and_a_single_controller_leads_all_the_same() {
    let mut world = World::new(3);
    let resign = |world: &World, node: u32| {
        let incarnation = world.view.node(NodeId(node)).unwrap().incarnation;
        ClusterCommand::Resign { node: NodeId(node), incarnation }
    };
    let bytes = ClusterCommand::Resign { node: NodeId(2), incarnation: Index(3) }.to_entry();
    assert_eq!(bytes, [1, 13, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    world.accept(resign(&world, 1));
    assert_eq!(world.leader(), Some(2));
    world.accept(resign(&world, 2));
    assert_eq!(world.leader(), Some(3));
    world.accept(resign(&world, 3));
    assert_eq!(world.leader(), Some(1), "it queued last, before the others did");
    // About a process that has ended since, it says nothing.
    let late = resign(&world, 1);
    world.accept(start(1, &[(1, Tier::Disk)]));
    assert_eq!(world.apply(late).unwrap_err().kind, Kind::Fenced);
    assert_eq!(world.leader(), Some(1));
    let mut alone = World::new(1);
    alone.accept(resign(&alone, 1));
    assert_eq!(alone.leader(), Some(1));
}

#[test]
fn settings_of_recovery_out_of_their_ranges_are_refused() {
    let mut world = World::new(1);
    let defaults = RecoverySettings::default();
    let set = |alpha_per_mille, p90_budget_percent| ClusterCommand::SetRecovery {
        settings: RecoverySettings { alpha_per_mille, p90_budget_percent, ..defaults },
    };
    world.accept(set(1000, P90_BUDGET_PERCENT_MAX));
    for (alpha, budget) in [(1001, 1), (1, P90_BUDGET_PERCENT_MAX + 1)] {
        let refused = world.apply(set(alpha, budget)).unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
    }
}

#[test]
fn a_store_that_never_started_has_all_its_capacity_free() {
    let mut world = World::new(1);
    world.accept(register(7, 1, Tier::Disk));
    assert_eq!(world.view.store(StoreId(7)).map(|store| store.free_mib), Some(9));
    let tiny = StoreId(8);
    let (node, tier, capacity) = (NodeId(1), Tier::Disk, u64::MAX);
    world.accept(ClusterCommand::RegisterStore { store: tiny, node, tier, capacity });
    assert_eq!(world.view.store(tiny).map(|store| store.free_mib), Some(u32::MAX));
}
