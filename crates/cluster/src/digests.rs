//! Whose view of a topic differs: judged from what nodes tell of their running digests, and from
//! nothing else. A digest never comes back once it differs, so one index at which nodes differ is
//! enough. More than half of the cluster's nodes decide; silence counts for nobody, so neither a
//! node that lies nor one that is cut off outvotes anybody. Pure; the driver asks, stops and tells.

use crate::images::Image;
use holdfast_base::ids::{Index, NodeId};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[cfg(test)]
mod tests;

/// What a node says of its view of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Up to where its verified snapshots cover the topic.
    pub covered: Index,
    /// It has stopped the view for its digest: what it says of it counts no more.
    pub withdrawn: bool,
    /// The digest at some indices. Equal ones alone are compared: who is behind says less.
    pub digests: BTreeMap<Index, u64>,
    /// Of a topic whose views keep parts: the verified images that it has.
    pub images: Vec<Image>,
    /// And entries that its rides hold.
    pub holds: Vec<Index>,
    /// And the newest mark of which a view of it lost its image; 0 for none.
    pub lost: Index,
}

/// Where a node stands with its view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nobody says otherwise.
    #[default]
    Agrees,
    /// It has said itself that its view differs.
    Withdrawn,
    /// More than half of all nodes have another digest.
    Outvoted(Difference),
    /// Nodes differ, and no digest is that of more than half of them.
    Disputed(Difference),
}

/// At which entry nodes differ, and who has one digest with whom: most nodes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub at: Index,
    pub sides: Vec<Vec<NodeId>>,
}

impl Difference {
    /// Whom `node` differs from.
    pub fn others(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.sides.iter().filter(move |side| !side.contains(&node)).flatten().copied()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |side: &Vec<NodeId>| {
            let ids: Vec<String> = side.iter().map(|id| id.0.to_string()).collect();
            let word = if side.len() == 1 { "node" } else { "nodes" };
            format!("{word} {}", ids.join(", "))
        };
        let sides: Vec<String> = self.sides.iter().map(name).collect();
        write!(f, "up to entry {}, {} differ", self.at, sides.join(" and "))
    }
}

/// Where each node that told something stands, of a cluster of `nodes` that are not lost.
pub fn judge(nodes: usize, told: &BTreeMap<NodeId, Told>) -> BTreeMap<NodeId, Standing> {
    let standing = |told: &Told| match told.withdrawn {
        true => Standing::Withdrawn,
        false => Standing::Agrees,
    };
    let mut standings: BTreeMap<NodeId, Standing> =
        told.iter().map(|(id, told)| (*id, standing(told))).collect();
    let indices: BTreeSet<Index> =
        told.values().flat_map(|told| told.digests.keys().copied()).collect();
    // Who is outvoted somewhere takes no part in what is left to dispute.
    for disputes in [false, true] {
        for at in &indices {
            let sides = sides(*at, told, &standings, disputes);
            if sides.len() < 2 {
                continue;
            }
            let most = sides[0].len();
            let decided = most * 2 > nodes || planted!("cluster.plurality-outvotes");
            let difference = Difference { at: *at, sides: sides.clone() };
            for node in sides.iter().skip(decided as usize).flatten() {
                let found = match decided {
                    true => Standing::Outvoted(difference.clone()),
                    false if disputes => Standing::Disputed(difference.clone()),
                    false => continue,
                };
                // The first index at which it shows stays.
                let standing = standings.entry(*node).or_default();
                if *standing == Standing::Agrees {
                    *standing = found;
                }
            }
        }
    }
    standings
}

/// Nodes that have one digest at an index with each other, most first.
fn sides(
    at: Index,
    told: &BTreeMap<NodeId, Told>,
    standings: &BTreeMap<NodeId, Standing>,
    without_outvoted: bool,
) -> Vec<Vec<NodeId>> {
    let mut sides: BTreeMap<u64, Vec<NodeId>> = BTreeMap::new();
    for (id, told) in told {
        let counts = match standings.get(id) {
            Some(Standing::Withdrawn) => false,
            Some(Standing::Outvoted(_)) => !without_outvoted,
            _ => true,
        };
        if let Some(digest) = told.digests.get(&at).filter(|_| counts) {
            sides.entry(*digest).or_default().push(*id);
        }
    }
    let mut sides: Vec<Vec<NodeId>> = sides.into_values().collect();
    sides.sort_by_key(|side| (std::cmp::Reverse(side.len()), side[0]));
    sides
}

/// Up to where the log may be trimmed: all that take part have told how far their snapshots cover
/// it, and no two of them are in doubt. A view that differs from most covers nothing, and is not
/// waited for: its node needs another one's snapshot in any case.
pub fn trim_before(
    nodes: usize,
    told: &BTreeMap<NodeId, Told>,
    standings: &BTreeMap<NodeId, Standing>,
) -> Option<Index> {
    let in_doubt = |standing: &Standing| matches!(standing, Standing::Disputed(_));
    let doubted = standings.values().any(in_doubt) && !planted!("cluster.differing-views-trim");
    if told.len() < nodes || doubted {
        return None;
    }
    let agrees = |id: &NodeId| {
        matches!(standings.get(id), Some(Standing::Agrees | Standing::Disputed(_)))
            || planted!("cluster.outvoted-counts-for-trim")
    };
    told.iter().filter(|(id, _)| agrees(id)).map(|(_, told)| told.covered).min()
}
