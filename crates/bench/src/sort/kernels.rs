//! The steps of a sort on bytes in memory, one thread, each beside copying the same bytes.

use crate::report::{median, rounded};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output as Lines;
use holdfast_env::buf::AlignedBuf;
use holdfast_sort::gray::generate::{Records, Shape};
use holdfast_sort::kernel::combine::{Blocks, Combiner};
use holdfast_sort::kernel::{self, Rules};
use holdfast_sort::order::Order;
use holdfast_sort::pieces;
use holdfast_sort::record::Format;
use holdfast_sort::split::Splitters;
use serde_json::json;
use std::time::Instant;

const RECORDS: usize = 400_000;
const RECORD_BYTES: usize = 100;
const BLOCK_BYTES: usize = 256 << 10;
const FORMAT: Format = Format::Fixed(RECORD_BYTES);

/// Takes blocks and gives them back: what leaves is not looked at.
struct Nowhere;

impl Blocks for Nowhere {
    fn replace(&mut self, _: usize, block: AlignedBuf, _: usize) -> Result<AlignedBuf> {
        Ok(block)
    }
}

/// Answers the blocks, for the next time: a sort takes its own once.
fn partition(
    order: &Order,
    splitters: &Splitters,
    from: &[u8],
    blocks: Vec<AlignedBuf>,
) -> Result<Vec<AlignedBuf>> {
    let mut combiner = Combiner::new(blocks);
    for record in from.chunks_exact(RECORD_BYTES) {
        combiner.add(splitters.find(order, record), record, &mut Nowhere)?;
    }
    Ok(combiner.finish(&mut Nowhere)?.into_iter().map(|(block, _)| block).collect())
}

/// Prints each step's bytes a second on one thread, as a part of what a copy reaches.
pub fn run(repetitions: usize, lines: &mut Lines) -> Result<()> {
    let order = Order::range(FORMAT, 0, Some(10), false)?;
    let mut from = AlignedBuf::zeroed(RECORDS * RECORD_BYTES);
    let from = &mut from[..RECORDS * RECORD_BYTES];
    let mut records = Records::from(0, Shape { ascii: true, skew: false });
    for record in from.chunks_exact_mut(RECORD_BYTES) {
        records.write(record.try_into().map_err(|_| Error::bug("a record has another length"))?);
    }
    let from = &*from;
    let mut to = AlignedBuf::zeroed(from.len());
    let sample = pieces::sample(FORMAT, from, 20_000);
    let rules = Rules { format: FORMAT, order: &order, depth: Default::default() };
    let (mut entries, mut scratch) = (Vec::new(), Vec::new());
    let parts = |count: usize| -> Result<Vec<Vec<u8>>> {
        from.chunks(from.len() / count).map(|p| pieces::sort(FORMAT, &order, &[p])).collect()
    };
    let (eight, many) = (parts(8)?, parts(32)?);
    let repetitions = repetitions.max(3);
    let mut seconds = vec![Vec::new(); NAMES.len()];
    for _ in 0..repetitions {
        let mut step = 0;
        let mut time = |work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let start = Instant::now();
            work()?;
            seconds[step].push(start.elapsed().as_secs_f64());
            step += 1;
            Ok(())
        };
        time(&mut || {
            to[..from.len()].copy_from_slice(from);
            Ok(())
        })?;
        for count in [64, 256, 1024] {
            let splitters = Splitters::new(FORMAT, &order, &sample, count);
            let mut blocks = AlignedBuf::pieces(splitters.partitions(), BLOCK_BYTES);
            blocks.iter_mut().for_each(|block| block.fill(1));
            time(&mut || {
                blocks = partition(&order, &splitters, from, std::mem::take(&mut blocks))?;
                Ok(())
            })?;
        }
        let chains = [vec![from]];
        let mut segments = kernel::index(&chains, 40, rules, &mut entries)?;
        time(&mut || {
            segments = kernel::index(&chains, 40, rules, &mut entries)?;
            Ok(())
        })?;
        time(&mut || {
            kernel::sort(&segments, rules, &mut entries, &mut scratch);
            Ok(())
        })?;
        let mut at = 0;
        time(&mut || {
            kernel::gather(&segments, FORMAT, &entries, |record| {
                to[at..at + record.len()].copy_from_slice(record);
                at += record.len();
                Ok(())
            })
        })?;
        for runs in [&eight, &many] {
            let runs: Vec<&[u8]> = runs.iter().map(|run| &run[..]).collect();
            let mut at = 0;
            time(&mut || {
                pieces::merge(FORMAT, &order, &runs, |record| {
                    to[at..at + record.len()].copy_from_slice(record);
                    at += record.len();
                    Ok(())
                })
            })?;
        }
        let whole = seconds[4..7].iter().filter_map(|steps| steps.last()).sum();
        seconds[NAMES.len() - 1].push(whole);
    }
    tell(&seconds, from.len(), lines)
}

/// One line a step, from the seconds of its repetitions over so many bytes.
fn tell(seconds: &[Vec<f64>], bytes: usize, lines: &mut Lines) -> Result<()> {
    let copy = median(seconds[0].iter().copied());
    for (name, seconds) in NAMES.iter().zip(seconds) {
        let median = median(seconds.iter().copied());
        let rate = |seconds: f64| bytes as f64 / seconds;
        let spread = seconds
            .iter()
            .map(|s| rate(*s))
            .fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
        let line = json!({
            "case": format!("sort/kernel/{name}"),
            "operations": RECORDS,
            "bytes": bytes,
            "seconds": rounded(median),
            "ops_per_second": rounded(RECORDS as f64 / median),
            "bytes_per_second": rounded(rate(median)),
            "limit": {"name": "copy", "value": rounded(rate(copy)), "unit": "bytes/s"},
            "ratio_to_limit": rounded(copy / median),
            "better": "higher",
            "repetitions": seconds.len(),
            "spread": {"min": rounded(spread.0), "max": rounded(spread.1)},
        });
        let text =
            || format!("{name}: {:.2} GB/s, {:.2} of copying", rate(median) / 1e9, copy / median);
        lines.line(text, || line.clone())?;
    }
    Ok(())
}

/// The last is index, sort and gather together.
const NAMES: [&str; 10] = [
    "copy",
    "partition into 64",
    "partition into 256",
    "partition into 1024",
    "index",
    "sort",
    "gather",
    "merge of 8",
    "merge of 32",
    "partition in memory",
];
