mod liveness;
mod world;

use super::field::DiskBandwidth;
use super::*;
use holdfast_base::Error;
use holdfast_wire::admin::SlowTask;
use holdfast_wire::peer::Directions;
use world::*;

#[test]
fn every_copy_is_made_near_the_speed_that_the_links_leave() {
    let mut world = World::new(13, lost_one(240, 13));
    world.lose(1);
    for n in 2..=13 {
        // Foreground of very different nodes.
        world.machine(n).foreground = Directions { out: n * 4_000_000, into: (15 - n) * 4_000_000 };
    }
    let seconds = world.finish();
    let capacity: u64 = (2..=13).map(|n| 75_000_000 - (n * 4_000_000).min(63_000_000)).sum();
    let ideal = 240.0 * CHUNK_BYTES as f64 / capacity as f64;
    assert!(seconds < 1.35 * ideal + 2.0, "{seconds} s, ideally {ideal}");
    assert_eq!(world.landed.len(), 240);
    assert_eq!(world.repair.told().copies_made, 240);
    // No copy went to a node that holds one, and each was begun once, but for a few stragglers.
    assert!(world.begun.len() < 264, "{}", world.begun.len());
}

/// At the product's own ratio of chunk to link, 64 MiB to a gigabit, a chunk is half a second of its
/// link and more of what its readers leave: the last copies of single nodes decide.
#[test]
fn chunks_of_64_mib_are_copied_near_the_speed_of_links_of_a_gigabit() {
    for (chunks, most) in [(1200, 1.25), (240, 1.35)] {
        let mut world = World::new(13, lost_one(chunks, 13));
        world.tasks.iter_mut().for_each(|task| task.bytes = 64 << 20);
        world.lose(1);
        let mut capacity = 0;
        for n in 2..=13 {
            let foreground = Directions { out: n * 4_000_000, into: (15 - n) * 4_000_000 };
            let machine = world.machine(n);
            (machine.link, machine.foreground) = (125_000_000, foreground);
            capacity += Terms::default().allow(125_000_000, n * 4_000_000);
        }
        let seconds = world.finish();
        let ideal = (chunks * (64 << 20)) as f64 / capacity as f64;
        assert!(seconds < most * ideal + 2.0, "{chunks} chunks: {seconds} s, ideally {ideal}");
    }
}

/// A node reports an end until the leader has said that it heard.
#[test]
fn an_end_that_is_reported_again_counts_once() {
    let mut world = World::new(5, lost_one(1, 5));
    world.lose(1);
    let ended = |world: &World| world.machines.values().find_map(|m| m.ended.first().cloned());
    while ended(&world).is_none() {
        world.round();
    }
    let ended = ended(&world).unwrap();
    let site = world.nodes.sites.iter().find(|s| s.stores.contains(&ended.store)).unwrap();
    let report = peer::Report { number: 99, ended: vec![ended], ..peer::Report::default() };
    let heard = world.repair.heard(world.now_ns, site, report.clone());
    assert_eq!(heard.len(), 1);
    assert_eq!(world.repair.heard(world.now_ns, site, report), []);
    assert_eq!(world.repair.found.len(), 0);
}

/// A short replica was dropped; the copy was sent to just the store that still had it open.
#[test]
fn a_store_whose_replica_was_dropped_is_the_last_choice() {
    let target = |nodes| {
        let task = Task { dropped: vec![StoreId(3)], ..task(7, 2, &[1, 2]) };
        let mut world = World::new(nodes, vec![task]);
        world.finish();
        world.landed[0].store
    };
    for nodes in 4..9 {
        assert_ne!(target(nodes), StoreId(3));
    }
    assert_eq!(target(3), StoreId(3), "there is no other");
}

/// Each time that a host got a new disk, a node of its name stayed behind that is gone for good. From
/// 255 of them on, no chunk with a copy on that host was planned any more.
#[test]
fn nodes_that_are_gone_for_good_are_in_nobodys_way() {
    let mut world = World::new(300, vec![task(7, 2, &[1, 2])]);
    for gone in 4..=300 {
        world.lose(gone);
        world.nodes.sites[gone as usize - 1].host = "h2".to_owned();
    }
    world.finish();
    assert_eq!(world.landed[0].store, StoreId(3));
}

