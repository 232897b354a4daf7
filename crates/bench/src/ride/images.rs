//! Images: what one costs the node that makes it, rides of one beside a direct read of its files, and a
//! view in memory that begins with one, beside one that folds the log.

use super::{Node, TOPIC, of_all, ride, to_reach};
use crate::report::{median, rounded};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_env::RealDisk;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk};
use holdfast_env::tasks::Stop;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TIB: f64 = (1u64 << 40) as f64;
const MINUTES_20: f64 = 1200.0;

/// Between two looks at how far something is.
const LOOK: Duration = Duration::from_millis(20);
/// Of what is waited for something changes in so long.
const UNCHANGED_MAX: Duration = Duration::from_secs(120);

/// What something took.
#[derive(Clone, Copy)]
pub(super) struct Took {
    pub cpu_seconds: f64,
    pub seconds: f64,
    pub bytes: f64,
}

/// Measures so often: `pass_cpu` is what a bare pass over the rows takes.
pub(super) fn run(node: &Node, times: usize, pass_cpu: f64, out: &mut Output) -> Result<()> {
    let measured = |measure: &dyn Fn() -> Result<Took>| -> Result<Vec<Took>> {
        (0..times).map(|_| measure()).collect()
    };
    // Before there is an image.
    let replays = measured(&|| begin_in_memory(node))?;
    let (mut spools, mut whole, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    let (mut begun, mut reads, mut alone, mut ridden) = (vec![], vec![], vec![], vec![]);
    let mut first = Vec::new();
    for _ in 0..times {
        alone.push(ride(node, &of_all(1, &[]))?.server_cpu);
        ridden.push(spool(node, true)?.0.cpu_seconds);
        let (spool, at) = spool(node, false)?;
        spools.push(spool);
        reads.push(read_directly(node, at)?);
        // The first one reads the device, as the direct read does; the others have the files in memory.
        first.push(ride_at(node, at, &[])?);
        whole.push(ride_at(node, at, &[])?);
        keys.push(ride_at(node, at, &["--keys-only"])?);
        begun.push(begin_in_memory(node)?);
    }
    let of = |all: &[Took], value: fn(&Took) -> f64| median(all.iter().map(value));
    let rate = |all: &[Took]| median(all.iter().map(|took| took.bytes / took.seconds));
    let made = "of a bare pass's processor time, beside a ride that shares its pass";
    let added = median(ridden) - median(alone);
    super::ratio(out, ("image made, added", added / pass_cpu), made, Some(0.35), "lower")?;
    let mut say = |case: &str, all: &[Took], name: &str, ratio: f64, reach, better: &str| {
        let (cpu, seconds) = (of(all, |t| t.cpu_seconds), of(all, |t| t.seconds));
        out.line(
            || {
                format!(
                    "{case:<22} server {} cpu s, {} s, {}{} of {name}",
                    rounded(cpu),
                    rounded(seconds),
                    rounded(ratio),
                    to_reach(reach)
                )
            },
            || {
                json!({
                    "case": case,
                    "server_cpu_seconds": rounded(cpu),
                    "seconds": rounded(seconds),
                    "bytes": rounded(of(all, |t| t.bytes)),
                    "limit": {"name": name},
                    "ratio_to_limit": rounded(ratio),
                    "reach": reach,
                    "better": better,
                    "repetitions": all.len(),
                })
            },
        )
    };
    let cpu = |all: &[Took]| of(all, |took| took.cpu_seconds);
    let made = "a bare pass's processor time";
    say("image made", &spools, made, cpu(&spools) / pass_cpu, None, "lower")?;
    let read = "a direct read of its files, in bytes a second";
    say("image ridden first", &first, read, rate(&first) / rate(&reads), Some(0.8), "higher")?;
    say("image ridden again", &whole, read, rate(&whole) / rate(&reads), None, "higher")?;
    let full = "the full ride's processor time, again";
    say("image ridden, keys", &keys, full, cpu(&keys) / cpu(&whole), Some(0.4), "lower")?;
    let pace = "the ride's pace";
    let seconds = |all: &[Took]| of(all, |took| took.seconds);
    let ratio = seconds(&whole) / seconds(&begun);
    say("memory view, image", &begun, pace, ratio, Some(0.7), "higher")?;
    let image = "the time with an image";
    say("memory view, log", &replays, image, seconds(&replays) / seconds(&begun), None, "higher")?;
    say_tib(of(&whole, |took| took.bytes) / seconds(&begun), out)
}

/// What a node's pace, in bytes a second, makes of much more data.
fn say_tib(pace: f64, out: &mut Output) -> Result<()> {
    let nodes = TIB / pace / MINUTES_20;
    out.line(
        || {
            format!(
                "memory views begin with {} MB a second and node: 1 TiB in 20 minutes takes {} nodes \
                 like this one",
                rounded(pace / 1e6),
                nodes.ceil()
            )
        },
        || {
            json!({
                "case": "memory views of 1 TiB in 20 minutes",
                "bytes_per_second": rounded(pace),
                "nodes": nodes.ceil(),
            })
        },
    )
}

fn views(node: &Node) -> Result<Vec<Value>> {
    let output = node.command(&["view", "status"])?.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let parsed = text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>();
    parsed.map_err(|e| Error::bug(format!("read what `view status` has said: {e}")))
}

/// Looks at the views until they are as they should be. Ends with an error where one has stopped, or
/// nothing has changed for so long that nothing will.
fn wait(node: &Node, are_there: impl Fn(&[Value]) -> bool) -> Result<()> {
    let (mut before, mut since) = (Vec::new(), Instant::now());
    loop {
        let mut now = views(node)?;
        if are_there(&now) {
            return Ok(());
        }
        if let Some(view) = now.iter().find(|view| !view["stopped"].is_null()) {
            return Err(Error::bug(format!("wait for views: one has stopped: {view}")));
        }
        // How long ago a view was level changes always.
        now.iter_mut().for_each(|view| view["level_ms"] = Value::Null);
        if now != before {
            (before, since) = (now, Instant::now());
        } else if since.elapsed() > UNCHANGED_MAX {
            return Err(Error::bug(format!(
                "wait for views: nothing has changed for {} s: {before:?}",
                UNCHANGED_MAX.as_secs()
            )));
        }
        Stop::new().sleep_until_stop(LOOK);
    }
}

/// Until there are so many views, and each is level with its topic.
pub(super) fn wait_for_all(node: &Node, count: usize) -> Result<()> {
    let is_level = |view: &&Value| view["behind"] == 0 && view["applied"] != 0;
    wait(node, |views| views.iter().filter(is_level).count() >= count)
}

/// An image of the disk view, and its mark; also while somebody rides.
pub(super) fn spool(node: &Node, ridden: bool) -> Result<(Took, u64)> {
    let (cpu, start) = (node.cpu_seconds(), Instant::now());
    let at = node.ask(&["view", "mark", TOPIC])?["index"].as_u64().unwrap_or_default();
    if ridden {
        // Not before the image is begun: it is made as of the mark.
        ride(node, &of_all(1, &["--reached", &at.to_string()]))?;
    }
    let has_image = |view: &Value| {
        let images = view["images"].as_array().map(Vec::as_slice).unwrap_or_default();
        images.iter().any(|image| image["index"] == at)
    };
    wait(node, |views| views.iter().any(has_image))?;
    let (cpu_seconds, seconds) = (node.cpu_seconds() - cpu, start.elapsed().as_secs_f64());
    Ok((Took { cpu_seconds, seconds, bytes: 0.0 }, at))
}

fn ride_at(node: &Node, at: u64, words: &[&str]) -> Result<Took> {
    let all = ["--at", &at.to_string()];
    let rider = all.iter().chain(words).map(|word| (*word).to_owned()).collect();
    let ridden = ride(node, &[rider])?;
    let (cpu_seconds, seconds, bytes) = (ridden.server_cpu, ridden.each[0], ridden.bytes);
    Ok(Took { cpu_seconds, seconds, bytes })
}

/// Past the page cache.
fn read_directly(node: &Node, at: u64) -> Result<Took> {
    let rows = node.rows()?;
    let place = rows.parent().ok_or_else(|| Error::bug("measure images: no directory"))?;
    let start = Instant::now();
    let mut buf = AlignedBuf::zeroed(1 << 20);
    let mut bytes = 0u64;
    for entry in RealDisk.list(place)? {
        if !entry.name.starts_with(&format!("image-{at:020}.")) {
            continue;
        }
        let file = RealDisk.open(&place.join(&entry.name), Access::Direct)?;
        let mut offset = 0;
        while offset < entry.bytes {
            let read = file.read_at(&mut buf, offset)? as u64;
            offset += read.max(1);
            bytes += read;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Took { cpu_seconds: 0.0, seconds, bytes: bytes as f64 })
}

/// Runs a view in memory until it has everything, and ends it.
pub(super) fn begin_in_memory(node: &Node) -> Result<Took> {
    let (cpu, start) = (node.cpu_seconds(), Instant::now());
    node.ask(&["view", "run", "memory", TOPIC])?;
    let is_there = |view: &Value| {
        let is_memory = view["view"].as_str().is_some_and(|name| name.contains("memory"));
        is_memory && view["behind"] == 0 && view["applied"] != 0
    };
    wait(node, |views| views.iter().any(is_there))?;
    let (cpu_seconds, seconds) = (node.cpu_seconds() - cpu, start.elapsed().as_secs_f64());
    node.ask(&["view", "stop", "memory", TOPIC])?;
    Ok(Took { cpu_seconds, seconds, bytes: 0.0 })
}
