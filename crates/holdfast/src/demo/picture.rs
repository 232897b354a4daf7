//! The picture of a repair: drawn anew in place on a terminal, a line a second elsewhere, an object
//! a second for programs.

use holdfast_base::Result;
use holdfast_base::units::format_bytes;
use holdfast_command::output::Output;
use holdfast_wire::admin::{Cluster, Recovery};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::Duration;

const BAR: u64 = 40;

/// What is drawn, and what of it has been said.
pub struct Picture {
    victim: usize,
    terminal: bool,
    /// Lines of the last drawing, to be drawn over.
    drawn: usize,
    /// Bytes that there were to copy when most were.
    most: u64,
    /// Whole seconds since the kill that a line was printed for.
    told: Option<u64>,
}

impl Picture {
    /// Of the repair after node `victim`, counted from 1, was lost.
    pub fn new(victim: usize) -> Picture {
        let terminal = std::io::stdout().is_terminal();
        Picture { victim, terminal, drawn: 0, most: 0, told: None }
    }

    /// Draws the cluster as the leader sees it, `since` the kill; the last time when it is `done`.
    pub fn show(
        &mut self,
        cluster: &Cluster,
        since: Duration,
        done: bool,
        out: &mut Output,
    ) -> Result<()> {
        let recovery = &cluster.recovery;
        self.most = self.most.max(recovery.bytes_left);
        if self.terminal && !out.is_json() {
            return self.draw(cluster, since);
        }
        // The end is told, too.
        if self.told.replace(since.as_secs()) == Some(since.as_secs()) && !done {
            return Ok(());
        }
        let line = format!("  {:>3} s  {}", since.as_secs(), self.line(cluster));
        out.line(
            || line,
            || {
                json!({
                    "event": "repair", "seconds": since.as_secs_f64(), "short": recovery.short,
                    "copies": recovery.copies, "copies_made": recovery.copies_made,
                    "bytes_left": recovery.bytes_left, "ideal": recovery.ideal,
                    "planned": recovery.planned, "actual": recovery.actual,
                    "seconds_left": recovery.seconds_left,
                })
            },
        )
    }

    fn draw(&mut self, cluster: &Cluster, since: Duration) -> Result<()> {
        let states: Vec<String> = cluster
            .nodes
            .iter()
            .map(|node| {
                let leads = if cluster.leader == Some(node.node) { ", leads" } else { "" };
                format!("{} {}{leads}", node.host, node.state)
            })
            .collect();
        let done = self.most.saturating_sub(cluster.recovery.bytes_left);
        let full = (done * BAR).checked_div(self.most).unwrap_or(0) as usize;
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR as usize - full));
        let lines = [
            format!("  nodes    {}", states.join(" | ")),
            format!("  copies   [{bar}] {} of {}", format_bytes(done), format_bytes(self.most)),
            format!("  {:>3} s    {}", since.as_secs(), self.line(cluster)),
        ];
        let mut out = std::io::stdout().lock();
        if self.drawn > 0 {
            // Up, and everything below is cleared.
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
        }
        self.drawn = lines.len();
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        Ok(out.flush()?)
    }

    fn line(&self, cluster: &Cluster) -> String {
        let victim = cluster.nodes.iter().find(|node| node.node.0 as usize == self.victim);
        let state = victim.map_or("gone", |node| node.state.as_str());
        let r = &cluster.recovery;
        if state != "lost" {
            return format!("node-{} counts as {state}; nothing is copied yet", self.victim);
        }
        if r.short == 0 && r.copies == 0 {
            return format!("every chunk has its copies; {} made", r.copies_made);
        }
        let speeds = speeds(r);
        format!("{} chunks short, {} copies under way; {speeds}", r.short, r.copies)
    }
}

fn speeds(r: &Recovery) -> String {
    let left = match r.seconds_left {
        Some(seconds) => format!("{seconds} s left"),
        None => "no estimate yet".to_owned(),
    };
    let rate = |bytes: u64| format!("{}/s", format_bytes(bytes));
    format!(
        "ideal {}, planned {}, actual {}; {left}",
        rate(r.ideal),
        rate(r.planned),
        rate(r.actual)
    )
}
