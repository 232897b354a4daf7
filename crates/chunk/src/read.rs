//! Reading from a chunk's file what its index says is there, verified. Used by open and sealed
//! chunks, by compaction and by the scrubber. Holds no lock: the plan was made before.

use crate::api::{Bytes, ChunkKind, NeedleRead, RawRead, no_such_object};
use crate::format::{BLOCK, FileHeader, PhysicalExtent, RECORD_ALIGN, RECORD_HEADER_BYTES, Record};
use crate::index::RawIndex;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Pointer;
use holdfast_base::{Error, Result};
use holdfast_env::File;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::ops::Range;

/// What to read for a range of a raw chunk.
pub struct RawPlan {
    /// Wanted, cut to the chunk's length.
    pub range: Range<u64>,
    /// The blocks that the range touches, whole.
    parts: Vec<PhysicalExtent>,
    aligned: Range<u64>,
    blocks: Vec<u32>,
}

impl RawPlan {
    pub fn new(file: &FileHeader, index: &RawIndex, offset: u64, bytes: u64) -> Result<RawPlan> {
        let end = offset.saturating_add(bytes).min(index.length);
        let range = offset.min(end)..end;
        if range.is_empty() {
            let (parts, blocks) = (Vec::new(), Vec::new());
            return Ok(RawPlan { aligned: range.clone(), range, parts, blocks });
        }
        let past = u64::from(planted!("chunk.block-border-read-past"));
        let (first, last) = (range.start / BLOCK, (range.end - 1 + past) / BLOCK);
        let aligned = first * BLOCK..index.block_end(last);
        let parts = index
            .parts(aligned.start, aligned.end)
            .map_err(|at| damaged(file, format_args!("byte {at} was lost to damage")))?;
        let blocks = index.blocks[first as usize..=last as usize].to_vec();
        Ok(RawPlan { range, parts, aligned, blocks })
    }

    /// From where to where in the file it lies.
    pub fn place(&self) -> Option<Range<u64>> {
        let (first, last) = (self.parts.first()?, self.parts.last()?);
        Some(first.physical..last.physical + last.bytes)
    }

    /// Reads it; verifies blocks read in part, and with `all` those read whole, too.
    pub fn read(&self, file: &FileHeader, from: &dyn File, all: bool) -> Result<RawRead> {
        let mut buf = vec![0; (self.aligned.end - self.aligned.start) as usize];
        for part in &self.parts {
            let at = (part.logical - self.aligned.start) as usize;
            from.read_exact_at(&mut buf[at..at + part.bytes as usize], part.physical)
                .map_err(|e| Error::from(e).context(reading(file)))?;
        }
        let mut crcs = Vec::with_capacity(self.blocks.len());
        for (i, &stored) in self.blocks.iter().enumerate() {
            let number = self.aligned.start / BLOCK + i as u64;
            let start = number * BLOCK;
            let end = (start + BLOCK).min(self.aligned.end);
            let wanted = start.max(self.range.start)..end.min(self.range.end);
            let slice = |r: &Range<u64>| {
                &buf[(r.start - self.aligned.start) as usize..(r.end - self.aligned.start) as usize]
            };
            let whole = wanted == (start..end);
            if (all || !whole) && crc32c(slice(&(start..end))) != stored {
                return Err(damaged(file, format_args!("block {number} fails its checksum")));
            }
            let plain = if whole { stored } else { crc32c(slice(&wanted)) };
            crcs.push(plain ^ file.stamp(number));
        }
        let skip = (self.range.start - self.aligned.start) as usize;
        let range = skip..skip + (self.range.end - self.range.start) as usize;
        Ok(RawRead { generation: file.generation, bytes: Bytes::Owned { buf, range }, crcs })
    }
}

fn reading(file: &FileHeader) -> String {
    format!("read chunk `{}` generation `{}`", file.chunk, file.generation)
}

pub fn damaged(file: &FileHeader, what: std::fmt::Arguments<'_>) -> Error {
    let what = format!("{what}; it is not served, see `holdfast doctor`");
    Error::corrupt(what).context(reading(file))
}

/// Where a needle's record is: from its offset up to where the next one begins.
pub struct NeedlePlan {
    pub offset: u64,
    pub end: u64,
}

impl NeedlePlan {
    pub fn new(units: u32, next_units: Option<u32>, data_end: u64) -> NeedlePlan {
        let end = next_units.map_or(data_end, |u| u as u64 * RECORD_ALIGN);
        NeedlePlan { offset: units as u64 * RECORD_ALIGN, end }
    }

