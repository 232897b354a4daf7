//! Rides over one disk view: carries out what the carousel's core decides. Holds the snapshots, the
//! passes over them, the slabs until they are forgotten, and the requests of riders until there is
//! something to answer. Makes slabs on the node's workers, one a job; decides nothing. Its images are
//! in [`images`], its riders in [`riders`].

mod doubts;
mod images;
mod projections;
mod riders;

use crate::carousel::{
    Boarding, Carousel, Effect, Held, Limits, Place, Reader, RiderId, ScanId, Source, Span, SpinId,
    Ticket,
};
use crate::image::Image;
use crate::scan::{First, ImageScan, Pages, Scan};
use crate::views::begins_anew;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::net::{Reply, Response};
use holdfast_env::rows::{Moment, Rows};
use holdfast_env::{Budget, HoldMutex, event, planted};
use holdfast_node::Node;
use holdfast_view::items::{self, Catalog};
use holdfast_view::{Position, front};
use holdfast_wire::slab::{Needs, Range, Slab};
use holdfast_wire::view::ViewName;
use images::Images;
pub use images::Whole;
pub(crate) use projections::Projections;
pub use riders::Wish;
use riders::{Outcome, Rider, Sending, end_of};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Requests of one rider that wait, of one head: who asks for more at a time has them refused.
pub const ASKED_MAX: usize = 16;
/// Riders of one view; more are refused.
pub const RIDERS_MAX: usize = 1000;

/// A disk view's carousel, at work.
pub struct Rides {
    view: ViewName,
    /// The view's directory, for images.
    place: PathBuf,
    rows: Arc<dyn Rows>,
    heads: Vec<Range>,
    /// As the log calls it: rides hold it.
    topic: String,
    node: Arc<Node>,
    /// Of the process, for its clients.
    budget: Arc<Budget>,
    state: Mutex<State>,
    own: Weak<Rides>,
}

struct State {
    core: Carousel,
    spins: BTreeMap<SpinId, Arc<Shown>>,
    /// But those of which a slab is being made.
    scans: BTreeMap<ScanId, Pages>,
    /// Of those, the ones that nobody will ask for another one.
    stopped: BTreeSet<ScanId>,
    slabs: BTreeMap<Held, Arc<Kept>>,
    riders: BTreeMap<RiderId, Rider>,
    images: Images,
    /// What all riders need together.
    needs: Arc<Needs>,
    /// When the core is to be woken next, as far as that was asked for.
    wakes_ns: Option<u64>,
    /// Nobody rides any more.
    ended: bool,
}

/// The view at the moment of a spin.
pub(crate) struct Shown {
    pub moment: Arc<dyn Moment>,
    pub catalog: Catalog,
    pub position: Position,
    /// See [`Boarded::front`].
    front: Vec<u8>,
}

/// A slab that somebody may still be sent.
pub(crate) struct Kept {
    /// Nothing where it has everything, as those of images have.
    pub again: Option<Again>,
    pub first: First,
    /// The head ends with it.
    pub last: bool,
    /// Nothing where the head has no item.
    pub slab: Option<Slab>,
    pub projections: Projections,
}

/// How a slab is made once more, for somebody who needs more of it.
#[derive(Clone)]
pub(crate) struct Again {
    pub shown: Arc<Shown>,
    pub range: Range,
}

/// What has to be done once the lock is given back.
enum Job {
    /// Makes the next slab.
    Scan(ScanId, Pages),
    /// Sends a rider what it wants of a slab, which is made once more if it lacks that.
    Send(Box<Sending>),
    /// Of a moment that was taken for an image, or of the rows as they are now.
    Open(SpinId, Option<Arc<dyn Moment>>),
    /// Writes a slab to the image of a spin.
    Spool(SpinId, usize, Arc<Image>, Arc<Kept>),
    Seal(SpinId, Arc<Image>),
    Remove(Arc<Image>),
    /// Looks whether an image is what it says of itself.
    Reread(Arc<Image>),
    Answer(Reply, Response),
    /// In so many nanoseconds.
    Wake(u64),
}

