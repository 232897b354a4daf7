//! Changes of files: small ones named at once, large ones begun, given chunks, and closed. This
//! is where "bytes first, then the name" is checked: no name without sealed or packed bytes.

use super::nodes::{EXTENTS, HAS_CRC, PACKED, UNCLOSED};
use super::tree::{Fresh, check_metadata, check_mode};
use super::{FileExtents, Names, Unclosed};
use crate::chunks::Chunks;
use crate::namespace::misrouted;
use crate::{Command, Location, NodeKind, Outcome, RawExtent, Remainder, StorageClass};
use holdfast_base::ids::{ChunkId, FileId, Index, Pointer};
use holdfast_base::{Error, Result, path};

/// Extents of one file: their list fits into one entry.
const EXTENTS_MAX: usize = 60_000;
const _: () = assert!(EXTENTS_MAX * 16 < holdfast_base::limits::ENTRY_BYTES_MAX);

impl Names {
    /// Gives a node the packed bytes behind a pointer that was checked.
    fn set_packed(&mut self, chunks: &mut Chunks, at: u32, pointer: Pointer, bytes: u32) {
        chunks.name_object(pointer, bytes);
        let index = chunks.place(pointer.chunk).expect("the pointer was checked");
        let node = &mut self.nodes[at];
        node.flags |= PACKED;
        (node.chunk, node.slot, node.cookie) = (index, pointer.slot.0, pointer.cookie.0);
        node.size = bytes;
    }

    pub(crate) fn put(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        command: &Command,
    ) -> Result<Outcome> {
        let Command::Put { path, kind, mode, mtime, size, crc, class, location, .. } = command
        else {
            return Err(misrouted());
        };
        let Command::Put { replace, parents, metadata, .. } = command else {
            return Err(misrouted());
        };
        if !kind.is_data() {
            return Err(Error::invalid(format!("a {} has no bytes to put", kind.name())));
        }
        check_mode(*mode)?;
        check_metadata(metadata)?;
        let spot = self.spot(path, *kind, *parents)?;
        self.check_replace(&spot, *replace || *kind == NodeKind::KeyValue)?;
        match location {
            Location::Inline {} if *size == 0 => {}
            Location::Inline {} => {
                return Err(Error::invalid(format!("{size} bytes need a place")));
            }
            Location::Packed { pointer } => chunks.check_pointer(*pointer, *size)?,
            Location::Extents {} => {
                return Err(Error::invalid("a file of chunks is begun and closed, not put"));
            }
        }
        let fresh = Fresh { kind: *kind, mode: *mode, mtime: *mtime, class: *class };
        let at = self.make_at(chunks, index, &spot, fresh);
        if let Location::Packed { pointer } = location {
            self.set_packed(chunks, at, *pointer, *size as u32);
            self.totals.bytes += size;
        }
        self.nodes[at].flags |= HAS_CRC;
        self.nodes[at].crc = *crc;
        self.set_metadata(at, metadata);
        Ok(Outcome::File { file: self.nodes.id(at) })
    }

    pub(crate) fn begin(
        &mut self,
        path: &str,
        class: Option<StorageClass>,
        mode: u16,
        mtime: i64,
    ) -> Result<Outcome> {
        path::check(path)?;
        check_mode(mode)?;
        if !self.nodes.has_room(1) {
            return Err(Error::full("the shard holds as many nodes as it can: delete some"));
        }
        let class = class.unwrap_or_else(|| self.nodes[self.deepest(path)].class());
        let at = self.nodes.make(NodeKind::File, mode, mtime, class);
        self.nodes[at].flags = UNCLOSED;
        self.unclosed.insert(at, Unclosed { path: path.to_owned(), chunks: Vec::new() });
        Ok(Outcome::File { file: self.nodes.id(at) })
    }

    pub(crate) fn find_unclosed(&self, file: FileId) -> Result<u32> {
        self.nodes
            .at(file)
            .filter(|at| self.nodes[*at].flags & UNCLOSED != 0)
            .ok_or_else(|| Error::not_found(format!("`{file}` is no file being written")))
    }

    /// A chunk was made for a file that is being written.
    pub(crate) fn give_chunk(&mut self, at: u32, chunk: ChunkId) {
        if let Some(unclosed) = self.unclosed.get_mut(&at) {
            unclosed.chunks.push(chunk);
        }
    }

    pub(crate) fn close(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        command: &Command,
    ) -> Result<Outcome> {
        let Command::Close { file, path, size, crc, extents, remainder, mode, mtime, .. } = command
        else {
            return Err(misrouted());
        };
        let Command::Close { replace, metadata, .. } = command else {
            return Err(misrouted());
        };
        let at = self.find_unclosed(*file)?;
        check_mode(*mode)?;
        check_metadata(metadata)?;
        self.check_bytes(chunks, *file, *size, extents, *remainder)?;
        let kind = self.closed_kind(path)?;
        let spot = self.spot(path, kind, false)?;
        self.check_replace(&spot, *replace || kind == NodeKind::KeyValue)?;
        if let Some(crc) = crc {
            self.nodes[at].flags |= HAS_CRC;
            self.nodes[at].crc = *crc;
        }
        (self.nodes[at].mode, self.nodes[at].mtime) = (*mode, *mtime);
        self.set_metadata(at, metadata);
        self.set_bytes(chunks, index, at, *size, extents, *remainder);
        self.nodes.set_kind(at, kind);
        self.link_at(chunks, index, &spot, at);
        Ok(Outcome::File { file: *file })
    }

