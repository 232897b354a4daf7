//! Heads moved on: what was asked for is sent, what nobody needs is forgotten, what somebody needs
//! is made, who holds up others is charged, and moved.

use super::allowance::Share;
use super::head::{Seat, Sent, Who};
use super::private::Private;
use super::terms::{Effect, Held, Place, Reader, RiderId, ScanId, Slab, Source, SpinId};
use super::{Carousel, Spin, Spool, Stream};
use holdfast_base::Error;
use holdfast_env::{planted, sometimes};

impl Spin {
    /// Whether the image has the head's slabs below `until`, or will have as soon as what is
    /// written has its name.
    pub(super) fn is_spooled(&self, head: usize, until: u64) -> bool {
        match self.spool {
            Spool::None => false,
            Spool::Writing => self.heads[head].written >= until,
            Spool::Sealing | Spool::Whole => true,
        }
    }

    /// Whether a seat depends on scans of the head's that are still to come.
    fn depends_on_scans(&self, head: usize, seat: &Seat) -> bool {
        let laps = &self.heads[head];
        let Some(slabs) = laps.slabs() else {
            return seat.joined.is_some() || !planted!("ride.failure-leaves-waiting");
        };
        let missed = seat.joined.unwrap_or(slabs);
        // Who has not begun lap 2 gets out where the image has what it missed.
        let gets_out = seat.step <= slabs && missed > 0 && self.is_spooled(head, missed);
        laps.wants_more(seat) && !gets_out
    }
}

impl Carousel {
    pub(super) fn made_shared(&mut self, spin: SpinId, head: usize, scan: ScanId, slab: Slab) {
        let laps = &mut self.spins.get_mut(&spin).expect("its scan was under way").heads[head];
        laps.busy = false;
        let held = Held { scan, number: slab.number };
        if let Err(error) = laps.push(scan, slab) {
            self.effects.push_back(Effect::Forget { slab: held });
            return self.failed_shared(spin, head, error);
        }
        if laps.slabs().is_some() && laps.next_number() == 0 {
            // The next lap is another scan.
            laps.scan = None;
            self.stop(scan);
        }
        self.stir.heads.insert((spin, head));
    }

    pub(super) fn failed_shared(&mut self, spin: SpinId, head: usize, error: Error) {
        let laps = &mut self.spins.get_mut(&spin).expect("its scan was under way").heads[head];
        laps.busy = false;
        laps.broken = Some(error);
        if let Some(scan) = laps.scan.take() {
            self.stop(scan);
        }
        self.stir.heads.insert((spin, head));
    }

    /// Does all that can be done on a head now.
    pub(super) fn turn(&mut self, spin: SpinId, head: usize) {
        let Some(found) = self.spins.get_mut(&spin) else { return };
        let Some(laps) = found.heads.get_mut(head) else { return };
        for Sent { who, slab } in laps.serve() {
            match who {
                Who::Rider(rider) => self.send(rider, head, slab),
                Who::Image => self.effects.push_back(Effect::Spool { spin, head, slab }),
            }
        }
        self.get_off(spin, head);
        self.end_with_the_scan(spin, head);
        let Some(found) = self.spins.get_mut(&spin) else { return };
        for slab in found.heads[head].trim() {
            self.effects.push_back(Effect::Forget { slab });
        }
        self.make_more(spin, head);
        let Some(found) = self.spins.get_mut(&spin) else { return };
        for (who, share) in found.heads[head].charge(self.limits.window_bytes) {
            self.holds_up(Carousel::payer(spin, who), head, share);
        }
    }

    /// Who is through, or takes what it missed from the image, gets off.
    fn get_off(&mut self, spin: SpinId, head: usize) {
        let found = &self.spins[&spin];
        let laps = &found.heads[head];
        let through = |seat: &&Seat| laps.is_through(seat);
        let through = laps.seats.iter().filter(through).map(|seat| seat.who).collect::<Vec<_>>();
        let from_image = |seat: &Seat| {
            let missed = laps.missed(seat).filter(|missed| found.is_spooled(head, *missed))?;
            let Who::Rider(rider) = seat.who else { return None };
            Some((rider, missed))
        };
        let from_image = laps.seats.iter().filter_map(from_image).collect::<Vec<_>>();
        for who in through {
            self.take_seat(spin, head, who);
            if let Who::Rider(rider) = who {
                self.through(rider, head);
            }
        }
        for (rider, missed) in from_image {
            sometimes!("a rider took what it missed from the image");
            let seat = self.take_seat(spin, head, Who::Rider(rider));
            let mut private = Private::new(Place::START, seat.requests);
            private.end = Some(missed);
            self.read_alone(rider, head, private);
        }
    }

