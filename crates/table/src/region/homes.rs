//! A small world of records that move between homes, are deleted, forgotten and inserted again, searched breadth first:
//! production regions with their topics, a few writes and groups from anywhere, streams and requests that arrive in any
//! order beside each other, a region that is away, a process that ends. What regions say of themselves is heard at once:
//! to know less only makes them wait. A tick is one in which all is due that waits, as in [`super::model`].

use super::lead::State;
use super::model::key_of;
use super::{Effect, Policy, Region, Settings};
use crate::entry::{Asked, Change, ChangeKind, Entry};
use crate::ids::{LogId, RegionId, StreamId};
use crate::message::{Expect, GroupDo, GroupWrite, Message, Op, Request};
use crate::record::RUN_TO_MOVE;
use crate::tablet::{Form, Mode, Shown, Tablet};
use holdfast_base::codec::Encode;
use holdfast_env::trial::{Entered, Trial};
use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const LOG: LogId = LogId(1);
/// Nobody takes a stream over: [`super::model`] and the histories are about that.
const SETTINGS: Settings = Settings {
    policy: Policy::Wait,
    silence_ticks: 1000,
    resend_ticks: 2,
    wait_ticks: 30,
    return_ticks: 1000,
    window: 64,
};
/// More messages than that come of nothing that ends.
const CASCADE_MAX: usize = 2_000;
/// Ticks of all regions in which what heals is quiet.
const HEALING_TICKS: usize = 60;
/// One state of so many is healed.
const HEALED: u64 = 50;
const KEYS: [u8; 2] = [1, 2];

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Left {
    writes: u8,
    /// Of the second key, too, and of both as one.
    groups: u8,
    deletes: u8,
    /// The last request is asked again, anywhere.
    repeats: u8,
    aways: u8,
    ends: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick(usize),
    Write(usize, u8),
    Delete(usize, u8),
    Group(usize),
    Repeat(usize),
    /// The first of what waits on a way arrives: entries, or requests.
    Arrives(Way),
    /// What is on its way from a region and to it is lost, as all is until it is back.
    Away(usize),
    Back,
    /// A process ends, and starts anew: what was not durable is gone.
    End(usize),
    /// The first append is durable that waits to be.
    Durable,
}

/// From where, to where, and whether with requests: those and entries pass each other.
type Way = (usize, usize, bool);

#[derive(Clone)]
struct World {
    regions: Vec<(Rc<Region>, u64)>,
    /// The entries of each region's topic.
    topics: Vec<Rc<Vec<Rc<[u8]>>>>,
    /// The region whose appends take their time, if there is one, and those that do.
    slow: Option<usize>,
    appending: VecDeque<Rc<[u8]>>,
    ways: BTreeMap<Way, VecDeque<Rc<Message>>>,
    away: Option<usize>,
    left: Left,
    last: Option<Rc<Request>>,
    asked: u64,
    starts: u64,
}

/// One version of a record, as a home has decided it.
struct Decided<'a> {
    change: &'a Change,
    stream: StreamId,
    number: u64,
}

