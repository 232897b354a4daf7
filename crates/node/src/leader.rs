//! What the leader does for others: seals the chunks of writers that have fallen silent, and has
//! missing copies made again. Never waits; what it starts ends in callbacks and is looked at in the
//! next round. Which copy goes where is decided in `repair`, what a fence means in `replicas`.

use super::Node;
use holdfast_base::Result;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{ChunkId, Durability, Generation, StoreId, Tier};
use holdfast_chunk::Done;
use holdfast_cluster::repair::{self, Balance, Landed, Nodes, Orders, Repair, Round, Site};
use holdfast_cluster::{ChunkState, Chunks, Command, Namespace, NodeState, Outcome};
use holdfast_env::HoldMutex;
use holdfast_env::net::{PeerReply, PeerRequest};
use holdfast_env::trial::Knob;
use holdfast_wire::admin::Recovery;
use holdfast_wire::peer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// An answer to a plan is worth nothing after the next one.
const PLAN_DEADLINE_MS: u32 = 2000;
/// A chunk whose seal failed is left alone for so long.
const REST_MS: u64 = 1000;
/// Chunks that are fenced and sealed at a time.
static SEALS_MAX: Knob = Knob::new("leader.seals", 64, &[1, 2]);

/// The leader's work in progress. Nothing in it outlives its process or its leadership.
#[derive(Clone, Default)]
pub struct Leader {
    work: Arc<Mutex<Work>>,
    at_random: bool,
}

#[derive(Default)]
struct Work {
    sealing: BTreeSet<ChunkId>,
    /// Until when a chunk whose seal failed is left alone.
    resting: BTreeMap<ChunkId, u64>,
    /// Of the present leadership.
    repair: Option<Repair>,
    balance: Balance,
    /// Chunks of which nothing is left.
    lost: u64,
}

impl Leader {
    /// `at_random`: repair is planned by chance, to compare with.
    pub fn new(at_random: bool) -> Leader {
        Leader { at_random, ..Leader::default() }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.held()
    }

    /// One round, 25 times a second: every node looks at its link; what else there is, only the
    /// one that leads does.
    pub fn step(&self, node: &Arc<Node>, now_ns: u64) -> Result<()> {
        node.replicator.regulate(node.machine.meter.total());
        if !node.leads() {
            self.work().repair = None;
            return Ok(());
        }
        self.work().resting.retain(|_, until| *until > now_ns);
        self.seal_for_silent(node)?;
        self.repair(node, now_ns)
    }

    /// How repair is doing, as far as this node knows; what is short, the view says.
    pub fn recovery(&self) -> Recovery {
        let work = self.work();
        let told = work.repair.as_ref().map_or_else(Recovery::default, |r| r.told().clone());
        Recovery { lost: work.lost, ..told }
    }

    fn seal_for_silent(&self, node: &Arc<Node>) -> Result<()> {
        let silent: BTreeSet<_> = node.cluster.read(|view, _| {
            let silent = view.nodes().filter(|(_, info)| info.state != NodeState::Live);
            silent.map(|(id, _)| id).collect()
        })?;
        if silent.is_empty() {
            return Ok(());
        }
        let orphans = node.gather_chunks(|view| {
            let open = view.iter().filter(|chunk| chunk.state == ChunkState::Open);
            let silent = open.filter(|chunk| silent.contains(&chunk.node));
            silent.map(|chunk| chunk.id).collect::<Vec<ChunkId>>()
        })?;
        for chunk in orphans {
            self.seal_silent(node, chunk);
        }
        Ok(())
    }

    /// Fences a chunk and has the log decide its length.
    fn seal_silent(&self, node: &Arc<Node>, chunk: ChunkId) {
        {
            let mut work = self.work();
            let full = work.sealing.len() >= SEALS_MAX.size();
            if full {
                SEALS_MAX.cross();
            }
            let busy = full || work.resting.contains_key(&chunk);
            if busy || !work.sealing.insert(chunk) {
                return;
            }
        }
        let (work, clock) = (self.work.clone(), node.machine.clock.clone());
        node.seal_silent(
            chunk,
            Box::new(move |result| {
                let mut work = work.held();
                work.sealing.remove(&chunk);
                if result.is_err() {
                    work.resting.insert(chunk, clock.monotonic_ns() + REST_MS * 1_000_000);
                }
            }),
        );
    }

