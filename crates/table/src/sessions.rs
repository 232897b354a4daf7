//! What clients' requests came to, so that a repetition gets its first answer, from a new home of
//! the record too. Part of the fold: only entries that are shown change it.

use crate::entry::{Asked, Body, ChangeKind, Refusal, StreamEntry};
use crate::ids::{Place, StreamId};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::codec_struct;
use holdfast_base::stream::{Source, Writer};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Results of one session that are kept, if its client never says that it has them: as many writes
/// as it may have under way.
pub const RESULTS_MAX: usize = 64;
/// Sessions of a tablet that are remembered; one more, and the one that nothing was heard of for
/// longest is forgotten.
pub const SESSIONS_MAX: usize = 1 << 16;

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record has this version by it.
    Written(u64),
    /// Nothing was changed.
    Refused(Refusal),
    /// The branch is one no more.
    Resolved,
    /// Of a group: the records that it has written have these versions by it, in order.
    Group(Arc<[u64]>),
}

/// A result and where it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub outcome: Outcome,
    pub stream: StreamId,
    pub place: Place,
}
codec_struct!(Remembered { outcome, stream, place });

/// A session as an image of its tablet has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionImage {
    pub id: u64,
    /// The lowest sequence that is remembered.
    pub below: u64,
    pub results: Vec<SessionResult>,
}

/// What one of its requests came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionResult {
    pub sequence: u64,
    pub result: Remembered,
}
codec_struct!(SessionImage { id, below, results });
codec_struct!(SessionResult { sequence, result });

impl SessionResult {
    /// Whether it is that of a group, which builds before this one do not know.
    pub(crate) fn is_of_group(&self) -> bool {
        matches!(
            self.result.outcome,
            Outcome::Group(_) | Outcome::Refused(Refusal::OfGroup { .. } | Refusal::Apart { .. })
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    below: u64,
    /// The turn of its last result.
    turn: u64,
    results: BTreeMap<u64, Remembered>,
}

/// All sessions of a tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    open: BTreeMap<u64, Session>,
    /// Whose results came in which turn, of each session the last one.
    turns: BTreeMap<u64, u64>,
    turn: u64,
}

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
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
            Body::Resolved(_) | Body::Resolves(_) => Some(Outcome::Resolved),
            Body::Group(changes) => {
                Some(Outcome::Group(changes.iter().map(|change| change.version).collect()))
            }
            _ => None,
        }
    }
}

impl Sessions {
    /// What is known of this request.
    pub fn known(&self, asked: Asked) -> Known {
        let Some(session) = self.open.get(&asked.session) else { return Known::New };
        match session.results.get(&asked.sequence) {
            Some(remembered) => Known::Done(remembered.clone()),
            None if asked.sequence < session.below => Known::Stale,
            None => Known::New,
        }
    }

    /// Takes note of what an entry came to.
    pub fn remember(&mut self, stream: StreamId, entry: &StreamEntry) {
        let (Some(asked), Some(outcome)) = (entry.asked, Outcome::of(&entry.body)) else { return };
        self.turn += 1;
        let session = self.open.entry(asked.session).or_default();
        self.turns.remove(&std::mem::replace(&mut session.turn, self.turn));
        self.turns.insert(self.turn, asked.session);
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
        while self.open.len() > SESSIONS_MAX
            && let Some((_, oldest)) = self.turns.pop_first()
        {
            self.open.remove(&oldest);
        }
    }

    /// The session whose last result came next behind this turn, and its turn; turns are from 1.
    pub(crate) fn behind(&self, turn: u64) -> Option<(u64, SessionImage)> {
        let (turn, id) = self.turns.range(turn + 1..).next()?;
        let session = self.open.get(id)?;
        let results = session.results.iter();
        let result = |(sequence, result): (&u64, &Remembered)| SessionResult {
            sequence: *sequence,
            result: result.clone(),
        };
        let results = results.map(result).collect();
        Some((*turn, SessionImage { id: *id, below: session.below, results }))
    }

    /// The first session from a number on, and its turn: for who takes all of them along while they go on, and their
    /// turns change.
    pub(crate) fn first(&self, from: Bound<u64>) -> Option<(u64, SessionImage)> {
        let (_, session) = self.open.range((from, Bound::Unbounded)).next()?;
        self.behind(session.turn.checked_sub(1)?)
    }

