//! One slot's plan, from reports to (task, source, destination, rate): the whole of section 4 as
//! one pure function. Called by the simulator, and by the leader of a live cluster each slot.

use crate::fill::{Filled, Pass, fill, underemployed};
use crate::model::{Assignment, Flight, Node, Origin, Params, Rack, Tasks};
use crate::rates::{Flow, Rates, deadline, wss};
use crate::search::{Hull, Naive, Scan, Side, Tops, Tree};
use crate::select::{Algorithm, Greedy, Greedy1, Greedy2, Picks};
use crate::straggler::{Fate, Stragglers, elastic_limit_s};
use holdfast_base::{Error, Result};

/// How rates are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocator {
    /// Iterative weighted shuffle scheduling: all transfers of a slot run at once.
    Wss,
    /// Deadline-based: just enough to finish in the slot.
    Deadline,
    /// The plan is an order, and a rate a ceiling: a destination runs a few transfers at a time,
    /// in order, and shares its link among them. For plans that are made anew before they end.
    Ceiling,
}

/// What of the method is used; the paper's ablations switch parts off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerOptions {
    pub params: Params,
    pub algorithm: Algorithm,
    pub allocator: Allocator,
    /// P: underemployed nodes first (section 4.2).
    pub prioritize: bool,
    /// A: stragglers are planned again (section 4.4). Without, they keep their plan and rate.
    pub adjust: bool,
    /// Eviction with a limit that shrinks at the end; needs `adjust`.
    pub elastic: bool,
    /// Whether a transfer that goes on from another source keeps what is there, as the paper has it.
    pub resumes: bool,
    /// How far the plan reaches; the paper's plans reach to the end of the slot.
    pub horizon_s: f32,
    /// Scan tasks of nodes with much to send for their bandwidth first: our generalisation of P.
    pub heaviest_first: bool,
    /// Whether random picks respect the saturation rule: the stronger reading of the paper.
    pub picks_skip: bool,
}

impl PlannerOptions {
    /// The paper's method with `algorithm` in its place.
    pub fn paper(params: Params, algorithm: Algorithm) -> PlannerOptions {
        PlannerOptions {
            params,
            algorithm,
            allocator: Allocator::Wss,
            prioritize: true,
            adjust: true,
            elastic: false,
            resumes: true,
            horizon_s: params.slot_s,
            heaviest_first: false,
            picks_skip: true,
        }
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub nodes: &'a [Node],
    /// By rack number; empty where rack links limit nothing.
    pub racks: &'a [Rack],
    pub tasks: &'a Tasks,
    /// Tasks to start, oldest first.
    pub queue: &'a [u32],
    pub flights: &'a [Flight],
    /// From these reports to the start of the slot: the paper's T_schedule.
    pub until_slot_s: f32,
    pub seed: u64,
}

/// What comes out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotPlan {
    /// Transfers of the slot, kept ones first, then new ones in the order of choice.
    pub assignments: Vec<Assignment>,
    /// What becomes of each flight of the input.
    pub fates: Vec<Fate>,
    /// Tasks that stay in the queue, in its order.
    pub waiting: Vec<u32>,
    /// Tasks that nobody holds any more.
    pub lost: Vec<u32>,
    /// S of eq. 2.
    pub volume_mb: f64,
    /// Tasks looked at, and newly placed.
    pub scanned: u64,
    pub placed: u64,
    pub prioritized: u64,
    pub underemployed: usize,
    pub iterations: usize,
}

