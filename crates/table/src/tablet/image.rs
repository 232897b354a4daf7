//! A tablet as one region sends it to another one's log that has begun anew, and lacks what the
//! others have forgotten: in parts, each an entry of the newcomer's topic, put together beside what
//! the newcomer has, and taken with the last one.

use super::branch::{Branch, BranchId, cut_off};
use super::{Mode, Shown, Tablet};
use crate::entry::{Body, StreamEntry};
use crate::ids::{Key, LogId, RegionId, StreamId};
use crate::record::Record;
use crate::sessions::SessionImage;
use crate::stream::{Accepted, Stream, StreamImage};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Result, codec_struct};
use holdfast_env::{planted, sometimes};
use std::ops::Bound;

/// One image of all that were ever sent: of which region, of which of its logs, and which of that
/// log's. Parts of two images do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageId {
    pub region: RegionId,
    pub log: LogId,
    /// Never the same twice.
    pub number: u64,
}

/// Some of an image's items, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub image: ImageId,
    /// From 0.
    pub number: u64,
    /// There is none behind it.
    pub is_last: bool,
    pub items: Vec<Item>,
}

/// What a tablet is made of: first the floor; of each stream its head and then its entries; records
/// in order of keys; sessions, the one not heard of for longest first; branches, in order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The highest version that was forgotten.
    Floor(u64),
    Stream {
        head: StreamImage,
        shown: Shown,
    },
    /// What a stream has in memory.
    Entry {
        stream: StreamId,
        entry: StreamEntry,
    },
    Record {
        key: Key,
        record: Record,
    },
    Session(SessionImage),
    Branch(Branch),
}

codec_struct!(ImageId { region, log, number });
codec_struct!(Part { image, number, is_last, items });

impl Encode for Item {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Item::Floor(version) => {
                1u8.encode(out);
                version.encode(out);
            }
            Item::Stream { head, shown } => {
                2u8.encode(out);
                head.encode(out);
                shown.place.encode(out);
                shown.digest.encode(out);
            }
            Item::Entry { stream, entry } => {
                3u8.encode(out);
                stream.encode(out);
                entry.encode(out);
            }
            Item::Record { key, record } => {
                4u8.encode(out);
                put_bytes(out, key);
                record.encode(out);
            }
            Item::Session(session) => {
                5u8.encode(out);
                session.encode(out);
            }
            Item::Branch(branch) => {
                6u8.encode(out);
                branch.encode(out);
            }
        }
    }
}

impl Decode for Item {
    fn decode(reader: &mut Reader<'_>) -> Result<Item, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Item::Floor(u64::decode(reader)?),
            2 => Item::Stream {
                head: StreamImage::decode(reader)?,
                shown: Shown { place: Decode::decode(reader)?, digest: u64::decode(reader)? },
            },
            3 => Item::Entry {
                stream: StreamId::decode(reader)?,
                entry: StreamEntry::decode(reader)?,
            },
            4 => Item::Record { key: reader.bytes()?.to_vec(), record: Record::decode(reader)? },
            5 => Item::Session(SessionImage::decode(reader)?),
            6 => Item::Branch(Branch::decode(reader)?),
            _ => return Err(DecodeError::BadValue("item of an image")),
        })
    }
}

/// Where in a tablet an image has come to: what is named was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    Begin,
    Floor,
    Entry(StreamId, u64),
    Record(Key),
    /// By its turn.
    Session(u64),
    Branch(BranchId),
}

/// An image that is being put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taking {
    image: ImageId,
    /// The part that comes next.
    next: u64,
    tablet: Tablet,
}

impl Taking {
    pub(super) fn snapshot(&self, out: &mut Writer<'_>, goes_on: &mut dyn FnMut() -> Result<()>) {
        out.put(&self.image);
        out.put(&self.next);
        self.tablet.snapshot_while(out, goes_on);
    }

    pub(super) fn restore(of: &Tablet, source: &mut Source<'_>) -> Result<Taking> {
        Ok(Taking {
            image: source.get()?,
            next: source.get()?,
            tablet: Tablet::restore(&of.form, of.region, source)?,
        })
    }

