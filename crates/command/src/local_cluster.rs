//! A cluster for one purpose (the demonstration, a benchmark): started in a directory, ended with
//! its owner, and gone from the disk then unless a person named the directory.
#![expect(clippy::disallowed_methods, reason = "a directory of a cluster for development")]

use crate::secrets;
use crate::supervisor::{ClusterSettings, Order, Supervisor, free_ports};
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::{HoldMutex, signals, tasks};
use holdfast_wire::admin::Cluster;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Nodes that run as long as this does.
pub struct LocalCluster {
    supervisor: Arc<Supervisor>,
    ports: Vec<u16>,
    directory: PathBuf,
    temporary: bool,
}

impl LocalCluster {
    /// Starts nodes in `data`, or in a directory of its own beside other temporary files, with
    /// chunks of so many bytes.
    pub fn start(
        nodes: usize,
        data: Option<&Path>,
        chunk_bytes: u64,
        lost_ms: u64,
    ) -> Result<LocalCluster> {
        let directory = data.map_or_else(|| own(&std::env::temp_dir()), Path::to_path_buf);
        LocalCluster::start_with(directory, data.is_none(), |data| {
            Ok(ClusterSettings {
                chunk: chunk_bytes.to_string(),
                lost_ms,
                ..nodes_in(data, nodes)?
            })
        })
    }

    /// Starts regions of a node each, so far apart as a text says ([`Distances`](crate::distance::Distances)), in a
    /// directory below `parent`, or below that of temporary files, which goes with them.
    pub fn regions(nodes: usize, parent: Option<&Path>, distances: &str) -> Result<LocalCluster> {
        let directory = own(parent.unwrap_or(&std::env::temp_dir()));
        LocalCluster::start_with(directory, true, |data| {
            std::fs::create_dir_all(data)?;
            let wan = data.join("wan.txt");
            std::fs::write(&wan, distances)?;
            Ok(ClusterSettings { regions: true, wan: Some(wan), ..nodes_in(data, nodes)? })
        })
    }

    fn start_with(
        directory: PathBuf,
        temporary: bool,
        settings: impl FnOnce(&Path) -> Result<ClusterSettings>,
    ) -> Result<LocalCluster> {
        let occupied = std::fs::read_dir(&directory).is_ok_and(|mut found| found.next().is_some());
        if occupied {
            return Err(Error::invalid(format!(
                "start a cluster in `{}`: it is not empty: choose another directory",
                directory.display()
            )));
        }
        let settings = settings(&directory)?;
        // Dropped when a node does not start, so that the others do not stay.
        let mut cluster = LocalCluster {
            supervisor: Supervisor::prepare(&settings)?,
            ports: vec![],
            directory,
            temporary,
        };
        end_when_interrupted(&cluster)?;
        cluster.supervisor.launch_all()?;
        cluster.ports = cluster.supervisor.native_ports();
        Ok(cluster)
    }

