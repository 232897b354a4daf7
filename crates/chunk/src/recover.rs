//! What a chunk file without a usable footer holds: walks its commits, tells a torn tail (nothing
//! behind it was ever acknowledged) from damage (a later commit proves that it was). Pure: works
//! on the file's bytes in memory, decides nothing about files. Called when a store opens.

use crate::api::ChunkKind;
use crate::format::{
    COMMIT_FENCE, COMMIT_HEADER_BYTES, CommitHeader, FOOTER_MAGIC, FileHeader, Footer, FooterHead,
    IndexEntry, PhysicalExtent, RECORD_ALIGN, RECORD_HEADER_BYTES, Record, SECTOR,
};
use crate::index::{Index, PackedIndex, RawIndex};
use crate::proven::Proven;
use holdfast_env::planted;
use std::ops::Range;

/// What was found.
#[derive(Debug)]
pub struct Scan {
    pub index: Index,
    /// Where the next commit or the footer belongs.
    pub data_end: u64,
    /// Where the first commit begins that no later one knew to be durable; else `data_end`.
    pub unproven: u64,
    /// Bytes that no valid commit accounts for and nothing valid follows.
    pub tail: Option<Range<u64>>,
    /// Where the torn commit begins whose verified part is in the index.
    pub torn_commit: Option<u64>,
    /// Places that were acknowledged once and are invalid now.
    pub damage: Vec<Range<u64>>,
    /// A fence was written.
    pub fenced: bool,
    /// The head of a footer, when one stands where the data ends.
    pub footer: Option<FooterHead>,
    pub next_sequence: u64,
}

/// How far to trust the name of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It was open: only a whole footer ends it.
    Open,
    /// It was sealed: the head of its footer is enough, and all before it was acknowledged.
    Sealed,
}

/// One step of the walk.
enum Place {
    Commit {
        header: CommitHeader,
        offset: u64,
        bad: Vec<Range<u64>>,
    },
    /// No commit begins here; the next one found begins at the end of the range.
    Gap {
        range: Range<u64>,
        first_missing: u64,
    },
}

impl Place {
    fn sequence(&self) -> u64 {
        match self {
            Place::Commit { header, .. } => header.sequence,
            Place::Gap { first_missing, .. } => *first_missing,
        }
    }
}

/// `mark`: what a closing mark says of this file.
pub fn scan(file: &FileHeader, bytes: &[u8], expect: Expect, mark: Option<&Proven>) -> Scan {
    if file.generation.0 > 0 {
        return scan_dense(file, bytes);
    }
    debug_assert!(mark.is_none_or(|mark| mark.chunk == file.chunk), "a mark of this chunk");
    let mut walk = Walk::run(file, bytes, expect);
    if let Some(mark) = mark {
        walk.reach(mark, bytes.len() as u64);
    }
    // From the back: is there a later commit that knew this one to be durable?
    let marked = mark.map_or(0, |mark| mark.sequence);
    let mut proven = if walk.footer.is_some() { u64::MAX } else { marked };
    let (mut synced, mut unproven) = (marked, walk.end);
    let mut cut_at = walk.places.len();
    for (i, place) in walk.places.iter().enumerate().rev() {
        let invalid = match place {
            Place::Commit { bad, .. } => !bad.is_empty(),
            Place::Gap { .. } => true,
        };
        if invalid && (proven < place.sequence() || planted!("chunk.tail-cut-before-valid")) {
            cut_at = i;
        }
        if let Place::Commit { header, offset, .. } = place {
            proven = proven.max(header.synced_before);
            synced = synced.max(header.synced_before);
            if header.sequence > synced {
                unproven = *offset;
            }
        }
    }
    let mut scan = build(file, bytes, walk, cut_at);
    if let Some(mark) = mark.filter(|_| scan.footer.is_none()) {
        scan.index.lose_to(mark.in_file);
        scan.next_sequence = scan.next_sequence.max(mark.sequence + 1);
    }
    Scan { unproven: unproven.min(scan.data_end), ..scan }
}

