//! Opening a data directory: lock, version, log, cluster view, stores, namespace; then the stores
//! are made to follow the views. Nothing is served before all of it went well.

use super::ahead::topics_behind;
use super::cuts::{Cut, Cuts};
use super::identity::Identity;
use super::lost_log;
use super::open_log::{LogEngine, OpenLog, patiently};
use super::own_stores::{self, Before, Had, Place};
use super::reached::{Older, Reached};
use super::registry::Registry;
use super::replicas::Replicator;
use super::retention::Retained;
use super::shards::{context_of, not_yet};
use super::snapshots::take_over_if_trimmed;
use super::views::{Views, wait_for};
use super::{
    Keeper, KeeperOptions, Leader, LogKeeper, Machine, Node, OwnStore, ShardFolds, Stores, Workers,
    own_request,
};
use holdfast_base::ids::{Index, NodeId, StoreId, Tier};
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::Done;
use holdfast_cluster::{
    CLUSTER_TOPIC, ClusterCommand, ClusterOutcome, ClusterView, DATA_FORMAT_VERSION,
    NAMESPACE_TOPIC, Namespace, StartedStore,
};
use holdfast_env::disk::{Lock, ReplaceSites, create_dir_durable, read_file, replace_file};
use holdfast_env::region::Region;
use holdfast_env::{Disk, planted};
use holdfast_log::{LogOptions, Mode};
use holdfast_view::{Context, Fold, FoldOptions, SnapshotStore, View};
use holdfast_wire::peer::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Any node of the cluster to belong to; `None` hosts the log itself.
    pub join: Option<String>,
    /// Whether it has stores. One that has none keeps views alone: it takes no chunk and no seat, and
    /// joins a cluster.
    pub keeps_chunks: bool,
    /// Label that replicas are spread over, and that of its rack.
    pub host: String,
    pub rack: String,
    pub address: String,
    /// The name in the node's certificate, which its number is bound to; none without one.
    pub name: Option<String>,
    /// Threads that wait for disks, and that write commits. 0 for both in simulations.
    pub worker_threads: usize,
    pub commit_threads: usize,
    /// Kept free in each store for compaction; 0 for the larger of two chunks and 1%.
    pub reserve_bytes: u64,
    /// What each store may use; 0 for its whole file system.
    pub capacity_bytes: u64,
    pub segment_bytes: u64,
    /// [`holdfast_chunk::StoreConfig::journal_segment_bytes`] of each store.
    pub journal_segment_bytes: u64,
    /// Capacity of new chunks at most; less than the default in simulations only.
    pub chunk_bytes: u64,
    /// One copy of what is written through this node goes to a store of its own, if that has room.
    pub near: bool,
    /// What the node's link carries in each direction, in bytes a second; 0 for a gigabit.
    pub link_bytes_per_second: u64,
    /// What the link between the node's rack and the others carries; 0 where it limits nothing.
    pub rack_bytes_per_second: u64,
    /// Of each disk, reading and writing together; 0 where that limits nothing.
    pub disk_bytes_per_second: u64,
    /// Repair is planned by chance, as long as this node leads: to compare with.
    pub repair_at_random: bool,
    pub fold: FoldOptions,
    /// Who keeps the log; where brokers do, `join` is whom this node borrows a snapshot of, if it has to.
    pub engine: LogEngine,
    /// Told in a sentence what opening waits for.
    pub tell: fn(&str),
}

impl NodeConfig {
    pub fn new(data: impl Into<PathBuf>) -> NodeConfig {
        NodeConfig {
            data: data.into(),
            disks: Vec::new(),
            join: None,
            keeps_chunks: true,
            host: "localhost".to_owned(),
            rack: String::new(),
            address: "localhost".to_owned(),
            name: None,
            worker_threads: 4,
            // They wait for the disk, one commit each: as many chunks as streams are written at once.
            commit_threads: 8,
            reserve_bytes: 0,
            capacity_bytes: 0,
            segment_bytes: LogOptions::default().segment_bytes,
            journal_segment_bytes: 32 * MIB,
            chunk_bytes: CHUNK_BYTES,
            near: true,
            link_bytes_per_second: 0,
            rack_bytes_per_second: 0,
            disk_bytes_per_second: 0,
            repair_at_random: false,
            fold: FoldOptions::default(),
            engine: LogEngine::default(),
            tell: |_| (),
        }
    }

