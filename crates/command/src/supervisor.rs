//! The nodes of a cluster on this machine as child processes: their directories, settings and
//! ports, and what can be done to them. Node 1 has the first ports and hosts the log; the others
//! count up by 100 and join it.

use crate::certificates::{Issuer, TLS};
use crate::distance::{Distances, Way};
use crate::files::SETTINGS;
use crate::secrets;
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::{HoldMutex, local, signals};
use holdfast_wire::admin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Ports of node I are those of node 1 plus so much for each node between.
const PORT_STEP: u16 = 100;
/// Where the search for free ports begins.
const FREE_FROM: u16 = 7400;
/// A file of distances between regions.
const WAN_BYTES_MAX: u64 = 1 << 20;

/// What a cluster on this machine is made of: flags of `dev`, and set by who starts one for a
/// purpose.
#[derive(Args, Debug)]
pub struct ClusterSettings {
    /// Nodes to start
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub nodes: usize,
    /// Directory that keeps everything
    #[arg(long, global = true, default_value = "dev", value_name = "DIR")]
    pub data: PathBuf,
    /// Native port of node-1; the others count up by 100
    #[arg(long, default_value_t = 7400, value_name = "PORT")]
    pub port: u16,
    /// HTTP port of node-1; the others count up by 100; 0 for none
    #[arg(long, default_value_t = 7480, value_name = "PORT")]
    pub http_port: u16,
    /// S3 port of node-1; the others count up by 100; 0 for none
    #[arg(long, default_value_t = 9000, value_name = "PORT")]
    pub s3_port: u16,
    /// What each node may store; 0 for the whole file system
    #[arg(long, default_value = "0", value_name = "BYTES")]
    pub capacity: String,
    /// Capacity of new chunks, 1M to 64M: smaller ones show more of a repair with few data
    #[arg(long, default_value = "64M", value_name = "BYTES")]
    pub chunk: String,
    /// Milliseconds without a sign of life after which a node's chunks are copied elsewhere
    #[arg(long, default_value_t = 15_000, value_name = "MS")]
    pub lost_ms: u64,
    /// Brokers that keep the log, kafka://HOST:PORT,...[/PREFIX]; else node-1 does
    #[arg(long, value_name = "URL")]
    pub log: Option<String>,
    /// Make each node a region of its own, with a log of its own, for tables in several regions; as many as
    /// nodes. `dev cut A B` cuts the way between two of them
    #[arg(long, conflicts_with_all = ["log", "tls"])]
    pub regions: bool,
    /// How far those regions are apart: a file of lines like `0 1 87`, region node-1, region node-2,
    /// milliseconds there and back
    #[arg(long, requires = "regions", value_name = "FILE")]
    pub wan: Option<PathBuf>,
    /// Give the nodes certificates of a CA in DIR/tls, by which they know each other
    #[arg(long)]
    pub tls: bool,
}

/// What can be done to the nodes, which count from 1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "a variant's sentence says what its fields are")]
pub enum Order {
    /// Ends a node's process: in order, or `hard` with SIGKILL, as a power cut would.
    Kill { node: usize, hard: bool },
    /// Deletes the data directory of a node that does not run.
    Erase { node: usize },
    /// Starts a node that does not run, and waits until it is ready.
    Start { node: usize },
    /// Keeps two nodes from reaching each other, or (`heal`) no longer.
    Cut { a: usize, b: usize, heal: bool },
    /// Asks for all nodes.
    Status {},
}

/// What came of an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "a variant's sentence says what its fields are")]
pub enum Answer {
    /// What is so now, for people.
    Done { sentence: String },
    /// Why nothing was done.
    Refused { sentence: String },
    /// The answer to a status.
    Nodes { nodes: Vec<NodeStatus> },
}

/// One node of the cluster.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// From 1 on.
    pub number: usize,
    /// Of its process, while it runs.
    pub pid: Option<u32>,
    /// Of the native protocol, on 127.0.0.1.
    pub native_port: u16,
    /// Of metrics and health; 0 for none.
    pub http_port: u16,
    /// The data directory.
    pub data: String,
}

