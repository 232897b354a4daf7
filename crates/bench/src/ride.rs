//! `holdfast bench ride`: what rides cost the node that serves them, beside a bare pass of the engine
//! over the same rows. The graph is Beam's own; riders are processes of their own, over TCP.

mod images;
mod loads;
mod parts;
mod sizes;
mod versions;

use crate::process::{Process, own_cpu_seconds};
use crate::report::{median, rounded};
use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_command::files::SETTINGS;
use holdfast_command::output::Output;
use holdfast_env::{Engine, RealEngine};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// What `bench ride` is asked for.
#[derive(Args, Debug)]
pub struct RideBench {
    /// Nodes of the graph, which has as many edges: half of the items
    #[arg(short = 'n', long, default_value_t = 5_000_000, value_name = "N")]
    pub nodes: u64,
    /// Repetitions; medians are printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// Which cases, with commas. Over one load: one, nothing, keys, five, twenty, fifty, slow,
    /// dedicated (riders), load (beside the raw engine's), images, parts (two and eight views). With
    /// loads of their own: versions (ten of each key), sizes (a tenth, a half and twice the items)
    #[arg(short = 't', long = "cases", default_value = ALL, value_name = "NAMES")]
    pub cases: String,
    /// Where the node keeps its data [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

const ALL: &str =
    "one,nothing,keys,five,twenty,fifty,slow,dedicated,load,images,parts,versions,sizes";

const TOPIC: &str = "graph";

/// The node, over its own data.
struct Node {
    directory: PathBuf,
    port: u16,
    process: Option<Process>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.process.take();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Node {
    fn start(options: &RideBench) -> Result<Node> {
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("holdfast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = format!(
            "native_port = {port}\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\n\
             scrub = \"0\"\n"
        );
        std::fs::write(directory.join(SETTINGS), settings)?;
        let mut node = Node { directory, port, process: None };
        node.up()?;
        Ok(node)
    }

    fn up(&mut self) -> Result<()> {
        self.process = Some(Process::up(&self.directory)?);
        Ok(())
    }

    /// Ends it in order, so that its rows can be read.
    fn end(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::end)
    }

