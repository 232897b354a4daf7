//! A small world of a table of one region whose tablet is split, searched breadth first: the views of production with
//! their regions, and what carries a split on, with writes, groups and repetitions beside it, appends that take their
//! time, fail, or come late, and starts behind every entry. In each state nothing that anybody was told is another
//! thing later; where all ends, each request has come to one thing, each key has one line of versions without gaps, and
//! whoever reads it newest reads its end. Somebody follows what shows ([`follower`]).

use super::homes::key_of_all;
use super::model::states_max;
use super::{Effect, Region, Settings};
use crate::entry::{Asked, Refusal};
use crate::message::{Answer, Expect, GroupDo, GroupWrite, Level, Op, Request};
use crate::name::hash_of;
use crate::sessions::Outcome;
use crate::tablet::span::{self, Half};
use crate::tablet::split::{Growth, Next, PIECES_BYTES, Splitting};
use crate::tablet::{Form, Mode, Tablet};
use crate::view::{Child, Made, TabletView, given};
use follower::Follower;
use holdfast_base::ids::Index;
use holdfast_base::stream;
use holdfast_env::trial::Trial;
use holdfast_view::{Applied, Context, View};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

mod follower;

const SETTINGS: Settings = Settings {
    policy: super::Policy::Wait,
    silence_ticks: 1000,
    resend_ticks: 1000,
    wait_ticks: 1000,
    return_ticks: 1000,
    window: 64,
};
const AT: u32 = 1 << 31;
/// Whoever carries the split on is the client of this number.
const DRIVER: u64 = u64::MAX;
/// Steps in which all that is under way comes to an end.
const ENDING_STEPS: usize = 60;

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Left {
    writes: u8,
    deletes: u8,
    groups: u8,
    reads: u8,
    repeats: u8,
    starts: u8,
    fails: u8,
    ticks: u8,
    follows: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write(bool),
    Delete,
    Group,
    Read,
    Repeat(usize),
    Tick(usize),
    /// The first append under way is durable.
    Durable(usize),
    /// All that is under way fails; the first of it comes later all the same, or never.
    Fails(usize),
    Late(usize),
    /// The process ends, with all that is not durable, and starts.
    Start,
    Split,
    Drive,
    /// The follower is told of so many steps of each tablet.
    Follow(usize),
}

/// What a client has asked, and what it was told.
#[derive(Clone, Debug, Hash)]
struct Ask {
    what: What,
    waits: bool,
    told: Option<String>,
    /// The versions that it has written: of the lower key and of the upper one.
    written: [u64; 2],
    /// Acknowledged before it asked.
    least: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Write(bool),
    Delete,
    Group,
    Read,
}

#[derive(Clone)]
struct World {
    views: [TabletView; 2],
    logs: [Rc<Vec<Rc<[u8]>>>; 2],
    /// And whether whoever carries the split on waits for it.
    appending: [VecDeque<(Rc<[u8]>, bool)>; 2],
    late: [Option<Rc<[u8]>>; 2],
    driver: Option<Splitting>,
    /// An entry of the driver's is under way.
    driving: bool,
    attempts: u64,
    said: bool,
    asks: Vec<Ask>,
    follower: Follower,
    left: Left,
    wrong: Option<String>,
}

fn made(mode: Mode, tablet: u16) -> Made {
    Made { form: Form::new(mode, 1), region: Form::first_region(), tablet, tablets: 1 }
}

/// A key of the lower half, or of the upper one.
fn key(is_upper: bool) -> Vec<u8> {
    let mut keys = (0u8..).map(|byte| vec![b'k', byte]);
    keys.find(|key| (hash_of(key) >= AT) == is_upper).unwrap()
}

fn context(tablet: usize) -> Context {
    Context::of(&format!("table/t/{tablet}"))
}

fn begun(tablet: usize) -> TabletView {
    TabletView::begin(&context(tablet))
}

impl World {
    fn first(mode: Mode, left: Left) -> World {
        let mut world = World {
            views: [begun(0), begun(1)],
            logs: Default::default(),
            appending: Default::default(),
            late: [None, None],
            driver: None,
            driving: false,
            attempts: 0,
            said: false,
            asks: Vec::new(),
            follower: Follower::default(),
            left,
            wrong: None,
        };
        world.append(0, made(mode, 0).command(), false);
        world.take(Step::Durable(0));
        world.start();
        world
    }

