//! Repair as a person hears of it: how much is left, what the links would give, what the plan
//! makes of it and what happens, and why single chunks do not get on.

use super::field::Field;
use super::{Bound, MB, MS, Repair, Round, Task};
use holdfast_base::ids::ChunkId;
use holdfast_base::units::format_bytes;
use holdfast_env::planted;
use holdfast_wire::admin::{RecoverySettings, SlowTask};
use std::collections::BTreeMap;

/// Reasons that are told.
const REASONS_MAX: usize = 16;
/// A copy is slow when it takes so many times what its rate would; in milliseconds at least.
const SLOW_TIMES: f32 = 3.0;
const SLOW_MS: f32 = 5000.0;

impl Repair {
    /// Nothing is to do.
    pub(super) fn tell_idle(&mut self, settings: RecoverySettings) {
        let told = &mut self.told;
        (told.copies, told.bytes_total, told.bytes_done, told.bytes_left) = (0, 0, 0, 0);
        (told.ideal, told.planned, told.actual, told.seconds_left) = (0, 0, 0, None);
        told.slow.clear();
        self.tell_settings(settings);
    }

    fn tell_settings(&mut self, settings: RecoverySettings) {
        let (now, quiet) = self.budget.seen_us();
        let told = &mut self.told;
        (told.answer_us_p90, told.answer_us_p90_quiet) = (now, quiet);
        (told.settings, told.bytes_per_second) = (settings, settings.rate_max);
    }

    pub(super) fn tell(&mut self, round: &Round<'_>, field: &Field<'_>, ideal_mb_s: f64) {
        self.tell_settings(round.settings);
        let bound = || self.bound.values();
        let wanted = |task: &Task| task.bytes * task.wanted.saturating_sub(task.live) as u64;
        let bytes_done: u64 = bound().map(|bound| bound.done).sum();
        let bytes_total: u64 = bound().map(|bound| bound.bytes).sum();
        let all: u64 = round.tasks.iter().map(wanted).sum();
        let bytes_left = all.saturating_sub(bytes_done);
        // Ends without a transfer do nothing.
        let load = field.load(bound());
        let mut sides = [0.0f32; 2];
        for (number, node) in field.nodes.iter().enumerate() {
            for (side, mb_s) in node.sides_mb_s().into_iter().enumerate() {
                sides[side] += if load[side][number].0 > 0 { mb_s } else { 0.0 };
            }
        }
        let planned = (sides[0].min(sides[1]) * MB) as u64;
        let actual: u64 = self.heard.values().map(|heard| heard.report.recovery.into).sum();
        self.gain.sample(round.now_ns, self.told.bytes_made + bytes_done);
        let begun = if actual > 0 { actual } else { planned };
        let speed = self.gain.per_second().filter(|_| !planted!("repair.resent-is-progress"));
        let speed = speed.unwrap_or(begun);
        let mut slow = self.slow(round, field);
        // Where nobody has anything to do, the single reasons say why.
        if let (0, [], Some(task)) = (speed, &slow[..], round.tasks.first()) {
            let reason = "nothing was gained for seconds, though nodes that could copy it answer";
            let (chunk, count) = (task.chunk, round.tasks.len() as u64);
            slow.push(SlowTask { chunk, count, reason: reason.to_owned() });
        }
        let told = &mut self.told;
        (told.copies, told.bytes_total, told.bytes_done) =
            (self.bound.len() as u64, bytes_total, bytes_done);
        (told.bytes_left, told.ideal) = (bytes_left, (ideal_mb_s * 1e6) as u64);
        (told.planned, told.actual) = (planned, actual);
        told.seconds_left = bytes_left.checked_div(speed);
        told.slow = slow;
    }

