//! Vectors made by gensort 1.5.

use super::*;
use crate::gray::check;

fn make(start: u128, count: usize, shape: Shape) -> Vec<u8> {
    let mut out = vec![0; count * RECORD_BYTES];
    Records::from(start, shape).fill(&mut out);
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const BINARY: Shape = Shape { ascii: false, skew: false };
const ASCII: Shape = Shape { ascii: true, skew: false };
const SKEW: Shape = Shape { ascii: false, skew: true };
const ASCII_SKEW: Shape = Shape { ascii: true, skew: true };

#[test]
fn records_are_those_of_gensort() {
    let binary = make(0, 3, BINARY);
    assert_eq!(hex(&binary[..25]), "4a696d4772617952495065080060836b392cd58b8f5e559618");
    assert_eq!(hex(&binary[100..110]), "95e0e48262b3edfe0447");
    assert_eq!(hex(&binary[200..210]), "45979353dbed5329365c");
    let ascii = make(0, 3, ASCII);
    let first = b"AsfAGHM5om  00000000000000000000000000000000  \
        0000222200002222000022220000222200002222000000001111\r\n";
    assert_eq!(&ascii[..100], first);
    assert_eq!((&ascii[100..110], &ascii[200..210]), (&b"~sHd0jDv6X"[..], &b"uI^EYm8s=|"[..]));
    for (start, shape, key) in [
        (1_000_000_000_000, BINARY, "2175d298a8b50fa9b6a5"),
        (1_000_000_000_000, ASCII, "34466c4d582a6b483021"),
        (1_000_000_000_000, SKEW, "1e58396c59b50fa9b6a5"),
        (1 << 64, BINARY, "7cc5d0c2ed18328d4950"),
        (1 << 64, SKEW, "5e46f543ed18328d4950"),
        (1 << 64, ASCII, "3943353f4a4a2b356f6d"),
    ] {
        assert_eq!(hex(&make(start, 1, shape)[..10]), key, "{start} {shape:?}");
    }
}

#[test]
fn checksums_are_those_of_gensort() {
    for (count, sums) in [
        (1, [0x9ea593a0, 0x3fcaea0a, 0x9ea593a0, 0x3fcaea0a]),
        (10, [0x55fea8a1a, 0x469302dca, 0x5d95519b3, 0x46073c01c]),
        (1000, [0x1ea6370b955, 0x1f5dfb3631a, 0x1e96301166b, 0x1eef17d1cac]),
        (100_000, [0xc3068574c6ff, 0xc34e19c81885, 0xc3480c053dda, 0xc30e6c1fe3e5]),
    ] {
        for (shape, sum) in [BINARY, ASCII, SKEW, ASCII_SKEW].into_iter().zip(sums) {
            assert_eq!(checksum(&make(0, count, shape)), sum, "{count} {shape:?}");
        }
    }
}

#[test]
fn any_part_is_the_part_of_the_whole() {
    for shape in [BINARY, ASCII, SKEW, ASCII_SKEW] {
        let whole = make(0, 300, shape);
        for start in [1, 127, 128, 255, 299] {
            assert_eq!(make(start, 300 - start as usize, shape), whole[start as usize * 100..]);
        }
    }
}

#[test]
fn a_stream_is_the_records_and_its_check_the_same_sum() {
    let request = Request { start: 5, records: 50_000, shape: SKEW, threads: 1 };
    let mut bytes = Vec::new();
    let made = stream(&mut bytes, &request).unwrap();
    assert_eq!(bytes, make(5, 50_000, SKEW));
    let summary = check::stream(&mut &bytes[..]).unwrap().unwrap();
    assert_eq!((summary.records, summary.checksum), (50_000, made.checksum));
    assert!(summary.unordered > 20_000 && summary.first_unordered > 0);
    // In parts, through their written form, chained.
    let parts = bytes.chunks(1700).map(|part| check::stream(&mut &part[..]).unwrap().unwrap());
    let written: Vec<u8> = parts.flat_map(|part| part.to_bytes()).collect();
    let chained = check::chain(check::parse_summaries(&written).unwrap()).unwrap();
    assert_eq!(chained, summary);
    assert!(check::parse_summaries(&written[1..]).is_err());
    let mut records: Vec<&[u8]> = bytes.chunks(100).collect();
    records.sort_by_key(|record| &record[..10]);
    let sorted = records.concat();
    let summary = check::stream(&mut &sorted[..]).unwrap().unwrap();
    assert_eq!((summary.unordered, summary.first_unordered), (0, 0));
    assert_eq!((summary.duplicates, summary.checksum), (0, made.checksum));
    let twice = check::stream(&mut &[&sorted[..100], &sorted[..]].concat()[..]).unwrap().unwrap();
    assert_eq!((twice.unordered, twice.duplicates), (0, 1));
    assert_eq!(check::stream(&mut &b""[..]).unwrap(), None);
    let cut = check::stream(&mut &sorted[..150]).unwrap_err();
    assert!(cut.message.contains("50 bytes instead of 100"), "{cut}");
}
