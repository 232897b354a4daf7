//! The envelope around each command: what kind of entry it is, whose, and under which claim.
//! Pure; docs/formats/log.md describes it byte by byte.

use super::ENVELOPE_BYTES;
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_env::planted;

pub const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Command = 1,
    OpenSession = 2,
    EndSession = 3,
    Claim = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub kind: EntryKind,
    /// The claim that the proposer acts under; a claim itself carries the one it found.
    pub epoch: Index,
    pub session: SessionId,
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
        sequence: Sequence(0),
        acknowledged_below: Sequence(0),
    };

    /// The entry: envelope, then command.
    pub fn encode(&self, command: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENVELOPE_BYTES + command.len());
        out.extend_from_slice(&[VERSION, self.kind as u8, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.session.0.to_le_bytes());
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
        let kind = match head[1] {
            1 => EntryKind::Command,
            2 => EntryKind::OpenSession,
            3 => EntryKind::EndSession,
            4 => EntryKind::Claim,
            kind => return Decoded::Unknown(format!("entry kind {kind}")),
        };
        let field = |n: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[8 + 8 * n..16 + 8 * n]);
            u64::from_le_bytes(bytes)
        };
        let envelope = Envelope {
            kind,
            epoch: Index(field(0)),
            session: SessionId(field(1)),
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
    }
}
