//! A host and two members in one thread, with a network that delays, loses, repeats and reorders:
//! every proposer gets its result once, and all views come to the same.

#[path = "../../log/tests/common/mod.rs"]
mod common;

use common::*;
use holdfast_base::ids::{Index, NodeId, Sequence, SessionId, Term};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{PeerDone, PeerReply, PeerRequest, Peers};
use holdfast_env::trial::Trial;
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_log::*;
use holdfast_view::*;
use holdfast_wire::peer::Sender;
use holdfast_wire::peer_log as wire;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const T: &str = "ns/0";
const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };

/// Counts: the result of an addition is the new count.
#[derive(Default, Debug, PartialEq, Eq, Clone)]
struct Counts(BTreeMap<u8, u64>);

impl View for Counts {
    const NAME: &'static str = "counts";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> Counts {
        Counts::default()
    }

    fn apply(&mut self, _: Index, command: &[u8]) -> Applied {
        let &[key] = command else { return Applied::Refused(Error::invalid("one byte")) };
        let count = self.0.entry(key).or_default();
        *count += 1;
        Applied::Ok(count.to_le_bytes().to_vec())
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        for (key, count) in &self.0 {
            out.put(key);
            out.put(count);
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<Counts> {
        let rest = source.rest()?;
        let pair = |p: &[u8]| (p[0], u64::from_le_bytes(p[1..].try_into().unwrap()));
        Ok(Counts(rest.chunks_exact(9).map(pair).collect()))
    }
}

/// Every network call in time order; nothing happens but in `step`.
struct Net {
    rng: SeededRng,
    state: Mutex<NetState>,
}

#[derive(Default)]
struct NetState {
    now_ms: u64,
    sent: u64,
    events: BTreeMap<(u64, u64), Event>,
    hosts: BTreeMap<String, Arc<LogHost>>,
    /// Callers, until they are called.
    callers: BTreeMap<u64, PeerDone>,
    /// One in so many is lost; 0 for none.
    loses: u64,
    /// One in so many requests and answers comes twice; 0 for none.
    repeats: u64,
    /// Nothing gets through.
    cut: bool,
    /// The host refuses everybody: others have started as these nodes.
    replaced: bool,
}

enum Event {
    Arrive(u64, String, PeerRequest),
    Answer(u64, Result<PeerReply>),
    Timer(Box<dyn FnOnce() + Send>),
}

impl Net {
    fn new(seed: u64) -> Arc<Net> {
        Arc::new(Net { rng: SeededRng::new(seed), state: Mutex::default() })
    }

    fn below(&self, end: u64) -> u64 {
        self.rng.next_u64() % end
    }

    fn put(&self, delay_ms: u64, event: Event) {
        let mut state = self.state.lock().unwrap();
        state.sent += 1;
        let key = (state.now_ms + delay_ms, state.sent);
        state.events.insert(key, event);
    }

    fn times(&self) -> u64 {
        let repeats = self.state.lock().unwrap().repeats;
        1 + (repeats > 0 && self.below(repeats) == 0) as u64
    }

    fn is_lost(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.cut || (state.loses > 0 && self.rng.next_u64().is_multiple_of(state.loses))
    }

    /// Lets the next thing happen; false if there is nothing.
    fn step(self: &Arc<Net>) -> bool {
        let next = {
            let mut state = self.state.lock().unwrap();
            let Some(((at_ms, _), event)) = state.events.pop_first() else { return false };
            state.now_ms = at_ms;
            event
        };
        match next {
            Event::Timer(then) => then(),
            Event::Answer(caller, answer) => {
                // Repeated, or late.
                let done = self.state.lock().unwrap().callers.remove(&caller);
                if let Some(done) = done {
                    done(answer);
                }
            }
            Event::Arrive(caller, address, request) => {
                let host = self.state.lock().unwrap().hosts.get(&address).cloned();
                let Some(host) = host.filter(|_| !self.is_lost()) else { return true };
                let net = self.clone();
                let done = Box::new(move |answer: Result<PeerReply>| {
                    for _ in 0..net.times() {
                        if !net.is_lost() {
                            net.put(net.below(30), Event::Answer(caller, answer.clone()));
                        }
                    }
                });
                if self.state.lock().unwrap().replaced {
                    done(Err(Error::fenced("another process has started as this node")));
                    return true;
                }
                let body = request.body.map_or(Vec::new(), |body| (*body).as_ref().to_vec());
                host.serve(request.opcode, &request.meta, &body, done);
            }
        }
        true
    }
}

impl Peers for Net {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        let caller = {
            let mut state = self.state.lock().unwrap();
            state.sent += 1;
            let caller = state.sent;
            state.callers.insert(caller, done);
            caller
        };
        let late = Err(Error::retry("no answer in time"));
        self.put(request.deadline_ms as u64, Event::Answer(caller, late));
        // Repeated: what is appended then is there twice.
        for _ in 0..self.times() {
            let arrive = Event::Arrive(caller, address.to_owned(), request.clone());
            self.put(self.below(30), arrive);
        }
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        self.put(ms, Event::Timer(then));
    }
}

