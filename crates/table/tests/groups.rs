//! Writes that stand or fall together: against a plain model, in stories of what a group waits for and who refuses
//! it, and on a node, whose tables have tablets and limits.

#[path = "node/mod.rs"]
mod world_of_one;

use holdfast_base::codec::Encode;
use holdfast_base::random::Random;
use holdfast_base::{Kind, Result};
use holdfast_table::entry::{Asked, Body, Change, ChangeKind, Entry, Refusal, StreamEntry};
use holdfast_table::ids::{LogId, Place, RegionId, StreamId};
use holdfast_table::message::{Answer, Asker, Expect, GroupDo, GroupWrite, Message, Op, Request};
use holdfast_table::region::{Effect, Region, Settings};
use holdfast_table::sessions::Outcome;
use holdfast_table::sim::world::folded;
use holdfast_table::tablet::{Form, Mode, Tablet};
use holdfast_wire::table as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use world_of_one::{TABLE, World};

fn region(mode: Mode, regions: u8, entries: &[Entry]) -> Region {
    let log = Entry::Log(LogId(1));
    let entries: Vec<(u64, Vec<u8>)> =
        (1..).zip([&log].into_iter().chain(entries).map(Encode::to_bytes)).collect();
    let tablet = Tablet::new(&Form::new(mode, regions), RegionId(0));
    let tablet = folded(tablet, &entries).unwrap();
    Region::start(tablet, LogId(1), 1, Settings::default())
}

/// Lets everything that the region appends become durable; what it answers.
fn answers(region: &mut Region) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        let effects = region.effects();
        if effects.is_empty() {
            return answers;
        }
        for effect in effects {
            match effect {
                Effect::Append(bytes) => {
                    region.appended(region.tablet().applied() + 1, &bytes).unwrap();
                }
                Effect::Answer { answer, .. } => answers.push(answer),
                Effect::Send { .. } => {}
            }
        }
    }
}

fn asked(sequence: u64) -> Asked {
    Asked { session: 1, sequence, below: sequence }
}

fn outcome(region: &mut Region, request: Request) -> Outcome {
    region.ask(1, request);
    match &answers(region)[..] {
        [Answer::Done { outcome, .. }] => outcome.clone(),
        other => panic!("{other:?}"),
    }
}

fn write(key: &[u8], expect: Expect, what: GroupDo) -> GroupWrite {
    GroupWrite { key: key.to_vec(), expect, what }
}

fn put(value: u8) -> GroupDo {
    GroupDo::Put([value].into())
}

/// A model that is plainly right: records by their keys, and the highest version of each that ever was.
#[derive(Default)]
struct Plain {
    records: BTreeMap<Vec<u8>, (u64, Option<u8>)>,
}

impl Plain {
    fn alive(&self, key: &[u8]) -> Option<u64> {
        self.records.get(key).and_then(|(version, value)| value.map(|_| *version))
    }

    fn group(&mut self, writes: &[GroupWrite]) -> Result<Vec<u64>, (u16, Option<u64>)> {
        for (at, write) in writes.iter().enumerate() {
            let found = self.alive(&write.key);
            let fits = match write.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Version(version) => found == Some(version),
            };
            if !fits || (write.what == GroupDo::Delete && found.is_none()) {
                return Err((at as u16, found));
            }
        }
        let mut versions = Vec::new();
        for write in writes.iter().filter(|write| write.what != GroupDo::Check) {
            let value = match &write.what {
                GroupDo::Put(value) => Some(value[0]),
                _ => None,
            };
            let record = self.records.entry(write.key.clone()).or_default();
            *record = (record.0 + 1, value);
            versions.push(record.0);
        }
        Ok(versions)
    }
}

