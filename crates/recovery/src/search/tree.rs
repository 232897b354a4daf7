//! A tournament over all nodes, keyed by the finish time of a chunk of the common size: exact for
//! that size, and within the difference in sizes for others. Leaves lie in the order of racks, so
//! that a rack that is avoided is a range left out.

use super::{Avoid, Search, Side};

pub struct Tree {
    /// (finish time of a common chunk, node); leaves from `leaves` on, winners before.
    keys: Vec<(f32, u32)>,
    leaves: usize,
    position: Vec<u32>,
    /// First leaf of each rack, and one past the last.
    racks: Vec<u32>,
    side: Side,
    common_mb: f32,
}

const NOBODY: (f32, u32) = (f32::INFINITY, u32::MAX);

fn lower(a: (f32, u32), b: (f32, u32)) -> (f32, u32) {
    if b.0 < a.0 { b } else { a }
}

impl Search for Tree {
    fn new(side: &Side, rack_of: &[u32], common_mb: f32) -> Tree {
        let count = rack_of.len();
        let leaves = count.next_power_of_two();
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.sort_by_key(|node| rack_of[*node as usize]);
        let racks = rack_of.iter().max().map_or(0, |rack| *rack + 1);
        let racks = (0..=racks)
            .map(|rack| order.partition_point(|n| rack_of[*n as usize] < rack) as u32)
            .collect();
        let mut keys = vec![NOBODY; 2 * leaves];
        let mut position = vec![0; count];
        for (at, node) in order.iter().enumerate() {
            position[*node as usize] = at as u32;
            keys[leaves + at] = (side.finish_s(*node, common_mb), *node);
        }
        for at in (1..leaves).rev() {
            keys[at] = lower(keys[2 * at], keys[2 * at + 1]);
        }
        Tree { keys, leaves, position, racks, side: side.clone(), common_mb }
    }

    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let (_, mut node) = self.keys[1];
        if node != u32::MAX && avoid.excludes(node) {
            (_, node) = self.outside(avoid);
        }
        (node != u32::MAX).then(|| (node, self.side.finish_s(node, mb)))
    }

    fn floor(&mut self, mb: f32) -> f32 {
        // Only a chunk of the common size or more is bounded by the winner's key.
        if mb >= self.common_mb { self.keys[1].0 } else { 0.0 }
    }

    fn add(&mut self, node: u32, mb: f32) {
        self.side.load_mb[node as usize] += mb;
        let mut at = self.leaves + self.position[node as usize] as usize;
        self.keys[at] = (self.side.finish_s(node, self.common_mb), node);
        while at > 1 {
            at /= 2;
            self.keys[at] = lower(self.keys[2 * at], self.keys[2 * at + 1]);
        }
    }
}

impl Tree {
    /// The winner of the ranges between the racks that are avoided.
    fn outside(&self, avoid: &Avoid<'_>) -> (f32, u32) {
        let mut racks = avoid.racks.to_vec();
        racks.sort_unstable();
        let mut best = NOBODY;
        let mut from = 0;
        for rack in racks {
            best = lower(best, self.range(from, self.racks[rack as usize] as usize));
            from = from.max(self.racks[rack as usize + 1] as usize);
        }
        best = lower(best, self.range(from, self.position.len()));
        if best.1 == u32::MAX || !avoid.excludes(best.1) {
            return best;
        }
        // Single nodes are avoided, not racks: clusters with fewer racks than replicas.
        let leaves = &self.keys[self.leaves..][..self.position.len()];
        leaves.iter().filter(|(_, n)| !avoid.excludes(*n)).fold(NOBODY, |a, b| lower(a, *b))
    }

    fn range(&self, from: usize, to: usize) -> (f32, u32) {
        let mut best = NOBODY;
        let (mut from, mut to) = (from + self.leaves, to.max(from) + self.leaves);
        while from < to {
            if from % 2 == 1 {
                best = lower(best, self.keys[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                best = lower(best, self.keys[to]);
            }
            (from, to) = (from / 2, to / 2);
        }
        best
    }
}
