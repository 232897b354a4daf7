//! Copies that this node pulls from others, as the leader's last plan says: block by block, no
//! faster than the plan allows and than this node's link has room, continued where an interruption
//! left them, verified before they count. One job a chunk, generation and store. Never retries and
//! never chooses: the next plan does.

use super::share::{Share, Terms};
use super::{Events, Replicator};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Generation, Index, StoreId};
use holdfast_base::units::{KIB, MIB};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Import, QUARANTINE_S};
use holdfast_client::wire::peer::{self, Directions, Exported};
use holdfast_env::net::{Flow, PeerReply, PeerRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What one request fetches, at most and at least: an eight-millisecond's worth of the link between,
/// for that is how long others' requests wait behind it.
const BLOCK_BYTES_MAX: u64 = MIB;
const BLOCK_BYTES_MIN: u64 = 64 * KIB;
const BLOCKS_PER_SECOND: u64 = 128;
/// For one block from a disk that scrubs, serves and repairs, behind its source's own throttle.
const EXPORT_MS: u32 = 30_000;
/// Ends that nobody has asked for; past it the oldest are forgotten, and copied again.
const ENDED_MAX: usize = 4096;

type Key = (StoreId, ChunkId, Generation);

fn key(copy: &peer::Copy) -> Key {
    (copy.store, copy.chunk, copy.generation)
}

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
        // A pause earns little: what is sent at once waits in a queue, and others behind it.
        let burst = (rate / 32) as i64;
        let earned = earned.min(i64::MAX as u128 / 2) as i64;
        self.tokens = self.tokens.saturating_add(earned).min(burst);
        let wait_ms = (-self.tokens).max(0) as u128 * 1000 / rate as u128;
        self.tokens -= bytes as i64;
        wait_ms as u64
    }
}

/// Copies under way on this node, and the throttle of what it takes and gives.
#[derive(Default)]
pub(crate) struct Copies {
    /// Held to look up, join and leave.
    list: Mutex<List>,
    throttle: Mutex<Throttle>,
    /// Bytes of blocks since the start.
    imported: AtomicU64,
    exported: AtomicU64,
}

#[derive(Default)]
struct List {
    jobs: BTreeMap<Key, Arc<Job>>,
    /// Epoch and number of the last plan.
    seen: (Index, u64),
    /// Files of copies that failed, or of an earlier process: gone on with by a plan that lists
    /// them, and removed by one that does not.
    leftovers: BTreeSet<Key>,
    /// That the leader has not heard of, oldest first.
    ended: Vec<peer::Ended>,
    ends: u64,
}

#[derive(Default)]
struct Throttle {
    share: Share,
    allowed: Flow,
    import: TokenBucket,
    export: TokenBucket,
}

struct Job {
    with: Arc<Replicator>,
    started_ns: u64,
    state: Mutex<State>,
}

struct State {
    order: peer::Copy,
    /// No plan has it any more: it ends with the next block.
    stopped: bool,
    bucket: TokenBucket,
    bytes_done: u64,
    bytes_total: u64,
    bytes_received: u64,
    /// Taken while a block is written.
    import: Option<Import>,
    /// Whose file the import is a part of: no other's goes on with it.
    from: Option<StoreId>,
}

impl Copies {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("no holder of this lock panics")
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().expect("no holder of this lock panics")
    }
}

impl Replicator {
    /// What the links of this node and of its rack carry, each direction, in bytes a second; 0 if
    /// nobody has said.
    pub fn set_links(&self, own: u64, rack: u64) {
        let share = &mut self.copies.throttle().share;
        (share.link, share.rack_link) = (own, rack);
    }

    /// Copies that an earlier process of this node had begun.
    pub fn set_leftovers(&self, partial: impl IntoIterator<Item = (StoreId, ChunkId, Generation)>) {
        self.copies.list().leftovers.extend(partial);
    }

    /// Looks at the link, given what it has carried since the start, and sets what recovery may
    /// take until the next look; 25 times a second.
    pub fn regulate(&self, carried: Flow) {
        let recovery = Flow {
            received: self.copies.imported.load(Ordering::Relaxed),
            sent: self.copies.exported.load(Ordering::Relaxed),
        };
        let now_ns = self.now_ns();
        let mut throttle = self.copies.throttle();
        throttle.share.sample(now_ns, carried, recovery);
        throttle.allowed = throttle.share.allowed();
    }

    /// How long to wait before `bytes` are given away, in milliseconds.
    pub(crate) fn export_wait(&self, bytes: u64) -> u64 {
        let now_ns = self.now_ns();
        let mut throttle = self.copies.throttle();
        let rate = throttle.allowed.sent;
        throttle.export.take(bytes, rate, now_ns)
    }

