//! What names ask of chunks, and no more: whether bytes may be named, that an object is named, that
//! nothing names bytes any more. Names know pointers and extents; stores they do not know.

use super::{ChunkState, Chunks, Freed, FreedThing};
use crate::{ChunkKind, RawExtent};
use holdfast_base::ids::{ChunkId, FileId, Index, Pointer};
use holdfast_base::limits::{CHUNK_SLOTS_MAX, PACKED_BYTES_MAX};
use holdfast_base::{Error, Reason, Result};
use holdfast_env::planted;

impl Chunks {
    /// Refuses a pointer to what cannot be named (any more).
    pub(crate) fn check_pointer(&self, pointer: Pointer, bytes: u64) -> Result<()> {
        if bytes == 0 || bytes > PACKED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a packed object has 1 to {PACKED_BYTES_MAX} bytes, not {bytes}"
            )));
        }
        let Some(chunk) = self.table.get(pointer.chunk) else {
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
                "chunk `{}` was sealed at {} slots, before slot {}: write the bytes again",
                chunk.id, chunk.length, pointer.slot
            ))
            .because(Reason::WriteAgain));
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

    /// An object whose pointer was checked is named from now on.
    pub(crate) fn name_object(&mut self, pointer: Pointer, bytes: u32) {
        if let Some(chunk) = self.table.get_mut(pointer.chunk) {
            chunk.give_birth(pointer.slot.0, bytes);
        }
    }

    /// Refuses bytes of a raw chunk that are not sealed, too few, or another file's.
    pub(crate) fn check_extent(&self, file: FileId, extent: RawExtent) -> Result<()> {
        let id = extent.chunk;
        let wrong = match self.table.get(id) {
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

    /// Nothing names an object any more; who reads it has its grace.
    pub(crate) fn free_object(&mut self, index: Index, chunk: ChunkId, slot: u32, bytes: u32) {
        if !self.is_own(chunk) {
            return self.owe_slot(chunk, slot);
        }
        self.freed.push_back(Freed { index, what: FreedThing::Slot { chunk, slot, bytes } });
    }

    /// Nothing names a raw chunk any more; who reads it has its grace.
    pub(crate) fn free_chunk(&mut self, index: Index, id: ChunkId) {
        if !self.is_own(id) {
            return self.owe_chunk(id);
        }
        if let Some(chunk) = self.table.get_mut(id) {
            chunk.freed = true;
            self.freed.push_back(Freed { index, what: FreedThing::Chunk { chunk: id } });
        }
    }

    /// The number under which names keep a chunk in their pointers: smaller than an id, and used
    /// again once nothing names the chunk.
    pub(crate) fn place(&self, id: ChunkId) -> Option<u32> {
        match self.is_own(id) {
            true => self.table.index(id),
            false => self.guest_place(id),
        }
    }

    pub(crate) fn id_at(&self, place: u32) -> ChunkId {
        match Chunks::is_guest_place(place) {
            true => self.guest_at(place),
            false => self.table.id_at(place),
        }
    }
}
