//! What requests cost by distance: every cell of the table of docs/tables.md, measured in virtual
//! time beside its formula; mixes, moves and the loss of a region. Latencies are microseconds.

use super::distance::Distance;
use super::world::{Costs, Guests, World};
use crate::entry::Asked;
use crate::ids::Key;
use crate::message::{Answer, Expect, Level, Op, Request};
use crate::region::Settings;
use crate::sessions::Outcome;
use crate::tablet::{Form, Mode};
use holdfast_base::random::Random;
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000;

/// A kind of request whose cost has a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    TimelineWrite,
    StrongWrite,
    StrongRead,
    ReadAny,
    /// Of a version that shows where it is asked for.
    CriticalShown,
    /// Of one that does not yet.
    CriticalAbsent,
    ReadLatest,
}

impl Cell {
    pub const ALL: [Cell; 7] = [
        Cell::TimelineWrite,
        Cell::StrongWrite,
        Cell::StrongRead,
        Cell::ReadAny,
        Cell::CriticalShown,
        Cell::CriticalAbsent,
        Cell::ReadLatest,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Cell::TimelineWrite => "timeline write",
            Cell::StrongWrite => "strong write",
            Cell::StrongRead => "strong read",
            Cell::ReadAny => "read any",
            Cell::CriticalShown => "read critical, shown",
            Cell::CriticalAbsent => "read critical, not shown",
            Cell::ReadLatest => "read latest",
        }
    }

    /// The table that it is asked of.
    pub fn mode(self) -> Mode {
        match self {
            Cell::StrongWrite | Cell::StrongRead => Mode::Strong,
            _ => Mode::Timeline,
        }
    }

    /// What it costs, with the client in region `c` and the record at home in `m`.
    pub fn formula_us(self, distance: &Distance, costs: &Costs, c: usize, m: usize) -> u64 {
        let (l, d, r) = (costs.local_us, costs.append_us, distance.round_trip_us(c, m));
        match self {
            Cell::TimelineWrite | Cell::ReadLatest => r + l + d,
            Cell::ReadAny | Cell::CriticalShown => l,
            Cell::CriticalAbsent => r + l,
            Cell::StrongWrite | Cell::StrongRead => strong_us(distance, costs, c, m),
        }
    }
}

fn strong_us(distance: &Distance, costs: &Costs, c: usize, m: usize) -> u64 {
    let (l, d, r) = (costs.local_us, costs.append_us, distance.round_trip_us(c, m));
    let regions = distance.regions();
    let majority = regions / 2 + 1;
    let smallest = |mut ways: Vec<u64>, which: usize| {
        ways.sort_unstable();
        ways[which - 1]
    };
    let others = (0..regions).filter(|x| *x != m);
    if c == m {
        return l
            + 2 * d
            + smallest(others.map(|x| distance.round_trip_us(m, x)).collect(), majority - 1);
    }
    if majority == 2 {
        return r + l + 2 * d;
    }
    let ways = others.filter(|x| *x != c);
    let round = ways.map(|x| (distance.round_trip_us(m, x) + distance.round_trip_us(x, c)) / 2);
    l + 2 * d + r / 2 + (r / 2).max(smallest(round.collect(), majority - 2))
}

/// What a client asks next.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Write,
    Any,
    /// The version that was written last.
    Critical,
    Latest,
    Strong,
}

struct Step {
    region: usize,
    ask: Ask,
    measured: bool,
    /// Not after a pause.
    at_once: bool,
}

/// One client that asks one thing after another, of one record.
struct Script {
    steps: VecDeque<Step>,
    key: Key,
    sequence: u64,
    version: u64,
    began_us: u64,
    measured: bool,
    latencies_us: Vec<u64>,
    failed: Option<String>,
}

impl Script {
    fn next(&mut self, world: &mut World) {
        let Some(step) = self.steps.pop_front() else { return };
        self.sequence += 1;
        let asked = Asked { session: 1, sequence: self.sequence, below: self.sequence };
        let op = match step.ask {
            Ask::Write => Op::Write { asked, value: Some(vec![1; 100]), expect: Expect::Any },
            Ask::Any => Op::Read(Level::Any),
            Ask::Critical => Op::Read(Level::Critical(self.version)),
            Ask::Latest => Op::Read(Level::Latest),
            Ask::Strong => Op::Read(Level::Strong),
        };
        (self.began_us, self.measured) = (world.now_us(), step.measured);
        world.ask(step.region, self.sequence, Request { key: self.key.clone(), op });
    }
}

impl Guests for Script {
    fn answered(&mut self, world: &mut World, _: u64, answer: Answer) {
        match answer {
            Answer::Done { outcome: Outcome::Written(version), .. } => self.version = version,
            Answer::Value { .. } => {}
            other => self.failed = Some(format!("{other:?}")),
        }
        if self.measured {
            self.latencies_us.push(world.now_us() - self.began_us);
        }
        match self.steps.front() {
            Some(next) if next.at_once => self.next(world),
            Some(_) => world.wake_at(world.now_us() + SECOND, 0),
            None => {}
        }
    }

