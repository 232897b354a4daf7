//! What the namespace topic's entries say, and what applying one answers.
//! An entry is a version byte, a tag byte and the fields: docs/formats/namespace.md. Every choice
//! (time, placement, cookies) is in the entry; the fold makes none.

use crate::borders::{Borders, DirAttributes};
use crate::chunks::Debt;
use crate::moves::Stamp;
use crate::names::{Changed, PartNode, Reach};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{
    ChunkId, Durability, FileId, Generation, Index, NodeId, Pointer, StoreId, Tier,
};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Result, codec_enum, codec_struct};

/// The first byte of every entry of a namespace topic.
pub const COMMAND_VERSION: u8 = 1;

/// User metadata of one node.
pub const METADATA_BYTES_MAX: usize = 64 << 10;

/// Owner of the packed chunks that hold blobs: their names are in the blob face's view, which says
/// what lives in them. No file ever has this number.
pub const BLOBS: FileId = FileId(u64::MAX);

/// Replicas of one chunk.
pub const REPLICAS_MAX: usize = 16;

macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident : $what:literal { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),* }

        impl $name {
            pub fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)*
                    _ => None,
                }
            }

            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text),*
                }
            }
        }

        impl holdfast_base::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
        }

        impl holdfast_base::codec::Decode for $name {
            fn decode(
                reader: &mut holdfast_base::codec::Reader<'_>,
            ) -> Result<$name, holdfast_base::codec::DecodeError> {
                let code = <u8 as holdfast_base::codec::Decode>::decode(reader)?;
                $name::from_code(code).ok_or(holdfast_base::codec::DecodeError::BadValue($what))
            }
        }
    };
}
pub(crate) use byte_enum;

byte_enum! {
    ChunkKind: "chunk kind" {
        /// One owner, read by byte offset.
        Raw = 1 "raw",
        /// Many objects of many owners, read by slot.
        Packed = 2 "packed",
    }
}

/// Where a node's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Nowhere: there are none.
    Inline {},
    /// One object of a packed chunk.
    Packed { pointer: Pointer },
    /// A list, given by `Namespace::extents`; never in a `Put`.
    Extents {},
}
codec_enum!(Location: "location" {
    1 => Inline {},
    2 => Packed { pointer },
    3 => Extents {},
});

/// The first `length` bytes of a raw chunk: part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawExtent {
    pub chunk: ChunkId,
    pub length: u64,
}
codec_struct!(RawExtent { chunk, length });

/// The last bytes of a large file, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder {
    pub pointer: Pointer,
    pub length: u64,
}
codec_struct!(Remainder { pointer, length });

