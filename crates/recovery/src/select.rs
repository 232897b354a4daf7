//! Selectors: who sends a chunk and who receives it. Dayu's greedy choice over any search, and the
//! choices that the paper compares it with (section 5, "Comparison").

use crate::random::{Random, Weighted};
use crate::search::{Avoid, NO_BANDWIDTH, Search, Side};
use std::collections::BTreeSet;

/// How sources and destinations are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Dayu's greedy with the search that was measured to be the fastest: a tournament over all
    /// nodes. What a live cluster uses.
    Dayu,
    /// Dayu's greedy with bucket approximation and a scan of the buckets' tops in vectors.
    Tops,
    /// Dayu's greedy with the paper's search: bucket approximation and convex hull.
    Hull,
    /// Dayu's greedy, exact over all nodes in vectors.
    Scan,
    /// Dayu's greedy, exact over all nodes one by one.
    Naive,
    /// Greedy1: all nodes scanned for the lowest c / B.
    G1,
    /// Greedy2: the node with the lightest load F + c / T, from a balanced tree.
    G2,
    Random,
    /// Best of two random ones.
    B2r,
    /// Random, weighted by available bandwidth.
    Wr,
    /// The least time that a solver finds, all tasks of a slot at once: for tens of nodes, in
    /// builds with the feature `milp`.
    Milp,
}

impl Algorithm {
    /// Those that every build has, at every size.
    pub const ALL: [(&'static str, Algorithm); 10] = [
        ("dayu", Algorithm::Dayu),
        ("hull", Algorithm::Hull),
        ("tops", Algorithm::Tops),
        ("scan", Algorithm::Scan),
        ("naive", Algorithm::Naive),
        ("g1", Algorithm::G1),
        ("g2", Algorithm::G2),
        ("random", Algorithm::Random),
        ("b2r", Algorithm::B2r),
        ("wr", Algorithm::Wr),
    ];

    const EXACT: (&'static str, Algorithm) = ("milp", Algorithm::Milp);

    pub fn name(self) -> &'static str {
        let mut known = Algorithm::ALL.iter().chain([&Algorithm::EXACT]);
        known.find(|(_, a)| *a == self).map_or("", |(name, _)| name)
    }

    pub fn parse(name: &str) -> Option<Algorithm> {
        let mut known = Algorithm::ALL.iter().chain([&Algorithm::EXACT]);
        known.find(|(n, _)| *n == name).map(|(_, algorithm)| *algorithm)
    }

    /// Whether picks are random: the paper runs those with 16 threads.
    pub fn is_random(self) -> bool {
        matches!(self, Algorithm::Random | Algorithm::B2r | Algorithm::Wr)
    }
}

/// Chooses for one task after the other. Times are expected finish times (s + c) / B in seconds.
pub trait Selector {
    /// See [`Search::LITERAL`].
    const LITERAL: bool;
    /// One of `candidates`, with the time that the task takes there.
    fn source(&mut self, mb: f32, candidates: &[u32]) -> Option<(u32, f32)>;
    /// A node outside `avoid`, with the time that the task takes there.
    fn destination(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)>;
    /// A time that no destination beats for `mb` or more, from now on.
    fn floor_s(&mut self, mb: f32) -> f32;
    /// Adds `mb` to what a node sends, to what a node receives.
    fn send(&mut self, node: u32, mb: f32);
    fn receive(&mut self, node: u32, mb: f32);
}

/// Dayu's greedy: lowest (s + c) / B on both sides.
pub struct Greedy<S> {
    out: Side,
    search: S,
}

impl<S: Search> Greedy<S> {
    pub fn new(out: Side, into: &Side, rack_of: &[u32], common_mb: f32) -> Greedy<S> {
        Greedy { out, search: S::new(into, rack_of, common_mb) }
    }
}

fn lightest(out: &Side, mb: f32, candidates: &[u32]) -> Option<(u32, f32)> {
    let mut best: Option<(u32, f32)> = None;
    for node in candidates {
        let finish = out.finish_s(*node, mb);
        if best.is_none_or(|(_, lowest)| finish < lowest) {
            best = Some((*node, finish));
        }
    }
    best
}

impl<S: Search> Selector for Greedy<S> {
    const LITERAL: bool = S::LITERAL;

