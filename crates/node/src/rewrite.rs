//! Compaction of one packed chunk: every replica computes the next generation from the same live
//! slots, and an entry switches to what they agree on. `holdfast_cluster::compaction` decides; this asks the
//! stores and proposes. Never decides what lives: the keeper asks the namespace, a face with chunks
//! of its own asks its view.

use super::Node;
use holdfast_base::ids::{ChunkId, Durability, FileId, Slot, StoreId};
use holdfast_base::{Error, Result};
use holdfast_cluster::command::ChunkKind;
use holdfast_cluster::compaction::{self, Rewriting, Verdict};
use holdfast_cluster::{Chunk, ChunkState};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, sometimes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chunks that may wait for somebody at a time: the plan of each is kept, a bit a slot.
static PLANS_MAX: Knob = Knob::new("cluster.rewrite-plans", 1024, &[1, 2]);

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

impl Node {
    /// Chunks of a face that this node sees to: the first replica that is not lost is here.
    pub fn face_chunks(&self, face: FileId) -> Result<Vec<FaceChunk>> {
        let mut found = Vec::new();
        for own in self.stores.iter() {
            let here = own.store.list();
            self.read_chunks(|view, _| {
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

    /// Rewrites a closed chunk that this node sees to from its live slots. Every replica that
    /// counts and is not lost takes part, or nothing is switched, and it is to be tried again. The
    /// old generation stays until its readers are done.
    pub fn rewrite(self: &Arc<Node>, chunk: ChunkId, live: &BTreeSet<Slot>) -> Result<()> {
        let Some(known) = self.read_chunks(|view, _| view.get(chunk).cloned())? else {
            return Ok(());
        };
        if self.sees_to(&known).is_none() {
            return Err(Error::invalid(format!(
                "rewrite chunk `{chunk}`: the first of its replicas is not in a store of this node"
            )));
        }
        let live = self.planned(&known, live)?;
        let rewriting = Rewriting::new(&known, live, |store| self.is_lost(store))?;
        self.carry_out(rewriting)
    }

    /// What was to be kept when this generation was tried first: the entry of an attempt whose
    /// answer was lost may yet arrive, and then all must have computed what it says.
    fn planned(&self, known: &Chunk, live: &BTreeSet<Slot>) -> Result<BTreeSet<Slot>> {
        let mut plans = self.rewriting.held();
        if let Some((generation, planned)) = plans.get(&known.id)
            && *generation == known.generation
        {
            return Ok(planned.clone());
        }
        if plans.len() >= PLANS_MAX.size() {
            PLANS_MAX.cross();
            self.read_chunks(|view, _| {
                plans.retain(|id, (generation, _)| {
                    view.get(*id).is_some_and(|chunk| chunk.generation == *generation)
                });
            })?;
        }
        if plans.len() >= PLANS_MAX.size() {
            return Err(Error::retry(format!(
                "rewrite chunk `{}`: {} others wait for stores already",
                known.id,
                plans.len()
            )));
        }
        plans.insert(known.id, (known.generation, live.clone()));
        Ok(live.clone())
    }

    /// Goes back to a generation before, for a chunk whose current copies are all lost: what else
    /// is there of it has what its names need.
    pub(super) fn go_back(self: &Arc<Node>, chunk: ChunkId) -> Result<()> {
        let known = self.read_chunks(|view, _| view.get(chunk).cloned())?;
        let back = known.and_then(|c| Rewriting::from_before(&c, |store| self.is_lost(store)));
        let Some(back) = back else { return Ok(()) };
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
        let (chunk, next) = (rewriting.chunk, rewriting.next);
        let answers = self.wait_for(|done| {
            let stores = rewriting.stores();
            self.replicator.compact_on(stores, (chunk, next), &rewriting.live, done);
        })?;
        match rewriting.judge(&answers) {
            Verdict::Switch(switch) => {
                self.propose_and_wait(switch, Durability::Durable)?;
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
        self.rewriting.held().remove(&chunk);
        for own in self.stores.iter().filter(|own| rewriting.stores().contains(&own.id)) {
            own.store.switch(chunk, next)?;
        }
        Ok(())
    }
}
