//! What a topic's files hold, byte by byte (docs/formats/log.md): segment header, commit header,
//! entry framing, trim mark, mark of reach. Pure: bytes in, values out. Nothing here trusts what it reads.

use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::ids::{ChunkId, Generation};
use holdfast_base::limits::{ENTRY_BYTES_MAX, SECTOR_BYTES};
use holdfast_env::planted;

pub const SECTOR: u64 = SECTOR_BYTES as u64;
pub const SEGMENT_MAGIC: [u8; 4] = *b"HFLS";
pub const COMMIT_MAGIC: [u8; 4] = *b"HFLC";
pub const TRIM_MAGIC: [u8; 4] = *b"HFLT";
pub const REACH_MAGIC: [u8; 4] = *b"HFLR";
pub const VERSION: u16 = 1;
pub const COMMIT_HEADER_BYTES: usize = 64;
/// Length and checksum in front of each entry.
pub const ENTRY_HEADER_BYTES: usize = 8;
/// Payload of one commit; a commit takes what is pending up to this, one append at the least.
pub const COMMIT_PAYLOAD_BYTES_MAX: usize = 4 << 20;
pub const TRIM_MARK_BYTES: usize = 32;
pub const REACH_MARK_BYTES: usize = 40;
const TOPIC_AT: usize = 40;

const _: () = {
    assert!(COMMIT_PAYLOAD_BYTES_MAX >= ENTRY_BYTES_MAX + ENTRY_HEADER_BYTES);
    assert!(TOPIC_AT + crate::topic::TOPIC_BYTES_MAX <= SECTOR_BYTES - 4);
};

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u32_at(bytes, at) as u64 | (u32_at(bytes, at + 4) as u64) << 32
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Why bytes are not what they should be; the caller adds file and offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    Magic,
    Version(u16),
    Checksum,
    /// A field has a value that does not fit here; names it.
    Field(&'static str),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Magic => f.write_str("it does not begin with its magic number"),
            Bad::Version(v) => write!(f, "it has version {v}, this build reads {VERSION}"),
            Bad::Checksum => f.write_str("its checksum does not match"),
            Bad::Field(what) => write!(f, "its {what} does not fit this place"),
        }
    }
}

/// The first sector of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub topic: String,
    pub topic_hash: u64,
    /// Index of the first entry; every entry below it was durable when this was written.
    pub first: u64,
    /// CRC of the commit header (or empty segment's header) before it; 0 in the first segment.
    pub chain: u32,
}

impl SegmentHeader {
    /// Fills the sector and returns its CRC: the chain's value for the first commit.
    pub fn encode(&self, sector: &mut [u8]) -> u32 {
        let sector = &mut sector[..SECTOR_BYTES];
        sector.fill(0);
        put(sector, 0, &SEGMENT_MAGIC);
        put(sector, 4, &VERSION.to_le_bytes());
        put(sector, 6, &(self.topic.len() as u16).to_le_bytes());
        put(sector, 8, &self.topic_hash.to_le_bytes());
        put(sector, 16, &self.first.to_le_bytes());
        put(sector, 24, &self.chain.to_le_bytes());
        put(sector, TOPIC_AT, self.topic.as_bytes());
        let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
        put(sector, SECTOR_BYTES - 4, &crc.to_le_bytes());
        crc
    }

    /// The header and its CRC.
    pub fn decode(sector: &[u8]) -> Result<(SegmentHeader, u32), Bad> {
        let sector = &sector[..SECTOR_BYTES];
        if sector[..4] != SEGMENT_MAGIC {
            return Err(Bad::Magic);
        }
        let crc = u32_at(sector, SECTOR_BYTES - 4);
        if crc32c(&sector[..SECTOR_BYTES - 4]) != crc {
            return Err(Bad::Checksum);
        }
        if u16_at(sector, 4) != VERSION {
            return Err(Bad::Version(u16_at(sector, 4)));
        }
        let topic_bytes = u16_at(sector, 6) as usize;
        let topic = sector[TOPIC_AT..SECTOR_BYTES - 4]
            .get(..topic_bytes)
            .and_then(|name| std::str::from_utf8(name).ok())
            .ok_or(Bad::Field("topic"))?;
        let header = SegmentHeader {
            topic: topic.to_owned(),
            topic_hash: u64_at(sector, 8),
            first: u64_at(sector, 16),
            chain: u32_at(sector, 24),
        };
        Ok((header, crc))
    }
}

