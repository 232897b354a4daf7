//! What the leader makes of silence: takes the time, the view and the beats that were heard, gives
//! the entries to propose. Holds no clock, thread or log. A core of its own per leader: nothing in
//! it outlives a change of leader, a sleep of the machine or a jump of the clock.

use crate::cluster::{ClusterCommand, ClusterView, NodeInfo, NodeState};
use holdfast_base::ids::{Index, NodeId};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds come this often; one that comes later than twice this restarts every timer.
pub const ROUND_MS: u64 = 500;
/// After this long without a beat a node is routed around.
pub const UNAVAILABLE_MS: u64 = 3000;
/// Default of [`LivenessOptions::lost_ms`].
pub const LOST_MS: u64 = 300_000;
/// Nodes that fall due this close together go at once: their last beats were this far apart, at
/// most, when one accident ended them all.
const AT_ONCE_MS: u64 = 2 * ROUND_MS;
/// More than one in this many nodes at once are not lost without a person's word.
const AT_ONCE_SHARE: usize = 10;

const _: () = assert!(AT_ONCE_MS < UNAVAILABLE_MS && UNAVAILABLE_MS < LOST_MS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessOptions {
    /// After this long without a beat a node's replicas are copied elsewhere.
    pub lost_ms: u64,
}

impl Default for LivenessOptions {
    fn default() -> LivenessOptions {
        LivenessOptions { lost_ms: LOST_MS }
    }
}

/// A node's word, from the log or from its message to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardBeat {
    pub node: NodeId,
    pub incarnation: Index,
}

/// What a round came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To propose under the leader's claim. What is not accepted comes again in the next round.
    pub commands: Vec<ClusterCommand>,
    /// Nodes that would be lost, but wait for a person's word, by number.
    pub unconfirmed: Vec<NodeId>,
}

#[derive(Debug)]
pub struct Liveness {
    /// The leader's own node: it lives.
    own: NodeId,
    options: LivenessOptions,
    /// The claim that the timers were started under.
    epoch: Index,
    last_round_ns: Option<u64>,
    /// When each node was last heard, or its timer was started.
    heard_ns: BTreeMap<NodeId, u64>,
    /// Nodes that a person said are lost; until they return.
    confirmed: BTreeSet<NodeId>,
}

impl Liveness {
    pub fn new(own: NodeId, options: LivenessOptions) -> Liveness {
        Liveness {
            own,
            options,
            epoch: Index(0),
            last_round_ns: None,
            heard_ns: BTreeMap::new(),
            confirmed: BTreeSet::new(),
        }
    }

    /// A person says that these nodes do not come back.
    pub fn confirm_lost(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.confirmed.extend(nodes);
    }

    /// One round of the leader with claim `epoch`, with the beats heard since the last one.
    pub fn round(
        &mut self,
        now_ns: u64,
        epoch: Index,
        view: &ClusterView,
        beats: &[HeardBeat],
    ) -> Round {
        self.restart_if_late(now_ns, epoch);
        // Who leads has just read back a beat of its own, whatever an earlier leader made of it.
        let mut spoke = BTreeSet::from([self.own]);
        for beat in beats {
            // The view may be behind a node that has just started again.
            if view.node(beat.node).is_some_and(|info| beat.incarnation >= info.incarnation) {
                self.heard_ns.insert(beat.node, now_ns);
                self.confirmed.remove(&beat.node);
                spoke.insert(beat.node);
            }
        }
        let mut round = Round::default();
        let mut set = |node, info: &NodeInfo, state| {
            let incarnation = info.incarnation;
            round.commands.push(ClusterCommand::SetNode { node, incarnation, state });
        };
        let mut due = Vec::new();
        let mut falling = 0;
        for (node, info) in view.nodes().filter(|(_, info)| info.incarnation != Index(0)) {
            let silent_ms = (now_ns - *self.heard_ns.entry(node).or_insert(now_ns)) / 1_000_000;
            if spoke.contains(&node) {
                if info.state != NodeState::Live {
                    set(node, info, NodeState::Live);
                }
                continue;
            }
            if info.state == NodeState::Lost {
                continue;
            }
            if silent_ms >= UNAVAILABLE_MS && info.state == NodeState::Live {
                set(node, info, NodeState::Unavailable);
            }
            if self.confirmed.contains(&node) && silent_ms >= UNAVAILABLE_MS {
                set(node, info, NodeState::Lost);
                continue;
            }
            if !view.keeps_chunks(node) && !planted!("cluster.lost-view-nodes-wait") {
                // Nothing is to be copied for it, however many there are.
                if silent_ms >= self.options.lost_ms {
                    set(node, info, NodeState::Lost);
                }
                continue;
            }
            falling += (silent_ms + AT_ONCE_MS >= self.options.lost_ms) as usize;
            if silent_ms >= self.options.lost_ms {
                due.push((node, info));
            }
        }
        let members =
            view.nodes().filter(|(id, i)| i.is_member() && view.keeps_chunks(*id)).count();
        if falling > 1 && falling * AT_ONCE_SHARE > members {
            round.unconfirmed = due.into_iter().map(|(node, _)| node).collect();
        } else {
            due.into_iter().for_each(|(node, info)| set(node, info, NodeState::Lost));
        }
        round
    }

    /// Timers are good only for the leader that started them, and only while its rounds come in
    /// time: then silence is the nodes' and not the leader's own.
    fn restart_if_late(&mut self, now_ns: u64, epoch: Index) {
        let gap_ns = self.last_round_ns.and_then(|last| now_ns.checked_sub(last));
        let in_time = gap_ns.is_some_and(|gap| gap <= 2 * ROUND_MS * 1_000_000);
        if epoch != self.epoch {
            self.confirmed.clear();
        }
        if epoch != self.epoch || !in_time {
            self.heard_ns.clear();
        }
        (self.epoch, self.last_round_ns) = (epoch, Some(now_ns));
    }
}

#[cfg(test)]
mod tests;
