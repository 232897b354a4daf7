//! Links of racks, shared among the nodes behind them: each gets a part in proportion to what it
//! could use, so that all together stay below what recovery may take of the link (eq. 1, with the
//! foreground of the whole rack). A core; cuts down what the planner takes nodes for, and what they
//! are told they may take. Nodes report their own links alone, so that foreground within a rack
//! counts as if it left it: that errs to the safe side.

use super::field::{Field, Site};
use super::{HAND_S, MB};
use crate::driver::replicas::Terms;
use holdfast_base::ids::NodeId;
use holdfast_client::wire::peer::{Directions, Report};
use std::collections::BTreeMap;

/// What a node may take of its rack's link, out and in, in MB/s, where that is less than its own.
pub type Shares = BTreeMap<NodeId, [Option<f32>; 2]>;

/// One rack whose link somebody has named.
#[derive(Default)]
struct Rack {
    /// The least that a node of it says.
    link: u64,
    foreground: Directions,
    nodes: Vec<usize>,
}

/// Racks with a link to share, while there is another rack to copy to or from.
fn racks<'a, 'r>(
    sites: impl Iterator<Item = &'a Site>,
    report: impl Fn(NodeId) -> Option<&'r Report>,
) -> Vec<Rack> {
    let mut racks: BTreeMap<&str, Rack> = BTreeMap::new();
    for (number, site) in sites.enumerate().filter(|(_, site)| site.live) {
        let rack = racks.entry(&site.rack).or_default();
        let Some(report) = report(site.node) else { continue };
        let link = report.rack_bytes_per_second;
        if link > 0 {
            rack.link = if rack.link == 0 { link } else { rack.link.min(link) };
        }
        rack.foreground.out += report.foreground.out;
        rack.foreground.into += report.foreground.into;
        rack.nodes.push(number);
    }
    if racks.len() < 2 {
        return Vec::new();
    }
    racks.into_values().filter(|rack| rack.link > 0).collect()
}

/// Cuts the bandwidth of nodes down to their shares, and answers those.
pub fn share<'r>(
    field: &mut Field<'_>,
    report: impl Fn(NodeId) -> Option<&'r Report>,
    terms: Terms,
) -> Shares {
    let racks = racks(field.sites().map(|(site, _)| site), report);
    if racks.is_empty() {
        return Shares::new();
    }
    let pending_mb = field.pending_mb();
    let terms = Terms { rate_max: 0, ..terms };
    let mut shares = Shares::new();
    for rack in racks {
        let sides = [rack.foreground.out, rack.foreground.into];
        for (side, foreground) in sides.into_iter().enumerate() {
            let most = terms.allow(rack.link, foreground) as f32 / MB;
            // What a node has nothing to send for, its neighbours may have.
            let useful = |number: &usize| match side {
                0 => field.nodes[*number].out_mb_s.min(pending_mb[*number] / HAND_S),
                _ => field.nodes[*number].in_mb_s,
            };
            let wanted: Vec<f32> = rack.nodes.iter().map(useful).collect();
            let sum: f32 = wanted.iter().sum();
            if sum <= most {
                continue;
            }
            for (number, wanted) in rack.nodes.iter().zip(wanted) {
                let part = most * wanted / sum;
                let node = &mut field.nodes[*number];
                let own = if side == 0 { &mut node.out_mb_s } else { &mut node.in_mb_s };
                *own = part;
                let id = field.site_of(*number).node;
                shares.entry(id).or_default()[side] = Some(part);
            }
        }
    }
    shares
}

/// As nodes are told.
pub fn told(shares: &Shares, node: NodeId) -> Directions {
    let [out, into] = shares.get(&node).copied().unwrap_or_default();
    let bytes = |part: Option<f32>| part.map_or(0, |mb_s| ((mb_s * MB) as u64).max(1));
    Directions { out: bytes(out), into: bytes(into) }
}
