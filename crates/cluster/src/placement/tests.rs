use super::*;
use crate::cluster::{ClusterCommand, NodeState, StartedStore};
use holdfast_base::Kind;
use holdfast_base::ids::Index;
use std::collections::BTreeMap;

const GIB: u32 = 1024;

/// Nodes (host, rack, free MiB): node N has disk store N.
pub(crate) fn view(nodes: &[(&str, &str, u32)]) -> ClusterView {
    let mut view = ClusterView::new();
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        view.apply(Index(index), &command).unwrap();
    };
    apply(ClusterCommand::FoundCluster { id: 1 });
    for (i, (host, rack, free_mib)) in nodes.iter().enumerate() {
        let nonce = i as u64 + 1;
        let [host, rack, address] = [host, rack, &"a:1"].map(|text| text.to_string());
        let (h, r, a) = (host.clone(), rack.clone(), address.clone());
        apply(ClusterCommand::JoinNode { nonce, host: h, rack: r, address: a });
        let store = StoreId(nonce);
        let (tier, free_mib) = (Tier::Disk, *free_mib);
        let stores = vec![StartedStore { store, tier, capacity: 1 << 40, free_mib }];
        let node = NodeId(nonce as u32);
        apply(ClusterCommand::StartNode { node, host, rack, address, stores });
    }
    view
}

fn even(nodes: usize) -> ClusterView {
    let hosts: Vec<String> = (0..nodes).map(|i| format!("h{i}")).collect();
    let nodes: Vec<_> = hosts.iter().map(|host| (host.as_str(), "", 100 * GIB)).collect();
    view(&nodes)
}

fn ask(seed: u64) -> Ask {
    Ask { copies: COPIES, tier: Tier::Disk, preferred: None, seed }
}

fn ids(stores: Result<Vec<StoreId>>) -> Vec<u64> {
    stores.unwrap().into_iter().map(|store| store.0).collect()
}

fn set(view: &mut ClusterView, node: u32, state: NodeState) {
    let node = NodeId(node);
    let incarnation = view.node(node).unwrap().incarnation;
    view.apply(Index(1000), &ClusterCommand::SetNode { node, incarnation, state }).unwrap();
}

/// A change here moves chunks of running clusters in ways that nobody asked for, and two builds of
/// one cluster apart: the algorithm is frozen, and this is how it was.
#[test]
fn the_choice_is_frozen() {
    let view = view(&[
        ("a", "r1", 10 * GIB),
        ("b", "r1", 20 * GIB),
        ("c", "r2", 30 * GIB),
        ("d", "r2", 40 * GIB),
        ("e", "r3", 50 * GIB),
    ]);
    let places: Vec<Vec<u64>> = (0..8).map(|seed| ids(place(&view, ask(seed)))).collect();
    assert_eq!(
        places,
        [[5, 3, 2], [5, 3, 2], [4, 2, 5], [3, 2, 5], [5, 2, 3], [4, 5, 2], [4, 2, 5], [3, 5, 1]]
    );
    let scores = [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX].map(minus_log2);
    assert_eq!(scores, [64 << 32, 63 << 32, 1 << 32, 1, 0]);
}

#[test]
fn logarithms_are_right_to_nine_digits() {
    for i in 0..1000u64 {
        let hash = mix(i);
        let real = -((hash as f64 + 1.0) / 2f64.powi(64)).log2();
        let ours = minus_log2(hash) as f64 / 2f64.powi(32);
        assert!((real - ours).abs() < 1e-9, "{hash}: {real} {ours}");
    }
}

#[test]
fn copies_go_to_different_hosts_and_to_different_racks_while_there_are_enough() {
    // Two stores' nodes share host `a`; racks r1 and r2 hold all hosts.
    let view = view(&[
        ("a", "r1", 100 * GIB),
        ("a", "r1", 100 * GIB),
        ("b", "r1", 100 * GIB),
        ("c", "r2", 100 * GIB),
    ]);
    for seed in 0..200 {
        let places = ids(place(&view, ask(seed)));
        assert_eq!(places.len(), 3);
        assert!(places.contains(&3) && places.contains(&4), "{places:?}");
        let racks: Vec<u64> = places[..2].iter().map(|store| store / 4).collect();
        assert_ne!(racks[0], racks[1], "the second copy leaves the rack: {places:?}");
    }
}

#[test]
fn stores_are_chosen_in_proportion_to_their_free_space() {
    let view = view(&[("a", "", 100 * GIB), ("b", "", 200 * GIB), ("c", "", 500 * GIB)]);
    let mut times = BTreeMap::<u64, u32>::new();
    for seed in 0..8000 {
        *times.entry(ids(place(&view, Ask { copies: 1, ..ask(seed) }))[0]).or_default() += 1;
    }
    let near = |store: u64, wanted: u32| times[&store].abs_diff(wanted) < wanted / 10;
    assert!(near(1, 1000) && near(2, 2000) && near(3, 5000), "{times:?}");
}

