//! Opening a data directory: lock, version, log, cluster view, stores, namespace; then the stores
//! are made to follow the views. Nothing is served before all of it went well.

use super::{Keeper, KeeperOptions, Machine, Node, OwnStore, Stores, Workers};
use crate::{CLUSTER_TOPIC, ClusterCommand, DATA_FORMAT_VERSION, NAMESPACE_TOPIC, StoreState};
use holdfast_base::ids::{NodeId, Sequence, SessionId, StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_chunk::{Recovered, Store, StoreConfig};
use holdfast_env::Disk;
use holdfast_env::disk::{ReplaceSites, create_dir_durable, read_file, replace_file};
use holdfast_env::region::Region;
use holdfast_log::{
    Drive, EmbeddedLog, Fold, FoldOptions, Log, Mode, Options, Request, SnapshotStore, View,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The file that says what a directory is, in words that `cat` shows.
const MARK: &str = "HOLDFAST";
const MARK_SITES: ReplaceSites = ReplaceSites { data: "node.mark-data", name: "node.mark-name" };

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub data: PathBuf,
    /// Directories of further `disk` stores; the first one is `data/chunks`.
    pub disks: Vec<PathBuf>,
    /// Label that replicas are spread over.
    pub host: String,
    pub address: String,
    /// Threads that wait for disks, and that write commits. 0 for both in simulations.
    pub worker_threads: usize,
    pub commit_threads: usize,
    /// Kept free in each store for compaction; 0 for the larger of two chunks and 1%.
    pub reserve_bytes: u64,
    /// What each store may use; 0 for its whole file system.
    pub capacity_bytes: u64,
    pub segment_bytes: u64,
    /// [`StoreConfig::journal_segment_bytes`] of each store.
    pub journal_segment_bytes: u64,
    /// Capacity of new chunks at most; less than the default in simulations only.
    pub chunk_bytes: u64,
    pub fold: FoldOptions,
}

impl NodeConfig {
    pub fn new(data: impl Into<PathBuf>) -> NodeConfig {
        NodeConfig {
            data: data.into(),
            disks: Vec::new(),
            host: "localhost".to_owned(),
            address: "localhost".to_owned(),
            worker_threads: 4,
            // They wait for the disk, one commit each: as many chunks as streams are written at once.
            commit_threads: 8,
            reserve_bytes: 0,
            capacity_bytes: 0,
            segment_bytes: Options::default().segment_bytes,
            journal_segment_bytes: 32 * MIB,
            chunk_bytes: CHUNK_BYTES,
            fold: FoldOptions::default(),
        }
    }

    /// Everything done by the caller's own thread, step by step: for simulations.
    pub fn without_threads(self) -> NodeConfig {
        NodeConfig { worker_threads: 0, commit_threads: 0, ..self }
    }
}

impl Node {
    /// Opens the node in `config.data`, or makes one there. `region` becomes its `dram` store.
    pub fn open(
        machine: Machine,
        config: &NodeConfig,
        region: Option<Arc<Region>>,
    ) -> Result<Arc<Node>> {
        let data = &config.data;
        let doing = |e: Error| e.context(format_args!("open data directory `{}`", data.display()));
        let lock = claim(&*machine.disk, data).map_err(doing)?;
        let mut findings = Vec::new();
        let log = open_log(&machine, config, &mut findings).map_err(doing)?;
        let cluster = fold(&machine, &log, config, CLUSTER_TOPIC).map_err(doing)?;
        let stores = open_stores(&machine, config, region, &mut findings).map_err(doing)?;
        let namespace = fold(&machine, &log, config, NAMESPACE_TOPIC).map_err(doing)?;
        let node = Arc::new(Node {
            id: NodeId(1),
            machine,
            stores,
            log,
            namespace,
            cluster,
            workers: Arc::new(Workers::new("disk", config.worker_threads)?),
            packed: Default::default(),
            findings: Mutex::new(findings),
            scrubbed: Mutex::default(),
            _lock: lock,
        });
        node.register(config).map_err(doing)?;
        Keeper::new(node.clone(), KeeperOptions::default()).settle().map_err(doing)?;
        Ok(node)
    }

    /// Tells the cluster view who this is and which stores it has.
    fn register(&self, config: &NodeConfig) -> Result<()> {
        let (node, host, address) = (self.id, config.host.clone(), config.address.clone());
        self.propose_cluster(ClusterCommand::RegisterNode { node, host, address })?;
        for own in self.stores.iter() {
            let (store, tier) = (own.id, own.tier);
            let capacity = own.store.usage().capacity_bytes;
            self.propose_cluster(ClusterCommand::RegisterStore { store, node, tier, capacity })?;
        }
        // Memory does not outlive its process: what an earlier one had is gone for good.
        let gone: Vec<StoreId> = self.cluster.read(|view, _| {
            let mine = view.stores().filter(|(_, info)| info.node == self.id);
            let dead = mine.filter(|(id, info)| {
                info.tier == Tier::Dram
                    && info.state != StoreState::Gone
                    && self.stores.get(*id).is_none()
            });
            dead.map(|(id, _)| id).collect()
        })?;
        for store in gone {
            self.propose_cluster(ClusterCommand::SetStoreState { store, state: StoreState::Gone })?;
        }
        Ok(())
    }

    fn propose_cluster(&self, command: ClusterCommand) -> Result<()> {
        let request = Request {
            session: SessionId(0),
            sequence: Sequence(0),
            acknowledged_below: Sequence(0),
            command: command.to_entry(),
            mode: Mode::Synced,
        };
        self.wait_for(|done| self.cluster.propose(request, done)).map(|_| ())
    }
}

/// Locks the directory and checks that it is ours to use.
fn claim(disk: &dyn Disk, data: &Path) -> Result<Box<dyn Send + Sync>> {
    create_dir_durable(disk, data, 1, "node.directory")?;
    let lock = disk.lock(&data.join("LOCK")).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => Error::retry(
            "another process uses it: stop that one first, or choose another directory with --data",
        ),
        _ => Error::from(e),
    })?;
    let mark = data.join(MARK);
    let ours = format!("Holdfast data directory, format {DATA_FORMAT_VERSION}\n");
    if disk.exists(&mark)? {
        let found = read_file(disk, &mark, 256)?;
        if found != ours.as_bytes() {
            return Err(Error::unsupported(format!(
                "it says `{}`, this build reads `{}`: use the build that made it, or another directory",
                String::from_utf8_lossy(&found).trim().escape_debug(),
                ours.trim()
            )));
        }
        return Ok(lock);
    }
    let mut strangers = disk.list(data)?.into_iter().map(|entry| entry.name);
    // What `up` writes before the node opens, and file systems' own.
    let known = ["LOCK", "HOLDFAST.tmp", "holdfast.toml", "holdfast.sock", "lost+found"];
    if let Some(stranger) = strangers.find(|name| !known.contains(&name.as_str())) {
        return Err(Error::invalid(format!(
            "it is not empty and no Holdfast data directory (it holds `{stranger}`): choose an empty one"
        )));
    }
    replace_file(disk, &mark, ours.as_bytes(), MARK_SITES)?;
    Ok(lock)
}