    /// Takes a seat away, with what its holder is charged for.
    pub(super) fn take_seat(&mut self, spin: SpinId, head: usize, who: Who) -> Seat {
        let found = self.spins.get_mut(&spin).expect("seats are on spins");
        let seat = found.heads[head].take_seat(who).expect("who shares a head has a seat");
        if seat.share > Share::NONE {
            self.holds_up(Carousel::payer(spin, who), head, Share::NONE);
        }
        self.stir.heads.insert((spin, head));
        self.stir.spins.insert(spin);
        seat
    }

    /// A head that makes no more slabs ends the rides that depend on them, and no others.
    fn end_with_the_scan(&mut self, spin: SpinId, head: usize) {
        let found = &self.spins[&spin];
        let Some(error) = found.heads[head].broken.clone() else { return };
        let seats = found.heads[head].seats.iter();
        let concerned = seats.filter(|seat| found.depends_on_scans(head, seat));
        for who in concerned.map(|seat| seat.who).collect::<Vec<_>>() {
            match who {
                Who::Rider(rider) => self.end(rider, Err(error.clone())),
                Who::Image => self.give_up_image(spin),
            }
        }
    }

    fn make_more(&mut self, spin: SpinId, head: usize) {
        let laps = &self.spins[&spin].heads[head];
        if laps.busy || laps.broken.is_some() {
            return;
        }
        if !laps.is_needed() {
            // Lap 1 may be needed again by who joins, and lap 2 by who has still to come to it.
            if laps.slabs().is_some()
                && !laps.seats.iter().any(|seat| laps.wants_more(seat))
                && let Some(scan) = self.heads_mut(spin)[head].scan.take()
            {
                self.stop(scan);
            }
            return;
        }
        if laps.kept_bytes() >= self.limits.window_bytes {
            sometimes!("a window was full");
            super::WINDOW_BYTES.cross();
            return;
        }
        let (open, is_lap_2) = (laps.scan, laps.slabs().is_some());
        let scan = self.scan(open, Source::Snapshot(spin), head, Reader::Shared, Place::START);
        if planted!("ride.missed-from-a-newer-spin") && is_lap_2 {
            self.read_the_newest();
        }
        let laps = &mut self.heads_mut(spin)[head];
        laps.scan = Some(scan);
        laps.busy = true;
    }

    /// The mistake that the snapshot of a view is whichever one is there.
    fn read_the_newest(&mut self) {
        let newest = self.spins.iter().rev().find(|(_, spin)| spin.index.is_some());
        if let (Some(Effect::Scan { source, .. }), Some((newest, _))) =
            (self.effects.back_mut(), newest)
        {
            *source = Source::Snapshot(*newest);
        }
    }

    fn heads_mut(&mut self, spin: SpinId) -> &mut Vec<super::Head> {
        &mut self.spins.get_mut(&spin).expect("a spin that turns is open").heads
    }

    /// A rider goes on by itself, from its own place: first to the end of its lap, then, if it is
    /// in lap 1, through what it missed.
    pub(super) fn move_rider(&mut self, spin: SpinId, head: usize, rider: RiderId) {
        sometimes!("a rider was moved");
        let seat = self.take_seat(spin, head, Who::Rider(rider));
        let laps = &self.spins[&spin].heads[head];
        let mut private = Private::new(laps.place(&seat), seat.requests);
        if planted!("ride.moved-skips-a-slab") {
            private.number += 1;
        }
        let joined = seat.joined.expect("who is behind has joined");
        match laps.slabs() {
            Some(slabs) if seat.step >= slabs => private.end = Some(joined),
            _ => private.missed = (joined > 0).then_some(joined),
        }
        self.effects.push_back(Effect::Moved { rider, head });
        self.read_alone(rider, head, private);
    }

    /// A stream leaves its seat behind.
    fn read_alone(&mut self, rider: RiderId, head: usize, private: Private) {
        let found = self.riders.get_mut(&rider).expect("who has a seat rides");
        found.streams.insert(head, Stream::Private(private));
        self.stir.streams.insert((rider, head));
        self.step_over(rider);
    }
}