/// The front of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHeader {
    pub topic_hash: u64,
    pub first: u64,
    /// Every entry below this index was durable when this commit was written. A valid commit
    /// behind an invalid place proves damage if it knew what was there to be durable.
    pub durable: u64,
    /// Offset of the commit in its segment.
    pub position: u64,
    pub count: u32,
    pub payload_bytes: u32,
    /// CRC of the header before this one.
    pub chain: u32,
    pub payload_crc: u32,
}

impl CommitHeader {
    /// Fills the header's bytes and returns its CRC, the next commit's `chain`.
    fn encode(&self, out: &mut [u8]) -> u32 {
        let out = &mut out[..COMMIT_HEADER_BYTES];
        out.fill(0);
        put(out, 0, &COMMIT_MAGIC);
        put(out, 4, &VERSION.to_le_bytes());
        put(out, 8, &self.topic_hash.to_le_bytes());
        put(out, 16, &self.first.to_le_bytes());
        put(out, 24, &self.durable.to_le_bytes());
        put(out, 32, &self.position.to_le_bytes());
        put(out, 40, &self.count.to_le_bytes());
        put(out, 44, &self.payload_bytes.to_le_bytes());
        put(out, 48, &self.chain.to_le_bytes());
        put(out, 52, &self.payload_crc.to_le_bytes());
        let crc = crc32c(&out[..COMMIT_HEADER_BYTES - 4]);
        put(out, COMMIT_HEADER_BYTES - 4, &crc.to_le_bytes());
        crc
    }

    /// The header at `position` of a segment of the topic, and its CRC.
    pub fn decode(
        bytes: &[u8],
        topic_hash: u64,
        position: u64,
    ) -> Result<(CommitHeader, u32), Bad> {
        let bytes = bytes.get(..COMMIT_HEADER_BYTES).ok_or(Bad::Field("length"))?;
        if bytes[..4] != COMMIT_MAGIC {
            return Err(Bad::Magic);
        }
        let crc = u32_at(bytes, COMMIT_HEADER_BYTES - 4);
        if crc32c(&bytes[..COMMIT_HEADER_BYTES - 4]) != crc {
            return Err(Bad::Checksum);
        }
        if u16_at(bytes, 4) != VERSION {
            return Err(Bad::Version(u16_at(bytes, 4)));
        }
        let header = CommitHeader {
            topic_hash: u64_at(bytes, 8),
            first: u64_at(bytes, 16),
            durable: u64_at(bytes, 24),
            position: u64_at(bytes, 32),
            count: u32_at(bytes, 40),
            payload_bytes: u32_at(bytes, 44),
            chain: u32_at(bytes, 48),
            payload_crc: u32_at(bytes, 52),
        };
        if header.topic_hash != topic_hash {
            return Err(Bad::Field("topic"));
        }
        if header.position != position {
            return Err(Bad::Field("position"));
        }
        let payload_bytes = header.payload_bytes as usize;
        if payload_bytes > COMMIT_PAYLOAD_BYTES_MAX
            || (header.count as usize) > payload_bytes / ENTRY_HEADER_BYTES
            || (header.count == 0) != (payload_bytes == 0)
        {
            return Err(Bad::Field("size"));
        }
        Ok((header, crc))
    }

    /// Where the next commit starts.
    pub fn end(&self) -> u64 {
        self.position + commit_bytes(self.payload_bytes as usize)
    }

    pub fn next(&self) -> u64 {
        self.first + self.count as u64
    }
}

/// Bytes that a commit with this payload takes in its segment: whole sectors.
pub fn commit_bytes(payload_bytes: usize) -> u64 {
    ((COMMIT_HEADER_BYTES + payload_bytes) as u64).next_multiple_of(SECTOR)
}

/// Bytes of an entry in a commit's payload.
pub fn framed_bytes(entry: &[u8]) -> usize {
    ENTRY_HEADER_BYTES + entry.len()
}

/// An entry's checksum binds its bytes to topic, length and index.
fn entry_crc(topic_hash: u64, index: u64, bytes: &[u8]) -> u32 {
    crc32c(bytes) ^ stamp(ChunkId(topic_hash), Generation(bytes.len() as u32), index)
}

