//! The fold: turns one topic into a view. Appends commands in envelopes, applies every entry in
//! index order, remembers sessions' results, fences old leaders, takes snapshots and boots from
//! them. Never interprets a command. Called by the services that own a view.

mod blocks;
mod boot;
mod digests;
mod envelope;
mod feed;
mod goes_on;
mod held;
mod machine;
mod member;
mod place;
mod sessions;
mod snapshot;
mod take;

pub use blocks::BLOCK_BYTES as SNAPSHOT_BLOCK_BYTES;
use envelope::{EntryKind, Envelope};
use feed::Feed;
pub use goes_on::GoesOn;
use held::Held;
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::planted;
use holdfast_env::tasks::{self, Task};
use holdfast_env::trial::Knob;
use holdfast_env::{Disk, HoldMutex, HoldRwLock};
use holdfast_log::{Done, Log, Mode, Scope};
use holdfast_wire::Call;
use machine::Machine;
use member::{Proposer, Ready, Waiting};
pub use place::{
    Context, InRows, Keeping, Kept, Marked, Page, Position, PutRow, RowsView, damaged, front,
    position,
};
pub use sessions::not_open;
pub use snapshot::Part as SnapshotPart;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of the envelope in front of each command.
pub const ENVELOPE_BYTES: usize = 40;
/// Results that one session may have outstanding (not yet acknowledged by its client).
pub const SESSION_OUTSTANDING_MAX: usize = 1024;
/// The same of a node that numbers what it commands itself: as many as it may have under way.
pub const NODE_OUTSTANDING_MAX: usize = 1 << 16;
/// Sessions of one view that are open at a time.
pub const SESSIONS_MAX: usize = 1 << 16;
/// Ended sessions that a view remembers whose sessions' ids another topic gives out: of older ones it
/// remembers that none opens.
pub const ENDED_MAX: usize = 1 << 16;

/// What a view made of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Accepted; the bytes are the command's result.
    Ok(Vec<u8>),
    /// The command changed nothing; the refusal is its result.
    Refused(Error),
    /// This build does not know the command's version: the view stops before this entry.
    UnknownVersion(String),
    /// What the view is kept in cannot be read: it stops before this entry.
    Failed(Error),
}

