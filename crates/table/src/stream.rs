//! One home's stream as one region's log holds it: what it accepted, what it has promised, whom it
//! counts. Part of the fold; what is known to be kept comes from outside, and only moves what shows.

use crate::entry::{Body, Change, ChangeKind, StreamEntry};
use crate::ids::{Epoch, LogId, Place, RegionId, StreamId};
use crate::tablet::branch::BranchId;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::{planted, sometimes};

/// A region's log, as a majority is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub region: RegionId,
    pub log: LogId,
    /// Not while it has yet to get what the one before it held.
    pub counts: bool,
}
codec_struct!(Member { region, log, counts });

/// The members of a stream from a number on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub from: u64,
    pub members: Vec<Member>,
}
codec_struct!(Members { from, members });

/// Of a stream what is not entries in memory, as an image of its tablet has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamImage {
    pub id: StreamId,
    pub forgotten: Vec<Place>,
    pub promised: Epoch,
    /// As of the stream's end.
    pub members: Vec<Members>,
}
codec_struct!(StreamImage { id, forgotten, promised, members });

/// What became of entries that somebody sent, or of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is held.
    Yes,
    /// A later epoch was promised.
    Fenced,
    /// It does not follow on what is held.
    Gap,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    id: StreamId,
    /// Of each epoch the last entry that is held but not in memory any more, in order.
    forgotten: Vec<Place>,
    /// The entries behind those.
    entries: Vec<StreamEntry>,
    /// Bytes of the entries in memory up to each of them: how many lie between two places is known
    /// without walking there.
    reached: Vec<u64>,
    promised: Epoch,
    /// The epoch that this log has opened and nobody has ended.
    leading: Option<Epoch>,
    /// Up to which number this log is known to be the same as that of an epoch's leader.
    matched: Place,
    /// Up to where a majority is known to hold it. Not from entries: it is learnt anew by a start.
    kept: u64,
    /// The members from each number on; the first from 0.
    members: Vec<(u64, Vec<Member>)>,
}

impl Stream {
    /// A stream without entries, led by its namesake.
    pub fn new(id: StreamId, members: &[Member]) -> Stream {
        let first = id.first_epoch();
        Stream {
            id,
            forgotten: Vec::new(),
            entries: Vec::new(),
            reached: Vec::new(),
            promised: first,
            leading: None,
            matched: Place::new(first, 0),
            kept: 0,
            members: vec![(0, members.to_vec())],
        }
    }

    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The last entry that is held.
    pub fn tail(&self) -> Place {
        self.entries.last().map_or(self.forgotten_to(), |entry| entry.place)
    }

    /// The last entry that is held and not in memory any more.
    pub fn forgotten_to(&self) -> Place {
        self.forgotten.last().copied().unwrap_or_default()
    }

    /// Below this no epoch is accepted; whoever leads leads this one, or one that is not known here.
    pub fn promised(&self) -> Epoch {
        self.promised
    }

    /// The epoch in which this log leads.
    pub fn leading(&self) -> Option<Epoch> {
        self.leading
    }

    /// See the field: the epoch is that of the leader whom it matches.
    pub fn matched(&self) -> Place {
        self.matched
    }

