//! Generations of a packed chunk: compaction writes the next one from a sealed one and the live
//! slots, a switch makes it the one that is read, an unlink removes one. Each is told to by an
//! accepted entry of the log; nothing here decides.

use crate::api::{ChunkKind, CompactionDigest, NeedleRead};
use crate::disk::{DiskStore, Version};
use crate::format::{FileHeader, Footer, IndexEntry, RECORD_ALIGN, RecordHeader, SECTOR, Table};
use crate::names;
use crate::sealed::{Sealed, SealedIndex, wrong_kind};
use holdfast_base::ids::{ChunkId, Cookie, Generation, Pointer, Slot};
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Access;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_env::{File, HoldRwLock};
use std::path::Path;
use std::sync::Arc;

/// What is gathered for one write of a new generation; whole sectors.
static BUFFER_BYTES: Knob = Knob::new("chunk.compact-buffer", MIB, &[4096, 8192, 12_288]);

/// Writes sector-aligned pieces of a growing file.
struct Appender {
    file: Arc<dyn File>,
    buf: AlignedBuf,
    filled: usize,
    written: u64,
}

impl Appender {
    fn at(&self) -> u64 {
        self.written + self.filled as u64
    }

    fn put(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let take = bytes.len().min(self.buf.len() - self.filled);
            self.buf[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
            if self.filled == self.buf.len() {
                BUFFER_BYTES.cross();
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes what is there, filled up to a sector with zeros.
    fn flush(&mut self) -> std::io::Result<()> {
        let bytes = self.filled.next_multiple_of(SECTOR as usize);
        assert!(self.written.is_multiple_of(SECTOR), "pieces are whole sectors");
        self.buf[self.filled..bytes].fill(0);
        self.file.write_at(&self.buf[..bytes], self.written)?;
        self.written += bytes as u64;
        self.filled = 0;
        Ok(())
    }

    fn pad(&mut self, align: u64) -> std::io::Result<()> {
        let zeros = [0; SECTOR as usize];
        let bytes = self.at().next_multiple_of(align) - self.at();
        self.put(&zeros[..bytes as usize])
    }
}

impl DiskStore {
    pub fn compact(
        &self,
        chunk: ChunkId,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
    ) -> Result<CompactionDigest> {
        let doing = || format!("compact chunk `{chunk}` into generation `{next}`");
        self.writable()?;
        let _busy = self.mark_busy(chunk)?;
        let source = self.compactable(chunk, next).map_err(|e| e.context(doing()))?;
        // What the result can take at most is what the source takes, and one more sector each
        // for padding, footer and trailer.
        let bound = source.file_bytes + 3 * SECTOR;
        self.take_space(bound, true).map_err(|e| e.context(doing()))?;
        let temporary = self.dir.join(names::temporary(chunk, next));
        match self.write_generation(&source, live, next, &temporary) {
            Ok((sealed, digest)) => {
                self.give_space(bound - sealed.file_bytes);
                let mut chunks = self.chunks.held_alone();
                if let Some(held) = chunks.get_mut(&chunk) {
                    let sealed = Arc::new(sealed);
                    self.indexes.keep(&sealed);
                    held.others.push(sealed);
                }
                Ok(digest)
            }
            Err(e) => {
                // Best effort: the next start removes it.
                let _ = self.disk.remove(&temporary);
                self.give_space(bound);
                Err(e.context(doing()))
            }
        }
    }

    fn compactable(&self, chunk: ChunkId, next: Generation) -> Result<Arc<Sealed>> {
        let chunks = self.chunks.held_shared();
        let held = chunks.get(&chunk).ok_or_else(|| crate::disk::not_held(chunk))?;
        let Version::Sealed(source) = &held.current else {
            return Err(Error::invalid("it is open; seal it first"));
        };
        if source.header.kind != ChunkKind::Packed {
            return Err(wrong_kind(&source.header));
        }
        if next <= source.header.generation {
            let current = source.header.generation;
            return Err(Error::invalid(format!("generation `{current}` is current")));
        }
        if held.others.iter().any(|other| other.header.generation == next) {
            return Err(Error::exists("it is there; switch to it, or unlink it first"));
        }
        Ok(source.clone())
    }

    fn write_generation(
        &self,
        source: &Arc<Sealed>,
        live: &dyn Fn(Slot) -> bool,
        next: Generation,
        temporary: &Path,
    ) -> Result<(Sealed, CompactionDigest)> {
        let chunk = source.header.chunk;
        let failed = |e| self.write_failed(format_args!("compact chunk `{chunk}`"), e);
        let header = FileHeader {
            generation: next,
            nonce: self.rng.next_u64(),
            store: self.id,
            ..source.header
        };
        let file = self.disk.create(temporary, Access::Direct).map_err(failed)?;
        let buf = AlignedBuf::zeroed(BUFFER_BYTES.size());
        let mut out = Appender { file, buf, filled: 0, written: 0 };
        header.encode_sector(&mut out.buf);
        out.filled = SECTOR as usize;
        let (entries, damaged, digest) = self.copy_live(source, live, &header, &mut out)?;
        let (needles, stored_bytes) = (entries.len() as u64, out.at() - SECTOR);
        out.pad(SECTOR).map_err(failed)?;
        let table = Table::Packed { entries, damaged };
        let footer = Footer { length: source.length, data_end: out.at(), table };
        out.put(&footer.encode_sectors(&header)).map_err(failed)?;
        let file_bytes = out.at();
        let path = self.dir.join(names::next(chunk, next));
        let mut finish = || {
            out.flush()?;
            out.file.sync("chunk.compact-data")?;
            self.disk.rename(temporary, &path)?;
            self.disk.sync_dir(&self.dir, "chunk.compact-name")
        };
        finish().map_err(failed)?;
        let sealed = Sealed::new(header, footer, path, file_bytes, false);
        sealed.digest.get_or_init(|| digest);
        Ok((sealed, CompactionDigest { chunk, generation: next, needles, stored_bytes, digest }))
    }

    /// Of a sealed packed generation, all of which is read and verified, unless it was computed
    /// here since the start.
    pub fn digest(&self, chunk: ChunkId, generation: Generation) -> Result<u64> {
        let doing = || format!("compare chunk `{chunk}` generation `{generation}`");
        let Version::Sealed(sealed) = self.version(chunk, generation)? else {
            return Err(Error::invalid("it is open; seal it first").context(doing()));
        };
        if let Some(digest) = sealed.digest.get() {
            return Ok(*digest);
        }
        let digest = self.read_digest(&sealed).map_err(|e| e.context(doing()))?;
        Ok(*sealed.digest.get_or_init(|| digest))
    }

    fn read_digest(&self, sealed: &Arc<Sealed>) -> Result<u64> {
        let header = &sealed.header;
        let index = self.index(sealed)?;
        let SealedIndex::Packed { table, damaged } = &*index else {
            return Err(wrong_kind(header));
        };
        let file = self.handles.get(&*self.disk, sealed)?;
        let mut digest = Digest::default();
        for slot in table.present_from(0).map(Slot) {
            let Some(plan) = index.needle(sealed, slot)? else { continue };
            let pointer = Pointer { chunk: header.chunk, slot, cookie: Cookie(0) };
            digest.add_needle(slot, &plan.read(header, &*file, pointer, true)?);
        }
        damaged.iter().for_each(|&slot| digest.add(slot as u64));
        Ok(digest.0)
    }

    /// Copies every live object, verified, in slot order. One that fails its checksum ends the
    /// compaction: the old generation, repaired from a replica, is the place to mend it.
    fn copy_live(
        &self,
        source: &Arc<Sealed>,
        live: &dyn Fn(Slot) -> bool,
        header: &FileHeader,
        out: &mut Appender,
    ) -> Result<(Vec<IndexEntry>, Vec<u32>, u64)> {
        let index = self.index(source)?;
        let SealedIndex::Packed { table, damaged } = &*index else {
            return Err(wrong_kind(&source.header));
        };
        let from = self.handles.get(&*self.disk, source)?;
        let chunk = header.chunk;
        let mut digest = Digest::default();
        let mut entries = Vec::new();
        for slot in table.present_from(0).map(Slot).filter(|&slot| live(slot)) {
            let Some(plan) = index.needle(source, slot)? else { continue };
            let pointer = Pointer { chunk, slot, cookie: Cookie(0) };
            let read = plan.read(&source.header, &*from, pointer, true)?;
            digest.add_needle(slot, &read);
            let skew = planted!("chunk.compaction-offset-off-by-one") as u32;
            let offset_units = (out.at() / RECORD_ALIGN) as u32 + skew;
            entries.push(IndexEntry { slot: slot.0, offset_units, owner: read.needle.owner.0 });
            put_record(header, out, slot, &read)
                .map_err(|e| self.write_failed(format_args!("compact chunk `{chunk}`"), e))?;
        }
        let damaged: Vec<u32> = damaged.iter().copied().filter(|&s| live(Slot(s))).collect();
        damaged.iter().for_each(|&slot| digest.add(slot as u64));
        Ok((entries, damaged, digest.0))
    }

    pub fn switch(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        let doing = || format!("switch chunk `{chunk}` to generation `{generation}`");
        let _busy = self.mark_busy(chunk)?;
        let current = self.current(chunk)?.generation();
        if current == generation {
            return Ok(());
        }
        if generation < current {
            let what = format!("generation `{current}` is current, there is no way back");
            return Err(Error::invalid(what).context(doing()));
        }
        self.writable()?;
        let next = {
            let chunks = self.chunks.held_shared();
            let others = chunks.get(&chunk).map(|held| held.others.as_slice()).unwrap_or(&[]);
            others.iter().find(|other| other.header.generation == generation).cloned()
        };
        let Some(next) = next else {
            let what = "this store has not computed it; compact first";
            return Err(Error::not_found(what).context(doing()));
        };
        let path = self.dir.join(names::sealed(chunk, generation));
        let rename = || {
            if self.disk.exists(&next.path())? {
                self.disk.rename(&next.path(), &path)?;
            }
            self.disk.sync_dir(&self.dir, "chunk.switch-name")
        };
        rename().map_err(|e| self.write_failed(format_args!("{}", doing()), e))?;
        next.renamed(path);
        let mut chunks = self.chunks.held_alone();
        if let Some(held) = chunks.get_mut(&chunk) {
            held.others.retain(|other| other.header.generation != generation);
            if let Version::Sealed(old) =
                std::mem::replace(&mut held.current, Version::Sealed(next))
            {
                held.others.push(old);
            }
        }
        Ok(())
    }

    /// Removes a file. The current generation goes last, and the chunk with it.
    pub fn unlink(&self, chunk: ChunkId, generation: Generation) -> Result<()> {
        let doing = || format!("unlink chunk `{chunk}` generation `{generation}`");
        let _busy = self.mark_busy(chunk)?;
        self.writable()?;
        let version = match planted!("chunk.unlinks-the-current-generation") {
            false => self.version(chunk, generation),
            true => self.current(chunk),
        };
        let version = version.map_err(|e| e.context(doing()))?;
        let last = self.current(chunk)?.generation() == generation;
        if last && !self.other_generations(chunk).is_empty() {
            let what = "it is current and others are there; unlink those first";
            return Err(Error::invalid(what).context(doing()));
        }
        let (path, bytes) = match &version {
            Version::Sealed(sealed) => (sealed.path(), sealed.file_bytes),
            Version::Open(open) => {
                open.core().gone = true;
                self.stop_appends(open);
                (open.path.clone(), open.core().allocated)
            }
        };
        let remove = || {
            if self.disk.exists(&path)? {
                self.disk.remove(&path)?;
            }
            self.disk.sync_dir(&self.dir, "chunk.unlink-name")
        };
        remove().map_err(|e| self.write_failed(format_args!("{}", doing()), e))?;
        self.give_space(bytes);
        self.forget(chunk, generation);
        Ok(())
    }

    /// A generation's file is gone: of those that are left, the last one is read.
    pub fn forget(&self, chunk: ChunkId, generation: Generation) {
        let mut chunks = self.chunks.held_alone();
        let Some(held) = chunks.get_mut(&chunk) else { return };
        if held.current.generation() != generation {
            held.others.retain(|other| other.header.generation != generation);
            return;
        }
        let last = (0..held.others.len()).max_by_key(|i| held.others[*i].header.generation);
        match last {
            Some(at) => held.current = Version::Sealed(held.others.remove(at)),
            None => drop(chunks.remove(&chunk)),
        }
    }
}

fn put_record(
    file: &FileHeader,
    out: &mut Appender,
    slot: Slot,
    read: &NeedleRead,
) -> std::io::Result<()> {
    let record = RecordHeader::needle(slot, &read.needle, read.bytes.len() as u32, 0);
    let mut head = vec![0; record.head_bytes() as usize];
    record.encode_into(file, out.at(), &read.crcs, &read.needle.hint, &mut head);
    out.put(&head)?;
    out.put(read.bytes.as_slice())?;
    out.pad(RECORD_ALIGN)
}

/// FNV-1a over 64-bit words with a final mix: equal inputs in equal order, on every machine. It
/// stands in entries of the log, and is compared with what a later build computes: it stays as it is.
#[derive(Default)]
pub struct Digest(pub u64);

impl Digest {
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23) ^ word;
    }

    pub fn add_needle(&mut self, slot: Slot, read: &NeedleRead) {
        let needle = &read.needle;
        self.add(slot.0 as u64);
        self.add(needle.owner.0);
        self.add((needle.cookie.0 as u64) << 32 | needle.flags as u64);
        self.add(read.bytes.len() as u64);
        read.crcs.iter().for_each(|&crc| self.add(crc as u64));
        self.add(holdfast_base::checksum::crc32c(&needle.hint) as u64);
    }
}
