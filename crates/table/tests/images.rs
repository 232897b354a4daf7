//! What goes from memory where there are other regions, and how a log that begins anew gets it: tablets
//! and regions that a test leads step by step.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::stream::{collect, read_all};
use holdfast_env::trial::Trial;
use holdfast_table::entry::{Asked, Body, Change, ChangeKind, Entry, Settled, StreamEntry};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::message::{Answer, Expect, Level, Message, Op, Position, Request};
use holdfast_table::region::{Effect, Region, Settings};
use holdfast_table::stream::Accepted;
use holdfast_table::tablet::branch::{Branch, BranchId};
use holdfast_table::tablet::image::{Cursor, ImageId, Item, Part};
use holdfast_table::tablet::{Form, Mode, Tablet};

const HOME: StreamId = StreamId(0);

fn first() -> Epoch {
    HOME.first_epoch()
}

fn put(number: u64, bytes: usize) -> StreamEntry {
    let before = if number == 1 { Epoch::default() } else { first() };
    let change = Change {
        key: format!("key {number}").into_bytes(),
        version: 1,
        after: 0,
        home: HOME,
        origin: RegionId(0),
        kind: ChangeKind::Put(vec![number as u8; bytes].into()),
    };
    let asked = Some(Asked { session: number, sequence: 1, below: 1 });
    StreamEntry { place: Place::new(first(), number), before, asked, body: Body::Change(change) }
}

fn apply(tablet: &mut Tablet, entry: &Entry) -> Accepted {
    let applied = tablet.apply(tablet.applied() + 1, &entry.to_bytes(), &mut Vec::new());
    applied.unwrap().accepted
}

/// The tablet of a region that has followed so many writes of region 0, in a timeline: it shows them.
fn tablet(region: u8, log: u64, count: u64) -> Tablet {
    let mut tablet = Tablet::new(&Form::new(Mode::Timeline, 3), RegionId(region));
    apply(&mut tablet, &Entry::Log(LogId(log)));
    if count > 0 {
        let entries = (1..=count).map(|number| put(number, 10)).collect();
        let before = Place::default();
        let followed = Entry::Followed { stream: HOME, under: first(), before, entries };
        assert_eq!(apply(&mut tablet, &followed), Accepted::Yes);
    }
    tablet
}

fn settled(by_all: u64) -> Entry {
    Entry::Settled(vec![Settled { stream: HOME, shown: by_all, by_all }])
}

/// All parts of an image, of so many bytes each.
fn parts(tablet: &Tablet, number: u64, bytes: u64) -> Vec<Part> {
    let image = ImageId { region: tablet.region(), log: tablet.log(), number };
    let (mut parts, mut cursor) = (Vec::new(), Cursor::Begin);
    loop {
        let (items, next, is_last) = tablet.image_part(cursor, bytes);
        parts.push(Part { image, number: parts.len() as u64, is_last, items });
        if is_last {
            return parts;
        }
        cursor = next;
    }
}

fn restored(tablet: &Tablet) -> Tablet {
    let mut bytes = Vec::new();
    collect(&mut bytes, |out| tablet.snapshot(out));
    read_all(&bytes, |source| Tablet::restore(tablet.form(), tablet.region(), source)).unwrap()
}

/// What a snapshot of a stream that forgot has, is what is left of it.
#[test]
fn what_all_regions_show_goes_from_memory_and_from_snapshots() {
    let mut tablet = tablet(1, 1, 10);
    assert_eq!(apply(&mut tablet, &settled(7)), Accepted::Yes);
    for tablet in [&tablet, &restored(&tablet)] {
        let stream = tablet.stream(HOME);
        assert_eq!((stream.behind(0, 99).len(), stream.tail().number), (3, 10));
        assert_eq!(stream.forgotten_to(), Place::new(first(), 7));
        assert!(stream.holds(Place::new(first(), 5)), "its places stay");
        assert!(tablet.passed(HOME, Place::new(first(), 5)));
    }
    // Of what everybody shows there is no other version: who says so is not believed, and nothing falls over.
    let second = Epoch::new(2, RegionId(2));
    let other = StreamEntry { place: Place::new(second, 6), ..put(6, 10) };
    let before = Place::new(first(), 5);
    let entries = vec![other];
    let followed = Entry::Followed { stream: HOME, under: second, before, entries };
    assert_eq!(apply(&mut tablet, &followed), Accepted::Gap);
    assert_eq!(tablet.stream(HOME).promised(), first());
    // More than shows is not forgotten, whatever an entry says.
    assert_eq!(apply(&mut tablet, &settled(99)), Accepted::Yes);
    assert_eq!(tablet.stream(HOME).forgotten_to().number, 10);
}

