//! Spins begun and ended, riders let in and out. Who comes in lap 1 of a spin that is new enough
//! joins it; who comes later gets a new one, or waits for it where there are as many as may be.

use super::allowance::Account;
use super::head::{Head, Seat, Who};
use super::private::Private;
use super::terms::{Boarding, Effect, Place, RiderId, Source, SpinId, Ticket};
use super::{Carousel, Ground, Image, Rider, Spin, Spool, Stream, error};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeMap, BTreeSet};

impl Ticket {
    /// Whether a snapshot of this index will do.
    fn fits(&self, index: Index) -> bool {
        match self {
            Ticket::Shared { at_least } | Ticket::Dedicated { at_least } => index >= *at_least,
            Ticket::At { index: wanted, .. } => index == *wanted,
        }
    }

    fn is_dedicated(&self) -> bool {
        matches!(self, Ticket::Dedicated { .. })
    }
}

impl Spin {
    /// Whether riders that want these heads can join: while all of them are in lap 1, so that no
    /// flow of joiners holds a snapshot open for ever.
    fn is_joinable(&self, heads: &BTreeMap<usize, Stream>) -> bool {
        let goes_on = |head: &usize| self.heads[*head].is_joinable();
        heads.keys().all(goes_on) || planted!("ride.joins-lap-2")
    }
}

impl Carousel {
    pub(super) fn let_in(&mut self, rider: RiderId, boarding: Boarding) {
        let wanted = |(_, head): &(usize, &super::Span)| head.overlaps(&boarding.span);
        let heads = self.heads.iter().enumerate().filter(wanted);
        let streams = heads.map(|(head, _)| (head, Stream::Boarding { requests: 0 }));
        let streams = streams.collect::<BTreeMap<_, _>>();
        if streams.is_empty() {
            let result = Err(error::outside(boarding.span.low, boarding.span.high));
            self.effects.push_back(Effect::End { rider, result });
            return;
        }
        let fresh = Rider {
            boarding,
            ground: Ground::Platform,
            is_late: false,
            streams,
            account: Account::default(),
            active_ns: self.now,
            watched_ns: None,
        };
        let before = self.riders.insert(rider, fresh);
        assert!(before.is_none(), "a rider comes once");
        self.platform.push_back(rider);
        self.stir.doors = true;
    }

    /// Lets in who can be let in, and begins spins for who cannot, as many as may be.
    pub(super) fn open_doors(&mut self) {
        for rider in self.platform.clone() {
            self.find_ground(rider);
        }
        if self.spins_of(false) < self.limits.spins_max {
            if let Some(image) = self.due.take() {
                self.images.insert(image, Image::Written);
                self.begin_shared(Some(image));
            } else if self.first_waiting(false).is_some() {
                self.begin_shared(None);
            }
        } else if self.first_waiting(false).is_some() {
            sometimes!("a rider waited for a spin");
            self.hurry();
        }
        if self.spins_of(true) < self.limits.dedicated_max
            && let Some(rider) = self.first_waiting(true)
        {
            let spin = self.open(None, true);
            self.attach(rider, spin, false);
        }
    }

    /// How many spins there are that riders share, or of one rider each.
    pub(super) fn spins_of(&self, is_dedicated: bool) -> usize {
        self.spins.values().filter(|spin| spin.is_dedicated == is_dedicated).count()
    }

    /// The rider that has waited longest for a spin to share, or for one of its own.
    pub(super) fn first_waiting(&self, is_dedicated: bool) -> Option<RiderId> {
        let same =
            |rider: &&RiderId| self.riders[*rider].boarding.ticket.is_dedicated() == is_dedicated;
        self.platform.iter().find(same).copied()
    }

    /// Asks for a snapshot.
    fn open(&mut self, image: Option<Index>, is_dedicated: bool) -> SpinId {
        let spin = SpinId(self.spins_begun);
        self.spins_begun += 1;
        let fresh = Spin {
            index: None,
            image,
            is_dedicated,
            heads: Vec::new(),
            riders: BTreeSet::new(),
            spool: Spool::None,
            writer: Account::default(),
            under_way: 0,
        };
        self.spins.insert(spin, fresh);
        self.effects.push_back(Effect::Open { spin, image });
        // There may be another one to begin.
        self.stir.doors = true;
        spin
    }

    fn begin_shared(&mut self, image: Option<Index>) {
        let spin = self.open(image, false);
        for rider in self.platform.clone() {
            let ticket = &self.riders[&rider].boarding.ticket;
            if !ticket.is_dedicated() && image.is_none_or(|image| ticket.fits(image)) {
                self.attach(rider, spin, false);
            }
        }
    }

