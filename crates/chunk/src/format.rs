//! The bytes of a chunk file: header sector, commits, records, footer. Pure: encodes into and
//! decodes from slices, knows no file. docs/formats/chunk.md draws each box.
//!
//! Each header's checksum is stamped with the file's nonce and the header's own offset, so that a
//! header copied from elsewhere, even by an object that holds a chunk file, is not one.

use crate::api::{ChunkKind, Needle};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::codec_struct;
use holdfast_base::ids::{ChunkId, Generation, Slot, StoreId};
use holdfast_base::limits::{BLOCK_BYTES, SECTOR_BYTES};
use holdfast_env::planted;

/// Of chunks' files and of the journal.
pub const VERSION: u16 = 1;
/// Of a chunk's file whose first sector has a hint.
pub const HINTED_VERSION: u16 = 2;
/// Of a store as a whole. Since 2 it may have a journal, since 3 raw chunks with hints: files that
/// a build that does not know them would take for a stranger's, and with them what is in them.
pub const STORE_VERSION: u16 = 3;
pub const SECTOR: u64 = SECTOR_BYTES as u64;
pub const BLOCK: u64 = BLOCK_BYTES;

/// Of the closing mark.
pub const PROVEN_VERSION: u16 = 1;

pub const FILE_MAGIC: [u8; 8] = *b"HFCHUNK1";
pub const STORE_MAGIC: [u8; 8] = *b"HFSTORE1";
pub const PROVEN_MAGIC: [u8; 8] = *b"HFPROVEN";
pub const FOOTER_MAGIC: [u8; 8] = *b"HFFOOTER";
pub const TRAILER_MAGIC: [u8; 8] = *b"HFTRAILR";
pub const COMMIT_MAGIC: [u8; 4] = *b"HFCM";
pub const RECORD_MAGIC: [u8; 4] = *b"HFRC";

pub const STORE_FILE_BYTES: usize = 24;
pub const COMMIT_HEADER_BYTES: usize = 40;
pub const RECORD_HEADER_BYTES: usize = 44;
pub const FOOTER_HEADER_BYTES: usize = 64;
/// Records start on multiples of this; slot tables count in it.
pub const RECORD_ALIGN: u64 = 8;

/// Commit flag: no append follows, whoever holds the chunk.
pub const COMMIT_FENCE: u8 = 1;

const _: () = {
    assert!(COMMIT_HEADER_BYTES.is_multiple_of(RECORD_ALIGN as usize));
    // Slot tables keep offsets as 32-bit numbers of records' alignment.
    assert!(holdfast_base::limits::CHUNK_BYTES < (u32::MAX as u64) * RECORD_ALIGN);
};

impl Encode for ChunkKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl Decode for ChunkKind {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        ChunkKind::from_code(u8::decode(reader)?).ok_or(DecodeError::BadValue("chunk kind"))
    }
}

/// The first sector of a chunk file, written once before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    pub version: u16,
    pub kind: ChunkKind,
    pub generation: Generation,
    pub store: StoreId,
    pub chunk: ChunkId,
    pub owner: u64,
    pub capacity_bytes: u64,
    /// Random: enters every checksum of a header in this file.
    pub nonce: u64,
}
codec_struct!(FileHeader { version, kind, generation, store, chunk, owner, capacity_bytes, nonce });

/// Why a file's first sector is not a header of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    NotAChunk,
    Version(u16),
    Checksum,
}

/// Where the hint of a file of [`HINTED_VERSION`] is: its length, and then its bytes.
const HINT_AT: usize = 55;
const _: () = assert!(HINT_AT + 2 + crate::NEEDLE_HINT_BYTES_MAX <= SECTOR_BYTES - 4);

impl FileHeader {
    pub fn encode_sector(&self, sector: &mut [u8]) {
        self.encode_sector_with(&[], sector);
    }

