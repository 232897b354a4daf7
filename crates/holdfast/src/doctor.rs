//! `status` and `doctor`: how a node is, and what is wrong with it.

use crate::shard;
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::admin::{Held, STOPPED_VIEW, Shard, Slowed, Status};
use serde_json::json;
use std::path::Path;

/// Where the log is that the node reads and writes.
fn place_of_log(client: &mut Client) -> String {
    match client.log_host().as_deref() {
        Ok("") => "embedded, one copy".to_owned(),
        Ok(brokers) if brokers.contains("://") => format!("kept by brokers, {brokers}"),
        Ok(host) => format!("followed, of the node at {host}"),
        Err(_) => "embedded or followed, which a node of an earlier build does not say".to_owned(),
    }
}

fn object(
    status: &Status,
    log: &str,
    held: Option<&Held>,
    slowed: &[Slowed],
    shards: &[Shard],
) -> serde_json::Value {
    let stores: Vec<_> = status
        .stores
        .iter()
        .map(|s| {
            json!({
                "id": s.id.0, "tier": s.tier.name(), "place": s.place,
                "capacity_bytes": s.capacity_bytes, "used_bytes": s.used_bytes,
                "free_bytes": s.free_bytes, "chunks": s.chunks, "read_only": s.read_only,
                "scrubbed_bytes": s.scrubbed_bytes, "bad_blocks": s.bad_blocks,
                "fills_in_s": s.fills_in_s,
            })
        })
        .collect();
    json!({
        "node": status.node.0, "version": status.version, "uptime_ms": status.uptime_ms,
        "files": status.files, "directories": status.directories, "bytes": status.bytes,
        "unclosed": status.unclosed, "index": status.index.0,
        "digest": format!("{:016x}", status.digest), "log": log,
        "shards": shards.iter().map(shard::object).collect::<Vec<_>>(),
        "stores": stores, "findings": status.findings,
        "clients": held.map(|held| json!({
            "limit_bytes": held.limit_bytes, "held_bytes": held.held_bytes,
            "peak_bytes": held.peak_bytes, "refused": held.refused,
        })),
        "slowed": slowed.iter().map(|one| json!({
            "client": one.client, "limit": one.limit, "allowed": one.allowed,
            "seconds": one.seconds, "left_ms": one.left_ms,
        })).collect::<Vec<_>>(),
        "conditions": held.map(|held| &held.conditions),
    })
}

/// Prints how the node is; what needs a person is [`doctor`]'s to say.
pub fn status(client: &mut Client, out: &mut Output) -> Result<()> {
    let status = client.status()?;
    // A node of an older build does not know.
    let held = client.held().ok();
    let slowed = client.slowed().unwrap_or_default();
    let log = place_of_log(client);
    // One that is alone is what the line above says.
    let mut shards = client.shards().unwrap_or_default();
    if shards.len() == 1 {
        shards.clear();
    }
    let text = || {
        let mut text = format!(
            "node {} runs holdfast {} since {} s\n{} files in {} directories, {}\nlog: {log}; {} entries, digest {:016x}",
            status.node.0,
            status.version,
            status.uptime_ms / 1000,
            status.files,
            status.directories,
            format_bytes(status.bytes),
            status.index,
            status.digest,
        );
        for part in &shards {
            text.push_str(&format!("\n{}", shard::line(part)));
        }
        for s in &status.stores {
            text.push_str(&format!(
                "\nstore {:<5} {}: {} of {} used, {} chunks{}{}",
                s.tier.name(),
                s.place,
                format_bytes(s.used_bytes),
                format_bytes(s.capacity_bytes),
                s.chunks,
                if s.read_only { ", READ-ONLY since a write failed" } else { "" },
                s.fills_in_s.map(forecast).unwrap_or_default()
            ));
        }
        if let Some(held) = &held {
            text.push_str(&format!(
                "\nclients: {} of {} held for them, {} at most",
                format_bytes(held.held_bytes),
                format_bytes(held.limit_bytes),
                format_bytes(held.peak_bytes)
            ));
            if held.refused > 0 {
                text.push_str(&format!(", {} waits for memory", held.refused));
            }
            held.conditions.iter().for_each(|said| text.push_str(&format!("\n{said}")));
        }
        for Slowed { client, limit, amount, seconds, left_ms, .. } in &slowed {
            text.push_str(&format!(
                "\n{client}: slowed in {seconds} of the last 60 seconds, by `{limit}`, {amount}"
            ));
            if *left_ms > 0 {
                text.push_str(&format!("; for {} s more", left_ms.div_ceil(1000)));
            }
        }
        if status.unclosed > 0 {
            text.push_str(&format!("\n{} unclosed files: `holdfast fs unclosed`", status.unclosed));
        }
        for stopped in status.findings.iter().filter(|what| what.starts_with(STOPPED_VIEW)) {
            text.push_str(&format!("\n{stopped}"));
        }
        shard::waiting(&status.findings).for_each(|why| text.push_str(&format!("\n{why}")));
        if !status.findings.is_empty() {
            text.push_str(&format!("\n{} findings: `holdfast doctor`", status.findings.len()));
        }
        text
    };
    out.line(text, || object(&status, &log, held.as_ref(), &slowed, &shards))
}

