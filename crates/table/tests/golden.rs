//! The bytes of docs/formats/table.md, for ever.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{collect, read_all};
use holdfast_table::entry::{
    Asked, Body, Change, ChangeKind, Entry, Refusal, Resolution, Settled, StreamEntry,
};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId, Value};
use holdfast_table::message::{
    Answer, Asker, Expect, GroupDo, GroupWrite, Level, Message, Op, Position, Request,
};
use holdfast_table::record::Record;
use holdfast_table::region::Settings;
use holdfast_table::sessions::{Outcome, Remembered, SessionImage, SessionResult};
use holdfast_table::stream::{Accepted, Member, Members, StreamImage};
use holdfast_table::tablet::branch::{Branch, BranchId};
use holdfast_table::tablet::image::{ImageId, Item, Part};
use holdfast_table::tablet::span::{Half, Span};
use holdfast_table::tablet::split::{Piece, Pieces};
use holdfast_table::tablet::{Form, Mode, Shown, Tablet};
use holdfast_table::token::Token;
use holdfast_table::view::{Child, Made, TabletView, given};
use holdfast_view::{Applied, Context, View};

fn stream_entry(body: Body, asked: Option<Asked>) -> StreamEntry {
    let epoch = Epoch::new(2, RegionId(1));
    StreamEntry { place: Place::new(epoch, 3), before: Epoch::new(1, RegionId(2)), asked, body }
}

fn change(kind: ChangeKind) -> Body {
    let (home, origin) = (StreamId(1), RegionId(2));
    Body::Change(Change { key: b"k".to_vec(), version: 8, after: 7, home, origin, kind })
}

