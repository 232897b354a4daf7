//! What a node does for others: carries out the messages of docs/formats/wire.md, "Between
//! nodes", on its own stores. Checks first who asks. Called by the file service on reactor threads
//! and by simulations; never blocks: what waits for a disk is done by a worker.

use super::replicas::{Replicator, Wanted, compact_anew};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Index, Slot, StoreId};
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{ChunkInfo, ChunkKind, ChunkSpec, Done, Needle, ReplicaState, Store};
use holdfast_env::net::{PeerDone, PeerReply};
use holdfast_env::planted;
use holdfast_wire::chunk::ReadReply;
use holdfast_wire::peer::{self as msg, Sender};
use std::sync::Arc;

/// Chunks of one inventory page: well below what a frame's meta takes.
const INVENTORY_PAGE_MAX: usize = 8192;

/// What nodes ask of each other's stores, answered by [`Replicator::handle`](crate::replicas::Replicator::handle).
pub const PEER_OPERATIONS: [u16; 13] = [
    msg::OP_PEER_CREATE,
    msg::OP_PEER_APPEND_RAW,
    msg::OP_PEER_APPEND_NEEDLE,
    msg::OP_PEER_FENCE,
    msg::OP_PEER_SEAL,
    msg::OP_PEER_READ_RAW,
    msg::OP_PEER_READ_NEEDLE,
    msg::OP_PEER_INVENTORY,
    msg::OP_PEER_EXPORT,
    msg::OP_PEER_PLAN,
    msg::OP_PEER_COMPACT,
    msg::OP_PEER_SWITCH,
    msg::OP_PEER_UNLINK,
];

type Answer = Result<PeerReply>;

/// An answer without a body.
fn said(message: &impl Encode) -> PeerReply {
    PeerReply { meta: message.to_bytes(), body: Vec::new() }
}

/// Who asks, and for which store.
trait Request: Decode {
    /// Whether it changes anything.
    const CHANGES: bool;
    fn sender(&self) -> &Sender;
    fn store(&self) -> StoreId;
}

macro_rules! requests {
    ($changes:literal: $($name:ident),*) => {$(
        impl Request for msg::$name {
            const CHANGES: bool = $changes;
            fn sender(&self) -> &Sender {
                &self.sender
            }
            fn store(&self) -> StoreId {
                self.store
            }
        }
    )*};
}
requests!(true: Create, AppendRaw, AppendNeedle, Fence, Seal, Compact, Switch, Unlink);
requests!(false: ReadRaw, ReadNeedle, Inventory, Export);

/// Refuses to change anything for a node that has not said that it started: nothing would fence its
/// messages off, however old they are.
fn check_started(sender: &Sender) -> Result<()> {
    if sender.incarnation != Index(0) || planted!("node.unstarted-sender-admitted") {
        return Ok(());
    }
    Err(Error::fenced(format!(
        "change something for node `{}`: it has not started: the log has no entry of its start",
        sender.node
    )))
}

