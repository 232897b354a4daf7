//! Images of a disk view: what it held behind one entry (a mark), as slabs in files. Written while a
//! carousel turns, synced, read back from the device, and only then named; so what has a name is whole.
//! Riders and views that begin read it whenever they like, from any place. docs/formats/image.md.

mod table;

use crate::scan::First;
use crate::views::describe;
use holdfast_base::ids::Index;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File, ReplaceSites, read_file, replace_file};
use holdfast_env::{HoldMutex, HoldRwLock, planted};
use holdfast_node::EntryAt;
use holdfast_view::Position;
use holdfast_wire::slab::{self, Column, Needs, Range, Slab, Sums, retain};
use holdfast_wire::view::ViewName;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use table::{Described, Entry, Table};

const SITES: ReplaceSites = ReplaceSites { data: "image.table-data", name: "image.name" };
/// What is written at a time is as a rule less. So many lie in huge pages.
const BUFFER_BYTES: usize = 4 << 20;
/// A table has some 60 bytes a slab, and in front of them what the fold keeps of its sessions.
const TABLE_BYTES_MAX: u64 = 1 << 30;

/// What an image is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The number of the log that its view folds, which is the cluster's. Images of format 1 do not say it.
    pub log: Option<u64>,
    /// Of which view.
    pub view: ViewName,
    /// The mark, and what a fold goes on with behind it.
    pub position: Position,
    /// See [`holdfast_wire::view::Boarded`].
    pub front: Vec<u8>,
}

/// What an image that is whole says of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// By sub-range of the hashes. Images of format 1 have none: they are read, and count for no trim.
    pub sums: Option<Arc<Sums>>,
}

/// A slab that was looked for.
pub(crate) struct Found {
    /// With its first row; nothing where there is none.
    pub slab: Option<(Slab, Vec<u8>)>,
    /// There is none behind it.
    pub is_last: bool,
}

/// An image, also one that is being written.
pub struct Image {
    disk: Arc<dyn Disk>,
    /// The table's file; those of the parts have names that begin with its own.
    path: PathBuf,
    pub about: About,
    parts: Vec<Part>,
    /// Once it is whole and has its name.
    sealed: Mutex<Option<Seal>>,
    /// Its view has ended: it gets no name any more. Held while it is named, so that nothing appears in a
    /// view's directory behind the view's end.
    given_up: Mutex<bool>,
}

/// What one head has made, in a file of its own: nothing is written between two heads' slabs.
struct Part {
    range: Range,
    path: PathBuf,
    /// Past the page cache: a copy to pages that are new to it took as long as making the slabs, on a
    /// virtual machine longer, and nobody may ever read them.
    file: Arc<dyn File>,
    state: RwLock<Slabs>,
    /// Of one that is being written.
    written: Mutex<Option<Written>>,
}

/// What is known of a part while it is written.
struct Written {
    /// Of a slab, in whole sectors.
    buf: AlignedBuf,
    /// Of the items.
    sums: Sums,
    /// The checksum of each slab's header, which covers those of its columns.
    crcs: Vec<u32>,
}

#[derive(Clone, Default)]
struct Slabs {
    slabs: Vec<Entry>,
    bytes: u64,
    is_whole: bool,
}

fn name_of(index: Index) -> String {
    format!("image-{:020}", index.0)
}

fn index_of(name: &str) -> Option<Index> {
    let digits = name.strip_prefix("image-")?;
    (digits.len() == 20).then(|| digits.parse().ok().map(Index))?
}

/// Images that have a name, and whatever else lies there of images.
fn listed(disk: &dyn Disk, place: &Path) -> Result<(Vec<Index>, Vec<String>)> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    let files = disk.list(place)?.into_iter().filter(|entry| !entry.is_dir);
    for entry in files.filter(|entry| entry.name.starts_with("image-")) {
        match index_of(&entry.name) {
            Some(index) => named.push(index),
            None => others.push(entry.name),
        }
    }
    Ok((named, others))
}

