//! Copies that this node pulls from others, as the leader's last plan says: block by block, no
//! faster than the plan allows and than this node's link has room, continued where an interruption
//! left them, verified before they count. One job a chunk, generation and store. Never retries and
//! never chooses: the next plan does.

use super::super::OwnStore;
use super::bucket::TokenBucket;
use super::disks::{Disks, Way};
use super::share::Share;
use super::{Events, Replicator};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Generation, Index, StoreId, Tier};
use holdfast_base::units::MIB;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{Import, QUARANTINE_S};
use holdfast_cluster::repair::{BLOCK_BYTES_MIN, Terms};
use holdfast_env::net::{Flow, PeerReply, PeerRequest};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, planted};
use holdfast_wire::peer::{self, Directions, Exported};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// What one request fetches, at most; [`BLOCK_BYTES_MIN`] at least. An eight-millisecond's worth of
/// the link between, for that is how long others' requests wait behind it.
static BLOCK_BYTES_MAX: Knob = Knob::new("cluster.copy-block", MIB, &[BLOCK_BYTES_MIN]);
const BLOCKS_PER_SECOND: u64 = 128;
/// Who has longer to wait for its next block looks again after this.
const TURN_MS: u64 = 1000;
/// For one block from a disk that scrubs, serves and repairs, behind its source's own throttle.
const EXPORT_MS: u32 = 30_000;
/// How long after a copy was made the entry that counts it may be on its way.
const LANDED_NS: u64 = 10_000_000_000;
/// Ends that nobody has asked for; past it the oldest are forgotten, and copied again.
static ENDED_MAX: Knob = Knob::new("cluster.copy-ends", 4096, &[1, 3]);

pub(crate) type Key = (StoreId, ChunkId, Generation);

fn key(copy: &peer::Copy) -> Key {
    (copy.store, copy.chunk, copy.generation)
}

/// Copies under way on this node, and the throttle of what it takes and gives.
#[derive(Default)]
pub(crate) struct Copies {
    /// Held to look up, join and leave.
    list: Mutex<List>,
    throttle: Mutex<Throttle>,
}

#[derive(Default)]
struct List {
    jobs: BTreeMap<Key, Arc<Job>>,
    /// Epoch and number of the last plan.
    seen: (Index, u64),
    /// Files of copies that failed, or of an earlier process: gone on with by a plan that lists
    /// them, and removed by one that does not.
    leftovers: BTreeSet<Key>,
    /// Replicas whose files are about to be removed: what is there must not be taken for a copy.
    leaving: BTreeSet<Key>,
    /// Copies that were made a moment ago, and when: the entry that counts them may be on its way.
    landed: BTreeMap<Key, u64>,
    /// That the leader has not heard of, oldest first.
    ended: Vec<peer::Ended>,
    ends: u64,
}

#[derive(Default)]
struct Throttle {
    share: Share,
    disks: Disks,
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
    /// A thread has it.
    writes: bool,
    /// Counts the sources that it began with: what an earlier one sends is late.
    attempt: u64,
}

impl Copies {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.held()
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.held()
    }
}

impl Replicator {
    /// What the links of this node and of its rack carry, each direction, and each of its disks,
    /// both directions together, in bytes a second; 0 if nobody has said.
    pub fn set_limits(&self, link: u64, rack_link: u64, disk: u64) {
        let mut throttle = self.copies.throttle();
        (throttle.share.link, throttle.share.rack_link) = (link, rack_link);
        throttle.disks.bytes_per_second = disk;
    }

    /// Copies that an earlier process of this node had begun.
    pub fn set_leftovers(&self, partial: impl IntoIterator<Item = (StoreId, ChunkId, Generation)>) {
        self.copies.list().leftovers.extend(partial);
    }

