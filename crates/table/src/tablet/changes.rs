//! What has shown in a tablet lately, step by step, for who keeps something true to its records. Not a part of what
//! the entries make of it: it is in no snapshot, and two folds of one topic may have other steps.

use super::{Mode, Shown, Tablet};
use crate::ids::{Key, StreamId, Value};
use crate::record::Record;
use holdfast_base::random::mix;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys and values of the steps that are kept, and [`STEP_BYTES`] for each; the last step stays, however large.
static KEPT_BYTES: Knob = Knob::new("table.changes-bytes", 2 << 20, &[1, 1000, 3000]);
/// Ticks from a start on in which steps are kept for whoever followed before it: an hour. From then on they are kept once
/// somebody has come.
static GRACE_TICKS: Knob = Knob::new("table.changes-grace", 36_000, &[1, 30]);
/// What a step takes beside its key and values.
const STEP_BYTES: u64 = 128;

/// A record that is another one for readers than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    pub key: Key,
    /// None where there was none, or it was deleted.
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl RowChange {
    pub(super) fn of(key: &Key, before: Option<&Record>, after: Option<&Record>) -> RowChange {
        let value = |record: Option<&Record>| record.and_then(|record| record.value.clone());
        RowChange { key: key.clone(), before: value(before), after: value(after) }
    }

    fn bytes(&self) -> u64 {
        let value = |value: &Option<Value>| value.as_ref().map_or(0, |value| value.len());
        (self.key.len() + value(&self.before) + value(&self.after)) as u64
    }
}

/// An entry that showed.
#[derive(Clone, Debug)]
struct Step {
    stream: StreamId,
    changes: Vec<RowChange>,
}

impl Step {
    fn bytes(&self) -> u64 {
        STEP_BYTES + self.changes.iter().map(RowChange::bytes).sum::<u64>()
    }
}

/// A place between two steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesAt {
    /// Number of the next step, as long as the tablet is in memory.
    pub next: u64,
    /// How far streams showed there, or before, in order: what another start knows the place by.
    pub seen: Vec<(StreamId, Shown)>,
}

/// Steps behind a place, and the place behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    pub changes: Vec<RowChange>,
    pub at: ChangesAt,
    /// There are more.
    pub is_cut: bool,
}

/// What is told, tablet by tablet, to who has followed so many of a table's tablets. Those that were cut off one of them
/// since are told of from where they were, once the others have told all that they show, and a half of such a half once
/// he follows the half: so of each record what showed first is told first.
///
/// `behind` tells of a tablet that he follows, by its number, and whether that is all that it shows; `parent` from which
/// one another was cut off, if one of them was; `cut_off` of one that he follows from now on.
///
/// # Errors
/// What they say.
pub fn follow<T, E>(
    followed: usize,
    tablets: usize,
    mut behind: impl FnMut(usize) -> Result<(T, bool), E>,
    parent: impl Fn(usize) -> Option<usize>,
    cut_off: impl FnMut(usize) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let (mut told, mut is_all) = (Vec::with_capacity(tablets), true);
    for number in 0..followed {
        let (one, all) = behind(number)?;
        told.push(one);
        is_all &= all;
    }
    if is_all || planted!("table.changes-of-a-half-too-soon") {
        let is_known = |number: &usize| {
            parent(*number).is_none_or(|parent| parent < followed)
                || planted!("table.changes-of-a-half-of-a-half")
        };
        for one in (followed..tablets).take_while(is_known).map(cut_off) {
            told.push(one?);
        }
    }
    Ok(told)
}

/// Whether somebody has asked: set by readers, who share the tablet.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl Clone for Asked {
    fn clone(&self) -> Asked {
        Asked(AtomicBool::new(self.get()))
    }
}

impl Asked {
    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The last steps of a tablet.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Index of the entry that made the tablet; 0 where it began with a snapshot.
    made_at: u64,
    /// How far streams showed before the first step.
    floor: BTreeMap<StreamId, Shown>,
    steps: VecDeque<Step>,
    /// Of each stream the numbers of its steps, and how far it showed with each: both grow, so that what is looked for
    /// is found without walking there.
    by_stream: BTreeMap<StreamId, VecDeque<(u64, Shown)>>,
    /// The first step's number.
    first: u64,
    /// Of a tablet that was cut off another one in this process: the number of its first step of all. What showed of its
    /// records before are steps of the other one's.
    cut_off_at: Option<u64>,
    /// What every later start begins with, or more.
    begun: BTreeMap<StreamId, Shown>,
    bytes: u64,
    /// Ticks since the start, up to [`GRACE_TICKS`].
    ticks: u64,
    /// Somebody follows, or did.
    asked: Asked,
}

