//! The records of these benchmarks, and clients that work on them side by side.

use holdfast_base::{Error, Result};
use holdfast_client::{Client, TableWrite};
use holdfast_wire::table::Expect;
use std::ops::Range;

/// Of a value, where a benchmark does not say otherwise.
pub const VALUE_BYTES: usize = 1024;
/// From one record to the next, where they are not taken in the order in which they were put.
pub const STRIDE: u64 = 7919;
/// Bytes of values that one request fills a table with.
const FILLED_AT_ONCE: usize = 512 << 10;

pub fn key(number: u64) -> Vec<u8> {
    format!("user{number:08}").into_bytes()
}

/// A record whose value has so many bytes.
pub fn put(number: u64, value_bytes: usize) -> TableWrite {
    TableWrite { key: key(number), value: Some(vec![7; value_bytes]), expect: Expect::Any }
}

/// Fills a table with records, a request at a time.
pub fn fill(
    client: &mut Client,
    table: &str,
    numbers: Range<u64>,
    value_bytes: usize,
) -> Result<()> {
    let at_once = (FILLED_AT_ONCE / value_bytes) as u64;
    let mut table = client.table(table);
    for first in numbers.clone().step_by(at_once as usize) {
        let some = first..numbers.end.min(first + at_once);
        table.write(&some.map(|number| put(number, value_bytes)).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Has all clients work at once, each told which one it is, and waits for them.
pub fn at_once(
    clients: Vec<Client>,
    work: impl Fn(u64, Client) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let start = |(number, client)| scope.spawn(move || work(number, client));
        let threads: Vec<_> = (0..).zip(clients).map(start).collect();
        let panicked = |_| Error::bug("a client of the benchmark panicked");
        threads.into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
    })
}
