//! Compaction of one packed chunk: every replica computes the next generation from the same live
//! slots, and an entry switches to what they agree on. Never decides what lives: the keeper asks
//! the namespace, a face with chunks of its own asks its view.

use super::Node;
use crate::Command;
use crate::command::ChunkKind;
use crate::namespace::ChunkState;
use holdfast_base::ids::{ChunkId, Durability, FileId, Generation, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

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
    /// Chunks of a face whose first replica is in a store of this node: it sees to all of them.
    pub fn face_chunks(&self, face: FileId) -> Result<Vec<FaceChunk>> {
        let mut found = Vec::new();
        for own in self.stores.iter() {
            let here = own.store.list();
            self.namespace.read(|view, _| {
                for info in here {
                    let known = view.chunk(info.chunk).filter(|known| {
                        let mine = known.replicas.first() == Some(&own.id);
                        known.owner == face && known.kind == ChunkKind::Packed && mine
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

    /// Rewrites a closed chunk, whose first replica is in a store of this node, from its live
    /// slots. The old generation stays until its readers are done.
    pub fn rewrite(self: &Arc<Node>, chunk: ChunkId, live: &BTreeSet<Slot>) -> Result<()> {
        let known = self.namespace.read(|view, _| {
            let known = view.chunk(chunk)?;
            Some((known.generation, known.length, known.replicas.clone()))
        })?;
        let Some((generation, length, holders)) = known else { return Ok(()) };
        let first: Option<StoreId> = holders.first().copied();
        let Some((first, own)) = first.and_then(|id| Some((id, self.stores.get(id)?))) else {
            return Err(Error::invalid("its first replica is not in a store of this node"));
        };
        let next = Generation(generation.0 + 1);
        let rewrite = || own.store.compact(chunk, &|slot| live.contains(&slot), next);
        let made = match rewrite() {
            // Computed by a process that ended before the switch, from slots that may have died
            // since: nothing names it.
            Err(e) if e.kind == Kind::Exists => {
                own.store.unlink(chunk, next)?;
                rewrite()?
            }
            made => made?,
        };
        if made.needles != live.len() as u64 {
            return Err(Error::corrupt(format!(
                "rewriting it found {} of {} live objects; it stays as it is",
                made.needles,
                live.len()
            )));
        }
        let mut replicas = vec![first];
        for store in holders.into_iter().skip(1) {
            let order = (store, chunk, next);
            let digest = self.wait_for(|done| self.replicator.compact_at(order, live, done));
            // Who did not, or did otherwise, has the old generation alone, and gets a copy.
            if digest == Ok(made.digest) {
                replicas.push(store);
            }
        }
        let digest = made.digest;
        let switch = Command::SwitchReplicas { chunk, generation: next, length, digest, replicas };
        self.propose_and_wait(switch, Durability::Durable)?;
        own.store.switch(chunk, next)
    }
}
