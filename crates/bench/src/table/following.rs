//! How fast a region follows another one: writes of one tablet that came about while it was cut off, beside appends of
//! the same bytes to a topic of its own.

use super::apart::make;
use super::records::{VALUE_BYTES, at_once, fill, key, put};
use super::{TableBench, figure};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::LocalCluster;
use holdfast_command::output::Output;
use holdfast_wire::table::{Level, TableMode};
use std::time::{Duration, Instant};

const TABLE: &str = "followed";
const TOPIC: &str = "beside";
/// Entries of one append, and clients that append: as large as what is said to a region, and more than one sync takes.
const APPENDED_AT_ONCE: usize = 512;
const CLIENTS: usize = 8;
/// It must go on within this time.
const WITHIN: Duration = Duration::from_secs(120);
/// What is followed by then was on its way before anybody measured: the connection is made anew, and a window is full.
const WARM: u64 = 10;

/// When a region shows a record.
fn shows(client: &mut Client, number: u64) -> Result<Instant> {
    let (mut table, began) = (client.table(TABLE), Instant::now());
    while table.get(&key(number), Level::Any)?.is_none() {
        if began.elapsed() > WITHIN {
            return Err(Error::retry(format!(
                "measure how a region follows: record {number} does not show after {WITHIN:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Instant::now())
}

/// Entries a second that the region appends to a topic, for so many or some more.
fn appends(cluster: &LocalCluster, records: u64) -> Result<f64> {
    let clients = (0..CLIENTS).map(|_| cluster.client_of(2)).collect::<Result<Vec<_>>>()?;
    let times = (records as usize).div_ceil(APPENDED_AT_ONCE * CLIENTS);
    let entries = vec![[7u8; VALUE_BYTES]; APPENDED_AT_ONCE];
    let began = Instant::now();
    at_once(clients, |_, mut client| {
        let mut log = client.log();
        (0..times).try_for_each(|_| log.append(TOPIC, &entries).map(drop))
    })?;
    Ok((times * APPENDED_AT_ONCE * CLIENTS) as f64 / began.elapsed().as_secs_f64())
}

/// A second region follows `--split-records` writes of the first one.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let records = options.split_records;
    let cluster = LocalCluster::regions(2, options.data.as_deref(), "0 1 0.2\n")?;
    let (mut home, mut follows) = (cluster.client_of(1)?, cluster.client_of(2)?);
    make(&mut home, TABLE, TableMode::Timeline, true)?;
    home.table(TABLE).write(&[put(records, VALUE_BYTES)])?;
    shows(&mut follows, records)?;
    cluster.cut(1, 2, false)?;
    fill(&mut home, TABLE, 0..records, VALUE_BYTES)?;
    cluster.cut(1, 2, true)?;
    let began = shows(&mut follows, records / WARM)?;
    let ended = shows(&mut follows, records - 1)?;
    let followed = (records - records / WARM) as f64 / ended.duration_since(began).as_secs_f64();
    let appended = appends(&cluster, records)?;
    let case = format!("a region follows {records} writes of 1 KiB");
    let ratio = (Some(0.8), false);
    figure(&case, followed, "entries/s", ("appends to a topic", appended), ratio, out)
}
