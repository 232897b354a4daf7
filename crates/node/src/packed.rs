//! The node as the writer of packed chunks: one open chunk for each shard, owner, tier and
//! durability class (a lane). A full chunk is sealed once its last append is answered, and the next one allocated.
//! A chunk with several replicas that one of them failed is sealed at what all have; what was not
//! acknowledged goes into the next one.
//!
//! **Invariant:** a pointer is handed out only after its bytes are as durable as their class says.

use super::Node;
use super::chunks::{Spot, Writer};
use super::replicas::{ReplicaSet, Shared};
use holdfast_base::ids::{ChunkId, Durability, FileId, Pointer, Slot, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::units::KIB;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Body, Done, Needle, NewNeedle};
use holdfast_cluster::ChunkKind;
use holdfast_env::HoldMutex;
use holdfast_env::net::SharedBody;
use holdfast_wire::Call;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// How often one object moves on because its chunk failed, before its writer is told.
const MOVES_MAX: u32 = 8;

/// What a needle takes beside its bytes, hint and checksums, at most: header and padding to a
/// sector, counted generously because it only decides when a chunk is called full.
const NEEDLE_OVERHEAD_BYTES: u64 = 8192;

/// An object to append, and who hears where it went.
pub struct Packing {
    pub needle: Needle,
    pub body: Body,
    pub crcs: Vec<u32>,
    pub done: Done<Pointer>,
}

impl Packing {
    fn needed_bytes(&self) -> u64 {
        (*self.body).as_ref().len() as u64 + NEEDLE_OVERHEAD_BYTES
    }
}

/// Pointers of objects that are answered together, or the first failure.
pub struct Gathered {
    pointers: Vec<Option<Pointer>>,
    left: usize,
    done: Option<Done<Vec<Pointer>>>,
}

impl Gathered {
    pub fn new(objects: usize, done: Done<Vec<Pointer>>) -> Arc<Mutex<Gathered>> {
        let pointers = vec![None; objects];
        Arc::new(Mutex::new(Gathered { pointers, left: objects, done: Some(done) }))
    }

    pub fn add(gathered: &Mutex<Gathered>, at: usize, pointer: Result<Pointer>) {
        let mut this = gathered.held();
        this.left -= 1;
        let answer = match pointer {
            Err(e) => Err(e),
            Ok(pointer) => {
                this.pointers[at] = Some(pointer);
                if this.left > 0 {
                    return;
                }
                Ok(this.pointers.iter().flatten().copied().collect())
            }
        };
        let done = this.done.take();
        drop(this);
        if let Some(done) = done {
            done(answer);
        }
    }
}

/// Objects that wait for their lane's chunk: they go into one, together.
struct Waiting {
    /// Of its chunk: the shard, and 0 or a face that keeps names itself.
    owner: Owner,
    class: StorageClass,
    objects: Vec<Packing>,
    /// Chunks that failed under it.
    moves: u32,
}

impl Waiting {
    fn needed_bytes(&self) -> u64 {
        self.objects.iter().map(Packing::needed_bytes).sum()
    }

    fn refuse(self, e: &Error) {
        self.objects.into_iter().for_each(|object| (object.done)(Err(e.clone())));
    }
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

/// Cheap to clone: an append goes on without the lanes' lock.
#[derive(Clone)]
struct OpenChunk {
    owner: Owner,
    chunk: ChunkId,
    spot: Arc<Spot>,
    writer: Writer,
    /// Appends of this chunk that are not answered yet; the last one seals a retired chunk.
    in_flight: Arc<Mutex<InFlight>>,
}

#[derive(Default)]
struct InFlight {
    appends: u64,
    retired: bool,
}

/// The shard whose names point to the objects, and 0 or a face that keeps names itself.
pub type Owner = (u16, FileId);

/// Whose objects, where, and how durable.
type LaneKey = (Owner, Tier, Durability);

/// The lanes of one node.
#[derive(Default)]
pub struct PackedWriters {
    /// Held while an append is handed to its store (which does not block), so that appends of one
    /// lane keep their order and see a chunk's room exactly.
    lanes: Mutex<BTreeMap<LaneKey, Lane>>,
}

impl PackedWriters {
    /// Appends objects to the lane of `owner` and `class`, into one chunk, and answers each one's
    /// pointer.
    pub fn append(
        &self,
        node: &Arc<Node>,
        owner: Owner,
        class: StorageClass,
        objects: Vec<Packing>,
    ) {
        self.enqueue(node, Waiting { owner, class, objects, moves: 0 });
    }