/// Indices of the images that have a name; what was left by writers that did not come to their end
/// is removed, and the indices of those named behind them.
pub fn list(disk: &dyn Disk, place: &Path) -> Result<(Vec<Index>, Vec<Index>)> {
    let (named, others) = listed(disk, place)?;
    let mut unfinished = Vec::new();
    for left in others {
        let of = left.split('.').next().and_then(index_of);
        let is_named = of.is_some_and(|index| named.contains(&index));
        if !is_named || left.ends_with(".tmp") {
            disk.remove(&place.join(left))?;
            unfinished.extend(of.filter(|_| !is_named));
        }
    }
    Ok((named, unfinished))
}

/// Removes the files of an image that cannot be opened: the table first, so that what a crash leaves of
/// them is what a writer leaves.
pub fn remove(disk: &dyn Disk, place: &Path, index: Index) -> Result<()> {
    disk.remove(&place.join(name_of(index)))?;
    list(disk, place).map(drop)
}

impl Image {
    /// Begins one in the view's directory, in so many parts.
    pub fn create(
        disk: &Arc<dyn Disk>,
        place: &Path,
        about: About,
        ranges: &[Range],
    ) -> Result<Image> {
        let path = place.join(name_of(about.position.applied));
        if disk.exists(&path)? {
            return Err(writing(
                &path,
                Error::exists("there is one already, which is not this view's: move it away"),
            ));
        }
        let part = |(number, range): (usize, &Range)| {
            let path = path.with_extension(number.to_string());
            if disk.exists(&path)? {
                disk.remove(&path)?;
            }
            let file = disk.create(&path, Access::Direct)?;
            Ok(Part::new(*range, path, file, Slabs::default(), Some(Written::new())))
        };
        let parts = ranges.iter().enumerate().map(part).collect::<std::io::Result<Vec<Part>>>();
        let parts = parts.map_err(|e| writing(&path, e.into()))?;
        let (sealed, given_up) = (Mutex::new(None), Mutex::new(false));
        Ok(Image { disk: disk.clone(), path, about, parts, sealed, given_up })
    }