    /// With a hint, which a file of [`VERSION`] has no place for.
    pub fn encode_sector_with(&self, hint: &[u8], sector: &mut [u8]) {
        assert!(hint.is_empty() || self.version == HINTED_VERSION, "it has a place for its hint");
        sector.fill(0);
        sector[..8].copy_from_slice(&FILE_MAGIC);
        let fields = self.to_bytes();
        sector[8..8 + fields.len()].copy_from_slice(&fields);
        sector[HINT_AT..HINT_AT + 2].copy_from_slice(&(hint.len() as u16).to_le_bytes());
        sector[HINT_AT + 2..][..hint.len()].copy_from_slice(hint);
        let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
        sector[SECTOR_BYTES - 4..SECTOR_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    pub fn decode_sector(sector: &[u8]) -> Result<FileHeader, HeaderError> {
        if sector.len() < SECTOR_BYTES || sector[..8] != FILE_MAGIC {
            return Err(HeaderError::NotAChunk);
        }
        let sector = &sector[..SECTOR_BYTES];
        if get_u32(sector, SECTOR_BYTES - 4) != crc32c(&sector[..SECTOR_BYTES - 4]) {
            return Err(HeaderError::Checksum);
        }
        let mut reader = Reader::new(&sector[8..]);
        let version = u16::from_le_bytes([sector[8], sector[9]]);
        if !(VERSION..=HINTED_VERSION).contains(&version) {
            return Err(HeaderError::Version(version));
        }
        FileHeader::decode(&mut reader).map_err(|_| HeaderError::NotAChunk)
    }

    /// The hint in the first sector of this file, whose checksum was verified.
    pub fn hint_in<'a>(&self, sector: &'a [u8]) -> &'a [u8] {
        let bytes = match sector.get(HINT_AT..HINT_AT + 2) {
            Some(len) if self.version == HINTED_VERSION => u16::from_le_bytes([len[0], len[1]]),
            _ => 0,
        };
        sector.get(HINT_AT + 2..HINT_AT + 2 + bytes as usize).unwrap_or(&[])
    }

    /// The stamp of a header that stands at `offset` of this file.
    pub fn place(&self, offset: u64) -> u32 {
        let nonce = if planted!("chunk.headers-of-any-file") { 0 } else { self.nonce };
        stamp(ChunkId(self.chunk.0 ^ nonce), self.generation, offset)
    }

    /// The stamp of data: block number, or slot, or block of a large needle.
    pub fn stamp(&self, position: u64) -> u32 {
        stamp(self.chunk, self.generation, position)
    }
}

pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// `STORE`: magic, version, two zero bytes, id, crc.
pub fn encode_store_file(id: StoreId) -> Vec<u8> {
    let mut out = STORE_MAGIC.to_vec();
    STORE_VERSION.encode(&mut out);
    0u16.encode(&mut out);
    id.encode(&mut out);
    let crc = crc32c(&out);
    crc.encode(&mut out);
    out
}

/// The store's version, this one or an earlier one, and its id.
pub fn decode_store_file(bytes: &[u8]) -> Result<(u16, StoreId), HeaderError> {
    if bytes.len() < 10 || bytes[..8] != STORE_MAGIC {
        return Err(HeaderError::NotAChunk);
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if !(1..=STORE_VERSION).contains(&version) {
        return Err(HeaderError::Version(version));
    }
    if bytes.len() != STORE_FILE_BYTES || get_u32(bytes, 20) != crc32c(&bytes[..20]) {
        return Err(HeaderError::Checksum);
    }
    let id = StoreId::from_bytes(&bytes[12..20]).map_err(|_| HeaderError::NotAChunk)?;
    Ok((version, id))
}

/// What one durable write holds begins with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHeader {
    pub flags: u8,
    /// From 1, increasing; a number is missing only after a refused write.
    pub sequence: u64,
    /// Every commit up to this one was durable before this one was written: what is invalid
    /// there now was acknowledged once.
    pub synced_before: u64,
    /// From the commit's start to the end of its last record.
    pub bytes: u64,
}

impl CommitHeader {
    pub fn encode_into(&self, file: &FileHeader, offset: u64, out: &mut [u8]) {
        out[..4].copy_from_slice(&COMMIT_MAGIC);
        out[4] = self.flags;
        out[5..8].fill(0);
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced_before.to_le_bytes());
        out[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        out[32..36].fill(0);
        let crc = crc32c(&out[..36]) ^ file.place(offset);
        put_u32(out, 36, crc);
    }

    pub fn decode_at(file: &FileHeader, bytes: &[u8], offset: u64) -> Option<CommitHeader> {
        let head = bytes.get(offset as usize..)?.get(..COMMIT_HEADER_BYTES)?;
        if head[..4] != COMMIT_MAGIC
            || get_u32(head, 36) != crc32c(&head[..36]) ^ file.place(offset)
        {
            return None;
        }
        let mut reader = Reader::new(&head[8..]);
        Some(CommitHeader {
            flags: head[4],
            sequence: u64::decode(&mut reader).ok()?,
            synced_before: u64::decode(&mut reader).ok()?,
            bytes: u64::decode(&mut reader).ok()?,
        })
    }
}

