//! What callers of a store say and hear: plain data and callbacks, the same for both tiers.

use crate::format::SECTOR;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Pointer, Slot, StoreId, Tier,
};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_env::region::RegionSlice;
use std::ops::Range;
use std::path::PathBuf;

/// How an append answers: called once, without locks held, in the order of the chunk. It runs on
/// a commit thread, so it must not wait for the same store ([`crate::Store::seal`], `fence`).
pub type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// An append's bytes; the store keeps the owner until they are copied into a commit.
pub type Body = Box<dyn AsRef<[u8]> + Send + Sync>;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub dir: PathBuf,
    /// What this store may use of its file system; 0 for all of it.
    pub capacity_bytes: u64,
    /// Kept free for compaction; 0 for the larger of two chunks and 1% of the capacity.
    pub reserve_bytes: u64,
    /// Threads that write commits. 0 in simulations and tests: [`crate::Store::pump`] writes them.
    pub commit_threads: usize,
    /// Keep a zero-filled file ready for the next durable packed chunk: writes into zeros are
    /// about twice as fast as into reserved space, whose extents each write has to convert.
    pub spare_file: bool,
    /// Length of a segment of the journal that small durable appends to raw chunks share; 0 for
    /// none. It takes four of them, once such appends come.
    pub journal_segment_bytes: u64,
    /// Memory for the indexes of sealed chunks; those of others are read again when they are used.
    pub index_bytes_max: u64,
}

impl StoreConfig {
    pub fn new(dir: impl Into<PathBuf>) -> StoreConfig {
        StoreConfig {
            dir: dir.into(),
            capacity_bytes: 0,
            reserve_bytes: 0,
            commit_threads: 2,
            spare_file: true,
            journal_segment_bytes: 32 * MIB,
            index_bytes_max: 256 * MIB,
        }
    }
}

/// Read by byte offset, or by slot number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ChunkKind {
    Raw = 1,
    Packed = 2,
}

impl ChunkKind {
    pub fn from_code(code: u8) -> Option<ChunkKind> {
        match code {
            1 => Some(ChunkKind::Raw),
            2 => Some(ChunkKind::Packed),
            _ => None,
        }
    }
}

/// What a new chunk is to be.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSpec {
    pub chunk: ChunkId,
    pub kind: ChunkKind,
    /// The file that owns a raw chunk; the node that writes a packed one. Kept for salvage.
    pub owner: u64,
    /// Bytes that a raw chunk takes; bytes of file that a packed one takes.
    pub capacity_bytes: u64,
    /// The class of most appends to come: decides how the file is prepared, promises nothing.
    pub durability: Durability,
}

impl ChunkSpec {
    pub fn new(chunk: ChunkId, kind: ChunkKind, owner: u64) -> ChunkSpec {
        let durability = Durability::Durable;
        ChunkSpec { chunk, kind, owner, capacity_bytes: CHUNK_BYTES, durability }
    }
}

/// One object of a packed chunk, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Needle {
    pub owner: FileId,
    pub cookie: Cookie,
    /// The caller's; stored and returned.
    pub flags: u8,
    /// What helps to rebuild the name from the chunk alone, at most
    /// [`crate::NEEDLE_HINT_BYTES_MAX`].
    pub hint: Vec<u8>,
}

/// What a store does with its replica of a chunk; how far the chunk itself is, the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// Takes appends.
    Open,
    /// Waits for its seal: fenced by order, or held open by a process that has ended.
    Fenced,
    Sealed,
}

/// A chunk as the store sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    pub chunk: ChunkId,
    /// The generation that is read when none is named.
    pub generation: Generation,
    pub kind: ChunkKind,
    pub owner: u64,
    pub state: ReplicaState,
    /// Raw: acknowledged (or sealed) bytes. Packed: the next slot.
    pub length: u64,
    /// Objects that can be read, for packed chunks.
    pub needles: u64,
    /// What it takes in the file system or region.
    pub stored_bytes: u64,
    /// Some of its acknowledged bytes fail their checksums; those are refused, others are served.
    pub damaged: bool,
}

/// Bytes behind the last valid commit of a chunk that was open, copied to `lost+found`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    pub chunk: ChunkId,
    /// Where in the file they began, and how many.
    pub offset: u64,
    pub bytes: u64,
    pub kept_as: PathBuf,
}

/// Acknowledged bytes that cannot be verified any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub chunk: ChunkId,
    pub generation: Generation,
    /// One sentence.
    pub what: String,
}

