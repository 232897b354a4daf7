//! Tablets that are split, on a node: while clients write, read and scan; what was written and asked before is so
//! behind it; and who may not split what.

#[path = "node/mod.rs"]
mod world_of_one;

use holdfast_base::{Kind, Result};
use holdfast_table::name::hash_of;
use holdfast_wire::table as msg;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use world_of_one::{TABLE, World};

const MIDDLE: u32 = 1 << 31;

/// Keys of the lower half of all hashes, or of the upper one.
fn keys(is_upper: bool) -> impl Iterator<Item = Vec<u8>> {
    let all = (0u32..).map(|number| format!("key {number}").into_bytes());
    all.filter(move |key| (hash_of(key) >= MIDDLE) == is_upper)
}

fn key(is_upper: bool) -> Vec<u8> {
    keys(is_upper).next().unwrap()
}

impl World {
    fn split(&self, table: &str, tablet: u16, at: u32) -> Result<msg::TableInfo> {
        let split = msg::Split { table: table.into(), tablet, at };
        self.wait(|done| self.face.ask_split(split, done))
    }

    /// Of the table that was made with so many tablets: to say so again changes nothing.
    fn info(&self, tablets: u16) -> msg::TableInfo {
        let mode = msg::TableMode::Timeline;
        let make = msg::Make { table: TABLE.into(), mode, tablets, everywhere: false };
        self.wait(|done| self.face.ask_make(make, done)).unwrap()
    }

    fn get(&self, key: &[u8], level: msg::Level) -> Option<msg::Record> {
        let keys = vec![key.to_vec()];
        let read = msg::Read { table: TABLE.into(), level, keys, seen: Vec::new(), forgot: 0 };
        self.wait(|done| self.face.ask_read(read, done)).unwrap().pop().unwrap()
    }

    fn scan(&self) -> Vec<msg::Found> {
        let scan = msg::Scan {
            table: TABLE.into(),
            from: Vec::new(),
            until: None,
            backwards: false,
            rows_max: 1000,
        };
        self.wait(|done| self.face.ask_scan(scan, done)).unwrap().found
    }

