//! Where chunks lie and what a failure leaves to copy: racks, node weights, sizes.

use crate::model::Tasks;
use crate::random::{Random, Weighted, exp};

/// The most common chunk.
pub const CHUNK_MB: f32 = 64.0;

/// How chunks are placed. The paper says that a node has around 250,000 of them, of three
/// replicas each, mostly of 64 MB, and that SC is "not balanced"; its Figure 1(f) is lost.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementParams {
    pub rack_nodes: usize,
    /// Replicas of a chunk, on distinct racks.
    pub replicas: usize,
    /// Coefficient of variation of the nodes' log-normal placement weights; 0 is pure random
    /// placement, whose SC varies by 8.4% (143 common chunks of two nodes).
    pub weight_cov: f32,
    /// Share of full chunks; the rest is uniform between 1 MB and a full chunk.
    pub full_share: f32,
    /// Copysets: a node shares its chunks with so many others only, in sets of as many nodes as a
    /// chunk has replicas, each set drawn like a chunk's holders (Cidon et al., 2013). 0: with
    /// all. Few sets make it unlikely that a few failures at once hit all copies of a chunk, and
    /// leave few nodes to send what one failure needs.
    pub scatter: usize,
}

impl Default for PlacementParams {
    fn default() -> PlacementParams {
        PlacementParams {
            rack_nodes: 35,
            replicas: 3,
            weight_cov: 0.3,
            full_share: 0.95,
            scatter: 0,
        }
    }
}

/// A cluster's racks and weights, from which each failure draws its chunks.
pub struct Placement {
    params: PlacementParams,
    seed: u64,
    racks: Vec<u32>,
    weighted: Weighted,
}

impl Placement {
    pub fn new(params: &PlacementParams, nodes: usize, seed: u64) -> Placement {
        let mut random = Random::of(seed, u64::MAX - 1);
        // CoV^2 = e^(s^2) - 1; ln(1 + x) by its series, good for the CoV below 0.7 that we use.
        let q = params.weight_cov * params.weight_cov;
        let deviation = (q * (1.0 - q * (0.5 - q * (1.0 / 3.0 - q / 4.0)))).max(0.0).sqrt();
        let weights: Vec<f32> = (0..nodes).map(|_| exp(deviation * random.normal())).collect();
        let racks = (0..nodes).map(|node| (node / params.rack_nodes.max(1)) as u32).collect();
        Placement { params: params.clone(), seed, racks, weighted: Weighted::new(&weights) }
    }

    /// Rack of each node.
    pub fn racks(&self) -> &[u32] {
        &self.racks
    }

    /// The tasks that the failure of `node` leaves: `chunks` of them, each with the holders that
    /// survive. `part` numbers the failures.
    pub fn failure(&self, node: u32, chunks: usize, part: u64) -> Tasks {
        let mut random = Random::of(self.seed ^ 0x5c, part);
        let mut tasks = Tasks::default();
        self.extend(&mut tasks, node, chunks, &mut random);
        tasks
    }

    /// Appends `chunks` tasks of the failed `node`.
    pub fn extend(&self, tasks: &mut Tasks, node: u32, chunks: usize, random: &mut Random) {
        let mut holders = Vec::with_capacity(self.params.replicas);
        let others = self.params.replicas.max(2) - 1;
        let mut of_node = Random::of(self.seed ^ 0xc0, u64::from(node));
        let sets: Vec<Vec<u32>> = (0..self.params.scatter.div_ceil(others))
            .map(|_| {
                let mut set = Vec::with_capacity(self.params.replicas);
                self.holders(node, &mut set, &mut of_node);
                set
            })
            .collect();
        for _ in 0..chunks {
            if sets.is_empty() {
                self.holders(node, &mut holders, random);
            } else {
                holders.clone_from(&sets[random.below(sets.len())]);
            }
            let mb = if random.unit() < self.params.full_share {
                CHUNK_MB
            } else {
                1.0 + (CHUNK_MB - 1.0) * random.unit()
            };
            tasks.push(mb, 0, &holders[1..], &[]);
        }
    }

    /// Draws the holders of a chunk of `node`, each in a rack of its own.
    fn holders(&self, node: u32, holders: &mut Vec<u32>, random: &mut Random) {
        let racks = self.racks.last().map_or(0, |last| last + 1) as usize;
        holders.clear();
        holders.push(node);
        while holders.len() < self.params.replicas.min(racks) {
            let holder = self.weighted.draw(random);
            let rack = self.racks[holder as usize];
            if holders.iter().all(|other| self.racks[*other as usize] != rack) {
                holders.push(holder);
            }
        }
    }
}
