//! Searches that look at every node: the paper's naive scan, and the same over arrays that the
//! compiler turns into vectors.

use super::{Avoid, LANES, Search, Side, lowest};

/// All candidates one after the other, as the paper's text reads: the scan that it measures itself
/// against. Literal: what is full is looked at again for every task.
pub struct Naive {
    nodes: Vec<Candidate>,
}

struct Candidate {
    bandwidth_mb_s: f64,
    load_mb: f64,
}

impl Search for Naive {
    const LITERAL: bool = true;

    fn new(side: &Side, _rack_of: &[u32], _common_mb: f32) -> Naive {
        let candidate = |(inverse, load): (&f32, &f32)| Candidate {
            bandwidth_mb_s: 1.0 / f64::from(*inverse),
            load_mb: f64::from(*load),
        };
        Naive { nodes: side.inverse.iter().zip(&side.load_mb).map(candidate).collect() }
    }

    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let mut best = None;
        for (node, candidate) in self.nodes.iter().enumerate() {
            if avoid.excludes(node as u32) {
                continue;
            }
            let finish = (f64::from(mb) + candidate.load_mb) / candidate.bandwidth_mb_s;
            if best.is_none_or(|(_, lowest)| finish < lowest) {
                best = Some((node as u32, finish));
            }
        }
        best.map(|(node, finish)| (node, finish as f32))
    }

    fn floor(&mut self, _mb: f32) -> f32 {
        0.0
    }

    fn add(&mut self, node: u32, mb: f32) {
        self.nodes[node as usize].load_mb += f64::from(mb);
    }
}

/// Nodes in the order of their racks, so that a rack that is avoided is a range left out. Ranges
/// of racks are padded to whole vectors.
pub struct Scan {
    load: Vec<f32>,
    inverse: Vec<f32>,
    node_at: Vec<u32>,
    position: Vec<u32>,
    /// First position of each rack, and one past the last.
    racks: Vec<usize>,
}

impl Search for Scan {
    fn new(side: &Side, rack_of: &[u32], _common_mb: f32) -> Scan {
        let count = rack_of.iter().max().map_or(0, |rack| *rack as usize + 1);
        let mut members = vec![Vec::new(); count];
        for (node, rack) in rack_of.iter().enumerate() {
            members[*rack as usize].push(node as u32);
        }
        let mut scan = Scan {
            load: Vec::new(),
            inverse: Vec::new(),
            node_at: Vec::new(),
            position: vec![0; rack_of.len()],
            racks: vec![0],
        };
        for nodes in members {
            for node in nodes {
                scan.position[node as usize] = scan.load.len() as u32;
                scan.load.push(side.load_mb[node as usize]);
                scan.inverse.push(side.inverse[node as usize]);
                scan.node_at.push(node);
            }
            let padded = scan.load.len().next_multiple_of(LANES);
            scan.load.resize(padded, f32::INFINITY);
            scan.inverse.resize(padded, 1.0);
            scan.node_at.resize(padded, u32::MAX);
            scan.racks.push(padded);
        }
        scan
    }

    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        // Racks to leave out, in order; more than a few are rare.
        let mut racks: Vec<u32> = avoid.racks.to_vec();
        racks.sort_unstable();
        let mut best: Option<(u32, f32)> = None;
        let mut from = 0;
        for rack in racks.into_iter().chain([u32::MAX]) {
            let last = rack == u32::MAX;
            let to = if last { self.load.len() } else { self.racks[rack as usize] };
            if to > from {
                let (at, finish) = lowest(mb, &self.load[from..to], &self.inverse[from..to]);
                if best.is_none_or(|(_, best)| finish < best) && finish < f32::INFINITY {
                    best = Some((self.node_at[from + at], finish));
                }
            }
            if !last {
                from = self.racks[rack as usize + 1].max(from);
            }
        }
        if best.is_some_and(|(node, _)| avoid.excludes(node)) {
            return self.best_one_by_one(mb, avoid);
        }
        best
    }

    fn floor(&mut self, mb: f32) -> f32 {
        lowest(mb, &self.load, &self.inverse).1
    }

    fn add(&mut self, node: u32, mb: f32) {
        self.load[self.position[node as usize] as usize] += mb;
    }
}

impl Scan {
    /// Where single nodes are avoided, not racks: clusters with fewer racks than replicas.
    fn best_one_by_one(&self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let allowed = |at: &usize| {
            let node = self.node_at[*at];
            node != u32::MAX && !avoid.excludes(node)
        };
        (0..self.load.len())
            .filter(allowed)
            .map(|at| (self.node_at[at], (mb + self.load[at]) * self.inverse[at]))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
