//! `holdfast up`: a whole node. Opens everything, says what listens where, serves until a signal,
//! then ends in order.

use crate::cli::Up;
use crate::config::Config;
use crate::credentials::NodeCredentials;
use crate::roles::{Context, Places, Running};
use crate::view::alone::{self, Place};
use holdfast_base::ids::{Index, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_command::files::SETTINGS;
use holdfast_command::output::Output;
use holdfast_command::secrets;
use holdfast_env::net::{Credentials, Meter, NoPeers, TcpPeers, TlsClient};
use holdfast_env::region::Region;
use holdfast_env::tasks;
use holdfast_env::tls::Certificates;
use holdfast_env::{
    Budget, Clients, Disk, Overlay, RealClock, RealDisk, RealEngine, RealRng, Rng, Secret, local,
    secret::Token, signals,
};
use holdfast_env::{event, events};
use holdfast_file::FileFace;
use holdfast_node::{Audit, Identity, Keeper, KeeperOptions, LogEngine, Machine, Node, NodeConfig};
use holdfast_ride::{Settings, ViewFace, Views};
use holdfast_scribe::face::ScribeFace;
use holdfast_server::Native;
use holdfast_table::face::TableFace;
use holdfast_table::ids::RegionId;
use holdfast_table::regions::{Link, Regions};
use holdfast_view::FoldOptions;
use holdfast_wire::view::ViewName;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a node is started with, be it a whole one or one that keeps a view alone.
pub struct Start<'a> {
    /// Its directory.
    pub data: &'a Path,
    /// Those of the file, and what the command line says over them.
    pub config: Config,
    /// The file that has the cluster's, if one was named.
    pub secret: Option<&'a Path>,
    /// The view that it keeps and nothing else, and what its directory says of that.
    pub alone: Option<(&'a ViewName, &'a Place)>,
}

/// Runs a node until a signal ends it in order. `join`, `log` and `secret` are what the command line
/// says of the cluster that it belongs to.
pub fn run(
    up: &Up,
    (join, log): (Option<&str>, Option<&str>),
    secret: Option<&Path>,
    out: &mut Output,
) -> Result<()> {
    alone::refuse(&up.data)?;
    let config = settings(up, join, log)?;
    serve(&Start { data: &up.data, config, secret, alone: None }, out)
}

/// As nodes know each other, where they show certificates.
fn credentials_of(
    config: &Config,
    certificates: &Option<Arc<Certificates>>,
) -> Result<Option<Arc<NodeCredentials>>> {
    let joins = !config.join.is_empty() || !config.log.is_empty();
    let credentials = certificates.clone().map(|own| NodeCredentials::new(own, joins));
    Ok(credentials.transpose()?.map(Arc::new))
}

/// As [`run`], with settings that were read.
pub fn serve(start: &Start<'_>, out: &mut Output) -> Result<()> {
    let Start { data, config, alone, .. } = start;
    // Before any thread starts, so that only the one that waits for them gets signals.
    signals::block_shutdown_signals();
    local::keep_private();
    let certificates =
        config.certificates(data).map_err(|e| e.context(data.join(SETTINGS).display()))?;
    let credentials = credentials_of(config, &certificates)?;
    let has_begun = secrets::has_begun(data);
    let (secret, new) = secrets::of_node(data, start.secret, &config.join)?;
    let drawn = new && !has_begun && start.secret.is_none_or(|given| !given.exists());
    let places = Places::of_ports()?;
    local::return_large_buffers();
    let budget = Budget::new(config.clients_bytes());
    let machine = machine_among(&secret, &credentials)?;
    let region = memory_tier(config)?;
    let name = credentials.as_ref().and_then(|own| own.name());
    let engine = engine(config, drawn)?;
    let keeps_chunks = alone.is_none();
    let opening = NodeConfig { name, keeps_chunks, engine, ..node_config(config, data) };
    let prepare = || {
        // A directory that is another's stays as it is.
        alone.map_or(Ok(()), |(_, place)| place.claim(data))?;
        prepare(data, config, &secret, new)
    };
    let node = Node::open_prepared(machine.clone(), &opening, region.clone(), &prepare)
        .map_err(|e| with_a_way_out(e, data, config))?;
    events::name_node(node.id.0);
    if let Some(credentials) = &credentials {
        ask_whom_it_believes(credentials, &node);
    }
    tell_of_start(&node);
    let files = Arc::new(FileFace::new(node.clone(), region));
    let views = Views::new(&node, &data.join(VIEWS), settings_of_views(config), &budget);
    let audit = Audit::new(node.clone(), config.trail());
    let allowed = (config.client_allowance(places.native), config.anonymous_allowance());
    let native = Native::new(node.clone(), budget.clone(), config.dev).with_tokens_of(&secret);
    let native = native.with_limits_of(&Clients::new(allowed.0, allowed.1));
    let of_views = ViewFace::new(views.clone(), alone.map(|(name, _)| name.clone()));
    let native = native.with_audit(audit.clone()).with(files).with(of_views);
    let scribe = ScribeFace::new(node.clone());
    let tables = TableFace::new(node.clone(), config.tables_bytes(), regions(config, &machine)?);
    let native = Arc::new(native.with(scribe.clone()).with(tables.clone()));
    let context = Context {
        data,
        config,
        node: &node,
        native: &native,
        views: &views,
        scribe: &scribe,
        tables: &tables,
        audit: &audit,
        secret: &secret,
        certificates: &certificates,
        credentials: &credentials,
        budget: &budget,
        places: &places,
        metrics: &Arc::default(),
    };
    let roles = Running::start(&context)?;
    if let Some((name, _)) = alone
        && let Err(e) = views.keep_running(name)
    {
        let _ = roles.end();
        return Err(e);
    }
    announce(start, &node, &roles, out)?;
    event!(NodeStarted, format_args!("serves `{}`", data.display()));
    let signal = signals::wait_for_shutdown()?;
    event!(NodeEnding, format_args!("{signal:?}, ending in order"));
    out.line(
        || format!("holdfast: {signal:?}, ending in order"),
        || serde_json::json!({"event": "ending"}),
    )?;
    // Nobody has to find out by silence.
    let _ = node.resign();
    roles.end()?;
    node.retire();
    Ok(())
}

