//! Repair: what is short of copies, and what nodes report, become Dayu's input twice a second; its
//! plan becomes what each node is told to pull. A core: it is given views, reports and the time,
//! and answers orders. What it remembers can be lost at any moment, for a new leader asks the
//! nodes what is under way. Never sends; called by the leader.
//!
//! Plans reach some seconds and are made anew each round. A copy is *bound*, that is told to its
//! target, only when both of its ends have room for it; what is planned and not bound costs
//! nothing to plan again.

mod ability;
mod balance;
mod budget;
mod field;
mod gain;
mod shares;
mod terms;
mod told;

pub use balance::Balance;
pub use balance::surplus;
pub use field::{Nodes, Place, Site, Task, tasks};
pub use terms::{ALPHA_PER_MILLE, Terms};

use ability::Abilities;
use budget::Budget;
use gain::Gain;
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId};
use holdfast_base::units::KIB;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_recovery::model::{self, Assignment, Flight, Origin, Params};
use holdfast_recovery::model::{HORIZON_S, IN_FLIGHT};
use holdfast_recovery::plan::{self, Allocator, Input, PlannerOptions};
use holdfast_recovery::select::Algorithm;
use holdfast_recovery::straggler::Fate;
use holdfast_wire::admin::{Recovery, RecoverySettings};
use holdfast_wire::peer;
use std::collections::{BTreeMap, BTreeSet};

/// Time between two plans.
pub const PLAN_MS: u64 = 500;
/// Copies come in blocks of this or more.
pub const BLOCK_BYTES_MIN: u64 = 64 * KIB;
/// A node whose report is older plans for nobody.
const REPORT_MS_MAX: u64 = 3000;
/// One that owes two reports may be gone: nobody is blamed for waiting for it.
const SILENT_MS: u64 = 5 * PLAN_MS / 2;
/// A new leader waits so long for the reports of all live nodes before it plans without some.
static LOOK_MS: Knob = Knob::new("repair.look-ms", 1500, &[500, 1000]);
/// A node is given so many seconds' worth of work: what it does until the next plan reaches it,
/// and as much again, because a report is a round old when it is used.
const HAND_S: f32 = 2.0;
/// And so many copies at least, in each direction: one comes while the next is looked up.
static HAND_MIN: Knob = Knob::new("repair.hand-min", 2, &[1, 3]);
/// And so many at most.
static HAND_MAX: Knob = Knob::new("repair.hand-max", IN_FLIGHT as u64, &[1, 2, 4]);
/// Plans reach so far, unless a chunk takes longer.
static HORIZON_MS: Knob = Knob::new("repair.horizon-ms", (HORIZON_S * 1e3) as u64, &[500, 2000]);
/// Tasks that one plan looks at; there are more only where it could not use them for minutes.
static TASKS_MAX: Knob = Knob::new("repair.tasks", 200_000, &[1, 2, 5]);
/// A chunk whose copy failed is left alone for so long.
static REST_MS: Knob = Knob::new("repair.rest-ms", 1000, &[1, 4000]);
const MS: u64 = 1_000_000;
const MB: f32 = 1e6;

/// A copy that its target was told to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub source: StoreId,
    pub target: StoreId,
    pub bytes: u64,
    /// Which plan bound it, and when.
    plan: u64,
    since_ns: u64,
    /// As last reported.
    done: u64,
    received: u64,
    age_ms: u64,
    rate_mb_s: f32,
}

impl Bound {
    fn mb_left(&self) -> f32 {
        self.bytes.saturating_sub(self.done) as f32 / MB
    }
}

/// What one node is to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Orders {
    pub node: NodeId,
    pub address: String,
    pub plan: peer::CopyPlan,
}

/// A copy that is there and should count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    pub chunk: ChunkId,
    pub generation: Generation,
    pub store: StoreId,
}

struct Heard {
    at_ns: u64,
    incarnation: Index,
    report: peer::Report,
    /// Ends up to this one are known.
    ended: u64,
}