#[test]
fn chunks_with_the_fewest_copies_left_come_first_and_drains_last() {
    let mut tasks = lost_one(99, 9);
    tasks.iter_mut().take(49).for_each(|task| task.drains = true);
    tasks.extend((100..110).map(|chunk| task(chunk, 1, &[1, 2 + chunk % 8])));
    let mut world = World::new(9, tasks);
    world.lose(1);
    world.finish();
    let of = |chunks: std::ops::Range<u64>| -> Vec<u64> {
        let begun = world.begun.iter().zip(&world.plans);
        begun.filter(|(begun, _)| chunks.contains(&begun.0.0)).map(|(_, plan)| *plan).collect()
    };
    let mean = |plans: Vec<u64>| plans.iter().sum::<u64>() as f64 / plans.len() as f64;
    // One of two missing copies at a time: the second is as urgent as the others.
    let (one_left, repairs, drains) = (of(100..110), of(50..100), of(1..50));
    assert!(one_left[..10].iter().all(|plan| *plan == one_left[0]), "{one_left:?}");
    assert!(mean(repairs) < mean(drains), "{:?} {:?}", of(50..100), of(1..50));
}

/// It may be read anywhere. In a cluster of more than 255 nodes no chunk was moved: its task named
/// all nodes but one.
#[test]
fn a_chunk_that_moves_goes_where_it_is_asked_to() {
    [9, 300].into_iter().for_each(moves_go_where_they_are_asked_to);
}

fn moves_go_where_they_are_asked_to(nodes: u64) {
    let to = |chunk: u64, to: u64| Task {
        to: Some(StoreId(to)),
        wanted: 4,
        ..task(chunk, 3, &[1, 2, 3])
    };
    let mut tasks: Vec<Task> = (1..=12).map(|chunk| to(chunk, 4 + chunk % 3)).collect();
    tasks.push(Task { drains: true, ..task(20, 2, &[1, 2]) });
    let mut world = World::new(nodes, tasks);
    world.finish();
    for landed in world.landed.iter().filter(|landed| landed.chunk.0 < 20) {
        assert_eq!(landed.store, StoreId(4 + landed.chunk.0 % 3), "{landed:?}");
    }
    assert_eq!(world.landed.len(), 13);
}

#[test]
fn copies_go_to_other_hosts_and_to_other_racks_while_there_are_some() {
    let mut world = World::new(6, (1..=8).map(|chunk| task(chunk, 2, &[1, 2, 3])).collect());
    world.lose(1);
    world.finish();
    // 2 and 3 are in racks 2 and 0: the third copy goes to rack 1, where 4 is.
    assert!(world.landed.iter().all(|landed| landed.store == StoreId(4)), "{:?}", world.landed);
    // Its room is gone, and 5 shares a host with 2.
    let mut world = World::new(6, (1..=8).map(|chunk| task(chunk, 2, &[1, 2, 3])).collect());
    world.lose(1);
    world.nodes.sites[3].targets.clear();
    world.nodes.sites[4].host = "h2".to_owned();
    world.finish();
    assert!(world.landed.iter().all(|landed| landed.store == StoreId(6)), "{:?}", world.landed);
}

/// It was counted against its host for ever: a machine whose disk was lost and that joined anew got
/// no copy back, and a cluster of three stayed at two.
#[test]
fn a_host_whose_node_was_lost_takes_copies_when_it_joins_anew() {
    let mut world = World::new(4, vec![task(1, 2, &[1, 2, 3])]);
    world.nodes.sites[3].host = "h3".into();
    world.lose(3);
    world.finish();
    assert!(world.landed.iter().all(|landed| landed.store == StoreId(4)));
    assert_eq!(world.landed.len(), 1);
}

#[test]
fn a_draining_node_sends_and_does_not_receive() {
    let mut world = World::new(5, vec![Task { drains: true, ..task(7, 2, &[1, 2, 3]) }]);
    world.nodes.sites[0].targets.clear();
    world.nodes.places.get_mut(&StoreId(1)).unwrap().counts = false;
    // It is the only one with anything left to send by.
    for n in [2, 3] {
        world.machine(n).foreground.out = LINK;
    }
    world.finish();
    assert_eq!(world.begun[0].1, StoreId(1));
    assert!(world.landed[0].store.0 >= 4);
}

