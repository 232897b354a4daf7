use super::*;
use crate::model::class;
use crate::random::Random;
use crate::trace::{Generator, Placement, PlacementParams, RECORD_S, TraceParams};
use std::collections::HashMap;

/// A failure of node 0 in a cluster with the trace's foreground.
fn cluster(nodes: usize, chunks: usize, seed: u64) -> (Vec<Node>, Tasks) {
    let params = Params::default();
    let now = Generator::new(&TraceParams::default(), nodes, seed, 0, 0.0, RECORD_S).next();
    let now = now.unwrap();
    let rack_nodes = nodes.div_ceil(10).min(35);
    let placement =
        Placement::new(&PlacementParams { rack_nodes, ..Default::default() }, nodes, seed);
    let node = |i: usize| match i {
        0 => Node { rack: 0, out_mb_s: 0.0, in_mb_s: 0.0 },
        _ => Node {
            rack: placement.racks()[i],
            out_mb_s: params.recovery_mb_s(250.0, now.out_mb_s[i]),
            in_mb_s: params.recovery_mb_s(250.0, now.in_mb_s[i]),
        },
    };
    ((0..nodes).map(node).collect(), placement.failure(0, chunks, seed))
}

fn input<'a>(nodes: &'a [Node], tasks: &'a Tasks, queue: &'a [u32]) -> Input<'a> {
    Input { nodes, racks: &[], tasks, queue, flights: &[], until_slot_s: 0.0, seed: 1 }
}

/// What every plan keeps, whoever made it.
fn assert_sound(input: &Input<'_>, options: &PlannerOptions, plan: &SlotPlan) {
    let n = input.nodes.len();
    let (mut out, mut into) = (vec![0f64; n], vec![0f64; n]);
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for a in &plan.assignments {
        let (source, destination) = (a.source as usize, a.destination as usize);
        assert!(input.tasks.sources(a.task).contains(&a.source), "the source holds the chunk");
        if a.origin == Origin::New {
            for holder in input.tasks.holders(a.task) {
                let rack = |node: u32| input.nodes[node as usize].rack;
                assert_ne!(rack(*holder), rack(a.destination), "replicas lie on distinct racks");
            }
        }
        assert!(a.rate_mb_s >= 0.0 && a.rate_mb_s.is_finite());
        out[source] += f64::from(a.rate_mb_s);
        into[destination] += f64::from(a.rate_mb_s);
        *seen.entry(a.task).or_default() += 1;
    }
    for (node, (out, into)) in input.nodes.iter().zip(out.iter().zip(&into)) {
        assert!(*out <= f64::from(node.out_mb_s) * 1.0001 + 1e-3, "{out} of {node:?}");
        assert!(*into <= f64::from(node.in_mb_s) * 1.0001 + 1e-3, "{into} of {node:?}");
    }
    // Conservation: each task is placed, waits, or is lost, and exactly one of these.
    for task in plan.waiting.iter().chain(&plan.lost) {
        *seen.entry(*task).or_default() += 1;
    }
    for (flight, fate) in input.flights.iter().zip(&plan.fates) {
        if matches!(fate, Fate::Finishes | Fate::Parked) {
            *seen.entry(flight.task).or_default() += 1;
        }
    }
    assert!(seen.values().all(|count| *count == 1), "a task is there twice");
    assert_eq!(seen.len(), input.queue.len() + input.flights.len());
    let placed: f64 = plan.assignments.iter().map(|a| f64::from(a.mb)).sum();
    assert!(placed <= plan.volume_mb + 64.0 + 64.0 * input.flights.len() as f64);
    let _ = options;
}