fn hash_of(bytes: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// All that the region waits for is due, if nothing is on its way; its clients wait for nothing.
fn hurry(region: &mut Region, at: usize, ways: &BTreeMap<Way, VecDeque<Rc<Message>>>) {
    let resend = region.settings.resend_ticks;
    region.pending.clear();
    region.writing.clear();
    region.out.clear();
    (region.tickets, region.up_ticks) = (0, 0);
    region.parked.iter_mut().for_each(super::ask::Parked::begin_anew);
    let is_due = |to: RegionId| !ways.contains_key(&(at, usize::from(to.0), false));
    region.leads.values_mut().for_each(|lead| lead.hurry(resend, is_due));
    region.heard.values_mut().for_each(|heard| heard.ticks_ago = 0);
}

pub(super) fn key_of_all(region: &Region) -> u64 {
    let mut key = vec![key_of(region)];
    for stream in region.tablet.streams() {
        key.push(stream.kept());
        key.extend(stream.behind(0, usize::MAX).iter().map(|entry| hash_of(&entry.to_bytes())));
    }
    for lead in region.leads.values() {
        lead.key_of_coming(&mut key);
    }
    region.parked.iter().for_each(|parked| parked.key(&mut key));
    key.push(hash_of(&format!("{:?}", region.told_kept)));
    hash_of(&key)
}

/// Whether the region would decide on a write of this key that it is asked for.
fn decides(region: &Region, key: &[u8]) -> bool {
    let State { record, coming } = region.state(key);
    let home = record.map_or(region.tablet.form().home, |record| record.home);
    let waits = matches!(coming, Some((stream, _, grounded)) if stream != home || !grounded);
    !waits && region.leads(home)
}

impl World {
    fn first(regions: usize, mode: Mode, left: Left) -> World {
        let form = Form::new(mode, regions as u8);
        let log: Rc<[u8]> = Entry::Log(LOG).to_bytes().into();
        let mut world = World {
            regions: Vec::new(),
            topics: (0..regions).map(|_| Rc::new(vec![log.clone()])).collect(),
            slow: None,
            appending: VecDeque::new(),
            ways: BTreeMap::new(),
            away: None,
            left,
            last: None,
            asked: 0,
            starts: 1,
        };
        for at in 0..regions {
            let region = world.started(&form, at);
            world.regions.push((Rc::new(region), 0));
        }
        for at in (0..regions).chain(0..regions) {
            world.carry_out(at, Region::tick);
        }
        world.tidy();
        world
    }

    /// Behind these steps, each of which happens.
    fn begun(regions: usize, mode: Mode, left: Left, steps: &[Step]) -> World {
        let mut world = World::first(regions, mode, Left { writes: u8::MAX, ..left });
        for step in steps {
            assert!(world.take(*step).is_some(), "{step:?}");
        }
        world.left = left;
        world
    }

    fn started(&self, form: &Form, at: usize) -> Region {
        let mut tablet = Tablet::new(form, RegionId(at as u8));
        for (index, entry) in (1..).zip(self.topics[at].iter()) {
            tablet.apply(index, entry, &mut Vec::new()).unwrap();
        }
        Region::start(tablet, LOG, self.starts, SETTINGS)
    }

    fn key(&self) -> u64 {
        let ways: Vec<(Way, Vec<u64>)> = self
            .ways
            .iter()
            .map(|(way, all)| (*way, all.iter().map(|m| hash_of(&m.to_bytes())).collect()))
            .collect();
        let regions: Vec<u64> = self.regions.iter().map(|(_, key)| *key).collect();
        let last = self.last.as_ref().filter(|_| self.left.repeats > 0);
        let last = last.and_then(|request| Some(request.asked()?.sequence));
        hash_of(&(regions, ways, self.away, self.left, last))
    }

    fn tidy(&mut self) {
        for at in 0..self.regions.len() {
            let (region, key) = &mut self.regions[at];
            let region = Rc::make_mut(region);
            hurry(region, at, &self.ways);
            let decided = Some(&self.appending).filter(|_| self.slow == Some(at));
            *key = hash_of(&(key_of_all(region), decided));
        }
    }

    /// Does it, and lets all happen that comes of it but for what waits on its way, or to be durable.
    fn carry_out(&mut self, at: usize, what: impl FnOnce(&mut Region)) {
        let mut heard: VecDeque<(usize, usize, Message)> = VecDeque::new();
        what(Rc::make_mut(&mut self.regions[at].0));
        let (mut next, mut count) = (Some(at), 0);
        while let Some(at) = next {
            let region = Rc::make_mut(&mut self.regions[at].0);
            loop {
                let effects = region.effects();
                if effects.is_empty() {
                    break;
                }
                for effect in effects {
                    match effect {
                        Effect::Append(bytes) if self.slow == Some(at) => {
                            self.appending.push_back(bytes.into());
                        }
                        Effect::Append(bytes) => {
                            let index = region.tablet.applied() + 1;
                            region.appended(index, &bytes).unwrap();
                            Rc::make_mut(&mut self.topics[at]).push(bytes.into());
                        }
                        Effect::Send { to, message } => {
                            let to = usize::from(to.0);
                            let asks = matches!(message, Message::Forward { .. });
                            let waits = asks || matches!(message, Message::Push { .. });
                            if self.away == Some(at) || self.away == Some(to) {
                                continue;
                            }
                            if !waits {
                                heard.push_back((at, to, message));
                                continue;
                            }
                            let way = self.ways.entry((at, to, asks)).or_default();
                            if !way.iter().any(|other| **other == message) {
                                way.push_back(Rc::new(message));
                            }
                        }
                        Effect::Answer { .. } => {}
                    }
                }
            }
            count += 1;
            assert!(count < CASCADE_MAX, "messages without end");
            next = heard.pop_front().map(|(from, to, message)| {
                Rc::make_mut(&mut self.regions[to].0).arrived(RegionId(from as u8), LOG, message);
                to
            });
        }
    }

    fn ask(&mut self, at: usize, key: u8, op: impl FnOnce(Asked) -> Op) {
        self.asked += 1;
        let asked = Asked { session: 1, sequence: self.asked, below: 1 };
        let request = Request { key: vec![key], op: op(asked) };
        self.last = Some(Rc::new(request.clone()));
        self.carry_out(at, |region| region.ask(1, request));
    }

    /// Nothing where it may not happen.
    fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Tick(at) => self.carry_out(at, Region::tick),
            Step::Write(at, key) => {
                self.left.writes = self.left.writes.checked_sub(1)?;
                let value = Some(vec![7]);
                self.ask(at, key, |asked| Op::Write { asked, value, expect: Expect::Any });
            }
            Step::Delete(at, key) => {
                self.left.deletes = self.left.deletes.checked_sub(1)?;
                // There is one to be seen.
                self.regions[at].0.tablet.record(&[key])?.value.as_ref()?;
                self.ask(at, key, |asked| Op::Write { asked, value: None, expect: Expect::Any });
            }
            Step::Group(at) => {
                self.left.groups = self.left.groups.checked_sub(1)?;
                let put = || GroupDo::Put([8].into());
                let write = |key| GroupWrite { key: vec![key], expect: Expect::Any, what: put() };
                let writes = KEYS.map(write).to_vec();
                self.ask(at, KEYS[0], |asked| Op::Group { asked, writes });
            }
            Step::Repeat(at) => {
                self.left.repeats = self.left.repeats.checked_sub(1)?;
                let request = self.last.as_deref()?.clone();
                self.carry_out(at, |region| region.ask(1, request));
            }
            Step::Arrives(way) => {
                let waiting = self.ways.get_mut(&way)?;
                let message = waiting.pop_front()?;
                if waiting.is_empty() {
                    self.ways.remove(&way);
                }
                let (from, to) = (RegionId(way.0 as u8), way.1);
                self.carry_out(to, |region| region.arrived(from, LOG, (*message).clone()));
            }
            Step::Away(at) => {
                self.left.aways = self.left.aways.checked_sub(1)?;
                self.away = Some(at);
                self.ways.retain(|(from, to, _), _| *from != at && *to != at);
            }
            Step::Back => self.away = self.away.take().map(|_| None)?,
            Step::Durable => {
                let (at, bytes) = (self.slow?, self.appending.pop_front()?);
                Rc::make_mut(&mut self.topics[at]).push(bytes.clone());
                let index = self.topics[at].len() as u64;
                self.carry_out(at, |region| {
                    region.appended(index, &bytes).unwrap();
                });
            }
            Step::End(at) => {
                self.left.ends = self.left.ends.checked_sub(1)?;
                if self.slow == Some(at) {
                    self.appending.clear();
                }
                self.starts += 1;
                let form = self.regions[at].0.tablet.form().clone();
                self.regions[at].0 = Rc::new(self.started(&form, at));
                self.carry_out(at, |_| {});
            }
        }
        self.tidy();
        Some(())
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.ways.keys().map(|way| Step::Arrives(*way)).collect();
        let keys = if self.left.groups > 0 { &KEYS[..] } else { &KEYS[..1] };
        for at in 0..self.regions.len() {
            steps.extend([Step::Tick(at), Step::Group(at), Step::Repeat(at), Step::End(at)]);
            steps.extend(
                keys.iter().flat_map(|key| [Step::Write(at, *key), Step::Delete(at, *key)]),
            );
            if self.away.is_none() {
                steps.push(Step::Away(at));
            }
        }
        steps.extend([Step::Back, Step::Durable]);
        steps
    }

    /// A stream as whoever leads it has it: the longest.
    fn stream(&self, id: StreamId) -> &[crate::entry::StreamEntry] {
        let of = |(region, _): &'_ (Rc<Region>, u64)| region.tablet.stream(id).tail().number;
        let longest = self.regions.iter().max_by_key(|region| of(region));
        longest.map_or(&[], |(region, _)| region.tablet.stream(id).behind(0, usize::MAX))
    }

    /// What is wrong, at any time.
    fn wrong(&self) -> Option<String> {
        let streams: Vec<StreamId> = self.regions[0].0.tablet.form().streams().collect();
        let mut asked = BTreeSet::new();
        let mut lines: BTreeMap<u8, Vec<Decided<'_>>> = BTreeMap::new();
        for id in streams {
            let entries = self.stream(id);
            for entry in entries {
                if entry.asked.is_some_and(|of| !asked.insert(of.sequence)) {
                    return Some(format!("decided twice: {entry:?}"));
                }
                for change in entry.body.changes() {
                    let decided = Decided { change, stream: id, number: entry.place.number };
                    lines.entry(change.key[0]).or_default().push(decided);
                }
            }
            for (at, (region, _)) in self.regions.iter().enumerate() {
                let held = region.tablet.stream(id).behind(0, usize::MAX);
                if *held != entries[..held.len()] {
                    return Some(format!("region {at} holds another stream {}", id.0));
                }
            }
        }
        for line in lines.values_mut() {
            line.sort_by_key(|decided| decided.change.version);
            if let Some(wrong) = self.wrong_line(line) {
                return Some(wrong);
            }
        }
        let keys = KEYS.iter().map(|key| (*key, lines.get(key).map_or(&[][..], Vec::as_slice)));
        keys.into_iter().find_map(|(key, line)| self.wrong_where(key, line))
    }

    /// Versions follow on each other, each decided where the record was at home.
    fn wrong_line(&self, line: &[Decided<'_>]) -> Option<String> {
        let mut before: Option<&Decided<'_>> = None;
        for decided in line {
            let change = decided.change;
            let forgotten = before.filter(|b| b.change.kind == ChangeKind::Forget);
            let follows = match before {
                Some(b) if forgotten.is_none() => {
                    (change.after, change.version) == (b.change.version, b.change.version + 1)
                }
                // It was never there, or is not any more.
                _ => change.after == 0 && before.is_none_or(|b| b.change.version < change.version),
            };
            let home = before.map_or(self.regions[0].0.tablet.form().home, |b| b.change.home);
            if !follows || decided.stream != home {
                let stream = decided.stream.0;
                let last = before.map(|before| before.change);
                return Some(format!("{change:?} of stream {stream} is behind {last:?}"));
            }
            before = Some(decided);
        }
        None
    }

    /// What of a record's line is wrong in some region.
    fn wrong_where(&self, key: u8, line: &[Decided<'_>]) -> Option<String> {
        for (at, (region, _)) in self.regions.iter().enumerate() {
            let shown = |decided: &&Decided<'_>| {
                decided.number <= region.tablet.shown(decided.stream).place.number
            };
            let count = line.iter().filter(shown).count();
            if !line[..count].iter().all(|decided| shown(&decided)) {
                return Some(format!("region {at} shows versions of {key} out of order"));
            }
            let last = line[..count].last().map(|decided| decided.change);
            let record = region.tablet.record(&[key]);
            let is_right = match last.filter(|change| change.kind != ChangeKind::Forget) {
                None => record.is_none(),
                Some(change) => record.is_some_and(|record| {
                    let is_deleted = change.kind == ChangeKind::Delete;
                    (record.version, record.home) == (change.version, change.home)
                        && record.value.is_none() == is_deleted
                }),
            };
            if !is_right {
                return Some(format!("region {at} shows {record:?} behind {last:?}"));
            }
        }
        let regions = self.regions.iter().enumerate();
        let homes: Vec<usize> =
            regions.filter(|(_, (region, _))| decides(region, &[key])).map(|(at, _)| at).collect();
        (homes.len() > 1).then(|| format!("regions {homes:?} would decide on {key}"))
    }

    /// What is wrong once all has arrived.
    fn heal(&self) -> Option<String> {
        let mut world = self.clone();
        world.away = None;
        let mut why = None;
        for _ in 0..HEALING_TICKS {
            loop {
                let step = match world.ways.keys().next() {
                    Some(way) => Step::Arrives(*way),
                    None if world.appending.is_empty() => break,
                    None => Step::Durable,
                };
                world.take(step);
            }
            for at in 0..world.regions.len() {
                world.take(Step::Tick(at));
            }
            why = world.restless();
            if why.is_none() {
                break;
            }
        }
        why.map(|why| format!("it does not become quiet: {why}")).or_else(|| world.wrong())
    }

    fn restless(&self) -> Option<String> {
        if !self.ways.is_empty() {
            return Some(format!("on its way: {:?}", self.ways));
        }
        let shown = |tablet: &Tablet| -> Vec<Shown> {
            tablet.form().streams().map(|id| tablet.shown(id)).collect()
        };
        let first = &self.regions[0].0.tablet;
        for (at, (region, _)) in self.regions.iter().enumerate() {
            let tablet = &region.tablet;
            let tails = tablet.form().streams().map(|id| self.stream(id).last().map(|e| e.place));
            let all = shown(tablet)
                .iter()
                .map(|shown| shown.place)
                .eq(tails.map(Option::unwrap_or_default));
            if !all || shown(tablet) != shown(first) || tablet.records() != first.records() {
                return Some(format!("region {at} shows {:?}", shown(tablet)));
            }
            if !region.parked.is_empty() {
                return Some(format!("in region {at} wait {:?}", region.parked));
            }
        }
        None
    }
}