    /// Looks at the link, given what it has carried since the start, and at the disks, and sets
    /// what recovery may take until the next look; 25 times a second.
    pub fn regulate(&self, carried: Flow) {
        let now_ns = self.now_ns();
        // Only what is compared with something is asked of the system.
        let counted = self.copies.throttle().disks.bytes_per_second > 0;
        let device = |own: &OwnStore| counted.then(|| own.store.device_bytes()).flatten();
        let disks = self.stores.iter().filter(|own| own.tier == Tier::Disk);
        let disks: Vec<_> = disks.map(|own| (own.id, device(own))).collect();
        let mut throttle = self.copies.throttle();
        let terms = throttle.share.terms;
        throttle.disks.look(now_ns, terms, disks);
        let moved = throttle.disks.moved();
        let recovery = Flow { received: moved.into, sent: moved.out };
        throttle.share.sample(now_ns, carried, recovery);
        throttle.allowed = throttle.share.allowed();
    }

    /// How long to wait before `bytes` of a store are given away, in milliseconds.
    pub(crate) fn export_wait(&self, store: StoreId, bytes: u64) -> u64 {
        let now_ns = self.now_ns();
        let mut throttle = self.copies.throttle();
        let rate = throttle.allowed.sent;
        let wait_link = throttle.export.take(bytes, rate, now_ns);
        throttle.disks.wait(store, bytes, now_ns).max(wait_link)
    }

    /// They have been read.
    pub(crate) fn count_exported(&self, store: StoreId, bytes: u64) {
        self.copies.throttle().disks.count(store, Way::Out, bytes);
    }

    /// Does work of recovery at a disk, when what came before it is done.
    pub(crate) fn at_disk(self: &Arc<Self>, store: StoreId, work: impl FnOnce() + Send + 'static) {
        let with = self.clone();
        self.workers.run_in_line(store, move || {
            let began_ns = with.now_ns();
            work();
            let took_ns = with.now_ns().saturating_sub(began_ns);
            with.copies.throttle().disks.worked(store, took_ns);
        });
    }

    /// Does what the plan says from now on, and tells how things are.
    pub fn follow(self: &Arc<Self>, plan: peer::CopyPlan) -> Result<peer::Report> {
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
                self.at_disk(own.id, move || drop(store.discard_import(chunk, generation)));
            }
        }
        // How long they are.
        begun.iter().for_each(|(job, attempt)| job.export(*attempt, 0, 0));
        Ok(self.report(now_ns))
    }

    /// From now on no copy of this replica begins here, until [`Replicator::is_gone`]: its file is
    /// to be removed. False where one is under way or was made a moment ago, which may be that file.
    pub fn let_go(&self, key: Key) -> bool {
        if planted!("node.landed-copy-removed") {
            return true;
        }
        let now_ns = self.now_ns();
        let mut list = self.copies.list();
        list.landed.retain(|_, landed_ns| now_ns < *landed_ns + LANDED_NS);
        let unheard =
            |e: &peer::Ended| e.failure.is_empty() && (e.store, e.chunk, e.generation) == key;
        let stays = list.jobs.contains_key(&key)
            || list.landed.contains_key(&key)
            || list.ended.iter().any(unheard);
        if !stays {
            list.leaving.insert(key);
        }
        !stays
    }

    /// The file is removed, or stays after all.
    pub fn is_gone(&self, key: Key) {
        self.copies.list().leaving.remove(&key);
    }

    /// Copies that are whole here and that no leader has heard of.
    pub(crate) fn landed_unheard(&self) -> BTreeSet<Key> {
        let list = self.copies.list();
        let whole = list.ended.iter().filter(|ended| ended.failure.is_empty());
        whole.map(|ended| (ended.store, ended.chunk, ended.generation)).collect()
    }

    /// Of a chunk that was deleted: no leader asks any more who has it.
    pub(crate) fn forget_landed(&self, key: Key) {
        let is_it = |e: &peer::Ended| (e.store, e.chunk, e.generation) == key;
        self.copies.list().ended.retain(|ended| !is_it(ended));
    }

    /// How this node's link and copies are.
    fn report(&self, now_ns: u64) -> peer::Report {
        let ((foreground, recovery), links, disks) = {
            let Throttle { share, disks, .. } = &*self.copies.throttle();
            (share.report(), [share.link(), share.rack_link], disks.report())
        };
        let [link_bytes_per_second, rack_bytes_per_second] = links;
        let directions = |flow: Flow| Directions { out: flow.sent, into: flow.received };
        let (answer_us_p90, answers) = self.answers_seen();
        let list = self.copies.list();
        peer::Report {
            number: list.seen.1,
            link_bytes_per_second,
            rack_bytes_per_second,
            foreground: directions(foreground),
            recovery: directions(recovery),
            disks,
            answer_us_p90,
            answers,
            flights: list.jobs.values().filter_map(|job| job.flight(now_ns)).collect(),
            ended: list.ended.clone(),
        }
    }
}

