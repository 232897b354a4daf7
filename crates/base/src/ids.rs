//! Identifiers. Each is a newtype, so that a slot cannot be passed where an index is meant.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty) $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A process that holds stores; unique in a cluster, never reused.
    NodeId(u32) "n";
    /// One directory or one memory region. Random, drawn when the store is made; a new memory
    /// region is a new store.
    StoreId(u64) "st";
    /// How often a packed chunk was rewritten by compaction; raw chunks stay at 0.
    Generation(u32) "g";
    /// The number of an object in a packed chunk. Never reused, whatever the generation.
    Slot(u32) "";
    /// Random number in a needle and in every pointer to it; a guess does not read.
    Cookie(u32) "";
    /// Position of an entry in a topic. Increasing, with gaps; 0 is before the first entry.
    Index(u64) "";
    /// A file, directory, link, multifile or table of one shard; never reused. 1 is the root.
    FileId(u64) "f";
    /// A client's session: its mutating requests are numbered, their results kept.
    SessionId(u64) "s";
    /// The number of a mutating request in its session; from 1, without gaps in the order sent.
    Sequence(u64) "";
}

/// A chunk. The upper 16 bits name the shard that keeps its locations, the lower 48 count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

impl ChunkId {
    pub const COUNTER_BITS: u32 = 48;

    pub fn new(shard: u16, counter: u64) -> ChunkId {
        assert!(counter < 1 << Self::COUNTER_BITS, "chunk counter {counter} exceeds 48 bits");
        ChunkId((shard as u64) << Self::COUNTER_BITS | counter)
    }

    pub fn shard(self) -> u16 {
        (self.0 >> Self::COUNTER_BITS) as u16
    }

    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }
}

impl FileId {
    /// Bits of the place among its shard's nodes, the lower half of every id.
    pub const PLACE_BITS: u32 = 32;
    /// Set in the id of whoever is of another shard than the first, whose ids are from before there
    /// were others.
    const OF_SHARD: u64 = 1 << 63;
    const SHARD_AT: u32 = 48;

    /// The file at `place`, which was used `generation` times before. Of shard 0 there are 31 bits
    /// of generations, of others 16.
    pub fn new(shard: u16, generation: u32, place: u32) -> FileId {
        assert!(generation <= FileId::generation_max(shard), "generation {generation} spills");
        let of_shard = match shard {
            0 => 0,
            shard => {
                assert!(shard < 1 << 15, "shard {shard} exceeds 15 bits");
                FileId::OF_SHARD | (shard as u64) << FileId::SHARD_AT
            }
        };
        FileId(of_shard | (generation as u64) << FileId::PLACE_BITS | place as u64)
    }

    /// The last generation that a place of the shard can have.
    pub fn generation_max(shard: u16) -> u32 {
        if shard == 0 { u32::MAX >> 1 } else { u16::MAX as u32 }
    }

    /// The shard that keeps it.
    pub fn shard(self) -> u16 {
        match self.0 & FileId::OF_SHARD {
            0 => 0,
            _ => (self.0 >> FileId::SHARD_AT) as u16 & 0x7fff,
        }
    }

    /// How often its place was used before.
    pub fn generation(self) -> u32 {
        (self.0 >> FileId::PLACE_BITS) as u32 & FileId::generation_max(self.shard())
    }

    /// Its place among its shard's nodes.
    pub fn place(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}", self.shard(), self.counter())
    }
}

/// Where a packed object lives: chunk, slot and the cookie that must match. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pointer {
    pub chunk: ChunkId,
    pub slot: Slot,
    pub cookie: Cookie,
}

/// A node's time as leader: the entry of the cluster's topic at which it had queued, and its number. The
/// first in the queue leads and who returns queues last, so terms grow with every change of the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    pub queued: Index,
    pub leader: NodeId,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.queued, self.leader)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{:08x}", self.chunk, self.slot, self.cookie.0)
    }
}

/// Where bytes are kept: in a mapped memory region, or in files of one directory.
/// The number is stored on disk and sent on the wire; it is also iobench's storage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    Dram = 0,
    Disk = 1,
}

impl Tier {
    pub fn from_code(code: u8) -> Option<Tier> {
        match code {
            0 => Some(Tier::Dram),
            1 => Some(Tier::Disk),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Tier::Dram => "dram",
            Tier::Disk => "disk",
        }
    }
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Durability {
    /// Written, not synced; on `dram`, lost with the process. Asked for by name.
    Memory = 0,
    /// Synced by group commit before the acknowledgement.
    Durable = 1,
}

impl Durability {
    pub fn from_code(code: u8) -> Option<Durability> {
        match code {
            0 => Some(Durability::Memory),
            1 => Some(Durability::Durable),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Durable => "durable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_id_keeps_shard_and_counter_apart() {
        let id = ChunkId::new(0xffff, (1 << 48) - 1);
        assert_eq!((id.shard(), id.counter()), (0xffff, (1 << 48) - 1));
        assert_eq!(ChunkId::new(3, 9).to_string(), "c3.9");
    }

    #[test]
    fn file_id_keeps_shard_generation_and_place_apart() {
        assert_eq!(FileId::new(0, 0, 1), FileId(1));
        assert_eq!(FileId::new(0, 3, 9).0, 3 << 32 | 9);
        for (shard, generation, place) in
            [(0, u32::MAX >> 1, u32::MAX), (1, 0, 1), (1, 0xffff, u32::MAX), (0x7fff, 7, 5)]
        {
            let id = FileId::new(shard, generation, place);
            assert_eq!((id.shard(), id.generation(), id.place()), (shard, generation, place));
        }
        assert_eq!(FileId::new(1, 2, 3).0, 0x8001_0002_0000_0003);
    }

    #[test]
    #[should_panic(expected = "exceeds 48 bits")]
    fn chunk_counter_must_not_spill_into_the_shard() {
        ChunkId::new(0, 1 << 48);
    }
}
