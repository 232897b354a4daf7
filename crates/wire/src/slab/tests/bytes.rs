//! The bytes themselves: golden ones, and those that no builder has written.

use super::*;
use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;

/// The example of docs/formats/slab.md: a key with an older version, one with a deletion, and a key
/// of another collection.
fn sample() -> Slab {
    let row = |hash, collection, key: &[u8], index, value: Option<&[u8]>| {
        let value = value.map(<[u8]>::to_vec);
        Row { hash, collection, key: key.to_vec(), index, value }
    };
    let rows = [
        row(0x0702_0304, 1, b"user/17", 5, Some(b"old")),
        row(0x0702_0304, 1, b"user/17", 9, Some(b"new")),
        row(0x0702_0304, 2, b"k", 7, Some(b"")),
        row(0x07ff_0000, 1, b"gone", 8, None),
    ];
    let mut slabs = build(&rows, &Needs::all(), false);
    assert_eq!(slabs.len(), 1);
    slabs.remove(0).1
}

const GOLDEN: &str = include_str!("../../golden/slab.txt");

/// Golden lines: what they are, and bytes in hexadecimal digits.
#[test]
fn a_slab_has_its_golden_bytes() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let slab = sample();
    let mut made = vec![format!("header {}", hex(&slab.header_bytes()))];
    for column in slab.columns() {
        let About { collection, group, what, .. } = column.about;
        made.push(format!("{collection} {group:?} {what:?} {}", hex(column.bytes())));
    }
    let mut sums = Sums::default();
    let bytes = bytes_of(&slab);
    let (header, columns) = bytes.split_at(header_bytes(&bytes).unwrap());
    sums.add_slab(&Reader::new(header, columns).unwrap()).unwrap();
    made.push(format!("sum of newest {:032x}", sums.newest()[7]));
    made.push(format!("sum of all {:032x}", sums.all()[7]));
    assert_eq!(made.join("\n"), GOLDEN.trim_end(), "all of it:\n{}", made.join("\n"));
}

/// Refused with these words, and as corrupt.
fn refused(bytes: &[u8], words: &str) {
    let split = header_bytes(bytes).unwrap_or(bytes.len()).min(bytes.len());
    let error = Reader::new(&bytes[..split], &bytes[split..]).unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt, "{error}");
    assert!(error.message.contains(words), "`{words}` is not what `{error}` says");
    let kept = Slab::read(bytes.len(), &Arc::new(Needs::all()), &mut |at| Ok(bytes[at].to_vec()));
    assert_eq!(kept.unwrap_err(), error);
}

/// The sample with other bytes in its header, or in its columns; checksums are right.
fn sealed(change: impl FnOnce(&mut Vec<u8>, &mut [Vec<u8>])) -> Vec<u8> {
    let slab = sample();
    let mut header = slab.header_bytes();
    header.truncate(header.len() - 4);
    let mut columns: Vec<Vec<u8>> = slab.columns().iter().map(|c| c.bytes().to_vec()).collect();
    change(&mut header, &mut columns);
    for (column, about) in columns.iter().zip(header[28..].chunks_mut(16)) {
        about[8..12].copy_from_slice(&(column.len() as u32).to_le_bytes());
        about[12..].copy_from_slice(&crc32c(column).to_le_bytes());
    }
    let crc = crc32c(&header);
    [header, crc.to_le_bytes().to_vec(), columns.concat()].concat()
}

/// A peer that is wrong, rather than a wire: its checksums are right.
#[test]
fn what_no_builder_writes_is_refused() {
    let header = |at: usize, byte: u8| sealed(move |header, _| header[at] = byte);
    let column = |i: usize, at: usize, byte: u8| sealed(move |_, columns| columns[i][at] = byte);
    refused(&header(0, b'X'), "does not begin as one does");
    refused(&header(26, 1), "longer than any");
    refused(&header(6, 8), "a flag that none has");
    refused(&header(7, 8), "not of one sub-range");
    refused(&header(22, 0xfe), "outside the slab");
    refused(&header(22, 1), "not of one sub-range");
    refused(&header(19, 6), "not of one sub-range");
    refused(&header(8, 8), "newer than the view");
    refused(&header(28 + 2, 2), "of no kind");
    refused(&header(28 + 3, 2), "of no kind");
    refused(&header(28 + 4, 0), "of no kind");
    refused(&header(28 + 4, 3), "values without their keys");
    let fewer = sealed(|header, _| (header[28 + 4], header[28 + 16 + 4]) = (1, 1));
    refused(&fewer, "goes on behind its last item");
    refused(&header(28, 2), "not in order");
    // Columns: older keys and values of collection 1, its newest ones, the newest of collection 2.
    refused(&column(0, 4, 0x80), "a deletion has a value");
    refused(&column(2, 4, 0x80), "a deletion has a value");
    refused(&column(0, 3, 0), "a key has no length");
    refused(&column(0, 3, 200), "ends in front of its last item");
    refused(&column(1, 0, 200), "ends in front of its last item");
    refused(&column(0, 2, 1), "outside the slab");
    let order = sealed(|_, columns| columns[0][20..23].copy_from_slice(&[4, 3, 2]));
    refused(&order, "not in order");
    let longer = sealed(|_, columns| columns[5].push(0));
    refused(&longer, "goes on behind its last item");
    let long = |header: &mut Vec<u8>, columns: &mut [Vec<u8>]| {
        columns[5] = vec![0; 4 + VALUE_BYTES_MAX + 1];
        columns[5][..4].copy_from_slice(&(VALUE_BYTES_MAX as u32 + 1).to_le_bytes());
        header[6] = 0;
    };
    refused(&sealed(long), "longer than a value may be");
    let newest_deleted = sealed(|_, columns| {
        columns[3] = vec![0; 4];
        columns[2][4] = 0x80;
    });
    refused(&newest_deleted, "the newest item is a deletion");
}

#[test]
fn another_version_is_for_another_build() {
    let mut bytes = bytes_of(&sample());
    bytes[4] = 2;
    let error = header_bytes(&bytes).unwrap_err();
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(error.message.contains("version 2"), "{error}");
}

#[test]
fn every_flipped_bit_and_every_length_is_refused() {
    let bytes = bytes_of(&sample());
    let split = header_bytes(&bytes).unwrap();
    assert_eq!(verify(&bytes).unwrap(), checksum(&bytes[..split]));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Reader::new(&flipped[..split], &flipped[split..]).is_err(), "bit {bit}");
        assert!(verify(&flipped).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        let cut = &bytes[..length];
        assert!(Reader::new(&cut[..split.min(length)], &cut[split.min(length)..]).is_err());
        assert!(verify(cut).is_err());
    }
    for split in (0..bytes.len()).filter(|at| *at != split) {
        assert!(Reader::new(&bytes[..split], &bytes[split..]).is_err(), "cut at {split}");
    }
    let longer = [&bytes[..], b"x"].concat();
    refused(&longer, "goes on behind its columns");
}
