//! Sorted runs on disk: read record by record through a window, merged, and written.

use crate::distribute::Piece;
use crate::input::{self, Input, Opened};
use crate::kernel::merge::{Head, LoserTree};
use crate::order::{Depth, Order};
use crate::progress::Progress;
use crate::record::Format;
use crate::spill::{Extent, Spills};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Disk;
use std::collections::VecDeque;
use std::io::Read;

enum Source<'a> {
    /// What is left, and how much of the first of it was read.
    Pieces(Option<&'a Spills>, VecDeque<&'a Piece>, u64),
    File(Opened, u64),
    Stream(String, Box<dyn Read + Send>),
}

/// Records in a row.
pub(crate) struct Run<'a> {
    source: Source<'a>,
    format: Format,
    window: AlignedBuf,
    /// What was read and not yet handed out is `bytes[at..]`.
    bytes: Vec<u8>,
    at: usize,
    progress: &'a Progress,
}

impl<'a> Run<'a> {
    pub fn of_pieces(
        spills: Option<&'a Spills>,
        pieces: &'a [Piece],
        format: Format,
        window: usize,
        progress: &'a Progress,
    ) -> Run<'a> {
        let window = AlignedBuf::zeroed(window);
        let source = Source::Pieces(spills, pieces.iter().collect(), 0);
        Run { source, format, window, bytes: Vec::new(), at: 0, progress }
    }

    pub fn of_input(
        disk: &dyn Disk,
        input: Input,
        format: Format,
        window: usize,
        progress: &'a Progress,
    ) -> Result<Run<'a>> {
        let source = match input {
            Input::File(path) => Source::File(input::open(disk, &path)?, 0),
            Input::Stream(name, stream) => Source::Stream(name, stream),
        };
        let window = AlignedBuf::zeroed(window);
        Ok(Run { source, format, window, bytes: Vec::new(), at: 0, progress })
    }

    /// The next record; none at the end.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            if let Some(n) = self.format.record_bytes(&self.bytes[self.at..]) {
                self.at += n;
                return Ok(Some(&self.bytes[self.at - n..self.at]));
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            let read = self.read()?;
            if read == 0 {
                if self.bytes.is_empty() {
                    return Ok(None);
                }
                self.format.complete(&mut self.bytes)?;
                continue;
            }
            self.bytes.extend_from_slice(&self.window[..read]);
        }
    }

    fn read(&mut self) -> Result<usize> {
        match &mut self.source {
            Source::Pieces(spills, pieces, at) => {
                let Some(piece) = pieces.front() else { return Ok(0) };
                let bytes = match piece {
                    Piece::Kept(_, bytes) => *bytes as u64,
                    Piece::Spilled(extent) => extent.bytes,
                };
                let read = (bytes - *at).min(self.window.len() as u64) as usize;
                match (piece, spills) {
                    (Piece::Kept(block, _), _) => {
                        let from = *at as usize;
                        self.window[..read].copy_from_slice(&block[from..from + read]);
                    }
                    (Piece::Spilled(Extent { file, offset, .. }), Some(spills)) => {
                        let whole = read.next_multiple_of(SECTOR_BYTES);
                        spills.read(&mut self.window[..whole], *file, offset + *at)?;
                        self.progress.read(read);
                    }
                    _ => return Err(Error::bug("read a partition: there is no temporary file")),
                }
                *at += read as u64;
                if *at == bytes {
                    pieces.pop_front();
                    *at = 0;
                }
                Ok(read)
            }
            Source::File(opened, offset) => {
                let read = opened
                    .file
                    .read_at(&mut self.window, *offset)
                    .map_err(|e| Error::from(e).context(format_args!("read `{}`", opened.name)))?;
                *offset += read as u64;
                self.progress.read(read);
                Ok(read)
            }
            Source::Stream(name, stream) => loop {
                match stream.read(&mut self.window) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    read => {
                        let doing = format!("read `{name}`");
                        self.progress.read(*read.as_ref().unwrap_or(&0));
                        return read.map_err(|e| Error::from(e).context(doing));
                    }
                }
            },
        }
    }
}

/// Hands the records of all runs to `each`, in order; equal ones in the order of their runs.
pub(crate) fn merge(
    runs: &mut [Run<'_>],
    order: &Order,
    format: Format,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    // A head keeps a copy of its record: the window below it moves on.
    let mut records: Vec<Vec<u8>> = vec![Vec::new(); runs.len()];
    let mut failed = None;
    let mut take =
        |source: usize, head: &mut Head, records: &mut Vec<Vec<u8>>| match runs[source].next() {
            Ok(Some(record)) => {
                records[source].clear();
                records[source].extend_from_slice(record);
                head.body.clear();
                head.body.extend_from_slice(format.body(record));
                head.prefix = order.prefix(&head.body, Depth::default());
            }
            Ok(None) => head.ended = true,
            Err(e) => {
                head.ended = true;
                failed.get_or_insert(e);
            }
        };
    let mut heads = Vec::new();
    for source in 0..records.len() {
        let mut head = Head::default();
        take(source, &mut head, &mut records);
        heads.push(head);
    }
    let mut tree = LoserTree::new(heads, order);
    while let Some(winner) = tree.winner() {
        each(&records[winner])?;
        tree.advance(winner, order, |head| take(winner, head, &mut records));
    }
    match failed {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// Writes a run to the temporary disks.
pub(crate) struct Writer<'a> {
    spills: &'a Spills,
    block: AlignedBuf,
    filled: usize,
    pieces: Vec<Piece>,
    progress: &'a Progress,
}

impl<'a> Writer<'a> {
    pub fn new(spills: &'a Spills, bytes: usize, progress: &'a Progress) -> Writer<'a> {
        Writer { spills, block: AlignedBuf::zeroed(bytes), filled: 0, pieces: Vec::new(), progress }
    }

    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = bytes.len().min(self.block.len() - self.filled);
            self.block[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == self.block.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let whole = self.filled.next_multiple_of(SECTOR_BYTES);
        let (file, offset) = self.spills.place(whole as u64);
        self.spills.write(&self.block[..whole], file, offset)?;
        self.progress.wrote(whole);
        self.pieces.push(Piece::Spilled(Extent { file, offset, bytes: self.filled as u64 }));
        self.filled = 0;
        Ok(())
    }

    pub fn finish(mut self) -> Result<Vec<Piece>> {
        if self.filled > 0 {
            self.flush()?;
        }
        Ok(self.pieces)
    }
}