    fn wake(&mut self, world: &mut World, _: u64) {
        self.next(world);
    }
}

fn world(mode: Mode, distance: &Distance, costs: &Costs, seed: u64) -> World {
    let form = Form::new(mode, distance.regions() as u8);
    World::new(form, Settings::default(), costs.clone(), distance.clone(), seed)
}

/// Latencies of `count` requests of a client in region `c` for a record at home in `m`, one at a
/// time, each once all is quiet. An error says which answer it was that was none.
pub fn cell(
    cell: Cell,
    distance: &Distance,
    costs: &Costs,
    (c, m): (usize, usize),
    count: usize,
) -> Result<Vec<u64>, String> {
    let step = |region, ask| Step { region, ask, measured: false, at_once: false };
    let mut steps = VecDeque::from([step(m, Ask::Write)]);
    for _ in 0..count {
        // Its home's client writes in between: a home follows who writes alone.
        steps.push_back(step(m, Ask::Write));
        let ask = match cell {
            Cell::TimelineWrite | Cell::StrongWrite => Ask::Write,
            Cell::StrongRead => Ask::Strong,
            Cell::ReadAny => Ask::Any,
            Cell::CriticalShown | Cell::CriticalAbsent => Ask::Critical,
            Cell::ReadLatest => Ask::Latest,
        };
        let at_once = cell == Cell::CriticalAbsent;
        steps.push_back(Step { region: c, ask, measured: true, at_once });
    }
    let mut script = Script {
        steps,
        key: b"record".to_vec(),
        sequence: 0,
        version: 0,
        began_us: 0,
        measured: false,
        latencies_us: Vec::new(),
        failed: None,
    };
    let mut world = world(cell.mode(), distance, costs, 1);
    world.wake_at(SECOND, 0);
    world.run_until(SECOND * (4 * count as u64 + 10), &mut script);
    match script.failed {
        Some(failed) => Err(failed),
        None if script.latencies_us.len() == count => Ok(script.latencies_us),
        None => Err("a request was not answered".to_owned()),
    }
}

/// Writes that are sent whatever became of those before: each is its own client's.
#[derive(Default)]
struct Crowd {
    /// When, from which region, which record.
    writes: Vec<(u64, usize, Key)>,
    next: usize,
    /// Of each write, once it is answered.
    latencies_us: BTreeMap<u64, u64>,
}

impl Crowd {
    fn run(&mut self, world: &mut World, seconds: u64) {
        if let Some((at, ..)) = self.writes.get(self.next) {
            world.wake_at(*at, 0);
        }
        world.run_until(world.now_us() + seconds * SECOND, self);
    }
}

impl Guests for Crowd {
    fn answered(&mut self, world: &mut World, client: u64, answer: Answer) {
        if matches!(answer, Answer::Done { .. }) {
            let began = self.writes[client as usize].0;
            self.latencies_us.insert(client, world.now_us() - began);
        }
    }

    fn wake(&mut self, world: &mut World, _: u64) {
        let (_, region, key) = self.writes[self.next].clone();
        let asked = Asked { session: self.next as u64 + 1, sequence: 1, below: 1 };
        let op = Op::Write { asked, value: Some(vec![1; 100]), expect: Expect::Any };
        world.ask(region, self.next as u64, Request { key, op });
        self.next += 1;
        if let Some((at, ..)) = self.writes.get(self.next) {
            world.wake_at(*at, 0);
        }
    }
}

fn record(number: u64) -> Key {
    number.to_le_bytes().to_vec()
}

/// Writes to many records whose homes are spread over all regions: so many in a hundred come from
/// the record's home, the rest from any other region. Latencies, in the order of the writes.
pub fn mix(
    mode: Mode,
    distance: &Distance,
    costs: &Costs,
    at_home_percent: u64,
    count: usize,
) -> Result<Vec<u64>, String> {
    const RECORDS: u64 = 2_000;
    const PAUSE_US: u64 = 5_000;
    let regions = distance.regions() as u64;
    let mut random = Random::new(1);
    let mut crowd = Crowd::default();
    let mut time = SECOND;
    for number in 0..RECORDS {
        crowd.writes.push((time, (number % regions) as usize, record(number)));
        time += PAUSE_US;
    }
    time += SECOND;
    for _ in 0..count {
        let number = random.below(RECORDS);
        let home = number % regions;
        let away = (home + 1 + random.below(regions - 1)) % regions;
        let from = if random.below(100) < at_home_percent { home } else { away };
        crowd.writes.push((time, from as usize, record(number)));
        time += PAUSE_US;
    }
    let mut world = world(mode, distance, costs, 2);
    crowd.run(&mut world, time / SECOND + 5);
    if crowd.latencies_us.len() < crowd.writes.len() {
        return Err("a write was not answered".to_owned());
    }
    Ok(crowd.latencies_us.into_values().skip(RECORDS as usize).collect())
}

