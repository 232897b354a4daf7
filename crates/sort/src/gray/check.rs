//! valsort: whether records are in order, how many keys are equal, and the sum that says whether
//! they are the same records. Parts are summed up on their own and the summaries chained.

use super::generate::checksum;
use super::{BATCH_BYTES, BATCH_RECORDS, KEY_BYTES, RECORD_BYTES};
use crate::failure::Failure;
use crate::local;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Of a summary as valsort writes it: five 128-bit numbers, each as two 64-bit words, high first,
/// little-endian as on the machines it runs on; then the first and the last record.
pub const SUMMARY_BYTES: usize = 5 * 16 + 2 * RECORD_BYTES;

/// What is known of a run of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Index of the first record that is less than the one before it; 0 if there is none.
    pub first_unordered: u128,
    pub unordered: u128,
    pub records: u128,
    /// Records whose key is that of the record before.
    pub duplicates: u128,
    pub checksum: u128,
    pub first: [u8; RECORD_BYTES],
    pub last: [u8; RECORD_BYTES],
}

fn key(record: &[u8; RECORD_BYTES]) -> &[u8] {
    &record[..KEY_BYTES]
}

impl Summary {
    /// Of whole records, at least one.
    fn of(records: &[u8]) -> Option<Summary> {
        let first: [u8; RECORD_BYTES] = *records.first_chunk()?;
        let last: [u8; RECORD_BYTES] = *records.last_chunk()?;
        let count = records.len() / RECORD_BYTES;
        let mut summary = Summary {
            first_unordered: 0,
            unordered: 0,
            records: count as u128,
            duplicates: 0,
            checksum: checksum(records),
            first,
            last,
        };
        for i in 1..count {
            let at = i * RECORD_BYTES;
            let before = &records[at - RECORD_BYTES..][..KEY_BYTES];
            summary.step(before, &records[at..][..KEY_BYTES], i as u128);
        }
        Some(summary)
    }

    /// Counts what two neighbours are to each other; `index` is the second one's.
    fn step(&mut self, before: &[u8], after: &[u8], index: u128) {
        match before.cmp(after) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.duplicates += 1,
            std::cmp::Ordering::Greater => {
                if self.unordered == 0 {
                    self.first_unordered = index;
                }
                self.unordered += 1;
            }
        }
    }

    /// Adds what follows.
    fn chain(&mut self, next: &Summary) {
        let last = self.last;
        self.step(key(&last), key(&next.first), self.records);
        if self.unordered == 0 && next.unordered > 0 {
            self.first_unordered = self.records + next.first_unordered;
        }
        self.unordered += next.unordered;
        self.records += next.records;
        self.duplicates += next.duplicates;
        self.checksum += next.checksum;
        self.last = next.last;
    }

    pub fn to_bytes(&self) -> [u8; SUMMARY_BYTES] {
        let mut bytes = [0; SUMMARY_BYTES];
        let numbers =
            [self.first_unordered, self.unordered, self.records, self.duplicates, self.checksum];
        for (number, out) in numbers.iter().zip(bytes.chunks_exact_mut(16)) {
            out[..8].copy_from_slice(&((number >> 64) as u64).to_le_bytes());
            out[8..].copy_from_slice(&(*number as u64).to_le_bytes());
        }
        bytes[80..180].copy_from_slice(&self.first);
        bytes[180..].copy_from_slice(&self.last);
        bytes
    }

    pub fn from_bytes(bytes: &[u8; SUMMARY_BYTES]) -> Summary {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word) as u128
        };
        let number = |i: usize| word(16 * i) << 64 | word(16 * i + 8);
        let (mut first, mut last) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
        first.copy_from_slice(&bytes[80..180]);
        last.copy_from_slice(&bytes[180..]);
        Summary {
            first_unordered: number(0),
            unordered: number(1),
            records: number(2),
            duplicates: number(3),
            checksum: number(4),
            first,
            last,
        }
    }
}

/// Chains summaries, in order; none if there are none.
pub fn chain(summaries: impl IntoIterator<Item = Summary>) -> Option<Summary> {
    let mut summaries = summaries.into_iter();
    let mut all = summaries.next()?;
    summaries.for_each(|next| all.chain(&next));
    Some(all)
}

/// The summaries in the bytes of a summary file, which may be several put together.
pub fn parse_summaries(bytes: &[u8]) -> Result<Vec<Summary>> {
    let (summaries, rest) = bytes.as_chunks::<SUMMARY_BYTES>();
    if !rest.is_empty() || summaries.is_empty() {
        return Err(Error::invalid(format!(
            "{} bytes are no whole number of summaries of {SUMMARY_BYTES} bytes: give what `check --summary-out` wrote",
            bytes.len()
        )));
    }
    Ok(summaries.iter().map(Summary::from_bytes).collect())
}

fn odd_bytes(rest: u64) -> Error {
    Error::invalid(format!(
        "its last record has {rest} bytes instead of {RECORD_BYTES}: it is no file of such records, or was cut"
    ))
}

/// Checks the file `path`; none if it is empty.
pub fn file(disk: &dyn Disk, path: &Path, threads: usize) -> Result<Option<Summary>> {
    let failed = |e: Error| e.context(format_args!("check `{}`", path.display()));
    let open = || -> Result<_> {
        let file = disk.open_to_read(path, Access::Direct)?;
        let bytes = file.len()?;
        match bytes % RECORD_BYTES as u64 {
            0 => Ok((file, bytes)),
            rest => Err(odd_bytes(rest)),
        }
    };
    let (file, bytes) = open().map_err(failed)?;
    let records = bytes / RECORD_BYTES as u64;
    let next = AtomicU64::new(0);
    let parts = Mutex::new(BTreeMap::new());
    let failure = Failure::default();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            local::scoped(scope, "sort-check", || {
                failure.note(check_batches(&*file, records, &next, &parts, &failure));
            });
        }
    });
    failure.result().map_err(failed)?;
    Ok(chain(parts.into_inner().expect("no holder of this lock panics").into_values()))
}

fn check_batches(
    file: &dyn File,
    records: u64,
    next: &AtomicU64,
    parts: &Mutex<BTreeMap<u64, Summary>>,
    failure: &Failure,
) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(BATCH_BYTES);
    loop {
        let first = next.fetch_add(1, Ordering::Relaxed) * BATCH_RECORDS;
        if first >= records || failure.is_set() {
            return Ok(());
        }
        let bytes = BATCH_RECORDS.min(records - first) as usize * RECORD_BYTES;
        if file.read_at(&mut buf, first * RECORD_BYTES as u64)? < bytes {
            return Err(Error::retry("it became shorter meanwhile: nobody may write to it"));
        }
        if let Some(summary) = Summary::of(&buf[..bytes]) {
            parts.held().insert(first, summary);
        }
    }
}

/// Checks a stream; none if it is empty.
pub fn stream(input: &mut dyn Read) -> Result<Option<Summary>> {
    let mut buf = vec![0; BATCH_BYTES];
    let mut all: Option<Summary> = None;
    loop {
        let mut got = 0;
        while got < buf.len() {
            match input.read(&mut buf[got..])? {
                0 => break,
                n => got += n,
            }
        }
        if !got.is_multiple_of(RECORD_BYTES) {
            return Err(odd_bytes((got % RECORD_BYTES) as u64).context("check the input"));
        }
        match (Summary::of(&buf[..got]), &mut all) {
            (None, _) => return Ok(all),
            (Some(next), Some(all)) => all.chain(&next),
            (Some(first), None) => all = Some(first),
        }
    }
}
