//! `holdfast bench exchange`: the exchange of a sort over many servers, simulated packet by packet: what a server
//! passes on in a second, of what its mapper, disk and link could do together.

use super::report::{Figure, Report, Sample};
use clap::Args;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_shuffle::simulated::{Outcome, PAYLOAD_BYTES, Room};
use serde_json::json;
use std::time::Duration;

const MB: u64 = 1_000_000;
const GBIT: u64 = 1_000_000_000;

/// What `bench exchange` is asked for.
#[derive(Args, Debug, Clone)]
pub struct ExchangeBench {
    /// Servers, each a mapper and a receiver
    #[arg(long, default_value = "52,500", value_delimiter = ',', value_name = "N,..")]
    pub servers: Vec<u32>,
    /// Gbit/s of a server's link, each way
    #[arg(long, default_value_t = 10, value_name = "GBIT")]
    pub link: u64,
    /// Bytes of the switch's buffer before each server
    #[arg(long, default_value = "64K,256K,1M,8M", value_delimiter = ',', value_name = "BYTES,..")]
    pub buffer: Vec<String>,
    /// Microseconds there and back, without queues
    #[arg(long, default_value_t = 100, value_name = "US")]
    pub round_trip: u64,
    /// MB/s that a mapper makes and a disk takes: disks that limit, and links that do
    #[arg(long, default_value = "400,4000", value_delimiter = ',', value_name = "MB,..")]
    pub rate: Vec<u64>,
    /// Blocks of each mapper for each receiver
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub blocks: u32,
    /// Bytes of a block: a mapper with many partitions and little memory has small ones
    #[arg(long, default_value = "1M", value_name = "BYTES")]
    pub block: String,
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,
}

/// Simulates each case, and prints a line for it.
pub fn run(options: &ExchangeBench, out: &mut Output) -> Result<()> {
    let size = |text: &String| parse_bytes(text).map_err(Error::invalid);
    let buffers = options.buffer.iter().map(size).collect::<Result<Vec<u64>>>()?;
    let block_bytes = size(&options.block)?;
    for servers in &options.servers {
        for rate in &options.rate {
            for buffer_bytes in &buffers {
                let room = Room {
                    servers: *servers,
                    bits_per_second: options.link.saturating_mul(GBIT),
                    buffer_bytes: *buffer_bytes,
                    round_trip_ns: options.round_trip.saturating_mul(1000),
                    map_bytes_per_second: rate.saturating_mul(MB),
                    disk_bytes_per_second: rate.saturating_mul(MB),
                    block_bytes,
                    blocks: options.blocks,
                    seed: options.seed,
                    ..Room::default()
                };
                print(&room, &room.run()?, out)?;
            }
        }
    }
    Ok(())
}

fn print(room: &Room, outcome: &Outcome, out: &mut Output) -> Result<()> {
    let each = outcome.bytes / u64::from(room.servers);
    let time = Duration::from_nanos(outcome.time_ns);
    let rate = room.map_bytes_per_second / MB;
    let buffer = format_bytes(room.buffer_bytes);
    let mut report = Report {
        case: format!("exchange: {} servers, {rate} MB/s, buffer {buffer}", room.servers),
        figure: Figure::BytesPerSecond,
        limit_name: "the slowest of mapper, disk and link".to_owned(),
        limits: vec![room.limit()],
        peer: None,
        samples: vec![Sample::of_run(1, each, time, (0.0, 0.0), Vec::new())],
    };
    let waited =
        outcome.waited_ns as f64 / (outcome.time_ns.max(1) as f64 * f64::from(room.servers));
    let mut line = report.line();
    for (name, value) in [
        ("servers", json!(room.servers)),
        ("buffer_bytes", json!(room.buffer_bytes)),
        ("block_bytes", json!(room.block_bytes)),
        ("repeated", json!(outcome.repeated)),
        ("dropped", json!(outcome.dropped)),
        ("timeouts", json!(outcome.timeouts)),
        ("held_bytes", json!(outcome.held_bytes)),
        ("waited", super::report::rounded(waited)),
    ] {
        line[name] = value;
    }
    let text = || {
        format!(
            "{:>4} servers  {rate:>5} MB/s  buffer {buffer:>9}: {:>7.1} MB/s a server, {:>6} of the limit; mappers waited {:>3.0}%, sent again {:>5.2}%, timeouts {}, a receiver held {}",
            room.servers,
            each as f64 * 1e3 / outcome.time_ns.max(1) as f64,
            line["ratio_to_limit"],
            100.0 * waited,
            100.0 * (outcome.repeated * PAYLOAD_BYTES) as f64 / outcome.bytes.max(1) as f64,
            outcome.timeouts,
            format_bytes(outcome.held_bytes),
        )
    };
    out.line(text, || line.clone())
}