fn sender(node: u32) -> Sender {
    Sender { cluster: 7, node: NodeId(node), incarnation: Index(0) }
}

fn store(root: &Path, name: &str) -> SnapshotStore {
    SnapshotStore { disk: Arc::new(RealDisk), directory: root.join(name) }
}

fn member(log: &Arc<impl Log>, root: &Path, name: &str) -> Fold<Counts> {
    Fold::open_member(log.clone(), T, store(root, name), MANUAL).unwrap()
}

struct World {
    net: Arc<Net>,
    log: Arc<EmbeddedLog>,
    remotes: Vec<Arc<RemoteLog>>,
    /// The host's first.
    folds: Vec<Fold<Counts>>,
    _dir: Scratch,
}

impl World {
    fn new(name: &str, seed: u64) -> World {
        let dir = Scratch::new(name);
        let net = Net::new(seed);
        // Whose syncs do nothing: no power is cut here.
        let disk = FaultDisk::new();
        disk.faults.careless.store(true, Ordering::Relaxed);
        let log = EmbeddedLog::open(disk, &dir.0.join("log"), options(Drive::Pump));
        let log = Arc::new(log.unwrap());
        log.create(T).unwrap();
        net.state.lock().unwrap().hosts.insert("host:1".into(), host(&log));
        let remote = |node| Arc::new(RemoteLog::new(net.clone(), "host:1", sender(node)));
        let remotes = vec![remote(2), remote(3)];
        let mut folds = vec![member(&log, &dir.0, "1")];
        for (i, remote) in remotes.iter().enumerate() {
            folds.push(member(remote, &dir.0, &(i + 2).to_string()));
        }
        World { net, log, remotes, folds, _dir: dir }
    }

    /// Lets things happen until `over`, or so much time has passed.
    fn run(&self, ms: u64, over: impl Fn() -> bool) -> bool {
        let end_ms = self.net.state.lock().unwrap().now_ms + ms;
        while !over() {
            while self.log.pump() {}
            if self.net.state.lock().unwrap().now_ms > end_ms || !self.net.step() {
                return over();
            }
        }
        true
    }

    fn agree(&self) -> bool {
        let next = self.log.info(T).unwrap().next;
        self.folds.iter().all(|fold| fold.applied().0 + 1 == next.0)
    }

    fn quiet(&self) {
        {
            let mut state = self.net.state.lock().unwrap();
            (state.loses, state.repeats, state.cut) = (0, 0, false);
        }
        // What was ordered last is seen by others once it is synced.
        self.log.sync(T).unwrap();
        assert!(self.run(200_000, || self.agree()), "{:?}", self.statuses());
        let digest = self.folds[0].status().digest;
        assert!(self.folds.iter().all(|fold| fold.status().digest == digest));
    }