/// A deterministic fold of one topic. `apply` is total and reads no clock, setting or randomness:
/// the same entries give the same state and the same results, on every host and build.
pub trait View: Sized + Send + Sync + 'static {
    /// Name in snapshots; a snapshot of another view is refused.
    const NAME: &'static str;
    /// Version of the snapshot's content; a later version is refused.
    const VERSION: u32;
    /// The earliest version that [`View::restore`] reads, too; earlier ones are refused.
    const READS_FROM: u32 = Self::VERSION;
    /// Whether the view is kept where it outlives its process ([`InRows`]). One in memory is not:
    /// snapshots and the log bring it back.
    const OUTLIVES: bool = false;
    /// Whether the next snapshot waits for as many bytes of entries as the last one had: of a view that
    /// is much more than what changes it, so that each byte of the log costs at most one of a snapshot.
    const WEIGHS: bool = Self::OUTLIVES;
    /// What entries without an envelope begin with, of a topic that was written before there were
    /// any: each is a command, whole, of session 0.
    const BARE: Option<u8> = None;

    /// The view before the first entry.
    fn begin(context: &Context) -> Self;
    /// Folds the entry at `index`, once and in order. It refuses what it cannot carry out, and
    /// never fails.
    fn apply(&mut self, index: Index, command: &[u8]) -> Applied;
    /// Writes the whole state, value after value; equal states give equal bytes. The view is held
    /// for readers alone while this runs.
    fn snapshot(&self, out: &mut Writer<'_>);
    /// As `snapshot`, of a view that needs not be held for so long.
    fn snapshot_apart(&self) -> Option<Apart> {
        None
    }
    /// A command's name, for people: of one that cannot be applied.
    fn describe(command: &[u8]) -> String {
        format!("a command of {} bytes", command.len())
    }
    /// The inverse of `snapshot`.
    fn restore(context: &Context, source: &mut Source<'_>) -> Result<Self>;
    /// What was kept last.
    fn kept(&self) -> Result<Option<Kept>> {
        Ok(None)
    }
    /// Keeps what the entries since the last time have changed, with this beside it, all or nothing.
    fn keep(&mut self, _keeping: Keeping) -> Result<()> {
        Ok(())
    }
    /// Whether what was applied is to be kept before the next entry is applied.
    fn ends_page(&self) -> bool {
        false
    }
    /// Opens the place again in which the view is kept, which took no more: what was kept last may
    /// be gone from it.
    fn open_again(&self) -> Result<()> {
        Ok(())
    }

    /// The application of an entry has panicked: forgets what it has half done.
    fn give_up(&mut self, context: &Context) {
        *self = Self::begin(context);
    }
}

/// Writes a view as it was when this was made, whatever is applied meanwhile. It calls back now and
/// then, and goes no further on an error.
pub type Apart = Box<dyn FnOnce(&mut Writer<'_>, &mut dyn FnMut() -> Result<()>)>;

/// One command of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// 0 for the leader's own commands, which are not remembered.
    pub session: SessionId,
    /// A repeated (session, sequence) gets the first result.
    pub sequence: Sequence,
    /// The client has the results of all sequences below: they may be forgotten.
    pub acknowledged_below: Sequence,
    /// The view's own words.
    pub command: Vec<u8>,
    /// When it is acknowledged.
    pub mode: Mode,
}

/// A view's whole state behind one entry, as another host or an image gives it: what a snapshot's
/// header says of that entry, and what is in its blocks.
pub struct Arrival<'a, 'b> {
    /// The last entry that it holds.
    pub applied: Index,
    /// That entry's CRC32C, which the log is held against.
    pub entry_crc: u32,
    /// The digest up to it.
    pub digest: u64,
    /// The payload, from its beginning.
    pub source: &'a mut Source<'b>,
}

/// Where a fold's snapshots are kept: a directory of their own.
#[derive(Clone)]
pub struct SnapshotStore {
    /// The machine's.
    pub disk: Arc<dyn Disk>,
    /// Made where it is missing.
    pub directory: PathBuf,
}

impl SnapshotStore {
    /// The last entry that the newest good snapshot holds; 0 for none.
    pub fn newest(&self) -> Result<Index> {
        snapshot::prepare(self)?;
        Ok(snapshot::newest(self)?.unwrap_or(Index(0)))
    }

    /// Takes over another node's newest snapshot, which `fetch` gets part by part: of this index
    /// (none: the newest) from this offset on. Nothing of it counts before all was verified.
    pub fn install(
        &self,
        fetch: impl FnMut(Option<Index>, u64) -> Result<SnapshotPart>,
    ) -> Result<Index> {
        snapshot::install(self, fetch)
    }
}

/// When snapshots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldOptions {
    /// A background thread takes a snapshot after this many entries; 0 for never. With both limits
    /// 0 there is no thread: a simulation calls [`Fold::snapshot_now`].
    pub snapshot_entries: u64,
    /// The same, after this many bytes of entries; 0 for never.
    pub snapshot_bytes: u64,
}

impl Default for FoldOptions {
    fn default() -> FoldOptions {
        FoldOptions { snapshot_entries: 1_000_000, snapshot_bytes: 256 << 20 }
    }
}

/// What a fold has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldStatus {
    /// The last entry applied; 0 before the first.
    pub applied: Index,
    /// Running digest over (index, entry, result) of every entry applied.
    pub digest: u64,
    /// Index of the last claim; 0 before the first.
    pub epoch: Index,
    /// Commands of deposed leaders that were refused since the fold was opened.
    pub fenced: u64,
    /// Clients whose last results are remembered.
    pub sessions: usize,
    /// The snapshot that the fold booted from, or the last one it took.
    pub snapshot: Option<Index>,
    /// Why the fold applies no more, if it has stopped.
    pub stopped: Option<Error>,
    /// Damaged snapshots that were passed over at boot, and background snapshots that failed.
    pub reports: Vec<String>,
}

/// Entries and bytes of one read when catching up.
static PAGE_ENTRIES: Knob = Knob::new("log.page-entries", 4096, &[1, 2, 3, 7]);
static PAGE_BYTES: Knob = Knob::new("log.page-bytes", 1 << 20, &[1, 100, 300]);
/// Reports that a fold keeps; older ones have been seen or never will be.
const REPORTS_MAX: usize = 16;

