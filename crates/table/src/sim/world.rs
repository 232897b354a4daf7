//! The world of a run: production regions, one log each, the ways between them, all in virtual
//! microseconds. Faults are calls, so that histories draw them and stories direct them.

use super::distance::Distance;
use crate::ids::{LogId, RegionId};
use crate::message::{Answer, Message, Request};
use crate::region::{Effect, Region, Sealing, Settings};
use crate::tablet::{Form, Tablet};
use holdfast_base::random::Random;
use holdfast_base::stream::{Source, collect, read_all};
use holdfast_base::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A region that is behind a multiple of so many entries when it ticks is kept as it is then.
const SNAPSHOT_ENTRIES: u64 = 23;

/// What those of the entries that a tablet has not applied make of it.
pub fn folded(mut tablet: Tablet, entries: &[(u64, Vec<u8>)]) -> Result<Tablet> {
    let applied = tablet.applied();
    for (index, bytes) in entries.iter().filter(|(index, _)| *index > applied) {
        tablet.apply(*index, bytes, &mut Vec::new())?;
    }
    Ok(tablet)
}

/// What costs how much time.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Between a client and a region, there and back.
    pub local_us: u64,
    /// Until an append is durable.
    pub append_us: u64,
    /// Between two ticks.
    pub tick_us: u64,
    /// Drawn and added to each way, up to this.
    pub jitter_us: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { local_us: 200, append_us: 1_000, tick_us: 100_000, jitter_us: 0 }
    }
}

/// One region's process and log.
struct Site {
    region: Option<Region>,
    log: LogId,
    entries: Vec<(u64, Vec<u8>)>,
    /// The tablet as it was behind an entry: a start goes on from there.
    snapshot: Option<(u64, Vec<u8>)>,
    /// On their way into the log.
    appends: VecDeque<Vec<u8>>,
    durable_at: u64,
    /// Which start of the process it is: events of an earlier one are nobody's.
    start: u64,
}

#[derive(Debug)]
enum Event {
    Tick { at: usize, start: u64 },
    Arrive { from: RegionId, log: LogId, to: usize, message: Message },
    Durable { at: usize, start: u64 },
    Ask { at: usize, client: u64, request: Request },
    Answered { client: u64, answer: Answer },
    Wake { id: u64 },
}

/// Who lives in a world: clients, and what directs faults.
pub trait Guests {
    /// The request under `client` came to this.
    fn answered(&mut self, world: &mut World, client: u64, answer: Answer);
    /// The time that was asked for has come.
    fn wake(&mut self, world: &mut World, id: u64);
    /// Something has happened in a region.
    fn looks(&mut self, _world: &World, _region: usize) {}
}

pub struct World {
    form: Form,
    settings: Settings,
    costs: Costs,
    distance: Distance,
    now_us: u64,
    random: Random,
    sites: Vec<Site>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happening: BTreeMap<u64, Event>,
    numbered: u64,
    /// When what was sent last from one region to another arrives: messages keep their order.
    arrives_us: BTreeMap<(usize, usize), u64>,
    cut: BTreeMap<(usize, usize), bool>,
    /// Messages that went from region to region.
    pub messages: u64,
}

impl World {
    /// Regions that all start now.
    pub fn new(
        form: Form,
        settings: Settings,
        costs: Costs,
        distance: Distance,
        seed: u64,
    ) -> World {
        assert_eq!(form.members.len(), distance.regions());
        let mut world = World {
            settings,
            costs,
            distance,
            now_us: 0,
            random: Random::new(seed),
            sites: Vec::new(),
            events: BinaryHeap::new(),
            happening: BTreeMap::new(),
            numbered: 0,
            arrives_us: BTreeMap::new(),
            cut: BTreeMap::new(),
            messages: 0,
            form,
        };
        for member in world.form.members.clone() {
            world.sites.push(Site {
                region: None,
                log: member.log,
                entries: Vec::new(),
                snapshot: None,
                appends: VecDeque::new(),
                durable_at: 0,
                start: 0,
            });
        }
        for at in 0..world.sites.len() {
            world.start(at);
        }
        world
    }