    /// Why chunks do not get on, a reason each with how many it holds.
    fn slow(&self, round: &Round<'_>, field: &Field<'_>) -> Vec<SlowTask> {
        let mut reasons: BTreeMap<String, (ChunkId, u64)> = BTreeMap::new();
        let mut add = |chunk: ChunkId, reason: String| {
            if reasons.len() < REASONS_MAX || reasons.contains_key(&reason) {
                reasons.entry(reason).or_insert((chunk, 0)).1 += 1;
            }
        };
        let under_way: std::collections::BTreeSet<ChunkId> =
            self.bound.keys().map(|(chunk, _)| *chunk).collect();
        for task in round.tasks.iter().filter(|task| !under_way.contains(&task.chunk)) {
            if let Some((_, why)) = self.resting.get(&task.chunk) {
                add(task.chunk, format!("its last copy failed and is tried again: {why}"));
            } else if field.task(task.chunk).is_none() {
                // It counts any moment, or lies in memory.
            } else if !field.readable(task) {
                add(task.chunk, "no node that holds it answers now".to_owned());
            } else if !field.has_target(task) {
                let why = "no other host has room for it and answers: add one, or free space";
                add(task.chunk, why.to_owned());
            }
        }
        for bound in self.bound.values() {
            if let Some(why) = self.why_slow(round, bound) {
                add(bound.chunk, why);
            }
        }
        let slow = |(reason, (chunk, count))| SlowTask { chunk, count, reason };
        reasons.into_iter().map(slow).collect()
    }

    fn why_slow(&self, round: &Round<'_>, bound: &Bound) -> Option<String> {
        let since_ms = round.now_ns.saturating_sub(bound.since_ns) / MS;
        let age_ms = (bound.age_ms.max(since_ms)) as f32;
        let fair_ms = bound.bytes as f32 / MB / bound.rate_mb_s.max(0.001) * 1000.0;
        if age_ms < SLOW_MS.max(fair_ms * SLOW_TIMES) {
            return None;
        }
        let stores = [bound.source, bound.target];
        let [source, target] =
            stores.map(|store| round.nodes.places.get(&store).map(|place| place.node));
        let (source, target) = (source?, target?);
        if bound.received == 0 {
            return Some(format!("node {source} has sent nothing of it to node {target} yet"));
        }
        for (side, (node, verb)) in [(source, "sends"), (target, "receives")].iter().enumerate() {
            let told = |mb_s: f32| format_bytes((mb_s * MB) as u64);
            if let Some(limit) = self.abilities.disk_limit(stores[side]) {
                let (store, limit) = (stores[side], told(limit));
                return Some(format!(
                    "the disk of store `{store}` on node {node} is slow: it {verb} no more than {limit}/s"
                ));
            }
            if let Some(limit) = self.abilities.limit(*node) {
                let limit = told(limit);
                return Some(format!("node {node} is slow: it {verb} no more than {limit}/s"));
            }
            if let Some(part) = self.shares.get(node).and_then(|sides| sides[side]) {
                let part = told(part);
                return Some(format!("the link of node {node}'s rack leaves it {part}/s"));
            }
        }
        // Whoever leaves the smallest part of itself.
        let mut taken: Vec<(u64, u64, String)> = Vec::new();
        for (side, (node, store)) in [source, target].into_iter().zip(stores).enumerate() {
            let report = &self.heard.get(&node)?.report;
            let foreground = [report.foreground.out, report.foreground.into][side];
            taken.push((foreground, report.link_bytes_per_second, format!("of node {node}")));
            let disk = report.disks.iter().find(|disk| disk.store == store);
            if let Some(disk) = disk.filter(|disk| disk.bytes_per_second > 0) {
                let what = format!("of the disk of store `{store}` on node {node}");
                taken.push((disk.foreground, disk.bytes_per_second, what));
            }
        }
        let share = |(taken, all, _): &(u64, u64, String)| *taken as f64 / (*all).max(1) as f64;
        let (taken, all, what) = taken.into_iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let (taken, all) = (format_bytes(taken), format_bytes(all));
        Some(format!("the foreground takes {taken}/s of the {all}/s {what}"))
    }
}