#[test]
fn every_selector_makes_sound_plans_that_repeat() {
    let (nodes, tasks) = cluster(350, 20_000, 1);
    let queue: Vec<u32> = (0..tasks.len() as u32).collect();
    let input = input(&nodes, &tasks, &queue);
    let mut placed = HashMap::new();
    for (name, algorithm) in Algorithm::ALL {
        for allocator in [Allocator::Wss, Allocator::Deadline] {
            let options =
                PlannerOptions { allocator, ..PlannerOptions::paper(Params::default(), algorithm) };
            let made = plan(&input, &options).unwrap();
            assert_sound(&input, &options, &made);
            assert_eq!(made, plan(&input, &options).unwrap(), "{name} repeats");
            placed.insert(name, made.placed);
        }
    }
    let exact = placed["naive"] as f64;
    for name in ["dayu", "hull", "tops", "scan"] {
        let share = placed[name] as f64 / exact;
        assert!((0.98..=1.02).contains(&share), "{name} places {share} of what naive does");
    }
    // Nodes of the failed one's rack hold none of its chunks: a tenth of the senders is idle.
    let volume =
        plan(&input, &PlannerOptions::paper(Params::default(), Algorithm::Dayu)).unwrap().volume_mb;
    assert!(exact * 62.4 > 0.85 * volume);
    assert!(placed["random"] < placed["dayu"]);
}

/// Without the saturation rule random picks fill the volume and overload a few nodes: the paper's
/// "a small number of nodes". With deadline-based rates that shows as more than a link.
#[test]
fn picks_without_the_saturation_rule_overload_nodes() {
    let (nodes, tasks) = cluster(350, 20_000, 1);
    let queue: Vec<u32> = (0..tasks.len() as u32).collect();
    let paper = PlannerOptions::paper(Params::default(), Algorithm::Random);
    let options = PlannerOptions { picks_skip: false, ..paper };
    let made = plan(&input(&nodes, &tasks, &queue), &options).unwrap();
    let mut into = vec![0.0; nodes.len()];
    made.assignments.iter().for_each(|a| into[a.destination as usize] += a.mb);
    let longest = into.iter().zip(&nodes).filter(|(_, n)| n.in_mb_s > 0.0);
    let longest = longest.map(|(mb, n)| mb / n.in_mb_s).fold(0.0, f32::max);
    assert!(longest > 2.0 * 15.0, "the slowest takes {longest} s of a slot of 15 s");
    // The last one may reach beyond it.
    let placed_mb: f64 = made.assignments.iter().map(|a| f64::from(a.mb)).sum();
    let filled = made.volume_mb..made.volume_mb + 64.0;
    assert!(filled.contains(&placed_mb), "{placed_mb} MB into {filled:?}");
}

#[test]
fn stragglers_are_conserved_whatever_becomes_of_them() {
    for seed in 0..30 {
        let (mut nodes, tasks) = cluster(120, 4_000, seed);
        let mut random = Random::new(seed);
        let split = 600;
        let flights: Vec<Flight> = (0..split)
            .map(|task| {
                let sources = tasks.sources(task);
                let speed = 6.0 * random.unit();
                Flight {
                    task,
                    source: sources[random.below(sources.len())],
                    destination: 1 + random.below(119) as u32,
                    done_mb: tasks.mb(task) * random.unit(),
                    speed_mb_s: speed,
                    rate_mb_s: speed,
                }
            })
            .collect();
        // A few nodes collapse to the least bandwidth.
        for _ in 0..40 {
            let node = &mut nodes[1 + random.below(119)];
            (node.in_mb_s, node.out_mb_s) = (30.0, 30.0);
        }
        let queue: Vec<u32> = (split..tasks.len() as u32).collect();
        let input = Input { flights: &flights, until_slot_s: 1.0, ..input(&nodes, &tasks, &queue) };
        for elastic in [false, true] {
            let paper = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
            let options = PlannerOptions { elastic, ..paper };
            let made = plan(&input, &options).unwrap();
            assert_sound(&input, &options, &made);
            assert!(made.fates.contains(&Fate::Kept));
            let mut out = vec![0.0; nodes.len()];
            made.assignments.iter().for_each(|a| out[a.source as usize] += a.mb);
            for (mb, node) in out.iter().zip(&nodes).filter(|(_, node)| node.out_mb_s > 0.0) {
                assert!(mb / node.out_mb_s <= 15.001, "no source is saturated");
            }
        }
    }
}

