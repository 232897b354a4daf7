//! Whatever another region's process says: ids that no form names, places that nobody holds, entries
//! that lie. A region refuses it, or takes it for what it may be, and goes on.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::random::Random;
use holdfast_base::stream;
use holdfast_env::trial::Trial;
use holdfast_table::entry::{Asked, Body, Change, ChangeKind, Refusal, Resolution, StreamEntry};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::message::{
    Answer, Asker, Expect, GroupDo, GroupWrite, Level, Message, Op, Position, Request,
};
use holdfast_table::record::Record;
use holdfast_table::region::{Effect, Region, Settings};
use holdfast_table::sessions::{Outcome, Remembered, SessionImage, SessionResult};
use holdfast_table::stream::{Member, Members, StreamImage};
use holdfast_table::tablet::branch::BranchId;
use holdfast_table::tablet::image::{ImageId, Item, Part};
use holdfast_table::tablet::{Form, Mode, Shown, Tablet};
use holdfast_table::token::Token;

/// Draws what fits, nearly fits, or does not fit at all.
struct Liar(Random);

impl Liar {
    fn number(&mut self) -> u64 {
        match self.0.below(12) {
            0 => 0,
            1..8 => 1 + self.0.below(6),
            8 => u64::MAX - self.0.below(3),
            9 => (1 << 48) - self.0.below(3),
            10 => 1 << self.0.below(64),
            _ => self.0.next(),
        }
    }

    fn region(&mut self) -> RegionId {
        match self.0.below(8) {
            0 => RegionId(self.0.next() as u8),
            _ => RegionId(self.0.below(3) as u8),
        }
    }

    fn stream(&mut self) -> StreamId {
        StreamId::of(self.region())
    }

    fn epoch(&mut self) -> Epoch {
        match self.0.below(10) {
            0 => Epoch(self.number()),
            1 => Epoch(self.number() << 8 | u64::from(self.region().0)),
            _ => Epoch::new(1 + self.0.below(3), self.region()),
        }
    }

