//! Sorted runs on disk: read record by record through a window, merged, and written.

use crate::distribute::Piece;
use crate::input::{self, Input, Opened};
use crate::kernel::merge::LoserTree;
use crate::order::{Depth, Order};
use crate::progress::Progress;
use crate::record::Format;
use crate::spill::{Settled, SpillExtent};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Disk;
use std::collections::VecDeque;
use std::io::Read;

enum Source<'a> {
    /// What is left, and how much of the first of it was read.
    Pieces(Settled<'a>, VecDeque<&'a Piece>, u64),
    File(Opened, u64),
    Stream(String, Box<dyn Read + Send + 'a>),
}

/// Of runs that are in memory already.
const BYTES_WINDOW: usize = 64 << 10;

/// Records in a row.
pub(crate) struct Run<'a> {
    source: Source<'a>,
    format: Format,
    window: AlignedBuf,
    /// What was read and not yet handed out is `bytes[at..]`; in front of it is the record that
    /// was handed out last, of so many bytes.
    bytes: Vec<u8>,
    at: usize,
    last: usize,
    progress: Option<&'a Progress>,
}

impl<'a> Run<'a> {
    /// Of whole records in memory.
    pub fn of_bytes(bytes: &'a [u8], format: Format) -> Run<'a> {
        let window = AlignedBuf::zeroed(BYTES_WINDOW);
        let source = Source::Stream(String::new(), Box::new(bytes));
        Run { source, format, window, bytes: Vec::new(), at: 0, last: 0, progress: None }
    }

    pub fn of_pieces(
        spills: Settled<'a>,
        pieces: &'a [Piece],
        format: Format,
        window: usize,
        progress: &'a Progress,
    ) -> Run<'a> {
        let window = AlignedBuf::zeroed(window);
        let source = Source::Pieces(spills, pieces.iter().collect(), 0);
        Run { source, format, window, bytes: Vec::new(), at: 0, last: 0, progress: Some(progress) }
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
        Ok(Run {
            source,
            format,
            window,
            bytes: Vec::new(),
            at: 0,
            last: 0,
            progress: Some(progress),
        })
    }

    /// The next record; none at the end.
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        Ok(if self.advance()? { Some(self.record()) } else { None })
    }

    /// The record that was come to last.
    #[inline]
    fn record(&self) -> &[u8] {
        &self.bytes[self.at - self.last..self.at]
    }

    /// Goes to the next record; false at the end.
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        loop {
            if let Some(n) = self.format.record_bytes(&self.bytes[self.at..]) {
                self.at += n;
                self.last = n;
                return Ok(true);
            }
            if !self.refill()? {
                return Ok(false);
            }
        }
    }

    /// Reads on; false at the end.
    fn refill(&mut self) -> Result<bool> {
        self.bytes.drain(..self.at);
        (self.at, self.last) = (0, 0);
        let read = self.read()?;
        if read > 0 {
            self.bytes.extend_from_slice(&self.window[..read]);
        } else if self.bytes.is_empty() {
            return Ok(false);
        } else {
            self.format.complete(&mut self.bytes)?;
        }
        Ok(true)
    }

    /// Goes to the next record; answers its prefix.
    #[inline]
    fn next_prefix(&mut self, order: &Order) -> Result<Option<u128>> {
        let more = self.advance()?;
        Ok(more.then(|| order.prefix(self.format.body(self.record()), Depth::default())))
    }

    fn read(&mut self) -> Result<usize> {
        let progress = self.progress;
        let count = |bytes: usize| progress.iter().for_each(|progress| progress.read(bytes));
        match &mut self.source {
            Source::Pieces(spills, pieces, at) => {
                let Some(piece) = pieces.front() else { return Ok(0) };
                let bytes = match piece {
                    Piece::Kept(_, bytes) => *bytes as u64,
                    Piece::Spilled(extent) => extent.bytes,
                };
                let read = (bytes - *at).min(self.window.len() as u64) as usize;
                match piece {
                    Piece::Kept(block, _) => {
                        let from = *at as usize;
                        self.window[..read].copy_from_slice(&block[from..from + read]);
                    }
                    Piece::Spilled(SpillExtent { file, offset, .. }) => {
                        let whole = read.next_multiple_of(SECTOR_BYTES);
                        spills.read(&mut self.window[..whole], *file, offset + *at)?;
                        count(read);
                    }
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
                count(read);
                Ok(read)
            }
            Source::Stream(name, stream) => loop {
                match stream.read(&mut self.window) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    read => {
                        let doing = format!("read `{name}`");
                        count(*read.as_ref().unwrap_or(&0));
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
    let ties = |runs: &[Run<'_>], a: usize, b: usize| {
        order.compare(format.body(runs[a].record()), format.body(runs[b].record()))
    };
    let mut heads = Vec::with_capacity(runs.len());
    for run in runs.iter_mut() {
        heads.push(run.next_prefix(order)?);
    }
    let mut tree = LoserTree::new(heads.into_iter(), |a, b| ties(runs, a, b));
    while let Some(winner) = tree.winner() {
        let run = &mut runs[winner];
        each(run.record())?;
        let head = run.next_prefix(order)?;
        tree.advance(head, |a, b| ties(runs, a, b));
    }
    Ok(())
}

/// Writes a run to the temporary disks.
pub(crate) struct Writer<'a> {
    spills: Settled<'a>,
    block: AlignedBuf,
    filled: usize,
    pieces: Vec<Piece>,
    progress: &'a Progress,
}

impl<'a> Writer<'a> {
    pub fn new(spills: Settled<'a>, bytes: usize, progress: &'a Progress) -> Writer<'a> {
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
        let (file, offset) = self.spills.add(&self.block[..whole])?;
        self.progress.wrote(whole);
        self.pieces.push(Piece::Spilled(SpillExtent { file, offset, bytes: self.filled as u64 }));
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
