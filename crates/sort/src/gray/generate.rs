//! gensort's records: pure functions of their number, and the file of many made by all cores.
//! The generator is X' = aX + c mod 2^128; record r takes the numbers r+1 to r+10 after X = 0, so
//! any record can be made without those before it.

use super::{BATCH_BYTES, BATCH_RECORDS, KEY_BYTES, RECORD_BYTES};
use crate::failure::Failure;
use crate::local;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{Access, Disk, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const A: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const C: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;
/// What the nine 80-bit words behind a binary key are mixed with.
const MIX: [u128; 9] = [
    0xF0E8_E4E2_E1D8_D4D2_D1CC,
    0xCAC9_C6C5_C3B8_B4B2_B1AC,
    0xAAA9_A6A5_A39C_9A99_9695,
    0x938E_8D8B_8778_7472_716C,
    0x6A69_6665_635C_5A59_5655,
    0x534E_4D4B_473C_3A39_3635,
    0x332E_2D2B_271E_1D1B_170F,
    0xC8C4_C2C1_9894_9291_8CE0,
    0x170F_332E_2D2B_271E_1D1B,
];

/// What records look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Printable characters in place of bytes.
    pub ascii: bool,
    /// Many equal keys.
    pub skew: bool,
}

/// The generator's number `steps` after `x`, by squaring.
fn skip(x: u128, mut steps: u128) -> u128 {
    let (mut a, mut c, mut x) = (A, C, x);
    while steps > 0 {
        if steps & 1 == 1 {
            x = a.wrapping_mul(x).wrapping_add(c);
        }
        c = c.wrapping_mul(a.wrapping_add(1));
        a = a.wrapping_mul(a);
        steps >>= 1;
    }
    x
}

fn binary_key(x: u128) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&x.to_be_bytes()[..KEY_BYTES]);
    key
}

fn ascii_key(x: u128) -> [u8; KEY_BYTES] {
    let (mut high, mut low) = ((x >> 64) as u64, x as u64);
    let digit = |from: &mut u64| {
        let digit = b' ' + (*from % 95) as u8;
        *from /= 95;
        digit
    };
    std::array::from_fn(|i| digit(if i < 8 { &mut high } else { &mut low }))
}

/// The key bytes that skewed records share: those of the record whose number is the bit length
/// of this one's.
fn skew_bytes(number: u128, ascii: bool) -> [u8; 6] {
    let bits = 128 - number.leading_zeros();
    let x = skip(0, bits as u128 + 1);
    let key = if ascii { ascii_key(x) } else { binary_key(x) };
    [key[0], key[1], key[2], key[3], key[4], key[5]]
}

fn skewed_key(mut key: [u8; KEY_BYTES], x: u128, skew: &[u8; 6], ascii: bool) -> [u8; KEY_BYTES] {
    if ascii {
        let bytes = ((x >> 32) & 7) as usize;
        let bytes = if bytes == 7 { 0 } else { bytes };
        key[..bytes].copy_from_slice(&skew[..bytes]);
        return key;
    }
    let bits = ((x >> 32) & 63) as usize;
    let bits = if bits > 48 { 0 } else { bits };
    for (i, byte) in skew.iter().enumerate() {
        let kept = (bits.saturating_sub(i * 8)).min(8) as u32;
        let mask = !(0xffu32 >> kept) as u8;
        key[i] = byte & mask | key[i] & !mask;
    }
    key
}

/// Makes consecutive records.
pub struct Records {
    shape: Shape,
    /// Of the next record.
    number: u128,
    /// The generator before the next record's first number.
    x: u128,
    /// Of the bit length below.
    skew: [u8; 6],
    skew_bits: u32,
}

impl Records {
    pub fn from(number: u128, shape: Shape) -> Records {
        let x = skip(0, number);
        let skew = skew_bytes(number, shape.ascii);
        Records { shape, number, x, skew, skew_bits: 128 - number.leading_zeros() }
    }

    /// Writes the next record.
    pub fn write(&mut self, record: &mut [u8; RECORD_BYTES]) {
        let bits = 128 - self.number.leading_zeros();
        if bits != self.skew_bits {
            (self.skew, self.skew_bits) = (skew_bytes(self.number, self.shape.ascii), bits);
        }
        let x = A.wrapping_mul(self.x).wrapping_add(C);
        let mut key = if self.shape.ascii { ascii_key(x) } else { binary_key(x) };
        if self.shape.skew {
            key = skewed_key(key, x, &self.skew, self.shape.ascii);
        }
        record[..KEY_BYTES].copy_from_slice(&key);
        if self.shape.ascii {
            self.write_ascii(x, record);
        } else {
            let mut word = x;
            for (mix, out) in MIX.iter().zip(record[KEY_BYTES..].chunks_exact_mut(KEY_BYTES)) {
                word = A.wrapping_mul(word).wrapping_add(C);
                out.copy_from_slice(&binary_key(word ^ mix << 48));
            }
        }
        self.x = x;
        self.number += 1;
    }

