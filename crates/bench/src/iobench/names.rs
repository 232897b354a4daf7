//! Cases of many small things: look-ups, small gets, creates, listings.

use super::{Bench, Work};
use crate::report::Meter;
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, NewFile, Ticket};
use std::collections::VecDeque;
use std::time::Instant;

/// Names that look-ups and gets take turns on.
const NAMES: u64 = 100_000;
/// Keys of gets: enough to leave the processor's caches when they are large.
const KEYS: u64 = 1000;
/// Files whose creation shows what one costs in memory.
const MEMORY_FILES: u64 = 1_000_000;
const MEMORY_BYTES: usize = 4;

impl Bench {
    fn directory(&self, client: &mut Client, path: &str, kind: NodeKind) -> Result<()> {
        client.make_dir(path, &NewFile { kind, parents: true, ..self.new_file() })
    }

    /// Stores `count` files of `bytes` each.
    fn fill(
        &self,
        client: &mut Client,
        paths: &[String],
        bytes: usize,
        kind: NodeKind,
    ) -> Result<()> {
        let new = NewFile { kind, ..self.new_file() };
        let mut sent = VecDeque::new();
        for (i, path) in paths.iter().enumerate() {
            sent.push_back(client.submit_put(path, self.data.at(i as u64 * 7, bytes), &new)?);
            if sent.len() >= 256
                && let Some(ticket) = sent.pop_front()
            {
                client.wait(ticket)?;
            }
        }
        sent.into_iter().try_for_each(|ticket| client.wait(ticket).map(drop))
    }

    /// Names below the case's path, a thousand a directory.
    fn names(&self, count: u64) -> Vec<String> {
        (0..count).map(|i| format!("{}/{:03}/{i:07}", self.options.path, i / 1000)).collect()
    }

    fn filled(&self, client: &mut Client, count: u64) -> Result<Vec<String>> {
        for directory in 0..count.div_ceil(1000) {
            let path = format!("{}/{directory:03}", self.options.path);
            self.directory(client, &path, NodeKind::Directory)?;
        }
        Ok(self.names(count))
    }
}

/// Scatters look-ups over `count` names, the same in every run.
fn scattered(turn: u64, count: usize) -> usize {
    ((turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % count as u64) as usize
}

/// Whole small values by name, one at a time, verified.
pub fn get_key(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    bench.directory(&mut client, &bench.options.path, NodeKind::Table)?;
    let keys: Vec<String> = (0..KEYS).map(|i| format!("{}/{i:04}", bench.options.path)).collect();
    bench.fill(&mut client, &keys, bench.size, NodeKind::KeyValue)?;
    let mut turn = 0;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        for key in keys.iter().take(bench.options.warmup as usize) {
            client.get(key)?;
        }
        meter.run();
        while meter.more() {
            turn += 1;
            let i = scattered(turn, keys.len());
            let bytes = meter.operation(bench.size as u64, || client.get(&keys[i]))?;
            if bytes != bench.data.at(i as u64 * 7, bench.size) {
                return Err(Error::bug(format!("get `{}`: not what was put", keys[i])));
            }
        }
        meter.pause();
        Ok(())
    }))
}

/// Look-ups of names, one at a time; nothing is read.
pub fn get_file(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let paths = bench.filled(&mut client, NAMES)?;
    bench.fill(&mut client, &paths, 0, NodeKind::File)?;
    let mut turn = 0;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        for path in paths.iter().take(bench.options.warmup as usize) {
            client.stat(path)?;
        }
        meter.run();
        while meter.more() {
            turn += 1;
            let path = &paths[scattered(turn, paths.len())];
            meter.operation(0, || client.stat(path))?;
        }
        meter.pause();
        Ok(())
    }))
}

/// Submits with `-b` outstanding, in two halves: while one is answered, the other is on its way.
fn pipelined(
    batch: usize,
    meter: &mut Meter<'_>,
    client: &mut Client,
    mut submit: impl FnMut(&mut Client) -> Result<Option<Ticket>>,
    mut wait: impl FnMut(&mut Client, Ticket) -> Result<()>,
    bytes: u64,
) -> Result<()> {
    let half = batch.div_ceil(2).max(1);
    let mut sent: VecDeque<(Option<Instant>, Ticket)> = VecDeque::with_capacity(2 * half);
    meter.run();
    let mut open = true;
    while open || !sent.is_empty() {
        open = open && meter.more();
        for _ in 0..half {
            match if open { submit(client)? } else { None } {
                Some(ticket) => sent.push_back((meter.begin(), ticket)),
                None => open = false,
            }
        }
        let done = if open { sent.len().saturating_sub(half) } else { sent.len() };
        for (start, ticket) in sent.drain(..done) {
            wait(client, ticket)?;
            meter.end(start, bytes);
        }
    }
    meter.pause();
    Ok(())
}

