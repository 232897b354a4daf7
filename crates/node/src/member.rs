//! The node as a member of its cluster: gives signs of life, notices that it leads, claims both
//! topics, and as leader says which nodes live. Never waits: the caller's thread beats on whatever
//! disks and other nodes do. What silence means is decided in `liveness`.

use super::{Claims, Node};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Index, NodeId, Term};
use holdfast_base::units::MIB;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_chunk::Done;
use holdfast_cluster::cluster::FreeSpace;
use holdfast_cluster::liveness::{HeardBeat, Liveness, LivenessOptions};
use holdfast_cluster::{ClusterCommand, Namespace, NodeState};
use holdfast_env::net::PeerRequest;
use holdfast_env::{HoldMutex, planted};
use holdfast_view::Fold;
use holdfast_wire::peer;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Time between two beats of a node.
pub const BEAT_MS: u64 = 500;
/// A leader that has not read back a beat of its own for so long may be deposed: half of the time
/// that makes others call it dead.
pub const STALE_MS: u64 = BEAT_MS * holdfast_cluster::cluster::BEATS_DEAD as u64 / 2;
/// How often the leader tells the free space of nodes that are no controllers.
const USAGE_MS: u64 = 10_000;
/// How often who lacks the names of a shard asks whether another node has them, and leads.
const HAND_OVER_REST_MS: u64 = 60_000;
/// A beat to the leader is worth nothing after this.
const BEAT_DEADLINE_MS: u32 = 2000;

#[derive(Clone, Copy, Debug, Default)]
pub struct MemberOptions {
    pub liveness: LivenessOptions,
}

/// Whether the node leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Follows,
    /// Saw itself lead; waits to read back this beat, the first one sent since.
    Waits {
        beat: u64,
    },
    Claims,
    Leads,
}

/// What callbacks change.
#[derive(Debug)]
struct Shared {
    in_flight: bool,
    /// Own beats sent, and the last one that was applied here.
    sent: u64,
    read_back: u64,
    read_back_ns: u64,
    /// What came of the claims of a term.
    claims: Option<Result<Claims>>,
    /// Commands about nodes that are under way: one round's at a time.
    commands: usize,
}

pub struct Member {
    node: Arc<Node>,
    options: MemberOptions,
    liveness: Liveness,
    lead: Lead,
    next_beat_ns: u64,
    next_hand_over_ns: u64,
    next_usage_ns: u64,
    /// The last entry of the cluster topic that was seen here.
    log_seen: Index,
    /// The last beat of each controller that was handed to `liveness`.
    beats_seen: BTreeMap<NodeId, Index>,
    shared: Arc<Mutex<Shared>>,
}

fn replaced(id: NodeId, what: &dyn std::fmt::Display) -> Error {
    Error::fenced(format!(
        "be node `{id}`: {what}: two processes run on copies of one data directory, or with one \
         NODE file: keep one of them, and let the other join with an empty directory"
    ))
}

