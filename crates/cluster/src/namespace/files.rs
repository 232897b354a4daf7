//! Changes of files: small ones named at once, large ones begun, given chunks, and closed. This
//! is where "bytes first, then the name" is checked: no name without sealed or packed bytes.

use super::nodes::{EXTENTS, HAS_CRC, PACKED, UNCLOSED};
use super::tree::{Fresh, check_metadata, check_mode};
use super::{ChunkState, FileExtents, Freed, FreedThing, Namespace, Unclosed};
use crate::{ChunkKind, Command, Extent, Location, NodeKind, Outcome, Remainder, StorageClass};
use holdfast_base::error::WRITE_AGAIN;
use holdfast_base::ids::{ChunkId, FileId, Index, Pointer};
use holdfast_base::limits::{CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use holdfast_base::{Error, Result, path};
use holdfast_env::planted;

/// Extents of one file: their list fits into one entry.
const EXTENTS_MAX: usize = 60_000;
const _: () = assert!(EXTENTS_MAX * 16 < holdfast_base::limits::ENTRY_BYTES_MAX);

impl Namespace {
    /// Refuses a pointer to what cannot be named (any more).
    fn check_pointer(&self, pointer: Pointer, bytes: u64) -> Result<()> {
        if bytes == 0 || bytes > PACKED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a packed object has 1 to {PACKED_BYTES_MAX} bytes, not {bytes}"
            )));
        }
        let Some(chunk) = self.chunks.get(pointer.chunk) else {
            return Err(Error::invalid(format!(
                "its bytes are in chunk `{}`, which is not known: write them again",
                pointer.chunk
            )));
        };
        if chunk.kind != ChunkKind::Packed {
            return Err(Error::invalid(format!("chunk `{}` is not packed", chunk.id)));
        }
        if chunk.owner != FileId(0) {
            let what = format!("the names of chunk `{}` are kept elsewhere", chunk.id);
            return Err(Error::invalid(what));
        }
        let closed = matches!(chunk.state, ChunkState::Closed | ChunkState::Doomed);
        if closed && !planted!("cluster.named-after-the-close") {
            // The writer's bytes may be dropped by compaction: it has to write them elsewhere.
            return Err(Error::retry(format!(
                "its bytes are in chunk `{}`, which is {}: write them again",
                chunk.id,
                chunk.state.name()
            )));
        }
        if pointer.slot.0 >= CHUNK_SLOTS_MAX {
            return Err(Error::invalid(format!(
                "slot {} is beyond the last of a chunk, {}",
                pointer.slot,
                CHUNK_SLOTS_MAX - 1
            )));
        }
        if chunk.state == ChunkState::Sealed && pointer.slot.0 as u64 >= chunk.length {
            // The seal decided without these bytes, so nobody acknowledged them.
            return Err(Error::retry(format!(
                "chunk `{}` was sealed at {} slots, before slot {}: {WRITE_AGAIN}",
                chunk.id, chunk.length, pointer.slot
            )));
        }
        let was_named =
            chunk.dead.contains(pointer.slot.0) && !planted!("cluster.slot-named-again");
        if chunk.live.contains(pointer.slot.0) || was_named {
            return Err(Error::invalid(format!(
                "slot {} of chunk `{}` was named before: write the bytes again",
                pointer.slot, chunk.id
            )));
        }
        Ok(())
    }

    /// Gives a node the packed bytes behind a pointer that was checked.
    fn set_packed(&mut self, at: u32, pointer: Pointer, bytes: u32) {
        self.keep_pointer(pointer, bytes);
        let index = self.chunks.index(pointer.chunk).expect("the pointer was checked");
        let node = &mut self.nodes[at];
        node.flags |= PACKED;
        (node.chunk, node.slot, node.cookie) = (index, pointer.slot.0, pointer.cookie.0);
        node.size = bytes;
    }

    fn keep_pointer(&mut self, pointer: Pointer, bytes: u32) {
        if let Some(chunk) = self.chunks.get_mut(pointer.chunk) {
            chunk.give_birth(pointer.slot.0, bytes);
        }
    }

    pub(super) fn put(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        let Command::Put { path, kind, mode, mtime, size, crc, class, location, .. } = command
        else {
            return Err(super::misrouted());
        };
        let Command::Put { replace, parents, metadata, .. } = command else {
            return Err(super::misrouted());
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
            Location::Packed { pointer } => self.check_pointer(*pointer, *size)?,
            Location::Extents {} => {
                return Err(Error::invalid("a file of chunks is begun and closed, not put"));
            }
        }
        let fresh = Fresh { kind: *kind, mode: *mode, mtime: *mtime, class: *class };
        let at = self.make_at(index, &spot, fresh);
        if let Location::Packed { pointer } = location {
            self.set_packed(at, *pointer, *size as u32);
            self.totals.bytes += size;
        }
        self.nodes[at].flags |= HAS_CRC;
        self.nodes[at].crc = *crc;
        self.set_metadata(at, metadata);
        Ok(Outcome::File { file: self.nodes.id(at) })
    }

    pub(super) fn begin(
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

    pub(super) fn find_unclosed(&self, file: FileId) -> Result<u32> {
        self.nodes
            .at(file)
            .filter(|at| self.nodes[*at].flags & UNCLOSED != 0)
            .ok_or_else(|| Error::not_found(format!("`{file}` is no file being written")))
    }

    pub(super) fn close(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        let Command::Close { file, path, size, crc, extents, remainder, mode, mtime, .. } = command
        else {
            return Err(super::misrouted());
        };
        let Command::Close { replace, metadata, .. } = command else {
            return Err(super::misrouted());
        };
        let at = self.find_unclosed(*file)?;
        check_mode(*mode)?;
        check_metadata(metadata)?;
        self.check_bytes(*file, *size, extents, *remainder)?;
        let kind = self.closed_kind(path)?;
        let spot = self.spot(path, kind, false)?;
        self.check_replace(&spot, *replace || kind == NodeKind::KeyValue)?;
        if let Some(crc) = crc {
            self.nodes[at].flags |= HAS_CRC;
            self.nodes[at].crc = *crc;
        }
        (self.nodes[at].mode, self.nodes[at].mtime) = (*mode, *mtime);
        self.set_metadata(at, metadata);
        self.set_bytes(index, at, *size, extents, *remainder);
        self.nodes.set_kind(at, kind);
        self.link_at(index, &spot, at);
        Ok(Outcome::File { file: *file })
    }

    pub(super) fn salvage(
        &mut self,
        index: Index,
        file: FileId,
        path: &str,
        extents: &[Extent],
    ) -> Result<Outcome> {
        let at = self.find_unclosed(file)?;
        let size = extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.length));
        self.check_bytes(file, size, extents, None)?;
        let kind = self.closed_kind(path)?;
        let spot = self.spot(path, kind, false)?;
        self.check_replace(&spot, false)?;
        self.set_bytes(index, at, size, extents, None);
        self.nodes.set_kind(at, kind);
        self.link_at(index, &spot, at);
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
        file: FileId,
        size: u64,
        extents: &[Extent],
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
            self.check_extent(file, *extent)?;
            if !seen.insert(extent.chunk) {
                return Err(Error::invalid(format!("chunk `{}` is named twice", extent.chunk)));
            }
            sum += extent.length;
        }
        if let Some(remainder) = remainder {
            self.check_pointer(remainder.pointer, remainder.length)?;
            sum += remainder.length;
        }
        if sum != size {
            return Err(Error::invalid(format!(
                "its size is {size}, but its extents hold {sum} bytes"
            )));
        }
        Ok(())
    }

    pub(super) fn check_extent(&self, file: FileId, extent: Extent) -> Result<()> {
        let id = extent.chunk;
        let wrong = match self.chunks.get(id) {
            None => "is not known".to_owned(),
            Some(chunk) if chunk.kind != ChunkKind::Raw || chunk.owner != file => {
                "belongs to another file".to_owned()
            }
            Some(chunk) if chunk.state != ChunkState::Sealed || chunk.freed => {
                "is not sealed: seal it first".to_owned()
            }
            Some(chunk) if extent.length == 0 || extent.length > chunk.length => format!(
                "was sealed at {} bytes, an extent of {} does not fit",
                chunk.length, extent.length
            ),
            Some(_) => return Ok(()),
        };
        Err(Error::invalid(format!("chunk `{id}` {wrong}")))
    }

    /// Gives an unclosed file its checked bytes, and frees chunks of it that hold none of them.
    fn set_bytes(
        &mut self,
        index: Index,
        at: u32,
        size: u64,
        extents: &[Extent],
        remainder: Option<Remainder>,
    ) {
        self.nodes[at].flags &= !UNCLOSED;
        let unclosed = self.unclosed.remove(&at);
        let kept: std::collections::BTreeSet<ChunkId> = extents.iter().map(|e| e.chunk).collect();
        for chunk in unclosed.map(|u| u.chunks).unwrap_or_default() {
            if !kept.contains(&chunk) {
                self.free_chunk(index, chunk);
            }
        }
        match (extents, remainder) {
            ([], None) => {}
            ([], Some(Remainder { pointer, length })) => {
                self.set_packed(at, pointer, length as u32);
            }
            _ => {
                if let Some(Remainder { pointer, length }) = remainder {
                    self.keep_pointer(pointer, length as u32);
                }
                self.nodes[at].flags |= EXTENTS;
                let extents = FileExtents { size, extents: extents.to_vec(), remainder };
                self.extents.insert(at, extents);
            }
        }
    }

    pub(super) fn abandon(&mut self, index: Index, file: FileId) -> Result<Outcome> {
        let at = self.find_unclosed(file)?;
        self.drop_node(index, at);
        Ok(Outcome::Done {})
    }

    /// Puts a node's bytes on the freed list.
    pub(super) fn free_bytes(&mut self, index: Index, at: u32) {
        if let Some(unclosed) = self.unclosed.remove(&at) {
            unclosed.chunks.into_iter().for_each(|chunk| self.free_chunk(index, chunk));
        }
        if let Some(list) = self.extents.remove(&at) {
            list.extents.iter().for_each(|extent| self.free_chunk(index, extent.chunk));
            if let Some(Remainder { pointer, length }) = list.remainder {
                self.free_slot(index, pointer.chunk, pointer.slot.0, length as u32);
            }
        }
        let node = self.nodes[at];
        if node.flags & PACKED != 0 {
            self.free_slot(index, self.chunks.id_at(node.chunk), node.slot, node.size);
        }
    }

    fn free_slot(&mut self, index: Index, chunk: ChunkId, slot: u32, bytes: u32) {
        self.freed.push_back(Freed { index, what: FreedThing::Slot { chunk, slot, bytes } });
    }

    fn free_chunk(&mut self, index: Index, id: ChunkId) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            chunk.freed = true;
            self.freed.push_back(Freed { index, what: FreedThing::Chunk { chunk: id } });
        }
    }
}