    fn put_one(
        &self,
        (session, sequence): (u64, u64),
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<msg::Written> {
        let write = msg::Write { table: TABLE.into(), session, below: 1 };
        let (expect, value) = (msg::Expect::Any, value.map(<[u8]>::to_vec));
        let row = msg::Row { sequence, expect, key: key.to_vec(), value };
        self.wait(|done| self.face.ask_write(write, vec![row], done)).map(|mut w| w.pop().unwrap())
    }

    fn group(&self, sequence: u64, keys: &[Vec<u8>]) -> msg::GroupWritten {
        let group = msg::Group { table: TABLE.into(), session: 9, sequence, below: 1 };
        let put = |key: &Vec<u8>| msg::GroupRow {
            expect: msg::Expect::Any,
            key: key.clone(),
            what: msg::GroupDo::Put(b"g".to_vec()),
        };
        let rows = keys.iter().map(put).collect();
        self.wait(|done| self.face.ask_group(group, rows, done)).unwrap()
    }
}

fn version(number: u64) -> msg::Written {
    msg::Written::Version { version: number }
}

fn spans(info: &msg::TableInfo) -> Vec<(u32, u32)> {
    info.tablets.iter().map(|tablet| (tablet.first, tablet.last)).collect()
}

#[test]
fn both_halves_have_what_was_theirs_and_a_split_that_is_said_twice_is_one() {
    let world = World::new(1);
    let all: Vec<Vec<u8>> = keys(false).take(20).chain(keys(true).take(20)).collect();
    for (sequence, key) in (1..).zip(&all) {
        assert_eq!(world.put_one((1, sequence), key, Some(key)).unwrap(), version(1));
    }
    let before = world.scan();
    let once = world.split(TABLE, 0, MIDDLE).unwrap();
    assert_eq!(spans(&once), [(0, MIDDLE - 1), (MIDDLE, u32::MAX)]);
    assert_eq!(once.tablets.iter().map(|t| t.records).collect::<Vec<_>>(), [20, 20]);
    assert!(once.tablets.iter().all(|tablet| tablet.split.is_none()));
    assert_eq!(spans(&world.split(TABLE, 0, MIDDLE).unwrap()), spans(&once));
    assert_eq!(world.scan(), before);
    for (sequence, key) in (100..).zip(&all) {
        for level in [msg::Level::Any, msg::Level::Latest, msg::Level::Strong] {
            assert_eq!(world.get(key, level).unwrap().value, *key, "{level:?}");
        }
        assert_eq!(world.put_one((2, sequence), key, Some(b"2")).unwrap(), version(2));
    }
    // Down to a tablet of a single hash, at the end of them.
    assert_eq!(world.split(TABLE, 1, u32::MAX).unwrap().tablets.len(), 3);
    assert_eq!(spans(&world.split(TABLE, 0, 1).unwrap())[3], (1, MIDDLE - 1));
    assert_eq!(world.scan().len(), 40);
}

#[test]
fn what_cannot_be_split_is_refused_and_stays_as_it_is() {
    let world = World::new(1);
    world.make("dynamodb", 1);
    let refused = |table: &str, tablet, at| {
        let e = world.split(table, tablet, at).unwrap_err();
        (e.kind, e.message)
    };
    let (kind, why) = refused(TABLE, 0, 0);
    assert!(kind == Kind::Invalid && why.contains("00000000 to ffffffff"), "{why}");
    let (kind, why) = refused(TABLE, 1, 5);
    assert!(kind == Kind::Invalid && why.contains("tablets 0 to 0"), "{why}");
    let (kind, why) = refused("nobodys", 0, 5);
    assert!(kind == Kind::NotFound && why.contains("nobodys"), "{why}");
    let (kind, why) = refused("dynamodb", 0, 5);
    assert!(kind == Kind::Unsupported && why.contains("DynamoDB"), "{why}");
    let info = world.split(TABLE, 0, MIDDLE).unwrap();
    let (kind, why) = refused(TABLE, 0, MIDDLE + 1);
    assert!(kind == Kind::Invalid && why.contains("00000000 to 7fffffff"), "{why}");
    // Where there is a border, only that tablet was split there which has given away what is above it.
    for (tablet, says) in [(1, "80000000 to ffffffff, and 80000000"), (2, "0 to 1"), (99, "0 to 1")]
    {
        let (kind, why) = refused(TABLE, tablet, MIDDLE);
        assert!(kind == Kind::Invalid && why.contains(says), "{why}");
    }
    assert_eq!(spans(&world.split(TABLE, 0, MIDDLE).unwrap()), spans(&info));
    // To make it with the same words changes nothing, and with others is refused as before.
    world.make(TABLE, 1);
    assert_eq!(spans(&world.split(TABLE, 0, MIDDLE).unwrap()), spans(&info));
    let last = u32::MAX - 2;
    assert_eq!(spans(&world.split(TABLE, 1, last).unwrap())[1], (MIDDLE, last - 1));
    for count in 3..msg::TABLETS_MAX {
        world.split(TABLE, 1, last - u32::from(count)).unwrap();
    }
    let (kind, why) = refused(TABLE, 0, 5);
    assert!(kind == Kind::Invalid && why.contains("64 tablets, and 64 are the most"), "{why}");
}

/// Who hears no answer repeats what he asked, and a split may come in between.
#[test]
fn a_repetition_gets_its_first_answer_behind_a_split() {
    let world = World::new(1);
    let (lower, upper) = (key(false), key(true));
    let both = [lower.clone(), upper.clone()];
    let first = world.group(1, &both);
    assert_eq!(first, msg::GroupWritten::Versions { versions: vec![1, 1] });
    assert_eq!(world.put_one((1, 1), &upper, Some(b"a")).unwrap(), version(2));
    assert_eq!(world.put_one((1, 2), &lower, Some(b"a")).unwrap(), version(2));
    world.split(TABLE, 0, MIDDLE).unwrap();
    assert_eq!(world.group(1, &both), first);
    let upper_first = [upper.clone(), lower.clone()];
    assert_eq!(world.group(2, &upper_first), msg::GroupWritten::OtherTablet { at: 1 });
    assert_eq!(world.group(3, &both), msg::GroupWritten::OtherTablet { at: 1 });
    assert_eq!(world.put_one((1, 1), &upper, Some(b"a")).unwrap(), version(2));
    assert_eq!(world.put_one((1, 3), &upper, Some(b"b")).unwrap(), version(3));
    assert_eq!(world.put_one((1, 2), &lower, Some(b"a")).unwrap(), version(2));
    let upper_two: Vec<Vec<u8>> = keys(true).take(2).collect();
    let versions = vec![4, 1];
    assert_eq!(world.group(4, &upper_two), msg::GroupWritten::Versions { versions });
}

/// Versions of a key that was deleted go on where they were, whether or not its tombstone was forgotten.
#[test]
fn versions_go_on_behind_a_split() {
    let world = World::new(1);
    let deleted: Vec<Vec<u8>> = keys(true).take(2).collect();
    for key in &deleted {
        for (sequence, value) in [(1, Some(b"v")), (2, None)] {
            let session = u64::from(hash_of(key));
            world.put_one((session, sequence), key, value.map(|v| &v[..])).unwrap();
        }
        // The first one is forgotten.
        (0..5).for_each(|_| world.pass(if *key == deleted[0] { 100 } else { 0 }));
    }
    let tombstones =
        |info: msg::TableInfo| -> u64 { info.tablets.iter().map(|tablet| tablet.tombstones).sum() };
    assert_eq!(tombstones(world.split(TABLE, 0, MIDDLE).unwrap()), 1);
    for (sequence, key) in (1..).zip(&deleted) {
        let written = world.put_one((3, sequence), key, Some(b"again")).unwrap();
        let msg::Written::Version { version } = written else { panic!("{written:?}") };
        assert!(version > 2, "{version}");
    }
}

#[test]
fn a_table_that_was_split_is_dropped_whole_and_made_as_any_other() {
    let world = World::new(1);
    for round in 0..3 {
        for (sequence, key) in (1..).zip([key(false), key(true)]) {
            assert_eq!(world.put_one((round, sequence), &key, Some(b"v")).unwrap(), version(1));
        }
        // Another tablet than before gets another half.
        let at = MIDDLE + round as u32;
        let info = world.split(TABLE, 0, at).unwrap();
        assert_eq!(spans(&info), [(0, at - 1), (at, u32::MAX)]);
        world.drop_table(TABLE);
        world.make(TABLE, 1 + round as u16 % 2);
        assert_eq!(world.scan(), []);
        if round % 2 == 1 {
            world.drop_table(TABLE);
            world.make(TABLE, 1);
        }
    }
}

/// A tablet has a record's hash alone, at either end of a half, and every other one is beside it.
#[test]
fn a_tablet_of_one_hash_has_the_records_of_that() {
    let world = World::new(1);
    let all: Vec<Vec<u8>> = keys(false).take(3).chain(keys(true).take(3)).collect();
    for (sequence, key) in (1..).zip(&all) {
        world.put_one((1, sequence), key, Some(key)).unwrap();
    }
    let before = world.scan();
    for (sequence, key) in (100..).zip(&all) {
        let hash = hash_of(key);
        let has = |info: &msg::TableInfo| {
            let of =
                spans(info).into_iter().position(|(first, last)| first <= hash && hash <= last);
            of.unwrap() as u16
        };
        let info = world.info(1);
        // It is the last hash of one half, and then the first of the other.
        let info = world.split(TABLE, has(&info), hash + 1).unwrap();
        let info = world.split(TABLE, has(&info), hash).unwrap();
        let own = &info.tablets[usize::from(has(&info))];
        assert_eq!((own.first, own.last, own.records), (hash, hash, 1));
        let e = world.split(TABLE, has(&info), hash).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("alone"), "{e}");
        assert_eq!(world.put_one((1, sequence), key, Some(key)).unwrap(), version(2));
        assert_eq!(world.get(key, msg::Level::Strong).unwrap().version, 2);
    }
    let keys = |found: Vec<msg::Found>| found.into_iter().map(|f| f.key).collect::<Vec<_>>();
    assert_eq!(keys(world.scan()), keys(before));
}

