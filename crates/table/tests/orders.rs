//! An operator says once that a region is lost, and is told that it is written down. Whatever starts anew from then
//! on, at any moment, the order is carried out: processes end at drawn times between any two steps. And two regions of
//! five that are lost at once.

use holdfast_base::random::Random;
use holdfast_env::trial::Trial;
use holdfast_table::entry::Asked;
use holdfast_table::ids::{RegionId, StreamId};
use holdfast_table::message::{Answer, Expect, Op, Request};
use holdfast_table::region::{Sealing, Settings};
use holdfast_table::sim::distance::Distance;
use holdfast_table::sim::world::{Costs, Guests, World};
use holdfast_table::tablet::{Form, Mode};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000;
const MS: u64 = 1000;
/// The region that is lost.
const LOST: usize = 2;
const SEEDS: u64 = 40;

/// Requests under way, and what came of them.
#[derive(Default)]
struct Clients {
    sequence: u64,
    answers: BTreeMap<u64, Answer>,
}

impl Clients {
    /// Writes a key in a region until that is done; false if it is not in this time.
    fn writes(&mut self, world: &mut World, at: usize, key: &str, within_us: u64) -> bool {
        let until_us = world.now_us() + within_us;
        self.sequence += 1;
        let asked = Asked { session: 7, sequence: self.sequence, below: self.sequence };
        let op = Op::Write { asked, value: Some(vec![at as u8]), expect: Expect::Any };
        while world.now_us() < until_us {
            let client = 1000 * self.sequence + world.now_us() / SECOND;
            world.ask(at, client, Request { key: key.into(), op: op.clone() });
            world.run_until(world.now_us() + SECOND, self);
            if matches!(self.answers.get(&client), Some(Answer::Done { .. })) {
                return true;
            }
        }
        false
    }
}

impl Guests for Clients {
    fn answered(&mut self, _: &mut World, client: u64, answer: Answer) {
        self.answers.insert(client, answer);
    }

    fn wake(&mut self, _: &mut World, _: u64) {}
}

/// Has an operator in a region say it until he is told that it is written down; how often he had to.
fn says(world: &mut World, clients: &mut Clients, at: usize) -> Result<u32, String> {
    for times in 1..=200 {
        match world.seal(at, LOST) {
            Ok(Sealing::Heard { ticks }) if ticks > 0 => {}
            Ok(_) => return Ok(times),
            Err(e) if e.kind == holdfast_base::Kind::Retry => {}
            Err(e) => return Err(format!("region {at} refuses: {e}")),
        }
        world.run_until(world.now_us() + 100 * MS, clients);
        world.start(at);
    }
    Err(format!("region {at} does not write it down"))
}

