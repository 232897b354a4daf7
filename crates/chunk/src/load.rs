//! Opening a directory: what each file is, which chunks it holds, what was torn and what is
//! damaged. Moves strangers aside, never deletes what could hold somebody's bytes.

use crate::api::*;
use crate::aside;
use crate::disk::{DiskStore, Held, Parts, Version};
use crate::format::{
    FOOTER_HEADER_BYTES, FileHeader, Footer, FooterHead, HeaderError, SECTOR, STORE_FILE_BYTES,
    STORE_VERSION, TRAILER_MAGIC, Table, decode_store_file, encode_store_file,
};
use crate::index::Index;
use crate::names::{self, Name};
use crate::open::{Core, Open};
use crate::proven::{self, Mark, Proven};
use crate::recover::{Expect, Scan, scan};
use crate::replay::{Replay, clear, replay};
use crate::sealed::{Indexes, Sealed};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Generation, StoreId};
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{
    Access, NotAFile, ReplaceSites, create_dir_durable, read_file, renew_len, replace_file,
};
use holdfast_env::planted;
use holdfast_env::{Disk, File, Rng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads one directory.
struct Loader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    id: StoreId,
    found: Recovered,
    chunks: BTreeMap<ChunkId, Held>,
    /// All sealed generations, by chunk, before it is known which is current.
    sealed: HashMap<ChunkId, Vec<Arc<Sealed>>>,
    next: Vec<Arc<Sealed>>,
    indexes: Indexes,
    used_bytes: u64,
    journal: Replay,
    /// What the store knew when it last ended, or started.
    mark: Mark,
    /// Open chunks whose files could not be read: they may miss something of the journal.
    unreadable: BTreeSet<ChunkId>,
}

pub fn open(
    disk: Arc<dyn Disk>,
    rng: Arc<dyn Rng>,
    config: StoreConfig,
) -> Result<(DiskStore, Recovered)> {
    let dir = config.dir.clone();
    let doing = |e: Error| e.context(format_args!("open store `{}`", dir.display()));
    let io = |e: std::io::Error| doing(Error::from(e));
    create_dir_durable(&*disk, &dir, 1, "chunk.directory").map_err(io)?;
    let lock = disk.lock(&dir.join(names::LOCK)).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            doing(Error::retry("another process has it open; end that one first"))
        }
        _ => io(e),
    })?;
    // A process that was killed may have left names that are not durable yet. What is served from
    // here on counts as durable, so they must be.
    disk.sync_dir(&dir, "chunk.recovered-names").map_err(io)?;
    let (id, new) = identity(&*disk, &*rng, &dir).map_err(doing)?;
    let mut loader = Loader {
        disk: disk.clone(),
        dir: dir.clone(),
        id,
        found: Recovered { store: id, new, ..Recovered::default() },
        chunks: BTreeMap::new(),
        sealed: HashMap::new(),
        next: Vec::new(),
        indexes: Indexes::new(config.index_bytes_max),
        used_bytes: 0,
        journal: Replay::default(),
        mark: Mark::new(),
        unreadable: BTreeSet::new(),
    };
    loader.journal = loader.read_journal().map_err(doing)?;
    match proven::read(&*disk, &dir, id).map_err(io)? {
        Ok(mark) => loader.mark = mark,
        Err(why) => loader.found.mark_damage = Some(why),
    }
    loader.files().map_err(doing)?;
    loader.count_quarantine().map_err(io)?;
    loader.renew_mark().map_err(io)?;
    let journal_ends = loader.end_journal().map_err(io)?;
    loader.choose_generations();
    let Loader { mut found, chunks, indexes, used_bytes, .. } = loader;
    let mut config = config;
    if !journal_ends {
        config.journal_segment_bytes = 0;
    }
    found.chunks = chunks.values().map(|held| held.current.info()).collect();
    found.other_generations.sort();
    let parts = Parts { disk, rng, config, id, chunks, indexes, used_bytes, lock };
    Ok((DiskStore::new(parts).map_err(doing)?, found))
}

