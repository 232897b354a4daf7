//! Copies that this node pulls from others: block by block at the rate that was asked for,
//! continued where an interruption left them, verified before they count. One job a chunk,
//! generation and store; who asks again joins it. Never retries: who asked does.

use super::{Events, Replicator};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Generation, StoreId};
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Done, Import};
use holdfast_client::wire::peer::{self, Exported, Progress};
use holdfast_env::net::{PeerReply, PeerRequest};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What one request fetches at most, and the part of a chunk's capacity that it fetches.
const BLOCK_BYTES_MAX: u64 = MIB;
const BLOCKS: u64 = 16;
/// For one block from a disk that scrubs, serves and repairs, behind its source's own throttle.
const EXPORT_MS: u32 = 30_000;

type Key = (StoreId, ChunkId, Generation);

/// Bytes a second, as a bucket of tokens. A core.
#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Negative after a block that was larger than what was there.
    tokens: i64,
    filled_ns: Option<u64>,
}

impl TokenBucket {
    /// Takes `bytes` at `rate` a second (0 for no limit); answers how long to wait before them.
    pub fn take(&mut self, bytes: u64, rate: u64, now_ns: u64) -> u64 {
        if rate == 0 {
            return 0;
        }
        let since = now_ns.saturating_sub(self.filled_ns.unwrap_or(now_ns));
        let earned = since as u128 * rate as u128 / 1_000_000_000;
        if earned > 0 || self.filled_ns.is_none() {
            // Only when something was earned: fractions of a byte must not be lost.
            self.filled_ns = Some(now_ns);
        }
        // A pause earns a tenth of a second at most.
        let burst = (rate / 10) as i64;
        let earned = earned.min(i64::MAX as u128 / 2) as i64;
        self.tokens = self.tokens.saturating_add(earned).min(burst);
        let wait_ms = (-self.tokens).max(0) as u128 * 1000 / rate as u128;
        self.tokens -= bytes as i64;
        wait_ms as u64
    }
}

/// Copies under way on this node, and the throttle of what it gives away.
#[derive(Default)]
pub(crate) struct Copies {
    /// Held to look up, join and leave.
    jobs: Mutex<BTreeMap<Key, Arc<Job>>>,
    /// Rate, and its bucket.
    export: Mutex<(u64, TokenBucket)>,
}

struct Job {
    with: Arc<Replicator>,
    order: peer::Copy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rate: u64,
    bucket: TokenBucket,
    bytes_done: u64,
    bytes_total: u64,
    /// Taken while a block is written.
    import: Option<Import>,
    waiting: Vec<Done<()>>,
}

impl Replicator {
    /// What this node gives away for copies at most, in bytes a second; 0 for no limit.
    pub fn set_export_rate(&self, bytes_per_second: u64) {
        self.copies.export.lock().expect("no holder of this lock panics").0 = bytes_per_second;
    }

    /// How long to wait before `bytes` are given away, in milliseconds.
    pub(crate) fn export_wait(&self, bytes: u64) -> u64 {
        let now = self.now_ns();
        let mut export = self.copies.export.lock().expect("no holder of this lock panics");
        let rate = export.0;
        export.1.take(bytes, rate, now)
    }

    /// Pulls a chunk into a store of this node. Answers once it is there, whole and durable.
    pub fn copy(self: &Arc<Self>, order: peer::Copy, done: Done<()>) {
        let key = (order.store, order.chunk, order.generation);
        let job = {
            let mut jobs = self.copies.jobs.lock().expect("no holder of this lock panics");
            if let Some(job) = jobs.get(&key) {
                let mut state = job.state();
                state.rate = order.bytes_per_second;
                state.waiting.push(done);
                return;
            }
            let state =
                State { rate: order.bytes_per_second, waiting: vec![done], ..State::default() };
            let job = Arc::new(Job { with: self.clone(), order, state: Mutex::new(state) });
            jobs.insert(key, job.clone());
            job
        };
        // How long it is.
        job.export(0, 0);
    }

    pub fn copying(&self, store: StoreId, chunk: ChunkId, generation: Generation) -> Progress {
        let jobs = self.copies.jobs.lock().expect("no holder of this lock panics");
        jobs.get(&(store, chunk, generation)).map_or(Progress::default(), |job| {
            let state = job.state();
            let (bytes_done, bytes_total) = (state.bytes_done, state.bytes_total);
            Progress { active: true, bytes_done, bytes_total }
        })
    }
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Leaves the list first: who asks from now on begins anew.
    fn finish(&self, result: Result<()>) {
        let key = (self.order.store, self.order.chunk, self.order.generation);
        let mut jobs = self.with.copies.jobs.lock().expect("no holder of this lock panics");
        jobs.remove(&key);
        let waiting = {
            let mut state = self.state();
            // An unfinished import lets go of its chunk.
            state.import = None;
            std::mem::take(&mut state.waiting)
        };
        drop(jobs);
        let result = result.map_err(|e| {
            let (chunk, source) = (self.order.chunk, self.order.source);
            e.context(format_args!("copy chunk `{chunk}` from store `{source}`"))
        });
        waiting.into_iter().for_each(|done| done(result.clone()));
    }