/// A topic, folded.
pub struct Fold<V: View> {
    shared: Arc<Shared<V>>,
    /// The one that takes snapshots, and the one that `feed` is for.
    threads: Mutex<Vec<Task>>,
}

struct Shared<V> {
    log: Arc<dyn Log>,
    topic: String,
    store: SnapshotStore,
    options: FoldOptions,
    role: Role,
    /// The log was seen to hold what the snapshot that the fold booted from holds.
    verified: AtomicBool,
    /// A member without a thread of its own is called by the log, or will be.
    follows: AtomicBool,
    /// Nothing is applied or proposed any more.
    ended: AtomicBool,
    /// The claim that this fold proposes under; set once, before it is handed out.
    epoch: AtomicU64,
    /// Readers share it; whoever delivers an acknowledgement applies under it, in index order.
    machine: RwLock<Machine<V>>,
    /// Entries and bytes applied since the last snapshot: counted without a lock, on every entry.
    entries_since: AtomicU64,
    bytes_since: AtomicU64,
    /// See [`View::WEIGHS`].
    worth_bytes: AtomicU64,
    /// Never held while anything is called; locked after `machine` where both are needed.
    waiting: Mutex<Waiting>,
    /// Of a fold with a thread of its own: nobody else applies then.
    feed: Option<Feed>,
    background: Mutex<Background>,
    /// The snapshot thread waits here for `due` or `stopping`.
    wake: Condvar,
    /// Held while a snapshot is taken: one at a time.
    snapshotting: Mutex<()>,
}

/// What a fold does beside applying.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Proposes, and applies what it has proposed: nobody else appends, or its claim ends this one.
    Owner,
    /// Applies what others append.
    Follower,
    /// Both.
    Member,
}

struct Background {
    due: bool,
    stopping: bool,
    snapshot: Option<Index>,
    /// The older of the two newest snapshots, once this fold has taken one.
    covered: Option<Index>,
    reports: Vec<String>,
}

impl Background {
    /// A snapshot came to nothing; the next one that is due is tried. A disk without room is no
    /// report, which would stay when there is room again: who asks how the node is hears of it.
    fn failed(&mut self, e: Error) {
        if e.kind != Kind::Full || planted!("log.full-disk-stays-a-finding") {
            self.report(e.message);
        }
    }

    fn report(&mut self, what: String) {
        if self.reports.contains(&what) {
            return;
        }
        let excess = (self.reports.len() + 1).saturating_sub(REPORTS_MAX);
        self.reports.drain(..excess);
        self.reports.push(what);
    }
}

impl<V: View> Fold<V> {
    /// Boots from the newest valid snapshot and the log; proposes under the claim found there.
    pub fn open(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
    ) -> Result<Fold<V>> {
        let booted = boot::boot(&context.into(), &snapshots)?;
        Fold::boot(log, booted, snapshots, options, Role::Owner, None)
    }

    /// As [`Fold::open`], then appends a claim: commands of earlier leaders that follow it in the
    /// log are refused as `Fenced`, by this fold and every other.
    pub fn open_as_leader(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
    ) -> Result<Fold<V>> {
        let fold = Fold::open(log, context, snapshots, options)?;
        let claimed = Arc::new(Mutex::new(None));
        let slot = claimed.clone();
        let done = Box::new(move |result: Result<(Index, Vec<u8>)>| {
            *slot.held() = Some(result);
        });
        fold.append(EntryKind::Claim, fold.epoch(), Request::internal(Mode::Synced), done);
        fold.shared.log.sync(&fold.shared.topic)?;
        let claim = claimed.held().take();
        let (index, _) = claim.unwrap_or_else(|| {
            Err(Error::bug(format!(
                "claim topic `{}`: the log lost the claim's result",
                fold.shared.topic
            )))
        })?;
        fold.shared.epoch.store(index.0, Ordering::Release);
        Ok(fold)
    }

    /// As [`Fold::open`], but applies what others append, when durable, and proposes nothing.
    pub fn open_follower(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
    ) -> Result<Fold<V>> {
        let booted = boot::boot(&context.into(), &snapshots)?;
        let fold = Fold::boot(log, booted, snapshots, options, Role::Follower, None)?;
        member::follow(Arc::downgrade(&fold.shared));
        Ok(fold)
    }

