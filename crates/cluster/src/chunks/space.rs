//! Changes of chunks: drawn, sealed, closed, rewritten, and released. Nothing that a name or a
//! reader may still use is ever allowed to go: what is freed waits for its `Release`. Who holds a
//! chunk changes in `replicas.rs`.

use super::{Chunk, ChunkState, Chunks, Dropped, Freed, FreedThing, OldGeneration};
use crate::command::{BLOBS, REPLICAS_MAX};
use crate::namespace::{STEPS_MAX, misrouted};
use crate::{ChunkKind, Command, Outcome};
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Index, NodeId, StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::{Error, Result};
use holdfast_env::planted;

impl Chunks {
    /// Refuses stores and copies that no chunk is made with.
    pub(crate) fn check_new(replicas: &[StoreId], copies: u8) -> Result<()> {
        check_replicas(replicas)?;
        if copies as usize > REPLICAS_MAX || (copies as usize) < replicas.len() {
            return Err(Error::invalid(format!(
                "{copies} copies are wanted and {} stores named: want at least that many, and at \
                 most {REPLICAS_MAX}",
                replicas.len()
            )));
        }
        Ok(())
    }

    /// Draws the next id; what [`Chunks::check_new`] and the owner's names refuse was refused.
    pub(crate) fn allocate(
        &mut self,
        (kind, owner): (ChunkKind, FileId),
        node: NodeId,
        replicas: &[StoreId],
        copies: u8,
        class: (Tier, Durability),
    ) -> Result<ChunkId> {
        if self.next >> ChunkId::COUNTER_BITS != 0 {
            return Err(Error::full("the shard has drawn every chunk id: use another shard"));
        }
        let id = ChunkId::new(self.shard, self.next);
        self.next += 1;
        let replicas = (replicas.to_vec(), copies);
        let chunk = Chunk::new(id, (kind, owner), node, replicas, class);
        self.table.insert(chunk);
        Ok(id)
    }

    /// Refuses what cannot be adopted, but for its owner.
    pub(crate) fn check_adopted(&self, command: &Command) -> Result<()> {
        let Command::AdoptChunk { chunk: id, kind, generation, length, replicas, .. } = command
        else {
            return Err(misrouted());
        };
        check_replicas(replicas)?;
        if id.shard() != self.shard || self.was_allocated(*id) {
            return Err(Error::invalid(
                "its id, or a later one, was drawn before: it stays unknown",
            ));
        }
        if *length > CHUNK_BYTES {
            let what = format!("{length} bytes are more than a chunk's {CHUNK_BYTES}");
            return Err(Error::invalid(what));
        }
        if *kind == ChunkKind::Raw && *generation != Generation(0) {
            return Err(Error::invalid("a raw chunk is never rewritten"));
        }
        Ok(())
    }

    /// Enters a chunk that another namespace made; it was checked.
    pub(crate) fn adopt(&mut self, command: &Command) -> Result<ChunkId> {
        let Command::AdoptChunk { chunk: id, kind, owner, node, generation, length, .. } = command
        else {
            return Err(misrouted());
        };
        let Command::AdoptChunk { replicas, tier, .. } = command else {
            return Err(misrouted());
        };
        self.next = id.counter() + 1;
        let held = (replicas.clone(), replicas.len() as u8);
        let class = (*tier, Durability::Durable);
        let chunk = Chunk {
            state: ChunkState::Sealed,
            generation: *generation,
            begun: *generation,
            length: *length,
            ..Chunk::new(*id, (*kind, *owner), *node, held, class)
        };
        self.table.insert(chunk);
        Ok(*id)
    }

    pub(super) fn find_chunk(&mut self, id: ChunkId) -> Result<&mut Chunk> {
        self.table.get_mut(id).ok_or_else(|| Error::not_found("it is not known"))
    }

