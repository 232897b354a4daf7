//! What lives in the chunks: a row for each live slot, and a sum for each chunk. A slot is named
//! once; when nothing names it any more its row goes, and compaction leaves its bytes out.

use super::{Change, Step};
use crate::command::Refusal;
use crate::model::{ChunkUse, Hold, ObjectExtent};
use crate::rows;
use holdfast_base::ids::ChunkId;
use holdfast_env::planted;

impl Change<'_> {
    pub(super) fn chunk(&mut self, id: ChunkId) -> Step<&mut ChunkUse> {
        let known = match self.chunks.contains_key(&id) {
            true => ChunkUse::default(),
            false => self.row(&rows::chunk(id), "a chunk's use")?.unwrap_or_default(),
        };
        Ok(self.chunks.entry(id).or_insert(known))
    }

    /// Makes slots live that nothing has named.
    pub(super) fn keep(&mut self, extents: &[ObjectExtent]) -> Step {
        for extent in extents {
            let row = rows::slot(extent.pointer);
            if self.index.get(&row)?.is_some() {
                return Err(Refusal::Taken(extent.pointer).into());
            }
            let used = self.chunk(extent.pointer.chunk)?;
            if used.closed {
                return Err(Refusal::ChunkClosed(extent.pointer.chunk).into());
            }
            used.live += 1;
            used.live_bytes += extent.bytes as u64;
            self.batch.put(row, extent.bytes.to_le_bytes().to_vec());
        }
        Ok(())
    }

    pub(super) fn free<'e>(&mut self, extents: impl IntoIterator<Item = &'e ObjectExtent>) -> Step {
        for extent in extents {
            let used = self.chunk(extent.pointer.chunk)?;
            used.live = used.live.saturating_sub(1);
            used.live_bytes = used.live_bytes.saturating_sub(extent.bytes as u64);
            self.batch.remove(rows::slot(extent.pointer));
        }
        Ok(())
    }

    /// Makes an object's slots live; those of its hold are already, and what else the hold keeps
    /// is freed.
    pub(super) fn keep_held(&mut self, extents: &[ObjectExtent], hold: u64) -> Step {
        if hold == 0 {
            return self.keep(extents);
        }
        let held: Hold = self.row(&rows::hold(hold), "a hold")?.unwrap_or_default();
        let is_held = |extent: &&ObjectExtent| held.extents.contains(extent);
        let fresh: Vec<ObjectExtent> = extents.iter().filter(|e| !is_held(e)).copied().collect();
        self.keep(&fresh)?;
        self.end_hold(hold, extents)
    }

    pub(super) fn hold(&mut self, id: u64, now_ms: i64, extents: &[ObjectExtent]) -> Step {
        let held: Option<Hold> = self.row(&rows::hold(id), "a hold")?;
        let mut held = held.unwrap_or(Hold { begun_ms: now_ms, extents: Vec::new() });
        if held.extents.len() + extents.len() > crate::EXTENTS_MAX {
            let what = format!("an object has at most {} extents", crate::EXTENTS_MAX);
            return Err(Refusal::Invalid(what).into());
        }
        self.keep(extents)?;
        held.extents.extend_from_slice(extents);
        self.put(rows::hold(id), &held);
        Ok(())
    }

    /// Ends a hold, if there is one, and frees what it keeps but for `kept`.
    pub(super) fn end_hold(&mut self, id: u64, kept: &[ObjectExtent]) -> Step {
        let Some(held) = self.row::<Hold>(&rows::hold(id), "a hold")? else { return Ok(()) };
        self.free(held.extents.iter().filter(|extent| !kept.contains(extent)))?;
        self.batch.remove(rows::hold(id));
        Ok(())
    }

    /// Its chunk is gone. The row stays, closed: what named a slot of it may have been under way for
    /// longer than anybody waited, and the object that it replaces is still there.
    pub(super) fn forget_chunk(&mut self, id: ChunkId) -> Step {
        let used = self.chunk(id)?;
        if used.live > 0 {
            return Err(Refusal::Invalid(format!("objects live in chunk `{id}`")).into());
        }
        *used = ChunkUse { closed: true, ..ChunkUse::default() };
        if planted!("blob.forgotten-chunk-named") {
            self.chunks.remove(&id);
            self.batch.remove(rows::chunk(id));
        }
        Ok(())
    }
}