    fn boot(
        log: Arc<dyn Log>,
        booted: boot::Booted<V>,
        store: SnapshotStore,
        options: FoldOptions,
        role: Role,
        feed: Option<Feed>,
    ) -> Result<Fold<V>> {
        let topic = &booted.machine.context.topic.clone();
        log.create(topic)?;
        if role != Role::Member {
            boot::check_log(&*log, topic, Some(log.info(topic)?), &booted.machine)?;
        }
        let shared = Arc::new(Shared {
            log,
            topic: topic.clone(),
            store,
            options,
            role,
            verified: AtomicBool::new(role != Role::Member),
            follows: AtomicBool::new(feed.is_none() && role != Role::Owner),
            ended: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            machine: RwLock::new(booted.machine),
            entries_since: AtomicU64::new(0),
            bytes_since: AtomicU64::new(0),
            worth_bytes: AtomicU64::new(0),
            waiting: Mutex::default(),
            feed,
            background: Mutex::new(Background {
                due: false,
                stopping: false,
                snapshot: booted.snapshot,
                covered: None,
                reports: booted.reports,
            }),
            wake: Condvar::new(),
            snapshotting: Mutex::new(()),
        });
        if role != Role::Member {
            let scope = if role == Role::Owner { Scope::Written } else { Scope::Durable };
            shared.catch_up(&mut shared.write(), None, scope)?;
            shared.epoch.store(shared.read().epoch.0, Ordering::Release);
        }
        let mut threads = Vec::new();
        if options.snapshot_entries > 0 || options.snapshot_bytes > 0 {
            let runs = shared.clone();
            threads.push(tasks::spawn("fold-snapshot", move || runs.run_snapshots())?);
        }
        Ok(Fold { shared, threads: Mutex::new(threads) })
    }

    /// Appends a command; `done` gets its index and result after it was applied. An `Ordered`
    /// request with nothing before it is applied, and `done` called, before this returns. A
    /// leader's carries its claim, a member's none: no later claim refuses it.
    pub fn propose(&self, request: Request, done: Done<(Index, Vec<u8>)>) {
        self.append(EntryKind::Command, self.epoch(), request, done);
    }

    /// As [`Fold::propose`] for several, all appended as the mode says: in one append, each an entry
    /// of its own. Each `done` hears what came of its request.
    pub fn propose_all(&self, requests: Vec<(Request, Proposer)>, mode: Mode) {
        self.append_all(EntryKind::Command, self.epoch(), requests.into_iter(), mode);
    }

    /// The claim that the fold proposes under; 0 for none.
    fn epoch(&self) -> Index {
        Index(self.shared.epoch.load(Ordering::Acquire))
    }

    /// Opens a session for a client. Its id is the index of the entry that opens it.
    pub fn open_session(&self, mode: Mode, done: Done<SessionId>) {
        let done = move |result: Result<(Index, Vec<u8>)>| {
            done(result.map(|(index, _)| SessionId(index.0)));
        };
        self.append(EntryKind::OpenSession, self.epoch(), Request::internal(mode), Box::new(done));
    }

    /// Ends a session and forgets its results; later requests of it are refused.
    pub fn end_session(&self, session: SessionId, mode: Mode, done: Done<()>) {
        let request = Request { session, ..Request::internal(mode) };
        let done = move |result: Result<(Index, Vec<u8>)>| done(result.map(|_| ()));
        self.append(EntryKind::EndSession, self.epoch(), request, Box::new(done));
    }

    /// The first answer to a request that was applied and not yet acknowledged.
    pub fn known(&self, session: SessionId, sequence: Sequence) -> Option<Result<Vec<u8>>> {
        self.shared.read().sessions.known(session, sequence).cloned()
    }

    /// Whether a session is open, and the entry up to which that is known.
    pub fn has_session(&self, session: SessionId) -> (bool, Index) {
        let machine = self.shared.read();
        (machine.sessions.is_open(session), machine.applied)
    }

    /// Every open session with a mark that changes whenever it is used.
    pub fn sessions(&self) -> Vec<(SessionId, u64)> {
        self.shared.read().sessions.marks()
    }