/// Writes header, entries and padding into the front of `buf`, whole sectors; `count`,
/// `payload_bytes` and `payload_crc` are filled in. Returns the finished header and its CRC.
pub fn encode_commit<'a>(
    buf: &mut [u8],
    mut header: CommitHeader,
    entries: impl Iterator<Item = &'a [u8]>,
) -> (CommitHeader, u32) {
    let mut at = COMMIT_HEADER_BYTES;
    header.count = 0;
    for entry in entries {
        let index = header.first + header.count as u64;
        put(buf, at, &(entry.len() as u32).to_le_bytes());
        put(buf, at + 4, &entry_crc(header.topic_hash, index, entry).to_le_bytes());
        put(buf, at + ENTRY_HEADER_BYTES, entry);
        at += framed_bytes(entry);
        header.count += 1;
    }
    header.payload_bytes = (at - COMMIT_HEADER_BYTES) as u32;
    header.payload_crc = crc32c(&buf[COMMIT_HEADER_BYTES..at]);
    let crc = header.encode(buf);
    buf[at..at.next_multiple_of(SECTOR_BYTES)].fill(0);
    (header, crc)
}

/// Calls `each` with index and bytes of every entry whose checksum matches, until it says stop
/// (`false`). A mismatch ends it with the index of the bad entry.
pub fn for_each_entry(
    header: &CommitHeader,
    payload: &[u8],
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), u64> {
    let mut rest = payload;
    for index in header.first..header.next() {
        let framing = rest.get(..ENTRY_HEADER_BYTES).ok_or(index)?;
        let (len, crc) = (u32_at(framing, 0) as usize, u32_at(framing, 4));
        let bytes = rest[ENTRY_HEADER_BYTES..].get(..len).ok_or(index)?;
        let sound = entry_crc(header.topic_hash, index, bytes) == crc;
        if !sound && !planted!("log.entry-not-verified") {
            return Err(index);
        }
        if !each(index, bytes) {
            return Ok(());
        }
        rest = &rest[ENTRY_HEADER_BYTES + len..];
    }
    if rest.is_empty() { Ok(()) } else { Err(header.next()) }
}

/// Whether a commit's payload is whole: its checksum, its framing and every entry's checksum.
pub fn payload_is_valid(header: &CommitHeader, payload: &[u8]) -> bool {
    crc32c(payload) == header.payload_crc && for_each_entry(header, payload, |_, _| true).is_ok()
}

/// The file that makes a trim durable before any segment is deleted.
pub fn encode_trim_mark(topic_hash: u64, before: u64) -> [u8; TRIM_MARK_BYTES] {
    let mut bytes = [0; TRIM_MARK_BYTES];
    put(&mut bytes, 0, &TRIM_MAGIC);
    put(&mut bytes, 4, &VERSION.to_le_bytes());
    put(&mut bytes, 8, &topic_hash.to_le_bytes());
    put(&mut bytes, 16, &before.to_le_bytes());
    let crc = crc32c(&bytes[..TRIM_MARK_BYTES - 4]);
    put(&mut bytes, TRIM_MARK_BYTES - 4, &crc.to_le_bytes());
    bytes
}

pub fn decode_trim_mark(bytes: &[u8], topic_hash: u64) -> Result<u64, Bad> {
    if bytes.len() != TRIM_MARK_BYTES {
        return Err(Bad::Field("length"));
    }
    if bytes[..4] != TRIM_MAGIC {
        return Err(Bad::Magic);
    }
    if crc32c(&bytes[..TRIM_MARK_BYTES - 4]) != u32_at(bytes, TRIM_MARK_BYTES - 4) {
        return Err(Bad::Checksum);
    }
    if u16_at(bytes, 4) != VERSION {
        return Err(Bad::Version(u16_at(bytes, 4)));
    }
    if u64_at(bytes, 8) != topic_hash {
        return Err(Bad::Field("topic"));
    }
    Ok(u64_at(bytes, 16))
}

/// Says that nothing was ever written in a segment from an offset on. It begins a sector that is
/// written in place: what is torn is invalid, and says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachMark {
    pub topic_hash: u64,
    /// The segment's first index.
    pub first: u64,
    /// Commits end here or before.
    pub below: u64,
}