impl Input<'_> {
    fn check(&self) -> Result<()> {
        let refuse =
            |what: String| Err(Error::invalid(format!("plan recovery: {what}; report it again")));
        let n = self.nodes.len() as u32;
        for (number, node) in self.nodes.iter().enumerate() {
            let possible = |b: f32| b.is_finite() && b >= 0.0;
            if !possible(node.in_mb_s) || !possible(node.out_mb_s) {
                let (a, b) = (node.in_mb_s, node.out_mb_s);
                return refuse(format!(
                    "node `{number}` reports a bandwidth of `{a}` in, `{b}` out"
                ));
            }
            if !self.racks.is_empty() && node.rack as usize >= self.racks.len() {
                return refuse(format!("node `{number}` is in the unknown rack `{}`", node.rack));
            }
        }
        for task in self.queue {
            if *task as usize >= self.tasks.len() {
                return refuse(format!("task `{task}` is unknown"));
            }
            if let Some(node) = self.tasks.holders(*task).iter().find(|node| **node >= n) {
                return refuse(format!("task `{task}` is held by the unknown node `{node}`"));
            }
            if let Some(node) = self.tasks.target(*task).filter(|node| *node >= n) {
                return refuse(format!("task `{task}` goes to the unknown node `{node}`"));
            }
        }
        for flight in self.flights {
            if flight.source >= n || flight.destination >= n {
                let node = flight.source.max(flight.destination);
                return refuse(format!(
                    "task `{}` moves at the unknown node `{node}`",
                    flight.task
                ));
            }
        }
        Ok(())
    }

    /// The lesser of what all nodes send and receive: eq. 2 without its time.
    pub fn capacity_mb_s(&self) -> f64 {
        let sum = |of: fn(&Node) -> f32| self.nodes.iter().map(|n| f64::from(of(n))).sum::<f64>();
        sum(|node| node.in_mb_s).min(sum(|node| node.out_mb_s))
    }
}

/// Plans one slot.
pub fn plan(input: &Input<'_>, options: &PlannerOptions) -> Result<SlotPlan> {
    options.params.check()?;
    input.check()?;
    let Input { nodes, tasks, flights, .. } = *input;
    let mut out = Side::new(nodes.iter().map(|node| node.out_mb_s));
    let mut into = Side::new(nodes.iter().map(|node| node.in_mb_s));
    let capacity = input.capacity_mb_s();
    let mut stragglers = Stragglers::predict(flights, tasks, input.until_slot_s);
    let queued: f64 = input.queue.iter().map(|task| f64::from(tasks.mb(*task))).sum();
    stragglers.charge(flights, &mut out, &mut into);
    let mut sources: Vec<u32> = flights.iter().map(|flight| flight.source).collect();
    if options.adjust {
        let mut limit = options.horizon_s;
        if options.elastic {
            limit = elastic_limit_s(queued + stragglers.total_mb(), capacity, limit);
        }
        stragglers.evict(flights, &mut out, &mut into, limit, options.resumes);
        sources = stragglers.move_sources(flights, tasks, &mut out, &mut into, options.horizon_s);
    }
    let mut plan =
        SlotPlan { volume_mb: capacity * f64::from(options.horizon_s), ..SlotPlan::default() };
    for (at, flight) in flights.iter().enumerate() {
        let origin = match stragglers.fates[at] {
            Fate::Kept => Origin::Kept,
            Fate::Moved => Origin::Moved,
            Fate::Finishes | Fate::Parked | Fate::Restarted => continue,
        };
        plan.assignments.push(Assignment {
            task: flight.task,
            source: sources[at],
            destination: flight.destination,
            mb: stragglers.left_mb[at],
            rate_mb_s: flight.rate_mb_s,
            origin,
        });
    }
    // Restarted tasks are the oldest.
    let restarted = (0..flights.len()).filter(|at| stragglers.fates[*at] == Fate::Restarted);
    let restarted: Vec<u32> = restarted.map(|at| flights[at].task).collect();
    let merged;
    let mut queue = input.queue;
    if !restarted.is_empty() {
        merged = [&restarted, queue].concat();
        queue = &merged;
    }
    plan.fates = stragglers.fates;
    let ordered;
    if options.heaviest_first {
        ordered = heaviest_first(nodes, tasks, queue);
        queue = &ordered;
    }
    let filled = place(input, options, out, into, queue, &mut plan)?;
    plan.waiting = filled.waiting;
    plan.lost = filled.lost;
    plan.scanned = filled.scanned;
    plan.placed = filled.placed.len() as u64;
    plan.prioritized = filled.prioritized;
    plan.assignments.extend(filled.placed.iter().map(|(task, source, destination)| Assignment {
        task: *task,
        source: *source,
        destination: *destination,
        mb: tasks.mb(*task),
        rate_mb_s: 0.0,
        origin: Origin::New,
    }));
    allocate(input, options, &mut plan);
    Ok(plan)
}

/// Steps of urgency that [`heaviest_first`] tells apart.
const PRESSURES: usize = 64;

