//! A fold as a member of a cluster: it follows its topic like everybody and proposes to it, so an
//! own entry may be applied before its append is acknowledged, or long after. Here is who waits
//! for what, and how a member follows. Nothing blocks or spins: the log calls when there is more.

use super::envelope::EntryKind;
use super::machine::Machine;
use super::place::Context;
use super::sessions::Outcome;
use super::{Arrival, Fold, FoldOptions, Request, Role, Shared, SnapshotStore, View, boot};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Index, NodeId, Term};
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_log::{Done, Log, Mode, Scope};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Results kept for proposals whose append is not acknowledged yet, and their bytes. A proposer
/// whose result had to go is told to ask again, which its session answers.
const KEPT_MAX: usize = 1 << 16;
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Entries that a life of a node may number, for each entry that the cluster topic has meanwhile: a
/// controller alone gives it two a second.
const NUMBERS_BITS: u32 = 24;

/// What is called with an entry's index and result.
pub(super) type Proposer = Done<(Index, Vec<u8>)>;

/// Who waits for the fold.
#[derive(Default)]
pub(super) struct Waiting {
    /// Appends under way, by number, each with what was applied when it began: its entry lies
    /// behind that.
    flights: BTreeMap<u64, Index>,
    flights_begun: u64,
    /// The node whose numbers flights have.
    author: Option<NodeId>,
    /// Results of entries that may belong to a flight.
    kept: BTreeMap<u64, Outcome>,
    kept_bytes: usize,
    /// Proposers whose entry is in the log and not applied yet, by its index.
    proposers: BTreeMap<u64, (u64, Proposer)>,
    /// Who wants to know when an index is reached.
    wakes: BTreeMap<(u64, u64), Done<()>>,
    wakes_asked: u64,
    /// What the machine had reached when somebody was told last.
    applied_to: Index,
    epoch: Index,
    stopped: Option<Error>,
    /// To be called once no lock is held.
    ready: Vec<Ready>,
    /// The fold's owner is gone.
    closed: bool,
}

pub(super) enum Ready {
    Proposer(Proposer, Result<(Index, Vec<u8>)>),
    Wake(Done<()>, Result<()>),
}

impl Ready {
    pub fn call(self) {
        match self {
            Ready::Proposer(done, result) => done(result),
            Ready::Wake(done, result) => done(result),
        }
    }
}

impl Waiting {
    fn depart(&mut self, applied: Index) -> u64 {
        self.flights_begun += 1;
        self.flights.insert(self.flights_begun, applied);
        self.flights_begun
    }

    fn land(&mut self, flight: u64) {
        self.flights.remove(&flight);
        let behind = self.flights.values().next().map_or(u64::MAX, |applied| applied.0);
        while self.kept.first_key_value().is_some_and(|(index, _)| *index <= behind) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, outcome)) = self.kept.pop_first() {
            self.kept_bytes -= outcome_bytes(&outcome);
        }
    }

    /// An entry was applied.
    pub fn applied(&mut self, index: Index, outcome: &Outcome) {
        self.applied_to = index;
        if let Some((flight, done)) = self.proposers.remove(&index.0) {
            let result = outcome.clone().map(|bytes| (index, bytes));
            self.ready.push(Ready::Proposer(done, result));
            return self.land(flight);
        }
        if self.flights.is_empty() {
            return;
        }
        self.kept_bytes += outcome_bytes(outcome);
        // One of before is there if the view was kept anew.
        let before = self.kept.insert(index.0, outcome.clone());
        self.kept_bytes -= before.as_ref().map_or(0, outcome_bytes);
        while self.kept.len() > KEPT_MAX || self.kept_bytes > KEPT_BYTES_MAX {
            self.forget_first();
        }
    }

    /// The entry of a flight is in the log. Its proposer is called now, if it is applied or never
    /// will be, or when it is.
    pub fn arrive(&mut self, flight: u64, index: Index, done: Proposer) -> Option<Ready> {
        let result = match &self.stopped {
            _ if index <= self.applied_to => self.take_kept(index).map(|result| (index, result)),
            Some(e) => Err(in_doubt(e.clone())),
            None if self.closed => Err(closed()),
            None => {
                self.proposers.insert(index.0, (flight, done));
                return None;
            }
        };
        self.land(flight);
        Some(Ready::Proposer(done, result))
    }

    pub fn stopped(&self) -> Option<Error> {
        self.stopped.clone()
    }

    pub fn epoch(&self) -> Index {
        self.epoch
    }

    /// The outcome of an own entry that was applied before its append was acknowledged.
    fn take_kept(&mut self, index: Index) -> Outcome {
        let kept = self.kept.remove(&index.0);
        self.kept_bytes -= kept.as_ref().map_or(0, outcome_bytes);
        kept.unwrap_or_else(|| {
            Err(Error::retry(format!(
                "entry {index} was applied, and its result is not kept any more: send the request \
                 again"
            )))
        })
    }
}

