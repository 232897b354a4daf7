//! The raw engine's load: the rows that the view makes of the graph, in the same order, put into the
//! same engine by one thread that does nothing else.

use super::{Loaded, Node, ratio};
use crate::process::own_cpu_seconds;
use crate::report::rounded;
use holdfast_base::Result;
use holdfast_base::random::mix;
use holdfast_command::output::Output;
use holdfast_env::rows::Batch;
use holdfast_env::{Engine, RealEngine};
use holdfast_wire::slab::{Hashed, hash};
use serde_json::json;
use std::time::Instant;

/// Rows of one batch: some of what a node applies at once.
const BATCH_ROWS: usize = 1000;
const VALUE_BYTES: usize = 150;

pub(super) fn run(node: &Node, nodes: u64, loaded: Loaded, out: &mut Output) -> Result<()> {
    let place = node.directory.join("raw");
    let rows = RealEngine.open_rows(&place, "rows of the measurement", 64 << 20)?;
    let (cpu, start) = (own_cpu_seconds(), Instant::now());
    let mut batch = Batch::default();
    let mut value = vec![1; 1 + VALUE_BYTES];
    for n in 0..nodes {
        let drawn = mix(n);
        for (at, bytes) in value[1..].chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&mix(drawn ^ at as u64).to_le_bytes()[..bytes.len()]);
        }
        let node = format!("n{:010}", n);
        let edge = format!("{node}/n{:010}", drawn % nodes);
        for (collection, key) in [(1u16, node), (2, edge)] {
            // Scattered by their hashes: whatever order they come in.
            let hash = hash(Hashed::Until(b'/'), key.as_bytes());
            let row = [
                b"i",
                &hash.to_be_bytes()[..],
                &collection.to_be_bytes(),
                key.as_bytes(),
                &[0, 0],
                &n.to_be_bytes(),
            ];
            batch.put(row.concat(), value.clone());
        }
        if batch.changes.len() >= BATCH_ROWS {
            rows.write(std::mem::take(&mut batch))?;
        }
    }
    rows.write(batch)?;
    rows.persist("bench.raw-load")?;
    let (cpu, seconds) = (own_cpu_seconds() - cpu, start.elapsed().as_secs_f64());
    drop(rows);
    std::fs::remove_dir_all(&place)?;
    let rate = 2.0 * nodes as f64 / seconds;
    out.line(
        || {
            let (seconds, cpu, rate) = (rounded(seconds), rounded(cpu), rounded(rate));
            format!("raw engine's load: {seconds} s, {cpu} cpu s, {rate} items a second")
        },
        || {
            json!({
                "case": "raw engine's load",
                "operations": 2 * nodes,
                "seconds": rounded(seconds),
                "cpu_seconds": rounded(cpu),
                "ops_per_second": rounded(rate),
            })
        },
    )?;
    let pace = ("load", seconds / loaded.seconds);
    ratio(out, pace, "of the raw engine's pace", Some(0.8), "higher")
}
