//! One history from one seed: clients of all regions that read and write a few records while
//! regions are killed, cut off, erased and brought back; then everything heals, and what was told is
//! checked.

use super::caches::Caches;
use super::check::{
    self,
    groups::{Groups, half_shown},
};
use super::distance::Distance;
use super::faults::Faults;
use super::world::{Costs, Guests, World};
use crate::entry::{Asked, Body, Refusal, StreamEntry};
use crate::ids::{Key, Place, StreamId};
use crate::message::{Answer, Expect, GroupDo, GroupWrite, Level, Op, Request};
use crate::region::{Policy, Region, Settings};
use crate::sessions::Outcome;
use crate::tablet::branch::BranchId;
use crate::tablet::{Form, Mode};
use crate::token::Token;
use holdfast_base::random::Random;
use holdfast_env::sometimes;
use std::collections::BTreeMap;

/// What a history is drawn from, beside its seed.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub mode: Mode,
    pub policy: Policy,
    /// Three or five.
    pub regions: u8,
    /// Virtual seconds in which clients work and faults are drawn.
    pub seconds: u64,
    pub faults: bool,
    /// Regions are short of patience, and faults short and many: takeovers meet.
    pub storm: bool,
    /// Of a timeline table: operators say that regions are lost which are away.
    pub seals: bool,
    /// Some writes are of several records, which stand or fall together.
    pub groups: bool,
}

impl Plan {
    /// The plan of a seed: mostly strong, mostly three regions.
    pub fn of(seed: u64) -> Plan {
        let mode = if seed % 4 == 3 { Mode::Timeline } else { Mode::Strong };
        let policy = if seed % 8 == 1 { Policy::Wait } else { Policy::Takeover };
        Plan {
            mode,
            policy,
            regions: if seed.is_multiple_of(5) { 5 } else { 3 },
            seconds: 40,
            faults: true,
            storm: seed % 3 == 2,
            seals: seed % 4 == 3 && seed % 16 != 3,
            // Not those that have found something before there were groups: they would be other ones.
            groups: seed.is_multiple_of(2) || (seed % 8 == 3 && seed % 64 != 43),
        }
    }
}

/// Something that a client asked, as it ended.
#[derive(Clone, Debug)]
pub struct Told {
    pub client: usize,
    pub request: Request,
    pub begins_us: u64,
    /// None: nobody has said what became of it.
    pub ends_us: Option<u64>,
    pub answer: Option<Answer>,
}

impl Told {
    /// The keys that it asked for.
    pub fn keys(&self) -> Vec<&Key> {
        match &self.request.op {
            Op::Group { writes, .. } => writes.iter().map(|write| &write.key).collect(),
            _ => vec![&self.request.key],
        }
    }

    /// The versions that it has written, as it was told.
    pub fn written(&self) -> Vec<(&Key, u64)> {
        let outcome = match &self.answer {
            Some(Answer::Done { outcome, .. }) => outcome,
            _ => return Vec::new(),
        };
        match (&self.request.op, outcome) {
            (Op::Group { writes, .. }, Outcome::Group(versions)) => {
                let writes = writes.iter().filter(|write| write.what != GroupDo::Check);
                writes.map(|write| &write.key).zip(versions.iter().copied()).collect()
            }
            (_, Outcome::Written(version)) => vec![(&self.request.key, *version)],
            _ => Vec::new(),
        }
    }
}

/// What a history came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub operations: usize,
    pub answered: usize,
    pub faults: usize,
    pub messages: u64,
}

const CLIENTS: usize = 6;
const KEYS: u64 = 5;
const SECOND: u64 = 1_000_000;
/// A client that hears nothing for so long asks again.
const PATIENCE_US: u64 = 4 * SECOND;
const ATTEMPTS: u32 = 5;

struct Client {
    region: usize,
    random: Random,
    sequence: u64,
    token: Token,
    /// The version of each key that it saw last.
    versions: BTreeMap<Vec<u8>, u64>,
    /// What it is waiting for: how often it was sent, and what it will be told as.
    waits: Option<(u32, Told)>,
    /// Requests that it has sent: an answer to an earlier one than this is of no use.
    sent: u64,
    first_sent: u64,
}

/// Clients, and what goes wrong around them.
pub struct History {
    plan: Plan,
    random: Random,
    clients: Vec<Client>,
    /// Every operation, in the order in which they ended.
    pub told: Vec<Told>,
    /// What went wrong so far.
    pub faults: Faults,
    /// What regions have shown at each place: of strong tables all show the same.
    shown: BTreeMap<(StreamId, u64), (Place, u64)>,
    /// What streams say at each place that any region ever held: they forget it, the judge does not.
    pub entries: BTreeMap<(StreamId, Place), StreamEntry>,
    /// Of those the groups.
    pub groups: Groups,
    /// Up to where each region's streams were looked at.
    looked: BTreeMap<(usize, StreamId), Place>,
    caches: Caches,
    values: u64,
    ends_us: u64,
    wrong: Option<String>,
}

