//! What is sorted: made from a seed, the same for the same one.

use holdfast_base::{Error, Result};
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_sort::gray::generate::{self, Request, Shape};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Makes a file of about `bytes`.
pub fn make(kind: &str, path: &Path, bytes: u64, seed: u64) -> Result<()> {
    match kind {
        "uniform" => records(path, bytes, seed, false),
        "skew" => records(path, bytes, seed, true),
        "half" => half(path, bytes, seed),
        "lines" => lines(path, bytes, seed),
        other => Err(Error::invalid(format!("`-t {other}`: use uniform, skew, half or lines"))),
    }
}

fn records(path: &Path, bytes: u64, seed: u64, skew: bool) -> Result<()> {
    let request = Request {
        start: seed as u128,
        records: bytes / 100,
        shape: Shape { ascii: true, skew },
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    generate::file(&RealDisk, path, &request).map(drop)
}

/// Records of which every second has the same key.
fn half(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut records = generate::Records::from(seed as u128, Shape { ascii: true, skew: false });
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let mut record = [0; 100];
    for i in 0..bytes / 100 {
        records.write(&mut record);
        if i % 2 == 0 {
            record[..10].copy_from_slice(b"Oooooooooo");
        }
        out.write_all(&record)?;
    }
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    Ok(())
}

/// Lines of five columns: a number, a time, a word of a few thousand, hexadecimal, more words.
fn lines(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let rng = SeededRng::new(seed);
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let (mut written, mut line) = (0, Vec::new());
    let word = |line: &mut Vec<u8>| {
        // The smaller of two: short words and small numbers are more frequent.
        let n = (rng.next_u64() % 40_000).min(rng.next_u64() % 40_000);
        let mut n = n.wrapping_mul(0x9e37_79b9) | 1;
        for _ in 0..3 + n % 9 {
            line.push(b'a' + (n % 26) as u8);
            n = n.rotate_right(7);
        }
    };
    while written < bytes {
        line.clear();
        let n = rng.next_u64();
        write!(line, "{} 2026-11-{:02}T{:02}:{:02} ", n % 1_000_000, n % 28 + 1, n % 24, n % 60)?;
        word(&mut line);
        write!(line, " {:x} ", rng.next_u64() >> (n % 32))?;
        for _ in 0..n % 8 {
            word(&mut line);
            line.push(b' ');
        }
        line.push(b'\n');
        out.write_all(&line)?;
        written += line.len() as u64;
    }
    out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    Ok(())
}
