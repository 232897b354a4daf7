//! `holdfast bench recovery`: a real cluster on links that the kernel limits, under a replayed
//! foreground, loses a node; how long repair takes and what the foreground feels of it, planned by
//! Dayu and by a fixed rate and chance as in Fig. 5 of the paper, on the same data.

mod load;
mod network;
mod nodes;

use crate::report::{median, rounded};
use clap::Args;
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::units::{MIB, format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::{Output, aside};
use holdfast_env::{Disk, RealDisk};
use holdfast_recovery::model::{Params, Tasks};
use holdfast_recovery::sim::{Ideal, Scenario, ideal};
use holdfast_recovery::trace::{
    Generator, Placement, PlacementParams, RECORD_S, Trace, TraceParams,
};
use holdfast_wire::admin::{Order, Recovery, RecoverySettings};
use load::Load;
use network::Network;
use nodes::{Nodes, PlannerSettings, now, pause};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `bench recovery` is asked for.
#[derive(Args, Debug, Clone)]
pub struct RecoveryBench {
    /// Nodes; one of them is killed
    #[arg(long, default_value_t = 13, value_name = "N")]
    pub nodes: usize,
    /// Chunks that each survivor has to copy, on average
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub chunks: usize,
    /// Size of a chunk, from 1M to 64M; or `product`: as large for these links as 64 MiB are for a
    /// gigabit
    #[arg(long, default_value = "1M", value_name = "BYTES")]
    pub chunk: String,
    /// Bytes a second that each node's link carries each way
    #[arg(long, default_value = "10000000", value_name = "BYTES")]
    pub link: String,
    /// Of dayu, and slow, mid, fast: chance and 12%, 36%, 60% of a link
    #[arg(long, default_value = "dayu,slow,mid,fast", value_name = "NAMES")]
    pub methods: String,
    /// Shares of a link for foreground and recovery by Dayu
    #[arg(long, default_value = "0.75", value_name = "SHARES")]
    pub alpha: String,
    /// Links send what is marked as lower effort (RFC 8622), as recovery's blocks are, after all
    /// else
    #[arg(long)]
    pub lower_effort: bool,
    /// Repetitions, each with another foreground; medians are printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,
    /// Where the data go, and stay: another run of as many nodes and chunks need not write them
    #[arg(long, default_value = "bench-recovery", value_name = "DIR")]
    pub data: PathBuf,
}

/// Milliseconds after which the killed node counts as lost.
const LOST_MS: u64 = 4000;
/// How long the foreground is measured before anything fails.
const QUIET: Duration = Duration::from_secs(15);
/// A recovery that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);
/// Records of the trace last a second here, not fifteen: links, chunks and slots are scaled down
/// alike.
const STEPS: usize = 420;
/// Pangu's rates in Fig. 5, as shares of its links: 30, 90 and 150 of 250 MB/s.
const FIXED: [(&str, f64, f64); 3] =
    [("slow", 0.12, 2.96), ("mid", 0.36, 1.24), ("fast", 0.6, 0.93)];
const MB: f64 = 1e6;
/// The link for which chunks have their size, bytes a second.
const GIGABIT: u64 = 125_000_000;

/// One method of the comparison.
#[derive(Clone, Debug)]
struct Method {
    name: String,
    plan: PlannerSettings,
    runs: Vec<Run>,
}

/// What one recovery came to.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    seconds: f64,
    ideal: Ideal,
    bytes: f64,
    resent: f64,
    copies: f64,
    cov: f64,
    quiet_p90_us: f64,
    quantiles_us: [f64; 5],
    cpu_seconds: f64,
}

