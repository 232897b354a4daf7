//! Messages of who follows a table: which of its records are others for readers than before.

use super::{put_value, value_of};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::codec_struct;

/// Steps of one tablet in one answer.
pub const CHANGES_MAX: usize = 1000;
/// For how long a node waits until there is something to answer.
pub const CHANGES_WAIT_MS_MAX: u32 = 10_000;

/// Asks what has shown in a table behind a place. The body of the answer has a list of [`TabletChanges`], one of each
/// tablet. `NotFound` where not all of that is known any more, or there is no such table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    pub table: String,
    /// Of each tablet, in order; empty to be told where they are now.
    pub from: Vec<ChangesAt>,
    /// With the records' values, as they were and as they are; else their keys alone.
    pub values: bool,
    /// Nothing is answered for so long while there is nothing to answer.
    pub wait_ms: u32,
}
codec_struct!(Changes { table, from, values, wait_ms });

/// A place behind what has shown in a tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesAt {
    /// CRC-32C of what the tablet was made as, and of its log's number.
    pub form: u32,
    /// Drawn when the node opens the tablet; within it a number says the place.
    pub life: u64,
    pub next: u64,
    /// What says it to another life: how far each stream showed.
    pub seen: Vec<ShownAt>,
}
codec_struct!(ChangesAt { form, life, next, seen });

/// How far a home stream showed, and a digest of all that it had shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownAt {
    pub stream: u8,
    pub epoch: u64,
    pub number: u64,
    pub digest: u64,
}
codec_struct!(ShownAt { stream, epoch, number, digest });

/// What has shown in a tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TabletChanges {
    /// The place behind it.
    pub at: ChangesAt,
    pub changes: Vec<RecordChange>,
}
codec_struct!(TabletChanges { at, changes });

/// A record that is another one for readers than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    pub key: Vec<u8>,
    /// Nothing where there was none, or values were not asked for.
    pub before: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
}

impl Encode for RecordChange {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        put_value(out, self.before.as_deref());
        put_value(out, self.after.as_deref());
    }
}

impl Decode for RecordChange {
    fn decode(reader: &mut Reader<'_>) -> Result<RecordChange, DecodeError> {
        Ok(RecordChange {
            key: reader.bytes()?.to_vec(),
            before: value_of(reader)?,
            after: value_of(reader)?,
        })
    }
}