impl Rides {
    /// Of rows that hold a view of this range, on as many heads as the machine has use for.
    pub fn new(
        (view, topic, place): (&ViewName, &str, PathBuf),
        rows: Arc<dyn Rows>,
        range: Range,
        (heads, windows_bytes): (u32, u64),
        (node, budget): (&Arc<Node>, &Arc<Budget>),
    ) -> Arc<Rides> {
        let heads = range.divided(heads);
        let limits = Limits::of(windows_bytes, heads.len() as u32);
        let spans = heads.iter().map(|head| Span { low: head.low(), high: head.high() }).collect();
        let state = State {
            core: Carousel::new(limits, spans),
            spins: BTreeMap::new(),
            scans: BTreeMap::new(),
            stopped: BTreeSet::new(),
            slabs: BTreeMap::new(),
            riders: BTreeMap::new(),
            images: Images::default(),
            needs: Arc::new(Needs::nothing()),
            wakes_ns: None,
            ended: false,
        };
        Arc::new_cyclic(|own| Rides {
            view: view.clone(),
            place,
            rows,
            heads,
            topic: topic.to_owned(),
            node: node.clone(),
            budget: budget.clone(),
            state: Mutex::new(state),
            own: own.clone(),
        })
    }

    /// Those that ride now.
    pub fn riders(&self) -> usize {
        self.state().riders.values().filter(|rider| rider.over.is_none()).count()
    }

    /// Moments of the rows that rides keep: the engine gives nothing up that one of them shows.
    pub fn moments(&self) -> usize {
        let state = self.state();
        let of_scans = state.scans.values().filter_map(Pages::shown);
        let again = state.slabs.values().filter_map(|kept| kept.again.as_ref());
        let of_slabs = again.map(|again| &again.shown);
        let all = state.spins.values().chain(of_scans).chain(of_slabs);
        all.map(Arc::as_ptr).collect::<BTreeSet<_>>().len()
    }

    /// Bytes of slabs that are kept: for riders that are behind, and until the image has them.
    pub fn slabs_bytes(&self) -> u64 {
        let state = self.state();
        let bytes = |kept: &Arc<Kept>| kept.slab.as_ref().map_or(0, Slab::body_bytes) as u64;
        state.slabs.values().map(bytes).sum()
    }

