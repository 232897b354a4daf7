//! Any interleaving, drawn from a seed: riders that come, ask fast, slowly or never, leave and go
//! on elsewhere; writes; scans, images and snapshots that fail; time that passes. The world looks at
//! every step; in the end everybody who goes on asking must get through.

use crate::view::View;
use crate::world::{Rider, World};
use holdfast_base::ids::Index;
use holdfast_base::random::{Random, mix};
use holdfast_env::trial::Trial;
use holdfast_ride::carousel::{Limits, RiderId, Ticket};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: std::ops::Range<u64> = 0..1000;
const STEPS: usize = 400;
const MS: u64 = 1_000_000;

/// Everything that must happen in some schedule, or the test shows nothing of it.
const SOMETIMES: &[&str] = &[
    "a private reader waited for its turn",
    "a ride went on where another one had ended",
    "a rider joined a spin",
    "a rider took what it missed from the image",
    "a rider waited for a spin",
    "a rider was moved",
    "a snapshot was older than a rider wants",
    "a window was full",
    "an image could not be read, and the snapshot was",
    "an image was given up",
];

/// How a rider asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// It always has a few requests outstanding.
    Fast,
    /// One request, now and then.
    Slow,
    Never,
}

struct Schedule {
    world: World,
    random: Random,
    paces: BTreeMap<RiderId, Pace>,
    /// Where riders that left would go on: index, head and row.
    tokens: Vec<(u64, usize, Vec<u8>)>,
    riders: u64,
    /// One answer in so many is a failure; 0 for none.
    failures: u64,
    /// So many of a hundred steps are answers, as long as there are some to give.
    answers: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        let mut random = Random::new(mix(seed));
        let view = View {
            seed,
            heads: 1 + random.below(3) as usize,
            slabs: [2, 6, 12][random.below(3) as usize],
        };
        let usual = Limits::usual();
        let idle_ns = [100 * MS, 60_000 * MS][random.below(2) as usize];
        let limits = Limits {
            spins_max: 1 + random.below(2) as usize,
            dedicated_max: 1 + random.below(2) as usize,
            private_max: [1, 2, usual.private_max][random.below(3) as usize],
            allowance_ns: [0, 1, 20 * MS][random.below(3) as usize],
            allowance_percent: [0, 2, 50][random.below(3) as usize],
            idle_ns,
            waited_ns: [10 * MS, 100 * MS, idle_ns][random.below(3) as usize],
            ..usual
        };
        let failures = [0, 60, 12][random.below(3) as usize];
        let answers = [10, 50][random.below(2) as usize];
        let mut world = World::new(view, limits);
        world.is_late = random.below(4) == 0;
        let (paces, tokens) = (BTreeMap::new(), Vec::new());
        Schedule { world, random, paces, tokens, riders: 0, failures, answers }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn step(&mut self) {
        match self.random.below(100) {
            drawn if drawn < self.answers && !self.world.tasks.is_empty() => {
                let task = self.below(self.world.tasks.len());
                // Images are read seldom, while their spin lasts.
                let rate = if self.world.reads_image(task) { 6 } else { self.failures };
                let fails = self.failures > 0 && self.random.below(rate) == 0;
                self.world.answer(task, fails);
            }
            0..75 => self.somebody_asks(),
            75..81 => self.somebody_comes(),
            81..83 => self.somebody_leaves(),
            83..86 => self.world.index += 1,
            86..88 => self.an_image(),
            88 => self.a_trim(),
            89..98 => {
                let ns = [1, 1000, MS, 10 * MS][self.below(4)];
                self.world.pass(ns);
            }
            _ if self.random.below(10) == 0 => self.world.pass(70_000 * MS),
            _ => self.world.pass(120 * MS),
        }
    }

    fn somebody_asks(&mut self) {
        let streams = self.world.streams();
        if streams.is_empty() {
            return;
        }
        let (rider, head) = streams[self.below(streams.len())];
        let asked = self.world.riders[&rider].asked[&head];
        let asks = match self.paces[&rider] {
            Pace::Fast => asked < 3,
            Pace::Slow => asked == 0 && self.random.below(6) == 0,
            Pace::Never => false,
        };
        if asks {
            self.world.pull(rider.0, head);
        }
    }