/// Version and id of the store in a directory, if one was made there. Only looks.
pub fn made(disk: &dyn Disk, dir: &Path) -> Result<Option<(u16, StoreId)>> {
    let path = dir.join(names::STORE);
    if !disk.exists(&path)? {
        return Ok(None);
    }
    let bytes = read_file(disk, &path, SECTOR)?;
    decode_store_file(&bytes).map(Some).map_err(|e| match e {
        HeaderError::Version(version) => Error::unsupported(format!(
            "its format is version {version}, this build reads up to version {STORE_VERSION}; \
             use a build that reads it"
        )),
        _ => Error::corrupt(format!(
            "`{}` is damaged (expected {STORE_FILE_BYTES} bytes with a valid checksum); \
             restore it from a copy of this directory",
            names::STORE
        )),
    })
}

/// Whether a directory holds chunks. Only looks.
pub fn has_chunks(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    let is_chunk = |name: &str| {
        matches!(names::parse(name), Name::Open(..) | Name::Sealed(..) | Name::Next(..))
    };
    Ok(disk.list(dir)?.iter().any(|entry| is_chunk(&entry.name)))
}

/// Reads the store's id, or draws one for an empty directory.
fn identity(disk: &dyn Disk, rng: &dyn Rng, dir: &Path) -> Result<(StoreId, bool)> {
    let path = dir.join(names::STORE);
    let sites = ReplaceSites { data: "chunk.store-data", name: "chunk.store-name" };
    if let Some((version, id)) = made(disk, dir)? {
        if version < STORE_VERSION {
            replace_file(disk, &path, &encode_store_file(id), sites)?;
        }
        return Ok((id, false));
    }
    if has_chunks(disk, dir)? {
        return Err(Error::corrupt(format!(
            "it holds chunks but no `{}`, which says whose they are; restore that file",
            names::STORE
        )));
    }
    let id = StoreId(rng.next_u64());
    replace_file(disk, &path, &encode_store_file(id), sites)?;
    Ok((id, true))
}

impl Loader {
    fn files(&mut self) -> Result<()> {
        for entry in self.disk.list(&self.dir)? {
            let path = self.dir.join(&entry.name);
            let name = names::parse(&entry.name);
            let read = match name {
                Name::Own | Name::Journal => continue,
                Name::Temporary if !entry.is_dir => {
                    self.disk.remove(&path)?;
                    continue;
                }
                Name::Partial(chunk, generation) if !entry.is_dir => {
                    self.used_bytes += entry.bytes;
                    self.found.partial.push((chunk, generation));
                    continue;
                }
                Name::Open(chunk, generation) if !entry.is_dir => {
                    self.open_file(&path, chunk, generation)
                }
                Name::Sealed(chunk, generation) | Name::Next(chunk, generation)
                    if !entry.is_dir =>
                {
                    let is_next = matches!(name, Name::Next(..));
                    self.sealed_file(&path, chunk, generation, is_next)
                }
                _ => Err(Unusable::Stranger("no store gives a file this name".into())),
            };
            match read {
                Ok(()) => {}
                Err(Unusable::Stranger(why)) => self.quarantine(&entry.name, why)?,
                Err(Unusable::Unreadable(e)) => self.unreadable(name, &path, &e),
            }
        }
        Ok(())
    }

    /// What was found in open chunks is durable now: if it is invalid at the next start, that is
    /// damage, whatever this process comes to.
    fn renew_mark(&mut self) -> std::io::Result<()> {
        let open = self.chunks.values().filter_map(|held| match &held.current {
            Version::Open(open) => proven::of(open),
            Version::Sealed(_) => None,
        });
        let mut mark: Mark = open.map(|proven| (proven.chunk, proven)).collect();
        // Of files that the disk did not give this time.
        self.mark.retain(|chunk, _| self.unreadable.contains(chunk));
        mark.append(&mut self.mark);
        match proven::write(&*self.disk, &self.dir, self.id, &mark) {
            // The mark of before stays, which is true and says less. Others have filled the disk, and
            // people want to delete something here.
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => Ok(()),
            written => written,
        }
    }

    /// What waits there for its removal takes space.
    fn count_quarantine(&mut self) -> std::io::Result<()> {
        let waiting = aside::waiting(&*self.disk, &self.dir)?;
        self.used_bytes += waiting.iter().map(|(entry, _)| entry.bytes).sum::<u64>();
        Ok(())
    }