/// One change of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes a directory, table or multifile. With `parents`, missing directories above are made
    /// too and an existing one of the same kind is no error. Answers `File`.
    MakeDir {
        path: String,
        kind: NodeKind,
        mode: u16,
        mtime: i64,
        class: Option<StorageClass>,
        parents: bool,
    },
    /// Names a small file's bytes; visible at once. A `KeyValue` replaces without being asked.
    /// Answers `File`.
    Put {
        path: String,
        kind: NodeKind,
        mode: u16,
        mtime: i64,
        size: u64,
        crc: u32,
        class: Option<StorageClass>,
        location: Location,
        replace: bool,
        parents: bool,
        metadata: Vec<u8>,
    },
    /// Answers `File`.
    Symlink {
        path: String,
        target: String,
        mtime: i64,
    },
    /// Starts a large file that nobody sees until its `Close`; `path` is for reports, and names
    /// the directory whose class is inherited. Answers `File`.
    Begin {
        path: String,
        class: Option<StorageClass>,
        mode: u16,
        mtime: i64,
    },
    /// As `AllocateCopies`, with as many copies wanted as replicas are named.
    AllocateChunk {
        kind: ChunkKind,
        owner: FileId,
        node: NodeId,
        replicas: Vec<StoreId>,
        tier: Tier,
        durability: Durability,
    },
    /// Names an unclosed file. Its extents' chunks are sealed before; its other chunks are freed.
    /// In a table it becomes a key-value. Answers `File`.
    Close {
        file: FileId,
        path: String,
        size: u64,
        crc: Option<u32>,
        extents: Vec<RawExtent>,
        remainder: Option<Remainder>,
        mode: u16,
        mtime: i64,
        replace: bool,
        metadata: Vec<u8>,
    },
    /// Frees an unclosed file and its chunks.
    Abandon {
        file: FileId,
    },
    /// Names what was found of an unclosed file whose writer is gone. Answers `File`.
    Salvage {
        file: FileId,
        path: String,
        extents: Vec<RawExtent>,
    },
    /// Fixes a chunk's length and replicas. The first one decides, later ones are told what it
    /// decided. It may name fewer replicas than were allocated: the others do not count any more,
    /// and may be unlinked once the chunk has its copies. Answers `Sealed`.
    SealChunk {
        chunk: ChunkId,
        length: u64,
        replicas: Vec<StoreId>,
    },
    /// Moves a node and all below it. With `replace`, a file takes a file's name and a directory
    /// an empty directory's.
    Rename {
        from: String,
        to: String,
        replace: bool,
    },
    /// With `recursive`, a whole subtree leaves in this one entry; `Reclaim` frees it later.
    Delete {
        path: String,
        recursive: bool,
    },
    /// Frees up to `budget` nodes of deleted subtrees. Answers `Progress`.
    Reclaim {
        budget: u32,
    },
    SetAttributes {
        path: String,
        mode: Option<u16>,
        mtime: Option<i64>,
        metadata: Option<Vec<u8>>,
    },
    /// Sets what later nodes of a directory inherit; existing ones keep theirs.
    SetClass {
        path: String,
        class: StorageClass,
    },
    /// Ends naming of a sealed packed chunk's objects: pointers to it are refused from here on.
    CloseChunk {
        chunk: ChunkId,
    },
    /// As `SwitchReplicas`, with every replica of the chunk.
    SwitchGeneration {
        chunk: ChunkId,
        generation: Generation,
        length: u64,
        digest: u64,
    },
    /// Lets one store remove one replica: of a doomed chunk, of a generation whose readers are
    /// done, or one that was dropped. The latter two wait until the chunk has its copies without
    /// it.
    Unlink {
        chunk: ChunkId,
        generation: Generation,
        store: StoreId,
    },
    /// Ends the grace of up to `budget` pointers, chunks and generations that were freed by
    /// entries before `before`; the proposer knows that their readers are done. Answers
    /// `Progress`.
    Release {
        before: Index,
        budget: u32,
    },
    /// Draws a chunk id. `owner` is the unclosed file of a raw chunk; of a packed one, whose writer
    /// is `node`, it is 0 or a face that keeps the chunk's names itself. With fewer `replicas` than `copies` it is repaired once it is sealed.
    /// Answers `Chunk`.
    AllocateCopies {
        kind: ChunkKind,
        owner: FileId,
        node: NodeId,
        replicas: Vec<StoreId>,
        copies: u8,
        tier: Tier,
        durability: Durability,
    },
    /// A store holds a verified replica of a sealed chunk's current generation: it counts from
    /// here on.
    AddReplica {
        chunk: ChunkId,
        generation: Generation,
        store: StoreId,
    },
    /// A replica of a sealed chunk's current generation does not count any more. The last one is
    /// dropped only where `lost` says that nothing is left; the chunk is then reported as lost.
    DropReplica {
        chunk: ChunkId,
        generation: Generation,
        store: StoreId,
        lost: bool,
    },
    /// As `Rewrite`, which builds before that one proposed: `replicas` have computed the next
    /// generation; the chunk's other replicas, whatever became of them, hold the old one alone.
    SwitchReplicas {
        chunk: ChunkId,
        generation: Generation,
        length: u64,
        digest: u64,
        replicas: Vec<StoreId>,
    },
    /// Wants at least so many copies of chunks that were made when fewer hosts were there; those
    /// that are deleted meanwhile are passed over.
    RaiseCopies {
        chunks: Vec<ChunkId>,
        copies: u8,
    },
    /// A face has no name left in a closed chunk of its own, and nobody reads it any more.
    FreeChunk {
        chunk: ChunkId,
    },
    /// Makes the generation that was begun last the current one of a closed chunk; where none was
    /// begun, as builds before `BeginRewrite` have it, the next one. `replicas` have computed it
    /// from generation `from`; refused while a replica counts that is neither among them nor in
    /// `without`, whose stores are lost. With `from` before the current one, of which nothing is
    /// left then, this is the way back.
    Rewrite {
        chunk: ChunkId,
        from: Generation,
        generation: Generation,
        digest: u64,
        replicas: Vec<StoreId>,
        without: Vec<StoreId>,
    },
    /// Stores hold a sealed chunk that this view never drew: makes it known, for names to be made
    /// again. Its id and all below it are taken from here on.
    AdoptChunk {
        chunk: ChunkId,
        kind: ChunkKind,
        owner: FileId,
        node: NodeId,
        generation: Generation,
        length: u64,
        replicas: Vec<StoreId>,
        tier: Tier,
    },
    /// One more shard, of this number, with a topic of its own. Shard 0's to say. Changes nothing where it was
    /// added before. Answers `Shard`.
    AddShard {
        shard: u16,
    },
    /// Gives an empty directory of the root away: to the shard `to`, or from there back to shard 0. From
    /// here on whoever had it refuses everything below it. Answers `Done`.
    Forward {
        dir: String,
        to: u16,
    },
    /// Takes a directory that was given away by the move of this number (the entry of shard 0's topic
    /// that began it), with what it had beside entries. Changes nothing where that was done, or is late.
    Own {
        dir: String,
        number: Index,
        attributes: DirAttributes,
    },
    /// A command about directories that were moved from shard to shard, each with the number of its last
    /// move, in the order in which the command names them: it is refused behind a later one.
    Behind {
        numbers: Vec<Index>,
        /// Its entry, whole.
        command: Vec<u8>,
    },
    /// Begins an attempt to make a packed chunk's next generation: closes the chunk, as
    /// `CloseChunk` does, and draws a number that no other attempt ever gets. A `Rewrite` of an
    /// attempt before is refused from here on. Answers `Begun`, or `Done` where nothing is alive.
    BeginRewrite {
        chunk: ChunkId,
    },
    /// A directory of the root is to go to the shard `to` with all that is in it: nothing in it changes from
    /// here on. With the shard's own number, it stays after all. Refused while files are written for it.
    Freeze {
        dir: String,
        to: u16,
    },
    /// The next part of a directory that was frozen elsewhere: kept aside. Changes nothing where that was
    /// done, or is late.
    Take {
        dir: String,
        stamp: Stamp,
        part: u32,
        nodes: Vec<PartNode>,
    },
    /// All of a frozen directory was taken, in so many parts: from here on it is the other shard's. Changes
    /// nothing where that was done.
    Depart {
        dir: String,
        freeze: Index,
        parts: u32,
    },
    /// Gives what was taken of a directory its name. Changes nothing where that was done, or is late.
    Arrive {
        dir: String,
        stamp: Stamp,
        parts: u32,
        attributes: DirAttributes,
    },
    /// What was taken of this freeze is worth nothing: it was taken back.
    Discard {
        dir: String,
        stamp: Stamp,
    },
    /// Frees up to `budget` names that another shard has now; their bytes are held for it. Answers
    /// `Progress`.
    Forget {
        budget: u32,
    },
    /// Nothing in shard `from`, nor anywhere else, names these bytes any more; the first is its debt of this
    /// number. Those that were heard of before are passed over.
    LetGo {
        from: u16,
        first: u64,
        debts: Vec<Debt>,
    },
    /// Shard `home` has heard of so many debts: they are paid.
    LetGone {
        home: u16,
        through: u64,
    },
    /// A directory of the root is to go to the shard `to` with all that is in it, and is copied there first:
    /// from here on what changes in it is noted. With the shard's own number, it stays after all. Refused
    /// while files are written for it.
    Copy {
        dir: String,
        to: u16,
    },
    /// The next step of a directory that is being copied: what has changed in it, up to its change `through`,
    /// and more of it, up to `reach`. Kept aside. Changes nothing where that was done, or is late.
    Step {
        dir: String,
        stamp: Stamp,
        step: u32,
        through: u64,
        changes: Vec<Changed>,
        reach: Reach,
    },
    /// The first `through` changes of a directory since that Copy are where it goes; with the largest number,
    /// what is there is worth nothing.
    Copied {
        dir: String,
        copy: Index,
        through: u64,
    },
    /// Nothing in a directory that was copied changes from here on, until it has gone; or, with `still` not
    /// set, it does again: where it goes has no room.
    Still {
        dir: String,
        copy: Index,
        still: bool,
    },
    /// All of a directory that is still was taken, in so many steps, with all of its changes: from here on it
    /// is the other shard's. Changes nothing where that was done.
    Go {
        dir: String,
        copy: Index,
        steps: u32,
        changes: u64,
    },
}
codec_enum!(Command: "command" {
    1 => MakeDir { path, kind, mode, mtime, class, parents },
    2 => Put {
        path, kind, mode, mtime, size, crc, class, location, replace, parents, metadata
    },
    3 => Symlink { path, target, mtime },
    4 => Begin { path, class, mode, mtime },
    5 => AllocateChunk { kind, owner, node, replicas, tier, durability },
    6 => Close { file, path, size, crc, extents, remainder, mode, mtime, replace, metadata },
    7 => Abandon { file },
    8 => Salvage { file, path, extents },
    9 => SealChunk { chunk, length, replicas },
    10 => Rename { from, to, replace },
    11 => Delete { path, recursive },
    12 => Reclaim { budget },
    13 => SetAttributes { path, mode, mtime, metadata },
    14 => SetClass { path, class },
    15 => CloseChunk { chunk },
    16 => SwitchGeneration { chunk, generation, length, digest },
    17 => Unlink { chunk, generation, store },
    18 => Release { before, budget },
    19 => AllocateCopies { kind, owner, node, replicas, copies, tier, durability },
    20 => AddReplica { chunk, generation, store },
    21 => DropReplica { chunk, generation, store, lost },
    22 => SwitchReplicas { chunk, generation, length, digest, replicas },
    23 => RaiseCopies { chunks, copies },
    24 => FreeChunk { chunk },
    25 => Rewrite { chunk, from, generation, digest, replicas, without },
    26 => AdoptChunk { chunk, kind, owner, node, generation, length, replicas, tier },
    27 => BeginRewrite { chunk },
    28 => AddShard { shard },
    29 => Forward { dir, to },
    30 => Own { dir, number, attributes },
    31 => Behind { numbers, command },
    32 => Freeze { dir, to },
    33 => Take { dir, stamp, part, nodes },
    34 => Depart { dir, freeze, parts },
    35 => Arrive { dir, stamp, parts, attributes },
    36 => Discard { dir, stamp },
    37 => Forget { budget },
    38 => LetGo { from, first, debts },
    39 => LetGone { home, through },
    40 => Copy { dir, to },
    41 => Step { dir, stamp, step, through, changes, reach },
    42 => Copied { dir, copy, through },
    43 => Still { dir, copy, still },
    44 => Go { dir, copy, steps, changes },
});