    /// Up to where a majority is known to hold it.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The entry with this number, if it is held and not forgotten.
    pub fn entry(&self, number: u64) -> Option<&StreamEntry> {
        let at = number.checked_sub(self.forgotten_to().number + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// The entries behind `number`, in order, up to `count` of them; none in front of those that are
    /// forgotten.
    pub fn behind(&self, number: u64, count: usize) -> &[StreamEntry] {
        let from = self.position(number);
        &self.entries[from..self.entries.len().min(from.saturating_add(count))]
    }

    /// As [`Stream::behind`], and together not more than so many bytes; but one at least, however
    /// large.
    pub fn behind_within(&self, number: u64, count: usize, bytes: u64) -> &[StreamEntry] {
        let entries = self.behind(number, count);
        let limit = self.reached_at(number).saturating_add(bytes);
        let from = self.position(number);
        let fit = self.reached[from..from + entries.len()].partition_point(|end| *end <= limit);
        &entries[..fit.max(1).min(entries.len())]
    }

    /// Bytes of the entries in memory behind `from`, up to `to`.
    pub fn bytes_between(&self, from: u64, to: u64) -> u64 {
        self.reached_at(to).saturating_sub(self.reached_at(from))
    }

    /// What its entries take in memory.
    pub fn memory_bytes(&self) -> u64 {
        let each = (self.entries.len() * size_of::<StreamEntry>()) as u64;
        each + self.reached.last().copied().unwrap_or(0)
    }

    fn reached_at(&self, number: u64) -> u64 {
        match self.position(number) {
            0 => 0,
            position => self.reached[position - 1],
        }
    }

    /// How many of the entries in memory are up to this number.
    fn position(&self, number: u64) -> usize {
        let count = number.saturating_sub(self.forgotten_to().number);
        usize::try_from(count).unwrap_or(usize::MAX).min(self.entries.len())
    }

    /// The epoch of the entry there; 0 in front of the first.
    pub fn epoch_at(&self, number: u64) -> Option<Epoch> {
        if number == 0 {
            return Some(Epoch::default());
        }
        let forgotten = self.forgotten.partition_point(|end| end.number < number);
        match self.forgotten.get(forgotten) {
            Some(end) => Some(end.epoch),
            None => Some(self.entry(number)?.place.epoch),
        }
    }

    /// Lets the entries up to `number` go from memory, if that frees at least half of them: their
    /// places stay known. They are those that everybody shows, and that nobody will ask for. Whether
    /// it did is for all the same who hold the same entries.
    pub(crate) fn forget(&mut self, number: u64) -> bool {
        let count = self.position(number);
        // Moving those that stay costs what it frees.
        if !self.is_worth_forgetting(number) {
            return false;
        }
        for entry in self.entries.drain(..count) {
            match self.forgotten.last_mut().filter(|end| end.epoch == entry.place.epoch) {
                Some(end) => *end = entry.place,
                None => self.forgotten.push(entry.place),
            }
        }
        let gone = self.reached[count - 1];
        self.reached.drain(..count);
        self.reached.iter_mut().for_each(|reached| *reached -= gone);
        true
    }

    /// Whether [`Stream::forget`] would.
    pub(crate) fn is_worth_forgetting(&self, number: u64) -> bool {
        let count = self.position(number);
        count > 0 && count >= self.entries.len() / 2
    }

    /// Whether a key is forgotten by an entry behind this number. Which are not in memory any more all show.
    pub fn forgets_behind(&self, number: u64) -> bool {
        let forgets = |change: &Change| change.kind == ChangeKind::Forget;
        self.behind(number, usize::MAX).iter().any(|e| e.body.changes().iter().any(forgets))
    }

    /// Where a branch is said, of the entries in memory; the beginning where it is in none of them.
    pub fn says_at(&self, id: &BranchId) -> Place {
        let says = |e: &&StreamEntry| matches!(&e.body, Body::Branch(branch) if branch.id == *id);
        self.entries.iter().find(says).map_or(Place::default(), |entry| entry.place)
    }

    /// Whether this very entry is held, and with it all before it: an epoch has one leader, who
    /// gives each number once.
    pub fn holds(&self, place: Place) -> bool {
        self.epoch_at(place.number) == Some(place.epoch)
    }

    /// The number of the first of these entries that is not held.
    pub fn others_from(&self, entries: &[StreamEntry]) -> Option<u64> {
        let other = entries.iter().find(|entry| !self.holds(entry.place));
        other.map(|entry| entry.place.number)
    }

    /// Each epoch of which entries are held, with its last place, in order.
    pub fn epochs(&self) -> Vec<Place> {
        let mut ends: Vec<Place> = Vec::new();
        let mut last = self.entries.last().map(|entry| entry.place);
        while let Some(end) = last {
            ends.push(end);
            let before = self.entries.partition_point(|entry| entry.place.epoch < end.epoch);
            last = before.checked_sub(1).map(|at| self.entries[at].place);
        }
        let oldest = ends.last().map(|end| end.epoch);
        ends.extend(self.forgotten.iter().rev().filter(|end| Some(end.epoch) != oldest));
        ends.reverse();
        ends
    }

    /// The first number of an epoch; 0 where it has no entry.
    pub fn first_of(&self, epoch: Epoch) -> u64 {
        let ends = self.epochs();
        match ends.iter().position(|end| end.epoch == epoch) {
            None => 0,
            Some(0) => 1,
            Some(at) => ends[at - 1].number + 1,
        }
    }

    /// The last place that this stream and one with those ends of epochs have in common.
    pub fn common(&self, ends: &[Place]) -> Place {
        let mine = self.epochs();
        let ours = |end: &Place| {
            let at = mine.binary_search_by_key(&end.epoch, |m| m.epoch).ok()?;
            Some(Place::new(end.epoch, end.number.min(mine[at].number)))
        };
        // Who names an epoch with a number in front of it has none of it: it does not tell the truth.
        let last = ends.iter().rev().find_map(ours);
        last.filter(|place| self.holds(*place)).unwrap_or_default()
    }

    /// The logs that are counted, or will be.
    pub fn members(&self) -> &[Member] {
        self.members.last().map_or(&[], |(_, members)| members)
    }

    /// The number from which on the members are these.
    pub fn members_since(&self) -> u64 {
        self.members.last().map_or(0, |(number, _)| *number)
    }

    /// How many logs keep an entry.
    pub fn majority(&self) -> usize {
        self.members().len() / 2 + 1
    }

    /// Whether what this log says counts.
    pub fn counts(&self, region: RegionId, log: LogId) -> bool {
        if planted!("table.erased-log-votes") {
            return true;
        }
        let mut members = self.members().iter();
        members.any(|m| m.region == region && m.log == log && m.counts)
    }

    /// This log's own decision, under the epoch that it has opened.
    pub(crate) fn decide(&mut self, entry: StreamEntry) -> Accepted {
        let tail = self.tail();
        let opens = entry.body == Body::Open && self.promised == entry.place.epoch;
        let leads = self.leading == Some(self.promised);
        if entry.place.epoch != self.promised || !(leads || opens) {
            return Accepted::Fenced;
        }
        if entry.place.number != tail.number + 1 || entry.before != tail.epoch {
            return Accepted::Gap;
        }
        self.leading = Some(self.promised);
        self.push(entry);
        self.matched = Place::new(self.promised, self.tail().number);
        Accepted::Yes
    }

    /// Entries of whoever leads `under`, or fetched by this region, which `gathers` promises for it.
    /// Drops what they show to be cut off, and answers from which number on.
    pub(crate) fn follow(
        &mut self,
        under: Epoch,
        before: Place,
        entries: Vec<StreamEntry>,
        gathers: bool,
    ) -> (Accepted, Option<u64>) {
        if under < self.promised && !planted!("table.old-epoch-accepted") {
            return (Accepted::Fenced, None);
        }
        if !self.holds(before) || !follows(before, &entries, under) {
            return (Accepted::Gap, None);
        }
        let through = before.number + entries.len() as u64;
        // What everybody shows is the same for ever: who says otherwise says nothing.
        let other = self.others_from(&entries);
        if other.is_some_and(|number| number <= self.forgotten_to().number) {
            return (Accepted::Gap, None);
        }
        if under > self.promised {
            self.promise(under);
        }
        let mut cut = None;
        for entry in entries {
            if self.holds(entry.place) {
                continue;
            }
            if entry.place.number <= self.tail().number {
                sometimes!("a suffix was dropped");
                cut = cut.or(Some(entry.place.number));
                self.cut(entry.place.number);
            }
            self.push(entry);
        }
        // Who gathers promises is nobody's follower: another tail may turn out to be further.
        if !gathers {
            if under > self.matched.epoch {
                self.matched = Place::new(under, 0);
            }
            self.matched.number = self.matched.number.max(through);
        }
        (Accepted::Yes, cut)
    }

    /// Accepts nothing of an earlier epoch from here on; false if a later one was promised.
    pub(crate) fn promise(&mut self, epoch: Epoch) -> bool {
        if epoch <= self.promised {
            return false;
        }
        self.promised = epoch;
        self.leading = None;
        true
    }

    /// The topic is another log's from here on: what was opened before is led by nobody.
    pub(crate) fn resign(&mut self) {
        self.leading = None;
    }

    /// What the log before has decided may be more than is held.
    pub(crate) fn matches_nobody(&mut self) {
        self.matched = Place::default();
    }

    /// Whether this log itself, leading as `region`, has decided the last entry that it holds, if it holds any: nobody
    /// has followed more than that.
    pub fn is_own(&self, region: RegionId) -> bool {
        let (matched, tail) = (self.matched, self.tail());
        let leads = matched.epoch.round() > 0 && matched.epoch.leader() == region;
        leads && (matched == tail || tail.number == 0)
    }

    /// This log, which is its namesake's first one, leads from the beginning.
    pub(crate) fn lead_first(&mut self) {
        if self.promised == self.id.first_epoch() {
            self.leading = Some(self.promised);
            self.matched = Place::new(self.promised, self.tail().number);
        }
    }

    /// A majority holds what the leader of `under` has up to there. False where that is not known
    /// to be what is held here.
    pub(crate) fn keep(&mut self, under: Epoch, number: u64) -> bool {
        if self.matched.epoch != under || number <= self.kept {
            return false;
        }
        let known = number.min(self.matched.number);
        let further = known > self.kept;
        self.kept = self.kept.max(known);
        further
    }

    /// Up to there it is kept, as an entry of the topic says.
    pub(crate) fn keep_through(&mut self, number: u64) {
        self.kept = self.kept.max(number.min(self.tail().number));
    }

    /// How far a majority holds what the leader of `under` has, by what the others have said, with an entry of that
    /// epoch: none before that counts, since a later takeover may find another one in its place.
    pub fn majority_holds(&self, mut acked: impl FnMut(&Member) -> Option<u64>) -> Option<u64> {
        let mut numbers: Vec<u64> =
            self.members().iter().filter(|m| m.counts).filter_map(&mut acked).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let number = (*numbers.get(self.majority() - 1)?).min(self.matched.number);
        let present = self.epoch_at(number) == Some(self.matched.epoch);
        (present || planted!("table.kept-without-present-epoch")).then_some(number)
    }

    /// Everything that entries have made of it.
    pub(crate) fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&self.forgotten);
        out.put(&(self.entries.len() as u64));
        self.entries.iter().for_each(|entry| out.put(entry));
        out.put(&self.promised);
        out.put(&self.leading);
        out.put(&self.matched);
        out.put(&(self.members.len() as u64));
        for (number, members) in &self.members {
            out.put(number);
            out.put(members);
        }
    }

