//! Reads from whichever replica answers well first: this node's own store, else the node that has
//! been fastest lately, and another one beside it when that takes longer than it usually does.
//! What a peer sends is verified before it is passed on; a bad block is read elsewhere and
//! reported.

use super::hedge::{Hedge, Next};
use super::{Events, Place, READ_MS, Replicator};
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Generation, Pointer, StoreId};
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Bytes, Done, Store};
use holdfast_env::net::{PeerReply, PeerRequest};
use holdfast_env::{HoldMutex, planted};
use holdfast_wire::chunk::{ReadReply, pieces};
use holdfast_wire::peer;
use std::sync::{Arc, Mutex};

/// What to read, all of it: who asks knows how long the chunk or object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Raw { chunk: ChunkId, generation: Generation, offset: u64, bytes: u32 },
    Object { pointer: Pointer, offset: u64, bytes: u32 },
}

/// Verified bytes, with a checksum for each piece that 64 KiB borders cut them into: stamped of a
/// raw chunk, plain of an object.
pub struct Answer {
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
}

impl Answer {
    /// Of a range in which there is nothing.
    pub fn empty() -> Answer {
        Answer { bytes: Bytes::Owned { buf: Vec::new(), range: 0..0 }, crcs: Vec::new() }
    }
}

impl Wanted {
    pub fn chunk(&self) -> ChunkId {
        match *self {
            Wanted::Raw { chunk, .. } => chunk,
            Wanted::Object { pointer, .. } => pointer.chunk,
        }
    }

    /// Reads from a store of this node. Waits for its disk.
    pub(crate) fn read_own(&self, store: &Store) -> Result<Answer> {
        match *self {
            Wanted::Raw { chunk, generation, offset, bytes } => {
                let read = store.read_raw(chunk, generation, offset, bytes as u64)?;
                Ok(Answer { bytes: read.bytes, crcs: read.crcs })
            }
            Wanted::Object { pointer, offset, bytes } => {
                let wanted = offset..offset.saturating_add(bytes as u64);
                let (bytes, crcs) = store.read_needle_part(pointer, wanted)?;
                Ok(Answer { bytes, crcs })
            }
        }
    }

    /// Refuses bytes that are not what was asked for.
    fn verify(&self, bytes: &[u8], crcs: &[u32]) -> Result<()> {
        let (offset, wanted, seal): (u64, u32, &dyn Fn(u64) -> u32) = match *self {
            Wanted::Raw { chunk, generation, offset, bytes } => {
                (offset, bytes, &move |block| stamp(chunk, generation, block))
            }
            Wanted::Object { offset, bytes, .. } => (offset, bytes, &|_| 0),
        };
        let chunk = self.chunk();
        if bytes.len() != wanted as usize {
            return Err(Error::corrupt(format!(
                "read chunk `{chunk}`: {} of {wanted} bytes at {offset} were answered",
                bytes.len()
            )));
        }
        let blocks = offset / BLOCK_BYTES..;
        let mut found = pieces(offset, bytes).map(crc32c).zip(blocks);
        let expected = crcs.iter();
        // Nothing has no checksum, or that of nothing.
        let right = bytes.is_empty()
            || (found
                .by_ref()
                .zip(expected)
                .all(|((crc, block), sent)| crc ^ seal(block) == *sent)
                && found.next().is_none());
        if !right && !planted!("cluster.peer-bytes-unverified") {
            return Err(Error::corrupt(format!(
                "read chunk `{chunk}`: bytes {offset} to {} fail their checksums",
                offset + wanted as u64
            )));
        }
        Ok(())
    }

    fn message(&self, with: &Replicator, store: StoreId) -> (u16, Vec<u8>) {
        let sender = with.directory.sender();
        match *self {
            Wanted::Raw { chunk, generation, offset, bytes } => {
                let read = peer::ReadRaw { sender, store, chunk, generation, offset, bytes };
                (peer::OP_PEER_READ_RAW, read.to_bytes())
            }
            Wanted::Object { pointer, offset, bytes } => {
                let read = peer::ReadNeedle { sender, store, pointer, offset, bytes };
                (peer::OP_PEER_READ_NEEDLE, read.to_bytes())
            }
        }
    }
}

/// A read on its way.
struct Reading {
    with: Arc<Replicator>,
    wanted: Wanted,
    candidates: Vec<(StoreId, Place)>,
    hedge: Mutex<Hedge>,
    /// Taken by whoever answers.
    done: Mutex<Option<Done<Answer>>>,
    /// What to say when nobody has it: damage before absence before silence.
    error: Mutex<Error>,
    /// Whether wrong bytes are damage of whoever has sent them.
    accuses: bool,
}

impl Replicator {
    /// Reads what is `wanted` from one of `replicas`. Waits for the disk when a store of this node
    /// has it, so threads that must not wait hand it to a worker.
    pub fn read(self: &Arc<Self>, replicas: &[StoreId], wanted: Wanted, done: Done<Answer>) {
        self.read_of(replicas, wanted, true, done);
    }

    /// As [`Replicator::read`], of one store that may not have it, which is no damage.
    pub(super) fn look_for(self: &Arc<Self>, store: StoreId, wanted: Wanted, done: Done<Answer>) {
        self.read_of(&[store], wanted, false, done);
    }

