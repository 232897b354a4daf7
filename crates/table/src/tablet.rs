//! The fold of one tablet's topic in one region: home streams as held, records as shown, sessions.
//! `apply` is deterministic and total: the same entries give the same held streams everywhere. What
//! is known to be kept is told by [`Tablet::keep`], and shows more of what is held, no other thing.

pub mod branch;
pub mod changes;
pub mod image;
mod snapshot;
pub mod span;
pub mod split;

use crate::entry::{Body, Change, Entry, Resolution, Settled, StreamEntry};
use crate::ids::{Epoch, Key, LogId, Place, RegionId, StreamId};
use crate::record::Record;
use crate::sessions::Sessions;
use crate::stream::{Accepted, Member, Stream};
use crate::token::Token;
use branch::Branches;
use changes::{Changes, RowChange};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::random::mix;
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::{planted, sometimes};
use image::Taking;
use span::Span;
use std::collections::{BTreeMap, BTreeSet};

pub use holdfast_wire::table::TableMode as Mode;

/// What a tablet is made with, the same in all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    pub mode: Mode,
    /// Where absent keys belong.
    pub home: StreamId,
    /// One log a region, in order of the regions.
    pub members: Vec<Member>,
}
codec_struct!(Form { mode, home, members });

impl Form {
    /// A tablet of `regions` regions, whose absent keys belong to the first.
    pub fn new(mode: Mode, regions: u8) -> Form {
        Form::of(mode, StreamId(0), (0..regions).map(|region| (RegionId(region), LogId(1))))
    }

    /// A tablet of these regions, each with its log, in order.
    pub fn of(
        mode: Mode,
        home: StreamId,
        logs: impl IntoIterator<Item = (RegionId, LogId)>,
    ) -> Form {
        let member = |(region, log)| Member { region, log, counts: true };
        Form { mode, home, members: logs.into_iter().map(member).collect() }
    }

    /// The region of a table that has no other.
    pub fn first_region() -> RegionId {
        RegionId(0)
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.members.iter().map(|member| member.region)
    }

    /// All home streams: one a region.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.regions().map(StreamId::of)
    }
}

/// How far a region shows a stream, and a digest of what it has shown of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub place: Place,
    pub digest: u64,
}

/// Something that shows now and did not before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Showed {
    pub stream: StreamId,
    pub entry: StreamEntry,
}

/// Whether a client's token is satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    Yes,
    NotYet,
    /// Something that it names was cut off.
    Branched,
}

/// What an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub accepted: Accepted,
    /// The entry.
    pub entry: Entry,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablet {
    form: Form,
    region: RegionId,
    log: LogId,
    applied: u64,
    streams: BTreeMap<StreamId, Stream>,
    shown: BTreeMap<StreamId, Shown>,
    records: BTreeMap<Key, Record>,
    tombstones: BTreeSet<Key>,
    /// Of keys and values of the records.
    bytes: u64,
    /// The highest version that was forgotten: inserts begin above it.
    floor: u64,
    sessions: Sessions,
    branches: Branches,
    /// What has shown lately.
    changes: Changes,
    /// Streams whose next entry waits for another stream, and was counted as such.
    waits: BTreeSet<(StreamId, u64)>,
    /// Another region's tablet that takes this one's place once it is whole.
    taking: Option<Box<Taking>>,
    /// The region that an operator has called lost here, if nothing was heard of it since. There is one: what a
    /// second one had decided on what the first had said would wait for ever.
    lost: Option<RegionId>,
    /// Which keys it has.
    span: Span,
}

impl Tablet {
    /// The tablet before its topic's first entry.
    pub fn new(form: &Form, region: RegionId) -> Tablet {
        let streams = form.streams().map(|id| (id, Stream::new(id, &form.members))).collect();
        let mut tablet = Tablet {
            form: form.clone(),
            region,
            log: LogId(0),
            applied: 0,
            streams,
            shown: form.streams().map(|id| (id, Shown::default())).collect(),
            records: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            bytes: 0,
            floor: 0,
            sessions: Sessions::default(),
            branches: Branches::default(),
            changes: Changes::default(),
            waits: BTreeSet::new(),
            taking: None,
            lost: None,
            span: Span::whole(),
        };
        tablet.changes.begin_anew(&tablet.shown);
        tablet
    }

    /// The tablet of a region whose topic begins by making it. A log that the form does not name has lost what
    /// the one that it names has promised: it leads nothing, and counts once it is admitted.
    pub fn made(form: &Form, region: RegionId, log: LogId) -> Tablet {
        let mut tablet = Tablet::new(form, region);
        tablet.take_log(log);
        tablet
    }

    /// Whether there is another region: a tablet of one is sent no image, and nobody settles it.
    fn has_others(&self) -> bool {
        self.form.members.len() > 1
    }

