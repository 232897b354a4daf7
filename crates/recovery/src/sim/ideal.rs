//! What no scheduler can beat: the fluid ideal, and the feasible one.

use super::Scenario;
use crate::model::Params;

/// Lower bounds of a recovery's time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ideal {
    /// All bandwidth of eq. 1 is used, whoever has the data: the paper's "Ideal".
    pub fluid_s: f64,
    /// The same, with each chunk sent by one of its holders: nodes with little to send are idle
    /// at the end, and those with much are late.
    pub feasible_s: f64,
}

/// Rounds of balancing at each step of the search for the end.
const ROUNDS: usize = 6;
/// Halvings of the interval in which the end is: to 1% of the fluid ideal.
const HALVINGS: usize = 7;
/// The same where few nodes hold what is to be copied, and the end may be many times later.
const HALVINGS_FAR: usize = 14;
/// What holders must be able to send before the search for the end ends, of all that there is.
const FAR: f64 = 1.5;
/// A load that much over what a node can send is what balancing leaves, not too much.
const BALANCED: f64 = 1.005;

pub fn ideal(scenario: &Scenario, params: &Params) -> Ideal {
    let tasks = &scenario.tasks;
    let total: f64 = (0..tasks.len() as u32).map(|task| f64::from(tasks.mb(task))).sum();
    let step = f64::from(scenario.trace.step_s);
    let n = scenario.racks.len();
    // MB that each node can have sent by the end of each step.
    let mut sent = vec![vec![0.0f32; n]];
    let mut left = total;
    let mut fluid_s = 0.0;
    let mut t = 0.0;
    let mut holds = vec![false; n];
    let sources = (0..tasks.len() as u32).flat_map(|task| tasks.sources(task));
    sources.for_each(|node| holds[*node as usize] = true);
    // A window twice as long as the fluid ideal is enough for the feasible one, unless only some
    // nodes hold anything: then until those can have sent half as much again.
    let can_send = |sent: &[f32]| {
        let all = sent.iter().zip(&holds).filter(|(_, holds)| **holds);
        all.map(|(mb, _)| f64::from(*mb)).sum::<f64>()
    };
    while (fluid_s == 0.0 || t < 2.0 * fluid_s || can_send(&sent[sent.len() - 1]) < FAR * total)
        && t < super::SECONDS_MAX
    {
        let now = scenario.foreground(t);
        let mut sums = [0.0; 2];
        let mut next = sent[sent.len() - 1].clone();
        for (node, next) in next.iter_mut().enumerate() {
            if node == scenario.failed as usize {
                continue;
            }
            let out = params.recovery_mb_s(scenario.total_mb_s, now.out_mb_s[node]);
            let into = params.recovery_mb_s(scenario.total_mb_s, now.in_mb_s[node]);
            sums[0] += f64::from(out);
            sums[1] += f64::from(into);
            *next += out * step as f32;
        }
        sent.push(next);
        let rate = sums[0].min(sums[1]);
        if fluid_s == 0.0 && left <= rate * step {
            fluid_s = (t + left / rate.max(1e-9)).max(1e-9);
        }
        left -= rate * step;
        t += step;
    }
    let far = t > 2.0 * fluid_s + step;
    let search = if far { (t, HALVINGS_FAR) } else { (2.0 * fluid_s, HALVINGS) };
    let feasible_s = feasible(scenario, &sent, step, fluid_s, search);
    Ideal { fluid_s, feasible_s: feasible_s.max(fluid_s) }
}

/// The least time by which nodes can have sent everything, tasks divisible between their holders.
/// For an end in question, each task in turn is split such that its holders are loaded alike for
/// what they can send until then (coordinate descent on a convex problem); the end is late enough
/// if no node is left with more than it can send.
fn feasible(
    scenario: &Scenario,
    sent: &[Vec<f32>],
    step: f64,
    fluid_s: f64,
    (latest_s, halvings): (f64, usize),
) -> f64 {
    let tasks = &scenario.tasks;
    let mut load = vec![0f64; scenario.racks.len()];
    // Share of each task's first holder; the second has the rest. Tasks with another number of
    // holders are divided evenly and stay.
    let mut first = vec![0.5f32; tasks.len()];
    for task in 0..tasks.len() as u32 {
        let sources = tasks.sources(task);
        for node in sources {
            load[*node as usize] += f64::from(tasks.mb(task)) / sources.len() as f64;
        }
    }
    let (mut early, mut late) = (fluid_s, latest_s);
    for _ in 0..halvings {
        let end_s = (early + late) / 2.0;
        let at = end_s / step;
        let (before, part) = ((at as usize).min(sent.len() - 2), at.fract());
        let can = |node: usize| {
            let (a, b) = (f64::from(sent[before][node]), f64::from(sent[before + 1][node]));
            (a + part * (b - a)).max(1e-9)
        };
        let can: Vec<f64> = (0..load.len()).map(can).collect();
        for _ in 0..ROUNDS {
            for task in 0..tasks.len() as u32 {
                let [a, b] = *tasks.sources(task) else { continue };
                let (a, b, mb) = (a as usize, b as usize, f64::from(tasks.mb(task)));
                let share = f64::from(first[task as usize]);
                let (la, lb) = (load[a] - share * mb, load[b] - (1.0 - share) * mb);
                // (la + x) / can[a] = (lb + mb - x) / can[b]
                let x = (can[a] * (lb + mb) - can[b] * la) / (can[a] + can[b]);
                let x = x.clamp(0.0, mb);
                first[task as usize] = (x / mb) as f32;
                load[a] = la + x;
                load[b] = lb + mb - x;
            }
        }
        let fits = load.iter().zip(&can).all(|(load, can)| *load <= BALANCED * can);
        if fits { late = end_s } else { early = end_s }
    }
    late
}
