//! Horizons that are moved while others ride, and trims: none passes a ride that was there when it was asked
//! for, and goes on. What clients share.

use super::{LOG_TOPIC, TOPIC};
use crate::world::cell::address;
use crate::world::guest::Visitor;
use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{Index, NodeId};
use holdfast_cluster::NodeState;
use holdfast_cluster::cluster::NodeInfo;
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_wire::{self as wire, Call, view as msg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

#[derive(Default)]
pub(super) struct Horizons {
    state: Mutex<State>,
    /// The one that keeps the log, as it was opened last.
    host: Mutex<Weak<Node>>,
}

#[derive(Default)]
struct State {
    /// Rises with all that happens here.
    now: u64,
    /// When each horizon was asked for, and where.
    asked: Vec<(u64, Index)>,
    /// Of those that were answered: when they were asked for, and where the horizon was then.
    moved: Vec<(u64, Index)>,
    /// Holds that have run out, by gateway: the latest of each. The host knows it from its start on alone.
    ran_out: BTreeMap<usize, Index>,
    /// Rides that go on, or were given up.
    riding: BTreeSet<(usize, Index)>,
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
    /// It is of no image: those may be older than what the log begins with.
    is_present: bool,
}

impl Horizons {
    pub fn node_begins(&self, node: &Arc<Node>) {
        if node.hosted().is_some() {
            *self.host.held() = Arc::downgrade(node);
        }
    }

    /// A second has passed on a node, or it has just decided: a host that is killed forgets what has run out.
    pub fn round(&self, node: &Node) {
        if node.hosted().is_some() {
            let State { ran_out, riding, .. } = &mut *self.state.held();
            let has_run_out = |(gateway, at): &&(usize, Index)| {
                living(node, *gateway).is_some_and(|id| node.has_run_out(LOG_TOPIC, id, *at))
            };
            ran_out.extend(riding.iter().filter(has_run_out).copied());
        }
    }

    /// Asks for the horizon to be moved to this entry.
    pub async fn ask(&self, visitor: &Visitor, gateway: usize, index: Index) {
        let asked = {
            let mut state = self.state.held();
            let asked = state.tick();
            state.asked.push((asked, index));
            asked
        };
        let horizon = msg::Horizon { topic: TOPIC.to_owned(), call: Call::default(), index };
        match visitor.ask(gateway, wire::OP_VIEW_HORIZON, horizon.to_bytes(), None).await {
            Ok(reply) => {
                let moved = msg::Moved::from_bytes(&reply.meta).expect("what was answered");
                visitor.note(&format!("moved the horizon to {}", moved.horizon));
                visitor.sometimes(moved.horizon.0 > 0, "the horizon was moved");
                if let Some(host) = self.host.held().upgrade() {
                    self.round(&host);
                }
                self.state.held().moved.push((asked, moved.horizon));
            }
            Err(e) if matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid) => {
                visitor.violate(&format!("a horizon: {e}"));
            }
            Err(e) => visitor.note(&format!("does not know of its horizon: {e}")),
        }
    }

    /// Somebody was told that it rides.
    pub fn rides(&self, gateway: usize, at: Index, is_present: bool) -> Riding {
        let mut state = self.state.held();
        state.riding.insert((gateway, at));
        Riding { gateway, at, since: state.tick(), is_present }
    }

    /// A ride goes on: no horizon that was asked for since it began has passed it, unless its hold has run
    /// out or its node is not one of the cluster any more. One that was asked for before may have come there
    /// at any time: images older than the horizon are ridden, too. And the log is there from its next entry
    /// on.
    pub fn check(&self, visitor: &Visitor, riding: Riding) {
        let Riding { gateway, at, since, is_present } = riding;
        let Some(host) = self.host.held().upgrade() else { return };
        let Some(id) = living(&host, gateway) else { return };
        let state = self.state.held();
        let has_run_out = host.has_run_out(LOG_TOPIC, id, at)
            || state.ran_out.get(&gateway).is_some_and(|last| at <= *last);
        if has_run_out {
            return;
        }
        let before = |horizon: Index| {
            state.asked.iter().any(|(asked, index)| *asked < since && *index >= horizon)
        };
        let passes = |(asked, to): &&(u64, Index)| *asked > since && *to > at && !before(*to);
        if let Some((_, horizon)) = state.moved.iter().find(passes) {
            visitor.violate(&format!("the horizon is {horizon}, a ride at n{gateway} at {at}"));
        }
        let first = host.log.info(LOG_TOPIC).map_or(Index(0), |info| info.first);
        if is_present && first.0 > at.0 + 1 {
            visitor.violate(&format!("the log begins at {first}, a ride at n{gateway} at {at}"));
        }
    }
}

/// Who lives at a gateway, if somebody does, as far as a node knows: a disk that was erased is another node's,
/// and a number that nobody has started under is nobody's.
pub(super) fn living(node: &Node, gateway: usize) -> Option<NodeId> {
    let found = node.cluster.read(|view, _| {
        let here = view.nodes().filter(|(_, info)| info.address == address(gateway));
        let live = |info: &NodeInfo| info.state == NodeState::Live && info.is_member();
        here.filter(|(_, info)| live(info)).map(|(id, _)| id).max()
    });
    found.ok().flatten()
}