    fn cpu_seconds(&self) -> f64 {
        self.process.as_ref().map_or(0.0, Process::cpu_seconds)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--json").arg("--server").arg(format!("127.0.0.1:{}", self.port));
        command.arg("--secret").arg(self.directory.join("secret"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }

    /// What a command has said, one object.
    fn ask(&self, arguments: &[&str]) -> Result<Value> {
        said(self.command(arguments)?.spawn()?)
    }

    /// The rows of its only view.
    fn rows(&self) -> Result<PathBuf> {
        let views = std::fs::read_dir(self.directory.join("views"))?;
        let first = views.flatten().next();
        let first = first.ok_or_else(|| Error::bug("measure rides: the node runs no view"))?;
        Ok(first.path().join("rows"))
    }
}

fn said(child: Child) -> Result<Value> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(Error::retry("measure rides: a command has failed, see its message above"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| Error::bug(format!("read what a command has said: {e}")))
}

/// What a bare pass over the rows takes.
#[derive(Clone, Copy)]
struct Pass {
    cpu_seconds: f64,
    seconds: f64,
    bytes: u64,
}

fn pass(rows: &Path) -> Result<Pass> {
    let rows = RealEngine.open_rows(rows, "the view's rows", 64 << 20)?;
    let (cpu, start) = (own_cpu_seconds(), Instant::now());
    let mut bytes = 0u64;
    rows.moment()?.cursor(&[1], &[255])?.advance(&mut |row, value| {
        bytes += (row.len() + value.len()) as u64;
        Ok(true)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Pass { cpu_seconds: own_cpu_seconds() - cpu, seconds, bytes })
}

/// What riders took, together and each.
struct Ridden {
    server_cpu: f64,
    /// From the first one's start to the last one's end.
    seconds: f64,
    each: Vec<f64>,
    bytes: f64,
}

/// Riders with these arguments each, at once.
fn ride(node: &Node, riders: &[Vec<String>]) -> Result<Ridden> {
    let (cpu, start) = (node.cpu_seconds(), Instant::now());
    let mut children = Vec::new();
    for arguments in riders {
        let mut all = vec!["ride", TOPIC];
        all.extend(arguments.iter().map(String::as_str));
        children.push(node.command(&all)?.spawn()?);
    }
    let mut ridden = Ridden { server_cpu: 0.0, seconds: 0.0, each: Vec::new(), bytes: 0.0 };
    for child in children {
        let said = said(child)?;
        ridden.each.push(said["seconds"].as_f64().unwrap_or_default());
        ridden.bytes += said["bytes"].as_f64().unwrap_or_default();
    }
    ridden.seconds = start.elapsed().as_secs_f64();
    ridden.server_cpu = node.cpu_seconds() - cpu;
    Ok(ridden)
}

fn of_all(count: usize, arguments: &[&str]) -> Vec<Vec<String>> {
    let one: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    vec![one; count]
}

/// The riders of a case.
fn riders(case: &str, slow_bytes: u64) -> Result<Vec<Vec<String>>> {
    Ok(match case {
        "one" => of_all(1, &[]),
        "nothing" => of_all(1, &["--collections", ""]),
        "keys" => of_all(1, &["--keys-only"]),
        "five" => of_all(5, &[]),
        "dedicated" => of_all(5, &["--dedicated"]),
        "twenty" => of_all(20, &[]),
        "fifty" => (0..50).map(|part| vec![format!("{part}/50")]).collect(),
        "slow" => {
            let mut all = of_all(4, &[]);
            all.extend(of_all(1, &["--slow", &slow_bytes.to_string()]));
            all
        }
        other => {
            return Err(Error::invalid(format!(
                "measure rides: there is no case `{other}`: see `holdfast bench ride --help`"
            )));
        }
    })
}

/// Of a bare pass's processor time: what we hold ourselves to.
fn reach(case: &str) -> Option<f64> {
    match case {
        "one" => Some(1.3),
        "nothing" => Some(1.05),
        "five" => Some(1.6),
        "twenty" => Some(2.5),
        "fifty" => Some(2.0),
        _ => None,
    }
}

fn to_reach(reach: Option<f64>) -> String {
    reach.map_or(String::new(), |reach| format!(" (reach {reach})"))
}

/// A case that is one ratio of two that were measured.
fn ratio(
    out: &mut Output,
    (case, ratio): (&str, f64),
    name: &str,
    reach: Option<f64>,
    better: &str,
) -> Result<()> {
    out.line(
        || format!("{case:<22} {}{} {name}", rounded(ratio), to_reach(reach)),
        || {
            json!({
                "case": case,
                "limit": {"name": name},
                "ratio_to_limit": rounded(ratio),
                "reach": reach,
                "better": better,
            })
        },
    )
}

/// Measures what was asked for.
pub fn run(options: &RideBench, out: &mut Output) -> Result<()> {
    let all: Vec<&str> = options.cases.split(',').filter(|case| !case.is_empty()).collect();
    let (cases, others): (Vec<&str>, Vec<&str>) = all.iter().partition(|c| riders(c, 1).is_ok());
    if let Some(other) = others.iter().find(|case| !ALL.split(',').any(|one| one == **case)) {
        return riders(other, 1).map(drop);
    }
    let has = |case: &str| others.contains(&case);
    if !cases.is_empty() || ["load", "images", "parts"].iter().any(|case| has(case)) {
        over_one_load(options, &cases, &has, out)?;
    }
    if has("versions") {
        versions::run(options, out)?;
    }
    if has("sizes") {
        sizes::run(options, out)?;
    }
    Ok(())
}

/// Cases that need the same items.
fn over_one_load(
    options: &RideBench,
    cases: &[&str],
    has: &dyn Fn(&str) -> bool,
    out: &mut Output,
) -> Result<()> {
    let mut node = Node::start(options)?;
    let loaded = load(&node, options.nodes)?;
    say_load(options.nodes, loaded, out)?;
    node.end()?;
    if has("load") {
        loads::run(&node, options.nodes, loaded, out)?;
    }
    let rows = node.rows()?;
    // Once for the page cache, and once for tables that the engine still had to write.
    pass(&rows)?;
    let mut limits = vec![pass(&rows)?];
    let mut ridden: Vec<Vec<Ridden>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.repetitions {
        if cases.is_empty() {
            limits.push(pass(&rows)?);
            continue;
        }
        node.up()?;
        // What a first ride of a process pays alone.
        let warm = ride(&node, &of_all(1, &[]))?;
        // Of four and one, the one gets a tenth of what one alone does.
        let slow_bytes = (warm.bytes / warm.each[0] / 10.0) as u64;
        for (case, ridden) in cases.iter().zip(&mut ridden) {
            ridden.push(ride(&node, &riders(case, slow_bytes)?)?);
        }
        node.end()?;
        limits.push(pass(&rows)?);
    }
    for (case, ridden) in cases.iter().zip(&ridden) {
        say(case, ridden, &limits, out)?;
    }
    say_walls(cases, &ridden, out)?;
    if has("images") || has("parts") {
        node.up()?;
    }
    if has("images") {
        let pass_cpu = median(limits.iter().map(|pass| pass.cpu_seconds));
        images::run(&node, options.repetitions, pass_cpu, out)?;
    }
    if has("parts") {
        parts::run(&node, options.repetitions, out)?;
    }
    Ok(())
}

/// What riders wait for, beside others that were measured.
fn say_walls(cases: &[&str], ridden: &[Vec<Ridden>], out: &mut Output) -> Result<()> {
    let of = |case: &str| cases.iter().position(|one| *one == case).map(|at| &ridden[at]);
    let slowest_of = |all: &Vec<Ridden>, riders: usize| {
        median(all.iter().map(|one| one.each[..riders].iter().copied().fold(0.0, f64::max)))
    };
    let Some(five) = of("five") else { return Ok(()) };
    let apart = median(five.iter().map(|one| {
        let fastest = one.each.iter().copied().fold(f64::MAX, f64::min);
        one.each.iter().copied().fold(0.0, f64::max) / fastest
    }));
    ratio(out, ("five, slowest", apart), "of the fastest's wall", Some(1.05), "lower")?;
    if let Some(one) = of("one") {
        let walls = slowest_of(five, 5) / slowest_of(one, 1);
        ratio(out, ("five, wall", walls), "of one rider's wall", Some(1.25), "lower")?;
    }
    let Some(slow) = of("slow") else { return Ok(()) };
    // The fifth of them is the slow one.
    let cost = slowest_of(slow, 4) / slowest_of(five, 5);
    ratio(out, ("slow, the four others", cost), "of five riders' wall", Some(1.03), "lower")
}

fn say(case: &str, ridden: &[Ridden], limits: &[Pass], out: &mut Output) -> Result<()> {
    let limit = |of: fn(&Pass) -> f64| median(limits.iter().map(of));
    let of = |value: fn(&Ridden) -> f64| median(ridden.iter().map(value));
    let cpu = of(|ridden| ridden.server_cpu);
    let fastest = of(|ridden| ridden.each.iter().copied().fold(f64::MAX, f64::min));
    let slowest = of(|ridden| ridden.each.iter().copied().fold(0.0, f64::max));
    let riders = ridden.first().map_or(0, |ridden| ridden.each.len());
    let spread = ridden.iter().map(|ridden| ridden.server_cpu);
    let spread = spread.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let pass_cpu = limit(|pass| pass.cpu_seconds);
    out.line(
        || {
            format!(
                "ride {case:<10} {riders:>2} riders  server {} cpu s ({} to {}), {} of a bare pass{} \
                     {}  riders took {} to {} s, a bare pass {}",
                rounded(cpu),
                rounded(spread.0),
                rounded(spread.1),
                rounded(cpu / pass_cpu),
                to_reach(reach(case)),
                rounded(pass_cpu),
                rounded(fastest),
                rounded(slowest),
                rounded(limit(|pass| pass.seconds)),
            )
        },
        || {
            json!({
                "case": format!("ride {case}"),
                "operations": riders,
                "bytes": rounded(of(|ridden| ridden.bytes)),
                "seconds": rounded(of(|ridden| ridden.seconds)),
                "fastest_seconds": rounded(fastest),
                "slowest_seconds": rounded(slowest),
                "limit": {
                    "name": "a bare pass of the engine over the rows",
                    "value": rounded(pass_cpu),
                    "unit": "cpu_seconds",
                    "seconds": rounded(limit(|pass| pass.seconds)),
                    "bytes": rounded(limit(|pass| pass.bytes as f64)),
                },
                "ratio_to_limit": rounded(cpu / pass_cpu),
                "reach": reach(case),
                "better": "lower",
                "server_cpu_seconds": rounded(cpu),
                "repetitions": ridden.len(),
                "spread": {"min": rounded(spread.0), "max": rounded(spread.1)},
            })
        },
    )
}

/// What a load took.
#[derive(Clone, Copy)]
struct Loaded {
    server_cpu: f64,
    seconds: f64,
}

/// Loads the graph and waits until the view has it.
fn load(node: &Node, nodes: u64) -> Result<Loaded> {
    let collection = |name| ["view", "create", TOPIC, name, "--hash", "until=/"];
    node.ask(&collection("nodes"))?;
    node.ask(&collection("edges"))?;
    node.ask(&["view", "run", "disk", TOPIC])?;
    let (cpu, start) = (node.cpu_seconds(), Instant::now());
    let loaded = node.ask(&["view", "load", "graph", TOPIC, "--nodes", &nodes.to_string()])?;
    // A ride at the last entry waits until the view is there.
    let last = loaded["last"].as_u64().unwrap_or_default().to_string();
    node.ask(&["ride", TOPIC, "--collections", "", "--reached", &last])?;
    Ok(Loaded { server_cpu: node.cpu_seconds() - cpu, seconds: start.elapsed().as_secs_f64() })
}

fn say_load(nodes: u64, loaded: Loaded, out: &mut Output) -> Result<()> {
    let (Loaded { server_cpu, seconds }, items) = (loaded, 2 * nodes);
    let rate = items as f64 / seconds;
    out.line(
        || {
            format!(
                "load {items} items: {} s, server {} cpu s, {} items a second, the view level with \
                 the log",
                rounded(seconds),
                rounded(server_cpu),
                rounded(rate)
            )
        },
        || {
            json!({
                "case": "load",
                "operations": items,
                "seconds": rounded(seconds),
                "server_cpu_seconds": rounded(server_cpu),
                "ops_per_second": rounded(rate),
                "better": "higher",
                "repetitions": 1,
            })
        },
    )
}