    fn statuses(&self) -> Vec<FoldStatus> {
        self.folds.iter().map(Fold::status).collect()
    }

    fn wait<X: Send + 'static>(&self, start: impl FnOnce(Done<X>)) -> Result<X> {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        start(Box::new(move |result| {
            assert!(slot.lock().unwrap().replace(result).is_none(), "answered twice");
        }));
        let answered = self.run(200_000, || answer.lock().unwrap().is_some());
        assert!(answered, "{:?}", self.statuses());
        answer.lock().unwrap().take().unwrap()
    }

    fn session(&self, node: usize) -> SessionId {
        loop {
            match self.wait(|done| self.folds[node].open_session(Mode::Synced, done)) {
                Ok(session) => return session,
                Err(e) => assert_eq!(e.kind, Kind::Retry, "{e}"),
            }
        }
    }
}

fn host(log: &Arc<EmbeddedLog>) -> Arc<LogHost> {
    Arc::new(LogHost::new(log.clone()))
}

fn request(session: SessionId, sequence: u64, key: u8) -> Request {
    Request {
        session,
        sequence: Sequence(sequence),
        acknowledged_below: Sequence(0),
        command: vec![key],
        mode: if sequence % 3 == 2 { Mode::Ordered } else { Mode::Synced },
    }
}

type Answer = Result<(Index, Vec<u8>)>;

/// A client of one node: sends each request until it has an answer that is not `Retry`.
struct Client {
    node: usize,
    session: SessionId,
    key: u8,
    sequence: u64,
    /// Answers of the request under way, one a time that it was sent.
    answers: Arc<Mutex<Vec<Answer>>>,
    sent: usize,
}

impl Client {
    fn go_on(&mut self, w: &World) {
        let mut answers = self.answers.lock().unwrap();
        assert!(answers.len() <= self.sent, "answered more often than asked");
        match answers.last() {
            None if self.sent > 0 => return,
            Some(Ok((_, count))) => {
                // Its own key: each request counts once, however often it came.
                assert_eq!(count, &self.sequence.to_le_bytes());
                self.sequence += 1;
            }
            Some(Err(e)) => assert_eq!(e.kind, Kind::Retry, "{e}"),
            None => self.sequence = 1,
        }
        self.sent = 1;
        answers.clear();
        drop(answers);
        let (answers, asked) = (self.answers.clone(), self.sequence);
        let done = Box::new(move |result| answers.lock().unwrap().push(result));
        w.folds[self.node].propose(request(self.session, asked, self.key), done);
    }
}

/// A token that had been revoked was there once more: the log showed the entry again that had made it.
#[test]
fn what_a_node_commands_itself_is_done_once_however_often_the_log_shows_it() {
    let w = World::new("own", 1);
    for (node, fold) in w.folds.iter().enumerate() {
        fold.number_as(NodeId(node as u32 + 1), Index(1));
    }
    let commands = |node: usize| {
        w.wait(|done| w.folds[node].propose(request(SessionId(0), 0, 7), done)).unwrap()
    };
    let entries = [commands(1), commands(0), commands(1)];
    assert_eq!(entries[2].1, 3u64.to_le_bytes());
    for (index, _) in entries {
        let (_, entry) = w.log.read(T, index, 1, 1, Scope::Written).unwrap().remove(0);
        w.wait(|done| w.log.append(T, vec![entry], Mode::Synced, done)).unwrap();
    }
    w.quiet();
    for fold in &w.folds {
        assert_eq!(fold.read(|view, _| view.0[&7]), Ok(3));
    }
    assert_eq!(commands(2).1, 4u64.to_le_bytes());
}