/// Runs the history of a seed; an error says which promise was broken.
pub fn run(seed: u64, plan: Plan) -> Result<Summary, String> {
    let form = Form::new(plan.mode, plan.regions);
    let window = if seed.is_multiple_of(3) { 2 } else { 64 };
    let policy = plan.policy;
    let settings = match plan.storm {
        true => {
            Settings { silence_ticks: 4, resend_ticks: 2, return_ticks: 5, ..Settings::default() }
        }
        false => Settings { silence_ticks: 20, return_ticks: 10, ..Settings::default() },
    };
    let settings = Settings { policy, window, ..settings };
    let distance = if plan.regions == 5 { Distance::five() } else { Distance::three() };
    let mut random = Random::new(seed);
    let append_us = [1_000, 5_000, 60_000][random.below(3) as usize];
    let costs = Costs { jitter_us: 1 + random.below(40_000), append_us, ..Costs::default() };
    let mut world = World::new(form, settings, costs, distance, random.next());
    let mut history = History::new(plan, random, seed);
    for client in 0..CLIENTS {
        world.wake_at(history.random.below(SECOND), Wake::Begin { client }.number());
    }
    if plan.faults {
        world.wake_at(SECOND + history.random.below(2 * SECOND), Wake::Fault.number());
    }
    world.run_until(history.ends_us, &mut history);
    if let Some(wrong) = history.wrong {
        return Err(wrong);
    }
    world.heal();
    history.become_quiet(&mut world)?;
    history.write_everything(&mut world)?;
    history.become_quiet(&mut world)?;
    if let Some(wrong) = history.wrong {
        return Err(wrong);
    }
    check::all(&world, &history, plan.mode)?;
    history.resolve_everything(&mut world)?;
    let answered = history.told.iter().filter(|told| told.answer.is_some()).count();
    Ok(Summary {
        operations: history.told.len(),
        answered,
        faults: history.faults.count,
        messages: world.messages,
    })
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

impl History {
    fn new(plan: Plan, mut random: Random, seed: u64) -> History {
        let client = |i: usize| Client {
            region: i % usize::from(plan.regions),
            random: Random::new(random.next()),
            sequence: 0,
            token: Token::default(),
            versions: BTreeMap::new(),
            waits: None,
            sent: 0,
            first_sent: 0,
        };
        let clients = (0..CLIENTS).map(client).collect();
        History {
            plan,
            clients,
            told: Vec::new(),
            faults: Faults::default(),
            shown: BTreeMap::new(),
            entries: BTreeMap::new(),
            groups: Groups::new(),
            looked: BTreeMap::new(),
            caches: Caches::new(seed, plan.regions),
            values: 0,
            ends_us: plan.seconds * SECOND,
            wrong: None,
            random,
        }
    }

    fn begin(&mut self, world: &mut World, at: usize) {
        self.values += 1;
        let value = Some(self.values.to_le_bytes().to_vec());
        let client = &mut self.clients[at];
        if client.random.below(16) == 0 {
            client.region = client.random.below(world.regions() as u64) as usize;
        }
        if self.plan.groups && client.random.below(4) == 0 {
            return self.write_group(world, at);
        }
        let key = key(client.random.below(KEYS));
        let version = client.versions.get(&key).copied();
        let level = |client: &mut Client| match client.random.below(8) {
            0 => Level::Any,
            1 => version.map_or(Level::Any, Level::Critical),
            2 | 3 => Level::Session(client.token.clone()),
            4 => Level::Latest,
            _ => Level::Strong,
        };
        let (value, expect) = match client.random.below(16) {
            0..7 => {
                let op = Op::Read(level(client));
                return self.send_new(world, at, Request { key, op });
            }
            7 | 8 => (value, Expect::Absent),
            9 | 10 => (None, Expect::Any),
            11 | 12 => (value, version.map_or(Expect::Any, Expect::Version)),
            _ => (value, Expect::Any),
        };
        self.write(world, at, key, value, expect);
    }

    fn write(
        &mut self,
        world: &mut World,
        at: usize,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
        expect: Expect,
    ) {
        let client = &mut self.clients[at];
        client.sequence += 1;
        let (session, sequence) = (at as u64 + 1, client.sequence);
        let asked = Asked { session, sequence, below: sequence };
        self.send_new(world, at, Request { key, op: Op::Write { asked, value, expect } });
    }

    /// Two or three records at once, some of them only looked at.
    fn write_group(&mut self, world: &mut World, at: usize) {
        let client = &mut self.clients[at];
        let mut keys: Vec<u64> = (0..KEYS).collect();
        let count = 2 + client.random.below(2) as usize;
        let mut writes = Vec::new();
        while writes.len() < count {
            let key = key(keys.remove(client.random.below(keys.len() as u64) as usize));
            let version = client.versions.get(&key).copied();
            self.values += 1;
            let put = GroupDo::Put(self.values.to_le_bytes().into());
            let known = version.map_or(Expect::Absent, Expect::Version);
            let (what, expect) = match client.random.below(12) {
                0 => (GroupDo::Check, known),
                1 => (GroupDo::Delete, Expect::Any),
                2 => (put, known),
                3 => (put, Expect::Absent),
                _ => (put, Expect::Any),
            };
            writes.push(GroupWrite { key, expect, what });
        }
        client.sequence += 1;
        let (session, sequence) = (at as u64 + 1, client.sequence);
        let asked = Asked { session, sequence, below: sequence };
        self.send_new(world, at, Request::group(asked, writes));
    }

    fn send_new(&mut self, world: &mut World, at: usize, request: Request) {
        let client = &mut self.clients[at];
        let begins_us = world.now_us();
        let told = Told { client: at, request, begins_us, ends_us: None, answer: None };
        client.first_sent = client.sent + 1;
        client.waits = Some((0, told));
        self.send(world, at);
    }

    fn send(&mut self, world: &mut World, at: usize) {
        let client = &mut self.clients[at];
        let Some((attempts, told)) = &mut client.waits else { return };
        *attempts += 1;
        client.sent += 1;
        world.ask(client.region, (at as u64) << 32 | client.sent, told.request.clone());
        let patience = Wake::Patience { client: at, sent: client.sent };
        world.wake_at(world.now_us() + PATIENCE_US, patience.number());
    }

    /// Nobody answered, or with nothing: a write is sent again, by another region perhaps.
    fn again(&mut self, world: &mut World, at: usize) {
        let client = &mut self.clients[at];
        let Some((attempts, told)) = &client.waits else { return };
        let is_write = told.request.asked().is_some();
        if *attempts >= ATTEMPTS || !is_write {
            self.end(world, at, None);
            return;
        }
        if client.random.below(2) == 0 {
            client.region = client.random.below(world.regions() as u64) as usize;
        }
        self.send(world, at);
    }

    fn end(&mut self, world: &mut World, at: usize, answer: Option<Answer>) {
        let client = &mut self.clients[at];
        let Some((_, mut told)) = client.waits.take() else { return };
        let key = told.request.key.clone();
        told.answer = answer.clone();
        match &answer {
            Some(Answer::Done { stream, place, .. }) => {
                client.token.see(*stream, *place);
                for (key, version) in told.written() {
                    client.versions.insert(key.clone(), version);
                }
            }
            Some(Answer::Value { found, seen }) => {
                client.token.join(seen);
                if let Some((version, _)) = found {
                    client.versions.insert(key, *version);
                }
            }
            // What it had seen is gone: it begins anew.
            Some(Answer::Branched) => {
                client.token = Token::default();
                client.versions.clear();
            }
            Some(Answer::Retry(_)) | None => {}
            Some(Answer::Elsewhere(_) | Answer::Split) => unreachable!("no tablet here is split"),
        }
        told.ends_us = answer.as_ref().map(|_| world.now_us());
        self.told.push(told);
        let pause = 1 + client.random.below(100_000);
        if world.now_us() + pause < self.ends_us {
            world.wake_at(world.now_us() + pause, Wake::Begin { client: at }.number());
        }
    }

    /// Takes down what a region holds. A place has one entry, wherever it is held.
    fn take_down(&mut self, region: &Region, at: usize) {
        for stream in region.tablet().streams() {
            let id = stream.id();
            if self.looked.insert((at, id), stream.tail()) == Some(stream.tail()) {
                continue;
            }
            for entry in stream.behind(0, usize::MAX).iter().rev() {
                if let Body::Group(changes) = &entry.body {
                    let versions = changes.iter().map(|c| (c.key.clone(), c.version)).collect();
                    self.groups.insert((id, entry.place), versions);
                }
                let known = self.entries.entry((id, entry.place)).or_insert_with(|| entry.clone());
                if known != entry && self.wrong.is_none() {
                    self.wrong = Some(format!(
                        "T1: region {at} holds {entry:?} in stream {}, another one {known:?}",
                        id.0
                    ));
                }
            }
        }
    }

    /// Whether operators seal streams in it.
    pub fn seals(&self) -> bool {
        self.plan.seals
    }

    fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.waits.is_none())
    }

    fn become_quiet(&mut self, world: &mut World) -> Result<(), String> {
        let limit = world.now_us() + 120 * SECOND;
        loop {
            world.run_until(world.now_us() + SECOND, self);
            let restless = check::restless(world, self.plan.policy);
            match restless {
                None if self.is_idle() => return Ok(()),
                _ if world.now_us() < limit => {}
                None => return Err("clients wait for answers without end".to_owned()),
                Some(why) => return Err(format!("it does not become quiet: {why}")),
            }
        }
    }

    /// Every record can be written from every region, once nothing is wrong any more.
    fn write_everything(&mut self, world: &mut World) -> Result<(), String> {
        for number in 0..KEYS {
            for at in 0..world.regions().min(CLIENTS) {
                self.clients[at].region = at;
                self.values += 1;
                let value = Some(self.values.to_le_bytes().to_vec());
                self.write(world, at, key(number), value, Expect::Any);
                let before = self.told.len();
                world.run_until(world.now_us() + 3 * SECOND, self);
                let answered = self.told.get(before).and_then(|told| told.answer.clone());
                if !matches!(answered, Some(Answer::Done { .. })) {
                    return Err(format!("region {at} cannot write key {number}: {answered:?}"));
                }
            }
        }
        Ok(())
    }
}

