//! What several have to share: reads and writes a disk, the disks of a node its link, the nodes of
//! a rack the link of that. Each gets a part in proportion to what it could use, so that all
//! together stay below what recovery may take (eq. 1, with the foreground of all). A core; cuts
//! down what the planner takes ports for, and what nodes are told they may take of their rack's
//! link. Nodes report their own links alone, so that foreground within a rack counts as if it left
//! it: that errs to the safe side.

use super::field::Field;
use super::terms::Terms;
use super::{HAND_S, MB};
use holdfast_base::ids::NodeId;
use holdfast_wire::peer::{Directions, Report};
use std::collections::BTreeMap;

/// What a node may take of its rack's link, out and in, in MB/s, where that is less than its own.
pub type Shares = BTreeMap<NodeId, [Option<f32>; 2]>;

/// One rack whose link somebody has named.
#[derive(Default)]
struct Rack {
    /// The least that a node of it says.
    link: u64,
    foreground: Directions,
    ports: Vec<usize>,
}

/// Racks with a link to share, while there is another rack to copy to or from.
fn racks<'r>(field: &Field<'_>, report: impl Fn(NodeId) -> Option<&'r Report>) -> Vec<Rack> {
    let mut racks: BTreeMap<&str, Rack> = BTreeMap::new();
    for (site, ports) in field.ports_by_site().filter(|(site, _)| site.live) {
        let rack = racks.entry(&site.rack).or_default();
        let Some(report) = report(site.node) else { continue };
        let link = report.rack_bytes_per_second;
        if link > 0 {
            rack.link = if rack.link == 0 { link } else { rack.link.min(link) };
        }
        rack.foreground.out += report.foreground.out;
        rack.foreground.into += report.foreground.into;
        rack.ports.extend(ports);
    }
    if racks.len() < 2 {
        return Vec::new();
    }
    racks.into_values().filter(|rack| rack.link > 0).collect()
}

/// Cuts the bandwidth of ports down to their shares, and answers those of racks' links.
pub fn share<'r>(
    field: &mut Field<'_>,
    report: impl Fn(NodeId) -> Option<&'r Report>,
    terms: Terms,
) -> Shares {
    let racks = racks(field, report);
    let disks_limit = field.ports.iter().any(|port| port.sum_mb_s.is_some());
    if racks.is_empty() && !disks_limit {
        return Shares::new();
    }
    let pending_mb = field.pending_mb();
    if disks_limit {
        share_disks(field, &pending_mb);
        share_links(field, &pending_mb);
    }
    let terms = terms.without_rate();
    let mut shares = Shares::new();
    for rack in racks {
        let sides = [rack.foreground.out, rack.foreground.into];
        for (side, foreground) in sides.into_iter().enumerate() {
            let most = terms.allow(rack.link, foreground) as f32 / MB;
            if !divide(field, &rack.ports, side, most, &pending_mb) {
                continue;
            }
            for port in &rack.ports {
                let part = field.nodes[*port].sides_mb_s()[side];
                let share = &mut shares.entry(field.site_of(*port).node).or_default()[side];
                *share = Some(share.unwrap_or(0.0) + part);
            }
        }
    }
    shares
}

/// What a port could use of a direction: what it has nothing to send for, others may have.
fn useful(field: &Field<'_>, port: usize, side: usize, pending_mb: &[f32]) -> f32 {
    match side {
        0 => field.nodes[port].out_mb_s.min(pending_mb[port] / HAND_S),
        _ => field.nodes[port].in_mb_s,
    }
}

/// Reads and writes of a disk.
fn share_disks(field: &mut Field<'_>, pending_mb: &[f32]) {
    for port in 0..field.ports.len() {
        let Some(most) = field.ports[port].sum_mb_s else { continue };
        let [out, into] = [0, 1].map(|side| useful(field, port, side, pending_mb));
        if out + into > most {
            let node = &mut field.nodes[port];
            (node.out_mb_s, node.in_mb_s) = (most * out / (out + into), most * into / (out + into));
        }
    }
}

/// Disks of a node.
fn share_links(field: &mut Field<'_>, pending_mb: &[f32]) {
    let several = field.ports_by_site().filter(|(_, ports)| ports.len() > 1);
    let several: Vec<Vec<usize>> = several.map(|(_, ports)| ports.collect()).collect();
    for ports in several {
        for side in 0..2 {
            let most = field.ports[ports[0]].link_mb_s[side];
            divide(field, &ports, side, most, pending_mb);
        }
    }
}

/// Cuts ports down so that all together have `most`; false if that is enough for all.
fn divide(
    field: &mut Field<'_>,
    ports: &[usize],
    side: usize,
    most: f32,
    pending_mb: &[f32],
) -> bool {
    let wanted: Vec<f32> =
        ports.iter().map(|port| useful(field, *port, side, pending_mb)).collect();
    let sum: f32 = wanted.iter().sum();
    if sum <= most {
        return false;
    }
    for (port, wanted) in ports.iter().zip(wanted) {
        let node = &mut field.nodes[*port];
        let own = if side == 0 { &mut node.out_mb_s } else { &mut node.in_mb_s };
        *own = most * wanted / sum;
    }
    true
}

/// As nodes are told.
pub fn told(shares: &Shares, node: NodeId) -> Directions {
    let [out, into] = shares.get(&node).copied().unwrap_or_default();
    let bytes = |part: Option<f32>| part.map_or(0, |mb_s| ((mb_s * MB) as u64).max(1));
    Directions { out: bytes(out), into: bytes(into) }
}