/// Runs the nodes, and ends them when it goes.
pub struct Supervisor {
    dir: PathBuf,
    tls: bool,
    nodes: Vec<NodeSettings>,
    /// From each region to each other one, where every node is one.
    ways: BTreeMap<(usize, usize), Way>,
    /// The process of each node, while it runs. Held while an order is carried out: one at a time.
    running: Mutex<Vec<Option<Running>>>,
}

struct NodeSettings {
    native_port: u16,
    http_port: u16,
    data: PathBuf,
    toml: String,
}

struct Running {
    child: Child,
    /// Kept open: a node whose output nobody reads would end.
    _output: BufReader<ChildStdout>,
}

/// Whether nobody listens on a port of this machine now.
#[expect(clippy::disallowed_methods, reason = "asks the machine what is free; serves nothing")]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// A native port for node 1 such that all nodes' ports are free now.
pub fn free_ports(nodes: usize) -> Result<u16> {
    let mut ports = (FREE_FROM..u16::MAX - PORT_STEP * nodes as u16).step_by(7);
    ports
        .find(|port| (0..nodes as u16).all(|i| is_free(port + PORT_STEP * i)))
        .ok_or_else(|| Error::retry(format!("find ports for {nodes} nodes: none are free")))
}

impl Supervisor {
    /// A cluster of which no node runs yet.
    pub fn prepare(cluster: &ClusterSettings) -> Result<Arc<Supervisor>> {
        let mut nodes: Vec<NodeSettings> =
            (0..cluster.nodes).map(|i| settings(cluster, i)).collect();
        let ways = match cluster.regions {
            true => regions(cluster, &mut nodes)?,
            false => BTreeMap::new(),
        };
        let running = Mutex::new(nodes.iter().map(|_| None).collect());
        Ok(Arc::new(Supervisor {
            dir: cluster.data.clone(),
            tls: cluster.tls,
            nodes,
            ways,
            running,
        }))
    }

    /// Starts every node, the one with the log first.
    pub fn launch_all(&self) -> Result<()> {
        secrets::close(&self.dir)?;
        secrets::of_cluster(&self.dir)?;
        secrets::learn(&self.dir)?;
        for number in 1..=self.nodes.len() {
            let launched = self.launch(number)?;
            self.lock()[number - 1] = Some(launched);
        }
        for at in 0..self.nodes.len() {
            self.introduce(at)?;
        }
        Ok(())
    }

    /// Has a region know the others: by tokens that it makes for them.
    fn introduce(&self, at: usize) -> Result<()> {
        for (of, _) in self.ways.keys().filter(|(_, to)| *to == at) {
            let file = token(&self.dir, *of, at);
            let endpoint = Endpoint::parse(&format!("127.0.0.1:{}", self.nodes[at].native_port))?;
            let mut client = Client::connect(&endpoint, &secrets::options())?;
            let name = format!("region-{of}");
            let known = client.tokens()?.iter().any(|token| token.name == name);
            if known && file.exists() {
                continue;
            }
            let rules = vec![format!("region:{of}:rw")];
            let new = admin::NewToken { name, rules, ttl_s: admin::TOKEN_TTL_MAX_S };
            let text = client.create_token(&new)?;
            local::write_private(&file, format!("{text}\n").as_bytes())?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Running>>> {
        self.running.held()
    }

    /// Of every node, the first one's first.
    pub fn native_ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.native_port).collect()
    }

    /// Starts a node and waits until it says that it is ready.
    fn launch(&self, number: usize) -> Result<Running> {
        let node = &self.nodes[number - 1];
        let doing = |e: Error| e.context(format_args!("start node-{number}"));
        secrets::close(&node.data).map_err(doing)?;
        local::write_private(&node.data.join(SETTINGS), node.toml.as_bytes())
            .map_err(|e| doing(e.into()))?;
        if self.tls {
            let issuer = Issuer::open(&self.dir.join(TLS), "dev").map_err(doing)?;
            issuer.equip(&node.data, &format!("node-{number}")).map_err(doing)?;
        }
        // What nodes warn of is on their `doctor`, unless somebody asked for it here.
        let level = std::env::var("HOLDFAST_EVENTS_LEVEL").unwrap_or_else(|_| "error".to_owned());
        let mut child = Command::new("/proc/self/exe")
            .env("HOLDFAST_EVENTS_LEVEL", level)
            .arg("--secret")
            .arg(self.dir.join(secrets::FILE))
            .args(["--json", "node", "run", "--attached", "--data"])
            .arg(&node.data)
            // Never written to: its end tells the node that this process is gone.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| doing(e.into()))?;
        let Some(output) = child.stdout.take() else {
            return Err(doing(Error::bug("its output is not ours")));
        };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if ready["event"] != "ready" {
            let _ = child.wait();
            return Err(doing(Error::retry("it ended at once; it has said why above")));
        }
        Ok(Running { child, _output: output })
    }