#[test]
fn proposers_on_every_node_get_each_result_once_and_all_views_agree() {
    for seed in 0..6 {
        let w = World::new("storm", seed);
        let mut clients: Vec<Client> = (0..6)
            .map(|i| Client {
                node: i % 3,
                session: w.session(i % 3),
                key: i as u8,
                sequence: 0,
                answers: Arc::default(),
                sent: 0,
            })
            .collect();
        {
            let mut state = w.net.state.lock().unwrap();
            (state.loses, state.repeats) = (10, 10);
        }
        for _ in 0..2000 {
            while w.log.pump() {}
            clients.iter_mut().for_each(|client| client.go_on(&w));
            w.net.step();
        }
        w.quiet();
        let counts = w.folds[2].read(|view, _| view.0.clone()).unwrap();
        for client in &clients {
            let reached = counts[&client.key];
            assert!([client.sequence - 1, client.sequence].contains(&reached), "seed {seed}");
            assert!(client.sequence > 10, "seed {seed}: {} went on", client.key);
        }
    }
}

#[test]
fn an_own_write_is_read_where_it_was_made() {
    let w = World::new("own", 1);
    for i in 1..=20u64 {
        let node = (i % 3) as usize;
        let result = w.wait(|done| w.folds[node].propose(request(SessionId(0), 0, 1), done));
        let (index, _) = result.unwrap();
        assert!(w.folds[node].applied() >= index);
        let count = w.folds[node].read(|view, _| view.0[&1]).unwrap();
        assert!(count >= i, "{count} at {i}");
        w.wait(|done| w.folds[(node + 1) % 3].wake_at(index, done)).unwrap();
        assert!(w.folds[(node + 1) % 3].applied() >= index);
    }
    w.quiet();
}

#[test]
fn a_claim_fences_the_leader_before_and_nobody_who_does_not_lead() {
    let w = World::new("claim", 2);
    let command = || request(SessionId(0), 1, 9);
    let term = |queued, leader| Term { queued: Index(queued), leader: NodeId(leader) };
    let first = w.wait(|done| w.folds[1].claim(term(1, 2), done)).unwrap();
    w.wait(|done| w.folds[1].propose_as(first, command(), done)).unwrap();
    let second = w.wait(|done| w.folds[2].claim(term(1, 3), done)).unwrap();
    assert!(second > first);
    // Node 2 may not have heard of it: the log decides.
    let e = w.wait(|done| w.folds[1].propose_as(first, command(), done)).unwrap_err();
    assert_eq!(e.kind, Kind::Fenced, "{e}");
    w.wait(|done| w.folds[2].propose_as(second, command(), done)).unwrap();
    for fold in &w.folds {
        w.wait(|done| fold.propose(command(), done)).unwrap();
    }
    w.quiet();
    assert!(w.folds.iter().all(|fold| fold.status().epoch == second));
}

/// A claim that was long on its way deposed the leader that had claimed since. Now only claims for its own
/// term or a later one do, also once a snapshot stands for the claims before.
#[test]
fn a_claim_for_a_term_that_is_over_changes_nothing() {
    let mut w = World::new("terms", 3);
    let term = |queued, leader| Term { queued: Index(queued), leader: NodeId(leader) };
    let claim = |w: &World, node: usize, term| w.wait(|done| w.folds[node].claim(term, done));
    let own = claim(&w, 2, term(7, 3)).unwrap();
    let snapshot = w.folds[2].snapshot_now().unwrap();
    assert!(snapshot >= own);
    w.folds.remove(2);
    let again = member(&w.remotes[1], &w._dir.0, "3");
    assert_eq!(again.status().snapshot, Some(snapshot));
    w.folds.push(again);
    for late in [term(6, 9), term(7, 2), term(0, 0)] {
        for node in [0, 2] {
            let e = claim(&w, node, late).unwrap_err();
            assert_eq!(e.kind, Kind::Fenced, "{e}");
        }
    }
    let command = || request(SessionId(0), 1, 9);
    w.wait(|done| w.folds[2].propose_as(own, command(), done)).unwrap();
    // Its own of before was given up, and a later leader's counts.
    let own = claim(&w, 2, term(7, 3)).unwrap();
    assert!(claim(&w, 1, term(7, 4)).unwrap() > own);
    let e = w.wait(|done| w.folds[2].propose_as(own, command(), done)).unwrap_err();
    assert_eq!(e.kind, Kind::Fenced, "{e}");
    w.quiet();
}

