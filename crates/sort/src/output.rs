//! Where sorted bytes go: a file, written by several threads at places that are known, or a
//! stream, written front to back. A file gets its final name when all of it is durable.

use crate::failure::Failure;
use crate::manifest::{Done, Journal};
use crate::progress::Progress;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use holdfast_env::{HoldMutex, planted};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// What a sort writes.
pub enum Output {
    File(PathBuf),
    /// Written once, front to back; the name is for people.
    Stream(String, Box<dyn Write + Send>),
}

/// A block on its way out: bytes `start..end` of it, which belong at `offset`.
pub(crate) struct Chunk {
    block: AlignedBuf,
    start: usize,
    end: usize,
    offset: u64,
    ticket: Option<Arc<Ticket>>,
}

/// A partition on its way out.
pub(crate) struct Ticket {
    pub partition: usize,
    pub done: Done,
    /// Bytes that are not written yet.
    left: AtomicU64,
}

impl Ticket {
    pub fn new(partition: usize, done: Done) -> Ticket {
        Ticket { partition, done, left: AtomicU64::new(done.bytes) }
    }
}

pub(crate) enum Target {
    File(FileTarget),
    Stream(String, Mutex<Box<dyn Write + Send>>),
}

/// A file that has a temporary name until it is complete.
pub(crate) struct FileTarget {
    pub temporary: PathBuf,
    path: PathBuf,
    file: Arc<dyn File>,
    /// Sectors that two partitions share: what is there of them, and how many bytes.
    seams: Mutex<HashMap<u64, (AlignedBuf, usize)>>,
    /// Sectors are written when one partition's part of them is there, and again with the next
    /// one's: what the manifest says is done must be in the file.
    early: bool,
}

pub(crate) fn temporary_path(path: &Path, id: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".holdfast-sort-{id}"));
    path.with_file_name(name)
}

impl FileTarget {
    /// Reserves room for `bytes`.
    pub fn create(
        disk: &dyn Disk,
        path: &Path,
        id: &str,
        bytes: u64,
        progress: &Progress,
    ) -> Result<FileTarget> {
        let temporary = temporary_path(path, id);
        let make = || match planted!("sort.temporary-for-all") {
            true => disk.create(&temporary, Access::Direct),
            false => disk.create_private(&temporary, Access::Direct),
        };
        let made = progress.name(&temporary, make);
        let made = made.and_then(|file| file.allocate(bytes).map(|()| file));
        let file = made.map_err(|e| {
            Error::from(e).context(format_args!(
                "reserve {} for `{}`",
                holdfast_base::units::format_bytes(bytes),
                path.display()
            ))
        })?;
        let (path, seams) = (path.to_owned(), Mutex::default());
        Ok(FileTarget { temporary, path, file, seams, early: false })
    }

    /// Writes parts of sectors as they come.
    pub fn early(self) -> FileTarget {
        FileTarget { early: true, ..self }
    }

