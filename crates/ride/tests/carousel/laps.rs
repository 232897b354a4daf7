//! The rules of a head in plain words: who joins where, who stands at which step, who is held up by
//! whom. Knows the core by its effects alone.

use holdfast_ride::carousel::{RiderId, ScanId};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    Rider(RiderId),
    Writer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    pub joined: Option<u64>,
    pub step: u64,
}

/// A head of a spin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Laps {
    /// Bytes of each slab that was made, lap after lap.
    made: Vec<u64>,
    pub slabs: Option<u64>,
    /// The scan of this lap that is under way.
    pub under_way: Option<ScanId>,
    pub is_broken: bool,
    pub seats: BTreeMap<Who, Seat>,
}

impl Laps {
    pub fn sit(&mut self, who: Who) {
        let before = self.seats.insert(who, Seat { joined: None, step: 0 });
        assert!(before.is_none(), "{who:?} sits once");
    }

    pub fn stand_up(&mut self, who: Who) {
        self.seats.remove(&who);
    }

    pub fn is_in_lap_1(&self) -> bool {
        self.slabs.is_none() && !self.is_broken
    }

    /// A scan for all is asked for this slab. In lap 2 somebody must have missed it.
    pub fn asked(&mut self, scan: ScanId) {
        assert_eq!(self.under_way.replace(scan), None, "one slab of a head is under way");
        assert!(!self.is_broken, "a head that failed makes nothing");
        assert!(!self.seats.is_empty(), "a head makes nothing for nobody");
        if let Some(slabs) = self.slabs {
            let number = self.made.len() as u64 - slabs;
            let missed = |seat: &Seat| {
                seat.step >= slabs && seat.joined.is_some_and(|joined| joined > number)
            };
            assert!(self.seats.values().any(missed), "nobody who missed slab {number} wants it");
        }
    }

    pub fn made(&mut self, joinable: bool, bytes: u64, last: bool) {
        assert!(self.under_way.take().is_some());
        let step = self.made.len() as u64;
        self.made.push(bytes);
        if self.slabs.is_some() {
            return;
        }
        let is_over = last.then_some(step + 1);
        for seat in self.seats.values_mut().filter(|seat| seat.joined.is_none()) {
            let joined = if joinable { Some(step) } else { is_over };
            (seat.joined, seat.step) = (joined, joined.unwrap_or(0));
        }
        self.slabs = is_over;
    }

    pub fn failed(&mut self) {
        self.under_way = None;
        self.is_broken = true;
    }

    /// Who sits here was sent this slab. Says whether it was its last one.
    pub fn sent(&mut self, who: Who, number: u64) {
        let slabs = self.slabs;
        let seat = self.seats.get_mut(&who).expect("who is sent a head's slab sits on it");
        let joined = seat.joined.expect("who is sent a slab has joined");
        let expected = slabs.map_or(seat.step, |slabs| seat.step % slabs);
        assert_eq!(number, expected, "{who:?} gets the next slab");
        seat.step += 1;
        if slabs.is_some_and(|slabs| seat.step == joined + slabs) {
            self.seats.remove(&who);
        }
    }

    /// Riders that are about to begin lap 2 and missed slabs below `written` alone.
    pub fn turns(&self, written: u64) -> impl Iterator<Item = RiderId> {
        let seats = self.seats.iter().filter(move |(_, seat)| {
            Some(seat.step) == self.slabs && seat.joined.is_some_and(|joined| joined <= written)
        });
        seats.filter_map(|(who, _)| match who {
            Who::Rider(rider) => Some(*rider),
            Who::Writer => None,
        })
    }

    /// Bytes that must be kept, and those of the last slab among them.
    pub fn kept(&self) -> (u64, u64) {
        let behind = self.seats.values().filter(|seat| seat.joined.is_some());
        let tail = behind.map(|seat| seat.step).min().unwrap_or(u64::MAX);
        let tail = tail.min(self.made.len() as u64) as usize;
        (self.made[tail..].iter().sum(), self.made[tail..].last().copied().unwrap_or(0))
    }

    /// Those who have asked in vain because nothing is being made, and those who must be the
    /// reason: nobody else has been sent less.
    pub fn held_up(&self, asks: &dyn Fn(Who) -> bool) -> (Vec<Who>, Vec<Who>) {
        if self.under_way.is_some() || self.is_broken {
            return (Vec::new(), Vec::new());
        }
        let made = self.made.len() as u64;
        let waits = |(who, seat): &(&Who, &Seat)| {
            asks(**who) && (seat.joined.is_none() || seat.step == made)
        };
        let waiting = self.seats.iter().filter(waits).map(|(who, _)| *who).collect::<Vec<_>>();
        if waiting.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let behind = |(_, seat): &(&Who, &Seat)| seat.joined.is_some() && seat.step < made;
        let tail = self.seats.iter().filter(behind).map(|(_, seat)| seat.step).min();
        let at_tail = self.seats.iter().filter(behind);
        let at_tail = at_tail.filter(|(_, seat)| Some(seat.step) == tail);
        (waiting, at_tail.map(|(who, _)| *who).collect())
    }
}