/// In parts of every size, and whatever snapshots are taken in between, by a log that has some of it.
#[test]
fn an_image_is_the_same_tablet_whatever_its_parts() {
    let mut from = tablet(0, 1, 12);
    apply(&mut from, &settled(9));
    for bytes in [1, 300, 1 << 20] {
        for held in [0, 4] {
            let mut to = tablet(2, 2, held);
            for part in parts(&from, 1, bytes) {
                assert_eq!(to.stream(HOME).tail().number, held, "nothing before the last part");
                assert_eq!(apply(&mut to, &Entry::Image(part)), Accepted::Yes);
                to = restored(&to);
            }
            assert_eq!((to.records(), to.shown(HOME)), (from.records(), from.shown(HOME)));
            assert_eq!((to.bytes(), to.floor()), (from.bytes(), from.floor()));
            assert_eq!(to.stream(HOME).epochs(), from.stream(HOME).epochs());
            assert_eq!((to.region(), to.log()), (RegionId(2), LogId(2)));
            assert_eq!(to.stream(HOME).matched(), Place::default(), "it follows nobody yet");
            let asked = Asked { session: 3, sequence: 1, below: 1 };
            assert_eq!(to.sessions().known(asked), from.sessions().known(asked));
            // It goes on as any that follows.
            let before = Place::new(first(), 12);
            let entries = vec![put(13, 10)];
            let followed = Entry::Followed { stream: HOME, under: first(), before, entries };
            assert_eq!(apply(&mut to, &followed), Accepted::Yes);
            assert_eq!(to.stream(HOME).matched(), Place::new(first(), 13));
        }
    }
}

/// What a log holds beyond an image stays, and shows again.
#[test]
fn who_holds_more_than_an_image_keeps_it() {
    let mut to = tablet(2, 2, 8);
    let before = to.records().clone();
    for part in parts(&tablet(1, 1, 5), 1, 200) {
        assert_eq!(apply(&mut to, &Entry::Image(part)), Accepted::Yes);
    }
    assert_eq!((to.records(), to.stream(HOME).tail().number), (&before, 8));
    assert_eq!(to.stream(HOME).matched(), Place::new(first(), 8), "what it has said stays true");
    // What it has forgotten it could not show again.
    apply(&mut to, &settled(8));
    let parts = parts(&tablet(1, 1, 5), 2, 1 << 20);
    assert_eq!(apply(&mut to, &Entry::Image(parts[0].clone())), Accepted::Gap);
    assert_eq!((to.records(), to.stream(HOME).tail().number), (&before, 8));
}

/// A log that has promised a later epoch than the one that it gets an image of let the earlier epoch's
/// leader go on: two leaders of one stream.
#[test]
fn an_image_takes_no_promise_back() {
    let mut to = tablet(2, 2, 0);
    let epoch = Epoch::new(3, RegionId(1));
    apply(&mut to, &Entry::Promised { stream: HOME, epoch });
    for part in parts(&tablet(1, 1, 5), 1, 200) {
        apply(&mut to, &Entry::Image(part));
    }
    assert_eq!(to.stream(HOME).tail().number, 5);
    assert_eq!(to.stream(HOME).promised(), epoch);
    let before = Place::new(first(), 5);
    let followed =
        Entry::Followed { stream: HOME, under: first(), before, entries: vec![put(6, 1)] };
    assert_eq!(apply(&mut to, &followed), Accepted::Fenced);
    // And one that is higher comes along.
    let mut from = tablet(1, 1, 5);
    let epoch = Epoch::new(9, RegionId(0));
    apply(&mut from, &Entry::Promised { stream: HOME, epoch });
    let mut to = tablet(2, 2, 0);
    for part in parts(&from, 1, 200) {
        apply(&mut to, &Entry::Image(part));
    }
    assert_eq!(to.stream(HOME).promised(), epoch);
}

