//! The paper's execution: all transfers of a slot run at once at constant rates; the plan of the
//! next slot is computed while the last one ends, and comes late if that takes too long.

use super::{Config, Interference, Outcome, Scenario};
use crate::model::{Assignment, Flight, Origin, Tasks};
use crate::plan::{Input, SlotPlan, plan};
use crate::random::Random;
use crate::straggler::Fate;
use holdfast_base::Result;
use std::borrow::Cow;

struct Transfer {
    task: u32,
    source: u32,
    destination: u32,
    mb: f32,
    left_mb: f32,
    rate_mb_s: f32,
    /// Moved since the last plan.
    moved_mb: f32,
}

struct Run<'a> {
    scenario: &'a Scenario,
    config: &'a Config,
    tasks: Cow<'a, Tasks>,
    queue: Vec<u32>,
    transfers: Vec<Transfer>,
    now_s: f64,
    last_done_s: f64,
    /// Of the last plan.
    started_s: f64,
    moved: [Vec<f32>; 2],
    interference: Interference,
    outcome: Outcome,
    random: Random,
}

pub fn run(scenario: &Scenario, config: &Config) -> Result<Outcome> {
    let n = scenario.racks.len();
    let endless = config.endless_s.is_some();
    let tasks = if endless { Cow::Owned(Tasks::default()) } else { Cow::Borrowed(&scenario.tasks) };
    let mut run = Run {
        queue: (0..tasks.len() as u32).collect(),
        tasks,
        scenario,
        config,
        transfers: Vec::new(),
        now_s: 0.0,
        last_done_s: 0.0,
        started_s: 0.0,
        moved: [vec![0.0; n], vec![0.0; n]],
        interference: Interference::default(),
        outcome: Outcome::default(),
        random: Random::new(scenario.seed),
    };
    // Nothing runs yet while the first slot is planned.
    let (mut made, mut compute_s) = run.plan(0.0)?;
    run.advance(compute_s);
    loop {
        run.apply(&made);
        let slot_s = f64::from(config.options.params.slot_s);
        let end_s = run.now_s + slot_s;
        run.advance(end_s - config.schedule_s.min(slot_s));
        if run.is_over() {
            break;
        }
        run.scenario.check_time(run.now_s)?;
        let planned_s = run.now_s;
        (made, compute_s) = run.plan(end_s - run.now_s)?;
        run.advance(end_s.max(planned_s + compute_s));
        if run.is_over() {
            break;
        }
    }
    run.outcome.seconds = config.endless_s.unwrap_or(run.last_done_s);
    run.outcome.interference = run.interference.share(scenario);
    Ok(run.outcome)
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        match self.config.endless_s {
            Some(end_s) => self.now_s >= end_s,
            None => self.queue.is_empty() && self.transfers.iter().all(|t| t.left_mb <= 0.0),
        }
    }

    /// Plans with what nodes report now; gives the time that it takes.
    fn plan(&mut self, until_slot_s: f64) -> Result<(SlotPlan, f64)> {
        let config = self.config;
        let params = &config.options.params;
        let nodes = self.scenario.report(self.now_s, config.report_s, params);
        // What is done is in nobody's report of transfers under way.
        self.transfers.retain(|transfer| transfer.left_mb > 0.0);
        let elapsed = (self.now_s - self.started_s).max(1e-6) as f32;
        let flight = |t: &Transfer| Flight {
            task: t.task,
            source: t.source,
            destination: t.destination,
            done_mb: t.mb - t.left_mb,
            speed_mb_s: t.moved_mb / elapsed,
            rate_mb_s: t.rate_mb_s,
        };
        let flights: Vec<Flight> = self.transfers.iter().map(flight).collect();
        if config.endless_s.is_some() {
            self.top_up(&nodes);
        }
        let input = Input {
            nodes: &nodes,
            racks: &[],
            tasks: &self.tasks,
            queue: &self.queue,
            flights: &flights,
            until_slot_s: until_slot_s as f32,
            seed: self.random.next(),
        };
        let made = plan(&input, &config.options)?;
        let compute_s = config.compute.seconds(made.placed, made.iterations);
        let outcome = &mut self.outcome;
        outcome.plans += 1;
        outcome.placed += made.placed;
        outcome.compute_s += compute_s;
        outcome.lost += made.lost.len() as u64;
        if !self.queue.is_empty() {
            outcome.share_scheduled += made.placed as f64 / self.queue.len() as f64;
        }
        let late = made.fates.iter().filter(|fate| **fate != Fate::Finishes);
        outcome.stragglers += late.count() as u64;
        Ok((made, compute_s))
    }

    /// Tasks without end: always twice what a slot can take.
    fn top_up(&mut self, nodes: &[crate::model::Node]) {
        let capacity: f64 = nodes.iter().map(|node| f64::from(node.in_mb_s)).sum();
        let slot_s = f64::from(self.config.options.params.slot_s);
        let wanted = (2.0 * capacity * slot_s / f64::from(crate::trace::CHUNK_MB)) as usize;
        let from = self.tasks.len() as u32;
        let missing = wanted.saturating_sub(self.queue.len());
        let Scenario { placement, failed, .. } = self.scenario;
        placement.extend(self.tasks.to_mut(), *failed, missing, &mut self.random);
        self.queue.extend(from..self.tasks.len() as u32);
    }

    /// A new plan takes over. What finished while it was made ignores it.
    fn apply(&mut self, made: &SlotPlan) {
        let mut kept = made.assignments.iter().take_while(|a| a.origin != Origin::New);
        let mut next = Vec::with_capacity(made.assignments.len());
        let mut ignored = Vec::new();
        let old = std::mem::take(&mut self.transfers);
        for (mut transfer, fate) in old.into_iter().zip(&made.fates) {
            let assignment =
                if matches!(fate, Fate::Kept | Fate::Moved) { kept.next() } else { None };
            if transfer.left_mb <= 0.0 {
                if *fate == Fate::Restarted {
                    ignored.push(transfer.task);
                }
                continue;
            }
            transfer.moved_mb = 0.0;
            match (fate, assignment) {
                (Fate::Restarted, _) => {
                    self.outcome.restarted += 1;
                    self.outcome.resent_mb += f64::from(transfer.mb - transfer.left_mb);
                    continue;
                }
                (Fate::Parked, _) => transfer.rate_mb_s = 0.0,
                (_, Some(a)) => {
                    transfer.source = a.source;
                    transfer.rate_mb_s = a.rate_mb_s;
                }
                // Was expected to finish and did not: keeps the old plan.
                (_, None) => {}
            }
            next.push(transfer);
        }
        let new = |a: &&Assignment| a.origin == Origin::New && !ignored.contains(&a.task);
        next.extend(made.assignments.iter().filter(new).map(|a| Transfer {
            task: a.task,
            source: a.source,
            destination: a.destination,
            mb: a.mb,
            left_mb: a.mb,
            rate_mb_s: a.rate_mb_s,
            moved_mb: 0.0,
        }));
        self.transfers = next;
        self.queue = made.waiting.iter().filter(|task| !ignored.contains(task)).copied().collect();
        self.started_s = self.now_s;
    }

    /// Moves bytes until `to_s`, step of the trace by step.
    fn advance(&mut self, to_s: f64) {
        let step = f64::from(self.scenario.trace.step_s);
        while self.now_s < to_s - 1e-9 && !self.is_over() {
            let next = ((self.now_s / step + 1e-6).floor() + 1.0) * step;
            self.step(next.min(to_s) - self.now_s);
        }
    }

    fn step(&mut self, dt_s: f64) {
        let scenario = self.scenario;
        let params = &self.config.options.params;
        let now = scenario.foreground(self.now_s);
        let [out, into] = &mut self.moved;
        out.fill(0.0);
        into.fill(0.0);
        for t in &self.transfers {
            if t.left_mb > 0.0 {
                out[t.source as usize] += t.rate_mb_s;
                into[t.destination as usize] += t.rate_mb_s;
            }
        }
        // From what is asked of each link to the share of it that goes through.
        for (asked, foreground) in [(&mut *out, &now.out_mb_s), (&mut *into, &now.in_mb_s)] {
            for (asked, foreground) in asked.iter_mut().zip(foreground) {
                let limit = (scenario.total_mb_s - foreground).max(params.b_min_mb_s);
                *asked = if *asked > limit { limit / *asked } else { 1.0 };
            }
        }
        let shares = [out.clone(), into.clone()];
        out.fill(0.0);
        into.fill(0.0);
        let dt = dt_s as f32;
        for t in &mut self.transfers {
            if t.left_mb <= 0.0 {
                continue;
            }
            let share = shares[0][t.source as usize].min(shares[1][t.destination as usize]);
            let rate = t.rate_mb_s * share;
            let mut moved = rate * dt;
            if moved >= t.left_mb {
                moved = t.left_mb;
                let done_s = self.now_s + f64::from(moved / rate);
                self.last_done_s = self.last_done_s.max(done_s);
                t.left_mb = 0.0;
            } else {
                t.left_mb -= moved;
            }
            t.moved_mb += moved;
            out[t.source as usize] += moved;
            into[t.destination as usize] += moved;
        }
        self.outcome.moved_mb += out.iter().map(|mb| f64::from(*mb)).sum::<f64>();
        self.interference.count(scenario, now, [out, into], dt_s);
        self.now_s += dt_s;
    }
}