    /// Whether somebody rides here under this number.
    pub fn has(&self, ride: u64) -> bool {
        self.state().riders.contains_key(&RiderId(ride))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    /// Somebody boards; `reply` is answered with [`Boarded`].
    pub fn board(&self, wish: Wish, ticket: Ticket, reply: Reply) {
        let id = RiderId(self.node.machine.rng.next_u64());
        self.input(|state, now, _| {
            if state.ended || state.riders.len() >= RIDERS_MAX {
                let why = match state.ended {
                    true => Error::retry("ride a view: it is ending: ride another one"),
                    false => Error::retry(format!(
                        "ride a view: it has {RIDERS_MAX} riders: ask again when some have come to \
                         their end"
                    )),
                };
                return Some(Job::Answer(reply, Response::error(why)));
            }
            let range = wish.wanted.range;
            let span = Span { low: range.low(), high: range.high() };
            state.riders.insert(id, Rider::new(Arc::new(wish), self.heads.len(), reply));
            state.know_needs();
            state.core.join(now, id, Boarding { span, ticket });
            None
        });
    }

    /// A rider asks for its next slab of a head.
    pub fn next(&self, ride: u64, head: usize, reply: Reply) {
        let id = RiderId(ride);
        self.input(|state, now, _| {
            let refuse = |why: Error| Some(Response::error(why));
            let answer = match state.riders.get_mut(&id) {
                None => refuse(Error::not_found(
                    "ride on: there is no such ride (any more): board again",
                )),
                Some(rider) if head >= rider.lines.len() => refuse(Error::invalid(format!(
                    "ride on: the view has {} heads, not one of number {head}",
                    rider.lines.len()
                ))),
                Some(rider) if rider.over.is_some() && !rider.is_sent_to() => {
                    rider.over.as_ref().map(|(outcome, _)| end_of(outcome))
                }
                Some(rider) if rider.lines[head].len() >= ASKED_MAX => {
                    refuse(Error::invalid(format!(
                        "ride on: {ASKED_MAX} requests of this head wait already: ask for more when \
                         they are answered"
                    )))
                }
                Some(rider) => {
                    rider.lines[head].ask(reply);
                    state.go_on(now, id, &self.budget);
                    return None;
                }
            };
            answer.map(|answer| Job::Answer(reply, answer))
        });
    }

    /// A rider has all that it wants.
    pub fn leave(&self, ride: u64) {
        self.input(|state, now, jobs| {
            let id = RiderId(ride);
            if let Some(mut rider) = state.riders.remove(&id) {
                // Who ends it in the middle has asked for more, and is not to take silence for a bug.
                if !planted!("ride.left-without-an-answer") {
                    rider.answer_all(&Err(riders::has_left()), jobs);
                }
                if rider.over.is_none() {
                    state.core.leave(now, id);
                }
            }
            self.node.holds.end(&self.topic, ride, now);
            None
        });
    }

    /// Ends all rides, with an error, and images that are being written, without a word: nobody is there any
    /// more whom they are for.
    pub fn end(&self) {
        let (left, drafts): (Vec<RiderId>, Vec<Arc<Image>>) = {
            let mut state = self.state();
            state.ended = true;
            let drafts = std::mem::take(&mut state.images.drafts);
            (state.riders.keys().copied().collect(), drafts.into_values().collect())
        };
        // Without the lock: one that just gets its name is waited for.
        drafts.iter().for_each(|image| image.give_up());
        let why = || {
            Error::retry(
                "ride a view: it ends here, as its node does, as it was stopped, or as the log was trimmed \
                 behind it: ride another one, or an image (`holdfast view status` says which there are)",
            )
        };
        for id in left {
            self.input(|state, now, jobs| {
                let mut rider = state.riders.remove(&id)?;
                rider.answer_all(&Err(why()), jobs);
                if rider.over.is_none() {
                    state.core.leave(now, id);
                }
                self.node.holds.end(&self.topic, id.0, now);
                None
            });
        }
    }

    /// Tells the core something and carries out what it says; what is left to be done for that is
    /// for [`Rides::run`].
    fn tell(&self, tell: impl FnOnce(&mut State, u64, &mut Vec<Job>) -> Option<Job>) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut state = self.state();
        let now = self.node.machine.clock.monotonic_ns();
        let job = tell(&mut state, now, &mut jobs);
        jobs.extend(job);
        self.carry_out(&mut state, now, &mut jobs);
        jobs
    }

    /// As [`Rides::tell`], and does what is left to be done.
    fn input(&self, tell: impl FnOnce(&mut State, u64, &mut Vec<Job>) -> Option<Job>) {
        self.run(self.tell(tell));
    }

    /// Does jobs and what follows from them, one after another: a slab of which a rider wants
    /// nothing leads to the next one, and so for a whole pass.
    fn run(&self, jobs: Vec<Job>) {
        let mut jobs = VecDeque::from(jobs);
        while let Some(job) = jobs.pop_front() {
            jobs.extend(self.start(job));
        }
    }