/// A region that starts anew while it sends an image has another tablet then: half of each is none.
#[test]
fn parts_of_two_images_make_none() {
    let (one, two) = (parts(&tablet(1, 1, 6), 1, 1), parts(&tablet(1, 1, 9), 2, 1));
    let mut to = tablet(2, 2, 0);
    for part in &one[..5] {
        assert_eq!(apply(&mut to, &Entry::Image(part.clone())), Accepted::Yes);
    }
    assert_eq!(apply(&mut to, &Entry::Image(one[3].clone())), Accepted::Gap, "it has it");
    for part in &two[5..] {
        assert_eq!(apply(&mut to, &Entry::Image(part.clone())), Accepted::Gap);
    }
    assert_eq!(to.stream(HOME).tail().number, 0);
    assert!(to.takes_image());
    // From its beginning on the second one is whole.
    for part in two {
        assert_eq!(apply(&mut to, &Entry::Image(part)), Accepted::Yes);
    }
    assert_eq!(to.stream(HOME).tail().number, 9);
}

/// A home showed less of its own stream than the image that it took, for want of another stream: what it
/// had decided on lay over the records for ever, and its requests waited behind it.
#[test]
fn a_home_decides_on_what_an_image_shows() {
    // Its own first entry follows on a version of another stream, which only the sender has; its second
    // one forgets the record.
    let (other, own) = (StreamId(1), StreamId(2));
    let at = |stream: StreamId, number: u64, version: u64, kind| {
        let (key, after, origin) = (b"moved".to_vec(), version - 1, RegionId(2));
        let body = Body::Change(Change { key, version, after, home: own, origin, kind });
        let before = if number == 1 { Epoch::default() } else { stream.first_epoch() };
        let place = Place::new(stream.first_epoch(), number);
        StreamEntry { place, before, asked: None, body }
    };
    let put = || ChangeKind::Put([1].into());
    let entries = vec![at(own, 1, 2, put()), at(own, 2, 3, ChangeKind::Forget)];
    let mut from = tablet(1, 1, 0);
    apply(&mut from, &Entry::Decided { stream: other, entry: at(other, 1, 1, put()) });
    let mut to = tablet(2, 1, 0);
    for entry in &entries {
        apply(&mut to, &Entry::Decided { stream: own, entry: entry.clone() });
    }
    let (under, before) = (own.first_epoch(), Place::default());
    apply(&mut from, &Entry::Followed { stream: own, under, before, entries });
    assert_eq!((from.record(b"moved"), from.floor()), (None, 3));
    assert_eq!(to.floor(), 0, "it waits for the other stream");
    let mut region = Region::start(to, LogId(1), 1, Settings::default());
    for part in parts(&from, 1, 1 << 20) {
        let entry = Entry::Image(part).to_bytes();
        assert_eq!(region.appended(region.tablet().applied() + 1, &entry), Ok(Accepted::Yes));
    }
    let asked = Asked { session: 9, sequence: 1, below: 1 };
    let op = Op::Write { asked, value: Some(vec![3]), expect: Expect::Any };
    region.ask(7, Request { key: b"moved".to_vec(), op });
    let goes_home = effects(&mut region).into_iter().any(|effect| {
        matches!(effect, Effect::Send { to: RegionId(0), message: Message::Forward { .. } })
    });
    assert!(goes_home, "the key is the tablet's home's again");
}

/// An image that broke off, and that nobody needs any more, would keep its memory for ever, and its
/// region from forgetting.
#[test]
fn an_image_that_nobody_goes_on_with_is_left_off() {
    let mut to = tablet(2, 2, 3);
    let one = parts(&tablet(1, 1, 6), 1, 1);
    apply(&mut to, &Entry::Image(one[0].clone()));
    let mut region = Region::start(to, LogId(2), 1, Settings::default());
    assert!(region.tablet().takes_image());
    for _ in 0..100 {
        region.tick();
        effects(&mut region);
    }
    assert!(!region.tablet().takes_image());
    assert_eq!(region.tablet().stream(HOME).tail().number, 3);
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
                    assert!(bytes.len() + 40 <= holdfast_base::limits::ENTRY_BYTES_MAX);
                    region.appended(region.tablet().applied() + 1, &bytes).unwrap();
                }
                other => others.push(other),
            }
        }
    }
}