#[test]
fn a_new_leader_goes_on_with_what_is_under_way() {
    let mut world = World::new(7, lost_one(60, 7));
    world.lose(1);
    for _ in 0..4 {
        world.round();
    }
    let (begun, made) = (world.begun.len(), world.landed.len());
    // What ended and was not heard of, and what is under way, is not copied again.
    world.repair = Repair::new(Index(20), world.now_ns, false);
    let first = world.round();
    assert!(first.iter().all(|orders| orders.plan.look), "it looks before it plans");
    world.finish();
    assert!(world.begun.len() <= 60 + 3, "{begun} of {}", world.begun.len());
    assert!(made < 60 && world.landed.len() == 60);
}

#[test]
fn a_node_that_starts_anew_or_falls_silent_gives_its_copies_back() {
    let mut world = World::new(8, lost_one(80, 8));
    world.lose(1);
    (0..3).for_each(|_| drop(world.round()));
    // Its process ended, and with it what it was told.
    let machine = world.machine(4);
    assert!(!machine.copies.is_empty());
    (machine.copies, machine.ended, machine.ends) = (Vec::new(), Vec::new(), 0);
    world.nodes.sites[3].incarnation = Index(99);
    world.round();
    // And another one is gone.
    world.lose(5);
    world.tasks.iter_mut().for_each(|task| task.live = 3 - 1);
    let holds = world.tasks.iter_mut().filter(|task| task.holders.contains(&StoreId(5)));
    holds.for_each(|task| task.live = 1);
    world.finish();
    assert!(world.tasks.is_empty());
    let to_five = world.landed.iter().filter(|landed| landed.store == StoreId(5)).count();
    assert!(to_five < 10);
}

#[test]
fn a_slow_disk_is_found_and_given_less() {
    let mut world = World::new(9, lost_one(400, 9));
    world.lose(1);
    world.machine(6).slow = 5_000_000;
    for _ in 0..30 {
        world.round();
    }
    let limit = world.repair.abilities.limit(NodeId(6)).unwrap();
    assert!((3.0..15.0).contains(&limit), "{limit}");
    let well = [2, 3, 4, 5, 7, 8, 9].map(|node| world.repair.abilities.limit(NodeId(node)));
    assert!(well.iter().all(|limit| limit.is_none_or(|limit| limit > 15.0)), "{well:?}");
    let seconds = world.finish();
    assert!(seconds < 60.0, "{seconds}");
}

/// A node was slow as a whole as soon as one of its disks was: the others had nothing to do.
#[test]
fn a_slow_disk_among_others_of_a_node_is_found_and_they_go_on() {
    let mut world = World::new(9, lost_one(400, 9));
    world.lose(1);
    world.add_disk(6, 100_000);
    world.machine(6).disks.entry(StoreId(16)).or_default().carries = 5_000_000;
    let mut most = Directions::default();
    for round in 0..60 {
        world.round();
        let moved = world.machines[&NodeId(6)].moved;
        if (20..40).contains(&round) {
            most.out = most.out.max(moved.out);
            most.into = most.into.max(moved.into);
        }
    }
    let limit = |store| world.repair.abilities.disk_limit(StoreId(store));
    // It is tried again now and then.
    assert!((1.0..30.0).contains(&limit(16).unwrap()), "{:?}", limit(16));
    assert!(limit(6).is_none_or(|limit| limit > 40.0), "{:?}", limit(6));
    let of_node = world.repair.abilities.limit(NodeId(6));
    assert!(of_node.is_none_or(|limit| limit > 40.0), "{of_node:?}");
    assert!(most.into > 60_000_000, "{most:?} with its good disk");
    let seconds = world.finish();
    assert!(seconds < 30.0, "{seconds} s more");
}

/// Copies from a node that died stood still until it counted as lost, and who had asked for them
/// was slow for the next ten seconds.
#[test]
fn who_waits_for_a_node_that_does_not_answer_is_not_slow() {
    let mut world = World::new(4, (1..=100).map(|chunk| task(chunk, 1, &[4])).collect());
    (0..4).for_each(|_| drop(world.round()));
    assert!(world.machine(2).moved.into > 0);
    world.machine(4).silent = true;
    (0..12).for_each(|_| drop(world.round()));
    let limits = [2, 3].map(|node| world.repair.abilities.limit(NodeId(node)));
    assert_eq!(limits, [None; 2]);
}

