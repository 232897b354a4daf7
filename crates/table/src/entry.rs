//! What is written into a region's topic of a tablet, and what a stream is made of. Pure forms;
//! docs/formats/table.md describes them byte by byte.

use crate::ids::{Epoch, Key, LogId, Place, RegionId, StreamId, Value};
use crate::tablet::branch::{Branch, BranchId};
use crate::tablet::image::{Item, Part};
use crate::tablet::span::Half;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::codec_struct;

/// The version that every entry begins with.
pub const VERSION: u8 = 1;
/// In front of the tag of an entry that says something of groups: builds before this one, which know the tag and not
/// what is said, stop in front of it.
pub const LATER: u8 = 12;
/// The same, of an entry that says something of a split.
pub const SPLITS: u8 = 13;

/// One entry of a region's topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From here on the topic is this log's. It leads nothing that another log has opened.
    Log(LogId),
    /// What this region, leading, has decided.
    Decided { stream: StreamId, entry: StreamEntry },
    /// What another one has decided, in order: the entries behind `before`. Sent by the leader of
    /// `under`, or fetched by who gathers promises for it; the entries' own epochs may be older.
    Followed { stream: StreamId, under: Epoch, before: Place, entries: Vec<StreamEntry> },
    /// Nothing of an epoch before this one is accepted any more.
    Promised { stream: StreamId, epoch: Epoch },
    /// This region still leads this epoch, as of here.
    Checked { stream: StreamId, epoch: Epoch },
    /// What of the streams nobody will ask for any more, as this region knows it: their entries go
    /// from memory.
    Settled(Vec<Settled>),
    /// A part of another region's tablet, for a log that began anew.
    Image(Part),
    /// An operator has called this region lost; or, where not `is_lost`, it was heard again.
    Lost { region: RegionId, is_lost: bool },
}

/// How far a stream has come to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub stream: StreamId,
    /// Up to there this region shows it.
    pub shown: u64,
    /// Up to there every region does, by a log that counts.
    pub by_all: u64,
}

/// One entry of a home's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Its own.
    pub place: Place,
    /// The epoch of the entry before it; 0 for the first.
    pub before: Epoch,
    /// What asked for it, if a client did.
    pub asked: Option<Asked>,
    /// What it says.
    pub body: Body,
}

/// Which request of which session: a repetition gets the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// Drawn by the client.
    pub session: u64,
    /// From 1, increasing.
    pub sequence: u64,
    /// The client needs no result below this any more.
    pub below: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The epoch begins.
    Open,
    /// A record's next version.
    Change(Change),
    /// A request that was refused: it changes nothing, and is kept as answers are.
    Refused(Refusal),
    /// Reads that wait, by the region that asked and the highest of its tickets.
    Mark(Vec<(RegionId, u64)>),
    /// The region's log is this one now, and does not count yet. The one before counts no more.
    Admit { region: RegionId, log: LogId },
    /// The region's log holds all and counts.
    Count { region: RegionId, log: LogId },
    /// What a region had decided in a stream that was sealed without it.
    Branch(Branch),
    /// Somebody has seen to that branch: it is one no more. In the stream that the branch is of, as builds before this
    /// one have it.
    Resolved(BranchId),
    /// The same where the branch's key is at home, so that of two who see to it one does.
    Resolves(Resolution),
    /// The next versions of several records, none of them twice, which stand or fall together. None: they were only
    /// looked at.
    Group(Vec<Change>),
    /// Of a table of one region: these keys go to another tablet. Nothing more is decided about them here.
    Split(Half),
    /// That tablet has them, whole, and decides about them from here on. They go from this one.
    HandedOver { child: u16 },
}

/// What became of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    pub id: BranchId,
    /// Where the branch's stream has said it; none where every region shows it. Nobody shows this before that.
    pub said: Place,
    /// The branch was kept: this is the record's next version.
    pub change: Option<Change>,
}

