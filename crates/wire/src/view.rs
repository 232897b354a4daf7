//! Messages of views of items, and of rides.

use crate::Call;
use crate::slab::{Hashed, Range, Sums};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::{Error, codec_enum, codec_struct};
use holdfast_env::planted;

/// Keys and values of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Which part of a key says where it lies: keys that agree in it lie side by side.
    pub hashed: Hashed,
    /// Values are JSON; else they are bytes.
    pub json: bool,
}
codec_struct!(Collection { name, hashed, json });

impl Encode for Hashed {
    fn encode(&self, out: &mut Vec<u8>) {
        let (tag, number) = match self {
            Hashed::All => (1u8, 0u16),
            Hashed::Bytes(bytes) => (2, *bytes),
            Hashed::Until(byte) => (3, u16::from(*byte)),
        };
        tag.encode(out);
        number.encode(out);
    }
}

impl Decode for Hashed {
    fn decode(reader: &mut Reader<'_>) -> Result<Hashed, DecodeError> {
        let (tag, number) = (u8::decode(reader)?, u16::decode(reader)?);
        let hashed = match (tag, u8::try_from(number)) {
            (1, Ok(0)) => Hashed::All,
            (2, _) => Hashed::Bytes(number),
            (3, Ok(byte)) => Hashed::Until(byte),
            _ => return Err(DecodeError::BadValue("rule of a hash")),
        };
        Ok(hashed)
    }
}

/// Makes a collection, and the topic if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Make {
    pub topic: String,
    pub collection: Collection,
}
codec_struct!(Make { topic, collection });

/// Changes keys; which and how is in the body, as in the topic's entries: a count (u32), then of
/// each the collection's number (u16), the key (bytes), and the value behind a 1 or a 0 where the
/// key is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub topic: String,
    pub call: Call,
}
codec_struct!(Change { topic, call });

/// Gives up versions that are older than those of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    pub topic: String,
    pub call: Call,
    pub index: Index,
}
codec_struct!(Horizon { topic, call, index });

/// Where the horizon was moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Of the entry that did.
    pub index: Index,
    /// Where it is now: not where it was to be moved, if rides are in front of that.
    pub horizon: Index,
}
codec_struct!(Moved { index, horizon });

/// Asks for an image of every disk view of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub topic: String,
    pub call: Call,
}
codec_struct!(Mark { topic, call });

/// Where a change has its place in the order: who reads there or later sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub index: Index,
}
codec_struct!(Changed { index });

/// What is known of a topic as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Numbered from 1.
    pub collections: Vec<Collection>,
    /// Below it nothing can be read.
    pub horizon: Index,
    /// The last entry that the node has applied.
    pub applied: Index,
}
codec_struct!(Catalog { collections, horizon, applied });

/// What a view keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// Every version of every key, on disk.
    Disk {},
    /// The newest values, in memory.
    Memory {},
    /// Which keys of a collection have which value in a field of theirs.
    Index { collection: String, field: String },
}
codec_enum!(ViewKind: "kind of view" { 1 => Disk {}, 2 => Memory {}, 3 => Index { collection, field } });

/// A view of a part of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewName {
    pub topic: String,
    pub kind: ViewKind,
    /// Part `part` of `of`, from 0 on; an index is parted by value.
    pub part: u32,
    pub of: u32,
}
codec_struct!(ViewName { topic, kind, part, of });

/// How a view is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewStatus {
    pub view: ViewName,
    /// The last entry that it has applied, and the last one that its node knows of.
    pub applied: Index,
    pub last: Index,
    /// Riders that it has.
    pub riders: u32,
    /// Why it does nothing any more; empty while it does.
    pub stopped: String,
    /// What it does before it runs; empty once it does.
    pub begins: String,
    /// What it is ridden from, and what views begin with: the oldest first.
    pub images: Vec<Image>,
    /// How long ago it had all that the log had then, as its node was told; none before it first had.
    pub level_ms: Option<u64>,
}
codec_struct!(ViewStatus { view, applied, last, riders, stopped, begins, images, level_ms });

/// A disk view as it was behind one entry, whole and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    pub index: Index,
    pub bytes: u64,
}
codec_struct!(Image { index, bytes });

