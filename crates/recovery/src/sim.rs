//! The simulator: one node failure, flow by flow. Foreground traffic comes from a trace; nodes
//! report it, the planner plans, transfers move at what links have left. Deterministic: the time
//! that planning takes is not measured here but given, as the planner's speed in tasks a second.
//!
//! Physical links: recovery gets at most max(total - foreground, B_min) of a direction, shared in
//! proportion to what the plan gave; a floor below B_min would make endless tails.

mod horizon;
mod ideal;
mod slots;

pub use ideal::{Ideal, ideal};

use crate::model::{HORIZON_S, IN_FLIGHT, Node, Params, Tasks};
use crate::plan::{Allocator, PlannerOptions};
use crate::random::Random;
use crate::trace::{
    Foreground, Generator, Placement, PlacementParams, RECORD_S, Trace, TraceParams,
};
use holdfast_base::{Error, Result};

/// Length of a generated window; longer recoveries see it again from the start.
pub const WINDOW_S: f32 = 420.0;
/// A recovery that takes longer is given up: its plan does not make progress.
const SECONDS_MAX: f64 = 36_000.0;

/// One failure: who, what it leaves to copy, and the foreground traffic around it.
pub struct Scenario {
    pub failed: u32,
    pub racks: Vec<u32>,
    pub tasks: Tasks,
    pub trace: Trace,
    /// Of the failure, from the trace's beginning; at least one report earlier there is traffic.
    pub offset_s: f64,
    pub total_mb_s: f32,
    /// Where endless tasks come from.
    pub placement: Placement,
    pub seed: u64,
}

/// What makes a cluster and its failures.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: usize,
    pub chunks: usize,
    pub seed: u64,
    pub trace: TraceParams,
    pub placement: PlacementParams,
    pub window_s: f32,
    /// Length of a trace's steps.
    pub step_s: f32,
}

impl Setup {
    pub fn new(nodes: usize, chunks: usize, seed: u64) -> Setup {
        let mut placement = PlacementParams::default();
        placement.rack_nodes = placement.rack_nodes.min(nodes / 4).max(1);
        let trace = TraceParams::default();
        Setup { nodes, chunks, seed, trace, placement, window_s: WINDOW_S, step_s: 1.0 }
    }

    /// Failure number `index`: a random node at a random time of the day, with a window of the
    /// trace of its own, or with a random time of `recorded`.
    pub fn scenario(&self, index: u64, recorded: Option<&Trace>) -> Scenario {
        let mut random = Random::of(self.seed ^ 0xfa11, index);
        let failed = random.below(self.nodes) as u32;
        let start_s = random.unit() * 86_400.0;
        let placement = Placement::new(&self.placement, self.nodes, self.seed);
        let (trace, offset_s) = match recorded {
            Some(trace) => {
                let steps = random.below(trace.steps.len()) + 1;
                (trace.clone(), steps as f64 * f64::from(trace.step_s))
            }
            None => {
                let (nodes, seed, step_s) = (self.nodes, self.seed, self.step_s);
                let window = Generator::new(&self.trace, nodes, seed, index + 1, start_s, step_s);
                let steps = ((self.window_s + RECORD_S) / step_s).ceil() as usize;
                (Trace { step_s, steps: window.take(steps).collect() }, f64::from(RECORD_S))
            }
        };
        Scenario {
            failed,
            racks: placement.racks().to_vec(),
            tasks: placement.failure(failed, self.chunks, index),
            trace,
            offset_s,
            total_mb_s: self.trace.total_mb_s,
            placement,
            seed: self.seed ^ index.wrapping_mul(0x9e37),
        }
    }
}

/// How fast plans are computed: recorded on one core, or measured by the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// Tasks placed a second, scans included. Infinite: free.
    pub tasks_per_second: f64,
    /// Of an iteration of the rate allocation.
    pub iteration_s: f64,
}

impl Compute {
    pub const FREE: Compute = Compute { tasks_per_second: f64::INFINITY, iteration_s: 0.0 };

    fn seconds(&self, placed: u64, iterations: usize) -> f64 {
        placed as f64 / self.tasks_per_second + iterations as f64 * self.iteration_s
    }
}

/// One way to recover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub options: PlannerOptions,
    pub compute: Compute,
    /// T_schedule: planning starts so long before the slot it is for.
    pub schedule_s: f64,
    /// The period of the nodes' reports, and what one averages over. Slots of the paper's method
    /// are as long; with [`Allocator::Ceiling`], plans are made anew at each report.
    pub report_s: f64,
    /// With [`Allocator::Ceiling`]: transfers that a node sends, and receives, at a time.
    pub in_flight: usize,
    /// Ends after so many seconds, with tasks without end, instead of when all are done.
    pub endless_s: Option<f64>,
}