/// What was asked and forgotten goes along from half to half.
#[test]
fn a_half_of_a_half_has_what_was_asked_and_forgotten_before_either_was() {
    let world = World::new(1);
    let upper: Vec<Vec<u8>> = keys(true).take(40).collect();
    let top = upper.iter().max_by_key(|key| hash_of(key)).unwrap();
    let both = [key(false), top.clone()];
    let first = world.group(1, &both);
    assert_eq!(first, msg::GroupWritten::Versions { versions: vec![1, 1] });
    assert_eq!(world.put_one((1, 1), top, Some(b"a")).unwrap(), version(2));
    let gone = upper.iter().find(|key| *key != top).unwrap();
    for (sequence, value) in [(1, Some(&b"v"[..])), (2, None)] {
        world.put_one((2, sequence), gone, value).unwrap();
    }
    // The tombstone is forgotten.
    (0..5).for_each(|_| world.pass(100));
    for (tablet, at) in [(0, MIDDLE), (1, MIDDLE + 1), (2, hash_of(top)), (1, MIDDLE + 1)] {
        world.split(TABLE, tablet, at).unwrap();
        assert_eq!(world.put_one((1, 1), top, Some(b"a")).unwrap(), version(2), "{at:08x}");
        assert_eq!(world.group(1, &both), first, "{at:08x}");
    }
    let told = world.info(1);
    let hash = hash_of(top);
    let all = [(0, MIDDLE - 1), (MIDDLE, MIDDLE), (MIDDLE + 1, hash - 1), (hash, u32::MAX)];
    assert_eq!(spans(&told), all);
    let written = world.put_one((2, 3), gone, Some(b"again")).unwrap();
    assert!(matches!(written, msg::Written::Version { version } if version > 2), "{written:?}");
}

