//! Replicas that no entry names: set aside after a while, and removed a day later.

use super::{Held, Keeper};
use crate::OwnStore;
use holdfast_base::Result;
use holdfast_base::ids::{Generation, Tier};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// How often it is looked whether the day is over.
const QUARANTINE_LOOK_NS: u64 = 600_000_000_000;

impl Keeper {
    /// An accepted entry let a replica go while its chunk lives on elsewhere, and the process ended
    /// before the file was removed, or was not there: no later entry names it. A copy that has
    /// arrived is named within seconds of a leader's hearing of it, which is when its time begins;
    /// should its entry come later all the same, it counts as missing here.
    pub(super) fn set_aside_unnamed(&mut self, now_ns: u64) -> Result<()> {
        if self.node.is_behind() {
            // The entry may have been on its way all that time.
            self.unnamed.clear();
            return Ok(());
        }
        if now_ns < self.unnamed_next_ns {
            return Ok(());
        }
        let unnamed_ns = self.options.unnamed_ms * 1_000_000;
        self.unnamed_next_ns = now_ns + unnamed_ns / 4;
        let mut unnamed = BTreeMap::new();
        let unheard = match planted!("node.landed-copy-set-aside") {
            false => self.node.replicator.landed_unheard(),
            true => BTreeSet::new(),
        };
        for held in self.held() {
            let on_disk = |own: &OwnStore| own.tier == Tier::Disk;
            if !self.node.stores.get(held.store_id).is_some_and(on_disk) {
                continue;
            }
            // The current one goes last, and takes what is beside it along: not a copy that has just
            // arrived and is to count.
            let mut one_stays = false;
            // Of a shard whose view has stopped, or is not open yet, nothing is known.
            let Ok((is_deleted, unnamed_here)) = self.unnamed_of(&held) else { continue };
            for generation in unnamed_here {
                let key = (held.store_id, held.info.chunk, generation);
                if is_deleted {
                    self.node.replicator.forget_landed(key);
                } else if unheard.contains(&key) {
                    one_stays = true;
                    continue;
                }
                let since_ns = self.unnamed.get(&key).copied().unwrap_or(now_ns);
                let waits = generation == held.info.generation && one_stays;
                if now_ns - since_ns < unnamed_ns || waits {
                    one_stays = true;
                    unnamed.insert(key, since_ns);
                } else if self.node.replicator.let_go(key) {
                    self.let_go_again(&held, generation);
                    self.node.replicator.is_gone(key);
                }
            }
        }
        self.unnamed = unnamed;
        self.report_missing()
    }

    /// Whether a chunk is gone, and its generations here that no entry names, the current one last.
    fn unnamed_of(&self, held: &Held) -> Result<(bool, Vec<Generation>)> {
        let (store, chunk, current) = (held.store_id, held.info.chunk, held.info.generation);
        let beside = held.store.other_generations(chunk);
        self.node.read_chunk(chunk, |view, _| {
            let is_named = |at: &Generation| view.names_replica(chunk, *at, store);
            let Some(known) = view.get(chunk) else {
                let unnamed = if view.was_allocated(chunk) { vec![current] } else { Vec::new() };
                return (true, unnamed);
            };
            // A later one waits for its switch where the chunk counts, and the current one for those that
            // are named. In a store that was let go a switch names nothing any more.
            let counts =
                is_named(&known.generation) || planted!("node.later-generations-stay-for-ever");
            let stays = |at: &Generation| is_named(at) || (counts && *at > known.generation);
            let mut unnamed = beside.clone();
            if !beside.iter().any(stays) {
                unnamed.push(current);
            }
            unnamed.retain(|at| !stays(at));
            (false, unnamed)
        })
    }

    pub(super) fn unix_s(&self) -> u64 {
        self.node.machine.clock.unix_ms() / 1000
    }

    /// Removes what was set aside for long enough.
    pub(super) fn empty_quarantine(&mut self, now_ns: u64) -> Result<()> {
        if now_ns < self.quarantine_next_ns {
            return Ok(());
        }
        self.quarantine_next_ns = now_ns + QUARANTINE_LOOK_NS;
        for own in self.node.stores.iter() {
            own.store.empty_quarantine(self.unix_s())?;
        }
        Ok(())
    }
}