    pub(crate) fn seal_chunk(
        &mut self,
        id: ChunkId,
        length: u64,
        replicas: &[StoreId],
    ) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        if chunk.state == ChunkState::Open || planted!("cluster.last-seal-decides") {
            check_replicas(replicas)?;
            if length > CHUNK_BYTES {
                return Err(Error::invalid(format!(
                    "{length} bytes are more than a chunk's {CHUNK_BYTES}"
                )));
            }
            if let Some(store) = replicas.iter().find(|store| !chunk.replicas.contains(store)) {
                return Err(Error::invalid(format!("store `{store}` never held it")));
            }
            let generation = chunk.generation;
            let left_out = chunk.replicas.iter().filter(|store| !replicas.contains(store));
            chunk.dropped = left_out.map(|store| Dropped { generation, store: *store }).collect();
            chunk.dropped.sort_unstable();
            self.table.set_replicas(id, replicas.to_vec());
            self.table.seal(id, length);
        }
        // Later seals are told what the first one decided.
        let chunk = self.find_chunk(id)?;
        Ok(Outcome::Sealed { length: chunk.length, replicas: chunk.replicas.clone() })
    }

    pub(crate) fn close_chunk(&mut self, id: ChunkId) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        if chunk.kind != ChunkKind::Packed {
            return Err(Error::invalid("it is raw: only packed chunks are closed"));
        }
        match chunk.state {
            ChunkState::Open => return Err(Error::invalid("it is open: seal it first")),
            ChunkState::Sealed => chunk.state = ChunkState::Closed,
            ChunkState::Closed | ChunkState::Doomed => {}
        }
        doom_if_empty(chunk);
        self.forget_if_over(id);
        Ok(Outcome::Done {})
    }

    pub(crate) fn begin_rewrite(&mut self, id: ChunkId) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        // The number behind the current generation's is passed over: builds before took it without
        // asking, one attempt after the other.
        let passed = chunk.generation.0.saturating_add(1);
        let taken = match planted!("cluster.attempts-share-a-number") {
            false => chunk.begun.0.max(passed),
            true => passed,
        };
        let begun = taken.checked_add(1).map(Generation);
        let begun = begun.ok_or_else(|| Error::full("every number of a generation was drawn"))?;
        self.close_chunk(id)?;
        match self.table.get_mut(id) {
            Some(chunk) if chunk.state == ChunkState::Closed => {
                chunk.begun = begun;
                Ok(Outcome::Begun { generation: begun })
            }
            // Nothing is alive in it: it goes.
            _ => Ok(Outcome::Done {}),
        }
    }

    pub(crate) fn free_face_chunk(&mut self, id: ChunkId) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        if chunk.owner != BLOBS {
            return Err(Error::invalid("its names are kept here: they say when it is free"));
        }
        match chunk.state {
            ChunkState::Closed => chunk.state = ChunkState::Doomed,
            ChunkState::Doomed => {}
            state => {
                let what = format!("it is {}: close it first", state.name());
                return Err(Error::invalid(what));
            }
        }
        self.forget_if_over(id);
        Ok(Outcome::Done {})
    }

    /// `replicas` have the new generation; `None` for all.
    pub(crate) fn switch_generation(
        &mut self,
        index: Index,
        id: ChunkId,
        generation: Generation,
        length: u64,
        digest: u64,
        replicas: Option<&[StoreId]>,
    ) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        check_next(chunk, generation)?;
        if length > CHUNK_BYTES {
            return Err(Error::invalid(format!(
                "{length} bytes are more than a chunk's {CHUNK_BYTES}"
            )));
        }
        let replicas = replicas.unwrap_or(&chunk.replicas).to_vec();
        self.make_current(index, id, generation, replicas)?;
        let chunk = self.find_chunk(id)?;
        (chunk.length, chunk.digest) = (length, digest);
        Ok(Outcome::Done {})
    }

    /// The current generation becomes an old one, whose readers have their grace; `replicas`, which
    /// have all counted, hold the new one.
    fn make_current(
        &mut self,
        index: Index,
        id: ChunkId,
        generation: Generation,
        replicas: Vec<StoreId>,
    ) -> Result<()> {
        check_replicas(&replicas)?;
        let chunk = self.find_chunk(id)?;
        if let Some(store) = replicas.iter().find(|store| !chunk.replicas.contains(store)) {
            return Err(Error::invalid(format!("store `{store}` holds no replica that counts")));
        }
        let old = chunk.generation;
        chunk.old.push(OldGeneration {
            generation: old,
            replicas: chunk.replicas.clone(),
            released: false,
        });
        (chunk.generation, chunk.begun) = (generation, generation);
        self.table.set_replicas(id, replicas);
        let what = FreedThing::Generation { chunk: id, generation: old };
        self.freed.push_back(Freed { index, what });
        Ok(())
    }

    /// A switch that every replica agrees to which counts and is not lost; or, where all of them
    /// are lost, one to what was computed from a generation before.
    pub(crate) fn rewrite(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        let Command::Rewrite { chunk: id, from, generation, digest, replicas, without } = command
        else {
            return Err(misrouted());
        };
        let chunk = self.find_chunk(*id)?;
        check_next(chunk, *generation)?;
        if let Some(store) = replicas.iter().find(|store| without.contains(store)) {
            return Err(Error::invalid(format!("store `{store}` cannot have it and be lost")));
        }
        let said = |store: &&StoreId| replicas.contains(store) || without.contains(store);
        if let Some(store) = chunk.replicas.iter().find(|store| !said(store)) {
            return Err(Error::invalid(format!(
                "store `{store}` has a replica that counts, and has not computed it: ask it, too"
            )));
        }
        if *from == chunk.generation {
            self.make_current(index, *id, *generation, replicas.clone())?;
        } else {
            if !chunk.replicas.iter().all(|store| without.contains(store)) {
                let what = format!("generation `{}` is there: go on from it", chunk.generation);
                return Err(Error::invalid(what));
            }
            self.go_back(*id, *from, *generation, replicas)?;
        }
        self.find_chunk(*id)?.digest = *digest;
        Ok(Outcome::Done {})
    }

    /// Nothing is left of the current generation: stores that have kept the one before it hold the
    /// next.
    fn go_back(
        &mut self,
        id: ChunkId,
        from: Generation,
        generation: Generation,
        replicas: &[StoreId],
    ) -> Result<()> {
        check_replicas(replicas)?;
        let chunk = self.find_chunk(id)?;
        let old = chunk.old.iter().find(|old| old.generation == from);
        let kept = old.map_or(&[][..], |old| &old.replicas);
        if let Some(store) = replicas.iter().find(|store| !kept.contains(store)) {
            return Err(Error::invalid(format!(
                "store `{store}` has no generation `{from}` of it"
            )));
        }
        // Should one come back after all, no copy of it counts any more.
        let lost = chunk.generation;
        chunk
            .dropped
            .extend(chunk.replicas.iter().map(|&store| Dropped { generation: lost, store }));
        chunk.dropped.sort_unstable();
        (chunk.generation, chunk.begun) = (generation, generation);
        self.table.set_replicas(id, replicas.to_vec());
        Ok(())
    }

    pub(crate) fn release(&mut self, before: Index, budget: u32) -> Outcome {
        let mut steps = 0;
        let early = u64::from(planted!("cluster.released-an-entry-early"));
        let before = Index(before.0.saturating_add(early));
        let due = |freed: &VecFront<'_>| freed.is_some_and(|freed| freed.index < before);
        while due(&self.freed.front()) {
            if steps == STEPS_MAX.get() as u32 {
                STEPS_MAX.cross();
            }
            if steps == budget.min(STEPS_MAX.get() as u32) {
                break;
            }
            steps += 1;
            let Some(freed) = self.freed.pop_front() else { break };
            let (FreedThing::Slot { chunk: id, .. }
            | FreedThing::Chunk { chunk: id }
            | FreedThing::Generation { chunk: id, .. }) = freed.what;
            let Some(chunk) = self.table.get_mut(id) else { continue };
            match freed.what {
                FreedThing::Slot { slot, bytes, .. } => {
                    chunk.bury(slot, bytes);
                    doom_if_empty(chunk);
                }
                FreedThing::Chunk { .. } => self.table.doom(id),
                FreedThing::Generation { generation, .. } => {
                    let old = chunk.old.iter_mut().find(|old| old.generation == generation);
                    old.into_iter().for_each(|old| old.released = true);
                }
            }
            self.forget_if_over(id);
        }
        Outcome::Progress { steps, more: due(&self.freed.front()) }
    }
}