/// A record's fixed part; behind it the checksums of its pieces, the hint, the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: ChunkKind,
    pub flags: u8,
    pub hint_bytes: u16,
    /// The commit it was written in; 0 in compacted generations.
    pub sequence: u64,
    /// Raw: byte offset in the chunk. Packed: slot.
    pub position: u64,
    pub owner: u64,
    pub cookie: u32,
    pub payload_bytes: u32,
}
codec_struct!(RecordHeader {
    kind,
    flags,
    hint_bytes,
    sequence,
    position,
    owner,
    cookie,
    payload_bytes,
});

impl RecordHeader {
    pub fn needle(slot: Slot, needle: &Needle, payload_bytes: u32, sequence: u64) -> RecordHeader {
        RecordHeader {
            kind: ChunkKind::Packed,
            flags: needle.flags,
            hint_bytes: needle.hint.len() as u16,
            sequence,
            position: slot.0 as u64,
            owner: needle.owner.0,
            cookie: needle.cookie.0,
            payload_bytes,
        }
    }

    pub fn raw(at: u64, owner: u64, payload_bytes: u32, sequence: u64) -> RecordHeader {
        RecordHeader {
            kind: ChunkKind::Raw,
            flags: 0,
            hint_bytes: 0,
            sequence,
            position: at,
            owner,
            cookie: 0,
            payload_bytes,
        }
    }

    /// Where the pieces that carry a checksum each begin, relative to the payload: for raw data
    /// at the chunk's block boundaries, for needles every block of their own.
    fn first_block_offset(&self) -> u64 {
        match self.kind {
            ChunkKind::Raw => self.position % BLOCK,
            ChunkKind::Packed => 0,
        }
    }

    pub fn pieces(&self) -> u64 {
        piece_count(self.first_block_offset(), self.payload_bytes as u64)
    }

    /// Bytes of the payload that piece `i` covers.
    pub fn piece_range(&self, i: u64) -> std::ops::Range<u64> {
        let skew = self.first_block_offset();
        let end = ((i + 1) * BLOCK - skew).min(self.payload_bytes as u64);
        (i * BLOCK).saturating_sub(skew)..end
    }

    /// The stamp position of piece `i`.
    pub fn piece_position(&self, i: u64) -> u64 {
        match self.kind {
            ChunkKind::Raw => self.position / BLOCK + i,
            ChunkKind::Packed => needle_position(Slot(self.position as u32), i, self.pieces()),
        }
    }

    /// Bytes before the payload.
    pub fn head_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + 4 * self.pieces() + self.hint_bytes as u64
    }

    /// Bytes of the whole record, with the padding behind it.
    pub fn record_bytes(&self) -> u64 {
        (self.head_bytes() + self.payload_bytes as u64).next_multiple_of(RECORD_ALIGN)
    }

    /// Writes everything before the payload. `crcs` are plain; they are stamped here.
    pub fn encode_into(
        &self,
        file: &FileHeader,
        offset: u64,
        crcs: &[u32],
        hint: &[u8],
        out: &mut [u8],
    ) {
        assert_eq!(crcs.len() as u64, self.pieces(), "one checksum a piece");
        let head = &mut out[..self.head_bytes() as usize];
        let fields = self.to_bytes();
        head[..4].copy_from_slice(&RECORD_MAGIC);
        head[4..4 + fields.len()].copy_from_slice(&fields);
        for (i, crc) in crcs.iter().enumerate() {
            let stamped = crc ^ file.stamp(self.piece_position(i as u64));
            put_u32(head, RECORD_HEADER_BYTES + 4 * i, stamped);
        }
        let hint_at = head.len() - hint.len();
        head[hint_at..].copy_from_slice(hint);
        put_u32(head, 40, 0);
        let crc = crc32c(head) ^ file.place(offset);
        put_u32(head, 40, crc);
    }
}

/// Pieces of a body that begins `skew` bytes into a block; an empty body has one.
pub fn piece_count(skew: u64, bytes: u64) -> u64 {
    (skew + bytes).div_ceil(BLOCK).max(1)
}

/// Stamp position of piece `i` of a needle that has `pieces`.
pub fn needle_position(slot: Slot, i: u64, pieces: u64) -> u64 {
    if pieces == 1 { slot.0 as u64 } else { (slot.0 as u64) << 32 | (i + 1) }
}

