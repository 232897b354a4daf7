//! Writing a file: small ones are kept until the close and sent whole, in one round trip; larger
//! ones go to raw chunks slice by slice, and the end of one whose length is known is packed. What
//! is not acknowledged is kept, so that a chunk that failed can be sealed and the rest sent to a
//! new one.

use super::slice::Slice;
use super::{Current, DURABLE_SLICES_IN_FLIGHT, Moves, SLICES_IN_FLIGHT};
use crate::client::{Client, NewFile, Ticket, decode, rest};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{Durability, FileId, Pointer};
use holdfast_base::limits::{PACKED_BYTES_MAX, SLICE_BYTES};
use holdfast_base::{Error, Kind, Result};
use holdfast_wire::{self as wire, chunk, file as msg};
use std::collections::VecDeque;
use std::mem;

/// A slice on its way.
struct InFlight {
    ticket: Ticket,
    at: u64,
    bytes: Slice,
}

/// A file that nobody sees before [`FileWriter::close`].
pub struct FileWriter<'a> {
    client: &'a mut Client,
    path: String,
    new: NewFile,
    /// How long the file is said to become.
    expected: Option<u64>,
    /// Bytes that no request carries yet: at most a slice, or the end that will be packed.
    buffer: Slice,
    /// Appends on their way at once.
    slices: Option<usize>,
    /// The file's id, once it needs a chunk.
    file: Option<FileId>,
    current: Option<Current>,
    /// The next chunk, asked for while the current one fills.
    next: Option<Ticket>,
    extents: Vec<msg::Extent>,
    /// Bytes in appends, acknowledged or not.
    sent: u64,
    in_flight: VecDeque<InFlight>,
    /// Buffers to use again.
    spare: Vec<Slice>,
    moves: Moves,
    /// Set by the first error: the stream is of no more use.
    failed: Option<Error>,
}

impl Client {
    /// Starts a file. It appears at its close; without one, nobody ever sees it.
    pub fn create(&mut self, path: &str, new: &NewFile) -> Result<FileWriter<'_>> {
        self.start(path, new, None)
    }

    /// As [`Client::create`], for a file whose length is known: whole chunks are filled, and the
    /// rest is packed with other small objects if it is at most a quarter of a chunk. A file that
    /// turns out shorter or longer is stored all the same.
    pub fn create_sized(
        &mut self,
        path: &str,
        new: &NewFile,
        bytes: u64,
    ) -> Result<FileWriter<'_>> {
        self.start(path, new, Some(bytes))
    }

    /// Stores `bytes`, however many, as [`Client::create_sized`] does.
    pub fn put_sized(&mut self, path: &str, bytes: &[u8], new: &NewFile) -> Result<FileId> {
        if bytes.len() as u64 <= PACKED_BYTES_MAX {
            return self.put(path, bytes, new);
        }
        let mut writer = self.create_sized(path, new, bytes.len() as u64)?;
        writer.write(bytes)?;
        writer.close()
    }

    fn start(
        &mut self,
        path: &str,
        new: &NewFile,
        expected: Option<u64>,
    ) -> Result<FileWriter<'_>> {
        holdfast_base::path::check(path)?;
        Ok(FileWriter {
            client: self,
            path: path.to_owned(),
            new: new.clone(),
            expected,
            buffer: Slice::default(),
            slices: None,
            file: None,
            current: None,
            next: None,
            extents: Vec::new(),
            sent: 0,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            moves: Moves::default(),
            failed: None,
        })
    }
}

