//! What the index keeps: buckets, objects, uploads, access keys, and how much of each chunk is in
//! use. Plain data and their bytes; docs/formats/blob.md.

use holdfast_base::codec_struct;
use holdfast_base::ids::Pointer;
use std::fmt::Write as _;

/// A name and its value: a header, a tag, an entry of user metadata, a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub name: String,
    pub value: String,
}
codec_struct!(Pair { name, value });

impl Pair {
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Pair {
        Pair { name: name.into(), value: value.into() }
    }
}

/// Part of an object: the first `bytes` of a needle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectExtent {
    pub pointer: Pointer,
    pub bytes: u32,
}
codec_struct!(ObjectExtent { pointer, bytes });

/// A smaller picture of a photo: a needle of its own, found by the longest side that was asked for
/// (Haystack's alternate key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Longest side asked for, in pixels.
    pub size: u32,
    /// In pixels; never more than the photo has.
    pub width: u32,
    pub height: u32,
    pub content_type: String,
    /// Without quotes.
    pub etag: String,
    pub extent: ObjectExtent,
}
codec_struct!(Alternate { size, width, height, content_type, etag, extent });

/// What a writer says of an object beside its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub content_type: String,
    /// Cache-Control and the like, by their lower-case names.
    pub headers: Vec<Pair>,
    /// User metadata.
    pub metadata: Vec<Pair>,
    pub tags: Vec<Pair>,
    /// Of the whole object, by S3's lower-case name of the algorithm; base64.
    pub checksums: Vec<Pair>,
    /// Canned ACL; empty for `private`.
    pub acl: String,
}
codec_struct!(Head { content_type, headers, metadata, tags, checksums, acl });

/// Until when a version may not be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pub until_ms: i64,
    /// Nobody may lift it (`COMPLIANCE`), or who asks for it by name (`GOVERNANCE`).
    pub compliance: bool,
}
codec_struct!(Lock { until_ms, compliance });

/// One version of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Drawn by the writer; later versions have larger numbers, as far as clocks agree.
    pub version: u64,
    /// Written while versioning was not on: the version that is called `null`.
    pub null: bool,
    /// Says that the key is deleted; there are no bytes.
    pub marker: bool,
    pub modified_ms: i64,
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    pub head: Head,
    /// Bytes of each part of a multipart upload.
    pub parts: Vec<u64>,
    pub extents: Vec<ObjectExtent>,
    /// The needle that describes an object whose parts were written one by one.
    pub manifest: Option<ObjectExtent>,
    /// Of a photo, in the order of the bucket's sizes.
    pub alternates: Vec<Alternate>,
    /// The upload that it was, so that completing it twice gives one answer; else 0.
    pub upload: u64,
    pub lock: Option<Lock>,
    pub hold: bool,
}
codec_struct!(Object {
    version,
    null,
    marker,
    modified_ms,
    size,
    etag,
    head,
    parts,
    extents,
    manifest,
    alternates,
    upload,
    lock,
    hold
});

impl Object {
    /// Everything of it that takes a slot.
    pub(crate) fn needles(&self) -> impl Iterator<Item = &ObjectExtent> {
        let alternates = self.alternates.iter().map(|alternate| &alternate.extent);
        self.extents.iter().chain(&self.manifest).chain(alternates)
    }
}

/// The name of a version, as clients see it.
pub fn version_name(object: &Object) -> String {
    if object.null {
        return "null".to_owned();
    }
    let mut name = String::with_capacity(16);
    let _ = write!(name, "{:016x}", object.version);
    name
}

/// How a bucket keeps versions. The number is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Versioning {
    /// Never was on.
    #[default]
    Off = 0,
    Enabled = 1,
    Suspended = 2,
}

impl Versioning {
    pub fn from_code(code: u8) -> Versioning {
        match code {
            1 => Versioning::Enabled,
            2 => Versioning::Suspended,
            _ => Versioning::Off,
        }
    }
}

/// One of a bucket's settings, by S3's name of it (`policy`, `cors`, ...), as its face wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub name: String,
    pub text: String,
}
codec_struct!(Document { name, text });

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub created_ms: i64,
    /// The user who made it.
    pub owner: String,
    /// A [`Versioning`].
    pub versioning: u8,
    /// Versions can be locked; decided when it is made.
    pub lockable: bool,
    pub documents: Vec<Document>,
}
codec_struct!(Bucket { created_ms, owner, versioning, lockable, documents });

impl Bucket {
    pub fn versioning(&self) -> Versioning {
        Versioning::from_code(self.versioning)
    }

    pub fn document(&self, name: &str) -> Option<&str> {
        self.documents.iter().find(|d| d.name == name).map(|d| d.text.as_str())
    }
}

/// An upload in parts that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    pub begun_ms: i64,
    pub head: Head,
    pub lock: Option<Lock>,
    pub hold: bool,
    /// S3's lower-case name of the checksum that the parts carry; empty for none.
    pub algorithm: String,
    /// The whole object's checksum is asked for, not one of the parts' checksums.
    pub full_object: bool,
}
codec_struct!(Upload { begun_ms, head, lock, hold, algorithm, full_object });

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub modified_ms: i64,
    pub size: u64,
    pub etag: String,
    pub checksums: Vec<Pair>,
    pub extents: Vec<ObjectExtent>,
}
codec_struct!(Part { modified_ms, size, etag, checksums, extents });

/// Needles that are durable and not named yet: of an object that is still being received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    pub begun_ms: i64,
    pub extents: Vec<ObjectExtent>,
}
codec_struct!(Hold { begun_ms, extents });

/// What lives in a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkUse {
    pub live: u32,
    pub live_bytes: u64,
    /// No object is named in it any more.
    pub closed: bool,
}
codec_struct!(ChunkUse { live, live_bytes, closed });

/// Who may sign requests, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessKey {
    pub secret: String,
    pub user: String,
    pub created_ms: i64,
    /// Everything; else what bucket policies and ownership allow.
    pub admin: bool,
    /// May read only.
    pub read_only: bool,
    /// Only these buckets; empty for all that the rest allows.
    pub buckets: Vec<String>,
}
codec_struct!(AccessKey { secret, user, created_ms, admin, read_only, buckets });