#[test]
fn a_host_out_of_reach_fails_appends_and_nothing_is_missed_when_it_is_back() {
    let w = World::new("cut", 3);
    w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap();
    w.net.state.lock().unwrap().cut = true;
    let e = w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap_err();
    assert_eq!(e.kind, Kind::Retry);
    for _ in 0..50 {
        w.wait(|done| w.folds[0].propose(request(SessionId(0), 1, 2), done)).unwrap();
    }
    assert!(w.folds[1].applied() < w.folds[0].applied());
    assert!(w.folds[1].read(|view, _| view.0[&1]).unwrap() >= 1, "what it has, it serves");
    w.run(100_000, || w.remotes[0].trouble(T).is_some());
    assert!(w.remotes[0].trouble(T).is_some(), "and it says so");
    w.quiet();
    assert_eq!(w.remotes[0].trouble(T), None);
}

/// The entry that says so was refused to the very process that had to read it: two processes with
/// one directory both went on, the earlier one with an ever older view.
#[test]
fn whoever_is_refused_as_replaced_by_another_process_stops() {
    let w = World::new("replaced", 4);
    w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap();
    w.net.state.lock().unwrap().replaced = true;
    let stopped = || w.folds[1].read(|_, _| ()).is_err_and(|e| e.kind == Kind::Fenced);
    assert!(w.run(100_000, stopped), "{:?}", w.statuses());
    let e = w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap_err();
    assert_eq!(e.kind, Kind::Fenced, "{e}");
}

#[test]
fn a_member_boots_from_its_snapshot_without_waiting_and_goes_on_where_it_was() {
    let mut w = World::new("boot", 4);
    for i in 0..40 {
        w.wait(|done| w.folds[i % 3].propose(request(SessionId(0), 1, 1), done)).unwrap();
    }
    w.quiet();
    assert_eq!(w.folds[2].covered(), None);
    let taken = w.folds[2].snapshot_now().unwrap();
    w.wait(|done| w.folds[0].propose(request(SessionId(0), 1, 1), done)).unwrap();
    w.folds.pop();
    w.remotes.pop();
    w.net.state.lock().unwrap().cut = true;
    let remote = Arc::new(RemoteLog::new(w.net.clone(), "host:1", sender(3)));
    let fold = member(&remote, &w._dir.0, "3");
    assert_eq!((fold.applied(), fold.status().snapshot), (taken, Some(taken)));
    assert_eq!(fold.read(|view, _| view.0[&1]).unwrap(), 40, "reads what it had");
    w.remotes.push(remote);
    w.folds.push(fold);
    w.quiet();
    w.folds[2].snapshot_now().unwrap();
    assert_eq!(w.folds[2].covered(), Some(taken), "two snapshots now");
    assert_eq!(w.log.info(T).unwrap().first, Index(1), "nobody trims by himself");
    w.folds[2].trim(taken).unwrap();
    w.run(1_000, || w.log.info(T).unwrap().first == taken);
    assert_eq!(w.log.info(T).unwrap().first, taken);
}