fn build(file: &FileHeader, bytes: &[u8], walk: Walk, cut_at: usize) -> Scan {
    let mut scan = Scan {
        index: empty_index(file.kind),
        data_end: walk.end,
        unproven: walk.end,
        tail: None,
        torn_commit: None,
        damage: Vec::new(),
        fenced: false,
        footer: walk.footer,
        next_sequence: 1,
    };
    let mut invalid_from = walk.end;
    for (i, place) in walk.places.iter().enumerate().take(cut_at + 1) {
        let torn = i == cut_at;
        match place {
            Place::Gap { range, .. } if torn => {
                invalid_from = range.start;
                scan.data_end = range.start;
            }
            Place::Gap { range, .. } => scan.damage.push(range.clone()),
            Place::Commit { header, offset, bad } => {
                let end = offset + header.bytes;
                add_records(file, bytes, *offset, end, header.sequence, torn, &mut scan.index);
                scan.fenced |= header.flags & COMMIT_FENCE != 0;
                scan.next_sequence = header.sequence + 1;
                if torn {
                    invalid_from = bad[0].start;
                    scan.torn_commit = Some(*offset);
                    scan.data_end = end.next_multiple_of(SECTOR);
                } else {
                    scan.damage.extend(bad.iter().cloned());
                }
            }
        }
    }
    if scan.footer.is_none() {
        let from = invalid_from.min(bytes.len() as u64);
        let rest = &bytes[from as usize..];
        let used = used_bytes(rest) as u64;
        scan.tail = (used > 0).then(|| from..from + used);
    }
    scan
}

/// Bytes up to the last one that is not zero. Most of a preallocated file is zeros: they are
/// passed by whole sectors, a comparison that is fast in every build.
fn used_bytes(bytes: &[u8]) -> usize {
    const ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];
    let is_used = |sector: &[u8]| *sector != ZEROS[..sector.len()];
    let Some(last) = bytes.chunks(ZEROS.len()).rposition(is_used) else { return 0 };
    let end = bytes.len().min((last + 1) * ZEROS.len());
    bytes[..end].iter().rposition(|&b| b != 0).map_or(0, |at| at + 1)
}

fn empty_index(kind: ChunkKind) -> Index {
    match kind {
        ChunkKind::Raw => Index::Raw(RawIndex::default()),
        ChunkKind::Packed => Index::Packed(PackedIndex::default()),
    }
}

/// A compacted generation: records without commits, from the second sector on.
fn scan_dense(file: &FileHeader, bytes: &[u8]) -> Scan {
    let mut index = empty_index(file.kind);
    let end = bytes.len() as u64;
    let footer = (SECTOR..end).step_by(SECTOR as usize).find_map(|at| footer_at(file, bytes, at));
    let data_end = footer.map_or(end, |f| f.data_end);
    add_records(file, bytes, SECTOR - COMMIT_HEADER_BYTES as u64, data_end, 0, false, &mut index);
    Scan {
        index,
        data_end,
        unproven: SECTOR,
        tail: None,
        torn_commit: None,
        damage: bad_places(file, bytes, SECTOR..data_end, 0),
        fenced: true,
        footer,
        next_sequence: 1,
    }
}

fn footer_at(file: &FileHeader, bytes: &[u8], at: u64) -> Option<FooterHead> {
    FooterHead::decode(file, FOOTER_MAGIC, at, bytes.get(at as usize..)?)
        .filter(|head| head.data_end == at)
}

struct Walk {
    places: Vec<Place>,
    /// Behind the last valid commit, or where the footer stands.
    end: u64,
    footer: Option<FooterHead>,
}

impl Walk {
    fn run(file: &FileHeader, bytes: &[u8], expect: Expect) -> Walk {
        let mut walk = Walk { places: Vec::new(), end: SECTOR, footer: None };
        let mut expected = 1;
        while let Some(found) = walk.next_valid(file, bytes, expected, expect) {
            let at = match found {
                Found::Commit(_, at) | Found::Footer(_, at) => at,
            };
            if at > walk.end {
                walk.places.push(Place::Gap { range: walk.end..at, first_missing: expected });
            }
            walk.end = at;
            match found {
                Found::Footer(head, _) => {
                    walk.footer = Some(head);
                    break;
                }
                Found::Commit(header, offset) => {
                    let range = offset + COMMIT_HEADER_BYTES as u64..offset + header.bytes;
                    let bad = bad_places(file, bytes, range, header.sequence);
                    walk.places.push(Place::Commit { header, offset, bad });
                    walk.end = (offset + header.bytes).next_multiple_of(SECTOR);
                    expected = header.sequence + 1;
                }
            }
        }
        walk
    }

    /// Up to the mark there was something, even if nothing of it is valid any more.
    fn reach(&mut self, mark: &Proven, file_bytes: u64) {
        let end = mark.data_end.min(file_bytes);
        if self.footer.is_some() || self.end >= end {
            return;
        }
        let last = self.places.iter().rev().find_map(|place| match place {
            Place::Commit { header, .. } => Some(header.sequence),
            Place::Gap { .. } => None,
        });
        let first_missing = last.unwrap_or(0) + 1;
        self.places.push(Place::Gap { range: self.end..end, first_missing });
        self.end = end;
    }