    /// Everything done by the caller's own thread, step by step: for simulations.
    pub fn without_threads(self) -> NodeConfig {
        NodeConfig { worker_threads: 0, commit_threads: 0, ..self }
    }
}

impl Node {
    /// Opens the node in `config.data`, or makes one there, and makes it part of its cluster: the
    /// one of `config.join`, or its own. `region` becomes its `dram` store. Waits for the log's
    /// host, until it answers.
    pub fn open(
        machine: Machine,
        config: &NodeConfig,
        region: Option<Arc<Region>>,
    ) -> Result<Arc<Node>> {
        Node::open_prepared(machine, config, region, &|| Ok(()))
    }

    /// As [`Node::open`]. `prepare` is called once the directory is known to be this process's own,
    /// before anything in it is opened.
    pub fn open_prepared(
        machine: Machine,
        config: &NodeConfig,
        region: Option<Arc<Region>>,
        prepare: &dyn Fn() -> Result<()>,
    ) -> Result<Arc<Node>> {
        let data = &config.data;
        let doing = |e: Error| e.context(format_args!("open data directory `{}`", data.display()));
        let lock = claim(&*machine.disk, data).map_err(doing)?;
        prepare().map_err(doing)?;
        let cuts = Arc::new(Cuts::default());
        let peers = Arc::new(Cut { peers: machine.peers.clone(), cuts: cuts.clone() });
        let machine = Machine { peers, ..machine };
        let mut findings = Vec::new();
        let identity = Identity::load(&*machine.disk, data).map_err(doing)?;
        let log = OpenLog::of(&machine, config, identity, &mut findings).map_err(doing)?;
        let Folds { cluster, shards, views, reached, older, taken_over } =
            Folds::open(&machine, &log, identity, config).map_err(doing)?;
        let (folds, known) = ((&*cluster, &*shards), (&views, &older));
        let joining = Joining::by((&machine, config, &log), folds, known);
        let places = own_stores::places(&*machine.disk, config).map_err(doing)?;
        let before = joining.stores_before(identity, &places).map_err(doing)?;
        let opened = own_stores::open(&machine, config, region, (places, &before), &mut findings);
        let (stores, partial) = opened.map_err(doing)?;
        let stores = Arc::new(stores);
        let known_stores: BTreeSet<StoreId> =
            cluster.read(|view, _| view.stores().map(|(id, _)| id).collect()).unwrap_or_default();
        let (identity, sender) = joining.join(identity, &stores).map_err(doing)?;
        let workers = Arc::new(Workers::new("disk", config.worker_threads)?);
        let (known, folds) = (cluster.clone(), shards.clone());
        let directory = Views { sender, cluster: known, shards: folds, cuts: cuts.clone() };
        let replicator = replicator(&machine, config, (&stores, &workers), directory);
        replicator.set_leftovers(partial);
        replicator.events.snapshots_taken_over.store(taken_over, Ordering::Relaxed);
        let retained = Retained::load(&*machine.disk, data, &mut findings).map_err(doing)?;
        let node = Arc::new(Node {
            id: identity.node,
            sender,
            machine,
            stores,
            log: log.log,
            kept: log.kept,
            address: config.address.clone(),
            shards,
            cluster,
            workers,
            replicator,
            near: config.near,
            leader: Leader::new(config.repair_at_random),
            leading: Default::default(),
            heard: Mutex::default(),
            operator: Mutex::default(),
            cuts,
            packed: Default::default(),
            findings: Mutex::new(findings),
            views,
            fold: config.fold,
            compared: Mutex::default(),
            images: Mutex::default(),
            holds: Default::default(),
            beats: Default::default(),
            ran_out: Mutex::default(),
            lost_images: Mutex::default(),
            differing_images: Mutex::default(),
            marks: Mutex::default(),
            retained: Mutex::new(retained),
            data: data.clone(),
            reached: Mutex::new(reached),
            older: Mutex::new(older),
            watches: Mutex::default(),
            scrubbed: Mutex::default(),
            growth: Mutex::default(),
            heard_log_ns: AtomicU64::new(0),
            lock,
        });
        node.check_age(&known_stores).map_err(doing)?;
        node.settle().map_err(doing)?;
        Ok(node)
    }

