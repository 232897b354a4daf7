//! What requests of tables cost between real processes that are as far apart as regions are: three nodes, each a
//! region with a log of its own, and ways between them that take their time. Each figure is beside its formula,
//! with this machine's own times of a request and of a durable append.

use super::{TableBench, row};
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_command::LocalCluster;
use holdfast_command::output::Output;
use holdfast_table::sim::distance::Distance;
use holdfast_table::sim::figures::Cell;
use holdfast_table::sim::world::Costs;
use holdfast_table::tablet::Mode;
use holdfast_wire::table::{Expect, Level, Make, TableMode, Written};
use serde_json::json;
use std::time::Instant;

/// A table of this region alone: what a request and an append take here.
const NEAR: &str = "near";
/// How far a figure may be from its formula.
const REACH: f64 = 1.10;
/// Regions that start look for each other for a while.
const ATTEMPTS: usize = 100_000;

struct Regions {
    cluster: LocalCluster,
    distance: Distance,
}

fn put(key: &str) -> TableWrite {
    TableWrite { key: key.as_bytes().to_vec(), value: Some(vec![7; 100]), expect: Expect::Any }
}

fn table_of(cell: Cell) -> &'static str {
    match cell.mode() {
        Mode::Timeline => "timeline",
        Mode::Strong => "strong",
    }
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    let began = Instant::now();
    let done = work()?;
    Ok((began.elapsed().as_micros() as u64, done))
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Makes a table, once the regions reach each other.
pub(super) fn make(
    client: &mut Client,
    table: &str,
    mode: TableMode,
    everywhere: bool,
) -> Result<()> {
    let make = Make { table: table.to_owned(), mode, tablets: 1, everywhere };
    let attempts = (0..ATTEMPTS).map(|_| client.table_make(&make).map(drop));
    let kept_on = |made: &Result<()>| !matches!(made, Err(e) if e.kind == Kind::Retry);
    attempts.into_iter().find(kept_on).unwrap_or_else(|| {
        Err(Error::retry(format!("make table `{table}`: the regions do not reach each other")))
    })
}

/// How far regions are from each other, as text for processes.
pub(super) fn distances(distance: &Distance) -> String {
    let pairs = (0..distance.regions()).flat_map(|a| (0..a).map(move |b| (b, a)));
    let line = |(a, b): (usize, usize)| {
        format!("{a} {b} {}\n", distance.round_trip_us(a, b) as f64 / 1000.0)
    };
    pairs.map(line).collect()
}

/// Every cell of every pair of regions.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let distance = Distance::three();
    let text = distances(&distance);
    let cluster = LocalCluster::regions(distance.regions(), options.data.as_deref(), &text)?;
    let mut near = cluster.client_of(1)?;
    make(&mut near, NEAR, TableMode::Timeline, false)?;
    make(&mut near, "timeline", TableMode::Timeline, true)?;
    make(&mut near, "strong", TableMode::Strong, true)?;
    let regions = Regions { cluster, distance };
    for cell in Cell::ALL {
        for home in 0..regions.distance.regions() {
            for client in 0..regions.distance.regions() {
                regions.cell(cell, client, home, options.requests, out)?;
            }
        }
    }
    Ok(())
}

/// What a request takes that waits for nothing, and what a durable append adds, at this moment: a disk changes its
/// pace within a run.
fn costs(client: &mut Client, requests: usize) -> Result<Costs> {
    let mut table = client.table(NEAR);
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..requests {
        puts.push(timed(|| table.write(&[put("k")]))?.0);
        gets.push(timed(|| table.get(b"k", Level::Any))?.0);
    }
    let local_us = median(gets).max(1);
    let append_us = median(puts).saturating_sub(local_us);
    Ok(Costs { append_us, local_us, ..Costs::default() })
}

impl Regions {
    fn cell(
        &self,
        cell: Cell,
        client: usize,
        home: usize,
        requests: usize,
        out: &mut Output,
    ) -> Result<()> {
        let table = table_of(cell);
        let mut at_home = self.cluster.client_of(home + 1)?;
        let mut away = self.cluster.client_of(client + 1)?;
        let keys: Vec<String> =
            (0..requests).map(|n| format!("{cell:?} {client} {home} {n}")).collect();
        // Whoever inserts a record has it at home.
        let mut inserts = at_home.table(table);
        for some in keys.chunks(64) {
            inserts.write(&some.iter().map(|key| put(key)).collect::<Vec<_>>())?;
        }
        let mut reads = away.table(table);
        for key in &keys {
            let shows = (0..ATTEMPTS)
                .any(|_| reads.get(key.as_bytes(), Level::Any).is_ok_and(|found| found.is_some()));
            if !shows {
                return Err(Error::retry(format!(
                    "measure tables: region {client} shows no `{key}`"
                )));
            }
        }
        let costs = costs(&mut self.cluster.client_of(1)?, requests)?;
        let mut latencies = Vec::new();
        for key in &keys {
            let mut read = |level| reads.get(key.as_bytes(), level).map(drop);
            let (took, ()) = match cell {
                Cell::TimelineWrite | Cell::StrongWrite => {
                    timed(|| reads.write(&[put(key)]).map(drop))?
                }
                Cell::ReadAny => timed(|| read(Level::Any))?,
                Cell::CriticalShown => timed(|| read(Level::Critical { version: 1 }))?,
                Cell::ReadLatest => timed(|| read(Level::Latest))?,
                Cell::StrongRead => timed(|| read(Level::Strong))?,
                Cell::CriticalAbsent => {
                    let version = match inserts.write(&[put(key)])?[..] {
                        [Written::Version { version }] => version,
                        ref other => return Err(Error::bug(format!("a put came to {other:?}"))),
                    };
                    timed(|| read(Level::Critical { version }))?
                }
            };
            latencies.push(took);
        }
        let formula = match cell {
            // It shows at home at once.
            Cell::CriticalAbsent if client == home => costs.local_us,
            _ => cell.formula_us(&self.distance, &costs, client, home),
        };
        let (name, here, there) =
            (cell.name(), self.distance.name(client), self.distance.name(home));
        row(
            format!("{name}, {here} of {there}, processes"),
            latencies,
            formula as f64,
            (json!(REACH), false),
            out,
        )
    }
}