impl Member {
    pub fn new(node: Arc<Node>, options: MemberOptions) -> Member {
        let now_ns = node.machine.clock.monotonic_ns();
        let lead = if node.leads() { Lead::Leads } else { Lead::Follows };
        let shared = Shared {
            in_flight: false,
            sent: 0,
            read_back: 0,
            read_back_ns: now_ns,
            claims: None,
            commands: 0,
        };
        Member {
            liveness: Liveness::new(node.id, options.liveness),
            node,
            options,
            lead,
            next_beat_ns: 0,
            next_hand_over_ns: 0,
            next_usage_ns: 0,
            log_seen: Index(0),
            beats_seen: BTreeMap::new(),
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.held()
    }

    /// One round, several times a beat. An error means that this process may not be this node any
    /// more and must end.
    pub fn step(&mut self, now_ns: u64) -> Result<()> {
        self.node.check_place()?;
        let (id, own) = (self.node.id, self.node.sender.incarnation);
        let seen = self.node.cluster.read(|view, applied| {
            let current = view.node(id).map_or(own, |info| info.incarnation);
            (view.term(), current, view.is_controller(id), applied)
        });
        let (term, current, is_controller, applied) = match seen {
            // The log's host has heard of the other process before this one could.
            Err(e) if e.kind == Kind::Fenced => return Err(replaced(id, &e)),
            Err(e) if e.is(Reason::Overtaken) => return Err(e),
            // The view has stopped, and says so; what is here can be read and asked about.
            Err(_) => return Ok(()),
            Ok(seen) => seen,
        };
        if own == Index(0) {
            return Err(Error::retry(format!(
                "be node `{id}`: it started while its view of the cluster had stopped, so no other \
                 node heard of that; the view goes on now: start this node again"
            )));
        }
        let stopped = self.node.shards.all().filter_map(|(_, fold)| fold.status().stopped);
        // A new start mends it: it takes over a snapshot.
        if let Some(e) = stopped.into_iter().find(|e| e.is(Reason::Overtaken)) {
            return Err(e);
        }
        let has_root = self.node.has_root();
        if applied != self.log_seen {
            self.log_seen = applied;
            self.node.heard_log_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
        if current > own {
            let what = format!(
                "another process has started as this node, at {current} (this one at {own})"
            );
            return Err(replaced(id, &what));
        }
        let leader = term.map(|term| term.leader);
        let own_term = term.filter(|term| term.leader == id);
        let beats = self.beat(now_ns, leader, is_controller);
        if own_term.is_some() && beats && self.should_hand_over(now_ns, has_root) {
            self.node.hand_over()?;
        }
        self.follow_leadership(now_ns, own_term.filter(|_| has_root));
        if self.lead == Lead::Leads && !self.is_stale(now_ns) {
            self.judge(now_ns)?;
        }
        Ok(())
    }

    /// Who knows no names cannot command them: another node leads, if there is one. Who lacks those of one
    /// shard commands the others, but asks now and then whether another node has all: it may be that none has,
    /// and who gets the lead back at once has to do with it what can be done.
    fn should_hand_over(&mut self, now_ns: u64, has_root: bool) -> bool {
        if !has_root {
            return true;
        }
        if self.node.has_names() || now_ns < self.next_hand_over_ns {
            return false;
        }
        self.next_hand_over_ns = now_ns + HAND_OVER_REST_MS * 1_000_000;
        true
    }

    /// Nothing here may be commanded, and reads may be behind, while this holds.
    fn is_stale(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.shared().read_back_ns) > STALE_MS * 1_000_000
    }

    /// Sends a beat if it is time; whether it was.
    fn beat(&mut self, now_ns: u64, leader: Option<NodeId>, is_controller: bool) -> bool {
        if now_ns < self.next_beat_ns || self.shared().in_flight {
            return false;
        }
        self.next_beat_ns = now_ns + BEAT_MS * 1_000_000;
        let number = {
            let mut shared = self.shared();
            shared.in_flight = true;
            shared.sent += 1;
            shared.sent
        };
        let (shared, clock) = (self.shared.clone(), self.node.machine.clock.clone());
        let (beaten, begun_ns) = (self.node.clone(), clock.monotonic_ns());
        let landed = move |result: Result<()>| {
            // Those of controllers alone are entries.
            if is_controller && result.is_ok() {
                beaten.beats.came(begun_ns, clock.monotonic_ns());
            }
            let mut shared = shared.held();
            shared.in_flight = false;
            if result.is_ok() {
                (shared.read_back, shared.read_back_ns) = (number, clock.monotonic_ns());
            }
        };
        if is_controller {
            let (node, incarnation) = (self.node.id, self.node.sender.incarnation);
            let beat = ClusterCommand::Beat { node, incarnation, free: self.node.free_space() };
            self.node.propose_cluster(&beat, Box::new(landed));
            return true;
        }
        let address = leader.and_then(|leader| {
            let address =
                |view: &holdfast_cluster::ClusterView, _| Some(view.node(leader)?.address.clone());
            self.node.cluster.read(address).ok().flatten()
        });
        let Some(address) = address else {
            landed(Err(Error::retry("nobody leads")));
            return true;
        };
        let beat = peer::Beat { sender: self.node.sender, free: self.node.free_space_told() };
        let request = PeerRequest {
            opcode: peer::OP_PEER_BEAT,
            meta: beat.to_bytes(),
            body: None,
            deadline_ms: BEAT_DEADLINE_MS,
        };
        let done = Box::new(move |reply: Result<_>| landed(reply.map(|_| ())));
        self.node.machine.peers.call(&address, request, done);
        true
    }

    /// `term`: in which this node leads, if it does.
    fn follow_leadership(&mut self, now_ns: u64, term: Option<Term>) {
        let Some(term) = term else {
            if self.lead != Lead::Follows {
                self.node.leading.give_up();
            }
            self.lead = Lead::Follows;
            return;
        };
        match self.lead {
            Lead::Follows => self.wait_for_beat(),
            Lead::Waits { beat } => {
                let heard = self.shared().read_back >= beat && !self.is_stale(now_ns);
                if heard || planted!("node.leads-unheard") {
                    self.lead = Lead::Claims;
                    self.shared().claims = None;
                    self.claim(term);
                }
            }
            Lead::Claims => {
                let claimed = self.shared().claims.take();
                match claimed {
                    None => {}
                    Some(Ok(claims)) => {
                        self.node.leading.set(&claims);
                        self.liveness = Liveness::new(self.node.id, self.options.liveness);
                        self.lead = Lead::Leads;
                    }
                    Some(Err(_)) => self.wait_for_beat(),
                }
            }
            // An own claim that was given up and came late, or one of a build that named no term, fences
            // whoever leads now: it claims again.
            Lead::Leads if self.node.is_fenced() => {
                self.node.leading.give_up();
                self.wait_for_beat();
            }
            Lead::Leads => {}
        }
    }

    fn wait_for_beat(&mut self) {
        let beat = self.shared().sent + 1;
        self.lead = Lead::Waits { beat };
    }

    /// Claims the cluster topic, then every shard's, for the term in which this node leads.
    fn claim(&self, term: Term) {
        let shared = self.shared.clone();
        self.node.claim_all(term, Box::new(move |claims| shared.held().claims = Some(claims)));
    }

    /// Beats that were sent here. What they say of free space is told to all, now and then.
    fn hear_others(&mut self, now_ns: u64) -> Vec<HeardBeat> {
        let heard = std::mem::take(&mut *self.node.heard.held());
        if now_ns >= self.next_usage_ns {
            self.next_usage_ns = now_ns + USAGE_MS * 1_000_000;
            let latest: BTreeMap<NodeId, _> =
                heard.iter().map(|(beat, free)| (beat.node, (beat.incarnation, free))).collect();
            // Who keeps views alone has none to tell of.
            let with_stores = latest.into_iter().filter(|(_, (_, free))| !free.is_empty());
            for (node, (incarnation, free)) in with_stores {
                let usage = ClusterCommand::Usage { node, incarnation, free: free.clone() };
                self.node.propose_cluster(&usage, Box::new(|_| ()));
            }
        }
        heard.into_iter().map(|(beat, _)| beat).collect()
    }

    /// Controllers that the log has heard since this was last asked.
    fn beats_in_the_log(&mut self) -> Result<Vec<HeardBeat>> {
        let seen = &mut self.beats_seen;
        self.node.cluster.read(|view, _| {
            let mut heard = Vec::new();
            for (node, seat) in view.controllers() {
                if seen.insert(node, seat.beat) != Some(seat.beat)
                    && let Some(info) = view.node(node)
                {
                    heard.push(HeardBeat { node, incarnation: info.incarnation });
                }
            }
            heard
        })
    }

    /// Says which nodes are unavailable, lost or back.
    fn judge(&mut self, now_ns: u64) -> Result<()> {
        if self.shared().commands > 0 {
            return Ok(());
        }
        let Some(epoch) = self.node.leading.cluster() else { return Ok(()) };
        let confirmed = std::mem::take(&mut self.node.operator().confirmed);
        self.liveness.confirm_lost(confirmed);
        let mut heard = self.hear_others(now_ns);
        heard.extend(self.beats_in_the_log()?);
        let liveness = &mut self.liveness;
        let round =
            self.node.cluster.read(|view, _| liveness.round(now_ns, epoch, view, &heard))?;
        self.node.operator().unconfirmed = round.unconfirmed;
        self.shared().commands = round.commands.len();
        for command in round.commands {
            let shared = self.shared.clone();
            let node = self.node.clone();
            let said = format!("{command:?}");
            let done = Box::new(move |result: Result<()>| {
                shared.held().commands -= 1;
                if let Err(e) = result
                    && !matches!(e.kind, Kind::Retry | Kind::Fenced)
                {
                    node.report_finding(format!("tell the cluster `{said}`: {e}"));
                }
            });
            self.node.command_cluster(&command, done);
        }
        Ok(())
    }
}

impl Node {
    /// Has another node lead from now on, if this one does and there is another. Waits for the log;
    /// whoever does not hear of it finds the silence out.
    pub fn resign(&self) -> Result<()> {
        match self.resignation()? {
            Some(resign) => self.wait_for(|done| self.propose_cluster(&resign, done)),
            None => Ok(()),
        }
    }