fn pushes(effects: Vec<Effect>) -> Vec<(Place, Vec<StreamEntry>)> {
    effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Send { message: Message::Push { before, entries, .. }, to: RegionId(1) } => {
                Some((before, entries))
            }
            _ => None,
        })
        .collect()
}

/// A region that has nothing is sent 40 MB: by messages that each are one entry of its log, and not
/// more at once than its window and one more.
#[test]
fn what_is_on_its_way_is_bounded_in_bytes() {
    let mut tablet = Tablet::new(&Form::new(Mode::Timeline, 3), RegionId(0));
    apply(&mut tablet, &Entry::Log(LogId(1)));
    for number in 1..=48 {
        let bytes = if number % 4 == 0 { 900 << 10 } else { 200_000 };
        apply(&mut tablet, &Entry::Decided { stream: HOME, entry: put(number, bytes) });
    }
    let mut region = Region::start(tablet, LogId(1), 1, Settings::default());
    effects(&mut region);
    let behind = Message::Behind { stream: HOME, under: first(), ends: Vec::new() };
    let mut sent: u64 = 0;
    let mut has = 0;
    region.arrived(RegionId(1), LogId(1), behind.clone());
    // Each push that does not follow says so: the window is sent once.
    region.arrived(RegionId(1), LogId(1), behind);
    let mut to = Tablet::new(&Form::new(Mode::Timeline, 3), RegionId(1));
    apply(&mut to, &Entry::Log(LogId(1)));
    for _ in 0..48 {
        for (before, entries) in pushes(effects(&mut region)) {
            let bytes: u64 = entries.iter().map(StreamEntry::encoded_bytes).sum();
            assert!(entries.len() == 1 || bytes <= 512 << 10, "{bytes} in one message");
            sent += bytes;
            let followed = Entry::Followed { stream: HOME, under: first(), before, entries };
            assert!(followed.to_bytes().len() + 40 <= holdfast_base::limits::ENTRY_BYTES_MAX);
            assert_eq!(apply(&mut to, &followed), Accepted::Yes);
        }
        let acknowledged = region.tablet().stream(HOME).bytes_between(0, has);
        assert!(sent - acknowledged <= (16 << 20) + (1 << 20), "{}", sent - acknowledged);
        has += 1;
        let matched = Place::new(first(), has);
        let position = Position { stream: HOME, matched, shown: has, promised: first() };
        region.arrived(RegionId(1), LogId(1), Message::Positions(vec![position]));
    }
    assert_eq!(to.stream(HOME).tail().number, 48);
}

/// An erased log asks, is told what is gone, gets an image, and shows everything.
#[test]
fn a_log_that_begins_anew_is_sent_an_image() {
    for part_bytes in [1, 512 << 10] {
        let _entered = Trial::drawn(part_bytes).enter();
        let mut from = tablet(0, 1, 0);
        for number in 1..=12 {
            apply(&mut from, &Entry::Decided { stream: HOME, entry: put(number, 10) });
        }
        apply(&mut from, &settled(12));
        let mut home = Region::start(from, LogId(1), 1, Settings::default());
        let mut new = Region::start(tablet(2, 2, 0), LogId(2), 1, Settings::default());
        for _ in 0..60 {
            let (a, b) = (effects(&mut home), effects(&mut new));
            for effect in a {
                if let Effect::Send { to: RegionId(2), message } = effect {
                    new.arrived(RegionId(0), LogId(1), message);
                }
            }
            for effect in b {
                if let Effect::Send { to: RegionId(0), message } = effect {
                    home.arrived(RegionId(2), LogId(2), message);
                }
            }
            home.tick();
            new.tick();
        }
        assert_eq!(new.tablet().records(), home.tablet().records());
        assert_eq!(new.tablet().stream(HOME).matched(), Place::new(first(), 12));
        let key = b"key 1".to_vec();
        new.ask(7, Request { key, op: Op::Read(Level::Any) });
        let answered = effects(&mut new).into_iter().any(|effect| {
            matches!(
                effect,
                Effect::Answer { client: 7, answer: Answer::Value { found: Some(_), .. } }
            )
        });
        assert!(answered);
    }
}

