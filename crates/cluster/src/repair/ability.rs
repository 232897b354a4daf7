//! The detector of slow disks and links: a node, or one of its disks, that had work for longer than
//! a moment and moved far less than it was given can do no more than it showed. A core; feeds the
//! planner.

use super::field::{Bandwidth, DiskBandwidth, Field};
use super::terms::Terms;
use super::{BLOCK_BYTES_MIN, Bound, MB};
use holdfast_base::ids::{NodeId, StoreId};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_wire::peer::{Directions, DiskLoad, Report};
use std::collections::BTreeMap;

/// Below this share of what it was given, a node is slow; foreground that changes and partners
/// that are slow themselves explain the rest.
const SLOW_SHARE: f32 = 0.4;
/// Above this share of its limit it may be able to do more.
const WELL_SHARE: f32 = 0.7;
/// For so many plans in a row: three seconds.
static SLOW_PLANS: Knob = Knob::new("repair.slow-plans", 6, &[1, 2]);
/// A disk that is slow is at it for this part of the time at least.
const BUSY_PER_MILLE: u32 = 500;
/// What a slow node is given: a little more than it showed, so that it can show more.
const ROOM: f32 = 1.2;
/// And then, each time that it does: what was a moment's trouble is over soon.
const MORE: f32 = 1.5;
/// And with each plan that gives it nothing to show: what was found of it is forgotten within a
/// minute, so that it is tried. Who is still slow is found to be so again.
const FADE: f32 = 1.1;
/// Nobody is given less, in bytes a second, or it could never show anything: copies come in blocks,
/// and reports are the mean of a second.
static LEAST: Knob = Knob::new("repair.least-rate", 100_000, &[BLOCK_BYTES_MIN, 80_000]);
const _: () = assert!(LEAST.usual() > BLOCK_BYTES_MIN);

/// One direction of a node or of a disk.
#[derive(Clone, Copy, Debug, Default)]
struct Ability {
    /// What it was given in the last plan, if that was more than it could do until the next one.
    given_mb_s: Option<f32>,
    /// It was given nothing at all.
    is_idle: bool,
    slow_plans: u32,
    /// It can do so much.
    limit_mb_s: Option<f32>,
}

impl Ability {
    /// Takes what was moved since the last plan, on a link of this size.
    fn showed(&mut self, mb_s: f32, link_mb_s: f32) {
        let Some(given) = self.given_mb_s.take() else {
            self.slow_plans = 0;
            if self.is_idle && !planted!("repair.slow-for-ever") {
                self.limit_mb_s = self.limit_mb_s.map(|limit| limit * FADE);
                self.forget(link_mb_s);
            }
            return;
        };
        if mb_s < given * SLOW_SHARE {
            self.slow_plans += 1;
            if self.slow_plans >= SLOW_PLANS.get() as u32 {
                SLOW_PLANS.cross();
                let least = LEAST.get() as f32 / MB;
                if mb_s * ROOM < least {
                    LEAST.cross();
                }
                self.limit_mb_s = Some((mb_s * ROOM).max(least));
                self.slow_plans = 0;
            }
        } else {
            self.slow_plans = 0;
            // It does about what it may: more is tried, until eq. 1 is less.
            let tried = |limit: f32| if mb_s < limit * WELL_SHARE { limit } else { limit * MORE };
            self.limit_mb_s = self.limit_mb_s.map(tried);
            self.forget(link_mb_s);
        }
    }

    /// Who can do what its link carries is not limited.
    fn forget(&mut self, link_mb_s: f32) {
        self.limit_mb_s = self.limit_mb_s.filter(|limit| *limit < link_mb_s);
    }
}

/// The lower limit of two directions.
fn least(sides: &[Ability; 2]) -> Option<f32> {
    sides.iter().filter_map(|side| side.limit_mb_s).reduce(f32::min)
}

/// Out and in of every node, and of every disk. A node with several disks is slow when all of them
/// that had work are; else it is a disk.
#[derive(Debug, Default)]
pub struct Abilities {
    nodes: BTreeMap<NodeId, [Ability; 2]>,
    disks: BTreeMap<StoreId, [Ability; 2]>,
}

impl Abilities {
    /// What recovery may take of a node and of its disks: eq. 1, or what they can do.
    pub fn bandwidth(&self, node: NodeId, report: &Report, terms: &Terms) -> Bandwidth {
        let link = report.link_bytes_per_second;
        let known = self.nodes.get(&node).copied().unwrap_or_default();
        let foreground = [report.foreground.out, report.foreground.into];
        let link_mb_s = [0, 1].map(|side| {
            let allowed = terms.allow(link, foreground[side]) as f32 / MB;
            known[side].limit_mb_s.map_or(allowed, |limit: f32| limit.min(allowed))
        });
        let terms = terms.without_rate();
        let disk = |disk: &DiskLoad| {
            let known = self.disks.get(&disk.store).copied().unwrap_or_default();
            let sides_mb_s = known.map(|side| side.limit_mb_s.unwrap_or(f32::INFINITY));
            let sum_mb_s = match disk.bytes_per_second {
                0 => f32::INFINITY,
                most => terms.allow(most, disk.foreground) as f32 / MB,
            };
            let limits = sum_mb_s < link_mb_s[0] + link_mb_s[1]
                || sides_mb_s.iter().zip(link_mb_s).any(|(disk, link)| *disk < link);
            limits.then_some((disk.store, DiskBandwidth { sides_mb_s, sum_mb_s }))
        };
        Bandwidth { link_mb_s, disks: report.disks.iter().filter_map(disk).collect() }
    }