    fn place(&mut self) -> Place {
        match self.0.below(5) {
            0 => Place::default(),
            _ => Place::new(self.epoch(), self.number()),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        match self.0.below(20) {
            0 => Vec::new(),
            1 => vec![1; 7000],
            _ => vec![b'a' + self.0.below(3) as u8],
        }
    }

    fn value(&mut self) -> Vec<u8> {
        vec![0; if self.0.below(60) == 0 { 2 << 20 } else { 3 }]
    }

    fn body(&mut self) -> Body {
        match self.0.below(12) {
            11 => {
                let changes = (0..self.0.below(3)).filter_map(|_| match self.body() {
                    Body::Change(change) => Some(change),
                    _ => None,
                });
                Body::Group(changes.collect())
            }
            10 => {
                let change = match self.body() {
                    Body::Change(change) => Some(change),
                    _ => None,
                };
                let key = change.as_ref().map_or_else(|| self.key(), |change| change.key.clone());
                let id = BranchId { key, stream: self.stream(), place: self.place() };
                Body::Resolves(Resolution { id, said: self.place(), change })
            }
            0 => Body::Open,
            1 => Body::Refused(Refusal::Found(self.number())),
            2 => Body::Mark(vec![(self.region(), self.number()), (self.region(), self.number())]),
            3 => Body::Admit { region: self.region(), log: LogId(self.number()) },
            4 => Body::Count { region: self.region(), log: LogId(self.number()) },
            _ => {
                let version = self.number();
                let after = match self.0.below(3) {
                    0 => 0,
                    1 => version.wrapping_sub(1),
                    _ => self.number(),
                };
                let kind = match self.0.below(6) {
                    0 => ChangeKind::Delete,
                    1 => ChangeKind::Move,
                    2 => ChangeKind::Forget,
                    _ => ChangeKind::Put(self.value().into()),
                };
                let (key, home, origin) = (self.key(), self.stream(), self.region());
                Body::Change(Change { key, version, after, home, origin, kind })
            }
        }
    }

    fn asked(&mut self) -> Asked {
        Asked { session: self.0.below(3), sequence: self.number(), below: self.number() }
    }

    /// Mostly a chain, so that some of it is believed.
    fn entries(&mut self, before: Place, under: Epoch) -> Vec<StreamEntry> {
        let mut last = before;
        let mut entries = Vec::new();
        for _ in 0..self.0.below(4) {
            let mut place = Place::new(under, last.number.wrapping_add(1));
            if self.0.below(10) == 0 {
                place = self.place();
            }
            let asked = (self.0.below(2) == 0).then(|| self.asked());
            entries.push(StreamEntry { place, before: last.epoch, asked, body: self.body() });
            last = place;
        }
        entries
    }

    fn op(&mut self) -> Op {
        match self.0.below(7) {
            6 => {
                let write = |_| GroupWrite {
                    key: self.key(),
                    expect: if self.0.below(2) == 0 { Expect::Any } else { Expect::Absent },
                    what: match self.0.below(4) {
                        0 => GroupDo::Delete,
                        1 => GroupDo::Check,
                        _ => GroupDo::Put(self.value().into()),
                    },
                };
                let writes = (0..3).map(write).collect();
                Op::Group { asked: self.asked(), writes }
            }
            0 => Op::Read(Level::Any),
            1 => Op::Read(Level::Critical(self.number())),
            2 => Op::Read(Level::Session(Token::of(self.stream(), self.place()))),
            3 => Op::Read(Level::Latest),
            _ => {
                let expect = match self.0.below(3) {
                    0 => Expect::Absent,
                    1 => Expect::Version(self.number()),
                    _ => Expect::Any,
                };
                let value = (self.0.below(4) > 0).then(|| self.value());
                Op::Write { asked: self.asked(), value, expect }
            }
        }
    }

    fn answer(&mut self) -> Answer {
        match self.0.below(4) {
            0 => {
                let outcome = Outcome::Written(self.number());
                Answer::Done { outcome, stream: self.stream(), place: self.place() }
            }
            1 => Answer::Value { found: None, seen: Token::of(self.stream(), self.place()) },
            2 => Answer::Branched,
            _ => Answer::Retry("so it is said"),
        }
    }

    fn item(&mut self) -> Item {
        match self.0.below(5) {
            0 => Item::Floor(self.number()),
            1 => {
                let member = |region| Member { region, log: LogId(1), counts: true };
                let members = match self.0.below(3) {
                    0 => vec![member(self.region())],
                    _ => (0..3).map(RegionId).map(member).collect(),
                };
                let members = vec![Members { from: self.number() % 2, members }];
                let forgotten = (0..self.0.below(3)).map(|_| self.place()).collect();
                let head =
                    StreamImage { id: self.stream(), forgotten, promised: self.epoch(), members };
                Item::Stream { head, shown: Shown { place: self.place(), digest: 1 } }
            }
            2 => {
                let (place, under) = (self.place(), self.epoch());
                let entry = self.entries(place, under).into_iter().next();
                entry.map_or(Item::Floor(0), |entry| Item::Entry { stream: self.stream(), entry })
            }
            3 => {
                let record = Record {
                    version: self.number(),
                    home: self.stream(),
                    value: Some(self.value().into()),
                    stream: self.stream(),
                    place: self.place(),
                    origin: self.region(),
                    run: self.number(),
                    moves: vec![self.number()],
                };
                Item::Record { key: self.key(), record }
            }
            _ => {
                let outcome = Outcome::Written(1);
                let result = Remembered { outcome, stream: self.stream(), place: self.place() };
                let results = vec![SessionResult { sequence: self.number(), result }];
                Item::Session(SessionImage { id: 1, below: self.number(), results })
            }
        }
    }

    fn message(&mut self) -> Message {
        let (stream, epoch, before) = (self.stream(), self.epoch(), self.place());
        let ends = (0..self.0.below(3)).map(|_| self.place()).collect();
        match self.0.below(16) {
            0 | 1 => {
                let op = self.op();
                let key = match &op {
                    Op::Group { writes, .. } => writes[0].key.clone(),
                    _ => self.key(),
                };
                let request = Request { key, op };
                let asker = Asker { region: self.region(), ticket: self.number() };
                let after = (self.0.below(2) == 0).then_some((stream, before));
                Message::Forward { asker, request, hops: self.0.below(256) as u8, after }
            }
            2 => Message::Answered { ticket: 1 << 32 | self.0.below(20), answer: self.answer() },
            3 => Message::NotShown { ticket: 1 << 32 | self.0.below(20) },
            4 => Message::MarkAsked { stream, ticket: self.number() },
            5 | 6 => {
                let entries = self.entries(before, epoch);
                Message::Push { stream, under: epoch, before, entries, kept: self.number() }
            }
            7 => Message::Behind { stream, under: epoch, ends },
            8 => {
                let mut position = || Position {
                    stream: self.stream(),
                    matched: self.place(),
                    shown: self.number(),
                    promised: self.epoch(),
                };
                Message::Positions(vec![position(), position()])
            }
            9 => Message::AskPromise { stream, epoch },
            10 => Message::Promised { stream, epoch, tail: before, before: epoch },
            11 => Message::Refused { stream, promised: epoch },
            12 => Message::Fetch { stream, epoch, ends },
            13 => {
                let entries = self.entries(before, epoch);
                Message::Fetched { stream, epoch, before, entries }
            }
            14 => match self.0.below(2) {
                0 => Message::Forgotten { stream, up_to: before },
                _ => Message::ImageAsked { image: None, part: self.number() },
            },
            _ => {
                let image = ImageId { region: self.region(), log: LogId(1), number: 1 };
                let items = (0..self.0.below(4)).map(|_| self.item()).collect();
                let (number, is_last) = (self.0.below(3), self.0.below(2) == 0);
                Message::ImagePart(Part { image, number, is_last, items })
            }
        }
    }
}

/// The region's process ends, and starts over its snapshot: whatever it was told outlives that.
fn again(region: Region, start: u64, settings: Settings) -> Region {
    let tablet = region.into_tablet();
    let mut bytes = Vec::new();
    stream::collect(&mut bytes, |out| tablet.snapshot(out));
    let restore =
        |source: &mut stream::Source<'_>| Tablet::restore(tablet.form(), tablet.region(), source);
    let restored = stream::read_all(&bytes, restore).expect("it has written it itself");
    Region::start(restored, LogId(1), start, settings)
}

fn tell(seed: u64, mode: Mode) -> (usize, usize) {
    let mut liar = Liar(Random::new(seed));
    let mut tablet = Tablet::new(&Form::new(mode, 3), RegionId(0));
    let log = holdfast_table::entry::Entry::Log(LogId(1)).to_bytes();
    tablet.apply(1, &log, &mut Vec::new()).unwrap();
    let settings =
        Settings { silence_ticks: 3, resend_ticks: 2, return_ticks: 2, ..Settings::default() };
    let mut region = Region::start(tablet, LogId(1), 1, settings);
    let (mut appended, mut index) = (0, 1);
    let mut held = 0;
    for step in 0..300 {
        if step % 60 == 59 {
            region = again(region, 2 + step, settings);
        }
        match liar.0.below(6) {
            0 => region.tick(),
            1 => {
                let key = vec![b'a' + liar.0.below(3) as u8];
                let op = liar.op();
                // Clients of this region are held to the limits in front of it.
                let is_large = |value: &Vec<u8>| value.len() > 3;
                let is_held = match &op {
                    Op::Write { value, .. } => value.as_ref().is_some_and(is_large),
                    Op::Group { .. } => true,
                    _ => false,
                };
                if is_held {
                    continue;
                }
                region.ask(step, Request { key, op });
            }
            _ => {
                let message = liar.message();
                // What has no bytes nobody sends.
                let bytes = message.to_bytes();
                assert!(Message::from_bytes(&bytes).is_ok(), "{message:?}");
                let from = RegionId(1 + liar.0.below(3) as u8);
                region.arrived(from, LogId(1 + liar.0.below(2)), message);
            }
        }
        for effect in region.effects() {
            match effect {
                Effect::Append(bytes) => {
                    assert!(bytes.len() + 40 <= holdfast_base::limits::ENTRY_BYTES_MAX);
                    index += 1;
                    appended += 1;
                    region.appended(index, &bytes).unwrap();
                }
                Effect::Send { to, .. } => assert!(to.0 < 3 && to.0 != 0, "{to}"),
                Effect::Answer { .. } => {}
            }
        }
        held = region.tablet().streams().filter(|s| s.tail().number > 0).count();
    }
    (appended, held)
}

#[test]
fn whatever_another_region_says_a_region_goes_on() {
    let (mut appended, mut held) = (0, 0);
    let seeds = std::env::var("HOLDFAST_TABLE_LIES").ok().and_then(|n| n.parse().ok());
    for seed in 0..seeds.unwrap_or(300) {
        let _entered = Trial::drawn(seed).enter();
        for mode in [Mode::Strong, Mode::Timeline] {
            let (more, streams) = tell(seed, mode);
            appended += more;
            held += streams;
        }
    }
    // Some of it could be true, and is taken: a gate that lets nothing in would prove nothing.
    assert!(appended > 10_000 && held > 300, "{appended} {held}");
}
