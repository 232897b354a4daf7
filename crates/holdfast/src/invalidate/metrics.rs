//! A file of metrics, written anew every few seconds in the text form of Prometheus: for a collector that
//! reads files, so that no port is opened for them.

use holdfast_base::{Error, Result};
use holdfast_env::disk::{Access, Disk};
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_env::{Clock, RealDisk};
use holdfast_invalidate::progress::{Counts, Progress};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(5);
/// What the node exporter reads of a directory.
const EXTENSION: &str = "prom";

/// Writes `path` until `stop` is requested, and takes it away then. Fails at once where it cannot be written;
/// later the file that is there grows old, which its reader sees.
pub fn start(
    path: PathBuf,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
    stop: Stop,
) -> Result<Task> {
    let doing = format!("write metrics to `{}`", path.display());
    if path.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(Error::invalid(format!("{doing}: its name must end in `.{EXTENSION}`")));
    }
    let write = move || replace(&path, &render(&progress.counts(), clock.unix_ms() / 1000));
    write().map_err(|e| Error::from(e).context(doing))?;
    tasks::spawn("invalidate-metrics", move || {
        while !stop.sleep_until_stop(PERIOD) {
            // Seen by who reads the file: its time stays.
            let _ = write();
        }
    })
}

/// Not synced: after a crash the next one is written. Whoever may read the file that is there may read the
/// one in its place.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("tmp");
    if RealDisk.exists(&temporary)? {
        RealDisk.remove(&temporary)?;
    }
    let file = RealDisk.create_private(&temporary, Access::Cached)?;
    file.write_at(text.as_bytes(), 0)?;
    RealDisk.take_permissions(&temporary, path)?;
    RealDisk.rename(&temporary, path)
}

fn render(counts: &Counts, now_s: u64) -> String {
    let age = |since_s: Option<u64>| since_s.map_or(0, |since_s| now_s.saturating_sub(since_s));
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        let name = format!("holdfast_invalidate_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let one = |value: u64| [(String::new(), value)];
    let lag_s = age(counts.waiting_since_s);
    metric(
        "lag_seconds",
        "gauge",
        "Age of the oldest change that is read and not in the topic",
        &one(lag_s),
    );
    if let Some(bytes) = counts.lag_bytes {
        metric(
            "lag_bytes",
            "gauge",
            "Bytes of the database's log that are not in the topic",
            &one(bytes),
        );
    }
    let help = "Transactions that are read and not in the topic";
    metric("waiting_transactions", "gauge", help, &one(counts.waiting));
    let help = "What it has to wait for: a database, the cluster, a server";
    metric("troubles", "gauge", help, &one(counts.troubles));
    metric("transactions_total", "counter", "Transactions in the topic", &one(counts.transactions));
    metric("keys_total", "counter", "Keys in the topic", &one(counts.keys));
    metric("emptied_total", "counter", "How often all servers were emptied", &one(counts.emptied));
    if let Some(bytes) = counts.retained_bytes {
        let help = "Bytes of its log that the database keeps for the slot";
        metric("retained_bytes", "gauge", help, &one(bytes));
    }
    let each = |value: &dyn Fn(&holdfast_invalidate::send::Lack) -> u64| -> Vec<(String, u64)> {
        let servers = counts.servers.iter();
        servers.map(|lack| (format!("{{server=\"{}\"}}", lack.server), value(lack))).collect()
    };
    let help = "Age of the oldest change that a server has not confirmed";
    metric("server_lag_seconds", "gauge", help, &each(&|lack| age(lack.since_s)));
    let help = "Entries of the topic that a server has not confirmed";
    metric("server_entries_behind", "gauge", help, &each(&|lack| lack.entries));
    let help = "Bytes of the keys in them";
    metric("server_bytes_behind", "gauge", help, &each(&|lack| lack.bytes));
    let help = "1 if a server is emptied before it is told anything else";
    metric("server_to_be_emptied", "gauge", help, &each(&|lack| lack.is_to_be_emptied.into()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_invalidate::send::Lack;

    #[test]
    fn metrics_are_prometheus_text() {
        let lack = |server: &str, entries, since_s| Lack {
            server: server.into(),
            entries,
            bytes: entries * 10,
            since_s,
            is_to_be_emptied: entries == 0,
        };
        let counts = Counts {
            waiting: 3,
            waiting_since_s: Some(90),
            lag_bytes: Some(777),
            transactions: 10,
            keys: 20,
            emptied: 1,
            servers: vec![lack("[::1]:1", 2, Some(95)), lack("h:2", 0, None)],
            retained_bytes: Some(4096),
            troubles: 1,
        };
        let text = render(&counts, 100);
        for line in [
            "# TYPE holdfast_invalidate_lag_seconds gauge",
            "holdfast_invalidate_lag_seconds 10",
            "holdfast_invalidate_keys_total 20",
            "holdfast_invalidate_retained_bytes 4096",
            "holdfast_invalidate_lag_bytes 777",
            "holdfast_invalidate_server_bytes_behind{server=\"[::1]:1\"} 20",
            "holdfast_invalidate_server_lag_seconds{server=\"[::1]:1\"} 5",
            "holdfast_invalidate_server_lag_seconds{server=\"h:2\"} 0",
            "holdfast_invalidate_server_to_be_emptied{server=\"h:2\"} 1",
        ] {
            assert!(text.lines().any(|of| of == line), "{line}: {text}");
        }
        // The database's clock may be ahead of this one.
        assert!(render(&counts, 80).contains("holdfast_invalidate_lag_seconds 0"));
    }
}