    #[inline]
    fn source(&mut self, mb: f32, candidates: &[u32]) -> Option<(u32, f32)> {
        lightest(&self.out, mb, candidates)
    }

    #[inline]
    fn destination(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        self.search.best(mb, avoid)
    }

    fn floor_s(&mut self, mb: f32) -> f32 {
        self.search.floor(mb)
    }

    #[inline]
    fn send(&mut self, node: u32, mb: f32) {
        self.out.load_mb[node as usize] += mb;
    }

    #[inline]
    fn receive(&mut self, node: u32, mb: f32) {
        self.search.add(node, mb);
    }
}

/// Greedy1: lowest c / B, without the task's own size.
pub struct Greedy1<S> {
    out: Side,
    into: Side,
    search: S,
}

impl<S: Search> Greedy1<S> {
    pub fn new(out: Side, into: Side, rack_of: &[u32], common_mb: f32) -> Greedy1<S> {
        let search = S::new(&into, rack_of, common_mb);
        Greedy1 { out, into, search }
    }
}

impl<S: Search> Selector for Greedy1<S> {
    const LITERAL: bool = S::LITERAL;

    fn source(&mut self, mb: f32, candidates: &[u32]) -> Option<(u32, f32)> {
        let (node, _) = lightest(&self.out, 0.0, candidates)?;
        Some((node, self.out.finish_s(node, mb)))
    }

    fn destination(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let (node, _) = self.search.best(0.0, avoid)?;
        Some((node, self.into.finish_s(node, mb)))
    }

    fn floor_s(&mut self, mb: f32) -> f32 {
        self.search.floor(mb)
    }

    fn send(&mut self, node: u32, mb: f32) {
        self.out.load_mb[node as usize] += mb;
    }

    fn receive(&mut self, node: u32, mb: f32) {
        self.into.load_mb[node as usize] += mb;
        self.search.add(node, mb);
    }
}

/// Greedy2: the lightest load F + c / T. With F = alpha B_total - B that is the lowest c / T - B:
/// the node with the most bandwidth left, however loaded it is for its size.
pub struct Greedy2 {
    out: Side,
    into: Side,
    slot_s: f32,
    /// (order of the load, node).
    tree: BTreeSet<(u32, u32)>,
}

impl Greedy2 {
    pub fn new(out: Side, into: Side, slot_s: f32) -> Greedy2 {
        let nodes = 0..into.inverse.len() as u32;
        let live = nodes.filter(|node| into.inverse[*node as usize] < NO_BANDWIDTH);
        let tree = live.map(|node| (ordered(load(&into, slot_s, node)), node)).collect();
        Greedy2 { out, into, slot_s, tree }
    }
}

fn load(side: &Side, slot_s: f32, node: u32) -> f32 {
    side.load_mb[node as usize] / slot_s - 1.0 / side.inverse[node as usize]
}

/// Bits that compare as the numbers do.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

impl Selector for Greedy2 {
    const LITERAL: bool = false;

    fn source(&mut self, mb: f32, candidates: &[u32]) -> Option<(u32, f32)> {
        let of = |node: &u32| load(&self.out, self.slot_s, *node);
        let node = *candidates.iter().min_by(|a, b| of(a).total_cmp(&of(b)))?;
        Some((node, self.out.finish_s(node, mb)))
    }

    fn destination(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let (_, node) = self.tree.iter().find(|(_, node)| !avoid.excludes(*node))?;
        Some((*node, self.into.finish_s(*node, mb)))
    }

    fn floor_s(&mut self, _mb: f32) -> f32 {
        // The lightest is not the one that finishes first: nothing is known of the others, and the
        // paper's skips the task that its lightest cannot take. So does this one, at once.
        0.0
    }

