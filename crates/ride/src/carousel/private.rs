//! Streams that read by themselves: riders that were moved, that take what they missed from an
//! image, that go on where an earlier ride ended, or that wanted it so. A slab is made when it is
//! asked for and sent at once; nothing is kept for them. Scans of shared snapshots take *turns*:
//! there are so many at a time, and who asks for nothing gives its turn to who waits for one.

use super::terms::{Effect, Held, Place, Reader, RiderId, ScanId, Slab, Source};
use super::{Carousel, Ground, Spool, Stream, error};
use holdfast_base::{Error, Result};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Private {
    /// Where a scan would begin: at or before `number`, for the rows of slabs that were not made
    /// yet are known to nobody. What lies between is made once more, and not sent.
    place: Place,
    /// The next slab to be sent.
    pub number: u64,
    /// The slab that is not wanted any more; none, if the head's last one is.
    pub end: Option<u64>,
    /// What comes then: the slabs before this one.
    pub missed: Option<u64>,
    pub requests: u64,
    pub scan: Option<ScanId>,
    /// The slab that the scan makes next.
    next: u64,
    /// The image could not be read: the snapshot can.
    distrusts: bool,
    /// It counts slabs from a row of its own: not as the image that is being written does.
    pub counts_alone: bool,
}

impl Private {
    pub fn new(place: Place, requests: u64) -> Private {
        Private {
            number: place.number,
            place,
            end: None,
            missed: None,
            requests,
            scan: None,
            next: 0,
            distrusts: false,
            counts_alone: false,
        }
    }

    /// What the rider is sent depends on a scan making slab after slab, as far as there are some.
    fn look_at(&self, slab: &Slab) -> Result<()> {
        if slab.number != self.next {
            return Err(error::out_of_order(slab.number, self.next));
        }
        match self.end {
            Some(end) if slab.last && self.next + 1 < end => {
                Err(error::too_short(self.next + 1, end))
            }
            _ => Ok(()),
        }
    }
}

/// Who may scan shared snapshots by itself, and who waits to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    pub holders: BTreeSet<(RiderId, usize)>,
    pub queue: VecDeque<(RiderId, usize)>,
}

impl Carousel {
    fn private(&self, rider: RiderId, head: usize) -> Option<&Private> {
        match self.riders.get(&rider)?.streams.get(&head)? {
            Stream::Private(private) => Some(private),
            _ => None,
        }
    }

    fn private_mut(&mut self, rider: RiderId, head: usize) -> &mut Private {
        let found = self.riders.get_mut(&rider).map(|found| found.streams.get_mut(&head));
        match found.flatten() {
            Some(Stream::Private(private)) => private,
            _ => unreachable!("a private scan ends with its stream"),
        }
    }

    /// What a stream reads next: the image as far as that is written, so that the snapshot may go.
    fn source_of(&self, rider: RiderId, head: usize, private: &Private) -> Source {
        let spin = match self.riders[&rider].ground {
            Ground::Image(image) => return Source::Image(image),
            Ground::Spin(spin) => spin,
            Ground::Platform => unreachable!("who waits for a spin reads nothing"),
        };
        let open = &self.spins[&spin];
        let is_written = match open.spool {
            Spool::None => false,
            Spool::Writing | Spool::Sealing => {
                let is_far_enough = open.heads[head].written > private.number;
                (is_far_enough || planted!("ride.image-read-ahead")) && !private.counts_alone
            }
            Spool::Whole => true,
        };
        match open.image {
            Some(image) if is_written && !private.distrusts => Source::Image(image),
            _ => Source::Snapshot(spin),
        }
    }

    /// Does what a private stream can do now.
    pub(super) fn read_on(&mut self, rider: RiderId, head: usize) {
        let Some(private) = self.private(rider, head) else { return };
        let (open, requests) = (private.scan, private.requests);
        if open.is_some_and(|scan| self.scans[&scan].is_busy) {
            return;
        }
        let source = self.source_of(rider, head, private);
        if open.is_some_and(|scan| self.scans[&scan].source != source) {
            self.stop_private(rider, head);
        }
        let wants_turn = self.wants_turn(source);
        let rests = requests == 0 && !self.turns.queue.is_empty();
        if !wants_turn || rests && !planted!("ride.turn-kept") {
            self.give_up_turn(rider, head);
        }
        if requests == 0 || wants_turn && !self.take_turn(rider, head) {
            return;
        }
        let private = self.private_mut(rider, head);
        let (open, at) = (private.scan, private.place.clone());
        if open.is_none() {
            private.next = at.number;
        }
        let scan = self.scan(open, source, head, Reader::Private(rider), at);
        self.private_mut(rider, head).scan = Some(scan);
    }

    pub(super) fn stop_private(&mut self, rider: RiderId, head: usize) {
        if let Some(scan) = self.private_mut(rider, head).scan.take() {
            self.stop(scan);
        }
    }

