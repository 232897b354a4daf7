//! Stories of one region, step by step: messages and entries that a test puts in front of it.

use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_table::entry::{
    Asked, Body, Change, ChangeKind, Entry, Refusal, Resolution, StreamEntry,
};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::message::{Answer, Expect, Message, Op, Position, Request};
use holdfast_table::region::{Effect, Region, Sealing, Settings};
use holdfast_table::sessions::Outcome;
use holdfast_table::sim::world::folded;
use holdfast_table::stream::Accepted;
use holdfast_table::tablet::branch::{Branch, BranchId};
use holdfast_table::tablet::{Form, Mode, Tablet};

const HERE: RegionId = RegionId(0);

fn region(mode: Mode, entries: &[Entry]) -> Region {
    let form = Form::new(mode, 3);
    let log = Entry::Log(LogId(1));
    let entries: Vec<(u64, Vec<u8>)> =
        (1..).zip([&log].into_iter().chain(entries).map(Encode::to_bytes)).collect();
    let tablet = folded(Tablet::new(&form, HERE), &entries).unwrap();
    Region::start(tablet, LogId(1), 1, Settings::default())
}

/// Lets everything that the region appends become durable; what it sends and answers.
fn effects(region: &mut Region) -> Vec<Effect> {
    let mut others = Vec::new();
    loop {
        let effects = region.effects();
        if effects.is_empty() {
            return others;
        }
        for effect in effects {
            match effect {
                Effect::Append(bytes) => {
                    region.appended(region.tablet().applied() + 1, &bytes).unwrap();
                }
                other => others.push(other),
            }
        }
    }
}

fn answers(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Answer { .. })).count()
}

/// Region 1 took its stream over in round 2, and lost its log; the log that it has now remembers
/// nothing of it, asks for round 2 again, and would give the numbers of round 2 a second time.
#[test]
fn a_log_that_forgot_what_it_opened_is_not_promised_it_again() {
    let mut region = region(Mode::Strong, &[]);
    let stream = StreamId(1);
    let epoch = Epoch::new(2, RegionId(1));
    let told = |region: &mut Region, log| {
        region.arrived(RegionId(1), log, Message::AskPromise { stream, epoch });
        effects(region)
    };
    let promised = |effects: &[Effect]| {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Send { message: Message::Promised { .. }, .. }))
    };
    assert!(promised(&told(&mut region, LogId(1))));
    assert!(promised(&told(&mut region, LogId(1))), "the answer was lost: the same log asks again");
    assert!(!promised(&told(&mut region, LogId(2))));
}

/// Whoever is told of a promise counts on it after the promiser's start, too: so it is an entry first.
#[test]
fn a_promise_is_an_entry_before_anybody_hears_of_it() {
    let mut region = region(Mode::Strong, &[]);
    let stream = StreamId(1);
    let epoch = Epoch::new(2, RegionId(1));
    region.arrived(RegionId(1), LogId(1), Message::AskPromise { stream, epoch });
    let first = region.effects();
    assert!(
        matches!(&first[..], [Effect::Append(_)]),
        "nothing is said before it is durable: {first:?}"
    );
    assert_eq!(region.tablet().stream(stream).promised(), stream.first_epoch());
    let Effect::Append(bytes) = &first[0] else { return };
    region.appended(region.tablet().applied() + 1, bytes).unwrap();
    let tail = Place::default();
    let before = stream.first_epoch();
    let promised = Message::Promised { stream, epoch, tail, before };
    assert!(region.effects().contains(&Effect::Send { to: RegionId(1), message: promised }));
}

fn decided(stream: u8, number: u64, change: (u64, u64, u8, ChangeKind)) -> StreamEntry {
    let epoch = StreamId(stream).first_epoch();
    let (version, after, home, kind) = change;
    let before = if number == 1 { Epoch::default() } else { epoch };
    let (key, home, origin) = (b"k".to_vec(), StreamId(home), RegionId(1));
    let change = Change { key, version, after, home, origin, kind };
    let asked = Some(Asked { session: 7, sequence: version, below: 1 });
    StreamEntry { place: Place::new(epoch, number), before, asked, body: Body::Change(change) }
}

