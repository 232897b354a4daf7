//! Ends connections of those who are nobody any more: whose certificate or token was revoked or has
//! ended, or whose authority is not believed. Each request and answer asks for itself; here are those
//! who ask for nothing, or do not take what they were answered. The reactor comes by once a second.

use super::Reactor;
use crate::planted;
use holdfast_base::Error;

/// Time between two looks.
pub(super) const STANDING_NS: u64 = 1_000_000_000;

impl Reactor {
    pub(super) fn end_who_is_nobody(&mut self, now_ns: u64) {
        if self.standing_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        self.standing_ns = None;
        for slot in 0..self.connections.len() as u32 {
            let Some(connection) = self.connections[slot as usize].as_deref() else { continue };
            if !connection.is_named() || connection.is_refused() {
                continue;
            }
            self.standing_ns = Some(now_ns + STANDING_NS);
            let credentials = self.shared.config.credentials.as_deref();
            let stands = connection.check_standing(&*self.shared.service, credentials);
            if let Err(e) = stands
                && !planted!("net.idle-revoked-stay")
            {
                self.shut_out(slot, &e);
                self.settle(slot);
            }
        }
    }

    /// Ends a connection whose peer is nobody any more. What it was answered and has not taken is
    /// dropped; it is told why where that would not be in the middle of an answer.
    pub(super) fn shut_out(&mut self, slot: u32, error: &Error) {
        let Some(connection) = self.connections[slot as usize].as_deref() else { return };
        if connection.out.is_empty() {
            self.refuse(slot, error);
        } else {
            self.close(slot);
        }
    }
}