#[test]
fn the_preferred_node_comes_first_if_it_takes_chunks() {
    let mut view = even(5);
    let near = |view: &ClusterView, seed| {
        ids(place(view, Ask { preferred: Some(NodeId(4)), ..ask(seed) }))
    };
    assert!((0..50).all(|seed| near(&view, seed)[0] == 4));
    view.apply(Index(999), &ClusterCommand::Drain { node: NodeId(4), on: true }).unwrap();
    assert!((0..50).all(|seed| !near(&view, seed).contains(&4)));
}

#[test]
fn draining_silent_full_and_read_only_ones_get_nothing() {
    let mut view = even(6);
    view.apply(Index(999), &ClusterCommand::Drain { node: NodeId(1), on: true }).unwrap();
    set(&mut view, 2, NodeState::Unavailable);
    set(&mut view, 3, NodeState::Lost);
    let (store, state) = (StoreId(4), StoreState::ReadOnly);
    view.apply(Index(999), &ClusterCommand::SetStoreState { store, state }).unwrap();
    for seed in 0..50 {
        let mut places = ids(place(&view, ask(seed)));
        places.sort_unstable();
        assert_eq!(places, [5, 6]);
    }
    let incarnation = view.node(NodeId(5)).unwrap().incarnation;
    let free = vec![crate::cluster::FreeSpace { store: StoreId(5), free_mib: ROOM_MIB - 1 }];
    view.apply(Index(999), &ClusterCommand::Usage { node: NodeId(5), incarnation, free }).unwrap();
    let refused = place(&view, ask(1)).unwrap_err();
    assert_eq!(refused.kind, Kind::Retry);
    assert_eq!(
        refused.message,
        "place 3 copies on tier `disk`: 1 of 6 hosts take a chunk now, at least 2 must: bring \
         nodes back, add one, or free space"
    );
    // One copy is all that was asked for.
    assert_eq!(ids(place(&view, Ask { copies: 1, ..ask(1) })), [6]);
}

/// Two of three hosts were full, and writes were refused as for a passing reason: clients asked again
/// and again, and S3 answered 503 in place of 507.
#[test]
fn a_cluster_without_room_is_full_and_one_whose_nodes_may_return_is_not() {
    let full = |nodes: usize, full: &[u32]| {
        let mut view = even(nodes);
        for node in full {
            let (node, store) = (NodeId(*node), StoreId(*node as u64));
            let incarnation = view.node(node).unwrap().incarnation;
            let free = vec![crate::cluster::FreeSpace { store, free_mib: ROOM_MIB - 1 }];
            view.apply(Index(999), &ClusterCommand::Usage { node, incarnation, free }).unwrap();
        }
        view
    };
    let kind = |view: &ClusterView| place(view, ask(1)).map_err(|e| e.kind).err();
    assert_eq!(kind(&full(3, &[1])), None);
    assert_eq!(kind(&full(3, &[1, 2])), Some(Kind::Full));
    assert_eq!(kind(&full(3, &[1, 2, 3])), Some(Kind::Full));
    assert_eq!(kind(&full(1, &[1])), Some(Kind::Full));
    // One that is away may have room when it comes back.
    let mut away = full(3, &[1]);
    set(&mut away, 2, NodeState::Unavailable);
    assert_eq!(kind(&away), Some(Kind::Retry));
    // But would not be enough here.
    let mut away = full(3, &[1, 2]);
    set(&mut away, 3, NodeState::Unavailable);
    assert_eq!(kind(&away), Some(Kind::Full));
    let mut away = even(3);
    (1..=3).for_each(|node| set(&mut away, node, NodeState::Unavailable));
    assert_eq!(kind(&away), Some(Kind::Retry));
}

#[test]
fn fewer_hosts_than_copies_give_as_many_as_there_are() {
    assert_eq!(ids(place(&even(1), ask(1))), [1]);
    assert_eq!(ids(place(&even(2), ask(1))).len(), 2);
    let mut two = even(2);
    set(&mut two, 2, NodeState::Unavailable);
    assert!(place(&two, ask(1)).is_err(), "two hosts were there: one copy is not enough");
    let nowhere = place(&even(0), ask(1)).unwrap_err();
    assert!(nowhere.message.contains("0 of 0 hosts"), "{nowhere}");
    assert!(place(&even(3), Ask { tier: Tier::Dram, ..ask(1) }).is_err());
}