/// The leader's knowledge of what is being repaired.
pub struct Repair {
    at_random: bool,
    epoch: Index,
    number: u64,
    /// When it began to look at the nodes: with the leadership, or after a rest.
    began_ns: u64,
    /// Nothing is to do, and nobody was asked anything since.
    rests: bool,
    next_ns: u64,
    heard: BTreeMap<NodeId, Heard>,
    bound: BTreeMap<(ChunkId, StoreId), Bound>,
    /// There, and its entry is on its way.
    adding: BTreeSet<(ChunkId, StoreId)>,
    /// Ended under another leader: to be counted if the chunk is still short.
    found: Vec<Landed>,
    /// Until when a chunk is left alone, and what failed.
    resting: BTreeMap<ChunkId, (u64, String)>,
    abilities: Abilities,
    /// Of the last plan.
    shares: shares::Shares,
    budget: Budget,
    gain: Gain,
    told: Recovery,
}

/// What a round is made from.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    pub now_ns: u64,
    pub tasks: &'a [Task],
    pub nodes: &'a Nodes,
    pub settings: RecoverySettings,
}

impl Repair {
    /// For the leader that claimed the cluster topic at `epoch`.
    /// `at_random` chooses by chance, as others do, to compare with.
    pub fn new(epoch: Index, now_ns: u64, at_random: bool) -> Repair {
        Repair {
            at_random,
            epoch,
            number: 0,
            began_ns: now_ns,
            rests: false,
            next_ns: now_ns,
            heard: BTreeMap::new(),
            bound: BTreeMap::new(),
            adding: BTreeSet::new(),
            found: Vec::new(),
            resting: BTreeMap::new(),
            abilities: Abilities::default(),
            shares: shares::Shares::new(),
            budget: Budget::default(),
            gain: Gain::default(),
            told: Recovery::default(),
        }
    }

    pub fn epoch(&self) -> Index {
        self.epoch
    }

    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// For people.
    pub fn told(&self) -> &Recovery {
        &self.told
    }

    /// Takes a node's report; answers the copies that should count now.
    pub fn heard(&mut self, now_ns: u64, site: &Site, report: peer::Report) -> Vec<Landed> {
        let incarnation = site.incarnation;
        let old = self.heard.get(&site.node).filter(|heard| heard.incarnation == incarnation);
        let known = old.map_or(0, |heard| heard.ended);
        let mut landed = Vec::new();
        for ended in report
            .ended
            .iter()
            .filter(|ended| ended.number > known || planted!("repair.heard-again"))
        {
            let peer::Ended { store, chunk, generation, .. } = *ended;
            let bound = self.bound.remove(&(chunk, store));
            if !ended.failure.is_empty() {
                self.told.copies_failed += 1;
                self.told.bytes_resent += ended.bytes;
                let until_ns = now_ns + REST_MS.get() * MS;
                self.resting.insert(chunk, (until_ns, ended.failure.clone()));
                continue;
            }
            let there = Landed { chunk, generation, store };
            match bound {
                Some(bound) => {
                    self.told.bytes_made += bound.bytes;
                    self.adding.insert((chunk, store));
                    landed.push(there);
                }
                None => self.found.push(there),
            }
        }
        self.abilities.heard(site.node, &report);
        self.note_flights(now_ns, site, &report);
        let ended = report.ended.last().map_or(known, |ended| ended.number.max(known));
        self.heard.insert(site.node, Heard { at_ns: now_ns, incarnation, report, ended });
        landed
    }