fn write(sequence: u64) -> Request {
    let asked = Asked { session: 7, sequence, below: 1 };
    let op = Op::Write { asked, value: Some(vec![1]), expect: Expect::Any };
    Request { key: b"k".to_vec(), op }
}

/// A record went from here to region 1 and came back. After a start nothing of a strong table shows
/// before a majority is heard of, so that what region 1 decided meanwhile is not known to be
/// there: a request that was decided there was repeated here, and decided once more.
#[test]
fn a_home_that_starts_decides_nothing_before_it_shows_what_it_decides_on() {
    let (here, there) = (StreamId(0), StreamId(1));
    let put = || ChangeKind::Put([0].into());
    let entries = [
        Entry::Decided { stream: here, entry: decided(0, 1, (1, 0, 1, put())) },
        Entry::Followed {
            stream: there,
            under: there.first_epoch(),
            before: Place::default(),
            entries: vec![decided(1, 1, (2, 1, 0, put()))],
        },
        Entry::Decided { stream: here, entry: decided(0, 2, (3, 2, 0, put())) },
    ];
    let mut region = region(Mode::Strong, &entries);
    region.ask(1, write(2));
    assert_eq!(answers(&effects(&mut region)), 0);
    assert_eq!(region.tablet().stream(here).tail().number, 2, "nothing was decided");
    let position = |stream: StreamId, number| Position {
        stream,
        matched: Place::new(stream.first_epoch(), number),
        shown: 0,
        promised: stream.first_epoch(),
    };
    let positions = Message::Positions(vec![position(here, 2), position(there, 1)]);
    region.arrived(RegionId(1), LogId(1), positions);
    let answered = effects(&mut region);
    assert!(
        answered.iter().any(|effect| matches!(
            effect,
            Effect::Answer { client: 1, answer: Answer::Done { stream: StreamId(1), .. } }
        )),
        "its first answer: {answered:?}"
    );
    assert_eq!(region.tablet().record(b"k").unwrap().version, 3);
}

/// An entry of one stream that waits for its record's version of another one holds back its stream,
/// and a session that has seen what is behind it.
#[test]
fn a_version_waits_for_the_one_before_and_its_stream_waits_behind_it() {
    let form = Form::new(Mode::Timeline, 3);
    let put = || ChangeKind::Put([0].into());
    let follow = |stream: u8, entries: Vec<StreamEntry>| Entry::Followed {
        stream: StreamId(stream),
        under: StreamId(stream).first_epoch(),
        before: Place::default(),
        entries,
    };
    let first = follow(2, vec![decided(2, 1, (2, 1, 2, put())), decided(2, 2, (3, 2, 2, put()))]);
    let second = follow(0, vec![decided(0, 1, (1, 0, 2, put()))]);
    let entries = [(1, Entry::Log(LogId(1)).to_bytes()), (2, first.to_bytes())];
    let (me, log) = (RegionId(1), LogId(1));
    let tablet = folded(Tablet::new(&form, me), &entries).unwrap();
    let mut region = Region::start(tablet, log, 1, Settings::default());
    let stream = StreamId(2);
    assert_eq!(region.tablet().stream(stream).tail().number, 2);
    assert_eq!(region.tablet().shown(stream).place.number, 0);
    assert_eq!(region.tablet().record(b"k"), None);
    region.appended(3, &second.to_bytes()).unwrap();
    assert_eq!(region.tablet().shown(stream).place.number, 2);
    assert_eq!(region.tablet().record(b"k").unwrap().version, 3);
    assert!(Entry::from_bytes(&second.to_bytes()).is_ok());
}

/// Region 1 had followed everything, lost its log, and was sent nothing until somebody wrote again:
/// what it had said before was taken for what it has.
#[test]
fn a_region_that_lost_its_log_is_sent_everything_again() {
    let here = StreamId(0);
    let entry = decided(0, 1, (1, 0, 0, ChangeKind::Put([0].into())));
    // Of a strong table the new log would be admitted, by an entry that is sent.
    let mut region = region(Mode::Timeline, &[Entry::Decided { stream: here, entry }]);
    let says = |number| {
        let first = here.first_epoch();
        let matched = Place::new(first, number);
        Message::Positions(vec![Position { stream: here, matched, shown: number, promised: first }])
    };
    let mut pushes_after = |log, number| {
        region.arrived(RegionId(1), log, says(number));
        let mut pushes = 0;
        for _ in 0..2 * Settings::default().resend_ticks {
            region.tick();
            pushes += effects(&mut region)
                .iter()
                .filter(|effect| {
                    matches!(
                        effect,
                        Effect::Send { to: RegionId(1), message: Message::Push { .. } }
                    )
                })
                .count();
        }
        pushes
    };
    assert_eq!(pushes_after(LogId(1), 1), 0, "it has everything");
    assert!(pushes_after(LogId(2), 0) > 0);
}

