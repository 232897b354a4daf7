//! The greedy pass over the queue (sections 4.1 and 4.2): task after task gets a source and a
//! destination, until the slot is full. Strict priority between classes; inside a class, tasks
//! with a replica on an underemployed node first.

use crate::model::{Node, Rack, Tasks, class};
use crate::search::{Avoid, Side};
use crate::select::Selector;

/// What stays the same for all tasks of a pass.
pub struct Pass<'a> {
    pub tasks: &'a Tasks,
    pub nodes: &'a [Node],
    pub rack_of: &'a [u32],
    /// Racks that have nodes; with no more of them than a chunk has copies, a copy may go into a
    /// rack that has one, but never to a node that has one.
    pub live_racks: usize,
    /// Empty where rack links limit nothing.
    pub racks: &'a [Rack],
    /// What stragglers take of rack links already: up, down.
    pub rack_load_mb: [Vec<f32>; 2],
    /// A node that would need longer is saturated. Infinite: nothing is.
    pub limit_s: f32,
    /// Bytes after which the slot is full: S of eq. 2, less what stragglers take.
    pub volume_mb: f64,
    /// Per node, whether it is underemployed; empty for a pass without priorities.
    pub underemployed: &'a [bool],
}

/// What a pass came to.
#[derive(Debug, Default)]
pub struct Filled {
    /// (task, source, destination), in the order of choice.
    pub placed: Vec<(u32, u32, u32)>,
    /// The queue without them, in its order.
    pub waiting: Vec<u32>,
    /// Tasks without any source: their chunks are lost.
    pub lost: Vec<u32>,
    /// Tasks looked at.
    pub scanned: u64,
    pub placed_mb: f64,
    /// Prioritised tasks placed as such.
    pub prioritized: u64,
}

impl Pass<'_> {
    /// Where a copy of `task` must not go: anywhere but where it is asked to; else into a rack that
    /// holds one, while a live one is left that holds none; else to a node that holds one. `racks`
    /// is memory for the answer.
    #[inline]
    pub fn avoid<'b>(&'b self, task: u32, racks: &'b mut Vec<u32>) -> Avoid<'b> {
        let (holders, rack_of) = (self.tasks.holders(task), self.rack_of);
        let all_but = self.tasks.target(task);
        if all_but.is_some() {
            return Avoid { rack_of, racks: &[], nodes: holders, all_but };
        }
        racks.clear();
        racks.extend(holders.iter().map(|node| rack_of[*node as usize]));
        let spread = self.live_racks > racks.len() || self.can_spread(racks);
        let (racks, nodes) = if spread { (&racks[..], &[][..]) } else { (&[][..], holders) };
        Avoid { rack_of, racks, nodes, all_but }
    }

    /// Whether a rack is left that holds no copy, counted: the slow way, for few racks.
    fn can_spread(&self, racks: &[u32]) -> bool {
        self.nodes.iter().any(|node| node.in_mb_s > 0.0 && !racks.contains(&node.rack))
    }
}

#[derive(PartialEq)]
enum Outcome {
    Placed,
    SourceFull,
    Skipped,
}

/// The running state of a pass.
struct Run<'a, S> {
    pass: Pass<'a>,
    selector: S,
    filled: Filled,
    /// No destination takes this size or more.
    full_from_mb: f32,
    racks: Vec<u32>,
    rack_sides: Option<[Side; 2]>,
    members: Vec<Vec<u32>>,
}

/// Places as much of `queue` as fits.
pub fn fill<S: Selector>(pass: Pass<'_>, selector: S, queue: &[u32]) -> Filled {
    let mut run = Run {
        selector,
        filled: Filled::default(),
        full_from_mb: f32::INFINITY,
        racks: Vec::new(),
        rack_sides: None,
        members: Vec::new(),
        pass,
    };
    run.limit_racks();
    let tasks = run.pass.tasks;
    let mut done = vec![false; queue.len()];
    let mut of_class = Vec::new();
    let present = queue.iter().fold(0u32, |bits, task| bits | 1 << tasks.class(*task));
    for class in 0..class::COUNT as u8 {
        if present & 1 << class == 0 {
            continue;
        }
        let members =
            (0..queue.len() as u32).filter(|at| tasks.class(queue[*at as usize]) == class);
        of_class.clear();
        of_class.extend(members);
        run.class(queue, &of_class, &mut done);
    }
    let mut filled = run.filled;
    filled.waiting = (0..queue.len()).filter(|at| !done[*at]).map(|at| queue[at]).collect();
    filled
}

