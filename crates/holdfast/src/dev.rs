//! `holdfast dev`: a cluster of real processes on this machine, for trying out and for tests. The
//! command without a subcommand starts the nodes and watches over them until it is interrupted;
//! `dev kill`, `erase`, `start`, `cut` and `status` ask it over a socket in its directory.
//! Never touches what a node keeps but to erase it on request.

mod control;

use crate::cli::{Dev, DevCommand};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_command::supervisor::{Answer, ClusterSettings, Order, Supervisor};
use holdfast_env::signals;
use serde_json::json;

/// A cluster of this size is a test of patience on one machine.
pub const NODES_MAX: usize = 32;

/// Starts the cluster and serves until a signal, or has the one that runs do what is ordered.
pub fn run(dev: &Dev, out: &mut Output) -> Result<()> {
    let order = match &dev.command {
        None => return start(&dev.cluster, out),
        Some(DevCommand::Kill { node, hard }) => Order::Kill { node: *node, hard: *hard },
        Some(DevCommand::Erase { node }) => Order::Erase { node: *node },
        Some(DevCommand::Start { node }) => Order::Start { node: *node },
        Some(DevCommand::Cut { a, b, heal }) => Order::Cut { a: *a, b: *b, heal: *heal },
        Some(DevCommand::Status) => Order::Status {},
    };
    match control::ask(&dev.cluster.data, &order)? {
        Answer::Done { sentence } => out.line(|| sentence.clone(), || json!({"done": sentence})),
        Answer::Refused { sentence } => Err(Error::invalid(sentence)),
        Answer::Nodes { nodes } => {
            for node in nodes {
                out.line(
                    || {
                        let pid = match node.pid {
                            Some(pid) => format!("pid {pid}"),
                            None => "stopped".to_owned(),
                        };
                        format!(
                            "node-{:<3} {pid:<12} native 127.0.0.1:{} http 127.0.0.1:{}  {}",
                            node.number, node.native_port, node.http_port, node.data
                        )
                    },
                    || json!(node),
                )?;
            }
            Ok(())
        }
    }
}

/// Starts every node and serves orders until a signal.
fn start(cluster: &ClusterSettings, out: &mut Output) -> Result<()> {
    signals::block_shutdown_signals();
    holdfast_env::local::keep_private();
    if cluster.nodes == 0 || cluster.nodes > NODES_MAX {
        return Err(Error::invalid(format!(
            "start {} nodes: choose 1 to {NODES_MAX} with --nodes",
            cluster.nodes
        )));
    }
    let supervisor = Supervisor::prepare(cluster)?;
    supervisor.launch_all()?;
    let listening = control::serve(&cluster.data, supervisor.clone())?;
    let data = cluster.data.display().to_string();
    let native = supervisor.native_ports();
    out.line(
        || {
            let data_flag =
                if data == "dev" { String::new() } else { format!(" --data {data}") };
            if cluster.regions {
                let other = native.get(1).unwrap_or(&native[0]);
                return format!(
                    "holdfast: {} regions of a node each run, with their data in {data}; node-1, region 0, listens on \
                     127.0.0.1:{}\ntry, in another terminal:\n  \
                     holdfast table create users --mode strong\n  \
                     holdfast table put users alice 1\n  \
                     holdfast --server 127.0.0.1:{other} table get users alice --strong\n  \
                     holdfast dev{data_flag} kill 1 --hard\n\
                     ready; press Ctrl-C to end all of them",
                    cluster.nodes, native[0]
                );
            }
            format!(
                "holdfast: {} nodes run, with their data in {data}; node-1 listens on 127.0.0.1:{}\n\
                 try, in another terminal:\n  \
                 holdfast fs put -r /usr/share/doc /doc\n  \
                 holdfast dev{data_flag} kill 2 --hard && holdfast dev{data_flag} erase 2\n  \
                 holdfast node ls\n\
                 ready; press Ctrl-C to end all of them",
                cluster.nodes, native[0]
            )
        },
        || json!({"event": "ready", "data": data, "native_ports": native}),
    )?;
    let signal = signals::wait_for_shutdown()?;
    out.line(
        || format!("holdfast: {signal:?}, ending {} nodes in order", cluster.nodes),
        || json!({"event": "ending"}),
    )?;
    drop(listening);
    supervisor.stop_all();
    Ok(())
}