/// A region was away while very many records were deleted, and is back: all of them were looked through in each tick,
/// whoever was away, and all were decided on in the first tick that they could be, while everybody waited.
#[test]
fn many_tombstones_are_forgotten_some_at_a_time() {
    const RECORDS: u64 = 5000;
    let here = StreamId(0);
    let mut region = region(Mode::Timeline, &[]);
    for (round, value) in [Some(vec![1]), None].into_iter().enumerate() {
        for number in 1..=RECORDS {
            let sequence = round as u64 * RECORDS + number;
            let asked = Asked { session: 7, sequence, below: sequence };
            let op = Op::Write { asked, value: value.clone(), expect: Expect::Any };
            region.ask(1, Request { key: number.to_le_bytes().to_vec(), op });
            effects(&mut region);
        }
    }
    let first = here.first_epoch();
    let (matched, shown) = (Place::new(first, 2 * RECORDS), 2 * RECORDS);
    let position = Position { stream: here, matched, shown, promised: first };
    for other in [1, 2] {
        let positions = Message::Positions(vec![position]);
        region.arrived(RegionId(other), LogId(1), positions);
    }
    effects(&mut region);
    assert_eq!(region.tablet().tombstones().len() as u64, RECORDS);
    let mut left = vec![RECORDS as usize];
    for _ in 0..3 {
        region.tick();
        effects(&mut region);
        left.push(region.tablet().tombstones().len());
    }
    assert!(left[1] > 0 && left[1] < left[0] && *left.last().unwrap() == 0, "{left:?}");
}

/// An append fails, as on a full disk, while another region is away. The region claims its stream anew: it waited for a
/// promise of everybody, as a log must that was lost, and took no write until the one that was away had come back. One
/// other is enough: a stream that was sealed, all but its region have promised.
#[test]
fn a_timeline_home_that_could_not_append_waits_for_one_other() {
    let here = StreamId(0);
    let mut region = region(Mode::Timeline, &[]);
    region.ask(1, write(1));
    assert_eq!(answers(&effects(&mut region)), 1);
    region.ask(2, write(2));
    // What it was to append is not there.
    assert!(matches!(&region.effects()[..], [Effect::Append(_)]));
    region.append_failed();
    effects(&mut region);
    for _ in 0..2 * Settings::default().resend_ticks {
        region.tick();
        effects(&mut region);
    }
    assert!(!region.leads(here), "its stream may be sealed");
    let (stream, epoch) = (here, Epoch::new(2, RegionId(0)));
    let tail = Place::new(here.first_epoch(), 1);
    let before = stream.first_epoch();
    let promised = Message::Promised { stream, epoch, tail, before };
    region.arrived(RegionId(1), LogId(1), promised);
    effects(&mut region);
    assert!(region.leads(here));
    region.ask(3, write(3));
    assert_eq!(answers(&effects(&mut region)), 1);
    assert_eq!(region.tablet().record(b"k").unwrap().version, 2);
}

