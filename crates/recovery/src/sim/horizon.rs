//! Our best execution: plans reach a few seconds and are made anew with each report; a transfer
//! is bound when both of its ends have room for it, so that a plan's unstarted rest is given back
//! without loss; and each node itself keeps recovery below alpha, with what it sees of its
//! foreground now.

use super::{Config, Interference, Outcome, Scenario};
use crate::model::{Flight, Origin};
use crate::plan::{Input, SlotPlan, plan};
use crate::random::Random;
use crate::rates::fair;
use crate::straggler::Fate;
use holdfast_base::Result;

/// How often nodes look at their links and start transfers.
const TICK_S: f64 = 0.1;

struct Transfer {
    task: u32,
    source: u32,
    destination: u32,
    mb: f32,
    left_mb: f32,
    speed_mb_s: f32,
}

struct Run<'a> {
    scenario: &'a Scenario,
    config: &'a Config,
    /// In no plan, then planned and not started.
    waiting: Vec<u32>,
    planned: Vec<(u32, u32, u32)>,
    transfers: Vec<Transfer>,
    /// Transfers under way of each node: out, in.
    busy: [Vec<u8>; 2],
    now_s: f64,
    last_done_s: f64,
    moved: [Vec<f32>; 2],
    interference: Interference,
    outcome: Outcome,
    random: Random,
    changed: bool,
    /// Tasks under way when the last plan was made, in order.
    known: Vec<u32>,
    /// Tasks that a new plan must not start: done, or started meanwhile.
    done: Vec<bool>,
}

