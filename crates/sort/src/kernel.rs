//! Sorting one partition in memory: a prefix and a place for each record, a scatter by the first
//! bits that differ, sorts that fit the cache, and a look deeper where prefixes tie. The records
//! are moved once, by whoever walks the result.

pub mod combine;
pub mod merge;
pub mod stream;

use crate::order::{Order, Tie};
use crate::record::Format;
use holdfast_base::{Error, Result};

/// A record's prefix, and in the low bits its place in [`Segments`].
pub type Entry = u128;
/// Bits of an entry that say where its record is.
pub const PLACE_BITS: u32 = 48;
const PLACE_MASK: u128 = (1 << PLACE_BITS) - 1;
/// Memory of a record while it is sorted: its entry, twice.
pub const ENTRY_BYTES: u64 = 2 * size_of::<Entry>() as u64;

/// Up to so many entries a comparison sort beats a scatter before it.
const SCATTER_FROM: usize = 2048;
const SCATTER_BITS: u32 = 11;
/// Ties of more records look deeper into the key; fewer are compared.
const DEEPER_FROM: usize = 8;
/// How far ahead records are fetched into the cache while others are moved.
const AHEAD: usize = 12;

/// Bytes of one partition, in pieces that records may straddle. Each piece has a range of places
/// of its own; a record that straddles gets a copy whose place is behind its piece.
pub struct Segments<'a> {
    parts: Vec<Part<'a>>,
    shift: u32,
}

struct Part<'a> {
    bytes: &'a [u8],
    /// The record that begins in this part and ends in a later one.
    straddling: Vec<u8>,
}

impl<'a> Segments<'a> {
    /// The bytes from a place on.
    #[inline]
    pub fn from_place(&self, entry: Entry) -> &[u8] {
        let place = entry & PLACE_MASK;
        let part = &self.parts[(place >> self.shift) as usize];
        let at = (place & ((1 << self.shift) - 1)) as usize;
        if at < part.bytes.len() { &part.bytes[at..] } else { &part.straddling }
    }

    #[inline]
    pub fn record(&self, format: Format, entry: Entry) -> &[u8] {
        let bytes = self.from_place(entry);
        // A place is of a whole record.
        &bytes[..format.record_bytes(bytes).unwrap_or(bytes.len())]
    }

    #[inline]
    fn body(&self, format: Format, entry: Entry) -> &[u8] {
        format.body(self.record(format, entry))
    }
}

/// What sorting needs to know of records.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub format: Format,
    pub order: &'a Order,
    /// Bytes in front of the keys that are equal in this partition.
    pub skip: usize,
}

/// Makes an entry for each record of `chains`, in their order; each chain is a sequence of parts
/// that records may straddle, none longer than `1 << shift` less one.
pub fn index<'a>(
    chains: &[Vec<&'a [u8]>],
    shift: u32,
    rules: Rules<'_>,
    entries: &mut Vec<Entry>,
) -> Result<Segments<'a>> {
    entries.clear();
    let mut segments = Segments { parts: Vec::new(), shift };
    for chain in chains {
        let mut straddling = Vec::new();
        let mut owner = 0;
        for bytes in chain {
            let number = segments.parts.len();
            segments.parts.push(Part { bytes, straddling: Vec::new() });
            let mut at = 0;
            if !straddling.is_empty() {
                at = extend(rules.format, &mut straddling, bytes);
                if rules.format.record_bytes(&straddling).is_none() {
                    continue;
                }
                let place = (owner as u128) << shift | segments.parts[owner].bytes.len() as u128;
                entries.push(entry(rules, &straddling, place));
                segments.parts[owner].straddling = std::mem::take(&mut straddling);
            }
            let rest = index_part(rules, bytes, at, (number as u128) << shift, entries);
            straddling.extend_from_slice(rest);
            owner = number;
        }
        if !straddling.is_empty() {
            let found = straddling.len();
            return Err(Error::corrupt(format!(
                "read a partition: {found} bytes at its end are no whole record: a temporary file was changed"
            )));
        }
    }
    Ok(segments)
}

#[inline]
fn entry(rules: Rules<'_>, record: &[u8], place: u128) -> Entry {
    rules.order.prefix(rules.format.body(record), rules.skip) << PLACE_BITS | place
}

/// Indexes the whole records of `bytes[at..]`; answers what is left.
fn index_part<'a>(
    rules: Rules<'_>,
    bytes: &'a [u8],
    mut at: usize,
    base: u128,
    entries: &mut Vec<Entry>,
) -> &'a [u8] {
    if let Format::Fixed(n) = rules.format {
        let records = bytes[at..].chunks_exact(n);
        let rest = records.remainder();
        entries.extend(records.enumerate().map(|(i, record)| {
            let place = base + (at + i * n) as u128;
            rules.order.prefix(record, rules.skip) << PLACE_BITS | place
        }));
        return rest;
    }
    while let Some(n) = rules.format.record_bytes(&bytes[at..]) {
        entries.push(entry(rules, &bytes[at..at + n], base + at as u128));
        at += n;
    }
    &bytes[at..]
}

