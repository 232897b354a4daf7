//! Who holds a chunk: replicas that count, those that were dropped, and which of both may go. A
//! replica goes only by an accepted entry that names chunk, generation and store, and never while
//! the chunk would be left with fewer copies than it should have.

use super::{Chunk, ChunkState, Chunks, Dropped, OldGeneration};
use crate::Outcome;
use crate::command::REPLICAS_MAX;
use crate::compaction::GOOD_COPIES;
use holdfast_base::ids::{ChunkId, Generation, StoreId};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::BTreeSet;

/// A chunk that has fewer copies than it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortChunk {
    /// Replicas that count; with 0 there is nothing to copy from.
    pub live: usize,
    pub wanted: usize,
    pub chunk: ChunkId,
    pub generation: Generation,
}

impl Chunks {
    pub(crate) fn add_replica(
        &mut self,
        id: ChunkId,
        generation: Generation,
        store: StoreId,
    ) -> Result<Outcome> {
        let chunk = self.find_held(id, generation)?;
        if chunk.replicas.contains(&store) {
            return Ok(Outcome::Done {});
        }
        if chunk.replicas.len() >= REPLICAS_MAX {
            return Err(Error::invalid(format!("it has {REPLICAS_MAX} replicas: drop one first")));
        }
        chunk.dropped.retain(|dropped| *dropped != Dropped { generation, store });
        let replicas = chunk.replicas.iter().copied().chain([store]).collect();
        self.table.set_replicas(id, replicas);
        Ok(Outcome::Done {})
    }

    pub(crate) fn drop_replica(
        &mut self,
        id: ChunkId,
        generation: Generation,
        store: StoreId,
        lost: bool,
    ) -> Result<Outcome> {
        let chunk = self.find_held(id, generation)?;
        if !chunk.replicas.contains(&store) {
            return Ok(Outcome::Done {});
        }
        if chunk.replicas.len() == 1 && !lost && !planted!("cluster.last-replica-dropped") {
            return Err(Error::invalid(
                "it is the last replica: copy it first, or say that the chunk is lost",
            ));
        }
        let dropped = Dropped { generation, store };
        let place = chunk.dropped.partition_point(|other| *other < dropped);
        chunk.dropped.insert(place, dropped);
        let replicas = chunk.replicas.iter().copied().filter(|held| *held != store).collect();
        self.table.set_replicas(id, replicas);
        Ok(Outcome::Done {})
    }

    pub(crate) fn raise_copies(&mut self, chunks: &[ChunkId], copies: u8) -> Result<Outcome> {
        if !(1..=REPLICAS_MAX as u8).contains(&copies) {
            return Err(Error::invalid(format!("that is not 1 to {REPLICAS_MAX}")));
        }
        for id in chunks {
            if let Some(chunk) = self.table.get_mut(*id)
                && chunk.state != ChunkState::Doomed
                && chunk.copies < copies
            {
                chunk.copies = copies;
                let replicas = chunk.replicas.clone();
                self.table.set_replicas(*id, replicas);
            }
        }
        Ok(Outcome::Done {})
    }

    /// A chunk whose replicas may change one by one: its length is decided and it is not deleted.
    fn find_held(&mut self, id: ChunkId, generation: Generation) -> Result<&mut Chunk> {
        let chunk = self.find_chunk(id)?;
        if !chunk.is_kept() {
            return Err(Error::invalid(match chunk.state {
                ChunkState::Open => "it is open: seal it first".to_owned(),
                _ => "it is deleted: unlink its replicas".to_owned(),
            }));
        }
        if chunk.generation != generation && !planted!("cluster.copy-of-an-old-generation") {
            return Err(Error::invalid(format!("it is at generation `{}`", chunk.generation)));
        }
        Ok(chunk)
    }

    pub(crate) fn unlink_replica(
        &mut self,
        id: ChunkId,
        generation: Generation,
        store: StoreId,
    ) -> Result<Outcome> {
        let chunk = self.find_chunk(id)?;
        if let Ok(place) = chunk.dropped.binary_search(&Dropped { generation, store }) {
            check_spare(chunk, store)?;
            chunk.dropped.remove(place);
        } else if generation == chunk.generation {
            if chunk.state != ChunkState::Doomed {
                return Err(Error::invalid(format!(
                    "it is {} with {} live objects{}: it stays",
                    chunk.state.name(),
                    chunk.live_objects,
                    if chunk.freed { " and its readers have their grace" } else { "" }
                )));
            }
            let held = |chunk: &Chunk| chunk.replicas.contains(&store);
            if !held(chunk) {
                return Err(Error::not_found("that store does not hold it"));
            }
            let left = chunk.replicas.iter().copied().filter(|held| *held != store).collect();
            self.table.set_replicas(id, left);
        } else {
            unlink_old(chunk, generation, store)?;
        }
        self.forget_if_over(id);
        Ok(Outcome::Done {})
    }

    pub(super) fn forget_if_over(&mut self, id: ChunkId) {
        if self.table.get(id).is_some_and(Chunk::is_over) {
            self.table.remove(id);
        }
    }

