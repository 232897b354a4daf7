//! Housekeeping of one node: makes its stores follow the views after a start, frees what deleted
//! files held once their readers are done, compacts packed chunks, ends forgotten sessions, and
//! scrubs. Each round does a bounded amount; `step` takes the time, so tests and simulations
//! drive it without waiting.

mod compact;
mod copies;
mod errands;
mod moves;
mod rest;
mod settle;
mod unclosed;
mod unnamed;

use super::{Node, OwnStore, compare};
use crate::idle::IdleSessions;
use crate::rewrite::Attempt;
use holdfast_base::ids::{ChunkId, Durability, Generation, Index, StoreId, Tier};
use holdfast_base::{Kind, Result};
use holdfast_chunk::{ChunkInfo, Scrubber, Store};
use holdfast_cluster::{Chunk, ChunkState};
use holdfast_cluster::{Chunks, Command, Outcome};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Mode;
use moves::Moving;
use rest::Rest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What housekeeping may take.
#[derive(Clone, Copy, Debug)]
pub struct KeeperOptions {
    /// How long a deleted file's bytes stay for readers that found it before.
    pub grace_ms: u64,
    /// A packed chunk is rewritten when this share of it is dead, in percent.
    pub garbage_percent: u64,
    /// Deleted names that one round frees.
    pub reclaim_budget: u32,
    /// Chunks that one round rewrites.
    pub compactions: usize,
    /// How long a session may be unused before it is ended.
    pub session_idle_ms: u64,
    /// An unclosed file's last chunk is sealed when nothing was appended to it for so long.
    pub unclosed_rest_ms: u64,
    /// How long a file that was begun and is not written any more can be salvaged; 0 for ever.
    pub unclosed_idle_ms: u64,
    /// Bytes a second that scrubbing reads, over all stores; 0 for none.
    pub scrub_bytes_per_second: u64,
    /// How long a replica lies here that no entry names (any more) before it is set aside.
    pub unnamed_ms: u64,
}

impl Default for KeeperOptions {
    fn default() -> KeeperOptions {
        KeeperOptions {
            grace_ms: 5000,
            garbage_percent: 40,
            reclaim_budget: 10_000,
            compactions: 2,
            session_idle_ms: 3_600_000,
            unclosed_rest_ms: 3_600_000,
            unclosed_idle_ms: 7 * 86_400_000,
            scrub_bytes_per_second: 20_000_000,
            unnamed_ms: 600_000,
        }
    }
}

/// Housekeeping's own memory; nothing in it is needed after a restart.
pub struct Keeper {
    node: Arc<Node>,
    options: KeeperOptions,
    /// When the view of each shard had reached which index, oldest first: what a release may cover.
    reached: BTreeMap<u16, VecDeque<(u64, Index)>>,
    /// Chunks whose compaction did not come to its switch, and when it is tried again.
    resting: BTreeMap<ChunkId, Rest>,
    moving: Moving,
    /// One a disk store; they share the throttle evenly.
    scrubbers: Vec<(StoreId, Scrubber)>,
    sessions: IdleSessions,
    /// When the quarantine is looked at again.
    quarantine_next_ns: u64,
    /// Chunks here that this round looks at, and of each store where the next one goes on.
    around: Arc<[Held]>,
    look_next: BTreeMap<StoreId, ChunkId>,
    /// Of each shard's chunks, where the next round looks for some to unlink.
    unlink_next: BTreeMap<u16, ChunkId>,
    /// Files whose entry was proposed and that are not removed yet.
    owed: BTreeSet<(StoreId, ChunkId, Generation)>,
    /// Open chunks of this node that nobody here writes, and since when they look like it.
    orphans: BTreeMap<ChunkId, u64>,
    /// When the leader looks for chunks with fewer copies than the cluster could give them.
    copies_next_ns: u64,
    /// When it looks for chunks with more copies than they should have.
    surplus_next_ns: u64,
    /// When it looks for chunks that ended with the memory they were in.
    ended_next_ns: u64,
    /// When the views are compared again, and the questions that are out.
    compare_next_ns: u64,
    comparison: Option<compare::Round>,
    /// When it is noted again how far the log is.
    note_next_ns: u64,
    /// Replicas that the view does not name, and since when.
    unnamed: BTreeMap<(StoreId, ChunkId, Generation), u64>,
    unnamed_next_ns: u64,
    /// Rewrites of chunks that stores compute.
    compacting: Vec<Attempt>,
    /// Files that were begun and not closed.
    unclosed: unclosed::Unclosed,
}

