//! `holdfast audit`: the audit trail, newest lines last. Prints what nodes wrote; changes nothing.

use clap::Args;
use holdfast_base::ids::Index;
use holdfast_base::text::shown;
use holdfast_base::{Kind, Result};
use holdfast_client::{Client, LogClient};
use holdfast_cluster::topics::AUDIT_TOPIC;
use holdfast_command::output::Output;
use holdfast_env::tasks::Stop;
use serde_json::{Value, json};
use std::time::Duration;

/// One wait for the next line; it goes on afterwards.
const WAIT: Duration = Duration::from_secs(20);
/// Lines of one answer.
const PAGE: u32 = 1000;

/// `holdfast audit`.
#[derive(Args, Debug)]
pub struct Audit {
    /// So many of the newest lines; 0 for all that are kept
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    last: u64,
    /// Then print each line as it is written, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
}

/// Prints the trail.
pub fn run(client: &mut Client, options: &Audit, out: &mut Output) -> Result<()> {
    let mut log = client.log();
    let (mut next, end) = match log.info(AUDIT_TOPIC) {
        Ok(info) => {
            let last = if options.last == 0 { u64::MAX } else { options.last };
            (Index(info.next.0.saturating_sub(last).max(info.first.0)), info.next)
        }
        // The first line makes the topic.
        Err(e) if e.kind == Kind::NotFound && options.follow => (Index(1), Index(1)),
        Err(e) if e.kind == Kind::NotFound => {
            return out.line(
                || "nothing is written down yet: what changes rights or nodes will be".to_owned(),
                || json!({"lines": 0}),
            );
        }
        Err(e) => return Err(e),
    };
    while next < end {
        let entries = log.read(AUDIT_TOPIC, next, PAGE)?;
        let Some(last) = entries.last() else { break };
        next = Index(last.index.0 + 1);
        entries.iter().try_for_each(|entry| print(&entry.bytes, out))?;
    }
    if !options.follow {
        return Ok(());
    }
    loop {
        next = follow(&mut log, next, out)?;
    }
}

fn follow(log: &mut LogClient<'_>, next: Index, out: &mut Output) -> Result<Index> {
    match log.tail(AUDIT_TOPIC, next, WAIT) {
        Ok(entries) => {
            entries.iter().try_for_each(|entry| print(&entry.bytes, out))?;
            Ok(entries.last().map_or(next, |last| Index(last.index.0 + 1)))
        }
        Err(e) if e.kind == Kind::NotFound => {
            Stop::new().sleep_until_stop(Duration::from_secs(1));
            Ok(next)
        }
        Err(e) => Err(e),
    }
}

fn print(line: &[u8], out: &mut Output) -> Result<()> {
    let text = String::from_utf8_lossy(line);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({"line": text}));
    out.line(|| for_people(&value), || value.clone())
}

/// `2026-03-01T12:34:56.000Z  owner from unix: token revoke `backup`: done`.
fn for_people(line: &Value) -> String {
    let field = |name: &str| shown(line[name].as_str().unwrap_or_default()).into_owned();
    let mut text = format!("{}  {}", field("at"), field("who"));
    for (name, before) in
        [("address", " from "), ("operation", ": "), ("what", " "), ("outcome", ": ")]
    {
        let value = field(name);
        if !value.is_empty() {
            text += before;
            text += &value;
        }
    }
    if line["why"].is_string() {
        text += &format!(" ({})", field("why"));
    }
    for (name, what) in [
        ("left_out", "before it came to nothing and are left out"),
        ("lost", "lines before it could not be kept"),
    ] {
        if let Some(count) = line[name].as_u64() {
            text += &format!("; {count} {what}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_a_sentence_and_carries_no_escape_of_a_terminal() {
        let line = json!({
            "at": "2026-03-01T12:34:56.000Z", "node": 2, "who": "token x 1f", "address": "10.0.0.1:5",
            "request": "1-2", "operation": "fs rm", "what": "/a\u{1b}[2J", "outcome": "denied",
            "why": "it takes the right `fs:/a:rw`", "left_out": 3, "lost": 2,
        });
        assert_eq!(
            for_people(&line),
            "2026-03-01T12:34:56.000Z  token x 1f from 10.0.0.1:5: fs rm /a\\u{1b}[2J: denied (it takes the right `fs:/a:rw`); 3 before it came to nothing and are left out; 2 lines before it could not be kept"
        );
    }
}
