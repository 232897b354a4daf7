//! One file's bytes: which request brings which run, and the check of every run against the
//! checksums that were made when it was written. Holds no connection: each call is lent the client.
//! Used by [`super::FileReader`] and [`super::MultiStream`].

use crate::client::{Client, Ticket, decode, verify};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, FileId, Generation};
use holdfast_base::limits::{BLOCK_BYTES, SLICE_BYTES};
use holdfast_base::{Error, Kind, Result};
use holdfast_wire::{self as wire, chunk, file as msg};

/// Bytes located at once in a mapped region: a whole chunk, so that a read of it is one request.
const LOCATE_BYTES: u64 = holdfast_base::limits::CHUNK_BYTES;

/// A run of one extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Whose bytes they are.
    file: FileId,
    extent: msg::Extent,
    offset: u64,
    pub bytes: usize,
}

/// A run that was asked for.
pub(crate) struct Asked {
    pub ticket: Ticket,
    pub span: Span,
}

/// Where a chunk's bytes lie in the mapped region.
#[derive(Clone)]
struct Located {
    /// Which mapping the places are of.
    mappings: u32,
    chunk: ChunkId,
    generation: Generation,
    bytes: u64,
    located: chunk::Located,
}

/// A file's description and where its bytes are.
#[derive(Clone)]
pub(crate) struct Cursor {
    pub path: String,
    pub info: msg::FileInfo,
    /// A small file came whole, with its description.
    pub whole: Option<Vec<u8>>,
    extents: Vec<msg::Extent>,
    /// Bytes of the file before each extent, and at the end.
    starts: Vec<u64>,
    more_extents: bool,
    located: Option<Located>,
}

impl Cursor {
    /// From the answer to a get.
    pub fn asked(client: &mut Client, path: &str, ticket: Ticket) -> Result<Cursor> {
        let response = client.wait(ticket)?;
        let reply: msg::GetReply = decode(&response)?;
        let pieces = match &reply.content {
            msg::Content::Mapped { pieces, .. } => Some(pieces.clone()),
            _ => None,
        };
        let mut mapped = None;
        if let Some(pieces) = pieces {
            let mut bytes = vec![0; reply.info.size as usize];
            client.copy_mapped(&pieces, &mut bytes, path)?;
            mapped = Some(bytes);
        }
        Cursor::described(path, reply, || mapped.unwrap_or_else(|| response.into_body()))
    }

    /// From a get's answer; `bytes` gives those of a small file.
    pub fn described(
        path: &str,
        reply: msg::GetReply,
        bytes: impl FnOnce() -> Vec<u8>,
    ) -> Result<Cursor> {
        let mut cursor = Cursor {
            path: path.to_owned(),
            info: reply.info,
            whole: None,
            extents: Vec::new(),
            starts: vec![0],
            more_extents: false,
            located: None,
        };
        match reply.content {
            msg::Content::Body { crc } | msg::Content::Mapped { crc, .. } => {
                let bytes = bytes();
                verify(&bytes, crc, path)?;
                cursor.whole = Some(bytes);
            }
            msg::Content::Chunks { extents, more } => cursor.add_extents(extents, more),
        }
        Ok(cursor)
    }

    /// The answer to an asked run, into `out`, which is as long. What fails its checksum is asked
    /// for once more: a node that sends memory by its pages may have used it again, seconds after
    /// a file was deleted, and then says so.
    pub fn receive(&self, client: &mut Client, asked: &Asked, out: &mut [u8]) -> Result<()> {
        match self.receive_once(client, asked, out) {
            Err(e) if e.kind == Kind::Corrupt => {
                let again = self.ask(client, asked.span)?;
                self.receive_once(client, &again, out)
            }
            other => other,
        }
    }

    fn receive_once(&self, client: &mut Client, asked: &Asked, out: &mut [u8]) -> Result<()> {
        let response = client.wait_into(asked.ticket, out)?;
        if response.body_bytes() != out.len() {
            return Err(Error::corrupt(format!(
                "read `{}`: asked for {} bytes, {} came",
                self.path,
                out.len(),
                response.body_bytes()
            )));
        }
        let reply: chunk::ReadReply = decode(&response)?;
        check(&asked.span, &reply.crcs, out, &self.path)
    }

    pub fn add_extents(&mut self, extents: Vec<msg::Extent>, more: bool) {
        for extent in &extents {
            self.starts.push(self.starts[self.starts.len() - 1] + extent.bytes());
        }
        self.extents.extend(extents);
        self.more_extents = more;
    }

    /// As [`Cursor::span_of`], with the extents that it takes.
    pub fn span_at(
        &mut self,
        client: &mut Client,
        position: u64,
        bytes_max: usize,
    ) -> Result<Span> {
        while let Some(of) = self.missing(position) {
            let extents: Vec<msg::Extent> = client.ask(wire::OP_EXTENTS, &of)?;
            let more = !extents.is_empty();
            self.add_extents(extents, more);
        }
        self.span_of(position, bytes_max)
    }

    /// What to ask for before the place of `position` is known.
    pub fn missing(&self, position: u64) -> Option<msg::ExtentsOf> {
        let known = self.starts[self.starts.len() - 1];
        let of = msg::ExtentsOf { file: self.info.id, from: self.extents.len() as u32 };
        (position >= known && self.more_extents).then_some(of)
    }

