//! What goes wrong in a history, and when it is over.

use super::histories::Plan;
use super::world::World;
use crate::ids::{RegionId, StreamId};
use crate::tablet::Mode;
use holdfast_base::random::Random;
use holdfast_env::sometimes;
use std::collections::BTreeMap;

/// What went wrong so far.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub count: usize,
    /// Of each stream whose home lost its log: how far others held it then.
    pub lost_behind: BTreeMap<StreamId, u64>,
}

const SECOND: u64 = 1_000_000;

/// A region starts again.
const START: u64 = 1;
/// A way is open again.
const OPEN: u64 = 2;
/// An operator says that a region is lost.
const SEAL: u64 = 3;
/// How often he says it again.
const SEALS: u64 = 3;

fn start(at: usize) -> u64 {
    START << 16 | at as u64
}

fn open(from: usize, to: usize) -> u64 {
    OPEN << 16 | (from as u64) << 8 | to as u64
}

fn seal(by: usize, lost: usize) -> u64 {
    SEAL << 16 | (by as u64) << 8 | lost as u64
}

impl Faults {
    /// Ends what [`Faults::draw`] began.
    pub fn over(&mut self, world: &mut World, what: u64) {
        let (from, to) = ((what >> 8 & 0xff) as usize, (what & 0xff) as usize);
        match what >> 16 {
            START => world.start(to),
            SEAL => {
                // What nobody else has yet may become a branch, of every stream that it leads.
                for stream in (0..world.regions()).map(|at| StreamId(at as u8)) {
                    self.may_lose(world, stream, to);
                }
                // Who is heard there is not sealed, and where a region is not there nobody hears it.
                let _ = world.seal(from, to);
            }
            _ => world.cut(from, to, false),
        }
    }

    /// Something goes wrong; the answer is when what of it is over.
    pub fn draw(&mut self, world: &mut World, random: &mut Random, plan: Plan) -> Vec<(u64, u64)> {
        let mut over = self.draw_one(world, random, plan);
        // An operator may call a region lost that is away, or that he believes to be.
        if plan.seals && !over.is_empty() && random.below(2) == 0 {
            let lost = (over[over.len() - 1].1 & 0xff) as usize;
            let by =
                (lost + 1 + random.below(world.regions() as u64 - 1) as usize) % world.regions();
            let longest = over.iter().map(|(length, _)| *length).max().unwrap_or(1);
            let at = random.below(longest);
            over.extend((0..SEALS).map(|again| (at + again * SECOND, seal(by, lost))));
        }
        over
    }

    fn draw_one(&mut self, world: &mut World, random: &mut Random, plan: Plan) -> Vec<(u64, u64)> {
        self.count += 1;
        let regions = world.regions() as u64;
        let at = random.below(regions) as usize;
        let other = (at + 1 + random.below(regions - 1) as usize) % world.regions();
        let length = match plan.storm {
            true => SECOND / 20 + random.below(SECOND),
            false => SECOND / 5 + random.below(8 * SECOND),
        };
        match random.below(if plan.storm { 13 } else { 11 }) {
            10.. if plan.storm => {
                // A process that is back at once: what it only remembered is gone.
                world.kill(at);
                vec![(1 + random.below(SECOND / 20), start(at))]
            }
            10.. => {
                // Away for longer than anybody waits.
                world.kill(at);
                vec![(10 * SECOND + random.below(15 * SECOND), start(at))]
            }
            0..3 => {
                world.kill(at);
                vec![(length, start(at))]
            }
            3 | 4 => {
                world.cut(at, other, true);
                vec![(length, open(at, other))]
            }
            5..8 => {
                let mut over = Vec::new();
                for to in (0..world.regions()).filter(|to| *to != at) {
                    world.cut(at, to, true);
                    world.cut(to, at, true);
                    over.extend([(length, open(at, to)), (length, open(to, at))]);
                }
                over
            }
            8 => {
                for at in 0..world.regions() {
                    world.kill(at);
                }
                (0..world.regions()).map(|at| (random.below(length), start(at))).collect()
            }
            _ if !plan.seals
                && may_lose_a_log(world, plan.mode)
                && self.is_made_good(world, plan.mode) =>
            {
                self.lose(world, random, at);
                vec![(length / 2, start(at))]
            }
            _ => Vec::new(),
        }
    }

    /// Whether the log that was lost last has everything again. Of a timeline's stream there may be
    /// two copies, and what a region decided on both is then nowhere, if both are lost.
    fn is_made_good(&self, world: &World, mode: Mode) -> bool {
        let mut tails = world.running().map(|region| {
            region.tablet().streams().map(|stream| stream.tail()).collect::<Vec<_>>()
        });
        let first = tails.next();
        mode == Mode::Strong
            || self.lost_behind.is_empty()
            || tails.all(|others| Some(&others) == first.as_ref())
    }

    /// A region's log is erased, or is an old one when the region comes back.
    fn lose(&mut self, world: &mut World, random: &mut Random, at: usize) {
        self.may_lose(world, StreamId::of(RegionId(at as u8)), at);
        let all = world.entries(at) as u64;
        match random.below(2) {
            0 => {
                sometimes!("a log was erased");
                world.erase(at, 0);
            }
            _ => {
                sometimes!("an old log came back");
                world.erase(at, random.below(all.max(1)) as usize);
            }
        }
    }
}

impl Faults {
    /// What a region alone has of a stream may be lost with it.
    fn may_lose(&mut self, world: &World, stream: StreamId, at: usize) {
        let others = (0..world.regions()).filter(|other| *other != at);
        let held = others
            .filter_map(|other| world.region(other))
            .map(|region| region.tablet().stream(stream).tail().number)
            .max()
            .unwrap_or(0);
        let known = self.lost_behind.entry(stream).or_insert(held);
        *known = held.min(*known);
    }
}

/// Whether every log is counted in every stream: one log may be lost, not two.
fn may_lose_a_log(world: &World, mode: Mode) -> bool {
    let all_run = world.running().count() == world.regions();
    let counted = |at: usize| {
        let (region, log) = (RegionId(at as u8), world.log(at));
        world.running().all(|other| {
            let mut streams = other.tablet().streams();
            match mode {
                Mode::Strong => streams.all(|stream| {
                    stream.counts(region, log) && stream.kept() >= stream.members_since()
                }),
                Mode::Timeline => world.region(at).is_some_and(|region| {
                    region.leads(StreamId(at as u8)) && region.tablet().log() == log
                }),
            }
        })
    };
    all_run && (0..world.regions()).all(counted)
}
