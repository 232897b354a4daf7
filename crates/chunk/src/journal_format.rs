//! The bytes of a store's journal: segment header, batches, records. Pure: encodes into and decodes
//! from slices, knows no file. docs/formats/chunk.md draws each box. Used by `journal.rs`.

use crate::format::{HeaderError, SECTOR, VERSION, get_u32};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::codec_struct;
use holdfast_base::ids::{ChunkId, Generation, StoreId};
use holdfast_base::limits::SECTOR_BYTES;
use std::ops::Range;

pub const JOURNAL_MAGIC: [u8; 8] = *b"HFJOURN1";
pub const BATCH_MAGIC: [u8; 4] = *b"HFJB";
pub const BATCH_HEADER_BYTES: usize = 40;
pub const RECORD_HEADER_BYTES: usize = 32;
const RECORD_ALIGN: usize = 8;

/// A segment's first sector, written durably before its first batch of each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub version: u16,
    pub store: StoreId,
    /// Counts uses, of all segments of one journal, from 1. Every batch says it, too: a header
    /// torn by a power cut, over a segment that was clean, or damaged later takes nothing with it.
    pub number: u64,
    /// Where the last batch of the use before this one ended; 0 for none.
    pub previous_end: u64,
}
codec_struct!(SegmentHeader { version, store, number, previous_end });

impl SegmentHeader {
    pub fn encode_sector(&self, sector: &mut [u8]) {
        sector.fill(0);
        sector[..8].copy_from_slice(&JOURNAL_MAGIC);
        let fields = self.to_bytes();
        sector[8..8 + fields.len()].copy_from_slice(&fields);
        let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
        sector[SECTOR_BYTES - 4..SECTOR_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    pub fn decode_sector(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        let sector = bytes.get(..SECTOR_BYTES).ok_or(HeaderError::NotAChunk)?;
        if sector[..8] != JOURNAL_MAGIC {
            return Err(HeaderError::NotAChunk);
        }
        if get_u32(sector, SECTOR_BYTES - 4) != crc32c(&sector[..SECTOR_BYTES - 4]) {
            return Err(HeaderError::Checksum);
        }
        let header = SegmentHeader::decode(&mut Reader::new(&sector[8..]));
        match header {
            Ok(header) if header.version == VERSION => Ok(header),
            Ok(header) => Err(HeaderError::Version(header.version)),
            Err(_) => Err(HeaderError::NotAChunk),
        }
    }
}

/// The stamp of a batch's header that stands at `offset` of a segment.
fn place(store: StoreId, offset: u64) -> u32 {
    stamp(ChunkId(store.0), Generation(0), offset)
}

/// What one durable write holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// The use of the segment that it belongs to.
    pub number: u64,
    /// From 1 in each use of a segment, without gaps: one batch is in flight a journal.
    pub sequence: u64,
    /// From the batch's start to the end of its last record.
    pub bytes: u64,
    payload_crc: u32,
}

impl BatchHeader {
    /// Completes `batch`, whose records stand behind the place of the header, for `offset`.
    pub fn seal(segment: &SegmentHeader, sequence: u64, offset: u64, batch: &mut [u8]) {
        let payload_crc = crc32c(&batch[BATCH_HEADER_BYTES..]);
        let bytes = batch.len() as u64;
        let head = &mut batch[..BATCH_HEADER_BYTES];
        head.fill(0);
        head[..4].copy_from_slice(&BATCH_MAGIC);
        head[8..16].copy_from_slice(&sequence.to_le_bytes());
        head[16..24].copy_from_slice(&bytes.to_le_bytes());
        head[24..28].copy_from_slice(&payload_crc.to_le_bytes());
        head[28..36].copy_from_slice(&segment.number.to_le_bytes());
        let crc = crc32c(&head[..36]) ^ place(segment.store, offset);
        head[36..40].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header at `offset` of a segment's `bytes`, if one stands there whose batch fits.
    fn decode_at(store: StoreId, bytes: &[u8], offset: u64) -> Option<BatchHeader> {
        let head = bytes.get(offset as usize..)?.get(..BATCH_HEADER_BYTES)?;
        let crc = crc32c(&head[..36]) ^ place(store, offset);
        if head[..4] != BATCH_MAGIC || get_u32(head, 36) != crc {
            return None;
        }
        let mut reader = Reader::new(&head[8..]);
        let sequence = u64::decode(&mut reader).ok()?;
        let size = u64::decode(&mut reader).ok()?;
        let fits = size >= BATCH_HEADER_BYTES as u64
            && offset.checked_add(size).is_some_and(|end| end <= bytes.len() as u64);
        let number = u64::from_bytes(&head[28..36]).ok()?;
        let payload_crc = get_u32(head, 24);
        fits.then_some(BatchHeader { number, sequence, bytes: size, payload_crc })
    }

    fn payload<'a>(&self, bytes: &'a [u8], offset: u64) -> Option<&'a [u8]> {
        let start = offset as usize + BATCH_HEADER_BYTES;
        let payload = bytes.get(start..(offset + self.bytes) as usize)?;
        (crc32c(payload) == self.payload_crc).then_some(payload)
    }
}