/// What a search came to.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    healed: usize,
    is_cut_short: bool,
    /// The steps to the first state in which something is wrong, and what.
    wrong: Option<(Vec<Step>, String)>,
}

fn path_to(mut key: u64, seen: &HashMap<u64, (u64, Step)>) -> Vec<Step> {
    let mut path = Vec::new();
    while seen[&key].0 != key {
        let (before, step) = seen[&key];
        path.push(step);
        key = before;
    }
    path.reverse();
    path
}

/// Breadth first, so that what it finds is shortest.
fn search(first: World, states_max: usize) -> Found {
    let mut found = Found::default();
    // By each state's key the one that it came from, and how.
    let mut seen = HashMap::from([(first.key(), (first.key(), Step::Back))]);
    // Regions that nothing tells from each other are one in memory.
    let mut pool: HashMap<(usize, u64), Rc<Region>> = HashMap::new();
    let mut left = VecDeque::from([first]);
    while let Some(world) = left.pop_front() {
        let from = world.key();
        for step in world.steps() {
            let mut next = world.clone();
            if next.take(step).is_none() {
                continue;
            }
            let key = next.key();
            let Slot::Vacant(new) = seen.entry(key) else { continue };
            new.insert((from, step));
            let heals = key % HEALED == 0;
            found.healed += usize::from(heals);
            let wrong = next.wrong().or_else(|| next.heal().filter(|_| heals));
            if let Some(wrong) = wrong {
                found.wrong = Some((path_to(key, &seen), wrong));
                found.states = seen.len();
                return found;
            }
            for (at, (region, key)) in next.regions.iter_mut().enumerate() {
                *region = pool.entry((at, *key)).or_insert_with(|| region.clone()).clone();
            }
            left.push_back(next);
        }
        if seen.len() >= states_max {
            found.is_cut_short = true;
            break;
        }
    }
    found.states = seen.len();
    found
}