    fn somebody_comes(&mut self) {
        if self.world.streams().len() > 12 {
            return;
        }
        let heads = self.world.view.heads;
        let first = self.below(heads);
        let mut wanted = first..first + 1 + self.below(heads - first);
        let at_least = Index(self.random.below(self.world.index + 1));
        let ticket = match self.random.below(10) {
            0 => Ticket::Dedicated { at_least },
            1 => Ticket::At { index: at_least, from: None },
            2..4 if !self.tokens.is_empty() => {
                let at = self.below(self.tokens.len());
                let (index, head, row) = self.tokens[at].clone();
                wanted = head..head + 1 + self.below(heads - head);
                Ticket::At { index: Index(index), from: Some(row) }
            }
            2..6 => Ticket::Shared { at_least: Index(self.world.index) },
            _ => Ticket::Shared { at_least },
        };
        self.riders += 1;
        let pace = match self.random.below(6) {
            0 => Pace::Never,
            1 | 2 => Pace::Slow,
            _ => Pace::Fast,
        };
        self.paces.insert(RiderId(self.riders), pace);
        self.world.join(self.riders, wanted, ticket);
    }

    fn somebody_leaves(&mut self) {
        let streams = self.world.streams();
        if streams.is_empty() {
            return;
        }
        let (rider, head) = streams[self.below(streams.len())];
        if let Some((index, row)) = self.world.token(rider, head) {
            self.tokens.push((index, head, row));
        }
        self.world.leave(rider.0);
    }

    /// An image is made, was made earlier, or is not to be read any more.
    fn an_image(&mut self) {
        let index = self.world.index;
        let world = &mut self.world;
        let is_there = world.images.contains(&index)
            || world.for_images.contains(&index)
            || world.is_spooled(index);
        match self.random.below(4) {
            0 | 1 if !is_there => world.image_due(),
            2 if !is_there => world.image_found(),
            3 => {
                let whole = world.images.difference(&world.going).copied().collect::<Vec<_>>();
                if !whole.is_empty() {
                    let at = self.below(whole.len());
                    self.world.image_retired(whole[at]);
                }
            }
            _ => {}
        }
    }

    /// The log begins at a later entry: images of earlier ones go, whoever may still want to go on with them.
    fn a_trim(&mut self) {
        let world = &self.world;
        let whole = world.images.difference(&world.going).copied().collect::<Vec<_>>();
        let keeps = self.below(whole.len() + 1);
        for index in &whole[..keeps.min(whole.len().saturating_sub(1))] {
            self.world.image_retired(*index);
        }
    }
}

/// Came for an index that there is nothing of any more.
fn is_cut(rider: &Rider) -> bool {
    matches!(&rider.ended, Some(Err(e)) if e.message.contains("neither an image"))
}

/// What happened, which limits were crossed, and how many rides went well, and were cut.
type Ran = (BTreeSet<&'static str>, Vec<&'static str>, (usize, usize));

fn run(seed: u64) -> Ran {
    let entered = Trial::drawn(seed).enter();
    let mut schedule = Schedule::new(seed);
    for _ in 0..STEPS {
        schedule.step();
    }
    let ended = schedule.world.riders.values();
    let well = ended.filter(|rider| rider.ended == Some(Ok(()))).count();
    schedule.world.finish();
    let cut = schedule.world.riders.values().filter(|rider| is_cut(rider)).count();
    let crossed = entered.knobs().into_iter().filter(|(_, knob)| knob.crossed);
    let crossed = crossed.map(|(name, _)| name).collect();
    (entered.happened().into_keys().collect(), crossed, (well, cut))
}

#[test]
fn every_rider_gets_its_slabs_once_whatever_happens_beside_it() {
    let (mut happened, mut crossed) = (BTreeSet::new(), BTreeSet::new());
    let (mut well, mut cut) = (0, 0);
    for seed in SEEDS {
        let result = std::panic::catch_unwind(|| run(seed));
        let (seen, knobs, (rides, ends)) = result.unwrap_or_else(|panic| {
            eprintln!("seed {seed} fails");
            std::panic::resume_unwind(panic)
        });
        happened.extend(seen);
        crossed.extend(knobs);
        (well, cut) = (well + rides, cut + ends);
    }
    for what in SOMETIMES {
        assert!(happened.contains(what), "it never happened that {what}");
    }
    assert_eq!(crossed, BTreeSet::from(["ride.window-bytes"]));
    assert!(happened.contains("all turns of private readers were given"));
    assert!(well > 1000, "{well} rides went well while things happened");
    assert!(cut > 1000, "{cut} were cut by trims");
}