    /// As [`Node::resign`], without waiting.
    fn hand_over(&self) -> Result<()> {
        if let Some(resign) = self.resignation()? {
            self.propose_cluster(&resign, Box::new(|_| ()));
        }
        Ok(())
    }

    fn resignation(&self) -> Result<Option<ClusterCommand>> {
        let (node, incarnation) = (self.id, self.sender.incarnation);
        let heir = self.cluster.read(|view, _| {
            let lives = |id: NodeId| {
                view.node(id).is_some_and(|info| info.state == NodeState::Live && !info.draining)
            };
            let others = view.controllers().filter(|(id, seat)| *id != node && !seat.dead);
            view.leader() == Some(node) && others.map(|(id, _)| id).any(lives)
        })?;
        Ok(heir.then_some(ClusterCommand::Resign { node, incarnation }))
    }

    /// Free space of this node's stores, as beats tell it.
    pub(super) fn free_space(&self) -> Vec<FreeSpace> {
        let mut free: Vec<FreeSpace> = Vec::new();
        for own in self.stores.iter() {
            let usage = own.store.usage();
            let free_bytes = if usage.read_only { 0 } else { usage.free_bytes };
            let free_mib = u32::try_from(free_bytes / MIB).unwrap_or(u32::MAX);
            free.push(FreeSpace { store: own.id, free_mib });
        }
        free
    }

