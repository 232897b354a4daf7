//! Which packed chunks are compacted when: those of which enough is dead, by the node of their first
//! replica; what did not come to its switch rests for longer each time, and is tried for as long as
//! it takes. What a switch waits for is `holdfast_cluster::compaction`'s to say.

use super::rest::Rest;
use super::{Held, Keeper};
use crate::rewrite::Attempt;
use holdfast_base::ids::{ChunkId, FileId, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::ChunkState;
use holdfast_cluster::compaction::is_ready;
use holdfast_env::trial::Knob;
use std::collections::BTreeSet;

/// How long a chunk rests at most: an attempt costs the reading of a chunk on each of its stores.
static REST_MS_MAX: Knob = Knob::new("keeper.compaction-rest-ms", 600_000, &[2000, 8000]);

impl Keeper {
    /// Begins what is worth it, and ends what the stores have answered. It is not waited for: a store
    /// that was cut off is given minutes, and this node's other duties must not stand still so long.
    pub(super) fn compact(&mut self, now_ns: u64) -> Result<()> {
        let writing: BTreeSet<ChunkId> = self.node.packed.open_chunks().into_iter().collect();
        for attempt in std::mem::take(&mut self.compacting) {
            match attempt.finished(&self.node) {
                Some(ended) => self.compacted(attempt.chunk(), now_ns, ended),
                None => self.compacting.push(attempt),
            }
        }
        let under_way: BTreeSet<ChunkId> = self.compacting.iter().map(Attempt::chunk).collect();
        let mut left = self.options.compactions.saturating_sub(under_way.len());
        for held in self.around.clone().iter() {
            let (chunk, info) = (held.info.chunk, &held.info);
            if left == 0 {
                break;
            }
            if info.kind != holdfast_chunk::ChunkKind::Packed
                || info.state != holdfast_chunk::ReplicaState::Sealed
                || writing.contains(&chunk)
                || under_way.contains(&chunk)
                || self.resting.get(&chunk).is_some_and(|rest| !rest.is_over(now_ns))
                || !self.is_worth(held).unwrap_or(false)
            {
                continue;
            }
            left -= 1;
            match self.begin_one(held) {
                Ok(Some(attempt)) => self.compacting.push(attempt),
                begun => self.compacted(chunk, now_ns, begun.map(|_| ())),
            }
        }
        Ok(())
    }

    fn compacted(&mut self, chunk: ChunkId, now_ns: u64, ended: Result<()>) {
        match ended {
            Ok(()) => drop(self.resting.remove(&chunk)),
            Err(e) => self.rest(chunk, now_ns, e.context(format_args!("chunk `{chunk}`"))),
        }
    }

    fn is_worth(&self, held: &Held) -> Result<bool> {
        let info = &held.info;
        self.node.read_chunk(info.chunk, |view, _| {
            view.get(info.chunk).is_some_and(|known| {
                let dead = info.stored_bytes.saturating_sub(known.live_bytes);
                matches!(known.state, ChunkState::Sealed | ChunkState::Closed)
                    // A face knows what lives in its chunks.
                    && known.owner == FileId(0)
                    && self.node.sees_to(known) == Some(held.store_id)
                    && known.old.is_empty()
                    // The index and headers of small objects are not garbage.
                    && known.live_objects < info.needles as u32
                    && dead * 100 >= info.stored_bytes * self.options.garbage_percent
            })
        })
    }

    /// Close, then rewrite from the live slots at one index behind it.
    fn begin_one(&self, held: &Held) -> Result<Option<Attempt>> {
        let (chunk, node) = (held.info.chunk, &self.node);
        // Nothing alive: it is unlinked instead.
        let Some(next) = node.begin_rewrite(chunk)? else { return Ok(None) };
        let live = node.read_chunk(chunk, |view, _| {
            view.get(chunk).filter(|known| is_ready(known))?;
            Some(view.live_slots(chunk)?.into_iter().collect::<BTreeSet<Slot>>())
        })?;
        let Some(live) = live.filter(|live| !live.is_empty()) else { return Ok(None) };
        node.start_rewrite(chunk, next, &live)
    }

    /// It is tried again; what is broken is said at once, what waits for somebody when it has for
    /// long.
    fn rest(&mut self, chunk: ChunkId, now_ns: u64, e: Error) {
        let rest = self.resting.entry(chunk).or_insert(Rest::new(now_ns));
        if rest.failed(now_ns, REST_MS_MAX.get()) {
            REST_MS_MAX.cross();
        }
        let waits = matches!(e.kind, Kind::Full | Kind::Retry | Kind::Fenced);
        if !waits || rest.is_long(now_ns) {
            self.node.report_failure("compact chunks, which is tried again", &e);
        }
    }

    /// The leader looks for chunks whose last generation is lost with its stores, while one before
    /// it is there.
    pub(super) fn go_back(&mut self, now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        if !node.leads() || node.is_behind() {
            return Ok(());
        }
        let lost = |store: StoreId| node.is_lost(store);
        let gone: Vec<ChunkId> = node.gather_chunks(|view| {
            let none_left = view.short(|store| !lost(store)).into_iter();
            let none_left = none_left.take_while(|short| short.live == 0).map(|short| short.chunk);
            let has_old = |id: &ChunkId| view.get(*id).is_some_and(|c| !c.old.is_empty());
            none_left.filter(has_old).collect::<Vec<_>>()
        })?;
        for chunk in gone.into_iter().take(self.options.compactions) {
            if self.resting.get(&chunk).is_some_and(|rest| !rest.is_over(now_ns)) {
                continue;
            }
            let ended = node.go_back(chunk);
            self.compacted(chunk, now_ns, ended);
        }
        Ok(())
    }
}