/// A version of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// The record's version from here on.
    pub version: u64,
    /// The version that it follows, `version - 1`; 0 where the key is absent: a new line begins.
    pub after: u64,
    /// Where the record is at home from here on.
    pub home: StreamId,
    /// The region whose client asked.
    pub origin: RegionId,
    pub kind: ChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Put(Value),
    /// The record stays as a tombstone, at home where it was.
    Delete,
    /// The value stays, the home changes.
    Move,
    /// The tombstone goes, and the key is the tablet's home's again.
    Forget,
}

/// Why a request changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key has this version.
    Found(u64),
    /// There is no such record.
    Absent,
    /// There is no such branch: somebody has seen to it.
    NoBranch,
    /// Of a group's records this is the first one that was not as expected: which, from 0, and the version that it
    /// has, if it is there.
    OfGroup { at: u16, found: Option<u64> },
    /// Of a group's records this is the first one that is at home elsewhere than the group's first one.
    Apart { at: u16 },
}

codec_struct!(StreamEntry { place, before, asked, body });
codec_struct!(Asked { session, sequence, below });
codec_struct!(Settled { stream, shown, by_all });
codec_struct!(Resolution { id, said, change });

impl Body {
    /// The versions of records that it brings, of each record one at most.
    pub fn changes(&self) -> &[Change] {
        match self {
            Body::Change(change) => std::slice::from_ref(change),
            Body::Resolves(resolution) => resolution.change.as_slice(),
            Body::Group(changes) => changes,
            _ => &[],
        }
    }

    /// The one of this record, if it brings one.
    pub fn change_of(&self, key: &[u8]) -> Option<&Change> {
        self.changes().iter().find(|change| change.key == key)
    }
}

impl Change {
    fn encoded_bytes(&self) -> usize {
        let value = match &self.kind {
            ChangeKind::Put(value) => 4 + value.len(),
            ChangeKind::Delete | ChangeKind::Move | ChangeKind::Forget => 0,
        };
        4 + self.key.len() + 8 + 8 + 1 + 1 + 1 + value
    }
}

impl StreamEntry {
    /// How many bytes it has, encoded.
    pub fn encoded_bytes(&self) -> u64 {
        // Its place, the epoch before and two tags.
        let fixed = 16 + 8 + 1 + 1;
        let asked = if self.asked.is_some() { 24 } else { 0 };
        let body = match &self.body {
            Body::Open => 0,
            Body::Change(change) => change.encoded_bytes(),
            Body::Refused(Refusal::Found(_)) => 1 + 8,
            Body::Refused(Refusal::Absent | Refusal::NoBranch) => 1,
            Body::Refused(Refusal::OfGroup { found, .. }) => 1 + 2 + 1 + found.map_or(0, |_| 8),
            Body::Refused(Refusal::Apart { .. }) => 1 + 2,
            Body::Mark(tickets) => 4 + 9 * tickets.len(),
            Body::Admit { .. } | Body::Count { .. } => 1 + 8,
            Body::Branch(branch) => branch.encoded_bytes(),
            Body::Resolved(id) => id.encoded_bytes(),
            Body::Resolves(Resolution { id, change, .. }) => {
                id.encoded_bytes() + 16 + 1 + change.as_ref().map_or(0, Change::encoded_bytes)
            }
            Body::Group(changes) => 4 + changes.iter().map(Change::encoded_bytes).sum::<usize>(),
            Body::Split(_) => 4 + 2,
            Body::HandedOver { .. } => 2,
        };
        (fixed + asked + body) as u64
    }
}

impl Entry {
    /// What goes in front of its tag, where builds before know the tag and not what is said.
    fn later(&self) -> Option<u8> {
        let splits =
            |entry: &StreamEntry| matches!(entry.body, Body::Split(_) | Body::HandedOver { .. });
        match self {
            Entry::Decided { entry, .. } if splits(entry) => Some(SPLITS),
            Entry::Followed { entries, .. } if entries.iter().any(splits) => Some(SPLITS),
            _ => self.is_of_groups().then_some(LATER),
        }
    }

