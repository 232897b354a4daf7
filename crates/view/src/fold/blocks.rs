//! A snapshot as blocks: a header sector that says of what and up to where, blocks with their own
//! checksums, a footer that says that nothing is missing. Written and read as a stream, from the
//! first byte to the last: in files, and in what nodes hand each other. Knows nothing of views and
//! of files' names. Format: docs/formats/log.md.

use holdfast_base::checksum::{crc32c, crc32c_combine, stamp};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{ChunkId, Generation, Index};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::stream::Writer;
use holdfast_base::{Error, Result};
use holdfast_env::File;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_log::{TOPIC_BYTES_MAX, Window};

pub const MAGIC: [u8; 4] = *b"HFSS";
const FOOTER_MAGIC: [u8; 4] = *b"HFSE";
pub const VERSION: u16 = 3;
/// The version before, which is read and not written any more: its payload has no term.
const VERSION_WITHOUT_TERM: u16 = 2;
/// The one before that. Its header says how long the payload
/// is; its blocks begin at multiples of [`PADDED_BYTES`] behind the header, and no footer follows.
const VERSION_PADDED: u16 = 1;
const PADDED_BYTES: u64 = 64 << 10;
/// Payload of each block but the last, which may be shorter.
pub static BLOCK_BYTES: Knob = Knob::new("log.snapshot-block-bytes", 64 << 10, &[1, 7, 100]);
/// The longest block that a header may announce; more is a damaged header.
const BLOCK_BYTES_MAX: u32 = 64 << 20;
/// Length and checksum in front of each block.
const BLOCK_HEADER_BYTES: usize = 8;
const FOOTER_BYTES: usize = 32;
/// What is read from the file at a time.
const WINDOW_BYTES: usize = 256 << 10;
/// The largest payload that a header may announce; more is a damaged header.
const PAYLOAD_BYTES_MAX: u64 = 64 << 30;
const NAMES_AT: usize = 56;
const NAME_BYTES_MAX: usize = 255;

const _: () = {
    assert!(PADDED_BYTES.is_multiple_of(SECTOR_BYTES as u64));
    assert!(NAMES_AT + NAME_BYTES_MAX + TOPIC_BYTES_MAX <= SECTOR_BYTES - 4);
};

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub view: String,
    pub view_version: u32,
    pub topic: String,
    /// The last entry that it contains, that entry's CRC32C, and the digest after it.
    pub index: Index,
    pub entry_crc: u32,
    pub digest: u64,
    /// Whether the payload says for which term the topic was claimed last.
    pub has_term: bool,
}

/// Where the blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One behind the other, up to the footer.
    Dense { block_bytes: u32 },
    /// At fixed distances, as many as the payload needs: [`VERSION_PADDED`].
    Padded { payload_bytes: u64, payload_crc: u32 },
}