    /// Does what is ordered. `Invalid` where it cannot be done as the nodes are now: what runs
    /// already, what does not run, a node that there is not.
    pub fn carry_out(&self, order: &Order) -> Result<Answer> {
        let done = |sentence: String| Ok(Answer::Done { sentence });
        match *order {
            Order::Kill { node, hard } => {
                self.check(node)?;
                let Some(mut process) = self.lock()[node - 1].take() else {
                    return Err(Error::invalid(format!("kill node-{node}: it does not run")));
                };
                end(&mut process, hard)?;
                done(format!("node-{node} {}", if hard { "was killed" } else { "has ended" }))
            }
            Order::Erase { node } => {
                self.check(node)?;
                if self.lock()[node - 1].is_some() {
                    return Err(Error::invalid(format!(
                        "erase node-{node}: it runs; `dev kill {node}` first"
                    )));
                }
                remove(&self.nodes[node - 1].data)?;
                done(format!("everything that node-{node} kept is gone"))
            }
            Order::Start { node } => {
                self.check(node)?;
                let mut running = self.lock();
                let mut runs = |node: usize| {
                    let process = running[node - 1].as_mut();
                    process.is_some_and(|p| matches!(p.child.try_wait(), Ok(None)))
                };
                if runs(node) {
                    return Err(Error::invalid(format!("start node-{node}: it runs already")));
                }
                if node != 1 && self.ways.is_empty() && !runs(1) {
                    // It would wait for the log, and whoever asked for it.
                    return Err(Error::invalid(format!(
                        "start node-{node}: node-1, which hosts the log, does not run: start that first"
                    )));
                }
                running[node - 1] = Some(self.launch(node)?);
                // One that was erased knows nobody.
                self.introduce(node - 1)?;
                done(format!("node-{node} is ready"))
            }
            Order::Cut { a, b, heal } => {
                self.check(a)?;
                self.check(b)?;
                self.cut(a, b, heal)?;
                done(match heal {
                    true => format!("node-{a} and node-{b} reach each other again"),
                    false => format!("node-{a} and node-{b} cannot reach each other any more"),
                })
            }
            Order::Status {} => Ok(Answer::Nodes { nodes: self.status() }),
        }
    }