/// The directory of the views of items in a data directory.
const VIEWS: &str = "views";

fn settings_of_views(config: &Config) -> Settings {
    let (cache_bytes, windows_bytes) = (config.view_cache_bytes(), config.view_windows_bytes());
    Settings { cache_bytes, windows_bytes, heads: heads() }
}

/// Ranges of a view in which slabs are made side by side, where there are cores for it.
fn heads() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4) as u32)
}

/// A new one, for memory ends with its process.
fn memory_tier(config: &Config) -> Result<Option<Arc<Region>>> {
    let region = match config.dram_bytes() {
        0 => return Ok(None),
        bytes => Region::create("holdfast-dram", StoreId(RealRng.next_u64()), bytes)?,
    };
    if config.dram_populate {
        region.populate()?;
    }
    Ok(Some(region))
}

/// From now on the node knows which certificates are whose.
fn ask_whom_it_believes(credentials: &NodeCredentials, node: &Arc<Node>) {
    credentials.ask_node(node);
    if credentials.name().is_none() {
        node.report_finding(
            "the node's certificate names no node (`holdfast cert check` says why): it serves clients, and no other node can join".to_owned(),
        );
    }
}

/// What the start has found that somebody should look at.
fn tell_of_start(node: &Node) {
    for finding in node.findings() {
        event!(Finding, finding);
    }
    for why in node.stores.left_out() {
        event!(StoreLeftOut, why);
    }
}

/// The file's settings, and what the command line says over them.
fn settings(up: &Up, join: Option<&str>, log: Option<&str>) -> Result<Config> {
    let mut config = Config::load(&up.data)?;
    if let Some(listen) = &up.listen {
        config.listen = listen.parse().map_err(|_| {
            Error::invalid(format!("listen on `{listen}`: give an IP address, e.g. 127.0.0.1"))
        })?;
    }
    config.spin |= up.spin;
    config.scribe_port = up.scribe_port.unwrap_or(config.scribe_port);
    if let Some(stores) = &up.scribe_stores {
        config.scribe_stores.clone_from(stores);
        if config.scribe_port == 0 {
            return Err(Error::invalid(
                "use `--scribe-stores`: Scribe's port is off, so nobody sends anything: give `--scribe-port` as well",
            ));
        }
    }
    config.dynamodb_port = up.dynamodb_port.unwrap_or(config.dynamodb_port);
    if let Some(join) = join {
        config.join = join.to_owned();
    }
    if let Some(log) = log {
        config.log = log.to_owned();
    }
    config.check()?;
    Ok(config)
}

/// What can be done where no copy of a log that is damaged or lost is left.
fn with_a_way_out(e: Error, data: &Path, config: &Config) -> Error {
    if e.kind != Kind::Corrupt || !config.join.is_empty() || !config.log.is_empty() {
        return e;
    }
    let message = format!(
        "{e}; without a copy, `holdfast doctor --rebuild-names --data {} --into NEW` makes the names \
         again from what is stored",
        data.display()
    );
    Error::corrupt(message)
}

