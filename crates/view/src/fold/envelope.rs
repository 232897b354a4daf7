//! The envelope around each command: what kind of entry it is, whose, and under which claim.
//! Pure; docs/formats/log.md describes it byte by byte.

use super::ENVELOPE_BYTES;
use super::sessions::Whose;
use holdfast_base::ids::{Index, NodeId, Sequence, SessionId};
use holdfast_env::planted;

pub const VERSION: u8 = 1;
/// In the kind of an entry that a node has numbered.
const NUMBERED: u8 = 0x10;
/// A term's bytes.
const TERM_BYTES: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Command = 1,
    OpenSession = 2,
    EndSession = 3,
    /// Of builds before claims named a term, and of who has none: it counts whatever came before.
    Claim = 4,
    /// A claim for a term, which is its command.
    Term = 5,
}

impl EntryKind {
    /// Whether it begins a new epoch.
    pub fn claims(self) -> bool {
        matches!(self, EntryKind::Claim | EntryKind::Term)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub kind: EntryKind,
    /// The claim that the proposer acts under; a claim itself carries the one it found.
    pub epoch: Index,
    pub session: SessionId,
    /// The node that has numbered the entry, where it is nobody's session's.
    pub author: Option<NodeId>,
    pub sequence: Sequence,
    pub acknowledged_below: Sequence,
}

/// What an entry turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    Entry(Envelope, &'a [u8]),
    /// Not an envelope at all: refused, the same way everywhere.
    Malformed,
    /// Made by a newer build; names what is not known.
    Unknown(String),
}

impl Envelope {
    /// Of an entry that has none: nobody's session, under no claim.
    const BARE: Envelope = Envelope {
        kind: EntryKind::Command,
        epoch: Index(0),
        session: SessionId(0),
        author: None,
        sequence: Sequence(0),
        acknowledged_below: Sequence(0),
    };

    /// Who tells this entry from copies of it, if anybody does.
    pub fn whose(&self) -> Option<Whose> {
        match (self.author, self.kind) {
            (Some(node), _) => Some(Whose::Node(node)),
            (None, EntryKind::Command) if self.session.0 != 0 => Some(Whose::Session(self.session)),
            _ => None,
        }
    }

    /// The entry: envelope, then command.
    pub fn encode(&self, command: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENVELOPE_BYTES + command.len());
        let (numbered, whose) = match self.author {
            Some(node) => (NUMBERED, node.0 as u64),
            None => (0, self.session.0),
        };
        out.extend_from_slice(&[VERSION, self.kind as u8 | numbered, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&whose.to_le_bytes());
        out.extend_from_slice(&self.sequence.0.to_le_bytes());
        out.extend_from_slice(&self.acknowledged_below.0.to_le_bytes());
        out.extend_from_slice(command);
        out
    }

    /// `bare`: what entries without an envelope begin with, if there are such.
    pub fn decode(entry: &[u8], bare: Option<u8>) -> Decoded<'_> {
        match entry.first() {
            Some(&VERSION) => {}
            Some(first) if bare == Some(*first) && !planted!("view.bare-entries-unknown") => {
                return Decoded::Entry(Envelope::BARE, entry);
            }
            Some(&version) => return Decoded::Unknown(format!("envelope version {version}")),
            None => return Decoded::Malformed,
        }
        let Some((head, command)) = entry.split_first_chunk::<ENVELOPE_BYTES>() else {
            return Decoded::Malformed;
        };
        if head[2..8] != [0; 6] {
            return Decoded::Malformed;
        }
        let kind = match head[1] & !NUMBERED {
            1 => EntryKind::Command,
            2 => EntryKind::OpenSession,
            3 if head[1] & NUMBERED == 0 => EntryKind::EndSession,
            4 => EntryKind::Claim,
            5 if command.len() == TERM_BYTES => EntryKind::Term,
            5 => return Decoded::Malformed,
            _ => return Decoded::Unknown(format!("entry kind {}", head[1])),
        };
        let field = |n: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[8 + 8 * n..16 + 8 * n]);
            u64::from_le_bytes(bytes)
        };
        let (session, author) = match (head[1] & NUMBERED, u32::try_from(field(1))) {
            (0, _) => (SessionId(field(1)), None),
            (_, Ok(node)) => (SessionId(0), Some(NodeId(node))),
            (_, Err(_)) => return Decoded::Malformed,
        };
        let envelope = Envelope {
            kind,
            epoch: Index(field(0)),
            session,
            author,
            sequence: Sequence(field(2)),
            acknowledged_below: Sequence(field(3)),
        };
        Decoded::Entry(envelope, command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_come_back() {
        let envelope = Envelope {
            kind: EntryKind::Command,
            epoch: Index(2),
            session: SessionId(3),
            author: None,
            sequence: Sequence(4),
            acknowledged_below: Sequence(1),
        };
        let entry = envelope.encode(b"cmd");
        let mut expected = vec![1, 1, 0, 0, 0, 0, 0, 0];
        for field in [2u64, 3, 4, 1] {
            expected.extend_from_slice(&field.to_le_bytes());
        }
        expected.extend_from_slice(b"cmd");
        assert_eq!(entry, expected);
        assert_eq!(Envelope::decode(&entry, Some(2)), Decoded::Entry(envelope, b"cmd"));
        let numbered = Envelope { session: SessionId(0), author: Some(NodeId(3)), ..envelope };
        let entry = numbered.encode(b"cmd");
        expected[1] = 0x11;
        assert_eq!(entry, expected);
        assert_eq!(Envelope::decode(&entry, None), Decoded::Entry(numbered, b"cmd"));
        expected[20] = 1;
        assert_eq!(Envelope::decode(&expected, None), Decoded::Malformed, "no such node");
        expected[1] = 0x13;
        assert_eq!(Envelope::decode(&expected, None), Decoded::Unknown("entry kind 19".into()));
    }

    #[test]
    fn newer_entries_are_told_apart_from_broken_ones() {
        let decode = |entry| Envelope::decode(entry, None);
        assert_eq!(decode(&[]), Decoded::Malformed);
        assert_eq!(decode(&[1, 1, 0]), Decoded::Malformed);
        assert_eq!(decode(&[2]), Decoded::Unknown("envelope version 2".into()));
        assert_eq!(Envelope::decode(&[2], Some(2)), Decoded::Entry(Envelope::BARE, &[2]));
        let mut entry = vec![0; 40];
        entry[..2].copy_from_slice(&[1, 9]);
        assert_eq!(Envelope::decode(&entry, None), Decoded::Unknown("entry kind 9".into()));
        entry[1] = 5;
        assert_eq!(Envelope::decode(&entry, None), Decoded::Malformed, "a claim for no term");
        entry.resize(ENVELOPE_BYTES + TERM_BYTES, 0);
        let decoded = Envelope::decode(&entry, None);
        assert!(matches!(decoded, Decoded::Entry(Envelope { kind: EntryKind::Term, .. }, _)));
    }
}
