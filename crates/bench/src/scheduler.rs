//! `holdfast bench scheduler`: how fast each selector and search plans a slot, on one core, with
//! the racks respected and the tasks that do not fit looked at as well.

use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_recovery::model::{Node, Params, Tasks};
use holdfast_recovery::plan::{Allocator, Input, PlannerOptions, SlotPlan, plan};
use holdfast_recovery::rates::{Flow, wss};
use holdfast_recovery::search::{Side, reduction};
use holdfast_recovery::select::Algorithm;
use holdfast_recovery::trace::{Generator, Placement, PlacementParams, RECORD_S, TraceParams};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

/// What `bench scheduler` is asked for.
#[derive(Args, Debug)]
pub struct SchedulerBench {
    /// Nodes of the cluster, one of which failed
    #[arg(long, default_value_t = 3500, value_name = "N")]
    pub nodes: usize,
    /// Chunks of the failed node
    #[arg(long, default_value_t = 250_000, value_name = "N")]
    pub chunks: usize,
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    #[expect(missing_docs, reason = "a sentence here would be printed as help")]
    pub seed: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
}

/// Nodes times tasks that the slowest scan is given; past it, it gets fewer tasks.
const LITERAL_VISITS_MAX: usize = 2_000_000_000;
/// A cluster that the benchmark can make in memory.
pub const NODES_MAX: usize = 200_000;
/// Chunks of the node that failed.
pub const CHUNKS_MAX: usize = 20_000_000;

/// Fails with a sentence for a cluster that cannot be simulated.
pub fn check(nodes: usize, chunks: usize) -> Result<()> {
    let refuse = |what: &str, value: usize, range: String| {
        Err(Error::invalid(format!("simulate `{value}` {what}: use {range}")))
    };
    if !(4..=NODES_MAX).contains(&nodes) {
        return refuse("nodes", nodes, format!("between 4 and {NODES_MAX}"));
    }
    if !(1..=CHUNKS_MAX).contains(&chunks) {
        return refuse("chunks", chunks, format!("between 1 and {CHUNKS_MAX}"));
    }
    Ok(())
}

/// The first slot after node 0 failed.
pub struct Case {
    /// Racks, and the MB a second that links have left for recovery.
    pub nodes: Vec<Node>,
    /// Chunks to copy, with the nodes that have them.
    pub tasks: Tasks,
    /// Tasks in the order in which they are looked at.
    pub queue: Vec<u32>,
}

impl Case {
    /// The same arguments make the same cluster, byte for byte.
    pub fn new(nodes: usize, chunks: usize, seed: u64) -> Case {
        let params = Params::default();
        let trace = TraceParams::default();
        let mut now = Generator::new(&trace, nodes, seed, 0, 0.0, RECORD_S);
        let now = now.next().unwrap_or_default();
        // At least as many racks as a chunk has replicas, and one more.
        let rack_nodes = PlacementParams::default().rack_nodes.min(nodes / 4).max(1);
        let placement =
            Placement::new(&PlacementParams { rack_nodes, ..Default::default() }, nodes, seed);
        let node = |i: usize| {
            let of = |f: &[f32]| match i {
                0 => 0.0,
                _ => params.recovery_mb_s(trace.total_mb_s, f[i]),
            };
            let rack = placement.racks()[i];
            Node { rack, out_mb_s: of(&now.out_mb_s), in_mb_s: of(&now.in_mb_s) }
        };
        let tasks = placement.failure(0, chunks, seed);
        Case { nodes: (0..nodes).map(node).collect(), queue: (0..chunks as u32).collect(), tasks }
    }

    /// Plans the first `tasks_max` tasks of the queue, as a live cluster does.
    pub fn plan(&self, algorithm: Algorithm, tasks_max: usize) -> Result<SlotPlan> {
        let options = PlannerOptions {
            allocator: Allocator::Ceiling,
            ..PlannerOptions::paper(Params::default(), algorithm)
        };
        plan(
            &Input {
                nodes: &self.nodes,
                racks: &[],
                tasks: &self.tasks,
                queue: &self.queue[..tasks_max.min(self.queue.len())],
                flights: &[],
                until_slot_s: 0.0,
                seed: 1,
            },
            &options,
        )
    }

    /// Tasks placed a second, scans included; by as many tasks as the slowest scan is given.
    pub fn tasks_per_second(&self, algorithm: Algorithm) -> Result<f64> {
        let scans = matches!(algorithm, Algorithm::Naive | Algorithm::G1);
        let tasks_max = if scans { LITERAL_VISITS_MAX / self.nodes.len() } else { usize::MAX };
        let start = Instant::now();
        let made = self.plan(algorithm, tasks_max)?;
        Ok(made.placed as f64 / start.elapsed().as_secs_f64())
    }

    /// Reads each task and the loads of its sources once: no selector does less.
    fn limit_seconds(&self) -> f64 {
        let load = vec![1.0f32; self.nodes.len()];
        let start = Instant::now();
        let mut sum = 0.0;
        for task in &self.queue {
            let sources = self.tasks.sources(*task).iter();
            sum += self.tasks.mb(*task) + sources.map(|n| load[*n as usize]).sum::<f32>();
        }
        black_box(sum);
        start.elapsed().as_secs_f64()
    }
}