    fn is_of_groups(&self) -> bool {
        let later = |entry: &StreamEntry| {
            let refused = matches!(
                entry.body,
                Body::Refused(Refusal::OfGroup { .. } | Refusal::Apart { .. })
            );
            refused || matches!(entry.body, Body::Group(_))
        };
        match self {
            Entry::Decided { entry, .. } => later(entry),
            Entry::Followed { entries, .. } => entries.iter().any(later),
            Entry::Image(part) => part.items.iter().any(|item| match item {
                Item::Entry { entry, .. } => later(entry),
                Item::Session(session) => session.results.iter().any(|result| result.is_of_group()),
                _ => false,
            }),
            _ => false,
        }
    }
}

impl Encode for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.encode(out);
        if let Some(later) = self.later() {
            later.encode(out);
        }
        match self {
            Entry::Log(log) => {
                1u8.encode(out);
                log.encode(out);
            }
            Entry::Decided { stream, entry } => {
                2u8.encode(out);
                stream.encode(out);
                entry.encode(out);
            }
            Entry::Followed { stream, under, before, entries } => {
                3u8.encode(out);
                stream.encode(out);
                under.encode(out);
                before.encode(out);
                entries.encode(out);
            }
            Entry::Promised { stream, epoch } => {
                4u8.encode(out);
                stream.encode(out);
                epoch.encode(out);
            }
            Entry::Checked { stream, epoch } => {
                5u8.encode(out);
                stream.encode(out);
                epoch.encode(out);
            }
            // 6 makes the tablet: see [`crate::view`].
            Entry::Settled(settled) => {
                7u8.encode(out);
                settled.encode(out);
            }
            Entry::Image(part) => {
                9u8.encode(out);
                part.encode(out);
            }
            Entry::Lost { region, is_lost } => {
                10u8.encode(out);
                region.encode(out);
                is_lost.encode(out);
            }
        }
    }
}

impl Decode for Entry {
    fn decode(reader: &mut Reader<'_>) -> Result<Entry, DecodeError> {
        if u8::decode(reader)? != VERSION {
            return Err(DecodeError::BadValue("version"));
        }
        let tag = u8::decode(reader)?;
        let (tag, later) = match tag {
            LATER | SPLITS => (u8::decode(reader)?, Some(tag)),
            tag => (tag, None),
        };
        let entry = match tag {
            1 => Entry::Log(LogId::decode(reader)?),
            2 => Entry::Decided {
                stream: StreamId::decode(reader)?,
                entry: StreamEntry::decode(reader)?,
            },
            3 => Entry::Followed {
                stream: StreamId::decode(reader)?,
                under: Epoch::decode(reader)?,
                before: Place::decode(reader)?,
                entries: Vec::decode(reader)?,
            },
            4 => {
                Entry::Promised { stream: StreamId::decode(reader)?, epoch: Epoch::decode(reader)? }
            }
            5 => {
                Entry::Checked { stream: StreamId::decode(reader)?, epoch: Epoch::decode(reader)? }
            }
            7 => Entry::Settled(Vec::decode(reader)?),
            9 => Entry::Image(Part::decode(reader)?),
            10 => Entry::Lost { region: RegionId::decode(reader)?, is_lost: bool::decode(reader)? },
            _ => return Err(DecodeError::BadValue("entry")),
        };
        // One byte form for each entry.
        match entry.later() == later {
            true => Ok(entry),
            false => Err(DecodeError::BadValue("entry")),
        }
    }
}

