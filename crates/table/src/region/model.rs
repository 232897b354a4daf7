//! A small world of a timeline table's regions, searched breadth first up to a bound: production regions with their topics and
//! all that they remember, a few writes and groups, operators who call whichever region lost at any time, ways that are cut,
//! messages that are lost, processes that end. A tick is one in which all is due that waits: what time may do, it may
//! do at any time. Once everything heals, no version follows on what was cut off, and what was cut off is a branch.

use super::{Effect, Region, Settings};
use crate::entry::{Asked, Body, Change, Entry};
use crate::ids::{LogId, Place, RegionId, StreamId};
use crate::message::{Expect, GroupDo, GroupWrite, Message, Op, Request};
use crate::stream::Stream;
use crate::tablet::{Form, Mode, Tablet};
use holdfast_base::codec::Encode;
use holdfast_env::trial::Trial;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const REGIONS: usize = 3;
const LOG: LogId = LogId(1);
const SETTINGS: Settings = Settings {
    policy: super::Policy::Takeover,
    silence_ticks: 0,
    resend_ticks: 2,
    wait_ticks: 30,
    return_ticks: 0,
    window: 64,
};
/// Whoever claims in vain claims again in a later round: states of later ones are seen, and nothing behind them.
const ROUNDS_MAX: u64 = 4;
/// More messages than that come of nothing that ends.
const CASCADE_MAX: usize = 5_000;
/// Ticks of all regions in which what heals is quiet again.
const HEALING_TICKS: usize = 150;

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    writes: u8,
    /// Of what is at home in the region and of a new key.
    groups: u8,
    seals: u8,
    cuts: u8,
    losses: u8,
    ends: u8,
}

/// A write that was decided, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Written {
    key: u8,
    stream: StreamId,
    place: Place,
    version: u64,
    /// The version that it follows is this one of those that were decided.
    behind: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick(usize),
    Write(usize, u8),
    Group(usize),
    Seal(usize, usize),
    /// All ways of a region are cut, or all from it; or all are open again.
    Away(usize),
    Mute(usize),
    Back(usize),
    /// A process ends, and starts anew.
    End(usize),
}

/// A step, and which of the messages that it brings about is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Move {
    step: Step,
    loses: Option<usize>,
}

impl fmt::Debug for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.step)?;
        self.loses.map_or(Ok(()), |at| write!(f, ", and message {at} is lost"))
    }
}

#[derive(Clone)]
struct State {
    regions: Vec<(Rc<Region>, u64)>,
    cut: [[bool; REGIONS]; REGIONS],
    left: Left,
    written: Rc<Vec<Written>>,
    starts: u64,
}

fn place_key(place: Place, key: &mut Vec<u64>) {
    key.extend([place.epoch.0, place.number]);
}

