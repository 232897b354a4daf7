use super::combine::{Blocks, Combiner};
use super::merge::LoserTree;
use super::*;
use crate::key::{Key, LineOptions};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::{Rng, SeededRng};
use std::cmp::Ordering;

/// Records of every format, with few and with many equal ones.
fn records(rng: &SeededRng, format: Format, count: usize, values: u64) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let value = rng.next_u64() % values;
            let body = format!("{:x} {:x}", value, value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            match format {
                Format::Fixed(n) => body.bytes().chain(0..).take(n).collect(),
                Format::Delimited(delimiter) => {
                    body.bytes().chain(std::iter::once(delimiter)).collect()
                }
                Format::Prefixed => [&(body.len() as u32).to_be_bytes(), body.as_bytes()].concat(),
            }
        })
        .collect()
}

fn orders(format: Format) -> Vec<Order> {
    let lines = |letters: &str, keys: &[&str], stable| {
        Order::lines(&LineOptions {
            letters: letters.into(),
            keys: keys.iter().map(|key| Key::parse(key).unwrap()).collect(),
            stable,
            separator: None,
        })
        .unwrap()
    };
    vec![
        Order::range(format, 0, Some(10), false).unwrap(),
        Order::range(format, 3, Some(15), true).unwrap(),
        Order::range(format, 0, None, false).unwrap(),
        lines("r", &[], false),
        lines("f", &[], true),
        lines("", &["2,2", "1n"], false),
        lines("n", &["1,1"], true),
        lines("", &["2.3,2.5r"], true),
    ]
}

const FORMATS: [Format; 3] = [Format::Fixed(20), Format::Delimited(b'\n'), Format::Prefixed];

fn chunks(bytes: &[u8], size: usize) -> Vec<&[u8]> {
    bytes.chunks(size).collect()
}

#[test]
fn partitions_are_sorted_as_a_stable_sort_would() {
    let rng = SeededRng::new(7);
    for format in FORMATS {
        for order in &orders(format) {
            for (count, values) in [(0, 1), (1, 1), (100, 3), (5000, 10), (5000, 1 << 40)] {
                let mut records = records(&rng, format, count, values);
                let bytes = records.concat();
                // Pieces that every record straddles, and two chains.
                let half = records[..count / 2].concat().len();
                for size in [5, 1000, 1 << 20] {
                    let chains = [chunks(&bytes[..half], size), chunks(&bytes[half..], size)];
                    let rules = Rules { format, order, depth: Depth::default() };
                    let (mut entries, mut scratch) = (Vec::new(), Vec::new());
                    let segments = index(&chains, 21, rules, &mut entries).unwrap();
                    sort(&segments, rules, &mut entries, &mut scratch);
                    let mut sorted = Vec::new();
                    gather(&segments, format, &entries, |record| {
                        sorted.extend_from_slice(record);
                        Ok(())
                    })
                    .unwrap();
                    let mut naive = records.clone();
                    naive.sort_by(|a, b| order.compare(format.body(a), format.body(b)));
                    assert!(sorted == naive.concat(), "{format:?} {order:?} {count} {size}");
                }
                records.clear();
            }
        }
    }
}

#[test]
fn the_first_of_equal_records_is_kept() {
    let order = Order::range(Format::Fixed(2), 0, Some(1), false).unwrap();
    let rules = Rules { format: Format::Fixed(2), order: &order, depth: Depth::default() };
    let (mut entries, mut scratch) = (Vec::new(), Vec::new());
    let segments = index(&[vec![b"b1a1b2a2b3"]], 20, rules, &mut entries).unwrap();
    sort(&segments, rules, &mut entries, &mut scratch);
    let mut dropped = Vec::new();
    unique(&segments, rules, &mut entries, |record| dropped.extend_from_slice(record));
    let kept: Vec<u8> =
        entries.iter().flat_map(|e| segments.record(rules.format, *e).to_vec()).collect();
    assert_eq!((&kept[..], &dropped[..]), (&b"a1b1"[..], &b"a2b2b3"[..]));
}

#[test]
fn bytes_that_are_no_record_are_found() {
    let order = Order::range(Format::Fixed(4), 0, None, false).unwrap();
    let rules = Rules { format: Format::Fixed(4), order: &order, depth: Depth::default() };
    let e = index(&[vec![b"abcdef"]], 20, rules, &mut Vec::new()).err().unwrap();
    assert!(e.message.contains("2 bytes at its end"), "{e}");
}

/// Collects what comes out of the blocks.
struct Collected(Vec<Vec<u8>>);

impl Blocks for Collected {
    fn replace(&mut self, p: usize, block: AlignedBuf, filled: usize) -> Result<AlignedBuf> {
        assert_eq!(filled % 4096, 0);
        self.0[p].extend_from_slice(&block[..filled]);
        Ok(block)
    }
}

#[test]
fn combined_writes_keep_every_byte_in_order() {
    let rng = SeededRng::new(3);
    for (partitions, longest) in [(1, 30_000), (5, 100), (64, 3000)] {
        let blocks = (0..partitions).map(|_| AlignedBuf::zeroed(8192)).collect();
        let mut combiner = Combiner::new(blocks);
        let mut out = Collected(vec![Vec::new(); partitions]);
        let mut expected = out.0.clone();
        for i in 0..3000u64 {
            let p = (rng.next_u64() % partitions as u64) as usize;
            let record = vec![i as u8; (rng.next_u64() % longest) as usize];
            expected[p].extend_from_slice(&record);
            combiner.add(p, &record, &mut out).unwrap();
        }
        let last = combiner.finish(&mut out).unwrap();
        for (p, (block, filled)) in last.iter().enumerate() {
            out.0[p].extend_from_slice(&block[..*filled]);
        }
        assert!(out.0 == expected, "{partitions} partitions");
    }
}

#[test]
fn merging_is_stable_and_complete() {
    let rng = SeededRng::new(11);
    let order = Order::range(Format::Delimited(b'\n'), 0, Some(3), false).unwrap();
    for sources in 1..20usize {
        let mut runs: Vec<Vec<String>> = (0..sources)
            .map(|source| {
                let count = rng.next_u64() % 50;
                (0..count).map(|i| format!("{:03} {source} {i:02}", rng.next_u64() % 9)).collect()
            })
            .collect();
        runs.iter_mut().for_each(|run: &mut Vec<String>| run.sort_by_key(|s| s[..3].to_owned()));
        let mut naive: Vec<String> = runs.concat();
        naive.sort_by_key(|s| s[..3].to_owned());
        let mut runs: Vec<_> = runs.into_iter().map(|run| run.into_iter().peekable()).collect();
        let prefix = |line: &String| order.prefix(line.as_bytes(), Depth::default());
        let heads: Vec<_> = runs.iter_mut().map(|run| run.peek().map(prefix)).collect();
        // Keys are shorter than prefixes.
        let mut tree = LoserTree::new(heads.into_iter(), |_, _| Ordering::Equal);
        let mut merged = Vec::new();
        while let Some(winner) = tree.winner() {
            merged.extend(runs[winner].next());
            tree.advance(runs[winner].peek().map(prefix), |_, _| Ordering::Equal);
        }
        assert_eq!(merged, naive);
    }
}
