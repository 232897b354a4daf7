//! Takes calls from the door, and has what came together kept together: one sync for as many calls as wait.
//! A call is answered when its messages are kept. Owns one thread; who keeps them is a [`Keeps`].

use crate::aside::Aside;
use crate::batch::Packed;
use crate::call::Answer;
use crate::category::Category;
use crate::gather::{Messages, Round};
use crate::stores::{Lines, Place, Sorted};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::tasks::{self, Task};
use holdfast_env::{HoldMutex, event};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

/// Messages that wait to be kept; who brings more is told to try later.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Messages of one sync: what is compressed while nobody is answered.
const ROUND_BYTES_MAX: usize = 3 << 20;
/// Messages that wait to be kept aside; who brings more of them has them counted alone.
const BAD_BYTES_MAX: usize = 1 << 20;

/// What of a group was not kept, and why: of kind `Invalid` where it never can be.
pub type NotKept = BTreeMap<Category, Error>;

/// Where messages are kept.
pub trait Keeps: Send + Sync + 'static {
    /// Whether a category may be used at all; what cannot be is answered with OK, and counted.
    fn knows_or_may(&self, category: &Category) -> bool;
    /// Whether there is room for so many bytes more, beside those that wait.
    fn has_room(&self, bytes: usize) -> bool;
    /// Keeps them durably, in this order; waits for it. Says of each group what was not kept.
    fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept>;
    /// Keeps aside what can never be taken, as far as it has a place for that.
    fn keep_aside(&self, _: &[Aside<'_>]) {}
    /// Whether lines may be written to files of this place at all.
    fn may_write(&self, _: &Place) -> bool {
        false
    }
    /// Writes lines to files, durably, and waits for it.
    fn write(&self, _: &Lines<'_>) -> Unwritten {
        BTreeMap::new()
    }
}

/// Of which places lines were not written, and why; a part of them may have been.
pub type Unwritten = BTreeMap<Place, Error>;

/// What a call comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub answer: Answer,
    /// Categories that never take anything: their messages are answered with OK, and not kept.
    pub never: Vec<Category>,
}

/// Told what a call comes to, on any thread.
pub type Done = Box<dyn FnOnce(Taken) + Send>;

/// A message that can never be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    pub why: &'static str,
    pub category: Vec<u8>,
    /// Its beginning, and how long it was.
    pub message: Vec<u8>,
    pub bytes: usize,
}

impl Bad {
    fn aside(&self) -> Aside<'_> {
        Aside::message(self.why, &self.category, &self.message, self.bytes)
    }
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<(Sorted, Done)>,
    bytes: usize,
    bad: Vec<Bad>,
    bad_bytes: usize,
    ending: bool,
    /// Why clients are told to try later, while they are.
    trouble: Option<String>,
}

struct Shared {
    keeps: Arc<dyn Keeps>,
    /// Calls that wait; held for a look or a change.
    queue: Mutex<Queue>,
    /// There is a call, something bad, or the end.
    wake: Condvar,
}

/// See the module.
pub struct Intake {
    shared: Arc<Shared>,
    thread: Mutex<Option<Task>>,
}

impl Intake {
    pub fn start(keeps: Arc<dyn Keeps>) -> Result<Intake> {
        let shared = Arc::new(Shared { keeps, queue: Mutex::default(), wake: Condvar::new() });
        let runs = shared.clone();
        let thread = tasks::spawn("scribe-intake", move || while runs.round() {})?;
        Ok(Intake { shared, thread: Mutex::new(Some(thread)) })
    }

    pub fn knows_or_may(&self, category: &Category) -> bool {
        self.shared.keeps.knows_or_may(category)
    }

    pub fn may_write(&self, place: &Place) -> bool {
        self.shared.keeps.may_write(place)
    }

    /// Why clients are told to try later, if they are.
    pub fn trouble(&self) -> Option<String> {
        self.shared.queue.held().trouble.clone()
    }