    fn append(&self, kind: EntryKind, epoch: Index, request: Request, done: Proposer) {
        let mode = request.mode;
        self.append_all(kind, epoch, std::iter::once((request, done)), mode);
    }

    fn append_all(
        &self,
        kind: EntryKind,
        epoch: Index,
        requests: impl ExactSizeIterator<Item = (Request, Proposer)>,
        mode: Mode,
    ) {
        let shared = &self.shared;
        if let Err(e) = shared.admit(kind, epoch) {
            return requests.for_each(|(_, done)| done(Err(e.clone())));
        }
        let count = requests.len();
        let (mut entries, mut own) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (request, done) in requests {
            let Request { session, sequence, acknowledged_below, command, .. } = request;
            // Its entry may be applied while the append is still under way.
            let flight = shared.depart();
            let nobodys = session.0 == 0 && kind != EntryKind::EndSession;
            let numbered = flight.filter(|_| nobodys).and_then(|flight| shared.numbered(flight));
            let (author, sequence, acknowledged_below) = match numbered {
                Some((node, number, below)) => (Some(node), Sequence(number), Sequence(below)),
                None => (None, sequence, acknowledged_below),
            };
            let envelope = Envelope { kind, epoch, session, author, sequence, acknowledged_below };
            let entry = envelope.encode(&command);
            // A thread of the fold's own reads it from the log.
            let kept = if shared.feed.is_some() { Vec::new() } else { entry.clone() };
            own.push((flight, kept, done));
            entries.push(entry);
        }
        let runs = shared.clone();
        let acknowledged = move |indices: Result<Indices>| {
            let mut ready = Vec::new();
            for (at, (flight, entry, done)) in own.into_iter().enumerate() {
                match &indices {
                    Ok(indices) => {
                        let at = if planted!("view.batch-at-one-index") { 0 } else { at };
                        let index = indices.get(at).expect("an index an entry");
                        let of_one = runs.acknowledged(flight, index, &entry, done);
                        // As a rule there is one alone.
                        if ready.is_empty() { ready = of_one } else { ready.extend(of_one) }
                    }
                    Err(e) => {
                        runs.land(flight);
                        ready.push(Ready::Proposer(done, Err(e.clone())));
                    }
                }
            }
            // The last owner of a log must not be the log's own thread.
            drop(runs);
            ready.into_iter().for_each(Ready::call);
        };
        shared.log.append(&shared.topic, entries, mode, Box::new(acknowledged));
    }

    /// Applies nothing any more, and ends the fold's threads; what was not applied is told to be
    /// asked again. What was applied can be read.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.background().stopping = true;
        self.shared.wake.notify_all();
        self.shared.feed.iter().for_each(Feed::end);
        let threads = std::mem::take(&mut *self.threads.held());
        // A panic there has been printed; the log holds everything. A proposer that hears its result
        // may be the last owner: no thread waits for itself.
        threads.into_iter().filter(|thread| !thread.is_current()).for_each(Task::join);
        self.shared.close();
    }

    /// Reads the view at the index applied last, under a shared lock. Fails once it has stopped.
    pub fn read<R>(&self, f: impl FnOnce(&V, Index) -> R) -> Result<R> {
        let machine = self.shared.read();
        match &machine.stopped {
            Some(e) => Err(e.clone()),
            None => Ok(f(&machine.view, machine.applied)),
        }
    }

    /// As [`Fold::read`], also of a fold that has stopped: what it knew then. For what must not be
    /// forgotten with it, not for answers.
    pub fn read_last<R>(&self, f: impl FnOnce(&V) -> R) -> R {
        f(&self.shared.read().view)
    }

    /// Also of a fold that has stopped.
    pub fn status(&self) -> FoldStatus {
        let machine = self.shared.read();
        let background = self.shared.background();
        FoldStatus {
            applied: machine.applied,
            digest: machine.digest,
            epoch: machine.epoch,
            fenced: machine.fenced,
            sessions: machine.sessions.len(),
            snapshot: background.snapshot,
            stopped: machine.stopped.clone(),
            reports: background.reports.clone(),
        }
    }
}

impl<V: View> Drop for Fold<V> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Request {
    /// A client's command, as its message is numbered.
    pub fn of(call: Call, command: Vec<u8>, mode: Mode) -> Request {
        let Call { session, sequence, acknowledged_below } = call;
        Request { session, sequence, acknowledged_below, command, mode }
    }