impl FileWriter<'_> {
    /// How many appends are on their way at once; unless said otherwise two, and more where each
    /// waits for a sync.
    pub fn set_in_flight(&mut self, slices: usize) {
        self.slices = Some(slices.max(1));
    }

    /// Takes all of `bytes`. Returns before they are acknowledged; see [`FileWriter::flush`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.usable()?;
        while !bytes.is_empty() {
            let limit = if self.is_last() { PACKED_BYTES_MAX } else { SLICE_BYTES } as usize;
            let room = limit.saturating_sub(self.buffer.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            // The end of a file that is longer than was said outgrows its place.
            if self.buffer.len() >= limit && !(self.is_last() && bytes.is_empty()) {
                self.send_buffer()?;
            }
        }
        Ok(())
    }

    /// A direct write: `bytes` become an append of their own at once, whatever their number.
    /// Returns before it is acknowledged; blocks only while too many are on their way.
    pub fn submit(&mut self, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        if !self.buffer.is_empty() {
            self.send_buffer()?;
        }
        for slice in bytes.chunks(SLICE_BYTES as usize) {
            self.buffer.extend_from_slice(slice);
            self.send_buffer()?;
        }
        self.client.push();
        Ok(())
    }

    /// A direct write that returns when it is acknowledged.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.submit(bytes)?;
        self.flush()
    }

    /// Returns when every byte so far is acknowledged: it can be recovered, though only the close
    /// names it. Sends what is buffered, so many small flushes make many small appends.
    pub fn flush(&mut self) -> Result<()> {
        self.usable()?;
        if !self.buffer.is_empty() {
            self.send_buffer()?;
        }
        self.settle_all()
    }

    /// Names the file. Everything is acknowledged when this returns.
    pub fn close(mut self) -> Result<FileId> {
        self.usable()?;
        let closed = self.close_all();
        self.note(closed)
    }

    fn close_all(&mut self) -> Result<FileId> {
        let last = mem::take(&mut self.buffer);
        let Some(file) = self.file else {
            if last.len() as u64 <= PACKED_BYTES_MAX {
                return self.client.put(&self.path, &last, &self.new);
            }
            return Err(Error::bug("close a stream: more is buffered than one request holds"));
        };
        let remainder = if self.is_last() && !last.is_empty() {
            let remainder = msg::Remainder { file, crc: crc32c(&last) };
            let ticket = self.client.submit(wire::OP_REMAINDER, &remainder, &[&last])?;
            Some((ticket, last.len() as u64))
        } else {
            self.buffer = last;
            None
        };
        self.flush()?;
        self.finish_chunk();
        if let Some((ticket, bytes)) = remainder {
            let pointer: Pointer = decode(&self.client.wait(ticket)?)?;
            self.extents.push(msg::Extent::Packed { pointer, bytes });
        }
        let (node, extents) = (self.new.node(&self.path), mem::take(&mut self.extents));
        let close = |call| msg::Close { call, file, node, extents };
        let ticket = self.client.change(wire::OP_CLOSE, close, &[])?;
        decode(&self.client.wait(ticket)?)
    }

    /// Forgets the file and frees what it took.
    pub fn abandon(mut self) -> Result<()> {
        match self.file.take() {
            Some(file) => self.client.act(msg::Action::Abandon { file }),
            None => Ok(()),
        }
    }

    /// What is buffered and still to come is packed: as far as is known, it is at most a quarter
    /// of a chunk, and the chunks before it are full.
    fn is_last(&self) -> bool {
        let full = self.current.as_ref().is_none_or(|c| c.sent == c.grant.capacity);
        full && self.expected.is_some_and(|expected| {
            expected.saturating_sub(self.sent) <= PACKED_BYTES_MAX
                && self.buffer.len() as u64 <= PACKED_BYTES_MAX
        })
    }

    fn usable(&self) -> Result<()> {
        match &self.failed {
            Some(e) => Err(e.clone().context(format_args!("write `{}` after an error", self.path))),
            None => Ok(()),
        }
    }

    /// Sends the buffer as appends; blocks only while too many are in flight.
    fn send_buffer(&mut self) -> Result<()> {
        let empty = self.spare.pop().unwrap_or_default();
        let bytes = mem::replace(&mut self.buffer, empty);
        let sent = self.send_bytes(bytes);
        self.note(sent)
    }

    /// Remembers an error: after it, nobody knows which bytes are where.
    fn note<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.failed = Some(e.clone());
        }
        result
    }

    /// Cuts what is too long for an append, or does not fit into the chunk. Slices and chunks are
    /// aligned, so only odd flushes, and an end that turned out too long to be packed, are copied.
    fn send_bytes(&mut self, mut bytes: Slice) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.room()?;
            if room == 0 {
                self.settle_in_flight()?;
                self.finish_chunk();
                continue;
            }
            let now = (bytes.len() as u64).min(SLICE_BYTES).min(room) as usize;
            let rest = bytes.split_off(now);
            self.sent += now as u64;
            self.send(bytes)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Bytes that the current chunk still takes; makes one if there is none.
    fn room(&mut self) -> Result<u64> {
        if self.current.is_none() {
            let grant = self.next_grant()?;
            self.current = Some(Current { grant, sent: 0, acknowledged: 0 });
        }
        Ok(self.current.as_ref().map_or(0, |c| c.grant.capacity - c.sent))
    }

    fn next_grant(&mut self) -> Result<msg::Grant> {
        let file = match self.file {
            Some(file) => file,
            None => {
                let node = self.new.node(&self.path);
                let ticket =
                    self.client.change(wire::OP_BEGIN, |call| msg::Begin { call, node }, &[])?;
                let begun: msg::Begun = decode(&self.client.wait(ticket)?)?;
                *self.file.insert(begun.file)
            }
        };
        let ticket = match self.next.take() {
            Some(ticket) => ticket,
            None => self.ask_for_chunk(file)?,
        };
        decode(&self.client.wait(ticket)?)
    }

    fn ask_for_chunk(&mut self, file: FileId) -> Result<Ticket> {
        self.client.change(wire::OP_ALLOCATE, |call| msg::Allocate { call, file }, &[])
    }

    fn slices_max(&self) -> usize {
        let durability = self.current.as_ref().map(|current| current.grant.durability);
        self.slices.unwrap_or(match durability {
            Some(Durability::Durable) => DURABLE_SLICES_IN_FLIGHT,
            _ => SLICES_IN_FLIGHT,
        })
    }

    /// Sends one append; its bytes fit into the current chunk, if that is still there.
    fn send(&mut self, bytes: Slice) -> Result<()> {
        while self.in_flight.len() >= self.slices_max() {
            self.settle_one()?;
        }
        // Settling may have moved the stream to another chunk, which is as good as empty.
        if self.room()? < bytes.len() as u64 {
            self.settle_in_flight()?;
            self.finish_chunk();
            self.room()?;
        }
        let (Some(current), Some(file)) = (self.current.as_mut(), self.file) else {
            return Err(Error::bug("append: the stream has no chunk"));
        };
        let at = current.sent;
        let append = chunk::Append {
            chunk: current.grant.chunk,
            at,
            durability: current.grant.durability,
            crcs: bytes.piece_crcs(at),
        };
        current.sent += bytes.len() as u64;
        let half_full = current.sent >= current.grant.capacity / 2;
        let ticket = self.client.submit_once(wire::OP_CHUNK_APPEND, &append, &[&bytes])?;
        self.in_flight.push_back(InFlight { ticket, at, bytes });
        let ends_here = self.expected.is_some_and(|expected| {
            let room = self.current.as_ref().map_or(0, |c| c.grant.capacity - c.sent);
            expected.saturating_sub(self.sent) <= room + PACKED_BYTES_MAX
        });
        if half_full && self.next.is_none() && !ends_here {
            self.next = Some(self.ask_for_chunk(file)?);
        }
        Ok(())
    }

    fn settle_all(&mut self) -> Result<()> {
        let settled = self.settle_in_flight();
        self.note(settled)
    }

    fn settle_in_flight(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.settle_one()?;
        }
        Ok(())
    }

    fn settle_one(&mut self) -> Result<()> {
        let Some(slice) = self.in_flight.pop_front() else { return Ok(()) };
        let answer: Result<u64> = self.client.wait(slice.ticket).and_then(|r| decode(&r));
        match answer {
            Ok(_) => {
                if let Some(current) = self.current.as_mut() {
                    // The answer says the chunk's length; what this stream may count on is what
                    // it sent up to here.
                    current.acknowledged = slice.at + slice.bytes.len() as u64;
                }
                let mut bytes = slice.bytes;
                bytes.clear();
                // The first one, and what was cut, is not worth keeping.
                self.spare.push(bytes);
                Ok(())
            }
            Err(e) => {
                self.in_flight.push_front(slice);
                self.moved(e)
            }
        }
    }

    /// The chunk failed: has it sealed at what was acknowledged and sends the rest to a new one.
    /// An append is never sent twice to the same chunk, because nobody knows whether the first
    /// one arrived.
    fn moved(&mut self, e: Error) -> Result<()> {
        let (Some(file), Some(current)) = (self.file, self.current.take()) else { return Err(e) };
        let first = self.client.options.reconnect_pause;
        let Some(pause) = self.moves.pause(&e, &current, first) else { return Err(e) };
        let slices: Vec<InFlight> = mem::take(&mut self.in_flight).into();
        for slice in &slices {
            self.client.forget(slice.ticket);
        }
        let (chunk, acknowledged) = (current.grant.chunk, current.acknowledged);
        self.client.act(msg::Action::Seal { file, chunk, acknowledged })?;
        self.current = Some(current);
        self.finish_chunk();
        rest(pause);
        for slice in slices {
            self.send(slice.bytes)?;
        }
        Ok(())
    }

    fn finish_chunk(&mut self) {
        self.extents.extend(self.current.take().and_then(Current::extent));
    }
}

impl Drop for FileWriter<'_> {
    /// Without a close nobody sees the file; what was acknowledged of it can be salvaged. One that
    /// found no room is given up, or it would keep what it took from those that need some.
    fn drop(&mut self) {
        for slice in self.in_flight.drain(..) {
            self.client.forget(slice.ticket);
        }
        if let Some(ticket) = self.next.take() {
            self.client.forget(ticket);
        }
        let full = self.failed.as_ref().is_some_and(|e| e.kind == Kind::Full);
        if full && let Some(file) = self.file.take() {
            // Best effort: the refusal is what was told, and the node gives it up in time.
            let _ = self.client.act(msg::Action::Abandon { file });
        }
    }
}

impl std::io::Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        FileWriter::write(self, bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        FileWriter::flush(self).map_err(std::io::Error::other)
    }
}