    fn enqueue(&self, node: &Arc<Node>, waiting: Waiting) {
        let (owner, class) = (waiting.owner, waiting.class);
        let needed = waiting.needed_bytes();
        let mut refusal = None;
        let mut lanes = self.lanes.held();
        for tier in class.tiers() {
            let key = (owner, tier, class.durability());
            let lane = lanes.entry(key).or_default();
            match &lane.state {
                LaneState::Open(open) if open.takes(needed) => {
                    let open = open.clone();
                    // Before the lock is let go: nobody seals the chunk meanwhile.
                    open.begin(waiting.objects.len());
                    if let Writer::Set(_) = &open.writer {
                        // Its answer may come at once, and lead back here.
                        drop(lanes);
                    }
                    return open.append(node, waiting);
                }
                LaneState::Opening => return lane.waiting.push_back(waiting),
                _ => {}
            }
            // The next chunk; where there is no room for it, the next tier.
            let spot = match node.spot(tier, class.durability(), chunk_bytes_for(needed)) {
                Ok(Some(spot)) => spot,
                Ok(None) => continue,
                Err(e) => {
                    refusal = Some(e);
                    continue;
                }
            };
            let old = std::mem::replace(&mut lane.state, LaneState::Opening);
            lane.waiting.push_back(waiting);
            drop(lanes);
            retire(node, old);
            return self.open_chunk(node, owner, spot);
        }
        drop(lanes);
        waiting.refuse(&refusal.unwrap_or_else(|| node.stores.refusal(class)));
    }

    /// Allocates the lane's next chunk, then serves who waits.
    fn open_chunk(&self, node: &Arc<Node>, owner: Owner, spot: Spot) {
        let opener = node.clone();
        let made = move |spot: Spot, made: Result<(ChunkId, Writer)>| match made {
            Err(e) => opener.packed.refuse(owner, &spot, e),
            Ok((_, Writer::Set(set))) if set.ended() => {
                opener.packed.failed_to_open(&opener, owner, &spot, set);
            }
            Ok((chunk, writer)) => {
                let (spot, in_flight) = (Arc::new(spot), Arc::default());
                let open = OpenChunk { owner, chunk, spot, writer, in_flight };
                opener.packed.opened(&opener, open);
            }
        };
        node.allocate(Call::default(), ChunkKind::Packed, owner, spot, made);
    }

    /// No chunk could be had: who waits is told.
    fn refuse(&self, owner: Owner, spot: &Spot, e: Error) {
        let waiting = {
            let mut lanes = self.lanes.held();
            let lane = lanes.entry((owner, spot.tier, spot.durability)).or_default();
            lane.state = LaneState::Closed;
            std::mem::take(&mut lane.waiting)
        };
        waiting.into_iter().for_each(|waiting| waiting.refuse(&e));
    }

    /// The lane's chunk is there: serves who waits, as far as it takes them.
    fn opened(&self, node: &Arc<Node>, open: OpenChunk) {
        let mut later = Vec::new();
        let mut lanes = self.lanes.held();
        let lane = lanes.entry((open.owner, open.spot.tier, open.spot.durability)).or_default();
        let mut later_bytes = 0;
        while let Some(next) = lane.waiting.front() {
            let taken = next.needed_bytes();
            if !open.takes(later_bytes + taken) {
                break;
            }
            let Some(next) = lane.waiting.pop_front() else { break };
            open.begin(next.objects.len());
            match &open.writer {
                Writer::Alone(_) => open.append(node, next),
                // Without the lock: its answer may come at once, and lead back here.
                Writer::Set(_) => {
                    later_bytes += taken;
                    later.push(next);
                }
            }
        }
        let needed = lane.waiting.front().map(Waiting::needed_bytes);
        lane.state = match needed {
            None => LaneState::Open(open.clone()),
            // More waited than one chunk takes.
            Some(_) => LaneState::Opening,
        };
        drop(lanes);
        later.into_iter().for_each(|next| open.append(node, next));
        let Some(needed) = needed else { return };
        let (owner, spot) = (open.owner, open.spot.clone());
        retire(node, LaneState::Open(open));
        match node.spot(spot.tier, spot.durability, chunk_bytes_for(needed)) {
            Ok(Some(next)) => self.open_chunk(node, owner, next),
            Ok(None) => self.refuse(owner, &spot, Error::full(
                "place the next packed chunk: every store of its tier is full; delete something or add a store",
            )),
            Err(e) => self.refuse(owner, &spot, e),
        }
    }

    /// A chunk that was made on some of its replicas only is not used; who waits for it moves on.
    fn failed_to_open(&self, node: &Arc<Node>, owner: Owner, spot: &Spot, set: Arc<ReplicaSet>) {
        let cause = set.cause().unwrap_or_else(|| Error::retry("a replica refused it"));
        node.seal_packed_set(set);
        let waiting = {
            let mut lanes = self.lanes.held();
            let lane = lanes.entry((owner, spot.tier, spot.durability)).or_default();
            lane.state = LaneState::Closed;
            std::mem::take(&mut lane.waiting)
        };
        waiting.into_iter().for_each(|waiting| self.move_on(node, waiting, cause.clone()));
    }

