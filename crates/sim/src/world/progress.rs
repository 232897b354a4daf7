//! Liveness of repair, checked while the schedule runs: where a copy could be made, none may take
//! three times as long as the slowest rate that is allowed explains. What could be copied: the
//! leader is there, and reaches a node that holds the chunk and one that may take it, which reach
//! each other. Schedules of repair draw rates at which a copy takes seconds, and racks.

use super::cell::{Cell, SECOND};
use super::{RECOVERY_BYTES_PER_SECOND, Schedule, World, locked};
use crate::powercut::mix;
use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_cluster::repair::{self, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A person raises the rate when the faults are over, so that schedules come to an end.
pub const FAST_BYTES_PER_SECOND: u64 = 2_500_000;
/// So many times what the rate explains.
const TIMES: u64 = 3;
/// Copies that share a link: what a node has in hand at least, the most that is drawn.
const SHARES: u64 = 3;
/// What the leader takes for itself: reports, chunks that rest after a failure, finding out who is
/// slow and that it is not any more.
const LEADS_NS: u64 = 25 * SECOND;
/// And for each fault meanwhile: copies begin anew, others lead, nodes come back.
const FAULT_NS: u64 = 20 * SECOND;

/// What repair has to do with.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub bytes_per_second: u64,
    pub racks: usize,
}

impl Terms {
    pub fn of(schedule: &Schedule) -> Terms {
        if !schedule.draws_repair {
            return Terms { bytes_per_second: RECOVERY_BYTES_PER_SECOND, racks: 3 };
        }
        let of = |what, all: &[u64]| all[(mix(schedule.seed, what) % all.len() as u64) as usize];
        Terms {
            // At the last one, who was slow is left with a small part of what others have.
            bytes_per_second: of(51, &[8000, 20_000, 100_000, FAST_BYTES_PER_SECOND]),
            racks: of(52, &[2, 3, 5]) as usize,
        }
    }
}

#[derive(Debug)]
pub struct Progress {
    terms: Terms,
    /// Copies of each chunk that is short, when they were last looked at.
    live: BTreeMap<ChunkId, usize>,
    /// How long a copy could have been made since the last one was, and when that was added to.
    waited_ns: u64,
    looked_ns: u64,
    /// Faults until the last copy.
    faults: u64,
}

impl Progress {
    pub fn new(terms: Terms) -> Progress {
        Progress { terms, live: BTreeMap::new(), waited_ns: 0, looked_ns: 0, faults: 0 }
    }

    /// Whether a chunk has gained a copy, or needs none any more.
    fn gained(&mut self, tasks: &[Task]) -> bool {
        let live: BTreeMap<_, _> =
            tasks.iter().map(|task| (task.chunk, task.holders.len())).collect();
        let before = std::mem::replace(&mut self.live, live);
        let now = &self.live;
        before.iter().any(|(chunk, copies)| now.get(chunk).is_none_or(|more| more > copies))
    }
}

impl World {
    pub fn rate(&self) -> u64 {
        locked(&self.progress).terms.bytes_per_second
    }

    /// Each second.
    pub(super) fn check_progress(self: &Arc<World>) {
        let now_ns = self.net.now_ns();
        let faults = locked(&self.shared.fault_kinds).values().sum();
        let found = self.repairable();
        let mut progress = locked(&self.progress);
        let since_ns = now_ns - std::mem::replace(&mut progress.looked_ns, now_ns);
        let Some((tasks, repairable)) = found else { return };
        let gained = progress.gained(&tasks);
        let Some(task) = repairable.first().filter(|_| !gained) else {
            self.shared.sometimes(gained, "repair went on");
            (progress.waited_ns, progress.faults) = (0, faults);
            return;
        };
        progress.waited_ns += since_ns;
        let largest = repairable.iter().map(|task| task.bytes).max().unwrap_or(0);
        let copy_ns = largest * SECOND / progress.terms.bytes_per_second;
        let missed = 1 + faults - progress.faults;
        let most_ns = (TIMES * SHARES * copy_ns + FAULT_NS) * missed + LEADS_NS;
        if progress.waited_ns > most_ns {
            let (chunks, seconds) = (repairable.len(), progress.waited_ns / SECOND);
            let told = self.leader().map(|(_, leader)| leader.leader.recovery());
            self.shared.violate(format!(
                "repair stands still: {chunks} chunks could be copied, {task:?} for one, and none \
                 was for {seconds} s: {told:?}"
            ));
        }
    }

    fn leader(&self) -> Option<(&Arc<Cell>, Arc<holdfast_node::Node>)> {
        let running = self.cells.iter().filter_map(|cell| Some((cell, cell.node()?)));
        running.into_iter().find(|(_, node)| node.leads())
    }

    /// What is short of copies by the leader's own views, and what of it could be copied now;
    /// nothing while nobody leads.
    fn repairable(&self) -> Option<(Vec<Task>, Vec<Task>)> {
        let (at, leader) = self.leader()?;
        let reach = |a: &Arc<Cell>, b: &Arc<Cell>| {
            let cut = self.net.are_apart(&a.address, &b.address);
            !cut && a.is_up() && b.is_up() && !a.is_paused() && !b.is_paused()
        };
        // The leader has its commands kept by whoever keeps the log.
        let reaches_log = match self.shared.brokers {
            Some(_) => !self.net.are_apart(&at.address, &self.address_of_log()),
            None => reach(at, &self.cells[0]),
        };
        if !reaches_log {
            return None;
        }
        let found = leader.read_all_chunks(|shards| {
            leader.cluster.read(|view, _| (repair::tasks(shards, view), repair::Nodes::of(view)))
        });
        let (tasks, nodes) = found.ok()?.ok()?;
        let cell = |store: &StoreId| {
            let node = nodes.places.get(store)?.node;
            let ids = locked(&self.shared.ids);
            self.cells.iter().find(|cell| ids.get(&cell.number) == Some(&node))
        };
        let is_repairable = |task: &&Task| {
            let places =
                task.holders.iter().filter_map(|store| Some((store, nodes.places.get(store)?)));
            let holds: BTreeSet<_> = places.clone().map(|(_, place)| place.node).collect();
            let serving = places.filter(|(_, place)| place.serves);
            let sources: Vec<&Arc<Cell>> = serving
                .filter_map(|(store, _)| cell(store))
                .filter(|cell| reach(at, cell))
                .collect();
            // All that the leader may choose.
            let sites = nodes.live().filter(|site| !holds.contains(&site.node));
            let mut targets =
                sites.flat_map(|site| &site.targets).map(|(store, _)| store).peekable();
            let takes = |target: &Arc<Cell>| {
                reach(at, target) && sources.iter().all(|source| reach(source, target))
            };
            !sources.is_empty()
                && targets.peek().is_some()
                && targets.all(|store| cell(store).is_some_and(takes))
        };
        let repairable = tasks.iter().filter(is_repairable).cloned().collect();
        Some((tasks, repairable))
    }
}
