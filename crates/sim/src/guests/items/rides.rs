//! Rides of a node's half: some of everything, some of what was drawn. What came is held against what was
//! acknowledged, with the horizon of the ride's own index.

use super::{HALVES, Items, MayBe, OF, Shown, Version, disks_of};
use crate::world::guest::Visitor;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind};
use holdfast_env::HoldMutex;
use holdfast_wire::slab::{self, Content, Hashed, Range, Reader, Received};
use holdfast_wire::{self as wire, view as msg};
use std::collections::BTreeMap;

/// What a ride is asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    versions: bool,
    keys_only: bool,
    /// The tags alone.
    tags: bool,
    collections: Option<Vec<u16>>,
    since: Index,
    below: Option<Index>,
}

/// What came of a key's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Value(Vec<u8>),
    Deleted,
    NotSent,
}

/// What a ride brought: by key and by the entry that made it.
pub(super) type Brought = BTreeMap<Vec<u8>, BTreeMap<u64, Came>>;

/// What was ridden: of which keys, as of which entry, and where the horizon was then.
#[derive(Clone, Copy)]
pub(super) struct Ridden {
    pub range: Range,
    pub index: Index,
    pub horizon: Index,
}

impl Wish {
    /// The newest value of each key.
    pub fn newest() -> Wish {
        Wish {
            versions: false,
            keys_only: false,
            tags: false,
            collections: None,
            since: Index(0),
            below: None,
        }
    }

    /// Of a log that goes up to `last`.
    pub fn draw(visitor: &Visitor, last: Index) -> Wish {
        let indices = match (visitor.below(4), visitor.below(last.0 + 1), visitor.below(last.0 + 2))
        {
            (0, from, _) => (from, None),
            (1, from, until) if from < until => (from, Some(Index(until))),
            _ => (0, None),
        };
        let tags = visitor.below(5) == 0;
        let wish = Wish {
            versions: visitor.below(2) == 0,
            keys_only: !tags && visitor.below(4) == 0,
            tags,
            collections: [None, None, Some(vec![OF]), Some(vec![OF + 1])]
                [visitor.below(4) as usize]
                .clone(),
            since: Index(indices.0),
            below: indices.1,
        };
        visitor.note(&format!("rides for {wish:?}"));
        wish
    }

    pub fn board(&self, view: msg::ViewName, range: Range) -> msg::Board {
        msg::Board {
            collections: self.collections.clone(),
            keys_only: self.keys_only,
            versions: self.versions,
            since: self.since,
            below: self.below,
            fields: self.tags.then(|| vec!["tags".to_owned()]),
            ..msg::Board::of(view, range)
        }
    }

    fn is_of(&self, index: u64) -> bool {
        index >= self.since.0 && self.below.is_none_or(|below| index < below.0)
    }