    /// Has the messages of a call kept.
    pub fn take(&self, call: Sorted, done: Done) {
        let cost = call.cost();
        let mut queue = self.shared.queue.held();
        let waits = queue.bytes + cost;
        // Lines for files need no room in a spool.
        let has_room = call.messages.messages.is_empty() || self.shared.keeps.has_room(waits);
        let full = waits > WAITING_BYTES_MAX.max(cost) || !has_room;
        if queue.ending || full {
            let tell = !queue.ending && queue.trouble.is_none();
            if tell {
                let why = "there is no room for more messages: clients are told to try later";
                queue.trouble = Some(why.to_owned());
                event!(ScribeFull, why);
            }
            drop(queue);
            return done(Taken { answer: Answer::TryLater, never: Vec::new() });
        }
        queue.bytes += cost;
        queue.calls.push_back((call, done));
        self.shared.wake.notify_one();
    }

    /// Has messages kept aside that can never be taken, unless too many of them wait.
    pub fn aside(&self, bad: Vec<Bad>) {
        let bytes: usize = bad.iter().map(|bad| bad.category.len() + bad.message.len()).sum();
        let mut queue = self.shared.queue.held();
        if queue.bad_bytes + bytes <= BAD_BYTES_MAX {
            queue.bad_bytes += bytes;
            queue.bad.extend(bad);
            self.shared.wake.notify_one();
        }
    }

