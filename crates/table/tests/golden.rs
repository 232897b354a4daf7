//! The bytes of docs/formats/table.md, for ever.

use holdfast_base::codec::{Decode, Encode};
use holdfast_table::entry::{Asked, Body, Change, ChangeKind, Entry, Refusal, StreamEntry};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};

fn stream_entry(body: Body, asked: Option<Asked>) -> StreamEntry {
    let epoch = Epoch::new(2, RegionId(1));
    StreamEntry { place: Place::new(epoch, 3), before: Epoch::new(1, RegionId(2)), asked, body }
}

fn change(kind: ChangeKind) -> Body {
    let (home, origin) = (StreamId(1), RegionId(2));
    Body::Change(Change { key: b"k".to_vec(), version: 8, after: 7, home, origin, kind })
}

/// A hexadecimal text: spaces are for people.
fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

const PLACE: &str = "0102000000000000 0300000000000000";
const BEFORE: &str = "0201000000000000";

#[test]
fn entries_have_these_bytes() {
    let stream = StreamId(2);
    let epoch = Epoch::new(2, RegionId(1));
    let decided = |body| Entry::Decided { stream, entry: stream_entry(body, None) };
    let key = "01000000 6b 0800000000000000 0700000000000000 01 02";
    let in_entry = |rest: &str| format!("01 02 02 {PLACE} {BEFORE} 00 {rest}");
    let asked = Some(Asked { session: 4, sequence: 5, below: 5 });
    let followed = Entry::Followed {
        stream,
        under: epoch,
        before: Place::new(Epoch::new(1, RegionId(2)), 2),
        entries: vec![stream_entry(Body::Open, asked)],
    };
    for (entry, text) in [
        (Entry::Log(LogId(3)), "01 01 0300000000000000".to_owned()),
        (Entry::Promised { stream, epoch }, "01 04 02 0102000000000000".to_owned()),
        (Entry::Checked { stream, epoch }, "01 05 02 0102000000000000".to_owned()),
        (
            followed,
            format!(
                "01 03 02 0102000000000000 {BEFORE} 0200000000000000 01000000 {PLACE} {BEFORE} \
                 01 0400000000000000 0500000000000000 0500000000000000 01"
            ),
        ),
        (decided(Body::Open), in_entry("01")),
        (decided(change(ChangeKind::Put(vec![9]))), in_entry(&format!("02 {key} 01 01000000 09"))),
        (decided(change(ChangeKind::Delete)), in_entry(&format!("02 {key} 02"))),
        (decided(change(ChangeKind::Move)), in_entry(&format!("02 {key} 03"))),
        (decided(change(ChangeKind::Forget)), in_entry(&format!("02 {key} 04"))),
        (decided(Body::Refused(Refusal::Found(6))), in_entry("03 01 0600000000000000")),
        (decided(Body::Refused(Refusal::Absent)), in_entry("03 02")),
        (decided(Body::Mark(vec![(RegionId(1), 7)])), in_entry("04 01000000 01 0700000000000000")),
        (
            decided(Body::Admit { region: RegionId(1), log: LogId(2) }),
            in_entry("05 01 0200000000000000"),
        ),
        (
            decided(Body::Count { region: RegionId(1), log: LogId(2) }),
            in_entry("06 01 0200000000000000"),
        ),
    ] {
        assert_eq!(entry.to_bytes(), bytes(&text), "{entry:?}");
        assert_eq!(Entry::from_bytes(&bytes(&text)), Ok(entry));
    }
}

#[test]
fn what_a_newer_build_has_made_is_no_entry() {
    for text in ["", "02 01", "01 06", "01 02 02", "01 01 0300000000000000 00"] {
        assert!(Entry::from_bytes(&bytes(text)).is_err(), "{text}");
    }
    let mut entry = bytes(&format!("01 02 02 {PLACE} {BEFORE} 00 01"));
    *entry.last_mut().unwrap() = 7;
    assert!(Entry::from_bytes(&entry).is_err(), "a body of a later build");
}
