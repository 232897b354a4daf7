//! What writers notice of a tablet that is split under them: the half that leaves takes no writes while it is copied.

use super::records::{STRIDE, VALUE_BYTES, fill, put};
use super::served::Served;
use super::{TableBench, figure};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::table::{Make, TableMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TABLE: &str = "split";
const WRITERS: u64 = 8;
/// Writers write for as long before anything is split.
const BEFORE: Duration = Duration::from_secs(3);

/// When a write was sent, and answered.
type Wrote = (Instant, Instant);

fn writes(
    mut client: Client,
    mut number: u64,
    records: u64,
    ends: &AtomicBool,
) -> Result<Vec<Wrote>> {
    let mut table = client.table(TABLE);
    let mut wrote = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        // In both halves.
        number = number.wrapping_add(STRIDE);
        let sent = Instant::now();
        table.write(&[put(number % records, VALUE_BYTES)])?;
        wrote.push((sent, Instant::now()));
    }
    Ok(wrote)
}

fn longest_ms(wrote: &[Wrote], during: impl Fn(&Wrote) -> bool) -> f64 {
    let took = |(sent, answered): &Wrote| answered.duration_since(*sent);
    let longest = wrote.iter().filter(|wrote| during(wrote)).map(took).max();
    longest.unwrap_or_default().as_secs_f64() * 1e3
}

/// Splits a tablet of `--split-records` records while writers write to both of its halves.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let served = Served::start(options)?;
    let mut client = served.client()?;
    let mode = TableMode::Timeline;
    client.table_make(&Make { table: TABLE.into(), mode, tablets: 1, everywhere: false })?;
    let records = options.split_records;
    fill(&mut client, TABLE, 0..records, VALUE_BYTES)?;
    let clients = (0..WRITERS).map(|_| served.client()).collect::<Result<Vec<_>>>()?;
    let ends = &AtomicBool::new(false);
    let (began, ended, wrote) = std::thread::scope(|scope| -> Result<_> {
        let each = records / WRITERS;
        let start = |(at, client)| scope.spawn(move || writes(client, at * each, records, ends));
        let threads: Vec<_> = (0..).zip(clients).map(start).collect();
        std::thread::sleep(BEFORE);
        let began = Instant::now();
        let told = client.table_split(TABLE, 0, None);
        let ended = Instant::now();
        ends.store(true, Ordering::Relaxed);
        let mut wrote = Vec::new();
        for thread in threads {
            let panicked = |_| Error::bug("a writer of the benchmark panicked");
            wrote.extend(thread.join().map_err(panicked)??);
        }
        told.map(|_| (began, ended, wrote))
    })?;
    let before = longest_ms(&wrote, |(_, answered)| *answered < began);
    let during = longest_ms(&wrote, |(sent, answered)| *answered >= began && *sent <= ended);
    let case = format!("a tablet of {records} records of 1 KiB is split");
    let took_ms = ended.duration_since(began).as_secs_f64() * 1e3;
    figure(&format!("{case}: the split"), took_ms, "ms", ("nothing", 0.0), (None, false), out)?;
    let limit = ("the longest write before", before);
    figure(&format!("{case}: longest write"), during, "ms", limit, (None, false), out)
}