    /// Leads, if nobody else could, and makes the stores follow the views.
    fn settle(self: &Arc<Node>) -> Result<()> {
        let settled = self
            .lead_alone()
            .and_then(|()| Keeper::new(self.clone(), KeeperOptions::default()).settle());
        match settled {
            // What it holds is not served; everything else is, and so is the reason.
            Err(_) if !self.stopped_views().is_empty() => Ok(()),
            settled => settled,
        }
    }

    /// Makes an empty directory a data directory, for stores to be put into it before the node
    /// opens it.
    pub fn make_directory(disk: &dyn Disk, data: &Path) -> Result<()> {
        let taken = || {
            let what = "it is a data directory already: choose an empty one";
            if disk.exists(&data.join(MARK))? { Err(Error::invalid(what)) } else { Ok(()) }
        };
        let made = taken().and_then(|()| claim(disk, data).map(drop));
        made.map_err(|e| e.context(format_args!("make data directory `{}`", data.display())))
    }

    /// The only controller leads from the start: there is nobody else to hear from.
    fn lead_alone(self: &Arc<Node>) -> Result<()> {
        let alone = self.cluster.read(|view, _| {
            let own = view.term().filter(|term| term.leader == self.id);
            own.filter(|_| view.controllers().count() == 1)
        })?;
        if let Some(term) = alone {
            let claims = self.wait_for(|done| self.claim_all(term, done))?;
            self.leading.set(&claims);
        }
        Ok(())
    }
}

/// The steps by which a process becomes a node.
struct Joining<'a> {
    machine: &'a Machine,
    config: &'a NodeConfig,
    log: &'a OpenLog,
    cluster: &'a Fold<ClusterView>,
    shards: &'a ShardFolds,
    views: &'a Registry,
    older: &'a Older,
}

impl<'a> Joining<'a> {
    fn by(
        (machine, config, log): (&'a Machine, &'a NodeConfig, &'a OpenLog),
        (cluster, shards): (&'a Fold<ClusterView>, &'a ShardFolds),
        (views, older): (&'a Registry, &'a Older),
    ) -> Joining<'a> {
        Joining { machine, config, log, cluster, shards, views, older }
    }

    /// Becomes the node that it was, or one that is new, in the cluster that the log is of.
    fn join(&self, known: Option<Identity>, stores: &Stores) -> Result<(Identity, Sender)> {
        let identity = self.identify(known)?;
        self.bind_name(identity.node)?;
        let save = || match known {
            None => identity.save(&*self.machine.disk, &self.config.data),
            Some(_) => Ok(()),
        };
        // A number that is lost before this is nobody's for ever, and gives its name up; not so one
        // that has started, so that comes behind.
        let late = planted!("node.starts-before-its-number-is-kept");
        if !late {
            save()?;
        }
        let sender = self.start(identity, stores)?;
        if late {
            save()?;
        }
        self.catch_up(NAMESPACE_TOPIC, self.shards.root())?;
        self.open_shards(identity.node);
        self.cluster.number_as(sender.node, sender.incarnation);
        for (_, fold) in self.shards.all() {
            fold.number_as(sender.node, sender.incarnation);
        }
        Ok((identity, sender))
    }

