//! The riders of one view as its carousel's driver keeps them: what each wants, its requests until they
//! are answered, head by head and in their order, and how its ride has ended. Whom a slab is for, the
//! core decides.

use super::projections::Projections;
use super::{Again, Job, Kept, Rides, State};
use crate::carousel::{Place, RiderId, Source};
use crate::scan::Scan;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::budget::Share;
use holdfast_env::net::{BodyPart, Parts, Reply, Response};
use holdfast_env::{Budget, planted, sometimes};
use holdfast_view::Position;
use holdfast_view::items::Catalog;
use holdfast_wire::slab::{
    Collections, Column, Fields, Needs, Range, SLAB_BYTES, Slab, Sums, Wanted, select,
};
use holdfast_wire::view::{Boarded, Ended};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// What a rider is sent.
pub struct Wish {
    /// Of which items.
    pub wanted: Wanted,
    /// What is left of their values.
    pub fields: Option<Arc<Fields>>,
}

impl Wish {
    /// Whether all is sent that sums are of, of whatever hashes: who filters has nothing to hold against them.
    fn is_whole(&self) -> bool {
        let Wanted { range: _, collections, keys_only, versions: _, indices } = &self.wanted;
        let is_every_entry = *indices == (0..u64::MAX);
        matches!(collections, Collections::All)
            && !keys_only
            && is_every_entry
            && self.fields.is_none()
    }
}

pub(super) struct Rider {
    pub wish: Arc<Wish>,
    /// Waits to hear that it rides.
    pub boards: Option<Reply>,
    /// By head.
    pub lines: Vec<Line<Reply, Arc<Kept>>>,
    /// The head whose turn it is to be asked first.
    turn: usize,
    /// The entry that it rides as of, once it does.
    index: Index,
    /// Its ride has ended like this, at this time.
    pub over: Option<(Outcome, u64)>,
}

/// How a ride has ended: where it went well, with what the image of its entry says of its items, if there is
/// one.
pub(super) type Outcome = Result<Option<Arc<Sums>>>;

/// The requests of one rider for slabs of one head, and slabs for it that wait. One slab at a time is
/// looked at for what is wanted of it, by whichever thread: if that is nothing, the next one answers the
/// same request.
///
/// It was two at a time: the second one answered the second request, and when nothing was wanted of the
/// first, the first request got the third. So a rider with a filter received a key's versions in
/// another order than the log's.
#[derive(Debug)]
pub(super) struct Line<R, S> {
    asked: VecDeque<R>,
    slabs: VecDeque<S>,
    is_busy: bool,
    under_way: Option<UnderWay>,
    /// The core has no more slabs of this head for it: requests wait for the end of the ride.
    is_through: bool,
}

/// A slab is under way to a rider: from when the core is asked for it until its answer was taken. One a
/// rider is free, so that whoever reads gets on whatever others hold; each further one has a share
/// of what may be held for clients.
///
/// Every request took a slab's worth of it, for as long as it waited, and there were sixteen a head: a
/// hundred riders that read nothing took all, and who read waited until these were ended.
#[derive(Debug)]
struct UnderWay {
    /// Given back when the slab was taken.
    _share: Option<Share>,
}