    /// Goes on with a file that a sort has left, of which `done` is written.
    pub fn resume<'a>(
        disk: &dyn Disk,
        path: &Path,
        id: &str,
        done: impl Iterator<Item = &'a Done>,
        progress: &Progress,
    ) -> Result<FileTarget> {
        let temporary = temporary_path(path, id);
        let sector = SECTOR_BYTES as u64;
        let mut parts: HashMap<u64, usize> = HashMap::new();
        for Done { offset, bytes, .. } in done.filter(|done| done.bytes > 0) {
            let end = offset + bytes;
            let mut add = |number: u64| {
                let (from, to) = (number * sector, (number + 1) * sector);
                *parts.entry(number).or_default() += (end.min(to) - (*offset).max(from)) as usize;
            };
            add(offset / sector);
            if (end - 1) / sector > offset / sector {
                add((end - 1) / sector);
            }
        }
        let open = || {
            let file = progress.name(&temporary, || disk.open(&temporary, Access::Direct))?;
            let mut seams = HashMap::new();
            for (number, filled) in parts.into_iter().filter(|(_, n)| *n < SECTOR_BYTES) {
                let mut seam = AlignedBuf::zeroed(SECTOR_BYTES);
                file.read_at(&mut seam, number * sector)?;
                seams.insert(number, (seam, filled));
            }
            Ok((file, seams))
        };
        let (file, seams) = open().map_err(|e: std::io::Error| {
            Error::from(e).context(format_args!("resume writing `{}`", path.display()))
        })?;
        let (path, seams) = (path.to_owned(), Mutex::new(seams));
        Ok(FileTarget { temporary, path, file, seams, early: true })
    }

    fn failed(&self, e: std::io::Error) -> Error {
        Error::from(e).context(format_args!("write `{}`", self.path.display()))
    }

    fn write(&self, chunk: &Chunk) -> Result<()> {
        let Chunk { block, start, end, offset, .. } = chunk;
        let sector = SECTOR_BYTES;
        // Blocks start on the sector of their first byte.
        let first = if start % sector == 0 { *start } else { start.next_multiple_of(sector) };
        if first > *start {
            self.seam(&block[*start..first.min(*end)], *offset)?;
        }
        let last = end / sector * sector;
        if last > first {
            let at = offset + (first - start) as u64;
            self.file.write_at(&block[first..last], at).map_err(|e| self.failed(e))?;
        }
        if last >= first && *end > last {
            self.seam(&block[last..*end], offset + (last - start) as u64)?;
        }
        Ok(())
    }

    /// Adds part of a sector; writes it when it is whole.
    fn seam(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (sector, at) = (offset / SECTOR_BYTES as u64, (offset % SECTOR_BYTES as u64) as usize);
        let mut seams = self.seams.held();
        let (seam, filled) =
            seams.entry(sector).or_insert_with(|| (AlignedBuf::zeroed(SECTOR_BYTES), 0));
        assert!(*filled + bytes.len() <= SECTOR_BYTES, "two partitions claim bytes at {offset}");
        seam[at..at + bytes.len()].copy_from_slice(bytes);
        *filled += bytes.len();
        let whole = *filled == SECTOR_BYTES;
        if whole || self.early {
            let at = sector * SECTOR_BYTES as u64;
            self.file.write_at(seam, at).map_err(|e| self.failed(e))?;
        }
        if whole {
            seams.remove(&sector);
        }
        Ok(())
    }

    /// Makes what was written durable. Sectors that are not complete are written as they are;
    /// whoever completes them writes them again.
    pub fn sync(&self, site: &'static str) -> Result<()> {
        let seams = self.seams.held();
        for (sector, (seam, _)) in seams.iter() {
            if planted!("sort.last-seam-lost") {
                continue;
            }
            let at = sector * SECTOR_BYTES as u64;
            self.file.write_at(seam, at).map_err(|e| self.failed(e))?;
        }
        self.file.sync(site).map_err(|e| self.failed(e))
    }

    /// Gives the file its length, the permissions of what it replaces, and its name.
    pub fn finish(&self, disk: &dyn Disk, bytes: u64, progress: &Progress) -> Result<()> {
        self.sync("sort.output")?;
        let named = || {
            self.file.set_len(bytes)?;
            self.file.sync("sort.output_length")?;
            if !planted!("sort.permissions-forgotten") {
                disk.take_permissions(&self.temporary, &self.path)?;
            }
            progress.rename(disk, &self.temporary, &self.path)?;
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
            disk.sync_dir(parent.unwrap_or(Path::new(".")), "sort.output_name")
        };
        named().map_err(|e| self.failed(e))
    }
}

impl Target {
    pub fn is_stream(&self) -> bool {
        matches!(self, Target::Stream(..))
    }

    /// Hands over what a stream buffers.
    pub fn flush(&self) -> Result<()> {
        let Target::Stream(name, stream) = self else { return Ok(()) };
        let flushed = stream.held().flush();
        flushed.map_err(|e| Error::from(e).context(format_args!("write `{name}`")))
    }

    fn write(&self, chunk: &Chunk) -> Result<()> {
        match self {
            Target::File(file) => file.write(chunk),
            Target::Stream(name, stream) => {
                let mut stream = stream.held();
                let bytes = &chunk.block[chunk.start..chunk.end];
                stream
                    .write_all(bytes)
                    .map_err(|e| Error::from(e).context(format_args!("write `{name}`")))
            }
        }
    }
}