impl History {
    /// Every branch can be resolved from every region. Two try at once, while somebody writes the record: one of them
    /// does it, unless he was to replace a version that is none any more, and then it is as it was.
    fn resolve_everything(&mut self, world: &mut World) -> Result<(), String> {
        let said = |world: &World| {
            world
                .region(0)
                .map(|region| region.tablet().branches().said().clone())
                .unwrap_or_default()
        };
        for (turn, (id, branch)) in said(world).into_iter().enumerate() {
            sometimes!("a branch was resolved");
            let regions = world.regions().min(CLIENTS);
            let record =
                world.region(0).and_then(|region| region.tablet().record(&id.key).cloned());
            let alive = record.filter(|record| record.value.is_some());
            let expect = alive.map_or(Expect::Absent, |record| Expect::Version(record.version));
            let keeps = match turn % 4 {
                0 => [Some(expect), Some(expect)],
                1 => [None, None],
                _ => [Some(expect), None],
            };
            let before = self.told.len();
            for (client, keep) in keeps.into_iter().enumerate() {
                self.clients[client].region = (turn + client) % regions;
                self.resolve(world, client, &id, keep);
                world.run_until(world.now_us() + self.random.below(100_000), self);
            }
            let writes = turn % 3 == 0;
            if writes {
                self.clients[2].region = (turn + 2) % regions;
                self.values += 1;
                let value = Some(self.values.to_le_bytes().to_vec());
                self.write(world, 2, id.key.clone(), value, Expect::Any);
            }
            // A process ends meanwhile, and what was on its way goes with it, or not.
            if self.random.below(2) == 0 {
                let at = self.random.below(world.regions() as u64) as usize;
                world.kill(at);
                world.run_until(world.now_us() + self.random.below(200_000), self);
                world.start(at);
            }
            self.wait_for_all(world);
            let told = &self.told[before..];
            let resolves = |told: &&Told| matches!(told.request.op, Op::Resolve { .. });
            let outcomes: Vec<Option<Outcome>> = told
                .iter()
                .filter(resolves)
                .map(|told| match &told.answer {
                    Some(Answer::Done { outcome, .. }) => Some(outcome.clone()),
                    _ => None,
                })
                .collect();
            let done = outcomes.iter().filter(|told| **told == Some(Outcome::Resolved)).count();
            let found = |told: &Option<Outcome>| {
                matches!(told, Some(Outcome::Refused(Refusal::Found(_) | Refusal::Absent)))
            };
            let all_found = writes && outcomes.iter().all(found);
            let answered = outcomes.len() == 2 && outcomes.iter().all(Option::is_some);
            if !answered || (done != 1 && !(done == 0 && all_found)) {
                return Err(format!("T1: two resolve {branch:?} at once: {outcomes:?}"));
            }
            if done == 0 {
                if !said(world).contains_key(&id) {
                    return Err(format!("T1: nobody has resolved {branch:?}, and it is gone"));
                }
                self.resolve(world, 0, &id, None);
                self.wait_for_all(world);
            }
        }
        self.become_quiet(world)?;
        match world.running().all(|region| region.tablet().branches().is_empty()) {
            true => check::settled(world, self),
            false => Err("T1: a branch is there that was resolved".to_owned()),
        }
    }