/// A record found in a file: its verified header and where the rest is.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    pub header: RecordHeader,
    /// Stamped.
    crcs: &'a [u8],
    pub hint: &'a [u8],
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at `bytes[at..]`, where `bytes` begins at `base` of the file; `None` unless its
    /// head is whole and verifies. The payload is not verified here.
    pub fn decode_at(file: &FileHeader, bytes: &'a [u8], base: u64, at: u64) -> Option<Record<'a>> {
        let mut record = Record::decode_head_at(file, bytes, base, at)?;
        let head = (at - base) as usize + record.header.head_bytes() as usize;
        record.payload = bytes.get(head..)?.get(..record.header.payload_bytes as usize)?;
        Some(record)
    }

    /// As [`Record::decode_at`], without the payload, which need not be in `bytes`.
    pub fn decode_head_at(
        file: &FileHeader,
        bytes: &'a [u8],
        base: u64,
        at: u64,
    ) -> Option<Record<'a>> {
        let start = usize::try_from(at.checked_sub(base)?).ok()?;
        let rest = bytes.get(start..)?;
        let fixed = rest.get(..RECORD_HEADER_BYTES)?;
        if fixed[..4] != RECORD_MAGIC {
            return None;
        }
        let header = RecordHeader::decode(&mut Reader::new(&fixed[4..40])).ok()?;
        let head = rest.get(..header.head_bytes() as usize)?;
        // The checksum is computed with its own field as zero.
        let mut zeroed = [0; RECORD_HEADER_BYTES];
        zeroed[..40].copy_from_slice(&fixed[..40]);
        let behind = &head[RECORD_HEADER_BYTES..];
        let crc = holdfast_base::checksum::crc32c_combine(
            crc32c(&zeroed),
            crc32c(behind),
            behind.len() as u64,
        );
        if header.kind != file.kind || get_u32(fixed, 40) != crc ^ file.place(at) {
            return None;
        }
        let (crcs, hint) = behind.split_at(4 * header.pieces() as usize);
        Some(Record { header, crcs, hint, payload: &[] })
    }

    /// The plain checksum of piece `i`.
    pub fn crc(&self, file: &FileHeader, i: u64) -> u32 {
        get_u32(self.crcs, 4 * i as usize) ^ file.stamp(self.header.piece_position(i))
    }

    /// Plain checksums of all pieces.
    pub fn all_crcs(&self, file: &FileHeader) -> Vec<u32> {
        (0..self.header.pieces()).map(|i| self.crc(file, i)).collect()
    }

    pub fn piece_verifies(&self, file: &FileHeader, i: u64) -> bool {
        let range = self.header.piece_range(i);
        crc32c(&self.payload[range.start as usize..range.end as usize]) == self.crc(file, i)
    }

    /// All pieces verify.
    pub fn verifies(&self, file: &FileHeader) -> bool {
        (0..self.header.pieces()).all(|i| self.piece_verifies(file, i))
    }

    pub fn needle(&self) -> Needle {
        use holdfast_base::ids::{Cookie, FileId};
        Needle {
            owner: FileId(self.header.owner),
            cookie: Cookie(self.header.cookie),
            flags: self.header.flags,
            hint: self.hint.to_vec(),
        }
    }
}

/// Logical bytes of a raw chunk that stand together in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalExtent {
    pub logical: u64,
    pub physical: u64,
    pub bytes: u64,
}
codec_struct!(PhysicalExtent { logical, physical, bytes });

/// One object in a sealed packed chunk's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    pub slot: u32,
    /// Of the record, in units of [`RECORD_ALIGN`].
    pub offset_units: u32,
    pub owner: u64,
}
codec_struct!(IndexEntry { slot, offset_units, owner });

/// The footer's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// Extents in logical order (a gap is damage), and a stamped checksum for each block.
    Raw { extents: Vec<PhysicalExtent>, blocks: Vec<u32> },
    /// Objects in slot order, and the slots whose object was damaged before the seal.
    Packed { entries: Vec<IndexEntry>, damaged: Vec<u32> },
}

/// What a seal writes behind the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub length: u64,
    /// Where the data ends and the footer begins: a multiple of the sector.
    pub data_end: u64,
    pub table: Table,
}

/// The head of a footer, repeated in the file's last sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterHead {
    pub length: u64,
    pub data_end: u64,
    pub table_bytes: u64,
    pub table_crc: u32,
}