/// Why a proposer is not answered whose entry is in the log: the view may go on and apply it.
pub(super) fn in_doubt(e: Error) -> Error {
    match e.kind {
        Kind::Full => Error::retry(e.message),
        _ => e,
    }
}

pub(super) fn closed() -> Error {
    Error::retry("the view was closed: ask again")
}

fn outcome_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Ok(bytes) => bytes.len(),
        Err(e) => e.message.len(),
    }
}

impl<V: View> Fold<V> {
    /// Boots from the newest valid snapshot without asking the log, then follows it: proves that
    /// it is the log that the snapshot was taken of before it applies the first entry. Proposals
    /// carry no epoch ([`Fold::propose`]) or a claim's ([`Fold::propose_as`]). It does not trim by
    /// itself, see [`Fold::trim`].
    pub fn open_member(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
    ) -> Result<Fold<V>> {
        Fold::open_member_from(log, context, snapshots, options, None)
    }

    /// As [`Fold::open_member`], with the state that arrives from elsewhere, if any does, instead of
    /// what was kept here.
    pub fn open_member_from(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<Fold<V>> {
        let booted = boot::boot_from(&context.into(), &snapshots, arrival)?;
        let fold = Fold::boot(log, booted, snapshots, options, Role::Member, None)?;
        follow(Arc::downgrade(&fold.shared));
        Ok(fold)
    }

    /// Appends a claim for the proposer's term as leader. `done` gets the epoch once it is applied: from
    /// there on commands under earlier claims are refused as `Fenced`, by every fold. So is the claim
    /// itself where the topic was claimed for a later term.
    pub fn claim(&self, term: Term, done: Done<Index>) {
        let done = move |result: Result<(Index, Vec<u8>)>| done(result.map(|(index, _)| index));
        let epoch = self.shared.read().epoch;
        let request = Request { command: term.to_bytes(), ..Request::internal(Mode::Synced) };
        self.append(EntryKind::Term, epoch, request, Box::new(done));
    }

    /// As [`Fold::propose`], for a leader's command: refused as `Fenced` once a later claim than
    /// `epoch` is in front of it.
    pub fn propose_as(&self, epoch: Index, request: Request, done: Done<(Index, Vec<u8>)>) {
        self.append(EntryKind::Command, epoch, request, done);
    }

    /// Stops the view: its owner has found that what it holds must not be served or lent. The first
    /// reason stays.
    pub fn stop(&self, why: Error) {
        let mut machine = self.shared.write();
        machine.stopped.get_or_insert(why);
        machine.withdrawn = true;
        let ready = self.shared.settle(&machine);
        drop(machine);
        ready.into_iter().for_each(Ready::call);
    }

    /// Goes on with a view that stopped since the place in which it is kept took no more: opens that
    /// again, and applies once more what it lost. Whether it did; an error says that the place
    /// takes nothing yet.
    pub fn resume(&self) -> Result<bool> {
        let mut machine = self.shared.write();
        if !machine.held_up || machine.withdrawn || self.shared.ended.load(Ordering::Acquire) {
            return Ok(false);
        }
        machine.view.open_again()?;
        let before = machine.applied;
        let context = machine.context.clone();
        *machine = boot::boot::<V>(&context, &self.shared.store)?.machine;
        self.shared.verified.store(false, Ordering::Relaxed);
        if machine.applied < before {
            self.shared.advance(&mut machine, Index(before.0 + 1));
        }
        if machine.applied < before && machine.stopped.is_none() {
            // Its readers would see less than before.
            machine.stopped = Some(Error::retry(format!(
                "resume view `{}`: topic `{}` has entry {before} not yet",
                V::NAME,
                self.shared.topic
            )));
            machine.held_up = true;
        }
        let resumed = machine.stopped.clone().map_or(Ok(true), Err);
        let ready = self.shared.settle(&machine);
        let follows = resumed.is_err()
            || self.shared.feed.is_some()
            || self.shared.follows.swap(true, Ordering::AcqRel);
        drop(machine);
        ready.into_iter().for_each(Ready::call);
        match &self.shared.feed {
            Some(feed) => feed.tell(Ok(())),
            None if follows => {}
            None => follow(Arc::downgrade(&self.shared)),
        }
        resumed
    }

    /// From here on what this fold commands in nobody's session is numbered in a node's name, so that
    /// the view knows a copy of it, and one that comes after its answer: an engine of the log may
    /// deliver either. Numbers of a life of the node are behind those of its lives before. One fold of
    /// a topic and node alone may do this.
    pub fn number_as(&self, node: NodeId, incarnation: Index) {
        assert!(incarnation.0 < 1 << 40, "incarnation {incarnation} leaves no numbers");
        let answered = self.shared.read().sessions.answered_below(node);
        let mut waiting = self.shared.waiting();
        let begun = waiting.flights_begun.max(answered).max(incarnation.0 << NUMBERS_BITS);
        (waiting.author, waiting.flights_begun) = (Some(node), begun);
    }

    /// The last entry applied.
    pub fn applied(&self) -> Index {
        self.shared.read().applied
    }

    /// The last entry applied and the CRC32C of its bytes; also of a fold that has stopped.
    pub fn reached(&self) -> (Index, u32) {
        let machine = self.shared.read();
        (machine.applied, machine.entry_crc)
    }

    /// Calls `done` once the entry at `index` is applied, at once if it is; with an error if it
    /// never will be.
    pub fn wake_at(&self, index: Index, done: Done<()>) {
        let machine = self.shared.read();
        if machine.applied >= index {
            drop(machine);
            return done(Ok(()));
        }
        if let Some(e) = machine.stopped.clone() {
            drop(machine);
            return done(Err(e));
        }
        let mut waiting = self.shared.waiting();
        waiting.wakes_asked += 1;
        let key = (index.0, waiting.wakes_asked);
        waiting.wakes.insert(key, done);
    }

    /// Up to where two verified snapshots of this fold cover the log; none before it has taken
    /// one. What lies before that, on every node, may be trimmed.
    pub fn covered(&self) -> Option<Index> {
        self.shared.background().covered
    }

    /// Gives up the log's entries below `before`. For the leader, which knows what every node's
    /// snapshots cover; the entry at a snapshot itself must stay, a boot compares it.
    pub fn trim(&self, before: Index) -> Result<()> {
        self.shared.log.trim(&self.shared.topic, before)
    }
}

impl<V: View> Shared<V> {
    /// An append begins; its number, if anybody else could apply its entry.
    pub(super) fn depart(&self) -> Option<u64> {
        if self.role != Role::Member {
            return None;
        }
        if self.feed.is_some() {
            let mut waiting = self.waiting();
            let applied = waiting.applied_to;
            return Some(waiting.depart(applied));
        }
        let applied = self.read().applied;
        Some(self.waiting().depart(applied))
    }