/// How often views are compared, and the log's host looks what of it may go.
const COMPARE_NS: u64 = 10_000_000_000;
/// How often the leader looks for chunks that ended in memory.
const ENDED_NS: u64 = 10_000_000_000;
/// How often it is noted how far the log is.
const NOTE_NS: u64 = 10_000_000_000;

/// Chunks that one round looks at, of each store and of the view.
static LOOK_MAX: Knob = Knob::new("keeper.look", 1024, &[16, 32]);

/// One duty, given the time.
type Round = fn(&mut Keeper, u64) -> Result<()>;

/// A chunk's whereabouts on this node.
struct Held {
    store_id: StoreId,
    store: Store,
    info: ChunkInfo,
}

impl Keeper {
    pub fn new(node: Arc<Node>, options: KeeperOptions) -> Keeper {
        let stores = node.stores.iter().filter(|own| own.tier == Tier::Disk).count() as u64;
        let rate = options.scrub_bytes_per_second / stores.max(1);
        let scrubbers = match rate {
            0 => Vec::new(),
            rate => {
                let disks = node.stores.iter().filter(|own| own.tier == Tier::Disk);
                let scrubber =
                    |store: &Store| Scrubber::new(store.clone(), rate, Default::default());
                disks.map(|own| (own.id, scrubber(&own.store))).collect()
            }
        };
        Keeper {
            node,
            options,
            reached: BTreeMap::new(),
            resting: BTreeMap::new(),
            moving: Moving::default(),
            scrubbers,
            sessions: IdleSessions::new(options.session_idle_ms),
            quarantine_next_ns: 0,
            around: Arc::default(),
            look_next: BTreeMap::new(),
            unlink_next: BTreeMap::new(),
            owed: BTreeSet::new(),
            compacting: Vec::new(),
            orphans: BTreeMap::new(),
            copies_next_ns: 0,
            surplus_next_ns: 0,
            ended_next_ns: 0,
            compare_next_ns: 0,
            comparison: None,
            note_next_ns: 0,
            unnamed: BTreeMap::new(),
            unnamed_next_ns: 0,
            unclosed: unclosed::Unclosed::default(),
        }
    }

    /// One round. Everything that fails is tried again in the next one.
    pub fn step(&mut self, now_ns: u64) {
        self.node.stores.iter().for_each(|own| own.store.check_place());
        if let Some(log) = self.node.hosted() {
            log.refill_reserve();
        }
        if !self.node.has_root() {
            // Whose the chunks are is not known: none is touched.
            return;
        }
        self.look();
        let rounds: [(&str, Round); 24] = [
            ("open shards", Keeper::open_shards),
            ("reclaim deleted names", Keeper::reclaim),
            ("release what readers may have used", Keeper::release),
            ("follow seals", Keeper::follow_seals),
            ("end chunks that lost a copy", Keeper::end_short),
            ("leave closed stores", Keeper::leave_closed_stores),
            ("want more copies", Keeper::raise_copies),
            ("finish drains", Keeper::finish_drains),
            ("drop copies in excess", Keeper::drop_surplus),
            ("drop what ended in memory", Keeper::drop_ended),
            ("unlink chunks", Keeper::unlink),
            ("set aside what nobody names", Keeper::set_aside_unnamed),
            ("empty the quarantine", Keeper::empty_quarantine),
            ("compact chunks", Keeper::compact),
            ("go back to generations before", Keeper::go_back),
            ("scrub", Keeper::scrub),
            ("report damage", Keeper::report_damage),
            ("end sessions", Keeper::end_sessions),
            ("end files that nobody writes", Keeper::end_unclosed),
            ("compare views", Keeper::compare_views),
            ("note how far the log is", Keeper::note_reached),
            ("trim topics by their limits", Keeper::retain),
            ("watch the stores grow", Keeper::watch_growth),
            // Waits for many entries, and the others count graces from the time that they were given.
            ("finish moves from shard to shard", Keeper::finish_moves),
        ];
        for (what, round) in rounds {
            if let Err(e) = round(self, now_ns)
                // A log or a node out of reach is asked again in the next round.
                && !matches!(e.kind, Kind::Full | Kind::Retry | Kind::Fenced)
            {
                self.node.report_finding(format!("{what}: {e}"));
            }
        }
    }