/// A collapsed destination gives up the transfers that it has done least of.
#[test]
fn the_least_finished_are_evicted() {
    let mut tasks = Tasks::default();
    (0..4).for_each(|_| tasks.push(64.0, 0, &[0, 1], &[]));
    let node = |rack, mb_s| Node { rack, out_mb_s: mb_s, in_mb_s: mb_s };
    let nodes = [node(0, 100.0), node(1, 100.0), node(2, 6.0), node(3, 100.0)];
    let flight = |task, done_mb| Flight {
        task,
        source: 0,
        destination: 2,
        done_mb,
        speed_mb_s: 0.0,
        rate_mb_s: 1.0,
    };
    let flights = [flight(0, 10.0), flight(1, 60.0), flight(2, 5.0), flight(3, 20.0)];
    let input = Input { flights: &flights, ..input(&nodes, &tasks, &[]) };
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let made = plan(&input, &options).unwrap();
    // 54 + 4 + 59 + 44 MB at 6 MB/s; without the first and the third 48 MB fit.
    assert_eq!(made.fates, [Fate::Restarted, Fate::Kept, Fate::Restarted, Fate::Kept]);
    let again: Vec<u32> = made
        .assignments
        .iter()
        .filter(|a| a.origin == Origin::New)
        .map(|a| a.destination)
        .collect();
    assert_eq!(again, [3, 3], "they start again where there is room");
}

#[test]
fn a_collapsed_source_is_replaced_and_progress_kept() {
    let mut tasks = Tasks::default();
    tasks.push(64.0, 0, &[0, 1], &[]);
    let node = |rack, mb_s| Node { rack, out_mb_s: mb_s, in_mb_s: mb_s };
    let flights = [Flight {
        task: 0,
        source: 0,
        destination: 2,
        done_mb: 10.0,
        speed_mb_s: 0.0,
        rate_mb_s: 1.0,
    }];
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let nodes = [node(0, 2.0), node(1, 100.0), node(2, 100.0)];
    let made = plan(&Input { flights: &flights, ..input(&nodes, &tasks, &[]) }, &options).unwrap();
    assert_eq!(made.fates, [Fate::Moved]);
    let a = made.assignments[0];
    assert_eq!((a.source, a.destination, a.mb, a.origin), (1, 2, 54.0, Origin::Moved));
    // With no other source that could do it, it waits and loses nothing.
    let nodes = [node(0, 2.0), node(1, 2.0), node(2, 100.0)];
    let made = plan(&Input { flights: &flights, ..input(&nodes, &tasks, &[]) }, &options).unwrap();
    assert_eq!((made.fates, made.assignments.len()), (vec![Fate::Parked], 0));
}

/// Copies that took longer than three seconds began anew with every plan, for ever: with little
/// left, each node gave up what it could not end along with the others, its only one, too.
#[test]
fn a_node_keeps_its_most_finished_transfer_however_slow_it_is() {
    let mut tasks = Tasks::default();
    (0..3).for_each(|_| tasks.push(64.0, 0, &[0, 1], &[]));
    let nodes = [0, 1, 2, 3].map(|rack| Node { rack, out_mb_s: 6.0, in_mb_s: 6.0 });
    let flight = |task, source, destination, done_mb| Flight {
        task,
        source,
        destination,
        done_mb,
        speed_mb_s: 6.0,
        rate_mb_s: 6.0,
    };
    let fates = |flights: &[Flight], nodes: &[Node]| {
        let input = Input { flights, ..input(nodes, &tasks, &[]) };
        let paper = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
        let made =
            plan(&input, &PlannerOptions { elastic: true, resumes: false, ..paper }).unwrap();
        made.fates
    };
    // Both ends of the first are all its own.
    let alone = [flight(0, 0, 2, 1.0)];
    assert_eq!(fates(&alone, &nodes), [Fate::Kept]);
    // Of a node's two the one begun first stays, and what is half there does, too.
    let two = [flight(0, 0, 2, 1.0), flight(1, 1, 2, 5.0)];
    assert_eq!(fates(&two, &nodes), [Fate::Restarted, Fate::Kept]);
    let half = [flight(0, 0, 2, 33.0), flight(1, 1, 2, 40.0)];
    assert_eq!(fates(&half, &nodes), [Fate::Kept, Fate::Kept]);
    // But a source that is away sends nothing.
    let mut away = nodes;
    away[0].out_mb_s = 0.0;
    assert_eq!(fates(&[flight(0, 0, 2, 40.0)], &away), [Fate::Moved]);
}