/// Asks until it is not to be asked again.
fn until_told<T>(mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let retry = |told: &Result<T>| told.as_ref().is_err_and(|e| e.kind == Kind::Retry);
    (0..100_000).map(|_| ask()).find(|told| !retry(told)).expect("it is to be asked again for ever")
}

/// Of two tables, and of two tablets of one table, each asked to be split by a thread of its own: one waits for the
/// other, and what was written is where it belongs. Two at once give their halves to a tablet of one number.
#[test]
fn of_two_splits_at_once_one_waits_for_the_other() {
    let world = World::new(2);
    world.make("other", 1);
    let all: Vec<Vec<u8>> = (0..60u32).map(|number| number.to_string().into_bytes()).collect();
    for (sequence, key) in (1..).zip(&all) {
        world.put_one((1, sequence), key, Some(key)).unwrap();
        world.write("other", sequence, key).unwrap();
    }
    let before = world.scan();
    for round in 0..8u32 {
        let splits = [
            (TABLE, 0, MIDDLE >> (round + 1)),
            (TABLE, 1, MIDDLE | 1 << (30 - round)),
            ("other", 0, MIDDLE >> round),
        ];
        std::thread::scope(|scope| {
            for (table, tablet, at) in splits {
                let world = &world;
                scope.spawn(move || until_told(|| world.split(table, tablet, at)).unwrap());
            }
        });
        assert_eq!(world.info(2).tablets.len() as u32, 4 + 2 * round);
        assert_eq!(world.scan(), before, "round {round}");
    }
    for (sequence, key) in (100..).zip(&all) {
        assert_eq!(world.put_one((1, sequence), key, Some(b"w")).unwrap(), version(2));
        world.write("other", sequence, key).unwrap();
    }
}

/// A table is dropped while it is split, at any step of that: nothing of it is left, and one of its name is made, used
/// and split as any other. What the step under way had begun stayed, and the name could not be made again, or its
/// tablet never be split.
#[test]
fn a_table_that_is_dropped_while_it_is_split_leaves_nothing() {
    let world = World::new(1);
    for round in 0..30u64 {
        for (sequence, key) in (1..).zip(keys(true).take(20)) {
            let written = world.put_one((round, sequence), &key, Some(&[7; 60_000]));
            assert_eq!(written.unwrap(), version(1));
        }
        let told = std::thread::scope(|scope| {
            let split = scope.spawn(|| world.split(TABLE, 0, MIDDLE));
            let begun = || world.info(1).tablets[0].split.is_some() || split.is_finished();
            while round % 2 == 1 && !begun() {}
            (0..round % 12).for_each(|_| std::thread::yield_now());
            world.drop_table(TABLE);
            split.join().unwrap()
        });
        if let Err(e) = told {
            assert!(matches!(e.kind, Kind::NotFound | Kind::Retry), "{e}");
        }
        world.make(TABLE, 1 + round as u16 % 2);
        assert_eq!(world.scan(), []);
        if round % 2 == 1 {
            world.drop_table(TABLE);
            world.make(TABLE, 1);
        }
        assert_eq!(world.put_one((round, 1), &key(true), Some(b"v")).unwrap(), version(1));
        assert_eq!(spans(&world.split(TABLE, 0, MIDDLE).unwrap()).len(), 2, "round {round}");
        world.drop_table(TABLE);
        world.make(TABLE, 1);
    }
}

/// Of each tablet where he is, and the keys that he was told of.
fn follow(world: &World, from: Vec<msg::ChangesAt>) -> Result<(Vec<msg::ChangesAt>, Vec<Vec<u8>>)> {
    let asked = msg::Changes { table: TABLE.into(), from, wait_ms: 0, values: true };
    let told = world.wait(|done| world.face.ask_changes(asked, done))?;
    let keys = told.iter().flat_map(|of| &of.changes).map(|change| change.key.clone()).collect();
    Ok((told.into_iter().map(|of| of.at).collect(), keys))
}

