//! What each decision of the design is worth: the server as it is, and with one of them taken back
//! (`holdfast cache --ablate`), in turns under the same load. And what a second core brings.
//!
//! Two server threads and the load share two cores on small machines: what is compared there is
//! answers for each second of the server's processor time, which the load does not change.

use super::CacheBench;
use super::keys::{Kind, Requests, fill};
use super::load::{self, Shape, Transport};
use super::server::Target;
use crate::report::median;
use holdfast_base::Result;
use holdfast_command::output::Output;
use serde_json::json;
use std::time::Duration;

struct Rung {
    ablate: &'static str,
    text: &'static str,
    keys_each: usize,
    threads: usize,
    shape: Shape,
}

const fn shape(transport: Transport, clients: usize, depth: usize) -> Shape {
    Shape { transport, clients, depth }
}

const RUNGS: &[Rung] = &[
    Rung {
        ablate: "shared-statistics",
        text: "one lock for statistics, 2 threads, 100-key gets",
        keys_each: 100,
        threads: 2,
        shape: shape(Transport::Tcp, 50, 1),
    },
    Rung {
        ablate: "one-udp-socket",
        text: "one UDP socket for 2 threads, 10-key gets",
        keys_each: 10,
        threads: 2,
        shape: shape(Transport::Udp, 8, 8),
    },
    Rung {
        ablate: "unbatched-sends",
        text: "each answer sent alone, 16 connections x 100 gets",
        keys_each: 1,
        threads: 1,
        shape: shape(Transport::Tcp, 16, 100),
    },
    Rung {
        ablate: "unbatched-sends",
        text: "each datagram sent alone, 100-key gets",
        keys_each: 100,
        threads: 1,
        shape: shape(Transport::Udp, 8, 2),
    },
    Rung {
        ablate: "connection-buffers",
        text: "buffers for each connection, 1000 x 10-key gets",
        keys_each: 10,
        threads: 1,
        shape: shape(Transport::Tcp, 1000, 1),
    },
];

/// Keys a second of one run, and a second of the server's processor time.
struct Rates {
    a_second: f64,
    a_cpu_second: f64,
}

fn measure(target: &Target, rung: (usize, Shape), options: &CacheBench) -> Result<Rates> {
    let (keys_each, shape) = rung;
    let requests = Requests::new(Kind::Get, keys_each, options.keys, options.value);
    let address = if shape.transport == Transport::Tcp { target.tcp } else { target.udp };
    let before = target.cpu_seconds();
    let ran = load::run(address, shape, &requests, Duration::from_secs_f64(options.seconds))?;
    let keys = ran.requests as f64 * keys_each as f64;
    let cpu = (target.cpu_seconds() - before).max(0.01);
    Ok(Rates { a_second: keys / ran.seconds, a_cpu_second: keys / cpu })
}

/// Compares the server with each of its decisions taken back, in answers a second and memory.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    for rung in RUNGS {
        let ours = Target::ours(options, rung.threads, &[])?;
        let other = Target::ours(options, rung.threads, &["--ablate", rung.ablate])?;
        fill(ours.tcp, options.keys, options.value)?;
        fill(other.tcp, options.keys, options.value)?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..options.repetitions.max(1) {
            with.push(measure(&ours, (rung.keys_each, rung.shape), options)?);
            without.push(measure(&other, (rung.keys_each, rung.shape), options)?);
        }
        let memory = |target: &Target| target.memory_bytes("RssAnon") as f64 / (1 << 20) as f64;
        let more = memory(&other) - memory(&ours);
        report(rung, &with, &without, more, out)?;
    }
    Ok(())
}

fn of(rates: &[Rates], value: fn(&Rates) -> f64) -> f64 {
    median(rates.iter().map(value))
}

fn report(
    rung: &Rung,
    with: &[Rates],
    without: &[Rates],
    more_mib: f64,
    out: &mut Output,
) -> Result<()> {
    let a_second = [of(with, |r| r.a_second), of(without, |r| r.a_second)];
    let a_cpu_second = [of(with, |r| r.a_cpu_second), of(without, |r| r.a_cpu_second)];
    let ratio = |values: [f64; 2]| values[1] / values[0];
    out.line(
        || {
            format!(
                "{:<52} {:.0} keys/s instead of {:.0} ({:.2}); a second of the server's processors {:.0} instead of {:.0} ({:.2}); {more_mib:+.1} MiB",
                rung.text, a_second[1], a_second[0], ratio(a_second),
                a_cpu_second[1], a_cpu_second[0], ratio(a_cpu_second)
            )
        },
        || {
            json!({
                "case": format!("taken back: {}", rung.text), "ablation": rung.ablate,
                "ops_per_second": a_second[1], "limit": {"name": "as it is", "value": a_second[0]},
                "ratio_to_limit": ratio(a_second),
                "ops_per_server_cpu_second": a_cpu_second[1],
                "ratio_per_server_cpu_second": ratio(a_cpu_second),
                "more_memory_mib": more_mib, "better": "higher", "repetitions": with.len(),
            })
        },
    )
}

/// Two threads against one, 100-key gets.
pub fn cores(options: &CacheBench, out: &mut Output) -> Result<()> {
    let (one, two) = (Target::ours(options, 1, &[])?, Target::ours(options, 2, &[])?);
    fill(one.tcp, options.keys, options.value)?;
    fill(two.tcp, options.keys, options.value)?;
    let shape = shape(Transport::Tcp, 50, 1);
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions.max(1) {
        ones.push(measure(&one, (100, shape), options)?);
        twos.push(measure(&two, (100, shape), options)?);
    }
    let [one, two] = [&ones, &twos].map(|rates| of(rates, |r| r.a_cpu_second));
    let [one_s, two_s] = [&ones, &twos].map(|rates| of(rates, |r| r.a_second));
    out.line(
        || {
            format!(
                "100-key gets, two threads against one: {two_s:.0} keys/s against {one_s:.0} with the load on the same cores; {two:.0} against {one:.0} for each second of processor time: {:.2} times on two cores of their own",
                2.0 * two / one
            )
        },
        || {
            json!({
                "case": "two server cores against one, 100-key gets",
                "ops_per_second": two_s, "ops_per_server_cpu_second": two,
                "one_core": {"ops_per_second": one_s, "ops_per_server_cpu_second": one},
                "ratio": 2.0 * two / one, "better": "higher", "repetitions": ones.len(),
            })
        },
    )
}