/// Loads the cluster once, then recovers it by each method under each repetition's foreground;
/// prints a line a method. Runs itself again in a network of its own, which needs root.
pub fn run(options: &RecoveryBench, out: &mut Output) -> Result<()> {
    let link = parse_bytes(&options.link)
        .map_err(|e| Error::invalid(format!("limit links to `{}`: {e}", options.link)))?;
    if !(4..=32).contains(&options.nodes) || link < 1_000_000 || options.chunks == 0 {
        return Err(Error::invalid(
            "recover a node: use 4 to 32 nodes, links of 1 MB/s or more, and at least one chunk",
        ));
    }
    let chunk_bytes = chunk_bytes(options, link)?;
    let mut methods = methods(options, link)?;
    if let Some(status) = network::enter()? {
        // The process inside has said what there is to say.
        std::process::exit(status);
    }
    let failed = options.nodes - 1;
    let chunks = options.chunks * failed;
    let network = Network::new(options.nodes, options.lower_effort)?;
    let mut nodes = Nodes::new(&options.data, options.nodes, chunk_bytes);
    if !nodes.has_template(chunks) {
        check_room(&options.data, chunks as u64 * chunk_bytes)?;
        nodes.load(chunks, failed)?;
    }
    for repetition in 0..options.repetitions {
        let trace = trace(options, link, repetition as u64);
        for method in &mut methods {
            let experiment = Experiment { network: &network, link, failed, trace: &trace };
            let run = experiment.run(&mut nodes, method)?;
            aside(format_args!(
                "{} {}: {:.1} s, ideally {:.1}; p90 {:.1} ms, quiet {:.1} ms",
                method.name,
                repetition + 1,
                run.seconds,
                run.ideal.fluid_s,
                run.quantiles_us[1] / 1e3,
                run.quiet_p90_us / 1e3
            ));
            method.runs.push(run);
        }
    }
    for method in &methods {
        out.line(|| text(method), || line(method, &methods))?;
    }
    Ok(())
}

/// Where there is less, nodes become full one by one, and chunks get fewer copies than the bench
/// counts on: it would say so at its end.
fn check_room(data: &Path, bytes: u64) -> Result<()> {
    // Three copies, a fourth of whatever the lost node held, and a tenth that nodes keep free.
    let wanted = bytes * 4 * 11 / 10;
    let there = data.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
    let free = RealDisk.space(there)?.free_bytes;
    if free < wanted {
        return Err(Error::full(format!(
            "load {} of chunks three times, and copy them: {} are wanted below `{}`, and {} are free; use fewer `--chunks`, or name a directory on a larger disk (`--data`)",
            format_bytes(bytes),
            format_bytes(wanted),
            data.display(),
            format_bytes(free)
        )));
    }
    Ok(())
}

/// What a chunk takes, at the ratio to a link that the product has unless it is told otherwise.
fn chunk_bytes(options: &RecoveryBench, link: u64) -> Result<u64> {
    let refuse = |why: String| {
        let chunk = &options.chunk;
        Error::invalid(format!("recover chunks of `{chunk}`: {why}: use 1M to 64M, or `product`"))
    };
    let bytes = match &options.chunk[..] {
        "product" => (link as u128 * CHUNK_BYTES as u128 / GIGABIT as u128) as u64,
        chunk => parse_bytes(chunk).map_err(|e| refuse(e.to_string()))?,
    };
    match (MIB..=CHUNK_BYTES).contains(&bytes) {
        true => Ok(bytes),
        false => Err(refuse(format!("that is {bytes} bytes with this link"))),
    }
}

fn methods(options: &RecoveryBench, link: u64) -> Result<Vec<Method>> {
    let mut methods = Vec::new();
    for name in options.methods.split(',') {
        if name == "dayu" {
            for alpha in options.alpha.split(',') {
                let parsed = alpha.parse::<f64>().ok().filter(|a| *a > 0.0 && *a <= 1.0);
                let Some(alpha) = parsed else {
                    return Err(Error::invalid(format!(
                        "recover with alpha `{alpha}`: use shares above 0 and up to 1"
                    )));
                };
                let plan = PlannerSettings { planner: "dayu", rate: None, alpha };
                let name = if alpha == 0.75 { "dayu".into() } else { format!("dayu/{alpha}") };
                methods.push(Method { name, plan, runs: Vec::new() });
            }
        } else if let Some((_, share, _)) = FIXED.iter().find(|(known, ..)| *known == name) {
            let rate = Some((link as f64 * share) as u64);
            let plan = PlannerSettings { planner: "random", rate, alpha: 0.75 };
            methods.push(Method { name: name.to_owned(), plan, runs: Vec::new() });
        } else {
            return Err(Error::invalid(format!(
                "recover with method `{name}`: use dayu, slow, mid or fast"
            )));
        }
    }
    Ok(methods)
}