#[test]
fn a_slow_link_is_the_nodes_and_not_its_disks() {
    let mut world = World::new(9, lost_one(400, 9));
    world.lose(1);
    world.add_disk(6, 100_000);
    world.machine(6).slow = 5_000_000;
    (0..30).for_each(|_| drop(world.round()));
    let limit = world.repair.abilities.limit(NodeId(6)).unwrap();
    assert!((3.0..15.0).contains(&limit), "{limit}");
    let seconds = world.finish();
    assert!(seconds < 60.0, "{seconds}");
}

#[test]
fn disks_share_reads_and_writes_and_are_never_given_more_than_they_carry() {
    let mut world = World::new(9, lost_one(400, 9));
    world.lose(1);
    // 40 MB/s of a disk that its readers take 10 MB/s of: 20 for recovery, both ways together.
    let disk =
        DiskOf { carries: 40_000_000, told: true, foreground: 10_000_000, ..DiskOf::default() };
    world.machine(6).disks.insert(StoreId(6), disk);
    world.machine(7).disks.insert(StoreId(7), disk);
    world.add_disk(7, 100_000);
    let (mut of_six, mut of_seven) = (0, 0);
    for _ in 0..12 {
        world.round();
        for disk in [6, 7] {
            let moved = world.machine(disk).disks[&StoreId(disk)].moved;
            let mb_s = (moved.out + moved.into) / 1_000_000;
            assert!(mb_s <= 21, "{mb_s} MB/s of 20 at the disk of store {disk}");
            if disk == 6 {
                of_six = of_six.max(mb_s)
            }
        }
        of_seven = of_seven.max(world.machines[&NodeId(7)].moved.into / 1_000_000);
    }
    assert!(of_six >= 15, "{of_six} of 20 MB/s are used");
    assert!(of_seven >= 60, "the other disk has the link to itself: {of_seven} MB/s");
    world.finish();
}

/// Out and in of the nodes of rack 0, in MB/s.
fn moved_by_rack_0(world: &World) -> [u64; 2] {
    let moved = [3, 6, 9].map(|node| world.machines[&NodeId(node)].moved);
    let sum = |of: fn(&Directions) -> u64| moved.iter().map(of).sum::<u64>() / 1_000_000;
    [sum(|moved| moved.out), sum(|moved| moved.into)]
}

#[test]
fn nodes_behind_a_narrow_link_share_it_and_never_take_more() {
    let mut world = World::new(9, lost_one(400, 9));
    world.lose(1);
    [3, 6, 9].iter().for_each(|node| world.machine(*node).rack_link = LINK);
    // Readers of node 6 take a part of it.
    world.machine(6).foreground = Directions { out: 20_000_000, into: 0 };
    let mut most = [0; 2];
    for _ in 0..16 {
        world.round();
        let moved = moved_by_rack_0(&world);
        assert!(moved[0] <= 55 && moved[1] <= 75, "{moved:?} MB/s through a link of 100");
        most = [most[0].max(moved[0]), most[1].max(moved[1])];
    }
    assert!(most[0] >= 45 && most[1] >= 60, "{most:?} of 55 and 75 MB/s are used");
    world.finish();
}

#[test]
fn who_has_nothing_to_send_leaves_the_racks_link_to_its_neighbours() {
    let mut world = World::new(9, (1..=100).map(|chunk| task(chunk, 1, &[6])).collect());
    [3, 6, 9].iter().for_each(|node| world.machine(*node).rack_link = LINK);
    (0..3).for_each(|_| drop(world.round()));
    assert_eq!(world.machines[&NodeId(6)].rack.out, 0, "its own link is as narrow");
    assert!(moved_by_rack_0(&world)[0] >= 60);
}