    fn carry_out(&self, state: &mut State, now: u64, jobs: &mut Vec<Job>) {
        while let Some(effect) = state.core.next_effect() {
            match effect {
                Effect::Open { spin, image } => {
                    let taken = image.map(|image| state.images.take_moment(image));
                    jobs.push(Job::Open(spin, taken));
                }
                Effect::Close { spin } => {
                    state.spins.remove(&spin);
                    state.images.drafts.remove(&spin);
                    state.know_needs();
                }
                Effect::Boarded { rider, on, .. } => {
                    // Before it is told: who rides has a hold.
                    if state.riders.contains_key(&rider) {
                        self.node.holds.place(&self.topic, rider.0, state.index_of(on));
                    }
                    state.boarded(now, rider, on, jobs);
                }
                Effect::Scan { scan, source, head, at, reader } => {
                    self.scan(state, now, (scan, source, reader), head, at, jobs);
                }
                Effect::Stop { scan } => {
                    if state.scans.remove(&scan).is_none() {
                        // A slab of it is being made.
                        state.stopped.insert(scan);
                    }
                }
                Effect::Send { rider, head, slab } => {
                    if !state.send(rider, head, slab, jobs) {
                        state.ask_again(now, rider, head, &self.budget);
                    }
                }
                Effect::Forget { slab } => drop(state.slabs.remove(&slab)),
                Effect::Moved { rider, head } => {
                    event!(RiderMoved, format_args!("rider {:016x}, head {head}", rider.0));
                }
                Effect::End { rider, result } => {
                    self.node.holds.end(&self.topic, rider.0, now);
                    state.end(rider, result, now, jobs);
                }
                Effect::Spool { spin, head, slab } => state.spool(spin, head, slab, now, jobs),
                Effect::Seal { spin } => {
                    // None where the view has ended meanwhile.
                    match state.images.drafts.get(&spin) {
                        Some(image) => jobs.push(Job::Seal(spin, image.clone())),
                        None => {
                            state.core.sealed(now, spin, Err(Error::retry("the view has ended")))
                        }
                    }
                }
                Effect::Abandon { spin } => state.abandon(spin),
                Effect::Remove { image } => jobs.extend(state.images.remove(image)),
            }
        }
        let wakes = state.core.next_wake();
        if let Some(at) = wakes
            && state.wakes_ns.is_none_or(|asked| at < asked || asked <= now)
        {
            state.wakes_ns = Some(at);
            jobs.push(Job::Wake(at.saturating_sub(now)));
        }
    }

    fn scan(
        &self,
        state: &mut State,
        now: u64,
        (scan, source, reader): (ScanId, Source, Reader),
        head: usize,
        at: Option<Place>,
        jobs: &mut Vec<Job>,
    ) {
        let (needs, range) = (state.needs_of(reader), self.heads[head]);
        let opened = match (at, state.scans.remove(&scan), source) {
            (Some(at), _, Source::Snapshot(spin)) => {
                let scan = Scan::new(&state.spins[&spin], range, needs, &at);
                scan.map(|scan| Pages::Rows(Box::new(scan)))
            }
            (Some(at), _, Source::Image(index)) => {
                let image = &state.images.known[&index];
                ImageScan::new(image, range, needs, &at).map(Pages::Image)
            }
            (None, Some(open), _) => open.with(needs),
            (None, None, _) => Err(Error::bug("go on with a scan: it was never begun")),
        };
        match opened {
            Ok(open) => jobs.push(Job::Scan(scan, open)),
            Err(e) => state.core.failed(now, scan, e),
        }
    }

    /// Begins a job: what takes long on another thread, where there are any; what follows from the
    /// others is answered.
    fn start(&self, job: Job) -> Vec<Job> {
        let is_long = match &job {
            Job::Scan(..) | Job::Open(..) => true,
            Job::Spool(..) | Job::Seal(..) | Job::Remove(_) | Job::Reread(_) => true,
            Job::Send(sending) => sending.takes_long(),
            Job::Answer(..) | Job::Wake(_) => false,
        };
        if is_long && !self.node.workers.is_inline() {
            if let Some(own) = self.own.upgrade() {
                self.node.workers.run(move || own.run(own.done(job)));
            }
            return Vec::new();
        }
        self.done(job)
    }

    fn done(&self, job: Job) -> Vec<Job> {
        match job {
            Job::Scan(scan, open) => self.make(scan, open),
            Job::Send(sending) => self.send_now(*sending),
            Job::Open(spin, taken) => self.open(spin, taken),
            Job::Spool(spin, head, image, kept) => self.spool(spin, head, &image, &kept),
            Job::Seal(spin, image) => self.seal(spin, &image),
            Job::Remove(image) => self.remove(&image),
            Job::Reread(image) => self.reread(&image),
            Job::Answer(reply, answer) => {
                reply.send(answer);
                Vec::new()
            }
            Job::Wake(ns) => {
                let weak = self.own.clone();
                let tick = move || {
                    if let Some(own) = weak.upgrade() {
                        own.tick();
                    }
                };
                self.node.machine.peers.after(ns.div_ceil(1_000_000), Box::new(tick));
                Vec::new()
            }
        }
    }

