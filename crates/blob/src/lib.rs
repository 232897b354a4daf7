//! The blob face: buckets and keys over packed chunks. Objects are needles in chunks that belong to
//! this face alone; their names are a view of one log topic, kept in an ordered index on disk.
//! The index can be thrown away: it is folded again from the log, or from the needles. Never speaks
//! a protocol: S3 is the crate above. docs/blobs.md says what must hold.
#![forbid(unsafe_code)]

mod answer;
mod command;
mod housekeeping;
mod index;
mod list;
mod model;
mod names;
mod needle;
mod prober;
mod propose;
mod read;
mod rebuild;
mod rows;
mod seal;
mod service;
mod writer;

pub use answer::read_answer;
pub use command::{Command, Condition, Outcome, PartName, Refusal};
pub use housekeeping::Housekeeping;
pub use list::{ListQuery, Listing, UploadListing, VersionListing, VersionMarker};
pub use model::{
    AccessKey, Alternate, Bucket, ChunkUse, Document, Head, Lock, Object, ObjectExtent, Pair, Part,
    Upload, Versioning, version_name,
};
pub use names::Names;
pub use needle::Trailer;
pub use prober::{PROBE_MS, Prober};
pub use read::{ObjectReader, READ_BYTES};
pub use rebuild::{Rebuilt, Verified};
pub use seal::seal_log;
pub use service::{Answer, Blobs, BlobsOptions, Failure};
pub use writer::{BatchObject, NewAlternate, NewObject, Writer};

/// The topic of the names of shard 0's blobs.
pub use holdfast_cluster::BLOBS_TOPIC;
/// Bytes of one needle: larger objects are cut. Bounds what one upload keeps in memory.
pub const NEEDLE_DATA_BYTES: usize = 8 << 20;
/// Bytes of a key, as S3 has it.
pub const KEY_BYTES_MAX: usize = 1024;
/// Parts of one upload, as S3 has it.
pub const PARTS_MAX: u16 = 10_000;
/// Extents of one object: they are in one entry of the log.
pub const EXTENTS_MAX: usize = 40_000;
/// Bytes of one object: what its extents hold.
pub const OBJECT_BYTES_MAX: u64 = EXTENTS_MAX as u64 * NEEDLE_DATA_BYTES as u64;

const _: () = {
    use holdfast_base::limits::{ENTRY_BYTES_MAX, PACKED_BYTES_MAX};
    // An extent takes 20 bytes of an entry; the rest of an object's description fits beside them.
    assert!(EXTENTS_MAX * 20 + (128 << 10) < ENTRY_BYTES_MAX);
    // A needle's description, with all extents of its object, fits behind its data.
    assert!((NEEDLE_DATA_BYTES + ENTRY_BYTES_MAX) as u64 <= PACKED_BYTES_MAX);
};
