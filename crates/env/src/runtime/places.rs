//! Who is connected to a port whose connections are tasks. When all places are taken, whoever does
//! least makes way for a newcomer: those between two requests first, the idlest of them; then,
//! among those with a request under way, the one that has not moved a byte for longest.

use crate::locks::HoldMutex;
use crate::planted;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

pub struct Places {
    max: usize,
    /// Held for a look or a change; slots are reused.
    taken: Mutex<Vec<Option<Arc<Seat>>>>,
    /// Counts what happens: the order in which connections were active.
    now: AtomicU64,
    made_way: AtomicU64,
}

/// A connection's place; given back when dropped.
pub struct Place {
    places: Arc<Places>,
    slot: usize,
    seat: Arc<Seat>,
}

/// What is known of a connection.
#[derive(Default)]
struct Seat {
    busy: AtomicBool,
    active: AtomicU64,
    /// Told once, to make way.
    ends: Notify,
}

/// Says what a connection does.
#[derive(Clone)]
pub struct Activity {
    places: Arc<Places>,
    seat: Arc<Seat>,
}

/// A request under way; over when dropped.
pub struct Busy(Activity);

impl Places {
    pub fn new(max: usize) -> Arc<Places> {
        Arc::new(Places {
            max: max.max(1),
            taken: Mutex::default(),
            now: AtomicU64::new(0),
            made_way: AtomicU64::new(0),
        })
    }

    /// A place for a newcomer, for whom somebody else may have to go.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut taken = self.taken.held();
        let seat = Arc::new(Seat { active: AtomicU64::new(self.tick()), ..Seat::default() });
        let free = match taken.iter().position(Option::is_none) {
            Some(free) => free,
            None if taken.len() < self.max => {
                taken.push(None);
                taken.len() - 1
            }
            None if planted!("places.idle-locks-out") => return None,
            None => {
                let worth = |seat: &Option<Arc<Seat>>| seat.as_ref().map(|seat| seat.worth());
                let least = (0..taken.len()).min_by_key(|slot| worth(&taken[*slot]))?;
                if let Some(seat) = &taken[least] {
                    seat.ends.notify_one();
                }
                self.made_way.fetch_add(1, Ordering::Relaxed);
                least
            }
        };
        taken[free] = Some(seat.clone());
        Some(Place { places: self.clone(), slot: free, seat })
    }

    /// How many have made way since the start.
    pub fn made_way(&self) -> u64 {
        self.made_way.load(Ordering::Relaxed)
    }

    /// Who is connected now.
    pub fn taken(&self) -> usize {
        self.taken.held().iter().flatten().count()
    }

    fn tick(&self) -> u64 {
        self.now.fetch_add(1, Ordering::Relaxed)
    }
}

impl Seat {
    fn worth(&self) -> (bool, u64) {
        (self.busy.load(Ordering::Relaxed), self.active.load(Ordering::Relaxed))
    }
}

impl Place {
    pub fn activity(&self) -> Activity {
        Activity { places: self.places.clone(), seat: self.seat.clone() }
    }

    /// Resolves when the connection is to make way for another one.
    pub fn ends(&self) -> impl Future<Output = ()> + '_ {
        self.seat.ends.notified()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.held();
        // Not if somebody else has it since.
        if taken[self.slot].as_ref().is_some_and(|seat| Arc::ptr_eq(seat, &self.seat)) {
            taken[self.slot] = None;
        }
    }
}

impl Activity {
    /// Bytes of a request or of its answer have moved. Those of a head that is not whole yet do not
    /// count: whoever sends it byte by byte is idle.
    pub fn moved(&self) {
        if self.seat.busy.load(Ordering::Relaxed) {
            self.seat.active.store(self.places.tick(), Ordering::Relaxed);
        }
    }

    /// A request has begun.
    pub fn begin(&self) -> Busy {
        self.seat.busy.store(true, Ordering::Relaxed);
        self.moved();
        Busy(self.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.moved();
        self.0.seat.busy.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_to_go(place: &Place) -> bool {
        pin!(place.ends()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn the_idlest_makes_way_then_the_slowest_at_work() {
        let places = Places::new(3);
        let [first, second, third] = std::array::from_fn(|_| places.enter().unwrap());
        let (activity, busy) = (first.activity(), second.activity());
        drop(activity.begin());
        let under_way = busy.begin();
        third.activity().moved();
        let fourth = places.enter().unwrap();
        assert!(is_to_go(&third), "it never asked for anything");
        assert!(!is_to_go(&first) && !is_to_go(&second));
        drop(third);
        assert_eq!(places.taken(), 3, "its place is another one's");
        let fourth_busy = fourth.activity().begin();
        let first_busy = activity.begin();
        busy.moved();
        let _fifth = places.enter().unwrap();
        assert!(is_to_go(&fourth) && !is_to_go(&second), "all are at work: the stillest goes");
        assert_eq!(places.made_way(), 2);
        drop((under_way, fourth_busy, first_busy, fourth));
        drop(first);
        assert_eq!(places.taken(), 2);
    }
}