    /// The run at `position`: within one extent, and within one slice of its chunk, so that whole
    /// blocks come with their stored checksums.
    pub fn span_of(&self, position: u64, bytes_max: usize) -> Result<Span> {
        let index = self.starts.partition_point(|start| *start <= position) - 1;
        let Some(extent) = self.extents.get(index).copied() else {
            return Err(Error::corrupt(format!(
                "read `{}`: its extents end at {position}, its size is {}; run `holdfast doctor`",
                self.path, self.info.size
            )));
        };
        let offset = position - self.starts[index];
        let in_slice = SLICE_BYTES - offset % SLICE_BYTES;
        let bytes = (extent.bytes() - offset).min(in_slice).min(bytes_max as u64) as usize;
        Ok(Span { file: self.info.id, extent, offset, bytes })
    }

    pub fn ask(&self, client: &mut Client, span: Span) -> Result<Asked> {
        let (opcode, message) = span.request();
        Ok(Asked { ticket: client.submit(opcode, &message, &[])?, span })
    }

    /// Copies a run out of the mapped region; false if it does not lie there.
    pub fn read_mapped(
        &mut self,
        client: &mut Client,
        span: &Span,
        out: &mut [u8],
    ) -> Result<bool> {
        let msg::Extent::Raw { chunk, generation, bytes: chunk_bytes } = span.extent else {
            return Ok(false);
        };
        if client.mapping.is_none() {
            return Ok(false);
        }
        if self.located.as_ref().is_none_or(|l| l.chunk != chunk || l.mappings != client.mappings) {
            let read = chunk::Read {
                chunk,
                generation,
                offset: 0,
                bytes: chunk_bytes.min(LOCATE_BYTES) as u32,
            };
            // Asking may make the connection anew, and the mapping with it.
            let located: chunk::Located = client.ask(wire::OP_CHUNK_LOCATE, &read)?;
            let bytes = located.pieces.iter().map(|piece| piece.bytes as u64).sum();
            self.located =
                Some(Located { mappings: client.mappings, chunk, generation, bytes, located });
        }
        let Some(located) = &self.located else { return Ok(false) };
        // Only whole blocks have stored checksums; the last one may be short.
        let end = span.offset + out.len() as u64;
        let whole = span.offset.is_multiple_of(BLOCK_BYTES)
            && (end.is_multiple_of(BLOCK_BYTES) || end == located.bytes);
        if !whole || end > located.bytes {
            return Ok(false);
        }
        let first = (span.offset / BLOCK_BYTES) as usize;
        let blocks = out.len().div_ceil(BLOCK_BYTES as usize);
        let crcs = &located.located.crcs[first..first + blocks];
        let Some(mapping) = &client.mapping else { return Ok(false) };
        if !mapping.copy_range(&located.located.pieces, span.offset, out)? {
            // The frames were reused: the file is gone or was replaced.
            return Err(Error::not_found(format!(
                "read `{}`: it was deleted while it was read",
                self.path
            )));
        }
        check(
            &Span {
                extent: msg::Extent::Raw { chunk, generation: located.generation, bytes: 0 },
                ..*span
            },
            crcs,
            out,
            &self.path,
        )?;
        Ok(true)
    }
}

/// One of the two messages that ask for a run.
pub(crate) enum ReadRun {
    Raw(chunk::Read),
    Object(chunk::ReadObject),
}

impl Encode for ReadRun {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ReadRun::Raw(read) => read.encode(out),
            ReadRun::Object(read) => read.encode(out),
        }
    }
}

impl Span {
    /// What to ask the node for.
    pub fn request(&self) -> (u16, ReadRun) {
        let (offset, bytes) = (self.offset, self.bytes as u32);
        match self.extent {
            msg::Extent::Raw { chunk, generation, .. } => {
                let read = chunk::Read { chunk, generation, offset, bytes };
                (wire::OP_CHUNK_READ, ReadRun::Raw(read))
            }
            msg::Extent::Packed { pointer, .. } => {
                let read = chunk::ReadObject { pointer, offset, bytes, file: self.file };
                (wire::OP_CHUNK_READ_OBJECT, ReadRun::Object(read))
            }
        }
    }
}

/// Verifies a run against the checksums of its pieces, cut at block borders.
pub(crate) fn check(span: &Span, crcs: &[u32], bytes: &[u8], path: &str) -> Result<()> {
    let damaged = || {
        Error::corrupt(format!(
            "read `{path}`: bytes at {} of chunk `{:?}` fail their checksum; they were not used, see `holdfast doctor`",
            span.offset, span.extent
        ))
    };
    let block = span.offset / BLOCK_BYTES;
    let mut seen = 0;
    for (i, piece) in chunk::pieces(span.offset, bytes).enumerate() {
        let position = match span.extent {
            msg::Extent::Raw { chunk, generation, .. } => {
                stamp(chunk, generation, block + i as u64)
            }
            // The server verified the object; its answer carries plain checksums.
            msg::Extent::Packed { .. } => 0,
        };
        if crcs.get(i).is_none_or(|crc| *crc != crc32c(piece) ^ position) {
            return Err(damaged());
        }
        seen = i + 1;
    }
    if seen == crcs.len() { Ok(()) } else { Err(damaged()) }
}