/// A part that does not fit is refused, and what was put together goes.
#[test]
fn a_part_that_does_not_fit_ends_an_image() {
    let whole = parts(&tablet(1, 1, 3), 1, 1 << 20);
    let part = |items| Part { items, ..whole[0].clone() };
    let wrong = [
        Item::Entry { stream: HOME, entry: put(2, 1) },
        Item::Entry { stream: StreamId(77), entry: put(1, 1) },
    ];
    for item in wrong {
        let mut to = tablet(2, 2, 0);
        assert_eq!(apply(&mut to, &Entry::Image(part(vec![item]))), Accepted::Gap);
        assert!(!to.takes_image());
        assert_eq!(to.records().len(), 0);
    }
    // All bytes of a part are there, or it is none.
    let bytes = Entry::Image(whole[0].clone()).to_bytes();
    assert_eq!(Entry::from_bytes(&bytes), Ok(Entry::Image(whole[0].clone())));
    for cut in (0..bytes.len()).step_by(7) {
        assert!(Entry::from_bytes(&bytes[..cut]).is_err());
    }
}

/// A branch that two regions had, both sealed: one said it, somebody resolved it, and then the other one came back and
/// said it again.
#[test]
fn a_branch_that_was_resolved_is_not_said_again() {
    let id = BranchId { key: b"key 4".to_vec(), stream: HOME, place: Place::new(first(), 4) };
    let value = Some([1].into());
    let branch = Branch { id: id.clone(), after: 3, version: 4, value };
    // Another region goes on from the third entry; one that was sealed said what it had, and that was resolved.
    let second = Epoch::new(2, RegionId(1));
    let says = |number: u64, before: Epoch, body| {
        let place = Place::new(second, number);
        StreamEntry { place, before, asked: None, body }
    };
    let entries = [
        says(4, first(), Body::Open),
        says(5, second, Body::Branch(branch.clone())),
        says(6, second, Body::Resolved(id)),
    ];
    let mut from = tablet(1, 1, 3);
    assert_eq!(apply(&mut from, &Entry::Promised { stream: HOME, epoch: second }), Accepted::Yes);
    for entry in entries {
        assert_eq!(apply(&mut from, &Entry::Decided { stream: HOME, entry }), Accepted::Yes);
    }
    assert!(from.branches().is_empty());
    let mut to = tablet(2, 1, 4);
    for part in parts(&from, 1, 200) {
        assert_eq!(apply(&mut to, &Entry::Image(part)), Accepted::Yes);
    }
    assert!(to.stream(HOME).holds(Place::new(second, 6)));
    assert!(to.branches().is_empty(), "{:?}", to.branches());
    // One that has not come so far yet says it, and whoever leads knows better.
    let mut region = Region::start(from, LogId(1), 1, Settings::default());
    effects(&mut region);
    let matched = Place::new(second, 4);
    let position = Position { stream: HOME, matched, shown: 4, promised: second };
    region.arrived(RegionId(0), LogId(1), Message::Positions(vec![position]));
    effects(&mut region);
    region.arrived(RegionId(0), LogId(1), Message::Branch { branch: branch.clone(), shown: 4 });
    effects(&mut region);
    assert_eq!(region.tablet().stream(HOME).tail(), Place::new(second, 6));
    // One that nobody has said, it says.
    let other = Branch { id: BranchId { key: b"other".to_vec(), ..branch.id.clone() }, ..branch };
    region.arrived(RegionId(0), LogId(1), Message::Branch { branch: other, shown: 4 });
    effects(&mut region);
    assert_eq!(region.tablet().branches().said().len(), 1);
}

/// A log that was made anew had promised a stream, of which it had nothing yet, to whoever seals it, and then took an image
/// of the region that was being sealed: it showed what nobody else has, and wrote behind it, while the stream went on
/// without that.
#[test]
fn a_new_log_takes_nothing_of_who_is_being_sealed() {
    let mut to = tablet(2, 2, 0);
    let epoch = Epoch::new(2, RegionId(1));
    apply(&mut to, &Entry::Promised { stream: HOME, epoch });
    let of = |from: u8| {
        let mut to = to.clone();
        let all = parts(&tablet(from, 1, 5), 1, 200);
        let taken = all.into_iter().map(|part| apply(&mut to, &Entry::Image(part))).last();
        (taken, to.stream(HOME).tail().number)
    };
    assert_eq!(of(0), (Some(Accepted::Gap), 0));
    // Whoever was promised it asks this one, and has what it has; so have those that were asked.
    assert_eq!(of(1), (Some(Accepted::Yes), 5));
}
