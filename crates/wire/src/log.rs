//! Messages of the log service.

use holdfast_base::codec_struct;
use holdfast_base::ids::Index;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub topic: String,
    /// False asks for `ordered`: acknowledged before the sync.
    pub synced: bool,
    pub entries: Vec<Entry>,
}
codec_struct!(Append { topic, synced, entries });

/// One entry's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub bytes: Vec<u8>,
}
codec_struct!(Entry { bytes });

/// Where the first of the appended entries went; the others follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub first: Index,
}
codec_struct!(Appended { first });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub topic: String,
    pub from: Index,
    pub entries_max: u32,
    /// When there is no such entry yet, answer once there is (or at the request's deadline).
    pub wait: bool,
}
codec_struct!(Read { topic, from, entries_max, wait });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    pub entries: Vec<Indexed>,
}
codec_struct!(Entries { entries });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    pub index: Index,
    pub bytes: Vec<u8>,
}
codec_struct!(Indexed { index, bytes });

/// Forgets every entry before an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    pub topic: String,
    pub before: Index,
}
codec_struct!(Trim { topic, before });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub topic: String,
    /// The oldest entry that can be read.
    pub first: Index,
    /// The index that the next entry gets.
    pub next: Index,
    /// Entries up to and including this one are synced.
    pub durable: Index,
    pub bytes: u64,
    pub segments: u32,
}
codec_struct!(Info { topic, first, next, durable, bytes, segments });