/// Operators err: whatever they call lost, nothing is promised for it that is not. Who was heard a moment ago may be
/// called lost later: that was told as if it never could.
#[test]
fn who_is_not_lost_is_not_sealed() {
    let silence = Settings::default().silence_ticks;
    let asks = |effects: &[Effect]| {
        let asks = |effect: &&Effect| {
            matches!(effect, Effect::Send { message: Message::AskPromise { .. }, .. })
        };
        effects.iter().filter(asks).count()
    };
    let silent_for = |mode, ticks: u32| {
        let mut region = region(mode, &[]);
        (0..ticks).for_each(|_| region.tick());
        effects(&mut region);
        region
    };
    for (mode, lost, why) in [
        (Mode::Timeline, 0, "none of the table's other regions"),
        (Mode::Timeline, 7, "none of the table's other regions"),
        (Mode::Strong, 0, "none of the table's other regions"),
        (Mode::Strong, 1, "the table is strong"),
    ] {
        let mut region = silent_for(mode, silence + 1);
        let refused = region.seal(RegionId(lost)).expect_err("it is refused");
        assert!(refused.kind == Kind::Invalid && refused.message.contains(why), "{refused}");
        region.tick();
        assert_eq!(asks(&effects(&mut region)), 0);
    }
    let mut region = silent_for(Mode::Timeline, silence + 1);
    region.arrived(RegionId(1), LogId(1), Message::Positions(Vec::new()));
    for left in (1..=silence + 1).rev() {
        assert_eq!(region.seal(RegionId(1)), Ok(Sealing::Heard { ticks: left }));
        region.tick();
        assert_eq!(asks(&effects(&mut region)), 0);
    }
    // Twice while it is being written, and once it is: one entry, and both others are asked, for one may be back.
    let before = region.tablet().applied();
    for _ in 0..2 {
        assert!(region.seal(RegionId(1)).is_err_and(|e| e.kind == Kind::Retry));
    }
    assert_eq!((asks(&effects(&mut region)), region.tablet().applied()), (0, before + 1));
    assert_eq!(region.seal(RegionId(1)), Ok(Sealing::Waits(Vec::new())));
    region.tick();
    assert_eq!(asks(&effects(&mut region)), 2);
    assert_eq!(region.seal(RegionId(1)), Ok(Sealing::Waits(vec![RegionId(2)])));
    // Heard again, it is not lost, and that is written down.
    region.arrived(RegionId(1), LogId(1), Message::Positions(Vec::new()));
    region.arrived(RegionId(1), LogId(1), Message::Positions(Vec::new()));
    effects(&mut region);
    assert_eq!(region.tablet().lost(), None);
}

fn outcomes(effects: &[Effect]) -> Vec<(u64, Outcome)> {
    let outcome = |effect: &Effect| match effect {
        Effect::Answer { client, answer: Answer::Done { outcome, .. } } => {
            Some((*client, outcome.clone()))
        }
        Effect::Answer { client, answer } => panic!("{client} was told {answer:?}"),
        _ => None,
    };
    effects.iter().filter_map(outcome).collect()
}

fn branch_of_k(stream: StreamId) -> Branch {
    let place = Place::new(Epoch::new(9, RegionId(2)), 3);
    let id = BranchId { key: b"k".to_vec(), stream, place };
    Branch { id, after: 1, version: 2, value: Some([1].into()) }
}

fn resolve(sequence: u64, id: &BranchId, keep: Option<Expect>) -> Request {
    let asked = Asked { session: 3, sequence, below: 1 };
    let (stream, place, said) = (id.stream, id.place, Place::default());
    Request { key: id.key.clone(), op: Op::Resolve { asked, stream, place, said, keep } }
}

/// What two operators resolve at once one of them resolves, and the other one is told that it is no branch any more;
/// and so is whoever names what is none. A repetition gets the first answer.
#[test]
fn a_branch_is_resolved_once() {
    let here = StreamId(0);
    let branch = branch_of_k(here);
    let id = branch.id.clone();
    let entry = |number, body| StreamEntry {
        place: Place::new(here.first_epoch(), number),
        before: if number == 1 { Epoch::default() } else { here.first_epoch() },
        asked: None,
        body,
    };
    let said = Entry::Decided { stream: here, entry: entry(1, Body::Branch(branch)) };
    let mut region = region(Mode::Timeline, &[said]);
    assert_eq!(region.tablet().branches().said().len(), 1);
    let none = Outcome::Refused(Refusal::NoBranch);
    for (number, other) in [
        BranchId { stream: StreamId(99), ..id.clone() },
        BranchId { place: Place::new(Epoch(u64::MAX), u64::MAX), ..id.clone() },
        BranchId { key: b"other".to_vec(), ..id.clone() },
        BranchId { key: Vec::new(), ..id.clone() },
    ]
    .iter()
    .enumerate()
    {
        region.ask(1, resolve(1 + number as u64, other, None));
        assert_eq!(outcomes(&effects(&mut region)), [(1, none.clone())], "{other:?}");
    }
    // Both arrive before either is durable.
    region.ask(2, resolve(10, &id, None));
    region.ask(3, resolve(11, &id, Some(Expect::Absent)));
    region.ask(4, resolve(10, &id, None));
    let mut told = outcomes(&effects(&mut region));
    told.sort_by_key(|(client, _)| *client);
    assert_eq!(told, [(2, Outcome::Resolved), (3, none.clone()), (4, Outcome::Resolved)]);
    assert!(region.tablet().branches().is_empty() && region.tablet().record(b"k").is_none());
    assert_eq!(region.tablet().branches().bytes(), 0);
    region.ask(5, resolve(12, &id, None));
    region.ask(6, resolve(10, &id, None));
    assert_eq!(outcomes(&effects(&mut region)), [(6, Outcome::Resolved), (5, none)]);
}