    /// How far the copies to a node are; those that it has forgotten are planned again.
    fn note_flights(&mut self, now_ns: u64, site: &Site, report: &peer::Report) {
        for flight in &report.flights {
            let key = (flight.chunk, flight.store);
            let adopted = || Bound {
                chunk: flight.chunk,
                generation: flight.generation,
                source: flight.source,
                target: flight.store,
                bytes: flight.bytes_total,
                plan: 0,
                since_ns: now_ns,
                done: 0,
                received: 0,
                age_ms: 0,
                rate_mb_s: 0.0,
            };
            // A leader's before this one.
            let bound = match self.number {
                0 => self.bound.entry(key).or_insert_with(adopted),
                _ => match self.bound.get_mut(&key) {
                    Some(bound) => bound,
                    None => continue,
                },
            };
            (bound.done, bound.received) = (flight.bytes_done, flight.bytes_received);
            bound.age_ms = flight.age_ms;
            bound.bytes = bound.bytes.max(flight.bytes_total);
        }
        let under_way: BTreeSet<_> = report.flights.iter().map(|f| (f.chunk, f.store)).collect();
        self.bound.retain(|key, bound| {
            !site.stores.contains(&key.1) || bound.plan > report.number || under_way.contains(key)
        });
    }

    /// A copy's entry was applied, or refused.
    pub fn counted(&mut self, now_ns: u64, landed: Landed, counted: Result<()>) {
        self.adding.remove(&(landed.chunk, landed.store));
        match counted {
            Ok(()) => self.told.copies_made += 1,
            Err(e) => {
                self.told.copies_failed += 1;
                self.resting.insert(landed.chunk, (now_ns + REST_MS.get() * MS, e.message));
            }
        }
    }

    /// One round: what each node is told, and copies found that should count.
    pub fn round(&mut self, round: &Round<'_>) -> Result<(Vec<Orders>, Vec<Landed>)> {
        let Round { now_ns, tasks, nodes, settings } = *round;
        self.next_ns = now_ns + PLAN_MS * MS;
        let resting = self.resting.len();
        self.resting.retain(|_, (until, _)| *until > now_ns);
        if self.resting.len() < resting {
            REST_MS.cross();
        }
        self.heard.retain(|node, heard| {
            nodes.site(*node).is_some_and(|site| site.live && site.incarnation == heard.incarnation)
        });
        let alpha_per_mille = self.budget.step(now_ns, self.answers(), !tasks.is_empty(), settings);
        let terms = Terms {
            alpha_per_mille,
            floor: settings.floor_bytes_per_second,
            rate_max: settings.rate_max,
            rack: Default::default(),
        };
        self.told.alpha_per_mille = alpha_per_mille;
        if self.rests && !tasks.is_empty() {
            // Reports from before the rest say nothing of the links now, nor what they made of them.
            (self.rests, self.began_ns) = (false, now_ns);
            (self.abilities, self.gain) = (Abilities::default(), Gain::default());
            self.heard.clear();
        }
        let all_heard = nodes.live().all(|site| self.heard.contains_key(&site.node));
        let asks = !all_heard && !planted!("repair.looks-not-first");
        let looks = !self.rests && asks && now_ns < self.began_ns + LOOK_MS.get() * MS;
        if !self.rests && !all_heard && !looks {
            LOOK_MS.cross();
        }
        let found = if looks { Vec::new() } else { self.count_found(tasks) };
        let quiet =
            |heard: &Heard| heard.report.flights.is_empty() && heard.report.ended.is_empty();
        let idle = tasks.is_empty() && self.bound.is_empty() && self.heard.values().all(quiet);
        if idle && (all_heard || self.rests) {
            self.rests = true;
            self.tell_idle(settings);
            // Who comes back during the rest may have made a copy that nobody has heard of yet: what
            // is not wanted of those, it keeps until then.
            let heard = all_heard || planted!("repair.rests-unheard");
            let wants_quiet = settings.p90_budget_percent > 0 && self.budget.wants_quiet(now_ns);
            if heard && !wants_quiet {
                return Ok((Vec::new(), found));
            }
        }
        if !looks && !idle {
            self.plan(round, terms)?;
        }
        let look = looks || idle;
        Ok((nodes.live().map(|site| self.orders(site, nodes, terms, look)).collect(), found))
    }

