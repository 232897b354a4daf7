//! Messages by which a node uses the log of the node that hosts it. Every request begins with its
//! [`Sender`]. Entries travel in the body, whose checksum is in the meta: an entry can be as long
//! as a meta. Types only; nodes alone send them.

use super::peer::Sender;
use super::slab::Sums;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::codec_struct;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

/// `LOG_APPEND`: [`Append`] and a list of entries; answered with
/// [`Appended`](super::log::Appended) once they are durable.
pub const OP_PEER_LOG_APPEND: u16 = 0x0421;
/// `LOG_READ`: [`Read`]; answered with [`Entries`] and a list of indices with their entries.
pub const OP_PEER_LOG_READ: u16 = 0x0422;
/// `LOG_TRIM`: [`Trim`]; answered empty.
pub const OP_PEER_LOG_TRIM: u16 = 0x0423;
/// `LOG_INFO`: [`Describe`]; answered with [`Info`](super::log::Info).
pub const OP_PEER_LOG_INFO: u16 = 0x0424;

/// `COVERED`: [`Describe`]; answered with [`Covered`].
pub const OP_PEER_COVERED: u16 = 0x0425;
/// `SNAPSHOT`: [`Snapshot`]; answered with [`SnapshotPart`] and the bytes.
pub const OP_PEER_SNAPSHOT: u16 = 0x0426;

/// `LOG_COMPARE`: [`Compare`]; answered empty where the log has that entry, or the entry was trimmed,
/// and with `Corrupt` by a host whose log is another one, which then serves the topic no more.
pub const OP_PEER_LOG_COMPARE: u16 = 0x0427;
/// `LOG_REACHED`: [`Describe`] with no topic, for all of them; answered with a list of [`Reached`].
pub const OP_PEER_LOG_REACHED: u16 = 0x0428;

/// An entry that a node has of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    pub topic: String,
    pub index: Index,
    /// CRC32C of the entry, if the node knows it.
    pub crc: Option<u32>,
}
codec_struct!(Reached { topic, index, crc });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    pub sender: Sender,
    pub reached: Reached,
}
codec_struct!(Compare { sender, reached });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub sender: Sender,
    pub topic: String,
    /// CRC32C of the body.
    pub crc: u32,
}
codec_struct!(Append { sender, topic, crc });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub sender: Sender,
    pub topic: String,
    pub from: Index,
    pub entries_max: u32,
    /// When there is no such entry yet, answer once there is (or at the request's deadline).
    pub wait: bool,
    /// Of the node's readers of the topic, each of which waits for itself.
    pub reader: u32,
}

impl Encode for Read {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sender.encode(out);
        self.topic.encode(out);
        self.from.encode(out);
        self.entries_max.encode(out);
        self.wait.encode(out);
        self.reader.encode(out);
    }
}

impl Decode for Read {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Read, DecodeError> {
        Ok(Read {
            sender: Decode::decode(reader)?,
            topic: Decode::decode(reader)?,
            from: Decode::decode(reader)?,
            entries_max: Decode::decode(reader)?,
            wait: Decode::decode(reader)?,
            // Builds with one reader a topic do not name it.
            reader: if reader.remaining() == 0 { 0 } else { u32::decode(reader)? },
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// CRC32C of the body.
    pub crc: u32,
}
codec_struct!(Entries { crc });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    pub sender: Sender,
    pub topic: String,
    pub before: Index,
}
codec_struct!(Trim { sender, topic, before });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    pub sender: Sender,
    pub topic: String,
}
codec_struct!(Describe { sender, topic });

/// What a node says of its view of a topic: for the log's trim, and to be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Up to which two verified snapshots of the node cover the topic; 0 for none.
    pub covered: Index,
    /// The node has stopped the view, for most nodes have applied something otherwise.
    pub withdrawn: bool,
    /// The view's digest at places that other nodes know theirs at.
    pub digests: Vec<Digest>,
    /// Images of views of parts of the topic.
    pub images: Vec<Image>,
    /// Entries that rides of the node hold: the log is not trimmed behind them, and the horizon does not
    /// pass them.
    pub holds: Vec<Index>,
    /// The newest mark of which a view of the node should have an image and has none; 0 for none.
    pub lost: Index,
}

/// A verified image of a view: of keys with hashes from `low` on and below `high`, behind an entry,
/// with the sums of its items by sub-range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub low: u64,
    pub high: u64,
    pub index: Index,
    pub sums: Sums,
}
codec_struct!(Image { low, high, index, sums });

