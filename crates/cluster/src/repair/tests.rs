use super::*;

/// Node and store N on host N of rack N % 3, all well, with the same space.
fn nodes(count: u64) -> Nodes {
    let mut nodes = Nodes::default();
    let mut targets = Vec::new();
    for n in 1..=count {
        let (store, node) = (StoreId(n), NodeId(n as u32));
        let (host, rack) = (format!("h{n}"), format!("r{}", n % 3));
        let place =
            Place { node, host: host.clone(), rack: rack.clone(), serves: true, counts: true };
        nodes.places.insert(store, place);
        targets.push(Candidate { store, node, host, rack, free_mib: 100_000 });
    }
    nodes.targets.insert(Tier::Disk, targets);
    nodes
}

impl Nodes {
    fn lose(&mut self, store: u64) {
        let place = self.places.get_mut(&StoreId(store)).unwrap();
        (place.serves, place.counts) = (false, false);
        self.no_target(store);
    }

    fn no_target(&mut self, store: u64) {
        for targets in self.targets.values_mut() {
            targets.retain(|candidate| candidate.store != StoreId(store));
        }
    }
}

fn task(chunk: u64, live: usize, holders: &[u64]) -> Task {
    Task {
        chunk: ChunkId(chunk),
        generation: Generation(0),
        tier: Tier::Disk,
        live,
        wanted: 3,
        holders: holders.iter().map(|store| StoreId(*store)).collect(),
        dropped: Vec::new(),
    }
}

fn planned(assignments: &[Assignment]) -> Vec<(u64, u64)> {
    assignments.iter().map(|a| (a.chunk.0, a.source.0)).collect()
}

#[test]
fn chunks_with_the_fewest_copies_left_come_first() {
    let mut nodes = nodes(9);
    [1, 2].iter().for_each(|store| nodes.lose(*store));
    let tasks = [task(1, 2, &[1, 3, 4]), task(2, 1, &[1, 2, 3]), task(3, 2, &[2, 5, 6])];
    let limits = Limits { per_node: 9, assignments: 3 };
    let plan = plan(&tasks, &nodes, &[], limits);
    assert_eq!(plan.iter().map(|a| a.chunk.0).collect::<Vec<_>>(), [2, 2, 1]);
    assert!(plan.iter().all(|a| a.source.0 > 2 && a.target.0 > 2));
}

/// A short replica was dropped; the copy was sent to just the store that still had it open.
#[test]
fn a_store_whose_replica_was_dropped_is_the_last_choice() {
    let dropped = |nodes: &Nodes| {
        let task = Task { dropped: vec![StoreId(3)], ..task(7, 2, &[1, 2]) };
        plan(&[task], nodes, &[], Limits::default()).iter().map(|a| a.target.0).collect::<Vec<_>>()
    };
    for chunk in 4..9 {
        assert_ne!(dropped(&nodes(chunk)), [3]);
    }
    assert_eq!(dropped(&nodes(3)), [3], "there is no other");
}

#[test]
fn copies_come_from_the_least_busy_replica_and_go_to_other_hosts() {
    let mut nodes = nodes(6);
    nodes.lose(1);
    let tasks: Vec<Task> = (1..=8).map(|chunk| task(chunk, 2, &[1, 2, 3])).collect();
    let plan = plan(&tasks, &nodes, &[], Limits { per_node: 8, ..Limits::default() });
    let from = |store| plan.iter().filter(|a| a.source == StoreId(store)).count();
    assert_eq!((plan.len(), from(2), from(3)), (8, 4, 4));
    assert!(plan.iter().all(|a| [4, 5, 6].contains(&a.target.0)));
    // 2 and 3 are on racks 2 and 0: the third copy goes to rack 1 while it has room.
    assert!(plan.iter().all(|a| a.target == StoreId(4)), "{plan:?}");
    // Its room is gone: any other host is better than no copy.
    nodes.no_target(4);
    assert_eq!(
        super::plan(&tasks, &nodes, &[], Limits { per_node: 8, ..Limits::default() }).len(),
        8
    );
}

#[test]
fn no_node_sends_or_receives_more_than_its_limit_with_what_runs_already() {
    let mut nodes = nodes(5);
    nodes.lose(1);
    let tasks: Vec<Task> = (1..=30).map(|chunk| task(chunk, 2, &[1, 2, 3])).collect();
    let limits = Limits { per_node: 3, ..Limits::default() };
    let first = plan(&tasks, &nodes, &[], limits);
    // Targets 4 and 5 take three each; sources 2 and 3 send three each.
    assert_eq!(first.len(), 6);
    assert_eq!(plan(&tasks, &nodes, &first, limits), []);
    // What runs is not planned again, and what ended makes room.
    let next = plan(&tasks[first.len() - 1..], &nodes, &first[1..], limits);
    assert_eq!(next.len(), 1);
    assert!(first[1..].iter().all(|a| a.chunk != next[0].chunk));
}

#[test]
fn a_draining_replica_is_a_source_and_does_not_count() {
    let mut nodes = nodes(4);
    let draining = nodes.places.get_mut(&StoreId(1)).unwrap();
    draining.counts = false;
    nodes.no_target(1);
    let plan = plan(&[task(7, 2, &[1, 2, 3])], &nodes, &[], Limits::default());
    assert_eq!(planned(&plan), [(7, 1)], "of three idle sources the first");
    assert_eq!(plan[0].target, StoreId(4));
}

#[test]
fn nothing_is_planned_without_a_source_or_a_host() {
    let mut few = nodes(3);
    few.lose(1);
    assert_eq!(plan(&[task(1, 2, &[1, 2, 3])], &few, &[], Limits::default()), []);
    let mut silent = nodes(6);
    (1..=3).for_each(|store| silent.lose(store));
    assert_eq!(plan(&[task(1, 0, &[1, 2, 3])], &silent, &[], Limits::default()), []);
    // One that is silent for seconds still counts, so one copy is made, from the one that speaks.
    let mut mixed = nodes(6);
    mixed.lose(1);
    mixed.places.get_mut(&StoreId(2)).unwrap().serves = false;
    let plan = plan(&[task(1, 2, &[1, 2, 3])], &mixed, &[], Limits::default());
    assert_eq!(planned(&plan), [(1, 3)]);
}