/// Foreground of every node, second by second, on links of this size.
fn trace(options: &RecoveryBench, link: u64, repetition: u64) -> Trace {
    let params = TraceParams::default();
    let seed = options.seed + repetition;
    let generator = Generator::new(&params, options.nodes, seed, 0, 0.0, RECORD_S);
    let scale = (link as f64 / MB) as f32 / params.total_mb_s;
    let scaled = |mut step: holdfast_recovery::trace::Foreground| {
        step.in_mb_s.iter_mut().chain(&mut step.out_mb_s).for_each(|mb_s| *mb_s *= scale);
        step
    };
    Trace { step_s: 1.0, steps: generator.take(STEPS).map(scaled).collect() }
}

struct Experiment<'a> {
    network: &'a Network,
    link: u64,
    failed: usize,
    trace: &'a Trace,
}

impl Experiment<'_> {
    fn run(&self, nodes: &mut Nodes, method: &Method) -> Result<Run> {
        self.network.lift();
        nodes.put_back()?;
        nodes.start(self.link, LOST_MS, &method.plan)?;
        let leader = nodes.wait_for_members()?;
        if leader == self.failed {
            return Err(Error::retry("recover a node: the one to be killed leads; run it again"));
        }
        let mut client = Nodes::client(leader)?;
        client.order(&Order::Recovery { settings: settings(&method.plan) })?;
        self.network.limit(self.link)?;
        let load = Load::start(self.trace.clone(), self.failed, 7)?;
        // The first seconds fill caches.
        pause(Duration::from_secs(2));
        load.rewind();
        pause(QUIET);
        let mut quiet = load.rewind();
        nodes.kill(self.failed);
        wait(&mut client, |recovery| recovery.copies > 0)?;
        load.rewind();
        let cpu = nodes.cpu_seconds();
        let began = now();
        let ended = wait(&mut client, |recovery| recovery.short == 0)?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = nodes.cpu_seconds() - cpu;
        let mut busy = load.rewind();
        load.finish()?;
        nodes.stop(true)?;
        let copies = nodes.compare(self.failed)?;
        let tasks = nodes.tasks(self.failed)?;
        Ok(Run {
            seconds,
            ideal: self.ideal(method.plan.alpha, &tasks),
            bytes: tasks.iter().map(|(_, bytes, _)| *bytes as f64).sum(),
            resent: ended.bytes_resent as f64,
            copies: copies as f64,
            cov: self.cov(seconds),
            quiet_p90_us: quantile(&mut quiet, 0.9),
            quantiles_us: [0.5, 0.9, 0.99, 1.0, -1.0].map(|part| quantile(&mut busy, part)),
            cpu_seconds,
        })
    }

    fn ideal(&self, alpha: f64, chunks: &[(String, u64, Vec<usize>)]) -> Ideal {
        let mut tasks = Tasks::default();
        for (_, bytes, holders) in chunks {
            let holders: Vec<u32> = holders.iter().map(|node| *node as u32).collect();
            tasks.push((*bytes as f64 / MB) as f32, 0, &holders, &[]);
        }
        let total_mb_s = (self.link as f64 / MB) as f32;
        let scenario = Scenario {
            failed: self.failed as u32,
            racks: (0..self.trace.nodes() as u32).collect(),
            tasks,
            trace: self.trace.clone(),
            offset_s: 0.0,
            total_mb_s,
            placement: Placement::new(&PlacementParams::default(), self.trace.nodes(), 1),
            seed: 1,
        };
        let params =
            Params { alpha: alpha as f32, b_min_mb_s: 0.12 * total_mb_s, ..Params::default() };
        ideal(&scenario, &params)
    }

    /// Mean coefficient of variation of the foreground over the nodes while it ran.
    fn cov(&self, seconds: f64) -> f64 {
        let steps = &self.trace.steps[..(seconds.ceil() as usize).clamp(1, self.trace.steps.len())];
        let of = |values: &[f32]| {
            let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
            (variance / values.len() as f64).sqrt() / mean
        };
        let sum: f64 = steps.iter().map(|s| of(&s.in_mb_s) + of(&s.out_mb_s)).sum();
        sum / (2 * steps.len()) as f64
    }
}

fn settings(plan: &PlannerSettings) -> RecoverySettings {
    let rate = plan.rate.unwrap_or(0);
    RecoverySettings {
        p90_budget_percent: 0,
        alpha_per_mille: (plan.alpha * 1000.0) as u32,
        floor_bytes_per_second: rate,
        rate_max: rate,
    }
}