fn snapshot(tablet: &Tablet) -> Vec<u8> {
    let mut out = Vec::new();
    collect(&mut out, |out| tablet.snapshot(out));
    out
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
        (Entry::Lost { region: RegionId(2), is_lost: true }, "01 0a 02 01".to_owned()),
        (Entry::Lost { region: RegionId(2), is_lost: false }, "01 0a 02 00".to_owned()),
        (
            followed,
            format!(
                "01 03 02 0102000000000000 {BEFORE} 0200000000000000 01000000 {PLACE} {BEFORE} \
                 01 0400000000000000 0500000000000000 0500000000000000 01"
            ),
        ),
        (decided(Body::Open), in_entry("01")),
        (
            decided(change(ChangeKind::Put([9].into()))),
            in_entry(&format!("02 {key} 01 01000000 09")),
        ),
        (decided(change(ChangeKind::Delete)), in_entry(&format!("02 {key} 02"))),
        (decided(change(ChangeKind::Move)), in_entry(&format!("02 {key} 03"))),
        (decided(change(ChangeKind::Forget)), in_entry(&format!("02 {key} 04"))),
        (decided(Body::Refused(Refusal::Found(6))), in_entry("03 01 0600000000000000")),
        (decided(Body::Refused(Refusal::Absent)), in_entry("03 02")),
        (decided(Body::Refused(Refusal::NoBranch)), in_entry("03 03")),
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

/// Of splits: behind 13, at which builds that do not know them stop; and what begins a tablet, and gives it a half.
#[test]
fn splits_have_these_bytes() {
    let stream = StreamId(2);
    for (body, text) in [
        (Body::Split(Half { at: 0x8000_0001, child: 3 }), "0b 01000080 0300"),
        (Body::HandedOver { child: 3 }, "0c 0300"),
    ] {
        let one = stream_entry(body, None);
        assert_eq!(one.encoded_bytes(), one.to_bytes().len() as u64, "{one:?}");
        let entry = Entry::Decided { stream, entry: one };
        let told = bytes(&format!("01 0d 02 02 {PLACE} {BEFORE} 00 {text}"));
        assert_eq!(entry.to_bytes(), told, "{entry:?}");
        assert_eq!(Entry::from_bytes(&told), Ok(entry));
        let unmarked = [&told[..1], &told[2..]].concat();
        assert!(Entry::from_bytes(&unmarked).is_err(), "one byte form for each");
    }
    let form = Form::new(Mode::Timeline, 1);
    let made = Made { form, region: RegionId(0), tablet: 3, tablets: 2 };
    let made_text = "01 00 01000000 00 0100000000000000 01 00 0300 0200";
    let child = Child { made, span: Span::between(1, 2) };
    assert_eq!(child.command(), bytes(&format!("01 0e {made_text} 01000000 02000000 00 00000000")));
    let session = SessionImage { id: 7, below: 8, results: Vec::new() };
    let pieces = vec![Piece::Floor(5), Piece::Session { turn: 6, session }];
    let seven = "0700000000000000";
    let text = format!(
        "01 0f {seven} 0100000000000000 01 02000000 01 0500000000000000 04 0600000000000000 {seven} \
         0800000000000000 00000000"
    );
    assert_eq!(given(&Pieces { attempt: 7, number: 1, is_last: true, pieces }), bytes(&text));
}

/// Of groups: behind 12, at which builds that do not know them stop.
#[test]
fn groups_have_these_bytes() {
    let stream = StreamId(2);
    let seven = "0700000000000000";
    let key = format!("01000000 6b 0800000000000000 {seven} 01 02");
    let in_entry = |rest: &str| format!("01 0c 02 02 {PLACE} {BEFORE} 00 {rest}");
    let Body::Change(put) = change(ChangeKind::Put([9].into())) else { panic!("it is one") };
    let other = Change { key: b"l".to_vec(), kind: ChangeKind::Delete, ..put.clone() };
    let group = Body::Group(vec![put, other]);
    for (body, text) in [
        (Body::Group(Vec::new()), "0a 00000000".to_owned()),
        (group.clone(), format!("0a 02000000 {key} 01 01000000 09 {} 02", key.replace("6b", "6c"))),
        (Body::Refused(Refusal::OfGroup { at: 1, found: None }), "03 04 0100 00".to_owned()),
        (
            Body::Refused(Refusal::OfGroup { at: 1, found: Some(7) }),
            format!("03 04 0100 01 {seven}"),
        ),
        (Body::Refused(Refusal::Apart { at: 1 }), "03 05 0100".to_owned()),
    ] {
        let one = stream_entry(body, None);
        assert_eq!(one.encoded_bytes(), one.to_bytes().len() as u64, "{one:?}");
        let entry = Entry::Decided { stream, entry: one };
        assert_eq!(entry.to_bytes(), bytes(&in_entry(&text)), "{entry:?}");
        assert_eq!(Entry::from_bytes(&bytes(&in_entry(&text))), Ok(entry));
        let plain = bytes(&format!("01 02 02 {PLACE} {BEFORE} 00 {text}"));
        assert!(Entry::from_bytes(&plain).is_err(), "an entry has one form");
    }
    let plain = bytes(&format!("01 0c 02 02 {PLACE} {BEFORE} 00 01"));
    assert!(Entry::from_bytes(&plain).is_err(), "an entry has one form");
    let entries = vec![stream_entry(Body::Open, None), stream_entry(group, None)];
    let epoch = Epoch::new(2, RegionId(1));
    let followed = Entry::Followed { stream, under: epoch, before: Place::default(), entries };
    assert_eq!(followed.to_bytes()[..3], [1, 12, 3]);
    let outcome = Outcome::Group([8, 7].into());
    let text = format!("04 02000000 0800000000000000 {seven}");
    assert_eq!(outcome.to_bytes(), bytes(&text));
    assert_eq!(Outcome::from_bytes(&bytes(&text)), Ok(outcome.clone()));
    let place = Place::new(epoch, 3);
    let result = Remembered { outcome, stream, place };
    let session =
        SessionImage { id: 1, below: 2, results: vec![SessionResult { sequence: 2, result }] };
    let image = ImageId { region: RegionId(1), log: LogId(2), number: 9 };
    let part = Part { image, number: 1, is_last: true, items: vec![Item::Session(session)] };
    assert_eq!(Entry::Image(part).to_bytes()[..3], [1, 12, 9]);
    let asked = Asked { session: 4, sequence: 5, below: 5 };
    let write = |key: &[u8], expect, what| GroupWrite { key: key.to_vec(), expect, what };
    let request = Request::group(
        asked,
        vec![
            write(b"k", Expect::Any, GroupDo::Put([9].into())),
            write(b"l", Expect::Absent, GroupDo::Delete),
            write(b"m", Expect::Version(7), GroupDo::Check),
        ],
    );
    let text = format!(
        "01000000 6b 05 0400000000000000 0500000000000000 0500000000000000 03000000 \
         01000000 6b 01 01 01000000 09 01000000 6c 02 02 01000000 6d 03 {seven} 03"
    );
    assert_eq!(request.to_bytes(), bytes(&text));
    assert_eq!(Request::from_bytes(&bytes(&text)), Ok(request));
}

/// What regions forget, and what an image is made of; and how the parts are asked for.
#[test]
fn images_have_these_bytes() {
    let (stream, epoch) = (StreamId(2), Epoch::new(2, RegionId(1)));
    let place = Place::new(epoch, 3);
    let (one, two, nine) = ("0100000000000000", "0200000000000000", "0900000000000000");
    let settled = Entry::Settled(vec![Settled { stream, shown: 9, by_all: 2 }]);
    assert_eq!(settled.to_bytes(), bytes(&format!("01 07 01000000 02 {nine} {two}")));
    assert_eq!(Entry::from_bytes(&settled.to_bytes()), Ok(settled));

    let members = vec![Member { region: RegionId(0), log: LogId(1), counts: true }];
    let members = vec![Members { from: 2, members }];
    let forgotten = vec![Place::new(Epoch::new(1, RegionId(2)), 2)];
    let head = StreamImage { id: stream, forgotten, promised: epoch, members };
    let record = Record {
        version: 9,
        home: StreamId(1),
        value: None,
        stream,
        place,
        origin: RegionId(0),
        run: 1,
        moves: vec![2],
    };
    let result = Remembered { outcome: Outcome::Written(9), stream, place };
    let results = vec![SessionResult { sequence: 2, result }];
    let items = vec![
        Item::Floor(9),
        Item::Stream { head, shown: Shown { place, digest: 2 } },
        Item::Entry { stream, entry: stream_entry(Body::Open, None) },
        Item::Record { key: b"k".to_vec(), record },
        Item::Session(SessionImage { id: 1, below: 2, results }),
    ];
    let image = ImageId { region: RegionId(1), log: LogId(2), number: 9 };
    let part = Part { image, number: 1, is_last: true, items };
    let image_text = format!("01 {two} {nine}");
    let text = format!(
        "{image_text} {one} 01 05000000 01 {nine} \
         02 02 01000000 {BEFORE} {two} 0102000000000000 01000000 {two} 01000000 00 {one} 01 {PLACE} {two} \
         03 02 {PLACE} {BEFORE} 00 01 \
         04 01000000 6b {nine} 01 00 02 {PLACE} 00 {one} 01000000 {two} \
         05 {one} {two} 01000000 {two} 01 {nine} 02 {PLACE}"
    );
    let entry = Entry::Image(part.clone());
    assert_eq!(entry.to_bytes(), bytes(&format!("01 09 {text}")));
    assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry));
    for (message, text) in [
        (Message::Forgotten { stream, up_to: place }, format!("0d 02 {PLACE}")),
        (Message::ImageAsked { image: None, part: 2 }, format!("0e 00 {two}")),
        (Message::ImageAsked { image: Some(image), part: 2 }, format!("0e 01 {image_text} {two}")),
        (Message::ImagePart(part), format!("0f {text}")),
    ] {
        assert_eq!(message.to_bytes(), bytes(&text), "{message:?}");
        assert_eq!(Message::from_bytes(&bytes(&text)), Ok(message));
    }
}