/// The paper's example of section 4.2: A has 50 MB/s and holds chunks 1 and 2, B has 60 MB/s and
/// holds 1 to 4. Scanned in order, B gets the first; with priority A gets both of its own.
#[test]
fn underemployed_nodes_send_what_they_hold() {
    let mut tasks = Tasks::default();
    (0..2).for_each(|_| tasks.push(60.0, 0, &[0, 1], &[]));
    (0..2).for_each(|_| tasks.push(60.0, 0, &[1], &[]));
    // Others, so that A is among the first by both orders.
    (0..20).for_each(|_| tasks.push(60.0, 0, &[2, 3], &[]));
    let node = |rack, out_mb_s| Node { rack, out_mb_s, in_mb_s: 100.0 };
    let nodes = [node(0, 50.0), node(1, 60.0), node(2, 1.0), node(3, 1.0), node(4, 1.0)];
    let queue: Vec<u32> = (0..24).collect();
    let sources = |prioritize| {
        let params = Params { beta: 0.4, ..Params::default() };
        let options =
            PlannerOptions { prioritize, ..PlannerOptions::paper(params, Algorithm::Dayu) };
        let made = plan(&input(&nodes, &tasks, &queue), &options).unwrap();
        let mut of: Vec<_> = made.assignments.iter().map(|a| (a.task, a.source)).collect();
        of.sort();
        of.truncate(4);
        of.into_iter().map(|(_, source)| source).collect::<Vec<u32>>()
    };
    assert_eq!(sources(true), [0, 0, 1, 1]);
    assert_eq!(sources(false)[0], 1);
}

#[test]
fn classes_go_first_strictly() {
    let (nodes, _) = cluster(120, 1, 3);
    let mut tasks = Tasks::default();
    for i in 0..3_000u32 {
        let (a, b) = (1 + i % 50, 61 + i % 50);
        let of = [class::REBALANCE, class::DRAIN, class::repair(2), class::repair(1)];
        let of = of[i as usize % 4];
        if of == class::repair(1) {
            tasks.push(64.0, of, &[a], &[]);
        } else {
            tasks.push(64.0, of, &[a, b], &[]);
        }
    }
    let queue: Vec<u32> = (0..tasks.len() as u32).collect();
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let made = plan(&input(&nodes, &tasks, &queue), &options).unwrap();
    let order: Vec<u8> = made.assignments.iter().map(|a| tasks.class(a.task)).collect();
    assert!(order.is_sorted(), "the most urgent are placed first");
    assert!(order[0] == class::repair(1) && made.waiting.len() > 100);
    assert!(class::repair(1) < class::repair(2) && class::repair(9) < class::DRAIN);
}

#[test]
fn lost_chunks_are_named_and_the_rest_goes_on() {
    let (nodes, _) = cluster(120, 1, 3);
    let mut tasks = Tasks::default();
    tasks.push(64.0, 0, &[], &[]);
    tasks.push(64.0, 0, &[5], &[]);
    // Its only holder is away for now: that is not lost.
    tasks.push(64.0, 0, &[0], &[]);
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let made = plan(&input(&nodes, &tasks, &[0, 1, 2]), &options).unwrap();
    assert_eq!((made.lost, made.waiting, made.placed), (vec![0], vec![2], 1));
}