    /// Behind these steps, each of which happens.
    fn behind(mode: Mode, left: Left, steps: &[Step]) -> World {
        let mut world =
            World::first(mode, Left { writes: 3, deletes: 1, ticks: 1, follows: 1, ..left });
        for step in steps {
            assert!(world.take(*step), "{step:?}");
        }
        world.left = left;
        world
    }

    fn append(&mut self, at: usize, bytes: Vec<u8>, is_drivers: bool) {
        self.appending[at].push_back((bytes.into(), is_drivers));
    }

    fn start(&mut self) {
        for view in &self.views {
            view.decide(SETTINGS, None);
        }
        (0..2).for_each(|at| self.carry_out(at));
    }

    fn with<R>(&mut self, at: usize, with: impl FnOnce(&mut Region) -> R) -> Option<R> {
        let told = self.views[at].with_region(with);
        self.carry_out(at);
        told
    }

    fn carry_out(&mut self, at: usize) {
        loop {
            let effects = self.views[at].with_region(Region::effects).unwrap_or_default();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Append(bytes) => self.append(at, bytes, false),
                    Effect::Answer { client: DRIVER, .. } => self.driving = false,
                    Effect::Answer { client, answer } => self.answered(client as usize, answer),
                    Effect::Send { .. } => unreachable!("there is no other region"),
                }
            }
        }
    }

    fn is_wrong(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        match answer {
            Answer::Retry(_) => self.asks[at].waits = false,
            Answer::Elsewhere(request) => self.ask(at, *request),
            Answer::Value { found, .. } => self.was_read(at, found.map(|(version, _)| version)),
            Answer::Done { outcome, .. } => self.is_told(at, &outcome),
            other => self.is_wrong(format!("{at} was answered {other:?}")),
        }
    }

    fn was_read(&mut self, at: usize, found: Option<u64>) {
        self.asks[at].waits = false;
        let least = self.asks[at].least;
        let may_be_gone = self.asks.iter().any(|ask| ask.what == What::Delete);
        if found.map_or(least > 0 && !may_be_gone, |version| version < least) {
            self.is_wrong(format!("{at} read {found:?} behind {least}"));
        }
        self.asks[at].told = Some(String::new());
    }

    fn is_told(&mut self, at: usize, outcome: &Outcome) {
        let told = format!("{outcome:?}");
        let (before, what) = (self.asks[at].told.clone(), self.asks[at].what);
        self.asks[at].waits = false;
        if before.as_ref().is_some_and(|before| *before != told) {
            return self.is_wrong(format!("{at} was told {before:?}, and then {told}"));
        }
        let written = match (outcome, what) {
            (Outcome::Written(version), What::Write(false)) => [*version, 0],
            (Outcome::Written(version), _) => [0, *version],
            (Outcome::Group(versions), _) => [versions[0], versions[1]],
            _ => [0, 0],
        };
        for (upper, version) in written.into_iter().enumerate().filter(|(_, v)| *v > 0) {
            let mut others = self.asks.iter().enumerate().filter(|(other, _)| *other != at);
            if others.any(|(_, ask)| ask.written[upper] == version) {
                self.is_wrong(format!("version {version} of a key was told twice"));
            }
        }
        (self.asks[at].told, self.asks[at].written) = (Some(told), written);
    }

    fn cut(&self) -> Vec<(u32, u32, u16)> {
        let span_of = |number: u16| {
            let span = self.views[usize::from(number)].look(|tablet| tablet.span().clone());
            Ok::<_, Infallible>(span.expect("whoever has keys is whole"))
        };
        span::cut(1, span_of).unwrap()
    }

    fn number_of(&self, key: &[u8]) -> u16 {
        span::number_at(&self.cut(), hash_of(key))
    }

    /// As the face does it.
    fn ask(&mut self, at: usize, request: Request) {
        let cut = self.cut();
        let number_of = |key: &[u8]| usize::from(span::number_at(&cut, hash_of(key)));
        let number = number_of(&request.key);
        if let Op::Group { writes, asked } = &request.op
            && writes.iter().any(|write| number_of(&write.key) != number)
        {
            let knows = |tablet: &Tablet| tablet.sessions().knows(*asked);
            if !self.views[number].look(knows).unwrap() {
                // Told by no entry.
                return self.is_told(at, &Outcome::Refused(Refusal::Apart { at: 1 }));
            }
        }
        self.with(number, |region| region.ask(at as u64, request));
    }

    fn request(&self, at: usize) -> Request {
        let value = vec![at as u8];
        let asked = Asked { session: 7, sequence: at as u64 + 1, below: 1 };
        let expect = Expect::Any;
        let put = |is_upper| GroupWrite {
            key: key(is_upper),
            expect,
            what: GroupDo::Put(value.clone().into()),
        };
        let (is_upper, op) = match self.asks[at].what {
            What::Write(upper) => (upper, Op::Write { asked, value: Some(value), expect }),
            What::Delete => (true, Op::Write { asked, value: None, expect }),
            What::Group => return Request::group(asked, vec![put(false), put(true)]),
            What::Read => (true, Op::Read(Level::Latest)),
        };
        Request { key: key(is_upper), op }
    }

    fn begin(&mut self, what: What) {
        let least = self.asks.iter().map(|ask| ask.written[1]).max().unwrap_or(0);
        self.asks.push(Ask { what, waits: true, told: None, written: [0, 0], least });
        let at = self.asks.len() - 1;
        self.ask(at, self.request(at));
    }

    /// False where there is nothing to do.
    fn take(&mut self, step: Step) -> bool {
        let left = self.left;
        let some = |count: &mut u8| count.checked_sub(1).map(|less| *count = less).is_some();
        match step {
            Step::Write(upper) if some(&mut self.left.writes) => self.begin(What::Write(upper)),
            Step::Delete if some(&mut self.left.deletes) => self.begin(What::Delete),
            Step::Group if some(&mut self.left.groups) => self.begin(What::Group),
            Step::Read if some(&mut self.left.reads) => self.begin(What::Read),
            Step::Repeat(at) if at < self.asks.len() && some(&mut self.left.repeats) => {
                if self.asks[at].waits || self.asks[at].what == What::Read {
                    self.left = left;
                    return false;
                }
                self.asks[at].waits = true;
                self.ask(at, self.request(at));
            }
            Step::Tick(at) if some(&mut self.left.ticks) => return self.tick(at),
            Step::Durable(at) => return self.is_durable(at),
            Step::Fails(at) if !self.appending[at].is_empty() && some(&mut self.left.fails) => {
                let all = std::mem::take(&mut self.appending[at]);
                self.late[at] = all.front().map(|(bytes, _)| bytes.clone());
                self.driving &= !all.iter().any(|(_, is_drivers)| *is_drivers);
                self.with(at, Region::append_failed);
                self.is_said_again();
            }
            Step::Late(at) => match self.late[at].take() {
                Some(bytes) => self.is_in_log(at, bytes),
                None => return false,
            },
            Step::Start if some(&mut self.left.starts) => {
                self.begins_anew();
                self.start();
            }
            Step::Split if !self.said => {
                self.said = true;
                self.append(1, child(made(self.mode(), 1)), false);
            }
            Step::Drive => return self.drive(),
            Step::Follow(most) if some(&mut self.left.follows) => self.follow(most),
            _ => return false,
        }
        true
    }

    fn mode(&self) -> Mode {
        self.views[0].look(|tablet| tablet.form().mode).unwrap()
    }

    fn tick(&mut self, at: usize) -> bool {
        self.views[at].decide(SETTINGS, None);
        self.with(at, Region::tick).is_some()
    }

    fn is_durable(&mut self, at: usize) -> bool {
        let Some((bytes, is_drivers)) = self.appending[at].pop_front() else { return false };
        self.driving &= !is_drivers;
        self.is_in_log(at, bytes);
        true
    }

    fn is_in_log(&mut self, at: usize, bytes: Rc<[u8]>) {
        let log = Rc::make_mut(&mut self.logs[at]);
        log.push(bytes.clone());
        let index = Index(log.len() as u64);
        if let Applied::UnknownVersion(why) = self.views[at].apply(index, &bytes) {
            self.is_wrong(why);
        }
        self.carry_out(at);
    }

    fn begins_anew(&mut self) {
        self.appending = Default::default();
        self.late = [None, None];
        (self.driver, self.driving) = (None, false);
        self.follower.life += 1;
        self.asks.iter_mut().for_each(|ask| ask.waits = false);
        self.views = [begun(0), begun(1)];
        for at in 0..2 {
            for (index, bytes) in (1..).zip(self.logs[at].iter()) {
                self.views[at].apply(Index(index), bytes);
            }
        }
        // Another process begins with snapshots.
        for (at, view) in self.views.iter_mut().enumerate() {
            let mut bytes = Vec::new();
            stream::collect(&mut bytes, |out| view.snapshot(out));
            *view = stream::read_all(&bytes, |source| TabletView::restore(&context(at), source))
                .expect("it was written so");
        }
        self.is_said_again();
    }

    /// What was said, and did not begin, whoever wants it says again.
    fn is_said_again(&mut self) {
        let is_under_way = self.appending[1].iter().any(|(bytes, _)| bytes[1] == 14);
        self.said &= is_under_way || self.views[1].growth() != Growth::None;
    }

    /// What carries a split on does what is next, once its last entry has come to something.
    fn drive(&mut self) -> bool {
        if self.driving {
            return false;
        }
        let growth = self.views[1].growth();
        let has_begun = self.said && growth != Growth::None;
        let span = self.views[0].look(|tablet| tablet.span().clone()).unwrap();
        if span.leaving.is_none() {
            // Where it was said and has not come to anything, it is said again.
            let half = Half { at: AT, child: 1 };
            let can = has_begun && span.left.is_empty();
            self.driving = can;
            return can && self.with(0, |region| region.split(DRIVER, half)).is_some();
        }
        self.attempts += u64::from(self.driver.is_none());
        let mut driver = self.driver.take().unwrap_or_else(|| Splitting::new(self.attempts));
        let next = self.views[0].look(|tablet| driver.next(tablet, &growth)).unwrap();
        self.driver = Some(driver);
        self.driving = true;
        match next {
            Ok(Some(Next::Begin(tablet, _))) => {
                self.append(1, child(made(self.mode(), tablet)), true);
            }
            Ok(Some(Next::Give(_, pieces))) => self.append(1, given(&pieces), true),
            Ok(Some(Next::HandOver(tablet))) => {
                self.views[1].decide(SETTINGS, None);
                self.with(0, |region| region.hand_over(DRIVER, tablet));
            }
            Ok(None) => self.driving = false,
            Err(e) => self.is_wrong(e.message),
        }
        true
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![
            Step::Write(false),
            Step::Write(true),
            Step::Delete,
            Step::Group,
            Step::Read,
            Step::Start,
            Step::Split,
            Step::Drive,
            Step::Follow(1),
            Step::Follow(usize::MAX),
        ];
        steps.extend((0..self.asks.len()).map(Step::Repeat));
        for at in 0..2 {
            steps.extend([Step::Tick(at), Step::Durable(at), Step::Fails(at), Step::Late(at)]);
        }
        steps
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.logs, &self.appending, &self.late, self.left, &self.asks).hash(&mut hasher);
        (self.driving, self.said, self.attempts).hash(&mut hasher);
        self.follower.hash(&mut hasher);
        self.driver.as_ref().map(Splitting::key).hash(&mut hasher);
        for view in &self.views {
            let of_region = |region: &mut Region| {
                let leaving: Vec<_> = region.leads.values().map(|lead| lead.leaving()).collect();
                (key_of_all(region), region.pending.len(), region.splitting.len(), leaving)
            };
            view.with_region(of_region).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// What is wrong where nothing fails any more, and everybody asks until he is told.
    fn end(&self) -> Option<String> {
        let mut world = self.clone();
        let count = world.asks.len() as u8;
        for _ in 0..ENDING_STEPS {
            world.left = Left { ticks: u8::MAX, repeats: count, ..Left::default() };
            while world.is_durable(0) || world.is_durable(1) {}
            for at in 0..2 {
                world.tick(at);
            }
            if world.said {
                world.drive();
            }
            let untold: Vec<usize> =
                (0..world.asks.len()).filter(|at| world.asks[*at].told.is_none()).collect();
            let is_quiet = world.appending.iter().all(VecDeque::is_empty);
            if untold.is_empty() && is_quiet && (world.cut().len() == 2) == world.said {
                break;
            }
            for at in untold {
                world.take(Step::Repeat(at));
            }
        }
        if world.wrong.is_some() {
            return world.wrong;
        }
        let is_split = world.cut().len() == 2;
        if is_split != world.said {
            return Some(format!("it was said: {}, and it is split: {is_split}", world.said));
        }
        let unanswered = |ask: &Ask| ask.told.is_none() && ask.what != What::Read;
        if world.asks.iter().any(unanswered) {
            return Some(format!("nobody is told: {:?}", world.asks));
        }
        (0..2).find_map(|upper| world.line(upper)).or_else(|| world.followed())
    }

    /// What is wrong with the versions of a key.
    fn line(&self, upper: usize) -> Option<String> {
        let mut versions: Vec<(u64, usize)> = Vec::new();
        for (at, ask) in self.asks.iter().enumerate().filter(|(_, ask)| ask.written[upper] > 0) {
            versions.push((ask.written[upper], at));
        }
        versions.sort_unstable();
        // Behind what was forgotten all lines begin above that.
        let deletes = self.asks.iter().any(|ask| ask.what == What::Delete);
        let has_gaps = versions.iter().zip(1..).any(|((version, _), wanted)| *version != wanted);
        if has_gaps && !deletes {
            return Some(format!("versions of a key have gaps: {versions:?}"));
        }
        let key = key(upper == 1);
        let number = usize::from(self.number_of(&key));
        let shown = self.views[number].look(|tablet| tablet.record(&key).cloned()).unwrap();
        let shown = shown.filter(|record| record.value.is_some());
        let last = versions.last().filter(|(_, at)| self.asks[*at].what != What::Delete);
        let wanted = last.map(|(version, at)| (*version, vec![*at as u8]));
        let is = shown.map(|record| (record.version, record.value.unwrap().to_vec()));
        (is != wanted).then(|| format!("a key shows {is:?}, and was written {wanted:?}"))
    }
}