    /// Sealed chunks with bytes and fewer replicas on stores of which `counts` says yes than they should
    /// have, fewest first. Looks only at chunks of other stores, and at those that were short
    /// whatever their stores.
    pub fn short(&self, counts: impl Fn(StoreId) -> bool) -> Vec<ShortChunk> {
        let bad = self.table.stores().filter(|store| !counts(*store));
        let concerned = bad.flat_map(|store| self.table.on(store)).chain(self.table.thin());
        let short: BTreeSet<ShortChunk> = concerned
            // What was sealed empty needs no copies, and may never have been made anywhere.
            .filter(|chunk| chunk.is_kept() && chunk.length > 0)
            .map(|chunk| ShortChunk {
                live: chunk.replicas.iter().filter(|store| counts(**store)).count(),
                wanted: chunk.copies as usize,
                chunk: chunk.id,
                generation: chunk.generation,
            })
            .filter(|short| short.live < short.wanted)
            .collect();
        short.into_iter().collect()
    }

    /// Chunks with a replica that counts on `store`, by id: what a drain has to move.
    pub fn on(&self, store: StoreId) -> impl Iterator<Item = &Chunk> {
        self.table.on(store)
    }

    /// Chunks of which nothing is left on stores of which `holds` says yes, by id: neither of what
    /// they are now nor of a generation before.
    pub fn lost(&self, holds: impl Fn(StoreId) -> bool) -> Vec<ChunkId> {
        let mut lost = self.short(&holds);
        lost.retain(|short| {
            let old = self.table.get(short.chunk).into_iter().flat_map(|chunk| &chunk.old);
            short.live == 0 && !old.flat_map(|old| &old.replicas).any(|store| holds(*store))
        });
        lost.into_iter().map(|short| short.chunk).collect()
    }

    /// Whether `store` has that generation by the log's word: as a replica that counts, one that
    /// was dropped, or one of an old generation.
    pub fn names_replica(&self, id: ChunkId, generation: Generation, store: StoreId) -> bool {
        self.table.get(id).is_some_and(|chunk| {
            (chunk.generation == generation && chunk.replicas.contains(&store))
                || chunk.dropped.contains(&Dropped { generation, store })
                || chunk
                    .old
                    .iter()
                    .any(|old| old.generation == generation && old.replicas.contains(&store))
        })
    }

    /// Replicas that an `Unlink` would be accepted for, in the order in which they should go: a
    /// store removes the current generation last, before that nothing may say that it is gone.
    pub fn unlinkable(&self) -> impl Iterator<Item = (ChunkId, Generation, StoreId)> {
        self.table.iter().flat_map(unlinkable)
    }

    /// Those of up to `max` chunks from `first` on, and the chunk to go on with, if there is one.
    pub fn unlinkable_from(
        &self,
        first: ChunkId,
        max: usize,
    ) -> (Vec<(ChunkId, Generation, StoreId)>, Option<ChunkId>) {
        let chunks = || self.table.iter_from(first);
        let next = chunks().nth(max).map(|chunk| chunk.id);
        (chunks().take(max).flat_map(unlinkable).collect(), next)
    }
}

fn unlinkable(chunk: &Chunk) -> impl Iterator<Item = (ChunkId, Generation, StoreId)> {
    let old = chunk.old.iter().filter(|old| old.released && is_replaced(chunk, old));
    let old = old.flat_map(|old| old.replicas.iter().map(|at| (old.generation, *at)));
    // Beside one of a generation before that is still named, the later file stays in its store.
    let waits = |dropped: &Dropped| {
        let before = chunk.old.iter().filter(|old| old.generation < dropped.generation);
        before.flat_map(|old| &old.replicas).any(|store| *store == dropped.store)
    };
    let dropped = chunk.dropped.iter().filter(move |dropped| !waits(dropped));
    let dropped = dropped.map(|d| (d.generation, d.store));
    let spare = old.chain(dropped).filter(|(_, store)| chunk.can_spare(*store));
    let last =
        chunk.state == ChunkState::Doomed && chunk.old.is_empty() && chunk.dropped.is_empty();
    let current = last.then(|| chunk.replicas.iter().map(|at| (chunk.generation, *at)));
    let all = spare.chain(current.into_iter().flatten());
    all.map(|(generation, store)| (chunk.id, generation, store))
}

/// Two copies of what replaced a generation count, or as many as it had itself: before that nobody
/// proposes that its files go, for they may have to be gone back to.
fn is_replaced(chunk: &Chunk, old: &OldGeneration) -> bool {
    let enough = GOOD_COPIES.min(chunk.copies as usize).min(old.replicas.len());
    let enough = if planted!("cluster.old-generation-unlinked-early") { 0 } else { enough };
    chunk.state == ChunkState::Doomed || chunk.replicas.len() >= enough
}

fn unlink_old(chunk: &mut Chunk, generation: Generation, store: StoreId) -> Result<()> {
    let Some(place) = chunk.old.iter().position(|old| old.generation == generation) else {
        return Err(Error::not_found("it has no such generation"));
    };
    if !chunk.old[place].released {
        return Err(Error::invalid("its readers have their grace: it stays"));
    }
    if !chunk.old[place].replicas.contains(&store) {
        return Err(Error::not_found("that store does not hold it"));
    }
    check_spare(chunk, store)?;
    chunk.old[place].replicas.retain(|held| *held != store);
    chunk.old.retain(|old| !old.replicas.is_empty());
    Ok(())
}

fn check_spare(chunk: &Chunk, store: StoreId) -> Result<()> {
    if chunk.can_spare(store) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the chunk has {} of {} copies without it: it stays until repair has made the others",
        chunk.replicas.len(),
        chunk.copies
    )))
}