    /// Puts a rider on what is there already, if that serves it.
    fn find_ground(&mut self, rider: RiderId) {
        let found = &self.riders[&rider];
        let ticket = found.boarding.ticket.clone();
        if ticket.is_dedicated() {
            return;
        }
        if let Ticket::At { index, .. } = ticket
            && self.images.get(&index) == Some(&Image::Whole)
        {
            return self.board_image(rider, index);
        }
        let shared = self.spins.iter().rev().filter(|(_, spin)| !spin.is_dedicated);
        let serves = |spin: &Spin| match spin.index {
            Some(index) => {
                (ticket.fits(index) || planted!("ride.older-than-asked"))
                    && spin.is_joinable(&found.streams)
            }
            // What its index will be is known of an image's spin alone.
            None => match (spin.image, &ticket) {
                (Some(image), _) => ticket.fits(image),
                (None, Ticket::At { .. }) => false,
                (None, _) => true,
            },
        };
        let serving = shared.filter(|(_, spin)| serves(spin));
        // One that turns, of these the newest; else one that is about to.
        let serving = serving.max_by_key(|(id, spin)| (spin.index.is_some(), **id));
        match (serving, ticket) {
            (Some((&spin, open)), _) => {
                let index = open.index;
                self.attach(rider, spin, true);
                if let Some(index) = index {
                    sometimes!("a rider joined a spin");
                    self.board(rider, spin, index);
                }
            }
            (None, Ticket::At { index, .. }) => {
                let is_whole = |image| image == Image::Whole || planted!("ride.names-any-image");
                let whole = self.images.iter().rev().find(|(_, image)| is_whole(**image));
                let newest = whole.map(|(newest, _)| *newest);
                self.end(rider, Err(error::not_here(index, newest)));
            }
            (None, _) => {}
        }
    }

    fn attach(&mut self, rider: RiderId, spin: SpinId, is_late: bool) {
        self.platform.retain(|waits| *waits != rider);
        let found = self.riders.get_mut(&rider).expect("who waits is known");
        found.ground = Ground::Spin(spin);
        found.is_late = is_late;
        self.spins.get_mut(&spin).expect("a spin that serves is there").riders.insert(rider);
    }

    /// The snapshot is there: whoever waited for it rides.
    pub(super) fn begin(&mut self, spin: SpinId, index: Index) {
        let (now, heads) = (self.now, self.heads.len());
        let open = self.spins.get_mut(&spin).expect("the driver answers what it was asked");
        assert!(open.index.is_none(), "a spin is opened once");
        open.index = Some(index);
        open.heads = vec![Head::default(); heads];
        let image = open.image;
        if let Some(image) = image {
            assert_eq!(image, index, "an image is made of the snapshot that was taken for it");
            open.spool = Spool::Writing;
            open.writer = Account::new(now, &self.limits);
            for head in &mut open.heads {
                head.seats.push(Seat::new(Who::Image, 1));
            }
        }
        for rider in open.riders.clone() {
            let found = &self.riders[&rider];
            if found.boarding.ticket.fits(index) {
                self.board(rider, spin, index);
            } else if found.is_late {
                self.back_to_platform(rider, spin);
            } else if let Ticket::Shared { at_least } | Ticket::Dedicated { at_least } =
                found.boarding.ticket
            {
                self.end(rider, Err(error::not_reached(at_least, index)));
            }
        }
        self.stir.heads.extend((0..heads).map(|head| (spin, head)));
        self.stir.spins.insert(spin);
        self.stir.doors = true;
    }

    /// The snapshot was taken before the rider came, and is too old for it.
    fn back_to_platform(&mut self, rider: RiderId, spin: SpinId) {
        sometimes!("a snapshot was older than a rider wants");
        self.riders.get_mut(&rider).expect("who is on a spin is known").ground = Ground::Platform;
        self.spins.get_mut(&spin).expect("it was just begun").riders.remove(&rider);
        self.platform.push_back(rider);
    }

    /// No snapshot: whoever waited for it hears why.
    pub(super) fn give_up_spin(&mut self, spin: SpinId, error: Error) {
        let open = self.spins.get(&spin).expect("the driver answers what it was asked");
        assert!(open.index.is_none(), "a spin is opened once");
        let image = open.image;
        for rider in open.riders.clone() {
            self.end(rider, Err(error.clone()));
        }
        self.spins.remove(&spin);
        if let Some(image) = image {
            self.images.insert(image, Image::Going);
            self.stir.images.insert(image);
        }
        self.stir.doors = true;
    }

