//! Messages between nodes: what one asks of another's stores. Every request begins with its
//! [`Sender`], which the receiver checks first. Types only; nodes alone send them.

use holdfast_base::codec_struct;
use holdfast_base::ids::{
    ChunkId, Cookie, Durability, FileId, Generation, Index, NodeId, Pointer, Slot, StoreId,
};

/// `CREATE`: [`Create`]; answered empty. A chunk that is there is refused as existing.
pub const OP_PEER_CREATE: u16 = 0x0401;
/// `APPEND_RAW`: [`AppendRaw`] and the bytes; answered with [`Appended`].
pub const OP_PEER_APPEND_RAW: u16 = 0x0402;
/// `APPEND_NEEDLE`: [`AppendNeedle`] and the object; answered with [`Appended`].
pub const OP_PEER_APPEND_NEEDLE: u16 = 0x0403;
/// `FENCE`: [`Fence`]; answered with the verified length (u64), which grows no more.
pub const OP_PEER_FENCE: u16 = 0x0404;
/// `SEAL`: [`Seal`]; answered empty, also when it was sealed so before.
pub const OP_PEER_SEAL: u16 = 0x0405;
/// `READ_RAW`: [`ReadRaw`]; answered with [`ReadReply`](super::chunk::ReadReply) and the bytes.
pub const OP_PEER_READ_RAW: u16 = 0x0406;
/// `READ_NEEDLE`: [`ReadNeedle`]; answered with [`ReadReply`](super::chunk::ReadReply) and the
/// bytes.
pub const OP_PEER_READ_NEEDLE: u16 = 0x0407;
/// `INVENTORY`: [`Inventory`]; answered with [`InventoryPage`].
pub const OP_PEER_INVENTORY: u16 = 0x0408;
/// `EXPORT`: [`Export`]; answered with [`Exported`] and the bytes.
pub const OP_PEER_EXPORT: u16 = 0x0409;
/// `PLAN`: [`CopyPlan`], from the leader, every half second while something is copied; answered at
/// once with [`Report`]. A repetition changes nothing.
pub const OP_PEER_PLAN: u16 = 0x040a;
/// `COMPACT`: [`Compact`]; answered with [`Compacted`].
pub const OP_PEER_COMPACT: u16 = 0x040c;
/// `SWITCH`: [`Switch`]; answered empty, also when it was switched so before.
pub const OP_PEER_SWITCH: u16 = 0x040d;
/// `UNLINK`: [`Unlink`]; answered empty, also when it is gone already.
pub const OP_PEER_UNLINK: u16 = 0x040e;

/// `HELLO`: empty; answered with [`Welcome`]. What a node asks that knows an address and no more.
pub const OP_PEER_HELLO: u16 = 0x0430;
/// `BEAT`: [`Beat`], from a node that is no controller to the leader; answered empty.
pub const OP_PEER_BEAT: u16 = 0x0431;

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The cluster's random id: a message of another one is refused.
    pub cluster: u64,
    pub node: NodeId,
    /// Index of the entry by which the node started: one of an older start is refused.
    pub incarnation: Index,
}
codec_struct!(Sender { cluster, node, incarnation });

/// Makes an empty chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    /// 1 raw, 2 packed.
    pub kind: u8,
    /// The file that owns a raw chunk; the node that writes a packed one.
    pub owner: u64,
    pub capacity: u64,
    pub durability: Durability,
}
codec_struct!(Create { sender, store, chunk, kind, owner, capacity, durability });

/// Appends the frame's body to an open raw chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendRaw {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    /// Where the body belongs: the chunk's length before it. Another value is refused.
    pub at: u64,
    pub durability: Durability,
    /// CRC32C of each piece of the body, cut at the chunk's 64 KiB block borders.
    pub crcs: Vec<u32>,
}
codec_struct!(AppendRaw { sender, store, chunk, at, durability, crcs });