    fn wait<T: Send + 'static>(&self, start: impl FnOnce(Done<T>)) -> Result<T> {
        wait_for(&*self.machine.peers, &|| self.log.pump(), start)
    }

    fn propose(&self, command: &ClusterCommand) -> Result<ClusterOutcome> {
        let request = own_request(command.to_entry(), Mode::Synced);
        let (_, bytes) = self.wait(|done| self.cluster.propose(request, done))?;
        Ok(ClusterOutcome::from_result(&bytes)?)
    }

    /// Opens the folds of all shards that there are, with all that the log has of them. A node that has
    /// not started yet has no number, or an old one. Starts without one that cannot be opened: its housekeeping
    /// tries again, and tells of it.
    fn open_shards(&self, own: NodeId) {
        self.shards.open_with(|shard| {
            let context = context_of(shard);
            let (machine, tell, known) = (self.machine, self.config.tell, own.0 != 0);
            let (fold, _) = patiently(machine, tell, known, || {
                let opened =
                    fold::<Namespace>(machine, self.log, own, self.config, context.clone());
                opened.map_err(|e| not_yet(shard, e))
            })?;
            let fold = Arc::new(fold);
            self.views.open(&context, &fold);
            if let Some(why) = self.older.get(&context.topic) {
                fold.stop(why.clone());
            }
            self.catch_up(&context.topic, &fold)?;
            Ok(fold)
        });
    }

    /// Gets a number, unless there is one.
    fn identify(&self, known: Option<Identity>) -> Result<Identity> {
        if let Some(known) = known {
            return Ok(known);
        }
        let rng = &self.machine.rng;
        let cluster = match (&self.log.kept, self.log.cluster) {
            (LogKeeper::Node { .. }, Some(cluster)) => cluster,
            (_, known) => {
                // All who begin on the same brokers at once mean the same cluster.
                let id = known.unwrap_or_else(|| rng.next_u64().max(1));
                let ClusterOutcome::Founded { id } =
                    self.propose(&ClusterCommand::FoundCluster { id })?
                else {
                    return Err(Error::bug("found a cluster: the view answered something else"));
                };
                id
            }
        };
        // A directory from before there were clusters holds the log, and is node 1.
        let old = self.cluster.read(|view, _| {
            let first = view.node(NodeId(1)).filter(|info| info.nonce == 0);
            first.filter(|_| self.log.hosted().is_some()).map(|_| NodeId(1))
        })?;
        let node = match old {
            Some(node) => node,
            None => {
                let (host, rack, address) = self.place();
                let nonce = rng.next_u64().max(1);
                let join = ClusterCommand::JoinNode { nonce, host, rack, address };
                let ClusterOutcome::Joined { node } = self.propose(&join)? else {
                    return Err(Error::bug("join a cluster: the view answered something else"));
                };
                node
            }
        };
        Ok(Identity { cluster, node })
    }

    /// Has the cluster know whose certificate it is that this node shows.
    fn bind_name(&self, node: NodeId) -> Result<()> {
        let Some(name) = &self.config.name else { return Ok(()) };
        let bound = self.cluster.read(|view, _| view.name_of(node) == Some(name.as_str()));
        if bound.unwrap_or(false) {
            return Ok(());
        }
        match self.propose(&ClusterCommand::BindName { node, name: name.clone() }) {
            // As with the start: what is here can be read and asked about.
            Err(_) if self.cluster.status().stopped.is_some() => Ok(()),
            bound => bound.map(drop),
        }
    }

    fn place(&self) -> (String, String, String) {
        (self.config.host.clone(), self.config.rack.clone(), self.config.address.clone())
    }

    /// Tells the cluster that this process is the node from now on, and what it has.
    fn start(&self, identity: Identity, stores: &Stores) -> Result<Sender> {
        let (node, nonce) = (identity.node, self.machine.rng.next_u64().max(1));
        let stores: Vec<StartedStore> = stores.iter().map(started).collect();
        let stores = self.config.keeps_chunks.then_some(stores);
        let last_start =
            || self.cluster.read_last(|view| view.node(node).map_or(Index(0), |n| n.incarnation));
        let incarnation = loop {
            let after = last_start();
            let ((host, rack, address), stores) = (self.place(), stores.clone());
            let start = ClusterCommand::Start { node, nonce, after, host, rack, address, stores };
            match self.propose(&start) {
                Ok(ClusterOutcome::Started { incarnation }) => break incarnation,
                Ok(_) => return Err(Error::bug("start a node: the view answered something else")),
                Err(e) if e.kind == Kind::NotFound && self.log.hosted().is_some() => {
                    return Err(lost_log::has_no_node(&self.config.data, identity));
                }
                // The others do not hear of this start; what is here can be read and asked about.
                Err(_) if self.cluster.status().stopped.is_some() => break Index(0),
                // An earlier start, which this view had not seen yet, or which came late.
                Err(e) if e.kind == Kind::Fenced && last_start() > after => {}
                Err(e) => return Err(e),
            }
        };
        let sender = Sender { cluster: identity.cluster, node, incarnation };
        if let LogKeeper::Node { log, .. } = &self.log.kept {
            log.set_sender(sender);
        }
        Ok(sender)
    }

    /// The disk stores that this node had before, and those of the cluster. Where a directory has none
    /// of this node's, by the whole log: what is made or used there depends on it.
    fn stores_before(&self, known: Option<Identity>, places: &[Place]) -> Result<Before> {
        let Some(identity) = known else { return Ok(Before::default()) };
        // Also of a view that has stopped: what it knew must not be forgotten with it.
        let of_node = || {
            self.cluster.read_last(|view| {
                let own = view.stores().filter(|(_, info)| info.node == identity.node);
                let own = own.filter(|(_, info)| info.tier == Tier::Disk);
                own.map(|(store, info)| (store, info.state)).collect::<BTreeMap<_, _>>()
            })
        };
        let own = of_node();
        let mut unknown = 0;
        if !places.iter().all(|(_, id)| id.is_some_and(|id| own.contains_key(&id))) {
            self.catch_up(CLUSTER_TOPIC, self.cluster)?;
            self.catch_up(NAMESPACE_TOPIC, self.shards.root())?;
            self.open_shards(identity.node);
            // Of a shard that cannot be opened it is not known that it has nothing there.
            unknown = usize::from(!self.shards.is_whole());
        }
        let had = |(store, state)| {
            let on = |view: &Namespace| view.chunks().on(store).count();
            let chunks: usize = self.shards.all().map(|(_, fold)| fold.read_last(on)).sum();
            let chunks = chunks + unknown;
            Had { store, state, chunks }
        };
        let had = of_node().into_iter().map(had).collect();
        let known = self.cluster.read_last(|view| view.stores().map(|(store, _)| store).collect());
        Ok(Before { had, known: Some(known) })
    }

    /// Waits until the view has everything that was in the log when this was called.
    fn catch_up<V: View>(&self, topic: &str, fold: &Fold<V>) -> Result<()> {
        if self.log.hosted().is_some() {
            return Ok(());
        }
        let info = self.wait(|done| self.log.log.ask(topic, done))?;
        let last = Index(info.durable.0.saturating_sub(1));
        match self.wait(|done| fold.wake_at(last, done)) {
            Err(_) if fold.status().stopped.is_some() => Ok(()),
            reached => reached,
        }
    }
}