    /// Opens one that is whole.
    pub fn open(disk: &Arc<dyn Disk>, place: &Path, index: Index) -> Result<Image> {
        let path = place.join(name_of(index));
        let bytes =
            read_file(&**disk, &path, TABLE_BYTES_MAX).map_err(|e| reading(&path, e.into()))?;
        let table = Table::read(&bytes).map_err(|e| match e.kind {
            Kind::Corrupt => damaged(&path, &e.message),
            _ => reading(&path, e),
        })?;
        if table.about.position.applied != index {
            return Err(damaged(&path, "its table is of another image, or damaged"));
        }
        let seal = Seal { sums: table.sums.map(Arc::new) };
        let part = |(number, part): (usize, Described)| {
            let path = path.with_extension(number.to_string());
            let file = disk.open(&path, Access::Direct).map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => damaged(&path, "it is gone"),
                _ => reading(&path, e.into()),
            })?;
            if file.len().map_err(|e| reading(&path, e.into()))? != part.bytes {
                return Err(damaged(&path, "its length is another one"));
            }
            let Described { low, high, bytes, slabs } = part;
            if low > high || high > Range::ALL.high() {
                return Err(damaged(&path, "its range is none"));
            }
            let state = Slabs { slabs, bytes, is_whole: true };
            Ok(Part::new(Range::new(low, high), path, file, state, None))
        };
        let parts = table.parts.into_iter().enumerate().map(part).collect::<Result<_>>()?;
        let (sealed, given_up) = (Mutex::new(Some(seal)), Mutex::new(false));
        Ok(Image { disk: disk.clone(), path, about: table.about, parts, sealed, given_up })
    }

    /// Its mark.
    pub fn index(&self) -> Index {
        self.about.position.applied
    }

    /// Of its table.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Once it is whole and has its name.
    pub fn sealed(&self) -> Option<Seal> {
        self.sealed.held().clone()
    }

    /// Refuses one of another view, or of another cluster: whose disk, or a copy of it, somebody has put there.
    pub fn check_is_of(&self, view: &ViewName, log: u64) -> Result<()> {
        let About { view: of, log: of_log, .. } = &self.about;
        match () {
            () if of != view => self.refuse(&format!("of view `{}`", describe(of))),
            () if of_log.is_some_and(|of| of != log) => self.refuse("of another cluster's log"),
            () => Ok(()),
        }
    }

    /// Refuses one of another log of the same cluster, as of one that was put back and went on otherwise, by what
    /// the log has at its mark. Of what was trimmed there is nothing to tell it by.
    pub fn check_is_at(&self, entry: EntryAt) -> Result<()> {
        let Position { applied, entry_crc, .. } = self.about.position;
        match entry {
            EntryAt::Trimmed => Ok(()),
            EntryAt::Kept(crc) if crc == entry_crc => Ok(()),
            EntryAt::Kept(_) => {
                self.refuse(&format!("of another log, in which entry {applied} is another one"))
            }
            EntryAt::None => {
                self.refuse(&format!("of another log: the topic's has no entry {applied}"))
            }
        }
    }

    fn refuse(&self, what: &str) -> Result<()> {
        Err(Error::invalid(format!(
            "read image `{}`: it is {what}: it is not used, and stays where it is: move it away",
            self.path.display()
        )))
    }

    /// Of all slabs.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.state.held_shared().bytes).sum()
    }

    /// Writes the next slab of a part, and says whether it is the last one; nothing for one without
    /// items.
    pub(crate) fn write(
        &self,
        part: usize,
        slab: Option<(&Slab, &First)>,
        is_last: bool,
    ) -> Result<()> {
        let part = &self.parts[part];
        if let Some((slab, first)) = slab {
            let offset = part.state.held_shared().bytes;
            let mut written = part.written.held();
            let written = written.as_mut().expect("an image is written before it is whole");
            let bytes = written.append(&*part.file, slab, offset);
            let bytes = bytes.map_err(|e| writing(&part.path, e.into()))?;
            let mut state = part.state.held_alone();
            state.bytes = (offset + bytes).next_multiple_of(SECTOR_BYTES as u64);
            state.slabs.push(Entry {
                offset,
                bytes: bytes as u32,
                first_hash: slab.header.first_hash,
                last_hash: slab.header.last_hash,
                row: first.row.clone(),
            });
        }
        part.state.held_alone().is_whole |= is_last;
        Ok(())
    }

    /// Makes it durable, reads it back from the device, and gives it its name.
    pub fn seal(&self) -> Result<()> {
        for part in &self.parts {
            part.file.sync("image.data").map_err(|e| writing(&part.path, e.into()))?;
        }
        let sums = self.verify()?;
        let described = |part: &Part| {
            let Slabs { slabs, bytes, .. } = part.state.held_shared().clone();
            Described { low: part.range.low(), high: part.range.high(), bytes, slabs }
        };
        let parts = self.parts.iter().map(described).collect();
        let table = Table { about: self.about.clone(), sums: Some(sums), parts };
        let bytes = table.written();
        let given_up = self.given_up.held();
        if *given_up {
            return Err(writing(&self.path, Error::retry("its view has ended")));
        }
        // Makes the names of the parts durable, too: they are in the same directory.
        replace_file(&*self.disk, &self.path, &bytes, SITES)
            .map_err(|e| writing(&self.path, e.into()))?;
        *self.sealed.held() = Some(Seal { sums: table.sums.map(Arc::new) });
        Ok(())
    }

    /// Its view has ended: unless it has its name already, it will never get one.
    pub fn give_up(&self) {
        *self.given_up.held() = true;
    }

    /// Reads every slab as the device holds it: if it is as it was written, the sums of what was written
    /// are those of the image.
    fn verify(&self) -> Result<Sums> {
        let (mut sums, mut buf) = (Sums::default(), Buffer::default());
        for part in &self.parts {
            // Nothing is written any more: its buffer goes.
            let Written { sums: of_part, crcs, .. } =
                part.written.held().take().expect("an image is sealed once");
            let state = part.state.held_shared();
            assert_eq!(state.slabs.len(), crcs.len(), "what is verified was written here");
            for (entry, crc) in state.slabs.iter().zip(&crcs) {
                let filled = buf.fill(&*part.file, entry.offset, entry.bytes as usize);
                filled.map_err(|e| reading(&part.path, e.into()))?;
                if slab::verify(buf.filled())? != *crc && !planted!("ride.any-slab-read-back") {
                    return Err(damaged(&part.path, "a slab is not what was just written"));
                }
            }
            sums.add_sums(&of_part);
        }
        Ok(sums)
    }

    /// Reads all of it: `Corrupt` where a slab fails its checksum, and where its items do not have the sums that it
    /// says of them, as those of a slab that was wrong before it had a checksum. One of format 1 says none.
    pub fn reread(&self) -> Result<()> {
        let (needs, mut buf, mut sums) =
            (Arc::new(Needs::all()), Buffer::default(), Sums::default());
        for part in &self.parts {
            let slabs = part.state.held_shared().slabs.clone();
            slabs.iter().try_for_each(|entry| {
                sums.add_made(&part.read(entry, &needs, &mut buf)?);
                Ok::<_, Error>(())
            })?;
        }
        let Some(said) = self.sealed().and_then(|seal| seal.sums) else { return Ok(()) };
        let differing = sums.differing(&said).all();
        match differing.is_empty() || planted!("ride.doubts-unheard") {
            true => Ok(()),
            false => Err(damaged(
                &self.path,
                &format!(
                    "its items of keys with hashes {} are not those that it says it has",
                    slab::shown(&differing)
                ),
            )),
        }
    }

    /// What is needed of the slab of this number of those that have hashes from a range, without what
    /// lies outside it.
    pub(crate) fn slab(
        &self,
        range: Range,
        number: u64,
        needs: &Arc<Needs>,
        buf: &mut Buffer,
    ) -> Result<Found> {
        let mut in_front = number as usize;
        let (mut found, mut behind, mut is_whole) = (None, 0, true);
        for part in self.parts.iter().filter(|part| part.range.overlaps(range)) {
            let state = part.state.held_shared();
            let among = state.among(range);
            is_whole &= state.is_whole;
            if found.is_some() {
                behind += among.len();
            } else if let Some(entry) = among.get(in_front) {
                found = Some((part, entry.clone()));
                behind = among.len() - in_front - 1;
            } else {
                in_front -= among.len();
            }
        }
        let is_last = is_whole && behind == 0;
        let Some((part, entry)) = found else { return Ok(Found { slab: None, is_last }) };
        let slab = part.read(&entry, needs, buf)?;
        let (first, last) = (u64::from(entry.first_hash), u64::from(entry.last_hash));
        let slab = match range.low() <= first && last < range.high() {
            true => slab,
            false => retain(&slab, |item| range.contains(item.hash)),
        };
        Ok(Found { slab: Some((slab, entry.row)), is_last })
    }

    /// The number of the last slab in a range that begins at a row or in front of it.
    pub fn number_at(&self, range: Range, row: &[u8]) -> u64 {
        let in_front = |part: &Part| {
            let state = part.state.held_shared();
            state.among(range).iter().filter(|entry| *entry.row <= *row).count() as u64
        };
        let all: u64 = self.parts.iter().map(in_front).sum();
        all.saturating_sub(1)
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.path].into_iter().chain(self.parts.iter().map(|part| &part.path))
    }

    /// Whether nobody has removed its files. What cannot be looked at is not gone.
    pub fn is_there(&self) -> bool {
        self.files().all(|path| self.disk.exists(path).unwrap_or(true))
    }

    /// Removes it, its name first.
    pub fn remove(&self) -> Result<()> {
        for path in self.files() {
            if self.disk.exists(path)? {
                self.disk.remove(path)?;
            }
        }
        Ok(())
    }
}

