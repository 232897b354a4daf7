//! Sealed generations on their way between stores: export reads the file as it is, import writes
//! it under a name of its own, verifies all of it as the scrubber would, and puts it into place.
//! Decides nothing about who has which chunk; called for nodes that copy.
//!
//! **Invariant:** under a chunk's name there is the whole chunk, verified and durable, or nothing.

use crate::api::ChunkInfo;
use crate::disk::{BusyGuard, DiskStore, Held, Version};
use crate::format::{
    BLOCK, COMMIT_HEADER_BYTES, CommitHeader, FileHeader, RECORD_ALIGN, Record, SECTOR,
};
use crate::load::read_footer;
use crate::names;
use crate::read::{RawPlan, damaged};
use crate::sealed::{Sealed, SealedIndex};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Cookie, Generation, Pointer, Slot, StoreId};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, read_file, renew_len};
use holdfast_env::planted;
use holdfast_env::{File, HoldRwLock};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A sealed file is not longer: a raw chunk grows to twice its capacity, the largest of which is
/// 64 usual ones, and its footer is small beside it.
const FILE_BYTES_MAX: u64 = 4 * 64 * CHUNK_BYTES;

/// Part of a chunk's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Of the whole file.
    pub bytes_total: u64,
    pub bytes: Vec<u8>,
    /// `crc32c(bytes)`.
    pub crc: u32,
}

impl DiskStore {
    pub fn export(
        &self,
        chunk: ChunkId,
        generation: Generation,
        offset: u64,
        bytes: u64,
    ) -> Result<Exported> {
        let doing = || format!("export chunk `{chunk}` generation `{generation}`");
        let Version::Sealed(sealed) = self.version(chunk, generation)? else {
            return Err(Error::invalid("it is open; seal it first").context(doing()));
        };
        if sealed.info().damaged {
            let what = "part of it is damaged here; export it from another store";
            return Err(Error::corrupt(what).context(doing()));
        }
        let bytes_total = sealed.file_bytes;
        let end = offset.saturating_add(bytes).min(bytes_total);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        let file = self.handles.get(&*self.disk, &sealed)?;
        let read = file.read_exact_at(&mut bytes, offset);
        read.map_err(|e| Error::from(e).context(doing()))?;
        let crc = crc32c(&bytes);
        Ok(Exported { bytes_total, bytes, crc })
    }

    /// Reads all of a sealed generation and checks its checksums.
    fn verify(&self, sealed: &Arc<Sealed>) -> Result<()> {
        if sealed.info().damaged {
            return Err(damaged(&sealed.header, format_args!("part of it is lost")));
        }
        verify_all(sealed, &*self.index(sealed)?, &*self.handles.get(&*self.disk, sealed)?)
    }

    pub fn discard_import(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        let _busy = self.mark_busy(chunk)?;
        self.remove_partial(&self.dir.join(names::partial(chunk, generation)))
            .map_err(|e| self.write_failed(format_args!("discard the import of `{chunk}`"), e))
    }

    /// Not synced: if the name comes back, so does the import.
    fn remove_partial(&self, path: &Path) -> std::io::Result<()> {
        if self.disk.exists(path)? {
            let bytes = self.disk.open(path, Access::Cached)?.len()?;
            self.disk.remove(path)?;
            self.give_space(bytes);
        }
        Ok(())
    }
}

/// A generation that is being received. Dropped, it leaves its file for the next import.
pub struct Import {
    store: Arc<DiskStore>,
    chunk: ChunkId,
    generation: Generation,
    bytes_total: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    offset: u64,
    /// Nobody else changes the chunk here meanwhile.
    _busy: BusyGuard<Arc<DiskStore>>,
}

impl Import {
    pub(crate) fn begin(
        store: &Arc<DiskStore>,
        chunk: ChunkId,
        generation: Generation,
        bytes_total: u64,
        source: StoreId,
    ) -> Result<Import> {
        let doing = || format!("import chunk `{chunk}` generation `{generation}`");
        store.writable()?;
        if !(SECTOR..=FILE_BYTES_MAX).contains(&bytes_total) || !bytes_total.is_multiple_of(SECTOR)
        {
            let what = format!("no chunk's file has {bytes_total} bytes");
            return Err(Error::invalid(what).context(doing()));
        }
        let busy = BusyGuard::new(store.clone(), chunk)?;
        if let Ok(Version::Open(_)) = store.current(chunk) {
            let what = "it is open here, so this is no whole copy of it; set it aside first";
            return Err(Error::corrupt(what).context(doing()));
        }
        if let Ok(Version::Sealed(sealed)) = store.version(chunk, generation) {
            return Err(match store.verify(&sealed) {
                Ok(()) => Error::exists("this store holds it").context(doing()),
                Err(e) => e.context("what this store holds of it must be set aside first"),
            });
        }
        let path = store.dir.join(names::partial(chunk, generation));
        let (file, offset) = match resume(store, &path, (chunk, generation), bytes_total, source) {
            Ok(Some(resumed)) => resumed,
            Ok(None) => (new_file(store, &path, bytes_total).map_err(|e| e.context(doing()))?, 0),
            Err(e) => return Err(store.write_failed(format_args!("{}", doing()), e)),
        };
        let store = store.clone();
        Ok(Import { store, chunk, generation, bytes_total, path, file, offset, _busy: busy })
    }

