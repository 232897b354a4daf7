use super::*;
use holdfast_base::Error;
use holdfast_base::ids::Tier;
use holdfast_client::wire::peer::{Directions, Ended, Report};

const SECOND: u64 = 1_000_000_000;
const LINK: u64 = 100_000_000;
const CHUNK_BYTES: u64 = 20_000_000;

/// Nodes that do what they are told, at the speed of their links, with the leader's core.
struct World {
    nodes: Nodes,
    tasks: Vec<Task>,
    repair: Repair,
    settings: RecoverySettings,
    now_ns: u64,
    machines: BTreeMap<NodeId, Machine>,
    landed: Vec<Landed>,
    /// Copies ever begun, in order.
    begun: Vec<(ChunkId, StoreId, StoreId)>,
    /// By which plan each was.
    plans: Vec<u64>,
}

#[derive(Default)]
struct Machine {
    copies: Vec<(peer::Copy, u64)>,
    ended: Vec<Ended>,
    ends: u64,
    number: u64,
    foreground: Directions,
    moved: Directions,
    /// Bytes a second that its disk can do; 0 for its link's.
    slow: u64,
    /// Of its rack's link: what that carries, and the part of it that this node was told.
    rack_link: u64,
    rack: Directions,
    silent: bool,
}

/// Node and store N on host N of rack N % 3, all well.
fn site(n: u64) -> Site {
    Site {
        node: NodeId(n as u32),
        host: format!("h{n}"),
        rack: format!("r{}", n % 3),
        address: format!("a{n}"),
        incarnation: Index(n),
        live: true,
        stores: vec![StoreId(n)],
        targets: vec![(StoreId(n), 100_000)],
    }
}

fn task(chunk: u64, live: usize, holders: &[u64]) -> Task {
    Task {
        chunk: ChunkId(chunk),
        generation: Generation(0),
        tier: Tier::Disk,
        bytes: CHUNK_BYTES,
        live,
        wanted: 3,
        drains: false,
        to: None,
        holders: holders.iter().map(|store| StoreId(*store)).collect(),
        dropped: Vec::new(),
    }
}

impl World {
    fn new(count: u64, tasks: Vec<Task>) -> World {
        let place = |n: u64| Place { node: NodeId(n as u32), serves: true, counts: true };
        World {
            nodes: Nodes {
                sites: (1..=count).map(site).collect(),
                places: (1..=count).map(|n| (StoreId(n), place(n))).collect(),
            },
            tasks,
            repair: Repair::new(Index(9), 0, false),
            settings: RecoverySettings::default(),
            now_ns: 0,
            machines: (1..=count).map(|n| (NodeId(n as u32), Machine::default())).collect(),
            landed: Vec::new(),
            begun: Vec::new(),
            plans: Vec::new(),
        }
    }

    fn machine(&mut self, node: u64) -> &mut Machine {
        self.machines.get_mut(&NodeId(node as u32)).unwrap()
    }

    fn lose(&mut self, node: u64) {
        let site = &mut self.nodes.sites[node as usize - 1];
        (site.live, site.targets) = (false, Vec::new());
        let place = self.nodes.places.get_mut(&StoreId(node)).unwrap();
        (place.serves, place.counts) = (false, false);
        self.machine(node).silent = true;
    }

    /// One round: orders reach the nodes, time passes, and their reports come back at once, as
    /// they were when the orders came.
    fn round(&mut self) -> Vec<Orders> {
        let round = Round {
            now_ns: self.now_ns,
            tasks: &self.tasks,
            nodes: &self.nodes,
            settings: self.settings,
        };
        let (orders, found) = self.repair.round(&round).unwrap();
        self.count(found);
        for orders in &orders {
            let site = self.nodes.site(orders.node).unwrap().clone();
            let Some(report) = self.follow(orders) else { continue };
            let landed = self.repair.heard(self.now_ns, &site, report);
            self.count(landed);
        }
        self.work(PLAN_MS * MS);
        self.now_ns += PLAN_MS * MS;
        orders
    }

    fn count(&mut self, landed: Vec<Landed>) {
        for landed in landed {
            let task = self.tasks.iter_mut().find(|task| task.chunk == landed.chunk).unwrap();
            assert!(!task.holders.contains(&landed.store));
            task.holders.push(landed.store);
            task.live += 1;
            self.tasks.retain(|task| task.live < task.wanted);
            self.repair.counted(self.now_ns, landed, Ok(()));
            self.landed.push(landed);
        }
    }

    fn follow(&mut self, orders: &Orders) -> Option<Report> {
        let machine = self.machines.get_mut(&orders.node).unwrap();
        if machine.silent {
            return None;
        }
        machine.number = orders.plan.number;
        machine.ended.retain(|ended| ended.number > orders.plan.heard);
        if !orders.plan.look {
            machine.rack = orders.plan.rack;
            let had = std::mem::take(&mut machine.copies);
            for copy in orders.plan.copies.clone() {
                if machine.ended.iter().any(|e| (e.chunk, e.store) == (copy.chunk, copy.store)) {
                    continue;
                }
                let same = |old: &&(peer::Copy, u64)| {
                    (old.0.chunk, old.0.source) == (copy.chunk, copy.source)
                };
                let done = had.iter().find(same).map(|old| old.1);
                if done.is_none() {
                    self.begun.push((copy.chunk, copy.source, copy.store));
                    self.plans.push(orders.plan.number);
                }
                machine.copies.push((copy, done.unwrap_or(0)));
            }
        }
        let flight = |(copy, done): &(peer::Copy, u64)| peer::Flight {
            store: copy.store,
            chunk: copy.chunk,
            generation: copy.generation,
            source: copy.source,
            bytes_done: *done,
            bytes_total: CHUNK_BYTES,
            bytes_received: *done,
            age_ms: 1000,
        };
        Some(Report {
            number: machine.number,
            link_bytes_per_second: LINK,
            rack_bytes_per_second: machine.rack_link,
            foreground: machine.foreground,
            recovery: machine.moved,
            flights: machine.copies.iter().map(flight).collect(),
            ended: machine.ended.clone(),
            ..Report::default()
        })
    }