/// Deletions stay as tombstones meanwhile: no time passes.
#[test]
fn groups_do_what_a_plain_model_does() {
    let mut region = region(Mode::Timeline, 1, &[]);
    let (mut plain, mut random) = (Plain::default(), Random::new(3));
    let (mut written, mut refused) = (0, 0);
    for sequence in 1..2000 {
        let mut keys: Vec<u8> = (0..5).collect();
        let count = 1 + random.below(4);
        let mut writes = Vec::new();
        for _ in 0..count {
            let key = [keys.remove(random.below(keys.len() as u64) as usize)];
            let version = plain.alive(&key).unwrap_or(1);
            let expect = match random.below(6) {
                0 => Expect::Absent,
                1 => Expect::Version(version),
                2 => Expect::Version(version + random.below(2)),
                _ => Expect::Any,
            };
            let what = match random.below(4) {
                0 => GroupDo::Delete,
                1 => GroupDo::Check,
                _ => put(random.below(256) as u8),
            };
            writes.push(write(&key, expect, what));
        }
        let expected = match plain.group(&writes) {
            Ok(versions) => Outcome::Group(versions.into()),
            Err((at, found)) => Outcome::Refused(Refusal::OfGroup { at, found }),
        };
        match expected {
            Outcome::Group(_) => written += 1,
            _ => refused += 1,
        }
        let request = Request::group(asked(sequence), writes);
        assert_eq!(outcome(&mut region, request.clone()), expected, "{request:?}");
        assert_eq!(outcome(&mut region, request), expected, "a repetition gets the first answer");
        for (key, record) in &plain.records {
            let found = region.tablet().record(key).unwrap();
            let value = found.value.as_ref().map(|value| value[0]);
            assert_eq!((found.version, value), *record);
        }
    }
    assert!(written > 300 && refused > 300, "{written} written, {refused} refused");
}

fn change(key: &[u8], version: u64, home: StreamId) -> Change {
    let (after, kind) = (version - 1, ChangeKind::Put([version as u8].into()));
    Change { key: key.to_vec(), version, after, home, origin: RegionId(0), kind }
}

fn entry(stream: StreamId, number: u64, body: Body) -> StreamEntry {
    let epoch = stream.first_epoch();
    let before = if number == 1 { Default::default() } else { epoch };
    StreamEntry { place: Place::new(epoch, number), before, asked: None, body }
}

fn followed(stream: StreamId, entries: Vec<StreamEntry>) -> Entry {
    let under = stream.first_epoch();
    let number = entries[0].place.number - 1;
    let before = if number == 0 { Place::default() } else { Place::new(under, number) };
    Entry::Followed { stream, under, before, entries }
}

/// Records `a` and `b` came home to region 1, one of them from region 2, and were written together there. A third
/// region that has yet to follow region 2 shows neither.
#[test]
fn a_group_waits_until_all_of_its_records_may_show() {
    let (one, two) = (StreamId(1), StreamId(2));
    let moved = Change { kind: ChangeKind::Move, ..change(b"b", 2, one) };
    let group = Body::Group(vec![change(b"a", 2, one), change(b"b", 3, one)]);
    let entries = [
        followed(one, vec![entry(one, 1, Body::Change(change(b"a", 1, one)))]),
        followed(two, vec![entry(two, 1, Body::Change(change(b"b", 1, two)))]),
        followed(one, vec![entry(one, 2, group)]),
    ];
    let mut region = region(Mode::Timeline, 3, &entries);
    let versions = |region: &Region| {
        [&b"a"[..], b"b"].map(|key| region.tablet().record(key).map(|record| record.version))
    };
    assert_eq!(versions(&region), [Some(1), Some(1)]);
    let rest = followed(two, vec![entry(two, 2, Body::Change(moved))]).to_bytes();
    region.appended(region.tablet().applied() + 1, &rest).unwrap();
    assert_eq!(versions(&region), [Some(2), Some(3)]);
}

