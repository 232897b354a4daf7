//! The next generation of a packed chunk, computed where its replicas are.

use super::{Replicator, Target};
use holdfast_base::ids::{ChunkId, Generation, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{CompactionDigest, Done, Store};
use holdfast_cluster::compaction::Made;
use holdfast_env::HoldMutex;
use holdfast_env::trial::Knob;
use holdfast_wire::peer::{self, Compacted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// For a whole chunk to be read and written: who has not answered by then is asked again later.
static COMPACT_MS: Knob = Knob::new("cluster.compact-ms", 120_000, &[3000, 10_000]);

/// A store's answer, or why there is none.
pub(crate) type Answers = BTreeMap<StoreId, Result<Made>>;

impl Replicator {
    /// Has all stores compute generation `next` from the `live` slots, side by side.
    pub(crate) fn compact_on(
        self: &Arc<Self>,
        stores: &[StoreId],
        (chunk, next): (ChunkId, Generation),
        live: &BTreeSet<Slot>,
        done: Done<Answers>,
    ) {
        let round = Arc::new(Mutex::new((Answers::new(), stores.len(), Some(done))));
        for &store in stores {
            let round = round.clone();
            let answered = move |made: Result<Made>| {
                let mut round = round.held();
                round.0.insert(store, made);
                if round.0.len() < round.1 {
                    return;
                }
                let (answers, done) = (std::mem::take(&mut round.0), round.2.take());
                drop(round);
                if let Some(done) = done {
                    done(Ok(answers));
                }
            };
            self.compact_at((store, chunk, next), live, Box::new(answered));
        }
    }

    fn compact_at(
        self: &Arc<Self>,
        (store, chunk, next): (StoreId, ChunkId, Generation),
        live: &BTreeSet<Slot>,
        done: Done<Made>,
    ) {
        match self.target(store) {
            Err(e) => done(Err(e)),
            Ok(Target::Own(own)) => {
                let live = live.clone();
                self.workers.run(move || {
                    let made = compact_anew(&own, chunk, &|slot| live.contains(&slot), next);
                    done(made.map(|made| Made { needles: made.needles, digest: made.digest }));
                });
            }
            Ok(Target::Peer(place)) if !place.live => {
                done(Err(Error::retry(format!("node `{}` is not there now", place.node))));
            }
            Ok(Target::Peer(place)) => {
                let live = words(live);
                let sender = self.directory.sender();
                let order = peer::Compact { sender, store, chunk, next, live };
                let op = peer::OP_PEER_COMPACT;
                let made = |made: Result<Compacted>| {
                    if made.as_ref().is_err_and(|e| e.kind == Kind::Retry) {
                        COMPACT_MS.cross();
                    }
                    done(made.map(|made| Made { needles: made.needles, digest: made.digest }));
                };
                let ms = COMPACT_MS.get() as u32;
                self.ask(&place.address, op, &order, None, ms, Box::new(made));
            }
        }
    }
}

/// Computes a generation, also where an attempt that ended before its switch left one, perhaps of
/// other slots: nothing names that.
pub(crate) fn compact_anew(
    store: &Store,
    chunk: ChunkId,
    live: &dyn Fn(Slot) -> bool,
    next: Generation,
) -> Result<CompactionDigest> {
    match store.compact(chunk, live, next) {
        Err(e) if e.kind == Kind::Exists => {
            store.unlink(chunk, next)?;
            store.compact(chunk, live, next)
        }
        made => made,
    }
}

/// Bit `s % 64` of word `s / 64` for each slot.
fn words(slots: &BTreeSet<Slot>) -> Vec<u64> {
    let count = slots.last().map_or(0, |last| last.0 as usize / 64 + 1);
    let mut words = vec![0; count];
    for slot in slots {
        words[slot.0 as usize / 64] |= 1 << (slot.0 % 64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_become_bits() {
        assert_eq!(words(&BTreeSet::new()), Vec::<u64>::new());
        let slots = [0, 63, 64, 130].into_iter().map(Slot).collect();
        assert_eq!(words(&slots), [1 | 1 << 63, 1, 4]);
    }
}
