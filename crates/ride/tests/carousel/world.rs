//! A driver without threads, files or connections: it carries out the core's effects, answers them
//! in any order, and looks at each step whether what it is told to do may be.

mod checks;
mod effects;

use crate::laps::{Laps, Who};
use crate::view::{Content, HEAD, View};
use holdfast_base::Error;
use holdfast_base::ids::Index;
use holdfast_ride::carousel::{
    Boarding, Carousel, Held, Limits, Reader, RiderId, ScanId, Source, Span, SpinId, Ticket,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Something that was begun and has not answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Open { spin: SpinId, image: Option<Index>, index: u64 },
    Scan(ScanId),
    Spool { spin: SpinId, head: usize },
    Seal(SpinId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scan {
    source: Source,
    head: usize,
    reader: Reader,
    /// The slab that is made next: its place in the head, and what it is called.
    at: usize,
    number: u64,
    is_stopped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Spin {
    index: u64,
    heads: Vec<Laps>,
    image: Spool,
    /// What its image's writer may still hold others up for.
    allowance: Allowance,
    writes: BTreeSet<usize>,
    written: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Spool {
    None,
    Writing,
    Sealing,
    Whole,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rider {
    pub ticket: Ticket,
    pub heads: Range<usize>,
    /// Set when it boards.
    pub index: Option<u64>,
    on: Option<Source>,
    /// Per head: requests that were not answered, what came, and whether all came.
    pub asked: BTreeMap<usize, u64>,
    pub got: BTreeMap<usize, Vec<Content>>,
    pub through: BTreeSet<usize>,
    /// Heads that it reads by itself.
    private: BTreeSet<usize>,
    /// Once it has boarded.
    allowance: Option<Allowance>,
    active_ns: u64,
    pub ended: Option<Result<(), Error>>,
}

/// For how long somebody may still hold up all others, in hundred thousandths of a nanosecond: a part of
/// the time aboard in which it does not is added, and of half of the others half of the time is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Allowance(i128);

impl Allowance {
    fn new(limits: &Limits) -> Allowance {
        Allowance(i128::from(limits.allowance_ns) * 100_000)
    }

    fn pass(&mut self, ns: u64, share: Option<u64>, limits: &Limits) {
        let (ns, percent) = (i128::from(ns), i128::from(limits.allowance_percent));
        match share {
            None => self.0 += ns * percent * 1000,
            Some(share) => self.0 -= ns * (100 - percent) * i128::from(share),
        }
    }

    fn is_used_up(&self) -> bool {
        self.0 <= 0
    }

    /// It is looked at every nanosecond at most.
    fn is_overdrawn(&self) -> bool {
        self.0 < -100_000
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub core: Carousel,
    pub view: View,
    pub limits: Limits,
    pub now: u64,
    /// The view's index.
    pub index: u64,
    pub tasks: Vec<Task>,
    pub riders: BTreeMap<RiderId, Rider>,
    spins: BTreeMap<SpinId, Spin>,
    scans: BTreeMap<ScanId, Scan>,
    /// Images that are whole, and those that are being written.
    pub images: BTreeSet<u64>,
    held: BTreeMap<Held, Content>,
    /// Snapshots that were taken for images, and images that are to go.
    pub for_images: BTreeSet<u64>,
    pub going: BTreeSet<u64>,
    pub moves: usize,
    /// The driver wakes the core too late. Riders are held up for longer then, and charged no more.
    pub is_late: bool,
}

impl World {
    pub fn new(view: View, limits: Limits) -> World {
        World {
            core: Carousel::new(limits, view.spans()),
            view,
            limits,
            now: 0,
            index: 1,
            tasks: Vec::new(),
            riders: BTreeMap::new(),
            spins: BTreeMap::new(),
            scans: BTreeMap::new(),
            images: BTreeSet::new(),
            held: BTreeMap::new(),
            for_images: BTreeSet::new(),
            going: BTreeSet::new(),
            moves: 0,
            is_late: false,
        }
    }

    // What happens.

    pub fn join(&mut self, rider: u64, heads: Range<usize>, ticket: Ticket) {
        let span = Span { low: heads.start as u64 * HEAD + 5, high: heads.end as u64 * HEAD - 5 };
        let fresh = Rider {
            ticket: ticket.clone(),
            asked: heads.clone().map(|head| (head, 0)).collect(),
            got: heads.clone().map(|head| (head, Vec::new())).collect(),
            heads,
            index: None,
            on: None,
            through: BTreeSet::new(),
            private: BTreeSet::new(),
            allowance: None,
            active_ns: self.now,
            ended: None,
        };
        self.riders.insert(RiderId(rider), fresh);
        self.core.join(self.now, RiderId(rider), Boarding { span, ticket });
        self.carry_out();
    }

    pub fn pull(&mut self, rider: u64, head: usize) {
        let found = self.riders.get_mut(&RiderId(rider)).expect("a rider that came");
        if !found.through.contains(&head) {
            *found.asked.get_mut(&head).expect("a head that it wants") += 1;
        }
        found.active_ns = self.now;
        self.core.pull(self.now, RiderId(rider), head);
        self.carry_out();
    }

    pub fn leave(&mut self, rider: u64) {
        self.let_go(RiderId(rider));
        self.riders.remove(&RiderId(rider));
        self.core.leave(self.now, RiderId(rider));
        self.carry_out();
    }

    pub fn image_due(&mut self) {
        self.for_images.insert(self.index);
        self.core.image_due(self.now, Index(self.index));
        self.carry_out();
    }

    pub fn image_found(&mut self) {
        self.images.insert(self.index);
        self.core.image_found(self.now, Index(self.index));
        self.carry_out();
    }

    pub fn image_retired(&mut self, index: u64) {
        assert!(self.images.contains(&index) && self.going.insert(index));
        for spin in self.spins.values_mut().filter(|spin| spin.index == index) {
            if spin.image == Spool::Whole {
                spin.image = Spool::None;
            }
        }
        self.core.image_retired(self.now, Index(index));
        self.carry_out();
    }

    /// Time passes, with a stop at each moment at which the core wants to be woken.
    pub fn pass(&mut self, ns: u64) {
        let target = self.now + ns;
        while self.now < target {
            let wake = self.core.next_wake().filter(|_| !self.is_late);
            let stop = wake.map_or(target, |wake| wake.min(target));
            let stop = stop.max(self.now);
            self.charge(stop - self.now);
            self.now = stop;
            self.core.tick(stop);
            self.carry_out();
        }
    }

    /// A task answers, well or not.
    pub fn answer(&mut self, task: usize, fails: bool) {
        match self.tasks.remove(task) {
            Task::Open { spin, image, index } => self.answer_open(spin, image, index, fails),
            Task::Scan(scan) => self.answer_scan(scan, fails),
            Task::Spool { spin, head } => {
                if let Some(open) = self.spins.get_mut(&spin) {
                    open.writes.remove(&head);
                    open.written[head] += usize::from(!fails);
                }
                let result = if fails { Err(Error::full("no space")) } else { Ok(()) };
                self.core.spooled(self.now, spin, head, result);
            }
            Task::Seal(spin) => {
                let open = self.spins.get_mut(&spin).expect("what is sealed is open");
                if !fails {
                    open.image = Spool::Whole;
                    self.images.insert(open.index);
                }
                let result = if fails { Err(Error::full("no space")) } else { Ok(()) };
                self.core.sealed(self.now, spin, result);
            }
        }
        self.carry_out();
    }

    fn answer_open(&mut self, spin: SpinId, image: Option<Index>, index: u64, fails: bool) {
        if fails {
            return self.core.opened(self.now, spin, Err(Error::retry("no snapshot")));
        }
        let heads = vec![Laps::default(); self.view.heads];
        let mut fresh = Spin {
            index,
            heads,
            image: Spool::None,
            allowance: Allowance::new(&self.limits),
            writes: BTreeSet::new(),
            written: vec![0; self.view.heads],
        };
        if image.is_some() {
            assert!(self.for_images.remove(&index), "a snapshot was taken for it");
            fresh.image = Spool::Writing;
            fresh.heads.iter_mut().for_each(|head| head.sit(Who::Writer));
        }
        self.spins.insert(spin, fresh);
        self.core.opened(self.now, spin, Ok(Index(index)));
    }

    fn answer_scan(&mut self, scan: ScanId, fails: bool) {
        let found = self.scans.get_mut(&scan).expect("scans are known").clone();
        let is_shared = found.reader == Reader::Shared;
        let index = match found.source {
            Source::Image(image) => image.0,
            Source::Snapshot(spin) => self.spins[&spin].index,
        };
        let content = self.view.slabs(index, found.head)[found.at].clone();
        if is_shared {
            let laps = self.laps_of(scan, found.head);
            match fails {
                true => laps.failed(),
                false => laps.made(content.slab.joinable, content.slab.bytes, content.slab.last),
            }
        }
        if fails {
            let error = Error::corrupt(format!("{scan} failed"));
            return self.core.failed(self.now, scan, error);
        }
        let found = self.scans.get_mut(&scan).expect("scans are known");
        let mut slab = content.slab.clone();
        slab.number = found.number;
        found.at += 1;
        found.number += 1;
        self.held.insert(Held { scan, number: slab.number }, content);
        self.core.made(self.now, scan, slab);
    }

    /// The head that a scan for all works for: whatever it was told to read.
    fn laps_of(&mut self, scan: ScanId, head: usize) -> &mut Laps {
        let mut heads = self.spins.values_mut().map(|spin| &mut spin.heads[head]);
        heads.find(|laps| laps.under_way == Some(scan)).expect("a scan for all has its head")
    }

    /// Time in which riders held up others, or did not.
    fn charge(&mut self, ns: u64) {
        // By which part of the others, in thousandths, each is waited for: where it is most.
        let mut guilty: BTreeMap<(SpinId, Who), u64> = BTreeMap::new();
        for (id, spin) in &self.spins {
            for (head, laps) in spin.heads.iter().enumerate() {
                let (waiting, causes) = laps.held_up(&|who| self.asks(*id, head, who));
                for who in causes {
                    let others = laps.seats.len() - 1;
                    let share = (1000 * waiting.len() / others).max(1) as u64;
                    let most = guilty.entry((*id, who)).or_default();
                    *most = share.max(*most);
                }
            }
        }
        let limits = &self.limits;
        for (id, spin) in &mut self.spins {
            spin.allowance.pass(ns, guilty.get(&(*id, Who::Writer)).copied(), limits);
        }
        for (id, rider) in &mut self.riders {
            let Some(allowance) = &mut rider.allowance else { continue };
            let mut shares = guilty.iter().filter(|((_, who), _)| *who == Who::Rider(*id));
            allowance.pass(ns, shares.next().map(|(_, share)| *share), limits);
        }
    }

    fn asks(&self, spin: SpinId, head: usize, who: Who) -> bool {
        match who {
            Who::Writer => !self.spins[&spin].writes.contains(&head),
            Who::Rider(rider) => self.riders[&rider].asked[&head] > 0,
        }
    }

    /// Whether a task reads an image.
    pub fn reads_image(&self, task: usize) -> bool {
        let Task::Scan(scan) = &self.tasks[task] else { return false };
        matches!(self.scans[scan].source, Source::Image(_))
    }

    /// Whether an image of this index is being written.
    pub fn is_spooled(&self, index: u64) -> bool {
        let writes = |spin: &Spin| matches!(spin.image, Spool::Writing | Spool::Sealing);
        let opens =
            |task: &Task| matches!(task, Task::Open { image: Some(image), .. } if image.0 == index);
        self.spins.values().any(|spin| spin.index == index && writes(spin))
            || self.tasks.iter().any(opens)
            || self.going.contains(&index)
    }

    /// Everybody goes on asking, everything is answered, time passes: all come to their end, and
    /// nothing is left.
    pub fn finish(&mut self) {
        for _ in 0..10_000 {
            let tasks = self.tasks.len();
            for _ in 0..tasks {
                self.answer(0, false);
            }
            let mut asked = false;
            for (rider, head) in self.streams() {
                if self.riders[&rider].asked[&head] == 0 {
                    self.pull(rider.0, head);
                    asked = true;
                }
            }
            if self.riders.values().all(|rider| rider.ended.is_some()) && self.tasks.is_empty() {
                break;
            }
            if !asked && self.tasks.is_empty() {
                let wake = self.core.next_wake().expect("somebody waits without end");
                self.pass((wake - self.now).max(1));
            }
        }
        for (id, rider) in &self.riders {
            assert!(rider.ended.is_some(), "{id} goes on asking and comes to no end: {rider:?}");
        }
        assert!(self.tasks.is_empty() && self.held.is_empty() && self.for_images.is_empty());
        assert!(self.spins.is_empty(), "snapshots are given back: {:?}", self.spins.keys());
        assert!(self.scans.values().all(|scan| scan.is_stopped), "scans are stopped");
        assert!(self.going.is_empty(), "images go when nobody reads them");
    }

    /// Heads that a rider still wants.
    pub fn streams(&self) -> Vec<(RiderId, usize)> {
        let riders = self.riders.iter().filter(|(_, rider)| rider.ended.is_none());
        let wanted = |(id, rider): (&RiderId, &Rider)| {
            let left = rider.heads.clone().filter(|head| !rider.through.contains(head));
            left.map(|head| (*id, head)).collect::<Vec<_>>()
        };
        riders.flat_map(wanted).collect()
    }

    /// Where a rider that leaves now could go on with a head: its index and the next row.
    pub fn token(&self, rider: RiderId, head: usize) -> Option<(u64, Vec<u8>)> {
        let found = &self.riders[&rider];
        let last = found.got.get(&head)?.last()?;
        let next = last.slab.number as usize + 1;
        let slabs = self.view.slabs(last.index, head);
        Some((last.index, slabs.get(next)?.slab.first.clone()))
    }
}