type VecFront<'a> = Option<&'a Freed>;

/// Refuses a switch to what is not the last attempt's. Its entry may arrive long after another
/// attempt has begun, whose stores then hold something else, or nothing of this one any more.
fn check_next(chunk: &Chunk, generation: Generation) -> Result<()> {
    if chunk.state != ChunkState::Closed {
        return Err(Error::invalid(format!(
            "it is {}: only a closed chunk is rewritten",
            chunk.state.name()
        )));
    }
    let under_way = chunk.begun > chunk.generation;
    // Builds before began nothing, and took the next one.
    let next = if under_way { Some(chunk.begun.0) } else { chunk.generation.0.checked_add(1) };
    let late = under_way && generation > chunk.generation && generation < chunk.begun;
    if Some(generation.0) == next || late && planted!("cluster.switch-of-an-attempt-before") {
        return Ok(());
    }
    Err(Error::invalid(match late {
        true => format!("an attempt at generation `{}` began since: this one is over", chunk.begun),
        false => format!("it is at generation `{}`: switch to the next one", chunk.generation),
    }))
}

/// Nothing new can be named in a closed chunk, so an empty one stays empty. Of a chunk whose names
/// a face keeps only this is known here: whether anything was ever written to it.
fn doom_if_empty(chunk: &mut Chunk) {
    let named_here = chunk.owner != BLOBS || chunk.length == 0;
    if chunk.state == ChunkState::Closed && chunk.live_objects == 0 && named_here {
        chunk.state = ChunkState::Doomed;
    }
}

pub(super) fn check_replicas(replicas: &[StoreId]) -> Result<()> {
    let twice = || replicas.iter().enumerate().any(|(i, store)| replicas[..i].contains(store));
    if replicas.is_empty() || replicas.len() > REPLICAS_MAX || twice() {
        return Err(Error::invalid(format!(
            "{} stores were given: name 1 to {REPLICAS_MAX}, each once",
            replicas.len()
        )));
    }
    Ok(())
}
