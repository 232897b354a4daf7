//! A few nodes in one thread: stores on simulated disks, their peer services, and a network that
//! does to each message what the test's script says.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Generation, Index, NodeId, StoreId, Tier};
use holdfast_base::{Error, Result};
use holdfast_chunk::{Store, StoreConfig};
use holdfast_env::net::{PeerDone, PeerReply, PeerRequest, Peers};
use holdfast_env::{Clock, SeededRng};
use holdfast_node::replicas::{Directory, Place, Replicator};
use holdfast_node::{OwnStore, Stores, Workers};
use holdfast_sim::SimDisk;
use holdfast_wire::peer::Sender;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const CLUSTER: u64 = 77;
/// What a message takes there, and its answer back.
const WAY_MS: u64 = 1;

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// Later than usual.
    Late(u64),
    Lost,
    /// It is carried out, and nobody is told.
    AnswerLost,
    Twice,
    /// It arrives with one bit of its body (or its answer's body) flipped.
    Damaged,
    /// It is carried out, and the answer, a length, says so much more than is true.
    Longer(u64),
}

/// Of sender, receiver and operation.
type Script = Box<dyn FnMut(u32, u32, u16) -> Fate + Send>;
type Event = Box<dyn FnOnce() + Send>;

pub struct Net {
    pub now_ms: u64,
    next: u64,
    events: BTreeMap<(u64, u64), Event>,
    script: Script,
    nodes: BTreeMap<u32, Arc<Replicator>>,
    /// Operations that arrived, with their receivers.
    pub arrived: Vec<(u32, u16)>,
    /// How many were sent later than usual.
    pub sent_late: usize,
    dead: Vec<u32>,
    incarnations: BTreeMap<u32, u64>,
}

pub type Shared = Arc<Mutex<Net>>;

fn schedule(net: &Shared, ms: u64, event: impl FnOnce() + Send + 'static) {
    let mut net = net.lock().unwrap();
    let key = (net.now_ms + ms, net.next);
    net.next += 1;
    net.events.insert(key, Box::new(event));
}

/// One node's view of the network: its clock, its peers, its directory.
struct Ends {
    net: Shared,
    me: u32,
}

impl Clock for Ends {
    fn monotonic_ns(&self) -> u64 {
        self.net.lock().unwrap().now_ms * 1_000_000
    }
    fn unix_ms(&self) -> u64 {
        0
    }
}

impl Peers for Ends {
    fn call(&self, address: &str, mut request: PeerRequest, done: PeerDone) {
        let to: u32 = address.parse().unwrap();
        let (net, me) = (self.net.clone(), self.me);
        let fate = (net.lock().unwrap().script)(me, to, request.opcode);
        let done = Arc::new(Mutex::new(Some(done)));
        let late = done.clone();
        schedule(&net, request.deadline_ms as u64, move || {
            if let Some(done) = late.lock().unwrap().take() {
                done(Err(Error::retry("the answer is overdue")));
            }
        });
        if let (Fate::Damaged, Some(body)) = (fate, &request.body) {
            let mut bytes = (**body).as_ref().to_vec();
            bytes[0] ^= 1;
            request.body = Some(Arc::new(bytes));
        }
        let wait = if let Fate::Late(ms) = fate { ms } else { WAY_MS };
        net.lock().unwrap().sent_late += usize::from(wait > WAY_MS);
        let copies = match fate {
            Fate::Lost => 0,
            Fate::Twice => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let (net, done, request) = (self.net.clone(), done.clone(), request.clone());
            schedule(&self.net, wait, move || deliver(&net, to, request, fate, done));
        }
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        schedule(&self.net, ms, then);
    }
}

fn deliver(
    net: &Shared,
    to: u32,
    request: PeerRequest,
    fate: Fate,
    done: Arc<Mutex<Option<PeerDone>>>,
) {
    let node = {
        let mut net = net.lock().unwrap();
        if net.dead.contains(&to) {
            return;
        }
        net.arrived.push((to, request.opcode));
        net.nodes[&to].clone()
    };
    let body = request.body.map_or(Vec::new(), |body| (*body).as_ref().to_vec());
    let back = net.clone();
    let answered = move |mut reply: Result<PeerReply>| {
        if let (Fate::Damaged, Ok(reply)) = (fate, &mut reply)
            && let Some(byte) = reply.body.first_mut()
        {
            *byte ^= 1;
        }
        if let (Fate::Longer(lie), Ok(reply)) = (fate, &mut reply) {
            let length = u64::from_bytes(&reply.meta).unwrap();
            reply.meta = (length + lie).to_bytes();
        }
        if fate != Fate::AnswerLost && !back.lock().unwrap().dead.contains(&to) {
            schedule(&back, WAY_MS, move || {
                if let Some(done) = done.lock().unwrap().take() {
                    done(reply);
                }
            });
        }
    };
    node.handle(request.opcode, &request.meta, body, Box::new(answered));
}

impl Directory for Ends {
    fn sender(&self) -> Sender {
        let incarnation = Index(self.net.lock().unwrap().incarnations[&self.me]);
        Sender { cluster: CLUSTER, node: NodeId(self.me), incarnation }
    }

    fn admit(&self, sender: &Sender) -> Result<()> {
        if sender.cluster != CLUSTER {
            return Err(Error::invalid("a message of another cluster"));
        }
        let known = self.net.lock().unwrap().incarnations[&sender.node.0];
        if sender.incarnation.0 < known {
            return Err(Error::fenced("a message of an older incarnation"));
        }
        Ok(())
    }

