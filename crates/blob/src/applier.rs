//! Carries the blobs topic's durable entries to the fold, in order, on a thread of its own, and
//! tells proposers what came of theirs. Never decides: the fold does.

use crate::command::{Command, Outcome};
use crate::fold::Fold;
use crate::service::{Answer, Failure};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_env::tasks::{self, Task};
use holdfast_log::{Log, Mode, Scope};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Entries and bytes of one read of the log.
const PAGE_ENTRIES: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;

/// What is called when the view stops, with the reason.
pub type Told = Box<dyn Fn(&Error) + Send + Sync>;

type Done = Box<dyn FnOnce(Answer<Outcome>) + Send>;

pub struct Applier {
    log: Arc<dyn Log>,
    topic: String,
    /// Marks of this process's proposals: a random start, counted up.
    mark: AtomicU64,
    state: Mutex<State>,
    /// Wakes the thread: there is an entry, or the end.
    wake: Condvar,
    /// Locked by whoever applies; behind it the rows change.
    fold: Mutex<Fold>,
    /// There is no thread: simulations have only their own.
    inline: bool,
    /// Told why no further entry is applied.
    told: Told,
    task: Mutex<Option<Task>>,
}

#[derive(Default)]
struct State {
    /// Proposals that were not applied yet, by their marks.
    waiting: BTreeMap<u64, Done>,
    /// The log has said that there is more.
    more: bool,
    ending: bool,
    /// Why no entry is applied any more.
    stopped: Option<Error>,
}

impl Applier {
    /// Applies everything that the log holds, then goes on in the background; without threads, as
    /// its own entries become durable.
    pub fn start(
        log: Arc<dyn Log>,
        topic: &str,
        fold: Fold,
        (mark, inline): (u64, bool),
        told: Told,
    ) -> Result<Arc<Applier>> {
        log.create(topic)?;
        let applier = Arc::new(Applier {
            log,
            topic: topic.to_owned(),
            mark: AtomicU64::new(mark),
            state: Mutex::default(),
            wake: Condvar::new(),
            fold: Mutex::new(fold),
            inline,
            told,
            task: Mutex::default(),
        });
        while applier.step()? {}
        // A log that another node keeps says where it ends later, or never.
        let position = applier.position();
        if position.0 > 0 && applier.log.info(topic).is_ok_and(|info| info.next <= position) {
            return Err(Error::corrupt(format!(
                "fold topic `{topic}`: it ends before entry {position}, which the view's rows contain: restore both from one copy"
            )));
        }
        if inline {
            return Ok(applier);
        }
        let runs = Arc::downgrade(&applier);
        let task = tasks::spawn("blobs", move || {
            // Between two rounds nothing keeps the applier alive.
            while let Some(applier) = runs.upgrade() {
                if !applier.round() {
                    break;
                }
            }
        })?;
        *applier.task.held() = Some(task);
        Ok(applier)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    fn fold(&self) -> MutexGuard<'_, Fold> {
        self.fold.held()
    }

    /// The last entry applied.
    pub fn position(&self) -> Index {
        self.fold().position().index
    }

    /// Appends a command; `done` hears what came of it once it is durable and applied.
    pub fn propose(self: &Arc<Self>, command: &Command, done: Done) {
        self.append(vec![(command, done)]);
    }

    /// Appends commands together; `done` hears what came of each.
    pub fn propose_all(
        self: &Arc<Self>,
        commands: &[Command],
        done: Box<dyn FnOnce(Vec<Answer<Outcome>>) + Send>,
    ) {
        if commands.is_empty() {
            return done(Vec::new());
        }
        let answers: Vec<Option<Answer<Outcome>>> = vec![None; commands.len()];
        let heard = Arc::new(Mutex::new((answers, commands.len(), Some(done))));
        let one = |(at, command)| {
            let heard = heard.clone();
            let hear: Done = Box::new(move |answer| {
                let (answers, done) = {
                    let mut heard = heard.held();
                    let (answers, left, done) = &mut *heard;
                    answers[at] = Some(answer);
                    *left -= 1;
                    if *left > 0 {
                        return;
                    }
                    (std::mem::take(answers), done.take())
                };
                if let Some(done) = done {
                    done(answers.into_iter().flatten().collect());
                }
            });
            (command, hear)
        };
        self.append(commands.iter().enumerate().map(one).collect());
    }

