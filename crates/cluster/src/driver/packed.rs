//! The node as the writer of packed chunks: one open chunk for each tier and durability class
//! (a lane). A full chunk is sealed once its last append is answered, and the next one allocated.
//!
//! **Invariant:** a pointer is handed out only after its bytes are as durable as their class says.

use super::Node;
use crate::{ChunkKind, Command, Outcome};
use holdfast_base::ids::{ChunkId, Durability, FileId, Pointer, StoreId, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Result};
use holdfast_chunk::{Body, ChunkSpec, Done, Needle, Store};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// What a needle takes beside its bytes, hint and checksums, at most: header and padding to a
/// sector, counted generously because it only decides when a chunk is called full.
const NEEDLE_OVERHEAD_BYTES: u64 = 8192;

/// An append that waits for its lane's chunk.
struct Waiting {
    needle: Needle,
    body: Body,
    bytes: u64,
    crcs: Vec<u32>,
    done: Done<Pointer>,
}

#[derive(Default)]
struct Lane {
    state: LaneState,
    waiting: VecDeque<Waiting>,
}

#[derive(Default)]
enum LaneState {
    #[default]
    Closed,
    /// Allocation is under way; appends wait.
    Opening,
    Open(OpenChunk),
}

struct OpenChunk {
    chunk: ChunkId,
    store_id: StoreId,
    store: Store,
    durability: Durability,
    /// Appends of this chunk that are not answered yet; the last one seals a retired chunk.
    in_flight: Arc<Mutex<InFlight>>,
}

#[derive(Default)]
struct InFlight {
    appends: u64,
    retired: bool,
}

/// The lanes of one node.
#[derive(Default)]
pub struct PackedWriters {
    /// Held while an append is handed to its store (which does not block), so that appends of one
    /// lane keep their order and see a chunk's room exactly.
    lanes: Mutex<BTreeMap<(Tier, Durability), Lane>>,
}

impl PackedWriters {
    /// Appends an object to the lane of `class` and answers its pointer.
    pub fn append(
        &self,
        node: &Arc<Node>,
        class: StorageClass,
        needle: Needle,
        body: Body,
        crcs: Vec<u32>,
        done: Done<Pointer>,
    ) {
        let bytes = (*body).as_ref().len() as u64;
        let needed = bytes + NEEDLE_OVERHEAD_BYTES;
        let waiting = Waiting { needle, body, bytes, crcs, done };
        let mut lanes = self.lanes.lock().expect("no holder of this lock panics");
        for tier in class.tiers() {
            let key = (tier, class.durability());
            let lane = lanes.entry(key).or_default();
            match &lane.state {
                LaneState::Open(open) if open.takes(needed) => return open.append(node, waiting),
                LaneState::Opening => return lane.waiting.push_back(waiting),
                _ => {}
            }
            // The next chunk; where there is no room for it, the next tier.
            let Some(own) = node.stores.for_chunk(tier, needed) else { continue };
            retire(node, std::mem::replace(&mut lane.state, LaneState::Opening));
            lane.waiting.push_back(waiting);
            let store_id = own.id;
            drop(lanes);
            return self.open_chunk(node, key, store_id, needed);
        }
        drop(lanes);
        (waiting.done)(Err(node.stores.refusal(class)));
    }

    /// Allocates the lane's next chunk, then serves who waits.
    fn open_chunk(
        &self,
        node: &Arc<Node>,
        (tier, durability): (Tier, Durability),
        store_id: StoreId,
        least_bytes: u64,
    ) {
        let command = Command::AllocateChunk {
            kind: ChunkKind::Packed,
            owner: FileId(0),
            node: node.id,
            replicas: vec![store_id],
            tier,
            durability,
        };
        let opener = node.clone();
        node.propose_own(
            command,
            super::allocation(tier, durability),
            Box::new(move |outcome| {
                let node = opener.clone();
                // Making the chunk's file waits for the disk; this callback must not.
                opener.workers.run(move || {
                    let opened = outcome.and_then(|outcome| {
                        let Outcome::Chunk { chunk } = outcome else {
                            return Err(Error::bug(
                                "allocate a packed chunk: the view answered something else",
                            ));
                        };
                        let own = node.stores.get(store_id).ok_or_else(|| {
                            Error::bug(format!(
                                "allocate a packed chunk: store `{store_id}` vanished"
                            ))
                        })?;
                        let spec = ChunkSpec {
                            durability,
                            capacity_bytes: own.chunk_bytes().max(least_bytes),
                            ..ChunkSpec::new(
                                chunk,
                                holdfast_chunk::ChunkKind::Packed,
                                node.id.0 as u64,
                            )
                        };
                        own.store.create(spec)?;
                        Ok(OpenChunk {
                            chunk,
                            store_id,
                            store: own.store.clone(),
                            durability,
                            in_flight: Arc::default(),
                        })
                    });
                    node.packed.opened(&node, (tier, durability), opened);
                });
            }),
        );
    }

