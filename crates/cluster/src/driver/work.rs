//! Threads for work that may wait for a disk: reads that miss memory, chunk creation, seals.
//! Bounded: a full queue runs the job on the caller, which slows the caller down instead of
//! growing. In simulations there are no threads and every job runs on its caller.

use holdfast_base::Result;
use holdfast_env::tasks;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait for a thread; past it the caller does the work itself.
const QUEUE_MAX: usize = 4096;

struct Shared {
    /// Jobs in the order they came, and whether the pool is ending.
    queue: Mutex<(VecDeque<Job>, bool)>,
    /// Signalled for each job, and to all when the pool ends.
    changed: Condvar,
}

/// A few threads and a queue.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<tasks::Task>,
}

impl Workers {
    /// `threads` 0 runs every job on its caller.
    pub fn new(name: &str, threads: usize) -> Result<Workers> {
        let shared = Arc::new(Shared {
            queue: Mutex::new((VecDeque::new(), false)),
            changed: Condvar::new(),
        });
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
        if !self.threads.is_empty() {
            let mut queue = self.shared.queue.lock().expect("jobs run without the lock");
            if queue.0.len() < QUEUE_MAX {
                queue.0.push_back(Box::new(job));
                drop(queue);
                self.shared.changed.notify_one();
                return;
            }
        }
        job();
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock().expect("jobs run without the lock");
        loop {
            if let Some(job) = queue.0.pop_front() {
                drop(queue);
                job();
                queue = self.queue.lock().expect("jobs run without the lock");
            } else if queue.1 {
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
        self.shared.queue.lock().expect("jobs run without the lock").1 = true;
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
}
