//! Takes calls from the door, and has what came together kept together: one sync for as many calls as wait.
//! A call is answered when its messages are kept. Owns one thread; who keeps them is a [`Keeps`].

use crate::batch::Packed;
use crate::call::Answer;
use crate::category::Category;
use crate::gather::{Messages, Round};
use holdfast_base::Result;
use holdfast_env::tasks::{self, Task};
use holdfast_env::{HoldMutex, event};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Messages that wait to be kept; who brings more is told to try later.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Messages of one sync: what is compressed while nobody is answered.
const ROUND_BYTES_MAX: usize = 3 << 20;

/// Where messages are kept.
pub trait Keeps: Send + Sync + 'static {
    /// Whether a category may be used at all; what cannot be is answered with OK, and counted.
    fn knows_or_may(&self, category: &Category) -> bool;
    /// Whether there is room for so many bytes more, beside those that wait.
    fn has_room(&self, bytes: usize) -> bool;
    /// Keeps them durably, in this order; waits for it. After an error some may be kept.
    fn keep(&self, groups: Vec<Vec<Packed>>) -> Result<()>;
}

/// Told what a call comes to, on any thread.
pub type Done = Box<dyn FnOnce(Answer) + Send>;

#[derive(Default)]
struct Queue {
    calls: VecDeque<(Messages, Done)>,
    bytes: usize,
    ending: bool,
    /// Why clients are told to try later, while they are.
    trouble: Option<String>,
}

struct Shared {
    keeps: Arc<dyn Keeps>,
    /// Calls that wait; held for a look or a change.
    queue: Mutex<Queue>,
    /// There is a call, or the end.
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

    /// Why clients are told to try later, if they are.
    pub fn trouble(&self) -> Option<String> {
        self.shared.queue.held().trouble.clone()
    }

    /// Has the messages of a call kept.
    pub fn take(&self, call: Messages, done: Done) {
        let cost = call.cost();
        let mut queue = self.shared.queue.held();
        let waits = queue.bytes + cost;
        let full = waits > WAITING_BYTES_MAX.max(cost) || !self.shared.keeps.has_room(waits);
        if queue.ending || full {
            let tell = !queue.ending && queue.trouble.is_none();
            if tell {
                let why = "there is no room for more messages: clients are told to try later";
                queue.trouble = Some(why.to_owned());
                event!(ScribeFull, why);
            }
            drop(queue);
            return done(Answer::TryLater);
        }
        queue.bytes += cost;
        queue.calls.push_back((call, done));
        self.shared.wake.notify_one();
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
        while queue.calls.is_empty() {
            if queue.ending {
                return false;
            }
            queue = self.wake.wait(queue).expect("nobody panics who holds it");
        }
        let (mut round, mut bytes, mut waiting) = (Round::default(), 0, Vec::new());
        while bytes < ROUND_BYTES_MAX
            && let Some((call, done)) = queue.calls.pop_front()
        {
            bytes += call.cost();
            round.add(&call);
            waiting.push(done);
        }
        drop(queue);
        let kept = self.keeps.keep(round.pack());
        self.note(bytes, &kept);
        let answer = if kept.is_ok() { Answer::Ok } else { Answer::TryLater };
        waiting.into_iter().for_each(|done| done(answer));
        true
    }

    fn note(&self, bytes: usize, kept: &Result<()>) {
        let mut queue = self.queue.held();
        queue.bytes -= bytes;
        match kept {
            Ok(()) if queue.trouble.take().is_some() => {
                event!(ScribeGoesOn, "messages are taken again");
            }
            Ok(()) => {}
            Err(e) => {
                if queue.trouble.as_ref() != Some(&e.message) {
                    event!(ScribeFull, e.message);
                }
                queue.trouble = Some(e.message.clone());
            }
        }
    }
}