    /// A rider gets its seats.
    fn board(&mut self, rider: RiderId, spin: SpinId, index: Index) {
        let open = self.spins.get_mut(&spin).expect("who boards a spin is on it");
        let found = self.riders.get_mut(&rider).expect("who boards is known");
        let mut first = row_of(&found.boarding.ticket);
        for (head, stream) in &mut found.streams {
            let Stream::Boarding { requests } = *stream else { unreachable!("who boards rides") };
            *stream = match first.take() {
                Some(place) => resumed(place, requests),
                None if open.is_dedicated => Stream::Private(Private::new(Place::START, requests)),
                None => {
                    open.heads[*head].seats.push(Seat::new(Who::Rider(rider), requests));
                    self.stir.heads.insert((spin, *head));
                    Stream::Shared
                }
            };
        }
        self.let_ride(rider, index, Source::Snapshot(spin));
    }

    fn board_image(&mut self, rider: RiderId, index: Index) {
        self.platform.retain(|waits| *waits != rider);
        let found = self.riders.get_mut(&rider).expect("who boards is known");
        found.ground = Ground::Image(index);
        let mut first = row_of(&found.boarding.ticket);
        for stream in found.streams.values_mut() {
            let Stream::Boarding { requests } = *stream else { unreachable!("who boards rides") };
            *stream = match first.take() {
                Some(place) => resumed(place, requests),
                None => Stream::Private(Private::new(Place::START, requests)),
            };
        }
        self.let_ride(rider, index, Source::Image(index));
    }

    fn let_ride(&mut self, rider: RiderId, index: Index, on: Source) {
        let found = self.riders.get_mut(&rider).expect("who boards is known");
        found.account = Account::new(self.now, &self.limits);
        // Nobody was idle who waited to be let in.
        found.active_ns = self.now;
        self.stir.streams.extend(found.streams.keys().map(|head| (rider, *head)));
        self.effects.push_back(Effect::Boarded { rider, index, on });
        if matches!(on, Source::Snapshot(_)) || !planted!("ride.idle-on-images") {
            self.watch(rider);
        }
    }

    /// A rider is through with a head; with all of them, its ride is over.
    pub(super) fn through(&mut self, rider: RiderId, head: usize) {
        let found = self.riders.get_mut(&rider).expect("who is through rides");
        found.streams.remove(&head);
        match found.streams.is_empty() {
            true => self.end(rider, Ok(())),
            false => self.step_over(rider),
        }
    }

    pub(super) fn end(&mut self, rider: RiderId, result: Result<()>) {
        self.let_out(rider);
        self.effects.push_back(Effect::End { rider, result });
    }

    /// Takes a rider out of everything.
    pub(super) fn let_out(&mut self, rider: RiderId) {
        let Some(found) = self.riders.get(&rider) else { return };
        let ground = found.ground;
        for (head, stream) in found.streams.clone() {
            match stream {
                Stream::Boarding { .. } => {}
                Stream::Shared => {
                    let Ground::Spin(spin) = ground else { unreachable!("seats are on spins") };
                    self.take_seat(spin, head, Who::Rider(rider));
                }
                Stream::Private(_) => {
                    self.stop_private(rider, head);
                    self.give_up_turn(rider, head);
                }
            }
        }
        self.unwatch(rider);
        match ground {
            Ground::Platform => self.platform.retain(|waits| *waits != rider),
            Ground::Spin(spin) => {
                let open = self.spins.get_mut(&spin).expect("who stands on a spin holds it");
                open.riders.remove(&rider);
                self.stir.spins.insert(spin);
            }
            Ground::Image(image) => {
                self.stir.images.insert(image);
            }
        }
        self.riders.remove(&rider);
    }

    /// Gives a snapshot back that nobody needs any more.
    pub(super) fn close(&mut self, spin: SpinId) {
        let Some(open) = self.spins.get(&spin) else { return };
        let is_spooled = matches!(open.spool, Spool::Writing | Spool::Sealing);
        let is_needed = open.index.is_none() || !open.riders.is_empty() || is_spooled;
        if is_needed || open.under_way > 0 {
            return;
        }
        let scans = open.heads.iter().filter_map(|head| head.scan).collect::<Vec<_>>();
        scans.into_iter().for_each(|scan| self.stop(scan));
        self.spins.remove(&spin);
        if !planted!("ride.snapshot-never-closed") {
            self.effects.push_back(Effect::Close { spin });
        }
        self.stir.doors = true;
    }
}

/// Where a rider goes on that has ridden before.
fn row_of(ticket: &Ticket) -> Option<Place> {
    let Ticket::At { from: Some(row), .. } = ticket else { return None };
    Some(Place { number: 0, first: Some(row.clone()) })
}

fn resumed(place: Place, requests: u64) -> Stream {
    sometimes!("a ride went on where another one had ended");
    let mut private = Private::new(place, requests);
    private.counts_alone = true;
    if planted!("ride.resumed-skips-a-slab") {
        private.number += 1;
    }
    Stream::Private(private)
}