    /// The inverse, of a stream that shows up to `shown`.
    pub(crate) fn restore(id: StreamId, shown: u64, source: &mut Source<'_>) -> Result<Stream> {
        let mut stream = Stream::new(id, &[]);
        stream.forgotten = source.get()?;
        for _ in 0..source.get::<u64>()? {
            let entry: StreamEntry = source.get()?;
            if entry.place.number != stream.tail().number + 1 {
                return Err(Error::corrupt("restore a tablet: a stream has a gap"));
            }
            stream.hold(entry);
        }
        stream.promised = source.get()?;
        stream.leading = source.get()?;
        stream.matched = source.get()?;
        // Nothing shows that is not kept.
        stream.kept = shown;
        stream.members.clear();
        for _ in 0..source.get::<u64>()? {
            stream.members.push((source.get()?, source.get()?));
        }
        Ok(stream)
    }

    /// What an image says of it, beside its entries.
    pub(crate) fn image(&self) -> StreamImage {
        let members = |(from, members): &(u64, Vec<Member>)| Members {
            from: *from,
            members: members.clone(),
        };
        StreamImage {
            id: self.id,
            forgotten: self.forgotten.clone(),
            promised: self.promised,
            members: self.members.iter().map(members).collect(),
        }
    }

    /// The inverse: a stream that nobody leads here, and that matches nobody's, of which nothing is
    /// in memory yet.
    pub(crate) fn become_image(&mut self, image: StreamImage, shown: u64) {
        let members = |of: Members| (of.from, of.members);
        *self = Stream {
            forgotten: image.forgotten,
            promised: image.promised,
            matched: Place::default(),
            kept: shown,
            members: image.members.into_iter().map(members).collect(),
            ..Stream::new(image.id, &[])
        };
    }