impl List {
    /// Makes the jobs what the plan lists; answers those that have to ask a source for the first
    /// time, each with its attempt, and files that nobody wants.
    fn follow(
        &mut self,
        with: &Arc<Replicator>,
        copies: Vec<peer::Copy>,
        now_ns: u64,
    ) -> (Vec<(Arc<Job>, u64)>, Vec<Key>) {
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
                if state.order.source != order.source {
                    // Nobody waits for what the earlier one was asked for: it may be slow. Its
                    // file may be laid out otherwise.
                    state.attempt += 1;
                    (state.import, state.bytes_done) = (None, 0);
                    if !state.writes {
                        begun.push((job.clone(), state.attempt));
                    }
                }
                (state.order, state.stopped) = (order, false);
                continue;
            }
            // The next plan lists it again.
            if self.leaving.contains(&key) {
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
                writes: false,
                attempt: 0,
            };
            let job =
                Arc::new(Job { with: with.clone(), started_ns: now_ns, state: Mutex::new(state) });
            self.leftovers.remove(&key);
            self.jobs.insert(key, job.clone());
            begun.push((job, 0));
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
        if self.ended.len() > ENDED_MAX.size() {
            ENDED_MAX.cross();
            self.ended.remove(0);
        }
    }
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
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
        if result.is_ok() {
            list.landed.insert(key(&order), self.with.now_ns());
        }
        let failure = result.err().map_or(String::new(), |e| {
            e.context(format_args!("copy from store `{}`", order.source)).message
        });
        list.end(key(&order), received, failure);
    }

    /// Asks the source for `bytes` at `offset`.
    fn export(self: &Arc<Self>, attempt: u64, offset: u64, bytes: u64) {
        let order = {
            let state = self.state();
            if state.attempt != attempt {
                return;
            }
            state.order.clone()
        };
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
        let target = order.store;
        let done = move |reply: Result<PeerReply>| {
            let with = job.with.clone();
            let bytes = reply.as_ref().map_or(0, |reply| reply.body.len() as u64);
            with.copies.throttle().disks.count(target, Way::Into, bytes);
            with.at_disk(target, move || {
                if let Err(e) = job.received(attempt, offset, reply) {
                    job.finish(Err(e));
                }
            });
        };
        self.with.peers.call_yielding(&order.source_address, request, Box::new(done));
    }

    /// A block has come: writes it and asks for the next. On a thread that may wait.
    fn received(
        self: &Arc<Self>,
        attempt: u64,
        offset: u64,
        reply: Result<PeerReply>,
    ) -> Result<()> {
        let (import, order, stopped) = {
            let mut state = self.state();
            if state.attempt != attempt {
                return Ok(());
            }
            state.writes = true;
            (state.import.take(), state.order.clone(), state.stopped)
        };
        if stopped {
            drop(import);
            if let Some(own) = self.with.stores.get(order.store) {
                own.store.discard_import(order.chunk, order.generation)?;
            }
            return Err(Error::retry("no plan has it any more"));
        }
        let written = match self.write(&order, import, offset, reply) {
            Ok(None) => {
                self.finish(Ok(()));
                return Ok(());
            }
            Ok(Some(import)) => Ok(import),
            Err(e) => Err(e),
        };
        let replaced_by = {
            let mut state = self.state();
            state.writes = false;
            if state.attempt == attempt {
                let import = written?;
                let (at, left) = (import.offset(), import.bytes_total() - import.offset());
                state.import = Some(import);
                drop(state);
                self.ask_in_turn(attempt, at, left);
                return Ok(());
            }
            state.bytes_done = 0;
            state.attempt
        };
        // The plan has named another source meanwhile.
        drop(written);
        self.export(replaced_by, 0, 0);
        Ok(())
    }

    /// Writes a block, the first of which only says how many there are; none if nothing is left.
    fn write(
        &self,
        order: &peer::Copy,
        import: Option<Import>,
        offset: u64,
        reply: Result<PeerReply>,
    ) -> Result<Option<Import>> {
        let reply = reply?;
        let exported: Exported = super::decode(&reply)?;
        let import = match import {
            None => match self.begin(order, exported.bytes_total) {
                Ok(import) => import,
                // A copy that went through before, or a repetition of the order; it verifies.
                Err(e) if e.kind == Kind::Exists => return Ok(None),
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
            state.bytes_received += reply.body.len() as u64;
        }
        if at == total {
            match planted!("node.copy-counts-before-sync") {
                true => self.with.peers.after(3000, Box::new(move || drop(import.finish()))),
                false => drop(import.finish()?),
            }
            return Ok(None);
        }
        Ok(Some(import))
    }

    /// Asks for the next block when it may come. Who has long to wait looks again whether that still
    /// holds, for plans change rates.
    fn ask_in_turn(self: &Arc<Self>, attempt: u64, at: u64, left: u64) {
        if self.state().attempt != attempt {
            return;
        }
        let job = self.clone();
        match self.next_block(left) {
            None => {
                let again = move || job.ask_in_turn(attempt, at, left);
                self.with.peers.after(TURN_MS, Box::new(again));
            }
            Some((bytes, 0)) => self.export(attempt, at, bytes),
            Some((bytes, wait_ms)) => {
                let ask = move || job.export(attempt, at, bytes);
                self.with.peers.after(wait_ms, Box::new(ask));
            }
        }
    }

    /// How much to ask for next, and after how many milliseconds: as the plan's rate and this
    /// node's link allow; nothing while that is longer than a turn.
    fn next_block(&self, left: u64) -> Option<(u64, u64)> {
        let now_ns = self.with.now_ns();
        let mut throttle = self.with.copies.throttle();
        let allowed = throttle.allowed.received;
        let block = match allowed {
            0 => BLOCK_BYTES_MAX.get(),
            rate => (rate / BLOCKS_PER_SECOND).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX.get()),
        };
        let bytes = (block / BLOCK_BYTES_MIN * BLOCK_BYTES_MIN).min(left);
        if bytes < left {
            BLOCK_BYTES_MAX.cross();
        }
        let mut state = self.state();
        let (target, rate) = (state.order.store, state.order.bytes_per_second);
        let due_ms = [
            throttle.import.due_ms(allowed, now_ns),
            throttle.disks.due_ms(target, now_ns),
            state.bucket.due_ms(rate, now_ns),
        ];
        let longest_ms = due_ms.into_iter().max().unwrap_or(0);
        if longest_ms > TURN_MS && !planted!("node.copy-waits-at-an-old-rate") {
            return None;
        }
        throttle.import.take(bytes, allowed, now_ns);
        throttle.disks.wait(target, bytes, now_ns);
        state.bucket.take(bytes, rate, now_ns);
        Some((bytes, longest_ms))
    }

    fn begin(&self, order: &peer::Copy, bytes_total: u64) -> Result<Import> {
        let (store, chunk, generation) = key(order);
        let own = self.with.stores.get(store).ok_or_else(|| {
            Error::not_found(format!("copy to store `{store}`: this node has no such store"))
        })?;
        let import = match own.store.import(chunk, generation, bytes_total, order.source) {
            // Short or damaged, and dropped for that: it makes way, if the log says so here, too.
            Err(e) if e.kind == Kind::Corrupt && !self.with.directory.counts(store, chunk)? => {
                let until = self.with.clock.unix_ms() / 1000 + QUARANTINE_S;
                own.store.set_aside(chunk, generation, until)?;
                Events::count(&self.with.events.set_aside);
                own.store.import(chunk, generation, bytes_total, order.source)
            }
            other => other,
        }?;
        if import.offset() > 0 {
            Events::count(&self.with.events.resumed_copies);
        }
        Ok(import)
    }
}