    fn place(&self, store: StoreId) -> Option<Place> {
        let net = self.net.lock().unwrap();
        let (node, _) = net.nodes.iter().find(|(_, n)| n.stores.get(store).is_some())?;
        let live = !net.dead.contains(node);
        Some(Place { node: NodeId(*node), address: node.to_string(), live, lost: false })
    }

    fn counts(&self, _: StoreId, _: ChunkId) -> Result<bool> {
        Ok(false)
    }

    fn may_unlink(&self, _: StoreId, chunk: ChunkId, _: Generation, _: Index) -> Result<()> {
        match chunk.0 % 2 {
            0 => Ok(()),
            _ => Err(Error::retry("the view still names it")),
        }
    }
}

/// The whole of it.
pub struct World {
    pub net: Shared,
    pub disks: BTreeMap<u32, SimDisk>,
}

impl World {
    pub fn new(nodes: u32) -> World {
        let net = Arc::new(Mutex::new(Net {
            now_ms: 1000,
            next: 0,
            events: BTreeMap::new(),
            script: Box::new(|_, _, _| Fate::Arrives),
            nodes: BTreeMap::new(),
            arrived: Vec::new(),
            sent_late: 0,
            dead: Vec::new(),
            incarnations: BTreeMap::new(),
        }));
        let mut world = World { net, disks: BTreeMap::new() };
        (1..=nodes).for_each(|node| world.start(node, SimDisk::new(node as u64)));
        world
    }

    /// Starts a node, or starts it anew on what is left of its disk.
    pub fn start(&mut self, me: u32, disk: SimDisk) {
        let config = StoreConfig {
            reserve_bytes: 1 << 20,
            commit_threads: 0,
            spare_file: false,
            ..StoreConfig::new("/store")
        };
        let rng = Arc::new(SeededRng::new(me as u64));
        let (store, found) = Store::open(Arc::new(disk.clone()), rng, config).unwrap();
        assert!(found.damaged.is_empty(), "{found:?}");
        let own = OwnStore {
            id: found.store,
            tier: Tier::Disk,
            place: "/store".into(),
            store,
            chunk_bytes_max: 1 << 20,
        };
        let ends = Arc::new(Ends { net: self.net.clone(), me });
        let workers = Arc::new(Workers::new("test", 0).unwrap());
        let stores = Arc::new(Stores::new(vec![own]));
        let with = Replicator::new(stores, workers, ends.clone(), ends.clone(), ends);
        self.disks.insert(me, disk);
        let mut net = self.net.lock().unwrap();
        net.nodes.insert(me, with);
        net.dead.retain(|dead| *dead != me);
        *net.incarnations.entry(me).or_default() += 1;
    }

    pub fn kill(&mut self, node: u32) {
        self.net.lock().unwrap().dead.push(node);
    }

    /// Decides the fate of messages from here on.
    pub fn script(&self, script: impl FnMut(u32, u32, u16) -> Fate + Send + 'static) {
        self.net.lock().unwrap().script = Box::new(script);
    }

    pub fn node(&self, node: u32) -> Arc<Replicator> {
        self.net.lock().unwrap().nodes[&node].clone()
    }

    pub fn store(&self, node: u32) -> Store {
        self.node(node).stores.iter().next().unwrap().store.clone()
    }

    pub fn stores(&self, nodes: &[u32]) -> Vec<StoreId> {
        nodes.iter().map(|node| self.store(*node).id()).collect()
    }

    pub fn now_ms(&self) -> u64 {
        self.net.lock().unwrap().now_ms
    }

    /// Runs until nothing is left to happen.
    pub fn settle(&self) {
        self.settle_until(|_| false);
    }

    /// Runs until nothing is left to happen, or `enough`.
    pub fn settle_until(&self, enough: impl Fn(&Net) -> bool) {
        while !enough(&self.net.lock().unwrap()) {
            let live: Vec<Store> = {
                let net = self.net.lock().unwrap();
                let live = net.nodes.iter().filter(|(node, _)| !net.dead.contains(node));
                live.map(|(_, n)| n.stores.iter().next().unwrap().store.clone()).collect()
            };
            live.iter().for_each(Store::pump);
            let event = {
                let mut net = self.net.lock().unwrap();
                let Some(((at, _), event)) = net.events.pop_first() else { return };
                net.now_ms = net.now_ms.max(at);
                event
            };
            event();
        }
    }

    pub fn arrived(&self, opcode: u16) -> usize {
        let net = self.net.lock().unwrap();
        net.arrived.iter().filter(|(_, arrived)| *arrived == opcode).count()
    }
}

/// An answer that a callback leaves.
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Slot<T> {
    pub fn new() -> (Slot<T>, Box<dyn FnOnce(T) + Send>) {
        let slot = Arc::new(Mutex::new(None));
        let answer = Slot(slot.clone());
        let leave = move |value| {
            assert!(slot.lock().unwrap().replace(value).is_none(), "answered twice");
        };
        (answer, Box::new(leave))
    }

    pub fn take(&self) -> Option<T> {
        self.0.lock().unwrap().take()
    }

    /// The answer that must be there.
    pub fn get(&self) -> T {
        self.take().expect("it was not answered")
    }
}
