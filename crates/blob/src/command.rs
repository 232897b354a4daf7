//! What the entries of the blobs topic say, and what applying one answers. Every choice (version
//! numbers, times, places) is made before the append and is in the entry. docs/formats/blob.md.

use crate::model::{AccessKey, Alternate, Bucket, Head, Lock, Object, ObjectExtent, Part, Upload};
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::{ChunkId, Pointer};
use holdfast_base::{Error, Result, codec_enum, codec_struct};
use std::fmt;

/// The first byte of every command.
pub const COMMAND_VERSION: u8 = 3;
/// That of entries of builds that put commands into the log without an envelope.
pub const BARE_VERSION: u8 = 2;

/// What must hold of the current version for a write to be applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// There is one, with this ETag.
    pub if_match: Option<String>,
    /// There is none.
    pub if_absent: bool,
}
codec_struct!(Condition { if_match, if_absent });

/// A part as its uploader names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    pub number: u16,
    pub etag: String,
}
codec_struct!(PartName { number, etag });

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    CreateBucket {
        name: String,
        bucket: Bucket,
    },
    /// Refused while it has a version or an upload.
    DeleteBucket {
        name: String,
    },
    SetVersioning {
        name: String,
        versioning: u8,
    },
    /// Sets one of a bucket's documents; `None` removes it.
    SetDocument {
        name: String,
        document: String,
        text: Option<String>,
    },
    /// Names an object's bytes, which are durable. What `hold` holds and the object does not name
    /// is freed. Answers `Named`.
    Put {
        bucket: String,
        key: String,
        object: Object,
        condition: Condition,
        hold: u64,
    },
    /// Removes the current version, or puts a marker of number `version` over it. Answers
    /// `Deleted`.
    Delete {
        bucket: String,
        key: String,
        version: u64,
        now_ms: i64,
        condition: Condition,
    },
    /// Removes one version by its name. Answers `Deleted`.
    DeleteVersion {
        bucket: String,
        key: String,
        version: String,
        now_ms: i64,
        bypass: bool,
    },
    BeginUpload {
        bucket: String,
        key: String,
        id: u64,
        upload: Upload,
    },
    /// Adds or replaces a part.
    PutPart {
        bucket: String,
        key: String,
        id: u64,
        number: u16,
        part: Part,
        hold: u64,
    },
    /// Names the object that the listed parts make; other parts are freed. `manifest` describes it.
    /// Answers `Named`.
    CompleteUpload {
        bucket: String,
        key: String,
        id: u64,
        parts: Vec<PartName>,
        version: u64,
        now_ms: i64,
        etag: String,
        checksums: Vec<crate::model::Pair>,
        manifest: Option<ObjectExtent>,
        alternates: Vec<Alternate>,
        condition: Condition,
    },
    AbortUpload {
        bucket: String,
        key: String,
        id: u64,
    },
    /// Keeps durable needles of an object that is still being received.
    Hold {
        id: u64,
        now_ms: i64,
        extents: Vec<ObjectExtent>,
    },
    /// Frees what a hold keeps.
    ReleaseHold {
        id: u64,
    },
    /// Changes what is said of one version, without a new one.
    SetHead {
        bucket: String,
        key: String,
        version: String,
        head: Head,
    },
    SetLock {
        bucket: String,
        key: String,
        version: String,
        lock: Option<Lock>,
        hold: bool,
        now_ms: i64,
        bypass: bool,
    },
    /// Ends naming of objects in a sealed chunk.
    CloseChunk {
        chunk: ChunkId,
    },
    /// The chunk is gone.
    ForgetChunk {
        chunk: ChunkId,
    },
    SetAccessKey {
        name: String,
        key: Option<AccessKey>,
    },
}
codec_enum!(Command: "blob command" {
    1 => CreateBucket { name, bucket },
    2 => DeleteBucket { name },
    3 => SetVersioning { name, versioning },
    4 => SetDocument { name, document, text },
    5 => Put { bucket, key, object, condition, hold },
    6 => Delete { bucket, key, version, now_ms, condition },
    7 => DeleteVersion { bucket, key, version, now_ms, bypass },
    8 => BeginUpload { bucket, key, id, upload },
    9 => PutPart { bucket, key, id, number, part, hold },
    10 => CompleteUpload {
        bucket, key, id, parts, version, now_ms, etag, checksums, manifest,
        alternates, condition
    },
    11 => AbortUpload { bucket, key, id },
    12 => Hold { id, now_ms, extents },
    13 => ReleaseHold { id },
    14 => SetHead { bucket, key, version, head },
    15 => SetLock { bucket, key, version, lock, hold, now_ms, bypass },
    16 => CloseChunk { chunk },
    17 => ForgetChunk { chunk },
    18 => SetAccessKey { name, key },
});