impl FooterHead {
    fn encode_into(&self, file: &FileHeader, magic: [u8; 8], offset: u64, out: &mut [u8]) {
        out[..FOOTER_HEADER_BYTES].fill(0);
        out[..8].copy_from_slice(&magic);
        out[8] = file.kind as u8;
        out[12..16].copy_from_slice(&file.generation.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.length.to_le_bytes());
        out[24..32].copy_from_slice(&self.data_end.to_le_bytes());
        out[32..40].copy_from_slice(&self.table_bytes.to_le_bytes());
        put_u32(out, 40, self.table_crc);
        let crc = crc32c(&out[..60]) ^ file.place(offset);
        put_u32(out, 60, crc);
    }

    /// The head (or, with the trailer's magic, its copy) at `offset`; `bytes` is what stands there.
    pub fn decode(
        file: &FileHeader,
        magic: [u8; 8],
        offset: u64,
        bytes: &[u8],
    ) -> Option<FooterHead> {
        let head = bytes.get(..FOOTER_HEADER_BYTES)?;
        if head[..8] != magic || get_u32(head, 60) != crc32c(&head[..60]) ^ file.place(offset) {
            return None;
        }
        let mut reader = Reader::new(&head[16..]);
        Some(FooterHead {
            length: u64::decode(&mut reader).ok()?,
            data_end: u64::decode(&mut reader).ok()?,
            table_bytes: u64::decode(&mut reader).ok()?,
            table_crc: get_u32(head, 40),
        })
    }

    /// Bytes of the file from `data_end` to its end.
    pub fn footer_bytes(&self) -> u64 {
        (FOOTER_HEADER_BYTES as u64 + self.table_bytes).next_multiple_of(SECTOR) + SECTOR
    }
}

impl Footer {
    /// The footer's bytes, to be written at `data_end`: whole sectors, the last one the trailer.
    pub fn encode_sectors(&self, file: &FileHeader) -> Vec<u8> {
        let mut table = Vec::new();
        match &self.table {
            Table::Raw { extents, blocks } => {
                extents.encode(&mut table);
                blocks.encode(&mut table);
            }
            Table::Packed { entries, damaged } => {
                entries.encode(&mut table);
                damaged.encode(&mut table);
            }
        }
        let head = FooterHead {
            length: self.length,
            data_end: self.data_end,
            table_bytes: table.len() as u64,
            table_crc: crc32c(&table) ^ file.place(self.data_end),
        };
        let mut out = vec![0; head.footer_bytes() as usize];
        head.encode_into(file, FOOTER_MAGIC, self.data_end, &mut out);
        out[FOOTER_HEADER_BYTES..][..table.len()].copy_from_slice(&table);
        let trailer = out.len() - SECTOR_BYTES;
        let trailer_offset = self.data_end + trailer as u64;
        head.encode_into(file, TRAILER_MAGIC, trailer_offset, &mut out[trailer..]);
        out
    }

    /// The footer whose head is `head`; `table` is what stands behind the head.
    pub fn decode(file: &FileHeader, head: &FooterHead, table: &[u8]) -> Option<Footer> {
        let table = table.get(..head.table_bytes as usize)?;
        if head.table_crc != crc32c(table) ^ file.place(head.data_end) {
            return None;
        }
        let mut reader = Reader::new(table);
        let table = match file.kind {
            ChunkKind::Raw => Table::Raw {
                extents: Vec::decode(&mut reader).ok()?,
                blocks: Vec::decode(&mut reader).ok()?,
            },
            ChunkKind::Packed => Table::Packed {
                entries: Vec::decode(&mut reader).ok()?,
                damaged: Vec::decode(&mut reader).ok()?,
            },
        };
        reader.finish().ok()?;
        Some(Footer { length: head.length, data_end: head.data_end, table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_file_says_its_version_as_soon_as_that_is_there() {
        let mut bytes = encode_store_file(StoreId(9));
        assert_eq!(decode_store_file(&bytes), Ok((STORE_VERSION, StoreId(9))));
        bytes[8..10].copy_from_slice(&999u16.to_le_bytes());
        for len in 0..bytes.len() {
            let expected =
                if len < 10 { HeaderError::NotAChunk } else { HeaderError::Version(999) };
            assert_eq!(decode_store_file(&bytes[..len]), Err(expected), "{len} bytes");
        }
    }
}
