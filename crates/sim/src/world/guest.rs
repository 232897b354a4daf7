//! Guests: faces that live in the simulated world beside files. A guest opens its face on each node
//! that starts, has clients that work while faults are drawn, and says when everything is quiet
//! again whether its promises held. The world knows no guest by name: a schedule brings them.

use super::Shared;
use super::cell::{MS, address};
use crate::task::{Left, sleep, slot};
use crate::{Life, SimNet};
use holdfast_base::Result;
use holdfast_base::rates::Allowance;
use holdfast_env::net::{Named, PeerReply, PeerRequest, Peers};
use holdfast_env::{Rng, SeededRng};
use holdfast_node::Node;
use holdfast_server::{Face, Route};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long an answer may take before another gateway is asked.
pub(super) const DEADLINE_MS: u32 = 5000;

/// What a client of a guest does.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One face in the world; of each schedule anew, so that it may keep a model of what it was told.
pub trait Guest: Send + Sync {
    /// Opens the face on a node that has just started, as production does: each process anew.
    /// What it has to wait for later, it spawns on the network's queue (`crate::task::spawn`).
    fn open(&self, node: &Arc<Node>, net: &SimNet) -> Result<Lodging>;

    /// What the tier in memory has on each node, in bytes; 0 for none.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// What each client with a name may take of a process that starts now.
    fn allowance(&self, rng: &SeededRng) -> Allowance {
        let _ = rng;
        Allowance::default()
    }

    /// Clients that work at the same time.
    fn clients(&self) -> usize;

    /// What one of them does until `end_ns`. It must end soon after that, whatever fails.
    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work;

    /// The faults are over, all nodes run, and every chunk has its copies: what does not hold now is
    /// a broken promise.
    fn check(self: Arc<Self>, visitor: Visitor) -> Work;
}

/// A guest's face on one process.
pub struct Lodging {
    pub face: Arc<dyn Face + Send + Sync>,
    /// Its housekeeping, once a second.
    pub round: Box<dyn Fn() + Send + Sync>,
}

impl Lodging {
    /// Of a guest that asks for what every node answers.
    pub fn nothing() -> Lodging {
        Lodging { face: Arc::new(Nothing), round: Box::new(|| ()) }
    }
}

struct Nothing;

impl Face for Nothing {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        Vec::new()
    }
}

/// Somebody at a machine of their own who asks nodes, as clients do.
pub struct Visitor {
    pub(super) name: String,
    pub(super) net: SimNet,
    pub(super) shared: Arc<Shared>,
    pub(super) rng: SeededRng,
    peers: Arc<dyn Peers>,
    gateways: usize,
}

impl Visitor {
    pub(super) fn new(
        name: String,
        seed: u64,
        gateways: usize,
        net: &SimNet,
        shared: &Arc<Shared>,
    ) -> Visitor {
        Visitor {
            peers: net.peers(&name, &Life::default()),
            name,
            net: net.clone(),
            shared: shared.clone(),
            rng: SeededRng::new(seed),
            gateways,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn now_ns(&self) -> u64 {
        self.net.now_ns()
    }

    /// What waits for the log may wait for its engine.
    pub fn log_is_unruly(&self) -> bool {
        self.shared.unruly
    }

    /// Nodes are numbered from 1 to this.
    pub fn gateways(&self) -> usize {
        self.gateways
    }

    /// A number that the seed decides.
    pub fn below(&self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    pub fn any_gateway(&self) -> usize {
        1 + self.below(self.gateways as u64) as usize
    }

    /// Asks a node. An error may mean that nobody knows whether it was done.
    pub async fn ask(
        &self,
        gateway: usize,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<&[u8]>,
    ) -> Result<PeerReply> {
        self.send_by(&self.peers, gateway, opcode, meta, body).await
    }

    /// As [`Visitor::ask`], over a connection that began with a token.
    pub async fn ask_as(
        &self,
        named: &Named,
        gateway: usize,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<&[u8]>,
    ) -> Result<PeerReply> {
        self.send_as(named, gateway, opcode, meta, body).await
    }

    /// As [`Visitor::ask_as`], without waiting: for who asks for more before the answer is there.
    pub fn send_as(
        &self,
        named: &Named,
        gateway: usize,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<&[u8]>,
    ) -> Left<Result<PeerReply>> {
        let peers = self.net.peers_named(&self.name, Some(named.clone()), &Life::default());
        self.send_by(&peers, gateway, opcode, meta, body)
    }

    fn send_by(
        &self,
        peers: &Arc<dyn Peers>,
        gateway: usize,
        opcode: u16,
        meta: Vec<u8>,
        body: Option<&[u8]>,
    ) -> Left<Result<PeerReply>> {
        let (leave, left) = slot();
        let body = body.map(|body| Arc::new(body.to_vec()) as _);
        let request = PeerRequest { opcode, meta, body, deadline_ms: DEADLINE_MS };
        peers.call(&address(gateway), request, Box::new(leave));
        left
    }

    /// Ends the connections to a node; the next request begins one.
    pub fn hang_up(&self, gateway: usize) {
        self.net.hang_up(&self.name, &address(gateway));
    }

    /// Processes that have started so far.
    pub fn starts(&self) -> u64 {
        self.shared.starts.load(Ordering::Relaxed)
    }

    /// Whether a promise was broken, and nobody need go on.
    pub fn is_over(&self) -> bool {
        self.shared.is_over()
    }

    /// Before the same is tried again.
    pub async fn pause(&self) {
        sleep(&self.net, (20 + self.below(400)) * MS).await;
    }

    /// Up to a second, as people take between two requests.
    pub async fn think(&self) {
        sleep(&self.net, self.below(1000) * MS).await;
    }

    /// A line of the trace.
    pub fn note(&self, what: &str) {
        self.net.note(&format!("{} {what}", self.name));
    }

    /// One more operation was tried.
    pub fn count_operation(&self) {
        self.shared.count_operation();
    }

    /// Something happened that a promise is about.
    pub fn sometimes(&self, happened: bool, what: &'static str) {
        self.shared.sometimes(happened, what);
    }

    /// A promise was broken: the schedule is over.
    pub fn violate(&self, what: &str) {
        self.shared.violate(format!("{}: {what}", self.name));
    }
}