    /// Where the nodes keep their data.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// `HOST:PORT` of the native protocol of node `node`, counted from 1.
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.ports[node - 1])
    }

    /// A client of node `node`, counted from 1, that goes on at the others.
    pub fn client(&self, node: usize) -> Result<Client> {
        let endpoint = |i: usize| Endpoint::parse(&self.address(1 + i % self.ports.len()));
        let others = (node..node + self.ports.len() - 1).map(endpoint).collect::<Result<_>>()?;
        let options = ClientOptions { others, ..secrets::options() };
        Client::connect(&endpoint(node - 1)?, &options)
    }

    /// A client of node `node` alone, counted from 1.
    pub fn client_of(&self, node: usize) -> Result<Client> {
        Client::connect(&Endpoint::parse(&self.address(node))?, &secrets::options())
    }

    /// Ends a node as a power cut does, and takes its disk away.
    pub fn lose(&self, node: usize) -> Result<()> {
        self.supervisor.carry_out(&Order::Kill { node, hard: true })?;
        self.supervisor.carry_out(&Order::Erase { node })?;
        Ok(())
    }

    /// Keeps two nodes from reaching each other, or (`heal`) no longer.
    pub fn cut(&self, a: usize, b: usize, heal: bool) -> Result<()> {
        self.supervisor.carry_out(&Order::Cut { a, b, heal }).map(drop)
    }

    /// Process ids of the nodes that run.
    pub fn pids(&self) -> Vec<u32> {
        self.supervisor.pids()
    }

    /// The cluster as its leader sees it: others do not know how repair is doing.
    pub fn seen_by_leader(&self, client: &mut Client) -> Result<Cluster> {
        let seen = client.cluster()?;
        let leader = seen.leader.filter(|leader| *leader != seen.node);
        let Some(node) = seen.nodes.iter().find(|node| Some(node.node) == leader) else {
            return Ok(seen);
        };
        Client::connect(&Endpoint::parse(&node.address)?, &secrets::options())?.cluster()
    }

    /// `holdfast recovery set --rate BYTES`.
    pub fn set_repair_rate(&self, bytes_per_second: u64) -> Result<()> {
        let set = Command::new("/proc/self/exe")
            .arg("--secret")
            .arg(self.directory.join(secrets::FILE))
            .args(["--server", &self.address(1), "recovery", "set", "--rate"])
            .arg(bytes_per_second.to_string())
            .stdout(Stdio::null())
            .status()?;
        match set.success() {
            true => Ok(()),
            false => Err(Error::retry("set the rate of repair: see the message above")),
        }
    }
}

/// Nodes on ports that are free now, and nothing else that listens.
fn nodes_in(data: &Path, nodes: usize) -> Result<ClusterSettings> {
    Ok(ClusterSettings {
        log: None,
        tls: false,
        regions: false,
        wan: None,
        nodes,
        data: data.to_owned(),
        port: free_ports(nodes)?,
        http_port: 0,
        s3_port: 0,
        capacity: "0".to_owned(),
        chunk: "64M".to_owned(),
        lost_ms: 15_000,
    })
}

/// A directory of this process's cluster.
fn own(parent: &Path) -> PathBuf {
    parent.join(format!("holdfast-{}", std::process::id()))
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        end(&self.supervisor, self.temporary.then_some(&*self.directory));
    }
}

fn end(supervisor: &Supervisor, temporary: Option<&Path>) {
    let Some(directory) = temporary else { return supervisor.stop_all() };
    // Their data go with them: there is nothing to end in order.
    supervisor.kill_all();
    let _ = std::fs::remove_dir_all(directory);
}

/// Each cluster of this process, and its directory if that goes with it.
static CLUSTERS: Mutex<Vec<(Weak<Supervisor>, Option<PathBuf>)>> = Mutex::new(Vec::new());

/// Somebody who interrupts the command leaves no nodes and no directory behind.
fn end_when_interrupted(cluster: &LocalCluster) -> Result<()> {
    let known = {
        let mut clusters = CLUSTERS.held();
        clusters.retain(|(supervisor, _)| supervisor.strong_count() > 0);
        let directory = cluster.temporary.then(|| cluster.directory.clone());
        clusters.push((Arc::downgrade(&cluster.supervisor), directory));
        WATCHED.swap(true, Ordering::Relaxed)
    };
    if known {
        return Ok(());
    }
    // Before any other thread, which would take the signal instead.
    signals::block_shutdown_signals();
    tasks::spawn("interrupt", || {
        if signals::wait_for_shutdown().is_err() {
            return;
        }
        let clusters = CLUSTERS.held();
        for (supervisor, directory) in clusters.iter() {
            if let Some(supervisor) = supervisor.upgrade() {
                end(&supervisor, directory.as_deref());
            }
        }
        std::process::exit(INTERRUPTED);
    })?;
    Ok(())
}

static WATCHED: AtomicBool = AtomicBool::new(false);
/// As a shell has it of a command that Ctrl-C ended.
const INTERRUPTED: i32 = 130;
