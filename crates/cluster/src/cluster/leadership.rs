//! Who leads: a pure function of the beats in the log, without a lease, a vote or a clock. Seats,
//! counts and the queue change by entries alone; the cluster view calls this and nobody else.

use super::snapshot::{decode_map, encode_map};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Index, NodeId, Term};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::BTreeMap;

/// Controllers of a cluster at most. Enough that most of them outlive any accident; few enough
/// that their beats are a small part of the log.
pub static CONTROLLERS_MAX: Knob = Knob::new("cluster.controllers", 7, &[1, 2, 3, 4]);

/// Beats of another controller since a controller's last one that count against it.
pub const BEATS_DEAD: u8 = 6;

/// One seat.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    /// The entry at which it (re)joined the queue.
    pub queued: Index,
    pub dead: bool,
    /// Its last beat; the entry at which it was seated before the first.
    pub beat: Index,
    /// Beats that others have appended since its own last one, [`BEATS_DEAD`] at most.
    against: BTreeMap<NodeId, u8>,
}

/// Seats, counts and queue. The cluster view's; public for the model that searches its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leadership {
    seats: BTreeMap<NodeId, Controller>,
}

impl Leadership {
    pub fn seats(&self) -> &BTreeMap<NodeId, Controller> {
        &self.seats
    }

    /// The live controller that queued first.
    pub fn leader(&self) -> Option<NodeId> {
        self.term().map(|term| term.leader)
    }

    /// Its term. It never goes back: whoever leaves the front of the queue comes back behind all others.
    pub fn term(&self) -> Option<Term> {
        let live = self.seats.iter().filter(|(_, seat)| !seat.dead);
        live.map(|(node, seat)| Term { queued: seat.queued, leader: *node }).min()
    }

    /// Takes the seats of nodes that may not sit, and gives free ones to the first of those that
    /// may (in order of number): they queue last. Who sits keeps the seat, whoever else returns.
    pub fn reseat(&mut self, index: Index, may_sit: impl Iterator<Item = NodeId>) {
        let may_sit: Vec<NodeId> = may_sit.collect();
        self.seats.retain(|node, _| may_sit.contains(node));
        for node in may_sit {
            if self.seats.len() == CONTROLLERS_MAX.size() {
                CONTROLLERS_MAX.cross();
                break;
            }
            let fresh =
                Controller { queued: index, dead: false, beat: index, against: BTreeMap::new() };
            self.seats.entry(node).or_insert(fresh);
        }
        let seated: Vec<NodeId> = self.seats.keys().copied().collect();
        for seat in self.seats.values_mut() {
            seat.against.retain(|node, _| seated.contains(node));
        }
    }

    /// A controller queues last, as one that returns does.
    pub fn resign(&mut self, index: Index, node: NodeId) {
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.queued = index;
        }
    }

    /// A controller's beat; `beats_dead` is [`BEATS_DEAD`] but in models. Everybody is judged
    /// against those who were live with it, so that the order of judging does not matter.
    pub fn beat(&mut self, index: Index, node: NodeId, beats_dead: u8) {
        let Some(seat) = self.seats.get_mut(&node) else { return };
        seat.against.clear();
        seat.beat = index;
        if seat.dead {
            seat.dead = false;
            if !planted!("cluster.returns-as-leader") {
                seat.queued = index;
            }
        }
        let live: Vec<NodeId> =
            self.seats.iter().filter(|(_, seat)| !seat.dead).map(|(node, _)| *node).collect();
        for (other, seat) in &mut self.seats {
            if *other == node || seat.dead {
                continue;
            }
            let count = seat.against.entry(node).or_default();
            *count = (*count + 1).min(beats_dead);
            let judges = live.iter().filter(|judge| *judge != other);
            let for_death = judges.filter(|judge| seat.against.get(judge) == Some(&beats_dead));
            seat.dead = for_death.count() * 2 + usize::from(planted!("cluster.half-is-enough"))
                > live.len() - 1;
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_map(&self.seats, out);
    }

    /// Whatever the bytes say, counts stay in their range and seats in their number.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Leadership, DecodeError> {
        let seats: BTreeMap<NodeId, Controller> = decode_map(reader)?;
        let good = seats.len() <= CONTROLLERS_MAX.size()
            && seats.iter().all(|(node, seat)| {
                seat.against.iter().all(|(judge, count)| {
                    judge != node && seats.contains_key(judge) && (1..=BEATS_DEAD).contains(count)
                })
            });
        if good { Ok(Leadership { seats }) } else { Err(DecodeError::BadValue("controllers")) }
    }
}

impl Encode for Controller {
    fn encode(&self, out: &mut Vec<u8>) {
        self.queued.encode(out);
        self.dead.encode(out);
        self.beat.encode(out);
        encode_map(&self.against, out);
    }
}

impl Decode for Controller {
    fn decode(reader: &mut Reader<'_>) -> Result<Controller, DecodeError> {
        Ok(Controller {
            queued: Index::decode(reader)?,
            dead: bool::decode(reader)?,
            beat: Index::decode(reader)?,
            against: decode_map(reader)?,
        })
    }
}
