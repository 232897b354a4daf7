//! The thread of a fold that is kept in rows: it reads pages of durable entries, applies each page,
//! keeps it as one batch, and then answers. Who appends, and the log's own threads, only leave word:
//! they wait for no engine, and neither do readers, who have the rows.

use super::machine;
use super::member::{Proposer, Ready, Step, is_away};
use super::place::Context;
use super::{Arrival, EntryKind, Fold, FoldOptions, Role, Shared, SnapshotStore, View, boot};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted, tasks};
use holdfast_log::{Log, Scope};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What the thread is told.
#[derive(Default)]
pub(super) struct Feed {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// There may be an entry.
    more: bool,
    ending: bool,
    /// The log will not call again.
    ended: Option<Error>,
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.held()
    }

    pub fn tell(&self, told: Result<()>) {
        let mut state = self.state();
        state.more = true;
        state.ended = told.err();
        self.wake.notify_one();
    }

    pub fn end(&self) {
        self.state().ending = true;
        self.wake.notify_one();
    }

    /// Waits until there may be more; nothing at the end.
    fn wait(&self) -> Option<Result<()>> {
        let mut state = self.state();
        while !state.more && !state.ending {
            state = self.wake.wait(state).expect("no holder panics");
        }
        state.more = false;
        (!state.ending).then(|| state.ended.take().map_or(Ok(()), Err))
    }
}

impl<V: View> Fold<V> {
    /// As [`Fold::open_member`], on a thread of its own.
    pub fn open_on_thread(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
    ) -> Result<Fold<V>> {
        Fold::open_on_thread_from(log, context, snapshots, options, None)
    }

    /// As [`Fold::open_member_from`], on a thread of its own.
    pub fn open_on_thread_from(
        log: Arc<dyn Log>,
        context: impl Into<Context>,
        snapshots: SnapshotStore,
        options: FoldOptions,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<Fold<V>> {
        let feed = Some(Feed::default());
        let booted = boot::boot_from(&context.into(), &snapshots, arrival)?;
        let fold = Fold::boot(log, booted, snapshots, options, Role::Member, feed)?;
        // Nobody waits yet; who asks first finds where the fold is, and whether the log is the one that
        // the rows were made of: nothing is appended to another one.
        let mut machine = fold.shared.write();
        if !planted!("view.newer-rows-propose") {
            fold.shared.is_verified(&mut machine);
        }
        drop(fold.shared.settle(&machine));
        drop(machine);
        let runs = fold.shared.clone();
        fold.threads.held().push(tasks::spawn("fold", move || runs.run())?);
        Ok(fold)
    }
}

impl<V: View> Shared<V> {
    fn run(self: Arc<Self>) {
        let Some(feed) = &self.feed else { return };
        let mut asked = Index(0);
        loop {
            let mut machine = self.write();
            let step = self.step(&mut machine, Scope::Durable);
            let ready = self.settle(&machine);
            drop(machine);
            ready.into_iter().for_each(Ready::call);
            match step {
                // The log calls anew.
                Step::Stopped if self.hear_again() => asked = Index(0),
                Step::Stopped => return,
                Step::More if feed.state().ending => return,
                Step::More => continue,
                // The log calls once for each index that it was asked for.
                Step::Idle(next) if next > asked => {
                    asked = next;
                    self.ask_again(next);
                }
                Step::Idle(_) | Step::HeldUp => {}
            }
            match feed.wait() {
                None => return,
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    self.tail_ended(e);
                    if !is_away(&self.read()) {
                        return;
                    }
                }
            }
        }
    }

    fn ask_again(self: &Arc<Self>, next: Index) {
        let told = Arc::downgrade(self);
        let wake = move |result: Result<()>| {
            if let Some(shared) = told.upgrade() {
                shared.feed.iter().for_each(|feed| feed.tell(result.clone()));
            }
        };
        self.log.tail(&self.topic, next, Box::new(wake));
    }

    /// As [`Shared::admit`], by what the thread has told last.
    pub(super) fn admit_fed(&self, kind: EntryKind, epoch: Index) -> Result<()> {
        let waiting = self.waiting();
        match waiting.stopped() {
            Some(e) => Err(e),
            None if !kind.claims() && machine::is_fenced(epoch, waiting.epoch()) => {
                Err(machine::fenced(epoch, waiting.epoch()))
            }
            None => Ok(()),
        }
    }

    /// An own entry is in the log. The thread comes by it.
    pub(super) fn acknowledged_fed(&self, flight: u64, index: Index, done: Proposer) -> Vec<Ready> {
        let ready = self.waiting().arrive(flight, index, done);
        self.feed.iter().for_each(|feed| feed.tell(Ok(())));
        ready.into_iter().collect()
    }
}