#[test]
fn a_log_that_ends_before_or_differs_is_refused_before_anything_is_applied() {
    let mut w = World::new("other", 5);
    for _ in 0..10 {
        w.wait(|done| w.folds[2].propose(request(SessionId(0), 1, 1), done)).unwrap();
    }
    w.quiet();
    w.folds[2].snapshot_now().unwrap();
    let root = w._dir.0.clone();
    w.folds.pop();
    for (name, entries, why) in [("short", 5u8, "ends before"), ("different", 12, "is not the one")]
    {
        let other = Arc::new(open(&root.join(name), Drive::Pump));
        other.create(T).unwrap();
        for i in 0..entries {
            append(&other, T, &[&[i; 50]], Mode::Synced).unwrap();
        }
        w.net.state.lock().unwrap().hosts.insert(name.into(), host(&other));
        let remote = Arc::new(RemoteLog::new(w.net.clone(), name, sender(3)));
        let fold = member(&remote, &root, "3");
        assert!(w.run(60_000, || fold.status().stopped.is_some()), "{name}");
        let e = fold.status().stopped.unwrap();
        assert!(e.kind == Kind::Corrupt && e.message.contains(why), "{e}");
        assert_eq!(fold.applied(), Index(10));
        let refused = w.wait(|done| fold.propose(request(SessionId(0), 1, 1), done));
        assert!(refused.is_err());
        // The host itself sees it as well.
        let fold = member(&other, &root, "3");
        let e = fold.status().stopped.unwrap();
        assert!(e.kind == Kind::Corrupt && e.message.contains(why), "{e}");
    }
}

/// A view that was opened again read from where its rows were, in front of what its node still had
/// of the log. The node forgot how far it had been, and the view was told that the log had been put
/// back from an older copy.
#[test]
fn a_reader_who_looks_back_does_not_make_the_log_shorter() {
    let w = World::new("back", 7);
    let append = |times: usize| {
        for _ in 0..times {
            w.wait(|done| w.folds[0].propose(request(SessionId(0), 1, 1), done)).unwrap();
        }
    };
    append(8);
    let remote = RemoteLog::new(w.net.clone(), "host:1", sender(3));
    let has = |index: u64| {
        let page = remote.read(T, Index(index), 1, 1, Scope::Written).unwrap();
        page.first().is_some_and(|(found, _)| found.0 == index)
    };
    assert!(w.run(60_000, || has(6)));
    append(8);
    w.log.sync(T).unwrap();
    assert!(w.run(60_000, || has(16)));
    assert!(!has(2), "it is fetched anew");
    assert_eq!(remote.info(T).unwrap().next, Index(17));
    assert!(w.run(60_000, || has(2)));
    assert_eq!(remote.info(T).unwrap().next, Index(17));
}

#[test]
fn a_host_that_moves_is_compared_before_it_is_used() {
    let w = World::new("move", 6);
    w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap();
    w.net.state.lock().unwrap().hosts.insert("host:2".into(), host(&w.log));
    w.net.state.lock().unwrap().hosts.remove("host:1");
    w.remotes.iter().for_each(|remote| remote.set_host("host:2"));
    w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap();
    w.quiet();
    let empty = Arc::new(open(&w._dir.0.join("empty"), Drive::Pump));
    empty.create(T).unwrap();
    w.net.state.lock().unwrap().hosts.insert("host:3".into(), host(&empty));
    w.remotes[0].set_host("host:3");
    assert!(w.run(60_000, || w.folds[1].status().stopped.is_some()));
    let e = w.folds[1].status().stopped.unwrap();
    assert!(e.message.contains("ends before entry 1"), "{e}");
}

/// A member whose view had stopped since the host's log ended before what it had read stayed stopped
/// until it was started again, though the right log was back; and a log that had grown beyond that
/// place with other entries was followed.
#[test]
fn a_member_goes_on_by_itself_once_the_hosts_log_is_the_right_one_again() {
    for others in [2, 9] {
        let w = World::new(&format!("again-{others}"), 8);
        let propose =
            |fold: usize| w.wait(|done| w.folds[fold].propose(request(SessionId(0), 1, 1), done));
        for _ in 0..6 {
            propose(1).unwrap();
        }
        w.quiet();
        let older = Arc::new(open(&w._dir.0.join("older"), Drive::Pump));
        older.create(T).unwrap();
        for i in 0..others {
            append(&older, T, &[&[i; 50]], Mode::Synced).unwrap();
        }
        let right = w.net.state.lock().unwrap().hosts.insert("host:1".into(), host(&older));
        // The host was away for that.
        w.net.state.lock().unwrap().cut = true;
        w.run(60_000, || false);
        w.net.state.lock().unwrap().cut = false;
        assert!(w.run(60_000, || w.folds[1].status().stopped.is_some()), "{others}");
        let e = w.folds[1].status().stopped.unwrap();
        assert!(e.message.contains("put the log of the host back"), "{e}");
        assert_eq!(w.folds[1].applied(), Index(6), "{others}: nothing of the other log");
        assert_eq!(propose(1).unwrap_err().kind, Kind::Corrupt);
        w.run(10_000, || false);
        assert!(w.folds[1].status().stopped.is_some(), "{others}");
        w.net.state.lock().unwrap().hosts.insert("host:1".into(), right.unwrap());
        assert!(w.run(10_000, || w.folds[1].status().stopped.is_none()), "{others}");
        propose(1).unwrap();
        propose(0).unwrap();
        w.quiet();
    }
}