    fn read_of(
        self: &Arc<Self>,
        replicas: &[StoreId],
        wanted: Wanted,
        accuses: bool,
        done: Done<Answer>,
    ) {
        let chunk = wanted.chunk();
        let mut error =
            Error::not_found(format!("read chunk `{chunk}`: no store that is left holds it"));
        for own in replicas.iter().filter_map(|id| self.stores.get(*id)) {
            let read = wanted.read_own(&own.store).and_then(|answer| {
                wanted.verify(answer.bytes.as_slice(), &answer.crcs)?;
                Ok(answer)
            });
            match read {
                Ok(answer) => return done(Ok(answer)),
                Err(e) => {
                    if accuses && e.kind == Kind::Corrupt {
                        self.report_bad(own.id, chunk, &e.message);
                    }
                    error = worse(error, e);
                }
            }
        }
        let candidates = self.candidates(replicas);
        let (hedge, next) = Hedge::new(candidates.len());
        let reading = Arc::new(Reading {
            with: self.clone(),
            wanted,
            candidates,
            hedge: Mutex::new(hedge),
            done: Mutex::new(Some(done)),
            error: Mutex::new(error),
            accuses,
        });
        reading.go_on(next);
    }

    /// Replicas of other nodes, the best one first: live before silent, fast before slow.
    fn candidates(&self, replicas: &[StoreId]) -> Vec<(StoreId, Place)> {
        let others = replicas.iter().filter(|id| self.stores.get(**id).is_none());
        let places = others.filter_map(|&id| Some((id, self.directory.place(id)?)));
        let mut found: Vec<_> = places.filter(|(_, place)| !place.lost).collect();
        let latencies = self.latencies.held();
        found.sort_by_key(|(id, place)| {
            let usual = latencies.get(&place.node).map_or(0, |node| node.usual_us());
            (!place.live, usual, *id)
        });
        found
    }
}

/// The error that tells more.
fn worse(before: Error, after: Error) -> Error {
    let rank = |e: &Error| match e.kind {
        Kind::NotFound => 0,
        Kind::Retry => 1,
        Kind::Corrupt => 2,
        _ => 3,
    };
    if rank(&after) >= rank(&before) { after } else { before }
}

impl Reading {
    fn go_on(self: &Arc<Self>, next: Next) {
        match next {
            Next::Ask(i) => self.ask(i),
            Next::Wait => {}
            Next::GiveUp => {
                let error = self.error.held().clone();
                self.finish(Err(error));
            }
        }
    }

    fn finish(&self, result: Result<Answer>) {
        let done = self.done.held().take();
        if let Some(done) = done {
            done(result);
        }
    }

    fn ask(self: &Arc<Self>, i: usize) {
        let Some((store, place)) = self.candidates.get(i) else { return };
        let (opcode, meta) = self.wanted.message(&self.with, *store);
        let request = PeerRequest { opcode, meta, body: None, deadline_ms: READ_MS };
        let (reading, sent_ns) = (self.clone(), self.with.now_ns());
        let done = move |reply: Result<PeerReply>| reading.answered(i, sent_ns, reply);
        self.with.peers.call(&place.address, request, Box::new(done));
        if i + 1 < self.candidates.len() {
            let latencies = self.with.latencies.held();
            let ms = latencies.get(&place.node).cloned().unwrap_or_default().hedge_ms();
            drop(latencies);
            let reading = self.clone();
            let overdue = move || {
                let next = reading.hedge.held().overdue();
                if let Next::Ask(_) = next {
                    Events::count(&reading.with.events.hedged_reads);
                }
                reading.go_on(next);
            };
            self.with.peers.after(ms, Box::new(overdue));
        }
    }

    fn answered(self: &Arc<Self>, i: usize, sent_ns: u64, reply: Result<PeerReply>) {
        let Some((store, place)) = self.candidates.get(i) else { return };
        let took_ns = self.with.now_ns().saturating_sub(sent_ns);
        if reply.as_ref().err().is_none_or(|e| e.kind == Kind::Retry) {
            let mut latencies = self.with.latencies.held();
            latencies.entry(place.node).or_default().add(took_ns);
            drop(latencies);
            let mut answers = self.with.answers.held();
            answers.0.add(took_ns);
            answers.1 = answers.1.saturating_add(1);
        }
        let answer = reply.and_then(|reply| {
            let crcs = super::decode::<ReadReply>(&reply)?.crcs;
            self.wanted.verify(&reply.body, &crcs)?;
            let range = 0..reply.body.len();
            Ok(Answer { bytes: Bytes::Owned { buf: reply.body, range }, crcs })
        });
        let mut hedge = self.hedge.held();
        match answer {
            Ok(answer) => {
                let first = hedge.answered();
                drop(hedge);
                if first {
                    self.finish(Ok(answer));
                }
            }
            Err(e) => {
                let next = hedge.failed();
                drop(hedge);
                if self.accuses && e.kind == Kind::Corrupt {
                    self.with.report_bad(*store, self.wanted.chunk(), &e.message);
                }
                let mut error = self.error.held();
                *error = worse(error.clone(), e);
                drop(error);
                self.go_on(next);
            }
        }
    }
}