/// A disk that limits and the others of its node share the node's link, out and in, each by what it
/// could use; a node with one port has it all.
#[test]
fn ports_of_a_node_are_never_given_more_than_its_link() {
    let tasks: Vec<Task> = (1..=60).map(|chunk| task(chunk, 1, &[1, 12])).collect();
    let mut world = World::new(2, Vec::new());
    world.add_disk(2, 100_000);
    let disk = DiskBandwidth { sides_mb_s: [60.0, 60.0], sum_mb_s: 1000.0 };
    let bandwidth = |site: &Site| {
        let disks = [(StoreId(12), disk)].into_iter().filter(|_| site.node == NodeId(2));
        Some(field::Bandwidth { link_mb_s: [90.0, 75.0], disks: disks.collect() })
    };
    let mut field = field::Field::new(&world.nodes, bandwidth);
    tasks.iter().for_each(|task| field.push(task));
    assert_eq!(shares::share(&mut field, |_| None, Terms::default()), shares::Shares::new());
    let port = |store| &field.nodes[field.number_of_store(StoreId(store)).unwrap() as usize];
    let near = |is: f32, expected: f32| assert!((is - expected).abs() < 0.01, "{is}, {expected}");
    near(port(1).out_mb_s, 90.0);
    near(port(1).in_mb_s, 75.0);
    near(port(2).in_mb_s, 75.0 * 75.0 / (75.0 + 60.0));
    near(port(12).in_mb_s, 75.0 * 60.0 / (75.0 + 60.0));
    // The other disk of node 2 has nothing to send.
    near(port(12).out_mb_s, 60.0);
}

/// Half of its bytes are there: they are not sent again from elsewhere while its source answers.
#[test]
fn a_copy_moves_to_another_source_until_half_of_it_is_there() {
    let mut world = World::new(2, Vec::new());
    let may_move = |world: &World, done: u64| {
        let bound = Bound {
            chunk: ChunkId(7),
            generation: Generation(0),
            source: StoreId(1),
            target: StoreId(2),
            bytes: 1000,
            plan: 1,
            since_ns: 0,
            done,
            received: done,
            age_ms: 0,
            rate_mb_s: 1.0,
        };
        field::Field::new(&world.nodes, |_| None).may_move(&bound)
    };
    let moves = [0, 499, 500, 501, 999].map(|done| may_move(&world, done));
    assert_eq!(moves, [true, true, false, false, false]);
    world.nodes.places.get_mut(&StoreId(1)).unwrap().serves = false;
    assert!(may_move(&world, 999), "its source does not answer");
    world.nodes.places.remove(&StoreId(1));
    assert!(may_move(&world, 999), "its source is gone");
}

/// All copies to a node went to its emptiest disk, one after another, and the others had nothing
/// to do.
#[test]
fn all_disks_of_a_node_take_copies_by_their_free_space() {
    let mut world = World::new(4, lost_one(60, 4));
    world.lose(1);
    (2..=4).for_each(|n| world.add_disk(n, 300_000));
    world.round();
    let orders = world.round();
    let mut counts = [0; 2];
    for copy in orders.iter().flat_map(|orders| &orders.plan.copies) {
        counts[usize::from(copy.store.0 > 10)] += 1;
    }
    assert!(counts[0] > 0 && counts[1] > 2 * counts[0], "{counts:?} of the smaller, the larger");
}

/// A chunk that one of its sources would send for longer than a plan usually reaches fits into one
/// that reaches twice as far.
#[test]
fn a_plan_reaches_twice_as_far_as_the_slowest_chunk_takes() {
    let usual_s = horizon_s(0.0);
    assert_eq!(horizon_s(usual_s / 2.0), usual_s);
    assert_eq!(horizon_s(10.0 * usual_s), 20.0 * usual_s);
}

#[test]
fn settings_reach_every_node_with_the_next_plan() {
    let mut world = World::new(5, lost_one(50, 5));
    world.lose(1);
    world.round();
    world.settings = RecoverySettings {
        alpha_per_mille: 500,
        floor_bytes_per_second: 7,
        rate_max: 9,
        ..RecoverySettings::default()
    };
    for orders in world.round() {
        let plan = orders.plan;
        assert_eq!((plan.alpha_per_mille, plan.floor_bytes_per_second, plan.rate_max), (500, 7, 9));
    }
}