impl<S: Selector> Run<'_, S> {
    fn class(&mut self, queue: &[u32], members: &[u32], done: &mut [bool]) {
        let tasks = self.pass.tasks;
        let smallest = members.iter().map(|at| tasks.mb(queue[*at as usize]));
        let smallest = smallest.fold(f32::INFINITY, f32::min);
        let mut normal: Vec<u32>;
        let mut members = members;
        let underemployed = self.pass.underemployed;
        if !underemployed.is_empty() {
            let is_under =
                |task: u32| tasks.sources(task).iter().any(|node| underemployed[*node as usize]);
            let (first, rest): (Vec<u32>, Vec<u32>) =
                members.iter().copied().partition(|at| is_under(queue[*at as usize]));
            normal = rest;
            let mut sources = Vec::new();
            for at in first {
                if self.is_full(smallest) {
                    return;
                }
                let task = queue[at as usize];
                sources.clear();
                let nodes = tasks.sources(task).iter();
                sources.extend(nodes.filter(|node| underemployed[**node as usize]));
                match self.place(task, &sources) {
                    Outcome::Placed => {
                        done[at as usize] = true;
                        self.filled.prioritized += 1;
                    }
                    // Degraded, so that its other sources get their chance (corner case 2).
                    Outcome::SourceFull => normal.push(at),
                    Outcome::Skipped => {}
                }
            }
            members = &normal;
        }
        for at in members {
            if self.is_full(smallest) {
                return;
            }
            let task = queue[*at as usize];
            if self.place(task, tasks.sources(task)) == Outcome::Placed {
                done[*at as usize] = true;
            } else if tasks.sources(task).is_empty() {
                self.filled.lost.push(task);
                done[*at as usize] = true;
            }
        }
    }

    /// Whether the slot's volume is used up, or not even the smallest task fits anywhere.
    fn is_full(&self, smallest_mb: f32) -> bool {
        self.filled.placed_mb >= self.pass.volume_mb || self.full_from_mb <= smallest_mb
    }

    #[inline]
    fn place(&mut self, task: u32, sources: &[u32]) -> Outcome {
        self.filled.scanned += 1;
        let mb = self.pass.tasks.mb(task);
        if mb >= self.full_from_mb {
            return Outcome::Skipped;
        }
        let limit = self.pass.limit_s;
        let source = match self.selector.source(mb, sources) {
            Some((source, finish)) if finish <= limit => source,
            _ => return Outcome::SourceFull,
        };
        if self.pass.nodes[source as usize].out_mb_s <= 0.0 {
            return Outcome::SourceFull;
        }
        let avoid = self.pass.avoid(task, &mut self.racks);
        let destination = match self.selector.destination(mb, &avoid) {
            Some((destination, finish)) if finish <= limit => destination,
            _ => {
                if !S::LITERAL && self.selector.floor_s(mb) > limit {
                    self.full_from_mb = mb;
                }
                return Outcome::Skipped;
            }
        };
        if self.pass.nodes[destination as usize].in_mb_s <= 0.0 {
            return Outcome::Skipped;
        }
        self.selector.send(source, mb);
        self.selector.receive(destination, mb);
        if self.rack_sides.is_some() {
            self.charge_racks(source, destination, mb);
        }
        self.filled.placed.push((task, source, destination));
        self.filled.placed_mb += f64::from(mb);
        Outcome::Placed
    }

    fn limit_racks(&mut self) {
        if self.pass.racks.is_empty() {
            return;
        }
        let racks = self.pass.racks;
        let mut up = Side::new(racks.iter().map(|rack| rack.up_mb_s));
        let mut down = Side::new(racks.iter().map(|rack| rack.down_mb_s));
        [up.load_mb, down.load_mb] = std::mem::take(&mut self.pass.rack_load_mb);
        self.members = vec![Vec::new(); racks.len()];
        for (node, rack) in self.pass.rack_of.iter().enumerate() {
            self.members[*rack as usize].push(node as u32);
        }
        self.rack_sides = Some([up, down]);
    }

    /// A rack link is a resource like a node's: when it cannot take another task of this size, all
    /// nodes behind it are saturated. No copy stays within a rack, so each uses both links.
    fn charge_racks(&mut self, source: u32, destination: u32, mb: f32) {
        let Some([up, down]) = &mut self.rack_sides else { return };
        let rack_of = self.pass.rack_of;
        let (from, to) = (rack_of[source as usize], rack_of[destination as usize]);
        if from == to {
            return;
        }
        up.load_mb[from as usize] += mb;
        down.load_mb[to as usize] += mb;
        if up.finish_s(from, mb) > self.pass.limit_s {
            for node in &self.members[from as usize] {
                self.selector.send(*node, f32::INFINITY);
            }
        }
        if down.finish_s(to, mb) > self.pass.limit_s {
            for node in &self.members[to as usize] {
                self.selector.receive(*node, f32::INFINITY);
            }
        }
    }
}

/// Nodes with much bandwidth to send and little to send (section 4.2): the intersection of the
/// first beta by B_out, descending, and the first beta by SC, ascending. SC is what is still to be
/// copied, not what was there when the node failed. The paper keeps two heaps; a selection of the
/// first beta is O(n) and needs neither.
pub fn underemployed(nodes: &[Node], common_mb: &[f32], beta: f32) -> Vec<bool> {
    let mut live: Vec<u32> =
        (0..nodes.len() as u32).filter(|node| nodes[*node as usize].out_mb_s > 0.0).collect();
    let count = (live.len() as f32 * beta).round() as usize;
    let mut chosen = vec![false; nodes.len()];
    if count == 0 {
        return chosen;
    }
    let bandwidth = |node: &u32| nodes[*node as usize].out_mb_s;
    let common = |node: &u32| common_mb[*node as usize];
    let last = count.min(live.len()) - 1;
    live.select_nth_unstable_by(last, |a, b| bandwidth(b).total_cmp(&bandwidth(a)).then(a.cmp(b)));
    let mut fast = vec![false; nodes.len()];
    live[..=last].iter().for_each(|node| fast[*node as usize] = true);
    live.select_nth_unstable_by(last, |a, b| common(a).total_cmp(&common(b)).then(a.cmp(b)));
    live[..=last].iter().for_each(|node| chosen[*node as usize] = fast[*node as usize]);
    chosen
}
