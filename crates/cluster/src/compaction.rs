//! What becomes of a packed chunk's next generation: who has to compute it, and whether the log may
//! be asked to switch to it. A pure core, which the keeper drives and the model of compaction
//! (`crates/sim/tests/model/compaction.rs`) searches. A replica that counts and is not lost is
//! waited for, whatever it fails with: leaving it out would leave a chunk with the copies that
//! happened to answer. What is lost with its stores is computed anew from the generation before.
//!
//! **Invariant:** the replicas of one generation never differ. An attempt begins with an entry
//! (`BeginRewrite`) that draws the number of the generation that it may make, and has one plan. So
//! whatever comes late of it (a request at a store, its `Rewrite` at the log, an answer that its
//! planner did not live to hear) is about a generation of its own: it cannot change what another
//! attempt's stores have computed, and is refused by the log once another attempt has begun.

use crate::Command;
use crate::chunks::{Chunk, ChunkState};
use holdfast_base::ids::{ChunkId, Generation, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Copies with which the loss of any one store loses nothing.
pub const GOOD_COPIES: usize = 2;

/// What a store says that has computed the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub needles: u64,
    /// Of all objects, in the order of their slots.
    pub digest: u64,
}

/// One attempt to have a generation computed everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewriting {
    pub chunk: ChunkId,
    /// The generation that it is made from: the current one, or one before it whose files are
    /// there while nothing of the current one is.
    pub from: Generation,
    pub next: Generation,
    /// Slots to keep.
    pub live: BTreeSet<Slot>,
    /// How many objects that makes; of a generation before, nobody knows.
    needles: Option<u64>,
    stores: Vec<StoreId>,
    lost: Vec<StoreId>,
}

/// What the answers of all stores come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All agree.
    Switch(Command),
    /// Somebody has not computed it; the sentence says who, and why.
    Wait(Error),
    /// These do not have what they should: they are to be dropped and copied anew. Until then
    /// nothing is switched.
    Damaged(Vec<(StoreId, String)>),
}

/// Whether a chunk's live slots are all that will ever live in it.
pub fn is_ready(chunk: &Chunk) -> bool {
    chunk.state == ChunkState::Closed
        || planted!("cluster.compaction-planned-before-close") && chunk.state == ChunkState::Sealed
}

/// Whose node sees to the chunk's compaction: the first replica that is not lost.
pub fn seen_to_by(chunk: &Chunk, lost: impl Fn(StoreId) -> bool) -> Option<StoreId> {
    chunk.replicas.iter().copied().find(|store| !lost(*store))
}

/// Whether a file of generation `at` that a store holds beside its current one is of an attempt that
/// came to nothing: it was never switched to, and never will be. For files that no entry names.
pub fn is_given_up(chunk: &Chunk, current: Generation, at: Generation) -> bool {
    at > current && at < chunk.begun && at != chunk.generation
}

impl Rewriting {
    /// A closed chunk's generation `next`, which its attempt has drawn, from its live slots as the
    /// view had them behind that.
    pub fn new(
        chunk: &Chunk,
        next: Generation,
        live: BTreeSet<Slot>,
        is_lost: impl Fn(StoreId) -> bool,
    ) -> Result<Rewriting> {
        if !is_ready(chunk) {
            return Err(Error::invalid(format!(
                "rewrite chunk `{}`: it is {}: only a closed chunk's live slots are final",
                chunk.id,
                chunk.state.name()
            )));
        }
        check_begun(chunk, next)?;
        let (lost, stores): (Vec<_>, Vec<_>) =
            chunk.replicas.iter().copied().partition(|store| is_lost(*store));
        let enough = GOOD_COPIES.min(chunk.copies as usize);
        if stores.len() < enough {
            // What a seal left out is a last resort of this generation, and of no other.
            return Err(Error::retry(format!(
                "rewrite chunk `{}`: {} of its copies are there, and {enough} are needed: repair \
                 makes the others first",
                chunk.id,
                stores.len()
            )));
        }
        let (from, needles) = (chunk.generation, Some(live.len() as u64));
        Ok(Rewriting { chunk: chunk.id, from, next, live, needles, stores, lost })
    }

    /// A way back for a chunk of which every current copy is lost while files of an earlier
    /// generation are there: all of those' slots are computed into `next`, which the attempt drew.
    pub fn from_before(
        chunk: &Chunk,
        next: Generation,
        is_lost: impl Fn(StoreId) -> bool,
    ) -> Result<Option<Rewriting>> {
        let Some((from, stores)) = Rewriting::way_back(chunk, is_lost) else { return Ok(None) };
        check_begun(chunk, next)?;
        Ok(Some(Rewriting {
            chunk: chunk.id,
            from,
            next,
            live: (0..chunk.length as u32).map(Slot).collect(),
            // Some may be dead already, and were never copied.
            needles: None,
            stores,
            lost: chunk.replicas.clone(),
        }))
    }

