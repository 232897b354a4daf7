//! Clients' sessions inside a fold: which requests were answered, and with what. Deterministic
//! and part of every snapshot; only entries change it.

use super::{Applied, ENDED_MAX, NODE_OUTSTANDING_MAX, SESSION_OUTSTANDING_MAX, SESSIONS_MAX};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::{Index, NodeId, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Reason, Result};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a command came to: its result, or its refusal.
pub type Outcome = Result<Vec<u8>>;

#[derive(Debug, Default, PartialEq, Eq)]
struct Session {
    acknowledged_below: u64,
    /// Results that the client may still ask for again.
    results: BTreeMap<u64, Outcome>,
}

/// Who numbers its commands, so that a copy of one is known for what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A client.
    Session(SessionId),
    /// A node, of what it commands itself. It is never opened and never ended: numbers go on from one
    /// life of the node to the next.
    Node(NodeId),
}

/// Where they are kept beside sessions, whose ids are indices.
const OF_NODE: u64 = 1 << 63;

impl Whose {
    fn key(self) -> u64 {
        match self {
            Whose::Session(session) => session.0,
            Whose::Node(node) => OF_NODE | node.0 as u64,
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whose::Session(session) => write!(f, "session `{session}`"),
            Whose::Node(node) => write!(f, "node `{node}`"),
        }
    }
}

/// Sessions that have ended, where their ids are another topic's: there none is opened by an entry of its
/// own, each is by its first request, and that may come, or come again, when it has long ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ended {
    /// None below this opens.
    floor: u64,
    /// Nor does any of these.
    above: BTreeSet<u64>,
}

impl Ended {
    fn has(&self, session: u64) -> bool {
        session < self.floor || self.above.contains(&session)
    }

    fn put(&mut self, session: u64, max: usize) {
        if session < self.floor {
            return;
        }
        self.above.insert(session);
        while self.above.len() > max
            && let Some(oldest) = self.above.pop_first()
        {
            self.floor = oldest + 1;
        }
    }
}