impl<R, S> Line<R, S> {
    pub fn new() -> Line<R, S> {
        Line {
            asked: VecDeque::new(),
            slabs: VecDeque::new(),
            is_busy: false,
            under_way: None,
            is_through: false,
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn ask(&mut self, request: R) {
        self.asked.push_back(request);
    }

    pub fn push(&mut self, slab: S) {
        self.slabs.push_back(slab);
    }

    /// What to look at next, and for which request; then [`Line::looked_at`] is called.
    pub fn take(&mut self) -> Option<(R, S)> {
        if self.is_busy && !planted!("ride.looked-at-side-by-side") {
            return None;
        }
        let slab = self.slabs.pop_front()?;
        self.is_busy = true;
        Some((self.asked.pop_front().expect("what is sent was asked for"), slab))
    }

    /// Nothing was wanted of it where the request comes back.
    pub fn looked_at(&mut self, request: Option<R>) {
        self.is_busy = false;
        if let Some(request) = request {
            self.asked.push_front(request);
        }
    }

    /// Whether the core is to be asked for a slab.
    fn wants_one(&self) -> bool {
        let rests = self.under_way.is_none() || planted!("ride.slabs-uncounted");
        rests && !self.asked.is_empty() && !self.is_through
    }

    /// The core has nothing more of this head.
    fn in_vain(&mut self) {
        (self.under_way, self.is_through) = (None, true);
    }

    /// Whether something is still to be sent.
    pub fn is_busy(&self) -> bool {
        self.is_busy || !self.slabs.is_empty()
    }
}

/// The head of which the core is to be asked for a slab, if there is one: it is under way from then on.
/// Heads have turns. `spare` gives a share to who holds so many bytes already.
fn next_pull<R, S>(
    lines: &mut [Line<R, S>],
    turn: &mut usize,
    spare: impl FnOnce(u64) -> Option<Share>,
) -> Option<usize> {
    let mut turns = (*turn..lines.len()).chain(0..*turn);
    let head = turns.find(|head| lines[*head].wants_one())?;
    let under_way = lines.iter().filter(|line| line.under_way.is_some()).count() as u64;
    let share = match under_way {
        0 => None,
        _ if planted!("ride.slabs-uncounted") => None,
        _ => Some(spare(under_way * SLAB_BYTES.usual())?),
    };
    lines[head].under_way = Some(UnderWay { _share: share });
    *turn = (head + 1) % lines.len();
    Some(head)
}

pub(super) struct Sending {
    rider: RiderId,
    head: usize,
    kept: Arc<Kept>,
    wish: Arc<Wish>,
    reply: Reply,
}

impl Sending {
    /// Whether it is more than a choice of columns: then it is nothing for a thread of the server.
    pub fn takes_long(&self) -> bool {
        let lacks = |slab: &Slab| !slab.serves(&self.wish.wanted);
        self.wish.fields.is_some() || self.kept.slab.as_ref().is_some_and(lacks)
    }
}

impl Rides {
    /// Answers with what a rider wants of a slab; if that is nothing, its request waits on.
    pub(super) fn send_now(&self, sending: Sending) -> Vec<Job> {
        let Sending { rider, head, kept, wish, reply } = sending;
        let taken = Taken { rides: self.own.clone(), rider, head };
        let reply = match kept.selected(&wish) {
            Ok(Some(slab)) => {
                reply.send(answer_of(&slab, Arc::new(taken)));
                None
            }
            Ok(None) => {
                taken.disarm();
                Some(reply)
            }
            Err(e) => {
                reply.send(Response::error(e));
                None
            }
        };
        self.tell(|state, now, jobs| {
            let Some(known) = state.riders.get_mut(&rider) else {
                let gone = || Response::error(has_left());
                return reply.map(|reply| Job::Answer(reply, gone()));
            };
            let waits = reply.is_some();
            known.lines[head].looked_at(reply);
            jobs.extend(known.next_of(rider, head));
            if waits {
                state.ask_again(now, rider, head, &self.budget);
            }
            state.tell_end(rider, jobs);
            None
        })
    }

    /// A rider's connection has given a slab to the kernel, or is gone.
    fn taken(&self, rider: RiderId, head: usize) {
        self.input(|state, now, _| {
            state.riders.get_mut(&rider)?.lines[head].under_way = None;
            state.go_on(now, rider, &self.budget);
            None
        });
    }
}

/// Goes with the parts of an answer, and is dropped with the last of them.
struct Taken {
    rides: Weak<Rides>,
    rider: RiderId,
    head: usize,
}

impl Taken {
    /// Nothing was sent.
    fn disarm(mut self) {
        self.rides = Weak::new();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(rides) = self.rides.upgrade() {
            rides.taken(self.rider, self.head);
        }
    }
}

impl Kept {
    /// What somebody wants of it, if that is anything.
    fn selected(&self, wish: &Wish) -> Result<Option<Slab>> {
        let Some(slab) = &self.slab else { return Ok(None) };
        let again = match slab.serves(&wish.wanted) {
            true => None,
            false => self.made_again(Needs::of(&wish.wanted))?,
        };
        let selected = select(again.as_ref().unwrap_or(slab), &wish.wanted);
        if selected.columns().is_empty() {
            return Ok(None);
        }
        Ok(Some(match &wish.fields {
            Some(fields) => self.projections.leave(slab, &selected, fields),
            None => selected,
        }))
    }

    /// The same slab with what is needed now.
    pub fn made_again(&self, needs: Needs) -> Result<Option<Slab>> {
        let Some(Again { shown, range }) = &self.again else {
            return Err(Error::bug("make a slab again: an image's slab lacks something"));
        };
        let place = Place { number: 0, first: Some(self.first.to_bytes()) };
        Ok(Scan::new(shown, *range, Arc::new(needs), &place)?.make()?.1.slab)
    }
}

impl Rider {
    pub fn new(wish: Arc<Wish>, heads: usize, boards: Reply) -> Rider {
        let lines = (0..heads).map(|_| Line::new()).collect();
        Rider { wish, boards: Some(boards), lines, turn: 0, index: Index(0), over: None }
    }

    /// A slab is there for it, of which it may want something. False where it wants nothing of it.
    pub fn receive(&mut self, head: usize, kept: &Arc<Kept>) -> bool {
        let overlaps = |slab: &Slab| {
            let (first, last) = match planted!("ride.last-hash-overlooked") {
                true => (slab.header.first_hash, slab.header.first_hash),
                false => (slab.header.first_hash, slab.header.last_hash),
            };
            let (first, last) = (u64::from(first), u64::from(last));
            Range::new(first, last + 1).overlaps(self.wish.wanted.range)
        };
        let is_wanted = kept.slab.as_ref().is_some_and(overlaps);
        if is_wanted {
            self.lines[head].push(kept.clone());
        }
        is_wanted
    }

    /// What is to be looked at next of a head.
    pub fn next_of(&mut self, rider: RiderId, head: usize) -> Option<Job> {
        let (reply, kept) = self.lines[head].take()?;
        let wish = self.wish.clone();
        Some(Job::Send(Box::new(Sending { rider, head, kept, wish, reply })))
    }

    /// Whether slabs are on their way to it.
    pub fn is_sent_to(&self) -> bool {
        self.lines.iter().any(Line::is_busy)
    }

    /// Whatever it has asked for is answered with how its ride has ended.
    pub fn answer_all(&mut self, outcome: &Outcome, jobs: &mut Vec<Job>) {
        let waiting = self.lines.iter_mut().flat_map(|line| line.asked.drain(..));
        let all = waiting.chain(self.boards.take());
        jobs.extend(all.map(|reply| Job::Answer(reply, end_of(outcome))));
    }
}

impl State {
    /// Asks the core for what a rider may have under way now.
    pub(super) fn go_on(&mut self, now: u64, id: RiderId, budget: &Arc<Budget>) {
        let spare = |held| {
            let share = budget.take_spare(held, SLAB_BYTES.usual());
            if share.is_none() {
                sometimes!("a rider had one slab under way and no more");
            }
            share
        };
        while let Some(rider) = self.riders.get_mut(&id)
            && let Some(head) = next_pull(&mut rider.lines, &mut rider.turn, spare)
        {
            if !self.core.pull(now, id, head) {
                rider.lines[head].in_vain();
            }
        }
        // Riders with one slab under way each may wait for one another, each for a head whose window
        // the other one fills, until one of them is moved: that is the core's clock to say.
        if self.core.next_wake().is_some_and(|at| at <= now) {
            self.core.tick(now);
        }
    }

    /// Nothing was wanted of a slab that was under way: the next one of the head is.
    pub(super) fn ask_again(&mut self, now: u64, id: RiderId, head: usize, budget: &Arc<Budget>) {
        let Some(rider) = self.riders.get_mut(&id) else { return };
        if rider.over.is_none() && self.core.pull(now, id, head) {
            return;
        }
        rider.lines[head].in_vain();
        self.go_on(now, id, budget);
    }

    pub(super) fn boarded(&mut self, now: u64, id: RiderId, on: Source, jobs: &mut Vec<Job>) {
        let (position, front) = match on {
            Source::Snapshot(spin) => (self.spins[&spin].position, &self.spins[&spin].front),
            Source::Image(index) => {
                let about = &self.images.known[&index].about;
                (about.position, &about.front)
            }
        };
        let front = front.clone();
        let Some(rider) = self.riders.get_mut(&id) else { return };
        let Some(reply) = rider.boards.take() else { return };
        rider.index = position.applied;
        let may = Catalog::horizon_behind(&front)
            .and_then(|horizon| check_changes(&rider.wish.wanted, horizon).map(|()| horizon));
        let horizon = match may {
            Ok(horizon) => horizon,
            Err(e) => {
                self.riders.remove(&id);
                self.core.leave(now, id);
                return jobs.push(Job::Answer(reply, Response::error(e)));
            }
        };
        let Position { applied, entry_crc, digest, .. } = position;
        let heads = rider.lines.len() as u32;
        let (ride, index, front_crc) = (id.0, applied, Some(crc32c(&front)));
        let boarded = Boarded { ride, heads, index, entry_crc, digest, horizon, front_crc };
        let front = Parts::One(BodyPart::Owned(front));
        jobs.push(Job::Answer(reply, Response::ok(boarded.to_bytes(), front)));
    }

    pub(super) fn end(&mut self, id: RiderId, result: Result<()>, now: u64, jobs: &mut Vec<Job>) {
        let Some(rider) = self.riders.get_mut(&id) else { return };
        let is_told = rider.wish.is_whole() || planted!("ride.sums-for-whoever");
        let sums = |()| {
            let image = self.images.known.get(&rider.index).filter(|_| is_told);
            image.and_then(|image| image.sealed()?.sums)
        };
        rider.over = Some((result.map(sums), now));
        self.know_needs();
        self.tell_end(id, jobs);
    }

    /// Tells a rider whose ride is over that it is, once it was sent everything: slabs of one head may
    /// still be on their way while another head is asked for more.
    fn tell_end(&mut self, id: RiderId, jobs: &mut Vec<Job>) {
        let Some(rider) = self.riders.get_mut(&id) else { return };
        let Some((outcome, _)) = &rider.over else { return };
        if rider.is_sent_to() {
            return;
        }
        let outcome = outcome.clone();
        rider.answer_all(&outcome, jobs);
    }
}

/// Who asks for all changes from an entry on is to get them: of keys that were deleted up to the horizon
/// nothing is left.
fn check_changes(wanted: &Wanted, horizon: Index) -> Result<()> {
    let since = wanted.indices.start;
    if !wanted.versions || since == 0 || since > horizon.0 || planted!("ride.changes-given-up") {
        return Ok(());
    }
    Err(Error::not_found(format!(
        "ride every version since entry {since}: up to entry {horizon}, the horizon, versions and \
         deletions were given up, so what has changed since then is not known: ride since a later entry, \
         or everything anew"
    )))
}

/// Header in the meta, columns behind it, as they were encoded.
fn answer_of(slab: &Slab, taken: Arc<dyn Any + Send + Sync>) -> Response {
    let part = |column: &Column| {
        let (bytes, at) = column.shared();
        BodyPart::Told(bytes, at, taken.clone())
    };
    let parts = slab.columns().iter().map(part).collect();
    Response::ok(slab.header_bytes(), Parts::Many(parts))
}

/// What requests hear that wait when their rider ends its ride.
pub(super) fn has_left() -> Error {
    Error::not_found("ride on: the ride was ended by its rider")
}

/// What a rider hears of the end: well is an answer without a meta.
pub(super) fn end_of(outcome: &Outcome) -> Response {
    match outcome {
        Ok(None) => Response::ok(Vec::new(), Parts::None),
        Ok(Some(sums)) => {
            let ended = Ended { sums: (**sums).clone() }.to_bytes();
            Response::ok(Vec::new(), Parts::One(BodyPart::Owned(ended)))
        }
        Err(e) => Response::error(e.clone()),
    }
}

impl Projections {
    /// What is left of the values of a selection from `slab`. Columns that the selection shares with
    /// the slab are made once for all who want these fields.
    fn leave(&self, slab: &Slab, selected: &Slab, fields: &Arc<Fields>) -> Slab {
        selected.with_fields(fields, |column, make| {
            let make = || {
                sometimes!("fields of values were made");
                make()
            };
            let place = slab.columns().iter().position(|own| own.is_same(column));
            let kept = place.and_then(|place| self.cell(fields, place));
            match kept.filter(|_| !planted!("ride.fields-made-for-each")) {
                Some(cell) => cell.get_or_init(make).clone(),
                None => make(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// See [`Line`].
    #[test]
    fn slabs_answer_requests_in_their_order_whatever_is_wanted_of_them() {
        let mut line = Line::new();
        for request in 1..=4 {
            line.ask(request);
        }
        line.push('a');
        line.push('b');
        assert_eq!(line.take(), Some((1, 'a')));
        assert_eq!(line.take(), None, "one at a time");
        line.looked_at(Some(1));
        assert_eq!(line.take(), Some((1, 'b')), "nothing was wanted of the first one");
        line.push('c');
        assert_eq!(line.take(), None);
        assert!(line.is_busy());
        line.looked_at(None);
        assert_eq!(line.take(), Some((2, 'c')));
        line.looked_at(None);
        assert_eq!((line.take(), line.is_busy(), line.len()), (None, false, 2));
    }

    /// Whoever asks for fields that somebody has asked for before gets the columns that were made then; who takes
    /// half of a slab has its own.
    #[test]
    fn fields_are_made_once_a_slab_for_all_who_ask_for_the_same() {
        use holdfast_wire::slab::{Builder, Item, Needs, Range};
        let mut builder = Builder::new(Range::ALL, 9, Arc::new(Needs::all()), false);
        for (hash, collection) in [(1, 1), (1, 2), (7, 1), (7, 2)] {
            let value = Some(&br#"{"a":1,"b":2,"c":3}"#[..]);
            let item = Item { hash, collection, key: b"k", index: 3, value };
            assert!(builder.push(&item).is_none());
        }
        let slab = builder.finish().unwrap();
        let fields = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Arc::new(Fields::new(&names).unwrap())
        };
        let kept = Projections::default();
        let mut made: Vec<Column> = Vec::new();
        let mut ride = |wanted: &Wanted, fields: &Arc<Fields>| {
            let left = kept.leave(&slab, &select(&slab, wanted), fields);
            // Keys are the slab's own.
            for column in left.columns() {
                if !slab.columns().iter().chain(&made).any(|before| before.is_same(column)) {
                    made.push(column.clone());
                }
            }
            made.len()
        };
        let all = Wanted::all();
        let first = ride(&all, &fields(&["a"]));
        assert_eq!(first, 2, "a column of each collection");
        (0..20).for_each(|_| assert_eq!(ride(&all, &fields(&["a"])), first));
        assert_eq!(ride(&all, &fields(&["a", "b"])), 2 * first, "another set");
        assert_eq!(ride(&all, &fields(&["a"])), 2 * first);
        let half = Wanted { range: Range::new(0, 5), ..Wanted::all() };
        let cut = ride(&half, &fields(&["a"]));
        assert!(
            cut > 2 * first && ride(&half, &fields(&["a"])) > cut,
            "what a border cuts is one rider's"
        );
    }

    /// Beside a plain model: which heads have a slab under way, and who of them has a share.
    #[test]
    fn a_rider_has_one_slab_under_way_beyond_what_there_is_to_spare() {
        use holdfast_env::{Rng, SeededRng};
        const HEADS: usize = 3;
        for seed in 0..200 {
            let rng = SeededRng::new(seed);
            let draw = |n: usize| (rng.next_u64() % n as u64) as usize;
            let budget = Budget::new(0);
            let full = budget.limit() / 4;
            let mut taken = Some(budget.hold(full)).filter(|_| seed % 2 == 0);
            let mut lines: Vec<Line<u32, char>> = (0..HEADS).map(|_| Line::new()).collect();
            let (mut asked, mut under_way) = ([0u32; HEADS], [None::<bool>; HEADS]);
            let mut turn = 0;
            for step in 0..300 {
                let head = draw(HEADS);
                match draw(8) {
                    0..3 => {
                        lines[head].ask(step);
                        asked[head] += 1;
                    }
                    3 => {
                        let others = taken.take().is_none();
                        taken = others.then(|| budget.hold(full));
                    }
                    _ if under_way[head].is_some() => {
                        // Its slab is sent, and taken.
                        lines[head].push('s');
                        assert!(lines[head].take().is_some());
                        lines[head].looked_at(None);
                        lines[head].under_way = None;
                        (asked[head], under_way[head]) = (asked[head] - 1, None);
                    }
                    _ => {}
                }
                let spare = |held| budget.take_spare(held, SLAB_BYTES.usual());
                while let Some(head) = next_pull(&mut lines, &mut turn, spare) {
                    assert!(asked[head] > 0 && under_way[head].is_none(), "seed {seed}");
                    let is_first = under_way.iter().all(Option::is_none);
                    under_way[head] = Some(!is_first);
                }
                let is_full = taken.is_some();
                let shares = under_way.iter().filter(|own| **own == Some(true)).count() as u64;
                let others = if is_full { full } else { 0 };
                assert_eq!(budget.used(), others + shares * SLAB_BYTES.usual(), "seed {seed}");
                let free = under_way.iter().filter(|own| **own == Some(false)).count();
                assert!(free <= 1, "seed {seed}");
                for (asked, own) in asked.iter().zip(under_way) {
                    let rests = *asked > 0 && own.is_none();
                    let may_rest = is_full && under_way.iter().any(Option::is_some);
                    assert!(!rests || may_rest, "seed {seed}: who asks gets on");
                }
            }
            drop((lines, taken));
            assert_eq!(budget.used(), 0, "seed {seed}");
        }
    }

    /// Requests for a head that a rider is through with waited, each with a slab's worth of memory, for
    /// the end of the ride.
    #[test]
    fn a_head_without_more_slabs_takes_nothing_and_leaves_the_turn_to_others() {
        let budget = Budget::new(0);
        let none = |_| None;
        let mut lines: Vec<Line<u32, char>> = (0..2).map(|_| Line::new()).collect();
        let mut turn = 0;
        lines.iter_mut().for_each(|line| (0..16).for_each(|request| line.ask(request)));
        assert_eq!(next_pull(&mut lines, &mut turn, none), Some(0));
        assert_eq!(next_pull(&mut lines, &mut turn, none), None, "one, where nothing is to spare");
        lines[0].in_vain();
        assert_eq!(next_pull(&mut lines, &mut turn, none), Some(1));
        let spare = |held| budget.take_spare(held, SLAB_BYTES.usual());
        assert_eq!((next_pull(&mut lines, &mut turn, spare), budget.used()), (None, 0));
        assert_eq!((lines[0].len(), lines[1].len()), (16, 16));
    }

    #[test]
    fn all_changes_since_an_entry_are_there_or_refused() {
        let check = |versions, since, horizon| {
            let indices = since..u64::MAX;
            check_changes(&Wanted { versions, indices, ..Wanted::all() }, Index(horizon)).is_ok()
        };
        assert!(check(true, 0, 9), "every version that there is");
        assert!(!check(true, 1, 9) && !check(true, 9, 9));
        assert!(check(true, 10, 9) && check(false, 1, 9) && check(true, 1, 0));
    }
}