/// Whoever was told that nothing was written is told so again, though by now the records are at home together.
#[test]
fn a_group_of_two_homes_is_refused_for_good_and_the_next_one_is_not() {
    let (here, there) = (StreamId(0), StreamId(1));
    let entries = [followed(there, vec![entry(there, 1, Body::Change(change(b"b", 1, there)))])];
    let mut region = region(Mode::Timeline, 2, &entries);
    let group = |sequence, first: &[u8], second: &[u8]| {
        let writes = vec![write(first, Expect::Any, put(7)), write(second, Expect::Any, put(8))];
        Request::group(asked(sequence), writes)
    };
    let apart = Outcome::Refused(Refusal::Apart { at: 1 });
    assert_eq!(outcome(&mut region, group(1, b"a", b"b")), apart);
    assert!(region.tablet().record(b"a").is_none(), "nothing was written");
    let moved = Change { kind: ChangeKind::Move, ..change(b"b", 2, here) };
    let rest = followed(there, vec![entry(there, 2, Body::Change(moved))]).to_bytes();
    region.appended(region.tablet().applied() + 1, &rest).unwrap();
    assert_eq!(outcome(&mut region, group(1, b"a", b"b")), apart);
    assert_eq!(outcome(&mut region, group(2, b"a", b"b")), Outcome::Group([1, 3].into()));
    for key in [&b"a"[..], b"b"] {
        assert_eq!(region.tablet().record(key).unwrap().home, here);
    }
}

/// A group that another region passes on is taken as it is held against the limits, or not at all.
#[test]
fn a_group_that_no_region_sends_that_is_right_is_passed_over() {
    let mut region = region(Mode::Timeline, 2, &[]);
    let asker = Asker { region: RegionId(1), ticket: 1 };
    let many = |count: usize| -> Vec<GroupWrite> {
        (0..count).map(|n| write(&[1, n as u8], Expect::Any, put(1))).collect()
    };
    let large = GroupDo::Put(vec![0; msg::VALUE_BYTES_MAX].into());
    let two = |what: GroupDo| {
        vec![write(b"a", Expect::Any, what.clone()), write(b"b", Expect::Any, what)]
    };
    for (writes, key, is_right) in [
        (many(msg::GROUP_WRITES_MAX), vec![1, 0], true),
        (many(msg::GROUP_WRITES_MAX + 1), vec![1, 0], false),
        (many(2), vec![1, 1], false),
        (Vec::new(), b"a".to_vec(), false),
        (vec![write(b"a", Expect::Any, put(1)); 2], b"a".to_vec(), false),
        (two(large), b"a".to_vec(), false),
        (vec![write(b"", Expect::Any, put(1))], Vec::new(), false),
    ] {
        let count = writes.len();
        let request = Request { key, op: Op::Group { asked: asked(1), writes } };
        let message = Message::Forward { asker, request, hops: 1, after: None };
        let before = region.tablet().applied();
        region.arrived(RegionId(1), LogId(1), message);
        let _ = answers(&mut region);
        assert_eq!(region.tablet().applied() > before, is_right, "{count}");
    }
}

impl World {
    fn group(&self, sequence: u64, rows: Vec<msg::GroupRow>) -> Result<msg::GroupWritten> {
        let group = msg::Group { table: TABLE.into(), session: 1, sequence, below: sequence };
        self.wait(|done| self.face.ask_group(group, rows, done))
    }

    fn read(&self, keys: &[Vec<u8>], level: msg::Level) -> Result<Vec<Option<msg::Record>>> {
        let (table, keys, seen) = (TABLE.into(), keys.to_vec(), Vec::new());
        let read = msg::Read { table, level, keys, seen, forgot: 0 };
        self.wait(|done| self.face.ask_read_group(read, done))
    }
}

fn row(key: &[u8], value: usize) -> msg::GroupRow {
    let what = msg::GroupDo::Put(vec![7; value]);
    msg::GroupRow { expect: msg::Expect::Any, key: key.to_vec(), what }
}

#[test]
fn a_group_lies_in_one_tablet_and_is_refused_by_name_elsewhere() {
    let world = World::new(2);
    let tablet = |key: &Vec<u8>| holdfast_table::name::tablet_of(key, 2);
    let keys: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n]).collect();
    let (first, second): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(|key| tablet(key) == 0);
    let rows = |keys: &[Vec<u8>]| keys.iter().map(|key| row(key, 1)).collect::<Vec<_>>();
    let mixed = [first.clone(), second.clone()].concat();
    let told = world.group(1, rows(&mixed)).unwrap();
    assert_eq!(told, msg::GroupWritten::OtherTablet { at: first.len() as u16 });
    for keys in [&first, &second] {
        assert_eq!(world.read(keys, msg::Level::Latest).unwrap(), vec![None; keys.len()]);
        let versions = vec![1; keys.len()];
        let written = world.group(2, rows(keys)).unwrap();
        assert_eq!(written, msg::GroupWritten::Versions { versions });
    }
    let e = world.read(&mixed, msg::Level::Any).unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("another tablet"), "{e}");
}