fn branch(value: Option<Value>) -> Branch {
    let place = Place::new(Epoch::new(2, RegionId(1)), 3);
    let id = BranchId { key: b"k".to_vec(), stream: StreamId(2), place };
    Branch { id, after: 1, version: 2, value }
}

/// How a branch is seen to.
#[test]
fn resolutions_have_these_bytes() {
    let two = "0200000000000000";
    let id = format!("01000000 6b 02 {PLACE}");
    let resolved = stream_entry(Body::Resolved(branch(None).id), None);
    assert_eq!(resolved.to_bytes(), bytes(&format!("{PLACE} {BEFORE} 00 08 {id}")));
    assert_eq!(StreamEntry::from_bytes(&resolved.to_bytes()), Ok(resolved));
    let (key, value) = ("01000000 6b", ChangeKind::Put([9].into()));
    let kept = format!("01 {key} 0800000000000000 0700000000000000 01 02 01 01000000 09");
    let next = change(value).changes().first().cloned();
    for (change, text) in [(None, "00".to_owned()), (next, kept)] {
        let said = Place::new(Epoch::new(1, RegionId(2)), 2);
        let body = Body::Resolves(Resolution { id: branch(None).id, said, change });
        let resolves = stream_entry(body, None);
        let said = format!("{BEFORE} {two}");
        assert_eq!(
            resolves.to_bytes(),
            bytes(&format!("{PLACE} {BEFORE} 00 09 {id} {said} {text}"))
        );
        assert_eq!(resolves.encoded_bytes(), resolves.to_bytes().len() as u64);
        assert_eq!(StreamEntry::from_bytes(&resolves.to_bytes()), Ok(resolves));
    }
    let BranchId { key, stream, place } = branch(None).id;
    let asker = Asker { region: RegionId(3), ticket: 9 };
    let asked = Asked { session: 4, sequence: 5, below: 5 };
    let said = Place::new(Epoch::new(1, RegionId(2)), 2);
    let no_place = "00".repeat(16);
    let asked_text = "0400000000000000 0500000000000000 0500000000000000";
    for (keep, text) in
        [(None, "00".to_owned()), (Some(Expect::Version(2)), format!("01 03 {two}"))]
    {
        let op = Op::Resolve { asked, stream, place, said, keep };
        let request = Request { key: key.clone(), op };
        let asks = Message::Forward { asker, request, hops: 7, after: None };
        let text = format!(
            "01 03 0900000000000000 01000000 6b 04 {asked_text} 02 {PLACE} {BEFORE} {two} {text} 07 00 {no_place}"
        );
        has_bytes(&asks, &text);
    }
    let answer = Answer::Done { outcome: Outcome::Resolved, stream, place };
    let answered = Message::Answered { ticket: 9, answer };
    has_bytes(&answered, &format!("02 0900000000000000 01 03 02 {PLACE}"));
}