    fn watch_growth(&mut self, now_ns: u64) -> Result<()> {
        let mut growth = self.node.growth.held();
        for own in self.node.stores.iter() {
            let used_bytes = own.store.usage().used_bytes;
            growth.entry(own.id).or_default().record(now_ns / 1_000_000, used_bytes);
        }
        Ok(())
    }

    /// A start has asked for this already. But the seal of such a chunk may be in the log behind that,
    /// though its append had failed; and what was proposed may have been lost.
    fn drop_ended(&mut self, now_ns: u64) -> Result<()> {
        let node = &self.node;
        if now_ns < self.ended_next_ns || !node.leads() || node.is_behind() {
            return Ok(());
        }
        self.ended_next_ns = now_ns + ENDED_NS;
        if planted!("node.ended-memory-waits-for-a-start") {
            return Ok(());
        }
        node.drop_ended()
    }

    fn reclaim(&mut self, _now_ns: u64) -> Result<()> {
        if !self.node.leads() {
            return Ok(());
        }
        self.each_shard(|keeper, shard| {
            let (node, budget) = (&keeper.node, keeper.options.reclaim_budget);
            if node.shards.get(shard)?.read(|view, _| view.names().needs_reclaim())? {
                node.command_and_wait(shard, &Command::Reclaim { budget }, Durability::Memory)?;
            }
            Ok(())
        })
    }

    /// Has something done for every shard whose view goes on. One where it fails holds up no other; answers
    /// with the first that did.
    fn each_shard(&mut self, mut each: impl FnMut(&mut Keeper, u16) -> Result<()>) -> Result<()> {
        let shards: Vec<u16> = self.node.shards.going().map(|(shard, _)| shard).collect();
        let mut first = Ok(());
        for shard in shards {
            first = first.and(each(self, shard));
        }
        first
    }

    fn release(&mut self, _now_ns: u64) -> Result<()> {
        self.each_shard(Keeper::release_of)
    }

    fn release_of(&mut self, shard: u16) -> Result<()> {
        let (index, oldest) =
            self.node.read_chunks(shard, |view, index| (index, view.freed().1))?;
        // Not the round's time: what came before in it may have waited for the log, and the view has
        // gone on meanwhile.
        let now_ns = self.node.machine.clock.monotonic_ns();
        let reached = self.reached.entry(shard).or_default();
        if reached.back().is_none_or(|(_, last)| *last < index) {
            reached.push_back((now_ns, index));
        }
        let mut before = None;
        while let Some((when, index)) = reached.front().copied() {
            let in_grace = now_ns.saturating_sub(when) < self.options.grace_ms * 1_000_000;
            if in_grace && !planted!("node.no-grace-for-readers") {
                break;
            }
            before = Some(Index(index.0 + 1));
            reached.pop_front();
        }
        let (Some(before), Some(oldest)) = (before, oldest) else { return Ok(()) };
        if oldest < before && self.node.leads() {
            let budget = self.options.reclaim_budget;
            let release = Command::Release { before, budget };
            let outcome = self.node.command_and_wait(shard, &release, Durability::Memory)?;
            if matches!(outcome, Outcome::Progress { more: true, .. }) {
                // Their grace is over already: the next round goes on with them.
                reached.push_front((0, Index(before.0 - 1)));
            }
        }
        Ok(())
    }

    /// Removes replicas that the view lets go: the entry first, then the file.
    fn unlink(&mut self, _now_ns: u64) -> Result<()> {
        let owed = self.unlink_owed();
        self.each_shard(Keeper::unlink_free)?;
        owed
    }

