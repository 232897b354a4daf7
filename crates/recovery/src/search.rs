//! Destination searches: which node finishes a chunk first, lowest (size + c) / B (section 4.1).
//! All answer the same question, exactly or to a bucket's width; they differ in how much they look
//! at. Called by the greedy selectors, once for each task placed.

mod buckets;
mod scan;
mod tree;

pub use buckets::{Hull, Tops, reduction};
pub use scan::{Naive, Scan};
pub use tree::Tree;

/// Division by a bandwidth of 0 that leads past every limit and never to NaN.
pub const NO_BANDWIDTH: f32 = 1e30;

/// What recovery planned for one direction of every node so far.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// MB assigned: the paper's c.
    pub load_mb: Vec<f32>,
    /// Seconds a MB: 1 / B.
    pub inverse: Vec<f32>,
}

impl Side {
    pub fn new(bandwidths: impl Iterator<Item = f32>) -> Side {
        let inverse: Vec<f32> =
            bandwidths.map(|b| if b > 0.0 { 1.0 / b } else { NO_BANDWIDTH }).collect();
        // A node that is away starts loaded, or it would be the best place for nothing.
        let load = |inverse: &f32| if *inverse < NO_BANDWIDTH { 0.0 } else { 1.0 };
        Side { load_mb: inverse.iter().map(load).collect(), inverse }
    }

    /// Expected finish time of `mb` more: (s + c) / B.
    #[inline]
    pub fn finish_s(&self, node: u32, mb: f32) -> f32 {
        (mb + self.load_mb[node as usize]) * self.inverse[node as usize]
    }
}

/// Where a copy must not go: near the chunk's other holders; or anywhere but where it is asked to.
#[derive(Clone, Copy, Debug)]
pub struct Avoid<'a> {
    pub rack_of: &'a [u32],
    pub racks: &'a [u32],
    pub nodes: &'a [u32],
    pub all_but: Option<u32>,
}

impl Avoid<'_> {
    #[inline]
    pub fn excludes(&self, node: u32) -> bool {
        self.racks.contains(&self.rack_of[node as usize])
            || self.nodes.contains(&node)
            || self.all_but.is_some_and(|only| only != node)
    }
}

/// A set of destinations with their bandwidths and loads.
pub trait Search {
    /// Looks at every candidate of every task, as the paper's naive scan does: nothing that is
    /// known to be full is passed over.
    const LITERAL: bool = false;

    /// `side` holds the loads that destinations start with; `rack_of` the rack of each node;
    /// `common_mb` the size that most tasks have.
    fn new(side: &Side, rack_of: &[u32], common_mb: f32) -> Self;

    /// The node with the lowest (mb + c) / B outside `avoid`, and that time in seconds. A node
    /// without bandwidth may come with a time past every limit; `None` if all are excluded.
    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)>;

    /// A lower bound of what [`Search::best`] gives for `mb` or more, now and after any
    /// [`Search::add`], whatever is avoided.
    fn floor(&mut self, mb: f32) -> f32;

    /// Raises a node's load.
    fn add(&mut self, node: u32, mb: f32);
}

/// Lanes that a loop over floats is written in: what the compiler turns into vectors of any width.
pub(crate) const LANES: usize = 16;

/// Lowest (mb + load) * inverse and its index, over slices of one length, a multiple of
/// [`LANES`]: a pass for the minimum, and one that stops where it is.
#[inline]
pub(crate) fn lowest(mb: f32, load: &[f32], inverse: &[f32]) -> (usize, f32) {
    let mut lanes = [f32::INFINITY; LANES];
    for (load, inverse) in load.chunks_exact(LANES).zip(inverse.chunks_exact(LANES)) {
        for lane in 0..LANES {
            let value = (mb + load[lane]) * inverse[lane];
            lanes[lane] = if value < lanes[lane] { value } else { lanes[lane] };
        }
    }
    let lowest = lanes.into_iter().fold(f32::INFINITY, |a, b| if b < a { b } else { a });
    let chunks = load.chunks_exact(LANES).zip(inverse.chunks_exact(LANES));
    for (chunk, (load, inverse)) in chunks.enumerate() {
        let mut found = false;
        for lane in 0..LANES {
            found |= (mb + load[lane]) * inverse[lane] == lowest;
        }
        if found {
            let lane = (0..LANES).find(|lane| (mb + load[*lane]) * inverse[*lane] == lowest);
            return (chunk * LANES + lane.unwrap_or(0), lowest);
        }
    }
    (usize::MAX, f32::INFINITY)
}

#[cfg(test)]
mod tests;