/// A view's running digest once all entries up to an index are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    pub index: Index,
    pub digest: u64,
}
codec_struct!(Digest { index, digest });

impl Encode for Covered {
    fn encode(&self, out: &mut Vec<u8>) {
        self.covered.encode(out);
        self.withdrawn.encode(out);
        self.digests.encode(out);
        self.images.encode(out);
        self.holds.encode(out);
        self.lost.encode(out);
    }
}

impl Decode for Covered {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Covered, DecodeError> {
        let covered = Index::decode(reader)?;
        if reader.remaining() == 0 {
            // Builds before views were compared say no more.
            return Ok(Covered { covered, ..Covered::default() });
        }
        let withdrawn = bool::decode(reader)?;
        let digests = Vec::decode(reader)?;
        let images = match reader.remaining() {
            // Nor of images, builds before there were any.
            0 => Vec::new(),
            _ => Vec::decode(reader)?,
        };
        let (holds, lost) = match reader.remaining() {
            // Nor of rides, builds before they held anything.
            0 => (Vec::new(), Index(0)),
            _ => (Vec::decode(reader)?, Index::decode(reader)?),
        };
        Ok(Covered { covered, withdrawn, digests, images, holds, lost })
    }
}

/// Asks for part of the file of a node's snapshot of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub sender: Sender,
    pub topic: String,
    /// Which one; 0 for the newest.
    pub index: Index,
    pub offset: u64,
    pub bytes: u32,
}
codec_struct!(Snapshot { sender, topic, index, offset, bytes });

/// Part of a snapshot's file, which is the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    pub index: Index,
    pub bytes_total: u64,
    /// CRC32C of the body.
    pub crc: u32,
}
codec_struct!(SnapshotPart { index, bytes_total, crc });

/// The body of an [`Append`].
pub fn encode_entries(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.iter().map(|entry| entry.len() + 4).sum());
    (entries.len() as u32).encode(&mut out);
    entries.iter().for_each(|entry| put_bytes(&mut out, entry));
    out
}

/// The inverse of [`encode_entries`]; `crc` is what the meta says.
pub fn decode_entries(body: &[u8], crc: u32) -> Result<Vec<Vec<u8>>> {
    list(body, crc, |reader| Ok(reader.bytes()?.to_vec()))
}

/// The body of an answer to [`Read`].
pub fn encode_indexed(entries: &[(Index, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.iter().map(|(_, entry)| entry.len() + 12).sum());
    (entries.len() as u32).encode(&mut out);
    for (index, entry) in entries {
        index.encode(&mut out);
        put_bytes(&mut out, entry);
    }
    out
}

/// The inverse of [`encode_indexed`].
pub fn decode_indexed(body: &[u8], crc: u32) -> Result<Vec<(Index, Vec<u8>)>> {
    list(body, crc, |reader| Ok((Index::decode(reader)?, reader.bytes()?.to_vec())))
}

fn list<T>(
    body: &[u8],
    crc: u32,
    item: impl Fn(&mut Reader<'_>) -> std::result::Result<T, DecodeError>,
) -> Result<Vec<T>> {
    // Damage on the way is no damage of what is stored: the same may be asked for again.
    if crc32c(body) != crc {
        return Err(Error::retry("entries were damaged on their way (checksum mismatch)"));
    }
    let mut reader = Reader::new(body);
    let mut items = Vec::new();
    for _ in 0..u32::decode(&mut reader)? {
        items.push(item(&mut reader)?);
    }
    reader.finish()?;
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;

    #[test]
    fn entries_come_back_and_damage_is_noticed() {
        let entries = vec![vec![1, 2], vec![], vec![3; 100]];
        let body = encode_entries(&entries);
        assert_eq!(decode_entries(&body, crc32c(&body)), Ok(entries));
        let indexed = vec![(Index(4), vec![1]), (Index(9), vec![])];
        let body = encode_indexed(&indexed);
        assert_eq!(decode_indexed(&body, crc32c(&body)), Ok(indexed));
        assert_eq!(decode_indexed(&body, 0).unwrap_err().kind, Kind::Retry);
        for cut in 0..body.len() {
            assert!(decode_indexed(&body[..cut], crc32c(&body[..cut])).is_err());
        }
    }
}
