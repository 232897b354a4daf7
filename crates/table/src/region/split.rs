//! A tablet of one region that is split, as its region decides about it: nothing is decided about what is leaving from
//! the entry on that says so, and what was asked of it waits; what has left is asked for elsewhere.

use super::{Effect, Region};
use crate::entry::Body;
use crate::message::{Answer, Op, Request};
use crate::name::hash_of;
use crate::tablet::span::Half;
use holdfast_env::{planted, sometimes};

/// Where the keys of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    Here,
    /// Some of them are on their way to another tablet, and are to be written.
    Leaving,
    /// Some of them are another tablet's.
    Elsewhere,
}

impl Region {
    /// A half of the tablet is to go to another one; `client` is answered once that shows. Whoever asks sees to it
    /// that the other tablet can begin.
    pub fn split(&mut self, client: u64, half: Half) {
        let can = self.tablet.span().can_be_split_at(half.at)
            && self.tablet.span().leaving.is_none()
            && self.leads.values().all(|lead| lead.leaving().is_none());
        self.decide_split(client, can, Body::Split(half));
    }

    /// The other tablet has all of the half that was leaving; `client` is answered once it has left.
    pub fn hand_over(&mut self, client: u64, child: u16) {
        let is_leaving = |half: Half| half.child == child;
        let can = self.tablet.span().leaving.is_some_and(is_leaving);
        self.decide_split(client, can, Body::HandedOver { child });
    }

    fn decide_split(&mut self, client: u64, can: bool, body: Body) {
        let home = self.tablet.form().home;
        // Of several regions each would have to see to the other tablet.
        if !can || !self.heard.is_empty() || !self.is_ready() || !self.leads(home) {
            let answer = Answer::Retry("it is not to be split there now, or is led by nobody");
            self.out.push(Effect::Answer { client, answer });
            return;
        }
        self.decide(home, body, None, None);
        self.splitting.push(client);
        self.settle();
    }

    /// Whoever waits for an entry of a split is told.
    pub(super) fn split_came_to(&mut self, answer: impl Fn() -> Answer) {
        for client in std::mem::take(&mut self.splitting) {
            self.out.push(Effect::Answer { client, answer: answer() });
        }
    }

    pub(super) fn split_has_shown(&mut self, body: &Body) {
        if !matches!(body, Body::Split(_) | Body::HandedOver { .. }) {
            return;
        }
        self.split_came_to(|| Answer::Split);
        // Who waited for what has left asks for it elsewhere at once.
        if matches!(body, Body::HandedOver { .. }) {
            self.unpark(true);
        }
    }

    /// Whether the key is leaving, by what shows or will.
    pub(super) fn is_leaving(&self, key: &[u8]) -> bool {
        let coming = self.leads.values().filter_map(|lead| lead.leaving());
        let from = self.tablet.span().leaving.into_iter().chain(coming).map(|half| half.at).min();
        from.is_some_and(|at| hash_of(key) >= at)
    }

    /// Where a request's keys are. What is leaving is read here until it has left.
    pub(super) fn keys_of(&self, request: &Request) -> Keys {
        let is_elsewhere = |key: &[u8]| !self.tablet.span().has(key);
        let (elsewhere, leaving) = match &request.op {
            Op::Group { writes, .. } => (
                writes.iter().any(|write| is_elsewhere(&write.key)),
                writes.iter().any(|write| self.is_leaving(&write.key)),
            ),
            Op::Read(_) => (is_elsewhere(&request.key), false),
            Op::Write { .. } | Op::Resolve { .. } => {
                (is_elsewhere(&request.key), self.is_leaving(&request.key))
            }
        };
        if elsewhere && !planted!("table.group-of-two-tablets") {
            sometimes!("a request was asked of a tablet that has its key no more");
            return Keys::Elsewhere;
        }
        match leaving && !planted!("table.split-decides-on") {
            true => {
                sometimes!("a write waited for a half that was leaving");
                Keys::Leaving
            }
            false => Keys::Here,
        }
    }
}