/// Closes the directories to all but their owner, and makes the secret theirs.
fn prepare(data: &Path, config: &Config, secret: &Secret, new: bool) -> Result<()> {
    secrets::close(data)?;
    for directory in &config.disks {
        // One that is not there may be on a disk that is not mounted: a store that is made makes it.
        if RealDisk.exists(directory)? {
            secrets::close(directory)?;
        }
    }
    if new {
        secrets::begin(data, secret)?;
        seal_what_is_in_clear(data, secret)?;
    }
    secrets::keep(data, secret)
}

/// What a build from before there were secrets has left: keys of S3 in the log, and in the index
/// that was folded from it, which is folded anew.
fn seal_what_is_in_clear(data: &Path, secret: &Secret) -> Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let log = holdfast_blob::seal_log(&disk, &data.join("log"), secret, &RealRng)?;
    // Of a trimmed topic the index is all that there is: its rows are sealed when it opens.
    let index = holdfast_blob::BlobsOptions::new(data, secret.clone()).place;
    if log.is_none_or(|log| log.first == Index(1)) && disk.exists(&index)? {
        local::remove_tree(&index)
            .map_err(|e| Error::from(e).context(format_args!("remove `{}`", index.display())))?;
    }
    Ok(())
}

/// Ends this process in order when its standard input ends: whoever started it is gone.
pub fn end_with_input() -> Result<()> {
    // Before the thread, which would get them otherwise.
    signals::block_shutdown_signals();
    tasks::spawn("parent", || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = signals::terminate(std::process::id());
    })?;
    Ok(())
}

/// This machine, for a node that talks to others: by the secret, and by certificates if it has some.
fn machine_among(secret: &Secret, credentials: &Option<Arc<NodeCredentials>>) -> Result<Machine> {
    let (clock, meter) = (Arc::new(RealClock::new()), Arc::new(Meter::default()));
    let shown = credentials.clone().map(|own| own as Arc<dyn Credentials>);
    let (counted, proved) = (Some(meter.clone()), secret.clone().into());
    let peers = Arc::new(TcpPeers::guarded(clock.clone(), counted, proved, shown)?);
    let (disk, engine, rng) = (Arc::new(RealDisk), Arc::new(RealEngine), Arc::new(RealRng));
    Ok(Machine { disk, engine, clock, rng, peers, meter })
}

/// The way to the other regions: to each of them this node is a client, whom its token names.
fn regions(config: &Config, machine: &Machine) -> Result<Regions> {
    let mut links = BTreeMap::new();
    for (number, region) in &config.regions {
        let doing = |e: Error| e.context(format_args!("use `regions.{number}`"));
        let file = region.token.clone();
        let token = Arc::new(move || Token::load(&file));
        let tls = match region.cacert.as_os_str().is_empty() {
            true => None,
            false => Some(TlsClient::load(&region.cacert, None).map_err(doing)?),
        };
        let counted = Some(machine.meter.clone());
        let peers = TcpPeers::with_token(machine.clock.clone(), counted, token, tls)?;
        let servers = region.servers.split(',').map(|server| server.trim().to_owned()).collect();
        let number =
            number.parse().map_err(|_| Error::invalid("it is no number")).map_err(doing)?;
        links.insert(RegionId(number), Link { servers, peers: Arc::new(peers) });
    }
    Regions::new(RegionId(config.region), links)
}

/// This machine, for a node that nobody talks to.
pub fn machine_alone() -> Machine {
    Machine {
        disk: Arc::new(RealDisk),
        engine: Arc::new(RealEngine),
        clock: Arc::new(RealClock::new()),
        rng: Arc::new(RealRng),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    }
}

/// The settings, in the form in which a node is opened.
pub fn node_config(config: &Config, data: &Path) -> NodeConfig {
    let host = match config.host.as_str() {
        "" => holdfast_env::local::host_name(),
        host => host.to_owned(),
    };
    let address = config.announced(config.native_port);
    NodeConfig {
        disks: config.disks.clone(),
        join: Some(config.join.clone()).filter(|join| !join.is_empty()),
        host,
        rack: config.rack.clone(),
        address: address.unwrap_or_else(|| "local".to_owned()),
        worker_threads: config.workers,
        capacity_bytes: config.capacity_bytes(),
        tell: |waits| event!(NodeWaits, waits),
        link_bytes_per_second: config.link_bytes(),
        rack_bytes_per_second: config.rack_link_bytes(),
        disk_bytes_per_second: config.disk_throughput_bytes(),
        chunk_bytes: config.chunk_bytes(),
        near: config.near,
        repair_at_random: config.planner == "random",
        fold: FoldOptions { snapshot_entries: config.snapshot_entries, ..FoldOptions::default() },
        ..NodeConfig::new(data)
    }
}