    /// Puts an item beside those before; false for one that does not fit.
    fn add(&mut self, item: Item) -> bool {
        let tablet = &mut self.tablet;
        match item {
            Item::Floor(version) => tablet.floor = version,
            Item::Stream { head, shown } => {
                let id = head.id;
                let Some(stream) = tablet.streams.get_mut(&id) else { return false };
                stream.become_image(head, shown.place.number);
                tablet.shown.insert(id, shown);
            }
            Item::Entry { stream, entry } => {
                let stream = tablet.streams.get_mut(&stream);
                return stream.is_some_and(|stream| stream.add_to_image(entry));
            }
            Item::Record { key, record } => tablet.put_record(key, record),
            Item::Session(session) => tablet.sessions.add(session),
            Item::Branch(branch) => tablet.branches.say(branch),
        }
        true
    }
}

impl Tablet {
    /// The items behind `cursor`, together not more than `bytes_max`, one at least; where they end; and
    /// whether there is none behind them.
    pub fn image_part(&self, mut cursor: Cursor, bytes_max: u64) -> (Vec<Item>, Cursor, bool) {
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some((item, next)) = self.item_behind(&cursor) {
            bytes += item.to_bytes().len() as u64;
            if bytes > bytes_max && !items.is_empty() {
                return (items, cursor, false);
            }
            items.push(item);
            cursor = next;
        }
        (items, cursor, true)
    }

    fn item_behind(&self, cursor: &Cursor) -> Option<(Item, Cursor)> {
        match cursor {
            Cursor::Begin => Some((Item::Floor(self.floor), Cursor::Floor)),
            Cursor::Floor => self.head_of(self.streams.keys().next()),
            Cursor::Entry(id, number) => match self.streams[id].entry(number + 1) {
                Some(entry) => {
                    let item = Item::Entry { stream: *id, entry: entry.clone() };
                    Some((item, Cursor::Entry(*id, number + 1)))
                }
                None => {
                    let behind = (Bound::Excluded(id), Bound::Unbounded);
                    let next = self.streams.range(behind).next().map(|(id, _)| id);
                    self.head_of(next).or_else(|| self.record_behind(Bound::Unbounded))
                }
            },
            Cursor::Record(key) => self.record_behind(Bound::Excluded(key.as_slice())),
            Cursor::Session(turn) => self.session_behind(*turn),
            Cursor::Branch(id) => self.branch_behind(Bound::Excluded(id)),
        }
    }

    fn head_of(&self, id: Option<&StreamId>) -> Option<(Item, Cursor)> {
        let stream = self.streams.get(id?)?;
        let (id, from) = (stream.id(), stream.forgotten_to().number);
        let item = Item::Stream { head: stream.image(), shown: self.shown[&id] };
        Some((item, Cursor::Entry(id, from)))
    }

    fn record_behind(&self, from: Bound<&[u8]>) -> Option<(Item, Cursor)> {
        match self.records.range::<[u8], _>((from, Bound::Unbounded)).next() {
            Some((key, record)) => {
                let item = Item::Record { key: key.clone(), record: record.clone() };
                Some((item, Cursor::Record(key.clone())))
            }
            None => self.session_behind(0),
        }
    }

    fn session_behind(&self, turn: u64) -> Option<(Item, Cursor)> {
        match self.sessions.behind(turn) {
            Some((turn, session)) => Some((Item::Session(session), Cursor::Session(turn))),
            None => self.branch_behind(Bound::Unbounded),
        }
    }

    fn branch_behind(&self, from: Bound<&BranchId>) -> Option<(Item, Cursor)> {
        let mut said = self.branches.said().range((from, Bound::Unbounded));
        let (id, branch) = said.next()?;
        Some((Item::Branch(branch.clone()), Cursor::Branch(id.clone())))
    }

    /// Whether an image is being put together: what it shows may not be told to others as an image.
    pub fn takes_image(&self) -> bool {
        self.taking.is_some()
    }

    /// The part of an image that comes next, or the first one of another image: what was put together
    /// of the one before goes. [`Accepted::Gap`] if it is neither, or does not fit.
    pub(super) fn add_part(&mut self, part: Part) -> Accepted {
        if part.number == 0 {
            if self.taking.is_some() {
                sometimes!("an image broke off and began anew");
            }
            let tablet = Tablet::new(&self.form, self.region);
            self.taking = Some(Box::new(Taking { image: part.image, next: 0, tablet }));
        }
        let Some(taking) = &mut self.taking else { return Accepted::Gap };
        let same = taking.image == part.image || planted!("table.image-of-two-attempts");
        if !same || taking.next != part.number {
            return Accepted::Gap;
        }
        taking.next += 1;
        if !part.items.into_iter().all(|item| taking.add(item)) {
            self.taking = None;
            return Accepted::Gap;
        }
        if !part.is_last {
            return Accepted::Yes;
        }
        let Some(taking) = self.taking.take() else { return Accepted::Gap };
        if !self.take_image(taking.image.region, taking.tablet) {
            return Accepted::Gap;
        }
        sometimes!("a new log began with an image");
        Accepted::Yes
    }

