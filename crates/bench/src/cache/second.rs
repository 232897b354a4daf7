//! A second opinion: memcaslap (libmemcached-tools), a load generator that knows nothing of ours,
//! on the same server in turns with ours. Both ask for one key at a time, over 50 connections. It
//! does not count its gets apart from the sets with which it fills the server, so it does nine gets
//! for each set, which ours is reckoned for from its rates of both.

use super::CacheBench;
use super::keys::{KEY_BYTES, Kind, Requests, fill};
use super::load::{self, Shape, Transport};
use super::server::Target;
use crate::report::median;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = "memcaslap";
const CLIENTS: usize = 50;

/// What memcaslap does besides gets.
const SETS: f64 = 0.1;

/// Gets and sets of the same lengths as ours.
fn configuration(options: &CacheBench) -> String {
    format!(
        "key\n{KEY_BYTES} {KEY_BYTES} 1\nvalue\n{} {} 1\ncmd\n0 {SETS}\n1 {}\n",
        options.value,
        options.value,
        1.0 - SETS
    )
}

/// Prints the rates of both load generators; an error where `memcaslap` does not run.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("holdfast-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let done = measure(options, &directory, out);
    let _ = std::fs::remove_dir_all(&directory);
    done
}

fn measure(options: &CacheBench, directory: &Path, out: &mut Output) -> Result<()> {
    let file = directory.join("memcaslap.conf");
    std::fs::write(&file, configuration(options))?;
    let target = Target::ours(options, options.threads, &[])?;
    fill(target.tcp, options.keys, options.value)?;
    let requests = |kind| Requests::new(kind, 1, options.keys, options.value);
    let (gets, sets) = (requests(Kind::Get), requests(Kind::Set));
    let shape = Shape { transport: Transport::Tcp, clients: CLIENTS, depth: 1 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions.max(1) {
        let time = Duration::from_secs_f64(options.seconds);
        let rate = |requests: &Requests| -> Result<f64> {
            let ran = load::run(target.tcp, shape, requests, time)?;
            Ok(ran.requests as f64 / ran.seconds)
        };
        ours.push(1.0 / ((1.0 - SETS) / rate(&gets)? + SETS / rate(&sets)?));
        theirs.push(memcaslap(&target, &file, options)?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    out.line(
        || {
            format!(
                "nine gets for each set, 50 connections: our load {ours:.0}/s, {PROGRAM} {theirs:.0}/s: {:.2} of ours",
                theirs / ours
            )
        },
        || {
            json!({
                "case": "nine gets for each set, 50 connections, two load generators", "ops_per_second": ours,
                "peer": {"name": PROGRAM, "value": theirs}, "ratio_to_peer": ours / theirs,
                "repetitions": options.repetitions,
            })
        },
    )
}

/// Requests a second, by its own account.
fn memcaslap(target: &Target, file: &Path, options: &CacheBench) -> Result<f64> {
    let seconds = format!("{}s", options.seconds.ceil().max(1.0));
    let doing = |what: &str| Error::retry(format!("run {PROGRAM}: {what}"));
    // Pinned as our load is: it would share the server's core otherwise.
    let output = Command::new("taskset")
        .args(["-c", &options.threads.to_string(), PROGRAM, "-s", &target.tcp.to_string()])
        .args(["-T", "1", "-c", &CLIENTS.to_string(), "-t", &seconds, "-F"])
        .arg(file)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| doing(&format!("{e}: install libmemcached-tools")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `Run time: 2.0s Ops: 100 TPS: 50 Net_rate: 1.0M/s`
    let tps = text.split("TPS:").nth(1).and_then(|rest| rest.split_whitespace().next());
    tps.and_then(|tps| tps.parse().ok()).ok_or_else(|| doing("it prints no `TPS:`"))
}
