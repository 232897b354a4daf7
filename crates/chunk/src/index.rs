//! Where a chunk's acknowledged bytes are in its file, and their checksums: what appends add to,
//! reads look up and seals write down. Pure.

use crate::format::{BLOCK, IndexEntry, PhysicalExtent};
use holdfast_base::checksum::crc32c_combine;

/// A raw chunk's extents and block checksums (plain: the stamp is added where they leave).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawIndex {
    /// In logical order; a gap between two is damage.
    pub extents: Vec<PhysicalExtent>,
    /// Of each block's bytes so far. Meaningless for a block that a gap touches.
    pub blocks: Vec<u32>,
    pub length: u64,
}

impl RawIndex {
    /// Adds bytes whose pieces (between block boundaries) have these plain checksums.
    pub fn append(&mut self, extent: PhysicalExtent, crcs: &[u32]) {
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
        assert_eq!(self.blocks.len() as u64, end.div_ceil(BLOCK), "a checksum for each block");
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
    pub fn parts(&self, from: u64, to: u64) -> Result<Vec<PhysicalExtent>, u64> {
        let first = self.extents.partition_point(|e| e.logical + e.bytes <= from);
        let mut at = from;
        let mut parts = Vec::new();
        for extent in &self.extents[first..] {
            if at >= to || extent.logical > at {
                break;
            }
            let skip = at - extent.logical;
            let bytes = (extent.bytes - skip).min(to - at);
            parts.push(PhysicalExtent { logical: at, physical: extent.physical + skip, bytes });
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
        assert!(length <= self.length, "a cut makes nothing longer");
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

    /// What follows up to `length` was acknowledged and is nowhere.
    pub fn lose_to(&mut self, length: u64) {
        if length > self.length {
            self.length = length;
            self.blocks.resize(length.div_ceil(BLOCK) as usize, 0);
        }
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
        let before = self.entries.last().map(|last| last.offset_units);
        assert!(before.is_none_or(|at| at < entry.offset_units), "and so do their places");
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
        assert!(slots <= self.next_slot, "a cut makes nothing longer");
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

    /// What follows up to `length` (bytes or slots) was acknowledged and is nowhere.
    pub fn lose_to(&mut self, length: u64) {
        match self {
            Index::Raw(raw) => raw.lose_to(length),
            Index::Packed(packed) => packed.next_slot = packed.next_slot.max(length as u32),
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
            let extent = PhysicalExtent { logical: at as u64, physical, bytes: len as u64 };
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

    use proptest::prelude::*;

    fn pieces(at: u64, mut body: &[u8]) -> Vec<u32> {
        let (mut crcs, mut room) = (Vec::new(), (BLOCK - at % BLOCK) as usize);
        while !body.is_empty() {
            let (piece, rest) = body.split_at(room.min(body.len()));
            crcs.push(crc32c(piece));
            (body, room) = (rest, BLOCK as usize);
        }
        crcs
    }

    /// Lengths around the borders of blocks, and small ones.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![1..9u64, BLOCK - 2..BLOCK + 3, 2 * BLOCK - 1..2 * BLOCK + 2, 1..3 * BLOCK]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Bytes by their number are the model: where each is in the file, and none in a gap.
        #[test]
        fn a_raw_index_agrees_with_a_list_of_bytes(
            appends in prop::collection::vec((length(), 0..3u64, prop::bool::weighted(0.1)), 1..12),
            asks in prop::collection::vec((0..9 * BLOCK, length()), 8),
            cut in 0..5 * BLOCK,
        ) {
            let mut index = RawIndex::default();
            let mut model: Vec<Option<u64>> = Vec::new();
            let mut physical = 4096;
            for (bytes, skip, gap) in appends {
                if gap {
                    model.resize(model.len() + 1000, None);
                    index.lose_to(model.len() as u64);
                }
                physical += skip * 100;
                let at = model.len() as u64;
                let body: Vec<u8> = (0..bytes).map(|i| (physical + i) as u8).collect();
                index.append(PhysicalExtent { logical: at, physical, bytes }, &pieces(at, &body));
                model.extend((0..bytes).map(|i| Some(physical + i)));
                physical += bytes;
            }
            let check = |index: &RawIndex, model: &[Option<u64>]| {
                prop_assert_eq!(index.length, model.len() as u64);
                prop_assert_eq!(index.has_gap(), model.iter().any(Option::is_none));
                for (from, bytes) in &asks {
                    let to = (from + bytes).min(index.length);
                    let from = (*from).min(to);
                    let wanted: Result<Vec<u64>, u64> = (from..to)
                        .map(|at| model[at as usize].ok_or(at))
                        .collect();
                    let found = index.parts(from, to).map(|parts| {
                        let bytes = |part: PhysicalExtent| part.physical..part.physical + part.bytes;
                        parts.into_iter().flat_map(bytes).collect::<Vec<u64>>()
                    });
                    prop_assert_eq!(found, wanted);
                }
                for (block, bytes) in model.chunks(BLOCK as usize).enumerate() {
                    let body: Option<Vec<u8>> = bytes.iter().map(|b| b.map(|b| b as u8)).collect();
                    if let Some(body) = body {
                        prop_assert_eq!(index.blocks[block], crc32c(&body), "block {}", block);
                    }
                }
                Ok(())
            };
            check(&index, &model)?;
            let cut = cut.min(index.length);
            let start = (cut / BLOCK * BLOCK) as usize;
            let last: Option<Vec<u8>> =
                model[start..cut as usize].iter().map(|b| b.map(|b| b as u8)).collect();
            index.clip(cut, last.filter(|last| !last.is_empty()).map(|last| crc32c(&last)));
            model.truncate(cut as usize);
            check(&index, &model)?;
        }

        #[test]
        fn a_packed_index_agrees_with_a_map(
            slots in prop::collection::vec((1..4u32, 6..90u32), 0..40),
            lost in 0..5u32,
            cut in 0..90u32,
        ) {
            let mut index = PackedIndex::default();
            let mut model = std::collections::BTreeMap::new();
            let (mut next, mut at) = (0, 512);
            for (step, units) in slots {
                let slot = next + step - 1;
                index.push(IndexEntry { slot, offset_units: at, owner: slot as u64 });
                model.insert(slot, at);
                (next, at) = (slot + 1, at + units);
            }
            let mut index = Index::Packed(index);
            index.lose_to((next + lost) as u64);
            let Index::Packed(mut index) = index else { unreachable!() };
            for slots in [next + lost, cut.min(next + lost)] {
                index.clip(slots);
                model.retain(|slot, _| *slot < slots);
                for slot in 0..slots + 2 {
                    let behind = model.range(slot + 1..).next().map(|(_, at)| *at);
                    let wanted = model.get(&slot).map(|at| (*at, behind));
                    let found = index.get(slot).map(|(entry, behind)| (entry.offset_units, behind));
                    prop_assert_eq!(found, wanted);
                }
                let gone: Vec<u32> = (0..slots).filter(|slot| !model.contains_key(slot)).collect();
                prop_assert_eq!(index.damaged(), gone);
            }
        }
    }
}