/// A key of a collection, by the collection's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub collection: u16,
    pub key: Vec<u8>,
}
codec_struct!(Key { collection, key });

/// Reads keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    pub topic: String,
    /// The view has to have applied this, or comes to it first.
    pub reached: Index,
    /// As of this index; none for the latest.
    pub at: Option<Index>,
    pub keys: Vec<Key>,
}
codec_struct!(Get { topic, reached, at, keys });

/// A key's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub index: Index,
    pub value: Vec<u8>,
}
codec_struct!(Found { index, value });

/// One for each key that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub applied: Index,
    pub found: Vec<Option<Found>>,
}
codec_struct!(Got { applied, found });

/// Reads keys that begin alike, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    pub topic: String,
    pub reached: Index,
    pub at: Option<Index>,
    pub collection: u16,
    /// Long enough that all such keys have one hash.
    pub prefix: Vec<u8>,
    pub after: Option<Vec<u8>>,
    pub keys_max: u32,
}
codec_struct!(Scan { topic, reached, at, collection, prefix, after, keys_max });

/// One key with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Vec<u8>,
    pub index: Index,
    pub value: Vec<u8>,
}
codec_struct!(Row { key, index, value });

/// Part of a scan's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub applied: Index,
    pub rows: Vec<Row>,
    /// There are more behind the last one.
    pub more: bool,
}
codec_struct!(Rows { applied, rows, more });

/// Finds keys by a value that a field of theirs has now, in an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Find {
    pub topic: String,
    /// The index has to have applied this, or comes to it first.
    pub reached: Index,
    /// The collection's name, and the field's: which index.
    pub collection: String,
    pub field: String,
    /// As [`crate::slab::values`] has it.
    pub value: Vec<u8>,
    pub after: Option<Vec<u8>>,
    pub keys_max: u32,
}
codec_struct!(Find { topic, reached, collection, field, value, after, keys_max });

/// A key, and the entry that gave it its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Having {
    pub key: Vec<u8>,
    pub index: Index,
}
codec_struct!(Having { key, index });

/// Part of what was found, in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Havings {
    pub applied: Index,
    pub keys: Vec<Having>,
    /// There are more behind the last one.
    pub more: bool,
}
codec_struct!(Havings { applied, keys, more });

/// Sums up the items of a disk view or one in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    pub view: ViewName,
    /// Hashes from this one on, and below that one, which is up to 2^32.
    pub low: u64,
    pub high: u64,
    /// The view has to have applied this, or comes to it first.
    pub reached: Index,
    /// As of this index; none for the latest, which is all that a view in memory has.
    pub at: Option<Index>,
}
codec_struct!(Sum { view, low, high, reached, at });

/// What a view holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summed {
    /// As of this index.
    pub at: Index,
    /// Below it the view shows no version.
    pub horizon: Index,
    /// Keys that have a value.
    pub keys: u64,
    /// Of a view in memory, those of all items are those of the newest.
    pub sums: Sums,
}
codec_struct!(Summed { at, horizon, keys, sums });

/// Boards a disk view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    pub view: ViewName,
    /// Hashes from this one on, and below that one, which is up to 2^32.
    pub low: u64,
    pub high: u64,
    /// None for all of them.
    pub collections: Option<Vec<u16>>,
    pub keys_only: bool,
    /// Every version down to the horizon, with deletions; else the newest values.
    pub versions: bool,
    /// Of those, what this entry or a later one has made. With `versions` all changes from there on:
    /// refused where some of them were given up, as of deletions up to the horizon nothing is left.
    pub since: Index,
    /// And nothing of this entry or of later ones; none for no end.
    pub below: Option<Index>,
    /// Of values, which are JSON, an object of these fields alone; none for values as they are.
    pub fields: Option<Vec<String>>,
    /// Not as of an earlier entry.
    pub reached: Index,
    /// With a pass over the rows of its own.
    pub dedicated: bool,
    /// As of this entry, of which there is an image; else as of whichever costs least.
    pub at: Option<Index>,
    /// Where an earlier ride of that image ended, at whatever server: with the item behind this one.
    pub behind: Option<Place>,
}
impl Board {
    /// The newest values of all collections, of keys with these hashes: for whoever says what else is asked.
    pub fn of(view: ViewName, range: Range) -> Board {
        Board {
            view,
            low: range.low(),
            high: range.high(),
            collections: None,
            keys_only: false,
            versions: false,
            since: Index(0),
            below: None,
            fields: None,
            reached: Index(0),
            dedicated: false,
            at: None,
            behind: None,
        }
    }
}
codec_struct!(Board {
    view,
    low,
    high,
    collections,
    keys_only,
    versions,
    since,
    below,
    fields,
    reached,
    dedicated,
    at,
    behind
});