    fn wait_for_all(&mut self, world: &mut World) {
        let limit = world.now_us() + 40 * SECOND;
        while !self.is_idle() && world.now_us() < limit {
            world.run_until(world.now_us() + SECOND / 4, self);
        }
        // What they were told shows everywhere.
        world.run_until(world.now_us() + SECOND, self);
    }

    fn resolve(&mut self, world: &mut World, at: usize, id: &BranchId, keep: Option<Expect>) {
        let client = &mut self.clients[at];
        client.sequence += 1;
        let (session, sequence) = (at as u64 + 1, client.sequence);
        let asked = Asked { session, sequence, below: sequence };
        let (stream, place, said) = (id.stream, id.place, Place::default());
        let op = Op::Resolve { asked, stream, place, said, keep };
        self.send_new(world, at, Request { key: id.key.clone(), op });
    }
}

/// What a history wakes for, as the number that the world keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Begin {
        client: usize,
    },
    Patience {
        client: usize,
        sent: u64,
    },
    Fault,
    /// This fault is over: a number of [`faults::Over`].
    Over {
        what: u64,
    },
}

impl Wake {
    fn number(self) -> u64 {
        match self {
            Wake::Begin { client } => client as u64,
            Wake::Patience { client, sent } => 1 << 56 | sent << 8 | client as u64,
            Wake::Fault => 2 << 56,
            Wake::Over { what } => 3 << 56 | what,
        }
    }

