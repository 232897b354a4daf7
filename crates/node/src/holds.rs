//! Holds of rides: those of this node, which it tells to the log's host with what it has of images; and
//! on the log's host, what all nodes' holds allow of a topic's trim and horizon. What that is, is judged
//! in `holdfast_cluster::holds`. Who rides here says so; never begins or ends a ride.

use super::Node;
use super::compare::told;
use super::snapshots::request;
use holdfast_base::codec::Decode;
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Result};
use holdfast_cluster::NodeState;
use holdfast_cluster::holds::{Bounded, HOLD_BYTES_MAX, bounded};
use holdfast_env::net::PeerReply;
use holdfast_env::{HoldMutex, event, sometimes};
use holdfast_wire::peer_log as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A hold outlives its ride for so long. The rider has its items then and begins to read the log behind
/// them: through whichever node, under no name that anybody knows, so it is given time, and nobody waits
/// for it to say that it has come. It has to outlive several rounds in which holds are told.
const LINGERS_NS: u64 = 60_000_000_000;
/// Holds that are told of a topic, the lowest ones: others are in nobody's way before those have gone.
const TOLD_MAX: usize = 1024;

/// The holds of one node's rides.
#[derive(Default)]
pub struct Holds {
    /// By topic, and by the ride's number.
    held: Mutex<BTreeMap<String, BTreeMap<u64, Hold>>>,
}

struct Hold {
    /// The entry that the ride is as of.
    at: Index,
    /// When the ride has ended.
    ended_ns: Option<u64>,
}

impl Holds {
    /// A ride has begun, of what a view held behind this entry.
    pub fn place(&self, topic: &str, ride: u64, at: Index) {
        let mut held = self.held.held();
        held.entry(topic.to_owned()).or_default().insert(ride, Hold { at, ended_ns: None });
    }

    /// A ride has ended, by now: its hold stays for a while. One that placed none has none.
    pub fn end(&self, topic: &str, ride: u64, now_ns: u64) {
        let mut held = self.held.held();
        let hold = held.get_mut(topic).and_then(|rides| rides.get_mut(&ride));
        if let Some(hold) = hold {
            hold.ended_ns.get_or_insert(now_ns);
        }
    }

    /// Entries that are held now, the lowest first.
    pub fn of(&self, topic: &str, now_ns: u64) -> Vec<Index> {
        let mut held = self.held.held();
        let Some(rides) = held.get_mut(topic) else { return Vec::new() };
        rides.retain(|_, hold| {
            hold.ended_ns.is_none_or(|ended| now_ns.saturating_sub(ended) < LINGERS_NS)
        });
        let all: BTreeSet<Index> = rides.values().map(|hold| hold.at).collect();
        all.into_iter().take(TOLD_MAX).collect()
    }

    /// The entry that a ride holds.
    pub fn held_by(&self, topic: &str, ride: u64) -> Option<Index> {
        self.held.held().get(topic)?.get(&ride).map(|hold| hold.at)
    }
}

/// By node, the entries of a topic that its rides hold.
pub type Held = BTreeMap<NodeId, Vec<Index>>;

impl Node {
    /// How far a trim or a horizon may go that was to go to `wanted`. Tells once of each hold that has run
    /// out. Where the log is kept.
    pub fn bounded_by_holds(&self, topic: &str, wanted: Index, held: &Held) -> Index {
        let all = held.iter().flat_map(|(node, held)| held.iter().map(|at| (*node, *at)));
        // Of a log that does not say, nothing is known that would end a hold.
        let bytes = |at| self.hosted().and_then(|log| log.bytes_behind(topic, at).ok());
        let bytes = |at| bytes(at).unwrap_or_default();
        let Bounded { until, ran_out } = bounded(wanted, all, bytes, HOLD_BYTES_MAX.get());
        let mut known = self.ran_out.held();
        let known = known.entry(topic.to_owned()).or_default();
        // Trims judge by what nodes said some seconds ago, horizons by what they say now: that a hold is not
        // among those does not mean that it has ended.
        for (node, at) in ran_out {
            if known.get(&node).is_none_or(|last| *last < at) {
                known.insert(node, at);
                HOLD_BYTES_MAX.cross();
                sometimes!("a hold ran out");
                let max = HOLD_BYTES_MAX.get();
                event!(
                    HoldRanOut,
                    format_args!(
                        "topic `{topic}`, entry {at}, node {}: more than {max} bytes of log are behind it",
                        node.0
                    )
                );
            }
        }
        until
    }

