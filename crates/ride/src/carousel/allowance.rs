//! How long one rider may hold up others: the account of what it did, and the moments at which the
//! core must look again. Nothing is held against somebody beyond being moved.

use super::head::Who;
use super::terms::{Limits, RiderId, SpinId};
use super::{Carousel, Ground, Stream, error};
use holdfast_env::planted;
use std::collections::BTreeMap;

/// Who is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Payer {
    Rider(RiderId),
    /// The writer of a spin's image.
    Image(SpinId),
}

/// What to look at when a moment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Whether a rider that holds something open has asked for anything.
    Idle(RiderId),
    /// Whether somebody has held up others for longer than allowed.
    Stall(Payer),
}

/// The part of the others that somebody holds up, in thousandths; 0 where it holds up nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Share(u64);

impl Share {
    pub const NONE: Share = Share(0);
    const WHOLE: u64 = 1000;

    /// Of so many others.
    pub fn of(waiting: usize, others: usize) -> Share {
        assert!(0 < waiting && waiting <= others, "who holds up somebody is not alone");
        Share((waiting as u64 * Share::WHOLE / others as u64).max(1))
    }
}

/// What is left of somebody's allowance. It grows with the time aboard. While others wait it shrinks
/// instead: as fast as time passes where all the others wait, and half as fast where half of them do. For
/// where few wait, the others are as slow as whom they wait for, and it would help nobody to move one after
/// the other: each would make its own slabs from then on, of a machine that has too much to do already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Account {
    /// In [`GRAINS`] of a nanosecond, at `since_ns`. Below 0 by less than a nanosecond: it is looked at
    /// when nothing is left.
    left: i128,
    since_ns: u64,
    /// Heads on which it holds up others now.
    shares: BTreeMap<usize, Share>,
    /// When it will have held up others for longer than allowed, if that goes on.
    alarm_ns: Option<u64>,
}

/// A nanosecond is counted in so many: thousandths of the others, and percents of the time aboard.
const GRAINS: i128 = Share::WHOLE as i128 * 100;

impl Account {
    pub fn new(now: u64, limits: &Limits) -> Account {
        let left = i128::from(limits.allowance_ns) * GRAINS;
        Account { left, since_ns: now, ..Account::default() }
    }

    pub fn alarm_ns(&self) -> Option<u64> {
        self.alarm_ns
    }

    /// Of whichever head it is the most. The time counts once: it is the others' time that goes.
    fn share(&self) -> i128 {
        self.shares.values().max().map_or(0, |share| i128::from(share.0))
    }

    fn settle(&mut self, limits: &Limits, now: u64) {
        let passed = i128::from(now - std::mem::replace(&mut self.since_ns, now));
        let percent = i128::from(limits.allowance_percent);
        self.left += match self.share() {
            0 => passed * percent * i128::from(Share::WHOLE),
            share => -passed * share * (100 - percent),
        };
    }

    /// When nothing is left, if nothing changes from `since_ns` on.
    fn due_ns(&self, limits: &Limits) -> Option<u64> {
        let shrinks = self.share() * i128::from(100 - limits.allowance_percent);
        let lasts = (shrinks > 0).then(|| (self.left.max(0) + shrinks - 1) / shrinks)?;
        Some(self.since_ns.saturating_add(u64::try_from(lasts).unwrap_or(u64::MAX)))
    }
}