fn child(made: Made) -> Vec<u8> {
    Child { made, span: span::Span::between(AT, u32::MAX) }.command()
}

/// Breadth first; how many states there were, whether those were all, and the steps to the first one that is wrong.
fn search(first: World, states_max: usize) -> (usize, bool, Option<(Vec<Step>, String)>) {
    let mut seen: HashMap<u64, (u64, Step)> = HashMap::new();
    let start = first.key();
    let mut left = VecDeque::from([(start, first)]);
    while let Some((from, world)) = left.pop_front() {
        for step in world.steps() {
            let mut next = world.clone();
            if !next.take(step) {
                continue;
            }
            let key = next.key();
            if key == start || seen.contains_key(&key) {
                continue;
            }
            seen.insert(key, (from, step));
            let wrong = next.wrong.clone().or_else(|| next.end());
            if let Some(wrong) = wrong {
                let (mut path, mut at) = (Vec::new(), key);
                while at != start {
                    let (before, step) = seen[&at];
                    path.push(step);
                    at = before;
                }
                path.reverse();
                return (seen.len(), false, Some((path, wrong)));
            }
            left.push_back((key, next));
        }
        if seen.len() >= states_max {
            return (seen.len(), false, None);
        }
    }
    (seen.len(), true, None)
}

const WRITES: Left = Left {
    writes: 2,
    deletes: 0,
    groups: 0,
    reads: 0,
    repeats: 1,
    starts: 1,
    fails: 0,
    ticks: 1,
    follows: 0,
};
const FAILS: Left = Left { writes: 1, fails: 1, starts: 0, ticks: 2, ..WRITES };
const GROUPS: Left = Left { writes: 1, groups: 1, ..WRITES };
const READS: Left = Left { writes: 1, reads: 1, repeats: 0, ..WRITES };
const DELETES: Left = Left { writes: 1, deletes: 1, ticks: 2, ..WRITES };
/// He is told of one step after another.
const BEHIND: Left = Left { writes: 1, repeats: 0, starts: 0, ticks: 0, follows: 3, ..WRITES };
const FOLLOWS: Left = Left { repeats: 0, ticks: 0, follows: 2, ..WRITES };