    /// What a tablet begins with that is cut off this one's, where so much shows: all up to there is forgotten.
    pub(crate) fn image_up_to(&self, shown: Place) -> StreamImage {
        let ends = self.epochs().into_iter().filter(|end| end.epoch <= shown.epoch);
        let end = |end: Place| if end.epoch == shown.epoch { shown } else { end };
        StreamImage { forgotten: ends.map(end).collect(), ..self.image() }
    }

    /// The inverse: the tablet's own log, a new one, leads it on in its epoch.
    pub(crate) fn begin_with(&mut self, image: StreamImage, shown: u64) {
        self.become_image(image, shown);
        self.leading = Some(self.promised);
        self.matched = Place::new(self.promised, self.tail().number);
    }

    /// The next entry of an image: false if it is another one.
    pub(crate) fn add_to_image(&mut self, entry: StreamEntry) -> bool {
        let follows = follows(self.tail(), std::slice::from_ref(&entry), self.promised);
        if follows {
            self.hold(entry);
        }
        follows
    }

    /// The stream of an image in place of this one, whose promise is not taken back.
    pub(crate) fn replace(&mut self, image: Stream) {
        let promised = self.promised.max(image.promised);
        *self = image;
        if !planted!("table.image-takes-promise-back") {
            self.promised = promised;
        }
    }

