//! What the replicated chunks must know of the cluster, as the node's own views have it; and how
//! a thread waits for a callback.

use super::ShardFolds;
use super::cuts::Cuts;
use super::replicas::{Directory, Place};
use holdfast_base::ids::{ChunkId, Generation, Index, StoreId};
use holdfast_base::{Error, Result};
use holdfast_chunk::Done;
use holdfast_cluster::{ClusterView, NodeState, StoreState};
use holdfast_env::net::Peers;
use holdfast_view::Fold;
use holdfast_wire::peer::Sender;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

pub(super) struct Views {
    pub sender: Sender,
    pub cluster: Arc<Fold<ClusterView>>,
    pub shards: Arc<ShardFolds>,
    pub cuts: Arc<Cuts>,
}

impl Directory for Views {
    fn sender(&self) -> Sender {
        self.sender
    }

    fn admit(&self, sender: &Sender) -> Result<()> {
        if sender.cluster != self.sender.cluster {
            return Err(Error::invalid(format!(
                "answer a node of cluster `{:016x}`: this node belongs to cluster `{:016x}`: check \
                 the address that it was told to join",
                sender.cluster, self.sender.cluster
            )));
        }
        let (incarnation, address) = self.cluster.read(|view, _| {
            view.node(sender.node)
                .map_or((Index(0), String::new()), |info| (info.incarnation, info.address.clone()))
        })?;
        // A start that this view has not seen yet is good, and so is a node that is starting.
        if sender.incarnation.0 != 0 && sender.incarnation < incarnation {
            return Err(Error::fenced(format!(
                "answer node `{}`, started at {}: another process has started as this node since, \
                 at {incarnation}: end one of them",
                sender.node, sender.incarnation
            )));
        }
        if self.cuts.holds(&address) {
            return Err(Error::retry(format!("answer node `{}`: the way is cut", sender.node)));
        }
        Ok(())
    }

    fn place(&self, store: StoreId) -> Option<Place> {
        let place = self.cluster.read(|view, _| {
            let info = view.store(store)?;
            let node = view.node(info.node)?;
            Some(Place {
                node: info.node,
                address: node.address.clone(),
                live: view.store_serves(store),
                lost: node.state == NodeState::Lost
                    || matches!(info.state, StoreState::Gone | StoreState::Absent),
            })
        });
        place.ok().flatten()
    }

    fn counts(&self, store: StoreId, chunk: ChunkId) -> Result<bool> {
        let known = self.shards.get(chunk.shard())?.read(|view, _| {
            view.chunks().get(chunk).map(|known| (known.is_kept(), known.replicas.contains(&store)))
        })?;
        match known {
            Some((true, counts)) => Ok(counts),
            _ => Err(Error::retry(format!(
                "replace chunk `{chunk}` in store `{store}`: this node does not know (yet) that it \
                 is sealed"
            ))),
        }
    }

    fn may_unlink(
        &self,
        store: StoreId,
        chunk: ChunkId,
        generation: Generation,
        index: Index,
    ) -> Result<()> {
        let (applied, holds) = self.shards.get(chunk.shard())?.read(|view, applied| {
            (applied, view.chunks().names_replica(chunk, generation, store))
        })?;
        if applied < index {
            return Err(Error::retry(format!(
                "unlink chunk `{chunk}`: this node has applied entries up to {applied}, not yet \
                 {index}"
            )));
        }
        if holds {
            return Err(Error::invalid(format!(
                "unlink chunk `{chunk}` generation `{generation}` from `{store}`: it belongs there"
            )));
        }
        Ok(())
    }
}

/// Waits for a callback; `pump` does the work of a node without threads.
pub(super) fn wait_for<T: Send + 'static>(
    peers: &dyn Peers,
    pump: &dyn Fn(),
    start: impl FnOnce(Done<T>),
) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    start(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    let ended = || Error::retry("wait for an answer: whoever owed it has ended");
    loop {
        pump();
        match receiver.try_recv() {
            Ok(result) => return result,
            Err(TryRecvError::Disconnected) => return Err(ended()),
            Err(TryRecvError::Empty) => {}
        }
        if !peers.step()? {
            return receiver.recv().map_err(|_| ended())?;
        }
    }
}