/// The upper key is written.
const WRITTEN: [Step; 2] = [Step::Write(true), Step::Durable(0)];
/// It has a tombstone; and that is forgotten.
const DELETED: [Step; 4] = [WRITTEN[0], WRITTEN[1], Step::Delete, Step::Durable(0)];
const FORGOTTEN: [Step; 6] =
    [DELETED[0], DELETED[1], DELETED[2], DELETED[3], Step::Tick(0), Step::Durable(0)];
/// Somebody has followed the table since before the upper key was written.
const FOLLOWED: [Step; 3] = [Step::Follow(1), WRITTEN[0], WRITTEN[1]];
/// And so since before the lower one was, twice.
const LATE: [Step; 7] = [
    Step::Follow(1),
    Step::Write(false),
    Step::Durable(0),
    Step::Write(false),
    Step::Durable(0),
    Step::Write(true),
    Step::Durable(0),
];
/// Its half begins to leave, and the first part of it is given.
const LEAVING: [Step; 4] = [Step::Split, Step::Durable(1), Step::Drive, Step::Durable(0)];
const GIVEN: [Step; 2] = [Step::Drive, Step::Durable(1)];

fn all() -> Vec<(Mode, Left, Vec<Step>)> {
    let mut all = Vec::new();
    for mode in [Mode::Timeline, Mode::Strong] {
        for left in [WRITES, FAILS, GROUPS, READS, DELETES] {
            all.push((mode, left, Vec::new()));
            all.push((mode, left, [&WRITTEN[..], &LEAVING].concat()));
            all.push((mode, left, [&WRITTEN[..], &LEAVING, &GIVEN].concat()));
            all.push((mode, left, [&WRITTEN[..], &LEAVING, &GIVEN, &GIVEN, &GIVEN].concat()));
        }
        all.push((mode, FOLLOWS, FOLLOWED.to_vec()));
        all.push((mode, FOLLOWS, [&FOLLOWED[..], &LEAVING, &GIVEN].concat()));
        all.push((mode, FOLLOWS, [&FOLLOWED[..], &LEAVING, &GIVEN, &GIVEN, &GIVEN].concat()));
        all.push((mode, BEHIND, [&LATE[..], &LEAVING, &GIVEN, &GIVEN, &GIVEN].concat()));
        for before in [&DELETED[..], &FORGOTTEN] {
            all.push((mode, DELETES, before.to_vec()));
            all.push((mode, DELETES, [before, &LEAVING, &GIVEN].concat()));
        }
    }
    all
}