    /// Whose this flight is, its number, and below which all others of the node have landed.
    pub(super) fn numbered(&self, flight: u64) -> Option<(NodeId, u64, u64)> {
        let waiting = self.waiting();
        let below = waiting.flights.first_key_value().map_or(flight, |(first, _)| *first);
        Some((waiting.author?, flight, below))
    }

    /// The append failed.
    pub(super) fn land(&self, flight: Option<u64>) {
        if let Some(flight) = flight {
            self.waiting().land(flight);
        }
    }

    /// An own entry is in the log at `index`. Its result goes to `done`: now, if it is applied or
    /// can be, or when the follower has come so far. Gives who is to be called.
    pub(super) fn acknowledged(
        &self,
        flight: Option<u64>,
        index: Index,
        entry: &[u8],
        done: Proposer,
    ) -> Vec<Ready> {
        if let (Some(_), Some(flight)) = (&self.feed, flight) {
            return self.acknowledged_fed(flight, index, done);
        }
        let mut machine = self.write();
        let Some(flight) = flight else {
            let outcome = self.apply_own(&mut machine, index, entry);
            self.waiting().ready.push(Ready::Proposer(done, outcome.map(|result| (index, result))));
            return self.settle(&machine);
        };
        let mut waiting = self.waiting();
        if index <= machine.applied {
            let outcome = waiting.take_kept(index);
            waiting.land(flight);
            waiting.ready.push(Ready::Proposer(done, outcome.map(|result| (index, result))));
            drop(waiting);
        } else {
            waiting.proposers.insert(index.0, (flight, done));
            drop(waiting);
            let next = machine.applied.0 + 1 == index.0;
            if next && machine.stopped.is_none() && self.verified.load(Ordering::Relaxed) {
                let outcome = machine.apply(index, entry);
                if machine.keep().is_ok() {
                    self.applied(index, entry.len(), &outcome);
                }
            } else {
                // Never over what others appended: it is read from the log, and then this, too.
                self.advance(&mut machine, Index(index.0 + 1));
            }
        }
        self.settle(&machine)
    }