    /// The tablet becomes what was sent, with its own region and log. False, and nothing changes,
    /// where it may not.
    ///
    /// Why nothing is lost, and nothing counted twice. What matters of a log is what it has said:
    /// that it holds entries, and that it promised. Let p be the place up to which the sender shows
    /// a stream; a strong stream is kept up to there, so every later leader has it. Where this log
    /// holds p, its own stream stays as it is, with all that it said, and only what shows of it is
    /// the sender's; it shows the rest anew, as far as it knows that to be kept. Where it does not
    /// hold p, what it holds is in front of p and with the sender, too, or was cut off by what is
    /// kept at p: an acknowledgement of such an entry can make no majority any more. The sender's
    /// entries behind p are one leader's or another's, as any prefix of a stream that a new log was
    /// sent: a takeover may go on from them, and nobody counts them before a leader has matched
    /// them, since this log matches nobody. Promises are the higher of both: nothing of an epoch
    /// comes back that either has left behind. And an epoch that this log has opened holds p, or
    /// it could not have been opened: a stream that is led here is never replaced.
    fn take_image(&mut self, from: RegionId, sent: Tablet) -> bool {
        for (id, theirs) in &sent.streams {
            let (own, shown) = (&self.streams[id], sent.shown[id].place);
            let fits = match own.holds(shown) {
                // What it has shown behind p it has to show again.
                true => own.forgotten_to().number <= shown.number,
                // Of two that do not hold what the other one does, the later epoch is the stream's: whoever
                // sends the other one was sealed off, and does not know it yet. Nor is an earlier epoch taken than
                // was promised to another region, or followed, before that one's opening is in it.
                false => {
                    let fence = match own.promised().leader() == self.region {
                        true => own.matched().epoch,
                        false => own.promised(),
                    };
                    // A log that has nothing yet takes what others have all the same, which whoever was promised asks
                    // them for; but nothing of the one whose stream it is to be: that may be sealed without what only
                    // that one has.
                    let led = theirs.tail().epoch;
                    let is_new = own.tail().number == 0
                        && (led.leader() != from || planted!("table.image-of-who-is-sealed-off"));
                    let fenced = self.form.mode == Mode::Timeline && led < fence && !is_new;
                    let later = shown > own.tail() && !fenced;
                    own.leading().is_none() && later
                }
            };
            if !theirs.holds(shown) || !fits {
                return false;
            }
        }
        if self.form.mode == Mode::Timeline {
            self.keep_branches(&sent);
        }
        for (id, theirs) in sent.streams {
            let shown = sent.shown[&id].place;
            if let Some(own) = self.streams.get_mut(&id) {
                match own.holds(shown) {
                    true => own.keep_through(shown.number),
                    false => own.replace(theirs),
                }
            }
        }
        self.shown = sent.shown;
        if !planted!("table.image-unseen-by-changes") {
            self.changes.begin_anew(&self.shown);
        }
        self.records = sent.records;
        self.tombstones = sent.tombstones;
        self.bytes = sent.bytes;
        self.floor = sent.floor;
        self.sessions = sent.sessions;
        self.branches.take(sent.branches);
        // What two regions had that were sealed one of them has said, and somebody may have resolved it. That it was
        // said is in memory: nobody forgets what this region did not follow.
        for stream in self.streams.values() {
            let shown = self.shown[&stream.id()].place.number;
            for entry in stream.behind(0, usize::MAX) {
                if let Body::Branch(branch) = &entry.body
                    && entry.place.number <= shown
                {
                    self.branches.was_said(&branch.id);
                }
            }
        }
        self.waits.clear();
        true
    }

    /// What this region has of streams that go on without it is to be said to all as branches.
    fn keep_branches(&mut self, sent: &Tablet) {
        let replaced = |(id, own): &(&StreamId, &Stream)| !own.holds(sent.shown[id].place);
        let branches: Vec<Branch> = self
            .streams
            .iter()
            .filter(replaced)
            .flat_map(|(id, own)| {
                let theirs = &sent.streams[id];
                let behind = own.behind(own.forgotten_to().number, usize::MAX).iter();
                cut_off(*id, behind.filter(|entry| !theirs.holds(entry.place)))
            })
            .collect();
        if !branches.is_empty() {
            sometimes!("a region came back with branches");
        }
        for branch in branches {
            self.branches.keep(branch);
        }
    }
}