impl Replicator {
    /// Carries out one message of another node; `done` is called exactly once, on any thread.
    /// Appends of one chunk take effect in the order of the calls.
    pub fn handle(self: &Arc<Self>, opcode: u16, meta: &[u8], body: Vec<u8>, done: PeerDone) {
        match opcode {
            msg::OP_PEER_APPEND_RAW => self.append_raw(meta, body, done),
            msg::OP_PEER_APPEND_NEEDLE => self.append_needle(meta, body, done),
            msg::OP_PEER_CREATE => self.wait(meta, done, |_, store, m| create(store, &m)),
            msg::OP_PEER_FENCE => self.wait(meta, done, |_, store, m: msg::Fence| {
                store.fence(m.chunk).map(|length| said(&length))
            }),
            msg::OP_PEER_SEAL => self.wait(meta, done, |_, store, m: msg::Seal| {
                store.seal(m.chunk, m.length).map(|()| PeerReply::default())
            }),
            msg::OP_PEER_READ_RAW => self.wait(meta, done, |_, store, m: msg::ReadRaw| {
                let (chunk, generation, offset) = (m.chunk, m.generation, m.offset);
                read(store, Wanted::Raw { chunk, generation, offset, bytes: m.bytes }, m.bytes)
            }),
            msg::OP_PEER_READ_NEEDLE => self.wait(meta, done, |_, store, m: msg::ReadNeedle| {
                let (pointer, offset, bytes) = (m.pointer, m.offset, m.bytes);
                read(store, Wanted::Object { pointer, offset, bytes }, bytes)
            }),
            msg::OP_PEER_INVENTORY => self.wait(meta, done, |_, store, m| inventory(store, &m)),
            msg::OP_PEER_EXPORT => self.export(meta, done),
            msg::OP_PEER_PLAN => self.follow_peer(meta, done),
            msg::OP_PEER_COMPACT => self.wait(meta, done, |_, store, m| compact(store, &m)),
            msg::OP_PEER_SWITCH => self.wait(meta, done, |_, store, m: msg::Switch| {
                store.switch(m.chunk, m.generation).map(|()| PeerReply::default())
            }),
            msg::OP_PEER_UNLINK => self.wait(meta, done, |with, store, m: msg::Unlink| {
                with.directory.may_unlink(m.store, m.chunk, m.generation, m.index)?;
                let gone = store.unlink(m.chunk, m.generation);
                if let Err(e) = gone
                    && e.kind != Kind::NotFound
                {
                    return Err(e);
                }
                Ok(PeerReply::default())
            }),
            _ => self.refuse(
                done,
                Error::unsupported(format!(
                    "carry out operation {opcode:#06x} for a node: this one does not know it; use \
                     matching builds"
                )),
            ),
        }
    }

    /// Answers later, as [`PeerDone`] promises: whoever calls may hold what `done` needs.
    fn refuse(&self, done: PeerDone, e: Error) {
        self.workers.run(move || done(Err(e)));
    }

    /// Decodes a message, and refuses one that may not ask or asks for a store of another.
    fn admitted<T: Request>(&self, meta: &[u8]) -> Result<(T, Store)> {
        let message = T::from_bytes(meta).map_err(|e| {
            Error::invalid(format!("read a node's message: {e}: use matching builds"))
        })?;
        self.directory.admit(message.sender())?;
        if T::CHANGES {
            check_started(message.sender())?;
        }
        let store = message.store();
        let own = self.stores.get(store).ok_or_else(|| {
            Error::not_found(format!("use store `{store}` for a node: this node does not have it"))
        })?;
        Ok((message, own.store.clone()))
    }