    /// The inverse: with the turn that it had. No two have the same.
    pub(crate) fn add_at(&mut self, turn: u64, image: SessionImage) {
        let (highest, id) = (self.turn.max(turn), image.id);
        self.add(image);
        self.turns.remove(&self.turn);
        self.turns.insert(turn, id);
        if let Some(session) = self.open.get_mut(&id) {
            session.turn = turn;
        }
        self.turn = highest;
    }

    /// The inverse: one more behind those before.
    pub(crate) fn add(&mut self, image: SessionImage) {
        self.turn += 1;
        let results = image.results.into_iter().map(|result| (result.sequence, result.result));
        let session = Session { below: image.below, turn: self.turn, results: results.collect() };
        if let Some(before) = self.open.insert(image.id, session) {
            self.turns.remove(&before.turn);
        }
        self.turns.insert(self.turn, image.id);
    }

    /// Whether it is known what came of this request.
    pub fn knows(&self, asked: Asked) -> bool {
        self.known(asked) != Known::New
    }

    /// Clients whose last results are remembered.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Writes all of them, the one that nothing was heard of for longest first.
    pub(crate) fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&(self.turns.len() as u64));
        for id in self.turns.values() {
            let session = &self.open[id];
            out.put(id);
            out.put(&session.below);
            out.put(&(session.results.len() as u64));
            for (sequence, remembered) in &session.results {
                out.put(sequence);
                out.put(remembered);
            }
        }
    }

    /// The inverse.
    pub(crate) fn restore(source: &mut Source<'_>) -> holdfast_base::Result<Sessions> {
        let mut sessions = Sessions::default();
        for _ in 0..source.get::<u64>()? {
            sessions.turn += 1;
            let id = source.get()?;
            let mut session =
                Session { below: source.get()?, turn: sessions.turn, results: BTreeMap::new() };
            for _ in 0..source.get::<u64>()? {
                session.results.insert(source.get()?, source.get()?);
            }
            sessions.turns.insert(sessions.turn, id);
            sessions.open.insert(id, session);
        }
        Ok(sessions)
    }
}

impl Encode for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Written(version) => {
                1u8.encode(out);
                version.encode(out);
            }
            Outcome::Refused(refusal) => {
                2u8.encode(out);
                refusal.encode(out);
            }
            Outcome::Resolved => 3u8.encode(out),
            Outcome::Group(versions) => {
                4u8.encode(out);
                versions.to_vec().encode(out);
            }
        }
    }
}

impl Decode for Outcome {
    fn decode(reader: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Outcome::Written(u64::decode(reader)?),
            2 => Outcome::Refused(Refusal::decode(reader)?),
            3 => Outcome::Resolved,
            4 => Outcome::Group(Vec::decode(reader)?.into()),
            _ => return Err(DecodeError::BadValue("outcome")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use holdfast_base::stream;

    fn entry(session: u64, sequence: u64, number: u64) -> StreamEntry {
        let asked = Some(Asked { session, sequence, below: 1 });
        let place = Place::new(Epoch(1), number);
        let body = Body::Refused(Refusal::Found(number));
        StreamEntry { place, before: Epoch(1), asked, body }
    }

    /// Each run of a command is a session of its own: without a bound they would be remembered for
    /// ever. Who is still heard of stays.
    #[test]
    fn sessions_are_bounded_and_the_one_not_heard_of_for_longest_goes() {
        let mut sessions = Sessions::default();
        let known = |sessions: &Sessions, session| {
            sessions.known(Asked { session, sequence: 1, below: 1 }) != Known::New
        };
        let mut number = 0;
        let mut remember = |sessions: &mut Sessions, session, sequence| {
            number += 1;
            sessions.remember(StreamId(0), &entry(session, sequence, number));
        };
        for session in 0..SESSIONS_MAX as u64 {
            remember(&mut sessions, session, 1);
        }
        remember(&mut sessions, 0, 2);
        remember(&mut sessions, u64::MAX, 1);
        assert_eq!(sessions.len(), SESSIONS_MAX);
        assert!(known(&sessions, 0) && known(&sessions, u64::MAX) && known(&sessions, 2));
        assert!(!known(&sessions, 1), "it was the oldest");
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| sessions.snapshot(out));
        let mut restored = stream::read_all(&bytes, Sessions::restore).unwrap();
        remember(&mut restored, 7_000_000, 1);
        assert!(!known(&restored, 2), "their order is in the snapshot");
        assert!(known(&restored, 0) && known(&restored, 3));
    }
}