    /// Where the next block begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    fn doing(&self) -> String {
        format!("import chunk `{}` generation `{}`", self.chunk, self.generation)
    }

    /// Writes the block at `offset`, which is [`Import::offset`]; whole sectors, whose CRC32C is
    /// `crc`.
    pub fn write(&mut self, offset: u64, block: &[u8], crc: u32) -> Result<()> {
        let bytes = block.len() as u64;
        let fits = bytes.is_multiple_of(SECTOR) && offset + bytes <= self.bytes_total;
        if offset != self.offset || bytes == 0 || !fits {
            return Err(Error::invalid(format!(
                "{}: {bytes} bytes at {offset} of {} do not go on at {}",
                self.doing(),
                self.bytes_total,
                self.offset
            )));
        }
        if crc32c(block) != crc {
            let what = format!("the block at {offset} was damaged on its way; send it again");
            return Err(Error::retry(what).context(self.doing()));
        }
        self.store.writable()?;
        let mut buf = AlignedBuf::zeroed(block.len());
        buf.copy_from_slice(block);
        let written = self.file.write_at(&buf, offset);
        written.map_err(|e| self.store.write_failed(format_args!("{}", self.doing()), e))?;
        self.offset += bytes;
        Ok(())
    }

    /// Verifies every checksum of the whole file, makes it this store's, and puts it into place,
    /// durably. What fails to verify is removed: the next import begins anew.
    pub fn finish(self) -> Result<ChunkInfo> {
        if self.offset != self.bytes_total {
            let what = format!("{} of {} bytes are there", self.offset, self.bytes_total);
            return Err(Error::invalid(what).context(self.doing()));
        }
        self.store.writable()?;
        let failed = |e| self.store.write_failed(format_args!("{}", self.doing()), e);
        let (mut sealed, hint) = match self.verify() {
            Ok(verified) => verified,
            Err(e) => {
                self.store.remove_partial(&self.path).map_err(failed)?;
                return Err(e.context(self.doing()));
            }
        };
        // Beside a current generation it waits for its switch, as a compacted one does.
        let waits = self.store.current(self.chunk).is_ok();
        let name = if waits { names::next } else { names::sealed };
        let path = self.store.dir.join(name(self.chunk, self.generation));
        sealed.header.store = self.store.id;
        let mut sector = AlignedBuf::zeroed(SECTOR as usize);
        sealed.header.encode_sector_with(&hint, &mut sector);
        let place = || {
            self.file.write_at(&sector, 0)?;
            self.file.sync("chunk.import-data")?;
            self.store.disk.rename(&self.path, &path)?;
            self.store.disk.sync_dir(&self.store.dir, "chunk.import-name")
        };
        place().map_err(failed)?;
        let sealed = Arc::new(sealed);
        sealed.renamed(path);
        self.store.indexes.keep(&sealed);
        let info = sealed.info();
        let mut chunks = self.store.chunks.held_alone();
        match chunks.get_mut(&self.chunk) {
            Some(held) => held.others.push(sealed),
            None => {
                let held = Held { current: Version::Sealed(sealed), others: Vec::new() };
                chunks.insert(self.chunk, held);
            }
        }
        Ok(info)
    }

    /// The file as a sealed generation, all of which was read and verified, and its hint.
    fn verify(&self) -> Result<(Sealed, Vec<u8>)> {
        let reader = self.store.disk.open(&self.path, Access::Cached)?;
        let mut sector = vec![0; SECTOR as usize];
        reader.read_exact_at(&mut sector, 0)?;
        let header = FileHeader::decode_sector(&sector)
            .ok()
            .filter(|h| (h.chunk, h.generation) == (self.chunk, self.generation));
        let Some(header) = header else {
            return Err(Error::corrupt("what was sent does not begin as that chunk's file does"));
        };
        let (_, footer) = read_footer(&*reader, &header, self.bytes_total)?;
        let Some(footer) = footer else {
            return Err(Error::corrupt("what was sent does not end with a whole footer"));
        };
        let sealed = Sealed::new(header, footer, self.path.clone(), self.bytes_total, false);
        if sealed.info().damaged {
            return Err(Error::corrupt("part of it was lost to damage where it comes from"));
        }
        let index = sealed.resident().ok_or_else(|| Error::bug("a new index is not there"))?;
        if !planted!("chunk.import-unverified") {
            verify_all(&sealed, &index, &*reader)?;
        }
        Ok((sealed, header.hint_in(&sector).to_vec()))
    }
}

