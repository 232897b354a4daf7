//! The log of a node that is being opened: kept in its directory, by another node, or by brokers.

use super::Machine;
use super::identity::Identity;
use super::keeps::LogKeeper;
use super::lost_log;
use super::moved_log;
use super::open::{NodeConfig, snapshot_store};
use super::views::wait_for;
use holdfast_base::codec::Decode;
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::Done;
use holdfast_cluster::DATA_FORMAT_VERSION;
use holdfast_cluster::topics::{AUDIT_TOPIC, folded_by};
use holdfast_env::net::PeerRequest;
use holdfast_log::{Drive, EmbeddedLog, Log, LogOptions, RemoteLog, SharedLog};
use holdfast_wire::peer::{self, Sender, Welcome};
use std::sync::Arc;

/// Between two attempts to reach a cluster that is to be joined.
const JOIN_PAUSE_MS: u64 = 500;
/// Attempts of a node that was never part of a cluster: more likely than a cluster that is away is
/// an address that is wrong. One that was part of it waits for as long as it takes.
const JOIN_ATTEMPTS: u32 = 10;
/// Answers about the cluster and its log.
const HELLO_MS: u32 = 3000;

/// How an engine shows what lies in the embedded log.
type Shown = dyn Fn(Arc<EmbeddedLog>) -> Arc<dyn Log> + Send + Sync;

/// How the log that is no node's is opened: by the number of the cluster that a node belongs to, if it
/// has one, and the one that a new cluster gets.
type OpenShared = dyn Fn(Option<u64>, u64) -> Result<Arc<dyn SharedLog>> + Send + Sync;

/// Which engine keeps the log.
#[derive(Clone, Default)]
pub enum LogEngine {
    /// One node of the cluster, in its data directory.
    #[default]
    Embedded,
    /// The same, shown by an engine that promises no more than every engine does: for simulations.
    Showing(Arc<Shown>),
    /// Brokers, for all nodes.
    Shared(Arc<OpenShared>),
}

impl LogEngine {
    pub fn showing(
        shown: impl Fn(Arc<EmbeddedLog>) -> Arc<dyn Log> + Send + Sync + 'static,
    ) -> LogEngine {
        LogEngine::Showing(Arc::new(shown))
    }

    pub fn shared(
        open: impl Fn(Option<u64>, u64) -> Result<Arc<dyn SharedLog>> + Send + Sync + 'static,
    ) -> LogEngine {
        LogEngine::Shared(Arc::new(open))
    }
}

impl std::fmt::Debug for LogEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogEngine::Embedded => "the embedded log",
            LogEngine::Showing(_) => "one over the embedded log",
            LogEngine::Shared(_) => "brokers",
        })
    }
}

/// The log of a node that is being opened.
pub(super) struct OpenLog {
    pub log: Arc<dyn Log>,
    pub kept: LogKeeper,
    /// The cluster whose log it is, where that is known before the log is read.
    pub cluster: Option<u64>,
}

impl OpenLog {
    pub fn of(
        machine: &Machine,
        config: &NodeConfig,
        identity: Option<Identity>,
        findings: &mut Vec<String>,
    ) -> Result<OpenLog> {
        if let LogEngine::Shared(open) = &config.engine {
            lost_log::check_none_here(&*machine.disk, &config.data, identity)?;
            let new = machine.rng.next_u64().max(1);
            let known = identity.map(|known| known.cluster);
            let shared = patiently(machine, config.tell, known.is_some(), || open(known, new))?;
            let cluster = Some(shared.id());
            return Ok(OpenLog { log: shared.clone(), kept: LogKeeper::Shared(shared), cluster });
        }
        let Some(address) = &config.join else {
            assert!(config.keeps_chunks, "who keeps the log keeps chunks");
            moved_log::check(&*machine.disk, &config.data)?;
            lost_log::check(&*machine.disk, &config.data, identity)?;
            return OpenLog::embedded(machine, config, findings);
        };
        OpenLog::remote(machine, address, identity, config.tell)
    }

    fn embedded(
        machine: &Machine,
        config: &NodeConfig,
        findings: &mut Vec<String>,
    ) -> Result<OpenLog> {
        let hosted = open_log(machine, config, findings)?;
        let log: Arc<dyn Log> = match &config.engine {
            LogEngine::Showing(shown) => shown(hosted.clone()),
            _ => hosted.clone(),
        };
        Ok(OpenLog { log, kept: LogKeeper::Here(hosted), cluster: None })
    }

