//! Reading a file: slices are asked for ahead, so that one is on its way while another is used,
//! and arrive in the reader's own buffer where it is large enough. Every byte is verified here,
//! against the checksums that were made when it was written.

use super::SLICES_IN_FLIGHT;
use crate::client::{Client, Ticket, decode, verify};
use crate::wire::{self, chunk, file as msg};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::ids::{ChunkId, Generation};
use holdfast_base::limits::{BLOCK_BYTES, SLICE_BYTES};
use holdfast_base::{Error, Result};
use std::collections::VecDeque;

/// Bytes located at once in a mapped region: a whole chunk, so that a read of it is one request.
const LOCATE_BYTES: u64 = holdfast_base::limits::CHUNK_BYTES;

/// A run of one extent.
#[derive(Clone, Copy, Debug)]
struct Span {
    extent: msg::Extent,
    offset: u64,
    bytes: usize,
}

struct Asked {
    ticket: Ticket,
    span: Span,
}

/// Where a chunk's bytes lie in the mapped region.
struct Located {
    chunk: ChunkId,
    generation: Generation,
    start: u64,
    bytes: u64,
    located: chunk::Located,
}

/// A file (or multifile) open for reading.
pub struct FileReader<'a> {
    client: &'a mut Client,
    path: String,
    info: msg::FileInfo,
    extents: Vec<msg::Extent>,
    /// Bytes of the file before each extent, and at the end.
    starts: Vec<u64>,
    more_extents: bool,
    /// Where the next request begins, where the next byte for the caller lies.
    asked_to: u64,
    position: u64,
    asked: VecDeque<Asked>,
    /// Verified bytes that the caller has not taken.
    buffer: Vec<u8>,
    taken: usize,
    located: Option<Located>,
}

impl Client {
    /// Opens a file or multifile for reading.
    pub fn open(&mut self, path: &str) -> Result<FileReader<'_>> {
        let ticket = self.submit_get(path)?;
        let response = self.wait(ticket)?;
        let reply: msg::GetReply = decode(&response)?;
        let mut reader = FileReader {
            client: self,
            path: path.to_owned(),
            info: reply.info,
            extents: Vec::new(),
            starts: vec![0],
            more_extents: false,
            asked_to: 0,
            position: 0,
            asked: VecDeque::new(),
            buffer: Vec::new(),
            taken: 0,
            located: None,
        };
        match reply.content {
            msg::Content::Body { crc } => {
                verify(response.body(), crc, path)?;
                reader.whole(response.into_body());
            }
            msg::Content::Mapped { pieces, crc } => {
                let mut bytes = vec![0; reader.info.size as usize];
                reader.client.copy_mapped(&pieces, &mut bytes, path)?;
                verify(&bytes, crc, path)?;
                reader.whole(bytes);
            }
            msg::Content::Chunks { extents, more } => reader.add_extents(extents, more),
        }
        Ok(reader)
    }
}

