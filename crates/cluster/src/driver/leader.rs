//! What the leader does for others: seals the chunks of writers that have fallen silent, and has
//! missing copies made again. Never waits; what it starts ends in callbacks and is looked at in the
//! next round. Which copy goes where is decided in `repair`, what a fence means in `replicas`.

use super::Node;
use crate::repair::{self, Assignment, Limits, Nodes};
use crate::{ChunkState, Command, NodeState, Outcome};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Durability, Generation, StoreId};
use holdfast_chunk::Done;
use holdfast_client::wire::admin::Recovery;
use holdfast_client::wire::peer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// What one node may send, and receive, for repair unless a person says otherwise.
pub const REPAIR_BYTES_PER_SECOND: u64 = 64 << 20;
/// One order to copy waits so long for its end; the next one joins the copy that is under way.
const COPY_MS: u32 = 20_000;
/// A chunk whose copy or seal failed is left alone for so long.
const REST_MS: u64 = 1000;
/// Chunks that are fenced and sealed at a time.
const SEALS_MAX: usize = 64;

/// The leader's work in progress. Nothing in it outlives its process or its leadership.
#[derive(Clone, Default)]
pub struct Leader {
    work: Arc<Mutex<Work>>,
}

#[derive(Default)]
struct Work {
    sealing: BTreeSet<ChunkId>,
    copying: BTreeMap<(ChunkId, StoreId), Assignment>,
    /// Until when a chunk is left alone.
    resting: BTreeMap<ChunkId, u64>,
    /// For people.
    told: Recovery,
}

impl Leader {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder of this lock panics")
    }

    /// One round; does nothing on a node that does not lead.
    pub fn step(&self, node: &Arc<Node>, now_ns: u64) -> Result<()> {
        if !node.leads() {
            return Ok(());
        }
        self.work().resting.retain(|_, until| *until > now_ns);
        self.seal_for_silent(node)?;
        self.repair(node)
    }

    /// How repair is doing, as far as this node knows; what is short, the view says.
    pub fn recovery(&self) -> Recovery {
        self.work().told.clone()
    }

    fn seal_for_silent(&self, node: &Arc<Node>) -> Result<()> {
        let silent: BTreeSet<_> = node.cluster.read(|view, _| {
            let silent = view.nodes().filter(|(_, info)| info.state != NodeState::Live);
            silent.map(|(id, _)| id).collect()
        })?;
        if silent.is_empty() {
            return Ok(());
        }
        let orphans: Vec<ChunkId> = node.namespace.read(|view, _| {
            let open = view.chunks().filter(|chunk| chunk.state == ChunkState::Open);
            open.filter(|chunk| silent.contains(&chunk.node)).map(|chunk| chunk.id).collect()
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
            let busy = work.sealing.len() >= SEALS_MAX || work.resting.contains_key(&chunk);
            if busy || !work.sealing.insert(chunk) {
                return;
            }
        }
        let (work, clock) = (self.work.clone(), node.machine.clock.clone());
        node.seal_silent(
            chunk,
            Box::new(move |result| {
                let mut work = work.lock().expect("no holder of this lock panics");
                work.sealing.remove(&chunk);
                if result.is_err() {
                    work.resting.insert(chunk, clock.monotonic_ns() + REST_MS * 1_000_000);
                }
            }),
        );
    }

    fn repair(&self, node: &Arc<Node>) -> Result<()> {
        let (tasks, lost) = node.namespace.read(|namespace, _| {
            let lost: Vec<_> = namespace
                .lost_chunks()
                .map(|chunk| (chunk.id, namespace.files_of(chunk.id, 8)))
                .collect();
            let tasks =
                node.cluster.read(|view, _| (repair::tasks(namespace, view), Nodes::of(view)));
            (tasks, lost)
        })?;
        let (mut tasks, nodes) = tasks?;
        for (chunk, files) in &lost {
            node.find(format!(
                "chunk `{chunk}` has no copy left; bytes of {} are gone",
                if files.is_empty() { "no named file".to_owned() } else { files.join(", ") }
            ));
        }
        let planned = {
            let mut work = self.work();
            work.told.lost = lost.len() as u64;
            tasks.retain(|task| !work.resting.contains_key(&task.chunk));
            let running: Vec<Assignment> = work.copying.values().copied().collect();
            let planned = repair::plan(&tasks, &nodes, &running, Limits::default());
            for copy in &planned {
                work.copying.insert((copy.chunk, copy.target), *copy);
            }
            work.told.copies = work.copying.len() as u64;
            planned
        };
        for copy in planned {
            self.copy(node, copy);
        }
        Ok(())
    }

    /// Orders one copy and makes it count once it is there.
    fn copy(&self, node: &Arc<Node>, copy: Assignment) {
        let leader = self.clone();
        let adder = node.clone();
        let done: Done<()> = Box::new(move |copied| {
            let (chunk, generation, store) = (copy.chunk, copy.generation, copy.target);
            let add = Command::AddReplica { chunk, generation, store };
            let ended = leader.clone();
            let clock = adder.machine.clock.clone();
            let counted: Done<Outcome> =
                Box::new(move |counted| ended.ended(copy, clock.monotonic_ns(), counted.is_ok()));
            match copied {
                Ok(()) => adder.command(&add, Durability::Durable, counted),
                Err(e) => counted(Err(e)),
            }
        });
        let share = Limits::default().per_node as u64;
        let bytes_per_second = node.repair_rate() / share;
        node.order_copy(copy, bytes_per_second, done);
    }

    fn ended(&self, copy: Assignment, now_ns: u64, counted: bool) {
        let mut work = self.work();
        work.copying.remove(&(copy.chunk, copy.target));
        if counted {
            work.told.copies_made += 1;
        } else {
            work.told.copies_failed += 1;
            work.resting.insert(copy.chunk, now_ns + REST_MS * 1_000_000);
        }
    }
}