/// Tells the journal of a partition whose last bytes these are.
fn note(chunk: &Chunk, target: &Target, journal: Option<&Journal>) -> Result<()> {
    let (Target::File(file), Some(ticket), Some(journal)) = (target, &chunk.ticket, journal) else {
        return Ok(());
    };
    let bytes = (chunk.end - chunk.start) as u64;
    match ticket.left.fetch_sub(bytes, Ordering::AcqRel) == bytes {
        true => journal.done(file, ticket.partition, ticket.done),
        false => Ok(()),
    }
}

/// Blocks of the output between those who fill and those who write them.
pub(crate) struct Chunks {
    out: Sender<Chunk>,
    outgoing: Mutex<Receiver<Chunk>>,
    home: Sender<AlignedBuf>,
    homes: Mutex<Receiver<AlignedBuf>>,
}

impl Chunks {
    pub fn new(count: usize, bytes: usize) -> Chunks {
        let ((out, outgoing), (home, homes)) = (channel(), channel());
        let blocks = AlignedBuf::pieces(count, bytes).into_iter();
        blocks.for_each(|block| drop(home.send(block)));
        Chunks { out, outgoing: Mutex::new(outgoing), home, homes: Mutex::new(homes) }
    }

    /// Ends one writer.
    pub fn end(&self) {
        let block = AlignedBuf::zeroed(0);
        let end = Chunk { block, start: 0, end: 0, offset: u64::MAX, ticket: None };
        let _ = self.out.send(end);
    }

    /// Writes blocks until [`Chunks::end`].
    pub fn write(
        &self,
        target: &Target,
        journal: Option<&Journal>,
        failure: &Failure,
        progress: &Progress,
    ) {
        loop {
            let next = self.outgoing.held().recv();
            let Ok(chunk) = next else { return };
            if chunk.offset == u64::MAX {
                return;
            }
            if !failure.is_set() {
                let written = target.write(&chunk).and_then(|()| note(&chunk, target, journal));
                failure.note(written);
                progress.wrote(chunk.end - chunk.start);
            }
            let _ = self.home.send(chunk.block);
        }
    }

    fn take(&self) -> Result<AlignedBuf> {
        let block = self.homes.held().recv();
        block.map_err(|_| Error::bug("write the output: its blocks are gone"))
    }
}

/// Writes consecutive bytes of the output.
pub(crate) struct Cursor<'a> {
    chunks: &'a Chunks,
    failure: &'a Failure,
    /// Where the next block's first byte belongs.
    offset: u64,
    block: Option<AlignedBuf>,
    start: usize,
    end: usize,
    ticket: Option<Arc<Ticket>>,
}

impl<'a> Cursor<'a> {
    pub fn new(chunks: &'a Chunks, failure: &'a Failure, offset: u64) -> Cursor<'a> {
        Cursor { chunks, failure, offset, block: None, start: 0, end: 0, ticket: None }
    }

    /// Whose bytes are noted when all are written.
    pub fn with(self, ticket: Ticket) -> Cursor<'a> {
        Cursor { ticket: Some(Arc::new(ticket)), ..self }
    }

    #[inline]
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            if let Some(block) = &mut self.block {
                let n = bytes.len().min(block.len() - self.end);
                block[self.end..self.end + n].copy_from_slice(&bytes[..n]);
                self.end += n;
                if n == bytes.len() {
                    return Ok(());
                }
                bytes = &bytes[n..];
                self.send();
            }
            self.failure.result()?;
            self.block = Some(self.chunks.take()?);
            self.start = (self.offset % SECTOR_BYTES as u64) as usize;
            self.end = self.start;
        }
    }

    fn send(&mut self) {
        if let Some(block) = self.block.take() {
            let (start, end, offset) = (self.start, self.end, self.offset);
            let chunk = Chunk { block, start, end, offset, ticket: self.ticket.clone() };
            self.offset += (self.end - self.start) as u64;
            let _ = self.chunks.out.send(chunk);
        }
    }

    /// Bytes that it was made for.
    pub fn bytes(&self) -> u64 {
        self.ticket.as_ref().map_or(0, |ticket| ticket.done.bytes)
    }

    /// Sends what is left; answers where the next byte belongs.
    pub fn finish(mut self) -> u64 {
        self.send();
        self.offset
    }
}