    /// Copies move: each link is shared evenly, by eq. 1, and both ends have their say.
    fn work(&mut self, ns: u64) {
        let terms = Terms::default();
        let mut sending: BTreeMap<NodeId, u64> = BTreeMap::new();
        let node_of = |store: StoreId| NodeId(store.0 as u32);
        for machine in self.machines.values() {
            machine
                .copies
                .iter()
                .for_each(|(copy, _)| *sending.entry(node_of(copy.source)).or_default() += 1);
        }
        let limit = |machine: &Machine, foreground, rack| {
            let limits = [machine.slow, rack].into_iter().filter(|limit| *limit > 0);
            limits.fold(terms.allow(LINK, foreground), u64::min)
        };
        let gives: BTreeMap<NodeId, u64> = self
            .machines
            .iter()
            .map(|(node, m)| {
                let most = limit(m, m.foreground.out, m.rack.out);
                (*node, most / sending.get(node).unwrap_or(&1))
            })
            .collect();
        let mut sent: BTreeMap<NodeId, u64> = BTreeMap::new();
        for machine in self.machines.values_mut() {
            let takes = limit(machine, machine.foreground.into, machine.rack.into);
            let each = takes / machine.copies.len().max(1) as u64;
            machine.moved.into = 0;
            for (copy, done) in &mut machine.copies {
                let speed = each.min(gives[&node_of(copy.source)]);
                *done += speed * (ns / MS) / 1000;
                machine.moved.into += speed;
                *sent.entry(node_of(copy.source)).or_default() += speed;
            }
            for (copy, _) in machine.copies.extract_if(.., |(_, done)| *done >= CHUNK_BYTES) {
                machine.ends += 1;
                machine.ended.push(Ended {
                    number: machine.ends,
                    store: copy.store,
                    chunk: copy.chunk,
                    generation: copy.generation,
                    bytes: CHUNK_BYTES,
                    failure: String::new(),
                });
            }
        }
        for (node, machine) in &mut self.machines {
            machine.moved.out = sent.get(node).copied().unwrap_or(0);
        }
    }

    /// Until nothing is short; answers the seconds.
    fn finish(&mut self) -> f64 {
        let began_ns = self.now_ns;
        while !self.tasks.is_empty() {
            self.round();
            assert!(self.now_ns < began_ns + 600 * SECOND, "{:?}", self.repair.told());
        }
        (self.now_ns - began_ns) as f64 / 1e9
    }
}

/// Tasks of chunks that lost their copy on store 1, with the others on two stores each.
fn lost_one(chunks: u64, nodes: u64) -> Vec<Task> {
    let pair = |chunk: u64| {
        let first = 2 + chunk % (nodes - 1);
        let second = 2 + (chunk / 3 + 1 + chunk % (nodes - 1)) % (nodes - 1);
        let second = if second == first { 2 + (first - 1) % (nodes - 1) } else { second };
        task(chunk, 2, &[1, first, second])
    };
    (1..=chunks).map(pair).collect()
}

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

/// It may be read anywhere.
#[test]
fn a_chunk_that_moves_goes_where_it_is_asked_to() {
    let to = |chunk: u64, to: u64| Task {
        to: Some(StoreId(to)),
        wanted: 4,
        ..task(chunk, 3, &[1, 2, 3])
    };
    let mut tasks: Vec<Task> = (1..=12).map(|chunk| to(chunk, 4 + chunk % 3)).collect();
    tasks.push(Task { drains: true, ..task(20, 2, &[1, 2]) });
    let mut world = World::new(9, tasks);
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

/// All copies to a node went to its emptiest disk, one after another, and the others had nothing
/// to do.
#[test]
fn all_disks_of_a_node_take_copies_by_their_free_space() {
    let mut world = World::new(4, lost_one(60, 4));
    world.lose(1);
    for n in 2..=4 {
        let second = StoreId(10 + n);
        let place = Place { node: NodeId(n as u32), serves: true, counts: true };
        world.nodes.places.insert(second, place);
        let site = &mut world.nodes.sites[n as usize - 1];
        site.stores.push(second);
        site.targets = vec![(StoreId(n), 100_000), (second, 300_000)];
    }
    world.round();
    let orders = world.round();
    let mut counts = [0; 2];
    for copy in orders.iter().flat_map(|orders| &orders.plan.copies) {
        counts[usize::from(copy.store.0 > 10)] += 1;
    }
    assert!(counts[0] > 0 && counts[1] > 2 * counts[0], "{counts:?} of the smaller, the larger");
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
