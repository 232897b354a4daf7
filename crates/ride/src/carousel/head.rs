//! One head of a spin: who sits on it, what it keeps for those that are behind, what comes next.
//! Its slabs are numbered on over the laps: *step* `s` is slab `s` in lap 1, and in lap 2, with `n`
//! slabs in the head, slab `s - n`. Who joined at step `j` is through at step `j + n`.

use super::allowance::Share;
use super::error;
use super::terms::{Held, Place, RiderId, ScanId, Slab};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::VecDeque;

/// Who sits on a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Who {
    Rider(RiderId),
    /// The writer of the spin's image: a rider that joins at 0 and is never moved.
    Image,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seat {
    pub who: Who,
    /// Slabs asked for and not sent yet. Who has some is sent what is there at once, so it waits
    /// for a slab that is not made yet.
    pub requests: u64,
    /// The step at which it joined; none while it waits for a slab that begins with a key.
    pub joined: Option<u64>,
    /// The next step that it is sent.
    pub step: u64,
    /// The part of the others that it holds up now, and is charged for.
    pub share: Share,
}

impl Seat {
    pub fn new(who: Who, requests: u64) -> Seat {
        Seat { who, requests, joined: None, step: 0, share: Share::NONE }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    slab: Held,
    bytes: u64,
    first: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Head {
    /// The scan of this lap, once it has begun.
    pub scan: Option<ScanId>,
    /// A slab of it is under way.
    pub busy: bool,
    /// The step of the slab that is made next.
    next: u64,
    /// How many slabs the head has; none in lap 1.
    slabs: Option<u64>,
    /// The last slabs, up to `next`: those that somebody aboard has not been sent.
    window: VecDeque<Kept>,
    kept_bytes: u64,
    pub seats: Vec<Seat>,
    /// Slabs that the image holds for certain.
    pub written: u64,
    /// Why no further slab will be made.
    pub broken: Option<Error>,
}

/// A seat's slab is sent.
pub(super) struct Sent {
    pub who: Who,
    pub slab: Held,
}

impl Head {
    /// Lap 1 goes on, so that riders may join.
    pub fn is_joinable(&self) -> bool {
        self.slabs.is_none() && self.broken.is_none()
    }

    /// How many slabs the head has, once that is known.
    pub fn slabs(&self) -> Option<u64> {
        self.slabs
    }

    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// The slab of a step.
    pub fn number(&self, step: u64) -> u64 {
        self.slabs.map_or(step, |slabs| step % slabs)
    }

    /// The number of the slab that is made next.
    pub fn next_number(&self) -> u64 {
        self.number(self.next)
    }

    /// The step of the oldest slab that is kept.
    fn tail(&self) -> u64 {
        self.next - self.window.len() as u64
    }

    /// The step behind the last one that a seat needs; none while nobody knows.
    fn end(&self, seat: &Seat) -> Option<u64> {
        Some(seat.joined? + self.slabs?)
    }

    pub fn seat_mut(&mut self, who: Who) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|seat| seat.who == who)
    }

    pub fn take_seat(&mut self, who: Who) -> Option<Seat> {
        let at = self.seats.iter().position(|seat| seat.who == who)?;
        Some(self.seats.swap_remove(at))
    }

    /// Where a seat that is behind would go on by itself.
    pub fn place(&self, seat: &Seat) -> Place {
        assert!((self.tail()..self.next).contains(&seat.step), "what is ahead is kept by nobody");
        let kept = &self.window[(seat.step - self.tail()) as usize];
        Place { number: kept.slab.number, first: Some(kept.first.clone()) }
    }

    /// Takes the slab that the scan has made. Whoever waits to join does, if a key begins.
    pub fn push(&mut self, scan: ScanId, slab: Slab) -> Result<()> {
        self.look_at(&slab)?;
        let step = self.next;
        if self.slabs.is_none() {
            for seat in self.seats.iter_mut().filter(|seat| seat.joined.is_none()) {
                if slab.joinable || planted!("ride.joins-inside-a-key") {
                    (seat.joined, seat.step) = (Some(step), step);
                }
            }
        }
        self.next += 1;
        self.kept_bytes += slab.bytes;
        let held = Held { scan, number: slab.number };
        self.window.push_back(Kept { slab: held, bytes: slab.bytes, first: slab.first });
        if self.slabs.is_none() && slab.last {
            self.end_lap();
        }
        Ok(())
    }

    /// What riders are sent depends on slabs being cut the same way in every lap.
    fn look_at(&self, slab: &Slab) -> Result<()> {
        let number = self.next_number();
        if slab.number != number {
            return Err(error::out_of_order(slab.number, number));
        }
        let begins_well = slab.joinable || number > 0;
        let ends_well = self.slabs.is_none_or(|slabs| slab.last == (number + 1 == slabs));
        match begins_well && ends_well {
            true => Ok(()),
            false => Err(error::cut_otherwise(number)),
        }
    }

    /// Lap 1 is over. Who waits to join has missed everything.
    fn end_lap(&mut self) {
        self.slabs = Some(self.next);
        for seat in self.seats.iter_mut().filter(|seat| seat.joined.is_none()) {
            (seat.joined, seat.step) = (Some(self.next), self.next);
        }
    }

