//! What a plan is made from and what it consists of: nodes, tasks, transfers under way, and the
//! list of (task, source, destination, rate) that comes out.

use holdfast_base::{Error, Result};

/// How far the plans of the receding horizon reach.
pub const HORIZON_S: f32 = 6.0;
/// Transfers that a node of the receding horizon may have under way in each direction: what a
/// horizon holds for a node that is not slow.
pub const IN_FLIGHT: usize = 32;

/// The paper's parameters. `Default` is what the paper and Pangu use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Share of a link that foreground and recovery together may take (eq. 1).
    pub alpha: f32,
    /// Share of the nodes looked at from either end for underemployed ones (section 4.2).
    pub beta: f32,
    /// What recovery may always take of a link.
    pub b_min_mb_s: f32,
    /// Length of a slot: the period of the nodes' reports.
    pub slot_s: f32,
}

impl Default for Params {
    fn default() -> Params {
        Params { alpha: 0.75, beta: 0.05, b_min_mb_s: 30.0, slot_s: 15.0 }
    }
}

impl Params {
    pub fn check(&self) -> Result<()> {
        let refuse = |name: &str, value: f32, range: &str| {
            Err(Error::invalid(format!("plan recovery: {name} is `{value}`; use a number {range}")))
        };
        if !(self.alpha > 0.0 && self.alpha <= 1.0) {
            return refuse("alpha", self.alpha, "above 0 and up to 1");
        }
        if !(0.0..=1.0).contains(&self.beta) {
            return refuse("beta", self.beta, "from 0 to 1");
        }
        if !(self.b_min_mb_s > 0.0 && self.b_min_mb_s.is_finite()) {
            return refuse("the least bandwidth for recovery", self.b_min_mb_s, "above 0, in MB/s");
        }
        if !(self.slot_s > 0.0 && self.slot_s.is_finite()) {
            return refuse("the length of a slot", self.slot_s, "above 0, in seconds");
        }
        Ok(())
    }

    /// Eq. 1: what recovery may take of one direction of a node, with its foreground traffic.
    #[inline]
    pub fn recovery_mb_s(&self, total_mb_s: f32, foreground_mb_s: f32) -> f32 {
        (self.alpha * total_mb_s - foreground_mb_s).max(self.b_min_mb_s)
    }
}

/// What a plan may use of a node. A node that is away has 0 in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// From 0, without large gaps.
    pub rack: u32,
    /// Bandwidth for recovery by eq. 1, or less where disks or a slow node give less.
    pub out_mb_s: f32,
    pub in_mb_s: f32,
}

impl Node {
    /// Out and in.
    pub fn sides_mb_s(&self) -> [f32; 2] {
        [self.out_mb_s, self.in_mb_s]
    }
}

/// What recovery may use of a rack's uplink and downlink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rack {
    pub up_mb_s: f32,
    pub down_mb_s: f32,
}

/// Chunks to copy, by index. A repair of one chunk after several failures is one task.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    heads: Vec<Head>,
    /// Sources of each task, then its other holders.
    holders: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    mb: f32,
    first: u32,
    /// [`ANYWHERE`], or the only node that it may go to.
    target: u32,
    sources: u8,
    holders: u8,
    class: u8,
}

const ANYWHERE: u32 = u32::MAX;

/// Holders of one task: as many as the widest code has fragments.
pub const HOLDERS_MAX: usize = 255;

impl Tasks {
    /// Appends a task. `sources` are the holders that it can be read from; `others` hold the chunk,
    /// too, so that it must not go near them, but are not read (slow, draining last, or fragments
    /// of another part). Class 0 goes first, strictly; see [`class`].
    ///
    /// # Panics
    /// With more than [`HOLDERS_MAX`] holders.
    pub fn push(&mut self, mb: f32, class: u8, sources: &[u32], others: &[u32]) {
        let holders = sources.len() + others.len();
        assert!(holders <= HOLDERS_MAX, "a chunk with {holders} holders");
        let first = self.holders.len() as u32;
        self.holders.extend_from_slice(sources);
        self.holders.extend_from_slice(others);
        let (sources, holders) = (sources.len() as u8, holders as u8);
        self.heads.push(Head { mb, first, target: ANYWHERE, sources, holders, class });
    }

    /// As [`Tasks::push`], of a task that may go to `target` alone.
    ///
    /// # Panics
    /// With more than [`HOLDERS_MAX`] sources.
    pub fn push_to(&mut self, mb: f32, class: u8, sources: &[u32], target: u32) {
        self.push(mb, class, sources, &[]);
        if let Some(head) = self.heads.last_mut() {
            head.target = target;
        }
    }

    pub fn len(&self) -> usize {
        self.heads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    #[inline]
    pub fn mb(&self, task: u32) -> f32 {
        self.heads[task as usize].mb
    }

    #[inline]
    pub fn class(&self, task: u32) -> u8 {
        self.heads[task as usize].class
    }

    #[inline]
    pub fn target(&self, task: u32) -> Option<u32> {
        let target = self.heads[task as usize].target;
        (target != ANYWHERE).then_some(target)
    }

    #[inline]
    pub fn sources(&self, task: u32) -> &[u32] {
        let head = self.heads[task as usize];
        &self.holders[head.first as usize..][..usize::from(head.sources)]
    }

    #[inline]
    pub fn holders(&self, task: u32) -> &[u32] {
        let head = self.heads[task as usize];
        &self.holders[head.first as usize..][..usize::from(head.holders)]
    }
}

/// Classes of tasks, most urgent first: repairs by the copies that are left, then the rest.
pub mod class {
    /// A repair of a chunk of which `copies` are left.
    pub fn repair(copies: usize) -> u8 {
        (copies.max(1) - 1).min(usize::from(DRAIN - 1)) as u8
    }
    /// Copies away from a node that is to leave.
    pub const DRAIN: u8 = 14;
    /// Copies that even out the nodes' use of space.
    pub const REBALANCE: u8 = 15;
    pub const COUNT: usize = 16;
}

/// A transfer under way, as its destination reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flight {
    pub task: u32,
    pub source: u32,
    pub destination: u32,
    /// Bytes there.
    pub done_mb: f32,
    /// Mean since it started.
    pub speed_mb_s: f32,
    /// What its plan allows.
    pub rate_mb_s: f32,
}

/// One line of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assignment {
    pub task: u32,
    pub source: u32,
    pub destination: u32,
    /// Bytes still to copy when the slot starts.
    pub mb: f32,
    pub rate_mb_s: f32,
    pub origin: Origin,
}

/// What an assignment was before this plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    New,
    /// Goes on as before, with a new rate.
    Kept,
    /// Goes on with another source.
    Moved,
}
