//! What clients ask a region, and what regions say to each other.

mod bytes;

use crate::entry::{Asked, StreamEntry};
use crate::ids::{Epoch, Key, Place, RegionId, StreamId, Value};
use crate::sessions::Outcome;
use crate::tablet::branch::{Branch, BranchId};
use crate::tablet::image::{ImageId, Part};
use crate::token::Token;

/// What a client asks of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub key: Key,
    pub op: Op,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A repetition (same session and sequence) gets the first answer.
    Write {
        asked: Asked,
        value: Option<Vec<u8>>,
        expect: Expect,
    },
    Read(Level),
    /// Writes of several records of the tablet, no key twice, that are decided as one, where the first one, which is
    /// the request's, is at home: all of them, or none. A repetition gets the first answer.
    Group {
        asked: Asked,
        writes: Vec<GroupWrite>,
    },
    /// Somebody has seen to a branch of the key: it is one no more. A repetition gets the first answer.
    Resolve {
        asked: Asked,
        stream: StreamId,
        place: Place,
        /// Where the region that was asked has it said: whoever decides shows that first.
        said: Place,
        /// What the branch has is the record's next version, if the record is as expected; none: it stays as it is.
        keep: Option<Expect>,
    },
}

/// One write of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWrite {
    pub key: Key,
    pub expect: Expect,
    pub what: GroupDo,
}

/// What becomes of a record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupDo {
    Put(Value),
    Delete,
    /// Nothing: it is only to be as expected.
    Check,
}

impl GroupWrite {
    /// Of its value.
    pub fn value_bytes(&self) -> usize {
        match &self.what {
            GroupDo::Put(value) => value.len(),
            GroupDo::Delete | GroupDo::Check => 0,
        }
    }
}

impl Request {
    /// A group of writes. Panics without one.
    pub fn group(asked: Asked, writes: Vec<GroupWrite>) -> Request {
        Request { key: writes[0].key.clone(), op: Op::Group { asked, writes } }
    }

    /// The number of the request, if it is one that an entry answers.
    pub fn asked(&self) -> Option<Asked> {
        match &self.op {
            Op::Write { asked, .. } | Op::Group { asked, .. } | Op::Resolve { asked, .. } => {
                Some(*asked)
            }
            Op::Read(_) => None,
        }
    }

    /// The branch that it resolves, if it is such a request.
    pub fn resolves(&self) -> Option<BranchId> {
        match self.op {
            Op::Resolve { stream, place, .. } => {
                Some(BranchId { key: self.key.clone(), stream, place })
            }
            Op::Write { .. } | Op::Group { .. } | Op::Read(_) => None,
        }
    }
}

/// On what a write insists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// There is no such record: an insert.
    Absent,
    /// The record has this version: test and set.
    Version(u64),
}

/// How new what a read shows must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// Whatever the region shows.
    Any,
    /// This version or a later one.
    Critical(u64),
    /// Nothing older than the client has seen.
    Session(Token),
    /// As new as the record's home shows when it is asked. Of a strong table: [`Level::Strong`].
    Latest,
    /// As new as anything that anybody was told of. Of a timeline table: [`Level::Latest`].
    Strong,
}

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a write; the place is where it was decided.
    Done { outcome: Outcome, stream: StreamId, place: Place },
    /// Of a read: version and value, or none. Whoever has seen `seen` shows nothing older.
    Value { found: Option<(u64, Value)>, seen: Token },
    /// The token names what was cut off: the client's session begins anew.
    Branched,
    /// Unknown: ask again, a write with the same session and sequence.
    Retry(&'static str),
    /// The tablet has the request's keys no more: whichever has them now is to be asked. Of tables of one region.
    Elsewhere(Box<Request>),
    /// Of a split: what was asked for shows.
    Split,
}

/// Who waits for an answer: a region, and the number that it gave to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub region: RegionId,
    pub ticket: u64,
}

/// How far a log has a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub stream: StreamId,
    /// It is the same as the log of this epoch's leader, up to this number.
    pub matched: Place,
    /// Up to this number it shows.
    pub shown: u64,
    /// It accepts nothing of an earlier epoch.
    pub promised: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request, to the region where the record is at home. Nobody decides it before this place
    /// shows: there the record moved.
    Forward { asker: Asker, request: Request, hops: u8, after: Option<(StreamId, Place)> },
    /// The answer to a forwarded request.
    Answered { ticket: u64, answer: Answer },
    /// The home does not show the version that a forwarded read asks for.
    NotShown { ticket: u64 },
    /// A strong read waits for a mark in this stream.
    MarkAsked { stream: StreamId, ticket: u64 },
    /// Durable entries of the stream, and up to where they are kept.
    Push { stream: StreamId, under: Epoch, before: Place, entries: Vec<StreamEntry>, kept: u64 },
    /// What was pushed does not follow on what is held; the ends of the epochs that are.
    Behind { stream: StreamId, under: Epoch, ends: Vec<Place> },
    /// How far the sender has streams. Each tick of all, and of one whenever it goes on.
    Positions(Vec<Position>),
    /// Promise to accept nothing of an earlier epoch.
    AskPromise { stream: StreamId, epoch: Epoch },
    /// Promised, by an entry; the last entry that is held, and the epoch that was promised before.
    Promised { stream: StreamId, epoch: Epoch, tail: Place, before: Epoch },
    /// A later epoch was promised.
    Refused { stream: StreamId, promised: Epoch },
    /// What a taker-over lacks of the stream; the ends of the epochs that it holds.
    Fetch { stream: StreamId, epoch: Epoch, ends: Vec<Place> },
    /// The entries behind the last place in common.
    Fetched { stream: StreamId, epoch: Epoch, before: Place, entries: Vec<StreamEntry> },
    /// What the receiver lacks of the stream is not in memory any more, up to this place.
    Forgotten { stream: StreamId, up_to: Place },
    /// Send this part of the image; none: a new image, from its first part on.
    ImageAsked { image: Option<ImageId>, part: u64 },
    /// A part of an image of the sender's tablet.
    ImagePart(Part),
    /// The sender had this in a stream that goes on without it, of which it shows so much: who leads that says so there.
    Branch { branch: Branch, shown: u64 },
}