/// To keep a branch was to write what it had and then to say that it is none: two steps, and whoever wrote the record
/// between them was written over, or two operators kept one thing and its contrary. It is one entry where the record
/// is at home.
#[test]
fn a_branch_is_kept_in_the_place_of_one_version() {
    let here = StreamId(0);
    let branch = branch_of_k(here);
    let id = branch.id.clone();
    let place = Place::new(here.first_epoch(), 1);
    let body = Body::Branch(branch);
    let said = StreamEntry { place, before: Epoch::default(), asked: None, body };
    let mut region = region(Mode::Timeline, &[Entry::Decided { stream: here, entry: said }]);
    let value = |region: &Region| {
        let record = region.tablet().record(b"k")?;
        Some((record.version, record.value.clone()?.to_vec()))
    };
    region.ask(1, resolve(1, &id, Some(Expect::Version(1))));
    assert_eq!(outcomes(&effects(&mut region)), [(1, Outcome::Refused(Refusal::Absent))]);
    // A write is on its way, of which the one who resolves knows nothing.
    region.ask(2, write(1));
    region.ask(3, resolve(2, &id, Some(Expect::Absent)));
    let told = outcomes(&effects(&mut region));
    let found = Outcome::Refused(Refusal::Found(1));
    assert_eq!(told, [(2, Outcome::Written(1)), (3, found)]);
    assert_eq!(region.tablet().branches().said().len(), 1, "it is as it was");
    // And one that comes behind it follows on it.
    region.ask(4, resolve(3, &id, Some(Expect::Version(1))));
    region.ask(5, write(2));
    let told = outcomes(&effects(&mut region));
    assert_eq!(told, [(4, Outcome::Resolved), (5, Outcome::Written(3))]);
    assert!(region.tablet().branches().is_empty());
    assert_eq!(value(&region).unwrap().0, 3);
}

/// A branch is said in the stream that it is of, and seen to where its record is at home. Another region may get the
/// second before the first: the branch would come back there, and nowhere else.
#[test]
fn nobody_shows_that_a_branch_is_resolved_before_it_was_said() {
    let (home, of) = (StreamId(0), StreamId(1));
    let branch = branch_of_k(of);
    let entry = |stream: StreamId, body| {
        let place = Place::new(stream.first_epoch(), 1);
        let entries = vec![StreamEntry { place, before: Epoch::default(), asked: None, body }];
        let (under, before) = (stream.first_epoch(), Place::default());
        Entry::Followed { stream, under, before, entries }.to_bytes()
    };
    let said = Place::new(of.first_epoch(), 1);
    let (key, kind) = (b"k".to_vec(), ChangeKind::Put([1].into()));
    let origin = RegionId(0);
    let change = Some(Change { key, version: 1, after: 0, home, origin, kind });
    let resolution = Resolution { id: branch.id.clone(), said, change };
    let entries = [entry(home, Body::Resolves(resolution)), entry(of, Body::Branch(branch))];
    let form = Form::new(Mode::Timeline, 3);
    for order in [[0, 1], [1, 0]] {
        let mut tablet = Tablet::new(&form, RegionId(2));
        for at in order {
            let applied = tablet.apply(tablet.applied() + 1, &entries[at], &mut Vec::new());
            assert_eq!(applied.unwrap().accepted, Accepted::Yes);
        }
        assert!(tablet.branches().is_empty(), "{:?}", tablet.branches());
        assert_eq!(tablet.record(b"k").map(|record| record.version), Some(1));
    }
}
