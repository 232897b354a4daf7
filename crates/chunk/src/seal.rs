//! Ends of an open chunk on disk: fence, seal, and what both say about its length.

use crate::disk::{DiskStore, Held, Version};
use crate::format::{
    BLOCK, COMMIT_FENCE, COMMIT_HEADER_BYTES, CommitHeader, Footer, SECTOR, Table,
};
use crate::index::{Index, RawIndex};
use crate::names;
use crate::open::{Open, Pending};
use crate::read::RawPlan;
use crate::sealed::Sealed;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::ChunkId;
use holdfast_base::{Error, Reason, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::{HoldRwLock, planted};
use std::path::PathBuf;
use std::sync::Arc;

impl DiskStore {
    pub fn length(&self, chunk: ChunkId) -> Result<u64> {
        Ok(match self.current(chunk)? {
            Version::Open(open) => open.core().length(),
            Version::Sealed(sealed) => sealed.length,
        })
    }

    /// Ends appends for good and answers the acknowledged length, which grows no more.
    pub fn fence(&self, chunk: ChunkId) -> Result<u64> {
        let open = match self.current(chunk)? {
            Version::Open(open) => open,
            Version::Sealed(sealed) => return Ok(sealed.length),
        };
        let _busy = self.mark_busy(chunk)?;
        let was_fenced = open.core().fenced;
        self.stop_appends(&open);
        if was_fenced {
            // Written before, or held open by a process that has ended, which fences as well.
            return Ok(open.core().length());
        }
        let written = self.write_deferred(&open, u64::MAX).and_then(|()| self.write_fence(&open));
        if written.is_err() {
            // Not durable: so that the caller may try again. Nothing is acknowledged meanwhile.
            open.core().fenced = false;
        }
        written.map(|()| open.core().index.length())
    }

    fn write_fence(&self, open: &Open) -> Result<()> {
        self.writable()?;
        let (header, offset) = {
            let mut core = open.core();
            let header = CommitHeader {
                flags: COMMIT_FENCE,
                sequence: core.next_sequence,
                synced_before: core.synced,
                bytes: COMMIT_HEADER_BYTES as u64,
            };
            core.next_sequence += 1;
            (header, core.data_end)
        };
        let mut sector = AlignedBuf::zeroed(SECTOR as usize);
        header.encode_into(&open.header, offset, &mut sector);
        let chunk = open.header.chunk;
        // Not synced: a restart fences every chunk that was open. The mark says that the commits
        // before it were whole, to tell damage from a torn tail.
        open.writer
            .write_at(&sector, offset)
            .map_err(|e| self.write_failed(format_args!("fence chunk `{chunk}`"), e))?;
        let mut core = open.core();
        core.data_end += SECTOR;
        core.allocated = core.allocated.max(core.data_end);
        Ok(())
    }

    /// Fixes the length. The first seal decides: a second one must say the same.
    pub fn seal(&self, chunk: ChunkId, length: u64) -> Result<()> {
        let _busy = self.mark_busy(chunk)?;
        let open = match self.current(chunk)? {
            Version::Sealed(sealed) => return same_length(chunk, sealed.length, length),
            Version::Open(open) => open,
        };
        self.writable()?;
        self.stop_appends(&open);
        if !planted!("chunk.seal-without-the-journal") {
            self.write_deferred(&open, u64::MAX)?;
        }
        let footer = self.footer(&open, length)?;
        let footer_end = self.write_footer(&open, &footer)?;
        let path = self.name_sealed(&open)?;
        let sealed = Arc::new(Sealed::new(open.header, footer, path, footer_end, false));
        sealed.adopt(open.reader.clone());
        self.handles.opened_now(&sealed);
        self.indexes.keep(&sealed);
        let allocated = open.core().allocated;
        self.give_space(allocated.saturating_sub(footer_end));
        let held = Held { current: Version::Sealed(sealed), others: Vec::new() };
        self.chunks.held_alone().insert(chunk, held);
        Ok(())
    }

    fn footer(&self, open: &Open, length: u64) -> Result<Footer> {
        let chunk = open.header.chunk;
        let (index, data_end, sealed) = {
            let core = open.core();
            (core.index.clone(), core.data_end, core.sealed)
        };
        if let Some(before) = sealed {
            same_length(chunk, before, length)?;
        }
        if length > index.length() {
            return Err(Error::invalid(format!(
                "seal chunk `{chunk}` at {length}: this store has {} of it; copy it from a store \
                 that has more",
                index.length()
            )));
        }
        let table = match index {
            Index::Raw(mut raw) => {
                let last = partial_block(open, &raw, length)?;
                raw.clip(length, last);
                stamped(open, raw)
            }
            Index::Packed(mut packed) => {
                packed.clip(length as u32);
                let damaged = packed.damaged();
                Table::Packed { entries: packed.entries, damaged }
            }
        };
        Ok(Footer { length, data_end, table })
    }

    /// Writes the footer behind the data, in sectors of its own, and frees what follows it.
    fn write_footer(&self, open: &Open, footer: &Footer) -> Result<u64> {
        let bytes = footer.encode_sectors(&open.header);
        let end = footer.data_end + bytes.len() as u64;
        let chunk = open.header.chunk;
        let (allocated, unsynced) = {
            let core = open.core();
            assert_eq!(
                footer.data_end, core.data_end,
                "nothing was written since the appends ended"
            );
            assert!(!core.in_flight, "a footer follows the last commit");
            assert!(footer.length <= core.index.length(), "a seal names what is in the file");
            (core.allocated, core.synced + 1 < core.next_sequence)
        };
        if end > allocated {
            self.take_space(end - allocated, true)?;
            open.core().allocated = end;
        }
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(&bytes);
        let write = || {
            if unsynced {
                open.writer.sync("chunk.seal-sync")?;
            }
            // First cut, then write: the synced write extends the file to its end, so a durable
            // footer is always at the end of the file.
            open.writer.set_len(footer.data_end)?;
            open.writer.write_at_durable(&buf, footer.data_end, "chunk.seal")
        };
        write().map_err(|e| self.write_failed(format_args!("seal chunk `{chunk}`"), e))?;
        open.core().sealed = Some(footer.length);
        Ok(end)
    }

    fn name_sealed(&self, open: &Open) -> Result<PathBuf> {
        let (chunk, generation) = (open.header.chunk, open.header.generation);
        let path = self.dir.join(names::sealed(chunk, generation));
        // Not synced: the footer has decided. If the name is lost, the next start gives it again.
        self.disk
            .rename(&open.path, &path)
            .map_err(|e| self.write_failed(format_args!("name sealed chunk `{chunk}`"), e))?;
        Ok(path)
    }
}

pub fn same_length(chunk: ChunkId, sealed: u64, asked: u64) -> Result<()> {
    if sealed == asked || planted!("chunk.second-seal-accepted") {
        return Ok(());
    }
    Err(Error::fenced(format!(
        "seal chunk `{chunk}` at {asked}: it is sealed at {sealed}; the first seal decides"
    ))
    .because(Reason::SealedOtherwise))
}

pub fn fail_all(chunk: ChunkId, dropped: Vec<Pending>) {
    for item in dropped {
        item.fail(Error::fenced(format!(
            "append to chunk `{chunk}`: it takes no more appends; go on in a new chunk"
        )));
    }
}

/// Checksum of what a seal leaves of the block that it cuts through. The block is verified first.
fn partial_block(open: &Open, raw: &RawIndex, length: u64) -> Result<Option<u32>> {
    if length.is_multiple_of(BLOCK) || length == raw.length {
        return Ok(None);
    }
    let start = length / BLOCK * BLOCK;
    if raw.parts(start, raw.block_end(length / BLOCK)).is_err() {
        // Damage in it: the block is refused anyway.
        return Ok(None);
    }
    let read = RawPlan::new(&open.header, raw, start, length - start)?;
    let read = read.read(&open.header, &*open.reader, true)?;
    Ok(Some(crc32c(read.bytes.as_slice())))
}

fn stamped(open: &Open, raw: RawIndex) -> Table {
    let stamp = |(i, crc): (usize, &u32)| crc ^ open.header.stamp(i as u64);
    let blocks = raw.blocks.iter().enumerate().map(stamp).collect();
    Table::Raw { extents: raw.extents, blocks }
}
