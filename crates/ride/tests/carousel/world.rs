//! A driver without threads, files or connections: it carries out the core's effects, answers them
//! in any order, and looks at each step whether what it is told to do may be.

mod checks;

use crate::laps::{Laps, Who};
use crate::view::{Content, HEAD, View};
use holdfast_base::Error;
use holdfast_base::ids::Index;
use holdfast_ride::carousel::{
    Boarding, Carousel, Effect, Held, Limits, Place, Reader, RiderId, ScanId, Source, Span, SpinId,
    Ticket,
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
    was_whole: bool,
    /// What its image's writer held others up for.
    charged_ns: u64,
    began_ns: u64,
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
    boarded_ns: u64,
    charged_ns: u64,
    active_ns: u64,
    pub ended: Option<Result<(), Error>>,
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
            boarded_ns: 0,
            charged_ns: 0,
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

    /// Time passes, as far as the next moment at which the core wants to be woken.
    pub fn pass(&mut self, ns: u64) {
        let target = self.now + ns;
        while self.now < target {
            let stop = self.core.next_wake().map_or(target, |wake| wake.min(target));
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
                    open.was_whole = true;
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
            was_whole: false,
            charged_ns: 0,
            began_ns: self.now,
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

    /// Time in which riders held up others.
    fn charge(&mut self, ns: u64) {
        let mut guilty = BTreeSet::new();
        for (id, spin) in &self.spins {
            for (head, laps) in spin.heads.iter().enumerate() {
                let (_, causes) = laps.held_up(&|who| self.asks(*id, head, who));
                guilty.extend(causes.into_iter().map(|who| (*id, who)));
            }
        }
        for (spin, who) in guilty {
            match who {
                Who::Writer => {
                    self.spins.get_mut(&spin).expect("it is open").charged_ns += ns;
                }
                Who::Rider(rider) => {
                    self.riders.get_mut(&rider).expect("it rides").charged_ns += ns;
                }
            }
        }
    }

    fn asks(&self, spin: SpinId, head: usize, who: Who) -> bool {
        match who {
            Who::Writer => !self.spins[&spin].writes.contains(&head),
            Who::Rider(rider) => self.riders[&rider].asked[&head] > 0,
        }
    }

    fn allowed(&self, since_ns: u64) -> u64 {
        self.limits.allowance_ns + (self.now - since_ns) * self.limits.allowance_percent / 100
    }

    // What the core wants.

    fn carry_out(&mut self) {
        while let Some(effect) = self.core.next_effect() {
            self.carry_out_one(effect);
        }
        self.take_from_images();
        self.check();
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Open { spin, image } => {
                let index = image.map_or(self.index, |image| image.0);
                self.tasks.push(Task::Open { spin, image, index });
            }
            Effect::Close { spin } => self.close(spin),
            Effect::Boarded { rider, index, on } => self.boarded(rider, index.0, on),
            Effect::Scan { scan, source, head, at, reader } => {
                self.scan(scan, source, head, at, reader);
            }
            Effect::Stop { scan } => {
                let found = self.scans.get_mut(&scan).expect("a scan that began");
                assert!(!std::mem::replace(&mut found.is_stopped, true), "{scan} stops once");
            }
            Effect::Send { rider, head, slab } => self.sent(rider, head, slab),
            Effect::Spool { spin, head, slab } => {
                let content = &self.held[&slab];
                let open = self.spins.get_mut(&spin).expect("what is spooled is open");
                assert_eq!(content.index, open.index, "an image is of one snapshot");
                assert_eq!(open.image, Spool::Writing);
                assert!(open.writes.insert(head), "one slab of a head is written at a time");
                open.heads[head].sent(Who::Writer, content.slab.number);
                self.tasks.push(Task::Spool { spin, head });
            }
            Effect::Seal { spin } => {
                let index = self.spins[&spin].index;
                for head in 0..self.view.heads {
                    let slabs = self.view.slabs(index, head).len();
                    assert_eq!(self.spins[&spin].written[head], slabs, "an image has everything");
                }
                self.spins.get_mut(&spin).expect("it is open").image = Spool::Sealing;
                self.tasks.push(Task::Seal(spin));
            }
            Effect::Abandon { spin } => {
                let open = self.spins.get_mut(&spin).expect("it is open");
                open.image = Spool::None;
                open.heads.iter_mut().for_each(|head| head.stand_up(Who::Writer));
            }
            Effect::Remove { image } => {
                let is_read = |scan: &Scan| scan.source == Source::Image(image) && !scan.is_stopped;
                assert!(!self.scans.values().any(is_read), "an image that is read stays");
                self.images.remove(&image.0);
                self.going.remove(&image.0);
                self.for_images.remove(&image.0);
            }
            Effect::Forget { slab } => {
                assert!(self.held.remove(&slab).is_some(), "{slab:?} is forgotten once");
            }
            Effect::Moved { rider, head } => self.moved(rider, head),
            Effect::End { rider, result } => self.ended(rider, result),
        }
    }

    /// Who is through with lap 1 takes what it missed from the image, if that is written.
    fn take_from_images(&mut self) {
        let mut gone = Vec::new();
        for spin in self.spins.values().filter(|spin| spin.image != Spool::None) {
            for (head, laps) in spin.heads.iter().enumerate() {
                let written = spin.written[head] as u64;
                gone.extend(laps.turns(written).map(|rider| (rider, head)));
            }
        }
        gone.into_iter().for_each(|(rider, head)| self.stand_up(rider, head));
    }

    fn close(&mut self, spin: SpinId) {
        let reads = |task: &Task| matches!(task, Task::Scan(scan) if self.scans[scan].source == Source::Snapshot(spin));
        assert!(!self.tasks.iter().any(reads), "a snapshot that is read stays");
        let scans = self.scans.values().filter(|scan| scan.source == Source::Snapshot(spin));
        assert!(scans.into_iter().all(|scan| scan.is_stopped), "scans stop before");
        assert!(self.spins.remove(&spin).is_some(), "{spin} is closed once");
    }

    fn boarded(&mut self, rider: RiderId, index: u64, on: Source) {
        let found = self.riders.get_mut(&rider).expect("a rider that came");
        assert_eq!(found.index.replace(index), None, "a rider boards once");
        found.on = Some(on);
        found.boarded_ns = self.now;
        found.active_ns = self.now;
        let from = match &found.ticket {
            Ticket::Shared { at_least } | Ticket::Dedicated { at_least } => {
                assert!(index >= at_least.0, "{rider} asked for {at_least} or later, got {index}");
                None
            }
            Ticket::At { index: wanted, from } => {
                assert_eq!(index, wanted.0);
                from.clone()
            }
        };
        let Source::Snapshot(spin) = on else {
            found.private = found.heads.clone().collect();
            return;
        };
        let open = self.spins.get_mut(&spin).expect("who boards a spin finds it open");
        assert_eq!(open.index, index);
        for head in found.heads.clone() {
            assert!(open.heads[head].is_in_lap_1(), "riders join in lap 1");
            let resumes = from.is_some() && head == found.heads.start;
            if resumes || matches!(found.ticket, Ticket::Dedicated { .. }) {
                found.private.insert(head);
            } else {
                open.heads[head].sit(Who::Rider(rider));
            }
        }
    }

    fn scan(
        &mut self,
        scan: ScanId,
        source: Source,
        head: usize,
        at: Option<Place>,
        reader: Reader,
    ) {
        let index = match source {
            Source::Snapshot(spin) => self.spins.get(&spin).expect("it is open").index,
            Source::Image(image) => image.0,
        };
        let slabs = self.view.slabs(index, head);
        if let Some(place) = at {
            let at = match &place.first {
                None => 0,
                Some(row) => {
                    let begins = |content: &Content| content.slab.first == *row;
                    slabs.iter().position(begins).expect("a scan begins where a slab does")
                }
            };
            let number = place.number;
            let fresh = Scan { source, head, reader, at, number, is_stopped: false };
            let before = self.scans.insert(scan, fresh);
            assert!(before.is_none(), "{scan} begins once");
        }
        let found = self.scans.get(&scan).expect("a scan that goes on has begun");
        assert!(!found.is_stopped && found.at < slabs.len(), "{scan} has come to its end");
        if let Source::Image(image) = source {
            let writing = self.spins.values().find(|spin| {
                spin.index == image.0 && matches!(spin.image, Spool::Writing | Spool::Sealing)
            });
            let written = writing.map_or(slabs.len(), |spin| spin.written[head]);
            assert!(self.images.contains(&image.0) || writing.is_some(), "there is such an image");
            assert!(found.at < written, "what is read is written");
        }
        match reader {
            Reader::Private(rider) => {
                self.stand_up(rider, head);
            }
            Reader::Shared => {
                let works_for = |spin: &&mut Spin| spin.heads[head].under_way.is_none();
                // A scan that is told to read another spin is found out by what it makes.
                let spin = match source {
                    Source::Snapshot(spin) if at_spin(&self.spins, spin, head) => {
                        self.spins.get_mut(&spin)
                    }
                    _ => self.spins.values_mut().find(works_for),
                };
                spin.expect("a scan for all has its head").heads[head].asked(scan);
            }
        }
        self.tasks.push(Task::Scan(scan));
    }

    /// A rider reads a head by itself from now on.
    fn stand_up(&mut self, rider: RiderId, head: usize) {
        let found = self.riders.get_mut(&rider).expect("who reads rides");
        found.private.insert(head);
        if let Some(Source::Snapshot(spin)) = found.on
            && let Some(open) = self.spins.get_mut(&spin)
        {
            open.heads[head].stand_up(Who::Rider(rider));
        }
    }

    fn sent(&mut self, rider: RiderId, head: usize, slab: Held) {
        let content = self.held.get(&slab).expect("what is sent is held").clone();
        let reader = self.scans[&slab.scan].reader;
        let found = self.riders.get_mut(&rider).expect("who is sent something rides");
        assert!(found.ended.is_none(), "{rider} is sent nothing behind its end");
        assert_eq!(Some(content.index), found.index, "{rider} gets items of its index alone");
        let asked = found.asked.get_mut(&head).expect("a head that it wants");
        assert!(*asked > 0, "{rider} is sent what it asked for");
        *asked -= 1;
        found.active_ns = self.now;
        found.got.get_mut(&head).expect("a head that it wants").push(content.clone());
        match reader {
            Reader::Private(reader) => assert_eq!(reader, rider),
            Reader::Shared => {
                let Some(Source::Snapshot(spin)) = found.on else {
                    panic!("{rider} shares no scan")
                };
                let laps = &mut self.spins.get_mut(&spin).expect("it is open").heads[head];
                laps.sent(Who::Rider(rider), content.slab.number);
            }
        }
        self.look_whether_through(rider, head);
    }

    fn look_whether_through(&mut self, rider: RiderId, head: usize) {
        let wanted = self.wanted(rider, head);
        let found = self.riders.get_mut(&rider).expect("who is sent something rides");
        if found.got[&head].len() >= wanted.len() {
            found.through.insert(head);
            found.asked.insert(head, 0);
        }
    }

    /// What a rider must have got of a head in the end, in the order of the view.
    fn wanted(&self, rider: RiderId, head: usize) -> Vec<Content> {
        let found = &self.riders[&rider];
        let mut slabs = self.view.slabs(found.index.expect("it rides"), head);
        if let Ticket::At { from: Some(row), .. } = &found.ticket
            && head == found.heads.start
        {
            let at = slabs.iter().position(|content| content.slab.first == *row);
            slabs.drain(..at.expect("a row where a slab begins"));
        }
        slabs
    }

    fn moved(&mut self, rider: RiderId, head: usize) {
        self.moves += 1;
        let allowed = self.allowed(self.riders[&rider].boarded_ns);
        let found = &self.riders[&rider];
        let charged = found.charged_ns;
        assert!(charged >= allowed, "{rider} was moved after {charged} of {allowed} ns");
        assert_eq!(found.asked[&head], 0, "who waits holds up nobody");
        self.stand_up(rider, head);
    }

    fn let_go(&mut self, rider: RiderId) {
        for spin in self.spins.values_mut() {
            spin.heads.iter_mut().for_each(|laps| laps.stand_up(Who::Rider(rider)));
        }
    }

    /// V1: who ends well got everything of its index, once, each key's rows in their order.
    fn ended(&mut self, rider: RiderId, result: Result<(), Error>) {
        self.let_go(rider);
        let found = &self.riders[&rider];
        assert!(found.ended.is_none(), "{rider} ends once");
        if result.is_ok() {
            for head in found.heads.clone() {
                self.check_ride(rider, head);
            }
        } else if let Err(error) = &result {
            self.check_reason(rider, error);
        }
        self.riders.get_mut(&rider).expect("it rides").ended = Some(result);
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

fn at_spin(spins: &BTreeMap<SpinId, Spin>, spin: SpinId, head: usize) -> bool {
    let laps = spins.get(&spin).map(|spin| &spin.heads[head]);
    laps.is_some_and(|laps| laps.under_way.is_none() && !laps.seats.is_empty())
}