    fn unlink_free(&mut self, shard: u16) -> Result<()> {
        let first = self.unlink_next.get(&shard).copied().unwrap_or(ChunkId(0));
        let (free, next) =
            self.node.read_chunks(shard, |view, _| view.unlinkable_from(first, LOOK_MAX.size()))?;
        self.unlink_next.insert(shard, next.unwrap_or(ChunkId(0)));
        for (chunk, generation, store_id) in free {
            // A replica on a store that this node does not have is another's to remove.
            let Some(own) = self.node.stores.get(store_id) else {
                if self.node.leads() && self.node.store_is_gone(store_id) {
                    let unlink = Command::Unlink { chunk, generation, store: store_id };
                    self.node.propose_and_wait(unlink, Durability::Memory)?;
                }
                continue;
            };
            let unlink = Command::Unlink { chunk, generation, store: store_id };
            let key = (own.id, chunk, generation);
            if !self.owed.contains(&key) && !self.node.replicator.let_go(key) {
                continue;
            }
            // From here on it may be that no view names the file any more: it must not be forgotten,
            // also when nobody knows what became of the entry.
            self.owed.insert(key);
            self.node.propose_and_wait(unlink, Durability::Durable)?;
            remove_file(&self.node, own, chunk, generation)?;
            self.owed.remove(&key);
            self.node.replicator.is_gone(key);
        }
        Ok(())
    }

    /// Files that could not be removed when their entry let them go, or whose entry was in doubt.
    fn unlink_owed(&mut self) -> Result<()> {
        let mut last = Ok(());
        let node = &self.node;
        self.owed.retain(|(store, chunk, generation)| {
            let Some(own) = node.stores.get(*store) else { return false };
            let counts = |view: &Chunks, _| {
                let known = view.get(*chunk);
                known.is_some_and(|c| {
                    c.is_kept() && c.generation == *generation && c.replicas.contains(store)
                })
            };
            if node.read_chunk(*chunk, counts).unwrap_or(false) {
                // It was counted before it was let go, and stays.
                node.replicator.is_gone((*store, *chunk, *generation));
                return false;
            }
            // It was not let go, or is not known here to be: it is proposed again.
            let named = |view: &Chunks, _| view.names_replica(*chunk, *generation, *store);
            if node.read_chunk(*chunk, named).unwrap_or(true) {
                return true;
            }
            match remove_file(node, own, *chunk, *generation) {
                Ok(()) => {
                    node.replicator.is_gone((*store, *chunk, *generation));
                    false
                }
                Err(e) => {
                    last = Err(e);
                    true
                }
            }
        });
        last
    }

    /// Ends sessions that were not used for long.
    fn end_sessions(&mut self, now_ns: u64) -> Result<()> {
        if !self.node.leads() {
            return Ok(());
        }
        let node = self.node.clone();
        let mut looked = false;
        let open = || {
            looked = true;
            node.sessions()
        };
        for session in self.sessions.look(now_ns, open) {
            // Used a moment ago after all: it gets a new one, as if it had come later.
            node.wait_for(|done| node.end_session(session, done))?;
        }
        if looked {
            let mut ended = Ok(());
            for (shard, session) in node.sessions_left() {
                let fold = node.shards.get(shard)?;
                let one = node.wait_for(|done| fold.end_session(session, Mode::Ordered, done));
                ended = ended.and(one);
            }
            return ended;
        }
        Ok(())
    }

    /// And trims the log, where it is here.
    fn compare_views(&mut self, now_ns: u64) -> Result<()> {
        if now_ns >= self.compare_next_ns {
            self.compare_next_ns = now_ns + COMPARE_NS;
            self.comparison = self.node.ask_about_views(now_ns)?;
        }
        match self.comparison.take_if(|round| round.is_over(now_ns)) {
            Some(round) => self.node.judge_views(&round),
            None => Ok(()),
        }
    }

    fn note_reached(&mut self, now_ns: u64) -> Result<()> {
        if now_ns < self.note_next_ns {
            return Ok(());
        }
        self.note_next_ns = now_ns + NOTE_NS;
        self.node.note_reached()
    }

    fn retain(&mut self, now_ns: u64) -> Result<()> {
        self.node.retain(now_ns)
    }

    /// Seals and switches here what was decided elsewhere while nobody told this node.
    fn follow_seals(&mut self, _now_ns: u64) -> Result<()> {
        for held in self.around.clone().iter() {
            if held.info.state == holdfast_chunk::ReplicaState::Sealed
                && held.info.kind == holdfast_chunk::ChunkKind::Raw
            {
                continue;
            }
            let chunk = held.info.chunk;
            // Of a shard whose view has stopped, or is not open yet, nothing is known.
            let known = self.node.read_chunk(chunk, |view, _| view.get(chunk).cloned());
            let Ok(known) = known else { continue };
            if known.is_none() && planted!("node.unknown-replica-unlinked") {
                held.store.unlink(held.info.chunk, held.info.generation)?;
            }
            // Whose seal did not come here, and then the others were lost or dropped.
            let stays_open = |known: &Chunk| {
                held.info.state != holdfast_chunk::ReplicaState::Sealed
                    && held.info.length >= known.length
                    && !planted!("node.last-replica-stays-open")
            };
            if let Some(known) = known
                && known.state != ChunkState::Open
                && (!self.node.replicator.is_alone(&known.replicas) || stays_open(&known))
                && let Err(e) = self.settle_one(held, &known)
                // Somebody else is at it: the next round sees what came of it.
                && e.kind != Kind::Retry
            {
                // The others follow all the same.
                let doing = format_args!("follow the seal of chunk `{}`", known.id);
                self.node.report_failure(doing, &e);
            }
        }
        Ok(())
    }