    /// What was copied for an earlier leader counts where it is still wanted.
    fn count_found(&mut self, tasks: &[Task]) -> Vec<Landed> {
        let mut found = std::mem::take(&mut self.found);
        found.retain(|landed| {
            let short = |task: &Task| {
                task.chunk == landed.chunk
                    && task.generation == landed.generation
                    && !task.holders.contains(&landed.store)
            };
            tasks.iter().any(short) && self.adding.insert((landed.chunk, landed.store))
        });
        found
    }

    fn orders(&self, site: &Site, nodes: &Nodes, terms: Terms, look: bool) -> Orders {
        let bound = self.bound.values().filter(|bound| site.stores.contains(&bound.target));
        let mut copies: Vec<&Bound> = bound.collect();
        copies.sort_by_key(|bound| (bound.plan, bound.chunk));
        let copy = |bound: &&Bound| {
            let source = nodes.places.get(&bound.source)?;
            Some(peer::Copy {
                store: bound.target,
                chunk: bound.chunk,
                generation: bound.generation,
                source: bound.source,
                source_address: nodes.site(source.node)?.address.clone(),
                bytes_per_second: (bound.rate_mb_s * MB) as u64,
            })
        };
        let plan = peer::CopyPlan {
            sender: Default::default(),
            epoch: self.epoch,
            number: self.number,
            look,
            alpha_per_mille: terms.alpha_per_mille,
            floor_bytes_per_second: terms.floor,
            rate_max: terms.rate_max,
            rack: shares::told(&self.shares, site.node),
            heard: self.heard.get(&site.node).map_or(0, |heard| heard.ended),
            copies: copies.iter().filter_map(copy).collect(),
        };
        Orders { node: site.node, address: site.address.clone(), plan }
    }

    /// Makes one plan, and binds of it what has room.
    fn plan(&mut self, round: &Round<'_>, terms: Terms) -> Result<()> {
        self.number += 1;
        let Round { now_ns, nodes, tasks, .. } = *round;
        let mut field = field::Field::new(nodes, |site| {
            let heard = self.heard.get(&site.node);
            let heard = heard.filter(|h| now_ns < h.at_ns + REPORT_MS_MAX * MS);
            heard.map(|heard| self.abilities.bandwidth(site.node, &heard.report, &terms))
        });
        let busy: BTreeSet<ChunkId> = self.adding.iter().map(|(chunk, _)| *chunk).collect();
        let resting = |task: &&Task| self.resting.contains_key(&task.chunk);
        let free = tasks.iter().filter(|task| !busy.contains(&task.chunk) && !resting(task));
        let under_way: BTreeSet<ChunkId> = self.bound.keys().map(|(chunk, _)| *chunk).collect();
        let (begun, rest): (Vec<&Task>, Vec<&Task>) =
            free.partition(|task| under_way.contains(&task.chunk));
        begun.into_iter().for_each(|task| field.push(task));
        // What nobody can do anything about now must not keep the others out.
        let mut room = TASKS_MAX.size();
        for task in rest {
            field.push(task);
            room -= usize::from(field.is_plannable(task) || planted!("repair.stuck-tasks-count"));
            if room == 0 {
                TASKS_MAX.cross();
                break;
            }
        }
        let report = |node| self.heard.get(&node).map(|heard| &heard.report);
        self.shares = shares::share(&mut field, report, terms);
        // No longer wanted, or its target is away.
        self.bound.retain(|_, bound| {
            let task = field.task(bound.chunk).filter(|task| task.generation == bound.generation);
            task.is_some_and(|task| {
                !task.holders.contains(&bound.target) && field.serves(bound.target)
            })
        });
        let mut keys = Vec::new();
        let mut flights = Vec::new();
        for (key, bound) in &self.bound {
            let Some(flight) = field.flight(bound) else { continue };
            keys.push(*key);
            flights.push(flight);
        }
        let queue = field.queue(&flights);
        let horizon_s = field.horizon_s(&queue);
        let params = Params { slot_s: PLAN_MS as f32 / 1000.0, ..Params::default() };
        let algorithm = if self.at_random { Algorithm::Random } else { Algorithm::Dayu };
        let options = PlannerOptions {
            allocator: Allocator::Ceiling,
            horizon_s,
            elastic: !self.at_random,
            // Replicas are laid out each in their own way until they are compacted.
            resumes: false,
            adjust: !self.at_random,
            prioritize: !self.at_random,
            heaviest_first: !self.at_random,
            ..PlannerOptions::paper(params, algorithm)
        };
        let input = Input {
            nodes: &field.nodes,
            racks: &[],
            tasks: &field.tasks,
            queue: &queue,
            flights: &flights,
            until_slot_s: 0.0,
            seed: self.number,
        };
        let made = plan::plan(&input, &options)?;
        let given_up = self.settle(&field, &keys, &flights, &made);
        self.bind(now_ns, &field, &made, given_up);
        if !self.at_random {
            let answers = |store: &StoreId| {
                let heard = nodes.places.get(store).and_then(|place| self.heard.get(&place.node));
                heard.is_some_and(|heard| now_ns < heard.at_ns + SILENT_MS * MS)
            };
            let bound = self.bound.values();
            let bound = bound.filter(|bound| answers(&bound.source) && answers(&bound.target));
            self.abilities.planned(&field, &bound.collect::<Vec<_>>());
        }
        self.tell(round, &field, input.capacity_mb_s());
        Ok(())
    }

