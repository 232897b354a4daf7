//! What all regions show goes from memory; and a log that begins anew, and lacks what is gone, gets
//! an image of another region's tablet, part after part.

use super::Region;
use crate::entry::{Entry, Settled, StreamEntry};
use crate::ids::{LogId, Place, RegionId, StreamId};
use crate::message::Message;
use crate::stream::Accepted;
use crate::tablet::image::{Cursor, ImageId, Part};
use crate::tablet::{Mode, Tablet};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::BTreeMap;

/// Entries of a stream that all regions show before one says so: an entry for a thousand.
static SETTLE_ENTRIES: Knob = Knob::new("table.settle-entries", 1024, &[1, 3, 10]);
/// And bytes of them, where entries are large.
static SETTLE_BYTES: Knob = Knob::new("table.settle-bytes", 4 << 20, &[1, 1000]);
/// What a stream may have in memory while every region follows it: what is to be settled, and as much again that
/// came meanwhile.
pub fn usual_stream_bytes() -> u64 {
    2 * SETTLE_BYTES.get() + 2 * SETTLE_ENTRIES.get() * size_of::<StreamEntry>() as u64
}

/// Bytes of one part of an image, if it has more than one item.
static PART_BYTES: Knob = Knob::new("table.image-part", 512 << 10, &[1, 200, 1000]);
/// Parts that are on their way at once.
static PARTS_AHEAD: Knob = Knob::new("table.image-ahead", 8, &[1, 2]);
/// An image that nothing was heard of for so many times as a push is given up.
const PATIENCE: u32 = 8;

/// An image that this region's log is sent.
#[derive(Clone, Debug)]
pub(super) struct Taking {
    from: RegionId,
    /// None before its first part came.
    image: Option<ImageId>,
    /// The first part that the topic does not have.
    next: u64,
    /// The first part that did not come yet, and the first that was not asked for.
    coming: u64,
    asked: u64,
    ticks: u32,
}

/// An image that this region sends: the tablet as it was then, its values shared.
#[derive(Clone, Debug)]
pub(super) struct Giving {
    log: LogId,
    image: ImageId,
    tablet: Box<Tablet>,
    /// Where each part begins that may be asked for.
    parts: BTreeMap<u64, Cursor>,
    /// Only its first part was asked for.
    begins: bool,
    ticks: u32,
}

impl Region {
    /// Says what can go from memory, if it is enough.
    pub(super) fn settle_entries(&mut self) {
        let takes = self.taking.is_some() || self.tablet.takes_image();
        if self.settling || self.heard.is_empty() || takes {
            return;
        }
        let mut is_worth = false;
        let mut settled = Vec::new();
        for stream in self.tablet.streams() {
            let id = stream.id();
            let by_all = self.shown_by_all(id);
            let gone = stream.forgotten_to().number;
            let enough = by_all.saturating_sub(gone) >= SETTLE_ENTRIES.get()
                || stream.bytes_between(gone, by_all) >= SETTLE_BYTES.get();
            is_worth |= enough && stream.is_worth_forgetting(by_all);
            let shown = self.tablet.shown(id).place.number;
            settled.push(Settled { stream: id, shown, by_all });
        }
        if is_worth {
            SETTLE_ENTRIES.cross();
            self.settling = true;
            self.append(&Entry::Settled(settled));
        }
    }

    /// Up to where every region shows a stream, by a log that counts and follows the stream's present
    /// leader, and so does not show what is cut off.
    fn shown_by_all(&self, id: StreamId) -> u64 {
        let stream = self.tablet.stream(id);
        let matched = stream.matched();
        let of = |region: RegionId, log: LogId, at: Place, shown: u64| {
            let heard = self.heard.get(&region).map_or(self.log, |heard| heard.log);
            let counts = match self.mode() {
                Mode::Strong => stream.counts(region, log),
                Mode::Timeline => true,
            };
            let known = log >= heard && counts && at.epoch == matched.epoch;
            if known { shown.min(at.number) } else { 0 }
        };
        let others = self.heard.keys().map(|region| match self.acks.get(&(id, *region)) {
            Some(ack) => of(*region, ack.log, ack.matched, ack.shown),
            None => 0,
        });
        let own = of(self.me, self.log, matched, self.tablet.shown(id).place.number);
        match planted!("table.forgotten-before-all-show") {
            true => others.max().unwrap_or(0).min(own),
            false => others.min().unwrap_or(0).min(own),
        }
    }

    /// Another region has forgotten what this one lacks. It is sent an image, unless its log counts
    /// in that stream: then nobody has forgotten what it lacks.
    pub(super) fn is_forgotten(&mut self, from: RegionId, id: StreamId, up_to: Place) {
        let stream = self.tablet.stream(id);
        let counts = self.mode() == Mode::Strong && stream.counts(self.me, self.log);
        if !stream.holds(up_to) && !counts {
            self.ask_for_image(from);
        }
    }

    /// Begins anew with what another region has, unless it does so already: with that of `first`, and where this comes
    /// to nothing with the next one's. Two that were sealed by each other have none for each other.
    pub(super) fn ask_for_image(&mut self, first: RegionId) {
        if self.taking.is_none() {
            let others: Vec<RegionId> = self.heard.keys().copied().collect();
            let first = others.iter().position(|other| *other == first).unwrap_or(0);
            let from = others[(first + self.givers_tried) % others.len()];
            let (image, next, coming) = (None, 0, 0);
            self.taking = Some(Taking { from, image, next, coming, asked: 1, ticks: 0 });
            self.send(from, Message::ImageAsked { image, part: 0 });
        }
    }