/// All open sessions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    open: BTreeMap<u64, Session>,
    /// What nodes have numbered, by [`Whose::key`].
    nodes: BTreeMap<u64, Session>,
    /// Those of them under which nothing was asked yet.
    unused: BTreeSet<u64>,
    /// Those that have changed since they were last kept, where they are.
    changed: Option<BTreeSet<u64>>,
    /// Where ids come from another topic, and a session opens with its first request.
    ended: Option<Ended>,
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
    /// Of a topic whose sessions have the ids that another one gave out.
    pub fn of_others() -> Sessions {
        Sessions { ended: Some(Ended::default()), ..Sessions::default() }
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// A session's id is the index of the entry that opened it.
    pub fn open(&mut self, index: Index) -> Outcome {
        self.open_within(index, SESSIONS_MAX)
    }

    /// The oldest unused one makes way, so that a client which opens them without end shuts nobody
    /// out: whoever it was begins again with a new one.
    fn open_within(&mut self, index: Index, max: usize) -> Outcome {
        if self.ended.is_some() {
            return Err(Error::invalid(
                "open session: ids of sessions come from the first shard's topic: open it there",
            ));
        }
        self.take_place(index.0, max)?;
        Ok(index.0.to_le_bytes().to_vec())
    }

    /// A session comes with its first request, unless it has ended.
    fn open_by_use(&mut self, session: SessionId, max: usize) -> Result<()> {
        let ended = self.ended.as_ref().is_none_or(|ended| {
            ended.has(session.0) && !planted!("view.ended-session-opens-again")
        });
        if ended || session.0 & OF_NODE != 0 {
            return Err(not_open(session));
        }
        self.take_place(session.0, max)?;
        sometimes!("a session was opened in another shard");
        Ok(())
    }

    fn take_place(&mut self, session: u64, max: usize) -> Result<()> {
        if self.open.len() >= max {
            let makes_way = match planted!("view.unused-sessions-stay") {
                false => self.unused.first().copied(),
                true => None,
            };
            let Some(first) = makes_way else {
                return Err(Error::full(format!(
                    "open session: {max} sessions are open, and all are in use: end some first; \
                     those that rest are ended in a minute"
                )));
            };
            let _ = self.end(SessionId(first));
        }
        self.open.insert(session, Session { acknowledged_below: 1, results: BTreeMap::new() });
        self.unused.insert(session);
        self.change(session);
        Ok(())
    }

    pub fn end(&mut self, session: SessionId) -> Outcome {
        // No knob: so few sessions end in a schedule that none would come by.
        self.end_within(session, ENDED_MAX)
    }

    /// Where ids come from another topic, one that was never here ends, too.
    fn end_within(&mut self, session: SessionId, max: usize) -> Outcome {
        if let Some(ended) = &mut self.ended {
            if session.0 & OF_NODE != 0 {
                return Err(not_open(session));
            }
            ended.put(session.0, max);
            self.open.remove(&session.0);
            self.unused.remove(&session.0);
            return Ok(Vec::new());
        }
        match self.open.remove(&session.0) {
            Some(_) => {
                self.unused.remove(&session.0);
                self.change(session.0);
                Ok(Vec::new())
            }
            None => Err(not_open(session)),
        }
    }

    /// Decides about a command, forgetting what its client has acknowledged.
    pub fn admit(
        &mut self,
        whose: Whose,
        sequence: Sequence,
        acknowledged_below: Sequence,
    ) -> Admission {
        // No knob: clients keep far below, so that no schedule would come by.
        let outstanding_max = match whose {
            Whose::Session(_) => SESSION_OUTSTANDING_MAX,
            Whose::Node(_) => NODE_OUTSTANDING_MAX,
        };
        self.admit_within(whose, sequence, acknowledged_below, outstanding_max)
    }

    fn admit_within(
        &mut self,
        whose: Whose,
        sequence: Sequence,
        acknowledged_below: Sequence,
        outstanding_max: usize,
    ) -> Admission {
        if let Whose::Session(session) = whose
            && self.ended.is_some()
            && !self.open.contains_key(&session.0)
            && let Err(e) = self.open_by_use(session, SESSIONS_MAX)
        {
            return Admission::Refused(e);
        }
        let open = match whose {
            Whose::Session(session) => match self.open.get_mut(&session.0) {
                Some(open) => open,
                None => return Admission::Refused(not_open(session)),
            },
            Whose::Node(_) => self.nodes.entry(whose.key()).or_default(),
        };
        if acknowledged_below > sequence {
            return Admission::Refused(Error::invalid(format!(
                "request {sequence} of {whose} acknowledges itself (below {acknowledged_below}): acknowledge results that have come"
            )));
        }
        if sequence.0 < open.acknowledged_below && !planted!("log.stale-request-applied") {
            return Admission::Refused(Error::invalid(format!(
                "request {sequence} of {whose} is stale: results below {} were acknowledged: use a new sequence",
                open.acknowledged_below
            )));
        }
        if acknowledged_below.0 > open.acknowledged_below {
            self.changed.as_mut().map(|changed| changed.insert(whose.key()));
            open.acknowledged_below = acknowledged_below.0;
            self.unused.remove(&whose.key());
            if !planted!("log.acknowledged-results-kept") {
                open.results = open.results.split_off(&acknowledged_below.0);
            }
        }
        if let Some(outcome) = open.results.get(&sequence.0) {
            return Admission::Known(outcome.clone());
        }
        if open.results.len() >= outstanding_max {
            return Admission::Refused(Error::retry(format!(
                "request {sequence} of {whose}: {} results are not acknowledged: acknowledge some first",
                open.results.len()
            )));
        }
        Admission::Apply
    }

    /// The remembered outcome of a request.
    pub fn known(&self, session: SessionId, sequence: Sequence) -> Option<&Outcome> {
        self.open.get(&session.0)?.results.get(&sequence.0)
    }

    pub fn is_open(&self, session: SessionId) -> bool {
        self.open.contains_key(&session.0)
    }

    /// Each open session and the highest number that it is known to have reached.
    pub fn marks(&self) -> Vec<(SessionId, u64)> {
        let mark = |session: &Session| {
            let last = session.results.last_key_value().map_or(0, |(sequence, _)| *sequence);
            last.max(session.acknowledged_below)
        };
        self.open.iter().map(|(id, session)| (SessionId(*id), mark(session))).collect()
    }

    /// Below this all numbers of a node have been answered; 0 of one that has none.
    pub fn answered_below(&self, node: NodeId) -> u64 {
        self.nodes.get(&Whose::Node(node).key()).map_or(0, |session| session.acknowledged_below)
    }

    pub fn remember(&mut self, whose: Whose, sequence: Sequence, outcome: &Outcome) {
        if planted!("log.refusal-not-remembered") && outcome.is_err() {
            return;
        }
        let key = whose.key();
        let open = match whose {
            Whose::Session(_) => self.open.get_mut(&key),
            Whose::Node(_) => self.nodes.get_mut(&key),
        };
        if let Some(open) = open {
            open.results.insert(sequence.0, outcome.clone());
            self.unused.remove(&key);
            self.change(key);
        }
    }

    fn take_in(&mut self, id: u64, session: Session) {
        if id & OF_NODE != 0 {
            self.nodes.insert(id, session);
            return;
        }
        if session.acknowledged_below == 1 && session.results.is_empty() {
            self.unused.insert(id);
        }
        self.open.insert(id, session);
    }

    fn change(&mut self, session: u64) {
        if let Some(changed) = &mut self.changed {
            changed.insert(session);
        }
    }

    /// As they were kept; from here on it is noted which of them change. `all`: each has to be kept
    /// anew.
    pub fn keep_track(&mut self, kept: &[(SessionId, Vec<u8>)], all: bool) -> Result<()> {
        for (id, bytes) in kept {
            self.take_in(id.0, Session::from_bytes(bytes)?);
        }
        let every = self.open.keys().chain(self.nodes.keys());
        let changed = if all { every.copied().collect() } else { BTreeSet::new() };
        self.changed = Some(changed);
        Ok(())
    }

    /// Those that have changed since this was asked last, those that have ended without bytes.
    pub fn take_changed(&mut self) -> Vec<(SessionId, Option<Vec<u8>>)> {
        let changed = self.changed.as_mut().map(std::mem::take).unwrap_or_default();
        let kept = |id: u64| {
            let session = self.open.get(&id).or_else(|| self.nodes.get(&id));
            (SessionId(id), session.map(Encode::to_bytes))
        };
        changed.into_iter().map(kept).collect()
    }
}