    /// What the plan makes of copies under way; answers those that it would begin anew.
    fn settle(
        &mut self,
        field: &field::Field<'_>,
        keys: &[(ChunkId, StoreId)],
        flights: &[Flight],
        made: &plan::SlotPlan,
    ) -> BTreeMap<ChunkId, StoreId> {
        let mut given_up = BTreeMap::new();
        let mut kept = made.assignments.iter().take_while(|a| a.origin != Origin::New);
        for ((key, flight), fate) in keys.iter().zip(flights).zip(&made.fates) {
            let assigned =
                if matches!(fate, Fate::Kept | Fate::Moved) { kept.next() } else { None };
            let Some(bound) = self.bound.get_mut(key) else { continue };
            match (fate, assigned) {
                (Fate::Restarted, _) if planted!("recovery.only-flight-evicted") => {
                    self.told.bytes_resent += bound.done;
                    self.bound.remove(key);
                }
                (Fate::Restarted, _) => drop(given_up.insert(key.0, key.1)),
                (Fate::Moved, Some(a)) if field.may_move(bound) => {
                    if let Some(source) = field.source_store(flight.task, a.source) {
                        self.told.bytes_resent += bound.done;
                        (bound.source, bound.done) = (source, 0);
                        bound.rate_mb_s = a.rate_mb_s;
                    }
                }
                (_, Some(a)) => bound.rate_mb_s = a.rate_mb_s,
                // Parked ones stay where they are: the throttles of both ends hold them back.
                _ => {}
            }
        }
        given_up
    }