    pub(crate) fn count_exported(&self, bytes: u64) {
        self.copies.exported.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Does what the plan says from now on, and tells how things are.
    pub fn follow(self: &Arc<Self>, plan: peer::Plan) -> Result<peer::Report> {
        let now_ns = self.now_ns();
        let (mut begun, mut unwanted) = (Vec::new(), Vec::new());
        {
            let mut list = self.copies.list();
            if (plan.epoch, plan.number) < list.seen {
                let (epoch, number) = list.seen;
                return Err(Error::fenced(format!(
                    "follow plan {} of epoch {}: plan {number} of epoch {epoch} came before: only \
                     the last leader plans copies",
                    plan.number, plan.epoch
                )));
            }
            list.seen = (plan.epoch, plan.number);
            list.ended.retain(|ended| ended.number > plan.heard);
            if !plan.look {
                let terms = Terms {
                    alpha_per_mille: plan.alpha_per_mille,
                    floor: plan.floor_bytes_per_second,
                    rate_max: plan.rate_max,
                    rack: Flow { received: plan.rack.into, sent: plan.rack.out },
                };
                self.copies.throttle().share.terms = terms;
                (begun, unwanted) = list.follow(self, plan.copies, now_ns);
            }
        }
        for (store, chunk, generation) in unwanted {
            if let Some(own) = self.stores.get(store) {
                let store = own.store.clone();
                // What stays in spite of that is removed after the next start.
                self.workers.run(move || drop(store.discard_import(chunk, generation)));
            }
        }
        // How long they are.
        begun.iter().for_each(|job| job.export(0, 0));
        Ok(self.report(now_ns))
    }

    /// How this node's link and copies are.
    fn report(&self, now_ns: u64) -> peer::Report {
        let (foreground, recovery, link_bytes_per_second, rack_bytes_per_second) = {
            let share = &self.copies.throttle().share;
            let (foreground, recovery) = share.report();
            (foreground, recovery, share.link(), share.rack_link)
        };
        let directions = |flow: Flow| Directions { out: flow.sent, into: flow.received };
        let (answer_us_p90, answers) = self.answers_seen();
        let list = self.copies.list();
        peer::Report {
            number: list.seen.1,
            link_bytes_per_second,
            rack_bytes_per_second,
            foreground: directions(foreground),
            recovery: directions(recovery),
            answer_us_p90,
            answers,
            flights: list.jobs.values().filter_map(|job| job.flight(now_ns)).collect(),
            ended: list.ended.clone(),
        }
    }
}

impl List {
    /// Makes the jobs what the plan lists; answers those that are new, and files that nobody wants.
    fn follow(
        &mut self,
        with: &Arc<Replicator>,
        copies: Vec<peer::Copy>,
        now_ns: u64,
    ) -> (Vec<Arc<Job>>, Vec<Key>) {
        let listed: BTreeSet<Key> = copies.iter().map(key).collect();
        let unwanted = self.leftovers.extract_if(.., |key| !listed.contains(key)).collect();
        for (_, job) in self.jobs.iter().filter(|(key, _)| !listed.contains(key)) {
            job.state().stopped = true;
        }
        let mut begun = Vec::new();
        for order in copies {
            let key = key(&order);
            if let Some(job) = self.jobs.get(&key) {
                let mut state = job.state();
                (state.order, state.stopped) = (order, false);
                continue;
            }
            // The plan was made before its end was heard of.
            if self.ended.iter().any(|e| (e.store, e.chunk, e.generation) == key) {
                continue;
            }
            let state = State {
                order,
                stopped: false,
                bucket: TokenBucket::default(),
                bytes_done: 0,
                bytes_total: 0,
                bytes_received: 0,
                import: None,
                from: None,
            };
            let job =
                Arc::new(Job { with: with.clone(), started_ns: now_ns, state: Mutex::new(state) });
            self.leftovers.remove(&key);
            self.jobs.insert(key, job.clone());
            begun.push(job);
        }
        (begun, unwanted)
    }

    fn end(&mut self, key: Key, bytes: u64, failure: String) {
        self.ends += 1;
        let (store, chunk, generation) = key;
        self.ended.push(peer::Ended {
            number: self.ends,
            store,
            chunk,
            generation,
            bytes,
            failure,
        });
        if self.ended.len() > ENDED_MAX {
            self.ended.remove(0);
        }
    }
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn flight(&self, now_ns: u64) -> Option<peer::Flight> {
        let state = self.state();
        let (store, chunk, generation) = key(&state.order);
        (!state.stopped).then_some(peer::Flight {
            store,
            chunk,
            generation,
            source: state.order.source,
            bytes_done: state.bytes_done,
            bytes_total: state.bytes_total,
            bytes_received: state.bytes_received,
            age_ms: now_ns.saturating_sub(self.started_ns) / 1_000_000,
        })
    }