/// Who keeps the log. A node whose secret was `drawn` by this start cannot belong to a cluster that is there: its nodes
/// would not answer it.
#[cfg(feature = "kafka")]
fn engine(config: &Config, drawn: bool) -> Result<LogEngine> {
    use holdfast_kafka::{Expected, KafkaLog, Options};
    use holdfast_log::SharedLog;

    if config.log.is_empty() {
        return Ok(LogEngine::Embedded);
    }
    let options = Options::parse(&config.log, config.log_client.clone())?;
    Ok(LogEngine::shared(move |known, id| {
        let expected = known.map_or(Expected::Any(id), Expected::This);
        let log = KafkaLog::open(options.clone(), expected)?;
        if drawn && expected == Expected::Any(id) && log.id() != id {
            return Err(Error::denied(format!(
                "join the cluster whose log is at `{}`: its nodes share a secret: give it with `--secret \
                 FILE`, the file `secret` of one of their data directories",
                log.place()
            )));
        }
        Ok(Arc::new(log))
    }))
}

/// As the settings say it, which ask for what this build has not.
#[cfg(not(feature = "kafka"))]
fn engine(config: &Config, _: bool) -> Result<LogEngine> {
    match config.log.is_empty() && config.log_client.is_empty() {
        true => Ok(LogEngine::Embedded),
        false => Err(Error::unsupported(format!(
            "keep the log at `{}`: this build knows no brokers: build it with the feature `kafka`",
            config.log
        ))),
    }
}

fn announce(start: &Start<'_>, node: &Node, roles: &Running, out: &mut Output) -> Result<()> {
    let Start { data, config, alone, .. } = start;
    let mut said = roles.announce();
    if let Some((name, _)) = alone {
        said.tries = alone::tries(data, name);
    }
    let findings = node.findings().len();
    let text = || {
        let (version, place) = (env!("CARGO_PKG_VERSION"), data.display());
        let mut text = match alone {
            None => format!("holdfast {version} keeps its data in {place}\n"),
            Some((name, _)) => format!(
                "holdfast {version} keeps view `{}` in {place}, and follows {}\n",
                holdfast_ride::describe(name),
                config.join
            ),
        };
        for (what, place) in &said.listens {
            text.push_str(&format!("  {what:<22} {place}\n"));
        }
        if findings > 0 {
            text.push_str(&format!(
                "  {findings} finding(s) of the start: run `holdfast doctor`\n"
            ));
        }
        text.push_str("try, in another terminal:\n");
        for line in &said.tries {
            text.push_str(&format!("  {}{line}\n", program()));
        }
        for line in &said.others {
            text.push_str(&format!("  {line}\n"));
        }
        text.push_str("ready; press Ctrl-C to end");
        text
    };
    out.line(text, || {
        let mut fields = said.fields.clone();
        fields.insert("event".into(), serde_json::json!("ready"));
        fields.insert("data".into(), serde_json::json!(data.display().to_string()));
        fields.insert("findings".into(), serde_json::json!(findings));
        serde_json::Value::Object(fields)
    })
}

/// How the user called us.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "holdfast".to_owned())
}

/// What a check may write for itself, in memory.
const CHECK_BYTES_MAX: u64 = 1 << 30;

/// Opens a data directory that no node uses, reads every stored byte, and lists what is wrong. Writes
/// nothing: what a start would mend is found by the next one, too.
pub fn check(data: &Path) -> Result<Vec<String>> {
    local::keep_private();
    alone::refuse(data)?;
    let config = Config::load(data)?;
    if !config.join.is_empty() {
        return Err(Error::unsupported(format!(
            "check `{}`: its names are in the log of `{}`; ask the running node with `holdfast doctor --server ADDR`",
            data.display(),
            config.join
        )));
    }
    if !config.log.is_empty() {
        return Err(Error::unsupported(format!(
            "check `{}`: brokers keep its log, at `{}`; ask the running node with `holdfast doctor --server ADDR`",
            data.display(),
            config.log
        )));
    }
    // Opening an empty one would make a node there, which is well.
    if Identity::load(&RealDisk, data)?.is_none() {
        return Err(Error::not_found(format!(
            "check `{}`: no node keeps its data there (it has no `NODE`): name a data directory; if \
             this is one, is its disk mounted?",
            data.display()
        )));
    }
    let disk = Arc::new(Overlay::new(Arc::new(RealDisk), CHECK_BYTES_MAX));
    let node = Node::open(Machine { disk, ..machine_alone() }, &node_config(&config, data), None)
        .map_err(|e| with_a_way_out(e, data, &config))?;
    let mut keeper = Keeper::new(node.clone(), KeeperOptions::default());
    keeper.scrub_everything();
    let mut findings = node.findings();
    findings.extend_from_slice(node.stores.left_out());
    findings.extend(node.verify_log());
    Ok(findings)
}