    /// Its chunk failed before the append was acknowledged: another one takes it.
    fn move_on(&self, node: &Arc<Node>, mut waiting: Waiting, e: Error) {
        waiting.moves += 1;
        if waiting.moves > MOVES_MAX {
            let what =
                format!("store an object: {MOVES_MAX} chunks failed under it, the last: {e}");
            return waiting.refuse(&Error::retry(what));
        }
        self.enqueue(node, waiting);
    }

    /// Chunks that this node is writing now.
    pub fn open_chunks(&self) -> Vec<ChunkId> {
        let lanes = self.lanes.held();
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
        self.retire(node, &self.open_chunks());
    }

    /// Seals those of `chunks` that are open here; what comes next opens others.
    pub fn retire(&self, node: &Arc<Node>, chunks: &[ChunkId]) {
        let mut states = Vec::new();
        {
            let mut lanes = self.lanes.held();
            for lane in lanes.values_mut() {
                if let LaneState::Open(open) = &lane.state
                    && chunks.contains(&open.chunk)
                {
                    states.push(std::mem::take(&mut lane.state));
                }
            }
        }
        states.into_iter().for_each(|state| retire(node, state));
    }
}

/// Capacity of a chunk that takes `needed` bytes at once: its front, and a checksum for each block.
fn chunk_bytes_for(needed: u64) -> u64 {
    needed + needed / 8192 + 16 * KIB
}

impl OpenChunk {
    fn room(&self) -> u64 {
        match &self.writer {
            Writer::Alone(store) => store.room(self.chunk).unwrap_or(0),
            Writer::Set(set) => set.room(),
        }
    }

    fn takes(&self, bytes: u64) -> bool {
        self.room() >= bytes
    }

    /// Counts appends that are about to be made.
    fn begin(&self, appends: usize) {
        self.in_flight.held().appends += appends as u64;
    }

    /// One append was answered; the last one of a retired chunk seals it.
    fn ended(&self, node: &Arc<Node>) {
        let last = {
            let mut in_flight = self.in_flight.held();
            in_flight.appends -= 1;
            in_flight.retired && in_flight.appends == 0
        };
        if last {
            self.seal(node);
        }
    }

    fn seal(&self, node: &Arc<Node>) {
        match &self.writer {
            Writer::Alone(store) => node.seal_packed(self.chunk, store),
            Writer::Set(set) => node.seal_packed_set(set.clone()),
        }
    }

    /// Makes appends that [`OpenChunk::begin`] has counted.
    fn append(&self, node: &Arc<Node>, w: Waiting) {
        let chunk = self.chunk;
        match &self.writer {
            Writer::Alone(store) => {
                let answering = |object: Packing| {
                    let Packing { needle, body, crcs, done } = object;
                    let (open, node, cookie) = (self.clone(), node.clone(), needle.cookie);
                    let done = Box::new(move |slot: Result<Slot>| {
                        done(slot.map(|slot| Pointer { chunk, slot, cookie }));
                        open.ended(&node);
                    });
                    NewNeedle { needle, body, crcs, done }
                };
                let objects = w.objects.into_iter().map(answering).collect();
                store.append_needles(chunk, objects, self.spot.durability);
            }
            Writer::Set(set) => {
                let Waiting { owner, class, objects, moves } = w;
                for object in objects {
                    let (open, node) = (self.clone(), node.clone());
                    let (needle, crcs) = (object.needle.clone(), object.crcs.clone());
                    let (body, cookie) = (SharedBody::from(object.body), needle.cookie);
                    // Kept until it is acknowledged: another chunk may have to take it.
                    let object = Packing { body: Box::new(Shared(body.clone())), ..object };
                    let answered = move |slot: Result<Slot>| {
                        match slot {
                            Ok(slot) => (object.done)(Ok(Pointer { chunk, slot, cookie })),
                            Err(e) if e.kind == Kind::Fenced => {
                                let again = Waiting { owner, class, objects: vec![object], moves };
                                node.packed.move_on(&node, again, e);
                            }
                            Err(e) => (object.done)(Err(e)),
                        }
                        open.ended(&node);
                    };
                    set.append_needle(needle, body, crcs, Box::new(answered));
                }
            }
        }
    }
}

/// Takes a chunk out of use; it is sealed when its last append is answered.
fn retire(node: &Arc<Node>, state: LaneState) {
    let LaneState::Open(open) = state else { return };
    let idle = {
        let mut in_flight = open.in_flight.held();
        in_flight.retired = true;
        in_flight.appends == 0
    };
    if idle {
        open.seal(node);
    }
}