/// The queue, tasks of the most pressed holders first. A node's pressure is the time in which it
/// could send all that it holds of what is left. Where one holder is pressed and the other is not,
/// the other should send, and soon: later it would have nothing to relieve anybody of.
fn heaviest_first(nodes: &[Node], tasks: &Tasks, queue: &[u32]) -> Vec<u32> {
    let mut pressure = vec![0f32; nodes.len()];
    for task in queue {
        tasks.sources(*task).iter().for_each(|n| pressure[*n as usize] += tasks.mb(*task));
    }
    for (pressure, node) in pressure.iter_mut().zip(nodes) {
        *pressure = if node.out_mb_s > 0.0 { *pressure / node.out_mb_s } else { 0.0 };
    }
    let highest = pressure.iter().fold(1e-9f32, |a, b| a.max(*b));
    // Counting sort, stable, highest first.
    let key = |task: &u32| {
        let sources = tasks.sources(*task).iter();
        let most = sources.map(|node| pressure[*node as usize]).fold(0.0, f32::max);
        PRESSURES - 1 - ((most / highest * PRESSURES as f32) as usize).min(PRESSURES - 1)
    };
    let keys: Vec<u8> = queue.iter().map(|task| key(task) as u8).collect();
    let mut start = [0usize; PRESSURES + 1];
    keys.iter().for_each(|key| start[usize::from(*key) + 1] += 1);
    for at in 0..PRESSURES {
        start[at + 1] += start[at];
    }
    let mut ordered = vec![0; queue.len()];
    for (task, key) in queue.iter().zip(&keys) {
        let at = &mut start[usize::from(*key)];
        ordered[*at] = *task;
        *at += 1;
    }
    ordered
}

/// Steps 3 and 4: underemployed nodes, and the greedy pass.
fn place(
    input: &Input<'_>,
    options: &PlannerOptions,
    out: Side,
    into: Side,
    queue: &[u32],
    plan: &mut SlotPlan,
) -> Result<Filled> {
    let Input { nodes, tasks, .. } = *input;
    let mut under = Vec::new();
    if options.prioritize && options.params.beta > 0.0 && !queue.is_empty() {
        let mut common_mb = vec![0.0; nodes.len()];
        for task in queue {
            tasks.sources(*task).iter().for_each(|n| common_mb[*n as usize] += tasks.mb(*task));
        }
        under = underemployed(nodes, &common_mb, options.params.beta);
        plan.underemployed = under.iter().filter(|under| **under).count();
        if plan.underemployed == 0 {
            under.clear();
        }
    }
    let rack_of: Vec<u32> = nodes.iter().map(|node| node.rack).collect();
    let mut is_live = vec![false; rack_of.iter().max().map_or(0, |rack| *rack as usize + 1)];
    nodes.iter().filter(|n| n.in_mb_s > 0.0).for_each(|n| is_live[n.rack as usize] = true);
    let mut rack_load_mb = [vec![0.0; input.racks.len()], vec![0.0; input.racks.len()]];
    if !input.racks.is_empty() {
        for a in &plan.assignments {
            rack_load_mb[0][rack_of[a.source as usize] as usize] += a.mb;
            rack_load_mb[1][rack_of[a.destination as usize] as usize] += a.mb;
        }
    }
    let used: f64 = plan.assignments.iter().map(|a| f64::from(a.mb)).sum();
    let skips = !options.algorithm.is_random() || options.picks_skip;
    let pass = Pass {
        tasks,
        nodes,
        rack_of: &rack_of,
        live_racks: is_live.iter().filter(|live| **live).count(),
        racks: input.racks,
        rack_load_mb,
        limit_s: if skips { options.horizon_s } else { f32::INFINITY },
        volume_mb: plan.volume_mb - used,
        underemployed: &under,
    };
    let common_mb = common_mb(tasks, queue);
    let filled = match options.algorithm {
        Algorithm::Dayu => fill(pass, Greedy::<Tree>::new(out, &into, &rack_of, common_mb), queue),
        Algorithm::Hull => fill(pass, Greedy::<Hull>::new(out, &into, &rack_of, common_mb), queue),
        Algorithm::Scan => fill(pass, Greedy::<Scan>::new(out, &into, &rack_of, common_mb), queue),
        Algorithm::Tops => fill(pass, Greedy::<Tops>::new(out, &into, &rack_of, common_mb), queue),
        Algorithm::Naive => {
            fill(pass, Greedy::<Naive>::new(out, &into, &rack_of, common_mb), queue)
        }
        Algorithm::G1 => fill(pass, Greedy1::<Scan>::new(out, into, &rack_of, common_mb), queue),
        Algorithm::G2 => fill(pass, Greedy2::new(out, into, options.horizon_s), queue),
        Algorithm::Random | Algorithm::B2r | Algorithm::Wr => {
            fill(pass, Picks::new(options.algorithm, out, into, input.seed), queue)
        }
        Algorithm::Milp => milp(pass, &out, &into, queue)?,
    };
    Ok(filled)
}