/// The same with `-b` outstanding.
pub fn get_file_async(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let paths = bench.filled(&mut client, NAMES)?;
    bench.fill(&mut client, &paths, 0, NodeKind::File)?;
    // In the order of their use, so that the client does not wait for memory of the bench.
    let mut order: Vec<usize> = (0..paths.len()).collect();
    order.sort_by_key(|i| (*i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes = paths[0].len();
    let scattered: String = order.iter().map(|i| &paths[*i][..]).collect();
    let mut turn = 0;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let submit = |client: &mut Client| {
            turn = (turn + 1) % order.len();
            client.submit_stat(&scattered[turn * bytes..][..bytes], false).map(Some)
        };
        let wait = |client: &mut Client, ticket| client.wait_stat(ticket).map(drop);
        pipelined(bench.options.batch, meter, &mut client, submit, wait, 0)
    }))
}

/// Files of `-s` bytes, each durable (on disk) before it counts; one or `-b` at a time.
pub fn create_file(bench: &Bench, batch: usize) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let mut made = 0u64;
    let mut repetition = 0;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        repetition += 1;
        let directory = format!("{}/{repetition}", bench.options.path);
        bench.directory(&mut client, &directory, NodeKind::Directory)?;
        let new = bench.new_file();
        let submit = |client: &mut Client| {
            made += 1;
            let bytes = bench.data.at(made * 7, bench.size);
            client.submit_put(&format!("{directory}/{made:08}"), bytes, &new).map(Some)
        };
        let wait = |client: &mut Client, ticket| client.wait(ticket).map(drop);
        pipelined(batch, meter, &mut client, submit, wait, bench.size as u64)?;
        client.delete(&directory, true)
    }))
}

/// New multifiles in one directory, one at a time.
pub fn create_multi_file(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    bench.directory(&mut client, &bench.options.path, NodeKind::Directory)?;
    let mut made = 0u64;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let new = NewFile { kind: NodeKind::MultiFile, ..bench.new_file() };
        meter.run();
        while meter.more() {
            made += 1;
            let path = format!("{}/{made:08}", bench.options.path);
            meter.operation(0, || client.make_dir(&path, &new))?;
        }
        meter.pause();
        Ok(())
    }))
}

/// Entries of a directory of ten thousand, page by page; an operation is an entry.
pub fn enumerate_dir(bench: &Bench) -> Result<Work<'_>> {
    const ENTRIES: u64 = 10_000;
    let mut client = bench.client()?;
    bench.directory(&mut client, &bench.options.path, NodeKind::Directory)?;
    let paths: Vec<String> =
        (0..ENTRIES).map(|i| format!("{}/{i:06}", bench.options.path)).collect();
    bench.fill(&mut client, &paths, 0, NodeKind::File)?;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        meter.run();
        while meter.more() {
            let mut after = String::new();
            loop {
                let start = meter.begin();
                let page = client.list(&bench.options.path, &after)?;
                let more = page.more;
                for entry in page.entries {
                    after = entry.name;
                    meter.end(None, 0);
                }
                // The latency is a page's.
                meter.sample.time_page(start);
                if !more {
                    break;
                }
            }
        }
        meter.pause();
        Ok(())
    }))
}

/// What a million files of four bytes take of the server's memory.
pub fn memory(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let count = bench.options.operations.unwrap_or(MEMORY_FILES);
    let paths = bench.filled(&mut client, count)?;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let before = bench.server.memory_bytes();
        let new = bench.new_file();
        let mut next = 0;
        let submit = |client: &mut Client| {
            let Some(path) = paths.get(next) else { return Ok(None) };
            next += 1;
            client.submit_put(path, bench.data.at(next as u64 * 7, MEMORY_BYTES), &new).map(Some)
        };
        let wait = |client: &mut Client, ticket| client.wait(ticket).map(drop);
        let bytes = MEMORY_BYTES as u64;
        pipelined(bench.options.batch, meter, &mut client, submit, wait, bytes)?;
        meter.sample.memory_bytes = bench.server.memory_bytes().saturating_sub(before);
        Ok(())
    }))
}