impl ReachMark {
    pub fn encode(&self) -> [u8; REACH_MARK_BYTES] {
        let mut bytes = [0; REACH_MARK_BYTES];
        put(&mut bytes, 0, &REACH_MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.topic_hash.to_le_bytes());
        put(&mut bytes, 16, &self.first.to_le_bytes());
        put(&mut bytes, 24, &self.below.to_le_bytes());
        let crc = crc32c(&bytes[..REACH_MARK_BYTES - 4]);
        put(&mut bytes, REACH_MARK_BYTES - 4, &crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8], topic_hash: u64) -> Result<ReachMark, Bad> {
        let bytes = bytes.get(..REACH_MARK_BYTES).ok_or(Bad::Field("length"))?;
        if bytes[..4] != REACH_MAGIC {
            return Err(Bad::Magic);
        }
        if crc32c(&bytes[..REACH_MARK_BYTES - 4]) != u32_at(bytes, REACH_MARK_BYTES - 4) {
            return Err(Bad::Checksum);
        }
        if u16_at(bytes, 4) != VERSION {
            return Err(Bad::Version(u16_at(bytes, 4)));
        }
        if u64_at(bytes, 8) != topic_hash {
            return Err(Bad::Field("topic"));
        }
        Ok(ReachMark { topic_hash, first: u64_at(bytes, 16), below: u64_at(bytes, 24) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<u8>, CommitHeader) {
        let header = CommitHeader {
            topic_hash: 77,
            first: 10,
            durable: 9,
            position: 4096,
            count: 0,
            payload_bytes: 0,
            chain: 5,
            payload_crc: 0,
        };
        let mut buf = vec![0xff; 8192];
        let entries: [&[u8]; 3] = [b"one", b"", &[7; 200]];
        let (header, _) = encode_commit(&mut buf, header, entries.into_iter());
        (buf, header)
    }

    #[test]
    fn a_commit_comes_back_and_is_padded_with_zeros() {
        let (buf, header) = sample();
        let (decoded, _) = CommitHeader::decode(&buf, 77, 4096).unwrap();
        assert_eq!(decoded, header);
        assert_eq!((header.count, header.end()), (3, 8192));
        let end = COMMIT_HEADER_BYTES + header.payload_bytes as usize;
        assert!(buf[end..4096].iter().all(|&b| b == 0) && buf[4096] == 0xff);
        let mut seen = Vec::new();
        for_each_entry(&header, &buf[COMMIT_HEADER_BYTES..end], |i, b| {
            seen.push((i, b.len()));
            true
        })
        .unwrap();
        assert_eq!(seen, [(10, 3), (11, 0), (12, 200)]);
        assert!(payload_is_valid(&header, &buf[COMMIT_HEADER_BYTES..end]));
    }

    #[test]
    fn a_commit_read_for_another_place_or_topic_is_refused() {
        let (buf, header) = sample();
        assert_eq!(CommitHeader::decode(&buf, 78, 4096), Err(Bad::Field("topic")));
        assert_eq!(CommitHeader::decode(&buf, 77, 8192), Err(Bad::Field("position")));
        let end = COMMIT_HEADER_BYTES + header.payload_bytes as usize;
        let moved = CommitHeader { first: 11, ..header };
        let payload = &buf[COMMIT_HEADER_BYTES..end];
        assert_eq!(for_each_entry(&moved, payload, |_, _| true), Err(11));
    }

    #[test]
    fn every_flipped_bit_of_a_commit_is_noticed() {
        let (buf, header) = sample();
        let end = COMMIT_HEADER_BYTES + header.payload_bytes as usize;
        for bit in 0..end * 8 {
            let mut bad = buf[..end].to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let valid = CommitHeader::decode(&bad, 77, 4096)
                .is_ok_and(|(h, _)| payload_is_valid(&h, &bad[COMMIT_HEADER_BYTES..]));
            assert!(!valid, "bit {bit}");
            let entries = for_each_entry(&header, &bad[COMMIT_HEADER_BYTES..], |_, _| true);
            assert_eq!(entries.is_err(), bit >= COMMIT_HEADER_BYTES * 8, "bit {bit}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_segment_header_or_mark_is_noticed() {
        let header = SegmentHeader { topic: "ns/0".into(), topic_hash: 1, first: 2, chain: 3 };
        let mut sector = vec![0; SECTOR_BYTES];
        let crc = header.encode(&mut sector);
        assert_eq!(SegmentHeader::decode(&sector), Ok((header, crc)));
        let mark = encode_trim_mark(9, 100);
        assert_eq!(decode_trim_mark(&mark, 9), Ok(100));
        assert_eq!(decode_trim_mark(&mark, 8), Err(Bad::Field("topic")));
        for bit in 0..SECTOR_BYTES * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&sector).is_err(), "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..TRIM_MARK_BYTES * 8 {
            let mut bad = mark;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_trim_mark(&bad, 9).is_err(), "bit {bit}");
        }
        let reach = ReachMark { topic_hash: 9, first: 5, below: 8192 };
        let bytes = reach.encode();
        assert_eq!(ReachMark::decode(&bytes, 9), Ok(reach));
        assert_eq!(ReachMark::decode(&bytes, 8), Err(Bad::Field("topic")));
        for bit in 0..REACH_MARK_BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ReachMark::decode(&bad, 9).is_err(), "bit {bit}");
        }
    }
}