/// A topic may have several views on a node. One began far back, had as much of the log brought here
/// as there is room for, and was stopped: nobody read that any more, and no other view of the topic
/// got another entry for as long as the node ran.
#[test]
fn what_one_reader_leaves_unread_keeps_no_entries_from_another() {
    let _trial = Trial::new().with(&MIRROR_BYTES_MAX, 200).enter();
    let w = World::new("readers", 5);
    let propose = || drop(w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)));
    (0..50).for_each(|_| propose());
    w.quiet();
    let second = w.remotes[0].another_reader();
    let heard = Arc::new(Mutex::new(None));
    let slot = heard.clone();
    second.tail(T, Index(1), Box::new(move |told| *slot.lock().unwrap() = Some(told)));
    assert!(w.run(200_000, || heard.lock().unwrap().is_some()));
    let page = second.read(T, Index(1), 2, 1000, Scope::Durable).unwrap();
    assert_eq!(page.len(), 2, "it is there, and what follows it fills all room");
    (0..5).for_each(|_| propose());
    w.quiet();
    // It reads on whenever it likes, from where it was.
    let page = second.read(T, Index(3), 2, 1000, Scope::Durable).unwrap();
    assert_eq!(page.first().map(|(index, _)| *index), Some(Index(3)));
    // What it waited for is told to nobody, and what others wait for is.
    let told = Arc::new(Mutex::new(Vec::new()));
    let slot = told.clone();
    second.tail(T, Index(900), Box::new(move |told| slot.lock().unwrap().push(told.is_ok())));
    drop(second);
    assert_eq!(*told.lock().unwrap(), [false]);
    propose();
    w.quiet();
}

#[test]
fn closing_answers_everybody_who_waits() {
    let mut w = World::new("close", 7);
    w.wait(|done| w.folds[1].propose(request(SessionId(0), 1, 1), done)).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let slot = answers.clone();
    let wake = move |result: Result<()>| slot.lock().unwrap().push(result.map_err(|e| e.kind));
    w.folds[1].wake_at(Index(1000), Box::new(wake));
    let slot = answers.clone();
    let wake = move |result: Result<()>| slot.lock().unwrap().push(result.map_err(|e| e.kind));
    w.remotes[0].tail("other", Index(1), Box::new(wake));
    assert!(answers.lock().unwrap().is_empty());
    w.folds.remove(1);
    assert_eq!(*answers.lock().unwrap(), [Err(Kind::Retry)]);
    w.remotes.remove(0);
    assert_eq!(*answers.lock().unwrap(), [Err(Kind::Retry); 2]);
}