#[test]
fn what_waits_is_told_with_its_reason() {
    // Nobody can read 1; 2 has no room anywhere; 3 failed.
    let tasks = vec![task(1, 2, &[1, 2]), task(2, 2, &[3, 4, 5, 6]), task(3, 2, &[3, 4])];
    let mut world = World::new(6, tasks);
    world.lose(1);
    world.lose(2);
    world.nodes.places.get_mut(&StoreId(2)).unwrap().counts = true;
    (0..2).for_each(|_| drop(world.round()));
    let landed = Landed { chunk: ChunkId(3), generation: Generation(0), store: StoreId(5) };
    world.repair.counted(world.now_ns, landed, Err(Error::retry("the disk is full")));
    world.round();
    let told = world.repair.told();
    let reasons: Vec<&str> = told.slow.iter().map(|slow| slow.reason.as_str()).collect();
    for part in ["no node that holds it", "no other host", "the disk is full"] {
        assert!(reasons.iter().any(|reason| reason.contains(part)), "{part}: {reasons:?}");
    }
}

/// A copy that takes seconds more than it should is told with what holds it up; a long one that goes
/// as fast as its links are is not.
#[test]
fn a_copy_that_does_not_get_on_is_told_with_its_reason() {
    let copying = |bytes: u64, slow: u64| {
        let task = Task { bytes, wanted: 2, ..task(1, 1, &[1]) };
        let mut world = World::new(2, vec![task]);
        world.machine(1).slow = slow;
        world
    };
    let mut world = copying(100_000, 1);
    while world.round().iter().all(|orders| orders.plan.copies.is_empty()) {}
    for _ in 0..5000 / PLAN_MS - 1 {
        world.round();
        assert_eq!(world.repair.told().slow, [], "after {} ns", world.now_ns);
    }
    world.round();
    let told = &world.repair.told().slow;
    let nothing = "node n1 has sent nothing of it to node n2 yet";
    assert_eq!(told[..], [SlowTask { chunk: ChunkId(1), count: 1, reason: nothing.to_owned() }]);
    let mut world = copying(2_000_000_000, 0);
    while !world.tasks.is_empty() {
        world.round();
        assert_eq!(world.repair.told().slow, [], "after {} ns", world.now_ns);
    }
    assert!(world.now_ns > 25 * SECOND);
}

/// The first plan after a rest was made of reports from before it, which are too old to use: no
/// node had any bandwidth, half a second went by, and people were told that nobody answers.
#[test]
fn after_a_rest_the_nodes_are_asked_before_anything_is_planned() {
    let mut world = World::new(5, Vec::new());
    (0..20).for_each(|_| drop(world.round()));
    world.tasks = lost_one(50, 5);
    world.lose(1);
    assert!(world.round().iter().all(|orders| orders.plan.look));
    world.round();
    assert!(world.machines.values().any(|machine| !machine.copies.is_empty()));
    assert_eq!(world.repair.told().slow, []);
}

/// A node that was cut off had made a copy, and came back when nobody wanted any: it was asked for
/// nothing any more, so that it kept for good what it thought that a leader was still to hear of.
#[test]
fn who_comes_back_during_a_rest_is_heard_before_it_goes_on() {
    let mut world = World::new(4, Vec::new());
    (0..3).for_each(|_| drop(world.round()));
    world.nodes.sites[1].live = false;
    assert_eq!(world.round(), []);
    let (chunk, store) = (ChunkId(7), StoreId(2));
    let (generation, failure) = (Generation(0), String::new());
    let ended = peer::Ended { number: 1, store, chunk, generation, bytes: 9, failure };
    world.machine(2).ended.push(ended);
    world.nodes.sites[1].live = true;
    (0..3).for_each(|_| drop(world.round()));
    assert!(world.machine(2).ended.is_empty(), "the leader has said that it heard");
    assert_eq!(world.round(), []);
    assert_eq!(world.landed, []);
}

#[test]
fn nothing_is_sent_while_nothing_is_to_do() {
    let mut world = World::new(4, Vec::new());
    assert!(world.round().iter().all(|orders| orders.plan.look), "once, to see");
    assert_eq!(world.round(), []);
    // A copy that nobody wants any more is told to end.
    world.tasks = lost_one(40, 4);
    (0..2).for_each(|_| drop(world.round()));
    assert!(world.machines.values().any(|machine| !machine.copies.is_empty()));
    world.tasks.clear();
    (0..3).for_each(|_| drop(world.round()));
    assert!(world.machines.values().all(|machine| machine.copies.is_empty()));
    assert_eq!(world.round(), []);
    assert_eq!(world.repair.told().seconds_left, None);
}