/// `Fenced`, because the client has to start again with a new session.
pub fn not_open(session: SessionId) -> Error {
    Error::fenced(format!("session `{session}` is not open: open a new one"))
        .because(Reason::SessionClosed)
}

/// An applied command's outcome, or why the view stops in front of it.
pub fn outcome_of(applied: Applied) -> Result<Outcome> {
    match applied {
        Applied::Ok(bytes) => Ok(Ok(bytes)),
        Applied::Refused(e) => Ok(Err(e)),
        Applied::UnknownVersion(name) => Err(unknown(&name)),
        Applied::Failed(e) => Err(e),
    }
}

/// Of what a newer build has made.
pub fn unknown(name: &str) -> Error {
    Error::unsupported(format!("this build does not know its {name}: start a newer build"))
}

fn encode_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    match outcome {
        Ok(bytes) => {
            0u16.encode(out);
            put_bytes(out, bytes);
        }
        Err(e) => {
            e.code().encode(out);
            e.message.encode(out);
        }
    }
}

fn decode_outcome(reader: &mut Reader<'_>) -> std::result::Result<Outcome, DecodeError> {
    match u16::decode(reader)? {
        0 => Ok(Ok(reader.bytes()?.to_vec())),
        code => {
            let error = Error::from_code(code, reader.str()?);
            Ok(Err(error.ok_or(DecodeError::BadValue("error kind"))?))
        }
    }
}

impl Encode for Session {
    fn encode(&self, out: &mut Vec<u8>) {
        self.acknowledged_below.encode(out);
        (self.results.len() as u32).encode(out);
        for (sequence, outcome) in &self.results {
            sequence.encode(out);
            encode_outcome(outcome, out);
        }
    }
}

impl Decode for Session {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Session, DecodeError> {
        let acknowledged_below = u64::decode(reader)?;
        let mut results = BTreeMap::new();
        for _ in 0..u32::decode(reader)? {
            results.insert(u64::decode(reader)?, decode_outcome(reader)?);
        }
        Ok(Session { acknowledged_below, results })
    }
}

impl Sessions {
    pub fn write(&self, out: &mut Writer<'_>) {
        out.put(&((self.open.len() + self.nodes.len()) as u32));
        for (id, session) in self.open.iter().chain(&self.nodes) {
            out.put(id);
            out.put(session);
        }
        if let Some(Ended { floor, above }) = &self.ended {
            out.put(floor);
            out.put(&(above.len() as u32));
            above.iter().for_each(|id| out.put(id));
        }
    }