    /// The first valid commit (or footer) at or behind the end so far.
    fn next_valid(
        &self,
        file: &FileHeader,
        bytes: &[u8],
        expected: u64,
        expect: Expect,
    ) -> Option<Found> {
        (self.end..bytes.len() as u64).step_by(SECTOR as usize).find_map(|at| {
            let commit = CommitHeader::decode_at(file, bytes, at)
                .filter(|c| c.sequence >= expected && at + c.bytes <= bytes.len() as u64);
            if let Some(commit) = commit {
                return Some(Found::Commit(commit, at));
            }
            let head = footer_at(file, bytes, at)?;
            let behind = bytes.get(at as usize + crate::format::FOOTER_HEADER_BYTES..)?;
            let whole = Footer::decode(file, &head, behind).is_some();
            (whole || expect == Expect::Sealed).then_some(Found::Footer(head, at))
        })
    }
}

enum Found {
    Commit(CommitHeader, u64),
    Footer(FooterHead, u64),
}

/// Calls `each` for every record of one commit whose head verifies; behind an invalid place it
/// looks at each possible start, so one bad record does not take the others with it.
fn each_record<'a>(
    file: &FileHeader,
    bytes: &'a [u8],
    range: Range<u64>,
    sequence: u64,
    mut each: impl FnMut(u64, Option<Record<'a>>),
) {
    let mut at = range.start;
    let mut invalid = false;
    while at + RECORD_HEADER_BYTES as u64 <= range.end {
        let record = Record::decode_at(file, &bytes[..range.end as usize], 0, at)
            .filter(|r| r.header.sequence == sequence);
        match record {
            Some(record) => {
                let next = at + record.header.record_bytes();
                each(at, Some(record));
                invalid = false;
                at = next;
            }
            None => {
                if !invalid {
                    each(at, None);
                }
                invalid = true;
                at += RECORD_ALIGN;
            }
        }
    }
}

/// Where records of one commit should be and are not, or do not verify.
fn bad_places(
    file: &FileHeader,
    bytes: &[u8],
    range: Range<u64>,
    sequence: u64,
) -> Vec<Range<u64>> {
    let mut bad: Vec<Range<u64>> = Vec::new();
    let end = range.end;
    // Behind compacted data there is padding up to the footer; commits know their exact length.
    let padded = sequence == 0;
    each_record(file, bytes, range, sequence, |at, record| match record {
        Some(record) if record.verifies(file) => {}
        Some(record) => bad.push(at..at + record.header.record_bytes()),
        None if padded && bytes[at as usize..end as usize].iter().all(|&b| b == 0) => {}
        None => bad.push(at..end),
    });
    bad
}

/// Adds what verifies of one commit to the index. Of a torn commit of a raw chunk, only what
/// stands before the first invalid piece.
fn add_records(
    file: &FileHeader,
    bytes: &[u8],
    commit: u64,
    end: u64,
    sequence: u64,
    torn: bool,
    index: &mut Index,
) {
    let range = commit + COMMIT_HEADER_BYTES as u64..end;
    let mut stop = false;
    each_record(file, bytes, range, sequence, |at, record| {
        let Some(record) = record else {
            stop |= torn;
            return;
        };
        match index {
            Index::Packed(packed) => {
                let slot = record.header.position as u32;
                if record.verifies(file) && slot >= packed.next_slot {
                    let offset_units = (at / RECORD_ALIGN) as u32;
                    packed.push(IndexEntry { slot, offset_units, owner: record.header.owner });
                }
            }
            Index::Raw(raw) if !stop => {
                add_pieces(file, &record, at, torn, raw);
                stop |= torn && !record.verifies(file);
            }
            Index::Raw(_) => {}
        }
    });
}

fn add_pieces(file: &FileHeader, record: &Record<'_>, at: u64, torn: bool, raw: &mut RawIndex) {
    let payload_at = at + record.header.head_bytes();
    for i in 0..record.header.pieces() {
        let range = record.header.piece_range(i);
        let logical = record.header.position + range.start;
        if logical < raw.length {
            continue;
        }
        if record.piece_verifies(file, i) {
            let bytes = range.end - range.start;
            let extent = PhysicalExtent { logical, physical: payload_at + range.start, bytes };
            raw.append(extent, &[record.crc(file, i)]);
        } else if torn {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_that_is_not_zero_ends_what_is_used() {
        for len in [0, 1, 4095, 4096, 4097, 3 * 4096 + 5] {
            assert_eq!(used_bytes(&vec![0; len]), 0);
            for at in (0..len).step_by(13).chain(len.checked_sub(1)) {
                let mut bytes = vec![0; len];
                bytes[at] = 1;
                assert_eq!(used_bytes(&bytes), at + 1, "{at} of {len}");
            }
        }
    }
}
