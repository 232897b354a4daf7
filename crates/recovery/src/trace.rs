//! Foreground traffic and chunk placement for the simulator: a synthetic trace matched to the
//! statistics that the Dayu paper publishes (its Figure 1), because no usable public trace exists.
//! Matched are marginals only; how nodes correlate in a real cluster is unknown.
//!
//! A trace is made in windows, one for each failure, each from its own part of the seed, so that
//! nobody has to keep a week of 3,500 nodes at one-second steps.

mod csv;
mod placement;

pub use csv::parse_csv;
pub use placement::{CHUNK_MB, Placement, PlacementParams};

use crate::random::{Random, exp};
use std::f32::consts::TAU;

/// Seconds of a step at which the paper's trace is recorded; the parameters below are for it.
pub const RECORD_S: f32 = 15.0;
const DAY_S: f32 = 86_400.0;

/// The generator's parameters. The defaults were fixed before any scheduler ran on them.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceParams {
    /// Bandwidth of a node in each direction: two 1 Gb NICs.
    pub total_mb_s: f32,
    /// Centre of the foreground on the logit scale; -0.53 gives a mean of 98 MB/s.
    pub mu: f32,
    /// Amplitude of the day, logit scale.
    pub day: f32,
    /// Standard deviation of everything else, logit scale.
    pub sigma: f32,
    /// Shares of sigma's variance: constant for a node, slow, fast. They sum to 1.
    pub node_share: f32,
    pub slow_share: f32,
    /// Correlation from one record to the next of the slow and the fast part.
    pub slow_rho: f32,
    pub fast_rho: f32,
    /// Share of the fast part's variance that both directions have in common.
    pub common_share: f32,
    /// Chance that a burst starts in a record, of each direction of each node.
    pub burst_start: f32,
    /// Mean length of a burst in records.
    pub burst_records: f32,
    /// Height of a burst, uniform between the two; 70% go up, 30% down.
    pub burst_mb_s: (f32, f32),
    pub burst_up: f32,
    /// No change from one step to the next is larger: the paper's two thirds of the bandwidth.
    pub delta_max_mb_s: f32,
}

impl Default for TraceParams {
    fn default() -> TraceParams {
        TraceParams {
            total_mb_s: 250.0,
            mu: -0.53,
            day: 0.18,
            sigma: 0.90,
            node_share: 0.04,
            slow_share: 0.06,
            slow_rho: 0.9985,
            fast_rho: 0.928,
            common_share: 0.6,
            burst_start: 0.003,
            burst_records: 5.0,
            burst_mb_s: (40.0, 150.0),
            burst_up: 0.7,
            delta_max_mb_s: 500.0 / 3.0,
        }
    }
}

/// Foreground traffic of one moment, node by node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreground {
    pub in_mb_s: Vec<f32>,
    pub out_mb_s: Vec<f32>,
}

/// Foreground traffic of all nodes at steps of equal length, in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub step_s: f32,
    pub steps: Vec<Foreground>,
}

impl Trace {
    pub fn nodes(&self) -> usize {
        self.steps.first().map_or(0, |step| step.in_mb_s.len())
    }

    /// The step that covers `seconds` from the trace's beginning; past the end it starts again.
    pub fn at(&self, seconds: f64) -> &Foreground {
        let step = (seconds / f64::from(self.step_s) + 1e-6).max(0.0) as usize;
        &self.steps[step % self.steps.len()]
    }
}

/// Makes one window of a trace, step by step.
pub struct Generator {
    params: TraceParams,
    random: Random,
    step_s: f32,
    second: f32,
    /// What stays with a node for the whole trace, on the logit scale.
    base: Vec<f32>,
    slow: Vec<f32>,
    /// Common, in, out.
    fast: [Vec<f32>; 3],
    /// Of each direction; 0 without a burst.
    burst: [Vec<f32>; 2],
    last: Option<Foreground>,
}

impl Generator {
    /// `window` numbers the windows of one trace; `start_s` is its time of the day. Nodes keep
    /// their constant part across windows, everything else starts from its steady state.
    pub fn new(
        params: &TraceParams,
        nodes: usize,
        seed: u64,
        window: u64,
        start_s: f32,
        step_s: f32,
    ) -> Generator {
        let mut constant = Random::of(seed, u64::MAX);
        let mut random = Random::of(seed, window);
        let scale = params.sigma * params.node_share.sqrt();
        let base = (0..nodes).map(|_| params.mu + scale * constant.normal()).collect();
        let mut normals = || (0..nodes).map(|_| random.normal()).collect::<Vec<f32>>();
        let slow = normals();
        let fast = [normals(), normals(), normals()];
        let burst = [vec![0.0; nodes], vec![0.0; nodes]];
        let params = params.clone();
        let second = start_s;
        let mut generator =
            Generator { params, random, step_s, second, base, slow, fast, burst, last: None };
        generator.start_bursts();
        generator
    }

