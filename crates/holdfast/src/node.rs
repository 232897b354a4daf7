//! `node`: the cluster as one of its nodes sees it, and what a person may ask of it.

use crate::cli::{Node, StoreMode};
use holdfast_base::ids::{NodeId, StoreId};
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::admin::{Cluster, ClusterNode, Order};
use serde_json::{Value, json};

/// Carries out one `node` command but `run`, which needs no node to ask.
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
        Node::Store { store, state } => {
            let (number, writable) = (StoreId(*store), *state == StoreMode::Writable);
            client.order(&match state {
                StoreMode::Gone => Order::GiveUpStore { store: number },
                _ => Order::SetStore { store: number, writable },
            })?;
            out.line(
                || match state {
                    StoreMode::Writable => format!("store {store} takes new chunks"),
                    StoreMode::ReadOnly => {
                        format!("store {store} serves what it has and takes no new chunks")
                    }
                    StoreMode::Gone => format!(
                        "store {store} is gone for good: its node makes a new one when it starts again with an empty directory"
                    ),
                },
                || json!({"store": store, "writable": writable, "gone": *state == StoreMode::Gone}),
            )
        }
        Node::Replace { name } => {
            client.order(&Order::ReplaceNode { name: name.clone() })?;
            out.line(
                || format!("`{name}` is nobody's now: start the new node with its certificate"),
                || json!({"replaced": name}),
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
    let name = if node.name.is_empty() { String::new() } else { format!(" `{}`", node.name) };
    let rack = if node.rack.is_empty() { String::new() } else { format!(" rack {}", node.rack) };
    let room = match node.stores.is_empty() {
        true => "no stores".to_owned(),
        false => format!("{} free", format_bytes(free)),
    };
    format!(
        "{:<5} {:<11}{name} {}{rack} {}, {room}  {}",
        node.node.to_string(),
        node.state,
        node.host,
        node.address,
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
        "name": node.name,
    })
}