/// What a sealed region had alone: as it is said, sent in an image and kept in a snapshot.
#[test]
fn branches_have_these_bytes() {
    let (one, two) = ("0100000000000000", "0200000000000000");
    let id = format!("01000000 6b 02 {PLACE}");
    let written = (branch(Some([9].into())), format!("{id} {one} {two} 01 01000000 09"));
    let deleted = (branch(None), format!("{id} {one} {two} 00"));
    for (branch, text) in [written, deleted] {
        let entry = stream_entry(Body::Branch(branch.clone()), None);
        assert_eq!(entry.to_bytes(), bytes(&format!("{PLACE} {BEFORE} 00 07 {text}")));
        assert_eq!(StreamEntry::from_bytes(&entry.to_bytes()), Ok(entry));
        let tells = Message::Branch { branch: branch.clone(), shown: 2 };
        has_bytes(&tells, &format!("11 {text} {two}"));
        let item = Item::Branch(branch);
        assert_eq!(item.to_bytes(), bytes(&format!("06 {text}")));
        assert_eq!(Item::from_bytes(&item.to_bytes()), Ok(item));
    }

    // Said by its stream, and cut off here: of the second nobody knows but this region.
    let form = Form::new(Mode::Timeline, 2);
    let mut tablet = Tablet::new(&form, RegionId(1));
    let home = StreamId(0);
    let follow = |tablet: &mut Tablet, under: Epoch, number: u64, body: Body| {
        let before = Place::new(home.first_epoch(), number - 1);
        let before = if number == 1 { Place::default() } else { before };
        let place = Place::new(under, number);
        let entries = vec![StreamEntry { place, before: before.epoch, asked: None, body }];
        let entry = Entry::Followed { stream: home, under, before, entries };
        tablet.apply(tablet.applied() + 1, &entry.to_bytes(), &mut Vec::new()).unwrap();
    };
    follow(&mut tablet, home.first_epoch(), 1, Body::Branch(branch(None)));
    let with_one = snapshot(&tablet);
    let text = format!("02 {one} {id} {one} {two} 00 0000000000000000");
    assert!(with_one.ends_with(&bytes(&text)), "{with_one:x?}");
    // It waits for a version that is not here, and is cut off before that comes.
    follow(&mut tablet, home.first_epoch(), 2, change(ChangeKind::Put([9].into())));
    let second = Epoch::new(2, RegionId(1));
    follow(&mut tablet, second, 2, Body::Open);
    let kept = snapshot(&tablet);
    let id = "01000000 6b 00 0001000000000000 0200000000000000";
    let text = format!("{one} {id} 0700000000000000 0800000000000000 01 01000000 09");
    assert!(kept.ends_with(&bytes(&text)), "{kept:x?}");
    let restored = read_all(&kept, |source| Tablet::restore(&form, RegionId(1), source)).unwrap();
    assert_eq!((snapshot(&restored), restored.branches().unsaid().len()), (kept, 1));
}