/// Asks until it is so.
fn wait(client: &mut Client, is_so: impl Fn(&Recovery) -> bool) -> Result<Recovery> {
    let began = now();
    loop {
        let recovery = client.cluster()?.recovery;
        if is_so(&recovery) {
            return Ok(recovery);
        }
        if began.elapsed() > PATIENCE {
            return Err(Error::retry(format!(
                "wait for the recovery: after {PATIENCE:?} {} chunks are short: {:?}",
                recovery.short, recovery.slow
            )));
        }
        pause(LOOK);
    }
}

/// Of microseconds; the mean for a negative part.
fn quantile(values: &mut [u64], part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    if part < 0.0 {
        return values.iter().sum::<u64>() as f64 / values.len() as f64;
    }
    let at = ((values.len() as f64 * part) as usize).min(values.len() - 1);
    *values.select_nth_unstable(at).1 as f64
}

impl Method {
    fn of(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    fn speed(&self) -> f64 {
        self.of(|run| run.bytes / run.seconds)
    }
}

fn text(method: &Method) -> String {
    let of = |value: fn(&Run) -> f64| method.of(value);
    format!(
        "{:<12} {:.1} s  {:.2} of the ideal, {:.2} of the feasible one  p90 {:.1} ms, {:.2} of the quiet one's  {:.1}% sent twice",
        method.name,
        of(|run| run.seconds),
        of(|run| run.seconds / run.ideal.fluid_s),
        of(|run| run.seconds / run.ideal.feasible_s),
        of(|run| run.quantiles_us[1]) / 1e3,
        of(|run| run.quantiles_us[1] / run.quiet_p90_us),
        100.0 * of(|run| run.resent / run.bytes),
    )
}

fn line(method: &Method, methods: &[Method]) -> Value {
    let of = |value: fn(&Run) -> f64| rounded(method.of(value));
    let seconds: Vec<f64> = method.runs.iter().map(|run| run.seconds).collect();
    let spread = seconds.iter().fold((f64::MAX, 0f64), |(a, b), s| (a.min(*s), b.max(*s)));
    // The paper's own figures stand beside ours for Dayu's default.
    let others = FIXED.iter().filter(|_| method.plan.rate.is_none());
    let speedups: serde_json::Map<String, Value> = others
        .filter_map(|(name, _, paper)| {
            let other = methods.iter().find(|other| other.name == *name)?;
            let times = method.of(|run| run.seconds);
            let ratio = rounded(other.of(|run| run.seconds) / times);
            Some(((*name).to_owned(), json!({"ours": ratio, "paper": paper})))
        })
        .collect();
    let limit = method.of(|run| run.bytes / run.ideal.fluid_s);
    json!({
        "case": format!("recovery/{}", method.name),
        "operations": of(|run| run.copies),
        "bytes": of(|run| run.bytes),
        "seconds": of(|run| run.seconds),
        "ops_per_second": of(|run| run.copies / run.seconds),
        "bytes_per_second": of(|run| run.bytes / run.seconds),
        "latency_us": {
            "p50": of(|run| run.quantiles_us[0]), "p90": of(|run| run.quantiles_us[1]),
            "p99": of(|run| run.quantiles_us[2]), "max": of(|run| run.quantiles_us[3]),
            "mean": of(|run| run.quantiles_us[4]),
        },
        "limit": {"name": "all that alpha leaves of all links", "value": rounded(limit), "unit": "bytes/s"},
        "ratio_to_limit": rounded(method.speed() / limit),
        "peer": Value::Null,
        "ratio_to_peer": Value::Null,
        "better": "higher",
        "server_cpu_seconds": of(|run| run.cpu_seconds),
        "client_cpu_seconds": 0,
        "repetitions": method.runs.len(),
        "spread": {
            "min": rounded(method.of(|run| run.bytes) / spread.1),
            "max": rounded(method.of(|run| run.bytes) / spread.0),
        },
        "seconds_ideal": of(|run| run.ideal.fluid_s),
        "ratio_to_ideal": of(|run| run.seconds / run.ideal.fluid_s),
        "ratio_to_feasible": of(|run| run.seconds / run.ideal.feasible_s),
        "p90_quiet_us": of(|run| run.quiet_p90_us),
        "p90_ratio": of(|run| run.quantiles_us[1] / run.quiet_p90_us),
        "resent_bytes": of(|run| run.resent),
        "foreground_cov": of(|run| run.cov),
        "speedup_over": speedups,
    })
}
