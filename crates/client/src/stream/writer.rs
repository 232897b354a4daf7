//! Writing a file: small ones are kept until the close and sent whole, in one round trip; larger
//! ones go to raw chunks slice by slice. What is not acknowledged is kept, so that a chunk that
//! failed can be sealed and the rest sent to a new one.

use super::SLICES_IN_FLIGHT;
use crate::client::{Client, NewFile, Ticket, decode};
use crate::wire::{self, chunk, file as msg};
use holdfast_base::ids::FileId;
use holdfast_base::limits::SLICE_BYTES;
use holdfast_base::{Error, Kind, Result};
use std::collections::VecDeque;
use std::mem;

/// How often one stream moves to a new chunk because its old one failed, before it gives up.
const MOVES_MAX: usize = 8;

/// A slice on its way.
struct InFlight {
    ticket: Ticket,
    at: u64,
    bytes: Vec<u8>,
}

/// The chunk that takes appends now.
struct Current {
    grant: msg::Grant,
    /// Bytes sent to it, and bytes it has acknowledged.
    sent: u64,
    acknowledged: u64,
}

/// A file that nobody sees before [`FileWriter::close`].
pub struct FileWriter<'a> {
    client: &'a mut Client,
    path: String,
    new: NewFile,
    /// Bytes that no request carries yet; at most a slice.
    buffer: Vec<u8>,
    /// The file's id, once it outgrew one slice.
    file: Option<FileId>,
    current: Option<Current>,
    /// The next chunk, asked for while the current one fills.
    next: Option<Ticket>,
    extents: Vec<msg::Extent>,
    in_flight: VecDeque<InFlight>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    moves: usize,
    /// Set by the first error: the stream is of no more use.
    failed: Option<Error>,
}

impl Client {
    /// Starts a file. It appears at its close; without one, nobody ever sees it.
    pub fn create(&mut self, path: &str, new: &NewFile) -> Result<FileWriter<'_>> {
        holdfast_base::path::check(path)?;
        Ok(FileWriter {
            client: self,
            path: path.to_owned(),
            new: new.clone(),
            buffer: Vec::with_capacity(SLICE_BYTES as usize),
            file: None,
            current: None,
            next: None,
            extents: Vec::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            moves: 0,
            failed: None,
        })
    }
}

