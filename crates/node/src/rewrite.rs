//! Compaction of one packed chunk: an entry begins an attempt, every replica computes its generation
//! from the same live slots, and another entry switches to what they agree on.
//! `holdfast_cluster::compaction` decides; this asks the stores and proposes. Never decides what
//! lives: the keeper asks the namespace, a face with chunks of its own asks its view. Nothing of an
//! attempt outlives it here: the next one begins anew.

use super::{Node, OwnStore};
use crate::keeper::gone;
use crate::replicas::Answers;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Slot, StoreId};
use holdfast_base::{Error, Result};
use holdfast_chunk::Done;
use holdfast_cluster::compaction::{self, Rewriting, Verdict};
use holdfast_cluster::{Chunk, ChunkKind, ChunkState, Command, Outcome};
use holdfast_env::{HoldMutex, sometimes};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A packed chunk of a face, as the node sees it that compacts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaceChunk {
    pub chunk: ChunkId,
    pub state: ChunkState,
    /// What its file takes here, and the objects in it.
    pub stored_bytes: u64,
    pub needles: u64,
    /// An older generation is still there: it is not rewritten again before that is gone.
    pub has_old: bool,
}

/// A rewrite that stores compute. Dropped, it is as if it had never been begun.
pub(super) struct Attempt {
    rewriting: Rewriting,
    /// Filled when the last store has answered, or its time was up.
    answers: Arc<Mutex<Option<Result<Answers>>>>,
}

impl Attempt {
    pub(super) fn chunk(&self) -> ChunkId {
        self.rewriting.chunk
    }

    /// What it came to, once all stores have answered. Of a chunk that was deleted meanwhile, nothing.
    pub(super) fn finished(&self, node: &Arc<Node>) -> Option<Result<()>> {
        let answers = self.answers.held().take()?;
        let ended = answers.and_then(|answers| node.switch(&self.rewriting, &answers));
        Some(ended.or_else(|e| match node.is_rewritable(self.chunk())? {
            true => Err(e),
            false => Ok(()),
        }))
    }
}

impl Node {
    /// Chunks of a face that this node sees to: the first replica that is not lost is here. They are of
    /// the first shard.
    pub fn face_chunks(&self, face: FileId) -> Result<Vec<FaceChunk>> {
        let mut found = Vec::new();
        for own in self.stores.iter() {
            let here = own.store.list();
            self.read_chunks(0, |view, _| {
                for info in here {
                    let known = view.get(info.chunk).filter(|known| {
                        let packed = known.owner == face && known.kind == ChunkKind::Packed;
                        packed && self.sees_to(known) == Some(own.id)
                    });
                    let Some(known) = known else { continue };
                    found.push(FaceChunk {
                        chunk: known.id,
                        state: known.state,
                        stored_bytes: info.stored_bytes,
                        needles: info.needles,
                        has_old: !known.old.is_empty(),
                    });
                }
            })?;
        }
        Ok(found)
    }

    /// The store of this node through which it compacts a chunk; none if that is another's work.
    pub(super) fn sees_to(&self, known: &Chunk) -> Option<StoreId> {
        let first = compaction::seen_to_by(known, |store| self.is_lost(store))?;
        self.stores.get(first).map(|own| own.id)
    }

    pub(super) fn is_lost(&self, store: StoreId) -> bool {
        self.replicator.directory.place(store).is_some_and(|place| place.lost)
    }

    /// Closes a packed chunk and begins an attempt to rewrite it: the generation that it may make,
    /// for [`Node::rewrite`]. What lives is to be looked up behind this. `None` where nothing does,
    /// of a chunk whose names the namespace has.
    pub fn begin_rewrite(&self, chunk: ChunkId) -> Result<Option<Generation>> {
        // Kept before anything is computed under the number, or it could be drawn again.
        let begin = Command::BeginRewrite { chunk };
        Ok(match self.propose_and_wait(begin, Durability::Durable)? {
            Outcome::Begun { generation } => Some(generation),
            _ => None,
        })
    }

    /// Rewrites a chunk that this node sees to from its live slots, as generation `next`, which
    /// [`Node::begin_rewrite`] drew for this. Every replica that counts and is not lost takes part,
    /// or nothing is switched, and it is to be begun again. The old generation stays until its
    /// readers are done.
    pub fn rewrite(
        self: &Arc<Node>,
        chunk: ChunkId,
        next: Generation,
        live: &BTreeSet<Slot>,
    ) -> Result<()> {
        match self.rewriting(chunk, next, live)? {
            Some(rewriting) => self.carry_out(rewriting),
            None => Ok(()),
        }
    }

    /// Has the stores begin to compute, and does not wait for them.
    pub(super) fn start_rewrite(
        self: &Arc<Node>,
        chunk: ChunkId,
        next: Generation,
        live: &BTreeSet<Slot>,
    ) -> Result<Option<Attempt>> {
        let Some(rewriting) = self.rewriting(chunk, next, live)? else { return Ok(None) };
        let answers = Arc::new(Mutex::new(None));
        let slot = answers.clone();
        self.remove_given_up_of(&rewriting)?;
        self.compute(&rewriting, Box::new(move |computed| *slot.held() = Some(computed)));
        Ok(Some(Attempt { rewriting, answers }))
    }