    /// Notes what a plan gave. `bound` are copies between nodes that both answer: who waits for one
    /// that does not is not slow.
    pub fn planned(&mut self, field: &Field<'_>, bound: &[&Bound]) {
        let load = field.load(bound.iter().copied());
        let given_to = |port: usize, side: usize| field.nodes[port].sides_mb_s()[side];
        // A second's work: the reports' mean is of one.
        let busy = |given: f32, mb: f32| (given > 0.0 && mb >= given).then_some(given);
        for (site, ports) in field.ports_by_site() {
            let sides = self.nodes.entry(site.node).or_default();
            for (side, ability) in sides.iter_mut().enumerate() {
                let given = ports.clone().map(|port| given_to(port, side)).sum();
                ability.is_idle = ports.clone().all(|port| load[side][port].0 == 0);
                ability.given_mb_s =
                    busy(given, ports.clone().map(|port| load[side][port].1).sum());
            }
        }
        for ability in self.disks.values_mut().flatten() {
            (ability.given_mb_s, ability.is_idle) = (None, true);
        }
        let mut work: BTreeMap<(StoreId, usize), f32> = BTreeMap::new();
        for bound in bound {
            *work.entry((bound.source, 0)).or_default() += bound.mb_left();
            *work.entry((bound.target, 1)).or_default() += bound.mb_left();
        }
        for ((store, side), mb) in work {
            let Some(port) = field.number_of_store(store).map(|port| port as usize) else {
                continue;
            };
            let all_mb = load[side][port].1;
            let given = busy(given_to(port, side), all_mb).map(|given| given * mb / all_mb);
            let ability = &mut self.disks.entry(store).or_default()[side];
            (ability.given_mb_s, ability.is_idle) = (given, false);
        }
    }

    /// Takes what a node and its disks showed since the last plan.
    pub fn heard(&mut self, node: NodeId, report: &Report) {
        let Some(sides) = self.nodes.get_mut(&node) else { return };
        // A single one is its node.
        let disks = if report.disks.len() > 1 { &report.disks[..] } else { &[] };
        let link_mb_s = report.link_bytes_per_second as f32 / MB;
        for (side, of_node) in sides.iter_mut().enumerate() {
            let shown = |moved: &Directions| [moved.out, moved.into][side] as f32 / MB;
            let (mut judged, mut slow) = (0, 0);
            for disk in disks {
                let Some(sides) = self.disks.get_mut(&disk.store) else { continue };
                let Some(given) = sides[side].given_mb_s else { continue };
                let does_little = shown(&disk.recovery) < given * SLOW_SHARE;
                if does_little && disk.busy_per_mille < BUSY_PER_MILLE {
                    // It waits for others.
                    sides[side].given_mb_s = None;
                    continue;
                }
                judged += 1;
                slow += usize::from(does_little);
            }
            let all_are = judged > 1 && slow == judged;
            if slow > 0 && !all_are {
                of_node.given_mb_s = None;
            }
            of_node.showed(shown(&report.recovery), link_mb_s);
            for disk in disks {
                let Some(sides) = self.disks.get_mut(&disk.store) else { continue };
                if all_are {
                    sides[side].given_mb_s = None;
                }
                sides[side].showed(shown(&disk.recovery), link_mb_s);
            }
        }
    }

    /// What a node was found to be able to do, if that is less than its link.
    pub fn limit(&self, node: NodeId) -> Option<f32> {
        least(self.nodes.get(&node)?)
    }

    /// The same of a disk.
    pub fn disk_limit(&self, store: StoreId) -> Option<f32> {
        least(self.disks.get(&store)?)
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
            ability.showed(showed, 120.0);
            ability.limit_mb_s
        };
        // One second of trouble is none.
        assert_eq!(plan(&mut ability, 10.0), None);
        assert_eq!(plan(&mut ability, 80.0), None);
        for _ in 1..SLOW_PLANS.usual() {
            assert_eq!(plan(&mut ability, 10.0), None);
        }
        assert_eq!(plan(&mut ability, 10.0), Some(12.0));
        // It was a passing trouble: more is tried with each plan.
        for _ in 0..12 {
            let able = ability.limit_mb_s.unwrap_or(90.0);
            plan(&mut ability, able.min(90.0));
        }
        assert_eq!(ability.limit_mb_s, None);
        // Idle nodes show nothing.
        ability.given_mb_s = None;
        ability.showed(0.0, 120.0);
        assert_eq!(ability.slow_plans, 0);
    }

    /// One that had nothing to do, because it was taken for slow, was so for ever.
    #[test]
    fn what_was_found_of_a_node_without_work_is_forgotten_within_a_minute() {
        let limit_mb_s = Some(0.1);
        let mut ability = Ability { limit_mb_s, is_idle: true, ..Ability::default() };
        let mut plans = 0;
        while ability.limit_mb_s.is_some() {
            ability.showed(0.0, 120.0);
            plans += 1;
            assert!(plans < 120, "{ability:?}");
        }
        assert!(plans > 40, "not at once: after {plans} plans");
    }
}
