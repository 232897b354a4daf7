//! Stories of one region, step by step: messages and entries that a test puts in front of it.

use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_table::entry::{Asked, Body, Change, ChangeKind, Entry, StreamEntry};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::message::{Answer, Expect, Message, Op, Position, Request};
use holdfast_table::region::{Effect, Region, Sealing, Settings};
use holdfast_table::sessions::Outcome;
use holdfast_table::sim::world::folded;
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

/// What two operators resolve at once is resolved once, or both are told so; what is no branch is told to be none.
#[test]
fn a_branch_is_resolved_once() {
    let here = StreamId(0);
    let place = Place::new(Epoch::new(9, RegionId(2)), 3);
    let id = BranchId { key: b"k".to_vec(), stream: here, place };
    let branch = Branch { id: id.clone(), after: 1, version: 2, value: Some([1].into()) };
    let entry = |number, body| StreamEntry {
        place: Place::new(here.first_epoch(), number),
        before: if number == 1 { Epoch::default() } else { here.first_epoch() },
        asked: None,
        body,
    };
    let said = Entry::Decided { stream: here, entry: entry(1, Body::Branch(branch)) };
    let mut region = region(Mode::Timeline, &[said]);
    assert_eq!(region.tablet().branches().said().len(), 1);
    let resolve = |stream, place, key: &[u8]| {
        let op = Op::Resolve { stream, place };
        Request { key: key.to_vec(), op }
    };
    for (stream, place, key) in [
        (StreamId(99), place, &b"k"[..]),
        (here, Place::new(Epoch(u64::MAX), u64::MAX), b"k"),
        (here, place, b"other"),
        (here, place, b""),
    ] {
        region.ask(1, resolve(stream, place, key));
    }
    let refused = effects(&mut region);
    assert_eq!(answers(&refused), 4);
    assert!(refused.iter().all(|effect| matches!(
        effect,
        Effect::Answer { answer: Answer::Done { outcome: Outcome::Refused(_), .. }, .. }
            | Effect::Send { .. }
    )));
    // Both arrive before either is durable.
    region.ask(2, resolve(here, place, b"k"));
    region.ask(3, resolve(here, place, b"k"));
    let told = effects(&mut region);
    assert_eq!(answers(&told), 2, "{told:?}");
    assert!(region.tablet().branches().is_empty());
    assert_eq!(region.tablet().branches().bytes(), 0);
    region.ask(4, resolve(here, place, b"k"));
    let told = effects(&mut region);
    assert!(told.iter().any(|effect| matches!(
        effect,
        Effect::Answer { client: 4, answer: Answer::Done { outcome: Outcome::Refused(_), .. } }
    )));
}