/// An append to a raw chunk, as a batch holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub chunk: ChunkId,
    /// Of the chunk's file: another file of the same chunk takes no part of it.
    pub nonce: u64,
    /// Byte of the chunk where the body belongs.
    pub at: u64,
    pub bytes: u32,
    pub zero: u32,
}
codec_struct!(RecordHeader { chunk, nonce, at, bytes, zero });

/// Bytes of a record with its padding.
pub fn record_bytes(body: usize) -> usize {
    (RECORD_HEADER_BYTES + body).next_multiple_of(RECORD_ALIGN)
}

impl RecordHeader {
    /// Writes the record into `out`, which is as long as [`record_bytes`] and may hold old bytes.
    pub fn encode_into(&self, body: &[u8], out: &mut [u8]) {
        out[..8].copy_from_slice(&self.chunk.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        out[16..24].copy_from_slice(&self.at.to_le_bytes());
        out[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        out[28..32].fill(0);
        let end = RECORD_HEADER_BYTES + body.len();
        out[RECORD_HEADER_BYTES..end].copy_from_slice(body);
        out[end..].fill(0);
    }
}

/// Calls `each` for every record of a batch's payload; false if it ends in the midst of one, which
/// only a bug can write.
fn records(mut payload: &[u8], mut each: impl FnMut(RecordHeader, &[u8])) -> bool {
    while !payload.is_empty() {
        let Ok(header) = RecordHeader::decode(&mut Reader::new(payload)) else { return false };
        let len = record_bytes(header.bytes as usize);
        let body = payload.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.bytes as usize);
        let (Some(body), Some(rest)) = (body, payload.get(len..)) else { return false };
        each(header, body);
        payload = rest;
    }
    true
}

/// How a segment ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Behind the last valid batch.
    pub end: u64,
    /// Places that were acknowledged once and are invalid now: a later batch proves it.
    pub damage: Vec<Range<u64>>,
    /// A batch whose head arrived and whose records did not: never acknowledged.
    pub torn: Option<Range<u64>>,
}

/// The last use of a segment whose header is lost; `None` if it holds no batch.
pub fn last_use(store: StoreId, bytes: &[u8]) -> Option<u64> {
    let places = (SECTOR..bytes.len() as u64).step_by(SECTOR_BYTES);
    places.filter_map(|at| BatchHeader::decode_at(store, bytes, at)).map(|h| h.number).max()
}