    fn unreadable(&mut self, name: Name, path: &Path, e: &std::io::Error) {
        if let Name::Open(chunk, _) = name {
            self.unreadable.insert(chunk);
        }
        if let Name::Open(chunk, generation)
        | Name::Sealed(chunk, generation)
        | Name::Next(chunk, generation) = name
        {
            let what = format!("`{}`: the disk did not give it: {e}", path.display());
            self.found.damaged.push(Damage { chunk, generation, what });
        }
    }

    fn quarantine(&mut self, name: &str, why: String) -> Result<()> {
        aside::keep_stranger(&*self.disk, &self.dir, name)?;
        self.found.quarantined.push((name.to_owned(), why));
        Ok(())
    }

    fn header(
        &self,
        bytes: &[u8],
        chunk: ChunkId,
        generation: Generation,
    ) -> Result<FileHeader, Unusable> {
        let header = FileHeader::decode_sector(bytes).map_err(|e| match e {
            HeaderError::NotAChunk => {
                Unusable::Stranger("it does not begin as a chunk does".into())
            }
            HeaderError::Version(v) => Unusable::Stranger(format!("its format is version {v}")),
            HeaderError::Checksum => Unusable::Stranger("its header fails its checksum".into()),
        })?;
        if (header.chunk, header.generation) != (chunk, generation) {
            let (c, g) = (header.chunk, header.generation);
            return Err(Unusable::Stranger(format!(
                "its header says that it is chunk {c} generation {g}"
            )));
        }
        if header.store != self.id {
            return Err(Unusable::Stranger(format!("it belongs to store {}", header.store)));
        }
        Ok(header)
    }

    /// A chunk that was open when the last process ended: takes no more appends.
    fn open_file(
        &mut self,
        path: &Path,
        chunk: ChunkId,
        generation: Generation,
    ) -> Result<(), Unusable> {
        let mut bytes = self.whole(path)?;
        if bytes.iter().all(|&b| b == 0) {
            // Made and never acknowledged: the header is written before the name is durable.
            return Ok(self.disk.remove(path)?);
        }
        let header = self.header(&bytes, chunk, generation)?;
        let mark = self.mark.get(&chunk).copied();
        let mark = mark
            .filter(|mark| mark.nonce == header.nonce || planted!("chunk.mark-of-another-file"));
        let mut found = scan(&header, &bytes, Expect::Open, mark.as_ref());
        if let Some(head) = found.footer {
            return self.finish_seal(path, &header, head, bytes, found.unproven);
        }
        self.keep_tail(&header, &found, &bytes)?;
        let writer = self.disk.open(path, Access::Direct)?;
        if let Some(start) = found.torn_commit.filter(|_| self.journal.has(&header)) {
            // The journal has what was acknowledged of it. Commits behind it would have to say
            // whether it was durable: it goes.
            let end = found.tail.as_ref().map_or(0, |tail| tail.end).max(found.data_end);
            clear(&*writer, start, end)?;
            let end = bytes.len().min(end.next_multiple_of(SECTOR) as usize);
            bytes[start as usize..end].fill(0);
            found = scan(&header, &bytes, Expect::Open, mark.as_ref());
        }
        let scan = found;
        for range in &scan.damage {
            let what = format!(
                "`{}`: bytes {} to {} fail their checksums and were acknowledged; the rest is \
                 served",
                path.display(),
                range.start,
                range.end
            );
            self.found.damaged.push(Damage { chunk, generation, what });
        }
        let mut core = Core::new(header.kind, scan.data_end, bytes.len() as u64);
        core.damaged = !scan.damage.is_empty() || scan.index.damaged();
        core.resume(scan.index, scan.next_sequence);
        core.fenced = !planted!("chunk.fence-forgotten");
        let reader = self.disk.open(path, Access::Cached)?;
        core.torn = scan.torn_commit.is_some();
        let mut missed = self.journal.missed(&header, core.index.length());
        if let Some(gap) = missed.gap.take() {
            let what = format!("`{}`: {gap}", path.display());
            self.found.damaged.push(Damage { chunk, generation, what });
            core.damaged = true;
        }
        if let Some(tail) = scan.tail.as_ref().filter(|_| !missed.appends.is_empty()) {
            // Kept aside by now. What is written over its front must not be continued by its rest.
            clear(&*writer, core.data_end, tail.end)?;
        }
        // The length found here is what a seal will be asked for: what a killed process left in
        // the page cache must not be lost after that.
        harden(&*writer, &bytes, scan.unproven..scan.data_end, "chunk.recovered")?;
        core.written = core.next_sequence - 1;
        core.synced = core.written;
        if !missed.appends.is_empty() {
            replay(&header, &*writer, &mut core, missed.appends)?;
            core.synced = core.written;
        }
        if let Some(mark) = mark {
            self.hold_against(&mark, path, &mut core);
        }
        self.used_bytes += core.allocated;
        let open = Open::new(header, writer, reader, path.to_owned(), core);
        let held = Held { current: Version::Open(Arc::new(open)), others: Vec::new() };
        self.chunks.insert(chunk, held);
        Ok(())
    }