    /// Applies what the log has behind what was applied, below `before`.
    fn advance(&self, machine: &mut Machine<V>, before: Index) {
        if self.is_verified(machine) {
            // A failure stops the machine.
            let _ = self.catch_up(machine, Some(before), Scope::Written);
        }
    }

    /// Applies one page.
    pub(super) fn step(&self, machine: &mut Machine<V>, scope: Scope) -> Step {
        // A failure stops the machine.
        let moved = self.is_verified(machine) && self.apply_page(machine, None, scope) == Ok(true);
        match &machine.stopped {
            _ if moved => Step::More,
            Some(_) => {
                self.follows.store(false, Ordering::Release);
                if machine.held_up { Step::HeldUp } else { Step::Stopped }
            }
            // The entry that proves the log comes first: what lies behind it may have no room beside it
            // before it was looked at.
            None if !self.verified.load(Ordering::Relaxed) => Step::Idle(machine.applied),
            None => Step::Idle(Index(machine.applied.0 + 1)),
        }
    }

    /// Whether this is the log that the machine was made of, and says so; if it is another one, the
    /// machine stops.
    pub(super) fn is_verified(&self, machine: &mut Machine<V>) -> bool {
        if machine.stopped.is_none() && !self.verified.load(Ordering::Relaxed) {
            let info = self.log.info(&self.topic).ok();
            match boot::check_log(&*self.log, &self.topic, info, machine) {
                Ok(true) => self.verified.store(true, Ordering::Relaxed),
                // The entry is not here yet; it comes before the next one does.
                Ok(false) => return false,
                Err(e) => machine.stopped = Some(e),
            }
        }
        machine.stopped.is_none()
    }

    /// Takes out who is to be called; under the machine's lock, so that nobody is overlooked.
    pub(super) fn settle(&self, machine: &Machine<V>) -> Vec<Ready> {
        let mut waiting = self.waiting();
        (waiting.applied_to, waiting.epoch) = (machine.applied, machine.epoch);
        waiting.stopped = machine.stopped.clone();
        let closed = waiting.closed.then(closed);
        while let Some(first) = waiting.wakes.first_entry()
            && first.key().0 <= machine.applied.0
        {
            let done = first.remove();
            waiting.ready.push(Ready::Wake(done, Ok(())));
        }
        if let Some(e) = machine.stopped.clone().or(closed) {
            for (_, done) in std::mem::take(&mut waiting.wakes) {
                waiting.ready.push(Ready::Wake(done, Err(e.clone())));
            }
            for (_, (flight, done)) in std::mem::take(&mut waiting.proposers) {
                waiting.ready.push(Ready::Proposer(done, Err(in_doubt(e.clone()))));
                waiting.land(flight);
            }
        }
        std::mem::take(&mut waiting.ready)
    }