    /// Bursts have no memory, so one that is under way is like one that starts now.
    fn start_bursts(&mut self) {
        let share = self.params.burst_start * self.params.burst_records;
        let running = share / (1.0 + share);
        for direction in 0..2 {
            for node in 0..self.base.len() {
                if self.random.unit() < running {
                    self.burst[direction][node] = self.height();
                }
            }
        }
    }

    fn height(&mut self) -> f32 {
        let (low, high) = self.params.burst_mb_s;
        let height = low + (high - low) * self.random.unit();
        if self.random.unit() < self.params.burst_up { height } else { -height }
    }

    fn step(&mut self) -> Foreground {
        let p = self.params.clone();
        let nodes = self.base.len();
        let records = self.step_s / RECORD_S;
        // rho^records, from the logarithm's series: exact operations only.
        let decay = |rho: f32| exp(records * ln_near_one(rho));
        let (slow_rho, fast_rho) = (decay(p.slow_rho), decay(p.fast_rho));
        let slow_noise = (1.0 - slow_rho * slow_rho).sqrt();
        let fast_noise = (1.0 - fast_rho * fast_rho).sqrt();
        let fast_share = 1.0 - p.node_share - p.slow_share;
        let slow_scale = p.sigma * p.slow_share.sqrt();
        let common = p.sigma * (fast_share * p.common_share).sqrt();
        let own = p.sigma * (fast_share * (1.0 - p.common_share)).sqrt();
        let day = p.day * sine(self.second / DAY_S);
        let (starts, ends) = (p.burst_start * records, records / p.burst_records);
        let mut now = [vec![0.0; nodes], vec![0.0; nodes]];
        for node in 0..nodes {
            self.slow[node] = slow_rho * self.slow[node] + slow_noise * self.random.normal();
            for part in &mut self.fast {
                part[node] = fast_rho * part[node] + fast_noise * self.random.normal();
            }
            let shared =
                self.base[node] + day + slow_scale * self.slow[node] + common * self.fast[0][node];
            for (direction, now) in now.iter_mut().enumerate() {
                let draw = self.random.unit();
                let burst = &mut self.burst[direction][node];
                if *burst != 0.0 && draw < ends {
                    *burst = 0.0;
                } else if *burst == 0.0 && draw < starts {
                    self.burst[direction][node] = self.height();
                }
                let x = shared + own * self.fast[1 + direction][node];
                let value = p.total_mb_s / (1.0 + exp(-x)) + self.burst[direction][node];
                now[node] = value.clamp(0.0, p.total_mb_s);
            }
        }
        let [mut in_mb_s, mut out_mb_s] = now;
        if let Some(last) = &self.last {
            for (now, last) in [(&mut in_mb_s, &last.in_mb_s), (&mut out_mb_s, &last.out_mb_s)] {
                for (now, last) in now.iter_mut().zip(last) {
                    *now = now.clamp(last - p.delta_max_mb_s, last + p.delta_max_mb_s);
                }
            }
        }
        self.second += self.step_s;
        let step = Foreground { in_mb_s, out_mb_s };
        self.last = Some(step.clone());
        step
    }
}

/// Endless.
impl Iterator for Generator {
    type Item = Foreground;

    fn next(&mut self) -> Option<Foreground> {
        Some(self.step())
    }
}

/// ln x for x in (0.5, 1.5), to f32's precision: 2 artanh((x - 1) / (x + 1)).
fn ln_near_one(x: f32) -> f32 {
    let z = (f64::from(x) - 1.0) / (f64::from(x) + 1.0);
    let q = z * z;
    (2.0 * z * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q / 9.0))))) as f32
}

/// sin(2 pi turns) to 0.002, by Bhaskara's formula: a day's shape needs no more.
fn sine(turns: f32) -> f32 {
    let x = (turns - turns.floor()) * 2.0;
    let half = |x: f32| {
        let y = x * (1.0 - x) * (TAU * TAU / 4.0);
        16.0 * y / (5.0 * (TAU * TAU / 4.0) - 4.0 * y)
    };
    if x < 1.0 { half(x) } else { -half(x - 1.0) }
}

#[cfg(test)]
mod tests;