impl Node {
    /// Has the target's node pull a chunk.
    fn order_copy(self: &Arc<Node>, copy: Assignment, bytes_per_second: u64, done: Done<()>) {
        let address = |store| self.replicator.directory.place(store).map(|place| place.address);
        let (Some(source_address), Some(target)) = (address(copy.source), address(copy.target))
        else {
            return done(Err(holdfast_base::Error::retry("order a copy: a store is not known")));
        };
        let Assignment { chunk, generation, source, target: store } = copy;
        let sender = self.sender;
        let order = peer::Copy {
            sender,
            store,
            chunk,
            generation,
            source,
            source_address,
            bytes_per_second,
        };
        if self.stores.get(store).is_some() {
            return self.replicator.copy(order, done);
        }
        let op = peer::OP_PEER_COPY;
        self.replicator.tell(&target, op, &order, COPY_MS, done);
    }

    /// What one node may send, and receive, for repair.
    pub fn repair_rate(&self) -> u64 {
        match self.operator().repair_bytes_per_second {
            0 => REPAIR_BYTES_PER_SECOND,
            rate => rate,
        }
    }

    pub fn set_repair_rate(&self, bytes_per_second: u64) {
        self.operator().repair_bytes_per_second = bytes_per_second;
        self.replicator.set_export_rate(bytes_per_second);
    }

    /// Replicas that failed their checksums do not count any more, where another one does.
    pub(super) fn drop_bad(self: &Arc<Node>) {
        for bad in self.replicator.take_bad_blocks() {
            let known = self.namespace.read(|view, _| {
                let known = view.chunk(bad.chunk)?;
                let others = known.replicas.len() > 1 && known.replicas.contains(&bad.store);
                others.then_some((known.generation, known.durability, known.state))
            });
            self.find(format!(
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
                node.find(format!("drop the replica of `{chunk}` in store `{store}`: {e}"));
            }
        };
        self.propose_own(command, durability, Box::new(done));
    }
}
