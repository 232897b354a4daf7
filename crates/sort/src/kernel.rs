//! Sorting one partition in memory: a prefix and a place for each record, a scatter by the first
//! bits that differ, sorts that fit the cache, and a look deeper where prefixes tie. The records
//! are moved once, by whoever walks the result.

pub mod combine;
pub mod merge;
pub mod scan;
pub mod stream;

use crate::order::{Depth, Order, Tie};
use crate::record::Format;
use holdfast_base::{Error, Result};
use holdfast_env::trial::Knob;
use holdfast_env::{planted, sometimes};

/// A record's prefix, and in the low bits its place in [`Segments`].
pub type Entry = u128;
/// Bits of an entry that say where its record is.
pub const PLACE_BITS: u32 = 48;
const PLACE_MASK: u128 = (1 << PLACE_BITS) - 1;
/// Memory of a record while it is sorted: its entry, twice.
pub const ENTRY_BYTES: u64 = 2 * size_of::<Entry>() as u64;

/// Up to so many entries a comparison sort beats a scatter.
static SCATTER_FROM: Knob = Knob::new("sort.scatter-from", 24, &[2, 3]);
/// A scatter of many makes buckets of some `1 << BUCKET_BITS` entries, which a scatter in the cache
/// divides into more buckets than they have entries, so that hardly any two meet.
const SCATTER_BITS_MAX: u32 = 11;
const BUCKET_BITS: u32 = 8;
const SPARSE_BITS: u32 = 1;
/// Where no bucket has more entries, all are put right by one insertion sort.
static NEARLY_SORTED: Knob = Knob::new("sort.nearly-sorted", 32, &[1, 2]);
/// Ties of more records look deeper into the key; fewer are compared.
static DEEPER_FROM: Knob = Knob::new("sort.deeper-from", 4, &[2, 40]);
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
    /// How far records are equal in this partition.
    pub depth: Depth,
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
                    sometimes!("a record straddles three blocks");
                    continue;
                }
                let owner = if planted!("sort.straddling-changes-owner") { number } else { owner };
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
    rules.order.prefix(rules.format.body(record), rules.depth) << PLACE_BITS | place
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
            rules.order.prefix(record, rules.depth) << PLACE_BITS | place
        }));
        return rest;
    }
    if let Format::Delimited(delimiter) = rules.format {
        let rest = &bytes[at..];
        let base = base + at as u128;
        let end = scan::records(rest, delimiter, |start, end| {
            entries.push(entry(rules, &rest[start..end], base + start as u128));
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(end) = end;
        return &rest[end..];
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

/// Sorts entries that are in the order of their places; equal records keep it. `scratch` is
/// memory to work in.
pub fn sort(
    segments: &Segments<'_>,
    rules: Rules<'_>,
    entries: &mut [Entry],
    scratch: &mut Vec<Entry>,
) {
    if scratch.len() < entries.len() {
        scratch.resize(entries.len(), 0);
    }
    let scratch = &mut scratch[..entries.len()];
    scatter(entries, scratch, false);
    if !rules.order.prefix_is_all() {
        settle_ties(segments, rules, entries, scratch);
    }
}

/// Sorts `entries` by prefix, keeping the order of equal ones, into themselves or into `other`.
/// Buckets are of equal width between the least prefix and the largest, so that keys which use a
/// few of all values, as text does, spread over them; a bucket that holds many is divided again.
fn scatter(entries: &mut [Entry], other: &mut [Entry], into_other: bool) {
    let count = entries.len();
    if count < SCATTER_FROM.size() {
        insertion_sort(entries);
        if into_other {
            other.copy_from_slice(entries);
        }
        return;
    }
    SCATTER_FROM.cross();
    let (least, most) =
        entries.iter().fold((Entry::MAX, 0), |(least, most), e| (least.min(*e), most.max(*e)));
    let least = least >> PLACE_BITS << PLACE_BITS;
    let span = Entry::BITS - ((most - least) >> PLACE_BITS).leading_zeros();
    if span == 0 {
        if into_other {
            other.copy_from_slice(entries);
        }
        return;
    }
    let wanted = match count.ilog2() {
        few if few + SPARSE_BITS <= SCATTER_BITS_MAX => few + SPARSE_BITS,
        many => (many - BUCKET_BITS).min(SCATTER_BITS_MAX),
    };
    let bits = wanted.min(span);
    let shift = PLACE_BITS + span - bits;
    let bucket = |entry: Entry| ((entry - least) >> shift) as usize & ((1 << SCATTER_BITS_MAX) - 1);
    let mut ends = [0u32; 1 << SCATTER_BITS_MAX];
    let ends = &mut ends[..1 << bits];
    entries.iter().for_each(|entry| ends[bucket(*entry)] += 1);
    let (mut total, mut largest) = (0, 0);
    for end in ends.iter_mut() {
        largest = largest.max(*end);
        total += std::mem::replace(end, total);
    }
    for entry in entries.iter() {
        let end = &mut ends[bucket(*entry)];
        other[*end as usize] = *entry;
        *end += 1;
    }
    if u64::from(largest) <= NEARLY_SORTED.get() {
        insertion_sort(other);
        if !into_other {
            entries.copy_from_slice(other);
        }
        return;
    }
    NEARLY_SORTED.cross();
    let mut start = 0;
    for end in ends {
        let range = start..*end as usize;
        start = range.end;
        // What it is divided from has room for what it becomes.
        scatter(&mut other[range.clone()], &mut entries[range], !into_other);
    }
}

/// For entries that are nearly where they belong. Places make them different, and rise.
fn insertion_sort(entries: &mut [Entry]) {
    let Some(mut before) = entries.first().copied() else { return };
    for i in 1..entries.len() {
        let entry = entries[i];
        if entry >= before {
            before = entry;
            continue;
        }
        let mut to = i;
        while to > 0 && entries[to - 1] > entry {
            entries[to] = entries[to - 1];
            to -= 1;
        }
        entries[to] = entry;
    }
}

/// Orders runs of equal prefixes by what is behind them.
fn settle_ties(
    segments: &Segments<'_>,
    rules: Rules<'_>,
    entries: &mut [Entry],
    scratch: &mut [Entry],
) {
    let mut at = 0;
    while at < entries.len() {
        let prefix = entries[at] >> PLACE_BITS;
        let same = |entry: &&Entry| **entry >> PLACE_BITS == prefix;
        let count = 1 + entries[at + 1..].iter().take_while(same).count();
        let range = at..at + count;
        at += count;
        if count == 1 {
            continue;
        }
        let run = &mut entries[range.clone()];
        match rules.order.tie(prefix, rules.depth) {
            Tie::Equal => {}
            Tie::Deeper(depth) if count >= DEEPER_FROM.size() => {
                DEEPER_FROM.cross();
                let deeper = Rules { depth, ..rules };
                let deeper = if depth.skip > 0 { share(segments, deeper, run) } else { deeper };
                each_ahead(segments, run, |entry| {
                    let body = segments.body(rules.format, *entry);
                    let prefix = deeper.order.prefix(body, deeper.depth);
                    *entry = prefix << PLACE_BITS | *entry & PLACE_MASK;
                });
                let scratch = &mut scratch[range];
                scatter(run, scratch, false);
                settle_ties(segments, deeper, run, scratch);
            }
            Tie::Deeper(_) | Tie::Compare => run.sort_unstable_by(|a, b| {
                let (x, y) = (segments.body(rules.format, *a), segments.body(rules.format, *b));
                let places = (*a & PLACE_MASK).cmp(&(*b & PLACE_MASK));
                rules.order.compare_from(rules.depth.key, x, y).then(places)
            }),
        }
    }
}

/// Adds what all of `run` share beyond what is known: runs that go on alike for long are read
/// twice here, and not once for every few bytes.
fn share<'a>(segments: &Segments<'_>, rules: Rules<'a>, run: &mut [Entry]) -> Rules<'a> {
    let mut depth = rules.depth;
    let first = segments.body(rules.format, run[0]);
    let mut least = usize::MAX;
    each_ahead(segments, run, |entry| {
        // It shares no more than what others do; once that is little there is nothing to look for.
        if least > depth.skip {
            let body = segments.body(rules.format, *entry);
            least = least.min(rules.order.shared_bytes(depth.key, first, body));
        }
    });
    depth.skip = depth.skip.max(least) + usize::from(planted!("sort.skips-a-byte-too-many"));
    Rules { depth, ..rules }
}

/// Calls `each` with every entry, fetching the records of those ahead.
fn each_ahead(segments: &Segments<'_>, run: &mut [Entry], mut each: impl FnMut(&mut Entry)) {
    for i in 0..run.len() {
        if let Some(ahead) = run.get(i + AHEAD) {
            stream::prefetch(segments.from_place(*ahead), 2);
        }
        each(&mut run[i]);
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
            if planted!("sort.unique-keeps-the-last") {
                std::mem::swap(a, b);
            }
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