    fn send(&mut self, node: u32, mb: f32) {
        self.out.load_mb[node as usize] += mb;
    }

    fn receive(&mut self, node: u32, mb: f32) {
        self.tree.remove(&(ordered(load(&self.into, self.slot_s, node)), node));
        self.into.load_mb[node as usize] += mb;
        self.tree.insert((ordered(load(&self.into, self.slot_s, node)), node));
    }
}

/// Random picks: plain, best of two, or weighted by bandwidth.
pub struct Picks {
    algorithm: Algorithm,
    out: Side,
    into: Side,
    live: Vec<u32>,
    weighted: Option<Weighted>,
    random: Random,
}

/// Draws until a node is found that is not avoided; then the nodes are gone through in order.
const DRAWS_MAX: usize = 64;

impl Picks {
    pub fn new(algorithm: Algorithm, out: Side, into: Side, seed: u64) -> Picks {
        let nodes = 0..into.inverse.len() as u32;
        let live: Vec<u32> =
            nodes.filter(|node| into.inverse[*node as usize] < NO_BANDWIDTH).collect();
        let weights: Vec<f32> = live.iter().map(|n| 1.0 / into.inverse[*n as usize]).collect();
        let weighted =
            (algorithm == Algorithm::Wr && !live.is_empty()).then(|| Weighted::new(&weights));
        Picks { algorithm, out, into, live, weighted, random: Random::new(seed) }
    }

    fn draw(&mut self, avoid: &Avoid<'_>) -> Option<u32> {
        if self.live.is_empty() {
            return None;
        }
        for _ in 0..DRAWS_MAX {
            let at = match &self.weighted {
                Some(weighted) => weighted.draw(&mut self.random) as usize,
                None => self.random.below(self.live.len()),
            };
            if !avoid.excludes(self.live[at]) {
                return Some(self.live[at]);
            }
        }
        self.live.iter().copied().find(|node| !avoid.excludes(*node))
    }

    fn draw_source(&mut self, candidates: &[u32]) -> Option<u32> {
        if candidates.is_empty() {
            return None;
        }
        if self.algorithm != Algorithm::Wr {
            return Some(candidates[self.random.below(candidates.len())]);
        }
        let weight = |node: &u32| 1.0 / self.out.inverse[*node as usize];
        let mut left = candidates.iter().map(weight).sum::<f32>() * self.random.unit();
        let chosen = candidates.iter().find(|node| {
            left -= weight(node);
            left < 0.0
        });
        chosen.or(candidates.last()).copied()
    }
}

impl Selector for Picks {
    const LITERAL: bool = true;

    fn source(&mut self, mb: f32, candidates: &[u32]) -> Option<(u32, f32)> {
        let mut node = self.draw_source(candidates)?;
        if self.algorithm == Algorithm::B2r {
            let other = self.draw_source(candidates)?;
            if self.out.finish_s(other, mb) < self.out.finish_s(node, mb) {
                node = other;
            }
        }
        Some((node, self.out.finish_s(node, mb)))
    }

    fn destination(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let mut node = self.draw(avoid)?;
        if self.algorithm == Algorithm::B2r {
            let other = self.draw(avoid)?;
            if self.into.finish_s(other, mb) < self.into.finish_s(node, mb) {
                node = other;
            }
        }
        Some((node, self.into.finish_s(node, mb)))
    }

    fn floor_s(&mut self, _mb: f32) -> f32 {
        0.0
    }

    fn send(&mut self, node: u32, mb: f32) {
        self.out.load_mb[node as usize] += mb;
    }

    fn receive(&mut self, node: u32, mb: f32) {
        self.into.load_mb[node as usize] += mb;
    }
}

#[cfg(test)]
mod tests {
    use super::ordered;

    #[test]
    fn bits_compare_as_the_numbers_do() {
        let numbers = [f32::NEG_INFINITY, -3.5, -1e-30, 0.0, 1e-30, 1.0, 3.5, f32::INFINITY];
        assert!(numbers.map(ordered).is_sorted_by(|a, b| a < b));
    }
}