    /// Leaves the list: a plan that lists it from now on begins anew.
    fn finish(&self, result: Result<()>) {
        let mut list = self.with.copies.list();
        let (order, received, stopped) = {
            let mut state = self.state();
            // An unfinished import lets go of its chunk.
            state.import = None;
            (state.order.clone(), state.bytes_received, state.stopped)
        };
        list.jobs.remove(&key(&order));
        if stopped && result.is_err() {
            return;
        }
        if result.is_err() {
            list.leftovers.insert(key(&order));
        }
        let failure = result.err().map_or(String::new(), |e| {
            e.context(format_args!("copy from store `{}`", order.source)).message
        });
        list.end(key(&order), received, failure);
    }

    /// Asks the source for `bytes` at `offset`.
    fn export(self: &Arc<Self>, offset: u64, bytes: u64) {
        let order = self.state().order.clone();
        let export = peer::Export {
            sender: self.with.directory.sender(),
            store: order.source,
            chunk: order.chunk,
            generation: order.generation,
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
        let source = order.source;
        let done = move |reply: Result<PeerReply>| {
            let with = job.with.clone();
            with.workers.run(move || match job.received(source, offset, reply) {
                Ok(()) => {}
                Err(e) => job.finish(Err(e)),
            });
        };
        self.with.peers.call(&order.source_address, request, Box::new(done));
    }

    /// A block has come from `source`: writes it and asks for the next. On a thread that may wait.
    fn received(
        self: &Arc<Self>,
        source: StoreId,
        offset: u64,
        reply: Result<PeerReply>,
    ) -> Result<()> {
        let (import, moved, stopped) = {
            let mut state = self.state();
            let import = state.import.take();
            // A plan may have named another source before the block was asked for, or after.
            let of_another = import.is_some() && state.from != Some(source);
            (import, state.order.source != source || of_another, state.stopped)
        };
        if stopped || moved {
            // Nobody wants what is there; another source's file may be laid out otherwise.
            drop(import);
            let (store, chunk, generation) = key(&self.state().order);
            if let Some(own) = self.with.stores.get(store) {
                own.store.discard_import(chunk, generation)?;
            }
            if stopped {
                return Err(Error::retry("no plan has it any more"));
            }
            self.state().bytes_done = 0;
            self.export(0, 0);
            return Ok(());
        }
        let reply = reply?;
        let exported: Exported = super::decode(&reply)?;
        let bytes = reply.body.len() as u64;
        self.with.copies.imported.fetch_add(bytes, Ordering::Relaxed);
        let import = match import {
            None => match self.begin(source, exported.bytes_total) {
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
        {
            let mut state = self.state();
            (state.bytes_done, state.bytes_total) = (at, total);
            state.bytes_received += bytes;
        }
        if at == total {
            import.finish()?;
            self.finish(Ok(()));
            return Ok(());
        }
        let (bytes, wait_ms) = self.next_block(import, total - at);
        if wait_ms == 0 {
            self.export(at, bytes);
        } else {
            let job = self.clone();
            self.with.peers.after(wait_ms, Box::new(move || job.export(at, bytes)));
        }
        Ok(())
    }

    /// How much to ask for next, and after how many milliseconds: as the plan's rate and this
    /// node's link allow.
    fn next_block(&self, import: Import, left: u64) -> (u64, u64) {
        let now_ns = self.with.now_ns();
        let mut throttle = self.with.copies.throttle();
        let allowed = throttle.allowed.received;
        let block = match allowed {
            0 => BLOCK_BYTES_MAX,
            rate => (rate / BLOCKS_PER_SECOND).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX),
        };
        let bytes = (block / BLOCK_BYTES_MIN * BLOCK_BYTES_MIN).min(left);
        let wait_link = throttle.import.take(bytes, allowed, now_ns);
        drop(throttle);
        let mut state = self.state();
        state.import = Some(import);
        let rate = state.order.bytes_per_second;
        (bytes, state.bucket.take(bytes, rate, now_ns).max(wait_link))
    }

    fn begin(&self, source: StoreId, bytes_total: u64) -> Result<Import> {
        let (store, chunk, generation) = key(&self.state().order);
        let own = self.with.stores.get(store).ok_or_else(|| {
            Error::not_found(format!("copy to store `{store}`: this node has no such store"))
        })?;
        let import = match own.store.import(chunk, generation, bytes_total, source) {
            // Short or damaged, and dropped for that: it makes way, if the log says so here, too.
            Err(e) if e.kind == Kind::Corrupt && !self.with.directory.counts(store, chunk)? => {
                let until = self.with.clock.unix_ms() / 1000 + QUARANTINE_S;
                own.store.set_aside(chunk, generation, until)?;
                Events::count(&self.with.events.set_aside);
                own.store.import(chunk, generation, bytes_total, source)
            }
            other => other,
        }?;
        self.state().from = Some(source);
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
        // A pause of an hour earns a thirty-second of a second, 320 KiB.
        now_ms += 3_600_000;
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 0);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 68);
        assert_eq!(bucket.take(MIB, rate, now_ms * 1_000_000), 168);
    }
}