    /// Another region asks for a part of an image, or for one that begins.
    pub(super) fn image_asked(
        &mut self,
        from: RegionId,
        log: LogId,
        image: Option<ImageId>,
        part: u64,
    ) {
        if self.tablet.takes_image() {
            return;
        }
        // Who asks again before it has the first part has not waited for it long enough: to begin
        // anew each time would never come to an end where the way is long.
        let begins = |giving: &Giving| giving.log == log && giving.begins;
        if image.is_none() && !self.giving.get(&from).is_some_and(begins) {
            self.images += 1;
            let number = self.start << super::START_SHIFT | self.images;
            let image = ImageId { region: self.me, log: self.log, number };
            let tablet = Box::new(self.tablet.clone());
            let parts = BTreeMap::from([(0, Cursor::Begin)]);
            let giving = Giving { log, image, tablet, parts, begins: true, ticks: 0 };
            self.giving.insert(from, giving);
        }
        let Some(giving) = self.giving.get_mut(&from).filter(|giving| giving.log == log) else {
            return;
        };
        let number = if image.is_none() { 0 } else { part };
        let Some(cursor) = giving.parts.get(&number) else { return };
        if image.is_some_and(|image| image != giving.image) {
            return;
        }
        giving.ticks = 0;
        giving.begins = number == 0;
        let (items, next, is_last) = giving.tablet.image_part(cursor.clone(), PART_BYTES.get());
        if !is_last {
            PART_BYTES.cross();
            giving.parts.insert(number + 1, next);
        }
        // Older ones are in the other's topic.
        let oldest = (number + 1).saturating_sub(2 * PARTS_AHEAD.get());
        giving.parts = giving.parts.split_off(&oldest);
        let part = Part { image: giving.image, number, is_last, items };
        self.send(from, Message::ImagePart(part));
    }

    /// A part has come.
    pub(super) fn image_part(&mut self, from: RegionId, part: Part) {
        let Some(taking) = self.taking.as_mut().filter(|taking| taking.from == from) else {
            return;
        };
        let image = *taking.image.get_or_insert(part.image);
        if image != part.image || taking.coming != part.number {
            return;
        }
        taking.coming += 1;
        self.append(&Entry::Image(part));
    }

    /// A part is in the topic.
    pub(super) fn image_applied(&mut self, part: &Part, accepted: Accepted) {
        let is_whole = part.is_last && accepted == Accepted::Yes;
        if is_whole && !planted!("table.image-leaves-what-lay-over") {
            self.goes_on_from_image();
        }
        let Some(taking) = &mut self.taking else { return };
        if taking.image != Some(part.image) || part.number < taking.next {
            return;
        }
        if accepted != Accepted::Yes || part.is_last {
            self.taking = None;
            self.givers_tried = if accepted == Accepted::Yes { 0 } else { self.givers_tried + 1 };
            return;
        }
        taking.next = part.number + 1;
        taking.ticks = 0;
        self.ask_for_parts();
    }

    /// What shows by an image showed entry by entry to nobody: what lay over it goes, and who waits for what
    /// is kept by it is answered. A stream that is led here stayed as it was, so it has these entries.
    fn goes_on_from_image(&mut self) {
        let ids: Vec<StreamId> = self.tablet.form().streams().collect();
        for id in ids {
            self.image_has_shown(id, self.tablet.shown(id).place.number);
            if self.mode() == Mode::Strong {
                self.is_kept(id, self.tablet.stream(id).forgotten_to().number);
            }
        }
    }

    fn ask_for_parts(&mut self) {
        let Some(taking) = &mut self.taking else { return };
        let (to, image) = (taking.from, taking.image);
        let from = taking.asked.max(taking.next);
        taking.asked = from.max(taking.next + PARTS_AHEAD.get());
        let parts = from..taking.asked;
        for part in parts {
            self.send(to, Message::ImageAsked { image, part });
        }
    }

    /// An image that nobody goes on with is not waited for: another region may have sent what it lacked
    /// meanwhile. It is dropped by an entry, as all do who fold the topic.
    fn leave_image(&mut self) {
        self.left_ticks = if self.tablet.takes_image() { self.left_ticks + 1 } else { 0 };
        if self.left_ticks > PATIENCE * self.settings.resend_ticks && !self.settling {
            self.left_ticks = 0;
            self.settling = true;
            self.append(&Entry::Settled(Vec::new()));
        }
    }

    pub(super) fn tick_images(&mut self) {
        let resend = self.settings.resend_ticks;
        self.giving.retain(|_, giving| {
            giving.ticks += 1;
            giving.ticks <= PATIENCE * resend
        });
        let Some(taking) = &mut self.taking else { return self.leave_image() };
        taking.ticks += 1;
        if taking.ticks > PATIENCE / 2 * resend {
            // Whoever sent it is gone, or does not remember it: another one begins.
            self.taking = None;
            self.givers_tried += 1;
        } else if taking.ticks.is_multiple_of(resend) {
            match taking.image {
                None => {
                    let to = taking.from;
                    self.send(to, Message::ImageAsked { image: None, part: 0 });
                }
                Some(_) => {
                    (taking.coming, taking.asked) = (taking.next, taking.next);
                    self.ask_for_parts();
                }
            }
        }
    }
}

#[cfg(test)]
impl Taking {
    /// As if it had waited for a part as long as it does; or, where `is_cut`, for as long as anybody waits.
    pub(super) fn hurry(&mut self, resend_ticks: u32, cut: impl Fn(RegionId) -> bool) {
        self.ticks = if cut(self.from) { PATIENCE * resend_ticks } else { resend_ticks - 1 };
    }

    /// What tells it from another one.
    pub(super) fn key(&self, key: &mut Vec<u64>) {
        let of = self.image.map_or(0, |image| u64::from(image.region.0) + 1);
        key.extend([u64::from(self.from.0), of, self.next, self.coming, self.asked]);
    }
}