impl Header {
    fn encode(&self, block_bytes: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(SECTOR_BYTES);
        out.extend_from_slice(&MAGIC);
        VERSION.encode(&mut out);
        0u16.encode(&mut out);
        self.index.encode(&mut out);
        self.digest.encode(&mut out);
        0u64.encode(&mut out);
        block_bytes.encode(&mut out);
        self.entry_crc.encode(&mut out);
        self.view_version.encode(&mut out);
        (self.view.len() as u16).encode(&mut out);
        (self.topic.len() as u16).encode(&mut out);
        out.resize(NAMES_AT, 0);
        out.extend_from_slice(self.view.as_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        out.resize(SECTOR_BYTES - 4, 0);
        crc32c(&out).encode(&mut out);
        out
    }

    fn decode(sector: &[u8]) -> std::result::Result<(Header, Layout), String> {
        let (body, crc) = sector.split_at(SECTOR_BYTES - 4);
        if body[..4] != MAGIC {
            return Err("it is no snapshot".into());
        }
        if crc32c(body).to_le_bytes() != *crc {
            return Err("its header fails its checksum".into());
        }
        let mut reader = Reader::new(&body[4..NAMES_AT]);
        let mut fields = || -> std::result::Result<_, DecodeError> {
            let version = u16::decode(&mut reader)?;
            u16::decode(&mut reader)?;
            let numbers = (
                u64::decode(&mut reader)?,
                u64::decode(&mut reader)?,
                u64::decode(&mut reader)?,
                u32::decode(&mut reader)?,
                u32::decode(&mut reader)?,
                u32::decode(&mut reader)?,
            );
            let lengths = (u16::decode(&mut reader)? as usize, u16::decode(&mut reader)? as usize);
            Ok((version, numbers, lengths))
        };
        let (version, numbers, (view_bytes, topic_bytes)) = fields().map_err(|e| e.to_string())?;
        let (index, digest, payload_bytes, layout, entry_crc, view_version) = numbers;
        let layout = match version {
            VERSION_PADDED => Layout::Padded { payload_bytes, payload_crc: layout },
            VERSION_WITHOUT_TERM | VERSION => Layout::Dense { block_bytes: layout },
            _ => return Err(format!("it has version {version}, this build reads up to {VERSION}")),
        };
        if payload_bytes > PAYLOAD_BYTES_MAX
            || matches!(layout, Layout::Dense { block_bytes } if block_bytes > BLOCK_BYTES_MAX)
        {
            return Err(format!("it announces {layout:?}"));
        }
        let name = |at: usize, len: usize| {
            let bytes = body.get(at..at + len).ok_or("its names are too long")?;
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "its names are no text")
        };
        let header = Header {
            view: name(NAMES_AT, view_bytes)?,
            view_version,
            topic: name(NAMES_AT + view_bytes, topic_bytes)?,
            index: Index(index),
            entry_crc,
            digest,
            has_term: version == VERSION,
        };
        Ok((header, layout))
    }
}

/// A block's checksum binds it to its snapshot, by the index of the last entry, and to its place in
/// there.
fn block_crc(index: Index, block: u64, payload: &[u8]) -> u32 {
    crc32c(payload) ^ stamp(ChunkId(index.0), Generation(payload.len() as u32), block)
}

/// What the footer says of all blocks: how many there were, the bytes of their payloads, and the
/// CRC32C of those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    blocks: u64,
    bytes: u64,
    crc: u32,
}

impl Sum {
    fn add(&mut self, payload: &[u8]) {
        self.blocks += 1;
        self.bytes += payload.len() as u64;
        self.crc = crc32c_combine(self.crc, crc32c(payload), payload.len() as u64);
    }

    /// Begins like a block without a payload; every real block has one, so that a reader knows it
    /// for the end.
    fn footer(&self, index: Index) -> Vec<u8> {
        let mut body = Vec::with_capacity(FOOTER_BYTES);
        self.blocks.encode(&mut body);
        self.bytes.encode(&mut body);
        self.crc.encode(&mut body);
        body.extend_from_slice(&FOOTER_MAGIC);
        let mut footer = Vec::with_capacity(FOOTER_BYTES);
        0u32.encode(&mut footer);
        block_crc(index, self.blocks, &body).encode(&mut footer);
        footer.append(&mut body);
        footer
    }
}

/// Writes a snapshot whose payload is what `fill` puts; nothing of it is durable yet.
pub fn write(
    file: &dyn File,
    header: &Header,
    fill: impl FnOnce(&mut Writer<'_>) -> Result<()>,
) -> Result<()> {
    let block_bytes = BLOCK_BYTES.size();
    file.write_at(&header.encode(block_bytes as u32), 0)?;
    let (mut at, mut sum) = (SECTOR_BYTES as u64, Sum::default());
    let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + block_bytes);
    let mut piece = |payload: &[u8]| {
        if sum.blocks > 0 {
            BLOCK_BYTES.cross();
        }
        block.clear();
        (payload.len() as u32).encode(&mut block);
        block_crc(header.index, sum.blocks, payload).encode(&mut block);
        block.extend_from_slice(payload);
        file.write_at(&block, at)?;
        at += block.len() as u64;
        sum.add(payload);
        Ok(())
    };
    let mut out = Writer::new(block_bytes, &mut piece);
    let filled = fill(&mut out);
    out.finish().and(filled)?;
    if planted!("log.snapshot-without-footer") {
        return Ok(());
    }
    let mut footer = sum.footer(header.index);
    let end = (at as usize + footer.len()).next_multiple_of(SECTOR_BYTES);
    footer.resize(end - at as usize, 0);
    file.write_at(&footer, at)?;
    Ok(())
}