/// Two racks and three replicas: copies go into racks that have one, never to nodes that do.
#[test]
fn too_few_racks_still_repair() {
    let node = |rack| Node { rack, out_mb_s: 100.0, in_mb_s: 100.0 };
    let nodes = [node(0), node(0), node(1), node(1)];
    let mut tasks = Tasks::default();
    tasks.push(64.0, 0, &[0, 2], &[]);
    for (_, algorithm) in Algorithm::ALL {
        let options = PlannerOptions::paper(Params::default(), algorithm);
        let made = plan(&input(&nodes, &tasks, &[0]), &options).unwrap();
        assert!([1, 3].contains(&made.assignments[0].destination), "{algorithm:?}");
    }
}

/// As many copies as racks, two of them in one: the rack without any takes the next one, however slow
/// it is; and with more copies than racks, a node that has none.
#[test]
fn a_rack_without_a_copy_is_found_among_few() {
    let node = |(rack, in_mb_s)| Node { rack, out_mb_s: 100.0, in_mb_s };
    let nodes = [(0, 100.0), (0, 100.0), (0, 100.0), (1, 100.0), (2, 10.0)].map(node);
    let mut tasks = Tasks::default();
    tasks.push(64.0, 0, &[0, 1, 3], &[]);
    tasks.push(64.0, 0, &[0, 1, 3, 4], &[]);
    for (_, algorithm) in Algorithm::ALL {
        let options = PlannerOptions::paper(Params::default(), algorithm);
        for (task, expected) in [(0, 4), (1, 2)] {
            let made = plan(&input(&nodes, &tasks, &[task]), &options).unwrap();
            assert_eq!(made.assignments[0].destination, expected, "{algorithm:?}");
        }
    }
}

/// Uplinks of a third of what the nodes behind them could send: no rack gets more than its link.
#[test]
fn rack_links_are_resources() {
    let (nodes, tasks) = cluster(350, 20_000, 2);
    let queue: Vec<u32> = (0..tasks.len() as u32).collect();
    let racks = vec![Rack { up_mb_s: 1000.0, down_mb_s: 1500.0 }; 10];
    let input = Input { racks: &racks, ..input(&nodes, &tasks, &queue) };
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let made = plan(&input, &options).unwrap();
    assert_sound(&input, &options, &made);
    let (mut up, mut down) = (vec![0.0; 10], vec![0.0; 10]);
    let (mut up_mb, mut down_mb) = (vec![0.0; 10], vec![0.0; 10]);
    for a in &made.assignments {
        let [from, to] = [a.source, a.destination].map(|node| nodes[node as usize].rack as usize);
        up[from] += a.rate_mb_s;
        down[to] += a.rate_mb_s;
        up_mb[from] += a.mb;
        down_mb[to] += a.mb;
    }
    // Nor more to do than it does in a slot.
    let most_mb = [1000.0, 1500.0].map(|mb_s| mb_s * options.horizon_s * 1.001);
    assert!(up_mb.iter().all(|mb| *mb <= most_mb[0]), "{up_mb:?}");
    assert!(down_mb.iter().all(|mb| *mb <= most_mb[1]), "{down_mb:?}");
    assert!(up.iter().all(|rate| *rate <= 1000.1), "{up:?}");
    assert!(down.iter().all(|rate| *rate <= 1500.1), "{down:?}");
    assert!(up[1..].iter().all(|rate| *rate > 950.0), "the uplinks are used: {up:?}");
}

/// What a link can just carry in a slot, it is given: here, two chunks.
#[test]
fn a_rack_link_is_filled_to_its_end() {
    let nodes = [0, 1, 1, 1].map(|rack| Node { rack, out_mb_s: 1000.0, in_mb_s: 1000.0 });
    let mut tasks = Tasks::default();
    (0..5).for_each(|_| tasks.push(64.0, 0, &[0], &[]));
    let queue: Vec<u32> = (0..5).collect();
    let (narrow, wide) = (8.0, 1000.0);
    let paper = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    let options = PlannerOptions { horizon_s: 16.0, ..paper };
    for (up_mb_s, down_mb_s) in [(narrow, wide), (wide, narrow)] {
        let input =
            Input { racks: &[Rack { up_mb_s, down_mb_s }; 2], ..input(&nodes, &tasks, &queue) };
        assert_eq!(plan(&input, &options).unwrap().placed, 2, "{up_mb_s} up, {down_mb_s} down");
    }
}

