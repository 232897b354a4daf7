//! Where a chunk's acknowledged bytes are in its file, and their checksums: what appends add to,
//! reads look up and seals write down. Pure.

use crate::format::{BLOCK, Extent, IndexEntry};
use holdfast_base::checksum::crc32c_combine;

/// A raw chunk's extents and block checksums (plain: the stamp is added where they leave).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawIndex {
    /// In logical order; a gap between two is damage.
    pub extents: Vec<Extent>,
    /// Of each block's bytes so far. Meaningless for a block that a gap touches.
    pub blocks: Vec<u32>,
    pub length: u64,
}

impl RawIndex {
    /// Adds bytes whose pieces (between block boundaries) have these plain checksums.
    pub fn append(&mut self, extent: Extent, crcs: &[u32]) {
        assert!(extent.logical >= self.length, "appends do not overlap");
        let end = extent.logical + extent.bytes;
        let mut at = extent.logical;
        for &crc in crcs {
            let block = (at / BLOCK) as usize;
            let next = (at / BLOCK * BLOCK + BLOCK).min(end);
            if self.blocks.len() <= block {
                self.blocks.resize(block + 1, 0);
            }
            self.blocks[block] = crc32c_combine(self.blocks[block], crc, next - at);
            at = next;
        }
        assert_eq!(at, end, "one checksum a piece");
        self.length = end;
        match self.extents.last_mut() {
            Some(last)
                if last.logical + last.bytes == extent.logical
                    && last.physical + last.bytes == extent.physical =>
            {
                last.bytes += extent.bytes;
            }
            _ => self.extents.push(extent),
        }
    }

    /// Where `from..to` is in the file, or the first byte that is nowhere.
    pub fn parts(&self, from: u64, to: u64) -> Result<Vec<Extent>, u64> {
        let first = self.extents.partition_point(|e| e.logical + e.bytes <= from);
        let mut at = from;
        let mut parts = Vec::new();
        for extent in &self.extents[first..] {
            if at >= to || extent.logical > at {
                break;
            }
            let skip = at - extent.logical;
            let bytes = (extent.bytes - skip).min(to - at);
            parts.push(Extent { logical: at, physical: extent.physical + skip, bytes });
            at += bytes;
        }
        if at < to { Err(at) } else { Ok(parts) }
    }

    /// Bytes of block `block`.
    pub fn block_end(&self, block: u64) -> u64 {
        ((block + 1) * BLOCK).min(self.length)
    }

    /// Cuts to `length`; `last` is the checksum of what remains of the block that is cut through.
    pub fn clip(&mut self, length: u64, last: Option<u32>) {
        self.extents.retain(|e| e.logical < length);
        if let Some(e) = self.extents.last_mut() {
            e.bytes = e.bytes.min(length - e.logical);
        }
        self.blocks.truncate(length.div_ceil(BLOCK) as usize);
        if let (Some(crc), Some(block)) = (last, self.blocks.last_mut()) {
            *block = crc;
        }
        self.length = length;
    }

    /// Whether some byte below the length is nowhere.
    pub fn has_gap(&self) -> bool {
        self.extents.iter().map(|e| e.bytes).sum::<u64>() < self.length
    }
}

/// The objects of a packed chunk that still takes appends or waits for its seal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedIndex {
    /// In slot order; a slot below `next_slot` that is missing is damaged.
    pub entries: Vec<IndexEntry>,
    pub next_slot: u32,
}

impl PackedIndex {
    pub fn push(&mut self, entry: IndexEntry) {
        assert!(entry.slot >= self.next_slot, "slots increase");
        self.next_slot = entry.slot + 1;
        self.entries.push(entry);
    }

    /// Entry of `slot`, and where the next one begins.
    pub fn get(&self, slot: u32) -> Option<(IndexEntry, Option<u32>)> {
        // Without damage, which is the rule, an entry stands at its own slot's place.
        let at = match self.entries.get(slot as usize) {
            Some(entry) if entry.slot == slot => slot as usize,
            _ => self.entries.binary_search_by_key(&slot, |e| e.slot).ok()?,
        };
        Some((self.entries[at], self.entries.get(at + 1).map(|e| e.offset_units)))
    }

    pub fn damaged(&self) -> Vec<u32> {
        let mut there = self.entries.iter().map(|e| e.slot).peekable();
        (0..self.next_slot).filter(|slot| there.next_if_eq(slot).is_none()).collect()
    }

    pub fn clip(&mut self, slots: u32) {
        self.entries.retain(|e| e.slot < slots);
        self.next_slot = slots;
    }
}

/// One or the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    Raw(RawIndex),
    Packed(PackedIndex),
}

impl Index {
    pub fn length(&self) -> u64 {
        match self {
            Index::Raw(raw) => raw.length,
            Index::Packed(packed) => packed.next_slot as u64,
        }
    }

    pub fn needles(&self) -> u64 {
        match self {
            Index::Raw(_) => 0,
            Index::Packed(packed) => packed.entries.len() as u64,
        }
    }

    pub fn damaged(&self) -> bool {
        match self {
            Index::Raw(raw) => raw.has_gap(),
            Index::Packed(packed) => packed.entries.len() < packed.next_slot as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::checksum::crc32c;

    #[test]
    fn blocks_combine_over_appends_and_parts_follow_extents() {
        let data: Vec<u8> = (0..200_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut index = RawIndex::default();
        let (mut at, mut physical) = (0usize, 4096);
        for len in [1, 65_535, 10, 70_000, 64_454] {
            let body = &data[at..at + len];
            let skew = at % BLOCK as usize;
            let mut crcs = Vec::new();
            let mut rest = body;
            let mut room = BLOCK as usize - skew;
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(room.min(rest.len()));
                crcs.push(crc32c(piece));
                (rest, room) = (more, BLOCK as usize);
            }
            let extent = Extent { logical: at as u64, physical, bytes: len as u64 };
            index.append(extent, &crcs);
            at += len;
            physical += 100_000;
        }
        for (b, &crc) in index.blocks.iter().enumerate() {
            let end = index.block_end(b as u64) as usize;
            assert_eq!(crc, crc32c(&data[b * BLOCK as usize..end]), "block {b}");
        }
        let parts = index.parts(0, 65_540).unwrap();
        assert_eq!(parts.iter().map(|p| p.bytes).collect::<Vec<_>>(), [1, 65_535, 4]);
        assert_eq!(index.parts(199_999, 200_001), Err(200_000));
        index.clip(65_537, Some(9));
        assert_eq!((index.length, index.blocks.len(), index.blocks[1]), (65_537, 2, 9));
        assert_eq!(index.extents.last().unwrap().bytes, 1);
    }
}
