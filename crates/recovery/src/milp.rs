//! The selector that asks a solver for the least time in which a slot's tasks can be copied: the
//! mixed-integer program that the paper compares with (section 5, "MILP"), solved by HiGHS. For
//! some twenty nodes and a hundred tasks; at a cluster's size no solver ends. Only with the feature
//! `milp`, which builds HiGHS and needs cmake, a C++ compiler and libclang.

use crate::fill::{Filled, Pass};
use crate::search::Side;
use highs::{ColProblem, HighsModelStatus, HighsSolutionStatus, Row, Sense};
use holdfast_base::{Error, Result};

/// After so many seconds the best plan that was found is taken.
const SECONDS_MAX: f64 = 60.0;
/// How near to the optimum is near enough.
const GAP: f64 = 0.0001;
/// Pairs of a task and an end. Past it memory runs out before patience does.
const CHOICES_MAX: usize = 1 << 20;

/// Chooses for tasks in the order of their classes and of the queue, until the slot is full, all at
/// once: the greatest `load / bandwidth` over all links is the least that there is.
/// Fails when the program is too large, or nothing was found in a minute.
pub fn solve(pass: Pass<'_>, out: &Side, into: &Side, queue: &[u32]) -> Result<Filled> {
    let tasks = pass.tasks;
    let mut filled = Filled::default();
    let mut chosen: Vec<usize> = Vec::new();
    let mut waits = vec![true; queue.len()];
    let mut order: Vec<usize> = (0..queue.len()).collect();
    order.sort_by_key(|at| tasks.class(queue[*at]));
    for at in order {
        let task = queue[at];
        if tasks.sources(task).is_empty() {
            filled.lost.push(task);
            waits[at] = false;
        } else if filled.placed_mb < pass.volume_mb && can_go(&pass, task) {
            filled.placed_mb += f64::from(tasks.mb(task));
            chosen.push(at);
            waits[at] = false;
        }
    }
    if chosen.len() * pass.nodes.len() > CHOICES_MAX {
        return Err(Error::invalid(format!(
            "plan recovery by MILP: {} tasks of one slot on {} nodes are more than {CHOICES_MAX} \
             choices; use fewer nodes and chunks",
            chosen.len(),
            pass.nodes.len()
        )));
    }
    filled.scanned = chosen.len() as u64;
    for (at, source, destination) in optimum(&pass, out, into, queue, &chosen)? {
        filled.placed.push((queue[at], source, destination));
    }
    filled.waiting = (0..queue.len()).filter(|at| waits[*at]).map(|at| queue[at]).collect();
    Ok(filled)
}

fn destinations(pass: &Pass<'_>, task: u32) -> Vec<u32> {
    let mut racks = Vec::new();
    let avoid = pass.avoid(task, &mut racks);
    let live = |node: &u32| pass.nodes[*node as usize].in_mb_s > 0.0;
    (0..pass.nodes.len() as u32).filter(|node| live(node) && !avoid.excludes(*node)).collect()
}

fn sources(pass: &Pass<'_>, task: u32) -> Vec<u32> {
    let live = |node: &u32| pass.nodes[*node as usize].out_mb_s > 0.0;
    pass.tasks.sources(task).iter().copied().filter(live).collect()
}

fn can_go(pass: &Pass<'_>, task: u32) -> bool {
    !sources(pass, task).is_empty() && !destinations(pass, task).is_empty()
}

/// (place in the queue, source, destination) of each task in `chosen`.
fn optimum(
    pass: &Pass<'_>,
    out: &Side,
    into: &Side,
    queue: &[u32],
    chosen: &[usize],
) -> Result<Vec<(usize, u32, u32)>> {
    let mut program = ColProblem::new();
    // What a link is given is within its bandwidth times the time, which is the first column.
    let mut time: Vec<(Row, f64)> = Vec::new();
    let mut link = |mb_s: f32, load_mb: f32| {
        // One without bandwidth is given nothing.
        let load_mb = if mb_s > 0.0 { load_mb } else { 0.0 };
        let row = program.add_row(..=-f64::from(load_mb));
        time.push((row, -f64::from(mb_s)));
        row
    };
    let nodes = pass.nodes.iter().enumerate();
    let links: Vec<[Row; 2]> = nodes
        .map(|(n, node)| [link(node.out_mb_s, out.load_mb[n]), link(node.in_mb_s, into.load_mb[n])])
        .collect();
    let [up_mb, down_mb] = &pass.rack_load_mb;
    let racks = pass.racks.iter().enumerate();
    let rack_links: Vec<[Row; 2]> = racks
        .map(|(r, rack)| [link(rack.up_mb_s, up_mb[r]), link(rack.down_mb_s, down_mb[r])])
        .collect();
    program.add_column(1.0, 0.0.., time);
    // A column for each of these, in this order: sources and destinations of each task.
    let mut choices: Vec<[Vec<u32>; 2]> = Vec::new();
    for at in chosen {
        let (task, mb) = (queue[*at], f64::from(pass.tasks.mb(queue[*at])));
        let ends = [sources(pass, task), destinations(pass, task)];
        for (side, nodes) in ends.iter().enumerate() {
            let one = program.add_row(1.0..=1.0);
            for node in nodes {
                let mut rows = vec![(one, 1.0), (links[*node as usize][side], mb)];
                let rack = pass.rack_of[*node as usize] as usize;
                rows.extend(rack_links.get(rack).map(|rack| (rack[side], mb)));
                program.add_integer_column(0.0, 0.0..=1.0, rows);
            }
        }
        choices.push(ends);
    }
    let mut model = program.optimise(Sense::Minimise);
    model.make_quiet();
    model.set_option("threads", 1);
    model.set_option("time_limit", SECONDS_MAX);
    model.set_option("mip_rel_gap", GAP);
    let solved = model.solve();
    let ended =
        matches!(solved.status(), HighsModelStatus::Optimal | HighsModelStatus::ReachedTimeLimit);
    if !ended || solved.primal_solution_status() != HighsSolutionStatus::Feasible {
        return Err(Error::retry(format!(
            "plan recovery by MILP: no plan of {} tasks was found in {SECONDS_MAX} s; use fewer \
             nodes and chunks",
            chosen.len()
        )));
    }
    let solution = solved.get_solution();
    let mut values = solution.columns()[1..].iter();
    let mut pick = |nodes: &[u32]| {
        let mut taken = values.by_ref().take(nodes.len());
        let at = taken.position(|value| *value > 0.5);
        taken.for_each(drop);
        at.map(|at| nodes[at])
    };
    let ends = choices.iter().map(|[from, to]| (pick(from), pick(to)));
    let ends = chosen.iter().zip(ends);
    Ok(ends.filter_map(|(at, (from, to))| Some((*at, from?, to?))).collect())
}