/// What is wrong with the story of a seed.
fn story(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let form = Form::new(Mode::Timeline, 3);
    let append_us = [1_000, 5_000, 60_000][random.below(3) as usize];
    let costs = Costs { jitter_us: 1 + random.below(40_000), append_us, ..Costs::default() };
    let settings = Settings::default();
    let mut world = World::new(form, settings, costs, Distance::three(), random.next());
    let clients = &mut Clients::default();
    world.run_until(2 * SECOND, clients);
    for at in 0..3 {
        if !clients.writes(&mut world, at, &format!("home {at}"), 10 * SECOND) {
            return Err(format!("region {at} cannot write"));
        }
    }
    world.run_until(world.now_us() + 2 * SECOND, clients);
    world.kill(LOST);
    // Two say it, or one; at once, or one after the other.
    let first = random.below(2) as usize;
    says(&mut world, clients, first)?;
    let both = random.below(2) == 0;
    // Whoever was told so is ended, and starts again, as drawn: at once perhaps, with what it appends on its way.
    let mut again = both;
    for _ in 0..4 + random.below(4) {
        let pause = [MS, 30 * MS, 400 * MS, 3 * SECOND][random.below(4) as usize];
        world.run_until(world.now_us() + random.below(pause), clients);
        let at = random.below(2) as usize;
        world.kill(at);
        world.run_until(world.now_us() + random.below(pause), clients);
        world.start(at);
        if std::mem::take(&mut again) && random.below(2) == 0 {
            says(&mut world, clients, 1 - first)?;
        }
    }
    if again {
        let _ = world.seal(1 - first, LOST);
    }
    world.run_until(world.now_us() + 30 * SECOND, clients);
    let led = |stream: u8| world.running().filter(|r| r.leads(StreamId(stream))).count();
    if let Some(stream) = (0..3).find(|stream| led(*stream) != 1) {
        return Err(format!("stream {stream} is led by {} regions", led(stream)));
    }
    for at in 0..2 {
        let key = format!("home {LOST}");
        if !clients.writes(&mut world, at, &key, 10 * SECOND) {
            return Err(format!("region {at} cannot write what was at home in the lost region"));
        }
    }
    // The order ends with the region's return: it has its stream again, and no start takes it for lost any more.
    world.start(LOST);
    world.run_until(world.now_us() + 30 * SECOND, clients);
    for at in 0..2 {
        world.kill(at);
        world.start(at);
    }
    world.run_until(world.now_us() + 30 * SECOND, clients);
    for at in 0..3 {
        let region = world.region(at).ok_or("a region does not run")?;
        if region.tablet().lost().is_some() || !region.leads(StreamId(at as u8)) {
            let lost: Option<RegionId> = region.tablet().lost();
            return Err(format!("region {at} takes {lost:?} for lost, or has not its stream"));
        }
    }
    Ok(())
}