/// What the cluster hears of a store.
fn started(own: &OwnStore) -> StartedStore {
    let usage = own.store.usage();
    let free_mib = u32::try_from(usage.free_bytes / MIB).unwrap_or(u32::MAX);
    let (store, tier, capacity) = (own.id, own.tier, usage.capacity_bytes);
    StartedStore { store, tier, capacity, free_mib }
}

/// Locks the directory and checks that it is ours to use.
pub(super) fn claim(disk: &dyn Disk, data: &Path) -> Result<Box<dyn Lock>> {
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
    // What `up` writes before the node opens, what a person put there for it, and file systems' own.
    let known = ["LOCK", "HOLDFAST.tmp", "holdfast.toml", "holdfast.sock", "lost+found", "tls"];
    if let Some(stranger) = strangers.find(|name| !known.contains(&name.as_str())) {
        return Err(Error::invalid(format!(
            "it is not empty and no Holdfast data directory (it holds `{stranger}`): choose an empty one"
        )));
    }
    replace_file(disk, &mark, ours.as_bytes(), MARK_SITES)?;
    Ok(lock)
}

pub(super) fn snapshot_store(machine: &Machine, data: &Path, view: &str) -> SnapshotStore {
    let directory = data.join("snapshots").join(view.replace(['/', ' '], "-"));
    SnapshotStore { disk: machine.disk.clone(), directory }
}