    pub(crate) fn salvage(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        file: FileId,
        path: &str,
        extents: &[RawExtent],
    ) -> Result<Outcome> {
        let at = self.find_unclosed(file)?;
        let size = extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.length));
        self.check_bytes(chunks, file, size, extents, None)?;
        let kind = self.closed_kind(path)?;
        let spot = self.spot(path, kind, false)?;
        self.check_replace(&spot, false)?;
        self.set_bytes(chunks, index, at, size, extents, None);
        self.nodes.set_kind(at, kind);
        self.link_at(chunks, index, &spot, at);
        Ok(Outcome::File { file })
    }

    /// A large value of a table is a key-value like the small ones.
    fn closed_kind(&self, path: &str) -> Result<NodeKind> {
        path::check(path)?;
        let parent = path::split(path).and_then(|(parent, _)| self.walk(parent));
        let in_table = parent.is_some_and(|at| self.kind(at) == NodeKind::Table);
        Ok(if in_table { NodeKind::KeyValue } else { NodeKind::File })
    }

    /// Refuses bytes that are not there: unsealed, too short, or another file's.
    fn check_bytes(
        &self,
        chunks: &Chunks,
        file: FileId,
        size: u64,
        extents: &[RawExtent],
        remainder: Option<Remainder>,
    ) -> Result<()> {
        if extents.len() > EXTENTS_MAX {
            return Err(Error::invalid(format!(
                "{} extents are more than {EXTENTS_MAX}: split the file",
                extents.len()
            )));
        }
        let mut sum = 0u64;
        let mut seen = std::collections::BTreeSet::new();
        for extent in extents {
            chunks.check_extent(file, *extent)?;
            if !seen.insert(extent.chunk) {
                return Err(Error::invalid(format!("chunk `{}` is named twice", extent.chunk)));
            }
            sum += extent.length;
        }
        if let Some(remainder) = remainder {
            chunks.check_pointer(remainder.pointer, remainder.length)?;
            sum += remainder.length;
        }
        if sum != size {
            return Err(Error::invalid(format!(
                "its size is {size}, but its extents hold {sum} bytes"
            )));
        }
        Ok(())
    }

    /// Gives an unclosed file its checked bytes, and frees chunks of it that hold none of them.
    fn set_bytes(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        at: u32,
        size: u64,
        extents: &[RawExtent],
        remainder: Option<Remainder>,
    ) {
        self.nodes[at].flags &= !UNCLOSED;
        let unclosed = self.unclosed.remove(&at);
        let kept: std::collections::BTreeSet<ChunkId> = extents.iter().map(|e| e.chunk).collect();
        for chunk in unclosed.map(|u| u.chunks).unwrap_or_default() {
            if !kept.contains(&chunk) {
                chunks.free_chunk(index, chunk);
            }
        }
        match (extents, remainder) {
            ([], None) => {}
            ([], Some(Remainder { pointer, length })) => {
                self.set_packed(chunks, at, pointer, length as u32);
            }
            _ => {
                if let Some(Remainder { pointer, length }) = remainder {
                    chunks.name_object(pointer, length as u32);
                }
                self.nodes[at].flags |= EXTENTS;
                let extents = FileExtents { size, extents: extents.to_vec(), remainder };
                self.extents.insert(at, extents);
            }
        }
    }

    pub(crate) fn abandon(
        &mut self,
        chunks: &mut Chunks,
        index: Index,
        file: FileId,
    ) -> Result<Outcome> {
        let at = self.find_unclosed(file)?;
        self.drop_node(chunks, index, at);
        Ok(Outcome::Done {})
    }

    /// Puts a node's bytes on the freed list.
    pub(super) fn free_bytes(&mut self, chunks: &mut Chunks, index: Index, at: u32) {
        if let Some(unclosed) = self.unclosed.remove(&at) {
            unclosed.chunks.into_iter().for_each(|chunk| chunks.free_chunk(index, chunk));
        }
        if let Some(list) = self.extents.remove(&at) {
            for extent in &list.extents {
                self.moved.remove(&extent.chunk);
                chunks.free_chunk(index, extent.chunk);
            }
            if let Some(Remainder { pointer, length }) = list.remainder {
                chunks.free_object(index, pointer.chunk, pointer.slot.0, length as u32);
            }
        }
        let node = self.nodes[at];
        if node.flags & PACKED != 0 {
            chunks.free_object(index, chunks.id_at(node.chunk), node.slot, node.size);
        }
    }
}