/// Tablets are the same whatever their steps were.
impl PartialEq for Changes {
    fn eq(&self, _: &Changes) -> bool {
        true
    }
}

impl Eq for Changes {}

impl Changes {
    fn next(&self) -> u64 {
        self.first + self.steps.len() as u64
    }

    /// Nothing is known of what was before: no place of before is one any more.
    pub(super) fn begin_anew(&mut self, shown: &BTreeMap<StreamId, Shown>) {
        self.first = self.next() + 1;
        self.cut_off_at = None;
        self.begun.clone_from(shown);
        (self.steps, self.by_stream, self.bytes) = (VecDeque::new(), BTreeMap::new(), 0);
        self.floor.clone_from(shown);
    }

    /// The tablet is cut off another one, by which these streams had shown so far.
    pub(super) fn begin_cut_off(&mut self, shown: &BTreeMap<StreamId, Shown>) {
        self.begin_anew(shown);
        self.cut_off_at = Some(self.first);
    }

    /// Whether anybody may want the next step.
    pub(super) fn are_kept(&self) -> bool {
        let grace = self.ticks < GRACE_TICKS.get();
        grace || self.asked.get() || planted!("table.changes-kept-for-nobody")
    }

    fn tick(&mut self) {
        if self.asked.get() || !self.are_kept() {
            return;
        }
        self.ticks += 1;
        if !self.are_kept() {
            GRACE_TICKS.cross();
            while self.forget_first() {}
            (self.steps, self.by_stream) = Default::default();
        }
    }

    /// Forgets the first step, if there is one.
    fn forget_first(&mut self) -> bool {
        let Some(gone) = self.steps.pop_front() else { return false };
        self.bytes -= gone.bytes();
        self.first += 1;
        let of_stream = self.by_stream.get_mut(&gone.stream);
        if let Some((_, shown)) = of_stream.and_then(VecDeque::pop_front) {
            self.floor.insert(gone.stream, shown);
        }
        true
    }

    /// An entry shows, by which these records are other ones. Of a group all: a place between two of them is none.
    pub(super) fn push(&mut self, stream: StreamId, shown: Shown, changes: Vec<RowChange>) {
        if !self.are_kept() {
            self.floor.insert(stream, shown);
            self.first += 1;
            return;
        }
        let number = self.next();
        let of_stream = self.by_stream.entry(stream).or_default();
        debug_assert!(
            of_stream.back().is_none_or(|(_, before)| before.place.number < shown.place.number),
            "{stream:?} shows {shown:?} behind {of_stream:?}"
        );
        of_stream.push_back((number, shown));
        let step = Step { stream, changes };
        self.bytes += step.bytes();
        self.steps.push_back(step);
        while self.bytes > KEPT_BYTES.get()
            && self.steps.len() > 1
            && !planted!("table.changes-without-end")
            && self.forget_first()
        {
            KEPT_BYTES.cross();
        }
    }

    /// How a stream showed when it showed up to there, if that is known.
    fn shown_at(&self, stream: StreamId, number: u64) -> Option<Shown> {
        let is = |shown: &Shown| shown.place.number == number;
        let of_step = || {
            let steps = self.by_stream.get(&stream)?;
            let at = steps.partition_point(|(_, shown)| shown.place.number < number);
            steps.get(at).map(|(_, shown)| *shown)
        };
        self.floor.get(&stream).copied().filter(is).or_else(of_step).filter(is)
    }

    /// How far streams showed in front of the step of a number.
    fn seen_at(&self, next: u64) -> BTreeMap<StreamId, Shown> {
        let mut seen = self.floor.clone();
        for (stream, steps) in &self.by_stream {
            let in_front = steps.partition_point(|(number, _)| *number < next);
            if let Some((_, shown)) = in_front.checked_sub(1).and_then(|at| steps.get(at)) {
                seen.insert(*stream, *shown);
            }
        }
        seen
    }

    /// The topic says that a stream shows up to there.
    pub(super) fn is_written(&mut self, stream: StreamId, number: u64) {
        if let Some(shown) = self.shown_at(stream, number)
            && self.begun.get(&stream).is_none_or(|begun| begun.place.number < number)
        {
            self.begun.insert(stream, shown);
        }
    }
}