/// With too few racks copies stay within one; its link to the others carries nothing of them.
#[test]
fn copies_within_a_rack_take_nothing_of_its_link() {
    let node = |rack| Node { rack, out_mb_s: 100.0, in_mb_s: 100.0 };
    let nodes = [node(0), node(0), node(0)];
    let mut tasks = Tasks::default();
    (0..10).for_each(|_| tasks.push(64.0, 0, &[0], &[]));
    let queue: Vec<u32> = (0..10).collect();
    let racks = [Rack { up_mb_s: 1.0, down_mb_s: 1.0 }];
    let input = Input { racks: &racks, ..input(&nodes, &tasks, &queue) };
    let options = PlannerOptions::paper(Params::default(), Algorithm::Dayu);
    assert_eq!(plan(&input, &options).unwrap().placed, 10);
}

#[test]
fn impossible_input_is_refused() {
    let (mut nodes, mut tasks) = cluster(120, 10, 3);
    let options = |params| PlannerOptions::paper(params, Algorithm::Dayu);
    for alpha in [0.0, -1.0, 1.01, f32::NAN] {
        let params = Params { alpha, ..Params::default() };
        let error = plan(&input(&nodes, &tasks, &[0]), &options(params)).unwrap_err();
        assert!(error.message.contains("alpha"), "{error}");
    }
    let refused = |nodes: &[Node], tasks: &Tasks, queue: &[u32]| {
        plan(&input(nodes, tasks, queue), &options(Params::default())).unwrap_err().message
    };
    assert!(refused(&nodes, &tasks, &[10]).contains("task `10` is unknown"));
    tasks.push(64.0, 0, &[500], &[]);
    assert!(refused(&nodes, &tasks, &[10]).contains("unknown node `500`"));
    for (source, destination) in [(1, 120), (120, 1)] {
        let (done_mb, speed_mb_s, rate_mb_s) = (1.0, 1.0, 1.0);
        let flight = Flight { task: 0, source, destination, done_mb, speed_mb_s, rate_mb_s };
        let input = Input { flights: &[flight], ..input(&nodes, &tasks, &[0]) };
        let refused = plan(&input, &options(Params::default())).unwrap_err();
        assert!(refused.message.contains("moves at the unknown node `120`"), "{refused}");
    }
    nodes[7].in_mb_s = f32::NAN;
    assert!(refused(&nodes, &tasks, &[0]).contains("node `7` reports"));
    nodes[7].in_mb_s = -1.0;
    assert!(refused(&nodes, &tasks, &[0]).contains("node `7` reports"));
}

#[test]
fn a_task_that_names_its_target_goes_there_or_waits() {
    let (nodes, mut tasks) = cluster(350, 2000, 3);
    let first = tasks.len() as u32;
    for i in 0..300 {
        tasks.push_to(8.0, class::REBALANCE, &[1 + i % 7, 20 + i % 30], 100 + i % 150);
    }
    // To where nothing can go: node 0 has failed.
    tasks.push_to(8.0, class::REBALANCE, &[5], 0);
    let queue: Vec<u32> = (0..tasks.len() as u32).collect();
    for (name, algorithm) in Algorithm::ALL {
        let options = PlannerOptions::paper(Params::default(), algorithm);
        let made = plan(&input(&nodes, &tasks, &queue), &options).unwrap();
        let named = made.assignments.iter().filter(|a| a.task >= first);
        let wrong = named.clone().filter(|a| tasks.target(a.task) != Some(a.destination));
        assert_eq!(wrong.count(), 0, "{name}");
        assert!(named.count() > 100, "{name}");
        assert!(made.waiting.contains(&(tasks.len() as u32 - 1)), "{name}");
    }
}