    /// Takes no more calls, has those that wait kept, and ends the thread.
    pub fn end(&self) {
        self.shared.queue.held().ending = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.held().take() {
            thread.join();
        }
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Waits for calls and has them kept; false at the end.
    fn round(&self) -> bool {
        let mut queue = self.queue.held();
        while queue.calls.is_empty() && queue.bad.is_empty() {
            if queue.ending {
                return false;
            }
            queue = self.wake.wait(queue).expect("nobody panics who holds it");
        }
        let bad = std::mem::take(&mut queue.bad);
        queue.bad_bytes = 0;
        let (mut bytes, mut calls) = (0, Vec::new());
        while bytes < ROUND_BYTES_MAX
            && let Some((call, done)) = queue.calls.pop_front()
        {
            bytes += call.cost();
            calls.push((call, done));
        }
        drop(queue);
        if !bad.is_empty() {
            self.keeps.keep_aside(&bad.iter().map(Bad::aside).collect::<Vec<_>>());
        }
        if !calls.is_empty() {
            self.keep(bytes, calls);
        }
        true
    }

    /// Has calls kept, and answers them. Files come first: a call whose lines are not written is sent again,
    /// so nothing of it may count in a topic.
    fn keep(&self, bytes: usize, calls: Vec<(Sorted, Done)>) {
        let mut lines = Lines::new();
        for (place, line) in calls.iter().flat_map(|(call, _)| &call.lines) {
            lines.entry(place).or_default().push(line);
        }
        let unwritten = if lines.is_empty() { Unwritten::new() } else { self.keeps.write(&lines) };
        drop(lines);
        let (mut round, mut waiting) = (Round::default(), Vec::with_capacity(calls.len()));
        for (call, done) in calls {
            let is_written = call.lines.iter().all(|(place, _)| !unwritten.contains_key(place));
            let groups = is_written.then(|| round.add(&call.messages));
            waiting.push((call.messages, groups, done));
        }
        let not_kept = self.keeps.keep(&round.pack());
        let later = |e: &&Error| e.kind != Kind::Invalid;
        let mut errors = not_kept.iter().flat_map(BTreeMap::values).chain(unwritten.values());
        self.note(bytes, errors.find(later));
        for (call, groups, done) in waiting {
            done(match groups {
                Some(groups) => outcome(&call, &not_kept[groups]),
                None => Taken { answer: Answer::TryLater, never: Vec::new() },
            });
        }
    }

    fn note(&self, bytes: usize, trouble: Option<&Error>) {
        let mut queue = self.queue.held();
        queue.bytes -= bytes;
        match trouble {
            None if queue.trouble.take().is_some() => {
                event!(ScribeGoesOn, "messages are taken again");
            }
            None => {}
            Some(e) => {
                if queue.trouble.as_ref() != Some(&e.message) {
                    event!(ScribeFull, e.message);
                }
                queue.trouble = Some(e.message.clone());
            }
        }
    }
}

/// What a call in these groups comes to. Where a part of it is to be sent again, all of it is.
fn outcome(call: &Messages, not_kept: &[NotKept]) -> Taken {
    let (mut answer, mut never) = (Answer::Ok, Vec::new());
    if not_kept.iter().all(BTreeMap::is_empty) {
        return Taken { answer, never };
    }
    let own: BTreeSet<&Category> = call.messages.iter().map(|(category, _)| category).collect();
    for category in own {
        let mut errors = not_kept.iter().filter_map(|group| group.get(category));
        match errors.clone().any(|e| e.kind != Kind::Invalid) {
            true => answer = Answer::TryLater,
            false if errors.next().is_some() => never.push(category.clone()),
            false => {}
        }
    }
    Taken { answer, never }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One category whose view had stopped had all calls of its round answered with TRY_LATER. Those of
    /// other categories were kept all the same, and counted again and again as their clients repeated them.
    #[test]
    fn a_call_hears_of_its_own_categories_alone() {
        let [good, stopped, beyond] =
            ["good", "stopped", "beyond"].map(|n| Category::new(n).unwrap());
        let call = |categories: &[&Category]| Messages {
            messages: categories.iter().map(|c| ((*c).clone(), b"m".to_vec())).collect(),
        };
        let not_kept = [
            NotKept::from([(beyond.clone(), Error::invalid("there are too many"))]),
            NotKept::from([(stopped.clone(), Error::corrupt("it is damaged"))]),
        ];
        let of = |categories: &[&Category], groups: &[NotKept]| {
            let Taken { answer, never } = outcome(&call(categories), groups);
            (answer, never)
        };
        assert_eq!(of(&[&good], &not_kept), (Answer::Ok, vec![]));
        assert_eq!(of(&[&good, &stopped], &not_kept), (Answer::TryLater, vec![]));
        assert_eq!(of(&[&stopped], &not_kept[..1]), (Answer::Ok, vec![]));
        assert_eq!(of(&[&beyond, &good], &not_kept), (Answer::Ok, vec![beyond.clone()]));
        assert_eq!(of(&[&beyond], &not_kept[1..]), (Answer::Ok, vec![]));
    }

    /// Of a call whose lines were not written the messages were kept all the same; its client repeated it,
    /// and they counted twice.
    #[test]
    fn of_a_call_whose_lines_are_not_written_nothing_counts_in_a_topic() {
        struct NoFiles(Mutex<usize>);
        impl Keeps for NoFiles {
            fn knows_or_may(&self, _: &Category) -> bool {
                true
            }
            fn has_room(&self, _: usize) -> bool {
                true
            }
            fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
                let packed = groups.iter().flatten();
                *self.0.held() += packed.map(|packed| packed.count as usize).sum::<usize>();
                vec![NotKept::new(); groups.len()]
            }
            fn write(&self, lines: &Lines<'_>) -> Unwritten {
                lines.keys().map(|place| ((*place).clone(), Error::retry("it is full"))).collect()
            }
        }
        let keeps = Arc::new(NoFiles(Mutex::default()));
        let intake = Intake::start(keeps.clone()).unwrap();
        let category = Category::new("a").unwrap();
        let messages = Messages { messages: vec![(category.clone(), b"m".to_vec())] };
        let lines = vec![(Place { store: 0, category }, b"m".to_vec())];
        for (lines, answer) in [(lines, Answer::TryLater), (vec![], Answer::Ok)] {
            let call = Sorted { messages: messages.clone(), lines, ..Sorted::default() };
            let (done, came) = std::sync::mpsc::channel();
            intake.take(call, Box::new(move |taken| done.send(taken).unwrap()));
            assert_eq!(came.recv().unwrap().answer, answer);
        }
        assert_eq!(*keeps.0.held(), 1);
    }
}