    /// Asks at `address` where the log is, until there is an answer.
    fn remote(
        machine: &Machine,
        address: &str,
        identity: Option<Identity>,
        tell: fn(&str),
    ) -> Result<OpenLog> {
        let answered = patiently(machine, tell, identity.is_some(), || hello(machine, address));
        let welcome = answered.map_err(|e| match e.kind {
            Kind::Retry => e.context(format_args!(
                "join the cluster at `{address}`: nobody answers there: check the address, or start \
                 that node first"
            )),
            _ => e,
        })?;
        if welcome.data_format != DATA_FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "join the cluster at `{address}`: its data have format {}, this build writes \
                 {DATA_FORMAT_VERSION}: use matching builds",
                welcome.data_format
            )));
        }
        if let Some(own) = identity.filter(|own| own.cluster != welcome.cluster) {
            return Err(Error::invalid(format!(
                "join the cluster at `{address}`: it is `{:016x}`, this directory belongs to \
                 `{:016x}`: check the address, or choose an empty directory",
                welcome.cluster, own.cluster
            )));
        }
        if welcome.log_host.contains("://") {
            return Err(Error::invalid(format!(
                "join the cluster at `{address}`: brokers keep its log: start with `--log {0}`, or set `log = \"{0}\"`",
                welcome.log_host
            )));
        }
        let node = identity.map_or(NodeId(0), |own| own.node);
        let sender = Sender { cluster: welcome.cluster, node, incarnation: Index(0) };
        let remote = RemoteLog::new(machine.peers.clone(), &welcome.log_host, sender);
        let remote = Arc::new(remote);
        let kept = LogKeeper::Node { log: remote.clone(), host: welcome.log_host };
        Ok(OpenLog { log: remote, kept, cluster: Some(welcome.cluster) })
    }

    pub fn hosted(&self) -> Option<&Arc<EmbeddedLog>> {
        match &self.kept {
            LogKeeper::Here(log) => Some(log),
            _ => None,
        }
    }

    /// Whom a node asks that opens a view, in the name of the node that it is; nobody where the log is here,
    /// for that has all of it.
    pub fn lender<'a>(&'a self, config: &'a NodeConfig) -> Option<(Option<&'a str>, u64)> {
        let lender = match &self.kept {
            LogKeeper::Here(_) => None,
            LogKeeper::Node { host, .. } => Some(host.as_str()),
            LogKeeper::Shared(_) => config.join.as_deref(),
        };
        self.cluster.map(|cluster| (lender, cluster))
    }

    pub fn pump(&self) {
        if let Some(log) = self.hosted() {
            // Does nothing where threads do it.
            while log.pump() {}
        }
    }
}

/// Asks until there is an answer: for as long as it takes in the name of a node that was part of the
/// cluster.
pub(super) fn patiently<T>(
    machine: &Machine,
    tell: fn(&str),
    was_there: bool,
    ask: impl Fn() -> Result<T>,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match ask() {
            Err(e) if e.kind == Kind::Retry && (was_there || attempts < JOIN_ATTEMPTS) => {
                if attempts == 1 {
                    tell(&format!("waits for the cluster: {e}"));
                }
                let peers = &*machine.peers;
                let pause = |done: Done<()>| peers.after(JOIN_PAUSE_MS, Box::new(|| done(Ok(()))));
                wait_for(peers, &|| {}, pause)?;
            }
            answered => return answered,
        }
    }
}

fn hello(machine: &Machine, address: &str) -> Result<Welcome> {
    let request = PeerRequest {
        opcode: peer::OP_PEER_HELLO,
        meta: Vec::new(),
        body: None,
        deadline_ms: HELLO_MS,
    };
    let peers = &*machine.peers;
    let reply = wait_for(peers, &|| {}, |done| peers.call(address, request, done))?;
    Ok(Welcome::from_bytes(&reply.meta)?)
}

fn open_log(
    machine: &Machine,
    config: &NodeConfig,
    findings: &mut Vec<String>,
) -> Result<Arc<EmbeddedLog>> {
    let drive = if config.commit_threads == 0 { Drive::Pump } else { Drive::Threads };
    let options = LogOptions {
        drive,
        segment_bytes: config.segment_bytes,
        needed: Some(|topic| folded_by(topic).is_some() || topic == AUDIT_TOPIC),
        ..LogOptions::default()
    };
    // Asked where a topic is damaged: a snapshot may make up for it.
    let covered = |topic: &str| {
        folded_by(topic)?;
        let newest = snapshot_store(machine, &config.data, topic).newest();
        newest.ok().filter(|last| last.0 > 0)
    };
    let directory = config.data.join("log");
    let disk = machine.disk.clone();
    let log = EmbeddedLog::open_covered(disk, &directory, options, &covered)?;
    for passed in log.passed_over() {
        findings.push(format!(
            "topic `{}` was damaged in `{}` at offset {}: entries {} to {} cannot be read; a \
             verified snapshot contains them, nothing behind them is lost, and the damaged bytes \
             are kept in `{}`",
            passed.topic,
            passed.segment.display(),
            passed.offset,
            passed.first,
            passed.next.0 - 1,
            passed.kept.display()
        ));
    }
    for (_, why) in log.refused().into_iter().filter(|(topic, _)| folded_by(topic).is_none()) {
        // One that a view folds, the view speaks of.
        findings.push(format!("{why}; until then nobody reads it or appends to it"));
    }
    for cut in log.recovered() {
        findings.push(format!(
            "topic `{}` ended within a write: {} torn bytes are kept in `{}`",
            cut.topic,
            cut.bytes,
            cut.kept.display()
        ));
    }
    Ok(Arc::new(log))
}