    /// Plans copies anew, when it is time, and tells the nodes.
    fn repair(&self, node: &Arc<Node>, now_ns: u64) -> Result<()> {
        let Some(epoch) = node.leading.cluster() else { return Ok(()) };
        {
            let mut work = self.work();
            if work.repair.as_ref().is_none_or(|repair| repair.epoch() != epoch) {
                work.repair = Some(Repair::new(epoch, now_ns, self.at_random));
            }
            if !work.repair.as_ref().is_some_and(|repair| repair.is_due(now_ns)) {
                return Ok(());
            }
        }
        let (short, lost) = node.read_all(|all| {
            let holds = |store| node.cluster.read(|view, _| view.store_holds(store));
            let lost: Vec<_> = all
                .iter()
                .flat_map(|shard| shard.chunks().lost(|store| holds(store).unwrap_or(true)))
                // Memory is told of as a whole: see `Node::lost_memory`.
                .filter_map(|id| all.chunk(id).ok()?.filter(|chunk| chunk.tier != Tier::Dram))
                .map(|known| {
                    // Those on nodes that count as lost are back when one of these is.
                    let files = || all.files_of(known.id, 8);
                    (known.id, known.is_lost().then(files))
                })
                .collect();
            let chunks: Vec<&Chunks> = all.iter().map(Namespace::chunks).collect();
            let short = node.cluster.read(|view, _| {
                let mut tasks = repair::tasks(&chunks, view);
                let balance = &mut self.work().balance;
                // How full stores are is not known without all shards.
                if tasks.is_empty() && all.is_whole() {
                    tasks = balance.tasks(now_ns, &chunks, view);
                } else {
                    balance.forget();
                }
                (tasks, Nodes::of(view), view.recovery())
            });
            (short, lost)
        })?;
        let in_stopped = lost_in_stopped(node);
        let (tasks, nodes, settings) = short?;
        let gone = lost.iter().filter_map(|(chunk, files)| Some((chunk, files.as_ref()?)));
        for (chunk, files) in gone {
            node.report_finding(format!(
                "chunk `{chunk}` has no copy left; bytes of {} are gone",
                if files.is_empty() { "no named file".to_owned() } else { files.join(", ") }
            ));
        }
        let (orders, found) = {
            let mut work = self.work();
            work.lost = lost.len() as u64 + in_stopped;
            let Some(repair) = &mut work.repair else { return Ok(()) };
            repair.round(&Round { now_ns, tasks: &tasks, nodes: &nodes, settings })?
        };
        found.into_iter().for_each(|landed| self.count(node, landed));
        for orders in orders {
            if let Some(site) = nodes.site(orders.node) {
                self.tell(node, orders, site.clone());
            }
        }
        Ok(())
    }

    /// Tells one node, and takes its report.
    fn tell(&self, node: &Arc<Node>, orders: Orders, site: Site) {
        let (leader, with) = (self.clone(), node.clone());
        let epoch = orders.plan.epoch;
        let done = move |report: Result<peer::Report>| {
            // Silence is for `liveness` to judge; the next round asks again.
            let Ok(report) = report else { return };
            let now_ns = with.machine.clock.monotonic_ns();
            let landed = {
                let mut work = leader.work();
                let Some(repair) = work.repair.as_mut().filter(|r| r.epoch() == epoch) else {
                    return;
                };
                repair.heard(now_ns, &site, report)
            };
            landed.into_iter().for_each(|landed| leader.count(&with, landed));
        };
        let plan = peer::CopyPlan { sender: node.sender, ..orders.plan };
        if orders.node == node.id {
            return done(node.replicator.follow(plan));
        }
        let request = PeerRequest {
            opcode: peer::OP_PEER_PLAN,
            meta: plan.to_bytes(),
            body: None,
            deadline_ms: PLAN_DEADLINE_MS,
        };
        let read = move |reply: Result<PeerReply>| {
            done(reply.and_then(|reply| super::replicas::decode(&reply)));
        };
        node.machine.peers.call(&orders.address, request, Box::new(read));
    }

    /// Makes a copy that is there count.
    fn count(&self, node: &Arc<Node>, landed: Landed) {
        let Landed { chunk, generation, store } = landed;
        let (leader, clock) = (self.clone(), node.machine.clock.clone());
        let counted: Done<Outcome> = Box::new(move |counted| {
            let mut work = leader.work();
            if let Some(repair) = &mut work.repair {
                repair.counted(clock.monotonic_ns(), landed, counted.map(|_| ()));
            }
        });
        let add = Command::AddReplica { chunk, generation, store };
        node.command(chunk.shard(), &add, Durability::Durable, counted);
    }
}

impl Node {
    /// Replicas that failed their checksums do not count any more, where another one does.
    pub(super) fn drop_bad(self: &Arc<Node>) {
        for bad in self.replicator.take_bad_blocks() {
            let known = self.read_chunk(bad.chunk, |view, _| {
                let known = view.get(bad.chunk)?;
                let others = known.replicas.len() > 1 && known.replicas.contains(&bad.store);
                others.then_some((known.generation, known.durability, known.state))
            });
            self.report_finding(format!(
                "chunk `{}` is damaged in store `{}`: {}",
                bad.chunk, bad.store, bad.what
            ));
            let Ok(Some((generation, durability, state))) = known else { continue };
            if state == ChunkState::Open {
                // Once it is sealed, whoever reads it says so again.
                continue;
            }
            self.drop_replica(bad.chunk, generation, bad.store, durability);
        }
    }

    pub(super) fn drop_replica(
        self: &Arc<Node>,
        chunk: ChunkId,
        generation: Generation,
        store: StoreId,
        durability: Durability,
    ) {
        let node = self.clone();
        let command = Command::DropReplica { chunk, generation, store, lost: false };
        let done = move |outcome: Result<Outcome>| {
            if let Err(e) = outcome {
                node.report_finding(format!(
                    "drop the replica of `{chunk}` in store `{store}`: {e}"
                ));
            }
        };
        self.propose_own(command, durability, Box::new(done));
    }
}

/// Chunks without a copy of shards whose views have stopped here: nothing is done about them, but they count.
fn lost_in_stopped(node: &Node) -> u64 {
    let holds = |store| node.cluster.read(|view, _| view.store_holds(store)).unwrap_or(true);
    let stopped = node.shards.all().filter(|(_, fold)| fold.status().stopped.is_some());
    let lost = stopped.map(|(_, fold)| {
        fold.read_last(|view| {
            let chunks = view.chunks();
            let on_disk = |id: &ChunkId| chunks.get(*id).is_some_and(|c| c.tier != Tier::Dram);
            chunks.lost(holds).iter().filter(|id| on_disk(id)).count() as u64
        })
    });
    lost.sum()
}