/// The users of records of a timeline table at home in the first region move to the second: of each
/// of their next `writes` of a record, how many in a hundred went to another region. (Of a strong
/// table nobody could tell by the time it takes: a majority is as far as the home was.)
pub fn moved(distance: &Distance, costs: &Costs, writes: usize) -> Result<Vec<f64>, String> {
    const RECORDS: u64 = 200;
    let mut crowd = Crowd::default();
    let mut time = SECOND;
    for round in 0..=writes {
        for number in 0..RECORDS {
            crowd.writes.push((time, usize::from(round > 0), record(number)));
            time += 2_000;
        }
        time += SECOND;
    }
    let mut world = world(Mode::Timeline, distance, costs, 3);
    crowd.run(&mut world, time / SECOND + 5);
    let records = RECORDS as usize;
    let all: Vec<u64> = crowd.latencies_us.into_values().collect();
    if all.len() < records * (writes + 1) {
        return Err("a write was not answered".to_owned());
    }
    let of_round = |round: &[u64]| {
        let remote = round.iter().filter(|us| **us >= distance.round_trip_us(0, 1)).count();
        remote as f64 * 100.0 / records as f64
    };
    Ok(all.chunks(records).skip(1).map(of_round).collect())
}

/// What a strong table of three regions goes through when its first one is lost.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// Reads of any version elsewhere, before and after: medians.
    pub read_any_us: (u64, u64),
    /// Strong writes at home in the second region, before and after: medians.
    pub write_us: (u64, u64),
    /// What the formula says of the latter, over all and over survivors.
    pub write_formula_us: (u64, u64),
    /// From the loss to the first acknowledged write of a record that was at home there.
    pub takeover_us: u64,
    /// Silence, two round trips to the nearest survivor, two appends.
    pub takeover_formula_us: u64,
}

#[derive(Default)]
struct Survivors {
    began_us: BTreeMap<u64, u64>,
    sent: u64,
    reads_us: Vec<(u64, u64)>,
    writes_us: Vec<(u64, u64)>,
    /// Acknowledged writes of what was at home in the lost region: when.
    taken_us: Vec<u64>,
}

/// Which record a request of [`Survivors`] is of, in its number's lowest bits.
const LOST: u64 = 0;
const OWN: u64 = 1;
const READ: u64 = 2;

impl Survivors {
    fn send(&mut self, world: &mut World, region: usize, what: u64) {
        self.sent += 1;
        let client = self.sent << 2 | what;
        self.began_us.insert(client, world.now_us());
        let asked = Asked { session: client, sequence: 1, below: 1 };
        let op = match what {
            READ => Op::Read(Level::Any),
            _ => Op::Write { asked, value: Some(vec![1]), expect: Expect::Any },
        };
        world.ask(region, client, Request { key: record(what & 1), op });
    }
}

impl Guests for Survivors {
    fn answered(&mut self, world: &mut World, client: u64, answer: Answer) {
        let now = world.now_us();
        let took = now - self.began_us.get(&client).copied().unwrap_or(now);
        match (client & 3, answer) {
            (LOST, Answer::Done { .. }) => self.taken_us.push(now),
            (OWN, Answer::Done { .. }) => self.writes_us.push((now, took)),
            (READ, Answer::Value { .. }) => self.reads_us.push((now, took)),
            _ => {}
        }
    }

    fn wake(&mut self, world: &mut World, what: u64) {
        self.send(world, if what == READ { 2 } else { 1 }, what);
        let pause = if what == LOST { 10_000 } else { 250_000 };
        world.wake_at(world.now_us() + pause, what);
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The first of three regions is lost while others read and write.
pub fn loss(distance: &Distance, costs: &Costs) -> Loss {
    let lost_us = 20 * SECOND;
    let mut world = world(Mode::Strong, distance, costs, 4);
    let mut survivors = Survivors::default();
    // Both records are inserted where they are at home.
    survivors.send(&mut world, 0, LOST);
    survivors.send(&mut world, 1, OWN);
    for what in [OWN, READ] {
        world.wake_at(2 * SECOND, what);
    }
    world.run_until(lost_us, &mut survivors);
    survivors.taken_us.clear();
    world.kill(0);
    world.wake_at(lost_us, LOST);
    world.run_until(lost_us + 20 * SECOND, &mut survivors);
    let halves = |all: &[(u64, u64)], from: u64, to: u64| {
        median(all.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, us)| *us).collect())
    };
    let both = |all: &[(u64, u64)]| {
        let end = lost_us + 20 * SECOND;
        (halves(all, 5 * SECOND, lost_us), halves(all, lost_us + SECOND, end))
    };
    let survivors_us = distance.round_trip_us(1, 2);
    let after = costs.local_us + 2 * costs.append_us + survivors_us;
    let silence = u64::from(Settings::default().silence_ticks) * costs.tick_us;
    Loss {
        read_any_us: both(&survivors.reads_us),
        write_us: both(&survivors.writes_us),
        write_formula_us: (strong_us(distance, costs, 1, 1), after),
        takeover_us: survivors.taken_us.first().map_or(u64::MAX, |at| at - lost_us),
        takeover_formula_us: silence + 2 * survivors_us + 2 * costs.append_us,
    }
}
