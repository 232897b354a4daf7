//! A table of plain tablets, which tests write, split and look at entry by entry, without a region or a topic.

use super::{Growing, Growth, Next, Pieces, Splitting};
use crate::entry::{Asked, Body, Change, ChangeKind, Entry, StreamEntry};
use crate::ids::{Place, RegionId, StreamId};
use crate::name::hash_of;
use crate::tablet::span::{self, Half, Span};
use crate::tablet::{Form, Mode, Tablet};
use holdfast_base::codec::Encode;
use std::collections::BTreeMap;
use std::convert::Infallible;

const HOME: StreamId = StreamId(0);

pub(crate) struct Table {
    /// By their numbers.
    pub tablets: Vec<Tablet>,
    /// Of its keys, what was written last.
    pub model: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    attempts: u64,
}

impl Table {
    pub fn new() -> Table {
        let form = Form::new(Mode::Timeline, 1);
        let tablet = Tablet::made(&form, RegionId(0), form.members[0].log);
        Table { tablets: vec![tablet], model: BTreeMap::new(), attempts: 0 }
    }

    /// By their hashes: see [`span::cut`].
    pub fn cut(&self) -> Vec<(u32, u32, u16)> {
        let span_of =
            |number: u16| Ok::<_, Infallible>(self.tablets[usize::from(number)].span().clone());
        span::cut(1, span_of).unwrap()
    }

    pub fn number(&self, hash: u32) -> usize {
        usize::from(span::number_at(&self.cut(), hash))
    }

    /// Writes a record in the tablet that has it; false where it is leaving that.
    pub fn put(&mut self, asked: Asked, key: &[u8], value: &[u8]) -> bool {
        let number = self.number(hash_of(key));
        let tablet = &self.tablets[number];
        if tablet.span().is_leaving(key) {
            return false;
        }
        let after = tablet.record(key).map_or(0, |record| record.version);
        let change = Change {
            key: key.to_vec(),
            version: after + 1,
            after,
            home: HOME,
            origin: RegionId(0),
            kind: ChangeKind::Put(value.into()),
        };
        self.decide(number, Some(asked), Body::Change(change));
        self.model.insert(key.to_vec(), (after + 1, value.to_vec()));
        true
    }

    fn decide(&mut self, number: usize, asked: Option<Asked>, body: Body) {
        let tablet = &mut self.tablets[number];
        let tail = tablet.stream(HOME).tail();
        let entry = StreamEntry {
            place: Place::new(HOME.first_epoch(), tail.number + 1),
            before: tail.epoch,
            asked,
            body,
        };
        let entry = Entry::Decided { stream: HOME, entry }.to_bytes();
        tablet.apply(tablet.applied() + 1, &entry, &mut Vec::new()).unwrap();
    }

    /// The tablet that has this hash begins to give away what lies from there on; which one that is. Nothing where that
    /// leaves one of two halves without a hash.
    pub fn begin(&mut self, at: u32) -> Option<usize> {
        let (number, child) = (self.number(at), self.tablets.len() as u16);
        self.decide(number, None, Body::Split(Half { at, child }));
        self.tablets[number].span().leaving.map(|_| number)
    }

    /// What gets the half that a tablet is giving away, with nothing of it yet.
    pub fn child(&self, parent: usize) -> Growing {
        let tablet = &self.tablets[parent];
        let half = tablet.span().leaving.expect("it gives a half away");
        let span = Span::between(half.at, tablet.span().last);
        Growing::new(tablet.form(), tablet.region(), tablet.log(), span)
    }

    /// What is next for that half.
    pub fn pieces(&self, parent: usize, child: &Growing, splitting: &mut Splitting) -> Pieces {
        let growth = Growth::Grows {
            span: child.span().clone(),
            attempt: child.attempt(),
            next: child.next(),
        };
        match splitting.next(&self.tablets[parent], &growth).unwrap() {
            Some(Next::Give(_, pieces)) => pieces,
            other => panic!("{other:?}"),
        }
    }

    /// The half is whole: it is another tablet's.
    pub fn hand_over(&mut self, parent: usize, child: Growing) {
        let number = self.tablets.len() as u16;
        self.tablets.push(*child.into_tablet());
        self.decide(parent, None, Body::HandedOver { child: number });
    }

    /// All that [`Table::begin`] has begun.
    pub fn end(&mut self, parent: usize) {
        self.attempts += 1;
        let (mut child, mut splitting) = (self.child(parent), Splitting::new(self.attempts));
        loop {
            let pieces = self.pieces(parent, &child, &mut splitting);
            let index = child.tablet().applied() + 1;
            if child.take(index, pieces).unwrap() == Some(true) {
                return self.hand_over(parent, child);
            }
        }
    }
}
