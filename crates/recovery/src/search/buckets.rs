//! The paper's bucket approximation: nodes of nearly equal bandwidth share a bucket, and only a
//! bucket's least loaded node is a candidate. Over the candidates, two searches: a scan of all of
//! them in vectors (`Tops`), and the paper's convex hull (`Hull`).

use super::{Avoid, LANES, NO_BANDWIDTH, Search, Side, lowest};

/// Width of a bucket: the paper's 1 MB/s, or less where all links are slow, so that there are
/// always about as many buckets as the paper had.
const BUCKET_MB_S: f32 = 1.0;
const BUCKETS_WANTED: f32 = 188.0;

/// Nodes in buckets, each bucket a binary heap by load.
struct Buckets {
    /// Load of each bucket's top, padded with infinity to whole vectors.
    top: Vec<f32>,
    /// 1 / B of each bucket, where B is its slowest node's bandwidth: no finish is promised that a
    /// node of the bucket cannot keep.
    inverse: Vec<f32>,
    /// First place of each bucket in `load` and `nodes`, and one past the last.
    start: Vec<u32>,
    /// MB assigned to the node at the same place of `nodes`; within a bucket, a heap.
    load: Vec<f32>,
    nodes: Vec<u32>,
    /// By node.
    bucket_of: Vec<u32>,
}

impl Buckets {
    fn new(side: &Side) -> Buckets {
        let bandwidth = |node: usize| 1.0 / side.inverse[node];
        let fastest = (0..side.inverse.len()).map(bandwidth).fold(0.0, f32::max);
        let width = (fastest / BUCKETS_WANTED).min(BUCKET_MB_S);
        let key = |node: u32| (bandwidth(node as usize) / width) as u32;
        let mut nodes: Vec<u32> = (0..side.inverse.len() as u32).collect();
        // By bucket, then load: a sorted run is a heap.
        nodes.sort_by(|a, b| {
            let load = |node: &u32| side.load_mb[*node as usize];
            key(*a).cmp(&key(*b)).then(load(a).total_cmp(&load(b)))
        });
        let load = nodes.iter().map(|node| side.load_mb[*node as usize]).collect();
        let mut buckets = Buckets {
            top: Vec::new(),
            inverse: Vec::new(),
            start: Vec::new(),
            load,
            bucket_of: vec![0; nodes.len()],
            nodes,
        };
        let mut last = None;
        for (at, node) in buckets.nodes.iter().enumerate() {
            if last != Some(key(*node)) {
                last = Some(key(*node));
                buckets.start.push(at as u32);
                buckets.top.push(buckets.load[at]);
                buckets.inverse.push(0.0);
            }
            let bucket = buckets.start.len() - 1;
            buckets.bucket_of[*node as usize] = bucket as u32;
            let slowest = &mut buckets.inverse[bucket];
            *slowest = slowest.max(side.inverse[*node as usize]);
        }
        buckets.start.push(buckets.nodes.len() as u32);
        let padded = buckets.top.len().next_multiple_of(LANES);
        buckets.top.resize(padded, f32::INFINITY);
        buckets.inverse.resize(padded, 1.0);
        buckets
    }

    fn count(&self) -> usize {
        self.start.len() - 1
    }

    fn top_node(&self, bucket: usize) -> u32 {
        self.nodes[self.start[bucket] as usize]
    }

    /// Raises a node's load; the bucket's number if its top changed.
    fn add(&mut self, node: u32, mb: f32) -> Option<usize> {
        let bucket = self.bucket_of[node as usize] as usize;
        let (from, to) = (self.start[bucket] as usize, self.start[bucket + 1] as usize);
        let nodes = &mut self.nodes[from..to];
        let load = &mut self.load[from..to];
        let mut at = 0;
        if nodes[0] != node {
            at = nodes.iter().position(|n| *n == node).unwrap_or(0);
        }
        let (first, raised) = (at == 0, load[at] + mb);
        loop {
            let mut child = 2 * at + 1;
            if child >= load.len() {
                break;
            }
            if child + 1 < load.len() && load[child + 1] < load[child] {
                child += 1;
            }
            if load[child] >= raised {
                break;
            }
            load[at] = load[child];
            nodes[at] = nodes[child];
            at = child;
        }
        load[at] = raised;
        nodes[at] = node;
        self.top[bucket] = load[0];
        first.then_some(bucket)
    }

    /// The best node outside `avoid`, for when the best of all is excluded. Walks each bucket's heap
    /// from its top, past excluded nodes, and nowhere below one that is no better than the best
    /// found so far.
    fn best_allowed(&self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let mut best: Option<(u32, f32)> = None;
        let mut open = Vec::new();
        for bucket in 0..self.count() {
            let (from, to) = (self.start[bucket] as usize, self.start[bucket + 1] as usize);
            let inverse = self.inverse[bucket];
            open.push(from);
            while let Some(at) = open.pop() {
                let finish = (mb + self.load[at]) * inverse;
                if best.is_some_and(|(_, best)| finish >= best) {
                    continue;
                }
                if !avoid.excludes(self.nodes[at]) {
                    best = Some((self.nodes[at], finish));
                    continue;
                }
                let child = from + 2 * (at - from) + 1;
                open.extend((child..to).take(2));
            }
        }
        best
    }
}