    fn append(self: &Arc<Self>, commands: Vec<(&Command, Done)>) {
        let first = self.mark.fetch_add(commands.len() as u64, Ordering::Relaxed).max(1);
        let marks = first..first + commands.len() as u64;
        let mut entries = Vec::with_capacity(commands.len());
        {
            let mut state = self.state();
            if let Some(e) = state.stopped.clone() {
                drop(state);
                let told = commands.into_iter().map(|(_, done)| done);
                return told.for_each(|done| done(Err(Failure::Failed(e.clone()))));
            }
            for (mark, (command, done)) in marks.clone().zip(commands) {
                entries.push(command.to_entry(mark));
                state.waiting.insert(mark, done);
            }
        }
        let applier = self.clone();
        let appended = move |index: Result<Index>| match index {
            Ok(_) if applier.inline => {
                if let Err(e) = applier.step() {
                    applier.stop(e);
                }
            }
            Ok(_) => {
                applier.state().more = true;
                applier.wake.notify_one();
            }
            Err(e) => {
                let waiting: Vec<Done> = {
                    let mut state = applier.state();
                    marks.filter_map(|mark| state.waiting.remove(&mark)).collect()
                };
                waiting.into_iter().for_each(|done| done(Err(Failure::Failed(e.clone()))));
            }
        };
        self.log.append(&self.topic, entries, Mode::Synced, Box::new(appended));
    }

    /// Waits for entries and applies them; false at the end.
    fn round(self: &Arc<Self>) -> bool {
        match self.step() {
            Ok(true) => return true,
            Ok(false) => {}
            Err(e) => {
                self.stop(e);
                return false;
            }
        }
        let next = Index(self.position().0 + 1);
        let woken = Arc::downgrade(self);
        let wake = move |_: Result<()>| {
            if let Some(applier) = woken.upgrade() {
                applier.state().more = true;
                applier.wake.notify_one();
            }
        };
        self.log.tail(&self.topic, next, Box::new(wake));
        let mut state = self.state();
        while !state.more && !state.ending {
            state = self.wake.wait(state).expect("no holder of this lock panics");
        }
        state.more = false;
        !state.ending
    }

    /// Applies one page of durable entries; false when there is none.
    pub fn step(&self) -> Result<bool> {
        let mut fold = self.fold();
        if let Some(e) = self.state().stopped.clone() {
            return Err(e);
        }
        // With the entry applied last in front, to see that this is still the same log.
        let from = fold.position().index.max(Index(1));
        let page = self.log.read(&self.topic, from, PAGE_ENTRIES, PAGE_BYTES, Scope::Durable)?;
        let before = fold.position().index;
        let mut told = Vec::new();
        for (index, entry) in page {
            if index == fold.position().index {
                self.verify(&fold, &entry)?;
            } else if let Some(applied) = fold.apply(index, &entry)? {
                let waiting = self.state().waiting.remove(&applied.mark);
                told.extend(waiting.map(|done| (done, applied.result)));
            }
        }
        let moved = fold.position().index > before;
        drop(fold);
        told.into_iter().for_each(|(done, result)| done(result.map_err(Failure::Refused)));
        Ok(moved)
    }

    /// Refuses rows that were folded from another log than this one.
    fn verify(&self, fold: &Fold, entry: &[u8]) -> Result<()> {
        let position = fold.position();
        if holdfast_base::checksum::crc32c(entry) == position.entry_crc {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "fold topic `{}`: entry {} is not the one that the view's rows contain: they are of different age or origin; restore both from one copy",
            self.topic, position.index
        )))
    }

    fn stop(&self, e: Error) {
        // A log or a node that ends is no news.
        if e.kind != Kind::Retry {
            (self.told)(&e);
        }
        let waiting = {
            let mut state = self.state();
            state.stopped = Some(e.clone());
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(|done| done(Err(Failure::Failed(e.clone()))));
    }

    /// Ends the thread. Proposals that were not applied are told to ask again.
    pub fn end(&self) {
        self.state().ending = true;
        self.wake.notify_all();
        let task = self.task.held().take();
        task.into_iter().for_each(Task::join);
        self.stop(Error::retry(
            "name a blob: the node is ending; whether it was done is not known",
        ));
    }
}
