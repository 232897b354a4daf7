//! Clients' sessions inside a fold: which requests were answered, and with what. Deterministic
//! and part of every snapshot; only entries change it.

use super::{Applied, SESSION_OUTSTANDING_MAX, SESSIONS_MAX};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::{Error, Kind, Result};
use std::collections::BTreeMap;

/// What a command came to: its result, or its refusal.
pub type Outcome = Result<Vec<u8>>;

#[derive(Debug, Default, PartialEq, Eq)]
struct Session {
    acknowledged_below: u64,
    /// Results that the client may still ask for again.
    results: BTreeMap<u64, Outcome>,
}

/// All open sessions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    open: BTreeMap<u64, Session>,
}

/// What to do with a command.
pub enum Admission {
    /// New: apply it and [`Sessions::remember`] what came of it.
    Apply,
    /// Repeated: this was the first result.
    Known(Outcome),
    Refused(Error),
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// A session's id is the index of the entry that opened it.
    pub fn open(&mut self, index: Index) -> Outcome {
        if self.open.len() >= SESSIONS_MAX {
            return Err(Error::full(format!(
                "open session: {SESSIONS_MAX} sessions are open: end some first"
            )));
        }
        self.open.insert(index.0, Session { acknowledged_below: 1, results: BTreeMap::new() });
        Ok(index.0.to_le_bytes().to_vec())
    }

    pub fn end(&mut self, session: SessionId) -> Outcome {
        match self.open.remove(&session.0) {
            Some(_) => Ok(Vec::new()),
            None => Err(not_open(session)),
        }
    }

    /// Decides about a command, forgetting what its client has acknowledged.
    pub fn admit(
        &mut self,
        session: SessionId,
        sequence: Sequence,
        acknowledged_below: Sequence,
    ) -> Admission {
        let Some(open) = self.open.get_mut(&session.0) else {
            return Admission::Refused(not_open(session));
        };
        if acknowledged_below > sequence {
            return Admission::Refused(Error::invalid(format!(
                "request {sequence} of session `{session}` acknowledges itself (below {acknowledged_below}): acknowledge results that have come"
            )));
        }
        if sequence.0 < open.acknowledged_below {
            return Admission::Refused(Error::invalid(format!(
                "request {sequence} of session `{session}` is stale: results below {} were acknowledged: use a new sequence",
                open.acknowledged_below
            )));
        }
        if acknowledged_below.0 > open.acknowledged_below {
            open.acknowledged_below = acknowledged_below.0;
            open.results = open.results.split_off(&acknowledged_below.0);
        }
        if let Some(outcome) = open.results.get(&sequence.0) {
            return Admission::Known(outcome.clone());
        }
        if open.results.len() >= SESSION_OUTSTANDING_MAX {
            return Admission::Refused(Error::retry(format!(
                "request {sequence} of session `{session}`: {SESSION_OUTSTANDING_MAX} results are not acknowledged: acknowledge some first"
            )));
        }
        Admission::Apply
    }

    /// The remembered outcome of a request.
    pub fn known(&self, session: SessionId, sequence: Sequence) -> Option<&Outcome> {
        self.open.get(&session.0)?.results.get(&sequence.0)
    }

    /// Each open session and the highest number that it is known to have reached.
    pub fn marks(&self) -> Vec<(SessionId, u64)> {
        let mark = |session: &Session| {
            let last = session.results.last_key_value().map_or(0, |(sequence, _)| *sequence);
            last.max(session.acknowledged_below)
        };
        self.open.iter().map(|(id, session)| (SessionId(*id), mark(session))).collect()
    }

    pub fn remember(&mut self, session: SessionId, sequence: Sequence, outcome: &Outcome) {
        if let Some(open) = self.open.get_mut(&session.0) {
            open.results.insert(sequence.0, outcome.clone());
        }
    }
}

/// `Fenced`, because the client has to start again with a new session.
fn not_open(session: SessionId) -> Error {
    Error::fenced(format!("session `{session}` is not open: open a new one"))
}

/// An applied command's outcome, or the name of what is not known.
pub fn outcome_of(applied: Applied) -> std::result::Result<Outcome, String> {
    match applied {
        Applied::Ok(bytes) => Ok(Ok(bytes)),
        Applied::Refused(e) => Ok(Err(e)),
        Applied::UnknownVersion(name) => Err(name),
    }
}

fn encode_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    match outcome {
        Ok(bytes) => {
            0u16.encode(out);
            put_bytes(out, bytes);
        }
        Err(e) => {
            (e.kind as u16).encode(out);
            e.message.encode(out);
        }
    }
}

fn decode_outcome(reader: &mut Reader<'_>) -> std::result::Result<Outcome, DecodeError> {
    match u16::decode(reader)? {
        0 => Ok(Ok(reader.bytes()?.to_vec())),
        code => {
            let kind = Kind::from_code(code).ok_or(DecodeError::BadValue("error kind"))?;
            Ok(Err(Error::new(kind, reader.str()?)))
        }
    }
}

impl Encode for Sessions {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.open.len() as u32).encode(out);
        for (id, session) in &self.open {
            id.encode(out);
            session.acknowledged_below.encode(out);
            (session.results.len() as u32).encode(out);
            for (sequence, outcome) in &session.results {
                sequence.encode(out);
                encode_outcome(outcome, out);
            }
        }
    }
}

impl Decode for Sessions {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Sessions, DecodeError> {
        let mut sessions = Sessions::default();
        for _ in 0..u32::decode(reader)? {
            let id = u64::decode(reader)?;
            let acknowledged_below = u64::decode(reader)?;
            let mut results = BTreeMap::new();
            for _ in 0..u32::decode(reader)? {
                results.insert(u64::decode(reader)?, decode_outcome(reader)?);
            }
            sessions.open.insert(id, Session { acknowledged_below, results });
        }
        Ok(sessions)
    }
}