    fn report_damage(&mut self, _now_ns: u64) -> Result<()> {
        self.node.drop_bad();
        Ok(())
    }

    /// Reads what the throttle allows, and pauses between passes; what is bad becomes a finding.
    fn scrub(&mut self, now_ns: u64) -> Result<()> {
        for (id, scrubber) in &mut self.scrubbers {
            // A round takes about a second's worth, in steps of at most one MiB.
            loop {
                let step = scrubber.step(now_ns);
                self.node.count_scrubbed(*id, &step);
                if step.finished_pass || step.wait_ns > 0 || step.bytes == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads every stored byte once, without a throttle; what is bad becomes a finding.
    pub fn scrub_everything(&mut self) {
        for own in self.node.stores.iter() {
            let mut scrubber =
                Scrubber::new(own.store.clone(), u32::MAX as u64, Default::default());
            // Each round of the clock earns the next burst.
            let mut now_ns = 0;
            loop {
                let step = scrubber.step(now_ns);
                self.node.count_scrubbed(own.id, &step);
                if step.finished_pass {
                    break;
                }
                now_ns += step.wait_ns + 1_000_000_000;
            }
        }
    }

    fn held(&self) -> Vec<Held> {
        let all = |own: &OwnStore| own.store.list();
        self.node.stores.iter().flat_map(|own| held(own, all(own))).collect()
    }

    /// Takes up the next chunks of each store: a round looks at a bounded number of them.
    fn look(&mut self) {
        let mut around = Vec::new();
        for own in self.node.stores.iter() {
            let first = self.look_next.remove(&own.id).unwrap_or(ChunkId(0));
            let list = own.store.list_from(first, LOOK_MAX.size());
            if let Some(last) = list.last().filter(|_| list.len() == LOOK_MAX.size()) {
                LOOK_MAX.cross();
                self.look_next.insert(own.id, ChunkId(last.chunk.0 + 1));
            }
            around.extend(held(own, list));
        }
        self.around = around.into();
    }
}

/// Removes a file that an entry has let go. With the last one of a deleted chunk goes what lies beside
/// it: nothing of that will be named any more, neither what was computed for a switch that never
/// came nor what was let go while this node was away. With a replica that does not count any more
/// goes what was computed from it: a later switch is another one, and its copies come from others.
/// Else there may be a copy beside it whose entry is on its way: the current file waits.
fn remove_file(node: &Node, own: &OwnStore, chunk: ChunkId, generation: Generation) -> Result<()> {
    let (is_over, is_current) = node.read_chunk(chunk, |view, _| match view.get(chunk) {
        Some(known) if known.generation == generation => {
            (known.state == ChunkState::Doomed, known.is_kept())
        }
        Some(_) => (false, false),
        None => (true, false),
    })?;
    // The current one goes last.
    let mut held = own.store.other_generations(chunk);
    held.extend(own.store.info(chunk).map(|info| info.generation));
    for at in held {
        let key = (own.id, chunk, at);
        let computed = || is_current && at > generation && node.replicator.let_go(key);
        if at != generation && (is_over || computed()) {
            gone(own.store.unlink(chunk, at))?;
            node.replicator.is_gone(key);
        }
        if at == generation {
            gone(own.store.unlink(chunk, at))?;
        }
    }
    Ok(())
}

/// What is not there need not go.
pub(crate) fn gone(removed: Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind == Kind::NotFound => Ok(()),
        other => other,
    }
}

fn held(own: &OwnStore, list: Vec<ChunkInfo>) -> impl Iterator<Item = Held> {
    list.into_iter().map(|info| Held { store_id: own.id, store: own.store.clone(), info })
}