#[test]
fn a_group_is_as_large_as_the_limits_say_and_no_larger() {
    let world = World::new(1);
    let written = |rows: Vec<msg::GroupRow>, sequence| world.group(sequence, rows);
    let many =
        |count: usize| (0..count).map(|n| row(&(n as u16).to_be_bytes(), 1)).collect::<Vec<_>>();
    assert!(written(many(msg::GROUP_WRITES_MAX), 1).is_ok());
    let around = 2 * (1 + msg::GROUP_WRITE_BYTES);
    let rest = msg::GROUP_BYTES_MAX - around - msg::VALUE_BYTES_MAX;
    assert!(written(vec![row(b"a", msg::VALUE_BYTES_MAX), row(b"b", rest)], 2).is_ok());
    let looks = msg::GroupRow { what: msg::GroupDo::Check, ..row(b"a", 1) };
    for (rows, why) in [
        (many(msg::GROUP_WRITES_MAX + 1), "1 to 128"),
        (Vec::new(), "1 to 128"),
        (vec![row(b"a", msg::VALUE_BYTES_MAX), row(b"b", rest + 1)], "together more than"),
        (vec![row(b"a", msg::VALUE_BYTES_MAX + 1)], "put what is larger"),
        (vec![row(b"a", 1), row(b"a", 2)], "one in front of it has"),
        (vec![row(b"", 1)], "a key is empty"),
        (vec![looks], "anything is right"),
    ] {
        let e = written(rows, 3).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains(why), "{e}");
    }
    let e = written(vec![row(b"a", 1)], 0).unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("number 0"), "{e}");
}

/// It was told as a bug of the node's.
#[test]
fn a_number_that_another_request_had_is_refused() {
    let world = World::new(1);
    let refused = |told: Result<()>| {
        let e = told.unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("a number of its own"), "{e:?}");
    };
    assert_eq!(world.write(TABLE, 1, b"a").unwrap(), [msg::Written::Version { version: 1 }]);
    refused(world.group(1, vec![row(b"a", 1)]).map(drop));
    let two = || vec![row(b"a", 1), row(b"b", 1)];
    let written = msg::GroupWritten::Versions { versions: vec![2, 1] };
    assert_eq!(world.group(2, two()).unwrap(), written);
    refused(world.group(2, [two(), vec![row(b"c", 1)]].concat()).map(drop));
    refused(world.write(TABLE, 2, b"a").map(drop));
}

/// A thread writes a hundred records together, again and again: whoever reads them together sees all as one write
/// has left them.
#[test]
fn who_reads_together_sees_no_half_of_a_group() {
    let world = Arc::new(World::new(1));
    let ends = Arc::new(AtomicBool::new(false));
    let keys: Vec<Vec<u8>> = (0..msg::READ_KEYS_MAX).map(|key| vec![key as u8]).collect();
    let rows = |value: usize| keys.iter().map(|key| row(key, value)).collect::<Vec<_>>();
    world.group(1, rows(0)).unwrap();
    let (writes, ended, twice) = (world.clone(), ends.clone(), [rows(1), rows(2)]);
    let writer = holdfast_env::tasks::spawn("writer", move || {
        for sequence in 2.. {
            writes.group(sequence, twice[sequence as usize % 2].clone()).unwrap();
            if ended.load(Ordering::SeqCst) {
                return;
            }
        }
    });
    for _ in 0..1000 {
        let found = world.read(&keys, msg::Level::Any).unwrap();
        let versions: BTreeSet<u64> = found.iter().flatten().map(|record| record.version).collect();
        assert!(found.iter().all(Option::is_some) && versions.len() == 1, "{versions:?}");
    }
    ends.store(true, Ordering::SeqCst);
    writer.unwrap().join();
}