    /// Virtual microseconds since the beginning.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The regions' number.
    pub fn regions(&self) -> usize {
        self.sites.len()
    }

    /// A region, while its process runs.
    pub fn region(&self, at: usize) -> Option<&Region> {
        self.sites[at].region.as_ref()
    }

    /// All regions that run.
    pub fn running(&self) -> impl Iterator<Item = &Region> {
        self.sites.iter().filter_map(|site| site.region.as_ref())
    }

    /// Which log a region has now.
    pub fn log(&self, at: usize) -> LogId {
        self.sites[at].log
    }

    /// How often a region's process was started or ended.
    pub fn starts(&self, at: usize) -> u64 {
        self.sites[at].start
    }

    /// The distances.
    pub fn distance(&self) -> &Distance {
        &self.distance
    }

    /// Sends a request to a region, half of the local time away.
    pub fn ask(&mut self, at: usize, client: u64, request: Request) {
        let time = self.now_us + self.costs.local_us / 2;
        self.at(time, Event::Ask { at, client, request });
    }

    /// Calls [`Guests::wake`] at that time.
    pub fn wake_at(&mut self, time_us: u64, id: u64) {
        self.at(time_us.max(self.now_us), Event::Wake { id });
    }

    /// Starts a region's process over what its log holds.
    pub fn start(&mut self, at: usize) {
        if self.sites[at].region.is_some() {
            return;
        }
        let site = &mut self.sites[at];
        site.start += 1;
        let (log, start) = (site.log, site.start);
        let tablet = match &site.snapshot {
            None => Tablet::new(&self.form, RegionId(at as u8)),
            Some((_, bytes)) => {
                let restore = |source: &mut Source<'_>| {
                    Tablet::restore(&self.form, RegionId(at as u8), source)
                };
                read_all(bytes, restore).expect("this build has written it")
            }
        };
        let tablet = folded(tablet, &site.entries).expect("this build has written these entries");
        site.region = Some(Region::start(tablet, log, start, self.settings));
        let first = self.now_us + self.random.below(self.costs.tick_us);
        self.at(first, Event::Tick { at, start });
        self.carry_out(at);
    }

    /// Takes a snapshot now and then, whatever the tablet has come to.
    fn snapshot(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let Some(tablet) = site.region.as_ref().map(Region::tablet) else { return };
        if tablet.applied() % SNAPSHOT_ENTRIES == 0 {
            let mut bytes = Vec::new();
            collect(&mut bytes, |out| tablet.snapshot(out));
            site.snapshot = Some((tablet.applied(), bytes));
        }
    }

    /// Ends a region's process. Of the appends that are under way some are in the log.
    pub fn kill(&mut self, at: usize) {
        let site = &mut self.sites[at];
        if site.region.take().is_none() {
            return;
        }
        let kept = self.random.below(site.appends.len() as u64 + 1) as usize;
        for bytes in site.appends.drain(..).take(kept) {
            let index = site.entries.last().map_or(1, |(index, _)| index + 1);
            site.entries.push((index, bytes));
        }
        site.appends.clear();
        site.start += 1;
    }

    /// Ends a region's process, and its log holds only the first `left` entries: it is another log.
    pub fn erase(&mut self, at: usize, left: usize) {
        self.kill(at);
        let site = &mut self.sites[at];
        site.entries.truncate(left);
        let last = site.entries.last().map_or(0, |(index, _)| *index);
        site.snapshot = site.snapshot.take().filter(|(applied, _)| *applied <= last);
        site.log = LogId(site.log.0 + 1);
    }

    /// What another node makes of a region's topic, from its first entry on.
    pub fn folded_anew(&self, at: usize) -> Result<Tablet> {
        folded(Tablet::new(&self.form, RegionId(at as u8)), &self.sites[at].entries)
    }

    /// Durable entries of a region's log.
    pub fn entries(&self, at: usize) -> usize {
        self.sites[at].entries.len()
    }

    /// Cuts the way from one region to another, or opens it.
    pub fn cut(&mut self, from: usize, to: usize, is_cut: bool) {
        self.cut.insert((from, to), is_cut);
    }

    /// An operator in one region says that another one is lost.
    pub fn seal(&mut self, at: usize, lost: usize) -> Result<Sealing> {
        let Some(region) = self.sites[at].region.as_mut() else {
            return Err(Error::retry("the region does not run"));
        };
        let sealing = region.seal(RegionId(lost as u8));
        self.carry_out(at);
        sealing
    }

    /// Opens all ways, starts all regions.
    pub fn heal(&mut self) {
        self.cut.clear();
        for at in 0..self.sites.len() {
            self.start(at);
        }
    }

    /// Lets everything happen up to that time.
    pub fn run_until(&mut self, time_us: u64, guests: &mut impl Guests) {
        while let Some(Reverse((time, number))) = self.events.peek().copied() {
            if time > time_us {
                break;
            }
            self.events.pop();
            self.now_us = time;
            if let Some(event) = self.happening.remove(&number) {
                self.happen(event, guests);
            }
        }
        self.now_us = self.now_us.max(time_us);
    }

    fn happen(&mut self, event: Event, guests: &mut impl Guests) {
        match event {
            Event::Answered { client, answer } => guests.answered(self, client, answer),
            Event::Wake { id } => guests.wake(self, id),
            Event::Tick { at, start } => {
                if self.sites[at].start == start {
                    self.snapshot(at);
                    self.step(at, guests, Region::tick);
                    self.at(self.now_us + self.costs.tick_us, Event::Tick { at, start });
                }
            }
            Event::Arrive { from, log, to, message } => {
                self.step(to, guests, |region| region.arrived(from, log, message));
            }
            Event::Ask { at, client, request } => {
                self.step(at, guests, |region| region.ask(client, request));
            }
            Event::Durable { at, start } => {
                let site = &mut self.sites[at];
                if site.start != start {
                    return;
                }
                let bytes = site.appends.pop_front().expect("each append is durable once");
                let index = site.entries.last().map_or(1, |(index, _)| index + 1);
                site.entries.push((index, bytes.clone()));
                self.step(at, guests, |region| {
                    region.appended(index, &bytes).expect("this build has written it");
                });
            }
        }
    }

    fn step(&mut self, at: usize, guests: &mut impl Guests, what: impl FnOnce(&mut Region)) {
        let Some(region) = self.sites[at].region.as_mut() else { return };
        what(region);
        self.carry_out(at);
        guests.looks(self, at);
    }

    fn carry_out(&mut self, at: usize) {
        let effects = self.sites[at].region.as_mut().map(Region::effects).unwrap_or_default();
        for effect in effects {
            match effect {
                Effect::Append(bytes) => {
                    let site = &mut self.sites[at];
                    site.appends.push_back(bytes);
                    // Appends share commits, and are durable in order.
                    site.durable_at = site.durable_at.max(self.now_us + self.costs.append_us);
                    let (time, start) = (site.durable_at, site.start);
                    self.at(time, Event::Durable { at, start });
                }
                Effect::Send { to, message } => self.send(at, usize::from(to.0), message),
                Effect::Answer { client, answer } => {
                    let time = self.now_us + self.costs.local_us.div_ceil(2);
                    self.at(time, Event::Answered { client, answer });
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if self.cut.get(&(from, to)).copied().unwrap_or(false) {
            return;
        }
        self.messages += 1;
        let jitter = match self.costs.jitter_us {
            0 => 0,
            most => self.random.below(most),
        };
        let time = self.now_us + self.distance.round_trip_us(from, to) / 2 + jitter;
        let last = self.arrives_us.entry((from, to)).or_default();
        *last = time.max(*last);
        let (time, log) = (*last, self.sites[from].log);
        self.at(time, Event::Arrive { from: RegionId(from as u8), log, to, message });
    }

    fn at(&mut self, time: u64, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((time, self.numbered)));
        self.happening.insert(self.numbered, event);
    }
}
