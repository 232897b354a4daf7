//! Messages of the log service.

pub mod writers;

use holdfast_base::ids::Index;
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{Error, Indices, Reason, Result, codec_struct};

/// Bytes of the entries of one append together, four more counted for each: it is a frame's metadata
/// with the topic's name, and each of them an answer's with its index.
pub const APPEND_BYTES_MAX: usize = FRAME_META_BYTES_MAX as usize - 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub topic: String,
    /// False asks for `ordered`: acknowledged before the sync.
    pub synced: bool,
    pub entries: Vec<Entry>,
}
codec_struct!(Append { topic, synced, entries });

impl Append {
    /// `Invalid` if there are none, if they are too large to go together, or one to be read again.
    pub fn check(&self) -> Result<()> {
        let bytes: usize = self.entries.iter().map(|entry| 4 + entry.bytes.len()).sum();
        match bytes {
            0 => Err(Error::invalid(format!(
                "append to topic `{}`: no entries: pass at least one",
                self.topic.escape_debug()
            ))),
            1..=APPEND_BYTES_MAX => Ok(()),
            _ => Err(Error::invalid(format!(
                "append to topic `{}`: {} entries of {bytes} bytes are too large for one append, which takes {APPEND_BYTES_MAX}, four counted for each entry: send less at a time",
                self.topic.escape_debug(),
                self.entries.len(),
            ))
            .because(Reason::TooLarge)),
        }
    }
}

/// One entry's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub bytes: Vec<u8>,
}
codec_struct!(Entry { bytes });

/// Where the appended entries went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub first: Index,
    /// The index of each, where they do not follow each other; else none.
    pub apart: Vec<Index>,
}
codec_struct!(Appended { first, apart });

impl Appended {
    pub fn of(indices: &Indices) -> Appended {
        Appended { first: indices.first(), apart: indices.apart().to_vec() }
    }

    /// Of so many entries; `Bug` for an answer that fits no such append.
    pub fn indices(self, count: usize) -> Result<Indices> {
        if self.apart.is_empty() {
            return Ok(Indices::run(self.first, count));
        }
        let fits = self.apart.len() == count && self.apart.first() == Some(&self.first);
        Indices::of(self.apart).filter(|_| fits).ok_or_else(|| {
            Error::bug(format!("append to the log: the answer is not of {count} entries"))
        })
    }
}

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

/// Makes a topic, or changes how long its entries are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub topic: String,
    /// Makes the topic; refused where there is one. Else there must be one.
    pub create: bool,
    /// Nothing leaves it as it is; 0 stands for no limit.
    pub retain_bytes: Option<u64>,
    pub retain_ms: Option<u64>,
}
codec_struct!(Set { topic, create, retain_bytes, retain_ms });

/// How long a topic's entries are kept: 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub bytes: u64,
    pub age_ms: u64,
}
codec_struct!(Retention { bytes, age_ms });

/// Asks for a part of a topic to be read and verified where it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verify {
    pub topic: String,
    pub from: Index,
}
codec_struct!(Verify { topic, from });

/// The entries that were verified; there are more from `next` on, unless none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    pub next: Index,
    pub entries: u64,
    pub bytes: u64,
}
codec_struct!(Verified { next, entries, bytes });
