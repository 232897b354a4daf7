//! Threads for work that may wait for a disk: reads that miss memory, chunk creation, seals.
//! Bounded: a full queue runs the job on the caller, which slows the caller down instead of
//! growing. In simulations there are no threads and every job runs on its caller.

use holdfast_base::Result;
use holdfast_base::ids::StoreId;
use holdfast_env::{HoldMutex, tasks};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait for a thread; past it the caller does the work itself.
const QUEUE_MAX: usize = 4096;

struct Shared {
    queue: Mutex<Queue>,
    /// Signalled for each job that can start, and to all when the pool ends.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Jobs that can start, in the order they came, each with its line.
    ready: VecDeque<(Option<StoreId>, Job)>,
    /// Behind the one job of each line that is ready or runs.
    lines: BTreeMap<StoreId, VecDeque<Job>>,
    ends: bool,
}

impl Queue {
    fn has_room(&self) -> bool {
        let waiting: usize = self.lines.values().map(VecDeque::len).sum();
        self.ready.len() + waiting < QUEUE_MAX
    }

    /// Whether a thread is to be woken for it.
    fn push(&mut self, line: Option<StoreId>, job: Job) -> bool {
        if let Some(waiting) = line.and_then(|line| self.lines.get_mut(&line)) {
            waiting.push_back(job);
            return false;
        }
        self.lines.extend(line.map(|line| (line, VecDeque::new())));
        self.ready.push_back((line, job));
        true
    }

    /// A job of this line is done: the next one goes behind what is ready.
    fn done(&mut self, line: StoreId) {
        match self.lines.get_mut(&line).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back((Some(line), next)),
            None => drop(self.lines.remove(&line)),
        }
    }
}

/// A few threads and a queue.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<tasks::Task>,
}

impl Workers {
    /// `threads` 0 runs every job on its caller.
    pub fn new(name: &str, threads: usize) -> Result<Workers> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let threads = (0..threads)
            .map(|i| {
                let shared = shared.clone();
                tasks::spawn(&format!("{name}-{i}"), move || shared.run())
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Workers { shared, threads })
    }

    /// Jobs run on their callers.
    pub fn is_inline(&self) -> bool {
        self.threads.is_empty()
    }

    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.push(None, Box::new(job));
    }

    /// One after the other for each store: so that what can wait, as recovery can, holds one thread
    /// and no more of them while a disk is slow.
    pub fn run_in_line(&self, store: StoreId, job: impl FnOnce() + Send + 'static) {
        self.push(Some(store), Box::new(job));
    }

    fn push(&self, line: Option<StoreId>, job: Job) {
        if !self.threads.is_empty() {
            let mut queue = self.shared.queue.held();
            if queue.has_room() {
                if queue.push(line, job) {
                    self.shared.changed.notify_one();
                }
                return;
            }
        }
        job();
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.held();
        loop {
            if let Some((line, job)) = queue.ready.pop_front() {
                drop(queue);
                job();
                queue = self.queue.held();
                if let Some(line) = line {
                    queue.done(line);
                }
            } else if queue.ends {
                return;
            } else {
                queue = self.changed.wait(queue).expect("jobs run without the lock");
            }
        }
    }
}

impl Drop for Workers {
    /// Finishes what is queued. A job may have held the pool last: its thread ends by itself.
    fn drop(&mut self) {
        self.shared.queue.held().ends = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..).filter(|thread| !thread.is_current()) {
            thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A node that ended in order while one of its reads was under way joined its own thread, and
    /// said so on its way out.
    #[test]
    fn a_job_that_holds_the_pool_last_lets_it_go() {
        let workers = Arc::new(Workers::new("work", 2).unwrap());
        let (go, gone) = channel();
        let (done, ended) = channel();
        let held = workers.clone();
        workers.run(move || {
            gone.recv().unwrap();
            drop(held);
            done.send(()).unwrap();
        });
        drop(workers);
        go.send(()).unwrap();
        ended.recv().unwrap();
    }

    /// Copies of and to a slow disk held all threads, so that nothing else of the node went on.
    #[test]
    fn jobs_in_line_run_in_order_and_leave_the_other_threads_to_others() {
        let workers = Workers::new("work", 2).unwrap();
        let (go, gone) = channel();
        let (done, ended) = channel();
        let tell = |what| {
            let done = done.clone();
            move || done.send(what).unwrap()
        };
        let slow = StoreId(1);
        workers.run_in_line(slow, move || gone.recv().unwrap());
        workers.run_in_line(slow, tell("second"));
        workers.run_in_line(slow, tell("third"));
        workers.run(tell("another"));
        workers.run_in_line(StoreId(2), tell("of another disk"));
        assert_eq!([ended.recv().unwrap(), ended.recv().unwrap()], ["another", "of another disk"]);
        go.send(()).unwrap();
        assert_eq!([ended.recv().unwrap(), ended.recv().unwrap()], ["second", "third"]);
        // What waits is done before the pool ends.
        let (go, gone) = channel();
        workers.run_in_line(slow, move || gone.recv().unwrap());
        workers.run_in_line(slow, tell("last"));
        go.send(()).unwrap();
        drop(workers);
        assert_eq!(ended.recv().unwrap(), "last");
    }
}