    fn push(&mut self, entry: StreamEntry) {
        debug_assert_eq!(entry.place.number, self.tail().number + 1);
        let number = entry.place.number;
        let changed = match &entry.body {
            Body::Admit { region, log } => Some((*region, *log, false)),
            Body::Count { region, log } => Some((*region, *log, true)),
            _ => None,
        };
        if let Some((region, log, counts)) = changed {
            let mut members = self.members().to_vec();
            for member in members.iter_mut().filter(|m| m.region == region) {
                (member.log, member.counts) = (log, counts);
            }
            self.members.push((number, members));
        }
        self.hold(entry);
    }

    fn hold(&mut self, entry: StreamEntry) {
        let reached = self.reached.last().copied().unwrap_or(0) + entry.encoded_bytes();
        self.reached.push(reached);
        self.entries.push(entry);
    }

    fn cut(&mut self, from: u64) {
        let forgotten = self.forgotten_to().number;
        assert!(from > forgotten, "entry {from} is cut off, of which everybody held {forgotten}");
        let left = (from - 1 - forgotten) as usize;
        self.entries.truncate(left);
        self.reached.truncate(left);
        self.members.retain(|(number, _)| *number < from);
    }
}

/// Whether these are numbered one after another behind `before`, none of an epoch behind `under`.
pub(crate) fn follows(before: Place, entries: &[StreamEntry], under: Epoch) -> bool {
    let mut last = before;
    entries.iter().all(|entry| {
        let next = Some(entry.place.number) == last.number.checked_add(1)
            && entry.before == last.epoch
            && (last.epoch..=under).contains(&entry.place.epoch);
        last = entry.place;
        next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(epoch: Epoch, number: u64, before: Epoch) -> StreamEntry {
        StreamEntry { place: Place::new(epoch, number), before, asked: None, body: Body::Open }
    }

    fn stream() -> Stream {
        let member = |r| Member { region: RegionId(r), log: LogId(1), counts: true };
        Stream::new(StreamId(0), &[member(0), member(1), member(2)])
    }

    /// Two regions hold what a leader before has decided, and the one that leads now has sent them
    /// that much: a third one with a later tail could still be elected, and cut it off.
    #[test]
    fn an_older_epoch_is_kept_with_an_entry_of_the_present_one() {
        let (first, second) = (Epoch::new(1, RegionId(0)), Epoch::new(2, RegionId(1)));
        let mut stream = stream();
        let none = Place::default();
        let (accepted, _) = stream.follow(first, none, vec![entry(first, 1, none.epoch)], false);
        assert_eq!(accepted, Accepted::Yes);
        assert!(stream.promise(second));
        assert_eq!(stream.decide(entry(second, 2, first)), Accepted::Yes);
        let acked = |other: u64| {
            move |member: &Member| Some(if member.region == RegionId(1) { 2 } else { other })
        };
        assert_eq!(stream.majority_holds(acked(1)), None);
        assert_eq!(stream.majority_holds(acked(2)), Some(2));
    }

    #[test]
    fn a_suffix_of_an_older_epoch_makes_way_and_an_older_sender_does_not_come_through() {
        let (first, second) = (Epoch::new(1, RegionId(0)), Epoch::new(2, RegionId(1)));
        let mut stream = stream();
        let none = Place::default();
        let old = vec![entry(first, 1, none.epoch), entry(first, 2, first)];
        assert_eq!(stream.follow(first, none, old.clone(), false), (Accepted::Yes, None));
        let gap = stream.follow(second, Place::new(first, 3), Vec::new(), false);
        assert_eq!(gap, (Accepted::Gap, None));
        let new = vec![entry(second, 2, first)];
        let cut = stream.follow(second, Place::new(first, 1), new, false);
        assert_eq!(cut, (Accepted::Yes, Some(2)));
        assert_eq!(
            (stream.tail(), stream.matched()),
            (Place::new(second, 2), Place::new(second, 2))
        );
        assert_eq!(stream.follow(first, none, old, false), (Accepted::Fenced, None));
        assert_eq!(stream.common(&[Place::new(first, 2)]), Place::new(first, 1));
        assert!(!stream.promise(first) && !stream.promise(second));
    }

    /// A stream that forgets answers about places as one that has them all, whatever it has forgotten.
    #[test]
    fn a_stream_that_forgets_answers_as_one_that_does_not() {
        let epochs =
            [Epoch::new(1, RegionId(0)), Epoch::new(2, RegionId(1)), Epoch::new(5, RegionId(2))];
        let mut before = Place::default();
        let mut all = stream();
        for epoch in epochs {
            for _ in 0..3 {
                let next = entry(epoch, before.number + 1, before.epoch);
                let place = next.place;
                assert_eq!(all.follow(epoch, before, vec![next], false), (Accepted::Yes, None));
                before = place;
            }
        }
        for number in 0..=9 {
            let mut some = all.clone();
            some.forget(number);
            let left = some.entries.len() as u64;
            assert_eq!(left, if number < 4 { 9 } else { 9 - number }, "{number}");
            assert_eq!((some.tail(), some.epochs()), (all.tail(), all.epochs()));
            for n in 0..=10 {
                assert_eq!(some.epoch_at(n), all.epoch_at(n), "{number}: {n}");
            }
            for epoch in epochs.iter().chain(&[Epoch::new(9, RegionId(0))]) {
                assert_eq!(some.first_of(*epoch), all.first_of(*epoch));
                for n in 0..=10 {
                    let ends = [Place::new(*epoch, n)];
                    assert_eq!(some.common(&ends), all.common(&ends));
                }
            }
            for n in (9 - left)..=9 {
                assert_eq!(some.behind(n, 2), all.behind(n, 2));
                assert_eq!(some.entry(n + 1), all.entry(n + 1));
            }
        }
    }

    #[test]
    fn a_log_that_is_admitted_counts_later_and_the_one_before_no_more() {
        let mut stream = stream();
        stream.lead_first();
        let epoch = Epoch::new(1, RegionId(0));
        let (region, log) = (RegionId(2), LogId(2));
        let admit = StreamEntry { body: Body::Admit { region, log }, ..entry(epoch, 1, Epoch(0)) };
        let count = StreamEntry { body: Body::Count { region, log }, ..entry(epoch, 2, epoch) };
        assert!(stream.counts(region, LogId(1)));
        assert_eq!(stream.decide(admit), Accepted::Yes);
        assert!(!stream.counts(region, LogId(1)) && !stream.counts(region, log));
        assert_eq!((stream.majority(), stream.members_since()), (2, 1));
        assert_eq!(stream.decide(count), Accepted::Yes);
        assert!(stream.counts(region, log));
        // Whoever cuts the entries off has the members of before.
        stream.cut(1);
        assert!(stream.counts(region, LogId(1)));
    }
}