    /// Has a worker carry a message out.
    fn wait<T: Request + Send + 'static>(
        self: &Arc<Self>,
        meta: &[u8],
        done: PeerDone,
        work: impl FnOnce(&Arc<Replicator>, &Store, T) -> Answer + Send + 'static,
    ) {
        match self.admitted::<T>(meta) {
            Ok((message, store)) => {
                let with = self.clone();
                self.workers.run(move || done(work(&with, &store, message)));
            }
            Err(e) => self.refuse(done, e),
        }
    }

    fn append_raw(&self, meta: &[u8], body: Vec<u8>, done: PeerDone) {
        let (m, store) = match self.admitted::<msg::AppendRaw>(meta) {
            Ok(admitted) => admitted,
            Err(e) => return self.refuse(done, e),
        };
        let (chunk, own) = (m.chunk, store.clone());
        let appended: Done<u64> = Box::new(move |end| {
            let room = own.room(chunk).unwrap_or(0);
            done(end.map(|position| said(&msg::Appended { position, room })));
        });
        store.append_raw(chunk, m.at, Box::new(body), m.crcs, m.durability, appended);
    }

    fn append_needle(&self, meta: &[u8], body: Vec<u8>, done: PeerDone) {
        let (m, store) = match self.admitted::<msg::AppendNeedle>(meta) {
            Ok(admitted) => admitted,
            Err(e) => return self.refuse(done, e),
        };
        let (chunk, own) = (m.chunk, store.clone());
        let appended: Done<Slot> = Box::new(move |slot| {
            let room = own.room(chunk).unwrap_or(0);
            done(slot.map(|slot| said(&msg::Appended { position: slot.0 as u64, room })));
        });
        let needle = Needle { owner: m.owner, cookie: m.cookie, flags: m.flags, hint: m.hint };
        let body = Box::new(body);
        store.append_needle_at(chunk, m.slot, needle, body, m.crcs, m.durability, appended);
    }

    fn export(self: &Arc<Self>, meta: &[u8], done: PeerDone) {
        let (m, store) = match self.admitted::<msg::Export>(meta) {
            Ok(admitted) => admitted,
            Err(e) => return self.refuse(done, e),
        };
        let with = self.clone();
        let counting = self.clone();
        let read = move || {
            let bytes = m.bytes.min(FRAME_BODY_BYTES_MAX) as u64;
            let exported = store.export(m.chunk, m.generation, m.offset, bytes);
            done(exported.map(|part| {
                counting.count_exported(m.store, part.bytes.len() as u64);
                let message = msg::Exported { bytes_total: part.bytes_total, crc: part.crc };
                PeerReply { meta: message.to_bytes(), body: part.bytes }
            }));
        };
        match self.export_wait(m.store, m.bytes as u64) {
            0 => self.at_disk(m.store, read),
            ms => self.peers.after(ms, Box::new(move || with.at_disk(m.store, read))),
        }
    }

    fn follow_peer(self: &Arc<Self>, meta: &[u8], done: PeerDone) {
        let plan = msg::CopyPlan::from_bytes(meta)
            .map_err(|e| Error::invalid(format!("read a node's plan: {e}: use matching builds")));
        let admitted = plan.and_then(|plan| {
            self.directory.admit(&plan.sender)?;
            check_started(&plan.sender)?;
            Ok(plan)
        });
        let with = self.clone();
        self.workers.run(move || {
            done(admitted.and_then(|plan| with.follow(plan)).map(|report| said(&report)));
        });
    }
}

fn create(store: &Store, m: &msg::Create) -> Answer {
    let kind = ChunkKind::from_code(m.kind).ok_or_else(|| {
        Error::unsupported(format!(
            "create chunk `{}`: its kind {} is not known to this build",
            m.chunk, m.kind
        ))
    })?;
    let (chunk, owner, capacity_bytes, durability) = (m.chunk, m.owner, m.capacity, m.durability);
    store.create(ChunkSpec { chunk, kind, owner, capacity_bytes, durability })?;
    Ok(PeerReply::default())
}

fn read(store: &Store, wanted: Wanted, bytes: u32) -> Answer {
    if bytes > FRAME_BODY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "read {bytes} bytes for a node: one answer carries at most {FRAME_BODY_BYTES_MAX}"
        )));
    }
    let answer = wanted.read_own(store)?;
    let meta = ReadReply { crcs: answer.crcs }.to_bytes();
    Ok(PeerReply { meta, body: answer.bytes.to_vec() })
}

fn inventory(store: &Store, m: &msg::Inventory) -> Answer {
    let held = |info: &ChunkInfo| msg::Held {
        chunk: info.chunk,
        generation: info.generation,
        kind: info.kind as u8,
        state: match info.state {
            ReplicaState::Open => 1,
            ReplicaState::Fenced => 2,
            ReplicaState::Sealed => 3,
        },
        length: info.length,
        stored_bytes: info.stored_bytes,
        damaged: info.damaged,
    };
    let list = store.list();
    let from = list.partition_point(|info| info.chunk < m.from);
    let count = (m.entries_max as usize).clamp(1, INVENTORY_PAGE_MAX);
    let entries: Vec<_> = list[from..].iter().take(count).map(held).collect();
    let more = from + entries.len() < list.len();
    Ok(said(&msg::InventoryPage { entries, more }))
}

fn compact(store: &Store, m: &msg::Compact) -> Answer {
    let live = |slot: Slot| {
        m.live.get(slot.0 as usize / 64).is_some_and(|word| word >> (slot.0 % 64) & 1 == 1)
    };
    let made = compact_anew(store, m.chunk, &live, m.next)?;
    let (needles, stored_bytes, digest) = (made.needles, made.stored_bytes, made.digest);
    Ok(said(&msg::Compacted { needles, stored_bytes, digest }))
}
