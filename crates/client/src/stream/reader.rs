//! Reading a file, or a multifile as one stream: slices are asked for ahead, so that one is on its
//! way while another is used, and arrive in the reader's own buffer where it is large enough. Of a
//! multifile, the next file's description is on its way while the current one is read.

use super::cursor::{Asked, Cursor};
use super::slices_read_ahead;
use crate::client::{Client, Ticket};
use holdfast_base::limits::SLICE_BYTES;
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_wire::file as msg;
use std::collections::VecDeque;

/// A file or multifile open for reading.
pub struct FileReader<'a> {
    client: &'a mut Client,
    /// What was opened; of a multifile, itself.
    info: msg::FileInfo,
    cursor: Cursor,
    /// The files of a multifile behind the current one.
    bag: Option<Bag>,
    slices: usize,
    /// In the current file: where the next request begins, where the next byte for the caller is.
    asked_to: u64,
    position: u64,
    asked: VecDeque<Asked>,
    /// Verified bytes that the caller has not taken.
    buffer: Vec<u8>,
    taken: usize,
}

/// The rest of a multifile: its files in the order of their names, listed a page at a time.
struct Bag {
    path: String,
    names: VecDeque<String>,
    after: String,
    more: bool,
    /// The next file, asked for.
    next: Option<(String, Ticket)>,
}

impl Client {
    /// Opens a file or multifile for reading.
    pub fn open(&mut self, path: &str) -> Result<FileReader<'_>> {
        let cursor = self.patiently(|client| {
            let ticket = client.submit_get(path)?;
            Cursor::asked(client, path, ticket)
        })?;
        Ok(self.read_from(path, cursor))
    }

    /// The bytes that [`Client::submit_get`] asked for. A file that is larger than one answer is
    /// read here, as a stream.
    pub fn wait_get(&mut self, path: &str, ticket: Ticket) -> Result<Vec<u8>> {
        let mut cursor = Cursor::asked(self, path, ticket)?;
        match cursor.whole.take() {
            Some(whole) => Ok(whole),
            None => self.read_from(path, cursor).read_to_end(),
        }
    }

    fn read_from(&mut self, path: &str, cursor: Cursor) -> FileReader<'_> {
        let bag = (cursor.info.kind == NodeKind::MultiFile).then(|| Bag {
            path: path.to_owned(),
            names: VecDeque::new(),
            after: String::new(),
            more: true,
            next: None,
        });
        let mut reader = FileReader {
            client: self,
            slices: slices_read_ahead(cursor.info.class),
            info: cursor.info.clone(),
            cursor,
            bag,
            asked_to: 0,
            position: 0,
            asked: VecDeque::new(),
            buffer: Vec::new(),
            taken: 0,
        };
        if reader.bag.is_some() {
            // The bag itself has no bytes: the first fill turns to its first file.
            reader.cursor.info.size = 0;
        }
        reader
    }
}

