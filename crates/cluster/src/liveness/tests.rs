use super::*;
use crate::ClusterOutcome;

const LEADER: NodeId = NodeId(1);
const EPOCH: Index = Index(1000);
/// As in development clusters.
const LOST_SOON_MS: u64 = 15_000;
const HOUR_NS: u64 = 3_600_000_000_000;

/// A leader with its view; what a round proposes is accepted at once.
struct World {
    view: ClusterView,
    liveness: Liveness,
    now_ns: u64,
    epoch: Index,
    index: u64,
    silent: BTreeSet<NodeId>,
    proposed: Vec<(u32, NodeState)>,
}

impl World {
    fn new(nodes: u32) -> World {
        let mut world = World {
            view: ClusterView::new(),
            liveness: Liveness::new(LEADER, LivenessOptions { lost_ms: LOST_SOON_MS }),
            now_ns: HOUR_NS * 10,
            epoch: EPOCH,
            index: 0,
            silent: BTreeSet::new(),
            proposed: Vec::new(),
        };
        world.accept(ClusterCommand::FoundCluster { id: 1 });
        for nonce in 1..=nodes as u64 {
            let (host, rack, address) = (format!("h{nonce}"), String::new(), "a:1".to_owned());
            let join = ClusterCommand::JoinNode { nonce, host, rack, address };
            let ClusterOutcome::Joined { node } = world.accept(join) else { panic!() };
            world.start(node);
        }
        world
    }

    fn start(&mut self, node: NodeId) {
        let (host, rack, address) = (format!("h{}", node.0), String::new(), "a:1".to_owned());
        self.accept(ClusterCommand::StartNode { node, host, rack, address, stores: vec![] });
    }

    fn accept(&mut self, command: ClusterCommand) -> ClusterOutcome {
        self.index += 1;
        self.view.apply(Index(self.index), &command).unwrap()
    }

    fn silence(&mut self, nodes: &[u32]) {
        self.silent.extend(nodes.iter().map(|node| NodeId(*node)));
    }

    /// Rounds in time for `ms`; who is not silent beats in each. Answers the last one.
    fn run(&mut self, ms: u64) -> Round {
        let mut last = Round::default();
        for _ in 0..ms / ROUND_MS {
            self.now_ns += ROUND_MS * 1_000_000;
            last = self.round();
        }
        last
    }

    fn round(&mut self) -> Round {
        let beat = |(node, info): (NodeId, &NodeInfo)| {
            let incarnation = info.incarnation;
            (!self.silent.contains(&node)).then_some(HeardBeat { node, incarnation })
        };
        let beats: Vec<HeardBeat> = self.view.nodes().filter_map(beat).collect();
        let round = self.liveness.round(self.now_ns, self.epoch, &self.view, &beats);
        for command in &round.commands {
            if let ClusterCommand::SetNode { node, state, .. } = command {
                self.proposed.push((node.0, *state));
            }
            self.accept(command.clone());
        }
        round
    }

    fn said(&mut self) -> Vec<(u32, NodeState)> {
        std::mem::take(&mut self.proposed)
    }
}

#[test]
fn a_silent_node_is_unavailable_after_seconds_lost_after_minutes_and_live_on_return() {
    let mut world = World::new(3);
    world.run(60_000);
    world.silence(&[3]);
    world.run(UNAVAILABLE_MS - ROUND_MS);
    assert_eq!(world.said(), []);
    world.run(ROUND_MS);
    assert_eq!(world.said(), [(3, NodeState::Unavailable)]);
    world.run(LOST_SOON_MS - UNAVAILABLE_MS - ROUND_MS);
    assert_eq!(world.said(), []);
    world.run(ROUND_MS);
    assert_eq!(world.said(), [(3, NodeState::Lost)]);
    world.run(60_000);
    assert_eq!(world.said(), []);
    world.silent.clear();
    world.run(60_000);
    assert_eq!(world.said(), [(3, NodeState::Live)]);
}

#[test]
fn a_beat_of_an_earlier_process_is_not_heard() {
    let mut world = World::new(2);
    let old = world.view.node(NodeId(2)).unwrap().incarnation;
    world.run(1000);
    world.start(NodeId(2));
    for _ in 0..UNAVAILABLE_MS / ROUND_MS {
        world.now_ns += ROUND_MS * 1_000_000;
        let beat = HeardBeat { node: NodeId(2), incarnation: old };
        world.liveness.round(world.now_ns, EPOCH, &world.view, &[beat]);
    }
    world.silence(&[2]);
    world.round();
    assert_eq!(world.said(), [(2, NodeState::Unavailable)]);
}

#[test]
fn a_new_leader_starts_the_timers_anew() {
    let mut world = World::new(3);
    world.run(1000);
    world.silence(&[3]);
    world.run(UNAVAILABLE_MS - ROUND_MS);
    world.epoch = Index(2000);
    world.run(UNAVAILABLE_MS);
    assert_eq!(world.said(), []);
    world.run(ROUND_MS);
    assert_eq!(world.said(), [(3, NodeState::Unavailable)]);
}

#[test]
fn a_cluster_that_slept_for_a_night_loses_nobody() {
    let mut world = World::new(5);
    world.run(1000);
    // The leader wakes first, and hears nobody for a while.
    world.now_ns += 8 * HOUR_NS;
    world.silence(&[2, 3, 4, 5]);
    world.run(UNAVAILABLE_MS);
    assert_eq!(world.said(), []);
    world.silent.clear();
    world.run(60_000);
    assert_eq!(world.said(), []);
}