impl Tablet {
    /// The entry at that index makes it: its steps are told from those of one that was in its place before.
    pub(crate) fn is_made_at(&mut self, index: u64) {
        self.changes.made_at = index;
    }

    /// A start has come to what shows by the topic alone.
    pub(crate) fn has_begun(&mut self) {
        self.changes.begun.clone_from(&self.shown);
    }

    /// Time passes: see [`GRACE_TICKS`].
    pub(crate) fn changes_tick(&mut self) {
        self.changes.tick();
    }

    /// See the field.
    pub fn made_at(&self) -> u64 {
        self.changes.made_at
    }

    /// Another one whenever something has shown since: less than a place says, and at no cost.
    pub fn changes_mark(&self) -> u64 {
        mix(self.changes.made_at).wrapping_add(self.changes.next())
    }

    /// The place behind all that shows.
    pub fn changes_now(&self) -> ChangesAt {
        self.changes.asked.set();
        self.place(self.changes.next())
    }

    /// The place in front of all that has shown here of the records of a tablet that was cut off another one. Nothing where
    /// that is not kept any more, or it was cut off before this process began.
    pub fn changes_cut_off(&self) -> Option<ChangesAt> {
        self.changes.asked.set();
        let next = self.changes.cut_off_at.filter(|next| *next >= self.changes.first)?;
        match planted!("table.changes-of-a-half-from-now") {
            true => Some(self.changes_now()),
            false => Some(self.place(next)),
        }
    }

    /// The steps behind a place of this tablet in memory: at most so many, and together not more bytes of keys and
    /// values, but one at least. Nothing where they are not all kept.
    pub fn changes_behind(&self, next: u64, count: usize, bytes_max: u64) -> Option<Steps> {
        self.changes.asked.set();
        let skip = next.checked_sub(self.changes.first)?;
        if next > self.changes.next() {
            return None;
        }
        let (mut changes, mut to, mut bytes) = (Vec::new(), next, 0);
        for step in self.changes.steps.iter().skip(skip as usize).take(count) {
            bytes += step.bytes();
            if bytes > bytes_max && to > next {
                break;
            }
            to += 1;
            changes.extend(step.changes.iter().cloned());
        }
        let is_cut = to < self.changes.next();
        Some(Steps { changes, at: self.place(to), is_cut })
    }

    /// The number of the first step that whoever was at a place of this tablet has to take, when it was in memory before,
    /// of the same log: one that was erased has begun with nothing. Nothing where a step behind that place is not kept, or the place is of another history.
    ///
    /// Every step that the one before had and nobody was told of lies behind the place, so behind the floor here; and it
    /// shows here, or has yet to. No start in between began with less than the place: see [`Tablet::place`].
    pub fn changes_resume(&self, seen: &[(StreamId, Shown)]) -> Option<u64> {
        self.changes.asked.set();
        let goes_on = |id: &StreamId| {
            let Some((_, then)) = seen.iter().find(|(stream, _)| stream == id) else {
                return false;
            };
            // A digest is of what clients drew. Of a table of one region, which may be made again with the same words,
            // nothing tells one without any entry from another one.
            (then.place.number > 0 || self.has_others())
                && (self.changes.shown_at(*id, then.place.number) == Some(*then)
                    || planted!("table.changes-of-another-history"))
        };
        self.shown.keys().all(goes_on).then_some(self.changes.first)
    }

    /// By how much of the streams another start knows a place. A strong tablet of several regions may show less than it
    /// did when it is started, until it is known again what is kept, and readers see that, and store it; the next start
    /// may begin with more. So it is not more than every start begins with, and all behind that is told again.
    fn place(&self, next: u64) -> ChangesAt {
        let seen = match next == self.changes.next() {
            true => self.shown.clone(),
            false => self.changes.seen_at(next),
        };
        let goes_back = self.form.mode == Mode::Strong && self.has_others();
        let begun = |(id, seen): (StreamId, Shown)| match self.changes.begun.get(&id) {
            Some(begun)
                if goes_back
                    && begun.place.number < seen.place.number
                    && !planted!("table.changes-since-start-gone") =>
            {
                (id, *begun)
            }
            _ => (id, seen),
        };
        ChangesAt { next, seen: seen.into_iter().map(begun).collect() }
    }
}

#[cfg(test)]
mod tests;