impl Encode for Body {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Body::Open => 1u8.encode(out),
            Body::Change(change) => {
                2u8.encode(out);
                change.encode(out);
            }
            Body::Refused(refusal) => {
                3u8.encode(out);
                refusal.encode(out);
            }
            Body::Mark(tickets) => {
                4u8.encode(out);
                (tickets.len() as u32).encode(out);
                for (region, ticket) in tickets {
                    region.encode(out);
                    ticket.encode(out);
                }
            }
            Body::Admit { region, log } => {
                5u8.encode(out);
                region.encode(out);
                log.encode(out);
            }
            Body::Count { region, log } => {
                6u8.encode(out);
                region.encode(out);
                log.encode(out);
            }
            Body::Branch(branch) => {
                7u8.encode(out);
                branch.encode(out);
            }
            Body::Resolved(id) => {
                8u8.encode(out);
                id.encode(out);
            }
            Body::Resolves(resolution) => {
                9u8.encode(out);
                resolution.encode(out);
            }
            Body::Group(changes) => {
                10u8.encode(out);
                changes.encode(out);
            }
            Body::Split(half) => {
                11u8.encode(out);
                half.encode(out);
            }
            Body::HandedOver { child } => {
                12u8.encode(out);
                child.encode(out);
            }
        }
    }
}

impl Decode for Body {
    fn decode(reader: &mut Reader<'_>) -> Result<Body, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Body::Open,
            2 => Body::Change(Change::decode(reader)?),
            3 => Body::Refused(Refusal::decode(reader)?),
            4 => {
                let mut tickets = Vec::new();
                for _ in 0..u32::decode(reader)? {
                    tickets.push((RegionId::decode(reader)?, u64::decode(reader)?));
                }
                Body::Mark(tickets)
            }
            5 => Body::Admit { region: RegionId::decode(reader)?, log: LogId::decode(reader)? },
            6 => Body::Count { region: RegionId::decode(reader)?, log: LogId::decode(reader)? },
            7 => Body::Branch(Branch::decode(reader)?),
            8 => Body::Resolved(BranchId::decode(reader)?),
            9 => Body::Resolves(Resolution::decode(reader)?),
            10 => Body::Group(Vec::decode(reader)?),
            11 => Body::Split(Half::decode(reader)?),
            12 => Body::HandedOver { child: u16::decode(reader)? },
            _ => return Err(DecodeError::BadValue("body")),
        })
    }
}

impl Encode for Refusal {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Refusal::Found(version) => {
                1u8.encode(out);
                version.encode(out);
            }
            Refusal::Absent => 2u8.encode(out),
            Refusal::NoBranch => 3u8.encode(out),
            Refusal::OfGroup { at, found } => {
                4u8.encode(out);
                at.encode(out);
                found.encode(out);
            }
            Refusal::Apart { at } => {
                5u8.encode(out);
                at.encode(out);
            }
        }
    }
}

impl Decode for Refusal {
    fn decode(reader: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Refusal::Found(u64::decode(reader)?),
            2 => Refusal::Absent,
            3 => Refusal::NoBranch,
            4 => Refusal::OfGroup { at: u16::decode(reader)?, found: Option::decode(reader)? },
            5 => Refusal::Apart { at: u16::decode(reader)? },
            _ => return Err(DecodeError::BadValue("refusal")),
        })
    }
}

impl Encode for Change {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        self.version.encode(out);
        self.after.encode(out);
        self.home.encode(out);
        self.origin.encode(out);
        match &self.kind {
            ChangeKind::Put(value) => {
                1u8.encode(out);
                put_bytes(out, value);
            }
            ChangeKind::Delete => 2u8.encode(out),
            ChangeKind::Move => 3u8.encode(out),
            ChangeKind::Forget => 4u8.encode(out),
        }
    }
}

impl Decode for Change {
    fn decode(reader: &mut Reader<'_>) -> Result<Change, DecodeError> {
        Ok(Change {
            key: reader.bytes()?.to_vec(),
            version: u64::decode(reader)?,
            after: u64::decode(reader)?,
            home: StreamId::decode(reader)?,
            origin: RegionId::decode(reader)?,
            kind: match u8::decode(reader)? {
                1 => ChangeKind::Put(reader.bytes()?.into()),
                2 => ChangeKind::Delete,
                3 => ChangeKind::Move,
                4 => ChangeKind::Forget,
                _ => return Err(DecodeError::BadValue("change")),
            },
        })
    }
}