    /// Folds the entry at `index`. What shows by it is added to `showed`, in order. An error stops
    /// the tablet in front of the entry: a newer build has made it.
    pub fn apply(&mut self, index: u64, bytes: &[u8], showed: &mut Vec<Showed>) -> Result<Applied> {
        assert!(index > self.applied, "entry {index} was applied already");
        let entry = Entry::from_bytes(bytes)
            .map_err(|e| Error::from(e).context("apply an entry of a tablet"))?;
        self.applied = index;
        let accepted = match &entry {
            Entry::Log(log) => {
                self.take_log(*log);
                Accepted::Yes
            }
            Entry::Decided { stream, entry } => match self.streams.get_mut(stream) {
                Some(stream) => stream.decide(entry.clone()),
                None => Accepted::Gap,
            },
            Entry::Followed { stream, under, before, entries } => {
                self.follow(*stream, *under, *before, entries)
            }
            Entry::Promised { stream, epoch } => {
                let promised = self.streams.get_mut(stream).is_some_and(|s| s.promise(*epoch));
                if promised { Accepted::Yes } else { Accepted::Fenced }
            }
            Entry::Checked { stream, epoch } => {
                let leads = |s: &Stream| s.leading() == Some(*epoch);
                match self.streams.get(stream).is_some_and(leads) {
                    true => Accepted::Yes,
                    false => Accepted::Fenced,
                }
            }
            Entry::Settled(settled) => {
                self.settle(settled, showed);
                Accepted::Yes
            }
            Entry::Image(part) => self.add_part(part.clone()),
            Entry::Lost { region, is_lost } => self.call_lost(*region, *is_lost),
        };
        self.show(showed);
        Ok(Applied { accepted, entry })
    }

    fn follow(
        &mut self,
        id: StreamId,
        under: Epoch,
        before: Place,
        entries: &[StreamEntry],
    ) -> Accepted {
        // What shows is cut off by an image alone, which has the records of before.
        if self.cuts_shown(id, entries) {
            return Accepted::Gap;
        }
        let gathers = under.leader() == self.region;
        let Some(stream) = self.streams.get_mut(&id) else { return Accepted::Gap };
        let cut_off = match (self.form.mode, stream.others_from(entries)) {
            (Mode::Timeline, Some(from)) => {
                branch::cut_off(id, stream.behind(from - 1, usize::MAX).iter())
            }
            _ => Vec::new(),
        };
        let (accepted, cut) = stream.follow(under, before, entries.to_vec(), gathers);
        if cut.is_some() {
            cut_off.into_iter().for_each(|branch| self.branches.keep(branch));
        }
        accepted
    }

