//! How long writers wait for the records of a region that is lost for good, where there are many: three regions, each a
//! process, as far apart as the published round trips.

use super::apart::{distances, make};
use super::records::{at_once, fill, put};
use super::{TableBench, figure};
use holdfast_base::Result;
use holdfast_command::LocalCluster;
use holdfast_command::output::Output;
use holdfast_table::sim::distance::Distance;
use holdfast_wire::table::TableMode;
use std::time::Instant;

const TABLE: &str = "taken";
const VALUE_BYTES: usize = 100;
/// Clients that fill the table: each waits for two regions, 80 ms apart.
const CLIENTS: u64 = 8;
/// What a region is silent for before another one takes over, in seconds, and what the rest may take.
const SILENCE_S: f64 = 5.0;
const REST_S: f64 = 1.0;

/// Virginia has all of `--taken` records at home, and is lost with its disk.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let distance = Distance::three();
    let cluster = LocalCluster::regions(3, options.data.as_deref(), &distances(&distance))?;
    make(&mut cluster.client_of(1)?, TABLE, TableMode::Strong, true)?;
    let clients = (0..CLIENTS).map(|_| cluster.client_of(1)).collect::<Result<Vec<_>>>()?;
    let (records, each) = (options.taken, options.taken.div_ceil(CLIENTS));
    at_once(clients, |number, mut client| {
        let numbers = records.min(number * each)..records.min((number + 1) * each);
        fill(&mut client, TABLE, numbers, VALUE_BYTES)
    })?;
    let mut survivor = cluster.client_of(2)?;
    let began = Instant::now();
    cluster.lose(1)?;
    survivor.table(TABLE).write(&[put(records / 2, VALUE_BYTES)])?;
    let took = began.elapsed().as_secs_f64();
    let case = format!("a region with {records} records is lost: until one is written");
    let limit = ("silence and a second", SILENCE_S + REST_S);
    figure(&case, took, "s", limit, (Some(1.0), false), out)
}