const NONE: Left = Left { writes: 0, groups: 0, deletes: 0, repeats: 0, aways: 0, ends: 0 };
/// A record moves, and moves back.
const MOVES: Left = Left { writes: 4, ..NONE };
/// One is deleted, forgotten, and inserted again.
const INSERTS: Left = Left { writes: 2, deletes: 1, ..NONE };
const GROUPS: Left = Left { writes: 1, groups: 2, ..NONE };
const REPEATS: Left = Left { writes: 3, repeats: 1, ..NONE };
const AWAYS: Left = Left { aways: 1, ..INSERTS };
const ENDS: Left = Left { ends: 1, ..INSERTS };

/// Region 1 has inserted both records in the tablet's home's stream, which region 2 has yet to get.
const BOTH_AT_ONE: [Step; 6] = [
    Step::Write(1, KEYS[0]),
    Step::Arrives((1, 0, true)),
    Step::Write(1, KEYS[1]),
    Step::Arrives((1, 0, true)),
    Step::Arrives((0, 1, false)),
    Step::Arrives((0, 1, false)),
];

/// The first write from elsewhere moves a home, so that few are enough.
fn with_quick_moves(bug: Option<&str>) -> Entered {
    let trial = Trial::new().with(&RUN_TO_MOVE, 1);
    match bug {
        Some(bug) => trial.planting(bug).enter(),
        None => trial.enter(),
    }
}