    /// Whether to follow these entries would cut off what shows of a timeline table's stream: it was
    /// sealed without this region, which had gone on.
    pub fn cuts_shown(&self, id: StreamId, entries: &[StreamEntry]) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        let shown = self.shown[&id].place.number;
        self.form.mode == Mode::Timeline
            && stream.others_from(entries).is_some_and(|number| number <= shown)
            && !planted!("table.shown-is-cut")
    }

    fn call_lost(&mut self, region: RegionId, is_lost: bool) -> Accepted {
        let is_other = region != self.region && self.form.regions().any(|other| other == region);
        match is_lost {
            true if is_other => self.lost = Some(region),
            false if self.lost == Some(region) => self.lost = None,
            _ => return Accepted::Gap,
        }
        Accepted::Yes
    }

    fn take_log(&mut self, log: LogId) {
        self.log = log;
        // Whoever sent it knows another log.
        self.taking = None;
        // It was said to a log that is gone, and may be long ago.
        self.lost = None;
        let first = self.form.members.iter().find(|m| m.region == self.region).map(|m| m.log);
        for stream in self.streams.values_mut() {
            stream.resign();
            if self.form.mode == Mode::Timeline && stream.id() == StreamId::of(self.region) {
                stream.matches_nobody();
            }
            if first == Some(log) && stream.id() == StreamId::of(self.region) {
                stream.lead_first();
            }
        }
    }

    /// What this region has shown when it wrote the entry is kept, so that it shows in everybody's fold
    /// of the topic; and what of it all regions show goes from memory. Nobody asks for it again:
    /// a log that counts has it, and a leader, or who takes a stream over, sends what lies behind the
    /// last place in common; sessions, repetitions and tokens ask for places and results, which stay. A
    /// log that begins anew may lack it, and is sent an image. What shows by this entry is a part of
    /// what its region showed, whatever else is held, so all folds of the topic forget the same.
    fn settle(&mut self, settled: &[Settled], showed: &mut Vec<Showed>) {
        for Settled { stream, shown, .. } in settled {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.keep_through(*shown);
            }
        }
        self.show(showed);
        for Settled { stream, shown, .. } in settled {
            self.changes.is_written(*stream, *shown);
        }
        // An image may show less of a stream that stays: whoever goes on with one settles nothing.
        if self.taking.take().is_some() {
            sometimes!("an image was left off");
        }
        for Settled { stream: id, by_all, .. } in settled {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            if stream.forget(self.shown[id].place.number.min(*by_all)) {
                sometimes!("a stream forgot with several regions");
            }
        }
    }

    /// A majority holds what the leader of `under` has of the stream up to `number`; true if that
    /// says something new of what is held here.
    pub fn keep(
        &mut self,
        stream: StreamId,
        under: Epoch,
        number: u64,
        showed: &mut Vec<Showed>,
    ) -> bool {
        let Some(kept) = self.streams.get_mut(&stream) else { return false };
        let news = kept.keep(under, number);
        if news {
            self.show(showed);
        }
        news
    }

    /// Applies to the records what may show: of each stream in order, each entry behind its
    /// record's version before.
    fn show(&mut self, showed: &mut Vec<Showed>) {
        let mut further = true;
        while further {
            further = false;
            let ids: Vec<StreamId> = self.streams.keys().copied().collect();
            for id in ids {
                while let Some(entry) = self.next_to_show(id) {
                    self.show_entry(id, &entry);
                    showed.push(Showed { stream: id, entry });
                    further = true;
                }
            }
        }
    }

    fn next_to_show(&mut self, id: StreamId) -> Option<StreamEntry> {
        let stream = &self.streams[&id];
        let number = self.shown[&id].place.number + 1;
        let limit = match self.form.mode {
            Mode::Strong if planted!("table.unkept-shown") => stream.tail().number,
            Mode::Strong => stream.kept(),
            Mode::Timeline => stream.tail().number,
        };
        if number > limit {
            return None;
        }
        let entry = stream.entry(number)?;
        if !self.is_next(&entry.body) {
            if self.waits.insert((id, number)) {
                sometimes!("an entry waited for another stream");
            }
            return None;
        }
        Some(entry.clone())
    }

    /// Whether what it says follows on what shows: the record is at the version before, and the branch was said. All
    /// inserts of a key are in the tablet's home's stream, so a key that is absent where a new line begins has shown
    /// all lines before, and their end.
    fn is_next(&self, body: &Body) -> bool {
        if planted!("table.shown-out-of-order") {
            return true;
        }
        if let Body::Resolves(Resolution { id, said, .. }) = body
            && !self.passed(id.stream, *said)
            && !planted!("table.resolved-before-it-is-said")
        {
            return false;
        }
        let follows = |change: &Change| match (change.after, self.records.get(&change.key)) {
            (0, record) => record.is_none(),
            (after, Some(record)) => record.version == after,
            (_, None) => false,
        };
        // What stands together shows together: once all of it may.
        let looked_at = if planted!("table.group-waits-for-its-first") { 1 } else { usize::MAX };
        body.changes().iter().take(looked_at).all(follows)
    }

    fn show_entry(&mut self, id: StreamId, entry: &StreamEntry) {
        let shown = self.shown.entry(id).or_default();
        let bytes = entry.to_bytes();
        shown.place = entry.place;
        shown.digest = mix(shown.digest ^ u64::from(crc32c(&bytes)) << 16 ^ entry.place.number);
        let shown = *shown;
        self.waits.remove(&(id, entry.place.number));
        self.sessions.remember(id, entry);
        match &entry.body {
            Body::Branch(branch) => {
                sometimes!("a branch was said");
                self.branches.say(branch.clone());
            }
            Body::Resolved(branch) => self.branches.resolve(branch),
            Body::Resolves(resolution) => self.branches.resolve(&resolution.id),
            Body::Split(half) => self.begin_to_leave(*half),
            Body::HandedOver { child } => self.hand_over(*child),
            _ => {}
        }
        let changes = entry.body.changes();
        let shown_at_once = if planted!("table.group-shown-in-part") { 1 } else { changes.len() };
        let keeps = self.changes.are_kept();
        let mut rows = Vec::new();
        for change in changes.iter().take(shown_at_once) {
            let before = self.records.get(&change.key);
            let after = Record::after(before, change, id, entry.place);
            if keeps {
                rows.push(RowChange::of(&change.key, before, after.as_ref()));
            }
            match after {
                Some(record) => self.put_record(change.key.clone(), record),
                None => {
                    sometimes!("a tombstone was forgotten");
                    self.drop_record(&change.key);
                    self.floor = self.floor.max(change.version);
                }
            }
        }
        self.changes.push(id, shown, rows);
    }

    fn put_record(&mut self, key: Key, record: Record) {
        match record.value {
            None => self.tombstones.insert(key.clone()),
            Some(_) => self.tombstones.remove(&key),
        };
        self.bytes += record_bytes(&key, &record);
        let key_bytes = key.len();
        if let Some(before) = self.records.insert(key, record) {
            self.bytes -= (key_bytes + before.value.map_or(0, |value| value.len())) as u64;
        }
    }

    fn drop_record(&mut self, key: &[u8]) {
        if let Some(before) = self.records.remove(key) {
            self.bytes -= record_bytes(key, &before);
        }
        self.tombstones.remove(key);
    }

    /// Lets go of entries that show, where no other region will ask for them.
    pub fn forget_entries(&mut self) {
        if self.has_others() {
            return;
        }
        for (id, stream) in &mut self.streams {
            stream.forget(self.shown[id].place.number);
        }
    }

    /// Records that show, without those that are deleted.
    pub fn live(&self) -> u64 {
        (self.records.len() - self.tombstones.len()) as u64
    }

    /// Bytes of all keys and values that show, branches included.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.branches.bytes()
    }

    /// What regions had decided in streams that were sealed without them.
    pub fn branches(&self) -> &Branches {
        &self.branches
    }

    /// The region that an operator has called lost, if this region has heard nothing of it since.
    pub fn lost(&self) -> Option<RegionId> {
        self.lost
    }

    /// What entries take in memory that some region has yet to show, beyond `usual` bytes of each stream.
    pub fn held_back_bytes(&self, usual: u64) -> u64 {
        self.streams.values().map(|stream| stream.memory_bytes().saturating_sub(usual)).sum()
    }

    /// Whether everything that a client has seen shows here.
    pub fn covers(&self, token: &Token) -> Covers {
        let mut covers = Covers::Yes;
        for (id, place) in token.places() {
            let Some(stream) = self.streams.get(&id) else { continue };
            // Behind an entry of a later epoch nothing of an earlier one follows: what is not held
            // in front of it never will be.
            let passed = self.shown[&id].place.number >= place.number;
            if !stream.holds(place) && (passed || stream.tail().epoch > place.epoch) {
                return Covers::Branched;
            }
            if !passed {
                covers = Covers::NotYet;
            }
        }
        covers
    }

    /// Whether this place shows here, or never will.
    pub fn passed(&self, stream: StreamId, place: Place) -> bool {
        self.covers(&Token::of(stream, place)) != Covers::NotYet
    }

    /// What shows under a key: a tombstone is a record without a value.
    pub fn record(&self, key: &[u8]) -> Option<&Record> {
        self.records.get(key)
    }

    /// All that shows, in order of keys.
    pub fn records(&self) -> &BTreeMap<Key, Record> {
        &self.records
    }

    /// Deleted records that are not forgotten.
    pub fn tombstones(&self) -> &BTreeSet<Key> {
        &self.tombstones
    }

    /// A home's stream. Panics for one that is none of the form's.
    pub fn stream(&self, id: StreamId) -> &Stream {
        &self.streams[&id]
    }

    /// All streams.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.values()
    }

    /// How far a stream shows.
    pub fn shown(&self, id: StreamId) -> Shown {
        self.shown[&id]
    }

    /// Everything that shows, as a client sees it who has seen it all.
    pub fn seen(&self) -> Token {
        let mut token = Token::default();
        for (id, shown) in &self.shown {
            token.see(*id, shown.place);
        }
        token
    }

    /// What whoever sees a key's record has seen.
    pub fn seen_by(&self, key: &[u8]) -> Token {
        match self.records.get(key) {
            Some(record) => Token::of(record.stream, record.place),
            // Which entry made it absent is not known any more: all that shows has.
            None => self.seen(),
        }
    }

    /// What clients' requests came to, as far as it shows.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Inserts begin above this version.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The form it was made with.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// The region whose topic it folds.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Whose log it folds; 0 before the log has said so.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The last entry folded.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether a key's tombstone is at home in this stream: whoever leads it may forget it.
    pub fn is_tombstone_of(&self, key: &[u8], stream: StreamId) -> bool {
        self.records.get(key).is_some_and(|r| r.home == stream && r.value.is_none())
    }

    /// Promises without an entry, as nobody must: for the bug that is planted there.
    pub(crate) fn promise_unlogged(&mut self, id: StreamId, epoch: Epoch) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.promise(epoch);
        }
    }

    /// Forgets which region is lost, as a start must never: for the bug that is planted there.
    pub(crate) fn forget_lost(&mut self) {
        self.lost = None;
    }

    /// Drops a record as a region must never do by itself: for the bug that is planted there.
    pub(crate) fn forget_alone(&mut self, key: &[u8]) {
        self.drop_record(key);
    }
}

fn record_bytes(key: &[u8], record: &Record) -> u64 {
    (key.len() + record.value.as_ref().map_or(0, |value| value.len())) as u64
}