/// How many nodes stand behind one candidate: the paper's reduction factor.
pub fn reduction(side: &Side) -> f64 {
    let live = side.inverse.iter().filter(|inverse| **inverse < NO_BANDWIDTH).count();
    let buckets = Buckets::new(side);
    let used = buckets.inverse[..buckets.count()].iter().filter(|i| **i < NO_BANDWIDTH).count();
    live as f64 / used.max(1) as f64
}

/// Scans the tops of all buckets: about 160, a few vectors each.
pub struct Tops {
    buckets: Buckets,
}

impl Search for Tops {
    fn new(side: &Side, _rack_of: &[u32], _common_mb: f32) -> Tops {
        Tops { buckets: Buckets::new(side) }
    }

    #[inline]
    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let (bucket, finish) = lowest(mb, &self.buckets.top, &self.buckets.inverse);
        if bucket < self.buckets.count() {
            let node = self.buckets.top_node(bucket);
            if !avoid.excludes(node) {
                return Some((node, finish));
            }
        }
        self.buckets.best_allowed(mb, avoid)
    }

    fn floor(&mut self, mb: f32) -> f32 {
        lowest(mb, &self.buckets.top, &self.buckets.inverse).1
    }

    #[inline]
    fn add(&mut self, node: u32, mb: f32) {
        self.buckets.add(node, mb);
    }
}

/// The paper's hull. A top of bandwidth B and load c is a point (B, c); a chunk of size s finishes
/// there after (s + c) / B, which is the slope of the line from (0, -s) to the point. The least slope
/// is a tangent's to the lower convex hull of all points, and a binary search finds where that
/// touches. When a top's load rises, its point is taken out, and the hull is made anew between its
/// neighbours only.
pub struct Hull {
    buckets: Buckets,
    /// Buckets whose tops are on the hull, slowest first.
    hull: Vec<u32>,
    /// B of each bucket: the points' first coordinate.
    x: Vec<f64>,
    scratch: Vec<u32>,
}

impl Search for Hull {
    fn new(side: &Side, _rack_of: &[u32], _common_mb: f32) -> Hull {
        let buckets = Buckets::new(side);
        let x = buckets.inverse[..buckets.count()].iter().map(|i| 1.0 / f64::from(*i)).collect();
        let mut hull = Hull { buckets, hull: Vec::new(), x, scratch: Vec::new() };
        let mut all = Vec::new();
        hull.shell(0..hull.buckets.count() as u32, &mut all);
        hull.hull = all;
        hull
    }

    fn best(&mut self, mb: f32, avoid: &Avoid<'_>) -> Option<(u32, f32)> {
        let (bucket, finish) = self.tangent(mb)?;
        let node = self.buckets.top_node(bucket);
        if !avoid.excludes(node) {
            return Some((node, finish));
        }
        self.buckets.best_allowed(mb, avoid)
    }

    fn floor(&mut self, mb: f32) -> f32 {
        self.tangent(mb).map_or(f32::INFINITY, |(_, finish)| finish)
    }

    fn add(&mut self, node: u32, mb: f32) {
        let Some(bucket) = self.buckets.add(node, mb) else { return };
        let Ok(at) = self.hull.binary_search(&(bucket as u32)) else { return };
        let from = if at == 0 { 0 } else { self.hull[at - 1] };
        let to = self.hull.get(at + 1).copied().unwrap_or(self.buckets.count() as u32 - 1);
        let mut between = std::mem::take(&mut self.scratch);
        between.clear();
        self.shell(from..to + 1, &mut between);
        let neighbours = at.saturating_sub(1)..(at + 2).min(self.hull.len());
        self.hull.splice(neighbours, between.drain(..));
        self.scratch = between;
    }
}

impl Hull {
    fn slope(&self, mb: f32, bucket: u32) -> f32 {
        (mb + self.buckets.top[bucket as usize]) * self.buckets.inverse[bucket as usize]
    }

    /// The bucket that finishes `mb` first, and when. Slopes fall along the hull up to the point that
    /// the tangent touches, and rise after it.
    fn tangent(&self, mb: f32) -> Option<(usize, f32)> {
        let (mut low, mut high) = (0, self.hull.len().checked_sub(1)?);
        while low < high {
            let middle = (low + high) / 2;
            if self.slope(mb, self.hull[middle]) > self.slope(mb, self.hull[middle + 1]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let bucket = self.hull[low];
        Some((bucket as usize, self.slope(mb, bucket)))
    }

    /// Appends the lower hull of a range of buckets to `out`, by Andrew's monotone chain.
    fn shell(&self, buckets: std::ops::Range<u32>, out: &mut Vec<u32>) {
        let point = |b: u32| (self.x[b as usize], f64::from(self.buckets.top[b as usize]));
        for bucket in buckets {
            let (x, y) = point(bucket);
            while let [.., a, b] = out[..] {
                let ((ax, ay), (bx, by)) = (point(a), point(b));
                if (bx - ax) * (y - ay) > (by - ay) * (x - ax) {
                    break;
                }
                out.pop();
            }
            out.push(bucket);
        }
    }
}