    fn write_ascii(&self, x: u128, record: &mut [u8; RECORD_BYTES]) {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        record[10..12].fill(b' ');
        for (i, out) in record[12..44].iter_mut().enumerate() {
            *out = HEX[(self.number >> (124 - 4 * i)) as usize & 15];
        }
        record[44..46].fill(b' ');
        for (i, out) in record[46..98].chunks_exact_mut(4).enumerate() {
            out.fill(HEX[(x >> (48 - 4 * i)) as usize & 15]);
        }
        record[98..].copy_from_slice(b"\r\n");
    }

    fn fill(&mut self, out: &mut [u8]) {
        for record in out.chunks_exact_mut(RECORD_BYTES) {
            self.write(record.try_into().expect("a chunk is a record"));
        }
    }
}

/// The sum of the records' CRC-32, valsort's checksum.
pub fn checksum(records: &[u8]) -> u128 {
    records.chunks_exact(RECORD_BYTES).map(|record| crc32fast::hash(record) as u128).sum()
}

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    pub records: u64,
    pub bytes: u64,
    pub checksum: u128,
}

/// Which records a file gets.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub start: u128,
    pub records: u64,
    pub shape: Shape,
    pub threads: usize,
}

/// Makes the file `path`, which must not exist, with `threads` threads; on an error it is removed.
pub fn file(disk: &dyn Disk, path: &Path, request: &Request) -> Result<Made> {
    let failed = |e: Error| e.context(format_args!("make `{}`", path.display()));
    let bytes = request
        .records
        .checked_mul(RECORD_BYTES as u64)
        .ok_or_else(|| failed(Error::invalid("more records than a file can hold")))?;
    let file = disk.create(path, Access::Direct).map_err(|e| failed(e.into()))?;
    let made = fill_file(&*file, bytes, request)
        .and_then(|made| file.sync("sort.generated").map_err(Error::from).map(|()| made));
    made.map_err(|e| {
        // What is half made helps nobody; that it cannot be removed is not the first error.
        let _ = disk.remove(path);
        failed(e)
    })
}

fn fill_file(file: &dyn File, bytes: u64, request: &Request) -> Result<Made> {
    file.allocate(bytes)?;
    let next = AtomicU64::new(0);
    let sum = Mutex::new(0u128);
    let failure = Failure::default();
    thread::scope(|scope| {
        for _ in 0..request.threads.max(1) {
            local::scoped(scope, "sort-generate", || {
                failure.note(fill_batches(file, request, &next, &sum, &failure));
            });
        }
    });
    failure.result()?;
    file.set_len(bytes)?;
    let checksum = *sum.held();
    Ok(Made { records: request.records, bytes, checksum })
}

fn fill_batches(
    file: &dyn File,
    request: &Request,
    next: &AtomicU64,
    sum: &Mutex<u128>,
    failure: &Failure,
) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(BATCH_BYTES);
    loop {
        let first = next.fetch_add(1, Ordering::Relaxed) * BATCH_RECORDS;
        if first >= request.records || failure.is_set() {
            return Ok(());
        }
        let count = BATCH_RECORDS.min(request.records - first) as usize;
        let bytes = count * RECORD_BYTES;
        Records::from(request.start + first as u128, request.shape).fill(&mut buf[..bytes]);
        *sum.held() += checksum(&buf[..bytes]);
        let whole = bytes.next_multiple_of(holdfast_base::limits::SECTOR_BYTES);
        file.write_at(&buf[..whole], first * RECORD_BYTES as u64)?;
    }
}

/// Writes the records one after another.
pub fn stream(out: &mut dyn Write, request: &Request) -> Result<Made> {
    let mut records = Records::from(request.start, request.shape);
    let mut buf = vec![0; BATCH_BYTES];
    let mut made = Made::default();
    while made.records < request.records {
        let count = BATCH_RECORDS.min(request.records - made.records);
        let bytes = &mut buf[..count as usize * RECORD_BYTES];
        records.fill(bytes);
        made.checksum += checksum(bytes);
        out.write_all(bytes)?;
        made.records += count;
        made.bytes += bytes.len() as u64;
    }
    out.flush()?;
    Ok(made)
}

#[cfg(test)]
mod tests;
