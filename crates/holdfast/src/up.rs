//! `holdfast up`: a whole node. Opens everything, says what listens where, serves until a signal,
//! then ends in order.

use crate::cli::Up;
use crate::config::{Config, SOCKET};
use crate::http;
use crate::output::Output;
use crate::{s3, secrets};
use holdfast_base::ids::{Index, StoreId};
use holdfast_base::{Error, Result};
use holdfast_cluster::liveness::LivenessOptions;
use holdfast_env::net::{Meter, NoPeers, Server, ServerConfig, TcpPeers};
use holdfast_env::region::Region;
use holdfast_env::tasks::{self, Stop};
use holdfast_env::{Budget, Disk, RealClock, RealDisk, RealRng, Rng, Secret, local, signals};
use holdfast_file::FileFace;
use holdfast_log::FoldOptions;
use holdfast_node::{Keeper, KeeperOptions, Machine, Member, MemberOptions, Node, NodeConfig};
use holdfast_s3::Limits;
use holdfast_server::Native;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two rounds of housekeeping.
const KEEP: Duration = Duration::from_secs(1);
/// Time between two rounds of a member of a cluster: several a beat.
const MEMBER: Duration = Duration::from_millis(40);

pub fn run(up: &Up, join: Option<&str>, secret: Option<&Path>, out: &mut Output) -> Result<()> {
    // Before any thread starts, so that only the one that waits for them gets signals.
    signals::block_shutdown_signals();
    local::keep_private();
    let mut config = Config::load(&up.data)?;
    if let Some(listen) = &up.listen {
        config.listen = listen.parse().map_err(|_| {
            Error::invalid(format!("listen on `{listen}`: give an IP address, e.g. 127.0.0.1"))
        })?;
        config.check()?;
    }
    config.spin |= up.spin;
    if let Some(join) = join {
        config.join = join.to_owned();
        config.check()?;
    }
    let (secret, new) = secrets::of_node(&up.data, secret, &config.join)?;
    let places = Places::of_ports()?;
    local::return_large_buffers();
    let budget = Budget::new(config.clients_bytes());
    let clock = Arc::new(RealClock::new());
    let meter = Arc::new(Meter::default());
    let peers = TcpPeers::guarded(clock.clone(), Some(meter.clone()), secret.clone().into())?;
    let peers = Arc::new(peers);
    let rng = Arc::new(RealRng);
    let machine = Machine { disk: Arc::new(RealDisk), clock, rng, peers, meter };
    let region = match config.dram_bytes() {
        0 => None,
        bytes => Some(Region::create("holdfast-dram", StoreId(RealRng.next_u64()), bytes)?),
    };
    if let Some(region) = region.as_ref().filter(|_| config.dram_populate) {
        region.populate()?;
    }
    let opening = node_config(&config, &up.data);
    let prepare = || prepare(&up.data, &config, &secret, new);
    let node = Node::open_prepared(machine.clone(), &opening, region.clone(), &prepare)?;
    let files = Arc::new(FileFace::new(node.clone(), region));
    let native = Arc::new(Native::new(node.clone(), budget.clone(), config.dev).with(files));
    let server_config = ServerConfig {
        tcp: config.address(config.native_port).into_iter().collect(),
        unix: Some(up.data.join(SOCKET)),
        reactors: reactors(&config),
        spin: config.spin,
        meter: Some(machine.meter.clone()),
        secret: Some(secret.clone()),
        connections_max: places.native,
        budget: budget.clone(),
        ..ServerConfig::default()
    };
    let server = Server::start(server_config, native.clone(), machine.clock.clone())?;
    let cache = start_cache(&config, &machine, places.cache)?;
    let hot = http::LaterHot::default();
    let http = match config.address(config.http_port) {
        Some(address) => {
            let cache = cache.as_ref().map(|cache| (cache.store.clone(), cache.shared.clone()));
            let held = (places.http, &budget);
            let faces = (cache, hot.clone());
            Some(http::start(address, native.clone(), faces, &secret, held)?)
        }
        None => None,
    };
    let stop = Stop::new();
    let limits = Limits { connections: places.s3, budget: budget.clone(), ..Limits::default() };
    let keeper = start_keeper(&node, &config, budget, &stop)?;
    let member = start_member(&node, &config, &stop)?;
    // Last: its view may have to be folded anew, and the node serves and beats meanwhile.
    let s3 = s3::start(&config, &up.data, &node, &secret, limits)?;
    if let Some(s3) = &s3 {
        let _ = hot.set(s3.hot().clone());
    }
    let blobs = s3.as_ref().map(|s3| s3.keep_house(&stop)).transpose()?;
    announce(up, &config, &node, cache.as_ref(), s3.as_ref(), out)?;
    let signal = signals::wait_for_shutdown()?;
    out.line(
        || format!("holdfast: {signal:?}, ending in order"),
        || serde_json::json!({"event": "ending"}),
    )?;
    // Nobody has to find out by silence.
    let _ = node.resign();
    // Other nodes' reads of the log wait for entries that come no more.
    native.release_peers();
    server.shutdown();
    drop(http);
    drop(cache);
    stop.request();
    keeper.join();
    member.join();
    if let Some(s3) = s3 {
        blobs.into_iter().for_each(tasks::Task::join);
        s3.end()?;
    }
    node.retire();
    Ok(())
}