    /// One read, verified; `pointer.cookie` must be the needle's unless `any_cookie`.
    pub fn read(
        &self,
        file: &FileHeader,
        from: &dyn File,
        pointer: Pointer,
        any_cookie: bool,
    ) -> Result<NeedleRead> {
        let mut buf = vec![0; (self.end - self.offset) as usize];
        let read = from.read_at(&mut buf, self.offset);
        let got = read.map_err(|e| Error::from(e).context(reading(file)))?;
        let bad = || {
            let (slot, at) = (pointer.slot, self.offset);
            damaged(file, format_args!("object {slot} at offset {at} fails its checksum"))
        };
        let record = Record::decode_at(file, &buf[..got], self.offset, self.offset)
            .filter(|r| r.header.position == pointer.slot.0 as u64)
            .ok_or_else(bad)?;
        if !any_cookie && record.header.cookie != pointer.cookie.0 {
            return Err(no_such_object(pointer));
        }
        if !record.verifies(file) || record.header.kind != ChunkKind::Packed {
            return Err(bad());
        }
        let head = record.header.head_bytes() as usize;
        let range = head..head + record.header.payload_bytes as usize;
        let (needle, crcs) = (record.needle(), record.all_crcs(file));
        Ok(NeedleRead { needle, bytes: Bytes::Owned { buf, range }, crcs })
    }

    /// Bytes `wanted` of the object, for which only the blocks that they touch are read and
    /// verified. With plain checksums of the pieces that block borders cut them into.
    pub fn read_part(
        &self,
        file: &FileHeader,
        from: &dyn File,
        pointer: Pointer,
        wanted: Range<u64>,
    ) -> Result<(Bytes, Vec<u32>)> {
        let failed = |e| Error::from(e).context(reading(file));
        let bad = || {
            let (slot, at) = (pointer.slot, self.offset);
            damaged(file, format_args!("object {slot} at offset {at} fails its checksum"))
        };
        let whole = (self.end - self.offset) as usize;
        let ahead = match whole <= ONE_READ_BYTES_MAX.size() {
            true => whole,
            false => {
                ONE_READ_BYTES_MAX.cross();
                RECORD_HEAD_BYTES_MAX
            }
        };
        let mut head = vec![0; ahead];
        let got = from.read_at(&mut head, self.offset).map_err(failed)?;
        let record = Record::decode_head_at(file, &head[..got], self.offset, self.offset)
            .filter(|r| r.header.position == pointer.slot.0 as u64)
            .filter(|r| r.header.kind == ChunkKind::Packed)
            .ok_or_else(bad)?;
        if record.header.cookie != pointer.cookie.0 {
            return Err(no_such_object(pointer));
        }
        let size = record.header.payload_bytes as u64;
        check_part(pointer, &wanted, size)?;
        let start = wanted.start / BLOCK * BLOCK;
        let end = wanted.end.next_multiple_of(BLOCK).min(size);
        let (at, len) = ((record.header.head_bytes() + start) as usize, (end - start) as usize);
        let read_already = head.get(at..at + len).filter(|_| at + len <= got).is_some();
        let rest = match read_already {
            true => None,
            false => {
                let mut rest = vec![0; len];
                from.read_exact_at(&mut rest, self.offset + at as u64).map_err(failed)?;
                Some(rest)
            }
        };
        let wanted_blocks = rest.as_deref().unwrap_or_else(|| &head[at..at + len]);
        let mut crcs = Vec::new();
        for (block, piece) in (start / BLOCK..).zip(wanted_blocks.chunks(BLOCK as usize)) {
            if crc32c(piece) != record.crc(file, block) {
                return Err(bad());
            }
            crcs.push(part_crc(piece, block, &wanted));
        }
        let skip = (wanted.start - start) as usize;
        let (buf, skip) = match rest {
            Some(rest) => (rest, skip),
            None => (head, at + skip),
        };
        let range = skip..skip + (wanted.end - wanted.start) as usize;
        Ok((Bytes::Owned { buf, range }, crcs))
    }
}

/// Objects up to this size are read in one piece, whatever part is wanted: a second read costs a
/// disk more than the bytes.
static ONE_READ_BYTES_MAX: Knob = Knob::new("chunk.one-read-bytes", 2 * BLOCK, &[64, 5000]);

/// Head of a record, at most: its checksums, one for each block of the largest object, and a hint.
const RECORD_HEAD_BYTES_MAX: usize = 4096;
const _: () = assert!(
    RECORD_HEADER_BYTES
        + 4 * (holdfast_base::limits::PACKED_BYTES_MAX / BLOCK) as usize
        + crate::NEEDLE_HINT_BYTES_MAX
        <= RECORD_HEAD_BYTES_MAX
);

/// Refuses a part that is not within an object of `size` bytes.
pub fn check_part(pointer: Pointer, wanted: &Range<u64>, size: u64) -> Result<()> {
    if wanted.start <= wanted.end && wanted.end <= size {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "read object `{pointer}`: bytes {} to {} reach past its end at {size}",
        wanted.start, wanted.end
    )))
}

/// Checksum of what `wanted` has of a verified block.
pub fn part_crc(piece: &[u8], block: u64, wanted: &Range<u64>) -> u32 {
    let start = block * BLOCK;
    let from = wanted.start.saturating_sub(start) as usize;
    let to = ((wanted.end - start) as usize).min(piece.len());
    crc32c(&piece[from..to])
}