impl Carousel {
    /// The moment at which `tick` must be called at the latest.
    pub fn next_wake(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn account(&mut self, payer: Payer) -> Option<&mut Account> {
        match payer {
            Payer::Rider(rider) => Some(&mut self.riders.get_mut(&rider)?.account),
            Payer::Image(spin) => Some(&mut self.spins.get_mut(&spin)?.writer),
        }
    }

    pub(super) fn payer(spin: SpinId, who: Who) -> Payer {
        match who {
            Who::Rider(rider) => Payer::Rider(rider),
            Who::Image => Payer::Image(spin),
        }
    }

    /// Somebody holds up so many of the others on a head from now on.
    pub(super) fn holds_up(&mut self, payer: Payer, head: usize, share: Share) {
        let (now, limits) = (self.now, self.limits);
        let Some(account) = self.account(payer) else { return };
        account.settle(&limits, now);
        match share {
            Share::NONE => account.shares.remove(&head),
            share => account.shares.insert(head, share),
        };
        let due = account.due_ns(&limits);
        let before = std::mem::replace(&mut account.alarm_ns, due);
        if before == due {
            return;
        }
        if let Some(at) = before {
            self.timers.remove(&(at, Timer::Stall(payer)));
        }
        if let Some(at) = due {
            self.timers.insert((at, Timer::Stall(payer)));
        }
    }

    /// Does what is due by now, each thing as if its moment had just come, however late the driver
    /// is: nobody is charged for what the driver was late.
    pub(super) fn run_timers(&mut self, now: u64) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            self.now = self.now.max(at);
            match timer {
                Timer::Idle(rider) => self.look_for_idle(rider),
                Timer::Stall(payer) => self.stop_stall(payer),
            }
            self.settle();
        }
        // Threads that come to the core one after the other may have read the clock the other way
        // round.
        self.now = self.now.max(now);
    }

    fn stop_stall(&mut self, payer: Payer) {
        let (now, limits) = (self.now, self.limits);
        let Some(account) = self.account(payer) else { return };
        account.alarm_ns = None;
        account.settle(&limits, now);
        assert!(account.left <= 0, "an alarm is due when the allowance is used up");
        match payer {
            Payer::Image(spin) => self.give_up_image(spin),
            Payer::Rider(rider) => {
                let Ground::Spin(spin) = self.riders[&rider].ground else {
                    unreachable!("who holds up others is on a spin")
                };
                let heads = &self.spins[&spin].heads;
                let causes = |head: &usize| {
                    let mut seats = heads[*head].seats.iter();
                    seats.any(|seat| seat.who == Who::Rider(rider) && seat.share > Share::NONE)
                };
                let heads = (0..heads.len()).filter(causes).collect::<Vec<_>>();
                heads.into_iter().for_each(|head| self.move_rider(spin, head, rider));
            }
        }
    }

    /// Sets the moment at which a rider may have been idle for too long.
    fn watch_at(&mut self, rider: RiderId, at: Option<u64>) {
        let Some(found) = self.riders.get_mut(&rider) else { return };
        if let Some(before) = std::mem::replace(&mut found.watched_ns, at) {
            self.timers.remove(&(before, Timer::Idle(rider)));
        }
        if let Some(at) = at {
            self.timers.insert((at, Timer::Idle(rider)));
        }
    }

    /// From now on, a rider that asks for nothing is ended after a while.
    pub(super) fn watch(&mut self, rider: RiderId) {
        self.watch_at(rider, Some(self.now.saturating_add(self.patience_ns(rider))));
    }

    /// For how long a rider may ask for nothing: not as long where its spin is one for which
    /// somebody waits.
    ///
    /// It was a minute in any case, and riders that read nothing had all spins for so long: who came
    /// then waited on the platform until they were ended.
    fn patience_ns(&self, rider: RiderId) -> u64 {
        let is_shared = match self.riders.get(&rider).map(|found| found.ground) {
            Some(Ground::Spin(spin)) => !self.spins[&spin].is_dedicated,
            _ => false,
        };
        match is_shared && self.is_crowded() && !planted!("ride.idle-is-waited-for") {
            true => self.limits.waited_ns,
            false => self.limits.idle_ns,
        }
    }

    /// Whether somebody waits for a spin, and there are as many as may be.
    fn is_crowded(&self) -> bool {
        self.spins_of(false) >= self.limits.spins_max && self.first_waiting(false).is_some()
    }

    /// Somebody waits for a spin: those that have one are looked at sooner.
    pub(super) fn hurry(&mut self) {
        for rider in self.riders.keys().copied().collect::<Vec<_>>() {
            let found = &self.riders[&rider];
            let at = found.active_ns.saturating_add(self.patience_ns(rider)).max(self.now);
            if found.watched_ns.is_some_and(|watched| at < watched) {
                self.watch_at(rider, Some(at));
            }
        }
    }

    pub(super) fn unwatch(&mut self, rider: RiderId) {
        self.watch_at(rider, None);
    }

    /// A rider that asks for nothing does not hold for ever what its ride holds: a snapshot, an image that is to
    /// go, the log behind it, a place among the riders.
    ///
    /// Those of images were let be, since they have no snapshot: who was killed while it rode one was a rider for as
    /// long as the image was there, and the horizon waited for it.
    fn look_for_idle(&mut self, rider: RiderId) {
        let Some(found) = self.riders.get(&rider) else { return };
        let waits = |(head, stream): (&usize, &Stream)| match stream {
            Stream::Boarding { requests } => *requests > 0,
            Stream::Shared => self.seat(rider, *head).requests > 0,
            Stream::Private(private) => private.requests > 0,
        };
        let patience_ns = self.patience_ns(rider);
        let due = found.active_ns.saturating_add(patience_ns);
        if found.streams.iter().any(waits) || planted!("ride.idle-holds-on") {
            self.watch(rider);
        } else if due > self.now {
            self.watch_at(rider, Some(due));
        } else {
            let index = self.index_of(rider);
            self.end(rider, Err(error::idle(index, patience_ns)));
        }
    }
}