fn searched(what: impl Debug, first: World, states_max: usize) -> Found {
    let found = search(first, states_max);
    let Found { states, healed, is_cut_short, wrong } = &found;
    println!("{what:?}: {states} states, {healed} healed, cut short: {is_cut_short}");
    if let Some((path, wrong)) = wrong {
        println!("{path:?}\n{wrong}");
    }
    found
}

#[test]
fn a_record_has_one_home_and_one_line_wherever_it_moves_and_whoever_deletes_it() {
    let states_max = super::model::states_max(3_000);
    let _entered = with_quick_moves(None);
    for mode in [Mode::Timeline, Mode::Strong] {
        for left in [MOVES, INSERTS, GROUPS, REPEATS, AWAYS, ENDS] {
            for regions in [2, 3] {
                let first = World::first(regions, mode, left);
                let found = searched((regions, mode, left), first, states_max);
                assert!(found.wrong.is_none(), "{left:?}");
            }
        }
        let first = World::begun(3, mode, GROUPS, &BOTH_AT_ONE);
        assert!(searched(("both at one", mode), first, states_max).wrong.is_none());
        // Decisions follow on what is not durable yet, at the tablet's home and at another one.
        for (left, slow) in [(INSERTS, 0), (INSERTS, 1), (GROUPS, 0), (ENDS, 0), (ENDS, 1)] {
            let first = World { slow: Some(slow), ..World::first(2, mode, left) };
            let found = searched(("slow", slow, mode, left), first, states_max);
            assert!(found.wrong.is_none(), "{left:?}");
        }
    }
}

/// A search that finds nothing shows nothing.
#[test]
fn broken_rules_of_homes_are_found() {
    const BEGIN: [Step; 0] = [];
    for (bug, regions, mode, left, begins) in [
        ("table.moved-before-followed", 2, Mode::Timeline, MOVES, &BEGIN[..]),
        ("table.tombstone-forgotten-alone", 2, Mode::Timeline, INSERTS, &BEGIN),
        ("table.insert-below-forgotten", 2, Mode::Timeline, INSERTS, &BEGIN),
        ("table.shown-out-of-order", 3, Mode::Timeline, MOVES, &BEGIN),
        ("table.group-of-two-homes", 2, Mode::Timeline, GROUPS, &BEGIN),
        ("table.group-shown-in-part", 2, Mode::Strong, GROUPS, &BEGIN),
        ("table.group-waits-for-its-first", 3, Mode::Timeline, GROUPS, &BOTH_AT_ONE),
    ] {
        let _entered = with_quick_moves(Some(bug));
        let first = World::begun(regions, mode, left, begins);
        assert!(searched(bug, first, 20_000).wrong.is_some(), "{bug} is not found");
    }
}