/// Appends the frame's body as one object of an open packed chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendNeedle {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    /// The chunk's next slot. Another value is refused.
    pub slot: Slot,
    pub durability: Durability,
    pub owner: FileId,
    pub cookie: Cookie,
    pub flags: u8,
    pub hint: Vec<u8>,
    /// CRC32C of each 64 KiB of the object; of nothing for an empty one.
    pub crcs: Vec<u32>,
}
codec_struct!(AppendNeedle {
    sender,
    store,
    chunk,
    slot,
    durability,
    owner,
    cookie,
    flags,
    hint,
    crcs
});

/// What an append came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Raw: the acknowledged length. Packed: the object's slot.
    pub position: u64,
    /// Bytes that the chunk can still take here in one append.
    pub room: u64,
}
codec_struct!(Appended { position, room });

/// Ends appends for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
}
codec_struct!(Fence { sender, store, chunk });

/// Fixes the length that the log decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub length: u64,
}
codec_struct!(Seal { sender, store, chunk, length });

/// Asks for a run of bytes of one generation of a raw chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRaw {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    pub offset: u64,
    pub bytes: u32,
}
codec_struct!(ReadRaw { sender, store, chunk, generation, offset, bytes });

/// Asks for part of a packed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadNeedle {
    pub sender: Sender,
    pub store: StoreId,
    pub pointer: Pointer,
    pub offset: u64,
    pub bytes: u32,
}
codec_struct!(ReadNeedle { sender, store, pointer, offset, bytes });

/// Asks which chunks a store holds, in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inventory {
    pub sender: Sender,
    pub store: StoreId,
    /// Chunks from this one on.
    pub from: ChunkId,
    pub entries_max: u32,
}
codec_struct!(Inventory { sender, store, from, entries_max });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryPage {
    pub entries: Vec<Held>,
    pub more: bool,
}
codec_struct!(InventoryPage { entries, more });

/// A chunk as a store holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub chunk: ChunkId,
    pub generation: Generation,
    /// 1 raw, 2 packed.
    pub kind: u8,
    /// 1 open, 2 fenced, 3 sealed.
    pub state: u8,
    /// Raw: verified (or sealed) bytes. Packed: the next slot.
    pub length: u64,
    pub stored_bytes: u64,
    /// Some of it fails its checksums.
    pub damaged: bool,
}
codec_struct!(Held { chunk, generation, kind, state, length, stored_bytes, damaged });

/// Asks for a run of the file that holds a sealed generation, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    pub offset: u64,
    pub bytes: u32,
}
codec_struct!(Export { sender, store, chunk, generation, offset, bytes });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Of the whole file.
    pub bytes_total: u64,
    /// CRC32C of the bytes in this answer.
    pub crc: u32,
}
codec_struct!(Exported { bytes_total, crc });

/// All that the receiver is to copy from now on: what is under way and not listed ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyPlan {
    pub sender: Sender,
    /// The leader's claim of the cluster topic, and the plan's number under it: a plan that is
    /// older than the last one is refused.
    pub epoch: Index,
    pub number: u64,
    /// A report is asked for, and nothing ordered: `copies` says nothing.
    pub look: bool,
    /// Share of its link that the receiver's foreground and recovery together may take.
    pub alpha_per_mille: u32,
    /// What recovery may take in any case; 0 for 12% of the link.
    pub floor_bytes_per_second: u64,
    /// What recovery may take at most; 0 for no such limit.
    pub rate_max: u64,
    /// What the receiver may take of its rack's link for recovery; 0 for no such limit.
    pub rack: Directions,
    /// The sender has taken note of what ended, up to this number.
    pub heard: u64,
    /// In the order in which they matter.
    pub copies: Vec<Copy>,
}
codec_struct!(CopyPlan {
    sender,
    epoch,
    number,
    look,
    alpha_per_mille,
    floor_bytes_per_second,
    rate_max,
    rack,
    heard,
    copies
});