/// The largest tag above.
const COMMAND_TAG_MAX: u8 = 18;
/// In front of a bare entry's command: the version, and a mark by which its proposer knew it.
const BARE_HEAD_BYTES: usize = 9;

impl Command {
    /// Whether it begins something that takes room, and frees none: what a full log refuses first.
    pub fn adds_names(&self) -> bool {
        use Command::*;
        matches!(self, CreateBucket { .. } | Put { .. } | BeginUpload { .. } | PutPart { .. })
    }

    /// What an envelope holds: version, then the command.
    pub fn to_command(&self) -> Vec<u8> {
        let mut out = vec![COMMAND_VERSION];
        self.encode(&mut out);
        out
    }

    /// A whole entry as builds before wrote it.
    pub fn to_bare(&self, mark: u64) -> Vec<u8> {
        let mut out = vec![BARE_VERSION];
        mark.encode(&mut out);
        self.encode(&mut out);
        out
    }

    /// For people: which command it is, and nothing of what it says.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        text[..end].to_owned()
    }

    /// The inverse of [`Command::to_bare`].
    pub fn from_bare(entry: &[u8]) -> Option<(u64, Command)> {
        let mark = entry.first_chunk::<BARE_HEAD_BYTES>().filter(|head| head[0] == BARE_VERSION)?;
        let mark = u64::decode(&mut Reader::new(&mark[1..])).ok()?;
        Some((mark, Command::from_command(entry).ok()?))
    }

    /// The inverse of [`Command::to_command`], and of [`Command::to_bare`] but for the mark.
    /// `Unsupported` for what this build does not know: the view must stop there. `Invalid` for bytes
    /// that no build writes.
    pub fn from_command(command: &[u8]) -> Result<Command> {
        let reading = |what: String| format!("read a command of blobs: {what}");
        let rest = match command.first() {
            Some(&COMMAND_VERSION) => command.get(1..),
            Some(&BARE_VERSION) => command.get(BARE_HEAD_BYTES..),
            Some(version) => {
                return Err(Error::unsupported(format!("command version {version} of blobs")));
            }
            None => None,
        };
        let rest = rest.ok_or_else(|| Error::invalid(reading("it is too short".into())))?;
        if let Some(tag) = rest.first().filter(|tag| !(1..=COMMAND_TAG_MAX).contains(*tag)) {
            return Err(Error::unsupported(format!("command {tag} of blobs")));
        }
        Command::from_bytes(rest).map_err(|e| Error::invalid(reading(e.to_string())))
    }
}

/// What an accepted command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Named(Box<Object>),
    /// `version`: the name of what was removed, or of the marker that was put; none for a key
    /// without versions.
    Deleted {
        version: Option<String>,
        marker: bool,
    },
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    NoSuchBucket,
    BucketExists,
    BucketNotEmpty,
    NoSuchKey,
    NoSuchVersion,
    NoSuchUpload,
    /// A part that was not uploaded, or is another one by now.
    InvalidPart(u16),
    PreconditionFailed,
    /// A version that is retained or held.
    Locked,
    NotLockable,
    /// Its chunk is compacted: the bytes have to be written again.
    ChunkClosed(ChunkId),
    /// A pointer that another object has.
    Taken(Pointer),
    Invalid(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoSuchBucket => f.write_str("there is no such bucket"),
            Refusal::BucketExists => f.write_str("the bucket exists"),
            Refusal::BucketNotEmpty => f.write_str("the bucket holds objects, versions or uploads"),
            Refusal::NoSuchKey => f.write_str("there is no such key"),
            Refusal::NoSuchVersion => f.write_str("there is no such version"),
            Refusal::NoSuchUpload => f.write_str("there is no such upload"),
            Refusal::InvalidPart(part) => write!(f, "part {part} is missing or another one"),
            Refusal::PreconditionFailed => f.write_str("the condition does not hold"),
            Refusal::Locked => f.write_str("the version is retained or held"),
            Refusal::NotLockable => f.write_str("the bucket was made without object lock"),
            Refusal::ChunkClosed(chunk) => {
                write!(f, "chunk `{chunk}` is being compacted: write the bytes again")
            }
            Refusal::Taken(pointer) => write!(f, "`{pointer}` is another object's"),
            Refusal::Invalid(what) => f.write_str(what),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let message = refusal.to_string();
        match refusal {
            Refusal::NoSuchBucket
            | Refusal::NoSuchKey
            | Refusal::NoSuchVersion
            | Refusal::NoSuchUpload => Error::not_found(message),
            Refusal::BucketExists => Error::exists(message),
            Refusal::ChunkClosed(_) | Refusal::Taken(_) => Error::retry(message),
            Refusal::Locked => Error::read_only(message),
            _ => Error::invalid(message),
        }
    }
}