/// An item's place in the order of items.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub hash: u32,
    pub collection: u16,
    pub key: Vec<u8>,
    pub index: Index,
}
codec_struct!(Place { hash, collection, key, index });

/// A ride that has begun. The body has what a fold needs besides items, to go on from there: the
/// fold's front, and the catalog behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boarded {
    /// To be named with each request for more.
    pub ride: u64,
    /// What can be asked for side by side.
    pub heads: u32,
    /// As of which entry: its index, its CRC32C, and the fold's digest up to it.
    pub index: Index,
    pub entry_crc: u32,
    pub digest: u64,
    /// Versions that are older than those of this entry are not there.
    pub horizon: Index,
    /// CRC32C of the body; nothing from a node of a build that did not say it.
    pub front_crc: Option<u32>,
}

impl Encode for Boarded {
    fn encode(&self, out: &mut Vec<u8>) {
        let Boarded { ride, heads, index, entry_crc, digest, horizon, front_crc } = self;
        ride.encode(out);
        heads.encode(out);
        index.encode(out);
        entry_crc.encode(out);
        digest.encode(out);
        horizon.encode(out);
        front_crc.iter().for_each(|crc| crc.encode(out));
    }
}

impl Decode for Boarded {
    fn decode(reader: &mut Reader<'_>) -> Result<Boarded, DecodeError> {
        Ok(Boarded {
            ride: u64::decode(reader)?,
            heads: u32::decode(reader)?,
            index: Index::decode(reader)?,
            entry_crc: u32::decode(reader)?,
            digest: u64::decode(reader)?,
            horizon: Index::decode(reader)?,
            front_crc: match reader.remaining() {
                0 => None,
                _ => Some(u32::decode(reader)?),
            },
        })
    }
}

impl Boarded {
    /// `Corrupt` where the body is not as it was sent. Nothing else covers it, and a fold that goes on behind a ride
    /// takes its sessions and the catalog from it.
    pub fn check_front(&self, front: &[u8]) -> holdfast_base::Result<()> {
        match self.front_crc.is_none_or(|crc| crc == crc32c(front)) || planted!("wire.any-front") {
            true => Ok(()),
            false => Err(Error::corrupt(
                "begin a ride: the catalog that came is not the one that was sent, by its checksum: ride \
                 again, or at another node",
            )),
        }
    }
}

/// Tells who has an image of this entry that it is not what it says of itself: a slab that came of it failed its
/// checksum, or its items have other sums. Who is told looks by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    pub view: ViewName,
    pub index: Index,
}
codec_struct!(Doubt { view, index });

/// Asks for the next slab of a ride's head. Its header is the answer's meta and its columns are the
/// body; the answer has no meta when the ride is over, and as its body [`Ended`], or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    pub ride: u64,
    pub head: u32,
}
codec_struct!(Next { ride, head });

/// The end of a ride, where its node has a whole image of the entry that the ride was as of: what that says
/// of its items, all that the view holds, by sub-range of the hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub sums: Sums,
}

/// With a CRC32C behind it, as no meta covers it.
impl Encode for Ended {
    fn encode(&self, out: &mut Vec<u8>) {
        let sums = self.sums.to_bytes();
        out.extend_from_slice(&sums);
        crc32c(&sums).encode(out);
    }
}

impl Decode for Ended {
    fn decode(reader: &mut Reader<'_>) -> Result<Ended, DecodeError> {
        let sums = Sums::decode(reader)?;
        match u32::decode(reader)? == crc32c(&sums.to_bytes()) {
            true => Ok(Ended { sums }),
            false => Err(DecodeError::BadValue("checksum of sums")),
        }
    }
}