impl Config {
    /// The paper's way.
    pub fn slots(options: PlannerOptions) -> Config {
        Config {
            options,
            compute: Compute::FREE,
            schedule_s: 1.0,
            report_s: f64::from(options.params.slot_s),
            in_flight: 0,
            endless_s: None,
        }
    }

    /// Our best: reports each second, plans of a few seconds made anew with each, transfers bound
    /// late, alpha enforced by each node itself.
    pub fn horizon(options: PlannerOptions) -> Config {
        let options = PlannerOptions {
            allocator: Allocator::Ceiling,
            horizon_s: HORIZON_S,
            elastic: true,
            heaviest_first: true,
            ..options
        };
        Config { report_s: 1.0, in_flight: IN_FLIGHT, schedule_s: 0.0, ..Config::slots(options) }
    }
}

/// What a recovery came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// From the failure to the end of the last copy.
    pub seconds: f64,
    pub moved_mb: f64,
    /// Moved for nothing: progress of what started again.
    pub resent_mb: f64,
    /// Eq. 4, averaged over the recovery and both directions, as a share of all bandwidth.
    pub interference: f64,
    /// Transfers that were not done when a plan ended; each counts once a plan.
    pub stragglers: u64,
    pub restarted: u64,
    pub plans: u64,
    /// Sum over the plans of tasks placed, and of the shares that they were of the tasks left.
    pub placed: u64,
    pub share_scheduled: f64,
    pub compute_s: f64,
    pub lost: u64,
}

/// Simulates one recovery.
pub fn simulate(scenario: &Scenario, config: &Config) -> Result<Outcome> {
    config.options.params.check()?;
    match config.options.allocator {
        Allocator::Wss | Allocator::Deadline => slots::run(scenario, config),
        Allocator::Ceiling => horizon::run(scenario, config),
    }
}

impl Scenario {
    fn survivors(&self) -> f64 {
        (self.racks.len() - 1) as f64
    }

    fn foreground(&self, seconds: f64) -> &Foreground {
        self.trace.at(self.offset_s + seconds)
    }

    /// What nodes report at a moment: eq. 1 on the mean of the last `period_s`.
    fn report(&self, seconds: f64, period_s: f64, params: &Params) -> Vec<Node> {
        let step = f64::from(self.trace.step_s);
        let samples = (period_s / step).round().max(1.0) as usize;
        let mut sums = [vec![0.0f32; self.racks.len()], vec![0.0f32; self.racks.len()]];
        for sample in 0..samples {
            let now = self.foreground(seconds - step * (sample as f64 + 0.5));
            for (sum, values) in sums.iter_mut().zip([&now.out_mb_s, &now.in_mb_s]) {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        let idle = |sum: f32| params.recovery_mb_s(self.total_mb_s, sum / samples as f32);
        let node = |node: usize| {
            let rack = self.racks[node];
            if node == self.failed as usize {
                return Node { rack, out_mb_s: 0.0, in_mb_s: 0.0 };
            }
            Node { rack, out_mb_s: idle(sums[0][node]), in_mb_s: idle(sums[1][node]) }
        };
        (0..self.racks.len()).map(node).collect()
    }

    fn check_time(&self, seconds: f64) -> Result<()> {
        if seconds < SECONDS_MAX {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "simulate the failure of node `{}`: not done after {SECONDS_MAX} s; use another plan",
            self.failed
        )))
    }
}

/// Sums of eq. 3 over time.
#[derive(Default)]
struct Interference {
    overload_mb: f64,
    seconds: f64,
}

/// The share of a link past which its foreground suffers: fixed in eq. 3, whatever alpha is.
const LOADED: f32 = 0.75;

impl Interference {
    /// Counts `dt_s` in which nodes moved `moved_mb` of recovery traffic, out and in.
    fn count(&mut self, scenario: &Scenario, now: &Foreground, moved_mb: [&[f32]; 2], dt_s: f64) {
        let limit = LOADED * scenario.total_mb_s;
        let mut overload = 0.0f64;
        for (moved, foreground) in moved_mb.into_iter().zip([&now.out_mb_s, &now.in_mb_s]) {
            for (node, (moved, foreground)) in moved.iter().zip(foreground).enumerate() {
                if node != scenario.failed as usize {
                    overload += f64::from((moved / dt_s as f32 + foreground - limit).max(0.0));
                }
            }
        }
        self.overload_mb += overload * dt_s;
        self.seconds += dt_s;
    }

    /// Eq. 4.
    fn share(&self, scenario: &Scenario) -> f64 {
        let links = 2.0 * scenario.survivors() * f64::from(scenario.total_mb_s);
        self.overload_mb / (links * self.seconds).max(1e-9)
    }
}

#[cfg(test)]
mod tests;