impl FileWriter<'_> {
    /// Takes all of `bytes`. Returns before they are acknowledged; see [`FileWriter::flush`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.usable()?;
        while !bytes.is_empty() {
            let room = SLICE_BYTES as usize - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == SLICE_BYTES as usize {
                self.send_buffer()?;
            }
        }
        Ok(())
    }

    /// Returns when every byte so far is acknowledged: it can be recovered, though only the close
    /// names it. Sends what is buffered, so many small flushes make many small appends.
    pub fn flush(&mut self) -> Result<()> {
        self.usable()?;
        if !self.buffer.is_empty() {
            self.send_buffer()?;
        }
        while !self.in_flight.is_empty() {
            self.settle_one()?;
        }
        Ok(())
    }

    /// Names the file. Everything is acknowledged when this returns.
    pub fn close(mut self) -> Result<FileId> {
        self.usable()?;
        if self.file.is_none() {
            let bytes = mem::take(&mut self.buffer);
            return self.client.put(&self.path, &bytes, &self.new);
        }
        self.flush()?;
        self.finish_chunk();
        let Some(file) = self.file else {
            return Err(Error::bug("close a stream: it has no file"));
        };
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

    fn usable(&self) -> Result<()> {
        match &self.failed {
            Some(e) => Err(e.clone().context(format_args!("write `{}` after an error", self.path))),
            None => Ok(()),
        }
    }

    /// Sends the buffer as appends; blocks only while too many are in flight.
    fn send_buffer(&mut self) -> Result<()> {
        let sent = self.try_send_buffer();
        if let Err(e) = &sent {
            self.failed = Some(e.clone());
        }
        sent
    }

    fn try_send_buffer(&mut self) -> Result<()> {
        let empty = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(SLICE_BYTES as usize));
        let mut bytes = mem::replace(&mut self.buffer, empty);
        // A slice that does not fit into the chunk is cut; slices and chunks are aligned, so only
        // a stream with odd flushes pays this copy.
        loop {
            let room = self.room()?;
            if room >= bytes.len() as u64 {
                return self.send(bytes);
            }
            let rest = bytes.split_off(room as usize);
            if !bytes.is_empty() {
                self.send(bytes)?;
            }
            bytes = rest;
            self.finish_current()?;
        }
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

    fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        while self.in_flight.len() >= SLICES_IN_FLIGHT {
            self.settle_one()?;
        }
        // Settling may have moved the stream to another chunk.
        if self.room()? < bytes.len() as u64 {
            return Err(Error::bug("append: a fresh chunk has no room for a slice"));
        }
        let (Some(current), Some(file)) = (self.current.as_mut(), self.file) else {
            return Err(Error::bug("append: the stream has no chunk"));
        };
        let at = current.sent;
        let append = chunk::Append {
            chunk: current.grant.chunk,
            at,
            durability: current.grant.durability,
            crcs: chunk::piece_crcs(at, &bytes),
        };
        current.sent += bytes.len() as u64;
        let half_full = current.sent >= current.grant.capacity / 2;
        let submitted = self.client.submit(wire::OP_CHUNK_APPEND, &append, &[&bytes]);
        match submitted {
            Ok(ticket) => self.in_flight.push_back(InFlight { ticket, at, bytes }),
            Err(e) => {
                self.moved(e, Some(bytes))?;
            }
        }
        if half_full && self.next.is_none() {
            self.next = Some(self.ask_for_chunk(file)?);
        }
        Ok(())
    }

    fn settle_one(&mut self) -> Result<()> {
        let Some(slice) = self.in_flight.pop_front() else { return Ok(()) };
        let answer: Result<u64> = self.client.wait(slice.ticket).and_then(|r| decode(&r));
        match answer {
            Ok(acknowledged) => {
                if let Some(current) = self.current.as_mut() {
                    current.acknowledged = acknowledged.max(slice.at + slice.bytes.len() as u64);
                }
                let mut bytes = slice.bytes;
                bytes.clear();
                self.spare.push(bytes);
                Ok(())
            }
            Err(e) => {
                self.in_flight.push_front(slice);
                self.moved(e, None)
            }
        }
    }

    /// The chunk failed: has it sealed at what was acknowledged and sends the rest to a new one.
    fn moved(&mut self, e: Error, unsent: Option<Vec<u8>>) -> Result<()> {
        let gone = matches!(e.kind, Kind::Retry | Kind::Fenced);
        self.moves += 1;
        if !gone || self.moves > MOVES_MAX {
            return Err(e);
        }
        let (Some(file), Some(current)) = (self.file, self.current.take()) else { return Err(e) };
        let slices: Vec<Vec<u8>> = mem::take(&mut self.in_flight)
            .into_iter()
            .map(|slice| slice.bytes)
            .chain(unsent)
            .collect();
        self.client.reconnect()?;
        // An allocation that was on its way is lost with the connection; its chunk is freed with
        // the file's other unused ones at the close.
        self.next = None;
        let (chunk, acknowledged) = (current.grant.chunk, current.acknowledged);
        self.client.act(msg::Action::Seal { file, chunk, acknowledged })?;
        self.current = Some(Current { sent: acknowledged, ..current });
        self.finish_chunk();
        for bytes in slices {
            self.send(bytes)?;
        }
        Ok(())
    }

    /// Waits for the current chunk's appends and turns to the next.
    fn finish_current(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.settle_one()?;
        }
        self.finish_chunk();
        Ok(())
    }

    fn finish_chunk(&mut self) {
        if let Some(current) = self.current.take()
            && current.acknowledged > 0
        {
            self.extents.push(msg::Extent::Raw {
                chunk: current.grant.chunk,
                generation: Default::default(),
                bytes: current.acknowledged,
            });
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