/// Of a tablet of several regions a snapshot says, too, what there is of an image.
#[test]
fn a_tablet_that_takes_an_image_is_kept_in_these_bytes() {
    let form = Form::new(Mode::Timeline, 2);
    let mut tablet = Tablet::new(&form, RegionId(0));
    let image = ImageId { region: RegionId(1), log: LogId(2), number: 9 };
    let begun = Part { image, number: 0, is_last: false, items: Vec::new() };
    let plain = snapshot(&tablet);
    assert_eq!(plain.last(), Some(&0));
    tablet.apply(1, &Entry::Image(begun).to_bytes(), &mut Vec::new()).unwrap();
    let mut wanted = plain[..plain.len() - 1].to_vec();
    wanted[8] = 1;
    wanted.extend(bytes("01 01 0200000000000000 0900000000000000 0100000000000000"));
    wanted.extend(plain);
    assert_eq!(snapshot(&tablet), wanted);
    let restored = read_all(&wanted, |source| Tablet::restore(&form, RegionId(0), source));
    assert_eq!(snapshot(&restored.unwrap()), wanted);
}

/// And which region an operator has called lost: the last one, until it was heard.
#[test]
fn a_tablet_that_knows_of_a_lost_region_is_kept_in_these_bytes() {
    let form = Form::new(Mode::Timeline, 3);
    let mut tablet = Tablet::new(&form, RegionId(0));
    let call = |tablet: &mut Tablet, region: u8, is_lost: bool| {
        let entry = Entry::Lost { region: RegionId(region), is_lost };
        let applied = tablet.apply(tablet.applied() + 1, &entry.to_bytes(), &mut Vec::new());
        applied.unwrap().accepted
    };
    assert_eq!(snapshot(&tablet).last(), Some(&0));
    assert_eq!(call(&mut tablet, 1, true), Accepted::Yes);
    assert_eq!(call(&mut tablet, 2, true), Accepted::Yes);
    // Itself, and one that is none of its regions; and one that is not called lost.
    for (region, is_lost) in [(0, true), (9, true), (1, false), (9, false)] {
        assert_eq!(call(&mut tablet, region, is_lost), Accepted::Gap, "{region}");
    }
    let kept = snapshot(&tablet);
    assert!(kept.ends_with(&bytes("04 02")), "{kept:x?}");
    let mut restored =
        read_all(&kept, |source| Tablet::restore(&form, RegionId(0), source)).unwrap();
    assert_eq!((snapshot(&restored), restored.lost()), (kept, Some(RegionId(2))));
    assert_eq!(call(&mut restored, 2, false), Accepted::Yes);
    assert_eq!((snapshot(&restored).last(), restored.lost()), (Some(&0), None));
    assert_eq!(call(&mut tablet, 1, true), Accepted::Yes);
    // What was said to a log that is gone holds for none that follows it.
    tablet.apply(tablet.applied() + 1, &Entry::Log(LogId(2)).to_bytes(), &mut Vec::new()).unwrap();
    assert_eq!(tablet.lost(), None);
}

