//! The planner beside exact optima of small recoveries, which `tests/milp/optima.py` found with a
//! mixed-integer solver. At this size a solver takes seconds; at a cluster's it takes for ever.

use holdfast_recovery::model::{Node, Params, Tasks};
use holdfast_recovery::plan::{Allocator, Input, PlannerOptions, plan};
use holdfast_recovery::select::Algorithm;

struct Case {
    nodes: Vec<Node>,
    tasks: Tasks,
    optimum_s: f32,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("milp/optima.txt").lines() {
        let mut words = line.split(' ');
        let kind = words.next().unwrap();
        let numbers: Vec<f32> = words.map(|word| word.parse().unwrap()).collect();
        if kind == "case" {
            cases.push(Case { nodes: Vec::new(), tasks: Tasks::default(), optimum_s: 0.0 });
            continue;
        }
        let case = cases.last_mut().unwrap();
        match kind {
            "node" => case.nodes.push(Node {
                rack: case.nodes.len() as u32,
                out_mb_s: numbers[0],
                in_mb_s: numbers[1],
            }),
            "task" => case.tasks.push(numbers[0], 0, &[numbers[1] as u32, numbers[2] as u32], &[]),
            _ => {
                assert_eq!(numbers[0], numbers[1], "it was solved to the end");
                case.optimum_s = numbers[0];
            }
        }
    }
    cases
}

/// Seconds until the last link has moved what it was given, if everything is in one plan.
fn makespan_s(case: &Case, algorithm: Algorithm, heaviest_first: bool) -> f32 {
    let queue: Vec<u32> = (0..case.tasks.len() as u32).collect();
    let options = PlannerOptions {
        allocator: Allocator::Ceiling,
        horizon_s: 1000.0,
        heaviest_first,
        ..PlannerOptions::paper(Params::default(), algorithm)
    };
    let input = Input {
        nodes: &case.nodes,
        racks: &[],
        tasks: &case.tasks,
        queue: &queue,
        flights: &[],
        until_slot_s: 0.0,
        seed: 1,
    };
    let made = plan(&input, &options).unwrap();
    assert_eq!(made.assignments.len(), queue.len());
    let mut load = vec![[0.0f32; 2]; case.nodes.len()];
    for a in &made.assignments {
        load[a.source as usize][0] += a.mb;
        load[a.destination as usize][1] += a.mb;
    }
    let finish =
        |(node, [out, into]): (&Node, &[f32; 2])| (out / node.out_mb_s).max(into / node.in_mb_s);
    case.nodes.iter().zip(&load).map(finish).fold(0.0, f32::max)
}

#[test]
fn nobody_beats_the_optimum_and_dayu_comes_near() {
    let cases = cases();
    assert_eq!(cases.len(), 8);
    let mean = |algorithm, heaviest_first| {
        let ratio = |case: &Case| {
            let ratio = makespan_s(case, algorithm, heaviest_first) / case.optimum_s;
            assert!(ratio > 0.999, "{algorithm:?} beats the optimum: {ratio}");
            ratio
        };
        cases.iter().map(ratio).sum::<f32>() / cases.len() as f32
    };
    let [dayu, heaviest] = [false, true].map(|heaviest| mean(Algorithm::Dayu, heaviest));
    let random = mean(Algorithm::Random, false);
    println!("of the optimum: dayu {dayu:.3}, heaviest first {heaviest:.3}, random {random:.3}");
    assert!(dayu < 1.35 && heaviest < 1.35, "{dayu} {heaviest}");
    assert!(random > dayu, "{random}");
    // The paper's searches are worth the same to a bucket's width.
    assert!((mean(Algorithm::Hull, false) - dayu).abs() < 0.05);
}

/// With `--features milp`: half a minute of a solver's time.
#[cfg(feature = "milp")]
#[test]
fn the_solver_finds_the_optima_that_are_kept() {
    for case in cases() {
        let found = makespan_s(&case, Algorithm::Milp, false);
        let off = found / case.optimum_s;
        assert!((0.999..1.001).contains(&off), "{found} s, not {} s", case.optimum_s);
    }
}

#[cfg(not(feature = "milp"))]
#[test]
fn a_build_without_the_solver_says_so() {
    let tasks = Tasks::default();
    let input = Input {
        nodes: &[],
        racks: &[],
        tasks: &tasks,
        queue: &[],
        flights: &[],
        until_slot_s: 0.0,
        seed: 1,
    };
    let refused =
        plan(&input, &PlannerOptions::paper(Params::default(), Algorithm::Milp)).unwrap_err();
    assert!(refused.message.contains("build with `--features milp`"), "{refused}");
}