    /// What the mark says was acknowledged and is neither in the file nor in the journal is damage:
    /// nobody may seal the chunk without it in silence.
    fn hold_against(&mut self, mark: &Proven, path: &Path, core: &mut Core) {
        let length = core.length();
        if length >= mark.length {
            return;
        }
        if !core.damaged {
            let what = format!(
                "`{}`: bytes or slots {length} to {} of the chunk were acknowledged and are nowhere",
                path.display(),
                mark.length
            );
            let generation = Generation(0);
            self.found.damaged.push(Damage { chunk: mark.chunk, generation, what });
        }
        core.index.lose_to(mark.length);
        core.damaged = true;
    }

    /// The process ended between the durable footer and the name: the seal had decided.
    fn finish_seal(
        &mut self,
        path: &Path,
        header: &FileHeader,
        head: FooterHead,
        mut bytes: Vec<u8>,
        unproven: u64,
    ) -> Result<(), Unusable> {
        let end = head.data_end + head.footer_bytes();
        let file = self.disk.open(path, Access::Cached)?;
        if bytes.len() as u64 != end {
            file.set_len(end)?;
            bytes.resize(end as usize, 0);
        }
        let table = bytes.get(head.data_end as usize + FOOTER_HEADER_BYTES..).unwrap_or(&[]);
        if let Some(footer) = Footer::decode(header, &head, table) {
            // The write may be torn between the footer, which decides, and its trailer.
            let sectors = footer.encode_sectors(header);
            let trailer = &sectors[sectors.len() - SECTOR as usize..];
            bytes[(end - SECTOR) as usize..].copy_from_slice(trailer);
        }
        // A killed process may have left the footer in the page cache. Under its new name the
        // file must have it, whatever comes.
        harden(&*file, &bytes, unproven..end, "chunk.seal-finish")?;
        let target = self.dir.join(names::sealed(header.chunk, header.generation));
        // Not synced: if the name is lost, the next start does this again.
        self.disk.rename(path, &target)?;
        self.sealed_file(&target, header.chunk, header.generation, false)
    }

    /// Copies what is cut to `lost+found`, durably, before anything may overwrite it.
    fn keep_tail(
        &mut self,
        header: &FileHeader,
        scan: &Scan,
        bytes: &[u8],
    ) -> Result<(), Unusable> {
        let Some(tail) = &scan.tail else { return Ok(()) };
        let lost = &bytes[tail.start as usize..tail.end as usize];
        let (chunk, generation) = (header.chunk, header.generation);
        // The checksum keeps apart what two restarts cut at one place, and makes the copy of the
        // same tail the same file.
        let name = format!("{chunk}.{generation}.at-{}.{:08x}", tail.start, crc32c(lost));
        let kept_as = self.keep_aside(&name, lost)?;
        let (offset, bytes) = (tail.start, tail.end - tail.start);
        self.found.cut_tails.push(CutTail { chunk, offset, bytes, kept_as });
        Ok(())
    }

    fn whole(&self, path: &Path) -> Result<Vec<u8>, Unusable> {
        Ok(read_file(&*self.disk, path, u64::MAX)?)
    }

    /// What the journal's segments hold, oldest first.
    fn read_journal(&mut self) -> Result<Replay> {
        let mut segments = Vec::new();
        for entry in self.disk.list(&self.dir)? {
            if names::parse(&entry.name) == Name::Journal {
                let path = self.dir.join(&entry.name);
                segments.push((path.clone(), read_file(&*self.disk, &path, u64::MAX)?));
            }
        }
        let mut replay = Replay::read(self.id, segments);
        for torn in std::mem::take(&mut replay.torn) {
            let name = format!("journal.at-{}.{:08x}", torn.offset, crc32c(&torn.bytes));
            self.keep_aside(&name, &torn.bytes)?;
        }
        self.found.journal_damage = std::mem::take(&mut replay.damage);
        Ok(replay)
    }

