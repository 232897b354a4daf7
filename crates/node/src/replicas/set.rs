//! The writer of one open chunk with several replicas: creates it on all of them, appends to all
//! in parallel, answers in order once all have it. The first failure, or a replica slower than
//! the writer's limit, ends the set; the chunk is then sealed at what was acknowledged and the
//! rest goes to a new one. Never retries: nobody knows whether a lost append arrived.
//!
//! **Invariant:** an append is answered only when every replica has it as durable as its class
//! says, and after those before it.

use super::window::Window;
use super::{Events, Replicator, Shared, Target, WRITER_LIMIT_MS};
use holdfast_base::ids::{ChunkId, Durability, Slot, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::{ChunkSpec, Done, Needle};
use holdfast_env::HoldMutex;
use holdfast_env::net::SharedBody;
use holdfast_wire::peer;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// What an append may take beside its bytes, hint and checksums: a header and padding to a sector,
/// counted generously because it only decides when a chunk is called full.
const APPEND_OVERHEAD_BYTES: u64 = 8192;

struct Replica {
    store: StoreId,
    target: Target,
}

/// How an append is answered.
enum Answer {
    Raw(Done<u64>),
    Needle(Done<Slot>),
}

impl Answer {
    /// `end` is where the chunk ends behind the append.
    fn send(self, end: Result<u64>) {
        match self {
            Answer::Raw(done) => done(end),
            Answer::Needle(done) => done(end.map(|end| Slot(end as u32 - 1))),
        }
    }
}

/// An append that is about to be sent to every replica.
struct Outgoing {
    number: u64,
    at: u64,
    needle: Option<Needle>,
    body: SharedBody,
    crcs: Vec<u32>,
    durability: Durability,
}

struct State {
    window: Window,
    /// Of the window's appends, oldest first, with the bytes each may take.
    waiting: VecDeque<(Answer, u64)>,
    waiting_bytes: u64,
    /// Appends to send; one caller at a time sends, so that every replica gets them in order.
    outgoing: VecDeque<Outgoing>,
    sending: bool,
    /// Answers to give; one caller at a time gives them, in order and without the lock.
    ready: VecDeque<(Answer, Result<u64>)>,
    answering: bool,
    /// What each peer last said it can take. A store of this node is asked.
    room: Vec<u64>,
    /// Replicas that hold the chunk, as far as is known.
    holds: Vec<bool>,
    limit_armed: bool,
    /// Why it ended.
    cause: Option<Error>,
}

/// One open chunk, written through this node.
pub struct ReplicaSet {
    with: Arc<Replicator>,
    spec: ChunkSpec,
    replicas: Vec<Replica>,
    /// Held for list work only, never while a store or peer is called, or an answer given.
    state: Mutex<State>,
}

impl Replicator {
    pub(super) fn create_on(&self, store: StoreId, on: &Target, spec: ChunkSpec, done: Done<()>) {
        match on {
            Target::Own(store) => {
                let store = store.clone();
                self.workers.run(move || done(store.create(spec)));
            }
            Target::Peer(place) => {
                let create = peer::Create {
                    sender: self.directory.sender(),
                    store,
                    chunk: spec.chunk,
                    kind: spec.kind as u8,
                    owner: spec.owner,
                    capacity: spec.capacity_bytes,
                    durability: spec.durability,
                };
                let (op, limit) = (peer::OP_PEER_CREATE, WRITER_LIMIT_MS as u32);
                self.ask::<()>(&place.address, op, &create, None, limit, done);
            }
        }
    }
}

impl ReplicaSet {
    /// Makes an empty chunk on all of `stores`, in parallel, and answers once each has said yes
    /// or no. A set whose chunk could not be made everywhere has ended when it is answered.
    pub fn create(
        with: &Arc<Replicator>,
        spec: ChunkSpec,
        stores: &[StoreId],
        done: impl FnOnce(Arc<ReplicaSet>) + Send + 'static,
    ) {
        let targets: Result<Vec<Replica>> = stores
            .iter()
            .map(|&store| with.target(store).map(|target| Replica { store, target }))
            .collect();
        let unknown = targets.as_ref().err().cloned();
        let replicas = targets.unwrap_or_default();
        let count = replicas.len();
        let set = Arc::new(ReplicaSet {
            with: with.clone(),
            spec,
            replicas,
            state: Mutex::new(State {
                window: Window::new(count.clamp(1, 32)),
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                outgoing: VecDeque::new(),
                sending: false,
                ready: VecDeque::new(),
                answering: false,
                room: vec![spec.capacity_bytes.saturating_sub(APPEND_OVERHEAD_BYTES); count],
                holds: vec![false; count],
                limit_armed: false,
                cause: None,
            }),
        });
        if count == 0 || count > 32 {
            let e = unknown.unwrap_or_else(|| Error::invalid("it has no replicas, or too many"));
            set.fail(None, e);
            return done(set);
        }
        set.create_all(done);
    }

    fn create_all(self: &Arc<Self>, done: impl FnOnce(Arc<ReplicaSet>) + Send + 'static) {
        let waiting = Arc::new(Mutex::new((self.replicas.len(), Some(done))));
        for (i, replica) in self.replicas.iter().enumerate() {
            let (set, waiting) = (self.clone(), waiting.clone());
            let created = move |result: Result<()>| {
                match result {
                    // The repetition of an allocation that went through: the chunk is there, and
                    // one that holds more than this set knows refuses its first append.
                    Ok(()) => set.state().holds[i] = true,
                    Err(e) if e.kind == Kind::Exists => set.state().holds[i] = true,
                    Err(e) => set.fail(Some(i), e),
                }
                let last = {
                    let mut waiting = waiting.held();
                    waiting.0 -= 1;
                    if waiting.0 == 0 { waiting.1.take() } else { None }
                };
                if let Some(done) = last {
                    done(set);
                }
            };
            self.with.create_on(replica.store, &replica.target, self.spec, Box::new(created));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn chunk(&self) -> ChunkId {
        self.spec.chunk
    }

    /// What every replica has: bytes of a raw chunk, slots of a packed one.
    pub fn acknowledged(&self) -> u64 {
        self.state().window.acknowledged()
    }

    pub fn ended(&self) -> bool {
        self.state().window.ended()
    }

    /// Why it takes no more.
    pub fn cause(&self) -> Option<Error> {
        self.state().cause.clone()
    }

    /// Replicas that have what was acknowledged, as far as this writer knows.
    pub fn holders(&self) -> Vec<StoreId> {
        let state = self.state();
        let holders = self.replicas.iter().zip(&state.holds).filter(|(_, holds)| **holds);
        holders.map(|(replica, _)| replica.store).collect()
    }

    /// Bytes that one more append can surely bring to every replica; 0 when it takes none.
    pub fn room(&self) -> u64 {
        let own = self.replicas.iter().filter_map(|replica| match &replica.target {
            Target::Own(store) => Some(store.room(self.spec.chunk).unwrap_or(0)),
            Target::Peer(_) => None,
        });
        let own = own.min().unwrap_or(u64::MAX);
        let state = self.state();
        if state.window.ended() {
            return 0;
        }
        let peers = self.replicas.iter().zip(&state.room);
        let peers = peers.filter(|(replica, _)| matches!(replica.target, Target::Peer(_)));
        let least = peers.map(|(_, room)| *room).min().unwrap_or(u64::MAX);
        own.min(least.saturating_sub(state.waiting_bytes))
    }

    /// Appends to a raw chunk at byte `at`. A refusal because of `at` ends nothing.
    pub fn append_raw(
        self: &Arc<Self>,
        at: u64,
        body: SharedBody,
        crcs: Vec<u32>,
        durability: Durability,
        done: Done<u64>,
    ) {
        let bytes = (*body).as_ref().len() as u64;
        self.append((Some(at), bytes), None, body, crcs, durability, Answer::Raw(done));
    }

    /// Appends an object; every replica gives it the slot that is answered.
    pub fn append_needle(
        self: &Arc<Self>,
        needle: Needle,
        body: SharedBody,
        crcs: Vec<u32>,
        done: Done<Slot>,
    ) {
        let durability = self.spec.durability;
        self.append((None, 1), Some(needle), body, crcs, durability, Answer::Needle(done));
    }

    fn append(
        self: &Arc<Self>,
        (expected, length): (Option<u64>, u64),
        needle: Option<Needle>,
        body: SharedBody,
        crcs: Vec<u32>,
        durability: Durability,
        answer: Answer,
    ) {
        let hint = needle.as_ref().map_or(0, |needle| needle.hint.len());
        let taken = (*body).as_ref().len() + hint + 4 * crcs.len();
        let taken = taken as u64 + APPEND_OVERHEAD_BYTES;
        let mut state = self.state();
        let at = state.window.next();
        // First of all: whoever sends on after the end is to seal the chunk and move.
        let refusal = if state.window.ended() {
            Some(self.refusal(&state))
        } else if expected.is_some_and(|expected| expected != at) || length == 0 {
            Some(Error::invalid(format!(
                "append {length} bytes to chunk `{}` at byte {}: its end is at {at}",
                self.spec.chunk,
                expected.unwrap_or(at)
            )))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            drop(state);
            return answer.send(Err(refusal));
        }
        let number = state.window.push(length, self.with.now_ns());
        state.waiting.push_back((answer, taken));
        state.waiting_bytes += taken;
        state.outgoing.push_back(Outgoing { number, at, needle, body, crcs, durability });
        let arm = !std::mem::replace(&mut state.limit_armed, true);
        if !std::mem::replace(&mut state.sending, true) {
            while let Some(next) = state.outgoing.pop_front() {
                drop(state);
                self.send_to_all(next);
                state = self.state();
            }
            state.sending = false;
        }
        drop(state);
        if arm {
            self.arm_limit(WRITER_LIMIT_MS);
        }
        self.answer_ready();
    }

    fn send_to_all(self: &Arc<Self>, mut out: Outgoing) {
        let last = self.replicas.len() - 1;
        for (i, replica) in self.replicas.iter().enumerate() {
            let (crcs, needle) = if i == last {
                (std::mem::take(&mut out.crcs), out.needle.take())
            } else {
                (out.crcs.clone(), out.needle.clone())
            };
            match &replica.target {
                Target::Own(store) => {
                    let (set, number) = (self.clone(), out.number);
                    let body = Box::new(Shared(out.body.clone()));
                    let (chunk, at, durability) = (self.spec.chunk, out.at, out.durability);
                    match needle {
                        None => {
                            let done = move |end: Result<u64>| set.answered(i, number, None, end);
                            store.append_raw(chunk, at, body, crcs, durability, Box::new(done));
                        }
                        Some(needle) => {
                            let done = move |slot: Result<Slot>| {
                                set.answered(i, number, None, slot.map(|slot| slot.0 as u64));
                            };
                            let slot = Slot(at as u32);
                            let done = Box::new(done);
                            store.append_needle_at(
                                chunk, slot, needle, body, crcs, durability, done,
                            );
                        }
                    }
                }
                Target::Peer(place) => {
                    let sent = self.message(replica.store, &out, needle, crcs);
                    let (set, number) = (self.clone(), out.number);
                    let done = move |appended: Result<peer::Appended>| {
                        let room = appended.as_ref().map_or(0, |appended| appended.room);
                        set.answered(i, number, Some(room), appended.map(|a| a.position));
                    };
                    let (limit, body) = (WRITER_LIMIT_MS as u32, Some(out.body.clone()));
                    let (address, done) = (&place.address, Box::new(done));
                    match sent {
                        Message::Raw(meta) => {
                            let op = peer::OP_PEER_APPEND_RAW;
                            self.with.ask(address, op, &meta, body, limit, done);
                        }
                        Message::Needle(meta) => {
                            let op = peer::OP_PEER_APPEND_NEEDLE;
                            self.with.ask(address, op, &meta, body, limit, done);
                        }
                    }
                }
            }
        }
    }

    fn message(
        &self,
        store: StoreId,
        out: &Outgoing,
        needle: Option<Needle>,
        crcs: Vec<u32>,
    ) -> Message {
        let (sender, chunk) = (self.with.directory.sender(), self.spec.chunk);
        let durability = out.durability;
        match needle {
            None => {
                Message::Raw(peer::AppendRaw { sender, store, chunk, at: out.at, durability, crcs })
            }
            Some(needle) => Message::Needle(peer::AppendNeedle {
                sender,
                store,
                chunk,
                slot: Slot(out.at as u32),
                durability,
                owner: needle.owner,
                cookie: needle.cookie,
                flags: needle.flags,
                hint: needle.hint,
                crcs,
            }),
        }
    }

    /// Replica `i` has append `number`, or will never have it.
    fn answered(self: &Arc<Self>, i: usize, number: u64, room: Option<u64>, result: Result<u64>) {
        if let Err(e) = result {
            self.fail(Some(i), e);
        } else {
            let mut state = self.state();
            if let Some(room) = room {
                state.room[i] = room;
            }
            for end in state.window.answered(i, number) {
                if let Some((answer, taken)) = state.waiting.pop_front() {
                    state.waiting_bytes -= taken;
                    state.ready.push_back((answer, Ok(end)));
                }
            }
        }
        self.answer_ready();
    }

    /// Ends the chunk for this writer: nothing more is acknowledged.
    fn fail(&self, replica: Option<usize>, e: Error) {
        let mut state = self.state();
        if let Some(i) = replica {
            if e.kind == Kind::NotFound {
                state.holds[i] = false;
            }
            // What a writer does wrong is no fault of the store.
            if matches!(e.kind, Kind::Retry | Kind::ReadOnly | Kind::Full | Kind::NotFound) {
                self.with.suspect(self.replicas[i].store);
            }
        }
        if state.window.ended() {
            return;
        }
        let waited_ns =
            state.window.oldest_ns().map(|sent| self.with.now_ns().saturating_sub(sent));
        if waited_ns.is_some_and(|waited| waited >= WRITER_LIMIT_MS * 1_000_000) {
            Events::count(&self.with.events.slow_replicas);
        }
        let who = replica.map(|i| format!("replica on store `{}`: ", self.replicas[i].store));
        let what = format!("{}{e}", who.unwrap_or_default());
        state.cause = Some(Error::new(e.kind, what));
        self.end_window(&mut state);
    }

    /// What is outstanding fails, and what was not sent yet is not sent any more.
    fn end_window(&self, state: &mut State) {
        if state.window.end() {
            let refusal = self.refusal(state);
            state.waiting_bytes = 0;
            state.outgoing.clear();
            let failed = std::mem::take(&mut state.waiting).into_iter();
            state.ready.extend(failed.map(|(answer, _)| (answer, Err(refusal.clone()))));
        }
    }

    /// The kind tells the writer to have the chunk sealed and to go on in a new one.
    fn refusal(&self, state: &State) -> Error {
        let why = match &state.cause {
            Some(cause) => cause.message.clone(),
            None => "it is being sealed".to_owned(),
        };
        Error::fenced(format!(
            "append to chunk `{}`: it takes no more appends: {why}; seal it and go on in a new chunk",
            self.spec.chunk
        ))
    }

    /// Ends it by its writer's wish; what is outstanding fails. Answers the acknowledged length.
    pub fn end(&self) -> u64 {
        self.end_window(&mut self.state());
        self.answer_ready();
        self.acknowledged()
    }

    /// Gives the answers that are due, in order, unless somebody else is at it or is sending:
    /// then that caller gives them.
    fn answer_ready(&self) {
        let mut state = self.state();
        if state.answering || state.sending {
            return;
        }
        state.answering = true;
        while let Some((answer, result)) = state.ready.pop_front() {
            drop(state);
            answer.send(result);
            state = self.state();
        }
        state.answering = false;
    }

    /// One timer a set: it looks after the oldest append.
    fn arm_limit(self: &Arc<Self>, ms: u64) {
        let set = self.clone();
        self.with.peers.after(ms, Box::new(move || set.look_at_limit()));
    }

    fn look_at_limit(self: &Arc<Self>) {
        let mut state = self.state();
        let Some(sent_ns) = state.window.oldest_ns() else {
            state.limit_armed = false;
            return;
        };
        let waited_ms = self.with.now_ns().saturating_sub(sent_ns) / 1_000_000;
        if waited_ms < WRITER_LIMIT_MS {
            drop(state);
            return self.arm_limit(WRITER_LIMIT_MS - waited_ms);
        }
        state.limit_armed = false;
        let slow = (0..self.replicas.len()).find(|&i| state.window.is_behind(i));
        drop(state);
        let what = format!("it did not answer within the writer's limit of {WRITER_LIMIT_MS} ms");
        self.fail(slow, Error::retry(what));
        self.answer_ready();
    }
}

enum Message {
    Raw(peer::AppendRaw),
    Needle(peer::AppendNeedle),
}