/// He began anew, and a cache was emptied. All that showed before is told of by the tablet that was split, and what has
/// shown since by the one that has it, however late he asks.
#[test]
fn who_follows_a_table_goes_on_behind_a_split() {
    let world = World::new(1);
    let (lower, upper) = (key(false), key(true));
    let put = |sequence: u64, key: &[u8]| {
        world.put_one((1, sequence), key, Some(&sequence.to_le_bytes())).unwrap();
    };
    let (begin, _) = follow(&world, Vec::new()).unwrap();
    let early = begin.clone();
    put(1, &upper);
    put(2, &lower);
    world.split(TABLE, 0, MIDDLE).unwrap();
    put(3, &upper);
    put(4, &lower);
    let first = [upper.clone(), lower.clone(), lower.clone()];
    let (at, told) = follow(&world, begin).unwrap();
    assert_eq!((at.len(), told), (2, first.to_vec()), "the other half from where it began");
    let (at, told) = follow(&world, at).unwrap();
    assert_eq!(told, std::slice::from_ref(&upper));
    assert_eq!(follow(&world, at.clone()).unwrap(), (at.clone(), Vec::new()));
    // A half of the half, and who was away for both.
    world.split(TABLE, 1, MIDDLE + 1).unwrap();
    put(5, &upper);
    let (at, told) = follow(&world, at).unwrap();
    assert_eq!((at.len(), told), (3, Vec::new()));
    assert_eq!(follow(&world, at).unwrap().1, std::slice::from_ref(&upper));
    let (mut at, mut told) = follow(&world, early).unwrap();
    while at.len() < 3 || told.len() < 5 {
        let (next, more) = follow(&world, at.clone()).unwrap();
        assert!(next != at, "he has {told:?}");
        at = next;
        told.extend(more);
    }
    assert_eq!(told.iter().filter(|key| **key == upper).count(), 3);
    // Of another table of the name nothing goes on.
    world.drop_table(TABLE);
    world.make(TABLE, 1);
    let e = follow(&world, at).unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("fewer tablets"), "{e}");
}

/// Writers, each of whose keys has its version after each write, and scans and reads that show nothing older than was
/// acknowledged, while tablets are split again and again.
#[test]
fn a_table_is_split_while_it_is_used() {
    const WRITERS: u64 = 4;
    const SPLITS: u32 = 6;
    let world = World::new(2);
    let ends = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..WRITERS * 8).map(|_| AtomicU64::new(0)).collect();
    let name = |number: usize| format!("own {number}").into_bytes();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (world, ends, acknowledged) = (&world, &ends, &acknowledged);
            scope.spawn(move || {
                for sequence in 1u64.. {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    let at = (writer * 8 + sequence % 8) as usize;
                    let wanted = acknowledged[at].load(Ordering::SeqCst) + 1;
                    let value = sequence.to_le_bytes();
                    let told = world.put_one((writer, sequence), &name(at), Some(&value)).unwrap();
                    assert_eq!(told, version(wanted), "writer {writer}, {sequence}");
                    acknowledged[at].store(wanted, Ordering::SeqCst);
                    let level =
                        if sequence % 2 == 0 { msg::Level::Any } else { msg::Level::Latest };
                    assert_eq!(world.get(&name(at), level).unwrap().version, wanted, "{level:?}");
                }
            });
        }
        let scans = scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                let least: Vec<u64> =
                    acknowledged.iter().map(|a| a.load(Ordering::SeqCst)).collect();
                let found: BTreeMap<Vec<u8>, u64> =
                    world.scan().into_iter().map(|f| (f.key, f.record.version)).collect();
                for (at, least) in least.iter().enumerate().filter(|(_, least)| **least > 0) {
                    let shown = found.get(&name(at)).copied();
                    assert!(shown >= Some(*least), "{at}: {shown:?} behind {least}");
                }
            }
        });
        for round in 0..SPLITS {
            let all: u64 = acknowledged.iter().map(|a| a.load(Ordering::SeqCst)).sum();
            while acknowledged.iter().map(|a| a.load(Ordering::SeqCst)).sum::<u64>() < all + 40 {
                assert!(!scans.is_finished());
                std::thread::yield_now();
            }
            let info = world.split(TABLE, 0, MIDDLE >> (round + 2)).unwrap();
            assert_eq!(info.tablets.len() as u32, round + 3);
        }
        ends.store(true, Ordering::SeqCst);
    });
    for (at, acknowledged) in acknowledged.iter().enumerate() {
        let found = world.get(&name(at), msg::Level::Strong).map_or(0, |record| record.version);
        assert_eq!(found, acknowledged.load(Ordering::SeqCst), "{at}");
    }
}