/// What opening a store found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub store: StoreId,
    /// The directory was empty, and a new store was made.
    pub new: bool,
    pub chunks: Vec<ChunkInfo>,
    pub cut_tails: Vec<CutTail>,
    pub damaged: Vec<Damage>,
    /// Files that no store wrote, and why they were moved to `quarantine`.
    pub quarantined: Vec<(String, String)>,
    /// Acknowledged appends that the journal has lost to damage; which, nobody can say.
    pub journal_damage: Vec<String>,
    /// Why the closing mark says nothing: a flip in an open chunk's end cannot be told from a tear.
    pub mark_damage: Option<String>,
    /// Generations beside the current one, waiting for a switch or an unlink.
    pub other_generations: Vec<(ChunkId, Generation)>,
    /// Imports that were not finished; the next import of the same goes on with them.
    pub partial: Vec<(ChunkId, Generation)>,
}

/// Bytes read, in one piece.
pub enum Bytes {
    /// A part of an owned buffer.
    Owned { buf: Vec<u8>, range: Range<usize> },
    /// Memory of the `dram` tier, kept while this lives.
    Region(RegionSlice),
}

impl Bytes {
    pub fn len(&self) -> usize {
        match self {
            Bytes::Owned { range, .. } => range.len(),
            Bytes::Region(slice) => slice.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Owned { buf, range } => &buf[range.clone()],
            Bytes::Region(slice) => slice,
        }
    }

    pub fn to_vec(&self) -> Vec<u8> {
        self.as_slice().to_vec()
    }
}

/// A part of a raw chunk.
pub struct RawRead {
    pub generation: Generation,
    pub bytes: Bytes,
    /// One for each 64 KiB block that the range touches, of the bytes inside the range:
    /// `crc32c(bytes) ^ stamp(chunk, generation, block number)`. For blocks read whole it is the
    /// stored one and **not** verified here: the reader does that. Parts of blocks were verified,
    /// and their checksum is fresh.
    pub crcs: Vec<u32>,
}

/// One object, verified.
pub struct NeedleRead {
    pub needle: Needle,
    pub bytes: Bytes,
    /// `crc32c(bytes)` for each 64 KiB of the object; one for an empty object.
    pub crcs: Vec<u32>,
}

/// What a compaction made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionDigest {
    pub chunk: ChunkId,
    pub generation: Generation,
    /// Objects kept, and their bytes with headers.
    pub needles: u64,
    pub stored_bytes: u64,
    /// Equal on every replica that compacted the same slots: covers slot, owner, cookie, flags,
    /// hint, size and checksums of each object.
    pub digest: u64,
}

/// Space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub store: StoreId,
    pub tier: Tier,
    pub used_bytes: u64,
    /// What may still be taken, the reserve not counted.
    pub free_bytes: u64,
    /// Files that its file system still takes; `u64::MAX` where that has no bound.
    pub free_files: u64,
    pub capacity_bytes: u64,
    pub reserve_bytes: u64,
    pub chunks: u64,
    /// Why the store takes no writes until the next start.
    pub read_only: bool,
}

impl Usage {
    /// Whether a new chunk of `capacity_bytes` finds room.
    pub fn takes_chunk(&self, capacity_bytes: u64) -> bool {
        let bytes = match self.tier {
            Tier::Dram => capacity_bytes,
            Tier::Disk => file_bytes(capacity_bytes),
        };
        !self.read_only && self.free_files > 0 && self.free_bytes >= bytes
    }
}

/// Bytes of an open chunk's file: its head, and room for what it says it takes.
pub(crate) fn file_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes.next_multiple_of(SECTOR) + 2 * SECTOR
}

/// A pointer that leads nowhere: wrong chunk, slot or cookie, or the object is gone.
pub(crate) fn no_such_object(pointer: Pointer) -> Error {
    Error::not_found(format!("read object `{pointer}`: this store holds no such object"))
}

/// The slot given to an object.
pub type SlotDone = Done<Slot>;

/// An object to append: its bytes, crc32c of each 64 KiB of them (one for an empty object), and who
/// hears its slot.
pub struct NewNeedle {
    pub needle: Needle,
    pub body: Body,
    pub crcs: Vec<u32>,
    pub done: SlotDone,
}

/// Where bytes of a raw chunk are in the memory region, for clients that map it. The bytes are to
/// be trusted only if the frame's generation is still this one after they were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub region_offset: u64,
    pub bytes: u64,
    pub frame_generation: u64,
}