impl FileReader<'_> {
    pub fn info(&self) -> &msg::FileInfo {
        &self.info
    }

    /// Bytes ready for the caller, verified; empty at the end. [`FileReader::consume`] takes them.
    pub fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.taken == self.buffer.len() {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(SLICE_BYTES as usize, 0);
            let got = self.fill(&mut buffer);
            buffer.truncate(*got.as_ref().unwrap_or(&0));
            (self.buffer, self.taken) = (buffer, 0);
            got?;
        }
        Ok(&self.buffer[self.taken..])
    }

    pub fn consume(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.buffer.len());
    }

    /// Reads up to `out.len()` bytes; 0 only at the end. A large `out` is filled without a copy
    /// in between.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.taken == self.buffer.len() && out.len() >= SLICE_BYTES as usize {
            return self.fill(out);
        }
        let ready = self.next_bytes()?;
        let n = ready.len().min(out.len());
        out[..n].copy_from_slice(&ready[..n]);
        self.consume(n);
        Ok(n)
    }

    /// Fills `out` from any position; what is read ahead is kept.
    pub fn read_exact_at(&mut self, out: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.info.size {
            return Err(Error::invalid(format!(
                "read `{}` at {offset}: {} bytes reach past its end at {}",
                self.path,
                out.len(),
                self.info.size
            )));
        }
        if self.extents.is_empty() {
            out.copy_from_slice(&self.buffer[offset as usize..end as usize]);
            return Ok(());
        }
        let mut done = 0;
        while done < out.len() {
            let span = self.span_at(offset + done as u64, out.len() - done)?;
            let part = &mut out[done..done + span.bytes];
            if !self.read_mapped(&span, part)? {
                let ticket = self.ask(&span)?;
                self.receive(&Asked { ticket, span }, part)?;
            }
            done += span.bytes;
        }
        Ok(())
    }

    /// A small file that came whole.
    fn whole(&mut self, bytes: Vec<u8>) {
        self.asked_to = self.info.size;
        self.position = self.info.size;
        self.buffer = bytes;
    }

    fn add_extents(&mut self, extents: Vec<msg::Extent>, more: bool) {
        for extent in &extents {
            self.starts.push(self.starts[self.starts.len() - 1] + extent.bytes());
        }
        self.extents.extend(extents);
        self.more_extents = more;
    }

    /// The next slice of the stream into `out`, which is at least a slice long.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.position >= self.info.size {
            return Ok(0);
        }
        if self.client.mapping.is_some() {
            let span = self.span_at(self.position, SLICE_BYTES as usize)?;
            if self.read_mapped(&span, &mut out[..span.bytes])? {
                self.position += span.bytes as u64;
                self.asked_to = self.position;
                return Ok(span.bytes);
            }
        }
        while self.asked.len() < SLICES_IN_FLIGHT && self.asked_to < self.info.size {
            let span = self.span_at(self.asked_to, SLICE_BYTES as usize)?;
            let ticket = self.ask(&span)?;
            self.asked_to += span.bytes as u64;
            self.asked.push_back(Asked { ticket, span });
        }
        let Some(asked) = self.asked.pop_front() else { return Ok(0) };
        self.receive(&asked, &mut out[..asked.span.bytes])?;
        self.position += asked.span.bytes as u64;
        // Ask for the next one before the caller works on this one.
        if self.asked_to < self.info.size {
            let span = self.span_at(self.asked_to, SLICE_BYTES as usize)?;
            let ticket = self.ask(&span)?;
            self.asked_to += span.bytes as u64;
            self.asked.push_back(Asked { ticket, span });
            self.client.connection.flush()?;
        }
        Ok(asked.span.bytes)
    }

    /// The run at `position`: within one extent, and within one slice of its chunk, so that whole
    /// blocks come with their stored checksums.
    fn span_at(&mut self, position: u64, bytes_max: usize) -> Result<Span> {
        while position >= self.starts[self.starts.len() - 1] && self.more_extents {
            let of = msg::ExtentsOf { file: self.info.id, from: self.extents.len() as u32 };
            let extents: Vec<msg::Extent> = self.client.ask(wire::OP_EXTENTS, &of)?;
            let more = !extents.is_empty();
            self.add_extents(extents, more);
        }
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
        Ok(Span { extent, offset, bytes })
    }

    fn ask(&mut self, span: &Span) -> Result<Ticket> {
        let (offset, bytes) = (span.offset, span.bytes as u32);
        match span.extent {
            msg::Extent::Raw { chunk, generation, .. } => {
                let read = chunk::Read { chunk, generation, offset, bytes };
                self.client.submit(wire::OP_CHUNK_READ, &read, &[])
            }
            msg::Extent::Packed { pointer, .. } => {
                let read = chunk::ReadObject { pointer, offset, bytes };
                self.client.submit(wire::OP_CHUNK_READ_OBJECT, &read, &[])
            }
        }
    }

    fn receive(&mut self, asked: &Asked, out: &mut [u8]) -> Result<()> {
        let response = self.client.wait_into(asked.ticket, out)?;
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

    /// Copies a run out of the mapped region; false if it does not lie there.
    fn read_mapped(&mut self, span: &Span, out: &mut [u8]) -> Result<bool> {
        let msg::Extent::Raw { chunk, generation, bytes: chunk_bytes } = span.extent else {
            return Ok(false);
        };
        if self.client.mapping.is_none() {
            return Ok(false);
        }
        if self.located.as_ref().is_none_or(|l| l.chunk != chunk) {
            let read = chunk::Read {
                chunk,
                generation,
                offset: 0,
                bytes: chunk_bytes.min(LOCATE_BYTES) as u32,
            };
            let located: chunk::Located = self.client.ask(wire::OP_CHUNK_LOCATE, &read)?;
            let bytes = located.pieces.iter().map(|piece| piece.bytes as u64).sum();
            self.located = Some(Located { chunk, generation, start: 0, bytes, located });
        }
        let Some(located) = &self.located else { return Ok(false) };
        // Only whole blocks have stored checksums; the last one may be short.
        let end = span.offset + out.len() as u64;
        let whole = span.offset.is_multiple_of(BLOCK_BYTES)
            && (end.is_multiple_of(BLOCK_BYTES) || end == located.start + located.bytes);
        if !whole || end > located.bytes {
            return Ok(false);
        }
        let first = (span.offset / BLOCK_BYTES) as usize;
        let blocks = out.len().div_ceil(BLOCK_BYTES as usize);
        let crcs = &located.located.crcs[first..first + blocks];
        let Some(mapping) = &self.client.mapping else { return Ok(false) };
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

/// Verifies a run against the checksums of its pieces, cut at block borders.
fn check(span: &Span, crcs: &[u32], bytes: &[u8], path: &str) -> Result<()> {
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

impl std::io::Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        FileReader::read(self, out).map_err(std::io::Error::other)
    }
}