pub fn run(scenario: &Scenario, config: &Config) -> Result<Outcome> {
    let n = scenario.racks.len();
    let mut run = Run {
        scenario,
        config,
        waiting: (0..scenario.tasks.len() as u32).collect(),
        planned: Vec::new(),
        transfers: Vec::new(),
        busy: [vec![0; n], vec![0; n]],
        now_s: 0.0,
        last_done_s: 0.0,
        moved: [vec![0.0; n], vec![0.0; n]],
        interference: Interference::default(),
        outcome: Outcome::default(),
        random: Random::new(scenario.seed),
        changed: true,
        known: Vec::new(),
        done: vec![false; scenario.tasks.len()],
    };
    while !run.is_over() {
        let reported_s = run.now_s;
        let (made, compute_s) = run.plan()?;
        // The last plan goes on while this one is made.
        run.advance(reported_s + compute_s);
        run.apply(&made);
        run.advance((reported_s + config.report_s).max(run.now_s));
        run.scenario.check_time(run.now_s)?;
    }
    run.outcome.seconds = run.last_done_s;
    run.outcome.interference = run.interference.share(scenario);
    Ok(run.outcome)
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.planned.is_empty() && self.transfers.is_empty()
    }

    fn plan(&mut self) -> Result<(SlotPlan, f64)> {
        let config = self.config;
        let nodes = self.scenario.report(self.now_s, config.report_s, &config.options.params);
        let flight = |t: &Transfer| Flight {
            task: t.task,
            source: t.source,
            destination: t.destination,
            done_mb: t.mb - t.left_mb,
            speed_mb_s: t.speed_mb_s,
            rate_mb_s: 0.0,
        };
        let flights: Vec<Flight> = self.transfers.iter().map(flight).collect();
        self.known = flights.iter().map(|flight| flight.task).collect();
        // Planned and not started: the oldest of the queue.
        let mut queue: Vec<u32> = self.planned.iter().map(|(task, ..)| *task).collect();
        queue.append(&mut self.waiting);
        let input = Input {
            nodes: &nodes,
            racks: &[],
            tasks: &self.scenario.tasks,
            queue: &queue,
            flights: &flights,
            until_slot_s: 0.0,
            seed: self.random.next(),
        };
        let made = plan(&input, &config.options)?;
        let compute_s = config.compute.seconds(made.placed, made.iterations);
        let outcome = &mut self.outcome;
        outcome.plans += 1;
        outcome.placed += made.placed;
        outcome.compute_s += compute_s;
        outcome.lost += made.lost.len() as u64;
        if !queue.is_empty() {
            outcome.share_scheduled += made.placed as f64 / queue.len() as f64;
        }
        let late = |fate: &&Fate| matches!(fate, Fate::Moved | Fate::Restarted | Fate::Parked);
        outcome.stragglers += made.fates.iter().filter(late).count() as u64;
        // Whom the new plan does not know goes on under it as under the old one.
        self.waiting = made.waiting.clone();
        Ok((made, compute_s))
    }

    fn apply(&mut self, made: &SlotPlan) {
        let mut kept = made.assignments.iter().take_while(|a| a.origin != Origin::New);
        // The first transfers are those that the plan knew, less what finished meanwhile.
        let mut at = 0;
        for (task, fate) in std::mem::take(&mut self.known).into_iter().zip(&made.fates) {
            let a = if matches!(fate, Fate::Kept | Fate::Moved) { kept.next() } else { None };
            if self.transfers.get(at).is_none_or(|t| t.task != task) {
                self.done[task as usize] = true;
                continue;
            }
            let t = &mut self.transfers[at];
            match (fate, a) {
                (Fate::Restarted, _) => {
                    self.busy[0][t.source as usize] -= 1;
                    self.busy[1][t.destination as usize] -= 1;
                    self.outcome.restarted += 1;
                    self.outcome.resent_mb += f64::from(t.mb - t.left_mb);
                    self.transfers.remove(at);
                    continue;
                }
                (Fate::Moved, Some(a)) => {
                    self.busy[0][t.source as usize] -= 1;
                    self.busy[0][a.source as usize] += 1;
                    t.source = a.source;
                }
                _ => {}
            }
            at += 1;
        }
        // What the old plan started while the new one was made stays started.
        for t in &self.transfers[at..] {
            self.done[t.task as usize] = true;
        }
        let done = &self.done;
        let new = made.assignments.iter().filter(|a| a.origin == Origin::New);
        let new = new.filter(|a| !done[a.task as usize]);
        self.planned = new.map(|a| (a.task, a.source, a.destination)).collect();
        self.waiting.retain(|task| !done[*task as usize]);
        self.changed = true;
    }

    fn advance(&mut self, to_s: f64) {
        while self.now_s < to_s - 1e-9 && !self.is_over() {
            let next = ((self.now_s / TICK_S + 1e-6).floor() + 1.0) * TICK_S;
            if self.changed {
                self.start();
            }
            self.tick(next.min(to_s) - self.now_s);
        }
    }

    /// Starts, in the order of the plan, what both ends have room for.
    fn start(&mut self) {
        let limit = self.config.in_flight.clamp(1, usize::from(u8::MAX)) as u8;
        let tasks = &self.scenario.tasks;
        let (busy, transfers) = (&mut self.busy, &mut self.transfers);
        self.planned.retain(|(task, source, destination)| {
            let (from, to) = (*source as usize, *destination as usize);
            if busy[0][from] >= limit || busy[1][to] >= limit {
                return true;
            }
            busy[0][from] += 1;
            busy[1][to] += 1;
            let (task, mb) = (*task, tasks.mb(*task));
            transfers.push(Transfer {
                task,
                source: *source,
                destination: *destination,
                mb,
                left_mb: mb,
                speed_mb_s: 0.0,
            });
            false
        });
        self.changed = false;
    }

    fn tick(&mut self, dt_s: f64) {
        let scenario = self.scenario;
        let params = &self.config.options.params;
        // Each node holds recovery below alpha with what it saw a tick ago.
        let seen = scenario.foreground(self.now_s - TICK_S);
        let now = scenario.foreground(self.now_s);
        let n = scenario.racks.len();
        let mut capacity = Vec::with_capacity(2 * n);
        for (seen, now) in [(&seen.out_mb_s, &now.out_mb_s), (&seen.in_mb_s, &now.in_mb_s)] {
            capacity.extend(seen.iter().zip(now).map(|(seen, now)| {
                let physical = (scenario.total_mb_s - now).max(params.b_min_mb_s);
                params.recovery_mb_s(scenario.total_mb_s, *seen).min(physical)
            }));
        }
        let ends = |t: &Transfer| [t.source, n as u32 + t.destination];
        let links: Vec<[u32; 2]> = self.transfers.iter().map(ends).collect();
        let rates = fair(&links, &capacity);
        let [out, into] = &mut self.moved;
        out.fill(0.0);
        into.fill(0.0);
        let mut done = false;
        for (t, rate) in self.transfers.iter_mut().zip(&rates) {
            t.speed_mb_s = *rate;
            let mut moved = rate * dt_s as f32;
            if moved >= t.left_mb {
                moved = t.left_mb;
                self.done[t.task as usize] = true;
                let done_s = self.now_s + f64::from(moved / rate);
                self.last_done_s = self.last_done_s.max(done_s);
                t.left_mb = 0.0;
                self.busy[0][t.source as usize] -= 1;
                self.busy[1][t.destination as usize] -= 1;
                done = true;
            } else {
                t.left_mb -= moved;
            }
            out[t.source as usize] += moved;
            into[t.destination as usize] += moved;
        }
        if done {
            self.transfers.retain(|t| t.left_mb > 0.0);
            self.changed = true;
        }
        self.outcome.moved_mb += out.iter().map(|mb| f64::from(*mb)).sum::<f64>();
        self.interference.count(scenario, now, [out, into], dt_s);
        self.now_s += dt_s;
    }
}