    pub(super) fn close(&self) {
        let machine = self.read();
        self.waiting().closed = true;
        let ready = self.settle(&machine);
        drop(machine);
        ready.into_iter().for_each(Ready::call);
    }

    /// The log will not call again.
    pub(super) fn tail_ended(&self, e: Error) {
        let mut machine = self.write();
        // A log that was closed or does not take writes any more leaves a view that can be read.
        if self.role != Role::Member || matches!(e.kind, Kind::Corrupt | Kind::Fenced) {
            machine.stopped.get_or_insert(e);
        } else {
            self.background().report(e.message);
        }
        let ready = self.settle(&machine);
        drop(machine);
        ready.into_iter().for_each(Ready::call);
    }

    /// Where the log is another one for the time being, and that alone has stopped the view: has it
    /// say when the right one is there again. Whether it will.
    pub(super) fn hear_again(self: &Arc<Self>) -> bool {
        if !is_away(&self.read()) {
            return false;
        }
        let weak = Arc::downgrade(self);
        let wake = move |right: Result<()>| {
            if let Some(shared) = weak.upgrade() {
                shared.log_is_back(right);
            }
        };
        self.log.recovers(&self.topic, Box::new(wake));
        true
    }

    /// Goes on where the view stopped, if the log is the right one again.
    fn log_is_back(self: &Arc<Self>, right: Result<()>) {
        let mut machine = self.write();
        let ends = right.as_ref().err().is_some_and(|e| e.kind != Kind::Corrupt);
        if ends || !is_away(&machine) || self.ended.load(Ordering::Acquire) {
            return;
        }
        machine.stopped = right.err();
        let goes_on = machine.stopped.is_none();
        self.verified.store(false, Ordering::Relaxed);
        self.follows.store(goes_on && self.feed.is_none(), Ordering::Release);
        let ready = self.settle(&machine);
        drop(machine);
        ready.into_iter().for_each(Ready::call);
        match &self.feed {
            Some(feed) => feed.tell(Ok(())),
            None if goes_on => follow(Arc::downgrade(self)),
            None => {}
        }
    }
}

/// Stopped for a log that is another one, and nothing else.
pub(super) fn is_away<V>(machine: &Machine<V>) -> bool {
    let away = machine.stopped.as_ref().is_some_and(|e| e.is(Reason::OtherLog));
    away && !machine.withdrawn
}

/// What came of applying a page.
pub(super) enum Step {
    More,
    /// There is nothing more; the next entry will have this index.
    Idle(Index),
    /// Until [`Fold::resume`].
    HeldUp,
    Stopped,
}

/// Applies what is durable, page by page, so that readers come between two, then asks the log to
/// call again when there is more.
pub(super) fn follow<V: View>(weak: Weak<Shared<V>>) {
    let from = loop {
        let Some(shared) = weak.upgrade() else { return };
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        let mut machine = shared.write();
        let step = shared.step(&mut machine, Scope::Durable);
        let ready = shared.settle(&machine);
        drop(machine);
        // Nothing is owned here while others are called: see `Fold::append`.
        drop(shared);
        ready.into_iter().for_each(Ready::call);
        match step {
            Step::More => {}
            Step::Idle(from) => break from,
            Step::HeldUp => return,
            Step::Stopped => {
                if let Some(shared) = weak.upgrade() {
                    shared.hear_again();
                }
                return;
            }
        }
    };
    let Some(shared) = weak.upgrade() else { return };
    let (log, topic) = (shared.log.clone(), shared.topic.clone());
    drop(shared);
    let wake = move |result: Result<()>| match (result, weak.upgrade()) {
        (Ok(()), Some(_)) => follow(weak),
        (Err(e), Some(shared)) => {
            shared.tail_ended(e);
            shared.hear_again();
        }
        (_, None) => {}
    };
    log.tail(&topic, from, Box::new(wake));
}