/// Prints how many tasks a second each selector and search plans, beside the naive scan; then how
/// long the rates of all flows take. `Invalid` for a cluster that cannot be simulated.
pub fn run(options: &SchedulerBench, out: &mut Output) -> Result<()> {
    check(options.nodes, options.chunks)?;
    let case = Case::new(options.nodes, options.chunks, options.seed);
    let repetitions = options.repetitions.max(1);
    let mut naive = None;
    // The peer first: all others are held against it.
    let order = [Algorithm::Naive].into_iter();
    let others = Algorithm::ALL.into_iter().map(|(_, a)| a).filter(|a| *a != Algorithm::Naive);
    for algorithm in order.chain(others) {
        let literal = algorithm == Algorithm::Naive;
        let tasks_max = if literal { LITERAL_VISITS_MAX / options.nodes } else { usize::MAX };
        let repetitions = if literal { 1 } else { repetitions };
        let (mut rates, mut limits, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let mut made = SlotPlan::default();
        for _ in 0..repetitions {
            let limit = case.limit_seconds();
            let start = Instant::now();
            made = black_box(case.plan(algorithm, tasks_max)?);
            seconds.push(start.elapsed().as_secs_f64());
            rates.push(made.placed as f64 / start.elapsed().as_secs_f64());
            limits.push(made.placed as f64 / limit);
        }
        let rate = super::report::median(rates.iter().copied());
        let limit = super::report::median(limits);
        let peer: f64 = *naive.get_or_insert(rate);
        let (min, max) = spread(&rates);
        let share = made.placed as f64 / made.placed.max(options.chunks as u64) as f64;
        let side = Side::new(case.nodes.iter().map(|node| node.in_mb_s));
        let rounded = super::report::rounded;
        out.line(
            || {
                format!(
                    "{:<8} {:>12} tasks/s ({} to {}), {} times naive, {} of {} placed, {} scanned",
                    algorithm.name(),
                    rounded(rate),
                    rounded(min),
                    rounded(max),
                    rounded(rate / peer),
                    made.placed,
                    options.chunks,
                    made.scanned
                )
            },
            || {
                json!({
                    "case": algorithm.name(),
                    "operations": made.placed,
                    "seconds": rounded(super::report::median(seconds.iter().copied())),
                    "ops_per_second": rounded(rate),
                    "limit": {"name": "each task and its sources' loads read once",
                              "value": rounded(limit), "unit": "tasks/s"},
                    "ratio_to_limit": rounded(rate / limit),
                    "peer": {"name": "naive scan, one by one, with a division", "version": "",
                             "value": rounded(peer)},
                    "ratio_to_peer": rounded(rate / peer),
                    "better": "higher",
                    "repetitions": repetitions,
                    "spread": {"min": rounded(min), "max": rounded(max)},
                    "nodes": options.nodes,
                    "chunks": options.chunks,
                    "scanned": made.scanned,
                    "share_scheduled": rounded(share),
                    "reduction_factor": rounded(reduction(&side)),
                })
            },
        )?;
    }
    rates(&case, repetitions, out)
}

fn rates(case: &Case, repetitions: usize, out: &mut Output) -> Result<()> {
    let made = case.plan(Algorithm::Dayu, usize::MAX)?;
    let n = case.nodes.len() as u32;
    let flows: Vec<Flow<2>> = made
        .assignments
        .iter()
        .map(|a| Flow { links: [a.source, n + a.destination], mb: a.mb })
        .collect();
    let out_side = case.nodes.iter().map(|node| node.out_mb_s);
    let capacity: Vec<f32> = out_side.chain(case.nodes.iter().map(|node| node.in_mb_s)).collect();
    let mut seconds = Vec::new();
    let mut iterations = 0;
    for _ in 0..repetitions {
        let start = Instant::now();
        let rates = black_box(wss(&flows, &capacity));
        iterations = rates.iterations;
        seconds.push(start.elapsed().as_secs_f64() / iterations.max(1) as f64);
    }
    let each = super::report::median(seconds.iter().copied());
    let (min, max) = spread(&seconds);
    let rounded = super::report::rounded;
    // One look at each flow is the least that an iteration does.
    let start = Instant::now();
    black_box(flows.iter().map(|flow| flow.mb).sum::<f32>());
    let limit = start.elapsed().as_secs_f64();
    out.line(
        || {
            let ms = |s: f64| rounded(s * 1e3);
            let flows = flows.len();
            format!("wss      {:>12} ms an iteration ({} to {}), {iterations} iterations, {flows} flows", ms(each), ms(min), ms(max))
        },
        || {
            json!({
                "case": "wss",
                "operations": flows.len(),
                "seconds": rounded(each),
                "ops_per_second": rounded(flows.len() as f64 / each),
                "limit": {"name": "each flow read once", "value": rounded(limit), "unit": "s"},
                "ratio_to_limit": rounded(each / limit),
                "peer": null,
                "ratio_to_peer": null,
                "better": "lower",
                "repetitions": repetitions,
                "spread": {"min": rounded(min), "max": rounded(max)},
                "nodes": case.nodes.len(),
                "iterations": iterations,
            })
        },
    )
}

fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, 0.0), |(a, b), v| (a.min(*v), b.max(*v)))
}