/// The largest tag above.
const COMMAND_TAG_MAX: u8 = 44;

/// What says which shard a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// Whoever keeps this path.
    Path(&'a str),
    /// That of the file's birth.
    File(FileId),
    /// That of the chunk's birth.
    Chunk(ChunkId),
    /// It says of none, and would be right in each: who gives it knows.
    Told {},
}

impl Command {
    /// Which shard it is for, as far as it says.
    pub fn subject(&self) -> Subject<'_> {
        use Command::*;
        match self {
            MakeDir { path, .. }
            | Put { path, .. }
            | Symlink { path, .. }
            | Begin { path, .. }
            | Rename { from: path, .. }
            | Delete { path, .. }
            | SetAttributes { path, .. }
            | SetClass { path, .. }
            | Forward { dir: path, .. }
            | Freeze { dir: path, .. }
            | Copy { dir: path, .. } => Subject::Path(path),
            Close { file, .. } | Abandon { file } | Salvage { file, .. } => Subject::File(*file),
            AllocateChunk { kind: ChunkKind::Raw, owner, .. }
            | AllocateCopies { kind: ChunkKind::Raw, owner, .. } => Subject::File(*owner),
            AllocateChunk { .. }
            | AllocateCopies { .. }
            | Reclaim { .. }
            | Release { .. }
            | AddShard { .. }
            | Own { .. }
            | Take { .. }
            | Depart { .. }
            | Arrive { .. }
            | Discard { .. }
            | Forget { .. }
            | LetGo { .. }
            | LetGone { .. }
            | Step { .. }
            | Copied { .. }
            | Still { .. }
            | Go { .. }
            | Behind { .. } => Subject::Told {},
            SealChunk { chunk, .. }
            | CloseChunk { chunk }
            | SwitchGeneration { chunk, .. }
            | SwitchReplicas { chunk, .. }
            | AddReplica { chunk, .. }
            | DropReplica { chunk, .. }
            | Unlink { chunk, .. }
            | FreeChunk { chunk }
            | Rewrite { chunk, .. }
            | AdoptChunk { chunk, .. }
            | BeginRewrite { chunk } => Subject::Chunk(*chunk),
            RaiseCopies { chunks, .. } => match chunks.first() {
                Some(chunk) => Subject::Chunk(*chunk),
                None => Subject::Told {},
            },
        }
    }

    /// The paths that it names, for the borders of shards.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        use Command::*;
        let (first, second) = match self {
            Rename { from, to, .. } => (Some(from), Some(to)),
            Close { path, .. } | Salvage { path, .. } => (Some(path), None),
            // Moves have numbers of their own.
            Forward { .. } | Freeze { .. } | Copy { .. } | Own { .. } => (None, None),
            _ => match self.subject() {
                Subject::Path(path) => return [Some(path), None].into_iter().flatten(),
                Subject::File(_) | Subject::Chunk(_) | Subject::Told {} => (None, None),
            },
        };
        [first.map(String::as_str), second.map(String::as_str)].into_iter().flatten()
    }

    /// Its entry, as it is proposed by whom this map has: of directories that were moved, it says so.
    pub fn to_entry_by(&self, map: &Borders) -> Vec<u8> {
        let entry = to_entry(self);
        let numbers: Vec<Index> = self.paths().map(|path| map.number_of(path)).collect();
        match numbers.iter().any(|number| number.0 != 0) {
            true => to_entry(&Command::Behind { numbers, command: entry }),
            false => entry,
        }
    }

    /// Whether it begins something that takes room, and frees none: what a full log refuses first.
    pub fn adds_names(&self) -> bool {
        use Command::*;
        matches!(self, MakeDir { .. } | Put { .. } | Symlink { .. } | Begin { .. })
    }

    /// The bytes of an entry.
    pub fn to_entry(&self) -> Vec<u8> {
        to_entry(self)
    }

    /// The inverse of [`Command::to_entry`]. `Unsupported` for a version or command that this
    /// build does not know: the view must stop there. `Invalid` for bytes that no build writes.
    pub fn from_entry(bytes: &[u8]) -> Result<Command> {
        from_entry(bytes, COMMAND_TAG_MAX, "namespace")
    }
}