#[test]
fn a_split_loses_nothing_and_does_nothing_twice_whatever_comes_between() {
    let _entered = Trial::new().with(&PIECES_BYTES, 100).enter();
    for (mode, left, steps) in all() {
        let (states, is_all, wrong) = search(World::behind(mode, left, &steps), states_max(600));
        println!("{states} states behind {steps:?}, all of them: {is_all}, {left:?}");
        assert!(wrong.is_none(), "{left:?}, {steps:?}: {wrong:#?}");
    }
}

/// A check that never fails checks nothing.
#[test]
fn each_rule_of_a_split_is_one_that_the_search_needs() {
    for bug in [
        "table.changes-of-a-half-from-now",
        "table.changes-of-a-half-too-soon",
        "table.read-behind-a-split",
        "table.split-decides-on",
        "table.split-forgets-meanwhile",
        "table.split-whole-too-soon",
        "table.split-without-floor",
        "table.split-without-results",
    ] {
        let _entered = Trial::new().with(&PIECES_BYTES, 100).planting(bug).enter();
        let found = all().into_iter().find_map(|(mode, left, steps)| {
            search(World::behind(mode, left, &steps), states_max(600)).2
        });
        let (path, wrong) = found.unwrap_or_else(|| panic!("{bug} is not noticed"));
        println!("{bug}: {path:?}: {wrong}");
    }
}
