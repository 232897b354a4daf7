//! Chunks that nobody can ever be asked about again: memory ends with its process, and with it
//! every chunk that was only there. Entries say so, so that views forget what nobody misses and
//! know what is lost of the rest.

use super::Node;
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Durability, StoreId, Tier};
use holdfast_chunk::Done;
use holdfast_cluster::Chunk;
use holdfast_cluster::{ChunkKind, Command, Outcome, StoreState};
use holdfast_env::planted;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Node {
    /// Whether every one of `replicas` was in memory that is gone. A disk may come back; whether
    /// one does not is for the operator to say.
    pub(super) fn ended_in_memory(&self, replicas: &[StoreId]) -> Result<bool> {
        let ended = self.cluster.read(|view, _| {
            replicas.iter().all(|store| {
                let info = view.store(*store);
                info.is_some_and(|info| info.tier == Tier::Dram && info.state == StoreState::Gone)
            })
        })?;
        Ok(ended && !planted!("node.memory-never-ends"))
    }

    /// Ends an open chunk of which nothing can be left: sealed behind the last object that a name
    /// leads to, its replicas lost. A packed one that has no name is forgotten at once, another
    /// with its last name, a raw one with its file.
    pub(super) fn seal_ended(self: &Arc<Node>, known: &Chunk, done: Done<u64>) {
        let (chunk, kind, generation) = (known.id, known.kind, known.generation);
        let named = self.read_chunk(chunk, |view, _| {
            let slots = view.live_slots(chunk).unwrap_or_default();
            slots.last().map_or(0, |slot| slot.0 as u64 + 1)
        });
        let length = match named {
            Ok(length) => length,
            Err(e) => return done(Err(e)),
        };
        let (node, replicas) = (self.clone(), known.replicas.clone());
        let sealed = move |sealed: Result<Outcome>| {
            if let Err(e) = sealed {
                return done(Err(e));
            }
            for store in replicas {
                let lost = Command::DropReplica { chunk, generation, store, lost: true };
                node.propose_own(lost, Durability::Memory, Box::new(|_| ()));
            }
            // Behind the others: a seal that went through alone is followed by whoever leads.
            let close = match kind {
                ChunkKind::Packed => Command::CloseChunk { chunk },
                ChunkKind::Raw => return done(Ok(length)),
            };
            let closed = Box::new(move |closed: Result<Outcome>| done(closed.map(|_| length)));
            node.propose_own(close, Durability::Durable, closed);
        };
        let replicas = known.replicas.clone();
        let seal = Command::SealChunk { chunk, length, replicas };
        self.propose_own(seal, Durability::Durable, Box::new(sealed));
    }

    /// Chunks whose seal decided and whose replicas were all in memory that is gone since: dropped,
    /// for the view to know that they are lost. Waits for nothing: whoever leads asks again.
    pub(super) fn drop_ended(self: &Arc<Node>) -> Result<()> {
        let gone: Vec<StoreId> = self.cluster.read(|view, _| {
            let gone = view.stores().filter(|(_, info)| info.state == StoreState::Gone);
            gone.filter(|(_, info)| info.tier == Tier::Dram).map(|(store, _)| store).collect()
        })?;
        // By store: most chunks are on none of these, and are not looked at.
        let kept = self.gather_chunks(|view| {
            let on = gone.iter().flat_map(|store| view.on(*store));
            let kept = on.filter(|chunk| chunk.is_kept());
            kept.map(|chunk| (chunk.id, chunk.clone())).collect::<BTreeMap<ChunkId, Chunk>>()
        })?;
        for (_, known) in kept {
            if !self.ended_in_memory(&known.replicas)? {
                continue;
            }
            let (chunk, generation) = (known.id, known.generation);
            for store in known.replicas {
                let lost = Command::DropReplica { chunk, generation, store, lost: true };
                self.propose_own(lost, Durability::Memory, Box::new(|_| ()));
            }
            if known.kind == ChunkKind::Packed {
                let close = Command::CloseChunk { chunk };
                self.propose_own(close, Durability::Memory, Box::new(|_| ()));
            }
        }
        self.pump();
        Ok(())
    }

    /// What names of lost memory are left, in a sentence; it goes with the last of them.
    pub(super) fn lost_memory(&self) -> Option<String> {
        let lost = self.read_all(|all| {
            let lost = all.iter().flat_map(|view| view.chunks().lost(|_| true));
            let lost = lost.filter_map(|id| all.chunk(id).ok()?);
            let bytes = lost.filter(|chunk| chunk.tier == Tier::Dram && chunk.length > 0);
            let count = |chunk: &Chunk| match chunk.kind {
                ChunkKind::Packed => (chunk.id, chunk.live_objects as u64),
                ChunkKind::Raw => (chunk.id, 1),
            };
            let lost: Vec<(ChunkId, u64)> = bytes.map(count).filter(|lost| lost.1 > 0).collect();
            let first = lost.first().map(|(chunk, _)| all.files_of(*chunk, 1));
            first.map(|files| (lost.iter().map(|(_, count)| count).sum::<u64>(), files))
        });
        let (count, files) = lost.ok()??;
        let example = files.first().map_or(String::new(), |path| format!(", `{path}` first"));
        Some(format!(
            "{count} parts of files of class `dram` ended with the process that held them{example}: put those files again, or delete them"
        ))
    }
}
