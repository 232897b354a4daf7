//! How long one rider may hold up others: the account of what it did, and the moments at which the
//! core must look again. Nothing is held against somebody beyond being moved.

use super::head::Who;
use super::terms::{Limits, RiderId, SpinId};
use super::{Carousel, Ground, Stream, error};
use holdfast_env::planted;

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

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Account {
    /// When it came aboard.
    pub boarded_ns: u64,
    /// For how long it has held up others, up to `since_ns`.
    charged_ns: u64,
    /// On how many heads it does so now. The time counts once: it is the others' time that goes.
    heads: usize,
    since_ns: u64,
    /// When it will have held up others for longer than allowed, if that goes on.
    alarm_ns: Option<u64>,
}

impl Account {
    pub fn new(now: u64) -> Account {
        Account { boarded_ns: now, ..Account::default() }
    }

    pub fn alarm_ns(&self) -> Option<u64> {
        self.alarm_ns
    }

    fn spent_ns(&self, now: u64) -> u64 {
        self.charged_ns + if self.heads > 0 { now - self.since_ns } else { 0 }
    }

    fn allowed_ns(&self, limits: &Limits, now: u64) -> u64 {
        let aboard = u128::from(now - self.boarded_ns);
        let share = aboard * u128::from(limits.allowance_percent) / 100;
        limits.allowance_ns.saturating_add(u64::try_from(share).unwrap_or(u64::MAX))
    }

    fn is_past(&self, limits: &Limits, now: u64) -> bool {
        self.heads > 0 && self.spent_ns(now) > self.allowed_ns(limits, now)
    }

    /// The first moment, from now on, at which it is past its allowance if nothing changes. What
    /// is left shrinks by what time passes, less what time aboard adds.
    fn due_ns(&self, limits: &Limits, now: u64) -> u64 {
        let left = self.allowed_ns(limits, now).saturating_sub(self.spent_ns(now));
        let due = u128::from(left) * 100 / u128::from(100 - limits.allowance_percent);
        let mut due = now.saturating_add(u64::try_from(due).unwrap_or(u64::MAX));
        // A few steps: shares are rounded down.
        while !self.is_past(limits, due) && due < u64::MAX {
            due += 1;
        }
        due
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

    /// Somebody begins to hold up others on one head more, or stops to on one.
    pub(super) fn holds_up(&mut self, payer: Payer, begins: bool) {
        let (now, limits) = (self.now, self.limits);
        let Some(account) = self.account(payer) else { return };
        account.charged_ns = account.spent_ns(now);
        account.since_ns = now;
        match begins {
            true => account.heads += 1,
            false => account.heads -= 1,
        }
        let due = (account.heads > 0).then(|| account.due_ns(&limits, now));
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
        assert!(account.is_past(&limits, now), "an alarm is due when the allowance is used up");
        match payer {
            Payer::Image(spin) => self.give_up_image(spin),
            Payer::Rider(rider) => {
                let Ground::Spin(spin) = self.riders[&rider].ground else {
                    unreachable!("who holds up others is on a spin")
                };
                let heads = &self.spins[&spin].heads;
                let causes = |head: &usize| {
                    let mut seats = heads[*head].seats.iter();
                    seats.any(|seat| seat.who == Who::Rider(rider) && seat.causes)
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
        self.watch_at(rider, Some(self.now.saturating_add(self.limits.idle_ns)));
    }

    pub(super) fn unwatch(&mut self, rider: RiderId) {
        self.watch_at(rider, None);
    }

    /// A rider that asks for nothing does not hold a snapshot open for ever, nor an image that is
    /// to go.
    fn look_for_idle(&mut self, rider: RiderId) {
        let Some(found) = self.riders.get(&rider) else { return };
        let waits = |(head, stream): (&usize, &Stream)| match stream {
            Stream::Boarding { requests } => *requests > 0,
            Stream::Shared => self.seat(rider, *head).requests > 0,
            Stream::Private(private) => private.requests > 0,
        };
        let due = found.active_ns.saturating_add(self.limits.idle_ns);
        if found.streams.iter().any(waits) || planted!("ride.idle-holds-on") {
            self.watch(rider);
        } else if due > self.now {
            self.watch_at(rider, Some(due));
        } else {
            let index = self.index_of(rider);
            self.end(rider, Err(error::idle(index, self.limits.idle_ns)));
        }
    }
}
