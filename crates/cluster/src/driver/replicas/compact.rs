//! The next generation of a packed chunk, computed where its replicas are.

use super::{Replicator, Target};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Generation, Slot, StoreId};
use holdfast_chunk::Done;
use holdfast_client::wire::peer::{self, Compacted};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A whole chunk is read and written.
const COMPACT_MS: u32 = 120_000;

impl Replicator {
    /// Has the store compute generation `next` from the `live` slots, and answers its digest.
    pub(crate) fn compact_at(
        self: &Arc<Self>,
        (store, chunk, next): (StoreId, ChunkId, Generation),
        live: &BTreeSet<Slot>,
        done: Done<u64>,
    ) {
        match self.target(store) {
            Err(e) => done(Err(e)),
            Ok(Target::Own(own)) => {
                let live = live.clone();
                self.workers.run(move || {
                    let made = own.compact(chunk, &|slot| live.contains(&slot), next);
                    done(made.map(|made| made.digest));
                });
            }
            Ok(Target::Peer(place)) => {
                let live = words(live);
                let sender = self.directory.sender();
                let order = peer::Compact { sender, store, chunk, next, live };
                let op = peer::OP_PEER_COMPACT;
                let digest = |made: Result<Compacted>| done(made.map(|made| made.digest));
                self.ask(&place.address, op, &order, None, COMPACT_MS, Box::new(digest));
            }
        }
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