    fn tick(&self) {
        self.input(|state, now, _| {
            state.wakes_ns = None;
            state.core.tick(now);
            // Who has not asked how its ride ended is not there any more.
            let idle_ns = Limits::usual().idle_ns;
            let gone = |over: &Option<(Outcome, u64)>| {
                over.as_ref().is_some_and(|(_, at)| now.saturating_sub(*at) > idle_ns)
            };
            state.riders.retain(|_, rider| !gone(&rider.over));
            None
        });
    }

    fn open(&self, spin: SpinId, taken: Option<Arc<dyn Moment>>) -> Vec<Job> {
        let for_image = taken.is_some();
        let moment = taken.map_or_else(|| self.rows.moment(), Ok);
        // Who boards reads rows, too.
        let shown = moment.and_then(Shown::new).map_err(begins_anew);
        let draft = shown.as_ref().ok().filter(|_| for_image).map(|shown| self.begin_image(shown));
        self.tell(|state, now, _| {
            state.begin_image(spin, draft);
            let index = shown.map(|shown| {
                let index = shown.position.applied;
                state.spins.insert(spin, Arc::new(shown));
                index
            });
            state.core.opened(now, spin, index);
            None
        })
    }

    fn make(&self, id: ScanId, mut scan: Pages) -> Vec<Job> {
        let made = scan.make();
        self.tell(|state, now, _| {
            if let (Err(e), Some(image)) = (&made, scan.image()) {
                state.distrust(now, image.index(), e);
            }
            // Of one that was stopped meanwhile nothing is kept but what is yet to be forgotten.
            if !state.stopped.remove(&id) {
                state.scans.insert(id, scan);
            }
            match made {
                Ok((about, kept)) => {
                    let held = Held { scan: id, number: about.number };
                    state.slabs.insert(held, Arc::new(kept));
                    state.core.made(now, id, about);
                }
                Err(e) => state.core.failed(now, id, begins_anew(e)),
            }
            None
        })
    }
}

impl Shown {
    fn new(moment: Arc<dyn Moment>) -> Result<Shown> {
        let (position, mut front) = front(&*moment)?;
        let catalog = items::Reader::new(moment.clone())?.catalog().clone();
        catalog.encode(&mut front);
        Ok(Shown { moment, catalog, position, front })
    }
}

impl State {
    fn know_needs(&mut self) {
        let riding = self.riders.values().filter(|rider| rider.over.is_none());
        let needs = match self.images.drafts.is_empty() {
            true => {
                riding.fold(Needs::nothing(), |all, rider| all.and(&Needs::of(&rider.wish.wanted)))
            }
            false => Needs::all(),
        };
        if needs != *self.needs {
            self.needs = Arc::new(needs);
        }
    }

    /// What is needed of the slabs of a scan: what all riders need together, or what the one does that
    /// reads by itself.
    fn needs_of(&self, reader: Reader) -> Arc<Needs> {
        match reader {
            Reader::Shared => self.needs.clone(),
            Reader::Private(rider) => {
                let of = |rider: &Rider| Needs::of(&rider.wish.wanted);
                Arc::new(self.riders.get(&rider).map_or_else(Needs::nothing, of))
            }
        }
    }

    fn index_of(&self, source: Source) -> Index {
        match source {
            Source::Snapshot(spin) => self.spins[&spin].position.applied,
            Source::Image(index) => index,
        }
    }

    /// False where the rider wants nothing of the slab: its request stays, for the next one.
    fn send(&mut self, id: RiderId, head: usize, held: Held, jobs: &mut Vec<Job>) -> bool {
        let Some(rider) = self.riders.get_mut(&id) else { return true };
        let kept = self.slabs.get(&held).expect("what is to be sent is held");
        let is_wanted = rider.receive(head, kept);
        if is_wanted {
            jobs.extend(rider.next_of(id, head));
        }
        is_wanted
    }
}