    /// What is sent of a version.
    fn sent(&self, value: &Option<Vec<u8>>) -> Came {
        let Some(value) = value else { return Came::Deleted };
        if self.keys_only {
            return Came::NotSent;
        }
        if !self.tags {
            return Came::Value(value.clone());
        }
        // As `tagged` has written them.
        let text = String::from_utf8(value.clone()).expect("values are text");
        let rest = text.find(r#", "rest""#).expect("each has a rest");
        let tags = text[..rest].strip_prefix(r#"{"tags": "#).expect("each begins with its tags");
        Came::Value(format!(r#"{{"tags":{tags}}}"#).into_bytes())
    }

    /// Which of the acknowledged versions of a key are to come, and whether each may be missing as one that
    /// is in doubt may stand in its place.
    fn wanted(
        &self,
        versions: &[Version],
        in_doubt: bool,
        ridden: &Ridden,
    ) -> BTreeMap<u64, (Came, bool)> {
        let Ridden { index, horizon, .. } = *ridden;
        let mut wanted = BTreeMap::new();
        if self.collections.as_ref().is_some_and(|listed| !listed.contains(&OF)) {
            return wanted;
        }
        let upto = versions.partition_point(|(made, _)| *made <= index.0);
        for (at, (made, value)) in versions[..upto].iter().enumerate() {
            let is_last = at + 1 == upto;
            let is_passed = *made <= horizon.0
                && (value.is_none()
                    || versions[..upto].get(at + 1).is_some_and(|n| n.0 <= horizon.0));
            let is_seen = match self.versions {
                true => !is_passed,
                false => is_last && value.is_some(),
            };
            if is_seen && self.is_of(*made) {
                wanted.insert(*made, (self.sent(value), is_last && in_doubt));
            }
        }
        wanted
    }
}

/// What a rider hears that nobody has broken a promise with.
fn is_broken(e: &Error) -> bool {
    matches!(e.kind, Kind::Bug | Kind::Corrupt | Kind::Invalid)
}

impl Items {
    /// Rides a node's half, which it names: one index, each key once, nothing missing.
    pub(super) async fn ride(
        &self,
        visitor: &Visitor,
        gateway: usize,
        reached: Index,
        wish: &Wish,
    ) -> Option<(u32, Shown)> {
        let mut disks = disks_of(visitor, gateway).await?.into_iter();
        let msg::ViewStatus { view, images, .. } = disks.find(|one| one.view.of == HALVES)?;
        let marks: Vec<Index> = images.iter().map(|image| image.index).collect();
        self.damage.look(visitor, gateway, &marks);
        // Of an image nobody asks for later entries than its own.
        let at = images.last().map(|image| image.index).filter(|_| reached.0 == 0);
        let at = at.filter(|_| visitor.below(2) == 0);
        let part = view.part;
        let range = Range::part(view.part, view.of);
        let board = msg::Board {
            reached,
            dedicated: visitor.below(4) == 0 && at.is_none(),
            at,
            ..wish.board(view, range)
        };
        let mut brought = Brought::new();
        let mut each = |_: &[u8], items: &Reader<'_>| take(visitor, items, wish, &mut brought);
        let came = self.receive(visitor, gateway, &board, |_, _| true, &mut each).await;
        match came {
            Ok(Some(boarded)) => {
                visitor.sometimes(!brought.is_empty(), "a ride came to its end");
                visitor.sometimes(at.is_some(), "an image was ridden");
                let (index, horizon) = (boarded.index, boarded.horizon);
                self.arrived(visitor, wish, &Ridden { range, index, horizon }, &brought);
            }
            Ok(None) => return None,
            Err(e) => {
                self.does_not_ride(visitor, gateway, at, &e);
                return None;
            }
        }
        let newest = |(key, versions): (Vec<u8>, BTreeMap<u64, Came>)| {
            let (index, came) = versions.into_iter().next_back()?;
            let Came::Value(value) = came else { return None };
            Some((key, (index, value)))
        };
        Some((part, brought.into_iter().filter_map(newest).collect()))
    }

    /// A ride has ended with an error; which of these are broken promises.
    pub(super) fn does_not_ride(
        &self,
        visitor: &Visitor,
        gateway: usize,
        at: Option<Index>,
        e: &Error,
    ) {
        visitor.note(&format!("does not ride on at n{gateway}: {e}"));
        let is_damaged = at.is_some_and(|at| self.damage.is_told(visitor, gateway, at, e));
        if is_broken(e) && !is_damaged {
            visitor.violate(&format!("a ride at n{gateway}: {e}"));
        }
    }

    /// Boards, asks until the end, and has `each` take what comes. `may_begin` hears what was boarded, and what is
    /// needed to go on behind it. What was boarded; nothing where `each`
    /// has had enough.
    pub(super) async fn receive(
        &self,
        visitor: &Visitor,
        gateway: usize,
        board: &msg::Board,
        mut may_begin: impl FnMut(&msg::Boarded, &[u8]) -> bool,
        each: &mut (dyn FnMut(&[u8], &Reader<'_>) -> bool + Send),
    ) -> Result<Option<msg::Boarded>, Error> {
        let begun = visitor.ask(gateway, wire::OP_RIDE_BEGIN, board.to_bytes(), None).await?;
        let boarded = msg::Boarded::from_bytes(&begun.meta).expect("what was answered");
        if let Err(e) = boarded.check_front(&begun.body) {
            visitor.violate(&format!("a ride at n{gateway}: {e}"));
        }
        let riding = self.horizons.rides(gateway, boarded.index, board.at.is_none());
        if !may_begin(&boarded, &begun.body) {
            return Ok(None);
        }
        let mut head = 0;
        let mut silent = 0;
        // One head after the other would do: the end is told for all of them.
        while silent < boarded.heads {
            let next = msg::Next { ride: boarded.ride, head }.to_bytes();
            let reply = match visitor.ask(gateway, wire::OP_RIDE_NEXT, next, None).await {
                Ok(reply) => reply,
                Err(e) if e.kind == Kind::Retry && boarded.heads > 1 => {
                    // Nothing came of this head while another one was not asked for.
                    (head, silent) = ((head + 1) % boarded.heads, silent + 1);
                    continue;
                }
                Err(e) => return Err(e),
            };
            silent = 0;
            self.horizons.check(visitor, riding);
            if reply.meta.is_empty() {
                return Ok(Some(boarded));
            }
            let read = match Reader::new(&reply.meta, &reply.body) {
                Ok(read) => read,
                Err(e) => {
                    visitor.violate(&format!("a slab of a ride: {e}"));
                    return Ok(None);
                }
            };
            let header = read.header;
            if header.index != boarded.index.0 {
                let (index, other) = (boarded.index, header.index);
                visitor.violate(&format!("a ride at {index} brings a slab of {other}"));
                return Ok(None);
            }
            visitor.sometimes(header.begins_inside_key, "a key was larger than a slab");
            if !each(&reply.meta, &read) {
                return Ok(None);
            }
            if visitor.below(3) == 0 {
                head = (head + 1) % boarded.heads;
            }
            if visitor.below(20) == 0 {
                visitor.pause().await;
            }
        }
        Err(Error::retry("no head has an answer"))
    }

    /// Holds what came against what was acknowledged.
    pub(super) fn arrived(
        &self,
        visitor: &Visitor,
        wish: &Wish,
        ridden: &Ridden,
        brought: &Brought,
    ) {
        let (keys, in_doubt) = (self.keys.held(), self.in_doubt.held());
        let all: std::collections::BTreeSet<&Vec<u8>> =
            keys.keys().chain(in_doubt.keys()).chain(brought.keys()).collect();
        let none = BTreeMap::new();
        for key in all {
            if !ridden.range.contains(slab::hash(Hashed::All, key)) {
                if brought.contains_key(key) {
                    visitor.violate(&format!("a ride brings {key:?} of another part"));
                }
                continue;
            }
            let versions = keys.get(key).map(Vec::as_slice).unwrap_or_default();
            let may_be = in_doubt.get(key).map(Vec::as_slice).unwrap_or_default();
            let wrong = compared(wish, ridden, versions, may_be, brought.get(key).unwrap_or(&none));
            if let Some(wrong) = wrong {
                let (index, horizon) = (ridden.index, ridden.horizon);
                visitor.violate(&format!(
                    "of {key:?} a ride at {index}, horizon {horizon}, for {wish:?} {wrong}"
                ));
            }
        }
    }
}

/// What is wrong with what came of a key.
fn compared(
    wish: &Wish,
    ridden: &Ridden,
    versions: &[Version],
    may_be: &[Option<Vec<u8>>],
    came: &BTreeMap<u64, Came>,
) -> Option<String> {
    let in_doubt: &MayBe = &may_be.to_vec();
    let wanted = wish.wanted(versions, !in_doubt.is_empty(), ridden);
    for (made, (value, may_lack)) in &wanted {
        match came.get(made) {
            Some(same) if same == value => {}
            None if *may_lack => {}
            other => return Some(format!("brings {other:?} of {made}, not {value:?}")),
        }
    }
    let last = versions.last().map_or(0, |(made, _)| *made);
    let others = came.iter().filter(|(made, _)| !wanted.contains_key(made));
    for (made, other) in others {
        let may_come = *made > last
            && *made <= ridden.index.0
            && wish.is_of(*made)
            && in_doubt.iter().any(|value| wish.sent(value) == *other);
        if !may_come {
            return Some(format!("brings {other:?} of {made}, which is not to come"));
        }
    }
    None
}

/// Takes what a slab brings; whether it may be.
pub(super) fn take(
    visitor: &Visitor,
    items: &Reader<'_>,
    wish: &Wish,
    brought: &mut Brought,
) -> bool {
    for Received { key, index, content, .. } in items.items() {
        let came = match content {
            Content::Value(value) => Came::Value(value.to_vec()),
            Content::Deleted => Came::Deleted,
            Content::NotSent => Came::NotSent,
        };
        let versions = brought.entry(key.to_vec()).or_default();
        let is_behind = versions.last_key_value().is_none_or(|(last, _)| *last < index);
        if !is_behind || (!wish.versions && !versions.is_empty()) {
            visitor.violate(&format!("a ride brings {key:?} of {index} behind {versions:?}"));
            return false;
        }
        versions.insert(index, came);
    }
    true
}
