//! `node` and `recovery`: the cluster as one of its nodes sees it, and what a person may ask of it.

use crate::cli::{Node, Recovery};
use crate::output::Output;
use holdfast_base::ids::NodeId;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::wire::admin::{Cluster, ClusterNode, Order};
use serde_json::{Value, json};

pub fn run(client: &mut Client, command: &Node, out: &mut Output) -> Result<()> {
    match command {
        Node::Run { .. } => Err(Error::bug("run a node: this is for commands that ask one")),
        Node::Ls => {
            let cluster = client.cluster()?;
            for node in &cluster.nodes {
                out.line(|| line(&cluster, node), || object(&cluster, node))?;
            }
            Ok(())
        }
        Node::Show { node } => {
            let cluster = client.cluster()?;
            let found = cluster.nodes.iter().find(|known| known.node.0 == *node);
            let known = found.ok_or_else(|| {
                Error::not_found(format!("show node `n{node}`: see `holdfast node ls`"))
            })?;
            out.line(
                || {
                    let mut text = line(&cluster, known);
                    for store in &known.stores {
                        text.push_str(&format!(
                            "\n  store {} {} {}, {} free, {} replicas",
                            store.id,
                            store.tier.name(),
                            store.state,
                            format_bytes(store.free_mib << 20),
                            store.replicas
                        ));
                    }
                    text
                },
                || object(&cluster, known),
            )
        }
        Node::Drain { node, off } => {
            client.order(&Order::Drain { node: NodeId(*node), on: !off })?;
            out.line(
                || match off {
                    true => format!("node n{node} takes new chunks again"),
                    false => format!(
                        "node n{node} takes no new chunks, and what it has moves elsewhere: see `holdfast recovery status`"
                    ),
                },
                || json!({"node": node, "draining": !off}),
            )
        }
        Node::ConfirmLost { nodes } => {
            client
                .order(&Order::ConfirmLost { nodes: nodes.iter().map(|n| NodeId(*n)).collect() })?;
            out.line(|| "confirmed".to_owned(), || json!({"confirmed": nodes}))
        }
    }
}

fn line(cluster: &Cluster, node: &ClusterNode) -> String {
    let mut roles = Vec::new();
    for (is, role) in [
        (cluster.leader == Some(node.node), "leader"),
        (node.controller, "controller"),
        (node.draining, "draining"),
        (cluster.node == node.node, "answers"),
    ] {
        if is {
            roles.push(role);
        }
    }
    let free: u64 =
        node.stores.iter().filter(|s| s.state != "gone").map(|s| s.free_mib << 20).sum();
    let rack = if node.rack.is_empty() { String::new() } else { format!(" rack {}", node.rack) };
    format!(
        "{:<5} {:<11} {}{rack} {}, {} free  {}",
        node.node.to_string(),
        node.state,
        node.host,
        node.address,
        format_bytes(free),
        roles.join(" ")
    )
}

fn object(cluster: &Cluster, node: &ClusterNode) -> Value {
    let stores: Vec<_> = node
        .stores
        .iter()
        .map(|s| {
            json!({
                "id": s.id.0, "tier": s.tier.name(), "state": s.state, "free_mib": s.free_mib,
                "replicas": s.replicas,
            })
        })
        .collect();
    json!({
        "node": node.node.0, "state": node.state, "host": node.host, "rack": node.rack,
        "address": node.address, "leader": cluster.leader == Some(node.node),
        "controller": node.controller, "draining": node.draining, "stores": stores,
    })
}

pub fn recovery(client: &mut Client, command: &Recovery, out: &mut Output) -> Result<()> {
    match command {
        Recovery::Status => {
            let recovery = leader(client)?.recovery;
            let r = &recovery;
            out.line(
                || {
                    let mut text = match r.short {
                        0 => "every chunk has its copies".to_owned(),
                        n => format!(
                            "{n} chunks are short of copies, {} of them have one left",
                            r.short_of_one
                        ),
                    };
                    if r.lost > 0 {
                        text.push_str(&format!("\n{} chunks have no readable copy", r.lost));
                    }
                    text.push_str(&format!(
                        "\n{} copies under way, {} of {}; {} made ({}), {} failed and tried again; limit {}/s a node",
                        r.copies,
                        format_bytes(r.bytes_done),
                        format_bytes(r.bytes_total),
                        r.copies_made,
                        format_bytes(r.bytes_made),
                        r.copies_failed,
                        format_bytes(r.bytes_per_second)
                    ));
                    if !r.confirm_lost.is_empty() {
                        let nodes: Vec<_> = r.confirm_lost.iter().map(|n| n.0.to_string()).collect();
                        text.push_str(&format!(
                            "\nmany nodes are silent at once: if they are gone for good, say `holdfast node confirm-lost {}`",
                            nodes.join(" ")
                        ));
                    }
                    text
                },
                || {
                    json!({
                        "short": r.short, "short_of_one": r.short_of_one, "lost": r.lost,
                        "copies": r.copies, "bytes_total": r.bytes_total, "bytes_done": r.bytes_done,
                        "copies_made": r.copies_made, "bytes_made": r.bytes_made,
                        "copies_failed": r.copies_failed, "bytes_per_second": r.bytes_per_second,
                        "confirm_lost": r.confirm_lost.iter().map(|n| n.0).collect::<Vec<_>>(),
                    })
                },
            )
        }
        Recovery::Set { rate } => {
            let bytes_per_second = parse_bytes(rate)
                .map_err(|e| Error::invalid(format!("set the rate of repair to `{rate}`: {e}")))?;
            let order = Order::RecoveryRate { bytes_per_second };
            // Whoever leads plans with it; whoever comes to lead later asks for it anew.
            client.order(&order)?;
            out.line(
                || {
                    format!(
                        "a node may send and receive {}/s for repair",
                        format_bytes(bytes_per_second)
                    )
                },
                || json!({"bytes_per_second": bytes_per_second}),
            )
        }
    }
}

/// The leader's own picture: others do not know what it plans.
fn leader(client: &mut Client) -> Result<Cluster> {
    let seen = client.cluster()?;
    let Some(leader) = seen.leader.filter(|leader| *leader != seen.node) else { return Ok(seen) };
    let address = seen.nodes.iter().find(|node| node.node == leader).map(|node| &node.address);
    let Some(address) = address else { return Ok(seen) };
    let endpoint = holdfast_client::Endpoint::parse(address)?;
    Client::connect(&endpoint, &holdfast_client::Options::default())?.cluster()
}
