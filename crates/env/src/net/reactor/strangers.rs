//! What keeps one client from taking what belongs to all: who has to wait for memory, who is ended
//! because it does not get on, and who makes way when all places are taken. Everything here is
//! seldom: the reactor comes by once a second, or when the budget or the places are used up.

use super::Reactor;
use crate::net::ConnectionId;
use crate::net::connection::{HALF_SENT_S, Pace, SLOW_S};
use crate::net::link::Link;
use crate::net::out::{Address, Out};
use crate::net::socket::Socket;
use crate::planted;
use holdfast_base::Error;
use std::sync::atomic::Ordering;

/// Time between two looks at who does not get on.
pub(super) const SWEEP_NS: u64 = 1_000_000_000;
/// Time between two attempts of connections that wait for memory which others give back: other
/// threads and ports do not tell.
const FEED_NS: u64 = 5_000_000;

impl Reactor {
    /// The connection goes on when the budget has so many bytes for it.
    pub(super) fn starve(&mut self, slot: u32, wanted: u64) {
        let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return };
        (connection.paused, connection.starved) = (true, Some(wanted));
        self.shared.counters.pauses.fetch_add(1, Ordering::Relaxed);
        let entry = (slot, connection.id);
        if !self.starved.contains(&entry) {
            self.starved.push(entry);
        }
        if self.feed_ns.is_none() {
            self.feed_ns = Some(self.shared.clock.monotonic_ns() + FEED_NS);
        }
    }

    /// Lets those go on for whom there is memory now, in the order in which they came.
    pub(super) fn feed(&mut self, now_ns: u64) {
        if self.feed_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        self.feed_ns = None;
        let waiting = std::mem::take(&mut self.starved);
        for (slot, id) in waiting {
            if self.is_starved(slot, id) {
                self.settle(slot);
            }
            if self.is_starved(slot, id) && !self.starved.contains(&(slot, id)) {
                self.starved.push((slot, id));
            }
        }
        if !self.starved.is_empty() {
            self.feed_ns = Some(now_ns + FEED_NS);
        }
    }

    fn is_starved(&self, slot: u32, id: ConnectionId) -> bool {
        let connection = self.connections[slot as usize].as_deref();
        connection.is_some_and(|c| c.id == id && c.starved.is_some())
    }

    /// Ends who has begun to send something and does not go on, and, while memory is short, who
    /// does not take what it asked for.
    pub(super) fn sweep(&mut self, now_ns: u64) {
        if self.sweep_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        self.sweep_ns = None;
        let short = self.shared.config.budget.is_short();
        for slot in 0..self.connections.len() as u32 {
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { continue };
            if connection.counted_bytes > 0 {
                self.sweep_ns = Some(now_ns + SWEEP_NS);
            }
            let starved = connection.starved.is_some();
            if !starved && !connection.waits_for_peer() {
                connection.pace = Pace::at(connection.moved);
                continue;
            }
            connection.pace.second(connection.moved);
            let half_sent = (starved || connection.is_half_sent())
                && connection.pace.still_s > HALF_SENT_S.get()
                && !planted!("net.half-sent-stays");
            if half_sent {
                HALF_SENT_S.cross();
                self.shared.counters.stalled.fetch_add(1, Ordering::Relaxed);
                self.refuse(slot, &gave_up(starved));
                self.settle(slot);
            } else if short
                && connection.waits_for_peer()
                && connection.pace.slow_s > SLOW_S.get()
                && !planted!("net.unread-stays")
            {
                SLOW_S.cross();
                self.shared.counters.stalled.fetch_add(1, Ordering::Relaxed);
                // It reads nothing, so it cannot be told why.
                self.close(slot);
            }
        }
    }

    /// Ends the connection that is worth least to others, unless all are at work.
    pub(super) fn make_way(&mut self) -> bool {
        let places = self.connections.iter().zip(0u32..);
        let worth = places.filter_map(|(c, slot)| c.as_deref().map(|c| (c.worth(), slot)));
        match worth.min() {
            Some(((false, _), slot)) if !planted!("net.idle-locks-out") => {
                self.shared.counters.made_way.fetch_add(1, Ordering::Relaxed);
                self.close(slot);
                true
            }
            _ => false,
        }
    }

    /// Refuses a connection that was just accepted.
    pub(super) fn turn_away(&mut self, socket: Socket) {
        let counters = &self.shared.counters;
        counters.connections.fetch_sub(1, Ordering::Relaxed);
        counters.turned_away.fetch_add(1, Ordering::Relaxed);
        let mut out = Out::default();
        out.push_error(
            Address::FINAL,
            &Error::retry(format!(
                "the server has its limit of {} connections, all at work: close some, or try \
                 again later",
                self.shared.config.connections_max
            )),
        );
        // A new socket takes one frame, or the peer is gone.
        let _ = out.flush(&mut Link::new(socket));
    }
}

/// Why a connection ends that has neither sent nor been sent anything for too long.
fn gave_up(starved: bool) -> Error {
    Error::retry(match starved {
        true => "wait for memory: other clients have all of it: ask again later",
        false => "wait for the rest of a request: nothing came for too long: send it again",
    })
}