/// Reads a snapshot block by block. Each block is verified before it is handed out; that none is
/// missing is known once the end was reached.
pub struct Blocks<'a> {
    window: Window<'a>,
    pub header: Header,
    layout: Layout,
    at: u64,
    sum: Sum,
}

impl<'a> Blocks<'a> {
    pub fn open(file: &'a dyn File) -> Result<Blocks<'a>> {
        let mut window = Window::new(file, WINDOW_BYTES);
        let decoded = Header::decode(window.get(0, SECTOR_BYTES)?);
        let (header, layout) = decoded.map_err(Error::corrupt)?;
        Ok(Blocks { window, header, layout, at: SECTOR_BYTES as u64, sum: Sum::default() })
    }

    /// Appends the next block's payload; false at the end.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let (block, index) = (self.sum.blocks, self.header.index);
        let fails = || Error::corrupt(format!("block {block} fails its checksum"));
        let head = self.window.get(self.at, BLOCK_HEADER_BYTES)?;
        let (bytes, crc) = (u32::from_bytes(&head[..4])?, u32::from_bytes(&head[4..])?);
        let expected = match self.layout {
            Layout::Dense { .. } if bytes == 0 => return self.end(),
            Layout::Dense { block_bytes } => bytes.min(block_bytes),
            Layout::Padded { payload_bytes, payload_crc } => {
                let left = payload_bytes - self.sum.bytes;
                if left == 0 && self.sum.crc != payload_crc {
                    return Err(Error::corrupt(
                        "its payload is not the one that its header describes",
                    ));
                }
                if left == 0 {
                    return Ok(false);
                }
                left.min(PADDED_BYTES - BLOCK_HEADER_BYTES as u64) as u32
            }
        };
        if bytes != expected {
            return Err(fails());
        }
        let at = self.at + BLOCK_HEADER_BYTES as u64;
        let payload = self.window.get(at, bytes as usize)?;
        if block_crc(index, block, payload) != crc {
            return Err(fails());
        }
        out.extend_from_slice(payload);
        self.sum.add(payload);
        self.at = match self.layout {
            Layout::Dense { .. } => at + bytes as u64,
            Layout::Padded { .. } => self.at + PADDED_BYTES,
        };
        Ok(true)
    }

    fn end(&mut self) -> Result<bool> {
        let footer = self.sum.footer(self.header.index);
        match self.window.get(self.at, FOOTER_BYTES)? == footer {
            true => Ok(false),
            false => Err(Error::corrupt("it is cut short, or its footer is damaged")),
        }
    }

    /// Reads everything up to the end.
    pub fn verify(mut self) -> Result<Header> {
        let mut block = Vec::new();
        while self.next(&mut block)? {
            block.clear();
        }
        Ok(self.header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header may be wrong and have the right checksum all the same: memory is reserved for what it
    /// announces, so it is refused beyond the limits.
    #[test]
    fn a_header_that_announces_more_than_the_limits_is_refused() {
        let header = Header {
            view: "v".into(),
            view_version: 1,
            topic: "t".into(),
            index: Index(1),
            entry_crc: 2,
            digest: 3,
            has_term: true,
        };
        assert!(Header::decode(&header.encode(BLOCK_BYTES_MAX)).is_ok());
        assert!(Header::decode(&header.encode(BLOCK_BYTES_MAX + 1)).is_err());
        for (payload_bytes, fits) in
            [(PAYLOAD_BYTES_MAX, true), (PAYLOAD_BYTES_MAX + 1, false), (u64::MAX, false)]
        {
            let mut sector = header.encode(1);
            sector[4..6].copy_from_slice(&VERSION_PADDED.to_le_bytes());
            sector[24..32].copy_from_slice(&payload_bytes.to_le_bytes());
            let crc = crc32c(&sector[..SECTOR_BYTES - 4]);
            sector[SECTOR_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Header::decode(&sector).is_ok(), fits, "{payload_bytes} bytes");
        }
    }
}
