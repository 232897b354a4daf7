//! `holdfast log`: topics and their entries, by hand. Prints an entry as its index and its bytes;
//! as JSON, bytes that are no UTF-8 appear as their hexadecimal digits.

use crate::cli::Log;
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_base::units::format_bytes;
use holdfast_client::{Client, LogClient};
use holdfast_command::output::Output;
use holdfast_wire::log::{Indexed, Info};
use serde_json::json;
use std::io::BufRead;
use std::time::Duration;

/// Entries of one append from standard input, and their bytes: they go in one frame.
const APPEND_ENTRIES_MAX: usize = 1000;
const APPEND_BYTES_MAX: usize = 256 << 10;

/// One wait of `tail`; it goes on afterwards.
const TAIL_WAIT: Duration = Duration::from_secs(20);

/// Carries out one `log` command; `tail` ends only with the process.
pub fn run(client: &mut Client, command: &Log, out: &mut Output) -> Result<()> {
    let mut log = client.log();
    match command {
        Log::Append { ordered, topic, entries } if entries.is_empty() => {
            append_lines(&mut log, topic, *ordered, out)
        }
        Log::Append { ordered, topic, entries } => append(&mut log, topic, entries, *ordered, out),
        Log::Read { topic, from, count } => {
            let from = match from {
                Some(from) => Index(*from),
                None => log.info(topic)?.first,
            };
            read(&mut log, topic, from, *count, out)
        }
        Log::Tail { topic, from } => {
            let mut next = match from {
                Some(from) => Index(*from),
                None => log.info(topic)?.next,
            };
            loop {
                let entries = log.tail(topic, next, TAIL_WAIT)?;
                entries.iter().try_for_each(|entry| print(entry, out))?;
                next = entries.last().map_or(next, |last| Index(last.index.0 + 1));
            }
        }
        Log::Trim { topic, before } => log.trim(topic, Index(*before)),
        Log::Info { topic } => describe(&log.info(topic)?, out),
        Log::Ls => log.topics()?.iter().try_for_each(|info| describe(info, out)),
    }
}

fn append<E: AsRef<[u8]>>(
    log: &mut LogClient<'_>,
    topic: &str,
    entries: &[E],
    ordered: bool,
    out: &mut Output,
) -> Result<()> {
    let first = match ordered {
        true => log.append_ordered(topic, entries)?,
        false => log.append(topic, entries)?,
    };
    let last = first.0 + entries.len() as u64 - 1;
    out.line(
        || match entries.len() {
            1 => format!("appended entry {first}"),
            _ => format!("appended entries {first} to {last}"),
        },
        || json!({"topic": topic, "first": first.0, "last": last}),
    )
}

fn append_lines(
    log: &mut LogClient<'_>,
    topic: &str,
    ordered: bool,
    out: &mut Output,
) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut lines = Vec::new();
    let mut bytes = 0;
    loop {
        let mut line = Vec::new();
        let end = input.read_until(b'\n', &mut line)? == 0;
        let full = lines.len() >= APPEND_ENTRIES_MAX || bytes + line.len() > APPEND_BYTES_MAX;
        if (end || full) && !lines.is_empty() {
            append(log, topic, &lines, ordered, out)?;
            lines.clear();
            bytes = 0;
        }
        if end {
            return Ok(());
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        bytes += line.len();
        lines.push(line);
    }
}

fn read(
    log: &mut LogClient<'_>,
    topic: &str,
    mut from: Index,
    mut left: u64,
    out: &mut Output,
) -> Result<()> {
    while left > 0 {
        let entries = log.read(topic, from, u32::try_from(left).unwrap_or(u32::MAX))?;
        let Some(last) = entries.last() else { return Ok(()) };
        from = Index(last.index.0 + 1);
        left -= entries.len() as u64;
        entries.iter().try_for_each(|entry| print(entry, out))?;
    }
    Ok(())
}

fn print(entry: &Indexed, out: &mut Output) -> Result<()> {
    out.line(
        || format!("{}  {}", entry.index, String::from_utf8_lossy(&entry.bytes).escape_debug()),
        || match std::str::from_utf8(&entry.bytes) {
            Ok(text) => json!({"index": entry.index.0, "text": text}),
            Err(_) => {
                let hex: String = entry.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                json!({"index": entry.index.0, "hex": hex})
            }
        },
    )
}

fn describe(info: &Info, out: &mut Output) -> Result<()> {
    out.line(
        || {
            format!(
                "{}  entries {} to {}, {} in {} segments",
                info.topic,
                info.first,
                info.next.0.saturating_sub(1),
                format_bytes(info.bytes),
                info.segments
            )
        },
        || {
            json!({
                "topic": info.topic,
                "first": info.first.0,
                "next": info.next.0,
                "durable": info.durable.0,
                "bytes": info.bytes,
                "segments": info.segments,
            })
        },
    )
}