    fn is_rewritable(&self, chunk: ChunkId) -> Result<bool> {
        self.read_chunk(chunk, |view, _| {
            view.get(chunk).is_some_and(|known| known.state != ChunkState::Doomed)
        })
    }

    /// What is to be made of a chunk by whom; none of one that was deleted meanwhile.
    fn rewriting(
        &self,
        chunk: ChunkId,
        next: Generation,
        live: &BTreeSet<Slot>,
    ) -> Result<Option<Rewriting>> {
        let known = self.read_chunk(chunk, |view, _| view.get(chunk).cloned())?;
        let Some(known) = known.filter(|known| known.state != ChunkState::Doomed) else {
            return Ok(None);
        };
        if self.sees_to(&known).is_none() {
            return Err(Error::invalid(format!(
                "rewrite chunk `{chunk}`: the first of its replicas is not in a store of this node"
            )));
        }
        Rewriting::new(&known, next, live.clone(), |store| self.is_lost(store)).map(Some)
    }

    /// Goes back to a generation before, for a chunk whose current copies are all lost: what else
    /// is there of it has what its names need.
    pub(super) fn go_back(self: &Arc<Node>, chunk: ChunkId) -> Result<()> {
        let lost = |store: StoreId| self.is_lost(store);
        let known = || self.read_chunk(chunk, |view, _| view.get(chunk).cloned());
        if known()?.and_then(|known| Rewriting::way_back(&known, lost)).is_none() {
            return Ok(());
        }
        let Some(next) = self.begin_rewrite(chunk)? else { return Ok(()) };
        let Some(known) = known()? else { return Ok(()) };
        let Some(back) = Rewriting::from_before(&known, next, lost)? else { return Ok(()) };
        let (from, next) = (back.from, back.next);
        self.carry_out(back)?;
        sometimes!("a chunk went back to a generation before");
        self.report_finding(format!(
            "chunk `{chunk}`: every copy of its last generation is lost with its stores; generation \
             `{from}`, which is there, was made into `{next}`: nothing of it is gone"
        ));
        Ok(())
    }

    /// Has the stores compute, and the log switch if all agree.
    fn carry_out(self: &Arc<Node>, rewriting: Rewriting) -> Result<()> {
        self.remove_given_up_of(&rewriting)?;
        let answers = self.wait_for(|done| self.compute(&rewriting, done))?;
        self.switch(&rewriting, &answers)
    }

    /// Has every store compute the generation from what lives.
    fn compute(self: &Arc<Node>, rewriting: &Rewriting, done: Done<Answers>) {
        let (chunk, next) = (rewriting.chunk, rewriting.next);
        self.replicator.compact_on(rewriting.stores(), (chunk, next), &rewriting.live, done);
    }

    /// The attempts before have left what takes as much room.
    fn remove_given_up_of(&self, rewriting: &Rewriting) -> Result<()> {
        self.own_of(rewriting).try_for_each(|own| self.remove_given_up(own, rewriting.chunk))
    }

    fn own_of(&self, rewriting: &Rewriting) -> impl Iterator<Item = &OwnStore> {
        self.stores.iter().filter(|own| rewriting.stores().contains(&own.id))
    }

    /// Has the log switch, if all stores agree.
    fn switch(self: &Arc<Node>, rewriting: &Rewriting, answers: &Answers) -> Result<()> {
        let (chunk, next) = (rewriting.chunk, rewriting.next);
        match rewriting.judge(answers) {
            Verdict::Switch(switch) => {
                if let Err(e) = self.propose_and_wait(switch, Durability::Durable) {
                    let now = self.read_chunk(chunk, |view, _| view.get(chunk).cloned())?;
                    // A copy that came or went while the stores computed is no fault of anybody's.
                    return Err(match now.is_some_and(|now| rewriting.is_overtaken(&now)) {
                        true => Error::retry(e.to_string()),
                        false => e,
                    });
                }
            }
            Verdict::Wait(e) => {
                sometimes!("a compaction waited for a replica");
                return Err(e);
            }
            Verdict::Damaged(bad) => {
                for (store, why) in &bad {
                    let what = format!("rewriting it found that {why}");
                    self.replicator.report_bad(*store, chunk, &what);
                }
                return Err(Error::retry(format!(
                    "rewrite chunk `{chunk}`: {} of its copies are damaged, and made anew first",
                    bad.len()
                )));
            }
        }
        for own in self.own_of(rewriting) {
            // An attempt before may have been late with its request, too.
            self.remove_given_up(own, chunk)?;
            own.store.switch(chunk, next)?;
        }
        Ok(())
    }

    /// Removes what attempts computed in a store of this node that came to nothing.
    pub(super) fn remove_given_up(&self, own: &OwnStore, chunk: ChunkId) -> Result<()> {
        let mut beside = own.store.other_generations(chunk);
        let Some(info) = own.store.info(chunk).filter(|_| !beside.is_empty()) else {
            return Ok(());
        };
        self.read_chunk(chunk, |view, _| {
            let known = view.get(chunk);
            beside.retain(|at| {
                let named = view.names_replica(chunk, *at, own.id);
                let over = |known| compaction::is_given_up(known, info.generation, *at);
                known.is_some_and(over) && !named
            });
        })?;
        for at in beside {
            gone(own.store.unlink(chunk, at))?;
            sometimes!("what an attempt at a rewrite left was removed");
        }
        Ok(())
    }
}