#[cfg(feature = "milp")]
use crate::milp::solve as milp;

#[cfg(not(feature = "milp"))]
fn milp(_: Pass<'_>, _: &Side, _: &Side, _: &[u32]) -> Result<Filled> {
    let what = "plan recovery by MILP: this build has no solver";
    Err(Error::invalid(format!("{what}; build with `--features milp`")))
}

/// Tasks whose sizes are looked at for the common one.
const SAMPLE: usize = 255;

/// The size that most tasks have: the median of a sample.
fn common_mb(tasks: &Tasks, queue: &[u32]) -> f32 {
    let every = queue.len() / SAMPLE + 1;
    let mut sizes: Vec<f32> = queue.iter().step_by(every).map(|task| tasks.mb(*task)).collect();
    sizes.sort_by(f32::total_cmp);
    sizes.get(sizes.len() / 2).copied().unwrap_or(1.0)
}

/// Without A, what stragglers that keep their rates leave of a link to the others, at least.
const LEFT_SHARE_MIN: f32 = 0.1;

/// Step 6: rates. Without A, stragglers keep theirs, and the others share what is left.
fn allocate(input: &Input<'_>, options: &PlannerOptions, plan: &mut SlotPlan) {
    let nodes = input.nodes;
    let n = nodes.len() as u32;
    let mut capacity: Vec<f32> = nodes.iter().map(|node| node.out_mb_s).collect();
    capacity.extend(nodes.iter().map(|node| node.in_mb_s));
    let fixed = if options.adjust {
        0
    } else {
        plan.assignments.iter().take_while(|a| a.origin != Origin::New).count()
    };
    let (kept, planned) = plan.assignments.split_at_mut(fixed);
    let whole = capacity.clone();
    for a in kept {
        for link in [a.source as usize, (n + a.destination) as usize] {
            // New tasks always get something: a rate of next to nothing would be kept for good.
            let least = LEFT_SHARE_MIN * whole[link];
            capacity[link] = (capacity[link] - a.rate_mb_s).max(least);
        }
    }
    let rates: Rates = if options.allocator == Allocator::Ceiling {
        let ceiling = |a: &Assignment| {
            capacity[a.source as usize].min(capacity[(n + a.destination) as usize])
        };
        Rates { mb_s: planned.iter().map(ceiling).collect(), ..Rates::default() }
    } else if input.racks.is_empty() {
        let flow = |a: &Assignment| Flow { links: [a.source, n + a.destination], mb: a.mb };
        rates(&planned.iter().map(flow).collect::<Vec<Flow<2>>>(), &capacity, options)
    } else {
        let up = capacity.len() as u32;
        capacity.extend(input.racks.iter().map(|rack| rack.up_mb_s));
        let down = capacity.len() as u32;
        capacity.extend(input.racks.iter().map(|rack| rack.down_mb_s));
        let rack = |node: u32| nodes[node as usize].rack;
        let flow = |a: &Assignment| {
            let (from, to) = (up + rack(a.source), down + rack(a.destination));
            Flow { links: [a.source, n + a.destination, from, to], mb: a.mb }
        };
        rates(&planned.iter().map(flow).collect::<Vec<Flow<4>>>(), &capacity, options)
    };
    plan.iterations = rates.iterations;
    for (a, rate) in planned.iter_mut().zip(rates.mb_s) {
        a.rate_mb_s = rate;
    }
}

fn rates<const LINKS: usize>(
    flows: &[Flow<LINKS>],
    capacity: &[f32],
    options: &PlannerOptions,
) -> Rates {
    match options.allocator {
        Allocator::Deadline => deadline(flows, options.params.slot_s),
        Allocator::Wss | Allocator::Ceiling => wss(flows, capacity),
    }
}

#[cfg(test)]
mod tests;