/// How much a message holds is known without encoding it.
#[test]
fn an_entry_has_as_many_bytes_as_it_says() {
    let asked = Some(Asked { session: 4, sequence: 5, below: 5 });
    let (region, log) = (RegionId(1), LogId(2));
    for body in [
        Body::Open,
        change(ChangeKind::Put([9, 8].into())),
        change(ChangeKind::Delete),
        change(ChangeKind::Move),
        change(ChangeKind::Forget),
        Body::Refused(Refusal::Found(6)),
        Body::Refused(Refusal::Absent),
        Body::Mark(vec![(region, 7), (RegionId(2), 8)]),
        Body::Admit { region, log },
        Body::Count { region, log },
        Body::Branch(branch(Some([9, 8].into()))),
        Body::Branch(branch(None)),
        Body::Resolved(branch(None).id),
    ] {
        for asked in [None, asked] {
            let entry = stream_entry(body.clone(), asked);
            assert_eq!(entry.encoded_bytes(), entry.to_bytes().len() as u64, "{entry:?}");
        }
    }
}

#[test]
fn what_a_newer_build_has_made_is_no_entry() {
    for text in ["", "02 01", "01 06", "01 02 02", "01 01 0300000000000000 00"] {
        assert!(Entry::from_bytes(&bytes(text)).is_err(), "{text}");
    }
    let mut entry = bytes(&format!("01 02 02 {PLACE} {BEFORE} 00 01"));
    *entry.last_mut().unwrap() = 10;
    assert!(Entry::from_bytes(&entry).is_err(), "a body of a later build");
}