/// Everything that tells regions from each other, as numbers, but for what is only for strong tables.
pub(super) fn key_of(region: &Region) -> u64 {
    let mut key = Vec::with_capacity(256);
    for stream in region.tablet.streams() {
        let id = stream.id();
        place_key(stream.matched(), &mut key);
        place_key(region.tablet.shown(id).place, &mut key);
        key.extend([stream.promised().0, stream.leading().map_or(0, |epoch| epoch.0)]);
        key.push(stream.tail().number);
        for entry in stream.behind(0, usize::MAX) {
            key.push(entry.place.epoch.0);
            key.extend(entry.asked.map(|asked| asked.session << 8 | asked.sequence));
            let what = match &entry.body {
                Body::Change(change) => {
                    let (home, origin) = (u64::from(change.home.0), u64::from(change.origin.0));
                    change.version << 24 | u64::from(change.key[0]) << 16 | origin << 8 | home
                }
                Body::Branch(branch) => 1 << 32 | branch.id.place.number,
                Body::Group(changes) => {
                    key.extend(changes.iter().map(|change| change.version));
                    3 << 32 | u64::from(changes[0].key[0])
                }
                _ => 2 << 32,
            };
            key.push(what);
        }
        key.push(u64::MAX);
        if let Some(lead) = region.leads.get(&id) {
            lead.key(&mut key);
        }
        if let Some(claim) = region.claims.get(&id) {
            key.push(u64::MAX - 1);
            claim.key(&mut key);
        }
        if let Some(promised) = region.promised_to.get(&id) {
            key.push(u64::MAX - 2);
            promised.key(&mut key);
        }
    }
    for ((stream, of), ack) in &region.acks {
        key.extend([u64::from(stream.0), u64::from(of.0), ack.shown]);
        place_key(ack.matched, &mut key);
    }
    for ((stream, of), epoch) in &region.told_by {
        key.extend([u64::from(stream.0), u64::from(of.0), epoch.0]);
    }
    let heard = |of: &super::Heard| u64::from(of.ticks_ago.min(2)) << 32 | of.log.0;
    key.extend(region.heard.values().map(heard));
    for lost in [region.lost, region.tablet.lost()] {
        key.push(lost.map_or(99, |lost| u64::from(lost.0)));
    }
    if let Some(taking) = &region.taking {
        taking.key(&mut key);
    }
    key.extend([u64::from(region.tablet.takes_image()), region.givers_tried as u64]);
    let branches = region.tablet.branches();
    for (at, of) in [branches.said(), branches.unsaid()].into_iter().enumerate() {
        key.push(at as u64);
        for id in of.keys() {
            key.push(u64::from(id.stream.0));
            place_key(id.place, &mut key);
        }
    }
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// All that the region waits for is due, and its clients wait for nothing: whoever waited may ask again.
fn hurry(region: &mut Region, away: impl Fn(RegionId) -> bool) {
    let resend = region.settings.resend_ticks;
    region.cooling.clear();
    region.yielded.clear();
    region.pending.clear();
    region.parked.clear();
    region.parked_bytes = 0;
    region.writing.clear();
    region.reading_sessions.clear();
    region.giving.clear();
    region.out.clear();
    region.claims.values_mut().for_each(|claim| claim.hurry(resend));
    region.leads.values_mut().for_each(|lead| lead.hurry(resend, |_| true));
    if let Some(taking) = &mut region.taking {
        taking.hurry(resend, away);
    }
    region.left_ticks = 100;
    region.up_ticks = resend * 10 - 1;
    for heard in region.heard.values_mut() {
        heard.ticks_ago = heard.ticks_ago.min(2);
    }
}

impl State {
    fn first(left: Left) -> State {
        let form = Form::new(Mode::Timeline, REGIONS as u8);
        let region = |at: usize| {
            let mut tablet = Tablet::new(&form, RegionId(at as u8));
            tablet.apply(1, &Entry::Log(LOG).to_bytes(), &mut Vec::new()).unwrap();
            Region::start(tablet, LOG, 1, SETTINGS)
        };
        let regions = (0..REGIONS).map(|at| (Rc::new(region(at)), 0)).collect();
        let cut = [[false; REGIONS]; REGIONS];
        let mut state = State { regions, cut, left, written: Rc::new(Vec::new()), starts: 1 };
        for at in (0..REGIONS).chain(0..REGIONS) {
            state.carry_out(at, Region::tick, None);
        }
        state.tidy();
        state
    }

    /// Whoever is at home in each region has a record, so that no stream is empty.
    fn with_records(left: Left) -> State {
        let mut state = State::first(Left { writes: u8::MAX, ..left });
        for _ in 0..2 {
            for at in 0..REGIONS {
                let wrote = state.take(Move { step: Step::Write(at, at as u8), loses: None });
                assert!(wrote.is_some(), "region {at} writes");
            }
        }
        for at in (0..REGIONS).chain(0..REGIONS) {
            state.take(Move { step: Step::Tick(at), loses: None });
        }
        state.left = left;
        state.tidy();
        state
    }

    /// And region 0, which nobody hears any more, has decided on another one's insert.
    fn with_one_alone(left: Left) -> State {
        let mut state = State::with_records(Left { writes: u8::MAX, cuts: u8::MAX, ..left });
        for step in [Step::Mute(0), Step::Write(1, NEW)] {
            assert!(state.take(Move { step, loses: None }).is_some(), "{step:?}");
        }
        state.left = left;
        state
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.regions.iter().for_each(|(_, key)| key.hash(&mut hasher));
        (self.cut, self.left, &self.written).hash(&mut hasher);
        hasher.finish()
    }

    fn tidy(&mut self) {
        for at in 0..REGIONS {
            let cut = self.cut;
            let away = |of: RegionId| cut[at][usize::from(of.0)] || cut[usize::from(of.0)][at];
            let (region, key) = &mut self.regions[at];
            let region = Rc::make_mut(region);
            hurry(region, away);
            *key = key_of(region);
        }
    }

    /// Does it, and lets all happen that comes of it: each append is durable at once, each message is there at once,
    /// or lost. How many messages there were.
    fn carry_out(
        &mut self,
        at: usize,
        what: impl FnOnce(&mut Region),
        loses: Option<usize>,
    ) -> usize {
        let mut under_way: VecDeque<(usize, usize, Message)> = VecDeque::new();
        let mut sent = 0;
        let begins = at;
        what(Rc::make_mut(&mut self.regions[at].0));
        let mut next = Some(at);
        while let Some(at) = next {
            let region = Rc::make_mut(&mut self.regions[at].0);
            loop {
                let effects = region.effects();
                if effects.is_empty() {
                    break;
                }
                for effect in effects {
                    match effect {
                        Effect::Append(bytes) => {
                            let index = region.tablet.applied() + 1;
                            region.appended(index, &bytes).unwrap();
                        }
                        Effect::Send { to, message } => {
                            let to = usize::from(to.0);
                            // An image takes its time: it is asked for again in a tick.
                            let waits = matches!(message, Message::ImageAsked { image: None, .. });
                            if !(self.cut[at][to] || waits && at != begins) {
                                if loses != Some(sent) {
                                    under_way.push_back((at, to, message));
                                }
                                sent += 1;
                            }
                        }
                        Effect::Answer { .. } => {}
                    }
                }
            }
            assert!(sent < CASCADE_MAX, "messages without end");
            next = under_way.pop_front().map(|(from, to, message)| {
                Rc::make_mut(&mut self.regions[to].0).arrived(RegionId(from as u8), LOG, message);
                to
            });
        }
        sent
    }

    /// Which writes were decided by this.
    fn take_down(&mut self) {
        let mut written = self.written.clone();
        for (region, _) in &self.regions {
            for stream in region.tablet.streams() {
                for entry in stream.behind(0, usize::MAX) {
                    let at = (stream.id(), entry.place);
                    let is_new = !written.iter().any(|w| (w.stream, w.place) == at);
                    for change in entry.body.changes().iter().filter(|_| is_new) {
                        let behind = self.behind(change, region);
                        Rc::make_mut(&mut written).push(Written {
                            key: change.key[0],
                            stream: at.0,
                            place: at.1,
                            version: change.version,
                            behind,
                        });
                    }
                }
            }
        }
        self.written = written;
    }

    /// The version that a change follows, as the region had it that decided on it.
    fn behind(&self, change: &Change, region: &Region) -> Option<usize> {
        let before = change.version.checked_sub(1)?;
        let is = |w: &Written| {
            let held = region.tablet.stream(w.stream).holds(w.place);
            (w.key, w.version) == (change.key[0], before) && held
        };
        self.written.iter().rposition(is)
    }

    /// How many messages this brought about; nothing where nothing was written.
    fn ask(
        &mut self,
        at: usize,
        key: u8,
        op: impl FnOnce(Asked) -> Op,
        loses: Option<usize>,
    ) -> Option<usize> {
        let before = self.written.len();
        let sequence = before as u64 + 1;
        let op = op(Asked { session: at as u64 + 1, sequence, below: sequence });
        let request = Request { key: vec![key], op };
        let sent = self.carry_out(at, |region| region.ask(1, request), loses);
        self.take_down();
        (self.written.len() > before).then_some(sent)
    }

    /// How many messages this brought about; nothing where it changes nothing.
    fn take(&mut self, taken: Move) -> Option<usize> {
        let loses = taken.loses;
        if loses.is_some() {
            self.left.losses = self.left.losses.checked_sub(1)?;
        }
        let sent = match taken.step {
            Step::Tick(at) => self.carry_out(at, Region::tick, loses),
            Step::Write(at, key) => {
                self.left.writes = self.left.writes.checked_sub(1)?;
                let op = |asked| Op::Write { asked, value: Some(vec![1]), expect: Expect::Any };
                self.ask(at, key, op, loses)?
            }
            Step::Group(at) => {
                self.left.groups = self.left.groups.checked_sub(1)?;
                let put = |key| GroupWrite {
                    key: vec![key],
                    expect: Expect::Any,
                    what: GroupDo::Put([1].into()),
                };
                let writes = [at as u8, NEW].map(put).to_vec();
                self.ask(at, at as u8, |asked| Op::Group { asked, writes }, loses)?
            }
            Step::Seal(at, lost) => {
                self.left.seals = self.left.seals.checked_sub(1)?;
                let lost = RegionId(lost as u8);
                let region = Rc::make_mut(&mut self.regions[at].0);
                // Silence only keeps operators from what they need not do: nothing may rest on it.
                region.heard.get_mut(&lost)?.ticks_ago = 2;
                if region.may_be_sealed_off() || region.lost == Some(lost) {
                    return None;
                }
                // It is written down first.
                self.carry_out(at, |region| drop(region.seal(lost)), None);
                // Whoever says so waits for what comes of it.
                self.carry_out(at, Region::tick, loses)
            }
            Step::Away(at) | Step::Mute(at) => {
                self.left.cuts = self.left.cuts.checked_sub(1)?;
                self.open(at, [false, taken.step == Step::Mute(at)])?;
                0
            }
            Step::Back(at) => {
                self.open(at, [true, true])?;
                0
            }
            Step::End(at) => {
                self.left.ends = self.left.ends.checked_sub(1)?;
                let tablet = self.regions[at].0.tablet.clone();
                self.starts += 1;
                let started = Region::start(tablet, LOG, self.starts, SETTINGS);
                self.regions[at].0 = Rc::new(started);
                self.carry_out(at, |_| {}, loses)
            }
        };
        self.tidy();
        Some(sent)
    }

    /// Opens the ways from a region and those to it, or cuts them; nothing where they are so.
    fn open(&mut self, at: usize, [from, to]: [bool; 2]) -> Option<()> {
        let before = self.cut;
        for other in (0..REGIONS).filter(|other| *other != at) {
            (self.cut[at][other], self.cut[other][at]) = (!from, !to);
        }
        (self.cut != before).then_some(())
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..REGIONS).map(Step::Tick).collect();
        for at in 0..REGIONS {
            if self.left.writes > 0 {
                steps.push(Step::Write(at, NEW));
            }
            steps.push(Step::Group(at));
            steps.extend([Step::Away(at), Step::Mute(at), Step::Back(at), Step::End(at)]);
            let others = (0..REGIONS).filter(|other| *other != at);
            steps.extend(others.map(|other| Step::Seal(at, other)));
        }
        steps
    }

    /// Whether there is a write that some region has cut off, and another one that follows on it is not cut off
    /// everywhere: then the end may be bad.
    fn is_suspicious(&self) -> bool {
        let held = |w: &Written, region: &Region| region.tablet.stream(w.stream).holds(w.place);
        let cut_off = |w: &Written, region: &Region| {
            !held(w, region) && region.tablet.stream(w.stream).tail().epoch > w.place.epoch
        };
        self.written.iter().any(|w| {
            let Some(behind) = w.behind.map(|at| &self.written[at]) else { return false };
            let mut regions = self.regions.iter();
            behind.stream != w.stream
                && regions.clone().any(|(region, _)| cut_off(behind, region))
                && regions.any(|(region, _)| held(w, region))
        })
    }

    /// What is wrong once nothing is cut any more, and all have had time.
    fn heal(&self) -> Result<(), String> {
        let mut state = self.clone();
        state.cut = [[false; REGIONS]; REGIONS];
        let mut why = None;
        for _ in 0..HEALING_TICKS {
            for at in 0..REGIONS {
                state.carry_out(at, Region::tick, None);
            }
            why = state.restless();
            if why.is_none() {
                break;
            }
        }
        if let Some(why) = why {
            return Err(format!("it does not become quiet: {why}"));
        }
        let first = &state.regions[0].0.tablet;
        for w in state.written.iter() {
            let covers = |id: &crate::tablet::branch::BranchId| {
                id.stream == w.stream && id.key == [w.key] && id.place >= w.place
            };
            let is_branch = first.branches().said().keys().any(covers);
            if !first.stream(w.stream).holds(w.place) && !is_branch {
                return Err(format!("in no stream and in no branch: {w:?}"));
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        let mut regions = self.regions.iter();
        regions
            .all(|(region, _)| region.tablet.streams().all(|s| s.promised().round() < ROUNDS_MAX))
    }

    fn restless(&self) -> Option<String> {
        let first = &self.regions[0].0.tablet;
        for (at, (region, _)) in self.regions.iter().enumerate() {
            let tablet = &region.tablet;
            for stream in tablet.streams() {
                let id = stream.id();
                let shown = tablet.shown(id).place;
                if shown != stream.tail() {
                    let next = stream.entry(shown.number + 1);
                    return Some(format!(
                        "region {at} shows {shown} of {}, holds {}; next is {next:?}",
                        id.0,
                        stream.tail()
                    ));
                }
                let of = |s: &Stream| (s.tail(), s.promised());
                if of(first.stream(id)) != of(stream) {
                    return Some(format!("region {at} has {:?} of {}", of(stream), id.0));
                }
                if region.leads(id) != (usize::from(id.0) == at) {
                    return Some(format!("region {at} leads {}: {}", id.0, region.leads(id)));
                }
            }
            if !tablet.branches().unsaid().is_empty() {
                return Some(format!("region {at} has branches that it did not say"));
            }
            if tablet.records() != first.records() || tablet.branches() != first.branches() {
                return Some(format!("region {at} has other records"));
            }
        }
        None
    }
}

/// What a search came to.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    regions: usize,
    healed: usize,
    is_cut_short: bool,
    /// The steps to the first state that ends badly, and how.
    wrong: Option<(Vec<Move>, String)>,
}

/// The steps from the first state, which comes from itself.
fn path_to(mut key: u64, seen: &HashMap<u64, (u64, Move)>) -> Vec<Move> {
    let mut path = Vec::new();
    while seen[&key].0 != key {
        let (before, taken) = seen[&key];
        path.push(taken);
        key = before;
    }
    path.reverse();
    path
}

/// One state of so many is healed whatever it looks like.
const HEALED: u64 = 200;

/// Breadth first, so that what it finds is shortest.
fn search(first: State, states_max: usize) -> Found {
    let mut found = Found::default();
    // By each state's key the one that it came from, and how.
    let mut seen: HashMap<u64, (u64, Move)> = HashMap::new();
    let start = Move { step: Step::Tick(0), loses: None };
    seen.insert(first.key(), (first.key(), start));
    // Regions that nothing tells from each other are one in memory.
    let mut pool: HashMap<(usize, u64), Rc<Region>> = HashMap::new();
    let mut left = VecDeque::from([first]);
    while let Some(state) = left.pop_front() {
        let from = state.key();
        for step in state.steps() {
            let (mut loses, mut count) = (None, 0);
            loop {
                let taken = Move { step, loses };
                let mut next = state.clone();
                let Some(sent) = next.take(taken) else { break };
                if loses.is_none() {
                    count = if state.left.losses > 0 { sent } else { 0 };
                }
                let key = next.key();
                for (at, (region, key)) in next.regions.iter_mut().enumerate() {
                    *region = pool.entry((at, *key)).or_insert_with(|| region.clone()).clone();
                }
                if let std::collections::hash_map::Entry::Vacant(new) = seen.entry(key) {
                    new.insert((from, taken));
                    if next.is_suspicious() || key % HEALED == 0 {
                        found.healed += 1;
                        if let Err(wrong) = next.heal() {
                            found.wrong = Some((path_to(key, &seen), wrong));
                            (found.states, found.regions) = (seen.len(), pool.len());
                            return found;
                        }
                    }
                    if next.goes_on() {
                        left.push_back(next);
                    }
                }
                let following = loses.map_or(0, |at| at + 1);
                if following >= count {
                    break;
                }
                loses = Some(following);
            }
        }
        if seen.len() >= states_max {
            found.is_cut_short = true;
            break;
        }
    }
    (found.states, found.regions) = (seen.len(), pool.len());
    found
}

/// States of one search.
pub(super) fn states_max(usual: usize) -> usize {
    let max = std::env::var("HOLDFAST_TABLE_STATES").ok().and_then(|text| text.parse().ok());
    max.unwrap_or(usual)
}

/// A key that nobody has written: the tablet's home inserts it, and it is at home where that came from.
const NEW: u8 = 9;

const SEALS: Left = Left { writes: 1, groups: 0, seals: 2, cuts: 1, losses: 0, ends: 0 };
const LOSSES: Left = Left { losses: 1, ..SEALS };
const ENDS: Left = Left { ends: 1, ..SEALS };
const WRITES: Left = Left { writes: 2, ..SEALS };
const GROUPS: Left = Left { writes: 1, groups: 1, ..SEALS };
const MORE_SEALS: Left = Left { seals: 3, cuts: 2, ..SEALS };

fn searched(first: State, states_max: usize) -> Found {
    let found = search(first, states_max);
    println!(
        "{} states, {} regions, {} healed, cut short: {}",
        found.states, found.regions, found.healed, found.is_cut_short
    );
    if let Some((path, wrong)) = &found.wrong {
        println!("{path:#?}\n{wrong}");
    }
    found
}

#[test]
fn whoever_is_sealed_nothing_follows_on_what_was_cut_off() {
    for left in [SEALS, LOSSES, ENDS, WRITES, GROUPS, MORE_SEALS] {
        for first in [State::first, State::with_records, State::with_one_alone] {
            assert!(searched(first(left), states_max(6_000)).wrong.is_none(), "{left:?}");
        }
    }
}

/// Two regions call others lost at once. One takes a stream over while its own is sealed, and decides in that on what
/// only it has in its own.
#[test]
fn who_is_sealed_off_and_takes_over_would_decide_on_what_is_cut_off() {
    let _entered = Trial::new().planting("table.decides-on-what-it-led").enter();
    let found = searched(State::with_one_alone(SEALS), 60_000);
    let (path, wrong) = found.wrong.expect("it decides");
    assert!(path.len() < 10 && wrong.contains("shows"), "{path:?} {wrong}");
}