#[test]
fn the_host_answers_a_waiting_read_again_and_refuses_what_it_cannot_read() {
    let dir = Scratch::new("host");
    let log = Arc::new(open(&dir.0, Drive::Pump));
    log.create(T).unwrap();
    let host = host(&log);
    let answers = Arc::new(Mutex::new(Vec::new()));
    let ask = |opcode: u16, meta: Vec<u8>, body: &[u8]| {
        let answers = answers.clone();
        let done = Box::new(move |answer| answers.lock().unwrap().push(answer));
        host.serve(opcode, &meta, body, done);
    };
    use holdfast_base::codec::Encode;
    let read = |node| wire::Read {
        sender: sender(node),
        topic: T.into(),
        from: Index(1),
        entries_max: 10,
        wait: true,
        reader: 0,
    };
    for node in [2, 2, 3] {
        ask(wire::OP_PEER_LOG_READ, read(node).to_bytes(), &[]);
    }
    let kinds = |answers: &[Result<PeerReply>]| -> Vec<Option<Kind>> {
        answers.iter().map(|a| a.as_ref().err().map(|e| e.kind)).collect()
    };
    assert_eq!(kinds(&answers.lock().unwrap()), [Some(Kind::Retry)], "the first of node 2");
    append(&log, T, &[b"x"], Mode::Synced).unwrap();
    assert_eq!(kinds(&answers.lock().unwrap()), [Some(Kind::Retry), None, None]);
    answers.lock().unwrap().clear();
    let damaged = wire::Append { sender: sender(2), topic: T.into(), crc: 1 };
    ask(wire::OP_PEER_LOG_APPEND, damaged.to_bytes(), &[0; 4]);
    ask(wire::OP_PEER_LOG_APPEND, vec![1], &[]);
    ask(wire::OP_PEER_LOG_INFO, vec![1], &[]);
    let refused = [Some(Kind::Retry), Some(Kind::Invalid), Some(Kind::Invalid)];
    assert_eq!(kinds(&answers.lock().unwrap()), refused);
    assert_eq!(log.info(T).unwrap().next, Index(2));
}

/// What every follower lives by was tested through mirrors alone, which ask for nothing wrong.
#[test]
fn the_host_answers_a_read_with_what_was_asked_for_and_refuses_what_is_not_there() {
    use holdfast_base::codec::{Decode, Encode};
    const ENTRIES: u64 = 60;
    let dir = Scratch::new("host-reads");
    let log = Arc::new(open(&dir.0, Drive::Pump));
    log.create(T).unwrap();
    let host = host(&log);
    let body = |index: u64| vec![index as u8; 3000];
    for index in 1..=ENTRIES {
        append(&log, T, &[&body(index)], Mode::Synced).unwrap();
    }
    let read = |topic: &str, from: u64, entries_max: u32| -> Result<Vec<(Index, Vec<u8>)>> {
        let (sender, topic) = (sender(2), topic.to_owned());
        let read =
            wire::Read { sender, topic, from: Index(from), entries_max, wait: false, reader: 0 };
        let answered = Arc::new(Mutex::new(None));
        let slot = answered.clone();
        let done = Box::new(move |answer| *slot.lock().unwrap() = Some(answer));
        host.serve(wire::OP_PEER_LOG_READ, &read.to_bytes(), &[], done);
        let answer: PeerReply = answered.lock().unwrap().take().expect("it does not wait")?;
        wire::decode_indexed(&answer.body, wire::Entries::from_bytes(&answer.meta)?.crc)
    };
    let entries = |range: std::ops::RangeInclusive<u64>| -> Vec<(Index, Vec<u8>)> {
        range.map(|index| (Index(index), body(index))).collect()
    };
    assert_eq!(read(T, 1, 10).unwrap(), entries(1..=10));
    assert_eq!(read(T, 55, 100).unwrap(), entries(55..=ENTRIES));
    assert_eq!(read(T, 7, 0).unwrap(), entries(7..=7), "none at all would never get on");
    for behind in [ENTRIES + 1, 1000, u64::MAX] {
        assert_eq!(read(T, behind, 10).unwrap(), []);
    }
    let e = read("other", 1, 10).unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("other"), "{e}");
    log.trim(T, Index(40)).unwrap();
    for trimmed in [0, 1, 39] {
        let e = read(T, trimmed, 10).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("40"), "{trimmed}: {e}");
    }
    assert_eq!(read(T, 40, 5).unwrap(), entries(40..=44));
}