/// A tablet of one region with a record: the entry that makes it, the entries, and the snapshot behind them.
#[test]
fn a_tablet_is_made_and_kept_in_these_bytes() {
    let made =
        Made { form: Form::new(Mode::Strong, 1), region: RegionId(0), tablet: 3, tablets: 5 };
    let member = "00 0100000000000000 01";
    let form = format!("02 00 01000000 {member} 00 0300 0500");
    assert_eq!(made.command(), bytes(&format!("01 06 {form}")));

    let context = Context::of("table/t/3");
    let mut view = TabletView::begin(&context);
    let epoch = StreamId(0).first_epoch();
    let home = StreamId(0);
    let entry = |number: u64, before: Epoch, body: Body| {
        let asked = Some(Asked { session: 4, sequence: number, below: number });
        let place = Place::new(epoch, number);
        Entry::Decided { stream: home, entry: StreamEntry { place, before, asked, body } }
    };
    let change = Change {
        key: b"k".to_vec(),
        version: 1,
        after: 0,
        home,
        origin: RegionId(0),
        kind: ChangeKind::Put([9].into()),
    };
    let entries = [
        made.command(),
        entry(1, Epoch(0), Body::Change(change)).to_bytes(),
        entry(2, epoch, Body::Refused(Refusal::Found(1))).to_bytes(),
    ];
    for (index, bytes) in (1..).zip(&entries) {
        let applied = view.apply(Index(index), bytes);
        let result = if index == 1 { Vec::new() } else { vec![1] };
        assert_eq!(applied, Applied::Ok(result));
    }
    // Strong: what is kept is known once somebody decides.
    assert!(view.decide(Settings::default(), None));
    let mut snapshot = Vec::new();
    collect(&mut snapshot, |out| view.snapshot(out));
    let epoch = "0001000000000000";
    let (one, two) = ("0100000000000000", "0200000000000000");
    let digest = view.look(|tablet| tablet.shown(home).digest.to_bytes()).unwrap();
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "01 {form} {one} 0300000000000000 0000000000000000 \
         00 {epoch} {two} {digest} 01000000 {epoch} {two} 0000000000000000 \
         {epoch} 01 {epoch} {epoch} {two} {one} 0000000000000000 01000000 {member} \
         {one} 01000000 6b {one} 00 01 01000000 09 00 {epoch} {one} 00 {one} 00000000 \
         {one} 0400000000000000 {two} {one} {two} 02 01 {one} 00 {epoch} {two}"
    );
    assert_eq!(snapshot, bytes(&text));
    let restored = read_all(&snapshot, |source| TabletView::restore(&context, source)).unwrap();
    let mut again = Vec::new();
    collect(&mut again, |out| restored.snapshot(out));
    assert_eq!(again, snapshot);
    let apart = restored.snapshot_apart().unwrap();
    let mut written = Vec::new();
    collect(&mut written, |out| apart(out, &mut || Ok(())));
    assert_eq!(written, snapshot, "apart from the view it is the same");
    let later = view.apply(Index(4), &bytes("01 10"));
    assert!(matches!(later, Applied::UnknownVersion(_)), "{later:?}");
    assert!(matches!(view.apply(Index(5), &made.command()), Applied::Refused(_)));
}

/// A message's bytes, and no others.
#[track_caller]
fn has_bytes(message: &Message, text: &str) {
    let wanted = bytes(text);
    assert_eq!(message.to_bytes(), wanted, "{message:?}");
    assert_eq!(Message::from_bytes(&wanted).as_ref(), Ok(message));
    for cut in 0..wanted.len() {
        assert!(Message::from_bytes(&wanted[..cut]).is_err(), "{text} up to {cut}");
    }
}

