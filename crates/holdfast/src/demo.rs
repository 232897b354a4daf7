//! `holdfast demo`: five nodes, real files in, one node killed and its disk erased, a live picture
//! of the repair while the files are read, then every file compared with its source. Uses what
//! everybody uses: `dev`'s processes and the client. Its exit status tells.
#![expect(
    clippy::disallowed_methods,
    reason = "a tool that people watch: it lives in real time, and reads files that they named"
)]

mod files;
mod picture;

use clap::Args;
use files::{Reading, Source};
use holdfast_base::units::{MIB, format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::LocalCluster;
use holdfast_command::output::Output;
use holdfast_wire::admin::Cluster;
use picture::Picture;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `holdfast demo`.
#[derive(Args, Debug)]
pub struct DemoOptions {
    /// Files to store: a directory, with all below it [default: /usr/share/doc, or else this one]
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Take files of that directory up to so many bytes
    #[arg(long, default_value = "64M", value_name = "BYTES")]
    bytes: String,
    /// Where the nodes keep everything [default: a temporary directory that goes in the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Milliseconds without a sign of life after which a node's chunks are copied elsewhere
    #[arg(long, default_value_t = 8000, value_name = "MS")]
    lost_ms: u64,
    /// What a node may send and receive for repair, a second [default: so that you can watch it]
    #[arg(long, value_name = "BYTES")]
    rate: Option<String>,
}

const NODES: usize = 5;
/// Small, so that there are many to watch.
const CHUNK_BYTES: u64 = 2 * MIB;
/// All in all this takes two minutes at most.
const LASTS_MAX: Duration = Duration::from_secs(120);
/// So long should repair take where nobody says how fast it is: to be watched, not waited for.
const REPAIR_SECONDS: u64 = 8;
const LOOK: Duration = Duration::from_millis(250);

/// Tells the whole story, step by step; an error if a file does not compare equal in the end.
pub fn run(options: &DemoOptions, out: &mut Output) -> Result<()> {
    let began = Instant::now();
    let bytes_max = parse_bytes(&options.bytes)
        .map_err(|e| Error::invalid(format!("store `{}` of files: {e}", options.bytes)))?;
    let source = Source::find(options.files.as_deref(), bytes_max)?;
    let cluster =
        LocalCluster::start(NODES, options.data.as_deref(), CHUNK_BYTES, options.lost_ms)?;
    let at = cluster.directory().display().to_string();
    out.line(
        || format!("{NODES} nodes run, with their data in {at}"),
        || json!({"event": "started", "nodes": NODES, "data": at}),
    )?;

    store(&source, &cluster, out)?;
    let mut client = cluster.client(1)?;
    let victim = lose_a_node(options, source.bytes(), &cluster, &mut client, out)?;
    repair(&source, &cluster, (&mut client, victim), began, out)?;
    let (files, bytes) = (source.len(), source.bytes());
    let verified = source.verify(&cluster)?;
    out.line(
        || {
            format!(
                "all {files} files compare equal ({:.1} s); {:.0} s in all",
                verified.as_secs_f64(),
                began.elapsed().as_secs_f64()
            )
        },
        || {
            json!({
                "event": "verified", "files": files, "bytes": bytes,
                "seconds": began.elapsed().as_secs_f64(),
            })
        },
    )
}

/// Puts the files in.
fn store(source: &Source, cluster: &LocalCluster, out: &mut Output) -> Result<()> {
    let put = source.put(cluster)?;
    let (files, bytes) = (source.len(), source.bytes());
    out.line(
        || {
            format!(
                "{files} files of {} stored, {} in {:.1} s: every byte is on three nodes",
                source.directory().display(),
                format_bytes(bytes),
                put.as_secs_f64()
            )
        },
        || json!({"event": "stored", "files": files, "bytes": bytes, "seconds": put.as_secs_f64()}),
    )
}

/// Ends the fullest node as a power cut does, with its disk; answers which.
fn lose_a_node(
    options: &DemoOptions,
    bytes: u64,
    cluster: &LocalCluster,
    client: &mut Client,
    out: &mut Output,
) -> Result<usize> {
    let victim = fullest(&cluster.seen_by_leader(client)?)?;
    let rate = match &options.rate {
        Some(rate) => parse_bytes(rate)
            .map_err(|e| Error::invalid(format!("set the rate of repair to `{rate}`: {e}")))?,
        // What one of five nodes has, made again by the other four.
        None => (bytes * 3 / 5 / 4 / REPAIR_SECONDS).max(MIB),
    };
    cluster.set_repair_rate(rate)?;
    cluster.lose(victim)?;
    let lost_ms = options.lost_ms;
    out.line(
        || {
            format!(
                "node-{victim} was killed and its disk erased; it counts as lost after {:.0} s",
                lost_ms as f64 / 1000.0
            )
        },
        || json!({"event": "killed", "node": victim}),
    )?;
    Ok(victim)
}

/// Shows how the lost node's copies are made again while files are read.
fn repair(
    source: &Source,
    cluster: &LocalCluster,
    (client, victim): (&mut Client, usize),
    began: Instant,
    out: &mut Output,
) -> Result<()> {
    // While copies are made, somebody reads.
    let reading = Reading::start(source, cluster)?;
    let watched = watch(cluster, client, victim, began, out);
    let read = reading.stop()?;
    let repaired = watched?;
    out.line(
        || {
            format!(
                "repaired {:.1} s after the kill; {} reads went on meanwhile, the longest took {} ms",
                repaired.as_secs_f64(),
                read.files,
                read.longest.as_millis()
            )
        },
        || {
            json!({
                "event": "repaired", "seconds": repaired.as_secs_f64(), "reads": read.files,
                "longest_read_ms": read.longest.as_millis() as u64,
            })
        },
    )
}

/// The node that most copies are on, but for node 1: it hosts the log, of which there is one copy.
fn fullest(cluster: &Cluster) -> Result<usize> {
    let replicas = |node: &&holdfast_wire::admin::ClusterNode| {
        node.stores.iter().map(|store| store.replicas).sum::<u64>()
    };
    let others = cluster.nodes.iter().filter(|node| node.node.0 != 1);
    let most = others.max_by_key(replicas);
    most.map(|node| node.node.0 as usize)
        .ok_or_else(|| Error::bug("choose a node to lose: there is only one"))
}

/// Shows the repair until it is done, and answers how long that took.
fn watch(
    cluster: &LocalCluster,
    client: &mut Client,
    victim: usize,
    began: Instant,
    out: &mut Output,
) -> Result<Duration> {
    let killed = Instant::now();
    let mut picture = Picture::new(victim);
    loop {
        let seen = cluster.seen_by_leader(client)?;
        let lost =
            seen.nodes.iter().any(|node| node.node.0 as usize == victim && node.state == "lost");
        let done = lost && seen.recovery.short == 0 && seen.recovery.copies == 0;
        picture.show(&seen, killed.elapsed(), done, out)?;
        if seen.recovery.lost > 0 {
            return Err(Error::corrupt(format!(
                "repair what node-{victim} had: {} chunks have no copy left",
                seen.recovery.lost
            )));
        }
        if done {
            return Ok(killed.elapsed());
        }
        if began.elapsed() > LASTS_MAX {
            return Err(Error::retry(format!(
                "repair what node-{victim} had: {} chunks are still short of copies after {} s; \
                 allow more with --rate, or less data with --bytes",
                seen.recovery.short,
                LASTS_MAX.as_secs()
            )));
        }
        std::thread::sleep(LOOK);
    }
}
