//! Other nodes at this node's log, over real connections: a mirror each, folds that agree, and
//! strangers that are refused.

mod common;

use common::World;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Index, NodeId, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{PeerRequest, Peers, Server, ServerConfig, TcpPeers};
use holdfast_env::{RealClock, RealDisk};
use holdfast_log::{Log, Mode, RemoteLog};
use holdfast_server::Native;
use holdfast_view::{Applied, Context, Fold, FoldOptions, Request, SnapshotStore, View};
use holdfast_wire::peer::Sender;
use holdfast_wire::peer_log as wire;
use std::sync::{Arc, mpsc};

const TOPIC: &str = "counts";
const MANUAL: FoldOptions = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };

/// Counts; the result of a command is the new count.
#[derive(Default)]
struct Count(u64);

impl View for Count {
    const NAME: &'static str = "count";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> Count {
        Count::default()
    }

    fn apply(&mut self, _: Index, _: &[u8]) -> Applied {
        self.0 += 1;
        Applied::Ok(self.0.to_le_bytes().to_vec())
    }
    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&self.0);
    }
    fn restore(_: &Context, _: &mut Source<'_>) -> Result<Count> {
        Err(Error::bug("no snapshot is taken here"))
    }
}

struct Cluster {
    id: u64,
    world: World,
    address: String,
    service: Arc<Native>,
    server: Option<Server>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Or the server would wait for the mirrors' reads.
        self.service.release_peers();
        self.server = None;
    }
}

fn cluster(name: &str) -> Cluster {
    let world = World::new(name);
    world.node().log.create(TOPIC).unwrap();
    let service = common::service(world.node());
    let server = serve(service.clone());
    let address = server.tcp_addresses()[0].to_string();
    let id = world.node().sender.cluster;
    Cluster { id, world, address, service, server: Some(server) }
}

fn serve(service: Arc<Native>) -> Server {
    let config = ServerConfig {
        tcp: vec![([127, 0, 0, 1], 0).into()],
        reactors: 1,
        ..ServerConfig::default()
    };
    Server::start(config, service, Arc::new(RealClock::new())).unwrap()
}

fn sender(cluster: u64, node: u32) -> Sender {
    Sender { cluster, node: NodeId(node), incarnation: Index(0) }
}

fn remote(cluster: &Cluster, node: u32) -> Arc<RemoteLog> {
    let peers = Arc::new(TcpPeers::start(Arc::new(RealClock::new())).unwrap());
    Arc::new(RemoteLog::new(peers, &cluster.address, sender(cluster.id, node)))
}

fn member(cluster: &Cluster, log: Arc<dyn Log>, name: &str) -> Fold<Count> {
    let directory = cluster.world.data.join(name);
    let snapshots = SnapshotStore { disk: Arc::new(RealDisk), directory };
    Fold::open_member(log, TOPIC, snapshots, MANUAL).unwrap()
}

fn wait<T: Send + 'static>(start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>)) -> Result<T> {
    let (send, receive) = mpsc::channel();
    start(Box::new(move |result| send.send(result).unwrap()));
    receive.recv().unwrap()
}

fn request(mode: Mode) -> Request {
    Request {
        session: SessionId(0),
        sequence: Sequence(0),
        acknowledged_below: Sequence(0),
        command: vec![1; 100],
        mode,
    }
}

#[test]
fn members_on_many_threads_get_every_place_in_the_order_once_and_agree() {
    let cluster = cluster("peers-agree");
    let host: Arc<dyn Log> = cluster.world.node().log.clone();
    let folds = [
        member(&cluster, host, "one"),
        member(&cluster, remote(&cluster, 2), "two"),
        member(&cluster, remote(&cluster, 3), "three"),
    ];
    let mut results: Vec<(Index, u64)> = std::thread::scope(|scope| {
        let propose = |fold: &Fold<Count>, i: usize| {
            let mode = if i.is_multiple_of(2) { Mode::Synced } else { Mode::Ordered };
            let (index, count) = wait(|done| fold.propose(request(mode), done)).unwrap();
            let count = u64::from_le_bytes(count.try_into().unwrap());
            assert!(fold.read(|view, _| view.0).unwrap() >= count, "reads its own write");
            (index, count)
        };
        let threads: Vec<_> = (0..6)
            .map(|t| {
                let fold = &folds[t % 3];
                scope.spawn(move || (0..40).map(|i| propose(fold, i)).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    results.sort();
    let expected: Vec<(Index, u64)> = (1..=240).map(|n| (Index(n), n)).collect();
    assert_eq!(results, expected);
    cluster.world.node().log.sync(TOPIC).unwrap();
    for fold in &folds {
        wait(|done| fold.wake_at(Index(240), done)).unwrap();
        assert_eq!(fold.status().digest, folds[0].status().digest);
    }
}

#[test]
fn entries_as_long_as_they_may_be_reach_the_mirror() {
    let cluster = cluster("peers-long");
    let log = remote(&cluster, 2);
    let long = vec![5; holdfast_base::limits::ENTRY_BYTES_MAX];
    let entries = vec![long.clone(), vec![6], long.clone()];
    let first = wait(|done| log.append(TOPIC, entries, Mode::Synced, done)).unwrap().first();
    let page = log.read(TOPIC, first, 10, usize::MAX, holdfast_log::Scope::Durable).unwrap();
    assert_eq!(page.len(), 3);
    assert!(page[0].1 == long && page[1].1 == [6] && page[2].1 == long);
    assert_eq!(log.info(TOPIC).unwrap().next, Index(first.0 + 3));
}

#[test]
fn strangers_are_refused_whatever_they_ask() {
    let cluster = cluster("peers-strangers");
    let peers = TcpPeers::start(Arc::new(RealClock::new())).unwrap();
    let ask = |address: &str, sender: Sender, opcode: u16| {
        let topic = TOPIC.to_owned();
        let meta = wire::Describe { sender, topic }.to_bytes();
        let request = PeerRequest { opcode, meta, body: None, deadline_ms: 30_000 };
        wait(|done| peers.call(address, request, done))
    };
    for opcode in wire::OP_PEER_LOG_APPEND..=wire::OP_PEER_LOG_INFO {
        let e = ask(&cluster.address, sender(8, 2), opcode).unwrap_err();
        let both = [format!("{:016x}", 8), format!("{:016x}", cluster.id)];
        assert!(e.kind == Kind::Invalid && both.iter().all(|id| e.message.contains(id)), "{e}");
    }
    ask(&cluster.address, sender(cluster.id, 2), wire::OP_PEER_LOG_INFO).unwrap();
}