/// Pull a sealed generation from another store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where it goes: a store of the receiver.
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    pub source: StoreId,
    /// Of the node that has the source: `host:port`.
    pub source_address: String,
    /// At most so many; 0 for no limit.
    pub bytes_per_second: u64,
}
codec_struct!(Copy { store, chunk, generation, source, source_address, bytes_per_second });

/// What a node's link carries, and how far its copies are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Of the last plan that was followed.
    pub number: u64,
    /// What the link can carry, each direction.
    pub link_bytes_per_second: u64,
    /// What the link of its rack can carry, each direction; 0 where that limits nothing.
    pub rack_bytes_per_second: u64,
    /// Bytes a second, the mean of the last second.
    pub foreground: Directions,
    pub recovery: Directions,
    /// Each of its `disk` stores.
    pub disks: Vec<DiskLoad>,
    /// 90th percentile of the answers of other nodes to this one's readers lately, in
    /// microseconds, and how many there were.
    pub answer_us_p90: u32,
    pub answers: u32,
    pub flights: Vec<Flight>,
    /// Ends that the leader has not said it has heard of, oldest first.
    pub ended: Vec<Ended>,
}
codec_struct!(Report {
    number,
    link_bytes_per_second,
    rack_bytes_per_second,
    foreground,
    recovery,
    disks,
    answer_us_p90,
    answers,
    flights,
    ended
});

/// What the disk of one store does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLoad {
    pub store: StoreId,
    /// What it can carry, reading and writing together; 0 where that limits nothing.
    pub bytes_per_second: u64,
    /// Bytes a second that it reads and writes for others than recovery, as far as it is known.
    pub foreground: u64,
    /// Read of it and written to it by recovery, and for which part of the time it was at that.
    pub recovery: Directions,
    pub busy_per_mille: u32,
}
codec_struct!(DiskLoad { store, bytes_per_second, foreground, recovery, busy_per_mille });

/// Bytes a second of a node, out and in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    pub out: u64,
    pub into: u64,
}
codec_struct!(Directions { out, into });

/// A copy under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    pub source: StoreId,
    pub bytes_done: u64,
    /// 0 until the source has said it.
    pub bytes_total: u64,
    /// Received by this copy, those of an earlier attempt apart, and in which time.
    pub bytes_received: u64,
    pub age_ms: u64,
}
codec_struct!(Flight {
    store,
    chunk,
    generation,
    source,
    bytes_done,
    bytes_total,
    bytes_received,
    age_ms
});

/// A copy that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Counts up from 1 with each start of the node.
    pub number: u64,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    pub bytes: u64,
    /// Empty: it is there, whole and durable.
    pub failure: String,
}
codec_struct!(Ended { number, store, chunk, generation, bytes, failure });

/// Computes the next generation of a sealed packed chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compact {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub next: Generation,
    /// The live slots: bit `s % 64` of word `s / 64`.
    pub live: Vec<u64>,
}
codec_struct!(Compact { sender, store, chunk, next, live });

/// Equal on every replica that compacted the same slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    pub needles: u64,
    pub stored_bytes: u64,
    pub digest: u64,
}
codec_struct!(Compacted { needles, stored_bytes, digest });

/// Makes a generation, computed or copied before, the one that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
}
codec_struct!(Switch { sender, store, chunk, generation });

/// Removes a generation that an entry let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlink {
    pub sender: Sender,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub generation: Generation,
    /// Of that entry in the namespace topic: the receiver has to have applied it.
    pub index: Index,
}
codec_struct!(Unlink { sender, store, chunk, generation, index });

/// Where a node is that somebody asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub cluster: u64,
    /// Of the node that hosts the log: `host:port`.
    pub log_host: String,
    /// Of the format of what nodes keep and send.
    pub data_format: u32,
}
codec_struct!(Welcome { cluster, log_host, data_format });

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    pub sender: Sender,
    pub free: Vec<FreeSpace>,
}
codec_struct!(Beat { sender, free });

/// Free space of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    pub store: StoreId,
    pub free_mib: u32,
}
codec_struct!(FreeSpace { store, free_mib });