#[test]
fn a_clock_that_jumps_by_an_hour_either_way_changes_nothing() {
    for forward in [true, false] {
        let mut world = World::new(5);
        world.run(1000);
        world.silence(&[4]);
        world.run(2000);
        world.now_ns = if forward { world.now_ns + HOUR_NS } else { world.now_ns - HOUR_NS };
        assert_eq!(world.round(), Round::default());
        world.run(UNAVAILABLE_MS - ROUND_MS);
        assert_eq!(world.said(), []);
        world.run(ROUND_MS);
        assert_eq!(world.said(), [(4, NodeState::Unavailable)], "its timer alone is longer");
        world.run(LOST_SOON_MS);
        assert_eq!(world.said(), [(4, NodeState::Lost)]);
    }
}

#[test]
fn a_round_that_is_late_but_not_too_late_keeps_the_timers() {
    let mut world = World::new(3);
    world.run(1000);
    world.silence(&[3]);
    for _ in 0..UNAVAILABLE_MS / (2 * ROUND_MS) {
        world.now_ns += 2 * ROUND_MS * 1_000_000;
        world.round();
    }
    assert_eq!(world.said(), [(3, NodeState::Unavailable)]);
}

#[test]
fn many_at_once_wait_for_a_persons_word() {
    let mut world = World::new(5);
    world.run(1000);
    world.silence(&[4]);
    world.run(ROUND_MS);
    world.silence(&[5]);
    let last = world.run(LOST_SOON_MS + 60_000);
    assert_eq!(world.said(), [(4, NodeState::Unavailable), (5, NodeState::Unavailable)]);
    assert_eq!(last.unconfirmed, [NodeId(4), NodeId(5)]);
    world.liveness.confirm_lost(last.unconfirmed);
    let last = world.run(ROUND_MS);
    assert_eq!(world.said(), [(4, NodeState::Lost), (5, NodeState::Lost)]);
    assert_eq!(last.unconfirmed, []);
    // The word was about that absence; it is not kept for the next.
    world.silent.clear();
    world.run(1000);
    world.said();
    world.silence(&[4, 5]);
    world.run(UNAVAILABLE_MS + 1000);
    assert_eq!(world.said(), [(4, NodeState::Unavailable), (5, NodeState::Unavailable)]);
}

#[test]
fn one_after_the_other_is_not_at_once() {
    let mut world = World::new(5);
    world.run(1000);
    world.silence(&[4]);
    world.run(3000);
    world.silence(&[5]);
    let last = world.run(LOST_SOON_MS + 1000);
    assert!(last.unconfirmed.is_empty());
    assert_eq!(
        world.said(),
        [
            (4, NodeState::Unavailable),
            (5, NodeState::Unavailable),
            (4, NodeState::Lost),
            (5, NodeState::Lost)
        ]
    );
}

#[test]
fn a_tenth_at_once_is_no_accident_of_the_cluster() {
    let mut world = World::new(20);
    world.run(1000);
    world.silence(&[19, 20]);
    world.run(LOST_SOON_MS);
    let lost: Vec<u32> =
        world.said().iter().filter(|said| said.1 == NodeState::Lost).map(|said| said.0).collect();
    assert_eq!(lost, [19, 20]);
    world.silence(&[16, 17, 18]);
    let last = world.run(LOST_SOON_MS);
    assert_eq!(last.unconfirmed, [NodeId(16), NodeId(17), NodeId(18)]);
}

#[test]
fn neither_the_leader_nor_a_node_that_never_started_is_judged_by_silence() {
    let mut world = World::new(2);
    let (host, rack, address) = ("h3".to_owned(), String::new(), "a:1".to_owned());
    world.accept(ClusterCommand::JoinNode { nonce: 9, host, rack, address });
    world.silence(&[1]);
    world.run(LOST_SOON_MS * 2);
    assert_eq!(world.said(), []);
}

/// A leader called a sleeping node unavailable and was deposed before it heard it again; the node
/// led next, judged everybody but itself, and stayed unavailable for as long as it led.
#[test]
fn a_node_that_leads_is_live_whatever_the_last_leader_said() {
    let mut world = World::new(2);
    let unavailable = |world: &mut World| {
        let (node, incarnation) = (LEADER, world.view.node(LEADER).unwrap().incarnation);
        let state = NodeState::Unavailable;
        world.accept(ClusterCommand::SetNode { node, incarnation, state });
    };
    unavailable(&mut world);
    world.silence(&[1]);
    world.run(ROUND_MS);
    assert_eq!(world.said(), [(1, NodeState::Live)]);
}

/// Whoever starts processes for views ends them as they like: that is no accident of the cluster.
#[test]
fn nodes_that_keep_views_alone_are_lost_without_a_word_and_do_not_count_with_others() {
    let mut world = World::new(12);
    for node in 8..=12 {
        let [host, rack, address] = ["h", "", "a:1"].map(str::to_owned);
        let node = NodeId(node);
        world.accept(ClusterCommand::StartViewNode { node, host, rack, address });
    }
    world.run(LOST_SOON_MS);
    world.silence(&[8, 9, 10, 11]);
    let round = world.run(LOST_SOON_MS + ROUND_MS);
    assert_eq!(round.unconfirmed, []);
    let lost = world.proposed.iter().filter(|(_, state)| *state == NodeState::Lost);
    assert_eq!(lost.map(|(node, _)| *node).collect::<Vec<_>>(), [8, 9, 10, 11]);
    // Two of seven that keep chunks are too many at once, whoever else there is.
    world.silence(&[6, 7]);
    let round = world.run(LOST_SOON_MS + ROUND_MS);
    assert_eq!(round.unconfirmed, [NodeId(6), NodeId(7)]);
}
