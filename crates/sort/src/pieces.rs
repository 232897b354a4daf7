//! The steps of a sort as functions of bytes in memory, for an engine that moves the bytes itself:
//! sample everywhere and choose boundaries once, partition each part of the input, sort what
//! arrived of a partition, merge what was sorted in parts. Bytes are whole records.

use crate::input;
use crate::kernel::{self, Rules};
use crate::order::Order;
use crate::record::Format;
use crate::run::{self, Run};
use crate::split::Splitters;
use holdfast_base::{Error, Result};

/// Places of one piece of bytes: it may be as long as memory is.
const SHIFT: u32 = 47;

/// About `wanted` records of `bytes`, spread over them. The samples of all parts together, and a
/// number of partitions, make [`Splitters::new`]; hundreds of records a partition are enough.
pub fn sample(format: Format, bytes: &[u8], wanted: usize) -> Vec<Vec<u8>> {
    let mut sample = Vec::new();
    input::take_sample(bytes, format, wanted, usize::MAX, &mut sample);
    sample
}

/// Adds the records of `bytes` to the partitions that they belong to, in their order.
pub fn partition(
    format: Format,
    order: &Order,
    splitters: &Splitters,
    bytes: &[u8],
    partitions: &mut [Vec<u8>],
) -> Result<()> {
    assert_eq!(partitions.len(), splitters.partitions(), "one buffer a partition");
    let mut at = 0;
    while let Some(n) = format.record_bytes(&bytes[at..]) {
        let record = &bytes[at..at + n];
        partitions[splitters.find(order, format.body(record))].extend_from_slice(record);
        at += n;
    }
    match at == bytes.len() {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "partition records: {} bytes at the end are no whole record",
            bytes.len() - at
        ))),
    }
}

/// The records of `parts`, sorted; equal ones in the order of the parts and in theirs.
pub fn sort(format: Format, order: &Order, parts: &[&[u8]]) -> Result<Vec<u8>> {
    let chains: Vec<Vec<&[u8]>> = parts.iter().map(|part| vec![*part]).collect();
    let shift = SHIFT - parts.len().next_power_of_two().ilog2();
    let rules = Rules { format, order, depth: Default::default() };
    let (mut entries, mut scratch) = (Vec::new(), Vec::new());
    let segments = kernel::index(&chains, shift, rules, &mut entries)?;
    kernel::sort(&segments, rules, &mut entries, &mut scratch);
    let mut sorted = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    kernel::gather(&segments, format, &entries, |record| {
        sorted.extend_from_slice(record);
        Ok(())
    })?;
    Ok(sorted)
}

/// Hands the records of sorted runs to `each`, in order; equal ones in the order of the runs.
pub fn merge(
    format: Format,
    order: &Order,
    runs: &[&[u8]],
    each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut runs: Vec<Run<'_>> = runs.iter().map(|run| Run::of_bytes(run, format)).collect();
    run::merge(&mut runs, order, format, each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, LineOptions};

    #[test]
    fn the_steps_together_are_a_sort() {
        let format = Format::Delimited(b'\n');
        let keys = vec![Key::parse("2,2n").unwrap()];
        let order = Order::lines(&LineOptions { keys, ..LineOptions::default() }).unwrap();
        let line = |i: u64| format!("{} {} x\n", i % 7, i.wrapping_mul(2_654_435_761) % 5000);
        let parts: Vec<String> =
            (0..3).map(|part| (0..4000).map(|i| line(part * 4000 + i)).collect()).collect();
        let samples: Vec<Vec<u8>> =
            parts.iter().flat_map(|part| sample(format, part.as_bytes(), 200)).collect();
        let splitters = Splitters::new(format, &order, &samples, 4);
        // What each of three machines would send to each of four or so.
        let sent = parts.iter().map(|part| {
            let mut out = vec![Vec::new(); splitters.partitions()];
            partition(format, &order, &splitters, part.as_bytes(), &mut out).unwrap();
            out
        });
        let sent: Vec<Vec<Vec<u8>>> = sent.collect();
        let mut output = Vec::new();
        for p in 0..splitters.partitions() {
            let arrived: Vec<&[u8]> = sent.iter().map(|out| &out[p][..]).collect();
            let whole = sort(format, &order, &arrived).unwrap();
            let runs: Vec<Vec<u8>> =
                arrived.iter().map(|part| sort(format, &order, &[part]).unwrap()).collect();
            let runs: Vec<&[u8]> = runs.iter().map(|run| &run[..]).collect();
            let mut merged = Vec::new();
            merge(format, &order, &runs, |record| {
                merged.extend_from_slice(record);
                Ok(())
            })
            .unwrap();
            assert!(whole == merged);
            output.extend(whole);
        }
        let all = parts.concat();
        let mut lines: Vec<&[u8]> = all.as_bytes().split_inclusive(|b| *b == b'\n').collect();
        lines.sort_by(|a, b| order.compare(format.body(a), format.body(b)));
        assert!(output == lines.concat());
        let mut out = vec![Vec::new(); splitters.partitions()];
        assert!(partition(format, &order, &splitters, b"cut", &mut out).is_err());
    }
}