    /// Claims the cluster topic for a term, then those of all shards that are open, one after the
    /// other. Answers every claim's index, once all were accepted.
    pub(super) fn claim_all(self: &Arc<Node>, term: Term, done: Done<Claims>) {
        let node = self.clone();
        let claimed = move |cluster: Result<Index>| match cluster {
            Err(e) => done(Err(e)),
            Ok(cluster) => {
                // Those whose views have stopped here take no commands.
                let mut shards: Vec<u16> = node.shards.going().map(|(shard, _)| shard).collect();
                if planted!("node.first-shard-alone-claimed") {
                    shards.truncate(1);
                }
                let claims = Claims { cluster, shards: BTreeMap::new() };
                node.claim_shards(term, shards, claims, done);
            }
        };
        self.cluster.claim(term, Box::new(claimed));
    }

    fn claim_shards(
        self: &Arc<Node>,
        term: Term,
        mut left: Vec<u16>,
        mut claims: Claims,
        done: Done<Claims>,
    ) {
        if left.is_empty() {
            return done(Ok(claims));
        }
        let shard = left.remove(0);
        let fold = match self.shards.get(shard) {
            Ok(fold) => fold,
            Err(e) => return done(Err(e)),
        };
        let node = self.clone();
        let claimed = move |claim: Result<Index>| match claim {
            Err(e) => done(Err(e)),
            Ok(claim) => {
                claims.shards.insert(shard, claim);
                node.claim_shards(term, left, claims, done);
            }
        };
        fold.claim(term, Box::new(claimed));
    }

    /// Whether another claim lies behind those that this node leads under, or one of its shards was
    /// opened since and is not claimed yet.
    fn is_fenced(&self) -> bool {
        let fenced = |(shard, fold): (u16, &Arc<Fold<Namespace>>)| {
            let epoch = fold.status().epoch;
            let unheard = shard > 0 && planted!("node.first-shard-alone-claimed");
            self.leading.shard(shard) != Some(epoch) && !unheard
        };
        self.leading.cluster() != Some(self.cluster.status().epoch)
            || self.shards.going().any(fenced)
    }

    fn free_space_told(&self) -> Vec<peer::FreeSpace> {
        let told = |free: FreeSpace| peer::FreeSpace { store: free.store, free_mib: free.free_mib };
        self.free_space().into_iter().map(told).collect()
    }
}
