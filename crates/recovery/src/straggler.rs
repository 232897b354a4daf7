//! Transfers that did not finish in their slot (section 4.4): who they are, what they take of the
//! next slot, and which of them are better started elsewhere.

use crate::model::{Flight, Tasks};
use crate::search::{NO_BANDWIDTH, Side};
use holdfast_env::planted;
use holdfast_env::trial::Knob;

/// What becomes of a transfer under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Expected to finish before the slot starts: keeps its plan, and is in none of the new one.
    Finishes,
    /// Keeps source and destination, at a new rate.
    Kept,
    /// Keeps its destination and what is there, and goes on from another source.
    Moved,
    /// Keeps what is there and waits, because no source has room in this slot.
    Parked,
    /// Starts again as a new task; what is there is given up.
    Restarted,
}

/// Flights with their fates, and how much each has left when the slot starts.
#[derive(Debug, Default)]
pub struct Stragglers {
    pub fates: Vec<Fate>,
    pub left_mb: Vec<f32>,
}

impl Stragglers {
    /// Extrapolates each transfer with its mean speed so far to the start of the slot. One that
    /// will not be done counts with all that it has left now: a rate in proportion to the little
    /// that is predicted to be left is far too low when the prediction is a little wrong, and the
    /// transfer then takes slots to end.
    pub fn predict(flights: &[Flight], tasks: &Tasks, until_slot_s: f32) -> Stragglers {
        let left = |flight: &Flight| {
            let left = (tasks.mb(flight.task) - flight.done_mb).max(0.0);
            if flight.speed_mb_s * until_slot_s < left { left } else { 0.0 }
        };
        let left_mb: Vec<f32> = flights.iter().map(left).collect();
        let fate = |left: &f32| if *left > 0.0 { Fate::Kept } else { Fate::Finishes };
        Stragglers { fates: left_mb.iter().map(fate).collect(), left_mb }
    }

    pub fn total_mb(&self) -> f64 {
        self.left_mb.iter().map(|mb| f64::from(*mb)).sum()
    }

    /// Counts what is left into both sides.
    pub fn charge(&self, flights: &[Flight], out: &mut Side, into: &mut Side) {
        for (flight, left) in flights.iter().zip(&self.left_mb) {
            out.load_mb[flight.source as usize] += left;
            into.load_mb[flight.destination as usize] += left;
        }
    }

    /// Relieves each node that would need longer than `limit_s` of its least finished transfers.
    /// Destinations first: what starts again no longer loads its source either, so that fewer
    /// have to move. A transfer taken from both of its ends starts again.
    ///
    /// What starts again loses what is there. So a node that is not away always keeps its most
    /// finished transfer, however long that takes: the most finished of all is then taken from
    /// neither of its ends, and ends. `resumes`: whether a transfer that changes its source goes on
    /// where it was. If not, nothing is given up that is half there: that would cost more than it
    /// relieves. (The paper does not weigh it.)
    pub fn evict(
        &mut self,
        flights: &[Flight],
        out: &mut Side,
        into: &mut Side,
        limit_s: f32,
        resumes: bool,
    ) {
        for restart in [true, false] {
            let node = |at: u32| {
                let flight = &flights[at as usize];
                if restart { flight.destination } else { flight.source }
            };
            let mut kept: Vec<u32> = (0..flights.len() as u32)
                .filter(|at| self.fates[*at as usize] == Fate::Kept)
                .filter(|at| {
                    let side = if restart { &*into } else { &*out };
                    side.finish_s(node(*at), 0.0) > limit_s
                })
                .collect();
            let mut here = vec![0u32; out.load_mb.len()];
            kept.iter().for_each(|at| here[node(*at) as usize] += 1);
            let done = |at: &u32| flights[*at as usize].done_mb;
            kept.sort_by(|a, b| done(a).total_cmp(&done(b)).then(a.cmp(b)));
            for at in kept {
                let (flight, left) = (&flights[at as usize], self.left_mb[at as usize]);
                let is_last = here[node(at) as usize] == 1
                    && (restart || !resumes)
                    && !planted!("recovery.only-flight-evicted");
                let is_half_there = flight.done_mb >= left
                    && !resumes
                    && !planted!("recovery.progress-not-weighed");
                let side = if restart { &*into } else { &*out };
                let is_away = side.inverse[node(at) as usize] >= NO_BANDWIDTH;
                let stays = (is_last || is_half_there) && !is_away;
                if stays || side.finish_s(node(at), 0.0) <= limit_s {
                    continue;
                }
                here[node(at) as usize] -= 1;
                out.load_mb[flight.source as usize] -= left;
                if restart {
                    into.load_mb[flight.destination as usize] -= left;
                }
                self.fates[at as usize] = if restart { Fate::Restarted } else { Fate::Moved };
            }
        }
    }

    /// Gives those without a source the one that finishes first, or parks them. Gives the new
    /// source of each flight; its old one where it did not change.
    pub fn move_sources(
        &mut self,
        flights: &[Flight],
        tasks: &Tasks,
        out: &mut Side,
        into: &mut Side,
        slot_s: f32,
    ) -> Vec<u32> {
        let mut sources: Vec<u32> = flights.iter().map(|flight| flight.source).collect();
        for (at, flight) in flights.iter().enumerate() {
            if self.fates[at] != Fate::Moved {
                continue;
            }
            let left = self.left_mb[at];
            let finish = |node: &u32| out.finish_s(*node, left);
            let holders = tasks.sources(flight.task).iter().copied();
            let best = holders.min_by(|a, b| finish(a).total_cmp(&finish(b)));
            match best.filter(|node| finish(node) <= slot_s) {
                Some(node) => {
                    out.load_mb[node as usize] += left;
                    sources[at] = node;
                    if node == flight.source {
                        self.fates[at] = Fate::Kept;
                    }
                }
                None => {
                    into.load_mb[flight.destination as usize] -= left;
                    self.fates[at] = Fate::Parked;
                }
            }
        }
        sources
    }
}

/// Shortest limit of elastic eviction.
static ELASTIC_MS_MIN: Knob = Knob::new("recovery.elastic-ms", 3000, &[500, 1000, 20_000]);
/// Room that it leaves over a perfectly even end.
const ELASTIC_ROOM: f32 = 1.3;

/// Elastic eviction: with little left to copy, a node that needs the whole slot for what it has
/// would end long after all others; it gives up what it cannot finish along with them.
pub fn elastic_limit_s(remaining_mb: f64, capacity_mb_s: f64, slot_s: f32) -> f32 {
    let even = (remaining_mb / capacity_mb_s.max(1e-9)) as f32;
    let least = ELASTIC_MS_MIN.get() as f32 / 1000.0;
    if ELASTIC_ROOM * even < least {
        ELASTIC_MS_MIN.cross();
    }
    (ELASTIC_ROOM * even).clamp(least.min(slot_s), slot_s)
}