impl FileReader<'_> {
    /// What was opened; a multifile's size is the number of its files.
    pub fn info(&self) -> &msg::FileInfo {
        &self.info
    }

    /// How many transfers are on their way at once; unless said otherwise two, and more from disk.
    pub fn set_in_flight(&mut self, slices: usize) {
        self.slices = slices.max(1);
    }

    /// Bytes ready for the caller, verified; empty at the end. [`FileReader::consume`] takes them.
    pub fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.taken == self.buffer.len() {
            self.taken = 0;
            if let Some(whole) = self.next_whole()? {
                self.buffer = whole;
            } else {
                let mut buffer = std::mem::take(&mut self.buffer);
                buffer.resize(SLICE_BYTES as usize, 0);
                let got = self.fill(&mut buffer);
                buffer.truncate(*got.as_ref().unwrap_or(&0));
                self.buffer = buffer;
                got?;
            }
        }
        Ok(&self.buffer[self.taken..])
    }

    /// So many of [`FileReader::next_bytes`] are done with; more than there were are all of them.
    pub fn consume(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.buffer.len());
    }

    /// Where the next byte is that [`FileReader::read`] gives; of a multifile, in its current file.
    pub fn position(&self) -> u64 {
        self.position - (self.buffer.len() - self.taken) as u64
    }

    /// Goes on from another place of the file; what was read ahead is given up, unless that place is
    /// in it. Behind the end nothing is read. Not of a multifile, whose files have their own places.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        if self.bag.is_some() {
            return Err(Error::invalid(format!(
                "seek in `{}`: it is a multifile; open one of its files",
                self.cursor.path
            )));
        }
        if let Some(whole) = &self.cursor.whole
            && self.buffer.is_empty()
            && position > 0
        {
            self.buffer.clone_from(whole);
            (self.position, self.asked_to) = (self.info.size, self.info.size);
        }
        let position = position.min(self.info.size);
        let buffered = self.position - self.buffer.len() as u64;
        if (buffered..=self.position).contains(&position) {
            self.taken = (position - buffered) as usize;
            return Ok(());
        }
        for asked in self.asked.drain(..) {
            self.client.forget(asked.ticket);
        }
        self.buffer.clear();
        self.taken = 0;
        (self.position, self.asked_to) = (position, position);
        Ok(())
    }

    /// Reads up to `out.len()` bytes; 0 only at the end. A large `out` is filled without a copy
    /// in between.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let large = out.len() >= SLICE_BYTES as usize;
        if large && self.taken == self.buffer.len() && self.cursor.whole.is_none() {
            // What is there is used up, and does not lie in front of what is read next.
            self.buffer.clear();
            self.taken = 0;
            let got = self.fill(out)?;
            if got > 0 || self.cursor.whole.is_none() {
                return Ok(got);
            }
        }
        let ready = self.next_bytes()?;
        let n = ready.len().min(out.len());
        out[..n].copy_from_slice(&ready[..n]);
        self.consume(n);
        Ok(n)
    }

    /// Everything from here to the end.
    pub fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let untouched = self.position == 0 && self.asked.is_empty() && self.buffer.is_empty();
        if self.bag.is_none() && self.cursor.whole.is_none() && untouched {
            let size = usize::try_from(self.info.size).unwrap_or(usize::MAX);
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(size).map_err(|_| {
                Error::full(format!(
                    "read `{}`: {size} bytes do not fit into memory; read it as a stream",
                    self.cursor.path
                ))
            })?;
            bytes.resize(size, 0);
            let mut done = 0;
            while done < size {
                // A slice at the end is shorter than `fill` asks for.
                let end = (done + SLICE_BYTES as usize).min(size);
                done += self.fill(&mut bytes[done..end])?;
            }
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        loop {
            let ready = self.next_bytes()?;
            if ready.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(ready);
            let n = ready.len();
            self.consume(n);
        }
    }

    /// Fills `out` from any position; what is read ahead is kept. Not of a multifile, whose files
    /// have their own positions.
    pub fn read_exact_at(&mut self, out: &mut [u8], offset: u64) -> Result<()> {
        let path = &self.cursor.path;
        if self.bag.is_some() {
            return Err(Error::invalid(format!(
                "read `{path}` at {offset}: it is a multifile; open one of its files"
            )));
        }
        let end = offset.saturating_add(out.len() as u64);
        if end > self.info.size {
            return Err(Error::invalid(format!(
                "read `{path}` at {offset}: {} bytes reach past its end at {}",
                out.len(),
                self.info.size
            )));
        }
        if let Some(whole) = &self.cursor.whole {
            out.copy_from_slice(&whole[offset as usize..end as usize]);
            return Ok(());
        }
        // As many are on their way as are read ahead of a stream.
        let (mut asked_to, mut asked) = (0, VecDeque::new());
        let mut read = Ok(());
        while read.is_ok() && (asked_to < out.len() || !asked.is_empty()) {
            if asked_to < out.len() && asked.len() < self.slices {
                read = self.ask_at(offset, out, &mut asked_to, &mut asked);
            } else if let Some((at, one)) = asked.pop_front() {
                let part: &mut [u8] = &mut out[at..at + one.span.bytes];
                read = self.cursor.receive(self.client, &one, part);
            }
        }
        asked.into_iter().for_each(|(_, one): (usize, Asked)| self.client.forget(one.ticket));
        read
    }

    /// Asks for the next run of what lies at `offset`, or copies it out of mapped memory.
    fn ask_at(
        &mut self,
        offset: u64,
        out: &mut [u8],
        asked_to: &mut usize,
        asked: &mut VecDeque<(usize, Asked)>,
    ) -> Result<()> {
        let (at, left) = (offset + *asked_to as u64, out.len() - *asked_to);
        let span = self.cursor.span_at(self.client, at, left)?;
        let part = &mut out[*asked_to..*asked_to + span.bytes];
        if !self.cursor.read_mapped(self.client, &span, part)? {
            asked.push_back((*asked_to, self.cursor.ask(self.client, span)?));
            self.client.push();
        }
        *asked_to += span.bytes;
        Ok(())
    }

    /// The current file's bytes, if they came whole and none was given out. Those of a single
    /// file stay for `read_exact_at`.
    fn next_whole(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let size = self.cursor.info.size;
            if let Some(whole) = &mut self.cursor.whole
                && self.position < size
            {
                self.position = size;
                self.asked_to = size;
                let bag = self.bag.is_some();
                return Ok(Some(if bag { std::mem::take(whole) } else { whole.clone() }));
            }
            if self.position < size || !self.turn()? {
                return Ok(None);
            }
        }
    }

    /// Turns to the multifile's next file, which is not empty; false at the end.
    fn turn(&mut self) -> Result<bool> {
        let Some(bag) = &mut self.bag else { return Ok(false) };
        bag.ask(self.client)?;
        let Some((path, ticket)) = bag.next.take() else { return Ok(false) };
        self.cursor = Cursor::asked(self.client, &path, ticket)?;
        (self.asked_to, self.position) = (0, 0);
        bag.ask(self.client)?;
        self.client.push();
        Ok(true)
    }

    /// The next slice of the stream into `out`; 0 at the end, and before a file that came whole.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.position >= self.cursor.info.size {
            if !self.turn()? {
                return Ok(0);
            }
        }
        if self.cursor.whole.is_some() {
            return Ok(0);
        }
        if self.client.mapping.is_some() && self.asked.is_empty() {
            let bytes_max = out.len().min(SLICE_BYTES as usize);
            let span = self.cursor.span_at(self.client, self.position, bytes_max)?;
            if self.cursor.read_mapped(self.client, &span, &mut out[..span.bytes])? {
                self.position += span.bytes as u64;
                self.asked_to = self.position;
                return Ok(span.bytes);
            }
        }
        self.ask_ahead(self.slices)?;
        let Some(asked) = self.asked.pop_front() else { return Ok(0) };
        let bytes = asked.span.bytes;
        self.cursor.receive(self.client, &asked, &mut out[..bytes])?;
        self.position += bytes as u64;
        // Ask for the next one before the caller works on this one.
        self.ask_ahead(self.slices)?;
        self.client.push();
        Ok(bytes)
    }

    fn ask_ahead(&mut self, slices: usize) -> Result<()> {
        while self.asked.len() < slices && self.asked_to < self.cursor.info.size {
            let span = self.cursor.span_at(self.client, self.asked_to, SLICE_BYTES as usize)?;
            let asked = self.cursor.ask(self.client, span)?;
            self.asked_to += span.bytes as u64;
            self.asked.push_back(asked);
        }
        Ok(())
    }
}

impl Bag {
    /// Asks for the next file, unless that was done.
    fn ask(&mut self, client: &mut Client) -> Result<()> {
        while self.next.is_none() {
            if let Some(name) = self.names.pop_front() {
                let path = format!("{}/{name}", self.path.trim_end_matches('/'));
                let ticket = client.submit_get(&path)?;
                self.next = Some((path, ticket));
            } else if self.more {
                let page = client.list(&self.path, &self.after)?;
                self.more = page.more && !page.entries.is_empty();
                self.names.extend(page.entries.into_iter().map(|entry| entry.name));
                self.after = self.names.back().cloned().unwrap_or_default();
            } else {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Drop for FileReader<'_> {
    /// Answers to what was asked ahead are dropped when they come.
    fn drop(&mut self) {
        for asked in self.asked.drain(..) {
            self.client.forget(asked.ticket);
        }
        if let Some((_, ticket)) = self.bag.as_mut().and_then(|bag| bag.next.take()) {
            self.client.forget(ticket);
        }
    }
}

impl std::io::Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        FileReader::read(self, out).map_err(std::io::Error::other)
    }
}