/// The views that every node folds, in the registry that those of faces join.
struct Folds {
    cluster: Arc<Fold<ClusterView>>,
    shards: Arc<ShardFolds>,
    views: Registry,
    reached: Reached,
    older: Older,
    /// Snapshots that were another node's.
    taken_over: u64,
}

impl Folds {
    fn open(
        machine: &Machine,
        log: &OpenLog,
        known: Option<Identity>,
        config: &NodeConfig,
    ) -> Result<Folds> {
        let own = known.map_or(NodeId(0), |known| known.node);
        let (cluster, taken) =
            fold::<ClusterView>(machine, log, own, config, Context::of(CLUSTER_TOPIC))?;
        let (namespace, taken_too) = fold::<Namespace>(machine, log, own, config, context_of(0))?;
        let (cluster, namespace) = (Arc::new(cluster), Arc::new(namespace));
        let (reached, mut older) = match log.hosted() {
            Some(log) => Reached::load(&*machine.disk, &config.data, &**log)?,
            None => Default::default(),
        };
        if let (Some(log), Some(Identity { cluster: id, node })) = (log.hosted(), known) {
            let sender = Sender { cluster: id, node, incarnation: Index(0) };
            for (topic, why) in topics_behind(machine, sender, &cluster, &**log)? {
                older.entry(topic).or_insert(why);
            }
        }
        let views = Registry::default();
        views.open(&Context::of(CLUSTER_TOPIC), &cluster);
        views.open(&Context::of(NAMESPACE_TOPIC), &namespace);
        for (topic, why) in &older {
            // Those that faces open later ask for it themselves.
            views.of(topic).for_each(|view| view.stop(why.clone()));
        }
        let taken_over = taken as u64 + taken_too as u64;
        let shards = Arc::new(ShardFolds::new(namespace));
        Ok(Folds { cluster, shards, views, reached, older, taken_over })
    }
}

/// What copies between stores, within the node's limits.
fn replicator(
    machine: &Machine,
    config: &NodeConfig,
    (stores, workers): (&Arc<Stores>, &Arc<Workers>),
    views: Views,
) -> Arc<Replicator> {
    let replicator = Replicator::new(
        stores.clone(),
        workers.clone(),
        machine.clock.clone(),
        machine.peers.clone(),
        Arc::new(views),
    );
    let (link, rack_link) = (config.link_bytes_per_second, config.rack_bytes_per_second);
    replicator.set_limits(link, rack_link, config.disk_bytes_per_second);
    replicator
}

/// Opens a view, and says whether it began with another node's snapshot.
fn fold<V: View>(
    machine: &Machine,
    log: &OpenLog,
    own: NodeId,
    config: &NodeConfig,
    context: Context,
) -> Result<(Fold<V>, bool)> {
    let topic = &context.topic;
    match log.hosted() {
        Some(_) => log.log.create(topic)?,
        // Brokers may be starting.
        None => patiently(machine, config.tell, own.0 != 0, || log.log.create(topic))?,
    }
    let snapshots = snapshot_store(machine, &config.data, &context.name);
    let taken_over = match log.lender(config) {
        None => false,
        Some((lender, cluster)) => {
            let sender = Sender { cluster, node: own, incarnation: Index(0) };
            let there = (&*machine.peers, &*log.log);
            // Who keeps the log may have gone away since it was opened.
            patiently(machine, config.tell, own.0 != 0, || {
                take_over_if_trimmed::<V>(there, (lender, sender), &context, &snapshots)
            })?
        }
    };
    Ok((Fold::open_member(log.log.clone(), context, snapshots, config.fold)?, taken_over))
}
