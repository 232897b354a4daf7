//! The detector of slow disks and links: a node that had work for longer than a moment and moved
//! far less than it was given can do no more than it showed. A core; feeds the planner.

use super::field::Field;
use super::{Bound, MB};
use crate::driver::replicas::Terms;
use holdfast_base::ids::{ChunkId, NodeId, StoreId};
use holdfast_client::wire::peer::Report;
use std::collections::BTreeMap;

/// Below this share of what it was given, a node is slow; foreground that changes and partners
/// that are slow themselves explain the rest.
const SLOW_SHARE: f32 = 0.4;
/// For so many plans in a row: three seconds.
const SLOW_PLANS: u32 = 6;
/// What a slow node is given: a little more than it showed, so that it can show more.
const ROOM: f32 = 1.2;
/// Nobody is given less, or it could never show anything.
const LEAST_MB_S: f32 = 0.1;

/// One direction of one node.
#[derive(Clone, Copy, Debug, Default)]
struct Ability {
    /// What it was given in the last plan, if that was more than it could do until the next one.
    given_mb_s: Option<f32>,
    slow_plans: u32,
    /// It can do so much.
    limit_mb_s: Option<f32>,
}

impl Ability {
    /// Takes what was moved since the last plan.
    fn showed(&mut self, mb_s: f32) {
        let Some(given) = self.given_mb_s.take() else { return };
        if mb_s < given * SLOW_SHARE {
            self.slow_plans += 1;
            if self.slow_plans >= SLOW_PLANS {
                self.limit_mb_s = Some((mb_s * ROOM).max(LEAST_MB_S));
                self.slow_plans = 0;
            }
        } else {
            self.slow_plans = 0;
            // It does what it is given: more is tried, until eq. 1 is less.
            self.limit_mb_s = self.limit_mb_s.map(|limit| limit * ROOM);
        }
    }
}

/// Out and in of every node.
#[derive(Debug, Default)]
pub struct Abilities {
    nodes: BTreeMap<NodeId, [Ability; 2]>,
}

impl Abilities {
    /// What recovery may take of a node, out and in, in MB/s: eq. 1, or what it can do.
    pub fn bandwidth(&self, node: NodeId, report: &Report, terms: &Terms) -> (f32, f32) {
        let link = report.link_bytes_per_second;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let one = |side: usize, foreground| {
            let allowed = terms.allow(link, foreground) as f32 / MB;
            known[side].limit_mb_s.map_or(allowed, |limit: f32| limit.min(allowed))
        };
        (one(0, report.foreground.out), one(1, report.foreground.into))
    }

    /// Notes what a plan gave, after taking what nodes showed since the one before.
    pub fn planned(&mut self, field: &Field<'_>, bound: &BTreeMap<(ChunkId, StoreId), Bound>) {
        let load = field.load(bound.values());
        for (number, (site, node)) in field.sites().enumerate() {
            let sides = self.nodes.entry(site.node).or_default();
            for (side, given) in [node.out_mb_s, node.in_mb_s].into_iter().enumerate() {
                // A second's work: the reports' mean is of one.
                let busy = given > 0.0 && load[side][number].1 >= given;
                sides[side].given_mb_s = busy.then_some(given);
            }
        }
    }

    pub fn heard(&mut self, node: NodeId, report: &Report) {
        if let Some([out, into]) = self.nodes.get_mut(&node) {
            out.showed(report.recovery.out as f32 / MB);
            into.showed(report.recovery.into as f32 / MB);
        }
    }

    /// What a node was found to be able to do, if that is less than its link.
    pub fn limit(&self, node: NodeId) -> Option<f32> {
        let sides = self.nodes.get(&node)?;
        sides.iter().filter_map(|side| side.limit_mb_s).reduce(f32::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_far_less_than_it_is_given_for_seconds_is_slow_until_it_shows_more() {
        let mut ability = Ability::default();
        let plan = |ability: &mut Ability, showed: f32| {
            ability.given_mb_s = Some(ability.limit_mb_s.unwrap_or(90.0).min(90.0));
            ability.showed(showed);
            ability.limit_mb_s
        };
        // One second of trouble is none.
        assert_eq!(plan(&mut ability, 10.0), None);
        assert_eq!(plan(&mut ability, 80.0), None);
        for _ in 0..SLOW_PLANS - 1 {
            assert_eq!(plan(&mut ability, 10.0), None);
        }
        assert_eq!(plan(&mut ability, 10.0), Some(12.0));
        // It was a passing trouble: more is tried with each plan.
        for _ in 0..12 {
            let able = ability.limit_mb_s.unwrap_or(0.0);
            plan(&mut ability, able.min(90.0));
        }
        assert!(ability.limit_mb_s.unwrap() > 90.0);
        // Idle nodes show nothing.
        ability.given_mb_s = None;
        ability.showed(0.0);
        assert_eq!(ability.slow_plans, 0);
    }
}