    /// Whether a hold of a node's rides has run out since this node's start. Known where the log is kept.
    pub fn has_run_out(&self, topic: &str, node: NodeId, at: Index) -> bool {
        let known = self.ran_out.held();
        known.get(topic).and_then(|of| of.get(&node)).is_some_and(|last| at <= *last)
    }

    /// Asks all nodes that live what their rides hold of a topic, now; `done` may be called at once.
    /// `Retry` where one of them does not say: it may have rides that go on.
    pub fn ask_holds(
        self: &Arc<Node>,
        topic: &str,
        done: impl FnOnce(Result<Held>) + Send + 'static,
    ) {
        let silent = |id: NodeId, why: &str| {
            Error::retry(format!("ask for rides of topic `{topic}`: node {} {why}", id.0))
        };
        let Some(others) = self.others() else {
            return done(Err(Error::retry(
                "ask for rides: this node does not know the others yet",
            )));
        };
        if let Some(away) = others.iter().find(|other| other.state != NodeState::Live) {
            let why =
                "is away, and may come back with rides: ask again when it has, or counts as lost";
            return done(Err(silent(away.id, why)));
        }
        let now_ns = self.machine.clock.monotonic_ns();
        let own = BTreeMap::from([(self.id, self.holds.of(topic, now_ns))]);
        if others.is_empty() {
            return done(Ok(own));
        }
        let missing = others.iter().map(|other| other.id).collect::<BTreeSet<_>>();
        let waiting = Arc::new(Mutex::new(Some((own, missing, done))));
        for other in &others {
            let (id, waiting) = (other.id, waiting.clone());
            let not_told = silent(id, "has not said which ones it has: ask again");
            let answered = move |reply: Result<PeerReply>| {
                let said = reply.and_then(|reply| Ok(msg::Covered::from_bytes(&reply.meta)?));
                let mut slot = waiting.held();
                let Some((mut held, mut missing, done)) = slot.take() else { return };
                let Ok(said) = said else {
                    drop(slot);
                    return done(Err(not_told));
                };
                held.insert(id, told(said).holds);
                missing.remove(&id);
                if !missing.is_empty() {
                    *slot = Some((held, missing, done));
                    return;
                }
                drop(slot);
                done(Ok(held));
            };
            let describe = msg::Describe { sender: self.sender, topic: topic.to_owned() };
            let ask = request(msg::OP_PEER_COVERED, &describe);
            self.machine.peers.call(&other.address, ask, Box::new(answered));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_outlives_its_ride_for_a_while() {
        let holds = Holds::default();
        holds.place("view/a", 1, Index(7));
        holds.place("view/a", 2, Index(5));
        holds.place("view/a", 3, Index(7));
        holds.place("view/b", 4, Index(1));
        assert_eq!(holds.of("view/a", 0), [Index(5), Index(7)], "each entry once");
        holds.end("view/a", 2, 10);
        // Ended is ended, however often it is said.
        holds.end("view/a", 2, LINGERS_NS);
        holds.end("view/a", 9, 10);
        assert_eq!(holds.of("view/a", LINGERS_NS + 9), [Index(5), Index(7)]);
        assert_eq!(holds.of("view/a", LINGERS_NS + 10), [Index(7)]);
        assert_eq!(holds.held_by("view/a", 2), None);
        // A ride that goes on holds for as long as it does.
        assert_eq!(holds.of("view/b", u64::MAX), [Index(1)]);
        assert_eq!(holds.of("view/c", 0), []);
    }
}
