//! A view in memory of a topic that holds ten versions of each key: begun with an image, beside the log
//! folded from its beginning.

use super::images::{Took, begin_in_memory, spool, wait_for_all};
use super::{Node, RideBench, TOPIC, ratio};
use crate::report::{median, rounded};
use holdfast_base::Result;
use holdfast_command::output::Output;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Of each key.
const VERSIONS: u64 = 10;
const VALUE_BYTES: usize = 150;
/// Of what takes long: it is the median of so many.
const TIMES_MAX: usize = 3;

pub(super) fn run(options: &RideBench, out: &mut Output) -> Result<()> {
    let node = Node::start(options)?;
    let keys = 2 * options.nodes / VERSIONS;
    let lines = node.directory.join("lines");
    let mut file = BufWriter::new(File::create(&lines)?);
    for key in 0..keys {
        writeln!(file, "k{key:019}\t{key:0VALUE_BYTES$}")?;
    }
    file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    node.ask(&["view", "create", TOPIC, "lines"])?;
    let lines = lines.to_string_lossy().into_owned();
    for _ in 0..VERSIONS {
        node.ask(&["view", "load", "lines", TOPIC, "lines", &lines])?;
    }
    let times = options.repetitions.clamp(1, TIMES_MAX);
    let measured = |_| begin_in_memory(&node);
    let replays = (0..times).map(measured).collect::<Result<Vec<Took>>>()?;
    node.ask(&["view", "run", "disk", TOPIC])?;
    wait_for_all(&node, 1)?;
    spool(&node, false)?;
    let begun = (0..times).map(measured).collect::<Result<Vec<Took>>>()?;
    let of = |all: &[Took], value: fn(&Took) -> f64| median(all.iter().map(value));
    for (case, all) in [("ten versions, log", &replays), ("ten versions, image", &begun)] {
        let (cpu, seconds) = (of(all, |t| t.cpu_seconds), of(all, |t| t.seconds));
        out.line(
            || format!("{case:<22} server {} cpu s, {} s", rounded(cpu), rounded(seconds)),
            || {
                json!({
                    "case": case,
                    "operations": keys,
                    "server_cpu_seconds": rounded(cpu),
                    "seconds": rounded(seconds),
                })
            },
        )?;
    }
    let times_faster = of(&replays, |t| t.seconds) / of(&begun, |t| t.seconds);
    let case = ("boot against replay", times_faster);
    ratio(out, case, "times faster, ten versions a key", Some(8.0), "higher")
}