    fn wants_turn(&self, source: Source) -> bool {
        match source {
            Source::Snapshot(spin) => !self.spins[&spin].is_dedicated,
            Source::Image(_) => false,
        }
    }

    fn take_turn(&mut self, rider: RiderId, head: usize) -> bool {
        let me = (rider, head);
        if !self.turns.holders.contains(&me) && !self.turns.queue.contains(&me) {
            self.turns.queue.push_back(me);
            self.take_from_who_rests();
            self.give_turns();
        }
        let has_turn = self.turns.holders.contains(&me);
        if !has_turn {
            sometimes!("a private reader waited for its turn");
        }
        has_turn
    }

    /// Where all turns are given, one whose holder asks for nothing is free again.
    fn take_from_who_rests(&mut self) {
        if self.turns.holders.len() < self.limits.private_max {
            return;
        }
        sometimes!("all turns of private readers were given");
        let rests = |(rider, head): &(RiderId, usize)| {
            self.private(*rider, *head).is_some_and(|private| {
                let is_busy = private.scan.is_some_and(|scan| self.scans[&scan].is_busy);
                private.requests == 0 && !is_busy && !planted!("ride.turn-kept")
            })
        };
        let resting = self.turns.holders.iter().copied().find(rests);
        if let Some((rider, head)) = resting {
            self.turns.holders.remove(&(rider, head));
            self.stop_private(rider, head);
        }
    }

    /// Gives free turns to those who have waited longest.
    fn give_turns(&mut self) {
        while self.turns.holders.len() < self.limits.private_max
            && let Some(next) = self.turns.queue.pop_front()
        {
            self.turns.holders.insert(next);
            self.stir.streams.insert(next);
        }
    }

    /// A stream needs no turn, now or any more.
    pub(super) fn give_up_turn(&mut self, rider: RiderId, head: usize) {
        self.turns.queue.retain(|waits| *waits != (rider, head));
        if self.turns.holders.remove(&(rider, head)) {
            self.stop_private(rider, head);
            self.give_turns();
        }
    }

    pub(super) fn made_private(
        &mut self,
        rider: RiderId,
        head: usize,
        source: Source,
        scan: ScanId,
        slab: Slab,
    ) {
        let held = Held { scan, number: slab.number };
        self.stir.streams.insert((rider, head));
        let private = self.private_mut(rider, head);
        if let Err(error) = private.look_at(&slab) {
            self.effects.push_back(Effect::Forget { slab: held });
            return self.failed_private(rider, head, source, error);
        }
        private.next += 1;
        private.place = Place { number: slab.number, first: Some(slab.first) };
        let mut is_over = false;
        if slab.number >= private.number {
            private.number = slab.number + 1;
            private.requests -= 1;
            is_over = slab.last || private.end == Some(private.number);
            self.send(rider, head, held);
        }
        self.effects.push_back(Effect::Forget { slab: held });
        if is_over {
            self.end_leg(rider, head);
        }
    }

    /// A stream has come to the end of its lap, or of what it missed.
    fn end_leg(&mut self, rider: RiderId, head: usize) {
        self.stop_private(rider, head);
        let private = self.private_mut(rider, head);
        match private.missed.take() {
            Some(missed) => {
                (private.place, private.number) = (Place::START, 0);
                private.end = Some(missed);
            }
            None => {
                self.give_up_turn(rider, head);
                self.through(rider, head);
            }
        }
    }

    pub(super) fn failed_private(
        &mut self,
        rider: RiderId,
        head: usize,
        source: Source,
        error: Error,
    ) {
        self.stop_private(rider, head);
        let has_snapshot = matches!(self.riders[&rider].ground, Ground::Spin(_));
        if has_snapshot && matches!(source, Source::Image(_)) {
            sometimes!("an image could not be read, and the snapshot was");
            self.private_mut(rider, head).distrusts = true;
            self.stir.streams.insert((rider, head));
        } else {
            self.end(rider, Err(error));
        }
    }

    /// A rider that can take all that it still wants from its spin's image lets go of the snapshot.
    pub(super) fn step_over(&mut self, rider: RiderId) {
        let Some(found) = self.riders.get_mut(&rider) else { return };
        let Ground::Spin(spin) = found.ground else { return };
        let open = self.spins.get_mut(&spin).expect("who stands on a spin holds it");
        let Some(image) = open.image.filter(|_| open.spool == Spool::Whole) else { return };
        let trusts = |stream: &Stream| match stream {
            Stream::Private(private) => !private.distrusts,
            _ => false,
        };
        if found.streams.values().all(trusts) {
            found.ground = Ground::Image(image);
            open.riders.remove(&rider);
            self.stir.spins.insert(spin);
            self.stir.streams.extend(found.streams.keys().map(|head| (rider, *head)));
        }
    }
}