/// Reads every block or object of a sealed generation and checks its checksums.
fn verify_all(sealed: &Sealed, index: &SealedIndex, file: &dyn File) -> Result<()> {
    let header = &sealed.header;
    match index {
        SealedIndex::Raw(raw) => {
            for at in (0..sealed.length).step_by(BLOCK as usize) {
                RawPlan::new(header, raw, at, BLOCK)?.read(header, file, true)?;
            }
        }
        SealedIndex::Packed { table, .. } => {
            for slot in table.present_from(0).map(Slot) {
                let plan = index.needle(sealed, slot)?.ok_or_else(|| {
                    damaged(header, format_args!("object {slot} is not where its index says"))
                })?;
                let pointer = Pointer { chunk: header.chunk, slot, cookie: Cookie(0) };
                plan.read(header, file, pointer, true)?;
            }
        }
    }
    Ok(())
}

/// A new file for an import, its space reserved.
fn new_file(store: &DiskStore, path: &Path, bytes: u64) -> Result<Arc<dyn File>> {
    store.take_space(bytes, false)?;
    let made = store.disk.create(path, Access::Direct).and_then(|file| {
        file.allocate(bytes)?;
        Ok(file)
    });
    made.map_err(|e| {
        // Best effort: the next import removes it.
        let _ = store.disk.remove(path);
        store.give_space(bytes);
        store.write_failed(format_args!("reserve `{}`", path.display()), e)
    })
}

/// The file of an earlier import and how far it verifies; `None` if there is none to go on with.
fn resume(
    store: &DiskStore,
    path: &Path,
    (chunk, generation): (ChunkId, Generation),
    bytes_total: u64,
    source: StoreId,
) -> std::io::Result<Option<(Arc<dyn File>, u64)>> {
    if !store.disk.exists(path)? {
        return Ok(None);
    }
    let file = store.disk.open(path, Access::Direct)?;
    if file.len()? != bytes_total {
        store.remove_partial(path)?;
        return Ok(None);
    }
    let bytes = read_file(&*store.disk, path, u64::MAX)?;
    let header = FileHeader::decode_sector(&bytes)
        .ok()
        .filter(|header| (header.chunk, header.generation) == (chunk, generation));
    // Each store's file has a number of its own in all its checksums, and lies as it was written
    // there: of two no one is made. The front still says whose it is.
    if header.as_ref().is_some_and(|header| header.store != source) {
        drop(file);
        store.remove_partial(path)?;
        return Ok(None);
    }
    let offset = header.map_or(0, |header| verified_prefix(&header, &bytes));
    // An earlier process may have seen a sync fail, after which the kernel shows what the disk never
    // got and no later sync writes it: so it is written again, for the sync that ends the import.
    let mut prefix = AlignedBuf::zeroed(offset as usize);
    prefix[..offset as usize].copy_from_slice(&bytes[..offset as usize]);
    file.write_at(&prefix[..offset as usize], 0)?;
    renew_len(&*file)?;
    Ok(Some((file, offset)))
}

/// How much of a partly received file is surely there: whole commits of a first generation, whole
/// records of a compacted one, each of them verified. Whole sectors.
fn verified_prefix(header: &FileHeader, bytes: &[u8]) -> u64 {
    let whole_record = |at: u64, end: usize| {
        let record = Record::decode_at(header, &bytes[..end], 0, at)?;
        record.verifies(header).then(|| record.header.record_bytes())
    };
    let mut end = SECTOR;
    if header.generation.0 > 0 {
        while let Some(record) = whole_record(end, bytes.len()) {
            end += record;
        }
        return end / SECTOR * SECTOR;
    }
    while let Some(commit) = CommitHeader::decode_at(header, bytes, end) {
        let commit_end = end.saturating_add(commit.bytes);
        if commit.bytes < COMMIT_HEADER_BYTES as u64 || commit_end > bytes.len() as u64 {
            break;
        }
        let mut at = end + COMMIT_HEADER_BYTES as u64;
        while let Some(record) = whole_record(at, commit_end as usize) {
            at += record;
        }
        if at.next_multiple_of(RECORD_ALIGN) < commit_end {
            break;
        }
        end = commit_end.next_multiple_of(SECTOR);
    }
    end
}
