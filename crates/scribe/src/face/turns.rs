//! Requests go on in the order in which they came, though several threads look at them first. Batches of a spool that
//! overtook each other would be dropped as too early, each an entry of the log for nothing.

use holdfast_env::{HoldMutex, planted};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub(super) struct Turns(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// The number of the one in front.
    first: u64,
    /// Of each that came, what it does when it is its turn; nothing while that is not known.
    jobs: VecDeque<Option<Job>>,
    /// Somebody carries out those in front: two would overtake each other.
    is_busy: bool,
}

/// A place in the order. One that is given up holds up nobody.
pub(super) struct Turn {
    turns: Arc<Turns>,
    number: u64,
    is_over: bool,
}

impl Turns {
    /// Somebody comes.
    pub fn enter(self: &Arc<Turns>) -> Turn {
        let mut queue = self.0.held();
        let number = queue.first + queue.jobs.len() as u64;
        queue.jobs.push_back(None);
        Turn { turns: self.clone(), number, is_over: false }
    }

    fn is_ready(&self, number: u64, job: Job) {
        let mut queue = self.0.held();
        let at = (number - queue.first) as usize;
        queue.jobs[at] = Some(job);
        if queue.is_busy {
            return;
        }
        queue.is_busy = true;
        while let Some(job) = queue.jobs.front_mut().and_then(Option::take) {
            queue.jobs.pop_front();
            queue.first += 1;
            drop(queue);
            job();
            queue = self.0.held();
        }
        queue.is_busy = false;
    }
}

impl Turn {
    /// Does this once all have that came before, now or on another thread.
    pub fn then(mut self, job: impl FnOnce() + Send + 'static) {
        self.is_over = true;
        if planted!("scribe.requests-overtake") {
            job();
            return self.turns.is_ready(self.number, Box::new(|| ()));
        }
        self.turns.is_ready(self.number, Box::new(job));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            self.turns.is_ready(self.number, Box::new(|| ()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_goes_first_whoever_is_ready() {
        let (turns, done) = (Arc::new(Turns::default()), Arc::new(Mutex::new(Vec::new())));
        let enter = || turns.enter();
        let push = |number: u64| {
            let done = done.clone();
            move || done.held().push(number)
        };
        let [first, second, third, fourth] = [(); 4].map(|()| enter());
        third.then(push(3));
        drop(second);
        assert!(done.held().is_empty(), "the first one is not ready");
        // Somebody is ready while another one's turn is under way, and goes behind it.
        let (late, push_4) = (push(1), push(4));
        first.then(move || {
            fourth.then(push_4);
            late();
        });
        enter().then(push(5));
        assert_eq!(*done.held(), [1, 3, 4, 5]);
    }
}