    /// Binds, in the order of the plan, what both ends have room for. A copy that is given up goes
    /// on until the one in its place is bound: it may be that nobody has room for that yet, or that
    /// there is no better place.
    fn bind(
        &mut self,
        now_ns: u64,
        field: &field::Field<'_>,
        made: &plan::SlotPlan,
        given_up: BTreeMap<ChunkId, StoreId>,
    ) {
        let mut hands = Hands::new(field.load(self.bound.values()));
        let mut on_way: BTreeMap<StoreId, u64> = BTreeMap::new();
        for bound in self.bound.values() {
            *on_way.entry(bound.target).or_default() += bound.bytes;
        }
        for a in made.assignments.iter().filter(|a| a.origin == Origin::New) {
            let task = field.of(a.task);
            let before = given_up.get(&task.chunk).map(|target| (task.chunk, *target));
            let before = before.and_then(|key| self.bound.get(&key));
            let flight = before.and_then(|bound| field.flight(bound));
            if flight.is_some_and(|flight| flight.destination == a.destination) {
                continue;
            }
            // It makes room where it was.
            let was =
                before.zip(flight).map(|(bound, f)| (f.source, f.destination, bound.mb_left()));
            was.inspect(|(from, to, mb)| hands.lay_down(*from, *to, *mb));
            let source = field.source_store(a.task, a.source);
            let target = field.target_store(task, a.destination, &on_way);
            let ends = source.zip(target).filter(|_| hands.have_room(a, &field.nodes));
            let Some((source, target)) = ends else {
                was.inspect(|(from, to, mb)| hands.take_up(*from, *to, *mb));
                continue;
            };
            hands.take_up(a.source, a.destination, a.mb);
            *on_way.entry(target).or_default() += task.bytes;
            if let Some(before) = given_up.get(&task.chunk)
                && let Some(before) = self.bound.remove(&(task.chunk, *before))
            {
                self.told.bytes_resent += before.done;
            }
            let bound = Bound {
                chunk: task.chunk,
                generation: task.generation,
                source,
                target,
                bytes: task.bytes,
                plan: self.number,
                since_ns: now_ns,
                done: 0,
                received: 0,
                age_ms: 0,
                rate_mb_s: a.rate_mb_s,
            };
            self.bound.insert((task.chunk, target), bound);
        }
    }

    /// What nodes say of answers to their readers: the mean of their 90th percentiles, weighted,
    /// and of how many answers.
    fn answers(&self) -> (u32, u64) {
        let heard = self.heard.values().filter(|heard| heard.report.answer_us_p90 > 0);
        let (mut sum, mut count) = (0u64, 0u64);
        for report in heard.map(|heard| &heard.report) {
            let answers = u64::from(report.answers.min(1000));
            sum += u64::from(report.answer_us_p90) * answers;
            count += answers;
        }
        (sum.checked_div(count).unwrap_or(0) as u32, count)
    }
}

/// What all ports have in hand.
struct Hands {
    load: field::Load,
}

impl Hands {
    fn new(load: field::Load) -> Hands {
        Hands { load }
    }

    /// Whether both ends of a new copy have room for it.
    fn have_room(&self, a: &Assignment, nodes: &[model::Node]) -> bool {
        let has_room = |side: usize, at: u32| {
            let (count, mb) = self.load[side][at as usize];
            let hand_mb = nodes[at as usize].sides_mb_s()[side] * HAND_S;
            if count >= HAND_MAX.size() {
                HAND_MAX.cross();
            }
            if count >= HAND_MIN.size() {
                HAND_MIN.cross();
            }
            count < HAND_MIN.size() || (mb < hand_mb && count < HAND_MAX.size())
        };
        has_room(0, a.source) && has_room(1, a.destination)
    }

    fn take_up(&mut self, from: u32, to: u32, mb: f32) {
        for (side, at) in [(0, from), (1, to)] {
            let (count, sum_mb) = &mut self.load[side][at as usize];
            (*count, *sum_mb) = (*count + 1, *sum_mb + mb);
        }
    }

    fn lay_down(&mut self, from: u32, to: u32, mb: f32) {
        for (side, at) in [(0, from), (1, to)] {
            let (count, sum_mb) = &mut self.load[side][at as usize];
            (*count, *sum_mb) = (*count - 1, (*sum_mb - mb).max(0.0));
        }
    }
}

/// How far a plan reaches: as in the simulations, unless a chunk takes longer.
fn horizon_s(slowest_s: f32) -> f32 {
    let usual_s = HORIZON_MS.get() as f32 / 1e3;
    if 2.0 * slowest_s > usual_s {
        HORIZON_MS.cross();
    }
    usual_s.max(2.0 * slowest_s)
}

#[cfg(test)]
mod tests;