    /// Somebody asks for one slab more, and is sent it if it is kept. Says whether the head has to
    /// turn for that. As a rule it does not, so that a request costs the same however many riders
    /// there are: while a slab is being made, all that can follow from a request is that a seat is
    /// through with its lap, or that a slab was kept for it alone.
    pub fn ask(&mut self, who: Who) -> (Option<Held>, bool) {
        let (tail, next) = (self.tail(), self.next);
        let seat = self.seat_mut(who).expect("who shares a head has a seat");
        let step = seat.step;
        if seat.joined.is_none() || step == next {
            seat.requests += 1;
            return (None, !self.busy);
        }
        seat.step += 1;
        let end = seat.joined.zip(self.slabs).map(|(joined, slabs)| joined + slabs);
        let ends_lap = self.slabs == Some(step + 1) || end == Some(step + 1);
        let was_last = self.seats.iter().all(|seat| seat.joined.is_none() || seat.step > step);
        let slab = self.window[(step - tail) as usize].slab;
        (Some(slab), !self.busy || ends_lap || was_last)
    }

    /// What is kept and was asked for is sent.
    pub fn serve(&mut self) -> Vec<Sent> {
        let (tail, next) = (self.tail(), self.next);
        let mut sent = Vec::new();
        for at in 0..self.seats.len() {
            let end = self.end(&self.seats[at]).unwrap_or(u64::MAX);
            let seat = &mut self.seats[at];
            while seat.joined.is_some() && seat.requests > 0 && seat.step < next.min(end) {
                let kept = &self.window[(seat.step - tail) as usize];
                sent.push(Sent { who: seat.who, slab: kept.slab });
                seat.step += 1;
                seat.requests -= 1;
            }
        }
        sent
    }

    /// Whether a seat has been sent everything.
    pub fn is_through(&self, seat: &Seat) -> bool {
        self.end(seat).is_some_and(|end| seat.step >= end)
    }

    /// Where lap 1 is over for a seat that joined in its middle: slabs that it missed.
    pub fn missed(&self, seat: &Seat) -> Option<u64> {
        let slabs = self.slabs?;
        (seat.step == slabs && !self.is_through(seat)).then_some(seat.joined?)
    }

    /// Whether a seat needs slabs that are not made yet, from this scan or the next one.
    pub fn wants_more(&self, seat: &Seat) -> bool {
        self.end(seat).is_none_or(|end| end > self.next)
    }

    /// Forgets what everybody aboard has been sent.
    pub fn trim(&mut self) -> Vec<Held> {
        let behind = self.seats.iter().filter(|seat| seat.joined.is_some());
        let tail = behind.map(|seat| seat.step).min().unwrap_or(self.next);
        let through = tail.saturating_sub(self.tail()) as usize;
        let gone = self.window.drain(..through).collect::<Vec<_>>();
        self.kept_bytes -= gone.iter().map(|kept| kept.bytes).sum::<u64>();
        gone.into_iter().map(|kept| kept.slab).collect()
    }

    /// Whether a further slab is to be made, if there is room for it. In lap 2 only for who has
    /// come to it, and no further than the last of them missed: nobody joins it.
    pub fn is_needed(&self) -> bool {
        match self.slabs {
            None => !self.seats.is_empty(),
            Some(slabs) => {
                let come = |seat: &Seat| seat.step >= slabs && self.wants_more(seat);
                self.seats.iter().any(come) || planted!("ride.lap-without-end")
            }
        }
    }

    /// Says anew who holds others up: those whose slabs fill the window from its tail on, while
    /// somebody else has asked for a slab that is not made for want of room. Tells for whom that
    /// changed.
    pub fn charge(&mut self, window_bytes: u64) -> Vec<(Who, Share)> {
        let is_full = self.kept_bytes >= window_bytes;
        // Who is sent what is there at once waits for what is not made yet.
        let waiting = self.seats.iter().filter(|seat| seat.requests > 0).count();
        let stalls = is_full && waiting > 0 && self.is_needed();
        let others = self.seats.len().saturating_sub(1);
        let waiting = if planted!("ride.one-waits-as-all-do") { others } else { waiting };
        let (tail, next) = (self.tail(), self.next);
        let mut changed = Vec::new();
        for seat in &mut self.seats {
            let behind = match planted!("ride.stall-charged-off-the-tail") {
                true => seat.step < next,
                false => seat.step == tail,
            };
            let share = match stalls && seat.joined.is_some() && behind {
                true => Share::of(waiting, others),
                false => Share::NONE,
            };
            if share != seat.share {
                seat.share = share;
                changed.push((seat.who, share));
            }
        }
        changed
    }

    /// What must hold whenever the core rests.
    pub fn check(&self, window_bytes: u64) {
        let kept = self.window.iter().map(|kept| kept.bytes).sum::<u64>();
        assert_eq!(kept, self.kept_bytes, "what is kept is counted");
        let last = self.window.back().map_or(0, |kept| kept.bytes);
        assert!(kept - last < window_bytes.max(1), "a head keeps a window and one slab more");
        assert!(self.next <= 2 * self.slabs.unwrap_or(u64::MAX / 2), "there is no third lap");
        for seat in &self.seats {
            assert!(!self.is_through(seat), "who is through gets off");
            assert!(seat.joined.is_some() || self.slabs.is_none(), "nobody joins lap 2");
            let at_tail = seat.joined.is_some() && seat.step < self.next;
            assert!(!at_tail || seat.requests == 0, "what is there is sent when it is asked for");
            assert!(!at_tail || seat.step >= self.tail(), "what somebody needs is kept");
        }
    }
}