    /// The inverse of [`Sessions::write`]; `begun` as they are before the first entry.
    pub fn read(begun: Sessions, source: &mut Source<'_>) -> Result<Sessions> {
        let mut sessions = begun;
        for _ in 0..source.get::<u32>()? {
            sessions.take_in(source.get()?, source.get()?);
        }
        if let Some(ended) = &mut sessions.ended {
            ended.floor = source.get()?;
            for _ in 0..source.get::<u32>()? {
                ended.above.insert(source.get()?);
            }
        }
        Ok(sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;
    use holdfast_base::stream::{collect, read_all};
    use holdfast_env::{Rng, SeededRng};

    /// What a session is, told as plainly as can be: every result there ever was, and what the
    /// client has acknowledged.
    #[derive(Default)]
    struct Plain {
        below: u64,
        used: bool,
        results: BTreeMap<u64, Outcome>,
    }

    impl Plain {
        /// What a request comes to, without its words: the result, or the kind of the refusal.
        fn send(&mut self, sequence: u64, below: u64, fresh: Outcome, max: usize) -> Outcome {
            if below > sequence || sequence < self.below {
                return Err(Error::invalid(""));
            }
            self.used |= below > self.below;
            self.below = self.below.max(below);
            if let Some(known) = self.results.get(&sequence) {
                return known.clone();
            }
            if self.results.range(self.below..).count() >= max {
                return Err(Error::retry(""));
            }
            self.results.insert(sequence, fresh.clone());
            self.used = true;
            fresh
        }
    }

    fn begun() -> Sessions {
        Sessions::default()
    }

    /// Random requests, repeated and late ones, of sessions that are opened and ended, and of nodes, which
    /// are not, with few results outstanding at a time; now and then everything goes through a snapshot.
    #[test]
    fn sessions_do_what_a_plain_model_does() {
        let (mut made_way, mut refused) = (0, 0);
        for seed in 0..200 {
            let (max, open_max) = (1 + seed as usize % 4, 3 + seed as usize % 9);
            let rng = SeededRng::new(seed);
            let below = |n: u64| rng.next_u64() % n;
            let mut sessions = Sessions::default();
            let mut plain: BTreeMap<u64, Plain> = BTreeMap::new();
            let mut nodes: BTreeMap<u32, Plain> = BTreeMap::new();
            for index in 1..300u64 {
                let id = 1 + below(index);
                match below(12) {
                    0 => {
                        let unused = plain.iter().find(|(_, known)| !known.used);
                        let makes_way = unused.map(|(id, _)| *id);
                        let opened = sessions.open_within(Index(index), open_max);
                        if plain.len() == open_max {
                            let Some(makes_way) = makes_way else {
                                assert_eq!(opened.unwrap_err().kind, Kind::Full);
                                refused += 1;
                                continue;
                            };
                            plain.remove(&makes_way);
                            made_way += 1;
                        }
                        opened.unwrap();
                        plain.insert(index, Plain { below: 1, ..Plain::default() });
                    }
                    1 if below(4) == 0 => {
                        let ended = sessions.end(SessionId(id)).is_ok();
                        assert_eq!(ended, plain.remove(&id).is_some(), "seed {seed} at {index}");
                    }
                    2 => {
                        let written = |sessions: &Sessions| {
                            let mut bytes = Vec::new();
                            collect(&mut bytes, |out| sessions.write(out));
                            bytes
                        };
                        let bytes = written(&sessions);
                        let back = read_all(&bytes, |it| Sessions::read(begun(), it)).unwrap();
                        assert_eq!((&back, &written(&back)), (&sessions, &bytes));
                        sessions = back;
                    }
                    _ => {
                        let (whose, known) = if below(3) == 0 {
                            let node = 1 + below(3) as u32;
                            (Whose::Node(NodeId(node)), nodes.entry(node).or_default())
                        } else if let Some((&id, known)) = plain.range_mut(..=id).next_back() {
                            (Whose::Session(SessionId(id)), known)
                        } else {
                            continue;
                        };
                        let sequence = (known.below + below(6)).saturating_sub(below(2));
                        let acknowledged = known.below.saturating_sub(1) + below(4);
                        let fresh = match below(3) {
                            0 => Err(Error::full(format!("refused at {index}"))),
                            _ => Ok(index.to_le_bytes().to_vec()),
                        };
                        let wanted = known.send(sequence, acknowledged, fresh.clone(), max);
                        let (sequence, below) = (Sequence(sequence), Sequence(acknowledged));
                        let got = match sessions.admit_within(whose, sequence, below, max) {
                            Admission::Apply => {
                                sessions.remember(whose, sequence, &fresh);
                                fresh
                            }
                            Admission::Known(outcome) => outcome,
                            Admission::Refused(e) => Err(Error::new(e.kind, "")),
                        };
                        assert_eq!(got, wanted, "seed {seed} at {index}");
                        let kept = sessions.open.get(&whose.key());
                        let kept = kept.unwrap_or_else(|| &sessions.nodes[&whose.key()]);
                        assert!(kept.results.len() <= max, "forgotten in time");
                    }
                }
            }
            assert_eq!(sessions.len(), plain.len());
        }
        assert!(made_way > 100 && refused > 100, "{made_way} made way, {refused} were refused");
    }

    /// Where ids come from another topic: requests of sessions in any order, late and again, before and after
    /// each has ended here. What has ended never opens again, however little is remembered of it; what has
    /// not opens with its first request, unless it is older than one that had to be forgotten.
    #[test]
    fn a_session_of_another_topic_opens_with_its_first_request_and_never_again() {
        let (mut opened, mut kept_out, mut forgotten) = (0, 0, 0);
        for seed in 0..200 {
            let (ended_max, rng) = (1 + seed as usize % 5, SeededRng::new(seed));
            let below = |n: u64| rng.next_u64() % n;
            let mut sessions = Sessions::of_others();
            // Every one that ever ended, and the newest of those that are remembered no more.
            let (mut ended, mut floor) = (BTreeSet::new(), 0);
            let mut remembered = BTreeSet::new();
            for step in 0..200 {
                let id = 1 + below(12) + step / 20;
                match below(6) {
                    0 => {
                        sessions.end_within(SessionId(id), ended_max).unwrap();
                        ended.insert(id);
                        if id > floor {
                            remembered.insert(id);
                        }
                        if remembered.len() > ended_max {
                            floor = remembered.pop_first().unwrap();
                            forgotten += 1;
                        }
                    }
                    1 => {
                        let mut bytes = Vec::new();
                        collect(&mut bytes, |out| sessions.write(out));
                        let begun = Sessions::of_others;
                        let back =
                            read_all(&bytes, |source| Sessions::read(begun(), source)).unwrap();
                        assert_eq!(back, sessions);
                        sessions = back;
                    }
                    _ => {
                        let whose = Whose::Session(SessionId(id));
                        let was_open = sessions.is_open(SessionId(id));
                        assert!(!(was_open && ended.contains(&id)), "it ended");
                        let admitted = sessions.admit(whose, Sequence(1), Sequence(1));
                        let fresh = Ok(id.to_le_bytes().to_vec());
                        match admitted {
                            Admission::Apply => {
                                assert!(!was_open && !ended.contains(&id), "seed {seed}: `{id}`");
                                opened += 1;
                                sessions.remember(whose, Sequence(1), &fresh);
                            }
                            Admission::Known(outcome) => {
                                assert!(was_open);
                                assert_eq!(outcome, fresh);
                            }
                            Admission::Refused(e) => {
                                assert_eq!(e.kind, Kind::Fenced);
                                assert!(ended.contains(&id) || id <= floor, "seed {seed}: `{id}`");
                                kept_out += 1;
                            }
                        }
                    }
                }
            }
            assert!(sessions.ended.as_ref().unwrap().above.len() <= ended_max);
        }
        assert!(opened > 500 && kept_out > 500 && forgotten > 500);
        let mut sessions = Sessions::of_others();
        assert_eq!(
            sessions.open(Index(5)).unwrap_err().kind,
            Kind::Invalid,
            "ids come from elsewhere"
        );
        let forged = Whose::Session(SessionId(OF_NODE | 1));
        let admitted = sessions.admit(forged, Sequence(1), Sequence(1));
        assert!(matches!(admitted, Admission::Refused(_)), "a node's numbers are not a session's");
    }
}