    fn opened(&self, node: &Arc<Node>, key: (Tier, Durability), opened: Result<OpenChunk>) {
        let mut lanes = self.lanes.lock().expect("no holder of this lock panics");
        let lane = lanes.entry(key).or_default();
        let open = match opened {
            Ok(open) => open,
            Err(e) => {
                lane.state = LaneState::Closed;
                let waiting = std::mem::take(&mut lane.waiting);
                drop(lanes);
                waiting.into_iter().for_each(|w| (w.done)(Err(e.clone())));
                return;
            }
        };
        while let Some(next) = lane.waiting.front() {
            if !open.takes(next.bytes + NEEDLE_OVERHEAD_BYTES) {
                break;
            }
            if let Some(next) = lane.waiting.pop_front() {
                open.append(node, next);
            }
        }
        if lane.waiting.is_empty() {
            lane.state = LaneState::Open(open);
            return;
        }
        // More waited than one chunk takes.
        let store_id = open.store_id;
        let needed = lane.waiting.front().map_or(0, |next| next.bytes + NEEDLE_OVERHEAD_BYTES);
        retire(node, LaneState::Open(open));
        lane.state = LaneState::Opening;
        drop(lanes);
        self.open_chunk(node, key, store_id, needed);
    }

    /// Chunks that this node is writing now.
    pub fn open_chunks(&self) -> Vec<ChunkId> {
        let lanes = self.lanes.lock().expect("no holder of this lock panics");
        lanes
            .values()
            .filter_map(|lane| match &lane.state {
                LaneState::Open(open) => Some(open.chunk),
                _ => None,
            })
            .collect()
    }

    /// Seals every open chunk; for an orderly end.
    pub fn retire_all(&self, node: &Arc<Node>) {
        let mut lanes = self.lanes.lock().expect("no holder of this lock panics");
        for lane in lanes.values_mut() {
            if lane.waiting.is_empty() {
                retire(node, std::mem::take(&mut lane.state));
            }
        }
    }
}

impl OpenChunk {
    fn takes(&self, bytes: u64) -> bool {
        self.store.room(self.chunk).is_ok_and(|room| room >= bytes)
    }

    fn append(&self, node: &Arc<Node>, w: Waiting) {
        let (chunk, cookie, done) = (self.chunk, w.needle.cookie, w.done);
        self.in_flight.lock().expect("no holder of this lock panics").appends += 1;
        let (node, in_flight, store) = (node.clone(), self.in_flight.clone(), self.store.clone());
        self.store.append_needle(
            chunk,
            w.needle,
            w.body,
            w.crcs,
            self.durability,
            Box::new(move |slot| {
                done(slot.map(|slot| Pointer { chunk, slot, cookie }));
                let last = {
                    let mut in_flight = in_flight.lock().expect("no holder of this lock panics");
                    in_flight.appends -= 1;
                    in_flight.retired && in_flight.appends == 0
                };
                if last {
                    node.seal_packed(chunk, &store);
                }
            }),
        );
    }
}

/// Takes a chunk out of use; it is sealed when its last append is answered.
fn retire(node: &Arc<Node>, state: LaneState) {
    let LaneState::Open(open) = state else { return };
    let idle = {
        let mut in_flight = open.in_flight.lock().expect("no holder of this lock panics");
        in_flight.retired = true;
        in_flight.appends == 0
    };
    if idle {
        node.seal_packed(open.chunk, &open.store);
    }
}