fn open_log(
    machine: &Machine,
    config: &NodeConfig,
    findings: &mut Vec<String>,
) -> Result<Arc<EmbeddedLog>> {
    let drive = if config.commit_threads == 0 { Drive::Pump } else { Drive::Threads };
    let options = Options { drive, segment_bytes: config.segment_bytes, ..Options::default() };
    let log = EmbeddedLog::open(machine.disk.clone(), &config.data.join("log"), options)?;
    for cut in log.recovered() {
        findings.push(format!(
            "topic `{}` ended in {} torn bytes, which were never acknowledged; they are kept in `{}`",
            cut.topic,
            cut.bytes,
            cut.kept.display()
        ));
    }
    Ok(Arc::new(log))
}

fn fold<V: View>(
    machine: &Machine,
    log: &Arc<EmbeddedLog>,
    config: &NodeConfig,
    topic: &str,
) -> Result<Fold<V>> {
    let log: Arc<dyn Log> = log.clone();
    log.create(topic)?;
    let directory = config.data.join("snapshots").join(topic.replace('/', "-"));
    let snapshots = SnapshotStore { disk: machine.disk.clone(), directory };
    Fold::open_as_leader(log, topic, snapshots, config.fold)
}

fn open_stores(
    machine: &Machine,
    config: &NodeConfig,
    region: Option<Arc<Region>>,
    findings: &mut Vec<String>,
) -> Result<Stores> {
    let mut stores = Vec::new();
    let chunk_bytes_max = config.chunk_bytes;
    let directories = std::iter::once(config.data.join("chunks")).chain(config.disks.clone());
    for directory in directories {
        let place = directory.display().to_string();
        let store_config = StoreConfig {
            commit_threads: config.commit_threads,
            reserve_bytes: config.reserve_bytes,
            capacity_bytes: config.capacity_bytes,
            spare_file: config.commit_threads > 0,
            journal_segment_bytes: config.journal_segment_bytes,
            ..StoreConfig::new(directory)
        };
        let (store, found) = Store::open(machine.disk.clone(), machine.rng.clone(), store_config)
            .map_err(|e| e.context(format_args!("open store `{place}`")))?;
        describe(&place, &found, findings);
        stores.push(OwnStore { id: found.store, tier: Tier::Disk, place, store, chunk_bytes_max });
    }
    if let Some(region) = region {
        let id = region.store();
        let store = Store::in_region(region);
        let place = "memory".to_owned();
        stores.push(OwnStore { id, tier: Tier::Dram, place, store, chunk_bytes_max });
    }
    Ok(Stores::new(stores))
}

/// What a store's recovery found, in sentences.
fn describe(place: &str, found: &Recovered, findings: &mut Vec<String>) {
    for cut in &found.cut_tails {
        findings.push(format!(
            "chunk `{}` in `{place}` ended in {} torn bytes, which were never acknowledged; they are kept in `{}`",
            cut.chunk,
            cut.bytes,
            cut.kept_as.display()
        ));
    }
    for damage in &found.damaged {
        findings.push(format!("chunk `{}` in `{place}` is damaged: {}", damage.chunk, damage.what));
    }
    for what in &found.journal_damage {
        findings.push(format!("the journal of `{place}` is damaged: {what}"));
    }
    for (name, why) in &found.quarantined {
        findings.push(format!("`{name}` in `{place}` was moved to `quarantine`: {why}"));
    }
}