    fn internal(mode: Mode) -> Request {
        Request::of(Call::default(), Vec::new(), mode)
    }
}

impl<V: View> Shared<V> {
    fn read(&self) -> Held<RwLockReadGuard<'_, Machine<V>>> {
        Held::of(&raw const self.machine as usize, || self.machine.held_shared())
    }

    fn write(&self) -> Held<RwLockWriteGuard<'_, Machine<V>>> {
        Held::of(&raw const self.machine as usize, || self.machine.held_alone())
    }

    fn background(&self) -> MutexGuard<'_, Background> {
        self.background.held()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.held()
    }

    /// Refuses early what `apply` would refuse anyway.
    fn admit(&self, kind: EntryKind, epoch: Index) -> Result<()> {
        if self.role == Role::Follower {
            return Err(Error::read_only(format!(
                "propose to view `{}`: it only follows topic `{}`: ask the leader",
                V::NAME,
                self.topic
            )));
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(member::closed());
        }
        if self.feed.is_some() {
            return self.admit_fed(kind, epoch);
        }
        let machine = self.read();
        match &machine.stopped {
            Some(e) => Err(e.clone()),
            None if !kind.claims() && machine.is_fenced(epoch) => {
                Err(machine::fenced(epoch, machine.epoch))
            }
            None => Ok(()),
        }
    }

    /// Applies an entry that this fold appended. Acknowledgements come in order, so whatever lies
    /// between the last one and this was appended by somebody else, and is read from the log.
    fn apply_own(&self, machine: &mut Machine<V>, index: Index, entry: &[u8]) -> Result<Vec<u8>> {
        if machine.applied.0 + 1 < index.0 && !planted!("log.others-entries-not-applied") {
            self.catch_up(machine, Some(index), Scope::Written)?;
        }
        let outcome = machine.apply(index, entry);
        machine.keep().map_err(member::in_doubt)?;
        self.count(1, entry.len() as u64);
        outcome
    }

    /// Takes note of an entry that the machine has applied, for a member.
    fn applied(&self, index: Index, bytes: usize, outcome: &Result<Vec<u8>>) {
        self.waiting().applied(index, outcome);
        self.count(1, bytes as u64);
    }

    /// Applies from the log everything behind what was applied, up to `before`.
    fn catch_up(
        &self,
        machine: &mut Machine<V>,
        before: Option<Index>,
        scope: Scope,
    ) -> Result<()> {
        while self.apply_page(machine, before, scope)? {}
        Ok(())
    }

    /// As [`Shared::catch_up`], for a page of entries, which is kept as one; false when there is
    /// none.
    fn apply_page(
        &self,
        machine: &mut Machine<V>,
        before: Option<Index>,
        scope: Scope,
    ) -> Result<bool> {
        let from = Index(machine.applied.0 + 1);
        if before.is_some_and(|before| from >= before) || machine.stopped.is_some() {
            return Ok(false);
        }
        let page = self.log.read(&self.topic, from, PAGE_ENTRIES.size(), PAGE_BYTES.size(), scope);
        let page = page.inspect_err(|e| {
            // An entry that cannot be read cannot be skipped either.
            machine.stopped.get_or_insert(e.clone().context("fold"));
        })?;
        if page.len() == PAGE_ENTRIES.size() {
            PAGE_ENTRIES.cross();
        }
        if page.iter().map(|(_, entry)| entry.len()).sum::<usize>() >= PAGE_BYTES.size() {
            PAGE_BYTES.cross();
        }
        let mut applied = Vec::with_capacity(page.len());
        for (index, entry) in &page {
            if before.is_some_and(|before| *index >= before) {
                break;
            }
            let outcome = machine.apply(*index, entry);
            if machine.stopped.is_some() {
                break;
            }
            applied.push((*index, entry.len(), outcome));
            if machine.view.ends_page() {
                break;
            }
        }
        if applied.is_empty() {
            return Ok(false);
        }
        // Nobody hears of a result before readers see what it is the result of.
        machine.keep()?;
        for (index, bytes, outcome) in &applied {
            self.applied(*index, *bytes, outcome);
        }
        Ok(true)
    }
}