/// Adds to `record` what it lacks from the start of `bytes`; answers how much that was.
pub fn extend(format: Format, record: &mut Vec<u8>, bytes: &[u8]) -> usize {
    let before = record.len();
    let lacking = match format {
        Format::Fixed(n) => n - before,
        Format::Delimited(delimiter) => {
            memchr::memchr(delimiter, bytes).map_or(bytes.len(), |i| i + 1)
        }
        Format::Prefixed => {
            let head = 4usize.saturating_sub(before).min(bytes.len());
            record.extend_from_slice(&bytes[..head]);
            let whole = match record.first_chunk::<4>() {
                Some(length) => 4 + u32::from_be_bytes(*length) as usize,
                None => return head,
            };
            let more = (whole - record.len()).min(bytes.len() - head);
            record.extend_from_slice(&bytes[head..head + more]);
            return head + more;
        }
    };
    let taken = lacking.min(bytes.len());
    record.extend_from_slice(&bytes[..taken]);
    taken
}

/// Sorts entries; equal records keep the order of their places. `scratch` is memory to work in.
pub fn sort(
    segments: &Segments<'_>,
    rules: Rules<'_>,
    entries: &mut Vec<Entry>,
    scratch: &mut Vec<Entry>,
) {
    sort_by_prefix(entries, scratch);
    if !rules.order.prefix_is_all() {
        settle_ties(segments, rules, entries);
    }
}

fn sort_by_prefix(entries: &mut Vec<Entry>, scratch: &mut Vec<Entry>) {
    if entries.len() < SCATTER_FROM {
        entries.sort_unstable();
        return;
    }
    let first = entries[0];
    let differing = entries.iter().fold(0, |bits, entry| bits | (entry ^ first)) >> PLACE_BITS;
    let top = 128 - differing.leading_zeros();
    let shift = PLACE_BITS + top.saturating_sub(SCATTER_BITS);
    let bucket = |entry: Entry| (entry >> shift) as usize & ((1 << SCATTER_BITS) - 1);
    let mut ends = [0usize; 1 << SCATTER_BITS];
    entries.iter().for_each(|entry| ends[bucket(*entry)] += 1);
    let mut total = 0;
    for end in &mut ends {
        total += std::mem::replace(end, total);
    }
    scratch.resize(entries.len(), 0);
    for entry in entries.iter() {
        let end = &mut ends[bucket(*entry)];
        scratch[*end] = *entry;
        *end += 1;
    }
    std::mem::swap(entries, scratch);
    let mut start = 0;
    for end in ends {
        entries[start..end].sort_unstable();
        start = end;
    }
}

/// Orders runs of equal prefixes by what is behind them.
fn settle_ties(segments: &Segments<'_>, rules: Rules<'_>, entries: &mut [Entry]) {
    let mut at = 0;
    while at < entries.len() {
        let prefix = entries[at] >> PLACE_BITS;
        let same = |entry: &&Entry| **entry >> PLACE_BITS == prefix;
        let count = 1 + entries[at + 1..].iter().take_while(same).count();
        let run = &mut entries[at..at + count];
        at += count;
        if count == 1 {
            continue;
        }
        let tie = rules.order.tie(prefix, rules.skip);
        match tie {
            Tie::Equal => {}
            Tie::Deeper if count >= DEEPER_FROM => {
                let deeper = Rules { skip: rules.skip + rules.order.depth_bytes(), ..rules };
                for entry in run.iter_mut() {
                    let body = segments.body(rules.format, *entry);
                    *entry =
                        deeper.order.prefix(body, deeper.skip) << PLACE_BITS | *entry & PLACE_MASK;
                }
                run.sort_unstable();
                settle_ties(segments, deeper, run);
            }
            Tie::Deeper | Tie::Compare | Tie::CompareRest => run.sort_unstable_by(|a, b| {
                let (x, y) = (segments.body(rules.format, *a), segments.body(rules.format, *b));
                let places = (*a & PLACE_MASK).cmp(&(*b & PLACE_MASK));
                let order = match tie {
                    Tie::CompareRest => rules.order.compare_rest(x, y),
                    _ => rules.order.compare(x, y),
                };
                order.then(places)
            }),
        }
    }
}

/// Keeps the first of equal records; hands the others to `dropped`.
pub fn unique(
    segments: &Segments<'_>,
    rules: Rules<'_>,
    entries: &mut Vec<Entry>,
    mut dropped: impl FnMut(&[u8]),
) {
    entries.dedup_by(|b, a| {
        let (x, y) = (segments.body(rules.format, *a), segments.body(rules.format, *b));
        let equal = rules.order.compare(x, y).is_eq();
        if equal {
            dropped(segments.record(rules.format, *b));
        }
        equal
    });
}

/// Hands every record to `each`, in the order of `entries`, fetching those ahead.
pub fn gather(
    segments: &Segments<'_>,
    format: Format,
    entries: &[Entry],
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let lines = match format {
        // A record starts in the middle of a line, on average.
        Format::Fixed(n) => (n + stream::LINE_BYTES / 2).div_ceil(stream::LINE_BYTES),
        Format::Delimited(_) | Format::Prefixed => 2,
    };
    for (i, entry) in entries.iter().enumerate() {
        if let Some(ahead) = entries.get(i + AHEAD) {
            stream::prefetch(segments.from_place(*ahead), lines);
        }
        each(segments.record(format, *entry))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