pub(crate) fn to_entry(command: &impl Encode) -> Vec<u8> {
    let mut out = vec![COMMAND_VERSION];
    command.encode(&mut out);
    out
}

pub(crate) fn from_entry<T: Decode>(bytes: &[u8], tag_max: u8, topic: &str) -> Result<T> {
    let (version, rest) = bytes.split_first().unwrap_or((&COMMAND_VERSION, &[]));
    if *version != COMMAND_VERSION {
        return Err(Error::unsupported(format!(
            "read a {topic} entry: version {version} is not known, this build reads version \
             {COMMAND_VERSION}: use a newer build"
        )));
    }
    if let Some(tag) = rest.first().filter(|tag| !(1..=tag_max).contains(*tag)) {
        return Err(Error::unsupported(format!(
            "read a {topic} entry: command {tag} is not known to this build: use a newer build"
        )));
    }
    T::from_bytes(rest).map_err(|e| Error::invalid(format!("read a {topic} entry: {e}")))
}

/// What an accepted command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done {},
    /// The node made or named.
    File {
        file: FileId,
    },
    /// The chunk drawn; its generation is 0.
    Chunk {
        chunk: ChunkId,
    },
    /// What the first seal decided.
    Sealed {
        length: u64,
        replicas: Vec<StoreId>,
    },
    /// How much of the budget was used, and whether more is waiting.
    Progress {
        steps: u32,
        more: bool,
    },
    /// The generation that an attempt may make.
    Begun {
        generation: Generation,
    },
    /// The number of the shard that was added.
    Shard {
        shard: u16,
    },
}
codec_enum!(Outcome: "outcome" {
    1 => Done {},
    2 => File { file },
    3 => Chunk { chunk },
    4 => Sealed { length, replicas },
    5 => Progress { steps, more },
    6 => Begun { generation },
    7 => Shard { shard },
});