/// A store that is full sooner than this is worth a word.
const WARN_FULL_S: u64 = 7 * 86_400;

/// When a store is full at the rate of the last day.
fn forecast(left_s: u64) -> String {
    match (left_s / 86_400, left_s / 3600 % 24, left_s / 60 % 60) {
        (days @ 3650.., _, _) => format!(", full in {} years at this rate", days / 365),
        (0, hours, minutes) => format!(", full in {hours} h {minutes} min at this rate"),
        (days, hours, _) => format!(", full in {days} d {hours} h at this rate"),
    }
}

/// Prints what a running node found; fails if that is anything.
pub fn ask(client: &mut Client, out: &mut Output) -> Result<()> {
    let status = client.status()?;
    let mut findings = status.findings;
    // What `/health` says; of views that have stopped, or cannot be opened, there are findings already.
    let conditions = client.held()?.conditions.into_iter();
    let is_new = |said: &String| !findings.iter().any(|found| said.contains(found));
    let conditions: Vec<String> = conditions.filter(is_new).collect();
    findings.extend(conditions.into_iter().filter(|said| !said.contains(STOPPED_VIEW)));
    for store in &status.stores {
        if store.bad_blocks > 0 {
            findings.push(format!("{} bad blocks in `{}`", store.bad_blocks, store.place));
        }
        if let Some(left_s) = store.fills_in_s.filter(|left_s| *left_s < WARN_FULL_S) {
            findings.push(format!("`{}`{}: add a store", store.place, forecast(left_s)));
        }
        if store.free_bytes < store.capacity_bytes / 20 {
            findings.push(format!(
                "`{}` is nearly full: {} left for new data",
                store.place,
                format_bytes(store.free_bytes)
            ));
        }
    }
    // What a cluster has lost its leader knows: this node may be well.
    match crate::recovery::leader(client) {
        Ok(cluster) => findings.extend(crate::recovery::findings(&cluster.recovery)),
        Err(e) => findings.push(format!("whether all chunks have their copies is not known: {e}")),
    }
    report(findings, "the node", "", out)
}

/// Opens a data directory that no node uses, reads every byte, and prints what is wrong.
pub fn check_directory(data: &Path, out: &mut Output) -> Result<()> {
    let findings = crate::up::check(data)?;
    let left =
        "; nothing was written there: what they say of cuts and of copies is what a start does";
    report(findings, &format!("`{}`", data.display()), left, out)
}

fn report(findings: Vec<String>, what: &str, left: &str, out: &mut Output) -> Result<()> {
    if findings.is_empty() {
        return out.line(|| format!("{what} is well"), || json!({"findings": []}));
    }
    for finding in &findings {
        out.line(|| format!("- {finding}"), || json!({"finding": finding}))?;
    }
    let count = findings.len();
    Err(Error::corrupt(format!("look at {what}: {count} finding(s), listed above{left}")))
}
