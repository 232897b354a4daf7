//! Messages of the file service.

use super::Call;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Pointer, Tier};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{codec_enum, codec_struct};

/// In place of a time: the node's own, at the moment of the request.
pub const MTIME_NOW: i64 = i64::MIN;

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub path: String,
    /// Follow a symbolic link in the last place; those in between are always followed.
    pub follow: bool,
}
codec_struct!(Lookup { path, follow });

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub id: FileId,
    pub kind: NodeKind,
    /// Permission bits.
    pub mode: u16,
    /// Nanoseconds since 1970-01-01 UTC, as the writer gave them.
    pub mtime_ns: i64,
    /// Bytes of data; entries of a container.
    pub size: u64,
    pub class: StorageClass,
    /// Where a symbolic link points; empty for everything else.
    pub target: String,
    pub metadata: Vec<u8>,
}
codec_struct!(FileInfo { id, kind, mode, mtime_ns, size, class, target, metadata });

/// Name to bytes in one round trip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    pub path: String,
    pub follow: bool,
    pub offset: u64,
    /// At most this many bytes; a file that is larger than one reply answers with its extents.
    pub bytes_max: u32,
    /// The client has mapped the region: say where the bytes lie instead of sending them.
    pub locate: bool,
}
codec_struct!(Get { path, follow, offset, bytes_max, locate });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReply {
    pub info: FileInfo,
    pub content: Content,
}
codec_struct!(GetReply { info, content });

/// What a get answers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The bytes are the frame's body; CRC32C of them all.
    Body { crc: u32 },
    /// The bytes lie in the mapped region; CRC32C of them all.
    Mapped { pieces: Vec<super::chunk::Piece>, crc: u32 },
    /// The file is in chunks: its first extents, and whether more follow.
    Chunks { extents: Vec<Extent>, more: bool },
}
codec_enum!(Content: "content" {
    1 => Body { crc },
    2 => Mapped { pieces, crc },
    3 => Chunks { extents, more },
});

/// Part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The first `bytes` of a raw chunk.
    Raw { chunk: ChunkId, generation: Generation, bytes: u64 },
    /// A packed object: the remainder of a large file.
    Packed { pointer: Pointer, bytes: u64 },
}
codec_enum!(Extent: "extent" { 1 => Raw { chunk, generation, bytes }, 2 => Packed { pointer, bytes } });

impl Extent {
    pub fn bytes(&self) -> u64 {
        match *self {
            Extent::Raw { bytes, .. } | Extent::Packed { bytes, .. } => bytes,
        }
    }
}

/// How a new node should look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    pub path: String,
    pub kind: NodeKind,
    pub mode: u16,
    /// Nanoseconds since 1970-01-01 UTC, or [`MTIME_NOW`].
    pub mtime_ns: i64,
    /// `None` inherits the directory's.
    pub class: Option<StorageClass>,
    /// An existing file of that name is replaced instead of refused.
    pub replace: bool,
    /// Missing directories above are made.
    pub parents: bool,
    pub metadata: Vec<u8>,
}
codec_struct!(NewNode { path, kind, mode, mtime_ns, class, replace, parents, metadata });

/// A whole small file: the body holds its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub call: Call,
    pub node: NewNode,
    /// CRC32C of the body.
    pub crc: u32,
}
codec_struct!(Put { call, node, crc });

/// Starts a large file, which nobody sees before its `CLOSE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    pub call: Call,
    pub node: NewNode,
}
codec_struct!(Begin { call, node });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub file: FileId,
    pub class: StorageClass,
}
codec_struct!(Begun { file, class });

/// Asks for the next chunk of an unclosed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocate {
    pub call: Call,
    pub file: FileId,
}
codec_struct!(Allocate { call, file });

/// A chunk to append to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub chunk: ChunkId,
    pub tier: Tier,
    pub durability: Durability,
    pub capacity: u64,
}
codec_struct!(Grant { chunk, tier, durability, capacity });

/// The end of a large file, packed with other small objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remainder {
    pub file: FileId,
    pub crc: u32,
}
codec_struct!(Remainder { file, crc });

/// Names an unclosed file: seals its chunks at these lengths and shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    pub call: Call,
    pub file: FileId,
    pub node: NewNode,
    pub extents: Vec<Extent>,
}
codec_struct!(Close { call, file, node, extents });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub path: String,
    /// Names after this one; empty for the first page.
    pub after: String,
    pub entries_max: u32,
}
codec_struct!(List { path, after, entries_max });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Sorted by name.
    pub entries: Vec<Named>,
    pub more: bool,
}
codec_struct!(Page { entries, more });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub info: FileInfo,
}
codec_struct!(Named { name, info });

/// A change of names or attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub call: Call,
    pub action: Action,
}
codec_struct!(Change { call, action });

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A directory, multifile or table.
    Make {
        node: NewNode,
    },
    Symlink {
        path: String,
        target: String,
        mtime_ns: i64,
    },
    /// Atomic, of directories too.
    Rename {
        from: String,
        to: String,
        replace: bool,
    },
    Delete {
        path: String,
        recursive: bool,
    },
    SetAttributes {
        path: String,
        mode: Option<u16>,
        mtime_ns: Option<i64>,
        metadata: Option<Vec<u8>>,
    },
    SetClass {
        path: String,
        class: StorageClass,
    },
    /// Forgets an unclosed file.
    Abandon {
        file: FileId,
    },
    /// Names an unclosed file with everything that was acknowledged.
    Salvage {
        file: FileId,
        path: String,
    },
    /// Seals a chunk of an unclosed file at what its writer saw acknowledged.
    Seal {
        file: FileId,
        chunk: ChunkId,
        acknowledged: u64,
    },
}
codec_enum!(Action: "action" {
    1 => Make { node },
    2 => Symlink { path, target, mtime_ns },
    3 => Rename { from, to, replace },
    4 => Delete { path, recursive },
    5 => SetAttributes { path, mode, mtime_ns, metadata },
    6 => SetClass { path, class },
    7 => Abandon { file },
    8 => Salvage { file, path },
    9 => Seal { file, chunk, acknowledged },
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
}
codec_struct!(Usage { files, directories, bytes });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentsOf {
    pub file: FileId,
    /// Number of the first extent wanted.
    pub from: u32,
}
codec_struct!(ExtentsOf { file, from });

/// A file that was begun and not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclosed {
    pub file: FileId,
    pub path: String,
    pub bytes: u64,
}
codec_struct!(Unclosed { file, path, bytes });
