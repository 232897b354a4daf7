//! What keeps a client to what it may take a second: none of its connections is read while it owes
//! something, and all others are; one that owes too much is told so. A body that is on its way comes
//! in first, for the memory that it takes belongs to all. What is decided is [`Seat`]'s; who waits
//! and leaves meanwhile is ended by its socket's word.
//!
//! [`Seat`]: crate::clients::Seat

use super::Reactor;
use crate::clients;
use crate::net::connection::{Connection, Stage};
use crate::net::out::Address;
use crate::net::parse::Next;
use crate::net::waits;
use std::sync::atomic::Ordering;

impl Reactor {
    /// Whether the connection's client has to wait for its turn. It then keeps `rest`, where that
    /// was received and not parsed, and goes on by itself.
    #[inline]
    pub(super) fn has_to_wait(&mut self, slot: u32, rest: Option<&[u8]>) -> bool {
        let connection = self.connections[slot as usize].as_deref();
        connection.is_some_and(|connection| connection.has_rates) && self.ask_for_turn(slot, rest)
    }

    fn ask_for_turn(&mut self, slot: u32, rest: Option<&[u8]>) -> bool {
        // Whoever ends the server is not to wait for who was slowed.
        if self.stop_ns.is_some() {
            return false;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return false };
        if connection.incoming.is_some() || connection.is_refused() {
            return false;
        }
        let Some(seat) = &connection.seat else { return false };
        connection.owes = None;
        let until_ns = match seat.next(now_ns) {
            clients::Next::Take { requests } => {
                connection.batch_requests = connection.batch_requests.min(requests);
                return false;
            }
            clients::Next::Refuse(why) => {
                connection.owes = Some(why);
                return false;
            }
            clients::Next::Wait { until_ns } => until_ns,
        };
        connection.was_served = rest.is_some();
        if let Some(rest) = rest {
            (connection.stash, connection.stash_need) = (rest.to_vec(), 0);
        }
        if !connection.stash.is_empty() {
            connection.waits_since_ns.get_or_insert(now_ns);
        }
        // Little is received next: it would be kept, and looked at once a turn.
        connection.large = true;
        connection.paused = true;
        connection.slowed_until_ns = Some(until_ns);
        self.shared.counters.pauses.fetch_add(1, Ordering::Relaxed);
        self.put_in_line(slot, now_ns);
        true
    }

    /// Answers a whole request of somebody who owes too much, if this is one, and goes beyond it.
    pub(super) fn refuse_debtor(&mut self, slot: u32, next: &Next, at: &mut usize) -> bool {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return false };
        let (Some(why), Next::Request { header, body, .. }) = (&connection.owes, next) else {
            return false;
        };
        *at = body.end;
        connection.out.push_error(Address::of(header), why);
        connection.was_refused(self.shared.clock.monotonic_ns());
        self.shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Looks at a connection that waits again when it may go on, or a deadline passes. One that
    /// other limits hold up as well is looked at when these let it go.
    fn put_in_line(&mut self, slot: u32, now_ns: u64) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        let Some(until_ns) = connection.slowed_until_ns else { return };
        let at_ns = connection.next_deadline_ns().map_or(until_ns, |at| at.min(until_ns));
        if at_ns <= now_ns {
            return;
        }
        self.turn_ns = Some(self.turn_ns.map_or(at_ns, |next| next.min(at_ns)));
        if !connection.in_line {
            connection.in_line = true;
            self.slowed.push((slot, connection.id));
        }
    }

    /// Lets those go on whose time has come, those first who have waited longest, and answers
    /// requests whose deadline has passed meanwhile.
    pub(super) fn give_turns(&mut self, now_ns: u64) {
        if self.turn_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        self.turn_ns = None;
        for (slot, id) in std::mem::take(&mut self.slowed) {
            let connection = self.connections[slot as usize].as_deref_mut();
            let Some(connection) = connection.filter(|c| c.id == id) else { continue };
            connection.in_line = false;
            if connection.slowed_until_ns.is_some() {
                let passed = connection.expire_stash(now_ns);
                self.shared.counters.deadlines_passed.fetch_add(passed, Ordering::Relaxed);
                self.settle(slot);
                // At once: otherwise one with something in its stash would always be there first.
                let connection = self.connections[slot as usize].as_deref();
                if connection.is_some_and(|c| c.id == id && c.stage == Stage::Open && !c.paused) {
                    self.readable(slot);
                    self.settle(slot);
                }
                self.put_in_line(slot, now_ns);
            }
        }
        // Who has had a turn is behind the others of its client.
        let connections = &self.connections;
        let was_served =
            |slot: u32| connections[slot as usize].as_ref().is_some_and(|c| c.was_served);
        self.slowed.sort_by_key(|(slot, _)| was_served(*slot));
    }
}

impl Connection {
    /// A request of it was refused because its client owes too much: little is received next.
    pub(super) fn was_refused(&mut self, now_ns: u64) {
        self.large = true;
        if let Some(seat) = &mut self.seat {
            seat.refused(now_ns);
        }
    }

    /// When the first request that waits in the stash has waited long enough.
    fn next_deadline_ns(&self) -> Option<u64> {
        waits::next_deadline_ns(&self.stash, self.waits_since_ns?)
    }

    /// Answers what has waited in the stash for too long; says how many requests.
    fn expire_stash(&mut self, now_ns: u64) -> u64 {
        let Some(since_ns) = self.waits_since_ns else { return 0 };
        waits::expire(&mut self.stash, since_ns, now_ns, &mut self.out)
    }
}

#[cfg(test)]
mod tests;