    fn check(&self, node: usize) -> Result<()> {
        if (1..=self.nodes.len()).contains(&node) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "find node-{node}: the cluster in `{}` has node-1 to node-{}",
            self.dir.display(),
            self.nodes.len()
        )))
    }

    /// Tells both nodes; one that does not run needs no telling.
    fn cut(&self, a: usize, b: usize, heal: bool) -> Result<()> {
        if a == b {
            return Err(Error::invalid(format!("cut node-{a} off from itself: name two nodes")));
        }
        if !self.ways.is_empty() {
            for way in [(a - 1, b - 1), (b - 1, a - 1)] {
                self.ways[&way].cut(heal);
            }
            return Ok(());
        }
        for (here, there) in [(a, b), (b, a)] {
            let other = format!("127.0.0.1:{}", self.nodes[there - 1].native_port);
            let endpoint =
                Endpoint::parse(&format!("127.0.0.1:{}", self.nodes[here - 1].native_port))?;
            let options = ClientOptions { reconnects_max: 0, ..secrets::options() };
            match Client::connect(&endpoint, &options) {
                Ok(mut client) => client.order(&admin::Order::Cut { address: other, heal })?,
                Err(_) if self.lock()[here - 1].is_none() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn status(&self) -> Vec<NodeStatus> {
        let mut running = self.lock();
        let processes = running.iter_mut().map(|process| {
            let process = process.as_mut()?;
            matches!(process.child.try_wait(), Ok(None)).then(|| process.child.id())
        });
        (1..)
            .zip(self.nodes.iter().zip(processes))
            .map(|(number, (node, pid))| NodeStatus {
                number,
                pid,
                native_port: node.native_port,
                http_port: node.http_port,
                data: node.data.display().to_string(),
            })
            .collect()
    }

    /// Process ids of the nodes that run.
    pub fn pids(&self) -> Vec<u32> {
        self.status().into_iter().filter_map(|node| node.pid).collect()
    }

    /// Ends every node in order, the one with the log last.
    pub fn stop_all(&self) {
        let mut running = self.lock();
        for process in running.iter_mut().rev() {
            if let Some(mut process) = process.take() {
                let _ = end(&mut process, false);
            }
        }
    }

    /// Ends every node at once.
    pub fn kill_all(&self) {
        for mut process in self.lock().iter_mut().filter_map(Option::take) {
            let _ = end(&mut process, true);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// Asks a process to end, or ends it, and waits until it has.
fn end(process: &mut Running, hard: bool) -> Result<()> {
    if hard {
        process.child.kill()?;
    } else if matches!(process.child.try_wait(), Ok(None)) {
        signals::terminate(process.child.id())?;
    }
    process.child.wait()?;
    Ok(())
}

fn remove(data: &Path) -> Result<()> {
    match std::fs::remove_dir_all(data) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => {
            other.map_err(|e| Error::from(e).context(format_args!("erase `{}`", data.display())))
        }
    }
}

/// The file of the token by which a region is known at another one.
fn token(dir: &Path, of: usize, at: usize) -> PathBuf {
    dir.join(format!("region-{of}-at-{at}.token"))
}

/// Makes each node a region that knows the others, and a way from each to each.
fn regions(
    cluster: &ClusterSettings,
    nodes: &mut [NodeSettings],
) -> Result<BTreeMap<(usize, usize), Way>> {
    let distances = match &cluster.wan {
        None => Distances::default(),
        Some(file) => {
            let doing = |e: Error| e.context(format_args!("read `{}`", file.display()));
            let text = local::read_small(file, WAN_BYTES_MAX).map_err(|e| doing(e.into()))?;
            Distances::parse(&String::from_utf8_lossy(&text)).map_err(doing)?
        }
    };
    let dir = std::path::absolute(&cluster.data)?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.native_port).collect();
    let mut ways = BTreeMap::new();
    for (of, node) in nodes.iter_mut().enumerate() {
        node.toml += &format!("region = {of}\n");
        for (at, port) in ports.iter().enumerate().filter(|(at, _)| *at != of) {
            let way = Way::to(*port, distances.round_trip(of, at) / 2)?;
            node.toml += &format!(
                "[regions.{at}]\nservers = \"127.0.0.1:{}\"\ntoken = {:?}\n",
                way.port(),
                token(&dir, of, at)
            );
            ways.insert((of, at), way);
        }
    }
    Ok(ways)
}

fn settings(cluster: &ClusterSettings, i: usize) -> NodeSettings {
    let step = PORT_STEP * i as u16;
    let http_port = if cluster.http_port == 0 { 0 } else { cluster.http_port + step };
    let s3_port = if cluster.s3_port == 0 { 0 } else { cluster.s3_port + step };
    let native_port = cluster.port + step;
    let join = match i {
        _ if cluster.regions => String::new(),
        0 => String::new(),
        _ => format!("join = \"127.0.0.1:{}\"\n", cluster.port),
    };
    let log = cluster.log.as_ref().map_or(String::new(), |log| format!("log = {log:?}\n"));
    let toml = format!(
        "# Written by `holdfast dev`.\nhost = \"node-{}\"\nnative_port = {native_port}\n\
         http_port = {http_port}\ndram = \"0\"\ncache_port = 0\ns3_port = {s3_port}\ncapacity = \"{}\"\nchunk = \"{}\"\nlost_ms = {}\ndev = true\n{join}{log}",
        i + 1,
        cluster.capacity,
        cluster.chunk,
        cluster.lost_ms,
    );
    NodeSettings {
        native_port,
        http_port,
        data: cluster.data.join(format!("node-{}", i + 1)),
        toml,
    }
}