#[test]
fn an_order_outlives_every_process() {
    for seed in 0..SEEDS {
        let _entered = Trial::drawn(seed).enter();
        if let Err(wrong) = story(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// What a region only remembered was forgotten by its next start: nobody led what was at home in the lost region until
/// an operator said it again.
#[test]
fn an_order_that_is_only_remembered_is_forgotten() {
    let _entered = Trial::new().planting("table.lost-in-memory-only").enter();
    assert!((0..SEEDS).any(|seed| story(seed).is_err()), "no start forgot it");
}

/// Five regions, of which the last two are lost at once after each had written; how far all got with their writes.
fn two_of_five(mode: Mode, seed: u64, clients: &mut Clients) -> Result<World, String> {
    let mut random = Random::new(seed);
    let costs = Costs { jitter_us: 1 + random.below(40_000), ..Costs::default() };
    let form = Form::new(mode, 5);
    let mut world = World::new(form, Settings::default(), costs, Distance::five(), random.next());
    world.run_until(2 * SECOND, clients);
    for at in 0..5 {
        if !clients.writes(&mut world, at, &format!("home {at}"), 10 * SECOND) {
            return Err(format!("region {at} cannot write"));
        }
    }
    world.run_until(world.now_us() + 2 * SECOND, clients);
    // The second of them decides on what the first one has written, or does not get it any more.
    let at = 3 + random.below(2) as usize;
    if !clients.writes(&mut world, at, "home 3", 10 * SECOND) {
        return Err(format!("region {at} cannot write what is at home in 3"));
    }
    for at in [3, 4] {
        world.run_until(world.now_us() + random.below(300 * MS), clients);
        world.kill(at);
    }
    Ok(world)
}

/// Whether these regions can write what is at home in each of five.
fn all_write(clients: &mut Clients, world: &mut World, by: &[usize]) -> Result<(), String> {
    for at in by {
        for home in 0..5 {
            if !clients.writes(world, *at, &format!("home {home}"), 30 * SECOND) {
                return Err(format!("region {at} cannot write what is at home in {home}"));
            }
        }
    }
    Ok(())
}

fn all_equal(world: &World) -> Result<(), String> {
    let first = world.region(0).ok_or("region 0 does not run")?.tablet();
    let lines: Vec<u64> = (0..5)
        .filter_map(|at| Some(first.record(format!("home {at}").as_bytes())?.version))
        .collect();
    match world.running().all(|region| region.tablet().records() == first.records()) {
        true if lines.len() == 5 => Ok(()),
        _ => Err(format!("records differ: region 0 has versions {lines:?}")),
    }
}

/// Of a strong table the majority goes on: what was acknowledged is there, nobody has to say anything, and who comes
/// back follows and has its stream again.
#[test]
fn two_of_five_are_lost_and_a_strong_table_goes_on() {
    for seed in 0..SEEDS / 2 {
        let _entered = Trial::drawn(seed).enter();
        let clients = &mut Clients::default();
        let told = two_of_five(Mode::Strong, seed, clients).and_then(|mut world| {
            all_write(clients, &mut world, &[0, 1, 2])?;
            world.run_until(world.now_us() + 2 * SECOND, clients);
            // Two writes before the loss, of home 3; three of each since.
            let version = |home: usize| {
                let tablet = world.region(0)?.tablet();
                tablet.record(format!("home {home}").as_bytes()).map(|record| record.version)
            };
            if [0, 3, 4].map(version) != [Some(4), Some(5), Some(4)] {
                return Err(format!("acknowledged and lost: {:?}", [0, 3, 4].map(version)));
            }
            world.heal();
            world.run_until(world.now_us() + 60 * SECOND, clients);
            if (0..5u8)
                .any(|at| !world.region(usize::from(at)).is_some_and(|r| r.leads(StreamId(at))))
            {
                return Err("a region has not its stream again".to_owned());
            }
            all_equal(&world)
        });
        assert_eq!(told, Ok(()), "seed {seed}");
    }
}

/// Of a timeline table one region may be called lost at a time: what the second had decided on what only the first had
/// said would wait for ever. Whoever calls both lost is told which promise is missing, and nothing is cut off; once one
/// of them is back, the other one is sealed, in each region where one was called lost.
#[test]
fn two_of_five_are_lost_and_a_timeline_table_waits_for_one_of_them() {
    for seed in 0..SEEDS / 2 {
        let _entered = Trial::drawn(seed).enter();
        let clients = &mut Clients::default();
        let told = two_of_five(Mode::Timeline, seed, clients).and_then(|mut world| {
            let say = |world: &mut World, clients: &mut Clients, by: usize, lost: usize| {
                for _ in 0..200 {
                    let told = world.seal(by, lost);
                    world.run_until(world.now_us() + 100 * MS, clients);
                    match told {
                        Ok(Sealing::Waits(missing)) if missing.len() == 1 => return Ok(missing),
                        Err(e) if e.kind != holdfast_base::Kind::Retry => return Err(e.to_string()),
                        _ => {}
                    }
                }
                Ok(Vec::new())
            };
            // By one region, or each by another one.
            let other = (seed % 2) as usize;
            let missing = (say(&mut world, clients, 0, 3)?, say(&mut world, clients, other, 4)?);
            if missing != (vec![RegionId(4)], vec![RegionId(3)]) {
                return Err(format!("the promises that are missing: {missing:?}"));
            }
            world.run_until(world.now_us() + 30 * SECOND, clients);
            if world.running().any(|region| region.leads(StreamId(3)) || region.leads(StreamId(4)))
            {
                return Err("a stream was sealed without a promise".to_owned());
            }
            // What is at home in who is there is written on.
            for at in 0..3 {
                if !clients.writes(&mut world, at, &format!("home {at}"), 10 * SECOND) {
                    return Err(format!("region {at} cannot write what is at home there"));
                }
            }
            world.start(4);
            world.run_until(world.now_us() + 10 * SECOND, clients);
            // Where another region was told of the other one, it has claimed what that one leads, and is told of this one.
            for by in [0, other] {
                let sealed = (0..200).any(|_| {
                    let told = world.seal(by, 3);
                    world.run_until(world.now_us() + 100 * MS, clients);
                    by != other || told == Ok(Sealing::Done)
                });
                if !sealed {
                    return Err("region 3 is not sealed, though all others are there".to_owned());
                }
            }
            all_write(clients, &mut world, &[0, 1, 2, 4])?;
            world.heal();
            world.run_until(world.now_us() + 60 * SECOND, clients);
            all_equal(&world)
        });
        assert_eq!(told, Ok(()), "seed {seed}");
    }
}