    /// Asks the source for `bytes` at `offset`.
    fn export(self: &Arc<Self>, offset: u64, bytes: u64) {
        let export = peer::Export {
            sender: self.with.directory.sender(),
            store: self.order.source,
            chunk: self.order.chunk,
            generation: self.order.generation,
            offset,
            bytes: bytes as u32,
        };
        let request = PeerRequest {
            opcode: peer::OP_PEER_EXPORT,
            meta: export.to_bytes(),
            body: None,
            deadline_ms: EXPORT_MS,
        };
        let job = self.clone();
        let done = move |reply: Result<PeerReply>| {
            let with = job.with.clone();
            with.workers.run(move || match job.received(offset, reply) {
                Ok(()) => {}
                Err(e) => job.finish(Err(e)),
            });
        };
        self.with.peers.call(&self.order.source_address, request, Box::new(done));
    }

    /// A block has come: writes it and asks for the next. On a thread that may wait.
    fn received(self: &Arc<Self>, offset: u64, reply: Result<PeerReply>) -> Result<()> {
        let reply = reply?;
        let exported: Exported = super::decode(&reply)?;
        let import = self.state().import.take();
        let import = match import {
            None => match self.begin(exported.bytes_total) {
                Ok(import) => import,
                // A copy that went through before, or a repetition of the order; it verifies.
                Err(e) if e.kind == Kind::Exists => {
                    self.finish(Ok(()));
                    return Ok(());
                }
                Err(e) => return Err(e),
            },
            Some(_) if reply.body.is_empty() => {
                return Err(Error::corrupt(
                    "the source sent no bytes; is it another chunk's file?",
                ));
            }
            Some(mut import) => {
                import.write(offset, &reply.body, exported.crc)?;
                import
            }
        };
        if import.bytes_total() != exported.bytes_total {
            return Err(Error::retry("the source's file has changed; begin again"));
        }
        let (at, total) = (import.offset(), import.bytes_total());
        if at == total {
            import.finish()?;
            self.state().bytes_done = total;
            self.finish(Ok(()));
            return Ok(());
        }
        let bytes = self.block_bytes().min(total - at);
        let wait_ms = {
            let now = self.with.now_ns();
            let mut state = self.state();
            (state.bytes_done, state.bytes_total) = (at, total);
            state.import = Some(import);
            let rate = state.rate;
            state.bucket.take(bytes, rate, now)
        };
        if wait_ms == 0 {
            self.export(at, bytes);
        } else {
            let job = self.clone();
            self.with.peers.after(wait_ms, Box::new(move || job.export(at, bytes)));
        }
        Ok(())
    }

    /// Whole sectors.
    fn block_bytes(&self) -> u64 {
        let own = self.with.stores.get(self.order.store);
        let part = own.map_or(0, |own| own.chunk_bytes_max / BLOCKS);
        (part / SECTOR_BYTES as u64 * SECTOR_BYTES as u64).clamp(SECTOR_BYTES as u64, BLOCK_BYTES_MAX)
    }

    fn begin(&self, bytes_total: u64) -> Result<Import> {
        let store = self.order.store;
        let own = self.with.stores.get(store).ok_or_else(|| {
            Error::not_found(format!("copy to store `{store}`: this node has no such store"))
        })?;
        let (chunk, generation) = (self.order.chunk, self.order.generation);
        let import = match own.store.import(chunk, generation, bytes_total) {
            // Short or damaged, and dropped for that: it makes way, if the log says so here, too.
            Err(e) if e.kind == Kind::Corrupt && !self.with.directory.counts(store, chunk)? => {
                own.store.set_aside(chunk, generation)?;
                Events::count(&self.with.events.set_aside);
                own.store.import(chunk, generation, bytes_total)
            }
            other => other,
        }?;
        if import.offset() > 0 {
            Events::count(&self.with.events.resumed_copies);
        }
        Ok(import)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_gives_what_its_rate_allows() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.take(1 << 40, 0, 0), 0, "no limit");
        let (mut now_ms, rate) = (0, 10 * MIB);
        for _ in 0..50 {
            now_ms += bucket.take(MIB, rate, now_ms * 1_000_000);
        }
        // 50 MiB at 10 a second: the first block comes at once, the last is paid for later.
        assert!((4800..=4900).contains(&now_ms), "{now_ms} ms");
        // A pause of an hour earns a tenth of a second.
        now_ms += 3_600_000;
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 0);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 0);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 100);
    }
}