    /// Removes the journal: the files have everything of it. Not synced: if it comes back, they
    /// still have. False if it has to stay.
    fn end_journal(&mut self) -> std::io::Result<bool> {
        if !self.unreadable.is_empty() && !self.journal.is_empty() {
            return Ok(false);
        }
        for entry in self.disk.list(&self.dir)? {
            if names::parse(&entry.name) == Name::Journal {
                self.disk.remove(&self.dir.join(&entry.name))?;
            }
        }
        Ok(true)
    }

    /// Copies bytes to `lost+found`, durably.
    fn keep_aside(&self, name: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
        let aside = self.dir.join(names::LOST);
        create_dir_durable(&*self.disk, &aside, 1, "chunk.lost-directory")?;
        let kept_as = aside.join(name);
        if !self.disk.exists(&kept_as)? {
            let sites = ReplaceSites { data: "chunk.lost-data", name: "chunk.lost-name" };
            replace_file(&*self.disk, &kept_as, bytes, sites)?;
        }
        Ok(kept_as)
    }

    fn sealed_file(
        &mut self,
        path: &Path,
        chunk: ChunkId,
        generation: Generation,
        is_next: bool,
    ) -> Result<(), Unusable> {
        let file = self.disk.open(path, Access::Cached)?;
        let len = file.len()?;
        let mut sector = vec![0; SECTOR as usize];
        let got = file.read_at(&mut sector, 0)?;
        let header = self.header(&sector[..got], chunk, generation)?;
        let (trailer, footer) = read_footer(&*file, &header, len)?;
        let rescued = footer.is_none();
        let footer = match footer {
            Some(footer) => footer,
            None => self.rescue(path, &header, trailer)?,
        };
        let sealed = Arc::new(Sealed::new(header, footer, path.to_owned(), len, rescued));
        self.indexes.keep(&sealed);
        self.used_bytes += len;
        if is_next {
            self.next.push(sealed);
        } else {
            self.sealed.entry(chunk).or_default().push(sealed);
        }
        Ok(())
    }

    /// Makes the index again from the records when footer or trailer are damaged. The length
    /// comes from whichever of the two is whole: without it nobody knows what was acknowledged.
    fn rescue(
        &mut self,
        path: &Path,
        header: &FileHeader,
        trailer: Option<FooterHead>,
    ) -> Result<Footer, Unusable> {
        let bytes = self.whole(path)?;
        let scan = scan(header, &bytes, Expect::Sealed, None);
        let (chunk, generation) = (header.chunk, header.generation);
        let head = scan.footer.or(trailer);
        let what = match head {
            Some(_) => "its footer is damaged; its index was made again from the records",
            None => {
                "its footer and trailer are damaged; nothing says how long it is, so nothing \
                     of it is served"
            }
        };
        let what = format!("`{}`: {what}", path.display());
        self.found.damaged.push(Damage { chunk, generation, what });
        let whole = head.and_then(|head| {
            let at = head.data_end as usize + FOOTER_HEADER_BYTES;
            Footer::decode(header, &head, bytes.get(at..)?).filter(Sealed::footer_is_sound)
        });
        Ok(whole.unwrap_or_else(|| rebuilt_footer(header, scan, head, &bytes)))
    }

    /// The highest sealed generation is current; others wait for their unlink.
    fn choose_generations(&mut self) {
        let others = |list: &[Arc<Sealed>]| -> Vec<_> {
            list.iter().map(|s| (s.header.chunk, s.header.generation)).collect()
        };
        for (chunk, mut versions) in std::mem::take(&mut self.sealed) {
            versions.sort_by_key(|sealed| sealed.header.generation);
            let Some(current) = versions.pop() else { continue };
            self.found.other_generations.extend(others(&versions));
            let held = Held { current: Version::Sealed(current), others: versions };
            self.chunks.insert(chunk, held);
        }
        for next in std::mem::take(&mut self.next) {
            self.found.other_generations.extend(others(std::slice::from_ref(&next)));
            match self.chunks.get_mut(&next.header.chunk) {
                Some(held) => held.others.push(next),
                // Its source is gone, which no order of steps here does; it is all there is.
                None => {
                    let chunk = next.header.chunk;
                    let held = Held { current: Version::Sealed(next), others: Vec::new() };
                    self.chunks.insert(chunk, held);
                }
            }
        }
    }
}