/// Closes the directories to all but their owner, and makes the secret theirs.
fn prepare(data: &Path, config: &Config, secret: &Secret, new: bool) -> Result<()> {
    secrets::close(data)?;
    for directory in &config.disks {
        secrets::close(directory)?;
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

/// The cache; nothing if it is switched off.
fn start_cache(
    config: &Config,
    machine: &Machine,
    connections_max: usize,
) -> Result<Option<holdfast_cache::Server>> {
    let Some(address) = config.address(config.cache_port) else { return Ok(None) };
    let settings = holdfast_cache::Settings {
        tcp: vec![address],
        memory_bytes: config.cache_bytes() as usize,
        connections_max,
        threads: std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
        ..holdfast_cache::Settings::default()
    };
    let server =
        holdfast_cache::Server::start(settings, machine.clock.clone(), &RealRng, &machine.disk);
    server.map(Some).map_err(|e| e.context("start the cache (`cache_port`, 0 for none)"))
}

/// One thread a core, at most four; a polling one has a core to itself.
fn reactors(config: &Config) -> usize {
    match config.reactors {
        0 if config.spin => 1,
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
        n => n,
    }
}

/// This machine, for a node that nobody talks to.
pub fn machine_alone() -> Machine {
    Machine {
        disk: Arc::new(RealDisk),
        clock: Arc::new(RealClock::new()),
        rng: Arc::new(RealRng),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    }
}

pub fn node_config(config: &Config, data: &Path) -> NodeConfig {
    let host = match config.host.as_str() {
        "" => holdfast_env::local::host_name(),
        host => host.to_owned(),
    };
    let address = config.address(config.native_port);
    NodeConfig {
        disks: config.disks.clone(),
        join: Some(config.join.clone()).filter(|join| !join.is_empty()),
        host,
        rack: config.rack.clone(),
        address: address.map_or_else(|| "local".to_owned(), |address| address.to_string()),
        worker_threads: config.workers,
        capacity_bytes: config.capacity_bytes(),
        tell: |waits| eprintln!("holdfast: {waits}"),
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

fn start_keeper(
    node: &Arc<Node>,
    config: &Config,
    budget: Arc<Budget>,
    stop: &Stop,
) -> Result<tasks::Task> {
    let mut keeper = Keeper::new(
        node.clone(),
        KeeperOptions {
            scrub_bytes_per_second: config.scrub_bytes(),
            grace_ms: config.grace_ms,
            unclosed_idle_ms: config.unclosed_hours.saturating_mul(3_600_000),
            ..KeeperOptions::default()
        },
    );
    let (clock, stop) = (node.machine.clock.clone(), stop.clone());
    tasks::spawn("keeper", move || {
        while !stop.sleep_until_stop(KEEP) {
            keeper.step(clock.monotonic_ns());
            if budget.fell() {
                local::give_memory_back();
            }
        }
    })
}

/// Connections that each port may have.
struct Places {
    native: usize,
    s3: usize,
    cache: usize,
    http: usize,
}

impl Places {
    /// What each wants, or its share of the descriptors that this process gets: what files need is
    /// left to them, so that connections cannot end writes.
    fn of_ports() -> Result<Places> {
        let limit = local::raise_descriptors(local::DESCRIPTORS_WANTED).map_err(|e| {
            Error::from(e).context("ask how many descriptors this process may have")
        })?;
        let cache = holdfast_cache::Settings::default().connections_max;
        let wanted = [
            holdfast_env::net::CONNECTIONS_MAX,
            holdfast_s3::CONNECTIONS_MAX,
            cache,
            http::CONNECTIONS_MAX,
        ];
        let shares = local::share_descriptors(limit, &wanted);
        Ok(Places { native: shares[0], s3: shares[1], cache: shares[2], http: shares[3] })
    }
}

/// Signs of life, leadership and repair. A node that may not be itself any more ends at once, so
/// that nobody is answered by it.
fn start_member(node: &Arc<Node>, config: &Config, stop: &Stop) -> Result<tasks::Task> {
    let liveness = LivenessOptions { lost_ms: config.lost_ms };
    let mut member = Member::new(node.clone(), MemberOptions { liveness });
    let (node, stop) = (node.clone(), stop.clone());
    tasks::spawn("member", move || {
        while !stop.sleep_until_stop(MEMBER) {
            let now_ns = node.machine.clock.monotonic_ns();
            if let Err(e) = member.step(now_ns) {
                eprintln!("holdfast: {e}");
                std::process::exit(1);
            }
            if let Err(e) = node.leader.step(&node, now_ns) {
                node.find(format!("lead the cluster: {e}"));
            }
        }
    })
}

fn announce(
    up: &Up,
    config: &Config,
    node: &Node,
    cache: Option<&holdfast_cache::Server>,
    s3: Option<&s3::S3>,
    out: &mut Output,
) -> Result<()> {
    let cache = cache.and_then(|cache| cache.tcp_addresses().first());
    let data = up.data.display();
    let socket = up.data.join(SOCKET);
    let native = config.address(config.native_port);
    let http = config.address(config.http_port);
    let findings = node.findings();
    let text = || {
        let mut text = format!("holdfast {} keeps its data in {data}\n", env!("CARGO_PKG_VERSION"));
        let mut listens = |what: &str, place: String| {
            text.push_str(&format!("  {what:<22} {place}\n"));
        };
        listens("native protocol", socket.display().to_string());
        if let Some(native) = native {
            listens("", format!("{native} for who has {}", up.data.join(secrets::FILE).display()));
        }
        if let Some(http) = http {
            listens("metrics and health", format!("http://{http}/metrics and /health"));
            let token = up.data.join(secrets::HTTP_TOKEN);
            listens("", format!("metrics for who sends the token in {}", token.display()));
        }
        if let Some(cache) = cache {
            listens("cache (memcached)", format!("{cache}, open to every user of this machine"));
        }
        if let Some(s3) = s3 {
            listens("S3", s3.credentials.endpoint.clone());
            listens(
                "",
                format!("keys in {}", up.data.join(holdfast_s3::CREDENTIALS_FILE).display()),
            );
        }
        if !findings.is_empty() {
            let n = findings.len();
            text.push_str(&format!("  {n} finding(s) of the start: run `holdfast doctor`\n"));
        }
        let server = if up.data == Path::new("data") {
            String::new()
        } else {
            format!(" --server unix:{}", socket.display())
        };
        text.push_str("try, in another terminal:\n");
        for line in ["fs put README.md /readme", "fs ls -l /", "fs cat /readme"] {
            text.push_str(&format!("  {}{server} {line}\n", program()));
        }
        if let Some(s3) = s3 {
            text.push_str(&s3.lines_to_try(&up.data));
        }
        text.push_str("ready; press Ctrl-C to end");
        text
    };
    out.line(text, || {
        serde_json::json!({
            "event": "ready",
            "data": up.data.display().to_string(),
            "socket": socket.display().to_string(),
            "native": native.map(|a| a.to_string()),
            "http": http.map(|a| a.to_string()),
            "cache": cache.map(|a| a.to_string()),
            "s3": s3.map(|s3| s3.credentials.endpoint.as_str()),
            "findings": findings.len(),
        })
    })
}

/// How the user called us.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "holdfast".to_owned())
}

/// Opens a data directory that no node uses, reads every stored byte, and lists what is wrong.
pub fn check(data: &Path) -> Result<Vec<String>> {
    local::keep_private();
    let config = Config::load(data)?;
    if !config.join.is_empty() {
        return Err(Error::unsupported(format!(
            "check `{}`: its names are in the log of `{}`; ask the running node with `holdfast doctor --server ADDR`",
            data.display(),
            config.join
        )));
    }
    let node = Node::open(machine_alone(), &node_config(&config, data), None)?;
    let mut keeper = Keeper::new(node.clone(), KeeperOptions::default());
    keeper.scrub_everything();
    Ok(node.findings())
}