/// Follows the batches of one use of a segment. One is in flight a journal, so a valid batch behind an invalid
/// place proves that the place was acknowledged.
pub fn walk(
    store: StoreId,
    number: u64,
    bytes: &[u8],
    mut each: impl FnMut(RecordHeader, &[u8]),
) -> Walked {
    let mut walked = Walked { end: SECTOR, ..Walked::default() };
    let mut expected = 1;
    let mut at = SECTOR;
    while at < bytes.len() as u64 {
        let header = BatchHeader::decode_at(store, bytes, at)
            .filter(|h| h.number == number && h.sequence >= expected);
        let payload = header.and_then(|h| Some((h, h.payload(bytes, at)?)));
        match (payload, header) {
            (Some((header, payload)), _) => {
                if at > walked.end || header.sequence > expected {
                    walked.damage.push(walked.end..at);
                }
                let start = at;
                at = (at + header.bytes).next_multiple_of(SECTOR);
                if !records(payload, &mut each) {
                    walked.damage.push(start..at);
                }
                (walked.end, walked.torn) = (at, None);
                expected = header.sequence + 1;
            }
            (None, Some(header)) => {
                walked.torn.get_or_insert(at..at + header.bytes);
                at += SECTOR;
            }
            (None, None) => at += SECTOR,
        }
    }
    walked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> SegmentHeader {
        SegmentHeader {
            version: VERSION,
            store: StoreId(3),
            number: 1,
            previous_end: 0,
        }
    }

    /// A segment of three batches, of one record of 5000 bytes each.
    fn three() -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        segment().encode_sector(&mut bytes[..SECTOR_BYTES]);
        for i in 0..3u64 {
            let offset = SECTOR + i * 2 * SECTOR;
            let body = vec![i as u8 + 1; 5000];
            let record =
                RecordHeader { chunk: ChunkId(9), nonce: 5, at: i * 5000, bytes: 5000, zero: 0 };
            let mut batch = vec![0xff; BATCH_HEADER_BYTES + record_bytes(5000)];
            record.encode_into(&body, &mut batch[BATCH_HEADER_BYTES..]);
            BatchHeader::seal(&segment(), i + 1, offset, &mut batch);
            bytes[offset as usize..][..batch.len()].copy_from_slice(&batch);
        }
        bytes
    }

    fn found(bytes: &[u8]) -> (Vec<u64>, Walked) {
        let header = SegmentHeader::decode_sector(bytes).unwrap();
        let mut list = Vec::new();
        let walked = walk(header.store, header.number, bytes, |record, body| {
            assert!(body.iter().all(|&b| b as u64 == record.at / 5000 + 1));
            list.push(record.at);
        });
        (list, walked)
    }

    #[test]
    fn batches_come_back_in_order() {
        let (list, walked) = found(&three());
        assert_eq!(list, [0, 5000, 10_000]);
        assert_eq!(walked, Walked { end: 7 * SECTOR, ..Walked::default() });
    }

    #[test]
    fn an_invalid_batch_is_damage_where_a_later_one_is_valid_and_torn_where_none_is() {
        let mut bytes = three();
        bytes[(3 * SECTOR) as usize + 100] ^= 1;
        let (list, walked) = found(&bytes);
        assert_eq!(list, [0, 10_000]);
        assert_eq!(walked.damage.as_slice(), std::slice::from_ref(&(3 * SECTOR..5 * SECTOR)));
        let mut bytes = three();
        bytes[(5 * SECTOR) as usize + 100] ^= 1;
        let (list, walked) = found(&bytes);
        assert_eq!(list, [0, 5000]);
        assert!(walked.damage.is_empty() && walked.torn.is_some());
    }

    #[test]
    fn batches_of_an_earlier_use_are_none() {
        let mut bytes = three();
        SegmentHeader { number: 2, ..segment() }
            .encode_sector(&mut bytes[..SECTOR_BYTES]);
        let (list, walked) = found(&bytes);
        assert!(list.is_empty());
        assert_eq!(walked, Walked { end: SECTOR, ..Walked::default() });
    }
}
