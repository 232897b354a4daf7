//! Horizons that are moved while others ride: none passes a ride that was there when it was asked for, and
//! goes on. What clients of [`super::items`] share.

use crate::world::guest::Visitor;
use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Index, NodeId};
use holdfast_cluster::NodeState;
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

#[derive(Default)]
pub(super) struct Horizons {
    state: Mutex<State>,
    /// As they were opened last.
    nodes: Mutex<BTreeMap<u32, Weak<Node>>>,
}

#[derive(Default)]
struct State {
    /// Rises with all that happens here.
    now: u64,
    /// When each horizon that is known was asked for, and where it was then.
    moved: Vec<(u64, Index)>,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

/// A ride: by which gateway, as of which entry, since when.
#[derive(Clone, Copy)]
pub(super) struct Riding {
    gateway: usize,
    at: Index,
    since: u64,
}

impl Horizons {
    pub fn node_begins(&self, node: &Arc<Node>) {
        self.nodes.held().insert(node.id.0, Arc::downgrade(node));
    }

    /// Asks for the horizon to be moved to this entry.
    pub async fn ask(&self, visitor: &Visitor, gateway: usize, topic: &str, index: Index) {
        let asked = self.state.held().tick();
        let horizon = msg::Horizon { topic: topic.to_owned(), call: Call::default(), index };
        match visitor.ask(gateway, wire::OP_VIEW_HORIZON, horizon.to_bytes(), None).await {
            Ok(reply) => {
                let moved = msg::Moved::from_bytes(&reply.meta).expect("what was answered");
                visitor.note(&format!("moved the horizon to {}", moved.horizon));
                visitor.sometimes(moved.horizon.0 > 0, "the horizon was moved");
                self.state.held().moved.push((asked, moved.horizon));
            }
            Err(e) if matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid) => {
                visitor.violate(&format!("a horizon: {e}"));
            }
            Err(e) => visitor.note(&format!("does not know of its horizon: {e}")),
        }
    }

    /// Somebody was told that it rides.
    pub fn rides(&self, gateway: usize, at: Index) -> Riding {
        Riding { gateway, at, since: self.state.held().tick() }
    }

    /// A ride goes on: no horizon that was asked for since it began has passed it, unless its hold has run
    /// out or its node is not one of the cluster any more.
    pub fn check(&self, visitor: &Visitor, log_topic: &str, riding: Riding) {
        let Riding { gateway, at, since } = riding;
        let passed = {
            let state = self.state.held();
            state.moved.iter().find(|(asked, horizon)| *asked > since && *horizon > at).copied()
        };
        let Some((_, horizon)) = passed else { return };
        let id = NodeId(gateway as u32);
        let nodes: Vec<_> = self.nodes.held().values().filter_map(Weak::upgrade).collect();
        let Some(host) = nodes.into_iter().find(|node| node.hosted.is_some()) else { return };
        let state = host.cluster.read(|view, _| view.node(id).map(|info| info.state));
        let lives = matches!(state, Ok(Some(NodeState::Live)));
        if lives && !host.has_run_out(log_topic, id, at) {
            visitor.violate(&format!("the horizon is {horizon}, a ride at n{gateway} at {at}"));
        }
    }
}