impl Written {
    fn new() -> Written {
        let (sums, crcs) = Default::default();
        Written { buf: AlignedBuf::zeroed(BUFFER_BYTES), sums, crcs }
    }

    /// Writes a slab in whole sectors, and says how long it is.
    fn append(&mut self, file: &dyn File, slab: &Slab, offset: u64) -> std::io::Result<u64> {
        let header = slab.header_bytes();
        let bytes = header.len() + slab.body_bytes();
        let whole = bytes.next_multiple_of(SECTOR_BYTES);
        if whole > self.buf.len() {
            self.buf = AlignedBuf::zeroed(whole);
        }
        let mut at = 0;
        let columns = slab.columns().iter().map(Column::bytes);
        for piece in [&*header].into_iter().chain(columns) {
            self.buf[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.buf[at..whole].fill(0);
        file.write_at(&self.buf[..whole], offset)?;
        self.sums.add_made(slab);
        self.crcs.push(slab::checksum(&header));
        Ok(bytes as u64)
    }
}

impl Part {
    fn new(
        range: Range,
        path: PathBuf,
        file: Arc<dyn File>,
        state: Slabs,
        written: Option<Written>,
    ) -> Part {
        Part { range, path, file, state: RwLock::new(state), written: Mutex::new(written) }
    }

    fn read(&self, entry: &Entry, needs: &Arc<Needs>, buf: &mut Buffer) -> Result<Slab> {
        let length = entry.bytes as usize;
        let failed = |e: std::io::Error| reading(&self.path, e.into());
        // All of it at once, where all of it is needed.
        let is_whole = needs.is_all();
        if is_whole {
            buf.fill(&*self.file, entry.offset, length).map_err(failed)?;
        }
        let mut read = |at: std::ops::Range<usize>| match is_whole {
            true => Ok(buf.filled()[at].to_vec()),
            false => {
                let filled = buf.fill(&*self.file, entry.offset + at.start as u64, at.len());
                filled.map_err(failed)?;
                Ok(buf.filled().to_vec())
            }
        };
        let read = Slab::read(length, needs, &mut read);
        read.map_err(|e| {
            // What a later build writes, its table says: here it is a flipped bit.
            let kind = if e.kind == Kind::Unsupported { Kind::Corrupt } else { e.kind };
            Error { kind, ..e }.context(format_args!("read image `{}`", self.path.display()))
        })
    }
}

/// What was read last of a file, past the page cache: pages that are new to it cost more than all else that
/// a ride of an image does.
#[derive(Default)]
pub(crate) struct Buffer {
    sectors: Option<AlignedBuf>,
    filled: std::ops::Range<usize>,
}

impl Buffer {
    /// Reads so many bytes of a place.
    fn fill(&mut self, file: &dyn File, offset: u64, length: usize) -> std::io::Result<()> {
        let within = (offset % SECTOR_BYTES as u64) as usize;
        let whole = (within + length).next_multiple_of(SECTOR_BYTES);
        if self.sectors.as_ref().is_none_or(|sectors| sectors.len() < whole) {
            self.sectors = Some(AlignedBuf::zeroed(whole.next_power_of_two()));
        }
        let sectors = self.sectors.as_mut().expect("it was just made");
        // Images of builds before end within a sector.
        let read = file.read_at(&mut sectors[..whole], offset - within as u64)?;
        if read < within + length {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.filled = within..within + length;
        Ok(())
    }

    fn filled(&self) -> &[u8] {
        self.sectors.as_ref().map_or(&[], |sectors| &sectors[self.filled.clone()])
    }
}

impl Slabs {
    fn among(&self, range: Range) -> &[Entry] {
        let from = self.slabs.partition_point(|slab| u64::from(slab.last_hash) < range.low());
        let until = self.slabs.partition_point(|slab| u64::from(slab.first_hash) < range.high());
        &self.slabs[from..until.max(from)]
    }
}

fn writing(path: &Path, e: Error) -> Error {
    e.context(format_args!("write image `{}`", path.display()))
}

fn reading(path: &Path, e: Error) -> Error {
    e.context(format_args!("read image `{}`", path.display()))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::corrupt(format!(
        "read image `{}`: {what}: it is not used, and another one is made with the next mark",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
