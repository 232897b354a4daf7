//! What clients' requests came to, so that a repetition gets its first answer, from a new home of
//! the record too. Part of the fold: only entries that are shown change it.

use crate::entry::{Asked, Body, ChangeKind, Refusal, StreamEntry};
use crate::ids::{Place, StreamId};
use std::collections::BTreeMap;

/// Results of one session that are kept, if its client never says that it has them.
const RESULTS_MAX: usize = 64;

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record has this version by it.
    Written(u64),
    /// Nothing was changed.
    Refused(Refusal),
}

/// A result and where it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub outcome: Outcome,
    pub stream: StreamId,
    pub place: Place,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    below: u64,
    results: BTreeMap<u64, Remembered>,
}

/// All sessions of a tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    open: BTreeMap<u64, Session>,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is new here.
    New,
    /// It came to this.
    Done(Remembered),
    /// Its client has said that it needs no answer any more.
    Stale,
}

impl Outcome {
    /// What an entry of a client's request came to.
    pub fn of(body: &Body) -> Option<Outcome> {
        match body {
            Body::Change(change) if !matches!(change.kind, ChangeKind::Forget) => {
                Some(Outcome::Written(change.version))
            }
            Body::Refused(refusal) => Some(Outcome::Refused(*refusal)),
            _ => None,
        }
    }
}

impl Sessions {
    /// What is known of this request.
    pub fn known(&self, asked: Asked) -> Known {
        let Some(session) = self.open.get(&asked.session) else { return Known::New };
        match session.results.get(&asked.sequence) {
            Some(remembered) => Known::Done(*remembered),
            None if asked.sequence < session.below => Known::Stale,
            None => Known::New,
        }
    }

    /// Takes note of what an entry came to.
    pub fn remember(&mut self, stream: StreamId, entry: &StreamEntry) {
        let (Some(asked), Some(outcome)) = (entry.asked, Outcome::of(&entry.body)) else { return };
        let session = self.open.entry(asked.session).or_default();
        session.below = session.below.max(asked.below);
        session.results = session.results.split_off(&session.below);
        // Another stream may show an older request of the session later: nobody needs it.
        if asked.sequence >= session.below {
            let remembered = Remembered { outcome, stream, place: entry.place };
            session.results.insert(asked.sequence, remembered);
        }
        while session.results.len() > RESULTS_MAX {
            if let Some((sequence, _)) = session.results.pop_first() {
                session.below = session.below.max(sequence + 1);
            }
        }
    }
}