#[test]
fn requests_answers_and_tokens_have_these_bytes() {
    let (stream, epoch) = (StreamId(2), Epoch::new(2, RegionId(1)));
    let place = Place::new(epoch, 3);
    let before = Place::new(Epoch::new(1, RegionId(2)), 2);
    let asker = Asker { region: RegionId(3), ticket: 9 };
    let asked = Asked { session: 4, sequence: 5, below: 5 };
    let forward = |op, after| {
        let request = Request { key: b"k".to_vec(), op };
        Message::Forward { asker, request, hops: 7, after }
    };
    let write = |value, expect| forward(Op::Write { asked, value, expect }, None);
    let read = |level| forward(Op::Read(level), Some((stream, place)));
    let answered = |answer| Message::Answered { ticket: 9, answer };
    let mut token = Token::of(stream, place);
    token.see(stream, before);
    let nine = "0900000000000000";
    let (asks, no_place) = ("01 03 0900000000000000 01000000 6b", "00".repeat(16));
    let asked_text = "0400000000000000 0500000000000000 0500000000000000";
    let seen = format!("02000000 02 0201000000000000 0200000000000000 02 {PLACE}");
    for (message, text) in [
        (
            write(Some(vec![8]), Expect::Version(6)),
            format!("{asks} 01 {asked_text} 03 0600000000000000 01 01000000 08 07 00 {no_place}"),
        ),
        (write(None, Expect::Any), format!("{asks} 01 {asked_text} 01 00 07 00 {no_place}")),
        (write(None, Expect::Absent), format!("{asks} 01 {asked_text} 02 00 07 00 {no_place}")),
        (read(Level::Any), format!("{asks} 02 01 07 01 02 {PLACE}")),
        (read(Level::Critical(9)), format!("{asks} 02 02 {nine} 07 01 02 {PLACE}")),
        (read(Level::Session(token.clone())), format!("{asks} 02 03 {seen} 07 01 02 {PLACE}")),
        (read(Level::Latest), format!("{asks} 02 04 07 01 02 {PLACE}")),
        (read(Level::Strong), format!("{asks} 02 05 07 01 02 {PLACE}")),
        (
            answered(Answer::Done { outcome: Outcome::Written(9), stream, place }),
            format!("02 {nine} 01 01 {nine} 02 {PLACE}"),
        ),
        (
            answered(Answer::Value { found: Some((9, [8].into())), seen: token }),
            format!("02 {nine} 02 01 {nine} 01000000 08 {seen}"),
        ),
        (
            answered(Answer::Value { found: None, seen: Token::default() }),
            format!("02 {nine} 02 00 00000000"),
        ),
        (answered(Answer::Branched), format!("02 {nine} 03")),
    ] {
        has_bytes(&message, &text);
    }
    let again = answered(Answer::Retry("why, for people here")).to_bytes();
    assert_eq!(again, bytes(&format!("02 {nine} 04")));
    assert!(matches!(
        Message::from_bytes(&again),
        Ok(Message::Answered { answer: Answer::Retry(_), .. })
    ));
    let twice = format!("02 {nine} 02 00 02000000 02 {PLACE} 02 {PLACE}");
    assert!(Message::from_bytes(&bytes(&twice)).is_err(), "a place that stands there twice");
    assert!(Message::from_bytes(&bytes("11")).is_err(), "a message of a later build");
}

#[test]
fn what_regions_say_of_streams_has_these_bytes() {
    let (stream, epoch) = (StreamId(2), Epoch::new(2, RegionId(1)));
    let place = Place::new(epoch, 3);
    let before = Place::new(Epoch::new(1, RegionId(2)), 2);
    let entries = vec![stream_entry(Body::Open, None)];
    let nine = "0900000000000000";
    let held = "0201000000000000 0200000000000000";
    let (epoch_text, ends) = ("0102000000000000", format!("01000000 {held}"));
    let opens = format!("01000000 {PLACE} {BEFORE} 00 01");
    let position =
        Position { stream, matched: place, shown: 2, promised: Epoch::new(1, RegionId(2)) };
    for (message, text) in [
        (Message::NotShown { ticket: 9 }, format!("03 {nine}")),
        (Message::MarkAsked { stream, ticket: 9 }, format!("04 02 {nine}")),
        (
            Message::Push { stream, under: epoch, before, entries: entries.clone(), kept: 9 },
            format!("05 02 {epoch_text} {held} {opens} {nine}"),
        ),
        (
            Message::Behind { stream, under: epoch, ends: vec![before] },
            format!("06 02 {epoch_text} {ends}"),
        ),
        (
            Message::Positions(vec![position]),
            format!("07 01000000 02 {PLACE} 0200000000000000 {BEFORE}"),
        ),
        (Message::AskPromise { stream, epoch }, format!("08 02 {epoch_text}")),
        (
            Message::Promised { stream, epoch, tail: place, before: before.epoch },
            format!("09 02 {epoch_text} {PLACE} {BEFORE}"),
        ),
        (Message::Refused { stream, promised: epoch }, format!("0a 02 {epoch_text}")),
        (
            Message::Fetch { stream, epoch, ends: vec![before] },
            format!("0b 02 {epoch_text} {ends}"),
        ),
        (
            Message::Fetched { stream, epoch, before, entries },
            format!("0c 02 {epoch_text} {held} {opens}"),
        ),
    ] {
        has_bytes(&message, &text);
    }
}