    /// The last generation before the current one of which files are there, and where, for a chunk
    /// of which every current copy is lost.
    pub fn way_back(
        chunk: &Chunk,
        is_lost: impl Fn(StoreId) -> bool,
    ) -> Option<(Generation, Vec<StoreId>)> {
        if chunk.state != ChunkState::Closed || !chunk.replicas.iter().all(|store| is_lost(*store))
        {
            return None;
        }
        let mut before: Vec<_> = chunk.old.iter().collect();
        before.sort_by_key(|old| std::cmp::Reverse(old.generation));
        let there = |stores: &[StoreId]| -> Vec<StoreId> {
            stores.iter().copied().filter(|store| !is_lost(*store)).collect()
        };
        let found = before.into_iter().map(|old| (old.generation, there(&old.replicas)));
        found.into_iter().find(|(_, stores)| !stores.is_empty())
    }

    /// Who has to compute it.
    pub fn stores(&self) -> &[StoreId] {
        &self.stores
    }

    /// Whether the chunk is not as it was planned for any more (a copy came or went, another attempt
    /// began), for which the log refuses the switch: the next attempt takes the chunk as it is then.
    pub fn is_overtaken(&self, chunk: &Chunk) -> bool {
        let known = |store: &StoreId| self.stores.contains(store) || self.lost.contains(store);
        let holders = match self.from == chunk.generation {
            true => Some(&chunk.replicas),
            false => chunk.old.iter().find(|old| old.generation == self.from).map(|o| &o.replicas),
        };
        check_begun(chunk, self.next).is_err()
            || !is_ready(chunk)
            || !chunk.replicas.iter().all(known)
            || !holders.is_some_and(|held| self.stores.iter().all(|store| held.contains(store)))
    }

    /// Judges the answers; a store without one was not asked, or is silent.
    pub fn judge(&self, answers: &BTreeMap<StoreId, Result<Made>>) -> Verdict {
        let (mut made, mut damaged, mut silent) = (BTreeMap::new(), Vec::new(), None);
        for &store in &self.stores {
            match answers.get(&store) {
                Some(Ok(answer)) => drop(made.insert(store, *answer)),
                Some(Err(e)) if e.kind == Kind::Corrupt => damaged.push((store, e.to_string())),
                Some(Err(e)) => drop(silent.get_or_insert((store, e.to_string()))),
                None => drop(silent.get_or_insert((store, "it was not asked".to_owned()))),
            }
        }
        let most = || made.values().map(|made| made.needles).max().unwrap_or(0);
        let wanted = self.needles.unwrap_or_else(most);
        for (store, made) in made.iter().filter(|(_, made)| made.needles != wanted) {
            damaged.push((*store, format!("it has {} of {wanted} live objects", made.needles)));
        }
        if !damaged.is_empty() {
            return Verdict::Damaged(damaged);
        }
        if let Some((store, why)) = silent
            && !(planted!("cluster.silent-replica-left-out") && !made.is_empty())
        {
            return Verdict::Wait(Error::retry(format!(
                "rewrite chunk `{}` as generation `{}`: store `{store}` has a copy that counts, \
                 and has not computed it: {why}",
                self.chunk, self.next
            )));
        }
        let Some(digest) = made.values().next().map(|made| made.digest) else {
            return Verdict::Wait(Error::retry("rewrite a chunk: nobody has computed it"));
        };
        if made.values().any(|made| made.digest != digest) {
            // Every object of each verifies: nobody can say here who is wrong.
            return Verdict::Wait(Error::corrupt(format!(
                "rewrite chunk `{}` as generation `{}`: its copies computed different objects; \
                 it stays as it is: scrub the stores that have it",
                self.chunk, self.next
            )));
        }
        let without = match planted!("cluster.silent-replica-left-out") {
            true => self.stores.iter().filter(|s| !made.contains_key(s)).copied().collect(),
            false => self.lost.clone(),
        };
        Verdict::Switch(Command::Rewrite {
            chunk: self.chunk,
            from: self.from,
            generation: self.next,
            digest,
            replicas: self.stores.iter().copied().filter(|s| made.contains_key(s)).collect(),
            without,
        })
    }
}

/// Refuses what was begun before another attempt was.
fn check_begun(chunk: &Chunk, next: Generation) -> Result<()> {
    if chunk.begun == next && next > chunk.generation {
        return Ok(());
    }
    Err(Error::retry(format!(
        "rewrite chunk `{}` as generation `{next}`: another attempt, at `{}`, began since",
        chunk.id, chunk.begun
    )))
}

#[cfg(test)]
mod tests;