/// Makes part of a file durable, whole sectors, and its length. A sync alone does not do: where an earlier one has
/// failed, the kernel takes the pages for written, shows them, and never writes them. So the same
/// bytes are written to the same sectors again, which a torn write leaves as they are.
fn harden(
    file: &dyn File,
    bytes: &[u8],
    part: Range<u64>,
    site: &'static str,
) -> std::io::Result<()> {
    let len = (part.end - part.start) as usize;
    let mut buf = AlignedBuf::zeroed(len);
    let there = bytes.get(part.start as usize..).unwrap_or(&[]);
    let there = &there[..len.min(there.len())];
    buf[..there.len()].copy_from_slice(there);
    if len > 0 {
        file.write_at(&buf[..len], part.start)?;
    }
    renew_len(file)?;
    file.sync(site)
}

/// The trailer at the end of a file of `len` bytes, and the footer that it leads to; each if it
/// verifies.
pub fn read_footer(
    file: &dyn File,
    header: &FileHeader,
    len: u64,
) -> std::io::Result<(Option<FooterHead>, Option<Footer>)> {
    let mut sector = vec![0; SECTOR as usize];
    let trailer_at = len.saturating_sub(SECTOR);
    let got = file.read_at(&mut sector, trailer_at)?;
    let trailer = FooterHead::decode(header, TRAILER_MAGIC, trailer_at, &sector[..got]);
    let whole = trailer.filter(|h| h.data_end.checked_add(h.footer_bytes()) == Some(len));
    let Some(head) = whole else { return Ok((trailer, None)) };
    let mut table = vec![0; head.table_bytes as usize];
    let got = file.read_at(&mut table, head.data_end + FOOTER_HEADER_BYTES as u64)?;
    let footer = Footer::decode(header, &head, &table[..got]).filter(Sealed::footer_is_sound);
    Ok((trailer, footer))
}

fn rebuilt_footer(
    header: &FileHeader,
    scan: Scan,
    head: Option<FooterHead>,
    bytes: &[u8],
) -> Footer {
    let length = head.map_or(0, |head| head.length);
    let data_end = scan.data_end;
    let table = match scan.index {
        Index::Raw(mut raw) => {
            let length = length.min(raw.length);
            let start = length / crate::format::BLOCK * crate::format::BLOCK;
            let last = raw.parts(start, length).ok().map(|parts| {
                let mut block = Vec::new();
                for part in parts {
                    let at = part.physical as usize;
                    block.extend_from_slice(&bytes[at..at + part.bytes as usize]);
                }
                crc32c(&block)
            });
            raw.clip(length, last.filter(|_| !length.is_multiple_of(crate::format::BLOCK)));
            let stamp = |(i, crc): (usize, &u32)| crc ^ header.stamp(i as u64);
            let blocks = raw.blocks.iter().enumerate().map(stamp).collect();
            return Footer { length, data_end, table: Table::Raw { extents: raw.extents, blocks } };
        }
        Index::Packed(mut packed) => {
            // Behind the last object there may have been others.
            packed.next_slot = packed.next_slot.max(length as u32);
            packed.clip(length as u32);
            // In a compacted generation a slot may be gone because it was dead: nobody can say.
            let damaged = packed.damaged();
            Table::Packed { entries: packed.entries, damaged }
        }
    };
    Footer { length, data_end, table }
}

/// Why a file holds no chunk of this store that can be used.
enum Unusable {
    /// It is none: moved aside.
    Stranger(String),
    /// The disk did not give it: it stays where it is, and is tried again at the next start.
    Unreadable(std::io::Error),
}

impl From<std::io::Error> for Unusable {
    fn from(e: std::io::Error) -> Unusable {
        match NotAFile::is_why(&e) && !planted!("chunk.pipes-are-read") {
            // No store has made it, whatever its name says.
            true => Unusable::Stranger(
                "it is no file, but a directory, a pipe, a socket or a device".into(),
            ),
            false => Unusable::Unreadable(e),
        }
    }
}