    fn of(number: u64) -> Wake {
        let rest = number & ((1 << 56) - 1);
        let client = (rest & 0xff) as usize;
        match number >> 56 {
            0 => Wake::Begin { client },
            1 => Wake::Patience { client, sent: rest >> 8 },
            2 => Wake::Fault,
            _ => Wake::Over { what: rest },
        }
    }
}

impl Guests for History {
    fn answered(&mut self, world: &mut World, number: u64, answer: Answer) {
        let (at, sent) = ((number >> 32) as usize, number & 0xffff_ffff);
        let client = &self.clients[at];
        if client.waits.is_none() || sent < client.first_sent {
            return;
        }
        match answer {
            Answer::Retry(_) if sent == client.sent => self.again(world, at),
            Answer::Retry(_) => {}
            answer => self.end(world, at, Some(answer)),
        }
    }

    fn wake(&mut self, world: &mut World, number: u64) {
        match Wake::of(number) {
            Wake::Begin { client } => self.begin(world, client),
            Wake::Patience { client, sent } => {
                let waits = &self.clients[client];
                if waits.waits.is_some() && waits.sent == sent {
                    self.again(world, client);
                }
            }
            Wake::Fault => {
                let faults = &mut self.faults;
                let over = faults.draw(world, &mut self.random, self.plan);
                for (delay, what) in over {
                    world.wake_at(world.now_us() + delay, Wake::Over { what }.number());
                }
                let pause = match self.plan.storm {
                    true => SECOND / 20 + self.random.below(SECOND / 2),
                    false => SECOND / 2 + self.random.below(3 * SECOND),
                };
                let next = world.now_us() + pause;
                if next < self.ends_us {
                    world.wake_at(next, Wake::Fault.number());
                }
            }
            Wake::Over { what } => self.faults.over(world, what),
        }
    }

    /// Whatever shows at a place of a strong stream is the same everywhere, for ever; and what is cached is what shows.
    fn looks(&mut self, world: &World, at: usize) {
        let Some(region) = world.region(at) else { return };
        self.take_down(region, at);
        if let Some(half) = half_shown(region.tablet(), self).filter(|_| self.wrong.is_none()) {
            self.wrong = Some(format!("region {at}: {half}"));
        }
        if let Err(wrong) = self.caches.look(world, at) {
            self.wrong.get_or_insert(wrong);
        }
        if self.plan.mode == Mode::Timeline {
            return;
        }
        for stream in region.tablet().streams() {
            let shown = region.tablet().shown(stream.id());
            if shown.place.number == 0 {
                continue;
            }
            let known = self.shown.entry((stream.id(), shown.place.number));
            let known = *known.or_insert((shown.place, shown.digest));
            if known != (shown.place, shown.digest) && self.wrong.is_none() {
                self.wrong = Some(format!(
                    "T1: region {at} shows {} in stream {}, another one showed {}",
                    shown.place,
                    stream.id().0,
                    known.0
                ));
            }
        }
    }
}
